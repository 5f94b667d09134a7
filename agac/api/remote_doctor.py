"""`agac remote doctor`: what a remote holds, and what this process may do there."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agac.api.batch_control import control_of
from agac.api.project import Project, open_project
from agac.api.share import FOLDER, remote_of, writer_of
from agac.api.sync import blocking
from agac.core.errors import AgacError, Problem, Where
from agac.core.types import Report, counted
from agac.spec.loader import workflow_names


@dataclass(frozen=True, slots=True)
class RemoteReport(Report):
    """A remote, and what this process may do there."""

    remote: str
    """The remote's address."""
    packs: dict[str, int]
    """The number of whole packs, by writer."""
    trust: list[str]
    """The writers that the project trusts."""
    writer: str
    """The name under which this process pushes; empty: it may not."""
    create_only: bool | None
    """True if nothing in the remote is ever replaced; None: this process may not push."""
    forges: bool
    """True if the login may write in the folder of any writer."""
    problems: list[Problem]
    """Why this process may not push."""
    control: dict[str, str]
    """How the workflows are whose batches' state is in the remote."""


@blocking
async def remote_doctor(*, project: Path | str | None = None) -> RemoteReport:
    """Looks at the remote, and tests what this process may do there, which leaves two small
    objects."""
    opened = open_project(project, sound=True)
    remote = remote_of(opened)
    problems = list[Problem]()
    writer = ""
    create_only = None
    forges = False
    names = await remote.sizes(FOLDER)
    packs_of = Counter(name.split("/")[1] for name in names if name.endswith(".index"))
    try:
        writer = writer_of(opened)
        probe = f"{FOLDER}/{writer}/probe"
        created = await asyncio.gather(remote.create(probe, b"1"), remote.create(probe, b"2"))
        create_only = sum(created) < 2 and not await remote.create(probe, b"3")
        with suppress(AgacError):  # a refusal is good here
            await remote.create(f"{FOLDER}/_probe/{writer}", b"")
            forges = True
    except AgacError as error:
        problems.append(
            Problem(Where(remote.url), f"{error.message}. {error.remedy or ''}", "warning")
        )
    return RemoteReport(
        remote=remote.url,
        packs=dict(sorted(packs_of.items())),
        trust=opened.spec.file.remote.trust,
        writer=writer,
        create_only=create_only,
        forges=forges,
        problems=problems,
        control=await _control_states(opened, writer),
    )


async def _control_states(opened: Project, writer: str) -> dict[str, str]:
    """Describes the state of batches in the remote, by workflow."""
    states = {}
    for workflow in workflow_names(opened.spec):
        control = control_of(opened, workflow, writer)
        try:
            entry = await control.last()
        except AgacError as error:
            states[workflow] = error.message
            continue
        if entry is not None:
            holder = control.holder(entry)
            held = f"nobody works on it, {entry.writer} was the last"
            if holder:
                held = f"held by {holder}"
            open_batches = counted(len(entry.batches), "open batch", "open batches")
            states[workflow] = f"{open_batches}; {held}"
    return states

"""`agac push` and `agac pull`: answers that a team shares in a folder or a bucket."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agac.api.project import Project, open_project
from agac.api.ready_workflow import made_ready
from agac.api.run_options import RunOptions
from agac.api.sync import blocking
from agac.core.errors import AgacError, Problem, UsageError, Where
from agac.core.types import Report, Usd
from agac.data.object_store import ObjectStore
from agac.engine.ask.validate import Checker
from agac.engine.forecast.baseline import Baseline, InvocationChoice
from agac.engine.forecast.baseline_run import BaselineRun
from agac.engine.forecast.dry_run import dry_run
from agac.engine.invocation import Scope
from agac.plan.plan import make_plan
from agac.plan.stage import LocalStage, PlannedStage
from agac.providers.table import build_providers
from agac.spec.loader import workflow_names
from agac.spec.paths import home_of
from agac.spec.validation import writer_name
from agac.store import packs
from agac.store.db import Database, select
from agac.store.packs import Damaged, KnownAnswers, PackedAnswer, endpoint_mark
from agac.store.rows import EarlierResult, earlier_results
from agac.store.writer import open_database

FOLDER = "v1"
"""The folder of all packs, by writer. The number is that of their form."""

READERS = {
    "AGAC_REMOTE_READ_ONLY": "[^0]",
    "GITHUB_EVENT_NAME": "pull_request",
    "CI_MERGE_REQUEST_IID": ".",
    "BITBUCKET_PR_ID": ".",
}
"""Variables of jobs that push nothing, and patterns for the beginnings of their values."""

_INDEXES_AT_ONCE = 16
"""Indexes that are read from the remote at the same time."""

_log = logging.getLogger("agac.run")


def remote_of(opened: Project) -> ObjectStore:
    """Returns the project's remote. Raises UsageError if it has none."""
    url = opened.env.get("AGAC_REMOTE") or opened.spec.file.remote.url
    if not url:
        remedy = (
            "Write `remote: {url: FOLDER or s3://BUCKET/PREFIX, trust: [NAME]}` into it, "
            "or set AGAC_REMOTE."
        )
        raise UsageError("agac.yml names no remote", remedy=remedy)
    return ObjectStore(url, home_of(opened.state))


def writer_of(opened: Project) -> str:
    """Returns the name under which this process pushes. Raises UsageError if it only reads, or has
    no name."""
    for variable, begin in READERS.items():
        if re.match(begin, opened.env.get(variable, "")):
            remedy = "Push from a job on a protected branch."
            raise UsageError(f"{variable} says that this job only reads the remote", remedy=remedy)
    name = opened.env.get("AGAC_REMOTE_WRITER", "")
    try:
        return str(writer_name(name))
    except ValueError as error:
        said = f": {error}" if name else " is not set: answers have a writer"
        raise UsageError(
            f"AGAC_REMOTE_WRITER{said}", remedy="Set it to your name, or the job's, as `ci`."
        ) from None


class SharedAnswers:
    """Tells a plan for which tasks the remote has answers of trusted writers. With a database
    (`into`) these answers are checked and pulled."""

    def __init__(
        self,
        opened: Project,
        known: KnownAnswers,
        problems: list[Problem],
        into: Database | None = None,
    ) -> None:
        self.known = known
        self._problems = problems
        self._database = into
        self.committed = _committed_endpoints(opened)
        """The marks of all endpoints that the project's files name."""
        self._checkers = dict[tuple[str, str], Checker]()
        self.workflow = ""
        """The workflow that is planned."""
        self.usd = 0.0
        """What the pulled answers cost."""
        self.writers = Counter[str]()
        """The number of pulled answers, by writer."""
        self.unfit = set[bytes]()
        """The fingerprints whose answers today's stages refuse."""
        self.remote = remote_of(opened)

    async def look(self, writers: Sequence[str]) -> None:
        """Reads the indexes of these writers' packs, except those that are known."""
        for writer in writers:
            folder = f"{FOLDER}/{writer}"
            pattern = re.compile(rf"{re.escape(folder)}/([0-9a-f]{{64}})\.index")
            names = filter(None, map(pattern.fullmatch, sorted(await self.remote.sizes(folder))))
            of_writer = [(writer, name[1]) for name in names]
            await self.know([pack for pack in of_writer if pack not in self.known.packs])

    async def know(self, of_writers: Sequence[tuple[str, str]]) -> None:
        """Reads the indexes of packs, each named with its writer."""
        for start in range(0, len(of_writers), _INDEXES_AT_ONCE):
            some = of_writers[start : start + _INDEXES_AT_ONCE]
            names = [f"{FOLDER}/{writer}/{pack}.index" for writer, pack in some]
            indexes = await asyncio.gather(
                *(self.remote.read(name, packs.MAX_INDEX) for name in names)
            )
            for (writer, pack), name, index in zip(some, names, indexes, strict=True):
                with self.noting(name):
                    self.known.add(writer, pack, index)

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Turns Damaged into a problem: the object of this name is left out."""
        try:
            yield
        except Damaged as error:
            self._problems.append(
                Problem(Where(f"{self.remote.url}/{name}"), f"left out: {error}", "warning")
            )

    async def take(
        self, stage: PlannedStage, prints: Sequence[bytes], since: float
    ) -> Mapping[bytes, EarlierResult | None]:
        """Returns the stage's answers to these fingerprints, given at or after `since`; None for
        one that is in the remote and was not pulled."""
        providers = [model.provider for model in stage.models if stage.reuse != "never"]
        endpoints = {endpoint_mark(provider.name, provider.base_url) for provider in providers}
        marks = sorted(self.committed & endpoints)
        known = self.known.find(prints, marks, since)
        if self._database is None or not known:
            return {fingerprint: None for fingerprint, *_ in known}
        while unread := {(writer, pack) for _, _, writer, pack, answer in known if answer is None}:
            for writer, pack in unread:
                await self._read_pack(writer, pack)
            known = self.known.find(prints, marks, since)
        taken = self._fitting(stage, [answer for *_, answer in known if answer is not None])
        self.unfit |= {fingerprint for fingerprint, *_ in known} - taken.keys()
        self.writers.update(answer.writer for answer in taken.values())
        self.usd += sum(answer.cost or 0.0 for answer in taken.values())
        await packs.keep_pulled(self._database, list(taken.values()), since)
        return await earlier_results(self._database, list(taken), since, self.workflow)

    def _fitting(
        self, stage: PlannedStage, answers: Sequence[PackedAnswer]
    ) -> dict[bytes, PackedAnswer]:
        """Returns the first answer to each fingerprint that today's stage takes."""
        checker = self._checker(stage)
        fitting = dict[bytes, PackedAnswer]()
        for answer in answers:
            if answer.fingerprint not in fitting:
                value = checker.kept(json.loads(answer.value))
                if value is not None:
                    fitting[answer.fingerprint] = answer._replace(value=value)
        return fitting

    async def _read_pack(self, writer: str, pack: str) -> None:
        """Reads the answers of a pack. One that is damaged becomes a problem."""
        name = f"{FOLDER}/{writer}/{pack}.pack"
        content = await self.remote.read(name, packs.MAX_BYTES)
        with self.noting(name):
            self.known.read(writer, pack, content, time.time())

    def _checker(self, stage: PlannedStage) -> Checker:
        """Returns what checks answers of a stage, which is made once."""
        key = (self.workflow, stage.name)
        if key not in self._checkers:
            self._checkers[key] = Checker(stage)
        return self._checkers[key]


def _committed_endpoints(opened: Project) -> set[bytes]:
    """Returns the marks of all endpoints that the project's files name. Variables of an environment
    are not looked up, so that all machines get the same."""
    providers, _ = build_providers(opened.spec.file.providers, {})
    return {
        endpoint_mark(provider.name, provider.base_url)
        for provider in providers.values()
        if not provider.simulated and "://" in provider.base_url
    }


@asynccontextmanager
async def shared_answers(
    opened: Project, problems: list[Problem]
) -> AsyncIterator[SharedAnswers | None]:
    """Gives what tells a plan about the project's remote. None if it has no remote, or one that
    cannot be used, which becomes a problem."""
    url = opened.env.get("AGAC_REMOTE") or opened.spec.file.remote.url
    if opened.untrusted or not url:
        yield None
        return
    with closing(KnownAnswers()) as known:
        shared = None
        try:
            shared = SharedAnswers(opened, known, problems)
            await shared.look(opened.spec.file.remote.trust)
        except AgacError as error:
            where = Where("agac.yml", path="remote.url")
            remedy = f"; {error.remedy}" if error.remedy else ""
            problems.append(Problem(where, f"{error.message}{remedy}", "warning"))
        yield shared


@dataclass(frozen=True, slots=True)
class PushReport(Report):
    """Answers that were pushed."""

    remote: str
    """The remote's address."""
    writer: str
    """The name under which they were pushed."""
    answers: int
    """The number of new answers."""
    packs: int
    """The number of their packs."""
    usd: Usd
    """What they cost."""
    there: int
    """Answers that were pushed before."""
    kept: int
    """Answers that were not pushed: they are too long, hold a secret, or come from an address that
    agac.yml does not name."""


@blocking
async def push(*, project: Path | str | None = None) -> PushReport:
    """Puts the project's own answers into its remote, except those that it has, as packs that never
    change."""
    opened = open_project(project, sound=True)
    async with open_database(opened.store) as database:
        return await _push(database, opened)


async def _push(
    database: Database, opened: Project, known: KnownAnswers | None = None
) -> PushReport:
    """Pushes the answers of an opened project. An index that is `known` is not read again."""
    with nullcontext(known) if known else closing(KnownAnswers()) as there:
        shared = SharedAnswers(opened, there, [])
        await shared.look([writer_of(opened)])
        return await push_since(database, opened, shared)


async def push_since(
    database: Database,
    opened: Project,
    shared: SharedAnswers,
    made: Callable[[str], Awaitable[object]] | None = None,
) -> PushReport:
    """Pushes the answers since the last time; the first time all that are not in the remote."""
    (last,) = await select(database, "last_numbers", dict[str, int])
    now = last["attempts"], last["results"]
    before = shared.known.pushed
    answers = packs.own_answers(database)
    if before:  # an answer comes with its last attempt, or soon after it
        answers = packs.own_answers(database, (before[0][0], now[0]), before[-1][1])
    report = await put_new(opened, shared, writer_of(opened), answers, made)
    shared.known.pushed = [*before[-1:], now]
    return report


async def put_new(
    opened: Project, shared: SharedAnswers, writer: str, answers: AsyncIterator[list[PackedAnswer]],
    made: Callable[[str], Awaitable[object]] | None = None,
) -> PushReport:  # fmt: skip
    """Pushes those of these answers that no known index lists. `made` is given the name of each
    pack."""
    clean = opened.redactor().clean
    marks = sorted(shared.committed)
    packing = _Packing(shared, writer, made)
    there = 0
    kept = 0
    async for some in answers:
        fingerprints = [answer.fingerprint for answer in some]
        pushed = {known[:2] for known in shared.known.find(fingerprints, marks)}
        for answer in some:
            if (answer.fingerprint, answer.at) in pushed:
                there += 1
            elif not _may_be_pushed(answer, shared.committed, clean):
                kept += 1
            else:
                await packing.add(answer._replace(writer=writer))
    await packing.put()
    return PushReport(
        remote=shared.remote.url,
        writer=writer,
        answers=packing.answers,
        packs=packing.packs,
        usd=packing.usd,
        there=there,
        kept=kept,
    )


def _may_be_pushed(
    answer: PackedAnswer, committed: Collection[bytes], clean: Callable[[str], str]
) -> bool:
    """True for an answer that is not too long, holds no secret, and comes from an endpoint that the
    project's files name."""
    if endpoint_mark(answer.provider, answer.base_url) not in committed:
        return False
    return packs.may_travel(answer) and clean(answer.value) == answer.value


class _Packing:
    """Collects answers, and puts them into the remote as packs."""

    def __init__(
        self,
        shared: SharedAnswers,
        writer: str,
        made: Callable[[str], Awaitable[object]] | None,
    ) -> None:
        """`made` is given the name of each pack."""
        self._shared = shared
        self._writer = writer
        self._made = made
        self._waiting = list[PackedAnswer]()
        self._bytes = 0
        self.answers = 0
        self.packs = 0
        self.usd = 0.0

    async def add(self, answer: PackedAnswer) -> None:
        """Adds an answer, and puts a pack once it is full."""
        self._waiting.append(answer)
        self._bytes += len(answer.line())
        self.usd += answer.cost or 0.0
        if len(self._waiting) == packs.FULL_ANSWERS or self._bytes > packs.FULL_BYTES:
            await self.put()

    async def put(self) -> None:
        """Puts a pack of the answers that wait, then its index. If the process is killed in
        between, the next push makes the same pack again."""
        if not self._waiting:
            return
        name, pack, index = packs.packed(self._waiting)
        folder = f"{FOLDER}/{self._writer}"
        await self._shared.remote.create(f"{folder}/{name}.pack", pack)
        await self._shared.remote.create(f"{folder}/{name}.index", index)
        if self._made is not None:
            await self._made(name)
            self._shared.known.add(self._writer, name, index)
        self.answers += len(self._waiting)
        self.packs += 1
        self._waiting.clear()
        self._bytes = 0


async def push_at_end(
    database: Database, opened: Project, known: KnownAnswers | None = None
) -> None:
    """Pushes after a run if agac.yml says so. A failed push is logged and does not fail the
    run."""
    if opened.spec.file.remote.push == "auto":
        try:
            await _push(database, opened, known)
        except AgacError as error:
            _log.warning("answers were not pushed: %s. %s", error.message, error.remedy or "")


@dataclass(frozen=True, slots=True)
class PullReport(Report):
    """Answers that were pulled."""

    remote: str
    """The remote's address."""
    workflows: list[str]
    """The workflows that they are for."""
    answers: int
    """The number of answers."""
    writers: dict[str, int]
    """Their number by writer."""
    usd: Usd
    """What they cost."""
    unfit: int
    """Answers that today's stages refuse."""
    problems: list[Problem]
    """What was left out, and why more could not be pulled."""


@blocking
async def pull(workflows: Sequence[str] = (), *, project: Path | str | None = None) -> PullReport:
    """Takes the answers from the remote that these workflows (without any: all) would ask for: of
    trusted writers, from endpoints that agac.yml names, valid by today's schemas; of several the
    oldest."""
    opened = open_project(project, sound=True)
    return await pull_in(opened, list(workflows) or workflow_names(opened.spec))


async def pull_in(
    opened: Project,
    names: Sequence[str],
    options: RunOptions | None = None,
    known: KnownAnswers | None = None,
) -> PullReport:
    """Pulls in a project that is open already. An index that is `known` is not read again."""
    trust = opened.spec.file.remote.trust
    problems = list[Problem]()
    if not trust:
        where = Where("agac.yml", path="remote.trust")
        problems.append(Problem(where, "it names no writer to be trusted", "warning"))
    async with open_database(opened.store) as database:
        with nullcontext(known) if known else closing(KnownAnswers()) as index:
            shared = SharedAnswers(opened, index, problems, database)
            await shared.look(trust)
            for name in names:
                shared.workflow = name
                left = await _pull_workflow(opened, database, shared, options or RunOptions())
                if left is not None:
                    problems.append(left)
    return PullReport(
        remote=shared.remote.url,
        workflows=list(names),
        answers=sum(shared.writers.values()),
        writers=dict(sorted(shared.writers.items())),
        usd=shared.usd,
        unfit=len(shared.unfit),
        problems=problems,
    )


async def _pull_workflow(
    opened: Project, database: Database, shared: SharedAnswers, options: RunOptions
) -> Problem | None:
    """Pulls the answers that a dry run of one workflow asks for. Warns if functions have to run
    before more can be pulled."""
    workflow = shared.workflow
    ready, checked, chosen = await made_ready(opened, workflow, options)
    plan = make_plan(checked.workflow, checked.models, ready.root, chosen.selection(), None)
    before = await BaselineRun.of(database, plan)
    choice = InvocationChoice(scope=Scope())
    baseline = Baseline(plan, database, before, choice, now=time.time(), remote=shared)
    report = await dry_run(baseline, partial(checked.rows, plan.selection))
    local = [each for each in report.stages if isinstance(each.stage, LocalStage)]
    functions = [each.name for each in local if each.run]
    if not functions or not report.calls:
        return None
    text = f"to pull answers after the function {functions[-1]}, run --until {functions[-1]} before"
    return Problem(Where(workflow), text, "warning")

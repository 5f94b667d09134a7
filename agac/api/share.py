"""`agac push`, `agac pull` and `agac remote doctor`: answers that a team shares in a folder or a
bucket."""

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
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agac.api.project import Project, open_project
from agac.api.ready_workflow import made_ready
from agac.api.run_options import RunOptions
from agac.api.status import this_shard
from agac.api.sync import blocking
from agac.core.errors import AgacError, LeaseHeld, Problem, UsageError, Where
from agac.core.types import Report, Usd, counted
from agac.data.object_store import ObjectStore
from agac.engine.ask.validate import Checker
from agac.engine.batch.control import Control
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

FOLDER = "v1"  # of all packs, by writer; the number is that of their form
READERS = {
    "AGAC_REMOTE_READ_ONLY": "[^0]",
    "GITHUB_EVENT_NAME": "pull_request",
    "CI_MERGE_REQUEST_IID": ".",
    "BITBUCKET_PR_ID": ".",
}
"""Variables of jobs that push nothing, with what they begin with there."""

_log = logging.getLogger("agac.run")


def remote_of(opened: Project) -> ObjectStore:
    """The project's remote. Raises UsageError where it has none."""
    url = opened.env.get("AGAC_REMOTE") or opened.spec.file.remote.url
    if not url:
        remedy = (
            "Write `remote: {url: FOLDER or s3://BUCKET/PREFIX, trust: [NAME]}` into it, "
            "or set AGAC_REMOTE."
        )
        raise UsageError("agac.yml names no remote", remedy=remedy)
    return ObjectStore(url, home_of(opened.state))


def writer_of(opened: Project) -> str:
    """Who pushes. Raises UsageError where this process only reads, or nobody says who it is."""
    for name in (
        name for name, begin in READERS.items() if re.match(begin, opened.env.get(name, ""))
    ):
        remedy = "Push from a job on a protected branch."
        raise UsageError(f"{name} says that this job only reads the remote", remedy=remedy)
    name = opened.env.get("AGAC_REMOTE_WRITER", "")
    try:
        return str(writer_name(name))
    except ValueError as error:
        said = f": {error}" if name else " is not set: answers have a writer"
        raise UsageError(
            f"AGAC_REMOTE_WRITER{said}", remedy="Set it to your name, or the job's, as `ci`."
        ) from None


class SharedAnswers:
    """What a plan is told of the remote: to which tasks there are answers of trusted writers;
    those are pulled where there is a database (`into`), once they are checked. `usd` is what they
    cost."""

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
        # the marks of all endpoints that the project's files name, without a variable of anybody's
        # environment
        rows = [
            row
            for row in build_providers(opened.spec.file.providers, {})[0].values()
            if not row.simulated
        ]
        self.committed = {
            endpoint_mark(row.name, row.base_url) for row in rows if "://" in row.base_url
        }
        self._checkers = dict[tuple[str, str], Checker]()
        self.workflow = ""
        self.usd = 0.0
        self.writers = Counter[str]()
        self.unfit = set[bytes]()
        self.remote = remote_of(opened)

    async def look(self, writers: Sequence[str]) -> None:
        """Reads the indexes of these writers' packs, but those that it knows."""
        for writer in writers:
            folder = f"{FOLDER}/{writer}"
            pattern = re.compile(rf"{re.escape(folder)}/([0-9a-f]{{64}})\.index")
            found = filter(None, map(pattern.fullmatch, sorted(await self.remote.sizes(folder))))
            await self.know(
                [pack for one in found if (pack := (writer, one[1])) not in self.known.packs]
            )

    async def know(self, found: Sequence[tuple[str, str]]) -> None:
        """Reads the indexes of these packs, each of a writer."""
        for start in range(0, len(found), 16):
            names = [
                f"{FOLDER}/{writer}/{pack}.index" for writer, pack in found[start : start + 16]
            ]
            indexes = await asyncio.gather(
                *(self.remote.read(name, packs.MAX_INDEX) for name in names)
            )
            for one, name, index in zip(found[start:], names, indexes, strict=False):
                with self.noting(name):
                    self.known.add(*one, index)

    @contextmanager
    def noting(self, name: str) -> Iterator[None]:
        """Turns Damaged into a problem: what has this name is left out."""
        try:
            yield
        except Damaged as error:
            self._problems.append(
                Problem(Where(f"{self.remote.url}/{name}"), f"left out: {error}", "warning")
            )

    async def take(
        self, stage: PlannedStage, prints: Sequence[bytes], since: float
    ) -> Mapping[bytes, EarlierResult | None]:
        """The stage's answers to these fingerprints, given at or after `since`; None: one is
        there, and not pulled."""
        rows = [one.provider for one in stage.models if stage.reuse != "never"]
        marks = sorted(self.committed & {endpoint_mark(row.name, row.base_url) for row in rows})
        found = self.known.find(prints, marks, since)
        if self._database is None or not found:
            return {one[0]: None for one in found}
        while unread := {(writer, pack) for _, _, writer, pack, answer in found if answer is None}:
            for writer, pack in unread:
                name = f"{FOLDER}/{writer}/{pack}.pack"
                content = await self.remote.read(name, packs.MAX_BYTES)
                with self.noting(name):
                    self.known.read(writer, pack, content, time.time())
            found = self.known.find(prints, marks, since)
        checked = (self.workflow, stage.name)
        if checked not in self._checkers:
            self._checkers[checked] = Checker(stage)
        taken = dict[bytes, PackedAnswer]()
        for fingerprint, *_, answer in found:
            if answer is not None and fingerprint not in taken:
                value = self._checkers[checked].kept(json.loads(answer.value))
                taken |= {fingerprint: answer._replace(value=value)} if value is not None else {}
        self.unfit |= {one[0] for one in found} - taken.keys()
        self.writers.update(one.writer for one in taken.values())
        self.usd += sum(one.cost or 0.0 for one in taken.values())
        await packs.keep_pulled(self._database, list(taken.values()), since)
        return await earlier_results(self._database, list(taken), since, self.workflow)


@asynccontextmanager
async def shared_answers(
    opened: Project, problems: list[Problem]
) -> AsyncIterator[SharedAnswers | None]:
    """What a plan is told of the project's remote; None where it has none, or, with a problem,
    where it is unknown."""
    with closing(KnownAnswers()) as known:
        found = None
        if not opened.untrusted and (opened.env.get("AGAC_REMOTE") or opened.spec.file.remote.url):
            try:
                found = SharedAnswers(opened, known, problems)
                await found.look(opened.spec.file.remote.trust)
            except AgacError as error:
                where = Where("agac.yml", path="remote.url")
                remedy = f"; {error.remedy}" if error.remedy else ""
                problems.append(Problem(where, f"{error.message}{remedy}", "warning"))
        yield found


@dataclass(frozen=True, slots=True)
class PushReport(Report):
    """What was pushed: so many new answers in so many packs, which cost `usd`. `there` were pushed
    before; `kept` were not, as they are too long, hold a secret, or come from an address that
    agac.yml does not name."""

    remote: str
    writer: str
    answers: int
    packs: int
    usd: Usd
    there: int
    kept: int


@blocking
async def push(*, project: Path | str | None = None) -> PushReport:
    """Puts the project's own answers that are not there yet into its remote, as packs that never
    change."""
    opened = open_project(project, sound=True)
    async with open_database(opened.store) as database:
        return await _push(database, opened)


async def _push(
    database: Database, opened: Project, known: KnownAnswers | None = None
) -> PushReport:
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
    """Pushes what came since the last time; the first time all that is not in the remote."""
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
    """Pushes those of these answers of which no known index tells; `made` is told the name of each
    pack."""
    committed = shared.committed
    clean = opened.redactor().clean
    waiting = list[PackedAnswer]()
    size = 0
    usd = 0.0
    told = dict.fromkeys(("answers", "packs", "there", "kept"), 0)

    async def put() -> None:
        """Puts a pack of waiting answers, then its index; after a kill in between, the next push
        makes it again."""
        name, *parts = packs.packed(waiting)
        for kind, content in zip(("pack", "index"), parts, strict=True):
            await shared.remote.create(f"{FOLDER}/{writer}/{name}.{kind}", content)
        if made is not None:
            await made(name)
            shared.known.add(writer, name, parts[1])
        told["answers"] += len(waiting)
        told["packs"] += 1
        waiting.clear()

    async for some in answers:
        old = {
            one[:2]
            for one in shared.known.find([one.fingerprint for one in some], sorted(committed))
        }
        for one in (answer._replace(writer=writer) for answer in some):
            length = len(one.line())
            named = endpoint_mark(one.provider, one.base_url) in committed
            if (one.fingerprint, one.at) in old:
                told["there"] += 1
            elif not named or not packs.may_travel(one) or clean(one.value) != one.value:
                told["kept"] += 1
            else:
                waiting.append(one)
                size = size + length
                usd = usd + (one.cost or 0.0)
            if len(waiting) == packs.FULL_ANSWERS or size > packs.FULL_BYTES:
                await put()
                size = 0
    if waiting:
        await put()
    return PushReport(shared.remote.url, writer, usd=usd, **told)


async def push_at_end(
    database: Database, opened: Project, known: KnownAnswers | None = None
) -> None:
    """Pushes after a run where agac.yml says so. What goes wrong is told: it costs the run
    nothing."""
    if opened.spec.file.remote.push == "auto":
        try:
            await _push(database, opened, known)
        except AgacError as error:
            _log.warning("answers were not pushed: %s. %s", error.message, error.remedy or "")


@dataclass(frozen=True, slots=True)
class PullReport(Report):
    """What was pulled for these workflows: answers by writer, which cost `usd`; `unfit`: today's
    stages refuse them."""

    remote: str
    workflows: list[str]
    answers: int
    writers: dict[str, int]
    usd: Usd
    unfit: int
    problems: list[Problem]


@blocking
async def pull(workflows: Sequence[str] = (), *, project: Path | str | None = None) -> PullReport:
    """Takes the answers out of the remote that these workflows (without any: all) would ask for:
    of trusted writers, from endpoints that agac.yml names, valid by today's schemas; of several
    the oldest."""
    opened = open_project(project, sound=True)
    return await pull_in(opened, list(workflows) or workflow_names(opened.spec))


async def pull_in(
    opened: Project,
    names: Sequence[str],
    options: RunOptions | None = None,
    known: KnownAnswers | None = None,
) -> PullReport:
    """The same in a project that is open already; an index that is `known` is not read again."""
    trust = opened.spec.file.remote.trust
    problems = list[Problem]()
    if not trust:
        problems.append(
            Problem(
                Where("agac.yml", path="remote.trust"),
                "it names no writer to be trusted",
                "warning",
            )
        )
    async with open_database(opened.store) as database:
        with nullcontext(known) if known else closing(KnownAnswers()) as there:
            shared = SharedAnswers(opened, there, problems, database)
            await shared.look(trust)
            for shared.workflow in names:
                ready, checked, chosen = await made_ready(
                    opened, shared.workflow, options or RunOptions()
                )
                plan = make_plan(
                    checked.workflow, checked.models, ready.root, chosen.selection(), None
                )
                before = await BaselineRun.of(database, plan)
                choice = InvocationChoice(scope=Scope())
                baseline = Baseline(plan, database, before, choice, now=time.time(), remote=shared)
                report = await dry_run(baseline, partial(checked.rows, plan.selection))
                functions = [
                    one.name
                    for one in report.stages
                    if isinstance(one.stage, LocalStage) and one.run
                ]
                if functions and report.calls:
                    text = (
                        f"to pull answers after the function {functions[-1]}, run --until "
                        f"{functions[-1]} before"
                    )
                    problems.append(Problem(Where(shared.workflow), text, "warning"))
    told = (
        sum(shared.writers.values()),
        dict(sorted(shared.writers.items())),
        shared.usd,
        len(shared.unfit),
    )
    return PullReport(shared.remote.url, list(names), *told, problems)


# The control state: batches of machines that are thrown away.


def _paid_in_batches(stages: Iterable[PlannedStage]) -> list[str]:
    return [
        one.name
        for one in stages
        if one.settings.run_mode == "batch" and not all(m.provider.simulated for m in one.models)
    ]


def loses_disk(env: Mapping[str, str]) -> bool:
    """Whether this is a job of CI, whose machine is thrown away after it."""
    in_ci, keeps = (
        env.get(name, "").lower() not in ("", "0", "false") for name in ("CI", "AGAC_KEEPS_DISK")
    )
    return in_ci and not keeps


def refusal_in_ci(opened: Project, stages: Iterable[PlannedStage]) -> UsageError | None:
    """Why this process may not submit what these stages send in batches: what is paid would be
    lost with its disk."""
    paid = _paid_in_batches(stages)
    if not paid or not loses_disk(opened.env) or opened.spec.file.remote.control:
        return None
    what = (
        f"CI is set, and stage {paid[0]!r} submits batches that are paid: with this "
        "machine they would be lost"
    )
    remedy = (
        "Keep their state in the remote: `remote: {control: true}` in agac.yml. Where "
        ".agac outlives the job set "
    )
    return UsageError(
        what,
        remedy=f"{remedy}AGAC_KEEPS_DISK=1. Or add --run-mode sync (or, to retrieve, --no-submit).",
    )


@asynccontextmanager
async def controlled(
    opened: Project, database: Database, workflow: str, stages: Iterable[PlannedStage] | None = None
) -> AsyncIterator[Control | None]:
    """The workflow is this process's, among all machines, for the block, where agac.yml says so;
    with what another one left of its batches. Where none of its `stages` pays for batches that is
    so as long as something is left. Raises UsageError where they may not be submitted from here,
    LeaseHeld where another machine is at work."""
    refusal = refusal_in_ci(opened, stages or ())
    if refusal:
        raise refusal
    is_on = opened.spec.file.remote.control and opened.state == opened.root
    paid = stages is None or bool(_paid_in_batches(stages))
    if not is_on or not (paid or await _control(opened, workflow, "").last()):
        yield None
    else:
        control = _control(opened, workflow, writer_of(opened))
        async with control.held(database):
            yield control


def _control(opened: Project, workflow: str, writer: str) -> Control:
    return Control(remote_of(opened), workflow, writer, opened.spec.file.remote.trust, this_shard())


async def adopt_all(opened: Project) -> None:
    """Takes in what other machines left of batches, of all workflows; what one of this machine
    works on is there."""
    if opened.spec.file.remote.control:
        async with open_database(opened.store) as database:
            for workflow in workflow_names(opened.spec):
                control = _control(opened, workflow, opened.env.get("AGAC_REMOTE_WRITER", ""))
                with suppress(LeaseHeld):
                    await control.adopt(database, await control.last())


@dataclass(frozen=True, slots=True)
class RemoteReport(Report):
    """What a remote is: how many whole packs each writer has there. `create_only`: nothing that is
    there is ever replaced; None: this process may not push. `forges`: its login may write in the
    folder of any writer. `control` says of each workflow whose batches' state is there how it
    stands."""

    remote: str
    packs: dict[str, int]
    trust: list[str]
    writer: str
    create_only: bool | None
    forges: bool
    problems: list[Problem]
    control: dict[str, str]


@blocking
async def remote_doctor(*, project: Path | str | None = None) -> RemoteReport:
    """Looks at the remote, and tries what this process may do there, which leaves two small
    objects."""
    opened = open_project(project, sound=True)
    remote = remote_of(opened)
    problems = list[Problem]()
    writer = ""
    create_only = None
    forges = False
    names = await remote.sizes(FOLDER)
    found = Counter(name.split("/")[1] for name in names if name.endswith(".index"))
    try:
        writer = writer_of(opened)
        won = await asyncio.gather(
            *(remote.create(f"{FOLDER}/{writer}/probe", content) for content in (b"1", b"2"))
        )
        create_only = sum(won) < 2 and not await remote.create(f"{FOLDER}/{writer}/probe", b"3")
        with suppress(AgacError):  # to be refused is good here
            await remote.create(f"{FOLDER}/_probe/{writer}", b"")
            forges = True
    except AgacError as error:
        problems.append(
            Problem(Where(remote.url), f"{error.message}. {error.remedy or ''}", "warning")
        )
    trust = opened.spec.file.remote.trust
    told = {}
    for workflow in workflow_names(opened.spec):
        control = _control(opened, workflow, writer)
        try:
            entry = await control.last()
            if entry is not None:
                who = control.holder(entry)
                if who:
                    held = f"held by {who}"
                else:
                    held = f"nobody works on it, {entry.writer} was the last"
                told[workflow] = (
                    f"{counted(len(entry.batches), 'open batch', 'open batches')}; {held}"
                )
        except AgacError as error:
            told[workflow] = error.message
    return RemoteReport(
        remote.url, dict(sorted(found.items())), trust, writer, create_only, forges, problems, told
    )

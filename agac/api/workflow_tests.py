"""`agac test`: workflows on the rows of their tests, on a store thrown away; `cassettes` answer.
Used by pytest."""

from __future__ import annotations

import asyncio
import json
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from agac.api.bugs import bug_problem
from agac.api.cassettes import Cassette, SimulatedAnswers
from agac.api.inspect import row_report
from agac.api.plan import Confirm
from agac.api.prepare import InvocationRequest
from agac.api.project import Project, RunOptions, open_project
from agac.api.report import RunReport
from agac.api.run import RunInterface, invoke
from agac.api.status import find_rows, stored_run
from agac.api.sync import calling
from agac.core.errors import AgacError, Problem, SpecError, UsageError, any_error
from agac.core.redact import Redactor
from agac.core.state_files import make_folder
from agac.core.text import plain
from agac.core.types import Report, RowId, Usd
from agac.core.word_diff import as_text, word_diff
from agac.data.files import refuse_target, write_in_project, write_whole
from agac.data.frames import GivenRows
from agac.engine.invocation import Answers
from agac.engine.walk.replay import FinalRows, RowViews
from agac.plan.stage import recorded_stages
from agac.spec.graph import StageNode, amended_by
from agac.spec.guards import Evaluator, GuardFailed
from agac.spec.json_schema import compiled, schema_cost
from agac.spec.paths import fetch_nothing
from agac.spec.project_files import MAX_RECORDED, required_text
from agac.spec.schema_errors import TOO_MANY, some_errors
from agac.spec.test_files import ExpectFile, ReplyFile, WorkflowCase, find_cases
from agac.store.rows import State
from agac.store.runs import definition_of

_MOST_FAILURES = 20  # of one row that are told, where its result does not fit the schema
_ENDED = (State.DONE, State.SKIPPED, State.FAILED)


@dataclass(frozen=True, slots=True)
class Failure(Report):
    """What a test expected and what it got; of a row the stage, and what its model was asked
    there."""

    expected: str
    got: str
    row: RowId | None = None
    stage: str | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True)
class CaseResult(Report):
    """A test that ran; its `result` is passed, failed or error (it could not be judged). `usd`:
    what its calls would have cost, None: unknown. `stale` are recorded replies that it does not
    ask for, `written` files that it changed."""

    result: str
    name: str
    workflow: str
    seconds: float
    calls: int = 0
    usd: Usd | None = None
    failures: list[Failure] = field(default_factory=list)
    error: str | None = None
    stale: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class WorkflowTestReport(Report):
    """The tests that ran, and what is wrong with the files of others. `ok`: all passed, and no
    file has an error."""

    ok: bool
    tests: list[CaseResult]
    problems: list[Problem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TriedRow:
    """A row as the outputs have it. `seen` is what a condition after all stages sees: fields,
    results by stage, `vars`, and the `result`. `prompts` are by stage; `stage` is where it failed,
    or was asked last."""

    id: RowId
    result: Any
    error: str | None
    seen: Mapping[str, Any]
    stage: str | None
    prompts: Mapping[str, str]

    def failure(self, expected: str, got: str, stage: str | None = None) -> Failure:
        """Something of this row, at a stage, that was not as expected."""
        return Failure(
            expected, got, self.id, stage or self.stage, self.prompts.get(stage or self.stage or "")
        )


@dataclass(frozen=True, slots=True)
class TriedRun:
    """A workflow that ran offline: its report, the rows of its outputs, and how many replies it
    got."""

    report: RunReport
    rows: list[TriedRow]
    calls: int


@calling
async def run_tests(
    workflows: Sequence[str] = (),
    *,
    word: str | None = None,
    record: bool = False,
    update: bool = False,
    junit: Path | str | None = None,
    project: Path | str | None = None,
    confirm: Confirm | None = None,
) -> WorkflowTestReport:
    """Runs the tests of these workflows, or of all, whose file has the `word` in its name:
    offline, unless they are to `record` what they lack, which `confirm` may be asked about.
    `update` writes snapshots, `junit` is a file for the results. Raises UsageError where there is
    no test, SpecError where no file of one can be used."""
    if junit is not None:
        refuse_target(Path(junit), {}, "tests.xml", force=True)
    opened = open_project(project)
    cases, problems = find_cases(opened.spec, workflows, word)
    if any_error(opened.problems) or (any_error(problems) and not cases):
        raise SpecError([*opened.problems, *problems])
    found = await run_cases(opened, cases, confirm, record=record, update=update)
    passed = all(one.result == "passed" for one in found)
    report = WorkflowTestReport(passed and not any_error(problems), found, problems)
    if junit is not None:
        write_whole(Path(junit), junit_text(report))
    return report


async def run_cases(
    opened: Project,
    cases: Sequence[WorkflowCase],
    confirm: Confirm | None = None,
    *,
    record: bool = False,
    update: bool = False,
) -> list[CaseResult]:
    """The same of tests that were read."""
    places = asyncio.Semaphore(8)  # tests at the same time

    async def judged(case: WorkflowCase) -> CaseResult:
        async with places:
            begun = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="agac-") as made:
                try:
                    return await _judged(
                        opened, case, Path(made), confirm, record=record, update=update
                    )
                except AgacError as error:
                    problems: Sequence[object]
                    if isinstance(error, SpecError):
                        problems = error.problems
                    else:
                        problems = [f"{error.message}.", error.remedy]
                    text = " ".join(str(one) for one in problems if one)
                except Exception as error:  # noqa: BLE001 - a bug that one test meets is its result
                    text = bug_problem(error, "").message
                return CaseResult(
                    "error", case.path.stem, case.workflow, time.monotonic() - begun, error=text
                )

    return await asyncio.gather(*map(judged, cases))


async def try_offline(
    project: Project, workflow: str, rows: GivenRows | Path, state: Path, answers: Answers, *,
    confirm: Confirm | None = None, live: bool = False, **options: Any,
) -> TriedRun:  # fmt: skip
    """Runs a workflow on rows, its state in `state`; unless `live`, without network and keys.
    Raises as `run`."""
    project = replace(project, state=state)
    if not live:
        offline: dict[str, Any] = {
            "embedded": False,
            "missing_variables": (),
            "engine": None,
            "offline": True,
        }
        named = project.providers.items()
        providers = {
            name: replace(row, base_url=row.base_url or "http://offline/v1", **offline)
            for name, row in named
        }
        project = replace(
            project, providers=providers, spec=replace(project.spec, fetch=fetch_nothing)
        )
    given = str(rows) if isinstance(rows, Path) else rows
    make_folder(state)
    chosen = RunOptions(input=given, run_mode="sync", yes=not live, **options)
    request = InvocationRequest(answers=answers)
    ui = RunInterface(confirm=confirm)
    report = await invoke(project, workflow, chosen, request, ui)
    async with stored_run(state, report.record.run) as (database, record):
        definition = await definition_of(database, record.id)
        found = list[TriedRow]()
        stages = recorded_stages(definition)
        by_name = {one.name: one for one in stages}
        views = RowViews(stages, definition["vars"], database, wanted=by_name)
        names = tuple(by_name)
        last = StageNode(
            name="",
            index=len(stages),
            needs=(),
            ancestors=names,
            amended=amended_by(names, by_name),
        )
        async for some in FinalRows(definition, inputs=True).rows(database, record.id):
            seen = await views.ended([one.key for one in some])
            for row in (one for one in some if one.state in _ENDED):
                stored = next(
                    one
                    for one in await find_rows(database, record.id, [row.id])
                    if one.key == row.key
                )
                told = (await row_report(database, record.id, stages, stored, None))["stages"]
                prompts = {
                    one["name"]: "\n\n".join(m["text"] for m in one["prompt"])
                    for one in told
                    if one["prompt"]
                }
                failed = next((one["name"] for one in told if one["outcome"] == "failed"), None)
                fields = seen[row.key].forms[None]
                results = seen[row.key].known(last)
                visible = {**fields, **results, "vars": definition["vars"], "row": fields}
                error = f"{row.error_type}: {row.error_message}" if row.error_type else None
                value = None if error or row.value is None else json.loads(row.value)
                visible["result"], where = value, failed or next(reversed(prompts), None)
                found.append(TriedRow(row.id, value, error, visible, where, prompts))
    return TriedRun(report, found, report.record.calls.count)


@calling
async def try_replies(
    root: Any, workflow: str, rows: Any, state: Path, replies: Any = None, **how: Any
) -> TriedRun:
    """`try_offline` for the pytest plugin: `replies` are as files of tests have them."""
    answers = SimulatedAnswers(
        None if replies is None else [ReplyFile.model_validate(one) for one in replies]
    )
    return await try_offline(
        open_project(root), workflow, rows, state, answers, **{"tools_mode": "stub", **how}
    )


# What a test expects, compared with what came.


async def _judged(
    project: Project,
    case: WorkflowCase,
    state: Path,
    confirm: Confirm | None,
    *,
    record: bool,
    update: bool,
) -> CaseResult:
    body = case.body
    begun = time.monotonic()
    name = case.path.stem
    recorded = body.replies == "recorded"
    record = record and body.replies == "recorded"
    noting: tuple[Redactor | None, Path | None]
    if record:
        noting = (project.redactor(), state / "calls.jsonl")
    else:
        noting = (None, None)
    cassette = Cassette(case.path.parent / "recorded" / f"{name}.jsonl", project.spec.root, *noting)
    stubs: Any = body.tool_stubs
    if isinstance(stubs, str):
        stubs = str(project.spec.root / stubs)
    tools: dict[str, Any] = {"tools_mode": body.tools_mode, "tool_stubs": stubs}
    if recorded and tools == {"tools_mode": "stub", "tool_stubs": None}:
        stubs = str(cassette.tools) if os.path.lexists(cassette.tools) else None
        if record:
            tools = {"tools_mode": "record"}
        else:
            tools = tools | {"tool_stubs": stubs}
    rules = None if isinstance(body.replies, str) else body.replies
    answers: Answers = cassette if recorded else SimulatedAnswers(rules)
    about: dict[str, Any] = {"confirm": confirm, "live": record, "vars": body.vars, **tools}
    ran = await try_offline(project, case.workflow, case.input, state, answers, **about)
    written = cassette.write() if record else []
    failures = [*_of_run(ran, body.expect), *_of_rows(ran, case)]
    if body.expect.snapshot:
        now = {
            str(one.id): {"error": one.error} if one.error else {"result": one.result}
            for one in ran.rows
        }
        snapshot = _Snapshot(case.path, project.spec.root)
        before = snapshot.read(replaced=update)
        if update and before != now:
            written.append(snapshot.write(now))
        failures += [] if update else _of_snapshot(ran, before, now)
    if recorded and not record:
        stale = [f"stage {one.stage}, row {one.row}" for one in cassette.unused]
    else:
        stale = []
    about = {
        "calls": ran.calls,
        "usd": ran.report.record.calls.cost.usd,
        "stale": stale,
        "written": written,
    }
    ended = "failed" if failures else "passed", name, case.workflow, time.monotonic() - begun
    return CaseResult(*ended, failures=failures, **about)


class _Snapshot:
    """The file with the stored results of a test."""

    def __init__(self, case: Path, root: Path) -> None:
        self._file = case.parent / "snapshots" / f"{case.stem}.json"
        self._root = root
        self._shown = self._file.relative_to(root).as_posix()

    def read(self, *, replaced: bool) -> dict[str, Any] | None:
        """The results by row; None where there is no file, or one without results that is to be
        `replaced`. Raises SpecError for a file that cannot be read, UsageError for one that holds
        no results."""
        if not os.path.lexists(self._file):
            return None
        text = required_text(self._file, self._shown, self._root, most=MAX_RECORDED)
        with suppress(ValueError):
            found = json.loads(text)
            if isinstance(found, dict):
                return found
        if replaced:
            return None
        remedy = "Write it again with `agac test --update`."
        raise UsageError(f"{self._shown} holds no stored results", remedy=remedy)

    def write(self, results: Mapping[str, Any]) -> Path:
        """Replaces the file, and gives it. Raises SpecError."""
        text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
        write_in_project(self._file, text, self._shown, self._root)
        return self._file


def _of_run(ran: TriedRun, expect: ExpectFile) -> list[Failure]:
    counts = ran.report.rows._asdict()
    results = len(ran.rows)
    cost = ran.report.record.calls.cost.usd
    if cost is None:
        usd = math.inf
        price = "no price"
    else:
        usd = cost
        price = f"${cost}"
    ends = [
        (f"{some} rows {end}", f"{counts[end]} rows {end}") for end, some in expect.rows.items()
    ]
    checks = [(expected == got, expected, got) for expected, got in ends]
    checks += [
        (not ran.report.stopped, "a run that comes to its end", str(ran.report.stopped)),
        (expect.results in (None, results), f"{expect.results} results", f"{results} results"),
        (
            expect.calls is None or ran.calls <= expect.calls,
            f"at most {expect.calls} calls",
            f"{ran.calls} calls",
        ),
        (expect.usd is None or usd <= expect.usd, f"at most ${expect.usd}", price),
    ]
    return [Failure(expected, got) for holds, expected, got in checks if not holds]


def _of_rows(ran: TriedRun, case: WorkflowCase) -> Iterator[Failure]:
    validator = compiled(case.schema.body) if case.schema is not None else None
    stages = [stage.name for stage in ran.report.record.stages]
    tests = [(guard, Evaluator(guard, stages=stages)) for guard in case.each]
    written = {row.id for row in ran.rows}
    may_fail = case.body.expect.rows.get("failed")
    for error in () if may_fail else ran.report.record.errors:
        example = error.example
        if example.id not in written:  # of rows of which others were to be made
            yield Failure(
                "no failed rows",
                f"{error.type}: {example.message}",
                example.id,
                error.stage,
            )
    for row in ran.rows:
        if row.error is not None:
            yield from (
                [] if case.body.expect.rows.get("failed") else [row.failure("a result", row.error)]
            )
            continue
        if row.result is None:
            continue  # all of it was skipped
        if validator is not None and case.schema is not None and not validator.is_valid(row.result):
            errors = some_errors(
                validator, schema_cost(case.schema.body), row.result, _MOST_FAILURES
            )
            for wrong in errors or ():
                place = ".".join(map(str, wrong.instance_path))
                yield row.failure("a result of the schema", f"{place}: {wrong.message}")
            if errors is None:
                yield row.failure("a result of the schema", TOO_MANY)
        for guard, evaluator in tests:
            try:
                holds = evaluator.test(row.seen)
                got = json.dumps(evaluator.values(row.seen), ensure_ascii=False)
            except GuardFailed as error:
                holds = False
                got = str(error)
            if not holds:
                yield row.failure(
                    guard.text, got, next((one for one in guard.names if one in stages), None)
                )


def _of_snapshot(
    ran: TriedRun, before: dict[str, Any] | None, now: dict[str, Any]
) -> Iterator[Failure]:
    if before is None:
        yield Failure("stored results", "none; write them with `agac test --update`")
        return
    rows = {str(one.id): one.failure for one in ran.rows}
    for name in (one for one in {**before, **now} if before.get(one) != now.get(one)):
        texts = (
            json.dumps(one.get(name), ensure_ascii=False, sort_keys=True) for one in (before, now)
        )
        yield rows.get(name, partial(Failure, row=name))(
            "the snapshot", as_text(word_diff(*texts), width=1_000)
        )


def junit_text(report: WorkflowTestReport) -> str:
    """The results as JUnit's XML, as forges read it."""
    counts = Counter(one.result for one in report.tests)
    wrong = [problem for problem in report.problems if problem.severity == "error"]
    failed = str(counts["failed"])
    errors = str(counts["error"] + len(wrong))
    number = str(len(report.tests) + len(wrong))
    suite = ET.Element("testsuite", name="agac", tests=number, failures=failed, errors=errors)
    for problem in wrong:
        case = ET.SubElement(
            suite, "testcase", classname="agac", name=plain(problem.where.file), time="0"
        )
        ET.SubElement(case, "error", message=plain(str(problem)))
    for one in report.tests:
        about = {"classname": plain(one.workflow), "name": plain(one.name)}
        case = ET.SubElement(suite, "testcase", about, time=f"{one.seconds:.3f}")
        if one.error is not None:
            ET.SubElement(case, "error", message=plain(one.error))
        for what in one.failures:
            message = f"row {what.row}: expected {what.expected}, got {what.got}"
            ET.SubElement(case, "failure", message=plain(message)).text = plain(what.prompt or "")
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"

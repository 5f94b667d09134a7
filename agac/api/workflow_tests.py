"""`agac test`: runs workflows on the rows of their tests, offline, and compares the outcome."""

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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

from agac.api.bugs import bug_problem
from agac.api.cassettes import Cassette, SimulatedAnswers
from agac.api.offline_run import Failure, TriedRow, TriedRun, try_offline
from agac.api.plan import Confirm
from agac.api.project import Project, open_project
from agac.api.sync import calling
from agac.core.errors import AgacError, Problem, SpecError, UsageError, any_error
from agac.core.text import plain
from agac.core.types import Report, Schema, Usd
from agac.core.word_diff import as_text, word_diff
from agac.data.files import refuse_target, write_in_project, write_whole
from agac.spec.guards import Evaluator, Guard, GuardFailed
from agac.spec.json_schema import compiled, schema_cost
from agac.spec.project_files import MAX_RECORDED, required_text
from agac.spec.schema_errors import TOO_MANY, some_errors
from agac.spec.test_files import ExpectFile, WorkflowCase, find_cases

MAX_AT_ONCE = 8
"""So many tests run at the same time."""

MAX_FAILURES = 20
"""So many reasons are given why the result of one row does not fit the schema."""


@dataclass(frozen=True, slots=True)
class CaseResult(Report):
    """A test that ran."""

    result: str
    """`passed`, `failed`, or `error`: it could not be judged."""

    name: str
    """The name of its file."""

    workflow: str
    """The workflow that it tests."""

    seconds: float
    """How long it took."""

    calls: int = 0
    """How many replies it got."""

    usd: Usd | None = None
    """What its calls would have cost; None: unknown."""

    failures: list[Failure] = field(default_factory=list)
    """What was not as expected."""

    error: str | None = None
    """Why it could not be judged."""

    stale: list[str] = field(default_factory=list)
    """Recorded replies that it does not ask for."""

    written: list[Path] = field(default_factory=list)
    """Files that it changed."""


@dataclass(frozen=True, slots=True)
class WorkflowTestReport(Report):
    """The tests that ran."""

    ok: bool
    """True if all passed, and no file has an error."""

    tests: list[CaseResult]
    """The tests that ran."""

    problems: list[Problem] = field(default_factory=list)
    """What is wrong with the files of others."""


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
    """Runs the tests of these workflows, or of all, whose file has the `word` in its name.

    They run offline; with `record` calls without a recorded reply go out, which `confirm` may be
    asked about. `update` writes snapshots, `junit` is a file for the results. Raises UsageError if
    there is no test, SpecError if no file of one can be used."""
    if junit is not None:
        refuse_target(Path(junit), {}, "tests.xml", force=True)
    opened = open_project(project)
    cases, problems = find_cases(opened.spec, workflows, word)
    none_usable = any_error(problems) and not cases
    if any_error(opened.problems) or none_usable:
        raise SpecError([*opened.problems, *problems])
    tests = await run_cases(opened, cases, confirm, record=record, update=update)
    passed = all(test.result == "passed" for test in tests)
    report = WorkflowTestReport(passed and not any_error(problems), tests, problems)
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
    """Runs tests that were read, as `run_tests` does, several at a time."""
    slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def run(case: WorkflowCase) -> CaseResult:
        async with slots:
            with tempfile.TemporaryDirectory(prefix="agac-") as folder:
                recorded = record and case.body.replies == "recorded"
                test = _CaseRun(opened, case, Path(folder), record=recorded, update=update)
                return await test.run(confirm)

    return await asyncio.gather(*map(run, cases))


class _CaseRun:
    """A test that is run.

    `record`: calls without a recorded reply go out, and their replies are recorded. `update`: the
    results become the snapshot."""

    def __init__(
        self, project: Project, case: WorkflowCase, state: Path, *, record: bool, update: bool
    ) -> None:
        self._project = project
        self._case = case
        self._state = state
        self._record = record
        self._update = update
        self._written: list[Path] = []

    async def run(self, confirm: Confirm | None) -> CaseResult:
        """Runs the test and compares; an error that keeps it from that is its result."""
        begun = time.monotonic()
        try:
            return await self._judged(confirm, begun)
        except AgacError as error:
            text = _error_text(error)
        except Exception as error:  # noqa: BLE001 - a bug that one test meets is its result
            text = bug_problem(error, "").message
        seconds = time.monotonic() - begun
        return CaseResult("error", self._case.path.stem, self._case.workflow, seconds, error=text)

    async def _judged(self, confirm: Confirm | None, begun: float) -> CaseResult:
        """Runs the test, and compares what came with what it expects."""
        case = self._case
        replies = case.body.replies
        cassette = None
        if replies == "recorded":
            cassette = self._cassette()
        run = await try_offline(
            self._project,
            case.workflow,
            case.input,
            self._state,
            cassette or SimulatedAnswers(None if isinstance(replies, str) else replies),
            confirm=confirm,
            live=self._record,
            vars=case.body.vars,
            **self._tool_options(cassette),
        )
        stale = []
        if cassette is not None and self._record:
            self._written += cassette.write()
        elif cassette is not None:
            stale = [f"stage {call.stage}, row {call.row}" for call in cassette.unused]
        failures = [*_run_failures(run, case.body.expect), *_row_failures(run, case)]
        if case.body.expect.snapshot:
            failures += self._compare_snapshot(run)
        return CaseResult(
            "failed" if failures else "passed",
            case.path.stem,
            case.workflow,
            time.monotonic() - begun,
            calls=run.calls,
            usd=run.report.record.calls.cost.usd,
            failures=failures,
            stale=stale,
            written=self._written,
        )

    def _cassette(self) -> Cassette:
        """Opens the recorded replies of the test."""
        path = self._case.path
        file = path.parent / "recorded" / f"{path.stem}.jsonl"
        root = self._project.spec.root
        if self._record:
            return Cassette(file, root, self._project.redactor(), self._state / "calls.jsonl")
        return Cassette(file, root, None, None)

    def _tool_options(self, cassette: Cassette | None) -> dict[str, Any]:
        """Chooses how tools are answered: as the test says; if it says nothing and has recorded
        replies, as they were recorded with them."""
        body = self._case.body
        says_nothing = body.tools_mode == "stub" and body.tool_stubs is None
        if cassette is None or not says_nothing:
            stubs: Any = body.tool_stubs
            if isinstance(stubs, str):
                stubs = str(self._project.spec.root / stubs)
            return {"tools_mode": body.tools_mode, "tool_stubs": stubs}
        if self._record:
            return {"tools_mode": "record"}
        recorded = str(cassette.tools) if os.path.lexists(cassette.tools) else None
        return {"tools_mode": "stub", "tool_stubs": recorded}

    def _compare_snapshot(self, run: TriedRun) -> list[Failure]:
        """Compares the results with the stored snapshot; an `update` replaces it instead."""
        now = {
            str(row.id): {"error": row.error} if row.error else {"result": row.result}
            for row in run.rows
        }
        snapshot = _Snapshot(self._case.path, self._project.spec.root)
        before = snapshot.read(replaced=self._update)
        if not self._update:
            return list(_snapshot_failures(run, before, now))
        if before != now:
            self._written.append(snapshot.write(now))
        return []


def _error_text(error: AgacError) -> str:
    """Writes why a test could not be judged in one line."""
    problems: Sequence[object]
    if isinstance(error, SpecError):
        problems = error.problems
    else:
        problems = [f"{error.message}.", error.remedy]
    return " ".join(str(problem) for problem in problems if problem)


class _Snapshot:
    """The file with the stored results of a test."""

    def __init__(self, case: Path, root: Path) -> None:
        self._file = case.parent / "snapshots" / f"{case.stem}.json"
        self._root = root
        self._shown = self._file.relative_to(root).as_posix()

    def read(self, *, replaced: bool) -> dict[str, Any] | None:
        """Reads the results by row; None if there is no file, or one without results that is to be
        `replaced`. Raises SpecError for a file that cannot be read, UsageError for one that holds
        no results."""
        if not os.path.lexists(self._file):
            return None
        text = required_text(self._file, self._shown, self._root, most=MAX_RECORDED)
        with suppress(ValueError):
            results = json.loads(text)
            if isinstance(results, dict):
                return results
        if replaced:
            return None
        remedy = "Write it again with `agac test --update`."
        raise UsageError(f"{self._shown} holds no stored results", remedy=remedy)

    def write(self, results: Mapping[str, Any]) -> Path:
        """Replaces the file, and returns its path. Raises SpecError."""
        text = json.dumps(results, indent=1, ensure_ascii=False) + "\n"
        write_in_project(self._file, text, self._shown, self._root)
        return self._file


def _run_failures(run: TriedRun, expect: ExpectFile) -> list[Failure]:
    """Lists what is not as expected of the run as a whole."""
    counts = run.report.rows._asdict()
    results = len(run.rows)
    checks = [
        (counts[end] == number, f"{number} rows {end}", f"{counts[end]} rows {end}")
        for end, number in expect.rows.items()
    ]
    stopped = run.report.stopped
    checks.append((not stopped, "a run that comes to its end", str(stopped)))
    if expect.results is not None:
        same = results == expect.results
        checks.append((same, f"{expect.results} results", f"{results} results"))
    if expect.calls is not None:
        few = run.calls <= expect.calls
        checks.append((few, f"at most {expect.calls} calls", f"{run.calls} calls"))
    if expect.usd is not None:
        cost = run.report.record.calls.cost.usd
        cheap = (math.inf if cost is None else cost) <= expect.usd
        price = "no price" if cost is None else f"${cost}"
        checks.append((cheap, f"at most ${expect.usd}", price))
    return [Failure(expected, got) for holds, expected, got in checks if not holds]


def _row_failures(run: TriedRun, case: WorkflowCase) -> Iterator[Failure]:
    """Yields what is not as expected of single rows."""
    stages = [stage.name for stage in run.report.record.stages]
    conditions = [(guard, Evaluator(guard, stages=stages)) for guard in case.each]
    may_fail = bool(case.body.expect.rows.get("failed"))
    if not may_fail:
        yield from _unwritten_failures(run)
    for row in run.rows:
        if row.error is not None:
            if not may_fail:
                yield row.failure("a result", row.error)
        elif row.result is not None:  # None: all of it was skipped
            if case.schema is not None:
                yield from _schema_failures(row, case.schema)
            for guard, evaluator in conditions:
                yield from _condition_failures(row, guard, evaluator, stages)


def _unwritten_failures(run: TriedRun) -> Iterator[Failure]:
    """Yields errors of rows that are not written, since other rows were to be made of them."""
    written = {row.id for row in run.rows}
    for error in run.report.record.errors:
        example = error.example
        if example.id not in written:
            got = f"{error.type}: {example.message}"
            yield Failure("no failed rows", got, example.id, error.stage)


def _schema_failures(row: TriedRow, schema: Schema) -> Iterator[Failure]:
    """Yields why a result does not fit the schema."""
    validator = compiled(schema.body)
    if validator.is_valid(row.result):
        return
    errors = some_errors(validator, schema_cost(schema.body), row.result, MAX_FAILURES)
    if errors is None:
        yield row.failure("a result of the schema", TOO_MANY)
        return
    for error in errors:
        path = ".".join(map(str, error.instance_path))
        yield row.failure("a result of the schema", f"{path}: {error.message}")


def _condition_failures(
    row: TriedRow, guard: Guard, evaluator: Evaluator, stages: Sequence[str]
) -> Iterator[Failure]:
    """Yields a failure if a condition does not hold for a row."""
    try:
        holds = evaluator.test(row.seen)
        got = json.dumps(evaluator.values(row.seen), ensure_ascii=False)
    except GuardFailed as error:
        holds = False
        got = str(error)
    if not holds:
        stage = next((name for name in guard.names if name in stages), None)
        yield row.failure(guard.text, got, stage)


def _snapshot_failures(
    run: TriedRun, before: dict[str, Any] | None, now: dict[str, Any]
) -> Iterator[Failure]:
    """Yields the rows whose results differ from those of the snapshot."""
    if before is None:
        yield Failure("stored results", "none; write them with `agac test --update`")
        return
    failures = {str(row.id): row.failure for row in run.rows}
    for name in {**before, **now}:
        if before.get(name) == now.get(name):
            continue
        texts = (
            json.dumps(results.get(name), ensure_ascii=False, sort_keys=True)
            for results in (before, now)
        )
        difference = as_text(word_diff(*texts), width=1_000)
        failure = failures.get(name, partial(Failure, row=name))
        yield failure("the snapshot", difference)


def junit_text(report: WorkflowTestReport) -> str:
    """Writes the results as JUnit's XML, as forges read it."""
    counts = Counter(test.result for test in report.tests)
    wrong = [problem for problem in report.problems if problem.severity == "error"]
    suite = ET.Element(
        "testsuite",
        name="agac",
        tests=str(len(report.tests) + len(wrong)),
        failures=str(counts["failed"]),
        errors=str(counts["error"] + len(wrong)),
    )
    for problem in wrong:
        case = ET.SubElement(
            suite, "testcase", classname="agac", name=plain(problem.where.file), time="0"
        )
        ET.SubElement(case, "error", message=plain(str(problem)))
    for test in report.tests:
        _add_junit_case(suite, test)
    return ET.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _add_junit_case(suite: ET.Element, test: CaseResult) -> None:
    """Adds a test with its failures."""
    names = {"classname": plain(test.workflow), "name": plain(test.name)}
    case = ET.SubElement(suite, "testcase", names, time=f"{test.seconds:.3f}")
    if test.error is not None:
        ET.SubElement(case, "error", message=plain(test.error))
    for failure in test.failures:
        message = f"row {failure.row}: expected {failure.expected}, got {failure.got}"
        element = ET.SubElement(case, "failure", message=plain(message))
        element.text = plain(failure.prompt or "")

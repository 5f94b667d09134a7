"""Rows that stages made, looked at: what they came to, and runs that are checked from all sides."""

import json
from collections.abc import Callable
from typing import Any

import agac
from support.project import ProjectFolder
from support.recount import FAILED, GONE, Query, assert_at_rest, assert_descent, assert_recounted, contents, stage_names

STATES = ["open", "done", "failed", "repeated", "dropped", "skipped", "gone"]


def newest_run(project: ProjectFolder) -> int:
    return int(project.query("SELECT max(id) FROM run")[0][0])


def position(project: ProjectFolder, stage: str, run: int) -> int:
    return stage_names(project.query)[run].index(stage)


def _tasks(project: ProjectFolder, stage: str, run: int | None) -> list[tuple[Any, ...]]:
    """The tasks of a stage with the ids and states of their rows, and what they gave; none of parts of groups."""
    run = run or newest_run(project)
    return project.query(
        "SELECT r.id, r.state, t.outcome, v.value FROM task t JOIN row r ON r.key = t.row_key "
        "LEFT JOIN result v ON v.id = t.result_id WHERE r.run_id = ? AND t.stage = ? AND t.replica = 0 "
        "AND (r.place IS NULL OR r.place >= 0) AND (r.ordinal IS NOT NULL OR r.origin IS NOT NULL) ORDER BY r.key",
        run, position(project, stage, run),
    )  # fmt: skip


def values(project: ProjectFolder, stage: str, run: int | None = None) -> dict[Any, Any]:
    """What a stage gave, by the ids of its rows that are there; no parts of groups."""
    rows = [(id_, value) for id_, state, _, value in _tasks(project, stage, run) if state != GONE and value is not None]
    assert len({id_ for id_, _ in rows}) == len(rows), "an id twice"
    return {id_: json.loads(value) for id_, value in rows}


def outcomes(project: ProjectFolder, stage: str, run: int | None = None) -> dict[Any, str]:
    """What became of a stage's tasks, by the ids of its rows that are there: reused is done."""
    rows = _tasks(project, stage, run)
    return {id_: "done" if outcome == "reused" else outcome for id_, _, outcome, _ in rows}


def _made(project: ProjectFolder, maker: str, run: int | None) -> list[tuple[Any, ...]]:
    run = run or newest_run(project)
    return project.query(
        "SELECT id, state, error_type, error_message FROM row WHERE run_id = ? AND origin = ? AND place >= 0 "
        "ORDER BY key", run, position(project, maker, run),
    )  # fmt: skip


def made(project: ProjectFolder, maker: str, run: int | None = None, *, gone: bool = False) -> dict[Any, str]:
    """How the rows stand that a stage made, by id."""
    return {id_: STATES[state] for id_, state, *_ in _made(project, maker, run) if gone or state != GONE}


def errors(project: ProjectFolder, maker: str, run: int | None = None) -> dict[Any, tuple[str, str]]:
    """Kind and message of the errors of rows that a stage made, by id."""
    return {id_: (kind, text) for id_, state, kind, text in _made(project, maker, run) if state == FAILED}


def parts(project: ProjectFolder, run: int | None = None) -> dict[str, str]:
    """How the parts of large groups stand, by id."""
    run = run or newest_run(project)
    rows = project.query("SELECT id, state FROM row WHERE run_id = ? AND place < 0 AND state <> 6", run)
    return {id_: STATES[state] for id_, state in rows}


def assert_all_sound(project: ProjectFolder, *more: Callable[[Query], None]) -> None:
    """Roll-ups are right, and nothing belongs to nothing."""
    with project.connected() as ask:
        for check in (assert_recounted, assert_descent, *more):
            check(ask)


def stored(project: ProjectFolder) -> dict[str, list[tuple[Any, ...]]]:
    """All that is stored of runs, but when they were invoked."""
    with project.connected() as ask:
        return contents(ask)


def ran(project: ProjectFolder, name: str = "reviews", **options: Any) -> agac.RunReport:
    """A run that comes to its end, looked at from all sides."""
    report = project.run(name, **options)
    assert report.exit_code in (0, 3), report.summary
    assert_all_sound(project, assert_at_rest)
    return report


def settled(project: ProjectFolder, name: str = "reviews", **options: Any) -> agac.RunReport:
    """The same, run once more: that one asks nothing and writes nothing."""
    report = ran(project, name, **options)
    files = {path: path.stat().st_mtime_ns for path in (project.root / "output").rglob("results*")}
    before = stored(project)
    again = project.run(name, **{key: value for key, value in options.items() if key != "fresh"}, retry_failed=False)
    assert again.invocation["calls"] == 0
    after = stored(project)
    assert {name: after[name] for name in after if after[name] != before[name]} == {}
    assert {path: path.stat().st_mtime_ns for path in (project.root / "output").rglob("results*")} == files
    assert again.exit_code == report.exit_code
    return report


def asked(project: ProjectFolder, **options: Any) -> int:
    """The calls of a run that settles."""
    calls: int = settled(project, **options).invocation["calls"]
    return calls


def tried(project: ProjectFolder, runs: int) -> list[tuple[int, int]]:
    """The calls of each of so many runs, none of which is without failures, and the failed rows that it left alone."""
    reports = [ran(project) for _ in range(runs)]
    assert {report.exit_code for report in reports} == {3}
    return [(report.invocation["calls"], report.invocation["rows_left_failed"]) for report in reports]

"""Every cell of the tables in docs/reference/outcomes.md, each observed in a run."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.made import made
from support.outcomes import (
    FUNCTIONS,
    LISTED,
    MAKERS,
    MAKING_ROW,
    OUTPUTS,
    REFUSED,
    STAGES,
    STATES,
    MadeCell,
    Maker,
    Reader,
)
from support.project import ProjectFolder
from support.server import Server, simulator
from support.soak import few

from agac.store.rows import State

ECHO = {"model": "local/echo"}
ROW_STATES = {
    "done": State.DONE, "skipped": State.SKIPPED, "dropped": State.FILTERED, "failed": State.FAILED,
    "open": State.PENDING,
}  # fmt: skip
NOT_BEGUN = ("missing", "left out")
EVERY = [
    pytest.param(reader, name, reused, id=f"{title}, {'reused' if reused else name}")
    for title, reader in {**STAGES, **OUTPUTS}.items()
    for name in STATES
    for reused in ([False, True] if name == "done" else [False])
]
MADE = [pytest.param(maker, name, id=f"{title}, {name}") for title, maker in MAKERS.items() for name in STATES]


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Refuses one prompt, and repeats every other one."""
    folder = tmp_path_factory.mktemp("refusing")
    with simulator(faults=[{"kind": "refusal", "match": REFUSED}], folder=folder) as server:
        yield server


def stages_of(reader: Reader | Maker, name: str) -> list[dict[str, Any]]:
    """The stages of a workflow in which `a` comes to the outcome."""
    state = STATES[name]
    read = {"name": "a", "needs": [], "prompt": "A", **reader.keys, **state.keys}
    return [dict(stage) for stage in (state.before, read, *reader.stages) if stage is not None]


def run(project: ProjectFolder, stages: list[dict[str, Any]], reader: Reader, *, left_out: bool) -> Any:
    """Runs all of it; or each stage but `a` by itself. Gives the last report."""
    project.workflow(defaults=ECHO, stages=stages, output=dict(reader.output))
    if not left_out:
        return project.run()
    return [project.run(stage=stage["name"]) for stage in stages if stage["name"] != "a"][-1]


def tasks(project: ProjectFolder, run_id: int, names: list[str]) -> dict[str, tuple[str, Any]]:
    """The outcome of each stage that was begun, and what it said."""
    sql = (
        "SELECT stage, outcome, value FROM task JOIN row ON row.key = row_key "
        "LEFT JOIN result ON result.id = task.result_id WHERE row.run_id = ?"
    )
    return {names[at]: (outcome, value and json.loads(value)) for at, outcome, value in project.query(sql, run_id)}


def listed(project: ProjectFolder) -> dict[str, list[dict[str, Any]]]:
    """The lines of each file that has some."""
    names = ("results.jsonl", "errors.jsonl", "filtered.jsonl")
    there = [name for name in names if (project.root / "output/reviews" / name).is_file()]
    found = {name: project.envelopes(file=name) for name in there}
    return {name: lines for name, lines in found.items() if lines}


@pytest.mark.parametrize(("reader", "name", "reused"), few(EVERY, 3))
def test_every_cell_is_what_a_run_does(
    reader: Reader, name: str, reused: bool, project: ProjectFolder, refusing: Server
) -> None:
    project.configure(refusing.base_url)
    project.rows([{"id": "r-1", "text": "t"}])
    stages, cell = stages_of(reader, name), reader.cells[name]
    if reused:
        project.workflow("other", defaults=ECHO, stages=[stage for stage in stages if stage["name"] == "a"])
        project.run("other")
    report = run(project, stages, reader, left_out=name == "left out")

    assert project.query("SELECT state FROM row WHERE run_id = ?", report.summary["run"]) == [(ROW_STATES[cell.row],)]
    assert {what: count for what, count in report.summary["rows"].items() if count} == {"total": 1, cell.row: 1}
    ended = tasks(project, report.summary["run"], [stage["name"] for stage in stages])
    assert ended.get("a", ("none", None))[0] == ("none" if name in NOT_BEGUN else "reused" if reused else name)

    lines = listed(project)
    assert set(lines) == LISTED[cell.row]
    if reader in STAGES.values():
        assert ended.get(stages[-1]["name"], ("", None)) == (cell.outcome, cell.result)
    elif "results.jsonl" in lines:
        assert [line["result"] for line in lines["results.jsonl"]] == [cell.result]
    if cell.row == "failed":
        assert [line["error"]["type"] for line in lines["errors.jsonl"]] == [cell.error]
    project.assert_sound()


@pytest.mark.parametrize(("maker", "name"), few(MADE, 2))
def test_every_cell_of_what_is_made_is_what_a_run_does(
    maker: Maker, name: str, project: ProjectFolder, refusing: Server
) -> None:
    project.configure(refusing.base_url)
    project.rows([MAKING_ROW], "data/rows.jsonl")
    project.write("tools/make.py", FUNCTIONS)
    stages, cell = stages_of(maker, name), maker.cells[name]
    project.workflow(path="data/rows.jsonl", defaults=ECHO, stages=stages, stop_loss=False)
    report = project.run() if name != "left out" else project.run(from_stage=stages[-len(maker.stages)]["name"])

    assert {what: count for what, count in report.summary["rows"].items() if count} == {"total": 1, cell.row: 1}
    found = [made(project, stage["name"]) for stage in stages]
    assert {id_: state for rows in found for id_, state in rows.items()} == cell.made
    names = [stage["name"] for stage in stages]
    said = project.query(
        "SELECT value FROM task JOIN row ON row.key = row_key JOIN result ON result.id = task.result_id "
        "WHERE stage = ? ORDER BY place, row.key", names.index(maker.stages[-1]["name"]),
    )  # fmt: skip
    assert tuple(json.loads(value) for (value,) in said) == cell.said
    lines = listed(project)
    assert {name: [line["id"] for line in some] for name, some in lines.items()} == expected_lines(maker, cell)
    if "failed" in {cell.row, *cell.made.values()}:
        errors = {line["id"]: line["error"]["type"] for line in lines["errors.jsonl"]}
        assert errors[next(iter(cell.made)) if cell.made else "r-1"] == cell.error
    project.assert_sound()


def expected_lines(maker: Maker, cell: MadeCell) -> dict[str, list[Any]]:
    """The ids that each file is to have: of what was made, and of a row that failed or left before anything was. A row
    that has no place among groups stands with the errors alone."""
    stands = maker.stands or cell.row not in ("done", "skipped")
    groups = any("group_by" in stage for stage in maker.stages)
    rows = {**cell.made, **({"r-1": cell.row} if stands else {})}
    found: dict[str, list[Any]] = {}
    for id_, state in rows.items():
        for name in LISTED[state]:
            if not (groups and id_ == "r-1" and name == "results.jsonl"):
                found.setdefault(name, []).append(id_)
    return found


def test_no_cell_is_left_out() -> None:
    for table in (*MAKERS.values(), *STAGES.values(), *OUTPUTS.values()):
        assert table.cells.keys() == STATES.keys()

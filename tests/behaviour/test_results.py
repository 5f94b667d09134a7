"""`report.results()` and frames of a run: typed, from the store, and with no more in memory than one row."""

import asyncio
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from support.project import SENTIMENT, ProjectFolder
from support.server import Server
from support.soak import only_in_soak

import agac

ROWS: list[dict[str, Any]] = [{"id": f"r-{n}", "text": f"I love {n}", "stars": n, "tags": ["a"]} for n in (1, 2, 3)]


class Opinion(BaseModel):
    sentiment: Literal["positive", "neutral", "negative"]
    reason: str


def run(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> agac.RunReport:
    built = agac.Workflow("reviews", input={"id_field": "id"}, stages=list(stages), **keys)
    return agac.run(built, agac.RunOptions(input=[*ROWS, {"id": "r-4"}]), project=project.root)


ONE = {"name": "one", "prompt": "${text}", "output_schema": Opinion}


@pytest.mark.parametrize(("stage", "made"), [
    (ONE, lambda result: result.sentiment == "positive" and type(result) is Opinion),
    (ONE | {"replicas": 2}, lambda result: [type(one) for one in result] == [Opinion, Opinion]),
    (ONE | {"output_schema": SENTIMENT}, lambda result: result["sentiment"] == "positive"),
    ({"name": "one", "prompt": "${text}"}, lambda result: type(result) is str),
], ids=["model", "replicas", "schema", "text"])  # fmt: skip
def test_rows_are_typed_and_results_are_instances_of_their_model(
    stage: dict[str, Any], made: Any, project: ProjectFolder, server: Server
) -> None:
    *done, failed = rows = list(run(project, stage).results())
    assert [(row.id, row.row_number, row.ok) for row in rows] == [
        ("r-1", 1, True), ("r-2", 2, True), ("r-3", 3, True), ("r-4", 4, False),
    ]  # fmt: skip
    assert all(isinstance(row, agac.ResultRow) and made(row.result) and row.error is None for row in done)
    assert done[0].input == ROWS[0]
    assert (failed.result, failed.error and failed.error.type) == (None, "MissingTemplateField")


class Kept:
    """A sink that keeps what happens to it, and fails at one step."""

    def __init__(self, fails: str | None = None) -> None:
        self.fails, self.steps, self.ids = fails, list[str](), list[Any]()

    def _step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.fails:
            raise KeyboardInterrupt

    def write(self, rows: Sequence[agac.ResultRow]) -> None:
        self.ids += [row.id for row in rows]
        self._step("write")

    def commit(self) -> None:
        self._step("commit")

    def abort(self) -> None:
        self._step("abort")


def test_a_sink_of_the_user_has_all_rows_or_is_told_to_take_them_back(project: ProjectFolder, server: Server) -> None:
    report, sink = run(project, ONE), Kept()
    report.write_to(sink)
    assert (sink.ids, sink.steps) == (["r-1", "r-2", "r-3", "r-4"], ["write", "commit"])
    for fails, steps in (("write", ["write", "abort"]), ("commit", ["write", "commit", "abort"])):
        broken: agac.Sink = (kept := Kept(fails))
        with pytest.raises(KeyboardInterrupt):
            report.write_to(broken)
        assert kept.steps == steps


def test_results_of_several_stages_and_of_a_run_that_was_replaced(project: ProjectFolder, server: Server) -> None:
    two = {"name": "two", "prompt": "Again ${text}", "needs": [], "when": "stars > 1"}
    report = run(project, ONE, two, output={"stages": ["one", "two"], "merge": "extend"})
    assert run(project, ONE).summary["run"] == 2

    async def within_a_loop() -> list[agac.ResultRow]:
        return list(report.results())

    first, second, *_ = asyncio.run(within_a_loop())
    assert (type(first.result["one"]), first.result["two"]) == (Opinion, None)
    assert (type(second.result["one"]), type(second.result["two"])) == (Opinion, str)


def test_a_result_that_its_model_no_longer_takes_is_said(project: ProjectFolder, server: Server) -> None:
    report = run(project, ONE)
    report = replace(report, kind=int)
    with pytest.raises(agac.AgacError, match="row 'r-1': the stored result is not what its model takes"):
        list(report.results())


@only_in_soak
def test_many_results_are_read_in_flat_memory(project: ProjectFolder, server: Server) -> None:
    def peak(count: int) -> int:
        rows = ({"id": str(n), "text": f"{n}" + "x" * 2_000} for n in range(count))
        stage = {"name": "one", "select": ["id", "text"]}
        built = agac.Workflow("reviews", input={"id_field": "id"}, stages=[stage])
        report = agac.run(built, agac.RunOptions(input=rows), project=project.root)
        tracemalloc.start()
        assert sum(1 for _ in report.results()) == count
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(4_000) < peak(1_000) * 1.5 + 100_000


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_frames_have_the_columns_of_tables_with_their_kinds(
    library: str, project: ProjectFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    report = run(project, ONE)
    table = {"pandas": report.to_pandas, "polars": report.to_polars, "pyarrow": report.to_arrow}[library]()
    names = ["id", "text", "stars", "tags", "sentiment", "reason", "error"]
    assert sorted(getattr(table, "column_names", table.columns)) == sorted(names)
    rows = (
        table.to_dict("records")
        if library == "pandas"
        else table.to_dicts()
        if library == "polars"
        else table.to_pylist()
    )
    assert [row["stars"] for row in rows[:3]] == [1, 2, 3]
    assert rows[0]["tags"] == (["a"] if library == "pandas" else '["a"]')
    assert [row["sentiment"] for row in rows[:3]] == ["positive"] * 3
    assert rows[3]["error"].startswith("MissingTemplateField: ")
    kinds = table.schema.types if library == "pyarrow" else table.dtypes
    assert str(list(kinds)[2]).lower() == "int64"
    again = agac.RunOptions(input=table)
    built = agac.Workflow("again", input={"id_field": "id"}, stages=[{"name": "all", "select": ["id", "stars"]}])
    assert [row.result for row in agac.run(built, again, project=project.root).results()][3] == {
        "id": "r-4",
        "stars": None,
    }
    monkeypatch.setitem(__import__("sys").modules, library, None)
    with pytest.raises(agac.UsageError, match=f"this frame needs {library}, which is not installed"):
        {"pandas": report.to_pandas, "polars": report.to_polars, "pyarrow": report.to_arrow}[library]()

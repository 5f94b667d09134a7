"""Stages that ask no model: functions of the project, filter, select, rename."""

import csv
from typing import Any

import pytest
from support.processes import killed, processes, wait_until
from support.project import ProjectFolder

pytestmark = processes

ECHO = {"model": "local/echo"}
ROWS = [{"id": f"r-{n}", "name": f" Item {n} ", "price": str(n * 10), "secret": "x"} for n in range(1, 6)]
CLEAN = """\
def tidy(row):
    if row["price"] == "30":
        return None
    row["name"] = row["name"].strip().lower()
    row["price"] = int(row["price"])
    row["long"] = {"tags": ["a", 1.5, None, "é"]}
    return row


def boom(row):
    if row["id"] == "r-2":
        raise ValueError("no " + row["name"])
    return row


def many(row):
    return [row, row]


def after(row):
    return {"seen": sorted(row), "said": row["say"]}
"""


@pytest.fixture
def shop(project: ProjectFolder) -> ProjectFolder:
    project.rows(ROWS)
    project.write("tools/clean.py", CLEAN)
    return project


def workflow(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.workflow(defaults=ECHO, stages=list(stages), **keys)


def stage(name: str, prompt: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "prompt": prompt, **keys}


def test_a_function_changes_the_row_for_the_stages_after_it(shop: ProjectFolder) -> None:
    workflow(
        shop,
        {"name": "tidy", "python": "tools/clean.py:tidy"},
        stage("say", "${name}|${price}|${long.tags.3}|${tidy.price}"),
        output={"format": "csv"},
    )
    report = shop.run()
    assert report.exit_code == 0
    assert shop.output() == [f"item {n}|{n * 10}|é|{n * 10}" for n in (1, 2, 4, 5)]
    assert report.summary["rows"]["dropped"] == 1
    assert report.invocation["calls"] == 4
    lines = (shop.root / "output/reviews/results.csv").read_text("utf-8").splitlines()
    assert lines[0] == "id,name,price,secret,long,result,error"
    assert lines[1].startswith("r-1,item 1,10,x,")
    (left,) = shop.envelopes(file="filtered.jsonl")
    assert (left["id"], left["stage"], left["python"]) == ("r-3", "tidy", "tools/clean.py:tidy")
    shop.assert_sound()
    again = shop.run()
    assert again.invocation["rows_unchanged"] == 5
    assert again.invocation["calls"] == 0


def test_an_edited_function_runs_again_and_only_what_it_changed_is_asked(shop: ProjectFolder) -> None:
    workflow(shop, {"name": "tidy", "python": "tools/clean.py:tidy"}, stage("say", "${name}"))
    assert shop.run().invocation["calls"] == 4
    shop.write("tools/clean.py", CLEAN.replace('"long"', '"wide"'))
    planned = {one["name"]: one for one in shop.agac("plan", "-a", "reviews", "--json").json["stages"]}
    assert planned["tidy"]["run"] == 5
    assert planned["tidy"]["estimate"]["calls"] == 0
    report = shop.run()
    assert report.invocation["calls"] == 0
    assert report.summary["stages"][1]["reused"] == 4


def test_an_exception_is_the_rows_failure_and_its_traceback_is_shown(shop: ProjectFolder) -> None:
    workflow(shop, {"name": "risky", "python": "tools/clean.py:boom"}, stage("say", "${name}"))
    assert shop.run().exit_code == 3
    (error,) = shop.envelopes(file="errors.jsonl")
    assert error["error"] == {"type": "PythonError", "message": "ValueError: no Item 2 (tools/clean.py:12)"}
    shown = shop.agac("inspect", "1", "r-2", "--json").json["rows"][0]["stages"][0]
    assert shown["outcome"] == "failed"
    assert "raise ValueError" in shown["traceback"]
    assert "agac/" not in shown["traceback"]
    shop.assert_sound()


def test_a_function_that_hangs_is_ended_and_fails_its_row_alone(shop: ProjectFolder) -> None:
    shop.write(
        "tools/clean.py", "import time\ndef f(row):\n    time.sleep(600 * (row['id'] == 'r-2'))\n    return row\n"
    )
    workflow(shop, {"name": "hangs", "python": "tools/clean.py:f", "processes": 1, "timeout": 2})
    report = shop.run()
    assert (report.exit_code, report.summary["rows"]["done"]) == (3, 4)
    (error,) = shop.envelopes(file="errors.jsonl")
    message = "the call took longer than timeout, 2 s, and was ended (tools/clean.py:f)"
    assert error["error"] == {"type": "Timeout", "message": message}
    shop.assert_sound()


@pytest.mark.parametrize("define", ["def", "async def"])
@pytest.mark.parametrize("how", ["import os; os._exit(0)", "import ctypes; ctypes.string_at(0)"], ids=["exit", "fault"])
def test_a_function_that_ends_agac_is_told_each_time_with_its_row(shop: ProjectFolder, how: str, define: str) -> None:
    shop.write("tools/clean.py", f"{define} f(row):\n    if row['id'] == 'r-2':\n        {how}\n    return row\n")
    crash = {"name": "crash", "python": "tools/clean.py:f"}
    workflow(shop, crash)
    said = []
    for _ in range(2):
        process = shop.start("run", "-a", "reviews", "--concurrency", "1")
        said.append(process.communicate()[1].decode())
        assert process.returncode in (0, -11)
    told = "workflow reviews\n  stage crash, row 'r-2' (tools/clean.py:f)\n  Unless agac was killed"
    assert all(f"called in its own process: {told}" in text for text in said)
    again = "the last invocation of reviews ended in the middle of functions that it called: stage crash, row 'r-2'"
    assert [again in text for text in said] == [False, True]
    workflow(shop, crash | {"processes": 2})
    ran = shop.agac("run", "-a", "reviews", "--json", code=3)
    assert (ran.json["rows"]["done"], ran.json["rows"]["failed"], "WARNING" in ran.err) == (4, 1, False)
    workflow(shop, {"name": "ok", "python": "tools/clean.py:f"})
    shop.rows(ROWS[:1])
    assert "WARNING" not in shop.agac("run", "-a", "reviews", code=0).err
    assert not [*shop.root.glob(".agac/*.run")]
    shop.assert_sound()


def test_what_a_long_name_and_calls_that_had_their_answers_have_to_do_with_a_function_that_ends_agac(
    shop: ProjectFolder,
) -> None:
    """The name of its file has room, and no call is said to be sent again where none was."""
    shop.write("tools/clean.py", "import os\ndef f(row):\n    eval(os.getenv('DO', '1'))\n    return row\n")
    name, ends = "名" * 80, {"name": "ends", "python": "tools/clean.py:f"}
    shop.workflow(name, defaults=ECHO, stages=[stage("say", "${name}"), ends], rows=ROWS[:1])
    process = shop.start("run", "-a", name, env={"DO": "__import__('time').sleep(600)"})
    wait_until((shop.root / f".agac/{name}.run").exists, "its file", process)
    wait_until(lambda: len(shop.query("SELECT 1 FROM attempt")) == 1, "the answer in the store", process)
    killed(process)
    assert "Resumed: no calls were needed\n" in shop.agac("run", "-a", name, code=0).out


PRINTS = """\
import atexit, ctypes, os, subprocess, sys, threading
from pydantic import BaseModel, AfterValidator
from typing import Annotated
class Said(BaseModel):
    id: Annotated[str, AfterValidator(lambda text: print("checked") or text)]
print("imported")
os.write(1, b"imported too\\n")
atexit.register(print, "at exit")
def late():
    threading.main_thread().join()
    print("late")
def f(row):
    print("printed")
    sys.__stdout__.write("original\\n")
    os.write(1, b"written\\n")
    subprocess.run(["echo", "child"])
    ctypes.CDLL(None).puts(b"from C")
    threading.Thread(target=late, daemon=False).start()
    return row
"""


@pytest.mark.parametrize("how", [{}, {"processes": 1}], ids=["here", "process"])
def test_nothing_that_a_function_writes_is_in_the_json(shop: ProjectFolder, how: dict[str, int]) -> None:
    shop.write("tools/clean.py", PRINTS)
    said = stage("say", '{"id": "${id}"}', output_schema="python:tools.clean.Said")
    workflow(shop, {"name": "prints", "python": "tools/clean.py:f", **how}, said)
    ran = shop.fresh_agac("run", "-a", "reviews", "-n", "1", "--json")
    assert (ran.code, ran.json["rows"]["done"]) == (0, 1)
    lines = ran.err.splitlines()
    assert {"checked", "imported", "imported too", "at exit", "late", "printed", "original", "written"} <= {*lines}
    assert {"child", "from C"} <= {*lines}


def test_filter_select_and_rename_shape_the_row(shop: ProjectFolder) -> None:
    workflow(
        shop,
        {"name": "cheap", "filter": "double(price) < 45.0"},
        {"name": "few", "select": ["price", "id", "name"]},
        {"name": "other", "rename": {"price": "cost"}},
        stage("say", "${row_json}"),
        output={"format": "csv"},
    )
    report = shop.run()
    assert report.exit_code == 0
    assert shop.output()[0] == '{\n  "cost": "10",\n  "id": "r-1",\n  "name": " Item 1 "\n}'
    assert (report.summary["rows"]["done"], report.summary["rows"]["dropped"]) == (4, 1)
    assert {s["name"]: (s["done"], s["dropped"]) for s in report.summary["stages"]} == {
        "cheap": (4, 1), "few": (4, 0), "other": (4, 0), "say": (4, 0),
    }  # fmt: skip
    assert (shop.root / "output/reviews/results.csv").read_text().splitlines()[0] == "cost,id,name,result,error"
    row = shop.agac("inspect", "1", "r-1", "--json").json["rows"][0]
    assert [one["outcome"] for one in row["stages"]] == ["done"] * 4
    assert row["stages"][3]["prompt"][0]["text"] == shop.output()[0]
    assert not row["stages"][3]["stale"]
    assert shop.agac("why", "1", "r-1", "say").code == 0
    shop.assert_sound()
    planned = {one["name"]: one for one in shop.agac("plan", "-a", "reviews", "--json").json["stages"]}
    assert (planned["cheap"]["dropped"], planned["say"]["reuse"]) == (1, 4)


def test_a_workflow_may_end_in_such_a_stage(shop: ProjectFolder) -> None:
    def ends_in(**end: Any) -> list[Any]:
        workflow(shop, stage("say", "hello ${id}"), {"name": "end", **end})
        assert shop.run().exit_code == 0
        found: list[Any] = shop.output()
        return found

    seen = {"seen": ["id", "name", "price", "say", "secret"], "said": "hello r-1"}
    assert ends_in(python="tools/clean.py:after")[0] == seen
    assert ends_in(select=["id"]) == [{"id": f"r-{n}"} for n in range(1, 6)]
    assert ends_in(filter='id != "r-1"') == [f"hello r-{n}" for n in range(2, 6)]
    assert shop.query("SELECT count(*) FROM attempt") == [(5,)], "asked by the first run alone"


def test_no_model_is_needed_where_none_is_asked(shop: ProjectFolder) -> None:
    shop.write("agac.yml", "")
    report = shop.run(shop.workflow(stages=[{"name": "tidy", "python": "tools/clean.py:tidy"}]))
    assert report.exit_code == 0
    assert report.invocation["calls"] == 0
    assert [one["price"] for one in shop.output()] == [10, 20, 40, 50]
    shop.assert_sound()


def test_what_was_passed_over_did_not_change_the_row_that_is_written(shop: ProjectFolder) -> None:
    other = {"name": "other", "rename": {"name": "title"}, "when": 'id == "r-1"'}
    few = {"name": "few", "select": ["id"], "when": 'id == "r-2"', "needs": "other"}
    workflow(shop, other, stage("say", "${id}"), few, output={"stages": ["say", "few"], "format": "csv"})
    shop.run()
    assert [one["few"] for one in shop.output()] == [None, {"id": "r-2"}, None, None, None]
    workflow(shop, other, stage("say", "${row_json}"), output={"format": "csv"})
    shop.run()
    assert ["title" in text for text in shop.output()] == [True, False, False, False, False]
    with (shop.root / "output/reviews/results.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["title"], row["name"]) for row in rows[:2]] == [(" Item 1 ", ""), ("", " Item 2 ")]
    shop.assert_sound()


def test_a_function_after_a_skipped_answer_is_shown_with_what_it_was_given(shop: ProjectFolder) -> None:
    workflow(shop, stage("say", "hello ${id}", when='id == "r-1"'), {"name": "end", "python": "tools/clean.py:after"})
    shop.run()
    assert shop.output()[1] == {"seen": ["id", "name", "price", "say", "secret"], "said": None}
    for row_id in ("r-1", "r-2"):
        assert not shop.agac("inspect", "1", row_id, "--json").json["rows"][0]["stages"][1]["stale"]


def test_fields_that_rows_do_not_have_are_named_when_the_workflow_is_checked(shop: ProjectFolder) -> None:
    broken: list[tuple[dict[str, Any], str]] = [
        ({"select": ["nam"]}, "names the field 'nam', which rows do not have; did you mean 'name'?"),
        ({"rename": {"name": "price"}}, "'name' cannot become 'price': rows have that field already"),
        ({"filter": "pric > 1"}, "did you mean 'price'?"),
        ({"select": ["id"]}, "${name}: no such field"),
    ]
    for first, expected in broken:
        workflow(shop, {"name": "a", **first}, stage("say", "${name}"))
        assert expected in shop.agac("validate", "-a", "reviews", code=2).out


def test_validating_imports_nothing_of_the_users(shop: ProjectFolder) -> None:
    shop.write("tools/clean.py", CLEAN + '\nopen("imported", "w")\n')
    workflow(shop, {"name": "tidy", "python": "tools/clean.py:tidy"}, stage("say", "${name}"))
    assert shop.agac("validate").code == 0
    assert shop.agac("plan", "-a", "reviews").code == 0
    assert shop.agac("status").code == 0
    assert not (shop.root / "imported").exists()

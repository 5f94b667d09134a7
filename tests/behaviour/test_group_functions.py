"""Functions of the project over groups of rows (`group_by` and `python`): what they are given and may give, when they
are called again, and what becomes of groups with failures."""

import json
import re
from typing import Any

import pytest
from support.made import assert_all_sound, errors, made, outcomes, settled, values
from support.processes import processes
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.engine.walk import groups

pytestmark = processes

ECHO = {"model": "local/echo"}
PATH = "data/rows.jsonl"
ROWS = [
    {"id": "r-1", "topic": "tea", "n": 1},
    {"id": "r-2", "topic": "ink", "n": 2},
    {"id": "r-10", "topic": "tea", "n": 4},
]
TOOLS = """\
def total(rows):
    return {"topic": rows[0]["topic"], "n": sum(row["n"] for row in rows), "ids": [row["id"] for row in rows]}


def shown(rows):
    return {"rows": rows}


def echo(row):
    return {"row": row}


def risky(rows):
    if len(rows) == 1:
        raise ValueError("only " + rows[0]["id"])
    return {"count": len(rows)}


def large(rows):
    return {"topic": rows[0]["topic"]} if len(rows) > 1 else None
"""
TOTAL: dict[str, Any] = {"name": "total", "group_by": "topic", "python": "tools/sums.py:total"}


@pytest.fixture
def shop(project: ProjectFolder) -> ProjectFolder:
    project.rows(ROWS, PATH)
    project.write("tools/sums.py", TOOLS)
    return project


def workflow(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.workflow(path=PATH, defaults=ECHO, stages=list(stages), stop_loss=False, **keys)


def called(name: str, **keys: Any) -> dict[str, Any]:
    return {"name": name, "group_by": "topic", "python": f"tools/sums.py:{name}", **keys}


def planned(project: ProjectFolder) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in project.agac("plan", "-a", "reviews", "--json").json["stages"]}


def test_a_function_is_given_the_rows_of_each_group_and_makes_one_row_of_them(shop: ProjectFolder) -> None:
    workflow(shop, TOTAL)
    report = settled(shop)
    assert report.exit_code == 0
    assert values(shop, "total") == {
        "tea": {"topic": "tea", "n": 5, "ids": ["r-1", "r-10"]},
        "ink": {"topic": "ink", "n": 2, "ids": ["r-2"]},
    }
    assert [(line["id"], line["row_number"], line["result"]["n"]) for line in shop.envelopes()] == [
        ("ink", None, 2), ("tea", None, 5),
    ]  # fmt: skip
    assert report.invocation["calls"] == 0
    workflow(shop, {**TOTAL, "group_by": []})
    settled(shop)
    assert values(shop, "total") == {"all": {"topic": "tea", "n": 7, "ids": ["r-1", "r-10", "r-2"]}}  # by id


def test_each_row_of_the_list_is_what_a_function_of_single_rows_is_given(shop: ProjectFolder) -> None:
    before = [
        {"name": "one", "prompt": "1${n}"},
        {"name": "two", "prompt": "2${one}", "when": "n != 2"},
        {"name": "more", "rename": {"n": "number"}},
    ]
    workflow(shop, *before, {"name": "echo", "python": "tools/sums.py:echo"})
    settled(shop)
    of_rows = {id_: value["row"] for id_, value in values(shop, "echo").items()}
    workflow(shop, *before, called("shown"))
    settled(shop)
    of_groups = {row["id"]: row for value in values(shop, "shown").values() for row in value["rows"]}
    assert of_groups == of_rows
    assert of_rows["r-2"] == {"id": "r-2", "topic": "ink", "number": 2, "one": "12", "two": None}


def test_stages_after_it_see_what_it_gave_and_may_explode_dedupe_and_filter_that(shop: ProjectFolder) -> None:
    workflow(
        shop,
        {"name": "say", "prompt": "s${n}"},
        TOTAL,
        {"name": "title", "prompt": "${topic} ${n} ${total.ids}", "when": "total.n > 0"},
        {"name": "each", "explode": "ids", "prompt": "${item} of ${title}"},
        {"name": "once", "dedupe": "topic"},
        {"name": "last", "filter": 'topic != "ink"'},
    )
    report = settled(shop)
    assert values(shop, "title") == {"ink": 'ink 2 ["r-2"]', "tea": 'tea 5 ["r-1","r-10"]'}
    assert values(shop, "each") == {
        "ink/0": 'r-2 of ink 2 ["r-2"]',
        "tea/0": 'r-1 of tea 5 ["r-1","r-10"]',
        "tea/1": 'r-10 of tea 5 ["r-1","r-10"]',
    }
    assert [line["id"] for line in shop.envelopes()] == ["tea/0"]
    assert report.invocation["calls"] == 3 + 2 + 3
    workflow(shop, TOTAL, {"name": "each", "explode": "total.ids", "prompt": "${item}"}, output={"format": "csv"})
    settled(shop)
    lines = shop.root.joinpath("output/reviews/results.csv").read_text("utf-8").splitlines()
    assert [line.split(",")[-2] for line in lines] == ["result", "r-2", "r-1", "r-10"]


def test_groups_may_be_grouped_again_by_a_function_or_a_model(shop: ProjectFolder) -> None:
    workflow(
        shop,
        TOTAL,
        {"name": "sum", "group_by": [], "prompt": "${rows_count}: ${rows_json}"},
        {"name": "shown", "group_by": [], "python": "tools/sums.py:shown"},
    )
    settled(shop)
    parts = [{"topic": "ink", "n": 2, "ids": ["r-2"]}, {"topic": "tea", "n": 5, "ids": ["r-1", "r-10"]}]
    assert values(shop, "sum") == {"all": f"2: {json.dumps(parts, separators=(',', ':'))}"}
    assert values(shop, "shown")["all"]["rows"] == [{"sum": values(shop, "sum")["all"]}]
    workflow(shop, TOTAL, {"name": "shown", "group_by": [], "python": "tools/sums.py:shown"})
    settled(shop)
    assert values(shop, "shown") == {"all": {"rows": parts}}


def test_a_result_is_taken_from_the_store_until_the_rows_or_the_function_change(shop: ProjectFolder) -> None:
    count = "open('called', 'a').write(rows[0]['topic'] + ' ')\n    "
    shop.write(
        "tools/sums.py",
        TOOLS.replace('return {"topic": rows[0]["topic"], "n"', count + 'return {"topic": rows[0]["topic"], "n"'),
    )

    def calls() -> list[str]:
        file = shop.root / "called"
        found = sorted(file.read_text().split()) if file.exists() else []
        file.unlink(missing_ok=True)
        return found

    workflow(shop, TOTAL, {"name": "say", "prompt": "${topic} ${n}"})
    say = shop.agac("run", "-a", "reviews", "--json", code=0)
    assert (calls(), say.json["calls"]["count"]) == (["ink", "tea"], 2)
    plan = planned(shop)
    assert [(plan[name]["run"], plan[name]["reuse"], plan[name]["exact"]) for name in ("total", "say")] == [
        (0, 2, True)
    ] * 2
    shop.agac("run", "-a", "reviews", code=0)
    assert calls() == []
    shop.rows(ROWS[::-1], PATH)
    shop.agac("run", "-a", "reviews", code=0)
    assert calls() == []
    shop.rows([*ROWS[:2], {**ROWS[2], "n": 9}], PATH)
    plan = planned(shop)
    assert (plan["total"]["run"], plan["total"]["reuse"]) == (1, 1)
    assert [one["reason"] for one in plan["total"]["reasons"]] == ["rows of the group changed"]
    assert plan["say"]["run"] == 1
    assert shop.agac("run", "-a", "reviews", "--json", code=0).json["calls"]["count"] == 3
    assert calls() == ["tea"]
    shop.write("tools/sums.py", shop.root.joinpath("tools/sums.py").read_text() + "# edited\n")
    assert planned(shop)["total"]["run"] == 2
    assert shop.agac("run", "-a", "reviews", "--json", code=0).json["calls"]["count"] == 0
    assert calls() == ["ink", "tea"]


@pytest.mark.parametrize(("keys", "of_tea"), [({}, "done"), ({"incomplete": "fail"}, "failed")])
def test_failed_rows_are_left_out_or_fail_the_group(shop: ProjectFolder, keys: dict[str, Any], of_tea: str) -> None:
    shop.rows([ROWS[0], {"id": "r-2", "topic": "ink"}, {"id": "r-10", "topic": "tea"}], PATH)
    workflow(shop, {"name": "say", "prompt": "s${n}"}, {**TOTAL, **keys})
    assert settled(shop).exit_code == 3
    assert made(shop, "total") == {"tea": of_tea, "ink": "failed"}
    found = {"ink": ("InvalidRow", "stage 'total': all 1 rows of this group failed")}
    if keys:
        found["tea"] = ("InvalidRow", "stage 'total': 1 of the 2 rows of this group failed")
    assert errors(shop, "total") == found
    assert values(shop, "total") == ({} if keys else {"tea": {"topic": "tea", "n": 1, "ids": ["r-1"]}})
    shop.rows(ROWS, PATH)
    assert settled(shop).exit_code == 0
    assert values(shop, "total")["tea"]["ids"] == ["r-1", "r-10"]


@pytest.mark.parametrize("how", [{}, {"processes": 2}], ids=["here", "processes"])
@pytest.mark.parametrize("define", ["def", "async def"])
def test_an_exception_fails_its_group_alone(shop: ProjectFolder, how: dict[str, Any], define: str) -> None:
    shop.write("tools/sums.py", TOOLS.replace("def risky", f"{define} risky"))
    workflow(shop, called("risky", **how), {"name": "say", "prompt": "${count}"})
    assert settled(shop).exit_code == 3
    assert errors(shop, "risky") == {"ink": ("PythonError", "ValueError: only r-2 (tools/sums.py:15)")}
    assert values(shop, "say") == {"tea": "2"}
    (failed,) = shop.envelopes(file="errors.jsonl")
    assert (failed["id"], failed["error"]["type"]) == ("ink", "PythonError")
    text = shop.agac("run", "-a", "reviews", code=3).out
    assert "PythonError in risky: 1 row, e.g. 'ink':\n    ValueError: only r-2" in text
    shown = shop.agac("inspect", "last", "ink", "--json").json["rows"][0]["stages"][0]
    assert "raise ValueError" in shown["traceback"]
    shop.write("tools/sums.py", TOOLS.replace("raise ValueError", "print"))
    assert settled(shop).exit_code == 0


def test_a_group_for_which_it_gives_none_leaves(shop: ProjectFolder) -> None:
    workflow(shop, called("large"), {"name": "say", "prompt": "${topic}"})
    report = settled(shop)
    assert (report.exit_code, report.summary["levels"][0]["rows"]["dropped"]) == (0, 1)
    assert outcomes(shop, "large") == {"ink": "dropped", "tea": "done"}
    (left,) = shop.envelopes(file="filtered.jsonl")
    assert (left["id"], left["stage"], left["python"]) == ("ink", "large", "tools/sums.py:large")


LIST = "with the list in a field, and explode that in a stage after it"


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        ("rows", f"tools/sums.py:f gave a list of rows; of a group let it give one dict, {LIST}"),
        (
            "len(rows)",
            "what it gave is a number; give a dict or None; where the stage has neither explode nor group_by",
        ),
        ("{'a': {1}}", "a is a set, which JSON has not; give a list, as sorted(value) (tools/sums.py:f)"),
    ],
)
def test_what_it_may_not_give_fails_the_group_and_the_remedy_works(
    shop: ProjectFolder, gives: str, message: str
) -> None:
    shop.write("tools/sums.py", f"def f(rows):\n    return {gives}\n")
    function = {"name": "f", "group_by": "topic", "python": "tools/sums.py:f"}
    workflow(shop, function)
    assert settled(shop).exit_code == 3
    assert {kind for kind, _ in errors(shop, "f").values()} == {"PythonError"}
    assert all(text.startswith(message) for _, text in errors(shop, "f").values())
    mended = {"rows": "{'all': rows}", "len(rows)": "{'n': len(rows)}", "{'a': {1}}": "{'a': sorted({1})}"}
    shop.write("tools/sums.py", f"def f(rows):\n    return {mended[gives]}\n")
    after = (
        {"name": "each", "explode": "all", "prompt": "${item.id}"} if gives == "rows" else {"name": "e", "prompt": "e"}
    )
    workflow(shop, function, after)
    assert settled(shop).exit_code == 0


def test_its_result_is_held_to_checks_and_a_guard_may_pass_groups_over(shop: ProjectFolder) -> None:
    checks = [{"check": "total.n < 5", "message": "too many"}]
    workflow(shop, {**TOTAL, "checks": checks})
    assert settled(shop).exit_code == 3
    ((group, (kind, text)),) = errors(shop, "total").items()
    assert (group, kind) == ("tea", "CheckFailed")
    assert "too many" in text
    workflow(shop, {**TOTAL, "when": "rows_count > 1"}, {"name": "say", "prompt": "${topic}"})
    settled(shop)
    assert outcomes(shop, "total") == {"ink": "skipped", "tea": "done"}
    assert values(shop, "say") == {"ink": "ink", "tea": "tea"}


def test_a_group_with_more_rows_than_a_function_takes_fails_with_what_to_do(
    shop: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "MAX_ROWS", 2)
    workflow(shop, {**TOTAL, "group_by": []})
    ((reason,),) = [one["blocked_reasons"] for one in agac.plan("reviews", project=shop.root).as_json()["stages"]]
    assert reason["reason"] == "too many rows for a function; group by one more field first"
    settled(shop)
    message = "this group has 3 rows; a function is given 2 at most; group by one more field first"
    assert errors(shop, "total")["all"][1].startswith(f"stage 'total': {message}")
    workflow(shop, TOTAL, {"name": "shown", "group_by": [], "python": "tools/sums.py:shown"})
    assert settled(shop).exit_code == 0


def test_a_timeout_ends_the_call_for_one_group(shop: ProjectFolder) -> None:
    code = "import time\ndef f(rows):\n    time.sleep(600 * (len(rows) == 1))\n    return {'n': len(rows)}\n"
    shop.write("tools/sums.py", code)
    workflow(shop, {"name": "f", "group_by": "topic", "python": "tools/sums.py:f", "processes": 1, "timeout": 2})
    assert shop.run().exit_code == 3
    assert made(shop, "f") == {"ink": "failed", "tea": "done"}
    assert errors(shop, "f")["ink"][0] == "Timeout"
    assert_all_sound(shop)


def test_a_function_that_ends_agac_is_told_with_its_group(shop: ProjectFolder) -> None:
    shop.write("tools/sums.py", "import os\ndef f(rows):\n    os._exit(0)\n")
    workflow(shop, {"name": "f", "group_by": "topic", "python": "tools/sums.py:f"})
    process = shop.start("run", "-a", "reviews", "--concurrency", "1")
    said = process.communicate()[1].decode()
    assert re.search(r"stage f, group '(ink|tea)' \(tools/sums.py:f\)", said)


def test_plan_counts_groups_whose_rows_wait_for_answers(shop: ProjectFolder) -> None:
    workflow(
        shop, {"name": "say", "prompt": "${topic}"}, {**TOTAL, "group_by": "say"}, {"name": "end", "prompt": "${n}"}
    )
    plan = planned(shop)
    assert [(plan[name]["run"], plan[name]["exact"]) for name in ("say", "total")] == [(3, True), (1, False)]
    assert not plan["end"]["exact"]
    assert settled(shop).exit_code == 0
    plan = planned(shop)
    assert [(one["run"], one["reuse"], one["exact"]) for one in plan.values()] == [
        (0, 3, True),
        (0, 2, True),
        (0, 2, True),
    ]
    shown = shop.agac("why", "last", "tea", "total").out
    assert "This stage calls no model" in shown
    shown = shop.agac("inspect", "last", "tea").out
    assert "(group of total)" in shown
    assert "members: 2: 'r-1', 'r-10'" in shown


def phases(project: ProjectFolder, given: Any, mapped: Any = "Of {item}") -> Any:
    return agac.map_reduce(
        map=mapped, reduce=given, inputs=[f"part {n}" for n in range(12)], model="local/echo", project=project.root
    )


def test_a_function_may_be_the_last_phase_of_map_reduce(shop: ProjectFolder, server: Server) -> None:
    server.reset()
    shop.configure(server.base_url)
    shop.write("tools/sums.py", "def f(rows):\n    return {'said': [row['map'] for row in rows], 'n': len(rows)}\n")
    expected = {"said": [f"Of part {n}" for n in range(12)], "n": 12}
    for given in ({"python": "tools/sums.py:f"}, agac.Phase(python="tools/sums.py:f", processes=1)):
        results, answer = phases(shop, given)
        assert ([one.output for one in results], answer.output) == (expected["said"], expected)
        assert (answer.row_id, answer.turns, answer.cost) == ("all", 0, 0)
    assert server.account()["charged"] == 12
    shop.write("tools/sums.py", "def f(rows):\n    raise ValueError('no')\n")
    _, answer = phases(shop, agac.Phase(python="tools/sums.py:f"))
    assert (answer.output, answer.error.type) == (None, "PythonError")
    with pytest.raises(agac.SpecError, match="reduce: reduce: a function is given all rows of a group at once"):
        phases(shop, agac.Phase(python="tools/sums.py:f", reduce={"max_rows": 5}))


def test_a_workflow_test_may_have_one(shop: ProjectFolder) -> None:
    shop.configure()
    workflow(shop, {"name": "say", "prompt": "s${n}", "model": "simulator/echo"}, TOTAL)
    body = "workflow: reviews\nrows: data/rows.jsonl\nreplies: simulator\nexpect: {each: ['total.n > 0'], results: 2}\n"
    shop.write("tests/workflows/reviews.yml", body)
    ran = shop.agac("test")
    assert ran.code == 0, ran.out + ran.err

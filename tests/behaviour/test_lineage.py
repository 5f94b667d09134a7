"""Looking at rows that stages made: their parents, children, groups and parts, what was asked of them, files."""

import asyncio
import json
from typing import Any

import pytest
from support.project import ProjectFolder

import agac

CONTRACTS = [
    {"id": "c1", "clauses": ["a", "b", "c"]},
    {"id": "c2", "clauses": []},
    {"id": "c3", "clauses": ["b", "d"]},
    {"id": "c4", "clauses": "none"},
]
STAGES: list[dict[str, Any]] = [
    {"name": "clause", "explode": "clauses", "prompt": "Clause ${index} of ${id}: ${item}"},
    {"name": "uniq", "dedupe": ["item"]},
    {"name": "say", "prompt": "Say ${item}: ${clause}"},
    {"name": "sum", "group_by": ["id"], "reduce": {"max_rows": 2}, "prompt": "Sum ${id}, ${rows_count}: ${rows_json}"},
]


@pytest.fixture
def finished(project: ProjectFolder) -> ProjectFolder:
    """Children of lists, one of them left out by dedupe, groups, one of them in parts, and a row that failed."""
    project.rows(CONTRACTS, "data/rows.jsonl")
    assert project.run(project.workflow(stages=STAGES, path="data/rows.jsonl")).exit_code == 3
    return project


def looked(project: ProjectFolder, row: str, run: int = 1) -> list[dict[str, Any]]:
    found = agac.inspect(run, row, project=project.root).rows
    assert found is not None
    return found


def test_a_row_shows_what_was_made_of_it_a_group_its_members_and_one_id_its_levels(finished: ProjectFolder) -> None:
    row, group = looked(finished, "c1")
    assert (row["relation"], row["made_by"], row["row_number"], row["parents"]) == ("input", None, 1, [])
    assert row["children"] == [
        {
            "made_by": "clause", "relation": "child", "count": 3, "states": {"done": 3},
            "ids": ["c1/0", "c1/1", "c1/2"],
        }
    ]  # fmt: skip
    assert row["stages"] == [], "it is asked of its children"
    assert (group["relation"], group["made_by"], group["row_number"], group["occurrence"]) == ("group", "sum", None, 0)
    assert group["members"] == {"count": 3, "failed": 0, "ids": ["c1/0", "c1/1", "c1/2"], "failed_ids": []}
    (parts,) = group["children"]
    assert (parts["relation"], parts["made_by"], parts["count"]) == ("part", "sum", len(parts["ids"]))
    assert parts["count"] >= 2
    (part,) = looked(finished, parts["ids"][-1])
    assert (part["relation"], [above["id"] for above in part["parents"]]) == ("part", ["c1"])
    child, kept = looked(finished, "c1/1")
    assert (child["relation"], child["place"], child["row_number"]) == ("child", 1, 1)
    assert child["parents"] == [{"id": "c1", "relation": "input", "made_by": None}]
    assert [(one["relation"], one["ids"]) for one in child["children"]] == [("kept", ["c1/1"])]
    assert [stage["name"] for stage in child["stages"]] == ["clause", "uniq"]
    assert (kept["relation"], kept["made_by"], kept["row_number"], kept["place"]) == ("kept", "uniq", 1, None)
    assert [above["id"] for above in kept["parents"]] == ["c1/1", "c1"]
    assert kept["groups"] == [{"id": "c1", "made_by": "sum"}]
    assert [stage["name"] for stage in kept["stages"]] == ["say"]
    only = agac.inspect(1, "c1/1", stage="say", project=finished.root).rows
    assert only is not None
    assert [(row["relation"], len(row["stages"])) for row in only] == [("kept", 1)]
    (dropped,) = looked(finished, "c3/0")
    assert (dropped["state"], dropped["children"]) == ("dropped", [])


def test_every_prompt_is_the_one_that_was_asked(finished: ProjectFolder) -> None:
    """Of children, kept rows, parts and groups alike: the fingerprint is made again of what is shown."""
    names = [name for (name,) in finished.query("SELECT DISTINCT id FROM row WHERE origin IS NOT NULL")]
    shown = 0
    for name in names:
        for row in looked(finished, name):
            for stage in row["stages"]:
                assert not stage["stale"], (name, stage["name"])
                if stage["attempts"]:
                    shown += 1
                    assert stage["prompt"], (name, stage["name"])
                    assert not any(attempt["of_earlier_content"] for attempt in stage["attempts"])
    assert shown == finished.query("SELECT count(DISTINCT row_key || '/' || stage) FROM attempt")[0][0]
    (text,) = [message["text"] for message in looked(finished, "c3")[1]["stages"][0]["prompt"]]
    (member,) = json.loads(text.removeprefix("Sum c3, 1: "))
    assert (member["id"], member["item"], member["index"]) == ("c3", "d", 1)


def test_the_text_says_where_to_look_next_and_bounds_many_children(finished: ProjectFolder) -> None:
    text = finished.agac("inspect", "1", "c1/1").out
    assert "'c1/1' (child 1 by clause): done\n  made of: 'c1', a row of the input: agac inspect 1 c1\n" in text
    assert "'c1/1' (kept by uniq): done\n  made of: 'c1/1', a child by clause, of the same id\n" in text
    assert "  in the group 'c1' of sum: agac inspect 1 c1\n" in text
    text = finished.agac("inspect", "1", "c1").out
    assert "  children by clause: 3 (3 done): 'c1/0', 'c1/1', 'c1/2'; agac inspect 1 c1/0\n" in text
    assert "'c1' (group of sum): done\n  parts by sum: " in text
    assert "  members: 3: 'c1/0', 'c1/1', 'c1/2'; agac inspect 1 c1/0\n" in text
    finished.write("tools/f.py", "def f(row):\n    return {'n': row['item']}\n")
    stages = [{"name": "f", "explode": "numbers", "python": "tools/f.py:f"}]
    many = [{"id": "big", "numbers": list(range(1200))}]
    run = finished.run(finished.workflow("many", rows=many, stages=stages, path="data/many.jsonl")).summary["run"]
    ((below,),) = (row["children"] for row in looked(finished, "big", run))
    assert (below["count"], len(below["ids"]), below["ids"][-1]) == (1200, 1000, "big/999")
    text = finished.agac("inspect", str(run), "big").out
    assert "children by f: 1,200 (1,200 done): 'big/0', 'big/1', 'big/2', 'big/3', 'big/4', …; agac inspect" in text


def test_a_list_of_a_function_stands_for_its_row(project: ProjectFolder) -> None:
    project.numbered(2)
    project.write("tools/f.py", "def f(row):\n    return [{'n': 1}, {'n': 2}] if row['id'] == 'r-1' else {'n': 3}\n")
    stages = [{"name": "f", "python": "tools/f.py:f"}, {"name": "say", "prompt": "Say ${n}"}]
    project.run(project.workflow(stages=stages))
    (row,), (single,), (child,) = (looked(project, name) for name in ("r-1", "r-2", "r-1/1"))
    assert [stage["name"] for stage in row["stages"]] == ["f"]
    assert [stage["name"] for stage in single["stages"]] == ["f", "say"]
    assert [(stage["name"], stage["prompt"][-1]["text"]) for stage in child["stages"]] == [("say", "Say 2")]
    missing = agac.why(1, "r-1", "say", project=project.root).now.missing
    assert missing == "stage f gave a list of rows in the place of this one: name one of those"


def test_why_tells_of_rows_that_stages_made(finished: ProjectFolder) -> None:
    of_kept = agac.why(1, "c1/1", "say", project=finished.root)
    assert of_kept.now.messages is not None
    assert of_kept.now.messages[-1].text.startswith("Say b: ")
    of_group = agac.why(1, "c1", "sum", project=finished.root)
    assert of_group.now.messages is not None
    assert of_group.now.messages[-1].text.startswith("Sum c1, 3: ")
    missing = agac.why(1, "c1", "say", project=finished.root).now.missing
    assert missing is not None
    assert missing.startswith("this stage is asked of rows that another stage makes")
    finished.workflow(
        stages=[*STAGES[:2], {**STAGES[2], "prompt": "Tell ${item}: ${clause}"}, STAGES[3]], path="data/rows.jsonl"
    )
    finished.run()
    report = agac.why(2, "c1/1", "say", project=finished.root)
    assert report.before is not None
    assert report.before.run == 1
    assert [one["what"] for one in report.differences] == ["user message"]


def test_telemetry_has_a_line_for_each_row_that_was_asked(finished: ProjectFolder) -> None:
    lines = [line for line in finished.envelopes(file="telemetry.jsonl") if line["usage"]]
    calls = sum(len(line["usage"]["provider_attempts"]) for line in lines)
    assert calls == finished.output(file="summary.json")["calls"]["count"]
    numbers = {line["id"]: line["row_number"] for line in lines}
    assert (numbers["c1/2"], numbers["c3/1"], numbers["c1"]) == (1, 3, None)
    stages = [line["usage"]["provider_attempts"][0]["stage"] for line in lines]
    assert stages == sorted(stages, key=["clause", "say", "sum"].index)
    parts = [line for line in lines if str(line["id"]).startswith("c1/1.")]
    assert parts
    assert {line["row_number"] for line in parts} == {None}


def test_filtered_lists_rows_of_every_level(finished: ProjectFolder) -> None:
    assert finished.envelopes(file="filtered.jsonl") == [
        {"id": "c3/0", "row_number": 3, "stage": "uniq", "dedupe": ["item"], "first": "c1/1", "values": {}}
    ]
    first = {**STAGES[0], "when": 'id != "c1"', "otherwise": "drop"}
    last = {**STAGES[3], "when": 'id == "c1"', "otherwise": "drop"}
    stages = [first, *STAGES[1:3], last]
    finished.run(finished.workflow(stages=stages, path="data/rows.jsonl", output={"include_input": True}))
    lines = finished.envelopes(file="filtered.jsonl")
    assert [(line["id"], line["row_number"], line["stage"]) for line in lines] == [
        ("c1/0", 1, "clause"), ("c1/1", 1, "clause"), ("c1/2", 1, "clause"), ("c3", None, "sum"),
    ]  # fmt: skip
    assert lines[0]["values"] == {"id": "c1"}
    assert lines[0]["input"] == {"id": "c1", "item": "a", "index": 0}
    assert lines[-1]["input"] == {"id": "c3"}


def test_views_tell_how_rows_were_made(finished: ProjectFolder) -> None:
    query = "SELECT row_id, relation, stage, from_id, place, row_number, occurrence FROM v_lineage WHERE run = 1"
    found = finished.query(f"{query} AND row_id IN ('c1', 'c1/1', 'c3/0') ORDER BY relation, row_id, from_id")
    assert [row for row in found if row[1] != "member"] == [
        ("c1/1", "child", "clause", "c1", 1, 1, 0),
        ("c3/0", "child", "clause", "c3", 0, 3, 0),
        ("c1", "group", "sum", None, None, None, 0),
        ("c1", "input", None, None, None, 1, 0),
        ("c1/1", "kept", "uniq", "c1/1", None, 1, 0),
    ]
    assert [row[3] for row in found if row[1] == "member"] == ["c1/0", "c1/1", "c1/2"]
    assert finished.query("SELECT DISTINCT from_id, stage FROM v_lineage WHERE relation = 'part'") == [("c1", "sum")]
    results = "SELECT row_id, row_number, occurrence FROM v_results WHERE stage = 'say' ORDER BY 1"
    assert finished.query(results) == [("c1/0", 1, 0), ("c1/1", 1, 0), ("c1/2", 1, 0), ("c3/1", 3, 0)]
    assert finished.query("SELECT count(*) FROM v_attempts WHERE occurrence < 0") == [(0,)]


def test_what_is_no_longer_made_is_not_shown(finished: ProjectFolder) -> None:
    finished.rows([{"id": "c1", "clauses": ["a"]}, *CONTRACTS[1:]], "data/rows.jsonl")
    finished.run()
    assert finished.query("SELECT count(*) FROM v_lineage WHERE row_id = 'c1/2'") == [(0,)]
    assert finished.query("SELECT count(*) FROM v_lineage WHERE state IS NULL OR state = 'pending'") == [(0,)]
    ran = finished.agac("inspect", "1", "c1/2")
    assert (ran.code, "run 1 has no row 'c1/2'" in ran.err) == (2, True)
    assert [one["count"] for one in looked(finished, "c1")[0]["children"]] == [1]
    ids = [line["id"] for line in finished.envelopes(file="telemetry.jsonl")]
    assert "c1/0" in ids
    assert "c1/2" not in ids


def test_status_and_graph_count_rows_of_every_level(finished: ProjectFolder) -> None:
    text = finished.agac("status", "1").out
    assert "  clause: 5 child rows, 4 done, 1 dropped\n  uniq: 4 kept rows, 4 done\n  sum: 2 groups, 2 done\n" in text
    drawn = agac.graph("reviews", project=finished.root).as_json()
    assert [(stage["name"], stage["level"], stage["makes"]) for stage in drawn["stages"]] == [
        ("clause", 1, "explode clauses"), ("uniq", 1, None), ("say", 2, None), ("sum", 3, "group_by id"),
    ]  # fmt: skip
    assert (drawn["rows"]["total"], drawn["written"]["total"]) == (4, 2)
    assert "level 3" in agac.graph("reviews", project=finished.root).mermaid()
    assert agac.graph("reviews", run=1, project=finished.root).as_json()["written"]["done"] == 2


@pytest.mark.parametrize(
    ("rows", "stages", "expected"),
    [
        (CONTRACTS, STAGES, [("clause", 6, None), ("uniq", 5, None), ("say", 4, None), ("sum", 2, None)]),
        (
            [{"id": "a", "text": "t"}, {"id": "b", "text": "t"}],
            [
                {"name": "ask", "prompt": "Ask ${text}"},
                {"name": "f", "python": "tools/f.py:f"},
                {"name": "say", "prompt": "Say ${text}"},
                {"name": "beside", "prompt": "By ${text}", "needs": ["ask"]},
            ],
            [("ask", 2, 2), ("f", 2, 2), ("say", 2, None), ("beside", 2, 2)],
        ),
    ],
)
def test_progress_says_nothing_that_is_not_known(
    project: ProjectFolder, rows: list[Any], stages: list[Any], expected: list[Any]
) -> None:
    """How many rows come to a stage that is asked of children, groups or what a function may give a list of is not
    known before they are made."""
    project.write("tools/f.py", "def f(row):\n    return row\n")
    project.workflow(rows=rows, stages=stages, path="data/rows.jsonl")
    seen: list[tuple[str, int, int | None]] = []

    async def watch(watched: Any) -> None:
        while True:
            seen[:] = [(s.name, s.settled, s.total.rows if s.total else None) for s in watched.snapshot().stages]
            await asyncio.sleep(0)

    agac.run("reviews", agac.RunOptions(), project=project.root, progress=watch)
    assert seen == expected

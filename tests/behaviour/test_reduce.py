"""Groups too large for one call: parts are asked, and then what they came to."""

import json
import math
from collections.abc import Callable
from threading import Lock
from typing import Any

import pytest
from scripted_server import Step, answering
from support.made import asked, assert_all_sound, errors, made, parts, settled, tried, values
from support.project import ProjectFolder

PATH = "data/rows.jsonl"
Answer = Callable[[str], Step]


def sums(bad: list[str] | None = None) -> Answer:
    """Answers with the sum of what it is given, and with how many it was given: each row counts once in the end."""
    asked_: list[int] = []
    lock = Lock()

    def answer(text: str) -> Step:
        if bad and any(word in text for word in bad):
            return Step(text, finish="length")
        rows = json.loads(text.partition(": ")[2])
        with lock:
            asked_.append(len(rows))
        total = sum(row["n"] if "n" in row else row["total"] for row in rows)
        return Step(json.dumps({"total": total, "rows": sum(row.get("rows", 1) for row in rows)}))

    return answer


SCHEMA = {"total": "integer", "rows": "integer"}


def summing(bounds: dict[str, int], **keys: Any) -> dict[str, Any]:
    stage = {"name": "sum", "group_by": ["topic"], "reduce": bounds, "prompt": "${topic}: ${rows_json}"}
    return {**stage, "output_schema": SCHEMA, **keys}


def reduce(project: ProjectFolder, bounds: dict[str, int], *more: dict[str, Any], **keys: Any) -> None:
    project.workflow(path=PATH, stages=[summing(bounds, **keys), *more], stop_loss=False)


def numbers(project: ProjectFolder, rows: dict[int, int], topics: int = 1) -> None:
    """Rows by number, each with its value."""
    project.rows([{"id": f"r{n}", "topic": f"t{n % topics}", "n": value} for n, value in rows.items()], PATH)


@pytest.mark.parametrize(("count", "max_rows"), [(1, 2), (2, 2), (3, 2), (40, 2), (100, 7), (250, 10), (600, 599)])
def test_every_row_counts_once(project: ProjectFolder, count: int, max_rows: int) -> None:
    with project.asking(answering(sums())) as server:
        numbers(project, {n: n for n in range(count)})
        reduce(project, {"max_rows": max_rows})
        report = settled(project)
        assert report.exit_code == 0
        assert values(project, "sum") == {"t0": {"total": sum(range(count)), "rows": count}}
        biggest = max(len(json.loads(a["messages"][-1]["content"].partition(": ")[2])) for a in server.asked)
        assert biggest <= max_rows
        assert report.invocation["calls"] == len(parts(project)) + 1
        assert report.summary["stages"][0]["done"] == 1
        assert set(parts(project).values()) <= {"done"}


def test_tokens_bound_a_call(project: ProjectFolder) -> None:
    with project.asking(answering(sums())) as server:
        project.rows([{"id": f"r{n}", "topic": "t", "n": n, "fill": "x" * (n % 5 * 40)} for n in range(80)], PATH)
        reduce(project, {"max_tokens": 200}, max_tokens=50)
        report = settled(project)
        assert report.exit_code == 0
        assert values(project, "sum") == {"t": {"total": sum(range(80)), "rows": 80}}
        assert max(len(a["messages"][-1]["content"]) for a in server.asked) < 200 * 4 + 200
        assert report.invocation["calls"] > 10


def test_a_row_larger_than_the_bound_is_asked_alone_and_small_groups_at_once(project: ProjectFolder) -> None:
    with project.asking(answering(sums())):
        sizes = [4, 4000, 4, 4, 4000, 4]
        rows = [{"id": f"r{n}", "topic": "large", "n": n, "fill": "x" * s} for n, s in enumerate(sizes)]
        project.rows([*rows, *({"id": f"s{n}", "topic": f"small{n}", "n": 1} for n in range(9))], PATH)
        reduce(project, {"max_tokens": 100}, max_tokens=20)
        assert settled(project).exit_code == 0
        assert values(project, "sum")["large"] == {"total": 15, "rows": 6}
        assert len(values(project, "sum")) == 10
        project.rows([{"id": "r", "topic": "t", "n": 5, "fill": "x" * 9000}], PATH)
        assert asked(project) == 1, "alone in its group, too"


@pytest.mark.parametrize("bounds", [{"max_rows": 10}, {"max_tokens": 150}])
def test_one_more_row_asks_a_few_calls(project: ProjectFolder, bounds: dict[str, int]) -> None:
    """As many as the tree is high, and one or two where a part is cut in another way."""
    count = 400
    with project.asking(answering(sums())):
        rows = {n: n for n in range(count)}
        numbers(project, rows)
        reduce(project, bounds, max_tokens=30)
        first = asked(project)
        assert first > count / 10
        high = math.ceil(math.log2(first)) + 3
        for change in ({count: 5}, {7: 70}, {count + 1: 1, count + 2: 2}):
            rows |= change
            numbers(project, rows)
            assert 1 < asked(project) <= high * len(change)
            assert values(project, "sum") == {"t0": {"total": sum(rows.values()), "rows": len(rows)}}
        del rows[9]
        numbers(project, rows)
        assert 1 <= asked(project) <= high
        assert values(project, "sum") == {"t0": {"total": sum(rows.values()), "rows": len(rows)}}


def test_a_group_that_leaves_or_shrinks_to_one_call_takes_its_parts_along(project: ProjectFolder) -> None:
    with project.asking(answering(sums())):
        numbers(project, {n: n for n in range(60)}, topics=2)
        reduce(project, {"max_rows": 5})
        first = asked(project)
        numbers(project, {n: n for n in range(0, 60, 2)}, topics=2)
        assert asked(project) == 0
        assert list(made(project, "sum")) == ["t0"]
        assert 5 < len(parts(project)) < first
        before = values(project, "sum")
        numbers(project, {n: n for n in reversed(range(60))}, topics=2)
        assert asked(project) == 0, "in another order"
        assert values(project, "sum")["t0"] == before["t0"]
        numbers(project, {n: n for n in range(0, 8, 2)}, topics=2)
        assert asked(project) == 1
        assert values(project, "sum") == {"t0": {"total": 12, "rows": 4}}
        assert parts(project) == {}
        numbers(project, {n: n for n in range(60)}, topics=2)
        for most, any_asked in ((50, True), (5, False)):
            reduce(project, {"max_rows": most})
            assert (asked(project) > 0) == any_asked


def test_a_part_that_fails_fails_its_group_and_is_asked_again_alone(project: ProjectFolder) -> None:
    bad = ['"n":17,', '"n":17}']
    with project.asking(answering(sums(bad))) as server:
        numbers(project, {n: n for n in range(60)}, topics=2)
        reduce(project, {"max_rows": 5}, {"name": "more", "prompt": "${topic}: [${sum}]", "output_schema": SCHEMA})
        report = settled(project)
        assert report.exit_code == 3
        assert made(project, "sum") == {"t0": "done", "t1": "failed"}
        kind, message = errors(project, "sum")["t1"]
        assert (kind, message.startswith("in a part of this group: ")) == ("Truncated", True)
        assert [line["id"] for line in project.envelopes(file="errors.jsonl")] == ["t1"]
        assert list(parts(project).values()).count("failed") >= 1
        bad.clear()
        before = len(server.asked)
        report = settled(project)
        assert report.exit_code == 0
        assert 2 <= len(server.asked) - before <= 10, "the part, those above it, and what follows"
        assert values(project, "sum")["t1"] == {"total": sum(range(1, 60, 2)), "rows": 30}


def test_a_part_is_asked_in_two_further_runs_and_then_left(project: ProjectFolder) -> None:
    with project.asking(answering(sums(['"n":17,', '"n":17}']))):
        numbers(project, {n: n for n in range(30)})
        reduce(project, {"max_rows": 5})
        assert tried(project, 5)[1:] == [(1, 0), (1, 1), (0, 1), (0, 1)]


def test_a_tree_of_children_and_of_what_follows(project: ProjectFolder) -> None:
    with project.asking(answering(sums())):
        rows = [{"id": f"r{n}", "topic": f"t{n % 2}", "items": list(range(n % 6))} for n in range(40)]
        project.rows(rows, PATH)
        project.write("tools/n.py", "def n(row):\n    return {**row, 'n': row['item']}\n")
        stages = [
            {"name": "each", "explode": "items", "python": "tools/n.py:n"},
            summing({"max_rows": 6}, needs="each"),
            {"name": "all", "group_by": [], "prompt": ": ${rows_json}", "output_schema": SCHEMA},
        ]
        project.workflow(path=PATH, stages=stages)
        asked(project)
        assert {k: v["rows"] for k, v in values(project, "sum").items()} == {
            f"t{t}": sum(n % 6 for n in range(40) if n % 2 == t) for t in (0, 1)
        }
        project.rows([*rows[:-1], {**rows[-1], "items": [5, 5, 5]}], PATH)
        assert 1 < asked(project) < 12
        assert_all_sound(project)


def test_incomplete_trees(project: ProjectFolder) -> None:
    bad = ["say r17!"]

    def answer(text: str) -> Step:
        if text.startswith("say "):
            return Step(text, finish="length" if text in bad else "stop")
        return sums()(text)

    with project.asking(answering(answer)):
        numbers(project, dict.fromkeys(range(40), 1))
        stages = [{"name": "say", "prompt": "say ${id}!"}, summing({"max_rows": 5})]
        project.workflow(path=PATH, stages=stages)
        assert settled(project).exit_code == 3
        assert values(project, "sum") == {"t0": {"total": 39, "rows": 39}}
        project.workflow(path=PATH, stages=[stages[0], {**stages[1], "incomplete": "fail"}])
        report = settled(project)
        assert (report.exit_code, report.invocation["calls"]) == (3, 1)
        assert errors(project, "sum")["t0"][1] == "stage 'sum': 1 of the 40 rows of this group failed"
        assert parts(project) == {}
        bad.clear()
        assert settled(project).exit_code == 0
        assert values(project, "sum") == {"t0": {"total": 40, "rows": 40}}


def test_guards_look_at_the_whole_group_before_it_is_cut(project: ProjectFolder) -> None:
    with project.asking(answering(sums())):
        rows = [{"id": f"r{n}", "topic": "few" if n < 12 else "many", "n": 1} for n in range(40)]
        project.rows(rows, PATH)
        reduce(project, {"max_rows": 5}, when="rows_count > 20", otherwise="drop")
        settled(project)
        assert values(project, "sum") == {"many": {"total": 28, "rows": 28}}
        assert made(project, "sum") == {"few": "dropped", "many": "done"}
        assert not [one for one in parts(project) if one.startswith("few")]

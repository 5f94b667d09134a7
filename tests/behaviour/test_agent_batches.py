"""Conversations that take their turns in batches: rounds, slow tools, the last ones, and what goes wrong on the way."""

import json
from typing import Any

import pytest
from support.batchrun import Make, advance

import agac

TOOLS = """
import sqlite3
import time
from contextlib import closing
from pathlib import Path


def look_up(topic: str) -> str:
    with (Path(__file__).parents[1] / "calls.log").open("a") as log:
        log.write(topic + "\\n")
    return "found " + topic


def wait_up(topic: str) -> str:
    end = time.monotonic() + 20
    with closing(sqlite3.connect(Path(__file__).parents[1] / ".agac/agac.db")) as store:
        while store.execute("SELECT max(id) FROM batch WHERE batch_id IS NOT NULL").fetchone() < (2,):
            if time.monotonic() > end:
                raise TimeoutError("the others were held")
            time.sleep(0.01)
    return "late " + topic
"""
LINE = 'tool:look_up {{"topic": "{0}"}}'


def asks(project: Any, prompts: list[str], *tools: str, **keys: Any) -> None:
    """A workflow of one agent, with a row for each prompt."""
    project.write("tools/made.py", TOOLS)
    project.rows([{"id": f"r{n}", "ask": ask} for n, ask in enumerate(prompts)])
    stage = {"name": "talk", "prompt": "${ask}", "model": "local/echo", "tools": [f"tools/made.py:{t}" for t in tools]}
    project.batched(stage | keys.pop("stage", {}), **keys)


def turns(count: int, row: int) -> str:
    """A text whose model asks for the tool in so many turns."""
    return "\n\n".join([f"row {row}", *(LINE.format(f"{row}-{turn}") for turn in range(count))])


def calls(project: Any) -> list[str]:
    return sorted((project.root / "calls.log").read_text().splitlines())


def test_each_turn_is_a_batch_of_those_that_go_on(batches_at: Make) -> None:
    project = batches_at()
    asks(project, [turns(count, row) for row, count in enumerate([1, 3, 2, 3])], "look_up")
    project.run()
    for _ in range(3):
        project.retrieve()
    assert [tasks for (tasks,) in project.query("SELECT tasks FROM batch ORDER BY id")] == [4, 4, 3, 2]
    project.to_the_end()
    assert project.output(file="summary.json")["complete"]
    assert calls(project) == ["0-0", "1-0", "1-1", "1-2", "2-0", "2-1", "3-0", "3-1", "3-2"]
    assert project.charged()[1] == 13
    project.assert_sound()


def test_a_form_that_is_said_in_words_takes_no_batch_of_its_own(batches_at: Make) -> None:
    project = batches_at(tools_with_schema=False)
    asks(project, [turns(1, row) for row in range(4)], "look_up", stage={"output_schema": {"a": "string"}})
    project.run()
    project.to_the_end()
    assert [tasks for (tasks,) in project.query("SELECT tasks FROM batch ORDER BY id")] == [4, 4]
    assert project.charged()[1] == 8
    assert project.output(file="summary.json")["rows"]["done"] == 4
    project.assert_sound()


def test_the_last_conversations_go_on_by_calls(batches_at: Make) -> None:
    project = batches_at()
    asks(project, [turns(3 if row == 5 else 1, row) for row in range(6)], "look_up", defaults={"batch": {"tail": 0.2}})
    project.run()
    project.to_the_end()
    assert [tasks for (tasks,) in project.query("SELECT tasks FROM batch ORDER BY id")] == [6, 6]
    assert project.output(file="summary.json")["complete"]
    assert project.charged()[1] == 6 + 6 + 2


def test_a_slow_tool_holds_nobody(batches_at: Make) -> None:
    """Its conversation is in a batch after that of the others, which goes out while the tool is at work."""
    project = batches_at()
    prompts = ['wait\ntool:wait_up {"topic": "a"}', *(f'go {n}\ntool:look_up {{"topic": "b{n}"}}' for n in range(3))]
    stage = {"tools": ["tools/made.py:wait_up", "tools/made.py:look_up"]}
    asks(project, prompts, stage=stage, defaults={"batch": {"linger": 0}})
    project.run()
    project.retrieve()
    assert sum(tasks for (tasks,) in project.query("SELECT tasks FROM batch WHERE id > 1")) == 4
    project.to_the_end()
    assert project.output(file="summary.json")["complete"]


@pytest.mark.parametrize("kind", ["batch_omit", "batch_corrupt_line", "batch_line_zero"])
def test_a_turn_that_is_lost_is_asked_again_and_no_tool_with_it(batches_at: Make, kind: str) -> None:
    project = batches_at({"kind": kind, "match": "found 2-0", "first": 1})
    asks(project, [turns(2, row) for row in range(4)], "look_up")
    project.run()
    project.to_the_end()
    assert project.output(file="summary.json")["complete"]
    assert len(calls(project)) == len(set(calls(project))) == 8


def test_a_model_that_fails_gives_way_to_the_next_in_a_new_conversation(batches_at: Make) -> None:
    project = batches_at({"kind": "refusal", "match": "found 2-0", "first": 1})
    stage = {"fallback": ["local/small"]}
    asks(project, [turns(1, row) for row in range(4)], "look_up", stage=stage)
    project.run()
    project.to_the_end()
    assert project.output(file="summary.json")["complete"]
    assert calls(project) == ["0-0", "1-0", "2-0", "2-0", "3-0"]


def test_replies_of_a_batch_that_was_given_up_are_no_turns(batches_at: Make) -> None:
    """They are paid, and the conversations went on with those of another batch."""
    project = batches_at(
        {"kind": "batch_drop_after", "first": 1}, {"kind": "batch_list_lag", "seconds": 5000, "at": [1]}
    )
    asks(project, [turns(1, row) for row in range(3)], "look_up")
    project.run()
    advance(project.server, 6000)
    project.to_the_end()
    assert [one.kind for one in agac.doctor(project=project.root).findings if one.done] == ["given_up"]
    assert project.query("SELECT count(*) FROM agent_turn") == [(6,)]
    assert project.charged()[1] == 9
    project.assert_sound()


def test_a_plan_tells_rounds_and_what_other_ways_cost(batches_at: Make) -> None:
    project = batches_at(prices={"echo": {"input": 1, "output": 2, "cached_input": 0.1, "batch": 0.5, "flex": 0.6}})
    asks(project, [turns(3, row) for row in range(4)], "look_up")
    text = project.agac("plan", "-a", "reviews").out
    assert "about 2 rounds of batches, one a turn, 21 at most: each waits in the provider's queue" in text
    project.run()
    project.retrieve()
    project.rows([{"id": f"r{row}", "ask": turns(3, row)} for row in range(4, 9)])
    assert "about 2 rounds of batches" in project.agac("plan", "-a", "reviews").out  # no conversation has ended yet
    project.rows([{"id": f"r{row}", "ask": turns(3, row)} for row in range(4)])
    project.run(wait=True)
    project.rows([{"id": f"r{row}", "ask": turns(3, row)} for row in range(4, 9)])
    (stage,) = json.loads(project.agac("plan", "-a", "reviews", "--json").out)["stages"]
    rounds, estimate = stage["rounds"], stage["estimate"]
    assert (rounds["expected"], estimate["calls"], estimate["usd_at_most"]) == (4.0, 20, None)
    assert 0 < rounds["batch_usd"] < rounds["flex_usd"] < rounds["sync_usd"]

"""Tools of a workflow: shared, kept for later runs, stood in for, recorded and replayed."""

import json
from typing import Any

import pytest
from support.project import ProjectFolder

import agac
from agac import testing

LOOKUP = """\
from pathlib import Path

def lookup(order: str, more: int = 1) -> dict:
    \"\"\"Looks an order up.\"\"\"
    with Path(__file__).with_name("seen.txt").open("a") as seen:
        seen.write(order + "\\n")
    return {"order": order, "state": "sent"}
"""
SCRIPT: list[dict[str, Any]] = [
    {"turn": 1, "calls": [{"name": "lookup", "arguments": {"order": "A17"}}]},
    {"reply": "It is there."},
]


@pytest.fixture
def shop(project: ProjectFolder) -> ProjectFolder:
    """Two rows whose model looks the same order up."""
    project.configure()
    project.write("tools/orders.py", LOOKUP)
    return project


def ran(shop: ProjectFolder, rules: Any = None, script: Any = SCRIPT, **options: Any) -> agac.RunReport:
    """A run of two rows, with these rules of the tool."""
    tools = {"tools/orders.py:lookup": {"cacheable": True, **(rules or {})}}
    stage = {"name": "answer", "model": "simulator/large", "tools": tools, "prompt": "${text}"}
    shop.workflow(rows=2, stages=[stage])
    with testing.simulator(script=script):
        return shop.run(**options)


def made(shop: ProjectFolder) -> int:
    """How often the tool was really run."""
    file = shop.root / "tools/seen.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


def results(shop: ProjectFolder, run: int) -> list[tuple[Any, ...]]:
    """What the models of a run were told, and from where it came."""
    of_run = "row_key IN (SELECT key FROM row WHERE run_id = ?)"
    return shop.query(f"SELECT DISTINCT result, how FROM tool_call WHERE {of_run} ORDER BY how", run)


SENT, LOST = '{"order":"A17","state":"sent"}', '{"order":"A17","state":"lost"}'


def test_results_are_shared_in_a_run_and_with_persist_kept_for_later_ones(shop: ProjectFolder) -> None:
    assert ran(shop).exit_code == 0
    assert made(shop) == 1
    assert len(results(shop, 1)) == 2  # one was run, the other came along or later
    for run, (rules, options, so_far) in enumerate(
        [
            ({"cache": "persist", "ttl": 3600}, {}, 2),
            ({"cache": "persist", "ttl": 3600}, {}, 2),
            ({"cache": "persist", "ttl": 3600}, {"refresh_tools": True}, 3),
            ({}, {}, 4),
        ],
        2,
    ):
        assert ran(shop, rules, fresh=True, **options).summary["run"] == run
        assert made(shop) == so_far, run
    assert shop.query("SELECT name, result, expires > at FROM tool_cache") == [("lookup", SENT, 1)]
    with shop.changed() as change:
        change("UPDATE tool_cache SET expires = 1")
    ran(shop, {"cache": "persist"}, fresh=True)
    assert made(shop) == 5
    with shop.changed() as change:
        change("UPDATE tool_cache SET at = 1")
    agac.gc(keep_runs=1, project=shop.root)
    assert shop.query("SELECT * FROM tool_cache") == []


def test_a_tool_is_stood_in_for_recorded_and_replayed(shop: ProjectFolder) -> None:
    assert ran(shop, tools_mode="record").exit_code == 0
    recorded = shop.root / "tools/recorded/reviews.jsonl"
    assert [json.loads(line) for line in recorded.read_text().split("\n") if line] == [
        {"tool": "lookup", "arguments": {"more": 1, "order": "A17"}, "result": SENT}
    ]
    shop.write("stubs.yml", 'lookup: {cel: \'{"order": args.order, "state": "lost"}\'}\nother: 1\n')
    for run, (options, result, how) in enumerate(
        [
            ({"tool_stubs": str(shop.root / "stubs.yml")}, LOST, "stub"),
            ({"tool_stubs": str(recorded)}, SENT, "stub"),
            ({"tool_stubs": {"lookup": "gone"}}, "gone", "stub"),
            ({"replay": 2, "fresh": True}, LOST, "replayed"),
        ],
        2,
    ):
        report = ran(shop, **options)
        assert (report.summary["run"], report.exit_code, results(shop, run)) == (run, 0, [(result, how)])
    assert made(shop) == 1
    assert ran(shop).summary["run"] == 1  # whose answers no stub has changed
    other = [{"turn": 1, "calls": [{"name": "lookup", "arguments": {"order": "B2"}}]}, {"reply": "No."}]
    report = ran(shop, script=other, tools_mode="replay", replay=1, fresh=True)
    [error] = {row.error.message for row in report.results() if row.error}
    assert error.startswith('lookup was not called with {"more":1,"order":"B2"} in run 1, and is not now; ')
    assert (report.exit_code, made(shop)) == (3, 1)


COUNTED = """\
from pathlib import Path

def lookup(order: str) -> str:
    with Path(__file__).with_name("seen.txt").open("a") as seen:
        seen.write(order + "\\n")
    return str(len(Path(__file__).with_name("seen.txt").read_text().splitlines()))
"""
CARD = "---\nfunction_tools: tools/orders.py:lookup\n"


def told(shop: ProjectFolder, run: int) -> list[tuple[Any, ...]]:
    """Which results the models of a run were told, by row (of equal ones the first), stage and agent."""
    return shop.query(
        "SELECT replace(row_id, 'a#3', 'a'), stage, agent, c.result FROM v_tool_calls c JOIN v_turns t USING (run, "
        "row_id, occurrence, stage, fingerprint, turn) WHERE run = ? AND tool = 'lookup' "
        "AND NOT (stage = 'thrice' AND agent <> '') ORDER BY 1, 2, 3, 4",  # agents of replicas are told together
        run,
    )


def test_a_replayed_call_gets_what_its_own_row_stage_and_agent_got(shop: ProjectFolder) -> None:
    shop.write("tools/orders.py", COUNTED)
    shop.write("agentcards/boss.md", CARD + "agents: [helper]\n---\nAsk.\n")
    shop.write("agentcards/helper.md", CARD + "tool_only: true\n---\nHelp.\n")
    look = {"name": "lookup", "arguments": {"order": "A17"}}
    script = [
        {"match": "Me", "turn": 1, "calls": [look]},
        {"match": "Do", "turn": 1, "calls": [look, {"name": "agent__helper", "arguments": {"message": "Me"}}]},
        {"match": "Do", "turn": 2, "calls": [look]},
        {"reply": "Done."},
    ]
    stages = [
        {"name": one, "model": "simulator/large", "agent": "boss", "needs": [], "prompt": "Do ${text}: ", "replicas": n}
        for one, n in (("first", 1), ("second", 1), ("thrice", 3))
    ]
    rows = [{"id": "a", "text": text} for text in ("x", "y", "x")]
    for run, options in enumerate(({}, {"fresh": True}, {"replay": 2}, {"replay": 3, "concurrency": 1}), 1):
        for stage in stages:
            stage["prompt"] = f"Do {stage['name']} {run if run > 2 else 0} ${{text}}"
        shop.workflow(stages=stages, rows=rows, input={"on_duplicate_id": "suffix"}, output={"stages": ["second"]})
        with testing.simulator(script=script):
            assert shop.run(**options).exit_code == 0
    assert made(shop) == 2 * 2 * 5 * 3  # of two different rows in two runs: five conversations, each with an agent's
    first, *others = (told(shop, run) for run in (2, 3, 4))
    assert others == [first, first]


def test_what_recording_misses_is_said(shop: ProjectFolder) -> None:
    assert "not_recorded" not in ran(shop, tools_mode="record").invocation
    said = "answers of answer are reused, and no calls recorded for them; --fresh records them all"
    assert ran(shop, tools_mode="record").invocation["not_recorded"] == said
    options = agac.RunOptions(tools_mode="record")
    assert [one.message for one in agac.plan("reviews", options, project=shop.root).warnings] == [said]
    with testing.simulator(script=SCRIPT):
        assert f"\nA{said[1:]}" in shop.agac("run", "reviews", "--tools-mode", "record", code=0).out
    assert "not_recorded" not in ran(shop, tools_mode="record", fresh=True).invocation
    assert "not_recorded" not in ran(shop).invocation


@pytest.mark.parametrize(
    ("options", "stubs", "said"),
    [
        ({"tools_mode": "replay"}, None, "replay needs the run whose tool calls are taken; add --run N to"),
        ({"tools_mode": "live", "replay": 1}, None, "--run 1 is for --tools-mode replay"),
        ({"replay": 9}, None, "--run 9: there is no such run to take calls of tools from"),
        ({"tool_stubs": "none.yml"}, None, "none.yml: cannot be read: No such file or directory"),
        ({"tool_stubs": {"lookup": {"delay": 1}}}, None, "a stub is a value, or one of"),
        ({"tool_stubs": "stubs.yml"}, "[1]", "stubs.yml: holds no stubs"),
        (
            {"tool_stubs": "stubs.yml"},
            "lookup: {file: calls.jsonl}",
            "lookup: line 1 of calls.jsonl is no recorded call",
        ),
        ({"tool_stubs": "calls.jsonl"}, "", "calls.jsonl: line 1 of calls.jsonl is no recorded call"),
    ],
)
def test_what_cannot_stand_in_is_refused(
    options: Any, stubs: str | None, said: str, shop: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(shop.root)
    shop.write("calls.jsonl", '{"tool": 1}\n')
    shop.write("stubs.yml", stubs or "")
    with pytest.raises(agac.UsageError) as caught:
        ran(shop, **options)
    assert said in str(caught.value)


def test_calls_are_replayed_of_a_run_of_the_same_workflow(shop: ProjectFolder) -> None:
    shop.write("workflows/other.yml", "input: data/rows.csv\nstages: [{name: a, prompt: x, model: simulator/small}]\n")
    assert ran(shop).summary["run"] == 1
    assert agac.run("other", project=shop.root).summary["run"] == 2
    for run, said in ((2, "it is a run of other, not of reviews,"), (9, "there is no such run")):
        with pytest.raises(agac.UsageError, match=f"--run {run}: {said} to take calls of tools from"):
            ran(shop, replay=run)
    assert shop.query("SELECT count(*) FROM run") == [(2,)]  # none of which was begun for nothing
    job = ("process", "data/rows.csv", "o.jsonl", "-p", "x", "-m", "simulator/small", "--run", "1")
    assert "--run 1: it is a run of reviews, not of" in shop.agac(*job, code=2).err


def test_a_stub_may_be_for_another_workflow_which_is_said(shop: ProjectFolder) -> None:
    ran(shop)
    shop.write("stubs.yml", "lookup: 1\nlookpu: 1\n")
    options = agac.RunOptions(tool_stubs=str(shop.root / "stubs.yml"))
    warnings = agac.plan("reviews", options, project=shop.root).warnings
    [said] = [one.message for one in warnings if "stage" in one.message]
    assert said.startswith("no stage has a tool 'lookpu'; did you mean 'lookup'?")


def test_what_is_said_of_tools_where_there_are_none_is_said(shop: ProjectFolder) -> None:
    shop.workflow(rows=1)
    for options, flag in (
        ({"tools_mode": "stub"}, "--tools-mode"),
        ({"tool_stubs": {"lookup": 1}}, "--tool-stubs"),
        ({"tools_mode": "live"}, None),
    ):
        report = agac.plan("reviews", agac.RunOptions(**options), project=shop.root)  # type: ignore[arg-type]
        said = [str(one) for one in report.warnings if "no stage has tools" in one.message]
        assert said == ([f"{flag}: warning: has no effect: no stage has tools; leave it out"] if flag else [])


def test_stubs_beside_a_mode_that_asks_none_are_refused(shop: ProjectFolder) -> None:
    ran(shop)
    made = shop.query("SELECT count(*) FROM run")
    with pytest.raises(agac.SpecError) as refused:
        ran(shop, tools_mode="record", tool_stubs={"lookup": 1})
    [said] = refused.value.problems
    assert str(said) == "--tool-stubs: stubs are not asked with --tools-mode record; leave out one of them"
    assert shop.query("SELECT count(*) FROM run") == made

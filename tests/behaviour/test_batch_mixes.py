"""Workflows of every shape, asked in batches: what they end with is what they end with call by call."""

from typing import Any

import pytest
from support.batchrun import BatchProject, Make, advance, failed
from support.server import Faulty, Server
from support.soak import few

import agac

Stage = dict[str, Any]

LABEL = {"sentiment": "positive|neutral|negative", "reason": "string"}
ROWS = [
    {"id": f"r-{n}", "text": f"{('I love', 'I hate', 'It is')[n % 3]} number {n}", "group": f"g{n % 3}", "mail": n // 2}
    for n in range(12)
]
FUNCTIONS = '''
def shout(row):
    return {"loud": row["text"].upper()}


def turned(row):
    return {"back": row["a"][::-1]}


def counted(rows):
    return {"group": rows[0]["group"], "said": [row["a"] for row in rows]}


def every(rows):
    return {"every": [row["b"] for row in rows]}


def look_up(topic: str) -> dict:
    """What is known of a topic."""
    return {"letters": len(topic)}
'''


def stage(name: str, prompt: str | None = None, **keys: Any) -> Stage:
    """A stage whose model says what it is told, so that no two of its answers are alike by chance."""
    asked = {} if prompt is None else {"prompt": prompt, "model": "local/echo"}
    return {"name": name, **asked, **keys}


def label(name: str, prompt: str, **keys: Any) -> Stage:
    """A stage that sorts."""
    return {"name": name, "prompt": prompt, "output_schema": LABEL, **keys}


SYNC, LARGE = {"run_mode": "sync"}, "local/large"

WORKFLOWS: dict[str, list[Stage]] = {
    "branches": [
        label("a", "${text}"),
        stage("b", "B ${text} ${a.sentiment}", needs="a", **SYNC),
        stage("c", "C ${text} ${a.sentiment}", needs="a"),
        stage("d", "D ${b} ${c}", needs=["b", "c"]),
    ],
    "guards": [
        label("a", "${text}"),
        stage("b", "B ${text}", needs="a", when='a.sentiment == "positive"'),
        stage("c", "C ${text}", needs="a", when='a.sentiment == "negative"', **SYNC),
        stage("d", "D ${text}", needs=["b", "c"]),
    ],
    "rows that are dropped": [
        label("a", "${text}"),
        stage("b", "B ${text}", when='a.sentiment == "positive"', otherwise="drop"),
    ],
    "explode": [
        stage("a", "A ${text}", output_schema={"items": ["string"]}, model="local/small"),
        stage("b", "B ${a.items} ${id}", **SYNC),
        stage("c", "C ${item} ${id}", explode="a.items"),
        stage("d", "D ${c}"),
    ],
    "groups": [
        stage("a", "A ${text}"),
        stage("b", "G ${group} ${rows_json}", group_by=["group"]),
        stage("c", "C ${b}"),
    ],
    "a group of all": [
        stage("a", "A ${text}"),
        stage("b", "All ${rows_json}", group_by=[]),
        stage("c", "C ${b}", **SYNC),
    ],
    "a tree of parts": [
        stage("a", "A ${text}", **SYNC),
        stage("b", "G ${rows_json}", group_by=[], reduce={"max_rows": 3}),
        stage("c", "C ${b}"),
    ],
    "dedupe": [
        stage("a", "A ${text}"),
        stage("d", dedupe=["mail"]),
        stage("b", "B ${a}"),
        stage("c", "C ${b}", **SYNC),
    ],
    "replicas": [label("a", "${text}", replicas=3), stage("b", "B ${a} ${text}")],
    "a vote": [label("a", "${text}", replicas=3, vote="sentiment"), stage("b", "B ${a.sentiment} ${text}")],
    "a vote until one leads": [
        stage(
            "a",
            "A ${group} ${mail}",
            output_schema={"pick": "x|y|z", "n": "integer"},
            model="local/small",
            repair=0,
            replicas=8,
            vote={"field": "pick", "lead": 2},
            checks={"a.n % 3 != 0": "has no vote"},
        ),
        stage("b", "B ${a.pick} ${text}"),
    ],
    "functions": [
        {"name": "up", "python": "tools/made.py:shout"},
        stage("a", "A ${up.loud}"),
        {"name": "back", "python": "tools/made.py:turned"},
        stage("b", "B ${back.back}", **SYNC),
        stage("c", "C ${b}"),
    ],
    "rows that a filter drops": [
        label("a", "${text}"),
        {"name": "good", "filter": 'a.sentiment == "positive"'},
        stage("b", "B ${text}"),
    ],
    "rows that fail": [stage("a", "A ${text}", model="local/echo", output_schema=LABEL), stage("b", "B ${a.reason}")],
    "the same prompt": [stage("a", "A ${group}"), stage("b", "B ${a}"), stage("c", "C ${b} ${id}")],
    "agents": [
        stage("a", "A ${text}", tools=["tools/made.py:look_up"]),
        stage("b", "B ${a}", tools=["tools/made.py:look_up"], output_schema={"said": "string"}, model="local/small"),
        stage("c", "C ${b.said} ${group}", **SYNC),
    ],
    "a vote of agents until one leads": [
        stage(
            "a",
            "A ${group}",
            tools=["tools/made.py:look_up"],
            output_schema={"pick": "x|y", "n": "integer"},
            model="local/small",
            replicas=6,
            vote={"field": "pick", "lead": 2},
            escalate={"when": "agreement < 0.9", "model": LARGE},
        ),
    ],
    "escalations": [
        label("a", "${text}", escalate={"when": 'a.sentiment == "negative"', "model": LARGE}),
        label(
            "b",
            "${text}",
            needs="a",
            replicas=3,
            vote="sentiment",
            escalate={"when": "agreement < 1.0", "model": LARGE, "run_mode": "sync"},
        ),
        label("c", "C ${text}", needs="a", escalate={"when": 'c.sentiment == "positive"', "model": LARGE}),
        stage("d", "D ${a} ${b} ${c}", needs=["b", "c"]),
    ],
    "escalations of children and groups": [
        stage(
            "a",
            "A ${text}",
            output_schema={"items": ["string"]},
            model="local/small",
            escalate={"when": "size(a.items) > 1", "model": LARGE, "run_mode": "sync"},
        ),
        label("b", "B ${item} ${id}", explode="a.items", escalate={"when": "index == 0", "model": LARGE}),
        label(
            "c",
            "C ${rows_json}",
            group_by=["group"],
            reduce={"max_rows": 3},
            escalate={"when": 'c.sentiment != "neutral"', "model": LARGE},
        ),
        stage("d", "D ${c.reason} ${group}"),
    ],
    "agents that escalate": [
        stage(
            "a",
            "A ${text}",
            tools=["tools/made.py:look_up"],
            output_schema=LABEL,
            model="local/small",
            escalate={"when": 'a.sentiment == "negative"', "model": LARGE},
        ),
        stage("b", "B ${a.reason}"),
    ],
    "checks": [
        label("a", "${text}", checks={'a.sentiment != "neutral" || int(row.mail) > 4': "take a side"}, repair=2),
        label("b", "B ${a.reason} ${id}", checks={'b.sentiment == "positive"': "be kind", "size(a.reason) > 1": "no"}),
        label(
            "c",
            "C ${text}",
            needs="a",
            replicas=2,
            checks={'c.sentiment != "negative"': "be kind"},
            vote="reason",
            escalate={"when": "agreement < 1.0", "model": LARGE},
        ),
        label(
            "d",
            "D ${rows_json}",
            needs=["b", "c"],
            group_by=["group"],
            reduce={"max_rows": 3},
            checks={'d.sentiment != "neutral"': "take a side"},
        ),
    ],
    "agents that are checked": [
        stage(
            "a",
            "A ${text}",
            tools=["tools/made.py:look_up"],
            output_schema=LABEL,
            model="local/small",
            checks={'a.sentiment == "negative" || row.mail == "0"': "be harsh"},
            repair=2,
        ),
        stage("b", "B ${a.reason}"),
    ],
    "sync between": [
        stage("a", "A ${text}", **SYNC),
        stage("b", "B ${a}"),
        stage("c", "C ${b}", **SYNC),
        stage("d", "D ${c}"),
    ],
    "a function of groups": [
        stage("a", "A ${text}"),
        {"name": "count", "group_by": ["group"], "python": "tools/made.py:counted"},
        stage("b", "B ${group} ${count.said}"),
        {"name": "all", "group_by": [], "python": "tools/made.py:every"},
        stage("c", "C ${all.every}", **SYNC),
    ],
}


def written(project: BatchProject, stages: list[Stage], **keys: Any) -> None:
    project.rows(ROWS)
    project.write("tools/made.py", FUNCTIONS)
    project.batched(*stages, **keys)


FAILING: list[dict[str, Any]] = [
    {"kind": "bad_request", "match": "number 3"},
    {"kind": "refusal", "match": "number 4"},
    {"kind": "length", "match": "number 8"},
    {"kind": "wrong_schema", "match": "number 9"},
]
"""What is refused or answered badly whenever it is asked, by call or in a batch."""

ANTHROPIC = {"dialect": "anthropic", "batch": {"api": "anthropic", "grace": 0.5}}
WAYS: dict[str, list[str]] = {
    "to the end": [*dict.fromkeys([*few(list(WORKFLOWS), 3), "a function of groups"])],
    "one by one": [*dict.fromkeys([*few(list(WORKFLOWS), 8), "checks"])],  # whose replicas fail in different batches
    "waiting": few(["branches", "explode", "a tree of parts", "a vote", "functions"], 2),
    "failing": few(list(WORKFLOWS), 8, first=1),
    "anthropic": ["agents", *few(["branches", "guards", "a tree of parts", "a vote", "functions"], 2)],
}
"""How a workflow goes through its batches, and the workflows that go so."""


@pytest.mark.parametrize(("way", "name"), [(way, name) for way, names in WAYS.items() for name in names])
def test_every_shape_ends_as_call_by_call(batches_at: Make, faulty: Faulty, way: str, name: str) -> None:
    """With errors, what follows from them, and what is asked no more."""
    faults = FAILING if way == "failing" else []
    project = batches_at(*faults, **(ANTHROPIC if way == "anthropic" else {}))
    most = {"one by one": {"max_requests": 5}, "anthropic": {"max_requests": 7}}.get(way, {})
    written(project, WORKFLOWS[name], defaults={"batch": most}, **({"stop_loss": False} if faults else {}))
    report = project.run(wait=way == "waiting")
    opened = "SELECT id FROM batch WHERE state = 'SUBMITTED' ORDER BY id DESC"
    while way == "one by one" and (found := project.query(opened)):
        assert [one["id"] for one in project.retrieve(found[0][0]).ingested] == [found[0][0]]
    if project.query(opened):
        project.to_the_end()
    assert project.query(f"SELECT coalesce(max(tasks), 0) <= {most.get('max_requests', 99)} FROM batch") == [(1,)]
    assert project.output(file="summary.json")["complete"]
    assert way != "waiting" or report.exit_code == 0
    (_, charged), doubles = project.charged(), project.doubles()
    other = faulty(faults)
    project.assert_as_sync(other)
    account = other.account()
    assert charged == account["charged"]
    assert doubles == (account["duplicates"] if way == "anthropic" else 0)  # replicas are the same content there


"""What is refused or answered badly whenever it is asked, by call or in a batch."""


def test_a_result_of_either_way_is_found_by_the_other(batches_at: Make, server: Server) -> None:
    project = batches_at()
    written(project, WORKFLOWS["branches"])
    project.run(limit=4, run_mode="sync")
    calls = project.server.account()["charged"]
    project.run()
    assert project.query("SELECT tasks FROM batch") == [(8,)]
    project.to_the_end()
    project.rows([*ROWS, {"id": "r-99", "text": "I love number 99", "group": "g0", "mail": 99}])
    assert project.run(run_mode="sync").exit_code == 0
    project.assert_as_sync(server)
    assert (project.charged()[1], project.doubles()) == (server.account()["charged"], 0)
    assert project.server.account()["charged"] > calls


def test_equal_prompts_are_enrolled_once(batches_at: Make) -> None:
    project = batches_at()
    written(project, WORKFLOWS["the same prompt"])
    project.run()
    assert project.query("SELECT tasks FROM batch") == [(3,)]
    summary = project.to_the_end().run.summary
    assert [(one["done"], one["reused"]) for one in summary["stages"]] == [(3, 9), (3, 9), (12, 0)]


def test_a_failure_by_a_check_of_its_row_is_not_shared_by_equal_prompts(batches_at: Make, server: Server) -> None:
    project = batches_at()
    written(project, [stage("a", "A ${group}", checks={"size(a) < int(row.mail) + 4": "too long"}, repair=0)])
    project.run()
    project.to_the_end()
    project.assert_as_sync(server)
    assert failed(project) == {"r-0": "CheckFailed", "r-1": "CheckFailed"}
    assert project.output(file="summary.json")["complete"]


def test_equal_prompts_across_two_runs_are_enrolled_once(batches_at: Make, server: Server) -> None:
    """A task that is in a batch of another run of the workflow counts as had."""
    project = batches_at(seconds=100)
    written(project, [stage("a", "A ${text}")])
    project.run(limit=4)
    project.run()
    assert project.query("SELECT run_id, tasks FROM batch ORDER BY id") == [(1, 4), (2, 8)]
    advance(project.server, 100)
    assert project.run().exit_code == 0
    project.assert_ends_as_sync(server, (2, 12))


@pytest.mark.parametrize("mode", ["sync", "batch"])
def test_rows_wait_for_people_between_batches(batches_at: Make, mode: str) -> None:
    project = batches_at(rows=3)
    review = {"name": "approve", "review": {"choices": ["approve", "reject"]}}
    after = stage("reply", "${text}", run_mode=mode)
    project.batched(label("a", "${text}"), review, after)
    assert project.run().rows.open == 3
    project.retrieve()
    items = agac.review_queue(project.root).items
    assert len(items) == 3
    report = project.run()
    assert (report.exit_code, report.rows.open, report.summary["stages"][1]["review"]["waiting"]) == (0, 3, 3)
    agac.decide(project.root, [agac.Decision(one.id, "approve", reviewer="anna") for one in items[:2]])
    project.run()
    project.retrieve()
    report = project.run()
    assert (report.rows.done, report.rows.open) == (2, 1)
    project.assert_sound()

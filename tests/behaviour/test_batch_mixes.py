"""Workflows of every shape, asked in batches: what they end with is what they end with call by call."""

from collections.abc import Iterator
from typing import Any

import pytest
from support.batchrun import BatchProject, Make, advance
from support.server import Faulty, Server
from support.soak import few

Stage = dict[str, Any]

LABEL = {"sentiment": "positive|neutral|negative", "reason": "string"}
ROWS = [
    {"id": f"r-{n}", "text": f"{('I love', 'I hate', 'It is')[n % 3]} number {n}", "group": f"g{n % 3}", "mail": n // 2}
    for n in range(12)
]
FUNCTIONS = """
def shout(row):
    return {"loud": row["text"].upper()}


def turned(row):
    return {"back": row["a"][::-1]}
"""


def stage(name: str, prompt: str | None = None, **keys: Any) -> Stage:
    """A stage whose model says what it is told, so that no two of its answers are alike by chance."""
    asked = {} if prompt is None else {"prompt": prompt, "model": "local/echo"}
    return {"name": name, **asked, **keys}


def label(name: str, prompt: str, **keys: Any) -> Stage:
    """A stage that sorts."""
    return {"name": name, "prompt": prompt, "output_schema": LABEL, **keys}


SYNC = {"run_mode": "sync"}

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
    "sync between": [
        stage("a", "A ${text}", **SYNC),
        stage("b", "B ${a}"),
        stage("c", "C ${b}", **SYNC),
        stage("d", "D ${c}"),
    ],
}


def written(project: BatchProject, stages: list[Stage], **keys: Any) -> None:
    project.rows(ROWS)
    project.write("tools/made.py", FUNCTIONS)
    project.batched(*stages, **keys)


@pytest.fixture
def project(batches_at: Make) -> Iterator[BatchProject]:
    """A project whose server is its own; the measure is asked at another."""
    made = batches_at()
    yield made
    assert made.doubles() == 0


@pytest.mark.parametrize("name", WORKFLOWS)
def test_every_shape_ends_as_call_by_call(project: BatchProject, server: Server, name: str) -> None:
    written(project, WORKFLOWS[name])
    assert project.run().exit_code == 0
    project.to_the_end()
    _, charged = project.charged()
    project.assert_as_sync(server)
    assert charged == server.account()["charged"]


@pytest.mark.parametrize("name", few(list(WORKFLOWS), 4))
def test_in_small_batches_that_are_taken_one_by_one(project: BatchProject, server: Server, name: str) -> None:
    written(project, WORKFLOWS[name], defaults={"batch": {"max_requests": 5}})
    project.run()
    for _ in range(80):
        open_ = project.query("SELECT id FROM batch WHERE state = 'SUBMITTED' ORDER BY id DESC")
        if not open_:
            break
        report = project.retrieve(open_[0][0])
        assert [one["id"] for one in report.ingested] == [open_[0][0]]
    assert report.run is not None
    assert report.run.summary["complete"], report.message
    assert project.query("SELECT max(tasks) FROM batch")[0][0] <= 5
    _, charged = project.charged()
    project.assert_as_sync(server)
    assert charged == server.account()["charged"]


@pytest.mark.parametrize("name", few(["branches", "explode", "a tree of parts", "a vote", "functions"], 2))
def test_waiting_for_all_of_it(project: BatchProject, server: Server, name: str) -> None:
    written(project, WORKFLOWS[name])
    report = project.run(wait=True)
    assert (report.exit_code, report.summary["complete"]) == (0, True)
    project.assert_as_sync(server)


FAILING: list[dict[str, Any]] = [
    {"kind": "bad_request", "match": "number 3"},
    {"kind": "refusal", "match": "number 4"},
    {"kind": "length", "match": "number 8"},
    {"kind": "wrong_schema", "match": "number 9"},
]
"""What is refused or answered badly whenever it is asked, by call or in a batch."""


@pytest.mark.parametrize("name", few(list(WORKFLOWS), 4, first=1))
def test_rows_that_fail_fail_alike(batches_at: Make, faulty: Faulty, name: str) -> None:
    """Errors, what follows from them, and what is asked no more."""
    project = batches_at(*FAILING)
    written(project, WORKFLOWS[name], stop_loss=False)
    project.run()
    if project.query("SELECT count(*) FROM batch WHERE state = 'SUBMITTED'") != [(0,)]:
        project.to_the_end()
    _, charged = project.charged()
    other = faulty(FAILING)
    project.assert_as_sync(other)
    assert charged == other.account()["charged"]


@pytest.mark.parametrize("name", few(["branches", "guards", "a tree of parts", "a vote", "functions"], 2))
def test_batches_of_anthropic_end_as_calls_do(batches_at: Make, server: Server, name: str) -> None:
    project = batches_at(dialect="anthropic", batch={"api": "anthropic", "grace": 0.5})
    written(project, WORKFLOWS[name], defaults={"batch": {"max_requests": 7}})
    project.run()
    project.to_the_end()
    (_, charged), doubles = project.charged(), project.doubles()
    project.assert_as_sync(server)
    account = server.account()
    assert (charged, doubles) == (account["charged"], account["duplicates"])  # replicas are the same content here


def test_a_result_of_either_way_is_found_by_the_other(project: BatchProject, server: Server) -> None:
    written(project, WORKFLOWS["branches"])
    project.run(limit=4, run_mode="sync")
    calls = project.server.account()["charged"]
    project.run()
    assert project.query("SELECT tasks FROM batch") == [(8,)]
    project.to_the_end()
    project.rows([*ROWS, {"id": "r-99", "text": "I love number 99", "group": "g0", "mail": 99}])
    assert project.run(run_mode="sync").exit_code == 0
    project.assert_as_sync(server)
    assert project.charged()[1] == server.account()["charged"]
    assert project.server.account()["charged"] > calls


def test_equal_prompts_are_enrolled_once(project: BatchProject, server: Server) -> None:
    written(project, WORKFLOWS["the same prompt"])
    project.run()
    assert project.query("SELECT tasks FROM batch") == [(3,)]
    report = project.to_the_end()
    assert report.run is not None
    assert [(one["done"], one["reused"]) for one in report.run.summary["stages"]] == [(3, 9), (3, 9), (12, 0)]
    project.assert_as_sync(server)


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

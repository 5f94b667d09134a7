"""`run_mode` and `batch`: each key of the strongest level that has it, and the place where it stands."""

from typing import Any

import pytest

from agac.core.errors import Where
from agac.plan.checks import resolve_models
from agac.providers.table import SHIPPED
from agac.spec.workflow import BatchRules, DayTime, Overrides, WrittenStage

INPUT = "input: {path: data/reviews.csv}\n"


def batch_levels(stage: WrittenStage) -> dict[str, str]:
    """Who said how batches are made, where anybody did."""
    return {key: level for key, level in stage.levels.items() if key == "run_mode" or key.startswith("batch.")}


def test_who_says_nothing_asks_in_sync_mode(tree: Any) -> None:
    stage = tree.stage("{name: a}")
    assert (stage.run_mode, stage.batch, batch_levels(stage)) == ("sync", BatchRules(), {})


@pytest.mark.parametrize(
    ("written", "rules"),
    [
        ("max_requests: 7", BatchRules(max_requests=7)),
        ("max_bytes: 500", BatchRules(max_bytes=500)),
        ("max_bytes: 100MB", BatchRules(max_bytes=100_000_000)),
        ("max_bytes: 1.5 kB", BatchRules(max_bytes=1_500)),
        ("max_bytes: 64MiB", BatchRules(max_bytes=64 * 2**20)),
        ("completion_window: 24h", BatchRules(completion_window="24h")),
        ("poll_interval: 5m", BatchRules(poll_interval=300.0)),
        ("grace: 0", BatchRules(grace=0.0)),
        ("retry: sync", BatchRules(retry="sync")),
        ("max_rounds: 9", BatchRules(max_rounds=9)),
        ("deadline: 8h", BatchRules(deadline=28_800.0)),
        ("deadline: 90", BatchRules(deadline=90.0)),
        ("deadline: 07:30", BatchRules(deadline=DayTime(7, 30))),
        ("deadline: '7:05', on_deadline: wait", BatchRules(deadline=DayTime(7, 5), on_deadline="wait")),
        ("deadline: 0:00", BatchRules(deadline=DayTime(0, 0))),
        ("stuck_after: 1d", BatchRules(stuck_after=86_400.0)),
    ],
)
def test_each_key_is_read(tree: Any, written: str, rules: BatchRules) -> None:
    assert tree.stage(f"{{name: a, run_mode: batch, batch: {{{written}}}}}").batch == rules
    assert tree.stage_problems(f"{{name: a, run_mode: batch, batch: {{{written}}}}}") == []


def test_levels_are_merged_key_by_key(tree: Any) -> None:
    tree.write(
        "agac.yml",
        "defaults:\n  model: simulator/small\n  run_mode: batch\n"
        "  batch: {max_requests: 1, max_rounds: 1, grace: 1, retry: fail}\n",
    )
    head = "defaults:\n  batch: {max_requests: 2, max_rounds: 2}\n"
    stage = tree.stage("{name: a, batch: {max_requests: 3}}", head=head)
    assert (stage.run_mode, stage.batch) == ("batch", BatchRules(max_requests=3, max_rounds=2, grace=1.0, retry="fail"))
    assert batch_levels(stage) == {
        "run_mode": "project",
        "batch.max_requests": "stage",
        "batch.max_rounds": "defaults",
        "batch.grace": "project",
        "batch.retry": "project",
    }
    assert stage.at("batch.max_requests") == Where("workflows/w.yml", 5, 37, "stages[0].batch.max_requests")
    assert stage.at("batch.max_rounds") == Where("workflows/w.yml", 2, 40, "defaults.batch.max_rounds")
    assert stage.at("batch.grace") == Where("agac.yml", 4, 50, "defaults.batch.grace")
    assert stage.at("run_mode") == Where("agac.yml", 3, 13, "defaults.run_mode")


def test_a_problem_with_a_default_stands_where_the_default_does(tree: Any) -> None:
    head = "defaults:\n  run_mode: batch\n  batch: {on_deadline: wait}\n"
    message = "says what happens at the deadline; add deadline, or remove on_deadline"
    assert tree.stage_problems("{name: a}", head=head) == [
        f"workflows/w.yml:3:24: defaults.batch.on_deadline: {message}"
    ]


def test_a_fallback_of_the_defaults_is_named_as_theirs(tree: Any) -> None:
    tree.write("agac.yml", "defaults: {model: simulator/small, fallback: [nobody/x]}\n")
    _, problems = resolve_models(tree.workflow(INPUT + "stages: [{name: a}]\n"), SHIPPED)
    assert str(problems[0]).startswith("agac.yml:1:46: defaults.fallback: ")


def test_a_deadline_of_the_defaults_goes_with_what_a_stage_does_at_it(tree: Any) -> None:
    head = "defaults: {run_mode: batch, batch: {deadline: 8h}}\n"
    stage = tree.stage("{name: a, batch: {on_deadline: wait}}", head=head)
    assert (stage.batch.deadline, stage.batch.on_deadline) == (28_800.0, "wait")


def test_the_command_line_says_the_mode_of_all_stages(tree: Any) -> None:
    text = INPUT + "stages:\n  - {name: a, run_mode: batch, batch: {max_requests: 5}}\n  - {name: b}\n"
    sync, problems = tree.load(text, Overrides(run_mode="sync"))
    assert [stage.run_mode for stage in sync.stages] == ["sync", "sync"]
    assert problems == []  # nobody is told off for what the command line turned off
    batch = tree.workflow(text, Overrides(run_mode="batch"))
    assert [stage.run_mode for stage in batch.stages] == ["batch", "batch"]
    assert (batch.stages[0].batch.max_requests, batch.stages[1].at("run_mode")) == (5, Where("--run-mode"))


def test_a_stage_that_asks_no_model_is_not_meant_by_the_defaults(tree: Any) -> None:
    stage = tree.stage("{name: a, filter: 'true'}", head="defaults: {run_mode: batch}\n")
    assert stage.run_mode == "sync"

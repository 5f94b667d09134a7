"""Keys of stages and of `output`: what they are read as, each from the strongest level that has it."""

from typing import Any

import pytest
from support.tree import Tree

from agac.core.errors import UsageError, Where
from agac.core.types import DayTime
from agac.plan.plan import Selection, make_plan
from agac.plan.resolved_models import resolve_models
from agac.providers.known_providers import SHIPPED
from agac.spec.data_specs import TableTarget
from agac.spec.operations import Vote
from agac.spec.project import Overrides
from agac.spec.rules import BatchRules

INPUT = "input: {path: data/reviews.csv}\n"


def batch_levels(stage: Any) -> dict[str, str]:
    """Who said how batches are made, where anybody did."""
    return {key: level for key, level in stage.levels.items() if key == "run_mode" or key.startswith("batch.")}


RULES = {
    "max_requests: 7": BatchRules(max_requests=7),
    "max_bytes: 500": BatchRules(max_bytes=500),
    "max_bytes: 100MB": BatchRules(max_bytes=100_000_000),
    "max_bytes: 1.5 kB": BatchRules(max_bytes=1_500),
    "max_bytes: 64MiB": BatchRules(max_bytes=64 * 2**20),
    "completion_window: 24h": BatchRules(completion_window="24h"),
    "poll_interval: 5m": BatchRules(poll_interval=300.0),
    "grace: 0": BatchRules(grace=0.0),
    "retry: sync": BatchRules(retry="sync"),
    "max_rounds: 9": BatchRules(max_rounds=9),
    "deadline: 8h": BatchRules(deadline=28_800.0),
    "deadline: 90": BatchRules(deadline=90.0),
    "deadline: 07:30": BatchRules(deadline=DayTime(7, 30)),
    "deadline: '7:05', on_deadline: wait": BatchRules(deadline=DayTime(7, 5), on_deadline="wait"),
    "deadline: 0:00": BatchRules(deadline=DayTime(0, 0)),
    "stuck_after: 1d": BatchRules(stuck_after=86_400.0),
}


def test_each_key_of_batch_is_read(tree: Tree) -> None:
    stages = [f"{{name: s{n}, run_mode: batch, batch: {{{rule}}}}}" for n, rule in enumerate(RULES)]
    assert [stage.settings.batch for stage in tree.stages(*stages)] == list(RULES.values())
    [plain] = tree.stages("{name: a}")
    assert (plain.settings.run_mode, plain.settings.batch, batch_levels(plain)) == ("sync", BatchRules(), {})
    [local] = tree.stages("{name: a, filter: 'true'}", head="defaults: {run_mode: batch}\n")
    assert local.settings.run_mode == "sync", "a stage that asks no model is not meant by the defaults"


def test_levels_are_merged_key_by_key(tree: Tree) -> None:
    tree.write(
        "agac.yml",
        "defaults:\n  model: simulator/small\n  run_mode: batch\n"
        "  batch: {max_requests: 1, max_rounds: 1, grace: 1, retry: fail}\n",
    )
    head = "defaults:\n  batch: {max_requests: 2, max_rounds: 2}\n"
    [stage] = tree.stages("{name: a, batch: {max_requests: 3}}", head=head)
    rules = BatchRules(max_requests=3, max_rounds=2, grace=1.0, retry="fail")
    assert (stage.settings.run_mode, stage.settings.batch) == ("batch", rules)
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


def test_a_problem_with_a_default_is_named_as_the_defaults_key(tree: Tree) -> None:
    head = "defaults:\n  run_mode: batch\n  batch: {on_deadline: wait}\n"
    message = "says what happens at the deadline; add deadline, or remove on_deadline"
    assert tree.stage_problems("{name: a}", head=head) == [
        f"workflows/w.yml:3:24: defaults.batch.on_deadline: {message}"
    ]
    head = "defaults: {run_mode: batch, batch: {deadline: 8h}}\n"
    [stage] = tree.stages("{name: a, batch: {on_deadline: wait}}", head=head)
    rules = stage.settings.batch
    assert (rules.deadline, rules.on_deadline) == (28_800.0, "wait"), "what the defaults say goes with it"
    tree.write("agac.yml", "defaults: {model: simulator/small, fallback: [nobody/x]}\n")
    _, problems = resolve_models(tree.workflow(INPUT + "stages: [{name: a}]\n"), SHIPPED)
    assert str(problems[0]).startswith("agac.yml:1:46: defaults.fallback: ")


def test_the_command_line_says_the_mode_of_all_stages(tree: Tree) -> None:
    text = INPUT + "stages:\n  - {name: a, run_mode: batch, batch: {max_requests: 5}}\n  - {name: b}\n"
    sync, problems = tree.load(text, Overrides(run_mode="sync"))
    assert sync is not None
    assert [stage.settings.run_mode for stage in sync.stages] == ["sync", "sync"]
    assert problems == [], "what the command line turned off is no mistake"
    batch = tree.workflow(text, Overrides(run_mode="batch"))
    assert [stage.settings.run_mode for stage in batch.stages] == ["batch", "batch"]
    assert (batch.stages[0].settings.batch.max_requests, batch.stages[1].at("run_mode")) == (5, Where("--run-mode"))


SHAPE = 'output_schema: {label: "a|b", inner: {deep: string}, list: "string[]"}'


def test_replicas_and_the_field_that_they_vote_by(tree: Tree) -> None:
    stages = tree.stages(
        "{name: a}",
        "{name: b, replicas: 100}",
        f"{{name: c, replicas: 3, vote: inner.deep, {SHAPE}}}",
        "{name: d, replicas: 3, vote: said, output_field: said}",
        "{name: e, replicas: 3, vote: any, output_schema: {type: object}}",
    )
    votes = [(1, None), (100, None), (3, "inner.deep"), (3, "said"), (3, "any")]
    assert [(stage.replicas, stage.vote and stage.vote.body()) for stage in stages] == votes


def test_a_vote_that_says_more_than_a_field(tree: Tree) -> None:
    stages = tree.stages(
        f"{{name: a, replicas: 9, vote: {{field: label, lead: 3}}, {SHAPE}}}",
        "{name: b, replicas: 9, vote: {lead: 9, match: structured, max_length: 40}}",
        "{name: c, replicas: 2, vote: {match: normalized}}",
    )
    bodies = [stage.vote.body() for stage in stages if stage.vote is not None]
    assert bodies == [{"field": "label", "lead": 3}, {"lead": 9, "match": "structured", "max_length": 40},
                      {"match": "normalized"}]  # fmt: skip
    assert [Vote.of(body) for body in [*bodies, "label"]] == [*(stage.vote for stage in stages), Vote("label")]


@pytest.mark.parametrize(
    ("vote", "said"),
    [
        ("{lead: 4}", "nothing leads by 4 votes of 3; raise replicas, or lower the lead"),
        ("{lead: 0}", "at least 1"),
        ("{field: lable}", "the results have no field 'lable'; did you mean 'label'"),
        ("{match: fuzzy}", "exact"),
        ("{max_length: 0}", "at least 1"),
        ("{}", "is empty; give field, lead, match or max_length"),
        ("3", "expected the name of a field, or a mapping with field and lead"),
    ],
)
def test_votes_that_cannot_be(tree: Tree, vote: str, said: str) -> None:
    (problem,) = tree.problems(f"{INPUT}stages:\n  - {{name: a, replicas: 3, vote: {vote}, {SHAPE}}}\n")
    assert said in str(problem)


@pytest.mark.parametrize(
    ("keys", "seed"), [("model: 'simulator/small?seed=4'", 4), ("fallback: ['simulator/large?seed=5']", 5)]
)
def test_nobody_else_sets_a_seed(tree: Tree, keys: str, seed: int) -> None:
    workflow = tree.workflow(f"{INPUT}stages:\n  - {{name: a, prompt: x, replicas: 3, {keys}}}\n")
    _, problems = resolve_models(workflow, SHIPPED)
    said = f"replicas gives each call its own seed, from 1 to 3, and the model is given seed={seed} too; "
    assert [str(problem) for problem in problems] == [
        f"workflows/w.yml:3:36: stages[0].replicas: {said}remove the seed, or replicas"
    ]


def test_a_field_that_a_python_schema_lacks_is_an_error_before_the_run(tree: Tree) -> None:
    tree.write("shapes.py", "from pydantic import BaseModel\nclass Shape(BaseModel):\n    label: str\n")
    keys = "replicas: 3, vote: lable, output_schema: 'python:shapes.Shape'"
    workflow = tree.workflow(f"{INPUT}stages:\n  - {{name: a, {keys}}}\n")
    models, _ = resolve_models(workflow, SHIPPED)
    with pytest.raises(UsageError, match="have no field 'lable'; did you mean 'label'"):
        make_plan(workflow, models, tree.root, Selection(), None)


def output(tree: Tree, text: str) -> Any:
    return tree.workflow(f"{INPUT}stages: [{{name: a}}]\noutput: {text}\n").output


def test_what_is_written_beside_the_json_files(tree: Tree) -> None:
    found = output(tree, "{dir: out}")
    assert (found.formats, found.to, found.merge, found.csv_safe) == ((), None, None, False)
    assert output(tree, "{format: csv}").formats == ("csv",)
    assert output(tree, "{format: [tsv, parquet, tsv]}").formats == ("tsv", "parquet")
    to = TableTarget(tree.root.resolve() / "data/out.db", "data/out.db", "my results")
    assert output(tree, "{to: 'sqlite://data/out.db?table=my+results'}").to == to
    assert output(tree, "{to: 'sqlite://data/../data/out.db?table=my%20results'}").to == to


def test_a_wrong_folder_and_a_wrong_table_are_reported_at_once(tree: Tree) -> None:
    found = tree.problems(INPUT + "stages: [{name: a}]\noutput: {dir: ., to: out.db}\n")
    assert [problem.split(": ")[1] for problem in found] == ["output.dir", "output.to"]


@pytest.mark.parametrize("query", ["SELECT * FROM reviews", 'SELECT id FROM x JOIN "Reviews" USING (id)'])
def test_the_table_that_rows_come_from_is_no_place_for_results(tree: Tree, query: str) -> None:
    tree.write("data/x.db", b"SQLite format 3\0")
    source = f"input: {{path: 'sqlite://data/x.db?query={query}', id_field: id}}\nstages: [{{name: a}}]\n"
    for table, wrong in (("reviews", True), ("reviews_out", False)):
        problems = tree.problems(f"{source}output: {{to: 'sqlite://data/x.db?table={table}'}}\n")
        assert any("output.to: the input reads the table 'reviews'" in problem for problem in problems) is wrong

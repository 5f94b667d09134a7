"""`replicas` and `vote` of a stage: what they may be, and every problem with them in words."""

from typing import Any

import pytest

from agac.core.errors import UsageError
from agac.plan.checks import resolve_models
from agac.plan.plan import Selection, make_plan
from agac.providers.table import build_providers

SHAPE = 'output_schema: {label: "a|b", inner: {deep: string}, list: "string[]"}'


@pytest.mark.parametrize(
    ("keys", "replicas", "vote"),
    [
        ("prompt: x", 1, None),
        ("prompt: x, replicas: 1", 1, None),
        ("prompt: x, replicas: 2", 2, None),
        ("prompt: x, replicas: 100", 100, None),
        (f"prompt: x, replicas: 3, vote: label, {SHAPE}", 3, "label"),
        (f"prompt: x, replicas: 3, vote: inner.deep, {SHAPE}", 3, "inner.deep"),
        ("prompt: x, replicas: 3, vote: said, output_field: said", 3, "said"),
        ("prompt: x, replicas: 3, vote: any, output_schema: {type: object}", 3, "any"),
    ],
)
def test_what_they_may_be(tree: Any, keys: str, replicas: int, vote: str | None) -> None:
    stage = tree.stage(f"{{name: a, {keys}}}")
    assert (stage.replicas, stage.vote) == (replicas, vote)


REFUSED = [
    ("prompt: x, replicas: 0", "stages[0].replicas"),
    ("prompt: x, replicas: 101", "stages[0].replicas"),
    ("prompt: x, replicas: many", "stages[0].replicas"),
    ("prompt: x, replicas: 2.5", "stages[0].replicas"),
    ("prompt: x, vote: a, output_field: a", "vote chooses among several answers; add `replicas: 3`, or remove vote"),
    (f"prompt: x, replicas: 1, vote: label, {SHAPE}", "vote chooses among several answers; add `replicas: 3`"),
    (f"prompt: x, replicas: 3, vote: lable, {SHAPE}", "the results have no field 'lable'; did you mean 'label'?"),
    (f"prompt: x, replicas: 3, vote: zzz, {SHAPE}", "the results have no field 'zzz'; fields: inner, label, list"),
    (f"prompt: x, replicas: 3, vote: inner.dep, {SHAPE}", "inner of the results has no field 'dep'; did you mean"),
    (f"prompt: x, replicas: 3, vote: label.b, {SHAPE}", "label of the results has no fields; vote for one that"),
    (f"prompt: x, replicas: 3, vote: list.b, {SHAPE}", "list of the results has no fields"),
    ("prompt: x, replicas: 3, vote: a, output_schema: {type: array}", "the results have no fields; vote for one that"),
    ("prompt: x, replicas: 3, vote: other, output_field: said", "the results have no field 'other'; fields: said"),
    ("prompt: x, replicas: 3, vote: label", "these are plain text; add output_field or output_schema"),
    (f"prompt: x, replicas: 3, vote: a..b, {SHAPE}", "'a..b' is no field of a result; write it as `label`"),
    ("select: [review], replicas: 3", "a stage with select asks no model; remove replicas"),
    ("select: [review], replicas: 3, vote: a", "a stage with select asks no model; remove vote"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "expected"), REFUSED)
def test_words_of_what_cannot_be(tree: Any, keys: str, expected: str) -> None:
    found = tree.stage_problems(f"{{name: a, {keys}}}")
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("model: 'simulator/small?seed=4'", "the model is given seed=4 too; remove the seed, or replicas"),
        ("fallback: ['simulator/large?seed=5']", "the model is given seed=5 too; remove the seed, or replicas"),
    ],
)
def test_nobody_else_sets_a_seed(tree: Any, keys: str, said: str) -> None:
    head = "input: {path: data/reviews.csv}\nstages:\n  - {name: a, prompt: x, replicas: 3, "
    workflow = tree.workflow(f"{head}{keys}}}\n")
    providers, _ = build_providers({}, {})
    _, problems = resolve_models(workflow, providers)
    assert [str(problem) for problem in problems] == [
        f"workflows/w.yml:3:36: stages[0].replicas: replicas gives each call its own seed, from 1 to 3, and {said}"
    ]


def test_a_field_that_a_python_schema_lacks_is_an_error_before_the_run(tree: Any) -> None:
    tree.write("shapes.py", "from pydantic import BaseModel\nclass Shape(BaseModel):\n    label: str\n")
    head = "input: {path: data/reviews.csv}\nstages:\n  - {name: a, prompt: x, replicas: 3, vote: lable, "
    workflow = tree.workflow(f"{head}output_schema: 'python:shapes.Shape'}}\n")
    models, _ = resolve_models(workflow, build_providers({}, {})[0])
    with pytest.raises(UsageError, match="have no field 'lable'; did you mean 'label'"):
        make_plan(workflow, models, tree.root, Selection(), None)

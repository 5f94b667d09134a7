"""Every mapping of every file refuses a key that it does not know, wherever it stands."""

from dataclasses import fields
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from agac.api.job_files import JobFile
from agac.core.errors import Path_, key_path
from agac.spec.card_models import CARD_MODELS
from agac.spec.default_models import BatchFile, DefaultsFile
from agac.spec.file_model import FileModel
from agac.spec.model_errors import known_keys, validate
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.project_models import ProjectFile
from agac.spec.stage_keys import SAME, merged, set_keys, value_of
from agac.spec.workflow import Stage, StageSettings
from agac.spec.yaml import Document, parse_yaml


def _bare(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _bare(next(arg for arg in get_args(annotation) if arg is not type(None)))
    return annotation


def _mappings(model: type[BaseModel], path: Path_ = ()) -> list[tuple[type[BaseModel], Path_]]:
    """Each model that a file may hold, with a path at which it stands."""
    found = [(model, path)]
    for name, field in model.model_fields.items():
        kind = _bare(field.annotation)
        here: Path_ = (*path, name)
        if get_origin(kind) is list:
            kind, here = _bare(get_args(kind)[0]), (*here, 0)
        elif get_origin(kind) is dict:
            kind, here = _bare(get_args(kind)[1]), (*here, "thing")
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += _mappings(kind, here)
    return found


ALL = [
    pytest.param(top, model, path, id=f"{top.__name__}-{key_path(path) or 'top'}")
    for top in (ProjectFile, WorkflowFile, *CARD_MODELS.values())
    for model, path in _mappings(top)
]
FIELDS = [
    pytest.param(top, path, name, id=f"{top.__name__}-{key_path((*path, name))}")
    for top in (ProjectFile, WorkflowFile, *CARD_MODELS.values())
    for model, path in _mappings(top)
    for name in model.model_fields
]


def _file(path: Path_, key: str, value: str) -> Document:
    """A file that holds `key: value` at `path`, one key or list item a line."""
    lines: list[str] = []
    indent, dash = "", ""
    for part in path:
        if isinstance(part, int):
            dash = "- "
            continue
        lines.append(f"{indent}{dash}{part}:")
        indent, dash = indent + "  " * (1 + bool(dash)), ""
    return parse_yaml("\n".join([*lines, f"{indent}{dash}{key}: {value}"]) + "\n", "f.yml")


def _of(problems: list[Any], path: Path_) -> list[str]:
    return [problem.message for problem in problems if problem.path == key_path(path)]


@pytest.mark.parametrize(("top", "model", "path"), ALL)
def test_a_junk_key_is_refused_with_the_keys_that_exist(
    top: type[BaseModel], model: type[BaseModel], path: Path_
) -> None:
    document = _file(path, "qqqqqq", "1")
    _, problems = validate(top, document)
    assert issubclass(model, FileModel)
    config = model.model_config
    assert (config["strict"], config["frozen"], config["extra"]) == (True, True, "forbid")
    assert _of(problems, (*path, "qqqqqq")) == [f"unknown key; known keys: {', '.join(model.model_fields)}"]
    [problem] = [problem for problem in problems if problem.path.endswith("qqqqqq")]
    assert problem.where == document.where((*path, "qqqqqq"), key=True)


OF_WHICH_NULL_MEANS_SOMETHING = ("streaming_timeout", "on_short_record")


@pytest.mark.parametrize(("top", "path", "name"), FIELDS)
def test_a_transposed_key_is_refused_with_the_one_that_was_meant_and_a_key_needs_a_value(
    top: type[BaseModel], path: Path_, name: str
) -> None:
    typo = name[0] + name[2] + name[1] + name[3:] if len(name) > 2 and name[1] != name[2] else name + "x"
    known = known_keys(top, path)
    assert name in known
    assert typo not in known
    _, problems = validate(top, _file(path, typo, "1"))
    [message] = _of(problems, (*path, typo))
    assert message == f"unknown key; did you mean {name!r}?"
    _, problems = validate(top, _file(path, name, ""))
    if name not in OF_WHICH_NULL_MEANS_SOMETHING:
        assert _of(problems, (*path, name)) == ["has no value; give one or remove the key"]


OF_JOBS = [
    pytest.param(JobFile, model, path, id=f"JobFile-{key_path(path) or 'top'}") for model, path in _mappings(JobFile)
]


@pytest.mark.parametrize(("top", "model", "path"), [*ALL, *OF_JOBS])
def test_null_is_no_value_given_for_every_key_that_may_be_left_out(
    top: type[BaseModel], model: type[BaseModel], path: Path_
) -> None:
    """And a key with nothing behind it is still one whose value was forgotten."""
    for name, field in model.model_fields.items():
        key = field.alias or name
        if key in OF_WHICH_NULL_MEANS_SOMETHING:
            continue
        missing = ["has no value; give one or remove the key"]
        assert _of(validate(top, _file(path, key, ""))[1], (*path, key)) == missing
        told = _of(validate(top, _file(path, key, "null"))[1], (*path, key))
        assert told == (missing if field.is_required() else []), key


RESOLVED = {
    *("model", "backend", "temperature", "max_tokens", "timeout", "fallback", "agent", "enabled", "when", "processes"),
    *("python", "filter", "select", "rename", "dedupe", "review", "group_by", "reduce", "incomplete"),
    *("instructions", "template", "messages", "output_schema", "visible", "syntax"),
    *("tools", "max_turns", "tools_mode", "tool_stubs", "on_tool_failure"),
    *("reads", "skills", "expect", "escalate"),
}
"""Keys of stages that stand in a Stage under other names, for they name files, models, expressions or operations; and
`syntax`, of which a compiled template has nothing left to say; `escalate` is a stage of its own."""


def test_every_other_key_of_a_stage_is_a_field_of_a_stage_with_the_same_default() -> None:
    held = {one.name: one.default for one in (*fields(Stage), *fields(StageSettings))}
    assert StageFile.model_fields.keys() - held.keys() == RESOLVED
    for name in sorted(SAME):
        assert name == "name" or value_of(StageFile.model_fields[name].get_default()) == held[name], name


def test_levels_are_merged_by_the_keys_that_they_set() -> None:
    project = DefaultsFile(repair=5, reuse="row", batch=BatchFile(max_rounds=2, retry="sync"))
    stage = StageFile(name="a", repair=1, batch=BatchFile(retry="batch"))
    keys = merged(DefaultsFile, project, DefaultsFile(), stage)
    assert (keys.repair, keys.reuse, keys.json_repair) == (1, "row", False)
    assert (keys.batch.max_rounds, keys.batch.retry, keys.batch.stuck_after) == (2, "batch", 6 * 3600)
    assert sorted(set_keys(keys)) == ["batch", "batch.max_rounds", "batch.retry", "repair", "reuse"]

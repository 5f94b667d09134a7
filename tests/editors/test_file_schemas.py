"""The JSON Schemas of agac's own files: they take what agac takes, and say what the models say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match
from support.project import ProjectFolder

from agac import api
from agac.core.errors import UsageError
from agac.providers.known_providers import SHIPPED
from agac.providers.model_string import parse_model
from agac.spec.card_models import CARD_MODELS, model_of
from agac.spec.file_model import FileModel
from agac.spec.models import WorkflowFile
from agac.spec.project_models import ProjectFile
from agac.spec.test_files import WorkflowTestFile

ROOT = Path(__file__).resolve().parents[2]
KINDS: dict[str, tuple[type[FileModel], ...]] = {
    "workflow": (WorkflowFile,), "project": (ProjectFile,), "card": (*CARD_MODELS.values(),),
    "test": (WorkflowTestFile,),
}  # fmt: skip
SCHEMAS: dict[str, dict[str, Any]] = {kind: api.file_schema(kind) for kind in KINDS}
STAGES: dict[str, Any] = {"stages": [{"name": "classify"}]}


# fmt: off
KEYWORDS = {
    "$schema", "$ref", "title", "description", "type", "properties", "patternProperties", "additionalProperties",
    "propertyNames", "required", "definitions", "items", "minItems", "minLength", "minProperties",
    "anyOf", "enum", "const", "default", "examples", "pattern", "minimum", "maximum", "exclusiveMinimum",
    "patternErrorMessage",  # of the language servers: what they say instead of the pattern
}
# fmt: on


def faults(kind: str, data: Any) -> list[str]:
    """What is wrong; of a value with several forms what is wrong in the one that it has, as editors say it."""
    found = Draft7Validator(SCHEMAS[kind]).iter_errors(data)
    return [str(getattr(best_match([error]), "message", "")) for error in found]


def mappings(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
        for inner in schema.values():
            yield from mappings(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from mappings(inner)


def keyword_mappings(schema: Any) -> Iterator[dict[str, Any]]:
    """Those whose keys are keywords: names of properties and definitions, and examples, are none."""
    if not isinstance(schema, dict):
        return
    yield schema
    for key, inner in schema.items():
        named = key in ("properties", "patternProperties", "definitions")
        for each in inner.values() if named else inner if key == "anyOf" else [inner]:
            yield from keyword_mappings(each)


def loads(kind: str, data: Any) -> bool:
    try:
        model = model_of(data.get("type", "agent"))[0] if kind == "card" else KINDS[kind][0]
        model.model_validate(data)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_valid_and_closed_shows_nothing_of_its_making_and_says_what_each_key_means(kind: str) -> None:
    schema = SCHEMAS[kind]
    Draft7Validator.check_schema(schema)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert not re.search(r'"\$defs"|pydantic|[a-z]File"|Spec"|"type": ("null"|\[[^]]*"null")', json.dumps(schema))
    assert {key for found in keyword_mappings(schema) for key in found} <= KEYWORDS
    defaults = [found["default"] for found in keyword_mappings(schema) if "default" in found]
    assert all(isinstance(default, (bool, int, float, str)) for default in defaults)
    titles = [found["title"] for found in mappings(schema) if isinstance(found.get("title"), str)]
    assert titles == [schema["title"]]
    assert set(schema["properties"]) == {key for model in KINDS[kind] for key in model.model_fields}
    closed = [found for found in mappings(schema) if isinstance(found.get("properties"), dict)]
    assert len(closed) == 1 + len(schema["definitions"])
    for found in closed:
        assert found["additionalProperties"] is False
        for name, body in found["properties"].items():
            described = {**schema["definitions"].get(body.get("$ref", "").rpartition("/")[2], {}), **body}
            assert described.get("description"), name
    for found in mappings(schema):
        if isinstance(reference := found.get("$ref"), str):
            assert reference.removeprefix("#/definitions/") in schema["definitions"]


@pytest.mark.parametrize(
    "path", [*sorted((ROOT / "workflows").glob("*.yml")), ROOT / "agac/api/template/workflows/reviews.yml"],
    ids=lambda path: path.name,
)  # fmt: skip
def test_a_shipped_workflow_is_taken_and_a_misspelt_key_is_not(path: Path) -> None:
    data = yaml.safe_load(path.read_text("utf-8"))
    assert faults("workflow", data) == []
    for inner in (data, data["stages"][0], *(data[key] for key in ("input", "output", "defaults") if key in data)):
        inner["promt"] = "Hello"
        (fault,) = faults("workflow", data)
        assert "'promt' was unexpected" in fault
        del inner["promt"]


def front_matter(path: Path) -> Any:
    text = path.read_text("utf-8")
    return yaml.safe_load(text.split("---\n")[1] if path.suffix == ".md" else text) or {}


def test_other_shipped_files_are_taken_and_a_misspelt_key_is_not() -> None:
    shipped = {ROOT / "agac.yml": "project", ROOT / "agac/api/template/agac.yml": "project"}
    for path, kind in {**shipped, **dict.fromkeys((ROOT / "agentcards").glob("*.md"), "card")}.items():
        data = front_matter(path)
        assert faults(kind, data) == [], path
        assert faults(kind, {**data, "defualts": {}}), path


def stage(**keys: Any) -> dict[str, Any]:
    return {"stages": [{"name": "classify", **keys}]}


TAKEN: list[tuple[str, Any]] = [
    ("workflow", STAGES),
    ("workflow", {**STAGES, "inputs": {"path": ["data/a.csv", "data/b.csv"], "format": "files"}}),
    ("workflow", {**STAGES, "input": {"path": "-"}, "vars": {"a": 1, "b": ["x"]}, "output": {"format": "csv"}}),
    ("workflow", {**STAGES, "output": {"format": ["csv", "parquet"], "merge": "append"}}),
    ("workflow", {**STAGES, "row_timeout": "2m", "budget": {"usd": 1}, "confirm_above": {"usd": 0}}),
    ("workflow", {**STAGES, "row_timeout": 90, "row_budget": {"calls": 3}, "telemetry": {"ttft": True}}),
    ("workflow", {**STAGES, "input": "data/a.csv", "budget": 5, "row_budget": 0.5, "run_mode": "batch"}),
    ("workflow", {**STAGES, "input": ["data/a.csv", "data/b.csv"]}),
    ("workflow", stage(budget=1.5)),
    ("workflow", stage(model="openai/gpt-5.4-mini?reasoning=low", fallback="simulator/small", needs="other")),
    ("workflow", stage(model=["openai/gpt-5.4-mini", "kimi26"], needs=["other"], timeout=5)),
    ("workflow", stage(fallback=["a/b", "c/d"], timeout={"connect": 5, "total": 60.5}, max_age="1.5 d")),
    ("workflow", stage(output_schema="schemas/review.json")),
    ("workflow", stage(output_schema="python:shapes.Review")),
    ("workflow", stage(output_schema={"sentiment": "positive|negative", "author": {"age": "integer?"}})),
    ("workflow", stage(output_schema={"type": "object", "properties": {"a": {"type": "string"}}})),
    ("workflow", stage(messages=[{"role": "user", "content": "a"}, {"role": "assistant", "content": {"b": [1]}}])),
    ("project", {}),
    ("project", {"defaults": {"model": "simulator/small", "temperature": 1}, "aliases": {"fast": "openai/gpt-5.4"}}),
    ("project", {"providers": {"local": {"dialect": "openai-chat", "base_url": "${URL}", "api_key": "${MY_KEY_2}"}}}),
    ("project", {"providers": {"local": {"api_key": "none", "headers": {"x-team": "data"}, "limits": {"rpm": 5}}}}),
    ("project", {"providers": {"a": {"prices": {"m": {"input": 0, "output": 2.5, "batch": 0.5}}}}}),
    ("card", {}),
    ("card", {"type": "agent"}),
    ("card", {"type": "Agent"}),
    ("card", {"request_params": {"topP": 0.5, "max_tokens": 5}, "messages": "shots.txt", "schema_version": 1}),
    ("card", {"messages": ["a.txt", "b.json"], "use_history": True, "model": "${MODEL:simulator/small}"}),
]

REFUSED: list[tuple[str, Any]] = [
    ("workflow", {}),
    ("workflow", {"stages": []}),
    ("workflow", {"stages": None}),
    ("workflow", {**STAGES, "description": None}),
    ("workflow", {**STAGES, "output": {"format": "excel"}}),
    ("workflow", {**STAGES, "row_timeout": "2 minutes"}),
    ("workflow", {**STAGES, "confirm_above": 1}),
    ("workflow", {**STAGES, "budget": 0}),
    ("workflow", {**STAGES, "input": 5}),
    ("workflow", {**STAGES, "run_mode": "bach"}),
    ("workflow", stage(name="two words")),
    ("workflow", stage(name="row_json")),
    ("workflow", stage(repair=-1)),
    ("workflow", stage(messages=[{"role": "system", "content": "a"}])),
    ("workflow", stage(timeout={"totl": 5})),
    ("workflow", stage(output_schema=5)),
    ("project", {"providers": {"local": {"api_key": "sk-abc"}}}),
    ("project", {"providers": {"local": {"api_key": "abcdefghij0123456789"}}}),
    ("project", {"providers": {"local": {"dialect": "soap"}}}),
    ("project", {"providers": {"a": {"prices": {"m": {"input": 1}}}}}),
    ("card", {"type": "swarm"}),
    ("card", {"type": "agents"}),
    ("card", {"request_params": {"top_p": 2}}),
]


@pytest.mark.parametrize(("kind", "data"), TAKEN, ids=str)
def test_what_agac_takes_the_schema_takes(kind: str, data: Any) -> None:
    assert loads(kind, data)
    assert faults(kind, data) == []


@pytest.mark.parametrize(("kind", "data"), REFUSED, ids=str)
def test_what_the_schema_refuses_agac_refuses(kind: str, data: Any) -> None:
    assert faults(kind, data)
    assert not loads(kind, data)


def test_a_card_of_another_program_may_say_no(project: ProjectFolder) -> None:
    assert faults("card", {"shell": False, "skills": []}) == []
    assert faults("card", {"shell": "yes"})
    project.write("agentcards/plain.yml", "shell: false\nskills: []\ninstruction: Be kind.\n")
    assert project.agac("card", "show", "plain").code == 0


def test_the_models_that_are_offered_exist() -> None:
    offered = SCHEMAS["workflow"]["definitions"]["Stage"]["properties"]["model"]["examples"]
    for text in offered:
        ref, messages = parse_model(text, SHIPPED, {})
        assert ref is not None, messages
        assert messages == []


def test_the_command_prints_a_schema_anywhere(tmp_path: Path) -> None:
    nowhere = ProjectFolder(tmp_path)
    (tmp_path / "agac.yml").unlink()
    for kind in KINDS:
        ran = nowhere.agac("schema", kind)
        assert (ran.code, ran.err, ran.json) == (0, "", SCHEMAS[kind])
    assert nowhere.agac("schema", "--write").code == 2


@pytest.mark.parametrize("words", [[], ["workflows"], ["workflow", "--write"]], ids=" ".join)
def test_a_wrong_call_says_what_there_is(words: list[str], project: ProjectFolder) -> None:
    ran = project.agac("schema", *words, code=2)
    assert "workflow" in ran.err
    assert "card" in ran.err
    with pytest.raises(UsageError, match="no schema of 'workflows'"):
        api.file_schema("workflows")


def test_all_of_them_are_written_where_the_settings_say(project: ProjectFolder) -> None:
    project.write("agac.yml", "paths: {workflows: pipelines/llm}\n")
    report = project.agac("schema", "--write", "--json").json
    for kind in KINDS:
        path = project.root / f".agac/schemas/{kind}.json"
        assert str(path) in report["files"]
        assert json.loads(path.read_text("utf-8")) == SCHEMAS[kind]
    assert report["settings"]["yaml.schemas"][".agac/schemas/workflow.json"] == [
        "pipelines/llm/*.yml", "pipelines/llm/*.yaml"
    ]  # fmt: skip
    shown = project.agac("schema", "--write").out
    assert "# yaml-language-server: $schema=../../.agac/schemas/workflow.json" in shown
    assert {path.name for path in (project.root / ".agac/schemas").iterdir()} == {f"{kind}.json" for kind in KINDS}


def test_a_folder_that_cannot_be_written_is_reported(project: ProjectFolder) -> None:
    project.write(".agac/schemas", "a file\n")
    ran = project.agac("schema", "--write", code=1)
    assert ".agac/schemas: cannot be written" in ran.err
    assert "Traceback" not in ran.err

"""`output_schema` in its four forms."""

import json
import sys
from pathlib import Path
from typing import Any, cast

import jsonschema
import pytest

from agac.core.errors import UsageError, key_path
from agac.plan.plan import Selection, make_plan
from agac.spec.field_shapes import FieldShape
from agac.spec.json_schema import FORMATS, TYPES, compiled
from agac.spec.output_schema import expand_shorthand, is_json_schema, resolve_schema, schema_name
from agac.spec.schema_checks import schema_faults, schema_warnings
from agac.spec.workflow import JsonSchema, PythonSchema


def body(tree: Any, schema: str) -> dict[str, Any]:
    spec = tree.stage(f"{{name: classify, output_schema: {schema}}}").output_schema
    assert isinstance(spec, JsonSchema)
    return spec.schema.body


def test_the_shorthand_makes_closed_objects_with_lists_and_choices(tree: Any) -> None:
    assert body(tree, '{sentiment: "positive|neutral|negative", reason: string, tags: "string[]?"}') == {
        "type": "object",
        "properties": {
            "sentiment": {"type": "string", "enum": ["positive", "neutral", "negative"]},
            "reason": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["sentiment", "reason"],
        "additionalProperties": False,
    }
    found = body(
        tree, '{who: {name: string, age: "integer?"}, kinds: "(a | b)[]", rows: "number[][]", all: [{x: boolean}]}'
    )
    properties = found["properties"]
    assert properties["who"]["required"] == ["name"]
    assert properties["kinds"] == {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}}
    assert properties["rows"] == {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
    assert properties["all"]["items"]["properties"] == {"x": {"type": "boolean"}}
    assert schema_faults(found) == []
    every, _ = expand_shorthand({name: name for name in TYPES})
    assert every["properties"] == {name: {"type": name} for name in TYPES}


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"type": "object", "properties": {}}, True),
        ({"type": "string"}, True),
        ({"type": ["string", "null"]}, True),
        ({"anyOf": [{"type": "string"}]}, True),
        ({"$ref": "#/$defs/a", "$defs": {"a": {}}}, True),
        ({"enum": [1, 2]}, True),
        ({"type": "string", "reason": "string"}, False),
        ({"type": "bug|feature", "title": "string"}, False),
        ({"title": "string", "description": "string"}, False),
        ({"items": "string[]"}, False),
        ({"properties": "string"}, False),
    ],
)
def test_json_schema_and_shorthand_are_told_apart(mapping: dict[str, Any], expected: bool) -> None:
    assert is_json_schema(mapping) is expected


@pytest.mark.parametrize(
    ("written", "ours"),
    [
        ("list[string]", "string[]"), ("list[number]?", "number[]?"), ("list[int]", "integer[]"),
        ("Array<List[int]>?", "integer[][]?"), ("list[a|b]", "(a|b)[]"), ("Sequence[dict]", "object[]"),
        ("list[string[]]", "string[][]"), ("List< str >[]", "string[][]"), ("[string]", "string[]"),
    ],
)  # fmt: skip
def test_lists_as_other_languages_write_them_are_lists(tree: Any, written: str, ours: str) -> None:
    assert body(tree, f"{{tags: '{written}'}}") == body(tree, f"{{tags: '{ours}'}}")


def test_a_schema_is_called_after_its_stage_or_its_file_as_every_provider_takes_it(tree: Any) -> None:
    tree.write("schemas/my result.json", '{"type": "object"}')
    assert tree.stage("{name: classify, output_schema: {a: string}}").output_schema.schema.name == "classify"
    assert tree.stage("{name: classify, output_schema: my result.json}").output_schema.schema.name == "my_result"
    names = {"a b/c": "a_b_c", "x" * 99: "x" * 64, "日本": "result", "a-b_1": "a-b_1"}
    assert [schema_name(text) for text in names] == list(names.values())


def test_a_schema_file_is_found_from_the_root_and_in_its_folder_as_json_or_yaml(tree: Any) -> None:
    tree.write("schemas/s.json", '{\n\t"type": "object",\n\t"description": "\\ud83d\\ude00 \\/"\n}')
    for text in ("schemas/s.json", "s.json", "s", "schemas/s"):
        assert body(tree, text)["description"] == "😀 /"
    tree.write("schemas/s.yml", "sentiment: good|bad\n")
    assert body(tree, "s.yml")["properties"]["sentiment"]["enum"] == ["good", "bad"]
    [problem] = tree.stage_problems("{name: a, output_schema: schemas/t.json}")
    assert problem.endswith("no such file: 'schemas/t.json'; did you mean 'schemas/s.json'?")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{\n  "type": "objct"\n}', "schemas/s.json:2:11: type: unknown type 'objct'; did you mean 'object'?"),
        ('{"type": "object",\n "properties": {"a": {"$ref": "other.json"}}}',
         ("schemas/s.json:2:31: properties.a.$ref: 'other.json' points outside this schema; "
         "only #/… is followed, nothing is ever fetched")),
        ('{"type": "object"\n"x": 1}', "schemas/s.json:2:1: not valid JSON: "),
        ("[1]", "schemas/s.json:1:1: expected a JSON Schema: a mapping with type, properties and the like"),
        ("", "schemas/s.json: is empty; write a JSON Schema"),
        ('{"type": "object", "type": "array"}', "schemas/s.json: duplicate key 'type'; keep one of them"),
        ('{"type": "number", "maximum": NaN}', "schemas/s.json: NaN is not JSON; give a finite number"),
        ('{"not": ' * 200 + "{}" + "}" * 200, "schemas/s.json: nested more than 50 levels deep"),
        ('{"not": ' * 200_000, "schemas/s.json: "),
        ('{"a": "strin"}', "schemas/s.json:1:7: a: unknown type 'strin'; did you mean 'string'?"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_schema_file_is_shown_there(tree: Any, content: str, expected: str) -> None:
    tree.write("schemas/s.json", content)
    [problem] = tree.stage_problems("{name: a, output_schema: s.json}")
    assert problem.startswith(expected)


def test_data_in_a_schema_is_not_read_as_schema() -> None:
    assert schema_faults({"type": "object", "enum": [{"$ref": "http://x"}], "default": {"$ref": "y"}}) == []
    text = {"type": "string"}
    assert schema_faults({"type": "object", "properties": {"$ref": text, "enum": text}}) == []


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"$ref": "#/anyOf/1", "anyOf": [{"type": "string"}]}, "'#/anyOf/1' does not exist; there is: no $defs"),
        ({"$ref": "#/type/x", "type": "object"}, "'#/type/x' does not exist; there is: no $defs"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
         "leads back to itself"),
        ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "points outside this schema"),
        *(({key: {"default": {"$ref": "http://127.0.0.1:9/x"}}}, f"{key}.default.$ref: 'http://127.0.0.1:9/x' points")
          for key in ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs")),
        ({"unknown": {"x": {"$ref": "file:///x"}}}, "unknown.x.$ref: 'file:///x' points outside this schema"),
        ({"$ref": "#/default/x", "default": {"x": {"$ref": "file:///x"}}}, "default.x.$ref: 'file:///x' points"),
        ({"$ref": "#/default/x", "default": {"x": {"pattern": "("}}}, "default.x.pattern: '(' is not a regular"),
        ({"items": {"$ref": "#/unknown"}, "unknown": {"type": "objct"}}, "unknown.type: this JSON Schema cannot"),
        ({"properties": {"a": {"$id": "b", "$ref": "#/$defs/x", "$defs": {"x": {}}}}}, "properties.a.$id: a schema"),
        ({"items": {"$ref": "#here"}, "$defs": {"a": {"$id": "http://x/b", "$anchor": "here"}}}, "$defs.a.$id: "),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"$id": "s", "not": {"$ref": "#/$defs/x"}}}}, "$defs.x.$id: "),
        ({"items": {"$ref": "#/$defs/a/b"}, "$defs": {"a/b": {}}}, "does not exist; did you mean '#/$defs/a~1b'?"),
        ({"items": {"$ref": "#/$defs/a b"}, "$defs": {"a b": {}}}, "a reference cannot have; write '#/$defs/a%20b'"),
    ],
)  # fmt: skip
def test_references_that_lead_nowhere_are_refused(schema: dict[str, Any], fault: str) -> None:
    assert any(fault in f"{key_path(path)}: {message}" for path, message in schema_faults(schema))


@pytest.mark.parametrize(
    ("schema", "warned"),
    [
        ({"requried": ["a"]}, "requried: 'requried' is no keyword of JSON Schema and has no effect; did you mean 're"),
        ({"items": {"not": {"maxLenght": 3}}}, "items.not.maxLenght: 'maxLenght' is no keyword of JSON Schema and ha"),
        ({"anyOf": [{"zzz": 1}]}, "anyOf[0].zzz: 'zzz' is no keyword of JSON Schema and has no effect; remove it, or"),
        ({"format": "datetime"}, "format: the format 'datetime' is not checked; did you mean 'date-time'?"),
        ({"$defs": {"a": {"format": "zip"}}}, "$defs.a.format: the format 'zip' is not checked; formats that are: da"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "$schema: the schema is read as draft 2020-12 whate"),
        ({"prefixItems": [{}], "additionalItems": False}, "additionalItems: 'additionalItems' is of an older draft a"),
        ({"dependencies": {"a": ["b"]}}, "dependencies: 'dependencies' is of an older draft; write `dependentRequire"),
        ({"nullable": True}, "nullable: 'nullable' is of OpenAPI and has no effect; write `type: [string, \"null\"]`"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema#", "definitions": {}, "x-mine": {"a": 1}}, None),
        ({"properties": {"requried": {"default": {"zzz": 1}}}, "$defs": {"zzz": {"const": {"q": 1}}}}, None),
    ],
)  # fmt: skip
def test_words_without_effect_are_warned_of_where_they_stand(schema: dict[str, Any], warned: str | None) -> None:
    assert schema_faults(schema) == []
    found = [f"{key_path(path)}: {message}" for path, message in schema_warnings(schema)]
    assert [one[: len(warned or "")] for one in found] == ([warned] if warned else [])


def test_a_warning_of_a_schema_is_shown_at_its_line_and_stops_nothing(tree: Any) -> None:
    tree.write("schemas/s.json", '{"type": "object", "properties": {},\n "requried": ["a"]}')
    [problem] = tree.stage_problems("{name: a, output_schema: s.json}")
    assert problem.startswith("schemas/s.json:2:2: warning: requried: 'requried' is no keyword of JSON Schema")
    [(_, message)] = schema_faults({"items": [{"type": "string"}]})
    assert message.startswith("a list of schemas is `prefixItems` since draft 2020-12")


def test_every_format_that_is_said_to_be_checked_is() -> None:
    assert {name for name in FORMATS if compiled({"format": name}).is_valid("\\\\ {-")} == set()
    assert compiled({"format": "datetime"}).is_valid("-")


def test_references_follow_pointers_with_escapes_and_indexes_and_go_in_circles_through_values() -> None:
    for ref in ("#/$defs/a~1b~0c%20%25", "#here"):
        schema = {
            "$defs": {"a/b~c %": {"$anchor": "here", "properties": {"x": {}}}},
            "anyOf": [{"$ref": ref}, {"$ref": "#/anyOf/0"}],
        }
        for body in (schema, {"$defs": schema["$defs"], "$ref": ref}):
            assert schema_faults(body) == []
            assert FieldShape(body).names() == {"x"}
    assert FieldShape({"$ref": "http://x"}).names() is None
    tree_schema = {"type": "object", "properties": {"children": {"type": "array", "items": {"$ref": "#"}}}}
    assert schema_faults(tree_schema) == []
    assert FieldShape(tree_schema).names(["children", "0", "children", "1"]) == {"children"}


def test_every_fault_of_a_schema_is_found_at_once() -> None:
    faults = schema_faults({"type": "strin", "required": "a", "properties": {"b": {"minLength": -1, "pattern": "("}}})
    assert {path for path, _ in faults} == {
        ("type",),
        ("required",),
        ("properties", "b", "minLength"),
        ("properties", "b", "pattern"),
    }


NAMES = {
    "type": "object",
    "properties": {
        "sentiment": {"type": "string"},
        "who": {"$ref": "#/$defs/Person"},
        "either": {"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]},
        "tags": {"type": "array", "items": {"type": "object", "properties": {"t": {}}}},
        "open": {"type": "object"},
        "extra": {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
        "mixed": {"allOf": [{"properties": {"a": {}}}]},
    },
    "$defs": {"Person": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ([], set(NAMES["properties"])),  # type: ignore[arg-type]
        (["sentiment"], set()),
        (["who"], {"name"}),
        (["either"], {"name"}),
        (["tags", "0"], {"t"}),
        (["tags"], None),
        (["open"], None),
        (["open", "x"], None),
        (["extra"], None),
        (["mixed"], None),
        (["nope"], set()),
    ],
)
def test_the_fields_that_a_schema_declares(path: list[str], names: set[str] | None) -> None:
    assert FieldShape(NAMES).names(path) == names


MODELS = """
from pydantic import BaseModel, model_validator
from datetime import date
from tools.shared import Base

class Review(Base, strict=True):
    sentiment: str
    day: date
    score: int = 0

    @model_validator(mode="after")
    def check(self):
        if self.score > 5:
            raise ValueError("score is at most 5")
        if self.score < 0:
            raise KeyError("score")
        return self

class Plain:
    pass
"""


@pytest.fixture
def models(tree: Any) -> Any:
    tree.write("tools/__init__.py", "")
    tree.write("tools/shared.py", "from pydantic import BaseModel\nclass Base(BaseModel):\n    pass\n")
    tree.write("tools/models.py", MODELS)
    before, known = list(sys.path), set(sys.modules)
    yield tree
    assert sys.path == before
    for name in set(sys.modules) - known:
        if name.split(".")[0] in ("tools", "broken", "shadow"):
            del sys.modules[name]


def test_a_pydantic_model_of_the_project_is_a_schema(models: Any) -> None:
    spec = models.stage("{name: a, output_schema: 'python:tools.models.Review'}").output_schema
    assert isinstance(spec, PythonSchema)
    assert (spec.module, spec.cls, spec.name, len(spec.source)) == ("tools.models", "Review", "Review", 16)
    assert "tools.models" not in sys.modules  # loading imports nothing of the user's
    resolved = resolve_schema(spec, models.root)
    assert resolved.schema.name == "Review"
    jsonschema.validate({"sentiment": "x", "day": "2024-01-31"}, resolved.schema.body)
    assert resolved.validate_extra is not None
    values = [{"sentiment": "x", "day": "2024-01-31", "score": score} for score in (5, 6, -1)]
    broke = "python:tools.models.Review raised KeyError: 'score'"  # the user's own validator
    found = [resolved.validate_extra(value) for value in values]
    assert found == [[], ["result: Value error, score is at most 5"], [broke]]
    wrong = resolved.validate_extra({"sentiment": 5, "day": "2024-01-31"})
    assert wrong == ["sentiment: Input should be a valid string"]


def test_a_class_that_is_not_there_is_found_without_importing(models: Any) -> None:
    [problem] = models.stage_problems("{name: a, output_schema: 'python:tools.models.Reviw'}")
    assert problem.endswith("tools/models.py has no 'Reviw'; did you mean 'Review'?")
    models.write("broken.py", "class X(:\n")
    [problem] = models.stage_problems("{name: a, output_schema: 'python:broken.X'}")
    assert problem.startswith("broken.py:1:9: not valid Python: ")
    for text in ("from a import *\n", "if True:\n    X = 1\n", "X: type = int\n", "from a import X\n"):
        models.write("broken.py", text)  # a name that may exist is left to the import
        assert models.stage_problems("{name: a, output_schema: 'python:broken.X'}") == []


CALLABLE = "from collections.abc import Callable\nclass X(BaseModel):\n    a: Callable[[], int]\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class X: pass\nraise RuntimeError('no')\n", "cannot be imported: RuntimeError: no"),
        ("class X: pass\nraise SystemExit('no')\n", "cannot be imported: SystemExit: no"),
        ("class X: pass\nraise GeneratorExit('no')\n", "cannot be imported: GeneratorExit: no"),
        (CALLABLE, "cannot be told as JSON Schema: Cannot generate a JsonSchema for core_schema.CallableSchema"),
        ("class X: pass\n", "is not a pydantic model"),
    ],
)
def test_a_class_that_cannot_be_used_is_said_at_the_key_that_names_it(models: Any, source: str, message: str) -> None:
    models.write("broken.py", f"from pydantic import BaseModel\n{source}")
    text = "input: {path: data/reviews.csv}\nstages:\n  - name: a\n    output_schema: python:broken.X\n"
    workflow, no_model = models.workflow(text), cast("Any", None)  # never asked for: the schema comes first
    with pytest.raises(UsageError) as caught:
        make_plan(workflow, {"a": no_model}, models.root, Selection(), None)
    assert caught.value.message.startswith(f"workflows/w.yml:4:20: stages[0].output_schema: python:broken.X {message}")
    assert "errors.pydantic.dev" not in caught.value.message
    assert caught.value.remedy


def test_an_interrupt_during_an_import_stays_one(models: Any) -> None:
    models.write("broken.py", "class X: pass\nraise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        resolve_schema(PythonSchema("broken", "X", "X"), models.root)


def test_a_module_is_the_projects_is_read_again_once_edited_and_prints_to_stderr(
    models: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    for field in ("a", "b"):
        source = f"from pydantic import BaseModel\nprint('loading {field}')\nclass X(BaseModel):\n    {field}: int\n"
        models.write("json.py", source)
        resolved = resolve_schema(PythonSchema("json", "X", "X"), models.root)
        assert list(resolved.schema.body["properties"]) == [field]
        assert capsys.readouterr() == ("", f"loading {field}\n")
    assert sys.modules["json"] is json


def test_a_linked_module_outside_the_project_is_refused(models: Any, tmp_path_factory: Any) -> None:
    outside: Path = tmp_path_factory.mktemp("outside") / "shadow.py"
    outside.write_text("class X: pass\n")
    (models.root / "shadow.py").symlink_to(outside)
    [problem] = models.stage_problems("{name: a, output_schema: 'python:shadow.X'}")
    assert "leads out of the project" in problem

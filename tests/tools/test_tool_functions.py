"""Functions as tools: their schema by type hints and docstring, what is refused, how they are called."""

import asyncio
import copy
import dataclasses
import enum
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pydantic
import pytest
from pydantic import BaseModel

import agac
from agac.core.errors import UsageError
from agac.core.keys import canonical
from agac.spec.tools import ToolRules
from agac.tools.tool_functions import ToolFailed, ToolFunction, declared_of, describe, documented


class Filter(TypedDict):
    field: str
    value: NotRequired[int]


@dataclasses.dataclass
class Range:
    low: int = 1


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Person(BaseModel):
    name: str


def _one(hint: Any, default: Any = ...) -> Callable[..., Any]:
    def search(q: Any = default) -> Any:
        return [type(q).__name__, q]

    search.__annotations__["q"] = hint
    if default is ...:
        search.__defaults__ = None
    return search


STRING = {"type": "string"}
OBJECT = {"additionalProperties": False, "type": "object"}
RECORD = OBJECT if pydantic.VERSION >= "2.14" else {"type": "object"}  # of a dataclass, which older ones leave open
SCHEMAS: list[tuple[Any, Any, dict[str, Any], Any, Any]] = [
    (str, ..., STRING, "x", ["str", "x"]),
    (int, 3, {"type": "integer", "default": 3}, 4, ["int", 4]),
    (float | None, None, {"anyOf": [{"type": "number"}, {"type": "null"}], "default": None}, 1, ["float", 1.0]),
    (Literal["a", "b"], "a", {"enum": ["a", "b"], "type": "string", "default": "a"}, "b", ["str", "b"]),
    (list[str], ..., {"type": "array", "items": STRING}, ["x"], ["list", ["x"]]),
    (dict[str, bool], ..., {"type": "object", "additionalProperties": {"type": "boolean"}}, {}, ["dict", {}]),
    (Any, ..., {}, [1, None], ["list", [1, None]]),
    (Annotated[str, "What."], ..., {**STRING, "description": "What."}, "x", ["str", "x"]),
    (Colour, Colour.RED, {"enum": ["red", "blue"], "type": "string", "default": "red"}, "blue", ["Colour", "blue"]),
    (Range, ..., {**RECORD, "properties": {"low": {"type": "integer", "default": 1}}}, {}, ["Range", {"low": 1}]),
    (Person, ..., {"type": "object", "properties": {"name": STRING}, "required": ["name"]}, {"name": "x"}, None),
    (Annotated[dict[str, Filter] | None, 1], None, {
        "anyOf": [{"type": "object", "additionalProperties": {
            **OBJECT, "properties": {"field": STRING, "value": {"type": "integer"}}, "required": ["field"]}},
            {"type": "null"}], "default": None}, {"x": {"field": "y"}}, ["dict", {"x": {"field": "y"}}]),
    (
        list[Filter] | None,
        None,
        {
            "anyOf": [
                {"type": "array", "items": {
                    **OBJECT, "properties": {"field": STRING, "value": {"type": "integer"}}, "required": ["field"]}},
                {"type": "null"},
            ],
            "default": None,
        },
        [{"field": "x"}],
        ["list", [{"field": "x"}]],
    ),
]  # fmt: skip


def _inlined(body: Any, defs: Any) -> Any:
    if isinstance(body, list):
        return [_inlined(one, defs) for one in body]
    if not isinstance(body, dict):
        return body
    own = {key: _inlined(one, defs) for key, one in body.items() if key != "$ref"}
    own.pop("description", None) if "$ref" in body else None
    return own | (_inlined(defs[body["$ref"].rpartition("/")[2]], defs) if "$ref" in body else {})


@pytest.mark.parametrize(("hint", "default", "schema", "given", "gives"), SCHEMAS, ids=lambda one: None)
def test_a_type_is_told_as_json_schema_and_arguments_come_as_that_type(
    hint: Any, default: Any, schema: Any, given: Any, gives: Any, tmp_path: Path
) -> None:
    made = ToolFunction(_one(hint, default), "a:b", tmp_path)
    body: Any = made.parameters
    told = _inlined(body["properties"]["q"], body.get("$defs", {}))
    for part in (told, *told.get("$defs", {}).values()):
        part.pop("description", None) if "description" not in schema else None
    assert told == schema
    assert body.get("required", []) == (["q"] if default is ... else [])
    value = made.here(made.given({"q": given}, str))
    assert value == (canonical(gives) if gives else '["Person",{"name":"x"}]')


def test_what_no_model_can_be_told_of_is_refused_by_the_name_of_the_parameter(tmp_path: Path) -> None:
    def no_type(q) -> None: ...  # type: ignore[no-untyped-def]
    def many(*rest: str) -> None: ...
    def named(**rest: str) -> None: ...
    def by_place(q: str, /) -> None: ...
    def callback(q: Callable[[int], int]) -> None: ...
    def no_json(q: asyncio.Event) -> None: ...
    def unknown(q: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    said = {}
    for function in (no_type, many, named, by_place, callback, no_json, unknown):
        with pytest.raises(UsageError) as caught:
            describe(function, tmp_path)
        said[function.__name__] = (caught.value.message.rpartition("cannot be a tool: ")[2], caught.value.remedy)
    assert said["no_type"] == ("its parameter q has no type", "Write a type, as q: str.")
    assert said["many"][0] == "a model cannot be told of its parameter *rest"
    assert said["named"][0] == "a model cannot be told of its parameter **rest"
    assert said["by_place"][0] == "a model cannot be told of its parameter q"
    assert said["callback"][0].startswith("a model cannot be told of its parameter q: ")
    assert said["no_json"][0].startswith("a model cannot be told of its parameter q: ")
    assert said["unknown"][0] == "its type hints cannot be read: name 'Nowhere' is not defined"


TOLD = ("Finds.\n\nMore.", {"q": "What, over two lines.", "n": "How many."})
DOCSTRINGS = {
    "google": "Finds.\n\nMore.\n\nArgs:\n  q (str): What,\n    over two lines.\n  n: How many.\n\nReturns:\n  text: x",
    "numpy": "Finds.\n\nMore.\n\nParameters\n----------\nq : str\n    What,\n    over two lines.\nn : int, optional\n"
    "    How many.\n\nReturns\n-------\nstr\n    x",
    "sphinx": "Finds.\n\nMore.\n\n:param str q: What,\n  over two lines.\n:param n: How many.\n"
    ":type n: int\n:returns: x",
}


@pytest.mark.parametrize("style", DOCSTRINGS)
def test_docstrings_describe_the_function_and_its_parameters(style: str) -> None:
    assert documented(DOCSTRINGS[style]) == TOLD


def test_a_docstring_without_sections_describes_the_function_alone() -> None:
    assert documented("Finds.\n\nNote: this is text.") == ("Finds.\n\nNote: this is text.", {})


def test_a_key_is_given_and_not_told(tmp_path: Path) -> None:
    def pay(amount: int, idempotency_key: str) -> str:
        return f"{amount} {idempotency_key}"

    made = ToolFunction(pay, "a:pay", tmp_path)
    assert list(made.parameters["properties"]) == ["amount"]  # type: ignore[arg-type]
    assert made.here(made.given({"amount": 1}, lambda: "k")) == "1 k"


def test_results_are_text_or_json_and_failures_say_why(tmp_path: Path) -> None:
    def gives(value: Any) -> Any:
        def tool() -> Any:
            if isinstance(value, BaseException):
                raise value
            return value

        try:
            return ToolFunction(tool, "a:tool", tmp_path).here({})
        except ToolFailed as failed:
            return failed

    assert gives("ü") == "ü"
    assert gives({"b": 1, "a": [True, None]}) == '{"a":[true,null],"b":1}'
    assert gives([Person(name="x"), Range()]) == '[{"name":"x"},{"low":1}]'
    assert "Infinity" in str(gives(float("inf"))) or "inf" in str(gives(float("inf")))
    assert "half of a surrogate pair" in str(gives("\ud800"))
    assert str(gives(ValueError("no"))).startswith("ValueError: no (")
    assert str(gives(SystemExit(3))).startswith("SystemExit: 3 (")
    assert gives(KeyError("x")).again is True


def test_what_is_said_of_a_function_takes_the_place_of_what_it_says(tmp_path: Path) -> None:
    @agac.tool
    def plain(query: str) -> str:
        """Looks."""
        return query

    @agac.tool(name="look-up", description="Looks it up.", cacheable=True, rate=5, max_chars=300)
    async def search(query: str) -> str:
        return query

    told = describe(search, tmp_path)
    assert (told.name, told.description, told.max_chars) == ("look-up", "Looks it up.", 300)
    assert declared_of(search).rules == ToolRules(cacheable=True, rate=5)
    assert describe(plain, tmp_path).description == "Looks."
    assert plain("x") == "x"
    with pytest.raises(TypeError, match="cachable"):
        agac.tool(cachable=True)  # type: ignore[call-overload]


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value

    def search(self, q: str) -> str:
        return f"{self.value} {q}"

    __hash__ = None  # type: ignore[assignment]


def _around(value: Any) -> Callable[..., Any]:
    def search(q: str) -> str:
        return f"{value} {q}"

    return search


HELD = [
    1, "1", 2, b"x", {"a": [1, (2,)]}, {"b"}, {"b", "c", "dd"}, Range(1), Range(2), re.compile("x"), Path("x"),
    Holder(1), Holder(2), _around(1), _around(2), len, Holder, Colour.RED, Person(name="x"), Person(name="y"),
]  # fmt: skip


def test_two_tools_of_one_factory_are_two_tools(tmp_path: Path) -> None:
    made = [_around, lambda value: Holder(value).search]
    for make in made:
        versions = [describe(make(value), tmp_path).version for value in HELD]
        assert len({*versions}) == len(HELD)
        assert versions == [describe(make(copy.deepcopy(value)), tmp_path).version for value in HELD]
        for refused in (threading.Lock(), (one for one in ())):
            with pytest.raises(
                UsageError, match="cannot be a tool: nothing stands for what it holds: cannot pickle"
            ) as no:
                describe(make(refused), tmp_path)
            assert "@agac.tool(version='1')" in (no.value.remedy or "")
    for version in ("1", "2"):
        told = [agac.tool(version=version)(_around(one)) for one in (threading.Lock(), threading.Lock())]
        first, second = (describe(one, tmp_path).version for one in told)
        assert first == second
        assert first != describe(_around(1), tmp_path).version
    assert describe(_one(str, "x"), tmp_path).version != describe(_one(str, "y"), tmp_path).version
    around: list[Any] = []
    around.append(around)
    with pytest.raises(UsageError, match="nothing stands for what it holds: Circular reference"):
        describe(_around(around), tmp_path)
    assert describe(_around(enum), tmp_path).version != describe(_around(re), tmp_path).version

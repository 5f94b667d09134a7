"""Functions as tools: what a model is sent about them, by their type hints and docstrings; their
calls."""

from __future__ import annotations

import inspect
import json
import re
import sys
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from copyreg import dispatch_table
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from operator import or_
from pathlib import Path
from types import FunctionType, MethodType, ModuleType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_origin,
    overload,
)

from agac.core.arguments import refuse_keys_of
from agac.core.errors import ErrorType, RowError, UsageError
from agac.core.keys import canonical, digest
from agac.core.types import JSONValue
from agac.spec.json_schema import subschemas
from agac.spec.paths import home_of
from agac.spec.python_code import EDITED, FunctionRef, as_written, source_hash
from agac.spec.tools import ToolRules, ToolScope, ToolSpec, source_of
from agac.tools.functions import awaited_outcome, import_function, outcome_of, user_code
from agac.tools.json_values import Unfit, plain

if TYPE_CHECKING:
    from pydantic import BaseModel

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
"""Names of tools that every provider takes."""
KEY = "idempotency_key"
"""A parameter that agac fills, the same for a call that is made again; models do not see it."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """What `agac.tool` declares about a function, kept as its attribute `agac_tool`; None: as the
    function itself says."""

    name: str | None = None
    description: str | None = None
    rules: ToolRules = field(default_factory=ToolRules)
    max_chars: int | None = None
    version: str | None = None


class ToolKeys(TypedDict, total=False):
    """How models are told of a tool, and how it is run: the fields of `ToolRules`."""

    name: str
    description: str
    max_chars: int
    version: str
    timeout: float
    cacheable: bool
    cache: Literal["run", "persist"]
    ttl: float | None
    side_effects: bool
    rate: float | None
    retries: int
    concurrency: int | None
    scope: ToolScope


@overload
def tool(function: F, /) -> F:
    """With what the function itself says."""


@overload
def tool(**keys: Unpack[ToolKeys]) -> Callable[[F], F]:
    """With what is given here."""


def tool(function: Any = None, /, **keys: Any) -> Any:
    """Says of a function how models are told of it and how it is run, where no file says
    otherwise: `@agac.tool`, or `@agac.tool(cacheable=True, rate=5)`. Every function with type
    hints can be a tool, also without it. `name` and `description` take the place of the function's
    name and docstring; a result of more than `max_chars` characters is cut. `version` stands for
    what the function holds besides its text, as the values around it: such as are no data need it.
    `timeout` and `ttl` are seconds, `rate` calls a second. Equal calls of a `cacheable` tool share
    one execution, for the run or with `cache="persist"` for later ones too, with `scope="row"`
    those of one row. One with `side_effects` is never repeated without being asked."""
    refuse_keys_of("agac.tool", keys, ToolKeys)
    if function is not None and not callable(function):
        raise UsageError(
            f"agac.tool: {function!r:.60} is not a function",
            remedy="Write @agac.tool above a function.",
        )
    texts = {
        key: keys.pop(key) for key in ("name", "description", "max_chars", "version") if key in keys
    }
    declared = DeclaredTool(**texts, rules=ToolRules(**keys))

    def declare(function: Any) -> Any:
        function.agac_tool = declared
        return function

    return declare if function is None else declare(function)


class Intent:
    """A note that a call is about to be made.

    What runs a tool begins it when it waits for nothing more but the call itself. This one keeps
    nothing: it is for calls that may be made again."""

    is_kept = False
    is_begun = False

    async def begin(self) -> None:
        """Returns once a kill is known to come after the call was begun."""

    def withdraw(self) -> None:
        """Takes the note back: the call was not made after all."""

    def close(self) -> None:
        """Forbids to begin the call, which is waited for no longer."""


NO_INTENT = Intent()


class ToolFailed(Exception):
    """A call gave no result; the text is for the model. `again`: another try may help."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


class ToolTimeout(ToolFailed):
    """A call took too long, and was given up."""


class SessionGone(Exception):
    """A server's session cannot be used any more; the text says why. `sent`: the server may have
    received the call."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class ToolLost(Exception):
    """A call fails its row, or with `anew` lets its conversation start again. `made`: it may have
    been made."""

    def __init__(self, message: str, *, anew: bool = False, made: bool = True) -> None:
        super().__init__(message)
        self.error = RowError(ErrorType.TOOL_SERVER_ERROR, message)
        self.anew = anew
        self.made = made


def describe(function: FunctionRef | Callable[..., Any], root: Path) -> ToolSpec:
    """Returns what a model is sent about a function. Raises UsageError if it cannot be imported,
    or has an unfit parameter."""
    if isinstance(function, FunctionRef):
        called = import_function(function, home_of(root))
        source = str(function)
        version = function.source_hash.hex()
    else:
        called = function
        source = source_of(function)
        version = _version(function, root)
    made = ToolFunction(called, source, root)
    declared = declared_of(called)
    name = str(declared.name or getattr(called, "__name__", ""))
    if not NAME.match(name):
        remedy = "Name it with at most 64 letters (A to Z), digits, _ and -."
        raise UsageError(f"{source}: {name!r} cannot be the name of a tool", remedy=remedy)
    spec = ToolSpec(
        name, declared.description or made.description, made.parameters, "function", source, version
    )
    if declared.max_chars is None:
        return spec
    return replace(spec, max_chars=declared.max_chars)


def declared_of(function: Callable[..., Any]) -> DeclaredTool:
    """Returns what `agac.tool` declares about a function."""
    declared = getattr(function, "agac_tool", None)
    return declared if isinstance(declared, DeclaredTool) else DeclaredTool()


def _version(function: Callable[..., Any], root: Path) -> str:
    """Returns what identifies a program's function: a hash of its text and of what it holds.

    The text of a file of the project counts with what that imports. A function holds the values
    around it, its defaults and its object. Raises UsageError if these have no such form."""
    inner = inspect.unwrap(function)
    text = _text_hash(inner, home_of(root).resolve())
    try:
        declared = declared_of(function).version
        held = _held_by(inner) if declared is None else [declared]
        if not held:
            return text
        body = json.dumps(held, default=partial(_stand_in, root), sort_keys=True)
        return digest(text + body).hex()
    except Exception as error:  # the user's objects may bring code of their own
        what = f"{source_of(function)} cannot be a tool: nothing stands for what it holds: {error}"
        raise UsageError(what, remedy="Say what does, as @agac.tool(version='1').") from error


def _text_hash(function: Callable[..., Any], home: Path) -> str:
    """Returns a hash of a function's text, or of its code if it has no text."""
    try:
        file = Path(inspect.getsourcefile(function) or "").resolve()
        if file.is_relative_to(home):
            return source_hash(file, home)[0].hex()
        return digest(inspect.getsource(function)).hex()
    except (OSError, TypeError):  # made by a program, or written in C
        code = getattr(function, "__code__", None)
        if code is None:
            return digest(source_of(function)).hex()
        return digest(code.co_code.hex() + repr(code.co_names)).hex()


def _held_by(function: Callable[..., Any]) -> list[Any]:
    """Returns the values that a function holds besides its text."""
    plain_function: Any = getattr(function, "__func__", function)
    cells = getattr(plain_function, "__closure__", None) or ()
    values = [
        *(cell.cell_contents for cell in cells),
        getattr(plain_function, "__defaults__", None),
        getattr(plain_function, "__kwdefaults__", None),
        getattr(function, "__self__", None),
    ]
    return [value for value in values if value is not None]


def _stand_in(root: Path, value: Any) -> Any:
    """Returns what JSON takes for a value that it does not have, the same in any process.

    Raises what the value raises if it refuses to be looked into."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, type | ModuleType):
        return f"{value.__dict__.get('__module__')}:{value.__name__}"
    if isinstance(value, FunctionType | MethodType):
        return _version(value, root)
    reduced = dispatch_table.get(type(value))  # as for pickle, which a lock and a connection refuse
    parts: Any = value.__reduce_ex__(4) if reduced is None else reduced(value)
    if isinstance(parts, str):
        return f"{value.__module__}:{parts}"
    state = [list(part) if isinstance(part, Iterator) else part for part in parts[1:]]
    return [source_of(parts[0]), *state]


def load_tool(
    spec: ToolSpec, root: Path, functions: Mapping[str, Callable[..., Any]]
) -> ToolFunction:
    """Returns the function of a tool: a program's by its `source`, otherwise a file's.

    Raises UsageError if it is gone, or was changed."""
    home = home_of(root).resolve()
    function = functions.get(spec.source)
    shown, _, name = spec.source.rpartition(":")
    if function is not None:
        version = _version(function, root)
    elif not shown.endswith(".py") or not (home / shown).is_file():
        remedy = "Put its file back, or run the program that has it."
        raise UsageError(
            f"the tool {spec.name} is {spec.source}, which is not there", remedy=remedy
        )
    else:
        version = source_hash(home / shown, home)[0].hex()
    if version != spec.version:
        raise UsageError(
            f"{spec.source}, or a file that it imports, was edited since the run was made",
            remedy=EDITED,
        )
    if function is None:
        ref = FunctionRef(
            home / shown, shown, name, is_async=False, source_hash=bytes.fromhex(version)
        )
        function = import_function(ref, home)
    return ToolFunction(function, spec.source, root)


_SIGNS: Mapping[Any, str] = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
}
"""What is written before a parameter that takes several arguments."""


class ToolFunction:
    """A function that is called with arguments by name.

    `parameters` is their JSON Schema. `takes_key`: it also takes a key, `KEY`."""

    def __init__(self, function: Callable[..., Any], source: str, root: Path) -> None:
        """Raises UsageError for a parameter that no model can be sent."""
        self._function = function
        self._source = source
        self._root = home_of(root)
        called = (inspect.unwrap(function), getattr(function, "__call__", None))  # noqa: B004  (an object may await)
        self.is_async = any(map(inspect.iscoroutinefunction, called))
        self.description, texts = documented(inspect.getdoc(function) or "")
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a default that JSON has not: it is not shown
            hints, self.takes_key = self._hints()
            self._names = list(hints)
            self._model = self._arguments(hints, texts)
            body = self._model.model_json_schema()
        for _, sub in subschemas(body):
            if isinstance(sub.get("title"), str):
                del sub["title"]
        body.pop("description", None)
        self.parameters: dict[str, JSONValue] = {"type": "object", "properties": {}, **body}

    def _refused(self, what: str, remedy: str) -> UsageError:
        return UsageError(f"{self._source} cannot be a tool: {what}", remedy=remedy)

    def _hints(self) -> tuple[dict[str, tuple[Any, Any]], bool]:
        """Returns the type and the default of each parameter that a model is sent, and whether
        there is one for the key."""
        try:
            declared = inspect.signature(self._function)
            hints = typing.get_type_hints(inspect.unwrap(self._function), include_extras=True)
        except (NameError, TypeError, ValueError, AttributeError) as error:
            what = f"its type hints cannot be read: {as_written(str(error))}"
            raise self._refused(what, "Import what they name at the top of its file.") from error
        types: dict[str, tuple[Any, Any]] = {}
        for name, parameter in declared.parameters.items():
            if name == KEY:
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                sign = _SIGNS.get(parameter.kind, "")
                raise self._refused(
                    f"a model cannot be told of its parameter {sign}{name}",
                    "Write out each parameter by name, with its type; none before a `/`.",
                )
            if name not in hints:
                raise self._refused(
                    f"its parameter {name} has no type", f"Write a type, as {name}: str."
                )
            types[name] = (hints[name], parameter.default)
        return types, KEY in declared.parameters

    def _arguments(
        self, hints: Mapping[str, tuple[Any, Any]], texts: Mapping[str, str]
    ) -> type[BaseModel]:
        """Makes a model of the arguments. Its fields are named by their positions, so that every
        name may be a parameter's."""
        from pydantic import ConfigDict, Field, create_model  # 0.1 s, and few stages have tools

        fields: dict[str, Any] = {}
        for position, (name, (hint, default)) in enumerate(hints.items()):
            hint = _accepted(hint)
            about = self._description(name, hint, texts.get(name))
            options: dict[str, Any] = {"alias": name, "description": about}
            if default is not inspect.Parameter.empty:
                options["default"] = default
            fields[f"p{position}"] = (hint, Field(**options))
        return create_model(
            "Arguments",
            __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True),
            **fields,
        )

    def _description(self, name: str, hint: Any, text: str | None) -> str | None:
        """Returns what describes a parameter: the docstring's `text`, or what its type says."""
        from pydantic import TypeAdapter

        try:
            schema = TypeAdapter(hint).json_schema()
        except Exception as error:  # the user's types may bring code of their own
            reason = as_written(str(error)).partition("\n")[0]
            raise self._refused(
                f"a model cannot be told of its parameter {name}: {reason}",
                "Give it a type that JSON has, as str, int, list[str], Literal[…] or a dataclass.",
            ) from error
        if text:
            return text
        notes = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
        first_note = next((note for note in notes if isinstance(note, str)), None)
        return first_note or schema.get("description")

    def given(self, arguments: Mapping[str, JSONValue], key: Callable[[], str]) -> dict[str, Any]:
        """Returns the arguments as the function takes them. Raises ToolFailed."""
        from pydantic import ValidationError

        try:
            model = self._model.model_validate(arguments)
        except ValidationError as error:  # of a rule that the schema cannot say
            raise ToolFailed(f"the arguments do not fit: {error}") from None
        values = {
            name: getattr(model, f"p{position}")
            for position, name in enumerate(self._names)
            if name in arguments
        }
        if self.takes_key:
            values[KEY] = key()
        return values

    def here(self, values: Mapping[str, Any]) -> str:
        """Calls it in this thread. Raises ToolFailed."""
        with user_code():
            outcome = outcome_of(self._caught, values, self._root, self._source, dict, _text)
        return _text_of(outcome)

    async def awaited(self, values: Mapping[str, Any]) -> str:
        """Calls it in the event loop. Raises ToolFailed."""
        outcome = await awaited_outcome(self._caught, self._root, self._source, values, dict, _text)
        return _text_of(outcome)

    def _caught(self, values: Mapping[str, Any]) -> Any:
        """Calls the function, and returns ToolFailed if it raises that."""
        try:
            return self._function(**values)
        except ToolFailed as failed:
            return failed


def _text_of(outcome: str | RowError) -> str:
    """Returns the text of a result. Raises ToolFailed if there is none."""
    if isinstance(outcome, RowError):
        raise ToolFailed(outcome.message, again=True)
    return outcome


def _text(value: Any, named: str) -> str:
    """Returns a result as the model is sent it: text as it is, other values as JSON."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, ToolFailed):
        raise value
    try:
        value = plain(value if isinstance(value, str) else to_jsonable_python(value))
        return value if isinstance(value, str) else canonical(value)
    except (Unfit, ValueError) as error:  # Pydantic's own is a ValueError
        raise ToolFailed(f"what {named} gave cannot be written as JSON: {error}") from None


def _accepted(hint: Any) -> Any:
    """Returns a type as Pydantic takes it, which before Python 3.12 refuses
    `typing.TypedDict`."""
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        import typing_extensions

        hints = typing.get_type_hints(hint, include_extras=True)
        fields = {name: _accepted(inner) for name, inner in hints.items()}
        for name in hint.__optional_keys__:
            fields[name] = typing_extensions.NotRequired[fields[name]]
        make: Any = typing_extensions.TypedDict
        return make(hint.__name__, fields)
    origin: Any = get_origin(hint)
    args = get_args(hint)
    if origin is Literal:
        return hint
    accepted = tuple(map(_accepted, args))
    if accepted == args:
        return hint
    if origin is UnionType:
        return reduce(or_, accepted)
    return origin[accepted]


# Docstrings: the text before the first section, and what the one about parameters says of each, in
# the styles of Google (`Args:`), numpy (`Parameters` over a line of dashes) and Sphinx (`:param
# name: text`).

_ABOUT = ("args", "arguments", "parameters", "params")
_OTHERS = "Returns?|Raises|Yields?|Examples?|Notes?|References|Attributes|See Also|Warnings?|Todo"
_SECTION = re.compile(rf"({'|'.join(map(str.title, _ABOUT))}|{_OTHERS})(:?)\Z")
_FIELD = re.compile(r":(\w+)\s*([^:]*):\s*(.*)\Z")
_FIELDS_ABOUT = ("param", "parameter", "arg", "argument", "key", "keyword")
_ENTRY = {
    True: re.compile(r"([\w, ]+?)\s*(?::.*)?(?P<text>)\Z"),
    False: re.compile(r"(\w+)\s*(?:\(.*?\))?\s*:\s*(?P<text>.*)\Z"),
}
"""A line that begins a parameter: of numpy, and of Google."""


def documented(doc: str) -> tuple[str, dict[str, str]]:
    """Splits a docstring, its indentation cleaned, into the function's text and its parameters'."""
    reader = _DocstringReader()
    lines = doc.split("\n")
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        reader.read(line, is_underlined=_is_rule(below))
    texts = {name: " ".join(filter(None, parts)) for name, parts in reader.parameters.items()}
    description = "\n".join(reader.description).strip()
    return description, {name: text for name, text in texts.items() if text}


def _is_rule(line: str) -> bool:
    """True for a line of dashes or equals signs, which underlines the heading above it."""
    text = line.strip()
    return bool(text) and not text.strip("-=")


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


class _DocstringReader:
    """Takes the lines of one docstring, in any of the three styles."""

    def __init__(self) -> None:
        self.description: list[str] = []
        self.parameters: dict[str, list[str]] = {}
        self._section = ""
        self._is_numpy = False
        self._indent = 0
        """Indentation of the entries in this section; 0 until its first entry."""
        self._entry: list[str] = []
        """The texts of the entry that further lines belong to."""

    def read(self, line: str, *, is_underlined: bool) -> None:
        text = line.strip()
        sphinx_field = _FIELD.match(text)
        if sphinx_field:
            self._begin_field(sphinx_field)
            return
        heading = _SECTION.match(text) if line == text else None
        if heading and (heading[2] or is_underlined):
            self._section = heading[1].lower()
            self._is_numpy = is_underlined
            self._indent = 0
            self._entry = []
        elif not self._section:
            self.description.append(line)
        elif self._section in _ABOUT and text.strip("-="):
            self._read_parameter(line, text)
        elif self._section == "fields" and text:
            self._entry.append(text)

    def _begin_field(self, sphinx_field: re.Match[str]) -> None:
        self._section = "fields"
        self._entry = []
        word, names, text = sphinx_field.groups()
        if word in _FIELDS_ABOUT and names:
            self._entry = self.parameters.setdefault(names.split()[-1], [text])

    def _read_parameter(self, line: str, text: str) -> None:
        """Takes a line of a section about parameters: a new entry, or more text of the last."""
        self._indent = self._indent or _indent_of(line)
        first_column = 0 if self._is_numpy else self._indent
        if _indent_of(line) == first_column:
            entry = _ENTRY[self._is_numpy].match(text)
        else:
            entry = None
        if entry is None:
            self._entry.append(text)
            return
        self._entry = [entry["text"]]
        for name in entry[1].split(","):
            self.parameters[name.strip()] = self._entry

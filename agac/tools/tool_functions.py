"""Functions as tools: what a model is told of them, by their type hints and docstrings; their
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
from agac.tools.functions import (
    Unfit,
    awaited_outcome,
    import_function,
    outcome_of,
    plain,
    user_code,
)

if TYPE_CHECKING:
    from pydantic import BaseModel

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")  # names of tools that every provider takes
# a parameter that agac fills, the same for a call that is made again; models do not see it
KEY = "idempotency_key"
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """What `agac.tool` says of a function, kept as its attribute `agac_tool`; None: as the
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
    told = {
        key: keys.pop(key) for key in ("name", "description", "max_chars", "version") if key in keys
    }
    declared = DeclaredTool(**told, rules=ToolRules(**keys))

    def declare(function: Any) -> Any:
        function.agac_tool = declared
        return function

    return declare if function is None else declare(function)


class Intent:
    """That a call is about to be made. What runs a tool begins it when nothing is waited for any
    more but the call itself. This one keeps nothing: it is of calls that may be made again."""

    is_kept = False
    is_begun = False

    async def begin(self) -> None:
        """Returns when a kill from now on is known to have come after this."""

    def withdraw(self) -> None:
        """The call was not made after all."""

    def close(self) -> None:
        """Nothing waits for the call any more, so that it may not be begun either."""


NO_INTENT = Intent()


class ToolFailed(Exception):
    """A call that gave no result; the text is for the model. `again`: another try may help."""

    def __init__(self, text: str, *, again: bool = False) -> None:
        super().__init__(text)
        self.again = again


class ToolTimeout(ToolFailed):
    """A call that took too long, and was given up."""


class SessionGone(Exception):
    """A server's session cannot be used any more; the text says why. `sent`: the server may have
    got the call."""

    def __init__(self, why: str, *, sent: bool = True) -> None:
        super().__init__(why)
        self.sent = sent


class ToolLost(Exception):
    """A call that fails its row, or with `anew` lets its conversation begin anew. `made`: it may
    have been made."""

    def __init__(self, message: str, *, anew: bool = False, made: bool = True) -> None:
        super().__init__(message)
        self.error = RowError(ErrorType.TOOL_SERVER_ERROR, message)
        self.anew = anew
        self.made = made


def describe(function: FunctionRef | Callable[..., Any], root: Path) -> ToolSpec:
    """What a model is told of a function. Raises UsageError: it cannot be imported, or has an
    unfit parameter."""
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
    """What `agac.tool` says of it."""
    found = getattr(function, "agac_tool", None)
    if isinstance(found, DeclaredTool):
        return found
    return DeclaredTool()


def _version(function: Callable[..., Any], root: Path) -> str:
    """Stands for a program's function: for its text, of its file with what that imports where that
    is the project's; and for what it holds: values around it, defaults, its object. Raises
    UsageError where nothing can."""
    inner = inspect.unwrap(function)
    home = home_of(root).resolve()
    said = declared_of(function).version
    own: Any = getattr(inner, "__func__", inner)
    try:
        file = Path(inspect.getsourcefile(inner) or "").resolve()
        is_own = file.is_relative_to(home)
        text = (source_hash(file, home)[0] if is_own else digest(inspect.getsource(inner))).hex()
    except (OSError, TypeError):  # made by a program, or written in C
        code = getattr(inner, "__code__", None)
        text = digest(
            source_of(inner) if code is None else code.co_code.hex() + repr(code.co_names)
        ).hex()
    try:
        if hasattr(own, "__closure__"):
            held = [cell.cell_contents for cell in own.__closure__ or ()]
        else:
            held = []
        held += [getattr(own, name, None) for name in ("__defaults__", "__kwdefaults__")]
        held = [one for one in (*held, getattr(inner, "__self__", None)) if one is not None]
        held = held if said is None else [said]
        if held:
            return digest(
                text + json.dumps(held, default=partial(_stand_in, root), sort_keys=True)
            ).hex()
        return text
    except Exception as error:  # the user's objects may bring code of their own
        what = f"{source_of(function)} cannot be a tool: nothing stands for what it holds: {error}"
        raise UsageError(what, remedy="Say what does, as @agac.tool(version='1').") from error


def _stand_in(root: Path, value: Any) -> Any:
    """What JSON takes for a value that it has not, in any process. Raises what refuses to be
    looked into."""
    if isinstance(value, bytes | set | frozenset):
        if isinstance(value, bytes):
            return value.hex()
        return sorted(map(repr, value))
    if isinstance(value, type | ModuleType):
        return f"{value.__dict__.get('__module__')}:{value.__name__}"
    if isinstance(value, FunctionType | MethodType):
        return _version(value, root)
    reduced = dispatch_table.get(type(value))  # as for pickle, which a lock and a connection refuse
    made: Any = value.__reduce_ex__(4) if reduced is None else reduced(value)
    if isinstance(made, str):
        return f"{value.__module__}:{made}"
    return [
        source_of(made[0]),
        *(list(one) if isinstance(one, Iterator) else one for one in made[1:]),
    ]


def load_tool(
    spec: ToolSpec, root: Path, functions: Mapping[str, Callable[..., Any]]
) -> ToolFunction:
    """The function of a tool, a program's by `source`, else a file's. Raises UsageError: it is
    gone, or was changed."""
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


class ToolFunction:
    """A function called with arguments by name, whose JSON Schema is `parameters`. `takes_key`:
    also a key, `KEY`."""

    def __init__(self, function: Callable[..., Any], source: str, root: Path) -> None:
        """Raises UsageError for a parameter that no model can be told of."""
        self._function = function
        self._source = source
        self._root = home_of(root)
        called = (inspect.unwrap(function), getattr(function, "__call__", None))  # noqa: B004  (an object may await)
        self.is_async = any(map(inspect.iscoroutinefunction, called))
        self.description, told = documented(inspect.getdoc(function) or "")
        with redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a default that JSON has not: it is not shown
            hints, self.takes_key = self._hints()
            self._names, self._model = list(hints), self._arguments(hints, told)
            body = self._model.model_json_schema()
        for _, sub in subschemas(body):
            if isinstance(sub.get("title"), str):
                del sub["title"]
        body.pop("description", None)
        self.parameters: dict[str, JSONValue] = {"type": "object", "properties": {}, **body}

    def _refused(self, what: str, remedy: str) -> UsageError:
        return UsageError(f"{self._source} cannot be a tool: {what}", remedy=remedy)

    def _hints(self) -> tuple[dict[str, tuple[Any, Any]], bool]:
        """The type and the default of each parameter that a model is told of; whether there is one
        for the key."""
        try:
            declared = inspect.signature(self._function)
            hints = typing.get_type_hints(inspect.unwrap(self._function), include_extras=True)
        except (NameError, TypeError, ValueError, AttributeError) as error:
            what = f"its type hints cannot be read: {as_written(str(error))}"
            raise self._refused(what, "Import what they name at the top of its file.") from error
        found: dict[str, tuple[Any, Any]] = {}
        for one in declared.parameters.values():
            if one.name == KEY:
                continue
            if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
                if one.kind is one.VAR_KEYWORD:
                    sign = "**"
                elif one.kind is one.VAR_POSITIONAL:
                    sign = "*"
                else:
                    sign = ""
                remedy = "Write out each parameter by name, with its type; none before a `/`."
                raise self._refused(
                    f"a model cannot be told of its parameter {sign}{one.name}", remedy
                )
            if one.name not in hints:
                raise self._refused(
                    f"its parameter {one.name} has no type", f"Write a type, as {one.name}: str."
                )
            found[one.name] = (hints[one.name], one.default)
        return found, KEY in declared.parameters

    def _arguments(
        self, hints: Mapping[str, tuple[Any, Any]], told: Mapping[str, str]
    ) -> type[BaseModel]:
        """A model of the arguments, whose fields are named by their places, so that every name may
        be a parameter's."""
        # 0.1 s, and few stages have tools
        from pydantic import ConfigDict, Field, TypeAdapter, create_model

        fields: dict[str, Any] = {}
        for place, (name, (hint, default)) in enumerate(hints.items()):
            hint = _known(hint)
            if get_origin(hint) is Annotated:
                texts = [one for one in get_args(hint)[1:] if isinstance(one, str)]
            else:
                texts = []
            try:
                schema = TypeAdapter(hint).json_schema()
            except Exception as error:  # the user's types may bring code of their own
                reason = as_written(str(error)).partition("\n")[0]
                remedy = (
                    "Give it a type that JSON has, as str, int, list[str], Literal[…] or a "
                    "dataclass."
                )
                raise self._refused(
                    f"a model cannot be told of its parameter {name}: {reason}", remedy
                ) from error
            about = told.get(name) or next(iter(texts), None) or schema.get("description")
            how: dict[str, Any] = {"alias": name, "description": about}
            if default is not inspect.Parameter.empty:
                how["default"] = default
            fields[f"p{place}"] = (hint, Field(**how))
        return create_model(
            "Arguments",
            __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True),
            **fields,
        )

    def given(self, arguments: Mapping[str, JSONValue], key: Callable[[], str]) -> dict[str, Any]:
        """The arguments as the function takes them. Raises ToolFailed."""
        from pydantic import ValidationError

        try:
            model = self._model.model_validate(arguments)
        except ValidationError as error:  # of a rule that the schema cannot say
            raise ToolFailed(f"the arguments do not fit: {error}") from None
        passed = {
            name: getattr(model, f"p{place}")
            for place, name in enumerate(self._names)
            if name in arguments
        }
        return passed | ({KEY: key()} if self.takes_key else {})

    def here(self, given: Mapping[str, Any]) -> str:
        """Calls it in this thread. Raises ToolFailed."""
        with user_code():
            return _told(outcome_of(self._caught, given, self._root, self._source, dict, _text))

    async def awaited(self, given: Mapping[str, Any]) -> str:
        """Calls it in the event loop. Raises ToolFailed."""
        return _told(
            await awaited_outcome(self._caught, self._root, self._source, given, dict, _text)
        )

    def _caught(self, given: Mapping[str, Any]) -> Any:
        try:
            return self._function(**given)
        except ToolFailed as failed:
            return failed


def _told(outcome: str | RowError) -> str:
    if isinstance(outcome, RowError):
        raise ToolFailed(outcome.message, again=True)
    return outcome


def _text(value: Any, named: str) -> str:
    """A result as the model is told it: text as it is, other values as JSON."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, ToolFailed):
        raise value
    try:
        value = plain(value if isinstance(value, str) else to_jsonable_python(value))
        return value if isinstance(value, str) else canonical(value)
    except (Unfit, ValueError) as error:  # Pydantic's own is a ValueError
        raise ToolFailed(f"what {named} gave cannot be written as JSON: {error}") from None


def _known(hint: Any) -> Any:
    """A type as Pydantic takes it, which before Python 3.12 refuses `typing.TypedDict`."""
    if typing.is_typeddict(hint) and type(hint).__module__ == "typing":
        import typing_extensions

        own = {
            name: _known(one)
            for name, one in typing.get_type_hints(hint, include_extras=True).items()
        }
        own |= {name: typing_extensions.NotRequired[own[name]] for name in hint.__optional_keys__}
        make: Any = typing_extensions.TypedDict
        return make(hint.__name__, own)
    origin: Any = get_origin(hint)
    args = get_args(hint)
    known = args if origin is Literal else tuple(map(_known, args))
    if known == args:
        return hint
    if origin is UnionType:
        return reduce(or_, known)
    return origin[known]


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

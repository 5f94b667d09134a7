"""Checks of single values in files, used by the models: they return the value, or raise with a
whole sentence."""

from __future__ import annotations

import json
import math
import operator
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from agac.core.errors import did_you_mean
from agac.core.redact import KEY, KEY_SHAPE, KEY_STARTS, SECRET_START, TOKEN_SHAPE
from agac.core.types import DayTime, first_repeated

# What AgentCards may hold elsewhere and agac does not do yet, so that a card is refused by the name
# of its field.

FIELDS_LATER = frozenset(
    {
        "url",
        "transport",
        "streaming",
        "polling",
        "accepted_output_modes",
        "headers",
        "auth",
        "relative_card_path",
        "request_timeout_seconds",
    }
)

PARAMS_NEVER = frozenset(
    {
        "messages",
        "tools",
        "tool_choice",
        "task",
        "template_vars",
        "mcp_metadata",
        "tool_execution_handler",
        "batch_context",
        "response_format",
    }
)

_TWO_WORDS = (
    "max_tokens",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop_sequences",
    "service_tier",
    "max_iterations",
    "parallel_tool_calls",
    "structured_tool_policy",
    "tool_result_mode",
    "streaming_timeout",
    "structured_schema",
)
CAMEL_CASE = {re.sub("_(.)", lambda found: found[1].upper(), name): name for name in _TWO_WORDS}
"""Other spellings of request parameters, as `maxTokens`."""

_LATER = "`{}` is not supported yet; remove it from the card, or use another card for this stage"
_PARAMS = ("temperature", *CAMEL_CASE.values())
CARD_HINTS = {
    "": {
        **{field: _LATER.format(field) for field in FIELDS_LATER},
        **{field: f"unknown key; did you mean `request_params.{field}`?" for field in _PARAMS},
    },
    "request_params": {
        **dict.fromkeys(PARAMS_NEVER, "belongs to a program, not to a card; remove it"),
        # a camelCase key is only unknown beside its other spelling
        **{
            camel: f"{camel} and {key} are two spellings of one key; keep one"
            for camel, key in CAMEL_CASE.items()
        },
        "model": "unknown key; the card's own `model` says which model runs",
    },
}
"""Sentences for unknown keys of a card, by the path of their mapping."""

_NAME = r"[A-Za-z_][A-Za-z0-9_-]*"
_LETTERS = "use letters, digits, _ and -, and start with a letter"
_VARIABLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")

_LITERAL_KEY = "looks like a secret; write ${MY_KEY} and put the key in .env"
_TIME = r"(\d+(?:\.\d+)?)\s*([smhdw])"
_DAY_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)\Z")
_SIZE = r"(\d+(?:\.\d+)?)\s*(B|kB|KB|MB|GB|KiB|MiB|GiB)"
_BYTES = {
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
RESERVED_NAMES = (
    "vars",
    "row",
    "row_json",
    "rows_json",
    "rows_count",
    "rows_failed",
    "item",
    "index",
)

# The same in the regular expressions of JSON Schema, for editors; a check here may be stricter,
# never looser.
STAGE_NAME_FORM = {
    "pattern": f"^(?!(?:{'|'.join(RESERVED_NAMES)})$){_NAME}$",
    "patternErrorMessage": (
        "letters, digits, _ and -; starts with a letter or _; not vars and not row_json"
    ),
}
TIME_FORM = {
    "pattern": f"^{_TIME}$",
    "patternErrorMessage": "write a time as 90, 90s, 30m, 12h, 7d or 2w",
}
SIZE_FORM = {
    "pattern": f"^{_SIZE}$",
    "patternErrorMessage": "write a size as 500kB, 100MB, 1GB or 64MiB",
}
SHARE_FORM = {
    "pattern": r"^\d+(\.\d+)?\s*%$",
    "patternErrorMessage": "write a share of rows as 2% or 0.02",
}
API_KEY_FORM = {"pattern": f"^(?!{KEY_STARTS})(?!{KEY}$)", "patternErrorMessage": _LITERAL_KEY}


def refused(message: str) -> PydanticCustomError:
    """An error whose message is shown as it is. The braces keep pydantic from formatting the
    sentence."""
    return PydanticCustomError("sentence", "{sentence}", {"sentence": message})


NO_VALUE = "has no value; give one or remove the key"
NULL_REFUSED = "null"  # the type of the error for a null where the key may be left out


def no_value(*, optional: bool) -> PydanticCustomError:
    """The error for None in the place of a value, of a key that is `optional` or has to be
    there."""
    if optional:
        return PydanticCustomError(NULL_REFUSED, NO_VALUE)
    return refused(NO_VALUE)


def _must(holds: Callable[[Any], object], message: str) -> Callable[[Any], Any]:
    """A check that a value holds; else it is refused with the message, in which it stands for
    `{!r}`."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise refused(message.format(value))
        return value

    return check


one_variable = _must(_VARIABLE.fullmatch, "is a secret; write ${{MY_KEY}} and put it in .env")
key_variable = _must(  # files with jobs are shared, and options are stored
    re.compile(r"\$\{\w+\}").fullmatch,
    "is written as the name of a variable, such as ${{API_KEY}}, and never as the key itself",
)
_named = re.compile(rf"{_NAME}\Z").match
_readable_name = _must(_named, f"{{!r}} is no stage name; {_LETTERS} or _")
var_name = _must(_named, f"{{!r}} is no name for a variable; {_LETTERS} or _")

provider_name = _must(
    re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z").match, f"{{!r}} is no provider name; {_LETTERS}"
)
"""No dot and no slash: both end the provider in a model string."""

# a token of RFC 9110
header_name = _must(re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z").match, "{!r} is no header name")

field_name = _must(
    lambda name: name == name.strip() and not set(name) & set(".{}\n"),
    "{!r} cannot be read as a field of a result; use letters, digits and _",
)
"""A name that `${stage.name}` can be read with."""

field_path = _must(
    lambda path: (
        "${" not in path and all(part and part == part.strip() for part in path.split("."))
    ),
    "{!r} is no field; write its name, or STAGE.FIELD, without braces",
)
"""A way to a field: `topic`, `classify.topic`."""

endpoint_prefix = _must(
    lambda value: not value or (value.startswith("/") and not value.endswith("/")),
    "{!r} is no start of a path; write it as /v1, or as '' for none",
)
"""Empty, or a path to which another is added."""

dialect = _must(
    lambda value: value not in ("gemini", "mistral"),
    "dialect {!r} is not supported yet; openai-chat, openai-responses and anthropic are",
)
_SYSTEM_ROLE = "{!r}: what the system message says stands in instructions"
message_role = _must(lambda value: value not in ("system", "developer"), _SYSTEM_ROLE)
nobody_there = _must(
    operator.not_, "`human_input: true` is not supported: a run cannot ask a person; remove it"
)
no_shell = _must(
    operator.not_,
    (
        "`shell: true` is not supported: no model is given a shell; name what it may do as "
        "function_tools"
    ),
)
no_subagents = _must(
    operator.not_,
    (
        "`subagents: true` is not supported; write a card for each agent that it may call, and "
        "name them as agents"
    ),
)
no_harness = _must(
    operator.not_, "`harness_tools: true` is not supported: a model does not run agac; remove it"
)
no_hooks = _must(
    operator.not_, "hooks are not supported; what they do can stand in a tool, or in a python stage"
)
no_agent_twice = _must(
    lambda names: len({*names}) == len(names), "{} names an agent twice; name each once"
)
no_messages = _must(
    operator.not_, "messages are for cards that ask a model themselves; name them there"
)
turns_or_none = _must(
    lambda turns: turns == -1 or turns >= 1, "must be at least 1, or -1 for no limit, not {}"
)
no_connector = _must(
    operator.not_, "{!r}: connectors at the provider are not supported; name the server's target"
)
managed_here = _must(
    lambda value: value != "provider",
    "`management: {}` is not supported: agac connects to servers itself; remove it",
)
result_mode = _must(
    lambda value: value != "selectable",
    "{!r} is not supported: nobody selects in a run; write postprocess, or passthrough",
)
writer_name = _must(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z").match,
    "{!r} is no name of a writer; write letters, digits, . _ -",
)
server_name = _must(
    re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}\Z").match, f"{{!r}} is no name of a server; {_LETTERS}"
)
"""Short, as it may stand before the names of its tools."""


def stage_name(name: str) -> str:
    """Letters, digits, `_` and `-`, so that `${name.field}` can be read."""
    if name in RESERVED_NAMES:
        raise refused(f"{name!r} has a meaning of its own in templates; choose another name")
    return str(_readable_name(name))


def no_repeats(names: list[str]) -> list[str]:
    """Each field once."""
    twice = first_repeated(names)
    if twice is not None:
        raise refused(f"names the field {twice!r} twice; name it once")
    lengths = {len(name) for name in names}  # the first part of each field
    parts = dict[str, str]()
    for name in names:
        for end in (at for at, sign in enumerate(name) if sign == "." and at in lengths):
            parts.setdefault(name[:end], name)
    whole = next((name for name in names if name in parts), None)
    if whole is not None:
        raise refused(f"{parts[whole]!r} is a part of {whole!r}; name one of them")
    return names


def csv_delimiter(sign: str) -> str:
    r"""What stands between two cells: one character, or `\t` as a shell hands it over."""
    sign = "\t" if sign == "\\t" else sign
    if len(sign) != 1 or sign in '"\r\n\0' or sign.isalnum():
        raise refused(f'{sign!r} is no delimiter; give one character, as ";" or "\\t"')
    return sign


def text_encoding(name: str) -> str:
    """A way to write text that Python knows."""
    try:
        b"\xff".decode(name, "replace")  # names of Python that are for no files are refused as well
    except (LookupError, ValueError):
        known = ("utf-8", "utf-16", "cp1252", "latin-1", "shift_jis", "gb18030", "mac_roman")
        raise refused(
            f"unknown encoding {name!r}; {did_you_mean(name, known, 'known, among others')}"
        ) from None
    return name


def field_way(name: str) -> str:
    """A field of a result, or with dots one inside of others."""
    for part in name.split("."):
        field_name(part)
        if not part:
            raise refused(
                f"{name!r} is no field of a result; write it as `label`, or `verdict.label`"
            )
    return name


def base_url(value: str) -> str:
    """`http://…` or `https://…`, or a variable; without credentials."""
    if value.startswith("${"):
        return value
    if not value.startswith(("http://", "https://")):
        raise refused(f"{value!r} is no address; it starts with http:// or https://")
    if "@" in urlsplit(value).netloc:
        raise refused(
            "has a user or a password in it; put credentials into api_key or headers as ${VARIABLE}"
        )
    return value


def web_address(value: str) -> str:
    """An address to which messages go: many of them hold a secret, which stands in no file."""
    if any(map(TOKEN_SHAPE.match, re.split("[/?&=]", _without_variables(base_url(value))))):
        raise refused(_LITERAL_KEY)
    return value


def mcp_target(value: str) -> str:
    """A URL, or a command in one line; without credentials."""
    if "://" in next(iter(value.split()), ""):
        return base_url(value)
    _without_variables(value)
    try:
        shlex.split(value)
    except ValueError as error:
        raise refused(
            f"{value!r} cannot be split into a command and its arguments: {error}"
        ) from None
    return value


def ray_address(value: str) -> str:
    """Where a Ray cluster is."""
    if value != "auto" and not re.fullmatch(r"ray://[^\s/]+:\d+", value):
        raise refused(f"{value!r} is no cluster; write auto, or ray://host:10001")
    return value


def api_key(value: str) -> str:
    """Keys stand in the environment or in .env, never in a file that is committed. The value is
    never repeated."""
    if KEY_SHAPE.match(_without_variables(value)):
        raise refused(_LITERAL_KEY)
    return value


def header_value(value: str) -> str:
    """A single line; keys in it as `${VAR}`. Looser than `api_key`: most header values are no
    secrets."""
    words = _without_variables(value).split()
    if words and (
        (words[0].lower() in ("bearer", "basic") and len(words) > 1)
        or any(map(TOKEN_SHAPE.match, words))
    ):
        raise refused(_LITERAL_KEY)
    return value


def _without_variables(value: str) -> str:
    """What is left of a text without its `${VAR}`; refuses what is wrong whatever the text is
    for."""
    if "\n" in value or "\r" in value:
        raise refused("must be a single line")
    rest = _VARIABLE.sub("", value)
    if "${" in rest:
        raise refused("${…} takes the name of one variable: letters, digits and _, as in ${MY_KEY}")
    if any(SECRET_START.match(word) for word in rest.split()):
        raise refused(_LITERAL_KEY)
    return rest


def _or_short(
    kind: type, short: Any, whole: Callable[[Any], Any], expected: str
) -> Callable[[Any], Any]:
    """A check that makes the `whole` of its `short` form; what is neither is refused with what was
    `expected`."""

    def check(value: Any) -> Any:
        if isinstance(value, kind) or value is None:
            return value
        if isinstance(value, bool) or not isinstance(value, short):
            raise refused(f"expected {expected}")
        return whole(value)

    return check


def _list_of(expected: str) -> Callable[[Any], Any]:
    return _or_short(list, str, lambda one: [one], expected)


def _mapping_with(key: str, short: Any, expected: str) -> Callable[[Any], Any]:
    return _or_short(dict, short, lambda value: {key: value}, expected)


one_or_many = _list_of("the name of a stage")
kinds = _list_of("a kind of message, or a list of them")
targets = _or_short(list, dict, lambda one: [one], "a mapping, or a list of them")
field_or_fields = _list_of("FIELD or STAGE.FIELD, or a list of them")
paths = _list_of("a path, or a list of paths")
model_or_chain = _list_of("provider/model, or a list of them")
vote = _mapping_with("field", str, "the name of a field, or a mapping with field and lead")
input_mapping = _mapping_with("path", str | list, "a path, a list of paths, or a mapping with path")
budget = _mapping_with(
    "usd", int | float, "a number of US dollars, or a mapping with usd, tokens and calls"
)
batch_api = _mapping_with("api", str, "openai, anthropic, none, or a mapping with api")
_TIMES = "a number of seconds or a mapping with connect, first_byte, total"
seconds_or_parts = _mapping_with("total", int | float, _TIMES)


def named_tools(value: Any) -> Any:
    """A list of tools as a mapping in which none of them has keys."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        twice = first_repeated(value)
        if twice is not None:
            raise refused(f"names {twice!r} twice; name it once")
        return {name: {} for name in value}
    if isinstance(value, dict) or value is None:
        return value
    raise refused("expected a list of tools, or a mapping of tools to how each is run")


def conditions(value: Any) -> Any:
    """A mapping of conditions to messages as the list that it is short for."""
    if isinstance(value, dict):
        return [{"check": text, "message": said} for text, said in value.items()]
    return value


def formats(value: Any) -> Any:
    """One format is a list of one, and each counts once. What is no format of a file gets a
    sentence of its own."""
    formats = value if isinstance(value, list) else [value]
    for name in formats:
        if name in ("json", "jsonl", "ndjson"):
            raise refused(
                f"{name!r}: results.jsonl and results.json are always written; leave it out"
            )
        if name in ("sqlite", "db"):
            raise refused(
                f"{name!r} goes into a table: write to: sqlite://data/out.db?table=results instead"
            )
    if all(isinstance(name, str) for name in formats):
        return list(dict.fromkeys(formats))
    return formats


def entrypoints(value: Any) -> Any:
    """One function, or several, each as a text or a mapping."""
    several = value if isinstance(value, list) else [value]
    return [{"entrypoint": one} if isinstance(one, str) else one for one in several]


def named_servers(value: Any) -> Any:
    """A list of servers as a mapping, by their names or what their targets end with."""
    if not isinstance(value, list):
        return value
    found: dict[Any, Any] = {}
    for one in value:
        if not isinstance(one, dict):
            raise refused("expected a mapping with target for each server")
        target = str(one.get("target") or one.get("connector_id") or "server")
        name = one.get("name") or re.sub(
            "[^A-Za-z0-9_-]+", "-", urlsplit(target).hostname or target.split("/")[-1]
        )
        if name in found:
            raise refused(f"two servers are called {name!r}; give each its own name")
        found[name] = one
    return found


def camel_case(value: Any) -> Any:
    """Reads the camelCase that cards may use (`extra` refuses both at once); `streaming_timeout:
    null` is none."""
    if not isinstance(value, dict):
        return value
    value = {
        key: math.inf if key == "streaming_timeout" and one is None else one
        for key, one in value.items()
    }
    return {
        key if (snake := CAMEL_CASE.get(key)) is None or snake in value else snake: v
        for key, v in value.items()
    }


def split_chain(data: Any) -> Any:
    """`model: [a, b, c]` in a mapping as `model: a` and `fallback: [b, c]`. Anything else is
    judged elsewhere."""
    if not isinstance(data, dict) or not isinstance(data.get("model"), list):
        return data
    first, *others = data["model"] or [None]
    if first is None:
        raise refused("model is an empty list; name at least one model")
    if not others:
        return data | {"model": first}
    if data.get("fallback") is not None:
        raise refused(
            "model is a list, which names the fallbacks too; leave out fallback, or give "
            "model one name"
        )
    return data | {"model": first, "fallback": others}


def _amount(
    kind: type[float], form: str, units: Mapping[str, int], expected: str, wrong: str
) -> Callable[[Any], Any]:
    """A check that gives a number of this kind: of a number, or of a text of this form, which ends
    with a unit."""

    def check(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, (str, int, kind)):
            raise refused(f"expected {expected}")
        if not isinstance(value, str):
            return kind(value)
        match = re.fullmatch(form, value)
        if match is None:
            raise refused(f"{value!r} is no {wrong}")
        return kind(float(match[1]) * units[match[2]])

    return check


duration = _amount(
    float,
    _TIME,
    _SECONDS,
    "a time as 90, 30m, 12h or 7d",
    "time; write it as 90s, 30m, 12h, 7d or 2w",
)
size = _amount(
    int,
    _SIZE,
    _BYTES,
    "a size as 5000000, 500kB or 100MB",
    "size; write it as 500kB, 100MB, 1GB or 64MiB",
)


def share(value: Any) -> float:
    """A part of rows: a percentage as text, or a number between 0 and 1."""
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value)
    else:
        found = None
    part = float(found[1]) / 100 if found else value
    if isinstance(part, bool) or not isinstance(part, int | float) or not 0 <= part <= 1:
        raise refused(f"{value!r} is no share of rows; write it as 2% or 0.02")
    return float(part)


def deadline(value: Any) -> float | DayTime:
    """A time as `duration` reads it, or a time of day."""
    if isinstance(value, str) and (match := _DAY_TIME.match(value)):
        return DayTime(int(match[1]), int(match[2]))
    try:
        seconds: float = duration(value)
    except PydanticCustomError:
        raise refused(
            f"{value!r} is no deadline; write a time as 90m or 8h, or a time of day as 07:30"
        ) from None
    if not seconds > 0:
        raise refused(f"must be more than 0, not {value!r}")
    return seconds


def schema_form(value: Any) -> Any:
    """A path, `python:…`, a mapping, or in Python a class; which of them is decided where it is
    resolved."""
    if isinstance(value, bool) or not isinstance(value, (str, dict, type)):
        raise refused("expected a file, a JSON Schema, {field: type, …} or python:module.Class")
    if not value:
        raise refused("is empty; name a file or list the fields of the result")
    return value


def message_content(value: Any) -> Any:
    """Text, or a result as JSON. A mapping is sent as it stands, so a placeholder in it would be
    read by nobody."""
    if (
        not isinstance(value, (str, dict, list))
        or not value
        or (isinstance(value, str) and not value.strip())
    ):
        raise refused("expected text, or a result as a mapping or a list, and not empty")
    if not isinstance(value, str) and "${" in json.dumps(value, ensure_ascii=False):
        raise refused("holds a placeholder, which is filled in text only; write the JSON as text")
    return value

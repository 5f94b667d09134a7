"""Checks of single values in files, used by the models: they return the value, or raise with a
whole sentence. Those of AgentCards are in `card_checks`."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from pydantic_core import PydanticCustomError

from agac.core.errors import did_you_mean
from agac.core.redact import KEY, KEY_SHAPE, KEY_STARTS, SECRET_START, TOKEN_SHAPE
from agac.core.types import DayTime, first_repeated

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
    """Returns an error whose message is shown as it is. The braces keep pydantic from formatting
    the sentence."""
    return PydanticCustomError("sentence", "{sentence}", {"sentence": message})


NO_VALUE = "has no value; give one or remove the key"
NULL_REFUSED = "null"  # the type of the error for a null where the key may be left out


def no_value(*, optional: bool) -> PydanticCustomError:
    """Returns the error for a key without a value; an `optional` key may be left out."""
    if optional:
        return PydanticCustomError(NULL_REFUSED, NO_VALUE)
    return refused(NO_VALUE)


def must(holds: Callable[[Any], object], message: str) -> Callable[[Any], Any]:
    """Makes a check that returns a value that holds, and refuses another with this message, in
    which the value replaces `{!r}`."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise refused(message.format(value))
        return value

    return check


one_variable = must(_VARIABLE.fullmatch, "is a secret; write ${{MY_KEY}} and put it in .env")
key_variable = must(  # files with jobs are shared, and options are stored
    re.compile(r"\$\{\w+\}").fullmatch,
    "is written as the name of a variable, such as ${{API_KEY}}, and never as the key itself",
)
_named = re.compile(rf"{_NAME}\Z").match
_readable_name = must(_named, f"{{!r}} is no stage name; {_LETTERS} or _")
var_name = must(_named, f"{{!r}} is no name for a variable; {_LETTERS} or _")

provider_name = must(
    re.compile(r"[A-Za-z][A-Za-z0-9_-]*\Z").match, f"{{!r}} is no provider name; {_LETTERS}"
)
"""No dot and no slash: both end the provider in a model string."""

# a token of RFC 9110
header_name = must(re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z").match, "{!r} is no header name")

field_name = must(
    lambda name: name == name.strip() and not set(name) & set(".{}\n"),
    "{!r} cannot be read as a field of a result; use letters, digits and _",
)
"""A name that `${stage.name}` can be read with."""

field_path = must(
    lambda path: (
        "${" not in path and all(part and part == part.strip() for part in path.split("."))
    ),
    "{!r} is no field; write its name, or STAGE.FIELD, without braces",
)
"""A way to a field: `topic`, `classify.topic`."""

endpoint_prefix = must(
    lambda value: not value or (value.startswith("/") and not value.endswith("/")),
    "{!r} is no start of a path; write it as /v1, or as '' for none",
)
"""Empty, or a path to which another is added."""

dialect = must(
    lambda value: value not in ("gemini", "mistral"),
    "dialect {!r} is not supported yet; openai-chat, openai-responses and anthropic are",
)
_SYSTEM_ROLE = "{!r}: what the system message says stands in instructions"
message_role = must(lambda value: value not in ("system", "developer"), _SYSTEM_ROLE)
writer_name = must(
    re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z").match,
    "{!r} is no name of a writer; write letters, digits, . _ -",
)
server_name = must(
    re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}\Z").match, f"{{!r}} is no name of a server; {_LETTERS}"
)
"""Short, as it may stand before the names of its tools."""


def stage_name(name: str) -> str:
    """Accepts letters, digits, `_` and `-`, so that `${name.field}` can be read."""
    if name in RESERVED_NAMES:
        raise refused(f"{name!r} has a meaning of its own in templates; choose another name")
    return str(_readable_name(name))


def no_repeats(names: list[str]) -> list[str]:
    """Accepts fields of which none is named twice, or is a part of another."""
    repeated = first_repeated(names)
    if repeated is not None:
        raise refused(f"names the field {repeated!r} twice; name it once")
    lengths = {len(name) for name in names}  # other beginnings are no names
    parts = dict[str, str]()  # the first field that begins with it
    for name in names:
        for end, sign in enumerate(name):
            if sign == "." and end in lengths:
                parts.setdefault(name[:end], name)
    whole = next((name for name in names if name in parts), None)
    if whole is not None:
        raise refused(f"{parts[whole]!r} is a part of {whole!r}; name one of them")
    return names


def csv_delimiter(sign: str) -> str:
    r"""Accepts one character, or `\t` as a shell passes it on."""
    sign = "\t" if sign == "\\t" else sign
    if len(sign) != 1 or sign in '"\r\n\0' or sign.isalnum():
        raise refused(f'{sign!r} is no delimiter; give one character, as ";" or "\\t"')
    return sign


def text_encoding(name: str) -> str:
    """Accepts an encoding that Python knows."""
    try:
        b"\xff".decode(name, "replace")  # names of Python that are for no files are refused as well
    except (LookupError, ValueError):
        known = ("utf-8", "utf-16", "cp1252", "latin-1", "shift_jis", "gb18030", "mac_roman")
        raise refused(
            f"unknown encoding {name!r}; {did_you_mean(name, known, 'known, among others')}"
        ) from None
    return name


def field_way(name: str) -> str:
    """Accepts a field of a result, or with dots one inside of others."""
    for part in name.split("."):
        field_name(part)
        if not part:
            raise refused(
                f"{name!r} is no field of a result; write it as `label`, or `verdict.label`"
            )
    return name


def base_url(value: str) -> str:
    """Accepts `http://…` or `https://…`, or a variable; without credentials."""
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
    """Accepts an address for messages. Many of them hold a secret, which no file may have."""
    if any(map(TOKEN_SHAPE.match, re.split("[/?&=]", _without_variables(base_url(value))))):
        raise refused(_LITERAL_KEY)
    return value


def mcp_target(value: str) -> str:
    """Accepts a URL, or a command in one line; without credentials."""
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
    """Accepts the address of a Ray cluster."""
    if value != "auto" and not re.fullmatch(r"ray://[^\s/]+:\d+", value):
        raise refused(f"{value!r} is no cluster; write auto, or ray://host:10001")
    return value


def api_key(value: str) -> str:
    """Refuses a literal key: keys are in the environment or in .env, never in a file that is
    committed. The value is never repeated."""
    if KEY_SHAPE.match(_without_variables(value)):
        raise refused(_LITERAL_KEY)
    return value


def header_value(value: str) -> str:
    """Accepts a single line, with keys as `${VAR}`. Looser than `api_key`: most header values are
    no secrets."""
    words = _without_variables(value).split()
    is_credential = len(words) > 1 and words[0].lower() in ("bearer", "basic")
    if is_credential or any(map(TOKEN_SHAPE.match, words)):
        raise refused(_LITERAL_KEY)
    return value


def _without_variables(value: str) -> str:
    """Returns a text without its `${VAR}`; refuses what is wrong whatever the text is for."""
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
    """Makes a check that turns the `short` form of a value into the `whole`; the message for other
    values says what was `expected`."""

    def check(value: Any) -> Any:
        if isinstance(value, kind) or value is None:
            return value
        if isinstance(value, bool) or not isinstance(value, short):
            raise refused(f"expected {expected}")
        return whole(value)

    return check


def _list_of(expected: str) -> Callable[[Any], Any]:
    """Makes a check that turns a single text into a list of it."""
    return _or_short(list, str, lambda text: [text], expected)


def _mapping_with(key: str, short: Any, expected: str) -> Callable[[Any], Any]:
    """Makes a check that turns a single value into a mapping with it."""
    return _or_short(dict, short, lambda value: {key: value}, expected)


one_or_many = _list_of("the name of a stage")
kinds = _list_of("a kind of message, or a list of them")
targets = _or_short(list, dict, lambda target: [target], "a mapping, or a list of them")
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
    """Turns a list of tools into a mapping in which none of them has keys."""
    if isinstance(value, list) and all(isinstance(name, str) for name in value):
        repeated = first_repeated(value)
        if repeated is not None:
            raise refused(f"names {repeated!r} twice; name it once")
        return {name: {} for name in value}
    if isinstance(value, dict) or value is None:
        return value
    raise refused("expected a list of tools, or a mapping of tools to how each is run")


def conditions(value: Any) -> Any:
    """Turns a mapping of conditions to messages into the list that it is short for."""
    if isinstance(value, dict):
        return [{"check": text, "message": message} for text, message in value.items()]
    return value


def formats(value: Any) -> Any:
    """Turns one format into a list, in which each counts once. What is no format of a file has a
    message of its own."""
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


def split_chain(data: Any) -> Any:
    """Turns `model: [a, b, c]` in a mapping into `model: a` and `fallback: [b, c]`. Anything
    else is judged elsewhere."""
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
    """Makes a check that turns a number, or a text of this form, which ends with a unit, into a
    number of this kind."""

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
    """Reads a share of rows: a percentage as text, or a number between 0 and 1."""
    part = value
    if isinstance(value, str) and (match := re.fullmatch(r"(\d+(?:\.\d+)?)\s*%", value)):
        part = float(match[1]) / 100
    is_number = isinstance(part, int | float) and not isinstance(part, bool)
    if not is_number or not 0 <= part <= 1:
        raise refused(f"{value!r} is no share of rows; write it as 2% or 0.02")
    return float(part)


def deadline(value: Any) -> float | DayTime:
    """Reads a time as `duration` does, or a time of day."""
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
    """Accepts a path, `python:…`, a mapping, or in Python a class; which of them it is turns out
    later."""
    if isinstance(value, bool) or not isinstance(value, (str, dict, type)):
        raise refused("expected a file, a JSON Schema, {field: type, …} or python:module.Class")
    if not value:
        raise refused("is empty; name a file or list the fields of the result")
    return value


def message_content(value: Any) -> Any:
    """Accepts a text, or a result as JSON. A mapping is sent as it is: no placeholder in it would
    be replaced."""
    is_blank = not value or (isinstance(value, str) and not value.strip())
    if is_blank or not isinstance(value, (str, dict, list)):
        raise refused("expected text, or a result as a mapping or a list, and not empty")
    if not isinstance(value, str) and "${" in json.dumps(value, ensure_ascii=False):
        raise refused("holds a placeholder, which is filled in text only; write the JSON as text")
    return value

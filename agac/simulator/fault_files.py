"""Files of faults and of scripts: read, checked, and made into rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agac.core.errors import nearest
from agac.simulator.faults import (
    FAULTS,
    FOREIGN_FORMS,
    JUNK_BODIES,
    OPERATIONS,
    SELECTORS,
    SINGLE_PHASES,
    FaultRule,
)
from agac.simulator.kinds import (
    COUNT,
    TEXT,
    TRUTH,
    JsonObject,
    ValueKind,
    each,
    one_of,
    or_null,
    within,
)
from agac.simulator.settings import SimulatorError
from agac.simulator.tool_calls import ScriptRule

if TYPE_CHECKING:
    import yaml


def parse_rules(data: Any, source: str) -> list[FaultRule]:
    """Makes rules of a list; raises SimulatorError with every problem."""
    if not isinstance(data, list | None):
        example = "such as `- {kind: rate_limit, rate: 0.05}`"
        raise SimulatorError([f"{source}: a faults file is a list of rules, {example}"])
    check_items(data or [], f"{source}: faults", rule_problems)
    return [make_rule(index, item) for index, item in enumerate(data or [])]


def check_items(
    items: list[Any], where: str, problems_of: Callable[[Any, str], Iterator[str]]
) -> None:
    """Raises SimulatorError with every problem of every item."""
    problems: list[str] = []
    for index, item in enumerate(items):
        problems += problems_of(item, f"{where}[{index}]")
    if problems:
        raise SimulatorError(problems)


def make_rule(index: int, item: JsonObject) -> FaultRule:
    """Makes the rule of an item without problems."""
    fault = FAULTS[item["kind"]]
    conditions: JsonObject = {}
    values = dict(fault.defaults)
    for key, value in item.items():
        if key in fault.keys:
            values[key] = value
        elif key in ("at", "lines"):
            conditions[key] = frozenset(value if isinstance(value, list) else [value])
        elif key in ("first", "attempts"):
            conditions["first"] = value
        elif key not in ("kind", "always"):
            conditions[key] = value
    return FaultRule(item["kind"], index, values=values, **conditions)


def parse_script(data: Any, source: str) -> list[ScriptRule]:
    """Makes what a model says of a list of rules; raises SimulatorError with every problem."""
    items = data if isinstance(data, list) else [data]
    check_items(items, f"{source}: script", script_problems)
    return [ScriptRule(**item) for item in items]


def script_problems(item: Any, where: str) -> Iterator[str]:
    if not isinstance(item, dict) or ("reply" in item) == ("calls" in item):
        example = "such as `{match: Paris, reply: France}`"
        yield f"{where} must be a mapping with a `reply` or with `calls`, {example}"
        return
    for key, value in item.items():
        if key not in SCRIPT_KEYS:
            yield f"{where}.{key} must be left out; known: {', '.join(SCRIPT_KEYS)}"
        elif not SCRIPT_KEYS[key].fits(value):
            yield f"{where}.{key} must be {SCRIPT_KEYS[key].wanted}"


def load_rules(path: Path, parse: Callable[[Any, str], list[Any]] = parse_rules) -> list[Any]:
    """Reads a file of faults or a script, JSON for `.json`, else YAML.

    Raises SimulatorError with all that is wrong.
    """
    import yaml  # only who uses faults pays for it

    try:
        text = path.read_text(encoding="utf-8-sig")
        data = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
        return parse(data, str(path))
    except FileNotFoundError:
        problem = f"no such file: {path}"
    except OSError as error:
        problem = f"{path}: the file cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        problem = f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8"
    except json.JSONDecodeError as error:
        problem = f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
    except yaml.YAMLError as error:
        problem = f"{path}{yaml_problem(text, error)}"
    except ValueError as error:  # a date that does not exist, for one
        problem = f"{path}: not valid YAML: {error}"
    raise SimulatorError([problem])


def yaml_problem(text: str, error: yaml.YAMLError) -> str:
    """Returns where and why a text is not YAML."""
    import yaml

    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        return f"{place}: not valid YAML: {error.problem or error.context}"
    assert isinstance(error, yaml.reader.ReaderError)
    before = text[: error.position]
    line = before.count("\n") + 1
    column = error.position - before.rfind("\n")
    return f":{line}:{column}: not valid YAML: the character U+{error.character:04X}"


def rule_problems(item: Any, where: str) -> Iterator[str]:
    """Gives all that is wrong with an item of a faults file."""
    if not isinstance(item, dict):
        yield f"{where}: a rule is a mapping with a `kind`, not {item!r:.40}"
        return
    kind = item.get("kind")
    if not isinstance(kind, str) or kind not in FAULTS:
        what = "`kind` is missing"
        if kind is not None:
            what = f"unknown kind {kind!r:.40}{guess(kind, FAULTS)}"
        yield f"{where}: {what}; known: {', '.join(FAULTS)}"
        kind = None
    right: JsonObject = {}
    for key, value in item.items():
        if key == "kind":
            continue
        problem = key_problem(key, value, kind)
        if problem:
            yield f"{where}{problem}"
        else:
            right[key] = value
    if "first" in item and "attempts" in item:
        yield f"{where}: `first` and `attempts` mean the same; write one of them"
    if right.get("in_ms") and right.get("retry_after") is None:
        yield f"{where}.in_ms: says how `retry_after` is told, which is missing; add it"


def key_problem(key: Any, value: Any, kind: str | None) -> str:
    """Returns what is wrong with a key of a rule of this kind (None: an unknown one)."""
    known = FAULTS[kind].all_keys if kind else SELECTORS
    checks = KEYS | BATCH_KEYS
    if kind is None or FAULTS[kind].phase in SINGLE_PHASES:
        checks = BATCH_KEYS | KEYS
    if key not in checks:
        near = guess(key, known if kind else checks)
        return f": unknown key {key!r}{near}; known: {', '.join(known)}"
    if kind and key not in known:
        takers = ", ".join(name for name, other in FAULTS.items() if key in other.all_keys)
        return f": {kind!r} takes no key {key!r}; it is for: {takers}"
    if checks[key].fits(value):
        return ""
    return f".{key}: must be {checks[key].wanted}, not {value!r:.40}"


def guess(word: Any, known: Any) -> str:
    """Returns `; did you mean …?` if a known word is near."""
    near = nearest(str(word), known)
    return f"; did you mean {near!r}?" if near else ""


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def are_numbers(value: Any) -> bool:
    return value != [] and each(COUNT.fits)(value)


def is_scripted_call(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    return set(value) <= {"name", "arguments"}


A_TEXT = ValueKind(is_text, "a text")
A_COUNT = ValueKind(COUNT.fits, "a count of 1 or more")

KEYS: dict[str, ValueKind] = {
    "rate": ValueKind(within(0, 1), "a share from 0 to 1"),
    "at": ValueKind(are_numbers, "a list of request numbers, counted from 1"),
    "match": ValueKind(is_text, "a text to look for in the messages"),
    "first": A_COUNT,
    "attempts": A_COUNT,
    "always": ValueKind(lambda value: value is True, "true (or left out)"),
    "status": ValueKind(within(500, 599, int), "a status from 500 to 599"),
    "retry_after": ValueKind(or_null(within(0)), "a number of seconds, or null"),
    "in_ms": TRUTH,
    "seconds": ValueKind(within(0), "a number of seconds"),
    "after_bytes": ValueKind(or_null(within(0, kind=int)), "a count of bytes, or null"),
    "message": A_TEXT,
    "code": A_TEXT,
    "marked": TRUTH,
    "failed": TRUTH,
    "begun": TRUTH,
    "word": ValueKind(or_null(TEXT.fits), "a text, or null"),
}

SCRIPT_KEYS: dict[str, ValueKind] = {
    "match": ValueKind(each(is_text), "a text, or a list of texts"),
    "turn": A_COUNT,
    "reply": ValueKind(lambda value: isinstance(value, str | dict | list), "a text, or JSON"),
    "calls": ValueKind(
        lambda value: isinstance(value, list) and all(map(is_scripted_call, value)),
        "a list of calls such as {name: search, arguments: {query: lamps}}",
    ),
}

BATCH_KEYS: dict[str, ValueKind] = {
    "at": ValueKind(are_numbers, "a list of numbers of calls, counted from 1 for each operation"),
    "match": ValueKind(is_text, "a text to look for in the requests"),
    "status": ValueKind(within(400, 599, int), "a status from 400 to 599"),
    "lines": ValueKind(are_numbers, "a list of numbers of a batch's requests, counted from 1"),
    "op": one_of(*OPERATIONS),
    "when": ValueKind(lambda value: value in ("before", "after"), "before or after"),
    "type": A_TEXT,
    "times": A_COUNT,
    "line": ValueKind(COUNT.fits, "the number of a line, from 1"),
    "tokens": ValueKind(within(0, kind=int), "a count of tokens"),
    "after": ValueKind(within(0, kind=int), "a count of requests"),
    "word": A_TEXT,
    "form": one_of(*FOREIGN_FORMS),
    "body": one_of(*JUNK_BODIES),
    "size": A_COUNT,
    "bytes": A_COUNT,
}
"""The keys of rules about batches, where they differ from KEYS or are for batches alone."""

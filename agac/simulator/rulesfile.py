"""Faults files: YAML or JSON to rules, with every problem said at once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from agac.simulator.batches import rules as batches
from agac.simulator.batches.rules import BatchRule
from agac.simulator.faults import KINDS, Rule
from agac.simulator.settings import SimulatorError

SELECTORS = ("rate", "at", "match", "first", "attempts", "always")
CHOOSING = ("rate", "at", "match", "first", "lines")


ALL_KINDS = KINDS | batches.KINDS


def load_rules(path: Path) -> list[Rule | BatchRule]:
    """Reads a faults file; raises SimulatorError with all that is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise SimulatorError([f"no such file: {path}"]) from error
    except OSError as error:
        raise SimulatorError([f"{path}: the faults file cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise SimulatorError([f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8"]) from error
    return parse_rules(read_data(path, text), str(path))


def read_data(path: Path, text: str) -> Any:
    """What the file says: JSON for `.json`, else YAML."""
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise SimulatorError([f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"]) from error
    import yaml  # only who uses faults pays for it

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise SimulatorError([f"{where}: not valid YAML: {error.problem or error.context}"]) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = f"{path}:{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        raise SimulatorError([f"{where}: not valid YAML: the character U+{error.character:04X}"]) from error
    except ValueError as error:  # a date that does not exist, for one
        raise SimulatorError([f"{path}: not valid YAML: {error}"]) from error


def parse_rules(data: Any, source: str) -> list[Rule | BatchRule]:
    """Rules from a list, or from a mapping whose only key is `faults`; raises SimulatorError with every problem."""
    if isinstance(data, dict) and set(data) == {"faults"}:
        data = data["faults"]
    if data is None:
        return []
    if not isinstance(data, list):
        raise SimulatorError(
            [f"{source}: a faults file is a list of rules, such as `- {{kind: rate_limit, rate: 0.05}}`"]
        )
    problems: list[str] = []
    rules = []
    for index, item in enumerate(data):
        reading = Reading(f"{source}: faults[{index}]", index, problems)
        rule = reading.rule(item)
        if rule is not None:
            rules.append(rule)
    if problems:
        raise SimulatorError(problems)
    return rules


@dataclass(slots=True)
class Reading:
    """One rule being read: where it stands, and the list that its problems join."""

    where: str
    index: int
    problems: list[str]
    values: dict[str, Any] = field(default_factory=dict)

    def rule(self, item: Any) -> Rule | BatchRule | None:
        """The rule, or None when something is wrong with it."""
        before = len(self.problems)
        if not isinstance(item, dict):
            self.problems.append(f"{self.where}: a rule is a mapping with a `kind`, not {shown(item)}")
            return None
        kind = self.kind(item.get("kind"))
        for key, value in item.items():
            if key != "kind":
                self.take(key, value, kind)
        if "first" in item and "attempts" in item:
            self.problems.append(f"{self.where}: `first` and `attempts` mean the same; write one of them")
        if self.values.get("in_ms") and self.values.get("retry_after") is None:
            self.problems.append(f"{self.where}.in_ms: says how `retry_after` is told, which is missing; add it")
        if len(self.problems) > before or kind is None:
            return None
        if kind in batches.KINDS:
            chosen = {name: self.values.pop(name) for name in CHOOSING if name in self.values}
            return BatchRule(kind, self.index, values=batches.DEFAULTS.get(kind, {}) | self.values, **chosen)
        return Rule(kind, **self.values)

    def kind(self, value: Any) -> str | None:
        """The rule's kind, None when there is no such kind."""
        if isinstance(value, str) and value in ALL_KINDS:
            return value
        what = "`kind` is missing" if value is None else f"unknown kind {shown(value)}{guess(value, ALL_KINDS)}"
        self.problems.append(f"{self.where}: {what}; known: {', '.join(ALL_KINDS)}")
        return None

    def take(self, key: Any, value: Any, kind: str | None) -> None:
        """Checks one key and keeps its value."""
        if key not in CHECKS and key not in BATCH_CHECKS:
            known = keys_of(kind) if kind else SELECTORS
            near = guess(key, known if kind else CHECKS | BATCH_CHECKS)
            self.problems.append(f"{self.where}: unknown key {key!r}{near}; known: {', '.join(known)}")
            return
        if kind is not None and key not in keys_of(kind):
            takers = ", ".join(name for name in ALL_KINDS if key in keys_of(name))
            self.problems.append(f"{self.where}: {kind!r} takes no key {key!r}; it is for: {takers}")
            return
        checks = CHECKS | BATCH_CHECKS if kind in batches.KINDS else BATCH_CHECKS | CHECKS
        check, wanted = checks[key]
        if not check(value):
            self.problems.append(f"{self.where}.{key}: must be {wanted}, not {shown(value)}")
        elif key in ("at", "lines"):
            self.values[key] = frozenset(value if isinstance(value, list) else [value])
        elif key != "always":
            self.values["first" if key == "attempts" else key] = value


def keys_of(kind: str) -> tuple[str, ...]:
    """Every key that a rule of a kind takes."""
    return (*batches.SELECTORS.get(kind, SELECTORS), *ALL_KINDS[kind])


def shown(value: Any) -> str:
    """A value as a problem quotes it: bounded."""
    return repr(value)[:40]


def guess(word: Any, known: Any) -> str:
    """`; did you mean …?` when a known word is near."""
    near = get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_numbers_of_requests(value: Any) -> bool:
    return is_count(value) or (isinstance(value, list) and bool(value) and all(is_count(item) for item in value))


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "rate": (lambda value: is_number(value) and 0 <= value <= 1, "a share from 0 to 1"),
    "at": (is_numbers_of_requests, "a list of request numbers, counted from 1"),
    "match": (is_text, "a text to look for in the messages"),
    "first": (is_count, "a count of 1 or more"),
    "attempts": (is_count, "a count of 1 or more"),
    "always": (lambda value: value is True, "true (or left out)"),
    "status": (lambda value: is_count(value) and 500 <= value <= 599, "a status from 500 to 599"),
    "retry_after": (lambda value: value is None or (is_number(value) and value >= 0), "a number of seconds, or null"),
    "in_ms": (lambda value: isinstance(value, bool), "true or false"),
    "seconds": (lambda value: is_number(value) and value >= 0, "a number of seconds"),
    "after_bytes": (lambda value: value is None or is_count(value, 0), "a count of bytes, or null"),
    "message": (is_text, "a text"),
    "code": (is_text, "a text"),
    "marked": (lambda value: isinstance(value, bool), "true or false"),
    "failed": (lambda value: isinstance(value, bool), "true or false"),
}
"""What each key takes, and the words for it."""

BATCH_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "at": (is_numbers_of_requests, "a list of numbers of calls, counted from 1 for each operation"),
    "match": (is_text, "a text to look for in the requests"),
    "status": (lambda value: is_count(value) and 400 <= value <= 599, "a status from 400 to 599"),
    "lines": (is_numbers_of_requests, "a list of numbers of a batch's requests, counted from 1"),
    "op": (lambda value: value in batches.OPERATIONS, f"one of {', '.join(batches.OPERATIONS)}"),
    "when": (lambda value: value in ("before", "after"), "before or after"),
    "type": (is_text, "a text"),
    "times": (is_count, "a count of 1 or more"),
    "line": (is_count, "the number of a line, from 1"),
    "tokens": (lambda value: is_count(value, 0), "a count of tokens"),
    "after": (lambda value: is_count(value, 0), "a count of requests"),
    "word": (is_text, "a text"),
    "form": (lambda value: value in batches.FORMS, f"one of {', '.join(batches.FORMS)}"),
    "size": (is_count, "a count of 1 or more"),
}
"""What keys take in rules about batches, where that is something else, or they are for batches alone."""

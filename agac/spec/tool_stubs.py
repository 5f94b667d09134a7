"""Stand-ins for tools (`tool_stubs`): what a call gives without its tool being run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache, lru_cache
from os.path import relpath
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.keys import canonical
from agac.core.types import JSONValue
from agac.spec.cel import CelNode, CelProgram, Unparsed, parse, spot
from agac.spec.guard_cost import MAX_STEPS, CostMeter, TooManySteps
from agac.spec.guard_text import MAX_LENGTH, date_faults, refusals
from agac.spec.guards import FAILURES
from agac.spec.paths import Unusable
from agac.spec.project_files import MAX_RECORDED, read_text
from agac.spec.yaml import read_yaml

WAYS = ("value", "file", "cel", "echo", "error")
"""What a stub may be, one of them, with a `delay` in seconds; any other value stands for itself."""


def stub_file(written: JSONValue) -> str | None:
    """Returns the file of recorded calls that a stub names."""
    return _parts(written).get("file")


class StubAnswer(NamedTuple):
    """What a stub gives a model."""

    text: str
    error: bool = False
    delay: float = 0.0
    """Seconds before it does."""


def _parts(written: JSONValue) -> Mapping[str, Any]:
    said = (
        isinstance(written, dict) and bool(written) and written.keys() <= {*WAYS, "delay", "hash"}
    )
    if said and isinstance(written, dict):
        return written
    return {"value": written}


def stub_fault(written: JSONValue) -> str | None:
    """Says what is wrong with a stub, and what to write instead; None if nothing is."""
    parts = _parts(written)
    delay = parts.get("delay", 0)
    if len(parts.keys() & set(WAYS)) != 1:
        return (
            f"a stub is a value, or one of {', '.join(f'{{{way}: …}}' for way in WAYS)}, "
            "with a `delay` if need be"
        )
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not 0 <= delay <= 600:
        return f"delay is a number of seconds up to 600, not {delay!r}"
    if not all(isinstance(parts.get(way, ""), str) for way in ("file", "cel", "error")):
        return "file, cel and error are texts"
    if "cel" in parts:
        return _expression_fault(parts["cel"])
    return None


def _expression_fault(text: str) -> str | None:
    """Says what is wrong with the expression of a stub; None if nothing is."""
    if len(text) > MAX_LENGTH:
        return (
            f"cel is longer than {MAX_LENGTH:,} characters; write a shorter one, or the "
            "stub as a value"
        )
    try:
        tree = _compiled(text)[1]
        CostMeter({}).count(tree)
    except ValueError as error:
        return next(iter(refusals(text, str(error))), str(error))
    except Unparsed as unknown:
        message, offset = unknown.args
        return f"{spot(text, offset)}: {message}"
    except TooManySteps as refused:
        return f"{spot(text, refused.node.start)}: {_too_long()}"
    return next(date_faults(tree, text), None)


def _too_long() -> str:
    return f"the expression takes more than {MAX_STEPS:,} steps; use fewer elements or macros"


def stub_answer(
    written: JSONValue, name: str, arguments: Mapping[str, JSONValue], root: Path
) -> StubAnswer:
    """Returns what a sound stub of the tool `name` gives for a call."""
    parts = _parts(written)
    delay = float(parts.get("delay", 0))
    if "error" in parts:
        return StubAnswer(parts["error"], True, delay)
    if "file" in parts:
        key = name, canonical(dict(arguments))
        found = recorded_calls(root / parts["file"], parts.get("hash"), root).get(key)
        missing = (
            f"no result is recorded in {parts['file']} for {name} with {key[1]}; record "
            "it, or add a line"
        )
        return (found or StubAnswer(missing, True))._replace(delay=delay)
    value: Any = dict(arguments) if "echo" in parts else parts.get("value")
    if "cel" in parts:
        try:
            program, tree = _compiled(parts["cel"])
            CostMeter({"args": dict(arguments)}).count(tree)
            value = program.execute({"args": dict(arguments)})
        except TooManySteps:
            return StubAnswer(f"the stub of {name} cannot be computed: {_too_long()}", True, delay)
        except FAILURES as error:
            return StubAnswer(f"the stub of {name} cannot be computed: {error}", True, delay)
    return StubAnswer(value if isinstance(value, str) else canonical(value), delay=delay)


@cache
def _compiled(text: str) -> tuple[CelProgram, CelNode]:
    """Returns an expression made ready, and its tree. Raises ValueError and Unparsed for one that
    cannot be read."""
    return CelProgram(text), parse(text)


@lru_cache(maxsize=16)
def recorded_calls(
    file: Path, version: str | None, root: Path
) -> dict[tuple[str, str], StubAnswer]:
    """Returns the results in a file of recorded calls of the project at `root`, by tool and
    arguments; of several the last. `version` stands for what it holds; a line is `{"tool": …,
    "arguments": {…}, "result": …}`, with `"error": true` if so. Raises ValueError."""
    found: dict[tuple[str, str], StubAnswer] = {}
    try:
        text = read_text(file, file.name, root, most=MAX_RECORDED)
    except Unusable as error:
        raise ValueError(f"{file.name} {error.problem.message}") from None
    for number, line in enumerate(text.split("\n"), 1):
        try:
            one = json.loads(line or "null")
            if isinstance(one["result"], str):
                result = one["result"]
            else:
                result = canonical(one["result"])
            found[one["tool"], canonical(one["arguments"])] = StubAnswer(
                result, one.get("error") is True
            )
        except (ValueError, TypeError, LookupError):
            if line.strip():
                form = '{"tool": …, "arguments": {…}, "result": …}'
                raise ValueError(
                    f"line {number} of {file.name} is no recorded call; write {form}"
                ) from None
    return found


def read_stubs(file: Path, root: Path) -> dict[str, Any]:
    """Returns the stubs of a file: a mapping in YAML or JSON, or recorded calls (`.jsonl`). Raises
    ValueError."""
    try:
        if file.suffix == ".jsonl":
            shown = Path(
                relpath(file.resolve(), root.resolve())
            ).as_posix()  # one outside is refused where it is read
            version = str(file.stat().st_mtime_ns)
            return {
                name: {"file": shown} for name, _ in recorded_calls(file.resolve(), version, root)
            }
        document = read_yaml(file, file.name, None)
    except OSError as error:
        raise ValueError(
            f"cannot be read: {error.strerror or error}; name a file of stubs"
        ) from None
    for problem in document.problems:
        raise ValueError(problem.message)
    if not isinstance(document.data, dict):
        raise ValueError("holds no stubs; write `tool: stub` lines")
    return document.data


def recorded_line(name: str, arguments: Mapping[str, JSONValue], text: str, error: bool) -> str:
    """Returns a call as a line of such a file."""
    more = {"error": True} if error else {}
    return (
        json.dumps(
            {"tool": name, "arguments": dict(arguments), "result": text, **more}, ensure_ascii=False
        )
        + "\n"
    )

"""Words of one value, error or stage that `agac inspect`, `show` and `why` share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agac.cli import terminal
from agac.core.text import split_lines


def alias_lines(stage: dict[str, Any]) -> Iterator[str]:
    """Yields the short name of the model, if the workflow uses one."""
    alias = stage.get("alias")
    if alias:
        yield f"  short name: {alias['written']} = {alias['means']}"


def model_words(stage: dict[str, Any]) -> str:
    """`openai/gpt-5.4-mini, temperature=0`."""
    params = [f"{name}={terminal.value_text(value)}" for name, value in stage["params"].items()]
    return ", ".join([stage["model"], *params])


def error_text(error: dict[str, Any]) -> str:
    """`SchemaMismatch in classify: label is missing`."""
    place = f" in {error['stage']}" if error.get("stage") else ""
    return f"{error['type']}{place}: {error['message']}"


def block_lines(name: str, text: str, by: str = "  ") -> Iterator[str]:
    """Yields `name: text`, or the name with the lines of the text below it, indented `by` that.

    A terminal gets the beginning of a long text.
    """
    text = terminal.shortened(text)
    if "\n" in text:
        yield f"{by}{name}:"
        yield from (f"{by}  {line}".rstrip() for line in text.split("\n"))
    else:
        yield f"{by}{name}: {text}"


def compact_json(value: Any) -> str:
    """Writes a value as JSON on one line, with letters of all scripts as they are."""
    return json.dumps(value, ensure_ascii=False)


def skip_words(reason: dict[str, Any]) -> str:
    """Says on one line why a stage skipped or dropped a row: its guard with the values, its
    function, or an equal row."""
    if "python" in reason:
        return f"{reason['python']} gave None"
    if "dedupe" in reason:
        return f"the same {', '.join(reason['dedupe'])} as row {reason['first']!r}, which went on"
    guard = " ".join(split_lines(reason["when"]))
    values = [f"{name} = {compact_json(value)}" for name, value in reason["values"].items()]
    if values:
        return f"not true: {guard}   with {', '.join(values)}"
    return f"not true: {guard}"


def replicas_words(stage: dict[str, Any]) -> str:
    """`3, vote on label`: how many times a stage runs each row; empty for once."""
    replicas = stage.get("replicas", 1)
    if replicas == 1:
        return ""
    vote = stage.get("vote")
    if vote is None:
        return f"{replicas}"
    if isinstance(vote, str):
        return f"{replicas}, vote on {vote}"
    rules = [f"{name} {value}" for name, value in vote.items() if name != "field"]
    at_most = " at most" if "lead" in vote else ""
    return f"{replicas}{at_most}, vote on {', '.join([vote.get('field', 'the answer'), *rules])}"

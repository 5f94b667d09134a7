"""What today's program stores and prints is what the program of the golden files stored and printed.

`python tests/golden/make.py [NAME…]` makes them again, where a change is meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.server import Server
from support.soak import few

from golden.pinning import GENERAL, ODD, SHIPPED, golden, pin, written

MOST = 40
"""Differences that are shown."""


LATER_RULES = ('linger: "number"', 'linger: "string"', 'tail: "number"')
OTEL = (
    '.telemetry.otel: "boolean"', '.telemetry.sample: "number"', '.telemetry.sample: "string"',
    '.telemetry.prompts: "boolean"',
)  # fmt: skip
ADDED = {
    "keys of workflow": {
        *OTEL,
        '.budget: "number"', '.row_budget: "number"', '.stages[].budget: "number"', '.max_open_rows: "integer"',
        '.run_mode: "string" ["sync", "batch"]', '.output.bom: "boolean"',
        '.output.how: "boolean"', '.output.sources: "boolean"', '.stages[].reply: "string" ["text", "json"]',
        *(f'.{key}.syntax: "string" ["auto", "dollar", "mustache", "brace"]' for key in ("defaults", "stages[]")),
        *(f'.{key}.backend: "string"' for key in ("defaults", "stages[]")),
        *(f'.{key}.warm_prefix: "boolean"' for key in ("defaults", "stages[]")),
        *(f".{key}.batch.{rest}" for key in ("defaults", "stages[]") for rest in LATER_RULES),
        *(f'.{key}.{inner}: "string"' for key in ("input", "inputs") for inner in ("sql", "sheet")),
        *(f'.{key}.{inner}: "integer"' for key in ("input", "inputs") for inner in ("sheet", "header_row")),
        *(
            f'.{key}.format: "string" ["csv", "tsv", "json", "jsonl", "txt", "parquet", {xlsx}"files", "sqlite"]'
            for key in ("input", "inputs")
            for xlsx in ("", '"xlsx", ')
        ),
        *(f'.{key}.{inner}: "boolean"' for key in ("input", "inputs") for inner in ("allow_empty", "hive")),
        *(f'.{key}.on_short_record: "string" ["fail", "null"]' for key in ("input", "inputs")),
        *(f'.{key}.{inner}: "string"' for key in ("input", "inputs") for inner in ("delimiter", "encoding")),
        *(f".{key}{kind}" for key in ("input", "inputs") for kind in (': "string"', ': "array"', '[]: "string"')),
    },
    "keys of project": {
        *OTEL,
        '.budget: "number"', '.row_budget: "number"', '.remote: "object"', '.remote.allow: "array"',
        '.max_open_rows: "integer"',
        '.remote.allow[]: "string"', '.remote.http: "boolean"', '.remote.max_mb: "integer"',
        '.remote.timeout: "number"', '.remote.timeout: "string"', '.remote.headers: "object"',
        '.remote.headers.*: "object"', '.remote.url: "string"', '.remote.trust: "array"', '.remote.trust[]: "string"',
        '.remote.push: "string" ["manual", "auto"]', '.remote.control: "boolean"',
        '.remote.headers.*.*: "string"',
        '.defaults.syntax: "string" ["auto", "dollar", "mustache", "brace"]', '.defaults.backend: "string"',
        '.defaults.warm_prefix: "boolean"', *(f".defaults.batch.{rest}" for rest in LATER_RULES),
        '.providers.*.tools: "boolean"', '.providers.*.tools_with_schema: "boolean"',
        '.providers.*.cache: "string" ["none", "automatic", "openai", "anthropic"]',
        '.providers.*.cache_min_tokens: "integer"', '.providers.*.tool_prices: "object"',
        '.providers.*.tool_prices.*: "number"',
        *(f'.providers.*.prices.*.{key}: "number"' for key in ("cache_write", "cache_write_1h")),
    },
    "keys of card": (),
}  # fmt: skip
"""Keys and forms of keys that files may have since the golden files were made: no pin has to change for them."""

GROWN = re.compile(
    r"\.inputs?\.format: |\.(defaults|stages\[\])\.retries\b"
    r"|\.stages\[\]\.(review|expect|checks|escalate|vote|tools|max_turns|tools_mode|tool_stubs|on_tool_failure|reads|skills|runtime)\b|\.(tools|mcp|lint|ci|executor)\b|\.row_budget\.(turns|tool_calls)\b"
    r"|\.notify\b|\.(agents|api_key|child_timeout_sec|commands|cwd|function_tools|harness_tools|history_\w+|lifecycle_hooks)\b"
    r"|\.(max_display_instances|max_parallel|mcp_connect|prompts|resources|save_trajectory|servers|shell|skills)\b"
    r"|\.(subagent_model|subagents|tool_hooks|tool_input_schema|trim_tool_history|variables)\b"
    r"|\.(sequence|cumulative|fan_in|fan_out|include_request|generator|evaluator|min_rating|max_refinements)\b"
    r"|\.(refinement_instruction|plan_\w+|worker|k|max_samples|match_strategy|red_flag_max_length)\b"
    r"|\.type: .string. \[.agent"
    r"|\.request_params\.(max_?[iI]terations|metadata|parallel\w+|str(uctured|eaming)\w+|tool_?[rR]esult_?[mM]ode)\b"
)
"""The same: formats that are more than they were, mappings that came whole."""


ESTIMATED = {
    "estimate", "sampled", "calls", "input_tokens", "output_tokens", "usd", "usd_at_most", "usd_range", "ways",
    "seconds", "past_error", "tokens",
}  # fmt: skip
"""What a plan expects, which gets better: `bench/estimates.py` compares it with what runs cost."""


GUESSED = {"run", "reuse", "blocked", "undecided", "reasons", "blocked_reasons", "batches"}
"""How many tasks of a stage there are, where that hangs on answers that nobody has and no run tells: a guess too."""


LATER = {"competitor_research", "repo_questions"}
"""Workflows that came since the first golden files, which therefore do not list them."""

LISTED = {"classification", "limits"}
"""Workflows with `on_duplicate_id`, whose repeated rows are in filtered.jsonl and the summary since then."""


def without_added(value: Any, listed: bool) -> Any:
    """A value without the keys that reports got since, and where it is `listed` without what is of repeated ids."""
    if isinstance(value, dict):
        added = {"package", "interpreter", "on_path", "on_path_is_this"} if "python" in value else set()
        added |= {
            "input_read_at",
            "serving",
            "cache_write_tokens",
            "server_tools",
            "rounds",
            "repeated_ids",
            "go_on",
            "spared",
            "sharded",
            "lines_written",
            "rows_selected",
            "held_usd",
            "held_tokens",
        }
        added |= {"tools", "max_turns", "estimated_tokens"} if "means" in value else set()
        added |= (
            {"least", "most", "valid", "remote"} if value.keys() & {"usd_at_most", "collapsed"} else set()
        )  # of plans
        added |= {"blocked"} if "segments" in value else set()
        added |= {"files"} if "servers" in value else set()  # patterns beside the hash that a definition has
        added |= {"duration_s", "hint", *(["tasks"] if "processed" in str(value.get("tasks")) else [])}
        added |= ESTIMATED if {"estimate", "segments", "max_errors"} & value.keys() else set()
        added |= {"number"} if value.get("waits_for") and value.get("run", 0) is None else set()
        if "usd_at_most" in value and any((one.get("guess") or {"run": 1})["run"] is None for one in value["stages"]):
            found = [
                {key: one[key] for key in one if one.get("exact", True) or key not in GUESSED}
                for one in value["stages"]
            ]
            value = value | {"stages": found}
        return {key: without_added(inner, listed) for key, inner in value.items() if key not in added}
    if isinstance(value, list):
        kept = (one for one in value if not (listed and str(one).endswith("/filtered.jsonl")) and str(one) not in LATER)
        return [without_added(one, listed) for one in kept]
    return value.replace('"filtered":true,', "") if listed and isinstance(value, str) else value


def differences(expected: Any, found: Any, at: str = "") -> Iterator[str]:
    """Where two values differ, a line each."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            inner = f"{at}.{name}" if at else name
            if name not in found:
                yield f"{inner}: is missing, was {json.dumps(expected[name])[:200]}"
            elif name not in expected:
                yield f"{inner}: is new: {json.dumps(found[name])[:200]}"
            else:
                yield from differences(expected[name], found[name], inner)
        if expected == found and list(expected) != list(found):
            yield f"{at}: the keys stand in another order: {list(found)}, were {list(expected)}"
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for place, (one, other) in enumerate(zip(expected, found, strict=True)):
            yield from differences(one, other, f"{at}[{place}]")
    elif at.endswith("cost_usd") and isinstance(found, float) and abs((expected or 0.0) - found) < 1.1e-6:
        return  # the sixth digit of a sum hangs on the order in which costs were added
    elif at.endswith((".bytes_before", ".bytes_after")) and 0 < found - expected < 1 << 18:
        return  # tables that came since, and are empty
    elif at.endswith(".billed_a_row") and 0 < found < expected:
        return  # of a conversation a kill can lose one turn, since each is stored before the next
    elif found is None and at.endswith((".lane", ".p50_s", ".p95_s")):
        return  # a batch that a slow machine took over a second to submit ended before that, says its server
    elif expected != found or type(expected) is not type(found):
        was, now = (json.dumps(one, ensure_ascii=False)[:2000] for one in (expected, found))
        yield f"{at}:\n    was {was}\n    is  {now}"


@pytest.mark.parametrize("name", [*few([*SHIPPED, *ODD], 2), GENERAL])
def test_it_is_stored_and_printed_as_before(name: str, tmp_path: Path, server: Server) -> None:
    made = written(pin(name, tmp_path / name, server))
    before = golden(name).read_text("utf-8")
    if made == before:
        return
    expected, found = (
        {key: value for line in text.splitlines() for key, value in json.loads(line).items()} for text in (before, made)
    )
    for seen in (expected, found):
        seen |= {
            key: [one for one in seen[key] if one not in ADDED[key] and not GROWN.match(one)]
            for key in ADDED.keys() & seen.keys()
        }
    expected, found = (without_added(seen, name in LISTED) for seen in (expected, found))
    if not (lines := list(differences(expected, found))):
        return
    more = f"\n… and {len(lines) - MOST} more" if len(lines) > MOST else ""
    pytest.fail(f"{len(lines)} differences to {golden(name)}\n" + "\n".join(lines[:MOST]) + more, pytrace=False)


def test_there_is_a_golden_file_for_each_workflow() -> None:
    assert {path.stem for path in golden(GENERAL).parent.iterdir()} == {*SHIPPED, *ODD, GENERAL}

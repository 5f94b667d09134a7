"""Checks of single values in AgentCards, and sentences for their unknown keys."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from agac.spec.validation import must, refused

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
"""Fields that AgentCards may have elsewhere and agac does not support yet."""

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
"""Request parameters that belong to a program."""

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
CAMEL_CASE = {re.sub("_(.)", lambda match: match[1].upper(), name): name for name in _TWO_WORDS}
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

nobody_there = must(
    operator.not_, "`human_input: true` is not supported: a run cannot ask a person; remove it"
)
no_shell = must(
    operator.not_,
    (
        "`shell: true` is not supported: no model is given a shell; name what it may do as "
        "function_tools"
    ),
)
no_subagents = must(
    operator.not_,
    (
        "`subagents: true` is not supported; write a card for each agent that it may call, and "
        "name them as agents"
    ),
)
no_harness = must(
    operator.not_, "`harness_tools: true` is not supported: a model does not run agac; remove it"
)
no_hooks = must(
    operator.not_, "hooks are not supported; what they do can stand in a tool, or in a python stage"
)
no_agent_twice = must(
    lambda names: len({*names}) == len(names), "{} names an agent twice; name each once"
)
no_messages = must(
    operator.not_, "messages are for cards that ask a model themselves; name them there"
)
turns_or_none = must(
    lambda turns: turns == -1 or turns >= 1, "must be at least 1, or -1 for no limit, not {}"
)
no_connector = must(
    operator.not_, "{!r}: connectors at the provider are not supported; name the server's target"
)
managed_here = must(
    lambda value: value != "provider",
    "`management: {}` is not supported: agac connects to servers itself; remove it",
)
result_mode = must(
    lambda value: value != "selectable",
    "{!r} is not supported: nobody selects in a run; write postprocess, or passthrough",
)


def entrypoints(value: Any) -> Any:
    """Turns one function, or several, each a text or a mapping, into a list of mappings."""
    functions = value if isinstance(value, list) else [value]
    return [
        {"entrypoint": function} if isinstance(function, str) else function
        for function in functions
    ]


def named_servers(value: Any) -> Any:
    """Turns a list of servers into a mapping, by their names or the ends of their targets."""
    if not isinstance(value, list):
        return value
    servers: dict[Any, Any] = {}
    for server in value:
        if not isinstance(server, dict):
            raise refused("expected a mapping with target for each server")
        name = server.get("name") or _name_of_target(server)
        if name in servers:
            raise refused(f"two servers are called {name!r}; give each its own name")
        servers[name] = server
    return servers


def _name_of_target(server: Mapping[Any, Any]) -> str:
    """Makes a name of what the target of a server ends with."""
    target = str(server.get("target") or server.get("connector_id") or "server")
    end = urlsplit(target).hostname or target.split("/")[-1]
    return re.sub("[^A-Za-z0-9_-]+", "-", end)


def camel_case(value: Any) -> Any:
    """Reads the camelCase that cards may use (`extra` refuses both at once); `streaming_timeout:
    null` is no limit."""
    if not isinstance(value, dict):
        return value
    params = dict(value)
    if "streaming_timeout" in params and params["streaming_timeout"] is None:
        params["streaming_timeout"] = math.inf
    return {_snake_case(key, params): param for key, param in params.items()}


def _snake_case(key: Any, params: Mapping[Any, Any]) -> Any:
    """Returns the name of a request parameter; the key itself if both spellings are there."""
    name = CAMEL_CASE.get(key)
    return key if name is None or name in params else name

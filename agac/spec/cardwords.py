"""What AgentCards may hold elsewhere and agac does not do yet, so that a card is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Mapping

TYPES_LATER = (
    "chain",
    "parallel",
    "evaluator_optimizer",
    "router",
    "orchestrator",
    "iterative_planner",
    "maker",
    "a2a",
    "smart",
)

# fmt: off
FIELDS_LATER = frozenset({
    "servers", "tools", "resources", "prompts", "mcp_connect", "function_tools", "agents", "history_source",
    "history_merge_target", "max_parallel", "child_timeout_sec", "max_display_instances", "tool_input_schema",
    "skills", "variables", "shell", "cwd", "api_key", "tool_hooks", "lifecycle_hooks", "commands",
    "trim_tool_history", "save_trajectory", "subagents", "subagent_model", "harness_tools", "sequence",
    "cumulative", "fan_out", "fan_in", "include_request", "generator", "evaluator", "min_rating",
    "max_refinements", "refinement_instruction", "plan_type", "plan_iterations", "worker", "k", "max_samples",
    "match_strategy", "red_flag_max_length", "url", "transport", "streaming", "polling",
    "accepted_output_modes", "headers", "auth", "relative_card_path", "request_timeout_seconds",
})
# fmt: on

# fmt: off
PARAMS_LATER = frozenset({
    "max_iterations", "parallel_tool_calls", "structured_tool_policy", "tool_result_mode", "streaming_timeout",
    "structured_schema", "metadata", "messages", "tools", "tool_choice", "task", "template_vars",
    "mcp_metadata", "tool_execution_handler", "batch_context", "response_format",
})
# fmt: on

# fmt: off
PLACEHOLDERS_LATER = frozenset({
    "currentDate", "serverInstructions", "agentSkills", "agentCardPath", "agentCardDir", "env", "hostPlatform",
    "pythonVer", "workspaceRoot", "clientDisplay", "model_specific", "modelReferences", "agentInternalResources",
})
# fmt: on
PLACEHOLDER_PREFIXES_LATER = ("file:", "file_silent:", "url:", "internal:", "executionEnvironment")

CAMEL_CASE = {
    "maxTokens": "max_tokens",
    "topP": "top_p",
    "topK": "top_k",
    "minP": "min_p",
    "repetitionPenalty": "repetition_penalty",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "stopSequences": "stop_sequences",
    "serviceTier": "service_tier",
}
"""Other spellings of request parameters."""

_PARAMS = (
    *("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "stop_sequences"),
)


def not_yet(field: str) -> str:
    """The sentence for a known field that has no meaning here yet."""
    return f"`{field}` is not supported yet; remove it from the card, or use another card for this stage"


def hints() -> Mapping[str, str]:
    """Sentences for unknown keys at the top level of a card."""
    later = {field: not_yet(field) for field in FIELDS_LATER}
    moved = {field: f"unknown key; did you mean `request_params.{field}`?" for field in (*_PARAMS, "service_tier")}
    return {**later, **moved}


def param_hints() -> Mapping[str, str]:
    """Sentences for unknown keys of `request_params`."""
    # a camelCase key is only unknown beside its other spelling
    twice = {
        camel: f"{camel} and {snake} are two spellings of one key; keep one" for camel, snake in CAMEL_CASE.items()
    }
    later = {field: not_yet(field) for field in PARAMS_LATER}
    return {**later, **twice, "model": "unknown key; the card's own `model` says which model runs"}

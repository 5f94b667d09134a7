"""Short names of models: a table with a version, since what a short name means moves with the models.

The names and what they stand for are those that AgentCards are written with (fast-agent's, read November 2026), in the
words of agac's providers. A run stores the expansion, and its fingerprints are made of it: a name that moves makes a
changed run, never an unnoticed one. Whoever changes a target raises VERSION and writes it into the line's `since`.
"""

from __future__ import annotations

from dataclasses import dataclass

VERSION = 1
"""Of the table. 1: November 2026."""


@dataclass(frozen=True, slots=True)
class Alias:
    """What a short name stands for, since which version of the table. `refused`: why nothing stands for it here."""

    target: str = ""
    since: int = 1
    refused: str = ""


def _test_model(name: str) -> Alias:
    return Alias(refused=f"'{name}' is a test model of another program; write simulator/small, which costs nothing")


_QWEN = "hf/Qwen/Qwen3.5-397B-A17B:novita"
_KIMI = "hf/moonshotai/Kimi-K2.6:novita"

ALIASES: dict[str, Alias] = {
    "sonnet": Alias("anthropic/claude-sonnet-5"),
    "opus": Alias("anthropic/claude-opus-5"),
    "haiku": Alias("anthropic/claude-haiku-4-5"),
    "claude": Alias("anthropic/claude-sonnet-5"),
    "gpt-4.1": Alias("openai/gpt-4.1"),
    "gpt-4.1-mini": Alias("openai/gpt-4.1-mini"),
    "gpt-5.4": Alias("responses/gpt-5.4?reasoning=medium"),
    "gpt-5.4-mini": Alias("responses/gpt-5.4-mini?reasoning=medium"),
    "gpt-5.5": Alias("responses/gpt-5.5?reasoning=medium"),
    "gpt54-mini": Alias("responses/gpt-5.4-mini"),
    "codex": Alias("responses/gpt-5.3-codex"),
    "gemini": Alias("gemini/gemini-3.7-flash"),
    "gemini3flash": Alias("gemini/gemini-3-flash-preview"),
    "grok": Alias("xai/grok-4.6"),
    "kimi": Alias("hf/moonshotai/Kimi-K2.7-Code:fireworks-ai?temperature=1.0&top_p=0.95"),
    "kimi26": Alias(f"{_KIMI}?temperature=1.0&top_p=0.95&reasoning=on"),
    "kimi26instant": Alias(f"{_KIMI}?temperature=0.6&top_p=0.95&reasoning=off"),
    "glm": Alias("hf/zai-org/GLM-5.2:zai-org"),
    "minimax": Alias("hf/MiniMaxAI/MiniMax-M3:together?temperature=1.0&top_p=0.95&top_k=40"),
    "qwen35": Alias(
        f"{_QWEN}?temperature=0.6&top_p=0.95&top_k=20&min_p=0.0"
        "&presence_penalty=0.0&repetition_penalty=1.0&reasoning=on"
    ),
    "qwen35instruct": Alias(
        f"{_QWEN}?temperature=0.7&top_p=0.8&top_k=20&min_p=0.0"
        "&presence_penalty=1.5&repetition_penalty=1.0&reasoning=off"
    ),
    "gpt-oss": Alias("hf/openai/gpt-oss-120b:cerebras"),
    "gpt-oss-20b": Alias("hf/openai/gpt-oss-20b"),
    "deepseek": Alias("deepseek/deepseek-v4-flash"),
    "deepseek-hf": Alias("hf/deepseek-ai/DeepSeek-V4-Pro:together"),
    **{name: _test_model(name) for name in ("passthrough", "playback", "slow", "silent")},
}
"""The short names. One of agac.yml's `aliases` with the same name comes first."""


def _all(provider: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), provider)


MODELS: dict[str, str] = {
    **_all("openai", "gpt-4o gpt-4o-mini gpt-4.1-nano"),
    **_all("responses", "gpt-5 gpt-5-mini gpt-5-nano gpt-5.1 gpt-5.2 gpt-5.3-codex gpt-5.4-nano o3 o4-mini"),
    **_all(
        "anthropic",
        """claude-haiku-4-5 claude-haiku-5-5 claude-sonnet-4-5 claude-sonnet-4-6 claude-sonnet-5 claude-sonnet-5-5
        claude-opus-4-5 claude-opus-4-6 claude-opus-4-7 claude-opus-4-8 claude-opus-5 claude-opus-5-5 claude-fable-5
        claude-fable-5-1 claude-fable-5-2""",
    ),
    **_all("gemini", "gemini-2.5-flash gemini-2.5-pro gemini-3-flash-preview gemini-3.5-flash gemini-3.7-flash"),
    **_all("xai", "grok-4.3 grok-4.5 grok-4.6"),
    **_all("deepseek", "deepseek-chat deepseek-reasoner deepseek-v4-flash deepseek-v4-pro"),
}
"""Whose model a name without a provider is: exact names only, so that a slip of the pen is never sent anywhere."""

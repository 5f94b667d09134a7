"""Providers that agac does not reach, by the names that model strings have for them: why, and what to write instead.

An entry of agac.yml's `providers` with such a name makes it an ordinary provider.
"""

from __future__ import annotations

_SUBSCRIPTION = "signs in with a person's subscription, which a run cannot do; use responses/{model} with an API key"

ELSEWHERE: dict[str, str] = {
    "anthropic-vertex": "is not supported: it signs in with Google's credentials; write anthropic/{model}, with a key "
    "of Anthropic's own",
    "bedrock": "is not supported: it signs requests in a way of its own; put an OpenAI-compatible gateway before it "
    "and name that under providers in agac.yml",
    "codexresponses": _SUBSCRIPTION,
    "copilot": _SUBSCRIPTION,
    "fast-agent": "means another program's test models; write simulator/small, which costs nothing",
    "google": "is not supported yet: Google's own API comes in a later version; write gemini/{model}, which reaches "
    "the same models over its OpenAI-compatible address",
    "googleoai": "is called gemini here; write gemini/{model}",
    "tensorzero": "is a gateway of your own; name it under providers in agac.yml with dialect openai-chat and base_url "
    "http://127.0.0.1:3000/openai/v1, and its functions as tensorzero::function_name::{model}",
    "test": "has no models; write simulator/small, and `agac simulate` for slow answers, set replies and faults",
}
"""Sentences that go on after the provider's name."""


def refusal(provider: str, model: str) -> str:
    """The whole sentence for a model string that names such a provider."""
    return f"provider '{provider}' {ELSEWHERE[provider].format(model=model or '…')}"

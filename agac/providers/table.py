"""All providers by name: those that agac knows, with the rows of agac.yml over them; dialects by
name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agac.core.errors import Problem, Where
from agac.providers import anthropic, openai, openai_responses
from agac.providers.known_providers import GENERIC_BATCHES, LOOK_ALIKES, SHIPPED
from agac.providers.provider import BatchTraits, Limits, Price, Provider

if TYPE_CHECKING:
    from agac.spec.project_models import BatchApiFile, ProviderSpec

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Locate = Callable[[tuple[str, ...]], Where]
"""The place of a key of agac.yml, by its path (`("providers", "local", "base_url")`)."""

_PLAIN = Provider(name="", dialect="", base_url="", structured="json_object")
"""What a row of agac.yml begins with whose dialect has no other beginning."""


def build_providers(
    specs: Mapping[str, ProviderSpec], env: Mapping[str, str], locate: Locate | None = None
) -> tuple[dict[str, Provider], list[Problem]]:
    """Returns all providers by name: the shipped rows with the rows of agac.yml over them.
    `locate` points Problems at lines. A variable that is not set is no Problem here: it is in the
    row's `missing_variables`, for the code that uses the row."""
    providers = {name: _shipped(name, env) for name in SHIPPED}
    problems: list[Problem] = []
    for name, spec in specs.items():
        troubles = list(_troubles(name, spec))
        for keys, message in troubles:
            path = ("providers", name, *keys)
            where = locate(path) if locate else Where("agac.yml", path=".".join(path))
            problems.append(Problem(where, message))
        if not troubles:
            providers[name] = _overlay(name, spec, env)
    return providers, problems


def _shipped(name: str, env: Mapping[str, str]) -> Provider:
    """Returns a shipped row with what the environment says."""
    if any(env.get(variable) for variable in _variables_of(name)):
        return _filled(SHIPPED[name], env)
    return _without_variables(name)


@cache
def _variables_of(name: str) -> frozenset[str]:
    """Returns the variables that a shipped row takes from the environment."""
    row = SHIPPED[name]
    key = {row.key_variable} if row.key_variable else set()
    return frozenset({*_VARIABLE.findall(row.base_url), *key})


@cache
def _without_variables(name: str) -> Provider:
    """Returns a shipped row in an environment without any of its variables."""
    return _filled(SHIPPED[name], {})


Trouble = tuple[tuple[str, ...], str]
"""What is wrong with a row of agac.yml: the key that it is about, and the words."""


def _troubles(name: str, spec: ProviderSpec) -> Iterator[Trouble]:
    """Yields what is wrong with a row of agac.yml."""
    shipped = SHIPPED.get(name)
    if spec.dialect is None and shipped is None:
        yield (), f"dialect is missing; write one of {', '.join(sorted(DIALECTS))}"
    if spec.base_url is None and shipped is None:
        words = "write the address before the dialect's path, like https://host/v1"
        yield (), f"base_url is missing; {words}"
    if spec.base_url is not None:
        trouble = url_trouble(spec.base_url)
        if trouble:
            yield ("base_url",), trouble
    if spec.batch is not None:
        dialect = spec.dialect or (shipped.dialect if shipped else None)
        yield from _batch_troubles(spec.batch, dialect)


def _batch_troubles(batch: BatchApiFile, dialect: str | None) -> Iterator[Trouble]:
    """Yields what is wrong with the batches of a row of agac.yml."""
    if batch.api == "openai":
        if batch.finds_by == "count":
            yield (
                ("batch", "finds_by"),
                "OpenAI's batches are found by their key or their file; write key or file",
            )
        return
    known = {"api"}
    if batch.api == "anthropic":
        known |= set(_INLINE)
        if dialect not in (None, "anthropic"):
            words = f"Anthropic's batches hold messages, but the dialect is {dialect}"
            yield ("batch",), f"{words}; write batch: openai"
    for key in sorted(batch.model_fields_set - known):
        yield ("batch", key), f"means nothing where api is {batch.api}; remove it"


_INLINE = ("max_requests", "max_bytes", "pages", "grace", "results_kept")
"""What can differ between those who take requests inline, as Anthropic does."""


def url_trouble(text: str) -> str | None:
    """Returns what is wrong with a base URL as written; one that begins with a variable is judged
    where it is used."""
    if text.startswith("${"):
        return None
    parts = urlsplit(text)
    if not parts.netloc:
        return f"'{text}' is no address; it starts with https:// (or http://) and names a host"
    if parts.query or parts.fragment:
        return f"'{text}' goes on after the path; the dialect's own path is put at its end"
    for dialect in DIALECTS.values():
        if parts.path.rstrip("/").endswith(dialect.path):
            address = text.rstrip("/").removesuffix(dialect.path)
            return f"the dialect adds its path itself; write {address}"
    return None


_SAME_IN_AGAC_YML = ("structured", "seeds", "tools", "tools_with_schema", "cache")
"""Columns that are keys of agac.yml, and replace what is known."""


def _overlay(name: str, spec: ProviderSpec, env: Mapping[str, str]) -> Provider:
    """Returns the row of agac.yml, over the shipped one of that name if there is one."""
    base = SHIPPED.get(name) or LOOK_ALIKES.get(spec.dialect or "") or _PLAIN
    columns: dict[str, Any] = {
        column: getattr(spec, column)
        for column in _SAME_IN_AGAC_YML
        if getattr(spec, column) is not None
    }
    if spec.cache_min_tokens is not None:
        columns["cache_min_tokens"] = {"": spec.cache_min_tokens}
    if spec.api_key is not None:
        variable = _VARIABLE.fullmatch(spec.api_key)
        columns["key_variable"] = variable[1] if variable else None
    prices = {model: Price(**dict(price)) for model, price in spec.prices.items()}
    row = replace(
        base,
        name=name,
        dialect=spec.dialect or base.dialect,
        limits=Limits(**dict(spec.limits)),
        tool_prices={**base.tool_prices, **spec.tool_prices},
        prices={**base.prices, **prices},
        batch=_batch(spec, base),
        # an embedded provider that is given an address is somebody's own server
        embedded=base.embedded and spec.base_url is None,
        **columns,
    )
    return _filled(row, env, address=spec.base_url, key=spec.api_key, headers=spec.headers)


_LOGIN = re.compile(r"auth|api-?key|token|secret|cookie|password", re.IGNORECASE)


class _Variables:
    """The variables of the environment that a row needs."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.missing: list[str] = []
        """Names that the environment lacks."""
        self.values: list[str] = []
        """Values that were put into the row."""

    def value(self, name: str) -> str:
        """Returns a variable's value; empty where it is missing."""
        # keys are pasted into .env files: a line break at the end is never part of one
        value = self._env.get(name, "").strip()
        if value:
            self.values.append(value)
        else:
            self.missing.append(name)
        return value

    def fill(self, text: str) -> str:
        """Returns a text with the values of its `${VAR}`."""
        return _VARIABLE.sub(lambda match: self.value(match[1]), text)


def _filled(
    row: Provider,
    env: Mapping[str, str],
    *,
    address: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Provider:
    """Returns the row with what the environment says. `address`, `key` and `headers` are
    agac.yml's, with their `${VAR}`."""
    variables = _Variables(env)
    base_url = ""
    if not address:
        base_url = re.sub(r"(?<!:)/{2,}", "/", variables.fill(row.base_url))
        variables.values.clear()  # a shipped row's address that a variable names is no secret
    api_key = _key_of(row, key, env, variables)
    sent = {name: variables.fill(header) for name, header in headers.items()}
    if address:
        base_url = variables.fill(address)
    secrets = [*variables.values, *([api_key] if api_key else []), *_logins(sent)]
    return replace(
        row,
        base_url=base_url.rstrip("/"),
        api_key=api_key or None,
        headers={**row.headers, **sent},
        missing_variables=tuple(dict.fromkeys(variables.missing)),
        secrets=tuple(dict.fromkeys(secrets)),
        header_values=tuple(dict.fromkeys(sent.values())),
    )


def _key_of(row: Provider, key: str | None, env: Mapping[str, str], variables: _Variables) -> str:
    """Returns the key of a row: `key` of agac.yml, else its variable's value; empty: none."""
    if key is not None:
        return variables.fill(key)
    if not row.key_variable:
        return ""
    if row.key_optional and not env.get(row.key_variable, "").strip():
        return ""
    return variables.value(row.key_variable)


def _logins(headers: Mapping[str, str]) -> Iterator[str]:
    """Yields the values of headers that log in, and their last words."""
    for name, value in headers.items():
        if _LOGIN.search(name):
            yield value
            yield value.rpartition(" ")[2]


def _batch(spec: ProviderSpec, base: Provider) -> BatchTraits | None:
    """Returns the batch API as agac.yml tells it: over the provider's own row of the same API,
    else over all that speak it."""
    known = base.batch
    if known is not None and spec.base_url is not None and not base.simulated:
        # somebody's gateway: whether it hands our key through, and how late its list is, is unknown
        known = replace(known, grace=max(known.grace, GENERIC_BATCHES[known.api].grace))
    batch = spec.batch
    if batch is None:
        return known
    if batch.api == "none":
        return None
    if known is not None and known.api == batch.api:
        traits = known
    else:
        traits = GENERIC_BATCHES[batch.api]
    changes: dict[str, Any] = {
        name: getattr(batch, name) for name in batch.model_fields_set - {"api"}
    }
    if batch.windows is not None:
        changes["windows"] = tuple(batch.windows)
    return replace(traits, **changes)


# Providers that agac does not reach, by the names that model strings have for them: why, and what
# to write instead.
#
# An entry of agac.yml's `providers` with such a name makes it an ordinary provider.

_SUBSCRIPTION = (
    "signs in with a person's subscription, which a run cannot do; use responses/{model} "
    "with an API key"
)

ELSEWHERE: dict[str, str] = {
    "anthropic-vertex": (
        "is not supported: it signs in with Google's credentials; write anthropic/{model}, with a "
        "key of Anthropic's own"
    ),
    "bedrock": (
        "is not supported: it signs requests in a way of its own; put an OpenAI-compatible gateway "
        "before it and name that under providers in agac.yml"
    ),
    "codexresponses": _SUBSCRIPTION,
    "copilot": _SUBSCRIPTION,
    "fast-agent": "means another program's test models; write simulator/small, which costs nothing",
    "google": (
        "is not supported yet: Google's own API comes in a later version; write gemini/{model}, "
        "which reaches the same models over its OpenAI-compatible address"
    ),
    "googleoai": "is called gemini here; write gemini/{model}",
    "tensorzero": (
        "is a gateway of your own; name it under providers in agac.yml with dialect openai-chat "
        "and base_url http://127.0.0.1:3000/openai/v1, and its functions as "
        "tensorzero::function_name::{model}"
    ),
    "test": (
        "has no models; write simulator/small, and `agac simulate` for slow answers, set replies "
        "and faults"
    ),
}


def refusal(provider: str, model: str) -> str:
    """Returns the whole sentence for a model string that names such a provider."""
    return f"provider '{provider}' {ELSEWHERE[provider].format(model=model or '…')}"


DIALECTS = {
    "openai-chat": openai.CHAT,
    "openai-responses": openai_responses.RESPONSES,
    "anthropic": anthropic.MESSAGES,
}

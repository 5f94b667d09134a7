"""agac.yml's `providers` laid over the shipped table, with `${VAR}` filled from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from agac.core.errors import Problem, Where
from agac.providers.batches import BatchTraits
from agac.providers.batchtraits import GENERIC
from agac.providers.dialects import DIALECTS
from agac.providers.provider import Limits, Price, Provider
from agac.providers.table import LOOK_ALIKES, SHIPPED

if TYPE_CHECKING:  # pydantic is loaded by whoever reads agac.yml, not by the table
    from agac.spec.projectmodels import BatchApiFile, LimitsFile, PriceFile, ProviderSpec

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Locate = Callable[[tuple[str, ...]], Where]
"""Where a key of agac.yml stands, by its path (`("providers", "local", "base_url")`)."""


_PLAIN = Provider(name="", dialect="", base_url="", structured="json_object")
"""What a row of agac.yml begins with whose dialect has no other beginning."""


class _Environment:
    """Fills `${VAR}` and remembers which variables it met, and which it missed."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self.missing: list[str] = []
        self.values: list[str] = []

    def value(self, name: str) -> str:
        # keys are pasted into .env files: a line break at the end is never part of one
        value = self._env.get(name, "").strip()
        if value:
            self.values.append(value)
        elif name not in self.missing:
            self.missing.append(name)
        return value

    def fill(self, text: str) -> str:
        return _VARIABLE.sub(lambda match: self.value(match[1]), text)


def build_providers(
    specs: Mapping[str, ProviderSpec], env: Mapping[str, str], locate: Locate | None = None
) -> tuple[dict[str, Provider], list[Problem]]:
    """All providers by name: the shipped rows with the rows of agac.yml over them. `locate` points Problems at lines.

    A variable that is not set is no Problem here: it is on the row's `missing_variables`, for whoever uses the row.
    """
    providers = {name: _filled(row, env) for name, row in SHIPPED.items()}
    problems: list[Problem] = []
    for name, spec in specs.items():
        checked = _check(name, spec, locate or _whole_file)
        problems += checked
        if not checked:
            providers[name] = _overlay(name, spec, env)
    return providers, problems


def _whole_file(_path: tuple[str, ...]) -> Where:
    return Where("agac.yml")


def _place(row: Provider, env: _Environment) -> str:
    """A shipped row's address; one that a user's variable names is no secret."""
    return re.sub(r"(?<!:)/{2,}", "/", env.fill(row.base_url)).rstrip("/")


def _check(name: str, spec: ProviderSpec, locate: Locate) -> list[Problem]:
    def problem(key: str, message: str) -> Problem:
        return Problem(locate(("providers", name, *key.split())), message, ".".join(("providers", name, *key.split())))

    problems: list[Problem] = []
    if spec.dialect is None and name not in SHIPPED:
        problems.append(problem("", f"dialect is missing; write one of {_listed(DIALECTS)}"))
    if spec.base_url is None and name not in SHIPPED:
        problems.append(
            problem("", "base_url is missing; write the address before the dialect's path, like https://host/v1")
        )
    if spec.base_url is not None and (trouble := _url_trouble(spec.base_url)):
        problems.append(problem("base_url", trouble))
    if spec.batch is not None:
        dialect = spec.dialect or SHIPPED[name].dialect if name in SHIPPED else spec.dialect
        problems += [problem(f"batch {key}".strip(), trouble) for key, trouble in _batch_troubles(spec.batch, dialect)]
    return problems


def _batch_troubles(spec: BatchApiFile, dialect: str | None) -> Iterator[tuple[str, str]]:
    """What is wrong with `batch`: the key that it is about, and the words."""
    if spec.api == "anthropic" and dialect not in (None, "anthropic"):
        yield "", f"Anthropic's batches hold messages, but the dialect is {dialect}; write batch: openai"
    if spec.api == "openai":
        if spec.finds_by == "count":
            yield "finds_by", "OpenAI's batches are found by their key or their file; write key or file"
        return
    useless = spec.model_fields_set - {"api", *(_INLINE if spec.api == "anthropic" else ())}
    for key in sorted(useless):
        yield key, f"means nothing where api is {spec.api}; remove it"


_INLINE = ("max_requests", "max_bytes", "pages", "grace", "results_kept")
"""What can differ between those who take requests inline, as Anthropic does."""


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))


def _url_trouble(text: str) -> str | None:
    """What is wrong with a base URL as written; one that begins with a variable is judged where it is used."""
    if text.startswith("${"):
        return None
    parts = urlsplit(text)
    if not parts.netloc:
        return f"'{text}' is no address; it starts with https:// (or http://) and names a host"
    if parts.query or parts.fragment:
        return f"'{text}' goes on after the path; the dialect's own path is put at its end"
    for dialect in DIALECTS.values():
        if parts.path.rstrip("/").endswith(dialect.path):
            return f"the dialect adds its path itself; write {text.rstrip('/').removesuffix(dialect.path)}"
    return None


def _overlay(name: str, spec: ProviderSpec, env: Mapping[str, str]) -> Provider:
    """The row of agac.yml, over the shipped one of that name if there is one."""
    base = SHIPPED.get(name) or LOOK_ALIKES.get(spec.dialect or "") or _PLAIN
    row = replace(
        base,
        name=name,
        dialect=spec.dialect or base.dialect,
        structured=spec.structured or base.structured,
        seeds=base.seeds if spec.seeds is None else spec.seeds,
        limits=_limits(spec.limits),
        prices={**base.prices, **{model: _price(price) for model, price in spec.prices.items()}},
        batch=_batch(spec, base),
        # an embedded provider that is given an address is somebody's own server
        embedded=base.embedded and spec.base_url is None,
    )
    if spec.api_key is not None:
        only = _VARIABLE.fullmatch(spec.api_key)
        row = replace(row, key_variable=only[1] if only else None)
    return _filled(row, env, address=spec.base_url, key=spec.api_key, headers=spec.headers)


def _filled(
    row: Provider,
    env: Mapping[str, str],
    *,
    address: str | None = None,
    key: str | None = None,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> Provider:
    """The row with what the environment says. `address`, `key` and `headers` are agac.yml's, with their `${VAR}`."""
    place, found = _Environment(env), _Environment(env)
    if key is not None:
        api_key = found.fill(key)
    else:
        api_key = found.value(row.key_variable) if row.key_variable and _has_key(row, env) else ""
    sent = {name: found.fill(value) for name, value in headers.items()}
    base_url = found.fill(address) if address else _place(row, place)
    return replace(
        row,
        base_url=base_url.rstrip("/"),
        api_key=api_key or None,
        headers={**row.headers, **sent},
        missing_variables=(*place.missing, *found.missing),
        secrets=tuple(dict.fromkeys([*found.values, *([api_key] if api_key else [])])),
    )


def _has_key(row: Provider, env: Mapping[str, str]) -> bool:
    """Whether a key is there, or must be."""
    return not row.key_optional or bool(env.get(row.key_variable or "", "").strip())


def _limits(spec: LimitsFile) -> Limits:
    return Limits(spec.concurrency, spec.rpm, spec.tpm, spec.enqueued_tokens)


def _batch(spec: ProviderSpec, base: Provider) -> BatchTraits | None:
    """The batch API as agac.yml tells it: over what the provider's own row says of the same API, else over what is
    known of all that speak it."""
    known = base.batch
    if known is not None and spec.base_url is not None and not base.simulated:
        # somebody's gateway: whether it hands our key through, and how late its list is, nobody has said
        known = replace(known, grace=max(known.grace, GENERIC[known.api].grace))
    said = spec.batch
    if said is None:
        return known
    if said.api == "none":
        return None
    traits = known if known is not None and known.api == said.api else GENERIC[said.api]
    told: dict[str, Any] = {name: getattr(said, name) for name in said.model_fields_set - {"api"}}
    if said.windows is not None:
        told["windows"] = tuple(said.windows)
    return replace(traits, **told)


def _price(spec: PriceFile) -> Price:
    return Price(
        input=spec.input,
        output=spec.output,
        cached_input=spec.cached_input,
        batch=spec.batch,
        flex=spec.flex,
        priority=spec.priority,
    )

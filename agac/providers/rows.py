"""agac.yml's `providers` laid over the shipped table, with `${VAR}` filled from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import Protocol
from urllib.parse import urlsplit

from agac.core.errors import Problem, Where
from agac.providers.dialects import DIALECTS
from agac.providers.table import SHIPPED, Limits, Price, Provider, Structured

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

Locate = Callable[[tuple[str, ...]], Where]
"""Where a key of agac.yml stands, by its path (`("providers", "local", "base_url")`)."""


class LimitsSpec(Protocol):
    """`limits` of a provider in agac.yml."""

    @property
    def concurrency(self) -> int | None: ...
    @property
    def rpm(self) -> int | None: ...
    @property
    def tpm(self) -> int | None: ...


class PriceSpec(Protocol):
    """One entry of `prices` of a provider in agac.yml: dollars per million tokens."""

    @property
    def input(self) -> float: ...
    @property
    def cached_input(self) -> float | None: ...
    @property
    def output(self) -> float: ...
    @property
    def batch(self) -> float | None: ...
    @property
    def flex(self) -> float | None: ...
    @property
    def priority(self) -> float | None: ...


class ProviderSpec(Protocol):
    """One entry of `providers` in agac.yml, as it was read; None: the key is not there."""

    @property
    def dialect(self) -> str | None: ...
    @property
    def base_url(self) -> str | None: ...
    @property
    def api_key(self) -> str | None: ...
    @property
    def batch(self) -> str | None: ...
    @property
    def structured(self) -> Structured | None: ...
    @property
    def limits(self) -> LimitsSpec | None: ...
    @property
    def prices(self) -> Mapping[str, PriceSpec] | None: ...
    @property
    def headers(self) -> Mapping[str, str] | None: ...


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
    providers = {name: _with_key(row, env) for name, row in SHIPPED.items()}
    problems: list[Problem] = []
    for name, spec in specs.items():
        checked = _check(name, spec, locate or _whole_file)
        problems += checked
        if not checked:
            providers[name] = _overlay(name, spec, env)
    return providers, problems


def _whole_file(_path: tuple[str, ...]) -> Where:
    return Where("agac.yml")


def _with_key(row: Provider, env: Mapping[str, str]) -> Provider:
    place, found = _Environment(env), _Environment(env)
    base_url = _place(row, place)
    key = found.value(row.key_variable) or None if row.key_variable else None
    missing = [*place.missing, *([] if row.key_optional else found.missing)]
    return replace(row, base_url=base_url, api_key=key, missing_variables=tuple(missing), secrets=tuple(found.values))


def _place(row: Provider, env: _Environment) -> str:
    """A shipped row's address; one that a user's variable names is no secret."""
    return re.sub(r"(?<!:)/{2,}", "/", env.fill(row.base_url)).rstrip("/")


def _check(name: str, spec: ProviderSpec, locate: Locate) -> list[Problem]:
    def problem(key: str, message: str) -> Problem:
        return Problem(locate(("providers", name, *key.split())), message, ".".join(("providers", name, *key.split())))

    problems: list[Problem] = []
    if spec.dialect is None and name not in SHIPPED:
        problems.append(problem("", f"dialect is missing; write one of {_listed(DIALECTS)}"))
    if spec.dialect is not None and spec.dialect not in DIALECTS:
        near = get_close_matches(spec.dialect, DIALECTS, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"agac speaks {_listed(DIALECTS)}"
        problems.append(problem("dialect", f"unknown dialect '{spec.dialect}'; {hint}"))
    if spec.base_url is None and name not in SHIPPED:
        problems.append(
            problem("", "base_url is missing; write the address before the dialect's path, like https://host/v1")
        )
    if spec.base_url is not None and (trouble := _url_trouble(spec.base_url)):
        problems.append(problem("base_url", trouble))
    return problems


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(sorted(names))


def _url_trouble(text: str) -> str | None:
    """What is wrong with a base URL as written; one that begins with a variable is judged where it is used."""
    if text.startswith("${"):
        return None
    try:
        parts = urlsplit(text)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return f"'{text}' is no address; it starts with https:// (or http://) and names a host"
    if parts.username or parts.password:
        return "a password in an address ends up in logs; put it into api_key or headers as ${VAR}"
    if parts.query or parts.fragment:
        return f"'{text}' goes on after the path; the dialect's own path is put at its end"
    for dialect in DIALECTS.values():
        if parts.path.rstrip("/").endswith(dialect.path):
            return f"the dialect adds its path itself; write {text.rstrip('/').removesuffix(dialect.path)}"
    return None


def _overlay(name: str, spec: ProviderSpec, env: Mapping[str, str]) -> Provider:
    base = SHIPPED.get(name) or Provider(name=name, dialect=spec.dialect or "", base_url="", structured="json_object")
    found = _Environment(env)
    key_variable, api_key = base.key_variable, None
    if spec.api_key is not None:
        only = _VARIABLE.fullmatch(spec.api_key)
        key_variable = only[1] if only else None
        api_key = found.fill(spec.api_key)
    elif base.key_variable is not None and (not base.key_optional or env.get(base.key_variable)):
        api_key = found.value(base.key_variable)
    headers = {key: found.fill(value) for key, value in (spec.headers or {}).items()}
    place = _Environment(env)
    base_url = found.fill(spec.base_url) if spec.base_url else _place(base, place)
    return replace(
        base,
        dialect=spec.dialect or base.dialect,
        base_url=base_url.rstrip("/"),
        key_variable=key_variable,
        api_key=api_key or None,
        headers={**base.headers, **headers},
        structured=spec.structured or base.structured,
        limits=_limits(spec.limits) if spec.limits else base.limits,
        prices={**base.prices, **{model: _price(price) for model, price in (spec.prices or {}).items()}},
        batch=spec.batch or base.batch,
        # an embedded provider that is given an address is somebody's own server
        embedded=base.embedded and spec.base_url is None,
        missing_variables=(*place.missing, *found.missing),
        secrets=tuple(dict.fromkeys([*found.values, *([api_key] if api_key else [])])),
    )


def _limits(spec: LimitsSpec) -> Limits:
    return Limits(spec.concurrency, spec.rpm, spec.tpm)


def _price(spec: PriceSpec) -> Price:
    return Price(
        input=spec.input,
        output=spec.output,
        cached_input=spec.cached_input,
        batch=spec.batch,
        flex=spec.flex,
        priority=spec.priority,
    )

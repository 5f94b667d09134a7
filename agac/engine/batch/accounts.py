"""The accounts whose batches an invocation works with, opened when they are first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agac.core.errors import AgacError, UsageError
from agac.core.keys import account_mark
from agac.providers.batches import BatchApi, BatchTraits
from agac.providers.provider import Provider


@dataclass(frozen=True, slots=True)
class Account:
    """One account at a provider. `mark` tells it from others and holds nothing secret; `base_url` as it may be
    shown."""

    provider: Provider
    traits: BatchTraits
    api: BatchApi
    mark: str
    base_url: str


class Accounts:
    """Accounts by the provider's name. `providers` are the project's as they are now, keys included."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        open_api: Callable[[Provider], BatchApi],
        clean: Callable[[str], str],
    ) -> None:
        self._providers, self._open, self._clean = providers, open_api, clean
        self._accounts: dict[str, Account] = {}

    def of(self, name: str) -> Account:
        """The account. Raises AgacError for a provider that the project does not have any more, or without batches, and
        UsageError where a key of it is missing."""
        found = self._accounts.get(name)
        if found is not None:
            return found
        provider = self._providers.get(name)
        if provider is None or provider.batch is None:
            raise AgacError(
                f"a batch is open at provider {name!r}, "
                + ("which agac.yml does not have any more" if provider is None else "which has no batch API here"),
                remedy=f"put {name} back under `providers` in agac.yml, then run the same command again",
            )
        if provider.missing_variables:
            names = ", ".join(provider.missing_variables)
            raise UsageError(
                f"provider {name!r} wants {names}, which is not set",
                remedy=f"set {names} in the environment or in .env, then run the same command again",
            )
        shown = self._clean(provider.base_url)
        place = "" if provider.embedded else provider.base_url  # whose port is another each time
        made = Account(provider, provider.batch, self._open(provider), account_mark(place, provider.api_key), shown)
        self._accounts[name] = made
        return made

    async def close(self) -> None:
        """Closes every connection."""
        for account in self._accounts.values():
            await account.api.close()

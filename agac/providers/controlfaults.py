"""What goes wrong with files and batches: what an error status means there, and whether something was created."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from functools import cache
from socket import gaierror
from typing import Any

import aiohttp
from yarl import URL

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.errorrules import ANY, NOTHING, Rule, codes
from agac.providers.faults import TROUBLES, Trouble, named, reason_of
from agac.providers.provider import Provider

_NO_BATCHES = "Does {base_url} offer files and batches? If not, write run_mode: sync, or batch: none for {provider}."

_FULL = Rule(ANY, codes("token_limit_exceeded enqueued_token_limit_exceeded"), FaultKind.PAUSE, ErrorType.RATE_LIMITED)
"""The account's limit on enqueued tokens, where it is told at once (Azure tells it with a failed batch)."""

_TOO_LARGE = Rule((413,), NOTHING, FaultKind.TASK, remedy="Lower batch.max_bytes or batch.max_requests.")
_NOWHERE = (
    Rule((404,), codes("not_found_error"), FaultKind.FATAL, remedy=_NO_BATCHES),
    Rule((404, 405), NOTHING, FaultKind.FATAL, remedy=_NO_BATCHES),
)

KNOWN: tuple[Rule, ...] = (
    # provider-batch.md 13, 17: a batch or a file that was made a minute ago may be nowhere to be found
    Rule((404,), NOTHING, FaultKind.RETRY),
    Rule((410,), NOTHING, FaultKind.TASK),
)
"""What comes before a dialect's rules where something is asked for that was there: it may show up yet."""


@cache
def creating(rules: Sequence[Rule]) -> tuple[Rule, ...]:
    """A dialect's rules with those for files and batches. A model's name that is wrong is said of the model."""
    named, plain = [rule for rule in rules if rule.codes], [rule for rule in rules if not rule.codes]
    return (_FULL, _TOO_LARGE, _NOWHERE[0], *named, _NOWHERE[1], *plain)


_BEFORE_ALL = (401, 403, 404, 405, 407, 410, 411, 413, 414, 415, 429, 431)
"""Statuses with which whoever stands before an API turns a request away, in whatever words."""


def proves_nothing(status: int, data: Any) -> bool:
    """Whether an error status leaves open that what was to be created is there. `data` is the JSON that came with it.

    An API that refuses says so in JSON, before it creates anything; 408, 409, 499 and all from 500 on may come later.
    """
    if status in _BEFORE_ALL:
        return False
    return status in (408, 409, 425, 499) or not 400 <= status < 500 or not isinstance(data, (dict, list))


_SLOW_CONNECT = Trouble(FaultKind.RETRY, ErrorType.TIMEOUT, "no connection to {provider} ({host}) within 10 s")
_SILENT = Trouble(FaultKind.RETRY, ErrorType.TIMEOUT, "{provider} ({host}) did not answer in time", ambiguous=True)

_LIKE: dict[str, type[BaseException]] = {
    "UnsupportedProtocol": aiohttp.NonHttpUrlClientError,
    "ProxyError": aiohttp.ClientHttpProxyError,
    "RemoteProtocolError": aiohttp.ServerDisconnectedError,
    "LocalProtocolError": aiohttp.ClientPayloadError,
    "DecodingError": aiohttp.ClientPayloadError,
    "ReadError": aiohttp.ClientConnectionResetError,
    "WriteError": aiohttp.ClientConnectionResetError,
    "CloseError": aiohttp.ClientConnectionResetError,
}
"""What the SDKs' HTTP library (httpx2) calls what aiohttp, which carries the calls, has a row for; else it is a
connection that was lost."""

_CONNECTING: dict[type[BaseException], type[BaseException]] = {
    gaierror: aiohttp.ClientConnectorDNSError,
    ssl.SSLCertVerificationError: aiohttp.ClientConnectorCertificateError,
    ssl.SSLError: aiohttp.ClientConnectorSSLError,
}
"""Why a connection does not come about, in the standard library's words."""

_OWN = {
    "ConnectTimeout": _SLOW_CONNECT,
    "PoolTimeout": _SLOW_CONNECT,
    "TimeoutException": _SILENT,
    "TimeoutError": _SILENT,
}


def lost(problem: BaseException, provider: Provider, proxy: URL | None, redactor: Redactor, *, creates: bool) -> Fault:
    """Why a request got no answer. One that never left is not ambiguous; nor is any that creates nothing."""
    # not by `__context__`: what went wrong before, and was being handled, says nothing of this request
    own = problem.__cause__ or problem if type(problem).__name__ in _WRAPPERS else problem
    names = {kind.__name__ for kind in type(own).__mro__}
    inner = list(_within(own)) if "ConnectError" in names else [own]
    trouble = _trouble(names, inner, proxy)
    words = {
        "provider": provider.name,
        "host": URL(provider.base_url).host,
        "base_url": provider.base_url,
        "proxy": f"{proxy.host}:{proxy.port}" if proxy else "",
        "reason": f"the proxy answered {str(own)[:3]}" if "ProxyError" in names else reason_of(inner[-1]),
        "status": str(own)[:80],
    }
    fault = named(trouble, words, redactor)
    return replace(fault, ambiguous=trouble.ambiguous and creates)


_WRAPPERS = ("APIConnectionError", "APITimeoutError")
"""What SDKs raise from the exceptions of their HTTP library."""


def _trouble(names: Set[str], inner: Sequence[BaseException], proxy: URL | None) -> Trouble:
    if "ConnectError" in names:
        return TROUBLES[_unconnected(inner, proxy)]
    if "ProxyError" in names and str(inner[0]).startswith("5"):
        return TROUBLES[aiohttp.ClientConnectorError]  # it did not reach them either
    if own := next((trouble for name, trouble in _OWN.items() if name in names), None):
        return own
    return TROUBLES[next((_LIKE[name] for name in names if name in _LIKE), aiohttp.ClientConnectionError)]


def _unconnected(inner: Sequence[BaseException], proxy: URL | None) -> type[BaseException]:
    """Why no connection came about: the name of a host, TLS, a proxy, or nobody listens."""
    for cause, kind in _CONNECTING.items():
        if any(isinstance(one, cause) for one in inner):
            return kind
    return aiohttp.ClientConnectorError if proxy is None else aiohttp.ClientProxyConnectionError


def _within(problem: BaseException) -> Iterator[BaseException]:
    """The exception and what it came from, the innermost last."""
    seen: set[int] = set()
    one: BaseException | None = problem
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__


def refused(provider: Provider, kind: FaultKind, what: str, *, code: str = "") -> Fault:
    """A Fault in words of our own."""
    return Fault(kind, ErrorType.PROVIDER_ERROR, f"{provider.name} {what}", code=code)

"""What goes wrong between us and a provider before there is an answer: one table from exceptions to Faults."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from yarl import URL

from agac.core.errors import ErrorType
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.provider import Provider
from agac.providers.sse import GarbledStream


@dataclass(frozen=True, slots=True)
class Trouble:
    """What an exception means. `sentence` and `remedy` have the fields `{provider} {host} {proxy} {reason} {connect}
    {first_byte} {total} {status} {base_url}`."""

    kind: FaultKind
    type: ErrorType
    sentence: str
    remedy: str = ""
    ambiguous: bool = False
    """The request may have been sent: the provider may have done the work."""


_RETRY, _FATAL = FaultKind.RETRY, FaultKind.FATAL
_ERROR, _TIMEOUT = ErrorType.PROVIDER_ERROR, ErrorType.TIMEOUT

_CUT = Trouble(
    _RETRY, _ERROR, "the connection to {provider} ({host}) was lost before the answer was complete", ambiguous=True
)
_NO_HTTP = Trouble(_RETRY, _ERROR, "what {host} sent is not HTTP", ambiguous=True)
_GARBLED = Trouble(_RETRY, _ERROR, "{provider} ({host}) streamed an event that is not JSON", ambiguous=True)
_NO_CONNECTION = Trouble(
    _RETRY,
    _ERROR,
    "{provider} ({host}) cannot be reached: {reason}",
    "Check that the server runs and that its base_url, {base_url}, is right.",
)
_NO_HOST = Trouble(
    _RETRY,
    _ERROR,
    "{provider}: the host {host} cannot be found: {reason}",
    "Check the host in its base_url, {base_url}, and that this machine is online.",
)
_NO_PROXY = Trouble(
    _RETRY,
    _ERROR,
    "the proxy {proxy} cannot be reached: {reason}",
    "Check the variable that names it (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY), or add {host} to NO_PROXY.",
)
_PROXY_REFUSES = Trouble(
    _FATAL,
    _ERROR,
    "the proxy {proxy} refused the way to {host} ({status})",
    "Give its credentials in the variable (http://user:password@host:port), or add {host} to NO_PROXY.",
)
_NO_TLS = Trouble(
    _RETRY,
    _ERROR,
    "no TLS connection to {provider} ({host}): {reason}",
    "Check that its base_url, {base_url}, is right: https only where the server speaks TLS.",
)
_NOT_TRUSTED = Trouble(
    _FATAL,
    _ERROR,
    "the certificate of {host} is not trusted: {reason}",
    "Set SSL_CERT_FILE to a PEM file with the certificates that sign it (a company's proxy has its own).",
)
_NO_ADDRESS = Trouble(
    _FATAL, _ERROR, "{base_url} is no address", "Write the base_url of {provider} as https://host/path."
)
_SLOW_CONNECT = Trouble(_RETRY, _TIMEOUT, "no connection to {provider} ({host}) within {connect} s (timeout.connect)")
_SILENT = Trouble(_RETRY, _TIMEOUT, "{provider} sent nothing for {first_byte} s (timeout.first_byte)", ambiguous=True)
_SLOW = Trouble(_RETRY, _TIMEOUT, "{provider} did not finish within {total} s (timeout.total)", ambiguous=True)

NO_WEBSOCKET = Trouble(
    _FATAL,
    _ERROR,
    "{provider} accepts no WebSocket at {base_url} ({status})",
    "Write transport=auto or transport=sse in the model.",
)
"""An upgrade that was refused, where nothing else was allowed."""

_REDIRECTED = Trouble(
    _FATAL,
    _ERROR,
    "{provider} ({base_url}) answered {status} and points to {target}; a key is not carried on to another address",
    "Write the address that serves the API as base_url of {provider}.",
)

TROUBLES: dict[type[BaseException], Trouble] = {
    # before anything is sent
    aiohttp.ConnectionTimeoutError: _SLOW_CONNECT,
    aiohttp.ClientConnectorError: _NO_CONNECTION,  # of a Unix socket too
    aiohttp.ClientConnectorDNSError: _NO_HOST,
    aiohttp.ClientProxyConnectionError: _NO_PROXY,
    aiohttp.ClientHttpProxyError: _PROXY_REFUSES,
    aiohttp.ClientSSLError: _NO_TLS,
    aiohttp.ClientConnectorSSLError: _NO_TLS,
    aiohttp.ClientConnectorCertificateError: _NOT_TRUSTED,
    aiohttp.ServerFingerprintMismatch: _NOT_TRUSTED,
    ssl.SSLCertVerificationError: _NOT_TRUSTED,
    ssl.SSLError: _NO_TLS,
    aiohttp.InvalidURL: _NO_ADDRESS,
    aiohttp.InvalidUrlClientError: _NO_ADDRESS,
    aiohttp.NonHttpUrlClientError: _NO_ADDRESS,
    aiohttp.InvalidUrlRedirectClientError: _NO_ADDRESS,
    aiohttp.NonHttpUrlRedirectClientError: _NO_ADDRESS,
    aiohttp.RedirectClientError: _NO_ADDRESS,
    # afterwards: the work may have been done
    aiohttp.SocketTimeoutError: _SILENT,
    aiohttp.ServerTimeoutError: _SILENT,
    TimeoutError: _SLOW,
    aiohttp.ServerDisconnectedError: _CUT,
    aiohttp.ServerConnectionError: _CUT,
    aiohttp.ClientConnectionResetError: _CUT,
    aiohttp.ClientOSError: _CUT,
    aiohttp.ClientConnectionError: _CUT,
    aiohttp.ClientPayloadError: _CUT,
    GarbledStream: _GARBLED,
    OSError: _CUT,
    aiohttp.ClientResponseError: _NO_HTTP,
    aiohttp.ContentTypeError: _NO_HTTP,
    aiohttp.TooManyRedirects: _NO_HTTP,
    aiohttp.ClientError: _CUT,
}
"""Every exception that a request can end in. Classes are named one by one: a new one of aiohttp fails a test."""


def trouble_of(problem: BaseException) -> Trouble:
    """The row of the exception's nearest class. Raises KeyError for what no request raises."""
    if isinstance(problem, aiohttp.ClientHttpProxyError) and problem.status >= 500:
        return _NO_CONNECTION
    return next(TROUBLES[cls] for cls in type(problem).__mro__ if cls in TROUBLES)


def reason_of(problem: BaseException) -> str:
    """The system's words for an exception, without addresses and without anything that was sent."""
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        inner: BaseException = problem.certificate_error
        return getattr(inner, "verify_message", "") or type(inner).__name__
    if isinstance(problem, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {problem.status}"
    if isinstance(problem, aiohttp.ClientConnectorError):
        problem = problem.os_error
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "TLS failed").replace("_", " ").lower()
    strerror = str(getattr(problem, "strerror", None) or problem)
    number = getattr(problem, "errno", None) or next(iter(re.findall(r"\[Errno (\d+)\]", strerror)), None)
    if number and "Connect call failed" in strerror:  # asyncio puts an address there, or one for each try
        return os.strerror(int(number)).lower()
    return strerror if getattr(problem, "strerror", None) else type(problem).__name__


def named(trouble: Trouble, words: Mapping[str, object], redactor: Redactor, status: int | None = None) -> Fault:
    """The Fault of a trouble, in the words that it has fields for."""
    message = trouble.sentence.format(**words)
    if trouble.remedy:
        message = f"{message}. {trouble.remedy.format(**words)}"
    return Fault(trouble.kind, trouble.type, redactor.clean(message), status=status, ambiguous=trouble.ambiguous)


def redirected(provider: Provider, status: int, location: str, redactor: Redactor) -> Fault:
    """An answer that points elsewhere, which is not followed."""
    try:
        target = URL(location).host
    except ValueError:
        target = None
    words = {
        "provider": provider.name,
        "base_url": provider.base_url,
        "status": status,
        "target": target or "another address",
    }
    return named(_REDIRECTED, words, redactor, status)

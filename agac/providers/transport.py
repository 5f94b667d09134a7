"""The way to a provider: its address, the headers, the proxy and the certificates, and what a way
that fails means."""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from socket import gaierror
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

import aiohttp
from yarl import URL

from agac.core.errors import ErrorType, UsageError
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.provider import Provider
from agac.providers.table import DIALECTS

CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Where a file of trusted certificates is named; the first that is set counts."""


def proxy_for(url: URL, env: Mapping[str, str]) -> URL | None:
    """Returns the proxy that the environment names for `url`, credentials included; None:
    straight. HTTPS_PROXY or HTTP_PROXY by the URL's scheme, else ALL_PROXY, in either case (lower
    wins); NO_PROXY's hosts and every loopback address are reached straight, since a proxy's
    loopback is another machine's. Raises UsageError for what is no HTTP proxy."""
    variables = {
        name.lower(): (name, value)
        for name, value in sorted(env.items())
        if value and name.lower().endswith("_proxy")
    }
    nothing = ("", "")
    name, text = variables.get(f"{url.scheme}_proxy") or variables.get("all_proxy") or nothing
    if not text or is_loopback(url.host or ""):
        return None
    _, excepted = variables.get("no_proxy", nothing)
    if excepted and proxy_bypass_environment(f"{url.host}:{url.port}", {"no": excepted}):
        return None
    proxy = URL(text if "://" in text else f"http://{text}")
    if proxy.scheme not in ("http", "https") or not proxy.host:
        problem = f"{name} names a {proxy.scheme} proxy; agac goes through http proxies only"
        raise UsageError(
            problem, remedy=f"Set {name} to http://host:port, or add {url.host} to NO_PROXY."
        )
    return proxy


def is_loopback(host: str) -> bool:
    """True if a host is this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def tls_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """Certificates of the environment's file, else the system's. Raises UsageError for a file
    without any."""
    variable = next((variable for variable in CA_VARIABLES if env.get(variable)), None)
    if variable is None:
        return ssl.create_default_context()
    file = Path(env[variable])
    try:
        folder = file.is_dir()
        return ssl.create_default_context(
            cafile=None if folder else str(file), capath=str(file) if folder else None
        )
    except (OSError, ssl.SSLError) as problem:
        if isinstance(problem, ssl.SSLError):
            reason = "holds no certificates"
        else:
            reason = "cannot be read"
        raise UsageError(
            f"{variable}: {file} {reason}",
            remedy=f"Set {variable} to a PEM file of certificates, or unset it.",
        ) from problem


@cache
def _user_agent() -> str:
    """It takes 4 ms to look up, for each provider of each run."""
    return f"agac/{version('agac')}"


class ConnectionSettings:
    """What calls to a provider need: `url`, headers, proxy, certificates (None: none of it);
    faults in its words."""

    def __init__(
        self, provider: Provider, path: str, env: Mapping[str, str], redactor: Redactor
    ) -> None:
        """`path` is put after the provider's base URL. Raises UsageError when the address, a
        header, a proxy or the certificates cannot be used; a value that cannot be in a header is
        not shown."""
        self.provider = provider
        self._redactor = redactor
        self.url = _address_of(provider, path)
        dialect_headers = DIALECTS[provider.dialect].headers(provider)
        self.headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "User-Agent": _user_agent(),
            **dialect_headers,
            **provider.headers,
        }
        for name, value in self.headers.items():
            if not value.isprintable() or not value.isascii():
                source = f"the header {name}"
                if name in dialect_headers and provider.key_variable:
                    source = provider.key_variable
                raise UsageError(
                    f"{provider.name}: {source} holds characters that HTTP headers cannot carry",
                    remedy=(
                        "Copy the value again; line breaks and typographic quotes are the "
                        "usual reason."
                    ),
                )
        self.proxy = proxy_for(self.url, env)
        self.tls: ssl.SSLContext | None = None
        if "https" in (self.url.scheme, self.proxy and self.proxy.scheme):
            self.tls = tls_context(env)

    def fault(
        self, rule: ExceptionRule, reason: str, said: object = "", **bounds: float | None
    ) -> Fault:
        """Returns what an exception of a request means, in the words of its rule; `said` is the
        status that came with it."""
        words: dict[str, object] = {
            "provider": self.provider.name,
            "host": self.url.host,
            "base_url": self.provider.base_url,
            "proxy": f"{self.proxy.host}:{self.proxy.port}" if self.proxy else "",
            "reason": reason,
            "status": said,
        }
        words |= {name: "any" if bound is None else f"{bound:g}" for name, bound in bounds.items()}
        message = rule.sentence.format(**words)
        if rule.remedy:
            message = f"{message}. {rule.remedy.format(**words)}"
        return Fault(rule.kind, rule.type, self._redactor.clean(message), ambiguous=rule.ambiguous)

    def redirected(self, status: int, headers: Mapping[str, str]) -> Fault:
        """Returns the fault for an answer that points elsewhere, which is not followed."""
        try:
            target = URL(headers.get("location", "")).host
        except ValueError:
            target = None
        return replace(self.fault(_REDIRECTED, target or "another address", status), status=status)


def _address_of(provider: Provider, path: str) -> URL:
    """Returns the address that a provider is asked at. Raises UsageError when it is none."""
    try:
        url = URL(provider.base_url + path)
        (url.host or "").encode("idna")  # refuses what the resolver would stumble over
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        problem = f"the base_url of {provider.name} is no address: '{provider.base_url}'"
        raise UsageError(problem, remedy="Write it as https://host/path in agac.yml.")
    return url


@dataclass(frozen=True, slots=True)
class ExceptionRule:
    """What an exception means.

    Texts have the fields `{provider} {host} {proxy} {reason} {connect} {first_byte} {total}
    {status} {base_url}`."""

    kind: FaultKind
    """The kind of fault that it becomes."""
    type: ErrorType
    """The type under which it is reported."""
    sentence: str
    """What happened."""
    remedy: str = ""
    """What to do."""
    ambiguous: bool = False
    """True if the request may have been sent: the provider may have done the work."""


_RETRY = FaultKind.RETRY
_FATAL = FaultKind.FATAL
_FAILED = ErrorType.PROVIDER_ERROR
_LATE = ErrorType.TIMEOUT

NO_WEBSOCKET = ExceptionRule(
    *(_FATAL, _FAILED, "{provider} accepts no WebSocket at {base_url} ({status})"),
    "Write transport=auto or transport=sse in the model.",
)

_REDIRECTED = ExceptionRule(
    _FATAL,
    _FAILED,
    (
        "{provider} ({base_url}) answered {status} and points to {reason}; a key is not carried "
        "on to another address"
    ),
    "Write the address that serves the API as base_url of {provider}.",
)


class GarbledStream(aiohttp.ClientPayloadError):
    """An event is not JSON: with a piece missing, the answer would be another one."""


_BEFORE_SENDING = {
    ExceptionRule(
        _RETRY, _LATE, "no connection to {provider} ({host}) within {connect} s (timeout.connect)"
    ): (aiohttp.ConnectionTimeoutError,),
    ExceptionRule(
        _RETRY,
        _FAILED,
        "{provider} ({host}) cannot be reached: {reason}",
        "Check that the server runs and that its base_url, {base_url}, is right.",
    ): (aiohttp.ClientConnectorError,),  # of a Unix socket too
    ExceptionRule(
        _RETRY,
        _FAILED,
        "{provider}: the host {host} cannot be found: {reason}",
        "Check the host in its base_url, {base_url}, and that this machine is online.",
    ): (aiohttp.ClientConnectorDNSError,),
    ExceptionRule(
        _RETRY,
        _FAILED,
        "the proxy {proxy} cannot be reached: {reason}",
        (
            "Check the variable that names it (HTTPS_PROXY, HTTP_PROXY, ALL_PROXY), or add {host} "
            "to NO_PROXY."
        ),
    ): (aiohttp.ClientProxyConnectionError,),
    ExceptionRule(
        _FATAL,
        _FAILED,
        "the proxy {proxy} refused the way to {host} ({status})",
        (
            "Give its credentials in the variable (http://user:password@host:port), or add {host} "
            "to NO_PROXY."
        ),
    ): (aiohttp.ClientHttpProxyError,),
    ExceptionRule(
        _RETRY,
        _FAILED,
        "no TLS connection to {provider} ({host}): {reason}",
        "Check that its base_url, {base_url}, is right: https only where the server speaks TLS.",
    ): (aiohttp.ClientSSLError, aiohttp.ClientConnectorSSLError, ssl.SSLError),
    ExceptionRule(
        _FATAL,
        _FAILED,
        "the certificate of {host} is not trusted: {reason}",
        (
            "Set SSL_CERT_FILE to a PEM file with the certificates that sign it (a company's "
            "proxy has its own)."
        ),
    ): (
        aiohttp.ClientConnectorCertificateError,
        aiohttp.ServerFingerprintMismatch,
        ssl.SSLCertVerificationError,
    ),
    ExceptionRule(
        _FATAL,
        _FAILED,
        "{base_url} is no address",
        "Write the base_url of {provider} as https://host/path.",
    ): (
        *(aiohttp.InvalidURL, aiohttp.InvalidUrlClientError, aiohttp.NonHttpUrlClientError),
        *(
            aiohttp.InvalidUrlRedirectClientError,
            aiohttp.NonHttpUrlRedirectClientError,
            aiohttp.RedirectClientError,
        ),
    ),
}

_AFTERWARDS = {
    ExceptionRule(
        _RETRY, _LATE, "{provider} sent nothing for {first_byte} s (timeout.first_byte)"
    ): (*(aiohttp.SocketTimeoutError, aiohttp.ServerTimeoutError),),
    ExceptionRule(_RETRY, _LATE, "{provider} did not finish within {total} s (timeout.total)"): (
        TimeoutError,
    ),
    ExceptionRule(
        _RETRY,
        _FAILED,
        "the connection to {provider} ({host}) was lost before the answer was complete",
    ): (
        *(
            aiohttp.ServerDisconnectedError,
            aiohttp.ServerConnectionError,
            aiohttp.ClientConnectionResetError,
        ),
        *(
            aiohttp.ClientOSError,
            aiohttp.ClientConnectionError,
            aiohttp.ClientPayloadError,
            OSError,
        ),
        aiohttp.ClientError,
    ),
    ExceptionRule(_RETRY, _FAILED, "{provider} ({host}) streamed an event that is not JSON"): (
        GarbledStream,
    ),
    ExceptionRule(_RETRY, _FAILED, "what {host} sent is not HTTP"): (
        *(aiohttp.ClientResponseError, aiohttp.ContentTypeError, aiohttp.TooManyRedirects),
    ),
}
"""The work may have been done."""

EXCEPTION_RULES: dict[type[BaseException], ExceptionRule] = {
    **{kind: rule for rule, kinds in _BEFORE_SENDING.items() for kind in kinds},
    **{
        kind: replace(rule, ambiguous=True) for rule, kinds in _AFTERWARDS.items() for kind in kinds
    },
}
"""Every exception that a request can end in. Classes are named one by one: a new one of aiohttp
fails a test."""


_ENCODED = ExceptionRule(
    _FATAL,
    _FAILED,
    (
        "{host} compressed its answer in a way that was not asked for and cannot be read here: "
        "{reason}"
    ),
    (
        "Let the server, or the gateway before it, send gzip or nothing; or install what the "
        "message names."
    ),
    ambiguous=True,
)
"""The next answer would be lost in the same way, and each one is paid."""


def exception_rule(problem: BaseException) -> ExceptionRule:
    """Returns the row of the exception's nearest class. Raises KeyError for what no request
    raises."""
    if isinstance(problem, aiohttp.ClientResponseError) and "content-encoding" in problem.message:
        return _ENCODED
    if isinstance(problem, aiohttp.ClientHttpProxyError) and problem.status >= 500:
        return EXCEPTION_RULES[aiohttp.ClientConnectorError]
    return next(EXCEPTION_RULES[cls] for cls in type(problem).__mro__ if cls in EXCEPTION_RULES)


def reason_of(problem: BaseException) -> str:
    """Returns the system's words for an exception, without addresses and without anything that was
    sent."""
    if isinstance(problem, aiohttp.ClientConnectorCertificateError):
        inner: BaseException = problem.certificate_error
        return getattr(inner, "verify_message", "") or type(inner).__name__
    if isinstance(problem, aiohttp.ClientResponseError) and "content-encoding" in problem.message:
        return " ".join(problem.message.split())
    if isinstance(problem, aiohttp.ClientHttpProxyError):
        return f"the proxy answered {problem.status}"
    if isinstance(problem, aiohttp.ClientConnectorError):
        problem = problem.os_error
    if isinstance(problem, ssl.SSLError):
        return (problem.reason or "TLS failed").replace("_", " ").lower()
    return _system_words(problem)


def _system_words(problem: BaseException) -> str:
    """Returns the system's words for an exception of a connection."""
    strerror = getattr(problem, "strerror", None)
    words = str(strerror or problem)
    # asyncio puts an address there, or one for each try
    if "Connect call failed" in words:
        numbers = re.findall(r"\[Errno (\d+)\]", words)
        number = getattr(problem, "errno", None) or next(iter(numbers), None)
        if number:
            return os.strerror(int(number)).lower()
    return words if strerror else type(problem).__name__


# The same for the SDKs of batch APIs, which have an HTTP library of their own.

_SLOW_CONNECT = ExceptionRule(_RETRY, _LATE, "no connection to {provider} ({host}) within 10 s")
_SILENT = ExceptionRule(_RETRY, _LATE, "{provider} ({host}) did not answer in time", ambiguous=True)

_LOST: dict[str, ExceptionRule] = {
    "ConnectTimeout": _SLOW_CONNECT,
    "PoolTimeout": _SLOW_CONNECT,
    "TimeoutException": _SILENT,
    "TimeoutError": _SILENT,
    "UnsupportedProtocol": EXCEPTION_RULES[aiohttp.NonHttpUrlClientError],
    "ProxyError": EXCEPTION_RULES[aiohttp.ClientHttpProxyError],
}
"""What the exceptions of the SDKs' HTTP library (httpx2) mean, by their names; any other is a lost
connection."""

_UNCONNECTED: dict[type[BaseException], type[BaseException]] = {
    gaierror: aiohttp.ClientConnectorDNSError,
    ssl.SSLCertVerificationError: aiohttp.ClientConnectorCertificateError,
    ssl.SSLError: aiohttp.ClientConnectorSSLError,
}
"""Why a connection does not come about: the standard library's exceptions, and aiohttp's with the
same meaning."""

_WRAPPERS = ("APIConnectionError", "APITimeoutError")


def lost(problem: BaseException, settings: ConnectionSettings, *, creates: bool) -> Fault:
    """Returns why a request got no answer. One that never left is not ambiguous; nor is any that
    creates nothing."""
    # not by `__context__`: what went wrong before, and was being handled, says nothing of this
    # request
    cause = problem
    if type(problem).__name__ in _WRAPPERS:
        cause = problem.__cause__ or problem
    names = [kind.__name__ for kind in type(cause).__mro__]
    reason = reason_of(cause)
    if "ConnectError" in names:
        causes = _causes_of(cause)
        rule = _unconnected_rule(causes, settings)
        reason = reason_of(causes[-1])
    elif "ProxyError" in names and str(cause).startswith("5"):
        rule = EXCEPTION_RULES[aiohttp.ClientConnectorError]  # the proxy did not reach them either
    else:
        lost_connection = EXCEPTION_RULES[aiohttp.ClientConnectionError]
        rule = next((_LOST[name] for name in names if name in _LOST), lost_connection)
    if "ProxyError" in names:
        reason = f"the proxy answered {str(cause)[:3]}"
    fault = settings.fault(rule, reason, str(cause)[:80])
    return replace(fault, ambiguous=rule.ambiguous and creates)


def _causes_of(problem: BaseException) -> list[BaseException]:
    """Returns an exception with those that led to it, the first cause last."""
    causes = [problem]
    while True:
        cause = causes[-1].__cause__ or causes[-1].__context__
        if cause is None or cause in causes:
            return causes
        causes.append(cause)


def _unconnected_rule(causes: list[BaseException], settings: ConnectionSettings) -> ExceptionRule:
    """Returns the rule for a connection that did not come about."""
    for kind, like in _UNCONNECTED.items():
        if any(isinstance(cause, kind) for cause in causes):
            return EXCEPTION_RULES[like]
    if settings.proxy is None:
        return EXCEPTION_RULES[aiohttp.ClientConnectorError]
    return EXCEPTION_RULES[aiohttp.ClientProxyConnectionError]

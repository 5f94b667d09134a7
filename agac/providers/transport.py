"""The road to a provider, from the environment: which proxy, which certificates. Read once a sender, not a call."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

from yarl import URL

from agac.core.errors import UsageError
from agac.providers.provider import Provider

CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Where a file of trusted certificates is named; the first that is set counts."""


def proxy_for(url: URL, env: Mapping[str, str]) -> URL | None:
    """The proxy that the environment names for `url`, credentials included; None: straight.

    HTTPS_PROXY or HTTP_PROXY by the URL's scheme, else ALL_PROXY, in either case of letters (lower wins); NO_PROXY's
    hosts and every loopback address are reached straight, since a proxy's loopback is another machine's.

    Raises:
        UsageError: the variable names something else than an HTTP proxy.
    """
    found = {
        name.lower(): (name, value) for name, value in sorted(env.items()) if value and name.lower().endswith("_proxy")
    }
    name, text = found.get(f"{url.scheme}_proxy") or found.get("all_proxy") or ("", "")
    if not text or _is_loopback(url.host or "") or _bypassed(url, found.get("no_proxy", ("", ""))[1]):
        return None
    proxy = URL(text if "://" in text else f"http://{text}")
    if proxy.scheme not in ("http", "https") or not proxy.host:
        raise UsageError(
            f"{name} names a {proxy.scheme} proxy; agac goes through http proxies only",
            remedy=f"Set {name} to http://host:port, or add {url.host} to NO_PROXY.",
        )
    return proxy


def _bypassed(url: URL, no_proxy: str) -> bool:
    host = f"{url.host}:{url.port}"
    return bool(no_proxy) and bool(proxy_bypass_environment(host, {"no": no_proxy}))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def tls_context(env: Mapping[str, str]) -> ssl.SSLContext:
    """Verifies servers against the file that the environment names, else against the system's certificates.

    Raises:
        UsageError: the file is not there or holds no certificates.
    """
    for variable in CA_VARIABLES:
        if file := env.get(variable):
            return _context_of(variable, Path(file))
    return ssl.create_default_context()


def _context_of(variable: str, file: Path) -> ssl.SSLContext:
    try:
        if file.is_dir():
            return ssl.create_default_context(capath=str(file))
        return ssl.create_default_context(cafile=str(file))
    except (OSError, ssl.SSLError) as problem:
        reason = "holds no certificates" if isinstance(problem, ssl.SSLError) else "cannot be read"
        raise UsageError(
            f"{variable}: {file} {reason}", remedy=f"Set {variable} to a PEM file of certificates, or unset it."
        ) from problem


def address_of(provider: Provider, path: str) -> URL:
    """Where a dialect is spoken. Raises UsageError when that is no address."""
    try:
        url = URL(provider.base_url + path)
        (url.host or "").encode("idna")  # refuses what the resolver would stumble over
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(
            f"the base_url of {provider.name} is no address: '{provider.base_url}'",
            remedy="Write it as https://host/path in agac.yml.",
        )
    return url


def headers_for(provider: Provider, own: Mapping[str, str]) -> dict[str, str]:
    """All that is sent with every call. A value that cannot stand in a header is refused here, without being shown.

    Raises UsageError.
    """
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json",
        "User-Agent": f"agac/{version('agac')}",
    }
    headers.update(own)
    headers.update(provider.headers)
    for name, value in headers.items():
        if not value.isprintable() or not value.isascii():
            source = provider.key_variable if name in own and provider.key_variable else f"the header {name}"
            raise UsageError(
                f"{provider.name}: {source} holds characters that HTTP headers cannot carry",
                remedy="Copy the value again; line breaks and typographic quotes are the usual reason.",
            )
    return headers

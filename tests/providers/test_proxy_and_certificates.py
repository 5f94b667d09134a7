"""The way to a provider as the environment describes it: proxies, exceptions from them, certificates."""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from wire_servers import AUTHORITY, KEY, a_fault, a_reply, always, http, post, server_tls, serving
from yarl import URL

from agac.core.errors import UsageError
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.batch import ProviderBatch
from agac.providers.batch_apis import open_batch_api
from agac.providers.known_providers import SHIPPED
from agac.providers.transport import proxy_for, tls_context

PASSWORD = "proxy-password-1"


@dataclass
class Tunnel:
    port: int = 0
    asked: list[str] = field(default_factory=list)


@asynccontextmanager
async def tunnelling(target: int, refusal: str | None = None) -> AsyncIterator[Tunnel]:
    """A proxy for CONNECT that leads everywhere to one port of loopback, or refuses."""
    tunnel = Tunnel()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError), closing(writer):
            while piece := await reader.read(65536):
                writer.write(piece)
                await writer.drain()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnel.asked.append((await reader.readuntil(b"\r\n\r\n")).decode())
        if refusal:
            writer.write(f"HTTP/1.1 {refusal}\r\nContent-Length: 0\r\n\r\n".encode())
            writer.close()
            await writer.wait_closed()
            return
        there, back = await asyncio.open_connection("127.0.0.1", target)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy(reader, back), copy(there, writer))

    listening = await asyncio.start_server(connection, "127.0.0.1", 0)
    tunnel.port = listening.sockets[0].getsockname()[1]
    try:
        yield tunnel
    finally:
        listening.close()


async def look(base_url: str) -> ProviderBatch | Fault:
    """How a batch stands, asked through the maker's SDK."""
    api = open_batch_api(replace(SHIPPED["openai"], base_url=base_url, api_key=KEY), Redactor())
    try:
        return await api.look("b")
    finally:
        await api.close()


BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()


async def test_plain_http_goes_through_the_proxy_with_its_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(always(http(b'{"id": "b"}'))) as proxy:
        named = f"http://me:{PASSWORD}@127.0.0.1:{proxy.port}"
        answer = a_reply(await post("http://api.example.test/v1", env={"HTTP_PROXY": named}))
        monkeypatch.setenv("HTTP_PROXY", named)
        assert isinstance(await look("http://api.example.test/v1"), ProviderBatch)
    assert answer.body == b'{"id": "b"}'
    called, looked = proxy.seen
    assert called.line == "POST http://api.example.test/v1/chat/completions HTTP/1.1"
    assert looked.line == "GET http://api.example.test/v1/batches/b HTTP/1.1"
    for seen in (called, looked):
        assert seen.headers["proxy-authorization"] == f"Basic {BASIC}"
        assert seen.headers["authorization"] == f"Bearer {KEY}"


async def test_tls_goes_through_a_tunnel_that_never_sees_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(always(http(b'{"id": "b"}')), tls=server_tls()) as server, tunnelling(server.port) as tunnel:
        env = {"https_proxy": f"http://me:{PASSWORD}@127.0.0.1:{tunnel.port}", "SSL_CERT_FILE": AUTHORITY}
        a_reply(await post("https://api.example.test/v1", env=env))
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        assert isinstance(await look("https://api.example.test/v1"), ProviderBatch)
    assert len(tunnel.asked) == 2
    for asked, seen in zip(tunnel.asked, server.seen, strict=True):
        assert asked.startswith("CONNECT api.example.test:443 ")
        assert f"Proxy-Authorization: Basic {BASIC}" in asked
        assert KEY not in asked
        assert seen.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        ("407 Proxy Authentication Required", FaultKind.FATAL),
        ("403 Forbidden", FaultKind.FATAL),
        ("502 Bad Gateway", FaultKind.RETRY),
    ],
)
async def test_a_proxy_that_refuses_calls_and_batches_is_named_without_its_password(
    refusal: str, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with tunnelling(0, refusal) as tunnel:
        proxy = f"http://me:{PASSWORD}@127.0.0.1:{tunnel.port}"
        called = await post("https://api.example.test/v1", env={"HTTPS_PROXY": proxy})
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        batched = await look("https://api.example.test/v1")
    for found in (called, batched):
        assert isinstance(found, Fault)
        assert (found.kind, found.ambiguous) == (kind, False)
        assert PASSWORD not in found.message
        assert "proxy" in found.message


async def test_a_proxy_that_is_not_there_is_named() -> None:
    async with tunnelling(0) as tunnel:
        pass
    env = {"HTTPS_PROXY": f"http://me:{PASSWORD}@127.0.0.1:{tunnel.port}"}
    found = a_fault(await post("https://api.example.test/v1", env=env))
    assert (found.kind, found.ambiguous) == (FaultKind.RETRY, False)
    assert found.message.startswith(f"the proxy 127.0.0.1:{tunnel.port} cannot be reached: ")
    assert PASSWORD not in found.message


PROXY = "http://proxy.test:3128"


@pytest.mark.parametrize(
    ("url", "env", "expected"),
    [
        ("https://api.test/v1", {"HTTPS_PROXY": PROXY}, PROXY),
        ("https://api.test/v1", {"https_proxy": PROXY, "HTTPS_PROXY": "http://upper.test"}, PROXY),
        ("https://api.test/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://api.test/v1", {"HTTP_PROXY": PROXY}, PROXY),
        ("https://api.test/v1", {"ALL_PROXY": PROXY}, PROXY),
        ("https://api.test/v1", {"HTTPS_PROXY": "proxy.test:3128"}, PROXY),
        ("https://api.test/v1", {"HTTPS_PROXY": ""}, None),
        ("https://api.test/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "api.test"}, None),
        ("https://api.test/v1", {"HTTPS_PROXY": PROXY, "no_proxy": "other.test,.test"}, None),
        ("https://api.test/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "*"}, None),
        ("https://api.test/v1", {"HTTPS_PROXY": PROXY, "NO_PROXY": "other.test"}, PROXY),
        ("http://127.0.0.1:8000/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://[::1]:8000/v1", {"HTTP_PROXY": PROXY}, None),
        ("http://localhost:8000/v1", {"ALL_PROXY": PROXY}, None),
        ("https://api.test/v1", {}, None),
    ],
)
def test_which_proxy_is_taken(url: str, env: dict[str, str], expected: str | None) -> None:
    assert proxy_for(URL(url), env) == (URL(expected) if expected else None)


def test_a_socks_proxy_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="ALL_PROXY names a socks5 proxy") as caught:
        proxy_for(URL("https://api.test/v1"), {"ALL_PROXY": "socks5://127.0.0.1:1080"})
    assert "NO_PROXY" in str(caught.value.remedy)


def test_servers_are_verified_whatever_the_environment_says_and_the_first_named_certificates_count(
    tmp_path: Path,
) -> None:
    context = tls_context({"SSL_CERT_FILE": AUTHORITY, "REQUESTS_CA_BUNDLE": str(tmp_path / "missing")})
    assert [dict(pair[0] for pair in found["subject"]) for found in context.get_ca_certs()] == [
        {"commonName": "agac test authority"}
    ]
    for env in ({}, {"SSL_CERT_FILE": AUTHORITY}, {"SSL_CERT_FILE": str(tmp_path)}):
        context = tls_context(env)
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(("content", "reason"), [(None, "cannot be read"), ("no certificate", "holds no certificates")])
def test_a_file_of_certificates_that_is_none_is_named(tmp_path: Path, content: str | None, reason: str) -> None:
    file = tmp_path / "certificates.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=reason) as caught:
        tls_context({"REQUESTS_CA_BUNDLE": str(file)})
    assert caught.value.message.startswith(f"REQUESTS_CA_BUNDLE: {file}")


async def test_batches_of_a_server_that_is_not_trusted() -> None:
    async with serving(always(http()), tls=server_tls()) as server:
        found = await look(f"https://127.0.0.1:{server.port}/v1")
    found = a_fault(found)
    assert (found.kind, found.ambiguous) == (FaultKind.FATAL, False)
    assert found.message.startswith("the certificate of 127.0.0.1 is not trusted: ")
    assert "verif" in found.message

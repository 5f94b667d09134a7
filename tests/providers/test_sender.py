"""The sender against real servers on loopback: what it sends, what it hands back, what it names a failure."""

import asyncio
import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from wire_servers import AUTHORITY, Seen, Server, always, http, never, server_tls, serving

from agac.core.errors import ErrorType, UsageError
from agac.core.redact import Redactor
from agac.core.types import Fault, FaultKind
from agac.providers.http import DEFAULT_TIMEOUT, HttpReply, Sender, filled
from agac.providers.provider import Provider
from agac.providers.transport import EXCEPTION_RULES, exception_rule
from agac.spec.workflow import Timeout

CANARY = "sk-canary-0123456789abcdef"
PROVIDER = Provider(name="local", dialect="openai-chat", base_url="", key_variable="LOCAL_KEY", api_key=CANARY)


def sender(server: Server, scheme: str = "http", **options: object) -> Sender:
    at = f"{scheme}://127.0.0.1:{server.port}/v1"
    return sender_at(at, **options)


def sender_at(base_url: str, *, env: Mapping[str, str] | None = None, **options: object) -> Sender:
    headers = options.pop("headers", {})
    provider = replace(PROVIDER, base_url=base_url, headers=headers)
    return Sender(provider, Redactor([CANARY]), env=env or {}, **options)  # type: ignore[arg-type]


async def fault(sending: Sender, timeout: Timeout | None = None) -> Fault:
    async with sending:
        answer = await sending.send(b"{}", timeout)
    assert isinstance(answer, Fault)
    assert CANARY not in answer.message
    return answer


async def test_a_call_is_one_post_of_the_given_bytes_with_the_key() -> None:
    async with (
        serving(always(http(b'{"a": 1}', X_Request_Id="r1"))) as server,
        sender(server, headers={"x-team": "data"}) as sending,
    ):
        answer = await sending.send('{"text":"grüße"}'.encode())
    assert isinstance(answer, HttpReply)
    assert (answer.status, answer.body, answer.headers["x-request-id"]) == (200, b'{"a": 1}', "r1")
    assert answer.started <= answer.first_byte <= answer.ended
    [seen] = server.seen
    assert (seen.line, seen.body) == ("POST /v1/chat/completions HTTP/1.1", '{"text":"grüße"}'.encode())
    assert seen.headers["authorization"] == f"Bearer {CANARY}"
    assert (seen.headers["content-type"], seen.headers["x-team"]) == ("application/json", "data")
    assert seen.headers["user-agent"].startswith("agac/")


async def test_an_error_status_is_an_answer_and_no_fault() -> None:
    async with (
        serving(always(http(b"{}", "429 Too Many Requests", Retry_After="3"))) as server,
        sender(server) as sending,
    ):
        answer = await sending.send(b"{}")
    assert isinstance(answer, HttpReply)
    assert (answer.status, answer.headers["retry-after"]) == (429, "3")


async def test_a_connection_is_used_again() -> None:
    async with serving(always(http())) as server, sender(server) as sending:
        for _ in range(5):
            await sending.send(b"{}")
        assert server.connections == 1


async def test_calls_at_once_do_not_wait_for_a_connection() -> None:
    all_here = asyncio.Event()

    async def when_all_are_here(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        if len(server.seen) == 40:
            all_here.set()
        await all_here.wait()
        writer.write(http())
        return True

    async with serving(when_all_are_here) as server, sender(server) as sending:
        answers = await asyncio.gather(*(sending.send(b"{}") for _ in range(40)))
    assert all(isinstance(answer, HttpReply) for answer in answers)


async def test_a_server_that_sends_nothing_is_a_time_out_that_may_have_been_billed() -> None:
    async with serving(never) as server:
        found = await fault(sender(server), Timeout(first_byte=0.05))
    assert (found.kind, found.type, found.ambiguous) == (FaultKind.RETRY, ErrorType.TIMEOUT, True)
    assert found.message == "local sent nothing for 0.05 s (timeout.first_byte)"


async def test_the_total_bounds_a_call_whatever_trickles_in() -> None:
    async def trickle(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.01)
        return False

    async with serving(trickle) as server:
        found = await fault(sender(server, timeout=Timeout(total=0.2, first_byte=5)))
    assert (found.kind, found.type, found.ambiguous) == (FaultKind.RETRY, ErrorType.TIMEOUT, True)
    assert found.message == "local did not finish within 0.2 s (timeout.total)"


async def test_a_connection_that_is_not_made_in_time_is_a_time_out_that_cost_nothing() -> None:
    async with serving(never) as server:
        found = await fault(sender(server, "https"), Timeout(connect=0.05))
    assert (found.kind, found.type, found.ambiguous) == (FaultKind.RETRY, ErrorType.TIMEOUT, False)
    assert found.message == "no connection to local (127.0.0.1) within 0.05 s (timeout.connect)"


async def test_bounds_that_a_call_does_not_name_are_the_senders() -> None:
    async with serving(never) as server:
        found = await fault(sender(server, timeout=Timeout(first_byte=0.05)), Timeout(connect=9))
    assert "timeout.first_byte" in found.message


def test_bounds_that_nobody_names_are_agacs_own() -> None:
    assert filled(Timeout(first_byte=5), DEFAULT_TIMEOUT) == Timeout(connect=10, first_byte=5, total=600)
    assert filled(Timeout(1, 2, 3), DEFAULT_TIMEOUT) == Timeout(1, 2, 3)


async def test_a_refused_connection_is_worth_another_try_and_cost_nothing() -> None:
    async with serving(never) as server:
        pass
    found = await fault(sender(server))
    assert (found.kind, found.type, found.ambiguous) == (FaultKind.RETRY, ErrorType.PROVIDER_ERROR, False)
    assert found.message.startswith("local (127.0.0.1) cannot be reached: ")


CUTS = {
    "before a byte": b"",
    "within the headers": b"HTTP/1.1 200 OK\r\nContent-Le",
    "before the body": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
    "within the body": b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"choices": [',
    "within a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{}",
    "between chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
    "no number for a length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
    "broken compression": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\n\r\nnot gzip!",
    "half of the compression": b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"a\r\n" + gzip.compress(b"x" * 1000)[:10] + b"\r\n",
}


@pytest.mark.parametrize("sent", CUTS.values(), ids=CUTS.keys())
async def test_a_broken_answer_is_worth_another_try_and_may_have_been_billed(sent: bytes) -> None:
    async with serving(always(sent, keep=False)) as server:
        found = await fault(sender(server))
        assert len(server.seen) == 1, "a call was sent twice"
    assert (found.kind, found.type, found.ambiguous) == (FaultKind.RETRY, ErrorType.PROVIDER_ERROR, True)


async def test_a_compressed_answer_is_read() -> None:
    body = gzip.compress(b'{"a": 1}')
    async with serving(always(http(body, Content_Encoding="gzip"))) as server, sender(server) as sending:
        answer = await sending.send(b"{}")
    assert isinstance(answer, HttpReply)
    assert answer.body == b'{"a": 1}'


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"])
async def test_a_company_certificate_is_trusted_when_the_environment_names_its_authority(variable: str) -> None:
    async with (
        serving(always(http()), tls=server_tls()) as server,
        sender(server, "https", env={variable: AUTHORITY}) as sending,
    ):
        answer = await sending.send(b"{}")
    assert isinstance(answer, HttpReply)


async def test_a_certificate_that_nobody_vouches_for_stops_the_run() -> None:
    async with serving(always(http()), tls=server_tls()) as server:
        found = await fault(sender(server, "https"))
        assert server.seen == [], "the key went out before the certificate was checked"
    assert (found.kind, found.ambiguous) == (FaultKind.FATAL, False)
    assert found.message.startswith("the certificate of 127.0.0.1 is not trusted: ")
    assert "Set SSL_CERT_FILE" in found.message


async def test_a_server_without_tls_is_named() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(plain, "127.0.0.1", 0)
    async with listening:
        found = await fault(sender_at(f"https://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"))
    assert (found.kind, found.ambiguous) == (FaultKind.RETRY, False)
    assert found.message.startswith("no TLS connection to local (127.0.0.1): ")


async def test_a_redirect_is_not_followed_and_says_where_it_points() -> None:
    moved = http(b"", "308 Permanent Redirect", Location="https://other.example/v1/chat/completions")
    async with serving(always(moved)) as server:
        found = await fault(sender(server))
        assert len(server.seen) == 1
    assert (found.kind, found.status) == (FaultKind.FATAL, 308)
    assert "other.example" in found.message
    assert "base_url" in found.message


@pytest.mark.parametrize("location", ["", "/elsewhere", "http://[bad"])
async def test_a_redirect_to_nowhere_is_named_too(location: str) -> None:
    async with serving(always(http(b"", "302 Found", Location=location))) as server:
        found = await fault(sender(server))
    assert "points to another address" in found.message


async def test_cookies_are_not_kept() -> None:
    async with serving(always(http(Set_Cookie="tracking=1"))) as server, sender(server) as sending:
        await sending.send(b"{}")
        await sending.send(b"{}")
    assert "cookie" not in server.seen[1].headers


async def test_credentials_of_a_netrc_file_are_never_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with serving(always(http())) as server, sender(server) as sending:
        await sending.send(b"{}")
    assert server.seen[0].headers["authorization"] == f"Bearer {CANARY}"


async def test_bodies_of_many_megabytes_travel_both_ways() -> None:
    large = json.dumps({"text": "x" * 3_000_000}).encode()
    async with serving(always(http(large))) as server, sender(server) as sending:
        answer = await sending.send(large)
    assert isinstance(answer, HttpReply)
    assert answer.body == large
    assert server.seen[0].body == large


async def test_a_cancelled_call_leaves_the_pool_usable() -> None:
    first = True

    async def silent_once(_seen: Seen, writer: asyncio.StreamWriter) -> bool:
        nonlocal first
        if first:
            first = False
            arrived.set()
            await asyncio.Event().wait()
        writer.write(http())
        return True

    arrived = asyncio.Event()
    async with serving(silent_once) as server, sender(server) as sending:
        call = asyncio.create_task(sending.send(b"{}"))
        await arrived.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert isinstance(await sending.send(b"{}"), HttpReply)


async def test_closing_ends_calls_that_wait() -> None:
    arrived = asyncio.Event()

    async def silent(_seen: Seen, _writer: asyncio.StreamWriter) -> bool:
        arrived.set()
        await asyncio.Event().wait()
        return False

    async with serving(silent) as server, sender(server) as sending:
        call = asyncio.create_task(sending.send(b"{}"))
        await arrived.wait()
        await sending.close()
        found = await call
    assert isinstance(found, Fault)
    assert found.ambiguous


@pytest.mark.parametrize("key", ["sk-first\nsk-second", "sk-“typographic”"])
def test_a_key_that_no_header_can_carry_is_refused_without_being_shown(key: str) -> None:
    provider = replace(PROVIDER, base_url="http://127.0.0.1/v1", api_key=key)
    with pytest.raises(UsageError) as caught:
        Sender(provider, Redactor([key]), env={})
    assert "LOCAL_KEY" in caught.value.message
    assert "sk-" not in f"{caught.value.message} {caught.value.remedy}"


@pytest.mark.parametrize(
    "address", ["", "localhost:8000/v1", "ftp://host/v1", "http://[bad/v1", f"http://{'a' * 64}.example/v1"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="the base_url of local is no address"):
        sender_at(address)


NEVER_RAISED_BY_A_REQUEST = {
    "WSServerHandshakeError",  # websockets only
    "WSMessageTypeError",
    "UploadAbortedError",  # only where an upload tracker aborts one
}


def test_every_exception_of_aiohttps_client_has_its_own_row() -> None:
    classes = {
        value
        for value in vars(aiohttp).values()
        if isinstance(value, type) and issubclass(value, (aiohttp.ClientError, aiohttp.ClientConnectionError))
    }
    unmapped = {cls.__name__ for cls in classes - EXCEPTION_RULES.keys()} - NEVER_RAISED_BY_A_REQUEST
    assert unmapped == set()
    assert len(classes) > 15


def test_an_exception_is_judged_by_its_nearest_class() -> None:
    class Newer(aiohttp.ServerDisconnectedError):
        pass

    assert exception_rule(Newer()) is EXCEPTION_RULES[aiohttp.ServerDisconnectedError]
    assert exception_rule(BrokenPipeError()) is EXCEPTION_RULES[OSError]
    assert exception_rule(TimeoutError()) is EXCEPTION_RULES[TimeoutError]


def test_a_host_that_is_not_found_is_worth_another_try() -> None:
    assert EXCEPTION_RULES[aiohttp.ClientConnectorDNSError].kind is FaultKind.RETRY
    assert not EXCEPTION_RULES[aiohttp.ClientConnectorDNSError].ambiguous

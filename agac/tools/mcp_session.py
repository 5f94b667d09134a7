"""One session with an MCP server, by the `mcp` package: a process behind pipes, or HTTP. What it
sends is bounded."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sysconfig
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from secrets import token_hex
from typing import Any, Literal, cast

import anyio
import httpx2
from mcp import Client, MCPError
from mcp import types as wire
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from agac.core.redact import Redactor
from agac.core.text import LINE_END, plain
from agac.spec.mcp_lock import LockedTool, ServerAddress, ServerLock
from agac.tools.tool_functions import SessionGone, ToolFailed

MAX_BYTES = 8_000_000  # of a server's message, of which no more is held; and tools that it may list
MAX_TOOLS = 1_000
LOG_BYTES = (
    100_000  # of what a session writes besides messages; what follows is read and thrown away
)
# for a process to end, after its input and SIGTERM each; to ask a server to tell of changes
END_S = 2.0
LISTEN_S = 5.0
HURRIED_S = 0.2  # in place of END_S after a Ctrl-C
_TOO_LARGE = f"the result has more than the {MAX_BYTES / 1e6:.0f} MB that are read"
_UNREACHED = -32099  # codes of errors that HTTP gave, and not the server; the request was not sent
_UNSENT = -32098
_OURS = token_hex(16)  # data of these errors: a server may use the same codes, and does not know it
_CHUNK = 1 << 16
_NOISE_S = 0.02  # for what a server wrote before its answer to be read

Mode = Literal["auto", "legacy"]

_log = logging.getLogger("agac.mcp")
for _name in ("mcp", "client", "httpx2"):  # what they say is said by our errors
    logging.getLogger(_name).addHandler(logging.NullHandler())


def environment() -> dict[str, str]:
    """Returns the variables that every server's process gets. Programs next to the running Python
    are found last."""
    own = get_default_environment()
    return own | {
        "PATH": os.pathsep.join(filter(None, (own.get("PATH"), sysconfig.get_path("scripts"))))
    }


class McpSession:
    """A session, which a task of its own opens and closes, as the package wants it. `calls` are
    under way; `changed`: its tools are others; `retired`: it takes no new calls, and ends with
    those that it has; `gone`: why it ended."""

    def __init__(
        self, name: str, reached: ServerAddress, watch: Callable[[int], None], mode: Mode = "auto"
    ) -> None:
        """`watch` gets the id of a process that began, and of its end by the same number below 0.
        `mode`: whether the server is asked for its version of the protocol, or is known to have an
        older one, `legacy`."""
        self.calls = 0
        self.changed = False
        self.retired = False
        self.gone = ""
        self._name = name
        self._reached = reached
        self._watch = watch
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._client.add_done_callback(lambda future: future.cancelled() or future.exception())
        self._patience = END_S
        self._end = asyncio.Event()
        self._clean = Redactor(reached.secrets).clean
        self.mode: Mode = mode
        self._said = deque[str](maxlen=5)
        self._logged = 0
        self._held: (
            list[str] | None
        ) = []  # what it writes until the version of the protocol is agreed on
        self.task = asyncio.get_running_loop().create_task(self._own())

    async def open(self, seconds: float) -> None:
        """Waits until it is connected. Raises SessionGone."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._client)
        except TimeoutError:
            raise SessionGone(f"it did not answer within {seconds:g} s", sent=False) from None

    async def close(self, *, hurried: bool = False) -> None:
        """Ends the session, and its process, which has less time to end by itself when
        `hurried`."""
        if hurried:
            self._patience = HURRIED_S
        self.gone = self.gone or "it was closed"
        self._end.set()
        if self._client.done():
            await asyncio.wait([self.task], timeout=4 * self._patience)
        self.task.cancel()
        await asyncio.wait([self.task], timeout=4 * self._patience)

    def retire(self) -> None:
        """No new calls; those that are under way go on."""
        self.retired = True
        if not self.calls:
            self._end.set()

    async def listed(self, seconds: float) -> ServerLock:
        """Returns what the server says of itself. Raises SessionGone."""
        client = self._client.result()
        tools = dict[str, LockedTool]()
        params: wire.PaginatedRequestParams | None = None
        try:
            async with asyncio.timeout(seconds):
                while params is None or params.cursor:
                    page = await client.session.list_tools(params=params)
                    tools |= {
                        one.name: LockedTool(one.description or "", one.input_schema)
                        for one in page.tools
                    }
                    params = wire.PaginatedRequestParams(cursor=page.next_cursor)
                    if len(tools) > MAX_TOOLS or len(str(tools)) > MAX_BYTES:
                        raise SessionGone(
                            f"it lists more than {MAX_TOOLS:,} tools or {MAX_BYTES // 10**6} MB",
                            sent=False,
                        )
        except (MCPError, RuntimeError, ValidationError, TimeoutError) as error:
            raise SessionGone(
                f"its tools cannot be listed: {self._why(error)}", sent=False
            ) from None
        info = client.server_info
        server = f"{info.name} {info.version}".strip() if info else ""
        return ServerLock("", tools, client.instructions or "", server, client.protocol_version)

    async def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Returns the result of a tool as text. Raises ToolFailed, SessionGone."""
        if self._end.is_set():
            raise SessionGone(self.gone, sent=False)
        self.calls += 1
        try:
            result = await self._client.result().session.call_tool(
                tool, arguments, allow_input_required=True
            )
        except MCPError as error:
            raise self._call_error(tool, error) from None
        except (RuntimeError, ValidationError) as error:
            text = f"the result of {tool} is not what its server itself says it is: {error}"
            raise ToolFailed(self._clean(text)) from None
        finally:
            self.calls -= 1
            if self.retired:
                self.retire()
        if not isinstance(result, wire.CallToolResult):
            raise ToolFailed(
                f"{tool} asks for what a person would have to answer, and there is none"
            )
        text = self._clean(_result_text(result))
        if result.is_error:
            raise ToolFailed(text or f"{tool} failed, and does not say why")
        return text

    def _call_error(self, tool: str, error: MCPError) -> SessionGone | ToolFailed:
        """Translates an error of a call: the session is gone, or this call alone failed."""
        is_ours = error.data == _OURS
        has_ended = self._end.is_set() or is_ours or error.code == wire.CONNECTION_CLOSED
        if has_ended or "Session terminated" in error.message:
            was_sent = not (is_ours and error.code == _UNSENT)
            return SessionGone(self._why(error), sent=was_sent)
        return ToolFailed(self._clean(f"{tool}: {error.message}"))

    async def _own(self) -> None:
        try:
            async with self._transport() as transport:
                own = wire.Implementation(name="agac", version=version("agac"))
                how: dict[str, Any] = {
                    "cache": None,
                    "message_handler": self._heard,
                    "client_info": own,
                }
                async with (
                    Client(transport, mode=self.mode, **how) as client,
                    anyio.create_task_group() as group,
                ):
                    await self._agreed(client.protocol_version)
                    with anyio.move_on_after(LISTEN_S):
                        await group.start(self._listen, client)
                    self._client.set_result(client)
                    await self._end.wait()
                    group.cancel_scope.cancel()
        except BaseException as error:  # noqa: BLE001  (whatever the package raises, it is over)
            self.gone = self._why(error)
        self.gone = self.gone or "it ended"
        self._end.set()
        self._log_held(logging.INFO)
        if not self._client.done():
            self._client.set_exception(SessionGone(self.gone, sent=False))

    async def _agreed(self, version: str) -> None:
        """Passes over what a server of an older version wrote: the question for a newer one is
        noise in its log."""
        asked_mode = self.mode
        self.mode = "legacy" if version in HANDSHAKE_PROTOCOL_VERSIONS else "auto"
        if asked_mode == "auto" and self.mode == "legacy":
            await asyncio.sleep(_NOISE_S)
            self._said.clear()
            self._log_held(logging.DEBUG)
        self._log_held(logging.INFO)

    async def _listen(self, client: Client, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Servers of the newer protocol tell of changes to those that asked for it."""
        with suppress(Exception):
            async with client.listen(tools_list_changed=True) as events:
                task_status.started()
                async for _ in events:
                    self.changed = True
            self.changed = True  # from now on a change would go unnoticed
            return
        task_status.started()

    async def _heard(self, message: Any) -> None:
        self.changed |= isinstance(message, wire.ToolListChangedNotification)

    def _why(self, error: BaseException) -> str:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        text = getattr(error, "message", "") or str(error) or type(error).__name__
        return self.gone or self._clean(
            f"{text}: {plain(' / '.join(self._said))}" if self._said else text
        )

    # What carries its messages.

    @asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        if self._reached.command:
            yield self._pipes()
            return
        timeout = httpx2.Timeout(30.0, read=None)  # calls have time-outs of their own
        headers = {"accept-encoding": "identity", **self._reached.headers}
        async with _BoundedHttp(headers=headers, timeout=timeout) as client:
            yield streamable_http_client(
                self._reached.url, http_client=client, max_sse_event_size=MAX_BYTES
            )

    @asynccontextmanager
    async def _pipes(self) -> AsyncIterator[Any]:
        command = self._reached.command
        cwd = self._reached.folder
        env = environment()
        pipes: dict[str, Any] = dict.fromkeys(
            ("stdin", "stdout", "stderr"), asyncio.subprocess.PIPE
        )
        env |= self._reached.env
        process = await asyncio.create_subprocess_exec(
            *command, cwd=cwd, env=env, start_new_session=True, **pipes
        )
        self._watch(process.pid)
        heard, received = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        sent, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with heard, received, sent, to_send, anyio.create_task_group() as group:
                group.start_soon(self._read, process, heard)
                group.start_soon(self._write, process, to_send)
                group.start_soon(self._overhear, process)
                try:
                    yield received, sent
                finally:
                    with anyio.CancelScope(shield=True):
                        await self._end_process(process)
                    self._watch(-process.pid)
                    group.cancel_scope.cancel()
        finally:
            cast("Any", process)._transport.close()  # a grandchild may hold its pipes

    async def _end_process(self, process: asyncio.subprocess.Process) -> None:
        """Closes the process's input, then ends it with all that it started, with the session's
        patience before each step. A Ctrl-C may shorten that meanwhile. `wait` would wait for
        whoever has its pipes, too."""
        assert process.stdin is not None
        process.stdin.close()
        for number in (0, signal.SIGTERM, getattr(signal, "SIGKILL", signal.SIGTERM)):
            last = number not in (0, signal.SIGTERM)
            if number and (last or process.returncode is None):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number) if hasattr(os, "killpg") else process.kill()
            begun = time.monotonic()
            while process.returncode is None and time.monotonic() - begun < self._patience:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def _read(self, process: asyncio.subprocess.Process, heard: Any) -> None:
        """Messages of the process, line by line; what is no message is logged."""
        assert process.stdout is not None
        line = bytearray()
        size = 0
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            while chunk := await process.stdout.read(_CHUNK):
                *ends, rest = chunk.split(b"\n")
                for part in ends:
                    message = self._message(bytes(line + part[: MAX_BYTES + 1]), size + len(part))
                    line = bytearray()
                    size = 0
                    if message is not None:
                        await heard.send(SessionMessage(message))
                size += len(rest)
                line += rest[: max(MAX_BYTES + 1 - len(line), 0)]
        if not self.gone:
            with suppress(TimeoutError):  # it, and its last words
                async with asyncio.timeout(END_S / 2):
                    await process.wait()
            code = process.returncode
            if code is None:
                how = "closed its output"
            else:
                how = f"ended with exit status {code}"
            self.gone = self._why(RuntimeError(f"its process {how}"))
        await heard.aclose()
        self._end.set()

    def _message(self, line: bytes, size: int) -> Any:
        """Returns a line as a message; one that is too large as an error for the call that it
        answers."""
        if size > MAX_BYTES:
            found = re.search(rb'"id"\s*:\s*(\d+)', line[:300])
            error = wire.ErrorData(code=wire.INTERNAL_ERROR, message=_TOO_LARGE)
            return found and wire.JSONRPCError(jsonrpc="2.0", id=int(found[1]), error=error)
        try:
            return wire.jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            return self._note(line[:_CHUNK])

    async def _write(self, process: asyncio.subprocess.Process, to_send: Any) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError):
            async for one in to_send:
                text = one.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(f"{text}\n".encode())
                await process.stdin.drain()

    async def _overhear(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(_CHUNK):
            self._note(chunk)

    def _note(self, output: bytes) -> None:
        """Logs what the server wrote to standard error, up to a bound."""
        lines = LINE_END.split(self._clean(output.decode("utf-8", "replace")))
        for text in filter(str.strip, lines):
            self._said.append(text.strip()[:300])
            before = self._logged
            self._logged += len(text)
            if before < LOG_BYTES and self._held is not None:
                self._held.append(text)
            elif before < LOG_BYTES:
                _log.info("%s: %s", self._name, text)
            if before < LOG_BYTES <= self._logged:
                _log.warning(
                    "%s: it writes more than %s kB; the rest is not logged",
                    self._name,
                    LOG_BYTES // 1000,
                )

    def _log_held(self, level: int) -> None:
        held = self._held or ()
        self._held = None
        for text in held:
            _log.log(level, "%s: %s", self._name, text)


class _BoundedHttp(httpx2.AsyncClient):
    """Answers of bounded size; what goes wrong fails the request that it belongs to, and no
    other."""

    async def send(self, request: httpx2.Request, **how: Any) -> httpx2.Response:
        """Sends a request; what goes wrong becomes an answer with an error.

        Headers go to this client's one address: the package follows no redirect to another
        host."""
        try:
            response = await super().send(request, **how)
            return await self._bounded(response, request)
        except (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout) as problem:
            return _refusal(request, str(problem) or type(problem).__name__, _UNSENT)
        except httpx2.HTTPError as problem:
            return _refusal(request, str(problem) or type(problem).__name__)

    async def _bounded(self, response: httpx2.Response, request: httpx2.Request) -> httpx2.Response:
        """Returns the answer, or the error that it is: too large, compressed, or one of HTTP."""
        status = response.status_code
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return _refusal(request, "it sends a compressed answer, which was not asked for")
        if "json" in response.headers.get("content-type", ""):
            body = bytearray()
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_BYTES:
                    await response.aclose()
                    return _too_large(request)
            return httpx2.Response(
                status, headers=response.headers, content=bytes(body), request=request
            )
        if status >= 400 and status != 404:  # events are bounded one by one
            await response.aclose()
            return _refusal(request, f"HTTP {status} {response.reason_phrase}".strip())
        return response


def _refusal(request: httpx2.Request, why: str, code: int = _UNREACHED) -> httpx2.Response:
    return _error_response(request, {"code": code, "message": why, "data": _OURS})


def _too_large(request: httpx2.Request) -> httpx2.Response:
    return _error_response(request, {"code": wire.INTERNAL_ERROR, "message": _TOO_LARGE})


def _error_response(request: httpx2.Request, error: dict[str, Any]) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    return httpx2.Response(502, json=body, request=request)


def _result_text(result: wire.CallToolResult) -> str:
    """Joins the parts of a result; structured content is used if no part is text."""
    parts = [_part(content) for content in result.content]
    has_text = any(isinstance(content, wire.TextContent) for content in result.content)
    if not has_text and result.structured_content is not None:
        structured = result.structured_content
        parts.append(json.dumps(structured, ensure_ascii=False, separators=(",", ":")))
    return "\n".join(parts)


def _part(content: Any) -> str:
    inner = getattr(content, "resource", content)
    what = getattr(inner, "uri", "") or getattr(inner, "mime_type", "")
    return str(getattr(inner, "text", f"[{content.type} {what}: not shown]"))

"""Agents with one tool on one server, run by three clients: a loop that holds its slot, batch-agent, and agac.

Every client is asked for the same: rows with two turns each, a slow tool between them. The wall time counts from the
first request to the end of the last answer, so that no client's start is in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sqlite3
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from processes import AGAC

import agac
from agac.api import RunOptions

TOPICS = (2, 2, 2, 2, 2, 1, 4, 2, 3)
"""Of so many of 20 papers each: nine searches are enough."""

TOOL = '''\
import asyncio


async def web_search(query: str) -> str:
    """Searches the web."""
    await asyncio.sleep({seconds})
    return f"Results for {{query}}: three pages, none of them new."
'''
WEB_SEARCH = {
    "type": "function",
    "function": {
        "name": "web_search", "description": "Searches the web.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Load:
    """`topics` are the rows, each with what it searches for; `tool` in seconds; `prefix` about so many tokens of system
    message; `slots` requests at a time. `searches` are turns that call the tool, `schema` is the answer's form; both
    for agac alone."""

    base_url: str
    model: str
    topics: Sequence[str]
    slots: int
    tool: float
    prefix: int = 0
    scheme: str = "http"
    searches: int = 1
    schema: dict[str, Any] | None = None

    @property
    def system(self) -> str:
        return "You are a research assistant who answers in one sentence. " + "the " * max(0, self.prefix - 15)

    def text(self, number: int, topic: str) -> str:
        """What is asked of a row. The mark is what makes the simulator call the tool; a model is told in words."""
        queries = [topic if turn == 1 else f"{topic}, page {turn}" for turn in range(1, self.searches + 1)]
        marks = "\n\n".join(f"tool:web_search {json.dumps({'query': query})}" for query in queries)
        return f"Paper {number} on {topic}. Search the web once for: {topic}. Then answer.\n{marks}"


@dataclass
class Measured:
    """What a client took: seconds, tokens. None: unknown."""

    client: str
    wall: float
    calls: int
    tools_requested: int
    tools_executed: int
    ttft: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """As they are printed."""
        ordered, known = sorted(self.ttft), self.cached_tokens is not None
        p50, p95 = (ordered[int(share * (len(ordered) - 1))] if ordered else None for share in (0.5, 0.95))
        return {
            "client": self.client, "wall_s": round(self.wall, 3), "calls": self.calls,
            "ttft_p50_s": p50 and round(p50, 3), "ttft_p95_s": p95 and round(p95, 3),
            "prefix_hit": round(self.cached_tokens / self.prompt_tokens, 4) if known and self.prompt_tokens else None,
            "tools": f"{self.tools_requested} → {self.tools_executed}",
            "tool_dedup": round(self.tools_requested / self.tools_executed, 2) if self.tools_executed else None,
            "prefill_tokens": self.prompt_tokens - self.cached_tokens if known else None,
        }  # fmt: skip


@contextmanager
def simulated(*flags: str) -> Iterator[str]:
    """The base URL of a simulator of its own."""
    words = [*AGAC, "simulate", "--port", "0", "--json", *flags]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["base_url"]
        finally:
            process.terminate()


def reset(base_url: str) -> None:
    """Empties a simulator's caches and its account."""
    request = urllib.request.Request(base_url.removesuffix("/v1") + "/account/reset", data=b"", method="POST")
    urllib.request.urlopen(request).close()


class Searches:
    """The tool, as the loops call it."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.executed = seconds, 0

    async def __call__(self, query: str) -> str:
        self.executed += 1
        await asyncio.sleep(self.seconds)
        return f"Results for {query}: three pages, none of them new."


def holding(load: Load) -> Measured:
    """A loop as one writes it first: a row holds its slot over both turns and the tool."""
    search, found = Searches(load.tool), Measured("loop that holds its slot", 0.0, 0, 0, 0)

    async def turn(session: aiohttp.ClientSession, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body = {"model": load.model, "messages": messages, "tools": [WEB_SEARCH], "stream": True, "max_tokens": 64,
                "stream_options": {"include_usage": True}}  # fmt: skip
        started, text, calls = time.perf_counter(), "", {}
        first = None
        async with session.post(f"{load.base_url}/chat/completions", json=body) as response:
            async for line in response.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                for choice in event["choices"]:
                    delta = choice["delta"]
                    if first is None and (delta.get("content") or delta.get("tool_calls")):
                        first = time.perf_counter() - started
                    text += delta.get("content") or ""
                    for one in delta.get("tool_calls") or ():
                        call = calls.setdefault(one["index"], {"id": one.get("id"), "name": "", "arguments": ""})
                        call["name"] += one["function"].get("name") or ""
                        call["arguments"] += one["function"].get("arguments") or ""
                if usage := event.get("usage"):
                    count(
                        found, usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
                    )
        found.calls += 1
        found.ttft.append(first or 0.0)
        return {"role": "assistant", "content": text or None, "tool_calls": [
            {"id": one["id"], "type": "function", "function": {"name": one["name"], "arguments": one["arguments"]}}
            for one in calls.values()
        ]} if calls else {"role": "assistant", "content": text}  # fmt: skip

    async def row(session: aiohttp.ClientSession, slots: asyncio.Semaphore, number: int, topic: str) -> None:
        messages: list[dict[str, Any]] = [{"role": "system", "content": load.system}]
        messages.append({"role": "user", "content": load.text(number, topic)})
        async with slots:
            while (answer := await turn(session, messages)).get("tool_calls"):
                messages.append(answer)
                for call in answer["tool_calls"]:
                    found.tools_requested += 1
                    said = await search(json.loads(call["function"]["arguments"])["query"])
                    messages.append({"role": "tool", "tool_call_id": call["id"], "content": said})

    async def run() -> None:
        slots = asyncio.Semaphore(load.slots)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            started = time.perf_counter()
            await asyncio.gather(*(row(session, slots, n, one) for n, one in enumerate(load.topics, 1)))
            found.wall = time.perf_counter() - started

    asyncio.run(run())
    found.tools_executed = search.executed
    return found


def count(found: Measured, prompt: int, cached: int | None) -> None:
    """Adds what a call's usage says."""
    found.prompt_tokens += prompt
    if cached is not None:
        found.cached_tokens = (found.cached_tokens or 0) + cached


def package(load: Load) -> Measured | str:
    """The batch-agent package, in the same run; why not, where it is not installed."""
    try:
        from batch_agent import BatchAgent, Tool
        from batch_agent.backends.vllm import VLLMBackend
    except ImportError as error:
        return f"batch-agent is not measured: {error}; pip install -e '.[bench]'"
    search = Searches(load.tool)
    found = Measured("batch-agent 0.2.0", 0.0, 0, 0, 0)

    async def web_search(query: str) -> str:
        """Searches the web."""
        return await search(query)

    tool = Tool.define(name="web_search", cacheable=True)(web_search)
    moments: list[tuple[float, float]] = []
    plain, streamed = VLLMBackend.generate, VLLMBackend.generate_streaming

    def timed(ask: Any) -> Any:
        async def wrapped(self: Any, **given: Any) -> Any:
            started = time.perf_counter()
            answer = await ask(self, **given)
            moments.append((started, time.perf_counter()))
            asked = [*(getattr(answer, "tool_calls", None) or ())]
            found.tools_requested += len(asked)
            return answer

        return wrapped

    VLLMBackend.generate, VLLMBackend.generate_streaming = timed(plain), timed(streamed)
    try:
        asyncio.run(
            BatchAgent.run(
                task="{text}", inputs=[{"text": load.text(n, one)} for n, one in enumerate(load.topics, 1)],
                system_prompt=load.system, tools=[tool], model=load.model, max_inflight=load.slots, max_turns=3,
                backend=load.base_url.removesuffix("/v1").replace("http", "vllm", 1), max_retries=0,
            )
        )  # fmt: skip
    finally:
        VLLMBackend.generate, VLLMBackend.generate_streaming = plain, streamed
    found.calls, found.tools_executed = len(moments), search.executed
    found.wall = max(end for _, end in moments) - min(start for start, _ in moments) if moments else 0.0
    return found


def engine(load: Load) -> Measured:
    """agac, through its Python API; what it took is read from its store."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "tools").mkdir()
        (root / "workflows").mkdir()
        (root / "tools/search.py").write_text(TOOL.format(seconds=load.tool), "utf-8")
        rows = [{"id": f"{n}", "text": load.text(n, one)} for n, one in enumerate(load.topics, 1)]
        (root / "rows.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows), "utf-8")
        provider: dict[str, Any] = {"dialect": "openai-chat", "base_url": load.base_url, "structured": "none"}
        if load.scheme in ("vllm", "sglang"):
            asked = {"backend": f"{load.scheme}://{urlsplit(load.base_url).netloc}", "model": load.model}
        else:
            asked = {"model": f"bench/{load.model}"}
        (root / "agac.yml").write_text(json.dumps({"providers": {"bench": provider}}), "utf-8")
        stage = {
            "name": "ask", "instructions": load.system, "prompt": "${text}", "concurrency": load.slots,
            "tools": {"tools/search.py:web_search": {"cacheable": True}}, "max_tokens": 64, **asked,
        }  # fmt: skip
        if load.schema is not None:
            stage |= {"output_schema": load.schema, "max_tokens": 128}
        workflow = {"input": {"path": "rows.jsonl", "id_field": "id"}, "telemetry": {"ttft": True}, "stages": [stage]}
        (root / "workflows/load.yml").write_text(json.dumps(workflow | {"max_open_rows": len(rows)}), "utf-8")
        report = agac.run("load", RunOptions(concurrency=load.slots), project=root)
        assert report.exit_code == 0, report.summary["errors"]
        return _from_store(root / ".agac/agac.db")


def _from_store(path: Path) -> Measured:
    with sqlite3.connect(path) as database:
        calls = database.execute(
            "SELECT started_at, duration, ttft, input_tokens, cached_tokens FROM attempt"
        ).fetchall()
        tools = database.execute("SELECT how FROM tool_call").fetchall()
    found = Measured("agac", max(a + b for a, b, *_ in calls) - min(a for a, *_ in calls), len(calls), len(tools), 0)
    found.tools_executed = sum(how == "" for (how,) in tools)
    for _, _, ttft, prompt, cached in calls:
        found.ttft += [] if ttft is None else [ttft]
        count(found, prompt or 0, cached)
    return found


def table(found: Sequence[dict[str, Any]]) -> str:
    """Rows of facts as a table of Markdown."""
    names = list(found[0])
    lines = [names, ["---"] * len(names), *([_shown(one.get(name)) for name in names] for one in found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: ""}[value]
    return f"{value:,}" if isinstance(value, int) else str(value)


def options(about: str, n: int, inflight: int, tool: float, prefix: int) -> argparse.Namespace:
    """The flags of `research_summary` and `raw_vs_agac`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--base-url", help="an OpenAI-compatible server; without it a simulated inference engine")
    parser.add_argument("--backend", choices=["vllm", "sglang", "http"], default="http", help="what it is")
    parser.add_argument("--model", default="small", help="the model's name there")
    parser.add_argument("--label", default="simulated h100", help="what to call the server")
    parser.add_argument("--n", type=int, default=n, help="agents")
    parser.add_argument("--max-inflight", type=int, default=inflight, help="requests at a time")
    parser.add_argument("--tool-latency", type=float, default=tool, help="seconds of the tool")
    parser.add_argument("--system-prompt-tokens", type=int, default=prefix, help="about so many")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


def compare(given: argparse.Namespace, topics: Sequence[str]) -> None:
    """Runs the clients one after the other, each on an empty cache where the server is simulated, and prints."""
    own = None if given.base_url else simulated("--serving", "h100", "--slots", str(given.max_inflight))
    found, notes = [], list[str]()
    base_url = given.base_url.rstrip("/") if given.base_url else own.__enter__()
    try:
        scheme = "vllm" if own else given.backend
        load = Load(
            base_url, given.model, topics, given.max_inflight, given.tool_latency, given.system_prompt_tokens, scheme
        )
        for client in (holding, package, engine):
            if own:
                reset(base_url)
            measured = client(load)
            if isinstance(measured, str):
                notes.append(measured)
            else:
                found.append(
                    {"server": given.label, "n": len(topics), "in flight": given.max_inflight, **measured.facts}
                )
    finally:
        if own:
            own.__exit__(None, None, None)
    print(json.dumps({"measured": found, "notes": notes}) if given.json else "\n".join([table(found), *notes]))

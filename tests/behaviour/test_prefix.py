"""What all requests of a stage begin with: the first call warms a cache with it, the others wait for that."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.canned import Answer, Talk, completion, serving
from support.project import ProjectFolder

from agac.core.types import Finish, Reply, Usage
from agac.engine.ask.prefix import PrefixGate
from agac.providers.openai import ChatAssembly
from agac.testing import simulator

LONG = "Be kind. " * 500
"""Some 1,100 tokens."""


class Order:
    """A serving engine: answers, and notes when requests begin (`+`) and end (`-`). With `together` the first waits for
    another one; the first `broken` are refused. Of 2,000 prompt tokens all but the first request find `cached` in its
    cache; None: it does not say."""

    def __init__(self, *, together: bool = False, broken: int = 0, cached: int | None = 1900) -> None:
        self.seen, self._lock, self._two = "", threading.Lock(), threading.Event()
        self.together, self.broken, self.cached = together, broken, cached

    def take(self, talk: Talk) -> Answer:
        talk.asked()
        with self._lock:
            number = self.seen.count("+")
        if talk.path == "/metrics":
            counts = (
                f"vllm:prefix_cache_queries_total {100 + 2000 * number}\nvllm:prefix_cache_hits_total {1500 * number}"
            )
            return Answer(counts.encode())
        with self._lock:
            self.seen += "+"
            number = self.seen.count("+")
        if number > 1:
            self._two.set()
        elif self.together:
            assert self._two.wait(30), "nobody came beside the first"
        with self._lock:
            self.seen += "-"
        said = completion("ok")
        found = {} if self.cached is None else {"prompt_tokens_details": {"cached_tokens": self.cached * (number > 1)}}
        said["usage"] = {"prompt_tokens": 2000, "completion_tokens": 1, "total_tokens": 2001, **found}
        return Answer(said, 400 if number <= self.broken else 200)


@contextmanager
def asking(folder: Path, order: Order, rows: int = 12, **keys: Any) -> Iterator[ProjectFolder]:
    """A project whose stage asks a server through a backend, which makes it an engine of one's own."""
    with serving(order.take) as base_url:
        project = ProjectFolder(folder)
        address = base_url.replace("http", "vllm")
        project.write("agac.yml", json.dumps({"defaults": {"backend": address, "model": "m"}}))
        project.numbered(rows)
        project.workflow(stages=[{"name": "a", "instructions": LONG, "prompt": "${text}", **keys}])
        yield project


CASES: list[tuple[dict[str, Any], dict[str, Any], int, str]] = [
    ({}, {}, 12, "+-"),
    ({"broken": 2}, {}, 12, "+-+-+-"),
    ({"together": True}, {"warm_prefix": False}, 12, "++"),
    ({"together": True}, {"instructions": "Be kind."}, 12, "++"),
    ({"together": True}, {}, 2, "++"),
    ({}, {"instructions": "Be kind.", "prompt": LONG + "${text}"}, 12, "+-"),
    ({"together": True}, {"instructions": "Be kind.", "prompt": "${text}" + LONG}, 12, "++"),
]


@pytest.mark.parametrize(("server", "keys", "rows", "begins"), CASES)
def test_the_first_call_goes_alone_where_its_beginning_is_long_and_others_follow(
    tmp_path: Path, server: dict[str, Any], keys: dict[str, Any], rows: int, begins: str
) -> None:
    order = Order(**server)
    with asking(tmp_path, order, rows, **keys) as project:
        report = project.run(concurrency=4)
        assert report.summary["rows"]["total"] == rows
    assert order.seen.startswith(begins)
    assert order.seen.count("+") == rows, "no request is made to warm anything"


def test_who_waits_goes_with_the_first_token_and_one_that_fails_makes_way() -> None:
    async def story() -> list[str]:
        gate, seen = PrefixGate(), list[str]()

        async def call(name: str, answer: Reply | None) -> None:
            alone = await gate.enter()
            seen.append(f"{name}{' alone' if alone else ''}")
            if not alone:
                return
            try:
                await asyncio.sleep(0)
                if name == "b":
                    assembly = ChatAssembly()
                    assembly.begins = gate.open
                    for piece in ("", "x", "y"):
                        assembly.take({"choices": [{"index": 0, "delta": {"content": piece}}]})
                    await asyncio.sleep(0)
                    seen.append("b goes on")
            finally:
                gate.leave(answer)

        good = Reply("x", Finish.STOP, Usage(9, 1, 0), "m")
        cancelled = asyncio.create_task(call("z", None))
        calls = [asyncio.create_task(call(name, answer)) for name, answer in (("a", None), ("b", good), ("c", good))]
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*calls, cancelled, return_exceptions=True)
        assert gate.first == [good.usage]
        return seen

    assert asyncio.run(story()) == ["z alone", "a alone", "b alone", "c", "b goes on"]


def test_how_well_caches_and_slots_were_used_is_in_the_summary_and_in_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    order = Order()
    with asking(tmp_path, order) as project:
        found = project.run(concurrency=4).summary["serving"]
        assert 0 < found.pop("slot_utilisation") <= 1
        [engine] = found.pop("engines")
        assert found == {
            "prefix_hit": round(11 * 1900 / 24000, 4), "prefix_hit_without_first": 0.95, "first_calls": 1, "slots": 4,
            "prefill_tokens": 24000 - 11 * 1900,
        }  # fmt: skip
        assert (engine["prompt_tokens"], engine["cached_tokens"], engine["prefix_hit"]) == (24000, 18000, 0.75)
        said = project.agac("status", "last").out
        assert "Prefix cache: 87.1% of prompt tokens (95.0% without the first call), 3,100 computed; slots: " in said
        assert "/v1 counted itself: 75.0% of 24,000 prompt tokens from its cache" in said
        assert "a: asked at vllm://127.0.0.1:" in project.agac("plan", "-a", "reviews").out
        order.cached = None
        project.workflow(stages=[{"name": "a", "instructions": f"Now: {LONG}", "prompt": "${text}"}])
        with caplog.at_level("INFO", logger="agac.run"):
            found = project.run(concurrency=4).summary["serving"]
        assert (found["prefix_hit"], found["prefill_tokens"], found["first_calls"]) == (None, None, 1), (
            "not said, not 0"
        )
        assert "stage a: its requests begin otherwise than before" in caplog.text


@pytest.mark.parametrize(
    ("model", "mark"),
    [("simulator/small", "prompt_cache_key"), ("simulator-anthropic/claude-sonnet-5", "cache_control")],
)
def test_hosted_caches_are_asked_to_keep_the_beginning_where_rows_are_enough(
    project: ProjectFolder, model: str, mark: str
) -> None:
    project.configure()
    for rows, marked in ((12, True), (3, mark == "prompt_cache_key")):
        keys = {"instructions": f"{rows} {LONG}", "prompt": "${text}", "model": model}
        project.workflow(rows=rows, stages=[{"name": "a", **keys}])
        with simulator(serving="hosted") as asked:
            found = project.run(concurrency=4).summary["serving"]
            assert [mark in json.dumps(body) for body in asked.requests] == [marked] * rows
            assert len({json.dumps(body.get("prompt_cache_key")) for body in asked.requests}) == 1
        assert (found["first_calls"], found["prefix_hit_without_first"] or 0) > ((0, 0.8) if rows == 12 else (-1, 0))

"""The pool: what is checked, shared, bounded, cut and counted."""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import agac
from agac.core.errors import UsageError, Where
from agac.core.redact import Redactor
from agac.core.types import ToolCall
from agac.spec.python_code import parse_reference
from agac.spec.tools import AgentSpec, ToolRules, ToolSettings, ToolSpec
from agac.spec.workflow import StageSettings
from agac.store.conversations import RecordedCall
from agac.tools import tool_limits
from agac.tools.builtin import describe_builtin
from agac.tools.pool import ToolPool, open_tools
from agac.tools.tool_context import CallScope, ToolContext, ToolOutcome
from agac.tools.tool_functions import Intent, describe

SHARED = ToolRules(cacheable=True)


class AgentStage(NamedTuple):
    """What the pool reads of a stage."""

    index: int
    agent_spec: AgentSpec
    tooling: ToolSettings

    @property
    def settings(self) -> StageSettings:
        return StageSettings(tooling=self.tooling)


class Clock:
    """A clock that waits for nobody, and notes what was waited."""

    def __init__(self) -> None:
        self.now, self.waits = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


@asynccontextmanager
async def opened(
    root: Path, functions: Mapping[str, Callable[..., Any]], rules: ToolRules = SHARED, clock: Any = None, **spec: Any
) -> AsyncIterator[ToolPool]:
    tools = tuple(describe(one, root) for _, one in sorted(functions.items()))
    tools = tuple(replace(tool, **spec) for tool in tools)
    by_source = {tool.source: one for tool, (_, one) in zip(tools, sorted(functions.items()), strict=True)}
    stage: Any = AgentStage(0, AgentSpec(tools), ToolSettings({tool.name: rules for tool in tools}))
    clock = clock or Clock()
    secrets, times = Redactor(["s3cr3t-s3cr3t"]), {"monotonic": clock.monotonic, "sleep": clock.sleep}
    context = ToolContext(root=root, redactor=secrets, functions=by_source, **times)
    async with open_tools([stage], context) as pool:
        yield pool


async def asked(pool: ToolPool, name: str, arguments: str = "{}", row: bytes = b"r", call: int = 0) -> ToolOutcome:
    found = pool.check(0, name, arguments)
    assert not isinstance(found, str), found
    return await pool.call(*found, CallScope(0, row, 0, call))


def test_arguments_are_checked_and_made_whole(tmp_path: Path) -> None:
    def search(q: str, n: int = 3) -> str:
        return ""

    twice = '{"q": "x", "q": "y"}'

    async def main() -> dict[str, Any]:
        async with opened(tmp_path, {"search": search}) as pool:
            texts = [
                '{"q": "x", "n": 4.0}',
                '{"q": "x"}',
                "",
                "{",
                "[]",
                '{"q": 1}',
                '{"q": "x", "m": 1}',
                '{"q": NaN}',
            ]
            texts += ['{"q": "\\ud800"}', twice]
            found = {text: pool.check(0, "search", text) for text in texts}
            return found | {"name": pool.check(0, "serach", "{}"), "other": pool.check(1, "search", "{}")}

    said = asyncio.run(main())
    assert {text: one[1] for text, one in said.items() if not isinstance(one, str)} == {
        '{"q": "x", "n": 4.0}': {"q": "x", "n": 4},
        '{"q": "x"}': {"q": "x", "n": 3},
    }
    assert said[""].endswith('the object: "q" is a required property')
    assert said["{"].startswith("the arguments of search are not JSON: ")
    assert said["[]"].endswith("are not an object; give one, with the parameters by name. They were: []")
    problem = "the arguments of search are not JSON: a key is given twice in one object: 'q'"
    assert said[twice] == f"{problem}. They were: {twice}"
    assert said['{"q": 1}'] == 'the arguments of search do not satisfy its schema: q: 1 is not of type "string"'
    assert "Additional properties" in said['{"q": "x", "m": 1}']
    assert "is nan, which JSON has not" in said['{"q": NaN}']
    assert "surrogate" in said['{"q": "\\ud800"}']
    assert said["name"] == "there is no tool 'serach'; did you mean 'search'?"
    assert said["other"] == "there is no tool 'search'; the tools are: none"


def test_functions_of_the_project_run_in_threads_or_the_loop(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "words.py").write_text("def upper(text: str) -> str:\n    return text.upper()\n")
    (tmp_path / "tools" / "a.py").write_text(
        "from threading import current_thread, main_thread\nfrom .words import upper\n"
        "def here(q: str) -> dict:\n"
        "    print('seen')\n"
        "    return {'q': upper(q), 'main': current_thread() is main_thread()}\n"
        "async def there(q: str) -> dict:\n"
        "    return {'q': upper(q), 'main': current_thread() is main_thread()}\n"
    )
    tools = []
    for name in ("here", "there"):
        ref, problems = parse_reference(f"tools/a.py:{name}", Where("w.yml"), tmp_path, tool=True)
        assert ref is not None, problems
        tools.append(describe(ref, tmp_path))
    stage: Any = AgentStage(0, AgentSpec(tuple(tools)), ToolSettings())

    async def main() -> list[str]:
        async with open_tools([stage], ToolContext(root=tmp_path, redactor=Redactor())) as pool:
            return [(await asked(pool, name, '{"q": "x"}')).text for name in ("here", "there")]

    assert asyncio.run(main()) == ['{"main":false,"q":"X"}', '{"main":true,"q":"X"}']
    assert capsys.readouterr().err == "seen\n"
    (tmp_path / "tools" / "words.py").write_text("def upper(text: str) -> str:\n    return text\n")
    with pytest.raises(UsageError, match="was edited since the run was made"):
        asyncio.run(main())


def test_equal_calls_of_a_cacheable_tool_are_one(tmp_path: Path) -> None:
    async def main(rules: ToolRules) -> tuple[list[str], int, Any]:
        gate, runs = asyncio.Event(), 0

        async def search(q: str) -> str:
            nonlocal runs
            runs += 1
            await gate.wait()
            return q

        async with opened(tmp_path, {"search": search}, rules) as pool:
            rows = [b"a", b"b", b"a"]
            calls = [asyncio.ensure_future(asked(pool, "search", '{"q": "x"}', row)) for row in rows]
            await asyncio.sleep(0.001)
            gate.set()
            found = [
                *(one.how for one in await asyncio.gather(*calls)),
                (await asked(pool, "search", '{"q":"x"}', b"a")).how,
            ]
            return found, runs, pool.counts[0, "search"]

    found, runs, counts = asyncio.run(main(SHARED))
    assert (found, runs) == (["", "coalesced", "coalesced", "cached"], 1)
    assert (counts.requested, counts.executed, counts.coalesced, counts.cache_hits) == (4, 1, 2, 1)
    assert asyncio.run(main(ToolRules()))[:2] == (["", "", "", ""], 4)
    assert asyncio.run(main(ToolRules(cacheable=True, side_effects=True)))[:2] == (["", "", "", ""], 4)
    assert asyncio.run(main(ToolRules(cacheable=True, scope="row")))[:2] == (["", "", "coalesced", "cached"], 2)


def test_no_call_begins_once_the_run_is_to_stop(tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    runs, stopped = list[str](), list[bool]()

    def note(q: str) -> str:
        runs.append(q)
        return q

    def go_on() -> None:
        if stopped:
            raise Stopped

    async def sleep(_: float) -> None:
        stopped.append(True)
        raise Stopped

    async def main() -> None:
        tool = describe(note, tmp_path)
        stage: Any = AgentStage(0, AgentSpec((tool,)), ToolSettings({"note": ToolRules(rate=0.1)}))
        how: Any = {"functions": {tool.source: note}, "sleep": sleep, "go_on": go_on, "stops": Stopped}
        async with open_tools([stage], ToolContext(root=tmp_path, redactor=Redactor(), **how)) as pool:
            assert (await asked(pool, "note", '{"q": "a"}')).text == "a"
            for q in ("b", "c"):  # the first one waits for its turn, the other comes later
                with pytest.raises(Stopped):
                    await asked(pool, "note", f'{{"q": "{q}"}}')

    asyncio.run(main())
    assert runs == ["a"]


def test_many_small_results_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_limits, "KEPT_BYTES", 10_000)

    async def search(q: str) -> str:
        return ""

    async def main() -> int:
        async with opened(tmp_path, {"search": search}) as pool:
            for n in range(100):
                await asked(pool, "search", f'{{"q": "{n}"}}')
            return len(pool._kept)

    assert asyncio.run(main()) == 33


def test_errors_are_told_and_not_kept(tmp_path: Path) -> None:
    fails = [ValueError("no"), ValueError("no"), None]

    def search() -> str:
        if (error := fails.pop(0)) is not None:
            raise error
        return "text"

    async def main(rules: ToolRules) -> tuple[list[ToolOutcome], list[float]]:
        clock = Clock()
        async with opened(tmp_path, {"search": search}, rules, clock) as pool:
            return [await asked(pool, "search") for _ in range(3 - rules.retries)], clock.waits

    found, _ = asyncio.run(main(SHARED))
    assert [(one.error, one.text.partition(" (")[0]) for one in found] == [
        (True, "ValueError: no"), (True, "ValueError: no"), (False, "text")]  # fmt: skip
    fails[:] = [ValueError("no"), ValueError("no"), None]
    found, waits = asyncio.run(main(ToolRules(retries=2)))
    assert ([one.text for one in found], waits) == (["text"], [0.5, 1.0])


def test_a_call_is_bounded_in_time_from_its_start(tmp_path: Path) -> None:
    left = threading.Event()

    @agac.tool(version="1")  # nothing stands for the event that it holds
    def blocked() -> str:
        left.wait()
        return ""

    async def forever() -> str:
        await asyncio.Event().wait()
        return ""

    async def main() -> list[ToolOutcome]:
        rules = ToolRules(timeout=0.01, concurrency=1)
        async with opened(tmp_path, {"blocked": blocked, "forever": forever}, rules) as pool:
            try:
                names = ["forever", "forever", "blocked"]
                found = await asyncio.gather(*(asked(pool, name) for name in names))
                assert pool.counts[0, "forever"].timeouts == 2
                return found
            finally:
                left.set()

    assert [one.text for one in asyncio.run(main())] == [
        *["forever took longer than 0.01 s, and was given up"] * 2,
        "blocked took longer than 0.01 s, and was given up",
    ]


def test_calls_of_a_tool_are_paced_and_bounded_in_number(tmp_path: Path) -> None:
    at_once, most = 0, 0

    async def search(q: int) -> str:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1
        return ""

    async def main(rules: ToolRules) -> list[float]:
        clock = Clock()
        async with opened(tmp_path, {"search": search}, rules, clock) as pool:
            await asyncio.gather(*(asked(pool, "search", f'{{"q": {n}}}') for n in range(5)))
        return clock.waits

    assert asyncio.run(main(ToolRules(concurrency=2))) == []
    assert most == 2
    assert asyncio.run(main(ToolRules(rate=2, concurrency=1))) == [0.5, 0.5, 0.5]


def test_a_long_result_is_cut_and_secrets_are_taken_out(tmp_path: Path) -> None:
    def search() -> str:
        return "a" * 70 + "b" * 100 + "c" * 30

    def leaks() -> str:
        return "key=s3cr3t-s3cr3t"

    async def main() -> list[ToolOutcome]:
        async with opened(tmp_path, {"search": search, "leaks": leaks}, max_chars=100) as pool:
            assert pool.counts[0, "search"].truncated == 0
            return [await asked(pool, name) for name in ("search", "search", "leaks")]

    first, again, clean = asyncio.run(main())
    assert first.text == "a" * 70 + "\n[… 100 of 200 characters are left out …]\n" + "c" * 30
    assert (again.text, again.how, clean.text) == (first.text, "cached", "key=[redacted]")


def test_stages_that_cut_a_result_elsewhere_do_not_share_it(tmp_path: Path) -> None:
    def search(q: str) -> str:
        return q * 300

    async def main() -> list[int]:
        told = describe(search, tmp_path)
        tools = [replace(told, max_chars=most) for most in (200, 250, 400)]
        stages: Any = [
            AgentStage(at, AgentSpec((one,)), ToolSettings({"search": SHARED})) for at, one in enumerate(tools)
        ]
        context = ToolContext(root=tmp_path, redactor=Redactor(), functions={told.source: search})
        async with open_tools(stages, context) as pool:
            calls = (pool.call(one, {"q": "x"}, CallScope(at, b"r", 0, 0)) for at, one in enumerate(tools))
            return [outcome.text.count("x") for outcome in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [200, 250, 300]


def test_stubs_stand_in_and_nothing_is_run(tmp_path: Path) -> None:
    def search(q: str) -> str:
        raise AssertionError

    def pay(q: str) -> str:
        raise AssertionError

    tools = tuple(describe(one, tmp_path) for one in (pay, search))
    stubs: Any = {"search": {"cel": "'found ' + args.q", "delay": 0.4}}
    stage: Any = AgentStage(0, AgentSpec(tools, mode="stub", stubs=stubs), ToolSettings({"search": SHARED}))
    clock = Clock()
    context = ToolContext(root=tmp_path, redactor=Redactor(), monotonic=clock.monotonic, sleep=clock.sleep)

    async def main() -> list[ToolOutcome]:
        async with open_tools([stage], context) as pool:
            found = [await asked(pool, name, '{"q": "x"}') for name in ("search", "search", "pay")]
            assert pool.counts[0, "search"].executed == 0
            return found

    first, second, none = asyncio.run(main())
    assert first == second == ToolOutcome("found x", how="stub")
    assert none == ToolOutcome("pay has no stub, and tools_mode is stub; add one to tool_stubs", True, "stub")
    assert clock.waits == [0.4, 0.4]


def test_what_was_recorded_stands_in(tmp_path: Path) -> None:
    def search(q: str) -> str:
        if q == "bad":
            raise ValueError("no")
        return f"found {q}"

    tools, file = (describe(search, tmp_path),), tmp_path / "tools/recorded/one.jsonl"
    live: Any = AgentStage(0, AgentSpec(tools), ToolSettings(record=True))
    stubs: Any = {"search": {"file": "tools/recorded/one.jsonl"}}
    stub: Any = AgentStage(0, AgentSpec(tools, mode="stub", stubs=stubs), ToolSettings())

    async def main(stage: Any, record: Path | None) -> list[str]:
        by_source = {tools[0].source: search}
        context = ToolContext(root=tmp_path, redactor=Redactor(), functions=by_source, record=record)
        async with open_tools([stage], context) as pool:
            return [(await asked(pool, "search", f'{{"q": "{q}"}}')).text for q in ("x", "x", "bad")]

    first = asyncio.run(main(live, file))
    assert asyncio.run(main(stub, None)) == first
    assert len(file.read_text().splitlines()) == 2


def test_a_replayed_call_that_was_not_made_is_named_and_not_sent(tmp_path: Path) -> None:
    def search(q: str) -> str:
        raise AssertionError

    tools = (describe(search, tmp_path),)
    stage: Any = AgentStage(0, AgentSpec(tools, mode="replay"), ToolSettings(replay=7))

    async def recorded(run: int, scope: CallScope) -> tuple[list[RecordedCall], list[ToolCall]]:
        assert (run, scope.fingerprint) == (7, b"r")
        there = [RecordedCall("search", '{"q":  "x"}', text, error) for text, error in (("then", False), ("no", True))]
        return there, [ToolCall("", *call) for call in (("other", "{}"), *[("search", '{"q":"x"}')] * scope.call)]

    async def main() -> list[ToolOutcome]:
        context = ToolContext(root=tmp_path, redactor=Redactor(), recorded=recorded)
        async with open_tools([stage], context) as pool:
            both = enumerate(("x", "x", "x", "y"))
            return [await asked(pool, "search", f'{{"q": "{q}"}}', call=place) for place, q in both]

    known, again, third, other = asyncio.run(main())
    assert known == ToolOutcome("then", how="replayed")
    assert again == third == ToolOutcome("no", error=True, how="replayed")
    assert other.lost is not None
    assert other.lost.message == (
        'search was not called with {"q":"y"} in run 7, and is not now; run it with --tools-mode live, '
        "or replay a run in which it was made"
    )


LONG = "a" * 150 + "s3cr3t-s3cr3t" + "c" * 150


def _kinds(root: Path) -> dict[str, tuple[ToolSpec, Any]]:
    """A tool of each kind that gives LONG for `{"path": "long"}`, and the functions that a program gives."""

    def here(path: str) -> str:
        if path != "long":
            raise OSError(path)
        return LONG

    async def there(path: str) -> str:
        return here(path)

    async def child(tool: ToolSpec, arguments: Any, scope: CallScope, intent: Intent) -> ToolOutcome:
        known = arguments["path"] == "long"
        return ToolOutcome(LONG if known else "not there", error=not known)

    (root / "docs").mkdir()
    (root / "docs/long").write_text(LONG)
    functions = [describe(one, root) for one in (here, there)]
    own = describe_builtin("read_file", {"root": "docs"}, root)
    stub = replace(functions[0], name="stub")
    agent = ToolSpec("agent__child", "", functions[0].parameters, "agent", "child")
    given = {functions[0].source: here, functions[1].source: there}
    found = {tool.name: (tool, given) for tool in (*functions, own, stub)}
    return found | {agent.name: (agent, child)}


@pytest.mark.parametrize("kind", ["here", "there", "read_file", "stub", "agent__child"])
def test_every_kind_of_tool_is_checked_bounded_cleaned_and_counted(kind: str, tmp_path: Path) -> None:
    tool, more = _kinds(tmp_path)[kind]
    tool = replace(tool, max_chars=200)
    stubs: Any = {"stub": {"cel": f"args.path == 'long' ? '{LONG}' : args.nothing"}}
    mode: Any = "stub" if kind == "stub" else "live"
    stage: Any = AgentStage(0, AgentSpec((tool,), mode=mode, stubs=stubs), ToolSettings())
    context = ToolContext(root=tmp_path, redactor=Redactor(["s3cr3t-s3cr3t"]))
    context = replace(context, run_child=more) if callable(more) else replace(context, functions=more)

    async def main() -> None:
        async with open_tools([stage], context) as pool:
            told = await asked(pool, kind, '{"path": "long"}')
            assert told.text == "a" * 140 + "\n[… 110 of 310 characters are left out …]\n" + "c" * 60
            assert (await asked(pool, kind, '{"path": "none"}')).error
            assert isinstance(pool.check(0, kind, '{"path": 1}'), str)
            counts = pool.counts[0, kind]
            assert (counts.requested, counts.errors, counts.truncated) == (2, 1, 1)

    asyncio.run(main())


class Flights(NamedTuple):
    """How callers of one tool come, and what becomes of them: each comes at a tick with an argument, and may be
    cancelled some ticks later; the tool gives up the call of a number after so many ticks, with a result or not."""

    callers: list[tuple[int, int, int | None]]
    fails: list[bool]
    lasts: int


@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Flights,
        st.lists(
            st.tuples(st.integers(0, 6), st.integers(0, 1), st.none() | st.integers(0, 6)), min_size=1, max_size=8
        ),
        st.lists(st.booleans(), min_size=8, max_size=8),
        st.integers(0, 4),
    )
)
def test_no_cancellation_or_failure_hangs_or_poisons_those_that_wait(plan: Flights) -> None:
    under_way: dict[int, int] = {}
    runs: list[int] = []

    async def search(q: int) -> str:
        assert not under_way.get(q), "two equal calls at once"
        under_way[q], number = 1, len(runs)
        runs.append(q)
        try:
            for _ in range(plan.lasts):
                await asyncio.sleep(0)
            if plan.fails[number % 8]:
                raise ValueError(number)
            return str(q)
        finally:
            under_way[q] = 0

    async def caller(pool: ToolPool, wait: int, q: int) -> ToolOutcome:
        for _ in range(wait):
            await asyncio.sleep(0)
        return await asked(pool, "search", f'{{"q": {q}}}')

    async def ended(task: asyncio.Task[ToolOutcome], after: int) -> None:
        for _ in range(after):
            await asyncio.sleep(0)
        task.cancel()

    async def main() -> None:
        async with opened(Path.cwd(), {"search": search}) as pool, asyncio.timeout(20):
            tasks = [asyncio.ensure_future(caller(pool, wait, q)) for wait, q, _ in plan.callers]
            enders: list[Awaitable[None]] = [
                ended(task, after) for task, (*_, after) in zip(tasks, plan.callers, strict=True) if after is not None
            ]
            found = await asyncio.gather(*tasks, *enders, return_exceptions=True)
            for one, (_, q, after) in zip(found, plan.callers, strict=False):
                if isinstance(one, asyncio.CancelledError):
                    assert after is not None
                else:
                    assert isinstance(one, ToolOutcome)
                    assert one.error or one.text == str(q)
            counts = pool.counts[0, "search"]
            assert counts.executed == len(runs)
            assert counts.requested == counts.executed + counts.coalesced + counts.cache_hits
            assert len(runs) <= len({q for _, q, _ in plan.callers}) + sum(plan.fails[: len(runs)])

    asyncio.run(main())

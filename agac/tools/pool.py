"""Tools at work: each call checked, run once for all that ask the same, bounded, and its result
cut to size."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from agac.core.errors import AgacError, RowError, did_you_mean
from agac.core.keys import canonical, digest, idempotency_key, tool_key
from agac.core.redact import Redactor
from agac.core.types import JSONValue, ToolCall, unique_keys
from agac.data.files import writable_place
from agac.spec.paths import home_of
from agac.spec.tool_schemas import SentParameters, sent_name, sent_parameters
from agac.spec.tool_stubs import recorded_line, stub_answer
from agac.spec.tools import ToolRules, ToolSpec
from agac.spec.workflow import Stage
from agac.store.rows import RecordedCall
from agac.store.writer import ToolCache
from agac.tools.builtin import Changes, builtin
from agac.tools.functions import Threads, Unfit, exchanged, plain
from agac.tools.mcp import McpServers
from agac.tools.processes import THREADS
from agac.tools.tool_arguments import (
    MAX_CHARS,
    MAX_PROBLEMS,
    Arguments,
    as_written,
    parse_number,
    schema_faults,
    validator_of,
    with_defaults,
)
from agac.tools.tool_functions import (
    NO_INTENT,
    Intent,
    ToolFailed,
    ToolFunction,
    ToolLost,
    ToolTimeout,
    load_tool,
)

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator

    from agac.data.remote import RemoteContents


class CallScope(NamedTuple):
    """To what a call of a tool belongs: the stage, the task by its fingerprint, and its place in
    the conversation, from
    0. These three name a call for ever, so a tool that takes an idempotency key is given them."""

    stage: int
    fingerprint: bytes
    turn: int
    call: int


class ToolOutcome(NamedTuple):
    """What came of a call: the text that the model is told. `error`: the tool failed, or was not
    run. `how`: "" where it was run for this call, else what served it. `lost`: the row fails with
    it; `anew`: its conversation begins anew first, some times, where nothing was done that must
    not be repeated; `made`: no where it was surely not made; `unknown`: nobody knows whether it
    was carried out, since it was given up or broke off."""

    text: str
    error: bool = False
    how: Literal["", "coalesced", "cached", "stub", "replayed"] = ""
    lost: RowError | None = None
    anew: bool = False
    made: bool = True
    unknown: bool = False


@dataclass(slots=True)
class ToolCounts:
    """What became of a tool's calls: `requested` by models, `executed` with all tries; `wait_s`
    for rate and places."""

    requested: int = 0
    executed: int = 0
    coalesced: int = 0
    cache_hits: int = 0
    errors: int = 0
    timeouts: int = 0
    truncated: int = 0
    wait_s: float = 0.0
    exec_s: float = 0.0


GRACE = 0.5  # seconds that a call goes on which nobody waits for any more
KEPT_BYTES = 64_000_000  # of results kept in memory for equal calls, and what each takes besides
KEPT_EACH = 300
RETRY_S = 0.5  # the wait before the first further try, which doubles each time, and the longest
MAX_RETRY_S = 30.0
HEAD = 0.7  # how much of a result that is cut is its beginning; the rest is its end
StandIn = Literal["", "stub", "replayed"]
Run = Callable[[Arguments, CallScope, Intent], Awaitable[str | ToolOutcome]]
"""Runs a tool once: its result, or all that came of it. It begins the intent when all that it
waits for is there. Raises ToolFailed, ToolLost; AgacError ends the run."""

Elsewhere = Callable[[ToolSpec, Arguments, str, float, bool, Intent], Awaitable[str]]
"""Calls a function, with the key that tells this call, for so many seconds once it is begun;
whether it may be called again where nobody knows what came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What tools need of whoever runs them. `functions`: a program's, by the `source` of their
    tools; `env`: what `${VAR}` of servers means; `record`: the file that calls are added to;
    `recorded`: the calls that a run made where this one stands, and those made before it in its
    conversation; `sleep` and `go_on` raise `stops` once no call is to begin; `elsewhere` calls the
    functions of files."""

    root: Path
    redactor: Redactor
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    go_on: Callable[[], object] = bool
    stops: type[Exception] = AgacError
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    web: RemoteContents | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    run_child: Callable[[ToolSpec, Arguments, CallScope, Intent], Awaitable[ToolOutcome]] | None = (
        None
    )
    elsewhere: Elsewhere | None = None
    later: ToolCache | None = None
    record: Path | None = None
    recorded: (
        Callable[[int, CallScope], Awaitable[tuple[Sequence[RecordedCall], Sequence[ToolCall]]]]
        | None
    ) = None


class _Runner(NamedTuple):
    """What runs a tool, at `most` so many calls at a time. `takes_key`: repeated calls can be
    told; `changes` tells equal calls apart; `key` makes it another tool. `remembers`: its server
    knows of earlier calls."""

    run: Run
    key: JSONValue = None
    most: int | None = None
    takes_key: bool = False
    changes: Changes | None = None
    remembers: bool = False


@dataclass(slots=True)
class _Tool:
    """A tool of a stage, with the schema that models are `told`. `bounds` are shared with equal
    ones. `how`: what serves its calls; `recorded`: note them."""

    spec: ToolSpec
    told: SentParameters
    rules: ToolRules
    runner: _Runner
    counts: ToolCounts
    timeout: float | None
    bounds: _Bounds
    validator: Draft202012Validator | None
    how: StandIn
    recorded: bool


class _Bounds:
    """How often a tool is called, and how many times at once."""

    def __init__(self, rules: ToolRules, most: int | None) -> None:
        places = min(filter(None, (rules.concurrency, most)), default=None)
        self.places = nullcontext() if places is None else asyncio.Semaphore(places)
        self._rate = rules.rate
        self._due = -math.inf

    def wait(self, now: float) -> float:
        """The seconds until one more call may begin, which is counted: of a second's calls all may
        begin at once."""
        if self._rate is None:
            return 0.0
        self._due = max(self._due, now - max(1 - 1 / self._rate, 0.0))
        wait = max(self._due - now, 0.0)
        self._due += 1 / self._rate
        return wait


@dataclass(slots=True, eq=False)
class _Flight:
    """A call under way that several may wait for."""

    task: asyncio.Task[ToolOutcome]
    waiters: int = 0


@asynccontextmanager
async def open_tools(stages: Iterable[Stage], context: ToolContext) -> AsyncIterator[ToolPool]:
    """The tools of these stages, those of their children included. Raises UsageError when one
    cannot be had."""
    async with AsyncExitStack() as stack:
        stack.enter_context(exchanged())
        pool = ToolPool(context, stack)
        stack.push_async_callback(pool.close)
        waiting = list(stages)
        while waiting:
            stage = waiting.pop()
            waiting += getattr(stage, "children", ())
            for spec in stage.agent_spec.tools if stage.agent_spec else ():
                pool.add(stage, spec)
        yield pool


class ToolPool:
    """Runs the tools of an invocation. `counts` are by stage and name of the tool. A call that
    others may share runs in a task of its own, which ends when nobody waits for it."""

    def __init__(self, context: ToolContext, stack: AsyncExitStack) -> None:
        self.counts: dict[tuple[int, str], ToolCounts] = {}
        self._context = context
        self._stack = stack
        self._servers: McpServers | None = None
        self._tools: dict[tuple[int, str], _Tool] = {}
        self._told_names: dict[tuple[int, str], tuple[int, str]] = {}
        """The tools by stage and the name that models are told."""
        self._runners: dict[str, _Runner] = {}
        self._bounds: dict[tuple[str, ToolRules], _Bounds] = {}
        self._flights: dict[bytes, _Flight] = {}
        self._kept = OrderedDict[bytes, tuple[str, float]]()
        self._kept_bytes = 0
        self._recorded = set[bytes]()

    def add(self, stage: Stage, spec: ToolSpec) -> None:
        """Adds one tool of a stage. Raises UsageError when the tool is not available."""
        at = (stage.index, spec.name)
        rules = stage.settings.tooling.rules.get(spec.name)
        if spec.kind == "mcp" and rules is None:  # it may do anything, whatever its server says
            rules = ToolRules(side_effects=True)
        how = _stand_in_of(stage, spec)
        runner = self._runner_of(stage, spec, rules, how)
        timeout = None
        if not how and not self._has_own_timeout(spec, rules):
            timeout = (rules or ToolRules()).timeout
        if how or rules is None:
            rules = ToolRules()
        self.counts[at] = ToolCounts()
        bounds_key = (canonical(runner.key or [*at]), rules)
        told = sent_parameters(spec.parameters)
        self._tools[at] = _Tool(
            spec=spec,
            told=told,
            rules=rules,
            runner=runner,
            counts=self.counts[at],
            timeout=timeout,
            bounds=self._bounds.setdefault(bounds_key, _Bounds(rules, runner.most)),
            validator=validator_of(told),
            how=how,
            recorded=stage.settings.tooling.record,
        )
        self._told_names[stage.index, sent_name(spec.name)] = at

    def _runner_of(
        self, stage: Stage, spec: ToolSpec, rules: ToolRules | None, how: StandIn
    ) -> _Runner:
        """Chooses what runs a tool: a stub, the calls of a recorded run, or the tool itself."""
        if how == "stub":
            assert stage.agent_spec is not None
            return _Runner(partial(self._stub, spec.name, dict(stage.agent_spec.stubs)))
        if how == "replayed":
            return _Runner(partial(self._replay, spec.name, stage.settings.tooling.replay or 0))
        if rules and spec.kind == "mcp":
            return self._of_server(stage, spec, rules)
        return self._runner(spec)

    def _has_own_timeout(self, spec: ToolSpec, rules: ToolRules | None) -> bool:
        """True if whatever runs the tool limits the time of its calls itself."""
        if spec.kind == "mcp" or (spec.kind == "agent" and rules is None):
            return True
        return self._is_elsewhere(spec)

    def _of_server(self, stage: Stage, spec: ToolSpec, rules: ToolRules) -> _Runner:
        """What asks an MCP server, which is connected when it is first asked."""
        if self._servers is None:
            self._servers = McpServers(self._context.root, self._context.env)
            self._stack.push_async_callback(self._servers.aclose)
        name, _, tool = spec.source.partition(":")
        server = next(one for one in stage.settings.tooling.servers if one.name == name)
        call = partial(self._servers.call, server, tool, rules)
        key: JSONValue = [spec.kind, spec.source, spec.version, self._servers.access(server)]

        def run(given: Arguments, scope: CallScope, intent: Intent) -> Awaitable[str]:
            return call(given, scope.fingerprint, intent)

        return _Runner(run, key, remembers=server.state)

    def _runner(self, spec: ToolSpec) -> _Runner:
        context = self._context
        key: JSONValue = [spec.kind, spec.source, spec.version, spec.name, dict(spec.settings)]
        known = canonical(key)
        if known in self._runners:
            return self._runners[known]
        if spec.kind == "agent":
            assert context.run_child is not None
            return _Runner(partial(context.run_child, spec), key)
        changes: Changes | None = None
        if spec.kind == "function":
            function = load_tool(spec, context.root, context.functions)
        else:
            function, changes = builtin(spec, context.root, context.web)
        most = None if function.is_async else THREADS
        run = self._called(function, spec.name)
        if self._is_elsewhere(spec):
            run = partial(self._elsewhere, spec, takes_key=function.takes_key)
        self._runners[known] = _Runner(run, key, most, function.takes_key, changes)
        return self._runners[known]

    def _is_elsewhere(self, spec: ToolSpec) -> bool:
        """Whether others carry out a tool, who see to its timeout: there is no hurry before they
        begin."""
        context = self._context
        return (
            spec.kind == "function"
            and context.elsewhere is not None
            and spec.source not in context.functions
        )

    async def _elsewhere(
        self,
        spec: ToolSpec,
        arguments: Arguments,
        scope: CallScope,
        intent: Intent,
        *,
        takes_key: bool,
    ) -> str:
        key = idempotency_key(*scope[1:], spec.name, arguments) if takes_key else ""
        assert self._context.elsewhere is not None
        timeout = self._tools[scope.stage, spec.name].rules.timeout
        again = self.is_repeatable(scope.stage, spec)
        return await self._context.elsewhere(spec, arguments, key, timeout, again, intent)

    def _called(self, function: ToolFunction, name: str) -> Run:
        loop = asyncio.get_running_loop()

        def here(work: tuple[Context, dict[str, Any], Intent]) -> str:
            context, given, intent = work
            if intent.is_kept:  # this is a thread that was waited for
                asyncio.run_coroutine_threadsafe(intent.begin(), loop).result()
            return context.run(function.here, given)

        threads = Threads(here, THREADS)
        self._stack.callback(threads.close)

        async def called(arguments: Arguments, scope: CallScope, intent: Intent) -> str:
            given = function.given(arguments, partial(idempotency_key, *scope[1:], name, arguments))
            if function.is_async:
                await intent.begin()
                return await function.awaited(given)
            text: str = await threads.call((copy_context(), given, intent))
            return text

        return called

    async def _stub(
        self,
        name: str,
        stubs: Mapping[str, JSONValue],
        arguments: Arguments,
        _: CallScope,
        __: Intent,
    ) -> ToolOutcome:
        if name not in stubs:
            return ToolOutcome(
                f"{name} has no stub, and tools_mode is stub; add one to tool_stubs", error=True
            )
        answer = stub_answer(stubs[name], name, arguments, home_of(self._context.root))
        if answer.delay:
            await self._context.sleep(answer.delay)
        return ToolOutcome(answer.text, answer.error)

    async def _replay(
        self, name: str, run: int, arguments: Arguments, scope: CallScope, _: Intent
    ) -> ToolOutcome:
        """What the call came to in a recorded run, the first, the second time. Raises ToolLost:
        not made there."""
        assert self._context.recorded is not None
        said = canonical(arguments)

        def is_alike(one: RecordedCall | ToolCall) -> bool:
            if one.name == name:
                found = self.check(scope.stage, name, one.arguments)
            else:
                found = ""
            return not isinstance(found, str) and canonical(found[1]) == said

        recorded, before = await self._context.recorded(run, scope)
        alike = [one for one in recorded if is_alike(one)]
        if not alike:
            why = f"{name} was not called with {said[:MAX_CHARS]} in run {run}, and is not now; "
            raise ToolLost(
                why + "run it with --tools-mode live, or replay a run in which it was made",
                made=False,
            )
        one = alike[min(sum(map(is_alike, before)), len(alike) - 1)]
        return ToolOutcome(one.result, one.error)

    def check(self, stage: int, name: str, arguments: str) -> tuple[ToolSpec, Arguments] | str:
        """The tool of the stage that a model asks for and its arguments, which fit their schema;
        or what is wrong."""
        tool = self._tools.get(self._told_names.get((stage, name), (stage, name)))
        if tool is None:
            known = [other for at, other in self._told_names if at == stage]
            return (
                f"there is no tool {name[:MAX_CHARS]!r}; "
                f"{did_you_mean(name, known, 'the tools are')}"
            )
        try:
            given = plain(
                json.loads(
                    arguments or "{}", parse_float=parse_number, object_pairs_hook=unique_keys
                )
            )
        except (ValueError, RecursionError, Unfit) as error:
            return f"the arguments of {name} are not JSON: {error}{as_written(arguments)}"
        if not isinstance(given, dict):
            problem = (
                f"the arguments of {name} are not an object; give one, with the parameters by name"
            )
            return f"{problem}{as_written(arguments)}"
        if tool.validator is None:
            said = []
        else:
            said = schema_faults(tool.validator, tool.told, given)
        if said:
            problems = "; ".join(text[:MAX_CHARS] for text in said[:MAX_PROBLEMS])
            return f"the arguments of {name} do not satisfy its schema: {problems}"
        return tool.spec, with_defaults(tool.spec, tool.told.restored(given))

    def remembers(self, stage: int, tool: ToolSpec) -> bool:
        """Whether its server knows of earlier calls, which in a later invocation it does not."""
        return self._tools[stage, tool.name].runner.remembers

    def changes(self, stage: int, tool: ToolSpec) -> bool:
        """Whether its calls have side effects."""
        return self._tools[stage, tool.name].rules.side_effects

    def is_repeatable(self, stage: int, tool: ToolSpec) -> bool:
        """Whether a call may be made again: it has no side effects, or tells a repetition by its
        key."""
        known = self._tools[stage, tool.name]
        return known.runner.takes_key or not known.rules.side_effects

    async def call(
        self, tool: ToolSpec, arguments: Arguments, scope: CallScope, intent: Intent = NO_INTENT
    ) -> ToolOutcome:
        """Runs a tool. Raises nothing but AgacError, which ends the run, and CancelledError, for
        this caller alone."""
        known = self._tools[scope.stage, tool.name]
        known.counts.requested += 1
        record = self._record_of(known)
        # a row pays for it
        shared = known.rules.cacheable and not known.rules.side_effects and tool.kind != "agent"
        if shared:  # which has no side effects, and so no intent that is kept
            outcome = await self._shared(known, arguments, scope)
        else:
            outcome = await self._run(known, arguments, scope, intent)
        known.counts.errors += outcome.error
        if record is not None:
            line = recorded_line(tool.name, arguments, outcome.text, outcome.error)
            mark = digest(line)
            if mark not in self._recorded:
                self._recorded.add(mark)
                record.parent.mkdir(parents=True, exist_ok=True)
                with record.open("a", encoding="utf-8") as opened:
                    opened.write(line)
        return outcome

    def _record_of(self, tool: _Tool) -> Path | None:
        """The file to which the calls of a tool are added; None: they are not. Raises SpecError
        where a link in its place leads out of the project."""
        file = self._context.record
        root = self._context.root
        if file is None or not tool.recorded:
            return None
        if file.is_relative_to(root):
            return writable_place(file, file.relative_to(root).as_posix(), root)
        return file

    async def end(self, fingerprint: bytes) -> None:
        """A conversation ended: what was kept for it alone (a server's session) is closed."""
        if self._servers is not None:
            await self._servers.end(fingerprint)

    async def close(self) -> None:
        """Calls under way are cancelled."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shared(self, tool: _Tool, arguments: Arguments, scope: CallScope) -> ToolOutcome:
        """Answers a call from a kept result or a call under way, or else makes it for all."""
        row = scope.fingerprint.hex() if tool.rules.scope == "row" else ""
        changed = tool.runner.changes and tool.runner.changes(arguments)
        key = tool_key([tool.runner.key, row, tool.spec.max_chars, changed], arguments)
        if key in self._kept and self._kept[key][1] > self._context.monotonic():
            self._kept.move_to_end(key)
            tool.counts.cache_hits += 1
            return ToolOutcome(self._kept[key][0], how="cached")
        flight = self._flights.get(key)
        joined = flight is not None
        if flight is None:
            flight = self._begin_flight(key, tool, arguments, scope)
        tool.counts.coalesced += joined
        outcome = await self._wait_for(key, flight)
        if outcome is None:
            text = f"{tool.spec.name} was ended before it gave a result"
            return ToolOutcome(text, error=True)
        if joined and not outcome.how:
            return outcome._replace(how="coalesced")
        return outcome

    def _begin_flight(
        self, key: bytes, tool: _Tool, arguments: Arguments, scope: CallScope
    ) -> _Flight:
        """Starts the one execution of equal calls, in a task of its own."""
        task = asyncio.get_running_loop().create_task(self._flown(key, tool, arguments, scope))
        # takes the exception, so that asyncio reports none if all waiters have left
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        flight = _Flight(task)
        self._flights[key] = flight
        return flight

    async def _wait_for(self, key: bytes, flight: _Flight) -> ToolOutcome | None:
        """Waits for a call under way. Returns None if the call itself was cancelled."""
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is None or current.cancelling():
                raise
            return None
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():
                asyncio.get_running_loop().call_later(GRACE, self._abandon, key, flight)

    def _abandon(self, key: bytes, flight: _Flight) -> None:
        """Nobody waits any longer, unless somebody came meanwhile."""
        if not flight.waiters and not flight.task.done():
            self._flights.pop(key, None)  # who comes now begins anew
            flight.task.cancel()

    async def _flown(
        self, key: bytes, tool: _Tool, arguments: Arguments, scope: CallScope
    ) -> ToolOutcome:
        """Executes equal calls once. Keeps the result unless it is an error."""
        flight = self._flights[key]
        later = self._context.later if tool.rules.cache == "persist" else None
        try:
            stored = None if later is None else await later.get(key)
            if stored is None:
                outcome = await self._run(tool, arguments, scope, NO_INTENT)
            else:
                tool.counts.cache_hits += 1
                outcome = ToolOutcome(stored, how="cached")
            if outcome.error:
                return outcome
            self._keep(key, outcome.text, tool.rules.ttl)
            if later is not None and not outcome.how:
                await later.put(key, tool.spec.name, outcome.text, tool.rules.ttl)
            return outcome
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]

    def _keep(self, key: bytes, text: str, ttl: float | None) -> None:
        """Keeps a result in memory for `ttl` seconds, and drops the least recently used ones."""
        if key not in self._kept:
            self._kept_bytes += KEPT_EACH
        earlier_text, _ = self._kept.pop(key, ("", 0))
        self._kept_bytes += len(text) - len(earlier_text)
        expires = math.inf if ttl is None else self._context.monotonic() + ttl
        self._kept[key] = (text, expires)
        while self._kept_bytes > KEPT_BYTES:
            _, (dropped_text, _) = self._kept.popitem(last=False)
            self._kept_bytes -= KEPT_EACH + len(dropped_text)

    async def _run(
        self, tool: _Tool, arguments: Arguments, scope: CallScope, intent: Intent
    ) -> ToolOutcome:
        """One execution, and further tries where its rules allow them."""
        if tool.rules.side_effects and not tool.runner.takes_key:
            retries = 0
        else:
            retries = tool.rules.retries
        for tried in range(retries):
            outcome, again = await self._tried(tool, arguments, scope, intent)
            if not again:
                return outcome
            await self._context.sleep(min(RETRY_S * 2**tried, MAX_RETRY_S))
        return (await self._tried(tool, arguments, scope, intent))[0]

    async def _tried(
        self, tool: _Tool, arguments: Arguments, scope: CallScope, intent: Intent
    ) -> tuple[ToolOutcome, bool]:
        """What one execution gave, and whether another one may give more."""
        now = self._context.monotonic
        counts = tool.counts
        name = tool.spec.name
        asked = now()
        async with tool.bounds.places:
            self._context.go_on()
            wait = tool.bounds.wait(now())
            if wait:
                await self._context.sleep(wait)
            begun = now()
            counts.wait_s += begun - asked
            counts.executed += not tool.how
            try:
                async with asyncio.timeout(tool.timeout) as limit:
                    found = await tool.runner.run(arguments, scope, intent)
                outcome = found if isinstance(found, ToolOutcome) else ToolOutcome(found)
                return outcome._replace(
                    text=self._cut(tool, outcome.text), how=tool.how or outcome.how
                ), False
            except ToolFailed as failed:
                counts.timeouts += (late := isinstance(failed, ToolTimeout))
                return ToolOutcome(
                    self._clean(str(failed)), error=True, how=tool.how, unknown=late
                ), failed.again
            except ToolLost as lost:
                what = lost.error, lost.anew, lost.made, lost.made and not lost.anew
                return ToolOutcome(self._clean(str(lost)), True, tool.how, *what), False
            except (AgacError, self._context.stops):
                raise
            except Exception as error:  # noqa: BLE001  (a fault of agac's own, or of a package: it fails one call)
                if limit.expired():
                    counts.timeouts += 1
                    message = f"{name} took longer than {tool.timeout:g} s, and was given up"
                else:
                    message = self._clean(f"{name} failed: {type(error).__name__}: {error}")
                return ToolOutcome(message, error=True, unknown=True), True
            finally:
                counts.exec_s += now() - begun

    def _clean(self, text: str) -> str:
        return self._context.redactor.clean(text)[: MAX_CHARS * MAX_PROBLEMS]

    def _cut(self, tool: _Tool, text: str) -> str:
        """A result without secrets, of a long one the beginning and the end."""
        text = self._context.redactor.clean_bytes(text.encode()).decode()
        tool.counts.truncated += len(text) > tool.spec.max_chars
        return cut(text, tool.spec.max_chars)


def _stand_in_of(stage: Stage, spec: ToolSpec) -> StandIn:
    """Returns what serves the calls of a tool in its place, by the agent's mode; "" for nothing."""
    agent = stage.agent_spec
    assert agent is not None
    if agent.mode == "stub" and (spec.kind != "agent" or spec.name in agent.stubs):
        return "stub"
    if agent.mode == "replay" and spec.kind != "agent":
        return "replayed"
    return ""


def cut(text: str, most: int, why: str = "") -> str:
    """Returns the text, or the beginning and end of a text longer than `most` characters."""
    if len(text) <= most:
        return text
    head = int(most * HEAD)
    left = f"\n[… {len(text) - most:,} of {len(text):,} characters are left out{why} …]\n"
    return text[:head] + left + text[len(text) - (most - head) :]

"""Tools at work: each call checked, run once for all that ask the same, bounded, and its result
cut to size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from agac.core.errors import AgacError, did_you_mean
from agac.core.json_text import unique_keys
from agac.core.keys import canonical, digest, idempotency_key, tool_key
from agac.core.types import JSONValue, ToolCall
from agac.data.files import writable_place
from agac.spec.paths import home_of
from agac.spec.tool_schemas import SentParameters, sent_name, sent_parameters
from agac.spec.tool_stubs import recorded_line, stub_answer
from agac.spec.tools import ToolRules, ToolSpec
from agac.spec.workflow import Stage
from agac.store.conversations import RecordedCall
from agac.tools.builtin import Changes, builtin
from agac.tools.functions import exchanged
from agac.tools.json_values import Unfit, plain
from agac.tools.mcp import McpServers
from agac.tools.processes import THREADS
from agac.tools.threads import Threads
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
from agac.tools.tool_context import (
    CallScope,
    Run,
    StandIn,
    ToolContext,
    ToolCounts,
    ToolOutcome,
    stand_in_of,
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
from agac.tools.tool_limits import Bounds, KeptResults, cut

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator


GRACE = 0.5
"""Seconds for which a call continues that is waited for no longer."""
RETRY_S = 0.5
"""The wait before the first further try; it doubles each time."""
MAX_RETRY_S = 30.0


class _Runner(NamedTuple):
    """What runs a tool."""

    run: Run
    key: JSONValue = None
    """What makes it another tool."""
    most: int | None = None
    """The most calls at a time; None: any number."""
    takes_key: bool = False
    """True if the tool recognizes a repeated call."""
    changes: Changes | None = None
    """Tells equal calls apart, between which something changed."""
    remembers: bool = False
    """True if its server knows of earlier calls."""


@dataclass(slots=True)
class _Tool:
    """A tool of a stage."""

    spec: ToolSpec
    sent: SentParameters
    """The schema that models are sent."""
    rules: ToolRules
    runner: _Runner
    counts: ToolCounts
    timeout: float | None
    bounds: Bounds
    """Limits that it shares with equal tools."""
    validator: Draft202012Validator | None
    how: StandIn
    """What serves its calls in its place."""
    recorded: bool
    """True if its calls are noted."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A call in progress that several may wait for."""

    task: asyncio.Task[ToolOutcome]
    waiters: int = 0


@asynccontextmanager
async def open_tools(stages: Iterable[Stage], context: ToolContext) -> AsyncIterator[ToolPool]:
    """Opens the tools of these stages, those of their children included. Raises UsageError if one
    is not available."""
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
    """Runs the tools of an invocation.

    A call that others may share runs in a task of its own, which ends if nothing waits for it."""

    def __init__(self, context: ToolContext, stack: AsyncExitStack) -> None:
        self.counts: dict[tuple[int, str], ToolCounts] = {}
        """The counts by stage and name of the tool."""
        self._context = context
        self._stack = stack
        self._servers: McpServers | None = None
        self._tools: dict[tuple[int, str], _Tool] = {}
        self._by_sent_name: dict[tuple[int, str], tuple[int, str]] = {}
        """The tools by stage and the name that models are sent."""
        self._runners: dict[str, _Runner] = {}
        self._bounds: dict[tuple[str, ToolRules], Bounds] = {}
        self._flights: dict[bytes, _Flight] = {}
        self._kept = KeptResults(context.monotonic)
        self._recorded = set[bytes]()
        """The hashes of the calls that are in the record."""

    def add(self, stage: Stage, spec: ToolSpec) -> None:
        """Adds one tool of a stage. Raises UsageError when the tool is not available."""
        at = (stage.index, spec.name)
        rules = stage.settings.tooling.rules.get(spec.name)
        if spec.kind == "mcp" and rules is None:  # it may do anything, whatever its server says
            rules = ToolRules(side_effects=True)
        how = stand_in_of(stage, spec)
        runner = self._runner_of(stage, spec, rules, how)
        timeout = None
        if not how and not self._has_own_timeout(spec, rules):
            timeout = (rules or ToolRules()).timeout
        if how or rules is None:
            rules = ToolRules()
        self.counts[at] = ToolCounts()
        bounds_key = (canonical(runner.key or [*at]), rules)
        sent = sent_parameters(spec.parameters)
        self._tools[at] = _Tool(
            spec=spec,
            sent=sent,
            rules=rules,
            runner=runner,
            counts=self.counts[at],
            timeout=timeout,
            bounds=self._bounds.setdefault(bounds_key, Bounds(rules, runner.most)),
            validator=validator_of(sent),
            how=how,
            recorded=stage.settings.tooling.record,
        )
        self._by_sent_name[stage.index, sent_name(spec.name)] = at

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
            return self._server_runner(stage, spec, rules)
        return self._runner(spec)

    def _has_own_timeout(self, spec: ToolSpec, rules: ToolRules | None) -> bool:
        """True if whatever runs the tool limits the time of its calls itself."""
        if spec.kind == "mcp" or (spec.kind == "agent" and rules is None):
            return True
        return self._is_elsewhere(spec)

    def _server_runner(self, stage: Stage, spec: ToolSpec, rules: ToolRules) -> _Runner:
        """Makes what asks an MCP server, which is connected when it is first asked."""
        if self._servers is None:
            self._servers = McpServers(self._context.root, self._context.env)
            self._stack.push_async_callback(self._servers.aclose)
        name, _, tool = spec.source.partition(":")
        server = next(server for server in stage.settings.tooling.servers if server.name == name)
        call = partial(self._servers.call, server, tool, rules)
        key: JSONValue = [spec.kind, spec.source, spec.version, self._servers.access(server)]

        def run(arguments: Arguments, scope: CallScope, intent: Intent) -> Awaitable[str]:
            return call(arguments, scope.fingerprint, intent)

        return _Runner(run, key, remembers=server.state)

    def _runner(self, spec: ToolSpec) -> _Runner:
        """Makes what runs an agent, a function, or a tool of agac's own; equal tools share it."""
        context = self._context
        key: JSONValue = [spec.kind, spec.source, spec.version, spec.name, dict(spec.settings)]
        runner_key = canonical(key)
        if runner_key in self._runners:
            return self._runners[runner_key]
        if spec.kind == "agent":
            assert context.run_child is not None
            return _Runner(partial(context.run_child, spec), key)
        changes: Changes | None = None
        if spec.kind == "function":
            function = load_tool(spec, context.root, context.functions)
        else:
            function, changes = builtin(spec, context.root, context.web)
        most = None if function.is_async else THREADS
        run = self._run_here(function, spec.name)
        if self._is_elsewhere(spec):
            run = partial(self._run_elsewhere, spec, takes_key=function.takes_key)
        self._runners[runner_key] = _Runner(run, key, most, function.takes_key, changes)
        return self._runners[runner_key]

    def _is_elsewhere(self, spec: ToolSpec) -> bool:
        """True if other processes carry out a tool. They limit its time, which begins once they
        do."""
        if spec.kind != "function" or self._context.elsewhere is None:
            return False
        return spec.source not in self._context.functions

    async def _run_elsewhere(
        self,
        spec: ToolSpec,
        arguments: Arguments,
        scope: CallScope,
        intent: Intent,
        *,
        takes_key: bool,
    ) -> str:
        """Has another process call a function."""
        key = idempotency_key(*scope[1:], spec.name, arguments) if takes_key else ""
        assert self._context.elsewhere is not None
        timeout = self._tools[scope.stage, spec.name].rules.timeout
        again = self.is_repeatable(scope.stage, spec)
        return await self._context.elsewhere(spec, arguments, key, timeout, again, intent)

    def _run_here(self, function: ToolFunction, name: str) -> Run:
        """Makes what calls a function in this process, in threads or in the event loop."""
        loop = asyncio.get_running_loop()

        def in_thread(work: tuple[Context, dict[str, Any], Intent]) -> str:
            context, values, intent = work
            if intent.is_kept:  # this is a thread that was waited for
                asyncio.run_coroutine_threadsafe(intent.begin(), loop).result()
            return context.run(function.here, values)

        threads = Threads(in_thread, THREADS)
        self._stack.callback(threads.close)

        async def run(arguments: Arguments, scope: CallScope, intent: Intent) -> str:
            key = partial(idempotency_key, *scope[1:], name, arguments)
            values = function.given(arguments, key)
            if function.is_async:
                await intent.begin()
                return await function.awaited(values)
            text: str = await threads.call((copy_context(), values, intent))
            return text

        return run

    async def _stub(
        self,
        name: str,
        stubs: Mapping[str, JSONValue],
        arguments: Arguments,
        _: CallScope,
        __: Intent,
    ) -> ToolOutcome:
        """Returns the stand-in for a result."""
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
        """Returns what the call came to in a recorded run, the first, the second time.

        Raises ToolLost if it was not made there."""
        assert self._context.recorded is not None
        wanted = canonical(arguments)

        def is_alike(call: RecordedCall | ToolCall) -> bool:
            if call.name != name:
                return False
            checked = self.check(scope.stage, name, call.arguments)
            return not isinstance(checked, str) and canonical(checked[1]) == wanted

        recorded, before = await self._context.recorded(run, scope)
        alike = [call for call in recorded if is_alike(call)]
        if not alike:
            raise ToolLost(
                f"{name} was not called with {wanted[:MAX_CHARS]} in run {run}, and is not now; "
                "run it with --tools-mode live, or replay a run in which it was made",
                made=False,
            )
        times_before = sum(map(is_alike, before))
        call = alike[min(times_before, len(alike) - 1)]
        return ToolOutcome(call.result, call.error)

    def check(self, stage: int, name: str, arguments: str) -> tuple[ToolSpec, Arguments] | str:
        """Returns the tool of the stage that a model asks for and its arguments, which satisfy
        their schema; or what is wrong."""
        tool = self._tools.get(self._by_sent_name.get((stage, name), (stage, name)))
        if tool is None:
            names = [sent for index, sent in self._by_sent_name if index == stage]
            hint = did_you_mean(name, names, "the tools are")
            return f"there is no tool {name[:MAX_CHARS]!r}; {hint}"
        try:
            values = plain(
                json.loads(
                    arguments or "{}", parse_float=parse_number, object_pairs_hook=unique_keys
                )
            )
        except (ValueError, RecursionError, Unfit) as error:
            return f"the arguments of {name} are not JSON: {error}{as_written(arguments)}"
        if not isinstance(values, dict):
            return (
                f"the arguments of {name} are not an object; give one, with the parameters by name"
                f"{as_written(arguments)}"
            )
        if tool.validator is not None:
            faults = schema_faults(tool.validator, tool.sent, values)
            if faults:
                problems = "; ".join(text[:MAX_CHARS] for text in faults[:MAX_PROBLEMS])
                return f"the arguments of {name} do not satisfy its schema: {problems}"
        return tool.spec, with_defaults(tool.spec, tool.sent.restored(values))

    def remembers(self, stage: int, tool: ToolSpec) -> bool:
        """True if the tool's server knows of earlier calls, which in a later invocation it does
        not."""
        return self._tools[stage, tool.name].runner.remembers

    def changes(self, stage: int, tool: ToolSpec) -> bool:
        """True if calls of the tool have side effects."""
        return self._tools[stage, tool.name].rules.side_effects

    def is_repeatable(self, stage: int, tool: ToolSpec) -> bool:
        """True if a call may be made again: it has no side effects, or the tool recognizes it by
        its key."""
        pooled = self._tools[stage, tool.name]
        return pooled.runner.takes_key or not pooled.rules.side_effects

    async def call(
        self, tool: ToolSpec, arguments: Arguments, scope: CallScope, intent: Intent = NO_INTENT
    ) -> ToolOutcome:
        """Runs a tool. Raises only AgacError, which ends the run, and CancelledError, for this
        caller alone."""
        pooled = self._tools[scope.stage, tool.name]
        pooled.counts.requested += 1
        record = self._record_of(pooled)
        if self._is_shared(pooled):  # without side effects, and so without an intent that is kept
            outcome = await self._shared(pooled, arguments, scope)
        else:
            outcome = await self._run(pooled, arguments, scope, intent)
        pooled.counts.errors += outcome.error
        if record is not None:
            line = recorded_line(tool.name, arguments, outcome.text, outcome.error)
            self._add_to_record(record, line)
        return outcome

    def _is_shared(self, tool: _Tool) -> bool:
        """True if one execution of the tool may serve all equal calls. Agents' do not: a row pays
        for them."""
        if tool.spec.kind == "agent":
            return False
        return tool.rules.cacheable and not tool.rules.side_effects

    def _add_to_record(self, record: Path, line: str) -> None:
        """Writes a call into the record, once."""
        mark = digest(line)
        if mark in self._recorded:
            return
        self._recorded.add(mark)
        record.parent.mkdir(parents=True, exist_ok=True)
        with record.open("a", encoding="utf-8") as opened:
            opened.write(line)

    def _record_of(self, tool: _Tool) -> Path | None:
        """Returns the file to which the calls of a tool are added; None: they are not.

        Raises SpecError if a link in its place leads out of the project."""
        file = self._context.record
        root = self._context.root
        if file is None or not tool.recorded:
            return None
        if file.is_relative_to(root):
            return writable_place(file, file.relative_to(root).as_posix(), root)
        return file

    async def end(self, fingerprint: bytes) -> None:
        """Closes what was kept for one conversation alone, which ended: a server's session."""
        if self._servers is not None:
            await self._servers.end(fingerprint)

    async def close(self) -> None:
        """Cancels the calls in progress."""
        tasks = [flight.task for flight in self._flights.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _shared(self, tool: _Tool, arguments: Arguments, scope: CallScope) -> ToolOutcome:
        """Answers a call from a kept result or a call in progress, or else makes it for all."""
        row = scope.fingerprint.hex() if tool.rules.scope == "row" else ""
        changed = tool.runner.changes and tool.runner.changes(arguments)
        key = tool_key([tool.runner.key, row, tool.spec.max_chars, changed], arguments)
        kept = self._kept.get(key)
        if kept is not None:
            tool.counts.cache_hits += 1
            return ToolOutcome(kept, how="cached")
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
        task = asyncio.get_running_loop().create_task(self._fly(key, tool, arguments, scope))
        # takes the exception, so that asyncio reports none if all waiters have left
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        flight = _Flight(task)
        self._flights[key] = flight
        return flight

    async def _wait_for(self, key: bytes, flight: _Flight) -> ToolOutcome | None:
        """Waits for a call in progress. Returns None if the call itself was cancelled."""
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
        """Cancels a call that nothing waits for."""
        if not flight.waiters and not flight.task.done():
            self._flights.pop(key, None)  # an equal call from now on is made again
            flight.task.cancel()

    async def _fly(
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
            self._kept.keep(key, outcome.text, tool.rules.ttl)
            if later is not None and not outcome.how:
                await later.put(key, tool.spec.name, outcome.text, tool.rules.ttl)
            return outcome
        finally:
            if self._flights.get(key) is flight:
                del self._flights[key]

    async def _run(
        self, tool: _Tool, arguments: Arguments, scope: CallScope, intent: Intent
    ) -> ToolOutcome:
        """Executes a call, and tries it again as its rules allow."""
        retries = tool.rules.retries
        if tool.rules.side_effects and not tool.runner.takes_key:
            retries = 0
        for tries in range(retries):
            outcome, again = await self._try(tool, arguments, scope, intent)
            if not again:
                return outcome
            await self._context.sleep(min(RETRY_S * 2**tries, MAX_RETRY_S))
        return (await self._try(tool, arguments, scope, intent))[0]

    async def _try(
        self, tool: _Tool, arguments: Arguments, scope: CallScope, intent: Intent
    ) -> tuple[ToolOutcome, bool]:
        """Executes a call once. Returns the outcome, and whether another try may give more."""
        now = self._context.monotonic
        asked_at = now()
        async with tool.bounds.places:
            self._context.go_on()
            wait = tool.bounds.wait(now())
            if wait:
                await self._context.sleep(wait)
            begun_at = now()
            tool.counts.wait_s += begun_at - asked_at
            tool.counts.executed += not tool.how
            limit = asyncio.timeout(tool.timeout)
            try:
                async with limit:
                    result = await tool.runner.run(arguments, scope, intent)
                return self._good(tool, result), False
            except ToolFailed as failed:
                return self._failed(tool, failed), failed.again
            except ToolLost as lost:
                return self._lost(tool, lost), False
            except (AgacError, self._context.stops):
                raise
            except Exception as error:  # noqa: BLE001  (a fault of agac's own, or of a package)
                # it fails this one call
                return self._broken(tool, error, is_late=limit.expired()), True
            finally:
                tool.counts.exec_s += now() - begun_at

    def _good(self, tool: _Tool, result: str | ToolOutcome) -> ToolOutcome:
        """Returns the outcome of a call that gave a result: without secrets, and of a long one the
        beginning and the end."""
        outcome = ToolOutcome(result) if isinstance(result, str) else result
        text = self._context.redactor.clean_bytes(outcome.text.encode()).decode()
        tool.counts.truncated += len(text) > tool.spec.max_chars
        return outcome._replace(text=cut(text, tool.spec.max_chars), how=tool.how or outcome.how)

    def _failed(self, tool: _Tool, failed: ToolFailed) -> ToolOutcome:
        is_late = isinstance(failed, ToolTimeout)
        tool.counts.timeouts += is_late
        return ToolOutcome(self._clean(str(failed)), error=True, how=tool.how, unknown=is_late)

    def _lost(self, tool: _Tool, lost: ToolLost) -> ToolOutcome:
        return ToolOutcome(
            self._clean(str(lost)),
            error=True,
            how=tool.how,
            lost=lost.error,
            anew=lost.anew,
            made=lost.made,
            unknown=lost.made and not lost.anew,
        )

    def _broken(self, tool: _Tool, error: Exception, *, is_late: bool) -> ToolOutcome:
        """Returns the outcome of a call that broke off."""
        name = tool.spec.name
        if is_late:
            tool.counts.timeouts += 1
            message = f"{name} took longer than {tool.timeout:g} s, and was given up"
        else:
            message = self._clean(f"{name} failed: {type(error).__name__}: {error}")
        return ToolOutcome(message, error=True, unknown=True)

    def _clean(self, text: str) -> str:
        return self._context.redactor.clean(text)[: MAX_CHARS * MAX_PROBLEMS]

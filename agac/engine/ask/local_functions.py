"""The functions of `python:` stages: opened for an invocation, and called for rows and groups."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

from agac.core.errors import ErrorType, RowError
from agac.engine.ask.answers import Answer, LocalCall, TaskReply, TaskRequest
from agac.engine.invocation import Work
from agac.plan.stage import AnyStage, LocalStage
from agac.spec.operations import Python
from agac.store.records import Endpoint, Result
from agac.tools.processes import ALONE, Call, OpenCalls, open_calls, open_function

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

_log = logging.getLogger("agac.run")


class FunctionAnswers:
    """Answers tasks of `python:` stages by calling their functions. If a function raises, its row
    fails with the traceback."""

    def __init__(self, work: Work, calls: Mapping[int, Call], under_way: OpenCalls | None) -> None:
        """`calls`: the functions, by the positions of their stages; `under_way` notes which calls
        are made in this process."""
        self._calls = calls
        self._under_way = under_way
        self._clean = work.redactor.clean
        self._wall = work.clocks.wall

    async def ask(self, asked: TaskRequest) -> TaskReply:
        """Calls the function."""
        stage = asked.stage
        task = asked.task
        assert isinstance(stage.operation, Python)
        assert isinstance(task, LocalCall)
        name = str(stage.operation.function)
        kind = "row" if stage.group is None else "group"
        with noted(self._under_way, stage, f"{kind} {asked.row.new.row.id!r}"):
            value = await self._calls[stage.index](task.given)
        if isinstance(value, RowError):
            return RowError(value.type, self._clean(value.message), self._clean(value.detail))
        if isinstance(value, list) and stage.makes != "rows":
            return _list_refused(stage, name)
        endpoint = Endpoint("python", "", name, False)
        return Answer(Result(asked.fingerprint, _encode(value), endpoint, self._wall()), value)


def _list_refused(stage: AnyStage, name: str) -> RowError:
    """Returns the error of a function that gave a list of rows where it may not."""
    remedy = "after explode let it give one row, or None"
    if stage.group is not None:
        remedy = "of a group let it give one dict, with the list in a field"
        remedy += ", and explode that in a stage after it"
    return RowError(ErrorType.PYTHON_ERROR, f"{name} gave a list of rows; {remedy}")


def noted(under_way: OpenCalls | None, stage: AnyStage, what: str) -> AbstractContextManager[None]:
    """Notes what a stage runs in this process, while it runs: it may crash the process."""
    assert isinstance(stage.operation, Python)
    if under_way is None or stage.operation.processes is not None:
        return nullcontext()
    return under_way.noted(f"stage {stage.name}, {what} ({stage.operation.function})")


@asynccontextmanager
async def open_functions(
    work: Work, elsewhere: Callable[..., Awaitable[Any]] | None
) -> AsyncIterator[FunctionAnswers]:
    """Opens a plan's functions: imports them, which the engine does nowhere else, or calls them
    `elsewhere`. Raises UsageError if one cannot be opened."""
    calls: dict[int, Call] = {}
    local = [(one, one.operation) for one in work.plan.stages if isinstance(one, LocalStage)]
    called = [(stage, does) for stage, does in local if isinstance(does, Python)]
    under_way: OpenCalls | None = None
    async with AsyncExitStack() as stack:
        # no longer than the workflow's file's
        file = work.batching.folder.with_name(f"{work.plan.workflow}.run")
        if elsewhere is not None:
            for stage, does in called:
                calls[stage.index] = partial(
                    elsewhere, does.function, (does.processes, does.timeout)
                )
        if elsewhere is not None or all(does.processes is not None for _, does in called):
            file.unlink(missing_ok=True)
        else:
            under_way = await stack.enter_async_context(open_calls(file, work.plan.workflow))
            if under_way.left:
                text = (
                    "the last invocation of %s ended in the middle of functions that it "
                    "called: %s. %s"
                )
                _log.warning(text, work.plan.workflow, "; ".join(under_way.left[:9]), ALONE)
        for stage, does in called if elsewhere is None else ():
            opened = open_function(does.function, work.root, does.processes, does.timeout)
            with noted(under_way, stage, "the import of its file"):
                calls[stage.index] = await stack.enter_async_context(opened)
        yield FunctionAnswers(work, calls, under_way)

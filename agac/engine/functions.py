"""Functions of the project at work: the one place in the engine that calls them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from agac.core.errors import ErrorType, RowError
from agac.core.types import JSONValue
from agac.engine.call import Answer
from agac.engine.work import Work
from agac.plan.stage import LocalStage
from agac.spec.operations import Python
from agac.store.batch import Endpoint, Result
from agac.tools.functions import FunctionFailed, Runner

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class Functions:
    """Calls the functions of stages, by the stages' positions. `clean` takes secrets out of a text."""

    def __init__(self, runners: Mapping[int, Runner], clean: Callable[[str], str], wall: Callable[[], float]) -> None:
        self._runners, self._clean, self._wall = runners, clean, wall

    async def call(self, stage: LocalStage, fingerprint: bytes, given: dict[str, JSONValue]) -> Answer | RowError:
        """What a stage's function gives for a row; an exception of its is the row's failure, with its traceback."""
        try:
            came = await self._runners[stage.index].call(given)
        except FunctionFailed as failed:
            return RowError(ErrorType.PYTHON_ERROR, self._clean(failed.message), self._clean(failed.traceback_text))
        if came.kind == "rows" and stage.makes != "rows":
            message = f"{_named(stage)} gave a list of rows; after explode let it give one row, or None"
            return RowError(ErrorType.PYTHON_ERROR, message)
        value = list(came.rows) if came.kind == "rows" else came.rows[0] if came.rows else None
        endpoint = Endpoint("python", "", _named(stage), False)
        return Answer(Result(fingerprint, _encode(value), endpoint, self._wall()), value)


@asynccontextmanager
async def open_functions(work: Work) -> AsyncIterator[Functions]:
    """The functions of a plan, ready to be called. Raises UsageError when one cannot be imported."""
    async with AsyncExitStack() as stack:
        runners = {}
        for stage in work.plan.stages:
            if isinstance(stage, LocalStage) and isinstance(does := stage.operation, Python):
                runner = Runner(does.function, work.root, does.processes)
                runners[stage.index] = await stack.enter_async_context(runner)
        yield Functions(runners, work.redactor.clean, work.clocks.wall)


def _named(stage: LocalStage) -> str:
    assert isinstance(stage.operation, Python)
    return str(stage.operation.function)

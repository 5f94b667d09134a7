"""For tests of workflows and agents: a simulator in this process, which says what a script says
and calls no model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agac.api.sync import iterating
from agac.simulator.server import SHUTDOWN_S, STAND_INS, listen
from agac.simulator.settings import Settings

if TYPE_CHECKING:
    from aiohttp import web

Rules = Path | str | Sequence[Mapping[str, Any]]  # a file with rules, or the rules


@dataclass(frozen=True, slots=True)
class ScriptedSimulator:
    """A simulator that runs. `base_url` is its address for providers of your own; models of the
    provider `simulator` are asked of it without that. `requests` are the bodies that came, in
    their order."""

    base_url: str
    requests: list[dict[str, Any]] = field(default_factory=list)

    @property
    def prompts(self) -> list[str]:
        """The last text that each request has, as far as it is one: of the first turns what was
        asked of a row."""
        spoken = ((one.get("messages") or one.get("input") or [{}])[-1] for one in self.requests)
        return [str(last.get("content") if isinstance(last, dict) else last) for last in spoken]


@contextmanager
def simulator(
    *, script: Rules | None = None, faults: Rules | None = None, **settings: Any
) -> Generator[ScriptedSimulator]:
    """A simulator for the time of the block, in which all models of the provider `simulator` are
    asked of it. `script` and `faults` are files as `agac simulate` takes them, or lists of such
    rules: a rule of a script is `{"match": TEXT, "turn": N, "reply": VALUE}`, or has `calls` in
    the place of `reply`, each with the `name` and the `arguments` of a tool. Further `settings`
    are named as the flags of `agac simulate`, as `latency="0.1"`. Raises SimulatorError."""
    with tempfile.TemporaryDirectory() as folder:
        for name, rules in (("script", script), ("faults", faults)):
            if rules is not None and not isinstance(rules, str | Path):
                (file := Path(folder, f"{name}.json")).write_text(json.dumps(list(rules)), "utf-8")
                rules = file
            settings |= {} if rules is None else {name: Path(rules)}
        with contextmanager(iterating(_served))(Settings(**settings)) as found:
            STAND_INS.append(found.base_url)
            try:
                yield found
            finally:
                STAND_INS.remove(found.base_url)


async def _served(settings: Settings) -> AsyncGenerator[ScriptedSimulator]:
    from aiohttp import web

    from agac.simulator.app import Simulator

    requests: list[dict[str, Any]] = []

    @web.middleware
    async def noted(request: web.Request, handler: Any) -> web.StreamResponse:
        """Keeps what a model is asked."""
        if request.method == "POST" and request.path.endswith(
            ("/completions", "/responses", "/messages")
        ):
            requests.append(json.loads(await request.read()))
        found: web.StreamResponse = await handler(request)
        return found

    app = Simulator(settings).app()
    app.middlewares.append(noted)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    try:
        yield ScriptedSimulator(await listen(runner, settings), requests)
    finally:
        await runner.cleanup()

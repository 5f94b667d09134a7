"""What was asked in batches before: which tasks are in one, and what was replied to those that are asked again."""

from __future__ import annotations

from collections.abc import Sequence

from agac.core.errors import ErrorType, RowError
from agac.core.types import Reply, Request
from agac.engine.batch.form import Form
from agac.engine.batch.scene import Scene
from agac.engine.flight import Flight
from agac.engine.lookup import Gathered
from agac.engine.routes import request_for_model
from agac.engine.validate import repair_request
from agac.providers.batches import ResultLine
from agac.store.batches import ReadyTask, last_reply, live_tasks
from agac.store.history import reply_bytes


class Asked:
    """Looks for tasks that are in a batch already, and for the replies that re-asks quote."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._gathered: Gathered[bytes, bool] = Gathered(self._fetch)

    async def live(self, fingerprint: bytes) -> bool:
        """Whether the task is in a batch of the workflow that is not ingested."""
        return bool(await self._gathered.get(fingerprint))

    async def run(self) -> None:
        """Answers until cancelled."""
        await self._gathered.run()

    async def _fetch(self, prints: Sequence[bytes]) -> dict[bytes, bool]:
        return dict.fromkeys(await live_tasks(self._scene.database, prints, self._scene.workflow), True)

    async def quoting(
        self, form: Form, flight: Flight, ready: ReadyTask, request: Request, replica: int
    ) -> Request | None:
        """The request that quotes what was wrong with the last reply; None where that is not to be had any more."""
        stored = await last_reply(self._scene.database, flight.new.key, ready.stage, replica, ready.fingerprint)
        body = reply_bytes(stored[0]) if stored is not None else None
        if body is None:
            return None
        reply = form.read(ResultLine("", "answered", stored[1] or 200, body))
        asked = request_for_model(form.model, request, replica) if form.position or replica else request
        error = RowError(ErrorType.SCHEMA_MISMATCH, stored[2] or "")
        return repair_request(asked, reply, error) if isinstance(reply, Reply) else None

"""The work on batches: a thread reads requests, charges them once and writes results, as far as the clock says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agac.simulator.batches import life
from agac.simulator.batches.asking import Chunk, Model, Reader
from agac.simulator.batches.checking import check, problem
from agac.simulator.batches.ending import close_off, errors_part, opened, output_part
from agac.simulator.batches.lines import ENDPOINTS, Endpoint, Lines, OpenAiLines
from agac.simulator.batches.messagelines import MessageLines, messages_endpoint
from agac.simulator.batches.records import Batch, file_path, load, open_batches, save
from agac.simulator.batches.state import State

CHUNK = 500
"""Requests between two commits: what a kill may have to do again, uncharged."""


class Work:
    """Works off the batches of one state file; `stopped` says whether to leave the rest for later."""

    def __init__(self, state: State, model: Model, stopped: Callable[[], bool]) -> None:
        self.state, self.model, self.stopped = state, model, stopped
        self.lines: dict[str, Lines] = {"openai": OpenAiLines(), "azure": OpenAiLines(), "anthropic": MessageLines()}

    def catch_up(self, ids: set[str] | None) -> None:
        """Does what the clock says should be done by now, in the batches named or in all: their state is committed as
        it goes, and a kill leaves nothing charged that is not written."""
        now = self.state.now()
        waiting = [batch for batch in open_batches(self.state) if ids is None or batch.id in ids]
        if not any(self.behind(batch, now) for batch in waiting):
            return
        with self.state.working(self.stopped) as alone:
            for batch in waiting if alone else ():
                self.finish_up(batch.id, now)

    def finish_up(self, batch_id: str, now: float) -> None:
        """Brings one batch to where it should be; one whose files somebody deleted has failed."""
        try:
            self.advance(batch_id, now)
        except FileNotFoundError as error:
            told = problem("input_file_gone", f"The files of the simulator are not there any more: {error.filename}")
            self.settle(batch_id, {"validated": True, "errors": [told], "ended": "failed", "ended_at": now})

    def behind(self, batch: Batch, now: float) -> bool:
        """Whether there is anything to do for a batch by then."""
        if not batch.validated:
            return life.validates(batch) or batch.cancel_at is not None
        return batch.executed < life.due(batch, now) or life.ending(batch, now) is not None

    def advance(self, batch_id: str, now: float) -> None:
        """Does all that is due in one batch."""
        while not self.stopped():
            batch = load(self.state, batch_id)
            if batch is None or batch.ended or not self.behind(batch, now):
                return
            if not batch.validated:
                self.validate(batch)
            elif batch.executed < life.due(batch, now):
                self.execute(batch, now)
            elif (end := life.ending(batch, now)) is not None:
                close_off(self.state, batch, *end, self.lines[batch.family])

    def validate(self, batch: Batch) -> None:
        """Reads the whole input; a batch with errors in it has failed, and nothing of it ran."""
        rejection = batch.fault("batch_reject")
        checked = check(file_path(self.state, batch.input_id), batch)
        errors = checked.errors
        cap = batch.fault("batch_enqueued_cap")
        if rejection is not None:
            told = rejection.get("message") or "The batch was rejected."
            errors = [problem(rejection.get("code") or "invalid_request", told, rejection.get("line"))]
        elif not errors and cap is not None and self.enqueued(checked.model) + checked.tokens > cap["tokens"]:
            told = f"Enqueued token limit reached for {checked.model}. Limit: {cap['tokens']:,} enqueued tokens. "
            errors = [problem("token_limit_exceeded", told + "Please try again once some batches have completed.")]
        found: dict[str, Any] = {"validated": True, "errors": errors}
        if errors:
            found |= {"ended": "failed", "ended_at": self.state.now()}
        else:
            found |= {"total": checked.total, "model": checked.model, "enqueued_tokens": checked.tokens}
        self.settle(batch.id, found)

    def enqueued(self, model: str) -> int:
        """The tokens of a model that wait in batches."""
        return sum(batch.enqueued_tokens for batch in open_batches(self.state) if batch.model == model)

    def settle(self, batch_id: str, found: dict[str, Any]) -> None:
        """Writes what was found about a batch."""
        with self.state.write():
            fresh = load(self.state, batch_id)
            assert fresh is not None
            for name, value in found.items():
                setattr(fresh, name, value)
            if fresh.ended != "failed":
                self.state.count("requests", fresh.total)
            else:
                self.state.count("rejected")
                for rule in fresh.faults:
                    if rule["kind"] in ("batch_reject", "batch_enqueued_cap"):
                        self.state.count(f"fault.{rule['kind']}")
            save(self.state, fresh)

    def execute(self, batch: Batch, now: float) -> None:
        """What is due by then, in chunks. A chunk's lines are on disk before it is charged; what a kill left behind
        of an uncommitted one is cut off first."""
        reader = Reader(batch, self.model, self.lines[batch.family], self.endpoint(batch))
        with (
            file_path(self.state, batch.input_id).open("rb") as asked,
            opened(self.state, output_part(batch), batch.out_size) as output,
            opened(self.state, errors_part(batch), batch.err_size) as errors,
        ):
            asked.seek(batch.read)
            while batch.executed < (goal := life.due(batch, now)) and not self.stopped():
                chunk = Chunk()
                for number in range(batch.executed + 1, min(batch.executed + CHUNK, goal) + 1):
                    reader.request(number, asked.readline(), chunk)
                output.writelines(chunk.output)
                errors.writelines(chunk.errors)
                output.flush()
                errors.flush()
                batch = self.commit(batch, chunk, output.tell(), errors.tell())

    def endpoint(self, batch: Batch) -> Endpoint:
        """What its requests ask."""
        if batch.family == "anthropic":
            return messages_endpoint(batch.endpoint)
        return ENDPOINTS.get(batch.endpoint) or ENDPOINTS[f"/v1{batch.endpoint}"]

    def commit(self, batch: Batch, chunk: Chunk, out_size: int, err_size: int) -> Batch:
        """Charges a chunk and says that it is done, in one transaction."""
        with self.state.write():
            fresh = load(self.state, batch.id)
            assert fresh is not None
            for name in ("executed", "read", "good", "bad", "prompt_tokens", "completion_tokens"):
                setattr(fresh, name, getattr(fresh, name) + getattr(chunk, name))
            fresh.out_size, fresh.err_size = out_size, err_size
            save(self.state, fresh)
            self.state.count("charged", len(chunk.digests))
            known = sum(not self.state.has(digest) for digest in chunk.known)
            self.state.count("duplicates", len(chunk.digests) - self.state.charge(chunk.digests) + known)
            self.state.count("prompt_tokens", chunk.prompt_tokens)
            self.state.count("completion_tokens", chunk.completion_tokens)
            for kind, times in chunk.faults.items():
                self.state.count(f"fault.{kind}", times)
        return fresh

"""The work on batches: a thread checks inputs, answers requests, charges them once, and writes results and their files.

The web application uses `BatchThreads`: short work on the store in one thread, the work on batches in another.
"""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import IO, Any, ParamSpec, TypeVar

from agac.simulator.batch_formats import FAMILIES, BatchEndpoint, check_input, encoded, input_problem
from agac.simulator.batch_store import DAY, Batch, BatchStore, short_digest
from agac.simulator.faults import (
    BatchFaults,
    FaultPlan,
    LineFaults,
    changed_answer,
    error_of,
    replaces_answer,
    rule_error,
)
from agac.simulator.replies import AnswerWriter, ApiError, ModelAnswer, ModelCall, unknown_model

CHUNK = 500
"""Requests between two commits: what a kill may have to do again, uncharged."""

LOOK_SECONDS = 10.0
"""How long a look at a batch waits for the work that is due; then it reports how far the batch is."""

RESULTS_FILE_KEPT = 30 * DAY
BOM = b"\xef\xbb\xbf"

FOREIGN_LINES = {
    "null": b"null\n",
    "list": b"[1, 2]\n",
    "no_custom_id": b'{"id":"batch_req_0","response":{"status_code":200,"body":{}},"error":null}\n',
    "not_utf8": b'{"custom_id":"\xff\xfe"}\n',
}
"""Lines that are not results, by the `form` of `batch_foreign_line`; the form `unknown` is one of the provider's."""

SHAPING = frozenset({"batch_shuffle", "batch_bom", "batch_blank_lines", "batch_foreign_line"})
"""Faults that change a whole file of results."""

ADDED = ("executed", "read", "good", "bad", "prompt_tokens", "completion_tokens")
"""The numbers of a chunk that are added to those of its batch."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class AnsweredChunk:
    """What some requests came to: what is still to be written and charged. `known` are digests that were charged
    outside of batches."""

    output: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    known: set[int] = field(default_factory=set)
    executed: int = 0
    read: int = 0
    good: int = 0
    bad: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class BatchModel:
    """The model of batches: the same answers, seed and rules as for single requests. `charged_before` says whether a
    content was charged there."""

    seed: int
    plan: FaultPlan
    charged_before: Callable[[bytes], bool]
    writer: AnswerWriter = field(default_factory=AnswerWriter)

    def reply(self, endpoint: BatchEndpoint, body: dict[str, Any], chunk: AnsweredChunk) -> dict[str, Any]:
        """The reply to one request, which is charged now; raises ApiError for a request that is refused."""
        if body.get("stream"):
            raise ApiError(400, "Streaming is not supported in batches: leave 'stream' out.", param="stream")
        call = endpoint.read(body, self.seed)
        if "missing" in call.model:
            raise unknown_model(call.model)
        answer = self.writer.answer(call)
        if self.plan.rules:
            answer = self.with_fault(call, answer, chunk)
        chunk.prompt_tokens += call.prompt_tokens
        chunk.completion_tokens += answer.tokens
        digest = short_digest(call.digest)
        chunk.digests.append(digest)
        if self.charged_before(call.digest):
            chunk.known.add(digest)
        return endpoint.reply(call, answer)

    def with_fault(self, call: ModelCall, answer: ModelAnswer, chunk: AnsweredChunk) -> ModelAnswer:
        """What the rules about single requests make of an answer, as far as they are not about connections. Requests of
        batches have no numbers there: rules with `at` leave them alone."""
        rule = self.plan.pick(0, call)
        if rule is None or rule.phase not in ("error", "answer"):
            return answer
        chunk.faults[rule.kind] += 1
        if rule.phase == "error":
            raise error_of(rule, call)
        return changed_answer(rule, call, answer, self.writer)


class RequestReader:
    """Reads the requests of one batch, and writes their result lines."""

    def __init__(self, batch: Batch, model: BatchModel) -> None:
        self.batch, self.model, self.family = batch, model, FAMILIES[batch.family]
        self.endpoint = self.family.endpoint(batch)
        self.faults = LineFaults(batch.faults, model.seed)

    def answer(self, number: int, raw: bytes, chunk: AnsweredChunk) -> None:
        """One request: its line of results, good or not, joins the chunk."""
        line = json.loads(raw)
        custom_id = line["custom_id"]
        rules = self.faults.of_line(number, raw, custom_id) if self.faults.rules else []
        kinds = [rule["kind"] for rule in rules]
        chunk.faults.update(kinds)
        instead = next(filter(replaces_answer, rules), None)
        good = False
        try:
            if instead is not None:
                result = self.line_instead(instead, number, custom_id)
            else:
                reply = encoded(self.model.reply(self.endpoint, line[self.family.body_key], chunk))
                if "batch_body_text" in kinds:
                    reply = encoded(reply.decode())
                result = self.family.good_line(self.batch, number, custom_id, reply)
                good = True
        except ApiError as error:
            result = self.family.error_line(self.batch, number, custom_id, error)
        if "batch_corrupt_line" in kinds:
            result = result[: len(result) // 2] + b"\n"
        if "batch_omit" in kinds:
            result = b""
        chunk.read += len(raw)
        chunk.executed += 1
        chunk.good += good
        chunk.bad += not good
        lines = chunk.output if good or self.family.one_file else chunk.errors
        lines.append(result * 2 if "batch_dup_line" in kinds else result)

    def line_instead(self, rule: dict[str, Any], number: int, custom_id: str) -> bytes:
        """The line of a request that a fault left without an answer."""
        if rule["kind"] == "batch_line_zero":
            return self.family.zero_line(self.batch, number, custom_id)
        if rule["kind"] == "batch_line_error":
            message = rule.get("message") or "The model did not answer in time."
            return self.family.failed_line(self.batch, number, custom_id, rule["code"], message)
        return self.family.error_line(self.batch, number, custom_id, rule_error(rule))


class BatchWorker:
    """Works on the batches of one state file; `stopped` says whether to leave the rest for later."""

    def __init__(self, store: BatchStore, model: BatchModel, stopped: Callable[[], bool]) -> None:
        self.store, self.model, self.stopped = store, model, stopped

    def catch_up(self, batch_id: str | None) -> None:
        """Does what the clock says should be done by now, in the batch named or in all: their state is committed as it
        goes, and a kill leaves nothing charged that is not written."""
        now = self.store.now()
        waiting = [batch for batch in self.store.open_batches() if batch_id in (None, batch.id)]
        if not any(batch.behind(now) for batch in waiting):
            return
        with self.store.working(self.stopped) as alone:
            for batch in waiting if alone else ():
                self.finish_due(batch.id, now)

    def finish_due(self, batch_id: str, now: float) -> None:
        """Does all that is due in one batch; one whose files were deleted has failed."""
        try:
            while not self.stopped():
                batch = self.store.fresh(batch_id)
                if batch is None or batch.ended or not batch.behind(now):
                    return
                if not batch.validated:
                    self.validate(batch)
                elif batch.executed < batch.due(now):
                    self.execute(batch, now)
                elif (end := batch.ending(now)) is not None:
                    end_batch(self.store, batch, *end)
        except FileNotFoundError as error:
            message = f"The files of the simulator are not there any more: {error.filename}"
            problems = [input_problem("input_file_gone", message)]
            self.settle(batch_id, {"validated": True, "errors": problems, "ended": "failed", "ended_at": now})

    def validate(self, batch: Batch) -> None:
        """Reads the whole input; a batch with errors in it has failed, and nothing of it ran."""
        checked = check_input(self.store.file_path(batch.input_id), batch)
        errors = checked.errors
        rejection, cap = batch.fault("batch_reject"), batch.fault("batch_enqueued_cap")
        if rejection is not None:
            message = rejection.get("message") or "The batch was rejected."
            errors = [input_problem(rejection.get("code") or "invalid_request", message, rejection.get("line"))]
        elif not errors and cap is not None:
            waiting = sum(one.enqueued_tokens for one in self.store.open_batches() if one.model == checked.model)
            if waiting + checked.tokens > cap["tokens"]:
                message = (
                    f"Enqueued token limit reached for {checked.model}. Limit: {cap['tokens']:,} enqueued tokens. "
                )
                message += "Please try again once some batches have completed."
                errors = [input_problem("token_limit_exceeded", message)]
        found: dict[str, Any] = {"validated": True, "errors": errors}
        if errors:
            found |= {"ended": "failed", "ended_at": self.store.now()}
        else:
            found |= {"total": checked.total, "model": checked.model, "enqueued_tokens": checked.tokens}
        self.settle(batch.id, found)

    def settle(self, batch_id: str, found: dict[str, Any]) -> None:
        """Writes what was found about a batch."""
        with self.store.write():
            fresh = self.store.fresh(batch_id)
            assert fresh is not None
            for name, value in found.items():
                setattr(fresh, name, value)
            if fresh.ended != "failed":
                self.store.count("requests", fresh.total)
            else:
                self.store.count("rejected")
                self.store.count_faults(fresh, "checked")
            self.store.save(fresh)

    def execute(self, batch: Batch, now: float) -> None:
        """Answers what is due by then, in chunks. A chunk's lines are on disk before it is charged; the remains of an
        uncommitted one that a kill left are cut off first."""
        reader = RequestReader(batch, self.model)
        with (
            self.store.file_path(batch.input_id).open("rb") as requests,
            opened(self.store, output_part(batch), batch.out_size) as output,
            opened(self.store, errors_part(batch), batch.err_size) as errors,
        ):
            requests.seek(batch.read)
            while batch.executed < (goal := batch.due(now)) and not self.stopped():
                chunk = AnsweredChunk()
                for number in range(batch.executed + 1, min(batch.executed + CHUNK, goal) + 1):
                    reader.answer(number, requests.readline(), chunk)
                output.writelines(chunk.output)
                errors.writelines(chunk.errors)
                output.flush()
                errors.flush()
                batch = self.commit(batch, chunk, output.tell(), errors.tell())

    def commit(self, batch: Batch, chunk: AnsweredChunk, out_size: int, err_size: int) -> Batch:
        """Charges a chunk and stores that it is done, in one transaction."""
        with self.store.write():
            fresh = self.store.fresh(batch.id)
            assert fresh is not None
            for name in ADDED:
                setattr(fresh, name, getattr(fresh, name) + getattr(chunk, name))
            fresh.out_size, fresh.err_size = out_size, err_size
            self.store.save(fresh)
            self.store.count("charged", len(chunk.digests))
            known = sum(not self.store.was_charged(digest) for digest in chunk.known)
            self.store.count("duplicates", len(chunk.digests) - self.store.charge(chunk.digests) + known)
            self.store.count("prompt_tokens", chunk.prompt_tokens)
            self.store.count("completion_tokens", chunk.completion_tokens)
            for kind, times in chunk.faults.items():
                self.store.count(f"fault.{kind}", times)
        return fresh


def end_batch(store: BatchStore, batch: Batch, ended: str, when: float) -> None:
    """Writes what is left and turns results into files; a kill before the commit leaves it to be done again."""
    one_file = FAMILIES[batch.family].one_file
    output = recovered_part(store, batch, "output", output_part(batch), batch.out_size)
    errors = recovered_part(store, batch, "error", errors_part(batch), batch.err_size)
    batch.ended, batch.ended_at = ended, when
    if ended != "completed":
        write_unfinished(store, batch, *((output, batch.out_size) if one_file else (errors, batch.err_size)))
    shaped = shape(batch, output)
    with store.write():
        if one_file:
            batch.output_id = shaped.name
            errors.unlink()
        else:
            batch.output_id = output_file(store, batch, shaped)
            batch.error_id = error_file(store, batch, errors)
        store.count_faults(batch, "ended")
        store.save(batch)
        store.drop_bytes(batch.input_id)
    if shaped != output:
        output.unlink(missing_ok=True)


def recovered_part(store: BatchStore, batch: Batch, kind: str, name: str, size: int) -> Path:
    """The path of its good or its other lines. The remains of an uncommitted chunk that a kill left are cut off, and a
    result file that was never committed is taken back."""
    path, made = store.file_path(name), store.file_path(result_id(store, batch, kind))
    if made.exists() and not path.exists():
        made.replace(path)
    opened(store, name, size).close()
    return path


def result_id(store: BatchStore, batch: Batch, kind: str) -> str:
    """The id of a file of its results: the same however often it is made."""
    return store.new_id("file-", batch.id, kind)


def write_unfinished(store: BatchStore, batch: Batch, path: Path, size: int) -> None:
    """Writes a line for every request that was not done."""
    family = FAMILIES[batch.family]
    with store.file_path(batch.input_id).open("rb") as requests, path.open("r+b") as results:
        requests.seek(batch.read)
        results.seek(size)
        for number in range(batch.executed + 1, batch.total + 1):
            results.write(family.unfinished_line(batch, number, json.loads(requests.readline())["custom_id"]))


def output_file(store: BatchStore, batch: Batch, path: Path) -> str | None:
    """The file of good lines, None if there are none; or what a fault makes of it."""
    empty = path.stat().st_size == 0
    if batch.fault("batch_empty_output_id"):
        return ""
    if empty or batch.fault("batch_null_output"):
        path.unlink()
        return None
    return result_file(store, batch, path, "output")


def error_file(store: BatchStore, batch: Batch, path: Path) -> str | None:
    """The file of other lines, None if there are none; Azure's exists even then."""
    empty = path.stat().st_size == 0
    if empty and batch.family != "azure" and not batch.fault("batch_zero_error_file"):
        path.unlink()
        return None
    return result_file(store, batch, path, "error")


def result_file(store: BatchStore, batch: Batch, path: Path, kind: str) -> str:
    """Makes a file of results; of one that is gone only the name is left."""
    file_id = result_id(store, batch, kind)
    kept = RESULTS_FILE_KEPT if batch.kept_seconds is None else batch.kept_seconds
    if store.file(file_id) is None:
        assert batch.ended_at is not None
        name, expires_at = f"{batch.id}_{kind}.jsonl", batch.ended_at + kept
        store.add_file(path, name, "batch_output", expires_at=expires_at, file_id=file_id)
        if batch.fault("batch_gone"):
            store.delete_file(file_id)
    return file_id


def shape(batch: Batch, path: Path) -> Path:
    """The results as faults leave them: in another order, with lines that do not belong, with marks before them."""
    kinds = {rule["kind"] for rule in batch.faults}
    if not kinds & SHAPING:
        return path
    shaped = path.with_suffix(".shaped")
    with path.open("rb") as lines, shaped.open("wb") as results:
        results.write(BOM if "batch_bom" in kinds else b"")
        for rule in batch.faults:
            if rule["kind"] == "batch_foreign_line":
                results.write(FOREIGN_LINES.get(rule["form"], FAMILIES[batch.family].foreign_line))
        for line in shuffled(lines, batch.number) if "batch_shuffle" in kinds else lines:
            results.write(line)
            results.write(b"\n" if "batch_blank_lines" in kinds else b"")
    return shaped


def shuffled(lines: IO[bytes], seed: int) -> Iterator[bytes]:
    """The lines in another order, with no more of them in memory than where each begins."""
    starts = array("Q", [0])
    for line in lines:
        starts.append(starts[-1] + len(line))
    starts.pop()
    Random(seed).shuffle(starts)  # noqa: S311 (nothing to guess)
    for start in starts:
        lines.seek(start)
        yield lines.readline()


def output_part(batch: Batch) -> str:
    """The name under which good lines are gathered."""
    return f"{batch.id}.output"


def errors_part(batch: Batch) -> str:
    """The name under which other lines are gathered."""
    return f"{batch.id}.errors"


def opened(store: BatchStore, name: str, size: int) -> IO[bytes]:
    """A file to append to, with no more in it than was committed."""
    path = store.file_path(name)
    path.touch()
    file = path.open("r+b")
    file.truncate(size)
    file.seek(size)
    return file


class BatchThreads:
    """The batches of one simulator. Its threads are started when the first file or batch is."""

    def __init__(self, store: BatchStore, model: BatchModel, faults: BatchFaults, seconds: float) -> None:
        self.store, self.faults, self.seconds = store, faults, seconds
        self._stopping = threading.Event()
        self._worker = BatchWorker(store, model, self._stopping.is_set)
        self._store_thread = ThreadPoolExecutor(1, "simulator-state")
        self._work_thread = ThreadPoolExecutor(1, "simulator-batches")
        self._queue_lock = threading.Lock()
        self._early: Counter[str] = Counter()
        self._queued: dict[str | None, Future[None]] = {}

    async def do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls a function of the store, one such call at a time."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._store_thread, lambda: function(*args, **kwargs))

    async def change(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same in one transaction."""

        def changed() -> T:
            with self.store.write():
                return function(*args, **kwargs)

        return await self.do(changed)

    def start(self, batch_id: str | None = None) -> Future[None]:
        """Queues the work that is due now, in one batch or in all. Work that waits in the queue is not queued twice."""
        with self._queue_lock:
            waiting = self._queued.get(batch_id)
            if waiting is None:
                waiting = self._queued[batch_id] = self._work_thread.submit(self._catch_up, batch_id)
        return waiting

    def _catch_up(self, batch_id: str | None) -> None:
        """Does what waits in the queue; later callers wait for the next time."""
        with self._queue_lock:
            del self._queued[batch_id]
        self._worker.catch_up(batch_id)

    async def caught_up(self, batch_id: str | None = None) -> bool:
        """Waits for the work that is due now; False if it takes longer than a look may wait."""
        if not self.store.exists:
            return True
        done = asyncio.wrap_future(self.start(batch_id))
        try:
            await asyncio.wait_for(asyncio.shield(done), LOOK_SECONDS)
        except TimeoutError:
            done.add_done_callback(lambda future: future.cancelled() or future.exception())
            return False
        return True

    async def count(self, operation: str) -> int:
        """The number of this call among those of its operation, from 1. Looking alone creates no state."""
        if not self.store.exists and operation not in ("create", "upload"):
            self._early[operation] += 1
            return self._early[operation]
        return self._early[operation] + await self.change(self.store.count, f"calls.{operation}")

    async def account(self) -> dict[str, Any]:
        """The requests and charges of batches."""
        behind = not await self.caught_up()
        account = await self.do(batch_account, self.store, behind)
        calls = self._early + Counter(account["calls"])
        return account | {"calls": dict(sorted(calls.items()))}

    async def reset(self) -> None:
        """Empties the account, once the work that was due is in it."""
        await self.caught_up()
        self._early.clear()
        await self.do(self.store.reset)

    def stop(self) -> None:
        """Ends the work at the next commit; the rest is left for the next start."""
        self._stopping.set()

    def close(self) -> None:
        """Stops, and closes the store."""
        self.stop()
        self._store_thread.shutdown()
        self._work_thread.shutdown()
        self.store.close()


def batch_account(store: BatchStore, behind: bool) -> dict[str, Any]:
    """The account of batches. `behind`: work is due that is not done yet."""
    counters = store.counters()
    calls = {name.removeprefix("calls."): n for name, n in counters.items() if name.startswith("calls.")}
    faults = {name.removeprefix("fault."): n for name, n in counters.items() if name.startswith("fault.")}
    names = ("created", "cancelled", "rejected", "requests", "charged", "duplicates", "prompt_tokens")
    return {
        "posts": calls.get("create", 0),
        **{name: counters.get(name, 0) for name in (*names, "completion_tokens", "files")},
        "kept": len(store.files("batch", None)),
        "open": len(store.open_batches()),
        "calls": calls,
        "faults": dict(sorted(faults.items())),
        "behind": behind,
    }

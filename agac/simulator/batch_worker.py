"""The work on batches.

A thread checks inputs, answers requests, charges them once, and writes results and their files.
How far a batch is at a moment follows from its fields, its faults and the clock (`batch_state`).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from agac.core.state_files import make_file
from agac.simulator.anthropic_batches import MessageBatches
from agac.simulator.api_errors import ApiError, unknown_model
from agac.simulator.batch_state import Batch, BatchRequest
from agac.simulator.batch_store import BatchStore
from agac.simulator.fault_effects import AnsweredCall
from agac.simulator.fault_plan import FaultPlan, line_rules
from agac.simulator.faults import FaultRule, changed_answer, error_of
from agac.simulator.kinds import JsonObject
from agac.simulator.model_calls import ModelCall, encoded
from agac.simulator.openai_batches import CheckedInput, OpenAiBatches, input_problem
from agac.simulator.prompt_cache import PromptCache, prompt_ends
from agac.simulator.replies import AnswerWriter, ModelApi

DIALECTS: dict[str, OpenAiBatches] = {
    "openai": OpenAiBatches(),
    "azure": OpenAiBatches(),
    "anthropic": MessageBatches(),
}

CHUNK = 500  # requests between two commits: what a kill may have to do again, uncharged
LOOK_SECONDS = 10.0
"""The longest wait of a look at a batch for the work that is due; then it says how far it is."""

FOREIGN_LINES = {
    "null": b"null\n",
    "list": b"[1, 2]\n",
    "no_custom_id": b'{"id":"batch_req_0","response":{"status_code":200,"body":{}},"error":null}\n',
    "not_utf8": b'{"custom_id":"\xff\xfe"}\n',
}
"""Lines that are not results, by `form`; the form `unknown` is one of the provider's."""

LINE_EDITS: dict[str, Callable[[bytes], bytes]] = {
    "batch_corrupt_line": lambda line: line[: len(line) // 2] + b"\n",
    "batch_omit": lambda line: b"",
    "batch_dup_line": lambda line: line * 2,
}
"""The faults that change the line of one result, in this order."""

RESULT_EDITS: dict[str, Callable[[Batch, list[bytes]], list[bytes]]] = {
    "batch_shuffle": lambda batch, lines: shuffled(batch, lines),
    "batch_blank_lines": lambda batch, lines: [line + b"\n" for line in lines],
    "batch_foreign_line": lambda batch, lines: [*foreign_lines(batch), *lines],
    "batch_bom": lambda batch, lines: [b"\xef\xbb\xbf", *lines],
}
"""The faults that change all lines of results, in this order."""


def shuffled(batch: Batch, lines: list[bytes]) -> list[bytes]:
    lines = list(lines)
    Random(batch.number).shuffle(lines)  # noqa: S311 (nothing to guess)
    return lines


def foreign_lines(batch: Batch) -> list[bytes]:
    foreign_line = DIALECTS[batch.family].foreign_line
    return [
        FOREIGN_LINES.get(rule["form"], foreign_line)
        for rule in batch.faults
        if rule["kind"] == "batch_foreign_line"
    ]


def edited_results(batch: Batch, path: Path) -> Path:
    """Returns the file of the results as faults leave them: `path` itself without such a fault."""
    kinds = [kind for kind in RESULT_EDITS if batch.fault(kind)]
    if not kinds:
        return path
    edited = path.with_suffix(".shaped")
    make_file(edited)
    with path.open("rb") as results:
        lines = list(results)
    for kind in kinds:
        lines = RESULT_EDITS[kind](batch, lines)
    with edited.open("wb") as results:
        results.writelines(lines)
    return edited


def refusal(store: BatchStore, batch: Batch, model: str, tokens: int) -> ApiError | None:
    """Returns the refusal by the faults of a batch that are about its check."""
    dialect = DIALECTS[batch.family]
    rejection = batch.fault("batch_reject")
    if rejection is not None:
        return dialect.rejected(rejection)
    cap = batch.fault("batch_enqueued_cap")
    if cap is not None and store.enqueued_tokens(model) + tokens > cap["tokens"]:
        return dialect.over_cap(model, cap["tokens"])
    return None


def instead_of_answer(
    rules: list[FaultRule], dialect: OpenAiBatches, request: BatchRequest
) -> bytes | None:
    """Returns the line that a fault gives instead of an answer, if one does; raises ApiError."""
    for rule in rules:
        if rule.phase == "result":
            if rule.effect is None:
                raise error_of(rule)
            line: bytes = rule.effect(rule, dialect, request)
            return line
    return None


@dataclass(slots=True)
class AnsweredChunk:
    """Some requests of a batch, and what is still to be written and charged of them."""

    batch: Batch
    dialect: OpenAiBatches
    api: ModelApi
    line_rules: list[FaultRule]
    lines: dict[str, list[bytes]] = field(default_factory=lambda: {"output": [], "errors": []})
    digests: list[bytes] = field(default_factory=list)
    known: set[bytes] = field(default_factory=set)
    """digests that were charged outside of batches"""
    added: Counter[str] = field(default_factory=Counter)
    """numbers to add to the batch's"""
    faults: Counter[str] = field(default_factory=Counter)


class BatchWorker:
    """Works on the batches of one state file, with the answers, seed and rules of single requests.

    `charged_before` says whether a content was charged for a single request, `stopping` that the
    rest is to be left for later.
    """

    def __init__(
        self,
        store: BatchStore,
        plan: FaultPlan,
        charged_before: Callable[[bytes], bool],
        stopping: threading.Event,
        writer: AnswerWriter,
    ) -> None:
        self.store = store
        self.plan = plan
        self.charged_before = charged_before
        self.stopping = stopping
        self.writer = writer
        self.prompts = PromptCache()
        self.unread: dict[str, dict[bytes, str]] = {}
        """entries of the cache that can be read once their batch has ended"""

    def catch_up(self, batch_id: str | None) -> None:
        """Does what is due by now, in the batch named or in all.

        A kill leaves nothing charged that is not written.
        """
        now = self.store.now()
        batches = self.store.open_batches()
        waiting = [batch for batch in batches if batch_id in (None, batch.id)]
        if not any(batch.is_behind(now) for batch in waiting):
            return
        with self.store.working(self.stopping) as is_alone:
            if is_alone:
                for batch in waiting:
                    self.finish_due(batch.id, now)

    def finish_due(self, batch_id: str, now: float) -> None:
        """Does all that is due in one batch; one whose files were deleted has failed."""
        try:
            while not self.stopping.is_set():
                batch = self.store.batch(batch_id)
                if batch is None or batch.ended or not batch.is_behind(now):
                    return
                self.next_step(batch, now)
        except FileNotFoundError as error:
            message = f"The files of the simulator are not there any more: {error.filename}"
            self.fail(batch_id, [input_problem("input_file_gone", message)])

    def next_step(self, batch: Batch, now: float) -> None:
        if not batch.validated:
            self.validate(batch)
            return
        if batch.executed < batch.due(now):
            self.execute(batch, now)
            return
        end = batch.ending(now)
        if end is not None:
            self.end(batch, *end)

    def validate(self, batch: Batch) -> None:
        """Reads the whole input; a batch with errors in it has failed, and nothing of it ran."""
        checked = CheckedInput(self.store.file_path(batch.input_id), batch)
        errors = checked.errors
        rejection = batch.fault("batch_reject")
        if rejection is not None or not errors:
            refused = refusal(self.store, batch, checked.model, checked.tokens)
            if refused is not None:
                line = rejection.get("line") if rejection else None
                errors = [input_problem(refused.code, refused.message, line)]
        if errors:
            self.fail(batch.id, errors)
            return
        with self.store.write():
            batch = replace(
                self.store.fresh(batch.id),
                validated=True,
                total=len(checked.ids),
                model=checked.model,
                enqueued_tokens=checked.tokens,
            )
            self.store.count("requests", batch.total)
            self.store.save(batch)

    def fail(self, batch_id: str, errors: list[JsonObject]) -> None:
        """Ends a batch for the errors in its input."""
        with self.store.write():
            batch = replace(
                self.store.fresh(batch_id),
                validated=True,
                errors=errors,
                ended="failed",
                ended_at=self.store.now(),
            )
            self.store.count("rejected")
            self.store.count_faults(batch, "checked")
            self.store.save(batch)

    def execute(self, batch: Batch, now: float) -> None:
        """Answers what is due by then, in chunks whose lines are on disk before the charge."""
        dialect = DIALECTS[batch.family]
        api = dialect.apis[batch.endpoint]
        rules = line_rules(batch.faults)
        with (
            self.store.file_path(batch.input_id).open("rb") as requests,
            self.store.open_results(batch, "output") as output,
            self.store.open_results(batch, "errors") as errors,
        ):
            requests.seek(batch.read)
            while batch.executed < (due := batch.due(now)) and not self.stopping.is_set():
                chunk = AnsweredChunk(batch, dialect, api, rules)
                last = min(batch.executed + CHUNK, due)
                for number in range(batch.executed + 1, last + 1):
                    self.answer(number, requests.readline(), chunk)
                output.writelines(chunk.lines["output"])
                errors.writelines(chunk.lines["errors"])
                output.flush()
                errors.flush()
                batch = self.commit(chunk, output.tell(), errors.tell())

    def answer(self, number: int, raw: bytes, chunk: AnsweredChunk) -> None:
        """Answers one request: its line of results, good or not, joins the chunk."""
        request = json.loads(raw)
        rules = self.plan.of_line(chunk.line_rules, number, raw, request["custom_id"])
        kinds = [rule.kind for rule in rules]
        chunk.faults.update(kinds)
        named = chunk.batch.request(number, request["custom_id"])
        is_good = False
        try:
            line = instead_of_answer(rules, chunk.dialect, named)
            if line is None:
                body: Any = self.reply(request[chunk.dialect.body_key], chunk)
                if "batch_body_text" in kinds:
                    body = encoded(body).decode()
                line = chunk.dialect.good_line(named, body)
                is_good = True
        except ApiError as error:
            line = chunk.dialect.error_line(named, error)
        for kind, edit in LINE_EDITS.items():
            if kind in kinds:
                line = edit(line)
        chunk.added.update({"executed": 1, "read": len(raw), "good" if is_good else "bad": 1})
        chunk.lines["output" if is_good else chunk.dialect.bad_results].append(line)

    def reply(self, body: JsonObject, chunk: AnsweredChunk) -> JsonObject:
        """Returns the reply to one request, which is charged now.

        Raises ApiError for a request that is refused.
        """
        if body.get("stream"):
            message = "Streaming is not supported in batches: leave 'stream' out."
            raise ApiError(400, message, param="stream")
        call = chunk.api.read_data(body, self.plan.seed)
        if chunk.batch.family == "anthropic":
            call = self.with_cache(call, chunk)
        if "missing" in call.model:
            raise unknown_model(call.model)
        answer = self.writer.answer(call)
        # requests of batches have no numbers among single ones: rules with `at` spare them
        rule = self.plan.pick(0, call)
        if rule is not None and rule.phase in ("error", "answer"):  # not about connections
            chunk.faults[rule.kind] += 1
            if rule.phase == "error":
                raise error_of(rule, call.model)
            answer = changed_answer(rule, AnsweredCall(call, answer, self.writer))
        chunk.added["prompt_tokens"] += call.prompt_tokens
        chunk.added["completion_tokens"] += answer.tokens
        chunk.digests.append(call.digest)
        if self.charged_before(call.digest):
            chunk.known.add(call.digest)
        return chunk.api.reply(call, answer)

    def with_cache(self, call: ModelCall, chunk: AnsweredChunk) -> ModelCall:
        """Returns the request with what the cache holds of its prompt."""
        batch = chunk.batch
        done = batch.executed + chunk.added["executed"] + 1
        moment = batch.created_at + max(0.0, batch.seconds) * done / batch.total
        looked_up, entries = self.prompts.look_up(call, *prompt_ends(call.data, None), moment)
        self.unread.setdefault(batch.id, {}).update(entries)
        return looked_up if entries else call

    def commit(self, chunk: AnsweredChunk, out_size: int, err_size: int) -> Batch:
        """Charges a chunk and stores that it is done, in one transaction."""
        store = self.store
        with store.write():
            fresh = store.fresh(chunk.batch.id)
            added = {name: getattr(fresh, name) + more for name, more in chunk.added.items()}
            fresh = replace(fresh, out_size=out_size, err_size=err_size, **added)
            store.save(fresh)
            new_elsewhere = sum(not store.was_charged(digest) for digest in chunk.known)
            duplicates = len(chunk.digests) - store.charge(chunk.digests) + new_elsewhere
            store.count("charged", len(chunk.digests))
            store.count("duplicates", duplicates)
            for name in ("prompt_tokens", "completion_tokens"):
                store.count(name, chunk.added[name])
            for kind, times in chunk.faults.items():
                store.count(f"fault.{kind}", times)
        return fresh

    def end(self, batch: Batch, ended: str, when: float) -> None:
        """Writes what is left, and makes files of results.

        What a kill left uncommitted is taken back first.
        """
        store = self.store
        batch.ended = ended
        batch.ended_at = when
        self.prompts.keep(self.unread.pop(batch.id, {}), when)
        output = self.complete(batch, "output", "output")
        errors = self.complete(batch, "errors", "error")
        edited = edited_results(batch, output)
        with store.write():
            batch.output_id = self.output_file(batch, edited)
            batch.error_id = self.error_file(batch, errors)
            store.count_faults(batch, "ended")
            store.save(batch)
            store.drop_bytes(batch.input_id)
        if edited != output:
            output.unlink(missing_ok=True)

    def complete(self, batch: Batch, suffix: str, kind: str) -> Path:
        """Returns where results are gathered, with the requests that were not done."""
        path = self.store.results_path(batch, suffix)
        made = self.store.file_path(self.result_id(batch, kind))
        if made.exists() and not path.exists():  # a kill came after it was moved away
            made.replace(path)
        with self.store.open_results(batch, suffix) as lines:
            if batch.ended != "completed" and DIALECTS[batch.family].bad_results == suffix:
                lines.writelines(self.unfinished(batch))
        return path

    def unfinished(self, batch: Batch) -> Iterator[bytes]:
        """Gives the lines of the requests that were not done."""
        dialect = DIALECTS[batch.family]
        with self.store.file_path(batch.input_id).open("rb") as requests:
            requests.seek(batch.read)
            for number in range(batch.executed + 1, batch.total + 1):
                custom_id = json.loads(requests.readline())["custom_id"]
                yield dialect.unfinished_line(batch.request(number, custom_id), batch.ended)

    def result_id(self, batch: Batch, kind: str) -> str:
        """Returns the id of a file of results: the same however often it is made."""
        return self.store.new_id("file-", batch.id, kind)

    def output_file(self, batch: Batch, path: Path) -> str | None:
        if batch.fault("batch_empty_output_id"):
            return ""
        if batch.fault("batch_null_output") or path.stat().st_size == 0:
            path.unlink()
            return None
        return self.result_file(batch, path, "output")

    def error_file(self, batch: Batch, path: Path) -> str | None:
        keeps_empty = batch.family == "azure" or batch.fault("batch_zero_error_file") is not None
        if path.stat().st_size == 0 and not keeps_empty:
            path.unlink()
            return None
        return self.result_file(batch, path, "error")

    def result_file(self, batch: Batch, path: Path, kind: str) -> str:
        """Makes a file of results; of one that is gone only the name is left."""
        file_id = self.result_id(batch, kind)
        if self.store.file(file_id) is None:
            assert batch.ended_at is not None
            name = f"{batch.id}_{kind}.jsonl"
            purpose = DIALECTS[batch.family].results_purpose
            self.store.add_file(path, file_id, name, purpose, batch.ended_at)
            if batch.fault("batch_gone"):
                self.store.delete_file(file_id)
        return file_id


class SimulatedBatches:
    """The batches of one simulator. Their thread is started when the first one is."""

    def __init__(
        self,
        store: BatchStore,
        plan: FaultPlan,
        seconds: float,
        charged_before: Callable[[bytes], bool],
        writer: AnswerWriter,
    ) -> None:
        self.store = store
        self.faults = plan
        self.seconds = seconds
        self._stopping = threading.Event()
        self._worker = BatchWorker(store, plan, charged_before, self._stopping, writer)
        self._thread = ThreadPoolExecutor(1, "simulator-batches")
        self._early: Counter[str] = Counter()
        """calls before there was a state file"""

    def start(self, batch_id: str | None = None) -> Future[None]:
        """Queues the work that is due now, in one batch or in all."""
        return self._thread.submit(self._worker.catch_up, batch_id)

    async def caught_up(self, batch_id: str | None = None) -> bool:
        """Waits for the work that is due now.

        Returns False if it takes longer than a look may wait.
        """
        if not self.store.exists:
            return True
        done = asyncio.wrap_future(self.start(batch_id))
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await asyncio.shield(done)
        except TimeoutError:
            done.add_done_callback(lambda future: future.cancelled() or future.exception())
            return False
        return True

    def count(self, operation: str) -> int:
        """Returns the number of this call among those of its operation, from 1.

        Looking alone creates no state.
        """
        if not self.store.exists and operation not in ("create", "upload"):
            self._early[operation] += 1
            return self._early[operation]
        return self._early[operation] + self.store.counted(f"calls.{operation}")

    async def account(self) -> JsonObject:
        """Returns the requests and charges of batches. `behind`: work is due that is not done."""
        is_behind = not await self.caught_up()
        counters = Counter(self.store.counters())
        calls = self._early.copy()
        faults: dict[str, int] = {}
        for name, count in counters.items():
            kind, _, what = name.partition(".")
            if kind == "calls":
                calls[what] += count
            elif kind == "fault":
                faults[what] = count
        names = (
            "created cancelled rejected requests charged duplicates prompt_tokens "
            "completion_tokens files"
        )
        return {
            "posts": counters["calls.create"],
            **{name: counters[name] for name in names.split()},
            "kept": len(self.store.files("batch")),
            "open": len(self.store.open_batches()),
            "calls": dict(sorted(calls.items())),
            "faults": dict(sorted(faults.items())),
            "behind": is_behind,
        }

    async def reset(self) -> None:
        """Empties the account, once the work that was due is in it."""
        await self.caught_up()
        self._early.clear()
        self._worker.prompts.entries.clear()
        self.store.reset()

    def stop(self) -> None:
        """Ends the work at the next commit; the rest is left for the next start."""
        self._stopping.set()

    def close(self) -> None:
        self.stop()
        self._thread.shutdown()
        self.store.close()

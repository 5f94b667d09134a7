"""The work on batches: a thread checks inputs, answers requests, charges them once, and writes results and their files.
How far a batch is at a moment follows from its fields, its faults and the clock (`due`, `ending`, `is_behind`)."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from agac.core.state_files import make_file
from agac.simulator.anthropic import MessageBatches
from agac.simulator.batch_store import DAY, Batch, BatchStore
from agac.simulator.faults import FaultPlan, FaultRule, changed_answer, error_of, line_rules
from agac.simulator.openai import OpenAiBatches
from agac.simulator.replies import AnswerWriter, ApiError, BatchEndpoint, encoded, unknown_model
from agac.simulator.serving import PromptCache, prompt_ends

FAMILIES: dict[str, OpenAiBatches | MessageBatches] = {
    **dict.fromkeys(("openai", "azure"), OpenAiBatches()),
    "anthropic": MessageBatches(),
}

CHUNK = 500  # requests between two commits: what a kill may have to do again, uncharged
LOOK_SECONDS = 10.0  # how long a look at a batch waits for the work that is due; then it reports how far the batch is
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

MAX_ERRORS = 100
MAX_ID_LENGTH = 64
MAX_INPUT_BYTES = 200_000_000
MAX_REQUESTS = {"openai": 50_000, "azure": 100_000}


def input_problem(code: str, message: str, line: int | None = None, param: str | None = None) -> dict[str, Any]:
    return {"code": code, "line": line, "message": message, "param": param}


class CheckedInput:
    """The input of OpenAI's or Azure's batch, read in one pass: `errors` as a batch lists them, the hashes of its
    requests' ids, their model and their tokens."""

    def __init__(self, path: Path, batch: Batch) -> None:
        self.endpoint = batch.endpoint
        self.errors: list[dict[str, Any]] = []
        self.model = ""
        self.tokens = 0
        self.ids: set[int] = set()
        if path.stat().st_size > MAX_INPUT_BYTES:
            message = f"The batch input file is larger than {MAX_INPUT_BYTES:,} bytes."
            self.errors = [input_problem("file_too_large", message)]
            return
        written, limit = False, MAX_REQUESTS[batch.family]
        with path.open("rb") as lines:
            for number, raw in enumerate(lines, 1):
                if number > limit:
                    message = f"The file holds more than {limit:,} requests, the most."
                    self.errors = [input_problem("too_many_tasks", message)]
                    return
                written = written or not raw.isspace()
                self.errors += self._line_problems(number, raw)
                if len(self.errors) >= MAX_ERRORS:
                    break
        if not written:
            self.errors = [input_problem("empty_file", "The batch input file is empty.")]
        if not self.errors and "missing" in self.model:
            self.errors = [input_problem("model_not_found", unknown_model(self.model).message, 1, "body.model")]

    def _line_problems(self, number: int, raw: bytes) -> Iterator[dict[str, Any]]:
        try:
            line = json.loads(raw.decode())  # a byte order mark is not JSON
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            yield input_problem("invalid_json_line", "This line is not parseable as valid JSON.", number)
            return
        if lacking := [name for name in ("custom_id", "method", "url", "body") if not line.get(name)]:
            message = f"Missing required parameter: '{lacking[0]}'."
            yield input_problem("missing_required_parameter", message, number, lacking[0])
            return
        custom_id, body = line["custom_id"], line["body"]
        if not isinstance(custom_id, str) or len(custom_id) > MAX_ID_LENGTH:
            message = f"Invalid 'custom_id': expected a string of at most {MAX_ID_LENGTH} characters."
            yield input_problem("invalid_custom_id", message, number, "custom_id")
        elif hash(custom_id) in self.ids:
            message = f"The custom_id '{custom_id}' for this request is a duplicate of another request. "
            yield input_problem("duplicate_custom_id", message + "Every custom_id must be unique.", number, "custom_id")
        else:
            self.ids.add(hash(custom_id))
        if line["method"] != "POST":
            yield input_problem("invalid_method", "Invalid 'method': expected 'POST'.", number, "method")
        if line["url"] != self.endpoint:
            message = f"The URL provided for this request does not match the batch endpoint {self.endpoint}."
            yield input_problem("url_mismatch", message, number, "url")
        model = body.get("model") if isinstance(body, dict) else None
        if not isinstance(model, str) or not model:
            yield input_problem("invalid_request", "Invalid 'body': expected an object with a 'model'.", number, "body")
        elif model != (self.model or model):
            message = f"The model '{model}' does not match '{self.model}': all requests of a batch ask the same model."
            yield input_problem("model_mismatch", message, number, "body.model")
        else:
            self.model = model
        self.tokens += len(raw) // 4


def due(batch: Batch, now: float) -> int:
    """How many requests are done by then: evenly over the seconds that it takes; cancelled batches do no more."""
    if batch.cancel_at is not None:
        return batch.executed
    passed = (now if batch.expires_at is None else min(now, batch.expires_at)) - batch.created_at
    if batch.seconds <= 0 or passed >= batch.seconds:
        return batch.reachable
    return min(batch.reachable, math.floor(batch.total * max(0.0, passed) / batch.seconds + 1e-9))


def ending(batch: Batch, now: float) -> tuple[str, float] | None:
    """How and when a batch ends, None if it does not."""
    if batch.cancel_at is not None:
        return "cancelled", batch.cancel_at
    if batch.stuck_status:
        return None
    done_at = batch.created_at + max(0.0, batch.seconds)
    if batch.expires_at is not None and done_at > batch.expires_at:
        return ("expired", batch.expires_at) if now >= batch.expires_at else None
    if now < done_at:
        return None
    return ("expired" if batch.fault("batch_expire") else "completed"), done_at


def is_behind(batch: Batch, now: float) -> bool:
    if not batch.validated:
        return batch.stuck_status != "validating" or batch.cancel_at is not None
    return batch.executed < due(batch, now) or ending(batch, now) is not None


@dataclass(slots=True)
class AnsweredChunk:
    """Some requests of a batch, and what they came to: what is still to be written and charged. `added` are numbers to
    add to the batch's, `known` digests that were charged outside of batches."""

    batch: Batch
    format: OpenAiBatches | MessageBatches
    endpoint: BatchEndpoint
    line_rules: list[FaultRule]
    output: list[bytes] = field(default_factory=list)
    errors: list[bytes] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    known: set[bytes] = field(default_factory=set)
    added: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)


class BatchWorker:
    """Works on the batches of one state file, with the same answers, seed and rules (`plan`) as for single requests;
    `charged_before` says whether a content was charged there, `stopping` that the rest is to be left for later."""

    def __init__(
        self, store: BatchStore, plan: FaultPlan, charged_before: Callable[[bytes], bool], stopping: threading.Event,
        writer: AnswerWriter,
    ) -> None:  # fmt: skip
        self.store, self.plan, self.charged_before, self.stopping = store, plan, charged_before, stopping
        self.writer, self.prompts, self.unread = writer, PromptCache(), dict[str, dict[bytes, str]]()

    def catch_up(self, batch_id: str | None) -> None:
        """Does what is due by now, in the batch named or in all; a kill leaves nothing charged that is not written."""
        now = self.store.now()
        waiting = [batch for batch in self.store.open_batches() if batch_id in (None, batch.id)]
        if not any(is_behind(batch, now) for batch in waiting):
            return
        with self.store.working(self.stopping) as alone:
            for batch in waiting if alone else ():
                self.finish_due(batch.id, now)

    def finish_due(self, batch_id: str, now: float) -> None:
        """Does all that is due in one batch; one whose files were deleted has failed."""
        try:
            while not self.stopping.is_set():
                batch = self.store.batch(batch_id)
                if batch is None or batch.ended or not is_behind(batch, now):
                    return
                if not batch.validated:
                    self.validate(batch)
                elif batch.executed < due(batch, now):
                    self.execute(batch, now)
                elif (end := ending(batch, now)) is not None:
                    self.end(batch, *end)
        except FileNotFoundError as error:
            message = f"The files of the simulator are not there any more: {error.filename}"
            self.settle_input(batch_id, [input_problem("input_file_gone", message)])

    def validate(self, batch: Batch) -> None:
        """Reads the whole input; a batch with errors in it has failed, and nothing of it ran."""
        checked = CheckedInput(self.store.file_path(batch.input_id), batch)
        errors = checked.errors
        rejection, cap = batch.fault("batch_reject"), batch.fault("batch_enqueued_cap")
        if rejection is not None:
            message = rejection.get("message") or "The batch was rejected."
            errors = [input_problem(rejection.get("code") or "invalid_request", message, rejection.get("line"))]
        elif not errors and cap is not None:
            waiting = sum(one.enqueued_tokens for one in self.store.open_batches() if one.model == checked.model)
            if waiting + checked.tokens > cap["tokens"]:
                limit = f"Enqueued token limit reached for {checked.model}. Limit: {cap['tokens']:,} enqueued tokens."
                message = f"{limit} Please try again once some batches have completed."
                errors = [input_problem("token_limit_exceeded", message)]
        self.settle_input(batch.id, errors, total=len(checked.ids), model=checked.model, enqueued_tokens=checked.tokens)

    def settle_input(self, batch_id: str, errors: list[dict[str, Any]], **found: Any) -> None:
        """Writes what was found about the input of a batch, which has failed if there are errors."""
        with self.store.write():
            batch = self.store.fresh(batch_id)
            if errors:
                batch = replace(batch, validated=True, errors=errors, ended="failed", ended_at=self.store.now())
                self.store.count("rejected")
                self.store.count_faults(batch, "checked")
            else:
                batch = replace(batch, validated=True, **found)
                self.store.count("requests", batch.total)
            self.store.save(batch)

    def execute(self, batch: Batch, now: float) -> None:
        """Answers what is due by then, in chunks, whose lines are on disk before they are charged."""
        family = FAMILIES[batch.family]
        about = family, family.endpoint(batch), line_rules(batch.faults)
        with (
            self.store.file_path(batch.input_id).open("rb") as requests,
            self.store.open_part(batch, "output") as output,
            self.store.open_part(batch, "errors") as errors,
        ):
            requests.seek(batch.read)
            while batch.executed < (goal := due(batch, now)) and not self.stopping.is_set():
                chunk = AnsweredChunk(batch, *about)
                for number in range(batch.executed + 1, min(batch.executed + CHUNK, goal) + 1):
                    self.answer(number, requests.readline(), chunk)
                output.writelines(chunk.output)
                errors.writelines(chunk.errors)
                output.flush()
                errors.flush()
                batch = self.commit(chunk, output.tell(), errors.tell())

    def answer(self, number: int, raw: bytes, chunk: AnsweredChunk) -> None:
        """One request: its line of results, good or not, joins the chunk."""
        line = json.loads(raw)
        custom_id, good = line["custom_id"], False
        about = chunk.batch, number, custom_id
        rules = self.plan.of_line(chunk.line_rules, number, raw, custom_id)
        kinds = [rule.kind for rule in rules]
        chunk.faults.update(kinds)
        instead = next((rule for rule in rules if rule.phase == "result"), None)
        try:
            if instead is None:
                reply = self.reply(line[chunk.format.body_key], chunk)
                body = encoded(reply).decode() if "batch_body_text" in kinds else reply
                result, good = chunk.format.good_line(*about, body), True
            elif instead.kind == "batch_line_zero":
                result = chunk.format.zero_line(*about)
            elif instead.kind == "batch_line_error":
                message = instead.value("message") or "The model did not answer in time."
                result = chunk.format.failed_line(*about, instead.value("code"), message)
            else:
                raise error_of(instead)
        except ApiError as error:
            result = chunk.format.error_line(*about, error)
        if "batch_corrupt_line" in kinds:
            result = result[: len(result) // 2] + b"\n"
        if "batch_omit" in kinds:
            result = b""
        chunk.added["executed"] += 1
        chunk.added["read"] += len(raw)
        chunk.added["good" if good else "bad"] += 1
        lines = chunk.output if good or chunk.format.one_file else chunk.errors
        lines.append(result * 2 if "batch_dup_line" in kinds else result)

    def reply(self, body: dict[str, Any], chunk: AnsweredChunk) -> dict[str, Any]:
        """The reply to one request, which is charged now; raises ApiError for a request that is refused."""
        if body.get("stream"):
            raise ApiError(400, "Streaming is not supported in batches: leave 'stream' out.", param="stream")
        read, write = chunk.endpoint
        call = read(body, self.plan.seed)
        if chunk.batch.family == "anthropic":
            batch, done = chunk.batch, chunk.batch.executed + chunk.added["executed"] + 1
            at = batch.created_at + max(0.0, batch.seconds) * done / batch.total
            served, kept = self.prompts.look_up(call, *prompt_ends(call.data, None), at)
            self.unread.setdefault(batch.id, {}).update(kept)  # what it writes is read after its batch's end
            call = served if kept else call
        if "missing" in call.model:
            raise unknown_model(call.model)
        answer = self.writer.answer(call)
        # requests of batches have no numbers among single ones: rules with `at` leave them alone
        rule = self.plan.pick(0, call)
        if rule is not None and rule.phase in ("error", "answer"):  # the others are about connections
            chunk.faults[rule.kind] += 1
            if rule.phase == "error":
                raise error_of(rule, call.model)
            answer = changed_answer(rule, call, answer, self.writer)
        chunk.added["prompt_tokens"] += call.prompt_tokens
        chunk.added["completion_tokens"] += answer.tokens
        chunk.digests.append(call.digest)
        if self.charged_before(call.digest):
            chunk.known.add(call.digest)
        return write(call, answer)

    def commit(self, chunk: AnsweredChunk, out_size: int, err_size: int) -> Batch:
        """Charges a chunk and stores that it is done, in one transaction."""
        with self.store.write():
            fresh = self.store.fresh(chunk.batch.id)
            added = {name: getattr(fresh, name) + more for name, more in chunk.added.items()}
            fresh = replace(fresh, out_size=out_size, err_size=err_size, **added)
            self.store.save(fresh)
            known = sum(not self.store.was_charged(digest) for digest in chunk.known)
            self.store.count("charged", len(chunk.digests))
            self.store.count("duplicates", len(chunk.digests) - self.store.charge(chunk.digests) + known)
            for name in ("prompt_tokens", "completion_tokens"):
                self.store.count(name, chunk.added[name])
            for kind, times in chunk.faults.items():
                self.store.count(f"fault.{kind}", times)
        return fresh

    def end(self, batch: Batch, ended: str, when: float) -> None:
        """Writes what is left, and makes files of results; what a kill left uncommitted is taken back first."""
        family, store = FAMILIES[batch.family], self.store
        batch.ended, batch.ended_at = ended, when
        self.prompts.keep(self.unread.pop(batch.id, {}), when)
        output, errors = (store.file_path(f"{batch.id}.{suffix}") for suffix in ("output", "errors"))
        for path, kind in ((output, "output"), (errors, "error")):
            made = store.file_path(self.result_id(batch, kind))
            if made.exists() and not path.exists():
                made.replace(path)
            with self.store.open_part(batch, path.suffix[1:]) as lines:
                if ended != "completed" and family.one_file == (kind == "output"):
                    lines.writelines(self.unfinished(batch))
        shaped = shape(batch, output)
        with store.write():
            if family.one_file:
                batch.output_id = shaped.name
                errors.unlink()
            else:
                keep_empty = batch.family == "azure" or bool(batch.fault("batch_zero_error_file"))
                batch.output_id = self.result_file(batch, shaped, "output")
                batch.error_id = self.result_file(batch, errors, "error", keep_empty=keep_empty)
            store.count_faults(batch, "ended")
            store.save(batch)
            store.drop_bytes(batch.input_id)
        if shaped != output:
            output.unlink(missing_ok=True)

    def unfinished(self, batch: Batch) -> Iterator[bytes]:
        with self.store.file_path(batch.input_id).open("rb") as requests:
            requests.seek(batch.read)
            for number in range(batch.executed + 1, batch.total + 1):
                custom_id = json.loads(requests.readline())["custom_id"]
                yield FAMILIES[batch.family].unfinished_line(batch, number, custom_id)

    def result_id(self, batch: Batch, kind: str) -> str:
        """The id of a file of its results: the same however often it is made."""
        return self.store.new_id("file-", batch.id, kind)

    def result_file(self, batch: Batch, path: Path, kind: str, *, keep_empty: bool = False) -> str | None:
        """Makes a file of results, None without any; of one that is gone only the name is left."""
        if kind == "output" and batch.fault("batch_empty_output_id"):
            return ""
        named = kind != "output" or not batch.fault("batch_null_output")
        if not named or (path.stat().st_size == 0 and not keep_empty):
            path.unlink()
            return None
        file_id = self.result_id(batch, kind)
        if self.store.file(file_id) is None:
            assert batch.ended_at is not None
            name = f"{batch.id}_{kind}.jsonl"
            self.store.add_file(file_id, path, name, "batch_output", batch.ended_at, RESULTS_FILE_KEPT)
            if batch.fault("batch_gone"):
                self.store.delete_file(file_id)
        return file_id


def shape(batch: Batch, path: Path) -> Path:
    """The results as faults leave them: in another order, with lines that do not belong, with marks before them."""
    kinds = {rule["kind"] for rule in batch.faults}
    if not kinds & SHAPING:
        return path
    shaped = path.with_suffix(".shaped")
    make_file(shaped)
    with path.open("rb") as lines, shaped.open("wb") as results:
        results.write(BOM if "batch_bom" in kinds else b"")
        for rule in batch.faults:
            if rule["kind"] == "batch_foreign_line":
                results.write(FOREIGN_LINES.get(rule["form"], FAMILIES[batch.family].foreign_line))
        found = list(lines)
        if "batch_shuffle" in kinds:
            Random(batch.number).shuffle(found)  # noqa: S311 (nothing to guess)
        for line in found:
            results.write(line)
            results.write(b"\n" if "batch_blank_lines" in kinds else b"")
    return shaped


class SimulatedBatches:
    """The batches of one simulator. The thread that works on them is started when the first one is."""

    def __init__(
        self, store: BatchStore, plan: FaultPlan, seconds: float, charged: Callable[[bytes], bool], writer: AnswerWriter
    ) -> None:
        self.store, self.faults, self.seconds = store, plan, seconds
        self._stopping = threading.Event()
        self._worker = BatchWorker(store, plan, charged, self._stopping, writer)
        self._thread = ThreadPoolExecutor(1, "simulator-batches")
        self._early: Counter[str] = Counter()

    def start(self, batch_id: str | None = None) -> Future[None]:
        """Queues the work that is due now, in one batch or in all."""
        return self._thread.submit(self._worker.catch_up, batch_id)

    async def caught_up(self, batch_id: str | None = None) -> bool:
        """Waits for the work that is due now; False if it takes longer than a look may wait."""
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
        """The number of this call among those of its operation, from 1. Looking alone creates no state."""
        if not self.store.exists and operation not in ("create", "upload"):
            self._early[operation] += 1
            return self._early[operation]
        return self._early[operation] + self.store.counted(f"calls.{operation}")

    async def account(self) -> dict[str, Any]:
        """The requests and charges of batches. `behind`: work is due that is not done yet."""
        behind = not await self.caught_up()
        counters = self.store.counters()
        calls, faults = self._early.copy(), {}
        for name, n in counters.items():
            kind, _, what = name.partition(".")
            if kind == "calls":
                calls[what] += n
            elif kind == "fault":
                faults[what] = n
        names = ("created", "cancelled", "rejected", "requests", "charged", "duplicates", "prompt_tokens")
        return {
            "posts": counters.get("calls.create", 0),
            **{name: counters.get(name, 0) for name in (*names, "completion_tokens", "files")},
            "kept": len(self.store.files("batch")),
            "open": len(self.store.open_batches()),
            "calls": dict(sorted(calls.items())),
            "faults": dict(sorted(faults.items())),
            "behind": behind,
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

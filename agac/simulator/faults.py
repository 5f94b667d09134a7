"""Faults on purpose: one table of all kinds, the rules of a faults file, and what each kind does to a reply.

`FAULTS` is the table. The checks of a faults file, the help of the command, the guide and the places where faults take
effect are made of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agac.simulator.replies import (
    SERVER_ERROR,
    STATUS_ERRORS,
    AnswerMessage,
    AnswerWriter,
    ApiError,
    ModelAnswer,
    ModelCall,
    invalid_key,
    retry_headers,
    status_error,
    unknown_model,
)
from agac.simulator.schema_compiler import validity
from agac.simulator.settings import SimulatorError

CALL_SELECTORS = ("at", "first", "attempts", "rate", "always")
BATCH_SELECTORS = ("at", "first", "attempts", "rate", "match", "always")
LINE_SELECTORS = ("at", "first", "attempts", "rate", "match", "lines", "always")
SELECTORS = ("rate", "at", "match", "first", "attempts", "always")

PHASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "error": ("an error instead of an answer, in batches too; nothing is charged", SELECTORS),
    "wait": ("before the answer", SELECTORS),
    "answer": ("another answer, in batches too; it is charged", SELECTORS),
    "sending": ("while the answer is sent; it is charged", SELECTORS),
    "call": ("one call of a batch API", CALL_SELECTORS),
    "created": ("a batch, from its creation on", BATCH_SELECTORS),
    "checked": ("a batch, when its input is checked", BATCH_SELECTORS),
    "ended": ("a batch, when it ends", BATCH_SELECTORS),
    "result": ("a request of a batch, instead of its answer; nothing is charged", LINE_SELECTORS),
    "line": ("the result line of a request of a batch", LINE_SELECTORS),
    "list": ("every list", ("always",)),
}
"""When faults take effect: each phase with its meaning and the keys by which a rule selects what it applies to."""

BATCH_PHASES = ("created", "checked", "ended")
LINE_PHASES = ("result", "line")
SINGLE_PHASES = ("error", "wait", "answer", "sending")
"""The phases of faults of requests outside of batches."""

OPERATIONS = ("create", "upload", "poll", "download", "cancel", "list", "delete", "files")
"""The calls of a batch API, each counted by itself: `files` lists files or shows one."""

FOREIGN_FORMS = ("unknown", "null", "list", "no_custom_id", "not_utf8")
"""Which lines `batch_foreign_line` adds that are no result of any request."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One line of a faults file. The conditions that are set must all hold; with none, the rule always applies.

    `rate` is a share, `match` a text within the messages (or a batch's requests). For single requests `at` numbers them
    from 1 as they come in, and `first` counts how often the same question was sent. For batches `at` and `first` number
    the calls of one operation (for faults of batches and their requests those that create), and `lines` numbers the
    requests of a batch from 1. `values` are the keys of its kind; `index` is its place in the file.
    """

    kind: str
    index: int = field(default=0, compare=False)
    rate: float | None = None
    at: frozenset[int] | None = None
    match: str | None = None
    first: int | None = None
    lines: frozenset[int] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        """When it takes effect."""
        return FAULTS[self.kind].phase

    def value(self, key: str) -> Any:
        """One of the keys of its kind, or its default."""
        return self.values.get(key, FAULTS[self.kind].defaults.get(key))

    def applies_to_call(self, number: int, seed: int, operation: str) -> bool:
        """Whether it is meant for the call of a batch API with this number."""
        drawn = self.rate is None or self.phase in LINE_PHASES
        return (
            (self.at is None or number in self.at)
            and (self.first is None or number <= self.first)
            and (drawn or chance(seed, self.index, operation.encode(), number) < (self.rate or 0.0))
        )

    def stored(self) -> dict[str, Any]:
        """Its kind and keys as a batch stores them."""
        found: dict[str, Any] = {"kind": self.kind, "index": self.index, **self.values}
        if self.phase in LINE_PHASES:
            lines = sorted(self.lines) if self.lines is not None else None
            found |= {"match": self.match, "lines": lines, "rate": self.rate}
        return found


def rate_limit(rule: FaultRule, call: ModelCall) -> ApiError:
    """Too many requests."""
    return status_error(429, message=f"Rate limit reached for {call.model}. Please slow down.")


def quota(rule: FaultRule, call: ModelCall) -> ApiError:
    """No money left."""
    message = "You exceeded your current quota, please check your plan and billing details."
    return status_error(429, code="insufficient_quota", message=message)


def error_of(rule: FaultRule, call: ModelCall) -> ApiError:
    """The error of a rule of the phase `error`."""
    make = FAULTS[rule.kind].effect
    assert make is not None
    error: ApiError = make(rule, call)
    if (message := rule.value("message")) is not None:
        error.message = message
    if (seconds := rule.value("retry_after")) is not None:
        error.headers |= retry_headers(seconds, in_ms=bool(rule.value("in_ms")))
    return error


def changed_answer(rule: FaultRule, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter) -> ModelAnswer:
    """The answer as a rule leaves it; unchanged by rules of other phases than `answer`."""
    if rule.kind == "two_answers":
        return writer.second_answer(call, answer)
    change = FAULTS[rule.kind].effect if rule.phase == "answer" else None
    return answer if change is None else change(rule, call, answer)


def server_error(rule: FaultRule, call: ModelCall) -> ApiError:
    """A failure of the provider itself."""
    return status_error(rule.value("status"))


def bad_request(rule: FaultRule, call: ModelCall) -> ApiError:
    """A request that the provider does not understand."""
    return ApiError(400, STATUS_ERRORS[400][2], code=rule.value("code"))


def refusal(rule: FaultRule, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
    """The model refuses."""
    return ModelAnswer(None, "stop", rule.value("message") or "I'm sorry, I can't help with that.")


def malformed_json(rule: FaultRule, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
    """The content without its end, or with a loose one, so that no JSON reader takes it."""
    text = (answer.content or "").strip()
    broken = text[:-1] if text[-1:] in ("}", "]", '"') and text[:1] in '{["' else f'{{"answer": {text}'
    return ModelAnswer(broken, answer.finish)


def wrong_schema(rule: FaultRule, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
    """JSON that the call's schema refuses: as near as possible to the right answer."""
    wrong: Any = {"unexpected": True}
    if call.schema is not None:
        valid = validity(call.schema)
        wrong = next((value for value in wrong_values(answer.content or "") if not valid(value)), wrong)
    return ModelAnswer(json.dumps(wrong), answer.finish)


def wrong_values(content: str) -> Iterator[Any]:
    """Values that are likely to be wrong, the most realistic ones first."""
    try:
        right = json.loads(content)
    except ValueError:
        right = None
    if isinstance(right, dict):
        yield from ({key: value for key, value in right.items() if key != left_out} for left_out in right)
        yield {**right, "unexpected": True}
    yield from ({"unexpected": True}, [], "unexpected", 17.5, None, True)


def half_answer(rule: FaultRule, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
    """Cut in the middle."""
    content = answer.content or ""
    return ModelAnswer(content[: len(content) // 2], "length")


def begun_again(rule: FaultRule, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
    """A first message cut in the middle, then the whole answer."""
    content = answer.content or ""
    return replace(answer, earlier=(AnswerMessage(content[: max(1, len(content) // 2)], cut=rule.value("marked")),))


def stream_error(rule: FaultRule) -> ApiError:
    """What ends an answer while it is sent."""
    return ApiError(500, rule.value("message") or SERVER_ERROR, kind="server_error", code=rule.value("code"))


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """One kind of fault: its phase, its meaning in a sentence, the keys that only it takes, and their defaults.

    `effect` makes the error of a kind of the phase `error` (of the rule and the call), or the answer of a kind of the
    phase `answer` (of these and the right answer).
    """

    phase: str
    meaning: str
    keys: tuple[str, ...]
    effect: Callable[..., Any] | None
    defaults: Mapping[str, Any]

    @property
    def all_keys(self) -> tuple[str, ...]:
        """Every key that a rule of this kind takes."""
        return (*PHASES[self.phase][1], *self.keys)


def fault(
    phase: str, meaning: str, keys: str = "", effect: Callable[..., Any] | None = None, /, **defaults: Any
) -> FaultSpec:
    """A row of the table; `keys` are separated by blanks."""
    return FaultSpec(phase, meaning, tuple(keys.split()), effect, defaults)


STATUS_KEYS = "op status when retry_after in_ms type code message"

FAULTS: dict[str, FaultSpec] = {
    "rate_limit": fault("error", "429: too many requests", "retry_after in_ms message", rate_limit),
    "quota": fault("error", "429: the account's quota is used up", "message", quota),
    "server_error": fault(
        "error", "500, or another `status`", "status retry_after in_ms message", server_error, status=500
    ),
    "unauthorized": fault("error", "401: the key is refused", "message", lambda *_: invalid_key()),
    "not_found": fault("error", "404: no such model", "message", lambda rule, call: unknown_model(call.model)),
    "bad_request": fault("error", "400: the request is refused, with this `code`", "code message", bad_request),
    "slow_first_byte": fault("wait", "the answer takes `seconds` longer", "seconds", seconds=1.0),
    "hang": fault("wait", "no answer ever comes, and nothing is charged"),
    "cut": fault("sending", "the connection closes: before the answer, or after `after_bytes` of it", "after_bytes"),
    "invalid_body": fault("sending", "the body is a page of HTML"),
    "malformed_json": fault("answer", "the text is not valid JSON", "", malformed_json),
    "wrong_schema": fault("answer", "the text is JSON that does not fit the schema", "", wrong_schema),
    "length": fault("answer", "the text is cut in the middle, as by a limit of tokens", "", half_answer),
    "refusal": fault("answer", "the model refuses to answer", "message", refusal),
    "filter": fault("answer", "a filter withholds the text", "", lambda *_: ModelAnswer("", "content_filter")),
    "empty": fault("answer", "the text is empty", "", lambda *_: ModelAnswer("", "stop")),
    "early_cut": fault(
        "answer", "a response has a first message that was cut, then the answer", "marked", begun_again, marked=True
    ),
    "two_answers": fault("answer", "a response has two messages that differ, both right"),
    "stream_error": fault(
        "sending",
        "an error ends the answer halfway; with `failed` a response ends as failed",
        "code message failed",
        code="server_error",
        failed=False,
    ),
    "batch_drop_before": fault("call", "the connection closes, and nothing happened", "op", op="create"),
    "batch_drop_after": fault("call", "it happens, and the connection closes without an answer", "op", op="create"),
    "batch_status": fault(
        "call",
        "an error, before the call has its effect or after (`when`); 500 by default",
        STATUS_KEYS,
        op="create",
        status=500,
        when="before",
    ),
    "batch_slow": fault("call", "the call waits `seconds` before its effect", "op seconds", op="create", seconds=1.0),
    "batch_truncate": fault(
        "call", "a download ends with the connection, after half of it or `after_bytes`", "after_bytes", op="download"
    ),
    "batch_file_lag": fault("call", "`times` creates do not find an uploaded file", "times", op="upload", times=2),
    "batch_list_lag": fault(
        "created", "the list leaves the batch out for `seconds` after its creation", "seconds", seconds=90.0
    ),
    "batch_get_404": fault("created", "it is not found for `seconds` after its creation", "seconds", seconds=60.0),
    "batch_no_metadata": fault("created", "its metadata is not echoed"),
    "batch_reject": fault("checked", "it fails its validation, with this code, line and message", "code line message"),
    "batch_enqueued_cap": fault(
        "checked", "it is refused if more than `tokens` of its model would wait then", "tokens", tokens=0
    ),
    "batch_expire": fault("ended", "it expires with half of it done, or `after` N requests", "after"),
    "batch_stuck": fault(
        "created", "it stays finalizing, or at another `word`, until it is cancelled; `after` N requests", "word after"
    ),
    "batch_unknown_status": fault(
        "created",
        "its status is an unknown `word` for `seconds` after its creation",
        "word seconds",
        word="paused",
        seconds=3600.0,
    ),
    "batch_counts_lie": fault("ended", "its counts say that all went well"),
    "batch_null_output": fault("ended", "it is done and names no output file"),
    "batch_empty_output_id": fault("ended", "the id of its output file is an empty text"),
    "batch_zero_error_file": fault("ended", "it has an error file with nothing in it"),
    "batch_gone": fault("ended", "its results are deleted before they are fetched"),
    "batch_shuffle": fault("ended", "its results come in another order"),
    "batch_bom": fault("ended", "its results begin with a byte order mark"),
    "batch_blank_lines": fault("ended", "an empty line follows each of its results"),
    "batch_foreign_line": fault(
        "ended", "one result line is of a request that was never sent, or has another `form`", "form", form="unknown"
    ),
    "batch_line_status": fault(
        "result", "it gets this status instead of an answer, 500 by default", "status type code message", status=500
    ),
    "batch_line_zero": fault("result", "it gets status 0, an empty body, and no error"),
    "batch_line_error": fault(
        "result",
        "it gets no response but an error code, `request_timeout` by default",
        "code message",
        code="request_timeout",
    ),
    "batch_omit": fault("line", "the request is answered and charged, and its line is missing"),
    "batch_dup_line": fault("line", "its line comes twice"),
    "batch_corrupt_line": fault("line", "its line is cut in the middle"),
    "batch_body_text": fault("line", "the body of its answer is JSON within a text"),
    "batch_paged": fault("list", "a page of a list holds at most `size`, one by default", "size", size=1),
}
"""Every kind of fault. The order is that of the guide and of messages."""


@dataclass(slots=True)
class FaultPlan:
    """Picks the fault of each single request; counts how often each question was sent, if a rule needs it."""

    rules: Sequence[FaultRule]
    seed: int = 0
    sent: dict[bytes, int] = field(default_factory=dict)
    counts_attempts: bool = field(init=False)
    reads_text: bool = field(init=False)

    def __post_init__(self) -> None:
        self.counts_attempts = any(rule.rate is not None or rule.first is not None for rule in self.rules)
        self.reads_text = any(rule.match is not None for rule in self.rules)

    def pick(self, number: int, call: ModelCall) -> FaultRule | None:
        """The fault of the request with this number, or None; the first rule that applies wins."""
        question, text, attempt = b"", call.all_text if self.reads_text else "", 1
        if self.counts_attempts:
            question = call.question
            attempt = self.sent[question] = self.sent.get(question, 0) + 1
        for index, rule in enumerate(self.rules):
            if (
                (rule.at is None or number in rule.at)
                and (rule.first is None or attempt <= rule.first)
                and (rule.match is None or rule.match in text)
                and (rule.rate is None or chance(self.seed, index, question, attempt) < rule.rate)
            ):
                return rule
        return None

    def reset(self) -> None:
        """Forgets how often anything was sent."""
        self.sent.clear()


def chance(seed: int, index: int, question: bytes, attempt: int) -> float:
    """A number from 0 to 1 that is the same whenever the same question is sent for the same time."""
    drawn = blake2b(f"{seed}/{index}/{attempt}/".encode() + question, digest_size=8).digest()
    return int.from_bytes(drawn) / 2**64


@dataclass(frozen=True, slots=True)
class BatchFaults:
    """The rules about batches of a faults file."""

    rules: Sequence[FaultRule] = ()
    seed: int = 0

    def of_call(self, operation: str, number: int) -> list[FaultRule]:
        """What goes wrong with the n-th call of an operation: slowness, and the first other rule that applies."""
        rules = [
            rule
            for rule in self.rules
            if rule.phase == "call"
            and rule.value("op") == operation
            and rule.applies_to_call(number, self.seed, operation)
        ]
        slow = [rule for rule in rules if rule.kind == "batch_slow"]
        return slow + [rule for rule in rules if rule.kind != "batch_slow"][:1]

    def of_batch(self, number: int, contains: Callable[[str], bool]) -> list[dict[str, Any]]:
        """All that goes wrong with the batch of the n-th create: every rule that applies does."""
        return [
            rule.stored()
            for rule in self.rules
            if rule.phase in (*BATCH_PHASES, *LINE_PHASES)
            and rule.applies_to_call(number, self.seed, "create")
            and (rule.match is None or rule.phase in LINE_PHASES or contains(rule.match))
        ]

    @property
    def page_size(self) -> int | None:
        """The most that a page of a list holds, if a rule makes it small."""
        return next((rule.value("size") for rule in self.rules if rule.phase == "list"), None)


class LineFaults:
    """The stored rules of one batch about its requests."""

    def __init__(self, rules: list[dict[str, Any]], seed: int) -> None:
        self.seed = seed
        self.rules = [
            (rule, None if rule["lines"] is None else frozenset(rule["lines"]))
            for rule in rules
            if FAULTS[rule["kind"]].phase in LINE_PHASES
        ]

    def of_line(self, number: int, raw: bytes, custom_id: str) -> list[dict[str, Any]]:
        """The rules that apply to a request: all about its line, and the first that replaces its answer."""
        found: list[dict[str, Any]] = []
        for rule, lines in self.rules:
            if (
                (lines is None or number in lines)
                and (rule["match"] is None or mentions(raw, rule["match"]))
                and (rule["rate"] is None or chance(self.seed, rule["index"], custom_id.encode(), 1) < rule["rate"])
                and not (replaces_answer(rule) and any(map(replaces_answer, found)))
            ):
                found.append(rule)
        return found


def replaces_answer(rule: dict[str, Any]) -> bool:
    """Whether a request gets no answer, and no charge, because of a rule."""
    return FAULTS[rule["kind"]].phase == "result"


def mentions(raw: bytes, text: str) -> bool:
    """Whether JSON contains a text, in either way in which letters may be written."""
    return any(json.dumps(text, ensure_ascii=way)[1:-1].encode("utf-8", "replace") in raw for way in (True, False))


def rule_error(values: Mapping[str, Any]) -> ApiError:
    """The error that a rule with a `status` describes."""
    error = status_error(
        int(values["status"]), kind=values.get("type"), code=values.get("code"), message=values.get("message")
    )
    if values.get("retry_after") is not None:
        error.headers |= retry_headers(values["retry_after"], in_ms=bool(values.get("in_ms")))
    return error


def load_rules(path: Path) -> list[FaultRule]:
    """Reads a faults file; raises SimulatorError with all that is wrong in it."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise SimulatorError([f"no such file: {path}"]) from error
    except OSError as error:
        raise SimulatorError([f"{path}: the faults file cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise SimulatorError([f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8"]) from error
    return parse_rules(read_data(path, text), str(path))


def read_data(path: Path, text: str) -> Any:
    """The content of the file: JSON for `.json`, else YAML."""
    if path.suffix == ".json":
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise SimulatorError([f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"]) from error
    import yaml  # only who uses faults pays for it

    try:
        return yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)
        raise SimulatorError([f"{where}: not valid YAML: {error.problem or error.context}"]) from error
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        where = f"{path}:{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        raise SimulatorError([f"{where}: not valid YAML: the character U+{error.character:04X}"]) from error
    except ValueError as error:  # a date that does not exist, for one
        raise SimulatorError([f"{path}: not valid YAML: {error}"]) from error


def parse_rules(data: Any, source: str) -> list[FaultRule]:
    """Rules from a list, or from a mapping whose only key is `faults`; raises SimulatorError with every problem."""
    if isinstance(data, dict) and set(data) == {"faults"}:
        data = data["faults"]
    if data is None:
        return []
    if not isinstance(data, list):
        raise SimulatorError(
            [f"{source}: a faults file is a list of rules, such as `- {{kind: rate_limit, rate: 0.05}}`"]
        )
    readers = [RuleReader(f"{source}: faults[{index}]", index) for index in range(len(data))]
    rules = [reader.rule(item) for reader, item in zip(readers, data, strict=True)]
    problems = [problem for reader in readers for problem in reader.problems]
    if problems:
        raise SimulatorError(problems)
    return [rule for rule in rules if rule is not None]


@dataclass(slots=True)
class RuleReader:
    """Reads one rule: its place, its values and what is wrong with it."""

    where: str
    index: int
    problems: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)

    def rule(self, item: Any) -> FaultRule | None:
        """The rule, or None if something is wrong with it."""
        if not isinstance(item, dict):
            self.problems.append(f"{self.where}: a rule is a mapping with a `kind`, not {quoted(item)}")
            return None
        kind = self.kind(item.get("kind"))
        for key, value in item.items():
            if key != "kind":
                self.take(key, value, kind)
        if "first" in item and "attempts" in item:
            self.problems.append(f"{self.where}: `first` and `attempts` mean the same; write one of them")
        if self.values.get("in_ms") and self.values.get("retry_after") is None:
            self.problems.append(f"{self.where}.in_ms: says how `retry_after` is told, which is missing; add it")
        if self.problems or kind is None:
            return None
        own = FAULTS[kind].keys
        chosen = {name: self.values.pop(name) for name in [*self.values] if name not in own}
        return FaultRule(kind, self.index, values={**FAULTS[kind].defaults, **self.values}, **chosen)

    def kind(self, value: Any) -> str | None:
        """The rule's kind, None if there is no such kind."""
        if isinstance(value, str) and value in FAULTS:
            return value
        what = "`kind` is missing" if value is None else f"unknown kind {quoted(value)}{guess(value, FAULTS)}"
        self.problems.append(f"{self.where}: {what}; known: {', '.join(FAULTS)}")
        return None

    def take(self, key: Any, value: Any, kind: str | None) -> None:
        """Checks one key and keeps its value."""
        if key not in KEYS and key not in BATCH_KEYS:
            known = FAULTS[kind].all_keys if kind else SELECTORS
            near = guess(key, known if kind else KEYS | BATCH_KEYS)
            self.problems.append(f"{self.where}: unknown key {key!r}{near}; known: {', '.join(known)}")
            return
        if kind is not None and key not in FAULTS[kind].all_keys:
            takers = ", ".join(name for name, spec in FAULTS.items() if key in spec.all_keys)
            self.problems.append(f"{self.where}: {kind!r} takes no key {key!r}; it is for: {takers}")
            return
        about_batches = kind is not None and FAULTS[kind].phase not in SINGLE_PHASES
        fits, wanted = (KEYS | BATCH_KEYS if about_batches else BATCH_KEYS | KEYS)[key]
        if not fits(value):
            self.problems.append(f"{self.where}.{key}: must be {wanted}, not {quoted(value)}")
        elif key in ("at", "lines"):
            self.values[key] = frozenset(value if isinstance(value, list) else [value])
        elif key != "always":
            self.values["first" if key == "attempts" else key] = value


def quoted(value: Any) -> str:
    """A value as a problem quotes it: bounded."""
    return repr(value)[:40]


def guess(word: Any, known: Any) -> str:
    """`; did you mean …?` if a known word is near."""
    near = get_close_matches(str(word), list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_count(value: Any, least: int = 1) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_numbers_of_requests(value: Any) -> bool:
    return is_count(value) or (isinstance(value, list) and bool(value) and all(is_count(item) for item in value))


Check = tuple[Callable[[Any], bool], str]
A_TEXT: Check = (lambda value: isinstance(value, str) and value != "", "a text")
A_COUNT: Check = (is_count, "a count of 1 or more")
TRUE_OR_FALSE: Check = (lambda value: isinstance(value, bool), "true or false")

KEYS: dict[str, Check] = {
    "rate": (lambda value: is_number(value) and 0 <= value <= 1, "a share from 0 to 1"),
    "at": (is_numbers_of_requests, "a list of request numbers, counted from 1"),
    "match": (A_TEXT[0], "a text to look for in the messages"),
    "first": A_COUNT,
    "attempts": A_COUNT,
    "always": (lambda value: value is True, "true (or left out)"),
    "status": (lambda value: is_count(value) and 500 <= value <= 599, "a status from 500 to 599"),
    "retry_after": (lambda value: value is None or (is_number(value) and value >= 0), "a number of seconds, or null"),
    "in_ms": TRUE_OR_FALSE,
    "seconds": (lambda value: is_number(value) and value >= 0, "a number of seconds"),
    "after_bytes": (lambda value: value is None or is_count(value, 0), "a count of bytes, or null"),
    "message": A_TEXT,
    "code": A_TEXT,
    "marked": TRUE_OR_FALSE,
    "failed": TRUE_OR_FALSE,
}
"""The value of each key, and the words for it."""

BATCH_KEYS: dict[str, Check] = {
    "at": (is_numbers_of_requests, "a list of numbers of calls, counted from 1 for each operation"),
    "match": (A_TEXT[0], "a text to look for in the requests"),
    "status": (lambda value: is_count(value) and 400 <= value <= 599, "a status from 400 to 599"),
    "lines": (is_numbers_of_requests, "a list of numbers of a batch's requests, counted from 1"),
    "op": (lambda value: value in OPERATIONS, f"one of {', '.join(OPERATIONS)}"),
    "when": (lambda value: value in ("before", "after"), "before or after"),
    "type": A_TEXT,
    "times": A_COUNT,
    "line": (is_count, "the number of a line, from 1"),
    "tokens": (lambda value: is_count(value, 0), "a count of tokens"),
    "after": (lambda value: is_count(value, 0), "a count of requests"),
    "word": A_TEXT,
    "form": (lambda value: value in FOREIGN_FORMS, f"one of {', '.join(FOREIGN_FORMS)}"),
    "size": A_COUNT,
}
"""The value of keys in rules about batches, where it is something else, or where the key is for batches alone."""

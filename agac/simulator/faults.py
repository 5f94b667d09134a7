"""Faults on purpose: the rules of a faults file, and what each kind does to a reply. `FAULTS` is the table of all
kinds, of which the checks of a faults file, the command's help and the guide are made."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from agac.core.errors import nearest
from agac.simulator import replies
from agac.simulator.replies import AnswerMessage, AnswerWriter, ApiError, Kind, ModelAnswer, ModelCall
from agac.simulator.schema_compiler import validity
from agac.simulator.settings import SimulatorError, is_number
from agac.simulator.tool_calls import AskedTool, ScriptRule

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
SINGLE_PHASES = ("error", "wait", "answer", "sending")  # the phases of faults of requests outside of batches

OPERATIONS = ("create", "upload", "poll", "download", "cancel", "list", "delete", "files")
"""The calls of a batch API, each counted by itself: `files` lists files or shows one."""

FOREIGN_FORMS = ("unknown", "null", "list", "no_custom_id", "not_utf8")
"""Which lines `batch_foreign_line` adds that are no result of any request."""

JUNK_BODIES = ("error", "array", "half", "empty", "page", "endless")
"""What `batch_junk` sends for results: an error, the lines as an array, half of them, nothing, a page of HTML, or an
endless line."""


@dataclass(frozen=True, slots=True)
class FaultRule:
    """One line of a faults file, which applies where all conditions hold. `rate` is a share, `match` a text within the
    messages (or a batch's requests). For single requests `at` numbers them from 1 as they come in, and `first` counts
    how often the same question was sent. For batches both number the calls of one operation (of `create`, where it is
    about batches and their requests), and `lines` numbers the requests of a batch from 1. `values` are the keys of its
    kind; `index` is its place in the file."""

    kind: str
    index: int = field(default=0, compare=False)
    rate: float | None = None
    at: frozenset[int] | None = None
    match: str | None = None
    first: int | None = None
    lines: Collection[int] | None = None
    values: Mapping[str, Any] = field(default_factory=dict)

    @property
    def phase(self) -> str:
        return FAULTS[self.kind].phase

    def value(self, key: str) -> Any:
        """One of the keys of its kind, or its default."""
        return self.values.get(key, FAULTS[self.kind].defaults.get(key))

    def selects(self, seed: int, number: int, attempt: int, what: bytes) -> bool:
        """Whether it is meant for what is sent with this number, for the n-th time."""
        return (
            (self.at is None or number in self.at)
            and (self.first is None or attempt <= self.first)
            and (self.rate is None or chance(seed, self.index, what, attempt) < self.rate)
        )

    def stored(self) -> dict[str, Any]:
        """Its kind and keys as a batch stores them."""
        found: dict[str, Any] = {"kind": self.kind, "index": self.index, **self.values}
        if self.phase in LINE_PHASES:
            lines = sorted(self.lines) if self.lines is not None else None
            found |= {"match": self.match, "lines": lines, "rate": self.rate}
        return found


def error_of(rule: FaultRule, model: str = "") -> ApiError:
    """The error of a rule, which its kind makes or else its `status`."""
    make = FAULTS[rule.kind].effect
    kind, code, message = (rule.value(name) for name in ("type", "code", "message"))
    error: ApiError = make(model) if make else replies.status_error(rule.value("status"), kind=kind, code=code)
    error.message = message or error.message
    if (seconds := rule.value("retry_after")) is not None:
        error.headers |= replies.retry_headers(seconds, in_ms=bool(rule.value("in_ms")))
    return error


def changed_answer(rule: FaultRule, call: ModelCall, answer: ModelAnswer, writer: AnswerWriter) -> ModelAnswer:
    """The answer as a rule leaves it; unchanged by rules of other phases than `answer`."""
    if rule.kind == "two_answers":
        return writer.second_answer(call, answer)
    change = FAULTS[rule.kind].effect if rule.phase == "answer" else None
    return answer if change is None else change(rule, call, answer)


def malformed_json(rule: FaultRule, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
    """The content without its end, or with a loose one, so that no JSON reader takes it."""
    text = (answer.content or "").strip()
    broken = text[:-1] if text[-1:] in ("}", "]", '"') and text[:1] in '{["' else f'{{"answer": {text}'
    return ModelAnswer(broken, answer.finish)


def wrong_schema(rule: FaultRule, call: ModelCall, answer: ModelAnswer) -> ModelAnswer:
    """JSON that the call's schema refuses: as near as possible to the right answer."""
    wrong: list[Any] = [{"unexpected": True}, [], "unexpected", 17.5, None, True]
    if call.schema is None:
        return ModelAnswer(json.dumps(wrong[0]), answer.finish)
    with suppress(ValueError):
        right = json.loads(answer.content or "")
        if isinstance(right, dict):
            parts = [{key: value for key, value in right.items() if key != left_out} for left_out in right]
            wrong = [*parts, {**right, "unexpected": True}, *wrong]
    valid = validity(call.schema)
    found = next((value for value in wrong if not valid(value)), {"unexpected": True})
    return ModelAnswer(json.dumps(found), answer.finish)


def half(answer: ModelAnswer, least: int = 0) -> str:
    content = answer.content or ""
    return content[: max(least, len(content) // 2)]


def other_calls(change: Callable[[AskedTool], AskedTool]) -> Callable[[FaultRule, ModelCall, ModelAnswer], ModelAnswer]:
    """The answer with its calls changed."""
    return lambda rule, call, answer: replace(answer, calls=tuple(map(change, answer.calls)))


class KnownFault:
    """A row of the table: when a fault takes effect, its meaning, the keys that only it takes, and their defaults.
    `effect` makes the error of a kind of the phase `error`, of the model's name, or another answer (phase `answer`)."""

    def __init__(
        self, phase: str, meaning: str, keys: str = "", effect: Callable[..., Any] | None = None, /, **defaults: Any
    ) -> None:
        self.phase, self.meaning, self.effect, self.defaults = phase, meaning, effect, defaults
        self.keys = tuple(keys.split())
        self.all_keys = (*PHASES[phase][1], *self.keys)


STATUS_KEYS = "op status when retry_after in_ms type code message"

THOUGHT = '\nLet me think about it: {"so": 1} is no answer yet.\n'

OVER_QUOTA = "You exceeded your current quota, please check your plan and billing details."

FAULTS: dict[str, KnownFault] = {
    "rate_limit": KnownFault("error", "429: too many requests", "retry_after in_ms message",
                             lambda model: replies.status_error(
                                 429, message=f"Rate limit reached for {model}. Please slow down.")),
    "quota": KnownFault("error", "429: the account's quota is used up", "message", status=429,
                        code="insufficient_quota", message=OVER_QUOTA),
    "too_large": KnownFault("error", "429: the request alone needs more tokens than the account has in a minute",
                            "message", replies.too_large),
    "blocked": KnownFault("error", "403: a firewall's page of HTML in the place of the API's answer", "",
                          lambda model: replies.blocked_page()),
    "server_error": KnownFault("error", "500, or another `status`", "status retry_after in_ms message", status=500),
    "unauthorized": KnownFault("error", "401: the key is refused", "message", status=401),
    "not_found": KnownFault("error", "404: no such model", "message", replies.unknown_model),
    "bad_request": KnownFault("error", "400: the request is refused, with this `code`", "code message", status=400),
    "slow_first_byte": KnownFault("wait", "the answer takes `seconds` longer", "seconds", seconds=1.0),
    "hang": KnownFault("wait", "no answer ever comes, and nothing is charged"),
    "cut": KnownFault("sending", "the connection closes: before the answer, or after `after_bytes` of it",
                      "after_bytes"),
    "invalid_body": KnownFault("sending", "the body is a page of HTML"),
    "malformed_json": KnownFault("answer", "the text is not valid JSON", "", malformed_json),
    "wrong_schema": KnownFault("answer", "the text is JSON that does not fit the schema", "", wrong_schema),
    "length": KnownFault("answer", "the text is cut in the middle, as by a limit of tokens", "",
                         lambda rule, call, answer: ModelAnswer(half(answer), "length")),
    "refusal": KnownFault("answer", "the model refuses to answer", "message", lambda rule, *_: ModelAnswer(
        None, "stop", rule.value("message") or "I'm sorry, I can't help with that.")),
    "filter": KnownFault("answer", "a filter withholds the text", "", lambda *_: ModelAnswer("", "content_filter")),
    "empty": KnownFault("answer", "the text is empty", "", lambda *_: ModelAnswer("", "stop")),
    "early_cut": KnownFault("answer", "a response has a first message that was cut, then the answer", "marked",
                            lambda rule, call, answer: replace(answer, earlier=(
                                AnswerMessage(half(answer, 1), cut=rule.value("marked")),)), marked=True),
    "zero_usage": KnownFault("answer", "the usage says 0 for each count of tokens", "",
                             lambda rule, call, answer: replace(answer, counts_nothing=True)),
    "ending": KnownFault("answer", "the answer ends with this `word`, or without one (null)", "word",
                         lambda rule, call, answer: replace(answer, has_word=True, word=rule.value("word"))),
    "thinks": KnownFault("answer", "the text begins with thinking in `<think>` marks; without `begun` only the last",
                         "begun", lambda rule, call, answer: answer if answer.content is None else replace(
                             answer, content=f"{'<think>' * rule.value('begun')}{THOUGHT}</think>{answer.content}"),
                         begun=True),
    "two_answers": KnownFault("answer", "a response has two messages that differ, both right"),
    "unknown_tool": KnownFault("answer", "calls name a tool that is not on offer", "",
                               other_calls(lambda asked: asked._replace(name="no_such_tool"))),
    "bad_arguments": KnownFault("answer", "the arguments of calls are not valid JSON", "",
                                other_calls(lambda asked: asked._replace(arguments=asked.arguments[:-1]))),
    "wrong_arguments": KnownFault("answer", "the arguments of calls are none that the tools name", "",
                                  other_calls(lambda asked: asked._replace(arguments='{"unexpected": 17.5}'))),
    "tool_loop": KnownFault("answer", "the calls of the last turn again, whatever came of them", "",
                            lambda rule, call, answer: answer if not call.turns else replace(
                                answer, content=None, finish="tool_calls", calls=call.turns[-1])),
    "calls_stop": KnownFault("answer", "calls come as if the model had stopped", "",
                             lambda rule, call, answer: replace(answer, finish="stop")),
    "pause": KnownFault("answer", "a message pauses (`pause_turn`); it is to be sent back", "",
                        lambda rule, call, answer: replace(answer, content="One moment.", finish="pause", calls=())),
    "stream_error": KnownFault("sending", "an error ends the answer halfway; with `failed` a response ends as failed",
                               "code message failed", status=500, code="server_error", failed=False),
    "batch_drop_before": KnownFault("call", "the connection closes, and nothing happened", "op", op="create",
                                    when="before"),
    "batch_drop_after": KnownFault("call", "it happens, and the connection closes without an answer", "op",
                                   op="create", when="after"),
    "batch_status": KnownFault("call", "an error, before the call has its effect or after (`when`); 500 by default",
                               STATUS_KEYS, op="create", status=500, when="before"),
    "batch_too_large": KnownFault("call", "413 for an upload, or a create (`op`), of more than so many `bytes`",
                                  "op bytes", op="upload", bytes=10_000, when="before"),
    "batch_blocked": KnownFault("call", "a firewall's page (403, or `status`) for an upload, or a create (`op`), of "
                                        "requests that hold the text of `match`; of any without", "op status match",
                                op="upload", status=403, when="received"),
    "batch_slow": KnownFault("call", "the call waits `seconds` before its effect", "op seconds",
                             op="create", seconds=1.0, when="before"),
    "batch_truncate": KnownFault("call", "a download ends with the connection, after half of it or `after_bytes`",
                                 "after_bytes", op="download"),
    "batch_junk": KnownFault("call", "a download comes with status 200 and is no whole file of results: see `body`",
                             "body", op="download", body="error"),
    "batch_file_lag": KnownFault("call", "`times` creates do not find an uploaded file", "times", op="upload", times=2),
    "batch_list_lag": KnownFault("created", "the list leaves the batch out for `seconds` after its creation",
                                 "seconds", seconds=90.0),
    "batch_get_404": KnownFault("created", "it is not found for `seconds` after its creation", "seconds", seconds=60.0),
    "batch_no_metadata": KnownFault("created", "its metadata is not echoed"),
    "batch_reject": KnownFault("checked", "it fails its validation, with this code, line and message",
                               "code line message"),
    "batch_enqueued_cap": KnownFault("checked", "it is refused if more than `tokens` of its model would wait then",
                                     "tokens", tokens=0),
    "batch_expire": KnownFault("ended", "it expires with half of it done, or `after` N requests", "after"),
    "batch_stuck": KnownFault("created", "it stays finalizing, or at another `word`, until it is cancelled; "
                                         "`after` N requests", "word after"),
    "batch_unknown_status": KnownFault("created", "its status is an unknown `word` for `seconds` after its creation",
                                       "word seconds", word="paused", seconds=3600.0),
    "batch_counts_lie": KnownFault("ended", "its counts say that all went well"),
    "batch_counts_short": KnownFault("created", "its counts leave out a third of its requests"),
    "batch_null_output": KnownFault("ended", "it is done and names no output file"),
    "batch_empty_output_id": KnownFault("ended", "the id of its output file is an empty text"),
    "batch_zero_error_file": KnownFault("ended", "it has an error file with nothing in it"),
    "batch_gone": KnownFault("ended", "its results are deleted before they are fetched"),
    "batch_shuffle": KnownFault("ended", "its results come in another order"),
    "batch_bom": KnownFault("ended", "its results begin with a byte order mark"),
    "batch_blank_lines": KnownFault("ended", "an empty line follows each of its results"),
    "batch_foreign_line": KnownFault("ended", "one result line is of a request that was never sent, or has another "
                                              "`form`", "form", form="unknown"),
    "batch_line_status": KnownFault("result", "it gets this status instead of an answer, 500 by default",
                                    "status type code message", status=500),
    "batch_line_zero": KnownFault("result", "it gets status 0, an empty body, and no error"),
    "batch_line_error": KnownFault("result", "it gets no response but an error code, `request_timeout` by default",
                                   "code message", code="request_timeout"),
    "batch_omit": KnownFault("line", "the request is answered and charged, and its line is missing"),
    "batch_dup_line": KnownFault("line", "its line comes twice"),
    "batch_corrupt_line": KnownFault("line", "its line is cut in the middle"),
    "batch_body_text": KnownFault("line", "the body of its answer is JSON within a text"),
    "batch_paged": KnownFault("list", "a page of a list holds at most `size`, one by default", "size", size=1),
}  # fmt: skip
"""Every kind of fault. The order is that of the guide and of messages."""


class FaultPlan:
    """Picks the fault of each request, and of batches; counts how often a question was sent, if a rule needs it."""

    def __init__(self, rules: Sequence[FaultRule], seed: int = 0) -> None:
        self.seed = seed
        self.rules = [rule for rule in rules if rule.phase in SINGLE_PHASES]
        self.batch_rules = [rule for rule in rules if rule.phase not in SINGLE_PHASES]
        self.sent: dict[bytes, int] = {}
        self.counts_attempts = any(rule.rate is not None or rule.first is not None for rule in self.rules)
        self.reads_text = any(rule.match is not None for rule in self.rules)

    def pick(self, number: int, call: ModelCall) -> FaultRule | None:
        """The fault of the request with this number, or None; the first rule that applies wins."""
        question, attempt = b"", 1
        text = "\n".join(text for _, text in call.messages) if self.reads_text else ""
        if self.counts_attempts:
            question = call.question
            attempt = self.sent[question] = self.sent.get(question, 0) + 1
        fitting = (rule for rule in self.rules if rule.match is None or rule.match in text)
        return next((rule for rule in fitting if rule.selects(self.seed, number, attempt, question)), None)

    def of_call(self, operation: str, number: int) -> list[FaultRule]:
        """What goes wrong with the n-th call of an operation: slowness, and the first other rule that applies."""
        rules = (rule for rule in self.batch_rules if rule.phase == "call" and rule.value("op") == operation)
        found = [rule for rule in rules if rule.selects(self.seed, number, number, operation.encode())]
        found.sort(key=lambda rule: rule.kind != "batch_slow")
        return found[: 1 + sum(rule.kind == "batch_slow" for rule in found)]

    def of_batch(self, number: int, contains: Callable[[str], bool]) -> list[dict[str, Any]]:
        """All that goes wrong with the batch of the n-th create: every rule that applies does."""
        found = []
        for rule in self.batch_rules:
            if rule.phase in LINE_PHASES:  # their `rate` and `match` are about single requests
                meant = replace(rule, rate=None).selects(self.seed, number, number, b"create")
            else:
                meant = rule.phase in BATCH_PHASES and rule.selects(self.seed, number, number, b"create")
                meant = meant and (rule.match is None or contains(rule.match))
            if meant:
                found.append(rule.stored())
        return found

    def of_line(self, rules: Sequence[FaultRule], number: int, raw: bytes, custom_id: str) -> list[FaultRule]:
        """Those of a batch's `line_rules` for a request: all about its line, and the first that replaces its answer."""
        fitting = (rule for rule in rules if rule.lines is None or number in rule.lines)
        fitting = (rule for rule in fitting if rule.match is None or mentions(raw, rule.match))
        found = [rule for rule in fitting if rule.selects(self.seed, number, 1, custom_id.encode())]
        replacing = [rule for rule in found if rule.phase == "result"]
        return [rule for rule in found if rule not in replacing[1:]]

    @property
    def page_size(self) -> int | None:
        """The most that a page of a list holds, if a rule makes it small."""
        return next((rule.value("size") for rule in self.batch_rules if rule.phase == "list"), None)


def chance(seed: int, index: int, question: bytes, attempt: int) -> float:
    """A number from 0 to 1 that is the same whenever the same question is sent for the same time."""
    drawn = blake2b(f"{seed}/{index}/{attempt}/".encode() + question, digest_size=8).digest()
    return int.from_bytes(drawn) / 2**64


def line_rules(stored: list[dict[str, Any]]) -> list[FaultRule]:
    """The stored rules of one batch about its requests."""
    return [
        FaultRule(one["kind"], one["index"], **{key: one[key] for key in ("rate", "match", "lines")}, values=one)
        for one in stored
        if FAULTS[one["kind"]].phase in LINE_PHASES
    ]


def mentions(raw: bytes, text: str) -> bool:
    """Whether JSON contains a text, in either way in which letters may be written."""
    return any(json.dumps(text, ensure_ascii=way)[1:-1].encode("utf-8", "replace") in raw for way in (True, False))


def parse_rules(data: Any, source: str) -> list[FaultRule]:
    """Rules from a list; raises SimulatorError with every problem."""
    if data is None:
        return []
    if not isinstance(data, list):
        example = "such as `- {kind: rate_limit, rate: 0.05}`"
        raise SimulatorError([f"{source}: a faults file is a list of rules, {example}"])
    where = f"{source}: faults"
    if problems := [one for index, item in enumerate(data) for one in rule_problems(item, f"{where}[{index}]")]:
        raise SimulatorError(problems)
    rules = []
    for index, item in enumerate(data):
        spec = FAULTS[item["kind"]]
        given = {"first" if key == "attempts" else key: value for key, value in item.items()}
        for key in given.keys() & {"at", "lines"}:
            given[key] = frozenset(given[key] if isinstance(given[key], list) else [given[key]])
        own = {key: value for key, value in given.items() if key in spec.keys}
        chosen = {key: value for key, value in given.items() if key not in (*own, "kind", "always")}
        rules.append(FaultRule(item["kind"], index, values={**spec.defaults, **own}, **chosen))
    return rules


def parse_script(data: Any, source: str) -> list[ScriptRule]:
    """What a model says, from a list of rules; raises SimulatorError with every problem."""
    problems, rules = list[str](), data if isinstance(data, list) else [data]
    for index, item in enumerate(rules):
        if not isinstance(item, dict) or ("reply" in item) == ("calls" in item):
            example = "such as `{match: Paris, reply: France}`"
            problems.append(f"{source}: script[{index}] must be a mapping with a `reply` or with `calls`, {example}")
            continue
        for key, value in item.items():
            fits, wanted = SCRIPT_KEYS.get(key, (None, f"left out; known: {', '.join(SCRIPT_KEYS)}"))
            if fits is None or not fits(value):
                problems.append(f"{source}: script[{index}].{key} must be {wanted}")
    if problems:
        raise SimulatorError(problems)
    return [ScriptRule(**item) for item in rules]


def load_rules(path: Path, parse: Callable[[Any, str], list[Any]] = parse_rules) -> list[Any]:
    """Reads a file of faults or a script, JSON for `.json`, else YAML; raises SimulatorError with all that is wrong."""
    import yaml  # only who uses faults pays for it

    try:
        text = path.read_text(encoding="utf-8-sig")
        return parse(json.loads(text) if path.suffix == ".json" else yaml.safe_load(text), str(path))
    except FileNotFoundError:
        problem = f"no such file: {path}"
    except OSError as error:
        problem = f"{path}: the file cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        problem = f"{path}: byte {error.start + 1} is not UTF-8; save the file as UTF-8"
    except json.JSONDecodeError as error:
        problem = f"{path}:{error.lineno}:{error.colno}: not valid JSON: {error.msg}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = f"{path}{place}: not valid YAML: {error.problem or error.context}"
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        place = f"{before.count(chr(10)) + 1}:{error.position - before.rfind(chr(10))}"
        problem = f"{path}:{place}: not valid YAML: the character U+{error.character:04X}"
    except ValueError as error:  # a date that does not exist, for one
        problem = f"{path}: not valid YAML: {error}"
    raise SimulatorError([problem])


def rule_problems(item: Any, where: str) -> Iterator[str]:
    if not isinstance(item, dict):
        yield f"{where}: a rule is a mapping with a `kind`, not {item!r:.40}"
        return
    kind = item.get("kind")
    spec = FAULTS.get(kind) if isinstance(kind, str) else None
    if spec is None:
        what = "`kind` is missing" if kind is None else f"unknown kind {kind!r:.40}{guess(kind, FAULTS)}"
        yield f"{where}: {what}; known: {', '.join(FAULTS)}"
    single = spec is None or spec.phase in SINGLE_PHASES
    checks = BATCH_KEYS | KEYS if single else KEYS | BATCH_KEYS
    known = spec.all_keys if spec else SELECTORS
    right: dict[str, Any] = {}
    for key, value in item.items():
        if key == "kind":
            continue
        if key not in checks:
            near = guess(key, known if spec else checks)
            yield f"{where}: unknown key {key!r}{near}; known: {', '.join(known)}"
        elif spec is not None and key not in known:
            takers = ", ".join(name for name, other in FAULTS.items() if key in other.all_keys)
            yield f"{where}: {kind!r} takes no key {key!r}; it is for: {takers}"
        elif not checks[key][0](value):
            yield f"{where}.{key}: must be {checks[key][1]}, not {value!r:.40}"
        else:
            right[key] = value
    if "first" in item and "attempts" in item:
        yield f"{where}: `first` and `attempts` mean the same; write one of them"
    if right.get("in_ms") and right.get("retry_after") is None:
        yield f"{where}.in_ms: says how `retry_after` is told, which is missing; add it"


def guess(word: Any, known: Any) -> str:
    """`; did you mean …?` if a known word is near."""
    near = nearest(str(word), known)
    return f"; did you mean {near!r}?" if near else ""


def is_count(value: Any, least: int = 1) -> bool:
    return is_number(value, int) and value >= least


def is_scripted_calls(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and set(one) <= {"name", "arguments"}
        for one in value
    )


def is_numbers_of_requests(value: Any) -> bool:
    return is_count(value) or (isinstance(value, list) and bool(value) and all(is_count(item) for item in value))


A_TEXT: Kind = (lambda value: isinstance(value, str) and value != "", "a text")
A_COUNT: Kind = (is_count, "a count of 1 or more")

KEYS: dict[str, Kind] = {
    "rate": (lambda value: is_number(value) and 0 <= value <= 1, "a share from 0 to 1"),
    "at": (is_numbers_of_requests, "a list of request numbers, counted from 1"),
    "match": (A_TEXT[0], "a text to look for in the messages"),
    "first": A_COUNT,
    "attempts": A_COUNT,
    "always": (lambda value: value is True, "true (or left out)"),
    "status": (lambda value: is_count(value) and 500 <= value <= 599, "a status from 500 to 599"),
    "retry_after": (lambda value: value is None or (is_number(value) and value >= 0), "a number of seconds, or null"),
    "in_ms": replies.TRUTH,
    "seconds": (lambda value: is_number(value) and value >= 0, "a number of seconds"),
    "after_bytes": (lambda value: value is None or is_count(value, 0), "a count of bytes, or null"),
    "message": A_TEXT,
    "code": A_TEXT,
    "marked": replies.TRUTH,
    "failed": replies.TRUTH,
    "begun": replies.TRUTH,
    "word": (lambda value: value is None or isinstance(value, str), "a text, or null"),
}

SCRIPT_KEYS: dict[str, Kind] = {
    "match": (
        lambda value: all(map(A_TEXT[0], value if isinstance(value, list) else [value])),
        "a text, or a list of texts",
    ),
    "turn": A_COUNT,
    "reply": (lambda value: isinstance(value, str | dict | list), "a text, or JSON"),
    "calls": (is_scripted_calls, "a list of calls such as {name: search, arguments: {query: lamps}}"),
}

BATCH_KEYS: dict[str, Kind] = {
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
    "body": (lambda value: value in JUNK_BODIES, f"one of {', '.join(JUNK_BODIES)}"),
    "size": A_COUNT,
    "bytes": A_COUNT,
}
"""The value of keys in rules about batches, where it is something else, or where the key is for batches alone."""

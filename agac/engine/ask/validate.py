"""Decides whether a reply is a result: complete, not refused, and of the requested shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agac.core.errors import ErrorType, RowError, UsageError
from agac.core.keys import canonical
from agac.core.text import quoted_beginning
from agac.core.types import (
    Finish,
    JSONValue,
    Message,
    Reply,
    Request,
    Usage,
    json_encoder,
    refuse_constant,
    unique_keys,
)
from agac.engine.ask.mended_json import mended_json
from agac.plan.render import RowView
from agac.plan.stage import ExtraCheck, PlannedStage, RecordedStage
from agac.spec.field_shapes import WholeNumbers, integers_of
from agac.spec.graph import stage_of
from agac.spec.guards import Check, Evaluator, GuardFailed
from agac.spec.json_schema import BACKTRACK_LIMIT, GAVE_UP, compiled, goes_back, schema_cost
from agac.spec.schema_errors import MAX_WORK, TOO_MANY, some_errors
from agac.spec.templates import VARS
from agac.spec.workflow import Stage

if TYPE_CHECKING:
    from jsonschema_rs import Draft202012Validator, ValidationError


MAX_ERRORS = (
    5  # validation errors that are quoted: to a model in a re-ask, to the user in the row's error
)

MOST_CHARACTERS = 300  # of each error
_FENCE = re.compile(r"\A\s*```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_encode = json_encoder(allow_nan=False)


class ValidReply(NamedTuple):
    """A reply that is a result: its JSON text, its value, whether its JSON had to be mended, and
    whether a text in it lacks the `format` that the schema asks for."""

    text: str
    value: JSONValue
    mended: bool = False
    misformatted: bool = False


class ResultChecks:
    """The `checks` of one stage, made ready for many rows."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._name = stage_of(stage.name)
        integers = integers_of({self._name: stage.schema}, [self._name])
        self._tests = [
            (Evaluator(one.guard, stages=stage.ancestors, integers=integers), one.message)
            for one in stage.checks
        ]

    def error(self, view: RowView, value: JSONValue) -> RowError | None:
        """What is wrong with a result of a row, of which its stages see this; None where every
        check holds."""
        seen = {**view.guard_values(self._stage), self._name: value}
        found = list[str]()
        for test, message in self._tests:
            try:
                if not test.test(seen):
                    found.append(message)
            except GuardFailed as failed:
                found.append(f"{message} ({failed})")
        if found:
            return RowError.listing(ErrorType.CHECK_FAILED, found)
        return None


def is_of_row(stage: Stage, error: RowError) -> bool:
    """Whether the error of a task is of its row alone: of checks that look at more than the
    result."""
    of_result = {stage_of(stage.name), VARS}
    return error.type is ErrorType.CHECK_FAILED and not of_result.issuperset(
        n for c in stage.checks for n in c.guard.names
    )


def checks_of(stages: Iterable[Stage]) -> dict[int, ResultChecks]:
    """The checks of those stages that have some, by their positions."""
    return {stage.index: ResultChecks(stage) for stage in stages if stage.checks}


class Checker:
    """Checks the replies of one stage. Made once: building a validator costs more than using it."""

    def __init__(self, stage: PlannedStage | RecordedStage) -> None:
        self._extra: ExtraCheck | None = getattr(stage, "extra_check", None)
        self._checks = ResultChecks(stage) if stage.checks else None
        self._mends = stage.json_repair
        self._field = stage.output_field
        self._wants_json = stage.wants_json
        try:
            self._schema = getattr(stage, "judge", None) or stage.schema
            self._validators: dict[tuple[bool, int, int], Draft202012Validator] = {}
            if self._schema is not None:
                self._whole_numbers = WholeNumbers(self._schema.body)
                self._cost = schema_cost(self._schema.body)
                self._goes_back = goes_back(self._schema.body, "pattern", "patternProperties")
                self._validator("")
        except (
            ValueError
        ) as error:  # what loading has refused may still be in a run that an older agac recorded
            reason = getattr(error, "message", error)
            remedy = (
                "Correct it in the workflow's file: `agac batch retrieve` then takes in what "
                "batches answered, held to the corrected one, and `agac run` makes a new run."
            )
            message = f"the output_schema of stage {stage.name!r} cannot be compiled: {reason}"
            raise UsageError(message, remedy=remedy) from error

    def check(
        self, reply: Reply, *, enforced: bool = False, view: RowView | None = None
    ) -> ValidReply | RowError:
        """The result, or why the reply is none. `enforced`: the provider held it to the schema, so
        that asking again cannot mend what fails by `format` alone. The stage's checks are of the
        row of this `view`."""
        found = _unusable(reply) or self._only((reply.text, *reply.others), enforced=enforced)
        if self._checks is None or view is None or isinstance(found, RowError):
            return found
        return self._checks.error(view, found.value) or found

    def kept(self, value: JSONValue, view: RowView | None = None) -> str | None:
        """A result of another place as the store has it; None where this stage would not take it
        as a reply."""
        checked = self.check_value(value, view)
        return checked.text if isinstance(checked, ValidReply) else None

    def check_value(self, value: JSONValue, view: RowView | None) -> ValidReply | RowError:
        """The result that a value is, or why the stage would not take it as its reply."""
        text = value
        form = "a text that is not empty"
        if self._wants_json:
            text = json.dumps(value, ensure_ascii=False)
        elif self._field is not None:
            if isinstance(value, dict) and len(value) == 1:
                text = value.get(self._field)
            else:
                text = None
            form = "an object"
            form = f"{form} with the one field {self._field!r}, a text"
        if isinstance(text, str):
            return self.check(Reply(text, Finish.STOP, Usage(), ""), view=view)
        return RowError(ErrorType.SCHEMA_MISMATCH, f"the value is not {form}")

    def _validator(self, text: str, *, formats: bool = True) -> Draft202012Validator:
        """The one for a reply; where patterns may go back, for those of about its length with
        about as many texts."""
        assert self._schema is not None
        length = texts = 0
        if self._goes_back:
            length = len(text).bit_length()
            texts = (text.count('"') // 2).bit_length()
        key = formats, length, texts
        if key not in self._validators:
            found = compiled(self._schema.body, formats=formats, size=1 << length, texts=1 << texts)
            self._validators[key] = found
        return self._validators[key]

    def _one(self, text: str, *, enforced: bool = False) -> ValidReply | RowError:
        if not self._wants_json:  # the text as it came, or trimmed in an object with one field
            try:
                text.encode()
            except UnicodeEncodeError:
                error = "the reply holds a lone surrogate, which is no character"
                return RowError(ErrorType.SCHEMA_MISMATCH, error)
            plain: JSONValue = text if self._field is None else {self._field: text.strip()}
            return ValidReply(_encode(plain), plain)
        try:
            encoded, value = parsed(text)
        except ValueError as problem:
            # a reply has lost its secrets before it is read
            return RowError(
                ErrorType.SCHEMA_MISMATCH,
                f"the reply is not JSON: {problem}{quoted_beginning(text)}",
            )
        problems = self._problems(text, value)
        misformatted = (
            bool(problems) and enforced and not self._problems(text, value, formats=False)
        )
        if problems and not misformatted:
            return RowError.listing(ErrorType.SCHEMA_MISMATCH, problems)
        return self._valid(encoded, value, misformatted=misformatted)

    def _valid(self, text: str, value: JSONValue, **how: bool) -> ValidReply:
        """The result that a valid value is, with 2 for a 2.0 where the schema says integer."""
        whole = value if self._schema is None else self._whole_numbers.of(value)
        return ValidReply(text if whole is value else _encode(whole), whole, **how)

    def _only(self, texts: tuple[str, ...], *, enforced: bool) -> ValidReply | RowError:
        """The one message that is the answer: of several the one that is valid. The same one twice
        is one. Mended ones count only where none is valid as it stands: mending makes an answer
        even of a message that was cut. Without a schema every text is valid, so that two that
        differ are never an answer: OpenAI's SDK joins them (`output_text`), but where the model
        began anew that is half an answer before the whole one."""
        checked = [self._one(text, enforced=enforced) for text in texts]
        found = [one for one in checked if isinstance(one, ValidReply)]
        found = found or [one for one in map(self._mended, texts) if one is not None]
        if len(found) > 1 and len({canonical(one.value) for one in found}) > 1:
            many = f"the reply holds {len(found)} messages that are valid and differ"
            return RowError(ErrorType.SCHEMA_MISMATCH, f"{many}; nobody knows which one is meant")
        if found or len(texts) == 1:
            return (found or checked)[0]
        problems = (
            f"message {n}: {one.message}"
            for n, one in enumerate(checked, 1)
            if isinstance(one, RowError)
        )
        return RowError.listing(ErrorType.SCHEMA_MISMATCH, problems)

    def _mended(self, text: str) -> ValidReply | None:
        """What was surely meant as JSON and can be read as such, if it is then valid;
        `json_repair` asks for it."""
        if not self._mends or not self._wants_json or (mended := mended_json(text)) is None:
            return None
        try:
            encoded, value = parsed(mended)
        except ValueError:
            return None
        if self._problems(mended, value):
            return None
        return self._valid(encoded, value, mended=True)

    def _problems(self, text: str, value: JSONValue, *, formats: bool = True) -> list[str]:
        if self._schema is None:
            return []
        try:
            if self._cost.visits * text.count(",") > MAX_WORK:
                return [
                    (
                        "the reply cannot be checked: it has too many values for a schema with so "
                        "many alternatives"
                    )
                ]
            validator = self._validator(text, formats=formats)
            if not validator.is_valid(value):
                errors = some_errors(validator, self._cost, value, MAX_ERRORS)
                if errors is None:
                    return [TOO_MANY]
                return [_described(error) for error in errors]
            return self._extra(value)[:MAX_ERRORS] if self._extra else []
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # noqa: BLE001  (nested too deeply, a panic: a reply was paid and is no bug)
            return [f"the reply cannot be checked: {str(problem) or type(problem).__name__}"]


def _unusable(reply: Reply) -> RowError | None:
    """A reply that was cut, refused, filtered or is empty never becomes a result."""
    match reply.finish:
        case Finish.LENGTH:
            message = "the reply was cut at the limit of tokens; raise max_tokens or ask for less"
            return RowError(ErrorType.TRUNCATED, message, reply.text)
        case Finish.REFUSAL:
            said = reply.refusal or reply.text or "without a reason"
            return RowError(ErrorType.REFUSED, f"the model refused: {said}")
        case Finish.FILTER:
            if reply.ended_with in ("", "content_filter"):
                named = ""
            else:
                named = f" ({reply.ended_with!r})"
            return RowError(
                ErrorType.FILTERED, f"the provider's content filter stopped the reply{named}"
            )
        case Finish.STOP if reply.refusal:
            return RowError(ErrorType.REFUSED, f"the model refused: {reply.refusal}")
        case Finish.TOOLS:
            return RowError(
                ErrorType.PROVIDER_ERROR, "the model asked for tools, and this call gave it none"
            )
        case Finish.PAUSED:
            return RowError(
                ErrorType.PROVIDER_ERROR,
                "the provider paused the answer, as its own tools ran for long",
            )
        case Finish.OTHER:
            message = (
                f"agac cannot tell whether the reply is whole: it ended with {reply.ended_with!r}"
            )
            return RowError(ErrorType.PROVIDER_ERROR, message)
        case _:
            if reply.text.strip():
                return None
            return RowError(ErrorType.EMPTY_RESPONSE, "the reply is empty")


def parsed(text: str) -> tuple[str, JSONValue]:
    """The compact text and the value of bare JSON, or of one fenced block around it, and nothing
    else: nothing is invented out of prose. Raises ValueError for anything else, also for NaN,
    repeated keys and lone surrogates."""
    fenced = _FENCE.match(text)
    bare = fenced.group(1) if fenced else text
    try:
        value = _validate_decode(bare)
        encoded = _encode(value)
        encoded.encode()
    except UnicodeEncodeError:
        raise ValueError("a text holds a lone surrogate, which is no character") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return encoded, value


_validate_decode = json.JSONDecoder(
    parse_constant=refuse_constant, object_pairs_hook=unique_keys
).decode


def _described(error: ValidationError) -> str:
    """An error, with the place in the reply where it is, as in JSONPath: `tags[1].name`, `['two
    words']`. The validator's own words, but for an enum, of which it names two values only: a
    model needs them all."""
    place = ""
    for part in error.instance_path:
        if isinstance(part, int):
            place += f"[{part}]"
        elif _PLAIN_KEY.match(part):
            place += f".{part}"
        else:
            escaped = part.replace("\\", "\\\\").replace("'", "\\'")
            place += f"['{escaped}']"
    words = error.message
    if error.kind.name == "enum":
        words = (
            f"{_encode(error.instance)} is not one of {', '.join(map(_encode, error.kind.value))}"
        )
    elif words == GAVE_UP or type(error.kind).__name__ == "BacktrackLimitExceeded":
        pattern = ".".join(map(str, error.schema_path))
        words = (
            f"matching {pattern} of output_schema was given up after going back "
            f"{BACKTRACK_LIMIT:,} times, or fewer in a long text; write the pattern without a "
            "repetition inside a repetition or a look-around"
        )
    if len(words) <= MOST_CHARACTERS:
        short = words
    else:
        short = f"{words[:MOST_CHARACTERS]}…"
    return f"{place.removeprefix('.') or 'the reply'}: {short}"


_PART = re.compile(r'(?:"(?:[^"\\]|\\.)*"|(?!; ).)+', re.DOTALL)
"""A problem in the message of a stored error: they are parted by `; `, which may stand in a quoted
value, too."""


def stored_failure(kind: ErrorType, message: str, checks: Sequence[Check]) -> RowError:
    """The error of a stored attempt. The messages of its stage's `checks` are what may hold `; `
    without quotes."""
    known = "|".join(
        re.escape(one.message) for one in sorted(checks, key=lambda one: -len(one.message))
    )
    parts: tuple[str, ...] = ()
    if kind is ErrorType.CHECK_FAILED and known:
        parts = tuple(
            re.findall(rf"(?:{known})(?: \(.*?\))?(?=; (?:{known})|\Z)", message, re.DOTALL)
        )
    return RowError(kind, message, parts=parts if "; ".join(parts) == message else ())


def repair_request(request: Request, reply: Reply, error: RowError, *, wants_json: bool) -> Request:
    """Asks again, quoting what was wrong. Holds only the original and the last reply, however
    often it is used."""
    wrong = complaint(error, wants_json=wants_json)
    said = "\n\n".join((reply.text, *reply.others))
    messages = (*request.messages, Message("assistant", said), Message("user", wrong))
    return Request(messages, request.schema, request.params, session=reply.session)


def complaint(error: RowError, *, wants_json: bool) -> str:
    """What a re-ask says of the last reply, which had this error."""
    parts = error.parts or tuple(map(str.strip, _PART.findall(error.message)))
    if error.type is ErrorType.CHECK_FAILED:
        form = "is not right"
    else:
        form = "does not have the form that was asked for"
    return (
        f"Your reply {form}. What is wrong:\n- "
        + "\n- ".join(parts)
        + ("\nReply again with the corrected JSON only." if wants_json else "\nReply again.")
    )

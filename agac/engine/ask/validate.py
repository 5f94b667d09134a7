"""Decides whether a reply is a result: complete, not refused, and of the requested shape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from agac.core.errors import ErrorType, RowError, UsageError
from agac.core.json_text import json_encoder, refuse_constant, unique_keys
from agac.core.keys import canonical
from agac.core.text import quoted_beginning
from agac.core.types import Finish, JSONValue, Message, Reply, Request, Usage
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


MAX_ERRORS = 5
"""Validation errors that are quoted: to a model in a re-ask, to the user in the row's error."""

MOST_CHARACTERS = 300
"""How much of each of these errors is quoted."""
_FENCE = re.compile(r"\A\s*```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```\s*\Z", re.DOTALL)
_PLAIN_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_encode = json_encoder(allow_nan=False)


class ValidReply(NamedTuple):
    """A reply that is a result."""

    text: str
    """The result as JSON."""
    value: JSONValue
    """The result as a value."""
    mended: bool = False
    """True if its JSON had to be mended."""
    misformatted: bool = False
    """True if a text in it lacks the `format` that the schema asks for."""


class ResultChecks:
    """The `checks` of one stage, compiled once for many rows."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._name = stage_of(stage.name)
        integers = integers_of({self._name: stage.schema}, [self._name])
        self._tests = [
            (Evaluator(check.guard, stages=stage.ancestors, integers=integers), check.message)
            for check in stage.checks
        ]

    def error(self, view: RowView, value: JSONValue) -> RowError | None:
        """Returns what is wrong with a result of the row that has this `view`, or None if every
        check holds."""
        seen = {**view.guard_values(self._stage), self._name: value}
        problems = list[str]()
        for test, message in self._tests:
            try:
                if not test.test(seen):
                    problems.append(message)
            except GuardFailed as failed:
                problems.append(f"{message} ({failed})")
        if problems:
            return RowError.listing(ErrorType.CHECK_FAILED, problems)
        return None


def is_of_row(stage: Stage, error: RowError) -> bool:
    """True if the error of a task is of its row alone: of checks that look at more than the
    result."""
    if error.type is not ErrorType.CHECK_FAILED:
        return False
    of_result = {stage_of(stage.name), VARS}
    return not of_result.issuperset(name for check in stage.checks for name in check.guard.names)


def checks_of(stages: Iterable[Stage]) -> dict[int, ResultChecks]:
    """Compiles the checks of those stages that have some, by their positions."""
    return {stage.index: ResultChecks(stage) for stage in stages if stage.checks}


class Checker:
    """Checks the replies of one stage. Made once: building a validator costs more than using it."""

    def __init__(self, stage: PlannedStage | RecordedStage) -> None:
        self._extra: ExtraCheck | None = getattr(stage, "extra_check", None)
        self._checks = ResultChecks(stage) if stage.checks else None
        self._mends = stage.settings.json_repair
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
        except ValueError as error:
            # what loading has refused may still be in a run that an older agac recorded
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
        """Returns the result that a reply is, or why it is none. `enforced`: the provider held it
        to the schema, so that asking again cannot mend what fails by `format` alone. The stage's
        checks are of the row of this `view`."""
        unusable = _unusable(reply)
        if unusable is not None:
            return unusable
        if reply.others:
            result = self._only_valid((reply.text, *reply.others), enforced=enforced)
        else:
            result = self._read(reply.text, enforced=enforced)
            if isinstance(result, RowError):
                result = self._mended(reply.text) or result
        if self._checks is None or view is None or isinstance(result, RowError):
            return result
        return self._checks.error(view, result.value) or result

    def kept(self, value: JSONValue, view: RowView | None = None) -> str | None:
        """Returns the text of a result from another place as the store has it, or None if this
        stage would not take it as a reply."""
        checked = self.check_value(value, view)
        return checked.text if isinstance(checked, ValidReply) else None

    def check_value(self, value: JSONValue, view: RowView | None) -> ValidReply | RowError:
        """Returns the result that a value is, or why the stage would not take it as its reply."""
        text = value
        form = "a text that is not empty"
        if self._wants_json:
            text = json.dumps(value, ensure_ascii=False)
        elif self._field is not None:
            text = None
            if isinstance(value, dict) and len(value) == 1:
                text = value.get(self._field)
            form = f"an object with the one field {self._field!r}, a text"
        if isinstance(text, str):
            return self.check(Reply(text, Finish.STOP, Usage(), ""), view=view)
        return RowError(ErrorType.SCHEMA_MISMATCH, f"the value is not {form}")

    def _validator(self, text: str, *, formats: bool = True) -> Draft202012Validator:
        """Returns the validator for a reply. If patterns may go back, it is one for replies of
        about its length with about as many texts."""
        assert self._schema is not None
        length = texts = 0
        if self._goes_back:
            length = len(text).bit_length()
            texts = (text.count('"') // 2).bit_length()
        key = formats, length, texts
        if key not in self._validators:
            self._validators[key] = compiled(
                self._schema.body, formats=formats, size=1 << length, texts=1 << texts
            )
        return self._validators[key]

    def _read(self, text: str, *, enforced: bool) -> ValidReply | RowError:
        """Reads the result in a message: of a stage without a schema the text as it came, or
        trimmed in an object with one field."""
        if not self._wants_json:
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
        if not problems:
            return self._valid(encoded, value)
        if enforced and not self._problems(text, value, formats=False):
            return self._valid(encoded, value, misformatted=True)
        return RowError.listing(ErrorType.SCHEMA_MISMATCH, problems)

    def _valid(self, text: str, value: JSONValue, **how: bool) -> ValidReply:
        """Makes the result that a valid value is, with 2 for a 2.0 where the schema says
        integer."""
        whole = value if self._schema is None else self._whole_numbers.of(value)
        return ValidReply(text if whole is value else _encode(whole), whole, **how)

    def _only_valid(self, texts: tuple[str, ...], *, enforced: bool) -> ValidReply | RowError:
        """Returns the one of several messages that is valid. The same one twice is one. Mended ones
        count only if none is valid as it is: mending makes an answer even of a message that was
        cut. Without a schema every text is valid, so that two that differ are never an answer:
        OpenAI's SDK joins them (`output_text`), but if the model began again that is half an answer
        before the whole one."""
        read = [self._read(text, enforced=enforced) for text in texts]
        valid = [result for result in read if isinstance(result, ValidReply)]
        if not valid:
            valid = [result for result in map(self._mended, texts) if result is not None]
        if len(valid) > 1 and len({canonical(result.value) for result in valid}) > 1:
            many = f"the reply holds {len(valid)} messages that are valid and differ"
            return RowError(ErrorType.SCHEMA_MISMATCH, f"{many}; nobody knows which one is meant")
        if valid:
            return valid[0]
        problems = (
            f"message {number}: {error.message}"
            for number, error in enumerate(read, 1)
            if isinstance(error, RowError)
        )
        return RowError.listing(ErrorType.SCHEMA_MISMATCH, problems)

    def _mended(self, text: str) -> ValidReply | None:
        """Reads what was surely meant as JSON and can be mended, if it is then valid; `json_repair`
        asks for it."""
        if not self._mends or not self._wants_json:
            return None
        mended = mended_json(text)
        if mended is None:
            return None
        try:
            encoded, value = parsed(mended)
        except ValueError:
            return None
        if self._problems(mended, value):
            return None
        return self._valid(encoded, value, mended=True)

    def _problems(self, text: str, value: JSONValue, *, formats: bool = True) -> list[str]:
        """Returns what is wrong with a value by the schema, with its `format`s or without."""
        if self._schema is None:
            return []
        try:
            if self._cost.visits * text.count(",") > MAX_WORK:
                return [_TOO_MANY_VALUES]
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


_TOO_MANY_VALUES = (
    "the reply cannot be checked: it has too many values for a schema with so many alternatives"
)


def _unusable(reply: Reply) -> RowError | None:
    """Returns the error of a reply that was cut, refused, filtered or is empty: it never becomes a
    result."""
    match reply.finish:
        case Finish.LENGTH:
            message = "the reply was cut at the limit of tokens; raise max_tokens or ask for less"
            return RowError(ErrorType.TRUNCATED, message, reply.text)
        case Finish.REFUSAL:
            reason = reply.refusal or reply.text or "without a reason"
            return RowError(ErrorType.REFUSED, f"the model refused: {reason}")
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
    """Returns the compact text and the value of bare JSON, or of one fenced block around it.
    Nothing is invented out of prose. Raises ValueError for anything else, also for NaN, repeated
    keys and lone surrogates."""
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
    """Describes an error, with its path in the reply as in JSONPath: `tags[1].name`, `['two
    words']`. The words are the validator's own, except for an enum, of which it names two values
    only: a model needs them all."""
    path = ""
    for part in error.instance_path:
        if isinstance(part, int):
            path += f"[{part}]"
        elif _PLAIN_KEY.match(part):
            path += f".{part}"
        else:
            escaped = part.replace("\\", "\\\\").replace("'", "\\'")
            path += f"['{escaped}']"
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
    if len(words) > MOST_CHARACTERS:
        words = f"{words[:MOST_CHARACTERS]}…"
    return f"{path.removeprefix('.') or 'the reply'}: {words}"


_PART = re.compile(r'(?:"(?:[^"\\]|\\.)*"|(?!; ).)+', re.DOTALL)
"""A problem in the message of a stored error. Problems are separated by `; `, which may be in a
quoted value, too."""


def stored_failure(kind: ErrorType, message: str, checks: Sequence[Check]) -> RowError:
    """Makes the error of a stored attempt, with its parts. Only the messages of its stage's
    `checks` may hold `; ` without quotes."""
    by_length = sorted((check.message for check in checks), key=len, reverse=True)
    any_message = "|".join(map(re.escape, by_length))
    parts: tuple[str, ...] = ()
    if kind is ErrorType.CHECK_FAILED and any_message:
        pattern = rf"(?:{any_message})(?: \(.*?\))?(?=; (?:{any_message})|\Z)"
        parts = tuple(re.findall(pattern, message, re.DOTALL))
    return RowError(kind, message, parts=parts if "; ".join(parts) == message else ())


def repair_request(request: Request, reply: Reply, error: RowError, *, wants_json: bool) -> Request:
    """Makes a request that asks again and quotes what was wrong. It holds only the original and the
    last reply, however often that was asked again."""
    wrong = complaint(error, wants_json=wants_json)
    quoted = "\n\n".join((reply.text, *reply.others))
    messages = (*request.messages, Message("assistant", quoted), Message("user", wrong))
    return Request(messages, request.schema, request.params, session=reply.session)


def complaint(error: RowError, *, wants_json: bool) -> str:
    """Says in a re-ask what is wrong with the last reply, which had this error."""
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

"""Whether a reply is a result: complete, not refused, and of the requested shape; near-JSON is
repaired if enabled."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, SupportsIndex

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


# Replies that are almost JSON, written as what they were surely meant to be: `json_repair: true`.

_BLOCK = re.compile(r"```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```", re.DOTALL)
_OPEN_FENCE = re.compile(r"\A```(?:json|JSON)?[ \t]*\r?\n")
_decode = json.JSONDecoder().raw_decode


MAX_READS = 1_000_000
"""Characters that the repair may read, which takes about 0.5 s. A sound guess reads each one a few
times; on some texts the library reads the rest again for each quote."""


class _TooManyReads(Exception):
    """The repair of a reply was given up."""


class _CountedText(str):
    """A text that can be read MAX_READS times, counted in `reads` together with the texts that are
    cut out of it."""

    __slots__ = ("reads",)
    reads: list[int]

    def __new__(cls, text: str, reads: list[int]) -> _CountedText:
        counted = super().__new__(cls, text)
        counted.reads = reads
        return counted

    def __getitem__(self, place: SupportsIndex | slice) -> str:
        part = super().__getitem__(place)
        self.reads[0] += len(part)
        if self.reads[0] > MAX_READS:
            raise _TooManyReads
        if isinstance(place, slice):
            return _CountedText(part, self.reads)
        return part

    def __add__(self, other: str) -> str:
        return _CountedText(super().__add__(other), self.reads)


def mended_json(text: str) -> str | None:
    """The object or array that `text` is, as JSON: a comma too many, other quotes, a missing end,
    comments. None when it does not begin as JSON does, alone or as the one fenced block, and when
    the value would lack something that the reply says, or say more than it: nothing is made out of
    prose, filled in or left out. None also where the repair would take too long. Needs the package
    json-repair."""
    bare = text.strip()
    if not bare.startswith(("{", "[")):
        blocks: list[str] = _BLOCK.findall(bare) or [_OPEN_FENCE.sub("", bare)]
        bare = blocks[0].strip() if len(blocks) == 1 else ""
    if not bare.startswith(("{", "[")):
        return None
    try:
        try:
            _, end = _decode(bare)
        except json.JSONDecodeError:
            return _repaired(bare)
    except (ValueError, RecursionError, _TooManyReads):
        return None
    return bare[:end] if _is_only_marks(bare, end) else None


def _repaired(bare: str) -> str | None:
    """What the library reads, as JSON, if it is all that the reply says. Raises ValueError,
    RecursionError and _TooManyReads."""
    from json_repair import loads

    value = loads(_CountedText(bare, [0]), skip_json_loads=True, strict=True)
    if not value or not isinstance(value, dict if bare.startswith("{") else list):
        return None
    if not _is_all_of(_CountedText(bare, [0]), value):
        return None
    # escaped, so that the two halves of a character outside of 16 bits become one
    return json.dumps(value, allow_nan=False)


# Whether a mended value is what the reply says. The library leaves out what it cannot place (`5
# 000` is 5 to it), moves what it cannot nest, and guesses where a text ends. So the brackets, keys,
# texts, numbers and empty lists of the value are looked for in the reply, one after the other.
# Between two of them only other marks of JSON and comments may be.

_MARKS = frozenset(",:;\"'\u201c\u201d\\")
_CLOSING = frozenset("}]")
_QUOTES = frozenset("\"'\u201c\u201d")
_CURLY = frozenset("\u201c\u201d")
_COMMENT = re.compile(r"/\*.*?\*/|(?<=[\s{}\[\],\"'])(?://|#(?=\s))[^\n]*\n", re.DOTALL)
"""Without one that has no end, as a text without quotes may look like it: `#1` or `http://…`."""

_EMPTY = re.compile(r"\[\s*(?:\]|\Z)|\{\s*(?:\}|\Z)")
_SIGNS = {
    "{": re.compile(r"\{"),
    "}": re.compile(r"\}"),
    "[": re.compile(r"\[(?!\s*[,;])"),
    "]": re.compile(r"\]"),
    ",": re.compile(r"[,;](?!\s*[,;])"),
}
"""The signs of a value in a reply: no item of a list is missing after them."""

_NUMBER = re.compile(
    r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.(?:[0-9]+|(?!\Z)))?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?![\w.\"'\u201c\u201d\\])"
)
_WORDS = {
    word: re.compile(rf"(?:{spellings})(?![\w\"'\u201c\u201d\\])", re.IGNORECASE)
    for word, spellings in ((True, "true"), (False, "false"), (None, "null|none"))
}
_NOT_VALUES = re.compile(r"[+-]?(?:nan|inf(?:inity)?)|undefined|nil|nat", re.IGNORECASE)
"""What programs write where there is no value. The library takes one without quotes for a text."""

_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([nrtbf])|([\"'\\/]))")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f"}
_ESCAPED = re.compile(r"\\.", re.DOTALL)


class _Sign(NamedTuple):
    """A bracket of a value, or what parts two items of a list."""

    char: str
    """`{`, `}`, `[`, `]` or `,`."""


def _is_all_of(reply: str, value: JSONValue) -> bool:
    """Whether the reply says this value and nothing more. At its end brackets may be missing or
    too many. Raises _TooManyReads."""
    at = 0
    parts = _parts(value)
    for part in parts:
        end = _end_of_part(reply, at, part)
        if end is None:
            is_end = all(map(_closes, (part, *parts)))
            # after a comma more would come
            return is_end and "," not in reply[at:] and _is_only_marks(reply, at)
        at = end
    return _is_only_marks(reply, at)


def _closes(part: JSONValue | _Sign) -> bool:
    return isinstance(part, _Sign) and part.char in _CLOSING


def _parts(value: JSONValue) -> Iterator[JSONValue | _Sign]:
    """The brackets, keys, texts, numbers, words and empty lists and objects of a value, in their
    order."""
    if isinstance(value, dict) and value:
        yield _Sign("{")
        for key, inner in value.items():
            yield key
            yield from _parts(inner)
        yield _Sign("}")
    elif isinstance(value, list) and value:
        yield _Sign("[")
        for index, inner in enumerate(value):
            if index:
                yield _Sign(",")
            yield from _parts(inner)
        yield _Sign("]")
    else:
        yield value


def _end_of_part(reply: str, at: int, part: JSONValue | _Sign) -> int | None:
    """Where a part ends that comes next in the reply; None where another thing comes next."""
    start = at
    while True:
        if isinstance(part, _Sign):
            end = _end_of_sign(reply, at, part)
        else:
            end = _end_of_match(reply, at, part)
        if end is not None:
            return end
        after = _after_mark(reply, at)
        if after is None or (reply[at] in ",;" and part == _Sign(",")):
            if part == _Sign(",") and _is_parted(reply, start, at):
                return start
            return None
        at = after


def _end_of_sign(reply: str, at: int, sign: _Sign) -> int | None:
    """Where the sign ends that is at this place; None where another thing is."""
    match = _SIGNS[sign.char].match(reply, at)
    return match.end() if match else None


def _is_parted(reply: str, end: int, begin: int) -> bool:
    """Whether a bracket parts two items of a list: the first ends, or the second begins, with
    one."""
    return reply[end - 1 : end] in _CLOSING or reply[begin : begin + 1] in ("{", "[")


def _end_of_match(reply: str, at: int, leaf: JSONValue) -> int | None:
    """Where the key, text, number, word or empty list ends that begins at this place; None where
    none does."""
    if isinstance(leaf, dict | list):
        empty = _EMPTY.match(reply, at)
        if empty and empty[0].startswith("{" if isinstance(leaf, dict) else "["):
            return empty.end()
        return None
    if isinstance(leaf, str):
        return _end_of_text(reply, at, leaf)
    if leaf is None or isinstance(leaf, bool):
        word = _WORDS[leaf].match(reply, at)
        return word.end() if word else None
    number = _NUMBER.match(reply, at)
    if number is None or _goes_on_with(reply, at):
        return None
    is_whole = number[0].lstrip("+-").isdigit()
    value = int(number[0]) if is_whole else float(number[0])
    return number.end() if value == leaf else None


def _goes_on_with(reply: str, at: int) -> bool:
    """Whether only white space is between the digits that begin here and digits before: `1 200` is
    one number."""
    before = at - 1
    while before >= 0 and reply[before].isspace():
        before -= 1
    return 0 <= before < at and (reply[before].isdecimal() or reply[before] == ".")


def _end_of_text(reply: str, at: int, text: str) -> int | None:
    """Where a key or text ends that begins at this place, with its closing quote. None where
    another thing begins, where a quote is not closed, and where nobody knows whether one in the
    text ends it."""
    if not text:
        if reply[at : at + 1] in _QUOTES and reply[at + 1 : at + 2] in _QUOTES:
            return at + 2
        return None
    end = _end_of_characters(reply, at, text)
    if end is None:
        return None
    quote = reply[at - 1 : at]
    if quote not in _QUOTES:
        if end == len(reply) or _NOT_VALUES.fullmatch(text):
            return None
        return end
    is_closed = reply[end : end + 1] in _QUOTES
    if is_closed and _quotes_in_pairs(reply[at:end], quote):
        return end + 1
    return None


def _end_of_characters(reply: str, at: int, text: str) -> int | None:
    """Where the characters of a text end that begin at this place, whatever their escapes; quotes
    and backslashes among them that the library left out do not count."""
    if reply.startswith(text, at):
        return at + len(text)
    start = at
    for char in text:
        piece, end = _character(reply, at)
        while piece != char and at > start and (piece in _QUOTES or piece == "\\"):
            at = end
            piece, end = _character(reply, at)
        if piece != char:
            return None
        at = end
    return at


def _quotes_in_pairs(text: str, quote: str) -> bool:
    """Whether the quotes in a text, of the kind around it, open and close in turn: `he said "hi"
    to me`. One that closes first, as in `x" or "y`, may be where the text ends."""
    plain = f" {_ESCAPED.sub('xx', text)} "
    same = "[\u201c\u201d]" if quote in _CURLY else quote
    is_open = False
    for match in re.finditer(same, plain):
        before = plain[match.start() - 1]
        after = plain[match.end()]
        if match[0] == "'" and before.isalpha() and after.isalpha():  # an apostrophe
            continue
        outside, inside = (after, before) if is_open else (before, after)
        if outside.isalnum() or inside.isspace():
            return False
        is_open = not is_open
    return not is_open


def _character(reply: str, at: int) -> tuple[str, int]:
    """The character at a place, with its escape read, and where the next one is; "" at the end."""
    escape = _ESCAPE.match(reply, at) if reply[at : at + 1] == "\\" else None
    if escape is None:
        return reply[at : at + 1], at + 1
    four, two, control, itself = escape.groups()
    code = four or two
    return chr(int(code, 16)) if code else _CONTROLS.get(control, itself), escape.end()


def _after_mark(reply: str, at: int) -> int | None:
    """The place after a mark of JSON that is no bracket, white space or a comment; None where
    another thing is, or the end."""
    char = reply[at : at + 1]
    if char in _MARKS or char.isspace():
        return at + 1
    comment = _COMMENT.match(reply, at)
    return comment.end() if comment else None


def _is_only_marks(reply: str, at: int) -> bool:
    """Whether no letter, digit, sign or opening bracket comes after this place, outside of
    comments."""
    while at < len(reply):
        after = at + 1 if reply[at] in _CLOSING else _after_mark(reply, at)
        if after is None:
            return False
        at = after
    return True


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

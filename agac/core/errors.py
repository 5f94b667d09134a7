"""Every error that agac raises on purpose, its exit code, and suggestions for a name or a package that is not there."""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import IntEnum, StrEnum
from functools import lru_cache
from itertools import islice
from typing import ClassVar, Literal, NamedTuple

# AgacError                    exit 1   something failed; says where, what, remedy
# ├── UsageError               exit 2   a command was used wrongly
# │   └── SpecError            exit 2   files of the project have problems: all of them at once
# ├── StoreError               exit 1   the database cannot be used
# │   ├── StoreTooNew          exit 1   written by a newer agac; never touched
# │   ├── StoreOutdated        exit 1   a reading command met an older database
# │   ├── StoreCorrupt         exit 1   damaged file
# │   └── LeaseHeld            exit 1   another process works on this workflow
# └── LeaseLost                exit 1   another process took the workflow over while we slept
#
# A failure of one row is no exception: it is a `RowError` value, named by `ErrorType`.


class ExitCode(IntEnum):
    """What the process says when it ends."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    ROWS_FAILED = 3
    LIMIT = 4
    NOT_READY = 75
    INTERRUPTED = 130


class ErrorType(StrEnum):
    """The names of row errors: the same in envelopes, tables, filters and docs."""

    MISSING_TEMPLATE_FIELD = "MissingTemplateField"
    MISSING_RESULT_FIELD = "MissingResultField"
    EMPTY_PROMPT = "EmptyPrompt"
    MISSING_ID_FIELD = "MissingIdField"
    DUPLICATE_ID = "DuplicateId"
    INVALID_ROW = "InvalidRow"
    PROVIDER_ERROR = "ProviderError"
    RATE_LIMITED = "RateLimited"
    TIMEOUT = "Timeout"
    TRUNCATED = "Truncated"
    REFUSED = "Refused"
    FILTERED = "Filtered"
    EMPTY_RESPONSE = "EmptyResponse"
    REPLY_TOO_LARGE = "ReplyTooLarge"
    INVALID_JSON = "InvalidJSON"
    SCHEMA_MISMATCH = "SchemaMismatch"
    CHECK_FAILED = "CheckFailed"
    NO_CONSENSUS = "NoConsensus"
    BATCH_LOST = "BatchLost"
    BUDGET_EXCEEDED = "BudgetExceeded"
    GUARD_ERROR = "GuardError"
    PYTHON_ERROR = "PythonError"
    TOOL_LOOP_LIMIT = "ToolLoopLimit"
    TOOL_SERVER_ERROR = "ToolServerError"
    TOOL_OUTCOME_UNKNOWN = "ToolOutcomeUnknown"
    REJECTED = "Rejected"
    WORKER_LOST = "WorkerLost"


ANSWER_FAILURES = frozenset({
    ErrorType.REFUSED, ErrorType.FILTERED, ErrorType.TRUNCATED, ErrorType.EMPTY_RESPONSE, ErrorType.REPLY_TOO_LARGE,
    ErrorType.SCHEMA_MISMATCH, ErrorType.CHECK_FAILED, ErrorType.TOOL_LOOP_LIMIT, ErrorType.NO_CONSENSUS,
})  # fmt: skip
"""Failures of the answer itself: paid for, and likely to come again, so only tried in two further runs."""

REPAIRED = frozenset(
    {ErrorType.SCHEMA_MISMATCH, ErrorType.CHECK_FAILED}
)  # those that are quoted in a re-ask


class AgacError(Exception):
    """A failure that a user can understand: `message` says where and what, `remedy` what to do."""

    exit_code: ExitCode = ExitCode.FAILED

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        if remedy is not None:
            self.add_note(remedy)  # for programs and notebooks, which show a traceback


class UsageError(AgacError):
    """A command was given something it cannot work with."""

    exit_code = ExitCode.USAGE


Path_ = tuple[str | int, ...]


def key_path(path: Path_) -> str:
    """`("stages", 1, "prompt")` as users read it: `stages[1].prompt`."""
    shown = ""
    for part in path:
        shown += f"[{part}]" if isinstance(part, int) else f".{part}" if shown else part
    return shown


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file of the project. `file` is relative to the project root; lines and columns from 1; `path` is the
    key within the file (`stages[1].prompt`), empty when the whole file is meant, or a line of a text."""

    file: str
    line: int | None = None
    column: int | None = None
    path: str = ""

    def __str__(self) -> str:
        return ":".join(
            str(part) for part in (self.file, self.line, self.column) if part is not None
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with the project's files: where, what, and what to write instead."""

    JSON_KEYS: ClassVar = ("**where", "severity", "message")

    where: Where
    message: str
    severity: Literal["error", "warning"] = "error"

    @property
    def path(self) -> str:
        """The key within the file."""
        return self.where.path

    def __str__(self) -> str:
        mark = "warning: " if self.severity == "warning" else ""
        what = f"{self.path}: {self.message}" if self.path else self.message
        return f"{self.where}: {mark}{what}"


def any_error(problems: Iterable[Problem]) -> bool:
    """Whether one of the problems is more than a warning."""
    return any(problem.severity == "error" for problem in problems)


class SpecError(UsageError):
    """The project's files have problems; `problems` holds every one that was found, in file order."""

    def __init__(self, problems: list[Problem]) -> None:
        errors = sum(problem.severity == "error" for problem in problems)
        super().__init__(f"{errors} {'problem' if errors == 1 else 'problems'} found")
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([f"{self.message}:", *(f"  {one}" for one in self.problems)])


class StoreError(AgacError):
    """The database cannot be opened, read or written."""


class StoreTooNew(StoreError):
    """The database was written by a newer agac than this one."""


class StoreOutdated(StoreError):
    """A command that only reads met a database that needs a migration first, or one is too old to be migrated."""


class StoreCorrupt(StoreError):
    """SQLite says that the file is damaged."""


class TookTooLong(StoreError):
    """A look at the database took longer than it may, and was cut."""


class LeaseHeld(StoreError):
    """Another live process works on the same workflow."""


class LeaseLost(AgacError):
    """Our lease was taken over; nothing was written after that."""


@dataclass(frozen=True, slots=True)
class RowError:
    """Why one row failed, as in its envelope. `detail` is for a closer look: a traceback, or a reply that was cut.
    `parts` are the problems that the message lists; one that was read from the store has none."""

    type: ErrorType
    message: str
    detail: str = field(default="", compare=False)
    parts: tuple[str, ...] = field(default=(), compare=False, repr=False)

    def __post_init__(self) -> None:
        # Messages quote providers and inputs; a lone surrogate in one of them is text that no store can hold.
        object.__setattr__(self, "message", storable(self.message))
        if self.detail:
            object.__setattr__(self, "detail", storable(self.detail))

    @staticmethod
    def listing(kind: ErrorType, parts: Iterable[str]) -> RowError:
        """The error with these problems."""
        listed = tuple(parts)
        return RowError(kind, "; ".join(listed), parts=listed)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


def storable(text: str) -> str:
    """`text` with a replacement character for each lone surrogate, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


# Words for names that do not exist: what was probably meant, or what there is.

MAX_LISTED = 60

MAX_COMPARED = 100
"""With as many known names a name is compared, which takes a millisecond. Of more, it is compared with those that
differ by one typing error; if there are none, with the first ones that begin alike and are about as long. A file may
have thousands of names, and thousands of typing errors."""

MAX_NAME = 200  # characters of a name for which a like one is looked for: to compare texts takes their lengths squared
_LENGTHS_APART = 3
_MAX_LETTERS = 64
_MAX_MISSPELT = 60  # characters of a name of which each is tried as another one


def nearest(
    name: str, known: Iterable[str], cutoff: float = 0.6, among: Collection[str] | None = None
) -> str | None:
    """The known name that `name` was probably meant to be, in any case. `cutoff`: how alike at least, up to 1. `among`
    are those of the known names that count; None: all. For many names it is fast if `known` is always the same."""
    if len(name) > MAX_NAME:
        return None
    every = tuple(known)
    if len(every) <= MAX_COMPARED:
        compared = [one for one in every if among is None or one in among]
    else:
        compared = _likely(name.casefold(), every, among)
    candidates: dict[str, str] = {}
    for one in compared:
        candidates.setdefault(one.casefold(), one)
    found = get_close_matches(name.casefold(), candidates, n=1, cutoff=cutoff)
    return candidates[found[0]] if found else None


def _likely(name: str, known: tuple[str, ...], among: Collection[str] | None) -> list[str]:
    """Those of many known names with which a folded name is compared."""
    for search in (_one_error_apart, _begin_alike):
        counting = (one for one in search(name, known) if among is None or one in among)
        if likely := list(islice(counting, MAX_COMPARED)):
            return likely
    return []


@lru_cache(maxsize=256)
def _one_error_apart(name: str, known: tuple[str, ...]) -> list[str]:
    """The known names that differ from a folded name by one typing error."""
    folded = _by_folded(known)
    return [one for text in _misspelt(name, known) for one in folded.get(text, ())]


def _begin_alike(name: str, known: tuple[str, ...]) -> Iterator[str]:
    """The known names that begin as a folded name does and are about as long, those of its length first."""
    alike = _by_beginning(known)
    for apart in range(_LENGTHS_APART + 1):
        for length in {len(name) - apart, len(name) + apart}:
            yield from alike.get((name[:1], length), ())


@lru_cache(maxsize=16)
def _by_beginning(known: tuple[str, ...]) -> dict[tuple[str, int], list[str]]:
    """The names by their first letter, without capitals, and their length."""
    found: dict[tuple[str, int], list[str]] = {}
    for text, names in _by_folded(known).items():
        found.setdefault((text[:1], len(text)), []).extend(names)
    return found


@lru_cache(maxsize=16)
def _by_folded(known: tuple[str, ...]) -> dict[str, list[str]]:
    """The names by what they are without capitals."""
    found: dict[str, list[str]] = {}
    for one in known:
        found.setdefault(one.casefold(), []).append(one)
    return found


@lru_cache(maxsize=16)
def _letters(known: tuple[str, ...]) -> str:
    """The characters of which the names are made, without capitals."""
    return "".join(sorted({letter for text in _by_folded(known) for letter in text})[:_MAX_LETTERS])


def _misspelt(name: str, known: tuple[str, ...]) -> Iterator[str]:
    """What `name` was meant to be if one letter of it is wrong, missing or too many, or if two are exchanged."""
    letters = _letters(known) if len(name) <= _MAX_MISSPELT else ""
    yield name
    for at in range(len(name)):
        before, after = name[:at], name[at + 1 :]
        yield before + after
        yield before + after[:1] + name[at] + after[1:]
        yield from (before + letter + after for letter in letters)
        yield from (before + letter + name[at:] for letter in letters)
    yield from (name + letter for letter in letters)


def listed(known: Iterable[str], nothing: str = "none") -> str:
    """`a, b, c`, cut after sixty."""
    names = list(known)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more if names else nothing


def sentence(hint: str) -> str:
    """A hint as a remedy: `did you mean 'prompt'?` and `write a, b` begin with a capital and have an end."""
    return f"{hint[:1].upper()}{hint[1:]}{'' if hint.endswith(('?', '.')) else '.'}"


def did_you_mean(
    name: str, known: Iterable[str], kind: str = "known", among: Collection[str] | None = None
) -> str:
    """`did you mean 'prompt'?`, or `known: a, b, c` when nothing is near; of `known` names those `among` these."""
    names = tuple(known)
    if match := nearest(name, names, among=among):
        return f"did you mean {match!r}?"
    return f"{kind}: {listed(names if among is None else among)}"


class Requirement(NamedTuple):
    """A package that agac needs: its bounds (`>=2.0`), its extra (None: the core), its installed version, if any."""

    package: str
    bounds: str = ""
    extra: str | None = None
    installed: str | None = None

    @property
    def ok(self) -> bool:
        """Whether a version within the bounds is installed."""
        written = self.bounds.rpartition("]")[2].split(
            ","
        )  # `psycopg[binary]>=3.2` needs a part of a package
        have, *bounds = map(_numbers, [self.installed or "", *written])
        above = [one.startswith(">") for one in written]
        return bool(self.installed) and (
            not self.bounds or [have >= one for one in bounds] == above
        )


def _numbers(version: str) -> list[int]:
    return [*map(int, re.findall(r"\d+", version)), 0, 0, 0][:3]


def requirements(package: str = "") -> list[Requirement]:
    """What the metadata of the installed agac names, developers' extras left out; or only this package of it."""
    from importlib.metadata import distributions  # 20 ms

    lines = next((one.requires or [] for one in distributions(name="agac")), [])
    read = (re.match(r"([\w.-]+)([^\s;]*)(?:.*extra == '([\w-]+)')?", line) for line in lines)
    found = [
        one
        for one in read
        if one and one[3] not in ("dev", "docs", "bench") and package in ("", one[1])
    ]
    versions = (next((it.version for it in distributions(name=one[1])), None) for one in found)
    return [
        Requirement(one[1], one[2], one[3], version)
        for one, version in zip(found, versions, strict=True)
    ]


def lack_of(subject: str, package: str) -> str | None:
    """Says that a package is not installed, or too old, and what installs it; None where `subject` can use it."""
    from importlib.util import find_spec

    module = package.replace("-", "_")
    if sys.modules.get(module):  # found good before
        return None
    needed = next(iter(requirements(package)), Requirement(package))
    there = find_spec(module) is not None
    if there and (needed.ok or not needed.installed):
        return None
    wanted, state = (
        package + needed.bounds,
        f"and {needed.installed} is" if there else "which is not",
    )
    return f"{subject} needs {wanted}, {state} installed: pip install '{wanted}'"

"""Defines every error that agac raises on purpose with its exit code, and suggests names and
packages for missing ones."""

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
    """The exit status of the process."""

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


ANSWER_FAILURES = frozenset(
    {
        ErrorType.REFUSED,
        ErrorType.FILTERED,
        ErrorType.TRUNCATED,
        ErrorType.EMPTY_RESPONSE,
        ErrorType.REPLY_TOO_LARGE,
        ErrorType.SCHEMA_MISMATCH,
        ErrorType.CHECK_FAILED,
        ErrorType.TOOL_LOOP_LIMIT,
        ErrorType.NO_CONSENSUS,
    }
)
"""Failures of the answer itself: paid for, and likely to come again, so only tried in two further
runs."""

REPAIRED = frozenset({ErrorType.SCHEMA_MISMATCH, ErrorType.CHECK_FAILED})
"""Failures that are quoted to the model when it is asked again."""


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
    """Writes `("stages", 1, "prompt")` as users read it: `stages[1].prompt`."""
    shown = ""
    for part in path:
        if isinstance(part, int):
            shown += f"[{part}]"
        elif shown:
            shown += f".{part}"
        else:
            shown = part
    return shown


@dataclass(frozen=True, slots=True)
class Where:
    """A place in a file of the project."""

    file: str
    """The file, relative to the project's root."""
    line: int | None = None
    """The line, from 1."""
    column: int | None = None
    """The column, from 1."""
    path: str = ""
    """The key in the file (`stages[1].prompt`), or a line of a text; empty for the whole file."""

    def __str__(self) -> str:
        parts = (self.file, self.line, self.column)
        return ":".join(str(part) for part in parts if part is not None)


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
    """True if one of the problems is more than a warning."""
    return any(problem.severity == "error" for problem in problems)


class SpecError(UsageError):
    """The project's files have problems; `problems` holds all that were found, in file order."""

    def __init__(self, problems: list[Problem]) -> None:
        errors = sum(problem.severity == "error" for problem in problems)
        super().__init__(f"{errors} {'problem' if errors == 1 else 'problems'} found")
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join([f"{self.message}:", *(f"  {problem}" for problem in self.problems)])


class StoreError(AgacError):
    """The database cannot be opened, read or written."""


class StoreTooNew(StoreError):
    """The database was written by a newer agac than this one."""


class StoreOutdated(StoreError):
    """A reading command met a database that needs a migration first, or is too old for one."""


class StoreCorrupt(StoreError):
    """SQLite says that the file is damaged."""


class TookTooLong(StoreError):
    """A query of the database took too long, and was interrupted."""


class LeaseHeld(StoreError):
    """Another live process works on the same workflow."""


class LeaseLost(AgacError):
    """Our lease was taken over; nothing was written after that."""


@dataclass(frozen=True, slots=True)
class RowError:
    """The reason why one row failed, as in its envelope."""

    type: ErrorType
    message: str
    detail: str = field(default="", compare=False)
    """For a closer look: a traceback, or a reply that was cut."""
    parts: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """The problems that the message lists; none if the error was read from the store."""

    def __post_init__(self) -> None:
        # Messages quote providers and inputs; a lone surrogate in one of them is text that no store
        # can hold.
        object.__setattr__(self, "message", storable(self.message))
        if self.detail:
            object.__setattr__(self, "detail", storable(self.detail))

    @staticmethod
    def listing(kind: ErrorType, parts: Iterable[str]) -> RowError:
        """Makes the error that lists these problems."""
        problems = tuple(parts)
        return RowError(kind, "; ".join(problems), parts=problems)

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


def storable(text: str) -> str:
    """Replaces each lone surrogate in `text`, which UTF-8 cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


# Words for names that do not exist: what was probably meant, or which names exist.

MAX_LISTED = 60

MAX_COMPARED = 100
"""Known names with which a name is compared, which takes a millisecond. Of more, it is compared
with those that differ by one typing error; if there are none, with the first ones that begin alike
and are about as long. A file may have thousands of names, and thousands of typing errors."""

MAX_NAME = 200
"""Characters of a name for which a similar one is looked for: comparing texts takes their lengths
squared."""

_LENGTHS_APART = 3
_MAX_LETTERS = 64
_MAX_MISSPELT = 60
"""Characters of a name that are each tried as another one."""


def nearest(
    name: str, known: Iterable[str], cutoff: float = 0.6, among: Collection[str] | None = None
) -> str | None:
    """Finds the known name that `name` was probably meant to be, whatever its case.

    `cutoff`: how similar it is at least, up to 1. `among` are the known names that count; None:
    all. Many calls are fast if `known` is always the same."""
    if len(name) > MAX_NAME:
        return None
    every = tuple(known)
    if len(every) <= MAX_COMPARED:
        compared = [candidate for candidate in every if among is None or candidate in among]
    else:
        compared = _likely(name.casefold(), every, among)
    by_folded: dict[str, str] = {}
    for candidate in compared:
        by_folded.setdefault(candidate.casefold(), candidate)
    matches = get_close_matches(name.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[matches[0]] if matches else None


def _likely(name: str, known: tuple[str, ...], among: Collection[str] | None) -> list[str]:
    """Chooses, of many known names, those with which a folded name is compared."""
    for search in (_one_error_apart, _begin_alike):
        candidates = search(name, known)
        counting = (candidate for candidate in candidates if among is None or candidate in among)
        likely = list(islice(counting, MAX_COMPARED))
        if likely:
            return likely
    return []


@lru_cache(maxsize=256)
def _one_error_apart(name: str, known: tuple[str, ...]) -> list[str]:
    """Lists the known names that differ from a folded name by one typing error."""
    by_folded = _by_folded(known)
    return [match for text in _misspelt(name, known) for match in by_folded.get(text, ())]


def _begin_alike(name: str, known: tuple[str, ...]) -> Iterator[str]:
    """Yields the known names that begin like a folded name and are about as long, those of its
    length first."""
    by_beginning = _by_beginning(known)
    for difference in range(_LENGTHS_APART + 1):
        for length in {len(name) - difference, len(name) + difference}:
            yield from by_beginning.get((name[:1], length), ())


@lru_cache(maxsize=16)
def _by_beginning(known: tuple[str, ...]) -> dict[tuple[str, int], list[str]]:
    """Groups the names by their first letter, without capitals, and their length."""
    groups: dict[tuple[str, int], list[str]] = {}
    for text, names in _by_folded(known).items():
        groups.setdefault((text[:1], len(text)), []).extend(names)
    return groups


@lru_cache(maxsize=16)
def _by_folded(known: tuple[str, ...]) -> dict[str, list[str]]:
    """Groups the names by what they are without capitals."""
    groups: dict[str, list[str]] = {}
    for name in known:
        groups.setdefault(name.casefold(), []).append(name)
    return groups


@lru_cache(maxsize=16)
def _letters(known: tuple[str, ...]) -> str:
    """Gives the characters of which the names are made, without capitals."""
    letters = {letter for text in _by_folded(known) for letter in text}
    return "".join(sorted(letters)[:_MAX_LETTERS])


def _misspelt(name: str, known: tuple[str, ...]) -> Iterator[str]:
    """Yields what `name` may be meant to be if it has one typing error.

    A letter may be wrong, missing or too many, or two may be exchanged."""
    letters = _letters(known) if len(name) <= _MAX_MISSPELT else ""
    yield name
    for index, letter in enumerate(name):
        before = name[:index]
        after = name[index + 1 :]
        yield before + after
        yield before + after[:1] + letter + after[1:]
        yield from (before + other + after for other in letters)
        yield from (before + other + name[index:] for other in letters)
    yield from (name + letter for letter in letters)


def listed(known: Iterable[str], nothing: str = "none") -> str:
    """Lists names as `a, b, c`, cut after sixty; `nothing` if there are none."""
    names = list(known)
    if not names:
        return nothing
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def sentence(hint: str) -> str:
    """Makes a remedy of a hint such as `write a, b`: with a capital and a full stop."""
    end = "" if hint.endswith(("?", ".")) else "."
    return f"{hint[:1].upper()}{hint[1:]}{end}"


def did_you_mean(
    name: str, known: Iterable[str], kind: str = "known", among: Collection[str] | None = None
) -> str:
    """Suggests a name, as `did you mean 'prompt'?`, or lists all: `known: a, b, c`.

    `among` are those of the `known` names that count; None: all."""
    names = tuple(known)
    match = nearest(name, names, among=among)
    if match:
        return f"did you mean {match!r}?"
    return f"{kind}: {listed(names if among is None else among)}"


class Requirement(NamedTuple):
    """A package that agac needs."""

    package: str
    bounds: str = ""
    """The versions that it needs, as `>=2.0`."""
    extra: str | None = None
    """The extra that needs it; None: agac itself."""
    installed: str | None = None
    """The version that is installed, if any."""

    @property
    def ok(self) -> bool:
        """True if a version within the bounds is installed."""
        if not self.installed:
            return False
        if not self.bounds:
            return True
        # `psycopg[binary]>=3.2` needs a part of a package
        bounds = self.bounds.rpartition("]")[2].split(",")
        version = _numbers(self.installed)
        return all((version >= _numbers(bound)) == bound.startswith(">") for bound in bounds)


def _numbers(version: str) -> list[int]:
    """Gives the first three numbers of a version."""
    return [*map(int, re.findall(r"\d+", version)), 0, 0, 0][:3]


_REQUIREMENT = re.compile(r"([\w.-]+)([^\s;]*)(?:.*extra == '([\w-]+)')?")
_DEVELOPER_EXTRAS = ("dev", "docs", "bench")


def requirements(package: str = "") -> list[Requirement]:
    """Reads what the metadata of the installed agac names, or only `package` of it.

    Developers' extras are left out."""
    from importlib.metadata import distributions  # 20 ms

    agac = next(iter(distributions(name="agac")), None)
    lines = (agac.requires or []) if agac is not None else []
    needed: list[Requirement] = []
    for line in lines:
        match = _REQUIREMENT.match(line)
        if not match or match[3] in _DEVELOPER_EXTRAS or package not in ("", match[1]):
            continue
        distribution = next(iter(distributions(name=match[1])), None)
        installed = None if distribution is None else distribution.version
        needed.append(Requirement(match[1], match[2], match[3], installed))
    return needed


def lack_of(subject: str, package: str) -> str | None:
    """Says that a package is not installed, or too old, and what installs it.

    None if `subject` can use it."""
    from importlib.util import find_spec

    module = package.replace("-", "_")
    if sys.modules.get(module):  # it was good before
        return None
    needed = next(iter(requirements(package)), Requirement(package))
    exists = find_spec(module) is not None
    if exists and (needed.ok or not needed.installed):
        return None
    wanted = package + needed.bounds
    state = f"and {needed.installed} is" if exists else "which is not"
    return f"{subject} needs {wanted}, {state} installed: pip install '{wanted}'"

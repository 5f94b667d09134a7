"""What machines tell each other in a remote: records that are somebody else's data, read strictly,
and logs of them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from agac.core.errors import AgacError, LeaseHeld, LeaseLost
from agac.core.json_text import strict_json
from agac.data.object_store import ObjectStore

MAX_SMALL = 100_000
"""Bytes of an entry that only says who has something, or how it is."""

MAX_ENTRY = 8_000_000
"""Bytes of any other entry. What is longer is not read."""

_MAX_VALUES = 500_000


def _process(holder: str) -> str:
    """Checks a holder as `store.lease.this_process` names it, whose number a system call takes."""
    if int(holder.split(" ")[2]) >= 1 << 31:
        raise ValueError("the number of its process is too large")
    return holder


Line = Annotated[str, StringConstraints(max_length=1_000)]
Text = Annotated[str, StringConstraints(max_length=20_000)]
Writer = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Mark = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{1,64}$")]
ContentHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Holder = Annotated[
    str,
    StringConstraints(max_length=500, pattern=r"^[^ ]+ [^ ]+ [1-9][0-9]{0,9} [^ ]+$"),
    AfterValidator(_process),
]
Moment = Annotated[float, Field(gt=0, lt=1e11)]
"""Seconds since 1970, until the year 5138."""
Count = Annotated[int, Field(ge=0, lt=1 << 53)]
Dollars = Annotated[float, Field(ge=0, le=1e12)]


class SharedObject(BaseModel):
    """The content of an object: another writer's data."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    format: Literal[1] = 1
    writer: Writer
    """The writer of the object."""
    at: Moment
    """When it was written (seconds since 1970)."""
    holder: Holder
    mark: Mark


Shared = TypeVar("Shared", bound=SharedObject)


def read_record(kind: type[Shared], content: bytes) -> Shared:
    """Returns the content of an object. Raises ValueError, which says in one line why it is none of
    this kind."""
    strict_json(content, _MAX_VALUES)  # pydantic would take the last of two values of a key
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))[:100]
        raise ValueError(f"{place}: {first['msg']}" if place else first["msg"]) from None


def facts(value: Any) -> Any:
    """Checks a JSON value of which only numbers are known: they can be added up. Raises
    ValueError."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, list):
            waiting += one
        elif isinstance(one, str):
            if len(one) > 20_000:
                raise ValueError("a text is too long")
        elif one is not None and not -(1 << 53) < one < 1 << 53:
            raise ValueError("a number is larger than any count")
    return value


Facts = Annotated[dict[str, Any], AfterValidator(facts)]


# A log: objects with numbers without gaps, each created once and never changed. The number of the
# next one is the fence: of several who create it one is told True.

_NUMBER = re.compile(r"0[0-9]{9}")
"""No log has come to the number 1,000,000,000: what has such a name was not appended."""


def entry_name(number: int) -> str:
    """Returns the name of the entry with this number."""
    return f"{number:010d}"


def entry_numbers(names: Iterable[str]) -> set[int]:
    """Returns the numbers of a log's entries, by the names of what is in its folder."""
    return {int(name) for name in names if _NUMBER.fullmatch(name)}


async def missing_entry(
    remote: ObjectStore, log: str, numbers: set[int], after: int | None = None
) -> int | None:
    """The first number that a log lacks, which begins `after` a number or, as its oldest entries
    may have been removed, with any; None: it lacks none. Behind a gap nothing counts: whoever
    holds the log would still append into it. `numbers` are those that were listed: what was
    appended meanwhile may not be among them, and is added."""
    if not numbers:
        return None
    begin = min(numbers) if after is None else after + 1
    while len(numbers) < max(numbers) - begin + 1:
        gap = next(number for number in range(begin, max(numbers)) if number not in numbers)
        if await remote.read(f"{log}/{entry_name(gap)}", MAX_ENTRY) is None:
            return gap
        numbers.add(gap)
    return None


def gap_error(remote: ObjectStore, log: str, gap: int) -> AgacError:
    """Stops what would go on with a log that lacks an entry."""
    what = f"{remote.url}/{log} lacks the entry {entry_name(gap)}, and has later ones"
    remedy = "put it back; or move the later entries away, if agac did not write them"
    return AgacError(what, remedy=remedy)


def in_the_way(remote: ObjectStore, name: str) -> AgacError:
    """Stops what would append to a log for ever."""
    what = f"{remote.url}/{name} is there, and is no entry of its log"
    return AgacError(what, remedy="move it away, and run the same command again")


def held_error(what: str, stale_seconds: float) -> LeaseHeld:
    """Makes the error of a lease that another process holds, whose signs of life count so long."""
    after = f"{stale_seconds / 60:.0f} min after its last sign of life"
    return LeaseHeld(what, remedy=f"wait for it to end; if it is gone it is taken over {after}")


def lost_error(what: str) -> LeaseLost:
    """Makes the error of a lease that another process took over."""
    remedy = "the other one goes on with it; run the same command again later"
    return LeaseLost(what, remedy=remedy)

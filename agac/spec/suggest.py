"""Words for names that do not exist: what was probably meant, or what there is."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_LISTED = 40


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` was probably meant to be, whatever the case of its letters."""
    names = list(known)
    folded = {candidate.casefold(): candidate for candidate in reversed(names)}
    found = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def listed(known: Iterable[str], nothing: str = "none") -> str:
    """`a, b, c`, cut after forty."""
    names = list(known)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more if names else nothing


def sentence(hint: str) -> str:
    """A hint as a remedy: `did you mean 'prompt'?` and `write a, b` begin with a capital and have an end."""
    return f"{hint[:1].upper()}{hint[1:]}{'' if hint.endswith(('?', '.')) else '.'}"


def did_you_mean(name: str, known: Iterable[str], kind: str = "known") -> str:
    """`did you mean 'prompt'?`, or `known: a, b, c` when nothing is near."""
    names = list(known)
    match = nearest(name, names)
    return f"did you mean {match!r}?" if match else f"{kind}: {listed(names)}"

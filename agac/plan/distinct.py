"""How many different values there are among very many, in little memory."""

from __future__ import annotations

KEPT = 50_000
"""Values that are kept: up to so many the count is exact, beyond it is an estimate within a percent or so."""


class Distinct:
    """Counts different digests. When too many are kept, only those stay that end in one more zero bit: by chance each
    second one, so that each stands for twice as many."""

    def __init__(self) -> None:
        self._kept: set[bytes] = set()
        self._bits = 0

    def add(self, digest: bytes) -> None:
        """Adds one; digests are as good as random."""
        if int.from_bytes(digest[-4:], "big") & ((1 << self._bits) - 1):
            return
        self._kept.add(digest)
        while len(self._kept) > KEPT:
            self._bits += 1
            mask = (1 << self._bits) - 1
            self._kept = {kept for kept in self._kept if not int.from_bytes(kept[-4:], "big") & mask}

    def count(self) -> int:
        """How many different ones were added."""
        return len(self._kept) << self._bits

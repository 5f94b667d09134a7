"""What a server's headers let us send: `x-ratelimit-remaining-*` and `-reset-*`, read with care.

Some servers count in windows: when nothing is left, nothing goes until the reset. Others have a bucket that fills all
the time, and mean by the reset the moment in which it will be full; a single call goes long before. No header says
which. Two of them do: while less and less is left, a window's reset comes nearer, and a bucket's goes away.
"""

from __future__ import annotations

import math

from agac.core.types import RateState
from agac.engine.policy import LONGEST_WAIT


class Meter:
    """What is left of one thing, requests or tokens. `unit`: seconds in which a bucket gains one; 0 for a window."""

    __slots__ = ("_fullest", "unit")

    def __init__(self) -> None:
        self._fullest: tuple[int, float] | None = None
        self.unit = 0.0

    def read(self, left: int, reset: float) -> None:
        """Takes in one more header."""
        if self._fullest is None or left > self._fullest[0]:
            self._fullest = (left, reset)
            return
        gone, later = self._fullest[0] - left, reset - self._fullest[1]
        if later < 0:
            self._fullest = (left, reset)
        if gone:
            self.unit = max(later, 0.0) / gone


class Allowance:
    """How far a lane may go until the next headers come."""

    __slots__ = ("_at", "_requests", "_tokens", "_until", "ceiling")

    def __init__(self) -> None:
        self._requests, self._tokens = Meter(), Meter()
        self.ceiling: float = math.inf
        self._at = self._until = 0.0

    @property
    def refills(self) -> bool:
        """Whether requests come back one by one."""
        return self._requests.unit > 0

    def opens(self, number: int) -> float:
        """The moment from which on call `number`, one above the ceiling, may be sent."""
        unit = self._requests.unit
        return min(self._until, self._at + (number - self.ceiling) * unit) if unit else self._until

    def read(self, number: int, sent_at: float, now: float, tokens: int, rates: RateState) -> float:
        """Takes in the headers of the answer to call `number`, which needed so many tokens. Gives the moment from which
        on anything is left; one that has passed when something is.

        A header may be as old as its call. So the calls that were sent after it come off what it says is left, and once
        its reset is over it says nothing any more.
        """
        opens = 0.0
        left, reset = rates.remaining_requests, rates.reset_requests
        if left is not None and reset:
            self._requests.read(left, reset)
            if sent_at + reset > now:
                self.ceiling, self._at, self._until = number + left, sent_at, min(sent_at + reset, now + LONGEST_WAIT)
                opens = 0.0 if left else self.opens(number + 2)
        left, reset = rates.remaining_tokens, rates.reset_tokens
        if left is not None and reset:
            self._tokens.read(left, reset)
            if not left:
                opens = max(opens, sent_at + min(reset, self._tokens.unit * tokens or reset))
        return opens

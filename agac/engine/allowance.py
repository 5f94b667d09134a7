"""What a server's headers let us send: `x-ratelimit-remaining-*` and `-reset-*`, read with care.

Some servers count in windows: nothing is left until the reset. Others have a bucket that fills all the time, and mean by
the reset the moment in which it will be full; a single call is possible long before. The headers do not say which; two of
them together do: in a window the reset comes nearer while less is left, in a bucket it goes away.
"""

from __future__ import annotations

import math

from agac.core.types import RateState


class Meter:
    """What is left of one thing, requests or tokens, by the headers so far."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def used_up(self, remaining: int | None, reset: float | None) -> float:
        """Seconds, from the header on, in which a call would be refused; 0 when something is left."""
        if remaining is None or not reset:
            return 0.0
        last, self._last = self._last, (remaining, reset)
        if remaining > 0:
            return 0.0
        if last is None or last[0] <= 0 or reset <= last[1]:
            return reset
        return 2 * (reset - last[1]) / last[0]  # the time in which a bucket gains two


class Allowance:
    """How far we may go until the next header comes: `ceiling` is the number of the last call that may be sent before
    `until`, on the clock of the caller."""

    __slots__ = ("_requests", "_tokens", "ceiling", "until")

    def __init__(self) -> None:
        self._requests, self._tokens = Meter(), Meter()
        self.ceiling: float = math.inf
        self.until = 0.0

    def read(self, number: int, sent_at: float, now: float, rates: RateState) -> float:
        """Takes in the headers of the answer to call `number`. Gives the moment until which nobody may call; one that
        has passed when everybody may.

        A header may be as old as its call: the calls that were sent after it come off what it says is left, and after
        the reset it says nothing any more.
        """
        left, reset = rates.remaining_requests, rates.reset_requests
        if left is not None and reset and sent_at + reset > now:
            self.ceiling, self.until = number + left, sent_at + reset
        wait = max(self._requests.used_up(left, reset), self._tokens.used_up(rates.remaining_tokens, rates.reset_tokens))
        return sent_at + wait

"""The account: what was asked, what was charged, what was asked twice.

In memory, for one process; contents are kept as digests, so that a million requests fit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

LISTED_CONTENTS = 10_000
"""How many contents a report lists at most; the rest is counted."""


@dataclass(slots=True)
class Ledger:
    """Counts by what a provider would bill. Times are epoch seconds; contents are kept as 16-byte digests only.

    `elsewhere` says whether a content was charged in a batch, which keeps its own account.
    """

    requests: int = 0
    answered: int = 0
    charged: int = 0
    refused: int = 0
    limited: int = 0
    duplicates: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    sockets: int = 0
    in_flight: int = 0
    max_in_flight: int = 0
    first_request_at: float | None = None
    last_request_at: float | None = None
    faults: Counter[str] = field(default_factory=Counter)
    contents: dict[bytes, int] = field(default_factory=dict)
    elsewhere: Callable[[bytes], bool] = field(default=lambda digest: False)

    def receive(self, now: float) -> int:
        """A request came in: its number, from 1."""
        self.requests += 1
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        if self.first_request_at is None:
            self.first_request_at = now
        self.last_request_at = now
        return self.requests

    def release(self) -> None:
        """A request left, whatever became of it."""
        self.in_flight = max(0, self.in_flight - 1)

    def charge(self, digest: bytes, prompt_tokens: int, completion_tokens: int) -> None:
        """The model did its work: this is billed even when nobody is there to read the reply."""
        self.charged += 1
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += completion_tokens
        before = self.contents.get(digest, 0)
        self.duplicates += before > 0 or self.elsewhere(digest)
        self.contents[digest] = before + 1

    def reset(self) -> None:
        """Starts from nothing; requests that are in flight stay so."""
        open_requests = self.in_flight
        fresh = Ledger(in_flight=open_requests, max_in_flight=open_requests, elsewhere=self.elsewhere)
        for name in Ledger.__slots__:
            setattr(self, name, getattr(fresh, name))

    def report(self, *, contents: bool = False) -> dict[str, object]:
        """The account as `GET /account` shows it."""
        account: dict[str, object] = {
            "requests": self.requests,
            "answered": self.answered,
            "charged": self.charged,
            "refused": self.refused,
            "limited": self.limited,
            "duplicates": self.duplicates,
            "distinct": len(self.contents),
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "sockets": self.sockets,
            "faults": dict(sorted(self.faults.items())),
            "in_flight": self.in_flight,
            "max_in_flight": self.max_in_flight,
            "first_request_at": self.first_request_at,
            "last_request_at": self.last_request_at,
            "simulated": True,
        }
        if contents:
            listed = {digest.hex(): n for digest, n in list(self.contents.items())[:LISTED_CONTENTS]}
            account |= {"contents": listed, "contents_left_out": len(self.contents) - len(listed)}
        return account

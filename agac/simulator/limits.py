"""Time and capacity: how long a reply takes, and how many requests and tokens a minute may have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

from agac.simulator.settings import LIMIT_REMEDY, SimulatorError

FORMS = "seconds (0.5), normal:MEAN,SD, lognormal:MEDIAN,SIGMA or uniform:LOW,HIGH"
LONGEST = 3600.0
"""No reply takes longer than this many seconds, whatever the distribution says."""


@dataclass(frozen=True, slots=True)
class Latency:
    """A distribution of seconds. `constant` is set when every reply takes the same time: nothing is drawn then."""

    draw: Callable[[Random], float]
    constant: float | None = None

    def seconds(self, random: Random) -> float:
        """How long this reply takes: 0 or more."""
        return min(max(0.0, self.draw(random)), LONGEST)


def parse_latency(text: str) -> Latency:
    """Reads one of `FORMS`; raises SimulatorError with what is wrong."""
    name, _, numbers = text.strip().rpartition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        raise SimulatorError([f"latency {text!r} is none that the simulator knows; write {FORMS}"])
    match name, values:
        case "" | "constant", [seconds]:
            seconds = min(seconds, LONGEST)
            return Latency(lambda _: seconds, constant=seconds)
        case "normal", [mean, deviation]:
            return Latency(lambda random: random.normalvariate(mean, deviation))
        case "lognormal", [median, sigma] if median > 0:
            return Latency(lambda random: random.lognormvariate(math.log(median), sigma))
        case "uniform", [low, high] if low <= high:
            return Latency(lambda random: random.uniform(low, high))
        case _:
            raise SimulatorError([f"latency {text!r} does not add up; write {FORMS}"])


@dataclass(slots=True)
class Bucket:
    """`per_minute` units a minute, refilled evenly; `size` of them, by default a full minute's worth, may be taken at
    once. `now` is in seconds."""

    per_minute: int
    size: int = 0
    level: float = field(init=False)
    filled_at: float | None = None

    def __post_init__(self) -> None:
        self.size = self.size or self.per_minute
        self.level = float(self.size)

    def refill(self, now: float) -> None:
        """Adds what has come back since the last call."""
        if self.filled_at is not None:
            gained = max(0.0, now - self.filled_at) * self.per_minute / 60
            self.level = min(float(self.size), self.level + gained)
        self.filled_at = now

    def wait_for(self, amount: float) -> float:
        """Seconds until `amount` is there, 0 when it is; infinite when it never fits."""
        if amount > self.size:
            return math.inf
        missing = amount - self.level
        return 0.0 if missing < 1e-9 else missing * 60 / self.per_minute

    @property
    def remaining(self) -> int:
        """Whole units that could be taken now."""
        return max(0, int(self.level))

    @property
    def reset(self) -> float:
        """Seconds until the bucket is full again."""
        return (self.size - self.level) * 60 / self.per_minute


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that came too early: which limit said so, and how many seconds later it would fit."""

    unit: str
    limit: int
    used: int
    requested: int
    wait: float


@dataclass(slots=True)
class RateLimits:
    """Requests and tokens a minute. A refused request takes nothing."""

    requests: Bucket | None
    tokens: Bucket | None

    @staticmethod
    def of(rpm: int | None, tpm: int | None, burst: int | None = None) -> RateLimits:
        """Limits from the settings; None is no limit. `burst`: requests that may come at once."""
        return RateLimits(Bucket(rpm, burst or 0) if rpm else None, Bucket(tpm) if tpm else None)

    def take(self, tokens: int, now: float) -> Refusal | None:
        """Takes one request of `tokens`, or says why not."""
        buckets = [("requests", self.requests, 1), ("tokens", self.tokens, tokens)]
        for unit, bucket, amount in buckets:
            if bucket is None:
                continue
            bucket.refill(now)
            wait = bucket.wait_for(amount)
            if wait > 0:
                return Refusal(unit, bucket.per_minute, bucket.size - bucket.remaining, amount, wait)
        for _, bucket, amount in buckets:
            if bucket is not None:
                bucket.level -= amount
        return None

    def levels(self, now: float) -> Iterator[tuple[str, int, int, float]]:
        """Of each limit: its unit, how many a minute, how many are left, and seconds until all of them are."""
        for unit, bucket in (("requests", self.requests), ("tokens", self.tokens)):
            if bucket is not None:
                bucket.refill(now)
                yield unit, bucket.per_minute, bucket.remaining, bucket.reset

    def headers(self, now: float) -> dict[str, str]:
        """OpenAI's headers about limits; empty when there are none."""
        headers = {}
        for unit, limit, remaining, reset in self.levels(now):
            headers[f"x-ratelimit-limit-{unit}"] = str(limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(remaining)
            headers[f"x-ratelimit-reset-{unit}"] = clock_text(reset)
        return headers


LIMITS = ("rpm", "tpm", "burst")


def read_limits(body: bytes) -> RateLimits:
    """Limits from a JSON object such as `{"rpm": 600}`; raises SimulatorError with all that is wrong."""
    try:
        given = json.loads(body)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise SimulatorError(['limits are a JSON object such as {"rpm": 600, "tpm": 90000, "burst": 10}; {} lifts all'])
    problems = [f"{name!r} is no limit; known: {', '.join(LIMITS)}" for name in given if name not in LIMITS]
    for name in LIMITS:
        value = given.get(name)
        if value is not None and (type(value) is not int or value < 1):
            problems.append(f"{name} is {value!r}; {LIMIT_REMEDY}")
    if problems:
        raise SimulatorError(problems)
    return RateLimits.of(*(given.get(name) for name in LIMITS))


def clock_text(seconds: float) -> str:
    """A duration as OpenAI's headers write it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{shown}s" if minutes else f"{shown}s"

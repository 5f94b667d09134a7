"""Time and capacity: how long a reply takes, and how many requests and tokens a minute may have."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from agac.simulator.settings import LIMIT_REMEDY, SimulatorError

FORMS = "seconds (0.5), normal:MEAN,SD, lognormal:MEDIAN,SIGMA or uniform:LOW,HIGH"
LONGEST = 3600.0
"""No reply takes longer than this many seconds, whatever the distribution says."""


def parse_latency(text: str) -> Callable[[int], float]:
    """How many seconds a reply takes, drawn with its own number as the seed, as one of `FORMS` says; raises
    SimulatorError with what is wrong."""
    name, _, numbers = text.strip().rpartition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        raise SimulatorError([f"latency {text!r} is none that the simulator knows; write {FORMS}"])
    draw: Callable[..., float]
    match name, values:
        case "" | "constant", [seconds]:
            return lambda _: min(seconds, LONGEST)
        case "normal", [_, _]:
            draw = Random.normalvariate
        case "lognormal", [median, _] if median > 0:
            draw, values[0] = Random.lognormvariate, math.log(median)
        case "uniform", [low, high] if low <= high:
            draw = Random.uniform
        case _:
            raise SimulatorError([f"latency {text!r} does not add up; write {FORMS}"])
    return lambda seed: min(max(0.0, draw(Random(seed), *values)), LONGEST)  # noqa: S311 (nothing to guess)


@dataclass(slots=True)
class Bucket:
    """`per_minute` units a minute, refilled evenly, of which `size` may be taken at once. Times are in seconds."""

    unit: str
    per_minute: int
    size: int
    level: float
    filled_at: float | None = None

    def refill(self, now: float) -> None:
        """Adds what has come back since the last call."""
        if self.filled_at is not None:
            gained = max(0.0, now - self.filled_at) * self.per_minute / 60
            self.level = min(float(self.size), self.level + gained)
        self.filled_at = now

    @property
    def remaining(self) -> int:
        """Whole units that could be taken now."""
        return max(0, int(self.level))


class Refusal(NamedTuple):
    """A request that came too early: which limit said so, and how many seconds later it would fit (infinite: never)."""

    unit: str
    limit: int
    used: int
    requested: int
    wait: float


class RateLimits:
    """Requests and tokens a minute; None is no limit. `burst`: requests that may come at once, by default a minute's
    worth. A refused request takes nothing."""

    def __init__(self, rpm: int | None = None, tpm: int | None = None, burst: int | None = None) -> None:
        self._buckets = []
        for unit, per_minute, size in (("requests", rpm, burst), ("tokens", tpm, tpm)):
            if per_minute:
                size = size or per_minute
                self._buckets.append(Bucket(unit, per_minute, size, float(size)))

    def take(self, tokens: int, now: float) -> Refusal | None:
        """Takes one request of `tokens`, or says why not."""
        taken = []
        for bucket in self._buckets:
            amount = 1 if bucket.unit == "requests" else tokens
            bucket.refill(now)
            missing = amount - bucket.level
            if amount > bucket.size or missing >= 1e-9:
                wait = math.inf if amount > bucket.size else missing * 60 / bucket.per_minute
                return Refusal(bucket.unit, bucket.per_minute, bucket.size - bucket.remaining, amount, wait)
            taken.append((bucket, amount))
        for bucket, amount in taken:
            bucket.level -= amount
        return None

    def levels(self, now: float) -> Iterator[tuple[str, int, int, float]]:
        """Of each limit: its unit, how many a minute, how many are left, and seconds until all of them are."""
        for bucket in self._buckets:
            bucket.refill(now)
            reset = (bucket.size - bucket.level) * 60 / bucket.per_minute
            yield bucket.unit, bucket.per_minute, bucket.remaining, reset

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
    return RateLimits(**given)


def clock_text(seconds: float) -> str:
    """A duration as OpenAI's headers write it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{shown}s" if minutes else f"{shown}s"

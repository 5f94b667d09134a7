"""How a simulator is started: its settings, declared once for flags, help, checks and guide; latency, limits."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeGuard


class SimulatorError(Exception):
    """The simulator cannot start or continue; `problems` says each reason, with its remedy. `exit_code` is 2 for
    settings that make no sense, 1 for everything else (a port in use, a child that died)."""

    def __init__(self, problems: list[str], *, exit_code: int = 2) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.exit_code = exit_code


TOOLS_WITH_SCHEMA = ("taken", "refused", "ignored")
"""What servers do with a response format in a request with tools. Where it is ignored, a model knows only the schema
that stands in its prompt, and answers in prose where none does."""


@dataclass(frozen=True, slots=True)
class Flag:
    """How a setting is given: `kind` converts the text (a bool has none), `name` if another, bounds `least`, `most`."""

    kind: type
    help: str
    name: str = ""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None


def setting(default: Any, kind: type, help_text: str, **more: Any) -> Any:
    return field(default=default, metadata={"flag": Flag(kind, help_text, **more)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a simulator does. `latency`: see `parse_latency`; None: no limit. `state` None: a file that ends with it."""

    port: int = setting(0, int, "Port; 0: any free one.", metavar="N", least=0, most=65535)
    seed: int = setting(0, int, "The same seed and request give the same reply.", metavar="N")
    latency: str = setting(
        "0", str, "Seconds, or normal:M,SD lognormal:M,S uniform:A,B.", metavar="SECONDS"
    )
    slots: int | None = setting(
        None, int, "Requests served at once; the others wait.", metavar="N", least=1
    )
    serving: str | None = setting(
        None, str, "Time and cache as an inference engine: h100, hosted (a cache alone), or prefill=8300,step=0.033,…",
        metavar="ENGINE",
    )  # fmt: skip
    dynamo: str | None = setting(
        None, str, "Take the hints of this version of Dynamo: 1.0 to 1.6.", metavar="V"
    )
    rpm: int | None = setting(None, int, "Requests per minute before 429.", metavar="N", least=1)
    tpm: int | None = setting(None, int, "Tokens per minute before 429.", metavar="N", least=1)
    burst: int | None = setting(
        None,
        int,
        "Requests that may come at once; a minute's worth by default.",
        metavar="N",
        least=1,
    )
    batch_seconds: float = setting(
        0.0,
        float,
        "How long a batch takes from its creation; 0: no time at all.",
        metavar="S",
        least=0,
    )
    state: Path | None = setting(None, Path, "Keep batches and files here, for the next time.")  # noqa: RUF009
    websocket: bool = setting(
        True, bool, "Accept no WebSockets, as a server that speaks HTTP alone.", name="no-websocket"
    )
    tool_turns: int = setting(
        1, int, "Turns that ask for tools where a request offers some.", metavar="N", least=0
    )
    tool_calls: int = setting(1, int, "Calls in such a turn.", metavar="N", least=1)
    tools_with_schema: str = setting(
        "taken", str, "A response format beside tools: taken, refused, or ignored (the prompt alone counts).",
        metavar="HOW",
    )  # fmt: skip
    script: Path | None = setting(None, Path, "File of replies and calls to give (YAML or JSON).")  # noqa: RUF009
    faults: Path | None = setting(None, Path, "File of faults to inject (YAML or JSON).")  # noqa: RUF009

    def problems(self) -> list[str]:
        """What is wrong with the numbers, all at once; files and latency are read elsewhere."""
        found = []
        for name, flag, default in setting_flags():
            value, most = getattr(self, name), math.inf if flag.most is None else flag.most
            fits = (
                value is None
                or flag.least is None
                or (is_number(value, flag.kind) and flag.least <= value <= most)
            )
            if not fits:
                bounds = (
                    f"{flag.least} or more" if flag.most is None else f"{flag.least} to {flag.most}"
                )
                remedy = ", or leave it out for no limit" if default is None else ""
                found.append(f"{flag.name} is {value!r}; use {bounds}{remedy}")
        if self.tools_with_schema not in TOOLS_WITH_SCHEMA:
            known = ", ".join(TOOLS_WITH_SCHEMA)
            found.append(f"tools-with-schema is {self.tools_with_schema!r}; use one of {known}")
        return found

    def written(self) -> str:
        """The settings as JSON, for another process, in whatever folder that is."""
        return json.dumps(asdict(self), default=lambda path: str(path.absolute()))

    @staticmethod
    def read(written: str) -> Settings:
        """The settings that `written` gave; those left out are at their defaults."""
        given = json.loads(written)
        files = (name for name, flag, _ in setting_flags() if flag.kind is Path and given.get(name))
        return Settings(**given | {name: Path(given[name]) for name in files})


def setting_flags() -> Iterator[tuple[str, Flag, Any]]:
    for one in fields(Settings):
        if (flag := one.metadata.get("flag")) is not None:
            yield one.name, replace(flag, name=flag.name or one.name.replace("_", "-")), one.default


def is_number(value: Any, kind: type[float] = float) -> TypeGuard[float]:
    """Whether a value is a finite number, or one that is whole (`kind` int); true and false are none."""
    return isinstance(value, (int, kind)) and not isinstance(value, bool) and abs(value) < math.inf


FORMS = "seconds (0.5), normal:MEAN,SD, lognormal:MEDIAN,SIGMA or uniform:LOW,HIGH"
LONGEST = 3600.0  # no reply takes longer than this many seconds, whatever the distribution says


def parse_latency(text: str) -> Callable[[int], float]:
    """How many seconds a reply takes, drawn with its number as the seed, by one of `FORMS`; raises SimulatorError."""
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
        if self.filled_at is not None:
            gained = max(0.0, now - self.filled_at) * self.per_minute / 60
            self.level = min(float(self.size), self.level + gained)
        self.filled_at = now

    @property
    def remaining(self) -> int:
        return max(0, int(self.level))


class Refusal(NamedTuple):
    """A request that came too early: which limit said so, and how many seconds later it would fit (infinite: never)."""

    unit: str
    limit: int
    used: int
    requested: int
    wait: float


class RateLimits:
    """Requests and tokens a minute; None: no limit. `burst`: so many may come at once. A refused one takes nothing."""

    def __init__(
        self, rpm: int | None = None, tpm: int | None = None, burst: int | None = None
    ) -> None:
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
                return Refusal(
                    bucket.unit, bucket.per_minute, bucket.size - bucket.remaining, amount, wait
                )
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


def read_limits(given: dict[str, Any]) -> RateLimits:
    """Limits from an object such as `{"rpm": 600}`, `{}` for none; raises SimulatorError with all that is wrong."""
    known = ("rpm", "tpm", "burst")
    problems = [
        f"{name!r} is no limit; known: {', '.join(known)}" for name in given if name not in known
    ]
    problems += Settings(
        rpm=given.get("rpm"), tpm=given.get("tpm"), burst=given.get("burst")
    ).problems()
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

"""The settings of a simulator, declared once for flags, help, checks and guide."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from agac.simulator.kinds import JsonObject, Texts, is_number


class SimulatorError(Exception):
    """The simulator cannot start or continue; `problems` says each reason, with its remedy."""

    def __init__(self, problems: list[str], *, exit_code: int = 2) -> None:
        """`exit_code` is 2 for settings that make no sense, 1 for everything else."""
        super().__init__("\n".join(problems))
        self.problems = problems
        self.exit_code = exit_code


TOOLS_WITH_SCHEMA = ("taken", "refused", "ignored")
"""The ways in which servers treat a response format in a request with tools.

Where it is ignored, a model knows only the schema that is in its prompt, and answers in prose
where none is.
"""


@dataclass(frozen=True, slots=True)
class Flag:
    """The command-line flag of a setting."""

    kind: type
    """converts the text; a bool has none"""
    help: str
    name: str = ""
    """its name, if another than the setting's"""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None


def setting(default: Any, kind: type, help_text: str, **more: Any) -> Any:
    return field(default=default, metadata={"flag": Flag(kind, help_text, **more)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a simulator."""

    port: int = setting(0, int, "Port; 0: any free one.", metavar="N", least=0, most=65535)
    seed: int = setting(0, int, "The same seed and request give the same reply.", metavar="N")
    latency: str = setting(
        "0", str, "Seconds, or normal:M,SD lognormal:M,S uniform:A,B.", metavar="SECONDS"
    )
    slots: int | None = setting(
        None, int, "Requests served at once; the others wait.", metavar="N", least=1
    )
    serving: str | None = setting(
        None,
        str,
        "Time and cache as an inference engine: h100, hosted (a cache alone), "
        "or prefill=8300,step=0.033,…",
        metavar="ENGINE",
    )
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
    state: Path | None = setting(  # noqa: RUF009
        None, Path, "Keep batches and files here, for the next time."
    )
    """None: a file that ends with the simulator"""
    websocket: bool = setting(
        True, bool, "Accept no WebSockets, as a server that speaks HTTP alone.", name="no-websocket"
    )
    tool_turns: int = setting(
        1, int, "Turns that ask for tools where a request offers some.", metavar="N", least=0
    )
    tool_calls: int = setting(1, int, "Calls in such a turn.", metavar="N", least=1)
    tools_with_schema: str = setting(
        "taken",
        str,
        "A response format beside tools: taken, refused, or ignored (the prompt alone counts).",
        metavar="HOW",
    )
    script: Path | None = setting(  # noqa: RUF009
        None, Path, "File of replies and calls to give (YAML or JSON)."
    )
    faults: Path | None = setting(  # noqa: RUF009
        None, Path, "File of faults to inject (YAML or JSON)."
    )

    def problems(self) -> list[str]:
        """Returns what is wrong with the numbers; files and latency are read elsewhere."""
        problems = []
        for name, flag, default in setting_flags():
            value = getattr(self, name)
            if value is None or fits(flag, value):
                continue
            bounds = (
                f"{flag.least} or more" if flag.most is None else f"{flag.least} to {flag.most}"
            )
            remedy = ", or leave it out for no limit" if default is None else ""
            problems.append(f"{flag.name} is {value!r}; use {bounds}{remedy}")
        if self.tools_with_schema not in TOOLS_WITH_SCHEMA:
            known = ", ".join(TOOLS_WITH_SCHEMA)
            problems.append(f"tools-with-schema is {self.tools_with_schema!r}; use one of {known}")
        return problems

    def written(self) -> str:
        """Returns the settings as JSON, for another process, in whatever folder that is."""
        return json.dumps(asdict(self), default=lambda path: str(path.absolute()))

    @staticmethod
    def read(written: str) -> Settings:
        """Returns the settings that `written` gave; those left out are at their defaults."""
        values = json.loads(written)
        for name, flag, _ in setting_flags():
            if flag.kind is Path and values.get(name):
                values[name] = Path(values[name])
        return Settings(**values)


def setting_flags() -> Iterator[tuple[str, Flag, Any]]:
    """Gives the name, the flag and the default of each setting."""
    for setting_field in fields(Settings):
        flag = setting_field.metadata.get("flag")
        if flag is not None:
            flag = replace(flag, name=flag.name or setting_field.name.replace("_", "-"))
            yield setting_field.name, flag, setting_field.default


def fits(flag: Flag, value: Any) -> bool:
    """True if a value is within the bounds of a flag."""
    if flag.least is None:
        return True
    most = math.inf if flag.most is None else flag.most
    return is_number(value, flag.kind) and flag.least <= value <= most


FORMS = "seconds (0.5), normal:MEAN,SD, lognormal:MEDIAN,SIGMA or uniform:LOW,HIGH"
LONGEST_S = 3600.0  # no reply takes longer, whatever the distribution says


def parse_latency(text: str) -> Callable[[int], float]:
    """Returns how many seconds a reply takes, drawn with its number as the seed.

    `text` is one of FORMS; raises SimulatorError.
    """
    name, _, numbers = text.strip().rpartition(":")
    try:
        values = [float(number) for number in numbers.split(",")]
    except ValueError:
        values = []
    if not values or not all(math.isfinite(value) and value >= 0 for value in values):
        problem = f"latency {text!r} is none that the simulator knows; write {FORMS}"
        raise SimulatorError([problem])
    draw: Callable[..., float]
    match name, values:
        case "" | "constant", [seconds]:
            return lambda _: min(seconds, LONGEST_S)
        case "normal", [_, _]:
            draw = Random.normalvariate
        case "lognormal", [median, _] if median > 0:
            draw = Random.lognormvariate
            values[0] = math.log(median)
        case "uniform", [low, high] if low <= high:
            draw = Random.uniform
        case _:
            raise SimulatorError([f"latency {text!r} does not add up; write {FORMS}"])

    def drawn(seed: int) -> float:
        seconds = draw(Random(seed), *values)  # noqa: S311 (nothing to guess)
        return min(max(0.0, seconds), LONGEST_S)

    return drawn


@dataclass(slots=True)
class Bucket:
    """Units that are refilled evenly. Times are in seconds."""

    unit: str
    per_minute: int
    size: int
    """how many may be taken at once"""
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

    def refusal(self, amount: int) -> Refusal | None:
        """Returns why so much cannot be taken now, None if it can."""
        missing = amount - self.level
        if amount > self.size:
            wait = math.inf
        elif missing >= 1e-9:
            wait = missing * 60 / self.per_minute
        else:
            return None
        return Refusal(self.unit, self.per_minute, self.size - self.remaining, amount, wait)


class Refusal(NamedTuple):
    """A request that came too early: which limit said so."""

    unit: str
    limit: int
    used: int
    requested: int
    wait: float
    """how many seconds later it would fit; infinite: never"""


class RateLimits:
    """Requests and tokens a minute; None: no limit. A refused request takes nothing."""

    def __init__(
        self, rpm: int | None = None, tpm: int | None = None, burst: int | None = None
    ) -> None:
        """`burst`: so many requests may come at once."""
        self._buckets = []
        for unit, per_minute, size in (("requests", rpm, burst), ("tokens", tpm, tpm)):
            if per_minute:
                size = size or per_minute
                self._buckets.append(Bucket(unit, per_minute, size, float(size)))

    def take(self, tokens: int, now: float) -> Refusal | None:
        """Takes one request of `tokens`, or says why not."""
        amounts = {"requests": 1, "tokens": tokens}
        for bucket in self._buckets:
            bucket.refill(now)
            refusal = bucket.refusal(amounts[bucket.unit])
            if refusal is not None:
                return refusal
        for bucket in self._buckets:
            bucket.level -= amounts[bucket.unit]
        return None

    def levels(self, now: float) -> Iterator[tuple[str, int, int, float]]:
        """Gives what is left of each limit.

        Its unit, how many a minute, how many are left, and seconds until all of them are.
        """
        for bucket in self._buckets:
            bucket.refill(now)
            reset = (bucket.size - bucket.level) * 60 / bucket.per_minute
            yield bucket.unit, bucket.per_minute, bucket.remaining, reset

    def headers(self, now: float) -> Texts:
        """Returns OpenAI's headers about limits; empty when there are none."""
        headers = {}
        for unit, limit, remaining, reset in self.levels(now):
            headers[f"x-ratelimit-limit-{unit}"] = str(limit)
            headers[f"x-ratelimit-remaining-{unit}"] = str(remaining)
            headers[f"x-ratelimit-reset-{unit}"] = clock_text(reset)
        return headers


def read_limits(limits: JsonObject) -> RateLimits:
    """Makes limits of an object such as `{"rpm": 600}`, `{}` for none.

    Raises SimulatorError with all that is wrong.
    """
    known = ("rpm", "tpm", "burst")
    problems = [
        f"{name!r} is no limit; known: {', '.join(known)}" for name in limits if name not in known
    ]
    settings = Settings(rpm=limits.get("rpm"), tpm=limits.get("tpm"), burst=limits.get("burst"))
    problems += settings.problems()
    if problems:
        raise SimulatorError(problems)
    return RateLimits(**limits)


def clock_text(seconds: float) -> str:
    """Returns a duration as OpenAI's headers write it: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(seconds, 60)
    shown = f"{rest:.3f}".rstrip("0").rstrip(".")
    return f"{int(minutes)}m{shown}s" if minutes else f"{shown}s"

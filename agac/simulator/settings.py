"""How a simulator is started. Every setting is declared once, in `Settings`: the flags of both commands, their help,
the checks, the defaults and the guide's table are made of it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any


class SimulatorError(Exception):
    """The simulator cannot start or continue; `problems` says each reason, with its remedy.

    `exit_code` is 2 for settings that make no sense, 1 for everything else (a port in use, a child that died).
    """

    def __init__(self, problems: list[str], *, exit_code: int = 2) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Flag:
    """How a setting is given on a command line: `kind` converts the text; a bool has no value. `name` (without dashes)
    is that of the setting if it is empty.

    `least` and `most` bound a number; `wrong` is the message for a number out of bounds. A flag that is not `public` is
    one of `python -m agac.simulator` alone.
    """

    kind: type
    help: str
    name: str = ""
    metavar: str | None = None
    least: int | None = None
    most: int | None = None
    wrong: str = ""
    public: bool = True

    def problem(self, name: str, value: Any) -> str | None:
        """What is wrong with a number."""
        if self.least is None or value is None:
            return None
        if math.isfinite(value) and self.least <= value <= (math.inf if self.most is None else self.most):
            return None
        return self.wrong.format(name=name, value=value)


def setting(default: Any, kind: type, help_text: str, **more: Any) -> Any:
    """A field of `Settings` with its flag."""
    return field(default=default, metadata={"flag": Flag(kind, help_text, **more)})


LIMIT_REMEDY = "use 1 or more, or leave it out for no limit"


def limit(help_text: str) -> Any:
    """A number of 1 or more, or None for no limit."""
    return setting(None, int, help_text, metavar="N", least=1, wrong=f"{{name}} is {{value}}; {LIMIT_REMEDY}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a simulator does. `latency` is read by `limits.parse_latency`; None is no limit, and of `burst` a minute's
    worth. `state` is None for a file that ends with the simulator. `model_ids` are the models that are listed; every
    other name is answered too."""

    host: str = setting("127.0.0.1", str, "Loopback address to listen on.", public=False)
    port: int = setting(
        0,
        int,
        "Port; 0: any free one.",
        metavar="N",
        least=0,
        most=65535,
        wrong="port {value} does not exist; use 0 (any free one) to 65535",
    )
    seed: int = setting(0, int, "The same seed and request give the same reply.", metavar="N")
    latency: str = setting("0", str, "Seconds, or normal:M,SD lognormal:M,S uniform:A,B.", metavar="SECONDS")
    slots: int | None = limit("Requests served at once; the others wait.")
    rpm: int | None = limit("Requests per minute before 429.")
    tpm: int | None = limit("Tokens per minute before 429.")
    burst: int | None = limit("Requests that may come at once; a minute's worth by default.")
    batch_seconds: float = setting(
        0.0,
        float,
        "How long a batch takes from its creation; 0: no time at all.",
        metavar="S",
        least=0,
        wrong="batch seconds are {value:g}; use 0 (at once) or more",
    )
    state: Path | None = setting(None, Path, "Keep batches and files here, for the next time.")  # noqa: RUF009
    websocket: bool = setting(
        True, bool, "Accept no WebSockets, as a server that speaks HTTP alone.", name="no-websocket"
    )
    faults: Path | None = setting(None, Path, "File of faults to inject (YAML or JSON).")  # noqa: RUF009
    model_ids: tuple[str, ...] = ("small", "large", "echo")

    def problems(self) -> list[str]:
        """What is wrong with the numbers and the host, all at once; files and latency are read elsewhere."""
        found = []
        if not is_loopback(self.host):
            found.append(
                f"host {self.host!r} is not this machine; the simulator has no login, so it serves loopback only: "
                "use 127.0.0.1, ::1 or localhost"
            )
        checked = (flag.problem(name, getattr(self, name)) for name, flag, _ in setting_flags())
        return found + [problem for problem in checked if problem is not None]

    def arguments(self) -> list[str]:
        """The flags with which `python -m agac.simulator` gets these settings."""
        given = []
        for name, flag, default in setting_flags():
            value = getattr(self, name)
            if value != default:
                given.append(f"--{flag.name}" if flag.kind is bool else f"--{flag.name}={value}")
        return given


def setting_flags() -> Iterator[tuple[str, Flag, Any]]:
    """The settings that have a flag: name, flag, default."""
    for one in fields(Settings):
        if (flag := one.metadata.get("flag")) is not None:
            yield one.name, replace(flag, name=flag.name or one.name.replace("_", "-")), one.default


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine alone: names other than localhost are not looked up."""
    import ipaddress  # only a server asks

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

"""How a simulator is started: one frozen value, whether from flags, from a test or for `simulator/…` models."""

from __future__ import annotations

import ipaddress
import math
from dataclasses import dataclass
from pathlib import Path


class SimulatorError(Exception):
    """The simulator cannot start or go on; `problems` says each reason, with its remedy.

    `exit_code` is 2 for settings that make no sense, 1 for everything else (a port that is taken, a child that died).
    """

    def __init__(self, problems: list[str], *, exit_code: int = 2) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Settings:
    """What a simulator does.

    `port` 0 takes a free one. `latency` is a text as `agac.simulator.latency` reads it, in seconds. `slots` is how many
    requests are served at once (the others queue), `rpm` and `tpm` are requests and tokens a minute; None is no limit.
    `burst` is how many requests may come at once, None a minute's worth.
    Without `websocket` no upgrade is accepted, as by the many servers that speak HTTP alone.
    `batch_seconds` is how long a batch takes from its creation until all of it is done; `state` is the file that keeps
    files and batches, None for one that ends with the simulator.
    `faults` names a file of rules. `model_ids` are the models that are listed; every other name is answered too.
    """

    host: str = "127.0.0.1"
    port: int = 0
    seed: int = 0
    latency: str = "0"
    slots: int | None = None
    rpm: int | None = None
    tpm: int | None = None
    faults: Path | None = None
    model_ids: tuple[str, ...] = ("small", "large", "echo")
    burst: int | None = None
    websocket: bool = True
    batch_seconds: float = 0.0
    state: Path | None = None

    def problems(self) -> list[str]:
        """What is wrong with the numbers and the host, all at once; files and latency are read elsewhere."""
        found = []
        if not is_loopback(self.host):
            found.append(
                f"host {self.host!r} is not this machine; the simulator has no login, so it serves loopback only: "
                "use 127.0.0.1, ::1 or localhost"
            )
        if not 0 <= self.port <= 65535:
            found.append(f"port {self.port} does not exist; use 0 (any free one) to 65535")
        for name, value in (("slots", self.slots), ("rpm", self.rpm), ("tpm", self.tpm), ("burst", self.burst)):
            if value is not None and value < 1:
                found.append(f"{name} is {value}; use 1 or more, or leave it out for no limit")
        if not (math.isfinite(self.batch_seconds) and self.batch_seconds >= 0):
            found.append(f"batch seconds are {self.batch_seconds:g}; use 0 (at once) or more")
        return found

    def arguments(self) -> list[str]:
        """The flags with which `python -m agac.simulator` gets these settings."""
        flags = ["--host", self.host, "--port", str(self.port), "--seed", str(self.seed), f"--latency={self.latency}"]
        flags += [f"--batch-seconds={self.batch_seconds!r}"] if self.batch_seconds else []
        for name in ("slots", "rpm", "tpm", "burst", "faults", "state"):
            if (value := getattr(self, name)) is not None:
                flags += [f"--{name}", str(value)]
        return flags if self.websocket else [*flags, "--no-websocket"]


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine alone: names other than localhost are not looked up."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"

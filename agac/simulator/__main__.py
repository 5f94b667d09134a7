"""`python -m agac.simulator`: the simulator as a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from agac.simulator.settings import Settings, SimulatorError


def parse_arguments(arguments: list[str]) -> tuple[Settings, argparse.Namespace]:
    """The settings that flags describe, and the flags about the process itself."""
    parser = argparse.ArgumentParser("agac.simulator", description="Serve a simulated provider on this machine.")
    parser.add_argument("--host", default="127.0.0.1", help="loopback address to listen on")
    parser.add_argument("--port", type=int, default=0, help="port; 0 takes a free one")
    parser.add_argument("--seed", type=int, default=0, help="replies follow from seed and request")
    parser.add_argument("--latency", default="0", help="seconds, or normal:M,SD lognormal:M,S uniform:A,B")
    parser.add_argument("--slots", type=int, help="requests served at once")
    parser.add_argument("--rpm", type=int, help="requests a minute")
    parser.add_argument("--tpm", type=int, help="tokens a minute")
    parser.add_argument("--burst", type=int, help="requests that may come at once; a minute's worth by default")
    parser.add_argument("--faults", type=Path, help="YAML or JSON file of fault rules")
    parser.add_argument("--batch-seconds", type=float, default=0.0, help="how long a batch takes until all is done")
    parser.add_argument("--state", type=Path, help="file that keeps files and batches; temporary by default")
    parser.add_argument("--no-websocket", action="store_true", help="accept no WebSockets")
    parser.add_argument("--ready-line", action="store_true", help="write one JSON line once requests are answered")
    parser.add_argument("--exit-with-stdin", action="store_true", help="stop when standard input ends")
    flags = parser.parse_args(arguments)
    settings = Settings(
        host=flags.host,
        port=flags.port,
        seed=flags.seed,
        latency=flags.latency,
        slots=flags.slots,
        rpm=flags.rpm,
        tpm=flags.tpm,
        burst=flags.burst,
        faults=flags.faults,
        websocket=not flags.no_websocket,
        batch_seconds=flags.batch_seconds,
        state=flags.state,
    )
    return settings, flags


def main(arguments: list[str]) -> int:
    """Serves until stopped; gives the exit code."""
    settings, flags = parse_arguments(arguments)

    def tell(base_url: str) -> None:
        said = json.dumps({"base_url": base_url, "pid": os.getpid()}) if flags.ready_line else f"serving {base_url}"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()

    from agac.simulator.server import run_simulator  # after the flags: --help need not wait for it

    try:
        run_simulator(settings, tell, exit_with_stdin=flags.exit_with_stdin)
    except SimulatorError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

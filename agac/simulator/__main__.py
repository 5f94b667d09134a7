"""`python -m agac.simulator SETTINGS`: a simulator as the process of a program."""

from __future__ import annotations

import json
import os
import sys

from agac.simulator.settings import Settings, SimulatorError


def main(written: str = "{}") -> int:
    """Serves until standard input ends, or a signal comes; returns the exit code.

    The settings come as JSON; a line of JSON says where it serves. With a key in the variable
    AGAC_SIMULATOR_KEY it serves the program alone that started it.
    """
    from agac.simulator.server import KEY_VARIABLE, run_simulator

    def report_ready(base_url: str) -> None:
        sys.stdout.write(json.dumps({"base_url": base_url, "pid": os.getpid()}) + "\n")
        sys.stdout.flush()

    try:
        run_simulator(
            Settings.read(written),
            report_ready,
            key=os.environ.get(KEY_VARIABLE, ""),
            exit_with_stdin=True,
        )
    except SimulatorError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))

"""`python -m agac.simulator`: the simulator as a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import sys

from agac.simulator.settings import Settings, SimulatorError, setting_flags


def parse_arguments(arguments: list[str]) -> tuple[Settings, argparse.Namespace]:
    """The settings that flags describe, and the flags about the process itself."""
    parser = argparse.ArgumentParser("agac.simulator", description="Serve a simulated provider on this machine.")
    for name, flag, default in setting_flags():
        if flag.kind is bool:
            parser.add_argument(f"--{flag.name}", dest=name, action="store_false", help=flag.help)
        else:
            parser.add_argument(
                f"--{flag.name}", dest=name, type=flag.kind, default=default, metavar=flag.metavar, help=flag.help
            )
    parser.add_argument("--ready-line", action="store_true", help="Write one JSON line once requests are answered.")
    parser.add_argument("--exit-with-stdin", action="store_true", help="Stop when standard input ends.")
    flags = parser.parse_args(arguments)
    return Settings(**{name: getattr(flags, name) for name, _, _ in setting_flags()}), flags


def main(arguments: list[str]) -> int:
    """Serves until stopped; gives the exit code."""
    settings, flags = parse_arguments(arguments)

    def report_ready(base_url: str) -> None:
        line = json.dumps({"base_url": base_url, "pid": os.getpid()}) if flags.ready_line else f"serving {base_url}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    from agac.simulator.server import run_simulator  # after the flags: --help need not wait for it

    try:
        run_simulator(settings, report_ready, exit_with_stdin=flags.exit_with_stdin)
    except SimulatorError as error:
        sys.stderr.write("".join(f"error: {problem}\n" for problem in error.problems))
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

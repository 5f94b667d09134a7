"""`agac version` and `agac doctor --install`: which agac runs, and what it needs."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from agac import __version__, api
from agac.cli import main
from agac.cli.terminal import (
    print_json,
    print_text,
    table,
)
from agac.core.errors import AgacError, ExitCode, Requirement, requirements
from agac.core.text import plain


def running() -> dict[str, Any]:
    """Finds which agac runs, by which Python; the command `agac` that a shell finds, and whether
    it starts this one."""
    command = shutil.which("agac")
    return {
        "agac": __version__,
        "python": platform.python_version(),
        "package": str(Path(api.__file__ or "").parents[1]),
        "interpreter": sys.executable,
        "on_path": command,
        "on_path_is_this": command is not None and _starts_this_agac(command),
    }


def _starts_this_agac(command: str) -> bool:
    """True if a script names this Python and starts agac."""
    if not os.access(command, os.R_OK):
        return False
    script = Path(command).read_bytes()
    return os.fsencode(Path(sys.executable).parent) in script and b"from agac." in script


def running_text() -> str:
    """Says which agac runs, by which Python."""
    facts = running()
    this = ""
    if not facts["on_path_is_this"]:
        this = f"; `{shlex.quote(facts['interpreter'])} -m agac` is this one"
    where = plain(
        f"  package: {facts['package']}\n  python: {facts['interpreter']}\n"
        f"  agac on PATH: {facts['on_path'] or 'none'}{this}"
    )
    return f"agac {facts['agac']} (Python {facts['python']})\n{where}"


@click.command(help="Show the version of agac and of Python, and which agac it is that runs.")
@main.json_option
def version(as_json: bool) -> None:
    if as_json:
        print_json(running())
    else:
        print_text(running_text())


USED_FOR = {
    "anthropic": "batches of Anthropic",
    "data": "parquet, .zst files, sql over inputs",
    "hf": "hf://",
    "json-repair": "json_repair: true",
    "mcp": "MCP servers",
    "notify": "messages to chat and mail services",
    "otel": "traces and metrics by OTLP",
    "postgres": "tables of PostgreSQL",
    "ray": "workers on other machines",
    "remote": "answers that a team shares",
    "ui": "the monitor in the browser",
    "uvloop": "a fifth less CPU per call",
    "xlsx": "sheets as inputs",
}
"""What the packages of each extra are used for; agac itself needs those of none."""


def _use_of(needed: Requirement) -> str:
    """Says what a package is used for."""
    if needed.extra is None:
        return "all"
    return USED_FOR.get(needed.extra, f"the extra {needed.extra}")


def print_installation(*, as_json: bool) -> int:
    """Prints what agac needs, and what of it is missing or too old. Returns exit code 1 if agac
    does not work without it."""
    needed = requirements()
    if not needed:
        folder = shlex.quote(str(Path(running()["package"]).parent))
        raise AgacError(
            f"agac runs from {folder} and is not installed", remedy=f"pip install {folder}"
        )
    lacking = [each for each in needed if not each.ok]
    of_agac = [each for each in lacking if each.extra is None]
    of_extras = [each for each in lacking if each.extra is not None]
    if as_json:
        print_json(
            {**running(), "packages": [{**each._asdict(), "ok": each.ok} for each in needed]}
        )
    else:
        rows = [
            (each.package, each.bounds, each.installed or "none", _use_of(each)) for each in needed
        ]
        print_text(
            f"{running_text()}\n\n{table(('package', 'needs', 'installed', 'used for'), rows)}"
        )
        _print_install("Missing, or of another version", of_agac)
        _print_install("Only for what is said beside it", of_extras)
    return ExitCode.FAILED if of_agac else ExitCode.DONE


def _print_install(reason: str, packages: Sequence[Requirement]) -> None:
    """Prints the command that installs packages, if there are any."""
    if packages:
        names = " ".join(f"'{each.package}{each.bounds}'" for each in packages)
        print_text(f"{reason}: pip install {names}")

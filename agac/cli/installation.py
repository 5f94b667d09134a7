"""`agac version` and `agac doctor --install`: which agac runs, and what it needs."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import sys
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
    package = Path(api.__file__ or "").parents[1]
    if command and os.access(command, os.R_OK):
        readable = command
    else:
        readable = os.devnull
    script = Path(readable).read_bytes()  # it names its Python and what it starts
    ours = os.fsencode(Path(sys.executable).parent) in script and b"from agac." in script
    own = {"agac": __version__, "python": platform.python_version(), "package": str(package)}
    return own | {"interpreter": sys.executable, "on_path": command, "on_path_is_this": ours}


def running_text() -> str:
    version, python, package, interpreter, command, ours = running().values()
    this = "" if ours else f"; `{shlex.quote(interpreter)} -m agac` is this one"
    where = plain(
        f"  package: {package}\n  python: {interpreter}\n  agac on PATH: {command or 'none'}{this}"
    )
    return f"agac {version} (Python {python})\n{where}"


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
    if needed.extra is None:
        return "all"
    return USED_FOR.get(needed.extra, f"the extra {needed.extra}")


def print_installation(*, as_json: bool) -> int:
    """Prints what agac needs, and what of it is missing or too old. Returns exit code 1 when agac
    cannot do without it."""
    found = requirements()
    if not found:
        folder = shlex.quote(str(Path(running()["package"]).parent))
        raise AgacError(
            f"agac runs from {folder} and is not installed", remedy=f"pip install {folder}"
        )
    lacking = [one for one in found if not one.ok]
    if as_json:
        print_json({**running(), "packages": [{**one._asdict(), "ok": one.ok} for one in found]})
    else:
        rows = [(one.package, one.bounds, one.installed or "none", _use_of(one)) for one in found]
        print_text(
            f"{running_text()}\n\n{table(('package', 'needs', 'installed', 'used for'), rows)}"
        )
    for core, what in (
        (True, "Missing, or of another version"),
        (False, "Only for what is said beside it"),
    ):
        names = " ".join(
            f"'{one.package}{one.bounds}'" for one in lacking if (one.extra is None) is core
        )
        if names and not as_json:
            print_text(f"{what}: pip install {names}")
    if any(one.extra is None for one in lacking):
        return ExitCode.FAILED
    return ExitCode.DONE

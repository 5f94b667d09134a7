"""`agac ui`: the monitor in the browser."""

from __future__ import annotations

import json
import os
import sys
import webbrowser
from pathlib import Path

import click

from agac.cli import main, terminal
from agac.core.errors import UsageError, lack_of
from agac.core.types import counted
from agac.spec.paths import project_root


@click.command(
    help="Watch the project's runs in the browser: a monitor on this machine alone, until "
    "Ctrl-C. It reads what is stored, also while runs are at work in other processes."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=0,
    metavar="N",
    help="Serve on this port; else a free one.",
)
@click.option("--no-open", is_flag=True, help="Do not open the browser.")
@click.option(
    "--write",
    is_flag=True,
    help="Offer buttons: stop, retry, cancel a batch, decide on rows that wait.",
)
@click.option(
    "--export",
    "folder",
    metavar="DIR",
    help="Write a run as static pages into this folder, and serve nothing.",
)
@click.option(
    "--run", metavar="RUN", help="The run that --export writes: its number; else the last one."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the address as one line of JSON, or what was exported.",
)
@click.pass_obj
def ui(
    settings: main.Globals,
    port: int,
    no_open: bool,
    write: bool,
    folder: str | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Exit 0 at Ctrl-C."""
    excluded = run is not None if folder is None else bool(port or no_open or write)
    if excluded:
        raise UsageError(
            "--export goes with --run, and with --json", remedy="Leave the other options out."
        )
    for package in ("jinja2", "starlette", "uvicorn"):
        lack = lack_of("agac ui", package)
        if lack:
            raise UsageError(lack, remedy="All of it: pip install jinja2 starlette uvicorn")
    if folder is not None:
        _export(Path(folder), run or "last", settings, as_json=as_json)
        return
    from agac.web.app import serve

    def ready(url: str) -> None:
        text = json.dumps({"url": url}) if as_json else f"Monitor: {url}   (Ctrl-C ends it)"
        terminal.print_text(text, flush=True)
        if not no_open and _has_screen():
            webbrowser.open(url)

    main.long_running(serve)(project_root(settings.project_dir), ready, port=port, write=write)


def _export(folder: Path, run: str, settings: main.Globals, *, as_json: bool) -> None:
    """Writes a run as static pages, and says where."""
    from agac.web.static_pages import export_pages

    facts = export_pages(folder, run, project=settings.project_dir)
    if as_json:
        terminal.print_text(json.dumps(facts))
    else:
        terminal.print_text(
            f"Wrote {counted(facts['listed'], 'row')} of run {facts['run']}: open "
            f"{facts['folder']}/index.html"
        )


def _has_screen() -> bool:
    """True if a browser has a window: without one, some open in the terminal."""
    if sys.platform != "linux":
        return True
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))

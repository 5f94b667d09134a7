"""`agac notify test`: try who is told of runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from agac import api
from agac.cli import main, terminal
from agac.core.errors import ExitCode

if TYPE_CHECKING:
    from agac.api.notify import NotifyReport


@click.command(help="Try who is told of runs (`test`): send a message that says so to every target.")
@click.argument("what", metavar="test", type=click.Choice(["test"]))
@click.option("-a", "--workflow", "workflows", metavar="NAME", multiple=True, help="Only its targets.")
@main.json_option
@click.pass_obj
def notify(settings: main.Globals, what: str, workflows: tuple[str, ...], as_json: bool) -> int:
    """Exit 0, or 1 where a message did not arrive."""
    report = main.long_running(api.notify_test)(workflows, project=settings.project_dir)
    terminal.print_report(report, _lines, as_json=as_json)
    return ExitCode.FAILED if any(one.error for one in report.messages) else ExitCode.DONE


def _lines(report: NotifyReport) -> Iterator[str]:
    lines = []
    for one in report.messages:
        way, written = next((way, written) for way, written in one.target.items() if way != "secret")
        target = f"{way} {written if isinstance(written, str) else shlex.join(written)}"
        lines.append([one.body["workflow"], target, one.error or "sent"])
    yield terminal.table(["workflow", "target", "state"], lines)

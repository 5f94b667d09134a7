"""`agac notify`: try who is told of runs, send what is left, show the outbox."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import click

from agac import api
from agac.cli import main, terminal
from agac.core.errors import ExitCode
from agac.core.types import counted, iso

if TYPE_CHECKING:
    from agac.api.notify import OutboxReport


@click.command(
    help="Try who is told of runs (`test`: a message that says so, to every target), send what is due (`send`, as for "
    "cron), or show the newest messages (`status`)."
)
@click.argument("what", metavar="test|send|status", type=click.Choice(["test", "send", "status"]))
@click.option("-a", "--workflow", "workflows", metavar="NAME", multiple=True, help="For `test`: only its targets.")
@main.json_option
@click.pass_obj
def notify(settings: main.Globals, what: str, workflows: tuple[str, ...], as_json: bool) -> int:
    """Exit 0; of `test` 1 where a message did not arrive, of `send` 75 where one is left."""
    calls: dict[str, Callable[..., OutboxReport]] = {
        "test": partial(api.notify_test, workflows), "send": api.notify_send, "status": api.notify_status,
    }  # fmt: skip
    if workflows and what != "test":
        raise click.UsageError(f"-a NAME is for `agac notify test`; `{what}` is about all workflows")
    report = main.long_running(calls[what])(project=settings.project_dir)
    terminal.print_report(report, _lines, as_json=as_json, quiet=settings.quiet and what == "send")
    failed = {"test": ExitCode.FAILED, "send": ExitCode.NOT_READY, "status": ExitCode.DONE}[what]
    return failed if report.left else ExitCode.DONE


def _lines(report: OutboxReport) -> Iterator[str]:
    lines = []
    for one in report.messages:
        way, written = next((way, written) for way, written in one.target.items() if way != "secret")
        target = f"{way} {written if isinstance(written, str) else shlex.join(written)}"
        state = f"sent {iso(one.sent_at)}" if one.sent_at else f"due {iso(one.next_at)}" if one.next_at else "not sent"
        why = f": {one.error} ({counted(one.attempts, 'attempt')})" if one.error else ""
        lines.append([one.kind, one.run_id or "", target, state + why])
    yield terminal.table(["kind", "run", "target", "state"], lines) if lines else "Nothing was told yet."
    yield ", ".join([*([f"{report.sent:,} sent now"] if report.sent else []), f"{report.left:,} left"])

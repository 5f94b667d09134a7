"""`agac test`: the tests of workflows, what failed in them and what was asked there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agac import api
from agac.cli import main, terminal
from agac.core.errors import ExitCode
from agac.core.text import plain
from agac.core.types import counted

if TYPE_CHECKING:
    from agac.api.workflow_tests import WorkflowTestReport


@click.command(help="Run the tests of workflows (tests/workflows/*.yml): offline, without keys, at no cost.")
@click.option("-a", "--workflow", "workflows", metavar="NAME", multiple=True, help="Only its tests; repeatable.")
@click.option("-k", "word", metavar="WORD", help="Only tests with this in the name of their file.")
@click.option("--record", is_flag=True, help="Ask real models for recorded replies that are missing. This costs.")
@click.option("--update", is_flag=True, help="Write the snapshots anew.")
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write JUnit's XML.")
@main.json_option
@click.pass_obj
def test(
    settings: main.Globals, workflows: tuple[str, ...], word: str | None, record: bool, update: bool,
    junit: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Exit 0 all passed, 2 usage or files with problems, 3 a test failed."""
    report = main.long_running(api.run_tests)(
        workflows, word=word, record=record, update=update, junit=junit, project=settings.project_dir,
        confirm=terminal.confirmed,
    )  # fmt: skip
    terminal.print_report(report, test_lines, as_json=as_json)
    return ExitCode.DONE if report.ok else ExitCode.ROWS_FAILED


def test_lines(report: WorkflowTestReport) -> Iterator[str]:
    tests = report.tests
    for one in (one for one in tests if one.result != "passed"):
        yield f"{one.result}: {one.name}"
        yield from (f"  {line}" for line in plain(one.error or "").splitlines())
        for what in one.failures:
            yield f"  row {what.row}, stage {what.stage}" if what.row is not None else "  the run"
            yield from (f"    expected: {plain(what.expected)}", f"    got:      {plain(what.got)}")
            lines = plain(what.prompt or "").splitlines()[:30]
            yield from (f"    {'asked:   ' if not place else ' ' * 9} {line}" for place, line in enumerate(lines))
        yield ""
    yield from (f"stale: {one.name}: {plain(text)} is not asked for" for one in tests for text in one.stale)
    yield from (f"wrote {terminal.from_here(file)}" for one in tests for file in one.written)
    passed, calls = sum(one.result == "passed" for one in tests), sum(one.calls for one in tests)
    yield f"{passed} of {counted(len(tests), 'test')} passed, {counted(calls, 'call')}"

"""`agac ci`: what a forge's jobs do, and the Markdown of what one of them found."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from agac import api
from agac.cli import main, terminal
from agac.core.errors import AgacError, ExitCode, UsageError, any_error
from agac.core.text import plain, split_lines
from agac.core.types import counted
from agac.data.files import write_whole

if TYPE_CHECKING:
    from agac.api.ci_events import Event, Kind
    from agac.api.findings import Findings
    from agac.api.workflow_tests import WorkflowTestReport


@click.command(
    help="Do what a job of a forge is for: look at a change, run what was merged, retrieve "
    "batches. In GitHub's and GitLab's jobs it finds out which.",
)
@click.option(
    "--event",
    "kind",
    type=click.Choice(["pull-request", "merge", "schedule"]),
    help="What is done.",
)
@click.option(
    "--against",
    metavar="REF",
    help="Compare a change with this, and not with the commit it is based on.",
)
@click.option(
    "--untrusted",
    is_flag=True,
    help="Import no Python and look up no variable: the files may be anybody's.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="agac-pr.json",
    show_default=True,
    metavar="FILE",
    help="Write what was found in a change, as JSON.",
)
@click.option(
    "--from", "findings", type=click.Path(path_type=Path), metavar="FILE",
    help=(
"Look at no project: make the Markdown of what `agac ci` wrote into FILE, in this "
"job or in another one."
),
)  # fmt: skip
@click.option(
    "--markdown", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the Markdown of a change into FILE, and not to standard output.",
)  # fmt: skip
@click.option(
    "--yes",
    is_flag=True,
    help="After a merge: do not ask for confirmation (cost above confirm_above).",
)
@main.json_option
@click.pass_context
def ci(
    context: click.Context, kind: Kind | None, against: str | None, untrusted: bool, out: Path,
    findings: Path | None, markdown: Path | None, yes: bool, as_json: bool,
) -> int:  # fmt: skip
    """Exit 0 fine, 2 files have errors, 3 tests failed, 4 above `ci.max_usd`; after a merge the
    worst of all runs."""
    from agac.api.ci_events import event_of
    from agac.api.findings import read_findings
    from agac.api.versions import refuse_empty

    if findings is not None:
        _refuse_beside_from(context)
        _show(read_findings(findings), markdown, as_json=as_json)
        return ExitCode.DONE
    refuse_empty(against)
    event = event_of(os.environ, kind)
    if event.kind != "pull-request":
        if untrusted:
            raise UsageError(
                "--untrusted: its workflows would be run",
                remedy="Look at the change: --event pull-request.",
            )
        if markdown is not None:
            raise UsageError("--markdown: there is no change to describe", remedy="Leave it out.")
        return _ran(
            context,
            event if against is None else event._replace(base=against),
            yes=yes,
            as_json=as_json,
        )
    from agac.cli.markdown import comment_text

    found = _checked(context, event, against, untrusted, out)
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(comment_text(found) + "\n")
    _show(found, markdown, as_json=as_json)
    return found.exit_code


def _refuse_beside_from(context: click.Context) -> None:
    """Raises UsageError if an option was given that `--from`, which looks at no project, would
    ignore."""
    for parameter in ("kind", "against", "untrusted", "out", "yes"):
        if context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
            option = next(one.opts[0] for one in context.command.params if one.name == parameter)
            raise UsageError(
                f"{option} has no meaning with --from", remedy="Leave one of them out."
            )


def _checked(
    context: click.Context, event: Event, against: str | None, untrusted: bool, out: Path
) -> Findings:
    """Checks a change, and writes what is found into `out`, also if the change cannot be
    checked."""
    from agac.api.ci import check_change, failed_findings

    root = context.obj.project_dir
    try:
        found = main.long_running(check_change)(
            event, against=against, untrusted=untrusted, project=root
        )
    except AgacError as error:
        failed = failed_findings(event, error, untrusted=untrusted, project=root)
        _write(failed.model_dump_json(indent=1), out, "--out")
        raise
    _write(found.model_dump_json(indent=1), out, "--out")
    return found


def _show(found: Findings, markdown: Path | None, *, as_json: bool) -> None:
    """Writes the Markdown into its file, and prints what standard output is for."""
    from agac.cli.markdown import comment_text

    text = comment_text(found)
    if markdown is not None:
        _write(text, markdown, "--markdown")
    if as_json:
        terminal.print_json(found.model_dump(mode="json"))
    elif markdown is None:
        terminal.print_markdown(text)


def _write(text: str, file: Path, option: str) -> None:
    # a change may bring one, and a job that keeps the file would keep what it leads to
    if file.is_symlink():
        file.unlink()
    write_whole(file, text + "\n", f"Name another file with {option}.")


def _ran(context: click.Context, event: Event, *, yes: bool, as_json: bool) -> int:
    """Runs what was merged, or goes on with runs that have open batches: each is said, the worst
    end is reported."""
    from agac.api.ci import open_runs, workflows_to_run
    from agac.api.run import WORST_FIRST
    from agac.cli.run_report import print_run

    how = {
        "project": context.obj.project_dir,
        "progress": not context.obj.quiet,
        "handle_signals": True,
    }
    work: list[tuple[str, Callable[[], Any]]] = []
    if event.kind == "merge":
        options = api.RunOptions(yes=yes)
        names = main.long_running(workflows_to_run)(event, project=how["project"])
        work = [(name, partial(api.run, name, options, **how)) for name in names]
    else:
        runs = main.long_running(open_runs)(project=how["project"]).items()
        work = [
            (name, partial(api.retrieve, run=run, submit=may, **how)) for run, (name, may) in runs
        ]
    codes = [ExitCode.DONE]
    found = list[dict[str, Any]]()
    for name, call in work:
        try:
            report = call()
        except AgacError as error:
            codes.append(ExitCode(main.say_known(error, context)))
            found.append({"workflow": name, "exit_code": codes[-1], "error": error.message})
            continue
        waits = report.exit_code is ExitCode.NOT_READY
        print_run(
            getattr(report, "run", report),
            f"agac run -a {name}",
            quiet=as_json or context.obj.quiet or waits,
        )
        if waits:  # the next job on the schedule looks again
            terminal.say(f"{name}: {report.message}")
        codes.append(ExitCode.DONE if waits else report.exit_code)
        found.append(report.as_json())
        if codes[-1] is ExitCode.INTERRUPTED:
            break
    if as_json:
        terminal.print_json(found)
    elif not work:
        terminal.print_text("Nothing to run." if event.kind == "merge" else "No batch is open.")
    return min(codes, key=WORST_FIRST.index)


@click.command(
    help="Run the tests of workflows (tests/workflows/*.yml): offline, without keys, at no cost."
)
@click.option(
    "-a",
    "--workflow",
    "workflows",
    metavar="NAME",
    multiple=True,
    help="Only its tests; repeatable.",
)
@click.option("-k", "word", metavar="WORD", help="Only tests with this in the name of their file.")
@click.option(
    "--record",
    is_flag=True,
    help="Ask real models for recorded replies that are missing. This costs.",
)
@click.option("--update", is_flag=True, help="Write the snapshots anew.")
@click.option(
    "--junit",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write JUnit's XML.",
)
@main.json_option
@click.pass_obj
def test(
    settings: main.Globals,
    workflows: tuple[str, ...],
    word: str | None,
    record: bool,
    update: bool,
    junit: Path | None,
    as_json: bool,
) -> int:
    """Exit 0 all passed, 2 usage or files with problems, 3 a test failed."""
    report = main.long_running(api.run_tests)(
        workflows,
        word=word,
        record=record,
        update=update,
        junit=junit,
        project=settings.project_dir,
        confirm=terminal.confirmed,
    )
    terminal.print_problems(report.problems, sys.stderr)
    terminal.print_report(report, test_lines, as_json=as_json)
    if any_error(report.problems):
        return ExitCode.USAGE
    return ExitCode.DONE if report.ok else ExitCode.ROWS_FAILED


def test_lines(report: WorkflowTestReport) -> Iterator[str]:
    tests = report.tests
    for one in (one for one in tests if one.result != "passed"):
        yield f"{one.result}: {one.name}"
        yield from (f"  {line}" for line in split_lines(plain(one.error or "")))
        for what in one.failures:
            if what.row is not None:
                yield f"  row {what.row}, stage {what.stage}"
            else:
                yield "  the run"
            yield from (f"    expected: {plain(what.expected)}", f"    got:      {plain(what.got)}")
            lines = split_lines(plain(what.prompt or ""))[:30]
            yield from (
                f"    {'asked:   ' if not place else ' ' * 9} {line}"
                for place, line in enumerate(lines)
            )
        yield ""
    yield from (
        f"stale: {one.name}: {plain(text)} is not asked for" for one in tests for text in one.stale
    )
    yield from (f"wrote {terminal.from_here(file)}" for one in tests for file in one.written)
    passed = sum(one.result == "passed" for one in tests)
    calls = sum(one.calls for one in tests)
    yield f"{passed} of {counted(len(tests), 'test')} passed, {counted(calls, 'call')}"

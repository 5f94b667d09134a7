"""Values → what is written: results on standard output, everything else on standard error.

Tables are plain text, the same in a terminal and in a file, and are never cut.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from agac import __version__, api
from agac.cli.live.text import harmless, is_unicode
from agac.cli.shown import plan as shown_plan
from agac.cli.shown.drawing import mermaid_warning, unspelled
from agac.cli.shown.layout import first_line, from_here
from agac.cli.shown.limits import limit_lines
from agac.cli.shown.run import guard_lines, replaced_lines, run_lines
from agac.cli.shown.submitted import batch_lines, next_lines, sentence, taken_line, undecided_lines
from agac.cli.shown.words import counted
from agac.cli.typed import command_line, command_to_run
from agac.core.errors import AgacError, ExitCode, Problem, SpecError, UsageError

if TYPE_CHECKING:
    from agac.api.ending import RunReport
    from agac.api.graphing import GraphReport
    from agac.api.planning import PlanReport
    from agac.api.retrieving import RetrieveReport
    from agac.api.showing import CardReport
    from agac.engine.scope import Scope


def prepare_streams() -> None:
    """A terminal or a pipe that cannot show a character gets a stand-in for it, never a crash."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


_plain = False


def use_no_colour() -> None:
    """From now on text is plain, on a terminal too."""
    global _plain
    _plain = True


def print_text(text: str, *, flush: bool = False) -> None:
    """A result, on standard output."""
    print(_for(sys.stdout, text), flush=flush)


def print_json(value: Any) -> None:
    """A result for machines, on standard output."""
    # a stream without all characters gets JSON's own escapes, so that it stays JSON
    print(json.dumps(value, ensure_ascii=not is_unicode(sys.stdout.encoding), indent=2, allow_nan=False))


def print_lines(lines: Iterable[str]) -> None:
    """A long result, a line at a time, on standard output."""
    for line in lines:
        print(_for(sys.stdout, line))


def say(text: str) -> None:
    """Talk, on standard error; after the results before it where both end in one file."""
    _flush_results()
    print(_for(sys.stderr, text), file=sys.stderr)


def is_watched() -> bool:
    """Whether somebody sits before a terminal and reads what is said."""
    return sys.stderr.isatty()


def _for(stream: TextIO, text: str) -> str:
    """The text as it is, but for a terminal: a reply or a row must not command it."""
    return harmless(text) if stream.isatty() else text


def _flush_results() -> None:
    """What fails here stays in the buffer and is reported when the program ends; what is said now must get through."""
    with suppress(OSError):
        sys.stdout.flush()


def agreed(question: str) -> bool | None:
    """Whether the user says yes; None when nobody is there to say it. Ctrl-C ends the command at once."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # an event loop would only take note of it
    try:
        while True:
            print(f"{question} [y/N]: ", end="", file=sys.stderr, flush=True)
            said = _typed().strip().lower()
            if said in ("y", "yes", "n", "no", ""):
                return said in ("y", "yes")
    finally:
        signal.signal(signal.SIGINT, before)


def _typed() -> str:
    """A line from the terminal. Waits in short steps: a Ctrl-C just before a blocking read would be seen only after
    it, when a key is pressed."""
    while os.name == "posix" and not select.select([sys.stdin], [], [], 0.1)[0]:
        pass
    return sys.stdin.readline()


def show_error(error: AgacError) -> None:
    """What went wrong and what to do, on standard error."""
    if isinstance(error, SpecError):
        print_problems(error.problems, sys.stderr)
    say(styled("error: ", "red") + error.message)
    if error.remedy:
        say(f"  {error.remedy}")


def show_usage(error: click.ClickException) -> None:
    """What is wrong with the command line, and where its help is."""
    from agac.cli.shown.usage import usage_lines

    first, *rest = usage_lines(error)
    say("\n".join([styled("error: ", "red") + first, *(f"  {line}" for line in rest)]))


def show_bug(error: Exception) -> None:
    """A bug of ours: the report goes to a file that can be attached to an issue."""
    folder = Path(tempfile.mkdtemp(prefix="agac-bug-"))
    report = folder / "report.txt"
    text = "".join(traceback.format_exception(error))
    head = f"agac {__version__}\nPython {sys.version}\n{command_line()}\n\n"
    report.write_text(head + text, encoding="utf-8", errors="backslashreplace")
    say(styled("error: ", "red") + f"this is a bug in agac: {type(error).__name__}: {error}")
    say(f"  The details are in {report}; please report them. Stored answers are safe: run the same command to go on.")


def styled(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in a colour where the stream is a terminal and nobody asked for plain text."""
    plain = _plain or bool(os.environ.get("NO_COLOR"))
    return text if plain or not (stream or sys.stderr).isatty() else click.style(text, fg=colour)


def print_problems(problems: Sequence[Problem], stream: TextIO) -> None:
    """One problem a line."""
    _flush_results()
    for problem in problems:
        print(problem, file=stream)


def print_check(workflows: list[str], problems: list[Problem], *, ok: bool, quiet: bool) -> None:
    """What `agac validate` found. Problems are its result, so they go to standard output."""
    print_problems(problems, sys.stdout)
    errors = sum(problem.severity == "error" for problem in problems)
    if not ok:
        say(styled(f"{counted(errors, 'problem')} found", "red"))
    elif not quiet:
        print_text(f"{counted(len(workflows), 'workflow')} valid: {', '.join(workflows) or 'none'}")


def print_run(report: RunReport, command: str, *, quiet: bool, scope: Scope | None = None) -> None:
    """The end of a run: what became of the rows, what it cost, what to do next. `scope`: the stages that were asked."""
    _say_how_it_ended(report, command)
    if not quiet:
        _print_summary(report, command, scope)
    _say_undecided(report)
    for problem in report.empty:
        say(str(problem))
    if report.not_written is not None:
        say(styled("not written: ", "red") + report.not_written.message)
        say(f"  {report.not_written.remedy}")


def print_retrieved(report: RetrieveReport, *, quiet: bool) -> None:
    """How the run stands that went on with what was taken; or that nothing was ready."""
    run, waits = report.run, report.exit_code is ExitCode.NOT_READY and not report.ready
    if run is not None and not waits:
        from agac.engine.scope import Scope  # the engine is loaded by now

        print_run(run, report.again, quiet=quiet, scope=Scope())
    if not quiet and (run is None or waits or not (run.summary["complete"] or run.invocation["open_batches"])):
        say(sentence(report.message))
    if run is not None and waits:
        _say_undecided(run)


def _print_summary(report: RunReport, command: str, scope: Scope | None) -> None:
    errors_file = report.files[2] if report.files else None
    print_lines(map(taken_line, report.invocation.get("ingested") or ()))
    print_text("\n".join(run_lines(report.summary, report.invocation, command, errors_file, scope)))
    if report.files:
        folder = report.files[0].parent
        names = ", ".join(file.name if file.parent == folder else from_here(file) for file in report.files[1:])
        print_text(f"Results: {from_here(report.files[0])}   (also: {names})")
    for line in [*guard_lines(report.summary, report.files), *replaced_lines(report)]:
        print_text(line)
    print_lines(batch_lines(report.invocation))
    print_lines(next_lines(report.summary, report.invocation, command))


def _say_undecided(report: RunReport) -> None:
    """Which batches wait for somebody: also to who wants to hear nothing else."""
    for line in undecided_lines(report.invocation):
        say(line)


def _say_how_it_ended(report: RunReport, command: str) -> None:
    open_rows = report.summary["rows"]["open"]
    if report.stop in ("limit", "loss"):
        for line in limit_lines(report, command):
            say(line)
    elif report.stopped is not None:
        say(styled("stopped: ", "red") + report.stopped)
        say(f"  Nothing is lost. When it is mended, go on with: {command}")
    elif report.exit_code is ExitCode.INTERRUPTED:
        if report.invocation["calls_given_up"]:
            cut = counted(report.invocation["calls_given_up"], "call")
            say(f"{cut} in flight were given up: they may have been paid for and are asked again.")
        say(f"Interrupted; every answer is stored. Rows read so far and still open: {open_rows:,}")
        if last := report.invocation["waiting_for"]:
            say(f"  The last call brought no answer: {first_line(last['message'])}")
        say(f"  Go on with: {command}")


def print_plans(reports: Sequence[PlanReport], workflows: Sequence[str], *, as_json: bool) -> None:
    """What runs of these workflows would do, and what they take."""
    for report in reports:
        for warning in report.warnings:
            say(str(warning))
    if as_json:
        found = [report.as_json() for report in reports]
        print_json(found if len(found) > 1 else found[0])
        return
    print_text("\n\n".join("\n".join(_plan_lines(one, workflows)) for one in reports))


def _plan_lines(report: PlanReport, workflows: Sequence[str]) -> list[str]:
    total = shown_plan.total_lines(report, command_to_run(report.workflow, workflows))
    head = [shown_plan.head_line(report), "", shown_plan.plan_table(report), "", *shown_plan.alias_lines(report)]
    return [*head, *shown_plan.reason_lines(report), *total, *shown_plan.prompt_lines(report)]


def print_card(card: CardReport) -> None:
    """A card's facts on standard error, the message that the model sees on standard output."""
    for problem in card.warnings:
        say(str(problem))
    facts = {"card": f"{card.name} ({card.file})", "description": card.description, "model": card.model}
    facts["means"] = card.means
    for name, value in {**facts, **card.params}.items():
        if value is not None:
            say(f"{name}: {value}")
    say("system message:" if card.system else "system message: none")
    if card.system:
        print_text(card.system)
    for message in card.messages:
        say(f"{message['role']} message:")
        print_text(message["text"])


def print_drawing(report: GraphReport, file: Path | None, *, mermaid: bool, quiet: bool) -> None:
    """A workflow as a picture: into a file, or on standard output, where a terminal gets text only."""
    if file is None and not mermaid and sys.stdout.isatty():
        raise UsageError(
            "the drawing is an SVG, which a terminal does not show",
            remedy=f"Save it with `{command_line()} -o {report.workflow}.svg`, or print text with --mermaid.",
        )
    text = report.mermaid() if mermaid else report.svg()
    if mermaid and (warning := mermaid_warning(report, text)):
        say(styled("warning: ", "yellow") + warning)
    if file is not None:
        api.save_drawing(text, file)
        if not quiet:
            print_text(str(file))
        return
    print_text((text if is_unicode(sys.stdout.encoding) else unspelled(text, mermaid=mermaid)).rstrip("\n"))


def print_init(folder: Path, files: list[Path]) -> None:
    """What was made, and the next steps, each of which works as it is printed."""
    for path in files:
        print_text(f"  {path}")
    steps = ["agac validate", "agac run -a reviews", "agac status"]
    if folder != Path():
        steps.insert(0, f"cd {shlex.quote(str(folder))}")
    print_text("\nNext, without a key and at no cost:\n" + "\n".join(f"  {step}" for step in steps))
    print_text(
        "\nWith a real model: put OPENAI_API_KEY=… into .env, then\n  agac run -a reviews --model openai/gpt-5.4-mini"
    )

"""Prints results on standard output and everything else on standard error, in text, tables and
JSON.

It also has the words that all commands share: counts, sizes, times, money, and the command line as
it was typed. Text of models, inputs and files gets escapes for every character that would control a
terminal or would not be seen: on a terminal, in a file and in a pipe. What machines read (JSON,
CSV) is exact, except on a terminal."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import click

from agac.core.errors import Problem
from agac.core.keys import is_job, job_alias
from agac.core.text import (
    cells,
    cropped,
    is_unicode,
    json_shown,
    merge_command,
    padded,
    plain,
    squeezed,
)
from agac.core.types import Shard, counted, dollars

if TYPE_CHECKING:
    from agac.engine.stage_summary import CallCost
    from agac.engine.summary import RowCounts


_OWN = f"<{os.urandom(8).hex()}>"
"""Stands for the escape character in what agac colours itself, until it is printed: no row and no
model knows it."""


def harmless(text: str) -> str:
    """Escapes what a terminal would not show in text that agac may have coloured itself: its own
    colours stay."""
    return plain(text).replace(_OWN, "\x1b")


def first_line(text: str, limit: int = 300) -> str:
    """Puts a message on one line, of at most `limit` characters."""
    line = squeezed(text)
    if len(line) <= limit:
        return line
    return f"{line[:limit]}…"


LONG_CHARACTERS = 2_000
LONG_LINES = 100
"""The most characters and lines of a text on a terminal; in a file or a pipe nothing is cut."""


def shortened(
    text: str, characters: int = LONG_CHARACTERS, whole: str = "with --json, or in a pipe"
) -> str:
    """Returns the text or, on a terminal, the beginning of a long one and how to get the
    `whole`."""
    some = "\n".join(text[:characters].split("\n")[:LONG_LINES])
    if some == text or not sys.stdout.isatty():
        return text
    return f"{some}… ({len(text):,} characters: all of them {whole})"


def value_text(value: Any) -> str:
    """Returns a text as it is, another value as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def printable(line: str) -> str:
    """Makes a line fit to be shown. Its texts may be cut already, and say so at its end."""
    return plain(shortened(line, 2 * LONG_CHARACTERS))


def record_lines(rows: Iterable[Iterable[tuple[str, str]]], *, cut: bool) -> Iterator[str]:
    """Yields the fields of each row below one another, a value's lines indented; with `cut`, each
    cut to one line."""
    width = shutil.get_terminal_size().columns
    for number, row in enumerate(rows, start=1):
        yield f"row {number}"
        for name, text in row:
            if cut:
                line = f"  {plain(name)}: {_cell(text)}"
                note = f"… ({len(text):,} characters)"
                if cells(line) <= width:
                    yield line
                else:
                    yield cropped(line, width - len(note), "") + note
            else:
                yield f"  {plain(name)}: " + text.rstrip("\n").replace("\n", "\n    ")


def sentence(text: str) -> str:
    """Gives a message a capital letter, on a line of its own."""
    return plain(text[:1].upper() + text[1:])


ROW_OUTCOMES = ("done", "skipped", "failed", "dropped", "open")
TASK_OUTCOMES = ("done", "reused", "failed", "skipped", "dropped")
BY_GUARDS = ("skipped", "dropped")  # outcomes that most workflows do not have


def outcome_names(names: Sequence[str], counts: Sequence[object]) -> list[str]:
    """Finds the outcomes that a table has columns for: those of guards only if there are any.
    `counts` are records with a field for each."""
    return [
        name
        for name in names
        if name not in BY_GUARDS or any(getattr(count, name) for count in counts)
    ]


def calls_remedy(run: int, workflow: str) -> str:
    """Says how to decide on calls of tools that may or may not have happened."""
    command = f"agac retry {run} --error ToolOutcomeUnknown"
    if is_job(workflow):
        command = f"agac resume {job_alias(run)}"
    return (
        f"look whether the calls were made, and say so: {command} --repeat-calls (or "
        "--skip-calls, where the row's error names it)"
    )


def row_words(rows: RowCounts) -> str:
    """`58 done, 2 dropped`: the outcomes of rows, without those that no row has."""
    counts = rows._asdict()
    return ", ".join(
        f"{counts[name]:,} {name}" for name in ROW_OUTCOMES if counts[name] or name == "done"
    )


def run_name(workflow: str, run: int) -> str:
    """`reviews, run 3`, or `job_3`: agac made the name of a row run's workflow, so it is not
    shown."""
    if is_job(workflow):
        return job_alias(run)
    return f"{workflow}, run {run}"


def selection_words(selection: dict[str, Any]) -> str:
    """Says which rows of the input take part; empty for all."""
    if not selection:
        return ""
    limit = selection.get("limit")
    offset = selection.get("offset", 0)
    sample = selection.get("sample")
    rows = "all rows"
    if sample is not None:
        rows = f"{counted(sample, 'row')} drawn with seed {selection.get('seed', 0)}"
    if limit is not None:
        limited = counted(limit, "row")
        rows = limited if sample is None else f"{limited} of {rows}"
    shard = selection.get("shard")
    if shard:
        rows = f"shard {Shard(*shard)} of {rows}"
    return f"{rows} from row {offset + 1:,}" if offset else rows


def shard_line(complete: bool, command: str) -> str:
    """Says where the rows of a shard's run are, and what to do next; `command` resumes it."""
    there = "Its rows are in the remote" if complete else "It is not complete"
    return (
        f"{there}. All shards: agac status --shards; once they are complete: "
        f"{merge_command(command)}"
    )


def megabytes(size: int) -> str:
    """`3.4 MB`."""
    return f"{size / 1e6:,.1f} MB"


def price(usd: float | None, *, simulated: bool) -> str:
    """`$12.40`, `simulated $0.0103`, `price unknown`."""
    if usd is None:
        return "price unknown"
    return dollars(usd, None, simulated=simulated)


def cost_of(cost: CallCost) -> str:
    """Says the cost of calls, never guessed: `$0.0123`, `simulated $0.0123`, and how many calls
    have no known price."""
    unpriced = counted(cost.unpriced, "call") + " of unknown cost"
    if cost.usd is None:
        return unpriced
    priced = dollars(cost.usd, simulated=cost.is_simulated)
    if cost.unpriced:
        return f"{priced} and {unpriced}"
    return priced


def short_name_line(alias: Mapping[str, str | None]) -> str:
    """`Model sonnet = anthropic/claude-…`: the model of a short name."""
    return f"Model {alias['written']} = {alias['means']}"


def batch_name(number: object, provider_id: str | None) -> str:
    """`batch 4 (batch_abc123)`: both names by which it can be given."""
    if provider_id:
        return f"batch {number} ({plain(provider_id)})"
    return f"batch {number}"


def spent_line(budget: Mapping[str, Any], simulated: bool) -> str:
    """`budget of the run: $0.0051 of $0.0060 spent, and at most $0.0002 by calls of unknown cost;
    12 of 40 calls`."""
    units = [
        _spent_words(unit, amounts, simulated=simulated)
        for unit, amounts in budget.items()
        if isinstance(amounts, dict)
    ]
    return f"{budget['name']}: {'; '.join(units)}"


def _spent_words(unit: str, amounts: Mapping[str, Any], *, simulated: bool) -> str:
    """`12 of 40 calls spent`: how much of one unit of a budget is gone."""
    if unit == "usd":
        is_simulated = "simulated " if simulated else ""
        what = f"{is_simulated}{dollars(amounts['spent'])} of {dollars(amounts['limit'])}"
        held = dollars(amounts["held"])
    else:
        what = f"{amounts['spent']:,.0f} of {amounts['limit']:,.0f} {unit}"
        held = f"{amounts['held']:,.0f}"
    if amounts["held"]:
        return f"{what} spent, and at most {held} by calls of unknown cost"
    return f"{what} spent"


def table(
    header: Sequence[str], rows: Sequence[Sequence[object]], *, one_line: bool = False
) -> str:
    """Lays out columns as wide as their widest cell, with numbers to the right.

    On a terminal the header is bold. If the table is too wide for it, cells wrap between words
    or, with `one_line`, are cut; if that is not enough, the cells of each row are printed below
    one another. Elsewhere it is plain text, of which nothing is cut.
    """
    if not sys.stdout.isatty():
        return "\n".join(table_lines(header, [rows]))
    width = shutil.get_terminal_size().columns
    lines = [[cropped(_cell(value), width) for value in row] for row in rows]
    columns = [*zip(header, *lines, strict=True)]
    if one_line:
        columns = _cut_to_fit(columns, width)
    longest_words = [
        max(cells(word) for text in column for word in [*text.split(), ""]) for column in columns
    ]
    if sum(longest_words) + 2 * (len(longest_words) - 1) > width:
        records = (zip(header, map(_cell, row), strict=True) for row in rows)
        return "\n".join(record_lines(records, cut=True))
    return _wrapped(columns, longest_words, _are_numbers(header, rows), width)


def _cut_to_fit(columns: list[tuple[str, ...]], width: int) -> list[tuple[str, ...]]:
    """Cuts cells so far that a row fits, if that leaves something of them to be read."""
    widest = [max(map(cells, column)) for column in columns]
    room = width - 2 * len(columns) + 2
    for most in range(width, NARROW, -1):
        if sum(min(most, size) for size in widest) <= room:
            return [tuple(cropped(text, most) for text in column) for column in columns]
    return [tuple(cropped(text, width) for text in column) for column in columns]


def _wrapped(
    columns: list[tuple[str, ...]], least: list[int], are_numbers: list[bool], width: int
) -> str:
    """Lays out columns, each with its header first, that are at least so wide, for a terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column, smallest, is_number in zip(columns, least, are_numbers, strict=True):
        justify: Literal["left", "right"] = "right" if is_number else "left"
        shown.add_column(Text(column[0]), justify=justify, min_width=smallest)
    for row in zip(*(column[1:] for column in columns), strict=True):
        shown.add_row(*(Text(cell, STATE_COLOURS.get(cell, "")) for cell in row))
    console = Console(
        width=width,
        color_system="standard" if _has_colours(sys.stdout) else None,
        force_terminal=True,
    )
    with console.capture() as capture:
        console.print(shown)
    lines = capture.get().replace("\x1b", _OWN).rstrip("\n").split("\n")
    return "\n".join(line.rstrip() for line in lines)


NARROW = 8  # cells of a column that may be cut: of less nothing could be read

STATE_COLOURS = {
    "finished": "green",
    "done": "green",
    "running": "cyan",
    "waiting": "cyan",
    "stopped": "yellow",
    "killed": "red",
    "failed": "red",
}


def _cell(value: object) -> str:
    """Writes a cell of a table on one line."""
    if isinstance(value, int) and not isinstance(value, bool):
        text = f"{value:,}"
    else:
        text = str(value)
    return plain(text.replace("\r", "\\r").replace("\n", "\\n"))  # a line is a row


def table_lines(
    header: Sequence[str],
    blocks: Iterable[Sequence[Sequence[object]]],
    cell: Callable[[object], object] = lambda v: v,
) -> Iterator[str]:
    """Yields the plain table of any number of rows: columns are as wide as the widest cell so far,
    and only a block is kept. `cell` makes a text of a value, where its number with `,` is not
    enough."""
    names = [_cell(name) for name in header]
    widths = [cells(name) for name in names]
    right = None
    for rows in blocks:
        lines = [[_cell(cell(value)) for value in row] for row in rows]
        widths = [
            max([width, *map(cells, column)]) for width, *column in zip(widths, *lines, strict=True)
        ]
        if right is None:
            right = _are_numbers(header, rows)
            lines.insert(0, names)
        yield from ("  ".join(map(padded, line, widths, right)).rstrip() for line in lines)


def _are_numbers(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[bool]:
    return [all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]


_plain_only = False


def use_no_colour() -> None:
    """Makes text plain from now on, on a terminal too."""
    global _plain_only
    _plain_only = True


def print_text(text: str, *, flush: bool = False) -> None:
    """Prints a result for people on standard output."""
    print(_for_people(text), flush=flush)


def print_data(lines: Iterable[str], *, is_json: bool = False, flush: bool = False) -> None:
    """Prints lines for machines, such as those of CSV or, with `is_json`, of JSON: exact, unless
    it is a terminal."""
    shown = json_shown if is_json else plain
    for line in lines:
        print(shown(line) if sys.stdout.isatty() else line, flush=flush)


def print_markdown(text: str) -> None:
    """Prints Markdown, in which the texts of others have their escapes already; what agac joins
    them with stays."""
    print(_of_this_shard(text))


def print_lines(lines: Iterable[str]) -> None:
    """Prints results for people, line by line."""
    for line in lines:
        print_text(line)


def print_json(value: Any) -> None:
    """Prints a result for machines on standard output."""
    # a stream without all characters gets JSON's own escapes, so that it stays JSON
    text = json.dumps(
        value, ensure_ascii=not is_unicode(sys.stdout.encoding), indent=2, allow_nan=False
    )
    print(json_shown(text) if sys.stdout.isatty() else text)


def print_report(
    report: Any, lines: Callable[[Any], Iterable[str]], *, as_json: bool, quiet: bool = False,
    text: Callable[[str], None] = print_text,
) -> None:  # fmt: skip
    """Prints a report of the API: with `as_json` its JSON, else the `text` of the lines made of
    it, unless `quiet`."""
    if as_json:
        print_json(report.as_json())
    elif not quiet:
        text("\n".join(lines(report)))


def print_problems(problems: Sequence[Problem], stream: TextIO) -> None:
    """Prints problems on a stream, after the results printed before."""
    _flush_results()
    for problem in problems:
        print(_for_people(str(problem)), file=stream)


def say(text: str) -> None:
    """Prints on standard error, after the results printed before: both may go to one file."""
    _flush_results()
    print(_for_people(text), file=sys.stderr)


def say_error(message: str, *more: str, word: str = "error", colour: str = "red") -> None:
    """Says `error: message`, then further lines below it."""
    say("\n".join([styled(f"{word}: ", colour) + message, *(f"  {line}" for line in more)]))


def styled(text: str, colour: str) -> str:
    """Colours a text if standard error is a terminal and the user did not ask for plain text."""
    if _has_colours(sys.stderr):
        return click.style(text, fg=colour).replace("\x1b", _OWN)
    return text


def _has_colours(stream: TextIO) -> bool:
    return stream.isatty() and not _plain_only and not os.environ.get("NO_COLOR")


_OF_A_STORE = re.compile(
    r"\bagac (?=(?:batch|doctor|export|inspect|retry|show|status|why)\b)(?![^`;\n]*--shard)"
)


def _of_this_shard(text: str) -> str:
    """Adds to the commands in a text the shard whose store they are about."""
    shard = os.environ.get("AGAC_SHARD")
    if shard:
        return _OF_A_STORE.sub(f"agac --shard {shard} ", text)
    return text


def _for_people(text: str) -> str:
    """Escapes every character of replies, rows, files and names that would not be seen."""
    return harmless(_of_this_shard(text))


def _flush_results() -> None:
    """Flushes standard output. Text that cannot be written here stays in the buffer and is
    reported at the end of the program."""
    with suppress(OSError):
        sys.stdout.flush()


def confirmed(question: Any) -> bool | Literal["batch"] | None:
    """Asks the user, a text or a `Quote`. None: there is no user at a terminal. Ctrl-C ends the
    command at once."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    choices = getattr(question, "choices", " [y/N]")
    # an event loop would only take note of it
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        while True:
            print(f"{plain(str(question))}{choices}: ", end="", file=sys.stderr, flush=True)
            # in short steps: a Ctrl-C just before a blocking read would be seen only after it, when
            # a key is pressed
            while os.name == "posix" and not select.select([sys.stdin], [], [], 0.1)[0]:
                pass
            answer = sys.stdin.readline().strip().lower()
            if answer == "batch" and answer in choices:
                return "batch"
            if answer in ("y", "yes", "n", "no", ""):
                return answer in ("y", "yes")
    finally:
        signal.signal(signal.SIGINT, before)


def from_here(path: Path) -> str:
    """Writes a path as it can be typed in the current folder."""
    return os.path.relpath(path)


def typed_command() -> str:
    """Gives the command as the user typed it."""
    return shlex.join(["agac", *sys.argv[1:]])


SWITCHES = ("--dry-run", "--json", "--markdown", "--no-retry-failed", "--wait")
"""The flags without a value among those that `without` removes."""


def without(command: str, *flags: str) -> str:
    """Removes flags, with their values, from a command."""
    words = iter(shlex.split(command))
    kept = []
    for word in words:
        if word in flags and word not in SWITCHES:
            next(words, None)
        elif word.partition("=")[0] not in flags:
            kept.append(word)
    return shlex.join(kept)


def command_to_resume(workflow: str, workflows: Sequence[str], *, fresh: bool = False) -> str:
    """Makes the command that resumes one of several workflows, of that which was typed.

    It has no `--fresh`, which would start again, unless `fresh`.
    """
    words = [word for word in sys.argv[1:] if word != "--fresh" or fresh]
    if len(workflows) > 1:
        words = [*_without_workflows(words, workflows), "-a", workflow]
    return shlex.join(["agac", *words])


def _without_workflows(words: list[str], workflows: Sequence[str]) -> Iterator[str]:
    """Yields the words of a command that do not name a workflow."""
    naming = {"-a", "--workflow", *workflows}
    for name in workflows:
        naming |= {f"-a{name}", f"--workflow={name}"}
    with_value = _flags_with_value() - {"-a", "--workflow"}
    before = ""
    for word in words:
        is_name = word in naming or before in ("-a", "--workflow")
        if before in with_value or not is_name:
            yield word
        before = word


def _flags_with_value() -> set[str]:
    """Finds the flags of the command at work that take a value."""
    context = click.get_current_context(silent=True)
    if not context:
        return set()
    return {
        flag
        for option in context.command.params
        if isinstance(option, click.Option) and not (option.is_flag or option.count)
        for flag in option.opts
    }


def command_to_run(workflow: str, workflows: Sequence[str]) -> str:
    """`agac plan …`, or `agac run … --dry-run`, as the `agac run …` that does it, for one of its
    workflows."""
    command = command_to_resume(workflow, workflows, fresh=True)
    words = shlex.split(
        without(command, "--show", "--against", "--json", "--markdown", "--dry-run")
    )
    if "plan" in words:
        words[words.index("plan")] = "run"
    return shlex.join(words)

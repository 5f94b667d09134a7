"""The project: `init`, `validate`, `lint`, `data`, `card`, `schema`, `graph`, `export`, `gc`,
`simulate`."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agac import __version__, api
from agac.cli import main, terminal
from agac.cli.terminal import (
    from_here,
    megabytes,
    print_json,
    print_report,
    print_text,
    say,
    table,
    value_text,
)
from agac.core.errors import AgacError, ExitCode, Problem, Requirement, UsageError, requirements
from agac.core.keys import is_job, job_alias
from agac.core.text import is_unicode, plain, row_command
from agac.core.types import counted, dollars
from agac.simulator.settings import Settings, SimulatorError, setting_flags
from agac.spec.paths import project_root

if TYPE_CHECKING:
    from agac.api.agents import TrialReport
    from agac.api.cards import LockReport
    from agac.api.extras import BackupReport, DataReport, GcReport, SchemasReport
    from agac.api.graph import GraphReport
    from agac.store.history import RunLine


@click.command(help="Make a project that works at once, on the simulator: no key, no cost.")
@click.argument(
    "folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, file_okay=False)
)
@click.option(
    "--example", metavar="NAME", help="Make the project of this example, or add it to one."
)
@click.option("--list", "as_list", is_flag=True, help="Only list the examples.")
@main.json_option
@click.pass_obj
def init(
    settings: main.Globals, folder: Path, example: str | None, as_list: bool, as_json: bool
) -> None:
    """Refuses to overwrite any file. Prints the next steps, each of which works as it is
    printed."""
    if as_list:
        found = api.examples()
        lines = [
            table(["example", "what it does"], [*found.items()]),
            "",
            "Make one: agac init --example NAME [DIR]",
        ]
        print_json(found) if as_json else print_text("\n".join(lines))
        return
    made = api.init(folder, example)
    name = example or "reviews"
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in made]})
        return
    if settings.quiet:
        return
    for path in made:
        print_text(f"  {path}")
    steps = ["agac validate", f"agac run -a {name}", "agac status"]
    if folder != Path():
        steps.insert(0, f"cd {shlex.quote(str(folder))}")
    print_text("\nNext, without a key and at no cost:\n" + "\n".join(f"  {step}" for step in steps))
    real = f"agac run -a {name} --model openai/gpt-5.4-mini --limit 5"
    print_text(f"\nWith a real model: put OPENAI_API_KEY=… into .env, then\n  {real}")


@click.command(help="Check workflows without running them: every problem of every file at once.")
@main.workflow_options(
    "Only this workflow, or several; otherwise all of the project.", required=False
)
@main.json_option
@click.pass_obj
def validate(settings: main.Globals, workflows: tuple[str, ...], as_json: bool) -> int:
    """Exit 2 when there is an error. Problems are the result, so they go to standard output."""
    report = api.validate(workflows, project=settings.project_dir)
    if as_json:
        print_json(report.as_json())
    else:
        terminal.print_problems(report.problems, sys.stdout)
        errors = sum(problem.severity == "error" for problem in report.problems)
        if not report.ok:
            say(terminal.styled(f"{counted(errors, 'problem')} found", "red"))
        elif not settings.quiet:
            print_text(
                f"{counted(len(report.workflows), 'workflow')} valid: "
                f"{', '.join(report.workflows) or 'none'}"
            )
    return ExitCode.DONE if report.ok else ExitCode.USAGE


@click.command(
    help=(
        "Find what is allowed and seldom meant: unused vars, secrets, models that move, "
        "missing budgets."
    )
)
@main.workflow_options(
    "Only this workflow, or several; otherwise all of the project.", required=False
)
@click.option(
    "--format", "form", type=click.Choice(["text", "github"]), default="text", help="How to print."
)
@main.json_option
@click.pass_obj
def lint(settings: main.Globals, workflows: tuple[str, ...], form: str, as_json: bool) -> int:
    """Exit 0 nothing was found, 1 something was, 2 a file has errors."""
    report = api.lint(workflows, project=settings.project_dir)
    found = [*report.problems, *report.findings]
    lines = [_annotation(one, settings) if form == "github" else str(one) for one in found]
    if not lines and form == "text" and not settings.quiet:
        lines = [f"{counted(len(report.workflows), 'workflow')}: nothing found"]
    terminal.print_report(report, lambda _: lines, as_json=as_json, quiet=not lines)
    if report.problems:
        return ExitCode.USAGE
    if found:
        return ExitCode.FAILED
    return ExitCode.DONE


def _annotation(found: Problem, settings: main.Globals) -> str:
    """A line that GitHub Actions shows beside that of the file, whose path is relative to the
    folder of the job."""
    rule = getattr(found, "rule", None)
    where = found.where
    file = terminal.from_here(project_root(settings.project_dir) / where.file)
    keys = {
        "file": file,
        "line": where.line,
        "col": where.column,
        "title": f"agac {rule or 'validate'}",
    }
    said = ",".join(
        f"{key}={_escaped(str(value), ':,')}" for key, value in keys.items() if value is not None
    )
    message = f"{where.path}: {found.message}" if where.path else found.message
    return f"::{'warning' if rule else 'error'} {said}::{_escaped(message)}"


def _escaped(text: str, more: str = "") -> str:
    return "".join(f"%{ord(sign):02X}" if sign in f"%\r\n{more}" else sign for sign in text)


def running() -> dict[str, Any]:
    """Which agac runs, by which Python; the command `agac` that a shell finds, and whether it
    starts this one."""
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
    print_json(running()) if as_json else print_text(running_text())


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
    """What agac needs, and what of it is missing or too old. Exit 1 when agac cannot do without
    it."""
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


@click.command(
    help="Show an input: its format and size, its columns with their types, its first rows. "
    "INPUT is a file, several, a pattern in quotes, sqlite://DATABASE?table=NAME (or "
    "?query=SELECT …), or - for standard input."
)
@click.argument("inputs", type=click.Path(), metavar="INPUT...", nargs=-1, required=True)
@click.option(
    "--format",
    metavar="NAME",
    help="Read it as csv, tsv, json, jsonl, txt, parquet, xlsx or files.",
)
@click.option(
    "--delimiter", metavar="SIGN", help="The character between the cells of a csv or tsv file."
)
@click.option(
    "--encoding", metavar="NAME", help="How text is written, such as cp1252; UTF-8 if left out."
)
@click.option(
    "--sheet", metavar="SHEET", help="The sheet of an xlsx file: its name, or its number from 1."
)
@click.option(
    "--hive",
    is_flag=True,
    default=None,
    help="Make fields of the folders of parquet files: year=2024.",
)
@click.option(
    "--sql",
    metavar="SELECT",
    help="Show what this statement makes of the rows, which are the table input.",
)
@click.option(
    "--rows",
    type=click.IntRange(0),
    default=5,
    metavar="N",
    show_default=True,
    help="Show the first N rows.",
)
@click.option(
    "--scan-rows", "look_at", type=click.IntRange(1), default=1_000, metavar="N", show_default=True,
    help="Find the types from the first N rows.",
)  # fmt: skip
@main.json_option
@click.pass_obj
def data(settings: main.Globals, /, inputs: tuple[str, ...], as_json: bool, **how: Any) -> None:
    sheet = how.pop("sheet")
    how["sheet"] = int(sheet) if sheet and sheet.isdigit() else sheet
    report = api.show_data(inputs, project=settings.project_dir, **how)
    print_report(report, lambda found: data_lines(found, cut=sys.stdout.isatty()), as_json=as_json)


def data_lines(report: DataReport, *, cut: bool) -> Iterator[str]:
    """An input: its size, a table of its columns, its first rows. `cut`: whether to cut long
    values off."""
    files = f"{counted(report.files, 'file')}, " if report.files != 1 else ""
    scanned = counted(report.looked_at, "row")
    size = report.size
    bytes_ = counted(size, "byte")
    if size >= 10_000:
        if size < 1e6:
            bytes_ = f"{size / 1e3:,.0f} kB"
        elif size < 1e9:
            bytes_ = megabytes(size)
        else:
            bytes_ = f"{size / 1e9:,.1f} GB"
    rows = scanned if report.complete else f"more than {scanned}"
    yield f"{plain(report.input)}: {report.format}, {files}{bytes_}, {rows}\n"
    if report.columns:
        if report.complete:
            over = ""
        else:
            over = f", over the first {counted(report.looked_at - report.unusable, 'row')}"
        yield f"Columns{over}:"
        known = [[plain(c.name), c.type, c.nulls, c.empty, c.missing] for c in report.columns]
        yield table(["column", "type", "null", "empty", "missing"], known)
    else:
        yield "No columns: no row was read."
    if report.rows:
        yield ""
        yield from _first_rows(report, cut)
    if report.hint:
        yield f"\n{plain(report.hint)}"
    if report.unusable:
        some = "" if report.unusable == len(report.problems) else ", the first"
        yield f"\n{counted(report.unusable, 'row')} cannot be used{some}:"
        yield from (f"  {plain(problem)}" for problem in report.problems)


def _first_rows(report: DataReport, cut: bool) -> Iterator[str]:
    names = [column.name for column in report.columns]
    texts = [
        [plain(value_text(row[name])) if name in row else "" for name in names]
        for row in report.rows
    ]
    yield "First row:" if len(texts) == 1 else f"First {len(texts)} rows:"
    widths = [max(map(len, column)) + 2 for column in zip(names, *texts, strict=True)]
    # a wider table could not be read: one row is shown below the other instead
    if sum(widths) <= 100 and not any("\n" in text for line in texts for text in line):
        yield table([plain(name) for name in names], texts)
        return
    shown = (
        [(name, plain(value_text(value))) for name, value in row.items()] for row in report.rows
    )
    yield from terminal.record_lines(shown, cut=cut)


_variables = click.option(
    "--var", "variables", metavar="NAME=VALUE", multiple=True, help="A variable of the card."
)


@click.group(
    cls=main.CommandGroup, help="Show and try AgentCards, and lock what their MCP servers offer."
)
def card() -> None:
    """Has a subcommand for each thing to be shown."""


@card.command("show", help="Show the messages of an AgentCard as the model gets them.")
@click.argument("name")
@_variables
@main.json_option
@click.pass_obj
def show(settings: main.Globals, name: str, variables: tuple[str, ...], as_json: bool) -> None:
    """The facts go to standard error, the instruction to standard output: as it is sent, but that
    characters which people would not see are escapes. `--json` has them exactly."""
    report = api.show_card(
        name, variables=main.read_variables(variables), project=settings.project_dir
    )
    if as_json:
        print_json(report.as_json())
        return
    for problem in report.warnings:
        say(str(problem))
    facts: dict[str, Any] = {
        "card": f"{report.name} ({report.file})",
        "description": report.description,
    }
    facts |= {"type": report.type} if report.type != "agent" else {}
    facts |= {
        "model": report.model,
        "means": report.means,
        **report.params,
        "max_turns": report.max_turns,
    }
    for key, value in facts.items():
        if value is not None:
            say(f"{key}: {value}")
    if report.stages:
        print_text("\n".join(_part_lines(report.stages)))
        say(f"at most {counted(report.most_calls or 0, 'call')} a row")
        return
    say("system message:" if report.system else "system message: none")
    if report.system:
        print_text(report.system)
    for message in report.messages:
        say(f"{message['role']} message:")
        print_text(message["text"])
    for tool in report.tools:
        say(f"tool {tool['name']} ({tool['kind']}, {tool['source']}): {tool['description']}")
        print_text(json.dumps(tool["parameters"], ensure_ascii=False))
    say(f"about {report.estimated_tokens:,} tokens before each row, as agac estimates them")


def _part_lines(stages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The stages that a card becomes, in the order in which a row meets them."""
    for one in stages:
        who = ", ".join(filter(None, (one["agent"], one["does"])))
        turns = f", up to {one['calls']} calls" if one["calls"] > 1 else ""
        after = f"{', '.join(one['needs'])} → " if one["needs"] else ""
        yield f"{after}{one['name']}   ({who}{turns})"
        yield from (f"    {word} {one[word]}" for word in ("when", "amends") if one[word])


@card.command(
    "lock",
    help=(
        "Write what the MCP servers of an AgentCard offer into its lock file, to be "
        "reviewed in git."
    ),
)
@click.argument("name")
@click.option(
    "--check", is_flag=True, help="Only compare; exit 1 where the servers differ from the file."
)
@main.trust_option
@main.json_option
@click.pass_obj
def lock(settings: main.Globals, name: str, check: bool, trust_card: bool, as_json: bool) -> int:
    """Of a card, or of one server of agac.yml. Starts or connects the servers, and calls none of
    their tools."""
    lock_card = main.long_running(api.lock_card)
    report = lock_card(name, check=check, trust_card=trust_card, project=settings.project_dir)
    print_report(report, lock_lines, as_json=as_json, quiet=settings.quiet and not report.changes)
    if check and report.changes:
        return ExitCode.FAILED
    return ExitCode.DONE


@card.command(
    "try",
    help="Ask an AgentCard about one MESSAGE, or one row; show its turns, calls of tools and cost.",
)
@click.argument("name")
@click.argument("message", required=False)
@click.option(
    "--row",
    metavar="FILE:N",
    help="Ask about row N of this file, from 1, in the place of a message.",
)
@_variables
@main.model_option
@main.tool_options
@main.json_option
@click.pass_obj
def trial(
    settings: main.Globals,
    /,
    name: str,
    message: str | None,
    row: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    options = api.RunOptions(yes=True, vars=main.read_variables(given.pop("variables")), **given)
    report = main.long_running(api.try_card)(
        name, message, row=row, options=options, project=settings.project_dir
    )
    if as_json:
        print_json(report.as_json())
    else:
        say("\n".join(_trial_lines(report)))
        if report.error is None:
            print_text(
                report.output
                if isinstance(report.output, str)
                else json.dumps(report.output, indent=2)
            )
    return ExitCode.ROWS_FAILED if report.error else ExitCode.DONE


def _trial_lines(report: TrialReport) -> Iterator[str]:
    for turn in report.turns:
        agent = f" of {turn['agent']}" if turn["agent"] else ""
        yield (
            f"turn {turn['number']}{agent}: "
            f"{'answer' if not turn['calls'] else counted(len(turn['calls']), 'call')}"
        )
        for call in turn["calls"]:
            if call["how"] or call["state"] != "done":
                how = f" [{call['how'] or call['state']}]"
            else:
                how = ""
            result = plain(" ".join((call["result"] or "").split()))
            yield (
                f"  {plain(call['name'])}({plain(call['arguments'])}){how} -> "
                f"{terminal.shortened(result, 200)}"
            )
    tokens = (
        f"{report.usage.input_tokens or 0:,} tokens in, {report.usage.output_tokens or 0:,} out"
    )
    if report.cost_usd is None:
        cost = "price unknown"
    else:
        cost = dollars(report.cost_usd, simulated=report.simulated)
    yield (
        f"{counted(report.replies, 'reply', 'replies')}, {tokens}, {cost}; see "
        f"{row_command(report.run, report.row)}"
    )
    if report.error is not None:
        yield f"{report.error.type}: {report.error.message}"


def lock_lines(report: LockReport) -> Iterator[str]:
    for server, tools in report.servers.items():
        yield f"{server}: {counted(len(tools), 'tool')}: {', '.join(map(plain, tools))}"
    for server, change in report.changes.items():
        yield f"{server} {plain(change)}"
    for tool in report.told_otherwise:
        yield f"models are told of {plain(tool)}"
    if report.written:
        yield f"{report.file} is written. Review it: models are told what is in it."
    else:
        yield f"{report.file} {'differs' if report.changes else 'is as it was'}"


KINDS = ("workflow", "project", "card", "test")


@click.command(
    help=(
        "Print the JSON Schema of workflows, agac.yml (project), AgentCards (card) or "
        "tests, for editors."
    )
)
@click.argument("kind", type=click.Choice(KINDS), required=False)
@click.option(
    "--write",
    is_flag=True,
    help="Write all of them into .agac/schemas/, and show an editor's settings.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON; a schema always is.")
@click.pass_obj
def schema(settings: main.Globals, kind: str | None, write: bool, as_json: bool) -> None:
    if write == (kind is not None):
        raise click.UsageError(f"Name one of {', '.join(KINDS)}, or give --write for all of them.")
    if kind is not None:
        print_json(api.file_schema(kind))
        return
    print_report(api.write_schemas(project=settings.project_dir), schema_lines, as_json=as_json)


def schema_lines(report: SchemasReport) -> Iterator[str]:
    path, patterns = next(iter(report.settings["yaml.schemas"].items()))
    yield from (f"  {from_here(file)}" for file in report.files)
    yield (
        "\nVS Code, with the extension YAML (redhat.vscode-yaml): put this in "
        ".vscode/settings.json next to agac.yml"
    )
    yield from json.dumps(report.settings, ensure_ascii=False, indent=2).split("\n")
    yield "\nAny editor with a YAML language server: a first line in the workflow"
    yield f"# yaml-language-server: $schema={'../' * patterns[0].count('/')}{path}"


@click.command(
    help="Draw a workflow: its stages, their needs, and the outcomes of its last run. Prints an "
    "SVG for a file or a pipe, and Mermaid text on a terminal; see --mermaid and --output."
)
@main.workflow_options("The workflow: its name, or its file.", required=False)
@click.option(
    "--run",
    metavar="RUN",
    help="The workflow as it was in a run (its number, or `last`), with its counts.",
)
@click.option("--mermaid", is_flag=True, help="Mermaid text instead, as Markdown pages draw it.")
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the drawing to this file.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the content of the drawing as JSON.")
@click.pass_obj
def graph(
    settings: main.Globals,
    workflows: tuple[str, ...],
    run: str | None,
    mermaid: bool,
    file: Path | None,
    as_json: bool,
) -> None:
    if as_json and (mermaid or file is not None):
        raise click.UsageError(
            "--json excludes --mermaid and --output.", click.get_current_context()
        )
    if len(workflows) > 1:
        raise click.UsageError(f"agac graph takes one workflow, not {len(workflows)}")
    report = api.graph(next(iter(workflows), None), run=run, project=settings.project_dir)
    if as_json:
        print_json(report.as_json())
    else:
        print_drawing(report, file, mermaid=mermaid, quiet=settings.quiet)


def print_drawing(report: GraphReport, file: Path | None, *, mermaid: bool, quiet: bool) -> None:
    """Writes a workflow as a picture into a file, or prints it. A terminal gets Mermaid text: it
    shows no SVG."""
    mermaid = mermaid or (file is None and sys.stdout.isatty())
    text = report.mermaid() if mermaid else report.svg()
    edges = len(report.edges())
    if mermaid and (edges > MERMAID_EDGES or len(text) > MERMAID_CHARACTERS):
        message = (
            f"{counted(edges, 'line')} in {counted(len(text), 'character')}: pages draw Mermaid "
            f"text of {MERMAID_EDGES} lines and {MERMAID_CHARACTERS:,} characters at most, unless "
            "their maxEdges and maxTextSize say otherwise; the SVG has no such limit"
        )
        terminal.say_error(message, word="warning", colour="yellow")
    if file is not None:
        api.save_drawing(text, file)
        if not quiet:
            print_text(str(file))
        return
    # other characters become their numbers, as each of the two forms has them
    if not is_unicode(sys.stdout.encoding):
        text = re.sub(
            r"[^\x00-\x7f]", lambda found: f"{'' if mermaid else '&'}#{ord(found[0])};", text
        )
    print_text(text.rstrip("\n"))


MERMAID_EDGES = 500
MERMAID_CHARACTERS = 50_000
"""The largest drawing of a page with Mermaid's default settings (`maxEdges`, `maxTextSize`)."""


@click.command(
    help=(
        "Write a run's output files again, from the store; with --to its results into a "
        "file of their own."
    )
)
@click.option("-a", "--workflow", metavar="NAME", help="The newest run of this workflow.")
@click.option("--run", metavar="RUN", help="The run with this number, or `last`.")
@click.option("--partial", is_flag=True, help="Also when some rows have no outcome yet.")
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write only the results; - prints them.",
)
@click.option(
    "--format",
    metavar="NAME",
    help="With --to: jsonl, json, csv, tsv, txt or parquet; else by its suffix.",
)
@click.option("--force", is_flag=True, help="With --to: replace FILE if it exists.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.pass_obj
def export(settings: main.Globals, /, workflow: str | None, as_json: bool, **how: Any) -> None:
    if how["to"] is None and (how["format"] or how["force"]):
        raise click.UsageError(
            "--format and --force are for --to FILE", click.get_current_context()
        )
    printed = str(how["to"]) in ("-", "/dev/stdout")
    if printed and as_json:
        raise click.UsageError(
            "--json and --to - both print on standard output", click.get_current_context()
        )
    with tempfile.TemporaryDirectory(prefix="agac-export-") as folder:
        if printed:
            how |= {"to": Path(folder, "results"), "format": how["format"] or "jsonl"}
        summary, files = main.long_running(api.export)(
            workflow, **how, project=settings.project_dir
        )
        if printed and not sys.stdout.isatty():
            with files[0].open("rb") as found:
                shutil.copyfileobj(found, sys.stdout.buffer)
            return
        if printed:
            text = files[0].read_text("utf-8", "replace").rstrip("\n")
        else:
            text = "\n".join(map(str, files))
    if as_json:
        print_json({**summary, "files": [str(file) for file in files]})
    else:
        print_text(text)


@click.command(
    help="Keep the most recently used runs of each workflow; delete older runs, answers that no "
    "kept run uses and rows that left the input, and free their space."
)
@click.option(
    "--keep-runs",
    metavar="N",
    type=click.IntRange(1),
    required=True,
    help="Keep N per workflow (or jobs).",
)
@main.workflow_option
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@main.json_option
@click.pass_obj
def gc(
    settings: main.Globals, keep_runs: int, workflow: str | None, dry_run: bool, as_json: bool
) -> None:
    """Refused while a run is at work; killed at any point, the same command finishes it."""
    report = main.long_running(api.gc)(
        keep_runs, workflow, dry_run=dry_run, project=settings.project_dir
    )
    print_report(report, gc_lines, as_json=as_json, quiet=settings.quiet)


def _run_of(line: RunLine) -> str:
    """`run 3 of reviews`, or `job_3`."""
    if is_job(line.workflow):
        return job_alias(line.id)
    return f"run {line.id} of {line.workflow}"


def gc_lines(report: GcReport) -> Iterator[str]:
    cleared = report.cleared
    verb = "Would delete" if report.dry_run else "Deleted"
    for dropped in cleared.dropped:
        yield f"{verb} {_run_of(dropped.line)}: {counted(dropped.rows, 'row')}"
    parts = [
        (cleared.left_rows, "row", "left the input"),
        (cleared.gone_rows, "row", "stages no longer make"),
        (cleared.results, "answer", "no kept run uses"),
    ]
    for count, what, why in parts:
        if count:
            yield f"{verb} {counted(count, what)} that {why}"
    if not cleared.dropped and not any(count for count, _, _ in parts):
        yield "Nothing to delete"
    if cleared.kept:
        yield f"Kept: {', '.join(map(_run_of, cleared.kept))}"
    before = megabytes(report.bytes_before)
    after = megabytes(report.bytes_after)
    yield f"Store: {before}" if report.dry_run else f"Store: {after}, before: {before}"


@click.command(help="Copy the database into FILE: whole and checked, also while a run is at work.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@main.json_option
@click.pass_obj
def backup(settings: main.Globals, file: Path, force: bool, as_json: bool) -> None:
    report = api.backup(file, force=force, project=settings.project_dir)
    print_report(report, backup_lines, as_json=as_json, quiet=settings.quiet)


def backup_lines(report: BackupReport) -> list[str]:
    here = replace(
        report, database=Path(from_here(report.database)), file=Path(from_here(report.file))
    )
    return [
        f"{here.file}: {megabytes(report.bytes)}",
        f"Restore it, while no run is at work, with: {here.restore}",
    ]


PORT = 8088


class WithKinds(click.Command):
    """A command whose help names every kind of fault."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from agac.simulator.faults import FAULTS

        with formatter.section("Kinds of faults, which the guide explains"):
            formatter.write_text(text=", ".join(FAULTS))


def setting_options(function: Callable[..., None]) -> Callable[..., None]:
    """An option for each setting of the simulator, as it is declared there."""
    for name, flag, default in reversed([*setting_flags()]):
        default = PORT if name == "port" else default
        if flag.kind is bool:
            option = click.option(
                f"--{flag.name}", name, flag_value=not default, default=default, help=flag.help
            )
        else:
            kind: Any = (
                click.Path(path_type=Path, dir_okay=False) if flag.kind is Path else flag.kind
            )
            if flag.least is not None:
                kind = (click.IntRange if flag.kind is int else click.FloatRange)(
                    flag.least, flag.most
                )
            option = click.option(
                f"--{flag.name}", name, type=kind, metavar=flag.metavar, default=default,
                show_default=default is not None, help=flag.help,
            )  # fmt: skip
        function = option(function)
    return function


@click.command(
    cls=WithKinds,
    help=(
        "Serve a simulated provider on this machine, until Ctrl-C. GET /account reports "
        "its requests and charges."
    ),
)
@setting_options
@click.option("--json", "as_json", is_flag=True, help="Print its address as one line of JSON.")
def simulate(as_json: bool, **settings: Any) -> None:
    from agac.simulator.server import run_simulator

    def ready(base_url: str) -> None:
        text = (
            f"Serving {base_url}   (account: {base_url.removesuffix('/v1')}/account, "
            "Ctrl-C ends it)"
        )
        print_text(json.dumps({"base_url": base_url}) if as_json else text, flush=True)

    try:
        main.long_running(run_simulator)(Settings(**settings), ready)
    except SimulatorError as error:
        kind = UsageError if error.exit_code == 2 else AgacError
        raise kind("; ".join(error.problems)) from error

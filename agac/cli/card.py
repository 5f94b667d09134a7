"""`agac card`: shows and tries AgentCards, and locks what their MCP servers offer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from agac import api
from agac.cli import main, terminal
from agac.cli.commands import CommandGroup
from agac.cli.terminal import (
    print_json,
    print_report,
    print_text,
    say,
)
from agac.core.errors import ExitCode
from agac.core.text import plain, row_command
from agac.core.types import counted, dollars

if TYPE_CHECKING:
    from agac.api.card_trial import TrialReport
    from agac.api.cards import CardReport, LockReport


_variables = click.option(
    "--var", "variables", metavar="NAME=VALUE", multiple=True, help="A variable of the card."
)


@click.group(
    cls=CommandGroup, help="Show and try AgentCards, and lock what their MCP servers offer."
)
def card() -> None:
    """Has a subcommand for each thing to be shown."""


@card.command("show", help="Show the messages of an AgentCard as the model gets them.")
@click.argument("name")
@_variables
@main.json_option
@click.pass_obj
def show(settings: main.Globals, name: str, variables: tuple[str, ...], as_json: bool) -> None:
    """Prints the facts to standard error, the instruction to standard output: as it is sent, except
    that characters which people would not see are escapes. `--json` has them exactly."""
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
        "type": None if report.type == "agent" else report.type,
        "model": report.model,
        "means": report.means,
        **report.params,
        "max_turns": report.max_turns,
    }
    for key, value in facts.items():
        if value is not None:
            say(f"{key}: {value}")
    _print_content(report)


def _print_content(report: CardReport) -> None:
    """Prints the messages and tools of a card, or the stages that it becomes."""
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
    """Yields the stages that a card becomes, in the order in which a row meets them."""
    for stage in stages:
        who = ", ".join(filter(None, (stage["agent"], stage["does"])))
        turns = f", up to {stage['calls']} calls" if stage["calls"] > 1 else ""
        after = f"{', '.join(stage['needs'])} → " if stage["needs"] else ""
        yield f"{after}{stage['name']}   ({who}{turns})"
        yield from (f"    {word} {stage[word]}" for word in ("when", "amends") if stage[word])


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
    """Writes the lock of a card, or of one server of agac.yml. Starts or connects the servers, and
    calls none of their tools."""
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
        if report.error is None and isinstance(report.output, str):
            print_text(report.output)
        elif report.error is None:
            print_text(json.dumps(report.output, indent=2))
    return ExitCode.ROWS_FAILED if report.error else ExitCode.DONE


def _trial_lines(report: TrialReport) -> Iterator[str]:
    """Yields the turns of a trial, its cost, and its error if it failed."""
    for turn in report.turns:
        agent = f" of {turn['agent']}" if turn["agent"] else ""
        ended = counted(len(turn["calls"]), "call") if turn["calls"] else "answer"
        yield f"turn {turn['number']}{agent}: {ended}"
        yield from map(_call_line, turn["calls"])
    tokens = (
        f"{report.usage.input_tokens or 0:,} tokens in, {report.usage.output_tokens or 0:,} out"
    )
    cost = "price unknown"
    if report.cost_usd is not None:
        cost = dollars(report.cost_usd, simulated=report.simulated)
    yield (
        f"{counted(report.replies, 'reply', 'replies')}, {tokens}, {cost}; see "
        f"{row_command(report.run, report.row)}"
    )
    if report.error is not None:
        yield f"{report.error.type}: {report.error.message}"


def _call_line(call: Mapping[str, Any]) -> str:
    """`  search({"q": "x"}) [cached] -> the result`."""
    how = ""
    if call["how"] or call["state"] != "done":
        how = f" [{call['how'] or call['state']}]"
    result = plain(" ".join((call["result"] or "").split()))
    return (
        f"  {plain(call['name'])}({plain(call['arguments'])}){how} -> "
        f"{terminal.shortened(result, 200)}"
    )


def lock_lines(report: LockReport) -> Iterator[str]:
    """Yields what servers offer, and what changed."""
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

"""Every command of `agac`: its module, imported when it is used, and its line in `agac --help`."""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from keyword import iskeyword

import click
from click.shell_completion import CompletionItem

from agac.cli.completion import add_completions, named_here
from agac.cli.usage_texts import AGAIN
from agac.core.errors import nearest

COMMANDS = {
    "validate": ("project", "Check workflows without running them."),
    "plan": ("plan", "Show what a run would call, reuse and cost, and why."),
    "test": ("ci", "Run the tests of workflows: offline, without keys."),
    "lint": ("project", "Find what is allowed and seldom meant."),
    "run": ("run", "Run a workflow, or resume it."),
    "retry": ("run", "Run failed rows of a run again."),
    "process": ("process", "Ask a model about each row of a file, without a workflow file."),
    "resume": ("process", "Resume such a job."),
    "merge": ("share", "Write the outputs of a run in shards."),
    "export": ("export", "Write a run's output files again, or its results elsewhere."),
    "status": ("status", "Show the newest runs, or one in full."),
    "ui": ("monitor", "Watch runs in the browser."),
    "show": ("inspect", "Show the results of a run, as a table."),
    "runs": ("status", "List all runs and what changed between them."),
    "diff": (
        "compare",
        "Show what a change of the files does: to prompts, to stored results, to the cost.",
    ),
    "compare": ("compare", "Compare the results of two runs, row by row."),
    "try": (
        "compare",
        "Ask a changed stage for a sample of rows, and compare the answers with the stored ones.",
    ),
    "eval": ("compare", "Hold answers of models against the labels of rows."),
    "review": ("review", "Decide on results that wait for people."),
    "fix": ("review", "Set the result of a row by hand."),
    "calibrate": ("review", "Find the threshold that decisions of people support."),
    "inspect": ("inspect", "Show a run, or every stage and attempt of a row."),
    "why": ("why", "Show why a task was run, and what changed since the last time."),
    "graph": ("graph", "Draw a workflow, with the outcomes of its last run."),
    "sql": ("store_query", "Run a SELECT on the store; nothing can be changed."),
    "data": ("show_data", "Show an input: columns, types, first rows."),
    "card": ("card", "Show AgentCards."),
    "batch": ("batch", "Follow, retrieve and cancel batches."),
    "doctor": ("batch", "Compare the store with the providers, and repair what differs."),
    "notify": ("status", "Try who is told of runs."),
    "push": ("share", "Put your answers into the team's remote."),
    "pull": ("share", "Take answers out of the team's remote."),
    "remote": ("share", "Look at the team's remote."),
    "ci": ("ci", "Do what a job of a forge is for, as looking at a change."),
    "init": ("project", "Make a project that works at once, on the simulator."),
    "gc": ("project", "Delete old runs and data that no kept run needs."),
    "backup": ("project", "Copy the database, also while a run is at work."),
    "schema": ("project", "Print JSON Schemas of agac's files, for editors."),
    "simulate": ("simulate", "Serve a simulated provider on this machine."),
    "completion": ("completion", "Print the script that makes a shell complete agac's commands."),
    "version": ("installation", "Show the version."),
}
"""Every command: its module, imported when it is used, and its line in `agac --help`."""

REMOVED = {
    "fmt": 'Format YAML files with Prettier (`prettier --write "**/*.{yml,yaml}"`) or yamlfmt.',
    "index": "Search rows in the monitor (`agac ui`); `agac gc` deletes old index files.",
}
"""Commands that agac no longer has, and what to use instead."""

SECTIONS = {
    "validate": "Run",
    "status": "Look",
    "batch": "Batch",
    "push": "Share",
    "init": "Project",
}
"""The sections of `agac --help`, each by its first command."""


class CommandGroup(click.Group):
    """Shows its help when no command is named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args or ctx.resilient_parsing else ["--help"])


class LazyGroup(CommandGroup):
    """Imports a command's module when the command is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Moves the flags of `agac` itself before the command, wherever they were given."""
        flags = self.global_flags()
        ours = []
        others = []
        remaining = iter(args)
        for word in remaining:
            name, sign, _ = word.partition("=")
            if re.fullmatch("-v+", name):
                name = "-v"
            if word == "--":
                others += [word, *remaining]
            elif name in flags:
                ours.append(word)
                if flags[name] and not sign:
                    ours.append(next(remaining, ""))
            else:
                others.append(word)
        if others[:1] == ["help"]:  # `agac help run` is `agac run --help`
            others = [*others[1:], "--help"]
        if not others and not ctx.resilient_parsing:
            return super().parse_args(ctx, ["--help"])
        return super().parse_args(ctx, [*ours, *others])

    def global_flags(self) -> dict[str, bool]:
        """Lists the flags of `agac` itself, and whether each takes a value."""
        options = [
            option
            for option in self.params
            if isinstance(option, click.Option) and not option.is_eager
        ]
        return {
            flag: not (option.is_flag or option.count) for option in options for flag in option.opts
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(import_module(f"agac.cli.{COMMANDS[cmd_name][0]}"), name)
        if ctx.resilient_parsing:
            return add_completions(command, cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            if ctx.resilient_parsing:
                return None, None, []  # a shell asks for completions: there are none
            hint = self._command_hint(ctx, args[0])
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            _refuse_repeated_options(command, rest, ctx)
        return name, command, rest

    def _command_hint(self, ctx: click.Context, word: str) -> str:
        """Says which command may be meant by one that does not exist."""
        if AGAIN.fullmatch(word):
            return named_here("`agac run -a WORKFLOW` goes on where the last one ended.", ctx)
        if word in REMOVED:
            return REMOVED[word]
        if word in getattr(self.get_command(ctx, "batch"), "commands", ()):
            return f"Did you mean 'agac batch {word}'?"
        near = nearest(word, COMMANDS)
        if near:
            return f"Did you mean 'agac {near}'?"
        return f"Commands: {', '.join(COMMANDS)}."

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for name, (_, text) in COMMANDS.items():
            if name in SECTIONS:
                sections.append((SECTIONS[name], []))
            sections[-1][1].append((name, text))
        for title, commands in sections:
            with formatter.section(title):
                formatter.write_dl(commands)


def _refuse_repeated_options(command: click.Command, args: list[str], ctx: click.Context) -> None:
    """Raises UsageError for an option with one value that is given twice: the first value would be
    lost."""
    context = click.Context(command, parent=ctx, info_name=command.name, resilient_parsing=True)
    given: list[click.Parameter] = []
    with suppress(click.UsageError):  # click reports it, with the usage
        given = command.make_parser(context).parse_args(list(args))[2]
    for option in dict.fromkeys(given):
        if not isinstance(option, click.Option) or option.multiple or option.is_flag:
            continue
        if given.count(option) > 1:
            raise click.UsageError(
                f"{max(option.opts, key=len)} is given twice; it takes one value", context
            )

"""The `agac` command: the group, its global flags, and the one place where an error becomes an exit code."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import click
from click.shell_completion import CompletionItem

from agac import __version__
from agac.cli import garbage, render
from agac.cli.logs import LogFormat, start_logging
from agac.core.errors import AgacError, ExitCode, UsageError

COMMANDS = {
    "init": "Make a project that works at once, on the simulator.",
    "validate": "Check workflows without running them.",
    "plan": "Show what a run would ask, reuse and cost, and why.",
    "run": "Run a workflow, or go on with it.",
    "status": "Show the newest runs, or one in full.",
    "runs": "List all runs and what changed between them.",
    "inspect": "Look at a run, or at everything that was asked of a row.",
    "retry": "Try failed rows of a run again.",
    "batch": "Follow batches, take what is ready, end them.",
    "doctor": "Compare the store with the providers, and set right what can be.",
    "why": "Show why a task was asked, and what differs from the last time.",
    "graph": "Draw a workflow, with what became of the rows of its last run.",
    "sql": "Ask the store a question in SQL; nothing can be changed.",
    "export": "Write a run's output files again.",
    "gc": "Drop old runs and what no kept run needs.",
    "backup": "Copy the database, also while a run is at work.",
    "data": "Look at an input: columns, types, first rows.",
    "card": "Look at AgentCards.",
    "schema": "Print JSON Schemas of agac's files, for editors.",
    "simulate": "Serve a simulated provider on this machine.",
    "completion": "Print the script with which a shell completes what you type.",
    "version": "Show the version.",
}
"""Every command and its help line: `agac --help` shows them without importing any."""


@dataclass(frozen=True, slots=True)
class Globals:
    """What the flags before the command say."""

    project_dir: Path | None
    quiet: bool


GLOBAL_FLAGS = {
    "--project-dir": True,
    "--log-level": True,
    "--log-file": True,
    "--log-format": True,
    "--quiet": False,
    "-q": False,
    "--no-color": False,
}
"""The flags of `agac` itself, and whether a value follows. They may stand after the command too."""


def in_front(words: list[str]) -> list[str]:
    """The command line with the flags of `agac` itself before the command."""
    ours, others = [], []
    waiting = iter(words)
    for word in waiting:
        name, sign, _ = word.partition("=")
        if word == "--":
            others += [word, *waiting]
        elif name in GLOBAL_FLAGS:
            ours += [word, *([next(waiting, "")] if GLOBAL_FLAGS[name] and not sign else [])]
        else:
            others.append(word)
    return [*ours, *others]


def refuse_repeated(ctx: click.Context, command: click.Command, words: list[str]) -> None:
    """Raises UsageError for an option that takes one value and is given two: the first one would be lost unseen."""
    context = click.Context(command, parent=ctx, info_name=command.name, resilient_parsing=True)
    try:
        _, _, given = command.make_parser(context).parse_args(list(words))
    except click.UsageError:
        return  # click says it, with the usage
    for option in dict.fromkeys(given):
        if isinstance(option, click.Option) and not (option.multiple or option.is_flag) and given.count(option) > 1:
            raise click.UsageError(f"{max(option.opts, key=len)} is given twice; it takes one value", context)


class LazyGroup(click.Group):
    """Imports a command's module when the command is used."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, in_front(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"agac.cli.commands.{cmd_name}").command
        if ctx.resilient_parsing:
            from agac.cli.completion import offer

            return offer(command, cmd_name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            if ctx.resilient_parsing:
                return None, None, []  # a shell asks what could stand there: nothing
            import difflib

            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            hint = f"Did you mean 'agac {near[0]}'?" if near else f"Commands: {', '.join(COMMANDS)}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None:
            refuse_repeated(ctx, command, rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="agac %(version)s")
@click.option("--project-dir", type=click.Path(path_type=Path, file_okay=False), help="Folder of agac.yml.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="warning",
    show_default=True,
    help="What is logged, to standard error or --log-file.",
)
@click.option("--log-file", type=click.Path(path_type=Path, dir_okay=False), help="Append the log to this file.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"], case_sensitive=False),
    default="text",
    show_default=True,
    help="How the log looks: lines for people, or a JSON object a line.",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress and no summary; errors are still shown.")
@click.option("--no-color", is_flag=True, help="Plain text. NO_COLOR in the environment does the same.")
@click.pass_context
def cli(
    ctx: click.Context,
    project_dir: Path | None,
    log_level: str,
    log_file: Path | None,
    log_format: LogFormat,
    quiet: bool,
    no_color: bool,
) -> None:
    """Run LLM work over data: workflows in YAML, correct after any crash, nothing paid twice."""
    start_logging(log_level, log_file, log_format)
    if no_color:
        render.use_no_colour()
    ctx.obj = Globals(project_dir, quiet)


def main() -> NoReturn:
    """The console script. Every way out of agac leads through here."""
    garbage.while_loading()
    render.prepare_streams()
    code: int = ExitCode.FAILED
    try:
        code = _main()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read our output has seen enough
        code = ExitCode.DONE
    _end_streams()
    garbage.at_the_end()
    sys.exit(code)


def _end_streams() -> None:
    """What nobody reads any more must not be written at exit either: Python would complain, and exit with 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _main() -> int:
    try:
        if "_AGAC_COMPLETE" in os.environ:
            import_module("agac.cli.completion")  # knows how shells ask
            cli.main(prog_name="agac")
        # not `cli.main`: it has exit codes of its own for a closed pipe and for Ctrl-C
        with cli.make_context("agac", sys.argv[1:]) as context:
            result = cli.invoke(context)
        return result if isinstance(result, int) else ExitCode.DONE
    except click.ClickException as error:
        render.show_usage(error)
        return ExitCode.USAGE
    except click.exceptions.Abort:
        return ExitCode.INTERRUPTED
    except click.exceptions.Exit as end:
        return end.exit_code
    except AgacError as error:
        render.show_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        render.say("Interrupted; nothing is lost. Run the same command again to go on.")
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        raise
    except UnicodeEncodeError as error:
        if not any(map(_is_torn, sys.argv)):
            render.show_bug(error)
            return ExitCode.FAILED
        render.show_error(_not_text())
        return ExitCode.USAGE
    except Exception as error:  # noqa: BLE001 - the outermost frame: a bug becomes a report, not a traceback
        render.show_bug(error)
        return ExitCode.FAILED


def _is_torn(word: str) -> bool:
    """Whether a word of the command line holds bytes that are no text in the encoding of this environment."""
    return any("\udc80" <= sign <= "\udcff" for sign in word)


def _not_text() -> UsageError:
    word = next(word for word in sys.argv if _is_torn(word))
    return UsageError(
        f"{word!a} is not text in the encoding of this environment, {sys.getfilesystemencoding()}",
        remedy="Set LC_ALL=C.UTF-8 or PYTHONUTF8=1, and write it in UTF-8.",
    )

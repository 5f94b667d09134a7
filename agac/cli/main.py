"""The `agac` command: its flags, options that commands share, and the one place where an error
becomes an exit code."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce, wraps
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from agac import __version__
from agac.cli import log, streams, terminal
from agac.cli.commands import LazyGroup
from agac.cli.completion import VARIABLE, named_here
from agac.cli.usage_texts import usage_lines
from agac.core.errors import AgacError, ExitCode, SpecError, UsageError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Globals:
    """The flags of `agac` itself that commands look at."""

    project_dir: Path | None
    """The folder of agac.yml; None: the nearest one."""

    quiet: bool
    """True if nothing is said but errors and results."""


def workflow_options(text: str, *, required: bool = True) -> Callable[[Function], Function]:
    """Adds the workflows of a command, as arguments or after -a."""

    def decorate(function: Function) -> Function:
        @wraps(function)
        def command(
            *arguments: Any, workflows: tuple[str, ...], named: tuple[str, ...], **given: Any
        ) -> Any:
            context = click.get_current_context()
            if required and not workflows + named:
                options = context.command.params
                option = next(each for each in options if each.name == "workflows")
                raise click.MissingParameter(ctx=context, param=option)
            return function(*arguments, workflows=workflows + named, **given)

        option = click.option(
            "-a", "--workflow", "workflows", metavar="NAME", multiple=True, help=text
        )
        return option(click.argument("named", metavar="[WORKFLOW]...", nargs=-1)(command))  # type: ignore[return-value]

    return decorate


workflow_option = click.option(
    "-a", "--workflow", metavar="NAME", help="Only runs of this workflow."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
budget_option = click.option(
    "--budget", "--max-cost", "budget", metavar="USD",
    help="The most the run may spend: 5, or usd=5,tokens=100000,calls=2000.",
)  # fmt: skip
max_errors_option = click.option(
    "--max-errors", type=click.IntRange(0), metavar="N", help="Stop when N rows failed."
)
concurrency_option = click.option(
    "--concurrency", type=click.IntRange(1, 10_000), metavar="N",
    help="Maximum number of concurrent calls; 1 runs them one at a time.",
)  # fmt: skip


def in_order(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Adds several options to a command, in this order."""
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


trust_option = click.option(
    "--trust-card", is_flag=True, help="Let a remote AgentCard bring tools."
)
tool_stubs_option = click.option(
    "--tool-stubs", type=click.Path(), metavar="FILE", help="Use these stand-ins for tools."
)
# which rows, and what replaces the workflow's run mode and vars, and its model
tool_options = in_order(
    click.option(
        "--tools-mode",
        type=click.Choice(["live", "stub", "record", "replay"]),
        help=(
            "Where results of tools come from: calls, tool_stubs, calls that are noted, or "
            "an earlier run."
        ),
    ),
    tool_stubs_option,
    click.option(
        "--run",
        "--replay",
        "replay",
        type=int,
        metavar="N",
        help="Replay the calls of tools of this run.",
    ),
    click.option(
        "--max-turns",
        type=click.IntRange(1),
        metavar="N",
        help="The most replies of a model with tools.",
    ),
    click.option(
        "--refresh-tools", is_flag=True, help="Call tools again whose results earlier runs kept."
    ),
    trust_option,
)
row_options = in_order(
    click.option("-n", "--limit", type=click.IntRange(1), metavar="N", help="Use at most N rows."),
    click.option(
        "--offset", type=click.IntRange(0), default=0, metavar="N", help="Skip the first N rows."
    ),
    click.option("--sample", type=click.IntRange(1), metavar="N", help="Use N random rows."),
    click.option("--seed", type=int, metavar="N", help="Random seed for --sample; default 0."),
    click.option(
        "-i",
        "--input",
        type=click.Path(),
        metavar="INPUT",
        help="Read the rows from here: a file, a pattern in quotes, - for stdin.",
    ),
    click.option(
        "--sql",
        metavar="SELECT",
        help="Use the rows that this statement makes of those of the input.",
    ),
    click.option(
        "--run-mode",
        type=click.Choice(["sync", "batch"]),
        help="Run every stage with a call for each row (sync), or with the provider's Batch API.",
    ),
    click.option(
        "--backend",
        metavar="URL",
        help=(
            "Ask this server for every stage: vllm://HOST:PORT, sglang://…, dynamo://…, "
            "http://HOST:PORT/v1."
        ),
    ),
    click.option(
        "--var",
        "vars",
        metavar="NAME=VALUE",
        multiple=True,
        help="Set a var: a prompt's ${vars.NAME}.",
    ),
    click.option(
        "--refetch",
        is_flag=True,
        help="Take remote content as it is now, also for a run that goes on.",
    ),
    tool_options,
)
model_option = click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="Use this model for every stage: provider/model?key=value.",
)
traces_option = click.option(
    "--export-traces", type=click.Path(file_okay=False), metavar="DIR",
    help="Write a file for each row with its calls, turns and tools.",
)  # fmt: skip
executor_option = click.option(
    "--executor",
    type=click.Choice(["ray", "local"]),
    help="Work on a Ray cluster, or here; else as agac.yml says.",
)
# which stages run, from one and up to one, and whether failed rows are retried
stage_options = in_order(
    click.option(
        "--from", "from_stage", metavar="STAGE", help="Run only this stage and the stages after it."
    ),
    click.option("--until", metavar="STAGE", help="Run no stage after this one."),
    click.option("--no-retry-failed", is_flag=True, help="Leave failed rows as they are."),
)


def read_variables(pairs: tuple[str, ...], flag: str = "--var") -> dict[str, str]:
    """Reads `--var NAME=VALUE`, any number of times."""
    variables = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise click.UsageError(f"{flag} {pair}: write NAME=VALUE")
        variables[name] = value
    return variables


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(__version__, message="agac %(version)s")
@click.option(
    "--project-dir", type=click.Path(path_type=Path, file_okay=False), help="Folder of agac.yml."
)
@click.option(
    "--shard", metavar="I/N", help="Work on, or look at, one of N parts of a run, such as 3/16."
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
    default="warning",
    show_default=True,
    help="Lowest level that is logged, to standard error or --log-file.",
)
@click.option("-v", "verbose", count=True, help="The next lower log level: -v info, -vv debug.")
@click.option(
    "--log-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Append the log to this file.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"], case_sensitive=False),
    default="text",
    show_default=True,
    help="Format of the log: lines for people, or one JSON object per line.",
)
@click.option(
    "--quiet", "-q", is_flag=True, help="No progress and no summary; errors are still shown."
)
@click.option(
    "--no-color", is_flag=True, help="Plain text. NO_COLOR in the environment does the same."
)
@click.pass_context
def cli(
    ctx: click.Context,
    /,
    project_dir: Path | None,
    quiet: bool,
    no_color: bool,
    log_level: str,
    verbose: int,
    log_file: Path | None,
    log_format: str,
    shard: str | None,
) -> None:
    """Run LLM work over data: workflows in YAML, correct after any crash, nothing paid twice."""
    if shard is not None:
        os.environ["AGAC_SHARD"] = shard or "''"  # which names none
    handler: logging.Handler = log.StandardError()
    if log_file:
        try:
            handler = log.LogFile(log_file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise click.UsageError(f"--log-file {log_file}: {error.strerror}") from error
    handler.setFormatter(
        log.JsonLines() if log_format == "json" else log.TextLines(log.TEXT_FORMAT)
    )
    logger = logging.getLogger("agac")
    logger.setLevel(max(logging.DEBUG, logging.getLevelName(log_level.upper()) - 10 * verbose))
    logger.addHandler(handler)
    if no_color:
        terminal.use_no_colour()
    ctx.obj = Globals(project_dir, quiet)


_to_the_end = ExitStack()  # what is entered here is left when the command has ended


def long_running(function: Function) -> Function:
    """Prepares the process for a function of the API whose call takes long, and returns the
    function.

    Garbage is collected from now on, but not among the modules that are loaded: `main` disables it
    while modules are loaded, and short commands end before there is garbage worth collecting.
    Functions of the project may run: from now on they print to standard error, to their last
    thread."""
    from agac.tools.functions import exchanged  # loads asyncio

    streams.keep_output()
    _to_the_end.enter_context(exchanged())
    gc.freeze()
    # new objects, in place of 700: most of those made at the start stay to the end
    gc.set_threshold(20_000)
    gc.enable()
    return function


def main() -> NoReturn:
    """Runs the command. Every exit of agac is here, except those while it is loaded."""
    gc.disable()
    streams.prepare_streams()
    code: int = ExitCode.FAILED
    try:
        code = _main()
        sys.stdout.flush()
    except KeyboardInterrupt:  # while an error was printed, or the output written
        code = _interrupted()
    except BrokenPipeError:  # the reader of our output closed it
        code = ExitCode.DONE
    except OSError as error:
        code = code or ExitCode.FAILED
        terminal.say_error(
            f"standard output cannot be written: {error.strerror}", "Whatever was run is stored."
        )
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # nor may its text be written at exit: Python would complain, and exit with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    # functions of the project ran: what they left behind may still print
    if sys.stdout is not sys.__stdout__:
        sys.stdout = sys.stderr
        _to_the_end.close()
    if "_duckdb" in sys.modules:  # it reports objects that are still there
        gc.unfreeze()
    else:
        gc.freeze()  # no collection at the end of the process
    sys.exit(code)


def _main() -> int:
    """Runs the command that was typed. Every error becomes a message and an exit code."""
    context = None
    try:
        if VARIABLE in os.environ:
            cli.main(prog_name="agac")
        # not `cli.main`: it has exit codes of its own for a closed pipe and for Ctrl-C
        with cli.make_context("agac", sys.argv[1:]) as context:
            result = cli.invoke(context)
        return result if isinstance(result, int) else ExitCode.DONE
    except click.ClickException as error:
        terminal.say_error(*usage_lines(error))
        return ExitCode.USAGE
    except click.exceptions.Exit as end:
        return end.exit_code
    except AgacError as error:
        return say_known(error, context)
    except KeyboardInterrupt:
        return _interrupted()
    except BrokenPipeError:
        raise
    except Exception as error:  # the outermost frame: a bug becomes a report, not a traceback
        if _is_of_output(error):
            raise
        return _say_unexpected(error, context)


def _is_of_output(error: Exception) -> bool:
    """True if standard output could not be written; completions are written past the stream."""
    if not isinstance(error, OSError):
        return False
    return error.filename == streams.STANDARD_OUTPUT or VARIABLE in os.environ


def _say_unexpected(error: Exception, context: click.Context | None) -> int:
    """Says what an error means that is none of agac's own; a bug becomes a report in a file."""
    if is_interrupt(error):
        return _interrupted()
    package = error.name if isinstance(error, ModuleNotFoundError) else None
    if package and not package.startswith("agac."):
        lack = (
            f"agac needs a package that is missing: {package} is not installed for {sys.executable}"
        )
        return say_known(
            AgacError(lack, remedy="`agac doctor --install` says what installs it."), context
        )
    undecoded = _undecoded_words() if isinstance(error, UnicodeEncodeError) else []
    if undecoded:
        what = (
            f"{undecoded[0]!a} is not text in the encoding of this environment, "
            f"{sys.getfilesystemencoding()}"
        )
        remedy = "Set LC_ALL=C.UTF-8 or PYTHONUTF8=1, and write it in UTF-8."
        return say_known(UsageError(what, remedy=remedy), None)
    # a bug of agac: the report goes to a file that can be attached to an issue
    from agac.api.bugs import bug_report

    what, remedy = bug_report(error, terminal.typed_command())
    terminal.say_error(what, f"{remedy} Stored answers are safe: run the same command to resume.")
    return ExitCode.FAILED


def _undecoded_words() -> list[str]:
    """Finds the words of the command line whose bytes are not text in the encoding of this
    environment."""
    return [word for word in sys.argv if any("\udc80" <= sign <= "\udcff" for sign in word)]


def _interrupted() -> ExitCode:
    terminal.say("Interrupted; nothing is lost. Run the same command again to resume.")
    return ExitCode.INTERRUPTED


INTERRUPTED_WORDS = ("KeyboardInterrupt", "Query interrupted")
"""Words of the message of a library that catches the KeyboardInterrupt of a Ctrl-C and raises an
exception of its own: pydantic while it builds a model, duckdb while it runs a statement."""


def is_interrupt(error: Exception) -> bool:
    """True if a library raised the error because of a Ctrl-C."""
    return any(words in str(error) for words in INTERRUPTED_WORDS)


def say_known(error: AgacError, context: click.Context | None) -> int:
    """Says an error of agac with its remedy, and returns the exit code for it."""
    if isinstance(error, SpecError):
        terminal.print_problems(error.problems, sys.stderr)
    if error.remedy:
        terminal.say_error(error.message, named_here(error.remedy, context))
    else:
        terminal.say_error(error.message)
    return error.exit_code

"""Says what is wrong with a command line, in agac's words, with an example of what to type."""

from __future__ import annotations

import re
import shlex
import sys

import click

from agac.cli.completion import named_here
from agac.core.errors import nearest

EXAMPLES = {
    "agac why": "last ROW STAGE",
    "agac run": "-a WORKFLOW",
    "agac retry": "last",
    "workflow": "-a WORKFLOW",
    "workflows": "-a WORKFLOW",
    "keep_runs": "--keep-runs 3",
    "shell": "bash",
    "run": "last",
    "inputs": "FILE",
    "file": "copy.db",
    "name": "CARD",
    "job": "job_1",
}
"""An example of a missing value, by the command or by the name of the parameter. `named_here`
knows the capitals."""

AGAIN = re.compile(
    r"(--)?(resume|continue|go-on|restart|again|rerun|redo|re?fresh|force|retry(-failed)?)"
)

COSTS_MONEY = ("--fresh", "--yes", "--budget", "--max-cost", "--no-retry-failed")
"""Options that are never suggested for a misspelled one."""

CLICK_WORDS = (
    (r"^'-\w' / ", ""),  # the short form of a flag
    (r"^'(-[\w-]+)'( / '-[\w-]+')*", r"\1"),
    (r"^'[\[{][^'\]}]*[\]}]': ", ""),  # an argument's choices: they follow
    (r" is not a valid integer( range)?$", " is not a whole number"),
    (r" is not a valid float( range)?$", " is not a number"),
    (r"(\S+) is not in the range x>=(\S+)$", r"takes \2 or more, not \1"),
    (r"(\S+) is not in the range (\S+)<=x<=(\S+)$", r"takes \2 to \3, not \1"),
    (r"^Got unexpected extra (arguments?) \((.*)\)$", r"unexpected \1: \2"),
    (r"^Option '(.*)' requires an argument$", r"\1: its value is missing"),
    (r"^No such", "no such"),
)
"""Messages of click, and agac's words for them."""


def usage_lines(error: click.ClickException) -> list[str]:
    """Says what is wrong with a command line, then what to type."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else ""
    example = ""
    if isinstance(error, click.NoSuchOption):
        message, example = _unknown_option(error, path, context)
    elif isinstance(error, click.MissingParameter) and error.param is not None:
        message = f"{_name_of(error.param)} is missing"
        example = _example(error.param, path, context)
    else:
        message = error.format_message().removesuffix(".").removeprefix("Invalid value for ")
        for pattern, replacement in CLICK_WORDS:
            message = re.sub(pattern, replacement, message)
    if context:
        return [message, f"{example}`{path} --help` lists all options."]
    return [message]


def _example(missing: click.Parameter, path: str, context: click.Context | None) -> str:
    """Writes a command with an example of a missing value, if there is one."""
    words = EXAMPLES.get(path) or EXAMPLES.get(missing.name or "")
    if not words:
        return ""
    return named_here(f"For example: `{path} {words}`. ", context)


RESUMING = ("agac run", "agac retry", "agac batch retrieve")
"""Commands that resume what was begun, without an option for that."""


def _unknown_option(
    error: click.NoSuchOption, path: str, context: click.Context | None
) -> tuple[str, str]:
    """Says that there is no such option, and what may be meant: an example, or one like it."""
    option = error.option_name
    message = f"no such option {option!r}"
    if AGAIN.fullmatch(option) and path in RESUMING:
        typed = [word for word in sys.argv[1:] if word.partition("=")[0] != option]
        if typed == path.split()[1:]:
            typed += EXAMPLES.get(path, "").split()
        same = f"The same command goes on, without it: `agac {shlex.join(typed)}`. "
        return message, named_here(same, context)
    near = nearest(option, error.possibilities or (), 0)
    if near and near not in COSTS_MONEY:
        message += f". Did you mean {near!r}?"
    return message, ""


def _name_of(missing: click.Parameter) -> str:
    """`-a or --workflow`, `one of bash, zsh, fish`, or the word for an argument in the help."""
    if isinstance(missing, click.Option):
        return " or ".join(missing.opts)
    if isinstance(missing.type, click.Choice):
        return f"one of {', '.join(missing.type.choices)}"
    return missing.make_metavar(click.Context(click.Command("agac")))

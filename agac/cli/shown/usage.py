"""What is wrong with a command line, in agac's words: what, and what to write instead."""

from __future__ import annotations

import re

import click

EXAMPLES = {
    "agac why": "last r-1 classify",
    "workflow": "-a reviews",
    "workflows": "-a reviews",
    "keep_runs": "--keep-runs 3",
    "shell": "bash",
    "run": "last",
    "inputs": "data/reviews.csv",
    "file": "copy.db",
    "name": "support",
}
"""How what is missing could have been given, by the command or by its name."""

WORDS = (
    (r"^'(-[\w-]+)'", r"\1"),
    (r"^'[\[{][^'\]}]*[\]}]': ", ""),  # an argument's choices: they are told again
    (r" is not a valid integer( range)?$", " is no whole number"),
    (r" is not a valid float( range)?$", " is no number"),
    (r"(\S+) is not in the range x>=(\S+)$", r"takes \2 or more, not \1"),
    (r"(\S+) is not in the range (\S+)<=x<=(\S+)$", r"takes \2 to \3, not \1"),
    (r"^Got unexpected extra arguments? \((.*)\)$", r"nothing is expected after what stands before: \1"),
    (r"^Option '(.*)' requires an argument$", r"\1: its value is missing"),
    (r"^No such", "no such"),
)
"""What click says, and how agac says it."""


def usage_lines(error: click.ClickException) -> list[str]:
    """The error, then how to go on."""
    context = error.ctx if isinstance(error, click.UsageError) else None
    what = _sentence(error)
    if context is None:
        return [what]
    remedy = _example(error, context)
    return [what, f"{remedy}`{context.command_path} --help` shows what there is."]


def _sentence(error: click.ClickException) -> str:
    if isinstance(error, click.MissingParameter) and error.param is not None:
        return f"{_name(error.param)} is missing"
    text = error.format_message().removesuffix(".").removeprefix("Invalid value for ")
    for said, instead in WORDS:
        text = re.sub(said, instead, text)
    return text


def _name(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Option):
        return " or ".join(parameter.opts)
    if isinstance(parameter.type, click.Choice):
        return f"one of {', '.join(parameter.type.choices)}"
    return parameter.make_metavar(_NOWHERE)


_NOWHERE = click.Context(click.Command("agac"))


def _example(error: click.ClickException, context: click.Context) -> str:
    if not isinstance(error, click.MissingParameter) or error.param is None:
        return ""
    given = EXAMPLES.get(context.command_path) or EXAMPLES.get(error.param.name or "")
    return f"Write it as in `{context.command_path} {given}`. " if given else ""

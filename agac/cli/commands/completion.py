"""`agac completion`."""

from __future__ import annotations

import click

from agac.cli import render
from agac.cli.completion import SHELLS, script


@click.command(
    help="Print the script with which a shell completes agac's commands, flags, workflows, stages and runs. "
    'For bash: eval "$(agac completion bash)" in ~/.bashrc; for zsh: eval "$(agac completion zsh)" in ~/.zshrc; '
    "for fish: agac completion fish | source, in ~/.config/fish/config.fish."
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """A script for a shell is its only output: JSON would be of no use."""
    render.print_text(script(shell, context.find_root().command).rstrip("\n"))

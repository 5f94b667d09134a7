"""`agac simulate`: serves a simulated provider on this machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agac.cli import main
from agac.cli.terminal import (
    print_text,
)
from agac.core.errors import AgacError, UsageError
from agac.simulator.settings import Settings, SimulatorError, setting_flags

PORT = 8088


class SimulateCommand(click.Command):
    """Names every kind of fault in its help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from agac.simulator.faults import FAULTS

        with formatter.section("Kinds of faults, which the guide explains"):
            formatter.write_text(text=", ".join(FAULTS))


def setting_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds an option for each setting of the simulator, as it is declared there."""
    for name, flag, default in reversed([*setting_flags()]):
        default = PORT if name == "port" else default
        if flag.kind is bool:
            option = click.option(
                f"--{flag.name}", name, flag_value=not default, default=default, help=flag.help
            )
        else:
            option = click.option(
                f"--{flag.name}", name, type=_option_type(flag), metavar=flag.metavar,
                default=default, show_default=default is not None, help=flag.help,
            )  # fmt: skip
        function = option(function)
    return function


def _option_type(flag: Any) -> Any:
    """Chooses the type of an option: a path, a range, or a plain type."""
    if flag.kind is Path:
        return click.Path(path_type=Path, dir_okay=False)
    if flag.least is None:
        return flag.kind
    if flag.kind is int:
        return click.IntRange(flag.least, flag.most)
    return click.FloatRange(flag.least, flag.most)


@click.command(
    cls=SimulateCommand,
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
        text = json.dumps({"base_url": base_url})
        if not as_json:
            account = f"{base_url.removesuffix('/v1')}/account"
            text = f"Serving {base_url}   (account: {account}, Ctrl-C ends it)"
        print_text(text, flush=True)

    try:
        main.long_running(run_simulator)(Settings(**settings), ready)
    except SimulatorError as error:
        kind = UsageError if error.exit_code == 2 else AgacError
        raise kind("; ".join(error.problems)) from error

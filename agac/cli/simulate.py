"""`agac simulate`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from agac.cli.main import enable_gc
from agac.cli.terminal import print_text
from agac.core.errors import AgacError, UsageError


class WithKinds(click.Command):
    """A command whose help names every kind of fault."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The kinds, from where they are read."""
        from agac.simulator.rulesfile import ALL_KINDS

        with formatter.section("Kinds of faults (what each does: the guide's page on the simulator)"):
            formatter.write_text(text=", ".join(ALL_KINDS))


@click.command(
    cls=WithKinds, help="Serve a simulated provider on this machine, until Ctrl-C. GET /account says what it was asked."
)
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", default=8088, show_default=True, help="Port; 0: any free one."
)
@click.option(
    "--seed", type=int, metavar="N", default=0, show_default=True, help="The same seed and request give the same reply."
)
@click.option(
    "--latency",
    metavar="SECONDS",
    default="0",
    show_default=True,
    help="Seconds, or normal:M,SD lognormal:M,S uniform:A,B.",
)
@click.option("--slots", type=click.IntRange(1), metavar="N", help="Requests served at once; the others wait.")
@click.option("--rpm", type=click.IntRange(1), metavar="N", help="Requests a minute before 429.")
@click.option("--tpm", type=click.IntRange(1), metavar="N", help="Tokens a minute before 429.")
@click.option(
    "--burst", type=click.IntRange(1), metavar="N", help="Requests that may come at once; a minute's worth by default."
)
@click.option(
    "--batch-seconds", type=click.FloatRange(0), metavar="S", default=0.0, show_default=True,
    help="A batch takes so long from its creation; 0: no time at all.",
)  # fmt: skip
@click.option(
    "--state", type=click.Path(path_type=Path, dir_okay=False), help="Keep batches and files here, for the next time."
)
@click.option("--no-websocket", is_flag=True, help="Accept no WebSockets, as a server that speaks HTTP alone.")
@click.option("--faults", type=click.Path(path_type=Path), help="File of faults to inject (YAML or JSON).")
@click.option("--json", "as_json", is_flag=True, help="Say where it listens as one line of JSON.")
def simulate(
    port: int,
    seed: int,
    latency: str,
    slots: int | None,
    rpm: int | None,
    tpm: int | None,
    burst: int | None,
    batch_seconds: float,
    state: Path | None,
    no_websocket: bool,
    faults: Path | None,
    as_json: bool,
) -> None:
    """Loopback only."""
    from agac.simulator.server import run_simulator
    from agac.simulator.settings import Settings, SimulatorError

    def ready(base_url: str) -> None:
        text = f"Serving {base_url}   (account: {base_url.removesuffix('/v1')}/account, Ctrl-C ends it)"
        print_text(json.dumps({"base_url": base_url}) if as_json else text, flush=True)

    settings = Settings(
        port=port,
        seed=seed,
        latency=latency,
        slots=slots,
        rpm=rpm,
        tpm=tpm,
        burst=burst,
        batch_seconds=batch_seconds,
        state=state,
        faults=faults,
        websocket=not no_websocket,
    )
    enable_gc()
    try:
        run_simulator(settings, ready)
    except SimulatorError as error:
        kind = UsageError if error.exit_code == 2 else AgacError
        raise kind("; ".join(error.problems)) from error

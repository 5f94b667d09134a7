# ruff: noqa: INP001
"""The pictures of the front page: a real run on a terminal, and the graph that agac draws of a workflow.

Both are made by typing commands, as the console blocks are (consoles.py). What differs from run to run is the time: the
picture has fixed ones, so that it is the same bytes each time.
"""

from __future__ import annotations

import io
import re
from contextlib import ExitStack
from pathlib import Path

from consoles import Session, free_port
from pages import ROOT
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text
from support.terminals import PseudoTerminal

RUN, GRAPH = (ROOT / "docs/assets" / name for name in ("run.svg", "support_triage.svg"))
COLUMNS = 116
COMMANDS = (
    "agac run -a product_reviews",
    """echo 'r-061,Headlamp 400,5,"Bright, and light."' >> data/product_reviews.csv""",
    "agac run -a product_reviews",
)
DESCRIPTION = "A run over 60 rows; then, with one row more, the same command asks for that row alone"
_TIMES = (
    (re.compile(r"(under )?[\d.]+ m?s \(p95 (under )?[\d.]+ m?s\)"), "8 ms (p95 21 ms)"),
    (re.compile(r"elapsed: .*"), "elapsed: 0.4 s"),
)


def pictures(folder: Path) -> dict[Path, str]:
    """Each picture, by its file."""
    with ExitStack() as stack:
        session = Session(folder, stack, free_port())
        for words in ("agac init --example product_reviews shop --quiet", "cd shop"):
            session.type(words)
        terminal = terminal_svg([(command, on_terminal(command, session)) for command in COMMANDS])
        for words in ("init --example support_triage", "run -a support_triage", "graph -a support_triage -o g.svg"):
            session.type(f"agac {words} --quiet")
        return {RUN: terminal, GRAPH: (session.folder / "g.svg").read_text("utf-8")}


def on_terminal(command: str, session: Session) -> str:
    """What stands on the terminal after a command, in its colours: what the display painted over is left out."""
    environment = {**session.environment(), "COLUMNS": "", "TERM": "xterm-256color"}
    terminal = PseudoTerminal(["bash", "-c", command], session.folder, environment, COLUMNS, 40)
    try:
        text = re.sub(r"\A\x1b\[\?25l.*\x1b\[\?25h", "", terminal.rest().replace("\r\n", "\n"), flags=re.DOTALL)
    finally:
        terminal.close()
    for pattern, fixed in _TIMES:
        text = pattern.sub(fixed, text)
    return text


def terminal_svg(typed: list[tuple[str, str]]) -> str:
    """Commands and what they said as a picture that fetches nothing and says what it shows."""
    console = Console(file=io.StringIO(), record=True, width=COLUMNS, force_terminal=True, color_system="truecolor")
    for command, said in typed:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        if said:
            console.print(Text.from_ansi(said.rstrip()))
            console.print()
    form = re.sub(r" *@font-face \{\{.*?\}\}\n", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    form = form.replace(
        '<svg class="rich-terminal"', f'<svg class="rich-terminal" role="img" aria-label="{DESCRIPTION}"'
    )
    form = form.replace("Fira Code, monospace", "ui-monospace, 'Fira Code', Menlo, Consolas, monospace")
    return console.export_svg(title="agac", code_format=form, unique_id="run") + "\n"


def words_of(svg: str) -> list[str]:
    """What a picture says, whichever version of the library drew it."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)

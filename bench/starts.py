"""Every command of agac, as it is called to see what its start takes: on a small project whose run is done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from workspace import Workspace

from agac.cli.commands import COMMANDS

CALLS: dict[str, tuple[str, ...]] = {
    "init": ("init", "new-{turn}"),
    "validate": ("validate",),
    "plan": ("plan", "-a", "b"),
    "run": ("run", "-a", "b"),
    "status": ("status",),
    "runs": ("runs",),
    "inspect": ("inspect", "last", "r-1"),
    "retry": ("retry", "last", "--dry-run"),
    "why": ("why", "last", "r-1", "s0"),
    "export": ("export", "-a", "b"),
    "gc": ("gc", "--keep-runs", "9"),
    "backup": ("backup", "copy-{turn}.db"),
    "data": ("data", "in.csv"),
    "card": ("card", "show", "c"),
    "schema": ("schema", "workflow"),
    "completion": ("completion", "bash"),
    "version": ("version",),
}
"""What is called of a command; `{turn}` is another number each time. One that is not here is called with --help."""
CARD = "---\nname: c\n---\nBe brief.\n"


@dataclass(frozen=True, slots=True)
class Start:
    """A call that does next to nothing. `at_most` are seconds of CPU, where there is a requirement."""

    words: tuple[str, ...]
    shown: str
    at_most: float | None = None

    def turn(self, number: int) -> list[str]:
        """The words of one call of several."""
        return [word.format(turn=number) for word in self.words]


def starts() -> Iterator[Start]:
    """`agac --help`, then every command that it lists."""
    yield Start(("--help",), "agac --help", at_most=0.15)
    for name in COMMANDS:
        words = CALLS.get(name, (name, "--help"))
        shown = " ".join(["agac", *words]).replace("-{turn}", "")
        note = {"run": ", all done", "retry": ", nothing failed"}.get(name, "")
        yield Start(words, shown + note, at_most=0.25 if name == "status" else None)


def prepare(space: Workspace) -> None:
    """A run that is done, and a card: what the calls look at."""
    (space.root / "agentcards").mkdir()
    (space.root / "agentcards" / "c.md").write_text(CARD, encoding="utf-8")
    space.agac("run", "-a", "b")

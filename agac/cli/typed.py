"""The command as it was typed, and the commands that follow from it: each works as it is printed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from agac.cli.shown.words import without


def command_line() -> str:
    """The command as it was typed."""
    return shlex.join(["agac", *sys.argv[1:]])


def command_to_run(workflow: str, workflows: Sequence[str]) -> str:
    """`agac plan …`, or `agac run … --dry-run`, as the `agac run …` that does it, for one of its workflows."""
    words = shlex.split(without(command_to_go_on(workflow, workflows, keep=("--fresh",)), "--show"))
    kept = [word for word in words if word not in ("--json", "--dry-run")]
    if "run" not in kept:
        kept[kept.index("plan")] = "run"
    return shlex.join(kept)


def command_to_go_on(workflow: str, workflows: Sequence[str], keep: Sequence[str] = ()) -> str:
    """The command as it was typed, without what would begin anew instead of going on; for one of its workflows."""
    words = [word for word in sys.argv[1:] if word != "--fresh" or word in keep]
    if len(workflows) > 1:
        others = {form for name in workflows for form in (f"-a{name}", f"--workflow={name}")}
        pairs = zip(["", *words], words, strict=False)
        words = [
            w for before, w in pairs if w not in ("-a", "--workflow", *others) and before not in ("-a", "--workflow")
        ]
        words += ["-a", workflow]
    return shlex.join(["agac", *words])


def lines_for_left(stopped: str, left: Sequence[str], workflows: Sequence[str]) -> list[str]:
    """Which of the command's workflows it did not get to, because one `stopped`, and the command that runs them."""
    words = shlex.split(command_to_go_on(left[0], workflows, keep=("--fresh",)))
    words += [word for name in left[1:] for word in ("-a", name)]
    return [f"Not run, since {stopped} stopped before: {', '.join(left)}", f"  Run with: {shlex.join(words)}"]

"""`agac completion`, and the values that a shell may complete: workflows, stages, cards, runs, batches.

It is quick, and silent about errors: nothing of the engine is loaded, and no file is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import (
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
    get_completion_class,
)

from agac.cli.terminal import print_text
from agac.core.errors import AgacError, ErrorType
from agac.spec.paths import PROJECT_FILE, find_project

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_AGAC_COMPLETE"
"""Set by the script that a shell runs at startup: agac prints completions instead of running a command."""

WORKFLOWS = (".yml", ".yaml")
"""How the names of workflows' files end."""


@click.command(
    help="Print the script with which a shell completes agac's commands, flags, workflows, stages and runs. "
    'For bash: eval "$(agac completion bash)" in ~/.bashrc; for zsh: eval "$(agac completion zsh)" in ~/.zshrc; '
    "for fish: agac completion fish | source, in ~/.config/fish/config.fish."
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """A script for a shell is its only output: JSON would be of no use."""
    found = get_completion_class(shell)
    assert found is not None
    shown = found(context.find_root().command, {}, "agac", VARIABLE)
    print_text(str(shown.source_template % shown.source_vars()).rstrip("\n"))


Values = Iterable[tuple[str, str | None]]
"""Values that a shell may offer, each with its help."""


def stages(context: click.Context) -> Values:
    """The stages of the workflow on the command line; without one, of the run on it."""
    given = context.params.get("workflow") or context.params.get("workflows")
    if not given:  # before an option without its value, click leaves the words in `args`
        run = context.params.get("run") or next(iter(context.args), None)
        given = next((workflow for number, workflow in _runs(context) if run in ("last", number)), ())
    names = [given] if isinstance(given, str) else given
    files = [path for name in names for path in _files(context, "workflows", *WORKFLOWS) if path.stem == name]
    found = [_as_mapping(stage).get("name") for path in files for stage in _mapping(path).get("stages") or ()]
    return [(name, None) for name in dict.fromkeys(found) if isinstance(name, str)]


def workflows(context: click.Context) -> Values:
    return [(name, None) for name in sorted({path.stem for path in _files(context, "workflows", *WORKFLOWS)})]


def batches(context: click.Context) -> Values:
    """Open batches, the newest first: by our numbers, then by the provider's ids."""
    from agac.store.batches import batches_at_a_glance

    found = batches_at_a_glance(_root(context) / ".agac" / "agac.db")
    ours = [(str(number), workflow) for number, _, workflow in found]
    return ours + [(theirs, workflow) for _, theirs, workflow in found if theirs]


def _runs(context: click.Context) -> list[tuple[str, str]]:
    """The runs, the one last worked on first, with the workflow of each."""
    from agac.store.batches import runs_at_a_glance

    found = runs_at_a_glance(_root(context) / ".agac" / "agac.db")
    return [(str(number), workflow) for number, workflow in found]


COMPLETIONS: dict[str, Callable[[click.Context], Values]] = {
    "workflow": workflows,
    "workflows": workflows,
    "stage": stages,
    "from_stage": stages,
    "until": stages,
    "run": lambda context: [("last", "the newest"), *_runs(context)],
    "number": _runs,
    "error": lambda _: [(str(kind), None) for kind in ErrorType],
    "batch_id": batches,
    "flag_id": batches,
    "card show name": lambda context: [(path.stem, None) for path in sorted(_files(context, "agentcards", ".md"))],
}
"""The values of a parameter by its name, in every command or, with `command name`, in that one."""


def add_completions(command: click.Command, path: str) -> click.Command:
    """The command `path`, with completions for the parameters that take a name of the project."""
    for parameter in command.params:
        values = COMPLETIONS.get(f"{path} {parameter.name}") or COMPLETIONS.get(parameter.name or "")
        if values is not None:
            setattr(parameter, "shell_complete", partial(_matching, values))  # noqa: B010 - mypy knows it as a method
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            add_completions(inner, f"{path} {name}")
    return command


def _matching(
    values: Callable[[click.Context], Values], context: click.Context, incomplete: str
) -> list[CompletionItem]:
    with suppress(AgacError, OSError, ValueError):  # a message would disturb the user who types
        return [CompletionItem(one, help=text) for one, text in values(context) if one.startswith(incomplete)]
    return []


class _WholeWord(ShellComplete):
    """For shells that replace the whole word, where click gives what follows its `=` alone: `--workflow=re`."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        flag, sign, _ = incomplete.partition("=")
        found = super().get_completions(args, incomplete)
        if not sign or not flag.startswith("-"):
            return found
        return [CompletionItem(f"{flag}={item.value}", item.type, item.help) for item in found]


@add_completion_class
class _Zsh(_WholeWord, ZshComplete):
    # compdef exists after compinit only, which not every .zshrc calls
    source_template = ZshComplete.source_template.replace(
        "    compdef ", "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n    compdef "
    )


@add_completion_class
class _Fish(_WholeWord, FishComplete):
    # a description may contain commas
    source_template = FishComplete.source_template.replace('string split "," ', 'string split --max 1 "," ')


def _root(context: click.Context) -> Path:
    return find_project(Path.cwd(), context.find_root().params.get("project_dir"))


def _files(context: click.Context, kind: str, *suffixes: str) -> list[Path]:
    """The files in a folder of the project, which is named by its key under `paths`."""
    root = _root(context)
    named = _as_mapping(_mapping(root / PROJECT_FILE).get("paths")).get(kind)
    folder = root / (named if isinstance(named, str) else kind)
    return [path for path in folder.iterdir() if path.suffix in suffixes] if folder.is_dir() else []


def _mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; empty when it has none."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _as_mapping(yaml.load(path.read_text("utf-8"), loader))  # noqa: S506 - both are safe loaders
    except yaml.YAMLError:
        return {}


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

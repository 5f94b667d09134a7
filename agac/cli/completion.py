"""`agac completion`, and the values that a shell may complete: workflows, stages, cards, runs, batches.

It is quick, and silent about errors: nothing of the engine is loaded, and no file is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
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

SUFFIXES = (".yml", ".yaml")


@click.command(
    help="Print the script with which a shell completes agac's commands, flags, workflows, stages and runs. "
    'For bash: eval "$(agac completion bash)" in ~/.bashrc; for zsh: eval "$(agac completion zsh)" in ~/.zshrc; '
    "for fish: agac completion fish | source, in ~/.config/fish/config.fish."
)
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """A script for a shell is its only output: JSON would be of no use."""
    print_text(script(shell, context.find_root().command).rstrip("\n"))


def workflows(context: click.Context) -> list[CompletionItem]:
    """The project's workflows."""
    folder = _folder(context, "workflows")
    return [CompletionItem(name) for name in sorted({path.stem for path in _files(folder, SUFFIXES)})]


def cards(context: click.Context) -> list[CompletionItem]:
    """The project's AgentCards."""
    return [CompletionItem(path.stem) for path in sorted(_files(_folder(context, "agentcards"), (".md",)))]


def stages(context: click.Context) -> list[CompletionItem]:
    """The stages of the workflow on the command line; without one, of the run on it."""
    given = context.params.get("workflow") or context.params.get("workflows") or _workflow_of_run(context)
    names = [given] if isinstance(given, str) else list(given or ())
    folder = _folder(context, "workflows")
    files = [path for name in names for path in _files(folder, SUFFIXES) if path.stem == name]
    found = [_as_mapping(stage).get("name") for path in files for stage in _mapping(path).get("stages") or ()]
    return [CompletionItem(name) for name in dict.fromkeys(found) if isinstance(name, str)]


def runs(context: click.Context) -> list[CompletionItem]:
    """`last`, then the runs, the one last worked on first, with the workflow of each."""
    return [CompletionItem("last", help="the newest"), *numbers(context)]


def numbers(context: click.Context) -> list[CompletionItem]:
    """Runs by number alone."""
    return [CompletionItem(str(number), help=workflow) for number, workflow in _runs(context)]


def batches(context: click.Context) -> list[CompletionItem]:
    """Open batches, the newest first: by our numbers, then by the provider's ids."""
    from agac.store.batches import batches_at_a_glance

    found = batches_at_a_glance(_root(context) / ".agac" / "agac.db")
    ours = [CompletionItem(str(number), help=workflow) for number, _, workflow in found]
    return ours + [CompletionItem(theirs, help=workflow) for _, theirs, workflow in found if theirs]


def errors(_: click.Context) -> list[CompletionItem]:
    """The kinds of errors that rows have."""
    return [CompletionItem(str(kind)) for kind in ErrorType]


Values = Callable[[click.Context], list[CompletionItem]]

COMPLETIONS: dict[str, Values] = {
    "workflow": workflows,
    "workflows": workflows,
    "stage": stages,
    "from_stage": stages,
    "until": stages,
    "run": runs,
    "number": numbers,
    "error": errors,
    "batch_id": batches,
    "flag_id": batches,
    "card show name": cards,
}
"""The values of a parameter by its name, in every command or, with `command name`, in that one."""


def add_completions(command: click.Command, path: str) -> click.Command:
    """The command `path`, with completions for the parameters that take a name of the project."""
    for parameter in command.params:
        values = COMPLETIONS.get(f"{path} {parameter.name}") or COMPLETIONS.get(parameter.name or "")
        if values is not None:
            setattr(parameter, "shell_complete", _matching(values))  # noqa: B010 - mypy knows it as a method
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            add_completions(inner, f"{path} {name}")
    return command


def _matching(values: Values) -> Callable[[click.Context, str], list[CompletionItem]]:
    def complete(context: click.Context, incomplete: str) -> list[CompletionItem]:
        with suppress(AgacError, OSError, ValueError):  # a message would disturb the user who types
            return [item for item in values(context) if item.value.startswith(incomplete)]
        return []

    return complete


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


def script(shell: str, cli: click.Command) -> str:
    """The script that a shell runs at its start to complete the commands of `cli`."""
    found = get_completion_class(shell)
    assert found is not None
    shown = found(cli, {}, "agac", VARIABLE)
    return str(shown.source_template % shown.source_vars())


def _root(context: click.Context) -> Path:
    return find_project(Path.cwd(), context.find_root().params.get("project_dir"))


def _folder(context: click.Context, kind: str) -> Path:
    """A folder of the project by its key under `paths`."""
    root = _root(context)
    named = _as_mapping(_mapping(root / PROJECT_FILE).get("paths")).get(kind)
    return root / (named if isinstance(named, str) else kind)


def _files(folder: Path, suffixes: Iterable[str]) -> list[Path]:
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


def _runs(context: click.Context) -> Iterator[tuple[int, str]]:
    from agac.store.batches import runs_at_a_glance

    return iter(runs_at_a_glance(_root(context) / ".agac" / "agac.db"))


def _workflow_of_run(context: click.Context) -> str | None:
    # before an option without its value, click leaves the words in `args`
    given = context.params.get("run") or next(iter(context.args), None)
    return next((name for number, name in _runs(context) if given in ("last", str(number))), None)

"""What a shell completes: names of commands, workflows, stages, runs, batches; and messages that
name what is there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import click
from click import shell_completion as shells
from click.shell_completion import CompletionItem

from agac.cli import terminal
from agac.core.errors import AgacError, ErrorType
from agac.spec.paths import PROJECT_FILE, STORE, YAML_SUFFIXES, Unusable, find_project, inside
from agac.spec.project_files import files_in, read_text

VARIABLE = "_AGAC_COMPLETE"
"""Set by the script that a shell runs at startup: agac prints completions instead of running a
command."""


@click.command(
    help="Print the script with which a shell completes agac's commands, flags, workflows, "
    "stages and runs. "
    'For bash: eval "$(agac completion bash)" in ~/.bashrc; for zsh: eval "$(agac completion '
    'zsh)" in ~/.zshrc; '
    "for fish: agac completion fish | source, in ~/.config/fish/config.fish."
)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Prints a script for a shell and nothing else: JSON would be of no use."""
    kind = shells.get_completion_class(shell)
    assert kind is not None
    script = kind(context.find_root().command, {}, "agac", VARIABLE)
    terminal.print_text(str(script.source_template % script.source_vars()).rstrip("\n"))


Values = Iterable[tuple[str, str | None]]  # values that a shell may offer, each with its help


def stages(context: click.Context, run: str | None = None) -> Values:
    """Lists the stages of the workflow on the command line; without one, of the run on it."""
    given = context.params.get("workflow") or context.params.get("workflows")
    if not given:  # before an option without its value, click leaves the words in `args`
        run = context.params.get("run") or next(iter(context.args), run)
        given = _workflow_of(context, run)
    workflows = [given] if isinstance(given, str) else given
    names = list[object]()
    for path in _files(context, "workflows", *YAML_SUFFIXES):
        if path.stem in workflows:
            stages = _mapping(path, _root(context)).get("stages") or ()
            names += [_as_mapping(stage).get("name") for stage in stages]
    return [(name, None) for name in dict.fromkeys(names) if isinstance(name, str)]


def _workflow_of(context: click.Context, run: str | None) -> list[str]:
    """Finds the workflow of a run, by its number or as `last`; nothing if there is no such run."""
    for number, workflow in _runs(context):
        if run in ("last", number):
            return [workflow]
    return []


def workflows(context: click.Context) -> Values:
    """Lists the workflows that have files."""
    names = {path.stem for path in _files(context, "workflows", *YAML_SUFFIXES)}
    return [(name, None) for name in sorted(names)]


def batches(context: click.Context) -> Values:
    """Lists open batches, the newest first: by agac's numbers, then by the provider's ids."""
    from agac.store.batches import at_a_glance

    store = _root(context) / STORE
    open_batches = at_a_glance(store, "batches_at_a_glance", tuple[int, str | None, str])
    by_number = [(str(number), workflow) for number, _, workflow in open_batches]
    by_id = [(provider_id, workflow) for _, provider_id, workflow in open_batches if provider_id]
    return by_number + by_id


def _runs(context: click.Context) -> list[tuple[str, str]]:
    """Lists the runs, the one last worked on first, with the workflow of each."""
    from agac.store.batches import at_a_glance
    from agac.store.history import RunLine

    lines = at_a_glance(_root(context) / STORE, "run_lines", RunLine, None)
    return [(str(line.id), line.workflow) for line in lines]


COMPLETIONS: dict[str, Callable[[click.Context], Values]] = {
    **dict.fromkeys(("workflow", "workflows", "named"), workflows),
    **dict.fromkeys(("stage", "from_stage", "until"), stages),
    "run": lambda context: [("last", "the newest"), *_runs(context)],
    "replay": lambda context: list(_runs(context)),
    "error": lambda _: [(str(kind), None) for kind in ErrorType],
    **dict.fromkeys(("batch_id", "flag_id"), batches),
    "card show name": lambda context: [
        (path.stem, None) for path in sorted(_files(context, "agentcards", ".md"))
    ],
}
"""The values of a parameter by its name, in every command or, with `command name`, in that one."""

PLACEHOLDERS: dict[str, Callable[[click.Context], Values]] = {
    "WORKFLOW": workflows,
    "STAGE": partial(stages, run="last"),
    "CARD": COMPLETIONS["card show name"],
    "FILE": lambda context: [
        (f"data/{path.name}", None) for path in sorted(_files(context, "data", ".csv", ".jsonl"))
    ],
}


def named_here(text: str, context: click.Context | None) -> str:
    """Replaces WORKFLOW, STAGE, CARD and FILE in a message by one that this project has, if it has
    any."""
    if context is None:
        return text
    for word, values in PLACEHOLDERS.items():
        if re.search(rf"\b{word}\b", text):
            with suppress(AgacError, OSError, ValueError):
                name = next((name for name, _ in values(context)), word)
                text = re.sub(rf"\b{word}\b", name, text)
    return text


def add_completions(command: click.Command, path: str) -> click.Command:
    """Gives the command `path` completions for the parameters that take a name of the project."""
    for parameter in command.params:
        values = COMPLETIONS.get(f"{path} {parameter.name}") or COMPLETIONS.get(
            parameter.name or ""
        )
        if values is not None:
            setattr(parameter, "shell_complete", partial(_matching, values))  # noqa: B010 - mypy knows it as a method
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            add_completions(inner, f"{path} {name}")
    return command


def _matching(
    values: Callable[[click.Context], Values], context: click.Context, begun: str
) -> list[CompletionItem]:
    """Lists the values that begin with what is typed."""
    with suppress(AgacError, OSError, ValueError):  # a message would disturb the user who types
        return [
            CompletionItem(value, help=text)
            for value, text in values(context)
            if value.startswith(begun)
        ]
    return []


class _WholeWord(shells.ShellComplete):
    """Completes whole words, for shells that replace `--workflow=re`: click gives what follows its
    `=` alone."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        flag, sign, _ = incomplete.partition("=")
        items = super().get_completions(args, incomplete)
        if not sign or not flag.startswith("-"):
            return items
        return [CompletionItem(f"{flag}={item.value}", item.type, item.help) for item in items]


@shells.add_completion_class
class _Zsh(_WholeWord, shells.ZshComplete):
    """The script of zsh, which works without compinit."""

    # compdef exists after compinit only, which not every .zshrc calls
    source_template = shells.ZshComplete.source_template.replace(
        "    compdef ",
        "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n    compdef ",
    )


@shells.add_completion_class
class _Fish(_WholeWord, shells.FishComplete):
    """The script of fish, in which descriptions may contain commas."""

    # a description may contain commas
    source_template = shells.FishComplete.source_template.replace(
        'string split "," ', 'string split --max 1 "," '
    )


def _root(context: click.Context) -> Path:
    return find_project(Path.cwd(), context.find_root().params.get("project_dir"))


def _files(context: click.Context, kind: str, *suffixes: str) -> list[Path]:
    """Lists the files in a folder of the project, which is named by its key under `paths`, and of
    workflows in the folders below it."""
    root = _root(context)
    named = _as_mapping(_mapping(root / PROJECT_FILE, root).get("paths")).get(kind)
    folder = inside(root, named if isinstance(named, str) else kind)
    paths = files_in(folder, root, "**/*" if kind == "workflows" else "*")
    return [path for path in paths if path.suffix in suffixes]


def _mapping(path: Path, root: Path) -> dict[str, Any]:
    """Reads a mapping from a YAML file; an empty one if it cannot be read."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _as_mapping(yaml.load(read_text(path, path.name, root), loader))  # noqa: S506 - both are safe loaders
    except (Unusable, yaml.YAMLError):
        return {}


def _as_mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}

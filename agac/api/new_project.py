"""`agac init`: makes a project that works as it is, on the simulator, or one of the examples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import as_file, files
from pathlib import Path

from agac.core.arguments import typed
from agac.core.errors import UsageError, did_you_mean
from agac.data.files import explained
from agac.spec.paths import Refused
from agac.spec.project_files import real_path

RENAMED = {"env.example": ".env.example", "gitignore": ".gitignore"}
"""Files that would not travel in a package under their own name."""

_PARTS_OF_A_CARD = re.compile(
    r"^(?:sequence|fan_out|fan_in|agents|generator|evaluator|worker): (.+)$", re.MULTILINE
)
"""The lines with which a card names other cards."""

_FILES_IN_TEXT = re.compile(r"(?:data|prompts|schemas|tools)/[\w./*-]*\w")
"""The other files that a workflow names."""


def examples() -> dict[str, str]:
    """Describes the example projects that come with agac: by its name, what each of them does."""
    folder = _examples_folder()
    texts = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("workflows/*.yml"))}
    return {
        name: f"\n{text}".partition("\ndescription: ")[2].partition("\n")[0]
        for name, text in texts.items()
    }


@typed
def init(folder: Path | str = ".", example: str | None = None) -> list[Path]:
    """Makes a project in `folder`, or the one of an example, and returns the files that were made.

    Raises UsageError, and writes nothing, if one of them exists already. An example may be added
    to a project, whose own settings and equal files stay. A folder inside another project is fine:
    commands use the nearest."""
    folder = Path(folder)
    with as_file(files(__package__) / "template") as template:
        sources = _template_files(template)
        if example is not None:
            sources = _hidden(sources) | _files_of(example)
            if (folder / "agac.yml").is_file():
                sources = _to_add(sources, folder)
        _refuse_existing(sources, folder, example)
        targets = _targets(sources, folder)
        with explained(folder, "Choose another folder."):
            for path, source in sources.items():
                targets[path].parent.mkdir(parents=True, exist_ok=True)
                targets[path].write_bytes(source.read_bytes())
    return sorted(folder / path for path in sources)


def _examples_folder() -> Path:
    """Finds the folder of the examples: in a package next to this file, in a checkout the
    repository itself, which is the project that has them."""
    packaged = Path(__file__).with_name("examples")
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2]


def _template_files(template: Path) -> dict[Path, Path]:
    """Lists the files of a new project by the path that they get in it."""
    sources = sorted(
        path for path in template.rglob("*") if path.is_file() and path.suffix != ".pyc"
    )
    return {
        path.with_name(RENAMED.get(path.name, path.name)).relative_to(template): path
        for path in sources
    }


def _hidden(sources: Mapping[Path, Path]) -> dict[Path, Path]:
    """Picks the files of the template that an example gets, too: .gitignore and .env.example."""
    return {path: source for path, source in sources.items() if path.name.startswith(".")}


def _files_of(example: str) -> dict[Path, Path]:
    """Lists the files of an example by the path that they get: its workflow, and those that it
    names. Raises UsageError for an unknown example."""
    known = examples()
    root = _examples_folder()
    if example not in known:
        raise UsageError(
            f"there is no example {example!r}; {did_you_mean(example, known)}",
            remedy="`agac init --list` says what each of them does.",
        )
    text = (root / f"workflows/{example}.yml").read_text("utf-8")
    cards = _cards_of(root, text)
    patterns = [
        "agac.yml",
        *_FILES_IN_TEXT.findall(text),
        *(f"agentcards/{name}.*" for name in cards),
        f"workflows/{example}.yml",
    ]
    return {
        path.relative_to(root): path for pattern in patterns for path in sorted(root.glob(pattern))
    }


def _cards_of(root: Path, workflow: str) -> list[str]:
    """Lists the cards that the text of a workflow names, and the cards that those are made of."""
    cards = dict[str, None]()
    waiting = re.findall(r"agent: ([\w-]+)", workflow)
    while waiting:
        name = waiting.pop()
        if name in cards:
            continue
        cards[name] = None
        card = (root / f"agentcards/{name}.md").read_text("utf-8")
        waiting += re.findall(r"[\w-]+", " ".join(_PARTS_OF_A_CARD.findall(card)))
    return list(cards)


def _to_add(sources: Mapping[Path, Path], project: Path) -> dict[Path, Path]:
    """Picks the files that an example adds to a project."""
    return {
        path: source
        for path, source in sources.items()
        if not _stays(project / path, source, project)
    }


def _stays(target: Path, source: Path, project: Path) -> bool:
    """True if the project keeps its own file: one in its root, such as its settings, or an equal
    one."""
    if not target.is_file():
        return False
    return target.parent == project or target.read_bytes() == source.read_bytes()


def _refuse_existing(sources: Mapping[Path, Path], folder: Path, example: str | None) -> None:
    """Raises UsageError if one of the files exists."""
    existing = [str(folder / path) for path in sources if (folder / path).exists()]
    if not existing:
        return
    command = "agac init NAME"
    if example:
        command = f"agac init --example {example} NAME"
    raise UsageError(
        f"these files are there already: {', '.join(existing)}",
        remedy=f"Choose another folder: {command}. Nothing was written.",
    )


def _targets(sources: Mapping[Path, Path], folder: Path) -> dict[Path, Path]:
    """Finds where each file is written. Raises UsageError if a link leads out of `folder`."""
    try:
        return {path: real_path(folder / path, folder) for path in sources}
    except Refused as error:
        message = f"{folder} has a link in the place of a file or folder of the example: it {error}"
        raise UsageError(message, remedy="Nothing was written.") from None

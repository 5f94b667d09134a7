"""`agac init`: a project that works as it is, on the simulator."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

from agac.core.errors import AgacError, UsageError

RENAMED = {"env.example": ".env.example", "gitignore": ".gitignore"}
"""Files that would not travel in a package under their own name."""


def init(folder: Path | str = ".") -> list[Path]:
    """Makes a project in `folder` and gives the files that were made.

    Raises UsageError, and writes nothing, when one of them is there already. A folder inside another project is fine:
    commands that are given there use the nearest agac.yml.
    """
    folder = Path(folder)
    with as_file(files(__package__) / "template") as template:
        sources = sorted(path for path in template.rglob("*") if path.is_file() and path.suffix != ".pyc")
        targets = [_target(path.relative_to(template)) for path in sources]
        taken = [str(folder / target) for target in targets if (folder / target).exists()]
        if taken:
            raise UsageError(
                f"these files are there already: {', '.join(taken)}",
                remedy="Choose another folder: agac init NAME. Nothing was written.",
            )
        try:
            for source, target in zip(sources, targets, strict=True):
                (folder / target).parent.mkdir(parents=True, exist_ok=True)
                (folder / target).write_bytes(source.read_bytes())
        except OSError as error:
            raise AgacError(
                f"{folder}: cannot be written: {error.strerror}", remedy="Choose another folder."
            ) from error
    return [folder / target for target in targets]


def _target(path: Path) -> Path:
    return path.with_name(RENAMED.get(path.name, path.name))

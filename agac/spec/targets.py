"""`output.to`: the table in a database that results go into."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import parse_qsl

from agac.spec.paths import OutsideProject, inside, lies_in
from agac.spec.suggest import did_you_mean
from agac.spec.workflow import InputSpec, ProjectSpec, TableTarget

_FORM = "write it as sqlite://data/out.db?table=results"
_MAGIC = b"SQLite format 3\0"


def table_target(
    text: str, project: ProjectSpec, folder: Path, source: InputSpec | None
) -> tuple[TableTarget | None, str]:
    """The table that `text` names, or why results cannot go there. `folder` is the output folder."""
    head, _, query = text.partition("?")
    scheme, found, name = head.partition("://")
    if not found:
        return None, f"{text!r} names no table; {_FORM}" + _file_hint(head)
    if scheme != "sqlite":
        return None, f"{scheme}:// cannot be written to; {_FORM}"
    table, message = _table(query)
    if not message and not name:
        message = f"names no database; {_FORM}"
    if message:
        return None, message
    try:
        path = inside(project.root, name)
    except OutsideProject as error:
        return None, str(error)
    target = TableTarget(path, project.shown(path), table)
    message = _wrong_place(target, project, folder) or _wrong_content(target, source)
    return (None, message) if message else (target, "")


def _file_hint(head: str) -> str:
    suffix = Path(head).suffix.lower().removeprefix(".")
    return f", or format: {suffix} for a file" if suffix in ("csv", "tsv", "txt", "parquet") else ""


def _table(query: str) -> tuple[str, str]:
    """The name of the table, or what is wrong with it."""
    given = parse_qsl(query, keep_blank_values=True)
    for key, _ in given:
        if key != "table":
            return "", f"unknown parameter {key!r}; {did_you_mean(key, ['table'], 'known')}"
    names = [value for _, value in given]
    if not names or not names[0]:
        return "", f"names no table; {_FORM}"
    if len(names) > 1:
        return "", f"names {len(names)} tables; keep one of them"
    if names[0].lower().startswith("sqlite_") or not names[0].isprintable():
        return "", f"{names[0]!r} cannot be the name of a table; SQLite keeps it for itself"
    return names[0], ""


def _wrong_place(target: TableTarget, project: ProjectSpec, folder: Path) -> str:
    path, shown = target.path, target.shown
    if any(lies_in(path, project.root / name) for name in (".agac", ".git")):
        return f"{shown} belongs to agac or git; name a database of your own"
    if path.is_dir():
        return f"{shown} is a folder; name a database in it"
    if any(part.is_file() for part in path.parents):
        return f"{shown}: a file is where its folder should be"
    if path.parent == folder / "preview":
        return f"{shown} lies in the folder of previews; name another place"
    return ""


def _wrong_content(target: TableTarget, source: InputSpec | None) -> str:
    if target.path.is_file() and not _may_be_database(target.path):
        return f"{target.shown} is no SQLite database; name one, or a file that is not there yet"
    if source is not None and source.path == target.path and _reads(source.statement or "", target.table):
        return (
            f"the input reads the table {target.table!r}: what is written into it would change the rows, and all of "
            "them would be asked again; name another table"
        )
    return ""


def _may_be_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError:  # said when it is opened, with the remedy
        return True
    return head in (b"", _MAGIC)


def _reads(statement: str, table: str) -> bool:
    """Whether a statement names the table as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(table)}(?!\w)", statement, re.IGNORECASE) is not None

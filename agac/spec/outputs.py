"""The output of a workflow: its folder, a table, and the stages whose results are written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import parse_qsl, unquote_plus

from agac.core.errors import Problem, Where, did_you_mean
from agac.spec import paths
from agac.spec.data_specs import InputSpec, OutputSpec, TableTarget
from agac.spec.graph import StageNode, amended_name, homes, rows_in_words
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.paths import Refused, Unusable
from agac.spec.project import ProjectSpec
from agac.spec.project_files import open_file
from agac.spec.yaml import Document


def output_spec(
    file: WorkflowFile,
    document: Document,
    project: ProjectSpec,
    name: str,
    source: InputSpec | None,
) -> tuple[OutputSpec, list[Problem]]:
    """Resolves where the results of the workflow `name` go, or says why they may not go there."""
    written = file.output
    default = project.paths.output / name
    folder = default
    target = None
    problems: list[Problem] = []
    try:
        if written.dir is not None:
            folder = paths.inside(project.root, written.dir)
        paths.refuse_folder(folder, project.root, project.paths, source.path if source else None)
    except Refused as error:
        problems.append(document.problem(("output", "dir"), str(error)))
        folder = default
    if written.to is not None:
        at = document.where(("output", "to"))
        try:
            target = _table_target(written.to, project, folder, source, at)
        except Refused as error:
            problems.append(Problem(at, str(error)))
    spec = OutputSpec(
        folder,
        written.include_input,
        formats=tuple(written.format),
        to=target,
        merge=written.merge,
        csv_safe=written.csv_safe,
        bom=written.bom,
        where=document.where(("output", "format")),
        how=written.how,
        sources=written.sources,
    )
    return spec, problems


_TABLE_FORM = "write it as sqlite://data/out.db?table=results"


def _parse_table(text: str) -> tuple[str, str]:
    """Parses `text` into the names of a database and a table in it. Raises Refused."""
    if paths.POSTGRES.match(text):
        address, _, table = paths.server_parts(text, "table")
        if not table:
            raise Refused(
                "names no table; write postgres://USER:${PGPASSWORD}@HOST/DATABASE?table=NAME"
            )
        table = unquote_plus(table)
        paths.server_table(table)
        return address, table
    head, _, query = text.partition("?")
    scheme, separator, name = head.partition("://")
    if not separator:
        suffix = Path(head).suffix.lower().removeprefix(".")
        is_format = suffix in ("csv", "tsv", "txt", "parquet")
        hint = f", or format: {suffix} for a file" if is_format else ""
        raise Refused(f"{text!r} names no table; {_TABLE_FORM}{hint}")
    if scheme != "sqlite":
        raise Refused(f"{scheme}:// cannot be written to; {_TABLE_FORM}")
    table = _table_of_query(query)
    if not name:
        raise Refused(f"names no database; {_TABLE_FORM}")
    return name, table


def _table_of_query(query: str) -> str:
    """Returns the table that follows `?` in the address of a SQLite database. Raises Refused."""
    parameters = parse_qsl(query, keep_blank_values=True)
    unknown = next((key for key, _ in parameters if key != "table"), None)
    if unknown is not None:
        raise Refused(f"unknown parameter {unknown!r}; {did_you_mean(unknown, ['table'], 'known')}")
    table = parameters[0][1] if parameters else ""
    if not table:
        raise Refused(f"names no table; {_TABLE_FORM}")
    if len(parameters) > 1:
        raise Refused(f"names {len(parameters)} tables; keep one of them")
    if table.lower().startswith("sqlite_") or not table.isprintable():
        raise Refused(f"{table!r} cannot be the name of a table; SQLite keeps it for itself")
    return table


def _table_target(
    text: str, project: ProjectSpec, folder: Path, source: InputSpec | None, where: Where
) -> TableTarget:
    """Resolves the table into which results go. Raises Refused."""
    name, table = _parse_table(text)
    if paths.POSTGRES.match(text):
        return TableTarget(None, name, table, where)
    path = paths.inside(project.root, name)
    shown = project.shown(path)
    _refuse_place_of_database(path, shown, project, folder)
    if source and source.path == path and _names_word(source.statement or "", table):
        why = "what is written into it would change the rows, and all of them would be asked again"
        raise Refused(f"the input reads the table {table!r}: {why}; name another table")
    return TableTarget(path, shown, table, where)


def _refuse_place_of_database(path: Path, shown: str, project: ProjectSpec, folder: Path) -> None:
    """Refuses a place where no database for results can be."""
    if any(path.is_relative_to(project.root / state) for state in paths.STATE_FOLDERS):
        raise Refused(f"{shown} belongs to agac or git; name a database of your own")
    if path.is_dir():
        raise Refused(f"{shown} is a folder; name a database in it")
    if path.exists() and not path.is_file():
        raise Refused(f"{shown} is not a file; name a database")
    if any(part.is_file() for part in path.parents):
        raise Refused(f"{shown}: a file is where its folder should be")
    if path.parent == folder / "preview":
        raise Refused(f"{shown} lies in the folder of previews; name another place")
    if path.is_file() and not _may_be_database(path):
        raise Refused(f"{shown} is no SQLite database; name one, or a file that is not there yet")


def _names_word(text: str, word: str) -> bool:
    """True if a text has a word, in any case."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def _may_be_database(path: Path) -> bool:
    """True if a file is empty, or begins as SQLite's databases do."""
    magic = b"SQLite format 3\0"
    try:
        with open_file(path, path.name, None) as file:
            return file.read(len(magic)) in (b"", magic)
    except (OSError, Unusable):  # said when it is opened, with the remedy
        return True


def output_stages(
    file: WorkflowFile, document: Document, nodes: Sequence[StageNode], *, sound: bool = True
) -> tuple[tuple[tuple[str, ...], str | None], list[Problem]]:
    """Chooses the stages whose results are written, in the order in which a row meets them, and
    the stage that made the rows that are written (None: they are the input's). With everything that
    is wrong. The stages are those that `output.stages` names, else those that no stage needs.
    `sound`: nothing is wrong with what stages need: it is known which rows they give."""
    by_name = {node.name: node for node in nodes}
    written = file.output.stages
    at = document.where(("output", "stages"))
    unknown = [Problem(at, message) for message in _unknown(written or (), by_name, file.stages)]
    if unknown:
        return ((), None), unknown
    if written is None:
        needed = {need for node in nodes for need in node.needs}
        ends = [name for name in by_name if name not in needed]
    else:
        ends = [name for name in by_name if name in written]
    chosen = list(dict.fromkeys(amended_name(name, by_name) for name in ends))
    stages = _with_results(chosen, by_name, file)
    if not sound:
        return (stages, None), []
    makers = _by_maker(chosen, by_name, homes(nodes))
    result = stages, next(iter(makers), None)
    if len(makers) < 2:
        return result, []
    return result, [Problem(at, _different_rows(makers, nodes, are_named=written is not None))]


def _by_maker(
    chosen: Iterable[str], by_name: Mapping[str, StageNode], home: Mapping[str, str | None]
) -> dict[str | None, list[str]]:
    """Groups stages by the stage that made the rows for which they have results."""
    makers: dict[str | None, list[str]] = {}
    for name in chosen:
        # a stage that filters what another one keeps has that one's rows: `homes` says so
        maker = name if by_name[name].makes == "kept" else home[name]
        makers.setdefault(maker, []).append(name)
    return makers


def _different_rows(
    makers: Mapping[str | None, Sequence[str]], nodes: Sequence[StageNode], *, are_named: bool
) -> str:
    """Returns the message for results of rows of several kinds, which one file cannot have."""
    makes = {node.name: node.makes for node in nodes}
    each = [
        f"{' and '.join(map(repr, names))} of {rows_in_words(maker, makes)}"
        for maker, names in makers.items()
    ]
    shown = "; ".join(each)
    last = ", ".join([*makers.values()][-1])
    if are_named:
        return f"names results of different rows: {shown}; name those of the same rows, as [{last}]"
    return (
        f"the results that no stage needs are of different rows: {shown}; choose with "
        f"`output: {{stages: [{last}]}}`"
    )


def _with_results(
    chosen: Iterable[str], by_name: Mapping[str, StageNode], file: WorkflowFile
) -> tuple[str, ...]:
    """Returns the stages whose results the chosen ones have: in the place of a stage that only
    lets rows through, those that it follows."""
    left = list(chosen)
    with_results = set()
    seen = set()
    while left:
        name = left.pop()
        if name in seen or name not in by_name:
            continue  # a circle, or a stage that does not exist: `stage_order` says so
        seen.add(name)
        node = by_name[name]
        stage = file.stages[node.index]
        filters_ends = stage.filter is not None and file.output.stages is None
        if node.needs and (stage.dedupe is not None or filters_ends):
            left += node.needs
        else:
            with_results.add(name)
    return tuple(name for name in by_name if name in with_results)


def _unknown(
    written: Sequence[str], known: Iterable[str], stages: Sequence[StageFile]
) -> Iterator[str]:
    """Yields a message for each name in `output.stages` that is no stage."""
    disabled = {stage.name for stage in stages if not stage.enabled}
    for name in written:
        if name in known:
            continue
        why = "which is not enabled"
        if name not in disabled:
            why = f"which does not exist; {did_you_mean(name, known, 'stages')}"
        yield f"names the stage {name!r}, {why}"

"""The two ends of a workflow: the file that rows come from and the folder that results go to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from agac.core.errors import Problem, UsageError, Where
from agac.spec.models import InputFile, WorkflowFile
from agac.spec.paths import OutsideProject, inside, lies_in
from agac.spec.suggest import listed
from agac.spec.texts import near_files
from agac.spec.workflow import InputFormat, InputSpec, OutputSpec, ProjectSpec
from agac.spec.yamlfile import Document, key_path

_REMEDY = "Name a csv, tsv, json or jsonl file."
STATE_FOLDERS = (".agac", ".git")

_FORMATS: Mapping[str, InputFormat] = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}

_TABLES_LATER = frozenset({".parquet", ".xlsx", ".xls", ".ods", ".arrow", ".feather"})


def input_spec(
    file: WorkflowFile, document: Document, project: ProjectSpec, given: Path | None
) -> tuple[InputSpec | None, list[Problem]]:
    """Where rows come from: the file that the workflow names, or `given` on the command line.

    Raises `UsageError` when `given` cannot be used.
    """
    if file.input is not None and file.inputs is not None:
        message = "input and inputs are two spellings of one key; keep input"
        return None, [Problem(document.where(("inputs",), key=True), message, "inputs")]
    key = "inputs" if file.inputs is not None else "input"
    written = file.inputs or file.input or InputFile()
    where = document.where((key, "path"))
    if given is not None:
        return _given(given, written, where), []
    if written.path is None:
        message = "missing key 'path'; name the file with the rows, as input: {path: data/reviews.csv}, or use --input"
        return None, [Problem(where, message, key)]
    found = written.format or _FORMATS.get(Path(written.path).suffix.lower())
    path, message = _input_path(written.path, project, known_format=found is not None)
    if path is None or found is None:
        return None, [Problem(where, message, key_path((key, "path")))]
    return InputSpec(path, written.path, found, written.id_field, written.on_duplicate_id, where), []


def _input_path(text: str, project: ProjectSpec, *, known_format: bool) -> tuple[Path | None, str]:
    if "://" in text:
        return None, f"{text.split('://')[0]}:// is not supported yet; name a csv, tsv, json or jsonl file"
    try:
        path = inside(project.root, text)
    except OutsideProject as error:
        return None, f"{error}, or use --input"
    if path.is_dir():
        return None, f"{text!r} is a folder; name a file in it"
    if message := _unsupported(path, known_format=known_format):
        return None, message
    if not known_format:
        return None, f"cannot tell the format of {text!r}; add format: {' or '.join(get_args(InputFormat))}"
    if path.is_file():
        return path, ""
    if any(sign in text for sign in "*?["):
        return None, f"{text!r}: several files at a time are not supported yet; name one file"
    if path.exists():
        return None, f"{text!r} is not a file"
    return None, f"no such file: {text!r}; {near_files(path, project.root)}"


def _unsupported(path: Path, *, known_format: bool) -> str:
    """Why no file with this suffix can be read, if so. A text file can when its format is told."""
    suffix = path.suffix.lower()
    if suffix in _TABLES_LATER:
        return f"{suffix[1:]} is not supported yet; convert it to csv or jsonl"
    if suffix == ".txt" and not known_format:
        return "txt is not supported yet; convert it to csv or jsonl, or add format: csv if that is what it holds"
    return ""


def _given(path: Path, written: InputFile, where: Where) -> InputSpec:
    """The command line's file. Its suffix decides the format; without a known one the workflow's `format` does."""
    if path.is_dir():
        shown = "'' or ." if path == Path() else str(path)
        raise UsageError(f"--input {shown}: is a folder; name a file in it", remedy=_REMEDY)
    if not path.is_file():
        raise UsageError(f"--input {path}: no such file", remedy=_REMEDY)
    if message := _unsupported(path, known_format=written.format is not None):
        raise UsageError(f"--input {path}: {message}", remedy=_REMEDY)
    found = _FORMATS.get(path.suffix.lower()) or written.format
    if found is None:
        known = listed(_FORMATS)
        raise UsageError(f"--input {path}: cannot tell the format", remedy=f"Known suffixes: {known}.")
    return InputSpec(path.resolve(), str(path), found, written.id_field, written.on_duplicate_id, where)


def output_spec(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, source: InputSpec | None
) -> tuple[OutputSpec | None, list[Problem]]:
    """Where the results of the workflow `name` go, or why they may not go there."""
    text = file.output.dir
    try:
        folder = inside(project.root, text) if text is not None else project.paths.output / name
        message = _output_refusal(folder, project, source)
    except OutsideProject as error:
        message = str(error)
    if message:
        return None, [Problem(document.where(("output", "dir")), message, "output.dir")]
    return OutputSpec(folder, file.output.include_input), []


def output_folder(text: str, project: ProjectSpec, source: InputSpec) -> Path:
    """The folder that `--output` names, relative to the project. Raises `UsageError` when results may not go there."""
    try:
        folder = inside(project.root, text)
        message = _output_refusal(folder, project, source)
    except OutsideProject as error:
        message = str(error)
    if message:
        raise UsageError(f"--output {text}: {message}", remedy="Name a folder inside the project.")
    return folder


def _output_refusal(folder: Path, project: ProjectSpec, source: InputSpec | None) -> str:
    """Why results may not go to `folder`: files there are replaced, so nothing of the project's own may be in it."""
    remedy = "results need a folder of their own, as output/reviews"
    if folder == project.root:
        return f"is the project's root; {remedy}"
    own = [project.paths.workflows, project.paths.agentcards, project.paths.schemas]
    state = [project.root / name for name in STATE_FOLDERS]
    for kept in [*own, *state, project.root / "data", project.root / "prompts"]:
        if lies_in(kept, folder):
            return f"{project.shown(folder)} holds the project's own files ({project.shown(kept)}); {remedy}"
    if any(lies_in(folder, kept) for kept in state):
        return f"{project.shown(folder)} belongs to agac or git; {remedy}"
    if source is not None and lies_in(source.path, folder):
        return f"{project.shown(folder)} holds the input file; {remedy}"
    if folder.exists() and not folder.is_dir():
        return f"{project.shown(folder)} is a file; {remedy}"
    return ""

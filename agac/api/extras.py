"""What else a project needs: init, gc, backup, sql, data previews, and schemas for editors."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from agac.api.project import environment, open_project, remote_contents
from agac.api.status import (
    database_bytes,
    database_files,
    database_path,
    no_runs_yet,
    refuse_unknown,
    workflow_name,
)
from agac.api.sync import blocking
from agac.core.arguments import typed
from agac.core.errors import StoreError, UsageError, did_you_mean, sentence
from agac.core.state_files import make_folder
from agac.core.types import JSONValue, Report
from agac.data.files import (
    create_temporary,
    explained,
    refuse_target,
    remove_leftovers,
    sync_folder,
    write_whole,
)
from agac.data.remote import forget_contents
from agac.data.sources import STANDARD_INPUT, Column, Columns, forget, keep, open_input
from agac.data.sqlite import TABLES
from agac.data.text_formats import separator_hint
from agac.spec.card_models import CARD_MODELS
from agac.spec.file_model import FileModel
from agac.spec.inputs import (
    DATABASES,
    DELIMITED,
    INPUTS,
    SCHEME,
    format_of,
    free_input,
    suffix_of,
    unused_keys,
)
from agac.spec.loader import load_project
from agac.spec.models import WorkflowFile
from agac.spec.paths import YAML_SUFFIXES, ProjectPaths, Refused, matching_rows, project_root
from agac.spec.project_files import real_path
from agac.spec.project_models import ProjectFile
from agac.spec.test_files import FOLDER as TESTS
from agac.spec.test_files import WorkflowTestFile
from agac.spec.validation import CAMEL_CASE
from agac.spec.workflow import InputFormat, InputSpec, ProjectSpec
from agac.spec.yaml import Document
from agac.store.db import open_for_reading
from agac.store.gc import GcCounts, clear, copy_database, remove_word_indexes
from agac.store.query import QueryAnswer, answered, refuse_at_once
from agac.store.runs import run_record, run_settings_of
from agac.store.writer import open_database


@dataclass(frozen=True, slots=True)
class GcReport(Report):
    """What was dropped, or with `dry_run` would be. Sizes in bytes, with what waits to be written
    into the database."""

    JSON_KEYS = (
        "dry_run",
        "keep_runs",
        "kept",
        "dropped=cleared.dropped",
        "rows_that_left_the_input=cleared.left_rows",
        "rows_no_longer_made=cleared.gone_rows",
        "results=cleared.results",
        "bytes_before",
        "bytes_after",
    )

    cleared: GcCounts
    keep_runs: int
    dry_run: bool
    bytes_before: int
    bytes_after: int

    @property
    def kept(self) -> list[int]:
        """The runs that stay."""
        return [line.id for line in self.cleared.kept]


@dataclass(frozen=True, slots=True)
class BackupReport(Report):
    """A copy of the database, its size in bytes, and the shell command that puts it back."""

    JSON_KEYS = ("database", "file", "bytes", "restore")

    database: Path
    file: Path
    bytes: int

    @property
    def restore(self) -> str:
        """To be run while no run is at work. A log of the old database must not be left: it would
        be applied."""
        log = [f"{self.database}-wal", f"{self.database}-shm"]
        return f"rm -f {shlex.join(log)} && cp {shlex.join([str(self.file), str(self.database)])}"


@blocking
async def gc(
    keep_runs: int,
    workflow: str | None = None,
    *,
    dry_run: bool = False,
    project: Path | str | None = None,
) -> GcReport:
    """Keeps of each workflow, or of one, the `keep_runs` runs last worked on, and drops what none
    of them needs. That is their rows, calls and roll-ups, results that no kept row uses, and rows
    that left the input of kept runs. Runs with open batches stay as they are. Index files of words
    that older versions made are deleted, too. Raises LeaseHeld while any workflow is at work."""
    if keep_runs < 1:
        raise UsageError(f"--keep-runs {keep_runs}: keep at least one run of each workflow")
    root = project_root(project)
    workflow = workflow_name(workflow)
    path = database_path(root)
    before = database_bytes(path)
    if not path.exists():
        return GcReport(GcCounts(), keep_runs, dry_run, before, before)
    async with open_for_reading(path) if dry_run else open_database(path) as database:
        assert database is not None
        await refuse_unknown(database, root, workflow)
        cleared = await clear(database, keep_runs, workflow, time.time)
        if not dry_run:
            remove_word_indexes(path)
            records = [await run_record(database, line.id) for line in cleared.kept]
            flags = [one.invocation.body.get("given", {}) for one in records if one.invocation]
            # they go on with these
            forget(root / INPUTS, {Path(given.get("input", "")).name for given in flags})
            settings = [await run_settings_of(database, line.id) for line in cleared.kept]
            forget_contents(
                root, {one["hash"] for kept in settings for one in (kept or {}).get("remote", ())}
            )
    return GcReport(cleared, keep_runs, dry_run, before, database_bytes(path))


@typed
def backup(
    file: Path | str, *, force: bool = False, project: Path | str | None = None
) -> BackupReport:
    """Copies the database as it is at one moment into `file`, also while runs are at work. The
    file appears whole, checked and durable, or not at all; an existing one is only replaced with
    `force`. Raises UsageError for a file that may not be written, StoreError when the database or
    the disk fails."""
    source = database_path(project_root(project))
    target = Path(file).absolute()
    if not source.exists():
        raise no_runs_yet(source)
    own = dict.fromkeys(database_files(source), "the database itself")
    refuse_target(target, own, "agac-backup.db", force=force)
    needed = database_bytes(source)
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        what = (
            f"no space for {target}: the copy needs {needed / 1e6:,.1f} MB, "
            f"{free / 1e6:,.1f} MB are free"
        )
        raise StoreError(what, remedy="Free some space, or name a file on another disk.")
    with explained(
        target.parent, "Check that you may write there, or name a file elsewhere.", StoreError
    ):
        temporary, descriptor = create_temporary(target, private=True)
    try:
        copy_database(source, temporary)
        os.fsync(descriptor)
        refuse_target(target, own, "agac-backup.db", force=force)  # somebody may have been faster
        temporary.replace(target)
    finally:
        os.close(descriptor)
        for path in (temporary, temporary.with_name(f"{temporary.name}-journal")):
            path.unlink(missing_ok=True)
    sync_folder(target.parent)
    remove_leftovers(target.parent)
    return BackupReport(source, target, target.stat().st_size)


# Looking at an input without a workflow: what it is, what its columns hold, its first rows.


@dataclass(frozen=True, slots=True)
class DataReport(Report):
    """What was seen of an input. `looked_at` rows were read, which is all of them when `complete`;
    of those `unusable` cannot be used, and `problems` says why of the first. `size` is in bytes;
    `files` how many there are."""

    JSON_KEYS = (
        "input",
        "format",
        "bytes=size",
        "files",
        "rows_looked_at=looked_at",
        "complete",
        "unusable",
        "problems",
        "columns",
        "rows",
        "hint",
    )

    input: str
    format: str
    size: int
    files: int
    looked_at: int
    complete: bool
    unusable: int
    problems: list[str]
    columns: list[Column]
    rows: list[dict[str, JSONValue]]

    @property
    def hint(self) -> str | None:
        """What to do where the one column looks like a header that was not taken apart."""
        if self.format in DELIMITED:
            hint = separator_hint([one.name for one in self.columns])
        else:
            hint = ""
        if hint:
            return f"The input has one column: {hint}, or look at it with --delimiter."
        return None


@typed
def show_data(
    inputs: str | Path | Sequence[str | Path],
    *,
    format: str | None = None,  # noqa: A002 - it is the key's name
    rows: int = 5,
    look_at: int = 1_000,
    delimiter: str | None = None,
    encoding: str | None = None,
    sheet: str | int | None = None,
    hive: bool | None = None,
    sql: str | None = None,
    project: Path | str | None = None,
) -> DataReport:
    """Looks at an input: a path, several, a pattern, a database, or `-`; a project is not needed.
    The first `rows` rows are in the report (of a database alone, its tables), columns are told
    from the first `look_at`. `format` says what the name does not; `sql` is one SELECT over the
    rows, which are the table `input`. Raises UsageError."""
    texts = [str(one) for one in ([inputs] if isinstance(inputs, str | Path) else inputs)]
    if not texts:
        raise UsageError(
            "no input is named",
            remedy="Name a file, a pattern, a database, or - for standard input.",
        )
    known = next((one for one in get_args(InputFormat) if one == format), None)
    if format is not None and known is None:
        remedy = sentence(did_you_mean(format, get_args(InputFormat)))
        raise UsageError(f"--format {format}: unknown format", remedy=remedy)
    bare = texts[0].removeprefix(SCHEME)
    listed = (
        len(texts) == 1 and suffix_of(bare) in DATABASES and Path(bare).is_file() and format is None
    )
    if listed:
        name = bare.replace("'", "''")
        select = (
            f"SELECT name AS \"table\", '{SCHEME}{name}?table=' || name AS input FROM ({TABLES})"  # noqa: S608 - quoted
        )
        texts = [f"{SCHEME}{bare}?query={select}"]
        rows = look_at
    root = project_root(project, bare=project is None)  # else the current folder as if it were one
    env, _ = environment(root)
    around, _ = load_project(root, env)
    if around is None:  # agac.yml cannot be read
        folders = ProjectPaths(
            *(root / name for name in ("workflows", "agentcards", "schemas", "output"))
        )
        around = ProjectSpec(root, ProjectFile(), folders, Document("", None, []), env)
    around = replace(around, fetch=remote_contents(around).fetch)
    how: dict[str, Any] = {
        "delimiter": delimiter,
        "encoding": encoding,
        "sheet": sheet,
        "hive": hive,
        "sql": sql,
    }
    spec = free_input(texts, around, format=known, **how)
    spec = replace(spec, shown=bare) if listed else spec
    first: list[dict[str, JSONValue]] = []
    problems: list[str] = []
    looked_at = unusable = 0
    with _at_hand(spec) as (ready, shown):
        for name, text in unused_keys(ready).items():
            raise UsageError(
                f"--{name}: {text}; {shown} is {ready.format}", remedy=f"Leave --{name} out."
            )
        source = open_input(ready, around.env)
        columns = Columns(source.columns())
        records = source.records()
        for record in islice(records, look_at):
            looked_at += 1
            if record.error is not None:
                unusable += 1
                problems.append(record.error.message)
                del problems[5:]  # of more the first ones are shown
            elif record.data is not None:
                columns.see(record.data)
                if len(first) < rows:
                    first.append(record.data)
        complete = looked_at < look_at or next(records, None) is None
        found: Iterable[str]
        if ready.patterns:
            found = matching_rows(ready.path, ready.patterns, ready.skipped)
        else:
            found = [""]
        files = [ready.path / relative for relative in found]
        size = sum(path.stat().st_size for path in files if path.is_file())
    return DataReport(
        shown,
        str(ready.format),
        size,
        len(files),
        looked_at,
        complete,
        unusable,
        problems,
        columns.all(),
        first,
    )


@contextmanager
def _at_hand(spec: InputSpec) -> Iterator[tuple[InputSpec, str]]:
    """The input as it can be opened, and its name; standard input lies in a file for as long."""
    with tempfile.TemporaryDirectory(prefix="agac-data-") as folder:
        spec = replace(spec, scratch=Path(folder))
        if not spec.piped:
            yield spec, spec.shown
            return
        if sys.stdin is None or sys.stdin.isatty():
            remedy = "Pipe rows in, as `cat rows.csv | agac data -`."
            raise UsageError(f"{STANDARD_INPUT}: nothing is piped in", remedy=remedy)
        path = keep(sys.stdin.buffer, Path(folder))
        found = spec.format or format_of(path.name)
        if found is None:
            raise UsageError(
                f"{STANDARD_INPUT}: cannot tell the format of what is piped in",
                remedy="Add --format csv, or another of csv, tsv, json, jsonl, txt, parquet, xlsx.",
            )
        yield replace(spec, path=path, format=found, piped=False), STANDARD_INPUT


# `agac init`: a project that works as it is, on the simulator.

RENAMED = {"env.example": ".env.example", "gitignore": ".gitignore"}
"""Files that would not travel in a package under their own name."""


_MEMBERS = re.compile(
    r"^(?:sequence|fan_out|fan_in|agents|generator|evaluator|worker): (.+)$", re.MULTILINE
)
"""The cards that a card names."""


def examples() -> dict[str, str]:
    """The example projects that agac brings with it: what each of them does, by its name."""
    found = {
        path.stem: path.read_text("utf-8") for path in sorted(_shipped().glob("workflows/*.yml"))
    }
    return {
        name: f"\n{text}".partition("\ndescription: ")[2].partition("\n")[0]
        for name, text in found.items()
    }


def _shipped() -> Path:
    """The folder of the examples: next to this file in a package, in a checkout the project that
    the repository is."""
    packaged = Path(__file__).with_name("examples")
    if packaged.is_dir():
        return packaged
    return Path(__file__).parents[2]


def _files_of(example: str) -> dict[Path, Path]:
    """The files of an example by the path that they get: its workflow, and those that it names."""
    known = examples()
    root = _shipped()
    if example not in known:
        what = f"there is no example {example!r}; {did_you_mean(example, known)}"
        raise UsageError(what, remedy="`agac init --list` says what each of them does.")
    text = (root / f"workflows/{example}.yml").read_text("utf-8")
    cards = dict[str, str]()
    waiting = re.findall(r"agent: ([\w-]+)", text)
    while waiting:  # a card may be made of others
        name = waiting.pop()
        if name not in cards:
            cards[name] = f"agentcards/{name}.*"
            card = (root / f"agentcards/{name}.md").read_text("utf-8")
            waiting += re.findall(r"[\w-]+", " ".join(_MEMBERS.findall(card)))
    named = re.findall(r"(?:data|prompts|schemas|tools)/[\w./*-]*\w", text)
    patterns = ["agac.yml", *named, *cards.values(), f"workflows/{example}.yml"]
    return {
        path.relative_to(root): path for pattern in patterns for path in sorted(root.glob(pattern))
    }


@typed
def init(folder: Path | str = ".", example: str | None = None) -> list[Path]:
    """Makes a project in `folder`, or the one of an example, and gives the files that were made.
    Raises UsageError, and writes nothing, when one of them is there already. An example may be
    added to a project, whose own settings and equal files stay. A folder inside another project is
    fine: commands use the nearest."""
    folder = Path(folder)
    with as_file(files(__package__) / "template") as template:
        sources = sorted(
            path for path in template.rglob("*") if path.is_file() and path.suffix != ".pyc"
        )
        made = {
            path.with_name(RENAMED.get(path.name, path.name)).relative_to(template): path
            for path in sources
        }
        if example is not None:
            made = {path: made[path] for path in made if path.name.startswith(".")} | _files_of(
                example
            )
            if (folder / "agac.yml").is_file():
                made = {
                    path: source
                    for path, source in made.items()
                    if not _stays(folder / path, source, folder)
                }
        taken = [str(folder / path) for path in made if (folder / path).exists()]
        if taken:
            if example:
                command = f"agac init --example {example} NAME"
            else:
                command = "agac init NAME"
            what = f"these files are there already: {', '.join(taken)}"
            raise UsageError(what, remedy=f"Choose another folder: {command}. Nothing was written.")
        try:
            places = {path: real_path(folder / path, folder) for path in made}
        except Refused as error:
            what = (
                f"{folder} has a link in the place of a file or folder of the example: it {error}"
            )
            raise UsageError(what, remedy="Nothing was written.") from None
        with explained(folder, "Choose another folder."):
            for path, source in made.items():
                places[path].parent.mkdir(parents=True, exist_ok=True)
                places[path].write_bytes(source.read_bytes())
    return sorted(folder / path for path in made)


def _stays(target: Path, source: Path, project: Path) -> bool:
    """Whether a file of a project stays as it is where an example is added: its settings, and what
    is the same."""
    return target.is_file() and (
        target.parent == project or target.read_bytes() == source.read_bytes()
    )


# Questions to the store in SQL, which change nothing.


@typed
@contextmanager
def sql(query: str, *, project: Path | str | None = None) -> Iterator[QueryAnswer]:
    """The answer to one statement that reads, for use in `with`: `columns`, and the rows as tuples
    when iterated over. Rows are read as they are wanted, so that memory stays flat. `-` reads the
    query from standard input. Raises UsageError for a query that is wrong or would do more than
    read, and where nothing was run yet."""
    root = project_root(project)
    if query == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(
                "-: nothing is piped in",
                remedy="Pipe the query in, as in `agac sql - < query.sql`.",
            )
        try:
            query = sys.stdin.buffer.read().decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"-: byte {error.start:,} is not UTF-8", remedy="Save the query as UTF-8."
            ) from error
    refuse_at_once(query)
    path = database_path(root)
    if not path.exists() or not path.stat().st_size:
        raise no_runs_yet(path)
    with answered(path, query) as answer:
        yield answer


# What editors need to complete and check agac's files: JSON Schemas, and where they belong.

FOLDER = Path(".agac") / "schemas"
"""Where a project keeps them: made by agac, not by hand, so beside its database and as little in
git."""


@dataclass(frozen=True, slots=True)
class SchemasReport(Report):
    """Schemas that were written, and the settings with which VS Code finds them from the folder of
    agac.yml."""

    files: list[Path]
    settings: dict[str, Any]


@typed
def write_schemas(*, project: Path | str | None = None) -> SchemasReport:
    """Writes all of them into `.agac/schemas/` of the project, in place of older ones. Raises
    UsageError where there is no project, and AgacError when the folder cannot be written."""
    opened = open_project(project)
    folder = opened.root / FOLDER
    paths = opened.spec.paths
    with explained(folder):
        make_folder(folder)
    # an AgentCard in Markdown is no YAML, so editors are not told of it
    patterns = {
        kind: [f"{opened.spec.shown(files)}/*{suffix}" for suffix in YAML_SUFFIXES]
        if files
        else ["agac.yml"]
        for kind, files in zip(
            _MODELS, (paths.workflows, None, paths.agentcards, opened.root / TESTS), strict=True
        )
    }
    for kind in patterns:
        write_whole(
            folder / f"{kind}.json",
            json.dumps(file_schema(kind), ensure_ascii=False, indent=2) + "\n",
        )
    schemas = {(FOLDER / f"{kind}.json").as_posix(): found for kind, found in patterns.items()}
    return SchemasReport([folder / f"{kind}.json" for kind in patterns], {"yaml.schemas": schemas})


# JSON Schemas of agac's own files, made from the models, for editors that complete and check while
# one types. They are of draft 7, which every editor reads. What needs more than one key or another
# file is `agac validate`'s.

_DRAFT = "http://json-schema.org/draft-07/schema#"
_REFERENCE = "#/definitions/"
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}
"""pydantic leaves its own words where a bound stands on a choice of types."""

_MODELS: dict[str, tuple[tuple[type[FileModel], ...], str]] = {
    "workflow": ((WorkflowFile,), "agac workflow"),
    "project": ((ProjectFile,), "agac.yml"),
    "card": (tuple(CARD_MODELS.values()), "AgentCard"),
    "test": ((WorkflowTestFile,), "agac test"),
}
"""Of several models a file has the keys of one of them; the first one's words stand for all."""


class _AsWritten(GenerateJsonSchema):
    """What may stand in a file: no key takes null there, and only a default that somebody could
    write is told."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> JsonSchemaValue:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> JsonSchemaValue:
        if isinstance(schema.get("default"), (bool, int, float, str)):
            return super().default_schema(schema)
        return self.generate_inner(schema["schema"])

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@typed
def file_schema(kind: str) -> dict[str, Any]:
    """The JSON Schema (draft 7) of a `workflow`, `project` (agac.yml), `card` or `test`.
    UsageError for others."""
    if kind not in _MODELS:
        raise UsageError(f"no schema of {kind!r}", remedy=f"Choose {', '.join(_MODELS)}.")
    (model, *others), title = _MODELS[kind]
    made = _made(model)
    for other in map(_made, others):
        made["properties"] |= {
            key: body for key, body in other["properties"].items() if key not in made["properties"]
        }
    definitions = dict(sorted((_plain(name), body) for name, body in made.pop("$defs", {}).items()))
    # whose type may be in any case of its letters, and which may say camelCase too
    if kind == "card":
        words = "|".join(
            "".join(f"[{one.upper()}{one}]" if one != "_" else one for one in name)
            for name in CARD_MODELS
        )
        made["description"] = (
            "The front matter of an AgentCard. Which keys it may have follows from its type."
        )
        of_any_case = [
            {"type": "string", "enum": list(CARD_MODELS)},
            {"type": "string", "pattern": f"^({words})$"},
        ]
        made["properties"]["type"] = {
            "description": "Kind of the card.",
            "default": "agent",
            "anyOf": of_any_case,
        }
        params = definitions["RequestParams"]["properties"]
        for camel, snake in CAMEL_CASE.items():
            params[camel] = {**params[snake], "description": f"Another spelling of `{snake}`."}
    head = {"$schema": _DRAFT, "title": title, "description": made.pop("description", "")}
    return {**head, **_renamed(made), "definitions": _renamed(definitions)}


def _made(model: type[FileModel]) -> dict[str, Any]:
    return model.model_json_schema(
        schema_generator=_AsWritten, ref_template=f"{_REFERENCE}{{model}}"
    )


def _plain(name: str) -> str:
    """`StageFile` is `Stage` in a schema."""
    return name.removesuffix("File").removesuffix("Spec")


def _renamed(value: Any) -> Any:
    """The same in JSON Schema's words alone, with references that name the definitions as they are
    called now, and without the titles that pydantic makes of the names of models."""
    if isinstance(value, list):
        return [_renamed(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {
        _BOUNDS.get(key, key) if isinstance(inner, (int, float)) else key: _renamed(inner)
        for key, inner in value.items()
        if key != "title" or not isinstance(inner, str)
    }
    reference = found.get("$ref")
    if isinstance(reference, str):
        found["$ref"] = _REFERENCE + _plain(reference.removeprefix(_REFERENCE))
    return found

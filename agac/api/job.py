"""A row run as the workflow that it is: what it may say, and the job that is made of that."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from agac.api.project import validated
from agac.api.run_options import CommonOptions, RunOptions
from agac.api.status import database_files, database_path, stored_run
from agac.core.errors import ErrorType, RowError, UsageError, Where, listed
from agac.core.keys import job_alias, job_name
from agac.core.types import json_form
from agac.data.files import PREVIOUS, explained, growing_mark, refuse_target
from agac.data.sinks import FORMATS, file_of
from agac.data.tables import Observed
from agac.engine.output.export import export_file
from agac.engine.output.output_lines import Lines
from agac.engine.output.run_outputs import GROWING, PLAIN_MERGES, Outputs
from agac.engine.walk.replay import FinalRows, sources_of_rows
from agac.plan.stage import recorded_stages
from agac.spec.agent_cards import chosen_card
from agac.spec.data_specs import Merge, OutputSpec
from agac.spec.inputs import PACKED, PIPED, SCHEME, format_of, parse_database
from agac.spec.loader import BuiltWorkflow
from agac.spec.output_schema import PREFIX
from agac.spec.paths import (
    POSTGRES,
    Refused,
    is_pattern,
    is_reference,
    matches,
    project_root,
    state_folders,
    work_dir,
)
from agac.spec.project_models import ProviderSpec
from agac.spec.rules import ReplyForm
from agac.spec.templates import Syntax
from agac.store import runs
from agac.store.db import Database, write
from agac.store.records import NewRow
from agac.store.rows import ExportRow, State
from agac.store.write_batch import WriteBatch

STDOUT = "-"  # standard output, as an OUTPUT


@dataclass(frozen=True, slots=True)
class ProcessOptions(CommonOptions):
    """What a row run does. Paths are relative to the current folder.

    Of `prompt` (text) and `template` (a file) one says what is asked; without both it is the row
    as JSON. `syntax` says how they name fields. `instruction` is the system message, or a file
    with it; in its place an AgentCard may stand: `agent_card` is a file or a folder of cards, of
    which `agent` names one, as without it of the project's; `skills` is a folder of skills that
    the model may read; `runtime` is `opencode`, or a mapping as a stage has it. Answers are held
    to `json_schema` (a file) or `schema_model` (`module:Class`). What is read may be `https://`
    and the like, too. `format` is that of OUTPUT, where its name tells none; `error_output`,
    `telemetry_output` and `summary_output` are further files, `to` is a table. `work_dir` is a
    folder for the job's state, a project itself. `overwrite` replaces an OUTPUT that this job did
    not write; `resume` adopts its results instead, after `confirm` or `yes`, and where it is False
    an OUTPUT that is there is refused. With `quote`, as above `confirm_above`, 20 rows are run,
    and `confirm` is asked with a `Quote` of the rest. All others are those of `agac.RunOptions`
    and of a workflow's keys; `parallel` is `concurrency`, `max_retries` and `retry_delay` are
    `retries`; times are seconds. `read` are further keys of its `input`, `provider` are those of a
    provider of agac.yml, by its `name`. `places` are for messages: where in a job's file a key of
    its workflow stands."""

    prompt: str | None = None
    template: str | None = None
    instruction: str | None = None
    agent_card: str | None = None
    agent: str | None = None
    skills: str | None = None
    runtime: str | dict[str, Any] | None = None
    syntax: Syntax = "auto"
    reply: ReplyForm | None = None
    json_schema: str | dict[str, Any] | None = None
    schema_model: str | None = None
    parallel: int | None = None
    id_field: str | None = None
    read: dict[str, str] = field(default_factory=dict)
    include_input: bool = False
    merge: Merge | None = None
    format: str | None = None
    csv_safe: bool = False
    sources: bool = False
    to: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    max_retries: int | None = None
    retry_delay: float | None = None
    row_timeout: float | None = None
    error_output: str | None = None
    telemetry_output: str | None = None
    summary_output: str | None = None
    provider: dict[str, str] = field(default_factory=dict)
    quote: bool = False
    work_dir: str | None = None
    overwrite: bool = False
    resume: bool | None = None
    places: dict[str, Where] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """What was given, as JSON, without what holds for one invocation alone."""
        default = ProcessOptions()
        once = {
            "fresh",
            "refetch",
            "refresh_tools",
            "work_dir",
            "overwrite",
            "resume",
            "stream",
            "wait",
            "yes",
        }
        names = [
            one.name
            for one in fields(self)
            if one.name not in {*once, "calls", "places", "export_traces"}
        ]
        return {
            name: json_form(value)
            for name in names
            if (value := getattr(self, name)) != getattr(default, name)
        }


class Job(BuiltWorkflow):
    """A job as the workflow that it is; `root` is where its state lies, `input` and `output` are
    as they are stored. `piped` is the file in which standard input was kept, where an earlier
    invocation read it. `adopts`: the results of its OUTPUT are to be its answers. `taken` are the
    files that it reads and writes, with what they are."""

    piped: str | None
    form = None
    adopts = False
    watcher: EndedRows

    def __init__(
        self, root: Path, source: str, output: str, options: ProcessOptions, tell: Told | None
    ) -> None:
        """Raises UsageError for what cannot go together, SpecError for what is wrong with its
        keys."""
        read: dict[str, Any] = {
            one: _typed(text) for one in READ if isinstance(text := getattr(options, one), str)
        }
        source = _typed(source)
        options = replace(options, **read)
        output = STDOUT if output == "/dev/stdout" else output
        card = Path(options.agent_card or "")
        if options.agent_card is not None and (options.agent is not None or card.is_dir()):
            options = replace(
                options, agent_card=str(chosen_card(card, options.agent, root)), agent=None
            )
        self.root = root
        self.options = options
        self.piped = None
        self.file = None if output == STDOUT else Path(output).absolute()
        self.input = stored_path(source, root)
        self.output = stored_path(output, root)
        own = f"{STDOUT} {self.input}" if self.file is None else self.output
        self.input.encode()  # which for a name that no store can hold says so
        name = job_name(Path(source if self.file is None else output).stem, own)
        self._refuse_places(source)
        self.format = _format(output, options)
        self.keys = job_keys(self.input, options, root, self.format)
        also = said(
            output_schema=options.schema_model and "--schema-model",
            agent=options.agent and "--agent",
        )
        also |= {one: f"--read {one}" for one in options.read}
        self.places = {key: Where(flag) for key, flag in (_FLAGS | also).items()} | options.places
        files = [
            text
            for key, text in self.keys["stages"][0].items()
            if isinstance(text, str) and key != "prompt"
        ]
        self.allowed = tuple(_typed(text) for text in files if text.startswith("file:///"))
        super().__init__(name, **self.keys)
        self.given = {
            "in_python": True,
            "job": {"input": self.input, "output": self.output, **_stored(options, root)},
        }
        if options.provider:
            keys = dict(options.provider)
            provider = keys.pop("name")
            self.providers = {provider: validated(ProviderSpec, keys, f"provider {provider}")}
            if options.run_mode == "batch":
                what = (
                    "batches come back later, when the address and the key of this job's "
                    "file are not known"
                )
                raise UsageError(what, remedy=f"Put `providers: {{{provider}: …}}` into agac.yml.")
        self.quotes = "always" if options.quote else "high"
        grows = self.file if self.format == "jsonl" else None
        tell = tell if self.file is None else None
        self.watcher = EndedRows(
            root, grows, tell, options.merge, options.id_field, inputs=options.include_input
        )
        self.watcher.sources = options.sources

    def of_run(self) -> RunOptions:
        """The options of its runs."""
        source = self.piped or (self.input if is_outside(self.input) else None)
        same = {one.name: getattr(self.options, one.name) for one in fields(CommonOptions)}
        return RunOptions(concurrency=self.options.parallel, input=source, **same)

    def placed(self, output: OutputSpec) -> OutputSpec:
        """The files that are written, and no folder."""
        named = {
            "errors.jsonl": self.options.error_output,
            "telemetry.jsonl": self.options.telemetry_output,
        }
        if self.file is not None:
            places = {file_of(self.format): self.output}
        else:
            places = {}
        places |= {
            name: stored_path(path, self.root) for name, path in named.items() if path is not None
        }
        return replace(output, dir=self.root / self.output, places=places)

    def _refuse_places(self, source: str) -> None:
        """Raises UsageError where a file that is to be written is the INPUT, or another output, or
        cannot be one."""
        if "://" in self.output:
            raise UsageError(
                "OUTPUT is an address, and a job writes a file",
                remedy="Name a file, and the table with --to.",
            )
        named = {"OUTPUT": self.file} if self.file is not None else {}
        for one in WRITTEN:
            text = getattr(self.options, one)
            if text is not None:
                named[f"--{one.replace('_', '-')}"] = Path(text).absolute()
        own: dict[Path, str] = dict.fromkeys(
            database_files(database_path(self.root)), "the database itself"
        )
        place = source
        with suppress(Refused):
            if source.startswith(SCHEME):
                place = str(parse_database(source).path)
            else:
                place = source
        if (to := self.options.to or "").startswith(SCHEME):
            own[Path(to.removeprefix(SCHEME).partition("?")[0]).absolute()] = "the database of --to"
        own |= (
            {Path(place).absolute(): "the INPUT"} if place != PIPED and "://" not in place else {}
        )
        texts = (
            text
            for one in READ
            if isinstance(text := getattr(self.options, one), str) and is_file(text)
        )
        own |= dict.fromkeys(map(Path, texts), "a file that the job reads")
        for flag, path in named.items():
            refuse_target(path, own, "results.jsonl", force=True)
            if any(map(path.resolve().is_relative_to, state_folders(self.root))):
                raise UsageError(
                    f"{flag} {path}: belongs to agac or git", remedy="Name a file of your own."
                )
            if is_pattern(source) and matches(
                Path(source).resolve().as_posix(), path.resolve().as_posix()
            ):
                raise UsageError(
                    f"{flag} {path} is one of the files of the INPUT",
                    remedy="Name a file outside of it.",
                )
            own[path] = flag
        self.taken = own


def job_root(options: ProcessOptions, project: Path | str | None) -> Path:
    """Where the state of a job lies. Raises UsageError."""
    root = project_root(project, bare=True)
    if options.work_dir:
        return work_dir(Path(options.work_dir).resolve(), root)
    return root


def stored_path(text: str, root: Path) -> str:
    """A path of the command line as a project has it: relative to its root where it is inside,
    else absolute."""
    if (
        text in (PIPED, STDOUT)
        or POSTGRES.match(text)
        or ("://" in text and not text.startswith(SCHEME))
    ):
        return text
    scheme, rest = (SCHEME, text.removeprefix(SCHEME)) if text.startswith(SCHEME) else ("", text)
    path, sign, query = rest.partition("?") if scheme else (rest, "", "")
    whole = Path(path).absolute()
    if not scheme:
        real = whole.parent.resolve() / whole.name
    else:
        real = whole.resolve()
    if real.is_relative_to(root):
        shown = real.relative_to(root).as_posix()
    else:
        shown = str(real)
    return f"{scheme}{shown}{sign}{query}"


def is_outside(stored: str) -> bool:
    """Whether a stored path is outside of the project."""
    return Path(stored.removeprefix(SCHEME)).is_absolute()


def _format(output: str, options: ProcessOptions) -> str:
    """The format of an OUTPUT. Raises UsageError."""
    found = options.format or ("jsonl" if output == STDOUT else format_of(output) or "")
    if output.lower().endswith(PACKED):
        raise UsageError(
            f"OUTPUT {output}: results are not compressed", remedy="Leave out its last suffix."
        )
    if found not in FORMATS:
        what = (
            f"OUTPUT {output}: "
            f"{'its name tells no format' if not found else f'{found!r} is not a format'}"
        )
        raise UsageError(what, remedy=f"Choose one with --format: {listed(FORMATS)}.")
    if output == STDOUT and found != "jsonl":
        raise UsageError(
            f"OUTPUT - is written row by row, which {found} cannot be", remedy="Use --format jsonl."
        )
    return found


def is_file(path: str | Path) -> bool:
    """Whether it names a file; a text may be too long for a path."""
    with suppress(OSError, ValueError):
        return Path(path).is_file()
    return False


def _typed(text: str) -> str:
    """An option's text; a typed `file://` is a typed path."""
    if text.startswith("file:///"):
        return url2pathname(urlsplit(text).path)
    return text


def _named(text: str | None, root: Path) -> str | None:
    """What an option names, as a workflow's key does: by a reference where it is outside of the
    project."""
    if text is None or is_reference(text):
        return text
    path = Path(text).resolve()
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.as_uri()


def said(**keys: Any) -> dict[str, Any]:
    """The keys that say something."""
    return {name: value for name, value in keys.items() if value is not None and value is not False}


def _read_value(text: str) -> str | int | bool:
    """A value of `--read KEY=VALUE` as YAML would have it: a number, true or false, or the text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text


def job_keys(source: str, options: ProcessOptions, root: Path, format: str) -> dict[str, Any]:  # noqa: A002
    """The keys of the workflow that a job is: those of a workflow's file. Raises UsageError."""
    for one, other in _SAME:
        if getattr(options, one) is not None and getattr(options, other) is not None:
            what = f"--{one} and --{other} both say the same".replace("_", "-")
            raise UsageError(what, remedy="Keep one of them.")
    tables = [format] if format not in ("json", "jsonl") else None
    safe = options.csv_safe
    target = said(
        include_input=options.include_input, merge=options.merge, format=tables, csv_safe=safe
    )
    target |= said(sources=options.sources)
    target |= said(to=options.to and stored_path(options.to, root))
    read = {name: _read_value(text) for name, text in options.read.items()}
    read |= said(path=None if is_outside(source) else source, id_field=options.id_field)
    if options.telemetry_output:
        told = {"file": True, "ttft": options.run_mode != "batch"}
    else:
        told = None
    more = said(
        output=target or None,
        telemetry=told,
        row_timeout=options.row_timeout,
        vars=dict(options.vars) or None,
    )
    return {"input": read, "stages": [_stage_keys(options, root)], **more}


def _stage_keys(options: ProcessOptions, root: Path) -> dict[str, Any]:
    prompt: str | None
    if options.prompt is None and options.template is None:
        prompt = "{{row_json}}"
    else:
        prompt = options.prompt
    text = options.instruction
    schema = options.json_schema
    model = options.schema_model
    if model is not None:
        schema = PREFIX + model.removeprefix(PREFIX).replace(":", ".")
    elif isinstance(schema, str):
        schema = _named(schema, root)
    attempts = None if options.max_retries is None else options.max_retries + 1
    return said(
        name=STAGE,
        prompt=prompt,
        template=_named(options.template, root),
        syntax=options.syntax,
        instructions=_named(text, root) if is_file(text or "") else text,
        agent=options.agent if options.agent_card is None else _named(options.agent_card, root),
        skills=options.skills and stored_path(options.skills, root),
        output_schema=schema,
        runtime=options.runtime,
        reply=None if schema and options.reply == "json" else options.reply,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        retries=said(attempts=attempts, delay=options.retry_delay) or None,
    )


_SAME = (
    ("prompt", "template"),
    ("json_schema", "schema_model"),
    ("instruction", "agent_card"),
    ("instruction", "agent"),
)
READ = ("template", "json_schema", "instruction", "agent_card")
WRITTEN = ("error_output", "telemetry_output", "summary_output")
FILES = ("template", "json_schema", "agent_card", "skills", "to", *WRITTEN)
_FLAGS = {
    "": "agac process",
    "path": "INPUT",
    "prompt": "--prompt",
    "template": "--template",
    "agent": "--agent-card",
    "instructions": "--instruction",
    "output_schema": "--json-schema",
    "id_field": "--id-field",
    "merge": "--merge",
    "to": "--to",
    "skills": "--skills",
}
"""The options that keys of the workflow come from."""


def _stored(options: ProcessOptions, root: Path) -> dict[str, Any]:
    """The options as an invocation notes them: what resumes the job from any folder."""
    found = options.given()
    if is_file(options.instruction or ""):  # with its `./` it is no text, should the file go
        place = stored_path(found["instruction"], root)
        found["instruction"] = place if is_outside(place) else f"./{place}"
    return found | {
        name: stored_path(found[name], root) for name in FILES if isinstance(found.get(name), str)
    }


STAGE = "result"  # the name of the one stage of a job

# is given the envelopes of rows that have ended, when they are durable
Told = Callable[[list[str]], None]
# is told the alias of a job, by which it is resumed, before its first call
Began = Callable[[str], None]


class EndedRows:
    """Follows the commits of a job: `began` is told its alias; the lines of rows that ended are
    appended to the jsonl file `grows`, or go to `tell`. The file begins with all rows that the run
    settled before, and is put in their order by the export at the end; what was in its place is
    kept. Killed at any point it has whole lines, but perhaps for the last one, and the same run
    begins it anew."""

    def __init__(
        self,
        root: Path,
        grows: Path | None,
        tell: Told | None,
        merge: Merge | None,
        by: str | None,
        *,
        inputs: bool,
    ) -> None:
        self._root = root
        self._grows = grows
        self._tell = tell
        self._merge = merge
        self._id_field = by
        self._inputs = inputs
        self._database: Database | None = None
        self._file: IO[str] | None = None
        self._told = bytearray()
        self.sources = False  # whether the lines have those of the answers
        self.tell_began: Began | None = None
        self.run = 0
        self.kept: Path | None = None

    async def began(self, database: Database, run: int) -> None:
        """Tells the alias of the run."""
        self._database = database
        self.run = run
        if self.tell_began is not None:
            self.tell_began(job_alias(run))

    async def committed(self, batch: WriteBatch) -> None:
        """Tells or writes the rows that have ended, those too of which the input made none."""
        if self._grows is None and self._tell is None:
            return
        unusable = [
            new for new in (*batch.rows.inserts, *batch.rows.changes) if new.state is State.FAILED
        ]
        rows = [_row(new, new.state, new.row.error, None) for new in unusable]
        rows += [
            _row(end.new, end.state, end.error, end.result.value if end.result else None)
            for end in batch.rows.ends
        ]
        rows = [row for row in rows if row.state != State.DONE or row.value]
        rows = await self._with_sources(rows) if self.sources and rows else rows
        lines = self._lines(rows)
        if not lines:
            return
        if self._tell is not None:
            self._told.extend(bytes(max(0, max(row.key for row in rows) + 1 - len(self._told))))
            for row in rows:
                self._told[row.key] = 1
            self._tell(lines)
        elif self._file is None:
            await self._begin()
        else:
            assert self._grows is not None
            with explained(self._grows):
                self._file.write("".join(f"{line}\n" for line in lines))
                self._file.flush()

    def close(self) -> None:
        """Ends what is appended."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    async def _with_sources(self, rows: list[ExportRow]) -> list[ExportRow]:
        """The rows, which are stored, with the sources of their answers."""
        assert self._database is not None
        stages = recorded_stages(await runs.definition_of(self._database, self.run))
        found = await sources_of_rows(self._database, stages, [row.key for row in rows])
        return [row._replace(sources=found.get(row.key, {})) for row in rows]

    async def tell_others(self) -> None:
        """Tells the rows that were settled before, and whose lines are therefore not told yet, in
        their order."""
        if self._tell is None:
            return
        async with stored_run(self._root, self.run) as (database, record):
            final = FinalRows(await runs.definition_of(database, record.id), sources=self.sources)
            async for rows in final.rows(database, record.id):
                left = [
                    row for row in rows if row.key >= len(self._told) or not self._told[row.key]
                ]
                lines = self._lines(left)
                if lines:
                    self._tell(lines)

    def _lines(self, rows: list[ExportRow]) -> list[str]:
        layout = None
        if self._merge not in PLAIN_MERGES and rows:
            observed = Observed(None)
            for row in rows:
                observed.row(json.loads(row.data) or {})
                if row.value is not None:
                    observed.result(json.loads(row.value))
            layout = observed.layout(self._merge, STAGE, self._id_field)
        lines = Lines(rows, self._inputs, layout, self._merge).results
        # white space of the model's JSON
        return [line.replace("\n", " ").replace("\r", " ") for line in lines]

    async def _begin(self) -> None:
        """The file with all that the run has come to, in the place of what was there."""
        database = self._database
        path = self._grows
        assert database is not None and path is not None  # noqa: PT018
        record = await runs.run_record(database, self.run)
        outputs = Outputs(record, self._root, 0)
        previous = outputs.previous(record, await runs.files_written(database, record.output_dir))
        notes = dict(record.exported_files)
        for file in previous.files:
            self.kept = previous.kept_as(file)
            notes |= {PREVIOUS: previous.stamp} if previous.stamp else {}

        async def note(temporary: Path) -> None:
            """Before it is shown: a file that is not known as ours would be kept as one of the
            user's."""
            marks = notes | {GROWING: growing_mark(temporary)}
            await write(database, "run_exporting", record.id)
            await write(database, "run_exported", None, json.dumps(marks), record.id)

        await export_file(database, record, self._root, path, "jsonl", note)
        with explained(path):
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace", newline="\n")


def _row(new: NewRow, state: State, error: RowError | None, value: str | None) -> ExportRow:
    kind, message = (error.type.value, error.message) if error else (None, None)
    if error and error.type is ErrorType.TRUNCATED:
        value = error.detail
    else:
        value = value
    return ExportRow(new.row.ordinal, new.row.id, state, new.data, value, kind, message, new.key)

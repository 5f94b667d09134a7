"""A row run as a workflow: the job that is made of `ProcessOptions`, with its INPUT, its OUTPUT and
the keys of its one stage."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from agac.api.ended_rows import STAGE, EndedRows, Told
from agac.api.job_options import ProcessOptions
from agac.api.project import validated
from agac.api.run_options import CommonOptions, RunOptions
from agac.api.status import database_files, database_path
from agac.core.errors import UsageError, Where, listed
from agac.core.keys import job_name
from agac.data.files import refuse_target
from agac.data.sinks import FORMATS, file_of
from agac.spec.agent_cards import chosen_card
from agac.spec.data_specs import OutputSpec
from agac.spec.database_urls import SCHEME, parse_database
from agac.spec.inputs import PACKED, PIPED, format_of
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

STDOUT = "-"
"""Standard output, as an OUTPUT."""

READ = ("template", "json_schema", "instruction", "agent_card")
"""Options that may name a file to read."""

WRITTEN = ("error_output", "telemetry_output", "summary_output")
"""Options that name a file to write."""

FILES = ("template", "json_schema", "agent_card", "skills", "to", *WRITTEN)
"""Options that are stored as paths."""

_SAME = (
    ("prompt", "template"),
    ("json_schema", "schema_model"),
    ("instruction", "agent_card"),
    ("instruction", "agent"),
)
"""Options of which only one can be set."""

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


class Job(BuiltWorkflow):
    """A row run as a workflow that is made in memory."""

    root: Path
    """The folder that holds its state."""
    input: str
    """Its INPUT, as it is stored."""
    output: str
    """Its OUTPUT, as it is stored."""
    file: Path | None
    """The file of its OUTPUT; None: standard output."""
    taken: Mapping[Path, str]
    """The files that it reads and writes, and what each of them is."""
    piped: str | None
    """The file that keeps standard input, which an earlier invocation read."""
    adopts = False
    """True if the results in its OUTPUT are to become its answers."""
    watcher: EndedRows
    """Writes or tells rows as they end."""
    form = None

    def __init__(
        self, root: Path, source: str, output: str, options: ProcessOptions, tell: Told | None
    ) -> None:
        """Raises UsageError for options that exclude each other, SpecError for wrong keys."""
        options = _with_chosen_card(_with_typed_paths(options), root)
        source = _typed_path(source)
        if output == "/dev/stdout":
            output = STDOUT
        self.root = root
        self.options = options
        self.piped = None
        self.file = None if output == STDOUT else Path(output).absolute()
        self.input = stored_path(source, root)
        self.output = stored_path(output, root)
        self.input.encode()  # raises for a name that no store can hold
        if self.file is None:
            name = job_name(Path(source).stem, f"{STDOUT} {self.input}")
        else:
            name = job_name(Path(output).stem, self.output)
        self._refuse_files(source)
        self.format = _format(output, options)
        self.keys = job_keys(self.input, options, root, self.format)
        self.places = _flags_of_keys(options)
        self.allowed = _foreign_files(self.keys["stages"][0])
        super().__init__(name, **self.keys)
        self.given = {
            "in_python": True,
            "job": {"input": self.input, "output": self.output, **_stored(options, root)},
        }
        if options.provider:
            self.providers = _provider_of(options)
        self.quotes = "always" if options.quote else "high"
        self.watcher = EndedRows(
            root,
            self.file if self.format == "jsonl" else None,
            tell if self.file is None else None,
            options.merge,
            options.id_field,
            inputs=options.include_input,
            sources=options.sources,
        )

    def of_run(self) -> RunOptions:
        """Returns the options of its runs."""
        source = self.piped or (self.input if is_outside(self.input) else None)
        shared = {each.name: getattr(self.options, each.name) for each in fields(CommonOptions)}
        return RunOptions(concurrency=self.options.parallel, input=source, **shared)

    def placed(self, output: OutputSpec) -> OutputSpec:
        """Replaces the folder of an output by the files that the job writes."""
        places = {}
        if self.file is not None:
            places[file_of(self.format)] = self.output
        further = {
            "errors.jsonl": self.options.error_output,
            "telemetry.jsonl": self.options.telemetry_output,
        }
        for name, path in further.items():
            if path is not None:
                places[name] = stored_path(path, self.root)
        return replace(output, dir=self.root / self.output, places=places)

    def _refuse_files(self, source: str) -> None:
        """Raises UsageError if a file that is to be written is the INPUT or another output, or
        cannot be written."""
        if "://" in self.output:
            raise UsageError(
                "OUTPUT is an address, and a job writes a file",
                remedy="Name a file, and the table with --to.",
            )
        taken = self._read_files(source)
        for flag, path in self._written_files().items():
            refuse_target(path, taken, "results.jsonl", force=True)
            self._refuse_written(flag, path, source)
            taken[path] = flag
        self.taken = taken

    def _written_files(self) -> dict[str, Path]:
        """Returns the files that the job writes, by what names them."""
        files = {"OUTPUT": self.file} if self.file is not None else {}
        for option in WRITTEN:
            text = getattr(self.options, option)
            if text is not None:
                files[f"--{option.replace('_', '-')}"] = Path(text).absolute()
        return files

    def _read_files(self, source: str) -> dict[Path, str]:
        """Returns the files that the job reads, and its databases, with what they are."""
        files = dict.fromkeys(database_files(database_path(self.root)), "the database itself")
        table = self.options.to or ""
        if table.startswith(SCHEME):
            database, _, _ = table.removeprefix(SCHEME).partition("?")
            files[Path(database).absolute()] = "the database of --to"
        input_path = source
        if source.startswith(SCHEME):
            with suppress(Refused):
                input_path = str(parse_database(source).path)
        if input_path != PIPED and "://" not in input_path:
            files[Path(input_path).absolute()] = "the INPUT"
        for option in READ:
            text = getattr(self.options, option)
            if isinstance(text, str) and is_file(text):
                files[Path(text)] = "a file that the job reads"
        return files

    def _refuse_written(self, flag: str, path: Path, source: str) -> None:
        """Raises UsageError for a file that belongs to agac or git, or that a pattern of the INPUT
        covers."""
        real = path.resolve()
        if any(map(real.is_relative_to, state_folders(self.root))):
            raise UsageError(
                f"{flag} {path}: belongs to agac or git", remedy="Name a file of your own."
            )
        if is_pattern(source) and matches(Path(source).resolve().as_posix(), real.as_posix()):
            raise UsageError(
                f"{flag} {path} is one of the files of the INPUT",
                remedy="Name a file outside of it.",
            )


def _with_typed_paths(options: ProcessOptions) -> ProcessOptions:
    """Makes paths of the `file://` addresses that name files to read."""
    changes: dict[str, Any] = {}
    for option in READ:
        text = getattr(options, option)
        if isinstance(text, str):
            changes[option] = _typed_path(text)
    return replace(options, **changes)


def _typed_path(text: str) -> str:
    """Makes a path of a `file://` address; other texts stay as they are."""
    if text.startswith("file:///"):
        return url2pathname(urlsplit(text).path)
    return text


def _with_chosen_card(options: ProcessOptions, root: Path) -> ProcessOptions:
    """Replaces a folder of cards, or the name of a card, by the card's file."""
    if options.agent_card is None:
        return options
    folder = Path(options.agent_card)
    if options.agent is None and not folder.is_dir():
        return options
    card = chosen_card(folder, options.agent, root)
    return replace(options, agent_card=str(card), agent=None)


def _flags_of_keys(options: ProcessOptions) -> dict[str, Where]:
    """Returns for keys of the workflow the flags that they come from, for messages."""
    flags = dict(_FLAGS)
    if options.schema_model:
        flags["output_schema"] = "--schema-model"
    if options.agent:
        flags["agent"] = "--agent"
    flags |= {key: f"--read {key}" for key in options.read}
    return {key: Where(flag) for key, flag in flags.items()} | options.places


def _foreign_files(stage: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the files outside of the project that a stage names, as `file://`."""
    texts = (text for key, text in stage.items() if isinstance(text, str) and key != "prompt")
    return tuple(_typed_path(text) for text in texts if text.startswith("file:///"))


def _provider_of(options: ProcessOptions) -> dict[str, ProviderSpec]:
    """Returns the provider whose keys the job sets. Raises UsageError for batches, whose results
    come when these keys are no longer known."""
    keys = dict(options.provider)
    name = keys.pop("name")
    spec = validated(ProviderSpec, keys, f"provider {name}")
    if options.run_mode == "batch":
        what = (
            "batches come back later, when the address and the key of this job's file are not known"
        )
        raise UsageError(what, remedy=f"Put `providers: {{{name}: …}}` into agac.yml.")
    return {name: spec}


def job_root(options: ProcessOptions, project: Path | str | None) -> Path:
    """Returns the folder that holds the state of a job. Raises UsageError."""
    root = project_root(project, bare=True)
    if options.work_dir:
        return work_dir(Path(options.work_dir).resolve(), root)
    return root


def stored_path(text: str, root: Path) -> str:
    """Returns a path of the command line as a project stores it: relative to its root if it is
    inside of it, else absolute. Addresses stay as they are."""
    if is_address(text):
        return text
    if text.startswith(SCHEME):
        path, sign, query = text.removeprefix(SCHEME).partition("?")
        return f"{SCHEME}{_in_project(Path(path).resolve(), root)}{sign}{query}"
    whole = Path(text).absolute()
    return _in_project(whole.parent.resolve() / whole.name, root)


def is_address(text: str) -> bool:
    """True for standard input and output, and for what is no file of this machine."""
    if text in (PIPED, STDOUT) or POSTGRES.match(text):
        return True
    return "://" in text and not text.startswith(SCHEME)


def _in_project(path: Path, root: Path) -> str:
    """Returns a path relative to the root of a project if it is inside of it."""
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return str(path)


def is_outside(stored: str) -> bool:
    """True if a stored path is outside of the project."""
    return Path(stored.removeprefix(SCHEME)).is_absolute()


def _format(output: str, options: ProcessOptions) -> str:
    """Returns the format of an OUTPUT. Raises UsageError."""
    by_name = "jsonl" if output == STDOUT else format_of(output) or ""
    chosen = options.format or by_name
    if output.lower().endswith(PACKED):
        raise UsageError(
            f"OUTPUT {output}: results are not compressed", remedy="Leave out its last suffix."
        )
    if chosen not in FORMATS:
        what = f"{chosen!r} is not a format" if chosen else "its name tells no format"
        remedy = f"Choose one with --format: {listed(FORMATS)}."
        raise UsageError(f"OUTPUT {output}: {what}", remedy=remedy)
    if output == STDOUT and chosen != "jsonl":
        raise UsageError(
            f"OUTPUT - is written row by row, which {chosen} cannot be",
            remedy="Use --format jsonl.",
        )
    return chosen


def is_file(path: str | Path) -> bool:
    """True if a text names a file; a text may be too long for a path."""
    with suppress(OSError, ValueError):
        return Path(path).is_file()
    return False


def _named(text: str | None, root: Path) -> str | None:
    """Returns what an option names as a workflow's key names it: by a `file://` reference if it is
    outside of the project."""
    if text is None or is_reference(text):
        return text
    path = Path(text).resolve()
    if path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return path.as_uri()


def set_keys(**keys: Any) -> dict[str, Any]:
    """Returns the keys whose values are neither None nor False."""
    return {name: value for name, value in keys.items() if value is not None and value is not False}


def _read_value(text: str) -> str | int | bool:
    """Reads the value of `--read KEY=VALUE` as YAML would: a number, true or false, or the text."""
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isdigit() else text


def job_keys(source: str, options: ProcessOptions, root: Path, format: str) -> dict[str, Any]:  # noqa: A002
    """Returns the keys of a workflow's file for a job. Raises UsageError."""
    for first, second in _SAME:
        if getattr(options, first) is not None and getattr(options, second) is not None:
            what = f"--{first} and --{second} both say the same".replace("_", "-")
            raise UsageError(what, remedy="Keep one of them.")
    output = set_keys(
        include_input=options.include_input,
        merge=options.merge,
        format=[format] if format not in ("json", "jsonl") else None,
        csv_safe=options.csv_safe,
        sources=options.sources,
        to=options.to and stored_path(options.to, root),
    )
    further = {name: _read_value(text) for name, text in options.read.items()}
    path = None if is_outside(source) else source
    telemetry = None
    if options.telemetry_output:
        telemetry = {"file": True, "ttft": options.run_mode != "batch"}
    return {
        "input": further | set_keys(path=path, id_field=options.id_field),
        "stages": [_stage_keys(options, root)],
        **set_keys(
            output=output or None,
            telemetry=telemetry,
            row_timeout=options.row_timeout,
            vars=dict(options.vars) or None,
        ),
    }


def _stage_keys(options: ProcessOptions, root: Path) -> dict[str, Any]:
    """Returns the keys of a job's stage."""
    prompt = options.prompt
    if prompt is None and options.template is None:
        prompt = "{{row_json}}"
    instructions = options.instruction
    if is_file(instructions or ""):
        instructions = _named(instructions, root)
    agent = options.agent
    if options.agent_card is not None:
        agent = _named(options.agent_card, root)
    schema = _schema(options, root)
    attempts = None if options.max_retries is None else options.max_retries + 1
    return set_keys(
        name=STAGE,
        prompt=prompt,
        template=_named(options.template, root),
        syntax=options.syntax,
        instructions=instructions,
        agent=agent,
        skills=options.skills and stored_path(options.skills, root),
        output_schema=schema,
        runtime=options.runtime,
        reply=None if schema and options.reply == "json" else options.reply,
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        retries=set_keys(attempts=attempts, delay=options.retry_delay) or None,
    )


def _schema(options: ProcessOptions, root: Path) -> str | dict[str, Any] | None:
    """Returns the schema of answers as a workflow's key names it."""
    if options.schema_model is not None:
        return PREFIX + options.schema_model.removeprefix(PREFIX).replace(":", ".")
    if isinstance(options.json_schema, str):
        return _named(options.json_schema, root)
    return options.json_schema


def _stored(options: ProcessOptions, root: Path) -> dict[str, Any]:
    """Returns the options as an invocation notes them, so that the job can be resumed from any
    folder."""
    stored = options.given()
    if is_file(options.instruction or ""):
        # with `./` it is still a path if the file is gone
        path = stored_path(stored["instruction"], root)
        stored["instruction"] = path if is_outside(path) else f"./{path}"
    for name in FILES:
        if isinstance(stored.get(name), str):
            stored[name] = stored_path(stored[name], root)
    return stored

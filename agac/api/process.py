"""Row runs (`agac process`): a file of rows and a prompt in, a file of results out, without a workflow file. A job is
known by its OUTPUT; it is an `agac.Workflow` made in memory, and runs as every workflow does."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pydantic import ValidationError

from agac.api.adopt import adopt
from agac.api.ended_rows import STAGE, Began, EndedRows, Told
from agac.api.plan import Confirm, Quote, plan
from agac.api.project import CommonOptions, RunOptions
from agac.api.report import RunReport, Watch
from agac.api.run import run
from agac.api.status import database_files, database_path, given_flags, go_on, stored_run
from agac.api.sync import asynchronous, blocking, calling
from agac.core.errors import ExitCode, UsageError, Where, listed
from agac.core.keys import job_alias, job_name
from agac.core.types import counted, json_form
from agac.data.files import refuse_target, stamp, write_whole
from agac.data.frames import GivenRows
from agac.data.json_formats import encode
from agac.data.sinks import FORMATS, file_of
from agac.data.sources import keep_rows
from agac.engine.estimate import PlanReport
from agac.engine.export import read_summary
from agac.spec.agent_cards import chosen_card
from agac.spec.inputs import INPUTS, PACKED, PIPED, SCHEME, format_of, parse_database
from agac.spec.loader import BuiltWorkflow
from agac.spec.output_schema import PREFIX
from agac.spec.paths import POSTGRES, Refused, is_pattern, is_reference, matches, project_root, state_folders, work_dir
from agac.spec.project_models import ProviderSpec
from agac.spec.templates import Syntax
from agac.spec.workflow import Budget, Merge, OutputSpec, ReplyForm
from agac.store import runs
from agac.store.db import open_for_reading
from agac.store.rows import adopted_rows

STDOUT = "-"
"""Standard output, as an OUTPUT."""


@dataclass(frozen=True, slots=True)
class ProcessOptions(CommonOptions):
    """What a row run does. Paths are relative to the current folder.

    Of `prompt` (text) and `template` (a file) one says what is asked; without both it is the row as JSON. `syntax`
    says how they name fields. `instruction` is the system message, or a file with it; in its place an AgentCard may
    stand: `agent_card` is a file or a folder of cards, of which `agent` names one, as without it of the project's.
    Answers are held to `json_schema` (a file) or `schema_model` (`module:Class`). What is read may be `https://` and
    the like, too. `format` is that of OUTPUT, where its name tells none; `error_output`, `telemetry_output` and
    `summary_output` are further files, `to` is a table. `work_dir` is a folder for the job's state, a project itself.
    `overwrite` replaces an OUTPUT that this job did not write; `resume` adopts its results instead, after `confirm` or
    `yes`, and where it is False an OUTPUT that is there is refused. With `quote`, as above `confirm_above`, 20 rows are
    run, and `confirm` is asked with a `Quote` of the rest. All others are those of `agac.RunOptions` and of a
    workflow's keys; `parallel` is `concurrency`, `max_retries` and `retry_delay` are `retries`; times are seconds.
    `read` are further keys of its `input`, `provider` are those of a provider of agac.yml, by its `name`. `places` are
    for messages: where in a job's file a key of its workflow stands.
    """

    prompt: str | None = None
    template: str | None = None
    instruction: str | None = None
    agent_card: str | None = None
    agent: str | None = None
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
        once = ("fresh", "refetch", "work_dir", "overwrite", "resume", "stream", "wait", "yes", "places")
        names = [one.name for one in fields(self) if one.name not in once]
        return {name: json_form(value) for name in names if (value := getattr(self, name)) != getattr(default, name)}


# From options to the workflow.


class Job(BuiltWorkflow):
    """A job as the workflow that it is; `root` is where its state lies, `input` and `output` are as they are stored.
    `piped` is the file in which standard input was kept, where an earlier invocation read it. `adopts`: the results of
    its OUTPUT are to be its answers. `taken` are the files that it reads and writes, with what they are."""

    piped: str | None
    adopts = False
    watcher: EndedRows

    def __init__(self, root: Path, source: str, output: str, options: ProcessOptions, tell: Told | None) -> None:
        """Raises UsageError for what cannot go together, SpecError for what is wrong with its keys."""
        read: dict[str, Any] = {one: _typed(text) for one in _READ if isinstance(text := getattr(options, one), str)}
        source, options = _typed(source), replace(options, **read)
        output = STDOUT if output == "/dev/stdout" else output
        card = Path(options.agent_card or "")
        if options.agent_card is not None and (options.agent is not None or card.is_dir()):
            options = replace(options, agent_card=str(chosen_card(card, options.agent)), agent=None)
        self.root, self.options, self.piped = root, options, None
        self.file = None if output == STDOUT else Path(output).absolute()
        self.input, self.output = stored_path(source, root), stored_path(output, root)
        own = f"{STDOUT} {self.input}" if self.file is None else self.output
        self.input.encode()  # which for a name that no store can hold says so
        name = job_name(Path(source if self.file is None else output).stem, own)
        self._refuse_places(source)
        self.format = _format(output, options)
        self.keys = job_keys(self.input, options, root, self.format)
        also = said(output_schema=options.schema_model and "--schema-model", agent=options.agent and "--agent")
        also |= {one: f"--read {one}" for one in options.read}
        self.places = {key: Where(flag) for key, flag in (_FLAGS | also).items()} | options.places
        files = [text for key, text in self.keys["stages"][0].items() if isinstance(text, str) and key != "prompt"]
        self.allowed = tuple(_typed(text) for text in files if text.startswith("file:///"))
        super().__init__(name, **self.keys)
        self.given = {"in_python": True, "job": {"input": self.input, "output": self.output, **_stored(options, root)}}
        if options.provider:
            keys = dict(options.provider)
            provider = keys.pop("name")
            try:
                self.providers = {provider: ProviderSpec.model_validate(keys)}
            except ValidationError as error:
                (wrong, *_) = error.errors()
                raise UsageError(f"provider {provider}: {wrong['loc'][-1]} {wrong['msg']}") from None
            if options.run_mode == "batch":
                what = "batches come back later, when the address and the key of this job's file are not known"
                raise UsageError(what, remedy=f"Put `providers: {{{provider}: …}}` into agac.yml.")
        self.quotes = "always" if options.quote else "high"
        grows = self.file if self.format == "jsonl" else None
        self.watcher = EndedRows(root, options, grows, tell if self.file is None else None)

    def of_run(self) -> RunOptions:
        """The options of its runs."""
        source = self.piped or (self.input if is_outside(self.input) else None)
        same = {one.name: getattr(self.options, one.name) for one in fields(CommonOptions)}
        return RunOptions(concurrency=self.options.parallel, input=source, **same)

    def placed(self, output: OutputSpec) -> OutputSpec:
        """The files that are written, and no folder."""
        named = {"errors.jsonl": self.options.error_output, "telemetry.jsonl": self.options.telemetry_output}
        places = {file_of(self.format): self.output} if self.file is not None else {}
        places |= {name: stored_path(path, self.root) for name, path in named.items() if path is not None}
        return replace(output, dir=self.root / self.output, places=places)

    def _refuse_places(self, source: str) -> None:
        """Raises UsageError where a file that is to be written is the INPUT, or another output, or cannot be one."""
        if "://" in self.output:
            raise UsageError(
                "OUTPUT is an address, and a job writes a file", remedy="Name a file, and the table with --to."
            )
        named = {"OUTPUT": self.file} if self.file is not None else {}
        for one in WRITTEN:
            if (text := getattr(self.options, one)) is not None:
                named[f"--{one.replace('_', '-')}"] = Path(text).absolute()
        own: dict[Path, str] = dict.fromkeys(database_files(database_path(self.root)), "the database itself")
        place = source
        with suppress(Refused):
            place = str(parse_database(source).path) if source.startswith(SCHEME) else source
        if (to := self.options.to or "").startswith(SCHEME):
            own[Path(to.removeprefix(SCHEME).partition("?")[0]).absolute()] = "the database of --to"
        own |= {Path(place).absolute(): "the INPUT"} if place != PIPED and "://" not in place else {}
        texts = (text for one in _READ if isinstance(text := getattr(self.options, one), str) and _is_file(text))
        own |= dict.fromkeys(map(Path, texts), "a file that the job reads")
        for flag, path in named.items():
            refuse_target(path, own, "results.jsonl", force=True)
            if any(map(path.resolve().is_relative_to, state_folders(self.root))):
                raise UsageError(f"{flag} {path}: belongs to agac or git", remedy="Name a file of your own.")
            if is_pattern(source) and matches(Path(source).resolve().as_posix(), path.resolve().as_posix()):
                raise UsageError(f"{flag} {path} is one of the files of the INPUT", remedy="Name a file outside of it.")
            own[path] = flag
        self.taken = own


def stored_path(text: str, root: Path) -> str:
    """A path of the command line as a project has it: relative to its root where it is inside, else absolute."""
    if text in (PIPED, STDOUT) or POSTGRES.match(text) or ("://" in text and not text.startswith(SCHEME)):
        return text
    scheme, rest = (SCHEME, text.removeprefix(SCHEME)) if text.startswith(SCHEME) else ("", text)
    path, sign, query = rest.partition("?") if scheme else (rest, "", "")
    whole = Path(path).absolute()
    real = whole.parent.resolve() / whole.name if not scheme else whole.resolve()
    shown = real.relative_to(root).as_posix() if real.is_relative_to(root) else str(real)
    return f"{scheme}{shown}{sign}{query}"


def is_outside(stored: str) -> bool:
    """Whether a stored path is outside of the project."""
    return Path(stored.removeprefix(SCHEME)).is_absolute()


def _format(output: str, options: ProcessOptions) -> str:
    """The format of an OUTPUT. Raises UsageError."""
    found = options.format or ("jsonl" if output == STDOUT else format_of(output) or "")
    if output.lower().endswith(PACKED):
        raise UsageError(f"OUTPUT {output}: results are not compressed", remedy="Leave out its last suffix.")
    if found not in FORMATS:
        what = f"OUTPUT {output}: {'its name tells no format' if not found else f'{found!r} is not a format'}"
        raise UsageError(what, remedy=f"Choose one with --format: {listed(FORMATS)}.")
    if output == STDOUT and found != "jsonl":
        raise UsageError(f"OUTPUT - is written row by row, which {found} cannot be", remedy="Use --format jsonl.")
    return found


def _is_file(path: str | Path) -> bool:
    with suppress(OSError, ValueError):  # a text may be too long for a path
        return Path(path).is_file()
    return False


def _typed(text: str) -> str:
    """An option's text; a typed `file://` is a typed path."""
    return url2pathname(urlsplit(text).path) if text.startswith("file:///") else text


def _named(text: str | None, root: Path) -> str | None:
    """What an option names, as a workflow's key does: by a reference where it is outside of the project."""
    if text is None or is_reference(text):
        return text
    path = Path(text).resolve()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_uri()


def said(**keys: Any) -> dict[str, Any]:
    """The keys that say something."""
    return {name: value for name, value in keys.items() if value is not None and value is not False}


def job_keys(source: str, options: ProcessOptions, root: Path, format: str) -> dict[str, Any]:  # noqa: A002
    """The keys of the workflow that a job is: those of a workflow's file. Raises UsageError."""
    for one, other in _SAME:
        if getattr(options, one) is not None and getattr(options, other) is not None:
            what = f"--{one} and --{other} both say the same".replace("_", "-")
            raise UsageError(what, remedy="Keep one of them.")
    prompt = "{{row_json}}" if options.prompt is None and options.template is None else options.prompt
    text, schema, model = options.instruction, options.json_schema, options.schema_model
    if model is not None:
        schema = PREFIX + model.removeprefix(PREFIX).replace(":", ".")
    elif isinstance(schema, str):
        schema = _named(schema, root)
    attempts = None if options.max_retries is None else options.max_retries + 1
    stage = said(
        name=STAGE, prompt=prompt, template=_named(options.template, root), syntax=options.syntax,
        instructions=_named(text, root) if _is_file(text or "") else text,
        agent=options.agent if options.agent_card is None else _named(options.agent_card, root),
        output_schema=schema, reply=None if schema and options.reply == "json" else options.reply,
        temperature=options.temperature, max_tokens=options.max_tokens,
        retries=said(attempts=attempts, delay=options.retry_delay) or None,
    )  # fmt: skip
    tables, safe = [format] if format not in ("json", "jsonl") else None, options.csv_safe
    target = said(include_input=options.include_input, merge=options.merge, format=tables, csv_safe=safe)
    target |= said(to=options.to and stored_path(options.to, root))
    read = {name: int(text) if text.isdigit() else text for name, text in options.read.items()}
    read |= said(path=None if is_outside(source) else source, id_field=options.id_field)
    told = {"file": True, "ttft": options.run_mode != "batch"} if options.telemetry_output else None
    more = said(output=target or None, telemetry=told, row_timeout=options.row_timeout, vars=dict(options.vars) or None)
    return {"input": read, "stages": [stage], **more}


_SAME = (
    ("prompt", "template"), ("json_schema", "schema_model"), ("instruction", "agent_card"), ("instruction", "agent"),
)  # fmt: skip
_READ = ("template", "json_schema", "instruction", "agent_card")
WRITTEN = ("error_output", "telemetry_output", "summary_output")
_FILES = ("template", "json_schema", "agent_card", "to", *WRITTEN)
_FLAGS = {
    "": "agac process", "path": "INPUT", "prompt": "--prompt", "template": "--template", "agent": "--agent-card",
    "instructions": "--instruction", "output_schema": "--json-schema", "id_field": "--id-field", "merge": "--merge",
    "to": "--to",
}  # fmt: skip
"""The options that keys of the workflow come from."""


def _stored(options: ProcessOptions, root: Path) -> dict[str, Any]:
    """The options as an invocation notes them: what resumes the job from any folder."""
    found = options.given()
    paths = [name for name in _FILES if isinstance(found.get(name), str)]
    if _is_file(options.instruction or ""):  # with its `./` it is no text, should the file go
        place = stored_path(found["instruction"], root)
        found["instruction"] = place if is_outside(place) else f"./{place}"
    return found | {name: stored_path(found[name], root) for name in paths}


# Running it.


@calling
async def process(
    input: str | Path | GivenRows,  # noqa: A002 - the option's name
    output: str | Path,
    options: ProcessOptions | None = None,
    *,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
    began: Began | None = None,
    tell: Told | None = None,
) -> RunReport:
    """Asks a model about each row of `input` and writes the results into the file `output`; called again it resumes.

    A folder without a project is its own. With the OUTPUT `-` no file is written: `tell` is given the lines of rows as
    they end. `began` is given the alias of the job. All others are those of `agac.run`, and so are the errors; an
    OUTPUT that this job did not write raises UsageError.
    """
    job = await _ready(input, str(output), options or ProcessOptions(), project, tell)
    if job.adopts:
        await adopt(job, confirm)
    return await _run(job, began, progress=progress, confirm=confirm, handle_signals=handle_signals)


@blocking
async def process_plan(
    input: str | Path | GivenRows,  # noqa: A002 - the option's name
    output: str | Path,
    options: ProcessOptions | None = None,
    *,
    show: int = 0,
    project: Path | str | None = None,
) -> PlanReport:
    """What `process` with the same arguments would do: makes no calls, and keeps `show` rendered prompts."""
    job = await _ready(input, str(output), options or ProcessOptions(), project, None)
    if job.adopts:
        await adopt(job, None, dry=True)
    return await asynchronous(plan)(job, job.of_run(), show=show, project=job.root)


@calling
async def resume(
    job: str | int,
    *,
    budget: Budget | float | None = None,
    max_errors: int | None = None,
    wait: bool = False,
    yes: bool = False,
    project: Path | str | None = None,
    progress: Watch | bool = False,
    confirm: Confirm | None = None,
    handle_signals: bool = False,
    began: Began | None = None,
    tell: Told | None = None,
) -> RunReport:
    """Resumes a row run by its alias (`job_3`) or the number of its run, with the options that it had, but for those
    that are given; their files are read again. Raises UsageError for another run, and otherwise as `process` does."""
    root = project_root(project)
    async with stored_run(root, job) as (_, record):
        given = given_flags(record)
    if "job" not in given:
        what = f"run {record.id} is not a row run, but one of the workflow {record.workflow!r}"
        raise UsageError(what, remedy=f"Resume it with: {go_on(record)}")
    stored = dict(given["job"])
    source, output = (_from(stored.pop(name), root) for name in ("input", "output"))
    if _is_file(root / stored.get("instruction", "")):
        stored["instruction"] = str(root / stored["instruction"])
    stored |= {name: _from(stored[name], root) for name in _FILES if isinstance(stored.get(name), str)}
    if isinstance(stored.get("budget"), dict):
        stored["budget"] = Budget(**stored["budget"])
    stored |= said(budget=budget, max_errors=max_errors)
    found = await _ready(source, output, ProcessOptions(**stored, wait=wait, yes=yes), root, tell)
    if found.input == PIPED:
        found.piped = given.get("input")
    return await _run(found, began, progress=progress, confirm=confirm, handle_signals=handle_signals)


def _from(stored: str, root: Path) -> str:
    """A stored path, as `stored_path` makes it, for the current folder."""
    if stored in (PIPED, STDOUT) or POSTGRES.match(stored) or ("://" in stored and not stored.startswith(SCHEME)):
        return stored
    scheme = SCHEME if stored.startswith(SCHEME) else ""
    return f"{scheme}{root / stored.removeprefix(SCHEME)}"


async def _ready(
    source: str | Path | GivenRows, output: str, options: ProcessOptions, project: Path | str | None, tell: Told | None
) -> Job:
    """The job, where it may write its OUTPUT; rows of a program are kept as piped ones are. Raises UsageError."""
    root = project_root(project, bare=True)
    root = work_dir(Path(options.work_dir).resolve(), root) if options.work_dir else root
    rows = None if isinstance(source, str | Path) else source
    job = Job(root, PIPED if rows is not None else str(source), output, options, tell)
    if rows is not None:
        job.piped = str(await keep_rows(rows, job.root / INPUTS))
    if options.overwrite and options.resume:
        raise UsageError("--overwrite and --resume exclude each other", remedy="Keep one of them.")
    if not options.overwrite:
        await _refuse_foreign(job, output, options)
    return job


async def _refuse_foreign(job: Job, output: str, options: ProcessOptions) -> None:
    """Raises UsageError for files in the place of this job's that it did not write, unless it `adopts` the OUTPUT."""
    async with open_for_reading(database_path(job.root)) as database:
        last = await runs.last_invocation(database, job.name) if database else None
        written = await runs.files_written(database, job.output) if database else []
    before = last.invocation.body.get("given", {}).get("job") if last else None
    there = job.file is not None and job.file.exists()
    job.adopts = before is None and there
    if job.adopts and not options.resume:
        what = f"{output} exists, and this job did not write it"
        raise UsageError(what, remedy=f"{_OVERWRITE} --resume adopts its results.")
    known = [one for run in written for one in run.files.values()]
    # what an invocation was to write that was killed before it noted that it did
    begun = {} if before is None or any(run.shown for run in written) else before
    for one in WRITTEN:
        path = Path(getattr(options, one) or "")
        if (
            path.is_file() and path.stat().st_size and stamp(path) not in known
            and begun.get(one) != stored_path(str(path), job.root)
            and getattr(read_summary(path.parent, path.name), "workflow", None) != job.name
        ):  # fmt: skip
            raise UsageError(f"{path} exists, and this job did not write it", remedy=_OVERWRITE)
    if before is not None and there and before["input"] != job.input:
        raise UsageError(f"{output} has the results of another INPUT, {before['input']}", remedy=_OVERWRITE)
    if options.resume is False and there:
        raise UsageError(f"{output} exists", remedy="Leave out --no-resume to resume the job, or add --overwrite.")


_OVERWRITE = "Name another file, or replace it with --overwrite; stored answers are reused all the same."


async def _run(job: Job, began: Began | None, **more: Any) -> RunReport:
    watcher, more["project"] = job.watcher, job.root
    watcher.tell_began = began
    try:
        report = await asynchronous(run)(job, job.of_run(), **more)
        if report.quote is not None:
            report = await _rest(job, report, report.quote, more)
    finally:
        watcher.close()
    if report.exit_code is not ExitCode.INTERRUPTED:
        await watcher.tell_others()
    async with stored_run(job.root, report.summary["run"]) as (database, record):
        read = await runs.input_read_at(database, record.id) is not None
        summary = job_summary(job, report, await adopted_rows(database, job.name, record.id), read=read)
    if job.options.summary_output is not None:
        write_whole(Path(job.options.summary_output), encode(summary, indent=True) + "\n")
    copies = report.copies or ((watcher.kept,) if watcher.kept else ())
    return replace(report, summary=summary, copies=copies)


async def _rest(job: Job, first: RunReport, quote: Quote, more: dict[str, Any]) -> RunReport:
    """The run of the rows after the `first` ones, where they are wanted at that price. Raises UsageError."""
    if job.options.run_mode == "batch":
        quote = quote._replace(usd=None, seconds=None)
    elif job.options.provider or job.options.stream:  # which have no batches
        quote = quote._replace(batch_usd=None)
    answer = more["confirm"](quote) if more["confirm"] is not None else None
    if not answer:
        said = f":\n{quote}" if answer is None else ""
        what = f"stopped after {counted(first.rows.done + first.rows.failed, 'row')}, which are kept{said}"
        where = f" --work-dir {shlex.quote(job.options.work_dir)}" if job.options.work_dir else ""
        raise UsageError(what, remedy=f"Continue with: agac resume {job_alias(first.summary['run'])}{where} --yes")
    if answer == "batch":
        job.options = replace(job.options, run_mode="batch")
        job.given["job"]["run_mode"] = "batch"
    job.given["job"].pop("quote", None)
    job.quotes, job.watcher.tell_began, before = "made", None, first.invocation
    job.watcher.close()
    report = await asynchronous(run)(job, replace(job.of_run(), fresh=False), **more)  # which retries failed ones
    both = {name: before[name] + report.invocation[name] for name in ("rows_done", "calls", "retries")}
    return replace(report, invocation=report.invocation | both | {"continued": before["continued"]})


def job_summary(job: Job, report: RunReport, adopted: int, *, read: bool) -> dict[str, Any]:
    """The summary of a run with what is asked of a row run besides: which rows were selected (None: not all of them
    were `read`), processed in this invocation, skipped (they needed no call), failed, and `adopted` out of OUTPUT; the
    model, the files, the duration in milliseconds."""
    summary, rows, done, options = report.summary, report.rows, report.invocation, job.options
    processed, calls = done["rows_done"] + done["rows_failed"], summary["calls"]
    named = {"prompt": "input", "completion": "output", "reasoning": "reasoning"}
    usage = {f"{name}_tokens": calls[f"{own}_tokens"] for name, own in named.items()}
    return {
        "job": job_alias(summary["run"]),
        "model": summary["stages"][0]["model"],
        "input": job.input,
        "output": job.output,
        "template": options.template or ("<inline>" if options.prompt else "<default>"),
        **{name: getattr(options, name) for name in ("json_schema", "schema_model", *_READ[2:], "agent", "sql")},
        "variables": sorted(options.vars),
        "output_mode": "structured" if options.json_schema or options.schema_model else "text",
        "input_rows": rows.total if read and not summary["selection"] else None,
        "selected_rows": rows.total if read else None,
        "processed_rows": processed,
        "skipped_rows": max(0, rows.total - rows.open - processed),
        "ok_rows": rows.done + rows.skipped,
        "failed_rows": rows.failed,
        "adopted_rows": adopted,
        "duration_ms": round(1000 * summary["duration_s"], 1),
        "interrupted": report.exit_code is ExitCode.INTERRUPTED,
        "exit_code": int(report.exit_code),
        "exit_reason": "waiting" if report.exit_code is ExitCode.DONE and rows.open else report.exit_code.name.lower(),
        "usage": usage | {"total_tokens": calls["input_tokens"] + calls["output_tokens"]},
        "cache": {"read_tokens": calls["cached_tokens"]},
        **{name: value for name, value in summary.items() if name not in ("input", "output")},
    }

"""A project opened for use: files, environment, providers, `RunOptions`, checked workflows and
their rows."""

from __future__ import annotations

import itertools
import math
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cache
from io import StringIO
from operator import methodcaller
from pathlib import Path, PurePath
from secrets import token_urlsafe
from typing import Any, Literal, TypeVar

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import BaseModel, ValidationError

from agac.api.status import database_path, position_of, root_of, this_shard, workflow_name
from agac.api.sync import INTERRUPTS
from agac.core.arguments import refuse_fields, typed
from agac.core.errors import (
    AgacError,
    Problem,
    SpecError,
    UsageError,
    Where,
    any_error,
    did_you_mean,
)
from agac.core.redact import Redactor
from agac.core.state_files import make_folder
from agac.core.types import Report, Row, counted
from agac.data.files import Source, unreadable
from agac.data.frames import GivenRows
from agac.data.json_formats import JsonSource
from agac.data.remote import FOLDER, RemoteContents, kept_here
from agac.data.sources import (
    STANDARD_INPUT,
    FirstRows,
    InputDigest,
    SeveralFiles,
    first_rows,
    keep,
    keep_rows,
    open_input,
    read_rows,
    rows_of_shard,
    sampled,
)
from agac.data.text_formats import DelimitedSource, separator_hint
from agac.engine.invocation import Scope, UnknownCalls
from agac.engine.output.output_checks import refusals
from agac.plan.checks import (
    check_batches,
    check_budgets,
    missing_parts,
    outside_strict,
    resolve_models,
)
from agac.plan.fields import check_placeholders
from agac.plan.plan import Models, Selection, remote_of
from agac.providers.known_providers import SHIPPED
from agac.providers.model_string import alias_problem, parse_model
from agac.providers.provider import Provider
from agac.providers.table import build_providers
from agac.simulator.server import STAND_INS, embedded_simulator
from agac.simulator.settings import Settings, SimulatorError
from agac.spec import loader
from agac.spec.inputs import INPUTS
from agac.spec.paths import Unusable, home_of, output_folder, project_root, refused_by_windows
from agac.spec.project_files import read_bytes
from agac.spec.project_models import McpServerFile, ProviderSpec
from agac.spec.tools import ToolsMode
from agac.spec.workflow import Budget, Overrides, ProjectSpec, RunMode, StageChange, Workflow
from agac.spec.yaml import Unresolved
from agac.store import runs
from agac.store.db import open_for_reading

M = TypeVar("M", bound=BaseModel)

_OF_A_RUN = (
    "limit",
    "offset",
    "sample",
    "seed",
    "input",
    "sql",
    "model",
    "var",
    "concurrency",
    "output",
    "run_mode",
    "backend",
    "tools_mode",
    "tool_stubs",
    "replay",
    "max_turns",
)
"""The flags that make the run another one."""


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """What workflows and row runs take alike, as `RunOptions` explains it."""

    limit: int | None = None
    offset: int = 0
    sample: int | None = None
    seed: int | None = None
    sql: str | None = None
    model: str | None = None
    vars: dict[str, str] = field(default_factory=dict)
    fresh: bool = False
    budget: Budget | float | None = None
    max_errors: int | None = None
    yes: bool = False
    run_mode: RunMode | None = None
    tools_mode: ToolsMode | None = None
    tool_stubs: Mapping[str, Any] | str | None = None
    replay: int | None = None
    max_turns: int | None = None
    trust_card: bool = False
    backend: str | None = None
    wait: bool = False
    refetch: bool = False
    refresh_tools: bool = False
    calls: UnknownCalls = "ask"
    stream: bool = False
    export_traces: str | None = None
    executor: Literal["ray", "local"] | None = None

    def __post_init__(self) -> None:
        budget = self.budget
        if (
            isinstance(budget, int | float)
            and not isinstance(budget, bool)
            and 0 < budget < math.inf
        ):
            object.__setattr__(self, "budget", Budget(usd=budget))
        elif budget is not None and not isinstance(budget, Budget):
            remedy = "Give US dollars above 0, or agac.Budget(usd=5, tokens=100_000, calls=2_000)."
            raise UsageError(f"budget={budget!r} is no budget", remedy=remedy)
        refuse_fields(self)


@dataclass(frozen=True, slots=True)
class RunOptions(CommonOptions):
    """What one invocation changes. `offset` skips rows, `sample` draws some of the others with
    `seed`, `limit` takes the first of those; `output` replaces the workflow's folder. `input` is a
    path, a pattern, a database, or `-`; or rows themselves: dicts from an iterable, also an async
    one, or a frame of pandas, polars or Arrow. `sql` is one SELECT over the table `input`.

    `stage`, or `from_stage` and `until`, name the stages that may be asked; `budget`, of which a
    number is US dollars, takes the place of the project's and the workflow's; `yes` answers every
    question of whether to go on; `run_mode` and `backend` hold for all stages that ask; `wait`
    stays until all batches are in and all stages are done; `accept_store` goes on although the
    results in the output folder tell of another store, or of a newer one; `refetch` takes remote
    content as it is now, also for a run that began with another; `refresh_tools` calls tools again
    whose results earlier runs kept; `calls` of tools of which nobody knows are repeated, or
    skipped; `stream` makes one call at a time, and shows its reply on standard error while it is
    written; `discard_decisions`: under `fresh` what people decided does not count any more;
    `export_traces` is a folder, relative to the current one, for a file with the calls, turns and
    tools of each row; `executor` is who carries out calls and functions, whatever agac.yml says;
    `change` is of one stage."""

    input: Path | str | GivenRows | None = None
    concurrency: int | None = None
    output: str | None = None
    stage: str | None = None
    from_stage: str | None = None
    until: str | None = None
    retry_failed: bool = True
    accept_store: bool = False
    discard_decisions: bool = False
    change: StageChange | None = None

    def given(self) -> dict[str, Any]:
        """What makes the run another one, by the name of its flag. What holds for one invocation
        alone is not in it."""
        given = {flag: getattr(self, "vars" if flag == "var" else flag) for flag in _OF_A_RUN}
        given["input"] = str(self.input) if self.input is not None else None
        return {flag: value for flag, value in given.items() if value}

    @staticmethod
    def of_given(given: Mapping[str, Any]) -> RunOptions:
        """The options of an earlier invocation."""
        return RunOptions(
            **{
                "vars" if flag == "var" else flag: given[flag]
                for flag in _OF_A_RUN
                if flag in given
            }
        )

    def selection(self) -> Selection:
        """Which rows are meant."""
        return Selection(self.limit, self.offset, self.sample, self.seed or 0, this_shard())

    def overrides(self) -> Overrides:
        """What changes while the workflow is loaded. Raises UsageError for numbers that mean
        nothing."""
        least = {
            "limit": (1, "take at least one row"),
            "concurrency": (1, "at least one call has to be in flight"),
            "offset": (0, "skip no fewer than zero rows"),
            "sample": (1, "draw at least one row"),
            "max_errors": (0, "give 0 or more"),
        }
        for name, (bound, remedy) in least.items():
            number = getattr(self, name)
            if number is not None and number < bound:
                raise UsageError(f"--{name.replace('_', '-')} {number}: {remedy}")
        if self.seed is not None and self.sample is None:
            raise UsageError(
                f"--seed {self.seed}: nothing is drawn", remedy="Say how many rows with --sample N."
            )
        if self.discard_decisions and not self.fresh:
            raise UsageError(
                "--discard-decisions goes with --fresh",
                remedy="Of some rows: agac retry has it, too.",
            )
        if self.run_mode not in (None, "sync", "batch"):
            raise UsageError(f"--run-mode {self.run_mode}: there are sync and batch")
        if self.replay is not None and self.tools_mode not in (None, "replay"):
            raise UsageError(f"--run {self.replay} is for --tools-mode replay")
        if self.max_turns is not None and self.max_turns < 1:
            raise UsageError(f"--max-turns {self.max_turns}: give 1 or more")
        return Overrides(
            **{one.name: getattr(self, one.name) for one in fields(Overrides) if one.name != "dry"}
        )

    def scope(self, stages: Sequence[str]) -> Scope:
        """Which of the workflow's stages, in walking order, may be asked. Raises UsageError for
        unknown ones."""
        named = {"--stage": self.stage, "--from": self.from_stage, "--until": self.until}
        at = {
            flag: position_of(name, stages, flag)
            for flag, name in named.items()
            if name is not None
        }
        if not at:
            return Scope(None, self.retry_failed)
        if "--stage" in at and len(at) > 1:
            raise UsageError(
                "--stage names the only stage to run",
                remedy="Leave out --from and --until, or --stage.",
            )
        if self.fresh:
            what = "--fresh runs all stages again and cannot be limited to some of them"
            raise UsageError(
                what, remedy="Rerun stages of a finished run with: agac retry last --from STAGE"
            )
        first = at.get("--from", at.get("--stage", 0))
        last = at.get("--until", at.get("--stage", len(stages) - 1))
        if last < first:
            raise UsageError(
                f"--from {self.from_stage} comes after --until {self.until}",
                remedy="Exchange the two.",
            )
        return Scope(frozenset(stages[first : last + 1]), self.retry_failed)


@dataclass(frozen=True, slots=True)
class Project:
    """An opened project. `env` is the environment with the project's .env below it: it holds
    secrets. `state` is the folder with its state, which another version of its files shares.
    `untrusted`: its files may be anybody's."""

    spec: ProjectSpec
    providers: Mapping[str, Provider]
    problems: list[Problem]
    env: Mapping[str, str] = field(repr=False)
    remote: RemoteContents = field(repr=False)
    state: Path
    untrusted: bool = False

    @property
    def root(self) -> Path:
        """The folder of agac.yml."""
        return self.spec.root

    @property
    def store(self) -> Path:
        """The database: of another version of a project the one that there is."""
        return database_path(self.state)

    def reading_once(self) -> Project:
        """The same for a command that looks at many workflows, of which each would read the same
        files."""
        return replace(self, spec=self.spec.reading_once())

    def redactor(self) -> Redactor:
        """Knows every secret of the providers."""
        rows = self.providers.values()
        return Redactor(
            [one for row in rows for one in row.secrets],
            [one for row in rows for one in row.header_values],
        )

    @asynccontextmanager
    async def simulator(self) -> AsyncIterator[Callable[[Provider], Provider]]:
        """Starts the embedded simulator for the time of the block, and gives what tells a provider
        where it is. Its batches are the project's; what it goes on with next time lies beside the
        project's database. It answers this process alone: files of batches hold rows. With
        `agac.testing` it is the one that runs."""
        if STAND_INS:
            yield methodcaller("at_simulator", STAND_INS[-1])
            return
        file = self.store.with_name("simulator.db")
        make_folder(file.parent)
        try:
            key = token_urlsafe()
            async with embedded_simulator(Settings(state=file), key) as base_url:
                yield methodcaller("at_simulator", base_url, key)
        except SimulatorError as error:
            raise AgacError("the simulator did not start: " + "; ".join(error.problems)) from error


def project_of(
    workflow: loader.WorkflowSource, project: Path | str | None, *, untrusted: bool = False
) -> Project:
    """The project in which a workflow runs: of one that was made in Python also a folder without
    agac.yml."""
    root = root_of(workflow, project)
    if isinstance(workflow, loader.BuiltWorkflow):
        return open_project(root, bare=True, built=workflow)
    return open_project(root, bare=True, untrusted=untrusted)


def open_project(
    project: Path | str | None, *, bare: bool = False, built: loader.BuiltWorkflow | None = None,
    files: Path | None = None, untrusted: bool = False, sound: bool = False,
) -> Project:  # fmt: skip
    """The project at `project`, or the nearest one from the current folder upward, with agac.yml's
    problems and .env's; `bare`: it may lack an agac.yml. What `built` brings of providers, and of
    files to be read, comes to the file's. With an error among them it is only good for finding
    more. Raises UsageError when there is no project, SpecError when nothing of agac.yml can be
    read, or it has to be `sound` and has an error.

    `files` is a folder with another version of all that, but for rows that it lacks. Where they
    are `untrusted`, as those of a pull request from elsewhere are, no variable of the environment
    is looked up and nothing is fetched; its plans import no Python, and so know functions and
    classes by their sources alone."""
    root = project_root(project, bare=bare)
    env, broken = (Unresolved(), list[Problem]()) if untrusted else environment(root)
    spec, problems = loader.load_project(files or root, env)
    problems = [*broken, *problems]
    if spec is None:
        raise SpecError(problems)
    if built is not None:
        given = built.tools.servers.items()
        servers = {
            name: validated(McpServerFile, keys, f"McpServer({name!r})") for name, keys in given
        }
        overlaid = _overlaid(spec.file.providers, built.providers)
        file = spec.file.model_copy(
            update={"mcp": {**spec.file.mcp, **servers}, "providers": overlaid}
        )
        spec = replace(spec, file=file, functions=built.tools.functions)
    at = spec.document.where
    providers, found = build_providers(
        spec.file.providers, env, lambda path: at(path, key=len(path) == 2)
    )
    # what was refused in a provider's row is missing from it: that it is missing is no further
    # problem
    problems += [
        one for one in found if not any(p.path.startswith(f"{one.path}.") for p in problems)
    ]
    if untrusted:  # no server is asked for its models
        providers = {name: replace(row, offline=True) for name, row in providers.items()}
    for name, text in spec.file.aliases.items():  # whether or not a workflow uses them
        wrong = alias_problem(name, providers)
        others = {key: value for key, value in spec.file.aliases.items() if key != name}
        messages = [wrong] if wrong else parse_model(text, providers, others)[1]
        problems += [spec.document.problem(("aliases", name), message) for message in messages]
    if sound and any_error(problems):
        raise SpecError(problems)
    remote = remote_contents(replace(spec, root=root), built.allowed if built else ())
    fetch = spec.fetch if untrusted else remote.fetch
    spec = replace(spec, fetch=fetch, rows_root=root if files else None)
    return Project(spec, providers, problems, env, remote, root, untrusted)


def _overlaid(
    of_project: Mapping[str, ProviderSpec], given: Mapping[str, ProviderSpec]
) -> dict[str, ProviderSpec]:
    """The providers of agac.yml with the keys that a job gives in the place of theirs. A provider
    that is known nowhere speaks OpenAI's API."""
    found = dict(of_project)
    for name, spec in given.items():
        keys = {key: getattr(spec, key) for key in spec.model_fields_set}
        if name not in of_project and name not in SHIPPED:
            keys = {"dialect": "openai-chat"} | keys
        found[name] = found.get(name, ProviderSpec()).model_copy(update=keys)
    return found


def validated(kind: type[M], keys: dict[str, Any], what: str) -> M:
    """What a program gave as keys of a file. Raises UsageError, which names `what` they are of."""
    try:
        return kind.model_validate(keys)
    except ValidationError as error:
        (wrong, *_) = error.errors()
        raise UsageError(f"{what}: {wrong['loc'][-1]} {wrong['msg']}") from None


def remote_contents(spec: ProjectSpec, allowed: Sequence[str] = ()) -> RemoteContents:
    """What gets what the project's files name elsewhere, with the proxies and certificates of its
    providers."""

    def transport() -> Any:
        from agac.providers import transport as found  # aiohttp: a plan of local files does without

        return found

    def heed() -> None:
        interrupts = INTERRUPTS.get(None)
        if interrupts is not None and interrupts.count:
            raise KeyboardInterrupt

    rules = spec.file.remote.model_copy(update={"allow": [*spec.file.remote.allow, *allowed]})
    return RemoteContents(spec.root, rules, spec.env, transport, heed)


async def with_pins(
    project: Project,
    workflow: loader.WorkflowSource,
    options: RunOptions,
    retried: int | None = None,
) -> Project:
    """The project with remote content as the last run used it, where that goes on: unfinished, or
    to be `retried`."""
    if (
        options.refetch
        or options.fresh
        or project.untrusted
        or not (project.state / FOLDER).is_dir()
    ):
        return project
    async with open_for_reading(project.store) as database:
        number = retried or (
            database and next(iter(await runs.run_ids(database, workflow_name(workflow))), None)
        )
        if not database or not number or (record := await runs.read_run(database, number)) is None:
            return project
        if retried is None and (
            record.finished_at or Selection(**record.selection) != options.selection()
        ):
            return project
        pinned = remote_of(await runs.run_settings_of(database, number), project.state)
        if await runs.control_known(database, record.workflow) is not None:
            pinned = tuple(kept_here(one, project.state / FOLDER) for one in pinned)
    remote = replace(project.remote, pinned=pinned)
    if pinned:
        return replace(project, spec=replace(project.spec, fetch=remote.fetch), remote=remote)
    return project


def environment(root: Path) -> tuple[dict[str, str], list[Problem]]:
    """The process's environment over the project's .env (what is exported wins), and each line
    that cannot be read."""
    file = home_of(root) / ".env"
    raw = b""
    problems = list[Problem]()
    try:
        # some call the folder of a virtual environment so
        if os.path.lexists(file) and not file.is_dir():
            raw = read_bytes(file, file.name, file.parent, may_be_secret=True)
    except Unusable as error:
        problems = [error.problem]
    text = raw.decode("utf-8-sig", errors="surrogateescape")
    for number, line in enumerate(text.split("\n"), start=1):
        if unreadable(line, "line", None):
            problems.append(
                Problem(Where(".env", number), "the line is not UTF-8; save the file as UTF-8")
            )
    good = ""
    remedy = (
        "write each line as NAME=value, a value of several lines in quotes, and comments with #"
    )
    for one in parse_stream(StringIO(text)):
        written, at = one.original
        if one.error:  # what is written begins with the blank lines before it
            place = Where(".env", at + written[: len(written) - len(written.lstrip())].count("\n"))
            problems.append(Problem(place, f"the line cannot be read; {remedy}"))
        good += "" if one.error else written
    values = dotenv_values(stream=StringIO(good))
    return {
        **{key: value for key, value in values.items() if value is not None},
        **os.environ,
    }, problems


# Checking workflows without running them: every problem of every file, and nothing of the user's is
# imported.


@dataclass(frozen=True, slots=True)
class CheckReport(Report):
    """What a check found. `workflows` were checked, by name; `ok`: none of the problems is an
    error."""

    JSON_KEYS = ("ok", "workflows", "problems")

    workflows: list[str]
    problems: list[Problem]

    @property
    def ok(self) -> bool:
        """Whether everything can run."""
        return not any_error(self.problems)


@dataclass(frozen=True, slots=True)
class CheckedWorkflow:
    """A workflow that can run, with its models and its opened input."""

    workflow: Workflow
    models: Models
    source: Source
    warnings: list[Problem]

    def rows(
        self, selection: Selection, *, labels: bool = False, read: InputDigest | None = None
    ) -> Iterator[Row]:
        """The selected rows, streamed; every call reads the input anew. A sample reads all of it
        once more, first. With `labels` they have the columns that no stage sees. Of a shard `read`
        learns what the rows of all shards are."""
        rows = read_rows(self.source, self.workflow.input.id_field, selection.offset)
        shard = selection.shard
        suffixed = self.workflow.input.on_duplicate_id == "suffix"
        hidden = self.workflow.labels
        if hidden and not labels:
            rows = (
                row._replace(
                    data=row.data
                    and {name: row.data[name] for name in row.data if name not in hidden}
                )
                for row in rows
            )
        if selection.sample is not None:
            ordinals = (record.ordinal for record in self.source.records(selection.offset))
            drawn = set(sampled(ordinals, selection.sample, selection.seed))
            rows = itertools.islice((row for row in rows if row.ordinal in drawn), len(drawn))
        if selection.limit is None:
            rows = rows
        else:
            rows = itertools.islice(rows, selection.limit)
        if shard is None:
            return rows
        return rows_of_shard(rows, shard, suffixed, read)

    def count(self, selection: Selection) -> int:
        """How many rows are selected; reads the input, as far as it must."""
        if selection.shard is not None:
            return sum(1 for _ in self.rows(selection))
        records = self.source.records(selection.offset)
        most = min(
            (bound for bound in (selection.limit, selection.sample) if bound is not None),
            default=None,
        )
        return sum(1 for _ in (records if most is None else itertools.islice(records, most)))


@typed
def validate(
    workflow: loader.WorkflowSource | Sequence[str] | None = None,
    *,
    project: Path | str | None = None,
    untrusted: bool = False,
) -> CheckReport:
    """Checks one workflow, several, or all of the project, and agac.yml. `untrusted`: the files
    may be anybody's, and see nothing of the environment."""
    if isinstance(workflow, loader.WorkflowSource):
        wanted = [workflow]
    else:
        wanted = list[loader.WorkflowSource](workflow or ())
    try:
        opened = project_of(
            wanted[0] if wanted else "", project, untrusted=untrusted
        ).reading_once()
    except SpecError as error:
        return CheckReport(
            [], loader.in_order([*error.problems, *loader.workflow_keys(project_root(project))])
        )
    names = list(dict.fromkeys(wanted)) or loader.workflow_names(opened.spec)
    problems = list(opened.problems)
    if not names:
        folder = Where(opened.spec.shown(opened.spec.paths.workflows) + "/")
        problems.append(
            Problem(folder, "no workflow is here; `agac init NAME` makes a project that has one")
        )
    for name in names:
        try:
            checked, found = check_workflow(opened, name, Overrides())
        except UsageError as error:
            if len(names) == 1:
                raise
            problems.append(
                Problem(Where(str(name)), f"{error.message}. {error.remedy or ''}".strip())
            )
            continue
        problems += name.told(found) if isinstance(name, loader.BuiltWorkflow) else found
        if checked is not None:
            schemas = {stage.name: stage.schema for stage in checked.workflow.asking}
            problems += outside_strict(checked.workflow, checked.models, schemas)
            problems += _for_windows(checked.workflow, opened.spec)
    return CheckReport(list(map(str, names)), loader.in_order(problems))


def _for_windows(workflow: Workflow, project: ProjectSpec) -> list[Problem]:
    """Warnings of a workflow or a folder for results that a computer with Windows could not
    hold."""
    if workflow.output.to and workflow.output.to.path:
        table = [workflow.output.to.path]
    else:
        table = []
    written = [workflow.file, *map(project.shown, [workflow.output.dir, *table])]
    parts = {
        PurePath(part).stem: (path, part)
        for path in reversed(written)
        for part in refused_by_windows(path)
    }
    message = (
        "{}: Windows has no files or folders called {!r}; rename it if the project is to "
        "be used there"
    )
    return [
        Problem(Where(workflow.file), message.format(*found), "warning") for found in parts.values()
    ]


def defined(
    project: Project, name: loader.WorkflowSource, overrides: Overrides
) -> tuple[Workflow | None, Models, list[Problem]]:
    """One workflow with its models, as far as its files can be read, and their problems: not those
    of its rows."""
    workflow, problems = loader.load_workflow(project.spec, name, overrides)
    if workflow is None:
        return None, {}, problems
    broken = any_error([*project.problems, *problems])
    # providers of agac.yml that have a problem and are therefore not there
    lost = {one.path.split(".")[1] for one in project.problems if one.path.startswith("providers.")}
    lost -= project.providers.keys()
    addressed = {
        name: project.spec.document.where(("providers", name, "base_url"))
        for name, said in project.spec.file.providers.items()
        if said.base_url is not None
    }
    models, found = resolve_models(
        workflow,
        project.providers,
        project.spec.file.aliases,
        broken=broken,
        lost=lost,
        addressed=addressed,
    )
    return workflow, models, [*problems, *found]


def check_workflow(
    project: Project, name: loader.WorkflowSource, overrides: Overrides, *, partial: bool = False
) -> tuple[CheckedWorkflow | None, list[Problem]]:
    """One workflow with everything that can be known of it before its first call. `partial`: the
    run is to be one over a selection. Raises UsageError for a folder that `--output` cannot name.
    """
    workflow, models, problems = defined(project, name, overrides)
    if workflow is None:
        return None, problems
    if overrides.output is not None:
        folder = output_folder(
            overrides.output, project.spec.root, project.spec.paths, workflow.input.path
        )
        workflow = replace(workflow, output=replace(workflow.output, dir=folder))
    if workflow.whole:
        problems += missing_parts(workflow, project.root, project.env)
        problems += [*check_budgets(workflow, models), *check_batches(workflow, models)]
    source = None
    columns = None
    servers = [
        workflow.input.format == "postgres",
        workflow.output.to is not None and not workflow.output.to.path,
    ]
    if project.untrusted and any(servers):
        message = (
            "a server of rows is not asked for files that are not trusted: all but its "
            "columns is checked"
        )
        return None, [*problems, Problem(workflow.input.where, message)]
    try:
        if workflow.input.format or workflow.input.piped:
            source = open_input(workflow.input, project.env)
        else:
            source = None
    except SpecError as error:
        problems += error.problems
    except UsageError as error:
        problems.append(
            Problem(workflow.input.where, f"{error.message}. {error.remedy or ''}".strip())
        )
    else:
        columns = source.columns() if source else None
        columns = columns and tuple(name for name in columns if name not in workflow.labels)
        looks = source is not None and not workflow.input.piped and _may_lack(workflow, source)
        first = _first_rows(source) if source is not None and looks else None
        problems += [*_fields(workflow, columns, first), *_short_records(workflow, first)]
    said = {problem.path for problem in problems}
    if workflow.whole:
        found = refusals(workflow, columns, project.root, project.env, preview=partial)
    else:
        found = []
    problems += [problem for problem in found if problem.path not in said]
    if source is None or any_error(problems) or not workflow.whole:
        return None, problems
    if workflow.output.places is not None and isinstance(source, JsonSource) and source.single:
        workflow = replace(workflow, output=replace(workflow.output, one_value=True))
    return CheckedWorkflow(workflow, models, source, problems), problems


def _may_lack(workflow: Workflow, source: Source) -> bool:
    """Whether rows may lack what a prompt names: fields of their own, the last ones of a short
    record, or what is inside of a column."""
    columns = source.columns()
    if columns is None or isinstance(source, DelimitedSource | SeveralFiles):
        return True
    names = (
        placeholder.name for stage in workflow.asking for placeholder in stage.prompt.placeholders
    )
    return any("." in name and name.partition(".")[0] in columns for name in names)


def _first_rows(source: Source) -> FirstRows | None:
    """The beginning of an input; None where it cannot be read, which the command that reads all of
    it reports."""
    try:
        return first_rows(source)
    except AgacError:
        return None


def _short_records(workflow: Workflow, first: FirstRows | None) -> list[Problem]:
    """A warning for records with fewer fields than the header."""
    if first is None or not first.short:
        return []
    if first.complete:
        many = counted(first.looked_at, "record")
    else:
        many = f"the first {first.looked_at:,} records"
    have = "has" if first.short == 1 else "have"
    message = (
        f"{first.short:,} of {many} {have} fewer fields than the header, the first at "
        f"{first.first_short}; "
    )
    if workflow.input.on_short_record == "null":
        message += "their missing fields are null (on_short_record: null)"
    else:
        message += (
            "a row fails if a prompt or condition needs a missing field; `on_short_record: "
            "null` makes it null"
        )
        message += " (`agac process`: --read on_short_record=null)"
    return [Problem(workflow.input.where, message, "warning")]


def _fields(
    workflow: Workflow, columns: tuple[str, ...] | None, first: FirstRows | None
) -> list[Problem]:
    """Names of fields that the input does not have. A file taken apart at the wrong sign is one
    problem, not ten."""
    where = workflow.input.where
    name = workflow.input.id_field
    if workflow.whole:
        placeholders = check_placeholders(workflow, columns, first)
    else:
        placeholders = []
    identity = []
    hint = separator_hint(columns) if columns else ""
    if name is not None and columns is not None and name not in columns:
        named = did_you_mean(name, columns, "the columns are")
        at = replace(where, path=where.path and "input.id_field")
        identity = [Problem(at, f"the input has no column {name!r}; {hint or named}")]
    elif name is not None and first is not None and first.lack((name,)):
        at = replace(where, path=where.path and "input.id_field")
        named = did_you_mean(name, first.names(), "the fields are")
        identity = [Problem(at, f"{first.words()} of the input has the id field {name!r}; {named}")]
    if columns and hint:
        said = f"the input has one column, {columns[0]!r}; {hint}"
        return identity or [Problem(where, said, "error" if any_error(placeholders) else "warning")]
    return [*placeholders, *identity]


# A workflow made ready for work, with its rows at hand also where they are piped in.


def ready_workflow(
    project: Project, workflow: loader.WorkflowSource, options: RunOptions, *, dry: bool = False
) -> tuple[CheckedWorkflow, RunOptions]:
    """The workflow, checked, with what `options` change. Standard input is read to its end first,
    where it is the input, and the options then name the file in which it is kept: what goes on
    later finds the rows there. Raises SpecError with all problems, UsageError for wrong options."""
    overrides = replace(options.overrides(), dry=dry)
    checked, problems = check_workflow(
        project, workflow, overrides, partial=options.selection().partial
    )
    problems = loader.in_order([*project.problems, *problems])
    if checked is None or any_error(problems):
        raise SpecError(
            workflow.told(problems) if isinstance(workflow, loader.BuiltWorkflow) else problems
        )
    if checked.workflow.input.piped:
        return ready_workflow(
            project, workflow, replace(options, input=str(kept_input(project.state))), dry=dry
        )
    return checked, options


async def made_ready(
    project: Project,
    workflow: loader.WorkflowSource,
    options: RunOptions,
    retried: int | None = None,
    *,
    dry: bool = False,
) -> tuple[Project, CheckedWorkflow, RunOptions]:
    """`ready_workflow` in the project `with_pins`; rows that a program gave are kept in a file
    first, which the options then name. `dry`: for a plan, which asks nobody. Raises UsageError for
    what is no row, too."""
    if options.input is not None and not isinstance(options.input, Path | str):
        options = replace(options, input=await keep_rows(options.input, project.state / INPUTS))
    project = await with_pins(project, workflow, options, retried)
    return project, *ready_workflow(project, workflow, options, dry=dry)


def check_all(workflows: Sequence[str], options: RunOptions, project: Path | str | None) -> None:
    """Checks several workflows before the first of them runs. Raises SpecError with all problems,
    and UsageError."""
    repeated = {name for name in workflows if workflows.count(name) > 1}
    if repeated:
        raise UsageError(
            f"-a {sorted(repeated)[0]} is given twice", remedy="Name each workflow once."
        )
    if options.output is not None:
        raise UsageError(
            "--output is one folder, and there are several workflows", remedy="Run them one by one."
        )
    opened = open_project(project).reading_once()
    problems = list(opened.problems)
    for workflow in workflows:
        checked, found = check_workflow(
            opened, workflow, options.overrides(), partial=options.selection().partial
        )
        problems += found
        if checked is not None:
            try:
                options.scope([stage.name for stage in checked.workflow.stages])
            except UsageError as error:
                raise UsageError(
                    f"{checked.workflow.name}: {error.message}", remedy=error.remedy
                ) from error
    if any_error(problems):
        raise SpecError(loader.in_order(problems))


@cache
def kept_input(root: Path) -> Path:
    """Standard input in a file of the project. It can be read once in a process, so that several
    workflows share it. Raises UsageError when nothing is piped in."""
    folder = root / INPUTS
    if folder.is_dir():
        kept = [path for path in folder.iterdir() if not path.name.startswith(".")]
    else:
        kept = []
    newest = max(kept, key=lambda path: path.stat().st_mtime, default=None)
    if newest:
        again = f", or resume with those of the last time: --input {newest}"
    else:
        again = ""
    remedy = f"Pipe the rows in, as `cat rows.csv | agac run …`{again}."
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(f"{STANDARD_INPUT}: nothing is piped in", remedy=remedy)
    try:
        return keep(sys.stdin.buffer, folder)
    except UsageError as error:
        raise UsageError(error.message, remedy=remedy) from error

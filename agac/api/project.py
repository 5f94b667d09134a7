"""A project opened for use: its files, environment, providers and remote content."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from io import StringIO
from operator import methodcaller
from pathlib import Path
from secrets import token_urlsafe
from typing import Any, TypeVar

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import BaseModel, ValidationError

from agac.api.status import database_path, root_of
from agac.api.sync import INTERRUPTS
from agac.core.errors import AgacError, Problem, SpecError, UsageError, Where, any_error
from agac.core.redact import Redactor
from agac.core.state_files import make_folder
from agac.data.files import unreadable
from agac.data.remote import RemoteContents
from agac.providers.known_providers import SHIPPED
from agac.providers.model_string import alias_problem, parse_model
from agac.providers.provider import Provider
from agac.providers.table import build_providers
from agac.simulator.server import STAND_INS, embedded_simulator
from agac.simulator.settings import Settings, SimulatorError
from agac.spec import loader
from agac.spec.paths import Unusable, home_of, project_root
from agac.spec.project import ProjectSpec
from agac.spec.project_files import read_bytes
from agac.spec.project_models import McpServerFile, ProviderSpec
from agac.spec.yaml import Unresolved

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Project:
    """An opened project."""

    spec: ProjectSpec
    """agac.yml and the folders that it names."""
    providers: Mapping[str, Provider]
    """Its providers and those that agac knows, by name."""
    problems: list[Problem]
    """Problems of agac.yml and .env."""
    env: Mapping[str, str] = field(repr=False)
    """The environment, with the project's .env below it. It holds secrets."""
    remote: RemoteContents = field(repr=False)
    """Fetches what the files name elsewhere."""
    state: Path
    """The folder that holds its state, which other versions of its files share."""
    untrusted: bool = False
    """True if anybody may have written its files."""

    @property
    def root(self) -> Path:
        """The folder of agac.yml."""
        return self.spec.root

    @property
    def store(self) -> Path:
        """The database; other versions of the project's files use the same."""
        return database_path(self.state)

    def reading_once(self) -> Project:
        """Returns the project with each of its files read only once, for commands that look at
        many workflows."""
        return replace(self, spec=self.spec.reading_once())

    def redactor(self) -> Redactor:
        """Returns what hides every secret of the providers."""
        providers = self.providers.values()
        return Redactor(
            [secret for provider in providers for secret in provider.secrets],
            [value for provider in providers for value in provider.header_values],
        )

    @asynccontextmanager
    async def simulator(self) -> AsyncIterator[Callable[[Provider], Provider]]:
        """Starts the embedded simulator for the time of the block, and gives a function that
        points a provider at it.

        Its batches belong to the project: they are kept in a file next to the project's database.
        It answers this process only, because files of batches hold rows. With `agac.testing` the
        simulator that already runs is used."""
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
    """Opens the project in which a workflow runs, which may be a folder without agac.yml."""
    root = root_of(workflow, project)
    if isinstance(workflow, loader.BuiltWorkflow):
        return open_project(root, bare=True, built=workflow)
    return open_project(root, bare=True, untrusted=untrusted)


def open_project(
    project: Path | str | None, *, bare: bool = False, built: loader.BuiltWorkflow | None = None,
    files: Path | None = None, untrusted: bool = False, sound: bool = False,
) -> Project:  # fmt: skip
    """Opens the project at `project`, or the nearest one from the current folder upward, with the
    problems of agac.yml and .env. A project that has an error is only good for finding more
    problems.

    `bare`: agac.yml may be missing. `built` adds providers, tools and allowed addresses to those
    of agac.yml. `files` is a folder with another version of the project's files; rows that it
    lacks are read from the project. If the files are `untrusted`, as those of a pull request from
    elsewhere are, no variable of the environment is looked up, nothing is fetched, and plans
    import no Python: they know functions and classes by their sources alone.

    Raises UsageError if there is no project, and SpecError if agac.yml cannot be read or, for
    `sound`, has an error."""
    root = project_root(project, bare=bare)
    env, problems = (Unresolved(), []) if untrusted else environment(root)
    spec, spec_problems = loader.load_project(files or root, env)
    problems = [*problems, *spec_problems]
    if spec is None:
        raise SpecError(problems)
    if built is not None:
        spec = _with_built(spec, built)
    providers, provider_problems = _providers(spec, env, problems, untrusted=untrusted)
    problems += provider_problems
    problems += _alias_problems(spec, providers)
    if sound and any_error(problems):
        raise SpecError(problems)
    remote = remote_contents(replace(spec, root=root), built.allowed if built else ())
    fetch = spec.fetch if untrusted else remote.fetch
    spec = replace(spec, fetch=fetch, rows_root=root if files else None)
    return Project(spec, providers, problems, env, remote, root, untrusted)


def _with_built(spec: ProjectSpec, built: loader.BuiltWorkflow) -> ProjectSpec:
    """Adds to agac.yml the MCP servers, providers and functions of a workflow made in Python."""
    servers = {
        name: validated(McpServerFile, keys, f"McpServer({name!r})")
        for name, keys in built.tools.servers.items()
    }
    changed_keys = {
        "mcp": {**spec.file.mcp, **servers},
        "providers": _overlaid(spec.file.providers, built.providers),
    }
    file = spec.file.model_copy(update=changed_keys)
    return replace(spec, file=file, functions=built.tools.functions)


def _overlaid(
    of_project: Mapping[str, ProviderSpec], of_job: Mapping[str, ProviderSpec]
) -> dict[str, ProviderSpec]:
    """Replaces keys of the providers of agac.yml by those that a job sets. A provider that agac
    does not know speaks OpenAI's API."""
    providers = dict(of_project)
    for name, spec in of_job.items():
        keys = {key: getattr(spec, key) for key in spec.model_fields_set}
        if name not in of_project and name not in SHIPPED:
            keys = {"dialect": "openai-chat"} | keys
        providers[name] = providers.get(name, ProviderSpec()).model_copy(update=keys)
    return providers


def _providers(
    spec: ProjectSpec, env: Mapping[str, str], known_problems: Sequence[Problem], *, untrusted: bool
) -> tuple[dict[str, Provider], list[Problem]]:
    """Builds the project's providers, and returns their problems. A key that agac.yml's own
    check refused is missing from its provider; that is not reported again."""
    where = spec.document.where
    providers, problems = build_providers(
        spec.file.providers, env, lambda path: where(path, key=len(path) == 2)
    )
    refused_paths = [problem.path for problem in known_problems]
    problems = [
        problem
        for problem in problems
        if not any(path.startswith(f"{problem.path}.") for path in refused_paths)
    ]
    if untrusted:  # no server is asked for its models
        providers = {name: replace(each, offline=True) for name, each in providers.items()}
    return dict(providers), problems


def _alias_problems(spec: ProjectSpec, providers: Mapping[str, Provider]) -> list[Problem]:
    """Checks the short names of models, including those that no workflow uses."""
    problems = list[Problem]()
    aliases = spec.file.aliases
    for name, text in aliases.items():
        bad_name = alias_problem(name, providers)
        others = {key: value for key, value in aliases.items() if key != name}
        messages = [bad_name] if bad_name else parse_model(text, providers, others)[1]
        problems += [spec.document.problem(("aliases", name), message) for message in messages]
    return problems


def validated(kind: type[M], keys: dict[str, Any], what: str) -> M:
    """Reads what a program gave in place of a file's keys. Raises UsageError, which begins with
    `what`."""
    try:
        return kind.model_validate(keys)
    except ValidationError as error:
        (first, *_) = error.errors()
        raise UsageError(f"{what}: {first['loc'][-1]} {first['msg']}") from None


def remote_contents(spec: ProjectSpec, allowed: Sequence[str] = ()) -> RemoteContents:
    """Returns what fetches the content that the project's files name elsewhere, through the
    proxies and certificates of its providers."""

    def transport() -> Any:
        from agac.providers import transport as module  # aiohttp: a plan of local files needs none

        return module

    def raise_interrupt() -> None:
        interrupts = INTERRUPTS.get(None)
        if interrupts is not None and interrupts.count:
            raise KeyboardInterrupt

    rules = spec.file.remote.model_copy(update={"allow": [*spec.file.remote.allow, *allowed]})
    return RemoteContents(spec.root, rules, spec.env, transport, raise_interrupt)


def environment(root: Path) -> tuple[dict[str, str], list[Problem]]:
    """Returns the process's environment over the project's .env (exported variables win), and a
    problem for each line of .env that cannot be read."""
    content, problems = _dot_env(root)
    for number, line in enumerate(content.split("\n"), start=1):
        if unreadable(line, "line", None):
            message = "the line is not UTF-8; save the file as UTF-8"
            problems.append(Problem(Where(".env", number), message))
    readable = ""
    remedy = (
        "write each line as NAME=value, a value of several lines in quotes, and comments with #"
    )
    for binding in parse_stream(StringIO(content)):
        text, line_number = binding.original
        if binding.error:
            # the text begins with the blank lines before it
            blank = text[: len(text) - len(text.lstrip())].count("\n")
            where = Where(".env", line_number + blank)
            problems.append(Problem(where, f"the line cannot be read; {remedy}"))
        else:
            readable += text
    values = dotenv_values(stream=StringIO(readable))
    of_file = {key: value for key, value in values.items() if value is not None}
    return {**of_file, **os.environ}, problems


def _dot_env(root: Path) -> tuple[str, list[Problem]]:
    """Reads the project's .env, as far as there is one. A folder of that name is no problem: some
    call the folder of a virtual environment so."""
    file = home_of(root) / ".env"
    if not os.path.lexists(file) or file.is_dir():
        return "", []
    try:
        raw = read_bytes(file, file.name, file.parent, may_be_secret=True)
    except Unusable as error:
        return "", [error.problem]
    return raw.decode("utf-8-sig", errors="surrogateescape"), []

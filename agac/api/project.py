"""A project opened for use: its files, its environment, its providers. Everything that composes agac starts here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dotenv import dotenv_values

from agac.core.errors import Problem, SpecError, UsageError, Where
from agac.core.redact import Redactor
from agac.providers.modelref import alias_problem, parse_model
from agac.providers.provider import Provider
from agac.providers.rows import build_providers
from agac.spec.load import load_project
from agac.spec.root import PROJECT_FILE, find_project
from agac.spec.workflow import ProjectSpec


@dataclass(frozen=True, slots=True)
class Project:
    """An opened project. `env` is the environment with the project's .env below it: it holds secrets."""

    spec: ProjectSpec
    providers: Mapping[str, Provider]
    problems: list[Problem]
    env: Mapping[str, str] = field(repr=False)

    @property
    def root(self) -> Path:
        """The folder of agac.yml."""
        return self.spec.root

    def redactor(self) -> Redactor:
        """Knows every secret of the providers."""
        return Redactor(secret for row in self.providers.values() for secret in row.secrets)


def open_project(project: Path | str | None, *, start: Path | None = None) -> Project:
    """The project at `project`, or the nearest one from `start` (the current folder) upward, with agac.yml's problems.

    With an error among them it is only good for finding more. Raises UsageError when there is no project, SpecError
    when nothing of agac.yml can be read.
    """
    root = find_project(start or Path.cwd(), Path(project) if project is not None else None)
    env = environment(root)
    spec, problems = load_project(root, env)
    if spec is None:
        raise SpecError(problems)

    def locate(path: tuple[str, ...]) -> Where:
        key = ".".join(path)
        while key and key not in spec.where:
            key = key.rpartition(".")[0]
        return spec.where.get(key, Where(PROJECT_FILE))

    providers, found = build_providers(spec.providers, env, locate)
    # what was refused in a provider's row is missing from it: that it is missing is no further problem
    found = [problem for problem in found if not any(p.path.startswith(f"{problem.path}.") for p in problems)]
    return Project(spec, providers, [*problems, *found, *_alias_problems(spec, providers)], env)


def _alias_problems(spec: ProjectSpec, providers: Mapping[str, Provider]) -> list[Problem]:
    """What is wrong with agac.yml's short names of models, whether or not a workflow uses them."""
    problems = []
    for name, text in spec.aliases.items():
        wrong = alias_problem(name, providers)
        others = {key: value for key, value in spec.aliases.items() if key != name}
        messages = [wrong] if wrong else parse_model(text, providers, others)[1]
        where = spec.where[f"aliases.{name}"]
        problems += [Problem(where, message, f"aliases.{name}") for message in messages]
    return problems


def environment(root: Path) -> dict[str, str]:
    """The process's environment over the project's .env: what is exported wins."""
    file = root / ".env"
    if not file.is_file():
        return dict(os.environ)
    try:
        values = dotenv_values(file, encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = file.read_bytes()[: error.start].count(b"\n") + 1
        raise UsageError(f".env:{line}: is not UTF-8", remedy="Save the file as UTF-8.") from None
    except OSError as error:
        raise UsageError(f".env: cannot be read: {error.strerror}", remedy="Give the file read permission.") from error
    return {**{key: value for key, value in values.items() if value is not None}, **os.environ}

"""`agac lint`: likely mistakes in the files of a project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agac.api.checked_workflow import defined
from agac.api.project import Project, open_project
from agac.core.arguments import typed
from agac.core.errors import Problem, any_error
from agac.core.types import Report
from agac.plan.checks import lint_models
from agac.spec import loader
from agac.spec.agent_cards import card_names, find_card
from agac.spec.lint import (
    LintFinding,
    Readers,
    Texts,
    card_files,
    file_findings,
    invisible,
    secrets,
    split_by_comments,
    texts_read,
)  # fmt: skip
from agac.spec.paths import PROJECT_FILE, Unusable, home_of
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.project_files import files_in, read_text
from agac.spec.test_files import FOLDER
from agac.spec.yaml import read_yaml


def _tests_and_cards(spec: ProjectSpec) -> list[Path]:
    """The files of all tests of workflows, and of all cards in their folder."""
    tests = files_in(spec.root / FOLDER, home_of(spec.root), "**/*.y*ml")
    return [
        *tests,
        *(path for name in card_names(spec) if (path := find_card(name, spec)[0]) is not None),
    ]


@dataclass(frozen=True, slots=True)
class LintReport(Report):
    """What `lint` found in these workflows, in their cards and in agac.yml. `problems` are errors
    as `validate` has them: of a workflow with any, only its cards and its text were searched for
    secrets."""

    workflows: list[str]
    findings: list[LintFinding]
    problems: list[Problem]
    ignored: list[LintFinding]
    """What comments (`# agac: ignore[RULE]`) ignore."""


@typed
def lint(workflows: Sequence[str | Path] = (), *, project: Path | str | None = None) -> LintReport:
    """Looks for what is allowed and seldom meant, in these workflows or in all of the project.
    Nothing is asked. Raises UsageError for a workflow that does not exist, SpecError where
    agac.yml cannot be read."""
    opened = open_project(project)
    return lint_in(opened, list(workflows) or loader.workflow_names(opened.spec))


def lint_in(opened: Project, names: Sequence[str | Path]) -> LintReport:
    """The same in a project that is open already."""
    opened = opened.reading_once()
    spec = opened.spec
    home = home_of(opened.root)
    files = {home / PROJECT_FILE}
    findings = list[LintFinding]()
    problems = list(opened.problems)
    for name in names:
        workflow, models, found = defined(opened, name, Overrides())
        problems += found
        if workflow is None:  # what cannot be read is among the problems
            continue
        files.add(path := loader.find_workflow(spec, name))
        files |= {file for _, file in card_files(workflow)}
        if not any_error([*opened.problems, *found]):
            document = read_yaml(path, spec.shown(path), home)
            texts = Texts(workflow, document, home)
            readers = Readers(workflow, texts)
            findings += file_findings(workflow, document, texts, readers)
            findings += lint_models(
                workflow, models, readers, document.where(("stages",), key=True)
            )
    read = dict[str, str]()
    for file in sorted(files):
        try:
            read[spec.shown(file)] = read_text(file, spec.shown(file), home)
        except Unusable as error:
            problems.append(error.problem)
    findings += [one for shown, text in read.items() for one in secrets(text, shown)]
    is_whole = {*map(str, names)} >= {*loader.workflow_names(spec)}
    read |= texts_read([*files, *(_tests_and_cards(spec) if is_whole else ())], spec)
    findings += [one for shown, text in read.items() for one in invisible(text, shown)]
    errors = loader.in_order(one for one in problems if one.severity == "error")
    left, ignored = split_by_comments(findings, read, spec.file.lint.ignore)
    return LintReport([*map(str, names)], left, errors, ignored)

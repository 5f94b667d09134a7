"""`agac lint`: likely mistakes in the files of a project."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agac.api.checked_workflow import defined
from agac.api.project import Project, open_project
from agac.core.arguments import typed
from agac.core.errors import Problem, any_error
from agac.core.types import Report
from agac.plan.model_lint import lint_models
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


@dataclass(frozen=True, slots=True)
class LintReport(Report):
    """What `lint` found in workflows, in their cards and in agac.yml."""

    workflows: list[str]
    """The workflows that were looked at."""

    findings: list[LintFinding]
    """Likely mistakes."""

    problems: list[Problem]
    """Errors as `validate` has them. Of a workflow with any, only the cards and the text were
    searched for secrets."""

    ignored: list[LintFinding]
    """What comments (`# agac: ignore[RULE]`) ignore."""


@typed
def lint(workflows: Sequence[str | Path] = (), *, project: Path | str | None = None) -> LintReport:
    """Looks for what is allowed and seldom meant, in these workflows or in all of the project.

    Asks no model. Raises UsageError for a workflow that does not exist, SpecError if agac.yml
    cannot be read."""
    opened = open_project(project)
    return lint_in(opened, list(workflows) or loader.workflow_names(opened.spec))


def lint_in(opened: Project, names: Sequence[str | Path]) -> LintReport:
    """Looks for the same in a project that is open already."""
    opened = opened.reading_once()
    spec = opened.spec
    search = _Search(files={home_of(opened.root) / PROJECT_FILE}, problems=list(opened.problems))
    for name in names:
        search.add_workflow(opened, name)
    texts = search.read_files(opened)
    findings = search.findings
    for shown, text in texts.items():
        findings += secrets(text, shown)
    files = list(search.files)
    if {*map(str, names)} >= {*loader.workflow_names(spec)}:  # all of the project
        files += _tests_and_cards(spec)
    texts |= texts_read(files, spec)
    for shown, text in texts.items():
        findings += invisible(text, shown)
    errors = loader.in_order(each for each in search.problems if each.severity == "error")
    left, ignored = split_by_comments(findings, texts, spec.file.lint.ignore)
    return LintReport([*map(str, names)], left, errors, ignored)


@dataclass(slots=True)
class _Search:
    """What was found so far."""

    files: set[Path]
    """The files of the workflows, their cards, and agac.yml."""

    problems: list[Problem]
    """What is wrong with the files."""

    findings: list[LintFinding] = field(default_factory=list)
    """Likely mistakes."""

    def add_workflow(self, opened: Project, name: str | Path) -> None:
        """Looks at a workflow; one that cannot be read is among the problems."""
        workflow, models, problems = defined(opened, name, Overrides())
        self.problems += problems
        if workflow is None:
            return
        path = loader.find_workflow(opened.spec, name)
        self.files.add(path)
        self.files |= {file for _, file in card_files(workflow)}
        if any_error([*opened.problems, *problems]):
            return
        home = home_of(opened.root)
        document = read_yaml(path, opened.spec.shown(path), home)
        texts = Texts(workflow, document, home)
        readers = Readers(workflow, texts)
        self.findings += file_findings(workflow, document, texts, readers)
        where = document.where(("stages",), key=True)
        self.findings += lint_models(workflow, models, readers, where)

    def read_files(self, opened: Project) -> dict[str, str]:
        """Reads the texts of the files, by the names that messages show."""
        texts = dict[str, str]()
        for file in sorted(self.files):
            shown = opened.spec.shown(file)
            try:
                texts[shown] = read_text(file, shown, home_of(opened.root))
            except Unusable as error:
                self.problems.append(error.problem)
        return texts


def _tests_and_cards(spec: ProjectSpec) -> list[Path]:
    """Lists the files of all tests of workflows, and of all cards in their folder."""
    tests = files_in(spec.root / FOLDER, home_of(spec.root), "**/*.y*ml")
    cards = [find_card(name, spec)[0] for name in card_names(spec)]
    return [*tests, *(path for path in cards if path is not None)]

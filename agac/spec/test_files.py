"""Tests of workflows in `tests/workflows/`: the keys of their files, as `spec/models` has those of
workflows, and the tests as they are found there, with their schemas and conditions compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from agac.core.errors import Problem, UsageError, Where, any_error, listed
from agac.core.types import AssistantMessage, JSONValue, Request, RowId, Schema, ToolMessage
from agac.spec import validation as check
from agac.spec.file_model import FileModel, NonEmpty, key
from agac.spec.guards import Guard, compile_guard
from agac.spec.loader import checked_file, find_workflow
from agac.spec.output_schema import load_schema
from agac.spec.paths import (
    YAML_SUFFIXES,
    Refused,
    Unusable,
    existing_file,
    inside,
    is_there,
    secret_kind,
)
from agac.spec.project import ProjectSpec
from agac.spec.project_files import files_in, real_path
from agac.spec.workflow import JsonSchema, PythonSchema
from agac.spec.yaml import Document, read_yaml

FOLDER = "tests/workflows"
"""Of the project: files of tests; below it `recorded` and `snapshots` hold what agac writes."""

Count = Annotated[int, Field(ge=0)]


class AskedCallFile(FileModel):
    """A call of a tool that a model asks for."""

    name: NonEmpty = Field(description="The tool's name.")
    arguments: dict[str, JSONValue] = key("The arguments, by name.", default={})


class ReplyFile(FileModel):
    """A reply of a model, and the calls that get it: those for which all of `stage`, `row`,
    `match`, `turn` hold."""

    stage: NonEmpty | None = key("Only calls of this stage.")
    row: str | int | None = key("Only calls for the row with this id.")
    match: NonEmpty | None = key("Only calls with this text in a message, or in a tool's result.")
    turn: int | None = key("Only this turn of a conversation with tools, from 1.", ge=1)
    reply: Any = key("What the model says: a text, or a mapping for a stage with a schema.")
    calls: list[AskedCallFile] = key(
        "The tools that it asks for, in the place of a reply.", default=[]
    )

    def faults(self) -> Iterator[str]:
        if ("reply" in self.model_fields_set) == bool(self.calls):
            yield "gives nothing, or two things; write either reply or calls"

    def is_for(self, stage: str, row: RowId, request: Request) -> bool:
        """True if a call gets this reply."""
        turn = 1 + sum(isinstance(one, AssistantMessage) for one in request.messages)
        wanted = (
            self.stage in (None, stage)
            and self.turn in (None, turn)
            and str(self.row) in ("None", str(row))
        )
        results = (
            one.text
            for said in request.messages
            if isinstance(said, ToolMessage)
            for one in said.results
        )
        texts = (*(one.text for one in request.messages), *results)
        return wanted and any((self.match or "") in text for text in texts)


Ends = Literal["done", "skipped", "failed", "dropped"]
Form = Annotated[Any, AfterValidator(check.schema_form)]
Replies = Literal["simulator", "recorded"] | list[ReplyFile]
Rows = Annotated[list[dict[str, JSONValue]], Field(min_length=1)]


class ExpectFile(FileModel):
    """What must come of a test's rows."""

    rows: dict[Ends, Count] = key(
        "How many rows of the input end how; without `failed` none may.", default={}
    )
    results: Count | None = key("How many rows are written, also where stages make or join rows.")
    each: list[NonEmpty] = key("Conditions (CEL) that hold for each row with a result.", default=[])
    output_schema: Form = key(
        "The form of each result: a JSON Schema, its path, or `{field: type}`."
    )
    calls: Count | None = key("The most calls of models.")
    usd: Annotated[float, Field(ge=0)] | None = key(
        "The most that the calls may cost, in US dollars."
    )
    snapshot: bool = key(
        "Results are those of the stored snapshot; `agac test --update` writes it.", default=False
    )


class WorkflowTestFile(FileModel):
    """A test of a workflow: rows, who answers, and what must come of it."""

    workflow: NonEmpty | None = key(
        "The workflow; the file's name up to its first dot when left out."
    )
    rows: NonEmpty | Rows = Field(description="The rows, or a file of the project with rows.")
    vars: dict[NonEmpty, str] = key("Values of the workflow's vars.", default={})
    replies: Replies = key(
        "Who answers: `simulator`, what was `recorded`, or these replies.", default="simulator"
    )
    tools_mode: Literal["stub", "live"] = key(
        "Whether tools are stubs or recorded, or are called.", default="stub"
    )
    tool_stubs: dict[NonEmpty, JSONValue] | NonEmpty | None = key(
        "Stubs by tool, or a file of recorded calls."
    )
    expect: ExpectFile = key(
        "What must come of it; without it that no row fails.", default=ExpectFile()
    )


@dataclass(frozen=True, slots=True)
class WorkflowCase:
    """A test of a workflow, ready to be run."""

    path: Path
    """The file of the test."""
    workflow: str
    body: WorkflowTestFile
    input: list[dict[str, JSONValue]] | Path
    """Its rows, or the path of their file."""
    each: list[Guard]
    """Conditions that each result has to meet."""
    schema: Schema | None
    """The schema that each result has to fit."""


def find_cases(
    project: ProjectSpec, workflows: Collection[str] = (), word: str | None = None
) -> tuple[list[WorkflowCase], list[Problem]]:
    """Reads the tests of these workflows, or of all, whose file has the `word` in its name, and
    the problems of their files. Raises UsageError where there is no test."""
    cases = list[WorkflowCase]()
    problems = list[Problem]()
    wanted = {find_workflow(project, workflow).stem for workflow in workflows}
    try:
        files = case_files(project)
    except Unusable as error:
        return [], [error.problem]
    for path in files:
        if word is not None and word not in path.stem:
            continue
        case, problems_of_case = _read(project, path)
        if case is None:
            problems += problems_of_case
        elif not wanted or case.workflow in wanted:
            problems += problems_of_case
            cases.append(case)
    if not cases and not problems:
        if not files:
            raise UsageError("there are no tests", remedy=f"Write {FOLDER}/NAME.yml.")
        remedy = f"There are {listed([path.stem for path in files])}."
        raise UsageError("no such test", remedy=remedy)
    return cases, problems


def case_files(project: ProjectSpec) -> list[Path]:
    """Returns the files of tests, sorted. Raises Unusable where their folder is a link that leads
    out of the project."""
    try:
        real_path(project.root / FOLDER, project.root)
    except Refused as error:
        raise Unusable(Problem(Where(FOLDER), str(error))) from None
    found = files_in(project.root / FOLDER, project.root)
    return [one for one in found if one.suffix in YAML_SUFFIXES and is_there(one)]


def _stubs_of(
    file: WorkflowTestFile, project: ProjectSpec, document: Document
) -> Iterator[Problem]:
    """Yields what is wrong with the file of stubs that a test names."""
    if isinstance(file.tool_stubs, str):
        try:
            existing_file(file.tool_stubs, project.root, document.where(("tool_stubs",)))
        except Unusable as error:
            yield error.problem


def _read(project: ProjectSpec, path: Path) -> tuple[WorkflowCase | None, list[Problem]]:
    """Reads the file of a test; None when something is wrong with it."""
    written = read_yaml(path, project.shown(path), project.root)
    file, document, problems = checked_file(WorkflowTestFile, written, "the workflow")
    if file is None or problems:
        return None, problems
    workflow = file.workflow or path.name.partition(".")[0]
    rows: list[dict[str, JSONValue]] | Path = []
    try:
        workflow = find_workflow(project, workflow).stem
        if isinstance(file.rows, str):
            rows = _file_of_rows(file.rows, project)
        else:
            rows = file.rows
    except UsageError as error:
        problems.append(document.problem(("workflow",), f"{error.message}. {error.remedy}"))
    except Refused as error:
        problems.append(document.problem(("rows",), str(error)))
    problems += _stubs_of(file, project, document)
    guards = [
        compile_guard(text, document.where(("expect", "each", index)))
        for index, text in enumerate(file.expect.each)
    ]
    schema, schema_problems = _expected_schema(file, document, project, path.stem)
    problems += schema_problems
    problems += [problem for _, faults in guards for problem in faults]
    if any_error(problems):
        return None, problems
    each = [guard for guard, _ in guards if guard is not None]
    return WorkflowCase(path, workflow, file, rows, each, schema), problems


def _file_of_rows(text: str, project: ProjectSpec) -> Path:
    """Finds the file of rows that a test names. Raises Refused."""
    path = inside(project.root, text)
    why = secret_kind(path, project.root)
    if why is not None:
        raise Refused(f"{text!r} {why}, and is not read as rows; name another file")
    if not path.exists():
        raise Refused(f"no such file: {text!r}; name one of the project, or write the rows here")
    if not path.is_file():
        raise Refused(f"{text!r} is not a file; name a file with rows, or write the rows here")
    return path


def _expected_schema(
    file: WorkflowTestFile, document: Document, project: ProjectSpec, name: str
) -> tuple[Schema | None, list[Problem]]:
    """Loads the schema that the results of a test have to fit."""
    if file.expect.output_schema is None:
        return None, []
    at = ("expect", "output_schema")
    schema, problems = load_schema(file.expect.output_schema, project, document, at, name=name)
    if isinstance(schema, PythonSchema):
        message = "a Python class is not imported for a test; give a JSON Schema"
        problems.append(document.problem(at, message))
    return schema.schema if isinstance(schema, JsonSchema) else None, problems

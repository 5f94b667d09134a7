"""From a folder to a Workflow: every file that it names is read, every Problem is reported at
once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeVar

from agac.core.arguments import refuse_types
from agac.core.errors import Problem, SpecError, UsageError, Where, did_you_mean, listed
from agac.spec import paths
from agac.spec.card_types import card_parts
from agac.spec.data_specs import InputSpec, OutputSpec
from agac.spec.default_models import DefaultsFile
from agac.spec.file_model import FileModel
from agac.spec.given_tools import GivenTools, in_python
from agac.spec.inputs import input_spec
from agac.spec.model_errors import described, validate
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.outputs import output_spec, output_stages
from agac.spec.paths import Refused, home_of
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.project_files import files_in
from agac.spec.project_models import PathsFile, ProjectFile, ProviderSpec
from agac.spec.stage_keys import run_rules
from agac.spec.stage_order import MAX_STAGES, ordered
from agac.spec.stage_tools import for_no_tool
from agac.spec.stages import StageBuilder
from agac.spec.workflow import Workflow, family
from agac.spec.yaml import Document, expand, read_yaml

File = TypeVar("File", bound=FileModel)


def load_project(root: Path, env: Mapping[str, str]) -> tuple[ProjectSpec | None, list[Problem]]:
    """agac.yml with its defaults resolved, as much of it as can be read, and every problem. An
    empty file is a project. `env` is what `${VAR}` is looked up in. With problems the value is
    only good for finding more of them."""
    root, home = root.resolve(), paths.home_of(root.resolve())
    file, document, problems = _read(
        ProjectFile, home / paths.PROJECT_FILE, paths.PROJECT_FILE, home, "`defaults`"
    )
    if file is None:
        return None, in_order(problems)

    def expanded(text: str, *path: str | int) -> str:
        filled, missing = expand(text, env)
        unset = "the environment variable {} is not set; set it or add it to .env"
        problems.extend(document.problem(path, unset.format(name)) for name in missing)
        return filled

    defaults = file.defaults
    update = dict[str, object]()
    if defaults.model is not None:
        update["model"] = expanded(defaults.model, "defaults", "model")
    if "fallback" in defaults.model_fields_set:
        update["fallback"] = [expanded(text, "defaults", "fallback") for text in defaults.fallback]
    aliases = {name: expanded(text, "aliases", name) for name, text in file.aliases.items()}
    folders: dict[str, Path] = {}
    for key in PathsFile.model_fields:
        try:
            folders[key] = paths.inside(root if key == "output" else home, getattr(file.paths, key))
        except Refused as error:
            folders[key] = root / str(PathsFile.model_fields[key].default)
            problems.append(document.problem(("paths", key), str(error)))
    file = file.model_copy(
        update={"defaults": defaults.model_copy(update=update), "aliases": aliases}
    )
    return ProjectSpec(root, file, paths.ProjectPaths(**folders), document, env), in_order(problems)


def _read(
    kind: type[File], path: Path, shown: str, root: Path, place: str
) -> tuple[File | None, Document, list[Problem]]:
    """Returns a file as it can be read, and every problem; `place` is where the keys belong that
    stages share. A project need not have its file: one with a workflow that was made in Python, or
    with a store."""
    missing = kind is ProjectFile and not os.path.lexists(path)
    return checked_file(
        kind, Document(shown, None, []) if missing else read_yaml(path, shown, root), place
    )


def checked_file(
    kind: type[File], document: Document, place: str
) -> tuple[File | None, Document, list[Problem]]:
    """Checks the keys of a file: returns it as far as it can be read, and every problem; `place` is
    where the keys belong that stages share."""
    problems = list(document.problems)
    data = document.data
    is_workflow = kind is WorkflowFile
    if document.empty:
        if is_workflow:
            message = "is empty; a workflow has at least input and stages"
            problems.append(document.problem((), message))
    elif not problems and not isinstance(data, dict):
        message = f"expected a mapping of keys at the top, got {described(data)}"
        problems.append(document.problem((), message))
    if isinstance(data, dict):
        stages = data.get("stages") if is_workflow else None
        if isinstance(stages, list) and len(stages) > MAX_STAGES:
            message = (
                f"has {len(stages):,} stages, and {MAX_STAGES:,} are read; split it into "
                "several workflows"
            )
            problems.append(document.problem(("stages",), message, key=True))
            return None, document, problems
    elif data is not None or is_workflow:
        return None, document, problems
    file, faults = validate(kind, document, hints=_misplaced_hints(kind, place))
    return file, document, problems + faults


def _misplaced_hints(kind: type[FileModel], place: str) -> dict[str, dict[str, str]]:
    """Returns the messages for keys that belong elsewhere, by the path of their mapping: keys of
    the file in a stage, and keys of stages at the top of the file."""
    of_file = kind.model_fields.keys()
    inner = {"stages[]": StageFile.model_fields, "defaults": DefaultsFile.model_fields}
    hints = {
        path: {key: _unknown_here(key, _AT_TOP) for key in of_file - keys.keys()}
        for path, keys in inner.items()
    }
    of_stages = DefaultsFile.model_fields.keys() - of_file
    hints[""] = {key: _unknown_here(key, f"into {place}") for key in of_stages}
    return hints


def _unknown_here(key: str, place: str) -> str:
    """Returns the message for a key that belongs to another place."""
    return f"unknown key here; {key} belongs {place}"


_OF_STAGES = "`defaults` or a stage"
_AT_TOP = "to the file as a whole: write it at the left margin"


def read_workflow(
    path: Path, shown: str, root: Path
) -> tuple[WorkflowFile | None, Document, list[Problem]]:
    """Returns a workflow's file of the project at `root` alone, nothing of it resolved; None where
    it cannot be read at all."""
    return _read(WorkflowFile, path, shown, root, _OF_STAGES)


class BuiltWorkflow:
    """A workflow made in Python: the keys of a workflow's file, by a `name` of letters, digits,
    `_` and `-`. In it `output_schema` may be a Pydantic model, too, and `tools` a list with
    functions, `agac.Tool`s and MCP servers."""

    given: Mapping[str, Any] = MappingProxyType({"in_python": True})
    """What an invocation notes of it, besides its options."""

    # keys of providers, over those of the project
    providers: Mapping[str, ProviderSpec] = MappingProxyType({})
    watcher: Any = None  # what follows the commits of its runs
    # where its keys were typed: those of its `Document`
    places: Mapping[str, Where] = MappingProxyType({})
    allowed: tuple[
        str, ...
    ] = ()  # files outside of the project that its keys may name, as `file://`

    form: str | None = "'{key}': {value}"
    """How a message writes a key: of a dict. None: as files have it."""

    quotes: str | None = None
    """When its first rows are run and the rest is quoted: `always`, above `confirm_above`
    (`high`), or not again."""

    resumes: int | None = None
    """The run that is resumed: rows that it answered are asked again only after a yes, if
    something changed since."""

    def __init__(self, name: str, **keys: Any) -> None:
        """Raises SpecError with all that is wrong with the keys alone."""
        refuse_types("agac.Workflow", {"name": name}, {"name": str})
        self.tools = GivenTools()
        if "stages" in keys:
            keys["stages"] = self.tools.written(keys["stages"])
        document = Document(f"Workflow({name!r})", keys, [], places=self.places)
        self.name = name
        self.read = checked_file(WorkflowFile, document, _OF_STAGES)
        problems = self.told(self.read[2])
        if not re.fullmatch(r"[\w-]+", name):
            problems.insert(
                0, document.problem(("name",), "has more in it than letters, digits, _ and -")
            )
        if problems:
            raise SpecError(problems)

    def __str__(self) -> str:
        return self.name

    def told(self, problems: Iterable[Problem]) -> list[Problem]:
        """Problems as a program is told of them, each once: two stages may have the same key."""
        return list(
            dict.fromkeys(in_python(one, self.form) if self.form else one for one in problems)
        )

    def placed(self, output: OutputSpec) -> OutputSpec:
        """Returns where results go, once its keys were read."""
        return output


# a workflow by its name, by the path of its file, or made in Python
WorkflowSource = str | Path | BuiltWorkflow


def workflow_keys(root: Path) -> list[Problem]:
    """Finds what is wrong in the workflows' files alone, without the project's: for one whose
    agac.yml cannot be read."""
    files = files_in(root / str(PathsFile.model_fields["workflows"].default), root, "**/*.y*ml")
    return [
        one
        for file in files
        for one in read_workflow(file, file.relative_to(root).as_posix(), root)[2]
    ]


def input_paths(project: ProjectSpec) -> list[str]:
    """Returns the paths and patterns from which the project's workflows read rows, as far as their
    files can be read."""
    read = (
        read_workflow(path, project.shown(path), home_of(project.root))[0]
        for path in workflow_files(project)
    )
    inputs = (
        one
        for file in read
        if file is not None
        for one in (file.input, file.inputs)
        if one is not None
    )
    texts = (
        re.sub(r"\A\w+://|\?.*", "", text, flags=re.DOTALL)
        for one in inputs
        for text in one.path or ()
    )
    return [path for text in texts if (path := PurePosixPath(text).as_posix()) != "."]


def workflow_names(project: ProjectSpec) -> list[str]:
    """Returns the names of the project's workflows: its files' names without suffix, sorted."""
    return sorted({file.stem for file in workflow_files(project)})


def workflow_files(project: ProjectSpec, name: str = "*") -> list[Path]:
    """Returns the files of all workflows, or of those called `name`, in their folder and below
    it."""
    by_name = project.once(workflow_files, lambda: _workflow_files(project))
    if name == "*":
        return sorted(chain.from_iterable(by_name.values()))
    return by_name.get(name, [])


def _workflow_files(project: ProjectSpec) -> dict[str, list[Path]]:
    """Returns the files of all workflows by their names, sorted."""
    home = home_of(project.root)
    folder = project.paths.workflows
    found: dict[str, list[Path]] = {}
    for file in sorted(
        file for suffix in paths.YAML_SUFFIXES for file in files_in(folder, home, f"**/*{suffix}")
    ):
        if paths.is_there(file):
            found.setdefault(file.stem, []).append(file)
    return found


def find_workflow(project: ProjectSpec, named: str | Path) -> Path:
    """Finds the file of the workflow called `named`, or at this path inside the project. Raises
    `UsageError`."""
    folder = project.paths.workflows
    name = str(named.resolve() if isinstance(named, Path) and named.is_file() else named)
    if Path(name).is_absolute() and Path(name).resolve().is_relative_to(project.root):
        name = Path(name).resolve().relative_to(project.root).as_posix()
    try:
        files = paths.files_called(name, project.root, folder, paths.YAML_SUFFIXES)
    except Refused as error:
        raise UsageError(str(error)) from None
    if not name.endswith(paths.YAML_SUFFIXES):
        more = workflow_files(project, name)
        files = list({path.resolve(): path for path in [*files, *more]}.values())
    if not files:
        names = workflow_names(project)
        near = did_you_mean(name, names, "there is")
        hint = f"; {near}" if near.startswith("did") else ""
        remedy = f"Workflows in {project.shown(folder)}/: {listed(names)}."
        raise UsageError(f"no workflow {name!r}{hint}", remedy=remedy)
    if len(set(files)) > 1:
        both = " and ".join(project.shown(path) for path in files)
        message = f"workflow {name!r} is there twice: {both}"
        raise UsageError(message, remedy="Rename one of the files.")
    if not (project.root / paths.PROJECT_FILE).exists():
        message = (
            f"{project.root} has a store, but no agac.yml any more, which may have had "
            "budgets and providers"
        )
        remedy = "Put it back; where it held nothing, an empty one will do."
        raise UsageError(message, remedy=remedy)
    return files[0]


def load_workflow(
    project: ProjectSpec, source: WorkflowSource, overrides: Overrides | None = None
) -> tuple[Workflow | None, list[Problem]]:
    """Loads the workflow with everything it names, as far as it can be read, and every problem:
    with errors only good for finding more. Raises `UsageError` for a name that does not exist and
    overrides that the workflow cannot take."""
    if isinstance(source, BuiltWorkflow):
        name = source.name
        file, document, problems = source.read
    else:
        path = _workflow_file(project, source)
        if isinstance(path, Problem):
            return None, [path]
        name = path.stem
        shown = project.shown(path)
        file, document, problems = read_workflow(path, shown, home_of(project.root))
    overrides = overrides or Overrides()
    if overrides.model is not None and not overrides.model.strip():
        raise UsageError(
            "--model is empty; it takes provider/model",
            remedy="Name a model, or leave --model out.",
        )
    if file is None:
        return None, in_order(problems)
    workflow, more = _resolved(file, document, project, name, overrides)
    if isinstance(source, BuiltWorkflow):
        workflow = replace(workflow, output=source.placed(workflow.output))
    new = [problem for problem in more if not _follows_from(problem, problems)]
    return workflow, in_order([*problems, *new])


def _workflow_file(project: ProjectSpec, source: str | Path) -> Path | Problem:
    """Returns the file of a workflow; of one that is in the project and cannot be used, such as a
    link that leads out of it, what is wrong. Raises UsageError for one that is not there."""
    try:
        return find_workflow(project, source)
    except UsageError as error:
        files = workflow_files(project, str(source))
        if not files:
            raise
        return Problem(
            Where(project.shown(files[0])), f"{error.message}. {error.remedy or ''}".strip()
        )


def _resolved(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, overrides: Overrides
) -> tuple[Workflow, list[Problem]]:
    """Resolves the keys of a workflow, with all that they name. Raises UsageError."""
    _refuse_unknown_variables(file, document, overrides)
    variables = {**file.vars, **overrides.vars}
    project, fetched = project.noting()
    parts, card_problems = card_parts(file.stages, document, project)
    nodes, problems = ordered(file.stages, document, parts)
    sound = not problems
    if _lost_names(file, document):
        problems = []  # what `needs` them cannot be judged
    problems += card_problems
    if file.run_mode is not None and "run_mode" in file.defaults.model_fields_set:
        message = "run_mode stands here and in `defaults`; keep one of them"
        problems.append(document.problem(("run_mode",), message, key=True))
    builder = StageBuilder(project, document, file, variables, overrides, problems, parts)
    built = [builder.stage(node, order) for order, node in enumerate(nodes)]
    source, input_problems = input_spec(file, document, project, name, overrides)
    output, output_problems = output_spec(file, document, project, name, source)
    (ends, rows), end_problems = output_stages(file, document, nodes, sound=sound)
    problems += [*input_problems, *output_problems, *end_problems]
    stages = tuple(stage for stage in built if stage is not None)
    whole = len(stages) == len(built)
    if whole:
        tools = [tool for stage in stages for one in family(stage) for tool in one.named_tools]
        problems += for_no_tool(tools, overrides, home_of(project.root))
    # an input that cannot be used has no format: nothing is read of it, and what does not hang on
    # it is checked
    source = source or InputSpec(project.root, "", None, None, "error", document.where(("input",)))
    return Workflow(
        name,
        document.shown,
        file.description,
        source,
        stages,
        variables,
        replace(output, stages=ends, rows=rows),
        run_rules(file, document, project, overrides),
        tuple(stage.name for stage in file.stages if not stage.enabled),
        whole=whole,
        remote=tuple(dict.fromkeys(fetched)),
        labels=tuple(dict.fromkeys(stage.expect.label for stage in file.stages if stage.expect)),
    ), problems


def _refuse_unknown_variables(file: WorkflowFile, document: Document, overrides: Overrides) -> None:
    """Raises UsageError for a variable of the command line that the workflow does not declare."""
    for key in overrides.vars:
        if key not in file.vars:
            hint = did_you_mean(key, file.vars, "declared")
            message = f"--var {key}: {document.shown} declares no such variable; {hint}"
            raise UsageError(message, remedy="Add it to vars.")


def _lost_names(file: WorkflowFile, document: Document) -> bool:
    """True if stages, or their names, could not be read."""
    written = [
        stage.get("name") if isinstance(stage, dict) else None
        for stage in document.data.get("stages") or ()
    ]
    return written != [stage.name for stage in file.stages]


def _follows_from(problem: Problem, found: Iterable[Problem]) -> bool:
    """True if a problem only says again what was said of the same value, or of a wrong key (`pth`,
    then: no path)."""
    if problem.message.startswith("missing key") and any(
        p.path.startswith(f"{problem.path}.") for p in found
    ):
        return True
    return bool(problem.path) and any(known.path == problem.path for known in found)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """By file and line, each once: two stages may use the same broken card."""
    unique = dict.fromkeys(problems)
    return sorted(
        unique,
        key=lambda problem: (
            problem.where.file,
            problem.where.line or 0,
            problem.where.column or 0,
        ),
    )


# Where results go.

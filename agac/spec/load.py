"""From a folder to a Workflow: every file that it names is read, and every problem of every file comes at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from agac.core.errors import Problem, UsageError, Where, key_path
from agac.core.types import JSONValue
from agac.spec.batchrules import places
from agac.spec.ends import output_stages
from agac.spec.envtext import expand
from agac.spec.graph import graph
from agac.spec.inout import output_spec
from agac.spec.inputs import input_spec
from agac.spec.models import DefaultsFile, RunRulesFile, WorkflowFile
from agac.spec.modelwords import described, validate
from agac.spec.paths import OutsideProject, inside
from agac.spec.projectmodels import PathsFile, ProjectFile
from agac.spec.root import PROJECT_FILE
from agac.spec.rules import run_rules
from agac.spec.stages import StageBuilder
from agac.spec.suggest import did_you_mean, listed
from agac.spec.workflow import Overrides, ProjectPaths, ProjectSpec, Workflow
from agac.spec.yamlfile import Document, read_yaml

WORKFLOW_SUFFIXES = (".yml", ".yaml")
_UNSET = "the environment variable {} is not set; set it or add it to .env"


def load_project(root: Path, env: Mapping[str, str]) -> tuple[ProjectSpec | None, list[Problem]]:
    """agac.yml with its defaults resolved, as much of it as can be read, and every problem. An empty file is a project.

    `env` is what `${VAR}` is looked up in. With problems the value is only good for finding more of them.
    """
    root = root.resolve()
    document = read_yaml(root / PROJECT_FILE, PROJECT_FILE)
    problems = _mapping_problems(document, empty_is_fine=True)
    if document.data is not None and not isinstance(document.data, dict):
        return None, problems
    file, found = validate(ProjectFile, document, hints={"": _misplaced(ProjectFile, "`defaults`")})
    if file is None:
        return None, in_order([*problems, *found])
    defaults, unset = _expanded_model(file.defaults, document, env)
    paths, outside = _paths(file.paths, root, document)
    where = {key: document.where(("defaults", key)) for key in file.defaults.model_fields_set}
    where |= places(file.defaults, document, ("defaults",))
    where |= {f"aliases.{name}": document.where(("aliases", name)) for name in file.aliases}
    for key in RunRulesFile.model_fields.keys() & file.model_fields_set:
        where[f"project.{key}"] = document.where((key,))
    for name, provider in file.providers.items():
        where[f"providers.{name}"] = document.where(("providers", name), key=True)
        for key in provider.model_fields_set:
            where[f"providers.{name}.{key}"] = document.where(("providers", name, key))
    aliases, more = _expanded_aliases(file.aliases, document, env)
    project = ProjectSpec(root, PROJECT_FILE, file.providers, defaults, file, paths, where, env, aliases)
    return project, in_order([*problems, *found, *unset, *more, *outside])


def _expanded_aliases(
    aliases: Mapping[str, str], document: Document, env: Mapping[str, str]
) -> tuple[dict[str, str], list[Problem]]:
    found: dict[str, str] = {}
    problems: list[Problem] = []
    for name, text in aliases.items():
        found[name], missing = expand(text, env)
        path = ("aliases", name)
        problems += [Problem(document.where(path), _UNSET.format(unset), key_path(path)) for unset in missing]
    return found, problems


def _misplaced(model: type[RunRulesFile], where: str) -> dict[str, str]:
    """Sentences for the keys that stages share, where they stand at the top of a file."""
    keys = DefaultsFile.model_fields.keys() - model.model_fields.keys()
    return {key: f"unknown key here; {key} belongs into {where}" for key in keys}


def _expanded_model(
    defaults: DefaultsFile, document: Document, env: Mapping[str, str]
) -> tuple[DefaultsFile, list[Problem]]:
    problems: list[Problem] = []

    def expanded(text: str, key: str) -> str:
        found, missing = expand(text, env)
        where = document.where(("defaults", key))
        problems.extend(Problem(where, _UNSET.format(name), f"defaults.{key}") for name in missing)
        return found

    update: dict[str, object] = {}
    if defaults.model is not None:
        update["model"] = expanded(defaults.model, "model")
    if defaults.fallback is not None:
        update["fallback"] = [expanded(text, "fallback") for text in defaults.fallback]
    return (defaults.model_copy(update=update) if update else defaults), problems


def _paths(paths: PathsFile, root: Path, document: Document) -> tuple[ProjectPaths, list[Problem]]:
    found: dict[str, Path] = {}
    problems: list[Problem] = []
    for key in PathsFile.model_fields:
        try:
            found[key] = inside(root, getattr(paths, key))
        except OutsideProject as error:
            found[key] = root / str(PathsFile.model_fields[key].default)
            problems.append(Problem(document.where(("paths", key)), str(error), f"paths.{key}"))
    return ProjectPaths(**found), problems


def _mapping_problems(document: Document, *, empty_is_fine: bool = False) -> list[Problem]:
    problems = list(document.problems)
    if document.empty and not empty_is_fine:
        problems.append(Problem(Where(document.shown), "is empty; a workflow has at least input and stages"))
    elif not problems and not document.empty and not isinstance(document.data, dict):
        message = f"expected a mapping of keys at the top, got {described(document.data)}"
        problems.append(Problem(document.where(()), message))
    return problems


def workflow_names(project: ProjectSpec) -> list[str]:
    """The names of the project's workflows: its files' names without suffix, sorted."""
    folder = project.paths.workflows
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted({file.stem for file in found if file.suffix in WORKFLOW_SUFFIXES})


def find_workflow(project: ProjectSpec, name: str) -> Path:
    """The file of the workflow called `name`, or at the path `name` inside the project. Raises `UsageError`."""
    folder = project.paths.workflows
    try:
        candidates = [inside(project.root, name + suffix, base=folder) for suffix in WORKFLOW_SUFFIXES]
        if name.endswith(WORKFLOW_SUFFIXES):
            candidates = [inside(project.root, name), inside(project.root, name, base=folder)]
    except OutsideProject as error:
        raise UsageError(str(error)) from None
    files = [path for path in candidates if path.is_file()]
    if not files:
        known = workflow_names(project)
        remedy = f"Workflows in {project.shown(folder)}/: {listed(known)}."
        near = did_you_mean(name, known, "there is")
        raise UsageError(f"no workflow {name!r}" + (f"; {near}" if near.startswith("did") else ""), remedy=remedy)
    if len(files) > 1 and files[0] != files[1]:
        both = " and ".join(project.shown(path) for path in files)
        raise UsageError(f"workflow {name!r} is there twice: {both}", remedy="Rename one of the files.")
    return files[0]


def load_workflow(
    project: ProjectSpec, name: str, overrides: Overrides | None = None
) -> tuple[Workflow | None, list[Problem]]:
    """The workflow with everything it names, as far as it can be read, and every problem.

    With an error among them it is only good for finding more; None when a stage, the input or the output is unusable.
    Raises `UsageError` for a name that does not exist and for overrides that the workflow cannot take.
    """
    path = find_workflow(project, name)
    overrides = overrides or Overrides()
    if overrides.model is not None and not overrides.model.strip():
        raise UsageError("--model is empty; it takes provider/model", remedy="Name a model, or leave --model out.")
    document = read_yaml(path, project.shown(path))
    problems = _mapping_problems(document)
    if not isinstance(document.data, dict):
        return None, in_order(problems)
    file, found = validate(WorkflowFile, document, hints={"": _misplaced(WorkflowFile, "`defaults` or a stage")})
    if file is None:
        return None, in_order([*problems, *found])
    workflow, more = _resolved(file, document, project, path.stem, overrides)
    problems += found
    problems += [problem for problem in more if not _follows_from(problem, found)]
    return workflow, in_order(problems)


def _resolved(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, overrides: Overrides
) -> tuple[Workflow | None, list[Problem]]:
    """The workflow with everything that it names; None when its input, its output or a stage cannot be used."""
    variables = _variables(file.vars, overrides.vars, document.shown)
    links, problems = graph(file.stages, document)
    sound = not problems
    if _names_were_lost(file, document):
        problems = []
    builder = StageBuilder(project, document, file, variables, overrides, problems)
    stages = [builder.stage(link, order) for order, link in enumerate(links)]
    source, found = input_spec(file, document, project, name, overrides)
    output, refused = output_spec(file, document, project, name, source)
    ends, unknown = output_stages(file, document, links, sound=sound)
    refused += unknown
    problems += [*found, *refused]
    ready = tuple(stage for stage in stages if stage is not None)
    if source is None or output is None or len(ready) < len(stages):
        return None, problems
    return Workflow(
        name,
        document.shown,
        file.description,
        source,
        ready,
        variables,
        replace(output, stages=ends.stages, rows=ends.rows),
        run_rules(file, document, project, overrides),
        tuple(stage.name for stage in file.stages if not stage.enabled),
    ), problems


def _names_were_lost(file: WorkflowFile, document: Document) -> bool:
    """Whether a stage got another name than its author wrote: what `needs` it then cannot be judged."""
    written = document.data.get("stages")
    names = [stage.get("name") if isinstance(stage, dict) else None for stage in written or ()]
    return names != [stage.name for stage in file.stages]


def _follows_from(problem: Problem, found: Iterable[Problem]) -> bool:
    """Whether a problem only says again what was said of the same value, or of a wrong key (`pth`, then: no path)."""
    if problem.message.startswith("missing key") and any(p.path.startswith(f"{problem.path}.") for p in found):
        return True
    return bool(problem.path) and any(known.path == problem.path for known in found)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """By file and line, each once: two stages may use the same broken card."""
    unique = dict.fromkeys(problems)
    return sorted(unique, key=lambda problem: (problem.where.file, problem.where.line or 0, problem.where.column or 0))


def _variables(declared: Mapping[str, JSONValue], given: Mapping[str, str], shown: str) -> dict[str, JSONValue]:
    for name in given:
        if name not in declared:
            remedy = did_you_mean(name, declared, "declared")
            raise UsageError(f"--var {name}: {shown} declares no such variable; {remedy}", remedy="Add it to vars.")
    return {**declared, **given}

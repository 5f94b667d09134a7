"""From a folder to a Workflow: every file that it names is read, every Problem is reported at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from agac.core.errors import Path_, Problem, UsageError, Where, did_you_mean, listed
from agac.core.types import JSONValue
from agac.spec.graph import graph, rows_in_words
from agac.spec.inputs import STATE_FOLDERS, input_spec
from agac.spec.levels import StageNode, homes
from agac.spec.models import DefaultsFile, PathsFile, ProjectFile, RunRulesFile, StageFile, WorkflowFile
from agac.spec.paths import PROJECT_FILE, OutsideProject, files_called, inside, lies_in
from agac.spec.stages import StageBuilder, places_of, run_rules
from agac.spec.validation import described, validate
from agac.spec.workflow import InputSpec, OutputSpec, Overrides, ProjectPaths, ProjectSpec, TableTarget, Workflow
from agac.spec.yaml import Document, expand, read_yaml

_FORM = "write it as sqlite://data/out.db?table=results"
_MAGIC = b"SQLite format 3\0"


def table_target(
    text: str, project: ProjectSpec, folder: Path, source: InputSpec | None
) -> tuple[TableTarget | None, str]:
    """The table that `text` names, or why results cannot go there. `folder` is the output folder."""
    head, _, query = text.partition("?")
    scheme, found, name = head.partition("://")
    if not found:
        return None, f"{text!r} names no table; {_FORM}" + _file_hint(head)
    if scheme != "sqlite":
        return None, f"{scheme}:// cannot be written to; {_FORM}"
    table, message = _table(query)
    if not message and not name:
        message = f"names no database; {_FORM}"
    if message:
        return None, message
    try:
        path = inside(project.root, name)
    except OutsideProject as error:
        return None, str(error)
    target = TableTarget(path, project.shown(path), table)
    message = _wrong_place(target, project, folder) or _wrong_content(target, source)
    return (None, message) if message else (target, "")


def _file_hint(head: str) -> str:
    suffix = Path(head).suffix.lower().removeprefix(".")
    return f", or format: {suffix} for a file" if suffix in ("csv", "tsv", "txt", "parquet") else ""


def _table(query: str) -> tuple[str, str]:
    """The name of the table, or what is wrong with it."""
    given = parse_qsl(query, keep_blank_values=True)
    for key, _ in given:
        if key != "table":
            return "", f"unknown parameter {key!r}; {did_you_mean(key, ['table'], 'known')}"
    names = [value for _, value in given]
    if not names or not names[0]:
        return "", f"names no table; {_FORM}"
    if len(names) > 1:
        return "", f"names {len(names)} tables; keep one of them"
    if names[0].lower().startswith("sqlite_") or not names[0].isprintable():
        return "", f"{names[0]!r} cannot be the name of a table; SQLite keeps it for itself"
    return names[0], ""


def _wrong_place(target: TableTarget, project: ProjectSpec, folder: Path) -> str:
    path, shown = target.path, target.shown
    if any(lies_in(path, project.root / name) for name in (".agac", ".git")):
        return f"{shown} belongs to agac or git; name a database of your own"
    if path.is_dir():
        return f"{shown} is a folder; name a database in it"
    if any(part.is_file() for part in path.parents):
        return f"{shown}: a file is where its folder should be"
    if path.parent == folder / "preview":
        return f"{shown} lies in the folder of previews; name another place"
    return ""


def _wrong_content(target: TableTarget, source: InputSpec | None) -> str:
    if target.path.is_file() and not _may_be_database(target.path):
        return f"{target.shown} is no SQLite database; name one, or a file that is not there yet"
    if source is not None and source.path == target.path and _reads(source.statement or "", target.table):
        return (
            f"the input reads the table {target.table!r}: what is written into it would change the rows, and all of "
            "them would be asked again; name another table"
        )
    return ""


def _may_be_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            head = file.read(len(_MAGIC))
    except OSError:  # said when it is opened, with the remedy
        return True
    return head in (b"", _MAGIC)


def _reads(statement: str, table: str) -> bool:
    """Whether a statement names the table as a word of its own."""
    return re.search(rf"(?<!\w){re.escape(table)}(?!\w)", statement, re.IGNORECASE) is not None


def output_spec(
    file: WorkflowFile, document: Document, project: ProjectSpec, name: str, source: InputSpec | None
) -> tuple[OutputSpec | None, list[Problem]]:
    """Where the results of the workflow `name` go, or why they may not go there."""
    written = file.output
    folder = project.paths.output / name
    refused = {}
    try:
        folder = inside(project.root, written.dir) if written.dir is not None else folder
        refused["dir"] = _output_refusal(folder, project, source)
    except OutsideProject as error:
        refused["dir"] = str(error)
    target = None
    if written.to is not None:
        target, refused["to"] = table_target(written.to, project, folder, source)
        target = target and replace(target, where=document.where(("output", "to")))
    problems = [document.problem(("output", key), message) for key, message in refused.items() if message]
    if problems:
        return None, problems
    formats, where = tuple(written.format), document.where(("output", "format"))
    return OutputSpec(folder, written.include_input, formats, target, written.merge, written.csv_safe, where), []


def output_folder(text: str, project: ProjectSpec, source: InputSpec) -> Path:
    """The folder that `--output` names, relative to the project. Raises `UsageError` when results may not go there."""
    try:
        folder = inside(project.root, text)
        message = _output_refusal(folder, project, source)
    except OutsideProject as error:
        message = str(error)
    if message:
        raise UsageError(f"--output {text}: {message}", remedy="Name a folder inside the project.")
    return folder


def _output_refusal(folder: Path, project: ProjectSpec, source: InputSpec | None) -> str:
    """Why results may not go to `folder`: files there are replaced, so nothing of the project's own may be in it."""
    remedy = "results need a folder of their own, as output/reviews"
    if folder == project.root:
        return f"is the project's root; {remedy}"
    own = [project.paths.workflows, project.paths.agentcards, project.paths.schemas]
    state = [project.root / name for name in STATE_FOLDERS]
    for kept in [*own, *state, project.root / "data", project.root / "prompts"]:
        if lies_in(kept, folder):
            return f"{project.shown(folder)} holds the project's own files ({project.shown(kept)}); {remedy}"
    if any(lies_in(folder, kept) for kept in state):
        return f"{project.shown(folder)} belongs to agac or git; {remedy}"
    if source is not None and lies_in(source.path, folder):
        return f"{project.shown(folder)} holds the input file; {remedy}"
    if folder.exists() and not folder.is_dir():
        return f"{project.shown(folder)} is a file, and results need a folder; move it away, or name another folder"
    return ""


_PATH = ("output", "stages")


class Ends(NamedTuple):
    """`stages` are those whose results are written, in the order in which a row meets them; `rows` is the stage that
    made the rows that are written, None: they are the input's."""

    stages: tuple[str, ...]
    rows: str | None


def output_stages(
    file: WorkflowFile, document: Document, links: Sequence[StageNode], *, sound: bool = True
) -> tuple[Ends, list[Problem]]:
    """What is written: what `output.stages` names, else the results of the stages that nobody needs. `sound`: nothing
    is wrong with what stages need, so that it is known which rows they give."""
    order = [link.name for link in links]
    written = file.output.stages
    if written is None:
        needed = {need for link in links for need in link.needs}
        chosen = [name for name in order if name not in needed]
    else:
        if problems := _unknown(written, order, file.stages, document):
            return Ends((), None), problems
        chosen = [name for name in order if name in written]
    found = _resolved(chosen, links, file.stages, filters=written is None)
    stages = tuple(name for name in order if name in found)
    if not sound:
        return Ends(stages, None), []
    levels = _levels(chosen, links)
    problems = [_different(levels, links, document, written is not None)] if len(set(levels.values())) > 1 else []
    return Ends(stages, next(iter(levels.values()), None)), problems


def _unknown(
    written: Sequence[str], order: Sequence[str], stages: Sequence[StageFile], document: Document
) -> list[Problem]:
    disabled = {stage.name for stage in stages if not stage.enabled}
    problems = []
    for name in written:
        if name not in order:
            near = did_you_mean(name, list(order), "stages")
            why = "which is not enabled" if name in disabled else f"which does not exist; {near}"
            problems.append(document.problem(_PATH, f"names the stage {name!r}, {why}"))
    return problems


def _resolved(
    chosen: Sequence[str], links: Sequence[StageNode], stages: Sequence[StageFile], *, filters: bool
) -> set[str]:
    """The stages whose results these come to: what only lets rows through has none, so it ends in what it follows;
    a filter that is named stands for the rows that pass it."""
    by_name = {link.name: link for link in links}
    left, found = list(chosen), set()
    while left:
        name = left.pop()
        needs, written = by_name[name].needs, stages[by_name[name].index]
        if needs and (written.dedupe is not None or (written.filter is not None and filters)):
            left += needs
        else:
            found.add(name)
    return found


def _levels(chosen: Sequence[str], links: Sequence[StageNode]) -> Mapping[str, str | None]:
    """What made the rows that come out of each stage."""
    home = homes(links)
    by_name = {link.name: link for link in links}
    # a stage that filters what another one keeps stands on its rows: `homes` says so
    return {name: name if by_name[name].makes == "kept" else home[name] for name in chosen}


def _different(
    levels: Mapping[str, str | None], links: Sequence[StageNode], document: Document, chosen: bool
) -> Problem:
    """Results of rows of several kinds cannot stand in one file."""
    makes = {link.name: link.makes for link in links}
    found: dict[str | None, list[str]] = {}
    for name, level in levels.items():
        found.setdefault(level, []).append(name)
    shown = "; ".join(
        f"{' and '.join(map(repr, names))} of {rows_in_words(level, makes)}" for level, names in found.items()
    )
    last = ", ".join(list(found.values())[-1])
    if chosen:
        message = f"names results of different rows: {shown}; name those of the same rows, as [{last}]"
        return document.problem(_PATH, message)
    message = "the results that no stage needs are of different rows"
    return document.problem(_PATH, f"{message}: {shown}; choose with `output: {{stages: [{last}]}}`")


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
    problems += found
    defaults = _expanded_model(file.defaults, document, env, problems)
    aliases = {name: _expanded(text, ("aliases", name), document, env, problems) for name, text in file.aliases.items()}
    paths, outside = _paths(file.paths, root, document)
    where = places_of(file.defaults, document, ("defaults",))
    where |= {f"aliases.{name}": document.where(("aliases", name)) for name in file.aliases}
    for key in RunRulesFile.model_fields.keys() & file.model_fields_set:
        where[f"project.{key}"] = document.where((key,))
    for name, provider in file.providers.items():
        where[f"providers.{name}"] = document.where(("providers", name), key=True)
        for key in provider.model_fields_set:
            where[f"providers.{name}.{key}"] = document.where(("providers", name, key))
    project = ProjectSpec(root, PROJECT_FILE, file.providers, defaults, file, paths, where, env, aliases)
    return project, in_order([*problems, *outside])


def _misplaced(model: type[RunRulesFile], where: str) -> dict[str, str]:
    """Sentences for the keys that stages share, where they stand at the top of a file."""
    keys = DefaultsFile.model_fields.keys() - model.model_fields.keys()
    return {key: f"unknown key here; {key} belongs into {where}" for key in keys}


def _expanded(text: str, path: Path_, document: Document, env: Mapping[str, str], problems: list[Problem]) -> str:
    """The text at `path` with its variables filled in; one that is not set goes to `problems`."""
    found, missing = expand(text, env)
    problems += [document.problem(path, _UNSET.format(name)) for name in missing]
    return found


def _expanded_model(
    defaults: DefaultsFile, document: Document, env: Mapping[str, str], problems: list[Problem]
) -> DefaultsFile:
    update: dict[str, object] = {}
    if defaults.model is not None:
        update["model"] = _expanded(defaults.model, ("defaults", "model"), document, env, problems)
    if "fallback" in defaults.model_fields_set:
        at = ("defaults", "fallback")
        update["fallback"] = [_expanded(text, at, document, env, problems) for text in defaults.fallback]
    return defaults.model_copy(update=update) if update else defaults


def _paths(paths: PathsFile, root: Path, document: Document) -> tuple[ProjectPaths, list[Problem]]:
    found: dict[str, Path] = {}
    problems: list[Problem] = []
    for key in PathsFile.model_fields:
        try:
            found[key] = inside(root, getattr(paths, key))
        except OutsideProject as error:
            found[key] = root / str(PathsFile.model_fields[key].default)
            problems.append(document.problem(("paths", key), str(error)))
    return ProjectPaths(**found), problems


def _mapping_problems(document: Document, *, empty_is_fine: bool = False) -> list[Problem]:
    problems = list(document.problems)
    if document.empty and not empty_is_fine:
        problems.append(Problem(Where(document.shown), "is empty; a workflow has at least input and stages"))
    elif not problems and not document.empty and not isinstance(document.data, dict):
        message = f"expected a mapping of keys at the top, got {described(document.data)}"
        problems.append(document.problem((), message))
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
        files = files_called(name, project.root, folder, WORKFLOW_SUFFIXES)
    except OutsideProject as error:
        raise UsageError(str(error)) from None
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
    workflow, more = _load_resolved(file, document, project, path.stem, overrides)
    problems += found
    problems += [problem for problem in more if not _follows_from(problem, found)]
    return workflow, in_order(problems)


def _load_resolved(
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

"""From a folder to a Workflow: every file that it names is read, every Problem is reported at
once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote_plus

from agac.core.arguments import refuse_types
from agac.core.errors import Problem, SpecError, UsageError, Where, did_you_mean, listed
from agac.spec import paths
from agac.spec.card_types import card_parts
from agac.spec.default_models import DefaultsFile
from agac.spec.file_model import FileModel
from agac.spec.given_tools import GivenTools, in_python
from agac.spec.graph import MAX_STAGES, StageNode, amended_name, graph, homes, rows_in_words
from agac.spec.inputs import input_spec
from agac.spec.models import StageFile, WorkflowFile
from agac.spec.paths import Refused, Unusable, home_of
from agac.spec.project_files import files_in, open_file
from agac.spec.project_models import PathsFile, ProjectFile, ProviderSpec
from agac.spec.stage_keys import run_rules
from agac.spec.stage_tools import for_no_tool
from agac.spec.stages import StageBuilder
from agac.spec.validation import described, validate
from agac.spec.workflow import (
    InputSpec,
    OutputSpec,
    Overrides,
    ProjectSpec,
    TableTarget,
    Workflow,
    family,
)
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
    """A file as it can be read, and every problem; `place` is where the keys belong that stages
    share. A project need not have its file: one with a workflow that was made in Python, or with a
    store."""
    missing = kind is ProjectFile and not os.path.lexists(path)
    return checked_file(
        kind, Document(shown, None, []) if missing else read_yaml(path, shown, root), place
    )


def checked_file(
    kind: type[File], document: Document, place: str
) -> tuple[File | None, Document, list[Problem]]:
    problems = list(document.problems)
    data = document.data
    if document.empty and kind is WorkflowFile:
        problems.append(document.problem((), "is empty; a workflow has at least input and stages"))
    elif not (document.empty or problems or isinstance(data, dict)):
        problems.append(
            document.problem((), f"expected a mapping of keys at the top, got {described(data)}")
        )
    if not isinstance(data, dict) and (data is not None or kind is WorkflowFile):
        return None, document, problems
    if isinstance(data, dict) and kind is WorkflowFile:
        stages = data.get("stages")
    else:
        stages = None
    if isinstance(stages, list) and len(stages) > MAX_STAGES:
        message = (
            f"has {len(stages):,} stages, and {MAX_STAGES:,} are read; split it into "
            "several workflows"
        )
        problems.append(document.problem(("stages",), message, key=True))
        return None, document, problems
    own = kind.model_fields.keys()
    said = "unknown key here; {} belongs {}"
    inner = {"stages[]": StageFile.model_fields, "defaults": DefaultsFile.model_fields}
    hints = {
        path: {key: said.format(key, _AT_TOP) for key in own - keys.keys()}
        for path, keys in inner.items()
    }
    hints[""] = {
        key: said.format(key, f"into {place}") for key in DefaultsFile.model_fields.keys() - own
    }
    file, found = validate(kind, document, hints=hints)
    return file, document, problems + found


_OF_STAGES = "`defaults` or a stage"
_AT_TOP = "to the file as a whole: write it at the left margin"


def read_workflow(
    path: Path, shown: str, root: Path
) -> tuple[WorkflowFile | None, Document, list[Problem]]:
    """A workflow's file of the project at `root` alone, nothing of it resolved; None where it
    cannot be read at all."""
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
        """Where results go, when its keys have been read."""
        return output


# a workflow by its name, by the path of its file, or made in Python
WorkflowSource = str | Path | BuiltWorkflow


def workflow_keys(root: Path) -> list[Problem]:
    """What is wrong in the workflows' files alone, without the project's: for one whose agac.yml
    cannot be read."""
    files = files_in(root / str(PathsFile.model_fields["workflows"].default), root, "**/*.y*ml")
    return [
        one
        for file in files
        for one in read_workflow(file, file.relative_to(root).as_posix(), root)[2]
    ]


def input_paths(project: ProjectSpec) -> list[str]:
    """The paths and patterns from which the project's workflows read rows, as far as their files
    can be read."""
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
    """The names of the project's workflows: its files' names without suffix, sorted."""
    return sorted({file.stem for file in workflow_files(project)})


def workflow_files(project: ProjectSpec, name: str = "*") -> list[Path]:
    """The files of all workflows, or of those called `name`, in their folder and below it."""
    by_name = project.once(workflow_files, lambda: _workflow_files(project))
    if name == "*":
        return sorted(chain.from_iterable(by_name.values()))
    return by_name.get(name, [])


def _workflow_files(project: ProjectSpec) -> dict[str, list[Path]]:
    """The files of all workflows by their names, sorted."""
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
    """The file of the workflow called `named`, or at this path inside the project. Raises
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
        files = list(
            {path.resolve(): path for path in [*files, *workflow_files(project, name)]}.values()
        )
    if not files:
        known = workflow_names(project)
        remedy = f"Workflows in {project.shown(folder)}/: {listed(known)}."
        near = did_you_mean(name, known, "there is")
        raise UsageError(
            f"no workflow {name!r}" + (f"; {near}" if near.startswith("did") else ""), remedy=remedy
        )
    if len(set(files)) > 1:
        both = " and ".join(project.shown(path) for path in files)
        raise UsageError(
            f"workflow {name!r} is there twice: {both}", remedy="Rename one of the files."
        )
    if not (project.root / paths.PROJECT_FILE).exists():
        what = (
            f"{project.root} has a store, but no agac.yml any more, which may have had "
            "budgets and providers"
        )
        raise UsageError(what, remedy="Put it back; where it held nothing, an empty one will do.")
    return files[0]


def load_workflow(
    project: ProjectSpec, source: WorkflowSource, overrides: Overrides | None = None
) -> tuple[Workflow | None, list[Problem]]:
    """The workflow with everything it names, as far as it can be read, and every problem: with
    errors only good for finding more. Raises `UsageError` for a name that does not exist and
    overrides that the workflow cannot take."""
    if isinstance(source, BuiltWorkflow):
        name, (file, document, problems) = source.name, source.read
    else:
        found = _workflow_file(project, source)
        if isinstance(found, Problem):
            return None, [found]
        path = found
        shown = project.shown(found)
        name, (file, document, problems) = (
            path.stem,
            read_workflow(path, shown, home_of(project.root)),
        )
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
    return workflow, in_order(
        [*problems, *(problem for problem in more if not _follows_from(problem, problems))]
    )


def _workflow_file(project: ProjectSpec, source: str | Path) -> Path | Problem:
    """The file of a workflow; of one that is in the project and cannot be used, such as a link
    that leads out of it, what is wrong. Raises UsageError for one that is not there."""
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
    for key in overrides.vars:
        if key not in file.vars:
            remedy = did_you_mean(key, file.vars, "declared")
            message = f"--var {key}: {document.shown} declares no such variable; {remedy}"
            raise UsageError(message, remedy="Add it to vars.")
    variables = {**file.vars, **overrides.vars}
    project, fetched = project.noting()
    parts, wrong_cards = card_parts(file.stages, document, project)
    nodes, problems = graph(file.stages, document, parts)
    sound = not problems
    written = [
        stage.get("name") if isinstance(stage, dict) else None
        for stage in document.data.get("stages") or ()
    ]
    # names were lost: what `needs` them cannot be judged
    if written != [stage.name for stage in file.stages]:
        problems = []
    problems += wrong_cards
    if file.run_mode is not None and "run_mode" in file.defaults.model_fields_set:
        message = "run_mode stands here and in `defaults`; keep one of them"
        problems.append(document.problem(("run_mode",), message, key=True))
    builder = StageBuilder(project, document, file, variables, overrides, problems, parts)
    stages = [builder.stage(node, order) for order, node in enumerate(nodes)]
    source, found = input_spec(file, document, project, name, overrides)
    output, refused = _output_spec(file, document, project, name, source)
    (ends, rows), wrong = output_stages(file, document, nodes, sound=sound)
    problems += [*found, *refused, *wrong]
    ready = tuple(stage for stage in stages if stage is not None)
    if len(ready) == len(stages):
        named = [tool for stage in ready for one in family(stage) for tool in one.named_tools]
        problems += for_no_tool(named, overrides, home_of(project.root))
    # an input that cannot be used has no format: nothing is read of it, and what does not hang on
    # it is checked
    source = source or InputSpec(project.root, "", None, None, "error", document.where(("input",)))
    return Workflow(
        name,
        document.shown,
        file.description,
        source,
        ready,
        variables,
        replace(output, stages=ends, rows=rows),
        run_rules(file, document, project, overrides),
        tuple(stage.name for stage in file.stages if not stage.enabled),
        whole=len(ready) == len(stages),
        remote=tuple(dict.fromkeys(fetched)),
        labels=tuple(dict.fromkeys(stage.expect.label for stage in file.stages if stage.expect)),
    ), problems


def _follows_from(problem: Problem, found: Iterable[Problem]) -> bool:
    """Whether a problem only says again what was said of the same value, or of a wrong key (`pth`,
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


def _output_spec(
    file: WorkflowFile,
    document: Document,
    project: ProjectSpec,
    name: str,
    source: InputSpec | None,
) -> tuple[OutputSpec, list[Problem]]:
    """Where the results of the workflow `name` go, or why they may not go there."""
    written = file.output
    folder = project.paths.output / name
    target = None
    problems: list[Problem] = []
    try:
        if written.dir is not None:
            folder = paths.inside(project.root, written.dir)
        else:
            folder = folder
        paths.refuse_folder(folder, project.root, project.paths, source.path if source else None)
    except Refused as error:
        problems.append(document.problem(("output", "dir"), str(error)))
        folder = project.paths.output / name
    if written.to is not None:
        at = document.where(("output", "to"))
        try:
            target = _table_target(written.to, project, folder, source, at)
        except Refused as error:
            problems.append(Problem(at, str(error)))
    formats = tuple(written.format)
    where = document.where(("output", "format"))
    merge = written.merge
    safe = written.csv_safe
    bom = written.bom
    told = OutputSpec(folder, written.include_input, formats, target, merge, safe, bom, where)
    return replace(told, how=written.how, sources=written.sources), problems


def _parse_table(text: str) -> tuple[str, str]:
    """The names of a database and a table in it, as `text` has them."""
    form: str | None = "write it as sqlite://data/out.db?table=results"
    if paths.POSTGRES.match(text):
        address, _, table = paths.server_parts(text, "table")
        if not table:
            raise Refused(
                "names no table; write postgres://USER:${PGPASSWORD}@HOST/DATABASE?table=NAME"
            )
        paths.server_table(table := unquote_plus(table))
        return address, table
    head, _, query = text.partition("?")
    scheme, found, name = head.partition("://")
    if not found:
        suffix = Path(head).suffix.lower().removeprefix(".")
        if suffix in ("csv", "tsv", "txt", "parquet"):
            hint = f", or format: {suffix} for a file"
        else:
            hint = ""
        raise Refused(f"{text!r} names no table; {form}{hint}")
    if scheme != "sqlite":
        raise Refused(f"{scheme}:// cannot be written to; {form}")
    given = parse_qsl(query, keep_blank_values=True)
    unknown = next((key for key, _ in given if key != "table"), None)
    if unknown is not None:
        raise Refused(f"unknown parameter {unknown!r}; {did_you_mean(unknown, ['table'], 'known')}")
    table = given[0][1] if given else ""
    if not table:
        raise Refused(f"names no table; {form}")
    if len(given) > 1:
        raise Refused(f"names {len(given)} tables; keep one of them")
    if table.lower().startswith("sqlite_") or not table.isprintable():
        raise Refused(f"{table!r} cannot be the name of a table; SQLite keeps it for itself")
    if not name:
        raise Refused(f"names no database; {form}")
    return name, table


def _table_target(
    text: str, project: ProjectSpec, folder: Path, source: InputSpec | None, where: Where
) -> TableTarget:
    name, table = _parse_table(text)
    if paths.POSTGRES.match(text):
        return TableTarget(None, name, table, where)
    path = paths.inside(project.root, name)
    shown = project.shown(path)
    if any(path.is_relative_to(project.root / state) for state in paths.STATE_FOLDERS):
        raise Refused(f"{shown} belongs to agac or git; name a database of your own")
    if path.is_dir():
        raise Refused(f"{shown} is a folder; name a database in it")
    if path.exists() and not path.is_file():
        raise Refused(f"{shown} is not a file; name a database")
    if any(part.is_file() for part in path.parents):
        raise Refused(f"{shown}: a file is where its folder should be")
    if path.parent == folder / "preview":
        raise Refused(f"{shown} lies in the folder of previews; name another place")
    if path.is_file() and not _may_be_database(path):
        raise Refused(f"{shown} is no SQLite database; name one, or a file that is not there yet")
    as_a_word = rf"(?<!\w){re.escape(table)}(?!\w)"
    if (
        source
        and source.path == path
        and re.search(as_a_word, source.statement or "", re.IGNORECASE)
    ):
        why = "what is written into it would change the rows, and all of them would be asked again"
        raise Refused(f"the input reads the table {table!r}: {why}; name another table")
    return TableTarget(path, shown, table, where)


def _may_be_database(path: Path) -> bool:
    magic = b"SQLite format 3\0"
    try:
        with open_file(path, path.name, None) as file:
            return file.read(len(magic)) in (b"", magic)
    except (OSError, Unusable):  # said when it is opened, with the remedy
        return True


def output_stages(
    file: WorkflowFile, document: Document, nodes: Sequence[StageNode], *, sound: bool = True
) -> tuple[tuple[tuple[str, ...], str | None], list[Problem]]:
    """The stages whose results are written, in the order in which a row meets them, and the stage
    that made the rows that are written, None: they are the input's. With what is wrong. They are
    those that `output.stages` names, else those that nobody needs. `sound`: nothing is wrong with
    what stages need: it is known which rows they give."""
    by_name = {node.name: node for node in nodes}
    written = file.output.stages
    at = document.where(("output", "stages"))
    unknown = [Problem(at, message) for message in _unknown(written or (), by_name, file.stages)]
    if unknown:
        return ((), None), unknown
    needed = {need for node in nodes for need in node.needs}
    ends = (
        name for name in by_name if (name not in needed if written is None else name in written)
    )
    chosen = list(dict.fromkeys(amended_name(name, by_name) for name in ends))
    stages = _with_results(chosen, by_name, file)
    if not sound:
        return (stages, None), []
    home = homes(nodes)
    levels: dict[str | None, list[str]] = {}
    for (
        name
    ) in chosen:  # a stage that filters what another one keeps stands on its rows: `homes` says so
        levels.setdefault(name if by_name[name].makes == "kept" else home[name], []).append(name)
    found = stages, next(iter(levels), None)
    if len(levels) < 2:
        return found, []
    # results of rows of several kinds cannot stand in one file
    makes = {node.name: node.makes for node in nodes}
    each = [
        f"{' and '.join(map(repr, names))} of {rows_in_words(level, makes)}"
        for level, names in levels.items()
    ]
    shown = "; ".join(each)
    last = ", ".join([*levels.values()][-1])
    message = f"names results of different rows: {shown}; name those of the same rows, as [{last}]"
    if written is None:
        message = f"the results that no stage needs are of different rows: {shown}; "
        message += f"choose with `output: {{stages: [{last}]}}`"
    return found, [Problem(at, message)]


def _with_results(
    chosen: Iterable[str], by_name: Mapping[str, StageNode], file: WorkflowFile
) -> tuple[str, ...]:
    """The stages whose results the chosen ones have: what only lets rows through stands for what
    it follows."""
    left = list(chosen)
    found = set()
    seen = set()
    while left:
        name = left.pop()
        if name in seen or name not in by_name:
            continue  # a circle, or a stage that does not exist: `graph` says so
        seen.add(name)
        node = by_name[name]
        stage = file.stages[node.index]
        passes = stage.dedupe is not None or (
            stage.filter is not None and file.output.stages is None
        )
        if node.needs and passes:
            left += node.needs
        else:
            found.add(name)
    return tuple(name for name in by_name if name in found)


def _unknown(
    written: Sequence[str], known: Iterable[str], stages: Sequence[StageFile]
) -> Iterator[str]:
    disabled = {stage.name for stage in stages if not stage.enabled}
    for name in written:
        if name not in known:
            near = did_you_mean(name, known, "stages")
            if name in disabled:
                why = "which is not enabled"
            else:
                why = f"which does not exist; {near}"
            yield f"names the stage {name!r}, {why}"

"""AgentCards: YAML front matter and an instruction below it, or one YAML mapping; skills; examples
before a prompt. Type `agent` works; what a card asks for beyond that is refused by naming the
field, or has no effect and is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.errors import (
    Path_,
    Problem,
    UsageError,
    Where,
    any_error,
    did_you_mean,
    listed,
)
from agac.core.types import JSONValue, Params, counted
from agac.spec import paths
from agac.spec.card_examples import Example, card_examples
from agac.spec.card_models import MEMBERS, CardFile, CardKeys, as_agent, model_of
from agac.spec.card_texts import (
    KEEP_A_COPY,
    NOT_FROM_AFAR,
    fact_of_card,
    filled_instruction,
    parts_of_card,
    with_environment,
)
from agac.spec.model_errors import validate
from agac.spec.paths import (
    OutsideProject,
    Refused,
    RemoteContent,
    Unusable,
    home_of,
    inside,
)
from agac.spec.project import ProjectSpec
from agac.spec.project_files import files_in, read_text
from agac.spec.schema_checks import schema_faults
from agac.spec.text_files import PlacedText
from agac.spec.yaml import Document

_YAML = (".yaml", ".yml")
SUFFIXES = (".md", ".markdown", *_YAML)
DEFAULT_SKILLS = (".fast-agent/skills", ".agents/skills", ".claude/skills")
_BRINGS = ("function_tools", "servers", "agents", "skills")


class Skill(NamedTuple):
    """A folder with a SKILL.md."""

    name: str
    description: str
    folder: str
    """Its path relative to the project."""


@dataclass(frozen=True, slots=True)
class Card:
    """An AgentCard as a stage uses it. `instruction` is filled: without placeholders. `keys` are
    its front matter, which stands in `document`, of a planner (`kind`) those of the agent that it
    is; `where`: where those stand that stages give too. `path` is its place, of a remote one that
    of a copy."""

    name: str
    file: str
    instruction: str | None
    params: Mapping[str, Any]
    messages: tuple[Example, ...]
    where: Mapping[str, Where]
    keys: CardFile
    path: Path
    document: Document
    skills: tuple[Skill, ...] = ()
    remote: bool = False
    kind: str = "agent"


def card_names(project: ProjectSpec) -> list[str]:
    """The names under which the agentcards folder's files are found, sorted."""
    folder = project.paths.agentcards
    found = files_in(folder, home_of(project.root))
    return sorted(
        {file.stem for file in found if file.suffix in SUFFIXES and file.name != "SKILL.md"}
    )


def find_card(name: str, project: ProjectSpec) -> tuple[Path | None, str]:
    """The file of the card called `name` (or at that path), or None and a sentence why there is
    none."""
    return project.once((find_card, name), lambda: _found_card(name, project))


def _found_card(name: str, project: ProjectSpec) -> tuple[Path | None, str]:
    if paths.is_reference(name):
        return None, f"{name} is elsewhere; {KEEP_A_COPY}, and name that"
    try:
        found = paths.files_called(name, home_of(project.root), project.paths.agentcards, SUFFIXES)
    except OutsideProject as error:
        return None, str(error)
    if not found:
        folder = project.shown(project.paths.agentcards)
        names = project.once(card_names, lambda: card_names(project))
        return None, f"no agent {name!r}; {did_you_mean(name, names, f'agents in {folder}/')}"
    if found[0].name == "SKILL.md":
        return None, "SKILL.md describes a skill, not an agent"
    return found[0], ""


def member_file(name: str, card: Path, project: ProjectSpec) -> tuple[Path | None, str]:
    """The file of the card that `card` calls `name`: beside it, by its file's name or its own, or
    as `find_card`."""
    folder = card.parent
    by_file, by_own_name = project.once((member_file, folder), lambda: _members_in(folder, project))
    if name in by_file:
        return by_file[name], ""
    found = by_own_name().get(name)
    if found is not None:
        return (found, "")
    return find_card(name, project)


def _members_in(
    folder: Path, project: ProjectSpec
) -> tuple[dict[str, Path], Callable[[], dict[str, Path]]]:
    """The cards of a folder by the names of their files, and by the names that stand in them, for
    which all are read; of several with one name the first."""
    files = files_in(folder, home_of(project.root))
    cards = [path for path in files if path.suffix in SUFFIXES and path.name != "SKILL.md"]

    @cache
    def by_own_name() -> dict[str, Path]:
        named = (
            (str(read_card(path, project, None, trusted=False)[0].name), path)
            for path in reversed(cards)
        )
        return dict(named)

    return {path.stem: path for path in reversed(cards)}, by_own_name


def missing_members(document: Document, card: Path, project: ProjectSpec) -> Iterator[Problem]:
    """The members that a card names and that are not there; for one of which other problems leave
    nothing else."""
    keys = document.data if isinstance(document.data, dict) else {}
    for key, value in ((key, keys.get(key)) for key in MEMBERS):
        listed = enumerate(value) if isinstance(value, list) else ()
        named: list[tuple[Path_, Any]] = [
            ((key,), value),
            *(((key, place), one) for place, one in listed),
        ]
        for path, name in named:
            if isinstance(name, str) and name and (reason := member_file(name, card, project)[1]):
                yield document.problem(path, reason)


def chosen_card(place: Path, name: str | None, root: Path) -> Path:
    """The card in a file or folder that a user typed and that is called `name`, else the only one
    or `default`. Of a folder no link leads out, nor out of the project at `root` where it is one
    of its folders. Raises UsageError."""
    is_ours = place.resolve().is_relative_to(root.resolve())
    base = None
    if place.is_dir():
        base = root if is_ours else place
    found = list[tuple[str, Path, bool]]()
    hidden = set[str]()
    for path in sorted(place.iterdir()) if place.is_dir() else [place]:
        if path.suffix not in SUFFIXES or path.name == "SKILL.md":
            continue
        with suppress(Unusable):
            text = read_text(path, path.name, base)
            keys: Any = parts_of_card(text, path.name, yaml_only=path.suffix in _YAML)[0].data
            called = str(
                (keys.get("name") if isinstance(keys, dict) else None) or path.stem
            ).replace(" ", "_")
            if isinstance(keys, dict) and keys.get("tool_only") is not True:
                found.append((called, path, keys.get("default") is True))
            elif isinstance(keys, dict):
                hidden.add(called)
    able = [one for one in found if name in (None, one[0])]
    chosen = able if len(able) == 1 else [one for one in able if one[2]]
    if len(chosen) != 1:
        what = f"has {counted(len(able), 'agent card')}{f' called {name}' if name else ''}"
        what += (
            " but one with `tool_only: true`, which only other cards ask" if name in hidden else ""
        )
        raise UsageError(
            f"{place} {what}", remedy=f"Name one with --agent: {listed(one[0] for one in found)}."
        )
    return chosen[0][1]


def read_card(
    path: Path, project: ProjectSpec, remote: RemoteContent | None, *, trusted: bool
) -> tuple[CardKeys, Document, PlacedText, list[Problem]]:
    """The keys of a card of any type as far as they are good, with its name, the text below them,
    and what is wrong."""
    if remote is not None:
        return _read_card(path, project, remote, trusted=trusted)
    keys, document, below, problems = project.once(
        (read_card, path), lambda: _read_card(path, project)
    )
    return keys, document, below, [*problems]


def _read_card(
    path: Path, project: ProjectSpec, remote: RemoteContent | None = None, *, trusted: bool = False
) -> tuple[CardKeys, Document, PlacedText, list[Problem]]:
    shown = remote.reference if remote else project.shown(path)
    below = ("", Where(""))
    keys: CardKeys | None = None
    try:
        root = None if remote else home_of(project.root)
        written, below = parts_of_card(
            read_text(path, shown, root), shown, yaml_only=path.suffix in _YAML
        )
        document, problems = with_environment(written, project.env, remote=remote is not None)
        problems += _from_afar(document, trusted=trusted) if remote else ()
        model, hints = model_of(
            document.data.get("type", "agent") if isinstance(document.data, dict) else "agent"
        )
        keys, found = validate(model, document, hints=hints)
        problems += found
    except Unusable as error:
        document = Document(shown, {}, [])
        problems = [error.problem]
    named = {"name": ((keys and keys.name) or path.stem).replace(" ", "_")}
    return (keys or CardFile()).model_copy(update=named), document, below, problems


def load_card(
    path: Path,
    project: ProjectSpec,
    variables: Mapping[str, JSONValue],
    *,
    remote: RemoteContent | None = None,
    trusted: bool = False,
    tools: Iterable[str] = (),
) -> tuple[Card | None, list[Problem]]:
    """The card in `path`, its instruction filled with `variables`, or None and every problem.
    Warnings may come with a card. One that is `remote` gives its instruction, model, parameters
    and servers by their URLs: it reads no variables of the environment, which it could send away,
    and no files, unless it is `trusted`. `tools`: its stage's."""
    keys, document, below, problems = read_card(path, project, remote, trusted=trusted)
    shown = document.shown
    name = str(keys.name)
    place = project.paths.agentcards / f"{name}.md" if remote else path
    kind = keys.type
    keys, words = as_agent(keys)
    if not isinstance(keys, CardFile):
        message = (
            f"a card of type {kind} becomes stages: no agent calls it, and it is not taken "
            "from elsewhere; "
        )
        message = f"{message}name it as the `agent` of a stage"
        return None, [*problems, document.problem(("type",), message)]
    skills, found = (
        read_skills(keys.skills, project, document, path.parent)
        if not remote or trusted
        else ((), [])
    )
    problems += [*found, *_unnamed_skills(keys, project, document)]
    listed = with_skills(None, skills) or ""
    own = {
        "agentName": name,
        "agentType": kind,
        "agentCardPath": shown,
        "agentCardDir": str(Path(shown).parent),
    }
    named = dict.fromkeys(tool.partition(":")[0] for tool in tools)
    if keys.mcp_connect or keys.servers:
        locks = {place: remote.reference if remote else path.stem}
    else:
        locks = {}
    locks |= {project.paths.agentcards / one: one for one in named if one in project.file.mcp}
    fact = partial(fact_of_card, path=path, project=project, remote=remote is not None, locks=locks)
    filling = {**keys.variables, **variables}
    own["agentSkills"] = listed
    instruction, found = filled_instruction(document, below, filling, own, fact)
    problems += found
    instruction = "\n\n".join(filter(None, (words, instruction))) or None
    if listed not in (instruction or ""):
        instruction = with_skills(instruction, skills)
    messages, found = card_examples(
        keys.messages or [], path, project, document.where(("messages",))
    )
    problems += [*found, *_input_faults(keys.tool_input_schema, document)]
    if any_error(problems):
        return None, [*problems, *(() if remote else missing_members(document, path, project))]
    params, places = _params(keys, document)
    own_place = (keys, place, document, skills, remote is not None, kind)
    card = Card(name, shown, instruction, params, messages, places, *own_place)
    return card, [*problems, *_without_effect(keys, document)]


def _params(keys: CardFile, document: Document) -> tuple[dict[str, Any], dict[str, Where]]:
    """The parameters of a card as requests name them, and where its keys stand that a stage gives
    too."""
    given = keys.request_params
    found = given.model_dump(exclude_none=True) | {
        "stop": given.stop_sequences and tuple(given.stop_sequences)
    }
    found["service_tier"] = "priority" if given.service_tier == "fast" else given.service_tier
    names = {key: "stop" if key == "stop_sequences" else key for key in given.model_fields_set}
    if keys.model is not None:
        places = {"model": document.where(("model",))}
    else:
        places = {}
    places |= {name: document.where(("request_params", key)) for key, name in names.items()}
    return {
        key: one for key, one in found.items() if key in Params.__slots__ and one is not None
    }, places


def _from_afar(document: Document, *, trusted: bool) -> Iterator[Problem]:
    data = document.data if isinstance(document.data, dict) else {}
    for key in data.keys() & {"messages", *(() if trusted else _BRINGS)}:
        yield document.problem((key,), NOT_FROM_AFAR, key=True)
    servers = data.get("mcp_connect") if not trusted else None
    for key, one in servers.items() if isinstance(servers, dict) else enumerate(servers or ()):
        # a command may name a URL, too
        if isinstance(one, dict) and not re.match("https?://", str(one.get("target"))):
            yield document.problem(("mcp_connect", key), NOT_FROM_AFAR)
    if re.search(r"[/\\]", str(data.get("name"))):  # the lock of its servers is a file of that name
        yield document.problem(("name",), "a remote card's name holds no / and no \\")


def _without_effect(keys: CardFile, document: Document) -> Iterator[Problem]:
    for key, field in CardFile.model_fields.items():
        effect, without, why = str(field.description).removesuffix(".").partition("Without effect")
        if without and not effect and getattr(keys, key) not in (field.default, "messages"):
            yield Problem(document.where((key,), key=True), f"has no effect{why}", "warning")
    others: list[Path_] = (
        [("request_params", "metadata")] if keys.request_params.metadata is not None else []
    )
    others += [
        ("function_tools", index, "variant")
        for index, one in enumerate(keys.function_tools)
        if one.variant
    ]
    yield from (Problem(document.where(path), "has no effect", "warning") for path in others)


def _input_faults(schema: dict[str, Any] | None, document: Document) -> Iterator[Problem]:
    """What is wrong with the inputs of a card that others call."""
    at = ("tool_input_schema",)
    if schema is None:
        return
    if schema.get("type") != "object":
        yield document.problem(
            at, "must have `type: object`: a tool is given its arguments by name"
        )
    for path, message in schema_faults(schema):
        yield document.problem((*at, *path), message)
    known = schema.get("properties", {})
    needed = schema.get("required", [])
    for name in needed if isinstance(known, dict) and isinstance(needed, list) else ():
        if name not in known:
            yield document.problem((*at, "required"), f"names {name!r}, which properties has not")
        elif not (isinstance(known[name], dict) and known[name].get("description")):
            where = document.where((*at, "properties", str(name)))
            yield Problem(
                where, "has no description, by which a model knows what to give", "warning"
            )


# Skills: folders that a model may read, of which it is told names and descriptions.

_LISTED = "Skills that you may read with the tool `read_skill`, where one of them helps:\n{}"


def with_skills(system: str | None, skills: Sequence[Skill]) -> str | None:
    """A system message with the names and descriptions of skills at its end."""
    if skills:
        listed = _LISTED.format("\n".join(f"- {one.name}: {one.description}" for one in skills))
    else:
        listed = None
    if system and listed:
        return f"{system}\n\n{listed}"
    return listed or system


def _unnamed_skills(keys: CardFile, project: ProjectSpec, document: Document) -> Iterator[Problem]:
    """A warning where other programs would find skills."""
    there = next(
        (folder for folder in DEFAULT_SKILLS if (home_of(project.root) / folder).is_dir()), None
    )
    if (
        there
        and "skills" not in keys.model_fields_set
        and (keys.function_tools or keys.mcp_connect or keys.servers)
    ):
        message = (
            f"a run reads no skills that a card does not name; write `skills: {there}`, or "
            "`skills: []`"
        )
        yield Problem(document.where(()), message, "warning")


def read_skills(
    names: Sequence[str], project: ProjectSpec, document: Document, base: Path, at: Path_ = ()
) -> tuple[tuple[Skill, ...], list[Problem]]:
    """The skills of these folders, which `document` names, beside `base` or in the project, sorted
    by name; a later one takes the place of an earlier one."""
    home = home_of(project.root)
    found = dict[str, Skill]()
    problems = list[Problem]()
    for index, name in enumerate(names):
        where = document.where((*at, "skills", index))
        try:
            beside = inside(home, name, base=base)
            folder = beside if beside.is_dir() else inside(home, name)
            own = folder / "SKILL.md"
            files = [own] if own.is_file() else files_in(folder, home, "*/SKILL.md")
            if not files:
                raise Refused(f"{name!r} holds no skills; a skill is a folder with a file SKILL.md")
            for skill in (_skill(file, project) for file in files):
                before = found.get(skill.name.lower())
                if before is not None:
                    message = (
                        f"the skill {skill.name!r} of {skill.folder} takes the place of "
                        f"that of {before.folder}"
                    )
                    problems.append(Problem(where, message, "warning"))
                found[skill.name.lower()] = skill
        except Refused as error:
            problems.append(Problem(where, str(error)))
        except Unusable as error:
            problems.append(error.problem)
    return tuple(sorted(found.values())), problems


def _skill(file: Path, project: ProjectSpec) -> Skill:
    shown = project.shown(file)
    document, _ = parts_of_card(
        read_text(file, shown, home_of(project.root)), shown, yaml_only=False
    )
    data: Any = document.data
    if document.problems:
        raise Unusable(document.problems[0])
    for key in ("name", "description"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise Unusable(
                document.problem(
                    (), f"a skill needs a {key}: write `{key}: …` into its front matter"
                )
            )
    return Skill(data["name"], " ".join(data["description"].split()), project.shown(file.parent))

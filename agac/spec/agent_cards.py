"""AgentCards: YAML front matter and an instruction below it, or one YAML mapping. Type `agent`
works; what a card asks for beyond that is refused by the name of its field, or has no effect and is
reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    RemoteContent,
    Unusable,
    home_of,
)
from agac.spec.project import ProjectSpec
from agac.spec.project_files import files_in, read_text
from agac.spec.schema_checks import schema_faults
from agac.spec.skills import Skill, read_skills, unnamed_skills, with_skills
from agac.spec.text_files import PlacedText
from agac.spec.yaml import Document

_YAML = (".yaml", ".yml")
SUFFIXES = (".md", ".markdown", *_YAML)
_BRINGS = ("function_tools", "servers", "agents", "skills")


@dataclass(frozen=True, slots=True)
class Card:
    """An AgentCard as a stage uses it."""

    name: str
    file: str
    """The path that users are shown."""
    instruction: str | None
    """The instruction, without placeholders."""
    params: Mapping[str, Any]
    messages: tuple[Example, ...]
    where: Mapping[str, Where]
    """The places of the keys that stages have too."""
    keys: CardFile
    """Its front matter; that of a planner (`kind`) as the agent that it is."""
    path: Path
    """Its file; of a remote card the place of a copy."""
    document: Document
    skills: tuple[Skill, ...] = ()
    remote: bool = False
    kind: str = "agent"


def card_names(project: ProjectSpec) -> list[str]:
    """Returns the names by which the files of the agentcards folder are found, sorted."""
    folder = project.paths.agentcards
    files = files_in(folder, home_of(project.root))
    return sorted(
        {file.stem for file in files if file.suffix in SUFFIXES and file.name != "SKILL.md"}
    )


def find_card(name: str, project: ProjectSpec) -> tuple[Path | None, str]:
    """Finds the file of the card called `name` (or at that path), or None and a sentence why there
    is none."""
    return project.once((find_card, name), lambda: _found_card(name, project))


def _found_card(name: str, project: ProjectSpec) -> tuple[Path | None, str]:
    if paths.is_reference(name):
        return None, f"{name} is elsewhere; {KEEP_A_COPY}, and name that"
    try:
        files = paths.files_called(name, home_of(project.root), project.paths.agentcards, SUFFIXES)
    except OutsideProject as error:
        return None, str(error)
    if not files:
        folder = project.shown(project.paths.agentcards)
        names = project.once(card_names, lambda: card_names(project))
        return None, f"no agent {name!r}; {did_you_mean(name, names, f'agents in {folder}/')}"
    if files[0].name == "SKILL.md":
        return None, "SKILL.md describes a skill, not an agent"
    return files[0], ""


def member_file(name: str, card: Path, project: ProjectSpec) -> tuple[Path | None, str]:
    """Finds the file of the card that `card` calls `name`: in the same folder, by its file's name
    or its own, or else as `find_card`."""
    folder = card.parent
    by_file, by_own_name = project.once((member_file, folder), lambda: _members_in(folder, project))
    if name in by_file:
        return by_file[name], ""
    file = by_own_name().get(name)
    if file is not None:
        return file, ""
    return find_card(name, project)


def _members_in(
    folder: Path, project: ProjectSpec
) -> tuple[dict[str, Path], Callable[[], dict[str, Path]]]:
    """Returns the cards of a folder by the names of their files, and a function that reads them
    all and gives them by the names in them. The first of several with one name counts."""
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
    """Yields the members that a card names and that do not exist, for a card with other
    problems."""
    keys = document.data if isinstance(document.data, dict) else {}
    for key in MEMBERS:
        value = keys.get(key)
        named: list[tuple[Path_, Any]] = [((key,), value)]
        if isinstance(value, list):
            named += [((key, index), member) for index, member in enumerate(value)]
        for path, name in named:
            reason = member_file(name, card, project)[1] if isinstance(name, str) and name else ""
            if reason:
                yield document.problem(path, reason)


class _NamedCard(NamedTuple):
    """A card in a folder, by what its file says."""

    name: str
    path: Path
    is_default: bool
    is_tool: bool
    """True if only other cards may call it."""


def chosen_card(place: Path, name: str | None, root: Path) -> Path:
    """Finds the card called `name`, else the only one or `default`, in a file or folder that a user
    typed. No link leads out of a folder, nor out of the project at `root` if it is one of its
    folders. Raises UsageError."""
    cards = list(_cards_at(place, root))
    usable = [card for card in cards if not card.is_tool]
    matching = [card for card in usable if name in (None, card.name)]
    chosen = matching
    if len(matching) != 1:
        chosen = [card for card in matching if card.is_default]
    if len(chosen) == 1:
        return chosen[0].path
    what = f"has {counted(len(matching), 'agent card')}"
    if name:
        what += f" called {name}"
    if any(card.is_tool and card.name == name for card in cards):
        what += " but one with `tool_only: true`, which only other cards ask"
    remedy = f"Name one with --agent: {listed(card.name for card in usable)}."
    raise UsageError(f"{place} {what}", remedy=remedy)


def _cards_at(place: Path, root: Path) -> Iterator[_NamedCard]:
    """Yields the cards of a file or folder that can be read."""
    base = None
    files = [place]
    if place.is_dir():
        base = root if place.resolve().is_relative_to(root.resolve()) else place
        files = sorted(place.iterdir())
    for path in files:
        if path.suffix not in SUFFIXES or path.name == "SKILL.md":
            continue
        with suppress(Unusable):
            text = read_text(path, path.name, base)
            keys: Any = parts_of_card(text, path.name, yaml_only=path.suffix in _YAML)[0].data
            if isinstance(keys, dict):
                name = str(keys.get("name") or path.stem).replace(" ", "_")
                is_tool = keys.get("tool_only") is True
                yield _NamedCard(name, path, keys.get("default") is True, is_tool)


def read_card(
    path: Path, project: ProjectSpec, remote: RemoteContent | None, *, trusted: bool
) -> tuple[CardKeys, Document, PlacedText, list[Problem]]:
    """Reads a card of any type: its keys as far as they are good, with its name, the text below
    them, and what is wrong."""
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
        text = read_text(path, shown, root)
        written, below = parts_of_card(text, shown, yaml_only=path.suffix in _YAML)
        document, problems = with_environment(written, project.env, remote=remote is not None)
        problems += _from_afar(document, trusted=trusted) if remote else ()
        kind = document.data.get("type", "agent") if isinstance(document.data, dict) else "agent"
        model, hints = model_of(kind)
        keys, faults = validate(model, document, hints=hints)
        problems += faults
    except Unusable as error:
        document = Document(shown, {}, [])
        problems = [error.problem]
    name = ((keys and keys.name) or path.stem).replace(" ", "_")
    return (keys or CardFile()).model_copy(update={"name": name}), document, below, problems


def load_card(
    path: Path,
    project: ProjectSpec,
    variables: Mapping[str, JSONValue],
    *,
    remote: RemoteContent | None = None,
    trusted: bool = False,
    tools: Iterable[str] = (),
) -> tuple[Card | None, list[Problem]]:
    """Returns the card in `path`, its instruction filled with `variables`, or None and every
    problem. Warnings may come with a card. One that is `remote` gives its instruction, model,
    parameters and servers by their URLs: it reads no variables of the environment, which it could
    send away, and no files, unless it is `trusted`. `tools` are its stage's."""
    keys, document, below, problems = read_card(path, project, remote, trusted=trusted)
    kind = keys.type
    keys, words = as_agent(keys)
    if not isinstance(keys, CardFile):
        message = (
            f"a card of type {kind} becomes stages: no agent calls it, and it is not taken "
            "from elsewhere; name it as the `agent` of a stage"
        )
        return None, [*problems, document.problem(("type",), message)]
    skills: tuple[Skill, ...] = ()
    if not remote or trusted:
        skills, faults = read_skills(keys.skills, project, document, path.parent)
        problems += faults
    problems += unnamed_skills(keys, project, document)
    listed_skills = with_skills(None, skills) or ""
    facts = _own_facts(str(keys.name), kind, document.shown, listed_skills)
    locks = _locks_of(keys, path, project, remote, tools)
    fact = partial(fact_of_card, path=path, project=project, remote=remote is not None, locks=locks)
    filling = {**keys.variables, **variables}
    instruction, faults = filled_instruction(document, below, filling, facts, fact)
    problems += faults
    instruction = "\n\n".join(filter(None, (words, instruction))) or None
    if listed_skills not in (instruction or ""):
        instruction = with_skills(instruction, skills)
    at = document.where(("messages",))
    messages, faults = card_examples(keys.messages or [], path, project, at)
    problems += [*faults, *_input_faults(keys.tool_input_schema, document)]
    if any_error(problems):
        return None, [*problems, *(() if remote else missing_members(document, path, project))]
    params, places = _params(keys, document)
    card = Card(
        name=str(keys.name),
        file=document.shown,
        instruction=instruction,
        params=params,
        messages=messages,
        where=places,
        keys=keys,
        path=_place_of(keys, path, project, remote),
        document=document,
        skills=skills,
        remote=remote is not None,
        kind=kind,
    )
    return card, [*problems, *_without_effect(keys, document)]


def _place_of(
    keys: CardFile, path: Path, project: ProjectSpec, remote: RemoteContent | None
) -> Path:
    """Returns the path of a card: of a remote one that of a copy in the project."""
    return project.paths.agentcards / f"{keys.name}.md" if remote else path


def _own_facts(name: str, kind: str, shown: str, skills: str) -> dict[str, str]:
    """Returns the placeholders of an instruction that are about its card."""
    return {
        "agentName": name,
        "agentType": kind,
        "agentCardPath": shown,
        "agentCardDir": str(Path(shown).parent),
        "agentSkills": skills,
    }


def _locks_of(
    keys: CardFile,
    path: Path,
    project: ProjectSpec,
    remote: RemoteContent | None,
    tools: Iterable[str],
) -> dict[Path, str]:
    """Returns the cards and servers whose lock files describe what a card may call, each with its
    name for `agac card lock`."""
    locks: dict[Path, str] = {}
    if keys.mcp_connect or keys.servers:
        name = remote.reference if remote else path.stem
        locks[_place_of(keys, path, project, remote)] = name
    for tool in tools:
        server = tool.partition(":")[0]
        if server in project.file.mcp:
            locks[project.paths.agentcards / server] = server
    return locks


def _params(keys: CardFile, document: Document) -> tuple[dict[str, Any], dict[str, Where]]:
    """Returns the parameters of a card as requests name them, and the places of its keys that a
    stage has too."""
    written = keys.request_params
    values = written.model_dump(exclude_none=True)
    values["stop"] = written.stop_sequences and tuple(written.stop_sequences)
    values["service_tier"] = "priority" if written.service_tier == "fast" else written.service_tier
    params = {
        key: value for key, value in values.items() if key in Params.__slots__ and value is not None
    }
    places = {}
    if keys.model is not None:
        places["model"] = document.where(("model",))
    for key in written.model_fields_set:
        name = "stop" if key == "stop_sequences" else key
        places[name] = document.where(("request_params", key))
    return params, places


def _from_afar(document: Document, *, trusted: bool) -> Iterator[Problem]:
    """Yields what a remote card may not bring."""
    data = document.data if isinstance(document.data, dict) else {}
    for key in data.keys() & {"messages", *(() if trusted else _BRINGS)}:
        yield document.problem((key,), NOT_FROM_AFAR, key=True)
    servers = None if trusted else data.get("mcp_connect")
    for key, server in servers.items() if isinstance(servers, dict) else enumerate(servers or ()):
        # a command may name a URL, too
        if isinstance(server, dict) and not re.match("https?://", str(server.get("target"))):
            yield document.problem(("mcp_connect", key), NOT_FROM_AFAR)
    if re.search(r"[/\\]", str(data.get("name"))):  # the lock of its servers is a file of that name
        yield document.problem(("name",), "a remote card's name holds no / and no \\")


def _without_effect(keys: CardFile, document: Document) -> Iterator[Problem]:
    """Yields a warning for each key that has no effect."""
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
    """Yields what is wrong with the inputs of a card that others call."""
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

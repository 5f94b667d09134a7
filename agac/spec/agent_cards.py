"""AgentCards: YAML front matter and an instruction below it, or one YAML mapping; skills; examples
before a prompt. Type `agent` works; what a card asks for beyond that is refused by naming the
field, or has no effect and is said."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

from agac.core.errors import (
    Path_,
    Problem,
    UsageError,
    Where,
    any_error,
    did_you_mean,
    key_path,
    listed,
)
from agac.core.keys import snapshot
from agac.core.types import JSONValue, Params, counted
from agac.spec import paths
from agac.spec.card_models import MEMBERS, CardFile, CardKeys, as_agent, model_of
from agac.spec.json_schema import schema_faults
from agac.spec.mcp_lock import lock_file, read_lock
from agac.spec.models import MessageFile
from agac.spec.paths import (
    UNTRUSTED,
    OutsideProject,
    Refused,
    RemoteContent,
    Unusable,
    home_of,
    inside,
    is_there,
)
from agac.spec.project_files import files_in, read_text
from agac.spec.templates import (
    PlacedText,
    Syntax,
    braced,
    compile_template,
    fill,
    literal_text,
    sound_template,
)
from agac.spec.validation import described, validate
from agac.spec.workflow import Example, ProjectSpec, Speaker
from agac.spec.yaml import Document, Unresolved, expand, parse_yaml

_YAML = (".yaml", ".yml")
SUFFIXES = (".md", ".markdown", *_YAML)
DEFAULT_SKILLS = (".fast-agent/skills", ".agents/skills", ".claude/skills")
_KEEP_A_COPY = "read the card, and keep a copy of it in the project"
_BRINGS = ("function_tools", "servers", "agents", "skills")
_NOT_FROM_AFAR = "a remote card brings no functions, agents, servers, commands or files"
_NOT_FROM_AFAR += f"; {_KEEP_A_COPY}, or give --trust-card"
_FENCE = "---"
_SYSTEM = "---SYSTEM"
_SUBAGENTS = re.compile(
    r"(?ms)^[ \t]*(<!--\s*)?fast-agent-subagents(?(1)(?![\w-]).*?-->)[ \t]*(\n|\Z)"
)
_NO_SUBAGENTS = (
    "`fast-agent-subagents` is left out: no model makes agents in a run; name cards as `agents`"
)


class Skill(NamedTuple):
    """A folder with a SKILL.md; `folder` is relative to the project."""

    name: str
    description: str
    folder: str


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
        return None, f"{name} is elsewhere; {_KEEP_A_COPY}, and name that"
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
            keys: Any = _taken_apart(text, path.name, yaml_only=path.suffix in _YAML)[0].data
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
        written, below = _taken_apart(
            read_text(path, shown, root), shown, yaml_only=path.suffix in _YAML
        )
        document, problems = _expanded(written, project.env, remote=remote is not None)
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
    fact = partial(_fact, path=path, project=project, remote=remote is not None, locks=locks)
    filling = {**keys.variables, **variables}
    instruction, found = _instruction(document, below, filling, own | {"agentSkills": listed}, fact)
    problems += found
    instruction = "\n\n".join(filter(None, (words, instruction))) or None
    if listed not in (instruction or ""):
        instruction = with_skills(instruction, skills)
    messages, found = _card_examples(
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
        yield document.problem((key,), _NOT_FROM_AFAR, key=True)
    servers = data.get("mcp_connect") if not trusted else None
    for key, one in servers.items() if isinstance(servers, dict) else enumerate(servers or ()):
        # a command may name a URL, too
        if isinstance(one, dict) and not re.match("https?://", str(one.get("target"))):
            yield document.problem(("mcp_connect", key), _NOT_FROM_AFAR)
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


def card_document(text: str, shown: str) -> Document:
    """The keys of a card with this text, or of a skill. Raises Unusable."""
    return _taken_apart(text, shown, yaml_only=shown.endswith(paths.YAML_SUFFIXES))[0]


def _taken_apart(text: str, shown: str, *, yaml_only: bool) -> tuple[Document, PlacedText]:
    """The keys of a card, and the instruction below them, which a card that is all YAML has not.
    Raises Unusable."""
    below = ("", Where(shown, 1, 1))
    if yaml_only:
        document = parse_yaml(text, shown)
        what = "a card is a mapping with name, instruction, model"
    else:
        lines = text.split("\n")
        fences = [index for index, line in enumerate(lines) if line.rstrip() == _FENCE]
        start = next((index for index, line in enumerate(lines) if line.strip()), 0)
        if start not in fences:
            message = (
                "no front matter; a card starts with a line ---, its keys (model: …), and "
                "another line ---"
            )
            raise Unusable(Problem(Where(shown, start + 1, 1), message))
        if len(fences) < 2:
            message = "the front matter is never closed; write a line --- below it"
            raise Unusable(Problem(Where(shown, start + 1, 1), message))
        document = parse_yaml("\n".join(lines[start + 1 : fences[1]]), shown, first_line=start + 2)
        body = fences[1] + 1
        while body < len(lines) and lines[body].rstrip() in ("", _SYSTEM):
            body += 1
        below = ("\n".join(lines[body:]).rstrip(), Where(shown, body + 1, 1))
        what = "the front matter is a mapping with name, model and the like"
    if document.empty:
        document = Document(shown, {}, [])
    if isinstance(document.data, dict) or document.problems:
        return document, below
    raise Unusable(
        document.problem((), f"expected a mapping, got {described(document.data)}; {what}")
    )


def _expanded(
    document: Document, env: Mapping[str, str], *, remote: bool
) -> tuple[Document, list[Problem]]:
    """The document with `${NAME}` replaced in every text of it; refused in one that is `remote`."""
    problems = list(document.problems)

    # so that what a variable holds is never read as a placeholder of the instruction
    def literal(text: str) -> str:
        return literal_text(text).replace("{{", "\\{{")

    escaped: Any
    if isinstance(env, Unresolved):
        escaped = Unresolved(literal)
    else:
        escaped = {name: literal(env[name]) for name in env}

    def walk(value: Any, path: Path_) -> Any:
        if isinstance(value, dict):
            return {key: walk(inner, (*path, key)) for key, inner in value.items()}
        if isinstance(value, list):
            return [walk(inner, (*path, index)) for index, inner in enumerate(value)]
        # what may hold a secret is looked up by who sends it, and stays as it is written
        if not isinstance(value, str) or (path[0] in ("mcp_connect", "api_key") and not remote):
            return value
        if remote and path != ("instruction",) and "${" in value:
            problems.append(
                document.problem(
                    path, f"a remote card reads no environment variables; {_KEEP_A_COPY}"
                )
            )
        if remote:
            return value
        text, missing = expand(value, escaped if path == ("instruction",) else env)
        for name in dict.fromkeys(missing):
            remedy = f"set it, add it to .env, or write ${{{name}:default}}"
            problems.append(
                document.problem(path, f"the environment variable {name} is not set; {remedy}")
            )
        return text

    data = walk(document.data, ())
    return Document(document.shown, data, problems, document.root), problems


def _instruction(
    document: Document,
    below: PlacedText,
    variables: Mapping[str, JSONValue],
    own: Mapping[str, str],
    fact: Callable[[str, Where], tuple[str | None, str]],
) -> tuple[str | None, list[Problem]]:
    text, where = below
    if isinstance(document.data, dict):
        written = document.data.get("instruction")
    else:
        written = None
    if written is not None and text:
        message = (
            "the instruction is given twice: here and below the front matter; keep one of them"
        )
        return None, [document.problem(("instruction",), message, key=True)]
    if isinstance(written, str):
        text = written
        where = document.where(("instruction",))
    if not text:
        return None, []
    history = re.search(r"(?m)^---(USER|ASSISTANT|RESOURCE)\b.*$", text)
    if history is not None:
        line = (where.line or 1) + text.count("\n", 0, history.start())
        remedy = "put the messages into a file of their own and name it as `messages`"
        message = f"---{history[1]} blocks in the instruction are not supported; {remedy}"
        return None, [Problem(Where(document.shown, line, 1), message)]
    values = dict(own)
    problems = list[Problem]()
    for name, place in braced(text, where):
        if name in own or name in variables:
            continue
        value: str | None = ""
        try:
            value, warning = fact(name, place)
            problems += [Problem(place, f"{{{{{name}}}}} {warning}", "warning")] if warning else []
        except Unusable as error:
            problems.append(error.problem)
        except (Refused, UsageError) as error:
            problems.append(
                Problem(
                    place, f"{{{{{name}}}}}: {error}. {getattr(error, 'remedy', '')}".rstrip(". ")
                )
            )
        values |= {} if value is None else {name: value}
    filled, more = fill((text, where), variables, values)
    left, marks = _SUBAGENTS.subn("", filled or "")
    problems += [Problem(where, _NO_SUBAGENTS, "warning")] if marks else []
    return None if any_error(problems) else left, [*problems, *more]


# What stands for `{{name}}` in instructions beyond variables, and skills: folders that a model may
# read, of which it is told names and descriptions.

_LISTED = "Skills that you may read with the tool `read_skill`, where one of them helps:\n{}"
_HOST = {"hostPlatform": platform.platform, "pythonVer": platform.python_version}


def _fact(
    name: str,
    where: Where,
    path: Path,
    project: ProjectSpec,
    remote: bool,
    locks: Mapping[Path, str],
) -> tuple[str | None, str]:
    """What a placeholder of the card at `path` stands for, if anything; and a warning. `locks`:
    beside what the locks of its servers stand, and what has them by name. Raises Refused,
    Unusable, UsageError."""
    kind, colon, rest = name.partition(":")
    home = home_of(project.root)
    if colon and kind in ("file", "file_silent"):
        if remote:
            raise Refused(_NOT_FROM_AFAR)
        beside = inside(home, rest.strip(), base=path.parent)
        if (
            not is_there(beside)
            and kind == "file_silent"
            and not is_there(inside(home, rest.strip()))
        ):
            return "", ""
        file = paths.existing_file(
            rest.strip(), home, where, base=path.parent if is_there(beside) else None
        )
        return read_text(file, project.shown(file), home).rstrip("\n"), ""
    if colon and kind == "url":
        if remote and rest.strip().startswith("file:"):
            raise Refused(_NOT_FROM_AFAR)
        [found] = project.fetch(rest.strip(), UNTRUSTED if remote else "text of a card")
        return read_text(found.path, rest.strip(), None), ""
    if name == "serverInstructions":
        files = ((lock_file(one), f"agac card lock {known_as}") for one, known_as in locks.items())
        known = [
            one
            for file, how in files
            for one in read_lock(file, project.shown(file), how, home).values()
        ]
        return "\n\n".join(one.instructions for one in known if one.instructions), ""
    if name in ("model_specific", "modelReferences", "agentInternalResources"):
        return "", "is empty here; remove it"
    if name == "currentDate":
        epoch = project.env.get("SOURCE_DATE_EPOCH", "")  # as reproducible-builds.org has it
        if epoch.isdecimal():
            today = datetime.fromtimestamp(int(epoch), UTC)
        else:
            today = datetime.now().astimezone()
        date = f"{today.day} {today:%B} {today.year}"
        remedy = f"to keep one, write `vars: {{currentDate: {date}}}` into the workflow"
        return (
            date,
            f"makes other requests every day, and no answer of another day is taken; {remedy}",
        )
    if name in _HOST or name == "workspaceRoot":
        value = _HOST[name]() if name in _HOST else str(project.root)
        return value, "makes other requests on every machine, which share no answers and no cache"
    return None, ""


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
    document, _ = _taken_apart(
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


# Messages that stand before a prompt as examples: those of a stage, and those of the files that a
# card names.


class _Turn(NamedTuple):
    """Who speaks, where that stands, and what is said."""

    role: str
    where: Where
    text: str


def stage_examples(
    written: Sequence[MessageFile], document: Document, path: Path_, syntax: Syntax = "dollar"
) -> tuple[tuple[Example, ...], list[Problem]]:
    """The messages of a stage, and what is wrong with them. A mapping or list is JSON, without
    placeholders."""
    found: list[Example] = []
    problems: list[Problem] = []
    turns: list[_Turn] = []
    for index, message in enumerate(written):
        at = (*path, index, "content")
        content = message.content
        said = isinstance(content, str)
        text = content if said else literal_text(snapshot(content))
        template, more = compile_template(text, document.where(at), syntax if said else "dollar")
        problems += more
        turns.append(_Turn(message.role, document.where((*path, index)), text))
        if template is not None:
            found.append(Example(message.role, template, key_path(at)))
    return tuple(found), [*problems, *_order_problems(turns)]


def _order_problems(turns: Sequence[_Turn]) -> list[Problem]:
    """Why these messages cannot stand before a prompt, which is the user's turn."""
    for number, one in enumerate(turns):
        due = "assistant" if number % 2 else "user"
        if one.role != due:  # from here on every message would be out of turn
            if not number:
                before = "begins with what a user says"
            else:
                before = f"goes on with the {due} here"
            return [
                Problem(one.where, f"a dialogue {before}, but this is the {one.role}'s message")
            ]
    if turns and turns[-1].role == "user":
        message = (
            "the last message is the user's, and so is the prompt; end with the assistant's answer"
        )
        return [Problem(turns[-1].where, message)]
    return []


def _card_examples(
    names: Sequence[str], card: Path, project: ProjectSpec, where: Where
) -> tuple[tuple[Example, ...], list[Problem]]:
    """The messages of the files that a card names, one file after the other; paths are relative to
    the card. A file is JSON as `{"messages": [{"role": …, "content": …}]}`, or text with lines
    `---USER` and `---ASSISTANT` between the messages. They are sent as they stand: nothing in them
    is a placeholder."""
    turns: list[_Turn] = []
    problems: list[Problem] = []
    for name in names:
        try:
            path = paths.existing_file(name, home_of(project.root), where, base=card.parent)
            shown = project.shown(path)
            text = read_text(path, shown, home_of(project.root))
        except Unusable as error:
            problems.append(error.problem)
            continue
        read, found = (
            _json_turns(text, shown) if path.suffix == ".json" else _text_turns(text, shown)
        )
        turns += read
        problems += found
    said = [(cast("Speaker", one.role), literal_text(one.text), one.where) for one in turns]
    examples = tuple(
        Example(role, sound_template(text, where), where.path) for role, text, where in said
    )
    return examples, problems or _order_problems(turns)


def _text_turns(text: str, shown: str) -> tuple[list[_Turn], list[Problem]]:
    marks = list(re.finditer(r"(?m)^---(USER|ASSISTANT|RESOURCE)[ \t]*$", text))
    parts = [("user", 0, text[: marks[0].start()] if marks else text)]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    parts += [
        (mark[1].lower(), mark.start(), text[mark.end() : end])
        for mark, end in zip(marks, ends, strict=False)
    ]
    read: list[_Turn] = []
    problems: list[Problem] = []
    for number, (role, start, body) in enumerate(parts):
        where = Where(shown, text.count("\n", 0, start) + 1, 1)
        if role == "resource":
            problems.append(
                Problem(
                    where, "---RESOURCE blocks are not supported; write their text into a message"
                )
            )
        elif body.strip():
            read.append(_Turn(role, where, body.strip("\n")))
        elif number:
            problems.append(
                Problem(
                    where, f"this ---{role.upper()} message is empty; write its text below the line"
                )
            )
    if not read and not problems:
        problems.append(
            Problem(Where(shown), "is empty; write messages under lines ---USER and ---ASSISTANT")
        )
    return read, problems


def _json_turns(text: str, shown: str) -> tuple[list[_Turn], list[Problem]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        column = getattr(error, "colno", None)
        return [], [
            Problem(Where(shown, line, column), f"is not JSON: {getattr(error, 'msg', error)}")
        ]
    messages = data.get("messages") if isinstance(data, dict) else None
    if not isinstance(messages, list) or not messages:
        form = '{"messages": [{"role": "user", "content": "…"}, …]}'
        return [], [Problem(Where(shown), f"holds no messages; write {form}")]
    read: list[_Turn] = []
    problems: list[Problem] = []
    for index, one in enumerate(messages):
        where = Where(shown, path=f"messages[{index}]")
        role = one.get("role") if isinstance(one, dict) else None
        if role not in ("user", "assistant"):
            message = (
                "role is user or assistant; what a system message says is the card's instruction"
            )
        elif any(one.get(key) for key in ("tool_calls", "tool_results")):
            message = "holds calls of tools, which are not supported; write what was said"
        elif (said := _said(one.get("content"))).strip():
            read.append(_Turn(role, where, said))
            continue
        else:
            message = "content is text, or a list of parts of type text, and not empty"
        problems.append(Problem(where, message))
    return read, problems


def _said(content: Any) -> str:
    """The text of a message's content, empty where it holds anything else."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [
        part["text"]
        for part in parts
        if isinstance(part, dict) and part.get("type") == "text" and "text" in part
    ]
    if len(texts) == len(parts) and all(isinstance(text, str) for text in texts):
        return "".join(texts)
    return ""

"""Takes the text of a card apart, and fills its instruction: variables of the environment, files,
and facts of the project and the machine."""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from agac.core.errors import Path_, Problem, UsageError, Where, any_error
from agac.core.types import JSONValue
from agac.spec import paths
from agac.spec.instructions import braced, fill
from agac.spec.mcp_lock import lock_file, read_lock
from agac.spec.model_errors import described
from agac.spec.paths import UNTRUSTED, Refused, Unusable, home_of, inside, is_there
from agac.spec.project import ProjectSpec
from agac.spec.project_files import read_text
from agac.spec.templates import literal_text
from agac.spec.text_files import PlacedText
from agac.spec.yaml import Document, Unresolved, expand, parse_yaml

KEEP_A_COPY = "read the card, and keep a copy of it in the project"
NOT_FROM_AFAR = "a remote card brings no functions, agents, servers, commands or files"
NOT_FROM_AFAR += f"; {KEEP_A_COPY}, or give --trust-card"


_FENCE = "---"
_SYSTEM = "---SYSTEM"
_SUBAGENTS = re.compile(
    r"(?ms)^[ \t]*(<!--\s*)?fast-agent-subagents(?(1)(?![\w-]).*?-->)[ \t]*(\n|\Z)"
)
_NO_SUBAGENTS = (
    "`fast-agent-subagents` is left out: no model makes agents in a run; name cards as `agents`"
)
_HOST = {"hostPlatform": platform.platform, "pythonVer": platform.python_version}


def card_document(text: str, shown: str) -> Document:
    """Returns the keys of a card with this text, or of a skill. Raises Unusable."""
    return parts_of_card(text, shown, yaml_only=shown.endswith(paths.YAML_SUFFIXES))[0]


def parts_of_card(text: str, shown: str, *, yaml_only: bool) -> tuple[Document, PlacedText]:
    """Returns the keys of a card, and the instruction below them, which a card that is all YAML
    does not have. Raises Unusable."""
    if yaml_only:
        document = parse_yaml(text, shown)
        below = ("", Where(shown, 1, 1))
        form = "a card is a mapping with name, instruction, model"
    else:
        document, below = _front_matter(text, shown)
        form = "the front matter is a mapping with name, model and the like"
    if document.empty:
        document = Document(shown, {}, [])
    if isinstance(document.data, dict) or document.problems:
        return document, below
    message = f"expected a mapping, got {described(document.data)}; {form}"
    raise Unusable(document.problem((), message))


def _front_matter(text: str, shown: str) -> tuple[Document, PlacedText]:
    """Splits the text of a card into its front matter and the instruction below. Raises
    Unusable."""
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
    return document, ("\n".join(lines[body:]).rstrip(), Where(shown, body + 1, 1))


def _with_texts(value: Any, path: Path_, text_of: Callable[[str, Path_], str]) -> Any:
    """Copies a value, with every text in it replaced by what `text_of` makes of it and its
    path."""
    if isinstance(value, dict):
        return {key: _with_texts(inner, (*path, key), text_of) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_texts(inner, (*path, n), text_of) for n, inner in enumerate(value)]
    return text_of(value, path) if isinstance(value, str) else value


def with_environment(
    document: Document, env: Mapping[str, str], *, remote: bool
) -> tuple[Document, list[Problem]]:
    """Replaces `${NAME}` in every text of the document; refuses it in one that is `remote`."""
    problems = list(document.problems)

    # so that what a variable holds is never read as a placeholder of the instruction
    def literal(text: str) -> str:
        return literal_text(text).replace("{{", "\\{{")

    escaped: Any
    if isinstance(env, Unresolved):
        escaped = Unresolved(literal)
    else:
        escaped = {name: literal(env[name]) for name in env}

    def text_of(value: str, path: Path_) -> str:
        if remote:
            if path != ("instruction",) and "${" in value:
                message = f"a remote card reads no environment variables; {KEEP_A_COPY}"
                problems.append(document.problem(path, message))
            return value
        # what may hold a secret is looked up by who sends it, and stays as it is written
        if path[0] in ("mcp_connect", "api_key"):
            return value
        text, missing = expand(value, escaped if path == ("instruction",) else env)
        for name in dict.fromkeys(missing):
            remedy = f"set it, add it to .env, or write ${{{name}:default}}"
            message = f"the environment variable {name} is not set; {remedy}"
            problems.append(document.problem(path, message))
        return text

    data = _with_texts(document.data, (), text_of)
    return Document(document.shown, data, problems, document.root), problems


def filled_instruction(
    document: Document,
    below: PlacedText,
    variables: Mapping[str, JSONValue],
    own: Mapping[str, str],
    fact: Callable[[str, Where], tuple[str | None, str]],
) -> tuple[str | None, list[Problem]]:
    """Fills the instruction of a card, which is a key of the document or the text `below` it, with
    the variables, the card's `own` facts, and those that `fact` finds. Returns None if there is
    none, or something is wrong with it."""
    written = document.data.get("instruction") if isinstance(document.data, dict) else None
    if written is not None and below[0]:
        message = (
            "the instruction is given twice: here and below the front matter; keep one of them"
        )
        return None, [document.problem(("instruction",), message, key=True)]
    source = below
    if isinstance(written, str):
        source = written, document.where(("instruction",))
    text, where = source
    if not text:
        return None, []
    dialogue = _dialogue_problem(document, text, where)
    if dialogue is not None:
        return None, [dialogue]
    values = dict(own)
    problems = list[Problem]()
    for name, place in braced(text, where):
        if name not in own and name not in variables:
            value, faults = _value_of_fact(name, place, fact)
            problems += faults
            if value is not None:
                values[name] = value
    filled, faults = fill(source, variables, values)
    instruction, marks = _SUBAGENTS.subn("", filled or "")
    if marks:
        problems.append(Problem(where, _NO_SUBAGENTS, "warning"))
    # what `fill` finds leaves the instruction empty
    return None if any_error(problems) else instruction, [*problems, *faults]


def _dialogue_problem(document: Document, text: str, where: Where) -> Problem | None:
    """Returns the problem of an instruction with messages of a dialogue."""
    block = re.search(r"(?m)^---(USER|ASSISTANT|RESOURCE)\b.*$", text)
    if block is None:
        return None
    line = (where.line or 1) + text.count("\n", 0, block.start())
    remedy = "put the messages into a file of their own and name it as `messages`"
    message = f"---{block[1]} blocks in the instruction are not supported; {remedy}"
    return Problem(Where(document.shown, line, 1), message)


def _value_of_fact(
    name: str, place: Where, fact: Callable[[str, Where], tuple[str | None, str]]
) -> tuple[str | None, list[Problem]]:
    """Returns the value of a placeholder, None if it has none, and what is wrong with it."""
    try:
        value, warning = fact(name, place)
    except Unusable as error:
        return "", [error.problem]
    except (Refused, UsageError) as error:
        message = f"{{{{{name}}}}}: {error}. {getattr(error, 'remedy', '')}".rstrip(". ")
        return "", [Problem(place, message)]
    if warning:
        return value, [Problem(place, f"{{{{{name}}}}} {warning}", "warning")]
    return value, []


def fact_of_card(
    name: str,
    where: Where,
    path: Path,
    project: ProjectSpec,
    remote: bool,
    locks: Mapping[Path, str],
) -> tuple[str | None, str]:
    """Finds the value of a placeholder of the card at `path`, None if it has none; and a warning.
    `locks` has the cards whose lock files describe the servers, each with its name for `agac card
    lock`. Raises Refused, Unusable, UsageError."""
    kind, colon, rest = name.partition(":")
    if colon and kind in ("file", "file_silent"):
        if remote:
            raise Refused(NOT_FROM_AFAR)
        return _text_of_file(rest.strip(), where, path, project, silent=kind == "file_silent"), ""
    if colon and kind == "url":
        if remote and rest.strip().startswith("file:"):
            raise Refused(NOT_FROM_AFAR)
        [content] = project.fetch(rest.strip(), UNTRUSTED if remote else "text of a card")
        return read_text(content.path, rest.strip(), None), ""
    if name == "serverInstructions":
        return _server_instructions(project, locks), ""
    if name in ("model_specific", "modelReferences", "agentInternalResources"):
        return "", "is empty here; remove it"
    if name == "currentDate":
        return _current_date(project.env)
    if name in _HOST or name == "workspaceRoot":
        value = _HOST[name]() if name in _HOST else str(project.root)
        return value, "makes other requests on every machine, which share no answers and no cache"
    return None, ""


def _text_of_file(
    name: str, where: Where, card: Path, project: ProjectSpec, *, silent: bool
) -> str:
    """Reads a file next to a card, or in the project; "" for one that is not there, if `silent`."""
    home = home_of(project.root)
    is_near_card = is_there(inside(home, name, base=card.parent))
    if silent and not is_near_card and not is_there(inside(home, name)):
        return ""
    file = paths.existing_file(name, home, where, base=card.parent if is_near_card else None)
    return read_text(file, project.shown(file), home).rstrip("\n")


def _server_instructions(project: ProjectSpec, locks: Mapping[Path, str]) -> str:
    """Returns the instructions of servers, as the lock files of these cards have them."""
    home = home_of(project.root)
    texts = []
    for card, name in locks.items():
        file = lock_file(card)
        servers = read_lock(file, project.shown(file), f"agac card lock {name}", home)
        texts += [server.instructions for server in servers.values() if server.instructions]
    return "\n\n".join(texts)


def _current_date(env: Mapping[str, str]) -> tuple[str, str]:
    """Today's date, and a warning."""
    epoch = env.get("SOURCE_DATE_EPOCH", "")  # as reproducible-builds.org has it
    if epoch.isdecimal():
        today = datetime.fromtimestamp(int(epoch), UTC)
    else:
        today = datetime.now().astimezone()
    date = f"{today.day} {today:%B} {today.year}"
    remedy = f"to keep one, write `vars: {{currentDate: {date}}}` into the workflow"
    warning = f"makes other requests every day, and no answer of another day is taken; {remedy}"
    return date, warning

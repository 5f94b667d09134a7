"""What `agac lint` finds in files, and comments that leave findings out; `plan/checks` has models and prices."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, get_args

from agac.core.errors import Problem, Where, did_you_mean
from agac.core.redact import KEY_SHAPE, SECRET_START
from agac.core.text import escape_of, unseen
from agac.spec.agent_cards import card_document
from agac.spec.graph import stage_of
from agac.spec.mcp_lock import lock_file
from agac.spec.operations import Python
from agac.spec.output_schema import is_json_schema
from agac.spec.paths import YAML_SUFFIXES, OutsideProject, Unusable, home_of, inside, refuse_secret
from agac.spec.project_files import files_in, read_text
from agac.spec.project_models import RuleName
from agac.spec.python_code import source_files
from agac.spec.workflow import JsonSchema, ProjectSpec, Workflow, WrittenStage, family
from agac.spec.yaml import Document, parse_yaml

RULES: tuple[RuleName, ...] = get_args(RuleName)  # docs/reference/lint.md explains them
_IGNORE = re.compile(r"#\s*agac:\s*ignore\[([^\]\n]*)\]")
_WORD = re.compile(r"[A-Za-z0-9_+/=.-]{20,}")
Texts = Mapping[str, Mapping[str, str]]
"""The texts of each stage by key, those of files that a key names included; its cards stand under `agent`."""


@dataclass(frozen=True, slots=True)
class LintFinding(Problem):
    """What a rule found."""

    JSON_KEYS: ClassVar = ("rule", "**where", "message")

    rule: RuleName = "unknown-rule"

    def __str__(self) -> str:
        return f"{Problem.__str__(self)} [{self.rule}]"


def card_files(workflow: Workflow) -> Iterator[tuple[str, Path]]:
    """The files of the cards that each stage uses, those of the agents that it may call included; no remote ones."""
    written = (stage for stage in workflow.stages if not stage.is_escalation)
    agents = ((stage_of(stage.name), one.card) for stage in written for one in family(stage))
    yield from ((name, card.path) for name, card in agents if card is not None and not card.remote)


def stage_texts(workflow: Workflow, document: Document, home: Path) -> Texts:
    """Of a sound workflow. Paths are relative to `home`."""
    given: Any = document.data
    texts = {one["name"]: {key: _text(value, home) for key, value in one.items()} for one in given["stages"]}
    for name, card in card_files(workflow):
        with suppress(Unusable):  # said where the card is read
            texts[name]["agent"] += read_text(card, card.name, home)
    return texts


def _text(value: Any, home: Path | None = None) -> str:
    """All texts of a value, keys included, and what is in the file that it names."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return "".join(f"{key}\n{_text(one)}" for key, one in pairs)
    return f"{value}\n{_named_text(value, home) if home and isinstance(value, str) else ''}"


def _named_text(value: str, home: Path) -> str:
    """What is in the file of the project that a text names; nothing where it names none."""
    try:
        path = inside(home, value)
        refuse_secret(path, home)
        # os.path's own, because a text may be too long for a file's name
        return read_text(path, value, home) if os.path.isfile(path) else ""  # noqa: PTH113
    except (OutsideProject, Unusable):
        return ""


def readers(name: str, workflow: Workflow, texts: Texts) -> set[str]:
    """Who uses the results of the stage `name`: the keys of other stages in which its name stands, `*` for a stage that
    gets them without naming it, and `output`."""
    name = stage_of(name)
    found = {"output"} if name in workflow.output.stages else set()
    others = (pair for other, keys in texts.items() if other != name for pair in keys.items())
    found |= {key for key, text in others if key not in ("name", "needs") and re.search(rf"\b{name}\b", text)}
    after = {name}
    for stage in workflow.stages:  # in the order in which a row meets them
        if not after.isdisjoint(stage.needs):
            after.add(stage.name)
            if stage.name not in texts:  # it became of another
                continue
            by_default = stage.asks and not {"prompt", "template"} & texts[stage.name].keys()
            found |= {"*"} if stage.group or isinstance(stage.operation, Python) or by_default else set()
    return found


def file_findings(workflow: Workflow, document: Document, texts: Texts) -> Iterator[LintFinding]:
    """What the rules find that need the files of a sound workflow alone."""
    given: Any = document.data
    everywhere = _text(given | {"vars": None}) + _text([dict(keys) for keys in texts.values()])
    for name in workflow.vars:
        if not re.search(rf"\bvars\.{name}\b|\bvars\[.{name}.\]|\{{\{{\s*{name}\s*\}}\}}", everywhere):
            message = f"is used nowhere; remove it, or write ${{vars.{name}}}"
            yield LintFinding(document.where(("vars", name), key=True), message, rule="unused-var")
    written = {one["name"]: one.get("output_schema") for one in given["stages"]}
    for stage in (one for one in workflow.asking if one.name in written):
        if stage.makes is None and not stage.may_drop and not readers(stage.name, workflow, texts):
            message = "its results are not written, and no later stage uses them; remove it, or use them"
            yield LintFinding(stage.at(""), message, rule="unused-stage")
        if _lacks_descriptions(stage, written[stage.name]):
            message = "none of its fields has a description, by which a model knows what to give"
            yield LintFinding(stage.at("output_schema"), message, rule="schema-without-descriptions")
        if not any(text.placeholders for text in (stage.prompt, *(one.content for one in stage.examples))):
            message = "has no placeholder: every row asks the same; name a field of the row, as ${text}"
            yield LintFinding(stage.at("prompt"), message, rule="prompt-without-fields")


def _lacks_descriptions(stage: WrittenStage, written: Any) -> bool:
    """Whether a stage has a JSON Schema with fields and no description; the shorthand cannot have any."""
    schema, is_short = stage.output_schema, isinstance(written, dict) and not is_json_schema(written)
    if not isinstance(schema, JsonSchema) or schema.model or is_short:
        return False
    fields = [schema.schema.body.get(key) for key in ("properties", "$defs", "definitions")]
    return bool(fields[0]) and not _described(fields)


def _described(part: Any) -> bool:
    if isinstance(part, dict) and isinstance(part.get("description"), str):
        return True
    return any(map(_described, part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()))


def secrets(text: str, shown: str) -> Iterator[LintFinding]:
    """Words of a file that look like keys; no message holds any of them."""
    for number, line in enumerate(text.split("\n"), 1):
        for word in (found for found in _WORD.finditer(line) if _is_secret(found[0])):
            message = f"a word of {len(word[0])} signs looks like a key; write ${{MY_KEY}}, and put it into .env"
            yield LintFinding(Where(shown, number, word.start() + 1), message, rule="secret-in-yaml")


def _is_secret(word: str) -> bool:
    if SECRET_START.match(word) and KEY_SHAPE.match(word):
        return True
    bits = -sum(times / len(word) * math.log2(times / len(word)) for times in Counter(word).values())
    kinds = all(re.search(kind, word) for kind in ("[a-z]", "[A-Z]", "[0-9].*[0-9].*[0-9]"))
    return len(word) >= 28 and kinds and "." not in word and bits > 4.2  # a hash in hexadecimal has 4 at most


# Characters that people do not see. They are looked for in every text file that a workflow or a card names, and in
# what these name: a model, a function or a guard gets them, and a reviewer does not.


def texts_read(files: Iterable[Path], project: ProjectSpec) -> dict[str, str]:
    """The texts of these files, and of all files of the project that they name, directly or not, by their shown paths.
    The rows of the input are not among them, and files that cannot be read, of which `validate` says why."""
    found, left = dict[str, str](), sorted(files, reverse=True)
    while left:
        file = left.pop()
        shown = project.shown(file)
        if shown in found:
            continue
        with suppress(Unusable):
            found[shown] = read_text(file, shown, home_of(project.root))
            left += _files_named(file, found[shown], project)
    return found


def _files_named(file: Path, text: str, project: ProjectSpec) -> list[Path]:
    """The files that belong to a file with this text: those that it names or imports, and the lock of its servers."""
    home = home_of(project.root).resolve()
    if file.suffix == ".py":
        return [home / one for one in source_files(file, home)[0]] if file.is_relative_to(home) else []
    data: Any = None
    if file.suffix == ".json":
        with suppress(ValueError, RecursionError):
            data = json.loads(text)
    elif file.suffix in (*YAML_SUFFIXES, ".md", ".markdown"):
        is_yaml = file.suffix in YAML_SUFFIXES
        with suppress(Unusable):  # a prompt in Markdown has no keys
            data = (parse_yaml if is_yaml else card_document)(text, project.shown(file)).data
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key not in ("input", "output")}
    folders = (file.parent, home, project.paths.schemas, project.paths.agentcards)
    named = (one for value in set(_values(data)) for one in _files_called(value, folders, home))
    locks = [lock for lock in (lock_file(file),) if lock.is_file()]
    return [*named, *locks]


def _values(data: Any) -> Iterator[str]:
    """The texts in a value that may be paths: short ones on one line; no keys."""
    if isinstance(data, dict | list):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from _values(inner)
    elif isinstance(data, str) and data and "\n" not in data and len(data) <= _LONGEST_PATH:
        yield data


_LONGEST_PATH = 250
_ENDINGS = ("", ".md", ".json", *YAML_SUFFIXES)


def _files_called(text: str, folders: Iterable[Path], home: Path) -> Iterator[Path]:
    """The files of the project that a text names: by a path, with a function after it, or as a folder of skills."""
    for folder in folders:
        for called in (*(text + ending for ending in _ENDINGS), text.partition(":")[0]):
            path = folder / called
            if not (os.path.isfile(path) or os.path.isdir(path)):  # noqa: PTH112, PTH113 - not every text can be a name
                continue
            with suppress(OutsideProject):
                real = inside(home, called, base=folder)
                refuse_secret(real, home)
                yield from [real] if real.is_file() else _skill_files(real, home)


def _skill_files(folder: Path, home: Path) -> Iterator[Path]:
    """The files of a folder with a skill, or with folders of skills: the model may read each of them."""
    skills = [file.parent for file in (folder / "SKILL.md", *files_in(folder, home, "*/SKILL.md")) if file.is_file()]
    yield from (file for skill in skills for file in files_in(skill, home, "**/*") if file.is_file())


MOST_ON_A_LINE = 10
"""Findings of invisible characters on a line; the last of them says how many more there are."""


def invisible(text: str, shown: str) -> Iterator[LintFinding]:
    """Characters of a file that people do not see, and of its path: each run of them is a finding."""
    for _, signs in _runs(shown):
        message = f"the name of this file has {_named_signs(signs)}, which nobody sees; rename the file"
        yield LintFinding(Where(shown, 1, 1), message, rule="invisible-character")
    for number, line in enumerate(text.split("\n"), 1):
        runs = list(_runs(line))
        for place, (column, signs) in enumerate(runs[:MOST_ON_A_LINE], 1):
            message = f"{_named_signs(signs)} is not seen; {_remedy(signs[0], shown)}"
            if place == MOST_ON_A_LINE and len(runs) > place:
                message += f" ({len(runs) - place:,} more such places on this line)"
            yield LintFinding(Where(shown, number, column), message, rule="invisible-character")


def _runs(line: str) -> Iterator[tuple[int, str]]:
    """The columns, from 1, where characters that people do not see begin, each with those that follow at once."""
    start, signs = 0, ""
    for at, sign in unseen(line):
        if signs and at == start + len(signs):
            signs += sign
            continue
        if signs:
            yield start + 1, signs
        start, signs = at, sign
    if signs:
        yield start + 1, signs


_KINDS = {"Cc": "a control character", "Co": "a character for private use", "Cs": "a lone surrogate"}


def _named_signs(signs: str) -> str:
    """`U+200B ZERO WIDTH SPACE`, and how many more follow it."""
    kind = _KINDS.get(unicodedata.category(signs[0]), "a code point without a character")
    known = unicodedata.name(signs[0], kind)
    more = f" with {len(signs) - 1:,} more after it" if len(signs) > 1 else ""
    return f"U+{ord(signs[0]):04X} {known}{more}"


def _remedy(sign: str, shown: str) -> str:
    """What to do about a character, in words that fit the format of the file."""
    escape, how = escape_of(sign), "in double quotes"
    if shown.endswith(".json"):
        escape, how = json.dumps(sign)[1:-1], "in a text"
    elif not shown.endswith((*YAML_SUFFIXES, ".py")):
        how = "in YAML in double quotes"
    return f"remove it, or write it as {escape} {how}, so that a reviewer sees it"


def without_ignored(
    found: Iterable[LintFinding], texts: Mapping[str, str], off: Collection[RuleName]
) -> list[LintFinding]:
    """The findings that no rule in `off` made and no comment of their file ignores, and comments with names that are no
    rules. A comment counts for its line, and on a line of its own for the next one that is none."""
    ignored, kept = set[tuple[str, int | None, str]](), list(found)
    for file, text in texts.items():
        own: list[str] = []  # the names of comments on lines of their own, for the line below them
        for number, line in enumerate(text.split("\n"), 1):
            comment = _IGNORE.search(line)
            names = [name.strip() for name in comment[1].split(",")] if comment else []
            ignored |= {(file, number, name) for name in [*own, *names]}
            own = [*own, *names] if line.lstrip().startswith("#") else []
            for name in set(names).difference(RULES):
                message = f"there is no rule {name!r}; {did_you_mean(name, RULES, 'rules')}"
                kept.append(LintFinding(Where(file, number, line.index("#") + 1), message))
    left = [one for one in kept if one.rule not in off and (one.where.file, one.where.line, one.rule) not in ignored]
    return sorted(dict.fromkeys(left), key=lambda one: (one.where.file, one.where.line or 0, one.rule))

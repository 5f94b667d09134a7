"""What `agac lint` finds in files, and comments that leave findings out; `plan/checks` has models
and prices."""

from __future__ import annotations

import json
import math
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar, get_args

from agac.core.errors import Problem, Where, did_you_mean
from agac.core.redact import KEY_SHAPE, SECRET_START
from agac.core.text import escape_of, unseen
from agac.spec.card_texts import card_document
from agac.spec.graph import stage_of
from agac.spec.mcp_lock import lock_file
from agac.spec.operations import Python
from agac.spec.output_schema import is_json_schema
from agac.spec.paths import YAML_SUFFIXES, OutsideProject, Unusable, home_of, inside, refuse_secret
from agac.spec.project import ProjectSpec
from agac.spec.project_files import files_in, read_text
from agac.spec.project_models import RuleName
from agac.spec.python_code import source_files
from agac.spec.templates import ALL_ALIKE
from agac.spec.workflow import JsonSchema, Workflow, WrittenStage, family
from agac.spec.yaml import Document, parse_yaml

RULES: tuple[RuleName, ...] = get_args(RuleName)  # docs/reference/lint.md explains them
_IGNORE = re.compile(r"#\s*agac:\s*ignore\[([^\]\n]*)\]")
_WORD = re.compile(r"[A-Za-z0-9_+/=.-]{20,}")


@dataclass(frozen=True, slots=True)
class LintFinding(Problem):
    """What a rule found."""

    JSON_KEYS: ClassVar = ("rule", "**where", "message")

    rule: RuleName = "unknown-rule"

    def __str__(self) -> str:
        return f"{Problem.__str__(self)} [{self.rule}]"


def card_files(workflow: Workflow) -> Iterator[tuple[str, Path]]:
    """Yields the files of the cards that each stage uses, those of the agents that it may call
    included; no remote ones."""
    written = (stage for stage in workflow.stages if not stage.is_escalation)
    agents = ((stage_of(stage.name), one.card) for stage in written for one in family(stage))
    yield from ((name, card.path) for name, card in agents if card is not None and not card.remote)


class Texts:
    """The texts of the stages of a workflow, and which of them name a stage. A text that several
    stages share is held and searched once: looking for each stage in all texts of all others took
    minutes for thousands of them."""

    by_stage: dict[str, dict[str, tuple[str, ...]]]
    """The texts of each stage by key, with that of a file that a key names; its cards stand under
    `agent`."""

    def __init__(self, workflow: Workflow, document: Document, home: Path) -> None:
        """Reads the files that a sound workflow names, relative to `home`."""
        given: Any = document.data
        named_text = cache(partial(_named_text, home=home))
        card_text = cache(partial(_card_text, home=home))
        self.by_stage = {
            one["name"]: {key: _with_file(value, named_text) for key, value in one.items()}
            for one in given["stages"]
        }
        for name, card in card_files(workflow):
            self.by_stage[name]["agent"] += (card_text(card),)
        self._places: dict[str, list[tuple[str, str]]] = {}
        for name, keys in self.by_stage.items():
            for key, texts in keys.items():
                for text in texts:
                    self._places.setdefault(text, []).append((name, key))
        words = {word for name in self.by_stage for word in _NAME_PART.findall(name)}
        self._texts_with: dict[str, list[str]] = {}
        for text in self._places:
            for word in words.intersection(_NAME_PART.findall(text)):
                self._texts_with.setdefault(word, []).append(text)

    def each(self) -> Iterable[str]:
        """Each text once."""
        return self._places

    def naming(self, name: str) -> Iterator[tuple[str, str]]:
        """Yields the stages and keys in whose texts `name` stands as a word, or as words that `-`
        joins."""
        words = _NAME_PART.findall(name)
        for text in min((self._texts_with.get(word, []) for word in words), key=len):
            # a name without `-` is one word, and the text has that
            if words == [name] or re.search(rf"\b{name}\b", text):
                yield from self._places[text]


_NAME_PART = re.compile(r"\w+")


def _with_file(value: Any, named_text: Callable[[str], str]) -> tuple[str, ...]:
    """Returns the text of a key's value, and that of the file which it names."""
    text = _text(value)
    if isinstance(value, str) and "\n" not in value and (inner := named_text(value)):
        return text, inner
    return (text,)


def _text(value: Any) -> str:
    """Joins all texts of a value, keys included."""
    if isinstance(value, dict | list):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        return "".join(f"{key}\n{_text(one)}" for key, one in pairs)
    return f"{value}\n"


def _named_text(value: str, home: Path) -> str:
    """Reads the file of the project that a text names; "" if it names none."""
    try:
        path = inside(home, value)
        refuse_secret(path, home)
        # os.path's own, because a text may be too long for a file's name
        if os.path.isfile(path):  # noqa: PTH113
            return read_text(path, value, home)
        return ""
    except (OutsideProject, Unusable):
        return ""


def _card_text(card: Path, home: Path) -> str:
    try:
        return read_text(card, card.name, home)
    except Unusable:  # said where the card is read
        return ""


class Readers:
    """Who uses the results of the stages of a workflow."""

    def __init__(self, workflow: Workflow, texts: Texts) -> None:
        self._texts = texts
        self._written = frozenset(workflow.output.stages)
        self._before_all_takers = _before_all_takers(workflow, texts)

    def of(self, name: str) -> set[str]:
        """Returns who uses the results of the stage `name`: the keys of other stages in which its
        name is, `*` for a stage that gets them without naming it, and `output`."""
        name = stage_of(name)
        found = {key for other, key in self._texts.naming(name) if other != name} - {
            "name",
            "needs",
        }
        if name in self._written:
            found.add("output")
        if name in self._before_all_takers:
            found.add("*")
        return found


def _before_all_takers(workflow: Workflow, texts: Texts) -> set[str]:
    """Returns the stages upstream of one that takes all results upstream of it, without naming
    them."""
    found = set[str]()
    for stage in reversed(workflow.stages):  # a row meets them in the other order
        if stage.name in found or _takes_all(stage, texts):
            found.update(stage.needs)
    return found


def _takes_all(stage: WrittenStage, texts: Texts) -> bool:
    keys = texts.by_stage.get(stage.name)
    if keys is None:  # it became of another
        return False
    if stage.group or isinstance(stage.operation, Python):
        return True
    return stage.asks and not {"prompt", "template"} & keys.keys()


_AFTER_A_DOT = re.compile(r"\bvars\.([\w-]+)")
_IN_BRACKETS = re.compile(r"\bvars\[.([\w-]+).\]|\{\{\s*([\w-]+)\s*\}\}")


def _used_variables(names: Collection[str], texts: Iterable[str]) -> set[str]:
    """Returns those of the workflow's variables `names` that a text names."""
    found = set[str]()
    lengths = {len(name) for name in names}
    for text in texts:
        found.update(match[1] or match[2] for match in _IN_BRACKETS.finditer(text))
        for match in _AFTER_A_DOT.finditer(text):
            # in `vars.a-b` it may be `a-b`, or `a` before a minus sign
            found.update(match[1][:end] for end in lengths if _ends_a_name(match[1], end))
    return found.intersection(names)


def _ends_a_name(run: str, end: int) -> bool:
    """True if a name may end before the position `end` of a run of letters, digits, `_` and `-`."""
    if end >= len(run):
        return end == len(run)
    return (run[end] == "-") != (run[end - 1] == "-")


def file_findings(
    workflow: Workflow, document: Document, texts: Texts, readers: Readers
) -> Iterator[LintFinding]:
    """Yields the findings of the rules that need only the files of a sound workflow."""
    given: Any = document.data
    used = _used_variables(workflow.vars, (_text(given | {"vars": None}), *texts.each()))
    for name in workflow.vars:
        if name not in used:
            message = f"is used nowhere; remove it, or write ${{vars.{name}}}"
            yield LintFinding(document.where(("vars", name), key=True), message, rule="unused-var")
    written = {one["name"]: one.get("output_schema") for one in given["stages"]}
    for stage in (one for one in workflow.asking if one.name in written):
        if stage.makes is None and not stage.may_drop and not readers.of(stage.name):
            message = (
                "its results are not written, and no later stage uses them; remove it, or use them"
            )
            yield LintFinding(stage.at(""), message, rule="unused-stage")
        if _lacks_descriptions(stage, written[stage.name]):
            message = "none of its fields has a description, by which a model knows what to give"
            yield LintFinding(
                stage.at("output_schema"), message, rule="schema-without-descriptions"
            )
        if stage.asks_all_alike:
            yield LintFinding(stage.at("prompt"), ALL_ALIKE, rule="prompt-without-fields")


def _lacks_descriptions(stage: WrittenStage, written: Any) -> bool:
    """True if a stage has a JSON Schema with fields and no description; the shorthand cannot have
    any."""
    schema = stage.output_schema
    is_short = isinstance(written, dict) and not is_json_schema(written)
    if not isinstance(schema, JsonSchema) or schema.model or is_short:
        return False
    fields = [schema.schema.body.get(key) for key in ("properties", "$defs", "definitions")]
    return bool(fields[0]) and not _described(fields)


def _described(part: Any) -> bool:
    """True if a mapping somewhere in a part of a schema has a description."""
    if isinstance(part, list):
        return any(map(_described, part))
    if not isinstance(part, dict):
        return False
    return isinstance(part.get("description"), str) or any(map(_described, part.values()))


def secrets(text: str, shown: str) -> Iterator[LintFinding]:
    """Words of a file that look like keys; no message holds any of them."""
    for number, line in enumerate(text.split("\n"), 1):
        for word in (found for found in _WORD.finditer(line) if _is_secret(found[0])):
            message = (
                f"a word of {len(word[0])} signs looks like a key; write ${{MY_KEY}}, and "
                "put it into .env"
            )
            yield LintFinding(
                Where(shown, number, word.start() + 1), message, rule="secret-in-yaml"
            )


def _is_secret(word: str) -> bool:
    if SECRET_START.match(word) and KEY_SHAPE.match(word):
        return True
    bits = -sum(
        times / len(word) * math.log2(times / len(word)) for times in Counter(word).values()
    )
    kinds = all(re.search(kind, word) for kind in ("[a-z]", "[A-Z]", "[0-9].*[0-9].*[0-9]"))
    # a hash in hexadecimal has 4 at most
    return len(word) >= 28 and kinds and "." not in word and bits > 4.2


# Characters that people do not see. They are looked for in every text file that a workflow or a
# card names, and in what these name: a model, a function or a guard gets them, and a reviewer does
# not.


def texts_read(files: Iterable[Path], project: ProjectSpec) -> dict[str, str]:
    """Returns the texts of these files, and of all files of the project that they name, directly
    or not, by their shown paths. The rows of the input are not among them, and files that cannot
    be read, of which `validate` says why."""
    found = dict[str, str]()
    left = sorted(files, reverse=True)
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
    """Returns the files that belong to a file with this text: those that it names or imports, and
    the lock of its servers."""
    home = home_of(project.root).resolve()
    if file.suffix == ".py":
        if file.is_relative_to(home):
            return [home / one for one in source_files(file, home)[0]]
        return []
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
    """Yields the texts in a value that may be paths: short ones on one line; no keys."""
    if isinstance(data, dict | list):
        for inner in data.values() if isinstance(data, dict) else data:
            yield from _values(inner)
    elif isinstance(data, str) and data and "\n" not in data and len(data) <= _LONGEST_PATH:
        yield data


_LONGEST_PATH = 250
_ENDINGS = ("", ".md", ".json", *YAML_SUFFIXES)


def _files_called(text: str, folders: Iterable[Path], home: Path) -> Iterator[Path]:
    """Yields the files of the project that a text names: by a path, with a function after it, or
    as a folder of skills."""
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
    """Yields the files of a folder with a skill, or with folders of skills: the model may read
    each of them."""
    skills = [
        file.parent
        for file in (folder / "SKILL.md", *files_in(folder, home, "*/SKILL.md"))
        if file.is_file()
    ]
    yield from (
        file for skill in skills for file in files_in(skill, home, "**/*") if file.is_file()
    )


MOST_ON_A_LINE = 10
"""Findings of invisible characters on a line; the last of them says how many more there are."""


def invisible(text: str, shown: str) -> Iterator[LintFinding]:
    """Characters of a file that people do not see, and of its path: each run of them is a
    finding."""
    for _, signs in _runs(shown):
        message = (
            f"the name of this file has {_named_signs(signs)}, which nobody sees; rename the file"
        )
        yield LintFinding(Where(shown, 1, 1), message, rule="invisible-character")
    for number, line in enumerate(text.split("\n"), 1):
        runs = list(_runs(line))
        for place, (column, signs) in enumerate(runs[:MOST_ON_A_LINE], 1):
            message = f"{_named_signs(signs)} is not seen; {_remedy(signs[0], shown)}"
            if place == MOST_ON_A_LINE and len(runs) > place:
                message += f" ({len(runs) - place:,} more such places on this line)"
            yield LintFinding(Where(shown, number, column), message, rule="invisible-character")


def _runs(line: str) -> Iterator[tuple[int, str]]:
    """Yields the columns, from 1, where characters that people do not see begin, each with those
    that follow at once."""
    start = 0
    signs = ""
    for at, sign in unseen(line):
        if signs and at == start + len(signs):
            signs += sign
            continue
        if signs:
            yield start + 1, signs
        start = at
        signs = sign
    if signs:
        yield start + 1, signs


_KINDS = {
    "Cc": "a control character",
    "Co": "a character for private use",
    "Cs": "a lone surrogate",
}


def _named_signs(signs: str) -> str:
    """`U+200B ZERO WIDTH SPACE`, and how many more follow it."""
    kind = _KINDS.get(unicodedata.category(signs[0]), "a code point without a character")
    known = unicodedata.name(signs[0], kind)
    more = f" with {len(signs) - 1:,} more after it" if len(signs) > 1 else ""
    return f"U+{ord(signs[0]):04X} {known}{more}"


def _remedy(sign: str, shown: str) -> str:
    """Says what to do about a character, in words that fit the format of the file."""
    escape = escape_of(sign)
    how = "in double quotes"
    if shown.endswith(".json"):
        escape = json.dumps(sign)[1:-1]
        how = "in a text"
    elif not shown.endswith((*YAML_SUFFIXES, ".py")):
        how = "in YAML in double quotes"
    return f"remove it, or write it as {escape} {how}, so that a reviewer sees it"


def split_by_comments(
    found: Iterable[LintFinding], texts: Mapping[str, str], off: Collection[RuleName]
) -> tuple[list[LintFinding], list[LintFinding]]:
    """Returns the findings that no rule in `off` made and no comment of their file ignores, with
    comments that have names of no rules; and those that a comment ignores. A comment counts for
    its line, and on a line of its own for the next one that is none."""
    ignored = set[tuple[str, int | None, str]]()
    kept = list(found)
    for file, text in texts.items():
        own: list[str] = []  # the names of comments on lines of their own, for the line below them
        for number, line in enumerate(text.split("\n"), 1):
            comment = _IGNORE.search(line)
            names = [name.strip() for name in comment[1].split(",")] if comment else []
            ignored |= {(file, number, name) for name in [*own, *names]}
            # what is no rule ignores nothing
            if line.lstrip().startswith("#"):
                own = [*dict.fromkeys([*own, *(name for name in names if name in RULES)])]
            else:
                own = []
            for name in set(names).difference(RULES):
                message = f"there is no rule {name!r}; {did_you_mean(name, RULES, 'rules')}"
                kept.append(LintFinding(Where(file, number, line.index("#") + 1), message))
    kept = [one for one in dict.fromkeys(kept) if one.rule not in off]
    kept.sort(key=lambda one: (one.where.file, one.where.line or 0, one.rule))
    left = list[LintFinding]()
    silent = list[LintFinding]()
    for one in kept:
        is_silent = (one.where.file, one.where.line, one.rule) in ignored
        (silent if is_silent else left).append(one)
    return left, silent

"""Reads the cards, prompts and instructions that stages name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from agac.core.errors import Path_, Problem, Where
from agac.core.types import JSONValue
from agac.spec import templates
from agac.spec.agent_cards import Card, find_card, load_card
from agac.spec.card_types import ONLY_A_TOOL
from agac.spec.instructions import fill
from agac.spec.models import StageFile
from agac.spec.paths import Refused, RemoteContent, Unusable, is_reference
from agac.spec.project import Overrides, ProjectSpec
from agac.spec.templates import Syntax, Template
from agac.spec.text_files import PlacedText, placed_file, template_file, text_or_file
from agac.spec.yaml import Document

T = TypeVar("T")


@dataclass(slots=True)
class StageTexts:
    """Reads the texts and cards of the stages of one workflow, each file once."""

    project: ProjectSpec
    document: Document
    """The workflow's file."""
    variables: Mapping[str, JSONValue]
    overrides: Overrides
    problems: list[Problem]
    """The list to which problems are added."""
    _files: dict[str, PlacedText] = field(default_factory=dict)
    """Texts of files, by the keys that name them."""
    _cards: dict[tuple[Path, tuple[str, ...]], tuple[Card | None, list[Problem]]] = field(
        default_factory=dict
    )
    """Loaded cards, by their files and the tools of their stages."""
    _templates: dict[tuple[PlacedText, Syntax], tuple[Template | None, list[Problem]]] = field(
        default_factory=dict
    )

    def card(self, written: StageFile, path: Path_) -> Card | None:
        """Loads the card that a stage names as its `agent`."""
        if written.agent is None:
            return None
        if is_reference(written.agent):
            fetched = self._fetched(written.agent, (*path, "agent"), "card", written.name)
            if not fetched:
                return None
            loaded = load_card(
                fetched.path,
                self.project,
                self.variables,
                remote=fetched,
                trusted=self.overrides.trust_card,
                tools=written.tools or (),
            )
            return self._noted(loaded)
        file, reason = find_card(written.agent, self.project)
        if file is None:
            self.problems.append(self.document.problem((*path, "agent"), reason))
            return None
        card = self.loaded(file, tuple(written.tools or ()))
        if card is not None and card.keys.tool_only:
            self.problems.append(card.document.problem(("tool_only",), ONLY_A_TOOL))
        return card

    def prompt(
        self, written: StageFile, path: Path_, syntax: Syntax, names: tuple[str, ...]
    ) -> Template | None:
        """Compiles the prompt of a stage; without one it sends the results of `names`."""
        change = self.overrides.change
        if change and change.stage == written.name and change.prompt is not None:
            return self._noted(templates.compile_template(*change.prompt, syntax))
        if written.prompt is not None and written.template is not None:
            message = "give either prompt or template, not both"
            self.problems.append(self.document.problem((*path, "template"), message, key=True))
            return None
        value = written.template or written.prompt
        if value is None:
            where = self.document.where(path)
            if written.group_by is None:
                return templates.default_prompt(names, where)
            return templates.group_prompt(where)
        at = (*path, "template" if written.template is not None else "prompt")
        read = template_file if written.template else text_or_file
        source = self.text(read, value, at, written.name)
        if source is None:
            return None
        if source[1].path:  # it is a text of this stage alone
            return self._noted(templates.compile_template(*source, syntax))
        if (source, syntax) not in self._templates:
            self._templates[source, syntax] = templates.compile_template(*source, syntax)
        return self._noted(self._templates[source, syntax])

    def instructions(self, value: str, stage: str, path: Path_, syntax: Syntax) -> str | None:
        """Reads the instructions of a stage, with its variables filled in."""
        at = (*path, "instructions")
        source = self.text(text_or_file, value, at, stage)
        if source is None:
            return None
        system = self._noted(fill(source, self.variables, syntax=syntax))
        if system is not None and not system.strip():
            message = (
                "is empty or only white space, once its variables are filled in; give "
                "a text or remove it"
            )
            self.problems.append(self.document.problem(at, message))
        return system

    def loaded(self, file: Path, tools: tuple[str, ...] = ()) -> Card | None:
        """Loads the card in a file of the project; `tools` are its stage's."""
        if (file, tools) not in self._cards:
            self._cards[file, tools] = load_card(file, self.project, self.variables, tools=tools)
        return self._noted(self._cards[file, tools])

    def _fetched(self, reference: str, at: Path_, what: str, stage: str) -> RemoteContent | None:
        """Fetches what a reference of the stage named `stage` names."""
        try:
            return self.project.fetch(reference, f"{what} of {stage}")[0]
        except Refused as error:
            self.problems.append(self.document.problem(at, str(error)))
            return None

    def text(
        self, read: Callable[[str, Path, Where], PlacedText], value: str, at: Path_, stage: str
    ) -> PlacedText | None:
        """Reads the text that a key of a stage has or names, with `read` if it is in the
        project."""
        where = self.document.where(at)
        try:
            if is_reference(value):
                what = "prompt" if at[-1] == "template" else str(at[-1])
                remote = self._fetched(value, at, what, stage)
                if remote:
                    return placed_file(remote.path, value, where, None)
                return None
            if value in self._files:
                return self._files[value]
            text = read(value, self.project.root, where)
        except Unusable as error:
            self.problems.append(error.problem)
            return None
        if text[1] != where:  # it is the text of a file, which other stages may name, too
            self._files[value] = text
        return text

    def _noted(self, result: tuple[T, list[Problem]]) -> T:
        """Returns a result, and takes over the problems that came with it."""
        value, problems = result
        self.problems += problems
        return value

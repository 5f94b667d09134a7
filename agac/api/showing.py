"""Showing what a model will see of an AgentCard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from agac.api.project import open_project
from agac.core.errors import Problem, SpecError, UsageError, any_error
from agac.core.report import Report
from agac.providers.modelref import parse_model
from agac.spec.cards import find_card, load_card


def texts(problems: Sequence[Problem]) -> list[str]:
    """Problems as `--json` prints them in one line each."""
    return [str(problem) for problem in problems]


@dataclass(frozen=True, slots=True)
class CardReport(Report):
    """An AgentCard as a run would use it: `system` is the message that the model gets before every row, `messages` the
    examples after it. `means` is what a short name in `model` stands for."""

    JSON_KEYS = ("name", "file", "description", "model", "params", "system", "messages", "means", "warnings")

    name: str
    file: str
    description: str | None
    model: str | None
    params: dict[str, Any]
    system: str | None
    warnings: Annotated[list[Problem], texts]
    messages: list[dict[str, str]]
    means: str | None


def show_card(name: str, *, variables: dict[str, str] | None = None, project: Path | str | None = None) -> CardReport:
    """The card called `name`, filled with `variables`. Raises UsageError when there is none, SpecError if it is bad."""
    opened = open_project(project)
    if any_error(opened.problems):
        raise SpecError(opened.problems)
    path, message = find_card(name, opened.spec)
    if path is None:
        raise UsageError(message)
    card, problems = load_card(path, opened.spec, variables or {})
    if card is None:
        raise _unusable(problems)
    info = card.info
    params, means = dict(info.params), None
    if info.model is not None:
        ref, messages = parse_model(info.model, opened.providers, opened.spec.aliases)
        problems += [Problem(card.where.get("model", card.where[""]), text, "model") for text in messages]
        if ref is None:
            raise SpecError(problems)
        where = card.where.get("model", card.where[""])
        problems += [Problem(where, text, "model", "warning") for text in ref.warnings]
        params |= ref.params
        means = ref.meaning if ref.written is not None else None
    examples = [{"role": one.role, "text": one.content.render({})} for one in info.messages]
    return CardReport(
        info.name, info.file, info.description, info.model, params, info.instruction, problems, examples, means
    )


def _unusable(problems: list[Problem]) -> SpecError:
    error = SpecError(problems)
    if any(problem.message.startswith(("unknown placeholder", "unknown variable")) for problem in problems):
        error.remedy = "In a run the workflow's vars fill the card; give them here with --var NAME=VALUE."
    return error

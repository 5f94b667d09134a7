"""Skills: folders that a model may read, of which it is given names and descriptions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agac.core.errors import Path_, Problem
from agac.spec.card_models import CardFile
from agac.spec.card_texts import parts_of_card
from agac.spec.paths import Refused, Unusable, home_of, inside
from agac.spec.project import ProjectSpec
from agac.spec.project_files import files_in, read_text
from agac.spec.yaml import Document

DEFAULT_SKILLS = (".fast-agent/skills", ".agents/skills", ".claude/skills")
"""Folders in which other programs find skills."""

_LISTED = "Skills that you may read with the tool `read_skill`, where one of them helps:\n{}"


class Skill(NamedTuple):
    """A folder with a SKILL.md."""

    name: str
    description: str
    folder: str
    """Its path relative to the project."""


def with_skills(system: str | None, skills: Sequence[Skill]) -> str | None:
    """Adds the names and descriptions of skills to the end of a system message."""
    if not skills:
        return system
    listed = _LISTED.format("\n".join(f"- {skill.name}: {skill.description}" for skill in skills))
    return f"{system}\n\n{listed}" if system else listed


def unnamed_skills(keys: CardFile, project: ProjectSpec, document: Document) -> Iterator[Problem]:
    """Yields a warning if other programs would find skills for this card, which a run does not
    read."""
    has_tools = bool(keys.function_tools or keys.mcp_connect or keys.servers)
    if "skills" in keys.model_fields_set or not has_tools:
        return
    home = home_of(project.root)
    folder = next((name for name in DEFAULT_SKILLS if (home / name).is_dir()), None)
    if folder is not None:
        message = (
            f"a run reads no skills that a card does not name; write `skills: {folder}`, or "
            "`skills: []`"
        )
        yield Problem(document.where(()), message, "warning")


def read_skills(
    names: Sequence[str], project: ProjectSpec, document: Document, base: Path, at: Path_ = ()
) -> tuple[tuple[Skill, ...], list[Problem]]:
    """Reads the skills of these folders, which `document` names, next to `base` or in the project.
    Returns them by name; a later one replaces an earlier one of the same name."""
    skills = dict[str, Skill]()
    problems = list[Problem]()
    for index, name in enumerate(names):
        where = document.where((*at, "skills", index))
        try:
            for skill in _skills_in(name, project, base):
                earlier = skills.get(skill.name.lower())
                if earlier is not None:
                    message = (
                        f"the skill {skill.name!r} of {skill.folder} takes the place of "
                        f"that of {earlier.folder}"
                    )
                    problems.append(Problem(where, message, "warning"))
                skills[skill.name.lower()] = skill
        except Refused as error:
            problems.append(Problem(where, str(error)))
        except Unusable as error:
            problems.append(error.problem)
    return tuple(sorted(skills.values())), problems


def _skills_in(name: str, project: ProjectSpec, base: Path) -> Iterator[Skill]:
    """Yields the skills of a folder, which is one itself or holds some. Raises Refused,
    Unusable."""
    home = home_of(project.root)
    folder = inside(home, name, base=base)
    if not folder.is_dir():
        folder = inside(home, name)
    file = folder / "SKILL.md"
    files = [file] if file.is_file() else files_in(folder, home, "*/SKILL.md")
    if not files:
        raise Refused(f"{name!r} holds no skills; a skill is a folder with a file SKILL.md")
    for file in files:
        yield _skill(file, project)


def _skill(file: Path, project: ProjectSpec) -> Skill:
    """Reads the SKILL.md of a skill. Raises Unusable."""
    shown = project.shown(file)
    text = read_text(file, shown, home_of(project.root))
    document, _ = parts_of_card(text, shown, yaml_only=False)
    data: Any = document.data
    if document.problems:
        raise Unusable(document.problems[0])
    for key in ("name", "description"):
        if not isinstance(data.get(key), str) or not data[key].strip():
            message = f"a skill needs a {key}: write `{key}: …` into its front matter"
            raise Unusable(document.problem((), message))
    return Skill(data["name"], " ".join(data["description"].split()), project.shown(file.parent))

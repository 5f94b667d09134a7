"""Finds what looks like a placeholder in a template and is none in its syntax: it is sent as it is
written."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

from agac.core.errors import Problem, Where
from agac.spec.templates import FORMS, MARKS, Syntax, Template

_FOREIGN = re.compile(
    r"\$\{(?P<dollar>[^${}\n]+)\}|\{\{(?P<mustache>[^${}\n]+)\}\}|(?<!\{)\{(?P<brace>[^${}\n]+)\}(?!\})"
    r"|(?<![$\w\\])\$([^\W\d]\w*(?:\.\w+)*)"
)
"""`${review}`, `{{review}}` and `{review}`, each of which a syntax reads, and `$review`, which
none does."""

_DOTTED = re.compile(r"[\w.]+")

_PROGRAM = re.compile(
    r"\{\{\s*[#^&>][^{}\n]{1,200}\}\}|\{\{[^{}|\n]{1,200}\|[^{}\n]{1,200}\}\}|\{%[^{}\n]{1,200}%\}"
)
"""What Jinja and Mustache read as more than a value: `{{ a | upper }}`, `{% if a %}`."""


class _Foreign(NamedTuple):
    """What looks like a placeholder in the literal parts of a template."""

    text: str
    """As it is written."""
    name: str
    syntax: Syntax | None
    """The syntax that reads it."""


def foreign_placeholders(
    template: Template,
    where: Where,
    names: Container[str],
    written: Syntax | None,
    *,
    any_field: bool = False,
) -> list[Problem]:
    """Finds placeholders that another syntax than the template's would read, and that are sent as
    they are written: those of known `names`, and with `any_field`, where rows may have fields of
    any name, the others.

    `written` is the syntax that a file names; None: no file does. If it says which placeholders
    count, these are warnings. If it is `auto`, or there are placeholders that the template reads,
    they are errors; but a single `{name}` that may be prose is one in `auto` alone."""
    judge = _Judge(template, names, written, any_field)
    problems: dict[str, Problem] = {}
    for foreign in _foreign(template):
        error = judge.error(foreign)
        warning = None if error else judge.warning(foreign)
        if error is not None:
            problems[foreign.text] = Problem(where, error)
        elif warning is not None:
            problems[foreign.text] = Problem(where, warning, "warning")
    for text in _programs(template):
        if text not in problems and _names_any(text, names):
            message = (
                f"{text} is sent as it stands; prompts have no filters or conditions, only "
                "values of fields"
            )
            problems[text] = Problem(where, message, "warning")
    return list(problems.values())


@dataclass(frozen=True, slots=True)
class _Judge:
    """Says whether a foreign placeholder of a template is an error or a warning."""

    template: Template
    names: Container[str]
    """The names of fields and results."""
    written: Syntax | None
    """The syntax that a file names."""
    any_field: bool
    """True if rows may have fields of any name."""

    def error(self, foreign: _Foreign) -> str | None:
        """Returns the message for a placeholder that may be meant as one."""
        if not self._may_be_read(foreign):
            return None
        may_be_field = self.any_field and (self.written == "auto" or foreign.syntax != "brace")
        if may_be_field or _is_known(foreign.name, self.names):
            return _two_kinds(foreign.text, self.template, str(foreign.syntax))
        return None

    def warning(self, foreign: _Foreign) -> str | None:
        """Returns the message for a placeholder that is probably meant as a text."""
        may_be_read = self._may_be_read(foreign)
        if _is_known(foreign.name, self.names) or (self.any_field and may_be_read):
            ways = _ways_to_name(foreign.name, self.template.syntax, foreign.syntax)
            return f"{foreign.text} is sent as it stands; {', or '.join(ways)}"
        if may_be_read and foreign.syntax != "brace" and self.template.placeholders:
            return f"{foreign.text} is sent as it stands; no field has this name"
        return None

    def _may_be_read(self, foreign: _Foreign) -> bool:
        """True if its syntax reads such a name, and no file says that another one counts."""
        is_open = self.written is None and bool(self.template.placeholders)
        if self.written != "auto" and not is_open:
            return False
        return foreign.syntax is not None and foreign.syntax in _reading(foreign.name)


def _is_known(name: str, names: Container[str]) -> bool:
    """True for a known name, and for a way such as `review.text` into one."""
    if name in names:
        return True
    return _DOTTED.fullmatch(name) is not None and name.partition(".")[0] in names


def _names_any(text: str, names: Container[str]) -> bool:
    """True if one of the words of a text is a known name."""
    return any(word in names for word in re.findall(r"\w+", text))


def _programs(template: Template) -> Iterator[str]:
    """Yields what is a program in another template language, in the literal parts."""
    for piece in template.pieces:
        for match in _PROGRAM.finditer(piece):
            yield match[0]


def _foreign(template: Template) -> Iterator[_Foreign]:
    """Yields what looks like a placeholder in the literal parts."""
    for before, piece in zip(("", *template.pieces), template.pieces, strict=False):
        for match in _FOREIGN.finditer(piece):
            if before in ("$", "{") and match.start() == 0:
                continue  # $${name}: it is meant as it is written
            name = match[match.lastindex or 0]
            syntax = cast("Syntax | None", match.lastgroup)
            yield _Foreign(match[0], name.strip() if syntax == "mustache" else name, syntax)


def _two_kinds(text: str, template: Template, other: str) -> str:
    """Returns the message for a text with placeholders of two syntaxes."""
    kind = "of another kind"
    if template.placeholders:
        kind += f" than {FORMS[template.syntax] % template.placeholders[0].name}"
    return (
        f"{text} is a placeholder {kind}; write all placeholders alike, or say by "
        f"`syntax` which kind counts: {template.syntax} or {other}"
    )


def _ways_to_name(name: str, current: Syntax, other: Syntax | None) -> list[str]:
    """Lists what one can do for the value of `name`, by the syntaxes that read such a name."""
    reading = _reading(name)
    all_as = "write all placeholders as {} with `syntax: {}`"
    ways = []
    if current in reading:
        ways.append(f"write {FORMS[current] % name} for its value")
    if other is not None and other != current and other in reading:
        ways.append(all_as.format(FORMS[other] % "name", other))
    return ways or ["rename the field", all_as.format(FORMS["dollar"] % "name", "dollar")]


def _reading(name: str) -> list[Syntax]:
    """Returns the syntaxes that read such a name."""
    return [
        syntax
        for syntax, marks in MARKS.items()
        if any(mark.name for mark in marks(FORMS[syntax] % name))
    ]

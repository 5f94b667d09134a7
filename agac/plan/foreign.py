"""Placeholders in the manner of other tools, `{{review}}` and `{review}`: agac sends them as they stand."""

from __future__ import annotations

import re
from collections.abc import Collection

from agac.core.errors import Problem, Where
from agac.spec.template import Template

_FOREIGN = re.compile(r"\{\{\s*([\w.]+)\s*\}\}|(?<!\{)\{([\w.]+)\}(?!\})")


def foreign_placeholders(template: Template, where: Where, path: str, names: Collection[str]) -> list[Problem]:
    """A warning for each that would name a field or a result, were it written in agac's way. Others may be meant."""
    found = {}
    for before, piece in zip(("", *template.pieces), template.pieces, strict=False):
        for match in _FOREIGN.finditer(piece):
            if before == "$" and match.start() == 0:
                continue  # $${name}, which says that it is meant as it stands
            name = match[1] or match[2]
            if name.partition(".")[0] in names or name in names:
                found[match[0]] = name
    return [
        Problem(where, f"{text} is sent as it stands; write ${{{name}}} for its value", path, "warning")
        for text, name in found.items()
    ]

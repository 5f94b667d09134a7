"""The views that are made for people, with what the migrations say about them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agac.store.sql import migrations

_VIEW = re.compile(r"((?:^-- [^\n]*\n)+)CREATE VIEW (\w+) AS\n(.*?);\n", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r" AS (\w+),? +-- (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class View:
    """A view: what a line of it is, and its columns in order, each with its meaning."""

    name: str
    meaning: str
    columns: dict[str, str]


def views() -> list[View]:
    """Every documented view, in the order in which the migrations make them; of several with one name the last one."""
    found: dict[str, View] = {}
    for _, script in migrations():
        for comment, name, body in _VIEW.findall(script):
            meaning = " ".join(line.removeprefix("-- ") for line in comment.strip().split("\n"))
            found.pop(name, None)
            found[name] = View(name, meaning, dict(_COLUMN.findall(body)))
    return list(found.values())

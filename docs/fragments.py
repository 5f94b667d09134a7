# ruff: noqa: INP001
"""The fragments in changelog.d/: one file a change, written for users, named `what-it-is.kind.md`."""

from __future__ import annotations

from pathlib import Path

from pages import ROOT

FOLDER = ROOT / "changelog.d"
KINDS = ("added", "changed", "fixed", "removed", "security")
LONGEST = 600


def fragments() -> list[Path]:
    """All of them, by name."""
    return sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def kind_of(path: Path) -> str:
    """`added` of `spine.added.md`, empty when there is none."""
    parts = path.name.split(".")
    return parts[1] if len(parts) == 3 else ""


def problems_of(path: Path) -> list[str]:
    """What is wrong with a fragment."""
    text = path.read_text("utf-8")
    found = []
    if kind_of(path) not in KINDS:
        found.append(f"{path.name}: name it what-it-is.KIND.md with one of the kinds {', '.join(KINDS)}")
    if not text.strip():
        return [*found, f"{path.name}: is empty"]
    if not text.endswith(".\n") or text.endswith("\n\n"):
        found.append(f"{path.name}: ends with a full stop and one line end")
    if not (text[0].isupper() or text[0] == "`"):
        found.append(f"{path.name}: is a sentence: it starts with a capital letter, not with {text[0]!r}")
    if len(text) > LONGEST:
        found.append(f"{path.name}: {len(text)} characters; {LONGEST} are enough to say what changed for a user")
    return found


def unreleased() -> str:
    """The section of CHANGELOG.md, from the fragments."""
    lines: list[str] = []
    for kind in KINDS:
        entries = [path.read_text("utf-8").strip() for path in fragments() if kind_of(path) == kind]
        if entries:
            lines += [
                f"### {kind.capitalize()}",
                "",
                *(f"- {entry.replace(chr(10), chr(10) + '  ')}" for entry in entries),
                "",
            ]
    return "\n" + "\n".join(lines)


def released(changelog: str, version: str, day: str) -> str:
    """CHANGELOG.md in which all that was unreleased is the dated section of a version, its only one, or ValueError."""
    if f"\n## {version} (" in changelog:
        raise ValueError(f"CHANGELOG.md has {version}: set the next version in pyproject.toml and agac/__init__.py")
    first, last = "<!-- generated: unreleased -->\n", "<!-- /generated -->"
    before, _, rest = changelog.partition(first)
    section, _, older = rest.partition(last)
    return f"{before}{first}\n{last}\n\n## {version} ({day})\n{section.rstrip()}{older}"

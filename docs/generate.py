# ruff: noqa: INP001, T201
"""Writes the generated parts of the documentation: reference pages from the program; console output and the pictures of
the front page from real runs.

    python docs/generate.py             writes what is out of date
    python docs/generate.py --check     says what is out of date, and exits with 1
    python docs/generate.py README.md   only these pages, and their console blocks
    python docs/generate.py --release 2026-12-01   before a release: the fragments become its section, with this day

The reference needs no run; console blocks take some seconds a page (`--no-consoles` leaves them out).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "tests"))

from consoles import has_commands, refreshed
from fragments import fragments, released, unreleased
from pages import ROOT, generated, pages, replace_generated
from pictures import pictures
from reference import PARTS, shown_file

from agac import __version__


def part(name: str) -> str:
    """The text of a generated part, with its last line end."""
    if name.startswith("file "):
        path, _, name = name.removeprefix("file ").partition(" as ")
        return shown_file(path, name or path)
    return unreleased() if name == "unreleased" else PARTS[name]()


def made_anew(text: str) -> str:
    """A page with its generated parts made anew."""
    return replace_generated(text, {match[1]: part(match[1]) for match in generated(text)})


def all_pages() -> list[Path]:
    """The pages that may have generated parts."""
    return [*pages(), ROOT / "CHANGELOG.md"]


def main(arguments: list[str]) -> int:
    """Gives the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated parts of the documentation.")
    parser.add_argument("pages", nargs="*", type=Path, help="only these pages")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when something is out of date")
    parser.add_argument("--no-consoles", action="store_true", help="leave the output of commands as it is")
    release = "make the section of this version from the fragments"
    parser.add_argument("--release", metavar="DAY", type=date.fromisoformat, help=release)
    flags = parser.parse_args(arguments)
    if flags.release:
        changelog = ROOT / "CHANGELOG.md"
        text = made_anew(changelog.read_text("utf-8"))
        changelog.write_text(released(text, __version__, str(flags.release)), encoding="utf-8")
        for path in fragments():
            path.unlink()
        return 0
    stale = 0
    for page in [path.resolve() for path in flags.pages] or all_pages():
        before = page.read_text("utf-8")
        after = made_anew(before)
        if not flags.check:
            page.write_text(after, encoding="utf-8")
        if not flags.no_consoles and has_commands(page):
            with tempfile.TemporaryDirectory() as folder:
                after = refreshed(page, after, Path(folder) / "home")
        if after != before:
            stale += 1
            print(f"{'out of date' if flags.check else 'written'}: {page.relative_to(ROOT)}")
        if not flags.check:
            page.write_text(after, encoding="utf-8")
    if not flags.pages and not flags.no_consoles:
        with tempfile.TemporaryDirectory() as folder:
            made = pictures(Path(folder) / "home")
        for path in (path for path, text in made.items() if text != path.read_text("utf-8")):
            stale += 1
            print(f"{'out of date' if flags.check else 'written'}: {path.relative_to(ROOT)}")
            if not flags.check:
                path.write_text(made[path], encoding="utf-8")
    return 1 if flags.check and stale else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

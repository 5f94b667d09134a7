"""`make docs`: every page is in the site, every link of it leads somewhere, and it asks no other host for anything."""

import colorsys
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml
from pages import DIRECTIVES, ROOT, pages
from support.services import services, starts, starts_service

WITH_MKDOCS = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("mkdocs", "mkdocstrings_handlers"))),
    reason="mkdocs or a plugin of it is not installed: pip install -e '.[docs]'",
)
PAGES = [page for page in pages() if page.is_relative_to(ROOT / "docs")]
SOURCES = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href", "object": "data"}
"""What a browser fetches by itself."""
PICTURE = ROOT / "docs/assets/architecture.svg"


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """The site of the repository at `root`, as `make docs` makes it."""
    starts("MkDocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(root / "mkdocs.yml"), "-d", str(site)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment, timeout=150)


def copied(folder: Path) -> Path:
    """A copy of the repository, as far as pages may lead to it."""
    left = shutil.ignore_patterns(".*", "__pycache__", "output", "site", "tests")
    return shutil.copytree(ROOT, folder / "repository", ignore=left)


@pytest.fixture(scope="module")
@starts_service
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a copy with one more link."""
    copy, folder = copied(tmp_path_factory.mktemp("docs")), tmp_path_factory.mktemp("site")
    page = copy / "docs/guide/workflows.md"
    link = "[whole](../../workflows/product_reviews.yml) [home](../../README.md)"
    page.write_text(f"{page.read_text('utf-8')}\n{link}\n", "utf-8")
    made = build(copy, folder)
    assert made.returncode == 0, made.stderr
    assert "WARNING" not in made.stderr
    return folder


@dataclass
class Seen(HTMLParser):
    """What there is in a page: where it leads, what it fetches, the text of its paragraphs."""

    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)
    paragraphs: list[str] = field(default_factory=list)
    classes: set[str] = field(default_factory=set)
    _open: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.classes |= set(found.get("class", "").split())
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in SOURCES and SOURCES[tag] in found:
            self.fetched.append(found[SOURCES[tag]])
        if tag in {"p", "code", "li", "td"}:
            self._open.append(tag)
            self.paragraphs += [""] if tag == "p" else []

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            del self._open[len(self._open) - 1 - self._open[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["p"]:
            self.paragraphs[-1] += data


@cache
def seen(page: Path) -> Seen:
    found = Seen()
    found.feed(page.read_text("utf-8"))
    return found


def html_pages(site: Path) -> list[Path]:
    """Every page but the one for what is not found, whose links are those of a server's root."""
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


def made_of(page: Path) -> str:
    """The file of the site that a page of docs/ becomes."""
    return page.relative_to(ROOT / "docs").with_suffix(".html").as_posix().replace("README.html", "index.html")


def nav() -> list[str]:
    """The pages of the navigation, in order."""

    def walk(entry: object) -> list[str]:
        if isinstance(entry, str):
            return [entry]
        inner = entry.values() if isinstance(entry, dict) else entry
        assert isinstance(inner, list) or isinstance(entry, dict)
        return [path for each in inner for path in walk(each)]

    return walk(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    found = nav()
    assert len(found) == len(set(found))
    assert {path.relative_to(ROOT / "docs").as_posix() for path in PAGES} == set(found) - {"CHANGELOG.md"}


@WITH_MKDOCS
def test_every_page_is_made_and_can_be_searched_and_no_program_is(site: Path) -> None:
    made = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert {made_of(page) for page in PAGES} | {"CHANGELOG.html", "404.html"} <= made
    assert not [path for path in made if path.endswith((".py", ".pyc", ".md"))]
    found = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    assert {made_of(page) for page in PAGES} <= {entry["location"].partition("#")[0] or "index.html" for entry in found}
    assert any("SchemaMismatch" in entry["text"] for entry in found)
    (api,) = [entry for entry in found if entry["title"] == "Python API"]  # what one searches for
    assert api["location"] == "reference/python.html"
    of_run = [entry["text"] for entry in found if entry["location"].endswith("#agac.api.task_run.arun")]
    assert "KeyboardInterrupt" in of_run[0], "its docstring is there"


@WITH_MKDOCS
def test_the_site_asks_no_other_host_for_anything(site: Path) -> None:
    for page in [*html_pages(site), site / "404.html"]:
        foreign = [path for path in seen(page).fetched if re.match(r"([a-z]+:)?//", path)]
        assert foreign == [], page.relative_to(site)
        for path in seen(page).fetched if page.name != "404.html" else ():
            assert (page.parent / unquote(path)).resolve().exists(), f"{page.relative_to(site)}: {path}"
        assert "mermaid" not in seen(page).classes, "the theme would fetch what draws it"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", sheet.read_text("utf-8")), sheet.name


@WITH_MKDOCS
def test_no_markdown_is_left_over_and_no_comment_for_the_tests(site: Path) -> None:
    for page in html_pages(site):
        text = page.read_text("utf-8")
        for directive in (*DIRECTIVES, "generated", "/generated"):
            assert f"<!-- {directive}" not in text, page.relative_to(site)
        for paragraph in seen(page).paragraphs:
            assert not re.search(r"^\s*([-*|] |```|\d\. |#+ )|\*\*|\]\(", paragraph, re.M), f"{page.name}: {paragraph}"


@WITH_MKDOCS
def test_a_bar_in_the_code_of_a_table_is_a_bar(site: Path) -> None:
    text = (site / "reference/workflow.html").read_text("utf-8")
    assert "<code>{sentiment: &quot;positive|neutral|negative&quot;, reason: string}</code>" in text.replace(
        "&#124;", "|"
    )
    for page in html_pages(site):
        assert not re.search(r"<code>[^<\n]*\\\|[^<\n]*</code>", page.read_text("utf-8")), page.name


@WITH_MKDOCS
def test_on_a_phone_a_row_of_a_table_is_a_block_and_each_cell_names_its_column(site: Path) -> None:
    for page in html_pages(site):
        for table in re.findall(r"<table>.*?</table>", page.read_text("utf-8"), re.DOTALL):
            names = [
                re.sub(r"<.*?>", "", name).replace('"', "&quot;")
                for name in re.findall(r"<th\b[^>]*>(.*?)</th>", table)
            ]
            cells = re.findall(r'<td data-label="([^"]*)"', table)
            assert cells == names * (len(cells) // len(names)), page.name
            assert len(cells) == table.count("<td"), page.name
    phone = (site / "assets/site.css").read_text("utf-8").partition("@media screen and (max-width: 44.9844em)")[2]
    assert "display: block" in phone
    assert 'content: attr(data-label) " "' in phone


def colours(site: Path, scheme: str) -> dict[str, str]:
    """The colours of a scheme by name, as the sheets of the site set them: the more exact rule wins, then the last."""
    here = {":root", f"[data-md-color-scheme={scheme}]", "[data-md-color-primary=teal]", "[data-md-color-accent=teal]"}
    sheets = [*(site / "assets/stylesheets").glob("main.*.css"), *(site / "assets/stylesheets").glob("palette.*.css")]
    text = "".join(sheet.read_text("utf-8") for sheet in [*sheets, site / "assets/site.css"]).replace('"', "")
    rules: list[tuple[int, str]] = []
    for selectors, body in re.findall(r"([^{}]+)\{([^{}]*--md-[^{}]*)\}", text):
        for selector in re.sub(r"/\*.*?\*/", "", selectors, flags=re.DOTALL).strip().split(","):
            if set(re.findall(r":root|\[.*?\]|[^\[\]:]+|:.*", selector.strip())) <= here:
                rules.append((selector.count("["), body))
    rules.sort(key=lambda rule: rule[0])
    return dict(found for _, body in rules for found in re.findall(r"(--md-[\w-]+):\s*([^;]+)", body))


def painted(colour: str, known: dict[str, str], under: tuple[float, ...] = (1, 1, 1)) -> tuple[float, ...]:
    """A colour as red, green and blue from 0 to 1, over what is under it."""
    while "var(" in colour:
        colour = re.sub(r"var\((--[\w-]+)\)", lambda name: known[name[1]], colour)
    if colour.startswith("#"):
        digits = colour[1:] if len(colour) > 5 else "".join(digit * 2 for digit in colour[1:])
        *parts, alpha = (int((digits + "ff")[place : place + 2], 16) / 255 for place in (0, 2, 4, 6))
    else:
        hue, saturation, light, alpha = (float(number) for number in re.findall(r"[\d.]+", colour))
        parts = list(colorsys.hls_to_rgb(hue / 360, light / 100, saturation / 100))
    return tuple(part * alpha + below * (1 - alpha) for part, below in zip(parts, under, strict=True))


def contrast(text: tuple[float, ...], under: tuple[float, ...]) -> float:
    """As WCAG 2 defines it."""
    light, dark = sorted(
        (
            sum(
                weight * (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4)
                for weight, part in zip((0.2126, 0.7152, 0.0722), colour, strict=True)
            )
            for colour in (text, under)
        ),
        reverse=True,
    )
    return (light + 0.05) / (dark + 0.05)


@WITH_MKDOCS
@pytest.mark.parametrize("scheme", ["default", "slate"])
def test_every_text_has_the_contrast_of_aa(site: Path, scheme: str) -> None:
    known = colours(site, scheme)
    page, code, head = "--md-default-bg-color", "--md-code-bg-color", "--md-primary-fg-color"
    pairs = [(f"--md-{name}", page) for name in ("default-fg-color", "typeset-color", "default-fg-color--light")]
    pairs += [(name, under) for name in ("--md-typeset-a-color", "--md-accent-fg-color") for under in (page, code)]
    pairs += [("--md-primary-bg-color", head), ("--md-code-fg-color", code)]
    pairs += [(name, code) for name in known if re.fullmatch(r"--md-code-hl-\w+-color", name)]
    assert len(pairs) == 21
    for text, under in pairs:
        below = painted(known[under], known)
        assert contrast(painted(known[text], known, below), below) >= 4.5, f"{text} on {under}"


@WITH_MKDOCS
def test_a_search_finds_what_explains_a_thing_before_what_only_names_it(site: Path) -> None:
    entries = json.loads((site / "search/search_index.json").read_text("utf-8"))["docs"]
    asked = {
        "python api": "guide/python",
        "resume": "guide/crash-and-resume",
        "cost": "guide/cost",
        "csv": "guide/inputs",
    }
    for words, page in asked.items():
        found = [one for one in entries if one["location"].startswith(f"{page}.html")]
        text = " ".join(one["title"] + one["text"] for one in found).lower()
        assert all(word in text for word in words.split()), page
        assert all(one["boost"] >= 4 for one in found)
    history = [
        one["boost"] for one in entries if one["location"].startswith(("CHANGELOG", "architecture", "decisions"))
    ]
    assert max(history) < 1
    assert not [one for one in entries if one["location"].startswith("files/")]


@WITH_MKDOCS
def test_a_console_block_marks_prompts_and_output_so_that_commands_alone_are_copied(site: Path) -> None:
    text = (site / "guide/getting-started.html").read_text("utf-8")
    assert '<div class="language-console highlight">' in text
    assert re.search(
        r'<span class="gp">\$ </span>agac<span class="w"> </span>run|<span class="gp">\$ </span>agac run', text
    )
    assert re.search(r'<span id="__span-\d+-\d+"><span class="go">reviews, run 1: 5 rows, 5 done</span>', text)
    style = (site / "assets/site.css").read_text("utf-8")
    assert "[data-md-copying] :is(.gp, span:has(> .go))" in style
    assert 'href="../assets/site.css"' in text
    shown = (site / "guide/workflows.html").read_text("utf-8")
    assert '<span class="filename">data/tickets.jsonl</span>' in shown, "the file that a block shows is its title"


@WITH_MKDOCS
def test_a_file_outside_is_copied_into_the_site(site: Path) -> None:
    found = (site / "files/workflows/product_reviews.yml").read_bytes()
    assert found == (ROOT / "workflows/product_reviews.yml").read_bytes()
    links = seen(site / "guide/workflows.html").links
    assert {"../files/workflows/product_reviews.yml", "../files/index.html"} <= set(links)
    assert "../guide/getting-started.html" in seen(site / "files/index.html").links


@services
@WITH_MKDOCS
def test_what_is_broken_or_forgotten_fails_the_build(tmp_path: Path) -> None:
    """Of a site of three pages, which is made sooner."""
    copy, kept = copied(tmp_path), ["README.md", "concepts.md", "glossary.md"]
    for page in (copy / "docs").rglob("*.md"):
        if page.relative_to(copy / "docs").as_posix() not in kept:
            page.unlink()
    settings = copy / "mkdocs.yml"
    before, _, _ = settings.read_text("utf-8").partition("\nnav:")
    settings.write_text(f"{before}\nnav: {json.dumps(kept)}\n", "utf-8")
    (copy / "docs/forgotten.md").write_text("# Forgotten\n", "utf-8")
    page = copy / "docs/glossary.md"
    page.write_text(page.read_text("utf-8") + "\n[a](nowhere.md) [b](concepts.md#nowhere) [c](../gone.yml)\n", "utf-8")
    made = build(copy, tmp_path / "broken")
    assert made.returncode != 0
    for sign in ("forgotten.md", "'nowhere.md'", "'concepts.md#nowhere'", "'../gone.yml'"):
        assert sign in made.stderr


def test_the_glossary_has_the_words_of_the_design_in_its_order() -> None:
    text = (ROOT / "docs/glossary.md").read_text("utf-8")
    first = text.partition("## Words around them")[0]
    words = re.findall(r"^\| ([A-Z][\w, ]+) \| .{10,} \| \[.+\]\(.+\) \|$", first, re.M)
    assert words == [
        "Project", "Workflow", "Stage", "Row", "Task", "Fingerprint",
        "Request, Reply", "Outcome", "Run", "Batch", "Lane", "Plan",
    ]  # fmt: skip
    lines = [line for line in text.split("\n") if line.startswith("| ") and not line.startswith("| word ")]
    assert len(lines) >= 20
    assert all(re.search(r"\]\([\w/.-]+\.md(#[\w-]+)?\) \|$", line) for line in lines if "---" not in line)


def test_the_picture_says_what_it_shows_which_is_there_and_needs_nothing_else() -> None:
    text = PICTURE.read_text("utf-8")
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.get("role") == "img"
    labels = [root.find(f"{space}{name}") for name in ("title", "desc")]
    assert root.get("aria-labelledby", "").split() == [label.get("id") for label in labels if label is not None]
    assert all(label is not None and label.text and len(label.text) > 10 for label in labels)
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"href|<image|@import|url\((?!#)", text)
    assert "assets/architecture.svg" in (ROOT / "docs/architecture.md").read_text("utf-8")
    names = re.findall(r'class="name"[^>]*>([^<]+)<', text)
    engine = {path.stem for path in (ROOT / "agac/engine").rglob("*.py")}
    folders = {path.name for path in (ROOT / "agac").iterdir()}
    outside = {"files in git", "rows", "provider", "results"}
    found = {word for name in names if name not in outside for word in name.partition(":")[0].split(", ")}
    assert found <= engine | folders, found - engine - folders
    shown = "cli api spec plan input_rows executor tasks rate_limiter validate settle store"
    assert set(shown.split()) <= found

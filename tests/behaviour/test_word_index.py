"""`agac index`: what it finds is what a scan finds, it is gone on with after a kill, and it says what it lacks."""

import asyncio
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.project import SENTIMENT, ProjectFolder, python
from support.server import Server

from agac import api
from agac.api import monitor
from agac.api.monitor import RowFilters, RowPage
from agac.core.errors import UsageError
from agac.store import words

TEXTS = ["Light shoes, fine", 'wörter\nund "Zeichen"', "C:\\new\\tail", "light AND heavy", "don't NOT", "Größe 42", "x"]


@pytest.fixture
def indexed(project: ProjectFolder, server: Server) -> ProjectFolder:
    """A run of 21 rows, indexed."""
    project.asks(server)
    rows = [{"id": f"r-{n}", "text": f"{TEXTS[n % 7]} no{n}"} for n in range(21)]
    project.run(project.workflow(rows=rows, stages=[{"name": "s", "prompt": "${text}", "output_schema": SENTIMENT}]))
    api.index(project=project.root)
    return project


def page(project: ProjectFolder, text: str, limit: int = 50, **filters: Any) -> RowPage:
    return asyncio.run(monitor.arows(1, RowFilters(text=text, **filters), None, limit, project=project.root))


def ids(project: ProjectFolder, text: str, **filters: Any) -> list[str]:
    """Of all pages of two rows."""
    found, after = [], None
    while True:
        filled = RowFilters(text=text, **filters)
        one = asyncio.run(monitor.arows(1, filled, after, 2, project=project.root))
        found += [row["id"] for row in one.rows]
        after = one.next
        if after is None:
            return found


def scanned(project: ProjectFolder, text: str) -> list[str]:
    """The ids of rows with all these words, in input, result or message, by reading everything."""
    typed = [(word, piece.endswith("*")) for piece in text.lower().split() for word in re.findall(r"\w+", piece)]
    found = []
    for name, data, value, message in project.query(
        "SELECT r.id, data, value, error_message FROM row r LEFT JOIN result v ON v.id = r.result_id ORDER BY r.key"
    ):
        said = [json.dumps(json.loads(one), ensure_ascii=False) for one in (data, value) if one]
        plain = " ".join(re.sub(r"\\[nt]", " ", re.sub(r"\\\\", " ", one)) for one in said) + f" {message or ''}"
        own = re.findall(r"\w+", plain.lower())
        if all(any(one == word or (begins and one.startswith(word)) for one in own) for word, begins in typed):
            found.append(name)
    return found


@pytest.mark.parametrize(
    "text",
    ["light", "LIGHT shoes", "shoes light", "wör*", "und zeichen", "new", "größe", "no1", "no1*", "id", "missing",
     '"quote', "light AND", "NOT", "a OR b*", "text:light", "NEAR(light, 2)", "don't", "^light", "{light} + -", "42"],
)  # fmt: skip
def test_what_it_finds_is_what_a_scan_finds(indexed: ProjectFolder, text: str) -> None:
    assert ids(indexed, text) == scanned(indexed, text)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(st.sampled_from("abglhtxno14\" *'():^-+{}NOTANDÖö\\"), min_size=1, max_size=12))
def test_nothing_that_is_typed_breaks_it(indexed: ProjectFolder, text: str) -> None:
    if re.search(r"[^\W*]\*+[^\s]", text) or not re.search(r"\w", text):
        page(indexed, text)  # a star within a piece, or no word at all: no error is all that is asked
    else:
        assert ids(indexed, text) == scanned(indexed, text)


def test_text_without_words_is_looked_for_one_by_one(indexed: ProjectFolder) -> None:
    found = page(indexed, ":\\")
    assert (len(found.rows), found.note, found.sorts) == (3, None, ("place", "id"))


def test_other_filters_hold_too(indexed: ProjectFolder) -> None:
    assert ids(indexed, "light", state="done") == scanned(indexed, "light")
    assert ids(indexed, "light", state="failed") == []
    assert ids(indexed, "light", sort="id") == sorted(scanned(indexed, "light"))
    assert ids(indexed, "light", id="r-1") == [
        one for one in sorted(scanned(indexed, "light")) if one.startswith("r-1")
    ]


def changed(project: ProjectFolder, statement: str) -> None:
    """As a run would, which says so in its revision."""
    with project.changed() as change:
        change(statement)
        change("UPDATE run SET revision = revision + 1")


def test_rows_that_come_are_looked_at_and_rows_that_change_are_told_of(indexed: ProjectFolder) -> None:
    assert "missing" not in str(page(indexed, "light").note)
    new = "1, 'new', 0, 99, hash, '{\"a\":\"a light new one\"}', 1, seen FROM row WHERE key = 2"
    changed(indexed, f"INSERT INTO row (run_id, id, occurrence, ordinal, hash, data, state, seen) SELECT {new}")
    heavy = """hash = randomblob(16), result_id = NULL, data = '{"a":"heavy now"}'"""
    changed(indexed, f"UPDATE row SET {heavy} WHERE id = 'r-0'")
    before = [one for one in scanned(indexed, "light") if one != "new"]
    assert ids(indexed, "light") == [*before, "new"]  # not r-0, which the index still has
    assert ids(indexed, "heavy now") == []
    assert "those that changed are missing until: agac index --run 1" in str(page(indexed, "light").note)
    api.index(project=indexed.root)
    assert ids(indexed, "heavy now") == ["r-0"]
    assert sorted(ids(indexed, "light")) == sorted([*before, "new"])
    assert "missing" not in str(page(indexed, "light").note)


def test_rows_that_were_open_are_looked_at_once_they_have_ended(indexed: ProjectFolder) -> None:
    changed(indexed, "UPDATE row SET state = 0, result_id = NULL WHERE id = 'r-3'")
    assert api.index(project=indexed.root).open == 1
    changed(indexed, "UPDATE row SET state = 2, error_message = 'unheard of' WHERE id = 'r-3'")
    assert ids(indexed, "unheard") == ["r-3"]
    assert ids(indexed, "heavy light").count("r-3") == 1
    assert api.index(project=indexed.root).open == 0
    assert ids(indexed, "unheard") == ["r-3"]


KILLED = """
import os, sys
from agac import api
from agac.store import words
words.AT_ONCE, walk, slices = 5, words._walk, []
def walk_or_die(*about):
    slices.append(walk(*about))
    if len(slices) == 2:
        os.kill(os.getpid(), 9)
    return slices[-1]
words._walk = walk_or_die
api.index(project=sys.argv[1])
"""


def test_a_killed_walk_is_gone_on_with(indexed: ProjectFolder) -> None:
    indexed.agac("index", "--drop", code=0)
    killed = python(indexed.root, "-c", KILLED, str(indexed.root))
    assert killed.code == -9, killed.err
    assert "looked at one by one" in str(page(indexed, "light").note)
    assert ids(indexed, "light") == scanned(indexed, "light")
    assert in_file(indexed, "SELECT walked FROM about") == [(10,)]
    assert api.index(project=indexed.root).rows == 21
    assert in_file(indexed, "SELECT count(*) FROM stamp WHERE version > 0") == [(0,)]
    assert ids(indexed, "light") == scanned(indexed, "light")
    assert "missing" not in str(page(indexed, "light").note)


def in_file(project: ProjectFolder, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(project.root / ".agac/words-1.db")) as file:
        return file.execute(statement).fetchall()


@pytest.mark.parametrize("damage", ["garbage", "another store"])
def test_an_index_that_does_not_fit_is_none_and_is_made_anew(indexed: ProjectFolder, damage: str) -> None:
    file = indexed.root / ".agac/words-1.db"
    if damage == "garbage":
        file.write_bytes(b"no database at all" * 400)
    else:
        changed(indexed, "UPDATE run SET created_at = created_at + 1")
    assert page(indexed, "ight").note is None
    assert len(page(indexed, "ight").rows) == 6
    assert api.index(project=indexed.root).rows == 21
    assert ids(indexed, "light") == scanned(indexed, "light")


def test_without_fts5_it_says_so(indexed: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(words, "_TYPED", ("CREATE VIRTUAL TABLE temp.typed USING fts_of_another_age (text)",))
    for call in (lambda: api.index(project=indexed.root), lambda: page(indexed, "light")):
        with pytest.raises(UsageError, match="has no FTS5"):
            call()


def test_the_command_says_what_it_made_and_status_how_large_it_is(indexed: ProjectFolder) -> None:
    assert re.fullmatch(r"Run 1: 21 rows in its index, [\d.,]+ MB\n", indexed.agac("index", code=0).out)
    told = json.loads(indexed.agac("index", "--run", "1", "--json", code=0).out)
    assert told["rows"] == 21
    assert "; indexes of words: " in indexed.agac("status", code=0).out
    assert json.loads(indexed.agac("status", "--json", code=0).out)["index_bytes"] >= told["bytes"] > 0
    indexed.agac("index", "--drop", code=0)
    assert indexed.agac("index", "--drop", code=0).out == "Run 1 has no index\n"
    assert list(Path(indexed.root, ".agac").glob("words-*")) == []
    assert "no run 7" in indexed.agac("index", "--run", "7", code=2).err


def test_gc_deletes_the_index_with_the_run(indexed: ProjectFolder) -> None:
    indexed.run(indexed.workflow(rows=[{"id": "z", "text": "other"}]))
    assert api.index(run=2, project=indexed.root).rows == 1
    api.gc(1, project=indexed.root)
    assert [one.name for one in Path(indexed.root, ".agac").glob("words-*.db")] == ["words-2.db"]

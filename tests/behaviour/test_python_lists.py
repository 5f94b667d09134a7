"""Functions that give several rows in the place of one."""

from typing import Any

from support.made import asked, errors, settled, values
from support.project import ProjectFolder

ECHO = {"model": "local/echo"}
PATH = "data/rows.jsonl"
CUT = """\
def cut(row):
    words = row["text"].split()
    if row["text"] == "none":
        return None
    if row["text"] == "empty":
        return []
    if len(words) == 1:
        return {**row, "word": words[0]}
    return [{"id": row["id"], "word": word} for word in words]


def odd(row):
    return {"a": [row, 7], "b": [row] * 100_001, "c": [row] * 3}[row["id"]]
"""
SAY = {"name": "say", "prompt": "${id}:${word}"}
FUNCTION = {"name": "cut", "python": "tools/cut.py:cut"}


def texts(project: ProjectFolder, rows: dict[str, str]) -> None:
    project.rows([{"id": id_, "text": text} for id_, text in rows.items()], PATH)


def workflow(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    project.write("tools/cut.py", CUT)
    project.workflow(path=PATH, defaults=ECHO, stages=list(stages) or [FUNCTION, SAY], stop_loss=False, **keys)


MIXED = {"a": "one", "b": "none", "c": "two words", "d": "empty", "e": "and three words"}


def test_lists_single_rows_none_and_empty_lists_in_one_run(project: ProjectFolder) -> None:
    texts(project, MIXED)
    workflow(project)
    report = settled(project)
    assert report.exit_code == 0
    assert report.invocation["calls"] == 1 + 2 + 3
    assert values(project, "say") == {
        "a": "a:one", "c/0": "c:two", "c/1": "c:words", "e/0": "e:and", "e/1": "e:three", "e/2": "e:words",
    }  # fmt: skip
    assert [line["id"] for line in project.envelopes()] == ["a", "c/0", "c/1", "e/0", "e/1", "e/2"]
    assert [line["row_number"] for line in project.envelopes()] == [1, 3, 3, 5, 5, 5]
    rows = report.summary["rows"]
    assert (rows["total"], rows["done"], rows["dropped"]) == (5, 4, 1)
    assert [line["id"] for line in project.envelopes(file="filtered.jsonl")] == ["b"]


def test_rows_change_from_one_to_many_and_back(project: ProjectFolder) -> None:
    texts(project, {"a": "one", "b": "two words"})
    workflow(project)
    assert asked(project) == 3
    texts(project, {"a": "one more", "b": "two"})
    assert asked(project) == 1, "a:one and b:two were asked before"
    assert values(project, "say") == {"a/0": "a:one", "a/1": "a:more", "b": "b:two"}
    texts(project, {"a": "none", "b": "empty"})
    assert asked(project) == 0
    assert (values(project, "say"), project.envelopes()) == ({}, [])
    texts(project, {"a": "one", "b": "two words"})
    assert asked(project) == 0
    assert values(project, "say") == {"a": "a:one", "b/0": "b:two", "b/1": "b:words"}
    project.write("tools/cut.py", CUT.replace('"word": word}', '"word": word.replace("words", "lines")}'))
    assert asked(project) == 1, "an edited function changes what it changed"
    project.write("tools/cut.py", CUT.replace("for word in words]", "for word in reversed(words)]"))
    assert asked(project) == 0
    assert values(project, "say") == {"a": "a:one", "b/0": "b:words", "b/1": "b:two"}


def test_a_list_with_something_else_or_too_much_in_it_fails_its_row(project: ProjectFolder) -> None:
    texts(project, dict.fromkeys("abc", "x"))
    workflow(project, {"name": "cut", "python": "tools/cut.py:odd"}, {"name": "say", "prompt": "${id}"})
    assert settled(project).exit_code == 3
    other, long = [(line["id"], line["error"]) for line in project.envelopes(file="errors.jsonl")]
    words = "[1] is a number; each row of a list is a dict (tools/cut.py:odd)"
    assert other == ("a", {"type": "PythonError", "message": words})
    assert (long[0], long[1]["type"], "100,001" in long[1]["message"]) == ("b", "InvalidRow", True)
    assert values(project, "say") == dict.fromkeys(["c/0", "c/1", "c/2"], "c")


def test_a_list_where_each_item_is_asked_for_fails_the_row(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "items": ["x y", "z"]}], PATH)
    project.write("tools/more.py", "def words(row):\n    return [{'word': w} for w in row['item'].split()]\n")
    each = {"name": "each", "explode": "items", "python": "tools/more.py:words"}
    workflow(project, each, {"name": "say", "prompt": "${word}"})
    assert settled(project).exit_code == 3
    assert [kind for kind, _ in errors(project, "each").values()] == ["PythonError"] * 2


def test_an_item_for_which_a_function_gives_nothing_leaves(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "items": [3, 4, 5]}, {"id": "b", "items": [6]}], PATH)
    project.write("tools/odd.py", "def odd(row):\n    return row if row['item'] % 2 else None\n")
    project.write("tools/more.py", "def twice(row):\n    return {**row, 'item': 2 * row['item']}\n")
    each = {"name": "each", "explode": "items", "python": "tools/odd.py:odd"}
    workflow(project, each, {"name": "twice", "python": "tools/more.py:twice"}, {"name": "say", "prompt": "${item}"})
    for _ in range(2):
        report = settled(project)
        assert (report.exit_code, values(project, "say")) == (0, {"a/0": "6", "a/2": "10"})
        assert report.summary["levels"][0]["rows"]["dropped"] == 2
        assert [line["id"] for line in project.envelopes(file="filtered.jsonl")] == ["a/1", "b/0"]


def test_a_workflow_may_end_in_a_function_that_gives_lists(project: ProjectFolder) -> None:
    texts(project, MIXED)
    workflow(project, {"name": "hello", "prompt": "h${id}"}, FUNCTION)
    assert settled(project).exit_code == 0
    assert [(line["id"], line["result"]) for line in project.envelopes()] == [
        ("a", {"id": "a", "text": "one", "word": "one", "hello": "ha"}),
        ("c/0", {"id": "c", "word": "two"}), ("c/1", {"id": "c", "word": "words"}),
        *((f"e/{n}", {"id": "e", "word": word}) for n, word in enumerate(["and", "three", "words"])),
    ]  # fmt: skip

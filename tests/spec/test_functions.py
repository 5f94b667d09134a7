"""`python: tools/clean.py:normalise`, checked without importing anything."""

from pathlib import Path

import pytest
from support.functions import Tools

NORMALISE = "tools/clean.py:normalise"
CLEAN = """\
import json
from functools import partial

def normalise(row):
    return row

async def fetch(row, /, tries=3, *, deep=False):
    return row

def pair(left, right): ...
def named(row, *, how): ...
def nothing(): ...
def stream(row):
    yield row
def keeps(row):
    def inner(row):
        yield row
    return list(inner(row))
class Tidy:
    def method(self): ...
short = lambda row: row
made = partial(pair, 1)
if json:
    def branch(row): ...
@partial
def decorated(one, two): ...
"""


FORM = "is not file.py:function, with a file of the project"


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    found = Tools(tmp_path)
    found.write("tools/clean.py", CLEAN)
    return found


@pytest.mark.parametrize(
    ("name", "is_async"),
    [("normalise", False), ("fetch", True), ("keeps", False), ("branch", False), ("decorated", False)],
)
def test_a_function_of_the_top_level_is_found(tools: Tools, name: str, is_async: bool) -> None:
    found = tools.ref(f"tools/clean.py:{name}")
    assert (found.file, found.shown) == ((tools.root / "tools/clean.py").resolve(), "tools/clean.py")
    assert (found.name, found.is_async, len(found.source_hash)) == (name, is_async, 16)
    assert str(found) == f"tools/clean.py:{name}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools/clean.py", f"'tools/clean.py' {FORM}"), (":normalise", f"':normalise' {FORM}"),
        ("tools/clean.py:", f"'tools/clean.py:' {FORM}"), ("tools/clean.py:a.b", f"'tools/clean.py:a.b' {FORM}"),
        ("tools/clan.py:normalise", "no such file: 'tools/clan.py'; did you mean 'tools/clean.py'?"),
        ("tools:normalise", "'tools' is not a Python file; write file.py:function, with a file of the project"),
        ("../x.py:f", "'../x.py' leads out of the project; name a path inside it"),
        ("tools/clean.py:normalize", "tools/clean.py has no function 'normalize'; did you mean 'normalise'?"),
        (
            "tools/clean.py:zzz",
            "tools/clean.py has no function 'zzz'; functions: normalise, fetch, keeps, branch, decorated",
        ),
    ],
)  # fmt: skip
def test_what_names_no_function_is_said_with_a_remedy(tools: Tools, text: str, message: str) -> None:
    assert tools.problems(text) == [message]


CALLED = "it is called with one argument: def NAME(row), or def NAME(rows) with group_by"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("pair", f"line 10: it takes 2 required parameters; {CALLED.replace('NAME', 'pair')}"),
        ("named", f"line 11: it takes how by name; {CALLED.replace('NAME', 'named')}"),
        ("nothing", f"line 12: it takes 0 required parameters; {CALLED.replace('NAME', 'nothing')}"),
        ("stream", "line 13: it is a generator; return a list of rows"),
        ("inner", "line 16 defines it inside 'keeps'; move it to the top level"),
        ("method", "line 20 defines it inside 'Tidy'; move it to the top level"),
        ("Tidy", "line 19 makes it a class; name a function"),
        ("short", "line 21 makes it a lambda; write def"),
        ("made", "line 22 makes it a value; name a function that is written with def"),
        ("partial", "line 2 imports it; name the file that defines it"),
    ],
)
def test_what_is_no_function_of_one_row_is_said_with_its_line(tools: Tools, name: str, why: str) -> None:
    assert tools.problems(f"tools/clean.py:{name}") == [f"tools/clean.py cannot be used as {name!r}: {why}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef f(row)\n    pass\n", "tools/bad.py:2:11: not valid Python: expected ':'"),
        ("def f(row): \0\n", "tools/bad.py"),
        ("f = " + "(" * 300 + ")" * 300, "tools/bad.py:1:"),
    ],
)
def test_a_file_that_is_no_python_is_named_with_its_line(tools: Tools, text: str, message: str) -> None:
    tools.write("tools/bad.py", text)
    tools.write("tools/user.py", "def f(row):\n    from tools import bad\n")
    for file in ("bad", "user"):
        [problem] = tools.problems(f"tools/{file}.py:f")
        assert problem.startswith(message)


def test_links_are_followed_and_end_inside(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tools.root / "short.py").symlink_to("tools/clean.py")
    assert tools.ref("short.py:normalise").shown == "tools/clean.py"
    outside = tmp_path_factory.mktemp("outside") / "x.py"
    outside.write_text("def f(row): ...\n")
    (tools.root / "x.py").symlink_to(outside)
    assert tools.problems("x.py:f") == ["'x.py' leads out of the project; name a path inside it"]
    tools.write("y.py", "\nimport x\ndef f(row): ...\n")
    assert tools.problems("y.py:f") == ["y.py:2: imports x.py, a link that leads out of the project; copy it into it"]


def test_a_later_definition_counts(tools: Tools) -> None:
    tools.write("a.py", "f = 1\ndef f(row): ...\ndef g(row): ...\ng = 1\n")
    assert tools.ref("a.py:f").name == "f"
    assert tools.problems("a.py:g")[0].startswith("a.py cannot be used as 'g': line 4 makes it a value")


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("from tools import words", "tools/words.py"),
        ("from tools.words import low", "tools/words.py"),
        ("import tools.words as w", "tools/words.py"),
        ("from . import words", "tools/words.py"),
        ("from .words import low", "tools/words.py"),
        ("from .words import low", "tools/deep/most.py"),
        ("from .words import low", "shared.py"),
        ("from .deep import *", "tools/deep/other.py"),
        ("from .deep import most", "tools/deep/__init__.py"),
        ("def late():\n    import shared", "shared.py"),
        ("import json", "tools/clean.py"),
        ("import json", "tools/__init__.py"),
    ],
)
def test_an_edited_module_that_is_imported_changes_the_hash(tools: Tools, statement: str, changed: str) -> None:
    tools.write("tools/__init__.py", "")
    tools.write("tools/clean.py", f"{statement}\n{CLEAN}")
    tools.write("tools/words.py", "from .deep.most import x\nfrom ..tools.deep import most\nimport shared\n")
    tools.write("tools/deep/__init__.py", "")
    tools.write("tools/deep/most.py", "")
    tools.write("tools/deep/other.py", "import tools.clean\n")  # in a circle
    tools.write("shared.py", "")
    before = tools.ref(NORMALISE).source_hash
    assert tools.ref(NORMALISE).source_hash == before
    file = tools.root / changed
    file.write_text(file.read_text() + "# another word\n")
    assert tools.ref(NORMALISE).source_hash != before


def test_the_hash_goes_by_the_text_of_what_is_imported_and_its_place_alone(
    tools: Tools, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Tools(tmp_path_factory.mktemp("other"))
    for one in (tools, other):
        one.write("tools/clean.py", f"import time\nfrom ...... import far\n{CLEAN}")
    before = tools.ref(NORMALISE).source_hash
    assert other.ref("tools/clean.py:fetch").source_hash == before
    for file in ("tools/unused.py", "json/other.py", "time.py", "tools/data.json"):
        tools.write(file, "x = 1\n")
        assert tools.ref(NORMALISE).source_hash == before

"""`python: tools/clean.py:normalise`, checked without importing anything."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agac.core.errors import Where
from agac.spec.python_code import FunctionRef, parse_reference

WHERE = Where("workflows/w.yml", 5, 13, "stages[0].python")
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


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def to(path: str, text: str) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    to("tools/clean.py", CLEAN)
    return to


def ref(root: Path, text: str = "tools/clean.py:normalise") -> FunctionRef:
    found, problems = parse_reference(text, WHERE, root)
    assert found is not None, list(map(str, problems))
    assert problems == []
    return found


def problems(root: Path, text: str) -> list[str]:
    found, told = parse_reference(text, WHERE, root)
    assert found is None
    return [str(problem).removeprefix("workflows/w.yml:5:13: stages[0].python: ") for problem in told]


@pytest.mark.parametrize(
    ("name", "is_async"),
    [("normalise", False), ("fetch", True), ("keeps", False), ("branch", False), ("decorated", False)],
)
def test_a_function_of_the_top_level_is_found(tmp_path: Path, write: object, name: str, is_async: bool) -> None:
    found = ref(tmp_path, f"tools/clean.py:{name}")
    assert (found.file, found.shown) == ((tmp_path / "tools/clean.py").resolve(), "tools/clean.py")
    assert (found.name, found.is_async, len(found.source_hash)) == (name, is_async, 16)
    assert str(found) == f"tools/clean.py:{name}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools/clean.py", "'tools/clean.py' is not file.py:function, as tools/clean.py:normalise"),
        (":normalise", "':normalise' is not file.py:function, as tools/clean.py:normalise"),
        ("tools/clean.py:", "'tools/clean.py:' is not file.py:function, as tools/clean.py:normalise"),
        ("tools/clean.py:a.b", "'tools/clean.py:a.b' is not file.py:function, as tools/clean.py:normalise"),
        ("tools/clan.py:normalise", "no such file: 'tools/clan.py'; did you mean 'tools/clean.py'?"),
        ("tools:normalise", "'tools' is not a Python file; write file.py:function, as tools/clean.py:normalise"),
        ("../x.py:f", "'../x.py' leads out of the project; name a path inside it"),
        ("tools/clean.py:normalize", "tools/clean.py has no function 'normalize'; did you mean 'normalise'?"),
        (
            "tools/clean.py:zzz",
            "tools/clean.py has no function 'zzz'; functions: normalise, fetch, keeps, branch, decorated",
        ),
        (
            "tools/clean.py:pair",
            (
                "tools/clean.py cannot be used as 'pair': line 10: it takes 2 required parameters; it is called with "
                "one row: def pair(row)"
            ),
        ),
        (
            "tools/clean.py:named",
            (
                "tools/clean.py cannot be used as 'named': line 11: it takes how by name; it is called with one row: "
                "def named(row)"
            ),
        ),
        (
            "tools/clean.py:nothing",
            (
                "tools/clean.py cannot be used as 'nothing': line 12: it takes 0 required parameters; it is called "
                "with one row: def nothing(row)"
            ),
        ),
        (
            "tools/clean.py:stream",
            "tools/clean.py cannot be used as 'stream': line 13: it is a generator; return a list of rows",
        ),
        (
            "tools/clean.py:inner",
            "tools/clean.py cannot be used as 'inner': line 16 defines it inside 'keeps'; move it to the top level",
        ),
        (
            "tools/clean.py:method",
            "tools/clean.py cannot be used as 'method': line 20 defines it inside 'Tidy'; move it to the top level",
        ),
        ("tools/clean.py:Tidy", "tools/clean.py cannot be used as 'Tidy': line 19 makes it a class; name a function"),
        ("tools/clean.py:short", "tools/clean.py cannot be used as 'short': line 21 makes it a lambda; write def"),
        (
            "tools/clean.py:made",
            (
                "tools/clean.py cannot be used as 'made': line 22 makes it a value; name a function that is written "
                "with def"
            ),
        ),
        (
            "tools/clean.py:partial",
            "tools/clean.py cannot be used as 'partial': line 2 imports it; name the file that defines it",
        ),
    ],
)
def test_what_names_no_function_is_told_with_a_remedy(tmp_path: Path, write: object, text: str, message: str) -> None:
    assert problems(tmp_path, text) == [message]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\ndef f(row)\n    pass\n", "tools/bad.py:2:11: not valid Python: expected ':'"),
        ("def f(row): \0\n", "tools/bad.py"),
        ("f = " + "(" * 300 + ")" * 300, "tools/bad.py:1:"),
    ],
)
def test_a_file_that_is_no_python_is_told_at_its_line(
    tmp_path: Path, write: Callable[[str, str], Path], text: str, message: str
) -> None:
    write("tools/bad.py", text)
    [told] = problems(tmp_path, "tools/bad.py:f")
    assert told.startswith(message)


def test_so_is_a_module_that_it_imports(tmp_path: Path, write: Callable[[str, str], Path]) -> None:
    write("tools/user.py", "def f(row):\n    from tools import bad\n")
    write("tools/bad.py", "def g(:\n")
    [told] = problems(tmp_path, "tools/user.py:f")
    assert told.startswith("tools/bad.py:1:7: not valid Python: ")


def test_links_are_followed_and_end_inside(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, write: Callable[[str, str], Path]
) -> None:
    (tmp_path / "short.py").symlink_to("tools/clean.py")
    assert ref(tmp_path, "short.py:normalise").shown == "tools/clean.py"
    outside = tmp_path_factory.mktemp("outside") / "x.py"
    outside.write_text("def f(row): ...\n")
    (tmp_path / "x.py").symlink_to(outside)
    assert problems(tmp_path, "x.py:f") == ["'x.py' leads out of the project; name a path inside it"]
    write("y.py", "\nimport x\ndef f(row): ...\n")
    assert problems(tmp_path, "y.py:f") == [
        "y.py:2: imports x.py, a link that leads out of the project; copy it into it"
    ]


def test_a_later_definition_counts(tmp_path: Path, write: Callable[[str, str], Path]) -> None:
    write("a.py", "f = 1\ndef f(row): ...\ndef g(row): ...\ng = 1\n")
    assert ref(tmp_path, "a.py:f").name == "f"
    assert problems(tmp_path, "a.py:g")[0].startswith("a.py cannot be used as 'g': line 4 makes it a value")


def test_nothing_is_imported(tmp_path: Path, write: Callable[[str, str], Path]) -> None:
    write("loud.py", "raise SystemExit(9)\ndef f(row): ...\n")
    known = set(sys.modules)
    assert ref(tmp_path, "loud.py:f").name == "f"
    assert "loud" not in {name.rpartition(".")[2] for name in set(sys.modules) - known}


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
def test_an_edited_module_that_is_imported_changes_the_hash(
    tmp_path: Path, write: Callable[[str, str], Path], statement: str, changed: str
) -> None:
    write("tools/__init__.py", "")
    write("tools/clean.py", f"{statement}\n{CLEAN}")
    write("tools/words.py", "from .deep.most import x\nfrom ..tools.deep import most\nimport shared\n")
    write("tools/deep/__init__.py", "")
    write("tools/deep/most.py", "")
    write("tools/deep/other.py", "import tools.clean\n")  # in a circle
    write("shared.py", "")
    before = ref(tmp_path).source_hash
    assert ref(tmp_path).source_hash == before
    file = tmp_path / changed
    file.write_text(file.read_text() + "# another word\n")
    assert ref(tmp_path).source_hash != before


@pytest.mark.parametrize("other", ["tools/unused.py", "json/other.py", "time.py", "tools/data.json"])
def test_another_file_does_not(tmp_path: Path, write: Callable[[str, str], Path], other: str) -> None:
    write("tools/clean.py", f"import time\nfrom ...... import far\n{CLEAN}")
    before = ref(tmp_path).source_hash
    write(other, "x = 1\n")
    assert ref(tmp_path).source_hash == before


def test_the_hash_goes_by_the_text_and_its_place_alone(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, write: object
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "tools").mkdir()
    (other / "tools/clean.py").write_text(CLEAN)
    assert ref(other).source_hash == ref(tmp_path, "tools/clean.py:fetch").source_hash

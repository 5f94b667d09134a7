"""How functions are imported: projects and modules of one name do not meet, and errors say where."""

import sys
from pathlib import Path
from typing import Any

import pytest
from support.functions import WAYS

from agac.tools.processes import open_function


@pytest.fixture(autouse=True)
def _leaves_no_trace() -> Any:
    path, known = list(sys.path), set(sys.modules)
    yield
    assert sys.path == path
    assert not {name for name in set(sys.modules) - known if name.split(".")[0] in ("tools", "other", "words")}


@WAYS
@pytest.mark.parametrize(
    "statement",
    [
        "from .words import low", "from tools.words import low", "from . import words; low = words.low",
        "import tools.words; low = tools.words.low", "import tools.words as w; low = w.low",
        "import importlib; low = importlib.import_module('.words', __package__).low", "from tools.words import *",
    ],
)  # fmt: skip
@pytest.mark.parametrize("package", [True, False])
def test_helpers_are_imported_from_beside_and_from_the_root(
    tools: Any, processes: int | None, statement: str, package: bool
) -> None:
    if package:
        tools.write("tools/__init__.py", "")
    tools.write("tools/words.py", "def low(text): return text.lower()\n")
    tools.write("tools/clean.py", f"{statement}\ndef f(row): return {{'t': low(row['t'])}}\n")
    assert tools.gives({"t": "ABC"}, processes=processes) == {"t": "abc"}


def test_modules_of_one_name_in_several_folders_imported_when_the_function_is_called(tools: Any) -> None:
    tools.write("more.py", "y = 5\n")
    for folder in ("one", "two", "not-a-name"):
        source = "def f(row):\n    from .words import x\n    from more import y\n    return {'x': x, 'y': y}\n"
        tools.write(f"{folder}/clean.py", f"{source}# {folder}\n")
        tools.write(f"{folder}/words.py", f"x = {folder!r}\n")
    for folder in ("one", "two", "not-a-name"):
        assert tools.gives({}, f"{folder}/clean.py:f") == {"x": folder, "y": 5}


async def test_projects_of_one_process_do_not_meet(tools: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    roots = [tmp_path_factory.mktemp("project") for _ in range(2)]
    functions = []
    for number, root in enumerate(roots):
        (root / "tools").mkdir()
        (root / "tools/words.py").write_text(f"x = {number}\n")
        (root / "tools/clean.py").write_text("def f(row):\n    from tools.words import x\n    return {'x': x}\n")
        functions.append(open_function(type(tools)(root).ref(), root))

    async with functions[0] as one, functions[1] as two:
        assert [await call({}) for call in (one, two, one)] == [{"x": 0}, {"x": 1}, {"x": 0}]


def test_a_module_may_go_by_the_name_of_an_installed_one(tools: Any) -> None:
    tools.write("json.py", "mine = True\n")
    tools.write("yaml/words.py", "mine = True\n")  # a folder: the installed package comes first, as in Python
    tools.write(
        "tools/clean.py", "import json, yaml\ndef f(row): return {'m': json.mine, 'd': yaml.safe_load('[1]')}\n"
    )
    assert tools.gives() == {"m": True, "d": [1]}
    import json

    assert not hasattr(json, "mine")


@pytest.mark.parametrize("edited", ["tools/clean.py", "tools/words.py"])
def test_an_edited_file_is_imported_again_by_the_same_process(tools: Any, edited: str) -> None:
    tools.write("tools/words.py", "x = 1\n")
    tools.write("tools/clean.py", "from tools.words import x\nn = 1\ndef f(row): return {'sum': x + n}\n")
    assert tools.gives() == {"sum": 2}
    file: Path = tools.root / edited
    file.write_text(file.read_text().replace("= 1", "= 5"))  # of the same length, within the same second
    assert tools.gives() == {"sum": 6}
    assert not list(tools.root.rglob("__pycache__"))


@WAYS
async def test_a_file_that_changed_since_the_plan_is_not_run(tools: Any, processes: int | None) -> None:
    tools.write("tools/clean.py", "def f(row): return row\n")
    ref = tools.ref()
    tools.write("tools/clean.py", "def f(row): return None\n")
    error = await tools.refuses(ref, processes)
    assert error.message == "tools/clean.py, or a file that it imports, was changed meanwhile"


@WAYS
@pytest.mark.parametrize(
    ("text", "message", "remedy"),
    [
        (
            "\nimport nowhere_at_all\ndef f(row): ...\n",
            "ModuleNotFoundError: No module named 'nowhere_at_all' (tools/clean.py:2)",
            "Install the package that has 'nowhere_at_all'",
        ),
        (
            "import words\ndef f(row): ...\n",
            "ModuleNotFoundError: No module named 'words' (tools/clean.py:1)",
            "It stands beside tools/clean.py: write `from . import words`",
        ),
        (
            "from .words import nothing\ndef f(row): ...\n",
            "ImportError: cannot import name 'nothing' from 'tools.words'",
            "Correct tools/clean.py",
        ),
        (
            "def f(row): ...\n1 / 0\n",
            "ZeroDivisionError: division by zero (tools/clean.py:2)",
            "Correct tools/clean.py",
        ),
        ("def f(row): ...\nraise SystemExit(7)\n", "SystemExit: 7 (tools/clean.py:2)", "Correct tools/clean.py"),
    ],
)
async def test_a_file_that_cannot_be_imported_says_where(
    tools: Any, processes: int | None, text: str, message: str, remedy: str
) -> None:
    tools.write("tools/words.py", "x = 1\n")
    tools.write("tools/clean.py", text)
    error = await tools.refuses(processes=processes)
    assert error.message.startswith(f"tools/clean.py:f cannot be imported: {message}")
    assert error.remedy.startswith(remedy)
    shown, note = error.__notes__  # the remedy is one too
    assert shown == error.remedy
    assert note.startswith('Traceback (most recent call last):\n  File "tools/clean.py", line ')
    assert "agac" not in note


@pytest.mark.parametrize(
    ("decorator", "message"),
    [
        ("def deco(f): return 5", "tools/clean.py:f is no function once the file is imported"),
        ("def deco(f): return lambda a, b: 1", "tools/clean.py:f cannot be called with one argument, a row"),
    ],
)
async def test_what_a_decorator_makes_of_it_is_seen(tools: Any, decorator: str, message: str) -> None:
    tools.write("tools/clean.py", f"{decorator}\n@deco\ndef f(row): ...\n")
    error = await tools.refuses()
    assert error.message.startswith(message)
    assert error.remedy.startswith("Write def f(row)")


@WAYS
def test_a_decorated_async_function_is_awaited(tools: Any, processes: int | None) -> None:
    tools.write(
        "tools/clean.py",
        "def deco(f):\n    return lambda row: f({**row, 'b': 2})\n@deco\nasync def f(row): return row\n",
    )
    assert tools.gives({"a": 1}, processes=processes) == {"a": 1, "b": 2}


def test_a_late_import_that_fails_or_leads_out_of_the_project_is_said_in_the_users_words(
    tools: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tools.write("tools/words.py", "")
    outside = tmp_path_factory.mktemp("outside") / "linked.py"
    outside.write_text("x = 1\n")
    (tools.root / "tools/linked.py").symlink_to(outside)
    for statement, message in (
        ("from tools.words.more import x", "ModuleNotFoundError: No module named 'tools.words.more'; "),
        (
            "__import__('importlib').import_module('.linked', __package__)",
            "ImportError: tools.linked is a link that leads",
        ),
    ):
        tools.write("tools/clean.py", f"def f(row):\n    {statement}\n")
        failed = tools.fails()
        assert failed.message.startswith(message)
        assert failed.message.endswith(" (tools/clean.py:2)")
        assert "agac" not in failed.detail

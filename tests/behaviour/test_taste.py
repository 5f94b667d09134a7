"""Habits of the code that a machine can watch."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import agac
import agac.api

PACKAGE = Path(agac.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
PRINTERS = {"cli/terminal.py", "cli/progress.py"}
WRITERS = PRINTERS | {"simulator/__main__.py"}
SINK_USERS = {"engine/export.py", "engine/filtered.py"}
"""Modules whose `write_text` is that of a sink, which has one encoding."""
OTHER_DATABASES = {
    "data/formats/sqlite.py",
    "data/outputs/database.py",
    "data/outputs/tablecheck.py",
    "spec/databaseurl.py",
    "simulator/batches/records.py",
    "simulator/batches/state.py",
}
"""Modules that speak to databases of which the store knows nothing: the user's, the simulator's."""
DOCUMENTED = ("api/", "core/types.py", "core/errors.py", "core/keys.py")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call with the text of what is called."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def test_the_public_names_are_these() -> None:
    assert agac.api.__all__ == [
        "AgacError",
        "BackupReport",
        "BatchReport",
        "CancelReport",
        "CardReport",
        "CheckReport",
        "DataReport",
        "DoctorReport",
        "ExitCode",
        "GcReport",
        "GraphReport",
        "InspectReport",
        "PlanReport",
        "Problem",
        "QueryAnswer",
        "RetrieveReport",
        "Retry",
        "RetryChoice",
        "RowError",
        "RunOptions",
        "RunReport",
        "RunsReport",
        "SchemasReport",
        "SpecError",
        "StatusReport",
        "UsageError",
        "View",
        "WaitReport",
        "WhyReport",
        "backup",
        "batch_cancel",
        "batch_list",
        "batch_retrieve",
        "batch_status",
        "batch_wait",
        "doctor",
        "embedded_simulator",
        "export",
        "file_schema",
        "gc",
        "graph",
        "init",
        "inspect",
        "plan_run",
        "retry",
        "retry_choice",
        "row_ids",
        "run",
        "run_async",
        "run_several",
        "runs",
        "save_drawing",
        "show_card",
        "show_data",
        "sql",
        "status",
        "validate",
        "views",
        "why",
        "write_schemas",
    ]
    assert dir(agac) == sorted([*agac.api.__all__, "__version__"])
    for name in agac.api.__all__:
        assert getattr(agac, name) is getattr(agac.api, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agac.nothing


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_two_modules_print(path: Path) -> None:
    if name_of(path) in PRINTERS:
        return
    for called, node in calls(path):
        assert called not in ("print", "click.echo", "click.secho"), f"{name_of(path)}:{node.lineno}"
        if name_of(path) not in WRITERS:
            assert not called.startswith(("sys.stdout.write", "sys.stderr.write")), f"{name_of(path)}:{node.lineno}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_statements_stand_in_the_store_alone(path: Path) -> None:
    if name_of(path).startswith("store/") or name_of(path) in OTHER_DATABASES:
        return
    statement = re.compile(
        r"\s*(SELECT\s.+\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|CREATE\s|PRAGMA\s|BEGIN\b)"
    )
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not statement.match(node.value), f"{name_of(path)}:{node.lineno}: {node.value[:60]}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_classes_are_named_after_what_they_are(path: Path) -> None:
    empty = re.compile(r".*(Manager|Service|Handler|Helper|Processor|Factory|Utils?)\Z")
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef):
            assert not empty.match(node.name), f"{name_of(path)}:{node.lineno}: {node.name}"
    assert not re.search(r"(utils?|helpers?|misc|common)\Z", path.stem)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_text_is_read_and_written_with_its_encoding(path: Path) -> None:
    if name_of(path) in SINK_USERS:
        return
    for called, node in calls(path):
        where = f"{name_of(path)}:{node.lineno}"
        named = any(keyword.arg == "encoding" for keyword in node.keywords)
        match called.rpartition(".")[2], len(node.args):
            case ("read_text", 0) | ("write_text", 1):
                assert named, where
            case ("open" | "fdopen", 0 | 1 | 2):
                assert named or "b" in mode_of(called, node) or "|" in mode_of(called, node), where


def mode_of(called: str, node: ast.Call) -> str:
    """The mode of `open(path, mode)` or `path.open(mode)`; `|` for an `open` of another kind."""
    modes = node.args[1:2] if called in ("open", "io.open", "os.fdopen") else node.args[:1]
    if called == "os.open":
        return "|"
    value = modes[0].value if modes and isinstance(modes[0], ast.Constant) else "r"
    return value if isinstance(value, str) and re.fullmatch(r"[rwaxbt+]+", value) else "|"


@pytest.mark.parametrize("path", [path for path in MODULES if name_of(path).startswith(DOCUMENTED)], ids=name_of)
def test_everything_public_of_the_api_and_the_shared_types_is_documented(path: Path) -> None:
    assert ast.get_docstring(tree(path)), name_of(path)
    for node in documented(tree(path)):
        assert ast.get_docstring(node), f"{name_of(path)}:{node.lineno}: {node.name}"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_protocol_says_what_its_members_promise(path: Path) -> None:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases):
            assert ast.get_docstring(node), f"{name_of(path)}:{node.lineno}: {node.name}"
            for member in node.body:
                if isinstance(member, ast.FunctionDef) and not is_property(member):
                    assert ast.get_docstring(member), f"{name_of(path)}:{member.lineno}: {node.name}.{member.name}"


def documented(module: ast.Module) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public classes and functions, and the public methods of those classes."""
    for node in module.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from (
                    member
                    for member in node.body
                    if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)) and not member.name.startswith("_")
                )


def is_property(member: ast.FunctionDef) -> bool:
    """A member that is data: its class says what it is."""
    return any(ast.unparse(decorator) == "property" for decorator in member.decorator_list)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_stay_readable(path: Path) -> None:
    assert ast.get_docstring(tree(path)) or not path.read_text("utf-8").strip(), name_of(path)
    assert len(path.read_text("utf-8").split("\n")) <= 400

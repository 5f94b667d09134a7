"""Habits of the code that a machine can watch."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import agac
import agac.api

PACKAGE = Path(agac.__file__).parent
PRINTERS = {"cli/terminal.py", "cli/progress.py"}
WRITERS = PRINTERS | {"simulator/__main__.py"}
SINK_USERS = {"engine/export.py"}
"""Modules whose `write_text` is that of a sink, which has one encoding."""
OTHER_DATABASES = {
    "data/sqlite.py", "spec/inputs.py", "simulator/batch_store.py",
}  # fmt: skip
"""Modules that speak to databases of which the store knows nothing: the user's, the simulator's."""
COUNTERPARTS = {
    "anthropic", "batch", "batches", "graph", "inspect", "openai", "plan", "project", "run",
    "status",
}  # fmt: skip
"""Names of modules of one subject in several folders: a command and its function; a dialect and its simulation."""
DOCUMENTED = ("api/", "core/types.py", "core/errors.py", "core/keys.py")


@cache
def modules() -> dict[str, tuple[str, ast.Module]]:
    """The text and the tree of every module, by its path below agac/."""
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return {name: (text, ast.parse(text)) for name, text in texts.items()}


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Every node of every tree, with the name of its module."""
    return [(name, node) for name, (_, tree) in modules().items() for node in ast.walk(tree)]


@cache
def calls() -> list[tuple[str, str, ast.Call]]:
    """Every call: its module, the text of what is called, the node."""
    return [(name, ast.unparse(node.func), node) for name, node in nodes() if isinstance(node, ast.Call)]


def test_the_public_names_are_these() -> None:
    assert agac.api.__all__ == [
        "AgacError", "BackupReport", "BatchReport", "CancelReport", "CardReport", "CheckReport", "DataReport",
        "DoctorReport", "ExitCode", "GcReport", "GraphReport", "InspectReport", "PlanReport", "Problem",
        "QueryAnswer", "RetrieveReport", "Retry", "RetryChoice", "RowError", "RunOptions", "RunReport", "RunsReport",
        "SchemasReport", "SpecError", "StatusReport", "UsageError", "View", "WaitReport", "WhyReport", "backup",
        "batch_cancel", "batch_list", "batch_retrieve", "batch_status", "batch_wait", "doctor", "embedded_simulator",
        "export", "file_schema", "gc", "graph", "init", "inspect", "plan_run", "retry", "retry_choice", "row_ids",
        "run", "run_async", "run_several", "runs", "save_drawing", "show_card", "show_data", "sql", "status",
        "validate", "views", "why", "write_schemas",
    ]  # fmt: skip
    assert dir(agac) == sorted([*agac.api.__all__, "__version__"])
    for name in agac.api.__all__:
        assert getattr(agac, name) is getattr(agac.api, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = agac.nothing


def test_only_two_modules_print() -> None:
    printing = ("print", "click.echo", "click.secho")
    writing = ("sys.stdout.write", "sys.stderr.write")
    assert [
        f"{name}:{node.lineno}"
        for name, called, node in calls()
        if (name not in PRINTERS and called in printing) or (name not in WRITERS and called.startswith(writing))
    ] == []


def test_statements_stand_in_the_store_alone() -> None:
    statement = re.compile(
        r"\s*(SELECT\s.+\sFROM\s|INSERT\s+INTO\s|UPDATE\s+\w+\s+SET\s|DELETE\s+FROM\s|CREATE\s|PRAGMA\s|BEGIN\b)"
    )
    assert [
        f"{name}:{node.lineno}: {node.value[:60]}"
        for name, node in nodes()
        if not name.startswith("store/") and name not in OTHER_DATABASES
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and statement.match(node.value)
    ] == []


def test_classes_are_named_after_what_they_are() -> None:
    empty = re.compile(r".*(Manager|Service|Handler|Helper|Processor|Factory|Utils?)\Z")
    classes = ((name, node) for name, node in nodes() if isinstance(node, ast.ClassDef))
    assert [f"{name}:{node.lineno}: {node.name}" for name, node in classes if empty.match(node.name)] == []
    assert [name for name in modules() if re.search(r"(utils?|helpers?|misc|common)\.py\Z", name)] == []


def test_a_name_stands_for_one_thing() -> None:
    classes = Counter(node.name for _, node in nodes() if isinstance(node, ast.ClassDef))
    assert [name for name, count in classes.items() if count > 1] == []
    files = Counter(Path(name).stem for name in modules() if not name.endswith("__.py"))
    assert {name for name, count in files.items() if count > 1} == COUNTERPARTS


def test_text_is_read_and_written_with_its_encoding() -> None:
    assert [
        f"{name}:{node.lineno}"
        for name, called, node in calls()
        if name not in SINK_USERS and not has_encoding(called, node)
    ] == []


def has_encoding(called: str, node: ast.Call) -> bool:
    """Whether a call names the encoding of text that it reads or writes, or is none of that kind."""
    named = any(keyword.arg == "encoding" for keyword in node.keywords)
    match called.rpartition(".")[2], len(node.args):
        case ("read_text", 0) | ("write_text", 1):
            return named
        case ("open" | "fdopen", 0 | 1 | 2):
            return named or "b" in mode_of(called, node) or "|" in mode_of(called, node)
    return True


def mode_of(called: str, node: ast.Call) -> str:
    """The mode of `open(path, mode)` or `path.open(mode)`; `|` for an `open` of another kind."""
    modes = node.args[1:2] if called in ("open", "io.open", "os.fdopen") else node.args[:1]
    if called == "os.open":
        return "|"
    value = modes[0].value if modes and isinstance(modes[0], ast.Constant) else "r"
    return value if isinstance(value, str) and re.fullmatch(r"[rwaxbt+]+", value) else "|"


def test_everything_public_of_the_api_and_the_shared_types_is_documented() -> None:
    shared = {name: tree for name, (_, tree) in modules().items() if name.startswith(DOCUMENTED)}
    assert [name for name, tree in shared.items() if not ast.get_docstring(tree)] == []
    assert [
        f"{name}:{node.lineno}: {node.name}"
        for name, tree in shared.items()
        for node in documented(tree)
        if not ast.get_docstring(node)
    ] == []


def test_a_protocol_says_what_its_members_promise() -> None:
    protocols = [
        (name, node)
        for name, node in nodes()
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    ]
    assert [f"{name}:{node.lineno}: {node.name}" for name, node in protocols if not ast.get_docstring(node)] == []
    assert [
        f"{name}:{member.lineno}: {node.name}.{member.name}"
        for name, node in protocols
        for member in node.body
        if isinstance(member, ast.FunctionDef) and not is_property(member) and not ast.get_docstring(member)
    ] == []


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


def test_modules_stay_readable() -> None:
    assert [name for name, (text, tree) in modules().items() if text.strip() and not ast.get_docstring(tree)] == []
    assert [name for name, (text, _) in modules().items() if len(text.split("\n")) > 700] == []

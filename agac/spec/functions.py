"""`python: tools/clean.py:normalise`: a function of the project, checked without importing anything."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from agac.core.errors import Problem, UsageError, Where
from agac.spec.importing import EDITED, source_hash
from agac.spec.paths import OutsideProject, inside
from agac.spec.pythonfile import in_file, module_parts, python_source, python_tree
from agac.spec.suggest import did_you_mean
from agac.spec.texts import near_files

FORM = "file.py:function, as tools/clean.py:normalise"
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function that rows are given to. `shown` is `file` relative to the project's root.

    `source_hash` (16 bytes) stands for the text of the file and of every module of the project that it imports, of
    those again, and so on: see `agac.spec.importing`. The function's name is not in it.
    """

    file: Path
    shown: str
    name: str
    is_async: bool
    source_hash: bytes

    def __str__(self) -> str:
        return f"{self.shown}:{self.name}"


@dataclass(frozen=True, slots=True)
class _Outline:
    """What the checks need of a file. `unfit`: why a name of its top level, or of below, is no function to call."""

    functions: dict[str, bool]  # by name: whether it is `async def`
    unfit: dict[str, str]


def parse_reference(text: str, where: Where, path: str, root: Path) -> tuple[FunctionRef | None, list[Problem]]:
    """The function that `text` names, or the Problems: at `where` and key `path`, or in the Python files themselves."""
    name = text.rpartition(":")[2].strip()
    file, problem = _file(text, where, path, root)
    if file is None:
        return None, [problem] if problem else []
    shown = file.relative_to(root.resolve()).as_posix()
    code = python_source(file, shown)
    outline = code if isinstance(code, Problem) else _outline(code)
    if isinstance(outline, Problem):
        return None, [in_file(outline, shown)]
    if (complaint := _complaint(name, shown, outline)) is not None:
        return None, [Problem(where, complaint, path)]
    source, problems = source_hash(file, root)
    if problems:
        return None, problems
    return FunctionRef(file, shown, name, outline.functions[name], source), []


def same_function(ref: FunctionRef, root: Path) -> None:
    """Raises UsageError when the text of a recorded function is no longer what it was."""
    if source_hash(ref.file, root)[0] != ref.source_hash:
        raise UsageError(f"{ref}, or a file that it imports, was edited since the run was made", remedy=EDITED)


def _file(text: str, where: Where, path: str, root: Path) -> tuple[Path | None, Problem | None]:
    named, _, name = (part.strip() for part in text.rpartition(":"))
    if not named or not name.isidentifier():
        return None, Problem(where, f"{text!r} is not {FORM}", path)
    try:
        file = inside(root, named)
    except OutsideProject as error:
        return None, Problem(where, str(error), path)
    if not file.exists():
        return None, Problem(where, f"no such file: {named!r}; {near_files(file, root)}", path)
    if file.suffix != ".py" or not file.is_file():
        return None, Problem(where, f"{named!r} is not a Python file; write {FORM}", path)
    parts = module_parts(file.relative_to(root.resolve()).as_posix())
    if not parts or any("." in part for part in parts):
        message = (
            f"{named!r} cannot be imported: no dots in the names of its folders, nor the project's own __init__.py"
        )
        return None, Problem(where, message, path)
    return file, None


def _complaint(name: str, shown: str, outline: _Outline) -> str | None:
    if name in outline.unfit:
        return f"{shown} cannot be used as {name!r}: {outline.unfit[name]}"
    if name not in outline.functions:
        return f"{shown} has no function {name!r}; {did_you_mean(name, outline.functions, 'functions')}"
    return None


@lru_cache(maxsize=256)
def _outline(source: bytes) -> _Outline | Problem:
    """By content, so that a file that a thousand stages name is read as Python once."""
    tree = python_tree(source)
    if isinstance(tree, Problem):
        return tree
    functions: dict[str, bool] = {}
    unfit = _inner_names(tree)
    for name, node in _bound(tree.body):
        unfit.pop(name, None)
        functions.pop(name, None)
        if isinstance(node, _Function) and (why := _unfit(node)) is None:
            functions[name] = isinstance(node, ast.AsyncFunctionDef)
        else:
            unfit[name] = why if isinstance(node, _Function) and why else _is_no_function(node)
    return _Outline(functions, unfit)


def _bound(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """What the top level names, in order, so that the last one counts; also what it names in branches."""
    for node in body:
        if isinstance(node, (*_DEFS, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((alias.asname or alias.name, node) for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _bound(node.body)
            for handler in getattr(node, "handlers", ()):
                yield from _bound(handler.body)
            yield from _bound(getattr(node, "orelse", ()))
            yield from _bound(getattr(node, "finalbody", ()))


def _is_no_function(node: ast.stmt) -> str:
    match node:
        case ast.ClassDef():
            return f"line {node.lineno} makes it a class; name a function"
        case ast.Import() | ast.ImportFrom():
            return f"line {node.lineno} imports it; name the file that defines it"
        case ast.Assign(value=ast.Lambda()) | ast.AnnAssign(value=ast.Lambda()):
            return f"line {node.lineno} makes it a lambda; write def"
        case _:
            return f"line {node.lineno} makes it a value; name a function that is written with def"


def _inner_names(tree: ast.Module) -> dict[str, str]:
    """Functions inside of functions and of classes, which nobody can call from outside."""
    found: dict[str, str] = {}
    for outer in ast.walk(tree):
        if isinstance(outer, (*_DEFS, ast.ClassDef)):
            for inner in outer.body:
                if isinstance(inner, _Function):
                    message = f"line {inner.lineno} defines it inside {outer.name!r}; move it to the top level"
                    found[inner.name] = message
    return found


def _unfit(node: _Function) -> str | None:
    """Why a function cannot be given a row. What a decorator makes of its parameters is seen when it is imported."""
    place = f"line {node.lineno}: "
    if any(isinstance(inner, (ast.Yield, ast.YieldFrom)) for inner in _own(node)):
        return place + "it is a generator; return a list of rows"
    if node.decorator_list:
        return None
    given = node.args
    required = len(given.posonlyargs) + len(given.args) - len(given.defaults)
    named = [arg.arg for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    if required == 1 and not named:
        return None
    needs = f"{required} required parameters" if required != 1 else f"{', '.join(named)} by name"
    return place + f"it takes {needs}; it is called with one row: def {node.name}(row)"


def _own(node: _Function) -> Iterator[ast.AST]:
    """The parts of a function that are not those of a function within it."""
    open_nodes: list[ast.AST] = list(node.body)
    while open_nodes:
        inner = open_nodes.pop()
        yield inner
        if not isinstance(inner, (*_DEFS, ast.Lambda, ast.ClassDef)):
            open_nodes += ast.iter_child_nodes(inner)

"""Python code of a project: functions and modules that a workflow names, checked by reading, imported to run."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from agac.core.errors import Problem, UsageError, Where, did_you_mean
from agac.core.keys import canonical, digest
from agac.spec.paths import MAX_BYTES, OutsideProject, inside
from agac.spec.templates import near_files

# Python files of a project, read to check them; nothing of them is imported.


def python_source(path: Path, shown: str) -> bytes | Problem:
    """The bytes of a Python file, or why there are none."""
    try:
        if not path.is_file():
            return Problem(Where(shown), "not a regular file")
        if path.stat().st_size > MAX_BYTES:
            return Problem(Where(shown), f"more than the {MAX_BYTES:,} bytes that are read of a Python file")
        return path.read_bytes()
    except OSError as error:
        return Problem(Where(shown), f"cannot be read: {error.strerror or error}")


def python_tree(source: bytes) -> ast.Module | Problem:
    """What `source` says, or the Problem at the line where it is not Python, of a file that is yet to be named."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python tells them when the file is imported
            return ast.parse(source)
    except SyntaxError as error:
        return Problem(Where("", error.lineno or None, error.offset or None), f"not valid Python: {error.msg}")
    except (ValueError, RecursionError, MemoryError) as error:
        return Problem(Where(""), f"cannot be read as Python: {str(error) or 'it is nested too deeply'}")


def in_file(problem: Problem, shown: str) -> Problem:
    """The same Problem in a file that has a name."""
    return replace(problem, where=replace(problem.where, file=shown))


def module_parts(file: str) -> tuple[str, ...]:
    """`tools/clean.py` → `("tools", "clean")`; a folder's `__init__.py` is that folder; `()` for the project's own."""
    parts = tuple(file.removesuffix(".py").split("/"))
    return parts[:-1] if parts[-1] == "__init__" else parts


# Which modules of the project a Python file imports, found by reading, and the hash of all their text.
#
# Seen: every `import` and `from … import` in the text, wherever it stands (in functions and behind `if TYPE_CHECKING`
# too), absolute from the project's root or relative, with the `__init__.py` of every folder on the way. A changed
# comment counts. Not seen, and so in no fingerprint: data files that a function reads, installed packages, compiled
# modules, the Python version, environment variables, and modules imported by a name made at run time (`importlib`,
# `exec`).

Parts = tuple[str, ...]

EDITED = "Put the text back as it was then, or begin anew with the edited one: `agac run` makes a new run of it."
"""What to do when a run that is to go on needs a file that was edited since."""

NEVER_OURS = frozenset({*sys.builtin_module_names, "agac"})
"""Top-level names that mean the same everywhere, whatever stands at a project's root."""


class Import(NamedTuple):
    """`from ..a.b import c, d` is `(2, ("a", "b"), ("c", "d"), line)`; `import a.b` is `(0, ("a", "b"), (), line)`."""

    level: int
    module: Parts
    names: Parts
    line: int


def imports_of(tree: ast.Module) -> tuple[Import, ...]:
    """Every import of a file, in no order that matters."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [Import(0, tuple(alias.name.split(".")), (), node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            found.append(Import(node.level, module, tuple(alias.name for alias in node.names), node.lineno))
    return tuple(found)


def source_hash(file: Path, root: Path) -> tuple[bytes, list[Problem]]:
    """16 bytes that stand for `file` and for every module of the project that it imports, directly or not.

    Problems: a module that is no Python, cannot be read, or leads out of the project.
    """
    root = root.resolve()
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    open_files = [file, *_files(_parts(file, root)[:-1], root, problems, Where(""))]
    while open_files:
        path = open_files.pop()
        shown = path.relative_to(root).as_posix()
        if shown in texts:
            continue
        texts[shown] = ""
        source = python_source(path, shown)
        if isinstance(source, Problem):
            problems.append(source)
            continue
        texts[shown] = digest(source.decode("latin-1")).hex()  # a letter a byte, whatever the file's encoding is
        imports = _imports(source)
        if isinstance(imports, Problem):
            problems.append(in_file(imports, shown))
            continue
        for one in imports:
            for target in _targets(one, _package(path, root), root):
                open_files += _files(target, root, problems, Where(shown, one.line))
    return digest(canonical(texts)), problems


@lru_cache(maxsize=1024)
def _imports(source: bytes) -> tuple[Import, ...] | Problem:
    tree = python_tree(source)
    return tree if isinstance(tree, Problem) else imports_of(tree)


def _parts(path: Path, root: Path) -> Parts:
    return module_parts(path.relative_to(root).as_posix())


def _package(path: Path, root: Path) -> Parts:
    """The package that relative imports of a file start from."""
    return path.relative_to(root).parts[:-1]


def _targets(one: Import, package: Parts, root: Path) -> Iterator[Parts]:
    """The modules that an import may mean: a name that is imported from a package may be a module of it."""
    up = max(one.level - 1, 0)
    if up > len(package):
        return
    base = (package[: len(package) - up] if one.level else ()) + one.module
    yield base
    for name in one.names:
        if name != "*":
            yield (*base, name)
        elif (folder := root.joinpath(*base)).is_dir():  # its __all__ may name any of them
            yield from ((*base, file.stem) for file in sorted(folder.glob("*.py")))


def _files(target: Parts, root: Path, problems: list[Problem], where: Where) -> Iterator[Path]:
    """The files that importing `target` runs, as far as they are the project's: of every package on the way, too."""
    if not target or target[0] in NEVER_OURS:
        return
    for end in range(1, len(target) + 1):
        home = "/".join(target[:end])
        shown = next((name for name in (f"{home}/__init__.py", f"{home}.py") if (root / name).is_file()), None)
        if shown is None:
            if not (root / home).is_dir():
                return
            continue
        try:
            yield inside(root, shown)
        except OutsideProject:
            problems.append(Problem(where, f"imports {shown}, a link that leads out of the project; copy it into it"))
            return


# `python: tools/clean.py:normalise`: a function of the project, checked without importing anything.

FORM = "file.py:function, as tools/clean.py:normalise"
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function that rows are given to. `shown` is `file` relative to the project's root.

    `source_hash` (16 bytes) stands for the text of the file and of every module of the project that it imports, of
    those again, and so on: see `agac.spec.python_code`. The function's name is not in it.
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


# Imports modules of a project, each project's by themselves: no name of theirs meets one of another's.
#
# The modules of a project live under a package of their own (`agac_project_1.tools.clean`), of which `sys.path` knows
# nothing. What they import is looked for in the project first, as Python does for a script that stands at its root:
# `from tools.words import x` and `from .words import x` find the same module, also from inside a function that is
# called later. A file that changed since it was imported makes a new package, so that a long-lived process never runs
# old text.

_PREFIX = "agac_project_"
_ours = re.compile(rf"\b{_PREFIX}\d+\.")
_numbers = count(1)
_packages: dict[str, _Package] = {}
_newest: dict[Path, _Package] = {}


def import_file(file: Path, root: Path) -> ModuleType:
    """The module that is `file` (absolute, links followed), imported unless it was. Raises whatever its code raises."""
    root = root.resolve()
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    package = _newest.get(root)
    if package is None or package.is_outdated():
        package = _newest[root] = _Package(root)
        _packages[package.name] = package
    importlib.invalidate_caches()
    return importlib.import_module(".".join((package.name, *module_parts(file.relative_to(root).as_posix()))))


def as_written(text: str) -> str:
    """`text` with the names of modules as the project's files write them."""
    return _ours.sub("", text)


class _Package:
    """The modules of one project, as their files were when the first of them was imported."""

    def __init__(self, root: Path) -> None:
        self.name = f"{_PREFIX}{next(_numbers)}"
        self.root = root
        self.read: dict[Path, bytes] = {}
        self._owned: dict[str, bool] = {}
        module = ModuleType(self.name)
        module.__path__ = [str(root)]
        module.__spec__ = ModuleSpec(self.name, None, is_package=True)
        sys.modules[self.name] = module

    def is_outdated(self) -> bool:
        """Whether a file is another than the one that was imported."""
        return any(not path.is_file() or path.read_bytes() != source for path, source in self.read.items())

    def import_(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002  (named as those of `__import__`)
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """`__import__` for the modules of the project."""
        first = name.partition(".")[0]
        if level or not self._owns(first):
            return builtins.__import__(name, globals, locals, fromlist, level)
        private = f"{self.name}.{name}"
        if fromlist:
            return builtins.__import__(private, globals, locals, fromlist, 0)
        importlib.import_module(private)
        return sys.modules[f"{self.name}.{first}"]

    def _owns(self, first: str) -> bool:
        """Whether a top-level name is the project's: a file or package at its root, or a folder that nobody shadows."""
        if first not in self._owned:
            self._owned[first] = first not in NEVER_OURS and self._finds(first)
        return self._owned[first]

    def _finds(self, first: str) -> bool:
        found = PathFinder.find_spec(f"{self.name}.{first}", [str(self.root)])
        if found is None or found.origin is not None:
            return found is not None
        try:
            other = importlib.util.find_spec(first)
        except ValueError:  # a module that was made by hand
            return False
        return other is None or other.origin is None


class _Loader(SourceFileLoader):
    """Compiles what the file says now: bytecode is neither left in the project nor believed, which goes by seconds."""

    def __init__(self, name: str, path: str, package: _Package) -> None:
        super().__init__(name, path)
        self._package = package

    def get_code(self, fullname: str) -> Any:
        """The file's code; remembers its text."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        self._package.read[Path(path)] = source
        return self.source_to_code(source, path)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module with an `import` that looks in the project first."""
        module.__dict__["__builtins__"] = {**builtins.__dict__, "__import__": self._package.import_}
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds modules below the packages of projects."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's file, with our loader; ImportError for a link that leads out of the project."""
        package = _packages.get(fullname.partition(".")[0])
        if package is None or path is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            if not Path(spec.origin).resolve().is_relative_to(package.root):
                raise ImportError(f"{as_written(fullname)} is a link that leads out of the project")
            if isinstance(spec.loader, SourceFileLoader):
                spec.loader, spec.cached = _Loader(fullname, spec.origin, package), None
        return spec


_finder = _Finder()

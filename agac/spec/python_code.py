"""Python code of a project: functions and modules that a workflow names, checked by reading,
imported to run."""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from agac.core.errors import Problem, UsageError, Where, did_you_mean
from agac.core.keys import canonical, digest
from agac.core.types import JSONValue
from agac.spec.paths import OutsideProject, Refused, Unusable, inside, near_files
from agac.spec.project_files import files_in, read_bytes

# Python files of a project, read to check them; nothing of them is imported.

FunctionInput = dict[str, JSONValue] | list[dict[str, JSONValue]]
"""What a function of a stage is given: a row, or the rows of a group."""


def python_tree(source: bytes, shown: str) -> ast.Module:
    """Parses `source`. Raises Unusable, with the line, if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python shows them when the file is imported
            return ast.parse(source)
    except SyntaxError as error:
        where = Where(shown, error.lineno or None, error.offset or None)
        message = f"not valid Python: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        where = Where(shown)
        message = f"cannot be read as Python: {str(error) or 'it is nested too deeply'}"
    raise Unusable(Problem(where, message))


def module_parts(file: str) -> tuple[str, ...]:
    """`tools/clean.py` → `("tools", "clean")`; a folder's `__init__.py` is that folder; `()` for
    the project's own."""
    parts = tuple(file.removesuffix(".py").split("/"))
    return parts[:-1] if parts[-1] == "__init__" else parts


# Which modules of the project a Python file imports, found by reading, and the hash of all their
# text.
#
# Seen: every `import` and `from … import` in the text, wherever it stands (in functions and behind
# `if TYPE_CHECKING` too), absolute from the project's root or relative, with the `__init__.py` of
# every folder on the way. A changed comment counts. Not seen, and so in no fingerprint: data files
# that a function reads, installed packages, compiled modules, the Python version, environment
# variables, modules imported by a name made at run time (`importlib`).

Parts = tuple[str, ...]

EDITED = (
    "Put the text back as it was then, or begin anew with the edited one: `agac run` makes "
    "a new run of it."
)
"""What to do when a run that is to go on needs a file that was edited since."""

NEVER_OURS = frozenset({*sys.builtin_module_names, "agac"})
"""Top-level names that mean the same everywhere, whatever stands at a project's root."""


class _Import(NamedTuple):
    """`from ..a.b import c, d` is `(2, ("a", "b"), ("c", "d"), line)`; `import a.b` is `(0, ("a",
    "b"), (), line)`."""

    level: int
    module: Parts
    names: Parts
    line: int


def source_hash(file: Path, root: Path) -> tuple[bytes, list[Problem]]:
    """16 bytes that stand for `file` and for every module of the project that it imports, directly
    or not. Problems: as `source_files` has them."""
    texts, problems = source_files(file, root)
    return digest(canonical(texts)), problems


def source_files(file: Path, root: Path) -> tuple[dict[str, str], list[Problem]]:
    """Returns the paths, relative to `root`, of `file` and of every module of the project that it
    imports, directly or not, each with a hash of its text. Problems: a module that is no Python,
    cannot be read, or leads out of the project."""
    root = root.resolve()
    texts: dict[str, str] = {}
    problems: list[Problem] = []
    open_files = [
        file,
        *_files(module_parts(file.relative_to(root).as_posix())[:-1], root, problems, Where("")),
    ]
    while open_files:
        path = open_files.pop()
        shown = path.relative_to(root).as_posix()
        if shown in texts:
            continue
        texts[shown] = ""
        try:
            source = read_bytes(path, shown, root)
            texts[shown] = digest(
                source.decode("latin-1")
            ).hex()  # a letter a byte, whatever the file's encoding is
            imports = _imports(source, shown)
        except Unusable as error:
            problems.append(error.problem)
            continue
        for one in imports:
            for target in _targets(one, path.relative_to(root).parts[:-1], root):
                open_files += _files(target, root, problems, Where(shown, one.line))
    return texts, problems


@lru_cache(maxsize=1024)
def _imports(source: bytes, shown: str) -> list[_Import]:
    """Returns every import of a file, in no order that matters. Raises Unusable."""
    found = []
    for node in ast.walk(python_tree(source, shown)):
        if isinstance(node, ast.Import):
            found += [
                _Import(0, tuple(alias.name.split(".")), (), node.lineno) for alias in node.names
            ]
        elif isinstance(node, ast.ImportFrom):
            module = tuple(node.module.split(".")) if node.module else ()
            found.append(
                _Import(node.level, module, tuple(alias.name for alias in node.names), node.lineno)
            )
    return found


def _targets(one: _Import, package: Parts, root: Path) -> Iterator[Parts]:
    """Yields the modules that an import may mean: a name that is imported from a package may be a
    module of it."""
    up = max(one.level - 1, 0)
    if up > len(package):
        return
    base = (package[: len(package) - up] if one.level else ()) + one.module
    yield base
    for name in one.names:
        if name != "*":
            yield (*base, name)
        elif (folder := root.joinpath(*base)).is_dir():  # its __all__ may name any of them
            yield from ((*base, file.stem) for file in files_in(folder, root, "*.py"))


def _files(target: Parts, root: Path, problems: list[Problem], where: Where) -> Iterator[Path]:
    """Yields the files that importing `target` runs, as far as they are the project's: of every
    package on the way, too."""
    if not target or target[0] in NEVER_OURS:
        return
    for end in range(1, len(target) + 1):
        home = "/".join(target[:end])
        shown = next(
            (name for name in (f"{home}/__init__.py", f"{home}.py") if (root / name).is_file()),
            None,
        )
        if shown is None:
            if not (root / home).is_dir():
                return
            continue
        try:
            yield inside(root, shown)
        except OutsideProject:
            problems.append(
                Problem(
                    where, f"imports {shown}, a link that leads out of the project; copy it into it"
                )
            )
            return


# `python: tools/clean.py:normalise`: a function of the project, checked without importing anything.

FORM = "file.py:function, with a file of the project"
_DEFS = (ast.FunctionDef, ast.AsyncFunctionDef)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class FunctionRef:
    """A function that rows are given to."""

    file: Path
    shown: str
    """`file` relative to the project's root."""
    name: str
    is_async: bool
    source_hash: bytes
    """A hash (16 bytes) of the text of the file and of every module of the project that it imports,
    directly or not. The function's name is not in it."""
    gives_lists: bool = False
    """True if the annotation of its result says so."""

    def __str__(self) -> str:
        return f"{self.shown}:{self.name}"


def parse_reference(
    text: str, where: Where, root: Path, *, tool: bool = False, base: Path | None = None
) -> tuple[FunctionRef | None, list[Problem]]:
    """Finds the function that `text` names, or the Problems: at `where`, or in the Python files
    themselves. A `tool` of an agent may have any parameters, all others are called with one row.
    Its file may lie in the folder `base`, too."""
    try:
        file, name = _file_and_name(text, root, base)
        shown = file.relative_to(root.resolve()).as_posix()
        functions, unfit = _outline(read_bytes(file, shown, root), shown, tool)
        if name in unfit:
            raise Refused(f"{shown} cannot be used as {name!r}: {unfit[name]}")
        if name not in functions:
            hint = did_you_mean(name, functions, "functions")
            raise Refused(f"{shown} has no function {name!r}; {hint}")
    except Refused as error:
        return None, [Problem(where, str(error))]
    except Unusable as error:
        return None, [error.problem]
    source, problems = source_hash(file, root)
    if problems:
        return None, problems
    is_async, gives_lists = functions[name]
    return FunctionRef(file, shown, name, is_async, source, gives_lists), []


def _file_and_name(text: str, root: Path, base: Path | None) -> tuple[Path, str]:
    """Finds the Python file that `text` names, and the name of the function. Raises Refused."""
    named, _, name = (part.strip() for part in text.rpartition(":"))
    if not named or not name.isidentifier():
        raise Refused(f"{text!r} is not {FORM}")
    near_base = inside(root, named, base=base)
    file = near_base if base and named.startswith("../") else inside(root, named)
    if near_base.exists() and near_base != file:
        if file.exists():
            raise Refused(
                f"{named!r} is there twice, beside the card and in the project; rename one of them"
            )
        file = near_base
    if not file.exists():
        raise Refused(f"no such file: {named!r}; {near_files(file, root)}")
    if file.suffix != ".py" or not file.is_file():
        raise Refused(f"{named!r} is not a Python file; write {FORM}")
    parts = module_parts(file.relative_to(root.resolve()).as_posix())
    if not parts or any("." in part for part in parts):
        reason = "no dots in the names of its folders, nor the project's own __init__.py"
        raise Refused(f"{named!r} cannot be imported: {reason}")
    return file, name


def same_function(ref: FunctionRef, root: Path) -> None:
    """Raises UsageError when the text of a recorded function is no longer what it was."""
    if source_hash(ref.file, root)[0] != ref.source_hash:
        raise UsageError(
            f"{ref}, or a file that it imports, was edited since the run was made", remedy=EDITED
        )


@lru_cache(maxsize=256)
def _outline(
    source: bytes, shown: str, tool: bool
) -> tuple[dict[str, tuple[bool, bool]], dict[str, str]]:
    """Reads the functions of a file by name, with whether each is `async def`, and whether it says
    that it gives lists; and why another name of its top level, or of below, is no function to call.
    By content, so that a file that a thousand stages name is read as Python once."""
    tree = python_tree(source, shown)
    functions: dict[str, tuple[bool, bool]] = {}
    unfit = {
        inner.name: (
            f"line {inner.lineno} defines it inside {outer.name!r}; move it to the top level"
        )
        for outer in ast.walk(tree)
        if isinstance(outer, (*_DEFS, ast.ClassDef))
        for inner in outer.body
        if isinstance(inner, _Function)
    }
    for name, node in bound_names(tree.body):
        unfit.pop(name, None)
        functions.pop(name, None)
        why = _unfit(node, tool)
        if why is None:
            functions[name] = isinstance(node, ast.AsyncFunctionDef), _gives_lists(node)
        else:
            unfit[name] = f"line {node.lineno}{why}"
    return functions, unfit


def _gives_lists(node: ast.stmt) -> bool:
    """True if a function says by its annotation that it returns a list."""
    if not isinstance(node, _Function) or not node.returns:
        return False
    return re.search(r"(^|\| )[Ll]ist\b", ast.unparse(node.returns)) is not None


def bound_names(body: Iterable[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    """Yields what the top level of a file names, in order, so that the last one counts; including
    what it names in branches."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name, node
            case ast.Import() | ast.ImportFrom():
                yield from ((alias.asname or alias.name, node) for alias in node.names)
            case ast.Assign() | ast.AnnAssign():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from ((target.id, node) for target in targets if isinstance(target, ast.Name))
            case ast.If() | ast.Try() | ast.With():
                handled = [
                    line for handler in getattr(node, "handlers", ()) for line in handler.body
                ]
                rest = [*getattr(node, "orelse", ()), *getattr(node, "finalbody", ())]
                yield from bound_names([*node.body, *handled, *rest])


def _unfit(node: ast.stmt, tool: bool) -> str | None:
    """Says why this cannot be called, after its line. What a decorator makes of it is seen when it
    is imported."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            # its parts that are not those of a function within it
            own: list[ast.AST] = list(node.body)
            for inner in own:
                if isinstance(inner, (ast.Yield, ast.YieldFrom)):
                    return f": it is a generator; return a list{'' if tool else ' of rows'}"
                if not isinstance(inner, (*_DEFS, ast.Lambda, ast.ClassDef)):
                    own += ast.iter_child_nodes(inner)
            given = node.args
            required = len(given.posonlyargs) + len(given.args) - len(given.defaults)
            named = [
                arg.arg
                for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
                if default is None
            ]
            if tool or node.decorator_list or (required == 1 and not named):
                return None
            if required != 1:
                needs = f"{required} required parameters"
            else:
                needs = f"{', '.join(named)} by name"
            called = f"def {node.name}(row), or def {node.name}(rows) with group_by"
            return f": it takes {needs}; it is called with one argument: {called}"
        case ast.ClassDef():
            return " makes it a class; name a function"
        case ast.Import() | ast.ImportFrom():
            return " imports it; name the file that defines it"
        case ast.Assign(value=ast.Lambda()) | ast.AnnAssign(value=ast.Lambda()):
            return " makes it a lambda; write def"
    return " makes it a value; name a function that is written with def"


# Imports modules of a project, each project's by themselves: no name of theirs meets one of
# another's.
#
# The modules of a project live under a package of their own (`agac_project_1.tools.clean`), of
# which `sys.path` knows nothing. What they import is looked for in the project first, as Python
# does for a script that stands at its root: `from tools.words import x` and `from .words import x`
# find the same module, also from inside a function that is called later. A file that changed since
# it was imported makes a new package, so no long-lived process runs old text.

_PREFIX = "agac_project_"
_ours = re.compile(rf"\b{_PREFIX}\d+\.")
_numbers = count(1)
_packages: dict[str, _Package] = {}
_newest: dict[Path, _Package] = {}


def import_file(file: Path, root: Path) -> ModuleType:
    """Returns the module that is `file` (absolute, links followed), imported unless it was. Raises
    whatever its code raises."""
    root = root.resolve()
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    package = _newest.get(root)
    if package is None or package.is_outdated():
        package = _newest[root] = _Package(root)
        _packages[package.name] = package
    importlib.invalidate_caches()
    return importlib.import_module(
        ".".join((package.name, *module_parts(file.relative_to(root).as_posix())))
    )


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
        """True if a file is another than the one that was imported."""
        return any(self._now(path) != source for path, source in self.read.items())

    def _now(self, path: Path) -> bytes | None:
        try:
            return read_bytes(path, path.name, self.root)
        except Unusable:  # said when it is imported again
            return None

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
        """True if a top-level name is the project's: a file or package at its root, or a folder
        that nobody shadows."""
        if first not in self._owned:
            if first in NEVER_OURS:
                found = None
            else:
                found = PathFinder.find_spec(f"{self.name}.{first}", [str(self.root)])
            ours = found is not None
            if found is not None and found.origin is None:
                try:
                    other = importlib.util.find_spec(first)
                    ours = other is None or other.origin is None
                except ValueError:  # a module that was made by hand
                    ours = False
            self._owned[first] = ours
        return self._owned[first]


class _Loader(SourceFileLoader):
    """Compiles what the file says now: bytecode is neither left in the project nor believed, which
    goes by seconds."""

    def __init__(self, name: str, path: str, package: _Package) -> None:
        super().__init__(name, path)
        self._package = package

    def get_code(self, fullname: str) -> Any:
        """Returns the file's code; remembers its text."""
        path = self.get_filename(fullname)
        try:
            source = read_bytes(Path(path), as_written(path), self._package.root)
        except Unusable as error:
            raise ImportError(str(error.problem)) from None
        self._package.read[Path(path)] = source
        return self.source_to_code(source, path)

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module with an `import` that looks in the project first."""
        module.__dict__["__builtins__"] = {**builtins.__dict__, "__import__": self._package.import_}
        super().exec_module(module)


class _Finder(MetaPathFinder):
    """Finds modules below the packages of projects."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the module's file, with our loader; ImportError for a link that leads out of the
        project."""
        package = _packages.get(name.partition(".")[0])
        if package is None or path is None:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            if not Path(spec.origin).resolve().is_relative_to(package.root):
                raise ImportError(f"{as_written(name)} is a link that leads out of the project")
            if isinstance(spec.loader, SourceFileLoader):
                spec.loader = _Loader(name, spec.origin, package)
                spec.cached = None
        return spec


_finder = _Finder()

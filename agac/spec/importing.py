"""Which modules of the project a Python file imports, found by reading, and the hash of all their text.

Seen: every `import` and `from … import` in the text, wherever it stands (in functions and behind `if TYPE_CHECKING`
too), absolute from the project's root or relative, with the `__init__.py` of every folder on the way. A changed comment
counts. Not seen, and so in no fingerprint: data files that a function reads, installed packages, compiled modules, the
Python version, environment variables, and modules imported by a name made at run time (`importlib`, `exec`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from agac.core.errors import Problem, Where
from agac.core.keys import canonical, digest
from agac.spec.paths import OutsideProject, inside
from agac.spec.pythonfile import in_file, module_parts, python_source, python_tree

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

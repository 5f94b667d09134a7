"""Imports modules of a project, each project's by themselves: no name of theirs meets one of another's.

The modules of a project live under a package of their own (`agac_project_1.tools.clean`), of which `sys.path` knows
nothing. What they import is looked for in the project first, as Python does for a script that stands at its root:
`from tools.words import x` and `from .words import x` find the same module, also from inside a function that is called
later. A file that changed since it was imported makes a new package, so that a long-lived process never runs old text.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

from agac.spec.importing import NEVER_OURS
from agac.spec.pythonfile import module_parts

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

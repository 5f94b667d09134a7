"""Python files of a project, read to check them; nothing of them is imported."""

from __future__ import annotations

import ast
import warnings
from dataclasses import replace
from pathlib import Path

from agac.core.errors import Problem, Where
from agac.spec.filetext import MAX_BYTES


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

"""A project of Python files, and a way to give rows to their functions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import RowError, UsageError, Where
from agac.spec.python_code import FunctionRef, parse_reference
from agac.tools.processes import open_function

WAYS = pytest.mark.parametrize("processes", [None, 1], ids=["here", "process"])
DEFS = pytest.mark.parametrize("define", ["def", "async def"])


class Tools:
    """The Python files of one project."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def ref(self, text: str = "tools/clean.py:f") -> FunctionRef:
        found, problems = parse_reference(text, Where("w.yml", 5, path="python"), self.root)
        assert (problems, found is None) == ([], False)
        assert found is not None
        return found

    def problems(self, text: str) -> list[str]:
        """What is wrong with a reference; in a Python file, with its place."""
        found, problems = parse_reference(text, Where("w.yml", 5, path="python"), self.root)
        assert found is None
        return [str(problem).removeprefix("w.yml:5: python: ") for problem in problems]

    def calls(
        self, rows: Sequence[dict[str, Any]], text: str = "tools/clean.py:f", processes: int | None = None
    ) -> list[Any]:
        """What becomes of each row; all are given at once."""

        async def all_given() -> list[Any]:
            async with open_function(self.ref(text), self.root, processes) as call:
                return await asyncio.gather(*map(call, rows))

        return asyncio.run(all_given())

    def gives(self, row: dict[str, Any] | None = None, *more: Any, **named: Any) -> Any:
        """The row, or the rows, that a function gives for one row."""
        [outcome] = self.calls([row or {}], *more, **named)
        assert not isinstance(outcome, RowError), outcome
        return outcome

    def fails(self, row: dict[str, Any] | None = None, *more: Any, **named: Any) -> RowError:
        """Why a function gives nothing for one row."""
        [outcome] = self.calls([row or {}], *more, **named)
        assert isinstance(outcome, RowError), outcome
        return outcome

    async def refuses(self, ref: FunctionRef | None = None, processes: int | None = None) -> UsageError:
        """Why a function cannot be had."""
        with pytest.raises(UsageError) as caught:
            async with open_function(ref or self.ref(), self.root, processes):
                pass
        return caught.value

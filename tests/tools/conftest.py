"""A project of Python files, and a way to give rows to their functions."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agac.core.errors import Where
from agac.spec.python_code import FunctionRef, parse_reference
from agac.tools.processes import FunctionFailed, Returned, Runner


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
        found, problems = parse_reference(text, Where("w.yml"), "python", self.root)
        assert found is not None, list(map(str, problems))
        return found

    def calls(
        self, rows: Sequence[dict[str, Any]], text: str = "tools/clean.py:f", processes: int | None = None
    ) -> list[Returned | FunctionFailed]:
        """What becomes of each row; all are given at once."""

        async def given(runner: Runner, row: dict[str, Any]) -> Returned | FunctionFailed:
            try:
                return await runner.call(row)
            except FunctionFailed as failed:
                return failed

        async def all_given() -> list[Returned | FunctionFailed]:
            async with Runner(self.ref(text), self.root, processes) as runner:
                return await asyncio.gather(*(given(runner, row) for row in rows))

        return asyncio.run(all_given())

    def gives(self, row: dict[str, Any] | None = None, *more: Any, **named: Any) -> Any:
        """The row, or the rows, that a function gives for one row."""
        [outcome] = self.calls([row or {}], *more, **named)
        assert isinstance(outcome, Returned), outcome
        return {"row": lambda: outcome.rows[0], "rows": lambda: list(outcome.rows), "none": lambda: None}[
            outcome.kind
        ]()

    def fails(self, row: dict[str, Any] | None = None, *more: Any, **named: Any) -> FunctionFailed:
        """Why a function gives nothing for one row."""
        [outcome] = self.calls([row or {}], *more, **named)
        assert isinstance(outcome, FunctionFailed), outcome
        return outcome


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    return Tools(tmp_path)

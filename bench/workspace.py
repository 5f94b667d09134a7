"""Projects to measure: a folder with an input of reviews and a workflow of one or more stages on the stub server."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from processes import AGAC, Server, Used, measured

COLUMNS = ("id", "product", "review")
SCHEMA = """{type: object, properties: {sentiment: {type: string, enum: [positive, neutral, negative]},
      topics: {type: array, items: {type: string}, minItems: 1, maxItems: 3}, reason: {type: string}},
      required: [sentiment, topics, reason], additionalProperties: false}"""
PROJECT = """\
providers:
  stub:
    dialect: openai-chat
    base_url: {base_url}
    structured: json_schema
    prices: {{stub: {{input: 1, output: 2}}}}
defaults: {{model: stub/stub}}
"""
WORKFLOW = "input: {path: in.csv, id_field: id}\nstages:\n"
STAGE = """\
  - name: s{index}
    prompt: "Product: ${{product}}\\nReview: ${{review}}{upstream}"
    output_schema: {schema}
    concurrency: {concurrency}
"""


def cells(row: int, mark: str = "") -> tuple[str, str, str]:
    """One row of the input: about 120 characters, no two alike."""
    review = f"Review number {row}{mark}: light and comfortable, worth the price, though the zip could be stronger."
    return f"r-{row}", "Alpine Tent 2P", review


def write_table(path: Path, rows: int, changed: int | None = None) -> None:
    """The input, with the cell of one row changed when that is asked for."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        table.writerows(cells(row, " again" if row == changed else "") for row in range(rows))


@dataclass(frozen=True, slots=True)
class Workspace:
    """A project in a folder of its own."""

    root: Path

    @property
    def table(self) -> Path:
        """The input."""
        return self.root / "in.csv"

    def agac(self, *arguments: str) -> Used:
        """Runs the command line in the project."""
        return measured([*AGAC, "-q", *arguments], self.root)

    def database_bytes(self) -> int:
        """What the state takes on disk."""
        return sum(file.stat().st_size for file in (self.root / ".agac").iterdir())

    def forget(self) -> None:
        """Removes the state and the results, so that the next run begins from nothing."""
        shutil.rmtree(self.root / ".agac", ignore_errors=True)
        shutil.rmtree(self.root / "output", ignore_errors=True)


@contextmanager
def workspace(server: Server, rows: int, *, stages: int = 1, concurrency: int = 64) -> Iterator[Workspace]:
    """A project with so many rows; each stage's prompt names the stage, so that none answers for another."""
    with TemporaryDirectory(prefix="agac-bench-") as folder:
        root = Path(folder)
        (root / "workflows").mkdir()
        (root / "agac.yml").write_text(PROJECT.format(base_url=server.base_url), encoding="utf-8")
        texts = [
            STAGE.format(
                index=index,
                upstream=f"\\nStage {index}, after: ${{s{index - 1}.reason}}" if index else "",
                schema=SCHEMA,
                concurrency=concurrency,
            )
            for index in range(stages)
        ]
        (root / "workflows" / "b.yml").write_text(WORKFLOW + "".join(texts), encoding="utf-8")
        write_table(root / "in.csv", rows)
        yield Workspace(root)

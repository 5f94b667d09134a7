"""The documented notebook, in a real kernel: a loop runs there, and a signal interrupts a cell."""

from pathlib import Path
from typing import Any

import pytest
from pages import ROOT
from support.services import services

nbclient = pytest.importorskip("nbclient", reason="pip install -e '.[dev]'")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")

INTERRUPTED = """
import asyncio, os, signal
async def interrupt(watched):
    while not watched.invocation.totals.rows.settled:
        await asyncio.sleep(0)
    os.kill(os.getpid(), signal.SIGINT)
try:
    agac.run("product_reviews", agac.RunOptions(fresh=True, concurrency=1), project="shop", progress=interrupt)
except KeyboardInterrupt:
    print(agac.status(run="last", project="shop").runs[0]["last_invocation"]["exit_code"])
"""


def shown(notebook: Any) -> list[list[Any]]:
    """What each cell came to; the display of progress has rates, and is left out."""
    outputs = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    return [[one.get("data", one.get("text")) for one in each if one.output_type != "display_data"] for each in outputs]


@services  # the kernel is a process that imports half of IPython
def test_the_documented_notebook_shows_what_its_cells_give_and_a_cell_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    written = nbformat.read(ROOT / "docs/guide/notebook.ipynb", as_version=4)
    run = nbformat.from_dict(written)
    run.cells.append(nbformat.v4.new_code_cell(INTERRUPTED))
    nbclient.NotebookClient(run, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    *documented, interrupted = shown(run)
    assert documented == shown(written)
    (display,) = [one for cell in run.cells for one in cell.get("outputs", ()) if one.output_type == "display_data"]
    assert display.data["text/plain"].startswith("classify ██████████ 60/60 (100.0%)")
    assert interrupted == ["130\n"]

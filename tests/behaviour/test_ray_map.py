"""`agac.ray_map`: a workflow on the blocks of Ray Data."""

from __future__ import annotations

import json
import pickle
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.project import ProjectFolder, python
from support.server import Faulty, Server

import agac
from agac.core.errors import AgacError, UsageError

PAGE = Path(__file__).parents[2] / "docs/guide/ray.md"
STARTED = """
import os, signal
from pathlib import Path

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
import ray, ray.data
import agac

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20)
ray.data.DataContext.get_current().enable_progress_bars = False
reviews_of, killed = agac.ray_map, Path("killed").absolute()

def killed_once(name):
    reviews = reviews_of(name)
    def mapped(block):
        found = reviews(block)  # all of it is paid
        if "r-7" in block["id"] and not killed.exists():
            killed.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return found
    return mapped

agac.ray_map = killed_once
"""
BLOCK = """
import json, socket, sys
import agac

socket.gethostname = lambda: sys.argv[1]
rows = [{"id": f"r-{n}", "text": f"I love number {n}"} for n in sys.argv[2:]]
print(json.dumps(agac.ray_map("reviews")({name: [row[name] for row in rows] for name in rows[0]}).to_pylist()))
"""
ROWS = [{"id": f"r-{n}", "text": f"I love number {n}"} for n in range(4)]


def mapped(project: ProjectFolder, rows: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    """A block as a worker has it: by what was pickled."""
    there = pickle.loads(
        pickle.dumps(agac.ray_map("reviews", project=project.root, options=agac.RunOptions(**options)))
    )
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {"id": [], "text": []}
    found: list[dict[str, Any]] = there(columns).to_pylist()
    return found


def asked(server: Server) -> int:
    requests: int = server.account()["requests"]
    return requests


@pytest.mark.usefixtures("ray_installed")
def test_the_program_of_the_page_pays_once_for_a_block_whose_worker_was_killed(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "filter", "match": "number 3"}]))
    project.workflow(rows=12)
    program = PAGE.read_text("utf-8").split("```python\n")[1].split("```")[0]
    ran = python(project.root, "-c", STARTED + program.replace("batch_size=100", "batch_size=4"))
    assert ran.code == 0, ran.err
    assert (project.root / "killed").exists()
    lines = [
        line for file in (project.root / "output/by-ray").iterdir() for line in file.read_text("utf-8").split("\n")
    ]
    found = {row["id"]: row for row in map(json.loads, filter(None, lines))}
    assert sorted(found) == sorted(f"r-{n}" for n in range(1, 13))
    assert [row["id"] for row in found.values() if not row["ok"]] == ["r-3"]
    assert (found["r-3"]["error"], found["r-3"]["result"]) == ("Filtered", None)
    assert "filter" in found["r-3"]["message"]
    assert json.loads(found["r-7"]["result"])["sentiment"]
    assert json.loads(found["r-7"]["input"]) == {"id": "r-7", "text": "I love number 7"}
    assert asked(server) == 12
    assert [one.name for one in (project.root / "output").iterdir()] == ["by-ray"]


def test_a_block_has_these_columns_and_other_blocks_have_the_same_kinds(project: ProjectFolder) -> None:
    project.workflow(stages=[
        {"name": "parts", "prompt": "Split ${text}", "output_schema": {"words": "string[]"}},
        {"name": "word", "explode": "parts.words", "prompt": "Say ${item}", "output_schema": {"said": "string"}},
    ])  # fmt: skip
    reviews = agac.ray_map("reviews", project=project.root)
    some, none = reviews({"id": ["a"], "text": ["b"]}), reviews({"id": [], "text": []})
    assert some.schema.equals(none.schema)
    kinds = {field.name: str(field.type) for field in some.schema}
    texts = dict.fromkeys(["id", "result", "error", "message", "input"], "string")
    assert kinds == {**texts, "row_number": "int64", "ok": "bool"}
    assert none.num_rows == 0
    rows = some.to_pylist()
    assert rows
    assert {(row["id"].partition("/")[0], row["row_number"], row["ok"]) for row in rows} == {("a", 1, True)}


def test_frames_are_blocks_too(project: ProjectFolder) -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    project.workflow()
    reviews = agac.ray_map("reviews", project=project.root)
    of_all = [reviews(block).to_pylist() for block in (pandas.DataFrame(ROWS), arrow.Table.from_pylist(ROWS))]
    assert of_all[0] == of_all[1] == mapped(project, ROWS)


def test_what_the_machine_has_answered_is_not_asked_again_in_whatever_block_it_comes(
    project: ProjectFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.asks(server)
    project.workflow()
    first = mapped(project, ROWS)
    assert mapped(project, ROWS) == first
    assert [mapped(project, [row])[0]["result"] for row in reversed(ROWS)] == [row["result"] for row in reversed(first)]
    assert asked(server) == len(ROWS)
    monkeypatch.setattr(socket, "gethostname", lambda: "another-machine")
    mapped(project, ROWS)
    assert asked(server) == 2 * len(ROWS)  # without a remote it knows nothing of the first


def on_machine(name: str, project: ProjectFolder, numbers: range, writer: str = "ray") -> list[dict[str, Any]]:
    """A block as a process of another machine has it, whose answers travel as those of a real provider do."""
    env = {"AGAC_REMOTE_WRITER": writer, "AGAC_TEST_REAL": "1"}
    ran = python(project.root, "-c", BLOCK, name, *map(str, numbers), env=env)
    assert ran.code == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


def test_with_a_remote_another_machine_begins_with_the_answers_of_the_first(
    project: ProjectFolder, server: Server
) -> None:
    project.asks(server)
    shared = "remote: {url: ../shared, trust: [ray], push: auto}\n"
    project.write("agac.yml", (project.root / "agac.yml").read_text("utf-8") + shared)
    project.workflow()
    first = on_machine("one", project, range(2), writer="")  # which may not push
    first += on_machine("one", project, range(2, 4))  # and this process pushes what that one left
    second = on_machine("two", project, range(4))
    assert [row["result"] for row in second] == [row["result"] for row in first]
    assert asked(server) == len(ROWS)


def test_two_processes_with_blocks_of_the_same_rows_pay_for_one(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([], "--latency", "0.3"))
    project.workflow()
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda _: mapped(project, ROWS), range(2))
    assert one == other
    assert asked(server) == len(ROWS)


def test_rows_that_did_not_end_are_said_and_the_same_block_resumes(project: ProjectFolder, server: Server) -> None:
    project.asks(server)
    project.workflow()
    with pytest.raises(AgacError, match="2 rows of a block did not end: the budget of the run is used up"):
        mapped(project, ROWS, budget=agac.Budget(calls=2))
    assert len(mapped(project, ROWS)) == asked(server) == len(ROWS)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"budget": {"calls": 5}}, "a budget is that of one run, and each block of rows is one"),
        ({"stages": [{"name": "all", "group_by": [], "prompt": "Sum up ${rows_json}"}]}, "stage 'all' has to see all"),
        ({"stages": [{"name": "one", "dedupe": ["text"]}]}, "stage 'one' has to see all rows"),
    ],
)
def test_what_no_block_can_do_is_refused(keys: dict[str, Any], said: str, project: ProjectFolder) -> None:
    project.workflow(**keys)
    with pytest.raises(UsageError, match=said):
        mapped(project, ROWS)


def test_options_that_choose_rows_and_a_missing_pyarrow_are_said_at_once(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"options\.limit is not for blocks"):
        agac.ray_map("reviews", project=project.root, options=agac.RunOptions(limit=1))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"agac\.ray_map needs pyarrow.*pip install 'pyarrow"):
        agac.ray_map("reviews", project=project.root)

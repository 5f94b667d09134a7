"""The benchmark runs from end to end and says sane things; how fast anything is, is not tested."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.commands import template
from support.processes import processes
from support.soak import only_in_soak

from agac.cli.commands import COMMANDS

pytestmark = processes

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "bench" / "run.py"


def bench(*flags: str, forked: bool = False, program: str = "run") -> subprocess.CompletedProcess[str]:
    """The benchmark as users call it; or with a forked `agac`: six times as quick, but its figures are none."""
    agac = str(template().typed / "agac")
    words = ["-c", f"import processes; processes.AGAC = ({agac!r},); import {program}; {program}.main()"]
    words = words if forked else [str(RUN.with_name(f"{program}.py"))]
    environment = {**os.environ, "PYTHONPATH": str(RUN.parent)}
    return subprocess.run(
        [sys.executable, *words, *flags], env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """What a run over a few rows prints, and its JSON."""
    file = tmp_path_factory.mktemp("bench") / "figures.json"
    run = bench("--tiny", "--json", str(file), forked=True)
    assert run.returncode == 0, run.stderr
    return run.stdout, json.loads(file.read_text("utf-8"))


@only_in_soak
def test_every_scenario_gives_figures_that_keep_or_miss_their_bounds(found: tuple[str, dict[str, Any]]) -> None:
    figures = found[1]["figures"]
    kinds = {figure["scenario"].split(",")[0] for figure in figures}
    assert kinds == {
        "throughput", "latency", "wide", "memory", "run again", "plan", "scale", "rate", "start-up", "simulator",
        "reading",
        "graph of 20 stages", "80 tasks", "reduce", "batches", "process",
    }  # fmt: skip
    assert all(math.isfinite(figure["value"]) for figure in figures)
    bounds = {0.25, 0.18, 1.05, 1.06, 100, 1.1, 120, 1.0, 2.5, 0.15, 2, 150, 1.2, 250}
    assert {figure["at_most"] for figure in figures} >= bounds
    assert {figure["at_least"] for figure in figures} == {None, 0.5, 0.8, 0.85, 5, 4000}
    for figure in figures:
        kept = None if figure["at_least"] is None else figure["value"] >= figure["at_least"]
        assert figure["kept"] == (kept if figure["at_most"] is None else figure["value"] <= figure["at_most"])
    again = [f["value"] for f in figures if f["what"] == "calls" and f["scenario"].startswith("run again")]
    assert again == [0, 0]
    calls = [(f["scenario"].partition(",")[0], f["value"]) for f in figures if f["what"] == "calls of that"]
    assert calls == [("scale", 0), ("scale", 2)] * 2 + [("reduce", 0)] * 2
    assert [f["value"] for f in figures if f["what"] == "calls after one changed cell, a stage"] == [1, 1]
    text, said = found
    first = text.splitlines()[0]
    assert said["machine"]["python"] in first
    assert f"{said['machine']['cores']} cores" in first
    assert all(figure["what"] in text for figure in figures)
    assert f"of {sum(f['kept'] is not None for f in figures)} requirements kept." in text


@only_in_soak
def test_the_start_of_every_command_is_measured(found: tuple[str, dict[str, Any]]) -> None:
    figures = [figure for figure in found[1]["figures"] if figure["scenario"] == "start-up"]
    shown = [figure["what"] for figure in figures if ", best of" not in figure["what"]]
    assert shown[:2] == ["python, nothing else", "import agac"]
    assert [what.split(",")[0].split()[1] for what in shown[2:]] == ["--help", *COMMANDS]
    assert all(figure["value"] > 0 and figure["unit"] == "s CPU" for figure in figures)
    assert {figure["what"]: figure["at_most"] for figure in figures if figure["at_most"]} == {
        "agac --help": 0.15,
        "agac status": 0.25,
    }


def test_figures_replace_only_what_stands_between_the_marks_of_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    program = (
        "from pathlib import Path; from figures import Figure, machine; from run import write_page, BEGIN, END;"
        f"page = Path({str(page)!r}); page.write_text(f'before\\n{{BEGIN}}\\nold\\n{{END}}\\nafter\\n');"
        "write_page(page, machine(), [Figure('memory', 'peak', 61.5, 'MB', at_most=120)])"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": str(RUN.parent)})
    text = page.read_text("utf-8")
    assert text.startswith("before\n<!-- figures")
    assert text.endswith("end of figures -->\nafter\n")
    assert "| memory | peak | 61.5 MB | <= 120 | kept |" in text
    assert "old" not in text
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert text.index("<!-- figures: bench/run.py --write-docs -->") < text.index("<!-- end of figures -->")


def test_one_scenario_can_be_measured_alone_but_never_fills_the_page(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    run = bench("--tiny", "--only", "memory", "--json", str(file))
    assert run.returncode == 0, run.stderr
    assert {figure["scenario"] for figure in json.loads(file.read_text("utf-8"))["figures"]} == {"memory"}
    for flags in (["--tiny"], ["--only", "latency"]):
        run = bench("--write-docs", *flags)
        assert run.returncode == 2
        assert "--write-docs wants every scenario" in run.stderr


@only_in_soak
def test_what_workers_carry_is_measured_beside_one_process() -> None:
    pytest.importorskip("ray", reason="Ray does not install here")
    few = ["--rounds", "1", "--rows", "20", "--slots", "4", "--latency", "0.01", "--sizes", "1", "3", "--repeats", "2"]
    words = ["scale.py", "--only", "waiting", "chunks", "--workers", "1", *few]
    run = subprocess.run([sys.executable, RUN.with_name(words[0]), *words[1:]], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    ray, local = (next(line for line in lines if line[:2] == [name, "1"]) for name in ("ray", "local"))
    assert ray[3] == local[3] == "1.000"
    assert float(ray[2]) > 0
    assert float(local[5]) == 0  # it has no workers
    assert [line[0] for line in lines[-2:]] == ["1", "3"]


def test_the_bound_of_agents_is_slots_and_the_order_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(RUN.parent))
    import agents

    assert [round(agents.bound(turn), 2) for turn in (0.2, 0.5)] == [1.2, 2.5]
    assert (len(agents.PAPERS), len(set(agents.PAPERS))) == (20, 9)


def test_shards_are_measured_and_merged_into_what_one_process_writes(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    run = bench("--rows", "60", "--shards", "2", "--compare", "--json", str(file), forked=True, program="shards")
    assert run.returncode == 0, run.stderr
    figures = {figure["what"]: figure for figure in json.loads(file.read_text("utf-8"))}
    assert figures["asked more than once"]["value"] == 0
    assert figures["results.jsonl, lines"]["value"] == 60
    assert figures["results.jsonl is that of one process"]["value"] == 1
    for sort in ("stores", "answers in the remote", "finished rows in the remote", "results.jsonl"):
        assert figures[f"{sort}, bytes a row"]["value"] > 0
    assert all(math.isfinite(figure["value"]) for figure in figures.values())


@only_in_soak
def test_what_killed_shards_pay_twice_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    flags = ["--rows", "120", "--shards", "3", "--concurrency", "2", "--latency", "0.02", "--kill", "--json", str(file)]
    run = bench(*flags, forked=True, program="shards")
    assert run.returncode == 0, run.stderr
    figures = json.loads(file.read_text("utf-8"))
    twice = [figure["value"] for figure in figures if figure["what"] == "asked twice"]
    before = [figure["value"] for figure in figures if figure["what"] == "requests before"]
    assert 0 <= twice[0] < before[0]
    assert twice[1] == before[1]  # too short for answers to have come to the remote
    assert next(figure["value"] for figure in figures if figure["what"] == "results.jsonl, lines") == 120


def test_two_killed_shards_leave_one_to_be_measured() -> None:
    run = bench("--rows", "9", "--shards", "2", "--kill", program="shards")
    assert run.returncode == 2
    assert "--kill takes two shards of at least three" in run.stderr

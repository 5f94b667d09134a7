"""Row runs with several models: a job and an OUTPUT for each, and how far their results agree."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripted_server import Step, answering
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.api.compare import jobs_of

PRICES = {"prices": {"*": {"input": 1.0, "output": 2.0}}}
MOODS = {"type": "object", "properties": {"mood": {"type": "string"}, "score": {"type": "integer"}},
         "required": ["mood", "score"], "additionalProperties": False}  # fmt: skip


def compare(project: ProjectFolder, *models: str, **options: Any) -> agac.ComparisonReport:
    more = {"prompt": "Review: {text}", "id_field": "id", **options}
    given = agac.ProcessOptions(**more)
    return agac.compare(
        project.root / "data/rows.csv", project.root / "out.jsonl", given, models=models, project=project.root
    )


def charged(server: Server) -> int:
    return int(server.account()["charged"])


def test_each_model_has_a_job_and_a_line(project: ProjectFolder) -> None:
    project.numbered(4)

    def answer(prompt: str) -> Step:  # one prompt of two models: answers come in turn
        asked[prompt] = asked.get(prompt, 0) + 1
        number = int(prompt[-1])
        score = number if asked[prompt] == 1 or number < 3 else 9
        return Step(json.dumps({"mood": "good", "score": score}))

    asked: dict[str, int] = {}
    with answering(answer, project):
        words = ("-m", "local/a", "-m", "local/b/c?temperature=1", "--summary-output", "s.json")
        schema = project.write("schema.json", json.dumps(MOODS))
        ran = project.agac(
            "process", "data/rows.csv", "out.jsonl", "-p", "{text}", "--json-schema", str(schema), *words, code=0
        )
    first, second = ran.json["models"]
    assert [first["model"], first["job"], first["rows"]["done"]] == ["local/a", "job_1", 4]
    assert [second["output"], second["job"]] == ["out.local-b-c-temperature-1.jsonl", "job_2"]
    assert first["agreement"] is None
    assert second["agreement"] == {"rows": 4, "share": 0.5, "fields": {"mood": 1.0, "score": 0.5}}
    assert first["timing_ms"]["duration"]["p95"] > 0
    assert "local/b/c?temperature=1 agrees: mood 100%, score 50%" in ran.err
    assert "local/b/c?temperature=1  4 done  50%     price unknown" in ran.err
    names = {one.name for one in project.root.glob("*.json*")}
    assert names == {
        "out.local-a.jsonl", "out.local-b-c-temperature-1.jsonl", "s.local-a.json", "s.local-b-c-temperature-1.json",
        "schema.json",
    }  # fmt: skip


def test_each_goes_on_alone_and_one_that_fails_stops_no_other(project: ProjectFolder, server: Server) -> None:
    project.asks(server, **PRICES)
    server.reset()
    project.numbered(6)
    found = compare(project, "nobody/x", "local/small", "local/large", limit=3)
    assert (found.exit_code, [one.get("error", "")[:9] for one in found.summary["models"]]) == (
        agac.ExitCode.USAGE, ["1 problem", "", ""],
    )  # fmt: skip
    assert (charged(server), len(found.reports)) == (6, 2)
    assert agac.resume("job_2", project=project.root).summary["output"] == "out.local-large.jsonl"
    found = compare(project, "local/small", "local/large")
    assert (charged(server), found.exit_code) == (12, agac.ExitCode.DONE)
    assert [len(Path(one["output"]).read_text().splitlines()) for one in found.summary["models"]] == [6, 6]


def test_limits_and_quotes_hold_for_each_and_a_budget_for_all(project: ProjectFolder, server: Server) -> None:
    project.asks(server, **PRICES)
    project.numbered(30)
    models = ("local/small", "local/large", "local/other")
    for calls, done, order in ((45, [30, 15, 0], models), (0, [0, 15, 30], models[::-1])):
        server.reset()
        found = compare(project, *order, budget=agac.Budget(calls=45))
        assert [one["rows"]["done"] for one in found.summary["models"]] == done
        assert (charged(server), found.exit_code) == (calls, agac.ExitCode.LIMIT), "whoever spent it, in whatever order"
    server.reset()
    with_quotes = compare(project, *models, prompt="Say: {text}", quote=True, limit=25)
    assert ["stopped after 20 rows" in one["error"] for one in with_quotes.summary["models"]] == [True] * 3
    assert (charged(server), with_quotes.exit_code) == (60, agac.ExitCode.USAGE)


def test_batches_of_several_models(project: ProjectFolder) -> None:
    project.numbered(3)
    models = ("simulator/small", "simulator/large")
    found = compare(project, *models, run_mode="batch", wait=True)
    assert [one["rows"]["done"] for one in found.summary["models"]] == [3, 3]
    assert found.summary["models"][1]["agreement"]["rows"] == 3


@pytest.mark.parametrize(
    ("models", "names"),
    [
        (("a/b-c", "a-b/c", "A/b/c?"), ["a-b-c", "a-b-c-2", "A-b-c-3"]),
        (("openai/gpt-5.4-mini?reasoning=low", "x/../../etc", "x/" + "y" * 300), None),
        (("a/b", "a/b"), ["a-b"]),
    ],
)
def test_files_have_readable_names_of_their_own(models: tuple[str, ...], names: list[str] | None) -> None:
    jobs = jobs_of("some/out.jsonl", agac.ProcessOptions(error_output="e.jsonl"), models)
    places = [place for place, _ in jobs]
    names = names or ["openai-gpt-5.4-mini-reasoning-low", "x-..-..-etc", "x-" + "y" * 98]
    assert places == [str(Path(f"some/out.{name}.jsonl")) for name in names]
    assert [job.error_output for _, job in jobs] == [f"e.{name}.jsonl" for name in names]


def test_what_several_models_cannot_do_is_said(project: ProjectFolder) -> None:
    project.numbered(2)
    words = ("process", "data/rows.csv")
    both = ("-m", "simulator/small", "-m", "simulator/large", "-p", "{text}")
    assert "cannot hold the results of several models" in project.agac(*words, "-", *both, code=2).err
    assert "the table of --to cannot" in project.agac(*words, "o.csv", *both, "--to", "sqlite://d?table=t", code=2).err
    assert "a workflow has one model" in project.agac(*words, "o.csv", *both, "--save-workflow", "w.yml", code=2).err
    ran = project.agac(*words, "o.csv", *both, "--dry-run", "--limit", "1", code=0)
    assert ran.out.count("Expected: 1 call") == 2
    assert yaml.safe_load((project.root / "agac.yml").read_text())

"""Cards of type MAKER: the worker is asked until one answer leads by `k` votes, by calls, in batches and in other
cards."""

import json
from collections import Counter
from typing import Any

import pytest
from scripted_server import Step, deciding
from support.batchrun import Make, outcomes
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.core.errors import ExitCode, SpecError

MAKER = "type: MAKER\nworker: worker\n"


def ready(project: ProjectFolder, card: str = "k: 2\nmax_samples: 9\n", rows: int = 1, **keys: Any) -> None:
    project.write("agentcards/worker.md", "---\ntool_only: true\n---\nYou count.")
    project.write("agentcards/sure.yaml", f"{MAKER}{card}")
    project.rows({"id": f"r-{n}", "text": f"thing {n}"} for n in range(1, rows + 1))
    project.workflow(stages=[{"name": "n", "agent": "sure", "prompt": "Of ${text}", **keys}])


def saying(*texts: str | Step) -> Any:
    def answer(asked: dict[str, Any]) -> Step:
        text = texts[min(asked.get("seed", 1), len(texts)) - 1]
        return Step(text) if isinstance(text, str) else text

    return deciding(answer)


def test_the_worker_is_asked_until_one_answer_leads(project: ProjectFolder) -> None:
    with project.asking(saying("A", "b", "b", "A", "A.", "a")) as provider:
        ready(project)
        report = project.run()
        assert report.exit_code == ExitCode.DONE, report
        assert sorted(asked["seed"] for asked in provider.asked) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
        assert {asked["messages"][0]["content"] for asked in provider.asked} == {"You count."}
        assert project.output() == ["a"]  # 4 of 9
        ready(project, "k: 2\nmax_samples: 9\nmatch_strategy: normalized\n")
        assert project.run().exit_code == ExitCode.DONE
        assert len(provider.asked) == 9
        assert project.output() == ["A"]
    assert (
        "  replicas: 9 at most, vote on the answer, lead 2, match normalized\n" in project.agac("inspect", "last").out
    )
    project.assert_sound()


def test_long_replies_and_empty_ones_have_no_vote(project: ProjectFolder) -> None:
    with project.asking(saying("far too long", Step(""), "b", "a", "a")) as provider:
        ready(project, "k: 2\nmax_samples: 9\nred_flag_max_length: 5\n", repair=0)
        assert project.run().exit_code == ExitCode.DONE
        assert project.query("SELECT agreement FROM v_results WHERE replica = 0") == [("3/4 of 6",)]
        assert Counter(asked["seed"] for asked in provider.asked) == dict.fromkeys(range(1, 7), 1)
    assert project.output() == ["a"]


def test_json_is_compared_as_json_and_a_schema_of_the_stage_holds(project: ProjectFolder) -> None:
    texts = ['{"a": 1, "b": [2]}', "none", '{"b":[2],"a":1}', '{"a": 2}']
    with project.asking(saying(*texts)) as provider:
        ready(project, "k: 2\nmatch_strategy: structured\n")
        assert project.run().exit_code == ExitCode.DONE
        assert len(provider.asked) == 3
        assert project.output() == ['{"a": 1, "b": [2]}']
        ready(project, "k: 2\n", output_schema={"a": "integer", "b": "integer[]?"}, repair=0)
        assert project.run().exit_code == ExitCode.DONE
    assert project.output() == [{"a": 1, "b": [2]}]


def test_where_none_leads_the_row_fails_and_what_leads_can_be_escalated(project: ProjectFolder) -> None:
    def answer(asked: dict[str, Any]) -> Step:
        if asked["model"] == "large":
            return Step("large")
        number = int(asked["messages"][-1]["content"].split()[-1])
        return Step({1: "a", 2: "ab"[asked["seed"] % 2], 3: "ba"[asked["seed"] > 1]}[number])

    with project.asking(deciding(answer)) as provider:
        ready(project, "k: 2\nmax_samples: 6\n", rows=3, escalate={"when": "agreement < 0.9", "model": "local/large"})
        assert project.run().exit_code == ExitCode.ROWS_FAILED
    assert outcomes(project) == [
        ("r-1", True, "a", None), ("r-2", False, None, "NoConsensus"), ("r-3", True, "large", None),
    ]  # fmt: skip
    assert Counter(asked["model"] for asked in provider.asked) == {"small": 2 + 6 + 4, "large": 1}


@pytest.mark.parametrize(("most", "agreement"), [(1, "1/1"), (50, "1/1")])
def test_with_k_1_the_first_answer_wins(project: ProjectFolder, most: int, agreement: str) -> None:
    with project.asking(saying("a")) as provider:
        ready(project, f"k: 1\nmax_samples: {most}\nred_flag_max_length: 3\n")
        assert project.run().exit_code == ExitCode.DONE
        assert project.query("SELECT agreement FROM v_results WHERE replica = 0") == [(agreement,)]
        ready(project, f"k: 1\nmax_samples: {most}\nred_flag_max_length: 3\n", prompt="Another of ${text}")
    with project.asking(saying("far too long")) as provider:
        assert project.run().exit_code == ExitCode.ROWS_FAILED
        assert len(provider.asked) == most
        assert project.run().exit_code == ExitCode.ROWS_FAILED
        assert len(provider.asked) == most


def test_in_batches_it_ends_as_call_by_call(batches_at: Make, server: Server) -> None:
    project = batches_at()
    card = "k: 2\nmax_samples: 8\nmatch_strategy: structured\n"
    ready(project, card, rows=6, output_schema={"pick": "x|y|z"}, run_mode="batch")
    project.run(wait=True)
    assert len(project.query("SELECT id FROM batch")) > 2
    project.assert_as_sync(server)


def test_a_maker_is_a_part_of_other_cards(project: ProjectFolder) -> None:
    def answer(asked: dict[str, Any]) -> Step:
        system, said = (one["content"] for one in asked["messages"])
        return Step(f"{said}." if system == "You end." else "ab"[asked["seed"] in (2, 3)])

    with project.asking(deciding(answer)) as provider:
        ready(project)
        project.write("agentcards/end.md", "You end.".join(["---\ntool_only: true\n---\n", ""]))
        project.write("agentcards/steps.yaml", "type: chain\nsequence: [sure, end, sure]\n")
        project.workflow(stages=[{"name": "n", "agent": "steps", "prompt": "Of ${text}"}])
        report = project.run()
    assert [(one["name"], one["done"]) for one in report.summary["stages"]] == [("n/sure", 1), ("n/end", 1), ("n", 1)]
    assert project.output() == ["a"]
    assert len(provider.asked) == 6 + 1 + 6
    assert "n/sure: 2 to 9 calls" in project.agac("plan", "-a", "reviews", "--fresh").out


@pytest.mark.parametrize(
    ("card", "keys", "said"),
    [
        ("k: 2\n", {"replicas": 3}, "replicas does not go with a card of type maker; write k, max_samples and"),
        ("k: 2\n", {"explode": "text"}, "explode does not go with a card of type maker; explode the list at a stage"),
        ("k: 2\nmodel: local/small\n", {}, "`model` is for a card that asks a model itself"),
        ("k: 2\nmessages: talk.txt\n", {}, "messages are for cards that ask a model themselves; name them there"),
        ("k: 2\nmatch_strategy: close\n", {}, "choose exact, normalized, structured"),
        ("k: 0\n", {}, "k: must be at least 1, not 0"),
        ("k: 9\nmax_samples: 8\n", {}, "nobody leads by 9 votes of 8; raise max_samples, or lower k"),
    ],
)
def test_what_it_does_not_take(project: ProjectFolder, card: str, keys: dict[str, Any], said: str) -> None:
    ready(project, card, **keys)
    with pytest.raises(SpecError) as raised:
        agac.plan("reviews", project=project.root)
    assert said in str(raised.value)


def test_its_worker_is_asked_itself(project: ProjectFolder) -> None:
    ready(project)
    project.write("agentcards/worker.md", "---\ntype: chain\nsequence: [other]\n---\n")
    project.write("agentcards/other.md", "You count.")
    with pytest.raises(SpecError) as raised:
        agac.plan("reviews", project=project.root)
    assert "agentcards/sure.yaml:2:9: worker: worker is made of other cards; name one that is asked itself" in str(
        raised.value
    )
    project.write("agentcards/worker.md", "---\ntype: MAKER\nworker: sure\n---\n")
    with pytest.raises(SpecError) as raised:
        agac.plan("reviews", project=project.root)
    assert "these cards name each other in a circle: sure → worker → sure" in str(raised.value)
    project.write("agentcards/asks.yaml", "agents: [sure]\n")
    project.workflow(stages=[{"name": "n", "agent": "asks", "prompt": "Of ${text}"}])
    with pytest.raises(SpecError) as raised:
        agac.plan("reviews", project=project.root)
    assert "sure is of type maker and becomes stages, so that no agent can call it" in str(raised.value)


def test_row_runs_and_python_ask_it(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url)
    ready(project, "k: 2\nmax_samples: 20\n", rows=3)
    schema = json.dumps({"type": "object", "properties": {"pick": {"enum": ["x", "y"]}}, "required": ["pick"]})
    project.write("schema.json", schema)
    project.write("prompt.txt", "Of {{text}}")
    project.agac(
        "process", "data/rows.csv", "--agent-card", "agentcards", "--agent", "sure", "--id-field", "id",
        "--json-schema", "schema.json", "--template", "prompt.txt", "--output", "out.jsonl", code=0,
    )  # fmt: skip
    lines = [json.loads(line) for line in (project.root / "out.jsonl").read_text("utf-8").split("\n") if line]
    assert [one["ok"] for one in lines] == [True] * 3
    assert server.account()["requests"] >= 6

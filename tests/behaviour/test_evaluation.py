"""`agac eval`: answers beside labels that the workflow does not see; nothing is asked, or paid, twice."""

import json
from typing import Any

import pytest
from scripted_server import Step, answering
from support.project import SENTIMENT, ProjectFolder
from support.server import Server

import agac
from agac.core.statistics import paired_difference, proportion

CLASSIFY: dict[str, Any] = {
    "name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT,
    "expect": {"label": "truth", "field": "sentiment"},
}  # fmt: skip
PRICES = {"small": {"input": 1, "output": 2}, "large": {"input": 10, "output": 20}}
SENTIMENTS = ("positive", "neutral", "negative")
BOTH = ["eval", "-a", "reviews", "-m", "local/small", "-m", "local/large", "--yes"]


def labelled(project: ProjectFolder, count: int = 20) -> None:
    """Rows of which every fifth has no label."""
    project.rows(
        {"id": f"r-{i}", "text": f"I love number {i}", "truth": SENTIMENTS[i % 3] if i % 5 else ""}
        for i in range(1, count + 1)
    )


@pytest.fixture
def ready(project: ProjectFolder, server: Server) -> ProjectFolder:
    project.asks(server, prices=PRICES)
    labelled(project)
    project.workflow(stages=[CLASSIFY])
    return project


def asked(project: ProjectFolder) -> int:
    return int(project.query("SELECT count(*) FROM attempt")[0][0])


def evaluated(project: ProjectFolder, **how: Any) -> agac.Evaluation:
    return agac.evaluate("reviews", project=project.root, **{"yes": True, **how})


def answers(project: ProjectFolder, run: int) -> dict[str, Any]:
    values = "SELECT row.id, value FROM row JOIN task ON row_key = row.key JOIN result ON result.id = task.result_id"
    return {one: json.loads(text) for one, text in project.query(f"{values} WHERE run_id = ? AND replica = 0", run)}


def test_models_are_judged_on_the_same_rows_with_their_cost(ready: ProjectFolder) -> None:
    found = ready.agac(*BOTH, "--json", code=0).json
    assert (found["rows"], found["unlabelled"], found["asked"], asked(ready)) == (16, 4, 16, 32)
    truth = {f"r-{i}": SENTIMENTS[i % 3] for i in range(1, 21) if i % 5}
    right = []
    for one in found["models"]:
        given = answers(ready, one["run"])
        right.append([given[row]["sentiment"] == label for row, label in truth.items()])
        assert one["accuracy"] == proportion(sum(right[-1]), 16)._asdict()
        for label in SENTIMENTS:
            of_label = [given[row]["sentiment"] for row, own in truth.items() if own == label]
            made = [given[row]["sentiment"] for row in truth].count(label)
            assert one["recall"][label] == proportion(of_label.count(label), len(of_label))._asdict()
            assert (one["precision"][label] or {}).get("middle") == (of_label.count(label) / made if made else None)
            assert one["confusion"][label] == {name: of_label.count(name) for name in one["confusion"][label]}
    first, second = found["models"]
    pairs = list(zip(*reversed(right), strict=True))
    kinds = ((True, True), (True, False), (False, True), (False, False))
    assert second["difference"] == paired_difference(*(pairs.count(kind) for kind in kinds))._asdict()
    assert first["difference"] is None
    assert 0 < first["usd_per_1000_rows"] * 9 < second["usd_per_1000_rows"]
    assert second["seconds_per_1000_rows"] > 0
    assert not (ready.root / "output").exists()
    again = ready.agac(*BOTH, code=0)
    assert asked(ready) == 32
    assert f"{first['accuracy']['middle']:.1%} (" in again.out
    assert "16 of 16 rows with a label asked; 4 rows without a label left out" in again.out


def test_a_stored_answer_is_reused_and_its_price_is_known(ready: ProjectFolder) -> None:
    ready.run()
    (one,) = evaluated(ready).models
    assert asked(ready) == 20
    assert one.usd_per_1000_rows
    assert (one.model, one.judged) == ("local/small", 16)
    report = ready.run()  # and the run that was there is the one that goes on
    assert (report.summary["run"], report.summary["calls"]["count"]) == (1, 20)


def test_a_larger_sample_has_the_smaller_one_in_it(ready: ProjectFolder) -> None:
    assert evaluated(ready, sample=5, seed=7).asked == 5
    report = evaluated(ready, sample=9, seed=7)
    assert (report.asked, report.rows, report.models[0].judged, asked(ready)) == (9, 16, 9, 9)


def test_another_label_asks_nothing_again(ready: ProjectFolder) -> None:
    first = evaluated(ready, models=["local/small"])
    ready.run()
    text = (ready.root / "data/rows.csv").read_text("utf-8").replace("neutral", "positive")
    ready.write("data/rows.csv", text.replace(",\n", ",negative\n"))
    before = asked(ready)
    ready.run()
    second = evaluated(ready, models=["local/small"])
    assert asked(ready) == before
    assert (second.rows, second.unlabelled, first.rows) == (20, 0, 16)
    assert second.models[0].confusion != first.models[0].confusion


def test_the_cost_is_that_of_the_answers_that_were_judged(ready: ProjectFolder) -> None:
    evaluated(ready)
    text = (ready.root / "data/rows.csv").read_text("utf-8")
    ready.write("data/rows.csv", text.replace("number 1,", "a very long story of the number one,"))
    (one,) = evaluated(ready).models
    ((calls, cost),) = ready.query(
        "SELECT count(*), sum(cost) FROM attempt WHERE fingerprint IN (SELECT fingerprint FROM task)"
    )
    assert (asked(ready), calls) == (17, 16)
    assert one.usd_per_1000_rows == pytest.approx(1000 * cost / 16)


LEAKS: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "Say ${truth}"},
    "example": {"messages": [{"role": "user", "content": "${truth}"}, {"role": "assistant", "content": "x"}]},
    "guard": {"when": "truth == 'positive'"},
    "group": {"name": "sum", "group_by": ["truth"], "prompt": "${rows_json}"},
    "explode": {"name": "each", "explode": "truth", "prompt": "${item}"},
    "dedupe": {"name": "once", "dedupe": ["truth"]},
    "select": {"name": "some", "select": ["text", "truth"]},
    "rename": {"name": "some", "rename": {"truth": "other"}},
    "filter": {"name": "some", "filter": "truth != ''"},
}


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
@pytest.mark.parametrize("kind", LEAKS)
def test_a_name_of_a_label_is_an_error(project: ProjectFolder, kind: str, suffix: str) -> None:
    project.rows([{"id": "1", "text": "x", "truth": "positive"}], f"data/rows.{suffix}")
    stage = LEAKS[kind]
    stages = [CLASSIFY, stage] if "name" in stage else [CLASSIFY | stage]
    project.workflow(stages=stages, path=f"data/rows.{suffix}", output={"stages": ["classify"]})
    (problem,) = agac.validate("reviews", project=project.root).problems
    assert "'truth' holds labels (`expect`), which no stage sees" in problem.message
    assert problem.severity == "error"


def test_a_function_may_make_a_field_that_is_called_like_the_label(project: ProjectFolder) -> None:
    project.rows([{"id": "1", "text": "x", "truth": "positive"}])
    project.write("tools/own.py", 'def guess(row):\n    return {**row, "truth": "made"}\n')
    made = {"name": "made", "python": "tools/own.py:guess"}
    project.workflow(stages=[made, CLASSIFY | {"prompt": "${truth}"}])
    assert not agac.validate("reviews", project=project.root).problems


def test_no_request_result_or_output_has_a_label(project: ProjectFolder) -> None:
    label, path = "secretlabel", "data/rows.jsonl"
    project.rows([{"id": f"r-{i}", "text": f"t{i % 2}", "list": ["a"], "truth": label} for i in range(4)], path)
    keep = 'def keep(row):\n    return {**row, "keys": ",".join(sorted(row))}\n'
    project.write("tools/own.py", f'{keep}\n\ndef look(text: str) -> str:\n    """Look."""\n    return text\n')
    output = {"include_input": True, "format": "csv", "stages": ["plain", "json", "used", "after"]}
    project.workflow(path=path, output=output, stages=[
        {"name": "plain", "expect": {"label": "truth"}},  # the prompt is the whole row
        {"name": "json", "prompt": "${row_json}", "needs": []},
        {"name": "used", "prompt": "Look at ${row_json}", "tools": ["tools/own.py:look"], "needs": []},
        {"name": "kept", "python": "tools/own.py:keep", "needs": "plain"},
        {"name": "after", "prompt": "${row_json} ${keys}", "needs": "kept"},
        {"name": "each", "explode": "list", "prompt": "${row_json}", "needs": "plain"},
        {"name": "all", "group_by": ["text"], "prompt": "${rows_json}", "needs": "plain"},
    ])  # fmt: skip
    with answering(lambda _: Step("fine"), project) as server:
        assert project.run().exit_code is agac.ExitCode.DONE
        (one,) = evaluated(project).models
    assert (one.judged, one.right) == (4, 0)
    said = json.dumps(server.asked)
    assert label not in said
    assert "truth" not in said
    assert "id,list," in said, [body["messages"] for body in server.asked]
    written = [path for path in (project.root / "output").rglob("*") if path.is_file()]
    assert {"results.csv", "results.jsonl"} <= {path.name for path in written}
    assert not [path for path in (*written, project.root / ".agac/agac.db") if label.encode() in path.read_bytes()]


def test_a_stage_that_is_not_enabled_hides_its_labels_too(project: ProjectFolder) -> None:
    labelled(project, 2)
    project.workflow(stages=[CLASSIFY | {"enabled": False}, {"name": "other", "prompt": "${row_json}"}])
    assert "truth" not in str(agac.plan("reviews", project=project.root, show=2).prompts)


@pytest.mark.parametrize("moment", [9, 14, 20])
def test_killed_and_run_again_it_asks_only_what_is_not_stored(ready: ProjectFolder, moment: int) -> None:
    ready.workflow(stages=[CLASSIFY], defaults={"concurrency": 2})
    assert ready.agac(*BOTH, kill=f"committed:{moment}").code != 0
    ((stored,),) = ready.query("SELECT count(*) FROM result")
    before = asked(ready)
    assert 0 < stored == before < 32
    found = ready.agac(*BOTH, "--json", code=0).json
    assert [one["judged"] for one in found["models"]] == [16, 16]
    assert asked(ready) - before == 32 - stored
    ready.assert_sound()


def test_the_price_is_told_and_nothing_is_asked_without_a_yes(ready: ProjectFolder) -> None:
    questions = list[str]()

    def no(question: Any) -> bool:
        questions.append(str(question))
        return False

    with pytest.raises(agac.UsageError, match="no calls were made"):
        evaluated(ready, models=["local/small", "local/large"], sample=5, yes=False, confirm=no)
    assert questions[0].startswith("evaluating classify takes at most 10 calls for 5 rows, ~$0.0")
    ended = ready.agac("eval", "-a", "reviews", code=2)
    assert "no calls were made: evaluating classify takes 16 calls for 16 rows, ~$0.0" in ended.err
    assert not (ready.root / ".agac/agac.db").exists() or asked(ready) == 0


def test_a_minimum_is_held_against_the_lower_bound(ready: ProjectFolder) -> None:
    (one,) = evaluated(ready).models
    assert one.accuracy is not None
    between = (one.accuracy.low + one.accuracy.middle) / 2
    held = evaluated(ready, minimum={"accuracy": one.accuracy.low})
    assert (held.exit_code, held.missed) == (agac.ExitCode.DONE, [])
    ended = ready.agac("eval", "-a", "reviews", "--min", f"accuracy={between}", code=3)
    assert f"local/small: accuracy is surely above {one.accuracy.low:.4g} only, and has to reach" in ended.out
    ready.agac("eval", "-a", "reviews", "--min", "recall.positive=0.99", "--min", "accuracy=0.0001", code=3)


KINDS: list[tuple[Any, list[Any], list[str], list[bool]]] = [
    ({"type": "boolean"}, [True, False, True], ["true", "TRUE", "false"], [True, False, False]),
    ({"type": "integer"}, [3, 4, -1], ["3.0", "4.5", "-1"], [True, False, True]),
    ({"type": ["string", "null"]}, [" Red ", None, "x"], ["red", "y", "X"], [True, False, True]),
    ({"enum": ["A", "b"]}, ["A", "b", "b"], ["a", "B", "A"], [True, True, False]),
    ({"type": ["number", "null"]}, [1.5, None, 2], ["1.50", "0", "2"], [True, False, True]),
]


@pytest.mark.parametrize(("shape", "given", "labels", "right"), KINDS)
def test_each_kind_of_answer_is_compared(
    project: ProjectFolder, shape: Any, given: list[Any], labels: list[str], right: list[bool]
) -> None:
    project.rows({"id": str(i), "text": str(i), "truth": label} for i, label in enumerate(labels))
    schema = {"type": "object", "properties": {"it": shape}, "required": ["it"]}
    project.workflow(stages=[
        {"name": "s", "prompt": "${text}", "output_schema": schema, "expect": {"label": "truth", "field": "it"}}
    ])  # fmt: skip
    with answering(lambda text: Step(json.dumps({"it": given[int(text)]})), project):
        (one,) = evaluated(project).models
    assert one.right == sum(right)


def test_numbers_may_lie_as_far_apart_as_the_tolerance(project: ProjectFolder) -> None:
    project.rows(({"id": str(i), "text": str(i), "truth": i + i % 3} for i in range(10)), "data/rows.jsonl")
    schema = {"type": "object", "properties": {"it": {"type": "number"}}, "required": ["it"]}
    stage = {"name": "s", "prompt": "${text}", "output_schema": schema}
    expect = {"label": "truth", "field": "it", "tolerance": 1}
    project.workflow(stages=[stage | {"expect": expect}], path="data/rows.jsonl")
    with answering(lambda text: Step(json.dumps({"it": int(text)})), project):
        (one,) = evaluated(project).models
    assert (one.judged, one.right, one.recall, one.confusion) == (10, 7, {}, {})


def test_failed_rows_are_wrong_and_guarded_ones_are_not_judged(project: ProjectFolder) -> None:
    labels = ["fine"] * 6 + ["(failed)"] * 2  # a word that stands for failed rows is a label like any other
    project.rows({"id": str(i), "text": f"t{i}", "truth": label} for i, label in enumerate(labels))
    project.workflow(stages=[{"name": "s", "prompt": "${text}", "when": "text != 't1'", "expect": {"label": "truth"}}])
    with answering(lambda text: Step("" if text in ("t2", "t3", "t7") else "Fine"), project):
        report = evaluated(project)
        (one,) = report.models
        assert (one.judged, one.failed, one.right, report.exit_code) == (7, 3, 3, agac.ExitCode.ROWS_FAILED)
        assert one.confusion == {"(failed)": {"(failed)": 1, "fine": 1}, "fine": {"(failed)": 2, "fine": 3}}
        assert evaluated(project, minimum={"accuracy": 0.1}).exit_code is agac.ExitCode.DONE


def test_an_answer_that_reads_like_a_failure_is_an_answer(project: ProjectFolder) -> None:
    project.rows({"id": label, "text": label, "truth": label} for label in ("fine", "(failed)"))
    project.workflow(stages=[{"name": "s", "prompt": "${text}", "expect": {"label": "truth"}}])
    with answering(lambda _: Step("(failed)"), project):
        report = evaluated(project)
    (one,) = report.models
    assert (one.judged, one.right, one.failed, report.exit_code) == (2, 1, 0, agac.ExitCode.DONE)


def test_replicas_agree_and_only_the_stages_before_are_asked(project: ProjectFolder) -> None:
    labelled(project, 9)
    voted = CLASSIFY | {"replicas": 3, "vote": "sentiment", "prompt": "${text} ${first}"}
    stages = [{"name": "first", "prompt": "${text}"}, voted, {"name": "later", "prompt": "${classify.sentiment}"}]

    def answer(text: str) -> Step:
        return Step(json.dumps({"sentiment": "positive", "reason": "x"}) if "once" in text else "once")

    with answering(answer, project) as server:
        project.workflow(stages=stages)
        (one,) = evaluated(project, models=["local/small", "local/small"]).models
        assert (one.judged, len(server.asked)) == (8, 8 + 3 * 8)
        assert one.agreement == proportion(8, 8)
        other = evaluated(project, models=["local/large"], sample=3).models[0]
        assert (other.judged, len(server.asked)) == (3, 32 + 3 * 3)


def test_a_budget_leaves_rows_that_are_not_judged(ready: ProjectFolder) -> None:
    ready.workflow(stages=[CLASSIFY], budget={"calls": 6})
    report = evaluated(ready, minimum={"accuracy": 0.01})
    (one,) = report.models
    assert (one.judged, report.exit_code) == (6, agac.ExitCode.LIMIT)
    assert one.stopped is not None


PLAIN = {"name": "p", "prompt": "x"}
LIST = {"name": "list", "prompt": "${text}", "output_schema": {"items": "string[]"}}
MADE = [LIST, CLASSIFY | {"explode": "list.items", "prompt": "${item}"}]


@pytest.mark.parametrize(
    ("stages", "words", "message"),
    [
        ([CLASSIFY | {"expect": {"label": "truth"}}], [], "expect compares one field of the results; add `field`"),
        ([CLASSIFY | {"expect": {"label": "truth", "field": "mood"}}], [], "the results have no field 'mood'"),
        ([CLASSIFY | {"expect": {"label": "id", "field": "reason"}}], [], "the input has no column 'id'"),
        (
            [CLASSIFY | {"expect": {"label": "no", "field": "reason"}}],
            [],
            "no row of data/rows.csv has a label in 'no'",
        ),
        ([CLASSIFY | {"replicas": 2}], [], "expect compares one answer, and replicas give a list of them; add vote"),
        ([CLASSIFY, PLAIN | {"expect": {"label": "truth", "field": "a"}}], [], "these are plain text; add output_fiel"),
        (MADE, [], "--stage classify: it answers rows that the stage classify makes"),
        ([PLAIN], [], "stages that have `expect`: none Name one with"),
        ([CLASSIFY, PLAIN], ["--stage", "p"], "stages that have `expect`: classify Name one"),
        ([CLASSIFY, CLASSIFY | {"name": "p"}], [], "stages that have `expect`: classify, p"),
        ([CLASSIFY], ["--min", "recall.lots=0.5"], "--min recall.lots=0.5: give a share of the rows"),
        ([CLASSIFY], ["--min", "accuracy=9"], "--min accuracy=9: give a share of the rows"),
        ([CLASSIFY], ["--min", "accuracy"], "--min accuracy: give a figure and a share"),
    ],
)
def test_what_cannot_be_judged_is_said(
    ready: ProjectFolder, stages: list[dict[str, Any]], words: list[str], message: str
) -> None:
    ready.workflow(stages=stages)
    ended = ready.agac("eval", "-a", "reviews", *words, code=2)
    assert message in " ".join(ended.err.split())


def test_a_label_that_no_answer_can_be_is_seen_and_corrected_for_nothing(ready: ProjectFolder) -> None:
    rows = {"1": "positive", "2": "postive", "3": "Negative"}
    ready.rows({"id": one, "text": "x", "truth": label} for one, label in rows.items())
    (first,) = evaluated(ready).models
    assert list(first.confusion) == ["negative", "positive", "postive"]
    assert (first.recall["postive"] or proportion(1, 1)).middle == 0
    ready.rows({"id": one, "text": "x", "truth": label.replace("postive", "positive")} for one, label in rows.items())
    (second,) = evaluated(ready).models
    assert (list(second.confusion), asked(ready)) == (["negative", "positive"], 1)


def test_the_next_command_of_an_evaluation_is_the_same_evaluation(ready: ProjectFolder) -> None:
    ready.workflow(stages=[CLASSIFY], budget={"calls": 2})
    evaluated(ready, models=["local/small"], sample=5, seed=3)
    shown = ready.agac("status", "last", "--json", code=0).out
    assert "agac eval -a reviews --model local/small --sample 5 --seed 3 --stage classify" in shown

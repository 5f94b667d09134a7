"""The threshold that decisions support: which condition, which number, how sure, and the change of the file."""

import json
import operator
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Scripted, Step, deciding
from support.project import ProjectFolder
from support.soak import few

import agac
from agac.api.calibrate import JudgedRow, Threshold, calibrated
from agac.core.errors import UsageError, Where
from agac.core.statistics import proportion, sample_needed
from agac.spec.guards import Guard, compile_guard

pytestmark = pytest.mark.filterwarnings("error")


def guard_of(text: str, line: int = 1, column: int = 1) -> Guard:
    guard, problems = compile_guard(text, Where("workflows/w.yml", line, column))
    assert guard is not None, problems
    return guard


@pytest.mark.parametrize(
    ("text", "field", "sign", "value"),
    [
        ("classify.confidence < 0.8", "classify.confidence", "<", 0.8),
        ("a.b.c >= 3", "a.b.c", ">=", 3),
        (" a.b > -1.5e1 ", "a.b", ">", -15.0),
    ],
)
def test_a_comparison_is_a_threshold(text: str, field: str, sign: str, value: float) -> None:
    found = Threshold.of(guard_of(text))
    assert (found.field, found.sign, found.value) == (field, sign, value)
    assert float(text[found.start : found.end]) == value


@pytest.mark.parametrize(
    "text", ["a.b < 1 || a.c", "a.b == 1", "amount > 10", "0.8 > a.b", "a.b < a.c", 'a["x y"][0] < 1', "a.b"]
)
def test_other_conditions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="does not compare one number of a result with a constant"):
        Threshold.of(guard_of(text))


def test_a_sample_that_is_needed_is_the_smallest_that_proves_it() -> None:
    for share in (0.001, 0.02, 0.1, 0.5):
        needed = sample_needed(share)
        assert proportion(0, needed).high <= share < proportion(0, needed - 1).high


def rows_of(chance: random.Random, rows: int, wrong_below: float) -> list[tuple[float, bool]]:
    """Scores between 0 and 1, and whether the answer is right: the lower the score, the seldomer."""
    scores = [round(chance.random(), 2) for _ in range(rows)]
    return [(score, chance.random() > wrong_below * (1 - score) ** 3) for score in scores]


def looked_at(rows: list[tuple[float, bool]], below: float, share: float, chance: random.Random) -> list[JudgedRow]:
    shown = [JudgedRow(score, right, False) for score, right in rows if score < below]
    drawn = [JudgedRow(score, right, True) for score, right in rows if score >= below and chance.random() < share]
    return shown + drawn


@pytest.mark.parametrize("target", few([0.05, 0.1], 2))
def test_what_passes_is_wrong_more_often_than_stated_in_at_most_five_of_a_hundred_samples(target: float) -> None:
    chance, broken, changed = random.Random(7), 0, 0
    threshold = Threshold.of(guard_of("a.b < 0.5"))
    for _ in range(200):
        rows = rows_of(chance, 2_000, 0.3)
        scores = Counter(score for score, _ in rows)
        _, best = calibrated(threshold, scores, looked_at(rows, 0.5, 0.3, chance), target, threshold.value)
        if best is not None:
            passed = [right for score, right in rows if score >= best.value]
            assert len(passed) == best.passing
            broken += passed.count(False) / len(passed) > target
            changed += best.value != threshold.value
    assert changed > 100
    assert broken <= 10


def test_rows_that_were_all_looked_at_are_known_and_the_sample_tells_of_the_others() -> None:
    threshold = Threshold.of(guard_of("a.b < 0.8"))
    scores = {0.6: 100, 0.7: 100, 0.9: 1_000}
    judged = [JudgedRow(0.9, True, True)] * 400 + [JudgedRow(0.7, True, False)] * 100
    judged += [JudgedRow(0.6, place >= 60, False) for place in range(100)]
    now, best = calibrated(threshold, scores, judged, 0.02, threshold.value)
    assert now is not None
    assert best is not None
    assert (now.value, now.passing, now.drawn) == (0.8, 1_000, 400)
    assert best.value == 0.7  # at 0.6 sixty more would pass that are wrong
    assert best.error.middle == 0.0
    assert best.error.high < now.error.high < 0.02


def test_a_row_that_waits_counts_as_wrong_and_without_a_sample_nothing_is_known() -> None:
    threshold = Threshold.of(guard_of("a.b < 0.8"))
    waits = [JudgedRow(0.9, False, True)] * 30 + [JudgedRow(0.9, True, True)] * 400
    assert calibrated(threshold, {0.9: 1_000}, waits, 0.02, threshold.value)[1] is None
    assert calibrated(threshold, {0.9: 1_000, 0.7: 1}, [JudgedRow(0.7, True, False)], 0.02, threshold.value) == (
        None,
        None,
    )


@pytest.mark.parametrize("sign", [">", ">=", "<="])
def test_every_sign_says_who_passes(sign: str) -> None:
    threshold = Threshold.of(guard_of(f"a.b {sign} 5"))
    turned = {">": -1, ">=": -1, "<=": 1}[sign]
    scores = {turned * number: 300 for number in range(-9, 10)}
    judged = [JudgedRow(score, turned * score >= 0, True) for score in scores for _ in range(300)]
    _, best = calibrated(threshold, scores, judged, 0.02, threshold.value)
    assert best is not None
    reviewed = {">": operator.gt, ">=": operator.ge, "<=": operator.le}[sign]
    passed = [score for score in scores if not reviewed(score, best.value)]
    assert best.passing == 300 * len(passed)
    assert all(turned * score >= 0 for score in passed)


WORKFLOW = """\
stages:
  - name: classify   # asks
    prompt: "${text}"
  - name: approve
    review:
      when: {quote}classify.confidence < 0.8{quote}  # was 0.8
      show: [classify]
"""


@pytest.mark.parametrize("quote", ["", '"', "'"])
@pytest.mark.parametrize("end", ["\n", ""])
def test_the_change_is_one_number_and_git_applies_it(tmp_path: Path, quote: str, end: str) -> None:
    text = WORKFLOW.replace("{quote}", quote).rstrip("\n") + end
    file = tmp_path / "workflows" / "w.yml"
    file.parent.mkdir()
    file.write_text(text, "utf-8")
    guard = guard_of("classify.confidence < 0.8", 6, 13)
    patch = tmp_path / "change.diff"
    patch.write_text("some words\n\n" + Threshold.of(guard).diff(text, 0.65), "utf-8")
    subprocess.run(["git", "init", "-q", "."], cwd=tmp_path, check=True)
    subprocess.run(["git", "apply", str(patch)], cwd=tmp_path, check=True)
    assert file.read_text("utf-8") == text.replace("0.8" + quote, "0.65" + quote, 1)


def test_a_condition_over_two_lines_is_left_to_its_author() -> None:
    guard = guard_of("classify.confidence\n< 0.8", 2, 7)
    text = "when: >-\n      classify.confidence\n      < 0.8\n"
    with pytest.raises(UsageError, match="not written on one line") as refused:
        Threshold.of(guard).diff(text, 0.65)
    assert "Write 0.65 there in the place of 0.8" in str(refused.value.remedy)


# With decisions of people about a run.

SCHEMA = {"label": "string", "confidence": "number"}
CLASSIFY: dict[str, Any] = {"name": "classify", "prompt": "classify ${text}", "output_schema": SCHEMA}


def answer(asked: dict[str, Any]) -> Step:
    """As sure as the text says, in hundredths."""
    number = int(asked["messages"][-1]["content"].rpartition("-")[2])
    return Step(json.dumps({"label": f"L{number}", "confidence": number / 100}))


@pytest.fixture
def model(project: ProjectFolder) -> Iterator[Scripted]:
    with project.asking(deciding(answer)) as server:
        yield server


def judged_run(project: ProjectFolder, *stages: dict[str, Any], **keys: Any) -> None:
    """Three rows for each hundredth; of those below 0.4 people say that they are wrong."""
    rows = [{"id": f"{n}-{k}", "text": f"{k} text-{n}"} for n in range(100) for k in range(3)]
    project.workflow(stages=[CLASSIFY | keys, *stages], rows=rows)
    project.run()
    decisions = []
    for item in agac.review_queue(project.root, limit=1000).items:
        number = int(item.row_id.partition("-")[0])
        edit = (
            {"label": "other", "confidence": 1} if number < 40 else {"label": f"L{number}", "confidence": number / 100}
        )
        said = ("edit", edit) if item.blind or number < 40 else ("approve", None)
        decisions.append(agac.Decision(item.id, *said, reviewer="Ada"))
    assert agac.decide(project.root, decisions).taken == len(decisions)
    assert project.run().invocation["complete"]


def test_the_threshold_of_a_review_follows_from_what_people_decided(project: ProjectFolder, model: Scripted) -> None:
    review = {"when": "classify.confidence < 0.8", "sample": 1.0, "blind": "30%"}
    judged_run(project, {"name": "approve", "needs": "classify", "review": review})
    before = (project.root / "workflows/reviews.yml").read_text("utf-8")
    subprocess.run(["git", "init", "-q", "."], cwd=project.root, check=True)
    ran = project.agac("calibrate", "approve", "-a", "reviews", "--target", "1%", code=0)
    assert "now: 0.8: 60 rows pass, wrong 0.0%" in ran.out
    (project.root / "change.diff").write_text(ran.out, "utf-8")
    subprocess.run(["git", "apply", "change.diff"], cwd=project.root, check=True)
    assert (project.root / "workflows/reviews.yml").read_text("utf-8") == before.replace("< 0.8", "< 0.4")
    report = project.agac("calibrate", "approve", "-a", "reviews", "--target", "1%", "--json", code=0).json
    assert (report["best"]["value"], report["diff"]) == (0.4, "")
    assert report["now"] == report["best"]


def test_the_threshold_of_an_escalation_follows_from_a_review_of_the_same_answers(
    project: ProjectFolder, model: Scripted
) -> None:
    escalate = {"when": "classify.confidence < 0.1", "model": "local/large"}
    approve = {"name": "approve", "needs": "classify", "review": {}}
    judged_run(project, approve, escalate=escalate)
    report = agac.calibrate("classify", "reviews", 0.01, project=project.root)
    assert report.best is not None
    assert report.best.value == 0.4
    assert "-    when: classify.confidence < 0.1\n+    when: classify.confidence < 0.4\n" in report.diff


def test_too_few_decisions_are_said(project: ProjectFolder, model: Scripted) -> None:
    judged_run(
        project,
        {"name": "approve", "needs": "classify", "review": {"when": "classify.confidence < 0.8", "sample": "10%"}},
    )
    ran = project.agac("calibrate", "approve", "-a", "reviews", "--target", "0.1%", code=3)
    assert "it takes 3,838" in ran.out, ran.out
    assert "has no condition" in project.agac("calibrate", "classify", "-a", "reviews", "--target", "1%", code=2).err


def test_rows_that_wait_are_not_taken_from_the_decisions_on_the_sample(project: ProjectFolder, model: Scripted) -> None:
    review = {"when": "classify.confidence < 0.8", "sample": 1.0}
    rows = [{"id": str(number), "text": f"text-{number}"} for number in (*range(70, 80), 90)]
    project.workflow(stages=[CLASSIFY, {"name": "approve", "needs": "classify", "review": review}], rows=rows)
    project.run()
    items = {item.row_id: item.id for item in agac.review_queue(project.root, limit=1000).items}
    agac.decide(project.root, [agac.Decision(items["90"], "approve", reviewer="Ada")])
    ran = project.agac("calibrate", "approve", "-a", "reviews", "--target", "1%", code=3)
    assert "0 decisions on the sample; 10 rows without one" in ran.out
    assert "1 decided, not applied yet: agac run -a reviews" in ran.out
    project.run()
    report = agac.calibrate("approve", "reviews", 0.01, project=project.root)
    assert (report.decided, report.waiting, report.unapplied) == (1, 10, 0)

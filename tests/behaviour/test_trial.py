"""`agac try`: a changed stage beside the stored answers of the version before; the real run then asks nothing again."""

import json
from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.server import Server

import agac

STAGES: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}: ${classify.sentiment}"},
]
SHORTER = "prompts/shorter.md"


@pytest.fixture
def ran(project: ProjectFolder, server: Server) -> ProjectFolder:
    """Forty rows are done by two stages, and there is another prompt."""
    project.asks(server, prices={"small": {"input": 1, "output": 2}, "large": {"input": 10, "output": 20}})
    project.numbered(40)
    project.run(project.workflow(stages=STAGES))
    project.write(SHORTER, "Say in one word: ${text}\n")
    return project


def asked(project: ProjectFolder) -> int:
    return int(project.query("SELECT count(*) FROM attempt")[0][0])


def tried(project: ProjectFolder, stage: str = "classify", **how: Any) -> agac.StageTrial:
    return agac.trial("reviews", stage, project=project.root, **{"yes": True, **how})


def test_the_run_with_a_tried_prompt_asks_the_tried_rows_nothing(ran: ProjectFolder) -> None:
    results, before = ran.output(), asked(ran)
    words = ["try", "-a", "reviews", "--stage", "classify", "--prompt", SHORTER, "--sample", "12", "--yes", "--json"]
    found = ran.agac(*words, code=0).json
    assert (found["rows"], found["tried"], found["failed"], found["rest"]) == (40, 12, 0, 28)
    assert found["comparison"]["rows"]["both"] == 12
    assert (asked(ran) - before, ran.output()) == (12, results)
    assert not (ran.root / "output/reviews/preview").exists()
    again = ran.agac(*words, code=0).json  # the same trial goes on, and has nothing left to ask
    assert (again["altered"], asked(ran) - before) == (found["altered"], 12)
    assert again["comparison"]["second"]["run"] == found["comparison"]["second"]["run"] == 2
    ran.workflow(stages=[STAGES[0] | {"prompt": SHORTER}, STAGES[1]])
    report = ran.run()
    assert (report.rows.done, report.summary["run"]) == (40, 3)
    (classify, _) = report.summary["stages"]
    assert (classify["done"], classify["reused"]) == (28, 12)
    ran.assert_sound()


def test_another_model_is_shown_with_what_differs_and_what_it_costs(ran: ProjectFolder) -> None:
    words = ["try", "-a", "reviews", "--stage", "classify", "--model", "local/large", "--prompt", SHORTER, "--yes"]
    ended, found = ran.agac(*words, code=0), tried(ran, model="local/large", prompt=ran.root / SHORTER)
    assert found.altered is not None
    compared, reach = found.comparison, f"{100 * found.altered.reach:.1f}"
    assert f"Alters {found.altered.middle:.1%} ± {reach} of the 40 rows; the rest would cost " in ended.out
    assert ended.out.startswith("reviews, run 1 compared with reviews, run 2\n30 rows in both")
    assert 0 < compared.first["usd_per_1000_rows"] * 9 < compared.second["usd_per_1000_rows"]
    assert f"${compared.second['usd_per_1000_rows']:,.4f}" in ended.out
    values = "SELECT row.id, value FROM row JOIN task ON row_key = row.key JOIN result ON result.id = task.result_id"
    answers = {one: json.loads(value) for one, value in ran.query(f"{values} WHERE run_id = ? AND stage = ?", 1, 0)}
    now = {one: json.loads(value) for one, value in ran.query(f"{values} WHERE run_id = ? AND stage = ?", 2, 0)}
    assert 0 < compared.rows["changed"] == sum(answers[one] != value for one, value in now.items())
    fields = compared.stages[0].agreement.fields
    for name in ("sentiment", "reason"):
        assert fields[name].equal == sum(answers[one][name] == value[name] for one, value in now.items())
    for change in compared.changed:
        name = change.field.removeprefix("classify.")
        assert (change.before, change.now) == (answers[change.id][name], now[change.id][name])


def test_a_stage_as_it_is_in_the_files_is_tried_beside_the_version_before(ran: ProjectFolder) -> None:
    with pytest.raises(agac.UsageError, match="no stored answers of another version of the stage classify"):
        tried(ran)
    ran.workflow(stages=[STAGES[0] | {"prompt": SHORTER}, STAGES[1]])
    before = asked(ran)
    found = tried(ran, sample=5)
    assert (found.comparison.first["run"], found.tried, asked(ran) - before) == (1, 5, 5)
    other = tried(ran, model="local/large", sample=5)  # the trial before is nothing to compare with
    assert other.comparison.first["run"] == 1


def test_a_stage_that_follows_others_takes_their_stored_results(ran: ProjectFolder) -> None:
    before = asked(ran)
    found = tried(ran, "reply", prompt=ran.root / SHORTER, sample=6)
    assert (found.comparison.rows["both"], asked(ran) - before) == (6, 6)
    ran.rows([{"id": f"r-{i}", "text": "another text" if i % 2 else f"I love number {i}"} for i in range(1, 41)])
    found = tried(ran, "reply", prompt=ran.root / SHORTER, sample=40)
    assert (found.tried, found.failed, found.comparison.rows["both"]) == (40, 0, 20)
    ended = ran.agac("try", "-a", "reviews", "--stage", "reply", "--prompt", SHORTER, "--sample", "40", "--yes")
    assert "Not compared: 20 rows: " in ended.out


def test_the_price_is_told_and_nothing_is_asked_without_a_yes(ran: ProjectFolder) -> None:
    before, questions = asked(ran), list[str]()

    def no(question: Any) -> bool:
        questions.append(str(question))
        return False

    with pytest.raises(agac.UsageError, match="no calls were made"):
        tried(ran, prompt=ran.root / SHORTER, sample=10, yes=False, confirm=no)
    assert questions[0].startswith("trying classify takes 10 calls for 10 rows, ~$0.00")
    ended = ran.agac("try", "-a", "reviews", "--stage", "classify", "--prompt", SHORTER, code=2)
    assert "no calls were made: trying classify takes 30 calls for 30 rows, ~$0.0" in ended.err
    assert asked(ran) == before
    tried(ran, prompt=ran.root / SHORTER, sample=10, yes=False, confirm=lambda _: True)
    tried(ran, prompt=ran.root / SHORTER, sample=10, yes=False, confirm=no)  # nothing is left to pay for
    assert asked(ran) - before == 10


def test_a_budget_ends_a_trial_and_what_was_answered_is_compared(ran: ProjectFolder) -> None:
    found = tried(ran, prompt=ran.root / SHORTER, sample=40, budget=agac.Budget(calls=7))
    assert found.exit_code is agac.ExitCode.LIMIT
    assert (found.comparison.rows["both"], found.rest) == (7, 33)
    assert found.stopped is not None
    assert found.stopped.startswith("the budget of the run is used up")


def test_rows_are_asked_until_the_share_is_known_closely(project: ProjectFolder, server: Server) -> None:
    project.asks(server)
    project.numbered(400)
    project.run(project.workflow(stages=STAGES[:1]))
    project.write(SHORTER, "Review: ${text}.\n")
    found = tried(project, prompt=project.root / SHORTER, within=0.05)
    assert found.altered is not None
    assert found.altered.reach <= 0.05
    assert 30 < found.tried < 400
    assert found.rest == 400 - found.tried
    closer = tried(project, prompt=project.root / SHORTER, within=0.03)
    assert closer.tried > found.tried
    bounded = tried(project, prompt=project.root / SHORTER, within=0.001, sample=closer.tried)
    assert bounded.tried == closer.tried
    assert asked(project) == 400 + closer.tried  # each is a part of the next


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--stage", "clasify"], "--stage clasify: there is no such stage"),
        (["--stage", "short"], "--stage short: it asks no model"),
        (["--stage", "each"], "--stage each: it answers rows that the stage each makes"),
        (["--stage", "list", "--within", "200%"], "--within 200.0000%: give a share of the rows"),
        (["--stage", "list", "--within", "few"], "--within few: give a percentage"),
        (["--stage", "list", "--prompt", "nothing.md"], "nothing.md: cannot be read: No such file"),
        (["--stage", "list", "--prompt", "wrong.md"], "wrong.md:1:7: stages[0].prompt: ${txt}: no such field"),
    ],
)
def test_what_cannot_be_tried_is_said(project: ProjectFolder, words: list[str], message: str) -> None:
    items = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}}
    project.workflow(rows=2, stages=[
        {"name": "list", "prompt": "${text}", "output_schema": items},
        {"name": "short", "select": ["text"]},
        {"name": "each", "explode": "list.items", "prompt": "${text}"},
    ])  # fmt: skip
    project.write("wrong.md", "About ${txt}\n")
    assert message in project.agac("try", "-a", "reviews", *words, code=2).err


def test_the_next_command_of_a_trial_is_the_same_trial(ran: ProjectFolder) -> None:
    tried(ran, prompt=ran.root / SHORTER, sample=3, budget=agac.Budget(calls=1))
    shown = ran.agac("status", "last", "--json", code=0).out
    (line,) = [line for line in shown.splitlines() if '"go_on"' in line]
    assert f"agac try -a reviews --prompt {ran.root / SHORTER} --sample 3 --seed 0 --stage classify" in line

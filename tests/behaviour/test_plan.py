"""`agac plan` says what a run will ask, reuse and cost, and why; the run then does just that."""

from collections.abc import Callable
from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from support.terminals import on_pty

import agac
from agac.plan.diff import LEFT

STAGES: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}: ${classify.sentiment}"},
    {"name": "close", "prompt": "End ${text} ${reply}"},
]
Counts = dict[str, tuple[int, int, int]]
NOTHING: Counts = dict.fromkeys(("classify", "reply", "close"), (0, 10, 0))


def planned(project: ProjectFolder, name: str = "reviews", **options: Any) -> tuple[Counts, dict[str, dict[str, int]]]:
    """Each stage's counts (run, reuse, blocked), and its reasons."""
    report = agac.plan(name, agac.RunOptions(**options), project=project.root).as_json()
    counts = {s["name"]: (s["run"], s["reuse"], s["blocked"]) for s in report["stages"]}
    reasons = {s["name"]: {r["reason"]: r["tasks"] for r in s["reasons"]} for s in report["stages"]}
    return counts, reasons


def calls_by_stage(project: ProjectFolder) -> dict[str, int]:
    found = project.query(
        "SELECT json_extract(d.body, '$.stages[' || a.stage || '].name'), count(*) FROM attempt a "
        "JOIN row w ON w.key = a.row_key JOIN run r ON r.id = w.run_id "
        "JOIN definition d ON d.hash = r.definition_hash GROUP BY 1"
    )
    return dict(found)


def the_run_does_it(project: ProjectFolder, **options: Any) -> None:
    """Runs, and checks that each stage asked no more than the plan said, and exactly that at the first asked stage."""
    counts, reasons = planned(project, **options)
    before = calls_by_stage(project)
    project.run(**options)
    after = calls_by_stage(project)
    for stage, (run, _, _) in counts.items():
        asked = after.get(stage, 0) - before.get(stage, 0)
        assert asked <= run
        if not any(reason.startswith("upstream") for reason in reasons[stage]):
            assert asked == run
    project.assert_sound()


@pytest.fixture
def ran(project: ProjectFolder) -> ProjectFolder:
    project.numbered(10, other="a")
    project.run(project.workflow(stages=STAGES))
    return project


def reworded(place: int, **keys: Any) -> Callable[[ProjectFolder], object]:
    stages = [stage | (keys if place == i else {}) for i, stage in enumerate(STAGES)]
    return lambda project: project.workflow(stages=stages)


def lines(change: Callable[[list[str]], list[str]]) -> Callable[[ProjectFolder], object]:
    """The same rows, edited as a text."""

    def edit(project: ProjectFolder) -> None:
        head, *rows = (project.root / "data/rows.csv").read_text("utf-8").splitlines()
        project.write("data/rows.csv", "\n".join([head, *change(rows)]) + "\n")

    return edit


def there_and_back(project: ProjectFolder) -> None:
    reworded(0, prompt="Other: ${text}")(project)
    project.run()
    project.workflow(stages=STAGES)


EDITS: dict[str, tuple[Callable[[ProjectFolder], object], Counts, dict[str, dict[str, int]]]] = {
    "nothing": (lambda project: None, NOTHING, {}),
    "a cell that no prompt uses": (lambda project: project.numbered(10, other="b"), NOTHING, {}),
    "the order of the rows": (lines(lambda rows: rows[::-1]), NOTHING, {}),
    "a change that is reverted": (there_and_back, NOTHING, {}),
    "the third prompt": (
        reworded(2, prompt="The end ${text} ${reply}"), NOTHING | {"close": (10, 0, 0)},
        {"close": {"prompt changed": 10}},
    ),
    "a prompt in the middle": (
        reworded(1, prompt="Say ${text}: ${classify.sentiment}"),
        NOTHING | {"reply": (10, 0, 0), "close": (10, 0, 0)},
        {"reply": {"prompt changed": 10}, "close": {"upstream reply changed": 10}},
    ),
    "ten new rows": (
        lambda project: project.numbered(20, other="a"), {"classify": (10, 10, 0)}, {"classify": {"new row": 10}},
    ),
    "one cell": (
        lines(lambda rows: [row.replace("number 7", "number seven") for row in rows]), {"classify": (1, 9, 0)},
        {"classify": {"row changed": 1}, "reply": {"upstream classify changed": 1}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_an_edit_costs_what_it_reaches(ran: ProjectFolder, edit: str) -> None:
    change, counts, reasons = EDITS[edit]
    change(ran)
    found, why = planned(ran)
    assert found.items() >= counts.items()
    assert {stage: why[stage] for stage in reasons} == reasons
    the_run_does_it(ran)
    rows = (ran.root / "data/rows.csv").read_text("utf-8").splitlines()[1:]
    assert [line["id"] for line in ran.envelopes()] == [row.split(",")[0] for row in rows]


def test_models_schemas_and_new_stages_are_named(ran: ProjectFolder) -> None:
    for change, reason in (
        ({"output_schema": {**SENTIMENT, "topic": "string"}}, "schema changed"),
        ({"temperature": 0.5}, "model changed"),
        ({"prompt": "X ${text}", "temperature": 0.5}, "prompt changed, model changed"),
    ):
        reworded(0, **change)(ran)
        assert planned(ran)[1]["classify"] == {reason: 10}
    ran.workflow(stages=[*STAGES, {"name": "more", "prompt": "More ${text} ${close}"}])
    assert planned(ran)[1]["more"] == {"new stage": 10}
    ran.workflow(stages=STAGES)
    assert planned(ran, fresh=True)[1]["classify"] == {"--fresh": 10}
    ran.workflow("other", stages=[{"name": "say", "prompt": "${vars.tone}: ${text}"}], vars={"tone": "calm"})
    ran.run("other")
    assert planned(ran, "other", vars={"tone": "loud"})[1] == {"say": {"vars changed": 10}}


def test_failed_rows_are_asked_again_until_they_are_left(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 2"}]))
    project.workflow(rows=4, stages=STAGES)
    for _ in range(3):
        project.run()
        if project.query("SELECT max(failures) FROM task")[0][0] < 3:
            counts, reasons = planned(project)
            assert (counts["classify"], reasons["classify"]) == ((1, 3, 0), {"failed before": 1})
    counts, _ = planned(project)
    assert counts == dict.fromkeys(("classify", "reply", "close"), (0, 3, 1))
    the_run_does_it(project)


def test_an_interrupted_run_has_tasks_that_were_not_asked_yet(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=4, stages=STAGES), until="classify")
    counts, reasons = planned(project)
    assert counts == {"classify": (0, 4, 0), "reply": (4, 0, 0), "close": (4, 0, 0)}
    assert reasons["reply"] == {"not asked yet": 4}
    counts, _ = planned(project, stage="close")
    assert counts["reply"] == (0, 0, 4)
    the_run_does_it(project)


def test_equal_prompts_are_counted_once_in_the_cost(project: ProjectFolder) -> None:
    project.rows([{"id": str(i), "text": "same" if i < 50 else f"other {i}"} for i in range(100)])
    project.workflow(stages=STAGES[:1])
    (stage,) = agac.plan("reviews", project=project.root).as_json()["stages"]
    assert (stage["run"], stage["collapsed"], stage["estimate"]["calls"]) == (100, 49, 51)
    assert project.run().invocation["calls"] == 51
    shown = project.agac("plan", "-a", "reviews", "--fresh").out
    assert "49 of them have the same prompt as another task" in shown


def test_equal_prompts_of_two_stages_are_counted_once_in_the_cost(project: ProjectFolder) -> None:
    same = {"prompt": "Review: ${text}"}
    project.workflow(rows=5, stages=[{"name": "one", **same}, {"name": "two", "needs": [], **same}])
    report = agac.plan("reviews", project=project.root).as_json()
    assert [(stage["run"], stage["collapsed"]) for stage in report["stages"]] == [(5, 0), (5, 5)]
    assert (report["calls"], report["exact"]) == (5, True)
    assert project.run().invocation["calls"] == 5
    shown = project.agac("plan", "-a", "reviews", "--fresh").out
    assert "5 of them have the same prompt as another task" in shown


@pytest.mark.parametrize(
    ("which", "first", "run", "rows"),
    [("error", "a", 2, (1, 0)), ("last", "b", 2, (0, 1)), ("first", "a", 2, (0, 1)), ("suffix", "a", 3, (0, 0))],
)
def test_ids_that_repeat_are_asked_as_the_run_asks_them(
    project: ProjectFolder, which: str, first: str, run: int, rows: tuple[int, int]
) -> None:
    texts = [("a", "one"), ("b", "two"), ("a", "three")]
    project.rows([{"id": row_id, "text": text} for row_id, text in texts])
    project.workflow(input={"on_duplicate_id": which})
    report = agac.plan("reviews", show=1, project=project.root)
    assert (report.prompts[0].row, report.stages[0].run) == (first, run)
    assert report.rows == {"total": 3, "unusable": rows[0], "dropped": rows[1]}
    why = "warning: input.path: row 3 cannot be used: an earlier row has its id 'a'"
    assert (why in project.agac("plan", "-a", "reviews", code=0).err) is bool(rows[0])
    assert project.run().invocation["calls"] == run
    again = agac.plan("reviews", project=project.root)
    assert (again.stages[0].run, again.rows["dropped"]) == (0, rows[1])


def test_costs_come_from_history_once_there_is_one(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices={"small": {"input": 1.0, "output": 2.0}})
    project.workflow(rows=30, stages=[STAGES[0] | {"max_tokens": 100}])
    first = agac.plan("reviews", project=project.root)
    assert first.stages[0].estimate.basis == "guess"
    assert first.usd is not None
    assert first.usd_at_most is not None
    assert first.usd <= first.usd_at_most
    cost = project.run().summary["calls"]["cost_usd"]
    again = agac.plan("reviews", agac.RunOptions(fresh=True), project=project.root)
    assert again.stages[0].estimate.basis == "history"
    assert again.usd == pytest.approx(cost, rel=0.25)


def test_the_first_run_asks_everything(project: ProjectFolder, server: Server) -> None:
    project.workflow(rows=10, stages=STAGES)
    counts, reasons = planned(project)
    assert counts == dict.fromkeys(NOTHING, (10, 0, 0))
    assert reasons == {name: {"new row": 10} for name in NOTHING}
    stages = agac.plan("reviews", project=project.root).stages
    assert all(stage.estimate.input_tokens > 10 * 5 for stage in stages), "also of answers that are not there yet"
    assert server.account()["requests"] == 0
    assert not (project.root / ".agac").exists()
    last = project.query("SELECT DISTINCT fingerprint FROM attempt WHERE stage = 2") if project.run() else []
    assert server.account()["requests"] == 10 * 2 + len(last)


def test_a_dry_run_is_the_plan_changes_nothing_and_guesses_no_price(ran: ProjectFolder, server: Server) -> None:
    before = server.account()["requests"]
    content = (ran.root / ".agac/agac.db").read_bytes()
    dry = ran.agac("run", "-a", "reviews", "--fresh", "--dry-run", "--json", code=0)
    assert dry.json == ran.agac("plan", "-a", "reviews", "--fresh", "--json").json
    assert dry.json["usd"] is None
    assert "price not known" in ran.agac("plan", "-a", "reviews", "--fresh").out
    assert server.account()["requests"] == before
    assert (ran.root / ".agac/agac.db").read_bytes() == content


def test_prompts_are_shown_as_they_would_be_sent_and_no_key_is_wanted(project: ProjectFolder) -> None:
    project.workflow(rows=5, stages=[STAGES[0] | {"instructions": "Be short."}])
    shown = project.agac("plan", "-a", "reviews", "--show", "2").out
    assert shown.count("--- prompt") == 2
    assert "[system]\nBe short.\n[user]\nReview: I love number 1" in shown
    as_json = project.agac("plan", "-a", "reviews", "--show", "1", "--json").json
    assert as_json["prompts"][0]["messages"][1] == {"role": "user", "text": "Review: I love number 1"}
    project.workflow(rows=2, stages=[{"name": "say", "prompt": "${text}", "model": "openai/gpt-5.4-mini"}])
    assert "OPENAI_API_KEY" in project.agac("plan", "-a", "reviews", code=0).err


def test_a_run_above_confirm_above_wants_a_yes(project: ProjectFolder, server: Server) -> None:
    project.configure(server.base_url, prices={"small": {"input": 1000.0, "output": 2000.0}})
    project.workflow(rows=20, stages=STAGES, confirm_above={"usd": 0.1})
    said = "  above confirm_above ($0.10): the run would ask for confirmation, or needs --yes\n"
    assert said in project.agac("plan", "-a", "reviews").out
    assert "confirm_above is $0.10" in project.agac("run", "-a", "reviews", code=2).err
    assert server.account()["requests"] == 0
    project.agac("run", "-a", "reviews", "--yes", code=0)
    project.agac("run", "-a", "reviews", code=0)  # a finished run costs nothing
    project.configure(server.base_url, prices={"small": {"input": 0.001, "output": 0.001}})
    assert project.run(fresh=True).exit_code == 0, "a cheap run is not asked about"
    assert "confirm_above" not in project.agac("plan", "-a", "reviews", "--fresh").out
    project.configure(server.base_url)  # no price is known, and the model is named once
    report = project.agac("plan", "-a", "reviews", "--fresh", "--json").json
    assert (report["confirm_above"], report["wants_yes"], report["usd"]) == (0.1, True, None)
    said = "$0.0000, and on top what local/small costs, whose price is not known; confirm_above is $0.10"
    assert said in project.agac("run", "-a", "reviews", "--fresh", code=2).err


@pytest.mark.parametrize(("keys", "code", "calls"), [(b"y\n", 0, 20), (b"n\n", 2, 0), (b"\n", 2, 0), (b"\x03", 130, 0)])
def test_a_run_above_confirm_above_is_asked_about_on_a_terminal(
    keys: bytes, code: int, calls: int, project: ProjectFolder, server: Server
) -> None:
    project.configure(server.base_url, prices={"small": {"input": 1000.0, "output": 2000.0}})
    project.workflow(rows=20, confirm_above={"usd": 0.1})
    with on_pty(project.root, "run", "-a", "reviews", columns=200) as terminal:
        asked = terminal.until(r"\[y/N\]")
        terminal.press(keys)
        assert (terminal.ended(), server.account()["requests"]) == (code, calls), terminal.seen
    assert "reviews is expected to cost $" in asked
    assert "confirm_above is $0.10. Continue? [y/N]" in asked
    assert "Traceback" not in terminal.seen
    if code == 2:
        assert terminal.seen.count("is expected to cost") == 1
        assert "no calls were made\r\n  Add --yes to continue; " in terminal.seen


def test_why_tells_what_differs_from_the_last_time(ran: ProjectFolder) -> None:
    first = agac.why("last", "r-3", "classify", project=ran.root)
    assert (first.before, first.as_json()["outcome"]) == (None, "done")
    stages = [STAGES[0] | {"prompt": "Rate: ${text}", "temperature": 0.5}, *STAGES[1:]]
    ran.workflow(stages=stages)
    path = ran.root / "data/rows.csv"
    path.write_text(path.read_text("utf-8").replace("number 3", "number three"), encoding="utf-8")
    ran.run()
    report = agac.why("last", "r-3", "classify", project=ran.root).as_json()
    assert report["run"] == 2
    assert report["before"]["run"] == 1
    assert report["made_of"]["messages"][-1]["text"] == "Rate: I love number three"
    assert report["made_of"]["params"] == {"temperature": 0.5}
    found = {one["what"]: one for one in report["differences"]}
    assert set(found) == {"params", "user message", "field text"}
    assert "-Review: I love number 3" in found["user message"]["diff"]
    shown = ran.agac("why", "2", "r-3", "classify").out
    assert "Changes since run 1" in shown
    assert 'field text: "I love number 3" → "I love number three"' in shown
    assert "run 1" in ran.agac("why", "2", "r-4", "reply").out


@pytest.mark.parametrize(
    "ids", [("a", "a#2", "a"), ("a", "a", "a#2"), ("a", "a#2", "a", "a", "a#2"), ("a#2", "a", "a", "a#2#2", "a#2")]
)
def test_ids_that_are_made_unique_are_those_of_the_run(
    project: ProjectFolder, server: Server, ids: tuple[str, ...]
) -> None:
    project.rows([{"id": row_id, "text": f"text {n}"} for n, row_id in enumerate(ids)])
    project.workflow(input={"on_duplicate_id": "suffix"}, defaults={"reuse": "row"})
    project.run()
    report = agac.plan("reviews", project=project.root)
    (stage, *_) = report.as_json()["stages"]
    assert (stage["run"], stage["reuse"]) == (0, len(ids))


def test_a_row_that_is_left_as_it_failed_is_left_at_all_of_its_stages(project: ProjectFolder, server: Server) -> None:
    project.rows([{"id": "a", "text": "one"}])
    project.write("tools/broken.py", "def go(row):\n    raise ValueError('no')\n")
    check = {"check": "size(judge) > 100000", "message": "say more"}
    project.workflow(
        stages=[
            {"name": "judge", "prompt": "Judge: ${text}", "checks": [check], "repair": 0},
            {"name": "broken", "needs": [], "python": "tools/broken.py:go"},
        ]
    )
    for _ in range(3):
        project.run()
    stages = agac.plan("reviews", project=project.root).as_json()["stages"]
    assert [(one["name"], one["run"], one["blocked"]) for one in stages] == [("judge", 0, 1), ("broken", 0, 1)]
    assert {one["reason"] for stage in stages for one in stage["blocked_reasons"]} == {LEFT}
    before = project.query("SELECT stage, settled_at FROM task ORDER BY stage")
    project.run()
    assert project.query("SELECT stage, settled_at FROM task ORDER BY stage") == before

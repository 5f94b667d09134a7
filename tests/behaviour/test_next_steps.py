"""What commands say is to be done next, and what is left unsaid because it would not help."""

import json
from typing import Any

from scripted_server import Step, scripted
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty

import agac

THREE: list[dict[str, Any]] = [
    {"name": "one", "prompt": "Say ${text}"},
    {"name": "two", "prompt": "Again ${one}"},
    {"name": "three", "prompt": "Last ${two}"},
]
TRY = "Retry the failed rows with: agac run -a reviews\n"
GWX = ("-a", "g", "-a", "w", "-a", "x")
REFUSING = [{"kind": "refusal", "match": "number 2"}]


def reasons(project: ProjectFolder, key: str = "reasons", **options: Any) -> dict[str, dict[str, int]]:
    report = agac.plan("reviews", agac.RunOptions(**options), project=project.root).as_json()
    return {stage["name"]: {one["reason"]: one["tasks"] for one in stage[key]} for stage in report["stages"]}


def test_failed_rows_are_tried_again_until_the_next_run_leaves_them(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty(REFUSING))
    project.workflow(rows=3)
    for again in (True, True, False):
        out = project.agac("run", "-a", "reviews", code=3).out
        assert "Refused in classify: 1 row, e.g. 'r-2' (row 2):" in out
        assert (TRY in out) is again
    out = project.agac("run", "-a", "reviews").out
    assert "1 row failed too often and is not retried automatically. Change" in out
    assert TRY not in out


def test_rows_that_a_retry_did_not_take_up_are_tried_again_by_a_run(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(
        faulty([{"kind": "refusal", "match": "number 2", "first": 1}, {"kind": "refusal", "match": "number 3"}])
    )
    project.workflow(rows=3)
    project.agac("run", "-a", "reviews", code=3)
    assert TRY in project.agac("retry", "last", "--row", "r-2", code=3).out


def test_failed_rows_are_said_to_be_left_because_of_the_flag(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([*REFUSING, {"kind": "refusal", "match": "number 5"}]).base_url)
    project.run(project.workflow(rows=3))
    out = project.agac("run", "-a", "reviews", "--no-retry-failed").out
    said = "1 row that failed before: not retried because of --no-retry-failed; retry with: agac retry 1\n"
    assert said in out
    assert "too often" not in out
    assert TRY not in out
    project.numbered(6)
    out = project.agac("run", "-a", "reviews", "--no-retry-failed").out
    assert said in out
    assert TRY in out, "the new failure; without the flag, which would leave it"


def test_failed_rows_want_another_input_where_that_is_what_they_lack(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty(REFUSING))
    project.write("data/rows.jsonl", '{"id": "a", "text": "x"}\n{"id": "b"}\n{"id": "a", "text": "y"}\nnonsense\n')
    project.workflow(path="data/rows.jsonl")
    out = project.agac("run", "-a", "reviews").out
    assert "  Fix 3 rows in the input, then run: agac run -a reviews\n" in out
    assert "Retry the failed" not in out
    assert "; fix these rows in the input, then run: agac run -a reviews" in project.agac("status").out
    project.write("data/rows.csv", "id,text\nr-1,fine\nr-2,too,many\n")
    project.workflow("one")
    assert "Fix these rows in the input, then run: agac run -a one" in project.agac("run", "-a", "one", code=3).out
    project.write("data/rows.jsonl", '{"id": "a", "text": "x"}\n{"id": "b"}\n{"id": "c", "text": "number 2"}\n')
    out = project.agac("run", "-a", "reviews").out
    assert TRY in out
    assert "  Fix 1 row in the input, then run: " in out


def test_failed_rows_want_a_larger_row_budget(project: ProjectFolder) -> None:
    project.workflow(rows=2, stages=THREE, row_budget={"calls": 1})
    out = project.agac("run", "-a", "reviews").out
    assert "  2 rows spent their row_budget: raise it, then run again: agac run -a reviews\n" in out
    assert "Retry the failed" not in out
    assert "; raise row_budget, then run: agac run -a reviews" in project.agac("status").out


def test_a_plan_says_that_instructions_changed_by_a_variable_alone(project: ProjectFolder) -> None:
    project.numbered(2)
    card = "---\n{}\n---\nYou work for {{shop}}, and {{shop}} is kind.\n"
    project.write("agentcards/c.md", card)
    stage = {"name": "say", "agent": "c", "prompt": "${text}"}
    project.run(project.workflow(stages=[stage], vars={"shop": "North"}))
    assert reasons(project, vars={"shop": "Z"}) == {"say": {"vars changed": 2}}
    project.write("agentcards/c.md", card.replace("kind", "very kind"))
    assert reasons(project) == {"say": {"instructions changed": 2}}
    assert reasons(project, vars={"shop": "Z"}) == {"say": {"instructions changed": 2}}
    project.workflow(stages=[{**stage, "prompt": "Hm ${text}"}], vars={"shop": "North"})
    assert reasons(project) == {"say": {"prompt changed, instructions changed": 2}}


def test_a_plan_counts_a_row_at_every_stage_it_cannot_reach(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "refusal", "match": "Say I love number 2"}]).base_url)
    project.run(project.workflow(rows=3, stages=THREE))
    cases: list[tuple[str, dict[str, Any], tuple[str, str, str]]] = [
        ("reasons", {}, ("failed before", "not asked yet", "not asked yet")),
        ("blocked_reasons", {"stage": "three"}, ("not selected", "not selected", "upstream two blocked")),
        ("blocked_reasons", {"retry_failed": False},
         ("failed before, not tried again (--no-retry-failed)", "upstream one blocked", "upstream two blocked")),
    ]  # fmt: skip
    for key, options, expected in cases:
        found = reasons(project, key, **options)
        assert found == {name: {reason: 1} for name, reason in zip(("one", "two", "three"), expected, strict=True)}


def test_what_was_not_run_is_said_with_its_command(project: ProjectFolder) -> None:
    project.numbered(3)
    for name in ("g", "w", "x"):
        project.workflow(name, stages=THREE)
    assert project.agac("validate", "-a", "g", "-a", "w").out == "2 workflows valid: g, w\n"
    ran = project.agac("run", *GWX, "--budget", "calls=2", "--concurrency", "1", "--json", code=4)
    assert "Not run, since g stopped before: w, x\n" in ran.err
    assert "  Run with: agac run --budget calls=2 --concurrency 1 --json -a w -a x\n" in ran.err
    assert [report["workflow"] for report in ran.json] == ["g"]


def test_what_ended_is_printed_when_the_next_one_is_refused(project: ProjectFolder) -> None:
    project.workflow("g", rows=1, stages=THREE)
    project.workflow("w", stages=[{**THREE[0], "prompt": "Other ${text}"}], confirm_above={"usd": 0})
    ran = project.agac("run", *GWX[:4], "--json")
    assert (ran.code, [report["workflow"] for report in ran.json]) == (2, ["g"])
    assert "Not run" not in ran.err, "that w was refused is said"


def test_a_limit_that_replaced_complete_results_says_what_they_hold_now(project: ProjectFolder) -> None:
    project.workflow(rows=6, stages=THREE[:1])
    flags = ("run", "-a", "reviews", "--concurrency", "1")
    assert "now holds" not in project.agac(*flags).err
    project.workflow(stages=[{**THREE[0], "prompt": "Other ${text}"}])
    assert "  results.jsonl now holds 2 of 6 rows\n" in project.agac(*flags, "--budget", "calls=2").err
    assert len(project.envelopes()) == 2


def test_counts_at_a_limit_add_up_with_rows_that_a_guard_skipped(project: ProjectFolder) -> None:
    stage = {**THREE[0], "when": 'id != "r-1" && id != "r-2"'}
    project.workflow(rows=9, stages=[stage])
    ran = project.agac("run", "-a", "reviews", "--concurrency", "1", "--budget", "calls=3", code=4)
    assert "  results.jsonl now holds 5 of 9 rows\n" in ran.err
    assert len(project.envelopes()) == 5


def test_counts_of_a_run_that_stopped_before_it_had_read_all_rows_name_all_of_them(project: ProjectFolder) -> None:
    project.workflow(rows=2_000, stages=THREE[:1])
    ran = project.agac("run", "-a", "reviews", "--concurrency", "1", "--budget", "calls=3", code=4)
    rows = json.loads((project.root / "output/reviews/summary.json").read_text())["rows"]
    assert rows["total"] < 2_000
    said = f"reviews, run 1: {rows['total']:,} of 2,000 rows read, 3 done, {rows['open']:,} open\n"
    assert said in ran.out
    assert "  results.jsonl now holds 3 of 2,000 rows\n" in ran.err
    assert f"Rows: {rows['total']:,} read so far, 3 done, {rows['open']:,} open" in project.agac("status", "1").out


def test_a_stage_that_lacks_what_comes_before_it_names_that(project: ProjectFolder) -> None:
    project.workflow(rows=3, stages=THREE)
    said = "Open: 3 rows wait for stage one, which this command did not select. "
    said += "Finish them with: agac run -a reviews\n"
    assert said in project.agac("run", "-a", "reviews", "--stage", "two").out
    project.run(until="one", limit=1)
    project.run(until="one")
    said = "Open: 3 rows wait for stage two, which this command did not select. "
    assert said in project.agac("run", "-a", "reviews", "--stage", "three").out


def test_a_reask_shows_what_it_complained_of(project: ProjectFolder) -> None:
    project.rows([{"id": "r-1", "text": "fine"}])
    busy = Step(status=500, body='{"error": {"message": "busy"}}', headers={"retry-after-ms": "1"})
    steps = [Step('{"sentiment": "odd"}'), busy, Step("prose"), Step('{"sentiment": "neutral", "reason": "so"}')]
    with project.asking(scripted(*steps)) as server:
        stage = {"name": "classify", "prompt": "${text}", "output_schema": SENTIMENT, "repair": 2}
        assert project.run(project.workflow(stages=[stage])).exit_code == 0
        sent = [request["messages"] for request in server.asked]
    rows = agac.inspect("last", "r-1", project=project.root).rows
    assert rows is not None
    said = [attempt["asked_again_with"] for attempt in rows[0]["stages"][0]["attempts"]]
    assert said == [None, *(messages[-1]["content"] for messages in sent[1:])]
    out = project.agac("inspect", "last", "r-1").out
    assert "    re-asked, after the prompt and the last reply, with:\n      Your reply does not have the" in out


def test_what_belongs_to_stages_is_said_where_to_put(project: ProjectFolder) -> None:
    project.workflow(rows=1, max_age="7d", reuse="row")
    out = project.agac("validate").out
    assert "max_age: unknown key here; max_age belongs into `defaults` or a stage\n" in out
    assert "reuse: unknown key here; reuse belongs into `defaults` or a stage\n" in out
    stage = {"name": "a", "prompt": "${text}", "row_budget": {"turns": 3}}
    project.workflow(rows=1, stages=[stage], defaults={"max_open_rows": 3})
    out = project.agac("validate").out
    for key in ("stages[0].row_budget", "defaults.max_open_rows"):
        name, whole = key.partition(".")[2], "belongs to the file as a whole: write it at the left margin\n"
        assert f" {key}: unknown key here; {name} {whole}" in out
    project.workflow()
    project.write("agac.yml", "max_age: 7d\n")
    assert "agac.yml:1:1: max_age: unknown key here; max_age belongs into `defaults`\n" in project.agac("validate").out


def test_a_row_timeout_is_a_time(project: ProjectFolder) -> None:
    project.numbered(1)
    for written, code, said in (
        ("2m", 0, "1 workflow valid"),
        (90, 0, "1 workflow valid"),
        ("soon", 2, "'soon' is no time; write it as 90s, 30m, 12h, 7d or 2w"),
        ("2d", 2, "must be at most 86400, not '2d'"),
    ):
        project.workflow(row_timeout=written)
        assert said in project.agac("validate", code=code).out


def test_a_provider_that_cannot_be_made_is_one_problem(project: ProjectFolder) -> None:
    project.numbered(1)
    project.write("agac.yml", "providers: {c: {dialect: openai-chat, base_url: nowhere}}\ndefaults: {model: c/m}\n")
    project.workflow(stages=[{**THREE[0], "fallback": ["c/n"]}, {**THREE[1], "model": "d/m"}])
    out = project.agac("validate").out
    assert "providers.c.base_url: 'nowhere' is no address" in out
    assert "unknown provider 'c'" not in out
    assert "unknown provider 'd'" in out
    assert json.loads(project.agac("validate", "--json").out)["ok"] is False

"""What was asked, answered and paid can be looked at: run by run, and row by row down to the raw reply."""

import json
import re
import shlex
import unicodedata
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Step, scripted
from support.batched import store
from support.processes import killed, listening, row_count, wait_until
from support.project import SENTIMENT, ProjectFolder, Ran
from support.server import Faulty
from support.terminals import on_pty

import agac
from agac.cli.terminal import selection_words
from agac.core.text import plain
from agac.plan.changes import changes_of

TWO = [
    {"name": "classify", "instructions": "You read reviews.", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}, which is ${classify.sentiment}"},
]


def one_row(project: ProjectFolder, row: str | int = "r-1", run: int | str = "last", **more: Any) -> dict[str, Any]:
    """The row that `inspect` finds, when it is one."""
    report = agac.inspect(run, row, project=project.root, **more)
    assert report.rows is not None
    (found,) = report.rows
    return found


def changes(project: ProjectFolder) -> list[tuple[int, list[str]]]:
    return [(run["run"], run["changes"]) for run in agac.runs(project=project.root).runs]


def followed(project: ProjectFolder, out: str, before: str) -> Ran:
    """Runs the one command that was printed after these words."""
    (line,) = [line for line in out.split("\n") if before in line]
    name, *words = shlex.split(line.partition(before)[2])
    assert name == "agac"
    return project.agac(*words)


class TestRuns:
    def test_the_one_last_worked_on_comes_first_with_what_changed(self, project: ProjectFolder) -> None:
        project.numbered(3)
        base = {"vars": {"shop": "North"}}
        project.run(project.workflow(stages=TWO, **base))
        other = [{**TWO[0], "prompt": "Opinion: ${text}"}, TWO[1]]
        project.run(project.workflow(stages=other, **base))
        third = [{**other[0], "instructions": "Read.", "output_schema": {"sentiment": "string"}}, TWO[1]]
        project.run(project.workflow(stages=third, **base))
        project.run(project.workflow(stages=third, vars={"shop": "South"}))
        project.run(project.workflow(stages=third[:1], vars={"shop": "South"}))
        project.run(model="local/large?temperature=0.5")
        project.run(fresh=True)
        project.run(fresh=True)
        project.rows([{"id": "r-1", "text": "fine"}], "data/more.csv")
        project.run(project.workflow(stages=third[:1], path="data/more.csv"))
        project.run(project.workflow(stages=TWO, **base))
        params = "parameters of classify"
        assert changes(project) == [
            (1, []),
            (9, ["input: data/rows.csv → data/more.csv", "vars: shop"]),
            (8, ["--fresh"]),
            (7, ["model of classify: local/large → local/small", f"{params}: temperature 0.5 → none", "--fresh"]),
            (6, ["model of classify: local/small → local/large", f"{params}: temperature none → 0.5"]),
            (5, ["stage reply is gone"]),
            (4, ["vars: shop"]),
            (3, ["schema of classify", "instructions of classify"]),
            (2, ["prompt of classify"]),
        ]

    def test_they_are_listed_with_their_counts(self, project: ProjectFolder, faulty: Faulty) -> None:
        project.numbered(5)
        project.configure(faulty([{"kind": "refusal", "match": "number 3"}]).base_url)
        project.run(project.workflow())
        project.run(limit=2, offset=1)
        project.run(project.workflow("others"))
        report = project.agac("runs", "--json").json
        listed = [(run["run"], run["workflow"], run["state"]) for run in report["runs"]]
        assert listed == [(3, "others", "finished"), (2, "reviews", "finished"), (1, "reviews", "finished")]
        assert report["runs"][1]["selection"] == {"limit": 2, "offset": 1}
        assert report["runs"][2]["rows"] == {"total": 5, "done": 4, "skipped": 0, "failed": 1, "dropped": 0, "open": 0}
        assert report["runs"][2]["calls"]["count"] == 5
        lines = project.agac("runs").out.split("\n")
        assert lines[0].split()[:6] == ["run", "workflow", "state", "rows", "done", "failed"]
        assert lines[2].endswith("  only 2 rows from row 2; same workflow")
        assert lines[3].endswith("  the first")
        some = project.agac("runs", "-a", "reviews", "-n", "1")
        assert some.out.split("\n")[1].split()[:2] == ["2", "reviews"]
        assert "1 older run not shown" in some.out

    def test_a_workflow_without_runs_is_told_from_one_that_does_not_exist(self, project: ProjectFolder) -> None:
        project.workflow(rows=2)
        for command in ("runs", "status"):
            ran = project.agac(command, "-a", "reviews")
            assert (ran.code, ran.out) == (
                0,
                "The workflow 'reviews' was not run in this project yet. Start with: agac run -a reviews\n",
            )
            ran = project.agac(command, "-a", "revews")
            assert (ran.code, ran.out) == (2, "")
            assert ran.err == "error: no workflow 'revews'; did you mean 'reviews'?\n  Workflows: reviews.\n"
        project.run()
        (project.root / "workflows/reviews.yml").unlink()
        for command in ("runs", "status"):
            assert project.agac(command, "-a", "reviews").code == 0, "it was run"
            assert project.agac(command, "-a", "workflows/reviews.yml").code == 0
        project.write("agac.yml", "paths: {workflows: flows}\n")
        project.write("flows/nightly.yml", "input: {path: rows.csv}\nstages: [{name: a, prompt: x}]\n")
        assert project.agac("status", "-a", "nightly").code == 0, "it is in another folder"
        assert "did you mean 'nightly'?" in project.agac("status", "-a", "nighty").err


class TestStatusOfARun:
    def test_it_counts_by_stage_and_kind_of_error(self, project: ProjectFolder, faulty: Faulty) -> None:
        project.numbered(6)
        faults = [
            {"kind": "refusal", "match": "Review: I love number 3"},
            {"kind": "length", "match": "Answer I love number 4"},
        ]
        project.configure(faulty(faults).base_url)
        assert project.run(project.workflow(stages=TWO)).exit_code == 3
        run = project.agac("status", "1", "--json").json["runs"][0]
        counted = [(s["done"], s["failed"], s["errors"]) for s in run["stages"]]
        assert counted == [(5, 1, {"Refused": 1}), (4, 1, {"Truncated": 1})]
        assert sum(s["calls"]["count"] for s in run["stages"]) == run["calls"]["count"] == 11
        assert {run["calls"]["cost_usd"], *(s["calls"]["cost_usd"] for s in run["stages"])} == {None}
        assert sum(s["calls"]["calls_without_price"] for s in run["stages"]) == 11
        assert run["held"] == {"cost_usd": 0, "tokens": 0}
        assert [(i["state"], i["exit_code"]) for i in run["invocations"]] == [("ended", 0)]
        out = project.agac("status", "last").out
        assert "Failed in classify: 1 Refused\nFailed in reply: 1 Truncated\n" in out
        assert followed(project, out, "Look at failed rows with: ").code == 0
        with store(project) as database:
            database.execute(
                "UPDATE counter SET held_cost = 0.25, held_tokens = 900 "
                "WHERE stage = 'classify' AND outcome = 'call' AND error_type = ''"
            )
        assert agac.status(run=1, project=project.root).runs[0]["held"] == {"cost_usd": 0.25, "tokens": 900}
        out = project.agac("status", "1").out
        assert "Calls of unknown cost may have cost up to $0.2500 (900 tokens) more\n" in out

    def test_a_killed_run_is_gone_on_with_as_it_says(self, project: ProjectFolder, faulty: Faulty) -> None:
        server = project.asks(faulty([{"kind": "hang", "at": list(range(21, 25))}]))
        project.workflow(rows=40)
        process = listening(project.start("run", "-a", "reviews", "--concurrency", "4"))
        wait_until(lambda: server.account()["in_flight"] == 4 and row_count(project) == 20, "its work", process)
        run = agac.status(run="last", project=project.root).runs[0]
        assert (run["state"], run["invocations"][0]["state"]) == ("running", "running")
        killed(process)
        ran = project.agac("status", "1")
        assert ran.out.startswith("reviews, run 1: killed\n")
        assert followed(project, ran.out, "Resume with: ").code == 0
        run = agac.status(run=1, project=project.root).runs[0]
        assert run["state"] == "finished"
        assert [i["state"] for i in run["invocations"]] == ["ended", "killed"]

    def test_a_run_that_met_a_limit_says_so(self, project: ProjectFolder) -> None:
        project.numbered(9)
        assert project.run(project.workflow(budget={"calls": 3})).exit_code == 4
        out = project.agac("status", "last").out
        assert "Run 1 reached a limit: the budget of the run is used up" in out
        assert "\nRaise it, then resume with: agac run -a reviews\n" in out
        assert " stopped at a limit " in out

    def test_an_older_run_that_cannot_be_gone_on_with_names_the_newer_one(self, project: ProjectFolder) -> None:
        project.numbered(3)
        project.run(project.workflow())
        project.run(limit=1)
        project.run(project.workflow(stages=TWO))
        found = {n: agac.status(run=n, project=project.root).runs[0]["replaced_by"] for n in (1, 2, 3)}
        assert found == {1: 3, 2: None, 3: None}
        assert "was replaced by run 3. See it with: agac status 3\n" in project.agac("status", "1").out

    def test_what_does_not_exist_is_told_alike_by_every_command(self, project: ProjectFolder) -> None:
        project.numbered(3)
        project.run(project.workflow())
        ids = "Rows are named by their ids: 'r-1', 'r-2', 'r-3', …\n"
        second = "Rows are named by their ids: row 2 of the input has the id 'r-2'.\n"
        told = {
            ("status", "9"): "no run 9\n  Runs: 1. `agac runs` lists them.\n",
            ("status", "newest"): "'newest' is not a run\n  Give its number, or `last`.",
            ("status", "1", "-a", "others"): "no run 1 of workflow 'others'\n",
            ("inspect", "99999999999999999999"): "no run 99999999999999999999\n",
            ("inspect", "1", "--stage", "clasify"):
                "--stage clasify: there is no such stage\n  Did you mean 'classify'?",
            ("inspect", "1", "r-1", "--stage", "x"): "--stage x: there is no such stage\n  The stages are: classify.",
            ("retry", "1", "--row", "r-8", "--row", "r-1", "--row", "r-9", "--from", "classify"):
                "run 1 has no rows 'r-8', 'r-9'\n",
        }  # fmt: skip
        for name, hint in (("r-9", ids), ("2", second), ("9" * 30, ids)):
            for words in (("inspect", "1", name), ("why", "1", name, "classify"), ("retry", "1", "--row", name)):
                told[words] = f"run 1 has no row {name!r}\n  {hint}"
        for words, said in told.items():
            ran = project.agac(*words)
            assert (ran.code, ran.out, ran.err[: len(said) + 7]) == (2, "", f"error: {said}")

    def test_without_a_database_no_run_is_found(self, project: ProjectFolder) -> None:
        for arguments in (["status", "1"], ["inspect", "last"], ["why", "1", "a", "b"], ["retry", "last"]):
            ran = project.agac(*arguments, code=2)
            assert ran.err.startswith("error: nothing was run in this project yet\n  Run `agac run -a WORKFLOW` first.")
        assert project.agac("runs").out == "No workflow was run in this project yet. Start with: agac run -a WORKFLOW\n"


class TestShowingResults:
    def test_they_are_a_table_that_fits_the_terminal_and_is_whole_in_a_pipe(
        self, project: ProjectFolder, faulty: Faulty
    ) -> None:
        project.asks(faulty([{"kind": "refusal", "match": "r-2"}]))
        say = {"name": "say", "prompt": "${id} ${text}", "output_schema": {"long": "string", "n": "integer"}}
        project.run(project.workflow(rows=5, stages=[say]))
        with project.changed() as ask:
            ask("UPDATE result SET value = ?", json.dumps({"long": "word " * 100 + "\n\x1b[2J", "n": 7}))
        with on_pty(project.root, "show", columns=60, env={"NO_COLOR": "1"}) as terminal:
            assert terminal.ended() == 0
        lines = re.sub(r"\x1b\[[01]m", "", terminal.seen).split("\r\n")
        assert lines[:2] == ["reviews, run 1: finished", ""]
        assert [line.split()[0] for line in lines[2:8]] == ["id", "r-1", "r-2", "r-3", "r-4", "r-5"]
        assert lines[3] == f"r-1  {'word ' * 4}word…  7"
        assert {max(map(len, lines)), lines[4].count("…")} == {60, 1}
        with on_pty(project.root, "show", columns=20) as terminal:  # no room for columns
            assert terminal.ended() == 0
        assert "row 5\r\n  id: r-5\r\n" in terminal.seen
        assert f"r-4  {'word ' * 100}\\n\\x1b[2J  7" in project.agac("show", code=0).out
        assert project.agac("show", "--json", "-a", "reviews", code=0).json["rows"][1] == project.envelopes()[1]
        ran = project.agac("show", "1", "--head", "2", code=0)
        assert [line.split()[0] for line in ran.out.split("\n")[3:5]] == ["r-1", "r-2"]
        followed(project, ran.out, "all in a file: ")
        assert (project.root / "reviews.csv").read_text("utf-8").count("r-") == 5

    def test_one_row_is_shown_in_full_with_all_that_was_made_of_it(self, project: ProjectFolder) -> None:
        rows = [{"id": f"r-{i}", "parts": ["a", "b" * 500]} for i in range(3)]
        stages = [{"name": "say", "explode": "parts", "prompt": "${item}"}]
        echo = {"defaults": {"model": "local/echo"}, "path": "data/rows.jsonl"}
        project.run(project.workflow(rows=rows, stages=stages, **echo))
        ids = [row["id"] for row in agac.show(row="r-1", project=project.root).rows]
        assert ids == [e["id"] for e in project.envelopes() if e["row_number"] == 2]
        (child,) = agac.show(1, row=ids[1], project=project.root).rows
        assert (child["result"], child["ok"], child["input"]["id"]) == ("b" * 500, True, "r-1")
        with on_pty(project.root, "show", "--row", ids[1], columns=60) as terminal:
            assert terminal.ended() == 0
        assert f"  result: {'b' * 500}\r\n" in terminal.seen
        group = {"name": "all", "group_by": "id", "prompt": "${rows_json}"}
        project.run(project.workflow("grouped", stages=[group], **echo))
        (found,) = agac.show(project=project.root, row="r-1").rows
        assert (found["id"], found["row_number"]) == ("r-1", None)

    def test_no_more_is_read_than_is_shown_and_what_is_open_says_what_to_do(
        self, project: ProjectFolder, faulty: Faulty
    ) -> None:
        assert "nothing was run in this project yet" in project.agac("show", code=2).err
        project.asks(faulty([{"kind": "unauthorized", "at": [1, 3]}]))
        project.run(project.workflow(rows=1_300, stages=[{"name": "keep", "select": ["text"]}]))
        with project.changed() as ask:  # what is not read cannot be in the way
            ask("UPDATE row SET data = '{' WHERE ordinal > 600")
        assert [row["id"] for row in agac.show(head=2, project=project.root).rows] == ["r-1", "r-2"]
        project.run(project.workflow("others"), concurrency=1)
        ran = project.agac("show", "-a", "others", code=0)
        assert "No row has a result yet.\n" in ran.out
        followed(project, ran.out, "Resume with: ")
        assert [row["id"] for row in agac.show(project=project.root).rows] == ["r-1"]
        ran = project.agac("show", "--row", "r-2", code=0)
        followed(project, ran.out, "No result of 'r-2' is there. See what became of the row with: ")
        assert "has no row 'nothing'" in project.agac("show", "--row", "nothing", code=2).err


class TestInspectingARun:
    def test_it_shows_the_definition_and_an_example_of_each_error(self, project: ProjectFolder, faulty: Faulty) -> None:
        project.rows([{"id": "-x", "text": "bad one"}, {"id": "it's", "text": "bad two"}, {"id": "r-3", "text": "ok"}])
        faults = [{"kind": "refusal", "match": "bad one"}, {"kind": "length", "match": "bad two"}]
        project.configure(faulty(faults).base_url)
        project.run(project.workflow(stages=TWO), model="local/small?temperature=0.5&max_tokens=90")
        report = agac.inspect(1, project=project.root)
        assert report.rows is None
        assert [stage["prompt"] for stage in report.run["definition"]["stages"]] == [s["prompt"] for s in TWO]
        out = project.agac("inspect", "last").out
        assert "Stage classify: local/small, max_tokens=90, temperature=0.5\n" in out
        assert "  instructions: You read reviews.\n  prompt: Review: ${text}\n" in out
        assert "Stage reply: local/small, max_tokens=90, temperature=0.5, needs classify\n" in out
        one = agac.inspect(1, stage="reply", project=project.root).as_json()
        for part in (one, one["definition"]):
            assert [stage["name"] for stage in part["stages"]] == ["reply"]
        assert "Stage classify" not in project.agac("inspect", "1", "--stage", "reply").out
        commands = [shlex.split(line)[1:] for line in out.split("\n") if line.strip().startswith("agac inspect ")]
        assert sorted(project.agac(*words).out.split("\n")[0] for words in commands) == [
            'reviews, run 1, "it\'s" (row 2 of the input): failed',
            "reviews, run 1, '-x' (row 1 of the input): failed",
        ]


class TestInspectingARow:
    def test_prompts_and_replies_are_those_of_the_wire(self, project: ProjectFolder) -> None:
        project.rows([{"id": "r-1", "text": "It's “fine”\nreally ${text}"}])
        mood = Step(json.dumps({"sentiment": "neutral", "reason": "so"}), headers={"x-request-id": "a"})
        with project.asking(scripted(mood, "thank you")) as server:
            assert project.run(project.workflow(stages=TWO)).exit_code == 0
            asked = [request["messages"] for request in server.asked]
        row = one_row(project)
        assert (row["state"], row["row_number"], row["error"]) == ("done", 1, None)
        assert row["fields"] == {"id": "r-1", "text": "It's “fine”\nreally ${text}"}
        for stage, messages, step in zip(row["stages"], asked, (mood, Step("thank you")), strict=True):
            assert stage["outcome"] == "done"
            (attempt,) = stage["attempts"]
            assert not attempt["of_earlier_content"]
            assert attempt["reply"] == step.wire().decode()
            assert (attempt["http_status"], attempt["input_tokens"], attempt["output_tokens"]) == (200, 10, 5)
            assert attempt["base_url"] == server.base_url
            told = stage["prompt"]
            assert [m["role"] for m in told] == [m["role"] for m in messages]
            assert told[-1]["text"] == messages[-1]["content"]
        assert row["stages"][0]["prompt"][0]["text"] in asked[0][0]["content"]
        assert row["stages"][0]["result"] == {"sentiment": "neutral", "reason": "so"}
        assert row["stages"][1]["result"] == "thank you"
        assert [stage["answered_by"]["model"] for stage in row["stages"]] == ["small-2", "small-2"]

    def test_every_attempt_is_there_with_its_error(self, project: ProjectFolder) -> None:
        project.rows([{"id": "r-1", "text": "fine"}])
        busy = Step(status=500, body='{"error": {"message": "busy"}}', headers={"retry-after-ms": "1"})
        bad, good = Step('{"sentiment": "odd"}'), Step('{"sentiment": "neutral", "reason": "so"}')
        with project.asking(scripted(busy, bad, good)):
            assert project.run(project.workflow()).exit_code == 0
        attempts = one_row(project)["stages"][0]["attempts"]
        keys = ("number", "purpose", "http_status", "of_earlier_content")
        assert [(*(a[key] for key in keys), a["error"] and a["error"]["type"]) for a in attempts] == [
            (1, "ask", 500, False, "ProviderError"),
            (2, "ask", 200, False, "SchemaMismatch"),
            (3, "repair", 200, False, None),
        ]
        assert attempts[0]["reply"] == busy.body
        out = project.agac("inspect", "last", "r-1").out
        assert "  Attempt 1 of invocation 1: ask, local/small at http://127.0.0.1:" in out
        assert "    error: SchemaMismatch: " in out

    def test_a_row_without_a_field_and_one_that_could_not_be_read_show_why_nothing_was_asked(
        self, project: ProjectFolder
    ) -> None:
        project.rows([{"id": "r-1"}, {"id": "r-2", "text": "fine"}], "data/rows.jsonl")
        project.run(project.workflow(path="data/rows.jsonl"))
        row = one_row(project)
        assert row["error"]["type"] == "MissingTemplateField"
        (stage,) = row["stages"]
        assert (stage["outcome"], stage["prompt"], stage["attempts"]) == ("failed", None, [])
        assert stage["prompt_note"].startswith("${text} is missing")
        project.write("data/rows.csv", "id,text\nr-1,one,two,three\nr-2,fine\n")
        project.run(project.workflow("torn"))
        ((found,), _) = project.query("SELECT id FROM row WHERE run_id = 2 ORDER BY ordinal")
        row = one_row(project, str(found))
        assert (row["state"], row["error"]["type"], row["stages"][0]["outcome"]) == ("failed", "InvalidRow", "open")
        assert project.agac("inspect", "2", str(found)).code == 0

    def test_a_row_that_changed_keeps_its_earlier_attempts_apart(self, project: ProjectFolder) -> None:
        project.rows([{"id": "r-1", "text": "first"}])
        project.run(project.workflow(stages=TWO))
        project.rows([{"id": "r-1", "text": "second"}])
        project.run()
        row = one_row(project)
        for stage in row["stages"]:
            assert "second" in stage["prompt"][-1]["text"]
            assert [a["of_earlier_content"] for a in stage["attempts"]] == [True, False]
            assert stage["fingerprint"] == stage["attempts"][1]["fingerprint"]
        out = project.agac("inspect", "last", "r-1").out
        assert out.count("sent with another prompt, before the row or an answer before it changed") == 2
        assert "  prompt, user: Review: second\n" in out
        assert "Review: first\n" not in out
        project.rows([{"id": "r-1", "text": "third"}])  # and is not asked again yet, which shows no wrong prompt
        with project.asking(scripted(Step(status=401, body='{"error": {"message": "no key"}}'))):
            assert project.run().exit_code == 1, "stopped by the key"
        row = one_row(project)
        assert row["state"] == "open"
        earlier = [[a["of_earlier_content"] for a in stage["attempts"]] for stage in row["stages"]]
        assert [(stage["stale"], stage["prompt"]) for stage in row["stages"]] == [(True, None)] * 2
        assert earlier == [[True, True, False], [True, True]]
        out = project.agac("inspect", "last", "r-1").out
        assert "Stage classify: done (of earlier content)\n" in out
        assert "prompt: not shown: the row, or an answer before this one, changed since" in out

    def test_a_reused_answer_names_the_row_that_asked_for_it(self, project: ProjectFolder) -> None:
        project.rows([{"id": "r-1", "text": "same"}])
        project.run(project.workflow())
        project.rows([{"id": "copy", "text": "same"}])
        project.run(project.workflow("others"))
        (stage,) = one_row(project, "copy")["stages"]
        origin = stage["reused_from"]
        assert (stage["outcome"], stage["attempts"], origin["run"], origin["row"]) == ("reused", [], 1, "r-1")
        assert followed(project, project.agac("inspect", "last", "copy").out, " of run 1: ").code == 0
        project.rows([{"id": "r-1", "text": "other"}])
        project.run()
        (stage,) = one_row(project, "copy", run=2)["stages"]
        assert stage["reused_from"]["run"] is None
        assert "the row of that request has changed since or is gone" in project.agac("inspect", "2", "copy").out

    def test_repeated_ids_are_all_shown_and_digits_find_row_numbers_and_ids(self, project: ProjectFolder) -> None:
        project.rows([{"id": "r-1", "text": "one"}, {"id": "r-2", "text": "two"}, {"id": "r-1", "text": "three"}])
        project.run(project.workflow())
        rows = agac.inspect("last", "r-1", project=project.root).rows
        assert rows is not None
        found = [(row["row_number"], row["occurrence"], row["state"]) for row in rows]
        assert found == [(1, 0, "done"), (3, 1, "failed")]
        assert "DuplicateId" in project.agac("inspect", "1", "r-1").out
        project.rows([{"id": "2", "text": "two"}, {"id": "007", "text": "seven"}])
        project.run(project.workflow())
        assert [one_row(project, name)["fields"]["text"] for name in ("2", "007")] == ["two", "seven"]
        project.run(project.workflow("numbered", input={"id_field": None}))
        assert one_row(project, "2")["id"] == one_row(project, 2)["id"] == 2
        assert one_row(project, 2)["fields"]["text"] == "seven"
        assert project.agac("inspect", "2", "9").code == 2

    def test_a_row_that_left_the_input_is_still_there(self, project: ProjectFolder) -> None:
        project.numbered(3)
        project.run(project.workflow())
        project.numbered(2)
        project.run()
        row = one_row(project, "r-3")
        assert (row["in_input"], row["row_number"]) == (False, None)
        assert row["stages"][0]["attempts"][0]["reply_kept"]
        assert "'r-3' (left the input)" in project.agac("inspect", "1", "r-3").out

    def test_a_long_reply_is_shown_whole_and_one_that_was_not_kept_is_said(self, project: ProjectFolder) -> None:
        project.rows([{"id": "r-1", "text": "one"}])
        with project.asking(scripted("much " * 900)):
            project.run(project.workflow(stages=[{"name": "say", "prompt": "${text}"}]))
            project.run(
                project.workflow("short", keep_replies="failed", stages=[{"name": "say", "prompt": "- ${text}"}])
            )
        assert project.query("SELECT typeof(reply) FROM attempt") == [("blob",), ("null",)]
        (stage,) = one_row(project, run=1)["stages"]
        assert json.loads(stage["attempts"][0]["reply"])["choices"][0]["message"]["content"] == "much " * 900
        assert stage["attempts"][0]["reply"] in project.agac("inspect", "1", "r-1").out
        (stage,) = one_row(project)["stages"]
        assert (stage["attempts"][0]["reply"], stage["attempts"][0]["reply_kept"]) == (None, False)
        assert "reply: not stored" in project.agac("inspect", "2", "r-1").out

    def test_the_fingerprint_is_that_of_the_prompt_whatever_is_reused(self, project: ProjectFolder) -> None:
        project.numbered(2)
        kinds = ("content", "row", "never")
        stages = [{"name": f"by_{kind}", "prompt": f"{kind}: ${{text}}", "reuse": kind} for kind in kinds]
        project.run(project.workflow(stages=stages))
        found = one_row(project)["stages"]
        assert [(one["stale"], one["attempts"][0]["of_earlier_content"]) for one in found] == [(False, False)] * 3
        (row,) = one_row(project, stage="by_row")["stages"]
        assert (row["name"], row["prompt"][-1]["text"]) == ("by_row", "row: I love number 1")

    def test_no_text_of_others_takes_over_a_terminal(self, project: ProjectFolder) -> None:
        evil = "red \x1b[31m, bell \x07, back \r, csi \x9b, turned \u202e, \x00 null"
        project.rows([{"id": "r-1", "text": evil}], "data/rows.jsonl")
        with project.asking(scripted(Step(evil + " \ud800"))):
            project.run(project.workflow(path="data/rows.jsonl", stages=[{"name": "say", "prompt": "${text}"}]))
        ran = project.agac("inspect", "1", "r-1", code=0)
        assert not set(ran.out) & set("\x1b\x07\r\x9b\u202e\x00")
        assert "red \\x1b[31m, bell \\x07, back \\x0d, csi \\x9b, turned \\u202e, \\x00 null" in ran.out
        assert project.agac("inspect", "1", "r-1", "--json").json["rows"][0]["fields"]["text"] == evil


@given(st.text())
def test_plain_text_holds_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = plain(text)
    shown.encode("utf-8")
    assert not {c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp")} - {"\n", "\t"}
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not {c for c in shown if unicodedata.bidirectional(c) in turning}


def test_text_that_is_plain_stays_as_it_is() -> None:
    for text in ("", "naïve 👍 … \t tab\nline", "日本語"):
        assert plain(text) == text


def test_a_selection_in_words() -> None:
    for selection, words in (
        ({}, ""),
        ({"limit": 1, "offset": 0}, "1 row"),
        ({"limit": 5, "offset": 10}, "5 rows from row 11"),
        ({"limit": None, "offset": 1200}, "all rows from row 1,201"),
    ):
        assert selection_words(selection) == words


NAMES = st.sampled_from(["a", "b", "c"])
STAGE = st.fixed_dictionaries(
    {
        "name": NAMES,
        "model": st.sampled_from(["x/y", "x/z"]),
        "prompt": st.sampled_from(["one", "two"]),
        "system": st.none() | st.just("be kind"),
        "schema": st.none() | st.just({"name": "s", "body": {}}),
        "params": st.sampled_from([{}, {"seed": 1}]),
        "needs": st.none(),
    },
    optional={"reuse": st.sampled_from(["row", "never"])},
)
DEFINITION = st.fixed_dictionaries(
    {
        "workflow": st.just("w"),
        "input": st.fixed_dictionaries(
            {"path": st.sampled_from(["a.csv", "b.csv"]), "id_field": st.none() | st.just("id")}
        ),
        "vars": st.dictionaries(NAMES, st.none() | st.integers(0, 1), max_size=2),
        "stages": st.lists(STAGE, min_size=1, max_size=3, unique_by=lambda stage: str(stage["name"])),
    }
)


@given(DEFINITION, DEFINITION)
def test_definitions_differ_in_words_just_when_they_differ(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert (changes_of(before, after) == []) == (before == after)

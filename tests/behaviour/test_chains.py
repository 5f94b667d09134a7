"""Stages after each other and side by side: who sees what, who waits for whom, and what a failure ends."""

from threading import Barrier
from typing import Any

import pytest
from scripted_server import Step, answering
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac

ECHO = {"model": "local/echo"}


def echo_stages(*prompts: str) -> list[dict[str, Any]]:
    """Stages s1, s2, … that answer with their prompts."""
    return [{"name": f"s{n}", "prompt": prompt} for n, prompt in enumerate(prompts, 1)]


def test_a_later_stage_sees_the_row_and_the_results_before_it_and_expands_none_of_them(project: ProjectFolder) -> None:
    text = "${id} $${x} $ref ${s1}"
    project.rows([{"id": "a", "text": text, "tone": "warm"}])
    project.workflow(
        defaults=ECHO,
        vars={"lang": "en"},
        stages=echo_stages("${text}", "${s1}+${tone}", "${s1}/${s2}/${text}/${vars.lang}/${id}"),
    )
    assert project.run().exit_code == 0
    assert project.output() == [f"{text}/{text}+warm/{text}/en/a"]


def test_another_syntax_reaches_all_that_dollars_reach_and_its_errors_name_it(project: ProjectFolder) -> None:
    rows: list[dict[str, Any]] = [{"id": "a", "text": "{{id}} {id}", "more": {"x": [5]}}, {"id": "b", "text": ""}]
    project.rows(rows, "data/rows.jsonl")
    for syntax, form in (("mustache", "{{%s}}"), ("brace", "{%s}"), ("auto", "{{%s}}")):
        texts = [" ".join(form % name for name in names) for names in (("text", "vars.who"), ("s1", "more.x.0"))]
        system = f"Be {form % 'vars.who'}."
        stages = [{**one, "instructions": system} for one in echo_stages(f"${texts[0]}", texts[1])]
        defaults = {**ECHO, "syntax": syntax}
        project.workflow(defaults=defaults, vars={"who": "kind"}, path="data/rows.jsonl", stages=stages)
        assert project.run().exit_code == 3
        assert project.output() == ["${{id}} {id} kind 5"]
        (envelope,) = project.envelopes(file="errors.jsonl")
        missing = form % "more.x.0"
        assert envelope["error"]["message"].startswith(f"stage 's2': this row has no {missing}; visible are: id, text")
    report = agac.inspect("last", "a", project=project.root)
    assert report.rows is not None
    assert report.rows[0]["stages"][1]["prompt"] == [
        {"role": "system", "text": "Be kind."}, {"role": "user", "text": "${{id}} {id} kind 5"},
    ]  # fmt: skip
    assert report.run is not None
    assert report.run["run"] == 1, "whatever their syntax, they are the same prompts"


def test_a_stage_without_a_prompt_sends_the_row_and_the_result_before_it(project: ProjectFolder) -> None:
    project.rows([{"id": "a", "text": "é$5"}])
    project.workflow(defaults=ECHO, stages=[{"name": "s1"}, {"name": "s2"}])
    project.run()
    row = '{\n  "id": "a",\n  "text": "é$5"\n}'
    assert project.output() == [f"{row}\n\n{row}"]


def test_a_field_that_one_row_lacks_fails_that_row_costs_nothing_and_is_mended_by_an_edit(
    project: ProjectFolder, server: Server
) -> None:
    rows: list[dict[str, Any]] = [{"id": "a", "text": "x", "more": {"deep": [1, None]}}, {"id": "b", "text": "z"}]
    project.rows(rows, "data/rows.jsonl")
    project.workflow(defaults=ECHO, path="data/rows.jsonl", stages=echo_stages("${text}", "${s1} ${more.deep}"))
    for _ in range(4):
        report = project.run()
        assert report.exit_code == 3
        project.assert_sound()
    assert server.account()["requests"] == 3
    (envelope,) = project.envelopes(file="errors.jsonl")
    assert envelope["error"]["type"] == "MissingTemplateField"
    assert "${more.deep}" in envelope["error"]["message"]
    for name in ("id", "text", "s1"):
        assert name in envelope["error"]["message"].partition("visible are: ")[2].split(", ")
    assert envelope["input"] == {"id": "b", "text": "z"}
    assert report.summary["errors"][0]["stage"] == "s2"
    project.rows([rows[0], {**rows[1], "more": {"deep": "y"}}], "data/rows.jsonl")
    assert project.run().exit_code == 0
    assert project.output() == ["x [1,null]", "z y"]


FIVE = echo_stages("1 ${text}", "2 ${s1}", "3 ${s2} ${tone}", "4 ${text}", "5 ${s4} ${s3}")


def test_a_changed_cell_costs_a_call_for_each_stage_that_it_reaches(project: ProjectFolder, server: Server) -> None:
    rows = [{"id": str(n), "text": f"text {n}", "tone": f"tone {n}", "note": "n"} for n in range(1, 61)]
    project.rows(rows)
    project.workflow(defaults=ECHO, stages=FIVE)
    assert project.run().summary["rows"]["done"] == 60
    assert server.account()["requests"] == 5 * 60
    for column, calls, unchanged in (("text", 5, 59), ("tone", 2, 59), ("note", 0, 59), ("", 0, 60)):
        if column:
            rows[41][column] = "new"
            project.rows(rows)
        server.reset()
        report = project.run()
        assert (server.account()["requests"], report.invocation["rows_unchanged"]) == (calls, unchanged), column
        row = rows[41]
        assert project.output()[41] == f"5 4 {row['text']} 3 2 1 {row['text']} {row['tone']}"
        project.assert_sound()


def test_rows_walk_on_without_waiting_for_each_other(project: ProjectFolder, faulty: Faulty) -> None:
    project.configure(faulty([{"kind": "slow_first_byte", "match": "first: text 1", "seconds": 1.5}]).base_url)
    project.rows({"id": str(n), "text": f"text {n}"} for n in range(1, 6))
    project.workflow(defaults=ECHO, stages=echo_stages("first: ${text}", "second: ${text}", "third: ${text}"))
    assert project.run(concurrency=2).exit_code == 0
    ((last_of_others,),) = project.query(
        "SELECT max(a.started_at) FROM attempt a JOIN row r ON r.key = a.row_key WHERE r.id <> '1'"
    )
    ((slow_ended,),) = project.query(
        "SELECT started_at + duration FROM attempt a JOIN row r ON r.key = a.row_key WHERE r.id = '1' AND stage = 0"
    )
    assert last_of_others < slow_ended


def test_one_at_a_time_takes_each_row_through_all_stages_and_a_stage_keeps_to_its_own_concurrency(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([], "--latency", "0.02"))
    project.numbered(24)
    project.workflow(stages=[{"name": "one", "prompt": "${text}", "concurrency": 3}])
    project.run()
    assert server.account()["max_in_flight"] <= 3
    server.reset()
    project.rows({"id": str(n), "text": f"text {n}"} for n in range(1, 5))
    project.workflow(defaults=ECHO, stages=echo_stages("first: ${text}", "second: ${s1}"))
    run = project.run(concurrency=1).summary["run"]
    query = "SELECT r.id, stage FROM attempt JOIN row r ON key = row_key WHERE run_id = ? ORDER BY started_at"
    assert project.query(query, run) == [(str(n), stage) for n in range(1, 5) for stage in (0, 1)]
    assert server.account()["max_in_flight"] == 1


# Stages side by side.


def echo(name: str, prompt: str, needs: list[str] | None = None, **keys: Any) -> dict[str, Any]:
    """A stage that answers with its prompt."""
    return {"name": name, "prompt": prompt, "needs": needs or [], **keys}


def test_independent_stages_are_asked_at_the_same_time(project: ProjectFolder) -> None:
    """Each of four branches is answered only once all four have been asked."""
    all_asked = Barrier(4)

    def answer(text: str) -> Step:
        all_asked.wait(timeout=60)
        return Step(f"said {text}")

    with answering(answer, project):
        project.numbered(2)
        project.workflow(stages=[echo(f"b{n}", f"{n} of ${{id}}") for n in range(4)])
        report = project.run(concurrency=4)
    assert report.exit_code == 0
    assert project.output()[1] == {f"b{n}": f"said {n} of r-2" for n in range(4)}


def test_a_stage_sees_only_what_is_upstream_of_it_whatever_came_first(project: ProjectFolder) -> None:
    """A column may be called as a stage of another branch: it is the column that is meant."""
    project.rows([{"id": str(n), "topics": f"column {n}"} for n in range(20)])
    project.workflow(
        defaults=ECHO,
        stages=[echo("topics", "the stage"), echo("first", "f ${id}"), echo("b", "${topics}", ["first"])],
        output={"stages": "b"},
    )
    project.run(concurrency=4)
    assert project.output() == [f"column {n}" for n in range(20)]
    project.workflow(defaults=ECHO, stages=[echo("a", "x"), echo("b", "${a.y} ${a}")])
    ran = project.agac("validate", "-a", "reviews", code=2)
    assert "${a} names a stage that is not upstream of 'b'; stages see only those that they need" in ran.out


OPTIONAL = {
    "type": "object",
    "properties": {"topic": {"type": "string"}, "note": {"type": "string"}},
    "required": ["topic"],
}


def test_an_optional_field_of_an_answer_is_said_at_load_and_the_remedy_is_the_schema(project: ProjectFolder) -> None:
    """Not the input, which has nothing to do with it."""
    project.numbered(1)
    first = {"name": "tag", "prompt": "${text}", "output_schema": OPTIONAL}
    with answering(lambda _: Step('{"topic": "x"}'), project) as server:
        project.workflow(stages=[first, {"name": "reply", "prompt": "${tag.note}"}])
        said = (
            "stages[1].prompt: ${tag.note}: the answer of stage 'tag' may lack 'note', and a row fails here without it"
        )
        assert said in project.agac("validate", code=0).out
        ran = project.agac("run", "-a", "reviews", code=3)
        assert len(server.asked) == 1
    (envelope,) = project.envelopes(file="errors.jsonl")
    assert envelope["error"]["type"] == "MissingResultField"
    assert "make the field required in the output_schema of 'tag'" in envelope["error"]["message"]
    assert "make it required in the output_schema that the message names, then run: agac run" in ran.out
    assert "in the input" not in ran.out
    assert "make the field that they lack required in output_schema" in project.agac("status", code=0).out


BLANK = [{"id": "a", "text": "x"}, {"id": "b", "text": " \n\t"}, {"id": "c", "text": ""}]


@pytest.mark.parametrize(
    "stage",
    [
        {"prompt": " ${text} "},
        {"prompt": "${text}", "run_mode": "batch"},
        {"prompt": "${text}", "instructions": "Be kind."},
        {
            "prompt": "Rate ${id}",
            "messages": [{"role": "user", "content": "${text}"}, {"role": "assistant", "content": "good"}],
        },
    ],
)
def test_a_prompt_that_renders_to_white_space_is_not_sent(
    project: ProjectFolder, server: Server, stage: dict[str, Any]
) -> None:
    project.asks(server, batch="openai")
    server.reset()
    project.rows(BLANK)
    project.workflow(stages=[{"name": "say", **stage}])
    plan = agac.plan("reviews", project=project.root)
    assert {reason: one.count for reason, one in plan.stages[0].blocked_reasons.items()} == {"prompt is empty": 2}
    report = project.run(wait=True)
    assert (report.rows.done, report.rows.failed) == (1, 2)
    assert report.summary["calls"]["count"] == 1
    for envelope in project.envelopes(file="errors.jsonl"):
        assert envelope["error"]["type"] == "EmptyPrompt"
        assert "is empty or only white space for this row; nothing was sent" in envelope["error"]["message"]


def test_nor_is_one_of_a_task_in_python_or_of_a_row_run(project: ProjectFolder) -> None:
    project.rows(BLANK)
    with answering(lambda _: Step("ok"), project) as server:
        answers = agac.run(task="{text}", inputs=BLANK, project=project.root)
        options = agac.ProcessOptions(prompt="{text}")
        files = project.root / "data/rows.csv", project.root / "o.jsonl"
        summary = agac.process(*files, options, project=project.root).summary
        assert [asked["messages"][-1]["content"] for asked in server.asked] == ["x"], "which both share"
    assert (sum(one.error is not None for one in answers), summary["failed_rows"]) == (2, 2)
    assert {one["type"] for one in summary["errors"]} == {"EmptyPrompt"}


@pytest.mark.parametrize("text", ["  ", "${vars.tone}", "${vars.none}"])
def test_instructions_of_white_space_are_refused_at_load(project: ProjectFolder, text: str) -> None:
    project.numbered(1)
    stage = {"name": "say", "prompt": "${text}", "instructions": text}
    project.workflow(stages=[stage], vars={"tone": " \n", "none": ""})
    out = project.agac("validate", code=2).out
    assert "stages[0].instructions: is empty or only white space, once its variables are filled in" in out

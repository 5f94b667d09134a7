"""`agac diff` and `agac plan --against`: what a change does to prompts, stored results and the cost; runs do it."""

from typing import Any

import pytest
from support.project import SENTIMENT, ProjectFolder
from support.repository import committed
from support.server import Server

import agac

STAGES: list[dict[str, Any]] = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}: ${classify.sentiment}"},
]


@pytest.fixture
def ran(project: ProjectFolder, server: Server) -> ProjectFolder:
    """Ten rows of main are done; a branch is begun."""
    project.asks(server, prices={"small": {"input": 1, "output": 2}}, batch="openai")
    project.numbered(10)
    project.run(project.workflow(stages=STAGES))
    committed(project)
    return project


def stages(*changes: dict[str, Any]) -> list[dict[str, Any]]:
    return [stage | change for stage, change in zip(STAGES, changes, strict=True)]


def diffed(project: ProjectFolder, ref: str | None = None, **keys: Any) -> agac.DiffReport:
    return agac.diff(ref, project=project.root, **keys)


def asked(project: ProjectFolder) -> int:
    """Tasks for which a model was called, ever."""
    return int(project.query("SELECT count(*) FROM (SELECT DISTINCT row_key, stage FROM attempt)")[0][0])


def test_a_prompt_with_other_words_is_told_and_the_run_asks_what_was_counted(ran: ProjectFolder) -> None:
    ran.workflow(stages=stages({}, {"prompt": "Answer kindly ${text}: ${classify.sentiment}"}))
    ended = ran.agac("diff", code=0)
    first, *lines = ended.out.splitlines()
    assert first.startswith("Compared with the last commit shared with main (")
    assert lines == [
        "", "reviews: changed",
        "  prompt of reply: Answer {+kindly+} ${text}: ${classify.sentiment}",
        "  10 stored results stay valid; 10 tasks would run (reply 10), $0.0005",
    ]  # fmt: skip
    before = asked(ran)
    ran.run()
    assert asked(ran) - before == 10
    assert "10 stored" not in ran.agac("diff", code=0).out
    assert "20 stored results stay valid; 0 tasks would run" in ran.agac("diff", code=0).out


def test_a_stage_with_another_name_keeps_its_results(ran: ProjectFolder) -> None:
    ran.workflow(stages=[{**STAGES[0], "name": "judge"}, {**STAGES[1], "prompt": "Answer ${text}: ${judge.sentiment}"}])
    ended = ran.agac("diff", code=0)
    assert ended.out.splitlines()[2:] == [
        "reviews: changed",
        "  stage classify is now judge; its stored results stay valid",
        "  20 stored results stay valid; 0 tasks would run, $0.0000",
    ]
    before, results = asked(ran), ran.output()
    report = ran.run()
    assert (asked(ran), report.rows.done) == (before, 10)
    assert ran.output() == results


def test_what_runs_after_an_unknown_answer_is_a_range(ran: ProjectFolder) -> None:
    ran.workflow(stages=stages({"prompt": "A review: ${text}"}, {}))
    (found,) = diffed(ran).workflows
    assert found.plan is not None
    assert [(one.name, one.reuse, one.least, one.most) for one in found.plan.stages] == [
        ("classify", 0, 10, 10), ("reply", 0, 0, 10)
    ]  # fmt: skip
    assert (found.plan.least, found.plan.most) == (10, 20)
    assert "10 to 20 tasks would run (classify 10, reply 0 to 10)" in ran.agac("diff").out
    before = asked(ran)
    ran.run()
    assert 10 <= asked(ran) - before <= 20


def test_a_stage_beside_one_where_rows_may_leave_may_run_for_fewer(project: ProjectFolder) -> None:
    first = {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT}
    leave = {"name": "leave", "prompt": "X ${text}", "needs": "classify", "otherwise": "drop"}
    leave["when"] = 'classify.sentiment != "negative"'
    other = {"name": "other", "prompt": "Other: ${text}", "needs": []}
    project.run(project.workflow(rows=5, stages=[first, leave, other], output={"stages": ["leave", "other"]}))
    committed(project)
    changed = [first | {"prompt": "R: ${text}"}, leave, other | {"prompt": "O: ${text}"}]
    project.workflow(stages=changed, output={"stages": ["leave", "other"]})
    (found,) = diffed(project).workflows
    assert found.plan is not None
    assert [(one.name, one.least, one.most) for one in found.plan.stages if one.name != "leave"] == [
        ("classify", 5, 5), ("other", 0, 5)
    ]  # fmt: skip


def test_a_field_that_a_template_reads_and_that_is_gone_is_an_error_with_its_place(ran: ProjectFolder) -> None:
    ran.workflow(stages=stages({"output_schema": {"mood": "string", "reason": "string"}}, {}))
    ended = ran.agac("diff", code=2)
    lines = ended.out.splitlines()
    assert lines[3].startswith("  workflows/reviews.yml:")
    assert "${classify.sentiment}: no such field" in lines[3]
    assert "  schema of classify: sentiment is gone; mood is new; breaking for reply.prompt" in lines
    assert not any("would run" in line for line in lines)


def test_an_example_whose_answer_does_not_fit_the_new_schema_is_an_error(project: ProjectFolder) -> None:
    said = [{"role": "user", "content": "Bad"}, {"role": "assistant", "content": '{"mood": "bad"}'}]
    stage = {"name": "classify", "prompt": "${text}", "messages": said}
    project.workflow(rows=2, stages=[stage | {"output_schema": {"mood": "good|bad"}}])
    committed(project)
    project.workflow(stages=[stage | {"output_schema": {"mood": "good|poor"}}])
    ended = project.agac("diff", "main", code=2)
    assert "stages[0].messages[1].content: the answer of an example does not fit the schema any more: " in ended.out
    assert "schema of classify: mood is no longer bad; may be poor" in ended.out
    project.workflow(stages=[stage | {"output_schema": {"mood": "good|bad|poor"}}])
    project.agac("diff", "main", code=0)


def test_a_field_of_another_type_breaks_who_reads_it_and_is_no_error(ran: ProjectFolder) -> None:
    ran.workflow(stages=stages({"output_schema": {"sentiment": "integer", "reason": "string"}}, {}))
    report = diffed(ran)
    assert report.ok
    (change,) = report.workflows[0].changes
    assert (change.fields, change.breaks) == (("sentiment was text, is a whole number",), ("reply.prompt",))
    assert "breaking for reply.prompt" in ran.agac("diff", "--format", "markdown", code=0).out


def test_workflows_that_are_new_gone_or_the_same_are_named(ran: ProjectFolder) -> None:
    ran.workflow("others", stages=[{"name": "say", "prompt": "${text}"}])
    (ran.root / "workflows/reviews.yml").rename(ran.root / "workflows/better.yml")
    report = diffed(ran)
    assert [(one.workflow, one.how, one.plan and one.plan.most) for one in report.workflows] == [
        ("better", "new", 0), ("others", "new", 10), ("reviews", "gone", None)
    ]  # fmt: skip
    (ran.root / "workflows/better.yml").rename(ran.root / "workflows/reviews.yml")
    report = diffed(ran, workflows=["reviews"])
    assert (report.workflows, report.unchanged) == ([], ["reviews"])
    assert ran.agac("diff", "-a", "reviews").out.endswith("\n\nUnchanged: reviews\n")
    assert "no workflow 'nothing'" in ran.agac("diff", "-a", "nothing", code=2).err


def test_other_rows_are_a_change_and_other_line_ends_are_none(ran: ProjectFolder) -> None:
    data = ran.root / "data/rows.csv"
    written = data.read_bytes()
    lines = written.splitlines(keepends=True)
    data.write_bytes(written.replace(b"\n", b"\r\n"))
    assert diffed(ran).workflows == []
    data.write_bytes(b"".join([*lines[:-2], lines[-2].replace(b"\n", b"!\n"), b"r-new,new\n"]))
    assert ran.agac("diff").out.splitlines()[2:] == [
        "reviews: changed",
        "  rows of data/rows.csv: 1 new, 1 gone, 1 different",
        "  16 stored results stay valid; 2 to 4 tasks would run (classify 2, reply 0 to 2), $0.0002",
    ]
    data.unlink()
    (found,) = diffed(ran).workflows
    assert (found.changes, found.problems[0].path) == ([], "input.path")


def test_other_parts_of_a_workflow_are_told(ran: ProjectFolder) -> None:
    reply = {"when": 'classify.sentiment == "negative"', "run_mode": "batch", "fallback": ["simulator/large"]}
    ran.write("prompts/tone.md", "Be kind.\n")
    ran.workflow(
        stages=stages({"instructions": "prompts/tone.md", "model": "simulator/large?temperature=0.5"}, reply),
        vars={"shop": "A"}, max_errors=5,
    )  # fmt: skip
    assert ran.agac("diff").out.splitlines()[3:-1] == [
        "  rules.max_errors: none → 5",
        "  vars: shop",
        "  model of classify: local/small → simulator/large",
        "  parameters of classify: temperature none → 0.5",
        "  instructions of classify: none → Be kind.",
        '  fallback of reply: none → ["simulator/large"]',
        "  otherwise of reply: none → skip",
        "  run_mode of reply: sync → batch",
        '  when of reply: none → classify.sentiment == "negative"',
    ]


def test_a_version_before_that_was_broken_is_not_compared(project: ProjectFolder) -> None:
    project.workflow(rows=2, stages=[{"name": "a", "prompt": "${vars.nothing} ${text"}], typo=1)
    committed(project)
    project.workflow(stages=STAGES)
    (found,) = diffed(project, "main").workflows
    assert (found.how, found.plan and found.plan.most) == ("changed", 4)
    assert "the version before is not compared, as it has problems: workflows/reviews.yml:" in found.problems[0].message
    ended = project.agac("plan", "-a", "reviews", "--against", "main", code=2)
    assert "main:workflows/reviews.yml:" in ended.err


def test_json_has_the_values_of_both_versions(ran: ProjectFolder) -> None:
    ran.workflow(stages=stages({}, {"prompt": "Say ${text}"}))
    found = ran.agac("diff", "main", "--json", code=0).json
    assert found == ran.agac("diff", "main", "--format", "json", code=0).json
    assert (found["ok"], found["against"]["ref"], found["unchanged"]) == (True, "main", [])
    (one,) = found["workflows"]
    assert one["changes"] == [
        {"text": "prompt of reply", "what": "prompt", "stage": "reply", "fields": [], "breaks": [],
         "before": "Answer ${text}: ${classify.sentiment}", "now": "Say ${text}"}
    ]  # fmt: skip
    assert [one["plan"][key] for key in ("valid", "least", "most")] == [10, 10, 10]


def test_a_comment_mentions_nobody_and_folds_what_changed(ran: ProjectFolder) -> None:
    ran.workflow(stages=stages({}, {"prompt": "Say @everyone <b>${text}</b>\nsee https://evil.example #1"}))
    out = ran.agac("diff", "main", "--format", "markdown", code=0).out
    head, *lines = out.splitlines()
    assert head == "**1 workflow changed: 10 stored results stay valid; 10 tasks would run, $0.0005**"
    assert any(line.startswith("| `reviews` | `reply` | prompt | 0 | 10 | 162 |") for line in lines), out
    assert "<details><summary>reviews: changed, 1 change</summary>" in lines
    assert "@everyone" not in out
    assert "<b>" not in out
    assert "https://" not in out
    assert lines[-1].startswith("<sub>Compared with main (")


def test_both_versions_are_planned_beside_the_same_store(ran: ProjectFolder) -> None:
    ran.numbered(12)
    ran.workflow(stages=stages({}, {"prompt": "Say ${text}"}))
    found = agac.plan_against("main", "reviews", project=ran.root).as_json()
    assert found["workflow"] == "reviews"
    assert found["before"]["calls"] == 0
    assert {key: found["difference"][key] for key in ("rows", "run", "reuse", "calls")} == {
        "rows": 2, "run": 14, "reuse": -10, "calls": 14
    }  # fmt: skip
    assert found == ran.agac("plan", "-a", "reviews", "--against", "main", "--json").json
    text = ran.agac("plan", "-a", "reviews", "--against", "main").out
    assert "Beside main (" in text
    assert "difference" in text
    assert "Run it with: agac run -a reviews\n" in text
    markdown = ran.agac("plan", "-a", "reviews", "--against", "main", "--markdown").out
    assert "| difference | +2 | -10 | +14 | +14 |" in markdown
    assert "| `classify` | `local/small` | 2 | 10 |" in markdown
    ran.workflow("others", stages=STAGES)
    assert agac.plan_against("main", "others", project=ran.root).before is None
    assert "\nbefore " not in ran.agac("plan", "-a", "others", "--against", "main").out


def test_files_of_strangers_are_compared_without_importing_them(ran: ProjectFolder) -> None:
    evil = "import pathlib\npathlib.Path(__file__).with_name('was_here').touch()\ndef change(row):\n    return row\n"
    ran.write("tools/evil.py", evil)
    ran.write("tools/shapes.py", evil + "from pydantic import BaseModel\nclass Shape(BaseModel):\n    text: str\n")
    shaped = {"name": "shaped", "prompt": "${text}", "output_schema": "python:tools.shapes.Shape"}
    ran.workflow(stages=[{"name": "changed", "python": "tools/evil.py:change"}, *STAGES, shaped])
    report = diffed(ran, untrusted=True)
    assert report.ok
    assert [one.text for one in report.workflows[0].changes if one.what == "new"] == [
        "stage changed is new", "stage shaped is new"
    ]  # fmt: skip
    assert not (ran.root / "tools/was_here").exists()


@pytest.mark.parametrize(
    ("sign", "shown"),
    [
        ("\U000e0041\U000e0042", "\\U000e0041\\U000e0042"), ("\ufe0f", "\\ufe0f"), ("\u00a0", "\\xa0"),
        ("\u2028", "\\u2028"), (" ", "\\x20"), ("\u3164", "\\u3164"), ("\u200d", "\\u200d"),
    ],
)  # fmt: skip
def test_an_added_character_that_nobody_sees_is_shown_in_text_and_in_comments(
    ran: ProjectFolder, sign: str, shown: str
) -> None:
    ran.workflow(stages=stages({}, {"prompt": f"Answer{sign} ${{text}}: ${{classify.sentiment}}"}))
    told, comment = ran.agac("diff", code=0).out, ran.agac("diff", "--format", "markdown", code=0).out
    assert f"{shown}+}}" in told
    assert f"{shown.replace(chr(92), chr(92) * 2)}**" in comment
    if sign.strip(" "):
        assert sign not in told + comment
        changes = ran.agac("diff", "--format", "json", code=0).json["workflows"][0]["changes"]
        assert any(f"Answer{sign}" in str(one["now"]) for one in changes), "JSON is exact"

"""What a row run costs, before it is paid: its first rows are run, the rest is quoted, and somebody says yes or no."""

import json
from typing import Any

import pytest
import yaml
from support.project import ProjectFolder
from support.server import Faulty, Server
from support.terminals import on_pty

import agac

PRICES = {"prices": {"*": {"input": 1.0, "output": 2.0}}}


class Asked:
    """Answers a quote, or any question, and keeps what it was."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.questions = answer, list[Any]()

    def __call__(self, question: Any) -> Any:
        self.questions.append(question)
        return self.answer


def run(project: ProjectFolder, confirm: Any, output: str = "out.jsonl", **options: Any) -> agac.RunReport:
    more = {"prompt": "Review: {text}", "id_field": "id", "quote": True, **options}
    return agac.process(
        project.root / "data/rows.csv", project.root / output, agac.ProcessOptions(**more), project=project.root,
        confirm=confirm,
    )  # fmt: skip


def ids(project: ProjectFolder) -> set[str]:
    return {json.loads(line)["id"] for line in (project.root / "out.jsonl").read_text("utf-8").split("\n") if line}


def test_twenty_rows_are_run_and_kept_until_somebody_says_yes(project: ProjectFolder, server: Server) -> None:
    project.asks(server, **PRICES)
    server.reset()
    project.numbered(50)
    refused = Asked(answer=False)
    for answer, said in (
        (refused, "stopped after 20 rows, which are kept\n"),
        (None, "kept:\n  r-1: (.|\n)*\n  r-20: .*\nrest: [$]0[.]00.. now, ab"),
    ):
        with pytest.raises(agac.UsageError, match=said) as raised:
            run(project, answer)
        assert raised.value.remedy == "Continue with: agac resume job_1 --yes"
        assert server.account()["charged"] == 20, "the second time they are there"
        assert ids(project) == {f"r-{number}" for number in range(1, 21)}
    (quote,) = refused.questions
    assert [row for row, _ in quote.answers] == [f"r-{number}" for number in range(1, 21)]
    assert (quote.rows, quote.batch_usd, quote.simulated) == (30, None, False)
    with pytest.raises(agac.UsageError):
        run(project, refused, "other.csv")
    assert refused.questions[1].usd == pytest.approx(quote.usd, rel=0.5), "of answers that are there already"
    assert "Continue with: agac resume job_1 --yes" in project.agac("resume", "job_1", code=2).err
    assert server.account()["charged"] == 20, "who wanted a quote is asked whenever the job goes on"
    ran = project.agac("resume", "job_1", "--yes", code=0)
    assert (ran.json["processed_rows"], ran.json["skipped_rows"], len(ids(project))) == (30, 20, 50)
    assert server.account()["charged"] == 50
    assert not (project.root / "out.jsonl.previous").exists()
    assert run(project, None).exit_code == 0, "nothing is left to quote"


def test_a_quote_is_made_of_what_the_rest_asks_and_what_answers_took(project: ProjectFolder, server: Server) -> None:
    """Prompts that come later are ten times as long, and the quote says so."""
    project.asks(server, **PRICES, limits={"rpm": 60_000, "concurrency": 4})
    project.rows({"id": f"r-{i}", "text": "I love it " * (5 if i <= 20 else 50) + str(i)} for i in range(1, 241))
    asked = Asked(answer=True)
    report = run(
        project, asked, max_tokens=200, json_schema={"type": "object", "properties": {"good": {"type": "boolean"}}}
    )
    spent = report.summary["calls"]["cost_usd"]
    (quote,) = asked.questions
    assert (len(quote.answers), quote.rows, report.rows.done, report.invocation["calls"]) == (20, 220, 240, 240)
    assert (report.summary["processed_rows"], report.summary["skipped_rows"]) == (240, 0)
    assert quote.usd == pytest.approx(spent, rel=0.15)
    assert quote.seconds > 0
    assert str(agac.Quote(3, 0.0, None, None, simulated=False, answers=[])) == "rest: $0.00 now", "which is a price"


def test_it_is_asked_above_confirm_above_without_the_option(project: ProjectFolder) -> None:
    project.numbered(30)
    for usd, asks in ((100, 0), (0.00001, 1)):
        (project.root / "agac.yml").write_text(
            yaml.safe_dump({"defaults": {"model": "simulator/small"}, "confirm_above": {"usd": usd}}), "utf-8"
        )
        asked = Asked(answer=True)
        assert run(project, asked, f"{asks}.csv", prompt=f"{asks}: {{text}}", quote=False).rows.done == 30
        assert [type(question) for question in asked.questions] == [agac.Quote] * asks
    asked = Asked(answer=False)
    assert run(project, asked, "yes.csv", prompt="yes: {text}", quote=False, yes=True).rows.done == 30
    assert asked.questions == []
    assert run(project, asked, "few.csv", prompt="few: {text}", limit=20).rows.done == 20, "there is no rest"


def test_limits_hold_for_both_parts(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 3"}]), **PRICES)
    project.numbered(50)
    for options, done, failed in (
        ({"max_errors": 3}, range(27, 29), 3),
        ({"budget": agac.Budget(calls=35), "limit": 45}, range(20, 36), None),
        ({"budget": agac.Budget(calls=7)}, range(1, 8), None),
    ):
        report = run(
            project, Asked(answer=True), f"{done.start}.jsonl", prompt=f"{done.start}: {{text}}", parallel=1, **options
        )
        assert report.exit_code == agac.ExitCode.LIMIT
        assert report.rows.done in done
        assert failed in (None, report.rows.failed)


def test_the_rest_goes_on_as_a_batch(project: ProjectFolder) -> None:
    project.numbered(40)
    asked, model = Asked(answer="batch"), "simulator/small"
    report = run(project, asked, model=model)
    assert asked.questions[0].usd == pytest.approx(2 * asked.questions[0].batch_usd)
    assert (report.rows.done, report.rows.open, report.invocation["batches"][0]["requests"]) == (20, 20, 20)
    assert (report.exit_code, report.summary["exit_reason"]) == (0, "waiting")
    assert agac.resume("job_1", wait=True, project=project.root).rows.done == 40
    asked = Asked(answer=False)
    with pytest.raises(agac.UsageError):
        run(project, asked, "other.jsonl", prompt="Say: {text}", run_mode="batch", model=model)
    assert (asked.questions[0].usd, "rest: simulated" in str(asked.questions[0])) == (None, True)


def test_a_terminal_shows_the_answers_and_asks(project: ProjectFolder) -> None:
    project.numbered(30)
    words = ("process", "data/rows.csv", "out.jsonl", "-p", "Review: {text}", "--id-field", "id", "--quote",
             "-m", "simulator/small")  # fmt: skip
    with on_pty(project.root, *words, "--no-final-summary", columns=200) as terminal:
        shown = terminal.until(r"rest: simulated \$\S+ now, simulated \$\S+ as a batch, about 1s; \[y/batch/n\]: ")
        assert shown.count("  r-") == 20
        terminal.press(b"batch\n")
        assert terminal.ended() == 0
        assert "Submitted batch" in terminal.seen
    assert len(ids(project)) == 20


def test_killed_among_the_first_rows_it_pays_for_none_twice(project: ProjectFolder, server: Server) -> None:
    project.asks(server, **PRICES)
    server.reset()
    project.numbered(30)
    words = ("process", "data/rows.csv", "out.jsonl", "-p", "Review: {text}", "--id-field", "id", "--parallel", "1")
    project.agac(*words, "--quote", kill="committed:3")
    before = server.account()["charged"]
    assert "stopped after 20 rows" in project.agac(*words, "--quote", code=2).err
    assert server.account()["charged"] <= 20 + 2, "but for what was under way"
    ran = project.agac(*words, code=0)
    assert (ran.json["ok_rows"], len(ids(project)), before < 20) == (30, 30, True)
    project.assert_sound()


@pytest.mark.parametrize(
    ("usd", "batch", "seconds", "said"),
    [
        (61.4, 30.2, 7500.0, "rest: $61 now, $30 as a batch, about 2h 05m; [y/batch/n]"),
        (0.0, None, 0.2, "rest: $0.00 now, about 1s; [y/n]"),
        (None, 4.5, None, "rest: $4.50 as a batch; [y/n]"),
        (None, None, 90.0, "rest: price not known, about 1m 30s; [y/n]"),
    ],
)
def test_it_says_what_is_known(usd: float | None, batch: float | None, seconds: float | None, said: str) -> None:
    quote = agac.Quote(
        9, usd, batch, seconds, simulated=False, answers=[("r-1", {"a": "x\ny"}), (2, "two\n\x1b[31mlines")]
    )
    assert f"{quote}{quote.choices}" == f'  r-1: {{"a":"x\\ny"}}\n  2: two \\x1b[31mlines\n{said}'

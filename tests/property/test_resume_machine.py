"""Whatever is edited, fails or is killed: results are those of a run from scratch, and nothing is asked that was had.

An oracle that shares no code with agac says after each step which requests had to be made. `make soak` looks
for long, with other examples each time.
"""

import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.processes import kill_at
from support.project import ProjectFolder
from support.soak import SOAK, campaign

import agac
from property.answering import BAD, Content, serving
from property.oracle import Oracle, Row, Run, Stage, outputs, replace

WORDS = st.sampled_from(["say", "say ", "tell", "judge"])
TEXTS = st.sampled_from(["red", "green", "blue", "blue sky", f"{BAD} one", f"{BAD} two"])


class ResumeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.provider = self.stack.enter_context(serving())
        self.folder = Path(tempfile.mkdtemp(prefix="agac-property-"))
        self.project = ProjectFolder(self.folder / "project")
        self.project.configure(self.provider.base_url)
        self.oracle = Oracle()
        self.stages: tuple[Stage, ...] = (Stage("one", "say"), Stage("two", "tell", schema=None))
        self.rows: list[Row] = []
        self.next = 0
        self.repair = 1
        self.history: list[tuple[tuple[Stage, ...], list[Row]]] = []

    def teardown(self) -> None:
        self.stack.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    # what a user edits

    @initialize(texts=st.lists(TEXTS, min_size=2, max_size=6))
    def begin(self, texts: list[str]) -> None:
        for text in texts:
            self.add(text)

    def add(self, text: str) -> None:
        self.rows.append(Row(f"r{self.next}", text))
        self.next += 1

    @rule(texts=st.lists(TEXTS, min_size=1, max_size=4))
    def new_rows(self, texts: list[str]) -> None:
        for text in texts:
            self.add(text)

    @precondition(lambda self: len(self.rows) > 1)
    @rule(data=st.data())
    def drop_a_row(self, data: st.DataObject) -> None:
        self.rows.pop(data.draw(st.integers(0, len(self.rows) - 1)))

    @rule(data=st.data(), text=TEXTS)
    def change_a_cell(self, data: st.DataObject, text: str) -> None:
        place = data.draw(st.integers(0, len(self.rows) - 1))
        self.rows[place] = replace(self.rows[place], text=text)

    @rule(data=st.data(), other=st.sampled_from("xyz"))
    def change_a_cell_that_no_prompt_uses(self, data: st.DataObject, other: str) -> None:
        place = data.draw(st.integers(0, len(self.rows) - 1))
        self.rows[place] = replace(self.rows[place], other=other)

    @rule(data=st.data())
    def rename_an_id(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.rows) - 1))
        self.rows[place] = replace(self.rows[place], id=f"r{self.next}")
        self.next += 1

    @rule(data=st.data())
    def reorder(self, data: st.DataObject) -> None:
        self.rows = data.draw(st.permutations(self.rows))

    @rule(data=st.data(), word=WORDS)
    def edit_a_prompt(self, data: st.DataObject, word: str) -> None:
        self.edit(data, word=word)

    @rule(data=st.data(), model=st.sampled_from(["small", "large"]), temperature=st.sampled_from([None, 0.5]))
    def change_the_model(self, data: st.DataObject, model: str, temperature: float | None) -> None:
        self.edit(data, model=model, temperature=temperature)

    @rule(data=st.data(), schema=st.sampled_from([None, "A", "B"]))
    def change_a_schema(self, data: st.DataObject, schema: str | None) -> None:
        self.edit(data, schema=schema)

    def edit(self, data: st.DataObject, **changes: object) -> None:
        place = data.draw(st.integers(0, len(self.stages) - 1))
        changed = replace(self.stages[place], **changes)  # type: ignore[arg-type]
        self.stages = (*self.stages[:place], changed, *self.stages[place + 1 :])

    @precondition(lambda self: len(self.stages) < 3)
    @rule(word=WORDS)
    def add_a_stage(self, word: str) -> None:
        name = next(name for name in ("one", "two", "three") if name not in {stage.name for stage in self.stages})
        self.stages = (*self.stages, Stage(name, word))

    @precondition(lambda self: len(self.stages) > 1)
    @rule()
    def remove_the_last_stage(self) -> None:
        self.stages = self.stages[:-1]

    @precondition(lambda self: bool(self.history))
    @rule(data=st.data())
    def revert(self, data: st.DataObject) -> None:
        self.stages, rows = data.draw(st.sampled_from(self.history))
        self.rows = list(rows)

    @rule(repair=st.integers(1, 3), trouble=st.booleans())
    def change_what_asks_nothing(self, repair: int, trouble: bool) -> None:
        self.repair, self.provider.trouble = repair, trouble

    # what a user runs

    def write(self) -> None:
        self.project.rows([{"id": row.id, "text": row.text, "other": row.other} for row in self.rows])
        bodies = [stage.body(self.stages[i - 1] if i else None) for i, stage in enumerate(self.stages)]
        self.project.workflow(stages=bodies, stop_loss=False, defaults={"repair": self.repair})

    @rule(
        concurrency=st.integers(1, 8),
        limit=st.one_of(st.none(), st.none(), st.integers(1, 5)),
        fresh=st.sampled_from([False, False, False, True]),
    )
    def run(self, concurrency: int, limit: int | None, fresh: bool) -> None:
        self.write()
        asked, run = self.oracle.run(self.stages, self.rows, limit=limit, fresh=fresh)
        report = self.project.run(concurrency=concurrency, limit=limit, fresh=fresh)
        self.were_asked(asked)
        self.are_right(run, self.rows[:limit], report, "reviews/preview" if limit else "reviews")
        self.history.append((self.stages, list(self.rows)))

    @rule(data=st.data())
    def run_some_stages(self, data: st.DataObject) -> None:
        self.write()
        place = data.draw(st.integers(0, len(self.stages) - 1))
        asked, _ = self.oracle.run(self.stages, self.rows, until=place)
        report = self.project.run(until=self.stages[place].name)
        self.were_asked(asked)
        assert report.exit_code in (0, 3)
        self.project.assert_sound()

    @precondition(lambda self: bool(self.failed_rows()))
    @rule()
    def retry(self) -> None:
        run = self.oracle.runs[self.stages, None]
        report = agac.retry(self.number(), agac.Retry(), project=self.project.root)
        self.were_asked(self.oracle.retry(run))
        assert report.exit_code in (0, 3)
        self.oracle.runs[self.stages, None] = self.oracle.runs.pop((self.stages, None))
        self.project.assert_sound()

    def failed_rows(self) -> list[str]:
        run = self.oracle.runs.get((self.stages, None))
        return [kept.row.id for kept in run.rows.values() if kept.present and kept.state == "failed"] if run else []

    def number(self) -> int:
        """The number of the run that the present files would continue."""
        self.write()
        report = agac.plan_run("reviews", project=self.project.root)
        assert report.continues is not None
        return report.continues

    @precondition(lambda self: bool(self.oracle.runs))
    @rule()
    def collect(self) -> None:
        agac.gc(1, project=self.project.root)
        self.oracle.collect(list(self.oracle.runs.values())[-1])
        self.project.assert_sound()

    @precondition(lambda self: not any(BAD in row.text for row in self.rows))
    @rule(
        moment=st.sampled_from(["commit", "committed", "statement", "os.rename"]),
        number=st.integers(1, 12),
        concurrency=st.integers(1, 4),
    )
    def kill_a_run_and_go_on(self, moment: str, number: int, concurrency: int) -> None:
        self.write()
        asked, run = self.oracle.run(self.stages, self.rows)
        words = ("run", "-a", "reviews", "--concurrency", str(concurrency))
        killed = self.project.agac(*words, env=kill_at(f"{moment}:{number}"))
        assert killed.code in (0, -9), killed.err
        before = self.provider.take()
        report = self.project.run(concurrency=concurrency)
        after = self.provider.take()
        expected = Counter({content: content.calls for content in asked})
        assert set(before) | set(after) == set(expected)
        twice = before + after - expected
        assert not expected - (before + after)
        assert twice.total() <= 2 * concurrency
        if killed.code == -9:
            assert twice.total() <= max(report.invocation["lost_calls_at_most"], 0) + 2 * concurrency
        self.are_right(run, self.rows, report, "reviews")

    # what must hold

    def were_asked(self, asked: set[Content]) -> None:
        """Each exactly once, but for replies of the wrong form, which are asked once more."""
        assert self.provider.take() == Counter({content: content.calls for content in asked})

    def are_right(self, run: Run, rows: list[Row], report: agac.RunReport, folder: str) -> None:
        expected = outputs(run, rows)
        found = [(line["id"], line["ok"], line["result"]) for line in self.project.envelopes(folder)]
        assert found == expected
        assert report.exit_code == (0 if all(ok for _, ok, _ in expected) else 3)
        self.project.assert_sound()


ResumeMachine.TestCase.settings = campaign(test=12, soak=300, steps=40 if SOAK else 14)
TestResume = ResumeMachine.TestCase

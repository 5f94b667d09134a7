"""Old runs are dropped with what nobody needs, the kept ones are as good as before, and a kill does no harm."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batched import store
from support.processes import Process, ended, kill_at, killed, listening, wait_until
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty, Server
from support.soak import campaign

import agac
from agac.core.errors import LeaseHeld, LeaseLost
from agac.store import gc
from agac.store.history import RunLine
from agac.store.lease import lease_held
from agac.store.writer import open_database

TWO = [
    {"name": "classify", "prompt": "Review: ${text}", "output_schema": SENTIMENT},
    {"name": "reply", "prompt": "Answer ${text}, which is ${classify.sentiment}"},
]


def asking(prompt: str) -> list[dict[str, Any]]:
    return [{"name": "classify", "prompt": prompt}]


def asked_as(question: str) -> list[dict[str, Any]]:
    """The stages of one of the three."""
    return [{**TWO[0], "prompt": f"{question}: ${{text}}"}, TWO[1]]


def content(project: ProjectFolder) -> dict[str, list[tuple[Any, ...]]]:
    tables = [name for (name,) in project.query("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {table: project.query(f"SELECT * FROM {table}") for table in tables}


def run_numbers(project: ProjectFolder) -> list[int]:
    return [number for (number,) in project.query("SELECT id FROM run ORDER BY id")]


REFERENCES = [
    ("task", "result_id", "result", "id"), ("row", "result_id", "result", "id"), ("task", "row_key", "row", "key"),
    ("attempt", "row_key", "row", "key"), ("row", "run_id", "run", "id"), ("counter", "run_id", "run", "id"),
    ("event", "run_id", "run", "id"), ("run", "definition_hash", "definition", "hash"),
    ("result", "endpoint_id", "endpoint", "id"), ("attempt", "endpoint_id", "endpoint", "id"),
    ("attempt", "event_id", "event", "id"), ("row", "parent_key", "row", "key"), ("member", "group_key", "row", "key"),
    ("member", "row_key", "row", "key"), ("alike", "row_key", "row", "key"), ("made", "run_id", "run", "id"),
]  # fmt: skip


def assert_nothing_dangles(project: ProjectFolder) -> None:
    """Everything that refers to something else finds it, and all is counted as it is."""
    project.assert_sound()
    for table, column, other, key in REFERENCES:
        dangling = f"SELECT count(*) FROM {table} WHERE {column} NOT IN (SELECT {key} FROM {other})"
        assert project.query(dangling) == [(0,)], dangling


def assert_nothing_is_left_over(project: ProjectFolder) -> None:
    """And everything that is there is needed."""
    assert_nothing_dangles(project)
    for question in (
        "SELECT count(*) FROM result WHERE id NOT IN (SELECT result_id FROM task WHERE result_id IS NOT NULL)",
        "SELECT count(*) FROM definition WHERE hash NOT IN (SELECT definition_hash FROM run)",
        "SELECT count(*) FROM row WHERE ordinal IS NULL",
        "SELECT count(*) FROM endpoint e WHERE NOT EXISTS (SELECT 1 FROM attempt WHERE endpoint_id = e.id)",
    ):
        assert project.query(question) == [(0,)], question


@contextmanager
def nothing_is_asked(server: Server) -> Iterator[None]:
    """No request reaches the server in the block."""
    server.reset()
    yield
    assert server.account()["requests"] == 0


@pytest.fixture
def three(project: ProjectFolder) -> ProjectFolder:
    """Three runs of a workflow in two stages: a prompt that changed, and changed again."""
    project.numbered(30)
    for question in ("Review", "Opinion", "Say"):
        assert project.run(project.workflow(stages=asked_as(question))).exit_code == 0
    return project


@asynccontextmanager
async def collector_of(project: ProjectFolder, workflow: str = "reviews") -> AsyncIterator[gc.GarbageCollector]:
    """Somebody who drops, holding one workflow."""
    async with (
        open_database(project.root / ".agac/agac.db") as database,
        lease_held(database, workflow, time.time) as lease,
    ):
        yield gc.GarbageCollector(database, [lease], time.time)


def test_the_newest_runs_stay_and_ask_nothing_when_run_again(three: ProjectFolder, server: Server) -> None:
    before = three.envelopes()
    out = three.agac("gc", "--keep-runs", "2", code=0).out.split("\n")
    assert out[0] == "Deleted run 1 of reviews: 30 rows"
    assert re.fullmatch(r"Deleted \d+ answers that no kept run uses", out[1])
    assert out[2] == "Kept: run 3 of reviews, run 2 of reviews"
    assert out[3].startswith("Store: ")
    assert run_numbers(three) == [2, 3]
    assert_nothing_is_left_over(three)
    with nothing_is_asked(server):
        again = three.run()
        assert (again.summary["run"], again.invocation["rows_unchanged"]) == (3, 30)
        three.workflow(stages=asked_as("Opinion"))
        assert three.run().summary["run"] == 2, "the other one that was kept"
    agac.export(run=3, project=three.root)
    assert three.envelopes() == before


def test_one_workflow_is_cleared_at_no_cost_for_the_others(project: ProjectFolder, server: Server) -> None:
    """Not even for an answer to what a row of theirs held before, which nothing refers to any more."""
    project.numbered(5)
    for prompt in ("One: ${text}", "Two: ${text}"):
        project.run(project.workflow(stages=asking(prompt)))
    project.workflow("others", stages=asking("Others: ${text}"))
    for word in ("love", "hate", "love, all but r-5,"):
        project.rows({"id": f"r-{i}", "text": f"I {word} number {i}"} for i in range(1, 5 if "all" in word else 6))
        project.run("others")
    report = agac.gc(1, "reviews", project=project.root)
    assert [doomed.line.id for doomed in report.cleared.dropped] == [1]
    assert report.cleared.left_rows == 0
    assert_nothing_dangles(project)
    assert project.query("SELECT count(*) FROM row WHERE ordinal IS NULL") == [(1,)]
    with nothing_is_asked(server):
        project.numbered(5)
        assert project.run("others").invocation["calls"] == 0
    assert agac.gc(1, project=project.root).cleared.results == 9, "without a name all are cleared"
    assert_nothing_is_left_over(project)


def test_what_would_be_dropped_is_said_without_dropping_it(three: ProjectFolder) -> None:
    three.numbered(28)
    three.run()
    before = content(three)
    told = three.agac("gc", "--keep-runs", "1", "--dry-run", "--json").json
    assert content(three) == before
    done = three.agac("gc", "--keep-runs", "1", "--json").json
    assert told["dry_run"]
    assert not done["dry_run"]
    for key in ("kept", "dropped", "rows_that_left_the_input", "results"):
        assert told[key] == done[key], key
    assert [d["run"] for d in done["dropped"]] == [2, 1]
    assert done["rows_that_left_the_input"] == 2
    assert_nothing_is_left_over(three)
    assert three.agac("gc", "--keep-runs", "1").out.startswith("Nothing to delete\nKept: run 3 of reviews\nStore: ")


def test_index_files_of_older_versions_are_deleted(three: ProjectFolder) -> None:
    state = three.root / ".agac"
    old = {state / name for name in ("words-1.db", "words-1.db-wal", "words-1.db-shm", "words-12.db")}
    others = {state / name for name in ("words.db", "words-x.db", "words-1.db.txt")}
    for file in old | others:
        file.write_bytes(b"")
    three.agac("gc", "--keep-runs", "9", "--dry-run", code=0)
    assert {one for one in old | others if one.exists()} == old | others
    three.agac("gc", "--keep-runs", "9", code=0)
    assert {one for one in old | others if one.exists()} == others


def test_space_is_given_back(project: ProjectFolder) -> None:
    project.rows({"id": f"r-{i}", "text": f"{i} " + "long " * 400} for i in range(400))
    for prompt in ("One: ${text}", "Two: ${text}", "Three: ${text}"):
        project.run(project.workflow(stages=asking(prompt)))
    file = project.root / ".agac/agac.db"
    report = agac.gc(1, project=project.root)
    assert project.query("PRAGMA freelist_count") == [(0,)]
    assert report.bytes_after == file.stat().st_size
    assert report.bytes_after < report.bytes_before / 2
    assert_nothing_is_left_over(project)


def test_what_cannot_be_meant_is_refused(three: ProjectFolder) -> None:
    for arguments, said in (
        (["--keep-runs", "0"], "--keep-runs: takes 1 or more, not 0"),
        ([], "--keep-runs is missing"),
        (["--keep-runs", "1", "-a", "revews"], "no workflow 'revews'; did you mean 'reviews'?"),
    ):
        ran = three.agac("gc", *arguments)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
    assert run_numbers(three) == [1, 2, 3]
    new = ProjectFolder(three.root / "new")
    assert new.agac("gc", "--keep-runs", "1", code=0).out.startswith("Nothing to delete\n")
    assert not (new.root / ".agac").exists()


def test_newest_is_what_was_last_worked_on_and_no_number_comes_again(three: ProjectFolder) -> None:
    three.workflow(stages=TWO)
    assert three.run().summary["run"] == 1, "gone on with after the others were made"
    agac.gc(1, project=three.root)
    assert run_numbers(three) == [1]
    assert_nothing_is_left_over(three)
    for number in (4, 5):
        three.workflow(stages=asking(f"{number}: ${{text}}"))
        assert three.run().summary["run"] == number
        agac.gc(1, project=three.root)
    three.workflow("others", stages=asking("Others: ${text}"))
    assert three.run("others").summary["run"] == 6
    assert three.query("SELECT count(*) FROM event WHERE kind = 'gc'") == [(1,)]


@pytest.fixture
def holder(three: ProjectFolder, faulty: Faulty) -> Iterator[Process]:
    """Another workflow at work, all of its calls in flight."""
    slow = faulty([{"kind": "hang", "at": list(range(1, 9))}])
    three.configure(slow.base_url)
    three.workflow("others", stages=asking("Others: ${text}"))
    process = listening(three.start("run", "-a", "others", "--concurrency", "8"))
    wait_until(lambda: slow.account()["in_flight"] == 8, "its work", process)
    yield process
    assert process.stdout is not None
    if not process.stdout.closed:
        process.kill()
        process.communicate()


def test_it_is_refused_while_a_workflow_is_at_work(three: ProjectFolder, holder: Process) -> None:
    """Results are shared: the one at work may just have found one that nobody else needs."""
    before = content(three)
    for flags in ([], ["-a", "reviews"]):
        ran = three.agac("gc", "--keep-runs", "1", *flags, code=1)
        assert f"workflow 'others' is being run by another process (process {holder.pid}" in ran.err
        after = content(three)
        for table in before.keys() - {"lease", "lane_sample"}:  # which go on with time
            assert after[table] == before[table], table
    told = three.agac("gc", "--keep-runs", "1", "--dry-run", code=0)
    assert told.out.startswith("Would delete run 2 of reviews: 30 rows\n")
    killed(holder)
    three.agac("gc", "--keep-runs", "1", code=0)
    assert_nothing_is_left_over(three)


def test_a_workflow_is_not_run_while_old_runs_are_dropped(three: ProjectFolder) -> None:
    async def refused() -> str:
        async with collector_of(three):
            return (await asyncio.to_thread(ended, three.start("run", "-a", "reviews"))).err

    assert "is being run by another process" in asyncio.run(refused())


def test_who_comes_in_meanwhile_loses_nothing(three: ProjectFolder, server: Server) -> None:
    """A workflow that was never run has no lease that could be taken: it is noticed, and dropping stops."""
    three.workflow("others", stages=asked_as("Opinion"))

    async def dropping() -> None:
        async with collector_of(three) as collector:
            await collector.begin(3, {})
            await collector.drop_run(1, ["classify", "reply"])
            await collector.drop_run(2, ["classify", "reply"])
            ran = await asyncio.to_thread(three.agac, "run", "-a", "others", "--json")
            assert ran.json["invocation"]["tasks_asked"] == 0, "all are still there"
            await collector.drop_results([1])

    with pytest.raises(LeaseHeld, match="another workflow was run while old runs were dropped"):
        asyncio.run(dropping())
    assert_nothing_dangles(three)
    agac.gc(1, project=three.root)
    assert_nothing_is_left_over(three)
    with nothing_is_asked(server):
        assert three.run("others").invocation["calls"] == 0


def test_who_drops_notices_that_a_workflow_has_just_begun_or_that_it_was_taken_over_asleep(
    three: ProjectFolder,
) -> None:
    async def at_the_same_time() -> None:
        async with collector_of(three) as collector, collector_of(three, "new"):
            await collector.drop_results([1])

    async def asleep() -> None:
        async with collector_of(three) as collector:
            await collector.begin(3, {})
            with store(three) as database:
                database.execute("UPDATE lease SET holder = '', heartbeat_at = 0")
            assert (await asyncio.to_thread(three.agac, "run", "-a", "reviews")).code == 0
            await collector.drop_run(1, ["classify", "reply"])

    with pytest.raises(LeaseHeld, match="workflow 'new' began while old runs were dropped"):
        asyncio.run(at_the_same_time())
    assert three.query("SELECT count(*) FROM result WHERE id = 1") == [(1,)]
    with pytest.raises(LeaseLost):
        asyncio.run(asleep())
    assert three.query("SELECT count(*) FROM row WHERE run_id = 1") == [(30,)]
    three.assert_sound()


@pytest.mark.parametrize("finish", ["gc", "run"])
def test_it_may_be_killed_at_any_commit(finish: str, three: ProjectFolder, server: Server) -> None:
    three.numbered(28)
    three.run()
    expected = three.envelopes()
    kills = 0
    while True:
        ran = three.agac("gc", "--keep-runs", "1", env=kill_at(f"commit:{kills + 1}"))
        assert_nothing_dangles(three)
        if ran.code == 0:
            break
        assert ran.code == -9, ran.err
        kills += 1
        assert agac.status(project=three.root).runs[0]["run"] == 3
        server.reset()
        if finish == "run":
            assert three.run().invocation["rows_unchanged"] == 28
            three.workflow(stages=TWO)
            assert three.run().exit_code == 0, "one that is being dropped"
            three.workflow(stages=asked_as("Say"))
            assert three.run().exit_code == 0
    assert kills > 5
    assert_nothing_is_left_over(three)
    agac.export(run=3, project=three.root)
    assert three.envelopes() == expected
    with nothing_is_asked(server):
        assert three.run().invocation["rows_unchanged"] == 28


def lines(words: str) -> list[RunLine]:
    """Runs by a word each, the one last worked on first: `a` a run of a over the whole input, `a*` a selection."""
    found = words.split()
    return [
        RunLine(len(found) - i, word.strip("*"), b"", None, 0.0, word.endswith("*")) for i, word in enumerate(found)
    ]


@pytest.mark.parametrize(
    ("words", "keep", "workflow", "doomed"),
    [
        ("a a a", 2, None, [1]),
        ("a b a b a b", 1, None, [4, 3, 2, 1]),
        ("a b a b a b", 1, "b", [3, 1]),
        ("a* a* a a", 1, None, [3, 1]),
        ("a* a* a a", 2, None, [1]),
        ("a* a*", 1, None, [1]),
        ("a* b a*", 1, None, [1]),
        ("process-x-0123abcd process-y-0123abcd process-x-0123abcd a", 1, None, [3, 2]),  # jobs: one workflow
        ("process-x-0123abcd* process-y-0123abcd", 1, None, []),
        ("process-x-0123abcd process-y-0123abcd process-y-0123abcd", 1, "process-y-0123abcd", [1]),
        ("", 1, None, []),
    ],
)
def test_which_runs_go(words: str, keep: int, workflow: str | None, doomed: list[int]) -> None:
    found = gc.choose(lines(words), keep, workflow)
    assert [line.id for line in found.doomed] == doomed
    assert len(found.doomed) + len(found.kept) == len(words.split())


STEP = st.one_of(
    st.tuples(st.just("rows"), st.lists(st.sampled_from("abcdef"), min_size=1, max_size=5, unique=True)),
    st.tuples(st.just("prompt"), st.sampled_from(["One: ${text}", "Two: ${text}"])),
    st.tuples(st.just("run"), st.sampled_from(["reviews", "others"])),
    st.tuples(st.just("gc"), st.sampled_from([1, 2])),
)


@campaign(test=3, soak=100)
@given(steps=st.lists(STEP, min_size=3, max_size=9))
def test_whatever_was_done_before_the_newest_run_asks_nothing_after_it(
    steps: list[tuple[str, Any]], tmp_path_factory: pytest.TempPathFactory, server: Server
) -> None:
    project = ProjectFolder(tmp_path_factory.mktemp("any") / "project")
    project.configure(server.base_url)
    prompts = {"reviews": "One: ${text}", "others": "Two: ${text}"}
    ids = ["a"]
    for kind, value in [("run", "reviews"), *steps, ("run", "others"), ("run", "reviews")]:
        project.rows({"id": row_id, "text": f"I love {row_id}"} for row_id in ids)
        if kind == "rows":
            ids = value
        elif kind == "prompt":
            prompts["reviews"] = value
        elif kind == "run":
            project.workflow(value, stages=asking(prompts[value]))
            assert project.run(value).exit_code == 0
        else:
            agac.gc(value, project=project.root)
            assert_nothing_is_left_over(project)
    agac.gc(1, project=project.root)
    assert_nothing_is_left_over(project)
    with nothing_is_asked(server):
        for name in prompts:
            assert project.run(name).invocation["rows_unchanged"] == len(ids)


CONTRACTS: list[dict[str, Any]] = [
    {"id": f"c{i}", "clauses": [f"{word} {i % 4}" for word in "abcd"[: i % 5]]} for i in range(12)
]
LEVELS: list[dict[str, Any]] = [
    {"name": "clause", "explode": "clauses", "prompt": "Clause ${index}: ${item}"},
    {"name": "uniq", "dedupe": ["item"]},
    {"name": "say", "prompt": "Say ${item}"},
    {
        "name": "sum",
        "group_by": [],
        "reduce": {"max_rows": 2},
        "prompt": "Sum ${rows_json}",
        "output_schema": {"parts": ["string"]},
    },
    {"name": "parts", "explode": "sum.parts", "prompt": "Part ${item}"},
]


def levels(project: ProjectFolder, word: str = "Clause", rows: list[dict[str, Any]] | None = None) -> int:
    """Runs a workflow whose stages make rows: children, kept ones, a group in parts, and children of the group."""
    project.rows(CONTRACTS if rows is None else rows, "data/levels.jsonl")
    stages = [{**LEVELS[0], "prompt": f"{word} ${{index}}: ${{item}}"}, *LEVELS[1:]]
    report = project.run(project.workflow("levels", stages=stages, path="data/levels.jsonl"))
    assert report.exit_code == 0, report.summary["errors"]
    return int(report.summary["run"])


def test_rows_that_stages_made_stay_with_their_answers_and_go_with_their_run(
    project: ProjectFolder, server: Server
) -> None:
    first = levels(project)
    before = content(project)
    cleared = agac.gc(1, project=project.root).cleared
    assert (cleared.left_rows, cleared.gone_rows, cleared.results) == (0, 0, 0)
    after = content(project)
    for table in before.keys() - {"event", "lease"}:
        assert after[table] == before[table], table
    with nothing_is_asked(server):
        assert levels(project) == first
    second = levels(project, "Paragraph")
    (dropped,) = agac.gc(1, project=project.root).cleared.dropped
    assert dropped.line.id == first
    assert dropped.rows > len(CONTRACTS)
    assert_nothing_dangles(project)
    for table in ("row", "made", "alike"):
        assert project.query(f"SELECT DISTINCT run_id FROM {table}") == [(second,)]
    assert agac.gc(1, project=project.root).cleared.dropped == []


def test_rows_that_are_no_longer_made_are_dropped(project: ProjectFolder, server: Server) -> None:
    levels(project)
    levels(project, rows=[{"id": "c1", "clauses": []}, *CONTRACTS[2:-2]])
    gone = project.query("SELECT count(*) FROM row WHERE state = 6 AND place >= 0")[0][0]
    assert gone > 3
    told = project.agac("gc", "--keep-runs", "1", "--dry-run", "--json").json
    done = project.agac("gc", "--keep-runs", "1", "--json").json
    for key in ("rows_that_left_the_input", "rows_no_longer_made", "results"):
        assert told[key] == done[key], key
    assert (done["rows_that_left_the_input"], done["rows_no_longer_made"]) == (3, gone)
    assert project.query("SELECT count(*) FROM row WHERE state = 6 OR ordinal IS NULL AND origin IS NULL") == [(0,)]
    assert_nothing_dangles(project)
    files = project.envelopes("levels")
    with nothing_is_asked(server):
        assert levels(project, rows=[{"id": "c1", "clauses": []}, *CONTRACTS[2:-2]]) == 1
    assert project.envelopes("levels") == files
    levels(project)
    assert_nothing_dangles(project)


def test_a_run_with_levels_of_which_some_is_dropped_is_gone_on_with(
    project: ProjectFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far it came: what is missing is made again for nothing, while the answers are there. Or gc ends it."""
    first = levels(project)
    files = project.envelopes("levels")
    second = levels(project, "Paragraph")
    monkeypatch.setattr(gc, "CHUNK_ROWS", 7)
    names = [str(stage["name"]) for stage in LEVELS]
    transactions, more = 0, True

    async def dropping(times: int) -> bool:
        async with collector_of(project, "levels") as collector:
            await collector.begin(second, {})
            for _ in range(times):
                if not await collector.transaction(lambda w: collector._drop_rows(w, first, names)):
                    return False
        return True

    while more:
        transactions += 2
        more = asyncio.run(dropping(transactions))
        assert_nothing_dangles(project)
        assert not agac.status(run=first, project=project.root).runs[0]["complete"]
        with nothing_is_asked(server):
            assert levels(project) == first
        assert project.envelopes("levels") == files
        assert_nothing_dangles(project)
    assert transactions > 4
    levels(project, "Paragraph")
    assert asyncio.run(dropping(4))
    assert [doomed.line.id for doomed in agac.gc(1, project=project.root).cleared.dropped] == [first]
    assert_nothing_dangles(project)
    assert project.query("SELECT DISTINCT run_id FROM row UNION SELECT run_id FROM made") == [(second,)]

"""The monitor's pages of runs as they are served: figures, curves, streams, and what `--write` does."""

import asyncio
import json
import re
from collections.abc import Iterator
from html import unescape
from threading import Semaphore

import pytest
from scripted_server import Step, answering, scripted
from support.monitor import Watched, monitor
from support.processes import ended, interrupt, wait_until
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty

import agac
from agac.engine import heartbeat

JUDGE = {"name": "judge", "prompt": "${text}", "output_schema": SENTIMENT, "repair": 0}
GOOD = json.dumps({"sentiment": "positive", "reason": "r"})


def text_of(page: str) -> str:
    """What a page says, without its markup."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> ProjectFolder:
    """A project with a finished run of 12 rows, then a run of 3 rows of which one failed."""
    project = ProjectFolder(tmp_path_factory.mktemp("shop"))
    project.workflow(rows=12, budget={"calls": 1000})
    project.run()
    with answering(lambda asked: Step(GOOD if "number 2" not in asked else "no"), project):
        project.workflow("others", rows=3, stages=[JUDGE])
        project.run("others")
    return project


@pytest.fixture(scope="module")
def watched(shop: ProjectFolder) -> Iterator[Watched]:
    with monitor(shop) as started:
        yield started


def test_a_project_without_runs_says_how_to_begin(project: ProjectFolder) -> None:
    with monitor(project) as started:
        assert "agac run -a WORKFLOW" in started.get("/").text
        assert started.get("/run/1").status == 404


def test_the_list_has_all_runs_with_their_figures(watched: Watched) -> None:
    page = watched.get("/").text
    assert page.index('<a href="/run/2">') < page.index('<a href="/run/1">')
    assert "1 others finished" in text_of(page).replace("2 others", "1 others")
    assert "12 of 12 rows ended" in page
    assert "2 runs" in text_of(page)
    assert watched.get("/?after=2").text.count("/run/") == 1
    assert watched.get("/?after=x").status == 404


def test_a_run_says_what_became_of_its_stages_and_what_is_next(watched: Watched) -> None:
    page = watched.get("/run/2").text
    assert '<svg xmlns="http://www.w3.org/2000/svg" class="agac-graph"' in page
    assert "style=" not in page, "the policy would forbid it"
    assert "Failed in judge: 1 SchemaMismatch" in text_of(page)
    assert 'data-copy="agac ' in page
    assert "Budget of the run: 12 calls of 1,000 calls" in text_of(watched.get("/run/1").text)


def test_curves_say_what_the_tables_below_them_say(watched: Watched) -> None:
    curves = json.loads(watched.get("/run/1/curves.json").text)
    assert sum(curves["lines"]["done"]) == 12
    assert {len(line) for line in curves["lines"].values()} == {len(curves["at"])}
    assert "Figures of throughput From Rows done Calls" in text_of(watched.get("/run/1").text)


def test_lanes_and_budgets_have_curves_with_tables(shop: ProjectFolder, watched: Watched) -> None:
    with shop.changed() as change:
        for at, in_flight in ((0, 3), (2, 4), (60, 1)):
            change(f"INSERT INTO lane_sample SELECT id, created_at + {at}, 'l', {in_flight}, 5, 9, 1, '', NULL, 0, 0 "
                   "FROM run WHERE id = 1")  # fmt: skip
        # of another lane the last sample is a moment older
        change("INSERT INTO lane_sample SELECT id, created_at + 59.9, 'k', 2, 5, 9, 1, '', NULL, 0, 0 FROM run "
               "WHERE id = 1")  # fmt: skip
        change("UPDATE event SET ended_at = ended_at + 60 WHERE run_id = 1")
    more = json.loads(watched.get("/run/1/curves.json").text)["more"]
    assert more["Budget of the run, calls"]["lines"] == {"spent": [12], "limit": [1000]}
    assert more["Lane k"]["lines"]["in_flight"] == [2]
    lane = more["Lane l"]
    assert (lane["lines"]["in_flight"], lane["lines"]["bound"]) == ([3, 4, 1], [5, 5, 5])
    assert [at - lane["at"][0] for at in lane["at"]] == pytest.approx([0, 2, 60])
    with shop.changed() as change:  # they are also shown where all calls were stored in the next minute
        change("UPDATE run SET created_at = 60 * (SELECT min(minute) FROM minute WHERE run_id = 1) - 1 WHERE id = 1")
        change(
            "UPDATE lane_sample SET at = (SELECT created_at FROM run WHERE id = 1) WHERE run_id = 1 AND in_flight = 3"
        )
    more = json.loads(watched.get("/run/1/curves.json").text)["more"]
    assert 3 in more["Lane l"]["lines"]["in_flight"]
    page = text_of(watched.get("/run/1").text)
    assert "Figures of lane l At Calls in flight Limit Calls that wait" in page
    assert "Figures of budget of the run, calls From Spent Limit" in page


def test_what_a_provider_says_is_text(project: ProjectFolder) -> None:
    attack = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    with scripted(Step(status=401, body=json.dumps({"error": {"message": attack}}))) as server:
        project.configure(server.base_url)
        project.workflow(rows=1)
        project.run()
    with monitor(project) as started:
        page = started.get("/run/1").text
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
        assert attack not in page
        with started.events("/run/1/live") as events:
            assert attack not in next(events)[1]


def test_a_stream_sends_what_differs_and_goes_on_from_what_was_seen(project: ProjectFolder) -> None:
    gate = Semaphore(0)

    def answer(_: str) -> Step:
        gate.acquire()
        return Step(GOOD)

    project.workflow(rows=4)
    with answering(answer, project), monitor(project) as started:
        running = project.start("run", "-a", "reviews", "--concurrency", "1")
        wait_until(lambda: "/run/1" in started.get("/").text, "a run", running)
        with started.events("/run/1/live") as events:
            first, text = next(events)
            assert "0 of" in text
            gate.release(2)
            for seen, text in events:  # noqa: B007 - the last one is used
                if "2 of 4 rows ended" in text:
                    break
            assert seen != first
        gate.release(2)
        assert ended(running).code == 0
        with started.events("/run/1/live", last=seen) as events:
            assert "4 of 4 rows ended" in next(events)[1]


def test_open_streams_do_not_hold_up_the_end(shop: ProjectFolder) -> None:
    with monitor(shop) as started, started.events("/run/1/live") as events, started.events("/live") as others:
        assert next(events)[0] != next(others)[0]
        interrupt(started.process)
        ran = ended(started.process)
        assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("path", ["/run/2/stop", "/run/2/retry", "/run/2/cancel/1"])
def test_without_write_nothing_can_be_changed(path: str, watched: Watched, shop: ProjectFolder) -> None:
    page = watched.get(path)
    assert page.status == 200
    assert "<form" not in page.text
    refused = watched.post(path)
    assert (refused.status, "agac ui --write" in refused.text) == (403, True)
    assert path not in watched.get("/run/2").text
    assert not (shop.root / ".agac/ui").exists()


def test_retry_is_asked_again_and_runs_on_its_own(project: ProjectFolder) -> None:
    with scripted(Step("no"), Step(GOOD)) as server:
        project.configure(server.base_url)
        project.workflow(rows=1, stages=[JUDGE])
        project.run()
        with monitor(project, "--write") as started:
            assert 'href="/run/1/retry"' in started.get("/run/1").text
            page = text_of(started.get("/run/1/retry?error=SchemaMismatch").text)
            assert "1 row of run 1 (reviews) would be run again, with at least 1 call" in page
            assert "agac retry 1 --error=SchemaMismatch" in page
            assert "This costs money" in page
            assert len(server.asked) == 1, "nothing was asked yet"
            assert started.post("/run/1/retry", {"budget": "much"}).status == 404
            sent = started.post("/run/1/retry", {"error": "SchemaMismatch"})
            assert sent.status == 303
            log = sent.headers["location"]
            wait_until(lambda: "Results:" in started.get(log).text, "the end of the retry")
            assert "1 row of run 1" not in started.get("/run/1/retry").text
            assert started.get("/log/..%2f..%2fagac.yml").status == 404
            assert started.get("/log/nothing.log").status == 404
    assert project.query("SELECT state FROM row") == [(1,)]


async def test_stop_reaches_the_process_at_work(
    project: ProjectFolder, faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)
    project.asks(faulty([{"kind": "slow_first_byte", "seconds": 0.3}]))
    project.workflow(rows=200)
    with monitor(project, "--write") as started:

        async def page(path: str = "/run/1") -> str:
            return (await asyncio.to_thread(started.get, path)).text

        assert (await asyncio.to_thread(started.post, "/run/1/stop")).status == 404
        run = asyncio.ensure_future(agac.arun("reviews", agac.RunOptions(concurrency=2), project=project.root))
        while not ('href="/run/1/stop"' in (text := await page()) and "Lanes Lane In flight" in text_of(text)):
            await asyncio.sleep(0.01)
        assert "as at Ctrl-C" in await page("/run/1/stop")
        assert (await asyncio.to_thread(started.post, "/run/1/stop")).headers["location"] == "/run/1"
        assert (await run).exit_code == 130
        said = text_of(await page())
        assert "Stop was asked for at " in said
        assert ": applied" in said
        assert 'href="/run/1/stop"' not in await page()


def test_a_batch_is_cancelled_by_whoever_works_on_it_next(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([], "--batch-seconds", "100"), batch="openai")
    project.workflow(rows=3, defaults={"run_mode": "batch", "max_tokens": 100})
    project.agac("run", "-a", "reviews", code=0)
    with monitor(project, "--write") as started:
        page = started.get("/run/1").text
        assert "What happens next" in page
        assert 'href="/run/1/cancel/1"' in page
        assert "Requests that were answered are kept" in started.get("/run/1/cancel/1").text
        assert started.post("/run/1/cancel/2").status == 404
        assert started.post("/run/1/cancel/1").status == 303
        assert "Cancel batch was asked for at " in text_of(started.get("/run/1").text)
        with project.changed() as change:  # what has ended is taken, not cancelled
            change("UPDATE batch SET status = 'completed'")
        assert 'href="/run/1/cancel/1"' not in started.get("/run/1").text
        assert "no batch 1 that could be cancelled" in text_of(started.post("/run/1/cancel/1").text)
        with project.changed() as change:
            change("UPDATE batch SET status = 'in_progress'")
        project.agac("batch", "retrieve")
        assert project.query("SELECT kind, applied_at IS NULL FROM inbox") == [("cancel_batch", 0)]

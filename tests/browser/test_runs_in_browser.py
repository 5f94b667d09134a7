"""The monitor's pages of runs in a browser: they follow a run, draw its curves, and change nothing without asking."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Semaphore

from looks import NARROW, assert_accessible, assert_fits
from playwright.sync_api import Browser, Page, expect
from support.canned import Answer, Talk, completion, serving
from support.monitor import Watched
from support.processes import ended
from support.project import SENTIMENT, ProjectFolder
from support.server import Faulty
from support.sharded import four_shards

Watch = Callable[..., Watched]
GOOD = json.dumps({"sentiment": "positive", "reason": "r"})
JUDGE = {"name": "judge", "prompt": "${text}", "output_schema": SENTIMENT, "repair": 0}


@contextmanager
def answering(project: ProjectFolder, answer: Callable[[], str]) -> Iterator[list[bytes]]:
    """All calls of the project are answered with what a function says, which may wait; gives what they asked."""
    asked = []

    def take(talk: Talk) -> Answer:
        asked.append(talk.asked().body)
        return Answer(completion(answer()))

    with serving(take) as base_url:
        project.configure(base_url)
        yield asked


def enter(page: Page, watched: Watched, path: str = "/") -> None:
    """Opens the address, then a page."""
    page.goto(watched.address)
    page.wait_for_url(watched.url + "/")
    if path != "/":
        page.goto(watched.url + path)


def test_the_address_leads_to_the_runs(page: Page, finished: ProjectFolder, watch: Watch) -> None:
    enter(page, watch(finished))
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("cell", name="finished")).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("heading", name="Run 1 of reviews")).to_be_visible()


def test_pages_follow_a_run_that_is_at_work(page: Page, project: ProjectFolder, watch: Watch) -> None:
    gate = Semaphore(0)

    def answer() -> str:
        gate.acquire()
        return GOOD

    project.workflow(rows=4)
    with answering(project, answer):
        enter(page, watch(project))
        expect(page.get_by_text("Nothing was run in this project yet")).to_be_visible()
        running = project.start("run", "-a", "reviews", "--concurrency", "1")
        page.get_by_role("link", name="1", exact=True).click()
        expect(page.locator(".state").first).to_have_text("running")
        copy = page.get_by_role("button", name="Light or dark")
        copy.focus()
        expect(page.get_by_role("region", name="Lanes").get_by_role("row")).to_have_count(2)
        gate.release(2)
        expect(page.get_by_role("progressbar", name="2 of 4 rows ended")).to_be_visible()
        graph = page.locator(".agac-graph")
        expect(graph.get_by_text("2 done").first).to_be_visible()
        page.evaluate("() => { Object.defineProperty(document, 'hidden', { get: () => window.unseen }) }")
        look = "unseen => { window.unseen = unseen; document.dispatchEvent(new Event('visibilitychange')) }"
        page.evaluate(look, True)
        gate.release(2)
        assert ended(running).code == 0
        expect(page.locator(".state").first).to_have_text("running")  # a page that nobody sees asks for nothing
        page.evaluate(look, False)
        expect(page.locator(".state").first).to_have_text("finished")
        expect(graph.get_by_text("4 done").first).to_be_visible()
        expect(copy).to_be_focused()


def test_curves_are_drawn_over_tables(page: Page, finished: ProjectFolder, watch: Watch) -> None:
    enter(page, watch(finished), "/run/1")
    expect(page.locator("#charts canvas")).to_have_count(5)
    expect(page.get_by_role("img", name="Throughput, a minute: the figures are below")).to_be_visible()
    with finished.changed() as change:  # a lane that begins while the page is open
        change("INSERT INTO lane_sample SELECT 1, created_at, 'l', 3, 4, 5, 1, '', NULL, 0, 0 FROM run")
    page.evaluate("refresh()")
    lane = page.locator("figure").filter(has_text="Lane l")
    expect(lane.locator("canvas")).to_be_visible()
    expect(lane.locator(".u-label")).to_have_text(["Time", "Calls in flight", "Limit", "Calls that wait"])
    assert page.evaluate("moments([0, 2, 60], 2)") == [[0, 0], [2, 1], [4, -1], [60, 2]]  # broken in between
    page.get_by_text("Figures of throughput").click()
    expect(page.get_by_role("region", name="Throughput").get_by_role("cell", name="12").first).to_be_visible()
    assert_accessible(page)
    assert_fits(page)
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("#charts canvas")).to_have_count(6)


def test_all_figures_of_the_stages_are_in_sight_and_the_menu_is_one_line(
    page: Page, project: ProjectFolder, watch: Watch
) -> None:
    stages = [
        {**JUDGE, "name": "what_the_customer_wants", "model": "simulator/small"},
        {"name": "reply", "prompt": "Reply: ${text}", "when": "what_the_customer_wants.sentiment != null"},
    ]
    project.workflow(stages=stages, rows=3)
    project.run()
    enter(page, watch(project), "/run/1")
    page.set_viewport_size({"width": 1280, "height": 900})
    table = page.get_by_role("region", name="Stages")
    assert table.evaluate("one => one.scrollWidth <= one.clientWidth")
    page.set_viewport_size(NARROW)
    assert len({round(one.bounding_box()["y"]) for one in page.locator("header nav a").all()}) == 1  # type: ignore[index]


def test_charts_tell_times_as_all_pages_do(page: Page, finished: ProjectFolder, watch: Watch) -> None:
    enter(page, watch(finished), "/run/1")
    expect(page.locator("#charts canvas")).to_have_count(5)
    page.evaluate("[...drawn.values()][0].setLegend({idx: 0})")  # as where somebody points at it
    expect(page.locator(".u-value").first).to_have_text(re.compile(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:00Z$"))
    told = page.evaluate("clock({scales: {x: {min: 0, max: 900}}}, [86340, 86400, 86760])")
    assert told == [
        "23:59\n1970-01-01",
        "00:00\n1970-01-02",
        "00:06",
    ]


def test_a_page_reads_well_without_scripts(finished: ProjectFolder, watch: Watch, browser: Browser) -> None:
    with browser.new_context(java_script_enabled=False) as plain:
        page = plain.new_page()
        enter(page, watch(finished), "/run/1")
        expect(page.get_by_role("progressbar")).to_be_visible()
        page.get_by_text("Figures of throughput").click()
        expect(page.get_by_role("region", name="Throughput").get_by_role("cell", name="12").first).to_be_visible()


def test_a_retry_is_asked_again_before_it_costs_anything(page: Page, project: ProjectFolder, watch: Watch) -> None:
    answers = iter(["no", GOOD])
    with answering(project, lambda: next(answers)) as asked:
        project.workflow(rows=1, stages=[JUDGE])
        project.run()
        enter(page, watch(project, "--write"), "/run/1")
        page.get_by_role("button", name="Retry failed rows").click()
        expect(page.get_by_text("1 row of run 1 (reviews) would be run again")).to_be_visible()
        assert_accessible(page)
        assert_fits(page)
        assert len(asked) == 1
        page.get_by_role("button", name="Retry now").click()
        expect(page.get_by_role("heading", name="Output")).to_be_visible()
        page.get_by_role("link", name="Run 1").click()
        expect(page.get_by_role("progressbar", name="1 of 1 rows ended")).to_be_visible()
        expect(page.locator("#figures dd").nth(2)).to_have_text("0")  # none is failed any more
        assert len(asked) == 2


def test_a_batch_is_cancelled_by_a_button_and_by_whoever_works_next(
    page: Page, project: ProjectFolder, watch: Watch, faulty: Faulty
) -> None:
    project.asks(faulty([], "--batch-seconds", "100"), batch="openai")
    project.workflow(rows=3, defaults={"run_mode": "batch", "max_tokens": 100})
    project.run()
    enter(page, watch(project, "--write"), "/run/1")
    page.get_by_role("link", name="Cancel batch 1").click()
    expect(page.get_by_text("Requests that were answered are kept")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Cancel batch 1").click()
    expect(page.get_by_text("Cancel batch was asked for at")).to_be_visible()
    project.agac("batch", "retrieve")
    expect(page.get_by_text("decided: what it finished is kept")).to_be_visible()  # the page follows
    expect(page.get_by_role("link", name="Cancel batch 1")).to_have_count(0)


def test_light_and_dark_are_switched_and_kept(page: Page, project: ProjectFolder, watch: Watch) -> None:
    page.emulate_media(color_scheme="dark")
    enter(page, watch(project))
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == "light"


def test_a_command_is_copied_and_said(page: Page, project: ProjectFolder, watch: Watch) -> None:
    enter(page, watch(project))
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("button", name="Copy: agac run").press("Enter")
    expect(page.locator("#said")).to_have_text("Copied: agac run -a WORKFLOW")
    assert page.evaluate("navigator.clipboard.readText()") == "agac run -a WORKFLOW"


def test_the_page_of_shards_is_accessible_and_fits(page: Page, project: ProjectFolder, watch: Watch) -> None:
    four_shards(project)
    enter(page, watch(project), "/shards")
    expect(page.get_by_role("heading", name="reviews in 4 shards")).to_be_visible()
    expect(page.get_by_role("row")).to_have_count(6)
    assert_accessible(page)
    assert_fits(page)

"""Tasks from Python, without a workflow file: typed results, at once or as rows end, and plan, map and reduce."""

import asyncio
import inspect
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest
from pydantic import BaseModel
from support.project import ProjectFolder
from support.server import Faulty, Server

import agac
from agac import testing
from agac.api.watched_run import WatchedRun

TEXTS = ["the tent", "the lamp", "the stove"]


class Opinion(BaseModel):
    sentiment: str
    reason: str


async def _later() -> AsyncIterator[dict[str, str]]:
    for text in TEXTS:
        yield {"input": text}


class Mail(BaseModel):
    input: str


GIVEN: dict[str, Callable[[], Any]] = {
    "texts": lambda: TEXTS,
    "dicts": lambda: [{"input": text} for text in TEXTS],
    "a generator": lambda: (text for text in TEXTS),
    "models": lambda: [Mail(input=text) for text in TEXTS],
    "an async iterable": _later,
    "a frame": lambda: pd.DataFrame({"input": TEXTS}),
    "another frame": lambda: pl.DataFrame({"input": TEXTS}),
    "a column": lambda: pd.Series(TEXTS),
}


def test_results_are_typed_whatever_rows_come_as_and_the_same_call_pays_nothing(
    project: ProjectFolder, server: Server
) -> None:
    for number, (what, inputs) in enumerate(GIVEN.items()):
        text = ("Of {input}", "Of ${input}", "Of {{input}}")[number % 3]
        found = agac.run(task=text, inputs=inputs(), output_schema=Opinion, project=project.root)
        assert [type(one.output) for one in found] == [Opinion] * 3, what
        assert [one.input["input"] for one in found] == TEXTS
        assert [one.row_id for one in found] == [one.job_id for one in found] == [1, 2, 3]
        assert all(one.ok and one.error is None for one in found)
        assert found.report.invocation["calls"] == (3 if not number else 0)
        assert {one.turns for one in found} == {int(number % 3 == 0)}  # of which the first one made calls
    assert server.account()["charged"] == 3
    path = project.rows([{"id": "r-1", "input": TEXTS[0]}])
    (one,) = agac.run(task="Of {input}", inputs=path, id_field="id", model="local/small", project=project.root)
    assert (one.row_id, one.turns, one.cost) == ("r-1", 1, None)
    assert isinstance(one.output, str)
    assert not (project.root / "output").exists()
    project.assert_sound()


def test_other_keys_are_those_of_a_stage_and_what_is_wrong_names_the_argument(project: ProjectFolder) -> None:
    for keys, message in (
        ({"task": "Of {input.}}{{input", "inputs": TEXTS, "syntax": "dollars"}, "agac.run: syntax: "),
        ({"task": "Of ${input", "inputs": TEXTS}, "agac.run: task: placeholder is never closed"),
        ({"task": "Of {input}", "inputs": "no.csv"}, "agac.run: inputs: no.csv: no such file"),
        ({"task": "Of {input}", "inputs": TEXTS, "temprature": 1}, "agac.run: temprature: unknown key; did you mean"),
        ({"task": "Of {input}", "inputs": iter(())}, "the iterator has nothing left"),
        ({"task": "Of {input}", "inputs": [3]}, "row 1 is of type int"),
        ({"task": "Of {input}", "inputs": TEXTS, "vote": "a"}, "agac.run: vote chooses .*; add `replicas=3`, or"),
        ({"workflow": "reviews", "task": "Of {input}", "inputs": TEXTS}, "either a workflow or a task"),
        ({}, "either a workflow or a task"),
    ):
        with pytest.raises((agac.SpecError, agac.UsageError), match=message):
            agac.run(**keys, project=project.root)  # type: ignore[call-overload]
    with pytest.raises(agac.UsageError, match=r"options.input: a task's rows are its `inputs`"):
        agac.run(task="Of {input}", inputs=TEXTS, options=agac.RunOptions(input="x.csv"), project=project.root)
    with pytest.raises(agac.SpecError, match=r"agac.map_reduce: map: promt: unknown key"):
        agac.map_reduce(map={"promt": "x"}, reduce="All", inputs=TEXTS, project=project.root)
    with pytest.raises(agac.SpecError, match=r"task: {inptu}: no row has such a field; did you mean 'input'\?"):
        agac.run(task="Of {inptu}", inputs=["tent"], project=project.root)
    assert agac.run(task="Of {input}", inputs=[], project=project.root) == []


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("system_prompt", "Be kind.", "Write it as instructions=…."),
        ("max_agents", 4, "Write it as max_inflight=…."),
        ("telemetry", "traces", "Write it as options=agac.RunOptions(export_traces='FOLDER')."),
        ("response_format", {"a": "string"}, "Write it as output_schema=…."),
        ("max_iterations", 3, "Write it as max_turns=…."),
        ("limit", 3, "Give it in the options: options=agac.RunOptions(limit=…)."),
        ("budget", 5, "Give it in the options: options=agac.RunOptions(budget=…)."),
        ("budget", agac.Budget(usd=5), "Give it in the options: options=agac.RunOptions(budget=…)."),
        ("prompt", "Of {input}", "Give the text as task=…."),
        ("filter", "true", "Make a workflow of stages with keys of their own: agac.Workflow('NAME', stages=[…])."),
    ],
)
def test_an_argument_that_a_task_does_not_have_is_refused_with_what_to_write(
    key: str, value: Any, remedy: str, project: ProjectFolder, server: Server
) -> None:
    with pytest.raises(agac.UsageError, match=rf"agac\.run has no argument '{key}'") as refused:
        agac.run(task="Of {input}", inputs=TEXTS, project=project.root, **{key: value})
    assert refused.value.remedy == remedy
    if key != "prompt":
        with pytest.raises(agac.UsageError, match=rf"agac\.map_reduce has no argument '{key}'"):
            agac.map_reduce(map="{item}", reduce="All", inputs=TEXTS, project=project.root, **{key: value})
    assert server.account()["requests"] == 0


def test_an_argument_that_a_run_of_a_workflow_does_not_have_is_refused_with_what_to_write(
    project: ProjectFolder,
) -> None:
    for keys, remedy in (
        ({"budget": 5}, "Give it in the options: agac.run(WORKFLOW, agac.RunOptions(budget=…))."),
        ({"inputs": TEXTS}, "Write it as input=…."),
        ({"tools": [length]}, "What a stage is asked with stands in the workflow: agac.Workflow("),
    ):
        with pytest.raises(agac.UsageError, match=r"agac\.run of a workflow has no argument") as refused:
            agac.run("reviews", project=project.root, **keys)  # type: ignore[call-overload]
        assert (refused.value.remedy or "").startswith(remedy)


def test_what_is_awaited_that_waits_by_itself_is_refused_before_anything_is_asked(
    project: ProjectFolder, server: Server
) -> None:
    keys: dict[str, Any] = {"inputs": TEXTS, "project": project.root}

    async def awaited() -> None:
        with pytest.raises(agac.UsageError, match=r"agac\.run waits by itself") as refused:
            await agac.run(task="Of {input}", **keys)
        assert refused.value.remedy == "Write `await agac.arun(…)`, or leave out `await`."
        with pytest.raises(agac.UsageError, match=r"agac\.map_reduce waits by itself"):
            await agac.map_reduce(map="Of {item}", reduce="All", **keys)  # type: ignore[misc]
        with pytest.raises(agac.UsageError, match=r"agac\.status waits by itself"):
            await agac.status(project=project.root)  # type: ignore[misc]
        assert server.account()["requests"] == 0
        assert len(agac.run(task="Of {input}", **keys)) == len(await agac.arun(task="Of {input}", **keys)) == 3
        assert len(await asyncio.to_thread(agac.run, task="Of {input}", **keys)) == 3

    asyncio.run(awaited())


async def test_what_is_given_to_asyncio_and_waits_by_itself_is_refused_before_anything_is_asked(
    project: ProjectFolder, server: Server
) -> None:
    keys: dict[str, Any] = {"inputs": TEXTS, "project": project.root}
    refused = pytest.raises(agac.UsageError, match=r"agac\.run waits by itself")
    with refused as gathered:
        await asyncio.gather(agac.run(task="Of {input}", **keys), asyncio.sleep(0))  # type: ignore[call-overload]
    assert gathered.value.remedy == "Write `asyncio.gather(agac.arun(…))`."
    with refused:
        await asyncio.gather(*[agac.run(task=one, **keys) for one in ("Of {input}",)])  # type: ignore[arg-type]
    with refused:
        await asyncio.ensure_future(agac.run(task="Of {input}", **keys))  # type: ignore[call-overload]
    with refused:
        await asyncio.wait_for(agac.run(task="Of {input}", **keys), 5)  # type: ignore[call-overload]
    with refused:
        asyncio.get_running_loop().create_task(agac.run(task="Of {input}", **keys))  # type: ignore[call-overload]
    assert server.account()["requests"] == 0
    assert len(list(agac.run(task="Of {input}", **keys))) == 3  # given to a function that awaits nothing


def test_asyncio_run_of_what_waits_by_itself_is_refused_before_anything_is_asked(
    project: ProjectFolder, server: Server
) -> None:
    with pytest.raises(agac.UsageError, match=r"agac\.run waits by itself") as refused:
        asyncio.run(agac.run(task="Of {input}", inputs=TEXTS, project=project.root))  # type: ignore[arg-type]
    assert refused.value.remedy == "Write `asyncio.run(agac.arun(…))`."
    assert server.account()["requests"] == 0


def test_what_is_said_of_a_task_names_files_and_calls_that_there_are(project: ProjectFolder, server: Server) -> None:
    agac.run(task="Of {input}", inputs=TEXTS, project=project.root)
    (run,) = agac.status(project=project.root).runs
    assert (run["output"], run["go_on"]) == (None, "agac.run(task=…, inputs=…) as before")
    shown = project.agac("status", "last", code=0).out
    assert "Output: none" in shown
    assert "Results of run 1: agac show 1\n" in shown
    assert project.agac("show", "1", code=0).out.count("\n") > 3
    with pytest.raises(agac.UsageError, match=r"run 1 of task-Of-input-.* writes no files") as refused:
        agac.export(run=1, project=project.root)
    assert refused.value.remedy == (
        "Name one for its results: agac export --run 1 --to FILE, or agac.export(run=1, to=FILE)."
    )
    _, files = agac.export(run=1, to=project.root / "all.csv", project=project.root)
    assert [file.exists() for file in files] == [True]
    agac.map_reduce(map="{item}", reduce="All", inputs=["poles"], project=project.root)
    assert agac.status(run="last", project=project.root).runs[0]["go_on"] == "agac.map_reduce(…) as before"


def test_rows_that_fail_have_an_error_and_a_run_that_cannot_go_on_raises(
    project: ProjectFolder, faulty: Faulty
) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "lamp"}, {"kind": "unauthorized", "match": "tower"}]))
    first, second, _ = agac.run(task="Of {input}", inputs=TEXTS, project=project.root)
    assert (first.ok, second.ok) == (True, False)
    assert (second.output, second.error.type if second.error else None, second.turns) == (None, "Refused", 1)
    with pytest.raises(agac.AgacError, match=r"the task was stopped: .*401"):
        agac.run(task="Of {input}", inputs=["tower"], project=project.root)
    with pytest.raises(agac.AgacError, match=r"the task was stopped: .*401"):
        list(agac.stream(task="Of {input}", inputs=["tower", "tower 2"], project=project.root))


def test_each_form_gives_the_same_and_works_where_a_loop_runs(project: ProjectFolder, server: Server) -> None:
    pairs = [("run", "arun"), ("stream", "astream"), ("map_reduce", "amap_reduce")]
    for plain, awaited in pairs:
        assert inspect.signature(getattr(agac, plain)) == inspect.signature(getattr(agac, awaited))
    keys: dict[str, Any] = {"task": "Of {input}", "inputs": TEXTS, "project": project.root}
    phases: dict[str, Any] = {"map": "Of {item}", "reduce": "All", "inputs": TEXTS, "project": project.root}

    async def awaited_forms() -> list[Any]:
        streamed = [one async for one in agac.astream(**keys)]
        results, answer = await agac.amap_reduce(**phases)
        return [*await agac.arun(**keys), *sorted(streamed, key=_place), *results, answer]

    def plain_forms() -> list[Any]:
        results, answer = agac.map_reduce(**phases)
        return [*agac.run(**keys), *sorted(agac.stream(**keys), key=_place), *results, answer]

    async def within_a_loop() -> list[Any]:
        return plain_forms()

    first = plain_forms()
    assert first == asyncio.run(awaited_forms()) == asyncio.run(within_a_loop())
    assert server.account()["charged"] == 4  # the items are asked as the rows were


def _place(one: agac.AgentResult) -> int:
    return int(one.row_id)


def test_a_stream_gives_rows_as_they_end_and_who_leaves_it_pays_for_no_more(
    project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "slow_first_byte", "seconds": 1, "match": "of 0"}], "--latency", "0.03"))
    texts = [f"number {n} of {n}" for n in range(60)]
    keys: dict[str, Any] = {"inputs": texts, "project": project.root, "max_inflight": 2}
    given = agac.stream(task="Of {input}", **keys)
    assert next(given).input != {"input": texts[0]}  # which is still asked
    given.close()
    assert 1 <= server.account()["charged"] < 60

    async def leave() -> None:
        async with aclosing(agac.astream(task="Of {input}", **keys)) as results:
            async for _ in results:
                break

    asyncio.run(leave())
    assert server.account()["charged"] < 60
    assert {one.row_id for one in agac.stream(task="Of {input}", **keys)} == set(range(1, 61))
    assert server.account()["charged"] == server.account()["requests"] == 60
    project.assert_sound()


def test_a_stream_that_a_limit_ends_says_so_after_its_results(project: ProjectFolder, server: Server) -> None:
    keys: dict[str, Any] = {"task": "Of {input}", "inputs": TEXTS, "max_inflight": 1, "project": project.root}
    found = []
    with pytest.raises(agac.AgacError, match=r"1 row of the task did not end: the budget of the run") as ended:
        found.extend(one.row_id for one in agac.stream(**keys, options=agac.RunOptions(budget=agac.Budget(calls=2))))
    assert (found, ended.value.remedy) == ([1, 2], "Raise the limit, or wait; the same call resumes it.")
    assert sorted(one.row_id for one in agac.stream(**keys)) == [1, 2, 3]
    assert server.account()["charged"] == 3


def test_ctrl_c_ends_a_stream_in_good_order(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([{"kind": "slow_first_byte", "seconds": 1, "at": [1, 2]}]))

    async def interrupt(_: WatchedRun) -> None:
        while server.account()["requests"] < 2:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    texts = [f"number {n}" for n in range(20)]
    with pytest.raises(KeyboardInterrupt):
        list(agac.stream(task="{input}", inputs=texts, max_inflight=2, progress=interrupt, project=project.root))
    account = server.account()
    (run,) = agac.status(project=project.root).runs
    assert account["requests"] == account["charged"] == run["rows"]["done"] == 2


PHASES: dict[str, dict[str, Any]] = {
    "planned": {"plan": "Topics of {topic}", "inputs": {"topic": "tents"}},
    "given": {"inputs": ["poles", "pegs"]},
    "a frame": {"inputs": pd.DataFrame({"part": ["poles", "pegs"]})},
}


@pytest.mark.parametrize("given", PHASES.values(), ids=PHASES)
def test_items_are_planned_or_given_each_is_asked_and_one_answer_is_made(
    given: dict[str, Any], project: ProjectFolder, server: Server
) -> None:
    keys: dict[str, Any] = {
        **given, "map": {"prompt": "Part {index}: {item}", "output_schema": Opinion}, "project": project.root,
        "reduce": {"prompt": "Sum {rows_count} up", "output_schema": Opinion, "model": "local/large"},
    }  # fmt: skip
    results, answer = agac.map_reduce(**keys)
    assert [one.input["index"] for one in results] == [0, 1]
    assert {type(one.output) for one in (*results, answer)} == {Opinion}
    (run,) = agac.status(project=project.root).runs
    assert results.report.summary["run"] == run["run"]
    charged = server.account()["charged"]
    assert agac.map_reduce(**keys) == (results, answer)
    assert server.account()["charged"] == charged == 3 + ("plan" in given)
    asked = agac.inspect(run["run"], answer.row_id, project=project.root)
    assert "Part" not in str(asked)
    assert [one.turns for one in (*results, answer)] == [1, 1, 1]


def test_keys_of_all_phases_are_those_of_a_task_and_a_phase_may_say_otherwise(project: ProjectFolder) -> None:
    project.configure()
    script = [
        {"match": "Topics", "turn": 1, "calls": [{"name": "length", "arguments": {"text": "four"}}]},
        {"match": "Topics", "reply": {"items": ["poles"]}},
        {"match": "Part", "reply": {"sentiment": "good", "reason": "done"}},
        {"reply": "All is well."},
    ]
    with testing.simulator(script=script) as sim:
        results, answer = agac.map_reduce(
            plan="Topics of {topic}",
            map=agac.Phase("Part {item}", max_tokens=77, tools=None),
            reduce=agac.Phase("Sum up", output_schema=None, instructions="Be short.", max_turns=None),
            inputs={"topic": "tents"},
            model="simulator/small",
            tools=[length],
            max_turns=3,
            output_schema=Opinion,
            instructions="Be kind.",
            temperature=0.5,
            repair=0,
            max_inflight=2,
            project=project.root,
        )
    assert ([type(one.output) for one in results], answer.output) == ([Opinion], "All is well.")
    asked = [(one["messages"][0]["content"].split("\n")[0], one["temperature"]) for one in sim.requests]
    assert asked == [("Be kind.", 0.5)] * 3 + [("Be short.", 0.5)]
    assert ["tools" in one for one in sim.requests] == [True, True, False, True]
    assert sim.requests[2]["max_completion_tokens"] == 77


def test_what_is_wrong_with_a_key_of_all_phases_is_said_once(project: ProjectFolder, server: Server) -> None:
    for keys, problems in (
        ({"temprature": 1}, ["agac.map_reduce: temprature: unknown key; did you mean 'temperature'?"]),
        ({"repair": 99}, ["agac.map_reduce: repair: must be at most 10, not 99"]),
        (
            {"map": agac.Phase("{item}", repair=99), "repair": 1},
            ["agac.map_reduce: map: repair: must be at most 10, not 99"],
        ),
    ):
        with pytest.raises(agac.SpecError) as refused:
            agac.map_reduce(**{"plan": "Topics", "map": "{item}", "reduce": "All", "project": project.root, **keys})
        assert list(map(str, refused.value.problems)) == problems
    assert server.account()["requests"] == 0


def test_items_with_ids_keep_them_and_a_phase_may_be_a_function(project: ProjectFolder, server: Server) -> None:
    project.write("tools/parts.py", "def weigh(row):\n    return {'grams': len(row['item']['name'])}\n")
    parts = [{"part": "p-1", "name": "pole"}, {"part": "p-2", "name": "peg"}]
    results, answer = agac.map_reduce(
        map={"python": "tools/parts.py:weigh"}, reduce="All", inputs=parts, id_field="part", model="local/small",
        temperature=0.5, max_turns=3, project=project.root,
    )  # fmt: skip
    assert ([one.row_id for one in results], answer.ok) == (["p-1", "p-2"], True)
    assert server.account()["charged"] == 1


def test_a_plan_that_fails_or_has_no_items_is_the_error_of_the_answer(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "Topics"}, {"kind": "refusal", "match": "pegs"}]))
    found = agac.map_reduce(plan="Topics", map="{item}", reduce="All", project=project.root)
    assert (list(found[0]), found[1].error.type if found[1].error else None) == ([], "Refused")
    results, answer = agac.map_reduce(map="{item}", reduce="All", inputs=["poles", "pegs"], project=project.root)
    assert ([one.ok for one in results], answer.ok) == ([True, False], True)
    results, answer = agac.map_reduce(map="{item}", reduce="All", inputs=[], project=project.root)
    assert list(results) == []
    assert answer.error is not None
    assert answer.error.message == "there is no item of which an answer could be made"


def test_items_may_come_late_and_what_is_no_list_of_items_is_refused(project: ProjectFolder, server: Server) -> None:
    results, answer = agac.map_reduce(map="{item}", reduce="All", inputs=_later(), project=project.root)
    assert [one.input["item"]["input"] for one in results] == TEXTS
    assert answer.ok
    frame = pd.DataFrame({"part": ["poles", "pegs"], "size": [1.5, None]})
    results, _ = agac.map_reduce(map="{item}", reduce="All", inputs=frame, project=project.root)
    assert results[1].input["item"] == {"part": "pegs", "size": None}
    for inputs in (None, "poles", 3, {"poles": 1}):
        with pytest.raises(agac.UsageError, match="the input is no rows, but of type"):
            agac.map_reduce(map="{item}", reduce="All", inputs=inputs, project=project.root)


@agac.tool(name="look-up", cacheable=True)
async def search(query: str) -> dict[str, str]:
    """Looks something up."""
    ASKED.append(query)
    return {"found": f"much about {query}"}


ASKED: list[str] = []


def length(text: str) -> int:
    """Counts."""
    return len(text)


def test_functions_of_a_program_are_tools_and_their_calls_are_turns(project: ProjectFolder) -> None:
    project.configure()
    script = [
        {"match": "fail", "turn": 1, "calls": [{"name": "missing", "arguments": {}}]},
        {"turn": 1, "calls": [{"name": "look-up", "arguments": {"query": "poles"}}]},
        {"match": "the tent", "turn": 2, "calls": [{"name": "length", "arguments": {"text": "four"}}]},
        {"reply": {"sentiment": "good", "reason": "done"}},
    ]
    keys: dict[str, Any] = {
        "task": "Of {input}", "tools": [search, length], "output_schema": Opinion, "model": "simulator/small",
        "inputs": ["the tent", "the lamp", "fail"], "project": project.root,
    }  # fmt: skip
    ASKED.clear()
    with testing.simulator(script=script) as sim:
        found = agac.run(**keys)
        assert [type(one.output) for one in found] == [Opinion] * 3, found
        assert [one.turns for one in found] == [3, 2, 2]
        assert ASKED == ["poles"]
        asked = len(sim.requests)
        assert agac.run(**keys) == found
        with pytest.raises(agac.SpecError, match="max_turns: "):
            agac.run(**keys, max_turns=0)
        (few,) = agac.run(**keys | {"inputs": ["the boat"]}, max_turns=1)
        assert len(sim.requests) == asked + 2  # of which the last one may not call anything
    assert "much about poles" in str(sim.requests[1:])
    assert (few.turns, few.ok) == (2, True)
    project.assert_sound()


@pytest.mark.parametrize(
    ("variable", "host"), [("BRAVE_API_KEY", "api.search.brave.com"), ("SERPAPI_KEY", "serpapi.com")]
)
def test_a_web_search_needs_no_keys_where_that_of_a_service_is_there(
    variable: str, host: str, project: ProjectFolder, server: Server
) -> None:
    project.write(".env", f"{variable}=k3y\n")
    (one,) = agac.run(task="{input}", inputs=["x"], tools=[agac.Tool.web_search], project=project.root)
    assert one.ok
    (stage,) = agac.inspect(1, project=project.root).run["definition"]["stages"]
    (tool,) = stage["agent"]["tools"]
    assert host in tool["settings"]["url"]
    assert tool["settings"]["api_key"] == f"${{{variable}}}"


class Shop:
    """A program's own object."""

    def price(self, name: str) -> int:
        """Tells a price."""
        return len(name)


def test_a_method_is_the_same_tool_in_each_phase(project: ProjectFolder, server: Server) -> None:
    shop = Shop()
    phase = {"prompt": "{item}", "tools": [shop.price]}
    reduce = {"prompt": "All", "tools": [shop.price]}
    results, answer = agac.map_reduce(map=phase, reduce=reduce, inputs=["poles"], project=project.root)
    assert ([one.ok for one in results], answer.ok) == ([True], True)


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([3], "tools: 3 is no tool"),
        ([search, lambda text: text], "the name of a tool|no type"),
        (["serch"], "no tool 'serch'"),
        ([agac.Tool.http_get], r"needs allow; write `tools=\[agac.Tool.http_get\(allow=\['example.com'\]\)\]`$"),
        ([agac.Tool.web_search], r"web_search needs url; write `tools=\[agac.*\]`; or set BRAVE_KEY or SERPAPI_KEY in"),
        ([agac.Tool.read_file(rate=-1)], "rate"),
    ],
)
def test_what_is_no_tool_is_refused_before_anything_is_asked(
    tools: list[Any], message: str, project: ProjectFolder, server: Server
) -> None:
    with pytest.raises((agac.SpecError, agac.UsageError), match=message):
        agac.run(task="{input}", inputs=["x"], tools=tools, project=project.root)
    assert server.account()["requests"] == 0


def test_a_card_is_tried_with_a_message_or_a_row_live_or_with_stand_ins(project: ProjectFolder) -> None:
    project.configure()
    project.write("tools/find.py", "def find_order(number: str) -> dict:\n    return {'number': number}\n")
    project.write("agentcards/helper.md", "---\nfunction_tools: ../tools/find.py:find_order\n---\nHelp {{who}}.\n")
    project.write("stubs.yml", "find_order: {state: lost}\n")
    project.rows([{"id": "r-1", "text": "O-1"}, {"id": "r-2", "text": "O-2"}])
    script = [
        {"turn": 1, "match": "O-2", "calls": [{"name": "find_order", "arguments": {"number": "O-2"}}]},
        {"turn": 1, "calls": [{"name": "find_order", "arguments": {"number": "?"}}]},
        {"reply": "It is on its way."},
    ]
    with testing.simulator(script=script) as sim:
        given = agac.RunOptions(vars={"who": "Ada"})
        tried = agac.try_card("helper", row=f"{project.root}/data/rows.csv:2", options=given, project=project.root)
        assert (tried.row, tried.output, tried.error, tried.replies) == (2, "It is on its way.", None, 2)
        (call,) = tried.turns[0]["calls"]
        assert (call["arguments"], call["result"]) == ('{"number": "O-2"}', '{"number":"O-2"}')
        assert sim.requests[0]["messages"][0]["content"] == "Help Ada."
        with_stubs = agac.RunOptions(vars={"who": "Bo"}, tool_stubs=f"{project.root}/stubs.yml")
        stubbed = asyncio.run(agac.atry_card("helper", "O-2?", options=with_stubs, project=project.root))
        assert [one["result"] for turn in stubbed.turns for one in turn["calls"]] == ['{"state":"lost"}']
        assert (len(sim.requests), stubbed.simulated) == (4, True)
    shown = project.agac("card", "try", "helper", "where is O-2?", "--var", "who=Ada", code=0)
    assert shown.err.startswith("turn 1: 1 call\n  find_order(")
    assert "2 replies, " in shown.err
    project.write("wrong.yml", "find_order: {cel: args.(}\n")
    (project.root.parent / "calls.jsonl").write_text('{"tool":"find_order","arguments":{"number":"1"},"result":"x"}\n')
    helper = ["helper", "x", "--var", "who=Bo", "--tool-stubs"]
    for words, message in (
        ([*helper, "wrong.yml"], "wrong.yml: find_order: at column 6: `(` is never closed"),
        ([*helper, "../calls.jsonl"], "../calls.jsonl: calls.jsonl leads out of the project, by its path or by a link"),
        (["helper", "x"], "unknown placeholder {{who}}"),
        (["helper"], "one message or one row is asked"),
        (["helper", "x", "--row", "data/rows.csv:1"], "one message or one row is asked"),
        (["helper", "--row", "data/rows.csv:9", "--var", "who=Bo"], "data/rows.csv:9 is not there"),
        (["helper", "--row", "nope.csv:1", "--var", "who=Bo"], "--row: nope.csv: no such file"),
        (["nobody", "x"], "no agent 'nobody'"),
    ):
        assert message in project.agac("card", "try", *words, code=2).err


def test_a_server_is_a_tool_and_what_it_offers_is_locked_once(project: ProjectFolder) -> None:
    project.configure()
    target = shlex.join([sys.executable, str(Path(__file__).parents[1] / "support/mcp_server.py"), "--tools", "echo"])
    keys: dict[str, Any] = {"task": "{input}", "inputs": ["x"], "model": "simulator/small", "project": project.root}
    script = [{"turn": 1, "calls": [{"name": "echo", "arguments": {"words": "hello"}}]}, {"reply": "done"}]
    with testing.simulator(script=script) as sim:
        (one,) = agac.run(tools=[agac.McpServer("local", target)], **keys)
    assert (one.output, one.turns) == ("done", 2), one
    assert "hello" in str(sim.requests[1]["messages"][-1])
    assert (project.root / "agentcards/local.lock.json").exists()
    nowhere = agac.McpServer("nowhere", "no-such-command --of-a-server")
    stand_ins: dict[str, Any] = {"tools_mode": "stub", "tool_stubs": {"echo": "a stand-in"}}
    with testing.simulator(script=script) as sim:
        (one,) = agac.run(tools=[nowhere], **keys, **stand_ins)
        assert "a stand-in" in str(sim.requests[1]["messages"][-1])
    assert (one.output, one.turns) == ("done", 2), one
    with pytest.raises(agac.UsageError, match=r"McpServer\('local'\): pool "):
        agac.run(tools=[agac.McpServer("local", target, pool=0)], **keys)

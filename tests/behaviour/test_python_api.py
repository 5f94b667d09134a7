"""`import agac`: names with and without `await`, in programs and where an event loop runs already, and their types."""

import asyncio
import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import is_dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import get_type_hints

import pytest
from support.project import ProjectFolder
from support.server import Faulty, Server
from support.services import services
from support.terminals import PseudoTerminal

import agac
from agac.api.watched_run import WatchedRun
from agac.core.errors import ExitCode
from agac.spec.models import StageFile

ROOT = Path(__file__).parents[2]
ROWS = 12


def within_a_loop(call: Callable[[], object]) -> object:
    """What a cell of a notebook gives: a loop runs, and the call does not await."""

    async def cell() -> object:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as a kernel has it while a cell runs
        return call()

    return asyncio.run(cell())


def test_each_function_that_waits_has_an_async_twin() -> None:
    functions = {name: getattr(agac, name) for name in agac.api.__all__ if name[0].islower()}
    waiting = {name for name, one in functions.items() if inspect.iscoroutinefunction(getattr(one, "__wrapped__", one))}
    plain = {name for name in waiting if not inspect.iscoroutinefunction(functions[name])}
    assert waiting - plain == {f"a{name}" for name in plain}
    assert {"run", "plan", "retrieve", "status", "inspect", "graph", "why", "runs", "gc", "export", "retry"} <= plain
    streams = {name for name, one in functions.items() if inspect.isasyncgenfunction(one)}
    assert streams == {"astream"}
    for name in {*plain, "stream"}:
        assert inspect.signature(functions[name]) == inspect.signature(functions[f"a{name}"])


async def test_functions_work_with_and_without_await_where_a_loop_runs(project: ProjectFolder, server: Server) -> None:
    project.workflow(rows=ROWS)
    root = project.root
    assert agac.plan("reviews", project=root).calls == (await agac.aplan("reviews", project=root)).calls == ROWS
    done = agac.run("reviews", project=root)
    assert done.exit_code is ExitCode.DONE
    assert repr(done) == "<run 1 of reviews: 12 rows, 12 done, exit code 0, results in output/reviews>"
    assert (await agac.arun("reviews", project=root)).invocation["calls"] == 0
    assert agac.status(project=root) == await agac.astatus(project=root)
    assert agac.graph("reviews", project=root).mermaid() == (await agac.agraph("reviews", project=root)).mermaid()
    (row,) = (looked := agac.inspect("last", "r-3", project=root)).rows or ()
    assert all(
        len(repr(report)) < 1_000 for report in (looked, agac.plan("reviews", project=root), agac.status(project=root))
    )
    assert row["state"] == "done"
    assert server.account()["charged"] == ROWS
    with pytest.raises(agac.UsageError, match="no batch was submitted"):  # exceptions come as they are
        agac.retrieve(project=root)
    with pytest.raises(agac.UsageError, match="no batch was submitted"):
        await agac.aretrieve(project=root)


def within_asyncio_run(call: Callable[[], object]) -> object:
    """As a program does that should await: its loop handles Ctrl-C, and cannot while the call lasts."""

    async def main() -> object:
        return call()

    return asyncio.run(main())


AROUND = {"program": lambda call: call(), "within a loop": within_a_loop, "within asyncio.run": within_asyncio_run}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_ctrl_c_finishes_what_is_in_flight_and_comes_out_as_keyboard_interrupt(
    around: Callable[[Callable[[], object]], object], project: ProjectFolder, faulty: Faulty
) -> None:
    server = project.asks(faulty([{"kind": "slow_first_byte", "seconds": 1, "at": [1, 2]}]))
    project.workflow(rows=ROWS)

    async def interrupt(watched: WatchedRun) -> None:
        while server.account()["requests"] < 2:
            await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    options, switch_seconds = agac.RunOptions(concurrency=2), sys.getswitchinterval()
    with pytest.raises(KeyboardInterrupt):
        around(lambda: agac.run("reviews", options, project=project.root, progress=interrupt))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert sys.getswitchinterval() == switch_seconds
    (run,) = agac.status(project=project.root).runs
    assert run["last_invocation"]["exit_code"] == ExitCode.INTERRUPTED
    account = server.account()
    assert account["requests"] == account["charged"] == run["rows"]["done"] == 2
    assert project.run().summary["rows"]["done"] == ROWS
    assert server.account()["charged"] == ROWS
    project.assert_sound()


def test_progress_is_shown_on_a_terminal_only_when_asked_for_also_where_a_loop_runs(
    project: ProjectFolder, faulty: Faulty
) -> None:
    project.asks(faulty([], "--latency", "0.3"))
    project.workflow(rows=ROWS)
    program = """if True:
        import agac, asyncio
        silent = agac.run("reviews", agac.RunOptions(limit=2))
        print("silent", silent.rows.done)
        async def cell():
            return agac.run("reviews", agac.RunOptions(concurrency=1), progress=True)
        print("shown", asyncio.run(cell()).rows.done)
    """
    terminal = PseudoTerminal([sys.executable, "-c", program], project.root, {}, 120, 24)
    with closing(terminal):
        assert re.sub(r"\s", "", terminal.until("silent 2")) == "silent2"
        terminal.until(r"classify [█░]{10} \d+/12")
        assert terminal.ended() == 0
    assert terminal.seen.endswith(f"shown {ROWS}\r\n")


def test_a_number_is_a_budget_in_dollars_and_what_is_none_is_refused() -> None:
    assert agac.RunOptions(budget=5).budget == agac.Budget(usd=5)
    for wrong in (0, -1, True, float("nan"), "5", {"usd": 5}):
        with pytest.raises(agac.UsageError, match="is no budget"):
            agac.RunOptions(budget=wrong)  # type: ignore[arg-type]


WRONG = [
    ("agac.RunOptions(limit='x')", "agac.RunOptions: limit is 'x', of type str", "a whole number or None"),
    ("agac.RunOptions(offset=True)", "agac.RunOptions: offset is True, of type bool", "a whole number"),
    ("agac.RunOptions(vars=['a'])", "agac.RunOptions: vars is ['a'], of type list", "a mapping of texts to texts"),
    ("agac.RunOptions(run_mode='bulk')", "agac.RunOptions: run_mode is 'bulk', of type str", "'sync', 'batch' or None"),
    ("agac.ProcessOptions(yes='no')", "agac.ProcessOptions: yes is 'no', of type str", "True or False"),
    ("agac.ProcessOptions(temperature='warm')", "temperature is 'warm', of type str", "a number or None"),
    ("agac.Budget(tokens=2.5)", "agac.Budget: tokens is 2.5, of type float", "a whole number or None"),
    ("agac.Retry(rows='r1')", "agac.Retry: rows is 'r1', of type str", "a list of texts or whole numbers"),
    ("agac.McpServer('a', ['b'])", "agac.McpServer: target is ['b'], of type list", "a text"),
    ("agac.Tool('read_file', 5)", "agac.Tool: keys is 5, of type int", "a mapping"),
    ("agac.tool(rate='fast')", "agac.tool: rate is 'fast', of type str", "a number or None"),
    ("agac.Workflow(5)", "agac.Workflow: name is 5, of type int", "a text"),
    ("agac.run(5)", "agac.run: workflow is 5, of type int", "a text, a path or an agac.Workflow"),
    ("agac.run('a', {'limit': 3})", "agac.run: options is {'limit': 3}, of type dict", "an agac.RunOptions or None"),
    (
        "agac.run(task='{input}', inputs=['a'], max_inflight='2')",
        "agac.run: max_inflight is '2'",
        "a whole number or None",
    ),
    ("agac.stream('{input}', ['a'], id_field=3).send(None)", "agac.run: id_field is 3", "a text or None"),
    ("agac.map_reduce(map=5, reduce='a')", "map is 5, of type int", "a text, an agac.Phase or a mapping"),
    (
        "agac.process(5, 'out.jsonl')",
        "agac.process: input is 5, of type int",
        "a text, a path, an iterable",
    ),
    ("agac.resume('job_1', wait='x')", "agac.resume: wait is 'x', of type str", "True or False"),
    ("agac.retry('last', {})", "agac.retry: choice is {}, of type dict", "an agac.Retry"),
    ("agac.trial('a', 'b', sample='5')", "agac.trial: sample is '5', of type str", "a whole number or None"),
    ("agac.evaluate('a', models='gpt')", "agac.evaluate: models is 'gpt', of type str", "a list of texts"),
    ("agac.status(5)", "agac.status: workflow is 5, of type int", "a text, a path, an agac.Workflow or None"),
    ("asyncio.run(agac.aplan(5))", "agac.plan: workflow is 5, of type int", "a text, a path or an agac.Workflow"),
]


@pytest.mark.parametrize(("call", "message", "wanted"), WRONG, ids=[call for call, _, _ in WRONG])
def test_a_value_of_a_wrong_type_is_refused_with_what_is_wanted(
    call: str, message: str, wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(agac.UsageError, match=re.escape(message)) as refused:
        eval(call)
    assert (refused.value.remedy or "").startswith(f"Give {wanted}")
    assert not [*tmp_path.iterdir()]


def test_what_may_hold_a_secret_is_not_shown_where_its_type_is_wrong() -> None:
    with pytest.raises(agac.UsageError) as refused:
        agac.McpServer("docs", "https://example.com", headers="Bearer of-a-secret")  # type: ignore[arg-type]
    assert str(refused.value).startswith("agac.McpServer: headers is of type str")


def test_the_types_of_all_that_is_public_are_known_where_it_is_called() -> None:
    for name in agac.api.__all__:
        public = getattr(agac, name)
        if inspect.isfunction(public) or (inspect.isclass(public) and is_dataclass(public)):
            assert get_type_hints(public) is not None


PROGRAM = """
import asyncio
from typing import assert_type

from pydantic import BaseModel

import agac
from agac.plan.plan import Plan


class Review(BaseModel):
    text: str


report = agac.run("reviews", agac.RunOptions(limit=3, budget=5), project=".")
assert_type(report.rows.done, int)
assert_type(report.exit_code, agac.ExitCode)
assert_type(agac.plan("reviews").calls, int)
assert_type(agac.status(), agac.StatusReport)
assert_type(agac.graph("reviews").mermaid(), str)
assert_type(agac.retrieve().run, agac.RunReport)
assert_type(agac.run(task="Of {input}", inputs=["a"], output_schema={"a": "string"}), agac.AgentRun)
assert_type(next(iter(agac.stream("Of {input}", ["a"]))), agac.AgentResult)
assert_type(
    agac.run(
        task="Of {input}", inputs=[Review(text="a")], backend="vllm://127.0.0.1:8000", repair=2, json_repair=True,
        retries={"attempts": 2}, fallback=["openai/gpt-5.4"], timeout=3.5, max_age="7d", reuse="never",
        run_mode="batch", replicas=3, vote="sentiment", checks={"result.a > 0": "a is too small"}, skills=["skills"],
        runtime=agac.OpenCodeRuntime(max_agents=2), output_schema=Review, tools=[agac.Tool.web_search], reply="json",
        output_field=None, when="input != ''", group_by=["topic"], max_inflight=None, visible={"never": ["name"]},
        options=agac.RunOptions(budget=5), tools_mode="stub", tool_stubs={"x": 1}, messages=[], temperature=None,
    ),
    agac.AgentRun,
)
assert_type(
    agac.map_reduce(
        plan=agac.Phase("Topics", max_turns=3), map=agac.Phase("Of {item}", output_schema=Review, repair=0),
        reduce=agac.Phase("All", reduce={"max_tokens": 50_000}), inputs={"topic": "a"}, tools=[len], max_turns=3,
    ),
    tuple[agac.AgentRun, agac.AgentResult],
)
assert_type(agac.map_reduce(map="Of {item}", reduce="All", inputs=["a"]), tuple[agac.AgentRun, agac.AgentResult])


async def main() -> None:
    assert_type(await agac.arun("reviews"), agac.RunReport)
    assert_type(await agac.ainspect("last", "r-1"), agac.InspectReport)
    assert_type(await agac.arun(task="Of {input}", inputs=["a"], max_turns=3), agac.AgentRun)
    async for result in agac.astream("Of {input}", ["a"], model="simulator/small"):
        assert_type(result, agac.AgentResult)


try:
    asyncio.run(main())
except agac.SpecError as error:
    print([problem.where.line for problem in error.problems], Plan.__name__)
"""


def test_every_key_of_a_stage_is_typed_for_a_task_or_refused(tmp_path: Path) -> None:
    typed = {*get_type_hints(agac.TaskKeys)}
    for key in StageFile.model_fields.keys() - typed:
        with pytest.raises(agac.UsageError, match=f"has no argument '{key}'"):
            agac.run(task="{input}", inputs=["a"], project=tmp_path, **{key: "x"})
    assert not typed - StageFile.model_fields.keys() - {*RUN_KEYS}


RUN_KEYS = ("options", "project", "progress", "confirm", "max_inflight", "id_field")
WRONG = """import agac

agac.rnu('reviews')
agac.run(3)
agac.run('x').rows.dnoe
agac.run(task='x', inputs=['a'], repair='twice')
agac.map_reduce(map='x', reduce='y', bakend='vllm://127.0.0.1:8000')
agac.Phase('x', max_turns='three')
"""
CHECKERS = {
    "mypy": [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml"],  # strict, with what `make types` stored
    "basedpyright": ["basedpyright", "--level", "error", "--pythonpath", sys.executable],
}


@services  # a checker reads all of agac
@pytest.mark.parametrize("checker", CHECKERS)
def test_a_program_is_typed_and_every_public_name_is_there(checker: str, tmp_path: Path) -> None:
    """basedpyright brings a Node of 280 MB, so it is no dependency: `make pyright` brings it."""
    if shutil.which(CHECKERS[checker][0]) is None or (checker == "mypy" and find_spec("mypy") is None):
        pytest.skip(f"{checker} is not here")
    (tmp_path / "right.py").write_text(PROGRAM + "".join(f"print(agac.{name})\n" for name in agac.api.__all__))
    (tmp_path / "wrong.py").write_text(WRONG)
    command = [*CHECKERS[checker], *(str(tmp_path / name) for name in ("right.py", "wrong.py"))]
    place = ROOT if checker == "mypy" else tmp_path
    found = subprocess.run(command, cwd=place, capture_output=True, text=True).stdout
    errors = re.findall(r"(\w+)\.py:(\d)\S*(?: -)? error:", found)
    assert errors == [("wrong", str(line)) for line in range(3, 3 + WRONG.count("\n") - 2)], found


def test_errors_say_in_a_program_what_is_wrong_and_what_to_do(project: ProjectFolder) -> None:
    project.workflow(rows=1, stages=[{"name": "classify", "promt": "x"}, {"name": "reply", "needs": ["clasify"]}])
    with pytest.raises(agac.SpecError) as raised:
        agac.run("reviews", project=project.root)
    assert str(raised.value).split("\n") == [
        f"{len(raised.value.problems)} problems found:",
        *(f"  {problem}" for problem in raised.value.problems),
    ]
    assert re.search(r"\n  workflows/reviews\.yml:\d+:\d+: stages\[0\]\.promt: .*[Dd]id you mean", str(raised.value))
    with pytest.raises(agac.UsageError) as usage:
        agac.inspect(1, project=project.root)
    assert traceback.format_exception_only(usage.value)[1:] == [f"{usage.value.remedy}\n"]

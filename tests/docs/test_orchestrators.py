"""docs/examples/orchestrators: what agac's exit codes do to a task of Airflow and an op of Dagster.

The files are run with stand-ins for both packages; `make soak` installs the packages and lets them run the files.
"""

import os
import subprocess
import sys
import urllib.request
import venv
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pages import ROOT
from support.commands import clean_environment, template
from support.processes import processes, wait_until
from support.project import ProjectFolder
from support.server import Faulty, Server
from support.soak import only_in_soak

pytestmark = processes

FILES = ROOT / "docs/examples/orchestrators"
INSTALLED = str(Path(sys.executable).with_name("agac"))
ROWS = [{"id": f"r{i}", "text": f"number {i}"} for i in range(1, 5)]


class Raised(Exception):
    """Any of the packages' errors, with what it was told."""

    def __init__(self, *words: Any, **told: Any) -> None:
        super().__init__(*words)
        self.told = told


class AirflowException(Raised):
    pass


class AirflowFailException(AirflowException):
    pass


class Operator:
    """Keeps what it is told, as operators, sensors and DAGs do."""

    def __init__(self, *_: Any, **told: Any) -> None:
        self.told = told

    def __rshift__(self, other: "Operator") -> "Operator":
        return other

    def __enter__(self) -> "Operator":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def decorator(*given: Any, **_: Any) -> Any:
    """`@op`, `@op(...)` and `@job`: the function as it is."""
    return given[0] if given and callable(given[0]) else decorator


def made(**names: Any) -> Any:
    return SimpleNamespace(**names)


def placed(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """A module of these names in the place of a package."""
    module = ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)


@pytest.fixture(autouse=True)
def _folder(monkeypatch: pytest.MonkeyPatch, project: ProjectFolder) -> Iterator[None]:
    """The files are importable, with stand-ins for the packages; `agac` is forked."""
    monkeypatch.syspath_prepend(str(FILES))
    monkeypatch.setenv("AGAC_COMMAND", str(template().typed / "agac"))
    monkeypatch.setenv("AGAC_PROJECT", str(project.root))
    placed(
        monkeypatch, "airflow.sdk", BaseOperator=Operator, BaseSensorOperator=Operator, DAG=Operator,
        Context=dict, PokeReturnValue=lambda is_done, xcom_value: made(is_done=is_done, xcom_value=xcom_value),
    )  # fmt: skip
    errors = {"AirflowException": AirflowException, "AirflowFailException": AirflowFailException}
    placed(monkeypatch, "airflow.sdk.exceptions", **errors)
    placed(
        monkeypatch, "dagster", AssetMaterialization=lambda key, metadata: (key, metadata),
        Backoff=made(EXPONENTIAL=1), Config=Operator, Definitions=made, Failure=Raised, OpExecutionContext=object,
        RetryPolicy=made, ScheduleDefinition=made, job=decorator, op=decorator,
    )  # fmt: skip
    yield
    for name in ("agac_command", "airflow_dag", "dagster_jobs"):
        sys.modules.pop(name, None)


def airflow_run(project: ProjectFolder, *flags: str, most_failed: int = 0) -> dict[str, Any]:
    from airflow_dag import AgacRun  # type: ignore[import-not-found]

    operator = AgacRun(
        task_id="run", project=str(project.root), workflow="reviews", flags=[*flags], most_failed=most_failed
    )
    found: dict[str, Any] = operator.execute({})
    return found


class Context:
    """What an op is given: it notes what it is told."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.lines: list[str] = []
        self.log = made(info=lambda text, *words: self.lines.append(text % words))

    def log_event(self, event: Any) -> None:
        self.events.append(event)


def dagster_op(name: str, project: ProjectFolder, most_failed: int = 0) -> Context:
    import dagster_jobs  # type: ignore[import-not-found]

    context = Context()
    config = made(project=str(project.root), workflow="reviews", most_failed=most_failed)
    getattr(dagster_jobs, name)(context, config)
    return context


def in_batches(project: ProjectFolder, faulty: Faulty) -> Server:
    server = project.asks(faulty([], "--batch-seconds", "1000"), batch="openai")
    project.workflow(rows=ROWS, defaults={"run_mode": "batch"})
    return server


def advance(server: Server, seconds: int) -> None:
    """The simulator's batches get older."""
    body = b'{"advance": %d}' % seconds
    root = server.base_url.removesuffix("/v1")
    urllib.request.urlopen(urllib.request.Request(f"{root}/account/clock", data=body, method="POST")).close()


def test_a_run_of_calls_is_complete(project: ProjectFolder) -> None:
    project.workflow(rows=ROWS)
    assert airflow_run(project) == {"run": 1, "complete": True, "failed": 0}
    context = dagster_op("agac_run", project)
    ((key, metadata),) = context.events
    assert key == ["agac", "reviews"]
    assert metadata == {"run": 1, "failed": 0, "folder": "output/reviews"}
    assert dagster_op("agac_retrieve", project).lines == []


def test_batches_are_looked_at_until_they_are_in(project: ProjectFolder, faulty: Faulty) -> None:
    from airflow_dag import AgacRetrieve

    server = in_batches(project, faulty)
    assert airflow_run(project) == {"run": 1, "complete": False, "failed": 0}
    sensor = AgacRetrieve(task_id="retrieve", project=str(project.root), run="1")
    assert sensor.told["mode"] == "reschedule"
    assert not sensor.poke({}).is_done
    context = dagster_op("agac_retrieve", project)
    assert (context.lines, context.events) == (["run 1 waits for its batches"], [])
    advance(server, 2000)
    found = sensor.poke({})
    assert (found.is_done, found.xcom_value) == (True, {"run": 1, "failed": 0})
    assert len(project.envelopes()) == 4
    assert sensor.poke({}).is_done, "asked once more, it is still complete"


def test_batches_that_are_in_become_an_asset(project: ProjectFolder, faulty: Faulty) -> None:
    server = in_batches(project, faulty)
    assert dagster_op("agac_run", project).events == []
    advance(server, 2000)
    ((_, metadata),) = dagster_op("agac_retrieve", project).events
    assert metadata["run"] == 1


def test_rows_may_fail_up_to_a_number(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal", "match": "number 2"}]))
    project.workflow(rows=ROWS)
    assert airflow_run(project, most_failed=1)["failed"] == 1
    with pytest.raises(AirflowFailException, match=r"ended with 3: rows failed; errors\.jsonl says why"):
        airflow_run(project)
    with pytest.raises(Raised) as raised:
        dagster_op("agac_run", project)
    assert (raised.value.told["allow_retries"], raised.value.told["metadata"]) == (False, {"exit_code": 3})


def test_a_limit_asks_for_a_person(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "refusal"}]))
    project.workflow(rows=ROWS)
    with pytest.raises(AirflowFailException, match="ended with 4: a limit was reached"):
        airflow_run(project, "--max-errors", "0")


def test_a_wrong_file_asks_for_a_person(project: ProjectFolder) -> None:
    with pytest.raises(AirflowFailException, match="ended with 2: a command, a flag or a file"):
        airflow_run(project)


def test_a_run_that_cannot_go_on_is_tried_again(project: ProjectFolder, faulty: Faulty) -> None:
    project.asks(faulty([{"kind": "unauthorized"}]))
    project.workflow(rows=ROWS)
    with pytest.raises(AirflowException, match="ended with 1: the run cannot go on") as raised:
        airflow_run(project)
    assert not isinstance(raised.value, AirflowFailException)
    with pytest.raises(Raised) as failed:
        dagster_op("agac_run", project)
    assert failed.value.told["allow_retries"]


PROGRAM = """
import signal, sys
sys.path.insert(0, sys.argv[1])
from agac_command import Agac, AgacFailed
agac = Agac(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: agac.stop())
try:
    agac.run("reviews")
except AgacFailed as failed:
    print(failed.code, failed.again)
"""


def test_a_task_that_is_ended_ends_its_command(project: ProjectFolder, faulty: Faulty) -> None:
    server = project.asks(faulty([], "--latency", "0.5"))
    project.workflow(rows=[{"id": f"r{i}", "text": f"number {i}"} for i in range(200)], defaults={"concurrency": 4})
    words = [sys.executable, "-c", PROGRAM, str(FILES), str(project.root)]
    real = {**os.environ, "AGAC_COMMAND": INSTALLED}  # what is forked has a process of its own, which gets no signal
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=real) as process:
        wait_until(lambda: server.account()["in_flight"] == 4, "calls under way", process)
        process.terminate()
        out, _ = process.communicate(timeout=60)
    assert out == b"130 True\n"
    project.assert_sound()


@only_in_soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("package", ["apache-airflow", "dagster"])
def test_the_packages_run_the_files(package: str, tmp_path: Path, faulty: Faulty) -> None:
    project = ProjectFolder(tmp_path / "project")
    project.asks(faulty([], "--batch-seconds", "6"), batch="openai")
    name = project.workflow("nightly", rows=ROWS, defaults={"run_mode": "batch"})
    venv.create(tmp_path / "venv", with_pip=True)
    bin_ = tmp_path / "venv/bin"
    kept = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "HTTP", "http"))}
    installed = subprocess.run(
        [bin_ / "pip", "install", "--quiet", package], env={**clean_environment(), **kept}, capture_output=True
    )
    if installed.returncode:
        pytest.skip(f"{package} does not install here: {installed.stderr.decode()[-300:]}")
    home = tmp_path / "home"
    home.mkdir()
    dags = tmp_path / "dags"
    dags.mkdir()
    (dags / "quick.py").write_text(QUICK, "utf-8")
    environment = clean_environment({
        "AIRFLOW_HOME": str(home), "DAGSTER_HOME": str(home), "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": str(FILES), "AGAC_PROJECT": str(project.root),
        "AGAC_COMMAND": INSTALLED, "AGAC_TEST_FORKS": "", "SSL_CERT_FILE": "",
    })  # fmt: skip

    def called(*words: str | Path) -> str:
        ran = subprocess.run(words, env=environment, cwd=home, capture_output=True, text=True, timeout=600)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    if package == "dagster":
        jobs = [bin_ / "dagster", "job", "execute", "-f", FILES / "dagster_jobs.py", "-j"]
        called(*jobs, "agac_nightly")
        wait_until(lambda: "ASSET_MATERIALIZATION" in called(*jobs, "agac_batches"), "batches that are in")
    else:
        called(bin_ / "airflow", "db", "migrate")
        assert "state=success" in called(bin_ / "airflow", "dags", "test", "quick")
    assert len(project.envelopes(name)) == 4


QUICK = """
from datetime import UTC, datetime

from airflow.sdk import DAG
from airflow_dag import PROJECT, AgacRetrieve, AgacRun

with DAG("quick", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)) as dag:
    run = AgacRun(task_id="run", project=PROJECT, workflow="nightly")
    number = "{{ ti.xcom_pull(task_ids='run')['run'] }}"
    run >> AgacRetrieve(task_id="retrieve", project=PROJECT, run=number, poke_interval=2)
"""

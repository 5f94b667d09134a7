"""A DAG of Apache Airflow 3: a nightly workflow, its batches, and what reads its results.

Both files belong into the folder of DAGs. The project's folder with `.agac` in it has to be there for every task: give
the tasks a queue of the machine that has it. A pool with one slot keeps two of them from one workflow.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from agac_command import Agac, AgacFailed
from airflow.sdk import DAG, BaseOperator, BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowException, AirflowFailException


def airflow_error(failed: AgacFailed) -> AirflowException:
    """Airflow tries a task again, `retries` times, unless it raises AirflowFailException."""
    return AirflowException(str(failed)) if failed.again else AirflowFailException(str(failed))


class AgacRun(BaseOperator):
    """`agac run`. Its XCom is `{"run": number, "complete": bool, "failed": rows}`: a run in batches is not complete."""

    template_fields = ("project", "workflow", "flags")

    def __init__(
        self, *, project: str, workflow: str, flags: list[str] | None = None, most_failed: int = 0, **more: Any
    ) -> None:
        super().__init__(**more)
        self.project, self.workflow, self.flags, self.most_failed = project, workflow, flags or [], most_failed
        self._agac: Agac | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        self._agac = Agac(self.project)
        try:
            report = self._agac.run(self.workflow, *self.flags, most_failed=self.most_failed)
        except AgacFailed as failed:
            raise airflow_error(failed) from failed
        return {"run": report["run"], "complete": report["complete"], "failed": report["rows"]["failed"]}

    def on_kill(self) -> None:
        if self._agac is not None:
            self._agac.stop()


class AgacRetrieve(BaseSensorOperator):
    """`agac batch retrieve` until a run is complete: exit code 75 and open batches are looked at again later. With
    `mode="reschedule"` no worker is held meanwhile. `run` is a number, or a template that gives one."""

    template_fields = ("project", "run")

    def __init__(self, *, project: str, run: str, most_failed: int = 0, **more: Any) -> None:
        super().__init__(**{"mode": "reschedule", "poke_interval": 600.0, **more})
        self.project, self.run, self.most_failed = project, run, most_failed
        self._agac: Agac | None = None

    def poke(self, context: Context) -> PokeReturnValue:
        self._agac = Agac(self.project)
        try:
            report = self._agac.retrieve(int(self.run), self.most_failed)
        except AgacFailed as failed:
            raise airflow_error(failed) from failed
        found = None if report is None else {"run": report["run"], "failed": report["rows"]["failed"]}
        return PokeReturnValue(is_done=report is not None, xcom_value=found)

    def on_kill(self) -> None:
        if self._agac is not None:
            self._agac.stop()


PROJECT = os.environ.get("AGAC_PROJECT", "/srv/reviews")

with DAG(
    "agac_nightly",
    schedule="0 1 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,  # a workflow has one process at a time; a second one would be refused
    default_args={"retries": 3, "retry_delay": timedelta(minutes=5)},
) as dag:
    submitted = AgacRun(task_id="run", project=PROJECT, workflow="nightly", most_failed=10)
    retrieved = AgacRetrieve(
        task_id="retrieve", project=PROJECT, run="{{ ti.xcom_pull(task_ids='run')['run'] }}", most_failed=10,
        timeout=timedelta(hours=48),
    )  # fmt: skip
    submitted >> retrieved

"""`agac.testing`: what users' own tests of workflows and agents have."""

import asyncio

import pytest
from support.project import SENTIMENT, ProjectFolder

import agac
from agac import testing
from agac.simulator.settings import SimulatorError


def test_models_of_the_simulator_are_asked_of_it_and_it_says_what_came(project: ProjectFolder) -> None:
    project.configure()
    project.workflow(rows=2)
    with testing.simulator(faults=[{"kind": "refusal", "match": "number 2"}]) as sim:
        report = project.run()
        assert [row.ok for row in report.results()] == [True, False]
        assert [text for text in sim.prompts if "number 1" in text] == ["Review: I love number 1"]
        with testing.simulator() as other:
            asyncio.run(agac.arun("reviews", agac.RunOptions(model="simulator-responses/small"), project=project.root))
        assert (len(sim.requests), len(other.requests), other.prompts[0][:7]) == (2, 2, "Review:")
    script = [{"match": "tent", "reply": {"sentiment": "positive", "reason": "dry"}}, {"reply": "no JSON"}]
    with testing.simulator(script=script, latency="0") as sim:
        found = agac.run(
            task="{input}", inputs=["a tent", "a lamp"], output_schema=SENTIMENT, model="simulator/small",
            project=project.root,
        )  # fmt: skip
    assert [one.output or (one.error and one.error.type) for one in found] == [script[0]["reply"], "SchemaMismatch"]
    assert len(sim.requests) == 3  # of which one is a re-ask
    with pytest.raises(SimulatorError, match="unknown kind"), testing.simulator(faults=[{"kind": "nothing"}]):
        pass
    project.assert_sound()

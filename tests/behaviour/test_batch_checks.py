"""What is said before anything is sent, when a stage is to be asked in batches and cannot be."""

import sys
from typing import Any

import pytest
import yaml
from support.project import ProjectFolder

import agac

STAGE: dict[str, Any] = {"name": "say", "prompt": "${text}", "run_mode": "batch"}
LOCAL = {"dialect": "openai-chat", "base_url": "http://127.0.0.1:1/v1"}


def found(project: ProjectFolder, stage: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    """What `agac validate` says of a workflow with this stage."""
    project.numbered(1)
    project.workflow(stages=[{**STAGE, **(stage or {})}], **keys)
    return [str(problem) for problem in agac.validate("reviews", project=project.root).problems]


def configure(project: ProjectFolder, **providers: Any) -> None:
    body = {"providers": providers, "defaults": {"model": "local/small"}}
    project.write("agac.yml", yaml.safe_dump(body, sort_keys=False))


NO_BATCHES = (
    "provider 'local' of stage 'say' has no batches that agac knows; write `run_mode: sync` there, or, if the endpoint "
    "speaks OpenAI's Batch API, `providers: {local: {batch: openai}}` in agac.yml"
)


def test_a_provider_without_batches_is_named_with_both_ways_out(project: ProjectFolder) -> None:
    """Stages that share a default are one problem."""
    for batch in ({}, {"batch": "none"}):
        configure(project, local={**LOCAL, **batch}, other={**LOCAL, "batch": "openai"})
        assert found(project) == [f"workflows/reviews.yml:7:13: stages[0].run_mode: {NO_BATCHES}"]
        assert found(project, {"run_mode": "sync"}) == []
    stages = [{"name": name, "prompt": "${text}"} for name in ("a", "b", "c")]
    stages.append({"name": "d", "prompt": "${text}", "model": "other/m"})
    project.workflow(stages=stages, defaults={"run_mode": "batch"})
    [problem] = agac.validate("reviews", project=project.root).problems
    assert "provider 'local' of stages 'a', 'b' and 'c' has no batches" in problem.message


def test_the_place_is_where_the_mode_is_written(project: ProjectFolder) -> None:
    configure(project, local=LOCAL)
    stage = {"name": "say", "prompt": "${text}"}
    project.numbered(1)
    project.workflow(stages=[stage], defaults={"run_mode": "batch"})
    [problem] = agac.validate("reviews", project=project.root).problems
    assert str(problem) == f"workflows/reviews.yml:5:13: defaults.run_mode: {NO_BATCHES}"
    project.workflow(stages=[stage])
    refused = project.agac("plan", "-a", "reviews", "--run-mode", "batch")
    assert (refused.code, refused.out) == (2, "")
    assert f"--run-mode: {NO_BATCHES}" in refused.err
    for words in (["run"], ["run", "--dry-run"]):
        project.agac(*words, "-a", "reviews", "--run-mode", "batch", code=2)


def test_a_mode_that_there_is_not_is_refused(project: ProjectFolder) -> None:
    refused = project.agac("run", "-a", "reviews", "--run-mode", "later")
    assert (refused.code, refused.out) == (2, "")
    assert "'later' is not one of 'sync', 'batch'" in refused.err
    project.numbered(1)
    project.workflow()
    with pytest.raises(agac.UsageError, match=r"run_mode is 'later'.*\n?.*Give 'sync', 'batch'"):
        agac.plan("reviews", agac.RunOptions(run_mode="later"), project=project.root)  # type: ignore[arg-type]


CALLED = {"model": "local/small?transport=sse&idle_timeout=5"}
NO_EFFECT = [
    f"warning: stages[0].model: {key} has no effect in batch mode, where no connection stays open; leave it out"
    for key in ("transport", "idle_timeout")
]
SAID: list[tuple[dict[str, Any], list[str]]] = [
    ({}, []),
    ({"model": ["local/small", "other/big"]}, []),  # a fallback without batches is called
    ({"batch": {"max_requests": 50_001}},
     ["stages[0].batch.max_requests: local takes at most 50,000 requests in a batch"]),
    ({"batch": {"max_bytes": "201MB"}},
     ["stages[0].batch.max_bytes: local takes at most 200,000,000 bytes in a batch"]),
    ({"batch": {"completion_window": "2h"}},
     ["stages[0].batch.completion_window: local has no window '2h'; write 24h, or leave it out"]),
    ({"batch": {"deadline": "23h"}}, []),
    ({"batch": {"deadline": "24h"}},
     ["warning: stages[0].batch.deadline: local gives up after 24h by itself, which is sooner"]),
    ({"model": "openai/gpt-5.4-mini"}, []),
    ({"model": "openai/gpt-5.4-mini?service_tier=flex"},
     ["stages[0].model: service_tier cannot be asked for in batches of openai: a batch is a service tier"]),
    (CALLED, NO_EFFECT),
    ({**CALLED, "batch": {"retry": "sync"}}, []),  # what a batch leaves over is asked by calls
    ({**CALLED, "batch": {"deadline": "2h"}}, []),
    ({**CALLED, "batch": {"deadline": "2h", "on_deadline": "wait"}}, NO_EFFECT),
]  # fmt: skip


def test_what_a_stage_asks_of_batches_is_checked(project: ProjectFolder) -> None:
    """Sizes and windows that its provider does not take are refused, and what has no effect is warned of."""
    configure(project, local={**LOCAL, "batch": "openai"}, other=LOCAL)
    for stage, said in SAID:
        problems = found(project, stage)
        assert len(problems) == len(said), (stage, problems)
        for problem, words in zip(problems, said, strict=True):
            assert words in problem
            assert problem.startswith("workflows/reviews.yml:")
    batch = {"max_requests": 50_001, "max_bytes": "1GB", "completion_window": "1h", "on_deadline": "wait"}
    messages = found(project, {"batch": batch})
    assert [message.split(": ")[1] for message in messages] == [f"stages[0].batch.{key}" for key in batch]


def test_the_time_to_the_first_token_is_warned_of_where_all_stages_are_asked_in_batches(project: ProjectFolder) -> None:
    configure(project, local={**LOCAL, "batch": "openai"})
    [problem] = found(project, telemetry={"ttft": True})
    assert "warning: telemetry.ttft: ttft has no effect in batch mode, in which no answer is streamed" in problem
    project.workflow(stages=[STAGE, {"name": "more", "prompt": "${text}"}], telemetry={"ttft": True})
    assert agac.validate("reviews", project=project.root).problems == []


def test_a_library_that_is_not_installed_is_named(project: ProjectFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    configure(project, local=LOCAL, claude={**LOCAL, "dialect": "anthropic", "batch": "anthropic"})
    [problem] = found(project, {"model": "claude/big"})
    words = "batch mode of claude needs anthropic<3,>=2.11, which is not installed: pip install 'anthropic<3,>=2.11'"
    assert problem.endswith(f": stages[0].model: {words}")
    configure(
        project, local={**LOCAL, "batch": "openai"}, claude={**LOCAL, "dialect": "anthropic", "batch": "anthropic"}
    )
    [problem] = found(project, {"model": ["local/small", "claude/big"]})
    assert problem.endswith(f": stages[0].fallback: {words}")
    assert found(project, {"model": "claude/big", "run_mode": "sync"}) == []

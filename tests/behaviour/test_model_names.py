"""Short names of models: the same wherever a model is named, expanded for everyone to see, never moved unnoticed."""

from typing import Any

import pytest
import yaml
from scripted_server import scripted
from support.project import ProjectFolder
from support.server import Server

import agac
from agac.providers import model_string

SAY: dict[str, Any] = {"name": "say", "prompt": "${text}"}
MEANS = "local/small?temperature=0.5&max_tokens=50"


def configure(project: ProjectFolder, base_url: str, aliases: dict[str, str], **keys: Any) -> None:
    row = {"dialect": "openai-chat", "base_url": base_url, "structured": "json_schema"}
    project.write("agac.yml", yaml.safe_dump({"providers": {"local": row}, "aliases": aliases, **keys}))


def planned(project: ProjectFolder) -> dict[str, Any]:
    [stage] = agac.plan("reviews", project=project.root).as_json()["stages"]
    return stage


@pytest.fixture
def named(project: ProjectFolder, server: Server) -> ProjectFolder:
    configure(project, server.base_url, {"fast": "local/small?max_tokens=50"})
    project.workflow(rows=2, stages=[{**SAY, "model": "fast?temp=0.5"}])
    return project


def test_plan_summary_inspect_and_card_show_tell_what_a_short_name_means(named: ProjectFolder) -> None:
    line = f"Model fast?temperature=0.5 = {MEANS}"
    assert line in named.agac("plan", "-a", "reviews").out
    assert planned(named)["aliases"] == [{"written": "fast?temperature=0.5", "means": MEANS, "meant": None}]
    assert line in named.agac("run", "-a", "reviews", code=0).out
    alias = {"written": "fast?temperature=0.5", "means": MEANS}
    [stage] = named.output(file="summary.json")["stages"]
    assert (stage["model"], stage["alias"]) == ("local/small", alias)
    for words in (("last",), ("last", "r-1")):
        assert f"  short name: fast?temperature=0.5 = {MEANS}" in named.agac("inspect", *words).out
    [row] = named.agac("inspect", "last", "r-1", "--json").json["rows"]
    assert row["stages"][0]["alias"] == alias
    named.write("agentcards/a.md", "---\nmodel: fast\n---\nBe brief.\n")
    assert "means: local/small?max_tokens=50" in named.agac("card", "show", "a").err
    named.workflow(stages=[{**SAY, "model": MEANS}])
    assert planned(named)["run"] == 0
    assert named.run().invocation["calls"] == 0, "what is written out is not asked again"


def test_a_name_that_moved_makes_a_changed_run_and_plan_and_run_say_so(named: ProjectFolder, server: Server) -> None:
    named.run()
    assert named.agac("run", "-a", "reviews").err.count("meant") == 0
    configure(named, server.base_url, {"fast": "local/large?max_tokens=50"})
    now = "local/large?temperature=0.5&max_tokens=50"
    stage = planned(named)
    assert [(one["reason"], one["tasks"]) for one in stage["reasons"]] == [("model changed", 2)]
    assert stage["aliases"][0]["meant"] == MEANS
    assert f"Model fast?temperature=0.5 = {now}   (run 1: {MEANS})" in named.agac("plan", "-a", "reviews").out
    said = named.agac("run", "-a", "reviews").err
    assert f"fast?temperature=0.5 meant {MEANS} in run 1 and means {now} now: its rows are run again; to keep" in said
    assert "meant" not in named.agac("run", "-a", "reviews").err
    assert named.run().summary["run"] == 2
    assert "model of say: local/small → local/large" in named.agac("runs").out


def test_a_name_of_agac_that_moves_does_the_same(
    project: ProjectFolder, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = dict(model_string.ALIASES)
    monkeypatch.setattr(model_string, "ALIASES", table)
    configure(project, server.base_url, {})
    project.workflow(rows=2, stages=[{**SAY, "model": "sonnet"}])
    table["sonnet"] = "local/small"
    project.run()
    table["sonnet"] = "local/large"
    stage = planned(project)
    assert [(one["reason"], one["tasks"]) for one in stage["reasons"]] == [("model changed", 2)]
    assert stage["aliases"] == [{"written": "sonnet", "means": "local/large", "meant": "local/small"}]


FAST: dict[str, Any] = {"model": "fast"}


@pytest.mark.parametrize(
    ("stage", "defaults", "shared", "flags"),
    [
        (FAST, {}, {}, ()), ({"model": ["fast", "local/large"]}, {}, {}, ()), ({}, {"defaults": FAST}, {}, ()),
        ({}, {}, {"defaults": FAST}, ()), ({"agent": "a"}, {}, {}, ()),
        ({"model": "local/large"}, {}, {}, ("--model", "fast")),
    ],
    ids=["stage", "list", "defaults", "agac.yml", "card", "--model"],
)  # fmt: skip
def test_a_short_name_is_read_wherever_a_model_is_named(
    project: ProjectFolder, server: Server, stage: dict[str, Any], defaults: Any, shared: Any, flags: tuple[str, ...]
) -> None:
    configure(project, server.base_url, {"fast": "local/small?seed=7"}, **shared)
    project.write("agentcards/a.md", "---\nmodel: fast\n---\nBe brief.\n")
    project.workflow(rows=1, stages=[{**SAY, **stage}], **defaults)
    assert "Model fast = local/small?seed=7" in project.agac("run", "-a", "reviews", *flags, code=0).out


def test_a_fallback_may_be_a_short_name(project: ProjectFolder) -> None:
    with scripted("", "good") as server:
        configure(project, server.base_url, {"second": "local/large?seed=7"})
        project.workflow(rows=1, stages=[{**SAY, "model": ["local/small", "second"]}])
        assert "Model second = local/large?seed=7" in project.agac("plan", "-a", "reviews").out
        assert project.run().exit_code == 0
    assert [(asked["model"], asked.get("seed")) for asked in server.asked] == [("small", None), ("large", 7)]


def test_what_is_wrong_with_short_names_is_said_once_with_its_place(project: ProjectFolder) -> None:
    aliases = {"a/b": "openai/m", "bad": "opneai/m", "fine": "openai/gpt-5.4-mini"}
    project.write("agac.yml", yaml.safe_dump({"aliases": aliases, "defaults": {"model": "simulator/small"}}))
    project.workflow(rows=1, stages=[{**SAY, "model": "simulator/small?task_budget=20k"}])
    first, second, effect = project.agac("validate", code=2).out.splitlines()
    assert "warning: stages[0].model: task_budget has no effect: " in effect
    assert first == "agac.yml:2:8: aliases.a/b: 'a/b' is no short name; use letters, digits, '.', _ and -"
    assert second.startswith("agac.yml:3:8: aliases.bad: unknown provider 'opneai'; did you mean 'openai'?")


def test_what_a_model_cannot_be_told_is_said_before_the_first_call(project: ProjectFolder) -> None:
    project.write("agentcards/stopping.md", "---\nrequest_params: {stop_sequences: [END]}\n---\nBe brief.\n")
    project.write("agentcards/waiting.md", "---\nrequest_params: {service_tier: flex}\n---\nBe brief.\n")
    project.numbered(1)
    flex = "openai/gpt-4.1-mini?service_tier=flex"
    stages: list[tuple[dict[str, Any], str]] = [
        (
            {"model": flex},
            "stages[0].model: service_tier=flex: openai/gpt-4.1-mini is not offered in that tier, as far as the price ",
        ),
        (
            {"model": ["local/small", flex]},
            "stages[0].fallback: service_tier=flex: openai/gpt-4.1-mini is not offered in that tier",
        ),
        (
            {"model": "responses/m", "agent": "stopping"},
            "stages[0].model: responses/m cannot be asked with stop: the Responses API has no such parameter",
        ),
        (
            {"model": "mistral/m", "agent": "waiting"},
            "stages[0].model: service_tier=flex: mistral has no such tier; it has no tiers; leave service_tier out",
        ),
    ]
    for stage, said in stages:
        project.workflow(stages=[{**SAY, **stage}])
        assert said in project.agac("validate", code=2).out


def test_what_a_key_sends_and_how_schema_mode_enforces_a_schema(project: ProjectFolder) -> None:
    queries: dict[str, dict[str, Any]] = {
        "top_k=40&min_p=0.1&repetition_penalty=1.1": {"top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1},
        "reasoning=off": {"reasoning_effort": "none"},
        "reasoning=auto": {},
        "web_search=off&structured_tools=auto": {},
        "structured=json": {},
    }
    modes = {"json_schema": "json_schema", "json": "json_schema", "json_object": "json_object", "none": None}
    stages = [{"model": f"local/small?{query}"} for query in queries]
    stages += [{"model": f"local/small?schema_mode={mode}", "output_schema": {"a": "string"}} for mode in modes]
    project.numbered(1)
    with project.asking(scripted(*["ok"] * len(queries), '{"a":"x"}')) as server:
        for stage in stages:
            project.workflow(stages=[{**SAY, **stage}])
            assert project.run(fresh=True).exit_code == 0
    sent = [{k: v for k, v in asked.items() if k not in ("model", "messages")} for asked in server.asked]
    assert sent[: len(queries)] == list(queries.values())
    assert [(one.get("response_format") or {}).get("type") for one in sent[len(queries) :]] == list(modes.values())


def test_how_a_model_is_asked_is_no_reason_to_ask_again(project: ProjectFolder) -> None:
    project.run(project.workflow(rows=2, stages=[SAY]))
    project.workflow(stages=[{**SAY, "model": "local/small?transport=sse&idle_timeout=50&schema_mode=none"}])
    assert planned(project)["run"] == 0
    assert project.run().summary["run"] == 1


ROUTED: dict[str, Any] = {
    "kimi26instant": {"temperature": 0.6, "top_p": 0.95, "chat_template_kwargs": {"thinking": False}},
    "kimi26": {"temperature": 1.0, "top_p": 0.95},
    "hf/Qwen/Qwen3.5-397B-A17B:novita?reasoning=off": {"chat_template_kwargs": {"enable_thinking": False}},
    "hf/moonshotai/Kimi-K2.5:novita?instant=on": {"thinking": {"type": "disabled"}},
}


@pytest.mark.parametrize("model", ROUTED)
def test_a_route_and_a_switch_reach_the_wire(project: ProjectFolder, model: str) -> None:
    with scripted("ok") as server:
        project.write("agac.yml", yaml.safe_dump({"providers": {"hf": {"base_url": server.base_url}}}))
        project.write(".env", "HF_TOKEN=hf-1\n")
        project.workflow(rows=1, stages=[{**SAY, "model": model}])
        assert project.run().exit_code == 0
    [asked] = server.asked
    assert asked["model"].endswith(":novita")
    assert {key: value for key, value in asked.items() if key not in ("model", "messages")} == ROUTED[model]


@pytest.mark.parametrize("key", [None, "key-1"])
def test_generic_is_placed_by_a_variable_and_needs_no_key(
    project: ProjectFolder, server: Server, key: str | None
) -> None:
    project.write("agac.yml", "")
    project.workflow(rows=1, stages=[{**SAY, "model": "generic/small"}])
    assert "provider 'generic' needs the variable GENERIC_BASE_URL" in project.agac("run", "-a", "reviews", code=2).err
    found = {"GENERIC_BASE_URL": f"{server.base_url}/", **({"GENERIC_API_KEY": key} if key else {})}
    project.agac("run", "-a", "reviews", env=found, code=0)
    assert project.query("SELECT base_url FROM endpoint") == [(server.base_url,)]


def test_azure_is_placed_by_its_endpoint(project: ProjectFolder) -> None:
    with scripted("ok") as server:
        project.write("agac.yml", "")
        endpoint = server.base_url.removesuffix("/v1")
        project.write(".env", f"AZURE_OPENAI_API_KEY=key-1\nAZURE_OPENAI_ENDPOINT={endpoint}/\n")
        project.workflow(rows=1, stages=[{**SAY, "model": "azure/my-deployment"}])
        assert project.run().exit_code == 0
    assert project.query("SELECT base_url FROM endpoint") == [(f"{endpoint}/openai/v1",)]
    assert server.headers[0]["authorization"] == "Bearer key-1"


@pytest.mark.parametrize("name", model_string.ALIASES)
def test_every_short_name_is_rehearsed_on_the_simulator(name: str, project: ProjectFolder, server: Server) -> None:
    provider = model_string.ALIASES[name].partition("/")[0]
    row = {"base_url": server.base_url, "api_key": "any"}
    project.write("agac.yml", yaml.safe_dump({"providers": {provider: row}}))
    (said,) = agac.run(task="Of {input}", inputs=["a"], model=name, output_schema={"x": "string"}, project=project.root)
    assert said.error is None


def test_another_model_for_a_run_does_without_the_fallback_of_the_project_and_says_so(
    project: ProjectFolder, server: Server
) -> None:
    configure(project, server.base_url, {}, defaults={"model": "local/small", "fallback": "local/large"})
    project.workflow(rows=1, stages=[SAY])
    told = project.agac("plan", "-a", "reviews", "--model", "local/tiny", code=0)
    message = "--model: warning: local/tiny is asked without local/large, the `fallback` of another model; "
    both = "to have both, write `model: [local/tiny, local/large]` in the place of the flag"
    assert f"{message}{both}" in told.out + told.err
    told = project.agac("plan", "-a", "reviews", code=0)
    assert "is asked without" not in told.out + told.err

"""Tools of stages: named by cards, stages and agac.yml, told to models, stored with a run and read back."""

import os
from dataclasses import replace
from typing import Any

import pytest
from support.tree import Tree

from agac.core.errors import UsageError
from agac.core.keys import canonical, digest
from agac.plan.changes import changes_of
from agac.plan.diff import stage_changes
from agac.plan.plan import Plan, Selection, make_plan
from agac.plan.resolved_models import resolve_models
from agac.plan.restored_plan import restored_plan
from agac.plan.run_settings import run_settings
from agac.plan.stage import PlannedStage
from agac.providers.known_providers import SHIPPED
from agac.spec import paths, project_files
from agac.spec.loader import load_workflow
from agac.spec.mcp_lock import connection
from agac.spec.paths import RemoteContent
from agac.spec.project import Overrides
from agac.spec.tools import ToolRules

TOOLS = '''
def search(query: str) -> str:
    """Searches."""
    return query


async def fetch(url: str, size: int = 10) -> dict:
    """Fetches."""
    return {"url": url}
'''
HEAD = "input: {path: data/reviews.csv}\n"


def planned(tree: Tree, *stages: str, overrides: Overrides | None = None) -> Plan:
    lines = "".join(f"  - {one}\n" for one in stages)
    workflow, problems = tree.load(f"{HEAD}stages:\n{lines}", overrides)
    assert workflow is not None
    assert not problems, list(map(str, problems))
    models, problems = resolve_models(workflow, SHIPPED)
    assert not problems, list(map(str, problems))
    return make_plan(workflow, models, tree.root, Selection(), None)


def agent(tree: Tree, *stages: str, **how: Any) -> PlannedStage:
    return planned(tree, *stages, **how).asking[0]


def test_functions_are_tools_wherever_they_are_named(tree: Tree) -> None:
    tree.write("tools/web.py", TOOLS)
    tree.write("agentcards/own.py", TOOLS.replace("search", "look"))
    tree.write("agac.yml", "defaults: {model: simulator/small}\ntools: {search: {timeout: 5s, rate: 2}}\n")
    front = "request_params: {maxIterations: 3, parallel_tool_calls: false, tool_result_mode: passthrough}"
    tree.write(
        "agentcards/c.md",
        f"---\nfunction_tools: [own.py:look, {{entrypoint: tools/web.py:search}}]\n{front}\n---\nX.\n",
    )
    stage = agent(tree, "{name: a, agent: c, tools: {tools/web.py:fetch: {max_chars: 500}, search: {cacheable: true}}}")
    assert stage.agent_spec is not None
    assert [(one.name, one.kind, one.source, one.max_chars) for one in stage.agent_spec.tools] == [
        ("fetch", "function", "tools/web.py:fetch", 500),
        ("look", "function", "agentcards/own.py:look", 16_000),
        ("search", "function", "tools/web.py:search", 16_000),
    ]
    assert stage.agent_spec.tools[0].parameters["required"] == ["url"]
    assert (stage.agent_spec.card, stage.agent_spec.result_mode, stage.agent_spec.parallel) == (
        "c",
        "passthrough",
        False,
    )
    assert stage.settings.tooling.max_turns == 3
    assert stage.settings.tooling.rules["search"] == ToolRules(timeout=5.0, rate=2.0, cacheable=True)
    plain = agent(tree, "{name: a, tools: [tools/web.py:search], max_turns: 7}")
    assert plain.settings.tooling.max_turns == 7
    bounded = agent(tree, "{name: a, tools: [tools/web.py:search]}", overrides=Overrides(max_turns=2))
    assert bounded.settings.tooling.max_turns == 2
    assert agent(tree, "{name: a}").agent_spec is None


def test_a_stored_plan_has_the_same_agents(tree: Tree) -> None:
    tree.write("tools/web.py", TOOLS)
    tree.write("agentcards/child.md", "---\ntool_only: true\nfunction_tools: tools/web.py:fetch\n---\nBe a child.\n")
    tree.write(
        "agentcards/c.md", "---\nagents: [child]\nfunction_tools: tools/web.py:search\nmax_parallel: 2\n---\nX.\n"
    )
    plan = planned(tree, "{name: a, agent: c, tools: {search: {retries: 2}}}", "{name: b}")
    stage = plan.asking[0]
    assert [(one.name, one.index, one.prompt.text) for one in stage.children] == [("a/child", 2, "${message}")]
    assert stage.agent_spec is not None
    assert [(one.name, one.kind, one.source) for one in stage.agent_spec.tools] == [
        ("agent__child", "agent", "child"),
        ("search", "function", "tools/web.py:search"),
    ]
    again = restored_plan("w", plan.body, run_settings(plan, tree.root), SHIPPED, tree.root)
    for one, other in ((stage, again.asking[0]), (stage.children[0], again.asking[0].children[0])):
        assert (one.agent_spec, one.settings, one.index) == (other.agent_spec, other.settings, other.index)
        assert one.prints.fingerprint(()) == other.prints.fingerprint(())
    tree.write("agentcards/child.md", "---\ntool_only: true\nfunction_tools: tools/web.py:fetch\n---\nBe another.\n")
    other = agent(tree, "{name: other, agent: c, tools: {search: {retries: 3}}}", "{name: b}")
    assert other.prints.fingerprint(()) != stage.prints.fingerprint(()), "what a child is told decides answers"
    assert canonical(plan.body).count("tools/web.py:search") == 1


LOCK = """{"servers": {"docs": {"target": "https://docs.example/mcp", "server": "d 1", "protocol": "1",
  "instructions": "Ask once.", "tools": {
    "search": {"description": "S", "input_schema": {"type": "object", "properties": {"q": {"type": "string"}}}},
    "fetch": {"description": "F", "input_schema": {"type": "object", "properties": {}}}}}}}"""


def test_servers_are_known_by_what_was_locked(tree: Tree) -> None:
    tree.env = {"DOCS_TOKEN": "canary-4711"}
    connect = 'mcp_connect: {docs: {target: "https://docs.example/mcp", access_token: "${DOCS_TOKEN}"}}'
    tree.write("tools/web.py", TOOLS)
    tree.write("agentcards/c.md", f"---\n{connect}\ntools: {{docs: [s*, fetch]}}\n---\n{{{{serverInstructions}}}}\n")
    tree.write("agentcards/c.lock.json", LOCK)
    plan = planned(tree, "{name: a, agent: c, tools: {tools/web.py:fetch: {}, docs: {side_effects: false}}}")
    [stage] = plan.asking
    assert stage.agent_spec is not None
    assert stage.system == "Ask once."
    assert [(one.name, one.source) for one in stage.agent_spec.tools] == [
        ("docs__fetch", "docs:fetch"),
        ("fetch", "tools/web.py:fetch"),
        ("search", "docs:search"),
    ]
    assert stage.settings.tooling.rules["search"] == ToolRules(side_effects=False)
    assert stage.settings.tooling.servers[0].headers == {"Authorization": "Bearer ${DOCS_TOKEN}"}
    assert "canary" not in canonical([plan.body, run_settings(plan, tree.root)])
    tree.write(
        "agac.yml", "defaults: {model: simulator/small}\nmcp: {docs: {target: 'https://docs.example/mcp', pool: 2}}\n"
    )
    tree.write("agentcards/docs.lock.json", LOCK)
    stage = agent(tree, "{name: a, tools: ['docs:search']}")
    assert stage.agent_spec is not None
    assert [one.name for one in stage.agent_spec.tools] == ["search"]
    assert (stage.settings.tooling.servers[0].pool, stage.settings.tooling.rules["search"].side_effects) == (2, True)


def test_a_card_is_told_what_the_servers_of_its_stage_say(tree: Tree) -> None:
    tree.write("agac.yml", "defaults: {model: simulator/small}\nmcp: {docs: {target: 'https://docs.example/mcp'}}\n")
    tree.write("agentcards/docs.lock.json", LOCK)
    tree.write("agentcards/c.md", "---\nname: c\n---\nBe kind. {{serverInstructions}}\n")
    assert agent(tree, "{name: a, agent: c, tools: ['docs:search']}").system == "Be kind. Ask once."
    assert agent(tree, "{name: a, agent: c}").system == "Be kind. "
    tree.write("agentcards/docs.lock.json", "{}")
    problems = tree.problems(HEAD + "stages: [{name: a, agent: c, tools: [docs]}]\n")
    assert any("{{serverInstructions}}" in one and "agac card lock docs" in one for one in problems)


def test_a_plan_says_where_answers_are_reused_although_a_file_changed(tree: Tree) -> None:
    for keys, said in (("tools: [read_file]", True), ("tools: [read_file], reads: ['data/*']", False)):
        _, problems = tree.load(HEAD + f"stages: [{{name: a, {keys}}}]\n")
        assert [(one.severity, "answers are reused although" in one.message) for one in problems] == [
            ("warning", True)
        ] * said


def test_a_card_with_the_login_of_the_hub_loads_and_needs_its_token(tree: Tree) -> None:
    hub = "https://huggingface.co/mcp?login"
    tree.write("agentcards/c.md", f"---\nname: c\nmcp_connect: [{{target: '{hub}', name: hub}}]\n---\nFind.\n")
    [problem] = tree.problems(HEAD + "stages: [{name: a, agent: c}]\n")
    assert "agac card lock c" in problem, "what the server offers is not known"
    tree.write("agentcards/c.lock.json", LOCK.replace("docs", "hub").replace("https://hub.example/mcp", hub))
    stage = agent(tree, "{name: a, agent: c}")
    assert stage.agent_spec is not None
    assert [one.name for one in stage.agent_spec.tools] == ["fetch", "search"]
    [server] = stage.settings.tooling.servers
    with pytest.raises(UsageError, match="HF_TOKEN is not set") as refused:
        connection(server, tree.root, {})
    assert "Set HF_TOKEN, or add it to .env" in (refused.value.remedy or "")
    found = connection(server, tree.root, {"HF_TOKEN": "hf_12345678"})
    assert (found.url, found.headers) == ("https://huggingface.co/mcp", {"Authorization": "Bearer hf_12345678"})


SKILL = "---\nname: refund\ndescription: How refunds\n  work.\n---\nRefund.\n"


def test_skills_facts_and_reads_decide_answers(tree: Tree) -> None:
    tree.env = {"SOURCE_DATE_EPOCH": "1763596800"}
    tree.write("skills/refund/SKILL.md", SKILL)
    tree.write("agentcards/notes.md", "A note.\n")
    tree.write("docs/a.md", "one")
    body = "{{agentName}} {{agentCardDir}} {{file:notes.md}} {{file_silent:gone.md}} {{tone}} {{currentDate}}"
    tree.write("agentcards/c.md", f"---\nskills: skills\nvariables: {{tone: kind}}\n---\n{body}\n")
    text = HEAD + "stages: [{name: a, agent: c, reads: ['docs/*']}]\n"

    def prints() -> bytes:
        workflow, problems = tree.load("vars: {currentDate: today}\n" + text)
        assert workflow is not None
        assert not problems, list(map(str, problems))
        models, _ = resolve_models(workflow, SHIPPED)
        [stage] = make_plan(workflow, models, tree.root, Selection(), None).asking
        assert stage.agent_spec is not None
        assert [(one.name, one.kind) for one in stage.agent_spec.tools] == [("read_skill", "skill")]
        assert stage.system is not None
        assert stage.system.startswith("c agentcards A note.  kind today\n\nSkills that you may read")
        assert stage.system.endswith("- refund: How refunds work.")
        return stage.prints.fingerprint(())

    first = prints()
    assert prints() == first
    tree.write("docs/a.md", "two")
    second = prints()
    assert second != first
    tree.write("skills/refund/more.md", "More.")
    assert prints() != second
    [problem] = tree.problems(text)
    assert "write `vars: {currentDate: 20 November 2025}`" in problem


def test_files_that_tools_read_are_hashed_in_pieces_and_one_that_cannot_be_read_is_a_problem(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write("tools/web.py", TOOLS)
    tree.write("docs/a.md", "é one\n" * 9)
    text = HEAD + "stages: [{name: a, tools: ['tools/web.py:fetch'], reads: ['docs/*']}]\n"
    whole = {"docs/a.md": digest((tree.root / "docs/a.md").read_bytes().decode("latin-1")).hex()}
    monkeypatch.setattr(project_files, "_PIECE", 4)
    assert project_files.files_hash(tree.root, ["docs/*"]) == digest(canonical(whole)).hex()

    def broken(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(project_files, "descriptor_of", broken)
        with pytest.raises(paths.Refused, match=r"docs/a.md cannot be read: Permission denied; name files that can be"):
            project_files.files_hash(tree.root, ["docs/*"])
    assert not tree.problems(text)
    (tree.root / "docs/a.md").chmod(0)
    if not os.access(tree.root / "docs/a.md", os.R_OK):  # which it is for root
        [problem] = tree.problems(text)
        assert "docs/a.md cannot be read: Permission denied" in problem


def test_a_stage_names_skills_without_a_card(tree: Tree) -> None:
    tree.write("skills/refund/SKILL.md", SKILL)
    tree.write("agentcards/c.md", "---\nname: c\nskills: skills\n---\nAnswer.\n")
    tree.write("agentcards/d.md", "---\nname: d\n---\nAnswer.\n")
    for keys, system in (
        ("skills: skills", "Skills that"),
        ("skills: [skills/refund], instructions: Be kind.", "Be kind.\n\nSkills that"),
        ("skills: skills, agent: d", "Answer.\n\nSkills that"),
    ):
        stage = agent(tree, f"{{name: a, {keys}}}")
        assert stage.agent_spec is not None
        assert [(one.name, one.kind) for one in stage.agent_spec.tools] == [("read_skill", "skill")]
        assert (stage.system or "").startswith(system)
        assert (stage.system or "").count("- refund: How refunds work.") == 1
    for keys, said in (("skills: nowhere", "holds no skills"), ("skills: skills, agent: c", "names skills too")):
        [problem] = tree.problems(HEAD + f"stages: [{{name: a, {keys}}}]\n")
        assert said in problem
        assert "wf.yml:" in problem or "workflows/" in problem


def test_the_mode_of_tools_decides_answers_but_for_recording(tree: Tree) -> None:
    tree.write("tools/web.py", TOOLS)
    tree.write("recorded.jsonl", '{"tool": "search", "arguments": {"query": "x"}, "result": "y"}\n')
    line = "{name: a, tools: [tools/web.py:search], tool_stubs: {search: {file: recorded.jsonl}}}"
    live, record, stub, replay = (
        agent(tree, line, overrides=Overrides(tools_mode=mode, replay=3 if mode == "replay" else None))
        for mode in ("live", "record", "stub", "replay")
    )
    assert len({one.prints.fingerprint(()) for one in (live, record, stub, replay)}) == 3
    assert live.agent_spec == record.agent_spec
    assert [one.settings.tooling.record for one in (live, record)] == [False, True]
    assert replay.settings.tooling.replay == 3
    assert stub.agent_spec is not None
    assert stub.agent_spec.stubs["search"]["file"] == "recorded.jsonl"  # type: ignore[index,call-overload]
    tree.write("recorded.jsonl", '{"tool": "search", "arguments": {"query": "x"}, "result": "z"}\n')
    assert agent(tree, line, overrides=Overrides(tools_mode="stub")).agent_spec != stub.agent_spec
    typed = agent(tree, line, overrides=Overrides(tool_stubs={"search": "fixed"})).agent_spec
    assert typed is not None
    assert (typed.mode, typed.stubs) == ("stub", {"search": "fixed"})
    with pytest.raises(UsageError, match="tool_stubs has 'serch', which is no tool of a"):
        agent(tree, "{name: a, tools: [tools/web.py:search], tools_mode: stub, tool_stubs: {serch: 1}}")


@pytest.mark.parametrize(
    ("keys", "needs"),
    [
        ("{cache: persist}", "cacheable: true"),
        ("{ttl: 1h}", "cacheable: true"),
        ("{cacheable: true, side_effects: true}", "side_effects: false"),
    ],
)
def test_a_tool_that_would_be_cached_in_vain_is_refused(tree: Tree, keys: str, needs: str) -> None:
    tree.write("tools/web.py", TOOLS)
    with pytest.raises(UsageError, match=f"search is cached only with {needs}"):
        agent(tree, f"{{name: a, tools: {{'tools/web.py:search': {keys}}}}}")


def test_two_tools_of_one_name_and_a_function_that_was_edited_are_refused(tree: Tree) -> None:
    tree.write("tools/web.py", TOOLS)
    tree.write("tools/other.py", TOOLS)
    with pytest.raises(UsageError, match="two tools are called 'search': "):
        agent(tree, "{name: a, tools: [tools/web.py:search, tools/other.py:search]}")
    plan = planned(tree, "{name: a, tools: [tools/web.py:search]}")
    tree.write("tools/web.py", TOOLS + "\n# edited\n")
    assert agent(tree, "{name: a, tools: [tools/web.py:search]}").agent_spec != plan.asking[0].agent_spec


def test_what_differs_of_tools_is_named(tree: Tree) -> None:
    tree.write("tools/web.py", TOOLS)
    bodies = [
        planned(tree, f"{{name: a, tools: [{tools}]}}", overrides=Overrides(tools_mode=mode)).body
        for tools, mode in (("tools/web.py:search", "live"), ("tools/web.py:fetch", "stub"))
    ]
    assert [one.text for one in changes_of(*bodies)] == [
        "tool fetch of a is new",
        "tool search of a is gone",
        "tools of a: mode",
    ]
    [old], [new] = (body["stages"] for body in bodies)
    assert stage_changes(old, new, ({}, {})) == ["tools changed"]
    files = old | {"agent": old["agent"] | {"reads": "00"}}
    assert stage_changes(old, files, ({}, {})) == ["reads changed"]


def test_a_provider_without_tools_and_a_key_of_another_account_are_refused(tree: Tree) -> None:
    tree.write("agentcards/c.md", "---\napi_key: ${MY_KEY}\nskills: skills\n---\nX.\n")
    tree.write("skills/refund/SKILL.md", SKILL)
    workflow = tree.workflow(HEAD + "stages: [{name: a, agent: c, model: openai/gpt-4.1}]\n")
    providers = {"openai": replace(SHIPPED["openai"], tools=False)}
    assert [one.message.partition(";")[0] for one in resolve_models(workflow, providers)[1]] == [
        "openai offers its models no tools, and the stage 'a' has some",
        "is not the variable of the key of openai",
    ]
    tree.write("agentcards/c.md", "---\napi_key: ${OPENAI_API_KEY}\nskills: skills\n---\nX.\n")
    workflow = tree.workflow(HEAD + "stages: [{name: a, agent: c, model: openai/gpt-4.1}]\n")
    assert resolve_models(workflow, SHIPPED)[1] == []


CARDS = {  # cards of other programs, as they are written there
    "tagger.md": "---\nname: tagger\nmodel: openai/gpt-4.1-mini\nrequest_params: {max_tokens: 20, topP: 1}\n---\nX.",
    "grader.yaml": "name: grader\ninstruction: Grade the answer from 1 to 5.\nmodel: sonnet\nuse_history: false\n",
    "finder.md": '---\nname: finder\nmcp_connect: {docs: {target: "https://docs.example/mcp", headers: {Authorization: '
    '"Bearer ${DOCS_TOKEN}"}}}\ntools: {docs: [search, fetch]}\n---\nGive one recommendation.',
    "router.md": "---\nrequest_params: {tool_result_mode: passthrough, max_iterations: 1, parallel_tool_calls: false}\n"
    "function_tools: [./stubs.py:search, ./stubs.py:fetch]\n---\nChoose exactly one tool.",
    "draft.md": "---\ntool_only: true\nshell: false\nskills: []\nsubagents: false\n---\nDraft.",
}


@pytest.mark.parametrize("name", [*CARDS])
def test_cards_of_other_programs(tree: Tree, name: str) -> None:
    tree.write(f"agentcards/{name}", CARDS[name])
    tree.write("agentcards/finder.lock.json", LOCK)
    tree.write("agentcards/stubs.py", TOOLS)
    stem = name.partition(".")[0]
    tree.write("agentcards/caller.md", f"---\nagents: [{stem}]\n---\nX.\n")
    workflow, problems = tree.load(HEAD + f"stages: [{{name: a, agent: {'caller' if stem == 'draft' else stem}}}]\n")
    assert workflow is not None
    assert not problems, list(map(str, problems))
    if stem == "router":
        models, _ = resolve_models(workflow, SHIPPED)
        [stage] = make_plan(workflow, models, tree.root, Selection(), None).asking
        assert stage.agent_spec is not None
        assert [one.source for one in stage.agent_spec.tools] == [
            "agentcards/stubs.py:fetch",
            "agentcards/stubs.py:search",
        ]
        assert (stage.settings.tooling.max_turns, stage.agent_spec.result_mode) == (1, "passthrough")


def test_a_remote_card_brings_functions_where_it_is_trusted(tree: Tree) -> None:
    tree.write("tools/web.py", TOOLS)
    tree.write("agentcards/far.lock.json", LOCK)
    connect = "mcp_connect: {docs: {target: 'https://docs.example/mcp'}}"
    copy = tree.write("cache/x1", f"---\nname: far\n{connect}\nfunction_tools: tools/web.py:fetch\n---\nX.\n")
    found = RemoteContent("https://h.example/far.md", "x1", "h", path=copy)
    tree.write("workflows/w.yml", HEAD + "stages: [{name: a, agent: 'https://h.example/far.md'}]\n")
    project = replace(tree.project(), fetch=lambda reference, what: (found,))
    _, [problem] = load_workflow(project, "w")
    assert "a remote card brings no functions" in problem.message
    workflow, problems = load_workflow(project, "w", Overrides(trust_card=True))
    assert workflow is not None
    assert problems == []
    assert [one.source for one in workflow.stages[0].named_tools] == [
        "tools/web.py:fetch", "docs:fetch", "docs:search",
    ]  # fmt: skip

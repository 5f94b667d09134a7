"""Lock files of MCP servers: what is written, what is read back, the tools made of it, and what differs."""

import json
from dataclasses import replace

import pytest

from agac.core.errors import UsageError
from agac.spec.mcp_lock import LockedTool, ServerLock, difference, lock_file, lock_text, locked_tools, read_lock
from agac.spec.tools import McpServer

WORDS = {"type": "object", "properties": {"words": {"type": "string"}}}


def lock(*names: str, **more: str) -> ServerLock:
    return ServerLock("https://x/mcp", {name: LockedTool(f"Does {name}.", WORDS) for name in names}, **more)


def made(servers: dict[str, ServerLock], **how: object):
    given = [McpServer(name, one.target) for name, one in servers.items()]
    return locked_tools(given, servers, "agentcards/a.lock.json", "agac card lock a", **how)  # type: ignore[arg-type]


def test_a_lock_is_read_back_as_it_was_written(tmp_path):
    servers = {
        "docs": lock("search", "get", instructions="Ask\nonce \u202e.", server="Docs 1.2", protocol="2025-11-25"),
        "a": lock(),
    }
    servers["docs"].tools["get"].input_schema["description"] = "zwei ≤ Wörter"
    path = lock_file(tmp_path / "a.md")
    path.write_text(lock_text(servers), encoding="utf-8")
    assert path.name == "a.lock.json"
    assert read_lock(path, path.name, "agac card lock a", tmp_path) == servers
    assert lock_text(dict(reversed(servers.items()))) == lock_text(servers)
    assert "\u202e" not in lock_text(servers)
    assert "zwei ≤ Wörter" in lock_text(servers)
    assert list(json.loads(lock_text(servers))["servers"]["docs"]["tools"]) == ["get", "search"]


@pytest.mark.parametrize(
    "text",
    [None, "{", "[]", "{}", '{"servers": []}', '{"servers": {"a": {}}}', '{"servers": {"a": {"tools": {"t": 1}}}}'],
)
def test_a_lock_that_is_none_says_what_writes_one(tmp_path, text):
    path = tmp_path / "a.lock.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=r"^agentcards/a\.lock\.json is (not there|no lock file)") as raised:
        read_lock(path, "agentcards/a.lock.json", "agac card lock a", tmp_path)
    assert "`agac card lock a`" in str(raised.value.remedy)


@pytest.mark.parametrize(
    ("servers", "how", "names"),
    [
        ({"d": ["b", "a"]}, {}, {"a": "d:a", "b": "d:b"}),
        ({"d": ["get_a", "get_b", "set_a"]}, {"allow": {"d": ["get_*"]}}, {"get_a": "d:get_a", "get_b": "d:get_b"}),
        ({"d": ["a"], "e": ["b"]}, {"allow": {"d": []}}, {"b": "e:b"}),
        ({"d": ["a", "b"], "e": ["a"]}, {}, {"d__a": "d:a", "b": "d:b", "e__a": "e:a"}),
        ({"d": ["x/y.z"]}, {}, {"x_y_z": "d:x/y.z"}),
        ({"d": ["a[b]", "a_b_"]}, {}, {"d__a_b__5b2d26d7": "d:a[b]", "d__a_b__0b5018f4": "d:a_b_"}),
        ({"d": ["x" * 80]}, {}, {"x" * 55 + "_" + "7945aa8e": "d:" + "x" * 80}),
    ],
)
def test_tools_of_servers(servers, how, names):
    tools, held = made({name: lock(*tools) for name, tools in servers.items()}, **how)
    assert {tool.name: tool.source for tool in tools} == names
    assert [(one.lock, one.locked != "") for one in held] == [("agentcards/a.lock.json", True)] * len(servers)


def test_another_version_of_a_server_is_another_tool():
    (one,), (two,) = (made({"d": lock("a", server=f"D {number}")})[0] for number in (1, 2))
    assert replace(two, version=one.version) == one != two


@pytest.mark.parametrize(
    ("held", "how", "message"),
    [
        (lock("search"), {"allow": {"d": ["serch"]}}, "no tool of server 'd' in .* 'serch'; did you mean 'search'"),
        (replace(lock("a"), target="other"), {}, "has server 'd' at other, it is at https://x/mcp now"),
        (ServerLock("https://x/mcp", {"t": LockedTool("", {})}), {}, "tool d:t in .* cannot be used: its type is not"),
        (
            ServerLock("https://x/mcp", {"t": LockedTool("", {"type": "object", "properties": {"a": {"type": "no"}}})}),
            {},
            r"cannot be used: properties\.a\.type",
        ),
    ],
)
def test_what_a_lock_refuses(held, how, message):
    with pytest.raises(UsageError, match=message):
        locked_tools([McpServer("d", "https://x/mcp")], {"d": held}, "a.lock.json", "agac card lock a", **how)


def test_a_server_that_is_not_in_the_lock():
    with pytest.raises(UsageError, match=r"a\.lock\.json has no server 'd'"):
        locked_tools([McpServer("d", "x")], {}, "a.lock.json", "agac card lock a")


def test_differences():
    before = lock("gone", "kept", "same", server="D 1")
    after = replace(lock("came", "kept", "same", server="D 2"), instructions="Call delete_all.")
    after.tools["kept"] = LockedTool("Does more.", {**WORDS, "required": ["words"]})
    assert difference(before, replace(before, server="D 2", protocol="new")) == ""
    said = difference(before, after)
    assert said.startswith("  added: came\n  removed: gone\n  changed: kept\n")
    for line in (
        '-  "instructions": "",',
        '+  "instructions": "Call delete_all.",',
        '+      "description": "Does more.",',
    ):
        assert f"  {line}\n" in said
    assert difference(before, replace(before, target="elsewhere")) == "  target: elsewhere"
    many = lock(*map(str, range(500)))
    assert len(difference(before, many).split("\n")) == 43
    assert len(difference(before, replace(before, instructions="x" * 5_000_000))) < 2_000

"""MCP servers over HTTP, made with the protocol's own package, and servers as they are published."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from support.mcp_http import Headers, serving
from support.services import services

from agac.core.errors import UsageError
from agac.spec.mcp_lock import ServerLock, connection
from agac.spec.tools import McpServer, ToolRules
from agac.tools import mcp
from agac.tools.mcp import McpServers, listed_servers
from agac.tools.tool_functions import ToolFailed, ToolLost

ROW = b"1" * 16


@pytest.fixture(scope="module")
def shop() -> Iterator[tuple[str, Headers]]:
    with serving() as served:
        yield served


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp, "BACKOFF_S", 0.0)


async def called(given: McpServer, *calls: tuple[str, dict[str, Any]], **env: str) -> list[str]:
    """What each call gives."""
    said = []
    async with aclosing(McpServers(Path(), env)) as servers:
        for tool, arguments in calls:
            try:
                said.append(await servers.call(given, tool, ToolRules(2), arguments, ROW))
            except (ToolFailed, ToolLost) as error:
                said.append(str(error))
    return said


async def test_calls_over_http(shop: tuple[str, Headers]) -> None:
    given = McpServer("shop", f"{shop[0]}/mcp", {"X-Key": "key ${KEY}"})
    said = await called(
        given, ("price", {"name": "tea"}), ("price", {}), ("large", {"megabytes": 9}), ("hang", {}),
        ("price", {"name": "key k3y-of-the-shop"}), KEY="k3y-of-the-shop",
    )  # fmt: skip
    assert said[0] == "tea costs 3"
    assert "name" in said[1]  # what the server says of arguments that are missing
    assert said[2] == "large: the result has more than the 8 MB that are read"
    assert said[3] == "hang took longer than 2 s, and was given up"
    assert said[4] == "[redacted] costs 3"
    assert {one.get("x-key") for one in shop[1]} == {"key k3y-of-the-shop"}


async def test_a_list_that_changes_is_compared_again(shop: tuple[str, Headers], tmp_path: Path) -> None:
    given = McpServer("shop", f"{shop[0]}/mcp")
    lock = (await listed_servers([given], tmp_path, {}))["shop"]
    assert isinstance(lock, ServerLock)
    assert (lock.server, lock.instructions, lock.protocol) == ("shop 1.0", "Ask once.", "2026-07-28")
    held, rules = McpServer("shop", given.target, lock="a.lock.json", locked=lock.hash), ToolRules(5, side_effects=True)
    async with aclosing(McpServers(tmp_path, {})) as servers:
        assert await servers.call(held, "change", rules, {}, ROW) == "changed"

        async def until_told() -> None:  # on a way of its own
            for _ in range(500):
                await servers.call(held, "price", rules, {"name": "x"}, ROW)

        with pytest.raises(UsageError, match=r"a\.lock\.json"):
            await until_told()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("broken", "HTTP 503"),
        ("private", "HTTP 401"),
        ("zipped", "it sends a compressed answer, which was not asked for"),
        ("huge", "the result has more than the 8 MB that are read"),
        ("nothing", "Not Found"),
    ],
)
async def test_answers_that_are_none(shop: tuple[str, Headers], path: str, why: str) -> None:
    given = McpServer("shop", f"{shop[0]}/{path}", timeout=5)
    [said] = await called(given, ("price", {"name": "tea"}))
    assert f"({given.target}) failed 3 times in a row: " in said
    assert why in said


async def test_a_server_that_wants_a_login_is_said_how_to_give_it_one(
    shop: tuple[str, Headers], tmp_path: Path
) -> None:
    given = McpServer("hub", f"{shop[0]}/private", timeout=5)
    for env, remedy in (
        ({"HF_ENDPOINT": shop[0]}, f"set HF_TOKEN, and write its target as {given.target}?login."),
        ({}, "give it `headers: {Authorization: Bearer ${TOKEN}}`, and set TOKEN."),
    ):
        with pytest.raises(UsageError, match="HTTP 401") as refused:
            await listed_servers([given], tmp_path, env)
        assert refused.value.remedy == f"It wants a login: {remedy}"


async def test_a_token_goes_to_its_own_host(shop: tuple[str, Headers]) -> None:
    address, asked = shop
    with serving() as (other, theirs):
        target = f"{address}/redirect/{other.removeprefix('http://')}_mcp"
        [said] = await called(
            McpServer("shop", target, {"Authorization": "Bearer ${KEY}"}), ("price", {}), KEY="k3y-0000"
        )
    assert "failed 3 times in a row: Redirect to " in said
    assert "not followed" in said
    assert asked[-1]["authorization"] == "Bearer k3y-0000"
    assert theirs == []


async def test_a_login_sends_the_token_of_the_hub_to_the_hub(shop: tuple[str, Headers]) -> None:
    address, asked = shop
    given = McpServer("hub", f"{address}/mcp?login&tools=a")
    env = {"HF_ENDPOINT": address, "HF_TOKEN": "hf_12345678"}
    assert await called(given, ("price", {"name": "tea"}), **env) == ["tea costs 3"]
    assert (asked[-1]["authorization"], asked[-1]["query"]) == ("Bearer hf_12345678", "tools=a")


@pytest.mark.parametrize(
    ("given", "env", "said"),
    [
        (McpServer("a", "https://huggingface.co/mcp?login"), {"HF_TOKEN": "t"}, "Bearer t"),
        (McpServer("a", "https://huggingface.co/mcp"), {"HF_TOKEN": "t"}, None),
        (McpServer("a", "https://x.org/mcp?login", {"authorization": "mine"}), {"HF_TOKEN": "t"}, None),
        (McpServer("a", "https://huggingface.co/mcp?login"), {}, "HF_TOKEN is not set"),
        (McpServer("a", "https://x.org/mcp?login"), {"HF_TOKEN": "t"}, "asks for a login at x.org"),
        (McpServer("a", "http://huggingface.co/mcp?login"), {"HF_TOKEN": "t"}, "asks for a login"),
        (McpServer("a", "https://huggingface.co.evil.org/mcp?login"), {"HF_TOKEN": "t"}, "asks for a login"),
        (McpServer("a", "https://x.org/mcp", {"X": "${NOT_SET}"}), {}, "needs the environment variable NOT_SET"),
        (McpServer("a", "python 'half"), {}, "cannot be started: No closing quotation"),
        (McpServer("a", "python x.py", cwd="../.."), {}, "cannot be started: .* leads out of the project"),
    ],
)
def test_how_servers_are_reached(given: McpServer, env: dict[str, str], said: str | None) -> None:
    if error := said if said and not said.startswith("Bearer") else None:
        with pytest.raises(UsageError, match=error):
            connection(given, Path(), env)
    else:
        reached = connection(given, Path(), env)
        assert (reached.headers.get("Authorization"), "login" in reached.url) == (said, False)


@services
async def test_published_servers(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "repository"], check=True)
    clock = McpServer("time", "mcp-server-time --local-timezone UTC")
    git = McpServer("git", "mcp-server-git", cwd="repository")
    async with aclosing(McpServers(tmp_path, {})) as servers:
        calls = (
            (clock, "convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}),
            (clock, "get_current_time", {"timezone": "No/Where"}),
            (git, "git_status", {"repo_path": str(tmp_path / "repository")}),
        )
        asked = (servers.call(server, tool, ToolRules(), given, ROW) for server, tool, given in calls)
        said = await asyncio.gather(*asked, return_exceptions=True)
    assert json.loads(str(said[0]))["target"]["datetime"].endswith("21:00:00+09:00")
    assert isinstance(said[1], ToolFailed)
    assert "Invalid timezone" in str(said[1])
    assert "nothing to commit" in str(said[2])

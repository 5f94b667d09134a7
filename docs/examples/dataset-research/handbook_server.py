# ruff: noqa: INP001
"""An MCP server with what the shop knows (it needs the package mcp)."""

from mcp.server import MCPServer

HANDBOOK = {
    "tents": "Breath condenses on the inner side of a tent at night; vents left open keep it dry.",
    "stoves": "Propane burns down to 40 degrees below zero, isobutane to 10, butane not below freezing.",
    "boots": "Soles of polyurethane crumble after some eight years, worn or not.",
}
server = MCPServer("handbook")


@server.tool()
def look_up(topic: str) -> str:
    """Gives what the handbook says about a topic."""
    found = [text for name, text in HANDBOOK.items() if name in topic.lower()]
    return "\n".join(found) or f"the handbook has nothing about it; its topics are {', '.join(HANDBOOK)}"


if __name__ == "__main__":
    server.run()

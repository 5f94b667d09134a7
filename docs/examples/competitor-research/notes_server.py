# ruff: noqa: INP001
"""An MCP server with the notes of companies.csv (it needs the package mcp)."""

import csv
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("notes")


@server.tool()
def notes_about(company: str) -> str:
    """Gives what was noted about a company."""
    with Path("companies.csv").open(newline="", encoding="utf-8") as file:
        found = [row["notes"] for row in csv.DictReader(file) if row["company"].lower() in company.lower()]
    return "\n".join(filter(None, found)) or "nothing was noted"


if __name__ == "__main__":
    server.run()

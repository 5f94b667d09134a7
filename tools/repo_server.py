"""An MCP server over files of the project: lists them, finds words in them, reads them, and can do nothing else.

    python3 tools/repo_server.py FOLDER…

It runs in the project's folder and serves the text files below these folders. It speaks the protocol by itself, a line
of JSON a message, so that any Python runs it; one that is larger is better made with the package `mcp`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

SUFFIXES = {".csv", ".json", ".jsonl", ".md", ".py", ".txt", ".yml"}
LINES, FOUND = 200, 20
"""Lines of a file that are read at a time, and lines that are found."""


def served() -> dict[str, Path]:
    """The files by the names that the model sees. Nothing else can be read, whatever name is asked for."""
    files = (path for folder in sys.argv[1:] for path in sorted(Path(folder).rglob("*")))
    kept = (path for path in files if path.suffix in SUFFIXES and path.is_file() and not path.is_symlink())
    return {path.as_posix(): path for path in kept if not any(part.startswith(".") for part in path.parts)}


def find_text(words: str) -> str:
    """The lines that have most of the words, as `file:line: text`."""
    wanted = {word.lower() for word in re.findall(r"\w{4,}", words)}
    found = [
        (-len(wanted & set(re.findall(r"\w{4,}", line.lower()))), f"{name}:{number}: {line.strip()}")
        for name, path in served().items()
        for number, line in enumerate(path.read_text("utf-8", "replace").splitlines(), 1)
    ]
    best = sorted(one for one in found if one[0])[:FOUND]
    return "\n".join(line for _, line in best) or "no line has any of these words"


def list_files() -> str:
    """The names of all files, a line each."""
    return "\n".join(served())


def read_file(path: str, line: int = 1) -> str:
    """A file from a line on."""
    if path not in served():
        raise ValueError(f"there is no file {path!r}; list_files names all")
    lines = served()[path].read_text("utf-8", "replace").splitlines()[line - 1 :]
    more = [f"… {len(lines) - LINES} more lines, from line {line + LINES}"] if len(lines) > LINES else []
    return "\n".join(lines[:LINES] + more)


WORDS = {"type": "string", "description": "What to look for."}
PATH = {"type": "string", "description": "As list_files names it."}
TOOLS = {
    find_text: {"type": "object", "properties": {"words": WORDS}, "required": ["words"]},
    list_files: {"type": "object", "properties": {}},
    read_file: {
        "type": "object",
        "properties": {"path": PATH, "line": {"type": "integer", "minimum": 1, "default": 1}},
        "required": ["path"],
    },
}
"""Each tool with what it takes."""


def called(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """A tool's result, or what is wrong with the call."""
    try:
        text = {tool.__name__: tool for tool in TOOLS}[name](**arguments)
        return {"content": [{"type": "text", "text": text}]}
    except (KeyError, TypeError, ValueError, OSError) as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}


def answered(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    """The result of a request; None for a method that there is not."""
    if method == "initialize":
        about = {"name": "repo", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": about}
    if method == "tools/list":
        return {
            "tools": [
                {"name": tool.__name__, "description": tool.__doc__, "inputSchema": takes}
                for tool, takes in TOOLS.items()
            ]
        }
    if method == "tools/call":
        return called(params["name"], params.get("arguments") or {})
    return {} if method == "ping" else None


def main() -> None:
    """Answers the requests of standard input, one a line."""
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message or "method" not in message:
            continue  # a notification wants no answer
        result = answered(message["method"], message.get("params") or {})
        body = {"error": {"code": -32601, "message": "Method not found"}} if result is None else {"result": result}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **body}), flush=True)


if __name__ == "__main__":
    main()

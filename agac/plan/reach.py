"""What a stored run would start, import and connect to: a run that another machine gave may name
no more of it than the files of the project do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agac.core.keys import canonical


def reach(definition: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, str]:
    """Everything by which the stages of a run, by its definition and its settings
    (`plan.run_settings`), reach beyond asking models at the addresses of agac.yml: each thing as
    canonical JSON, with words for people. Raises LookupError, TypeError, ValueError and
    AttributeError for what agac does not store."""
    stages = zip(definition["stages"], settings["stages"], strict=True)
    return {
        canonical(thing): words for body, how in stages for words, thing in _of_stage(body, how)
    }


def _of_stage(body: Mapping[str, Any], how: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    function = body.get("operation", {}).get("python")
    if function:
        yield f"the function {function}", ["python", function]
    runtime = body.get("runtime")
    if runtime:
        yield f"the runtime {runtime.get('name')}", ["runtime", runtime]
    for tool in (body.get("agent") or {}).get("tools", ()):
        kind = tool["kind"]
        source = tool["source"]
        settings = tool.get("settings", {})
        yield f"the tool {source}", ["tool", kind, source, settings]
    tooling = how.get("tooling") or {}
    for server in tooling.get("servers", ()):
        yield f"the MCP server {server['name']} ({server['target']})", ["server", server]
    program = tooling.get("program")
    if program:
        yield f"the program {program.get('command')}", ["program", program]
    schema = how.get("python_schema")
    if schema:
        yield (
            f"the schema {schema['module']}.{schema['cls']}",
            ["schema", schema["module"], schema["cls"]],
        )
    for model in how.get("models", ()):
        backend = model.get("backend")
        if backend:
            yield f"the address {backend}", ["backend", model["provider"], backend]
    children = zip(body.get("children", ()), how.get("children", ()), strict=True)
    for child, inner in children:
        yield from _of_stage(child, inner)

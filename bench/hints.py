"""Agents of four turns on a simulated Dynamo with eight slots and a cache that holds few of their conversations, with
and without hints. Takes four minutes. Prints a table, or JSON.

python bench/hints.py [--json]
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any

from agentload import simulated, table

import agac
from agac.api import RunOptions

TOOL = '''\
import asyncio


async def look(q: str) -> str:
    """Looks something up."""
    await asyncio.sleep(0.8)
    return f"found {q} " + "word " * 200
'''


def run(rows: int, cache: int, query: str) -> dict[str, Any]:
    """What so many agents take, all of them open at once; what each took is told by the server."""
    flags = ["--slots", "8", "--tool-turns", "3", "--dynamo", "1.2", "--serving", f"cache={cache}"]
    with simulated(*flags) as base_url, tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "tools").mkdir()
        (root / "workflows").mkdir()
        (root / "agac.yml").write_text("{}", "utf-8")
        (root / "tools/t.py").write_text(TOOL, "utf-8")
        texts = (json.dumps({"id": f"{n}", "text": f"row {n}: " + f"private{n} " * 550}) for n in range(rows))
        (root / "rows.jsonl").write_text("\n".join(texts) + "\n", "utf-8")
        stage = {
            "name": "ask", "instructions": "Be kind. " * 1300, "prompt": "${text}", "tools": {"tools/t.py:look": {}},
            "max_tokens": 200, "backend": base_url.replace("http", "dynamo", 1) + query, "model": "small",
            "concurrency": rows,
        }  # fmt: skip
        workflow = {"input": {"path": "rows.jsonl", "id_field": "id"}, "stages": [stage], "max_open_rows": rows}
        (root / "workflows/load.yml").write_text(json.dumps(workflow), "utf-8")
        report = agac.run("load", RunOptions(concurrency=rows), project=root)
        assert report.exit_code == 0, report.summary["errors"]
        with urllib.request.urlopen(base_url.removesuffix("/v1") + "/account/served") as answer:
            served = json.load(answer)["requests"]
    times: dict[str, list[float]] = {}
    for one in served:
        times.setdefault(one["conversation"], []).extend((one["queued"], one["ended"]))
    (counted,) = report.summary["serving"]["engines"]
    moments = [moment for both in times.values() for moment in both]
    return {
        "agents": rows, "cache": cache, "hints": "yes" if query else "no", "calls": len(served),
        "wall_s": round(max(moments) - min(moments), 2),
        "agent_s": round(sum(max(one) - min(one) for one in times.values()) / len(times), 2),
        "prefix_hit": round(report.summary["serving"]["prefix_hit"], 3),
        "prefill_tokens": counted["prompt_tokens"] - counted["cached_tokens"],
    }  # fmt: skip


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args()
    loads = [(60, 60_000), (60, 1_000_000), (8, 60_000)]
    found = [run(*load, query) for load in loads for query in ("", "?version=1.2")]
    print(json.dumps(found) if given.json else table(found))


if __name__ == "__main__":
    main()

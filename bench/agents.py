"""20 agents with a slow tool on eight slots; and sessions with a long shared prefix. Prints two tables, or JSON. With
`--schema` agents that answer in a form, on servers that take no response format beside tools.

python bench/agents.py [--schema] [--json]
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from dataclasses import replace
from itertools import chain, repeat
from statistics import median
from typing import Any

from agentload import TOPICS, Load, Measured, engine, holding, package, reset, simulated, table

SLOTS, TOOL = 8, 0.4
PAPERS = list(chain.from_iterable(repeat(f"topic {n}", times) for n, times in enumerate(TOPICS, 1)))
AT_MOST = 1.08
"""Of the bound: agac's wall time."""


FORM = {
    "type": "object", "required": ["finding", "sources", "confidence"], "additionalProperties": False,
    "properties": {
        "finding": {"type": "string", "maxLength": 60},
        "sources": {"type": "integer", "minimum": 0, "maximum": 9},
        "confidence": {"enum": ["low", "medium", "high"]},
    },
}  # fmt: skip
"""Of an answer: `--schema`."""
FORM_AT_MOST = 1.05
"""Of the bound: agac's wall time of agents that answer in a form."""
PREFILL_AT_MOST = 26_348
"""Tokens that are computed for 20 agents of two turns that answer in a form, on the simulated H100."""


def bound(turn: float, agents: int = len(PAPERS), turns: int = 2) -> float:
    """The least that so many rows of so many turns with the tool between them take on eight slots, in seconds: whoever
    is ready first goes first, in an order that makes later turns wait for nothing but slots and tools."""
    free, ends = [0.0] * SLOTS, []
    ready = [(0.0, 1)] * agents
    while ready:
        ready.sort()
        at, number = ready.pop(0)
        slot = free.index(min(free))
        free[slot] = max(at, free[slot]) + turn
        ready += [(free[slot] + TOOL, number + 1)] if number < turns else []
        ends.append(free[slot])
    return max(ends)


def slots_and_tools(runs: int) -> list[dict[str, Any]]:
    """The three clients at turns of 200 and 500 ms: medians of `runs`, in turn on one server."""
    found = []
    for turn in (0.2, 0.5):
        with simulated("--slots", str(SLOTS), "--latency", str(turn)) as base_url:
            load = Load(base_url, "small", PAPERS, SLOTS, TOOL)
            least = bound(turn)
            for client in (holding, package, engine):
                measured = [client(load) for _ in range(runs)]
                if isinstance(measured[0], str):
                    print(measured[0], file=sys.stderr)
                    continue
                one = sorted(measured, key=lambda one: one.wall)[len(measured) // 2]
                share = one.wall / least
                kept = share <= AT_MOST if client is engine else None
                facts = {name: one.facts[name] for name in ("client", "wall_s", "calls", "tools")}
                found.append(
                    {"turn_s": turn, "bound_s": round(least, 2), **facts, "of the bound": round(share, 3), "kept": kept}
                )
    return found


def sessions() -> list[dict[str, Any]]:
    """Sessions with 12,400 shared tokens and some 450 of their own: each alone on an empty cache, one after the other;
    and all at once with agac on a server that one session was on before."""
    found = []
    with simulated("--serving", "h100", "--slots", "32") as base_url:
        load = Load(base_url, "small", (), 32, 0.0, prefix=12_400, scheme="vllm")
        alone = []
        for number in range(3):
            reset(base_url)
            alone.append(holding(replace(load, slots=1, topics=own(1, f"alone {number}"))))
        wall, computed = median(one.wall for one in alone), median(_computed(one) for one in alone)
        reset(base_url)
        first = engine(replace(load, topics=own(1, "first")))
        for count in (5, 10, 20, 50, 100):
            one = engine(replace(load, topics=own(count, f"of {count}")))
            found.append(
                {
                    "sessions": count, "isolated wall_s": round(count * wall, 1), "agac wall_s": round(one.wall, 2),
                    "times": round(count * wall / one.wall, 1), "isolated prefill": int(count * computed),
                    "agac prefill": _computed(one), "less": f"{1 - _computed(one) / (count * computed):.1%}",
                    "prefix_hit": one.facts["prefix_hit"], "the first session's": _computed(first),
                    "kept": count * wall >= 3 * one.wall and _computed(one) <= 0.04 * count * computed,
                }
            )  # fmt: skip
    return found


def forms(runs: int) -> list[dict[str, Any]]:
    """Agents that answer in a form, on a server whose models know it from their prompt alone: 40 of three turns on
    eight slots, and 20 of two turns on the simulated H100. Of `runs` the median by wall time."""
    found = []
    topics = [f"topic {number}" for number in range(40)]
    for turn in (0.2, 0.5):
        flags = ("--slots", str(SLOTS), "--latency", str(turn), "--tools-with-schema", "ignored")
        with simulated(*flags) as base_url:
            load = Load(base_url, "small", topics, SLOTS, TOOL, scheme="vllm", searches=2, schema=FORM)
            measured = sorted((engine(load) for _ in range(runs)), key=lambda one: one.wall)[runs // 2]
        least = bound(turn, len(topics), turns=3)
        share = measured.wall / least
        found.append(
            {
                "server": f"turns of {turn} s", "agents": len(topics), "turns": 3, "calls": measured.calls,
                "wall_s": round(measured.wall, 2), "bound_s": round(least, 2), "of the bound": round(share, 3),
                "prefill": None, "kept": measured.calls == 3 * len(topics) and share <= FORM_AT_MOST,
            }
        )  # fmt: skip
    with simulated("--serving", "h100", "--slots", str(SLOTS), "--tools-with-schema", "ignored") as base_url:
        load = Load(base_url, "small", PAPERS, SLOTS, TOOL, prefix=6_000, scheme="vllm", schema=FORM)
        measured = engine(load)
    found.append(
        {
            "server": "simulated h100", "agents": len(PAPERS), "turns": 2, "calls": measured.calls,
            "wall_s": round(measured.wall, 2), "bound_s": None, "of the bound": None, "prefill": _computed(measured),
            "kept": measured.calls == 2 * len(PAPERS) and _computed(measured) <= PREFILL_AT_MOST,
        }
    )  # fmt: skip
    return found


def own(count: int, name: str) -> list[str]:
    """What sessions are about: some 450 tokens that no other has."""
    return [" ".join([f"{name} {n}", *(f"w{n}x{word}" for word in range(40))]) for n in range(count)]


def _computed(one: Measured) -> int:
    return one.prompt_tokens - (one.cached_tokens or 0)


if __name__ == "__main__":
    arguments = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print JSON in place of tables")
    arguments.add_argument("--schema", action="store_true", help="measure agents that answer in a form instead")
    given = arguments.parse_args()
    tables = (
        {"forms": forms(3)} if given.schema else {"slots and tools": slots_and_tools(3), "shared prefix": sessions()}
    )
    if given.json:
        print(json.dumps(tables))
    else:
        print("\n\n".join(table(found) for found in tables.values()))
    sys.exit(any(one["kept"] is False for found in tables.values() for one in found))

"""20 agents with a slow tool on eight slots; and sessions with a long shared prefix. Prints two tables, or JSON.

python bench/agents.py [--json]
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


def bound(turn: float) -> float:
    """The least that 20 rows of two turns with the tool between them take on eight slots, in seconds: whoever is ready
    first goes first, in an order that makes second turns wait for nothing but slots and tools."""
    free, ends = [0.0] * SLOTS, []
    ready = [(0.0, 1)] * len(PAPERS)
    while ready:
        ready.sort()
        at, number = ready.pop(0)
        slot = free.index(min(free))
        free[slot] = max(at, free[slot]) + turn
        ready += [(free[slot] + TOOL, 2)] if number == 1 else []
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


def own(count: int, name: str) -> list[str]:
    """What sessions are about: some 450 tokens that no other has."""
    return [" ".join([f"{name} {n}", *(f"w{n}x{word}" for word in range(40))]) for n in range(count)]


def _computed(one: Measured) -> int:
    return one.prompt_tokens - (one.cached_tokens or 0)


if __name__ == "__main__":
    arguments = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    arguments.add_argument("--json", action="store_true", help="print JSON in place of tables")
    as_json = arguments.parse_args().json
    both = {"slots and tools": slots_and_tools(3), "shared prefix": sessions()}
    if as_json:
        print(json.dumps(both))
    else:
        print("\n\n".join(table(found) for found in both.values()))
    sys.exit(any(one["kept"] is False for found in both.values() for one in found))

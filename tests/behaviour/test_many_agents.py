"""Many agents at a time on few slots: no slot is held while tools work, as the server's own log has it, and memory is
bounded. In `make soak` a thousand of them."""

import json
import sys
import urllib.request
from collections import Counter
from itertools import accumulate, pairwise

from support.project import ProjectFolder, to_its_end
from support.server import simulator
from support.soak import SOAK

AGENTS, SLOTS = (1000, 32) if SOAK else (100, 8)
TURNS = 5
MOST = 3 * SLOTS
TOOL = '''
import asyncio

calls, many = 0, asyncio.Event()

async def look(q: str) -> str:
    """Looks something up, which takes a while, and at first until others do, too."""
    global calls
    calls += 1
    if calls > {most}:
        many.set()
    await many.wait()
    await asyncio.sleep({seconds})
    return "found " + q + {more!r}
'''
MEASURED = """
import sys
from agac.cli.main import main
sys.argv = ["agac", "-q", "run", "-a", "reviews"]
try:
    main()
finally:
    print(open("/proc/self/status").read(), file=sys.stderr)
"""
MEGABYTES = 300


def most_at_once(spans: list[tuple[float, float]]) -> int:
    """How many of these are under way at the same time, at most."""
    moments = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    return max(accumulate(change for _, change in moments))


def test_no_slot_is_held_while_tools_work(project: ProjectFolder) -> None:
    calls = ["tool:look " + json.dumps({"q": f"topic {turn}"}) for turn in range(1, TURNS)]
    rows = [{"id": f"r-{n}", "text": "\n\n".join([f"row {n}", *calls])} for n in range(AGENTS)]
    seconds = 0.2 if SOAK else 0.05
    project.write("tools/t.py", TOOL.format(seconds=seconds, most=MOST, more="." * 2000))
    stage = {"name": "talk", "prompt": "${text}", "tools": ["tools/t.py:look"], "concurrency": SLOTS}
    with simulator("--slots", str(SLOTS), "--latency", "0.05" if SOAK else "0.005") as server:
        project.asks(server)
        project.workflow(stages=[stage], rows=rows, max_open_rows=AGENTS)
        peak = peak_of(project) if SOAK else 0.0
        if not SOAK:
            project.agac("run", "-a", "reviews", code=0)
        with urllib.request.urlopen(server.base_url.removesuffix("/v1") + "/account/served", timeout=60) as answer:
            served = json.load(answer)["requests"]
        assert server.account()["max_in_flight"] <= SLOTS
    assert set(Counter(one["conversation"] for one in served).values()) == {TURNS}
    assert len(served) == TURNS * AGENTS
    talks: dict[str, list[tuple[float, float]]] = {}
    for one in sorted(served, key=lambda one: one["queued"]):
        talks.setdefault(one["conversation"], []).append((one["queued"], one["ended"]))
    for turns in talks.values():
        assert all(after[0] - before[1] >= seconds * 0.95 for before, after in pairwise(turns))
    # whoever kept a slot for its tools would have as many conversations under way as slots
    assert most_at_once([(turns[0][0], turns[-1][1]) for turns in talks.values()]) > MOST
    assert peak < MEGABYTES
    project.assert_sound()


def peak_of(project: ProjectFolder) -> float:
    """A run in an interpreter of its own, to its end: the most memory that it had, in MB."""
    ran = to_its_end([sys.executable, "-c", MEASURED], project.root)
    assert ran.code == 0, ran.err
    return int(ran.err.rpartition("VmHWM:")[2].split()[0]) / 1024

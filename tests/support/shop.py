"""A project with all that the monitor shows: a run of 60 reviews that asks at once and in batches, escalates, waits for
people and has failures, and a second run with another prompt."""

import time
from unittest.mock import patch

import agac
from agac.engine import heartbeat
from agac.engine.invocation import Clocks
from support.project import ProjectFolder

FAULTS = [
    {"kind": "refusal", "match": "Returned it"}, {"kind": "rate_limit", "at": [58], "retry_after": 0.05},
    {"kind": "malformed_json", "at": [31]},
]  # fmt: skip
FLAGS = ("--latency", "lognormal:0.03,0.4")
"""Of the simulator that answers."""

NAME = "product_reviews"
TEXTS = (
    "Kept me dry for three days of rain. Excellent.", "Awful smell that never went away. Returned it.",
    "Light, comfortable and worth the price. I use it every weekend.", "The zip broke on the second day. Not happy.",
    "It does what it says, nothing more.", "Good, but the battery is empty after two hours.",
    "Der Verschluss klemmt, sonst gut.",
)  # fmt: skip
SHAPE = {"sentiment": "positive|neutral|negative", "confidence": "number", "reason": "string"}
PRICES = {"small": {"input": 0.5, "output": 2.0}, "large": {"input": 5.0, "output": 20.0}}
FASTER = 150  # so many seconds pass in one


def _workflow(project: ProjectFolder, prompt: str, rows: int) -> None:
    products = ("Alpine Tent 2P", "Headlamp 400", "Camp Stove Mini", "Trail Pack 35", "Down Jacket")
    reviews = [
        {"id": f"r-{n:03}", "product": products[n % 5], "review": f"{TEXTS[n % 7]} Bought in week {n}."}
        for n in range(1, rows + 1)
    ]
    classify = {
        "name": "classify", "prompt": f"{prompt}\nProduct: ${{product}}\nReview: ${{review}}", "output_schema": SHAPE,
        "escalate": {"when": "classify.confidence < 0.3", "model": "local/large"},
    }  # fmt: skip
    approve = {"name": "approve", "review": {"when": "classify.confidence < 0.5", "show": ["product", "review"]}}
    reply = {
        "name": "reply", "run_mode": "batch",
        "prompt": "Answer kindly: ${review}\nWe read it as ${classify.sentiment}.",
        "when": 'classify.sentiment != "positive"',
    }  # fmt: skip
    project.workflow(
        NAME, rows=reviews, stages=[classify, approve, reply], budget={"usd": 0.1, "calls": 300}, stop_loss=False,
        defaults={"max_tokens": 200, "batch": {"poll_interval": 0.05}},
    )  # fmt: skip


def run_shop(project: ProjectFolder, base_url: str, *, rows: int = 60, began: float | None = None) -> ProjectFolder:
    """Makes the project and its two runs, asking what serves at `base_url`. By their clock they begin at `began`, in
    seconds since 1970 (None: now), and pass faster. Gives the project."""
    project.configure(base_url, batch="openai", prices=PRICES)
    start = time.time()
    clock = time.time if began is None else lambda: began + FASTER * (time.time() - start)
    with patch("agac.api.prepare.Clocks", lambda: Clocks(wall=clock)), patch.object(heartbeat, "EVERY", 0.01):
        _workflow(project, "How does its writer feel?", rows)
        project.run(NAME, concurrency=6, wait=True)
        waiting = agac.review_queue(project=project.root).items[:6]
        choices = ("reject", "approve", "approve")
        said = [agac.Decision(one.id, choices[n % 3], reviewer="Ada") for n, one in enumerate(waiting)]
        agac.decide(project.root, said)
        project.run(NAME, concurrency=6, wait=True)
        _workflow(project, "Say in one word how its writer feels.", rows)
        project.run(NAME, concurrency=6, wait=True)
    return project

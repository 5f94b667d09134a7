# ruff: noqa: INP001
"""The handbook of the shop, as its intranet has it."""

import json
from urllib.parse import quote
from urllib.request import urlopen


def handbook(topic: str) -> str:
    """Gives what the shop's handbook says of a topic, such as an order that is cancelled.

    Args:
        topic: one or two words
    """
    with urlopen(f"https://handbook.example/search?topic={quote(topic)}", timeout=10) as answer:
        return str(json.load(answer)["text"])

"""The requests of a batch as they come in to Anthropic: a body that is taken apart and checked on its way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agac.simulator import anthropicwire
from agac.simulator.asks import ApiError
from agac.simulator.batches.splitting import Splitter

MOST_REQUESTS = 100_000
LONGEST_ID = 64
ID_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def split(body: Path, requests: Path) -> int:
    """Writes each request of a body as a line; gives their count. Raises ApiError for what Anthropic refuses."""
    seen: set[int] = set()
    count = -1
    try:
        with body.open(encoding="utf-8") as asked, requests.open("wb") as lines:
            for count, (written, request) in enumerate(Splitter(asked).elements("requests")):
                if count >= MOST_REQUESTS:
                    raise anthropicwire.bad("requests", f"List should have at most {MOST_REQUESTS} items")
                check_request(count, request, seen)
                lines.write(written.replace("\n", " ").replace("\r", " ").encode() + b"\n")  # never within a string
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}") from error
    if count < 0:
        raise anthropicwire.bad("requests", "List should have at least 1 item")
    return count + 1


def check_request(index: int, request: Any, seen: set[int]) -> None:
    """Raises ApiError for what Anthropic refuses at once; what is asked is checked only when it is done."""
    place = f"requests.{index}"
    if not isinstance(request, dict):
        raise anthropicwire.bad(place, "Input should be an object")
    for name in sorted(set(request) - {"custom_id", "params"}):
        raise anthropicwire.bad(f"{place}.{name}", "Extra inputs are not permitted")
    for name in ("custom_id", "params"):
        if request.get(name) is None:
            raise anthropicwire.bad(f"{place}.{name}", "Field required")
    custom_id = request["custom_id"]
    if not isinstance(custom_id, str) or not custom_id:
        raise anthropicwire.bad(f"{place}.custom_id", "String should have at least 1 character")
    if len(custom_id) > LONGEST_ID:
        raise anthropicwire.bad(f"{place}.custom_id", f"String should have at most {LONGEST_ID} characters")
    if not set(custom_id) <= ID_LETTERS:
        raise anthropicwire.bad(f"{place}.custom_id", "String should match pattern '^[a-zA-Z0-9_-]{1,64}$'")
    if not isinstance(request["params"], dict):
        raise anthropicwire.bad(f"{place}.params", "Input should be an object")
    known = hash(custom_id)
    if known in seen:
        raise anthropicwire.bad(f"{place}.custom_id", f"custom_id {json.dumps(custom_id)} is not unique in the batch")
    seen.add(known)

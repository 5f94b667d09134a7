"""What needs no model: keys that are refused, models that are listed, JSON."""

from __future__ import annotations

import json

from aiohttp import web

from agac.simulator.asks import CREATED, FINGERPRINT
from agac.simulator.outlets import MARK
from agac.simulator.spoiling import invalid_key

BAD_KEY = "sk-invalid"
"""The key that is refused."""


def model_object(name: str) -> dict[str, object]:
    """A model as the API lists it."""
    return {"id": name, "object": "model", "created": CREATED, "owned_by": FINGERPRINT}


def key_of(request: web.Request) -> str:
    """The key that came with a request: as a bearer token, or as Anthropic or Azure has it."""
    headers = request.headers
    bearer = headers.get("authorization", "").removeprefix("Bearer ")
    return headers.get("x-api-key") or headers.get("api-key") or bearer


def check_key(request: web.Request) -> None:
    """Raises ApiError for the key that is refused."""
    if key_of(request) == BAD_KEY:
        raise invalid_key()


def json_response(data: object, status: int = 200) -> web.Response:
    """Any JSON, marked as simulated."""
    body = json.dumps(data).encode()
    return web.Response(status=status, body=body, content_type="application/json", headers=MARK)

"""Sends one message to one target of `notify`: by a webhook, by apprise, or by a command."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from agac.api.project import Project
from agac.core.errors import AgacError, lack_of
from agac.core.redact import Redactor
from agac.data.remote import apart
from agac.engine.invocation import Work
from agac.spec.notify import WAYS
from agac.spec.paths import Refused, home_of
from agac.spec.yaml import expand
from agac.store.runs import Notification

COMMAND_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TZ",
    "TMPDIR",
    "USER",
    "LOGNAME",
    "SHELL",
    "SYSTEMROOT",
    "TEMP",
)
"""The variables that a command gets: others may be secrets."""


class NotSent(Exception):
    """A message did not arrive. The text says why, without anything secret.

    `lacks`: something is not set or not installed here."""

    def __init__(self, why: str, *, lacks: bool = False) -> None:
        super().__init__(why)
        self.lacks = lacks


def signature(secret: str, name: str, at: int, body: str) -> str:
    """Signs a message as Standard Webhooks says: HMAC-SHA256 over `ID.TIMESTAMP.BODY`. Raises
    NotSent for an unfit secret."""
    key = b""
    with suppress(ValueError):
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    if not 24 <= len(key) <= 64:
        raise NotSent("its secret is not `whsec_` and 24 to 64 bytes in base64", lacks=True)
    digest = hmac.digest(key, f"{name}.{at}.{body}".encode(), "sha256")
    return "v1," + base64.b64encode(digest).decode()


async def send(project: Project | Work, message: Notification, seconds: float) -> None:
    """Tries once to send a message, or to call a heartbeat, with the `${VAR}` of a project. Raises
    NotSent, also after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(apart(partial(_send, project, message, seconds)))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise NotSent(f"it took more than {seconds:.0f} s") from None


def _send(project: Project | Work, message: Notification, seconds: float) -> None:
    """Sends a message in the way of its target. Raises NotSent."""
    (way,) = message.target.keys() & {*WAYS}
    written = message.target[way]
    if way == "command":
        _run_command(written, project, message, seconds)
        return
    address = _filled(written, project.env)
    if way == "apprise":
        _send_by_apprise(address, message.body)
    elif way == "webhook":
        body = json.dumps(message.body, ensure_ascii=False)
        headers = _webhook_headers(message, body, project.env)
        _call_address(project, address, written, body, headers)
    else:
        _call_address(project, address, written, None, {})


def _run_command(
    command: Sequence[str], project: Project | Work, message: Notification, seconds: float
) -> None:
    """Runs a command with the message on its standard input. Raises NotSent and TimeoutExpired."""
    try:
        process = subprocess.run(  # noqa: S603 - the project's own, as its functions are
            command,
            input=json.dumps(message.body, ensure_ascii=False).encode(),
            timeout=seconds,
            cwd=home_of(project.root),
            env={name: value for name, value in project.env.items() if name in COMMAND_VARIABLES},
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError as error:
        raise NotSent(f"it cannot be started: {error.strerror}") from None
    if process.returncode:
        raise NotSent(f"it ended with exit status {process.returncode}")


def _webhook_headers(message: Notification, body: str, env: Mapping[str, str]) -> dict[str, str]:
    """Makes the headers of Standard Webhooks, signed if the target has a secret. Raises NotSent."""
    at = int(time.time())
    headers = {"webhook-id": message.id, "webhook-timestamp": str(at)}
    secret = message.target.get("secret")
    if secret:
        headers["webhook-signature"] = signature(_filled(secret, env), message.id, at, body)
    return headers


def _call_address(
    project: Project | Work,
    address: str,
    written: str,
    body: str | None,
    headers: Mapping[str, str],
) -> None:
    """Sends `body` to an address, which the project has `written` with variables. Raises NotSent,
    whose text has neither their values nor the address."""
    web = project.remote if isinstance(project, Project) else project.tools.web
    assert web is not None
    try:
        status = web.told(address, body, headers)
    except (AgacError, Refused) as error:
        values = (expand(name, project.env)[0] for name in re.findall(r"\$\{[^}]*\}", written))
        text = str(error).replace(address.partition("?")[0], "it")
        raise NotSent(Redactor(values).clean(text)) from None
    if not 200 <= status < 300:
        raise NotSent(f"it answered {status}")


def _filled(written: str, env: Mapping[str, str]) -> str:
    """Replaces `${VAR}` by the variables' values. Raises NotSent if one is not set."""
    text, missing = expand(written, env)
    if missing:
        raise NotSent(f"the variable {missing[0]} is not set", lacks=True)
    return text


def _send_by_apprise(address: str, body: Mapping[str, Any]) -> None:
    """Sends a message by one of apprise's services. Raises NotSent."""
    lack = lack_of("notify", "apprise")
    if lack:
        raise NotSent(lack, lacks=True)
    from apprise import Apprise, AppriseAsset

    # it quotes addresses, which hold secrets
    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
    # a message that is answered by a redirect would be asked for at another address with GET, and
    # count as sent
    service = Apprise(asset=AppriseAsset(http_redirects=False))
    if not service.add(address):
        raise NotSent("it is no address that apprise knows")
    try:
        sent = service.notify(title=f"agac: {body['message']}", body=f"Next: {body['next']}")
    except Exception as error:  # noqa: BLE001 - whatever one of its many services raises; it may quote the address
        raise NotSent(f"apprise ended with {type(error).__name__}") from None
    if not sent:
        raise NotSent("apprise could not send it")

"""Messages of the outbox on their way (`notify`): by webhooks, apprise and commands; heartbeats and standstills while a
run is alive; `agac notify test`, `send` and `status`. Nothing of this changes how a run ends."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
import logging
import re
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agac.api.project import Project, open_project
from agac.api.status import database_path
from agac.api.sync import blocking
from agac.core.errors import AgacError, ExitCode, StoreError, UsageError, lack_of
from agac.core.redact import Redactor
from agac.core.types import Report, iso
from agac.data.remote import RemoteContents, apart
from agac.engine.batch.doctor import stuck_seconds
from agac.engine.invocation import Work
from agac.engine.retry_policy import backoff
from agac.spec.loader import load_workflow, workflow_names
from agac.spec.notify import WAYS, NotifyTarget
from agac.spec.paths import Refused, home_of, project_root
from agac.spec.yaml import expand
from agac.store import batches, runs
from agac.store.db import Database, change, open_for_reading, sql, write
from agac.store.runs import Notification
from agac.store.writer import open_database

if TYPE_CHECKING:
    from agac.api.report import RunReport
    from agac.engine.run import Invocation

MOST_SECONDS = 5.0  # that one attempt takes, and all sending once a run has ended
LOOK_SECONDS = 5.0  # so often a run that is alive looks what there is to send
STUCK_SECONDS = 1800.0  # without any progress of an invocation, after which somebody is told
CLAIMED_SECONDS = 60.0  # for which a message is left to the process that sends it
MAX_ATTEMPTS, MAX_DELAY = 30, 3600.0  # after so many attempts a message is given up; seconds between two of them
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL", "SYSTEMROOT", "TEMP")
"""The variables that a command gets: others may be secrets."""

_log = logging.getLogger("agac.notify")


class NotSent(Exception):
    """Why a message did not arrive, without anything secret. `lacks`: something is not set or not installed here."""

    def __init__(self, why: str, *, lacks: bool = False) -> None:
        super().__init__(why)
        self.lacks = lacks


def signature(secret: str, name: str, at: int, body: str) -> str:
    """The signature of Standard Webhooks: HMAC-SHA256 over `ID.TIMESTAMP.BODY`, with the key that stands in base64
    behind `whsec_`. Raises NotSent for another secret."""
    key = b""
    with suppress(ValueError):
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    if not 24 <= len(key) <= 64:
        raise NotSent("its secret is not `whsec_` and 24 to 64 bytes in base64", lacks=True)
    return "v1," + base64.b64encode(hmac.digest(key, f"{name}.{at}.{body}".encode(), "sha256")).decode()


@dataclass(frozen=True, slots=True)
class MessageSender:
    """Sends for the project at `home`, to addresses that the rules of `web` let it reach; `${VAR}` is of `env`."""

    home: Path
    web: RemoteContents
    env: Mapping[str, str]

    async def send(self, one: Notification, seconds: float) -> str:
        """One attempt to bring a message, or to call a heartbeat: what came back. Raises NotSent."""
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(apart(partial(self._sent, one, seconds)))
        except (TimeoutError, subprocess.TimeoutExpired):
            raise NotSent(f"it took more than {seconds:.0f} s") from None

    def _sent(self, one: Notification, seconds: float) -> str:
        (way,), body = one.target.keys() & {*WAYS}, json.dumps(one.body, ensure_ascii=False)
        written = one.target[way]
        if way == "command":
            env = {name: value for name, value in self.env.items() if name in _KEPT}
            quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            try:
                ran = subprocess.run(  # noqa: S603 - the project's own, as its functions are
                    written, input=body.encode(), timeout=seconds, cwd=self.home, env=env, check=False, **quiet
                )
            except OSError as error:
                raise NotSent(f"it cannot be started: {error.strerror}") from None
            return _good(f"it ended with exit status {ran.returncode}", ok=ran.returncode == 0)
        address = self._filled(written)
        if way == "apprise":
            return _by_apprise(address, one.body)
        headers = {"webhook-id": one.id, "webhook-timestamp": str(at := int(time.time()))}
        if secret := one.target.get("secret"):
            headers["webhook-signature"] = signature(self._filled(secret), one.id, at, body)
        try:
            status = self.web.told(address, *((body, headers) if way == "webhook" else (None, {})))
        except (AgacError, Refused) as error:
            values = (expand(name, self.env)[0] for name in re.findall(r"\$\{[^}]*\}", written))
            said = str(error).replace(address.partition("?")[0], "it")
            raise NotSent(Redactor(values).clean(said)) from None
        return _good(f"it answered {status}", ok=200 <= status < 300)

    def _filled(self, written: str) -> str:
        text, missing = expand(written, self.env)
        if missing:
            raise NotSent(f"the variable {missing[0]} is not set", lacks=True)
        return text


def _good(answer: str, *, ok: bool) -> str:
    if not ok:
        raise NotSent(answer)
    return answer


def _by_apprise(address: str, body: Mapping[str, Any]) -> str:
    if lack := lack_of("notify", "apprise"):
        raise NotSent(lack, lacks=True)
    from apprise import Apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it quotes addresses, which hold secrets
    service = Apprise()
    _good("it is no address that apprise knows", ok=service.add(address))
    try:
        sent = service.notify(title=f"agac: {body['message']}", body=f"Next: {body['next']}")
    except Exception as error:  # noqa: BLE001 - whatever one of its many services raises; it may quote the address
        raise NotSent(f"apprise ended with {type(error).__name__}") from None
    return _good(f"apprise {'sent it' if sent else 'could not send it'}", ok=bool(sent))


async def deliver(database: Database, sender: MessageSender, seconds: float, *, again: bool = True) -> int:
    """Sends what is due, and what does not arrive `again`, as far as `seconds` allow: how many arrived. What is killed
    meanwhile is sent again, with the same id."""
    sent, until = 0, time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        due = await runs.due_notifications(database, time.time())
        sent += sum(await asyncio.gather(*(_attempt(database, sender, one, min(left, MOST_SECONDS)) for one in due)))
        _, at, _ = await runs.notifications_left(database)
        if at is None or not again or at - time.time() > until - time.monotonic():
            break
        await asyncio.sleep(max(at - time.time(), 0))
    return sent


async def _attempt(database: Database, sender: MessageSender, one: Notification, seconds: float) -> bool:
    now, error, again = time.time(), None, None
    claim = now + CLAIMED_SECONDS, one.id, now
    if not await change(database, lambda writer: writer.execute(sql("notification_claim"), claim).rowcount):
        return False  # another process sends it
    try:
        await sender.send(one, seconds)
    except NotSent as problem:
        error, delay = str(problem), CLAIMED_SECONDS if problem.lacks else min(backoff(one.attempts + 1), MAX_DELAY)
        again = time.time() + delay if one.attempts + 1 < MAX_ATTEMPTS else None
    await write(database, "notification_ended", again, None if error else time.time(), error, one.id)
    return error is None


@asynccontextmanager
async def notifying(database: Database, work: Work, invocation: Invocation) -> AsyncIterator[None]:
    """Heartbeats are called and messages sent during the block, and what is left at its end, for a few seconds."""
    ended = asyncio.Event()
    watching = asyncio.ensure_future(_watch(database, work, invocation, ended))
    try:
        yield
    except Exception:
        if (told := invocation.notifier) is not None:
            with suppress(StoreError):  # whoever works with the store hears of it
                await told.tell("failed", f"event {told.event}", f"run {told.run} stopped", f"agac status {told.run}")
        raise
    finally:
        ended.set()
        await asyncio.wait({watching})
        if not watching.cancelled() and (error := watching.exception()):
            _log.warning("nobody could be told: %s", error)


async def _watch(database: Database, work: Work, invocation: Invocation, ended: asyncio.Event) -> None:
    sender, totals = _sender(work), invocation.totals
    beats = [one for one in work.plan.rules.notify if one.heartbeat is not None]
    due, failed, told, seen, since = dict.fromkeys(beats, 0.0), set[str](), set[str](), "", time.monotonic()
    while work.plan.rules.notify and not ended.is_set():
        now, mark = time.monotonic(), f"{totals.calls} {totals.seen} {totals.settled} {totals.tasks_done}"
        for beat in (one for one in beats if due[one] <= now):
            due[beat] = now + beat.every
            try:
                await sender.send(Notification("", "", 0, 0, "", {}, beat.stored()), MOST_SECONDS)
            except NotSent as error:
                if (said := f"the heartbeat {beat.heartbeat} is not called: {error}") not in failed:
                    _log.warning("%s", said)
                failed.add(said)
        seen, since = mark, since if mark == seen else now
        with suppress(StoreError):  # whoever works with the store hears of it; heartbeats go on
            await _tell_standstill(database, invocation, now - since, mark, told)
            await deliver(database, sender, MOST_SECONDS, again=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await ended.wait()
    await ended.wait()
    await _tell_standstill(database, invocation, 0.0, "", told)
    await deliver(database, sender, MOST_SECONDS)


async def _tell_standstill(database: Database, invocation: Invocation, still: float, mark: str, told: set[str]) -> None:
    """Tells of batches that are stuck, and of an invocation that stands still; of each once."""
    if (notifier := invocation.notifier) is None or not notifier.targets:
        return
    found = await batches.batches(database, workflow=notifier.workflow) if invocation.batches.touched else []
    news = {
        f"batch {one.id} since {one.moved_at}":
            (f"batch {one.id} of run {one.run_id} has not moved for {seconds / 3600:.1f} h", "agac doctor")
        for one in found if (seconds := stuck_seconds(one, time.time()))
    }  # fmt: skip
    asking = any(stage.in_flight for stage in invocation.totals.stages.values())
    if still > STUCK_SECONDS and (asking or not found):
        said = f"run {notifier.run} has made no progress for {still / 60:.0f} minutes"
        news[f"event {notifier.event} at {mark}"] = said, f"agac status {notifier.run}"
    for about in news.keys() - told:
        await notifier.tell("stuck", about, *news[about])
    told |= news.keys()


async def reported(database: Database, work: Work, invocation: Invocation, report: RunReport) -> RunReport:
    """The report with what was not sent, if anything. A failure after the end of the work is told, too."""
    if (told := invocation.notifier) and invocation.ended and report.exit_code is ExitCode.FAILED:
        said = f"run {told.run} ended, and its results lack something"
        await told.tell("failed", f"event {told.event}", said, f"agac status {told.run}", exit_code=1)
        await deliver(database, _sender(work), MOST_SECONDS)
    left, _, error = await runs.notifications_left(database)
    facts = {"notifications": {"left": left, "error": error}} if left else {}
    return replace(report, invocation=report.invocation | facts)


# The commands.


@dataclass(frozen=True, slots=True)
class OutboxReport(Report):
    """Messages of the outbox, newest first, or those of a test. `sent` now, and `left` to be sent; `error`: why."""

    messages: list[Notification]
    sent: int = 0
    left: int = 0
    error: str | None = None


@blocking
async def notify_test(workflows: Sequence[str] = (), *, project: Path | str | None = None) -> OutboxReport:
    """Sends a message of the kind `test` to every target of these workflows, or of all; heartbeats are called. Raises
    UsageError where there are none, SpecError where agac.yml has problems."""
    opened = open_project(project, sound=True)
    found: dict[NotifyTarget, str] = {}
    for name in workflows or workflow_names(opened.spec):
        workflow, _ = load_workflow(opened.spec, name)
        found |= dict.fromkeys(workflow.rules.notify, name) if workflow is not None else {}
    if not found:
        raise UsageError("nobody is to be told: there is no `notify`", remedy="Add it to agac.yml or a workflow.")

    async def test(target: NotifyTarget, name: str) -> Notification:
        now = time.time()
        body = {"id": f"msg_test_{now:.0f}", "kind": "test", "workflow": name, "run": None, "at": iso(now)}
        body |= {"message": f"{name}: this is a test of `notify`", "next": f"agac run -a {name}"}
        one = Notification(str(body["id"]), name, 0, 0, "test", body, target.stored(), 1)
        try:
            await _sender(opened).send(one, MOST_SECONDS)
        except NotSent as error:
            return one._replace(error=str(error))
        return one._replace(sent_at=now)

    tried = await asyncio.gather(*(test(target, name) for target, name in found.items()))
    left = [one.error for one in tried if one.error]
    return OutboxReport(tried, len(tried) - len(left), len(left), next(iter(left), None))


@blocking
async def notify_send(*, project: Path | str | None = None) -> OutboxReport:
    """Sends what is due, for a minute at most, and shows the newest messages."""
    opened = open_project(project)
    if not opened.store.exists():
        return OutboxReport([])
    async with open_database(opened.store) as database:
        return await _outbox(database, await deliver(database, _sender(opened), 60.0))


@blocking
async def notify_status(*, project: Path | str | None = None) -> OutboxReport:
    """What was told, and what waits to be sent. Reads the store only."""
    async with open_for_reading(database_path(project_root(project))) as database:
        return OutboxReport([]) if database is None else await _outbox(database)


async def _outbox(database: Database, sent: int = 0) -> OutboxReport:
    left, _, error = await runs.notifications_left(database)
    return OutboxReport(await runs.notifications(database), sent, left, error)


def _sender(place: Project | Work) -> MessageSender:
    web = place.remote if isinstance(place, Project) else place.web
    assert web is not None
    return MessageSender(home_of(place.root), web, place.env)

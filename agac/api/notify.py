"""Messages of the outbox on their way (`notify`): by webhooks, apprise and commands; heartbeats
and standstills while a run is alive; `agac notify test`. Nothing of this changes how a run ends."""

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

from agac.api.invocation_summary import UnsentMessages
from agac.api.project import Project, open_project
from agac.api.status import made_in_python
from agac.api.sync import blocking
from agac.core.errors import AgacError, ExitCode, StoreError, UsageError, lack_of
from agac.core.keys import canonical
from agac.core.redact import Redactor
from agac.core.types import Report, counted, iso
from agac.data.remote import apart
from agac.engine.ask.retry_policy import backoff
from agac.engine.batch.doctor import stuck_seconds
from agac.engine.invocation import Work
from agac.plan.plan import Plan
from agac.spec.loader import (
    load_project,
    load_workflow,
    read_workflow,
    workflow_files,
    workflow_names,
)
from agac.spec.notify import WAYS, NotifyTarget, target_words
from agac.spec.paths import Refused, home_of
from agac.spec.project import Overrides
from agac.spec.rule_models import RunRulesFile
from agac.spec.stage_keys import run_rules
from agac.spec.yaml import expand
from agac.store import batches, runs
from agac.store.db import Database, change, sql, write
from agac.store.runs import Notification

if TYPE_CHECKING:
    from agac.api.report import RunReport
    from agac.engine.run_state import Invocation

MOST_SECONDS = 5.0  # that one attempt takes, and all sending once a run has ended
LOOK_SECONDS = 5.0  # so often a run that is alive looks what there is to send
BEAT_SECONDS = 60.0  # so often the heartbeat of a run that is alive is called
STUCK_SECONDS = 1800.0  # without any progress of an invocation, after which somebody is told
CLAIMED_SECONDS = 60.0  # for which a message is left to the process that sends it
MAX_ATTEMPTS = 30  # after so many attempts a message is given up; seconds between two of them
MAX_DELAY = 3600.0
_KEPT = (
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

_log = logging.getLogger("agac.notify")


class NotSent(Exception):
    """Why a message did not arrive, without anything secret. `lacks`: something is not set or not
    installed here."""

    def __init__(self, why: str, *, lacks: bool = False) -> None:
        super().__init__(why)
        self.lacks = lacks


def signature(secret: str, name: str, at: int, body: str) -> str:
    """The signature of Standard Webhooks: HMAC-SHA256 over `ID.TIMESTAMP.BODY`. Raises NotSent for
    an unfit secret."""
    key = b""
    with suppress(ValueError):
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    if not 24 <= len(key) <= 64:
        raise NotSent("its secret is not `whsec_` and 24 to 64 bytes in base64", lacks=True)
    return (
        "v1,"
        + base64.b64encode(hmac.digest(key, f"{name}.{at}.{body}".encode(), "sha256")).decode()
    )


async def send(place: Project | Work, one: Notification, seconds: float) -> None:
    """One attempt to bring a message, or to call a heartbeat, with the `${VAR}` of a project.
    Raises NotSent."""
    try:
        async with asyncio.timeout(seconds):
            await asyncio.wrap_future(apart(partial(_send, place, one, seconds)))
    except (TimeoutError, subprocess.TimeoutExpired):
        raise NotSent(f"it took more than {seconds:.0f} s") from None


def _send(place: Project | Work, one: Notification, seconds: float) -> None:
    (way,), body = one.target.keys() & {*WAYS}, json.dumps(one.body, ensure_ascii=False)
    written = one.target[way]
    if way == "command":
        env = {name: value for name, value in place.env.items() if name in _KEPT}
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            ran = subprocess.run(  # noqa: S603 - the project's own, as its functions are
                written,
                input=body.encode(),
                timeout=seconds,
                cwd=home_of(place.root),
                env=env,
                check=False,
                **quiet,
            )
        except OSError as error:
            raise NotSent(f"it cannot be started: {error.strerror}") from None
        if ran.returncode:
            raise NotSent(f"it ended with exit status {ran.returncode}")
        return
    address = _filled(written, place.env)
    if way == "apprise":
        _by_apprise(address, one.body)
        return
    headers = {"webhook-id": one.id, "webhook-timestamp": str(at := int(time.time()))}
    secret = one.target.get("secret")
    if secret:
        headers["webhook-signature"] = signature(_filled(secret, place.env), one.id, at, body)
    web = place.remote if isinstance(place, Project) else place.web
    assert web is not None
    try:
        status = web.told(address, *((body, headers) if way == "webhook" else (None, {})))
    except (AgacError, Refused) as error:
        values = (expand(name, place.env)[0] for name in re.findall(r"\$\{[^}]*\}", written))
        said = str(error).replace(address.partition("?")[0], "it")
        raise NotSent(Redactor(values).clean(said)) from None
    if not 200 <= status < 300:
        raise NotSent(f"it answered {status}")


def _filled(written: str, env: Mapping[str, str]) -> str:
    text, missing = expand(written, env)
    if missing:
        raise NotSent(f"the variable {missing[0]} is not set", lacks=True)
    return text


def _by_apprise(address: str, body: Mapping[str, Any]) -> None:
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


# The files of a project say who is told. A target that was taken out of them gets nothing any more:
# neither messages that wait in the store, nor those of a run that was stored with it. Its command
# may be why it was removed.


async def _named_now(database: Database, root: Path, workflow: str) -> frozenset[str] | None:
    """The targets that the project names for a workflow now; None where that cannot be told."""
    in_python = await made_in_python(database, workflow)
    return await asyncio.to_thread(_named_targets, root, workflow, in_python=in_python)


def _named_targets(root: Path, workflow: str, *, in_python: bool) -> frozenset[str] | None:
    """The targets that the files name for a workflow now, each as the store has it: those of its
    file, or without a file those of agac.yml. None where the files cannot be read, and where a
    program has the keys, so that no file does: a file of the workflow counts, whatever is stored,
    as that may have come from a remote."""
    project, _ = load_project(root, {})
    if project is None:
        return None
    files = workflow_files(project, workflow)
    if in_python and not files:
        return None
    read = [read_workflow(path, project.shown(path), home_of(root)) for path in files]
    if not read:
        rules = [run_rules(RunRulesFile(), project.document, project, Overrides())]
    elif any(file is None for file, *_ in read):
        return None
    else:
        rules = [
            run_rules(file, document, project, Overrides())
            for file, document, _ in read
            if file is not None
        ]
    return frozenset(canonical(target.stored()) for one in rules for target in one.notify)


_NOT_NAMED = "neither agac.yml nor the workflow {} names this target any more"


async def with_named_targets(database: Database, root: Path, plan: Plan) -> Plan:
    """The stored plan without targets that the files of the project do not name any more. Logs
    which."""
    if not plan.rules.notify:
        return plan
    named = await _named_now(database, root, plan.workflow)
    if named is None:
        return plan
    kept = tuple(one for one in plan.rules.notify if canonical(one.stored()) in named)
    for one in plan.rules.notify:
        if one not in kept:
            why = _NOT_NAMED.format(plan.workflow)
            _log.warning("%s is not told of this run: %s. Add it to `notify` to have it told.",
                         target_words(one.stored()), why)  # fmt: skip
    return replace(plan, rules=replace(plan.rules, notify=kept))


async def _drop_unnamed(database: Database, work: Work) -> list[str]:
    """Drops the messages that wait for targets which the files do not name any more; gives a
    sentence for each target. Where files cannot be read, and of workflows made in Python, messages
    wait on. A crash leaves them waiting, or dropped: the next invocation looks again."""
    sentences = list[str]()
    for workflow, target, count in await runs.waiting_messages(database):
        is_own = workflow == work.plan.workflow
        if is_own and target in map(canonical, (one.stored() for one in work.plan.rules.notify)):
            continue
        named = await _named_now(database, work.root, workflow)
        if named is None or target in named:
            continue
        why = _NOT_NAMED.format(workflow)
        await write(database, "notifications_dropped", f"dropped: {why}", workflow, target)
        messages = counted(count, "message")
        sentences.append(
            f"Dropped: {messages} of the workflow {workflow} to "
            f"{target_words(json.loads(target))}: {why}. "
            "They are not sent; to have later ones sent, add the target to `notify` again"
        )
    return sentences


async def _deliver(database: Database, work: Work, *, again: bool = True) -> None:
    """Sends what is due, and what does not arrive `again`, for a few seconds; once killed, again
    with the same id."""
    until = time.monotonic() + MOST_SECONDS
    while (left := until - time.monotonic()) > 0:
        due = await runs.due_notifications(database, time.time())
        await asyncio.gather(*(_attempt(database, work, one, left) for one in due))
        _, at, _ = await runs.notifications_left(database)
        if at is None or not again or at - time.time() > until - time.monotonic():
            break
        await asyncio.sleep(max(at - time.time(), 0))


async def _attempt(database: Database, work: Work, one: Notification, seconds: float) -> None:
    now = time.time()
    error = None
    again = None
    claim = now + CLAIMED_SECONDS, one.id, now
    if not await change(
        database, lambda writer: writer.execute(sql("notification_claim"), claim).rowcount
    ):
        return  # another process sends it
    try:
        await send(work, one, seconds)
    except NotSent as problem:
        error = str(problem)
        if problem.lacks:
            delay = CLAIMED_SECONDS
        else:
            delay = min(backoff(one.attempts + 1), MAX_DELAY)
        again = time.time() + delay if one.attempts + 1 < MAX_ATTEMPTS else None
        if again is None:
            what = f"the message {one.body['message']!r} to {target_words(one.target)}"
            remedy = "It is not sent; try the target with `agac notify test`"
            _log.warning(
                "%s is given up after %d attempts: %s. %s", what, MAX_ATTEMPTS, error, remedy
            )
    await write(
        database, "notification_ended", again, None if error else time.time(), error, one.id
    )


@asynccontextmanager
async def notifying(database: Database, work: Work, invocation: Invocation) -> AsyncIterator[None]:
    """Heartbeats are called and messages sent during the block, and what is left at its end, for a
    few seconds."""
    with suppress(StoreError):  # whoever works with the store hears of it
        invocation.dropped_messages += await _drop_unnamed(database, work)
    ended = asyncio.Event()
    watching = asyncio.ensure_future(_watch(database, work, invocation, ended))
    try:
        yield
    except Exception:  # whatever it is, somebody is told of it; it goes on to the caller
        told = invocation.notifier
        if told is not None:
            with suppress(StoreError):  # whoever works with the store hears of it
                await told.tell(
                    "failed",
                    f"event {told.event}",
                    f"run {told.run} stopped",
                    f"agac status {told.run}",
                )
        raise
    finally:
        ended.set()
        await asyncio.wait({watching})
        if not watching.cancelled() and (error := watching.exception()):
            _log.warning("nobody could be told: %s", error)


async def _watch(
    database: Database, work: Work, invocation: Invocation, ended: asyncio.Event
) -> None:
    totals = invocation.totals
    targets = work.plan.rules.notify
    failed = set[str]()
    beat_at = 0.0
    seen = ""
    since = time.monotonic()
    while targets and not ended.is_set():
        now = time.monotonic()
        mark = f"{totals.calls} {totals.seen} {totals.settled} {totals.tasks_done}"
        due, beat_at = (targets, now + BEAT_SECONDS) if beat_at <= now else ((), beat_at)
        for beat in (one for one in due if one.heartbeat is not None):
            try:
                await send(work, Notification("", {}, beat.stored()), MOST_SECONDS)
            except NotSent as error:
                said = f"the heartbeat {beat.heartbeat} is not called: {error}"
                if said not in failed:
                    _log.warning("%s", said)
                failed.add(said)
        seen, since = mark, since if mark == seen else now
        with suppress(StoreError):  # whoever works with the store hears of it; heartbeats go on
            await _tell_standstill(database, invocation, now - since, mark)
            await _deliver(database, work, again=False)
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await ended.wait()
    await ended.wait()
    await _tell_standstill(database, invocation, 0.0, "")
    await _deliver(database, work)


async def _tell_standstill(
    database: Database, invocation: Invocation, still: float, mark: str
) -> None:
    """Tells of batches that are stuck, and of an invocation that stands still at this mark."""
    notifier = invocation.notifier
    if notifier is None or not notifier.targets:
        return
    if invocation.batches.touched:
        found = await batches.batches(database, workflow=notifier.workflow)
    else:
        found = []
    for one in found:
        seconds = stuck_seconds(one, time.time())
        if seconds:
            said = f"batch {one.id} of run {one.run_id} has not moved for {seconds / 3600:.1f} h"
            await notifier.tell(
                "stuck", f"batch {one.id} since {one.moved_at}", said, "agac doctor"
            )
    asking = any(stage.in_flight for stage in invocation.totals.stages.values())
    if still > STUCK_SECONDS and (asking or not found):
        said = f"run {notifier.run} has made no progress for {still / 60:.0f} minutes"
        await notifier.tell(
            "stuck", f"event {notifier.event} at {mark}", said, f"agac status {notifier.run}"
        )


async def reported(
    database: Database, work: Work, invocation: Invocation, report: RunReport
) -> RunReport:
    """The report with what was not sent, if anything. A failure after the end of the work is told,
    too."""
    told = invocation.notifier
    if told and invocation.ended and report.exit_code is ExitCode.FAILED:
        said = f"run {told.run} ended, and its results lack something"
        await told.tell(
            "failed", f"event {told.event}", said, f"agac status {told.run}", exit_code=1
        )
        await _deliver(database, work)
    left, _, error = await runs.notifications_left(database)
    did = report.invocation_record
    notes = replace(
        did.notes,
        notifications=UnsentMessages(left, error) if left else None,
        dropped_messages=tuple(invocation.dropped_messages),
    )
    return replace(report, invocation_record=replace(did, notes=notes))


@dataclass(frozen=True, slots=True)
class NotifyReport(Report):
    """The messages of a test, one for each target; the `error` of one says why it did not
    arrive."""

    messages: list[Notification]


@blocking
async def notify_test(
    workflows: Sequence[str] = (), *, project: Path | str | None = None
) -> NotifyReport:
    """Sends a message of the kind `test` to every target of these workflows, or of all; heartbeats
    are called. Raises UsageError where there are none, SpecError where agac.yml has problems."""
    opened = open_project(project, sound=True)
    found: dict[NotifyTarget, str] = {}
    for name in workflows or workflow_names(opened.spec):
        workflow, _ = load_workflow(opened.spec, name)
        found |= dict.fromkeys(workflow.rules.notify, name) if workflow is not None else {}
    if not found:
        raise UsageError(
            "nobody is to be told: there is no `notify`", remedy="Add it to agac.yml or a workflow."
        )

    async def test(target: NotifyTarget, name: str) -> Notification:
        now = time.time()
        body = {
            "id": f"msg_test_{now:.0f}",
            "kind": "test",
            "workflow": name,
            "run": None,
            "at": iso(now),
        }
        body |= {"message": f"{name}: this is a test of `notify`", "next": f"agac run -a {name}"}
        one = Notification(str(body["id"]), body, target.stored(), 1)
        try:
            await send(opened, one, MOST_SECONDS)
        except NotSent as error:
            return one._replace(error=str(error))
        return one

    return NotifyReport(
        await asyncio.gather(*(test(target, name) for target, name in found.items()))
    )

"""Who is told of runs: webhooks that are signed, told again under one id; apprise, commands, heartbeats."""

import base64
import hashlib
import hmac
import json
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.batched import store
from support.batchrun import DAY, Make, advance
from support.project import ProjectFolder
from support.remote import Site, reply

import agac
from agac.api import notify
from agac.plan import checks

KEY = bytes(range(32))
SECRET = "whsec_" + base64.b64encode(KEY).decode()
KINDS = ["finished", "failed", "limit", "stuck", "review", "batch_ended"]


class Receiver(Site):
    """A site that keeps the messages that are posted to it, and answers with the next of the `answers`, else 204."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[dict[str, str], str]] = []
        self.answers: list[Callable[[BaseHTTPRequestHandler], None] | int] = []
        self.pages["/hook/secret-path"] = self.take

    def take(self, request: BaseHTTPRequestHandler) -> None:
        size = int(request.headers.get("Content-Length", 0))
        body = request.rfile.read(size).decode()
        self.messages.append(({name.lower(): value for name, value in request.headers.items()}, body))
        answer = self.answers.pop(0) if self.answers else 204
        if callable(answer):
            answer(request)
        else:
            reply(request, b"", answer)

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.messages]


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """Its address and the secret are in the environment."""
    site = Receiver()
    thread = threading.Thread(target=site.server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    monkeypatch.setenv("HOOK_URL", f"{site.url}/hook/secret-path?token=abcdef123")
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    yield site
    site.over.set()
    site.server.shutdown()
    site.server.server_close()


HOOK = {"webhook": "${HOOK_URL}", "secret": "${HOOK_SECRET}"}


def telling(project: ProjectFolder, *targets: dict[str, Any], rows: int = 2, **keys: Any) -> ProjectFolder:
    """A project whose agac.yml has these targets, which may be on this machine, and a workflow of so many rows."""
    body = yaml.safe_load((project.root / "agac.yml").read_text("utf-8"))
    body |= {"notify": [*targets], "remote": {"http": True, "allow": ["127.0.0.1"]}}
    project.write("agac.yml", yaml.safe_dump(body))
    project.workflow(rows=rows, **keys)
    return project


def outbox(project: ProjectFolder) -> list[tuple[Any, ...]]:
    return project.query("SELECT kind, attempts, next_at IS NULL, sent_at IS NOT NULL, error FROM notification")


def verified(message: tuple[dict[str, str], str]) -> dict[str, Any]:
    """The message, after a look at its signature as Standard Webhooks describes it."""
    headers, body = message
    name, at, said = (headers[f"webhook-{part}"] for part in ("id", "timestamp", "signature"))
    mac = hmac.new(KEY, f"{name}.{at}.{body}".encode(), hashlib.sha256).digest()
    assert said == "v1," + base64.b64encode(mac).decode()
    found: dict[str, Any] = json.loads(body)
    assert found["id"] == name
    return found


def test_the_end_of_a_run_is_told_by_a_signed_webhook(project: ProjectFolder, receiver: Receiver) -> None:
    report = telling(project, HOOK).run()
    assert (report.exit_code, "notifications" in report.invocation) == (0, False)
    (message,) = receiver.messages
    body = verified(message)
    assert body.pop("at").endswith("Z")
    assert (body.pop("cost_usd"), body.pop("cost_is_simulated")) == (None, True)
    assert body.pop("id").startswith("msg_")
    rows = {"total": 2, "done": 2, "skipped": 0, "failed": 0, "dropped": 0, "open": 0}
    assert body == {
        "kind": "finished", "workflow": "reviews", "run": 1, "exit_code": 0, "rows": rows, "next": "agac inspect 1",
        "message": "reviews: run 1 is finished: 2 rows, 2 done",
    }  # fmt: skip
    assert message[0]["content-type"] == "application/json"
    assert outbox(project) == [("finished", 1, 1, 1, None)]


def test_nothing_secret_and_nothing_of_rows_is_stored_or_sent(project: ProjectFolder, receiver: Receiver) -> None:
    receiver.answers = [500] * 4
    telling(project, HOOK)
    ran = project.agac("run", "-a", "reviews", "-vv", env={"AGAC_TEST_BACK_OFF": "0.01"})
    told = "".join(body for _, body in receiver.messages)
    assert receiver.messages
    for secret in ("secret-path", "abcdef123", SECRET.removeprefix("whsec_")):
        assert secret not in ran.out + ran.err + told
        for path in (project.root / ".agac").glob("agac.db*"):
            assert secret.encode() not in path.read_bytes()
    assert "I love number" not in told
    assert "http" not in told


def test_a_server_that_fails_is_tried_again_under_the_same_id(
    project: ProjectFolder, receiver: Receiver, short_pauses: None
) -> None:
    receiver.answers = [500, 503]
    assert telling(project, HOOK).run().exit_code == 0
    assert len({verified(one)["id"] for one in receiver.messages}) == 1
    assert len(receiver.messages) == 3
    assert outbox(project) == [("finished", 3, 1, 1, None)]


def test_what_could_not_be_sent_is_said_and_sent_by_the_next_command(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SEND_SECONDS", 0.3)
    monkeypatch.setattr(notify, "LOOK_SECONDS", 0.01)
    receiver.answers = [lambda request: receiver.over.wait(5) and None]
    report = telling(project, HOOK).run()
    assert report.exit_code == 0
    left = report.invocation["notifications"]
    assert left["left"] == 1
    assert left["error"].startswith("it took more than")
    with project.changed() as change:
        change("UPDATE notification SET next_at = 1")
    assert "notifications" not in project.run().invocation
    told = [verified(one)["id"] for one in receiver.messages]
    assert told.count(told[0]) == 2
    assert outbox(project)[0][:4] == ("finished", 2, 1, 1)


def huge(request: BaseHTTPRequestHandler) -> None:
    request.send_response(200)
    request.end_headers()
    try:
        for _ in range(10_000):
            request.wfile.write(b"x" * 65_536)
    except OSError:
        request.close_connection = True


def moved(request: BaseHTTPRequestHandler) -> None:
    request.send_response(302)
    request.send_header("Location", "/elsewhere")
    request.send_header("Content-Length", "0")
    request.end_headers()


def test_redirects_are_not_followed_and_long_replies_not_read(
    project: ProjectFolder, receiver: Receiver, short_pauses: None
) -> None:
    receiver.answers = [moved, huge]
    telling(project, HOOK)
    project.run()
    assert [path for _, path, _ in receiver.seen] == ["/hook/secret-path?token=abcdef123"] * 2
    ((_, attempts, _, sent, error),) = outbox(project)
    assert (attempts, sent, error) == (2, 1, None)
    receiver.answers = [moved]
    (tested,) = agac.notify_test(project=project.root).messages
    assert tested.error == "it redirects; name the address that it leads to"


def test_addresses_are_held_to_the_rules_for_addresses(project: ProjectFolder, receiver: Receiver) -> None:
    telling(project, HOOK)
    for remote, why in (({}, "can be read and changed by anybody"), ({"http": True}, "which is no public address")):
        body = yaml.safe_load((project.root / "agac.yml").read_text("utf-8")) | {"remote": remote}
        project.write("agac.yml", yaml.safe_dump(body))
        (tested,) = agac.notify_test(project=project.root).messages
        assert tested.error is not None
        assert why in tested.error
    assert receiver.messages == []


def test_killed_between_the_commit_and_the_sending(project: ProjectFolder, receiver: Receiver) -> None:
    """The end of a run is in the store, and nobody was told: the next command tells it."""
    telling(project, HOOK).run()
    receiver.messages.clear()
    for number in range(1, 30):
        ran = project.agac("run", "-a", "reviews", kill=f"committed:{number}")
        assert ran.code == -9, "it was never killed in between"
        if (ends := outbox(project)[1:]) or receiver.messages:
            break
    assert (ends, receiver.messages) == ([("finished", 0, 0, 0, None)], [])
    assert project.agac("run", "-a", "reviews").code == 0
    events = [verified(one)["id"] for one in receiver.messages]
    assert len(set(events)) == 2  # of the run that was killed, and of this one
    assert outbox(project)[1:] == [("finished", 1, 1, 1, None)] * 2


def test_killed_after_it_arrived_it_is_told_twice_under_one_id(project: ProjectFolder, receiver: Receiver) -> None:
    telling(project, HOOK)
    receiver.answers = [lambda request: process.kill() or (receiver.over.wait(5) and None)]
    process = project.start("run", "-a", "reviews")
    process.communicate()
    assert outbox(project)[0][:4] == ("finished", 1, 0, 0)
    with project.changed() as change:  # a minute later
        change("UPDATE notification SET next_at = 1")
    assert project.agac("run", "-a", "reviews").code == 0
    assert outbox(project)[0] == ("finished", 2, 1, 1, None)
    told = [one["id"] for one in map(verified, receiver.messages)]
    assert told.count(told[0]) == 2


def test_a_failure_and_a_limit_are_told(project: ProjectFolder, receiver: Receiver) -> None:
    telling(project, HOOK, rows=3, max_errors=0, stages=[{"name": "one", "python": "tools/no.py:no"}])
    project.write("tools/no.py", "def no(row):\n    raise ValueError('secret row')\n")
    assert project.run().exit_code == 4
    telling(project, HOOK, rows=3)
    project.configure("http://127.0.0.1:9/v1", api_key="${NOT_SET}")
    with pytest.raises(agac.SpecError):
        telling(project, HOOK, rows=3).run()
    assert [(one["kind"], one["exit_code"], one["next"]) for one in receiver.bodies] == [("limit", 4, "agac status 1")]
    assert "secret row" not in receiver.messages[0][1]


def test_decisions_that_people_are_to_make_are_told(project: ProjectFolder, receiver: Receiver) -> None:
    ask = {"name": "classify", "prompt": "${text}"}
    telling(project, HOOK, rows=3, stages=[ask, {"name": "approve", "review": {}}])
    assert project.run().exit_code == 0
    (body,) = map(verified, receiver.messages)
    assert (body["kind"], body["waiting"], body["rows"]["open"], body["next"]) == ("review", 3, 3, "agac review next")
    assert body["message"] == "reviews: run 1 waits for 3 decisions of people: 3 rows, 3 open"
    queue = agac.review_queue(project=project.root).items
    decisions = [agac.Decision(item=one.id, choice="approve", reviewer="me", seen=one.seen) for one in queue]
    agac.decide(project.root, decisions)
    assert project.run().exit_code == 0
    assert [one["kind"] for one in receiver.bodies] == ["review", "finished"]


def test_only_those_kinds_are_told_that_a_target_wants(project: ProjectFolder, receiver: Receiver) -> None:
    telling(project, {**HOOK, "on": ["failed", "limit"]}, {**HOOK, "on": "finished"}).run()
    assert [one["kind"] for one in receiver.bodies] == ["finished"]
    project.workflow("quiet", notify=[])
    project.run("quiet")
    assert len(receiver.messages) == 1


def test_a_command_reads_the_message_and_sees_no_secret(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_SECRET", "value-of-the-secret")
    code = "import json, os, sys; json.dump([json.load(sys.stdin), dict(os.environ)], open('told.json', 'w'))"
    telling(project, {"command": [sys.executable, "-c", code]}).run()
    body, env = json.loads((project.root / "told.json").read_text())
    assert (body["kind"], body["run"]) == ("finished", 1)
    assert "MY_SECRET" not in env
    assert "PATH" in env


@pytest.mark.parametrize(
    ("code", "why"),
    [("raise SystemExit(3)", "it ended with exit status 3"), ("import time; time.sleep(60)", "it took more than 0 s")],
)
def test_a_command_that_fails_or_hangs_costs_the_run_nothing(
    code: str, why: str, project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "SEND_SECONDS", 0.4)
    report = telling(project, {"command": [sys.executable, "-c", code]}).run()
    assert report.exit_code == 0
    assert report.invocation["notifications"] == {"left": 1, "error": why}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what apprise imports
def test_apprise_tells_chats_and_mail(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("apprise")
    monkeypatch.setenv("CHAT_URL", f"json://127.0.0.1:{receiver.port}/hook/secret-path")
    telling(project, {"apprise": "${CHAT_URL}"}).run()
    (body,) = receiver.bodies
    assert body["title"] == "agac: reviews: run 1 is finished: 2 rows, 2 done"
    assert body["message"] == "Next: agac inspect 1"
    monkeypatch.setenv("CHAT_URL", "nonsense://somewhere")
    (tested,) = agac.notify_test(project=project.root).messages
    assert tested.error == "it is no address that apprise knows"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what apprise imports
def test_a_message_that_is_answered_by_a_redirect_has_not_arrived(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("apprise")

    def moved(request: BaseHTTPRequestHandler) -> None:
        request.rfile.read(int(request.headers["Content-Length"]))
        reply(request, b"", 302, Location="/elsewhere")

    receiver.pages |= {"/hook/secret-path": moved, "/elsewhere": b"a page that knows of no message"}
    monkeypatch.setenv("CHAT_URL", f"json://127.0.0.1:{receiver.port}/hook/secret-path")
    monkeypatch.setattr("agac.api.notify.SEND_SECONDS", 1.0)  # for which a run that has ended tries again
    for target in ({"apprise": "${CHAT_URL}"}, HOOK):
        report = telling(project, target).run(fresh=True)
        assert report.invocation["notifications"]["left"] >= 1
        assert report.exit_code == 0
    assert {path for _, path, _ in receiver.seen if "elsewhere" in path} == set()


def test_a_heartbeat_is_called_while_a_run_is_alive(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.pages["/beat"] = b"ok"
    telling(project, {"heartbeat": f"{receiver.url}/beat"}).run()
    assert [(how, path) for how, path, _ in receiver.seen] == [("GET", "/beat")]
    monkeypatch.setattr(notify, "LOOK_SECONDS", 0.01)
    del receiver.pages["/beat"]
    assert project.run().exit_code == 0
    assert [one.message for one in caplog.records if "heartbeat" in one.message] == [
        f"the heartbeat {receiver.url}/beat is not called: it answered 404"
    ]
    assert outbox(project) == []


def test_a_batch_that_ended_and_one_that_is_stuck_are_told(
    batches_at: Make, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = batches_at(seconds=60, rows=2)
    telling(project, HOOK, defaults={"run_mode": "batch"})
    project.run()
    project.retrieve()
    assert receiver.bodies == []  # it only waits
    with store(project) as database:
        database.execute("UPDATE batch SET moved_at = moved_at - ?", (DAY,))
    project.retrieve()
    advance(project.server, 120)
    project.retrieve()
    told = [(one["kind"], one["next"], one.get("batch")) for one in receiver.bodies]
    assert told[0] == ("stuck", "agac doctor", None)
    assert sorted(told[1:]) == [("batch_ended", "agac batch retrieve", 1), ("finished", "agac inspect 1", None)]
    assert len({one["id"] for one in map(verified, receiver.messages)}) == 3


def test_a_run_without_progress_is_told_once(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The function waits until somebody was told that nothing happens."""
    monkeypatch.setattr(notify, "STUCK_SECONDS", 0.02)
    monkeypatch.setattr(notify, "LOOK_SECONDS", 0.01)
    there = project.root / "told"
    receiver.answers = [lambda request: there.touch() or reply(request, b"", 204)]
    wait = (
        "import pathlib, time\ndef slow(row):\n    while not pathlib.Path('{}').exists():\n        time.sleep(0.01)\n"
    )
    project.write("tools/slow.py", wait.format(there) + "    return row\n")
    telling(project, {**HOOK, "on": ["stuck"]}, rows=1, stages=[{"name": "one", "python": "tools/slow.py:slow"}])
    assert project.run().exit_code == 0
    assert receiver.bodies[0]["message"] == "reviews: run 1 has made no progress for 0 minutes"
    assert len({one["id"] for one in receiver.bodies}) == len(receiver.bodies)


def test_what_lacks_a_variable_is_not_waited_for(project: ProjectFolder, receiver: Receiver) -> None:
    report = telling(project, {"webhook": "${NOT_SET}"}, {**HOOK, "secret": "${HOOK_URL}"}).run()
    assert sorted(one[1:3] for one in outbox(project)) == [(1, 0), (1, 0)]
    assert report.invocation["notifications"]["left"] == 2
    assert receiver.messages == []
    assert {error for *_, error in outbox(project)} == {
        "the variable NOT_SET is not set", "its secret is not `whsec_` and 24 to 64 bytes in base64",
    }  # fmt: skip


def test_test_sends_a_marked_message_to_every_target(project: ProjectFolder, receiver: Receiver) -> None:
    telling(project, HOOK, {"webhook": "${NOT_SET}"})
    project.workflow("other", notify={"webhook": "${HOOK_URL}", "on": ["failed"]})
    ran = project.agac("notify", "test", code=1)
    assert "NOT_SET" in ran.out
    assert sorted((one["kind"], one["workflow"]) for one in receiver.bodies) == [("test", "other"), ("test", "reviews")]
    assert project.agac("notify", "test", "-a", "other", code=0)
    assert not (project.root / ".agac/agac.db").exists()
    project.write("agac.yml", "")
    project.workflow("other")
    project.workflow()
    assert "there is no `notify`" in project.agac("notify", "test", code=2).err


MISTAKES = {
    "on: [finishd]\n    webhook: ${X}": "unknown value 'finishd'; did you mean 'finished'?",
    "on: finished": "needs one of webhook, apprise, command, heartbeat",
    "webhook: ${X}\n    command: [x]": "needs one of webhook, apprise, command, heartbeat",
    "webhook: ftp://x": "starts with http:// or https://",
    "webhook: https://hooks.example.com/T0/abcdefghijklmnop1234567890XYZ": "looks like a secret",
    "webhook: ${X}\n    secret: whsec_abc": "is a secret; write ${MY_KEY} and put it in .env",
    "apprise: mailto://me:pw@example.com": "is a secret; write ${MY_KEY} and put it in .env",
    "command: [x]\n    secret: ${X}": "secret is for a webhook; remove it",
    "heartbeat: ${X}\n    on: [failed]": "a heartbeat tells of nothing; remove `on`",
    "command: []": "is empty",
    "command: say hello": "expected a list",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_in_notify_is_named_at_its_place(text: str, project: ProjectFolder) -> None:
    project.workflow(rows=1)
    project.write("agac.yml", f"notify:\n  - {text}\n")
    found = [str(one) for one in agac.validate(project=project.root).problems if "notify" in one.path]
    assert any(MISTAKES[text] in one and one.startswith("agac.yml:") for one in found), found


def test_a_missing_variable_and_a_missing_package_are_named(
    project: ProjectFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling(project, {"webhook": "${NOWHERE}"}, {"apprise": "${NOWHERE}"})
    report = agac.validate(project=project.root)
    missing = "notify needs the variable NOWHERE; export it, or write NOWHERE=… into the project's .env file"
    assert {(one.severity, one.message) for one in report.problems} == {("warning", missing)}
    untrusted = agac.validate(project=project.root, untrusted=True)
    assert untrusted.problems == []
    monkeypatch.setattr(checks, "lack_of", lambda what, package: f"{what} needs {package}")
    assert "notify: apprise needs apprise" in [one.message for one in agac.validate(project=project.root).problems]


def test_tries_and_tests_tell_nobody(project: ProjectFolder, receiver: Receiver) -> None:
    telling(project, HOOK)
    project.write("tests/workflows/reviews.yml", "rows: data/rows.csv\n")
    project.agac("test", code=0)
    assert receiver.messages == []


def test_old_messages_go_with_their_run(project: ProjectFolder, receiver: Receiver) -> None:
    telling(project, HOOK).run()
    project.run(fresh=True)
    project.agac("gc", "--keep-runs", "1", code=0)
    assert project.query("SELECT run_id FROM notification") == [(2,)]


def waiting_message(project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """One message of the workflow waits, as its receiver refused it."""
    monkeypatch.setattr(notify, "SEND_SECONDS", 0.3)
    receiver.answers = [503]
    assert telling(project, HOOK).run().invocation["notifications"]["left"] == 1
    with project.changed() as change:
        change("UPDATE notification SET next_at = 1")


def renamed(project: ProjectFolder, old: str, new: str) -> None:
    file = project.root / "agac.yml"
    file.write_text(file.read_text("utf-8").replace(old, new), "utf-8")


def test_messages_to_a_target_that_was_removed_are_dropped_with_a_sentence_and_not_sent(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_message(project, receiver, monkeypatch)
    renamed(project, "${HOOK_URL}", "${OTHER_URL}")
    monkeypatch.setenv("OTHER_URL", f"{receiver.url}/hook/secret-path")
    before = len(receiver.messages)
    ran = project.agac("run", "-a", "reviews", code=0)
    why = "neither agac.yml nor the workflow reviews names this target any more"
    assert (
        f"Dropped: 1 message of the workflow reviews to webhook ${{HOOK_URL}}: {why}. They are not sent; to have later "
        "ones sent, add the target to `notify` again."
    ) in ran.out
    assert [body["run"] for body in receiver.bodies[before:]] == [1], "of this invocation, to the target that is named"
    assert outbox(project)[0][2:] == (1, 0, f"dropped: {why}")
    assert "Dropped" not in project.agac("run", "-a", "reviews", code=0).out


def test_messages_of_another_workflow_are_dropped_where_its_file_names_their_target_no_more(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_message(project, receiver, monkeypatch)
    renamed(project, "${HOOK_URL}", "${OTHER_URL}")
    (project.root / "workflows/reviews.yml").rename(project.root / "workflows/other.yml")
    monkeypatch.setenv("OTHER_URL", f"{receiver.url}/hook/secret-path")
    ran = project.agac("run", "-a", "other", code=0)
    assert "1 message of the workflow reviews to webhook ${HOOK_URL}" in ran.out


def test_messages_wait_on_where_the_file_of_their_workflow_cannot_be_read(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_message(project, receiver, monkeypatch)
    monkeypatch.delenv("HOOK_URL")
    text = (project.root / "workflows/reviews.yml").read_text("utf-8")
    project.write("workflows/other.yml", f"notify: []\n{text}")
    project.write("workflows/reviews.yml", "stages: [\n")
    ran = project.agac("run", "-a", "other", code=0)
    assert "Dropped" not in ran.out
    assert outbox(project)[0][2:4] == (0, 0)


def test_a_workflow_that_says_nobody_is_told_drops_what_waits(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_message(project, receiver, monkeypatch)
    file = project.root / "workflows/reviews.yml"
    file.write_text("notify: []\n" + file.read_text("utf-8"), "utf-8")
    before = len(receiver.messages)
    report = project.run()
    (sentence,) = report.invocation["dropped_messages"]
    assert sentence.startswith("Dropped: 1 message of the workflow reviews to webhook ${HOOK_URL}")
    assert "notifications" not in report.invocation
    assert len(receiver.messages) == before


def test_a_message_that_is_given_up_is_named_with_the_reason(
    project: ProjectFolder, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting_message(project, receiver, monkeypatch)
    monkeypatch.setattr(notify, "MAX_ATTEMPTS", 2)
    receiver.answers = [503]
    project.run()
    assert "to webhook ${HOOK_URL} is given up after 2 attempts: it answered 503. It is not sent" in caplog.text


def test_a_stored_run_tells_no_target_that_was_removed_since(
    batches_at: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    project = batches_at(seconds=60, rows=2)
    told = tmp_path / "told.txt"
    write = {"command": [sys.executable, "-c", f"open({str(told)!r}, 'a').write('told')"]}
    beat = {"heartbeat": "https://beat.invalid/removed"}
    telling(project, write, beat, defaults={"run_mode": "batch"})
    project.run()
    body = yaml.safe_load((project.root / "agac.yml").read_text("utf-8"))
    project.write("agac.yml", yaml.safe_dump(body | {"notify": []}))
    advance(project.server, 120)
    caplog.clear()
    project.retrieve()
    assert not told.exists()
    assert outbox(project) == []
    said = [one.message for one in caplog.records]
    assert [one for one in said if "https://beat.invalid/removed is not told of this run: neither agac.yml nor" in one]
    assert not [one for one in said if "is not called" in one]

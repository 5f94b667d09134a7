"""A program that says the events of OpenCode, for tests of what agac does with it: it asks no model. What it does is
the word after `do:` in its prompt. It notes each start, with its environment, beside itself."""

import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from support.services import starts

PROGRAM = """\
import json, os, subprocess, sys, time
from pathlib import Path

words = sys.argv[1:]
if words == ["--version"]:
    Path(__file__).with_name("version.json").write_text(json.dumps(dict(os.environ)))
    print("1.18.33", flush=True)
    time.sleep(600)
prompt, home = sys.stdin.read(), Path(os.environ["HOME"])
goes_on = words[words.index("--session") + 1] if "--session" in words else None
session = goes_on or f"ses_{os.getpid()}"
kept = home / session
does = kept.read_text().split() if kept.exists() else prompt.partition("do:")[2].split()[:1] or ["answer"]
kept.write_text(does[0])
with Path(__file__).with_name("starts.jsonl").open("a") as file:
    note = {"words": words, "prompt": prompt, "folder": os.getcwd(), "env": dict(os.environ), "pid": os.getpid(),
            "files": sorted(os.listdir())}
    file.write(json.dumps(note) + "\\n")


def say(kind, **more):
    event = {"type": kind, "timestamp": 0, "sessionID": session, **more}
    sys.stdout.write(json.dumps(event) + "\\n")
    sys.stdout.flush()


def step(text, reason="stop", tokens=100):
    say("step_start", part={})
    if text:
        say("text", part={"text": text})
    counts = {"input": tokens, "output": 10, "reasoning": 5, "cache": {"read": 40, "write": 3}}
    say("step_finish", part={"reason": reason, "tokens": counts})


def fail(status, code):
    say("error", error={"name": "APIError", "data": {
        "message": "no", "statusCode": status, "responseHeaders": {"retry-after": "0"},
        "responseBody": json.dumps({"error": {"message": f"it says {code}", "code": code, "type": "x"}})}})
    sys.exit(1)


match does[0]:
    case "answer":
        say("tool_use", part={"tool": "read", "state": {"status": "completed", "output": "x" * 50_000}})
        step("I look first", "tool-calls")
        step("the answer")
    case "form":
        (Path("seen") if goes_on else Path("first")).write_text("x")
        step('{"a": "mended"}' if goes_on else "no JSON")
    case "tells":
        step(Path(os.environ["XDG_CONFIG_HOME"], "opencode", "AGENTS.md").read_text())
    case "never":
        step("no JSON")
    case "silent":
        sys.exit(0)
    case "empty":
        step("")
    case "cut":
        step("the beg", "length")
    case "crash":
        step("paid", "tool-calls")
        sys.stderr.write("out of paper\\n")
        sys.exit(3)
    case "locked":
        if not (home / "tried").exists():
            (home / "tried").touch()
            sys.exit("Error: database is locked")
        step("the answer")
    case "warned":
        sys.stderr.write("a cache says: database is locked\\n")
        step("the answer")
    case "stays":
        step("the answer")
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    case "deep":
        print('{"type": "odd", "part": ' + '{"a": ' * 900 + "1" + "}" * 901)
        print('{"type": "odd", "part": ' + "[" * 9_000 + "]" * 9_000 + "}")
        say("odd", part={"text": "\\ud800", "tokens": 10**400})
        sys.stdout.buffer.write(b'{"type": "odd", "part": "\\\\ud800 \\xff"}\\n\\0\\xff[{\\n')
        step("the answer")
    case "tells_its_key":
        say("tool_use", part={"state": {"output": "x" * 19_990 + os.environ["AGAC_KEY"]}})
        sys.stderr.write(os.environ["AGAC_KEY"] + "x" * 3_990)
        step("the answer")
    case "endless":
        while True:
            say("text", part={"text": "x" * 1_000_000})
    case "loops":
        for _ in range(99):
            step("", "tool-calls")
            time.sleep(0.01)
    case "large":
        step("x", "tool-calls", 50_000)
        time.sleep(99)
    case "refused":
        step("", "tool-calls")
        fail(400, "context_length_exceeded")
    case "key":
        fail(401, "invalid_api_key")
    case "hangs":
        step("", "tool-calls")
        code = "import os, time; os.fork() and os._exit(0); time.sleep(600)"
        subprocess.Popen([sys.executable, "-c", code], start_new_session=True).wait()
        time.sleep(600)
"""


class FakeOpenCode:
    """The program in the folder of a project. `command` is how a runtime calls it."""

    command = "bin/opencode"

    def __init__(self, root: Path) -> None:
        starts("OpenCode")
        self.folder = root / "bin"
        self.folder.mkdir()
        (self.folder / "program.py").write_text(PROGRAM, encoding="utf-8")
        file = self.folder / "opencode"
        file.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {self.folder / "program.py"} "$@"\n', "utf-8")
        file.chmod(0o755)

    def starts(self) -> list[dict[str, Any]]:
        """What was noted of each start, but of those for the version."""
        file = self.folder / "starts.jsonl"
        return [json.loads(line) for line in file.read_text("utf-8").split("\n") if line] if file.exists() else []

    def running(self) -> list[int]:
        """The processes that belong to any of its sessions, children that left their group too."""
        marks = [f"AGAC_SESSION={one['env']['AGAC_SESSION']}".encode() for one in self.starts()]
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if int(place.name) != os.getpid() and any(mark in words for mark in marks):
                found.append(int(place.name))
        return found

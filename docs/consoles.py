# ruff: noqa: INP001, S310, S603, S607
"""The console blocks of the pages: typed for real, and compared with what the page shows.

A page is typed by somebody who begins in an empty folder, has `agac` on the PATH and does nothing else: every command
of its console blocks goes in order into one bash, as it stands there; a file is written where the page shows it, into a
folder that is there; a Python block is a program. Who types a page of docs/examples has copied that folder. A block is
lines `$ command`, each followed by its output. What differs from run to run (times, sizes) is not compared.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pages import ROOT, Block, blocks, generated

COMMANDS = Path(sys.executable).parent
"""Where the reader's `agac` is."""

SHOWN_HOME = "/home/me"
SHOWN_PORT = "8088"
WAIT_SECONDS = 60.0
_END = "--- end of output"
_SECRET = re.compile(
    r"API_KEY|TOKEN|PROXY|VIRTUAL_ENV|PYTHON|AGAC(?!_TEST)|^(CI$|CI_|GITHUB_|GITLAB_|BITBUCKET_)", re.IGNORECASE
)
"""What a reader who sits at a machine of their own does not have, or nobody is to see."""
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"), "2026-11-20T12:00:00Z"),
    (re.compile(r"\([0-9a-f]{8}, \d{4}-\d\d-\d\d"), "(1a2b3c4d, 2026-11-23"),
    (re.compile(r"--against [0-9a-f]{8}`"), "--against 1a2b3c4d`"),
    (re.compile(r"Store: [\d.,]+ MB"), "Store: 0.2 MB"),
    (re.compile(r"\.db: [\d.,]+ MB"), ".db: 0.2 MB"),
    (re.compile(r"Python 3\.\d+\.\d+"), "Python 3.11.7"),
    (re.compile(r'_request_at": [\d.]+'), '_request_at": 0'),
    (re.compile(r"Time per call: .*; elapsed: .*"), "Time per call: 3 ms; elapsed: 1 s"),
    (re.compile(r"(\): \w+(, \w+)? in )[\d,.]+ m?s\b"), r"\g<1>3 ms"),
    (re.compile(r"calls of [\d,]+ ms \(p95 [\d,]+ ms\)"), "calls of 3 ms (p95 9 ms)"),
    (re.compile(r"  [\d,.]+ s$"), "  8.0 s"),
    (re.compile(r"\b(half|one) took .*"), r"\1 took 1s"),
    (re.compile(r"(\), | to [~$\d.]+, )about \d+[smhd]( \d+[smhd])?$"), r"\1about 1s"),
    (re.compile(r"Prefix cache: .*"), "Prefix cache: 90.0% of prompt tokens"),
    (re.compile(r"\b(msg)?batch_[0-9a-z]{12,}"), r"\1batch_abc123"),
    (re.compile(r"\b\d+[smhd]( \d+[smh])? (ago|old)\b"), r"1s \2"),
    (re.compile(r"/t/[\w-]{20,}"), "/t/vT0pXq2mYb7RkWd5uZs1eNhC4gLfAj8o"),
    (re.compile(r"\(in \d+[smhd]( \d+[smh])?\)"), "(in 1h 00m)"),
)
_PROGRESS = re.compile(r"^(.*\| [\d,.]+/s \||retrying: |elapsed \d).*\n", re.MULTILINE)
"""What a slow machine says on the way."""
_VARIES_AFTER_A_KILL = (
    (re.compile(r"Resumed: \d+ rows"), "Resumed: # rows"),
    (re.compile(r" killed [ \d,]+.*"), " killed"),
)


@dataclass
class Step:
    """A command of a block, and the output that the page shows for it."""

    command: str
    shown: list[str]
    gap: int = 0


@dataclass
class Session:
    """The bash into which a page is typed: it begins in an empty folder, the reader's home."""

    home: Path
    stack: ExitStack
    port: str
    bash: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True)
        self.bash = self.popen("--noprofile", "--norc", cwd=self.home)
        self.stack.callback(self.close)

    def close(self) -> None:
        """Ends the shell, and what it left in the background."""
        os.killpg(self.bash.pid, signal.SIGTERM)
        self.bash.communicate(b"exit\n", timeout=WAIT_SECONDS)

    def environment(self) -> dict[str, str]:
        """The reader's: our agac first, no key, no proxy, a home of his own."""
        kept = {name: value for name, value in os.environ.items() if not _SECRET.search(name)}
        path = os.pathsep.join([str(COMMANDS), str(Path(sys.executable).parent), kept["PATH"]])
        return {**kept, "PATH": path, "HOME": str(self.home), "COLUMNS": "100"}

    def popen(self, *arguments: str, cwd: Path) -> subprocess.Popen[bytes]:
        """A bash that can be ended with all that it started."""
        return subprocess.Popen(
            ["bash", *arguments],
            cwd=cwd,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def type(self, words: str) -> tuple[int, list[str]]:
        """Types a line (or a few), and waits until it was done: the exit code, and the lines that came.

        What goes on in the background (`&`) is a server: it was started once its first line came.
        """
        assert self.bash.stdin is not None
        assert self.bash.stdout is not None
        self.bash.stdin.write(f"{self.inward(words)}\n".encode())
        self.bash.stdin.flush()
        out = self.bash.stdout.readline() if words.endswith("&") else b""
        self.bash.stdin.write(f"printf '%s %s\\n' '{_END}' $?\n".encode())
        self.bash.stdin.flush()
        for line in self.bash.stdout:
            before, mark, code = line.decode().partition(f"{_END} ")
            out += before.encode()
            if mark:
                return int(code), self.outward(out)
        raise AssertionError(f"the shell ended with `{words}`:\n" + out.decode())

    @property
    def folder(self) -> Path:
        """Where the reader is."""
        return Path(self.type("pwd")[1][0].replace(SHOWN_HOME, str(self.home), 1))

    def inward(self, text: str) -> str:
        """What the page says, with the port that is free here."""
        return re.sub(rf"\b{SHOWN_PORT}\b", self.port, text)

    def outward(self, out: bytes) -> list[str]:
        """What was printed, as the page may show it."""
        text = _PROGRESS.sub("", out.decode().replace(str(self.home), SHOWN_HOME))
        text = re.sub(rf"\b{self.port}\b", SHOWN_PORT, text)
        return [line.rstrip() for line in text.rstrip("\n").split("\n")] if text.strip() else []

    def show_or_write(self, block: Block, path: str) -> None:
        """A file of the page: one that is made from the repository is there as it is shown; others are written."""
        if block.text in from_files(block.page):
            text = block.text.removeprefix(f"# {path}\n")
            code, out = self.type(f"cat {path}")
            wrong = code or out != [line.rstrip() for line in text.split("\n")]
        else:
            code, out = self.type(f"cat > {path} <<'END_OF_FILE'\n{block.text}\nEND_OF_FILE")
            wrong = bool(code or out)
        if wrong:
            raise AssertionError(f"{block.where}: {path}:\n" + "\n".join(out))

    def faults(self, rules: str) -> str:
        """From now on `simulator/…` is answered by a simulator with these faults; gives its address."""
        base_url = self.stack.enter_context(simulator(self.home.parent, rules, self.environment()))
        settings = self.folder / "agac.yml"
        settings.write_text(
            f"{settings.read_text('utf-8')}\nproviders: {{simulator: {{base_url: {base_url}}}}}\n", encoding="utf-8"
        )
        return base_url

    def hub(self, file: str, folder: Path) -> None:
        """From now on `hf://` is a hub on this machine, with this file of the page's folder: OWNER/NAME/PATH."""
        from support.remote import Hub, serving

        owner, name, path = file.split("/", 2)
        hub = self.stack.enter_context(serving(Hub()))
        hub.files["datasets", f"{owner}/{name}", "main"] = {path: (folder / path).read_bytes()}
        self.type(f"export HF_ENDPOINT={hub.url}")


def from_files(page: Path) -> set[str]:
    """The blocks of a page that show files of the repository: the page tells nobody to write them."""
    parts = [part[2] for part in generated(page.read_text("utf-8"))]
    return {block for part in parts for block in re.findall(r"```\w+\n(.*?)\n```", part, re.DOTALL)}


@contextmanager
def simulator(home: Path, rules: str, environment: dict[str, str]) -> Iterator[str]:
    """A simulator with faults, for as long as the block lasts."""
    path = home / "faults.yml"
    path.write_text(rules, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "agac.simulator", json.dumps({"faults": str(path)})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    with process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield json.loads(process.stdout.readline())["base_url"]
        finally:
            process.stdin.close()


def steps(block: Block) -> list[Step]:
    """The commands of a console block; a command may go on over lines that end in a backslash."""
    found: list[Step] = []
    for line in block.text.split("\n"):
        if line.startswith("$ "):
            found.append(Step(line[2:], []))
        elif not found:
            raise ValueError(f"{block.where}: a console block starts with a line `$ command`")
        elif found[-1].command.endswith("\\"):
            found[-1].command += "\n" + line
        else:
            found[-1].shown.append(line.rstrip())
    for step in found:
        while step.shown and not step.shown[-1]:
            step.shown.pop()
            step.gap += 1
    return found


def run_page(page: Path, folder: Path) -> list[tuple[Block, str]]:
    """Types a page: its console blocks, and the text that each should hold."""
    found: list[tuple[Block, str]] = []
    with ExitStack() as stack:
        session = Session(folder, stack, free_port())
        if page.is_relative_to(ROOT / "docs/examples"):
            ignored = shutil.ignore_patterns(page.name, "__pycache__")
            shutil.copytree(ROOT / "docs/examples", folder, ignore=ignored, dirs_exist_ok=True)
        for block in blocks(page):
            if "hub" in block.directives:
                session.hub(block.directives["hub"], page.parent)
            if path := file_of(block):
                session.show_or_write(block, path)
            elif block.language == "console" and "not run" not in block.directives:
                found.append((block, played(block, session)))
            elif block.language == "python":
                code, out = session.type(f"python - <<'END'\n{block.text}\nEND")
                if code:
                    raise AssertionError(f"{block.where}: ended with {code}:\n" + "\n".join(out))
    return found


def file_of(block: Block) -> str | None:
    """The file that a block shows: told by a comment before it, or by the first line of YAML."""
    if "file" in block.directives:
        return block.directives["file"]
    first = block.text.partition("\n")[0]
    match = re.fullmatch(r"# ([\w./-]+\.ya?ml)(?: .*)?", first)
    return match[1] if block.language == "yaml" and match else None


def played(block: Block, session: Session) -> str:
    """The block's text with the output that its commands have now."""
    lines: list[str] = []
    for number, step in enumerate(steps(block)):
        lines.append(f"$ {step.command}")
        if number == 0 and "killed" in block.directives:
            out = killed(step.command, session, block.directives["killed"])
        else:
            code, out = session.type(step.command)
            if code:
                raise AssertionError(f"{block.where}: `{step.command}` ended with {code}:\n" + "\n".join(out))
        lines += step.shown if matches(step.shown, out, loose="killed" in block.directives) else out
        lines += [""] * step.gap
    return "\n".join(lines)


def matches(shown: list[str], out: list[str], *, loose: bool) -> bool:
    """Whether a page shows what was printed; a line `...` stands for any lines."""
    pattern = "\n".join(".*" if line == "..." else re.escape(plain(line, loose)) for line in shown)
    return re.fullmatch(pattern, "\n".join(plain(line, loose) for line in out), re.DOTALL) is not None


def plain(line: str, loose: bool) -> str:
    """A line without what differs from run to run."""
    for pattern, stand_in in (*_VARIES, *(_VARIES_AFTER_A_KILL if loose else ())):
        line = pattern.sub(stand_in, line)
    return re.sub(r" +", " ", line)


def killed(command: str, session: Session, how: str) -> list[str]:
    """Runs a command, and kills it with signal 9 when it waits for answers that do not come."""
    numbers = re.fullmatch(r"after (\d+) calls, (\d+) in flight", how)
    if numbers is None:
        raise ValueError(f"killed: {how}: write `after 40 calls, 4 in flight`")
    calls, flying = int(numbers[1]), int(numbers[2])
    base_url = session.faults(json.dumps([{"kind": "hang", "at": list(range(calls + 1, calls + flying + 1))}]))
    root = session.folder
    process = session.popen("-c", f"exec {command}", cwd=root)
    account = base_url.removesuffix("/v1") + "/account"
    until(lambda: asked(account) >= calls + flying and stored(root) >= calls, command)
    os.killpg(process.pid, signal.SIGKILL)
    out, _ = process.communicate(timeout=WAIT_SECONDS)
    return [*session.outward(out), "Killed"]


def asked(account: str) -> int:
    """Requests that came in."""
    with urllib.request.urlopen(account, timeout=10) as response:
        return int(json.load(response)["requests"])


def stored(root: Path) -> int:
    """Calls that are durable."""
    connection = sqlite3.connect(f"file:{root}/.agac/agac.db?mode=ro", uri=True)
    try:
        return int(connection.execute("SELECT count(*) FROM attempt").fetchone()[0])
    finally:
        connection.close()


def until(true: Callable[[], bool], what: str) -> None:
    """Looks again and again; gives up loudly."""
    end = time.monotonic() + WAIT_SECONDS
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def free_port() -> str:
    """A port that nobody uses now, of four digits or five."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def has_commands(page: Path) -> bool:
    """Whether there is anything to be typed."""
    return any(block.language in ("console", "python") for block in blocks(page))


def refreshed(page: Path, text: str, folder: Path) -> str:
    """`text`, which stands in the page, with the output that its commands have now."""
    lines = text.split("\n")
    for block, text in reversed(run_page(page, folder)):
        lines[block.first : block.last] = text.split("\n")
    return "\n".join(lines)

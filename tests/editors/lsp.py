"""A small editor: as much of the Language Server Protocol as it takes to open files and to ask about places."""

import json
import queue
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Self

WAIT_SECONDS = 60.0


class LanguageServer:
    """A server that speaks over its standard input and output, and the files that are open in it."""

    def __init__(self, command: list[str], root: Path, settings: dict[str, Any]) -> None:
        self._root = root
        self._settings = settings
        self._process = subprocess.Popen(
            command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._sending = threading.Lock()
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._published: queue.Queue[tuple[str, int | None, list[dict[str, Any]]]] = queue.Queue()
        self._numbers = 0
        self._versions: dict[str, int] = {}
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        folder = {"uri": self._root.as_uri(), "name": self._root.name}
        text = {"synchronization": {}, "publishDiagnostics": {"versionSupport": True}, "hover": {}, "completion": {}}
        can = {"workspace": {"configuration": True, "workspaceFolders": True}, "textDocument": text}
        self.request(
            "initialize",
            {"processId": None, "rootUri": folder["uri"], "workspaceFolders": [folder], "capabilities": can},
        )
        self._notify("initialized", {})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.request("shutdown", None)
            self._notify("exit", None)
            self._process.wait(WAIT_SECONDS)
        finally:
            self._process.kill()  # nothing, when it has ended
            self._reader.join(WAIT_SECONDS)
            for stream in (self._process.stdin, self._process.stdout):
                assert stream is not None
                stream.close()
            self._process.wait()

    def problems(self, path: str, text: str) -> list[str]:
        """What is underlined when the file holds `text`."""
        version = self._show(path, text)
        uri = self._uri(path)
        while True:
            published, of_version, found = self._published.get(timeout=WAIT_SECONDS)
            if published == uri and of_version in (None, version):
                return [one["message"] for one in found]

    def wait_for_problem(self, path: str, text: str) -> None:
        """Returns once the server has its settings: it reports a file that is wrong."""
        self._show(path, text)
        while not self._published.get(timeout=WAIT_SECONDS)[2]:
            pass

    def offered(self, path: str, text: str) -> list[str]:
        """What may be typed where `text` has a `|`, which is left out."""
        found = self._ask("textDocument/completion", path, text)
        return [item["label"] for item in (found["items"] if isinstance(found, dict) else found)]

    def hover(self, path: str, text: str) -> str:
        """What is shown about the place where `text` has a `|`, which is left out."""
        found = self._ask("textDocument/hover", path, text)
        return "" if found is None else str(found["contents"]["value"])

    def request(self, method: str, params: Any) -> Any:
        """The answer to a request; one is under way at a time."""
        self._numbers += 1
        self._send({"id": self._numbers, "method": method, "params": params})
        answer = self._answers.get(timeout=WAIT_SECONDS)
        assert answer["id"] == self._numbers
        assert "error" not in answer, answer["error"]
        return answer.get("result")

    def _ask(self, method: str, path: str, text: str) -> Any:
        before, _, after = text.partition("|")
        self._show(path, before + after)
        lines = before.split("\n")
        place = {"line": len(lines) - 1, "character": len(lines[-1])}
        return self.request(method, {"textDocument": {"uri": self._uri(path)}, "position": place})

    def _show(self, path: str, text: str) -> int:
        """Opens the file, or changes it when it is open; gives its version."""
        uri = self._uri(path)
        version = self._versions[path] = self._versions.get(path, 0) + 1
        if version == 1:
            document = {"uri": uri, "languageId": "yaml", "version": version, "text": text}
            self._notify("textDocument/didOpen", {"textDocument": document})
        else:
            document = {"uri": uri, "version": version}
            self._notify("textDocument/didChange", {"textDocument": document, "contentChanges": [{"text": text}]})
        return version

    def _uri(self, path: str) -> str:
        return (self._root / path).as_uri()

    def _notify(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        stream = self._process.stdin
        assert stream is not None
        with self._sending:
            stream.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            stream.flush()

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while line := stream.readline():
            length = 0
            while line.strip():
                name, _, value = line.decode().partition(":")
                length = int(value) if name.lower() == "content-length" else length
                line = stream.readline()
            self._receive(json.loads(stream.read(length)))

    def _receive(self, message: dict[str, Any]) -> None:
        if message.get("method") == "textDocument/publishDiagnostics":
            report = message["params"]
            self._published.put((report["uri"], report.get("version"), report["diagnostics"]))
        elif "method" in message and "id" in message:
            asked = message["params"]["items"] if message["method"] == "workspace/configuration" else None
            settings = [self._settings.get(item.get("section", "")) for item in asked] if asked else None
            self._send({"id": message["id"], "result": settings})
        elif "id" in message:
            self._answers.put(message)

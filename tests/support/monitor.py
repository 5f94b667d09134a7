"""`agac ui` as a real process, and requests to it as a browser or anybody else sends them."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlencode, urlsplit

from agac.web.security import form_token
from support.commands import Forked
from support.processes import ended
from support.project import ProjectFolder


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    text: str


@dataclass
class Watched:
    """A monitor that runs. `address`: what it printed, with its token."""

    address: str
    process: Forked
    cookie: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        entered = self.get(urlsplit(self.address).path, cookie=False)
        assert entered.status == 200, entered.text
        self.cookie = {"Cookie": entered.headers["set-cookie"].partition(";")[0]}

    @property
    def token(self) -> str:
        return self.address.rpartition("/")[2]

    @property
    def url(self) -> str:
        """Without the token."""
        return self.address.partition("/t/")[0]

    @property
    def port(self) -> int:
        return urlsplit(self.address).port or 0

    def get(self, path: str, headers: Mapping[str, str] | None = None, *, cookie: bool = True) -> Answer:
        return self._ask("GET", path, headers, cookie=cookie)

    def post(
        self, path: str, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None,
        *, cookie: bool = True, token: bool = True,
    ) -> Answer:  # fmt: skip
        """Sends a form, by default as a page of the monitor does."""
        sent = {**({"form_token": form_token(self.token)} if token else {}), **(form or {})}
        typed = {"Content-Type": "application/x-www-form-urlencoded"}
        return self._ask("POST", path, {**typed, **(headers or {})}, urlencode(sent), cookie=cookie)

    @contextmanager
    def events(self, path: str, last: str = "") -> Iterator[Iterator[tuple[str, str]]]:
        """The events of a stream as they come: id and data."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers={**self.cookie, **({"Last-Event-ID": last} if last else {})})
            response = connection.getresponse()
            assert response.getheader("content-type") == "text/event-stream; charset=utf-8"

            def read() -> Iterator[tuple[str, str]]:
                name, data = "", list[str]()
                for line in iter(lambda: response.readline().decode().rstrip("\n"), None):
                    field, _, value = line.partition(": ")
                    if field == "id":
                        name = value
                    elif field == "data":
                        data.append(value)
                    elif data:
                        yield name, "\n".join(data)
                        data = []

            yield read()
        finally:
            connection.close()

    def _ask(
        self, method: str, path: str, headers: Mapping[str, str] | None, body: str | None = None, *, cookie: bool
    ) -> Answer:
        """`path` goes as it is, dots included."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {**(self.cookie if cookie else {}), **(headers or {})})
            response = connection.getresponse()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, told, response.read().decode("utf-8"))
        finally:
            connection.close()


@contextmanager
def monitor(project: ProjectFolder, *words: str) -> Iterator[Watched]:
    """`agac ui` on the project, ended with SIGTERM."""
    process = project.start("ui", "--no-open", "--json", *words)
    try:
        line = process.stdout.readline()
        if not line:
            raise AssertionError(ended(process).err)
        yield Watched(json.loads(line)["url"], process)
    finally:
        process.send_signal(15)
        with suppress(AssertionError):
            ended(process, 20)
        process.kill()

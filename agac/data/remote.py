"""Content of other machines (`https://`, `hf://`) and of other folders (`file://`), fetched within
bounds."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import re
import socket
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from hashlib import blake2b
from pathlib import Path, PurePosixPath
from shutil import rmtree
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import url2pathname

from pydantic import BaseModel, ConfigDict, StringConstraints

from agac.core.errors import AgacError, lack_of, listed
from agac.core.keys import DIGEST_BYTES, digest
from agac.core.state_files import make_folder
from agac.data.compression import GZIP, ZSTANDARD
from agac.data.files import opened, remove_leftovers, write_whole
from agac.data.hub import HUB_FORM, HubReference, files_of_hub, hub_problem, parse_hub
from agac.data.sources import KeptFile
from agac.spec.paths import UNTRUSTED, Refused, RemoteContent, refuse_secret
from agac.spec.project_files import MAX_BYTES
from agac.spec.yaml import expand

if TYPE_CHECKING:
    import aiohttp
    from huggingface_hub import HfApi
    from yarl import URL

    from agac.spec.project_models import RemoteContentFile

T = TypeVar("T")

FOLDER = Path(".agac") / "remote"
"""Where it is kept, relative to the project, as HASH/NAME: the same bytes are one file, which
nothing changes. A file for each reference says what it was the last time, so that a server need
not send it again (the hub has its own)."""

INPUT = "input"  # what the rows are to a workflow; everything else is a text
MAX_REDIRECTS = 5
SLOWEST = 10_000  # bytes in a second: a transfer may take so much longer than its time-out
_REDIRECTS = (301, 302, 303, 307, 308)
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_UNICAST = ipaddress.ip_network("2000::/3")
# of services to their own machines
_CLOUDS = [*map(ipaddress.ip_network, ("192.0.0.0/24", "168.63.129.16"))]
_AGREE = "in `remote` of agac.yml"


class _Kept(BaseModel):
    """What the file for a reference says of what it was the last time."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8,128}$")]
    """Of its content, which is kept in a folder of this name."""
    name: Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,100}$")]
    sent: Mapping[
        Literal["If-None-Match", "If-Modified-Since"],
        Annotated[str, StringConstraints(pattern=r"^[ -~]{1,4000}$")],
    ]
    """Headers by which a server knows that it is the same."""

    @property
    def headers(self) -> dict[str, str]:
        """What is sent."""
        return {str(name): value for name, value in self.sent.items()}


def _hash_of(path: Path) -> str:
    """Returns the hash of a file's content, as `KeptFile` names it."""
    hasher = blake2b(digest_size=DIGEST_BYTES)
    with path.open("rb") as file:
        for piece in iter(partial(file.read, 1 << 20), b""):
            hasher.update(piece)
    return hasher.hexdigest()


def kept_here(pinned: RemoteContent, folder: Path) -> RemoteContent:
    """Content as another machine's run names it, without a path that leads out of the folder for
    fetched content."""
    is_inside = pinned.path.resolve().is_relative_to(folder.resolve())
    return pinned if is_inside else replace(pinned, path=Path())


@dataclass(frozen=True, slots=True)
class RemoteContents:
    """Fetches what the files of the project at `root` name, each reference once."""

    root: Path
    rules: RemoteContentFile
    env: Mapping[str, str]
    transport: Callable[[], Any]
    """Returns the providers' module, with its proxies, certificates and reasons."""
    heed: Callable[[], None]
    """Raises to stop."""
    pinned: tuple[RemoteContent, ...] = ()
    """What was fetched before, and is to be as it was then."""
    hosts: tuple[str, ...] | None = None
    """Patterns as `*.example.com`: no other host is reached; None: any is."""
    logs_in: bool = True
    """True if the hub gets the user's token."""
    _fetched: dict[str, tuple[RemoteContent, ...]] = field(default_factory=dict, init=False)

    def fetch(self, reference: str, what: str) -> tuple[RemoteContent, ...]:
        """Fetches what `reference` names, which is `what` to a workflow: several files only of an
        input. Raises Refused."""
        known = f"{what}: {reference}" if what == UNTRUSTED else reference
        if known not in self._fetched:
            found = tuple(one for one in self.pinned if one.reference == reference)
            own = self
            if what == UNTRUSTED:
                own = replace(
                    self, rules=self.rules.model_copy(update={"headers": {}}), logs_in=False
                )
            fetch = {"file": own._local, "hf": own._of_hub}.get(
                reference.partition(":")[0], own._of_web
            )
            try:
                usable = found and all(one.path.is_file() for one in found)
                self._fetched[known] = found if usable else fetch(reference, what)
            except AgacError as error:  # of the disk, or of a proxy's variable
                raise Refused(f"{error.message}; {error.remedy}") from error
        return self._fetched[known]

    def _refuse_size(self, size: int, shown: str, what: str) -> None:
        most = self.rules.max_mb * 1_000_000 if what == INPUT else MAX_BYTES
        if size > most:
            if what == INPUT:
                remedy = f"raise max_mb {_AGREE}"
            else:
                remedy = "put data into an input"
            raise Refused(f"{shown} has more than {most:,} bytes; {remedy}")

    def _local(self, reference: str, what: str) -> tuple[RemoteContent, ...]:
        parts = urlsplit(reference)
        if parts.netloc not in ("", "localhost"):
            raise Refused(
                f"{reference} names the machine {parts.netloc}; write file:///path of this one"
            )
        path = Path(url2pathname(parts.path)).resolve()
        allowed = [self.root, *(Path(one) for one in self.rules.allow if Path(one).is_absolute())]
        if not any(path.is_relative_to(folder.resolve()) for folder in allowed):
            remedy = f"copy it into the project, or name its folder in `allow` {_AGREE}"
            raise Refused(f"{reference} leads out of the project; {remedy}")
        if what != INPUT:
            refuse_secret(path, self.root)
        if not path.is_file():
            raise Refused(f"{reference} is no file; check the path")
        return (RemoteContent(reference, path.name, "", path=path),)

    def _of_web(self, reference: str, what: str) -> tuple[RemoteContent, ...]:
        # whoever stops the waiting leaves a temporary file at most
        outcome = apart(lambda: asyncio.run(self._web(reference, what)))
        while not wait([outcome], 0.1).done:
            self.heed()
        return (outcome.result(),)

    async def _web(self, reference: str, what: str) -> RemoteContent:
        old, sent = self._known(reference)

        async def take(
            response: aiohttp.ClientResponse, end: asyncio.Timeout, url: str
        ) -> RemoteContent:
            if response.status == 304 and old is not None:
                return old
            named = reference if PurePosixPath(urlsplit(reference).path).suffix else url
            last = unquote(urlsplit(named).path).rstrip("/").rpartition("/")[2]
            name = re.sub(r"[^\w.-]+", "_", last).lstrip(".")[-100:] or "content"
            return await self._taken(response, end, RemoteContent(reference, name, ""), what)

        return await self._answered(reference, sent, take)

    def beginning(self, url: str, most: int, body: str | None = None) -> tuple[str, bytes]:
        """Returns the kind and at most this many bytes of the content of an address, which gets the
        JSON `body`. Raises Refused."""

        async def take(
            response: aiohttp.ClientResponse, _end: asyncio.Timeout, _url: str
        ) -> tuple[str, bytes]:
            if (
                response.status != 200
                or response.headers.get("Content-Encoding", "identity").lower() != "identity"
            ):
                raise Refused(f"{_shown(url)} answered {response.status}")
            data = bytearray()
            async for piece in response.content.iter_any():
                data += piece
                if len(data) >= most:
                    break
            return response.content_type, bytes(data[:most])

        return asyncio.run(self._answered(url, {}, take, body))

    def told(self, url: str, body: str | None, headers: Mapping[str, str]) -> int:
        """Returns the status with which an address answers JSON, or None; no redirect is followed.
        Raises Refused."""

        async def take(response: aiohttp.ClientResponse, _end: asyncio.Timeout, _url: str) -> int:
            return response.status

        return asyncio.run(self._answered(url, headers, take, body, redirects=0))

    async def _answered(
        self,
        reference: str,
        sent: Mapping[str, str],
        take: Callable[..., Awaitable[T]],
        body: str | None = None,
        redirects: int = MAX_REDIRECTS,
    ) -> T:
        """Returns what is taken of the answer at the end of all redirects."""
        import aiohttp

        url = reference
        shown = _shown(reference)
        seconds = self.rules.timeout
        silent = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
        session = aiohttp.ClientSession(timeout=silent, auto_decompress=False)
        try:
            async with asyncio.timeout(seconds) as end, session:
                for _ in range(redirects + 1):
                    async with await self._asked(session, url, sent, body) as response:
                        if response.status not in _REDIRECTS or not (
                            where := response.headers.get("Location")
                        ):
                            return await take(response, end, url)
                        url = urljoin(url, where)
                        body = None
        except Refused:
            raise
        except aiohttp.ClientPayloadError:
            reason = "the connection was lost before all of it came; try again"
        except TimeoutError:
            reason = f"it took more than {seconds:g} s; try again, or raise timeout {_AGREE}"
        except aiohttp.ClientConnectorCertificateError as error:
            remedy = "set SSL_CERT_FILE to a file of the certificates that sign it"
            said = self.transport().reason_of(error)
            raise Refused(f"the certificate of {shown} is not trusted: {said}; {remedy}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = f"{self.transport().reason_of(error)}; check the address and try again"
        else:
            often = f" more than {redirects} times" if redirects else ""
            raise Refused(f"{shown} redirects{often}; name the address that it leads to")
        raise Refused(f"{shown} cannot be fetched: {reason}")

    def _index(self, reference: str) -> Path:
        return self.root / FOLDER / f"{digest(reference).hex()}.json"

    def _known(self, reference: str) -> tuple[RemoteContent | None, dict[str, str]]:
        """Returns what was fetched before, if it exists, and headers that let a server say that it
        has not changed."""
        with suppress(OSError, ValueError):
            said = _Kept.model_validate_json(self._index(reference).read_text("utf-8"))
            path = self.root / FOLDER / said.hash / said.name
            if path.is_file() and not path.is_symlink() and _hash_of(path) == said.hash:
                return RemoteContent(reference, path.name, said.hash, path=path), {**said.headers}
        return None, {}

    async def _taken(
        self,
        response: aiohttp.ClientResponse,
        end: asyncio.Timeout,
        content: RemoteContent,
        what: str,
    ) -> RemoteContent:
        """Receives the content into its place and returns it with its hash."""
        shown = _shown(content.reference)
        _refuse_response(response, content, shown)
        remove_leftovers(self.root / FOLDER)
        kept = KeptFile(self.root / FOLDER)
        try:
            await self._receive(response, end, kept, shown, what)
            self._refuse_unpacked_size(kept, shown, what)
            path = kept.placed(self.root / FOLDER / kept.hash / content.name)
        finally:
            kept.abort()
        headers = response.headers
        validators = {
            "If-None-Match": headers.get("ETag"),
            "If-Modified-Since": headers.get("Last-Modified"),
        }
        record = {
            "hash": kept.hash,
            "name": path.name,
            "sent": {name: value for name, value in validators.items() if value},
        }
        write_whole(self._index(content.reference), json.dumps(record))
        return replace(content, hash=kept.hash, path=path)

    async def _receive(
        self,
        response: aiohttp.ClientResponse,
        end: asyncio.Timeout,
        kept: KeptFile,
        shown: str,
        what: str,
    ) -> None:
        """Writes the body of a response into a file, within the bounds of size and of time."""
        size = 0
        begun = end.when() or 0.0
        async for piece in response.content.iter_any():
            size += len(piece)
            self._refuse_size(size, shown, what)
            end.reschedule(begun + size / SLOWEST)
            kept.write(piece)
        end.reschedule(None)
        kept.finish()

    def _refuse_unpacked_size(self, kept: KeptFile, shown: str, what: str) -> None:
        """Raises Refused for a packed file that is too large once it is unpacked. A few bytes may
        unpack to more than is allowed."""
        with kept.temporary.open("rb") as file:
            is_packed = file.read(4).startswith((GZIP, ZSTANDARD))
        if not is_packed:
            return
        size = 0
        with opened(kept.temporary, shown) as unpacked:
            for piece in iter(partial(unpacked.read1, 1 << 20), b""):
                size += len(piece)
                self._refuse_size(size, f"{shown}, unpacked,", what)

    async def _asked(
        self, session: aiohttp.ClientSession, url: str, sent: Mapping[str, str], body: str | None
    ) -> aiohttp.ClientResponse:
        """Requests what `url` names, after all checks, from an address that was checked."""
        import aiohttp
        from yarl import URL

        parts, host = self._checked(url)
        proxy = self._proxy_for(url, host)
        tls = self.transport().tls_context(self.env) if parts.scheme == "https" else None
        port = f":{parts.port}" if parts.port else ""
        netloc = _bracketed(host) + port
        headers = {"Host": netloc, "User-Agent": "agac", "Accept-Encoding": "identity", **sent}
        if tls:
            headers |= self._own_headers(host, netloc)
        if body is not None:
            headers["Content-Type"] = "application/json"
        options: dict[str, Any] = {
            "headers": headers,
            "ssl": tls or False,
            "allow_redirects": False,
            "data": body,
            "proxy": proxy,
            "server_hostname": host if tls else None,
        }
        method = "GET" if body is None else "POST"
        port_number = parts.port or (443 if tls else 80)
        addresses = self._addresses(host, port_number, _shown(url), must=proxy is None)
        if proxy:
            addresses = [host]
        for address in addresses:
            target = f"{parts.scheme}://{_bracketed(address)}{port}{_path_of(parts)}"
            try:
                return await session.request(method, URL(target, encoded=True), **options)
            except aiohttp.ClientConnectorError:
                if address == addresses[-1]:
                    raise
        raise AssertionError

    def _proxy_for(self, url: str, host: str) -> URL | None:
        """Returns the proxy of an address, if it has one. Raises Refused for one of another
        kind."""
        from yarl import URL

        proxy: URL | None = self.transport().proxy_for(URL(url), self.env)
        if proxy is not None and proxy.scheme != "http":
            raise Refused(
                f"the proxy of {host} is no http:// proxy; name one, or add {host} to NO_PROXY"
            )
        return proxy

    def _own_headers(self, host: str, netloc: str) -> dict[str, str]:
        """Returns the headers that agac.yml has for a host, with or without its port."""
        headers = dict[str, str]()
        for named, values in self.rules.headers.items():
            if named.lower() in (host.lower(), netloc.lower()):
                headers |= {name: self._filled(name, value) for name, value in values.items()}
        return headers

    def _filled(self, name: str, value: str) -> str:
        text, missing = expand(value, self.env)
        if missing:
            raise Refused(
                f"the header {name} needs the environment variable {missing[0]}; set it or "
                "add it to .env"
            )
        return text.strip()

    def _checked(self, url: str) -> tuple[SplitResult, str]:
        """Returns the parts of an address, and its host. Raises Refused for what may not be fetched
        whatever its host."""
        parts = urlsplit("")
        host = ""
        with suppress(ValueError):
            parts = urlsplit(url)
            _ = parts.port
            host = (parts.hostname or "").rstrip(".").encode("idna").decode()
        if parts.scheme == "http" and not self.rules.http:
            remedy = f"write https://, or set `http: true` {_AGREE}"
            raise Refused(f"{_shown(url)} can be read and changed by anybody on the way; {remedy}")
        if parts.scheme not in ("http", "https") or not host:
            raise Refused(f"{_shown(url)} is no https:// address; check it")
        if self.hosts is not None and not any(
            fnmatch(host.lower(), one.lower()) for one in self.hosts
        ):
            raise Refused(
                f"the host {host} is none that may be reached; those are {listed(self.hosts)}"
            )
        if "@" in parts.netloc:
            remedy = f"put them into `headers` {_AGREE}, as ${{VARIABLE}}"
            raise Refused(f"an address of {host} has a user or a password in it; {remedy}")
        return parts, host

    def _addresses(self, host: str, port: int, shown: str, *, must: bool) -> list[str]:
        """Returns the addresses of a host, all of which may be reached; none if a proxy may be the
        only one to know it (not `must`)."""
        try:
            found = [
                str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            ]
        except (OSError, UnicodeError):
            if not must:
                return []
            raise Refused(
                f"the host {host} of {shown} cannot be found; check the address"
            ) from None
        allowed = host.lower() in map(str.lower, self.rules.allow)
        bad = next(
            (address for address in found if not (allowed or self._may_reach(address))), None
        )
        if bad:
            remedy = f"add {host} to `allow` {_AGREE} if it is meant"
            raise Refused(f"{shown} is at {bad}, which is no public address; {remedy}")
        return found

    def _may_reach(self, address: str) -> bool:
        ip = ipaddress.ip_address(address.partition("%")[0])
        if isinstance(ip, ipaddress.IPv6Address):  # what is really reached
            ip = (
                ipaddress.IPv4Address(ip.packed[-4:])
                if ip in _NAT64
                else ip.ipv4_mapped or ip.sixtofour
            ) or ip
        for one in self.rules.allow:
            with suppress(ValueError):
                if ip in ipaddress.ip_network(one, strict=False):
                    return True
        inner = ip.is_multicast or any(ip in one for one in _CLOUDS)
        return ip.is_global and not inner and (ip.version == 4 or ip in _UNICAST)

    def _of_hub(self, reference: str, what: str) -> tuple[RemoteContent, ...]:
        """Fetches files of the hub by `huggingface_hub`, which caches them and heeds HF_TOKEN,
        HF_ENDPOINT and its own time-outs."""
        wanted = parse_hub(reference)
        if what != INPUT and not wanted.path:
            raise Refused(f"{reference} names no file; {HUB_FORM}")
        lack = lack_of(f"{reference}: fetching", "huggingface-hub")
        if lack:
            raise Refused(f"{lack}; or download it, and name the file")
        from httpx2 import HTTPError
        from huggingface_hub import HfApi, errors

        token = (self.env.get("HF_TOKEN") or None) if self.logs_in else False
        hub = HfApi(endpoint=self.env.get("HF_ENDPOINT") or None, token=token)
        try:
            contents = self._contents_of_hub(hub, wanted, reference, what)
            make_folder(self.root / FOLDER)  # runs look there whether they used any content
            return tuple(self._downloaded(hub, wanted, content) for content in contents)
        except Refused:
            raise
        except (errors.HfHubHTTPError, HTTPError, OSError, ValueError) as error:
            raise Refused(hub_problem(error, reference, wanted)) from None

    def _contents_of_hub(
        self, hub: HfApi, wanted: HubReference, reference: str, what: str
    ) -> list[RemoteContent]:
        """Returns the pinned files of a reference, or else those that the hub lists now."""
        pinned = [content for content in self.pinned if content.reference == reference]
        if pinned:
            return pinned
        commit, files = files_of_hub(hub, wanted, reference)
        self._refuse_size(sum(file.size for file in files), reference, what)
        hashes = {file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in files}
        return [
            RemoteContent(reference, name, file_hash, commit) for name, file_hash in hashes.items()
        ]

    def _downloaded(
        self, hub: HfApi, wanted: HubReference, content: RemoteContent
    ) -> RemoteContent:
        """Downloads one file of the hub, unless it is in the hub's cache."""
        from huggingface_hub.utils.tqdm import silent_tqdm

        self.heed()
        options: dict[str, Any] = {
            "repo_type": wanted.kind,
            "revision": content.commit,
            "tqdm_class": silent_tqdm,
        }
        path = hub.hf_hub_download(wanted.repo, content.name, **options)
        return replace(content, path=Path(path))


def _path_of(parts: SplitResult) -> str:
    """Returns the path and the query of an address as they are sent."""
    query = f"?{parts.query}" if parts.query else ""
    return quote((parts.path or "/") + query, safe="%/?:@!$&'()*+,;=~[]")


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def apart(work: Callable[[], T]) -> Future[T]:
    """Runs `work` in a thread of its own and returns its outcome: this thread may run a loop, and
    does not have to wait for the end."""
    outcome: Future[T] = Future()

    def finish() -> None:
        # from here on its end can be set, whether or not anybody waits
        outcome.set_running_or_notify_cancel()
        try:
            outcome.set_result(work())
        except BaseException as error:  # noqa: BLE001 - it is raised by whoever waits
            outcome.set_exception(error)

    Thread(target=finish, name="agac-fetch", daemon=True).start()
    return outcome


def _shown(url: str) -> str:
    """Returns an address without its query, which may hold a signature, and without a user."""
    return re.sub(r"(?<=://)[^/]*@", "", url.partition("?")[0])


def forget_contents(root: Path, needed: Collection[str]) -> None:
    """Removes what was kept, but the content of these hashes."""
    for path in (root / FOLDER).glob("[!.]*"):
        if path.is_dir() and path.name not in needed:
            rmtree(path)


# References to the Hugging Face Hub.


def _refuse_response(response: aiohttp.ClientResponse, content: RemoteContent, shown: str) -> None:
    """Raises Refused for a response that is not the content as it is."""
    if response.status != 200:
        if response.status in (401, 403):
            remedy = (
                f"give what logs in as `headers` {_AGREE}, by its host; https alone carries them"
            )
        else:
            remedy = "check the address, or try again later"
        raise Refused(f"{shown} answered {response.status}; {remedy}")
    packed = response.headers.get("Content-Encoding", "identity").lower()
    is_gzip_file = (packed, PurePosixPath(content.name).suffix) == ("gzip", ".gz")
    if packed != "identity" and not is_gzip_file:
        raise Refused(
            f"{shown} was sent as {packed}, which nobody asked for; download it, and name the file"
        )

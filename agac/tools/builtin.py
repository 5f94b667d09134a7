"""The tools that agac brings: files and skills of the project, addresses of the web, a database, a
web search."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from html import unescape
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from agac.core.errors import AgacError, UsageError, did_you_mean
from agac.core.keys import canonical, digest
from agac.core.redact import Redactor
from agac.core.types import JSONValue
from agac.spec.paths import Refused, home_of, inside, refuse_secret
from agac.spec.project_files import descriptor_of
from agac.spec.tools import ToolKind, ToolSpec
from agac.spec.yaml import expand
from agac.store.query import answered
from agac.tools.tool_functions import ToolFailed, ToolFunction

if TYPE_CHECKING:
    from agac.data.remote import RemoteContents

VERSION = "1"
"""The version of what these tools do, a part of fingerprints."""
Changes = Callable[[Mapping[str, JSONValue]], JSONValue]
"""Tells calls apart that have the same arguments."""
MOST_BYTES = 1_000_000
"""The most bytes of a file or a page: what follows is not read."""
MOST_ROWS = 200
"""The most rows that a query gives."""
QUERY_S = 20.0
"""The seconds that a query may take."""


def builtin(spec: ToolSpec, root: Path, web: RemoteContents | None) -> tuple[ToolFunction, Changes]:
    """Returns what runs a tool that agac brings, and what tells equal calls of it apart. Raises
    UsageError."""
    key = str(spec.settings.get("api_key") or "")
    missing = expand(key, web.env)[1] if web is not None else []
    if missing:
        remedy = f"Export it, or write {missing[0]}=… into the project's .env file."
        raise UsageError(f"{spec.name} needs the variable {missing[0]}", remedy=remedy)
    if key and not str(spec.settings["url"]).startswith("https:"):
        raise UsageError(
            f"{spec.name} sends its api_key over https:// alone",
            remedy="Write https:// in its url.",
        )
    tools = Builtins(spec.settings, home_of(root).resolve(), web)
    return ToolFunction(getattr(tools, spec.source), spec.source, root), tools.changes


def describe_builtin(name: str, settings: Mapping[str, JSONValue], root: Path) -> ToolSpec:
    """Returns what a model is sent about agac's tool, with these settings. `read_skill`: `skills`
    are folders by name."""
    kind: ToolKind = "skill" if name == "read_skill" else "builtin"
    function, _ = builtin(ToolSpec(name, "", {}, kind, name, settings=settings), root, None)
    return ToolSpec(name, function.description, function.parameters, kind, name, VERSION, settings)


@dataclass(frozen=True, slots=True)
class Builtins:
    """The functions of these tools, for the settings of one; models are sent their docstrings."""

    settings: Mapping[str, Any]
    home: Path
    web: RemoteContents | None

    def changes(self, arguments: Mapping[str, JSONValue]) -> JSONValue:
        """Returns what tells equal calls apart: a file may change meanwhile, and addresses may be
        asked with other logins."""
        if self.web is not None and self.settings.keys() & {"allow", "url"}:
            return digest(canonical([expand(one, self.web.env)[0] for one in self._sent()])).hex()
        try:
            path = (
                self.settings.get("database")
                or f"{self.settings.get('root') or '.'}/{arguments['path']}"
            )
            files = [file for end in ("", "-wal") if (file := self.home / f"{path}{end}").exists()]
            return [
                [stat.st_mtime_ns, stat.st_size] for stat in (file.stat() for file in files)
            ] or None
        except (KeyError, OSError, ValueError):
            return None

    def _sent(self) -> list[str]:
        """Returns the values that log in somewhere, as they are written."""
        headers = self.web.rules.headers.values() if self.web else ()
        return [
            str(self.settings.get("api_key") or ""),
            *(one for own in headers for one in own.values()),
        ]

    def read_file(self, path: str) -> str:
        """Reads a text file; of a folder it lists the names.

        Args:
            path: Where the file is, relative to the folder that may be read.
        """
        return self._file(self.settings.get("root") or ".", path)

    def read_skill(self, name: str, file: str = "SKILL.md") -> str:
        """Reads a skill: its instructions, or another file of its folder that they name.

        Args:
            name: Name of the skill.
            file: Path of the file in the skill's folder.
        """
        skills = self.settings["skills"]
        if name not in skills:
            raise ToolFailed(f"there is no skill {name!r}; {did_you_mean(name, skills, 'skills')}")
        return self._file(skills[name], file)

    def _file(self, folder: str, path: str) -> str:
        try:
            base = inside(self.home, folder)
            file = inside(base, path)
            refuse_secret(file, self.home)
        except Refused as error:
            raise ToolFailed(str(error)) from None
        if any(part.startswith(".") for part in file.relative_to(base).parts):
            raise ToolFailed(f"{path!r} is hidden, and is not read")
        try:
            if file.is_dir():
                return "\n".join(
                    one.name + "/" * one.is_dir()
                    for one in sorted(file.iterdir())
                    if one.name[0] != "."
                )
            with os.fdopen(descriptor_of(file, self.home), "rb") as opened:
                data = opened.read(MOST_BYTES + 1)
        except Refused:  # a pipe, which would be waited for
            raise ToolFailed(f"{path!r} is no file") from None
        except OSError as error:
            raise ToolFailed(f"{path!r} cannot be read: {error.strerror or error}") from None
        if b"\0" in data[:1024]:
            raise ToolFailed(f"{path!r} is no text")
        return _text(data)

    def run_sql(self, query: str) -> str:
        """Runs one SQL statement that reads (SQLite). Gives the names of the columns, and rows.

        Args:
            query: The statement. `SELECT name, sql FROM sqlite_master` lists the tables.
        """
        try:
            path = inside(self.home, self.settings["database"])
            rows = list[Any]()
            size = 0
            with answered(path, query, until=monotonic() + QUERY_S) as answer:
                for row in answer:
                    rows.append([f"{len(v):,} bytes" if isinstance(v, bytes) else v for v in row])
                    size += sum(len(v) for v in rows[-1] if isinstance(v, str))
                    if len(rows) > MOST_ROWS or size > MOST_BYTES:
                        break
        except KeyboardInterrupt:
            raise ToolFailed(f"the query took longer than {QUERY_S:g} s; ask for less") from None
        except (Refused, AgacError) as error:
            raise ToolFailed(str(error).replace("`agac sql`", "this tool")) from None
        more = {"more": True} if len(rows) > MOST_ROWS or size > MOST_BYTES else {}
        return canonical({"columns": list(answer.columns), "rows": rows[:MOST_ROWS], **more})

    def http_get(self, url: str) -> str:
        """Fetches a page of the web as text.

        Args:
            url: Its address, https:// first.
        """
        assert self.web is not None
        kind, data = self._fetched(replace(self.web, hosts=tuple(self.settings["allow"])), url)
        if "html" in kind:
            return _plain_text(_text(data))
        return _text(data)

    def web_search(self, query: str, count: int = 5) -> str:
        """Searches the web. Gives title, address and a short text of each page found.

        Args:
            query: What to look for.
            count: How many pages.
        """
        assert self.web is not None
        parts = urlsplit(self.settings["url"])
        host = parts.hostname or ""
        shape = {**SHAPES[""], **SHAPES.get(host, {}), **self.settings.get("shape", {})}
        given: dict[str, Any] = {shape["query"]: query, shape["count"]: count}
        headers = self._search_key(shape, given)
        allowed = [*self.web.rules.allow, parts.hostname]
        rules = {"allow": allowed, "http": True, "headers": {parts.netloc: headers}}
        rules_of_search = self.web.rules.model_copy(update=rules)
        web = replace(self.web, hosts=(host,), rules=rules_of_search)
        if shape["method"].upper() == "POST":
            _, data = self._fetched(web, parts.geturl(), canonical(given))
        else:
            encoded = urlencode(given, quote_via=quote)
            url = parts._replace(query="&".join(filter(None, (parts.query, encoded)))).geturl()
            _, data = self._fetched(web, url)
        return canonical(_pages_found(data, shape)[:count])

    def _search_key(self, shape: Mapping[str, str], given: dict[str, Any]) -> dict[str, str]:
        """Adds the search's key to the parameters `given`, or returns it as a header."""
        assert self.web is not None
        key = self.settings.get("api_key", "")
        if not key:
            return {}
        place = shape["key"]
        if place.startswith("?"):
            given[place[1:]] = expand(key, self.web.env)[0]
            return {}
        if place == "Authorization":
            return {place: f"Bearer {key}"}
        return {place: key}

    def _fetched(self, web: RemoteContents, url: str, body: str | None = None) -> tuple[str, bytes]:
        """Returns the kind and the beginning of the content of an address, without what logs in
        there. Raises ToolFailed."""
        secrets = (
            word for one in self._sent() if "${" in one for word in expand(one, web.env)[0].split()
        )
        try:
            kind, data = web.beginning(url, MOST_BYTES, body)
        except Refused as error:
            raise ToolFailed(str(error), again=True) from None
        return kind, Redactor(secrets).clean_bytes(data)


SHAPES: Mapping[str, Mapping[str, str]] = {
    "": {
        "method": "GET",
        "query": "q",
        "count": "count",
        "key": "Authorization",
        "results": "results",
        "title": "title",
        "link": "url",
        "text": "content",
    },
    "api.search.brave.com": {
        "key": "X-Subscription-Token",
        "results": "web.results",
        "text": "description",
    },
    "serpapi.com": {
        "count": "num",
        "key": "?api_key",
        "results": "organic_results",
        "link": "link",
        "text": "snippet",
    },
}
"""How web searches are asked, and where in their answers the pages are, by the host. `key`: the
header of the key, or with a `?` its parameter."""


def _pages_found(data: bytes, shape: Mapping[str, str]) -> list[dict[str, Any]]:
    """Reads title, address and text of each page from a search's answer. Raises ToolFailed."""
    try:
        pages: Any = json.loads(data)
        for step in shape["results"].split("."):
            pages = pages.get(step) or {}
    except (ValueError, AttributeError):
        raise ToolFailed("the search gave an answer that cannot be read") from None
    if not isinstance(pages, list):
        return []
    names = {"title": shape["title"], "url": shape["link"], "text": shape["text"]}
    return [
        {key: page[name] for key, name in names.items() if name in page}
        for page in pages
        if isinstance(page, dict)
    ]


def _text(data: bytes) -> str:
    return data[:MOST_BYTES].decode("utf-8", "replace")


_TAG = re.compile(r"<(/?)([a-zA-Z!][\w-]*+)[^<>]*+>")
_HIDDEN = ("script", "style", "noscript", "template", "svg")
_BLOCKS = re.compile("address|article|br|dd|div|dt|h[1-6]|li|p|pre|section|t(able|d|h|itle|r)|ul")


def _plain_text(page: str) -> str:
    """Returns the text of a page, one line per block."""
    said = list[str]()
    hidden = ""
    parts = [*_TAG.split(page), "", ""]
    for text, slash, name in zip(parts[::3], parts[1::3], map(str.lower, parts[2::3]), strict=True):
        said.append("" if hidden else re.sub(r"\s+", " ", unescape(text)))
        if hidden:
            hidden = "" if slash and name == hidden else hidden
        elif name in _HIDDEN and not slash:
            hidden = name
        elif _BLOCKS.fullmatch(name):
            said.append("\n")
    return "\n".join(filter(None, map(str.strip, "".join(said).split("\n"))))

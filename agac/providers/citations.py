"""Sources of the web searches that providers run: where each dialect tells of them, and how they
become records.

A search costs money, and its sources are the only proof of what an answer says. Each dialect has a
table of the places in a reply that name sources; a new place is a new line, with where it is
documented."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from agac.core.errors import storable
from agac.core.types import Reply, WebSource
from agac.providers.bodies import count, mapping, text

MAX_SOURCES = 200
"""Sources of an answer that are kept: the cited ones first."""

MAX_URL = 4096
"""Characters of an address. A longer one is left out: its beginning would be another address."""

MAX_TITLE = 300
MAX_QUOTE = 2000
"""Characters of a title, and of a quoted text, that are kept."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a reply that names sources."""

    path: str
    """The keys that lead there, as `content:text.citations:web_search_result_location`: each holds
    an object or a list of them, and after a colon stands which value of `type` they must have. At
    its end are objects, or addresses."""
    source: str
    """Where the place is documented."""
    cited: bool = False
    """True if the answer refers to what stands here. If not, a reference by number or address in
    its text decides."""
    url: str = "url"
    """The key of the address. Those of a title and its place in the text are the same everywhere.
    """
    title: str = "title"
    """The key of the title; after a dot, that of an object in it."""
    quote: str = ""
    """The key of the quoted text; empty where there is none."""


_URL_CITATION = "openai SDK 3.52, AnnotationURLCitation"
_SEARCH_CALL = (
    "openai SDK 3.52, ResponseFunctionWebSearch; openai/openai-python issue 2636: some "
    "have no address"
)
_XAI = "docs.x.ai, Citations: all sources that were met"
_PERPLEXITY = (
    "perplexityai/api-discussion issue 175; BerriAI/litellm issue 13777: the text refers "
    "to them as [2][4]"
)
_GROQ = "console.groq.com/docs/compound/built-in-tools; stackbilt-dev/llm-providers 1.10.0"

CHAT_SOURCES = (
    # OpenRouter's have the text of the page as `content`
    Place(
        "choices.message.annotations:url_citation.url_citation",
        _URL_CITATION,
        cited=True,
        quote="content",
    ),
    Place(
        "choices.message.annotations:url_citation",
        "xAI and gateways: as in the Responses API",
        cited=True,
    ),
    Place(
        "search_results",
        "symfony/ai pull request 388: Perplexity's, with titles, in the order of `citations`",
    ),
    Place("citations", f"{_PERPLEXITY}; {_XAI}"),
    Place("choices.message.executed_tools.search_results.results", _GROQ),
)

RESPONSE_SOURCES = (
    Place("output:message.content:output_text.annotations:url_citation", _URL_CITATION, cited=True),
    Place("output:web_search_call.action.sources", _SEARCH_CALL),
    Place("output:web_search_call.action", _SEARCH_CALL),
    Place(
        "output:search_results.results",
        "docs.perplexity.ai/docs/cookbook/articles/streaming-citations",
    ),
    Place("citations", _XAI),
)

_ANTHROPIC = "anthropic SDK 2.12, "

MESSAGE_SOURCES = (
    Place(
        "content:text.citations:web_search_result_location",
        f"{_ANTHROPIC}CitationsWebSearchResultLocation",
        cited=True,
        quote="cited_text",
    ),
    Place(
        "content:web_search_tool_result.content:web_search_result",
        f"{_ANTHROPIC}WebSearchResultBlock",
    ),
    Place(
        "content:web_fetch_tool_result.content:web_fetch_result",
        f"{_ANTHROPIC}WebFetchBlock",
        title="content.title",
    ),
)


def top_level(places: Iterable[Place]) -> tuple[str, ...]:
    """Returns the keys of a reply itself that hold nothing but sources: streams repeat them
    whole."""
    return tuple(place.path for place in places if "." not in place.path)


class _Span(NamedTuple):
    """A part of an answer's text: the offset of its first character, and of the one after its
    last."""

    start: int
    end: int


def sources_of(data: Any, places: Iterable[Place], answer: str) -> tuple[WebSource, ...]:
    """Returns the sources that a reply names, the cited ones first. `answer` is its text as it
    came."""
    found: list[WebSource] = []
    for place in places:
        steps = _steps(place.path)
        if not mapping(data).get(steps[0][0]):  # as in most replies
            continue
        numbers = _Numbers(answer)
        for number, (value, span) in enumerate(_at(data, steps, None), 1):
            one = mapping(value) if isinstance(value, dict) else {place.url: value}
            url = storable(text(one, place.url)).strip()
            if 0 < len(url) <= MAX_URL:
                cited = place.cited or numbers.refer_to(number, url)
                found.append(_source(one, place, url, span, cited=cited))
    return _merged(found) if found else ()


def _source(
    entry: Mapping[str, Any], place: Place, url: str, span: _Span | None, *, cited: bool
) -> WebSource:
    """Returns a source as a record, with its place in the text where that is known."""
    name, _, inner = place.title.partition(".")
    title = text(entry.get(name), inner) if inner else text(entry, name)
    quote = storable(text(entry, place.quote))[:MAX_QUOTE] if place.quote else ""
    start, end = _span_of(entry, place, span) or (None, None)
    return WebSource(url, _one_line(title), cited, quote or None, start, end)


def _span_of(entry: Mapping[str, Any], place: Place, span: _Span | None) -> _Span | None:
    """Returns the part of the text that refers to a source, where the source says it or is
    attached to a part; `span` is that part."""
    first = count(entry, "start_index")
    after = count(entry, "end_index")
    if first is not None and after is not None and first <= after:
        offset = span.start if span is not None else 0
        return _Span(offset + first, offset + after)
    if place.cited and "start_index" not in entry:
        return span
    return None


_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def _one_line(title: str) -> str:
    """Returns a title without characters that control a terminal or end a line."""
    return " ".join(_CONTROLS.sub(" ", storable(title[: 2 * MAX_TITLE])).split())[:MAX_TITLE]


_NUMBER = re.compile(r"(?<!\[)\[([0-9]{1,4})\](?![(\]])")


class _Numbers:
    """How a text refers to sources: as `[2]`, by their place in a list, or by a link."""

    def __init__(self, answer: str) -> None:
        self._answer = answer
        self._found: frozenset[int] | None = None

    def refer_to(self, number: int, url: str) -> bool:
        """Returns whether the text refers to the source with this number and this address."""
        if self._found is None:
            self._found = frozenset(int(found[1]) for found in _NUMBER.finditer(self._answer))
        return number in self._found or f"]({url})" in self._answer


_STEPS: dict[str, tuple[tuple[str, str], ...]] = {}


def _steps(path: str) -> tuple[tuple[str, str], ...]:
    """Returns the keys of a path, each with the `type` that is wanted there, or an empty text."""
    if path not in _STEPS:
        parts = (part.partition(":") for part in path.split("."))
        _STEPS[path] = tuple((name, kind) for name, _, kind in parts)
    return _STEPS[path]


def _at(
    value: Any, steps: tuple[tuple[str, str], ...], span: _Span | None
) -> Iterator[tuple[Any, _Span | None]]:
    """Yields what stands at the end of a path, with the part of the text that it belongs to. Parts
    of a list follow one another in the text."""
    if not steps:
        yield value, span
        return
    (name, kind), *further = steps
    inner = mapping(value).get(name)
    at = 0
    for one in inner if isinstance(inner, list) else [inner]:
        if kind and text(one, "type") != kind:
            continue
        length = len(text(one, "text")) if further else 0
        yield from _at(one, tuple(further), _Span(at, at + length) if length else span)
        at += length


def _merged(sources: Iterable[WebSource]) -> tuple[WebSource, ...]:
    """Returns each source once, the cited ones first, then those that were only found."""
    every = list(sources)
    titles: dict[str, str] = {}
    for source in every:
        titles[source.url] = titles.get(source.url) or source.title
    titled = [
        source if source.title else source._replace(title=titles[source.url]) for source in every
    ]
    cited = dict.fromkeys(source for source in titled if source.cited)
    exact = {source.url for source in cited if _is_exact(source)}
    first = [source for source in cited if _is_exact(source) or source.url not in exact]
    cited_urls = {source.url for source in cited}
    rest: dict[str, WebSource] = {}
    for source in titled:
        if source.url not in cited_urls:
            rest.setdefault(source.url, source)
    return (*first, *rest.values())[:MAX_SOURCES]


def _is_exact(source: WebSource) -> bool:
    """True if it is known which part of the answer refers to a source, or which part it quotes."""
    return source.start is not None or source.quote is not None


def moved(sources: tuple[WebSource, ...], raw: str, answer: str) -> tuple[WebSource, ...]:
    """Returns the sources of a text with their places in the answer, which is its end: thinking
    came before it."""
    cut = len(raw) - len(answer)
    if not cut or not sources:
        return sources
    return tuple(_shifted(one, cut if raw.endswith(answer) else None) for one in sources)


def _shifted(one: WebSource, cut: int | None) -> WebSource:
    if one.start is None or one.end is None:
        return one
    if cut is None or one.start < cut:
        return one._replace(start=None, end=None)
    return one._replace(start=one.start - cut, end=one.end - cut)


def sources_of_turns(replies: Iterable[Reply]) -> tuple[WebSource, ...]:
    """Returns the sources of an answer that took several replies. Those of all but the last have
    no place in it."""
    *earlier, last = replies
    before = (_shifted(one, None) for reply in earlier for one in reply.sources)
    if any(reply.sources for reply in earlier):
        return _merged((*last.sources, *before))
    return last.sources

"""Answers that a team shares: packs and their indexes, within bounds, and what several of them
hold. A pack is somebody else's data: it is checked before it is believed."""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from agac.core.json_text import has_more_values, strict_json
from agac.core.keys import DIGEST_BYTES, digest
from agac.store.db import Database, change, execute, select

FULL_ANSWERS = 20_000  # of text: when a pack is full; it is never twice as large
FULL_BYTES = 8_000_000
MAX_BYTES = 32_000_000  # of a pack, packed and unpacked: what is longer is not read
MAX_LINE = FULL_BYTES  # of one answer
MAX_VALUES = 500_000  # of one answer: each takes some 60 bytes once it is read
MAX_INDEX = 1_000_000  # of an index as it is stored: they are read some at a time
_ENTRY = struct.Struct(f"<{DIGEST_BYTES}s8sd")  # of an index: fingerprint, endpoint_mark, time
_PIECE = 1 << 18  # bytes that are unpacked at a time
_LATEST = 1e11  # seconds since 1970: no clock shows the year 5138
_CLOCKS = 3600.0  # seconds by which the clocks of two machines may differ
_MOST_USD = 1e6  # that one answer may have cost
_MOST_SIGNS = 10_000  # of the name of a provider or a model, and of an address
HOWS = frozenset({"repair", "json_repair", "fallback", "misformatted"})
"""How an answer that a model gave may have come about (`records.Result.how`). What a person set,
or stood in a file, is none: nobody elsewhere can say so."""


class Damaged(Exception):
    """A pack or an index is not what it should be."""


class PackedAnswer(NamedTuple):
    """An answer as it travels."""

    fingerprint: bytes
    value: str
    """JSON text."""
    at: float
    """When its writer got it (seconds since 1970)."""
    how: str
    """How it came about, as `records.Result` has it."""
    provider: str
    """The provider that gave it."""
    base_url: str
    model: str
    input_tokens: int | None
    """The tokens of its calls; None if unknown."""
    output_tokens: int | None
    cost: float | None
    """The dollars of its calls; None if unknown."""
    sources: str | None = None
    """The sources of the result as JSON; None if it has none."""
    writer: str = ""
    pack: str = ""
    """The name of its pack."""

    def line(self) -> bytes:
        """Returns the answer as a line of a pack, which does not know its own name. Sources come
        last, if it has any."""
        values = [self.fingerprint.hex(), *self[1:10], self.writer]
        if self.sources:
            values.append(self.sources)
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def endpoint_mark(provider: str, base_url: str) -> bytes:
    """Stands for a provider at its address."""
    return digest(json.dumps([provider, base_url]))[:8]


def packed(answers: Iterable[PackedAnswer]) -> tuple[str, bytes, bytes]:
    """Returns the name of a pack of these answers, which is the hash of its content; its content,
    and its index."""
    from zstandard import compress

    ordered = sorted(answers, key=lambda answer: answer[:3])
    entries = (
        _ENTRY.pack(answer.fingerprint, endpoint_mark(answer.provider, answer.base_url), answer.at)
        for answer in ordered
    )
    content = compress(b"".join(answer.line() for answer in ordered))
    return sha256(content).hexdigest(), content, compress(b"".join(entries))


def unpacked(writer: str, name: str, content: bytes | None, now: float) -> Iterator[PackedAnswer]:
    """Yields the answers in this pack of a writer. Raises Damaged if it is not what its name says,
    or not sound."""
    if content is None or sha256(content).hexdigest() != name:
        raise Damaged("it is not the content that its name stands for")
    for line in unzipped_lines(content, FULL_ANSWERS, "answers", MAX_LINE):
        try:
            fingerprint, *values = strict_json(line, len(PackedAnswer._fields))
            sources = values.pop() if len(values) == len(PackedAnswer._fields) - 2 else None
            answer = PackedAnswer._make(
                [bytes.fromhex(fingerprint), *values[:9], sources, *values[9:], name]
            )
            _refuse_unsound(answer, writer, now)
        except (ValueError, TypeError, AttributeError) as error:
            raise Damaged(f"a line is no answer: {str(error)[:100]}") from None
        yield answer


def _refuse_unsound(answer: PackedAnswer, writer: str, now: float) -> None:
    """Raises ValueError, TypeError and the like for an answer with values that none has."""
    strict_json(answer.value, MAX_VALUES)
    for text in (answer.value, answer.how, answer.provider, answer.base_url, answer.model):
        text.encode()  # a number has no such method
    if answer.sources is not None:
        refuse_unsound_sources(strict_json(answer.sources, MAX_VALUES))
    names = (answer.provider, answer.base_url, answer.model)
    hows = {*answer.how.split(",")} if answer.how else set()
    is_sound = [
        len(answer.fingerprint) == DIGEST_BYTES,
        answer.writer == writer,
        hows <= HOWS,
        max(map(len, names)) <= _MOST_SIGNS,
        type(answer.at) in (int, float) and 0 < answer.at < now + _CLOCKS,
        _is_tokens(answer.input_tokens),
        _is_tokens(answer.output_tokens),
        _is_cost(answer.cost),
    ]
    if not all(is_sound):
        raise ValueError("it has values that no answer has")


def _is_tokens(count: Any) -> bool:
    """True for a number of tokens, or None."""
    return count is None or (type(count) is int and 0 <= count < 1 << 53)


def _is_cost(amount: Any) -> bool:
    """True for the dollars of an answer, or None."""
    return amount is None or (type(amount) in (int, float) and 0 <= amount <= _MOST_USD)


_SOURCE = {"url": str, "title": str, "cited": bool}
_SOURCE_OR_NULL = {"quote": str, "start": int, "end": int}


def refuse_unsound_sources(sources: Any) -> None:
    """Raises ValueError unless this is a list of `core.types.WebSource` as JSON has them."""
    if not isinstance(sources, list) or not all(map(_is_source, sources)):
        raise ValueError("it has sources that no answer has")


def _is_source(source: Any) -> bool:
    """True if this is a `core.types.WebSource` as JSON has it."""
    if not isinstance(source, dict) or source.keys() != _SOURCE.keys() | _SOURCE_OR_NULL.keys():
        return False
    return all(type(source[name]) is kind for name, kind in _SOURCE.items()) and all(
        type(source[name]) in (kind, type(None)) for name, kind in _SOURCE_OR_NULL.items()
    )


def may_travel(answer: PackedAnswer) -> bool:
    """True if readers of packs would accept an answer."""
    return len(answer.line()) <= FULL_BYTES and not has_more_values(answer.value, MAX_VALUES)


def unzipped_pieces(content: bytes, most: int) -> Iterator[bytes]:
    """Unpacks content piece by piece, up to so many bytes. Raises Damaged."""
    from zstandard import ZstdDecompressor, ZstdError

    size = 0
    try:
        with ZstdDecompressor(max_window_size=1 << 27).stream_reader(content) as reader:
            while piece := reader.read(_PIECE):
                size = size + len(piece)
                if size > most:
                    raise Damaged(f"it has more than {most:,} bytes")
                yield piece
    except ZstdError as error:
        raise Damaged(f"it cannot be unpacked: {error}") from None


def unzipped(content: bytes, most: int = MAX_BYTES) -> bytes:
    """Unpacks content, up to so many bytes. Raises Damaged."""
    return b"".join(unzipped_pieces(content, most))


def unzipped_lines(
    content: bytes, most: int, what: str, longest: int = MAX_BYTES
) -> Iterator[bytes]:
    """Yields the lines of what was compressed, one at a time: `most` lines at most, each of
    `longest` bytes at most. Raises Damaged, for too many before the first."""
    if sum(piece.count(b"\n") for piece in unzipped_pieces(content, MAX_BYTES)) > most:
        raise Damaged(f"it has more than {most:,} {what}")
    begun = bytearray()
    for piece in unzipped_pieces(content, MAX_BYTES):
        *ends, rest = piece.split(b"\n")
        for end in ends:
            begun += end
            yield bytes(begun)
            begun.clear()
        begun += rest
        if len(begun) > longest:
            raise Damaged(f"it has a line of more than {longest:,} bytes")
    if begun:
        yield bytes(begun)


class KnownAnswers:
    """Answers as indexes tell of them, or packs that were read; in a temporary database, on disk
    if long."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", check_same_thread=False)
        self.close = self._db.close
        self.packs = set[tuple[str, str]]()
        self.pushed: list[tuple[int, int]] = []
        """The last attempts and results that existed at each push."""
        columns = (
            "fingerprint, at, writer, pack, mark, told, PRIMARY KEY (fingerprint, at, writer, pack)"
        )
        self._db.execute(f"CREATE TABLE answer ({columns}) WITHOUT ROWID")

    def _put(self, answers: Iterable[tuple[Any, ...]]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO answer VALUES (?, ?, ?, ?, ?, ?)", answers)

    def add(self, writer: str, pack: str, index: bytes | None) -> None:
        """Takes in the index of a pack. Raises Damaged."""
        self.packs.add((writer, pack))
        entries = unzipped(index or b"", FULL_ANSWERS * _ENTRY.size)
        if not entries or len(entries) % _ENTRY.size:
            raise Damaged("it is cut, or too long")
        if not all(0 < at < _LATEST for _, _, at in _ENTRY.iter_unpack(entries)):
            raise Damaged("it has times that no answer has")
        self._put(
            (fingerprint, at, writer, pack, mark, None)
            for fingerprint, mark, at in _ENTRY.iter_unpack(entries)
        )

    def read(self, writer: str, pack: str, content: bytes | None, now: float) -> None:
        """Replaces what the index of a pack says by what the pack really holds: nothing if it
        raises Damaged."""
        self._db.execute("DELETE FROM answer WHERE writer = ? AND pack = ?", (writer, pack))
        for answer in list(unpacked(writer, pack, content, now)):
            mark = endpoint_mark(answer.provider, answer.base_url)
            body = json.dumps(answer[1:])
            self._put([(answer.fingerprint, answer.at, writer, pack, mark, body)])

    def find(
        self, prints: Sequence[bytes], marks: Sequence[bytes], since: float = 0.0
    ) -> list[tuple[bytes, float, str, str, PackedAnswer | None]]:
        """Returns the answers to these fingerprints, of endpoints with these marks, from `since` on
        (seconds since 1970), the oldest first: fingerprint, time, writer, pack, and the answer if
        its pack was read."""
        any_print = ",".join("?" * len(prints))
        any_mark = ",".join("?" * len(marks))
        where = f"fingerprint IN ({any_print}) AND at >= ? AND mark IN ({any_mark})"
        table = f"answer WHERE {where} ORDER BY at, writer, pack"
        statement = f"SELECT fingerprint, at, writer, pack, told FROM {table}"  # noqa: S608 - of "?"
        rows = self._db.execute(statement, (*prints, since, *marks))
        return [
            (fingerprint, at, writer, pack, body and PackedAnswer(fingerprint, *json.loads(body)))
            for fingerprint, at, writer, pack, body in rows
        ]


# What a store gives, and what it takes.


async def own_answers(
    database: Database, attempts: tuple[int, int] | None = None, since: int = 0
) -> AsyncIterator[list[PackedAnswer]]:
    """Yields all answers that may travel, those of some rows at a time: of models that were really
    asked, which were neither pulled nor adopted, nor made with stand-ins for tools.

    `attempts`: only of rows with one from a number up to another; `since`: results after this
    number."""
    (last_row,) = await select(database, "row_key_max", int)
    first, last = attempts or (0, last_row)
    for after in range(first, last, 1000):
        yield await select(
            database,
            "packable_since" if attempts else "packable",
            PackedAnswer,
            after,
            min(last, after + 1000),
            since,
        )


async def keep_pulled(database: Database, answers: Sequence[PackedAnswer], since: float) -> None:
    """Stores answers of packs, as long as nothing so new as `since` is there."""

    def keep(writer: sqlite3.Connection) -> None:
        told = [one._asdict() | {"since": since} for one in answers]
        for name in ("pack_put", "answer_pulled"):
            execute(writer, name, told)

    await change(database, keep)

"""The pictures of the monitor in the guides: which page each one shows, and how they are kept small."""

import struct
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

ASSETS = Path(__file__).parents[2] / "docs/assets"
MOST_BYTES, MOST_IN_ALL = 120_000, 700_000


class Picture(NamedTuple):
    """What of a project as `support.shop` makes it is shown. `shows`: what is scrolled to."""

    path: str
    heading: str
    height: int = 800
    width: int = 1120
    scheme: Literal["light", "dark"] = "light"
    shows: str = ""


RUN = "Run 1 of product_reviews"
PICTURES = {
    "monitor": Picture("/run/1", RUN, 860, 1280),
    "monitor-narrow": Picture("/run/1", RUN, 700, 390),
    "monitor-curves": Picture("/run/1", RUN, 640, shows=".chart:has([data-more^=Lane])"),
    "monitor-runs": Picture("/", "Runs", 240),
    "monitor-rows": Picture("/run/1/rows", "Rows of run 1", 560),
    "monitor-row": Picture("/run/1/row?id=r-024", "Row r-024", 700, scheme="dark"),
    "monitor-errors": Picture("/run/1/errors", "Errors of run 1", 360),
    "monitor-compare": Picture("/compare?first=1&second=2", "Compare", 760),
    "monitor-workflow": Picture("/workflow?name=product_reviews&plan=1", "product_reviews", 800),
    "monitor-review": Picture("/review", "Reviews", 640),
}
"""By the names of their files."""


def optimised(png: bytes) -> bytes:
    """The same picture, packed as small as zlib can."""
    chunks, packed, at = [], b"", 8
    while at < len(png):
        (length,), kind = struct.unpack(">I", png[at : at + 4]), png[at + 4 : at + 8]
        if kind == b"IDAT":
            packed += png[at + 8 : at + 8 + length]
        else:
            chunks.append(png[at : at + 12 + length])
        at += 12 + length
    data = zlib.compress(zlib.decompress(packed), 9)
    body = b"IDAT" + data
    chunks.insert(-1, struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body)))
    return png[:8] + b"".join(chunks)


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height, in pixels."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height

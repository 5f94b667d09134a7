"""Files as sources of rows, without a project."""

from pathlib import Path

from agac.data.files import Source
from agac.data.sources import open_source
from agac.spec.inputs import format_of


def opened(path: Path, shown: str = "", **how: str) -> Source:
    """A file, read as its name tells; `shown` is its name in messages, by default its own."""
    found = format_of(path.name)
    assert found is not None
    return open_source(path, found, shown or path.name, **how)

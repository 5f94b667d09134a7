"""The pictures of the monitor: each that a guide names is there and small, and a test with a browser makes it."""

import re

from pages import ROOT
from support.pictures import ASSETS, MOST_BYTES, MOST_IN_ALL, PICTURES

SHOWN = re.compile(r"!\[([^\]]+)\]\(\.\./assets/(monitor[\w-]*)\.png\)")


def test_each_picture_of_the_monitor_is_made_by_a_test_and_shown_with_a_text() -> None:
    found = [one for page in (ROOT / "docs/guide").glob("*.md") for one in SHOWN.findall(page.read_text("utf-8"))]
    assert sorted(name for _, name in found) == sorted(PICTURES)
    assert sorted(path.stem for path in ASSETS.glob("*.png")) == sorted(PICTURES)
    assert all(len(text) >= 20 for text, _ in found)
    sizes = {name: (ASSETS / f"{name}.png").stat().st_size for name in PICTURES}
    assert max(sizes.values()) <= MOST_BYTES, sizes
    assert sum(sizes.values()) <= MOST_IN_ALL, sizes

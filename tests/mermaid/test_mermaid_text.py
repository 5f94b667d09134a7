"""What `agac.api.drawing.mermaid` writes, read back by Mermaid itself."""

import json
import re
import subprocess
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.npm import Npm
from support.soak import only_in_soak

from agac.api.drawing import MERMAID_LINE, DrawnEdge, DrawnNode, mermaid
from agac.core.text import squeezed

HERE = Path(__file__).parent
pytestmark = only_in_soak
ODD = [
    "<script>alert(1)</script>", "\"quoted\" 'names' & more; #35; #quot; &amp;", "end", "a --> b; subgraph x",
    "n0[\"x\"] | y ]] }} ) %% comment %%{init: {'theme':'dark'}}%%", "`**bold** _it_`", "1. one", "- item",
    "# heading", "https://example.com/a_b?c=d", "日本語 e\u0301 🙂 \u202eright to left",
    "two\nlines\tand \x00 a control \ud800", "o" * 1000, " ", "classDef x; click n0 href",
]  # fmt: skip


KINDS = ["input", "ask", "python", "filter", "select", "rename", "dedupe", "output", "some other"]
DRAWINGS = {
    "odd": (
        [DrawnNode(name, "ask", [*ODD], {"done": 1200, "odd <i>": 2}, 1) for name in ODD],
        [DrawnEdge(a, b) for a, b in pairwise(ODD)],
    ),
    "kinds": (
        [DrawnNode(kind, kind, level=i // 4) for i, kind in enumerate(KINDS)],
        [DrawnEdge(a, b) for a, b in pairwise(KINDS)],
    ),
    "large": (
        [DrawnNode(f"stage_{i}", "ask", ["openai/gpt-5.4-mini"], {"done": i}) for i in range(400)],
        [DrawnEdge(f"stage_{i // 2}", f"stage_{i}") for i in range(1, 400)],
    ),
    "empty": ([], []),
}
Read = dict[str, dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def read(npm: Npm) -> Read:
    """What Mermaid makes of each drawing; it fails at the first that is not Mermaid."""
    folder = npm(HERE / "package.json")
    command = ["node", str(HERE / "read.mjs"), str(folder)]
    texts = json.dumps([mermaid(*drawing) for drawing in DRAWINGS.values()])
    ran = subprocess.run(command, input=texts, capture_output=True, text=True, encoding="utf-8", timeout=120)
    assert ran.returncode == 0, ran.stderr
    return dict(zip(DRAWINGS, json.loads(ran.stdout), strict=True))


def shown(text: str) -> list[str]:
    """The lines that a reader sees. Mermaid keeps a #35; as this until it draws."""
    lines = [re.sub(r"</?[bi]>", "", line) for line in text.split("<br>")]
    assert not any(c in line for line in lines for c in '<>&"`#'), "nothing of a user's is markup"
    return [unescape(re.sub("ﬂ°°([0-9]+)¶ß", r"&#\1;", line)) for line in lines]


def cut(text: str) -> str:
    line = squeezed(text)
    return (line if len(line) <= MERMAID_LINE else line[: MERMAID_LINE - 1] + "…") or "\u00a0"


def test_every_text_comes_back_as_it_was(read: Read) -> None:
    found, (_, edges) = read["odd"], DRAWINGS["odd"]
    assert [box["id"] for box in found["boxes"]] == [f"n{i}" for i in range(len(ODD))]
    for box, name in zip(found["boxes"], ODD, strict=True):
        assert shown(box["text"]) == [cut(name), "ask · level 1", *map(cut, ODD), "1,200 done · 2 odd <i>"]
    assert [(line["from"], line["to"]) for line in found["lines"]] == [
        (f"n{i}", f"n{i + 1}") for i in range(len(edges))
    ]


def test_kinds_and_levels_look_different(read: Read) -> None:
    found = read["kinds"]
    shapes = {kind: box["shape"] for kind, box in zip(KINDS, found["boxes"], strict=True)}
    assert shapes == {
        "input": "cylinder", "ask": "square", "python": "subroutine", "filter": "hexagon", "select": "square",
        "rename": "square", "dedupe": "hexagon", "output": "stadium", "some other": "square",
    }  # fmt: skip
    assert {box["classes"][0] for box in found["boxes"] if box["classes"]} == {*KINDS[1:7]}
    dotted = [line["to"] for line in found["lines"] if line["stroke"] == "dotted"]
    assert dotted == ["n4", "n8"], "where the level changes"


def test_as_many_stages_as_mermaid_draws_and_none_at_all(read: Read) -> None:
    assert (len(read["large"]["boxes"]), len(read["large"]["lines"])) == (400, 399)
    assert read["empty"] == {"boxes": [], "lines": []}

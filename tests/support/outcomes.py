"""What becomes of a row when the stage that another one reads went one way or another: the one truth of it.

docs/reference/outcomes.md shows these tables, and tests/behaviour/test_truth_table.py observes every cell of them. The
stage that is read is called `a`, answers `A`, and comes to its outcome as `STATES` says; models answer with the prompt.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

REFUSED = "refuse"
"""A prompt that the server of the tests refuses."""

LET_IN_NONE = {"when": 'text == "another"'}


@dataclass(frozen=True)
class State:
    """One way for `a` to end. `keys` are added to it. `before`: a stage before it. `left_out`: it may not be asked."""

    title: str
    keys: Mapping[str, Any] = field(default_factory=dict)
    before: Mapping[str, Any] | None = None
    left_out: bool = False


STATES = {
    "done": State("done or reused"),
    "skipped": State("skipped", LET_IN_NONE),
    "dropped": State("dropped", {**LET_IN_NONE, "otherwise": "drop"}),
    "failed": State("failed", {"prompt": REFUSED}),
    "missing": State("missing: what it needs failed", {"needs": ["z"]}, {"name": "z", "prompt": REFUSED}),
    "left out": State("missing: left out by `--stage`", left_out=True),
}
"""Columns of the tables."""


class Cell(NamedTuple):
    """What becomes of the row, and of the stage that reads: its outcome ("": not begun), what it says or is written as,
    and the row's error where it has another one than that of `a`."""

    row: str
    outcome: str = ""
    result: Any = None
    error: str = "Refused"


@dataclass(frozen=True)
class Reader:
    """Something that reads `a`: a line of a table. The last of `stages` is the one that is looked at; `keys` are added
    to `a`, `output` is the workflow's."""

    title: str
    cells: Mapping[str, Cell]
    stages: tuple[Mapping[str, Any], ...]
    keys: Mapping[str, Any] = field(default_factory=dict)
    output: Mapping[str, Any] = field(default_factory=dict)


NOT_BEGUN = {"dropped": Cell("dropped"), "failed": Cell("failed"), "missing": Cell("failed"), "left out": Cell("open")}
GOES_ON = {
    "done": Cell("done", "done", "B"),
    "skipped": Cell("done", "done", "B"),
    "dropped": Cell("dropped", "done", "B"),
    "failed": Cell("failed", "done", "B"),
    "missing": Cell("failed", "done", "B"),
    "left out": Cell("open", "done", "B"),
}  # fmt: skip
BESIDE = {"name": "c", "needs": [], "prompt": "C"}


def _asks(prompt: str | None, **keys: Any) -> Mapping[str, Any]:
    return {"name": "b", "needs": ["a"], **({} if prompt is None else {"prompt": prompt}), **keys}


def _both(done: str, skipped: str) -> Mapping[str, Cell]:
    return {"done": Cell("done", "done", done), "skipped": Cell("done", "done", skipped), **NOT_BEGUN}


STAGES = {
    "result": Reader('`prompt: "[${a}]"`', _both("[A]", "[]"), (_asks("[${a}]"),)),
    "field": Reader(
        '`prompt: "[${a.word}]"`', _both("[A]", "[]"), (_asks("[${a.word}]"),), keys={"output_field": "word"}),
    "whole result": Reader('`prompt: "[${a}]"`, `a` being an object', _both('[{"word":"A"}]', "[]"), (_asks("[${a}]"),),
        keys={"output_field": "word"}),
    "default prompt": Reader("no prompt: the row, then `a`",
        _both('{\n  "id": "r-1",\n  "text": "t"\n}\n\nA', '{\n  "id": "r-1",\n  "text": "t"\n}\n\n'), (_asks(None),)),
    "guard that asks for it": Reader("`when: a != null`",
        {"done": Cell("done", "done", "B"), "skipped": Cell("skipped", "skipped"), **NOT_BEGUN},
        (_asks("B", when="a != null"),)),
    "guard that drops": Reader("`when: a != null`, `otherwise: drop`",
        {"done": Cell("done", "done", "B"), "skipped": Cell("dropped", "dropped"), **NOT_BEGUN},
        (_asks("B", when="a != null", otherwise="drop"),)),
    "guard that compares": Reader('`when: a != "A"`',
        {"done": Cell("skipped", "skipped"), "skipped": Cell("done", "done", "B"), **NOT_BEGUN},
        (_asks("B", when='a != "A"'),)),
    "guard that computes": Reader('`when: a.startsWith("A")`',
        {"done": Cell("done", "done", "B"), "skipped": Cell("failed", "failed", error="GuardError"), **NOT_BEGUN},
        (_asks("B", when='a.startsWith("A")'),)),
    "join": Reader('`needs: [a, c]`, `c` being done: `prompt: "[${a}${c}]"`', _both("[AC]", "[C]"),
        (BESIDE, _asks("[${a}${c}]", needs=["a", "c"]))),
    "join of a join": Reader('`needs: [c, d]`, `d` being `needs: [a], prompt: "(${a})"`: `prompt: "[${d}${c}]"`',
        _both("[(A)C]", "[()C]"),
        (BESIDE, {"name": "d", "needs": ["a"], "prompt": "(${a})"}, _asks("[${d}${c}]", needs=["c", "d"]))),
    "beside it": Reader("`needs: []`: it begins together with `a`", {**GOES_ON, "dropped": Cell("dropped")},
        ({"name": "b", "needs": [], "prompt": "B"},)),
    "after one beside it": Reader("`needs: [c]`, `c` being beside `a`", {**GOES_ON, "dropped": Cell("dropped")},
        (BESIDE, {"name": "b", "needs": ["c"], "prompt": "B"})),
}  # fmt: skip
"""What a stage does that reads `a`, or stands beside it."""


def _line(done: Any, skipped: Cell) -> Mapping[str, Cell]:
    return {"done": Cell("done", result=done), "skipped": skipped, **NOT_BEGUN}


END = {"name": "b", "needs": [], "prompt": "B"}
OUTPUTS = {
    "one": Reader("`output: {stages: a}`", _line("A", Cell("skipped")), (END,), output={"stages": "a"}),
    "several": Reader(
        "two ends, `a` and `b`", _line({"a": "A", "b": "B"}, Cell("done", result={"a": None, "b": "B"})), (END,)),
    "several, none of them there": Reader("two ends, `a` and `b`, and `b` was skipped",
        _line({"a": "A", "b": None}, Cell("skipped")), ({**END, **LET_IN_NONE},)),
    "upstream alone": Reader(
        "one end, `b`, with `needs: a`", _line("[A]", Cell("done", result="[]")), (_asks("[${a}]"),)),
}  # fmt: skip
"""What is written of a row."""


class MadeCell(NamedTuple):
    """What becomes of the input's row, of each row that a stage made of it (by id, in order), and what the last stage
    said of these, or the kind of error that there is."""

    row: str
    made: Mapping[str, str] = {}
    said: tuple[str, ...] = ()
    error: str = "Refused"


@dataclass(frozen=True)
class Maker:
    """Something that makes rows of one that `a` is asked for first: a line of a table. `stages` follow `a`, the first
    of them makes rows; `keys` are added to `a`. `stands`: the input's row itself is what is written."""

    title: str
    cells: Mapping[str, MadeCell]
    stages: tuple[Mapping[str, Any], ...]
    keys: Mapping[str, Any] = field(default_factory=dict)
    stands: bool = False


MAKING_ROW = {"id": "r-1", "text": "t", "tags": ["x", "y"]}
FUNCTIONS = """\
def one(row):
    return {"word": f"w{row['a']}"}


def many(row):
    return [{"word": f"v{row['a']}"}, {"word": f"w{row['a']}"}]


def none(row):
    return None
"""
MAKES_NONE = {
    "dropped": MadeCell("dropped"),
    "failed": MadeCell("failed"),
    "missing": MadeCell("failed"),
    "left out": MadeCell("open"),
}
TWO = {"r-1/0": "done", "r-1/1": "done"}
KEPT = {"r-1": "done"}
GROUP = {"t": "done"}
FAILED_GROUP = MadeCell("failed", {"t": "failed"}, error="InvalidRow")


def _then(**keys: Any) -> Mapping[str, Any]:
    return {"name": "b", "needs": ["a"], **keys}


def _makes(done: MadeCell, skipped: MadeCell, **others: MadeCell) -> Mapping[str, MadeCell]:
    return {"done": done, "skipped": skipped, **MAKES_NONE, **others}


SAYS = {"name": "c", "needs": ["b"], "prompt": "[${word}]"}
MAKERS = {
    "explode": Maker('`explode: tags`, a list of two: `prompt: "[${item}${a}]"`',
        _makes(MadeCell("done", TWO, ("[xA]", "[yA]")), MadeCell("done", TWO, ("[x]", "[y]"))),
        (_then(explode="tags", prompt="[${item}${a}]"),)),
    "explode with a guard": Maker("the same with `when: a != null && index == 0`", _makes(
        MadeCell("done", {"r-1/0": "done", "r-1/1": "skipped"}, ("[xA]",)),
        MadeCell("done", {"r-1/0": "skipped", "r-1/1": "skipped"})),
        (_then(explode="tags", prompt="[${item}${a}]", when="a != null && index == 0"),)),
    "explode what is no list": Maker("`explode: a.echo`, which is a text",
        _makes(MadeCell("failed", error="InvalidRow"), MadeCell("done")),
        (_then(explode="a.echo", prompt="[${item}]"),),
        keys={"output_schema": {"type": "object", "properties": {"echo": {}}, "required": ["echo"]}}),
    "a function that gives a row": Maker('`python`, gives a row: then `prompt: "[${word}]"`',
        _makes(MadeCell("done", said=("[wA]",)), MadeCell("done", said=("[wNone]",))),
        (_then(python="tools/make.py:one"), SAYS), stands=True),
    "a function that gives a list": Maker('`python`, gives a list of two: then `prompt: "[${word}]"`',
        _makes(MadeCell("done", TWO, ("[vA]", "[wA]")), MadeCell("done", TWO, ("[vNone]", "[wNone]"))),
        (_then(python="tools/make.py:many"), SAYS)),
    "a function that gives nothing": Maker("`python`, gives `None`", _makes(MadeCell("dropped"), MadeCell("dropped")),
        (_then(python="tools/make.py:none"), {**SAYS, "prompt": "C"})),
    "dedupe": Maker('`dedupe: [text]`: then `prompt: "[${a}]"`',
        _makes(MadeCell("done", KEPT, ("[A]",)), MadeCell("done", KEPT, ("[]",))),
        (_then(dedupe=["text"]), {**SAYS, "prompt": "[${a}]"})),
    "group": Maker('`group_by: [text]`: `prompt: "[${text}${rows_count}]"`', _makes(MadeCell("done", GROUP, ("[t1]",)),
        MadeCell("done", GROUP, ("[t1]",)), failed=FAILED_GROUP, missing=FAILED_GROUP),
        (_then(group_by=["text"], prompt="[${text}${rows_count}]"),)),
}  # fmt: skip
"""What is made of a row, and what is said of that."""

LISTED = {
    "done": {"results.jsonl"},
    "skipped": {"results.jsonl"},
    "failed": {"results.jsonl", "errors.jsonl"},
    "dropped": {"filtered.jsonl"},
    "open": set(),
}
"""The files that have a line for a row, by what became of it."""


def stage_table() -> str:
    """What a stage does, as Markdown."""
    return _table("the stage that reads", STAGES, _done)


def output_table() -> str:
    """What is written, as Markdown."""
    return _table("what is written", OUTPUTS, _written)


def maker_table() -> str:
    """What is made of a row, as Markdown."""
    return _table("the stages that follow", MAKERS, _made)


def listed_table() -> str:
    """Which files have a line for a row, as Markdown."""
    lines = [
        f"| {row} | {', '.join(f'`{name}`' for name in sorted(files)) or 'none'} |" for row, files in LISTED.items()
    ]
    return "\n".join(["", "| the row | has a line in |", "| --- | --- |", *lines, "", ""])


R = TypeVar("R", Reader, Maker)


def _table(corner: str, readers: Mapping[str, R], words: Callable[[Any], str]) -> str:
    lines: list[str] = [
        f"| {corner} | {' | '.join(state.title for state in STATES.values())} |",
        f"|{' --- |' * (len(STATES) + 1)}",
    ]
    for reader in readers.values():
        cells = [f"{words(reader.cells[name])}; row {reader.cells[name].row}" for name in STATES]
        lines.append(f"| {reader.title} | {' | '.join(cells)} |")
    return "\n".join(["", *lines, "", ""])


def _done(cell: Cell) -> str:
    if cell.outcome == "done":
        return f"asked `{_on_a_line(cell.result)}`"
    return f"`{cell.error}`" if cell.outcome == "failed" else cell.outcome or "not begun"


def _made(cell: MadeCell) -> str:
    said = f"asked {', '.join(f'`{text}`' for text in cell.said)}; " if cell.said else ""
    kinds = Counter(cell.made.values())
    made = ", ".join(f"{count} {state}" for state, count in kinds.items())
    told = f" (`{cell.error}`)" if cell.error != Cell("").error else ""
    return f"{said}made: {made or 'none'}{told}"


def _written(cell: Cell) -> str:
    if cell.row in ("done", "skipped"):
        return f"`{json.dumps(cell.result)}`"
    return "its error" if cell.row == "failed" else "nothing"


def _on_a_line(text: str) -> str:
    return " ".join(text.split())

"""Random workflows: whatever was drawn, `Graph` makes a sound one of it, and knows what rows come to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from property.answering import BAD, TOOLS
from property.graph_operators import OPERATORS, Ask, Dedupe, Filter, Function, Many, Rename, Select
from property.graph_stages import ANSWERS, NAMES, Gene, Operator, Row, Shape, Upstream
from property.graph_walk import Levels, Outcome, Walk
from property.plan_operators import PLANNED, Review

KINDS, NUMBERS = st.sampled_from("abc"), st.integers(0, 3)
TEXTS = st.sampled_from(["red", "red", "green", "blue sky", f"{BAD} one"])
OPTIONS = st.sampled_from(["yes", "yes", "no", None])
TAGS = st.sampled_from([(), ("p",), ("p", "q"), ("p", "q", "p"), ("p", "q"), "p", None])
ALL = OPERATORS | PLANNED
WEIGHTS = ["ask", "ask", "ask", "ask_form", "ask_form", "ask_list", *OPERATORS]


def genes(operators: Sequence[str] = WEIGHTS) -> st.SearchStrategy[Gene]:
    """Stages, in which models are asked more often than not."""
    small = st.integers(0, 11)
    return st.builds(
        Gene, operator=st.sampled_from(operators), needs=st.lists(small, max_size=3).map(tuple),
        refs=st.lists(small, min_size=1, max_size=3).map(tuple),
        guard=st.one_of(st.none(), st.tuples(st.integers(0, 8), small)), drops=st.booleans(),
        enabled=st.sampled_from([True, True, True, True, False]), word=st.sampled_from(["say", "tell", "judge"]),
        number=st.integers(0, 80), explode=st.one_of(st.none(), st.none(), st.none(), small),
    )  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """All that decides a workflow. `places` mixes the stages in the file, `output` are those to write."""

    genes: tuple[Gene, ...]
    places: tuple[int, ...] = ()
    output: tuple[int, ...] = ()


class Graph:
    """The workflow that was drawn."""

    def __init__(self, drawn: Drawn) -> None:
        self.drawn, self.levels = drawn, Levels()
        self.all: dict[str, Operator] = {}
        self.places: dict[str, int] = {}
        none = not any(gene.enabled for gene in drawn.genes)
        for place, gene in enumerate(drawn.genes):
            self._add(f"s{place}{gene.title}", replace(gene, enabled=True) if none else gene)
        keys = {name: (drawn.places[i] if i < len(drawn.places) else i) for i, name in enumerate(self.all)}
        self.file = sorted(self.all, key=keys.__getitem__)
        self.order = self._order()
        self.places |= {name: place for place, name in enumerate(self.order)}
        self.chosen, self.ends, self.written = self._ends()

    def _add(self, name: str, gene: Gene) -> None:
        before = list(self.all)
        wanted = dict.fromkeys(before[number % len(before)] for number in gene.needs) if before else {}
        written: list[str] = []
        for need in wanted:
            if self._meet([*written, need]):
                written.append(need)
        upstream = self._upstream(self.without_disabled(written), before)
        kind = self._possible(gene, upstream)
        path = _list_to_explode(gene, upstream) if kind.explodes and not self._others(upstream, "kept") else ()
        if path:  # an item stands in the place of its list
            gone = upstream.gone | ({path[0]} if len(path) == 1 else set())
            shape = {first: name for first, name in upstream.shape.items() if name not in gone}
            upstream = replace(upstream, path=path, gone=gone, shape={**shape, "item": "item", "index": "index"})
        stage = self.all[name] = kind(gene, name, tuple(written), upstream)
        if stage.enabled:
            self.levels.add(stage, {one.name: one.makes for one in self.all.values()})

    def _meet(self, written: Sequence[str]) -> bool:
        """Whether a stage may need all of these: they are about one row, in one form."""
        needs = self.without_disabled(written)
        if not needs:
            return True
        on_one_row = self.levels.fits(needs) and _on_one_line([self.all[need].line for need in needs])
        return on_one_row and not self._beside_a_list(needs)

    def _beside_a_list(self, needs: Sequence[str]) -> bool:
        """Whether a function may give a list in the place of a row, beside a stage that makes others of that row."""
        levels = self.levels
        upstream = set(needs).union(*(levels.functions[need] for need in needs))
        makers = [name for name in max((levels.line[levels.after[need]] for need in needs), key=len) if name]
        return any(
            isinstance(self.all[function], Many) and maker not in levels.line[levels.home[function]]
            and function not in levels.functions[maker]
            for function in upstream for maker in makers
        )  # fmt: skip

    def _upstream(self, needs: Sequence[str], before: Sequence[str]) -> Upstream:
        stages = [self.all[need] for need in needs]
        upstream = {name for stage in stages for name in (*stage.ancestors, stage.name)}
        ancestors = tuple(name for name in before if name in upstream)
        shape: Shape = {name: name for name in NAMES}
        line: tuple[str, ...] = ()
        gone = frozenset[str]().union(*(stage.gone for stage in stages))
        if stages:
            last = max(stages, key=lambda stage: (len(stage.line), self._depth(stage)))
            deepest = max(stages, key=self._depth)
            apart = self._depth(last) < self._depth(deepest)
            further = {name: name for name in ("item", "index") if name in deepest.shape and apart}
            line = last.line
            shape = {first: name for first, name in {**further, **last.shape}.items() if name not in gone}
        return Upstream(self.all, tuple(needs), ancestors, line, shape, self.places, gone=gone)

    def _depth(self, stage: Operator) -> int:
        return len(self.levels.line[self.levels.after[stage.name]])

    def _possible(self, gene: Gene, upstream: Upstream) -> type[Operator]:
        """The operator, or another one where it could do nothing, or where two would make other rows of a
        row side by side: functions that give lists, and whatever stands beside a dedupe."""
        kind = ALL[gene.operator]
        if kind is Review and not upstream.giving(*ANSWERS):
            return Ask
        if kind in (Select, Rename) and not upstream.shape:
            kind = Function
        if kind is Dedupe and not upstream.shape and not upstream.giving(*ANSWERS):
            return Ask
        if kind is Dedupe and self._others(upstream, None):
            return Ask
        if kind.kind in ("groups", "rows") and self._others(upstream, "kept"):
            return Ask
        lists = {name for name, stage in self.all.items() if isinstance(stage, Many) and stage.enabled}
        return Function if kind is Many and not lists <= set(upstream.ancestors) else kind

    def _others(self, upstream: Upstream, makes: str | None) -> bool:
        """Whether other stages, those that make this, make rows of the same rows and are not upstream."""
        afters = [self.levels.after[need] for need in upstream.needs]
        base = max(afters, key=lambda one: len(self.levels.line[one]), default=None)
        return any(
            stage.makes is not None and (makes is None or stage.makes == makes) and self.levels.base[name] == base
            for name, stage in self.all.items()
            if stage.enabled and name not in upstream.ancestors
        )

    def without_disabled(self, written: Sequence[str]) -> list[str]:
        """What is really needed: in the place of a stage that is turned off, what that needs."""
        found: dict[str, None] = {}
        for need in written:
            stage = self.all[need]
            found |= dict.fromkeys([need] if stage.enabled else stage.needs)
        return list(found)

    def _order(self) -> list[str]:
        """Each stage after what it needs; of those that could be next the first in the file."""
        left = [name for name in self.file if self.all[name].enabled]
        order: list[str] = []
        while left:
            name = next(name for name in left if set(self.all[name].needs) <= set(order))
            left.remove(name)
            order.append(name)
        return order

    def _ends(self) -> tuple[list[str] | None, list[str], str | None]:
        """What `output.stages` says, the stages whose results are written, and what made the rows that have them."""
        explicit = bool(self.drawn.output)
        chosen = [name for name in self.order if not any(name in self.all[other].needs for other in self.order)]
        if explicit:
            named = {self.order[number % len(self.order)] for number in self.drawn.output}
            chosen = [name for name in self.order if name in named]
        level = self._level(chosen[-1])
        if any(self._level(name) != level for name in chosen):
            explicit, chosen = True, [name for name in chosen if self._level(name) == level]
        ends: set[str] = set()
        left = list(chosen)
        while left:
            name = left.pop()
            stage = self.all[name]
            if stage.needs and (isinstance(stage, Dedupe) or (isinstance(stage, Filter) and not explicit)):
                left += stage.needs
            else:
                ends.add(name)
        return (chosen if explicit else None), [name for name in self.order if name in ends], level

    def _level(self, name: str) -> str | None:
        return name if self.all[name].makes == "kept" else self.levels.home[name]

    def stages(self) -> list[dict[str, Any]]:
        """The stages of the file."""
        return [self.all[name].body(self.file[i - 1] if i else None) for i, name in enumerate(self.file)]

    def output(self) -> dict[str, Any]:
        """`output` of the file."""
        if self.chosen is None:
            return {}
        return {"stages": self.chosen if len(self.chosen) > 1 else self.chosen[0]}

    def tools(self) -> dict[str, str]:
        """The project's functions, by their files."""
        found = {f"tools/{stage.name}.py": stage.tool() for stage in self.all.values()}
        found["tools/agents.py"] = TOOLS
        return {path: text for path, text in found.items() if text is not None}

    def walk(self, rows: Sequence[Row]) -> Outcome:
        """What rows come to."""
        return Walk([self.all[name] for name in self.order], self.ends, self.written)(
            [(row_id, row.data()) for row_id, row in zip(unique([row.id for row in rows]), rows, strict=True)]
        )


def unique(ids: Sequence[str]) -> list[str]:
    """Ids of rows, where one that came before gets a number that no id before it has."""
    found: list[str] = []
    for one in ids:
        names = (one, *(f"{one}#{number}" for number in range(2, len(ids) + 2)))
        found.append(next(name for name in names if name not in found))
    return found


def _list_to_explode(gene: Gene, upstream: Upstream) -> tuple[str, ...]:
    """A list upstream; () where none is there, or none is wanted."""
    found: list[tuple[str, ...]] = [(name, "items") for name in upstream.giving("L")]
    found += [(upstream.shape["tags"],)] if "tags" in upstream.shape else []
    return () if gene.explode is None or not found else found[gene.explode % len(found)]


def _on_one_line(lines: Sequence[tuple[str, ...]]) -> bool:
    longest = max(lines, key=len)
    return all(line == longest[: len(line)] for line in lines)

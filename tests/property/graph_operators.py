"""What stages of random workflows do.

An operator is one class: what it writes into the file (`keys`, `tool`), what it does to a row (`does`), and what those
after it see (`shape`, `gives`). Put it into OPERATORS, and it is drawn.
"""

import json
from collections.abc import Sequence
from typing import Any, ClassVar

from property.answering import CHECKED, FIELDS, REPLICAS, VOTED, Content
from property.graph_stages import ANSWERS, PARTS, Guard, Operator, Upstream, guard_of
from property.graph_walk import Eyes, Fails, Fields, Gives, Seen, compact


class Ask(Operator):
    """Asks a model, and takes its text."""

    gives = "text"
    schema: ClassVar[str | None] = None
    tools: ClassVar[bool] = False

    def resolve(self) -> None:
        self.parts = [self._part(ref) for ref in self.gene.refs]

    def _part(self, ref: int) -> tuple[str, str]:
        """A placeholder: a field's name and "", a stage's name and the part of its result, or all of the row."""
        found = self.upstream.giving(*ANSWERS, "fields")
        if found and ref % 2:
            name = found[ref // 2 % len(found)]
            return name, PARTS.get(self.upstream.stages[name].gives or "", "") if ref % 3 else ""
        fields = ["row_json", *self.upstream.shape.values()]
        return fields[ref // 2 % len(fields)], ""

    def keys(self) -> dict[str, Any]:
        names = " ".join(f"${{{name}{'.' + part if part else ''}}}" for name, part in self.parts)
        found: dict[str, Any] = {"prompt": f"{self.word}: {names}"}
        if self.gene.model != "small":
            found["model"] = f"local/{self.gene.model}"
        if self.schema:
            told = {"description": self.gene.told} if self.gene.told else {}
            found["output_schema"] = told | {
                "type": "object", "properties": FIELDS[self.schema], "required": list(FIELDS[self.schema]),
                "additionalProperties": False,
            }  # fmt: skip
        return found if self.temperature is None else found | {"temperature": self.temperature}

    @property
    def temperature(self) -> float | None:
        return None if self.gene.number % 3 else 0.5

    @property
    def word(self) -> str:
        """What prompts begin with."""
        return self.gene.word

    def does(self, seen: Seen) -> Gives:
        content = self.content(" ".join(self._rendered(name, part, seen) for name, part in self.parts))
        if content.refused:
            raise Fails("Refused", content)
        if content.unfit:
            raise Fails("CheckFailed", content)
        return Gives(self.value(content), content)

    def content(self, text: str) -> Content:
        return Content(self.gene.model, self.temperature, f"{self.word}: {text}", self.schema, self.tools)

    def value(self, content: Content) -> Any:
        return content.value

    def _rendered(self, name: str, part: str, seen: Seen) -> str:
        if name == "row_json":
            return json.dumps(seen.fields, ensure_ascii=False, indent=2)
        if name not in seen.results:
            return compact(seen.field(name, "MissingTemplateField"))
        value = seen.results[name]
        return compact(value[part] if part and value is not None else value)


class AskForm(Ask):
    """Asks for an object."""

    gives = schema = "A"


class AskList(Ask):
    """Asks for an object with a list."""

    gives = schema = "L"


class Agent(Ask):
    """Asks for a text, and has tools: their results shared or not, repeatable or not, or stubs in their place."""

    tools = True

    @property
    def stubbed(self) -> bool:
        return self.gene.number % 7 == 3

    @property
    def word(self) -> str:
        return f"{self.gene.word} {'of stubs' if self.stubbed else 'of tools'}"

    def keys(self) -> dict[str, Any]:
        number = self.gene.number
        look = {"side_effects": True} if number % 5 == 4 else {"cacheable": number % 2 == 0}
        found = super().keys() | {"tools": {"tools/agents.py:look": look, "tools/agents.py:fail": {}}}
        if self.stubbed:
            stubs = {"look": {"cel": "'found ' + args.word"}, "fail": {"error": "ValueError: nothing there"}}
            found |= {"tools_mode": "stub", "tool_stubs": stubs}
        return found


class AgentForm(Agent):
    """One that asks for an object."""

    gives = schema = "A"


class AskField(Ask):
    """Asks for a text that becomes a field."""

    gives = "field"

    def keys(self) -> dict[str, Any]:
        return super().keys() | {"output_field": "word"}

    def value(self, content: Content) -> Any:
        return {"word": content.value}


class AskChecked(Ask):
    """Asks for a text that has to meet a check."""

    @property
    def word(self) -> str:
        return f"{CHECKED} {self.gene.word}"

    def keys(self) -> dict[str, Any]:
        check = {"check": f"{self.name} >= 'said 4'", "message": "say more"}
        return super().keys() | {"checks": [check], "repair": 0}


class AskVoted(Ask):
    """Asks for several objects, one of which wins."""

    gives = schema = "A"
    replicas = REPLICAS

    @property
    def word(self) -> str:
        return f"{VOTED} {self.gene.word}"

    def keys(self) -> dict[str, Any]:
        return super().keys() | {"replicas": REPLICAS, "vote": "mood"}


class Filter(Operator):
    """Rows leave."""

    def resolve(self) -> None:
        drawn = (self.gene.number % 9, self.gene.number // 9)
        self.condition = guard_of(drawn, self.upstream) or Guard("true", "", nulls=True)

    def keys(self) -> dict[str, Any]:
        return {"filter": self.condition.text}

    def does(self, seen: Seen) -> Gives:
        return Gives(leaves=not self.condition.test(seen))


class Select(Operator):
    """Some fields go on."""

    gives = "fields"

    def resolve(self) -> None:
        names = list(self.upstream.shape)
        chosen = [name for place, name in enumerate(names) if self.gene.number >> place & 1] or names[:1]
        self.kept = [self.upstream.shape[name] for name in chosen]
        self.changes({name: self.upstream.shape[name] for name in chosen})

    def keys(self) -> dict[str, Any]:
        return {"select": self.kept}

    def does(self, seen: Seen) -> Gives:
        kept = {name: seen.field(name, "InvalidRow") for name in self.kept}
        return Gives(kept, fields=kept)


class Rename(Operator):
    """A field gets another name."""

    gives = "fields"

    def resolve(self) -> None:
        shape = self.upstream.shape
        first = list(shape)[self.gene.number % len(shape)]
        self.old, self.new = shape[first], f"{first}_{self.name}"
        self.changes({name: self.new if name == first else now for name, now in shape.items()})

    def keys(self) -> dict[str, Any]:
        return {"rename": {self.old: self.new}}

    def does(self, seen: Seen) -> Gives:
        seen.field(self.old, "InvalidRow")
        fields = {self.new if name == self.old else name: value for name, value in seen.fields.items()}
        return Gives(fields, fields=fields)


class Function(Operator):
    """A function of the project changes the row."""

    kind = "rows"
    gives = "fields"
    code = "return row"

    def resolve(self) -> None:
        self.asks = self.upstream.giving(*ANSWERS)
        self.number_field = self.upstream.shape.get("n", "n")
        self.changes({**self.upstream.shape, f"x_{self.name}": f"x_{self.name}"})

    def keys(self) -> dict[str, Any]:
        return {"python": f"tools/{self.name}.py:go"}

    def tool(self) -> str:
        return (
            f"STAGES = {sorted(self.upstream.stages)!r}\n\n\ndef go(row):\n"
            f"    number = row.get({self.number_field!r}, 0)\n"
            f"    said = [row[name] for name in {self.asks!r}]\n"
            f"    row = {{name: value for name, value in row.items() if name not in STAGES}}\n"
            f"    row['x_{self.name}'] = [{self.gene.word!r}, number, *said]\n    {self.code}\n"
        )

    def does(self, seen: Seen) -> Gives:
        number = seen.fields.get(self.number_field, 0)
        said = [seen.results[name] for name in self.asks]
        row = {**seen.fields, f"x_{self.name}": [self.gene.word, number, *said]}
        return self.made(row, number) or Gives(row, fields=row)

    def made(self, row: Fields, number: int) -> Gives | None:
        """What it gives in the place of the row; None: the row."""
        return None


class Sieve(Function):
    """A function that keeps some rows."""

    code = "return row if number % 2 else None"

    def made(self, row: Fields, number: int) -> Gives | None:
        return None if number % 2 else Gives(leaves=True)


class Risky(Function):
    """A function that raises for some rows."""

    code = "return row if number != 3 else 1 / 0"

    def made(self, row: Fields, number: int) -> Gives | None:
        if number == 3:
            raise Fails("PythonError")
        return None


class Many(Function):
    """A function that gives as many rows as a number says; of one itself."""

    explodes = False
    code = "return row if number == 1 else [{**row, 'number': place} for place in range(number)]"

    def made(self, row: Fields, number: int) -> Gives | None:
        return None if number == 1 else Gives(rows=[{**row, "number": place} for place in range(number)])


def ways(upstream: Upstream, numbers: Sequence[int]) -> list[tuple[str, ...]]:
    """Fields and parts of results, as numbers choose them."""
    found: list[tuple[str, ...]] = [(name,) for name in upstream.shape.values()]
    found += [(name,) for name in upstream.giving(*ANSWERS)]
    found += [(name, "mood") for name in upstream.giving("A")]
    return list(dict.fromkeys(found[number % len(found)] for number in numbers)) if found else []


class Dedupe(Operator):
    """Of rows that are alike one goes on."""

    kind = "kept"
    guarded = explodes = False

    def resolve(self) -> None:
        self.ways = ways(self.upstream, self.gene.refs[:2])

    def keys(self) -> dict[str, Any]:
        return {"dedupe": [".".join(way) for way in self.ways]}

    def alike(self, seen: Seen) -> list[Any]:
        return [seen.at(way) for way in self.ways]


class Groups(Operator):
    """Makes groups of rows."""

    kind = "groups"
    guarded = explodes = False

    def resolve(self) -> None:
        self.ways = [] if self.gene.number % 5 == 0 else ways(self.upstream, self.gene.refs[:2])
        firsts = [way[0] for way in self.ways]
        self.ways = [way for place, way in enumerate(self.ways) if way[0] not in firsts[:place]]
        self.ancestors, self.line, self.gone = (), (), frozenset()
        self.strict = self.gene.number % 3 == 0

    def answers(self) -> list[str]:
        """The stages whose results members bring along."""
        return self.upstream.giving(*ANSWERS)

    @property
    def eyes(self) -> Eyes:
        return Eyes((), None)

    def keys(self) -> dict[str, Any]:
        found = super().keys() | {"group_by": [".".join(way) for way in self.ways]}
        return found | {"incomplete": "fail"} if self.strict else found

    def alike(self, seen: Seen) -> list[Any]:
        return [seen.at(way) for way in self.ways]

    def group(self, values: list[Any]) -> Fields:
        fields: Fields = {}
        for way, value in zip(self.ways, values, strict=True):
            fields[way[0]] = value if len(way) == 1 else {way[1]: value}
        return fields

    def brought(self, seen: Seen) -> Fields:
        return {**seen.fields, **{name: seen.results[name] for name in self.answers() if name in seen.results}}

    def refuses(self, failed: int) -> bool:
        return self.strict and failed > 0


class Grouped(Groups, Ask):
    """Asks about groups of rows."""

    def resolve(self) -> None:
        super().resolve()
        names = {name: first for first, name in self.upstream.shape.items()}
        self.shape = {names[way[0]]: way[0] for way in self.ways if way[0] in names}
        self.parts = [("rows_count", ""), ("rows_failed", ""), *((name, "") for name in self.shape.values())]
        self.parts.append(("rows_json", ""))

    def answers(self) -> list[str]:
        """Those nearest upstream that ask a model."""
        found: dict[str, None] = {}
        left = sorted(self.needs, key=self.upstream.places.__getitem__)
        while left:
            stage = self.upstream.stages[left.pop(0)]
            if isinstance(stage, Ask):
                found[stage.name] = None
            else:
                left += sorted(stage.needs, key=self.upstream.places.__getitem__)
        return list(found)


class GroupFunction(Groups):
    """A function of the project makes one row of a group: its first row, and what all of its rows have. For some
    groups it raises, for some it gives None."""

    gives = "fields"

    def resolve(self) -> None:
        super().resolve()
        self.number_field = self.upstream.shape.get("n", "n")
        kept = {first: name for first, name in self.upstream.shape.items() if first not in ("item", "index")}
        self.changes({**kept, f"x_{self.name}": f"x_{self.name}"})

    def keys(self) -> dict[str, Any]:
        return super().keys() | {"python": f"tools/{self.name}.py:go"}

    def tool(self) -> str:
        return (
            f"OTHERS = {[*sorted(self.upstream.stages), 'item', 'index']!r}\n\n\ndef go(rows):\n"
            f"    total = sum(row.get({self.number_field!r}, 0) for row in rows)\n"
            f"    if total % 7 == 5:\n        raise ValueError(total)\n"
            f"    if total % 7 == 6:\n        return None\n"
            f"    said = [[row[name] for name in {self.answers()!r}] for row in rows]\n"
            f"    row = {{name: value for name, value in rows[0].items() if name not in OTHERS}}\n"
            f"    return {{**row, 'x_{self.name}': [{self.gene.word!r}, total, said]}}\n"
        )

    def does(self, seen: Seen) -> Gives:
        rows = seen.results["rows"]
        total = sum(row.get(self.number_field, 0) for row in rows)
        if total % 7 == 5:
            raise Fails("PythonError")
        if total % 7 == 6:
            return Gives(leaves=True)
        said = [[row[name] for name in self.answers()] for row in rows]
        others = {*self.upstream.stages, "item", "index"}
        row = {name: value for name, value in rows[0].items() if name not in others}
        row[f"x_{self.name}"] = [self.gene.word, total, said]
        return Gives(row, fields=row)


OPERATORS: dict[str, type[Operator]] = {
    "ask": Ask, "ask_form": AskForm, "agent": Agent, "agent_form": AgentForm, "ask_list": AskList,
    "ask_field": AskField, "ask_checked": AskChecked, "ask_voted": AskVoted,
    "filter": Filter, "select": Select, "rename": Rename, "function": Function, "sieve": Sieve,
    "risky": Risky, "many": Many, "dedupe": Dedupe, "group": Grouped, "group_function": GroupFunction,
}  # fmt: skip

"""Stages whose results hang on people, or on which of several equal requests is answered first. A model that works out
what rows come to cannot have them: plans are held against runs with them all the same."""

from typing import Any

from property.graph_operators import Ask, AskForm
from property.graph_stages import ANSWERS, Operator, guard_of
from property.graph_walk import Gives, Seen

LEADING = "leading"
"""The first word of prompts whose replicas are asked until one answer leads."""

MOST_REPLICAS = 5


class AskLead(AskForm):
    """Asks for objects until one of them leads by two."""

    replicas = MOST_REPLICAS

    @property
    def word(self) -> str:
        return f"{LEADING} {self.gene.word}"

    def keys(self) -> dict[str, Any]:
        return super().keys() | {"replicas": MOST_REPLICAS, "vote": {"field": "mood", "lead": 2}}


class Review(Operator):
    """People decide about an answer."""

    explodes = False

    def resolve(self) -> None:
        number = self.gene.number
        sources = self.upstream.giving(*ANSWERS)
        self.edit = sources[number % len(sources)]
        drawn = (number % 9, number // 9)
        self.condition = guard_of(drawn, self.upstream) if number % 2 else None

    def keys(self) -> dict[str, Any]:
        number = self.gene.number
        found: dict[str, Any] = {"edit": self.edit, "on_reject": ["drop", "skip", "fail"][number % 3]}
        if self.condition is not None:
            found["when"] = self.condition.text
        if number % 4 == 0 and isinstance(self.upstream.stages[self.edit], Ask):
            found["redo"] = {"max": 1}
        return {"review": found}

    def does(self, seen: Seen) -> Gives:
        raise NotImplementedError


PLANNED: dict[str, type[Operator]] = {"ask_lead": AskLead, "review": Review}


def further_keys(stage: Operator, body: dict[str, Any]) -> dict[str, Any]:
    """Keys that decide which stored answers a stage takes, as the number says that was drawn for it."""
    number = stage.gene.number
    found: dict[str, Any] = {}
    asks = "prompt" in body
    if asks and number % 3 == 1:
        found["max_age"] = "1h"
    if asks and number % 11 == 3:
        found["reuse"] = "row"
    name = stage.upstream.shape.get("n")
    if asks and "group_by" not in body and number % 5 == 2 and name is not None:
        check = {"check": f"row.{name} != 2", "message": "not for this row"}
        found["checks"] = [*body.get("checks", []), check]
        found["repair"] = 0
    if asks and "group_by" in body and number % 2:
        found["reduce"] = {"max_rows": 2}
    return found

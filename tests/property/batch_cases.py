"""What is drawn for the test of batches: a workflow, what goes wrong at its provider, what its user does meanwhile."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from hypothesis import strategies as st
from support.killed.batchmoments import METHODS

UNLUCKY, SHAKY, SLOPPY = "unlucky", "shaky", "sloppy"
"""Words in a row's text: it is refused whoever asks; its line may get lost; its first reply has the wrong form."""

FORM = {"sentiment": "positive|neutral|negative", "reason": "string"}
TEXTS = st.sampled_from(["red", "red", "green", "blue", "café\u2028\u0085", UNLUCKY, SHAKY, SLOPPY])


class Row(NamedTuple):
    kind: str
    text: str
    tags: tuple[str, ...]


class Stage(NamedTuple):
    """A stage. `kind` is ask, text, replicas, explode, group or filter; a group comes last."""

    kind: str
    mode: str
    guard: str | None
    drops: bool
    branches: bool


class Step(NamedTuple):
    """A command, and when it is killed; `advance` lets time pass at the provider."""

    words: tuple[str, ...]
    kill: str = ""


@dataclass(frozen=True)
class Case:
    """One example. `rules` are faults of batches, `lost` the one among them by which answers get lost that were paid.
    `seconds` is how long a batch takes, `grace` how long one that was asked for may take to show up."""

    rows: tuple[Row, ...]
    stages: tuple[Stage, ...]
    protocol: str
    rules: tuple[dict[str, Any], ...]
    lost: dict[str, Any] | None
    steps: tuple[Step, ...]
    max_requests: int
    retry: str
    seconds: float
    grace: float

    @property
    def all_rules(self) -> list[dict[str, Any]]:
        return [*self.always, *self.rules, *([self.lost] if self.lost else [])]

    @property
    def always(self) -> list[dict[str, Any]]:
        """What is wrong with some contents, however they are asked."""
        rules: list[dict[str, Any]] = [{"kind": "bad_request", "match": UNLUCKY}]
        steady = self.lost is None and all(stage.kind != "replicas" for stage in self.stages)
        return [*rules, {"kind": "wrong_schema", "match": SLOPPY, "first": 1}] if steady else rules


# what goes wrong

OPS = ("create", "upload", "poll", "download", "cancel", "list", "delete", "files")
PLACES = st.lists(st.integers(1, 6), min_size=1, max_size=2, unique=True)
LINES = st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True)


def at(*kinds: str, **values: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A fault of one of these kinds, at some calls; of a list of values, or a range, one is drawn."""
    drawn = {"kind": kinds, **values}
    strategies = {
        key: one if isinstance(one, st.SearchStrategy) else st.sampled_from(one) for key, one in drawn.items()
    }
    return st.fixed_dictionaries({"at": PLACES, **strategies})


CALLS = st.one_of(
    at("batch_drop_before", "batch_drop_after", op=OPS),
    at("batch_status", op=OPS, status=[500, 502, 503], when=["before", "after"]),
    at("batch_status", op=OPS, status=[429], retry_after=[0]),
    at("batch_truncate", after_bytes=range(401)),
    at("batch_file_lag", times=[1, 2]),
)
WHOLE = st.one_of(
    at("batch_no_metadata", "batch_counts_lie", "batch_zero_error_file", "batch_shuffle", "batch_bom",
       "batch_blank_lines"),
    at("batch_foreign_line", form=["unknown", "null", "list", "no_custom_id", "not_utf8"]),
    at("batch_expire", after=range(4)),
    at("batch_get_404", seconds=[0.1]),
    at("batch_dup_line", "batch_body_text"),
    at("batch_reject", code=["invalid_json_line"]),
    at("batch_reject", code=["invalid_json_line"], line=[1, 2]),
)  # fmt: skip
UNANSWERED = st.one_of(
    at("batch_line_status", status=[429, 500, 529], lines=LINES), at("batch_line_zero", "batch_line_error", lines=LINES)
)
LOST = at("batch_omit", "batch_corrupt_line", match=[SHAKY])
LOST_FILES = at("batch_null_output", "batch_empty_output_id")

# what its user does

PLACED = [f"{owner}.{method}" for owner, methods in METHODS.items() for method in methods]
MOMENTS = st.one_of(
    st.just(""),
    st.builds("{}:{}".format, st.sampled_from(["commit", "committed"]), st.integers(1, 40)),
    st.builds("{}:{}".format, st.sampled_from(["statement", "os.rename"]), st.integers(1, 60)),
    st.builds(
        "{}.{}:{}".format, st.sampled_from(PLACED), st.sampled_from(["before", "after"]), st.sampled_from([1, 1, 2, 4])
    ),
)
RUN, WAIT, RETRIEVE = ("run", "-a", "reviews"), ("run", "-a", "reviews", "--wait"), ("batch", "retrieve")
BY_CALLS, PREVIEW = (*RUN, "--run-mode", "sync"), ("--limit", "2")
VERBS = st.sampled_from(
    [RUN, RUN, BY_CALLS, (*RUN, *PREVIEW), WAIT, WAIT, RETRIEVE, RETRIEVE, RETRIEVE, ("batch", "cancel"),
     ("batch", "status"), ("doctor",), ("doctor", "--clean"), ("advance",), ("advance",)]
)  # fmt: skip

ROWS = st.lists(
    st.builds(Row, st.sampled_from("ab"), TEXTS, st.sampled_from([(), ("p",), ("p", "q"), ("q", "r")])),
    min_size=1, max_size=7,
).map(tuple)  # fmt: skip
STAGES = st.lists(
    st.builds(
        Stage,
        st.sampled_from(["ask", "ask", "text", "replicas", "explode", "group", "filter"]),
        st.sampled_from(["batch", "batch", "batch", "sync"]),
        st.one_of(st.none(), st.none(), st.sampled_from(['kind == "a"', 's0 != null && s0.sentiment != "neutral"'])),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1, max_size=3,
).map(tuple)  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Some example."""
    stages = draw(STAGES)
    lossy = draw(st.sampled_from([False, False, True]))
    seconds = draw(st.sampled_from([0.0, 0.0, 100.0]))
    lag = draw(st.sampled_from([False, False, False, True]))
    rules = draw(st.lists(st.one_of(CALLS, CALLS, WHOLE, *(() if lossy else (UNANSWERED,))), max_size=3))
    steps = draw(st.lists(st.builds(Step, VERBS, MOMENTS), max_size=5))
    if lag:  # who was killed before its batch was created, or whose create never came, would wait for long
        steps = [step._replace(kill="") for step in steps]
        rules = [rule for rule in rules if rule.get("op") != "create" or rule["kind"] == "batch_drop_after"]
        rules.append({"kind": "batch_list_lag", "seconds": 0.3, "always": True})
    protocol = draw(st.sampled_from(["chat", "responses", "azure", "anthropic"]))
    if protocol == "anthropic":  # whose messages nobody writes as texts, and which refuses at once
        rules = [rule for rule in rules if rule["kind"] not in ("batch_body_text", "batch_reject")]
    if any(stage.kind == "group" for stage in stages):  # which is asked with other content where rows are missing
        rules = [rule for rule in rules if rule["kind"] != "batch_reject"]
        steps = [step._replace(words=RUN) if step.words == (*RUN, *PREVIEW) else step for step in steps]
    if seconds:  # nobody could wait: no time passes by itself
        steps = [step._replace(words=RUN) if step.words == WAIT else step for step in steps]
    return Case(
        rows=draw(ROWS), stages=stages, protocol=protocol, rules=tuple(rules),
        lost=draw(LOST if protocol == "anthropic" else st.one_of(LOST, LOST_FILES)) if lossy else None,
        steps=tuple(steps), max_requests=draw(st.sampled_from([1, 2, 3, 1000])),
        retry=draw(st.sampled_from(["batch", "batch", "sync"])), seconds=seconds, grace=30.0 if lag else 0.2,
    )  # fmt: skip


# what it is written as


def providers(protocol: str, address: str) -> dict[str, Any]:
    """`providers.local` of agac.yml."""
    dialect, path, batch, more = {
        "chat": ("openai-chat", "v1", "openai", {"structured": "json_schema"}),
        "responses": ("openai-responses", "v1", "openai", {}),
        "azure": ("openai-chat", "openai/v1", {"api": "openai", "finds_by": "file"}, {}),
        "anthropic": ("anthropic", "v1", "anthropic", {}),
    }[protocol]
    return {"dialect": dialect, "base_url": f"{address}/{path}", "batch": batch, **more}


def rows_of(case: Case) -> list[dict[str, Any]]:
    return [
        {"id": f"r{number}", "kind": row.kind, "text": row.text, "tags": list(row.tags)}
        for number, row in enumerate(case.rows)
    ]


def stages_of(case: Case, *, sync: bool) -> list[dict[str, Any]]:
    """The stages of the file. A stage may need the first instead of the one before it, where it is about the same
    rows."""
    found: list[dict[str, Any]] = []
    exploded = grouped = False
    fields = "${text}"
    asked = ""
    for number, stage in enumerate(case.stages):
        if grouped:
            break
        kind = "ask" if exploded and stage.kind == "explode" else stage.kind
        body: dict[str, Any] = {"name": f"s{number}"}
        if kind == "filter":
            found.append(body | {"filter": 'text != "blue"'})
            continue
        if kind == "explode":
            body["explode"] = "tags"
            fields, exploded = "${text} ${item}", True
        if kind == "group":
            body |= {"group_by": ["kind"], "prompt": "sum up ${kind}: ${rows_json}"}
            grouped = True
        else:
            body["prompt"] = f"{'say' if number == 1 else 'judge'}: {fields}{asked}"
            if stage.guard and (number or "s0" not in stage.guard) and not ("s0" in stage.guard and "s0" not in asked):
                body["when"] = stage.guard
                body |= {"otherwise": "drop"} if stage.drops else {}
        if kind != "text":
            body["output_schema"] = FORM
        if kind == "replicas":
            body |= {"replicas": 2, "vote": "sentiment"}
        beside = {"explode", "group", "filter"}.isdisjoint({kind, *(one.kind for one in case.stages[:number])})
        if number == 2 and stage.branches and beside:
            body["needs"] = ["s0"]
        if number == 0 and kind in ("ask", "replicas", "explode"):
            asked = " after ${s0.reason}" if "when" not in body else ""
        if not sync:
            body["run_mode"] = stage.mode
        found.append(body)
    return found

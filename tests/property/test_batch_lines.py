"""What is written into batches and read back: names, and results whatever bytes they are made of."""

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.project import ProjectFolder
from support.soak import campaign

import agac
from agac.core.keys import batch_intent, custom_id, read_custom_id
from property.answering import FIELDS, Content, Provider, serving

PRINTS = st.binary(min_size=16, max_size=16)


@given(project=st.text(), run=st.integers(1), batch=st.integers(1), place=st.integers(0, 10**9), print_=PRINTS)
def test_a_name_says_what_it_was_made_of_and_every_provider_takes_it(
    project: str, run: int, batch: int, place: int, print_: bytes
) -> None:
    intent = batch_intent(project, run, batch, print_)
    name = custom_id(intent, place, print_)
    assert read_custom_id(name) == (intent, place, print_[:6].hex())
    assert len(name) <= 64
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")


@given(text=st.one_of(st.text(), st.from_regex(r"[a-z2-7]{15,17}-[0-9²٣]{0,4}-[0-9a-f]{11,13}")))
@example("a" * 16 + "-1-" + "0" * 12 + "-")
@example("a" * 16 + "-" + "9" * 5000 + "-" + "0" * 12)
def test_any_text_is_a_name_of_ours_or_none(text: str) -> None:
    found = read_custom_id(text)
    if found is not None:
        intent, place, mark = found
        assert text.startswith(f"{intent}-")
        assert text.endswith(f"-{mark}")
        assert place >= 0


@given(ones=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50), PRINTS), unique=True, max_size=50))
def test_different_batches_have_different_names(ones: list[tuple[int, int, bytes]]) -> None:
    assert len({batch_intent("token", *one) for one in ones}) == len(ones)


NAMED: list[Any] = ["response", "result", "error", "status_code", "body", "choices", "message", "type", "code", "id"]
VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.sampled_from(NAMED),
        st.sampled_from([0, 200, 404, 500, "200", 1e999, 10**400]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(NAMED), st.text(max_size=5)), inner, max_size=4),
    ),
    max_leaves=12,
)  # fmt: skip
GARBAGE = st.one_of(
    st.binary(max_size=60),
    VALUES.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"", b"\r", b"\xef\xbb\xbf", b"[" * 100_000, b"{}", b"null", b'"' + b"x" * 100_000, b"9" * 5000]),
)


FORM = FIELDS["A"]
SCHEMA = {"type": "object", "properties": FORM, "required": list(FORM), "additionalProperties": False}


class Spoiler:
    """Makes other lines of a batch's results, each time once more; then it leaves them as they are."""

    def __init__(self, plans: list[Any]) -> None:
        self.plans = plans

    def __call__(self, lines: list[bytes]) -> bytes:
        if not self.plans:
            return b"".join(lines)
        places, garbage, end = self.plans.pop(0)
        found = [self.spoiled(lines[place % len(lines)], how, more) for place, how, more in places]
        for place, piece in garbage:
            found.insert(place % (len(found) + 1), piece + b"\n")
        return b"".join(found)[: None if end < 0 else end]

    @staticmethod
    def spoiled(line: bytes, how: str, more: Any) -> bytes:
        result = json.loads(line)
        match how:
            case "cut":
                return line[: more % len(line)] + b"\n"
            case "other name":
                return json.dumps({**result, "custom_id": more}).encode() + b"\n"
            case "no answer":
                return json.dumps({"custom_id": result["custom_id"], "response": more, "error": more}).encode() + b"\n"
            case "status":
                result["response"]["status_code"] = more
                return json.dumps(result).encode() + b"\n"
        return line


HOW = st.one_of(
    st.tuples(st.integers(0, 9), st.just("as it is"), st.none()),
    st.tuples(st.integers(0, 9), st.just("as it is"), st.none()),
    st.tuples(st.integers(0, 9), st.just("cut"), st.integers(0, 400)),
    st.tuples(st.integers(0, 9), st.sampled_from(["other name", "no answer", "status"]), VALUES),
)
PLANS = st.lists(
    st.tuples(
        st.lists(HOW, max_size=8),
        st.lists(st.tuples(st.integers(0, 9), GARBAGE), max_size=3),
        st.sampled_from([-1, -1, -1, -1, -1, 0, 100]),
    ),
    min_size=1, max_size=3,
)  # fmt: skip


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with serving() as found, pytest.MonkeyPatch.context() as patched:
        patched.setattr("agac.engine.batch.poll.LATE_FILES", (0.0, 0.0))
        yield found


@campaign(test=6, soak=1500)
@given(texts=st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6), plans=PLANS, size=st.sampled_from([2, 100]))
def test_whatever_results_hold_no_task_is_lost_and_none_is_answered_wrongly(
    provider: Provider, texts: list[str], plans: list[Any], size: int
) -> None:
    """Once lines are whole again every row has its answer: those that came earlier are kept, the others are asked."""
    with TemporaryDirectory(prefix="agac-lines-") as folder:
        project = ProjectFolder(Path(folder))
        project.configure(provider.base_url, batch="openai")
        project.rows({"id": f"r{number}", "text": text} for number, text in enumerate(texts))
        project.workflow(
            stages=[{"name": "s", "prompt": "say ${text}", "output_schema": SCHEMA}], stop_loss=False,
            defaults={"run_mode": "batch", "batch": {"poll_interval": "0.01s", "max_requests": size, "max_rounds": 9}},
        )  # fmt: skip
        provider.take()
        provider.batches.spoil, kept = Spoiler(list(plans)), provider.batches.kept
        for _ in range(8):
            report = project.run(wait=True)
            undecided = project.query("SELECT id FROM batch WHERE state = 'NEEDS_HUMAN'")
            for (batch,) in undecided:  # its results hold no line of it
                agac.doctor(resubmit=True, batch_id=batch, project=project.root)
            assert report.exit_code in ((75,) if undecided else (0, 3))
            project.assert_sound()
            if undecided:
                continue
            assert project.query("SELECT * FROM batch_task WHERE state < 3") == []
            found = {one["id"]: one["result"] for one in project.envelopes() if one["ok"]}
            for number, text in enumerate(texts):
                assert found.get(f"r{number}") in (None, Content("small", None, f"say {text}", "A").value)
            if report.exit_code == 0:
                break
        assert len(found) == len(texts)
        assert {state for (state,) in project.query("SELECT state FROM batch")} <= {"CLEANED", "NOT_CREATED"}
        lost = "SELECT 1 FROM batch WHERE state = 'NOT_CREATED' OR json_extract(counts, '$.missing') > 0"
        assert provider.batches.kept == kept or project.query(lost)
        took = provider.take()
        project.run(wait=True)
        assert not provider.take()
        assert set(took) == {Content("small", None, f"say {text}", "A") for text in texts}

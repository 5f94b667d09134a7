"""Stand-ins for tools: what each gives for a call, and what is no stub."""

import json
from pathlib import Path
from typing import Any

import pytest

from agac.spec.tool_stubs import recorded_line, stub_answer, stub_fault

CALL: dict[str, Any] = {"q": "x", "n": 2}
STUBS: list[tuple[Any, tuple[str, bool, float]]] = [
    ("text", ("text", False, 0)),
    ([1, {"a": None}], ('[1,{"a":null}]', False, 0)),
    ({"results": []}, ('{"results":[]}', False, 0)),
    ({}, ("{}", False, 0)),
    ({"value": {"echo": 1}, "delay": 0.4}, ('{"echo":1}', False, 0.4)),
    ({"echo": True}, ('{"n":2,"q":"x"}', False, 0)),
    ({"error": "no"}, ("no", True, 0)),
    ({"cel": "args.q == 'x' ? 'yes' : 'no'"}, ("yes", False, 0)),
    ({"cel": "{'n': args.n + 1, 'all': [args.q]}"}, ('{"all":["x"],"n":3}', False, 0)),
    ({"file": "calls.jsonl"}, ("found", False, 0)),
]


@pytest.mark.parametrize(("stub", "gives"), STUBS, ids=[json.dumps(stub) for stub, _ in STUBS])
def test_a_stub_gives(stub: Any, gives: tuple[str, bool, float], tmp_path: Path) -> None:
    lines = [("search", {"n": 2, "q": "x"}, "old"), ("search", CALL, "found"), ("other", CALL, "no")]
    (tmp_path / "calls.jsonl").write_text("".join(recorded_line(*one, False) for one in lines))
    assert stub_fault(stub) is None
    assert stub_answer(stub, "search", CALL, tmp_path) == gives


def test_a_call_that_was_not_recorded_is_named(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text(recorded_line("search", {"q": "y"}, "no", True) + "\n")
    said = stub_answer({"file": "none.jsonl"}, "search", {"q": "x"}, tmp_path)
    assert said[:2] == ('no result is recorded in none.jsonl for search with {"q":"x"}; record it, or add a line', True)
    assert stub_answer({"file": "none.jsonl"}, "search", {"q": "y"}, tmp_path)[:2] == ("no", True)
    said = stub_answer({"cel": "args.nope"}, "search", {}, tmp_path)
    assert said.error
    assert said.text.startswith("the stub of search cannot be computed: ")


def test_a_stub_that_takes_too_long_for_a_call_is_an_error_of_the_tool(tmp_path: Path) -> None:
    stub = {"cel": "args.xs.all(a, args.xs.all(b, a != b))"}
    assert stub_fault(stub) is None
    assert stub_answer(stub, "search", {"xs": [1, 2]}, tmp_path)[:2] == ("false", False)
    said = stub_answer(stub, "search", {"xs": [*range(5_000)]}, tmp_path)
    assert said.error
    assert "takes more than 10,000,000 steps" in said.text


NO_STUBS: list[tuple[Any, str]] = [
    ({"delay": 0.4}, "a stub is a value, or one of {value: …}, {file: …}, {cel: …}, {echo: …}, {error: …}"),
    ({"echo": True, "error": "no"}, "a stub is a value, or one of"),
    ({"echo": True, "delay": -1}, "delay is a number of seconds up to 600, not -1"),
    ({"echo": True, "delay": True}, "delay is a number of seconds up to 600, not True"),
    ({"error": 3}, "file, cel and error are texts"),
    ({"cel": "args.q =="}, ""),
    ({"cel": "1 + " * 3_000 + "1"}, "cel is longer than 10,000 characters"),
    (
        {"cel": f"{[*range(900)]}.map(a, {[*range(900)]}).size()"},
        "at column 1: the expression takes more than 10,000,000",
    ),
]


@pytest.mark.parametrize(("stub", "said"), NO_STUBS, ids=[json.dumps(stub) for stub, _ in NO_STUBS])
def test_what_is_no_stub_is_refused(stub: Any, said: str) -> None:
    fault = stub_fault(stub)
    assert fault is not None
    assert fault.startswith(said)

"""What a function of a project is given, what it may give back, and what becomes of its failures; everywhere alike."""

import asyncio
import sys
from typing import Any

import pytest
from support.functions import DEFS, WAYS

from agac.tools.processes import open_function


@WAYS
@DEFS
def test_a_row_rows_or_nothing(tools: Any, processes: int | None, define: str) -> None:
    tools.write("tools/clean.py", f"{define} f(row):\n    return row['gives']\n")
    given: list[Any] = [{"a": 1}, [{"a": 1}, {}], [], None]
    assert tools.calls([{"gives": value} for value in given], processes=processes) == given


@WAYS
@DEFS
async def test_arguments_and_results_are_copies(tools: Any, processes: int | None, define: str) -> None:
    tools.write(
        "tools/clean.py",
        f"seen = []\n{define} f(row):\n    row['tags'].append('more')\n    row['new'] = 1\n    del row['text']\n"
        "    seen.append(row)\n    return seen\n",
    )
    row = {"text": "ä\n", "tags": ["a", {"b": None}]}
    async with open_function(tools.ref(), tools.root, processes) as call:
        first, second = await call(row), await call(row)
    assert row == {"text": "ä\n", "tags": ["a", {"b": None}]}
    one = {"tags": ["a", {"b": None}, "more"], "new": 1}
    assert (first, second) == ([one], [one, one])
    assert first[0] is not second[0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("(1, (2, 3))", [1, [2, 3]]),
        ("OrderedDict(a=1)", {"a": 1}),
        ("defaultdict(list, a=[1])", {"a": [1]}),
        ("Colour.RED", "red"),
        ("{Colour.RED: Number.ONE}", {"red": 1}),
        ("[True, None, 1.5, -0.0, 2**70, '日本', '\\x00']", [True, None, 1.5, -0.0, 2**70, "日本", "\x00"]),
    ],
)
@WAYS
def test_what_json_holds_is_kept(tools: Any, value: str, expected: Any, processes: int | None) -> None:
    tools.write("tools/clean.py", KINDS + f"def f(row):\n    return {{'a': {value}}}\n")
    found = tools.gives(processes=processes)["a"]
    assert (found, repr(found)) == (expected, repr(expected))


RATHER = "give a dict or None; where the stage has neither explode nor group_by a list of dicts does as well"
KINDS = """
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from uuid import UUID
class Colour(StrEnum):
    RED = "red"
class Number(IntEnum):
    ONE = 1
class Plain(Enum):
    A = 1
Point = namedtuple("Point", "x y")
@dataclass
class Data:
    a: int = 1
class Own(float):
    pass
class Array:
    def tolist(self): return [1]
async def later(): pass
deep = []
for _ in range(300): deep = [deep]
round = {}; round["round"] = round
"""


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{'price': float('nan')}", "price is nan, which JSON has not; give None or a finite number"),
        ("{'a': [1, {'b': -float('inf')}]}", "a[1].b is -inf, which JSON has not; give None or a finite number"),
        ("{'raw': b'x'}", "raw is a bytes, which JSON has not; give text, as value.decode()"),
        ("{'when': datetime(2024, 1, 1)}", "when is a datetime, which JSON has not; give text, as value.isoformat()"),
        ("{'day': date(2024, 1, 1)}", "day is a date, which JSON has not; give text, as value.isoformat()"),
        ("{'x': timedelta(1)}", "x is a timedelta, which JSON has not; give a number, as value.total_seconds()"),
        (
            "{'price': Decimal('1.5')}",
            "price is a Decimal, which JSON has not; give text or a number, as str(value) or float(value)",
        ),
        ("{'tags': {1}}", "tags is a set, which JSON has not; give a list, as sorted(value)"),
        ("{'id': UUID(int=1)}", "id is a UUID, which JSON has not; give text, as str(value)"),
        ("{'p': Path('x')}", "p is a PosixPath, which JSON has not; give text, as str(value)"),
        ("{'p': Point(1, 2)}", "p is a Point, which JSON has not; give value._asdict() or list(value)"),
        ("{'p': Data()}", "p is a Data, which JSON has not; give dataclasses.asdict(value)"),
        ("{'p': Array()}", "p is an Array, which JSON has not; give value.tolist()"),
        ("{'p': Own(1)}", "p is an Own, which JSON has not; give text, a number, true, false, None, a list or a dict"),
        (
            "{'p': Plain.A}",
            "p is a Plain, which JSON has not; give text, a number, true, false, None, a list or a dict",
        ),
        ("{'g': (x for x in [])}", "g is a generator, which JSON has not; give a list, as list(value)"),
        ("{'n': {1: 2}}", "n has the key 1, an int; keys are text: give str(key)"),
        ("{None: 2}", "what it gave has the key None, a NoneType; keys are text: give str(key)"),
        (
            "{'t': 'a\\ud800'}",
            "t holds half of a surrogate pair, which no UTF-8 text can; give value.encode('utf-8', 'replace').decode()",
        ),
        ("{'n': 10**5000}", "n is a number of more than 4,300 digits; give text or a float"),
        ("[{'a': 1}, {'b': b''}]", "[1].b is a bytes, which JSON has not; give text, as value.decode()"),
        ("[{'a': 1}, None]", "[1] is None; each row of a list is a dict"),
        ("[[{}]]", "[0] is a list; each row of a list is a dict"),
        ("'text'", f"what it gave is text; {RATHER}"),
        ("True", f"what it gave is true or false; {RATHER}"),
        ("Data()", "what it gave is a Data, which JSON has not; give dataclasses.asdict(value)"),
        ("Point({}, {})", "what it gave is a Point, which JSON has not; give value._asdict() or list(value)"),
        ("(x for x in [])", "what it gave is a generator, which JSON has not; give a list, as list(value)"),
        ("later()", "what it gave is a coroutine, which JSON has not; write the function with async def, or await it"),
        ("{'deep': deep}", f"deep{'[0]' * 199} is nested deeper than 200 levels"),
        ("round", f"{'.'.join(['round'] * 200)} is nested deeper than 200 levels"),
    ],
)
def test_what_json_does_not_hold_is_refused_by_name(tools: Any, value: str, message: str) -> None:
    tools.write("tools/clean.py", KINDS + f"def f(row):\n    return {value}\n")
    failed = tools.fails()
    assert (failed.message, failed.detail) == (f"{message} (tools/clean.py:f)", "")


FAILING = """\
from .words import length

class Strange(Exception):
    def __reduce__(self):
        raise TypeError("no pickle")

{define} f(row):
    try:
        return {{"n": length(row["text"])}}
    except KeyError as error:
        raise Strange(lambda: 1, "two\\nlines") from error
"""


@WAYS
@DEFS
def test_an_exception_is_told_in_one_line_and_in_full_from_the_users_frame(
    tools: Any, processes: int | None, define: str
) -> None:
    tools.write("tools/clean.py", FAILING.format(define=define))
    tools.write("tools/words.py", "def length(text):\n    return len(text)\n")
    failed, strange = tools.calls([{"text": 5}, {}], processes=processes)
    assert failed.message == "TypeError: object of type 'int' has no len() (tools/words.py:2)"
    lines = failed.detail.splitlines()
    assert lines[:3] == [
        "Traceback (most recent call last):",
        '  File "tools/clean.py", line 9, in f',
        '    return {"n": length(row["text"])}',
    ]
    assert lines[-1] == "TypeError: object of type 'int' has no len()"
    assert strange.message.startswith("Strange: (<function f.<locals>.<lambda> at 0x")
    assert strange.message.endswith("'two\\nlines') (tools/clean.py:11)")
    assert "KeyError: 'text'" in strange.detail
    assert "tools.clean.Strange: " in strange.detail
    for text in (failed.detail, strange.detail):
        assert "agac" not in text
        assert str(tools.root) not in text


@WAYS
@DEFS
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("raise SystemExit(3)", "SystemExit: 3 (tools/clean.py:3)"),
        ("sys.exit()", "SystemExit (tools/clean.py:3)"),
        ("raise BaseException('odd')", "BaseException: odd (tools/clean.py:3)"),
        ("raise StopIteration(1)", "StopIteration: 1 (tools/clean.py:3)"),
        ("raise ValueError('a\\n  b ' + 'x' * 600)", "ValueError: a b " + "x" * 496 + "… (tools/clean.py:3)"),
        ("raise __import__('asyncio').CancelledError('odd')", "CancelledError: odd (tools/clean.py:3)"),
    ],
)
def test_whatever_it_raises_fails_the_row(
    tools: Any, processes: int | None, define: str, statement: str, message: str
) -> None:
    if define == "async def" and "StopIteration" in statement:
        message = "RuntimeError: coroutine raised StopIteration (tools/clean.py:f)"
    tools.write("tools/clean.py", f"import sys\n{define} f(row):\n    {statement}\n")
    failed, again = tools.calls([{}, {}], processes=processes)
    assert failed.message == again.message == message


def test_a_text_that_cannot_be_made_and_one_that_is_too_long_to_be_kept(tools: Any) -> None:
    odd = "class Odd(Exception):\n    def __str__(self): raise ValueError\n"
    tools.write(
        "tools/clean.py", f"{odd}def f(row):\n    raise Odd\ndef g(row):\n    raise ValueError('x' * 100_000)\n"
    )
    assert tools.fails().message == "Odd: (its text cannot be made) (tools/clean.py:4)"
    text = tools.fails({}, "tools/clean.py:g").detail
    assert len(text) < 21_000
    assert "characters are left out …" in text


@WAYS
async def test_what_it_prints_goes_to_stderr(
    tools: Any, processes: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    tools.write(
        "tools/clean.py",
        "import os, sys, threading\nprint('import')\ndef f(row):\n    print('call')\n    sys.stdout.write('write\\n')\n"
        "    t = threading.Thread(target=print, args=['thread'])\n    t.start(); t.join()\n"
        + ("    os.system('echo child')\n" if processes else "")
        + "    return row\n",
    )

    before = sys.stdout
    async with open_function(tools.ref(), tools.root, processes) as call:
        await call({})
        print("ours")
    assert sys.stdout is before
    out, err = capfd.readouterr()
    assert out == "ours\n"
    assert sorted(err.split()) == sorted(["import", "call", "write", "thread", *(["child"] if processes else [])])


async def test_what_an_async_function_prints_goes_to_stderr_and_what_we_print_meanwhile_does_not(
    tools: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    tools.write(
        "tools/clean.py",
        "import asyncio\nasync def f(row):\n    print('one')\n    await row['go'].wait() if 'go' in row else None\n"
        "    for _ in range(9): await asyncio.sleep(0)\n    print('two')\n    return row\n",
    )
    async with open_function(tools.ref(), tools.root) as call:
        running = asyncio.create_task(call({}))
        for _ in range(3):
            await asyncio.sleep(0)
        print("ours")
        await running
    assert capsys.readouterr() == ("ours\n", "one\ntwo\n")

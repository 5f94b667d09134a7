"""What agac says to the commonest mistakes. It is product text: each is made for real and pinned word for word.

After a change that is meant: cd tests && python -m support.mistakes, then read the difference.
"""

import re
from pathlib import Path

import pytest
from support.mistakes import PINNED, pinned, shown

ALL = list(pinned())


@pytest.mark.unmeasured
@pytest.mark.parametrize(("place", "name", "file"), ALL, ids=[name for _, name, _ in ALL])
def test_what_is_said_to_a_mistake(place: str, name: str, file: Path, tmp_path: Path) -> None:
    assert shown(place, name, tmp_path / "shop") == file.read_text("utf-8")


def test_every_pinned_text_has_its_mistake_and_there_are_more_than_thirty() -> None:
    assert set(PINNED.rglob("*.txt")) == {file for _, _, file in ALL}
    assert len(ALL) > 30


@pytest.mark.parametrize("file", [file for _, _, file in ALL], ids=lambda file: file.stem)
def test_a_text_is_no_bug_report_and_says_what_to_do(file: Path) -> None:
    text = file.read_text("utf-8")
    assert "Traceback" not in text
    assert "bug" not in text
    assert re.search(r"^exit code [1-4]$", text, re.MULTILINE) or "warning: " in text
    assert REMEDY.search(text), text


REMEDY = re.compile(
    r"did you mean|known |write |use |keep one|name |give |add |check |remove |set |let one|are: |is the file|export|"
    r"run again|upgrade|free some space|choose|save |loosen|`agac|wait |types: |move it|is missing|takes|lists them|"
    r"lists all|names no|named by|put quotes|indent|like \'|resume with",
    re.IGNORECASE,
)
"""Words in which a text says how to go on."""

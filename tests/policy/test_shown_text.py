"""Text as people are shown it: what nobody sees is an escape, and ordinary text stays as it is."""

import json
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agac.core.text import cells, exposed, json_shown, plain, split_lines, squeezed, unseen
from agac.core.word_diff import as_html, as_markdown, as_text, value_diff, word_diff

UNSEEN = {
    "a tag": "\U000e0041",
    "the tag that ends tags": "\U000e007f",
    "a zero-width space": "\u200b",
    "a joiner of words": "\u2060",
    "a mark of the direction": "\u200f",
    "an Arabic mark of the direction": "\u061c",
    "an override": "\u202e",
    "an isolate": "\u2066",
    "the end of an isolate": "\u2069",
    "a selector": "\ufe01",
    "a selector for emoji": "\ufe0f",
    "a selector of the supplement": "\U000e0100",
    "the last selector": "\U000e01ef",
    "a soft hyphen": "\u00ad",
    "a Hangul filler": "\u3164",
    "a half-width filler": "\uffa0",
    "a vowel filler": "\u1160",
    "a grapheme joiner": "\u034f",
    "an annotation": "\ufff9",
    "an invisible times": "\u2062",
    "a byte order mark": "\ufeff",
    "a joiner": "\u200d",
    "a non-joiner": "\u200c",
    "a Khmer vowel": "\u17b4",
    "a Mongolian separator": "\u180e",
    "a shorthand control": "\U0001bca0",
    "a musical control": "\U0001d173",
    "an unassigned ignorable": "\U000e0fff",
    "another unassigned ignorable": "\u2065",
    "an unassigned special": "\ufff0",
    "an escape": "\x1b",
    "a null": "\x00",
    "a return": "\r",
    "a next line": "\x85",
    "a form feed": "\x0c",
    "private use": "\ue000",
    "private use of the last plane": "\U0010fffd",
    "a noncharacter": "\ufdd0",
    "a last noncharacter": "\U0010ffff",
    "a lone surrogate": "\ud800",
    "a line separator": "\u2028",
    "a paragraph separator": "\u2029",
    "a no-break space": "\u00a0",
    "an em space": "\u2003",
    "a narrow no-break space": "\u202f",
    "a wide space": "\u3000",
    "an Ogham space": "\u1680",
    "an empty Braille cell": "\u2800",
}


@pytest.mark.parametrize("sign", UNSEEN.values(), ids=UNSEEN)
def test_a_character_that_nobody_sees_is_shown_as_an_escape_and_is_found(sign: str) -> None:
    shown = plain(f"a{sign}b")
    assert shown.isascii()
    assert shown.isprintable()
    assert shown != "ab"
    assert shown[1:-1].encode().decode("unicode_escape") == sign
    assert [*unseen(f"a{sign}b")] == [(1, sign)]
    assert exposed(f"a{sign}b") == shown
    assert json.loads(json_shown(json.dumps([f"a{sign}b"], ensure_ascii=False))) == [f"a{sign}b"]


def test_every_format_character_and_every_blank_but_one_is_an_escape_in_latin_text() -> None:
    seen_signs = set(map(chr, [*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD]))
    for sign in map(chr, range(sys.maxunicode + 1)):
        kind = unicodedata.category(sign)
        if kind in ("Cf", "Zs", "Zl", "Zp", "Cc", "Co", "Cs") and sign not in {" ", "\t", "\n"} | seen_signs:
            assert plain(f"a{sign}b").isascii(), ascii(sign)


ORDINARY = {
    "a family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "a red heart": "\u2764\ufe0f",
    "a keycap": "1\ufe0f\u20e3",
    "a profession with a skin tone": "\U0001f468\U0001f3fd\u200d\U0001f4bb",
    "a heart on fire": "\u2764\ufe0f\u200d\U0001f525",
    "a rainbow flag": "\U0001f3f3\ufe0f\u200d\U0001f308",
    "arrows": "\u2194\ufe0f \U0001f642\u200d\u2195\ufe0f",
    "arrows and squares": "\u2934\ufe0f \u2935\ufe0f \u25fb\ufe0f \u25fc\ufe0f \u25aa\ufe0f \u203c\ufe0f",
    "Sundanese": "\u1b8a\u1bab\u200c\u1b92",
    "the flag of Scotland": "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "Persian": "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
    "Hindi": "\u0915\u094d\u200d\u0937 \u0915\u094d\u200c\u0937",
    "Sinhala": "\u0dc1\u0dca\u200d\u0dbb\u0dd3",
    "Hebrew with points": "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd",
    "Arabic": "\u0645\u0631\u062d\u0628\u0627 \u0661\u0662\u060c",
    "an Arabic number sign": "\u0600\u0661",
    "Mongolian": "\u1820\u180b\u1821",
    "Japanese": "\u65e5\u672c\u3000\u8a9e",
    "accents": "e\u0301 \u00fc \u1e9e",
    "an emoji that is newer than Python": "\U0001fae9",
    "tabs and lines": "a\tb\nc",
}


@pytest.mark.parametrize("text", ORDINARY.values(), ids=ORDINARY)
def test_ordinary_text_stays_as_it_is_and_nothing_is_found_in_it(text: str) -> None:
    assert plain(text) == text
    assert not [*unseen(text)]


@pytest.mark.parametrize(
    "text",
    [
        "\u2764\ufe0f\ufe0f", "\u2764\ufe0f\ufe0e", "\u0627\u200d\u200d", "\U0001f468\u200d\u200d\U0001f469", "1\ufe0f",
        "\u200d\U0001f469", "\U0001f468\u200dx", "a\u200c\u0627", "\U0001f3f4\U000e0067\U000e0062\U000e007f",
        "\U0001f468" + "\U000e0073" * 6, "\u845b\U000e0100", "\u3000\u3000a", "\u05d0\u200f",
    ],
)  # fmt: skip
def test_a_second_character_or_one_where_no_script_needs_it_is_shown(text: str) -> None:
    assert [*unseen(text)]
    assert "\\" in plain(text)


def test_tags_after_a_flag_are_shown_where_they_are_no_part_of_it() -> None:
    flag = ORDINARY["the flag of Scotland"]
    assert plain(f"{flag}\U000e0041") == f"{flag}\\U000e0041"


@pytest.mark.parametrize("sign", [*UNSEEN.values(), *"\u200d\ufe0f\u200c", " ", "\t", "\n", "  "])
@pytest.mark.parametrize("place", [0, 4, 5, 8, 9])
def test_a_difference_of_one_such_character_is_never_shown_as_two_equal_texts(sign: str, place: int) -> None:
    before = "Say \u2764 to \u0645\u06cc"
    now = before[:place] + sign + before[place:]
    for made in (as_text(word_diff(before, now)), as_html(word_diff(before, now)), as_markdown(word_diff(before, now))):
        assert any(mark in made for mark in ("{+", "<ins>", "**"))
        assert "\\x" in made or "\\u" in made or "\\U" in made or "\\t" in made or "\\n" in made
    one, other = before.replace(" ", "-"), now.replace(" ", "-", 2)
    told = value_diff(one * 20, other + one * 19, as_text, plain)
    assert " → " not in told or len({*told.split(" → ")}) == 2


def test_an_escape_that_is_typed_is_told_from_the_character_in_a_difference() -> None:
    assert value_diff("a\u200b", "a\\u200b", as_text, plain) == "a\\u200b → a\\\\u200b"
    assert as_text(word_diff("say a\u200bb", r"say a\u200bb")) == r"say a[-\u200bb-]{+\\u200bb+}"


def test_long_values_without_blanks_begin_shortly_before_what_differs() -> None:
    told = value_diff("x" * 300 + "a", "x" * 300 + "b", as_text, plain)
    before, now = told.split(" → ")
    assert before == f"…{'x' * 60}a"
    assert now == f"…{'x' * 60}b"


def test_white_space_that_nobody_sees_is_kept_where_text_is_put_on_one_line() -> None:
    assert squeezed("a \n b\r\nc\u00a0d\u2028e") == r"a b c\xa0d\u2028e"


@given(st.text(st.sampled_from("ab\n\r\x85\u2028\u2029\x0b\x0c\x1c"), max_size=12))
def test_a_line_ends_at_a_line_feed_alone(text: str) -> None:
    lines = split_lines(text)
    assert "\n".join(lines) == text.removesuffix("\n")
    assert "".join(split_lines(text, ends=True)) == text
    assert len(lines) == text.removesuffix("\n").count("\n") + bool(text)


def test_a_joiner_takes_no_cell_of_a_terminal() -> None:
    assert cells("\u0645\u06cc\u200c\u062e") == 3
    assert cells("e\u0301") == 1

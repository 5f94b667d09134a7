"""Shows text to people: its width, escapes for characters that would not be seen, durations, and
the commands for a row or a run."""

from __future__ import annotations

import html
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import chain
from unicodedata import category, east_asian_width, name

CHARACTERS_A_TOKEN = 4
"""Characters of English text that make one token with common tokenizers, about."""

# Characters that people do not see: what a reviewer cannot see must not reach a model, a terminal
# or a name unseen. The general categories of `unicodedata` tell most of them. It lacks two
# properties, which are tables here. They were compared with the properties of the package regex
# 2026.11.19 for every code point: there was no difference.

_DEFAULT_IGNORABLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160),
    (0x17B4, 0x17B5), (0x180B, 0x180F), (0x200B, 0x200F), (0x202A, 0x202E),
    (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
    (0xE0000, 0xE0FFF),
)  # fmt: skip
"""Default_Ignorable_Code_Point, code points that are not assigned yet included."""

_PREPENDED_MARKS = frozenset(
    "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
)
"""Prepended_Concatenation_Mark: signs that are seen, though of category Cf."""

_BLANK = frozenset("\u2800\U00016fe4\U0001d159")
"""Symbols whose picture is empty: of Braille, of Khitan and of music."""

_NONCHARACTERS = ((0xFDD0, 0xFDEF), *((end - 1, end) for end in range(0xFFFF, 0x110000, 0x10000)))
_PRIVATE_PLANES = (0xF0000, 0x10FFFF)

_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"})


# Ordinary text needs some of these characters. Where it does, one of them is left as it is: an
# emoji is one picture and not several with escapes between them, and words of scripts whose letters
# join stay words. Only one character after a visible one is left, so that no text of any length
# hides there; and a difference of two texts shows these, too.

_JOINERS = "\u200c\u200d"
_ZERO_WIDTH_JOINER = _JOINERS[1]
_JOINING_SCRIPTS = frozenset({
    "ADLAM", "ARABIC", "BALINESE", "BENGALI", "BHAIKSUKI", "BRAHMI", "CHAKMA", "CHORASMIAN",
    "DEVANAGARI", "DIVES", "DOGRA", "GRANTHA", "GUJARATI", "GUNJALA", "GURMUKHI", "HANIFI",
    "JAVANESE", "KAITHI", "KANNADA", "KHAROSHTHI", "KHMER", "KHOJKI", "MALAYALAM", "MANDAIC",
    "MANICHAEAN", "MASARAM", "MEETEI", "MODI", "MONGOLIAN", "MYANMAR", "NANDINAGARI", "NEWA",
    "NKO", "ORIYA", "PHAGS-PA", "PSALTER", "SAURASHTRA", "SHARADA", "SIDDHAM", "SINHALA",
    "SOGDIAN", "SOYOMBO", "SUNDANESE", "SYLOTI", "SYRIAC", "TAI", "TAKRI", "TAMIL", "TELUGU",
    "TIRHUTA", "ZANABAZAR",
})  # fmt: skip
"""First words of the names of letters that ZERO WIDTH JOINER and ZERO WIDTH NON-JOINER change: of
scripts that have letters of Joining_Type=Dual_Joining, or of Indic_Syllabic_Category=Virama or
Invisible_Stacker, by the same package. Scripts whose name begins with OLD are left out, as that
word names other scripts too."""

_MONGOLIAN = frozenset({"MONGOLIAN"})
_MONGOLIAN_SELECTORS = "\u180b\u180c\u180d\u180e\u180f"
_EMOJI_SELECTORS = "\ufe0e\ufe0f"
_KEYCAP = "\u20e3"
_IDEOGRAPHIC_SPACE = "\u3000"
_FLAGS = tuple(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + "\U000e007f"
    for region in ("gbeng", "gbsct", "gbwls")
)
"""England, Scotland and Wales, the flags that are written in tag characters and that fonts have."""


_OTHER_EMOJI = "\u203c\u2049\u2139\u2194\u25fb\u25fc\u25fd\u25fe\u2934\u2935\u3030\u303d"
"""Assigned characters of Extended_Pictographic, or like them, that are not symbols by their
category."""


def _is_emoji(char: str) -> bool:
    """True if `char` can be drawn as an emoji, or changes one, as a skin tone does."""
    if not char or char in _BLANK:
        return False
    in_emoji_blocks = "\U0001f000" <= char <= "\U0001faff"
    return in_emoji_blocks or char in _OTHER_EMOJI or category(char) == "So"


def _is_letter_of(char: str, scripts: frozenset[str]) -> bool:
    """True if `char` is a letter, or a mark on one, of these scripts."""
    return bool(char) and category(char)[0] in "LM" and name(char, "").split(" ")[0] in scripts


def _is_ordinary(text: str, index: int) -> bool:
    """True if ordinary text needs the character at `index` where it is."""
    char = text[index]
    before = text[index - 1 : index]
    after = text[index + 1 : index + 2]
    if char in _EMOJI_SELECTORS:
        return _is_emoji(before) or (after == _KEYCAP and before in "0123456789#*")
    if char == _IDEOGRAPHIC_SPACE:
        return _is_wide_letter(before) or _is_wide_letter(after)
    if char in _MONGOLIAN_SELECTORS:
        return _is_letter_of(before, _MONGOLIAN)
    if char in _JOINERS:
        return _joins(text, index)
    if "\U000e0020" <= char <= _FLAGS[0][-1]:
        return _is_in_flag(text, index)
    return False


def _is_wide_letter(char: str) -> bool:
    """True if `char` takes two columns, and is not a space."""
    return bool(char) and char != _IDEOGRAPHIC_SPACE and east_asian_width(char) in "WF"


def _joins(text: str, index: int) -> bool:
    """True if the joiner at `index` changes a letter before it, or joins two emoji."""
    before = text[index - 1 : index]
    if _is_letter_of(before, _JOINING_SCRIPTS):
        return True
    if text[index] != _ZERO_WIDTH_JOINER or not _is_emoji(text[index + 1 : index + 2]):
        return False
    if before == _EMOJI_SELECTORS[1]:
        before = text[index - 2 : index - 1]
    return _is_emoji(before)


def _is_in_flag(text: str, index: int) -> bool:
    """True if the tag character at `index` belongs to one of the flags."""
    earliest = max(0, index + 1 - len(_FLAGS[0]))
    start = text.rfind(_FLAGS[0][0], earliest, index)
    return start >= 0 and text.startswith(_FLAGS, start)


_ASCII_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")


@cache
def _unseen_pattern() -> re.Pattern[str]:
    """Makes a pattern of all characters that show nothing, or nothing that differs from a blank.

    A line end, a tab and a blank are seen by what they do. The pattern is made when the first text
    comes that is not ASCII."""
    # planes 2 to 13 hold ideographs or nothing
    assigned = map(chr, chain(range(0x20000), range(0xE0000, 0xE1000)))
    hidden = {char for char in assigned if category(char) in _UNSEEN_CATEGORIES}
    hidden -= {" ", "\t", "\n"} | _PREPENDED_MARKS
    ranges = [(ord(char), ord(char)) for char in hidden | _BLANK]
    ranges += [*_DEFAULT_IGNORABLE, *_NONCHARACTERS, _PRIVATE_PLANES]
    pieces = [f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in _joined(ranges)]
    return re.compile(f"[{''.join(pieces)}]")


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yields the same code points in as few ranges as they need."""
    start = 0
    end = -1
    for first, last in sorted(ranges):
        if first <= end + 1:
            end = max(end, last)
            continue
        if end >= start:
            yield start, end
        start = first
        end = last
    yield start, end


def _unseen_in(text: str) -> re.Pattern[str]:
    """Gives a pattern of the characters of this text that are not seen."""
    return _ASCII_CONTROLS if text.isascii() else _unseen_pattern()


def unseen(text: str) -> Iterator[tuple[int, str]]:
    """Yields the characters that people would not see, each with its index in the text.

    Those that ordinary text needs are left out."""
    for match in _unseen_in(text).finditer(text):
        if not _is_ordinary(text, match.start()):
            yield match.start(), match[0]


def escape_of(char: str) -> str:
    """Writes a character as an escape of Python and of double quotes in YAML.

    Examples are `\\x1b`, `\\u200b` and `\\U000e0041`."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(text: str) -> str:
    """Writes an escape such as `\\x1b` for each character that people would not see, or that would
    move, hide or recolour what they see.

    Emoji, and joiners in the scripts that need them, stay as they are."""

    def shown(match: re.Match[str]) -> str:
        if _is_ordinary(match.string, match.start()):
            return match[0]
        return escape_of(match[0])

    return _unseen_in(text).sub(shown, text)


_WRITTEN_ESCAPE = re.compile(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|\\)")


def exposed(text: str) -> str:
    """Does as `plain`, where it matters what exactly a text holds.

    Every character that is not seen is an escape, and a backslash that could be taken for the
    beginning of one is written twice."""
    doubled = _WRITTEN_ESCAPE.sub(r"\\\\", text)
    return _unseen_in(doubled).sub(lambda match: escape_of(match[0]), doubled)


def squeezed(text: str) -> str:
    """Writes `plain` text on one line, with one blank for all white space between two words."""
    return " ".join(plain(text.replace("\r\n", "\n")).split())


def json_shown(text: str) -> str:
    """Writes JSON text with JSON's own escapes for what people would not see: it means the same."""

    def escape(match: re.Match[str]) -> str:
        char = match[0]
        return json.dumps(char)[1:-1] if ord(char) > 0x7F else f"\\u{ord(char):04x}"

    return _unseen_in(text).sub(escape, text)


LINE_END = re.compile(r"\r\n|\r|\n")
"""Line ends of terminals, of Markdown and of event streams."""


def split_lines(text: str, *, ends: bool = False) -> list[str]:
    """Splits a text into its lines, with their `ends` or without.

    They end at `\\n` alone, as those of JSON lines, of git and of editors do: U+2028, U+0085 and
    form feeds stay inside. Nothing follows the last line end."""
    lines: list[str] = re.findall(r"[^\n]*\n|[^\n]+", text)
    return lines if ends else [line.removesuffix("\n") for line in lines]


def on_one_line(text: str, encoding: str | None) -> str:
    """Writes the text on one line, in characters that a stream of this encoding has."""
    line = plain(text).replace("\t", "\\t").replace("\n", "\\n")
    try:
        return line.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
    except LookupError:
        return ascii(line)[1:-1]


def is_unicode(encoding: str | None) -> bool:
    """True if a stream of this encoding has every character."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def cells(text: str) -> int:
    """Counts the columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


_NO_WIDTH = frozenset({"Mn", "Me", "Cf"})


def _width(char: str) -> int:
    """Counts a character's columns: none for one that joins or marks the one before it."""
    if category(char) in _NO_WIDTH:
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def cropped(text: str, width: int, mark: str = "…") -> str:
    """Cuts the text to at most `width` cells; `mark` replaces the missing part."""
    if cells(text) <= width:
        return text
    if width <= 0:
        return ""
    kept = []
    used = len(mark)
    for char in text:
        used += cells(char)
        if used > width:
            break
        kept.append(char)
    return ("".join(kept) + mark)[:width]


def beginning(text: str, most: int) -> str:
    """Gives the first `most` characters of the text, and says how many more there are."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"


MAX_BEGINNING = 80
"""Characters that an error quotes of a text that is not JSON."""


def quoted_beginning(text: str) -> str:
    """Quotes the beginning of a text, for the end of a message; gives "" for a blank text.

    Secrets must be out of the text already: a cut through one would leave a part of it."""
    return f" (it begins with {text[:MAX_BEGINNING]!r})" if text.strip() else ""


def padded(text: str, width: int, right: bool = False) -> str:
    """Fills the text with blanks to `width` cells, after it or, with `right`, before it."""
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def waits_text(waits: Mapping[str, str]) -> str:
    """Says for which providers a run waits, and until what local time.

    `waits` are moments in ISO format by lane (`provider/model`)."""
    ends: dict[str, datetime] = {}
    for lane, until in waits.items():
        provider = lane.partition("/")[0]
        end = datetime.fromisoformat(until).astimezone()
        ends[provider] = max(end, ends.get(provider, end))
    texts = (f"waiting for {plain(name)} until {end:%H:%M:%S}" for name, end in ends.items())
    return ", ".join(texts)


def duration(seconds: float) -> str:
    """Writes seconds as `42s`, `3m 12s`, `2h 05m` or `3d 04h`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if not minutes:
        return f"{second}s"
    if not hours:
        return f"{minute}m {second:02d}s"
    if hours < 48:
        return f"{hours}h {minute:02d}m"
    return f"{hours // 24}d {hours % 24:02d}h"


# Text of files and models in comments of a forge.

_REFERENCE = re.compile(r"[@#!$%&~](?=\w)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
"""What forges link: people, issues, merge requests, snippets, milestones, labels, addresses."""

_SIGN = re.compile(r"[\\`*_{}\[\]~|$]|^\s*(?:[-+=#]|:(?=:)|\d+(?=[.)]))", re.MULTILINE)
_WORD_JOINER = "\u2060"
"""A character without width, which ends a name or an address that a forge would link."""


def unlinked(text: str) -> str:
    """Removes control characters, and all that a forge would take for a mention or a link."""
    return _REFERENCE.sub(lambda match: match[0] + _WORD_JOINER, plain(text))


def escaped(text: str) -> str:
    """Escapes the text of a file or a model as Markdown that shows just that, on its own lines."""

    def escape(match: re.Match[str]) -> str:
        sign = match[0][-1]
        if sign.isdigit():
            return f"{match[0]}{_WORD_JOINER}"
        return f"{match[0][:-1]}\\{sign}"

    return html.escape(_SIGN.sub(escape, unlinked(text)), quote=False)


def row_command(run: int, row_id: str | int) -> str:
    """Writes the command that shows a row. An id that begins like a flag comes after `--`."""
    shown_id = str(row_id)
    last = ["--", shown_id] if shown_id.startswith("-") else [shown_id]
    return shlex.join(["agac", "inspect", str(run), *last])


def merge_command(command: str) -> str:
    """Writes the command that merges shards, from one that runs a shard.

    It keeps the flags that say which run it is."""
    kept = re.sub(r" --(shard|concurrency|budget|max-errors) \S+", "", command)
    return kept.replace("agac run", "agac merge", 1)

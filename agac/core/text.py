"""Text as it is shown to people: its width, an escape for every character that would not be seen; durations; a row's
command."""

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

# Characters that people do not see: what a reviewer cannot see must not reach a model, a terminal or a name unseen.
# The general categories of `unicodedata` tell most of them. It lacks two properties, which are tables here. They were
# compared with the properties of the package regex 2026.11.19 for every code point: there was no difference.

_DEFAULT_IGNORABLE = (
    (0x00AD, 0x00AD), (0x034F, 0x034F), (0x061C, 0x061C), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F),
    (0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x206F), (0x3164, 0x3164), (0xFE00, 0xFE0F), (0xFEFF, 0xFEFF),
    (0xFFA0, 0xFFA0), (0xFFF0, 0xFFF8), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A), (0xE0000, 0xE0FFF),
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


# Ordinary text needs some of these characters. Where it does, one of them is left as it is: an emoji is one picture and
# not several with escapes between them, and words of scripts whose letters join stay words. Only one character after a
# visible one is left, so that no text of any length hides there; and a difference of two texts shows these, too.

_JOINERS = "\u200c\u200d"
_JOINING_SCRIPTS = frozenset({
    "ADLAM", "ARABIC", "BALINESE", "BENGALI", "BHAIKSUKI", "BRAHMI", "CHAKMA", "CHORASMIAN",
    "DEVANAGARI", "DIVES", "DOGRA", "GRANTHA", "GUJARATI", "GUNJALA", "GURMUKHI", "HANIFI",
    "JAVANESE", "KAITHI", "KANNADA", "KHAROSHTHI", "KHMER", "KHOJKI", "MALAYALAM", "MANDAIC",
    "MANICHAEAN", "MASARAM", "MEETEI", "MODI", "MONGOLIAN", "MYANMAR", "NANDINAGARI", "NEWA",
    "NKO", "ORIYA", "PHAGS-PA", "PSALTER", "SAURASHTRA", "SHARADA", "SIDDHAM", "SINHALA",
    "SOGDIAN", "SOYOMBO", "SUNDANESE", "SYLOTI", "SYRIAC", "TAI", "TAKRI", "TAMIL", "TELUGU",
    "TIRHUTA", "ZANABAZAR",
})  # fmt: skip
"""First words of the names of letters that ZERO WIDTH JOINER and ZERO WIDTH NON-JOINER change: of scripts that have
letters of Joining_Type=Dual_Joining, or of Indic_Syllabic_Category=Virama or Invisible_Stacker, by the same package.
Scripts whose name begins with OLD are left out, as that word names other scripts too."""

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
"""Assigned characters of Extended_Pictographic, or such as them, that are no symbols by their category."""


def _is_emoji(char: str) -> bool:
    """Whether it is a symbol that can be drawn as an emoji, or changes one, such as a skin tone."""
    if not char or char in _BLANK:
        return False
    in_emoji_blocks = "\U0001f000" <= char <= "\U0001faff"
    return in_emoji_blocks or char in _OTHER_EMOJI or category(char) == "So"


def _is_letter_of(char: str, scripts: frozenset[str]) -> bool:
    """Whether it is a letter, or a mark on one, of these scripts."""
    return bool(char) and category(char)[0] in "LM" and name(char, "").split(" ")[0] in scripts


def _is_ordinary(text: str, at: int) -> bool:
    """Whether the character at this place of a text is one that ordinary text needs there."""
    char, before, after = text[at], text[at - 1 : at], text[at + 1 : at + 2]
    if char in _EMOJI_SELECTORS:
        return _is_emoji(before) or (after == _KEYCAP and before in "0123456789#*")
    if char == _IDEOGRAPHIC_SPACE:
        return any(
            near and near != char and east_asian_width(near) in "WF" for near in (before, after)
        )
    if char in _MONGOLIAN_SELECTORS:
        return _is_letter_of(before, frozenset({"MONGOLIAN"}))
    if char in _JOINERS and _is_letter_of(before, _JOINING_SCRIPTS):
        return True
    if char == _JOINERS[1] and _is_emoji(after):
        return _is_emoji(text[at - 2 : at - 1] if before == _EMOJI_SELECTORS[1] else before)
    if "\U000e0020" <= char <= _FLAGS[0][-1]:
        start = text.rfind(_FLAGS[0][0], max(0, at + 1 - len(_FLAGS[0])), at)
        return start >= 0 and text.startswith(_FLAGS, start)
    return False


_ASCII_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f]")


@cache
def _unseen_pattern() -> re.Pattern[str]:
    """A pattern of all characters that show nothing by themselves, or nothing that can be told from a blank. A line
    end, a tab and a blank are seen by what they do. It is made when the first text comes that is more than ASCII."""
    assigned = map(
        chr, chain(range(0x20000), range(0xE0000, 0xE1000))
    )  # planes 2 to 13 hold ideographs or nothing
    found = {char for char in assigned if category(char) in _UNSEEN_CATEGORIES}
    found -= {" ", "\t", "\n"} | _PREPENDED_MARKS
    ranges = [(ord(char), ord(char)) for char in found | _BLANK]
    ranges += [*_DEFAULT_IGNORABLE, *_NONCHARACTERS, _PRIVATE_PLANES]
    signs = (f"{re.escape(chr(first))}-{re.escape(chr(last))}" for first, last in _joined(ranges))
    return re.compile(f"[{''.join(signs)}]")


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The same code points in as few ranges as they need."""
    start, end = 0, -1
    for first, last in sorted(ranges):
        if first <= end + 1:
            end = max(end, last)
            continue
        if end >= start:
            yield start, end
        start, end = first, last
    yield start, end


def _unseen_in(text: str) -> re.Pattern[str]:
    """A pattern of the characters that are not seen, for this text."""
    return _ASCII_CONTROLS if text.isascii() else _unseen_pattern()


def unseen(text: str) -> Iterator[tuple[int, str]]:
    """The characters of a text that people would not see, each with its place from 0; none that ordinary text needs."""
    for match in _unseen_in(text).finditer(text):
        if not _is_ordinary(text, match.start()):
            yield match.start(), match[0]


def escape_of(char: str) -> str:
    """`\\x1b`, `\\u200b` or `\\U000e0041`: as Python and double quotes of YAML write the character."""
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(text: str) -> str:
    """`text` with an escape such as `\\x1b` for each character that people would not see, or that would move, hide or
    recolour what they see. Emoji, and joiners in the scripts that need them, stay as they are."""

    def shown(match: re.Match[str]) -> str:
        return match[0] if _is_ordinary(match.string, match.start()) else escape_of(match[0])

    return _unseen_in(text).sub(shown, text)


_WRITTEN_ESCAPE = re.compile(r"\\(?=x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|\\)")


def exposed(text: str) -> str:
    """The same where it matters what exactly a text holds: every such character is an escape, and a backslash that
    could be taken for the beginning of one is written twice."""
    doubled = _WRITTEN_ESCAPE.sub(r"\\\\", text)
    return _unseen_in(doubled).sub(lambda match: escape_of(match[0]), doubled)


def squeezed(text: str) -> str:
    """`plain` text on one line, with one blank for all white space between two words."""
    return " ".join(plain(text.replace("\r\n", "\n")).split())


def json_shown(text: str) -> str:
    """The text of JSON, with JSON's own escapes for the characters that people would not see: it means the same."""

    def escape(match: re.Match[str]) -> str:
        return json.dumps(match[0])[1:-1] if ord(match[0]) > 0x7F else f"\\u{ord(match[0]):04x}"

    return _unseen_in(text).sub(escape, text)


LINE_END = re.compile(r"\r\n|\r|\n")
"""What ends a line of terminals, of Markdown and of event streams."""


def split_lines(text: str, *, ends: bool = False) -> list[str]:
    """The lines of a text, with their `ends` or without. They end at `\\n` alone, as those of JSON lines, of git and of
    editors do: U+2028, U+0085 and form feeds stay inside. Nothing follows the last line end."""
    lines: list[str] = re.findall(r"[^\n]*\n|[^\n]+", text)
    return lines if ends else [line.removesuffix("\n") for line in lines]


def on_one_line(text: str, encoding: str | None) -> str:
    """The text on one line, in characters that a stream of this encoding has."""
    line = plain(text).replace("\t", "\\t").replace("\n", "\\n")
    try:
        return line.encode(encoding or "ascii", "backslashreplace").decode(encoding or "ascii")
    except LookupError:
        return ascii(line)[1:-1]


def is_unicode(encoding: str | None) -> bool:
    """Whether a stream of this encoding has every character."""
    return (encoding or "").lower().replace("-", "").startswith("utf")


def cells(text: str) -> int:
    """How many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


_NO_WIDTH = frozenset({"Mn", "Me", "Cf"})


def _width(char: str) -> int:
    """Columns of a terminal that a character takes: none for one that joins or marks the one before it."""
    if category(char) in _NO_WIDTH:
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def cropped(text: str, width: int, mark: str = "…") -> str:
    """The text in at most `width` cells; `mark` stands for the missing part."""
    if cells(text) <= width:
        return text
    kept, used = [], len(mark)
    for char in text:
        used += cells(char)
        if used > width:
            break
        kept.append(char)
    return ("".join(kept) + mark)[:width] if width > 0 else ""


def beginning(text: str, most: int) -> str:
    """So many characters of the text, and how many more there are."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


MAX_BEGINNING = 80
"""Characters that an error quotes of what is not JSON."""


def quoted_beginning(text: str) -> str:
    """How a text begins, as the end of a message; an empty text where there is nothing in it. The text has lost its
    secrets: cut before, one would stay in part."""
    return f" (it begins with {text[:MAX_BEGINNING]!r})" if text.strip() else ""


def padded(text: str, width: int, right: bool = False) -> str:
    """The text filled with blanks to `width` cells, after it or, with `right`, before it."""
    blanks = " " * (width - cells(text))
    return blanks + text if right else text + blanks


def waits_text(waits: Mapping[str, str]) -> str:
    """For which providers a run waits, and until when here; `waits` are moments by lane."""
    ends: dict[str, datetime] = {}
    for lane, until in waits.items():
        provider, end = lane.partition("/")[0], datetime.fromisoformat(until).astimezone()
        ends[provider] = max(end, ends.get(provider, end))
    return ", ".join(
        f"waiting for {plain(provider)} until {end:%H:%M:%S}" for provider, end in ends.items()
    )


def duration(seconds: float) -> str:
    """`42s`, `3m 12s`, `2h 05m`, `3d 04h`."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    if not minutes:
        return f"{second}s"
    if not hours:
        return f"{minute}m {second:02d}s"
    return f"{hours}h {minute:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24:02d}h"


# Text of files and models in comments of a forge.

_REFERENCE = re.compile(r"[@#!$%&~](?=\w)|:(?=//)|\bwww(?=\.)", re.IGNORECASE)
"""What forges link: people, issues, merge requests, snippets, milestones, labels; addresses."""

_SIGN = re.compile(r"[\\`*_{}\[\]~|$]|^\s*(?:[-+=#]|:(?=:)|\d+(?=[.)]))", re.MULTILINE)
_JOINER = "\u2060"
"""Takes no room on the screen, and ends what a forge would link."""


def unlinked(text: str) -> str:
    """The text without control characters, in which a forge finds nobody to mention and nothing to link."""
    return _REFERENCE.sub(lambda match: match[0] + _JOINER, plain(text))


def escaped(text: str) -> str:
    """Text of a file or a model as Markdown that shows just that, on the lines that it has."""

    def escape(match: re.Match[str]) -> str:
        before, sign = match[0][:-1], match[0][-1]
        return f"{match[0]}{_JOINER}" if sign.isdigit() else f"{before}\\{sign}"

    return html.escape(_SIGN.sub(escape, unlinked(text)), quote=False)


def row_command(run: int, row_id: str | int) -> str:
    """The command that shows a row. An id that begins like a flag comes after `--`."""
    words = ["--", str(row_id)] if str(row_id).startswith("-") else [str(row_id)]
    return shlex.join(["agac", "inspect", str(run), *words])


def merge_command(command: str) -> str:
    """The command that merges shards, with the flags of one that runs a shard which say what run it is."""
    return re.sub(r" --(shard|concurrency|budget|max-errors) \S+", "", command).replace(
        "agac run", "agac merge", 1
    )

"""Thinking that a server leaves in the text of an answer, told apart from the answer.

Servers that are told how a model marks its thinking send it apart. Others leave it in the text,
with its marks, or with the last one alone where the prompt already ends with the first."""

from __future__ import annotations

import json
import re

MARKS: tuple[tuple[str, str, str], ...] = (
    (
        "<think>",
        "</think>",
        "DeepSeek-R1, Qwen3, GLM-4.5, MiniMax-M2: vllm-project/vllm, reasoning_outputs.md",
    ),
    ("<seed:think>", "</seed:think>", "Seed-OSS: vllm-project/vllm, seedoss_reasoning_parser.py"),
    ("[THINK]", "[/THINK]", "Magistral: vllm-project/vllm, mistral_reasoning_parser.py"),
    ("◁think▷", "◁/think▷", "Kimi-VL: huggingface.co/moonshotai/Kimi-VL-A3B-Thinking"),
    ("<thought>", "</thought>", "Gemini: ai.google.dev/gemini-api/docs/openai, include_thoughts"),
    (
        "<thinking>",
        "</thinking>",
        "Amazon Nova: docs.aws.amazon.com/nova/latest/userguide/tool-choice.html",
    ),
    (
        "<|START_THINKING|>",
        "<|END_THINKING|>",
        "Command A Reasoning: docs.cohere.com/docs/reasoning",
    ),
)
"""How thinking begins and ends, with the models that write so and the source."""

_BEGINS = tuple(begin for begin, _, _ in MARKS)
_QUOTES = "`'\"“”‘’«»"
_UNSEEN = "\ufeff\u200b"
_SPACE = re.compile(rf"[\s{_UNSEEN}]*+")
_PARAGRAPH_ENDS = re.compile(r"[ \t]*+\r?\n[ \t]*+\r?\n")
_FENCED = re.compile(r"\A```(?:json|JSON)?[ \t]*\r?\n(.*?)\r?\n?```\Z", re.DOTALL)


MAX_LOOKED_AT = 100
"""Marks of a text that are looked at: a text may hold millions of them, and each look takes some
time."""


def without_thinking(text: str, *, cut: bool = False) -> str:
    """Returns the answer in a text: what stands after its thinking, or the text as it is where it
    holds none.

    `cut`: the text has no proper end, so that thinking without an end is all of it. A mark within
    the text of an answer is left alone: in quotes, in a block of code, in JSON, or as a word of a
    sentence."""
    if not any(end in text for _, end, _ in MARKS):
        if cut and text.startswith(_BEGINS, _next_word(text, 0)):
            return ""
        return text
    for begin, end, _ in MARKS:
        if end in text:
            text = _without(text, begin, end, cut=cut)
    return text


class LeadingThinking:
    """Takes a streamed answer in pieces, and gives back those after the thinking that the answer
    begins with."""

    def __init__(self) -> None:
        self._held = ""
        self._end = ""
        self._is_over = False

    def answer_in(self, piece: str) -> str:
        """Returns what of the answer this piece brings: nothing within thinking, or while it may
        become a mark."""
        if self._is_over:
            return piece
        self._held += piece
        if not self._end:
            return self._begin()
        at = self._held.find(self._end)
        if at < 0:  # only a part of the mark may have come
            self._held = self._held[-len(self._end) :]
            return ""
        return self._over(self._held[at + len(self._end) :].lstrip())

    def left(self) -> str:
        """Returns what was held back as it might have become a mark: the stream has ended."""
        return self._over("" if self._end else self._held)

    def _begin(self) -> str:
        bare = self._held[_next_word(self._held, 0) :]
        for begin, end, _ in MARKS:
            if bare.startswith(begin):
                self._held = ""
                self._end = end
                return self.answer_in(bare[len(begin) :])
        might_be = bare and any(begin.startswith(bare) for begin in _BEGINS)
        return "" if might_be else self._over(self._held)

    def _over(self, rest: str) -> str:
        held = "" if self._is_over else rest
        self._held = ""
        self._is_over = True
        return held


def _without(text: str, begin: str, end: str, *, cut: bool) -> str:
    start = _after_thinking(text, begin, end)
    if start < 0 and cut:
        return ""
    if start != 0:
        return text[max(start, 0) :]
    # the text speaks of both marks, or holds one as data
    if begin in text[: text.find(end)] or _is_json(text):
        return text
    rest = text[text.rfind(end) + len(end) :].lstrip()
    if _is_json(rest):
        return rest
    at = _lone_end(text, end)
    return text if at < 0 else text[at + len(end) :].lstrip()


def _after_thinking(text: str, begin: str, end: str) -> int:
    """Returns where the text goes on after the thinking that it begins with: 0 where it begins
    with none, -1 where the thinking has no end."""
    start = 0
    for _ in range(MAX_LOOKED_AT):
        at = _next_word(text, start)
        if not text.startswith(begin, at):
            break
        close = _first_end(text, at + len(begin), end)
        if close < 0:
            return start or -1
        start = _next_word(text, close + len(end))
    return start


def _next_word(text: str, start: int) -> int:
    """Returns the place of the first character from `start` on that is no white space."""
    found = _SPACE.match(text, start)
    return found.end() if found else start


def _first_end(text: str, start: int, end: str) -> int:
    """Returns where thinking ends that begins before `start`: at the first mark that is not
    quoted, else the first."""
    first = at = text.find(end, start)
    for _ in range(MAX_LOOKED_AT):
        if at < 0 or not _is_quoted(text, at, end):
            break
        at = text.find(end, at + len(end))
    return at if at >= 0 else first


def _lone_end(text: str, end: str) -> int:
    """Returns where thinking ends whose beginning is not in the text; -1 where each mark is only
    spoken of."""
    if text.startswith(("{", "["), _next_word(text, 0)):
        return -1
    at = text.find(end)
    for _ in range(MAX_LOOKED_AT):
        if at < 0 or not _is_mention(text, at, end):
            return at
        at = text.find(end, at + len(end))
    return -1


def _is_mention(text: str, at: int, end: str) -> bool:
    """True if an answer speaks of the mark: in quotes or code, or with a blank before it in a line
    that it is part of. Thinking ends at the end of a line, or a paragraph."""
    if _is_quoted(text, at, end) or text.count("```", 0, at) % 2:
        return True
    if text[at - 1 : at] not in (" ", "\t", "(", "[", "{"):
        return False
    return not _PARAGRAPH_ENDS.match(text, at + len(end))


def _is_quoted(text: str, at: int, end: str) -> bool:
    before = text[at - 1 : at] if at else ""
    after = text[at + len(end) : at + len(end) + 1]
    return bool(before and after) and before in _QUOTES and after in _QUOTES


def _is_json(text: str) -> bool:
    """True if the text is a JSON object or array, alone or as one fenced block."""
    bare = text.strip()
    fenced = _FENCED.match(bare)
    if fenced:
        bare = fenced.group(1).strip()
    if not bare.startswith(("{", "[")):
        return False
    try:
        json.loads(bare)
    except (ValueError, RecursionError):
        return False
    return True

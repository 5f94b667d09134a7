"""The pieces of a CEL expression, with their places: names, numbers, texts, signs, and what is none of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

RESERVED = frozenset({
    "as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop",
    "namespace", "null", "package", "return", "true", "var", "void", "while",
})  # fmt: skip
"""Words that no name may be."""

_EXPONENT = r"(?:[eE][+-]?[0-9]+)"
_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r\n\f]|//[^\n]*)+)"
    r"|(?P<text>[bB]?(?:"
    r'[rR](?:"""[\s\S]*?"""|' + r"'''[\s\S]*?'''" + r'|"[^"\r\n]*"|' + r"'[^'\r\n]*')"
    r'|"""(?:\\[\s\S]|[^\\])*?"""|' + r"'''(?:\\[\s\S]|[^\\])*?'''"
    r'|"(?:\\.|[^"\\\r\n])*"|' + r"'(?:\\.|[^'\\\r\n])*'))"
    rf"|(?P<number>0[xX][0-9a-fA-F]+[uU]?|[0-9]*\.[0-9]+{_EXPONENT}?|[0-9]+{_EXPONENT}|[0-9]+[uU]?)"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])"
    r"|(?P<bad>[\s\S])"
)


@dataclass(frozen=True, slots=True)
class Token:
    """One piece of the text: `kind` is text, number, name, sign, bad or end; `start` counts characters from 0."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def tokens(text: str) -> Iterator[Token]:
    """The pieces of any text, without spaces and comments, closed by one of kind `end`."""
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield Token(str(match.lastgroup), match[0], match.start())
    yield Token("end", "", len(text))

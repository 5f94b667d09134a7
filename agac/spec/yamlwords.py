"""Plain sentences for what PyYAML's scanner and parser say, whichever of its two implementations is speaking."""

from __future__ import annotations

from yaml import MarkedYAMLError

_UNQUOTED = "; put quotes around text that has [ ] { } or , in it"
_BY_PROBLEM = {
    "mapping values are not allowed": "a ':' is not allowed here; put quotes around text that contains ': ', "
    "or indent this line as much as the one above",
    "could not find expected ':'": "expected a ':' after the key; check the quotes and the indentation of this line",
    "expected ':'": "expected a ':' after the key; check the quotes and the indentation of this line",
    "sequence entries are not allowed": "a '-' is not allowed here; start the list on a line of its own",
    "block mapping keys are not allowed": "a key is not allowed here; start the mapping on a line of its own",
    "did not find expected key": "expected a key here; check the indentation and the quotes of the lines above",
    "<document start>": "something is left over after the end of the document; check the brackets and quotes before it",
    "but found '<block mapping start>'": "expected a key here; check the indentation of this line",
    "expected <block end>": "expected a key here; check the indentation and the quotes of the lines above",
    "did not find expected '-' indicator": "expected a '-' here: all items of a list start in the same column",
    "did not find expected ',' or '}'": "expected ',' or '}' here" + _UNQUOTED,
    "expected ',' or '}'": "expected ',' or '}' here" + _UNQUOTED,
    "did not find expected ',' or ']'": "expected ',' or ']' here" + _UNQUOTED,
    "expected ',' or ']'": "expected ',' or ']' here" + _UNQUOTED,
    "node content": "expected a value here; check the brackets and the '-' signs",
    "unexpected end of stream": "the file ends inside a quoted text",
    "unknown escape character": "unknown escape in double quotes; write \\\\ for a backslash, or use single quotes",
    "undefined tag handle": "tags are not supported; remove the '!…' and quote the value if needed",
    "duplicate anchor": "this anchor exists already; give it another name",
    "found duplicate": "this directive stands twice; keep one of them",
    "expected comment or line break": "only |, >, |-, >- and the like may stand here; start the text on the next line",
    "chomping or indentation": "only |, >, |-, >- and the like may stand here; start the text on the next line",
    "incompatible YAML document": "only YAML 1.1 and 1.2 are read; remove the %YAML line",
}
_OPENERS = {"flow mapping": "'{'", "flow sequence": "'['", "quoted scalar": "quote"}


def syntax_sentence(error: MarkedYAMLError, text: str, first_line: int) -> str:
    """What is wrong and what to do, for one syntax error in `text`, which starts at `first_line` of its file."""
    problem = error.problem or "not valid YAML"
    mark = error.problem_mark
    if mark is not None and (sentence := _bad_start(problem, _line(text, mark.line), mark.column)):
        return sentence
    sentence = next((words for said, words in _BY_PROBLEM.items() if said in problem), f"not valid YAML: {problem}")
    context = error.context or ""
    opener = next((name for said, name in _OPENERS.items() if said in context), None)
    if opener is None or error.context_mark is None:
        return sentence
    return f"{sentence}; the {opener} was opened on line {error.context_mark.line + first_line}"


def _bad_start(problem: str, line: str, column: int) -> str | None:
    """A sentence when the parser stumbled over a tab or over a character that cannot start a plain text."""
    indent = line[: len(line) - len(line.lstrip())]
    if "\t" in indent or "tab character" in problem or line[column : column + 1] == "\t":
        return "a tab cannot indent in YAML; use spaces"
    if "cannot start any token" in problem:
        found = line[column : column + 1]
        return f"a value cannot start with {found!r}; put quotes around it"
    return None


def _line(text: str, number: int) -> str:
    lines = text.split("\n")
    return lines[number] if number < len(lines) else ""

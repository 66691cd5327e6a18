"""Texts that are no specs: where the mistake is, and what was likely meant (E0006 to E0018)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from lark import Token, UnexpectedCharacters, UnexpectedInput
from lark.exceptions import UnexpectedEOF

from archc.diagnostics import Refused, Report, did_you_mean
from archc.source import Source, Span
from archc.syntax import habits

KEYWORDS = (
    *("layer", "block", "model", "function", "import", "input", "param", "output", "return"),
    *("recurrence", "attend", "index", "blocks", "route", "repeat", "over", "grouped"),
    *("require", "chunk"),
)

MASKED = re.compile(r'"""(?s:.)*?"""|"[^"\n]*"|#[^\n]*')
OPENED = re.compile(r'"""(?s:.)*?(?:"""|\Z)|"[^"\n]*"|#[^\n]*')
SPACES = re.compile("[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
STRANGE = re.compile(
    r"[^\n\r\x20-\x7e\u00a0-\uffff]|[\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
)
NUMBER = re.compile(r"(?<![\w.])[\d.]+(?:[eE][-+]?\d+)? *$")
LAST = re.compile(r"([A-Za-z_]\w*'*) +$")
OPERATORS = ("+", "-", "*", "/", "@", "(", ".", "**", "//", "%", "<", ">")

SHOWN = {"_NL": "end of the line", "_INDENT": "indented line", "_DEDENT": "end of the block"}
"""Terminals that are no text, as a reader of specs knows them."""

NAMED = {
    "_NL": "the end of the line", "_INDENT": "an indented block", "_DEDENT": "the end of the block",
    "NAME": "a name", "NUMBER": "a number", "STRING": "a quoted text", "DOC": "a docstring",
}  # fmt: skip

DECLARING = ("function", "layer", "block", "model")
"""What declares something of a file's own."""

DOCUMENTED = {
    "STRING": 'a docstring has three quotes: `"""..."""`',
    "DOC": "a docstring is the first line of its layer",
}
"""The rule of docstrings that a line breaks which is a text alone, by its token."""


def masked(text: str) -> str:
    """A text whose quotes, docstrings and comments are blank, in as many lines."""
    return MASKED.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


# --- characters -----------------------------------------------------------------------------------


def strange_character(source: Source, report: Report) -> None:
    """Report the first character that no spec may have: in its code, or anywhere."""
    text = source.text
    found = [match for match in (STRANGE.search(text), SPACES.search(masked(text))) if match]
    if not found:
        return
    match = min(found, key=lambda match: match.start())
    char, at = match[0], Span(source, match.start(), match.end())
    more = len(STRANGE.findall(text)) + len(SPACES.findall(masked(text))) - 1
    notes = [f"{more} more of such characters follow"] if more > 1 else []
    if char == "\t":
        helps = ["indent with spaces, 4 for each level"]
    elif SPACES.fullmatch(char):
        helps = ["write an ordinary space: copied text often has others"]
    else:
        helps = ["leave it out, in comments too"]
    message = f"{_named(char)} is not allowed in a spec"
    report.error("E0006", message, at, notes=notes, helps=helps)


def _named(char: str) -> str:
    """A character by its code and name."""
    if char == "\t":
        return "a tab"
    if char == "\u00a0":
        return "a non-breaking space (U+00A0)"
    name = unicodedata.name(char, "").lower()
    return f"the character U+{ord(char):04X}" + (f" ({name})" if name else "")


# --- what is never closed -------------------------------------------------------------------------


def open_docstring(source: Source, report: Report) -> None:
    """Report a docstring that is never closed: it would hide whatever follows."""
    text = source.text
    quotes = [match for match in OPENED.finditer(text) if match[0].startswith('"""')]
    if not quotes or (quotes[-1][0].endswith('"""') and len(quotes[-1][0]) >= 6):
        return
    swallowed = (
        match.start()
        for match in quotes
        if re.search(r"^(?:layer|block|model|function|import)\b", match[0], re.MULTILINE)
    )
    start = next(swallowed, quotes[-1].start())
    helps = ['end it with `"""`']
    report.error(
        "E0018", '`"""` is never closed', Span(source, start, start + 3), "opened here", helps=helps
    )


def _unclosed(text: str) -> int | None:
    """The place of a bracket that the declaration never closes; `(s, t]` closes as it is."""
    opened: list[int] = []
    for match in re.finditer(r"[\[(]|[\])]", masked(text)):
        if match[0] in "[(":
            opened.append(match.start())
        elif opened:
            opened.pop()
    return opened[-1] if opened else None


# --- indentation ----------------------------------------------------------------------------------


def _lines(text: str) -> Iterator[tuple[int, int, int]]:
    """Start, indentation and end of each line that begins a statement."""
    code, depth, start = masked(text), 0, 0
    for line in code.split("\n"):
        stripped = line.rstrip()
        if stripped and depth == 0:
            yield start, len(line) - len(line.lstrip()), start + len(stripped)
        depth = max(0, depth + len(re.findall(r"[\[(]", line)) - len(re.findall(r"[\])]", line)))
        start += len(line) + 1


def bad_dedent(source: Source, start: int, text: str, report: Report) -> Refused:
    """E0013 for a line that goes back to a column where no block starts."""
    blocks: list[tuple[int, int, int]] = []
    for line in _lines(text):
        first, indent, end = line
        left = None
        while blocks and blocks[-1][1] > indent:
            left = blocks.pop()
        if left is not None and (not blocks or blocks[-1][1] != indent):
            around = [left, *blocks[1:][-1:]]
            return report.error(
                "E0013",
                f"this line starts in column {indent + 1}, where no block starts",
                Span(source, start + first + indent, start + end),
                "indented less than its block",
                others=[
                    (
                        Span(source, start + block[0] + block[1], start + block[2]),
                        f"a block starts in column {block[1] + 1}",
                    )
                    for block in around
                ],
            )
        if not blocks or blocks[-1][1] < indent:
            blocks.append(line)
    raise AssertionError("every line fits its block")


def _bad_indent(source: Source, start: int, text: str, token: Token, report: Report) -> Refused:
    """E0013 for a line that is indented more than its block, though nothing opens one."""
    after = (token.start_pos or 0) + len(str(token).rstrip(" "))
    lines = list(_lines(text))
    place = next((n for n, line in enumerate(lines) if line[0] >= after - 1), len(lines) - 1)
    (first, indent, end), before = lines[place], lines[max(0, place - 1)]
    return report.error(
        "E0013",
        "this line is indented more than its block, and nothing opens a new one",
        Span(source, start + first + indent, start + end),
        others=[
            (
                Span(source, start + before[0] + before[1], start + before[2]),
                f"the block is in column {before[1] + 1}",
            )
        ],
        helps=["to go on with an expression in the next line, put it into brackets"],
    )


# --- anything else --------------------------------------------------------------------------------


def syntax_error(
    source: Source,
    start: int,
    text: str,
    error: UnexpectedInput,
    terminals: Mapping[str, str],
    report: Report,
) -> Refused:
    """The mistake at a token, and what the grammar expected there, in the words of the language.

    `text` is the declaration that starts at `start`; `terminals` are the words of the grammar.
    """
    token: Token | None = getattr(error, "token", None)
    ended = isinstance(error, UnexpectedEOF) or (token is not None and token.type == "$END")
    if isinstance(error, UnexpectedCharacters):
        place = start + (error.pos_in_stream or 0)
        at = Span(source, place, place + 1)
    else:
        begin, end = (token.start_pos, token.end_pos) if token else (0, 0)
        at = Span(source, start + (begin or 0), start + (end or 0))
    opened = _unclosed(text)
    advice = None if ended else habits.in_text(source, at.start)
    if opened is not None and (advice is None or start + opened < advice.span.start):
        at = Span(source, start + opened, start + opened + 1)
        return report.error("E0018", f"`{at.text}` is never closed", at, "opened here")
    if advice is not None:
        return _habit(advice, report)
    if isinstance(error, UnexpectedCharacters):
        return _character(source, at, report)
    if ended or token is None or token.type == "_DEDENT":
        return _ends_early(source, start, text, report)
    if token.type == "_INDENT":
        return _bad_indent(source, start, text, token, report)
    return _unexpected(source, token, at, error, terminals, report)


def _habit(advice: habits.Advice, report: Report) -> Refused:
    """E0012 for what another language writes."""
    found = advice.span.text
    if len(found) > 40:
        found = found[:39].rstrip() + "…"
    return report.error("E0012", f"unexpected `{found}`", advice.span, helps=[advice.help])


def _character(source: Source, at: Span, report: Report) -> Refused:
    """A character that begins no word of the language."""
    char = at.text
    if char == '"':
        return report.error("E0018", '`"` is never closed', at, "opened here")
    helps = []
    if unicodedata.category(char)[0] in "LM":
        helps = ["names have ASCII letters, digits, `_` and Greek letters"]
    shown = char if unicodedata.category(char)[0] != "M" else f"U+{ord(char):04X}"
    return report.error("E0012", f"unexpected character `{shown}`", at, helps=helps)


def _ends_early(source: Source, start: int, text: str, report: Report) -> Refused:
    """E0014: the text ends where more has to come."""
    last = start + len(text.rstrip())
    return report.error(
        "E0014",
        "the declaration ends too early",
        Span(source, max(start, last - 1), max(start + 1, last)),
        "more is expected after this",
        helps=["a layer has a docstring or statements, indented, and at least one `output`"],
    )


def _unexpected(
    source: Source, token: Token, at: Span, error: UnexpectedInput,
    terminals: Mapping[str, str], report: Report,
) -> Refused:  # fmt: skip
    """An unexpected word: a misspelt keyword, a missing operator, a bracket too many, ..."""
    expected = sorted(_words(error, terminals))
    first = re.match(r"\s*([A-Za-z_]\w*)", source.line(at.line))
    if first is not None and first[1] not in KEYWORDS:
        near = did_you_mean(first[1], KEYWORDS)
        begin = source.starts[at.line - 1] + first.start(1)
        if near and begin != at.start:
            word = Span(source, begin, begin + len(first[1]))
            return report.error("E0012", f"unexpected `{first[1]}`", word, helps=near)
    names = _two_names(error)
    if names is not None and expected == ["`in`", "`∈`"]:
        at = Span(source, at.start + names[0] - (token.start_pos or 0), 0)
        return _no_operator(source, at, names[1], report)
    if token.type in SHOWN:
        edge = min(at.start, len(source.text) - 1)
        at = Span(source, edge, edge + 1)
    elif token.type == "NAME" and (number := NUMBER.search(source.text[: at.start])):
        return _no_operator(source, at, number[0].strip(), report)
    shown = f"`{str(token).splitlines()[0]}`" if str(token).strip() else "space"
    found = SHOWN.get(token.type, shown)
    notes = [f"expected {', '.join(expected)}"] if 0 < len(expected) <= 6 else []
    helps = _helps(source, token, at, expected)
    return report.error("E0012", f"unexpected {found}", at, notes=notes, helps=helps)


def _helps(source: Source, token: Token, at: Span, expected: Sequence[str]) -> list[str]:
    """What to write in place of an unexpected word, by what was expected there."""
    before = source.line(at.line)[: at.column - 1]
    if {"`=`", "`,`"} <= set(expected) and str(token) in OPERATORS:
        return ["a line gives a value its name: `z = ...`"]
    if token.type == "_NL" and "`:`" in expected:
        return ["end the line that opens a block with `:`"]
    if source.line(at.line).strip() == str(token) and token.type in DOCUMENTED:
        return [DOCUMENTED[token.type]]
    if token.type == "NAME" and "`,`" in expected and (left := LAST.search(before)):
        if left[1] in DECLARING:
            return [f"a `{left[1]}` stands by itself, not within another: before it, unindented"]
        return [f"write a comma between them: `{left[1]}, {token}`"]
    if str(token) in (")", "]") and _unopened(source.line(at.line)):
        return ["no bracket is open here"]
    return []


def _two_names(error: UnexpectedInput) -> tuple[int, str] | None:
    """Two names that the parser has just read, side by side: where the second is, and the first."""
    parser = getattr(error, "interactive_parser", None)
    values = parser.parser_state.value_stack[-2:] if parser is not None else []
    if [getattr(value, "type", "") for value in values] != ["NAME", "NAME"]:
        return None
    return values[1].start_pos, str(values[0])


def _no_operator(source: Source, at: Span, left: str, report: Report) -> Refused:
    """E0012 for two values side by side, as papers write products."""
    word = re.compile(r"\w+'*").match(source.text, at.start)
    assert word is not None, "a name stands there"
    at, right = Span(source, at.start, word.end()), word[0]
    line = source.line(at.line)[: at.column - 1]
    if line.count("[") > line.count("]"):
        helps = [f"write a comma between dims: `{left}, {right}`"]
    elif left[0].isdigit():
        helps = [f"write `{left} * {right}`"]
    elif left in habits.same():
        helps = [f"write `{left}({right})`"]
    elif line.split()[:1] == ["blocks"] and left == "size":
        helps = [f"how many tokens a block has follows `of`: `blocks b of {right} every {right}:`"]
    else:
        helps = [
            f"write the operator: `{left} * {right}` for each element, `{left} @ {right}` for "
            "matrices"
        ]
    return report.error("E0012", f"unexpected `{right}` after `{left}`", at, helps=helps)


def _unopened(line: str) -> bool:
    """Whether a line closes more brackets than it opens."""
    code = masked(line)
    return len(re.findall(r"[\])]", code)) > len(re.findall(r"[\[(]", code))


def _words(error: UnexpectedInput, terminals: Mapping[str, str]) -> Iterator[str]:
    """The words that may stand there, as a reader of specs knows them."""
    found: Sequence[str] = getattr(error, "accepts", None) or getattr(error, "expected", ()) or ()
    for name in found:
        if name in NAMED:
            yield NAMED[name]
        elif name in terminals:
            yield f"`{terminals[name]}`"

"""Source -> source: a spec in the standard spacing, with every token and comment kept.

The formatter works on the tokens of the text, not on the tree, so nothing can be lost. Line breaks
are the author's; what is set is the space between tokens, indentation (4 spaces a block), blank
lines (at most one, two between declarations), and columns: `=` signs and comments that stand below
one another stay so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from archc.source import Source
from archc.syntax.names import GREEK, WORDS, canonical, operator
from archc.syntax.parse import parse

TOKEN = re.compile(
    r"""(?P<doc>\"{3}(?s:.)*?\"{3})|(?P<text>"[^"\n]*")|(?P<comment>\#[^\n]*)|(?P<newline>\n)
    |(?P<number>(?:\d+\.\d*|\.\d+|\d+)(?:[eE][+-]?\d+)?)|(?P<transpose>\.T\b|ᵀ)
    |(?P<name>[A-Za-z_\u0370-\u03FF∑∏√∞][A-Za-z0-9_\u0370-\u03FF]*['′]*)
    |(?P<symbol>\*\*|//|<=|>=|==|!=|\S)""",
    re.VERBOSE,
)

DECLARING = {"layer", "block", "model", "function", "import"}
PLAIN = {"param", "input", "chunk", "recurrence", "attend", "index", "blocks", "route", "repeat"}
"""Words that open a statement which is not an assignment."""

BEFORE_OPERAND = {"if", "else", "in", "and", "or", "not", "return", "∈"}
BETWEEN = {"by", "weight", "of", "every", "as", "on", "over", "grouped", "along", "always"}
BETWEEN |= {"first", "last", "from", "ending", "blocks"}
"""Words that are keywords only where an operand ends, and names elsewhere."""

BINARY = set("+-*/@%=<>≤≥≠∈−⊙") | {"**", "//", "<=", ">=", "==", "!="}
MINUS = {"-", "−"}
UNICODE_OPERATORS = {"<=": "≤", ">=": "≥", "!=": "≠", "in": "∈"}
INFIX = BINARY | BETWEEN | BEFORE_OPERAND


@dataclass(frozen=True)
class Token:
    """A lexeme, its kind (a group of TOKEN) and its 0-based column."""

    text: str
    kind: str
    column: int

    @property
    def ends_operand(self) -> bool:
        """Whether an operand may end here, so that a `-` after it is a difference."""
        if self.kind == "name":
            return self.text not in BEFORE_OPERAND
        return self.kind in ("number", "text", "transpose", "doc") or self.text in (")", "]")


@dataclass
class Row:
    """A line of the source: its tokens, its comment, and how it lies in the text."""

    tokens: list[Token] = field(default_factory=list)
    comment: Token | None = None
    blanks: int = 0
    continued: bool = False
    depth: int = 0


def format_source(source: Source, unicode: bool = False) -> str:
    """The text in standard form; `unicode` prints the papers' symbols instead of ASCII names.

    Raises ArchError if the spec has syntax errors: only what is understood is rewritten.
    """
    parse(source)
    rows = _rows(source.text)
    _indent(rows)
    spelled = [_spell(row, unicode) for row in rows]
    _align_equals(rows, spelled)
    codes = _joined(rows, spelled)
    columns = _comment_columns(rows, codes)
    lines: list[str] = []
    for number, (row, code, column) in enumerate(zip(rows, codes, columns, strict=True)):
        lines += [""] * _blank_lines(rows, number)
        comment = " " * (column - _width(code)) + row.comment.text if row.comment else ""
        lines.append(code + comment)
    return "\n".join(lines) + "\n"


# --- rows --------------------------------------------------------------------------------------


def _rows(text: str) -> list[Row]:
    """The lines that hold something; a docstring is one token of one row."""
    rows: list[Row] = []
    row, depth, blanks = Row(), 0, 0
    text = text.replace("\r\n", "\n") + "\n"
    for match in TOKEN.finditer(text):
        kind, lexeme = str(match.lastgroup), match[0]
        token = Token(lexeme, kind, match.start() - text.rfind("\n", 0, match.start()) - 1)
        if kind == "newline":
            if row.tokens or row.comment:
                row.blanks, blanks = blanks, 0
                rows.append(row)
            elif depth == 0:
                blanks += 1
            row = Row(continued=depth > 0)
        elif kind == "comment":
            row.comment = Token(lexeme.rstrip(), kind, token.column)
        else:
            row.tokens.append(token)
            depth = max(0, depth + _nesting(lexeme))
    return rows


def _nesting(lexeme: str) -> int:
    """1 for an opening bracket, -1 for a closing one; a range `(s, t]` mixes the two kinds."""
    return (lexeme in ("(", "[")) - (lexeme in (")", "]"))


def _indent(rows: Sequence[Row]) -> None:
    """Set the depth of every row from the columns that the author used."""
    columns = [0]
    for row in rows:
        if row.tokens and not row.continued:
            column = row.tokens[0].column
            while column < columns[-1]:
                columns.pop()
            if column > columns[-1]:
                columns.append(column)
            row.depth = len(columns) - 1
        elif row.continued:
            row.depth = len(columns) - 1
    _indent_comments(rows)


def _indent_comments(rows: Sequence[Row]) -> None:
    """A comment on its own line goes with what follows, or by its column with what precedes."""
    before, column = 0, 0
    following: list[int] = [0] * len(rows)
    depth = 0
    for number in range(len(rows) - 1, -1, -1):
        following[number] = depth
        if rows[number].tokens:
            depth = rows[number].depth
    for number, row in enumerate(rows):
        if row.tokens:
            before = row.depth
            column = row.tokens[0].column if not row.continued else column
        elif row.comment and not row.continued:
            stays = before > following[number] and row.comment.column >= column
            row.depth = before if stays else following[number]


# --- spacing -----------------------------------------------------------------------------------


def _spell(row: Row, unicode: bool) -> list[str]:
    """The tokens of a row with the space before each: `["q", " =", " x", " @", " W"]`."""
    tokens = row.tokens
    texts: list[str] = []
    for number, token in enumerate(tokens):
        gap = _gap(tokens, number) if number else ""
        texts.append(gap + _spelling(token, unicode))
    return texts


def _spelling(token: Token, unicode: bool) -> str:
    """A token in ASCII, or with the symbols of papers where they are exact synonyms."""
    if token.kind == "transpose":
        return "ᵀ" if unicode else ".T"
    if token.kind == "symbol" or token.text == "in":
        text = operator(token.text)
        return UNICODE_OPERATORS.get(text, text) if unicode else text
    if token.kind != "name":
        return token.text
    name = canonical(token.text)
    return _with_symbols(name) if unicode else name


def _with_symbols(name: str) -> str:
    """`W_beta` -> `W_β`, `sqrt` -> `√`: the shortest spelling that still means the same name."""
    letters = {word: letter for letter, word in GREEK.items() if letter != "ς"}
    whole = {word: symbol for symbol, word in WORDS.items()}
    bare = name.rstrip("'")
    parts = (letters.get(part, part) for part in bare.split("_"))
    symbols = whole.get(bare, "_".join(parts)) + name[len(bare) :]
    return symbols if canonical(symbols) == name else name


def _gap(tokens: Sequence[Token], at: int) -> str:
    """The space between a token and the one before it."""
    before, token = tokens[at - 1], tokens[at]
    if token.text in (",", ":", ")", "]") or before.text in ("(", "["):
        return ""
    if token.text == ";":
        return "" if tokens[0].text == "param" else " "
    if token.kind == "transpose":
        return " " if before.kind == "number" else ""
    if before.text in MINUS and not _is_infix(tokens, at - 1):
        return ""
    if token.text in MINUS | {"+"} or before.text in MINUS | {"+"}:
        return "" if _is_offset(tokens, at) else " "
    if token.text in ("(", "[") and before.ends_operand and not _is_infix(tokens, at - 1):
        return ""
    return " "


def _is_infix(tokens: Sequence[Token], at: int) -> bool:
    """Whether a token stands between two operands (or opens one), rather than being one."""
    token = tokens[at]
    if token.kind == "name" and token.text in BEFORE_OPERAND:
        return True
    if at == 0:
        return token.text in ("require", "repeat", "output", "attend", "index")
    return token.text in INFIX and tokens[at - 1].ends_operand and not _is_infix(tokens, at - 1)


def _is_offset(tokens: Sequence[Token], at: int) -> bool:
    """Whether a token or the one before it is the sign of `[t-1]`, which is written tight."""
    sign = at if tokens[at].text in MINUS | {"+"} else at - 1
    around = tokens[max(0, sign - 2) : sign + 3]
    kinds = [token.kind for token in around]
    ends = [around[0].text, around[-1].text]
    return kinds == ["symbol", "name", "symbol", "number", "symbol"] and ends == ["[", "]"]


# --- columns -----------------------------------------------------------------------------------


def _equals(row: Row) -> int | None:
    """The number of the token that is the `=` of an assignment, or None."""
    if row.continued or not row.tokens or row.tokens[0].text in DECLARING | PLAIN:
        return None
    depth = 0
    for number, token in enumerate(row.tokens):
        depth += (token.text in ("(", "[")) - (token.text in (")", "]"))
        if token.text == "=" and depth == 0:
            return number
        if token.text == ":" and depth == 0:
            return None
    return None


def _align_equals(rows: Sequence[Row], spelled: Sequence[list[str]]) -> None:
    """Put `=` signs below one another in runs of lines where the author had them so."""
    runs: list[list[int]] = []
    for number, row in enumerate(rows):
        if (sign := _equals(row)) is None:
            continue
        last = runs[-1][-1] if runs else -1
        same = last == number - 1 and (row.blanks, row.depth) == (0, rows[last].depth)
        if last >= 0 and same and _column(row) == _column(rows[last]):
            runs[-1].append(number)
        else:
            runs.append([number])
        spelled[number][sign] = " ="
    for run in runs:
        widths = [len("".join(spelled[number][: _equals(rows[number])])) for number in run]
        for number, width in zip(run, widths, strict=True):
            spelled[number][_equals(rows[number]) or 0] = " " * (max(widths) - width) + " ="


def _column(row: Row) -> int | None:
    """The author's column of a row's `=`, counted from the row's start."""
    at = _equals(row)
    return None if at is None else row.tokens[at].column - row.tokens[0].column


def _joined(rows: Sequence[Row], spelled: Sequence[Sequence[str]]) -> list[str]:
    """Code of each row; a row inside a bracket starts below what follows the bracket."""
    codes: list[str] = []
    open_columns: list[int] = []
    hanging = 0
    for number, (row, texts) in enumerate(zip(rows, spelled, strict=True)):
        if not row.continued:
            open_columns = []
            hanging = 4 * row.depth + (8 if _is_header(rows, number) else 4)
        start = open_columns[-1] if open_columns else 4 * row.depth
        if row.continued and row.tokens and _nesting(row.tokens[0].text) < 0 and start == hanging:
            start = 4 * row.depth
        code = " " * start
        for place, (token, text) in enumerate(zip(row.tokens, texts, strict=True)):
            code += text
            if _nesting(token.text) > 0:
                last = place == len(texts) - 1
                open_columns.append(hanging if last else _width(code))
            elif _nesting(token.text) < 0 and open_columns:
                open_columns.pop()
        codes.append(code)
    return codes


def _is_header(rows: Sequence[Row], start: int) -> bool:
    """Whether the statement that starts at a row opens a block."""
    end = start
    while end + 1 < len(rows) and rows[end + 1].continued:
        end += 1
    tokens = rows[end].tokens
    return bool(tokens) and tokens[-1].text == ":"


def _width(code: str) -> int:
    """Column after the last character; a docstring has several lines."""
    return len(code) - code.rfind("\n") - 1


def _comment_columns(rows: Sequence[Row], codes: Sequence[str]) -> list[int]:
    """The column of each row's comment: neighbours share one, the author's where it fits."""
    columns = [_width(code) for code in codes]
    run: list[int] = []
    for number in range(len(rows) + 1):
        row = rows[number] if number < len(rows) else Row()
        ends = not (row.comment and row.tokens) or row.blanks > 0
        if run and (ends or row.depth != rows[run[0]].depth):
            written = {comment.column for n in run if (comment := rows[n].comment)}
            needed = max(_width(codes[n]) for n in run) + 2
            common = written.pop() if len(written) == 1 else 0
            for n in run:
                columns[n] = max(common, needed)
            run = []
        if row.comment and row.tokens:
            run.append(number)
    return columns


def _blank_lines(rows: Sequence[Row], number: int) -> int:
    """Blank lines before a row: the author's, at most one, or one to two around declarations."""
    row = rows[number]
    if number == 0 or row.continued:
        return 0
    before = rows[number - 1]
    declares = bool(row.tokens) and row.tokens[0].text in DECLARING - {"import"}
    if row.depth == 0 and (before.depth > 0 or (declares and before.tokens)):
        return min(2, max(1, row.blanks))
    return min(1, row.blanks)

"""Source -> tree: read a spec's text.

Declarations are parsed one by one, so that a mistake in one does not hide a mistake in the next.
Size, nesting and names are bounded here: nothing later has to fear a huge or hostile spec.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from lark import Lark, Token, Tree, UnexpectedCharacters, UnexpectedInput
from lark.exceptions import UnexpectedEOF
from lark.indenter import DedentError, PythonIndenter

from archc.diagnostics import Refused, Report, did_you_mean
from archc.source import Source, Span
from archc.syntax import tree
from archc.syntax.build import Builder

MAX_CHARS = 1 << 15
"""Longest spec, in characters: twenty times the longest bundled one."""

MAX_BRACKETS = 50
"""Deepest nesting of brackets, and of indented blocks."""

KEYWORDS = (
    *("layer", "block", "model", "function", "import", "input", "param", "output", "return"),
    *("recurrence", "attend", "index", "blocks", "route", "repeat", "over", "grouped"),
    *("require", "chunk"),
)

OPENING = re.compile(r"^(layer|block|model|function|import)\b", re.MULTILINE)
MASKED = re.compile(r'"""(?s:.)*?"""|"[^"\n]*"|#[^\n]*')


class _Indentation(PythonIndenter):
    """Where blocks start and end; line breaks inside brackets do not count."""

    NL_type = "_NL"


@lru_cache(maxsize=1)
def grammar() -> Lark:
    """The parser of one declaration."""
    text = resources.files("archc.syntax").joinpath("grammar.lark").read_text("utf-8")
    return Lark(
        text,
        parser="lalr",
        postlex=_Indentation(),
        keep_all_tokens=True,
        maybe_placeholders=False,
        cache=_cache_file() or False,
    )


def _cache_file() -> str | None:
    """Where lark keeps the parser's tables, which take 0.2 s to make; None if nothing can be kept.

    The folder is the user's own: lark unpickles the file.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(root) / "archc"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder / f"grammar-{sys.version_info[0]}.{sys.version_info[1]}.lark")


def parse(source: Source) -> tree.File:
    """The tree of a spec; raises ArchError with every syntax error found (E0005 to E0019)."""
    report = Report()
    _check_text(source, report)
    report.check()
    imports: list[tree.Import] = []
    decls: list[tree.Decl] = []
    for start, end in _declarations(source, report):
        try:
            nodes = _parse_part(source, start, end, report)
        except Refused:
            continue
        imports += (node for node in nodes if isinstance(node, tree.Import))
        decls += (node for node in nodes if isinstance(node, tree.Decl))
    report.check()
    if not decls:
        whole = Span(source, 0, min(1, len(source.text)))
        report.error(
            "E0010",
            "the spec declares nothing",
            whole,
            helps=["start with `layer Name(d):` and an `input x[d]`"],
        )
        report.check()
    return tree.File(Span(source, 0, len(source.text)), tuple(imports), tuple(decls))


def _check_text(source: Source, report: Report) -> None:
    """Refuse what no spec needs: enormous texts, control characters, tabs, deep nesting."""
    text = source.text
    if len(text) > MAX_CHARS:
        report.error(
            "E0005", f"the spec is too large: {len(text)} characters, of {MAX_CHARS} allowed"
        )
        return
    strange = re.search(r"[^\n\r\x20-\x7e\u00a0-\uffff]|[\u200b-\u200f\u2028-\u202f\ufeff]", text)
    if strange:
        what = "a tab" if strange[0] == "\t" else f"the character U+{ord(strange[0]):04X}"
        at = Span(source, strange.start(), strange.end())
        report.error("E0006", f"{what} is not allowed in a spec", at, helps=["indent with spaces"])
        return
    depth = 0
    for match in re.finditer(r"[\[(]|[\])]", MASKED.sub(lambda m: " " * len(m[0]), text)):
        depth = depth + 1 if match[0] in "[(" else max(0, depth - 1)
        if depth > MAX_BRACKETS:
            at = Span(source, match.start(), match.end())
            report.error("E0007", f"brackets are nested deeper than {MAX_BRACKETS}", at)
            return
    for match in re.finditer(r"(?m)^( +)(?=\S)", text):
        if len(match[1]) > 4 * MAX_BRACKETS:
            at = Span(source, match.start(), match.end())
            report.error("E0007", f"blocks are nested deeper than {MAX_BRACKETS}", at)
            return


def _declarations(source: Source, report: Report) -> Iterator[tuple[int, int]]:
    """Start and end of each import or declaration: they begin at the start of a line."""
    masked = MASKED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), source.text)
    starts = [match.start() for match in OPENING.finditer(masked)]
    head = masked[: starts[0]] if starts else masked
    stray = re.search(r"\S[^\n]*", head)
    if stray:
        word = stray[0].split()[0]
        report.error(
            "E0011",
            "expected `layer`, `block`, `model`, `function` or `import`",
            Span(source, stray.start(), stray.end()),
            "not the start of a declaration",
            helps=did_you_mean(word, ("layer", "block", "model", "function", "import")),
        )
    yield from zip(starts, [*starts[1:], len(source.text)], strict=False)


def _parse_part(source: Source, start: int, end: int, report: Report) -> list[tree.Node]:
    """The nodes of one declaration; a syntax error is reported and refused."""
    text = source.text[start:end]
    try:
        parsed = grammar().parse(text if text.endswith("\n") else text + "\n")
    except UnexpectedInput as error:
        raise _syntax_error(source, start, text, error, report) from None
    except DedentError:
        raise report.error(
            "E0013",
            "a line is indented less than its block, and no outer block starts there",
            Span(source, start, start + len(text.split("\n", 1)[0])),
            "in this declaration",
        ) from None
    return _convert(parsed, Builder(source, start, report))


def _convert(root: Tree, builder: Builder) -> list[tree.Node]:
    """Build the tree bottom-up with an explicit stack: the builder bounds the depth, not Python."""
    done: dict[int, Any] = {}
    stack: list[tuple[Tree, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if not ready:
            stack.append((node, True))
            stack += [
                (child, False) for child in reversed(node.children) if isinstance(child, Tree)
            ]
            continue
        kids = [done.pop(id(c)) if isinstance(c, Tree) else c for c in node.children]
        done[id(node)] = builder.build(str(node.data), kids)
    return done[id(root)]


def _syntax_error(
    source: Source, start: int, text: str, error: UnexpectedInput, report: Report
) -> Refused:
    """What was found and what the grammar expected there, in the words of the language."""
    opened = _unclosed(text)
    if opened is not None:
        at = Span(source, start + opened, start + opened + 1)
        return report.error("E0018", f"`{at.text}` is never closed", at, "opened here")
    if isinstance(error, UnexpectedCharacters):
        at = start + (error.pos_in_stream or 0)
        return report.error(
            "E0012", f"unexpected character `{source.text[at]}`", Span(source, at, at + 1)
        )
    token: Token | None = getattr(error, "token", None)
    if isinstance(error, UnexpectedEOF) or token is None or token.type == "$END":
        last = start + len(text.rstrip())
        return report.error(
            "E0014",
            "the declaration ends too early",
            Span(source, max(start, last - 1), max(start + 1, last)),
            "more is expected after this",
            helps=["a layer has a docstring or statements, indented, and at least one `output`"],
        )
    at = Span(source, start + (token.start_pos or 0), start + (token.end_pos or 0))
    return _unexpected(source, token, at, error, report)


def _unclosed(text: str) -> int | None:
    """Where a bracket is opened that the declaration never closes; `(s, t]` closes as it is."""
    opened: list[int] = []
    for match in re.finditer(r"[\[(]|[\])]", MASKED.sub(lambda m: " " * len(m[0]), text)):
        if match[0] in "[(":
            opened.append(match.start())
        elif opened:
            opened.pop()
    return opened[-1] if opened else None


def _unexpected(
    source: Source, token: Token, at: Span, error: UnexpectedInput, report: Report
) -> Refused:
    """An unexpected token: a reserved word, an unbalanced bracket, a misspelt keyword, ..."""
    shown = {
        "_NL": "end of the line",
        "_INDENT": "indented line",
        "_DEDENT": "end of the block",
    }
    found = shown.get(
        token.type, f"`{str(token).splitlines()[0]}`" if str(token).strip() else "space"
    )
    if token.type in shown:
        edge = min(at.start, len(source.text) - 1)
        at = Span(source, edge, edge + 1)
    expected = sorted(
        _words(getattr(error, "accepts", None) or getattr(error, "expected", ()) or ())
    )
    helps: list[str] = []
    line = source.line(at.line).split("#")[0].split()
    if line:
        near = did_you_mean(line[0], KEYWORDS) if line[0] not in KEYWORDS else ()
        helps += near
    notes = [f"expected {', '.join(expected)}"] if 0 < len(expected) <= 6 else []
    return report.error("E0012", f"unexpected {found}", at, notes=notes, helps=helps)


def _words(terminals: set[str] | tuple[str, ...]) -> Iterator[str]:
    """Terminal names as a reader of specs knows them."""
    known = {t.name: t for t in grammar().terminals}
    names = {
        "_NL": "the end of the line",
        "_INDENT": "an indented block",
        "_DEDENT": "the end of the block",
    }
    names |= {
        "NAME": "a name",
        "NUMBER": "a number",
        "STRING": "a quoted text",
        "DOC": "a docstring",
    }
    for name in terminals:
        if name in names:
            yield names[name]
        elif name in known and known[name].pattern.type == "str":
            yield f"`{known[name].pattern.value}`"

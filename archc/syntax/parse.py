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

from lark import Lark, Tree, UnexpectedInput
from lark.indenter import DedentError, PythonIndenter

from archc.diagnostics import Refused, Report, did_you_mean
from archc.source import Source, Span
from archc.syntax import habits, tree
from archc.syntax.build import Builder
from archc.syntax.mistakes import (
    bad_dedent,
    masked,
    open_docstring,
    strange_character,
    syntax_error,
)

MAX_CHARS = 1 << 15
"""Longest spec, in characters: twenty times the longest bundled one."""

MAX_BRACKETS = 50
"""Deepest nesting of brackets, and of indented blocks."""

OPENING = re.compile(r"^(layer|block|model|function|import)\b", re.MULTILINE)


class _Indentation(PythonIndenter):
    """The starts and ends of blocks; line breaks inside brackets do not count."""

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
    """The file where lark keeps the parser's tables, which take 0.2 s to make; None if nothing can
    be kept.

    The folder is the user's own: lark unpickles the file.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(root) / "archc"
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)  # a home that is missing stays missing
        folder.mkdir(mode=0o700, exist_ok=True)
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
    strange_character(source, report)
    open_docstring(source, report)
    if report.diagnostics:
        return
    depth = 0
    for match in re.finditer(r"[\[(]|[\])]", masked(text)):
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
    code = masked(source.text)
    starts = [match.start() for match in OPENING.finditer(code)]
    head = code[: starts[0]] if starts else code
    stray = re.search(r"\S[^\n]*", head)
    if stray:
        advice = habits.in_text(source, stray.start())
        words = ("layer", "block", "model", "function", "import")
        helps = [advice.help] if advice else did_you_mean(stray[0].split()[0], words)
        report.error(
            "E0011",
            "expected `layer`, `block`, `model`, `function` or `import`",
            Span(source, stray.start(), stray.end()),
            "not the start of a declaration",
            helps=helps,
        )
    yield from zip(starts, [*starts[1:], len(source.text)], strict=False)


def _parse_part(source: Source, start: int, end: int, report: Report) -> list[tree.Node]:
    """The nodes of one declaration; a syntax error is reported and refused."""
    text = source.text[start:end]
    try:
        parsed = _tree(text if text.endswith("\n") else text + "\n")
    except UnexpectedInput as error:
        words = {t.name: t.pattern.value for t in grammar().terminals if t.pattern.type == "str"}
        raise syntax_error(source, start, text, error, words, report) from None
    except DedentError:
        raise bad_dedent(source, start, text, report) from None
    return _convert(parsed, Builder(source, start, report))


@lru_cache(maxsize=256)
def _tree(text: str) -> Tree:
    """The tree of a declaration, as the grammar has it: many specs import the same layers."""
    return grammar().parse(text)


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

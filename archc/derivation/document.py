"""A page of a derivation -> plain text, Markdown and LaTeX."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence

from archc.derivation.page import (
    Block,
    Checked,
    Excerpt,
    Formula,
    Inline,
    Listing,
    Page,
    Para,
    Picture,
    Step,
    Table,
)
from archc.derivation.typed import as_latex, as_plain

WIDTH = 96

# --- text -----------------------------------------------------------------------------------------


def as_text(page: Page) -> str:
    """Plain text, to be read in a terminal."""
    title = f"{page.title}, derived"
    lines = [title, "=" * len(title), *[each for each in (page.about, page.source) if each]]
    lines += _joined(map(_text_block, page.intro))
    for number, chapter in enumerate(page.chapters, start=1):
        where = f"  ({chapter.span.where})" if chapter.span else ""
        head = f"{number} {chapter.title}{where}"
        lines += ["", "", head, "-" * len(head)]
        for place, step in enumerate(chapter.steps, start=1):
            lines += [
                "",
                f"{number}.{place} {_headline(step)}",
                *_joined(map(_text_block, step.blocks)),
            ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _headline(step: Step) -> str:
    return f"{step.title} ({step.where})" if step.where else step.title


def _joined(blocks: Iterable[list[str]]) -> Iterator[str]:
    """Blocks with an empty line between them; formulas and checks stand together."""
    alone = True
    for block in blocks:
        together = len(block) == 1 and block[0].startswith("  ")
        if alone or not together:
            yield ""
        yield from block
        alone = not together


def _text_block(block: Block) -> list[str]:
    match block:
        case Para(parts):
            return textwrap.wrap(_words(parts, as_plain), WIDTH, break_long_words=False)
        case Formula(math, note, tone):
            sign = {"parallel": "|", "sequential": ">"}.get(tone, " ")
            beside = f"    ({note})" if note else ""
            return [f"  {sign} {as_plain(math)}{beside}"]
        case Excerpt():
            return [f"    {line}" for line in _numbered(block)]
        case Table(head, rows):
            return _columns([list(head), *([_words((c,), as_plain) for c in r] for r in rows)])
        case Picture(_, text, caption):
            return [*(f"  {line}" for line in text.split("\n")), f"  {caption}"]
        case Listing(title):
            return [f"({title.replace('`', '')})"]
        case Checked(what, sizes):
            return [f"  [{'ok' if block.right else 'WRONG'}] {what}: {block.shown}; {sizes}"]


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table with columns side by side; one that is too wide has a line for each cell."""
    rows = [[cell.replace("`", "") for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if sum(widths) + 2 * len(widths) <= WIDTH + 12:
        rows = rows if any(rows[0]) else rows[1:]
        return [
            "    " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
    found = []
    for row in rows[1:]:
        if not any(rows[0][1:]):
            found += [f"    {row[0]}"] if row[0] else []
            found.append(f"        {': '.join(row[1:])}")
            continue
        found.append(f"    {row[0]}" + (f"  ({row[-1]})" if not rows[0][-1] and row[-1] else ""))
        rest = zip(rows[0][1:], row[1:], strict=True)
        found += [f"        {name}: {cell}" for name, cell in rest if name and cell]
    return found


def _numbered(excerpt: Excerpt) -> list[str]:
    """Lines with their numbers, and carets under what is marked as a fault."""
    width = len(str(excerpt.first + len(excerpt.lines) - 1))
    found = []
    for at, text in enumerate(excerpt.lines):
        found.append(f"{excerpt.first + at:>{width}} | {text}")
        for mark in excerpt.marks:
            if mark.line == at and mark.fault:
                found.append(f"{' ' * width} | {' ' * mark.start}{'^' * (mark.end - mark.start)}")
    return found


def _words(parts: Iterable[Inline], math: Callable) -> str:
    return "".join(part if isinstance(part, str) else math(part) for part in parts)


# --- Markdown -------------------------------------------------------------------------------------


def as_markdown(page: Page) -> str:
    """Markdown with formulas in LaTeX between dollar signs."""
    lines = [f"# {page.title}, derived", "", page.about, "", page.source, ""]
    for block in page.intro:
        lines += [*_markdown(block), ""]
    for number, chapter in enumerate(page.chapters, start=1):
        where = f" ({chapter.span.where})" if chapter.span else ""
        lines += [f"## {number} {chapter.title}{where}", ""]
        for place, step in enumerate(chapter.steps, start=1):
            lines += [f"### {number}.{place} {_headline(step)}", ""]
            for block in step.blocks:
                lines += [*_markdown(block), ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip("\n") + "\n"


def _markdown(block: Block) -> list[str]:
    match block:
        case Para(parts):
            return [_words(parts, _dollars)]
        case Formula(math, note, tone):
            remarks = ", ".join(each for each in (TONES.get(tone, ""), note) if each)
            tail = rf" \qquad \text{{({remarks})}}" if remarks else ""
            return [f"$${as_latex(math)}{tail}$$"]
        case Excerpt():
            return ["```", *_numbered(block), "```"]
        case Table(head, rows):
            cells = [[_words((cell,), _dollars) for cell in row] for row in rows]
            return [_piped(head), _piped(["---"] * len(head)), *map(_piped, cells)]
        case Picture(_, text, caption):
            return ["```", *text.split("\n"), "```", "", caption]
        case Listing(title):
            return [f"({title})"]
        case Checked(what, sizes):
            sign = "✓" if block.right else "✗"
            return [f"- {sign} **{what}: {block.shown}** · {sizes}"]


TONES = {"parallel": "all chunks at once", "sequential": "chunk after chunk"}


def _dollars(math: object) -> str:
    return f"${as_latex(math)}$"  # type: ignore[arg-type]


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


# --- LaTeX ----------------------------------------------------------------------------------------

PREAMBLE = r"""\documentclass[11pt]{article}
\usepackage[margin=2.5cm]{geometry}
\usepackage{amsmath,amssymb,fvextra}
\usepackage[T1]{fontenc}
\usepackage[utf8]{inputenc}
\usepackage{longtable}
\setlength{\parindent}{0pt}\setlength{\parskip}{6pt}
"""
SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_",
    "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "−": "$-$", "∞": r"$\infty$", "…": r"\dots{}", "·": r"$\cdot$", "✓": r"$\checkmark$",
    "≤": r"$\le$",
    "⁻": "$^-$", "¹": "$^1$",
}  # fmt: skip


def as_tex(page: Page) -> str:
    """A LaTeX article."""
    lines = [PREAMBLE + r"\begin{document}", rf"\title{{{_tex(page.title)}, derived}}"]
    lines += [rf"\author{{{_tex(page.source)}}}", r"\date{}", r"\maketitle", _tex(page.about), ""]
    for block in page.intro:
        lines += [*_latex(block), ""]
    for chapter in page.chapters:
        where = f" ({chapter.span.where})" if chapter.span else ""
        lines += [rf"\section{{{_tex(chapter.title + where)}}}", ""]
        for step in chapter.steps:
            lines += [rf"\subsection{{{_tex(_headline(step))}}}", ""]
            for block in step.blocks:
                lines += [*_latex(block), ""]
    return "\n".join([*lines, r"\end{document}"]) + "\n"


def _latex(block: Block) -> list[str]:
    match block:
        case Para(parts):
            return ["".join(_inline(part) for part in parts)]
        case Formula(math, note, tone):
            remarks = ", ".join(each for each in (TONES.get(tone, ""), note) if each)
            tail = rf" \qquad \text{{({_tex(remarks)})}}" if remarks else ""
            return [rf"\[ {as_latex(math)}{tail} \]"]
        case Excerpt():
            return [r"\begin{Verbatim}[breaklines]", *_numbered(block), r"\end{Verbatim}"]
        case Table(head, rows):
            share = rf"p{{{0.94 / len(head):.2f}\linewidth}}"
            lines = [rf"\begin{{longtable}}{{{share * len(head)}}}"]
            lines.append(" & ".join(_tex(cell) for cell in head) + r" \\ \hline")
            lines += [" & ".join(_inline(cell) for cell in row) + r" \\" for row in rows]
            return [*lines, r"\end{longtable}"]
        case Picture(_, text, caption):
            drawn = [line.replace("⁻¹", "^-1").replace("−", "-") for line in text.split("\n")]
            return [r"\begin{Verbatim}[fontsize=\footnotesize]", *drawn, r"\end{Verbatim}",
                    _tex(caption)]  # fmt: skip
        case Listing():
            return []
        case Checked(what, sizes):
            sign = r"$\checkmark$" if block.right else r"$\times$"
            return [rf"{sign} \textbf{{{_tex(what)}: {_tex(block.shown)}}}; {_tex(sizes)}"]


def _inline(part: Inline) -> str:
    """Words or a formula."""
    if not isinstance(part, str):
        return f"${as_latex(part)}$"
    pieces = re.split(r"`([^`]+)`", part)
    return "".join(
        rf"\texttt{{{_tex(piece)}}}" if number % 2 else _tex(piece)
        for number, piece in enumerate(pieces)
    )


def _tex(text: str) -> str:
    return "".join(SPECIAL.get(char, char) for char in text)

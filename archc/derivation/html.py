"""A page of a derivation -> HTML: one file that needs no other, and no scripts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from archc.derivation.mathml import as_mathml
from archc.derivation.page import (
    Block,
    Chapter,
    Checked,
    Excerpt,
    Formula,
    Inline,
    Listing,
    Mark,
    Page,
    Para,
    Picture,
    Step,
    Table,
)

STYLE = """
:root { color-scheme: light dark; --text: #1f2430; --quiet: #667080; --line: #dde2e8;
  --paper: #ffffff; --panel: #f5f7f9; --link: #2458b3; --parallel: #2f8f5b; --waits: #d9822b;
  --mark: #fff1c2; --fault: #c62f3b; --good: #2f8f5b; }
@media (prefers-color-scheme: dark) { :root { --text: #dfe3ea; --quiet: #97a1b0; --line: #333a45;
  --paper: #14171c; --panel: #1c2027; --link: #8ab0f0; --parallel: #57b884; --waits: #e5a05c;
  --mark: #4b4013; --fault: #ef7f88; --good: #57b884; } }
body { font: 17px/1.6 "Iowan Old Style", "Palatino Linotype", Palatino, "Book Antiqua", Georgia,
  "DejaVu Serif", serif; color: var(--text); background: var(--paper); margin: 0 auto;
  max-width: 50rem; padding: 2rem 1.5rem 5rem; }
h1, h2, h3, nav, table, figcaption, .check, .note, .where, summary { font-family: system-ui,
  -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { margin: 0; font-size: 2rem; line-height: 1.2; }
h2 { margin: 3.5rem 0 0; padding-top: 1rem; border-top: 2px solid var(--text); font-size: 1.4rem; }
h3 { margin: 2.4rem 0 .3rem; font-size: 1.08rem; }
h2 a, h3 a { color: inherit; }
.where { color: var(--quiet); font-weight: 400; font-size: .8rem; margin-left: .6em;
  white-space: nowrap; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
p { margin: .7rem 0; }
.about { font-size: 1.1rem; margin: .3rem 0; } .source { color: var(--quiet); margin-top: 0; }
nav { font-size: .88rem; line-height: 1.7; background: var(--panel); border-radius: 8px;
  padding: .8rem 1.2rem; margin: 1.5rem 0; }
nav ol { margin: 0; padding-left: 1.4rem; }
nav li ol { columns: 14rem 2; padding-left: 1.2rem; color: var(--quiet); }
nav li li { break-inside: avoid; }
code, pre { font: .84em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono",
  monospace; }
p code, td code { background: var(--panel); border-radius: 4px; padding: .08em .3em;
  overflow-wrap: anywhere; }
pre { background: var(--panel); border-radius: 8px; padding: .8rem 1rem; overflow-x: auto; }
pre .n { color: var(--quiet); user-select: none; }
mark { background: var(--mark); color: inherit; border-radius: 3px; padding: .1em 0; }
mark.fault { background: none; text-decoration: underline wavy var(--fault) 1.5px;
  text-underline-offset: .25em; }
math { font-family: "STIX Two Math", "Latin Modern Math", "Cambria Math", "TeX Gyre Termes Math",
  "Libertinus Math", "DejaVu Math TeX Gyre", math; font-size: 1.08em; }
.whole { white-space: nowrap; }
.formula { display: flex; align-items: center; gap: 1rem; padding: .35rem 0 .35rem 1rem;
  margin: .25rem 0; border-left: 3px solid transparent; overflow-x: auto; overflow-y: hidden; }
.formula math { flex: 0 0 auto; margin: 0; }
.formula.parallel { border-color: var(--parallel); }
.formula.sequential { border-color: var(--waits); }
.note { color: var(--quiet); font-size: .8rem; text-align: right; margin-left: auto; }
table { border-collapse: collapse; font-size: .86rem; line-height: 1.45; margin: 1rem 0;
  width: 100%; display: block; overflow-x: auto; }
th { text-align: left; font-weight: 600; color: var(--quiet); }
th, td { padding: .32rem 1rem .32rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child { min-width: 7.5rem; }
figure { margin: 1.4rem 0; } figcaption { color: var(--quiet); font-size: .8rem; }
svg.dependence { width: 100%; max-width: 46rem; height: auto; }
svg.dependence rect { fill: var(--paper); stroke-width: 1.6; }
svg.dependence .p { stroke: var(--parallel); } svg.dependence .s { stroke: var(--waits); }
svg.dependence .n { stroke: var(--quiet); } svg.dependence polygon.s { fill: var(--waits); }
svg.dependence polygon.n { fill: var(--quiet); stroke: none; }
svg.dependence text { fill: var(--text); font-family: system-ui, "DejaVu Sans", sans-serif; }
.check { font-size: .84rem; margin: .3rem 0; color: var(--quiet); }
.check b { color: var(--good); font-weight: 600; } .check.wrong b { color: var(--fault); }
details { margin: 1rem 0; } summary { cursor: pointer; color: var(--link); font-size: .88rem; }
details pre { font-size: .8em; }
@media (max-width: 40rem) { body { font-size: 16px; padding: 1.2rem 1rem 3rem; }
  td:first-child { min-width: 3.5rem; } .formula { padding-left: .6rem; flex-wrap: wrap;
  row-gap: 0; } .note { flex-basis: 100%; text-align: left; }
  td code { white-space: nowrap; } td:last-child code { white-space: normal; } }
@media print { nav, details { display: none; } body { max-width: none; } }
""".strip()


def as_html(page: Page) -> str:
    """The page."""
    chapters = "\n".join(
        _chapter(chapter, number) for number, chapter in enumerate(page.chapters, start=1)
    )
    source = (
        f'<p class="source">{linked(escape(page.source, quote=False))}</p>' if page.source else ""
    )
    about = f'<p class="about">{escape(page.about, quote=False)}</p>' if page.about else ""
    intro = "\n".join(map(_block, page.intro))
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml">\n<head>\n'
        '<meta charset="utf-8"/>\n<meta name="viewport" content="width=device-width"/>\n'
        f"<title>{escape(page.title)}, derived</title>\n"
        f"<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f"<h1>{escape(page.title)}, derived</h1>\n{about}\n{source}\n{intro}\n{_contents(page)}\n"
        f"{chapters}\n</body>\n</html>\n"
    )


def linked(source: str) -> str:
    """A source in which the numbers of papers are links."""
    return re.sub(r"\b\d{4}\.\d{4,5}\b", r'<a href="https://arxiv.org/abs/\g<0>">\g<0></a>', source)


def _contents(page: Page) -> str:
    items = []
    for number, chapter in enumerate(page.chapters, start=1):
        steps = "".join(
            f'<li><a href="#{_anchor(number, place)}">{_text(step.title)}</a></li>'
            for place, step in enumerate(chapter.steps, start=1)
        )
        items.append(
            f'<li><a href="#{_anchor(number)}">{_text(chapter.title)}</a><ol>{steps}</ol></li>'
        )
    return f"<nav><ol>{''.join(items)}</ol></nav>"


def _anchor(*numbers: int) -> str:
    return "s" + "-".join(map(str, numbers))


def _chapter(chapter: Chapter, number: int) -> str:
    steps = "\n".join(
        _step(step, number, place) for place, step in enumerate(chapter.steps, start=1)
    )
    anchor = _anchor(number)
    where = f'<span class="where">{escape(chapter.span.where)}</span>' if chapter.span else ""
    head = f'<h2 id="{anchor}"><a href="#{anchor}">{number} {_text(chapter.title)}</a>{where}</h2>'
    return f"{head}\n{steps}"


def _step(step: Step, chapter: int, place: int) -> str:
    anchor = _anchor(chapter, place)
    where = f'<span class="where">{escape(step.where)}</span>' if step.where else ""
    head = (
        f'<h3 id="{anchor}"><a href="#{anchor}">{chapter}.{place} {_text(step.title)}</a>'
        f"{where}</h3>"
    )
    return "\n".join([head, *map(_block, step.blocks)])


def _block(block: Block) -> str:
    match block:
        case Para(parts):
            return f"<p>{_inlines(parts)}</p>"
        case Formula(math, note, tone):
            kind = f" {tone}" if tone else ""
            beside = f'<span class="note">{escape(note)}</span>' if note else ""
            return f'<div class="formula{kind}">{as_mathml(math, block=True)}{beside}</div>'
        case Excerpt():
            return _excerpt(block)
        case Table(head, rows):
            top = "".join(f"<th>{_text(cell)}</th>" for cell in head)
            body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
            top = f"<thead><tr>{top}</tr></thead>" if any(head) else ""
            return f"<table>{top}<tbody>\n{body}</tbody></table>"
        case Picture(svg, _, caption):
            return f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>"
        case Listing(title, text):
            body = escape(text.rstrip("\n"), quote=False)
            return f"<details><summary>{_text(title)}</summary><pre>{body}</pre></details>"
        case Checked(what, sizes):
            kind, sign = ("", "✓") if block.right else (" wrong", "✗")
            return (
                f'<p class="check{kind}"><b>{sign} {escape(what)}: {escape(block.shown)}</b>'
                f" · {escape(sizes)}</p>"
            )


def _inlines(parts: Iterable[Inline]) -> str:
    found = ""
    for part in parts:
        if not isinstance(part, str):
            found += as_mathml(part)
            continue
        ends = re.match(r"[.,;:)]+", part)
        if ends and found.endswith("</math>"):  # a line does not begin with a comma
            start = found.rindex("<math")
            found = f'{found[:start]}<span class="whole">{found[start:]}{ends[0]}</span>'
            found += _text(part[ends.end() :])
            continue
        found += _text(part)
    return found


def _cell(cell: Inline) -> str:
    """A cell of a table; fractions in it are as large as on a line of their own."""
    if isinstance(cell, str):
        return f"<td>{re.sub(r'(?<=[0-9]) (?=[kMGT]?B?$|[kMGT]B? )', '&#160;', _text(cell))}</td>"
    return f"<td>{as_mathml(cell, large=True)}</td>"


def _text(text: str) -> str:
    """Words, with `code` in backquotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def _excerpt(excerpt: Excerpt) -> str:
    width = len(str(excerpt.first + len(excerpt.lines) - 1))
    lines = [
        f'<span class="n">{excerpt.first + at:>{width}}  </span>'
        + "".join(_marked(text, [mark for mark in excerpt.marks if mark.line == at]))
        for at, text in enumerate(excerpt.lines)
    ]
    return f"<pre>{chr(10).join(lines)}</pre>"


def _marked(text: str, marks: Iterable[Mark]) -> Iterator[str]:
    """A line with its marked characters; of marks that overlap the first counts."""
    done = 0
    for mark in sorted(marks, key=lambda mark: (mark.start, -mark.end)):
        if mark.start < done or mark.start >= mark.end:
            continue
        yield escape(text[done : mark.start], quote=False)
        kind = ' class="fault"' if mark.fault else ""
        yield f"<mark{kind}>{escape(text[mark.start : mark.end], quote=False)}</mark>"
        done = mark.end
    yield escape(text[done:], quote=False)

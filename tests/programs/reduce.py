"""A failing program made small: statements are left out and terms replaced while it fails alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.programs.terms import Block, Decl, Let, Program, Statement, Term

Fails = Callable[[Program], bool]


def reduced(program: Program, fails: Fails, tries: int = 400) -> Program:
    """A program that still fails, from which nothing more can be taken in one step."""
    again = True
    while again and tries > 0:
        again = False
        for smaller in steps(program):
            tries -= 1
            if tries <= 0:
                break
            if fails(smaller):
                program, again = smaller, True
                break
    return program


def steps(program: Program) -> Iterator[Program]:
    """Programs with less in them, those with the least first."""
    for place in range(len(program.decls) - 1):
        yield replace(program, decls=program.decls[:place] + program.decls[place + 1 :])
    for place, decl in enumerate(program.decls):
        for body in bodies(decl.body):
            yield program.with_decl(place, replace(decl, body=body))
        if decl.result is not None:
            for term in smaller(decl.result):
                yield program.with_decl(place, replace(decl, result=term))
        yield from (program.with_decl(place, each) for each in headers(decl))


def headers(decl: Decl) -> Iterator[Decl]:
    """A declaration with fewer inputs, and plainer parameters."""
    for place in range(1, len(decl.inputs)):
        yield replace(decl, inputs=decl.inputs[:place] + decl.inputs[place + 1 :])
    if any(each.after and not each.inside for each in decl.params):
        plain = tuple(replace(p, after=p.after if p.inside else "") for p in decl.params)
        yield replace(decl, params=plain)


def bodies(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """Statements without half of them, without one, or with one made smaller."""
    count = len(body) // 2
    while count > 1:
        for start in range(0, len(body), count):
            yield body[:start] + body[start + count :]
        count //= 2
    for place in reversed(range(len(body))):
        yield body[:place] + body[place + 1 :]
    for place, each in enumerate(body):
        for changed in statements(each):
            yield (*body[:place], changed, *body[place + 1 :])


def statements(each: Statement) -> Iterator[Statement]:
    """A statement with less in it."""
    if isinstance(each, Let):
        yield from (replace(each, term=term) for term in smaller(each.term))
        if each.dims is not None and each.kind == "let":
            yield replace(each, dims=None)
    elif isinstance(each, Block):
        for body in bodies(each.body):
            if body:
                yield replace(each, body=body)
        for place, term in enumerate(each.terms):
            for small in smaller(term):
                yield replace(each, terms=(*each.terms[:place], small, *each.terms[place + 1 :]))


def smaller(term: Term) -> Iterator[Term]:
    """Terms of the same dims with less in them."""
    for inner in term.walk():
        if inner is not term and inner.dims == term.dims:
            yield inner
    if term.op not in ("number", "name", "state", "at") and not term.dims:
        yield Term("number", (), ("0.5",))
    for place, arg in enumerate(term.args):
        for less in smaller(arg):
            yield replace(term, args=(*term.args[:place], less, *term.args[place + 1 :]))

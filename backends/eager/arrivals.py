"""Lines of a forward -> the same, in which products of one value are taken in turn, each right
before what reads it first, so that this runs while the next product is made:

    q_raw, k_raw, low = products_of(x, W_q, W_k, W_low)      products = in_turn(products_of, x, ...)
    q = f(q_raw)                                             low = next(products)
    k = f(k_raw)                                       ->    high = low @ W_high
    high = low @ W_high                                      a = h(high)
    a = h(high)                                              q_raw = next(products)
    o = memory(q, k, a)                                      q = f(q_raw) ...

A chain is what is made of one product alone, as far as the first statement that reads several. The
longest comes first: what is made of the last product has nothing to run beside."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from archc.backends.eager.lifetimes import assigned, read_by
from archc.backends.writer import Writer

from archc.ir.free_names import numbered

MADE = "products_of"


@dataclass
class Piece:
    """A statement: the lines above it that say where it is from, its own, the names that it has,
    and those that it gives values to."""

    tree: ast.stmt | None
    notes: list[str]
    lines: list[str]
    has: set[str]
    gives: list[str]


def taken_in_turn(lines: Sequence[str], margin: int) -> list[str]:
    """`lines`, which stand so far to the right in their file, with products taken in turn."""
    pieces, begun = list[Piece](), 0
    for tree in ast.parse("\n".join(lines)).body:
        first, last = tree.lineno - 1, tree.end_lineno or 0
        own = Piece(tree, [*lines[begun:first]], [*lines[first:last]], read_by(tree), [])
        own.gives += assigned(tree)
        pieces, begun = [*pieces, own], last
    taken, called = {name for each in pieces for name in each.has}, list[tuple[int, str]]()
    for place, each in enumerate(pieces[:-1]):
        if _makes_products(each):
            called.append((place, numbered("products", taken)))
            taken.add(called[-1][1])
    for place, name in reversed(called):
        pieces[place:] = _in_turn(pieces[place], pieces[place + 1 :], name, margin)
    return [line for each in pieces for line in (*each.notes, *each.lines)] + [*lines[begun:]]


def _makes_products(piece: Piece) -> bool:
    """Whether a statement makes several products at once."""
    made = piece.tree.value if isinstance(piece.tree, ast.Assign) else None
    called = made.func if isinstance(made, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == MADE and len(piece.gives) > 1


def _in_turn(made: Piece, after: list[Piece], name: str, margin: int) -> list[Piece]:
    """A statement that makes products, and those after it."""
    assert isinstance(made.tree, ast.Assign) and isinstance(made.tree.value, ast.Call)
    source, *weights = map(ast.unparse, made.tree.value.args)
    of = dict(zip(made.gives, weights, strict=True))
    order = _by_chains(after, [*of])
    firsts = {product: _first(order, product) for product in of}
    if len({*firsts.values()}) == 1:
        return [made, *after]
    after[0].notes = made.notes + after[0].notes  # the product is of the same line
    products, writer = sorted(of, key=lambda each: firsts[each]), Writer(margin=margin)
    given = [MADE, source, *(of[product] for product in products)]
    writer.call(f"{name} = in_turn(", given, ")")
    found = [Piece(None, [], [*writer.lines], made.has, made.gives)]
    for place, each in enumerate(order):
        own = [f"{product} = next({name})" for product in products if firsts[product] == place]
        found.append(Piece(each.tree, each.notes, own + each.lines, each.has, each.gives))
    return found


def _first(pieces: Sequence[Piece], name: str) -> int:
    """The place of the first statement that has a name."""
    return next((place for place, each in enumerate(pieces) if name in each.has), len(pieces))


def _by_chains(pieces: list[Piece], products: Sequence[str]) -> list[Piece]:
    """The statements, those of the longest chain first. As they were where one of them reads none
    of the products, or gives a value to a name that has one."""
    roots, chains = {each: each for each in products}, dict[str, list[Piece]]()
    for each in pieces:
        own = {roots[name] for name in each.has if name in roots}
        if len(own) > 1:
            break
        if not own or not each.gives or any(name in roots for name in each.gives):
            return pieces
        (root,) = own
        roots |= dict.fromkeys(each.gives, root)
        chains.setdefault(root, []).append(each)
    chained = sorted(chains.values(), key=len, reverse=True)
    return [*(each for chain in chained for each in chain), *pieces[sum(map(len, chained)) :]]

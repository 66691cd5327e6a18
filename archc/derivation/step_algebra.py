"""The chapter on a layer as a whole: what algebra decided by what each way costs."""

from __future__ import annotations

import re

from archc.algebra.decision import Decision
from archc.algebra.decisions import decisions
from archc.algebra.simplify import simplify
from archc.derivation.costs import cost_math
from archc.derivation.maths import EQUALS, Fence, Math, Name, named, row, transposed
from archc.derivation.page import Block, Chapter, Formula, Inline, Step, Table, para
from archc.derivation.work import at_sizes, given, in_numbers
from archc.dims import T_SEEN, TIME, counts_tokens, in_words
from archc.ir import layer as ir
from archc.recurrence.analysis.classify import classify


def algebra(layer: ir.Layer) -> Chapter:
    """The memory of a layer, and every choice between ways to compute the same."""
    simpler = simplify(layer)
    steps = [_memories(simpler), *(_decision(layer, made) for made in decisions(simpler))]
    return Chapter("The layer as a whole", tuple(steps), layer.span)


def _memories(layer: ir.Layer) -> Step:
    found = classify(layer)
    if not found:
        text = "No token sees another one here: the layer works on each token by itself."
        return Step("What it remembers", (para(text),))
    rows: dict[tuple[Inline, ...], None] = {}
    for each in found:
        rows[", ".join(f"`{name}`" for name in each.states) or "–", each.text] = None
    blocks: list[Block] = [
        para(
            "These parts of the layer carry something from token to token. In the costs below ",
            named("T"),
            " is the number of new tokens and ",
            named("T_seen"),
            " that of all tokens so far; a multiply-add is two operations, a number two bytes.",
        ),
        Table(("state", "class"), tuple(rows)),
    ]
    return Step("What it remembers", tuple(blocks))


def _decision(layer: ir.Layer, made: Decision) -> Step:
    """One choice: its ways with their costs, and when which is taken."""
    keeps = any(option.cache != 0 for option in made.options)
    blocks: list[Block] = [para(*MOVED), Formula(_moved())] if keeps else []
    blocks.append(_long(made) if keeps else _short(made))
    blocks += [_example(layer, made)] if keeps else []
    if made.condition:
        condition = in_words(made.condition)
        blocks.append(para(f"{condition[0].upper()}{coded(condition[1:])}."))
    return Step(f"{made.what[0].upper()}{made.what[1:]}", tuple(blocks), place=made.where)


MOVED = (
    "A key is a weight times what is kept of its token. The weight may be multiplied with what is"
    " kept, which gives the keys again for every read (expand), or with the query, which then reads"
    " what is kept as it is (absorb): the same number, as a product does not depend on brackets.",
)


def _moved() -> Math:
    """q^T (W c) = (W^T q)^T c."""
    q, W, c = Name("q"), Name("W"), Name("c")
    absorbed = transposed(Fence(row(transposed(W), q)))
    return row(transposed(q), Fence(row(W, c)), EQUALS, absorbed, c)


def _short(made: Decision) -> Table:
    """A way in a row."""
    rows = tuple(
        (option.name, cost_math(option.flops), cost_math(option.bytes), _taken(made, option.name))
        for option in made.options
    )
    return Table(("way", "operations", "bytes moved", ""), rows)


def _long(made: Decision) -> Table:
    """A cost in a row: these are long."""
    rows: list[tuple[Inline, ...]] = []
    for option in made.options:
        name = f"{option.name} (taken)" if _taken(made, option.name) else option.name
        rows.append((name, "operations", cost_math(option.flops)))
        rows.append(("", "bytes moved", cost_math(option.bytes)))
        rows.append(("", "numbers kept a token", cost_math(option.cache)))
    return Table(("way", "", ""), tuple(rows))


def _taken(made: Decision, name: str) -> str:
    return "taken" if name in made.chosen.split(" | ") else ""


LONG, HEADS = 4096, 128
"""Tokens and heads of an example."""


def _example(layer: ir.Layer, made: Decision) -> Table:
    """The ways in numbers, for one token that reads many and for many at once."""
    costs = [e for option in made.options for e in (option.flops, option.bytes, option.cache)]
    sizes = {**at_sizes(layer, *costs), "H": HEADS}
    shown = given({n: size for n, size in sizes.items() if not counts_tokens(n)}, *costs)
    one, many = ({**sizes, str(TIME.size): new, str(T_SEEN): LONG} for new in (1, LONG))
    rows = [
        (
            option.name, in_numbers(option.cache, sizes),
            f"{in_numbers(option.flops, one)} for {in_numbers(option.bytes, one)}B",
            f"{in_numbers(option.flops, many)} for {in_numbers(option.bytes, many)}B",
        )
        for option in made.options
    ]  # fmt: skip
    head = (f"with {shown}", "kept", f"1 token that reads {LONG}", f"{LONG} tokens at once")
    return Table(head, tuple(rows))


def coded(text: str) -> str:
    """Words in which what is a formula stands in backquotes."""
    found: list[str] = []
    for words in re.split(r"(`[^`]*`)", text):
        found += [words] if words.startswith("`") else [FORMULA.sub(r"`\g<0>`", words)]
    return "".join(found)


PART, BETWEEN = r"[\w()*/]+", r"(?: [-+<>*/] |, (?=\w+\())"
FORMULA = re.compile(rf"[\w()/]*[*>(<]{PART[:-1]}*(?:{BETWEEN}{PART})*|{PART}(?:{BETWEEN}{PART})+")

"""Weighted sums in words: the score as a formula, what is read, and what a gradient keeps."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import sympy

from archc.attention.row_heads import rows_of
from archc.attention.weighted_sum import Bound, WeightedSum
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.value_names import cotangent
from archc.source import lines_of

INFIX = {
    "or": ("or", 0), "and": ("and", 1), "eq": ("==", 2), "ne": ("!=", 2), "lt": ("<", 2),
    "le": ("<=", 2), "gt": (">", 2), "ge": (">=", 2), "add": ("+", 3), "sub": ("-", 3),
    "mul": ("*", 4), "div": ("/", 4), "floordiv": ("//", 4), "mod": ("%", 4), "pow": ("**", 5),
}  # fmt: skip
"""Functions that are written between their operands, weakest first."""


def formula(graph: Graph, id: int, level: int = 0) -> str:
    """A formula of pairs, with names of what enters."""
    node = graph[id]
    match node.op:
        case ir.Input(name):
            return name
        case ir.Position(axis):
            return axis.name
        case ir.Constant(value):
            return str(value) if value.is_Atom else f"({value})"
    fn, operands = node.op.fn, node.operands
    if fn not in INFIX:
        return f"{fn}({', '.join(formula(graph, operand) for operand in operands)})"
    sign, own = INFIX[fn]
    left, right = formula(graph, operands[0], own), formula(graph, operands[1], own + 1)
    text = f"{left} {sign} {right}"
    return f"({text})" if own < level else text


def bound_text(bound: Bound, reader: str, read: str) -> str:
    """`s <= t`, `s >= t + 1 - w`."""
    limit = bound.slope * sympy.Symbol(reader) + bound.offset
    return f"{read} {'<=' if bound.most else '>='} {limit}"


def lines(fold: WeightedSum) -> Iterator[tuple[str, str]]:
    """The lines about a weighted sum: a title each, and a text."""
    reader, read = fold.reader.name, fold.read.name
    yield "score", formula(fold.pairs, fold.pairs.outputs["score"])
    if fold.multiplied:
        yield "factor", formula(fold.pairs, fold.pairs.outputs["factor"])
    for dot in fold.dots:
        dim = fold.source(dot.reader).dim
        yield dot.name, f"{dot.reader} . {dot.read} over {dim.name if dim else ''}"
    if "visible" in fold.pairs.outputs:
        yield "where", formula(fold.pairs, fold.pairs.outputs["visible"])
    if fold.bounds or fold.ranges:
        inside = [" and ".join(bound_text(b, reader, read) for b in own) for own in fold.ranges]
        found = [f"({' or '.join(inside)})"] if inside else []
        found = [*(bound_text(each, reader, read) for each in fold.bounds), *found]
        skipped = "; blocks in which nothing is read are skipped" if fold.choice is None else ""
        yield "read", " and ".join(found) + skipped
    if fold.choice is not None:
        what = "tokens" if fold.choice.single else f"blocks of {fold.choice.size}"
        yield "chosen", f"{what}, of which a reader has a list"
        yield "rows", f"{rows_of(fold).text}, of one reader"
    yield "summed", _weighted(fold)
    if fold.choice is None:
        rows = " and ".join(filter(None, ["readers", rows_of(fold).text]))
        yield "few readers", f"rows are {rows}; parts of what is read, joined after; no gradient"
    if fold.slopes is None:
        yield "gradient", f"in PyTorch, all pairs at once: {fold.unlearned}"
        return
    own = {role: [n for n in fold.learned if fold.source(n).role == role]
           for role in ("reader", "same", "read")}  # fmt: skip
    readers = ", ".join([*own["reader"], *own["same"]])
    yield "gradient", f"of {readers} by readers, of {', '.join(own['read'])} by tokens read"
    if fold.softmax:
        more = "" if fold.alone else ", and of each reader and head the log of the sum of weights"
        yield "kept", f"what is made{more}"


def _weighted(fold: WeightedSum) -> str:
    """The values that are summed, in words."""
    if fold.alone:
        return "the weights alone, as the log of their sum"
    text = f"{fold.values} of each `{fold.read.name}`" if fold.values else "the weights alone"
    text += f"; {fold.sink} enters the total alone" if fold.sink else ""
    text += f"; a weight is 0 with probability {fold.dropout} in training" if fold.dropout else ""
    return text if fold.total is None else f"{text}; the log of the sum of weights is given too"


# --- the docstrings of kernels ---


def equations(fold: WeightedSum) -> list[str]:
    """The formulas of a weighted sum as its kernel computes them, each with its dims, then the
    places in the spec that scores come from."""
    reader, read = fold.reader.name, fold.read.name
    batch = fold.sources[0].type.axes[0].name
    heads = [axis.name for axis in fold.heads]
    found = [f"{dot.name} = {_product(fold, dot.reader, dot.read)}" for dot in fold.dots]
    pair = " ".join([batch, reader, *heads, read])
    found.append(f"score = {formula(fold.pairs, fold.pairs.outputs['score'])}  [{pair}]")
    where = [bound_text(each, reader, read) for each in fold.bounds]
    if "visible" in fold.pairs.outputs:
        where.append(formula(fold.pairs, fold.pairs.outputs["visible"]))
    if fold.choice is not None:
        where.append(f"{read} in what {reader} has chosen")
    alone = f", {fold.sink} in the total alone" if fold.sink else ""
    weight = f"softmax[{read}](score{alone})" if fold.softmax else "score"
    if fold.multiplied:
        made = formula(fold.pairs, fold.pairs.outputs["factor"])
        found.append(f"factor = {made}  [{pair}]")
        weight = f"{weight} * factor"
    if fold.dropout is not None:
        found.append(f"kept = 0 with probability {fold.dropout}, else 1 / (1 - {fold.dropout})")
        weight = f"{weight} * kept"
    summed = f"{weight} * {fold.values}" if fold.values else weight
    dim = fold.source(fold.values).dim if fold.values else None
    made = " ".join([batch, reader, *heads, *([dim.name] if dim is not None else [])])
    only = f" where {' and '.join(where)}" if where else ""
    found += [] if fold.alone else [f"o = sum[{read}]({summed}){only}  [{made}]"]
    if fold.total is not None:
        own = " ".join([batch, *heads, reader])
        found.append(f"lse = log(sum[{read}](exp(score))){only}  [{own}]")
    return [*found, *places(fold)]


def slopes(fold: WeightedSum, roles: Collection[str]) -> list[str]:
    """The same of the gradients of sources of some roles."""
    assert fold.slopes is not None
    dim = fold.source(fold.values).dim if fold.values else None
    arriving = f"sum[{dim.name}](d.o * {fold.values})" if dim is not None else "d.o"
    kept = " * kept" * (fold.dropout is not None)
    arriving += kept
    if fold.alone:
        found = ["d.score = exp(score - lse) * -delta, delta = -d.lse"]
    elif fold.softmax:
        times = " * factor" * fold.multiplied
        less = " - d.lse" * (fold.total is not None)
        delta = f"delta = sum of d.o * o{less}"
        found = [f"d.score = exp(score - lse) * ({arriving}{times} - delta), {delta}"]
        found += [f"d.factor = exp(score - lse) * {arriving}"] * fold.multiplied
    else:
        found = [f"d.score = {arriving}"]
    for name, id in fold.slopes.outputs.items():
        found.append(f"{name} = {formula(fold.slopes, id)}")
    along = fold.read.name if "read" not in roles else fold.reader.name
    sums: dict[str, list[str]] = {}
    for dot in fold.dots:
        own, other = (dot.reader, dot.read) if "read" not in roles else (dot.read, dot.reader)
        if dot.square:
            continue
        if own in fold.learned and cotangent(dot.name) in fold.slopes.outputs:
            sums.setdefault(own, []).append(f"{cotangent(dot.name)} * {other}")
    if "read" in roles and fold.values in fold.learned:
        weight = ("exp(score - lse)" if fold.softmax else "score") + kept
        weight += " * factor" * fold.multiplied
        sums.setdefault(fold.values or "", []).append(f"{weight} * d.o")
    return found + [f"d.{own} = sum[{along}]({' + '.join(of)})" for own, of in sums.items()]


def _product(fold: WeightedSum, reader: str, read: str) -> str:
    dim = fold.source(reader).dim
    return f"sum[{dim.name}]({reader} * {read})" if dim is not None else f"{reader} * {read}"


def places(fold: WeightedSum) -> list[str]:
    """The lines of a spec that a sum comes from, in order."""
    return lines_of([*([fold.span] if fold.span else []), *(n.span for n in fold.pairs if n.span)])

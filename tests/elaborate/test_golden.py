"""What every `@` of every bundled spec joins: one golden file a spec, and the closed set of ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from archc.elaborate.elaborate import elaborate
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.source import Source
from archc.specfile import bundled, import_source, read
from archc.syntax import tree
from archc.syntax.parse import parse

GOLDEN = Path(__file__).parents[1] / "golden" / "products"
PAPERS = Path(__file__).parents[1] / "newcomers"


@cache
def layers(spec: str) -> list[ir.Layer]:
    """Every layer that a bundled spec declares; no test changes one."""
    return layers_of(parse(read(spec)))


def layers_of(file: tree.File) -> list[ir.Layer]:
    """Every layer that a file declares."""
    names = [decl.name for decl in file.decls if decl.kind != "function"]
    return [elaborate(file, name, {}, import_source) for name in names]


def nodes(graph: Graph) -> Iterator[Node]:
    """Every node of a graph and of the bodies in it."""
    for node in graph:
        yield node
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            yield from nodes(node.op.body)


def everything(layer: ir.Layer, seen: set[int]) -> Iterator[Node]:
    """Every node of a layer and of those it calls, each layer once."""
    if id(layer) not in seen:
        seen.add(id(layer))
        for node in nodes(layer.graph):
            yield node
            if isinstance(node.op, ir.Call):
                yield from everything(node.op.callee, seen)


def joins(layer: ir.Layer) -> Iterator[str]:
    """`14: d, d r -> r` for each product that sums something: the line, and its axes by name."""
    for node in nodes(layer.graph):
        if not isinstance(node.op, ir.Contract) or len(node.operands) != 2 or node.span is None:
            continue
        implicit = {axis.name for axis in node.type.axes if axis.kind == "batch"} | {"batch", "t"}
        kept = {label for label, _ in node.op.out}
        ins = [
            " ".join(x.rstrip("*") for x in labels if x not in implicit) for labels in node.op.ins
        ]
        out = " ".join(str(axis) for _, axis in node.op.out if axis.name not in implicit)
        over = dict.fromkeys(x for labels in node.op.ins for x in labels if x not in kept)
        summed = f"over {' '.join(over)}" if over else "outer"
        yield f"{node.span.line}: [{ins[0]}] @ [{ins[1]}] = [{out}]  {summed}"


@pytest.mark.parametrize("spec", bundled())
def test_every_product_joins_what_its_formula_means(
    spec: str, golden: Callable[[Path, str], None]
) -> None:
    lines = []
    for layer in layers(spec):
        lines += [layer.name, *(f"    {line}" for line in joins(layer))]
    golden(GOLDEN / f"{spec}.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("spec", bundled())
def test_no_other_op_exists(spec: str) -> None:
    for layer in layers(spec):
        assert {type(node.op) for node in everything(layer, set())} <= set(ir.OPS)


@pytest.mark.slow
def test_every_op_is_needed() -> None:
    """An op that no bundled spec lowers to, and none of a paper, would be one too many."""
    files = [parse(read(spec)) for spec in bundled()]
    files += [parse(Source(path.name, path.read_text("utf-8"))) for path in PAPERS.glob("*.arch")]
    made = [layer for file in files for layer in layers_of(file)]
    used = {type(node.op) for layer in made for node in everything(layer, set())}
    assert used == set(ir.OPS)

"""Products with matrices that are too large to be taken whole: sums over blocks of a dim.

    if B_K * B_V <= 16384:
        product = tl.dot(x, S)
    else:
        product = tl.zeros((ROWS, B_V))
        for first in range(0, K, B_K_PART):
            product += tl.dot(tile_part(x, ...), S_part)

A matrix between two dims, as a state, comes from memory; whole, it is in shared memory while it is
multiplied. Which way is taken is known when a kernel is compiled, and the other one is then nowhere
in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from archc.backends.triton.algebra import product, text_of
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.tile import Index, Tile

from archc.dims import Axis
from archc.ir.graph import Node
from archc.ir.kernel import WHOLE

Own = dict[str, Index]


def matrices(kernel: KernelWriter, node: Node, owns: Sequence[Own]) -> list[int]:
    """The operands of a product that are matrices between two dims."""
    graph, found = kernel.frame.graph, []
    for place, (operand, own) in enumerate(zip(node.operands, owns, strict=True)):
        axes = [a for a in graph[operand].type.axes if own[a.name].label]
        found += [place] if kernel.is_matrix(axes, own) else []
    return found


def by_blocks(
    kernel: KernelWriter, node: Node, owns: Sequence[Own], tiles: Sequence[Tile],
    summed: Mapping[str, Axis], order: tuple[str, ...], large: Sequence[int],
    exact: bool,
) -> Tile:  # fmt: skip
    """The product of two tiles of which those in `large` are matrices between dims: whole, or by
    blocks of a dim that is summed."""
    label = next((x for x in summed if all(x in tiles[each].labels for each in large)), None)
    others = [tile for each, tile in enumerate(tiles) if each not in large]
    a, b = tiles
    if label is None or any(len(x.labels) != 2 or label not in x.labels for x in others):
        return product(kernel, a, b, list(summed), order, node.name, exact)
    with kernel.branch(f"if {kernel.area(tiles[large[0]])} <= {WHOLE}:"):
        made = product(kernel, a, b, list(summed), order, node.name, exact)
    with kernel.branch("else:"):
        shape = kernel.shape(made.labels)
        kernel.writer.line(f"{made.text} = tl.zeros({shape}, tl.float32)")
        with kernel.block_by_block(summed[label]) as index:
            parts = _parts(kernel, node, owns, tiles, large, label, index)
            rest = [index.label or "" if each == label else each for each in summed]
            done = product(kernel, *parts, rest, made.labels, None, exact)
            kernel.writer.line(f"{made.text} += {text_of(kernel, done, made.labels)}")
    return made


def _parts(
    kernel: KernelWriter, node: Node, owns: Sequence[Own], tiles: Sequence[Tile],
    large: Sequence[int], label: str, index: Index,
) -> tuple[Tile, Tile]:  # fmt: skip
    """Both factors at some indices of an axis: from memory again, or of what is in registers."""
    made = []
    for each, (operand, own, tile) in enumerate(zip(node.operands, owns, tiles, strict=True)):
        if each in large:
            there = {n: index if i.label == label else i for n, i in own.items()}
            made.append(kernel.pull_stored(operand, there))
        else:
            made.append(_columns(kernel, tile, label, index))
    return made[0], made[1]


def _columns(kernel: KernelWriter, x: Tile, label: str, index: Index) -> Tile:
    """Some columns of what is in registers."""
    (row,) = (each for each in x.labels if each != label)
    x = kernel.arranged(x, (row, label))
    kernel.pieces.add("tile_part")
    inner = index.label or ""
    sizes = ", ".join(kernel.lengths[each] for each in (row, label, inner))
    text = f"tile_part({x.text}, {index.text}, {sizes})"
    return replace(x.renamed({label: inner}), text=kernel.let(f"{x.text}_part", text))

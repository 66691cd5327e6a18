"""Sums of products over axes as lines of a kernel: of matrices, of tiles, or index by index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from archc.backends.triton.algebra import masked, product, reduced, text_of
from archc.backends.triton.blocks import by_blocks, matrices
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.tile import Index, Tile

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.kernel import POINTWISE

Place = Mapping[str, Index]
Own = dict[str, Index]


def contract(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`product = tl.dot(a, b)`, or a sum of elementwise products."""
    out = {label: place[axis.name] for label, axis in node.op.out}
    owns, summed = _places(kernel, node, out)
    if len(owns) == 1:
        x = kernel.pull_stored(node.operands[0], owns[0])
        if not summed:
            return x
        x = masked(kernel, kernel.widened(x), tuple(summed))
        for label in summed:
            x = reduced(kernel, x, label)
        return x
    order = tuple(index.label for index in out.values() if index.label)
    pointwise = not kernel.has_few and all(_is_pointwise(kernel, o) for o in node.operands)
    if _wide(owns, summed) and pointwise:
        return _in_turn(kernel, node, owns, summed)
    if _wide(owns, summed) and any(map(kernel.is_deep, node.operands)):
        made = kernel.attempt(lambda: _in_turn(kernel, node, owns, summed))
        if made is not None:
            return made
    tiles = [kernel.pull_stored(o, own) for o, own in zip(node.operands, owns, strict=True)]
    exact = kernel.frame.outer is None and node.id in kernel.kernel.in_parts
    large = matrices(kernel, node, owns)
    if large and all(_is_pointwise(kernel, node.operands[each]) for each in large):
        return by_blocks(kernel, node, owns, tiles, summed, order, large, exact)
    return product(kernel, tiles[0], tiles[1], list(summed), order, node.name, exact)


def _places(
    kernel: KernelWriter, node: Node, out: Mapping[str, Index]
) -> tuple[list[Own], dict[str, Axis]]:
    """Where each operand is wanted, and the labels that are summed with their axes."""
    graph, taken = kernel.frame.graph, {index.label for index in out.values()}
    owns: list[Own] = []
    summed: dict[str, Axis] = {}
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        own: Own = {}
        for label, axis in zip(labels, graph[operand].type.axes, strict=True):
            if label in out:
                own[axis.name] = out[label]
                continue
            given = kernel.indices.get(axis.name) or kernel.indices.get(label)
            if given is not None and not given.label:
                raise NotInKernel(f"sum over {axis.name}, of which a program has one index")
            inner = f"{label}'" if label in taken else label
            index = replace(kernel.whole(axis), label=inner)
            kernel.lengths[inner] = kernel.block(axis)
            kernel.bounds[inner] = index.mask
            own[axis.name] = index
            summed[inner] = axis
        owns.append(own)
    return owns, summed


def _wide(owns: list[Own], summed: Mapping[str, Axis]) -> bool:
    """Whether a tile of three dims would hold the products, and no product of matrices does."""
    first, second = ({i.label for i in own.values() if i.label} for own in owns)
    matrices = len(summed) == 1 and len(first) == len(second) == 2 and len(first | second) == 3
    return bool(summed) and len(first | second) > 2 and not matrices


def _is_pointwise(kernel: KernelWriter, id: int) -> bool:
    """Whether a value is made from memory without a look at other elements."""
    frame = kernel.frame
    node = frame.graph[id]
    if isinstance(node.op, ir.Input):
        return frame.captured is None or node.op.name not in (frame.states or {})
    if frame.outer is None and id in kernel.kernel.loads and id not in kernel.own:
        return True
    renamed = isinstance(node.op, ir.Contract) and len(node.op.ins) == 1
    renamed = renamed and len(node.op.out) == len(set(node.op.ins[0])) == len(node.op.ins[0])
    pointwise = isinstance(node.op, POINTWISE) or renamed
    return pointwise and all(_is_pointwise(kernel, operand) for operand in node.operands)


def _in_turn(kernel: KernelWriter, node: Node, owns: list[Own], summed: dict[str, Axis]) -> Tile:
    """`for k in range(K): total += a * b`: the elements of one index after the other."""
    label, axis = next(iter(summed.items()))
    rest = [other for other in summed if other != label]
    total, k = kernel.names.fresh(node.name or "total"), kernel.names.fresh("k")
    one = Index(k)
    own = [
        {name: one if index.label == label else index for name, index in place.items()}
        for place in owns
    ]
    found = (index.label for place in own for index in place.values())
    order = tuple(dict.fromkeys(each for each in found if each and each not in rest))
    kernel.see(Tile("", order))
    shape = ", ".join(kernel.lengths[each] for each in order)
    kernel.writer.line(f"{total} = tl.zeros(({shape}{',' * (len(order) == 1)}), tl.float32)")
    kept, texts = dict(kernel.made), dict(kernel.texts)
    with kernel.writer.block(f"for {k} in range({kernel.size_text(axis)}):"):
        a, b = (kernel.pull(o, at) for o, at in zip(node.operands, own, strict=True))
        made = product(kernel, a, b, rest, order, None)
        made = kernel.arranged(made, tuple(each for each in order if each in made.labels))
        kernel.writer.line(f"{total} += {text_of(kernel, made, order)}")
    kernel.made, kernel.texts = kept, texts
    return Tile(total, order, clean=made.clean)

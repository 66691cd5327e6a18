"""Numbers, elementwise functions, sums and products as lines of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import sympy
from archc.backends.triton.elementwise import PROMOTING, TEXT, TILED
from archc.backends.triton.kernel import KernelWriter
from archc.backends.triton.lines import NotInKernel
from archc.backends.triton.naming import size_name
from archc.backends.triton.tile import BOOL, INT, REAL, Index, Tile, along, joined, spread

from archc.dims import Axis
from archc.functions.definitions import FUNCTIONS
from archc.ir.graph import Node

Place = Mapping[str, Index]

REDUCING = {
    "sum": ("tl.sum", "0.0"),
    "mean": ("tl.sum", "0.0"),
    "max": ("tl.max", "float('-inf')"),
    "min": ("tl.min", "float('inf')"),
    "prod": ("tl.reduce", "1.0"),
}
"""Functions that take an axis away, and what changes nothing for them."""


def text_of(kernel: KernelWriter, tile: Tile, labels: tuple[str, ...]) -> str:
    """A tile as an operand with these dims, of which it may lack some."""
    own = tuple(label for label in labels if label in tile.labels)
    return spread(kernel.arranged(tile, own), labels)


def masked(kernel: KernelWriter, tile: Tile, over: tuple[str, ...], fill: str = "0.0") -> Tile:
    """The tile with `fill` where an index is off one of the axes `over`."""
    for label in over:
        bound = kernel.bounds.get(label, "")
        if label not in tile.labels or not bound or (label in tile.clean and fill == "0.0"):
            continue
        where = along(kernel.inside(label, bound), label, tile.labels)
        text = kernel.let(f"{tile.text}_kept", f"tl.where({where}, {tile.text}, {fill})")
        tile = replace(tile, text=text, clean=tile.clean | ({label} if fill == "0.0" else set()))
    return tile


def elementwise(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`y = tl.exp(x)`."""
    fn = node.op.fn
    tiles = [kernel.pull(o, part(kernel, o, place)) for o in node.operands]
    labels = joined(tuple(kernel.order), *tiles)
    texts = [text_of(kernel, tile, labels) for tile in tiles]
    kind = {"real": REAL, "int": INT, "bool": BOOL}[node.type.dtype]
    clean, finite = _off_axis(fn, tiles)
    if all(_is_number(tile.text) for tile in tiles) and fn == "real":
        return replace(tiles[0], kind=REAL, text=f"{float(tiles[0].text)}")
    if fn == "real" and tiles[0].kind == BOOL:
        return Tile(kernel.let("chosen", f"tl.where({texts[0]}, 1.0, 0.0)"), labels, REAL)
    if kind == REAL and fn not in PROMOTING:
        texts = [
            f"({text}).to(tl.float32)" if tile.kind == INT and not _is_number(text) else text
            for tile, text in zip(tiles, texts, strict=True)
        ]
    written = TEXT[fn](*map(_operand, texts))
    kernel.pieces |= {piece for piece in TILED if f"{piece}(" in written}
    made = kernel.let(node.name or _word(fn), written)
    return Tile(made, labels, kind, clean, finite, **of_product(labels, *tiles))


def of_product(labels: tuple[str, ...], *tiles: Tile) -> dict[str, bool]:
    """Whether what is made element by element of some tiles is made from a product of matrices, and
    whether all such are turned around in it."""
    found = [tile for tile in tiles if tile.dot and len(tile.labels) == len(labels)]
    turned = [(tile.labels != labels) != tile.turned for tile in found]
    return {"dot": bool(found), "turned": bool(found) and all(turned)}


def _operand(text: str) -> str:
    """A text in brackets, unless it is a name, a number or a part of a tile."""
    plain = text.replace(".", "").replace("_", "").isalnum() or "[" in text
    return text if plain else f"({text})"


def _is_number(text: str) -> bool:
    return text.replace(".", "").replace("-", "").replace("e", "").isdigit()


def _word(fn: str) -> str:
    return {"add": "sum", "mul": "scaled", "neg": "minus", "div": "ratio", "sub": "diff"}.get(
        fn, fn
    )


def _off_axis(fn: str, tiles: list[Tile]) -> tuple[frozenset[str], frozenset[str]]:
    """Labels along which the result is 0 off the axis, and those along which it is finite."""
    labels = frozenset(label for tile in tiles for label in tile.labels)
    zero = frozenset(c for c in labels if all(c in t.clean for t in tiles if c in t.labels))
    finite = frozenset(c for c in labels if all(c in t.finite for t in tiles if c in t.labels))
    if any("inf')" in tile.text for tile in tiles):
        return frozenset(), frozenset()
    if fn == "mul":
        return finite & frozenset(c for tile in tiles for c in tile.clean), finite
    if fn == "div" and _is_number(tiles[1].text):
        return tiles[0].clean, finite
    if FUNCTIONS[fn].unbounded:
        return frozenset(), zero if fn == "exp" else frozenset()
    if fn == "where":
        return tiles[1].clean & tiles[2].clean, finite
    if FUNCTIONS[fn].zero_at_zero:
        return frozenset.intersection(*(tile.clean for tile in tiles)), finite
    return frozenset(), finite


def part(kernel: KernelWriter, operand: int, place: Place) -> dict[str, Index]:
    """The places of an operand's own axes."""
    names = kernel.frame.graph[operand].type.names
    return {name: index for name, index in place.items() if name in names}


def constant(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    value = node.op.value
    if value in (sympy.oo, -sympy.oo):
        return Tile(f"float('{'-' if value < 0 else ''}inf')")
    if value.is_Integer and node.type.dtype == "int":
        return Tile(str(value))
    if value.is_number:
        return Tile(repr(float(value)))
    return Tile(kernel.let("factor", number_text(value)))


def number_text(value: sympy.Expr) -> str:
    """A number in sizes as Python computes it."""
    if isinstance(value, sympy.Add | sympy.Mul):
        sign = " + " if isinstance(value, sympy.Add) else " * "
        return "(" + sign.join(number_text(arg) for arg in value.args) + ")"
    if isinstance(value, sympy.Pow):
        return f"({number_text(value.base)} ** {number_text(value.exp)})"
    if value.is_Symbol:
        return size_name(value)
    if value.is_Integer:
        return str(value)
    if value.is_number:
        return repr(float(value))
    raise NotInKernel(f"the number {value}")


def position(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    axis = node.op.axis
    index, (first, _) = place[axis.name], kernel.borders(axis)
    text = index.text if first == "0" else f"({index.text} - {first})"
    return Tile(text, (index.label,) if index.label else (), INT)


def delta(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    row, col = place[node.op.row.name], place[node.op.col.name]
    labels = tuple(index.label for index in (row, col) if index.label)
    one = Tile(row.text, (row.label,) if row.label else (), INT)
    two = Tile(col.text, (col.label,) if col.label else (), INT)
    text = f"tl.where({spread(one, labels)} == {spread(two, labels)}, 1.0, 0.0)"
    return Tile(kernel.let("same", text), labels)


def reduce(kernel: KernelWriter, node: Node, place: Place) -> Tile:
    """`x_sum = tl.sum(x, 1)`, of what lies on the axes."""
    turn = _turn(kernel, node, place)
    if turn is not None:
        return _sum_in_turn(kernel, node, place, turn)
    x = kernel.pull(node.operands[0], place)
    fn, fill = REDUCING[node.op.fn]
    x = masked(kernel, x, node.op.axes, fill)
    for axis in node.op.axes:
        if axis not in x.labels:
            raise NotInKernel(f"sum over {axis}, of which a program has one index")
        x = reduced(kernel, x, axis, fn)
    if node.op.fn == "mean":
        operand = kernel.frame.graph[node.operands[0]].type
        size = sympy.Mul(*(operand.axis(axis).size for axis in node.op.axes))
        x = replace(x, text=kernel.let("mean", f"{x.text} / ({kernel.size(size)})"))
    return x


def _turn(kernel: KernelWriter, node: Node, place: Place) -> Axis | None:
    """The dim that is summed index by index, where a tile would have three."""
    id = node.operands[0]
    axes = kernel.frame.graph[id].type.axes
    tiled = [a for a in axes if a.name not in kernel.indices and (place.get(a.name) or ALL).label]
    within = [axis for axis in kernel.dims(id) if axis.name in node.op.axes]
    wide = len(tiled) > 2 and len(within) > 0 and len(tiled) > len(node.op.axes)
    return within[0] if wide and node.op.fn == "sum" and kernel.is_deep(id) else None


ALL = Index("", "all")


def _sum_in_turn(kernel: KernelWriter, node: Node, place: Place, axis: Axis) -> Tile:
    """`for k in range(K): total += tl.sum(x, 1)`."""
    order = tuple(index.label for index in place.values() if index.label)
    total, tile = kernel.names.fresh("total"), Tile("", order)
    kernel.see(tile)
    shape = ", ".join(kernel.lengths[label] for label in order)
    kernel.writer.line(f"{total} = tl.zeros(({shape}{',' * (len(order) == 1)}), tl.float32)")
    with kernel.one_by_one(axis) as one:
        x = kernel.pull(node.operands[0], {**place, **one})
        rest = [name for name in node.op.axes if name != axis.name]
        for name in rest:
            x = reduced(kernel, masked(kernel, x, (name,)), name)
        kernel.writer.line(f"{total} += {text_of(kernel, x, order)}")
    return Tile(total, order)


def reduced(kernel: KernelWriter, x: Tile, label: str, fn: str = "tl.sum") -> Tile:
    given = f"{x.text}, {x.labels.index(label)}"
    if fn == "tl.reduce":
        kernel.pieces.add("tile_times")
        given = f"{given}, tile_times"
    text = kernel.let(f"{x.text}_{fn[3:]}", f"{fn}({given})")
    return Tile(text, tuple(own for own in x.labels if own != label), x.kind, x.clean - {label})


def product(
    kernel: KernelWriter, a: Tile, b: Tile, summed: list[str], order: tuple[str, ...],
    name: str | None, exact: bool = False,
) -> Tile:  # fmt: skip
    """The sum of a product over labels: a product of matrices where it is one, best with its dims
    in that order. `exact`: it is in float32 whatever the data are."""
    for label in summed:
        if label not in a.clean | b.clean:
            a = masked(kernel, a, (label,))
        # what is 0 in one factor must be finite in the other
        b = masked(kernel, b, (label,)) if label not in b.clean and kernel.bounds.get(label) else b
        a = masked(kernel, a, (label,)) if label not in a.clean and kernel.bounds.get(label) else a
    for label in summed:
        a = a if label in a.labels else with_label(kernel, a, label)
        b = b if label in b.labels else with_label(kernel, b, label)
    rows = [label for label in a.labels if label not in summed]
    cols = [label for label in b.labels if label not in summed]
    if len(summed) == 1 and len(rows) == len(cols) == 1 and rows != cols:
        return dot(kernel, a, b, summed[0], order, name, exact)
    a, b = kernel.widened(a), kernel.widened(b)
    labels = joined(tuple(kernel.order), a, b)
    text = kernel.let(
        name or "scaled", f"{text_of(kernel, a, labels)} * {text_of(kernel, b, labels)}"
    )
    x = Tile(text, labels, REAL, a.clean | b.clean)
    for label in summed:
        x = reduced(kernel, x, label)
    return x


def dot(
    kernel: KernelWriter, a: Tile, b: Tile, label: str, order: tuple[str, ...], name: str | None,
    in_parts: bool = False,
) -> Tile:  # fmt: skip
    """A product of matrices, with its dims in that order if it may be. No sum of an earlier one is
    turned around: the other factor is, and the product comes out turned. `in_parts`: what the data
    have no room for is multiplied by itself."""
    exact = kernel.frame.exact
    a, b = (kernel.widened(x) if exact else x for x in (a, b))
    (row,) = (own for own in a.labels if own != label)
    (col,) = (own for own in b.labels if own != label)
    turned = turns(a, b, label), turns(b, a, label)
    if turned[1] < turned[0] or (turned[0] == turned[1] and order == (col, row)):
        a, b, row, col = b, a, col, row
    if min(turned) >= LEFT:
        raise NotInKernel("both factors are products of matrices, and the left one turned around")
    left, right = kernel.arranged(a, (row, label)), kernel.arranged(b, (label, col))
    kind = "" if exact else ".to(DOT)"
    text = f"tl.dot({left.text}{kind}, {right.text}{kind}, input_precision=PRECISION)"
    if in_parts and not exact:
        kernel.pieces.add("tile_exact_dot")
        text = f"tile_exact_dot({left.text}, {right.text}, DOT, PRECISION)"
    clean = (a.clean & {row}) | (b.clean & {col})
    return Tile(kernel.let(name or "product", text), (row, col), REAL, clean, dot=True)


LEFT, RIGHT = 2, 1
"""What it counts to turn a product of matrices around for the left, or the right factor of another:
the left one is read from registers, and some compilers read it wrong (`quirks.TURNED`)."""


def turns(left: Tile, right: Tile, label: str) -> int:
    """The operands of left @ right that come from a product of matrices and are transposed."""
    before = left.dot and (left.labels[0] == label) != left.turned
    after = right.dot and (right.labels[0] != label) != right.turned
    return LEFT * before + RIGHT * after


def with_label(kernel: KernelWriter, x: Tile, label: str) -> Tile:
    """The tile with a further dim along which it is the same."""
    kernel.see(Tile("", (label,)))
    labels = (label, *x.labels)
    return replace(x, text=kernel.let("wide", kernel.broadcast(x, labels)), labels=labels)

"""`archc show --stage cost`: what a layer and each layer that it calls have and take."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from archc.algebra.absorb import absorb
from archc.algebra.scales import scaled_queries
from archc.algebra.simplify import simplify
from archc.commands.profile import (
    COUNTED,
    TOKENS,
    chosen_sizes,
    numbers,
    parameters_of,
    with_unit,
)
from archc.commands.stages import layer_and_rest
from archc.diagnostics import fail
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.count import Cost, costs
from archc.ir.sizes import Number, callee_sizes, evaluate, resolve_sizes

LENGTH = "T"
"""The name of the number of tokens in `--set`, where the layer has no size of that name."""


@dataclass(frozen=True)
class Row:
    """A layer at its `path` in the one that is asked for: its parameters, the operations a token,
    the bytes that it keeps of a sequence, and those for each token of it, with all that it calls.
    `depth` is how many calls lead to it."""

    path: str
    layer: str
    depth: int
    parameters: int
    flops: int
    state: int
    cache: int


@dataclass(frozen=True)
class Costs:
    """The rows of a spec, the whole first, at these sizes and for so many tokens."""

    rows: tuple[Row, ...]
    sizes: Mapping[str, Number]
    tokens: int


def costs_of(spec: str, given: Mapping[str, Any]) -> Costs:
    """The costs of a spec at the given sizes. Raises ArchError if the spec or a size is wrong."""
    layer, rest = layer_and_rest(spec, given, (LENGTH,))
    tokens = rest.get(LENGTH, TOKENS)
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1:
        raise fail("E0503", f"`{LENGTH}` must be a whole number above 0, but it is {tokens}")
    simpler = absorb(scaled_queries(simplify(layer)))
    sizes = resolve_sizes(layer, chosen_sizes(layer))
    counts = dict(parameters_of(layer, sizes))
    return Costs(tuple(_rows(simpler, costs(simpler), sizes, tokens, counts)), sizes, tokens)


def _rows(
    layer: ir.Layer,
    found: Mapping[int, Cost],
    sizes: Mapping[str, Number],
    tokens: int,
    counts: Mapping[str, int],
    path: str = "",
    depth: int = 0,
) -> Iterator[Row]:
    """A layer, then those that it calls."""
    inside = sum(n for name, n in counts.items() if name.startswith(path))
    made = numbers(found[id(layer)], sizes, tokens)
    yield Row(path.rstrip("."), layer.name, depth, inside, *made)
    for _, call in layer.calls:
        lengths = {**sizes, str(TIME.size): tokens}
        length = int(evaluate(dict(call.axes).get(TIME.name, TIME).size, lengths))
        inner, inside = callee_sizes(call, sizes), f"{path}{call.path}."
        yield from _rows(call.callee, found, inner, length, counts, inside, depth + 1)


# --- as text and as data ------------------------------------------------------------------------


def as_text(found: Costs) -> str:
    """A table; layers that follow one another and cost the same share a line."""
    sizes = ", ".join(f"{name}={value}" for name, value in found.sizes.items())
    head = ("layer", "parameters", "flops a token", "state", "cache a token")
    table = [head, *(_cells(name, row) for name, row in _lines(found.rows))]
    widths = [max(len(line[at]) for line in table) for at in range(len(head))]
    lines = [
        "  ".join([f"{line[0]:<{widths[0]}}"]
                  + [f"{cell:>{w}}" for cell, w in zip(line[1:], widths[1:], strict=True)])
        for line in table
    ]  # fmt: skip
    said = textwrap.wrap(
        f"{found.tokens} tokens; {sizes}" if sizes else f"{found.tokens} tokens", 100
    )
    return "\n".join([*said, "", *lines, "", *textwrap.wrap(COUNTED, 100)]) + "\n"


def as_json(found: Costs) -> dict[str, Any]:
    """Every layer by its path, in whole numbers."""
    return {
        "tokens": found.tokens,
        "sizes": dict(found.sizes),
        "layers": [asdict(row) for row in found.rows],
    }


def _cells(name: str, row: Row) -> tuple[str, ...]:
    kept = (with_unit(n, "B") if n else "-" for n in (row.state, row.cache))
    return (name, f"{row.parameters:,}" if row.parameters else "-", with_unit(row.flops), *kept)


def _lines(rows: Sequence[Row], name: str = "") -> Iterator[tuple[str, Row]]:
    """Each line's title, and its row; `rows` are one layer and all inside it."""
    top, *inside = rows
    yield f"{'  ' * top.depth}{name}{top.layer}", top
    starts = [at for at, row in enumerate(inside) if row.depth == top.depth + 1]
    trees = [inside[a:b] for a, b in pairwise([*starts, len(inside)])]
    for _, same in groupby(trees, _without_path):
        alike = list(same)
        first, last = (tree[0].path.removeprefix(f"{top.path}.") for tree in (alike[0], alike[-1]))
        called = first if len(alike) == 1 else f"{first} ... {last} ({len(alike)})"
        yield from _lines(alike[0], f"{called}: ")


def _without_path(tree: Sequence[Row]) -> list[Row]:
    """A layer and all inside it, with paths from it on."""
    return [replace(row, path=row.path.removeprefix(tree[0].path)) for row in tree]

"""Facts about a spec that need no run: its source, its class, and its costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from archc.algebra.absorb import absorb
from archc.algebra.scales import scaled_queries
from archc.algebra.simplify import simplify
from archc.commands.catalogue import doc_parts
from archc.commands.stages import layer_of
from archc.ir import layer as ir
from archc.ir.count import Cost, cost
from archc.ir.initial import all_params
from archc.ir.sizes import Number, evaluate, resolve_sizes
from archc.recurrence.analysis.classify import summary
from archc.show.amounts import in_short

SIZES = {"d": 1024, "H": 8, "G": 2, "e": 1024, "f": 4096, "N": 8, "n": 2, "vocab": 32000}
"""Sizes that costs are given for, where a spec has no default of its own; any other name is 64."""

TOKENS = 4096
"""How many tokens there are, for what depends on it."""

STATE_BYTES, VALUE_BYTES = 4, 2
"""A number of a recurrent state is a float32, any other a bfloat16."""

COUNTED = (
    "Flops: 2 for a multiply-add of a product, 1 an element for anything else;"
    " masked pairs count, experts and memories that are not chosen do not."
    " State: what is kept of a sequence however long it is; cache: for each of its tokens."
    " Recurrent states in float32, the rest in bfloat16."
)

CONDITIONS = (
    f"With {TOKENS} tokens and a spec's own defaults; where it has none,"
    f" {', '.join(f'{name}={size}' for name, size in SIZES.items())}. {COUNTED}"
)


@dataclass(frozen=True)
class Profile:
    """A spec's layer: one line about it, the `source` it names, its class in words, and its cost.

    `sizes` are those that had to be chosen for the cost, which is in numbers of parameters,
    operations a token, bytes a sequence and bytes for each token of it.
    """

    name: str
    layer: ir.Layer
    about: str
    source: str
    memory: str
    sizes: dict[str, int]
    parameters: int
    flops: int
    state: int
    cache: int


def profile(spec: str) -> Profile:
    """The profile of the layer that `spec` names. Raises ArchError if the spec is wrong."""
    layer = layer_of(spec, {})
    about, source = doc_parts(layer.doc)
    simpler = absorb(scaled_queries(simplify(layer)))
    chosen = chosen_sizes(layer)
    sizes = resolve_sizes(layer, chosen)
    parameters = sum(count for _, count in parameters_of(layer, sizes))
    made = numbers(cost(simpler), sizes, TOKENS)
    return Profile(spec, layer, about, source, summary(simpler), chosen, parameters, *made)


def chosen_sizes(layer: ir.Layer) -> dict[str, int]:
    """Values for the arguments of a layer that have none."""
    needed = (a.name for a in layer.args if a.symbol is not None and a.default is None)
    return {name: SIZES.get(name, 64) for name in needed}


def parameters_of(layer: ir.Layer, sizes: Mapping[str, Number]) -> Iterator[tuple[str, int]]:
    """How many numbers each parameter has, by its path. `sizes` must be resolved."""
    for path, param, known in all_params(layer, sizes):
        yield path, prod(int(evaluate(axis.size, known)) for axis in param.axes)


def numbers(found: Cost, given: Mapping[str, Number], tokens: int) -> tuple[int, int, int]:
    """Operations a token, bytes a sequence, bytes a token, for a sequence of so many tokens.
    `given` must be resolved."""
    sizes = dict(given)
    for symbol in found.flops.free_symbols:
        sizes.setdefault(str(symbol), tokens)  # the length of a sequence: T, T_seen, T_m
    flops = evaluate(found.flops, sizes) / tokens
    state = STATE_BYTES * found.state + VALUE_BYTES * found.tail
    cache = VALUE_BYTES * found.cache
    return round(flops), round(evaluate(state, sizes)), round(evaluate(cache, sizes))


def with_unit(number: int, unit: str = "") -> str:
    """`10.7 M`, `541 kB`: three digits."""
    return f"{in_short(number)}{unit}".rstrip()

"""Layer IR -> which of its dims are split over the processes along `tp`, and why others are not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sympy

from archc.ir import layer as ir
from archc.ir.sizes import Number, evaluate
from archc.parallel.placement import (
    Crossing,
    Mark,
    Places,
    Split,
    axes_of_parameters,
    place_of,
    split_parameters,
)


@dataclass(frozen=True)
class HeadPlan:
    """The dims of a layer that are split, and what that makes of its values. `refused` says of
    every other dim of a parameter why it is not."""

    axes: tuple[str, ...]
    places: Places
    refused: Mapping[str, str]

    @property
    def parameters(self) -> dict[int, str]:
        """The parameters that are split, with the dim."""
        marks = self.places.marks
        ids = [n.id for n in self.places.graph if isinstance(n.op, ir.Param)]
        return {id: mark.axis for id in ids if isinstance(mark := marks[id], Split)}


def heads_of(layer: ir.Layer, sizes: Mapping[str, Number]) -> HeadPlan:
    """The plan of a layer that has been simplified: of the dims that can be split the one which
    splits most weights, at least half of them, then further ones that split others. A dim that the
    layer's inputs have is none of them, one that its outputs have comes last."""
    graph, known = layer.graph, axes_of_parameters(layer)
    taken = {axis.name for _, op in layer.inputs for axis in op.type.axes}
    refused = {axis: "the layer is given it whole" for axis in known if axis in taken}
    known = {axis: size for axis, size in known.items() if axis not in taken}
    best: tuple[str, ...] = ()
    every = _weights(layer, sizes, *_axes(layer))
    order = sorted(known, key=lambda axis: (_given_out(layer, axis), -_weights(layer, sizes, axis)))
    for axis in order:
        if axis in best:
            continue
        try:
            tried = _with_kin(layer, known, (*best, axis))
        except Crossing as needed:
            refused[axis] = f"{needed.reason}{place_of(needed.node)}"
            continue
        more = _weights(layer, sizes, *tried) - _weights(layer, sizes, *best)
        if not best and 2 * more < every:
            refused[axis] = f"it is a dim of {more} of {every} weights, and each sum over it waits"
        elif more:
            best = tried
    split = {symbol for axis in best if isinstance(symbol := known[axis], sympy.Symbol)}
    places = Places(graph, split_parameters(layer, best), split)
    return HeadPlan(best, places, {a: why for a, why in refused.items() if a not in best})


def _with_kin(
    layer: ir.Layer, known: Mapping[str, sympy.Expr], axes: tuple[str, ...]
) -> tuple[str, ...]:
    """The axes, with those split along with them. Raises Crossing where these cannot be split."""
    while True:
        split = [symbol for axis in axes if isinstance(symbol := known[axis], sympy.Symbol)]
        try:
            Places(layer.graph, split_parameters(layer, axes), split)
        except Crossing as needed:
            if needed.kin is None or needed.kin in axes or needed.kin not in known:
                raise
            axes = (*axes, needed.kin)
        else:
            return axes


def _given_out(layer: ir.Layer, axis: str) -> bool:
    """Whether an axis is one of the layer's outputs."""
    graph = layer.graph
    return any(axis in graph[id].type.names for id in graph.outputs.values())


def _axes(layer: ir.Layer) -> set[str]:
    return {axis.name for _, param in layer.params for axis in param.axes}


def _weights(layer: ir.Layer, sizes: Mapping[str, Number], *axes: str) -> int:
    """How many weights have one of the axes."""
    found = 0
    for _, param in layer.params:
        if any(axis.name in axes for axis in param.axes):
            count = 1
            for axis in param.axes:
                count *= int(evaluate(axis.size, sizes))
            found += count
    return found


def check_heads(layer: ir.Layer, plan: HeadPlan, sizes: Mapping[str, Number], count: int) -> None:
    """Refuse a number of processes that does not divide what is split. Raises ValueError."""
    known = axes_of_parameters(layer)
    wrong = []
    for axis in plan.axes:
        length = int(evaluate(known[axis], sizes))
        if length % count:
            wrong.append(f"{axis} = {length}")
    if wrong:
        raise ValueError(
            f"{layer.name} cannot be split over {count} ranks along `tp`: "
            f"{count} does not divide {' nor '.join(wrong)}"
        )


@dataclass(frozen=True)
class HeadParts:
    """A part of a layer without parameters that can be computed some heads at a time: `count` parts
    of its inputs and outputs along the dims `inputs` and `outputs`, None for what all parts read,
    with `sizes` in place of the layer's."""

    count: int
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    sizes: Mapping[str, Number]


def head_parts(layer: ir.Layer, sizes: Mapping[str, Number], most: int) -> HeadParts | None:
    """The parts of the first dim of its outputs that all tokens' values have and which can be
    split, at most so many of equal sizes; None where there is none."""
    graph, symbols = layer.graph, dict[str, sympy.Symbol]()
    for _, op in layer.inputs:
        symbols |= {a.name: a.size for a in op.type.axes if isinstance(a.size, sympy.Symbol)}
    types = [graph[id].type for id in graph.outputs.values()]
    for axis in types[0].names:
        names = _alone(layer, symbols, (axis,)) if str(symbols.get(axis)) in sizes else None
        if names is None:
            continue
        every = [{*op.type.names} for _, op in layer.inputs]
        dims = [next((n for n in names if n in own), None) for own in every]
        lengths = {str(symbols[name]): int(sizes[str(symbols[name])]) for name in names}
        count = max(n for n in range(1, most + 1) if not any(x % n for x in lengths.values()))
        if count == 1 or any("t" in own and n is None for own, n in zip(every, dims, strict=True)):
            continue
        inputs = tuple(
            None if name is None else op.type.names.index(name)
            for name, (_, op) in zip(dims, layer.inputs, strict=True)
        )
        outputs = tuple(next(i for i, n in enumerate(t.names) if n in names) for t in types)
        shorter = {name: length // count for name, length in lengths.items()}
        return HeadParts(count, inputs, outputs, {**sizes, **shorter})
    return None


def _alone(
    layer: ir.Layer, symbols: Mapping[str, sympy.Symbol], names: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The dims, with those split along with them, if all outputs have one of them and no value is
    read whole beside a part of it."""
    given: dict[int, Mark] = {}
    for id, op in layer.inputs:
        own = [name for name in names if name in op.type.names]
        given |= {id: Split(own[0])} if own else {}
        if len(own) > 1:
            return None
    try:
        places = Places(layer.graph, given, [symbols[name] for name in names])
    except Crossing as needed:
        kin = needed.kin
        if kin is None or kin not in symbols or kin in names:
            return None
        return _alone(layer, symbols, (*names, kin))
    ends = layer.graph.outputs.values()
    split = all(isinstance(places.marks[id], Split) for id in ends)
    return names if split and not places.sliced else None

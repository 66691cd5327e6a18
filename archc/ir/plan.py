"""The input of a backend: a layer, its origin, and a small instance to check the file on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Any

import sympy

from archc.diagnostics import ArchError
from archc.dims import Axis, free_symbols, substituted
from archc.ir import layer as ir
from archc.ir.choices import leaving_out
from archc.ir.graph import Graph, Node
from archc.ir.sizes import Number, callee_sizes, evaluate, exact_number, plain, resolve_sizes

Expected = Mapping[str, Mapping[int, float]]
"""For each output of a layer, some elements: places in the flattened tensor, and values."""


@dataclass(frozen=True)
class Check:
    """The self-check of a generated file: `sizes` of a small instance and of a larger one for
    timing, the values that the float64 meaning of the layer gave for the small one with so many
    `tokens`, and its slopes there along a few directions. `share`: how much of their range
    parameters are drawn from."""

    sizes: Mapping[str, Number]
    speed_sizes: Mapping[str, Number]
    expected: Expected = field(default_factory=dict)
    slopes: tuple[float, ...] = ()
    tokens: int = 9
    share: float = 1.0


@dataclass(frozen=True)
class Plan:
    """Everything that a file is made from; equal plans give equal bytes.

    `layer` is what the file computes. `command` makes it again, `version` is the compiler's.
    `verified` lists the forms that were checked, each with a bound on its relative error, `unseen`
    the choices that the check does not exercise. Without a `check` the file holds the layer alone.
    `runtime`: whether the file embeds what it calls of the runtime, or imports it from archc;
    `linear`: whether products with parameters are calls of `nn.Linear`; `slots`: whether it reads
    one token of each of several sequences of different lengths, as `own_positions.py` makes it.
    """

    layer: ir.Layer
    version: str = ""
    command: str = ""
    check: Check | None = None
    verified: tuple[tuple[str, float], ...] = ()
    unseen: tuple[str, ...] = ()
    runtime: str = "embed"
    linear: bool = False
    slots: bool = False


Values = dict[sympy.Symbol, sympy.Expr]
Dims = Callable[[Graph], Sequence[sympy.Expr]]

TRIES = 200
"""How many instances are looked at before there is said to be none."""

MOST_STEPS = 20_000
"""How many values of single sizes are tried for them."""

POSITIONS = 128
"""The longest sequence that an instance is run on."""


def examples(layer: ir.Layer, unit: int, tokens: int | None = None) -> Iterator[dict[str, Number]]:
    """Sizes of instances that meet every requirement, their dims around `unit` and mostly
    different, so that a dim taken for another one shows. With `tokens`, those alone for which each
    choice leaves something out of so many; none where the spec has no such sizes."""
    dims = cache(_dims)
    conditions, wishes = [*_conditions(layer, {}, dims, set())], _wishes(layer, unit)
    steps = MOST_STEPS
    if tokens is not None:
        choices = leaving_out(layer, {}, tokens)
        if sympy.false in choices:
            return
        _wish_for_fewer(layer, choices, wishes)
        conditions += (put(choice, {}) for choice in choices)
        steps = MOST_STEPS // 10
    if not {sympy.false, sympy.nan}.isdisjoint(conditions):
        return
    depending = [(condition, condition.free_symbols) for condition in conditions]
    budget = iter(range(steps))
    for given in islice(_choices(layer, wishes, depending, {}, budget), TRIES):
        try:
            sizes = resolve_sizes(layer, given, most=1)
        except ArchError:
            continue
        if _whole(layer, sizes, max(16 * unit, POSITIONS), dims, set()):
            yield sizes


def default_of(arg: ir.Arg) -> sympy.Expr:
    """The default of an argument that has one, as an expression."""
    return arg.default if isinstance(arg.default, sympy.Expr) else exact_number(arg.default)


def default_sizes(layer: ir.Layer) -> dict[str, Number]:
    """The sizes and options of a layer by default, of those that have one."""
    sizes: dict[str, Number] = {}
    for arg in layer.args:
        default = None if arg.symbol is None or arg.default is None else default_of(arg)
        if default is not None and {s.name for s in free_symbols(default)} <= {*sizes}:
            sizes[arg.name] = evaluate(default, sizes)
    return sizes


def _choices(
    layer: ir.Layer,
    wishes: Mapping[str, list[Number | None]],
    conditions: Sequence[tuple[sympy.Basic, set[sympy.Basic]]],
    known: Values,
    budget: Iterator[int],
) -> Iterator[dict[str, Number]]:
    """Values for the arguments, the first of each first; what breaks a condition is not pursued,
    and nothing more once the budget of steps is spent. Conditions come with their symbols."""
    args = [(arg, arg.symbol) for arg in layer.args if arg.symbol is not None]
    if len(known) == len(args):
        yield {arg.name: plain(known[s]) for arg, s in args if known[s].is_number}
        return
    arg, symbol = args[len(known)]
    for wish in wishes[arg.name]:
        if next(budget, None) is None:
            return
        value = exact_number(wish) if wish is not None else put(default_of(arg), known)
        made = {put(each, {symbol: value}) for each, symbols in conditions if symbol in symbols}
        if value is not sympy.nan and made.isdisjoint((sympy.false, sympy.nan)):
            open = [each for each in conditions if symbol not in each[1]]
            open += ((each, each.free_symbols) for each in made)
            yield from _choices(layer, wishes, open, {**known, symbol: value}, budget)


def put(expr: Any, known: Values) -> Any:
    """An expression or condition with values for some of its symbols; nan where it has none, as
    with a division by zero."""
    try:
        made = substituted(expr, known)
    except (TypeError, ValueError, ZeroDivisionError):  # a comparison or remainder without a value
        return sympy.nan
    return sympy.nan if made.has(sympy.zoo, sympy.nan) else made


def _wish_for_fewer(
    layer: ir.Layer, choices: Iterable[sympy.Basic], wishes: dict[str, list[Number | None]]
) -> None:
    """Add small values of the sizes that choices depend on, where they are free."""
    of_choices = {symbol.name for choice in choices for symbol in free_symbols(choice)}
    for arg in layer.args:
        listed = wishes.get(arg.name, [])
        if arg.name in of_choices and len(listed) > 1:
            listed[:] = [*(wish for wish in listed if wish not in (1, 2, 3)), 2, 3, 1]


def _conditions(
    layer: ir.Layer, values: Values, dims: Dims, done: set[tuple]
) -> dict[sympy.Basic, None]:
    """Conditions on the symbols of a layer: its requirements, sizes that are whole numbers, and
    those of the layers it calls. `values` gives the layer's symbols in those of its caller; what is
    `done` has been asked for."""
    key = (id(layer), *values.items())
    if key in done:
        return {}
    done.add(key)
    found = dict.fromkeys(put(r.condition, values) for r in layer.requirements)
    for size in dims(layer.graph):
        found[put(sympy.Eq(sympy.Mod(size, 1), 0), values)] = None
    calls = {(id(call.callee), call.sizes): call for _, call in layer.calls}
    for call in calls.values():
        given = {name: put(expr, values) for name, expr in call.sizes}
        symbols = [arg.symbol for arg in call.callee.args if arg.symbol is not None]
        found |= _conditions(call.callee, {s: given[s.name] for s in symbols}, dims, done)
    return found


def _wishes(layer: ir.Layer, unit: int) -> dict[str, list[Number | None]]:
    """For each argument the values to try, best first; None leaves it at its default."""
    conditions = [r.condition for r in layer.requirements if r.settled]
    fixed = {s for c in conditions if isinstance(c, sympy.Eq) for s in c.free_symbols}
    tables = _tables(layer.graph)
    wishes: dict[str, list[Number | None]] = {}
    required = sized = 0
    for arg in layer.args:
        default = arg.default
        if arg.symbol is None:
            continue
        if default is not None and (arg.symbol in fixed or not arg.symbol.is_integer):
            wishes[arg.name] = [None]
        elif arg.symbol in tables:
            wishes[arg.name] = [POSITIONS]
        elif default is None:
            several = [2, unit, unit + 2, 1]
            turn = max(required - 1, 0) % 3
            wishes[arg.name] = [*several[turn:], *several[:turn]] if required else [2 * unit, unit]
            required += 1
        elif default_of(arg).is_number and default > unit:
            wishes[arg.name] = [_small(int(default), unit, sized % 3), unit, 2, None]
            sized += 1
        else:
            wishes[arg.name] = [None, unit, 2, 1]
    return wishes


def _tables(graph: Graph) -> set[sympy.Basic]:
    """Sizes of tables that have a row for each position, and so bound the length of a sequence;
    those that blocks read too."""
    found: set[sympy.Basic] = set()
    for node in graph:
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            found |= _tables(node.op.body)
        if isinstance(node.op, ir.Gather):
            table, index = (graph[operand] for operand in node.operands)
            rows = table.type.axis(node.op.axis)
            by_token = any(axis.kind == "stream" for axis in index.type.axes)
            if rows.kind == "dim" and by_token and _positional(graph, index):
                found |= rows.size.free_symbols
    return found


def _positional(graph: Graph, node: Node) -> bool:
    """Whether a value is made from positions, not from what was given."""
    sources = [graph[id].op for id in (node.id, *graph.ancestors(node.id))]
    return not any(isinstance(op, ir.Input | ir.Param) for op in sources)


def _small(default: int, unit: int, turn: int) -> int:
    """A small size in place of a default, even because of what is turned in pairs: most for a
    width, then the dims of a head, then a count."""
    if default > 512:
        return (2 + turn) * unit
    return (unit if default > 64 else 2) + 2 * turn


def _whole(
    layer: ir.Layer, sizes: Mapping[str, Number], most: int, dims: Dims, done: set[tuple]
) -> bool:
    """Whether every dim of the layer is a whole number between 1 and `most`, and so on in the
    layers it calls, whatever they add of their own; what is `done` has been asked for."""
    key = (id(layer), *sizes.items())
    if key in done:
        return True
    done.add(key)
    known = [size for size in dims(layer.graph) if {str(s) for s in size.free_symbols} <= {*sizes}]
    lengths = [evaluate(size, sizes) for size in known]
    if not all(isinstance(length, int) and 1 <= length <= most for length in lengths):
        return False
    inner = ((call.callee, callee_sizes(call, sizes)) for _, call in layer.calls)
    return all(_whole(callee, given, 1 << 12, dims, done) for callee, given in inner)


def _dims(graph: Graph) -> Sequence[sympy.Expr]:
    """The different sizes of the dims of all values."""
    return [*dict.fromkeys(axis.size for axis in _axes(graph) if axis.kind == "dim")]


def _axes(graph: Graph) -> Iterator[Axis]:
    """The axes of every value, those inside recurrences and attends too."""
    for node in graph:
        yield from node.type.axes
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            yield from _axes(node.op.body)

"""The plan of a GPU for each recurrence: its kernels, costs at some sizes, and the reasons."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from archc.backends.eager.chunked import without
from archc.backends.eager.naming import region_name
from archc.backends.eager.region import ends_with
from archc.backends.triton.schedule import written
from archc.compile import SCHEDULE, for_kernels, lowered, with_epilogues, with_prologues
from archc.diagnostics import did_you_mean, fail
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm, rows_of_token, tokens_of_tile, usual_tokens
from archc.ir.graph import Graph, Node
from archc.ir.kernel import Buffer, Kernels
from archc.ir.refusal import Refusal
from archc.ir.sizes import Number, callee_sizes, evaluate, resolve_sizes
from archc.ir.value_names import cotangent, is_saved
from archc.lowering.steps import stepping
from archc.recurrence.chunk.chunked import studies
from archc.recurrence.chunk.derived import Kept
from archc.schedule.budget import beyond
from archc.schedule.cost import Total, total
from archc.schedule.devices import DEVICES, REFERENCE, Device
from archc.schedule.fitting import chunk_for
from archc.schedule.memory import CHUNKS, fits
from archc.schedule.program import WIDE, Setting, widths
from archc.schedule.token_walks import is_checkpointed, tokens_between
from archc.show.amounts import in_short
from archc.show.moved import Entering, Leaving, entering, leaving

SIZES = {"d": 4096, "H": 32, "K": 128, "V": 128, "G": 8, "e": 4096, "f": 16384, "N": 128, "n": 2}
"""Sizes of a plan where a spec has no default of its own; any other name is 64."""

DTYPES = ("bfloat16", "float16", "float32")

CHUNK = "chunk"


@dataclass(frozen=True)
class Conditions:
    """The conditions of a plan: batch, tokens, the length of a chunk (None: the usual one, if that
    fits), the dtype of the data, and the device."""

    B: int = 2
    T: int = 8192
    chunk: int | None = None
    dtype: str = "bfloat16"
    device: Device = REFERENCE


CONDITIONS = ("B", "T", "chunk", "dtype", "device")
"""The conditions that `--set` can give, beside the layer's own sizes."""


def conditions(given: Mapping[str, Any]) -> Conditions:
    """Conditions by name. Raises ArchError E0503 for a value that is none of its kind."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name in ("dtype", "device"):
            known = DTYPES if name == "dtype" else tuple(DEVICES)
            if value not in known:
                listed = ", ".join(f"`{each}`" for each in known)
                helps = did_you_mean(str(value), known)
                raise fail("E0503", f"`{name}` is one of {listed}, not `{value}`", helps=helps)
            found[name] = DEVICES[value] if name == "device" else value
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise fail("E0503", f"`{name}` must be a whole number above 0, but it is {value}")
        else:
            found[name] = value
    return Conditions(**found)


@dataclass(frozen=True, eq=False)
class Part:
    """The kernels of a recurrence's form or of its gradient, the bytes of a number of each tensor,
    their cost, and what becomes of the states before each token, where these are kept."""

    title: str
    kernels: Kernels
    widths: Mapping[str, int]
    cost: Total
    states: str = ""


@dataclass(frozen=True, eq=False)
class Planned:
    """A recurrence with its kernels; none where it stays a loop."""

    layer: ir.Layer
    node: Node
    name: str
    setting: Setting
    conditions: Conditions
    parts: tuple[Part, ...] = ()
    sizes: Mapping[str, Number] = field(default_factory=dict)
    inputs: tuple[Entering, ...] = ()
    outputs: tuple[Leaving, ...] = ()
    over_budget: str | None = None  # why a chunked form that it has is too much to hold
    kept: tuple[Kept, ...] = ()  # its states that have no chunked form, each with the reason
    chunk_why: str = ""


def plans_of(layer: ir.Layer, wanted: Conditions, alone: bool = False) -> Iterator[Planned]:
    """A plan of every recurrence of an elaborated layer and of those that it calls, at the layer's
    own sizes; `alone`: as a function of its own, without what enters and leaves it in the layer.
    Raises ArchError E0701 where no chunk fits."""
    missing = (a.name for a in layer.args if a.symbol is not None and a.default is None)
    sizes = resolve_sizes(layer, {name: SIZES.get(name, 64) for name in missing})
    before = lowered(layer)
    ended = before if alone else with_epilogues(before)
    after = for_kernels(ended if alone else with_prologues(ended))
    loops = _loops(before, _sized(before, sizes))
    for old, middle, (new, own) in zip(
        _sized(before, sizes), _sized(ended, sizes), _sized(after, sizes).items(), strict=True
    ):
        for first, second, node in zip(
            _recurrences(old), _recurrences(middle), _recurrences(new), strict=True
        ):
            plan = _planned(new, node, own, wanted)
            inputs = entering(middle.graph, second)
            outputs = leaving(old.graph, first, plan.setting, partial(_readers, plan))
            over_budget = beyond(second.op)
            outside = {"inputs": tuple(inputs), "outputs": tuple(outputs)}
            kept = loops.get(id(first.op.body), ())
            yield replace(plan, over_budget=over_budget, kept=kept, **outside)


def _loops(layer: ir.Layer, every: Collection[ir.Layer]) -> dict[int, tuple[Kept, ...]]:
    """The states that stay loops though nobody asked for it, by the body of their recurrence; every
    one of the layers."""
    ops = [node.op for each in every for node in _recurrences(each)]
    if all(op.chunked is not None and beyond(op) is None for op in ops):
        return {}
    found = ((node, derived) for each, node, derived in studies(layer) if not each.chunk.sequential)
    return {id(node.op.body): derived.kept for node, derived in found}


def _readers(plan: Planned, place: int) -> int:
    """How many kernels read the gradient of an output: of that which stands at a place."""
    graph = plan.layer.graph
    name = cotangent(graph[graph.users(plan.node.id)[place]].op.name)
    costs = [cost for part in plan.parts for cost in part.cost.kernels]
    return sum(name in {each.name for each in cost.reads} for cost in costs)


def _recurrences(layer: ir.Layer) -> list[Node]:
    """The recurrences of a layer, in one order."""
    return [node for node in layer.graph if isinstance(node.op, ir.Recurrence)]


def _sized(layer: ir.Layer, sizes: Mapping[str, Number]) -> dict[ir.Layer, Mapping[str, Number]]:
    """A layer and those that it calls, callers first, each with the sizes of its first call."""
    found: dict[ir.Layer, Mapping[str, Number]] = {layer: sizes}
    waiting = [layer]
    while waiting:
        each = waiting.pop(0)
        for _, call in each.calls:
            if call.callee not in found and call.callee.kind != "argument":
                found[call.callee] = callee_sizes(call, found[each])
                waiting.append(call.callee)
    return found


def _planned(
    layer: ir.Layer, node: Node, sizes: Mapping[str, Number], wanted: Conditions
) -> Planned:
    """The plan of one recurrence."""
    name, form = region_name(layer.name, layer.graph, node), node.op.chunked
    lengths = (TIME.size, node.op.stream.size)
    known = {**sizes, "batch": wanted.B, **{str(size): wanted.T for size in lengths}}
    if form is None:
        setting = Setting({**known, CHUNK: 1}, wanted.dtype)
        parts = _all_steps(layer, node, name, setting, wanted.device)
        return Planned(layer, node, name, setting, wanted, parts, sizes)
    graphs = [("forward", form.forward, "kernels", True)]
    if form.saved:
        graph = without(form.forward, form.saved)
        graphs.append(("inference", graph, "inference_kernels", True))
    if form.backward is not None:
        graphs.append(("gradient", form.backward, "gradient_kernels", False))
    cut = {t: _cut(node, graph, f"{name}_{end}", fused) for t, graph, end, fused in graphs}
    chunk, why = _chunk(layer, form, cut.values(), known, wanted)
    setting = Setting({**known, CHUNK: chunk}, wanted.dtype)
    kept = widths(cut["forward"], wanted.dtype)
    handed = {name: width for name, width in kept.items() if is_saved(name)}
    parts = [_part(title, each, setting, wanted.device, handed) for title, each in cut.items()]
    one = Setting({**setting.sizes, str(TIME.size): 1, node.op.stream.size.name: 1}, wanted.dtype)
    parts += _steps("one token", layer.graph, node, f"{name}_step", one, wanted.device)
    return Planned(layer, node, name, setting, wanted, tuple(parts), sizes, chunk_why=why)


def _chunk(
    layer: ir.Layer,
    form: ChunkForm,
    cut: Collection[Kernels],
    sizes: Mapping[str, Number],
    wanted: Conditions,
) -> tuple[int, str]:
    """How many tokens a chunk has, and why."""
    asked, budget = wanted.chunk or layer.chunk.size, wanted.device.budget
    if asked is not None:
        return asked, "as asked for"
    room, usual = chunk_for(cut, sizes, wanted.dtype, budget), usual_tokens(form, sizes)
    room = tokens_of_tile(form.forward, room, sizes)
    if usual < CHUNKS[0] and usual <= room:
        rows = rows_of_token(form.forward, sizes)
        return usual, f"a token has {rows} rows, so that a triangle of them has {usual * rows}"
    chunk = min(room, usual)
    if chunk == CHUNKS[0]:
        return chunk, "the most that kernels are made for, and all have room"
    longer = CHUNKS[CHUNKS.index(chunk) - 1]
    for plan in cut:
        setting = Setting({**sizes, CHUNK: longer}, wanted.dtype, widths(plan, wanted.dtype))
        for misfit in (fits(each, setting, budget) for each in plan.kernels):
            if misfit is not None:
                return chunk, f"of {longer}, {misfit}"
    return chunk, f"of {longer}, tiles do not fit into registers beside float32 in blocks"


def _cut(node: Node, graph: Graph, name: str, fused: bool) -> Kernels:
    """The kernels of a graph, as they are written."""
    prepared = SCHEDULE.prepare(graph, node.op.heads)
    return written(prepared, name, node.op.stream, node.op.heads, SCHEDULE, fused)[0]


def _all_steps(
    layer: ir.Layer, node: Node, name: str, setting: Setting, device: Device
) -> tuple[Part, ...]:
    """The walks of a recurrence without chunks: of tokens alone, and forward and back to learn."""
    graph = layer.graph
    parts = _steps("token by token", graph, node, f"{name}_step", setting, device)
    own = SCHEDULE.tokenwise(graph, node, _results(graph, node))
    form = SCHEDULE.with_gradient(own) if parts else None
    if form is None or form.backward is None:
        return parts
    kept = {"forward to learn": _kept(node.op, setting)}
    results = _results(graph, node)
    own = {*node.op.captures, *results, *map(cotangent, results)}
    for title, each in (("forward to learn", form.forward), ("gradient", form.backward)):
        for recurrence in (n for n in each if isinstance(n.op, ir.Recurrence)):
            made = _steps(title, each, recurrence, f"{name}_walk", setting, device, own)
            parts += tuple(replace(part, states=kept.get(title, "")) for part in made)
    return parts


def _kept(op: ir.Recurrence, setting: Setting) -> str:
    """The storage of the states before each token, which the gradient needs, in words."""
    sizes = setting.sizes
    numbers = sum(math.prod(int(evaluate(a.size, sizes)) for a in s.axes) for s in op.states)
    tokens = int(evaluate(op.stream.size, sizes))
    bytes = in_short(WIDE * numbers * tokens)
    length = tokens_between(tokens, numbers) if is_checkpointed(op) else tokens
    if length == tokens:
        return f"the states before each token are kept for the gradient: {bytes}B"
    return (
        f"learned from in spans of {length} tokens: the states before each of {tokens:,} would"
        f" take {bytes}B, so the gradient makes those of a span again"
    )


def _results(graph: Graph, node: Node) -> list[str]:
    """The results of a recurrence that something reads; a state after the last token is none."""
    found = {}
    for user in graph.users(node.id):
        name, readers = graph[user].op.name, [graph[each] for each in graph.users(user)]
        ends = readers and all(ends_with(node, name, each) for each in readers)
        if isinstance(graph[user].op, ir.Result) and not ends:
            found[name] = None
    return list(found)


def _steps(
    title: str, graph: Graph, node: Node, name: str, setting: Setting, device: Device,
    narrow: Collection[str] | None = None,
) -> tuple[Part, ...]:  # fmt: skip
    """The kernel that walks the tokens, if there can be one; `narrow`: what is in the dtype of the
    data, where not all is."""
    own = SCHEDULE.tokenwise(graph, node, _results(graph, node))
    kernel = SCHEDULE.steps(own, name, narrow is not None)
    if isinstance(stepping(kernel), Refusal):
        return ()
    buffers = tuple(Buffer(each, own[id].type) for each, id in own.outputs.items())
    moved = {*own.outputs, *(n.op.name for n in own if isinstance(n.op, ir.Input))}
    wide = moved - set(narrow) if narrow is not None else ()
    kernels = Kernels(own, (kernel,), buffers)
    width = widths(kernels, setting.dtype)
    wider = {name: WIDE for name in wide if width.get(name) == setting.data}
    return (_part(title, kernels, setting, device, wider),)


def why_no_walk(plan: Planned) -> str:
    """Why no kernel walks the tokens of a recurrence."""
    graph = plan.layer.graph
    own = SCHEDULE.tokenwise(graph, plan.node, _results(graph, plan.node))
    made = stepping(SCHEDULE.steps(own, plan.name))
    return made.reason if isinstance(made, Refusal) else "its gradient has no kernel"


def _part(
    title: str, kernels: Kernels, setting: Setting, device: Device, known: Mapping[str, int]
) -> Part:
    """The part of a plan that some kernels are; `known`: bytes of a number of some tensors."""
    width = {**widths(kernels, setting.dtype), **known}
    own = Setting(setting.sizes, setting.dtype, width)
    return Part(title, kernels, width, total(kernels, own, device))

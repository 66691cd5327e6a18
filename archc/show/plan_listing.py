"""A plan as tables to read and as plain data: kernels, what is materialised, and every reason."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from archc.dims import in_words
from archc.ir.graph import Graph
from archc.ir.kernel import Buffer, Kernel
from archc.ir.refusal import Refusal
from archc.ir.sizes import Number, evaluate
from archc.ir.text import op_text
from archc.lowering.grid_steps import PAIR, over_grid
from archc.recurrence.chunk.loops import named as quoted
from archc.runtime.replayed import SEGMENT_TOKENS
from archc.runtime.steps import grid_way, step_fits
from archc.schedule.cost import Cost
from archc.schedule.decisions import (
    Decision,
    computed_again,
    left_to_pytorch,
    of_buffer,
    of_kernel,
)
from archc.schedule.memory import numbers_of_steps
from archc.show.amounts import COLUMNS, in_lines, in_short, in_time, percent
from archc.show.planned import Part, Planned, why_no_walk
from archc.show.walks import Division, division, walks_chunks

NOTHING = "no recurrence: nothing is carried from token to token, and there is no kernel\n"

LOOP = "a loop over the tokens, in PyTorch, as there is no kernel"


WORDS = {
    "memory": "bytes", "products": "products", "arithmetic": "others",
    "special functions": "exp",
}  # fmt: skip
"""The parts of a lower bound on the time, as a table names them."""

LEGEND = """\
  A kernel's bytes are those of each tensor once; `again` is what several programs read. Operations
  are those of products of matrices, others, and exponentials and the like. `at best` is the time
  for the bytes or for the operations, whichever is longer; `share` is that time against what is
  expected with reads repeated, processors idle and the launch. `chip`: shared memory of a program.
  What another kernel needs is in memory where it costs more to compute again; what only enters
  products of matrices, or is added up to results, is as narrow as the data. All of it is computed,
  nothing is measured.
"""


def as_text(plans: Iterable[Planned]) -> str:
    """The plan of every recurrence."""
    texts = ["\n".join(_lines(each)) for each in plans]
    return "\n\n".join(texts) + f"\n\n{LEGEND}" if texts else NOTHING


def _lines(plan: Planned) -> Iterator[str]:
    yield heading(plan)
    if not plan.parts:
        yield f"  {LOOP}: {why_no_walk(plan)}"
        return
    yield from _conditions(plan)
    if plan.over_budget is not None:
        yield f"  {plan.over_budget}"
    for kept in plan.kept:
        yield from _wrapped(f"{quoted(kept.states)} token by token: {kept.reason}", 2, 4)
    yield from _inputs(plan)
    yield from _outputs(plan)
    for part in plan.parts:
        yield ""
        yield f"  {part.title}: {_total(part)}"
        yield _kernel_table(plan, part)
        yield from _too_large(plan, part)
        yield from _wrapped(part.states, 4, 4)
        for kernel in part.kernels.kernels:
            yield from _of_kernel(plan, part, kernel)
        yield ""
        yield _buffer_table(plan, part)
        yield from _rest(plan, part)


def heading(plan: Planned) -> str:
    """`kernels of S in Layer  # my.arch:18`."""
    states = ", ".join(state.name for state in plan.node.op.states)
    place = f"  # {plan.node.span.where}" if plan.node.span else ""
    return f"kernels of {states} in {plan.layer.name}{place}"


def _conditions(plan: Planned) -> Iterator[str]:
    """The conditions of a plan, and the bounds of its tiles."""
    wanted, sizes = plan.conditions, plan.setting.sizes
    dims = {str(s) for part in plan.parts for n in part.kernels.graph
            for a in n.type.axes for s in a.size.free_symbols}  # fmt: skip
    own = [f"{name}={sizes[name]}" for name in plan.sizes if name in dims]
    first = [f"B={wanted.B}", f"T={wanted.T}"]
    chunk = "" if plan.node.op.chunked is None else f", in chunks of {sizes['chunk']}"
    where = f"on one {wanted.device.name}, in {wanted.dtype}{chunk}"
    yield f"  {where}: {' '.join([*first, *own])}"
    budget = wanted.device.budget
    room = f"{in_short(budget.shared)}B of shared memory and {in_short(4 * budget.registers)}B"
    yield f"  a program may hold {room} of registers"
    if plan.chunk_why:
        yield f"  {sizes['chunk']} tokens are a chunk: {brief(plan, plan.chunk_why)}"


def _inputs(plan: Planned) -> Iterator[str]:
    """The inputs, and those that the kernels make themselves."""
    if plan.inputs:
        yield ""
        yield _table(("input", "why"), [(each.name, each.why) for each in plan.inputs], 1)


def _outputs(plan: Planned) -> Iterator[str]:
    """The outputs, and the ops after them that the kernels take over."""
    rows = []
    for each in plan.outputs:
        less = f"{in_short(each.forward)}B less forward, {in_short(each.backward)}B less backward"
        ends = f"the kernels end with `{each.ends}`: {less}; " if each.ends else ""
        rows.append((each.name, f"{in_short(each.bytes)}B", ends + each.why))
    if rows:
        yield ""
        yield _table(("output", "bytes", "what follows"), rows, 1)


def _total(part: Part) -> str:
    cost, count = part.cost, len(part.kernels.kernels)
    kernels = f"{count} kernel{'s' * (count != 1)}"
    return (
        f"{kernels}, {percent(cost.share)} of the roofline expected: {in_time(cost.expected)},"
        f" where {in_short(cost.bytes)}B enter and leave in {in_time(cost.ideal)}"
    )


# --- tables ---------------------------------------------------------------------------------------


def _table(
    heads: Sequence[str], rows: Iterable[Sequence[str]], left: int, width: int = COLUMNS - 4
) -> str:
    """A table in plain text, indented; the first `left` columns, and the last, stand left."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        side = "left" if place < left or place == len(heads) - 1 else "right"
        table.add_column(head, justify=side, no_wrap=place < len(heads) - 1)
    for row in rows:
        table.add_row(*row)
    file = io.StringIO()
    Console(file=file, width=width, color_system=None).print(table)
    return "\n".join(f"    {line}".rstrip() for line in file.getvalue().splitlines())


def _kernel_table(plan: Planned, part: Part) -> str:
    heads = (
        "kernel", "programs", "bytes", "again", "products", "others", "exp", "at best", "share",
        "chip", "limit",
    )  # fmt: skip
    rows = [
        (
            short(plan, cost.name), f"{cost.programs:,}", f"{in_short(cost.bytes)}B",
            f"{in_short(cost.again)}B" if cost.again else "-", *_operations(cost),
            in_time(cost.floor), percent(cost.share), f"{in_short(cost.chip.shared)}B",
            WORDS[cost.limit],
        )
        for cost in part.cost.kernels
    ]  # fmt: skip
    return _table(heads, rows, 1, COLUMNS)


def _too_large(plan: Planned, part: Part) -> Iterator[str]:
    """Kernels that cannot run with these sizes, and what is done instead."""
    budget, loop = plan.conditions.device.budget, _by_token(part)
    for cost in part.cost.kernels:
        kernel = next(each for each in part.kernels.kernels if each.name == cost.name)
        if not _has_room(plan, kernel) if loop else cost.chip.shared > budget.shared:
            then = instead_of(kernel, plan) if loop else "calls are refused"
            said = f"{short(plan, cost.name)} does not fit on chip: {then}"
            yield from textwrap.wrap("    " + said, COLUMNS, subsequent_indent=" " * 6)


def _has_room(plan: Planned, kernel: Kernel) -> bool:
    """Whether a launch of a walk of tokens finds that a program has room."""
    dtype = getattr(torch, plan.setting.dtype)
    return step_fits(*numbers_of_steps(kernel, plan.setting), dtype)


def _by_token(part: Part) -> bool:
    """Whether a walk of tokens is all there is."""
    return not any(walks_chunks(each) or each.walk is None for each in part.kernels.kernels)


def _operations(cost: Cost) -> list[str]:
    work = cost.work
    return [in_short(x) if x else "-" for x in (work.products, work.others, work.special)]


def _of_kernel(plan: Planned, part: Part, kernel: Kernel) -> Iterator[str]:
    """The lines about a kernel: its loads and stores, and the reason why it is one."""
    (cost,) = (each for each in part.cost.kernels if each.name == kernel.name)
    cut, split = of_kernel(part.kernels, kernel)
    yield ""
    yield f"    {short(plan, kernel.name)}: {shortened(plan, cut)}"
    grid = ", ".join(axis.name for axis in kernel.grid)
    yield f"      a program for each {grid}; {shortened(plan, split)}"
    yield f"      {_holds(plan, part, cost)}"
    if walks_chunks(kernel):
        yield from _divided(plan, division(plan, part, kernel))
    for word, moved in (("loads", cost.reads), ("stores", cost.writes)):
        yield from in_lines(f"      {word} ", [each.name for each in moved])


def _holds(plan: Planned, part: Part, cost: Cost) -> str:
    """The most that a program has on chip at a time."""
    chip, most = cost.chip, 4 * plan.conditions.device.budget.registers
    spills = ", more than there are: it spills" if chip.registers > most else ""
    shared, registers = in_short(chip.shared), in_short(chip.registers)
    return f"holds {shared}B of shared memory and {registers}B of registers{spills}"


def _divided(plan: Planned, found: Division) -> Iterator[str]:
    """Whether a walk goes in segments, and why."""
    have = f"{found.programs:,} programs for {found.processors} processors"
    if found.why:
        yield from _wrapped(f"goes whole: {found.why}", 6, 8)
        return
    if not found.length:
        yield f"      goes whole: {have}, {found.chunks:,} chunks"
        return
    more = f"{found.launches} launches and {in_short(found.bytes)}B more"
    times = f"expected {in_time(found.split)} in place of {in_time(found.whole)}"
    yield f"      in {found.segments} segments of {found.length} chunks: {have}"
    yield f"      that is {more}; {times}"


def _wrapped(text: str, first: int, then: int) -> list[str]:
    """The lines of a text, indented by so many columns."""
    return textwrap.wrap(text, COLUMNS, initial_indent=" " * first, subsequent_indent=" " * then)


def _buffer_table(plan: Planned, part: Part) -> str:
    heads = ("in memory", "what", "axes", "bits", "bytes", "why")
    bytes = {each.name: each.bytes for cost in part.cost.kernels for each in cost.writes}
    rows = []
    for buffer in part.kernels.buffers:
        stands, width = (shortened(plan, each) for each in of_buffer(part.kernels, buffer))
        size = bytes.get(buffer.name, 0)
        rows.append((
            buffer.name, what(part.kernels.graph, buffer_node(part, buffer)),
            " ".join(buffer.type.names), str(8 * part.widths[buffer.name]), f"{in_short(size)}B",
            f"{stands}; {width}",
        ))  # fmt: skip
    return _table(heads, rows, 3)


def _rest(plan: Planned, part: Part) -> Iterator[str]:
    """The values that are computed again, and those that no kernel computes."""
    graph = part.kernels.graph
    for title, found in (
        ("computed again", list(computed_again(part.kernels))),
        ("in PyTorch", list(left_to_pytorch(part.kernels))),
    ):
        if found:
            yield f"\n    {title}"
        grouped: dict[str, list[str]] = {}
        for id, why in found:
            grouped.setdefault(shortened(plan, why), []).append(what(graph, id))
        for why, names in grouped.items():
            yield from _wrapped(f"{', '.join(dict.fromkeys(names))}: {why}", 6, 8)


# --- words ----------------------------------------------------------------------------------------


def what(graph: Graph, id: int) -> str:
    """A value's name in the spec, or its op."""
    node = graph[id]
    return node.name or re.split(r"[\[(]", op_text(node.op))[0].removeprefix(".")


def named(graph: Graph, id: int) -> str:
    """`v12` (contract)."""
    return f"v{id} ({what(graph, id)})"


def buffer_node(part: Part, buffer: Buffer) -> int:
    """The node that a buffer has the value of: stored by a kernel, or else loaded by one that has
    it from a walk's end or from PyTorch."""
    kernels = part.kernels.kernels
    stored = [kernel.stores[buffer.name] for kernel in kernels if buffer.name in kernel.stores]
    loads = (each for kernel in kernels for each in kernel.loads.items())
    return (stored or [id for id, name in loads if name == buffer.name])[0]


def short(plan: Planned, name: str) -> str:
    """A kernel's name without that of the recurrence."""
    return name.removeprefix(f"{plan.name}_").rpartition("kernels_")[2]


def shortened(plan: Planned, decision: Decision) -> str:
    """A reason with short names of kernels."""
    return brief(plan, str(decision))


def brief(plan: Planned, text: str) -> str:
    """A text with short names of kernels."""
    return re.sub(rf"{plan.name}_(?:(?:\w+_)?kernels_)?", "", text)


# --- data -----------------------------------------------------------------------------------------


def as_json(plans: Iterable[Planned]) -> list[dict[str, Any]]:
    """Every plan as plain data; times in seconds."""
    return [_plan_json(each) for each in plans]


def _spelt(sizes: Mapping[str, Number]) -> dict[str, Number]:
    """Sizes by name; `T` is the length of the sequence, unless the spec has a size `T`."""
    words = {name: in_words(name) for name in sizes}
    return {name if words[name] in sizes else words[name]: size for name, size in sizes.items()}


def _plan_json(plan: Planned) -> dict[str, Any]:
    wanted = plan.conditions
    return {
        "layer": plan.layer.name,
        "states": [state.name for state in plan.node.op.states],
        "where": plan.node.span.where if plan.node.span else None,
        "device": wanted.device.name,
        "budget": asdict(wanted.device.budget),
        "chunk": plan.chunk_why,
        "dtype": wanted.dtype,
        "sizes": _spelt(plan.setting.sizes),
        "inputs": [asdict(each) for each in plan.inputs],
        "outputs": [asdict(each) for each in plan.outputs],
        "parts": [_part_json(plan, part) for part in plan.parts],
    }


def _part_json(plan: Planned, part: Part) -> dict[str, Any]:
    kernels = part.kernels
    costs = {cost.name: cost for cost in part.cost.kernels}
    return {
        "title": part.title,
        "seconds": {"at best": part.cost.ideal, "expected": part.cost.expected},
        "bytes": part.cost.bytes,
        "share": part.cost.share,
        "states": part.states,
        "kernels": [_kernel_json(plan, part, each, costs[each.name]) for each in kernels.kernels],
        "buffers": [
            {
                "name": buffer.name, "axes": list(buffer.type.names),
                "bytes a number": part.widths[buffer.name],
                "why": [_why(each) for each in of_buffer(kernels, buffer)],
            }
            for buffer in kernels.buffers
        ],
        "computed again": [
            {"value": named(kernels.graph, id), "why": _why(each)}
            for id, each in computed_again(kernels)
        ],
        "in PyTorch": [
            {"value": named(kernels.graph, id), "why": _why(each)}
            for id, each in left_to_pytorch(kernels)
        ],
    }  # fmt: skip


def _kernel_json(plan: Planned, part: Part, kernel: Kernel, cost: Cost) -> dict[str, Any]:
    def moved(traffic: Any) -> list[dict[str, Any]]:
        return [{"name": t.name, "bytes": t.bytes, "moved": t.moved} for t in traffic]

    return {
        "name": kernel.name,
        "grid": [axis.name for axis in kernel.grid],
        "split": kernel.split.name if kernel.split else None,
        "walk": kernel.walk is not None,
        "why": [_why(each) for each in of_kernel(part.kernels, kernel)],
        **_division_json(plan, part, kernel),
        "programs": cost.programs,
        "loads": moved(cost.reads),
        "stores": moved(cost.writes),
        "operations": {
            "products": cost.work.products, "other": cost.work.others,
            "special": cost.work.special,
        },
        "on chip": {"shared": cost.chip.shared, "registers": cost.chip.registers},
        "seconds": {"at best": cost.floor, "expected": cost.expected},
        "limit": cost.limit,
        "share": cost.share,
    }  # fmt: skip


def _division_json(plan: Planned, part: Part, kernel: Kernel) -> dict[str, Any]:
    """Whether a walk of chunks goes in segments."""
    if not walks_chunks(kernel):
        return {}
    return {"segments": division(plan, part, kernel).as_json()}


def _why(decision: Decision) -> dict[str, Any]:
    return {"rule": decision.rule, "about": list(decision.about), "text": str(decision)}


def a_loop() -> str:
    """In words, how PyTorch goes over the tokens."""
    if not SEGMENT_TOKENS:
        return "a loop in PyTorch"
    return f"a loop in PyTorch, up to {SEGMENT_TOKENS} of them a CUDA graph"


def instead_of(kernel: Kernel, plan: Planned) -> str:
    """In words, what is done in place of a kernel that has no room."""
    made, setting = over_grid(kernel), plan.setting
    if isinstance(made, Refusal) or made.spread is None:
        reason = made.reason if isinstance(made, Refusal) else "it is not spread"
        return f"its tokens are {a_loop()}: {reason}"
    values, *axes = (size for _, size in made.spread.exchange.axes)
    own = {str(name): evaluate(symbol, setting.sizes) for name, symbol in made.sizes.items()}
    own["B"] = setting.sizes["batch"]
    batch, *heads, dim = (
        int(axis.subs({s: own[str(s)] for s in axis.free_symbols})) for axis in axes
    )
    count, products = heads[0] if heads else 1, made.spread.products
    width = 8 if setting.dtype == "float32" else 2
    processors = plan.conditions.device.processors
    way = grid_way(batch, count, dim, products, width, processors)
    if way is None:
        return (
            f"its tokens are {a_loop()}, as {products} x {dim:,} x {dim:,} weights do not"
            f" fit into the shared memory of {processors} processors"
        )
    rows, part, *_ = way
    programs = -(-batch // rows) * count * -(-dim // part)
    each = int(values) // PAIR
    return (
        f"it is spread over the GPU, {programs} programs with {part} of {dim:,} each, which hand"
        f" {each} value{'s' * (each > 1)} to each other at every token"
    )

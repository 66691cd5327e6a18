"""Lowered kernels of a spec's recurrence, each run by the interpreter against its graph.

A kernel is given what the reference semantics say of the values that it loads, and what it stores
is held against what they say of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import torch
from archc.backends.triton.schedule import written
from torch import Tensor

import archc
from archc.compile import SCHEDULE, for_kernels, lowered, with_epilogues, with_prologues
from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import FEW, NEAR, Kernel, Kernels
from archc.ir.meaning import compute, outputs_of
from archc.ir.meaning_ops import Evaluation, Scope
from archc.ir.named import Named
from archc.ir.refusal import Refusal
from archc.ir.sizes import evaluate
from archc.lowering.kernel_values import Memory
from archc.lowering.kernels import Lowered, lower
from archc.lowering.twice import HARD
from archc.tile.interpreter import run
from archc.tile.verifier import verify, verify_launch

SIZES = {"batch": 2, "T#": 37, "chunk": 16}
OTHERS = {"H": 2, "N": 5, "R": 3, "n": 2}
SMALL = 20
"""What a size is that is not named: longer than a block of 16, and no power of two."""


@dataclass(frozen=True)
class Planned:
    """A graph cut into kernels, with the value of each of its nodes."""

    name: str
    plan: Kernels
    tokens: Axis
    values: Mapping[int, Tensor]
    sizes: Mapping[str, int]


@lru_cache(maxsize=16)
def ready(layer: ir.Layer, fused: bool) -> ir.Layer:
    """A layer for kernels; `fused`: with what enters and leaves its recurrences."""
    return for_kernels(with_prologues(with_epilogues(layer)) if fused else layer)


def plans(
    spec: str, fused: bool = True, scales: Mapping[str, float] = MappingProxyType({}),
    tokens: int = SIZES["T#"],
) -> Iterator[Planned]:  # fmt: skip
    """The kernels of a spec's recurrences and of their gradients; `scales` are of inputs."""
    layer = ready(lowered(archc.load(spec).layer), fused)
    recurrences = [
        n.op for n in layer.graph if isinstance(n.op, ir.Recurrence) and n.op.chunked is not None
    ]
    for number, recurrence in enumerate(recurrences):
        known: dict[str, Tensor] = {}
        graphs, name = recurrence.chunked, f"{spec} {number}"
        yield planned(name, recurrence, graphs.forward, known, scales, tokens)
        if graphs.backward is not None:
            name = f"{spec} {number} gradient"
            yield planned(name, recurrence, graphs.backward, known, tokens=tokens)


def planned(
    name: str, recurrence: ir.Recurrence, graph: Graph, known: dict[str, Tensor],
    scales: Mapping[str, float] = MappingProxyType({}), tokens: int = SIZES["T#"],
) -> Planned:  # fmt: skip
    """One graph; `known` are inputs that have a value, and learns the inputs and outputs."""
    graph = SCHEDULE.prepare(graph, recurrence.heads)
    plan, _ = written(graph, "memory", recurrence.stream, recurrence.heads, SCHEDULE, False)
    graph = plan.graph
    symbols = {s.name for node in graph for axis in node.type.axes for s in axis.size.free_symbols}
    numbers = [getattr(n.op, name, None) for n in graph for name in ("value", "iterations")]
    symbols |= {s.name for each in numbers if each is not None for s in each.free_symbols}
    usual = {**SIZES, "T#": tokens}
    sizes = {each: usual.get(each, OTHERS.get(each, SMALL)) for each in sorted(symbols)}
    generator = torch.Generator().manual_seed(len(name))
    for node in graph:
        if isinstance(node.op, ir.Input) and node.op.name not in known:
            value = drawn(node, sizes, generator)
            known[node.op.name] = value * scales[node.op.name] if node.op.name in scales else value
    values = every_value(graph, known, sizes)
    known |= {name: values[id] for name, id in graph.outputs.items()}
    return Planned(name, plan, recurrence.stream, values, sizes)


def drawn(node: Node, sizes: Mapping[str, int], generator: torch.Generator) -> Tensor:
    """An input: small, so that products of many stay so, and 0 at places, as the weight of a memory
    is for tokens that it does not see: nothing may be divided by an input again. What is called a
    logarithm is negative, a square state is positive definite."""
    shape = [int(evaluate(axis.size, sizes)) for axis in node.type.axes]
    if node.type.dtype == "bool":
        return torch.rand(shape, generator=generator) < 0.5
    if node.type.dtype == "int":
        return torch.randint(0, 3, shape, generator=generator)
    made = 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
    if node.op.name.endswith("[0]") and len(shape) > 3 and shape[-1] == shape[-2]:
        return made @ made.transpose(-1, -2)
    made *= torch.rand(shape, generator=generator) < 0.9
    return -made.abs() if "log" in node.op.name else made


def every_value(
    graph: Graph, inputs: Mapping[str, Tensor], sizes: Mapping[str, int]
) -> dict[int, Tensor]:
    """What the reference semantics make of every node."""
    types = {node.op.name: node.type for node in graph if isinstance(node.op, ir.Input)}
    given = {name: Named(inputs[name], type.names) for name, type in types.items()}
    like = torch.zeros((), dtype=torch.float64)
    scope = Scope(dict(sizes), given, {}, {}, {}, like, Evaluation(), outputs_of)
    made = compute(tuple(graph), scope)
    found = {}
    for id, value in made.items():
        if isinstance(value, Named):
            shape = scope.shape(graph[id].type.axes)
            found[id] = value.to(graph[id].type.names).expand(shape)
    return found


def block(size: int, most: int | None = None) -> int:
    """The length of a tile along an axis, as generated files have it."""
    length = max(16, 1 << (size - 1).bit_length())
    return length if most is None else min(most, length)


def memory(plan: Kernels) -> Memory:
    """What stands between the kernels of a graph."""
    buffers = {buffer.name: buffer for buffer in plan.buffers}
    return Memory(buffers, {*plan.graph.outputs})


def lowered_kernels(found: Planned) -> Iterator[tuple[Kernel, Lowered | Refusal]]:
    """The programs of a graph's kernels."""
    for kernel in found.plan.kernels:
        yield kernel, lower(kernel, found.tokens.name, memory(found.plan))


def constants(found: Planned, kernel: Kernel, made: Lowered) -> dict[str, int | str]:
    """The constants of a program at the sizes of a graph."""
    chunk = found.sizes["chunk"]
    known: dict[str, int | str] = {
        "CHUNK": chunk, "LEVELS": chunk.bit_length() - 1, "DOT": "f32", "SUMS": "f64",
        "PRECISION": "ieee", "SOLVE": "f32", "STAGES": 3, "AGAIN": 0, "RUN": 1,
        "EVEN": int(found.sizes["T#"] % chunk == 0),
    }  # fmt: skip
    for name, size in made.sizes.items():
        known.setdefault(name, number(size, found.sizes))
    for name, size in made.blocks.items():
        known[name] = block(number(size, found.sizes))
    for name, size in made.parts.items():
        known[name] = block(number(size, found.sizes), 16)
    for name, size in made.levels.items():
        known[name] = block(number(size, found.sizes)).bit_length() - 1
    if kernel.split is not None:
        second = kernel.second_split
        few = second is not None and number(second.size, found.sizes) <= NEAR
        known["BLOCK"] = block(number(kernel.split.size, found.sizes), FEW if few else 16)
        if kernel.turn is not None:
            known["BLOCK"] = block(number(kernel.split.size, found.sizes), kernel.most)
    return {name: known[name] for name in made.program.constants}


def mixed(fixed: Mapping[str, int | str], titles: Sequence[str]) -> dict[str, str]:
    """Dtypes of a launch with data in bfloat16 of which some is kept in float32."""
    usual = {"DOT": "bf16", "SUMS": "f32", "PRECISION": "tf32x3", "SOLVE": "f16"}
    dtypes = {name: dtype for name, dtype in usual.items() if name in fixed}
    return dtypes | {f"@{t}": ("bf16", "f32")[place % 2] for place, t in enumerate(titles)}


def number(size: object, sizes: Mapping[str, int]) -> int | float:
    found = evaluate(size, sizes)  # type: ignore[arg-type]
    return int(found) if float(found).is_integer() else found


def _launches(
    made: Lowered, tensors: dict[str, Tensor], known: Mapping[str, int | str]
) -> list[dict[str, int | str]]:
    """What constants are in each launch of a program: a second one has two chunks a program, and
    flags that the first one writes."""
    (flags,) = [each for each in made.program.buffers if each.name == HARD] or [None]
    if flags is None:
        return [{}]
    lengths = {name: n for name, n in known.items() if isinstance(n, int)}
    shape = [int(number(axis, lengths)) for _, axis in flags.axes]
    tensors[HARD] = torch.full(shape, -1, dtype=torch.int32)
    return [{"AGAIN": 0, "RUN": 1}, {"AGAIN": 1, "RUN": 2}]


def in_memory(found: Planned, name: str, id: int) -> Tensor:
    """A value as it is in its buffer: rows of chunks may stand where their tokens do."""
    buffer = next((each for each in found.plan.buffers if each.name == name), None)
    if buffer is None or not buffer.by_tokens:
        return found.values[id]
    axes, names = found.plan.graph[id].type.axes, buffer.type.names
    (row,) = (place for place, axis in enumerate(axes) if axis.size == ck.CHUNK)
    (chunk,) = (place for place, axis in enumerate(axes) if axis.kind == "stream")
    rows = found.values[id].movedim((chunk, row), (0, 1)).flatten(0, 1)[: found.sizes["T#"]]
    rest = [axis.name for place, axis in enumerate(axes) if place not in (row, chunk)]
    order = [found.tokens.name, *rest]
    return rows.permute([order.index(each) for each in names]).contiguous()


def launch(
    found: Planned, kernel: Kernel, made: Lowered, operand: str = ""
) -> dict[str, tuple[Tensor, Tensor]]:
    """What a kernel stores, and what it should: exactly, or in float32 with matrices of a dtype
    `operand` in products."""
    chunks = -(-found.sizes["T#"] // found.sizes["chunk"])
    sizes = {
        "BATCH": found.sizes["batch"], "SEQUENCES": found.sizes["batch"], "T": found.sizes["T#"],
        "CHUNKS": chunks,
    }  # fmt: skip
    sizes = {s.name: sizes[s.name] for s in made.program.sizes}
    fixed = constants(found, kernel, made)
    stored = {*kernel.stores, *kernel.ends.values()}
    tensors: dict[str, Tensor] = {}
    values = {t: in_memory(found, name, made.nodes[t]) for t, name in made.names.items()}
    for title, name in made.names.items():
        value = values[title]
        if name in stored:
            kind = value.dtype if value.dtype == torch.bool else torch.float64
            tensors[title] = torch.zeros(value.shape, dtype=kind)
        else:
            tensors[title] = value
        if operand and tensors[title].is_floating_point():
            tensors[title] = tensors[title].float()
    assert not verify(made.program), verify(made.program)
    known = {**sizes, **fixed, **{f"@{title}": "f32" for title in tensors}}
    for dtypes in ({}, mixed(fixed, [*tensors])):
        refused = verify_launch(made.program, known | dtypes)
        assert not refused, refused
    usual = {"DOT": operand, "SUMS": "f32"} if operand else {}
    fixed |= {name: dtype for name, dtype in usual.items() if name in fixed}
    for again in _launches(made, tensors, {**sizes, **fixed}):
        run(made.program, tensors, sizes, fixed | again, exact=not operand)
    return {
        name: (tensors[title], values[title])
        for title, name in made.names.items()
        if name in stored
    }

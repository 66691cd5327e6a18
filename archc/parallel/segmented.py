"""A recurrence whose kernels walk a sequence in segments, on processes that each have a part of it:
the segments of all processes are joined as those of one are.

    in segments, all at once       what each makes of a state of nothing, and leaves of any state
    here: all processes            are told both, of all segments
    along all segments             the state that each starts from
    in segments, all at once       from there, with all results

A walk back joins the gradients of states in the same way. So a part does what the whole does on one
device, and no kernel more: a walk that would go whole goes in segments here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from archc.backends.eager.chunked import without
from archc.backends.triton.schedule import written
from archc.compile import SCHEDULE, for_kernels
from archc.ir import layer as ir
from archc.ir.chunk import rows_are_masked
from archc.ir.graph import Graph, Node
from archc.ir.roles import CARRY
from archc.ir.sizes import Number, evaluate
from archc.parallel.exchange import told
from archc.parallel.mesh import Ranks
from archc.runtime.kernels import by_kernels, in_tiles
from archc.schedule.axes import counts_chunks, reduction_dims
from archc.schedule.segments import WIDEST

PROGRAMS = 264
"""How many programs the segments of a walk are spread over, at most: the same on every process."""

SHORTEST = 128
"""Tokens of a part that has two chunks at least, however long they are."""

MOST = 64
"""Tables that are kept for shapes seen before."""

Run = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


def goes_in_segments(layer: ir.Layer, sizes: Mapping[str, Number]) -> bool:
    """Whether kernels of a recurrence with a chunked form walk it in segments, forward and back,
    and nothing but walks looks from chunk to chunk, or from token to token."""
    ready = for_kernels(layer)
    nodes = [node for node in ready.graph if isinstance(node.op, ir.Recurrence)]
    form = nodes[0].op.chunked if len(nodes) == 1 else None
    if form is None or form.backward is None:
        return False
    graphs = [(form.forward, True), (form.backward, False)]
    if form.saved:
        graphs.append((without(form.forward, form.saved), True))
    return all(_in_segments(graph, nodes[0], sizes, fused) for graph, fused in graphs)


def masks_rows(layer: ir.Layer) -> bool:
    """Whether kernels of the chunked forms mask all rows, as a file of these asks before it
    launches them."""
    ops = [node.op for node in layer.graph if isinstance(node.op, ir.Recurrence)]
    return all(op.chunked is not None and rows_are_masked(op.chunked.forward) for op in ops)


def _in_segments(graph: Graph, node: Node, sizes: Mapping[str, Number], fused: bool) -> bool:
    """Whether all walks of a graph go in segments, and nothing else looks along them."""
    stream, prepared = node.op.stream, SCHEDULE.prepare(graph, node.op.heads)
    if _meets(prepared, stream.name):
        return False
    plan, _ = written(prepared, "walked", stream, node.op.heads, SCHEDULE, fused)
    walks = {kernel.walk: kernel for kernel in plan.kernels if kernel.walk is not None}
    inside = [n.id for n in plan.graph if isinstance(n.op, ir.Recurrence)]
    if len(walks) != 1 or len(inside) != 1:
        return False
    (walk,) = walks.values()
    found = SCHEDULE.segments(walk, stream)
    if isinstance(found, str) or found.again is not None:
        return False  # a start that is made of what is given would be learned on every process
    return found.applied is None or evaluate(found.applied.size, sizes) <= WIDEST


def _meets(graph: Graph, stream: str) -> bool:
    """Whether a value of tokens or chunks is made of what looks along these, but for walks."""
    chunks = {a.name for node in graph for a in node.type.axes if counts_chunks(a)}
    for node in graph:
        if {stream, *chunks}.isdisjoint(reduction_dims(graph, node)):
            continue
        after = (graph[id] for id in graph.descendants(node.id))
        if any(axis.kind == "stream" for each in (node, *after) for axis in each.type.axes):
            return True
    return False


class Joining:
    """A stand-in for two functions of a module of kernels: where one of its functions is called by
    `with joining.all_of(..)`, segments are those of all processes."""

    def __init__(self, module: Any):
        self.module = module
        self.launch_kernel, self.chunks_of_segment = module.launch_kernel, module.chunks_of_segment
        self.ranks: Ranks | None = None
        self.name, self.count = "", 0
        self.known: dict[Any, list[Tensor]] = {}
        self.kept: dict[Any, Any] = {}
        module.launch_kernel, module.chunks_of_segment = self.launch, self.length

    @contextmanager
    def all_of(self, ranks: Ranks, name: str) -> Iterator[None]:
        """One call of a function, in which every process comes to one exchange. Raises RuntimeError
        where it comes to none: its numbers are those of this part alone."""
        self.ranks, self.name, self.known = ranks, name, {}
        try:
            yield
            if len(self.known) != 1:
                raise RuntimeError(
                    f"{name} joined {len(self.known)} walks, not one: a bug in archc"
                )
        finally:
            self.ranks, self.known = None, {}

    def length(
        self, programs: int, chunks: int, device: torch.device, passes: int = 2, each: int = 1
    ) -> int:
        """How many chunks a segment has: there are two at least."""
        if self.ranks is None:
            return self.chunks_of_segment(programs, chunks, device, passes, each)
        room = PROGRAMS // max(programs, 1)
        length = math.ceil(chunks / max(2, min(room, math.isqrt(passes * chunks // each))))
        self.count = math.ceil(chunks / length)
        return length

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made for a key on this stream; in a CUDA graph it is made anew, as memory of a
        graph has what is written there where it is replayed."""
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_initialized() else None
        if stream is not None and torch.cuda.is_current_stream_capturing():
            return make()
        key = key, stream, torch.is_inference_mode_enabled()
        if key not in self.kept:
            if len(self.kept) >= MOST:
                self.kept.clear()
            self.kept[key] = make()
        return self.kept[key]

    def launch(
        self, kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict
    ) -> Any:
        """Launch a kernel; one that joins segments with those of all processes."""
        if self.ranks is None or CARRY not in kernel.__name__:
            return self.launch_kernel(kernel, programs, given, counts, fixed, options)
        *tensors, rows = given
        names = [name.removesuffix("_p") for name in kernel.arg_names]
        sequences = len(rows)
        own = [i for i, x in enumerate(tensors) if len(x) >= sequences * self.count]
        starts = [i for i in own if names[i].endswith("_starts")]
        read = [i for i in own if i not in starts]
        every = list(tensors)
        for i, x in zip(
            read, self._told(kernel, [tensors[i] for i in read], sequences), strict=True
        ):
            every[i] = x
        total = sequences * self.count * self.ranks.count
        for i in starts:
            every[i] = tensors[i].new_empty(total, *tensors[i].shape[1:])
        made = self.launch_kernel(
            kernel, programs, [*every, self._rows(rows)], counts, fixed, options
        )
        for i in starts:
            parts = every[i].view(sequences, self.ranks.count, self.count, *every[i].shape[1:])
            tensors[i][: sequences * self.count] = parts[:, self.ranks.rank].flatten(0, 1)
        return made

    def _told(self, kernel: Any, own: list[Tensor], sequences: int) -> list[Tensor]:
        """The summaries of each segment, of all processes: segments of a sequence one after the
        other. A function that begins again, once its kernels are compiled, is told the same."""
        assert self.ranks is not None
        if kernel not in self.known:
            parts = [x[: sequences * self.count] for x in own]
            flat = torch.cat([x.flatten() for x in parts])
            found = told(self.ranks, f"summaries of {self.name}", flat)
            rows = [each.split([x.numel() for x in parts]) for each in found]
            self.known[kernel] = [
                torch.stack([row[i].view(sequences, self.count, *x.shape[1:]) for row in rows], 1)
                .flatten(0, 2)
                for i, x in enumerate(parts)
            ]  # fmt: skip
        return self.known[kernel]

    def _rows(self, rows: Tensor) -> Tensor:
        """The table of sequences, with the segments of all processes for the own ones."""
        assert self.ranks is not None
        many = self.count * self.ranks.count

        def make() -> Tensor:
            each, every = torch.arange(len(rows), device=rows.device), rows.clone()
            every[:, 4], every[:, 5] = each * many, (each + 1) * many
            return every

        return self._once((len(rows), many, rows.device), make)


def joining(module: ModuleType) -> Joining:
    """The stand-in for a module's functions, made once."""
    known = vars(module)
    if "joining" not in known:
        known["joining"] = Joining(module)
    return known["joining"]


class _Joined(torch.autograd.Function):
    """A call of a piece, and its gradients, each in one exchange."""

    @staticmethod
    def forward(ctx: Any, inside: Callable[[], Any], run: Run, *values: Tensor) -> Any:
        own = [x.detach().requires_grad_(x.requires_grad) for x in values]
        with torch.enable_grad(), inside():
            made = run(own)
        ctx.inside, ctx.own, ctx.made = inside, own, made
        return tuple(x.detach() for x in made)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        wanted = [x for x in ctx.own if x.requires_grad]
        with ctx.inside():
            found = iter(torch.autograd.grad(ctx.made, wanted, slopes, allow_unused=True))
        ctx.made = ()
        return None, None, *(next(found) if x.requires_grad else None for x in ctx.own)


def usable(module: Any, values: Sequence[Tensor], length: int, masked: bool) -> bool:
    """Whether kernels of a module walk these values, of so many tokens, in segments; `masked`:
    chunks may have any length (`masks_rows`)."""
    if torch.compiler.is_compiling() or length < SHORTEST:
        return False
    chunk = in_tiles(module.CHUNK) if masked else module.CHUNK
    return by_kernels(chunk, *(x for x in values if x.is_floating_point()))


def by_segments(
    ranks: Ranks, joined: Joining, name: str, call: Callable[..., Any], values: Sequence[Tensor],
    first: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The results of a piece for this process's part of the sequence, with `first` as the state
    before all tokens: all processes start from it, and the first one learns it."""
    states = [*first] if ranks.rank == 0 else [x.detach() for x in first]
    given = [*values, *states]

    def inside() -> Any:
        return joined.all_of(ranks, name)

    def run(every: Sequence[Tensor]) -> tuple[Tensor, ...]:
        made, _ = call(every[: len(values)], type(first)(*every[len(values) :]), False)
        return made

    if not (torch.is_grad_enabled() and any(x.requires_grad for x in given)):
        with inside():
            return run(given)
    return _Joined.apply(inside, run, *given)

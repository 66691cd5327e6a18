"""Token regions run by the tile interpreter in float64, beside the meaning of their graphs.

What stands before the first token is told to the meaning as tokens: it is given a sequence that is
longer by as many, of which the outputs and cotangents of the first ones do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import sympy
import torch
from torch import Tensor

import archc
from archc.autodiff.reverse import gradient
from archc.compile import lowered
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node, Type
from archc.ir.layer import Layer
from archc.ir.meaning import evaluate_graph
from archc.ir.refusal import Refusal
from archc.ir.sizes import evaluate, resolve_sizes
from archc.ir.token_region import TokenRegion
from archc.lowering.token import BLOCK_T, EACH, IO, Lowered, lower
from archc.lowering.token_borders import ROWS, SEQUENCES
from archc.regions.cut import regions
from archc.regions.gradient import gradient_of
from archc.runtime.philox import factor_of_seed
from archc.tile.affine import MISSING
from archc.tile.interpreter import run
from archc.tile.language import OF_BUFFER
from archc.tile.verifier import verify, verify_launch

Named = dict[str, Tensor]


def regions_of(layer: Layer) -> list[TokenRegion]:
    """The token regions of a layer and of those that it calls."""
    found = list[TokenRegion]()
    for each in [layer, *(call.callee for _, call in layer.calls)]:
        found += [r for r in regions(each.graph) if isinstance(r, TokenRegion)]
    return found


@dataclass(frozen=True)
class Trial:
    """One region at some sizes: `known` are the sizes of its layer, with T and batch."""

    region: TokenRegion
    known: Mapping[str, float]
    block_t: int = 4
    each: int = 2
    part: int = 4

    @property
    def kept(self) -> int:
        """How many tokens before the first one are looked at."""
        counts = [evaluate(past.count, self.known) for past in self.region.pasts.values()]
        return int(max(counts, default=0))

    def nodes(self) -> list[Node]:
        return [n for n in self.region.graph if isinstance(n.op, ir.Input)]

    def is_past(self, node: Node) -> bool:
        return node.op.name in self.region.pasts

    def drawn(self, node: Node, extra: int, dtype: torch.dtype = torch.float64) -> Tensor:
        shape = [
            int(evaluate(axis.size, self.known)) + extra * (axis.name == self.region.stream)
            for axis in node.type.axes
        ]
        if node.type.dtype != "real":
            made = torch.randint(0, 2 if shape else 2**62, shape)
            return made.bool() if node.type.dtype == "bool" else made
        return torch.randn(shape, dtype=torch.float64).to(dtype).double()

    def drawn_on(self, node: Node, device: str, whole: bool = False) -> Tensor:
        """Random numbers on a device, in 16 bits; `whole`: of a past as if it were all tokens."""
        shape = [int(evaluate(axis.size, self.known)) for axis in node.type.axes]
        if isinstance(node.op, ir.Input) and self.is_past(node) and not whole:
            at = node.type.names.index(self.region.stream)
            shape[at] = int(evaluate(self.region.pasts[node.op.name].count, self.known))
        return torch.randn(shape, device=device, dtype=torch.bfloat16)

    def expected(
        self, dtype: torch.dtype = torch.float64, seeded: bool = True
    ) -> tuple[Named, Named, Named]:
        """Inputs, outputs and gradients by the meaning of the graph, of numbers as a dtype has
        them."""
        kept, region = self.kept, self.region
        every = {n.op.name: self.drawn(n, kept, dtype) for n in self.nodes()}
        leaves = {n: x.requires_grad_() for n, x in every.items() if x.is_floating_point()}
        sizes = {**self.known, "T#": self.known["T#"] + kept}
        factor = partial(factor_of_tokens, kept if seeded else None)
        with patch("archc.ir.meaning_ops.factor_of_seed", factor):
            found = evaluate_graph(self.later(kept), every, sizes)
        outputs = {n: self.cut(region.graph.outputs[n], x, kept) for n, x in found.items()}
        real = {n: x for n, x in outputs.items() if x.is_floating_point()}
        slopes = {f"d.{n}": torch.randn_like(x).to(dtype).double() for n, x in real.items()}
        total = torch.stack([(real[n] * slopes[f"d.{n}"]).sum() for n in real] or [torch.zeros(())])
        total = total.sum()
        learns = total.requires_grad
        grads = torch.autograd.grad(
            total if learns else torch.zeros((), requires_grad=True), [*leaves.values()],
            allow_unused=True, materialize_grads=True,
        )  # fmt: skip
        there = [n for n in self.nodes() if seeded or n.op.name not in region.seeds]
        given = {n.op.name: self.own(n, every[n.op.name].detach(), kept) for n in there}
        nodes = {n.op.name: n for n in self.nodes()}
        pairs = zip(leaves, grads, strict=True)
        wanted = {f"d.{n}": self.own(nodes[n], d, kept) for n, d in pairs}
        return {**given, **slopes}, {n: x.detach().double() for n, x in outputs.items()}, wanted

    def later(self, kept: int) -> Graph:
        """The graph for a sequence whose first tokens are those that were kept."""
        graph = self.region.graph.copy()
        for node in self.region.graph:
            if node.op == ir.Elementwise("where") and {*self.reads(node)} & {*self.region.pasts}:
                there = graph[node.operands[0]]
                graph.replace_op(there.operands[1], ir.Constant(sympy.Integer(kept)))
        return graph

    def own(self, node: Node, x: Tensor, kept: int) -> Tensor:
        """What a program has of an input: the tokens, or those that were kept before them."""
        names = node.type.names
        if self.region.stream not in names:
            return x
        dim = names.index(self.region.stream)
        if not self.is_past(node):
            return x.narrow(dim, kept, x.shape[dim] - kept)
        count = int(evaluate(self.region.pasts[node.op.name].count, self.known))
        return x.narrow(dim, kept - count, count)

    def cut(self, id: int, x: Tensor, kept: int) -> Tensor:
        """What comes after the tokens that were kept."""
        names = self.region.graph[id].type.names
        if self.region.stream not in names:
            return x
        dim = names.index(self.region.stream)
        return x.narrow(dim, kept, x.shape[dim] - kept)

    def reads(self, node: Node) -> Sequence[str]:
        """The names of the inputs that a node reads."""
        operands = [self.region.graph[o].op for o in node.operands]
        return [op.name for op in operands if isinstance(op, ir.Input)]

    def shape(self, type: Type) -> list[int]:
        """The lengths of the axes of a type."""
        return [int(evaluate(axis.size, self.known)) for axis in type.axes]

    # --- programs ---

    def launch(self, made: Lowered) -> tuple[dict[str, float], dict[str, int | str]]:
        """The sizes and the constants of a launch."""
        known: dict[str, Any] = {name: self.constant(made, name) for name in made.program.constants}
        sizes: dict[str, float] = {}
        for symbol in made.program.sizes:
            name = symbol.name
            own = str(made.sizes.get(name, name))
            rows = self.known.get(ROWS, self.known["T#"] + evaluate(made.ahead, self.known))
            given = {EACH: self.each, ROWS: rows, SEQUENCES: self.known["batch"]}
            sizes[name] = self.known.get(own, given.get(name, 0.0))
            if name in made.options:
                sizes[name] = evaluate(made.options[name], self.known)
        return sizes, known

    def fronts(self, made: Lowered, name: str) -> list[int]:
        """How many programs there are along the axes that an output is summed over."""
        sizes, known = self.launch(made)
        counts, every = dict(made.program.grid), {**sizes, **known}
        return [int(evaluate(counts[axis], every)) for axis in made.shares.get(name, ())]

    def ran(self, made: Lowered, given: Named, outputs: Mapping[str, Sequence[int]]) -> Named:
        """What a program makes."""
        program = made.program
        assert not verify(program), verify(program)
        sizes, known = self.launch(made)
        there = {made.buffers[name] for name in given if name in made.buffers}
        absent = [b for b in program.buffers if b.optional and b.name not in there]
        missing = {f"{OF_BUFFER}{b.name}": MISSING for b in absent}
        problems = verify_launch(program, {**known, **sizes, **missing})
        assert not problems, problems
        tensors = {made.buffers[name]: x for name, x in given.items() if name in made.buffers}
        found = Named()
        for name, shape in outputs.items():
            full = [*self.fronts(made, name), *shape]
            found[name] = torch.full(full, torch.nan, dtype=torch.float64)
            if self.is_truth(name):
                found[name] = torch.zeros(full, dtype=torch.bool)
            tensors[made.buffers[name]] = found[name]
        run(program, tensors, cast(Any, sizes), known, exact=True)
        return {name: self.total(made, name, x.double()) for name, x in found.items()}

    def is_truth(self, name: str) -> bool:
        """Whether an output is of truth values."""
        made = self.region.graph.outputs
        return name in made and self.region.graph[made[name]].type.dtype == "bool"

    def total(self, made: Lowered, name: str, x: Tensor) -> Tensor:
        """The sum of what programs made."""
        return x.sum([*range(len(made.shares[name]))]) if name in made.shares else x

    def constant(self, made: Lowered, name: str) -> int | str:
        """A constant of a program."""
        if name == IO:
            return "f64"
        if name == BLOCK_T:
            return self.block_t
        if name in made.lengths:
            size = int(evaluate(made.lengths[name].size, self.known))
            block = 1 << max(0, size - 1).bit_length()
            split = made.lengths[name] == made.space.split
            return min(block, self.part) if split else block
        return int(self.known[str(made.sizes.get(name, name))])

    def errors(self, seeded: bool = True) -> dict[str, float]:
        """The largest error of each output and gradient, against the largest value; `seeded`:
        whether dropout has its seeds."""
        torch.manual_seed(3)
        given, outputs, wanted = self.expected(seeded=seeded)
        backward = gradient_of(self.region, gradient)
        found = lower(self.region, backward)
        assert not isinstance(found, Refusal), found
        made = self.ran(found.values, given, {n: x.shape for n, x in outputs.items()})
        slopes = {n: x.shape for n, x in wanted.items() if n in found.gradient.buffers}
        made |= self.ran(found.gradient, given, slopes)
        every = {**given, **made}
        made |= {f"d.{name}": every[same] for name, same in backward.alike.items()}
        wanted = {n: x for n, x in wanted.items() if n in made}
        every = {**outputs, **wanted}
        return {n: distance(made[n], x) for n, x in every.items()}


def factor_of_tokens(
    kept: int | None, seed: Tensor, shape: Sequence[int], p: float, like: Tensor
) -> Tensor:
    """The factor of a dropout, of which kernels see no token that was kept; ones if that is
    None."""
    if kept is None:
        return factor_of_seed(None, shape, p, like)
    batch, tokens, *rest = shape
    found = factor_of_seed(seed, (batch, tokens - kept, *rest), p, like)
    return torch.cat([torch.ones(batch, kept, *rest, dtype=found.dtype), found], 1)


def distance(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, against the largest value."""
    if not wanted.numel():
        return 0.0
    same = torch.where((found == wanted) | (found.isnan() & wanted.isnan()), 0.0, found - wanted)
    scale = torch.where(wanted.isfinite(), wanted.abs(), 0.0).max().clamp_min(1e-30)
    return float((same.abs() / scale).nan_to_num(torch.inf).max())


def trial(spec: str, region: str, B: int = 2, T: int = 9, **sizes: float) -> Trial:
    """A region of a bundled layer, by name."""
    layer = lowered(archc.load(spec).layer)
    found = {each.name: each for each in regions_of(layer)}
    known = {s: float(v) if v != int(v) else int(v) for s, v in resolved(layer, sizes).items()}
    return Trial(found[region], {**known, "T#": T, "batch": B})


def resolved(layer: Layer, sizes: Mapping[str, float]) -> Mapping[str, float]:
    """All sizes of a layer."""
    return {name: v for name, v in resolve_sizes(layer, sizes).items()
            if not isinstance(v, sympy.Basic)}  # fmt: skip

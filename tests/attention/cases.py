"""Scores of many kinds as specs, the folds that they are, and launches of their programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from archc.api import parse
from archc.attention.recognise import folds
from archc.attention.totals import as_folds
from archc.attention.weighted_sum import WeightedSum
from archc.compile import PASSES, slopes_of
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.meaning import evaluate_graph
from archc.ir.refusal import Refusal
from archc.lowering.attention import BLOCKS, BORDERS
from archc.runtime.folds import fold_programs
from archc.tile.language import Program
from archc.verify.fold_trial import FoldTrial, drawn

PLAIN = "q[t].T @ k[s] / sqrt(K)"
KINDS = {
    "attend": "forward", "attend_gradient_of_readers": "readers",
    "attend_gradient_of_tokens": "tokens", "attend_gradient_of_tables": "tables",
}  # fmt: skip


def spec(
    score: str = PLAIN, range: str = "s <= t", groups: bool = False, params: str = "",
    inputs: str = "", sizes: str = "", read: str = "softmax({}) @ v[s]",
) -> str:  # fmt: skip
    """The text of a layer that is one attend with one score."""
    names = ", ".join(["H", *(["G"] if groups else []), "K", "V", *([sizes] if sizes else [])])
    heads = "G" if groups else "H"
    lines = [
        f"layer Scored({names}):",
        f"    input q[H, K], k[{heads}, K], v[{heads}, V]{inputs and ', '}{inputs}",
        *([f"    param {params}"] if params else []),
        f"    attend {range} over H{' grouped G' if groups else ''}:",
        f"        o = {read.format(score)}",
        "    output o",
    ]
    return "\n".join(lines) + "\n"


@cache
def pair_of(text: str) -> ir.Attend:
    """The attend of a spec, as kernels have it; also where it is compiled as a recurrence."""
    layer = parse(text).layer
    for name, run in PASSES:
        layer = layer if name == "recurrent" else run(layer)
    (found,) = (node.op for node in layer.graph if isinstance(node.op, ir.Attend))
    return as_folds(found)


def refusals(text: str) -> list[str]:
    """Why sums of a spec are no folds."""
    return [str(each) for each in folds(pair_of(text), slopes_of) if isinstance(each, Refusal)]


@dataclass
class Launch(FoldTrial):
    """One launch of the programs of a fold; `borders`: where packed sequences begin and end, if it
    is of these."""

    borders: tuple[int, ...] = ()

    def values(self, *nodes: int) -> list[Tensor]:
        """Values of the body by the reference semantics, in float64; of packed sequences, of each
        by itself."""
        if not self.borders:
            return super().values(*nodes)
        body = self.attend.body.copy()
        body.outputs = {str(node): node for node in nodes}
        tokens = {n.op.name: _place(n.type) for n in body if isinstance(n.op, ir.Input)}
        parts = []
        for start, end in pairwise(self.borders):
            own = {
                name: x if tokens[name] is None else x.narrow(tokens[name], start, end - start)
                for name, x in self.inputs.items()
            }
            known = {**self.known, "T#": end - start, "T_seen#": end - start}
            parts.append([*evaluate_graph(body, own, known).values()])
        along = [_place(body[node].type) for node in nodes]
        every = zip(zip(*parts, strict=True), along, strict=True)
        return [xs[0] if place is None else torch.cat(xs, place) for xs, place in every]

    def check(self, limit: float = 1e-11) -> None:
        """Values and gradients of all results are those of the reference semantics."""
        wanted, found = self.values(*self.fold.nodes), self.forward()
        for name, x in zip(self.made, wanted, strict=True):
            torch.testing.assert_close(
                found[name].double(), self.as_made(x.detach(), name), rtol=1e-11, atol=1e-12
            )
        generator = torch.Generator().manual_seed(1)
        d = [torch.randn(x.shape, generator=generator).double() for x in wanted]
        learned = [*self.inputs.values()]
        slopes = torch.autograd.grad(wanted, learned, d, allow_unused=True)
        given = [self.as_made(x, n).contiguous() for n, x in zip(self.made, d, strict=True)]
        made = self.gradients(*given)
        for (input, x), slope in zip(self.inputs.items(), slopes, strict=True):
            right = torch.zeros_like(x) if slope is None else slope
            scale = max(float(right.norm()), 1e-3)
            assert float((made[input] - right).norm()) / scale < limit, input

    def in_each(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """What becomes of the tokens [B, T, ...] of each packed sequence, or of all."""
        lengths = [end - start for start, end in pairwise(self.borders)]
        return torch.cat([run(y) for y in x.split(lengths, 1)], 1) if lengths else run(x)

    def programs(self, program: Program) -> tuple[dict[str, Tensor], dict[str, int]]:
        """The table of packed sequences, and how many programs there are along the tokens."""
        if not self.fold.packed:
            return {}, {}
        borders = torch.tensor(self.borders) if self.borders else None
        T, S, kind = int(self.known["T#"]), int(self.known["T_seen#"]), KINDS[program.name]
        table, count = fold_programs(kind, borders, T, S, self.block, self.block)
        return ({} if table is None else {BORDERS: table}), {BLOCKS: count}


def _place(type: Type) -> int | None:
    """Along which axis the tokens of a value are."""
    return next((i for i, axis in enumerate(type.axes) if axis.kind == "stream"), None)


def packed(
    text: str, borders: tuple[int, ...], dtype: torch.dtype = torch.float64, **sizes: float
) -> Launch:
    """A launch on packed sequences."""
    made = launch(text, borders[-1], B=1, dtype=dtype, **sizes)
    return replace(made, fold=replace(made.fold, packed=True), borders=borders)


def launch(
    text: str, T: int, S: int | None = None, B: int = 2, dtype: torch.dtype = torch.float64,
    **sizes: float,
) -> Launch:  # fmt: skip
    """A launch on normal numbers; `sizes` are those of the spec."""
    attend, S = pair_of(text), T if S is None else S
    fold, *more = folds(attend, slopes_of)
    assert isinstance(fold, WeightedSum), str(fold)
    assert all(other is fold for other in more)
    known = {"T#": T, "T_seen#": S, "batch": B, **sizes}
    return Launch(fold, attend, known, drawn(attend, known, dtype), dtype)

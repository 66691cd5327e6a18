"""A sum whose score goes through matrices or gates of the tokens between, with numbers: the tile
programs of its tree of spans in the interpreter. Imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from archc.attention.between import Between, rows_of_token
from archc.attention.weighted_sum import Source, WeightedSum
from archc.ir import layer as ir
from archc.ir.sizes import evaluate
from archc.lowering.attention import numbers_of
from archc.lowering.attention_spans import (
    another_span,
    first_span,
    near_spans,
    span_readers,
    span_tokens,
)
from archc.lowering.gate_levels import climb as climb_gates
from archc.lowering.gate_levels import descend as descend_gates
from archc.lowering.span_borders import borders, of_borders
from archc.lowering.span_gates import PARTS, gates, of_gates, sums_of_gates
from archc.lowering.span_levels import climb, descend, join
from archc.runtime.between import Given, Part, between_backward, between_forward, each_head
from archc.runtime.gated import back_of_gates, join_gates
from archc.tile.interpreter import run
from archc.tile.language import Program
from archc.tile.verifier import verify
from archc.verify.fold_trial import FoldTrial


class Trial(FoldTrial):
    """Programs of a fold of spans, in the interpreter."""

    def launch(
        self, make: Callable[[WeightedSum], Program], order: Sequence[str], *given: Any
    ) -> None:
        """Run a program on tensors in that order, and a part of the spans."""
        program = make(self.fold)
        assert not verify(program), [*map(str, verify(program))]
        tensors = dict(zip(order, given, strict=False))
        part: Part = given[len(order)]
        known = {
            name: next(x.shape[i] for s in self.fold.sources for i, a in enumerate(s.type.axes)
                       if a.name == name and (x := tensors[s.name]) is not None)
            for name in {a.name for s in self.fold.sources for a in s.type.axes if a.kind == "dim"}
        }  # fmt: skip
        read = next(s for s in self.fold.sources if s.name in self.fold.moved)
        sizes = {**self.plain, **{f"N_{name}": n for name, n in known.items()}}
        B = tensors["lse"].shape[0]
        sizes |= {
            "B": B,
            "LEVELS": tensors[read.name].shape[0] // B,
            "TOKENS": tensors["lse"].shape[-1],
        }
        sizes |= {"T": part.readers, "S": part.read, "POS": part.pos, "START": 0}
        sizes |= {"N_SPANS": part.spans, "PITCH": part.pitch, "DONE": part.done}
        sizes |= {"FIRST_T": part.first_reader, "FIRST_S": part.first_read}
        lengths = {f"BLOCK_{s.dim.name}": max(16, 1 << (known[s.dim.name] - 1).bit_length())
                   for s in self.fold.sources if s.dim is not None}  # fmt: skip
        block = part.pitch if make is near_spans else 64
        blocks = {"BLOCK_T": block, "BLOCK_S": block, **lengths}
        constants = {"IO": "f64", "PRECISION": "ieee", **blocks}
        run(program, {b.name: tensors[b.name] for b in program.buffers}, sizes, constants, True)

    @property
    def plain(self) -> dict[str, float]:
        """The numbers that only a launch knows."""
        return {s.name: evaluate(n, self.known) for n, s in numbers_of(self.fold).items()}


def given_of(case: FoldTrial, between: Between) -> Given:
    """What enters an attention, of the reference semantics."""
    whole = between.whole
    names = [source.name for source in whole.sources]
    sources = [case.sources()[name] for name in names]
    heads = sources[names.index(between.dot.reader)].shape[2:-1]
    for end in (between.dot.reader, between.dot.read):
        sources[names.index(end)] = each_head(sources[names.index(end)], heads)

    def side(source: Source) -> Tensor:
        """A vector, or a number of one place."""
        (found,) = case.values(source.node)
        return each_head(found.detach()[..., *([None] if source.dim is None else [])], heads)

    ranks = [(side(rank.u), side(rank.w)) for rank in between.ranks]
    return Given(
        sources, tuple(s.role for s in whole.sources),
        tuple(s.dim is not None for s in whole.sources),
        (names.index(between.dot.reader), names.index(between.dot.read)),
        names.index(whole.values or ""), ranks, tuple(f.sign for f in between.ranks), [],
        None if between.gate is None else side(between.gate),
    )  # fmt: skip


def kernels(between: Between, case: FoldTrial, makes: dict[str, Callable]) -> list[Callable]:
    """The two functions of one program each, for `inside` and `across`."""
    found = []
    for fold, make in zip((between.inside, between.across), makes.values(), strict=True):
        trial = Trial(fold, case.attend, case.known, case.inputs)
        order = [source.name for source in fold.sources]
        beside = [between.left.name, between.right.name] if fold is between.inside else []
        learned = [f"d_{name}" for name in (*between.whole.learned, *beside)]
        if make in (span_readers, span_tokens):
            order += ["d_o", "o", "lse", "delta", *learned]
            whole = partial(make, first=fold is between.inside)
            found.append(partial(trial.launch, whole, order))
        else:
            found.append(partial(trial.launch, make, [*order, "o", "sums", "lse"]))
    return found


def _of_ranks(between: Between, make: Callable[[int, bool], Program]) -> Program:
    """The program of what is at borders, of matrices of outer products."""
    return make(rows_of_token(len(between.ranks)), between.ranks[0].u.dim is None)


def borders_of(program: Program) -> Callable:
    """The function of the kernel of what is at borders, or of its gradient."""
    assert not verify(program), [*map(str, verify(program))]

    def launch(*given: Any) -> None:
        *tensors, tokens = given
        buffers = dict(zip([b.name for b in program.buffers], tensors, strict=True))
        B, _, h, K = buffers.get("q", tensors[-1]).shape
        sizes = {"B": B, "N_H": h, "N_K": K, "T": tokens}
        block = max(16, 1 << (K - 1).bit_length())
        constants = {"IO": "f64", "GATE": "f64", "PRECISION": "ieee", "SOLVE": "f32"}
        constants |= {"BLOCK_K": block}
        run(program, buffers, sizes, constants, True)

    return launch


def level_of(program: Program) -> Callable:
    """The function of a kernel between two levels."""
    assert not verify(program), [*map(str, verify(program))]

    def launch(*given: Any) -> None:
        *tensors, tokens, size = given
        buffers = dict(zip([b.name for b in program.buffers], tensors, strict=True))
        (B, h, *_), K = tensors[0].shape, tensors[0].shape[-1]
        sizes = {"B": B, "N_H": h, "N_K": K, "T": tokens, "SIZE": size}
        block = max(16, 1 << (K - 1).bit_length())
        rows = {"BLOCK_T": min(size, 64), "BLOCK_K": block}
        run(program, buffers, sizes, {"IO": "f64", "PRECISION": "ieee", **rows}, True)

    return launch


def moves_of(between: Between) -> tuple[Callable, ...]:
    """The functions of the kernels of a tree."""
    if between.gate is not None:
        rows, keeping = (level_of(climb_gates(keeps=keeps)) for keeps in (False, True))
        return borders_of(gates()), rows, join_gates, keeping
    levels = (climb(), join(), climb(keeps=True))
    return (borders_of(_of_ranks(between, borders)), *map(level_of, levels))


def back_of(between: Between) -> tuple[Callable, Callable]:
    """The functions of the kernels of its gradients: of borders, and of a level."""
    if between.gate is not None:
        tokens, sums = borders_of(of_gates()), borders_of(sums_of_gates())
        return back_of_gates(tokens, sums, PARTS), level_of(descend_gates())
    return borders_of(_of_ranks(between, of_borders)), level_of(descend())


def of_node(case: FoldTrial, node: int, d: Tensor) -> list[Tensor | None]:
    """The gradients of what enters the body from that of a value of it."""
    (value,) = case.values(node)
    d = d.reshape(value.shape) if d.numel() == value.numel() else d.sum(0).reshape(value.shape)
    return [*torch.autograd.grad(value, [*case.inputs.values()], d, allow_unused=True)]


def own(case: FoldTrial, source: Source, d: Tensor) -> Tensor:
    """A gradient a head of the pairs as that of a value."""
    found = case.of_own(source, d)
    return found.flip(1).cumsum(1).flip(1) if source.summed else found


def added_up(case: FoldTrial, between: Between, made: list[Tensor]) -> list[Tensor]:
    """The gradients of what enters, from those of sources and of what matrices are made of."""
    found = [torch.zeros_like(x) for x in case.inputs.values()]
    ranks = [each for rank in between.ranks for each in (rank.u, rank.w)]
    ranks += [] if between.gate is None else [between.gate]
    of_sources = [case.fold.source(name) for name in between.whole.learned]
    for source, d in zip([*of_sources, *ranks], made, strict=True):
        rated = source in ranks and source.dim is None
        of_value = own(case, source, d[..., 0].movedim(1, -1) if rated else d)
        every = of_node(case, source.node, of_value)
        found = [x if more is None else x + more for x, more in zip(found, every, strict=True)]
    return found


class TreeTrial:
    """The attention of one attend: what enters its body, and every size, as of a `FoldTrial`."""

    def __init__(
        self, between: Between, attend: ir.Attend, known: dict[str, float],
        inputs: dict[str, Tensor],
    ):  # fmt: skip
        self.between, self.case = between, FoldTrial(between.whole, attend, known, inputs)

    @cached_property
    def given(self) -> Given:
        """What enters, of the reference semantics."""
        return given_of(self.case, self.between)

    @cached_property
    def moves(self) -> tuple[Callable, ...]:
        """The functions of the kernels of the tree."""
        return moves_of(self.between)

    @cached_property
    def of_spans(self) -> list[Callable]:
        """Those of the values: within the smallest spans, of the first levels, and of others."""
        first, further = self._both(first_span, another_span)
        return [first, self._both(first_span, near_spans)[1], further]

    def _both(self, inside: Callable, across: Callable) -> list[Callable]:
        return kernels(self.between, self.case, {"inside": inside, "across": across})

    def forward(self, given: Given | None = None) -> tuple[Tensor, Tensor]:
        """o, and the log of the sum of weights."""
        first, near, further = self.of_spans
        return between_forward(self.moves, first, near, further, given or self.given)

    def backward(
        self, d_o: Tensor, o: Tensor, lse: Tensor, given: Given | None = None
    ) -> list[Tensor]:
        """The gradients of the sources that learn, then of what matrices or gates are made of."""
        pairs = [self._both(make, make) for make in (span_readers, span_tokens)]
        inside, across = zip(*pairs, strict=True)
        whole = self.between.whole
        places = [[s.name for s in whole.sources].index(n) for n in whole.learned]
        down = back_of(self.between)
        entering = given or self.given
        return between_backward(
            self.moves, down, inside, across, places, entering, d_o, o, lse
        )  # fmt: skip

    def gradients(self, d_o: Tensor) -> Mapping[str, Tensor]:
        """The gradient of each input of the body, from what arrives at o."""
        made = self.backward(d_o, *self.forward())
        return dict(zip(self.case.inputs, added_up(self.case, self.between, made), strict=True))

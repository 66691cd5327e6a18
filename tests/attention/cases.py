"""Scores of many kinds as specs, the folds that they are, and launches of their programs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from archc.api import parse
from archc.attention.recognise import folds
from archc.attention.weighted_sum import Refusal, Source, WeightedSum
from archc.compile import lowered, slopes_of
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.meaning import evaluate_graph
from archc.ir.sizes import evaluate
from archc.lowering.attention import BLOCKS, BORDERS, forward, numbers_of
from archc.lowering.attention_gradient import by_distances, by_readers, by_tokens
from archc.runtime.folds import fold_programs
from archc.tile.affine import MISSING
from archc.tile.interpreter import run
from archc.tile.language import OF_BUFFER, Program
from archc.tile.verifier import verify, verify_launch

PLAIN = "q[t].T @ k[s] / sqrt(K)"
KINDS = {
    "attend": "forward", "attend_gradient_of_readers": "readers",
    "attend_gradient_of_tokens": "tokens", "attend_gradient_of_tables": "tables",
}  # fmt: skip
DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16"}


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
    """The attend of a spec."""
    graph = lowered(parse(text).layer).graph
    (found,) = (node.op for node in graph if isinstance(node.op, ir.Attend))
    return found


def refusals(text: str) -> list[str]:
    """Why sums of a spec are no folds."""
    return [str(each) for each in folds(pair_of(text), slopes_of) if isinstance(each, Refusal)]


@dataclass
class Launch:
    """One launch of the programs of a fold: what enters the attend's body, and every size.
    `borders`: where packed sequences begin and end, if it is of these."""

    fold: WeightedSum
    attend: ir.Attend
    known: dict[str, float]
    inputs: dict[str, Tensor]
    dtype: torch.dtype = torch.float64
    block: int = 16
    borders: tuple[int, ...] = ()

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sums."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    def values(self, *nodes: int) -> list[Tensor]:
        """Values of the body by the reference semantics, in float64; of packed sequences, of each
        by itself."""
        body = self.attend.body.copy()
        body.outputs = {str(node): node for node in nodes}
        if not self.borders:
            return [*evaluate_graph(body, self.inputs, self.known).values()]
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

    def in_each(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """What becomes of the tokens [B, T, ...] of each packed sequence, or of all."""
        lengths = [end - start for start, end in pairwise(self.borders)]
        return torch.cat([run(y) for y in x.split(lengths, 1)], 1) if lengths else run(x)

    def sources(self) -> dict[str, Tensor]:
        """What the programs read."""
        found = {}
        for source in self.fold.sources:
            (x,) = self.values(source.node)
            found[source.name] = self._given(source, x.detach())
        return found

    def _given(self, source: Source, x: Tensor) -> Tensor:
        if source.summed:
            total = self.in_each(lambda y: y.cumsum(1), x)
            high = total.to(self.wide)
            return torch.stack([high, (total - high.double()).to(self.wide)], -1)
        if not source.real:
            return x.to(torch.int32)
        return x.to(self.dtype if source.dim is not None else self.wide)

    @property
    def sizes(self) -> dict[str, float]:
        """The sizes of every program of the fold."""
        found = {"T": self.known["T#"], "S": self.known["T_seen#"], "POS": 0, "START": 0}
        found["B"] = self.known["batch"]
        axes = [axis for source in self.fold.sources for axis in source.type.axes]
        for axis in (*axes, *self.fold.heads):
            if axis.kind == "dim":
                found[f"N_{axis.name}"] = evaluate(axis.size, self.known)
        return found | {s.name: evaluate(n, self.known) for n, s in numbers_of(self.fold).items()}

    @property
    def constants(self) -> dict[str, int | str]:
        """The constants of every program of the fold."""
        found: dict[str, int | str] = {"IO": DTYPES[self.dtype], "PRECISION": "ieee"}
        found["SHARED"] = DTYPES[self.wide]
        found |= {"BLOCK_T": self.block, "BLOCK_S": self.block}
        for source in self.fold.sources:
            if source.dim is not None:
                length = int(evaluate(source.dim.size, self.known))
                found[f"BLOCK_{source.dim.name}"] = max(16, 1 << (length - 1).bit_length())
        return found

    def buffers(self, program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every buffer of a program: what is given, and NaN for the rest."""
        lengths = {n: v for n, v in self.constants.items() if not isinstance(v, str)}
        found, sizes = {}, {**self.sizes, **self.programs(program)[1]}
        for buffer in program.buffers:
            if buffer.optional and not self.borders:
                continue
            shape = [int(evaluate(n, {**sizes, **lengths})) for _, n in buffer.axes]
            dtype = self.dtype if buffer.dtype == "IO" else self.wide  # SHARED too
            room = torch.full(shape, math.nan, dtype=dtype)
            room = torch.zeros(shape, dtype=torch.int32) if buffer.dtype == "i32" else room
            found[buffer.name] = given.get(buffer.name, room)
        return found

    def programs(self, program: Program) -> tuple[dict[str, Tensor], dict[str, int]]:
        """The table of packed sequences, and how many programs there are along the tokens."""
        if not self.fold.packed:
            return {}, {}
        borders = torch.tensor(self.borders) if self.borders else None
        T, S, kind = int(self.known["T#"]), int(self.known["T_seen#"]), KINDS[program.name]
        table, count = fold_programs(kind, borders, T, S, self.block, self.block)
        return ({} if table is None else {BORDERS: table}), {BLOCKS: count}

    def interpreted(self, program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What a program makes of what it is given, after the verifier has nothing against it."""
        assert not verify(program), [*map(str, verify(program))]
        table, count = self.programs(program)
        sizes = {**self.sizes, **count}
        missing = {} if table else {f"{OF_BUFFER}{BORDERS}": MISSING}
        wrong = verify_launch(program, {**sizes, **self.constants, **missing})
        assert not wrong, [*map(str, wrong)]
        buffers = self.buffers(program, {**given, **table})
        run(program, buffers, sizes, self.constants, exact=self.dtype == torch.float64)
        return {name: x for name, x in buffers.items() if name not in {**given, **table}}

    def forward(self) -> dict[str, Tensor]:
        """Everything that the forward reads and makes."""
        given = self.sources()
        return given | self.interpreted(forward(self.fold), given)

    def gradients(self, d_o: Tensor) -> dict[str, Tensor]:
        """The gradient of each input of the body, from what arrives."""
        known = self.forward() | {"d_o": d_o.to(self.dtype if self.fold.values else self.wide)}
        tables = [by_distances] if self.fold.lookups else []
        for make in (by_readers, by_tokens, *tables):
            known |= self.interpreted(make(self.fold), known)
        found: dict[str, Tensor] = {}
        for source in map(self.fold.source, self.fold.learned):
            if source.table is not None:
                d = self.of_table(source, known)
            else:
                d = self.of_own(source, known[f"d_{source.name}"].double())
            if source.summed:
                d = self.in_each(lambda y: y.flip(1).cumsum(1).flip(1), d)
            (value,) = self.values(source.node)
            learned = [x for x in self.inputs.values() if x.requires_grad]
            made = torch.autograd.grad(value, learned, d, allow_unused=True)
            for name, x in zip(self.inputs, made, strict=True):
                found[name] = found.get(name, 0) + (0 if x is None else x)
        return found

    def of_table(self, source: Source, known: Mapping[str, Tensor]) -> Tensor:
        """The gradient of a table [W, H] from sums by distance."""
        (lookup,) = self.fold.lookups
        d, at = known[f"d_{lookup.name}"], known[f"at_{lookup.name}"]
        made = torch.zeros(self.values(source.node)[0].shape, dtype=torch.float64)
        for h in range(made.shape[1]):
            made[:, h].index_add_(0, at[0, h].flatten().long(), d[:, h].sum(0).flatten().double())
        return made

    def of_own(self, source: Source, d: Tensor) -> Tensor:
        """A gradient a head of the pairs as that of a value which several heads may share."""
        heads = [head.name for head in self.fold.heads]
        tokens = next((a.name for a in source.type.axes if a.kind == "stream"), "tokens")
        names = ["batch", *heads, tokens]
        if source.dim is not None:
            names = ["batch", tokens, *heads, source.dim.name]
        for own, head, share in source.shares:
            place, count = names.index(head), int(evaluate(share, self.known))
            d = d.unflatten(place, (d.shape[place] // count, count)).sum(place + 1)
            names[place] = own
        for place in reversed(range(len(names))):
            if names[place] not in source.type.names:
                d = d.sum(place)
                names.pop(place)
        return d.permute([names.index(name) for name in source.type.names])


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
    (fold,) = folds(attend, slopes_of)
    assert isinstance(fold, WeightedSum), str(fold)
    known = {"T#": T, "T_seen#": S, "batch": B, **sizes}
    lengths = {"batch": B, attend.reader.name: T, attend.read.name: S}
    lengths |= {attend.path.name: S} if attend.path is not None else {}
    generator = torch.Generator().manual_seed(T)
    inputs = {}
    for node in attend.body:
        if isinstance(node.op, ir.Input):
            shape = [int(evaluate(a.size, {**known, **lengths})) if a.kind == "dim"
                     else lengths[a.name] for a in node.type.axes]  # fmt: skip
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            inputs[node.op.name] = drawn.to(dtype).double().requires_grad_()
    return Launch(fold, attend, known, inputs, dtype)


def distance(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|."""
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30))

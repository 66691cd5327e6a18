"""One fold over the tokens read with numbers: its tile programs in the interpreter, and the
reference semantics of what they read. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from archc.attention.weighted_sum import Source, WeightedSum
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Type
from archc.ir.meaning import evaluate_graph
from archc.ir.sizes import evaluate
from archc.lowering.attention import BORDERS, numbers_of
from archc.lowering.attention_forward import forward
from archc.lowering.attention_gradient import by_distances, by_readers, by_tokens
from archc.tile.affine import MISSING
from archc.tile.interpreter import run
from archc.tile.language import OF_BUFFER, Program
from archc.tile.verifier import verify, verify_launch

DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16"}


@dataclass
class FoldTrial:
    """One launch of the programs of a fold: what enters the attend's body, and every size; `known`
    has "T#" readers, "T_seen#" tokens that are read, and a batch of so many."""

    fold: WeightedSum
    attend: ir.Attend
    known: dict[str, float]
    inputs: dict[str, Tensor]
    dtype: torch.dtype = torch.float64
    block: int = 16
    copied: int = 0

    @property
    def wide(self) -> torch.dtype:
        """The dtype of sums."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def made(self) -> dict[str, int]:
        """The nodes of the body that programs make, by the names of their results."""
        names = ("lse",) if self.fold.alone else ("o", "lse")
        return dict(zip(names, self.fold.nodes, strict=False))

    def as_made(self, x: Tensor, result: str = "o") -> Tensor:
        """A result of the body with its dims in the order in which programs have them."""
        fold = self.fold
        heads, reader = [head.name for head in fold.heads], fold.reader.name
        dim = fold.source(fold.values).dim if fold.values and result == "o" else None
        order = ["batch", *heads, reader]
        if dim is not None:
            order = ["batch", reader, *heads, dim.name]
        names = self.attend.body[self.made[result]].type.names
        return x.permute([names.index(name) for name in order])

    def values(self, *nodes: int) -> list[Tensor]:
        """Values of the body by the reference semantics, in float64."""
        body = self.attend.body.copy()
        body.outputs = {str(node): node for node in nodes}
        return [*evaluate_graph(body, self.inputs, self.known).values()]

    def in_each(self, run: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """The results of `run` for the tokens [B, T, ...] of each sequence."""
        return run(x)

    def sources(self) -> dict[str, Tensor]:
        """The tensors that the programs read."""
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
        found |= {"BLOCK_T": self.block, "BLOCK_S": self.block, "COPIED": self.copied}
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
            if buffer.optional and buffer.name not in given:
                continue
            shape = [int(evaluate(n, {**sizes, **lengths})) for _, n in buffer.axes]
            dtype = self.dtype if buffer.dtype == "IO" else self.wide  # SHARED too
            room = torch.full(shape, math.nan, dtype=dtype)
            room = torch.zeros(shape, dtype=torch.int32) if buffer.dtype == "i32" else room
            found[buffer.name] = given.get(buffer.name, room)
        return found

    def programs(self, program: Program) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Tables that a program reads besides, and sizes that it has besides."""
        return {}, {}

    def interpreted(self, program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a program, run by the interpreter after the verifier found no fault."""
        assert not verify(program), [*map(str, verify(program))]
        table, count = self.programs(program)
        sizes = {**self.sizes, **count}
        unused = [] if table else [BORDERS]
        unused += [] if "seed" in given else ["seed"]
        missing = {f"{OF_BUFFER}{name}": MISSING for name in unused}
        wrong = verify_launch(program, {**sizes, **self.constants, **missing})
        assert not wrong, [*map(str, wrong)]
        buffers = self.buffers(program, {**given, **table})
        run(program, buffers, sizes, self.constants, exact=self.dtype == torch.float64)
        return {name: x for name, x in buffers.items() if name not in {**given, **table}}

    def forward(self) -> dict[str, Tensor]:
        """Everything that the forward reads and makes."""
        given = self.sources()
        return given | self.interpreted(forward(self.fold), given)

    def gradients(self, *arriving: Tensor) -> dict[str, Tensor]:
        """The gradient of each input of the body, from what arrives at each result."""
        known = self.forward()
        for name, d in zip(self.made, arriving, strict=True):
            known[f"d_{name}"] = d.to(self.dtype if self.fold.values and name == "o" else self.wide)
        self.backward(known)
        found = {name: torch.zeros_like(x) for name, x in self.inputs.items()}
        for source in map(self.fold.source, self.fold.learned):
            if source.table is not None:
                d = self.of_table(source, known)
            else:
                d = self.of_own(source, known[f"d_{source.name}"].double())
                for dot in self.fold.squares:
                    if dot.reader == source.name and source.dim is not None:
                        place = source.type.names.index(source.dim.name)
                        own = replace(source, dim=None, type=without(source.type, source.dim))
                        arrived = self.of_own(own, known[f"d_{dot.name}"].double())
                        x = self.values(source.node)[0].detach()
                        d = d + 2 * x * arrived.unsqueeze(place)
            if source.summed:
                d = self.in_each(lambda y: y.flip(1).cumsum(1).flip(1), d)
            (value,) = self.values(source.node)
            learned = {n: x for n, x in self.inputs.items() if x.requires_grad}
            made = torch.autograd.grad(value, [*learned.values()], d, allow_unused=True)
            for name, x in zip(learned, made, strict=True):
                found[name] = found[name] if x is None else found[name] + x
        return found

    def backward(self, known: dict[str, Tensor]) -> None:
        """Run the programs of the gradient, and add what they make."""
        tables = [by_distances] if self.fold.lookups else []
        for make in (by_readers, by_tokens, *tables):
            known |= self.interpreted(make(self.fold), known)

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
        return summed_to(d, names, source.type.names)


def summed_to(x: Tensor, have: Sequence[str], wanted: Sequence[str]) -> Tensor:
    """A tensor with axes of these names, without those that are not wanted, which are summed."""
    gone = [place for place, name in enumerate(have) if name not in wanted]
    left = [name for name in have if name in wanted]
    return (x.sum(gone) if gone else x).permute([left.index(name) for name in wanted])


def without(type: Type, axis: Axis) -> Type:
    """A type without one of its axes."""
    return Type(tuple(each for each in type.axes if each != axis), type.dtype)


def drawn(
    attend: ir.Attend, known: Mapping[str, float], dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """Normal numbers for what enters the body of an attend, which learn; a third of what may be
    chosen, of which `known` says by the name of its axis how much there is."""
    T, S = int(known["T#"]), int(known["T_seen#"])
    lengths = {"batch": int(known["batch"]), attend.reader.name: T, attend.read.name: S}
    lengths |= {attend.path.name: S} if attend.path is not None else {}
    generator = torch.Generator().manual_seed(T)
    inputs = {}
    for node in attend.body:
        if isinstance(node.op, ir.Input):
            shape = [int(evaluate(a.size, {**known, **lengths})) if a.kind == "dim"
                     else int({**known, **lengths}[a.name]) for a in node.type.axes]  # fmt: skip
            x = torch.randn(shape, generator=generator, dtype=torch.float64)
            if node.type.dtype == "bool":
                inputs[node.op.name] = x > x.quantile(2 / 3)
                continue
            inputs[node.op.name] = x.to(dtype).double().requires_grad_()
    return inputs


def distance(found: Tensor, wanted: Tensor) -> float:
    """|found - wanted| / |wanted|."""
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30))

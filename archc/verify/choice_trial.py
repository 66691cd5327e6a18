"""One fold over what readers have chosen with numbers: its tile programs in the interpreter, beside
all pairs under the choice as a mask. Imports torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from archc.attention.row_heads import heads_beside
from archc.attention.weighted_sum import Choice, Source
from archc.ir.sizes import evaluate
from archc.lowering.attention import clean
from archc.lowering.attention_chosen import by_choice, of_choosers, of_chosen, unions
from archc.lowering.attention_singly import entries_name, of_singly, totals
from archc.runtime.listings import entries_of, filled, places_of, readers_of
from archc.tile.interpreter import run
from archc.tile.language import Program
from archc.verify.fold_trial import DTYPES, FoldTrial, summed_to

AT_ONCE = 17
"""Readers of whose entries there is room."""
BESIDE = 3
"""Readers of chosen blocks in a program."""


@dataclass
class ChoiceTrial(FoldTrial):
    """One launch of the programs of a fold with a choice, of at most `most` places a reader; the
    lists enter with the rest. Heads of all groups are one axis of what is made."""

    most: int = 1
    readers: tuple[int, int] = (0, 0)

    @property
    def choice(self) -> Choice:
        """The choice."""
        assert self.fold.choice is not None
        return self.fold.choice

    @property
    def places(self) -> int:
        """How many tokens or blocks there are to choose from."""
        return int(-(-self.known["T_seen#"] // evaluate(self.choice.size, self.known)))

    @property
    def sizes(self) -> dict[str, float]:
        """The sizes of every program of the fold."""
        first, readers = self.readers
        found = {"MOST": self.most, "LISTS": self.places, "PARTS": 2}
        found |= {"FIRST": first, "READERS": readers, "ENTRIES": self.known["T#"] * self.most}
        found |= {"BESIDE": BESIDE}
        return {**super().sizes, **found}

    @property
    def constants(self) -> dict[str, int | str]:
        """The constants of every program of the fold."""
        entries = 1 << (BESIDE * self.most - 1).bit_length()
        return {**super().constants, "ENTRY": DTYPES[self.wide], "BLOCK_E": entries}

    def interpreted(self, program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of a program, to which groups of heads are an axis of their own."""
        lengths = {n: x for n, x in self.constants.items() if not isinstance(x, str)}
        known = {**self.sizes, **lengths}
        shapes = {b.name: [int(evaluate(n, known)) for _, n in b.axes] for b in program.buffers}
        known = {name: given[name].reshape(shapes[name]) for name in shapes if name in given}
        made, axes = super().interpreted(program, known), {b.name: b.axes for b in program.buffers}
        for name, x in made.items():
            names = [axis for axis, _ in axes[name]]
            place = names.index("n_group") if {"n_group", "n_row"} <= {*names} else None
            made[name] = x if place is None else x.flatten(place, place + 1)
        return made

    def lists(self) -> dict[str, Tensor]:
        """What each reader has chosen, and who has chosen each block."""
        (chosen,) = self.values(self.choice.source.node)
        names, last = [*self.choice.source.type.names], self.choice.blocks.name
        heads = [own for own, _, _ in self.choice.heads]
        order = ["batch", self.fold.reader.name, *heads, last]
        chosen = chosen.permute([names.index(name) for name in order])
        listed, count = filled(places_of(chosen.bool(), self.most))
        found = {"listed": listed, "count": count}
        if not self.choice.single:
            found |= zip(("order", "begins"), readers_of(listed, count, self.places), strict=True)
            found |= self.interpreted(unions([f"n_{clean(own)}" for own in heads]), found)
        return found

    def forward(self) -> dict[str, Tensor]:
        """Everything that the forward reads and makes."""
        given = {**self.sources(), **self.lists()}
        return given | self.interpreted(by_choice(self.fold), given)

    def backward(self, known: dict[str, Tensor]) -> None:
        """Run the programs of the gradient, and add what they make."""
        if self.choice.single:
            known |= self._of_entries(known)
        else:
            known |= self.interpreted(of_choosers(self.fold), known)
            known |= self.interpreted(of_chosen(self.fold), known)

    def _of_entries(self, known: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The gradients where tokens are chosen one by one, of a few readers at a time: what is of
        the token read is [B, S, heads beside, D]."""
        T, S, B = (int(self.known[name]) for name in ("T#", "T_seen#", "batch"))
        heads = [int(self.sizes[f"N_{n}"]) for n in heads_beside(self.fold)]
        beside = math.prod(heads)
        names = {entries_name(source): f"d_{source.name}" for source in self._read()}
        of_readers, made = dict[str, Tensor](), dict[str, Tensor]()
        for first in range(0, T, AT_ONCE):
            self.readers = first, min(AT_ONCE, T - first)
            each = self.interpreted(of_singly(self.fold), {**known, **of_readers})
            of_readers |= {name: x for name, x in each.items() if name not in names}
            own = slice(first, first + AT_ONCE)
            order, begins = entries_of(known["listed"][:, own], known["count"][:, own], S, beside)
            for name, total in names.items():
                parts, *vector = each[name].shape[3 + len(heads) :]
                many, dim = each[name].shape[1] * self.most, math.prod(vector)
                entries = each[name].reshape(B, many, beside, parts, dim)
                made.setdefault(total, torch.zeros((B, S, beside, dim), dtype=self.wide))
                given = {"entries": entries, "total": made[total], "order": order, "begins": begins}
                sizes = {"B": B, "S": S, "X": beside, "D": dim, "PARTS": parts, "ENTRIES": many}
                constants = {"BLOCK_T": 16, "BLOCK_D": 16, "ENTRY": DTYPES[self.wide]}
                run(totals(), given, sizes, constants, exact=True)
        return made | of_readers

    def _read(self) -> list[Source]:
        """What is of the token read, and has a gradient."""
        return [s for s in map(self.fold.source, self.fold.learned) if s.role == "read"]

    def of_own(self, source: Source, d: Tensor) -> Tensor:
        """A gradient of programs as that of a value which several heads may share."""
        if source.role != "read":
            return super().of_own(source, d)
        if not self.choice.single:
            d = d.sum(0).flatten(1, 2)[:, : int(self.known["T_seen#"])]
        beside = heads_beside(self.fold)
        lengths = [int(self.sizes[f"N_{name}"]) for name in beside]
        names = ["batch", *(a.name for a in source.type.axes if a.kind == "stream"), *beside]
        names += [source.dim.name] if source.dim is not None else []
        d = d.reshape(*d.shape[:2], *lengths, *([d.shape[-1]] if source.dim is not None else []))
        return summed_to(d, names, source.type.names)

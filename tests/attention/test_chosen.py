"""What each reader has chosen: forward and gradients, against the reference and autograd."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

import archc
from archc.attention.recognise import folds
from archc.attention.weighted_sum import WeightedSum
from archc.compile import lowered, slopes_of
from archc.ir import layer as ir
from archc.lowering.attention_chosen import by_choice, of_choosers, of_chosen, unions
from archc.runtime.listings import filled, places_of, readers_of
from archc.tile.language import Program
from archc.verify.fold_trial import distance
from tests.attention.cases import Launch

SPECS = Path(__file__).parents[2] / "specs"
T, SIZES = 40, {"H": 6, "G": 2, "K": 20, "V": 24}
SCORE = "o_slc = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]"
OTHER = "o_slc = softmax(softcap(q[t].T @ k[s] / sqrt(K), 3) - rate * (t - s), sink) @ v[s]"
"""How the spec weighs what is chosen, and another way."""


@cache
def attend_of(score: str) -> ir.Attend:
    """The attend of a layer that reads what is chosen."""
    text = (SPECS / "nsa.arch").read_text(encoding="utf-8").replace(SCORE, score)
    if score != SCORE:
        text = text.replace("W_gate[d, H, 3]", "W_gate[d, H, 3]; rate[H]; sink[H]", 1)
    graph = lowered(archc.parse(text).layer).graph
    attends = [node.op for node in graph if isinstance(node.op, ir.Attend)]
    return next(a for a in attends if any(f.choice for f in folds_of(a)))


def folds_of(attend: ir.Attend) -> list[WeightedSum]:
    """The sums of an attend that are folds."""
    return [f for f in folds(attend, slopes_of) if isinstance(f, WeightedSum)]


class Chosen(Launch):
    """A launch of the programs of what is chosen: lists and counts enter with the rest."""

    more: dict[str, float]

    @property
    def sizes(self) -> dict[str, float]:
        return {**super().sizes, **self.more}

    def lists(self) -> dict[str, Tensor]:
        """The blocks of each reader, and the readers of each block."""
        assert self.fold.choice is not None
        source = self.fold.choice.source
        (chosen,) = self.values(source.node)
        names = [*source.type.names]
        heads = [n for n in names if n not in ("batch", "t", self.fold.choice.blocks.name)]
        order = ["batch", "t", *heads, self.fold.choice.blocks.name]
        chosen = chosen.permute([names.index(n) for n in order])
        listed, count = filled(places_of(chosen.bool(), int(self.more["MOST"])))
        order, begins = readers_of(listed, count, chosen.shape[-1])
        given = {"listed": listed, "count": count, "order": order, "begins": begins}
        return given | self.interpreted(unions([f"n_{name}" for name in heads]), given)

    @property
    def constants(self) -> dict[str, int | str]:
        return {**super().constants, "BLOCK_E": 16}

    def interpreted(self, program: Program, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        known = {n: given[n] for n in (b.name for b in program.buffers) if n in given}
        return super().interpreted(program, known)


def launched(score: str, most: int, size: int, beside: int = 1, **sizes: float) -> Chosen:
    """A launch on normal numbers, and on choices that are drawn."""
    attend = attend_of(score)
    (fold,) = folds_of(attend)
    generator = torch.Generator().manual_seed(0)
    known = {"T#": T, "T_seen#": T, "batch": 2, "pick": size, **SIZES, **sizes}
    blocks = -(-T // size)
    inputs: dict[str, Tensor] = {}
    for node in attend.body:
        if isinstance(node.op, ir.Input):
            lengths = {"batch": 2, "t": T, "s": T, "b_pick": blocks, **SIZES}
            shape = [lengths[axis.name] for axis in node.type.axes]
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            if node.type.dtype == "bool":
                place = node.type.names.index("b_pick")
                best = drawn.argsort(place).narrow(place, 0, most)
                drawn = torch.zeros(shape, dtype=torch.bool).scatter(place, best, True)
                drawn[0, 7] = False  # a reader that reads nothing
                inputs[node.op.name] = drawn
            else:
                inputs[node.op.name] = drawn.requires_grad_()
    case = Chosen(fold, attend, known, inputs)
    case.more = {"MOST": most, "LISTS": blocks, "ENTRIES": T * most, "PARTS": 2, "BESIDE": beside}
    return case


@pytest.mark.default("3-8-5")
@pytest.mark.parametrize(
    ("score", "most", "size", "beside"), [(SCORE, 2, 8, 1), (OTHER, 3, 17, 3), (SCORE, 3, 8, 5)]
)
def test_values_and_gradients(score: str, most: int, size: int, beside: int):
    case = launched(score, most, size, beside)
    (wanted,) = case.values(case.fold.node)
    known = {**case.sources(), **case.lists()}
    known |= case.interpreted(by_choice(case.fold), known)
    assert distance(known["o"].flatten(2, 3), wanted.detach()) < 1e-12
    d_o = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).double()
    known["d_o"] = d_o.view(known["o"].shape)
    known |= case.interpreted(of_choosers(case.fold), known)
    plain = {"o": known["o"].flatten(2, 3), "d_o": d_o}
    plain |= {name: known[name].flatten(1, 2) for name in ("lse", "delta")}
    known |= case.interpreted(of_chosen(case.fold), {**known, **plain})
    inputs = {n: x for n, x in case.inputs.items() if x.requires_grad}
    slopes = torch.autograd.grad(wanted, [*inputs.values()], d_o)
    for name, slope in zip(inputs, slopes, strict=True):
        found = known[f"d_{name}"]
        if name in ("rate", "sink"):
            found = found.flatten(1, 2).sum((0, 2))
        else:
            found = found.flatten(2, 3) if name == "q" else found.sum(0).flatten(1, 2)[:, :T]
        assert distance(found, slope) < 1e-11, name


def test_lists_of_choices():
    chosen = torch.rand(2, 5, 3, 11, generator=torch.Generator().manual_seed(0)) < 0.3
    most = int(chosen.sum(-1).max())
    listed, count = filled(places_of(chosen, most))
    order, begins = readers_of(listed, count, 11)
    for b in range(2):
        for h in range(3):
            for t in range(5):
                own = listed[b, t, h, : count[b, t, h]]
                assert own.tolist() == chosen[b, t, h].nonzero()[:, 0].tolist()
            for block in range(11):
                own = order[b, h, begins[b, h, block] : begins[b, h, block + 1]]
                assert own.tolist() == chosen[b, :, h, block].nonzero()[:, 0].tolist()


def test_what_readers_beside_each_other_have_chosen_is_listed_once():
    case = launched(SCORE, 3, 8, 5)
    lists = case.lists()
    for b, g, first in product(range(2), range(2), range(0, T, 5)):
        chosen: dict[int, int] = {}
        for own in range(5):
            here = (b, first + own, g)
            for block in lists["listed"][here][: lists["count"][here]].tolist():
                chosen[block] = chosen.get(block, 0) + 2**own
        many = lists["many"][b, first // 5, g]
        for name, wanted in (("union", [*chosen]), ("who", [*chosen.values()])):
            assert lists[name][b, first // 5, g, :many].tolist() == wanted


def test_lists_of_one_choice_lie_in_order_in_memory():
    """Kernels read them by one index; a sort keeps the strides of what it sorts."""
    listed = torch.zeros(2, 5, 3, 1, dtype=torch.int32)
    lists = readers_of(listed, torch.ones(2, 5, 3, dtype=torch.int32), 4)
    assert all(each.is_contiguous() for each in lists)

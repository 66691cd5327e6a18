"""Recurrences that are spread over a whole GPU, in the interpreter of tile programs: programs in
lockstep, where what one reads of another without a barrier between them is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import archc
from archc.compile import lowered
from archc.ir.refusal import Refusal
from archc.ir.sizes import evaluate
from archc.lowering.grid_steps import PAIR, over_grid
from archc.runtime.steps import grid_way
from archc.tile.interpreter import WrongProgram
from archc.tile.language import Barrier, statements
from tests.lowering.stepped import BATCH, Launch, Walk, block, kernels_in, walks, walks_of

TWICE = """
layer Twice(d, D = d, slope = 0.5):
    input x[d]
    param W_r, W_n[d, D]; R_r, R_n[D, D']; u[D]
    a_r = x @ W_r
    a_n = x @ W_n
    chunk: sequential
    recurrence h[D], s[D] = 1:
        r = sigmoid(a_r + R_r @ h[t-1])
        n = sin(a_n + u * s[t-1] + R_n @ (r * h[t-1]))
        h[t] = max(r * n, slope * h[t-1])
        s[t] = exp(-abs(n)) * s[t-1] + r
    output h
"""
"""A product of what the other product makes: two barriers a token, and gates that are no LSTM's."""

NORMED = """
layer Normed(d, D = d):
    input x[d]
    param W[d, D]; R[D, D']
    a = x @ W
    chunk: sequential
    recurrence h[D]:
        h[t] = tanh(a + R @ rmsnorm[D](h[t-1], 0.001))
    output h
"""

NORM = "rmsnorm[D](h[t-1], 0.001)"
WINNERS = "where(top(3, h[t-1]), h[t-1], 0)"
TURNED = "take[D](h[t-1], (index[D] + 1) % size(D))"


class Spread(Launch):
    """A launch of a walk that is spread over programs of 16 of a dim."""

    def lowered(self, walk: Walk) -> Any:
        return over_grid(walk.kernel, (), not walk.learns)

    def numbers(self) -> dict[str, int | str]:
        found, size = super().numbers(), int(evaluate(self.exchanged[-1], self.known))
        found |= {"ROWS": 16, "BLOCK": 16, "SPLITS": 2, "SHARE": block(size, 32) // 2}
        return {name: x for name, x in found.items() if name in self.made.program.constants}

    @property
    def exchanged(self) -> list[Any]:
        """The sizes of the memory that programs hand values to each other in."""
        assert self.made.spread is not None
        names = dict(self.made.sizes)
        sizes = [size for _, size in self.made.spread.exchange.axes]
        return [size.subs({s: names.get(str(s), s) for s in size.free_symbols}) for size in sizes]

    def place(self) -> None:
        super().place()
        known = {**self.known, "B": BATCH}
        shape = [int(evaluate(size, known)) for size in self.exchanged]
        self.tensors["exchange"] = torch.full(shape, torch.nan, dtype=torch.float64)
        self.tensors["counter"] = torch.zeros(1, dtype=torch.int32)

    def barriers(self) -> int:
        """The barriers of a token."""
        program = self.made.program
        return sum(isinstance(s.op, Barrier) for s in statements(program.body))


def of_text(text: str, unit: int) -> list[Walk]:
    layer = lowered(archc.parse(text).layer)
    return [*walks_of(layer, kernels_in(layer), unit)]


@pytest.mark.default("lstm")
@pytest.mark.parametrize("spec", ["lstm", "slstm"])
def test_bundled_cells(spec: str) -> None:
    """For values, forward to learn and back; programs of 16, and 20 of a dim."""
    torch.manual_seed(0)
    launches = [Spread(walk, 4, in_place=False) for walk in walks(spec, 20)]
    assert len(launches) == 3 and all(launch.barriers() == 1 for launch in launches)
    assert all(launch.error() < 1e-10 for launch in launches)
    assert all(launch.made.program.ahead == 1 for launch in launches), "nothing is there earlier"


def test_a_product_of_what_another_product_makes_waits_twice() -> None:
    torch.manual_seed(0)
    launches = [Spread(walk, 5, in_place=True) for walk in of_text(TWICE, 40)]
    assert [launch.barriers() for launch in launches] == [2, 2, 3], "back: what r h is, too"
    assert all(launch.error() < 1e-10 for launch in launches)


def test_no_token_hands_out_nothing() -> None:
    assert all(Spread(walk, 0, in_place=True).error() < 1e-10 for walk in walks("lstm", 20))


def test_one_token_in_memory_is_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is a token ahead would overwrite what others still read."""
    monkeypatch.setattr("archc.lowering.grid_steps.PAIR", 1)
    walk = next(walks("lstm", 20))
    with pytest.raises(WrongProgram, match="no barrier stands between them"):
        Spread(walk, 4, in_place=False).error()
    assert PAIR == 2


def test_what_needs_all_of_the_dim_in_another_way_is_refused() -> None:
    for read in (NORM, WINNERS, TURNED):
        made = over_grid(of_text(NORMED.replace(NORM, read), 20)[0].kernel)
        assert isinstance(made, Refusal) and "programs share" in made.reason
    (walk, *_) = walks("kda", 4)
    made = over_grid(walk.kernel)
    assert isinstance(made, Refusal) and "no product with weights" in made.reason


def test_no_more_programs_than_run_at_once() -> None:
    """Of 132 processors; weights of 4096 x 4096 have no room in all of them together."""
    assert grid_way(16, 1, 1024, 4, 2, 132) == (16, 8, 4, 256)
    for batch in (1, 16, 100, 1000):
        for heads, dim in ((1, 1024), (4, 512), (3, 300)):
            way = grid_way(batch, heads, dim, 4, 2, 132)
            if way is not None:
                rows, part, splits, share = way
                assert -(-batch // rows) * heads * -(-dim // part) <= 132 and splits * share >= dim
    assert grid_way(16, 1, 4096, 4, 2, 132) is None and grid_way(10**4, 1, 1024, 4, 2, 132) is None
    assert grid_way(16, 1, 1024, 4, 2, 0) is None

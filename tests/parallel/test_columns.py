"""What a part of a sequence does to a state, by the recurrence's own run on more columns: three
parts, each in a thread of its own, against the whole."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor

import archc
from archc.algebra import cut
from archc.compile import before_chunks
from archc.ir import layer as ir
from archc.numerics.stated import stated
from archc.parallel import widened
from archc.parallel.execute import PieceFunction
from archc.parallel.mesh import Ranks
from archc.parallel.pieces import RECURRENCE, Piece
from archc.recurrence.analysis.columns import columns_of
from tests.test_law import random_inputs

PARTS = 3

COLUMN_FIRST = """
layer ColumnFirst(H, K = 3, V = 5):
    input k[H, K], q[H, K], v[H, V], f[H, K]
    recurrence S[V, K] over H:
        S[t] = S[t-1] @ (diag(sigmoid(f)) - 0.1 * k @ k.T) + v @ k.T
        o    = S[t] @ q
        all  = 2 * S[t]
    output o; output all
"""

NO_KEY = """
layer NoKey(H, V = 5):
    input v[H, V], f[H]
    recurrence h[V] over H:
        h[t] = exp(-softplus(f)) * h[t-1] + v
    output h
"""

MIXED = """
layer Mixed(D = 4):
    input u[D]
    recurrence h[D]:
        h[t] = 0.5 * h[t-1] + u
        o    = h[t] - mean[D](h[t])
    output o
"""

AFFINE = NO_KEY.replace("+ v", "+ v + 1").replace("NoKey", "Affine")
WIDTH = NO_KEY.replace("+ v", "+ v / V").replace("NoKey", "Width")


def memory_of(name: str, **given: int) -> ir.Layer:
    """The memory of a bundled spec with some sizes, or of a text."""
    spec = archc.load(name, **given) if name.isidentifier() else archc.parse(name)
    ready = before_chunks(spec.layer)
    return cut.op(ready, stated(ready))


def inputs_of(name: str) -> list[Tensor]:
    spec = archc.load(name) if name.isidentifier() else archc.parse(name)
    return random_inputs(spec)


def at_once(run: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each of the threads makes; what they tell each other goes through a list."""
    said: list[Tensor] = [torch.empty(0)] * PARTS
    barrier = threading.Barrier(PARTS, timeout=60)

    def told(ranks: Ranks, what: str, x: Tensor) -> list[Tensor]:
        said[ranks.rank] = x
        barrier.wait()
        found = [*said]
        barrier.wait()
        return found

    monkeypatch.setattr(widened, "told", told)
    with ThreadPoolExecutor(PARTS) as pool:
        return [*pool.map(run, range(PARTS))]


@pytest.mark.parametrize("name", ["kda", "gated_delta_product", "mamba2", COLUMN_FIRST, NO_KEY])
def test_parts_are_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs, and gradients of all that is given and of the first state, which is not 0."""
    memory = memory_of(name)
    found, zero = columns_of(memory), sympy.Integer(0)
    assert found is not None
    call = PieceFunction(Piece(RECURRENCE, memory, (), (), False, zero, {}), {}, "eager")
    inputs = inputs_of(name)
    nothing = call.first_state(inputs)
    State, (empty,) = type(nothing), nothing
    first = torch.cos(torch.arange(empty.numel(), dtype=torch.float64)).view(empty.shape)
    given = [x.clone().requires_grad_() for x in (*inputs, first)]
    wanted, _ = call(given[:-1], State(given[-1]), False)
    weights = [torch.cos(torch.arange(x.numel(), dtype=x.dtype)).view(x.shape) for x in wanted]
    expected = torch.autograd.grad(wanted, given, weights)

    def part(rank: int) -> tuple[Any, Any]:
        ranks = Ranks("cp", None, rank, PARTS)  # type: ignore[arg-type]  # nothing is asked of it
        own = [mine(x, rank).clone().requires_grad_() for x in inputs]
        start = first.clone().requires_grad_()
        made = widened.by_columns(ranks, found, memory, call, own, State(start))
        slopes = [mine(x, rank) for x in weights]
        leaves = [*own, start] if rank == 0 else own
        return made, torch.autograd.grad(made, leaves, slopes)

    results = at_once(part, monkeypatch)
    for rank, (made, slopes) in enumerate(results):
        assert all(near(x, mine(y, rank)) for x, y in zip(made, wanted, strict=True))
        pairs = zip(slopes, expected, strict=False)
        assert all(near(x, y if y is expected[-1] else mine(y, rank)) for x, y in pairs)


def mine(x: Tensor, rank: int) -> Tensor:
    """The tokens of a part: parts need not be equally long here."""
    cuts = (0, 11, 24, 37)
    return x[:, cuts[rank] : cuts[rank + 1]]


def near(x: Tensor, y: Tensor) -> bool:
    return torch.allclose(x, y, 1e-9, 1e-9)


@pytest.mark.parametrize("name", ["mlstm", "mamba", "rwkv7", "slstm", MIXED, AFFINE, WIDTH])
def test_what_has_no_columns(name: str) -> None:
    """A state that is not linear, whose decay is along every axis, that is summed over, written
    what is not given, or scaled by its width."""
    assert columns_of(memory_of(name)) is None


def test_axes_of_columns() -> None:
    found = columns_of(memory_of(COLUMN_FIRST))
    assert found is not None
    assert (found.column, found.rows, found.shared) == ("V", ("K",), ("batch", "H"))

"""Packed sequences: each as if it were alone, empty ones among them, in modules and functions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from archc.backends.load import load
from torch import Tensor

import archc
from archc.compile import text_of

SIZES = {"H": 2, "K": 4, "V": 3}
LENGTHS = ([0, 0, 5, 20, 0, 5, 0], [0], [0, 0], [7, 0], [0, 21])

TEXT = """layer Mixed(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H]
    param rate[H]; scale[] = 2; lam[K]
    g = -exp(rate) * softplus(a)
    recurrence S[K, V] over H:
        S[t] = exp(g) * S[t-1] + k @ v.T
        o = scale * (S[t].T @ (sigmoid(lam) * q))
    output o
"""


def inputs(tokens: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = {"q": (2, 4), "k": (2, 4), "v": (2, 3), "a": (2,)}
    return {
        name: torch.randn(1, tokens, *shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def bounds_of(lengths: list[int]) -> list[int]:
    found = [0]
    for length in lengths:
        found.append(found[-1] + length)
    return found


def check(run: Callable[..., Any], lengths: list[int], fixed: dict[str, Tensor]) -> None:
    """`run(..)` gives the output and the state; `fixed` are values that sequences share."""
    bounds = bounds_of(lengths)
    given = inputs(bounds[-1])
    o, state = run(**given, **fixed, cu_seqlens=torch.tensor(bounds))
    assert o.shape[:2] == (1, bounds[-1]) and state.S.shape[0] == len(lengths)
    for i, (first, stop) in enumerate(pairwise(bounds)):
        part = {name: x[:, first:stop] for name, x in given.items()}
        alone, after = run(**part, **fixed)
        torch.testing.assert_close(o[:, first:stop], alone)
        torch.testing.assert_close(state.S[i : i + 1], after.S)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_module(lengths: list[int]) -> None:
    module = archc.parse(TEXT).module(**SIZES, dtype=torch.float64)

    def run(**given: Tensor) -> Any:
        return module(**given, return_state=True)

    check(run, lengths, {})


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_a_function_that_is_given_parameters(lengths: list[int]) -> None:
    module = archc.parse(TEXT).module(**SIZES, dtype=torch.float64)
    fixed = {name: param.detach() for name, param in module.named_parameters()}
    check(archc.parse(TEXT).fused_op, lengths, fixed)


def test_gradients_reach_every_sequence_and_no_other() -> None:
    module = archc.parse(TEXT).module(**SIZES, dtype=torch.float64)
    given = {name: x.requires_grad_() for name, x in inputs(26).items()}
    o = module(**given, cu_seqlens=torch.tensor([0, 0, 20, 26]))
    made = torch.autograd.grad(o[:, :20].square().sum(), list(given.values()))
    assert all(g[:, 20:].count_nonzero() == 0 for g in made)
    alone = module(**{name: x[:, :20] for name, x in given.items()})
    wanted = torch.autograd.grad(alone.square().sum(), list(given.values()))
    torch.testing.assert_close(made, wanted)


BAD: list[tuple[Any, type[Exception], str]] = [
    (torch.tensor([0, 4, 2, 9]), ValueError, "must ascend from 0 to the number of tokens, 9"),
    (torch.tensor([0, 4]), ValueError, "must ascend from 0 to the number of tokens, 9"),
    (torch.tensor([2, 9]), ValueError, "must ascend from 0"),
    (torch.tensor([-1, 0, 9]), ValueError, "must ascend from 0"),
    (torch.tensor([]), TypeError, "must be a tensor of integers"),
    (torch.tensor([0.0, 9.0]), TypeError, "must be a tensor of integers"),
    (torch.tensor([], dtype=torch.int64), ValueError, "for N >= 1 sequences"),
    (torch.tensor([[0, 9]]), ValueError, "for N >= 1 sequences"),
    (torch.tensor([True, False]), TypeError, "must be a tensor of integers"),
    ([0, 9], TypeError, "must be a tensor of integers"),
    (torch.tensor([0, 9], dtype=torch.int16), TypeError, "torch.int32 or torch.int64.*int16"),
    (torch.tensor([0, 9], device="meta"), ValueError, "is on meta, not on cpu"),
]


@pytest.mark.parametrize(("bounds", "kind", "message"), BAD, ids=str)
def test_wrong_bounds(bounds: Any, kind: type[Exception], message: str) -> None:
    module = archc.parse(TEXT).module(**SIZES, dtype=torch.float64)
    with pytest.raises(kind, match=f"Mixed: .*`cu_seqlens`.*{message}"):
        module(**inputs(9), cu_seqlens=bounds)


def test_values_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one tensor of borders, until it or the number of tokens is another."""
    module = archc.parse(TEXT).module(**SIZES, dtype=torch.float64)
    check = sys.modules[type(module).__module__].check_packed
    looked = []
    monkeypatch.setitem(check.__globals__, "sequence_bounds", lambda *given: looked.append(given))
    borders, x = torch.tensor([0, 4, 9]), torch.zeros(1, 9, 1)
    for _ in range(3):
        check("Mixed", borders, x)
    assert len(looked) == 1
    check("Mixed", borders, x[:, :8])
    borders[1] = 5
    check("Mixed", borders, x[:, :8])
    assert len(looked) == 3


CHANGES: dict[str, Callable[[Tensor], Any]] = {
    "in place": lambda borders: borders.__setitem__(1, 5),
    "numpy": lambda borders: borders.numpy().__setitem__(1, 5),
    "data": lambda borders: borders.data.__setitem__(1, 5),
    "another storage": lambda borders: setattr(borders, "data", torch.tensor([0, 5, 9])),
}


@pytest.mark.default("in place", "eager")
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("change", CHANGES)
def test_borders_that_change_in_place(change: str, backend: str) -> None:
    """Also where torch is told nothing: tables of the old ones would mix sequences."""
    module = archc.load("mamba").module(d=4, D=4, N=2, r=2, backend=backend, dtype=torch.float64)
    x = torch.randn(1, 9, 4, dtype=torch.float64)
    borders = torch.tensor([0, 4, 9])
    first = module(x, cu_seqlens=borders)
    CHANGES[change](borders)
    wanted = module(x, cu_seqlens=torch.tensor([0, 5, 9]))
    assert not torch.equal(first, wanted)
    torch.testing.assert_close(module(x, cu_seqlens=borders), wanted, rtol=0, atol=0)
    borders.data[1] = 10
    with pytest.raises(ValueError, match="must ascend"):
        module(x, cu_seqlens=borders)


def test_gradients_of_all_sequences_in_one_run() -> None:
    """What the last states were is kept of every sequence: by the op, which is given the borders,
    as where a function does one after the other. A sequence of no token gives its states back, and
    what the last one rises by is the first one's alone."""
    module: Any = load(text_of(archc.load("mlstm").layer, "eager"), "mlstm")
    generator = torch.Generator().manual_seed(0)
    bounds, rows = torch.tensor([0, 1, 24, 24, 40]), 4
    shapes = [(1, 40, 2, 4), (1, 40, 2, 4), (1, 40, 2, 3), (1, 40, 2), (1, 40, 2)]
    shapes += [(rows, 2, 4, 3), (rows, 2, 4), (rows, 2)]
    given = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
    given = [x.requires_grad_() for x in given]
    found = []
    for made in (
        module.mlstm_memory_op(*given, bounds, 16)[:4],
        module.mlstm_memory(*given, chunk=16, cu_seqlens=bounds),
    ):
        weighed = [(x * torch.linspace(-1, 1, x.numel()).view_as(x)).sum() for x in made]
        found.append([*made, *torch.autograd.grad(weighed, given)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)

"""Recurrences without a chunked form whose states are matrices learn from spans of tokens: the same
gradients, and the states before every token are never there at once."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from archc.runtime.steps import checkpointed, tokens_between
from archc.schedule import token_walks
from tests.backends.triton.processes import printed
from tests.gpu.memories import memories

THERE_AND_BACK = "7 7 7 2 2 7 7 7"
"""Tokens of spans, of 23: forward, and each again from the last on."""


def test_a_span_is_a_gigabyte_or_about_the_square_root_of_all_tokens() -> None:
    """Where the states before each would take more than a gigabyte; in files as in plans."""
    assert tokens_between(8192, 2**15) == 8192
    assert tokens_between(8192, 2**15 + 1) == 4096
    assert tokens_between(8192, 2**20) == 256
    assert tokens_between(8192, 2**24) == 91
    assert tokens_between(20, 2**30) == 10
    sizes = [(8192, 2**15), (8192, 2**15 + 1), (20, 2**30), (1, 1), (100_000, 2**20)]
    for each in sizes:
        assert tokens_between(*each) == token_walks.tokens_between(*each)


class Summed(torch.autograd.Function):
    """S[t] = S[t-1] + x[t], which keeps the states of all tokens for its gradient."""

    kept: ClassVar[list[weakref.ref[Tensor]]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        states = S[:, None] + x.cumsum(1)
        Summed.kept.append(weakref.ref(states))
        ctx.save_for_backward(states)
        return states.square(), states[:, -1].clone()

    @staticmethod
    def backward(ctx: Any, d_y: Tensor, d_S: Tensor) -> tuple[Tensor, Tensor]:
        (states,) = ctx.saved_tensors
        d_states = 2 * states * d_y
        d_states[:, -1] += d_S
        return d_states.flip(1).cumsum(1).flip(1), d_states.sum(1)


def test_states_inside_of_a_span_are_not_kept() -> None:
    x, S = torch.randn(2, 23, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    given = (x.requires_grad_(), S.requires_grad_())
    y, last = checkpointed(Summed.apply, 7, [x], [S])
    assert len(Summed.kept) == 4 and not [each for each in Summed.kept if each() is not None]
    wanted = Summed.apply(*given)
    assert torch.allclose(y, wanted[0]) and torch.allclose(last, wanted[1])
    made, all_at_once = (
        torch.autograd.grad(y.sum() + 3 * last.sum(), given) for y, last in ((y, last), wanted)
    )
    assert all(torch.allclose(a, b) for a, b in zip(made, all_at_once, strict=True))


def test_what_runs_from_the_last_token_on_goes_in_spans_from_there() -> None:
    def run(x: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        y, first = Summed.apply(x.flip(1), S)
        return y.flip(1), first

    x, S = torch.randn(2, 23, 3), torch.randn(2, 3)
    for found, wanted in zip(checkpointed(run, 7, [x], [S], True), run(x, S), strict=True):
        assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.slow
def test_gradients_are_the_same_to_the_bit() -> None:
    assert printed("spans", "plain") == [f"spans: {THERE_AND_BACK}", "same: True"]


def test_a_graph_asks_nothing_of_the_number_of_tokens() -> None:
    """It would be another graph for more of them: all states are kept in one."""
    (memory,) = memories("momentum")

    def never(tokens: int, numbers: int) -> int:
        raise AssertionError("a graph depends on the number of tokens")

    vars(memory.module)["tokens_between"] = never
    run = torch.compile(getattr(memory.module, memory.name), fullgraph=True, backend="eager")
    for T in (20, 33):
        q, v, a = torch.randn(1, T, 2, 5), torch.randn(1, T, 2, 3), torch.rand(1, T, 2)
        given = (q.requires_grad_(), q, v, a, a, a, *torch.zeros(2, 1, 2, 5, 3))
        assert run(*given)[0].shape == (1, T, 2, 3)


@pytest.mark.slow
def test_packed_sequences_go_in_spans_too() -> None:
    """Each by itself."""
    assert printed("spans", "packed") == ["spans: 7 4 7 5 5 7 4 7", "same: True"]


@pytest.mark.slow
def test_what_all_tokens_share_learns_from_every_span() -> None:
    *errors, spans = printed("spans", "shared")
    assert spans == f"spans: {THERE_AND_BACK}" and any("d gain: True" in each for each in errors)
    assert not [each for each in errors if not each.endswith("True")]

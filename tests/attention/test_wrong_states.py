"""What a layer with an attend refuses of a state, by name, and what is defined where nothing is
read."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archc
from archc.slots import in_slots, put

SIZES: dict[str, dict[str, Any]] = {
    "attention": {"H": 2},
    "window_attention": {"H": 2, "w": 3},
    "mla": {"H": 2, "K": 4, "R": 4, "V": 4, "C": 8, "Q": 8},
    "nsa": {"H": 4, "G": 2, "K": 4, "V": 4, "size": 4, "stride": 2, "pick": 4, "n": 3, "w": 4},
    "path_fox": {"H": 2, "r": 4},
}


def after_three(name: str, backend: str = "eager") -> tuple[nn.Module, Any, list[str]]:
    """A layer, what it remembers of three tokens, and what it keeps of each of them."""
    module: Any = archc.load(name).module(backend=backend, d=16, **SIZES[name])
    with torch.no_grad():
        _, state = module(torch.randn(2, 3, 16), return_state=True)
    kept = [field for field, x in state._asdict().items()
            if isinstance(x, Tensor) and not field.endswith("past") and x.shape[1] > 1]  # fmt: skip
    return module, state, kept


@pytest.mark.default("eager", "nsa")
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("name", SIZES)
def test_a_state_that_keeps_more_of_some_tokens(name: str, backend: str) -> None:
    module, state, kept = after_three(name, backend)
    wrong = state._replace(**{kept[-1]: getattr(state, kept[-1])[:, :1]})
    with pytest.raises(ValueError, match=rf"`state.{kept[-1]}` 1: they keep the same ones"):
        module(torch.randn(2, 1, 16), state=wrong)


@pytest.mark.parametrize("name", SIZES)
def test_a_state_that_has_seen_less_than_it_keeps(name: str) -> None:
    module, state, kept = after_three(name)
    x = torch.randn(2, 1, 16)
    with pytest.raises(ValueError, match=r"must be the number of tokens seen, got -1"):
        module(x, state=state._replace(pos=-1))
    with pytest.raises(ValueError, match=r"has \d tokens, and `state.pos` = 1 were seen"):
        module(x, state=state._replace(pos=1))
    for pos in (True, 3.0, torch.tensor(3)):
        with pytest.raises(TypeError, match=r"`state.pos` must be a whole number"):
            module(x, state=state._replace(pos=pos))
    with pytest.raises(ValueError, match=re.escape(f"`state.{kept[0]}` is on meta, not on cpu")):
        module(x, state=state._replace(**{kept[0]: getattr(state, kept[0]).to("meta")}))


def test_sequences_that_a_state_does_not_have() -> None:
    _, state, _ = after_three("attention")
    for index in (2, -1, [0, 2], torch.tensor([1, 7])):
        with pytest.raises(IndexError, match="is of 2 sequences, from 0 on: there is no"):
            state.select(index)
    with pytest.raises(ValueError, match="a mask has 2 truth values"):
        state.select(torch.tensor([True, False, True]))
    with pytest.raises(TypeError, match="whole numbers or a mask"):
        state.select(1.5)
    assert state.select([]).k.shape[0] == 0 and state.select([1, 1]).k.shape[0] == 2
    assert state.select(torch.tensor([False, True])).k.shape[0] == 1


@torch.no_grad()
def test_slots_that_are_not_there_or_too_short() -> None:
    module, three, _ = after_three("mla")
    state = in_slots(module).initial_state(3, 4)
    for slot in (3, -1):
        with pytest.raises(IndexError, match=f"there are 3 slots, from 0 on: there is no {slot}"):
            put(state, three.select(0), slot)
    with pytest.raises(ValueError, match="a slot is for one sequence, and `c` is of 2"):
        put(state, three, 1)
    _, long = module(torch.randn(1, 5, 16), return_state=True)
    with pytest.raises(ValueError, match="`c` has 5 tokens, and a slot has room for 4"):
        put(state, long, 1)
    with pytest.raises(ValueError, match="`pos` is the number of tokens seen"):
        in_slots(module)(torch.randn(3, 1, 16), state=state._replace(pos=torch.tensor([0, -1, 0])))


EMPTY = """layer Empty(d, H, K, w = 0, n = 3):
    input x[d]
    param W_q, W_k, W_v[d, H, K]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    attend {} over H:
        z = q[t].T @ k[s]
        o = {}
    output o
"""


@pytest.mark.parametrize(
    ("range", "sum", "first"),
    [
        ("s < t", "softmax(z) @ v[s]", 1),
        ("s < t", "z @ v[s]", 1),
        ("t - w < s <= t", "softmax(z) @ v[s]", 6),
        ("s <= t - n", "softmax(z) @ v[s]", 3),
        ("s <= t", "softmax(where(s < t - 2, z, -inf)) @ v[s]", 3),
    ],
)
def test_readers_of_nothing_are_zero_and_so_are_their_slopes(
    range: str, sum: str, first: int
) -> None:
    layer: Any = archc.parse(EMPTY.format(range, sum)).module(d=5, H=2, K=4, dtype=torch.float64)
    x = torch.randn(2, 6, 5, dtype=torch.float64, requires_grad=True)
    o = layer(x)
    assert (o[:, :first] == 0).all() and (o[:, first:] != 0).all()
    (empty,) = torch.autograd.grad(o[:, :first].sum(), x, retain_graph=True)
    assert (empty == 0).all()
    assert torch.autograd.gradcheck(layer, x)


@pytest.mark.parametrize("n", [0, 1, 100])
def test_choices_of_none_and_of_more_than_there_are(n: int) -> None:
    """The same as of all there are, where more are asked for; finite slopes where none is."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {**SIZES["nsa"], "d": 16, "dtype": torch.float64}
    layer: Any = archc.load("nsa").module(**{**sizes, "n": n})
    x = torch.randn(1, 9, 16, dtype=torch.float64, requires_grad=True)
    o = layer(x)
    (slope,) = torch.autograd.grad(o.square().sum(), x)
    assert o.isfinite().all() and slope.isfinite().all()
    if n == 100:  # 9 tokens are 3 blocks of 4
        fewer: Any = archc.load("nsa").module(**{**sizes, "n": 3})
        fewer.load_state_dict(layer.state_dict())
        assert torch.equal(fewer(x), o)

"""A token of PaTH reads keys that were moved by those between, held against the whole sequence."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archc
from archc.api import load as load_layer
from archc.attention.moved_keys import moved_keys
from archc.compile import lowered
from archc.ir import layer as ir
from archc.runtime import moving as runtime
from tests.specs.references.weights import randomise

TOGETHER = """layer Together(d, H, K):
    \"\"\"Matrices with two outer products, beside keys that are read as they are.\"\"\"
    input x[d]
    param W_q, W_k, W_v, W_a, W_b, W_c[d, H, K]; u[d, H]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    a = l2norm[K](x @ W_a)
    b = l2norm[K](x @ W_b)
    c = x @ W_c / 4
    g = x @ u
    attend s <= t over H:
        P = product i in (s, t]: I + sigmoid(g[i]) * a[i] @ c[i].T - b[i] @ b[i].T
        o = softmax(v[s].T @ q[t] + k[s].T @ P @ q[t] / sqrt(K)) @ v[s]
    output o
"""
CHANNELS = """layer Channels(d, H, K):
    \"\"\"Keys that gates scale by channel, beside keys that are read as they are.\"\"\"
    input x[d]
    param W_q, W_k, W_v, W_g[d, H, K]; u[d, H]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    g = logsigmoid(x @ W_g)
    b = logsigmoid(x @ u)
    attend s <= t over H:
        c = sum i in (s, t]: g[i] + b[i]
        o = softmax(v[s].T @ q[t] + sum[K](q[t] * exp(c) * k[s]) / sqrt(K)) @ v[s]
    output o
"""
TEXTS = {"together": TOGETHER, "channels": CHANNELS}
SPECS: dict[str, dict[str, Any]] = {
    "path": {"r": 5}, "path_fox": {"r": 5}, "together": {"K": 6}, "channels": {"K": 6},
}  # fmt: skip


def built(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, Tensor]:
    spec = archc.parse(TEXTS[name]) if name in TEXTS else archc.load(name)
    layer = spec.module(d=12, H=2, **SPECS[name], dtype=dtype)
    x = torch.randn(2, 23, 12, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return randomise(layer, seed=0).eval(), x.to(dtype)


def count_all(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[int]:
    """How many tokens moved keys at a time, one entry a call."""
    found: list[int] = []

    def counted(move: Any, memory: Tensor, copy: Tensor, S: int, first: int, *by: Tensor) -> None:
        found.append(S - first)
        move(memory, copy, S, first, *by)

    for name in ("move_by_torch", "move_by_gates"):
        monkeypatch.setattr(module, name, partial(counted, getattr(runtime, name)), raising=False)
    return found


def text_module(layer: nn.Module) -> Any:
    return __import__("sys").modules[type(layer).__module__]


@pytest.mark.parametrize("name", SPECS)
@torch.no_grad()
def test_tokens_after_pieces_are_those_of_the_whole(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = built(name)
    moves = count_all(monkeypatch, text_module(layer))
    state, made = None, []
    for piece in x.split([9, 1, 1, 3, 1, 1, 1, 6], 1):
        o, state = layer(piece, state=state, return_state=True)
        made.append(o)
    assert (torch.cat(made, 1) - layer(x)).abs().max() < 1e-12
    assert moves == [10, 1, 15, 1, 1]


@torch.no_grad()
def test_roundings_of_many_tokens_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = archc.load("path").module(d=32, H=1, K=16, r=8, dtype=torch.float64)
    randomise(layer, seed=0).b_b.fill_(4)  # matrices that keep what is long ago
    layer = layer.bfloat16().eval()
    given: tuple[Tensor, ...] = ()
    keys = torch.empty(0)

    def recorded(*args: Any) -> Tensor:
        nonlocal given, keys
        given, keys = args[3], runtime.moved_keys(*args)
        return keys

    monkeypatch.setattr(text_module(layer), "moved_keys", recorded)
    x = torch.randn(1, 1008, 32, generator=torch.Generator().manual_seed(1)).bfloat16()
    state = None
    for piece in x.split([8] + [1] * 1000, 1):
        _, state = layer(piece, state=state, return_state=True)
    k, beta, w = (x.double() for x in given)
    for t in range(1, 1008):
        by = (k[:, :t] * w[:, t, None]).sum(-1, keepdim=True)
        k[:, :t] -= beta[:, t, None, :, None] * by * w[:, t, None]
    assert keys.dtype == torch.bfloat16 and k.shape[1] == 1008
    assert (keys - k).norm() / k.norm() < 4e-3  # of rounding once, for readers


@torch.no_grad()
def test_a_state_may_be_continued_twice_and_cut() -> None:
    layer, x = built("path_fox")
    whole = layer(x)
    _, state = layer(x[:, :9], return_state=True)
    _, after = layer(x[:, 9:10], state=state, return_state=True)
    layer(x[:, :1], state=after, return_state=True)  # another way on, which moves the same keys
    found, after = layer(x[:, 10:11], state=after, return_state=True)
    assert (found - whole[:, 10:11]).abs().max() < 1e-12
    other = after._replace(w=after.w.flip(0).clone())
    fresh = type(after)(*(x.clone() if isinstance(x, Tensor) else x for x in other))
    pair = [layer(x[:, 11:12], state=one, return_state=True)[0] for one in (other, fresh)]
    assert (pair[0] - pair[1]).abs().max() < 1e-12  # other matrices beside keys that were moved
    one = after.select(1)
    found, _ = layer(x[1:, 11:12], state=one, return_state=True)
    assert (found - whole[1:, 11:12]).abs().max() < 1e-12
    roomy = after.reserve(13)
    for t in (11, 12):
        found, roomy = layer(x[:, t : t + 1], state=roomy, return_state=True)
        assert (found - whole[:, t : t + 1]).abs().max() < 1e-12
    with pytest.raises(ValueError, match="the cache is full"):
        layer(x[:, 13:14], state=roomy)


def test_what_learns_reads_keys_as_they_are() -> None:
    layer, x = built("path")
    with torch.no_grad():
        _, state = layer(x[:, :9], return_state=True)
    token = x[:, 9:10].clone().requires_grad_()
    layer(token, state=state).square().sum().backward()
    whole = x.clone().requires_grad_()
    layer(whole)[:, 9].square().sum().backward()
    assert token.grad is not None and whole.grad is not None
    assert (token.grad - whole.grad[:, 9:10]).abs().max() < 1e-12


@torch.no_grad()
def test_inference_mode_and_none_take_turns() -> None:
    layer, x = built("path")
    with torch.inference_mode():
        _, state = layer(x[:, :9], return_state=True)
        _, state = layer(x[:, 9:10], state=state, return_state=True)
    found, _ = layer(x[:, 10:11], state=state, return_state=True)
    assert (found - layer(x)[:, 10:11]).abs().max() < 1e-12


def attend_of(text: str) -> ir.Attend:
    layer = archc.parse(text).layer
    return next(n.op for n in lowered(layer).graph if isinstance(n.op, ir.Attend))


def test_keys_that_are_read_as_they_are_too_are_not_moved() -> None:
    attend = next(n.op for n in lowered(load_layer("path").layer).graph
                  if isinstance(n.op, ir.Attend))  # fmt: skip
    found = moved_keys(attend)
    assert found is not None and (found.key, found.signs) == ("k", (-1,))
    assert moved_keys(attend_of(TOGETHER)) is not None
    assert moved_keys(attend_of(TOGETHER.replace("v[s].T @ q", "k[s].T @ q"))) is None
    assert moved_keys(attend_of(TOGETHER.replace("s <= t over", "t - 9 < s <= t over"))) is None


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("field", ["k", "w"])
def test_a_state_that_is_written_to_is_read_as_it_is(
    field: str, mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token after a write to what is kept is that of a state which never had other values."""
    layer, x = built("path")
    moves = count_all(monkeypatch, text_module(layer))
    with mode():
        _, state = layer(x[:, :9], return_state=True)
        for t in (9, 10):
            _, state = layer(x[:, t : t + 1], state, return_state=True)
        getattr(state, field)[:, 3] *= 0.5
        other = type(state)(*(y.clone() if isinstance(y, Tensor) else y for y in state))
        found, wanted = (layer(x[:, 11:12], each) for each in (state, other))
    assert torch.equal(found, wanted)
    assert moves == [10, 1, 12, 12]

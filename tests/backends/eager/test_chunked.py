"""Recurrences by chunks, and packed sequences: the numbers of one token after the other."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from itertools import pairwise
from types import ModuleType

import pytest
import torch
from archc.backends.eager.emit import emit
from archc.backends.load import load
from torch import Tensor, nn

import archc
from archc.compile import lowered
from archc.ir.plan import Plan
from archc.ir.rewrite import rewrite
from archc.runtime import ops

SPEC = """
layer Corrected(H, K, V):
    input q[H, K], k[H, K], v[H, V], x[H, K], b[H]
    alpha = exp(-softplus(x))
    recurrence S[K, V] over H:
        S[t] = (I - b * k @ k.T) @ diag(alpha) @ S[t-1] + b * k @ v.T
        o    = S[t].T @ q
    output o
"""
SIZES = {"H": 2, "K": 4, "V": 3}
INPUTS = {"q": "HK", "k": "HK", "v": "HV", "x": "HK", "b": "H"}


@cache
def made(name: str = "Corrected", dtype: torch.dtype = torch.float64) -> nn.Module:
    return archc.parse(SPEC, layer=name).module(dtype=dtype, **SIZES)


def inputs(tokens: int, batch: int = 2, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    dims = {name: [SIZES[letter] for letter in INPUTS[name]] for name in INPUTS}
    given = {
        name: torch.randn([batch, tokens, *shape], generator=generator, dtype=dtype)
        for name, shape in dims.items()
    }
    given["k"] = nn.functional.normalize(given["k"], dim=-1)
    return given | {"b": given["b"].sigmoid()}


def home(module: nn.Module) -> ModuleType:
    return sys.modules[type(module).__module__]


def results(module: nn.Module, given: dict[str, Tensor], monkeypatch, steps: int) -> list[Tensor]:
    """Outputs, states and gradients, with tokens below `steps` done one by one."""
    monkeypatch.setattr(home(module), "STEPS", steps)
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    o, state = module(**leaves, return_state=True)
    loss = (o * torch.arange(o.numel(), dtype=o.dtype).cos().reshape(o.shape)).sum()
    loss = (
        loss + (state.S**2).sum() + sum(0.0 * x.nan_to_num(0, 0, 0).sum() for x in leaves.values())
    )
    return [o, state.S, *torch.autograd.grad(loss, list(leaves.values()))]


@pytest.mark.parametrize("tokens", [0, 1, 16, 63, 64, 65, 150])
def test_chunks_are_steps(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(tokens)
    steps = results(made(), given, monkeypatch, 10**9)
    chunks = results(made(), given, monkeypatch, 0)
    torch.testing.assert_close(chunks, steps, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("gates", [1000.0, torch.inf])
def test_closed_gates_in_float32(gates: float, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs(70)
    given["x"] = torch.where(given["x"] > 0.5, gates, given["x"])
    wanted = results(made(), given, monkeypatch, 10**9)[:2]
    single = made("Corrected", torch.float32)
    found = results(single, {name: x.float() for name, x in given.items()}, monkeypatch, 0)
    for y, x in zip(found, wanted, strict=False):
        assert (y - x).abs().max() < 1e-4 * x.abs().max()
    assert all(g.isfinite().all() for g in found)


def test_without_a_gradient_of_its_own_autograd_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = lowered(archc.parse(SPEC, layer="Corrected").layer)

    def rule(graph, node):
        form = getattr(node.op, "chunked", None)
        if form is None or form.backward is None:
            return None
        forward = form.forward.copy()
        forward.outputs = {n: id for n, id in forward.outputs.items() if n not in form.saved}
        form = replace(form, forward=forward, backward=None, saved=())
        return graph.add(replace(node.op, chunked=form), *node.operands)

    bare = load(emit(Plan(rewrite(layer, [rule]))), "bare")
    assert not hasattr(bare, "corrected_memory_op")
    module = bare.Corrected(dtype=torch.float64, **SIZES)
    given = inputs(37)
    steps = results(made(), given, monkeypatch, 10**9)
    torch.testing.assert_close(results(module, given, monkeypatch, 0), steps)


def test_runs_of_chunks_carry_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where values do not fit in the caches of a CPU, tokens are done in runs."""
    given = inputs(150)
    wanted = results(made(), given, monkeypatch, 0)

    def runs(xs: list[Tensor], chunk: int, reverse: bool = False) -> list:
        return list(zip(*(x.split(chunk, 1) for x in xs), strict=True))

    monkeypatch.setattr(ops, "runs_of_chunks", runs)
    torch.testing.assert_close(results(made(), given, monkeypatch, 0), wanted)


def test_nothing_is_written_into_inputs_and_all_is_repeatable() -> None:
    given = inputs(40)
    before = {name: x.clone() for name, x in given.items()}
    first, second = made()(**given), made()(**given)
    assert torch.equal(first, second)
    assert all(torch.equal(before[name], x) for name, x in given.items())


def test_low_precision_keeps_its_states() -> None:
    given = {name: x.bfloat16() for name, x in inputs(70).items()}
    module = archc.parse(SPEC, layer="Corrected").module(dtype=torch.bfloat16, **SIZES)
    o, state = module(**given, return_state=True)
    wanted = made()(**{name: x.double() for name, x in given.items()})
    assert o.dtype == torch.bfloat16 and state.S.dtype == torch.float32
    torch.testing.assert_close(o.double(), wanted, rtol=0.1, atol=0.05)
    single = {name: x.float() for name, x in inputs(70).items()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = made("Corrected", torch.float32)(**single)
    torch.testing.assert_close(inside, made("Corrected", torch.float32)(**single))


def test_compiled_in_one_graph() -> None:
    single = made("Corrected", torch.float32)
    given = {name: x.float().requires_grad_() for name, x in inputs(40).items()}
    compiled = torch.compile(single, fullgraph=True, backend="aot_eager")
    found = []
    for run in (single, compiled):
        o = run(**given)
        found.append([o, *torch.autograd.grad(o.square().sum(), list(given.values()))])
    torch.testing.assert_close(*found)


def test_meta_tensors() -> None:
    given = {name: x.to("meta") for name, x in inputs(70).items()}
    module = made().to("meta") if list(made().parameters()) else made()
    assert module(**given).shape == (2, 70, 2, 3)


# --- packed sequences ---------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [[3, 70, 0, 3, 20], [5], [0, 4]], ids=str)
def test_packed_sequences_are_done_one_by_one(lengths: list[int]) -> None:
    given, bounds = inputs(sum(lengths), 1), [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    start = made().initial_state(len(lengths), dtype=torch.float64)
    start = start._replace(S=torch.randn_like(start.S))
    o, state = made()(**given, cu_seqlens=torch.tensor(bounds), state=start, return_state=True)
    for i, (first, stop) in enumerate(pairwise(bounds)):
        part = {name: x[:, first:stop] for name, x in given.items()}
        alone, after = made()(**part, state=type(start)(start.S[i : i + 1]), return_state=True)
        torch.testing.assert_close(o[:, first:stop], alone)
        torch.testing.assert_close(state.S[i : i + 1], after.S)


@pytest.mark.parametrize(
    ("bounds", "batch", "message"),
    [
        ([0, 5, 3, 9], 1, "must ascend from 0 to the number of tokens, 9"),
        ([0, 5], 1, "must ascend from 0 to the number of tokens, 9"),
        ([1, 9], 1, "must ascend from 0"),
        ([[0, 9]], 1, "must be .N . 1."),
        ([0], 1, "must be .N . 1."),
        ([0, 9], 2, "the batch must be 1, got a batch of 2"),
    ],
)
def test_wrong_bounds(bounds: list, batch: int, message: str) -> None:
    with pytest.raises(ValueError, match=f"Corrected: .*`cu_seqlens`.*{message}"):
        made()(**inputs(9, batch), cu_seqlens=torch.tensor(bounds))


def test_a_state_of_another_number_of_sequences() -> None:
    state = made().initial_state(3, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"`state\.S` is of a batch of 3, the input of 2"):
        made()(**inputs(9, 1), cu_seqlens=torch.tensor([0, 4, 9]), state=state)


def test_what_does_not_fit_into_one_state() -> None:
    attention = archc.parse(
        "layer A(d):\n    input x[d]\n    attend s <= t:\n"
        "        y = softmax(x[t].T @ x[s]) @ x[s]\n    output y\n"
    ).module(d=4)
    x, bounds = torch.randn(1, 9, 4), torch.tensor([0, 4, 9])
    y = attention(x, cu_seqlens=bounds)
    torch.testing.assert_close(y[:, 4:], attention(x[:, 4:]))
    _, state = attention(x, cu_seqlens=bounds, return_state=True)
    assert state.pos.tolist() == [4, 5]  # each by itself
    more = attention(x[:, :2], cu_seqlens=torch.tensor([0, 1, 2]), state=state)
    alone = attention(torch.cat([x[:, 4:], x[:, 1:2]], 1))
    torch.testing.assert_close(more[:, 1:], alone[:, -1:])

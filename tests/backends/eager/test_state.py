"""A state that a call cannot continue from is refused by name: of another size, rank, precision,
kind or device, in modules, functions of a memory and files with kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc.slots import alone

TEXT = """layer Kept(d, H, K, width = 3):
    input x[d]
    input n in width
    param W[d, H, K]; c[H, K, width]; E[width, d]
    k = shortconv(x @ W, c)
    m = n[t-1]
    recurrence S[K, K'] over H:
        S[t] = 0.5 * S[t-1] + k @ k.T
        o = S[t].T @ k
    attend s <= t over H:
        y = softmax(k[t].T @ k[s]) @ o[s]
    output y
    output e = E[m]
"""
SIZES = {"d": 4, "H": 2, "K": 3}

WRONG: dict[str, tuple[str, Callable[[Tensor], Any], type[Exception], str]] = {
    "batch": ("S", lambda x: x[:1], ValueError, "of a batch of 1, the input of 2"),
    "size": ("S", lambda x: x[..., :2], ValueError, r"must be \[2, 2, 3, 3\], got .*2, 2, 3, 2\]"),
    "rank": ("S", lambda x: x[0, 0], ValueError, r"batch of 3|must be \[2, 2, 3, 3\]"),
    "more": ("S", lambda x: x[..., None], ValueError, r"must be \[2, 2, 3, 3\], got"),
    "narrow": ("S", lambda x: x.bfloat16(), TypeError, r"must be torch.float64 at least, got"),
    "single": ("S", lambda x: x.float(), TypeError, r"must be torch.float64 at least, got"),
    "whole": ("S", lambda x: x.long(), TypeError, "must hold real numbers, got torch.int64"),
    "device": ("S", lambda x: x.to("meta"), ValueError, "is on meta, not on cpu"),
    "nothing": ("S", lambda x: None, TypeError, "must be a tensor, got NoneType"),
    "past": (
        "k_past",
        lambda x: x[:, :1],
        ValueError,
        r"must be \[2, 2, 2, 3\], got .*2, 1, 2",
    ),
    "seen": ("k_2", lambda x: x[..., :1], ValueError, r"must be \[2, any, 2, 3\], got"),
    "index": ("m_past", lambda x: x.double(), TypeError, "must hold whole numbers, got"),
}


@pytest.mark.parametrize("backend", ["eager", pytest.param("triton", marks=pytest.mark.slow)])
@pytest.mark.parametrize("wrong", WRONG)
def test_modules(wrong: str, backend: str) -> None:
    module = archc.parse(TEXT).module(**SIZES, backend=backend, dtype=torch.float64)
    x, n = torch.randn(2, 6, 4, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.int64)
    *_, state = module(x[:, :4], n[:, :4], return_state=True)
    module(x[:, 4:], n[:, 4:], state=state)
    name, change, error, words = WRONG[wrong]
    bad = state._replace(**{name: change(getattr(state, name))})
    with pytest.raises(error, match=rf"Kept: `state\.{name}` .*({words})"):
        module(x[:, 4:], n[:, 4:], state=bad)


@pytest.mark.parametrize("wrong", ["batch", "size", "rank", "narrow", "whole", "device", "nothing"])
def test_functions_of_a_memory(wrong: str) -> None:
    q = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    op = archc.load("linear_attention_simple").op
    _, state = op(q, q, q)
    _, change, error, words = WRONG[wrong]
    bad = state._replace(S=change(state.S))
    with pytest.raises(error, match=rf"`state\.S` .*({words})"):
        op(q, q, q, state=bad)
    op(q.float(), q.float(), q.float(), state=state)


@pytest.mark.slow
def test_one_graph_continues() -> None:
    """What is looked at are shapes and kinds, which a graph knows."""
    module = archc.load("gla").module(d=8, H=2)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager", dynamic=True)
    x = torch.randn(2, 9, 8)
    _, state = compiled(x[:, :5], return_state=True)
    torch.testing.assert_close(compiled(x[:, 5:], state=state), module(x)[:, 5:])


class Copies(TorchDispatchMode):
    """The shapes of what torch joins or takes new memory for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.cat.default, torch.ops.aten.new_empty.default):
            self.seen.append(tuple(made.shape))
        return made

    def __enter__(self) -> Copies:
        self.seen: list[tuple[int, ...]] = []
        return super().__enter__()


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("name", ["attention", "transformer"])
def test_tokens_read_are_kept_only_where_a_state_is_asked_for(name: str, learns: bool) -> None:
    more: dict[str, Any] = {"f": 6} if name == "transformer" else {}
    layer = archc.load(name).module(d=8, H=2, K=4, dtype=torch.float64, **more)
    x = torch.randn(2, 6, 8, dtype=torch.float64)
    with torch.set_grad_enabled(learns):
        with Copies() as copied:
            y, state = layer(x, return_state=True)
        assert copied.seen
        with Copies() as copied:
            alone = layer(x)
        assert not copied.seen and torch.equal(alone, y)
        twice = layer(torch.cat([x, x], 1))
        assert torch.allclose(layer(x, state=state), twice[:, 6:])


BEGUN = {
    "another sequence": """layer Decoder(d):
    input x[d]
    input e[d] along m
    attend all m:
        begin = sum[m](e[m])
    recurrence h[d] = begin:
        h[t] = sigmoid(x) * h[t-1] + x
    output y[d] = h[t]
""",
    "weights of two uses": """layer Scan(d):
    input x[d]
    param begin[d] = normal(0, 1)
    recurrence h[d] = begin:
        h[t] = sigmoid(x) * h[t-1] + x
    output y[d] = h[t]
layer Twice(d):
    input x[d]
    both = Scan(d)
    output y[d] = both(x) + both(2 * x)
""",
}


@pytest.mark.parametrize("given", BEGUN)
def test_states_that_begin_as_what_is_given(given: str) -> None:
    """A state whose first value is made of an input is that of the input in a first call, and goes
    on without it; packed sequences begin each as its own."""
    module = archc.parse(BEGUN[given]).module(d=3, backend="eager", dtype=torch.float64)
    x, e = torch.randn(2, 7, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64)
    others = (e,) if given == "another sequence" else ()

    def looped(x: Tensor, h: Tensor) -> Tensor:
        made = [h := torch.sigmoid(x[:, t]) * h + x[:, t] for t in range(x.shape[1])]
        return torch.stack(made, 1)

    if others:
        wanted = looped(x, e.sum(1))
    else:
        (begin,) = module.parameters()
        wanted = looped(x, begin) + looped(2 * x, begin)
    first, state = module(x[:, :3], *others, return_state=True)
    rest = module(x[:, 3:], state=state)
    begun = module(x, *others, state=module.initial_state(2))
    for made in (module(x, *others), torch.cat([first, rest], 1), begun):
        torch.testing.assert_close(made, wanted, rtol=1e-12, atol=1e-12)
    packed = module(x.view(1, 14, 3), *others, cu_seqlens=torch.tensor([0, 7, 14]))
    torch.testing.assert_close(packed.view(2, 7, 3), wanted, rtol=1e-12, atol=1e-12)
    assert (reason := alone(module)) and ("enters" if others else "`h` begins as") in reason

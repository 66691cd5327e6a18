"""Sizes that code was made for are looked at wherever values enter: functions of a memory, modules,
decode steps, composition laws and files, with kernels and without."""

from __future__ import annotations

import sys
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from archc.backends.load import load
from torch import Tensor

import archc
from archc.algebra import cut
from archc.compile import function_of, text_of, with_chunks

BACKENDS = ("eager", "triton")

TEXT = """layer Twice(H, K, n = 2):
    input q[H, K], k[n, H, K], v[n, H, K], b[n, H], w[3]
    require K > 1
    recurrence S[K, K'] over H:
        R = S[t-1]
        repeat n as j:
            R = R + b[j] * sum[3](w) * k[j] @ v[j].T
        S[t] = R
        o = S[t].T @ q
    output o
"""
WRONG = {
    "n was 3": ({"n": 3}, r"compiled for n == 2, got n = 3|with K > 1, n == 2; got"),
    "n was 1": ({"n": 1}, r"compiled for n == 2, got n = 1|with K > 1, n == 2; got"),
    "K was 1": ({"K": 1}, r"requires K > 1, got K = 1|with K > 1, n == 2; got"),
    "w was 2": ({"w": 2}, r"`w` must be .* with 3 = 3, got .*2\]|w \[B, T, 3\].* got .*2\]"),
}


def inputs(tokens: int = 20, n: int = 2, K: int = 4, w: int = 3) -> dict[str, Tensor]:
    shapes = {"q": (2, K), "k": (n, 2, K), "v": (n, 2, K), "b": (n, 2), "w": (w,)}
    return {name: torch.randn(1, tokens, *shape) for name, shape in shapes.items()}


@cache
def functions(backend: str) -> dict[str, Any]:
    """Every function of a memory that a backend writes."""
    layer = with_chunks(archc.parse(TEXT).layer)
    made = {
        kind: getattr(load(function_of(cut_to(layer), kind, backend), kind), kind)
        for kind, cut_to in (("twice_op", cut.op), ("twice_fused_op", cut.fused_op))
    }
    home = load(text_of(archc.parse(TEXT).layer, backend), "twice")
    names = ("twice_memory", "twice_memory_decode")
    return made | {name: getattr(home, name) for name in names if hasattr(home, name)}


@pytest.mark.default("eager", "n was 1-20")
@pytest.mark.parametrize("tokens", [3, 20])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("backend", BACKENDS)
@torch.no_grad()
def test_functions_of_a_memory(backend: str, wrong: str, tokens: int) -> None:
    sizes, words = WRONG[wrong]
    found = functions(backend)
    assert len(found) == (3 if backend == "eager" else 4)
    for name, run in found.items():
        states = [torch.zeros(1, 2, sizes.get("K", 4), sizes.get("K", 4))]
        more = states if "memory" in name else []
        run(*inputs(tokens).values(), *(torch.zeros(1, 2, 4, 4) for _ in more))
        with pytest.raises(ValueError, match=words):
            run(*inputs(tokens, **sizes).values(), *more)


def test_modules_and_files() -> None:
    """A module is made anew for another size, a class in a file is for that of the file."""
    spec = archc.parse(TEXT)
    module = spec.module(H=2, K=4, n=3)
    assert module(**inputs(n=3)).shape == (1, 20, 2, 4)
    made: ModuleType = sys.modules[type(spec.module(H=2, K=4)).__module__]
    with pytest.raises(ValueError, match="Twice was compiled for n == 2, got n = 3"):
        made.Twice(H=2, K=4, n=3)
    with pytest.raises(ValueError, match=r"`k` must be .* with n = 3, got .* 2, 2, 4\]"):
        module(**inputs())
    with pytest.raises(ValueError, match=r"`w` must be .* with 3 = 3, got .* 2\]"):
        module(**inputs(n=3, w=2))


@pytest.mark.parametrize("wrong", WRONG)
def test_laws(wrong: str) -> None:
    law, (sizes, _) = archc.parse(TEXT).law, WRONG[wrong]
    law.summary(*inputs().values())
    words = r"the law of Twice (was made for n == 2|requires K > 1), got|must be .* with 3 = 3, got"
    with pytest.raises(ValueError, match=words):
        law.summary(*inputs(**sizes).values())
    with pytest.raises(ValueError, match=r"`v` must be .* with t = 20, got"):
        law.summary(*(inputs() | {"v": inputs(19)["v"]}).values())


def test_a_spec_that_is_loaded_with_other_sizes() -> None:
    spec = archc.parse(TEXT, n=3)
    o, state = spec.op(**inputs(n=3))
    wanted, same = spec.op(**inputs(n=3), chunk=None)
    assert o.shape == wanted.shape and state.S.shape == same.S.shape
    with pytest.raises(ValueError, match="compiled for n == 3, got n = 2"):
        spec.op(**inputs())

"""Cells whose weights fit nowhere: their loops over tokens as CUDA graphs, to the bit as the loops.

python -m pytest -m gpu tests/gpu/test_replayed.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.gpu.cases import Case
from tests.gpu.memories import Memory, memories
from tests.gpu.values import values_for

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]

CASES = [
    Case("slstm", "float32", B=3, T=150, H=1, K=1024),
    Case("slstm", B=3, T=100, H=1, K=2048),
    Case("lstm", B=2, T=79, K=2048),
]  # fmt: skip


def results(memory: Memory, case: Case, learn: bool) -> list[Tensor]:
    """Outputs and states, and the gradients."""
    values: dict[str, Any] = values_for(memory, case, "cuda")
    real = [n for n, x in values.items() if isinstance(x, Tensor) and x.is_floating_point()]
    values |= {n: values[n].detach().requires_grad_(learn) for n in real}
    made = [*memory(values, case.chunk)]
    if not learn:
        return made
    asked = [values[n] for n in real]
    return [*made, *torch.autograd.grad(made[0].float().sum(), asked, allow_unused=True)]


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_to_the_bit_as_the_loop(case: Case, learn: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    (memory, *_), found = memories(case.spec), list[list[Tensor]]()
    own: Callable[..., Any] = vars(memory.module)["may_replay"]
    kept: dict[Any, Any] = vars(memory.module)["REPLAYED"]
    kept.clear()
    monkeypatch.setattr(memory.module, "by_graphs", lambda *given: True)
    for way in (own, lambda *given: False):
        monkeypatch.setattr(memory.module, "may_replay", way)
        found.append([x for x in results(memory, case, learn) if x is not None])
    assert len(kept) == 1 + learn and None not in kept.values()
    for made, wanted in zip(*found, strict=True):
        torch.testing.assert_close(made, wanted, rtol=0, atol=0, equal_nan=True)


def test_in_another_graph_it_is_a_loop_and_on_another_stream_the_same() -> None:
    (memory, *_), case = memories("slstm"), CASES[1]
    with torch.no_grad():
        values = values_for(memory, case, "cuda")
        wanted, stream = memory(values, None), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            other = memory(values, None)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            made = memory(values, None)
        graph.replay()
        torch.cuda.synchronize()
    for x, y, z in zip(wanted, other, made, strict=True):
        assert torch.equal(x, y) and torch.equal(x, z)

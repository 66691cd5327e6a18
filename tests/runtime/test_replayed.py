"""Loops over tokens as graphs, on a CPU: a graph is the operations that were recorded, which are
done again in the memory of that time."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from archc.runtime import replayed

WEIGHTS = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / 2


class Graph:
    """In place of a CUDA graph."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def replay(self) -> None:
        for op, args, options, made in self.steps:
            again = op(*args, **options)
            if isinstance(made, Tensor):
                made.copy_(again)
            elif isinstance(made, (tuple, list)):
                for x, y in zip(made, again, strict=True):
                    x.copy_(y)


class Recorded(TorchDispatchMode):
    """In place of `torch.cuda.graph`: what is written while it records is as it was before."""

    def __init__(self, graph: Graph, **options: Any) -> None:
        super().__init__()
        self.graph, self.before = graph, list[tuple[Tensor, Tensor]]()

    def __torch_dispatch__(self, op: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if op._schema.is_mutable:
            self.before.append((args[0], args[0].clone()))
        made = op(*args, **(kwargs or {}))
        self.graph.steps.append((op, args, kwargs or {}, made))
        return made

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for x, before in reversed(self.before):
            x.copy_(before)


@pytest.fixture(autouse=True)
def a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs, streams and devices on a CPU."""
    stream = SimpleNamespace(device=torch.device("cpu"), cuda_stream=0)
    for name, value in {
        "graph_pool_handle": lambda: None, "CUDAGraph": Graph, "graph": Recorded,
        "current_stream": lambda: stream, "device": lambda device: nullcontext(),
        "synchronize": lambda: None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(replayed, "may_replay", lambda tokens, tensors: tokens >= 2)
    monkeypatch.setattr(replayed, "SEGMENT_TOKENS", 8)
    replayed.REPLAYED.clear()


def forward(x: Tensor, gate: Tensor, W: Tensor, scale: float, S: Tensor, before: Tensor) -> Any:
    """A recurrence two tokens long whose second state is the first one of a token before.

    x [B, T, 3], gate [T, B], W [3, 3], S, before [B, 3]
    """
    every = []
    for x_t, gate_t in zip(x.unbind(1), gate.unbind(0), strict=True):
        S_t = torch.tanh(S @ W + scale * x_t + before) * gate_t[:, None]
        every.append(S_t)
        S, before = S_t, S
    return torch.stack(every, 1), torch.stack(every, 0), S, before


def backward(x: Tensor, gate: Tensor, W: Tensor, scale: float, S: Tensor, before: Tensor) -> Any:
    """The same from the last token on."""
    first, second, *after = forward(x.flip(1), gate.flip(0), W, scale, S, before)
    return first.flip(1), second.flip(0), *after


def values(tokens: int, seed: int = 0) -> tuple:
    draw = torch.Generator().manual_seed(seed)
    x, gate = torch.randn(2, tokens, 3, generator=draw), torch.rand(tokens, 2, generator=draw)
    S, before = torch.randn(2, 2, 3, generator=draw)
    return x.double(), gate.double(), WEIGHTS * (1 + seed), 0.5, S.double(), before.double()


@pytest.mark.parametrize("reverse", [False, True])
def test_as_the_loop_for_any_number_of_tokens(reverse: bool) -> None:
    loop = backward if reverse else forward
    run = replayed.replayed("S before", (1, 0), reverse, x=1, gate=0)(loop)
    for seed, tokens in enumerate([8, 27, 2, 13, 27]):
        given = values(tokens, seed)
        with torch.inference_mode(seed % 2 == 1):
            for made, wanted in zip(run(*given), loop(*given), strict=True):
                assert torch.equal(made, wanted) and made.stride() == wanted.stride()
    (segments,) = replayed.REPLAYED.values()
    assert segments is not None and sorted(segments.graphs) == [1, 2, 4, 8]


def test_graphs_are_kept_of_so_many_loops() -> None:
    run = replayed.replayed("S before", (1, 0), x=1, gate=0)(forward)
    for batch in range(1, 12):
        x, gate, W, scale, S, before = values(4)
        rows = [x[:1].repeat(batch, 1, 1), gate[:, :1].repeat(1, batch), W, scale]
        run(*rows, S[:1].repeat(batch, 1), before[:1].repeat(batch, 1))
    assert len(replayed.REPLAYED) == replayed.MOST_REPLAYED


def test_what_learns_is_a_loop_and_what_cannot_be_recorded_says_so() -> None:
    x, gate, W, *rest = values(8)
    run = replayed.replayed("S before", (1, 0), x=1, gate=0)(forward)
    run(x, gate, W.clone().requires_grad_(), *rest)[0].sum().backward()
    assert not replayed.REPLAYED

    def narrowed(
        x: Tensor, gate: Tensor, W: Tensor, scale: float, S: Tensor, before: Tensor
    ) -> Any:
        *made, S, before = forward(x, gate, W, scale, S, before)
        return *made, S.float(), before

    run = replayed.replayed("S before", (1, 0), x=1, gate=0)(narrowed)
    for _ in range(2):
        with (
            pytest.warns(RuntimeWarning, match="no CUDA graph: a state")
            if not replayed.REPLAYED
            else (nullcontext())
        ):
            made = run(x, gate, W, *rest)
        assert torch.equal(made[0], narrowed(x, gate, W, *rest)[0])


def test_none_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert not replayed.may_replay(64, [WEIGHTS]) and not replayed.by_graphs(64, WEIGHTS)

"""Calls that are done again on a GPU, of other values each time, against calls that are not."""

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


def results(memory: Memory, case: Case) -> list[Tensor]:
    """Outputs without gradients, with them, and the gradients."""
    values: dict[str, Any] = values_for(memory, case, "cuda")
    real = [n for n, x in values.items() if isinstance(x, Tensor) and x.is_floating_point()]
    learning = {**values, **{n: values[n].detach().requires_grad_() for n in real}}
    with torch.no_grad():
        kept = memory(values, case.chunk)
    made = [x for x in memory(learning, case.chunk) if x.requires_grad]
    torch.manual_seed(case.seed)
    asked = [learning[n] for n in real]
    slopes = torch.autograd.grad(made, asked, [*map(torch.randn_like, made)], allow_unused=True)
    return [x.detach() for x in (*kept, *made, *slopes) if x is not None]


def nothing_is_known(given: tuple, learns: bool = False) -> tuple[None, list]:
    """In place of the likeness of a call."""
    return None, []


@pytest.mark.parametrize("tokens", [1024, 100])
@pytest.mark.parametrize("spec", ["kda", "mlstm", "mesa", "gated_delta"])
def test_of_other_values_as_of_the_first(
    spec: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (memory, *_), found = memories(spec), list[list[Tensor]]()
    own: Callable[..., Any] = vars(memory.module)["likeness"]
    for seed in range(4):
        for way in (own, nothing_is_known):
            monkeypatch.setattr(memory.module, "likeness", way)
            found.append(results(memory, Case(spec, T=tokens, seed=seed)))
    for made, wanted in zip(found[::2], found[1::2], strict=True):
        for x, y in zip(made, wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=0, atol=0, equal_nan=True)


def test_on_streams_and_in_a_graph() -> None:
    """Calls are done again on the stream of the time; one that is captured is of later values."""
    (memory, *_), streams = memories("kda"), [torch.cuda.Stream() for _ in range(2)]
    cases = [Case("kda", T=1024, seed=seed) for seed in range(4)]
    given = [values_for(memory, case, "cuda") for case in cases]
    with torch.no_grad():
        wanted = [memory(values, 64) for values in given]  # the last two are done again
        torch.cuda.synchronize()
        for values, meant in zip(given, wanted, strict=True):
            for stream in streams:
                with torch.cuda.stream(stream):
                    made = memory(values, 64)
                stream.synchronize()
                assert all(torch.equal(x, y) for x, y in zip(made, meant, strict=True))
        graph, kept = torch.cuda.CUDAGraph(), {n: x.clone() for n, x in given[0].items()}
        with torch.cuda.graph(graph):
            made = memory(kept, 64)
        for values, meant in zip(given, wanted, strict=True):
            for name, x in values.items():
                kept[name].copy_(x)
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(x, y) for x, y in zip(made, meant, strict=True))

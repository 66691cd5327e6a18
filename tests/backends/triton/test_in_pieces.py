"""Whole layers by their kernels, in pieces: token regions, memories, folds and steps of one token
together, values and gradients. `tests/gpu/test_continued.py` does the same for all on a GPU."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from tests.backends.triton.processes import printed

LIMIT = 1e-4

QUICK = ("fox", "gla", "mla")
SLOW = (
    "alibi", "attention", "capped_attention", "cross_attention", "delta", "dsa", "gated_delta",
    "gated_delta_product", "gemma3", "gla_block", "kda", "kimi_linear", "lfm2", "linear_attention",
    "lm", "lstm", "mamba", "mamba2", "mesa", "mhc", "mlstm", "moe", "mom", "nsa", "path_fox",
    "qwen3_next", "rwkv7", "slstm", "ssm", "swiglu", "transformer", "window_attention", "xlstm",
)  # fmt: skip


def wrong(*specs: str) -> list[str]:
    """The lines of layers of which something is off."""
    lines = printed("interpreted_in_pieces", ",".join(specs))
    assert [line.split()[0] for line in lines] == [*specs]
    return [line for line in lines if not all(float(x) < LIMIT for x in line.split()[1:])]


def test_layers_of_every_kind_of_kernel() -> None:
    assert not wrong(*QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("spec", SLOW)
def test_every_other_layer(spec: str) -> None:
    assert not wrong(spec)

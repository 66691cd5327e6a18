"""How far pairs read a table of the layer: rows that are there, or an error before kernels."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.attention.reach import Reach, counted, reaches
from archc.dims import T_SEEN
from archc.ir import layer as ir
from archc.sampling import positions

SPEC = """
layer Relative(d, K, N, w = 6):
    input x[d]
    param W[d, K]; E[N]
    z = x @ W
    attend {range}:
        o = softmax(z[t].T @ z[s] + E[{index}]) @ z[s]
    output o
"""
CAUSAL, BOTH, NEAR = "s <= t", "all s", "t - w < s <= t"


def spec(index: str, range: str) -> archc.Spec:
    return archc.parse(SPEC.format(index=index, range=range))


def reaches_of(spec: archc.Spec) -> list[Reach | None]:
    """How far each table of the only attend is read."""
    (attend,) = (node.op for node in spec.layer.graph if isinstance(node.op, ir.Attend))
    return [reach for _, reach in reaches(attend)]


@pytest.mark.parametrize(
    ("index", "range"),
    [
        ("min(t - s, N - 1)", CAUSAL), ("(t - s) % N", CAUSAL), ("min(t, N - 1)", CAUSAL),
        ("max(min(t - s, N - 1), 0)", BOTH), ("min(2 * (t - s), N - 1)", NEAR),
        ("where(t - s < 9, min(t - s, N - 1), N - 1)", CAUSAL),
    ],
)  # fmt: skip
def test_an_index_that_is_in_its_table_is_not_counted(index: str, range: str) -> None:
    assert not [*counted(spec(index, range).layer.graph)]


def test_a_table_by_rows_of_a_picture_is_as_long_as_it_is() -> None:
    """No pair need come to the ends that are known of quotients: kernels are for calls whose ends
    are in the table, and PyTorch for the others."""
    (reach,) = reaches_of(spec("t // 4 - s // 4", CAUSAL))
    assert reach is not None and reach.least == 0 and not reach.met
    assert [int(reach.most.subs(T_SEEN, n)) for n in (1, 2, 5, 17, 18)] == [0, 0, 1, 4, 4]
    module = spec("t // 4 - s // 4", CAUSAL).module(d=4, K=3, N=5)
    assert module(torch.randn(1, 20, 4)).shape == (1, 20, 3)
    assert "self.N and" in spec("t // 4 - s // 4", CAUSAL).source("triton")


@pytest.mark.parametrize(
    ("index", "range", "rows", "tokens"),
    [
        ("t - s", CAUSAL, 8, 8), ("2 * (t - s)", CAUSAL, 9, 5), ("t - s + N // 2", BOTH, 9, 5),
        ("t + s", CAUSAL, 9, 5), ("(t - s) // 2", CAUSAL, 4, 8), ("t - s + 1", NEAR, 5, 4),
    ],
)  # fmt: skip
def test_rows_are_counted_before_anything_runs(
    index: str, range: str, rows: int, tokens: int
) -> None:
    """As many tokens as rows suffice for are taken, and one more is an error; packed sequences
    count each for itself."""
    module = spec(index, range).module(d=4, K=3, N=rows)
    x = torch.randn(1, 2 * tokens, 4)
    module(x[:, :tokens])
    module(x, cu_seqlens=torch.tensor([0, tokens, 2 * tokens]))
    with pytest.raises(ValueError, match=f"`E` has {rows} rows, and pairs of {tokens + 1} tokens"):
        module(x[:, : tokens + 1])


def test_as_many_rows_as_the_window_is_wide() -> None:
    module = spec("t - s", NEAR).module(d=4, K=3, N=6)
    assert module(torch.randn(1, 20, 4)).shape == (1, 20, 3)


def test_generation_knows_how_long_a_text_may_be() -> None:
    sizes = {"d": 4, "K": 3, "N": 9, "w": 6}
    assert [*positions(spec("t - s", CAUSAL).layer, sizes)] == [9]
    assert [*positions(spec("2 * (t - s)", CAUSAL).layer, sizes)] == [5]


def test_an_index_of_unknown_reach_is_no_kernels() -> None:
    """The product of two positions, say: all pairs are made in PyTorch, which looks at each."""
    assert reaches_of(spec("t * s", CAUSAL)) == [None]
    text = spec("t * s", CAUSAL).source("triton")
    assert "an index of a pair may be off its table" in " ".join(text.split())

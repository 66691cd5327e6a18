"""Dims that decay together are one in chunks, for which there are kernels."""

from __future__ import annotations

import pytest

import archc
from archc.compile import with_chunked_forms
from archc.ir import chunk as ck
from archc.ir import layer as ir

BANK = """
layer Bank(H, V, {sizes}):
    input q[H, K], k[H, K], v[H, V], a[H, K], b[H, M], w[H, M]
    f = sigmoid(a) * sigmoid(b)
    p = softmax[M](w) * k
    recurrence S[M, K, V] over H:
        S[t] = f * S[t-1] + p * v
        o = sum[M, K](q * S[t])
    output o
"""


CASES = ("K = 16, M = 4", 1), ("K = 64, M = 2", 2), ("K, M", 2)


@pytest.mark.parametrize(("sizes", "dims"), CASES)
def test_pairs_decay_along_one_dim_where_they_are_few(sizes: str, dims: int) -> None:
    """256 of them have room in float32, in the tables of which no dim is shorter than 16."""
    layer = with_chunked_forms(archc.parse(BANK.format(sizes=sizes)).layer)
    (op,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    assert op.chunked is not None
    grams = [node for node in op.chunked.forward if isinstance(node.op, ck.Gram)]
    assert grams and all(len(node.op.over) == dims for node in grams)


def test_states_keep_their_dims() -> None:
    layer = with_chunked_forms(archc.parse(BANK.format(sizes="K = 16, M = 4")).layer)
    (op,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    assert op.chunked is not None
    forward = op.chunked.forward
    final = forward[forward.outputs[ck.final("S")]]
    assert final.type.names[-3:] == ("M", "K", "V")

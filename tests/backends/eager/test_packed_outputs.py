"""Outputs of packed sequences that have no tokens: a row for each sequence, or refused by name."""

from __future__ import annotations

import pytest
import torch

import archc

LAYER = """layer L(d):
    input x[d]
    attend s <= t:
        o = softmax(x[t].T @ x[s]) @ x[s]
    output y = o
    output {more}
"""
BORDERS = torch.tensor([0, 4, 5, 11])


def test_a_value_of_each_sequence_has_a_row_for_it() -> None:
    layer = archc.parse(LAYER.format(more="pooled = mean[t](o)")).module(d=3, backend="eager")
    x = torch.randn(1, 11, 3)
    y, pooled = layer(x, cu_seqlens=BORDERS)
    each = [layer(x[:, a:b])[1] for a, b in ((0, 4), (4, 5), (5, 11))]
    assert pooled.shape == (3, 3) and y.shape == x.shape
    torch.testing.assert_close(pooled, torch.cat(each))


def test_a_value_of_all_tokens_is_refused() -> None:
    loss = "loss = mean[batch, t](sum[d](o))"
    layer = archc.parse(LAYER.format(more=loss)).module(d=3, backend="eager")
    with pytest.raises(ValueError, match="`loss` is made from all tokens together"):
        layer(torch.randn(1, 11, 3), cu_seqlens=BORDERS)


def test_one_that_is_left_out_is_not_missed() -> None:
    model = archc.load("gpt").module(vocab=11, d=8, H=2, L=1, length=32, backend="eager")
    tokens = torch.randint(0, 11, (1, 11))
    assert model(tokens, cu_seqlens=BORDERS).shape == (1, 11, 11)
    with pytest.raises(ValueError, match="`loss` is made from all tokens together"):
        model(tokens, targets=tokens, cu_seqlens=BORDERS)

"""Attentions on a GPU with the shapes and tolerances of flash-linear-attention's tests.

python -m pytest -m gpu -n 8 tests/gpu/test_attentions.py
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.gpu.attentions import CASES, Case, call, drawn, gradients, layer_of, measured, wanted


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case: Case) -> None:
    assert not {n: pair for n, pair in measured(case).items() if not pair[0] < pair[1]}


@pytest.mark.parametrize("borders", [(), (0, 9, 20)])
def test_queries_that_are_walked_back_are_what_the_spec_says(borders: tuple[int, ...]) -> None:
    """The numbers that kernels of PaTH are held to, beside the layer in PyTorch."""
    case = Case("path_gates", 1, 20, 1, 2, 4, gate="log", borders=borders)
    values = drawn(case, "cpu")
    given = {name: x for name, x in values.items() if name != "o"}
    layer, more = layer_of(case, True, "cpu"), {"cu_seqlens": torch.tensor(borders)}
    found = gradients(lambda x: call(layer, more if borders else {}, x), given, values["o"])
    for name, x in wanted(case, values, "cpu").items():
        torch.testing.assert_close(found[name], x)


def test_a_choice_is_far_from_every_other() -> None:
    """Ranks are whole quarters below 16, each another, and held by the dtype of the case."""
    case = replace(CASES[-1], dtype="bfloat16")
    values = drawn(case, "cpu")
    for head in range(case.G):
        own = values["c"][0, : case.borders[1], head]
        assert (4 * own).equal((4 * own).round()) and own.max() < 16
    assert (values["r"].sum(-1) == 1).all()

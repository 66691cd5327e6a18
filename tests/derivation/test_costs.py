"""Costs as formulas, and work in numbers."""

from __future__ import annotations

import pytest
import sympy

from archc.commands.stages import layer_of
from archc.derivation.costs import cost_math
from archc.derivation.typed import as_plain
from archc.derivation.work import at_sizes, in_numbers, operations
from archc.ir.chunk import CHUNK
from archc.verify.study import studies_of
from archc.verify.trial import Trial

K, T = sympy.symbols("K T_seen", positive=True, integer=True)
C = CHUNK


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (2 * K * T + 2 * K, "2 K(T_seen + 1)"),
        (K / C, "K / C"),
        (K**2 / 3 + 1, "K² / 3 + 1"),
        (K - T, "K − T_seen"),
    ],
)
def test_a_cost(cost: sympy.Expr, text: str):
    assert as_plain(cost_math(cost)) == text


def test_numbers_of_an_example():
    layer = layer_of("kda", {})
    sizes = at_sizes(layer, K * C)
    assert sizes == {"chunk": 64, "K": 128}
    assert in_numbers(K * C, sizes) == "8.19 k"


def test_operations_of_a_long_sequence():
    """What is done once a sequence does not count."""
    study = next(studies_of(layer_of("mlstm", {})))
    assert study.derived.graph is not None
    symbols = {str(symbol) for symbol in operations(study.derived.graph).free_symbols}
    assert symbols == {"chunk", "H", "K", "V"}
    assert operations(Trial(study, 4).step).free_symbols

"""Every bundled spec has its normal forms at once, or a reason why not."""

from __future__ import annotations

import gc
import time

import pytest

from archc.algebra.simplify import simplify
from archc.elaborate.elaborate import elaborate
from archc.recurrence.affine.listing import as_text
from archc.recurrence.affine.normalize import normal_forms
from archc.specfile import bundled, import_source, read
from archc.syntax.parse import parse
from tests.recurrence.rebuilt import recurrences

RECURRENT = (
    "delta", "gated_delta", "gated_delta_product", "gla", "gla_block", "kda", "kimi_linear",
    "linear_attention", "linear_attention_simple", "lstm", "mamba", "mamba2", "mamba2_lm",
    "mesa", "mlstm", "mom", "qwen3_next", "retention", "rwkv7", "slstm", "ssm", "ssm_selective",
    "xlstm",
)  # fmt: skip
"""Specs with a recurrence, of their own or of a layer in them."""


@pytest.mark.parametrize("name", bundled())
def test_bundled_specs_have_forms_at_once(name: str) -> None:
    made = elaborate(parse(read(name)), None, {}, import_source)
    own = [*recurrences(simplify(made))]
    assert bool(own) == (name in RECURRENT)
    for recurrence in own:
        gc.disable()  # what other tests keep is not searched for waste meanwhile
        start = time.process_time()
        found = normal_forms(recurrence)
        taken = time.process_time() - start
        gc.enable()
        assert taken < 0.5
        assert sorted(s for each in found for s in each.states) == sorted(
            s.name for s in recurrence.states
        )
        for each in found:
            assert as_text(each) and (each.refusal is not None) == (each.kind == "sequential")

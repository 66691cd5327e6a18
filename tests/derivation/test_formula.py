"""Normal forms and chunked forms as formulas."""

from __future__ import annotations

from functools import lru_cache

import pytest

from archc.commands.stages import layer_of
from archc.derivation.chunk_formulas import ChunkFormulas
from archc.derivation.formula import Formulas
from archc.derivation.maths import Math
from archc.derivation.row_names import Lettered, rows_of
from archc.derivation.typed import as_latex, as_plain
from archc.recurrence.affine.form import MATRIX
from archc.verify.study import Study, studies_of


@lru_cache
def study(spec: str) -> Study:
    return next(studies_of(layer_of(spec, {})))


def chunk_formulas(spec: str) -> ChunkFormulas:
    found = study(spec)
    form = next(form for form in found.derived.forms if form.kind == MATRIX)
    return ChunkFormulas(rows_of(found, form, form.forms[0]))


def plain(*formulas: Math) -> list[str]:
    return [as_plain(math) for math in formulas]


@pytest.mark.parametrize(
    ("spec", "update"),
    [
        ("kda", ["S′_t = Diag(α_t) S_[t-1]", "S_t = S′_t + β_t k_t(v_t − S′_tᵀ k_t)ᵀ"]),
        ("delta", ["S_t = S_[t-1] + β_t k_t(v_t − S_[t-1]ᵀ k_t)ᵀ"]),
        ("gla", ["S′_t = Diag(α_t) S_[t-1]", "S_t = S′_t + k_t v_tᵀ"]),
        ("ssm", ["h_t = A h_[t-1] + u_t"]),
        ("mamba", ["h′_t = a_t ⊙ h_[t-1]", "h_t = h′_t + b_t dt_t u_t"]),
        ("mlstm", ["m_t = max(lf_t + m_[t-1], li_t)"]),
    ],
)
def test_an_update(spec: str, update: list[str]):
    found = study(spec)
    form = found.derived.forms[0]
    assert plain(*Formulas(found, form).update(form.forms[0])) == update


def test_what_a_row_writes_reads_earlier_rows():
    kda = chunk_formulas("kda")
    (slot,) = kda.reading
    assert plain(kda.what_is_written(slot), kda.unrolled(slot), kda.weights(slot, slot)) == [
        "y_i = β_i v_i − β_i S′_iᵀ k_i",
        "S′_i = Diag(Γ_i) S_0 + ∑[j < i] ((Γ_i / Γ_j) ⊙ k_j) y_jᵀ",
        "A_[i,j] = −β_i k_iᵀ Diag(Γ_i / Γ_j) k_j",
    ]
    assert plain(*kda.solution()) == [
        "W = (I − A)⁻¹ [−β_i(Γ_i ⊙ k_i)]",
        "U = (I − A)⁻¹ [β_i v_i]",
        "Y = U + W S_0",
    ]


def test_a_read_before_the_decay_stops_a_row_earlier():
    rwkv7 = chunk_formulas("rwkv7")
    reader, writer = rwkv7.slots
    assert plain(rwkv7.weights(reader, writer)) == ["B_[i,j] = −κ_iᵀ Diag(Γ_[i-1] / Γ_j) k_j"]


def test_micro_steps_have_letters():
    formulas = chunk_formulas("gated_delta_product")
    assert isinstance(formulas.rows, Lettered)
    meanings = {as_plain(name): plain(*values) for name, values in formulas.rows.meanings()}
    assert meanings["γ_i"] == ["α_t", "1"]
    assert meanings["w_i"] == ["−β_[0,t] k_[0,t]", "−β_[1,t] k_[1,t]"]


def test_letters_are_free():
    """The state C is not the length of a chunk, the state A not a matrix of the derivation."""
    assert as_plain(chunk_formulas("mlstm").added()[1]) == "C_L = Γ_L C_0 + Q_C"
    assert chunk_formulas("mesa").rows.letters.of("A") != "A"


def test_latex():
    found = study("kda")
    form = found.derived.forms[0]
    text = as_latex(Formulas(found, form).update(form.forms[0])[0])
    assert text == r"S'_{t} = \operatorname{Diag}\left( \alpha_{t} \right)\,S_{t-1}"

"""Pages of recurrences that no bundled spec has: every step is told, and every number right."""

from __future__ import annotations

import xml.dom.minidom

import pytest

from archc.derivation import document, html
from archc.derivation.story import page_of
from archc.elaborate.elaborate import elaborate
from archc.ir.layer import Layer
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse

INPUTS = "q[H, K], k[H, K], v[H, V], a[H], b[H, K], e[H, V]"


def layer(states: str, *lines: str) -> Layer:
    body = "".join(f"        {line}\n" for line in lines)
    text = (
        f"layer Odd(H, K, V):\n    input {INPUTS}\n"
        f"    recurrence {states} over H:\n{body}    output o\n"
    )
    return elaborate(parse(Source("odd.arch", text)), None, {}, import_source)


CASES = {
    "a vector that is corrected": (
        "z[K]",
        ("z[t] = sigmoid(a) * (z[t-1] - k * (k.T @ z[t-1])) + q", "o = q.T @ z[t]"),
        "dy_i = ∑[l ≥ i] ((Γ_l / Γ_i) q_lᵀ x_i) do_l + ((Γ_C / Γ_i) x_i)ᵀ dz_C",
    ),
    "two corrections": (
        "S[K, V]",
        ("S[t] = sigmoid(a) * S[t-1] - k @ (k.T @ S[t-1]) - b @ (q.T @ S[t-1]) + k @ v.T",
         "o = S[t].T @ q"),
        "W = (I − A)⁻¹ [Γ_[i-1] w_[1,i] ; Γ_[i-1] w_[2,i]]",
    ),
    "decays on both sides": (
        "S[K, V]",
        ("S[t] = diag(sigmoid(b)) @ S[t-1] @ diag(sigmoid(e)) + k @ v.T", "o = 2 * (S[t-1].T @ q)"),
        "S_C = Diag(Γ_C) S_0 Diag(Δ_C) + Q_S",
    ),
    "states that feed one another": (
        "x[K], y[K]",
        ("x[t] = sigmoid(b) * x[t-1] + 0.5 * y[t-1] + k", "y[t] = 0.3 * x[t-1] + q",
         "o = x[t] + y[t]"),
        "Π_i = B_i Π_[i-1]",
    ),
    "matrices that scale one another": (
        "S[K, V], M[K, V]",
        ("S[t] = sigmoid(a) * S[t-1] + k @ (v - M[t-1].T @ k).T",
         "M[t] = 0.9 * M[t-1] + S[t] - k @ v.T", "o = M[t].T @ q - S[t-1].T @ k"),
        "M_t = (9 / 10) M_[t-1] + σ(a_t) S_[t-1] + k_t(−M_[t-1]ᵀ k_t)ᵀ    (update)\n"
        "    S_t = σ(a_t) S_[t-1] + k_t(v_t − M_[t-1]ᵀ k_t)ᵀ    (update)",
    ),
    "a cascade": (
        "S[K, V], z[V]",
        ("S[t] = sigmoid(a) * S[t-1] + k @ v.T", "z[t] = 0.9 * z[t-1] + tanh(S[t].T @ q)",
         "o = z[t]"),
        "Of `z`, once the states before are known at every token",
    ),
    "a rectified vector": (
        "z[K]",
        ("z[t] = relu(sigmoid(a) * z[t-1] + k)", "o = z[t]"),
        "z_C = max(F_C ⊙ z_0, c_C) + A_C    (to the next chunk)",
    ),
    "a vector between two bounds": (
        "z[K]",
        ("z[t] = min(max(sigmoid(a) * z[t-1] + k, -1), exp(b))", "o = z[t]"),
        "u_[≤i] = min(max(u_[≤i-1] ⊙ γ_i + m_i, l_i), u_i)",
    ),
    "a gate that may grow": (
        "S[K, V]",
        ("S[t] = diag(exp(b)) @ S[t-1] + k @ v.T", "o = S[t].T @ q"),
        "S stays a loop over the tokens: `S` may grow",
    ),
}  # fmt: skip


@pytest.mark.default("a vector that is corrected", "a cascade", "decays on both sides")
@pytest.mark.parametrize("name", CASES)
def test_a_page(name: str):
    states, lines, says = CASES[name]
    made = page_of(layer(states, *lines), {})
    assert not made.wrong
    assert says in document.as_text(made)
    xml.dom.minidom.parseString(html.as_html(made).removeprefix("<!DOCTYPE html>"))
    assert document.as_tex(made).count("{") == document.as_tex(made).count("}")

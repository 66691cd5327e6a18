"""`chunk: law(..)`: what a composition law is kept as, and which laws fit no recurrence."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from tests.elaborate.forms import randn, same
from tests.elaborate.specs import codes, layer, refusal
from tests.recurrence.law.user_laws import AFFINE, LOG_SPACE, PRODUCTS


def laws(text: str) -> list[GivenLaw]:
    """The laws of a spec's recurrences."""
    return [
        law for n in layer(text).graph if isinstance(n.op, ir.Recurrence) for law in n.op.laws
    ]  # fmt: skip


def names(law: GivenLaw) -> dict[str, tuple[str, ...]]:
    return {name: type.names for name, type in law.types.items()}


def test_a_law_is_kept_beside_its_recurrence() -> None:
    (law,) = laws(LOG_SPACE)
    assert (law.states, law.parts, law.proved) == (("m",), ("p", "q"), None)
    assert names(law) == {"p": ("batch", "D"), "q": ("batch", "D")}
    assert list(law.merge.outputs) == ["p", "q"]
    assert list(law.apply.outputs) == ["m[T]"]
    assert [name for name, *_ in law.named] == ["Token", "Merge", "Apply"]
    assert layer(LOG_SPACE).chunk.lines() == ("law(Token, Merge, Apply)",)


def test_the_body_puts_out_the_summary_of_its_token() -> None:
    (node,) = (node for node in layer(LOG_SPACE).graph if isinstance(node.op, ir.Recurrence))
    assert list(node.op.body.outputs) == ["m", "p@m", "q@m"]
    assert not [u for u in layer(LOG_SPACE).graph.users(node.id) if "@" in node.op.captures]


def test_layers_are_given_by_place_or_by_name() -> None:
    text = LOG_SPACE.replace("(Token, Merge, Apply)", "(Token, apply = Apply, merge = Merge)")
    assert [name for name, *_ in laws(text)[0].named] == ["Token", "Merge", "Apply"]


def test_parts_have_the_heads_of_the_recurrence_and_axes_of_their_own() -> None:
    """The layers name axes as they like: a product of two [K, K'] has one in common."""
    (law,) = laws(AFFINE)
    assert names(law) == {"M": ("batch", "H", "K", "K'"), "v": ("batch", "H", "K")}
    assert law.merge[law.merge.outputs["M"]].type.names == ("batch", "H", "K", "K'")


def test_parts_of_two_laws_have_different_names() -> None:
    text = PRODUCTS.replace("output top[D] = x + 0 * r", "output p[D] = x + 0 * r")
    assert [law.parts for law in laws(text)] == [("p",), ("p_m",)]


def test_a_law_is_known_where_a_promise_needs_the_recurrence() -> None:
    rules = "chunk: bound e >= 0\n    chunk: law(Token, Merge, Apply)"
    text = LOG_SPACE.replace("chunk: law(Token, Merge, Apply)", rules)
    text = text.replace("output m\n", "e = exp(m)\n    output m\n")
    assert len(laws(text)) == 1


TOO_FEW = "`law` takes three layers"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("(Token, Merge, Apply)", "(Token, Merge)", TOO_FEW),
        ("(Token, Merge, Apply)", "(Token)", TOO_FEW),
        ("law(Token, Merge, Apply)", "law", TOO_FEW),
        ("(Token, Merge, Apply)", "(Token, Merge, Apply, Apply)", TOO_FEW),
        ("(Token, Merge, Apply)", "(Token, Merge, act = Apply)", TOO_FEW),
        ("(Token, Merge, Apply)", "(Token, Merge, token = Apply)", TOO_FEW),
        ("(Token, Merge, Apply)", "(Token, Merge, D)", "`D` is no layer"),
        ("(Token, Merge, Apply)", "(Token, Merge, exp)", "exp"),
        ("input p[D], q[D], p'[D], q'[D]", "input p[D], q[D], p'[D]", "3 inputs, and needs 4"),
        ("    output P[D] = p + p'\n", "", "1 output, and needs 2"),
        ("input p[D], q[D], m[D]", "input p[D], q[D]", "takes no state"),
        ("input p[D], q[D], m[D]", "input p[D], q[D], m[D], b[D]", "1 output, and needs 2"),
        ("output p[D] = a", "param w[D]\n    output p[D] = a * w", "more than inputs and formulas"),
        ("output P[D] = p + p'", "output P[] = sum[D](p + p')", "`P` of `Merge` is [], not [D]"),
        ("input a[D], b[D]\n    output p", "input e[D], b[D]\n    a = e\n    output p",
         "`e` is no value of the recurrence"),
        ("input a[D], b[D]\n    output p", "input m[D], b[D]\n    a = m\n    output p",
         "`m` depends on the state"),
        ("output p[D] = a", "output p[D] = keep(a, 0.1) * a", "draws random numbers"),
        ("output P[D] = p + p'", "output P[D] = keep(p, 0.1) + p'", "formulas of its inputs alone"),
        ("recurrence m[D]", "chunk: sequential\n    recurrence m[D]", "and `sequential`"),
        ("law(Token", "law(Token, Merge, Apply), law(Token", "`m` has two composition laws"),
        ("input p[D], q[D], m[D]", "input p[D], q[D], b[D]\n    m = b", "has the states `b`"),
    ],
)  # fmt: skip
def test_a_law_that_does_not_fit_is_refused(old: str, new: str, reason: str) -> None:
    assert old in LOG_SPACE
    text = LOG_SPACE.replace(old, new, 1)
    assert reason in refusal(text)
    assert codes(text) in (["E0224"], ["E0201"])


def test_a_state_of_another_recurrence_is_refused() -> None:
    text = LOG_SPACE.replace("input p[D], q[D], m[D]", "input p[D], q[D], m[D], n[D]")
    text = text.replace("    output after", "    output other[D] = n\n    output after")
    text = text.replace(
        "    output m\n", "    recurrence n[D]:\n        n[t] = n[t-1]\n    output m\n"
    )
    assert codes(text) == ["E0224"]
    assert "`n` is no state of this recurrence" in refusal(text)


TURNED = """layer Token(K, V):
    input beta[], k[K], v[V]
    output P[K, K'] = {P}
    output Q[K, V] = {Q}

layer Merge(K, V):
    input P[K, K'], Q[K, V], P'[K, K'], Q'[K, V]
    output R[K, K'] = P' @ P
    output U[K, V] = (Q.T @ P'.T).T + Q'

layer Apply(K, V):
    input P[K, K'], Q[K, V], S[K, V]
    output N[K, V] = I @ P @ S + Q

layer Delta(H, K, V):
    input beta[H], k[H, K], v[H, V]
    chunk: law(Token, Merge, Apply)
    recurrence S[K, V] over H:
        S[t] = S[t-1] + beta * k @ (tanh(v) - S[t-1].T @ k).T
        o = S[t].T @ k
    output o
"""


@pytest.mark.parametrize(
    ("P", "Q"),
    [
        ("I - beta * k @ k.T", "beta * k @ tanh(v).T"),
        ("-(k @ (beta * k.T)) + I", "(tanh(v) @ k.T * beta).T"),
        ("I - (k @ k.T).T * beta", "k @ (beta * tanh(v)).T"),
    ],
)
def test_outer_products_transposes_and_i_in_a_law(P: str, Q: str) -> None:
    """However its products are written, the law is proved to be that of the update."""
    text = TURNED.format(P=P, Q=Q)
    (law,) = laws(text)
    assert names(law) == {"P": ("batch", "H", "K", "K'"), "Q": ("batch", "H", "K", "V")}
    (checked,) = [
        law
        for n in archc.parse(text).layer.graph
        if isinstance(n.op, ir.Recurrence)
        for law in n.op.laws
    ]
    assert checked.proved


@pytest.mark.slow
def test_a_law_with_outer_products_gives_the_numbers_of_its_recurrence() -> None:
    text = TURNED.format(P="I - beta * k @ k.T", Q="beta * k @ tanh(v).T")
    inputs = {"beta": randn(2).sigmoid(), "k": randn(2, 3, seed=1) / 2, "v": randn(2, 4, seed=2)}

    def formula(beta: Tensor, k: Tensor, v: Tensor) -> Tensor:
        state, read = beta.new_zeros(2, 2, 3, 4), []
        for t in range(beta.shape[1]):
            wrong = v[:, t].tanh() - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
            state = state + torch.einsum("bh,bhk,bhv->bhkv", beta[:, t], k[:, t], wrong)
            read.append(torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        return torch.stack(read, 1)

    same(text, inputs, formula, H=2, K=3, V=4)


def test_the_identity_has_the_shape_that_a_name_is_given() -> None:
    text = "layer L(K):\n    input x[K], a[]\n    M[K, K'] = a * I\n    output y[K] = M @ x\n"
    inputs = {"x": randn(3), "a": randn()}
    same(text, inputs, lambda x, a: a[..., None] * x, K=3)


@pytest.mark.parametrize("P", ["k.T", "k + k.T", "k.T * v"])
def test_rows_and_columns_do_not_mix_in_a_law(P: str) -> None:
    assert codes(TURNED.format(P=P, Q="beta * k @ v.T"))[0] in ("E0301", "E0303")

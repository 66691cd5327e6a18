"""The rules for products, one by one: what each makes, and what each leaves alone."""

from __future__ import annotations

import pytest

from archc.algebra.rules import (
    distribute,
    drop_delta,
    look_up_last,
    reassociate,
    rows_apart,
)
from archc.elaborate.elaborate import elaborate
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.rewrite import Rule, rewrite
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse
from tests.graphs import Sketch, axis, fire, layer, lines

SIZES = {"H": 2, "K": 3, "V": 4, "d": 5}


def model(s: Sketch, y: int, **outputs: int) -> ir.Layer:
    return layer(s.outputs(y=y, **outputs), "H K V d")


def identity(s: Sketch) -> int:
    return s.add(ir.Delta(axis("K"), axis("K'")))


# --- identity matrices -------------------------------------------------------------------------


def test_an_identity_matrix_times_a_value_is_the_value() -> None:
    s = Sketch()
    x = s.input("x", "batch K V")
    y = s.einsum("K j, batch j V -> batch K V", identity(s), x)
    new = fire(drop_delta, model(s, s.fn("exp", y)), **SIZES)
    assert lines(new.graph) == ["%0 = exp(x) : [batch, K, V]"]


def test_a_diagonal_matrix_times_a_value_is_an_elementwise_product() -> None:
    s = Sketch()
    diagonal = s.fn("mul", s.input("a", "batch K"), identity(s))
    y = s.einsum("batch K j, batch j V -> batch K V", diagonal, s.input("x", "batch K V"))
    new = fire(drop_delta, model(s, y), **SIZES)
    assert lines(new.graph) == ["%0 = mul(a, x) : [batch, K, V]"]


def test_a_value_times_a_diagonal_matrix() -> None:
    s = Sketch()
    diagonal = s.fn("mul", s.input("a", "batch K"), identity(s))
    y = s.einsum("batch V j, batch j K -> batch V K", s.input("x", "batch V K"), diagonal)
    new = fire(drop_delta, model(s, y), **SIZES)
    assert lines(new.graph) == ["%0 = mul(x, a) : [batch, V, K]"]


def test_an_identity_matrix_that_only_renames() -> None:
    s = Sketch()
    x = s.input("x", "batch K V")
    y = s.einsum("i j, batch i V -> batch j:K' V", identity(s), x)
    new = fire(drop_delta, model(s, y), **SIZES)
    assert lines(new.graph) == ["%0 = contract[batch K' V -> batch K' V](x) : [batch, K', V]"]


def test_the_trace_of_a_matrix() -> None:
    s = Sketch()
    y = s.einsum("i j, batch i j -> batch", identity(s), s.input("x", "batch K K'"))
    new = fire(drop_delta, model(s, y), **SIZES)
    assert lines(new.graph) == ["%0 = contract[batch K K -> batch](x) : [batch]"]


def test_identities_are_seen_through_other_products() -> None:
    s = Sketch()
    M = s.einsum("batch i j, j k -> batch i:K k:K'", s.input("M", "batch K K'"), identity(s))
    y = s.einsum("batch K j, batch j -> batch K", M, s.input("x", "batch K"))
    new = fire(drop_delta, model(s, y), **SIZES)
    assert lines(new.graph) == ["%0 = contract[batch K K', batch K' -> batch K](M, x) : [batch, K]"]


def test_an_identity_matrix_that_is_needed_stays() -> None:
    s = Sketch()
    diagonal = s.fn("mul", s.input("a", "batch K"), identity(s))
    size = s.einsum("i j ->", identity(s))
    outer = s.einsum("i j, batch -> batch i:K j:K'", identity(s), s.input("b", "batch"))
    fire(drop_delta, model(s, diagonal, size=size, outer=outer), times=0, **SIZES)


# --- the order of contractions -----------------------------------------------------------------


def test_matrices_are_applied_to_a_vector_one_by_one() -> None:
    s = Sketch()
    AB = s.einsum("K j, j k -> K k:K'", s.param("A", "K K'"), s.param("B", "K K'"))
    y = s.einsum("K j, batch j -> batch K", AB, s.input("x", "batch K"))
    new = fire(reassociate, model(s, y), **SIZES)
    assert lines(new.graph) == [
        "%0 = contract[K K', batch K' -> batch K](B, x) : [batch, K]",
        "%1 = contract[K K', batch K' -> batch K](A, %0) : [batch, K]",
    ]


def test_a_transpose_is_taken_up_by_the_contraction_that_reads_it() -> None:
    s = Sketch()
    turned = s.einsum("batch K V -> batch V K", s.input("S", "batch K V"))
    y = s.einsum("batch V K, batch K -> batch V", turned, s.input("q", "batch K"))
    new = fire(reassociate, model(s, y), **SIZES)
    assert lines(new.graph) == ["%0 = contract[batch K V, batch K -> batch V](S, q) : [batch, V]"]


def test_the_sum_of_a_product_is_a_contraction() -> None:
    s = Sketch()
    product = s.fn("mul", s.input("a", "batch t K V"), s.input("b", "batch t V"))
    new = fire(reassociate, model(s, s.add(ir.Reduce("sum", ("V",)), product)), **SIZES)
    assert lines(new.graph) == [
        "%0 = contract[batch t K V, batch t V -> batch t K](a, b) : [batch, t, K]"
    ]


def test_a_scale_moves_to_the_smaller_factor() -> None:
    s = Sketch()
    outer = s.einsum(
        "batch K, batch V -> batch K V", s.input("k", "batch K"), s.input("v", "batch V")
    )
    new = fire(reassociate, model(s, s.fn("mul", s.input("b", "batch"), outer)), **SIZES)
    assert lines(new.graph) == [
        "%0 = mul(b, v) : [batch, V]",
        "%1 = contract[batch K, batch V -> batch K V](k, %0) : [batch, K, V]",
    ]


def test_weights_are_not_multiplied_together_where_that_depends_on_sizes() -> None:
    s = Sketch()
    down = s.einsum("batch t d, d V -> batch t V", s.input("x", "batch t d"), s.param("A", "d V"))
    up = s.einsum("batch t V, V K -> batch t K", down, s.param("B", "V K"))
    fire(reassociate, model(s, up), times=0, **SIZES)


def test_a_value_that_is_read_twice_is_computed_once() -> None:
    s = Sketch()
    AB = s.einsum("K j, j k -> K k:K'", s.param("A", "K K'"), s.param("B", "K K'"))
    y = s.einsum("K j, batch j -> batch K", AB, s.input("x", "batch K"))
    fire(reassociate, model(s, y, z=s.fn("exp", AB)), times=0, **SIZES)


def test_squares_and_plain_products_are_left_alone() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    square = s.add(ir.Reduce("sum", ("K",)), s.fn("mul", x, x))
    scaled = s.fn("mul", s.fn("mul", x, s.param("a", "K")), s.param("b", "K"))
    fire(reassociate, model(s, scaled, square=square), times=0, **SIZES)


# --- sums --------------------------------------------------------------------------------------


def outer(s: Sketch, u: int, w: int) -> int:
    return s.einsum("batch K, batch K' -> batch K K'", u, w)


def applied(s: Sketch, matrix: int) -> int:
    return s.einsum("batch K j, batch j V -> batch K V", matrix, s.input("X", "batch K V"))


STEPPED = [
    "%0 = contract[batch K, batch K V -> batch V](w, X) : [batch, V]",
    "%1 = contract[batch K, batch V -> batch K V](u, %0) : [batch, K, V]",
    "%2 = sub(X, %1) : [batch, K, V]",
]


def test_identity_minus_an_outer_product_never_becomes_a_matrix() -> None:
    s = Sketch()
    u, w = s.input("u", "batch K"), s.input("w", "batch K")
    new = fire(distribute, model(s, applied(s, s.fn("sub", identity(s), outer(s, u, w)))), **SIZES)
    assert lines(new.graph) == STEPPED


def test_a_sum_of_outer_products_with_scales_and_a_difference_inside() -> None:
    s = Sketch()
    u, w, b = s.input("u", "batch K"), s.input("w", "batch K"), s.input("b", "batch")
    inner = s.fn("add", s.fn("neg", s.fn("mul", b, outer(s, u, w))), outer(s, w, u))
    matrix = s.fn("sub", identity(s), s.fn("div", inner, s.fn("exp", b)))
    new = fire(distribute, model(s, applied(s, matrix)), times=2, **SIZES)  # outer sum, then inner
    assert not [node for node in new.graph if {"K", "K'"} <= set(node.type.names)]


def test_a_sum_of_weights_times_a_value_stays_a_sum() -> None:
    s = Sketch()
    both = s.fn("add", s.param("A", "K K'"), s.param("B", "K K'"))
    fire(distribute, model(s, applied_to_weights(s, both)), times=0, **SIZES)


def applied_to_weights(s: Sketch, matrix: int) -> int:
    return s.einsum("K j, batch j V -> batch K V", matrix, s.input("X", "batch K V"))


def test_a_residual_before_a_projection_stays() -> None:
    s = Sketch()
    h = s.fn("add", s.input("x", "batch t d"), s.input("z", "batch t d"))
    y = s.einsum("batch t d, d K -> batch t K", h, s.param("W", "d K"))
    fire(distribute, model(s, y), times=0, **SIZES)


def test_a_term_without_the_axis_that_is_summed_is_not_taken_apart() -> None:
    """sum_j (I[i, j] + a[i]) x[k] counts a[i] K times: no factor of the term says so."""
    s = Sketch()
    matrix = s.fn("add", identity(s), s.input("a", "batch K"))
    y = s.einsum("batch K j, batch V -> batch K V", matrix, s.input("x", "batch V"))
    fire(distribute, model(s, y), times=0, **SIZES)


PAIRS = """layer Pairs(d, H, K, w = 4):
    input x[d]
    param W_q, W_k[d, H, K]; R[w, H, K]
    q = x @ W_q
    k = x @ W_k
    attend t - w < s <= t over H:
        z = {}
        y = sum[s](exp(z + q[t].T @ k[s]))
    output y
"""


def attended(score: str, *rules: Rule) -> Graph:
    """The body of an attend with this score, after some rules."""
    tree = parse(Source("pairs", PAIRS.format(score)))
    layer = rewrite(elaborate(tree, None, {}, import_source), rules)
    (attend,) = (node.op for node in layer.graph if isinstance(node.op, ir.Attend))
    return attend.body


def tables(score: str) -> list[set[str]]:
    """What is looked up for each pair of tokens, by the axes that its values have."""
    body = attended(score, rows_apart, look_up_last)
    return [{*n.type.names} for n in body if isinstance(n.op, ir.Gather)]


def test_a_row_that_pairs_look_up_is_multiplied_before() -> None:
    """No pair has a number for each entry of K. Rows that are multiplied with the token read stay:
    in generation these are all of the past. So do rows that are looked up for themselves."""
    assert tables("q[t].T @ R[t - s]") == [{"batch", "t", "s", "H"}]
    assert tables("R[t - s].T @ q[t]") == [{"batch", "t", "s", "H"}]
    assert tables("k[s].T @ R[t - s]") == [{"t", "s", "H", "K"}]
    assert tables("sum[K](R[t - s])") == [{"t", "s", "H", "K"}]


def test_a_row_that_is_looked_up_is_multiplied_apart_from_what_it_is_added_to() -> None:
    """No pair has a vector then; a sum that is no vector of each pair stays."""
    assert tables("q[t].T @ (k[s] + R[t - s])") == [{"batch", "t", "s", "H"}]
    assert tables("(R[t - s] - k[s]).T @ q[t]") == [{"batch", "t", "s", "H"}]
    for score, sums in (("q[t].T @ (k[s] + R[0])", 1), ("(q[t] + k[t]).T @ R[t - s]", 1)):
        body = attended(score, rows_apart)
        vectors = [n for n in body if n.op == ir.Elementwise("add") and "K" in n.type.names]
        assert len(vectors) == sums


@pytest.mark.parametrize("rule", [drop_delta, distribute, reassociate, rows_apart, look_up_last])
def test_whole_numbers_are_not_algebra(rule: object) -> None:
    s = Sketch()
    at = s.add(ir.Position(axis("K")))
    twice = s.fn("mul", s.fn("add", at, at), at)
    y = s.fn("real", s.add(ir.Reduce("sum", ("K",)), twice))
    fire(rule, model(s, y), times=0, **SIZES)

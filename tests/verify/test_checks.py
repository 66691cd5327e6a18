"""Numbers of a recurrence's forms: right ones pass, and a broken form is seen."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import pytest

import archc
from archc.commands.stages import layer_of
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.verify import checks
from archc.verify.checks import Check
from archc.verify.study import Study, studies_of
from archc.verify.trial import Trial

ALL = (
    checks.normal_checks, checks.chunk_checks, checks.gradient_checks, checks.safe_checks,
    checks.decode_checks, checks.law_checks,
)  # fmt: skip


@lru_cache
def study(spec: str) -> Study:
    return next(studies_of(layer_of(spec, {})))


def run(trial: Trial) -> list[tuple[Check, float]]:
    return [(check, check.error()) for some in ALL for check in some(trial)]


@pytest.mark.default("gated_delta_product", "mamba", "lstm", "ssm")
@pytest.mark.parametrize(
    "spec", ["kda", "gated_delta_product", "mamba", "ssm", "mlstm", "mesa", "lstm"]
)
def test_every_form_is_right(spec: str):
    found = run(Trial(study(spec), 8))
    assert found
    assert [(check.what, error) for check, error in found if not error <= check.limit] == []


def test_a_cascade_and_states_of_many_sizes():
    trial = Trial(study("linear_attention"), 7, {"H": 1, "d": 6, "K": 3})
    assert trial.sizes_text().startswith("H = 1, K = 3")
    assert all(error <= check.limit for check, error in run(trial))


def test_a_broken_form_is_seen():
    """Another order of sums in the chunked form, and no check of chunks passes but trivial ones."""
    right = study("gated_delta")
    graph = right.derived.graph
    assert graph is not None
    broken = graph.copy()
    node = next(node for node in broken if isinstance(node.op, ck.Spans))
    broken.replace_op(node.id, replace(node.op, exclusive=not node.op.exclusive))
    wrong = replace(right, derived=replace(right.derived, graph=broken))
    found = [(c.what, c.error() <= c.limit) for c in checks.chunk_checks(Trial(wrong, 9))]
    assert dict(found) == {what: what == "chunks of 1" for what, _ in found}


def test_numbers_are_the_same_every_time():
    one, two = (Trial(study("gla"), 5).expected for _ in range(2))
    assert all((one[name] == two[name]).all() for name in one)


def test_gates_are_extreme_where_there_are_gates():
    """In float32; the loop of a cell, and a state that never decays, have none."""
    assert [check.limit for check in checks.safe_checks(Trial(study("kda"), 4))] == [1e-4]
    assert not list(checks.safe_checks(Trial(study("lstm"), 4)))
    assert not list(checks.safe_checks(Trial(study("delta"), 4)))
    assert any(isinstance(node.op, ir.Recurrence) for node in Trial(study("kda"), 4).step)


def test_what_is_no_number_in_every_form_is_no_fault():
    """A root of what the numbers that are drawn make negative, throughout."""
    text = """
layer Spread(d):
    input x[d]
    n = position(x) + 1
    recurrence m[d], s[d]:
        m[t] = m[t-1] + (x - m[t-1]) / n
        s[t] = s[t-1] + (x - m[t-1]) * (x - m[t])
        y = sqrt(s[t] / n - 9)
    output y
"""
    found = run(Trial(next(studies_of(archc.parse(text).layer)), 8))
    assert found
    assert [(check.what, error) for check, error in found if not error <= check.limit] == []


def test_a_trial_begins_where_the_recurrence_can_be():
    """A root of a sum of squares, which a start that is drawn would make the root of a negative."""
    text = """
layer Scaled(K, V):
    input k[K], v[V]
    recurrence S[K, V], Q[K]:
        Q[t] = Q[t-1] + k * k
        S[t] = S[t-1] + (k / sqrt(Q[t] + 0.01)) @ (v - S[t-1].T @ k).T
        o    = S[t].T @ k
    output o
"""
    trial = Trial(next(studies_of(archc.parse(text).layer)), 8)
    assert (trial.starts["Q[0]"] > 0).all()
    found = run(trial)
    assert any("gradient" in check.what for check, _ in found)
    assert [(check.what, error) for check, error in found if not error <= check.limit] == []

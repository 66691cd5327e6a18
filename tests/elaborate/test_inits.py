"""Initial values that are none."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.diagnostics import ArchError

TEXT = """layer Scaled(d, a = 1):
    input x[d]
    param p[d] = {value}
    output y[d] = p * x
"""


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("-inf", "not finite"),
        ("1e-400", "too small"),
        ("normal(0, -1)", "must not be negative"),
        ("normal(inf, 1)", "not finite"),
        ("uniform(2, 1)", "at most the second"),
        ("loguniform(0, 1)", "above 0"),
        ("loguniform(2, 1)", "at most the second"),
        ("log(uniform(-1, 1))", "above 0"),
        ("log(normal(0, 1))", "above 0"),
        ("inverse_softplus(0)", "above 0"),
        ("logit(exp(uniform(-1, 1)))", "between 0 and 1"),
        ("exp(exp(uniform(5, 9)))", "no number of float64"),
        ("normal(0, -1 / sqrt(d))", "must not be negative"),
        ("uniform(1 / sqrt(d), -1 / sqrt(d))", "at most the second"),
    ],
)
def test_what_can_be_no_finite_number_is_refused(value: str, why: str) -> None:
    with pytest.raises(ArchError, match=why) as error:
        archc.parse(TEXT.format(value=value))
    (found,) = error.value.diagnostics
    assert found.code == "E0218" and found.label is not None and found.label.span.line == 3


def test_a_number_beyond_all_reals_is_refused() -> None:
    with pytest.raises(ArchError, match=r"E0404.*larger than any real number"):
        archc.parse(TEXT.format(value="1e400"))


def test_what_sizes_decide_is_required_of_them() -> None:
    spec = archc.parse(TEXT.format(value="uniform(a, d - 2)"))
    assert spec.module(d=4).p.isfinite().all()
    with pytest.raises(ArchError, match=r"E0504.*at most the second"):
        spec.module(d=2)


@pytest.mark.parametrize(
    ("value", "size"),
    [("1 / (d - 8)", 8), ("normal(1 / (d - 8), 1)", 8), ("sqrt(d - 8)", 4), ("exp(d)", 1000)],
)
def test_what_is_no_number_at_some_sizes_is_refused_there(value: str, size: int) -> None:
    spec = archc.parse(TEXT.format(value=value))
    assert spec.module(d=10).p.isfinite().all()
    with pytest.raises(ArchError, match=r"E0504.*it must be a finite number"):
        spec.module(d=size)


def test_torch_s_initial_weights_are_written_by_sizes() -> None:
    text = TEXT.format(value="uniform(-1 / sqrt(d), 1 / sqrt(d))")
    spec = archc.parse(text.replace("p[d]", "p[d, a]").replace("y[d] = p * x", "y[a] = x @ p"))
    found = spec.module(d=64, a=500).p
    wanted = torch.nn.Linear(64, 500, bias=False).weight
    assert 0.99 / 8 < found.max() <= 1 / 8 and -1 / 8 <= found.min() < -0.99 / 8
    assert found.std().item() == pytest.approx(wanted.std().item(), rel=0.02)
    assert "Scaled requires" not in spec.source()  # a dim of a parameter is never of size 0


@pytest.mark.parametrize(
    "value", ["log(uniform(0, 16))", "-normal(0, 0)", "uniform(1, 1)", "exp(normal(0, 1))", "0"]
)
def test_what_is_finite_is_drawn(value: str) -> None:
    spec = archc.parse(TEXT.format(value=value))
    assert spec.module(d=3).p.isfinite().all() and spec.source()

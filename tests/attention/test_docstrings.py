"""The docstrings of kernels of attention: formulas with their dims, and lines of the spec."""

from __future__ import annotations

import pytest

import archc
from archc.compile import programs_of
from tests.few import but

FORWARD = "o = sum[s](softmax[s](score) * v) where s <= t  [batch t H K]"
SCORE = "score = product / (sqrt(K)) + (sum_log_f_to - sum_log_f_before)  [batch t H s]"


def docs(spec: str) -> dict[str, list[str]]:
    """The lines of the docstrings of a spec's kernels of attention, by name."""
    programs = programs_of(archc.load(spec).layer)
    return {n: p.doc.splitlines() for n, p in programs.items() if "_sum" in n}


def test_formulas_of_a_forward_and_its_gradients() -> None:
    found = docs("fox")
    for name, lines in found.items():
        if name.endswith("_join_kernel"):
            assert "o = sum[part](softmax[part](part_lse) * part_o)" in lines
        else:
            assert {"product = sum[K](q * k)", SCORE, FORWARD} <= {*lines}, name
    readers = next(lines for name, lines in found.items() if "readers" in name)
    tokens = next(lines for name, lines in found.items() if "_tokens_" in name)
    assert {"d.product = d.score / (sqrt(K))", "d.q = sum[s](d.product * k)"} <= {*readers}
    assert {"d.k = sum[t](d.product * q)", "d.v = sum[t](exp(score - lse) * d.o)"} <= {*tokens}


@pytest.mark.default("alibi")
@pytest.mark.parametrize(
    "spec", but(["alibi", "dsa", "gemma3", "gpt_oss", "nsa"], ["gemma3", "gpt_oss"])
)
def test_every_kernel_says_which_lines_it_is_of(spec: str) -> None:
    found = docs(spec)
    assert found
    formulas = {n: lines for n, lines in found.items() if not n.endswith("_unions_kernel")}
    for name, lines in formulas.items():
        if not any(line.startswith("total =") for line in lines):
            assert any(f"{spec}.arch:" in line for line in lines), name
            assert any(line.startswith(("o = sum[", "lse = log(sum[")) for line in lines), name


def test_what_is_key_and_value_has_both_sums() -> None:
    every = [line for lines in docs("dsa").values() for line in lines]
    assert "d.c = sum[t](d.product * W_UK + exp(score - lse) * d.o)" in every


@pytest.mark.default("tests/newcomers/channel_gates.arch")
@pytest.mark.parametrize("spec", ["path", "tests/newcomers/channel_gates.arch"])
def test_kernels_of_levels_say_shapes_and_lines(spec: str) -> None:
    """What stands between the folds of a tree: borders of spans, and steps from level to level."""
    kinds = ("borders", "climb", "climb_keeping", "descend", "sum_join", "sum_sums")
    ends = tuple(f"{kind}_kernel" for kind in kinds)
    found = {n: x for n, x in docs(spec).items() if n.endswith(ends) and "moved" not in n}
    assert len(found) >= 6
    for name, lines in found.items():
        assert any(line.endswith("]") and "  [batch H" in line for line in lines), name
        assert any(f"{spec.removesuffix('.arch')}.arch:" in line for line in lines), name

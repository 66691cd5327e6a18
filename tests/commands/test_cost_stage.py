"""`archc show --stage cost`, against published sizes, torch's own count, and what modules keep."""

from __future__ import annotations

import json

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import archc
from archc.commands.cost_stage import costs_of
from archc.diagnostics import ArchError
from tests.console import run

PRODUCTS = """
layer Inner(d, f):
    input x[d]
    param A[d, f]; B[f, d]
    output y[d] = (x @ A) @ B

layer Products(d = 6, f = 10, e = 4):
    input x[d]
    param C[d, e]
    h = Inner(d, f)(x)
    h2 = Inner(d, f)(h)
    output y[e] = h2 @ C
"""
SMALL = {"vocab": 11, "d": 12, "H": 2, "G": 1, "L": 2, "f": 8}


def test_gpt_2_has_124_million_parameters():
    """What transformers counts for `gpt2`: 124,439,808. Layers that are the same share a line."""
    shown = run("show", "gpt", "--stage", "cost").stdout
    assert "\nGPT  " in shown and " 124,439,808 " in shown
    (line,) = [line for line in shown.splitlines() if line.startswith("  layers.0")]
    assert line.startswith("  layers.0 ... layers.11 (12): ") and " 7,087,872 " in line


@pytest.mark.slow
def test_deepseek_v3_has_671_billion_parameters():
    """Of which, by its paper, 37 billion work for a token: two operations each, and attention. 70.3
    kB of cache a token: 61 layers of 512 + 64 numbers."""
    whole = costs_of("deepseek_v3", {"T": 1}).rows[0]
    assert round(whole.parameters / 1e9) == 671
    assert whole.cache == 61 * (512 + 64) * 2
    assert 36.5e9 < whole.flops / 2 < 38.5e9


@pytest.mark.usefixtures("empty_folder")
def test_operations_are_those_that_torch_counts(tmp_path):
    path = tmp_path / "products.arch"
    path.write_text(PRODUCTS)
    found = costs_of(f"{path}", {"T": 7, "f": 5})
    module = archc.load(str(path)).module(d=6, f=5, backend="eager")
    with FlopCounterMode(display=False) as counter:
        module(torch.randn(3, 7, 6))
    assert counter.get_total_flops() == 3 * 7 * found.rows[0].flops
    assert [row.flops for row in found.rows] == [2 * (4 * 30 + 24), 4 * 30, 4 * 30]
    assert [row.parameters for row in found.rows] == [60 + 60 + 24, 60, 60]


def test_parameters_and_cache_are_those_of_the_module():
    """By path; a number of the cache has two bytes in the listing."""
    rows = {row.path: row for row in costs_of("lm", SMALL).rows}
    module = archc.load("lm").module(**SMALL)
    for path, row in rows.items():
        inside = module.get_submodule(path)
        assert row.parameters == sum(p.numel() for p in inside.parameters()), path
    long, short = (_kept(module, tokens) for tokens in (9, 5))
    assert rows[""].cache == 2 * (long - short) // 4
    assert rows["layers.0"].cache == rows[""].cache // 2


def _kept(module: torch.nn.Module, tokens: int) -> int:
    """How many numbers stand for so many tokens."""
    state = module(torch.zeros(1, tokens, dtype=torch.int64), return_state=True)[-1]
    leaves = torch.utils._pytree.tree_leaves(state)
    return sum(x.numel() for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point())


def test_costs_as_data():
    asked = [f"--set={name}={size}" for name, size in SMALL.items()]
    data = json.loads(run("show", "lm", "--stage", "cost", "--set=T=64", *asked, "--json").stdout)
    assert data["tokens"] == 64 and data["sizes"]["d"] == 12
    assert [row["depth"] for row in data["layers"][:2]] == [0, 1]
    whole, *inside = data["layers"]
    for key in ("flops", "state", "cache", "parameters"):
        assert whole[key] >= sum(row[key] for row in inside if row["depth"] == 1)


def test_a_length_that_is_none():
    with pytest.raises(ArchError, match="whole number above 0"):
        costs_of("gla", {"T": 0})


def test_a_size_named_like_the_length(tmp_path):
    """It is the layer's own: 10 columns of 8, and as many tokens as where nothing is said."""
    spec = tmp_path / "own.arch"
    text = "layer Own(d, T):\n    input x[d]\n    param W[d, T]\n    output y[T] = x @ W\n"
    spec.write_text(text)
    found = costs_of(str(spec), {"d": 8, "T": 10})
    assert (found.rows[0].parameters, found.sizes["T"], found.tokens) == (80, 10, 4096)

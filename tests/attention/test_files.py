"""Generated files whose attends launch kernels."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise

import pytest
import torch

import archc
from archc.compile import kernels_of, slots_text_of, text_of
from archc.runtime import folds
from archc.runtime.folds import of_running_sums, of_table, running_sums
from archc.runtime.packed import one_by_one
from archc.show.attends import attends_of
from tests.attention.cases import spec
from tests.served import run


@pytest.mark.slow
def test_kernels_are_right_in_tritons_interpreter():
    """Values and gradients of whole files: printed kernels, launches, ops, what is summed after."""
    done = run("tests.attention.files")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.slow
def test_kernels_have_room_on_a_gpu():
    """Shared memory and spilled registers, compiled ahead of time."""
    command = [sys.executable, "-m", "tests.attention.compiled"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_the_plan_says_what_becomes_of_each_attend():
    layer = archc.load("nsa").layer
    told = {each.name: each.how for each in attends_of(layer)}
    assert told["o_win"] == "a fold over blocks of `s`, softmax of a score"
    assert told["o_slc"].startswith("a fold over blocks of `s` that each reader has chosen")
    latent = {each.name: each for each in attends_of(archc.load("dsa").layer)}
    assert latent["chosen"].how.endswith("at a time; scores by a kernel that sums over `HI`")
    assert latent["o"].how.startswith("a fold over each `s` that each reader has chosen")
    assert dict(latent["o"].more)["rows"].startswith("all of `H`, which read the same vectors")
    (plain,) = attends_of(archc.load("mla").layer)
    assert plain.how == "scaled_dot_product_attention of torch"
    ((title, few),) = plain.more
    assert title == "few readers" and "rows are readers and all of `H`" in few
    (usual,) = attends_of(archc.load("attention").layer)
    assert usual.how == plain.how and not usual.more
    assert "mla_memory_fold(" in text_of(archc.load("mla").layer, "triton")
    slots = slots_text_of(layer, "triton")
    assert "= nsa_memory_o_cmp_fold(" in slots, "compressed blocks of sequences of any length"
    assert slots.count("p_safe = ") == 1 and "p_safe_2" not in slots


@pytest.mark.default("v[s]-one launch of each kernel")
@pytest.mark.parametrize(
    ("read", "how"),
    [
        ("v[s]", "one launch of each kernel"),
        ("(v[s] / (1 + s))", "a position is made outside of kernels that know borders"),
        ("(v[s] * sum[V](v[s]))", "one launch of each kernel"),
        ("v[s] - softmax(sum[K](tanh(q[t] + k[s]))) @ v[s]", "a value of several tokens"),
    ],
)
def test_packed_sequences_are_one_launch_where_all_else_is_of_one_token(read: str, how: str):
    layer = archc.parse(spec("softcap(q[t].T @ k[s], 2)", read=f"softmax({{}}) @ {read}")).layer
    found, *_ = attends_of(layer)
    assert how in dict(found.more)["packed"]
    text = text_of(layer, "triton")
    launch = re.search(r"def scored_memory_fold\(.*\):", text)
    assert launch and ("cu_seqlens=None" in launch[0]) == (how == "one launch of each kernel")


def test_files_say_it_too_and_slopes_of_numbers_have_no_gradient():
    text = text_of(archc.load("alibi").layer, "triton")
    assert "def alibi_memory_fold(" in text and "if by_folds(" in text
    assert "d_slope" not in text and "d_sink" in text_of(
        archc.load("window_attention").layer, "triton"
    )
    told = kernels_of(archc.load("fox").layer)
    assert "a fold over blocks of `s`" in str(told)


def test_files_for_a_cpu_have_no_kernels():
    assert "by_folds" not in text_of(archc.load("fox").layer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_running_sums_have_twice_the_digits(dtype: torch.dtype):
    x = -torch.rand(2, 300, 3, generator=torch.Generator().manual_seed(0)).to(dtype) * 1000
    x[:, 10] = -torch.inf
    x.requires_grad_()
    found = running_sums(x)
    exact = x.detach().double().clamp(min=-1e5).cumsum(1)
    assert (found.double().sum(-1) - exact).abs().max() < 1e-7 * exact.abs().max() / 1000
    d = torch.randn(2, 300, 3)
    (slope,) = torch.autograd.grad(found, x, of_running_sums(d))
    wanted = d.double().flip(1).cumsum(1).flip(1).masked_fill(x.detach() == -torch.inf, 0.0)
    assert (slope.double() - wanted).abs().max() < (0.3 if dtype == torch.bfloat16 else 1e-4)


@pytest.mark.slow
def test_running_sums_by_a_kernel_are_those_of_pytorch():
    done = run("tests.attention.sums")
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


@pytest.mark.parametrize("span", [256, 4])
def test_running_sums_begin_anew_in_each_packed_sequence(
    span: int, monkeypatch: pytest.MonkeyPatch
):
    """Of no tokens, of one, of several spans; what is not finite stays where it is."""
    monkeypatch.setattr(folds, "SPAN", span)
    borders = [0, 0, 1, 4, 30, 30, 99, 100]
    x = -torch.rand(1, 100, 3, generator=torch.Generator().manual_seed(0))
    x[:, 50] = torch.nan
    x.requires_grad_()
    found = running_sums(x, torch.tensor(borders))
    d = torch.randn(1, 100, 3)
    d[:, 2] = torch.inf
    (slope,) = torch.autograd.grad(found, x, of_running_sums(d))
    parts = [(x[:, i:j].double(), d[:, i:j].double()) for i, j in pairwise(borders)]
    wanted = torch.cat([y.cumsum(1) for y, _ in parts], 1)
    back = torch.cat([e.flip(1).cumsum(1).flip(1) for _, e in parts], 1)
    torch.testing.assert_close(
        found.double().sum(-1), wanted, rtol=1e-12, atol=1e-12, equal_nan=True
    )
    torch.testing.assert_close(
        slope.double(), back.masked_fill(x.isnan(), 0.0), rtol=1e-6, atol=1e-6
    )


def test_sums_at_an_index_of_a_table():
    d, at = torch.randn(2, 3, 5, 2, 8), torch.randint(0, 6, (2, 3, 5, 2, 8), dtype=torch.int32)
    at[1] = at[0]
    wanted = torch.zeros(3, 7).scatter_add_(1, at[0].flatten(1).long(), d.sum(0).flatten(1))
    assert (of_table(d, at, 7) - wanted).abs().max() < 1e-5


def test_a_layer_without_positions_has_none_in_its_file():
    """Every token reads all of another sequence: nothing asks where a token stands."""
    spec = archc.parse(
        "layer L(d, e, H, K = 6, V = 3):\n"
        "    input x[d]\n    input c[e] along m\n"
        "    param W_q[d, H, K]; W_k[e, H, K]; W_v[e, H, V]; W_o[H, V, d]\n"
        "    q = x @ W_q\n    k = c @ W_k\n    v = c @ W_v\n"
        "    attend all m over H:\n        o = q.T @ k @ v[m]\n"
        "    output y[d] = o @ W_o\n"
    )
    layer = spec.module(d=8, e=5, H=2, dtype=torch.float64, backend="triton")
    x, c = torch.randn(2, 7, 8).double(), torch.randn(2, 9, 5).double()
    q, k = torch.einsum("btd,dhk->bthk", x, layer.W_q), torch.einsum("bmd,dhk->bmhk", c, layer.W_k)
    o = torch.einsum("bthk,bmhk,bme,ehv->bthv", q, k, c, layer.W_v)
    torch.testing.assert_close(layer(x, c), torch.einsum("bthv,hvd->btd", o, layer.W_o))
    assert "pos" not in spec.source("triton").split("def forward")[1].split("return")[0]


CUTS = {"mixed": [0, 0, 1, 4, 300, 300, 365, 880, 1000], "tiny": [3 * i for i in range(257)]}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("name", ["capped_attention", "alibi", "window_attention", "fox"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_sequences_on_a_gpu(name: str, dtype: torch.dtype, cut: str) -> None:
    """A layer by one launch of each kernel, against each sequence alone in float64."""
    torch.manual_seed(0)
    borders = torch.tensor(CUTS[cut], device="cuda")
    layer = archc.load(name).module(d=256, H=4, device="cuda", dtype=dtype)
    wide = archc.load(name).module(d=256, H=4, device="cuda", dtype=torch.float64)
    wide.load_state_dict(layer.state_dict())
    x = torch.randn(1, CUTS[cut][-1], 256, device="cuda", dtype=dtype, requires_grad=True)
    x_wide = x.detach().double().requires_grad_()
    y = layer(x, cu_seqlens=borders)
    (wanted,) = one_by_one(wide, borders, [x_wide], [])
    d = torch.randn_like(wanted)
    learned, exact = [x, *layer.parameters()], [x_wide, *wide.parameters()]
    found = torch.autograd.grad(y, learned, d.to(dtype))
    slopes = torch.autograd.grad(wanted, exact, d)
    for ours, theirs in zip((y, *found), (wanted, *slopes), strict=True):
        error = (ours.double() - theirs).norm() / theirs.norm()
        limit = 3e-5 if dtype == torch.float32 else 0.03  # gates: small differences of sums
        assert error < limit, error

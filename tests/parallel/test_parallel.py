"""Layers on several processes against one, by two processes of gloo, and what is said of plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import archc
from archc import parallel
from archc.compile import function_of
from archc.ir import layer as ir
from archc.parallel.apply import layers_of
from archc.parallel.execute import program_for
from archc.parallel.mesh import Ranks, refuse_aborts
from archc.parallel.overlapped import halves_of
from archc.parallel.pieces import BETWEEN
from archc.specfile import bundled
from tests import served
from tests.few import but
from tests.parallel.checks import CHECKS, sizes_of
from tests.parallel.ranks import ENDING, RANKS

ROOT = Path(__file__).resolve().parents[2]

REFUSED = {
    "tp": {},
    "cp": {
        "dsa": "is made for each token and each one that it reads",
        "linear_attention_full": "tokens that come later are read",
        "lstm": "the recurrence of `c`, `h` has no composition law: `sigmoid` of a state",
        "nsa": "tokens are taken together in blocks",
        "slstm": "the recurrence of `c`, `h`, `m`, `n` has no composition law",
    },
}
"""Bundled specs that are refused, and why."""

AROUND = "hyper_connected"
"""A block around another layer, which is no layer by itself."""


SEGMENTED = ("gated_delta_product:3", "gla", "mamba")


def run(folder: Path, *names: str) -> dict[str, list[str]]:
    """What went wrong with each check, on each process that came to its end."""
    command = [sys.executable, "-m", "tests.parallel.ranks", str(folder), *names]
    alone = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=ROOT, check=True, timeout=1200, env=alone)
    found: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*/*.jsonl")):
        for line in path.read_text("utf-8").splitlines():
            ended = json.loads(line)
            found.setdefault(ended["check"], []).append(ended["why"])
    return found


def test_two_processes(tmp_path: Path) -> None:
    """One start of two processes does all of these, as a start takes longer than they do."""
    found = run(tmp_path)
    for name, (_, slow) in CHECKS.items():
        if not slow:
            assert found[name] == [""] * (1 if name == ENDING else RANKS), f"{name}: {found[name]}"


@pytest.mark.slow
def test_more_of_two_processes(tmp_path: Path) -> None:
    """When sums begin, parts of unequal lengths, stages: those that are of no spec alone."""
    names = [name for name, (_, slow) in CHECKS.items() if slow and name[:3] not in {"tp ", "cp "}]
    assert run(tmp_path, *names) == {name: [""] * RANKS for name in names}


@pytest.mark.slow
@pytest.mark.parametrize("dim", ["tp", "cp"])
def test_every_spec(dim: str, tmp_path: Path) -> None:
    names = [name for name in CHECKS if name.startswith(f"{dim} ")]
    assert {name.partition(" ")[2] for name in names} == {*bundled()} - {AROUND}
    found, refused = run(tmp_path, *names), REFUSED[dim]
    for name in names:
        why = refused.get(name.partition(" ")[2])
        if why is None:
            assert found[name] == [""] * RANKS, f"{name}: {found[name]}"
        else:
            said = [each for each in found[name] if "Unsupported" in each and why in each]
            assert len(said) == RANKS, f"{name}: {found[name]}"


@pytest.mark.parametrize("name", but(["kda", "attention", "gpt_block"], ["kda"]))
def test_a_seed_is_for_dropout_alone(name: str) -> None:
    """Files with kernels take `training` where nothing is dropped; to agree on a seed waits for the
    device."""
    pytest.importorskip("triton")
    module = archc.load(name).module(backend="triton", **sizes_of(name))
    programs = [program_for(layer, 1, 2, frozenset()) for layer in layers_of(module).values()]
    found = [f for program in programs for f in program.functions if f is not None]
    assert any(f.trains for f in found)
    assert any(f.draws for f in found) == (name == "gpt_block")


GROUPED = """
layer Grouped(d, H, G = H, K = 4):
    input x[d]
    param W_q[d, H, K]; W_k, W_v[d, G, K]; W_o[H, K, d]; gain[K] = 1
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    attend s <= t over H grouped G:
        o = softmax(q[t].T @ k[s]) @ v[s]
    output y[d] = (o * gain) @ W_o
"""

PLAN = """Grouped on a mesh of tp 2, cp 2
  Grouped (the whole)
    tp: H = 4, 2 a rank
    tp: G = 2, 1 a rank
      W_q [d, H, K]: Shard(1)
      W_k [d, G, K]: Shard(1)
      W_v [d, G, K]: Shard(1)
      W_o [H, K, d]: Shard(0)
      Replicate(): gain
      all-reduce (sum) of `y`
      d stays whole: the layer is given it whole
      K stays whole: inside, a sum is taken over `K`, at <text>:8
    cp: k, v of all ranks, for an attend, of an early and a late part
"""


def test_plan() -> None:
    layer = archc.parse(GROUPED).module(d=6, H=4, G=2)
    assert parallel.plan(layer, {"tp": 2, "cp": 2}) == PLAN
    with pytest.raises(ValueError, match="2 does not divide H = 3 nor G = 3"):
        parallel.plan(archc.parse(GROUPED).module(d=6, H=3), {"tp": 2})


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_halves_read_as_much_on_every_process(count: int) -> None:
    """Each half is computed once, and pairs of a reader and what it reads are as many."""
    every = [halves_of(Ranks("cp", None, rank, count)) for rank in range(count)]  # type: ignore
    assert sorted(sum(every, ())) == [*range(2 * count)]
    assert {sum(2 * n + 1 for n in pair) for pair in every} == {4 * count}


def test_pieces_have_kernels() -> None:
    """What stands around a recurrence is a piece of its own, and done by a kernel as in a layer."""
    text = """
    layer Around(d, K = 4):
        input x[d]
        param W, W_k[d, K]; W_o[K, d]; c[K, 3]
        k = l2norm[K](silu(shortconv(x @ W_k, c)))
        recurrence h[K]:
            h[t] = 0.5 * h[t-1] + k
        output y[d] = (rmsnorm[K](h) * sigmoid(x @ W)) @ W_o
    """
    layer = archc.parse(dedent(text)).module(d=6)
    program = program_for(layer, 1, RANKS, frozenset())
    around = [piece.layer for piece in program.pieces if piece.kind == BETWEEN]
    assert len(around) == 2
    assert all("@kernel" in function_of(each, "piece", "triton") for each in around)


def test_no_dim_qualifies() -> None:
    """A sum over heads in the recurrence itself: every process does all of it, and is told why."""
    text = """
    layer Mixed(d, H, K = 4):
        input x[d]
        param W[d, H, K]; M[H, H']; W_o[H, K, d]
        chunk: sequential
        u = x @ W
        recurrence h[H, K]:
            h[t] = l2norm[K](M @ h[t-1] + u)
        output y[d] = h @ W_o
    """
    told = parallel.plan(archc.parse(dedent(text)).module(d=6, H=4), {"tp": 2})
    assert "tp: every rank computes all of it" in told
    assert "H stays whole: each place along `H` meets every other" in told
    assert "K stays whole: inside, a sum is taken over `K`" in told


def test_bad_meshes() -> None:
    layer = archc.parse(GROUPED).module(d=6, H=4)
    with pytest.raises(ValueError, match="the mesh has a dim `ep`; known are `dp`"):
        parallel.plan(layer, {"ep": 2})
    lstm = archc.load("lstm").module(d=4, D=4)
    with pytest.raises(parallel.Unsupported, match=r"`sigmoid` of a state, at lstm.arch:13"):
        parallel.plan(lstm, {"cp": 2})
    model = archc.load("lm").module(vocab=7, d=8, H=2, L=2, f=4)
    with pytest.raises(ValueError, match="its `repeat` makes 2 layers, and each part needs one"):
        parallel.plan(model, {"pp": 3})
    tied = archc.load("lm", tied=True).module(vocab=7, d=8, H=2, L=2, f=4)
    with pytest.raises(ValueError, match="`E` would be in two of them"):
        parallel.plan(tied, {"pp": 2})


@pytest.mark.slow
def test_segments_of_two_processes() -> None:
    """States that a matrix is applied to, that are scaled for each row, and for each number."""
    done = served.run("tests.parallel.interpreted_segments", ",".join(SEGMENTED))
    assert done.returncode == 0, done.stderr[-3000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["why"] for each in found] == [""] * RANKS * len(SEGMENTED)


def test_a_parameter_without_dims_begins_a_part() -> None:
    """What stands in front of a piece is made of the shapes of all that it reads: one has none."""
    text = """
    layer Warm(d):
        input x[d]
        param a[] = 1
        z = x * exp(a)
        output y[d] = z[t-1] * a
    """
    layer = archc.parse(dedent(text)).module(d=6)
    (function,) = program_for(layer, 1, RANKS, frozenset()).functions
    assert function is not None and function.continues
    assert function.first_state([torch.zeros(2, 3, 6), torch.ones(())]) is not None


def test_a_gate_is_made_where_it_is_read() -> None:
    """The last piece has the gate's function, and is handed what it is of; a value that is read
    beside the recurrence too stays there."""
    text = """
    layer Gated(d, K = 4):
        input x[d]
        param W_k, W_g, W_f[d, K]; W_o[K, d]
        f = sigmoid(x @ W_f)
        g = silu(x @ W_g)
        u = x @ W_k
        recurrence h[K]:
            h[t] = f * h[t-1] + u
        output y[d] = (h * g * f) @ W_o
    """
    layer = archc.parse(dedent(text)).module(d=6)
    first, _, last = program_for(layer, 1, RANKS, frozenset()).pieces
    made = [
        [n.op.fn for n in piece.layer.graph if isinstance(n.op, ir.Elementwise)]
        for piece in (first, last)
    ]
    assert made[0] == ["sigmoid"] and sorted(made[1]) == ["mul", "mul", "mul", "sigmoid"]


@pytest.mark.parametrize("value", ["1", "2", "3", None])
def test_sums_that_are_not_whole_are_refused(
    value: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On four H100 (torch 2.11) a sum of 1 and 2 was 1 where the other rank had ended, with 1; but
    torchrun, whose own setting that is, had ended all by then."""
    name = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
    monkeypatch.delenv(name, raising=False)
    if value is not None:
        monkeypatch.setenv(name, value)
    wrong = value in ("1", "2")
    for device in ("cuda", "cpu"):
        mesh: Any = SimpleNamespace(device_type=device)
        told = pytest.raises(ValueError, match=f"{name}={value}: where a rank ends")
        with told if wrong and device == "cuda" else nullcontext():
            refuse_aborts(mesh)
        with monkeypatch.context() as torchrun:
            torchrun.setenv("TORCHELASTIC_RUN_ID", "1")
            refuse_aborts(mesh)

"""Memories of which each token moves a few, on one GPU: as sequences of their own tokens, as loops
of all tokens whose others are masked, and fla's layer of the same sizes; milliseconds with
gradients and without.

    python -m benchmarks.routed_memories -o benchmarks/results/routed_memories.json

`specs/mom.arch` with d 2048, 16 heads of 128 and a shared memory beside N, of which each token
chooses n; x is [B, T, d] in bfloat16. fla's layer has short convolutions as well, and no output
gate here. `memories_pay` of `archc/runtime/routed.py` says which way ours takes.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import archc
from archc.bench.clock import peak
from benchmarks.rows import Record, arguments, passes, prepare_fla, timed, with_fla

ROWS = [
    (2, 8192, 4, 2), (2, 8192, 8, 2), (2, 4096, 4, 2), (2, 2048, 4, 2), (2, 1024, 4, 2),
    (2, 512, 4, 2), (2, 256, 4, 2), (16, 256, 4, 2), (16, 1024, 4, 2), (16, 1024, 16, 2),
    (2, 8192, 32, 4),
]  # fmt: skip
"""B, T, N, n."""

WIDTH = {"d": 2048, "H": 16, "K": 128}


def ours(N: int, n: int, device: str, dtype: torch.dtype) -> nn.Module:
    """The spec's layer, its gates and heads as fla's."""
    spec = archc.load("mom", N=N, n=n)
    return spec.module(d=WIDTH["d"], H=WIDTH["H"], K=WIDTH["K"], V=WIDTH["K"], device=device,
                       dtype=dtype)  # fmt: skip


def fla(N: int, n: int, device: str, dtype: torch.dtype) -> nn.Module:
    """fla's layer; the check with which it refuses a gradient of the gated delta rule is off."""
    from importlib import import_module

    from fla.layers.mom import MomAttention

    import_module("fla.ops.common.chunk_o").IS_NVIDIA_HOPPER = False
    layer = MomAttention(
        hidden_size=WIDTH["d"], head_dim=WIDTH["K"], num_heads=WIDTH["H"], expand_v=1,
        num_memories=N, topk=n, shared_mem=True, use_output_gate=False, layer_idx=0,
    )  # fmt: skip
    return layer.to(device, dtype)


def chosen(module: nn.Module, pays: bool | None) -> None:
    """Have a module of ours take one way, or the one that it finds."""
    from archc.runtime import routed

    known = chosen.__dict__.setdefault("known", routed.memories_pay)
    routed.memories_pay = known if pays is None else lambda *given: pays
    code = sys.modules[type(module).__module__]
    assert hasattr(code, "memories_pay"), "the file of the layer does not ask"
    code.memories_pay = routed.memories_pay


def times(module: nn.Module, B: int, T: int, device: str, quick: bool) -> dict[str, float]:
    """Milliseconds of values, and with gradients, and the peak of memory."""
    like = next(module.parameters())
    x = torch.randn(B, T, WIDTH["d"], device=device, dtype=like.dtype, requires_grad=True)
    forward, both = passes(module, x)
    forward()
    both()
    if quick:
        return {}
    return {"forward_ms": timed(forward), "both_ms": timed(both), "MiB": peak(both)}


def row(at: tuple[int, int, int, int], given: Namespace) -> dict[str, Any]:
    """The numbers of one size."""
    B, T, N, n = at
    device = given.device
    quick, dtype = bool(given.share) or given.small, torch.bfloat16
    found: dict[str, Any] = {"B": B, "T": T, "N": N, "n": n, **WIDTH}
    ways: dict[str, bool | None] = {"masked": False, "own": True, "ours": None}
    for name in given.whom:
        torch.manual_seed(0)
        make: Callable[..., nn.Module] = fla if name == "fla" else ours
        module = None
        try:
            module = make(N, n, device, dtype)
            if name != "fla":
                chosen(module, ways[name])
            found[name] = times(module, B, T, device, quick)
        except (RuntimeError, ImportError, AssertionError) as error:  # a row of one is no other's
            found[name] = {"refused": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
        del module
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def main() -> int:
    """Every row, written as it comes."""
    parser = with_fla(arguments(__doc__))
    parser.add_argument("--rows", type=int, nargs="*", help="which of them, from 0")
    parser.add_argument("--whom", nargs="*", default=["masked", "own", "fla"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a look without a GPU")
    given = parser.parse_args()
    prepare_fla(given)
    made, rows = Record(given), ROWS
    if given.small:
        WIDTH.update(d=32, H=2, K=16)
        rows = [(2, 200, 4, 2)]
    for at in rows if given.rows is None else [rows[i] for i in given.rows]:
        made.add(row(at, given))
        print(made.data["rows"][-1], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

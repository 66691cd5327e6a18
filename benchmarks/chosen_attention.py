"""Attention to the blocks that each reader has chosen, alone, on one GPU: milliseconds forward and
with gradients, the peak of memory, and how far values and gradients are from float64.

    python -m benchmarks.chosen_attention -o benchmarks/results/chosen_attention.json
    python -m benchmarks.chosen_attention -T 8192 -o ... --commit H --tune
    python -m benchmarks.chosen_attention -T 8192 -o ... --peer

q [2, T, 64, 128], k and v [2, T, 4, 128] in bfloat16; 16 blocks of 64 tokens: the first, the last
two, and others at random. `--peer`: fla's kernels on the same choice, in a process of their own.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
from archc.backends.load import load as loaded
from torch import Tensor

import archc
from archc.bench.clock import peak
from archc.compile import text_of
from archc.runtime.listings import filled, listed_along, readers_of
from benchmarks.rows import Record, arguments, timed

B, H, G, D = 2, 64, 4, 128
MOST, PICK = 16, 64
NAME = "nsa_memory_o_slc"


def drawn(tokens: int, batch: int = B, heads: int = H) -> list[Tensor]:
    """q, k, v and the choice, as truth values."""
    torch.manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    groups, blocks = heads * G // H, -(-tokens // PICK)
    q = torch.randn(batch, tokens, heads, D, **kind)
    k, v = (torch.randn(batch, tokens, groups, D, **kind) for _ in "kv")
    now = (torch.arange(tokens, device="cuda") // PICK)[None, :, None, None]
    at = torch.arange(blocks, device="cuda")[None, None, :, None]
    score = torch.rand(batch, tokens, blocks, groups, device="cuda")
    score = score.masked_fill((at == 0) | (at > now - 2), 2.0).masked_fill(at > now, -1.0)
    best = score.topk(min(MOST, blocks), dim=2).indices
    chosen = torch.zeros_like(score, dtype=torch.bool).scatter_(2, best, True)
    return [q, k, v, chosen & (at <= now)]


def times(call: Callable[..., Tensor], given: list[Tensor]) -> dict[str, float]:
    """Milliseconds forward and with the gradients of q, k and v, and the peak of memory."""
    learned = [x.detach().requires_grad_() for x in given[:3]]
    slope = torch.randn_like(given[0])

    def forward() -> None:
        with torch.no_grad():
            call(*given)

    def both() -> None:
        torch.autograd.grad(call(*learned, *given[3:]), learned, slope)

    both()
    return {"forward_ms": timed(forward), "both_ms": timed(both), "MiB": peak(both)}


def errors(module: Any, tokens: int = 2048) -> dict[str, float]:
    """How far kernels are from the function in PyTorch, which is given float64."""
    given = drawn(tokens, 1, 2 * H // G)
    made = []
    for suffix, dtype in (("_fold", None), ("", torch.float64)):
        own = [x.detach().to(dtype or x.dtype).requires_grad_() for x in given[:3]]
        chosen = given[3] if dtype else listed_along(given[3], MOST, 2)
        o = getattr(module, NAME + suffix)(*own, chosen, pick=PICK, pos=0)
        slope = torch.sin(torch.arange(o.numel(), device="cuda")).view(o.shape).to(o.dtype)
        made.append([o, *torch.autograd.grad(o, own, slope)])
    return {
        name: float(((x.double() - y).norm() / y.norm()).detach())
        for name, x, y in zip(["o", "d_q", "d_k", "d_v"], *made, strict=True)
    }


def by_peer(q: Tensor, k: Tensor, v: Tensor, listed: Tensor) -> Tensor:
    """fla's attention to blocks that are given."""
    from fla.ops.nsa.parallel import ParallelNSAFunction

    made = ParallelNSAFunction.apply(q, k, v, listed, MOST, PICK, D**-0.5, None)
    return made[0] if isinstance(made, tuple) else made


TRIED = {
    "forward": [(64, 32, 4, 3), (64, 32, 4, 2), (64, 32, 4, 4), (64, 64, 4, 2), (64, 64, 4, 3)],
    "readers": [(64, 32, 4, 2), (64, 32, 4, 3), (64, 64, 4, 2), (64, 64, 4, 3), (64, 64, 8, 2)],
    "tokens": [(64, 64, 8, 2), (64, 64, 4, 2), (128, 64, 8, 2), (64, 64, 8, 3), (32, 64, 4, 3)],
}
"""Rows, tokens read, warps, stages."""


def one_way(known: Callable, tried: str, made: Any, program: str, *given: Any) -> Any:
    """Blocks that are tried for one program, and those that are known for the others."""
    return made if program == tried else known(program, *given)


def tune(module: Any, call: Callable[..., Tensor], given: list[Tensor]) -> dict[str, Any]:
    """Milliseconds with other blocks."""
    known, found = module.choice_blocks, {}
    for program, tried in TRIED.items():
        for rows, columns, warps, stages in tried:
            options = {"num_warps": warps, "num_stages": stages}
            module.choice_blocks = partial(one_way, known, program, (rows, columns, options))
            name = f"{program} {rows} {columns} {warps} {stages}"
            try:
                made = times(call, given)
                found[name] = made["forward_ms" if program == "forward" else "both_ms"]
            except triton.runtime.errors.OutOfResources as reason:
                found[name] = str(reason)
            print(name, found[name], flush=True)
    return found


def measured(tokens: int, peer: bool, tried: bool) -> dict[str, Any]:
    """One row."""
    given = drawn(tokens)
    if peer:
        ahead = given[3].permute(0, 1, 3, 2)
        order = (~ahead).to(torch.uint8).sort(dim=-1, stable=True)
        listed = torch.where(order.values == 0, order.indices, -1)[..., :MOST].int()
        return {"T": tokens, "peer": times(by_peer, [*given[:3], listed.contiguous()])}
    module = loaded(text_of(archc.load("nsa").layer, "triton"), "nsa")
    function = getattr(module, f"{NAME}_fold")

    def call(*x: Tensor) -> Tensor:
        return function(*x[:3], listed_along(x[3], MOST, 2), pick=PICK, pos=0)

    if tried:
        return {"T": tokens, "tried": tune(module, call, given)}
    found: dict[str, Any] = {"T": tokens, "errors": errors(module), "ours": times(call, given)}
    turned = given[3].permute(0, 1, 3, 2)
    found["lists_ms"] = timed(lambda: listed_along(turned, MOST, -1))
    listed, count = filled(listed_along(turned, MOST, -1))
    found["readers_ms"] = timed(lambda: readers_of(listed, count, turned.shape[-1]))
    return found


def main() -> int:
    """Every length that is asked for."""
    parser = arguments(__doc__)
    parser.add_argument("-T", "--tokens", type=int, nargs="*", default=[8192, 32768])
    parser.add_argument("--tune", action="store_true", help="try other blocks")
    parser.add_argument("--peer", action="store_true", help="fla's kernels")
    given = parser.parse_args()
    made = Record(given)
    for tokens in given.tokens:
        made.add(measured(tokens, given.peer, given.tune))
        print(json.dumps(made.data["rows"][-1]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

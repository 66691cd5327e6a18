"""A pool of sequences that a hybrid model continues on one GPU: milliseconds of a step, beside the
bytes that it must move, and the time in which prompts are read.

    python -m benchmarks.generation -o benchmarks/results/generation.json

16 layers, three of KDA to one of attention whose heads share keys and values, each with SwiGLU:
d 2048, 16 heads of 128, 4 of keys and values, a vocabulary of 32,000; weights in bfloat16, states
of memories in float32. 64 sequences have a prompt of 1,024 tokens each, and are continued greedily.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import archc
from archc.serving import Pool, Together
from archc.slots import parts
from benchmarks.rows import Record, arguments

SPEC = """
import KDA from "kda.arch"
import Attention from "attention.arch"
import SwiGLU from "swiglu.arch"

model Hybrid(vocab, d, H, G, f, L = 16, full = [3, 7, 11, 15], eps = 1e-6):
    input tokens in vocab
    param E[vocab, d] = normal(0, 0.02); n_f[d] = 1; W_head[d, vocab]
    x = E[tokens]
    repeat L as l:
        param n1, n2[d] = 1
        mixer = Attention(d, H, G, base = none) if l in full else KDA(d, H, eps = eps)
        h = x + mixer(rmsnorm[d](x, eps) * n1)
        x = h + SwiGLU(d, f)(rmsnorm[d](h, eps) * n2)
    output logits[vocab] = (rmsnorm[d](x, eps) * n_f) @ W_head
"""

SIZES = {"vocab": 32000, "d": 2048, "H": 16, "G": 4, "f": 5632}
SMALL = {"vocab": 64, "d": 64, "H": 4, "G": 2, "f": 64}
BANDWIDTH = 4.33e12
"""Bytes a second that a copy reaches on an H200."""


def moved(model: nn.Module, state: Any, room: int, length: int) -> dict[str, int]:
    """Bytes that a step must move: the weights but for the embedding, states once each way, and of
    caches with room for `room` tokens the `length` that are there."""
    weights = sum(p.nbytes for name, p in model.named_parameters() if name != "E")
    found = {"weights": weights, "states": 0, "caches": 0}
    for _, how, x in parts(state):
        if how == "cache":
            found["caches"] += x.nbytes * length // room
        elif how == "row":
            found["states"] += 2 * x.nbytes
    return found


def timed(call: Callable[[], Any], times: int, wait: Callable[[], None]) -> float:
    """Milliseconds: the median of some calls, each waited for."""
    found = []
    for _ in range(times):
        wait()
        start = time.perf_counter()
        call()
        wait()
        found.append(time.perf_counter() - start)
    return 1000 * statistics.median(found)


def kernels(call: Callable[[], Any]) -> list[tuple[str, float, int]]:
    """What takes the GPU longest of a call: kernels, microseconds and launches."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    rows = [(e.key[:80], e.self_device_time_total, e.count) for e in found.key_averages()]
    return sorted(rows, key=lambda row: -row[1])[:40]


def measured(given: argparse.Namespace) -> dict[str, Any]:
    """The numbers of a pool."""
    sizes, on_gpu = SMALL if given.small else SIZES, given.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    model = archc.parse(SPEC).module(**sizes, device=given.device, dtype=dtype).eval()
    room = given.prompt + given.tokens
    pool = Pool(model, given.slots, capacity=room)
    assert isinstance(pool.lanes, Together)
    prompts = torch.randint(0, sizes["vocab"], (given.slots, given.prompt)).to(given.device)
    pool.remove(pool.add(prompts[0], temperature=0))  # kernels are compiled
    wait()
    start = time.perf_counter()
    for prompt in prompts:
        pool.add(prompt, temperature=0)
    wait()
    read = time.perf_counter() - start
    found = {"slots": given.slots, "prompt": given.prompt, **sizes, "read_s": read}
    found["prompt_tokens_a_second"] = prompts.numel() / read
    found["step_ms"] = timed(pool.step, given.tokens // 2, wait)
    found["tokens_a_second"] = 1000 * given.slots / found["step_ms"]
    bytes_of = moved(model, pool.lanes.slots.state, room, given.prompt + given.tokens // 4)
    found["moved"], found["floor_ms"] = bytes_of, 1000 * sum(bytes_of.values()) / BANDWIDTH
    if pool.lanes.graph is not None:
        found["replay_ms"] = timed(pool.lanes.graph.replay, 20, wait)
        found["kernels"] = kernels(pool.lanes.graph.replay)
    return found


def main() -> int:
    """One row, as data."""
    parser = arguments(__doc__)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="more of each that fit")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a look without a GPU")
    given = parser.parse_args()
    made, found = Record(given), measured(given)
    print({k: v for k, v in found.items() if k != "kernels"}, flush=True)
    made.add(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A pool of sequences that a hybrid model continues on one GPU: milliseconds of a step, beside the
bytes that it must move, and the time in which prompts are read; and the same by a model of fla's
layers and torch's attention, each with its cache, token by token as `generate` calls them.

    python -m benchmarks.generation ours fla -o benchmarks/results/generation.json

16 layers, three of KDA to one of attention whose heads share keys and values, each with SwiGLU:
d 2048, 16 heads of 128, 4 of keys and values, a vocabulary of 32,000; weights in bfloat16, states
of memories in float32. 64 sequences have a prompt of 1,024 tokens each, and are continued greedily.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archc
from archc.serving import Pool, Together
from archc.slots import parts
from benchmarks.rows import Record, arguments, kernels, prepare_fla, with_fla

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
BANDWIDTH = {"H200": 4.33e12, "H100": 3.0e12}
"""Bytes a second that a copy reaches."""

AT_ONCE = 16384
"""Tokens of prompts that are read together."""


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


def ours(given: argparse.Namespace, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The numbers of a pool."""
    on_gpu = given.device == "cuda"
    wait = torch.cuda.synchronize if on_gpu else (lambda: None)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    spec = archc.parse(SPEC, L=given.layers)
    model = spec.module(**sizes, device=given.device, dtype=dtype).eval()
    room = given.prompt + given.tokens
    pool = Pool(model, given.slots, capacity=room)
    assert isinstance(pool.lanes, Together)
    prompts = torch.randint(0, sizes["vocab"], (given.slots, given.prompt)).to(given.device)
    read, numbers = 0.0, list[int]()
    for _ in range(2):  # kernels are compiled the first time
        for number in numbers:
            pool.remove(number)
        wait()
        start = time.perf_counter()
        numbers = pool.add_all([*prompts], temperature=0, chunk=AT_ONCE)
        wait()
        read = time.perf_counter() - start
    found: dict[str, Any] = {"read_s": read, "step_ms": timed(pool.step, given.tokens // 2, wait)}
    bytes_of = moved(model, pool.lanes.slots.state, room, given.prompt + given.tokens // 4)
    found["moved"] = bytes_of
    if on_gpu:
        card = next((each for each in BANDWIDTH if each in torch.cuda.get_device_name()), "H100")
        found["floor_ms"] = 1000 * sum(bytes_of.values()) / BANDWIDTH[card]
    if pool.lanes.graph is not None:
        found["replay_ms"] = timed(pool.lanes.graph.replay, 20, wait)
        found["kernels"] = kernels(pool.lanes.graph.replay)
    return found


class Shared(nn.Module):
    """Attention whose heads share keys and values, by torch, over a cache with room for all."""

    def __init__(self, sizes: Mapping[str, int], batch: int, room: int, like: dict[str, Any]):
        super().__init__()
        d, heads, groups = sizes["d"], sizes["H"], sizes["G"]
        self.shape, self.wide = (heads, groups, d // heads), [d, groups * d // heads]
        self.q, self.o = (nn.Linear(d, d, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(*self.wide, bias=False) for _ in range(2))
        self.cache = [torch.empty(batch, groups, room, d // heads, **like) for _ in range(2)]

    def forward(self, x: Tensor, at: int) -> Tensor:
        end, (heads, groups, _) = at + x.shape[1], self.shape
        q = self.q(x).unflatten(-1, (heads, -1)).transpose(1, 2)
        for cache, made in zip(self.cache, (self.k(x), self.v(x)), strict=True):
            cache[:, :, at:end] = made.unflatten(-1, (groups, -1)).transpose(1, 2)
        k, v = (cache[:, :, :end] for cache in self.cache)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=at == 0, enable_gqa=True)
        return self.o(o.transpose(1, 2).flatten(2))


class Hybrid(nn.Module):
    """The same model of fla's layers, norms and products, and torch's attention."""

    def __init__(
        self, sizes: Mapping[str, int], count: int, batch: int, room: int, like: dict[str, Any]
    ):
        from fla.layers.kda import KimiDeltaAttention
        from fla.modules import GatedMLP, RMSNorm

        super().__init__()
        d = sizes["d"]
        self.E, self.head = nn.Embedding(sizes["vocab"], d), nn.Linear(d, sizes["vocab"], False)
        norms = [RMSNorm(d, eps=1e-6) for _ in range(2 * count + 1)]
        self.norms = nn.ModuleList(norms)
        self.mixers = nn.ModuleList(
            Shared(sizes, batch, room, like) if i % 4 == 3
            else KimiDeltaAttention(d, head_dim=d // sizes["H"], num_heads=sizes["H"],
                                    layer_idx=i - i // 4, norm_eps=1e-6)
            for i in range(count)
        )  # fmt: skip
        self.mlps = nn.ModuleList(
            GatedMLP(hidden_size=d, intermediate_size=sizes["f"]) for _ in range(count)
        )

    def forward(self, tokens: Tensor, cache: Any, at: int) -> Tensor:
        """Logits of the last tokens."""
        x = self.E(tokens)
        for i, (mixer, mlp) in enumerate(zip(self.mixers, self.mlps, strict=True)):
            normed = self.norms[2 * i](x)
            if isinstance(mixer, Shared):
                mixed = mixer(normed, at)
            else:
                mixed, *_ = mixer(normed, past_key_values=cache, use_cache=True)
            normed, x = self.norms[2 * i + 1](mixed, x, True)
            x = x + mlp(normed)
        return self.head(self.norms[-1](x[:, -1]))


@torch.no_grad()
def fla(given: argparse.Namespace, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The numbers of fla's layers."""
    from fla.models.utils import Cache

    like = {"device": given.device, "dtype": torch.bfloat16}
    room = given.prompt + given.tokens
    with torch.device(given.device):
        model = Hybrid(sizes, given.layers, given.slots, room, like).to(torch.bfloat16).eval()
    tokens = torch.randint(0, sizes["vocab"], (given.slots, given.prompt)).to(given.device)
    read, steps = [], []
    for _ in range(2):  # kernels are compiled the first time
        cache, at = Cache(), given.prompt
        torch.cuda.synchronize()
        start = time.perf_counter()
        last = model(tokens, cache, 0).argmax(-1)
        torch.cuda.synchronize()
        read.append(time.perf_counter() - start)
        for _ in range(given.tokens // 2):
            start = time.perf_counter()
            last = model(last[:, None], cache, at).argmax(-1)
            torch.cuda.synchronize()
            steps.append(time.perf_counter() - start)
            at += 1
    return {"read_s": read[1], "step_ms": 1000 * statistics.median(steps[given.tokens // 2 :])}


def main() -> int:
    """A row each, as data."""
    parser = with_fla(arguments(__doc__))
    parser.add_argument("whom", nargs="+", choices=["ours", "fla"])
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--prompt", type=int, default=1024, help="tokens of each prompt")
    parser.add_argument("--tokens", type=int, default=128, help="more of each that fit")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="sizes for a look without a GPU")
    given = parser.parse_args()
    prepare_fla(given)
    made, sizes = Record(given, by=("model",)), SMALL if given.small else SIZES
    for whom in sorted(given.whom):  # fla's first: files of archc choose an assembler for all
        torch.manual_seed(0)
        found = {"model": whom, "slots": given.slots, "prompt": given.prompt}
        found |= {"L": given.layers, **sizes}
        found |= {"ours": ours, "fla": fla}[whom](given, sizes)
        found["tokens_a_second"] = 1000 * given.slots / found["step_ms"]
        found["prompt_tokens_a_second"] = given.slots * given.prompt / found["read_s"]
        print({k: v for k, v in found.items() if k != "kernels"}, flush=True)
        made.add(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())

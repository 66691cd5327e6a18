"""One token that reads a long cache, by attentions whose score is not plain, on one GPU: time in a
CUDA graph, and the share of the time in which the cache can be read at all.

    python -m benchmarks.attention_decode -o benchmarks/results/attention_decode.json
    python -m benchmarks.attention_decode capped -o ... --commit H --tune

q [B, 1, 32, 128], k and v [B, 8192, G, 128] in bfloat16. Beside it torch's own attention, with no
bias, and the function of all pairs at once in PyTorch.
"""

from __future__ import annotations

import inspect
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import triton
from archc.backends.load import load as loaded
from archc.backends.writer import snake
from torch import Tensor

import archc
from archc.compile import text_of
from benchmarks.decode import BANDWIDTH, replayed
from benchmarks.rows import Record, arguments

H, D = 32, 128
SHAPES = [(64, 8192, 4), (1, 65536, 4), (64, 8192, 32), (16, 8192, 1)]
"""Sequences, tokens in the cache, and groups that share keys and values."""


def text(score: str, read: str = "s <= t", more: str = "", sizes: str = "") -> str:
    """A layer of one attend with grouped heads."""
    return (
        f"layer Decoded(H, G, K, V{sizes}):\n"
        f"    input q[H, K], k[G, K], v[G, V]{more}\n"
        f"    attend {read} over H grouped G:\n"
        f"        o = softmax({score}) @ v[s]\n    output o\n"
    )


PLAIN = "q[t].T @ k[s] / sqrt(K)"
ROWS: dict[str, tuple[str, dict[str, float]]] = {
    "plain": (text(PLAIN), {}),
    "capped": (text(f"softcap({PLAIN}, 30)"), {}),
    "alibi": (text(f"{PLAIN} - 2 ** (-8 * (index[H] + 1) / H) * (t - s)"), {}),
    "window": (text(f"{PLAIN} - 0", "t - w < s <= t", sizes=", w"), {"w": 1024}),
    "forgetting": (text(f"{PLAIN} + sum r in (s, t]: g[r]", more=", g[H]"), {}),
}


def given_to(name: str, B: int, S: int, G: int) -> list[Tensor]:
    """q, k, v, and gates."""
    torch.manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    found = [torch.randn(B, 1, H, D, **kind), *(torch.randn(B, S, G, D, **kind) for _ in "kv")]
    if name == "forgetting":
        found.append(torch.nn.functional.logsigmoid(torch.randn(B, S, H, device="cuda") + 6))
    return found


def module_of(name: str) -> tuple[Any, str]:
    """The file of a row, and the name of its attend's function."""
    layer = archc.parse(ROWS[name][0]).layer
    return loaded(text_of(layer, "triton"), f"decoded_{name}"), f"{snake(layer.name)}_memory"


def by_torch(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own attention of one token."""
    heads = (x.transpose(1, 2) for x in (q, k, v))
    run = torch.nn.functional.scaled_dot_product_attention
    return run(*heads, enable_gqa=k.shape[2] != q.shape[2]).transpose(1, 2)


def error(module: Any, memory: str, given: list[Tensor], numbers: dict[str, Any]) -> float:
    """How far the kernels are from the function in PyTorch on the first sequence in float64."""
    own = [x[:1] for x in given]
    found = called(module, by_kernels(module, memory), own, numbers)()
    wanted = called(module, memory, [x.double() for x in own], numbers)()
    return float((found.double() - wanted).norm() / wanted.norm())


def called(module: Any, memory: str, given: list[Tensor], numbers: dict[str, Any]) -> Callable:
    """One token by a function of a file, which may ask for its position."""
    function = getattr(module, memory)
    if "pos" in inspect.signature(function).parameters:
        numbers = {**numbers, "pos": given[1].shape[1] - 1}
    return lambda: function(*given, **numbers)


def by_kernels(module: Any, memory: str) -> str:
    """The function of a file that launches kernels, its own or torch's."""
    return f"{memory}_fold" if hasattr(module, f"{memory}_fold") else memory


@torch.no_grad()
def measured(name: str, B: int, S: int, G: int) -> dict[str, Any]:
    """One row: microseconds of a token."""
    module, memory = module_of(name)
    plain = by_kernels(module, memory) == memory
    given, numbers = given_to(name, B, S, G), ROWS[name][1]
    read = min(S, int(numbers.get("w", S)))
    moved = sum(x.numel() // S * read * x.element_size() for x in given[1:])
    ours = replayed(called(module, by_kernels(module, memory), given, numbers))
    found = {
        "attention": name, "B": B, "S": S, "G": G, "error": error(module, memory, given, numbers),
        "us": 1e6 * ours, "floor_us": 1e6 * moved / BANDWIDTH, "share": moved / BANDWIDTH / ours,
    }  # fmt: skip
    found["torch_sdpa_us"] = 1e6 * replayed(partial(by_torch, *given[:3]))
    if not plain and B * S * G <= 64 * 8192 * 4:
        alike = [x.to(given[0].dtype) for x in given]
        found["all_pairs_us"] = 1e6 * replayed(called(module, memory, alike, numbers))
    return found


TRIED = [(c, w, s, p) for c in (32, 64, 128) for w in (2, 4) for s in (2, 3, 4) for p in (1, 4, 8)]
"""Tokens of a block, warps, stages, parts."""


def one_way(way: tuple[int, int, int, int], dtype: Any, rows: int, *rest: Any) -> Any:
    """Blocks that are tried, in place of those of the file."""
    columns, warps, stages, parts = way
    block = max(16, 1 << (min(rows, 64) - 1).bit_length())
    return block, columns, parts, {"num_warps": warps, "num_stages": stages}


@torch.no_grad()
def tune(name: str, B: int, S: int, G: int) -> dict[str, Any]:
    """Microseconds with other blocks."""
    module, memory = module_of(name)
    given, numbers = given_to(name, B, S, G), ROWS[name][1]
    run = called(module, f"{memory}_fold", given, numbers)
    found: dict[str, Any] = {}
    for way in TRIED:
        module.part_blocks = partial(one_way, way)
        try:
            found[str(way)] = round(1e6 * statistics.median([replayed(run)]), 1)
        except triton.runtime.errors.OutOfResources as reason:
            found[str(way)] = str(reason)
        print(name, B, S, G, way, found[str(way)], flush=True)
    return found


def main() -> int:
    """Every row that is asked for."""
    parser = arguments(__doc__, ROWS)
    parser.add_argument("--tune", action="store_true", help="try other blocks on the first shape")
    given = parser.parse_args()
    made = Record(given)
    for name in given.names:
        for shape in SHAPES[:1] if given.tune else SHAPES:
            found = tune(name, *shape) if given.tune else measured(name, *shape)
            made.add(found)
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Attentions, memories alone, on one GPU: milliseconds forward and with gradients beside torch's,
FlexAttention and fla, and how far values and gradients are from float64.

    python -m benchmarks.attention -o benchmarks/results/attention.json                # every row
    python -m benchmarks.attention alibi fox -T 4096 -o ... --commit H                 # some
    python -m benchmarks.attention alibi -o ... --tune                                 # blocks

q, k, v are [2, T, 32, 128] in bfloat16; `grouped`: of 8 heads k and v, `cross`: of 1,024 tokens. A
row is written as it comes. fla's autotuners take minutes: `--share I N` compiles a share of them.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
import triton
from archc.backends.load import load as loaded
from archc.backends.writer import snake
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import archc
from archc.bench.clock import peak
from archc.compile import text_of
from benchmarks.rows import Record, arguments, prepare_fla, timed, with_fla

B, H, D = 2, 32, 128
CAP, WINDOW = 30.0, 512


@dataclass(frozen=True)
class Row:
    """One attention: its spec, what its function is given behind q, k and v, and its peers, of
    which the fastest counts. `checked` tokens are held against float64; `others`: so many tokens
    of another sequence are read."""

    spec: str
    given: Callable[[int], list[Any]]
    numbers: Mapping[str, float]
    learned: int
    peers: tuple[Callable[[int], Callable[..., Tensor]], ...]
    checked: int = 512
    groups: int = H
    others: int = 0


def no_more(tokens: int) -> list[Any]:
    """Nothing behind q, k and v."""
    return []


def slopes(tokens: int) -> list[Any]:
    """A slope for each head."""
    return [2 ** (-8 * (torch.arange(H, device="cuda").float() + 1) / H)]


def gates(tokens: int) -> list[Any]:
    """The log of a gate for each token and head."""
    return [torch.nn.functional.logsigmoid(torch.randn(B, tokens, H, device="cuda") + 4)]


def matrices(tokens: int) -> list[Any]:
    """A direction and a rate for each token and head: of a reflection and what is between it and
    the identity."""
    w = torch.randn(B, tokens, H, D, device="cuda")
    w = torch.nn.functional.normalize(w, dim=-1).to(torch.bfloat16)
    return [w, 2 * torch.rand(B, tokens, H, device="cuda")]


def gated_matrices(tokens: int) -> list[Any]:
    """The same, and the log of a gate."""
    return [*matrices(tokens), *gates(tokens)]


def by_backend(backend: SDPBackend, causal: bool, tokens: int) -> Callable[..., Tensor]:
    """torch's attention by one of its backends."""

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        with sdpa_kernel(backend):
            made = scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=True)
        return made.transpose(1, 2)

    return call


def by_torch(causal: bool) -> tuple[Callable[[int], Callable[..., Tensor]], ...]:
    """torch's attention by each backend that may be the fastest."""
    backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
    return tuple(partial(by_backend, backend, causal) for backend in backends)


def turning(tokens: int) -> Callable[..., Tensor]:
    """fla's attention through products of Householder matrices."""
    from fla.ops.path_attn import parallel_path_attn

    def call(q: Tensor, k: Tensor, v: Tensor, w: Tensor, *more: Tensor) -> Tensor:
        return parallel_path_attn(q, k, v, w.float(), *more)[0]

    return call


def sinks(tokens: int) -> list[Any]:
    """A sink for each head."""
    return [torch.zeros(H, device="cuda")]


def flex(
    tokens: int, score: Callable[..., Tensor] | None, near: int = 0, **options: Any
) -> Callable[..., Tensor]:
    """FlexAttention, compiled, of a score's change and a causal mask, perhaps of a window, with
    options for its kernels."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def mask(b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        return (t >= s) & (t - s < near) if near else t >= s

    blocks = create_block_mask(mask, None, None, tokens, tokens, device="cuda")
    run = torch.compile(flex_attention, dynamic=False)

    def call(q: Tensor, k: Tensor, v: Tensor, *more: Tensor) -> Tensor:
        heads = (x.transpose(1, 2) for x in (q, k, v))
        changed = score and score(*more)
        made = run(*heads, score_mod=changed, block_mask=blocks, kernel_options=options or None)
        return made.transpose(1, 2)

    return call


def capped(tokens: int) -> Callable[..., Tensor]:
    """FlexAttention with a soft cap."""
    return flex(tokens, lambda: lambda x, b, h, t, s: CAP * torch.tanh(x / CAP))


def sloped(tokens: int) -> Callable[..., Tensor]:
    """FlexAttention with ALiBi."""
    return flex(tokens, lambda m: lambda x, b, h, t, s: x - m[h] * (t - s))


def windowed(tokens: int) -> Callable[..., Tensor]:
    """FlexAttention of a window, without a sink."""
    call = flex(tokens, None, WINDOW)
    return lambda q, k, v, *more: call(q, k, v)


def forgetting(tokens: int) -> Callable[..., Tensor]:
    """fla's forgetting attention."""
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    def call(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        made = parallel_forgetting_attn(q, k, v, g)
        return made[0] if isinstance(made, tuple) else made

    return call


def biases(tokens: int) -> list[Any]:
    """A score for each of 256 distances and each head."""
    return [torch.randn(256, H, device="cuda") / 4]


def biased(tokens: int) -> Callable[..., Tensor]:
    """FlexAttention with such a table; its gradient with fewer stages, as it does not fit else."""
    return flex(
        tokens, lambda w: lambda x, b, h, t, s: x + w[(t - s).clamp(0, 255), h], bwd_num_stages=1
    )


BIASED = """layer Biased(H, K, W = 256):
    input q[H, K], k[H, K], v[H, K]
    param bias[W, H]
    attend s <= t over H:
        o = softmax(q[t].T @ k[s] / sqrt(K) + bias[min(t - s, W - 1)]) @ v[s]
    output o
"""

ROWS = {
    "softmax": Row("attention", no_more, {}, 3, by_torch(True)),
    "grouped": Row("attention", no_more, {}, 3, by_torch(True), groups=8),
    "cross": Row("cross_attention", no_more, {}, 3, by_torch(False), others=1024),
    "capped": Row("capped_attention", no_more, {"cap": CAP}, 3, (capped,)),
    "alibi": Row("alibi", slopes, {}, 3, (sloped,)),
    "window": Row("window_attention", sinks, {"w": WINDOW}, 3, (windowed,)),
    "biased": Row(BIASED, biases, {}, 4, (biased,)),
    "fox": Row("fox", gates, {}, 4, (forgetting,)),
    "path": Row("path", matrices, {}, 5, (turning,), 130),
    "path_fox": Row("path_fox", gated_matrices, {}, 6, (turning,), 130),
}


def module_of(row: Row) -> tuple[Any, str]:
    """The file of a spec with kernels, and the name of its attend's function."""
    layer = (archc.parse if "\n" in row.spec else archc.load)(row.spec).layer
    return loaded(text_of(layer, "triton"), layer.name), f"{snake(layer.name)}_memory"


def drawn(row: Row, tokens: int) -> list[Tensor]:
    """q, k, v and what is behind them."""
    torch.manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16}
    q, read = torch.randn(B, tokens, H, D, **kind), (B, row.others or tokens, row.groups, D)
    return [q, *(torch.randn(read, **kind) for _ in "kv"), *row.given(tokens)]


def ours(row: Row) -> Callable[..., Tensor]:
    """The function that launches kernels, its own or torch's."""
    module, name = module_of(row)
    return called(row, getattr(module, f"{name}_fold", getattr(module, name)))


def called(row: Row, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of a file, of tensors alone."""
    place = {"pos": 0} if "pos" in inspect.signature(function).parameters else {}
    return lambda *given: function(*given, **place, **row.numbers)


def times(call: Callable[..., Tensor], given: list[Tensor], count: int) -> dict[str, float]:
    """Milliseconds forward and with the gradients of the first so many tensors, and the peak of
    memory."""
    learned = [x.detach().requires_grad_() for x in given[:count]]
    slope = torch.randn_like(given[0])

    def forward() -> None:
        with torch.no_grad():
            call(*given)

    def both() -> None:
        torch.autograd.grad(call(*learned, *given[count:]), learned, slope)

    both()
    return {"forward_ms": timed(forward), "both_ms": timed(both), "MiB": peak(both)}


def errors(row: Row) -> dict[str, float]:
    """How far kernels are from the function in PyTorch, which is given float64."""
    tokens = row.checked
    module, name = module_of(row)
    given = drawn(row, tokens)
    given = [x[:1, ..., :2, :] if x.dim() == 4 else x[:1, ..., :2] if x.dim() > 1 else x[:2]
             for x in given]  # fmt: skip
    given[3:] = [x[..., :2] for x in row.given(tokens)[:1]] if row.spec is BIASED else given[3:]
    made = []
    plain = getattr(module, name)
    by_kernels = getattr(module, f"{name}_fold", plain)
    for function, dtype in ((by_kernels, None), (plain, torch.float64)):
        own = [x.detach().to(dtype or x.dtype) for x in given]
        learned = [x.requires_grad_() for x in own[: row.learned]]
        o = called(row, function)(*own)
        slope = torch.sin(torch.arange(o.numel(), device="cuda")).view(o.shape).to(o.dtype)
        made.append([o, *torch.autograd.grad(o, learned, slope)])
    names = ["o", *(f"d_{i}" for i in range(row.learned))]
    return {
        name: float(((x.double() - y).norm() / y.norm()).detach())
        for name, x, y in zip(names, *made, strict=True)
    }


TRIED = {
    "forward": [(128, 64, 8, 3), (64, 64, 4, 3), (64, 64, 4, 4), (64, 128, 4, 2), (128, 128, 8, 2)],
    "readers": [(128, 64, 8, 3), (64, 64, 4, 3), (64, 32, 4, 4), (64, 128, 4, 2), (128, 32, 8, 4)],
    "tokens": [(32, 64, 4, 3), (32, 64, 4, 4), (32, 128, 8, 3), (64, 128, 8, 3), (64, 64, 4, 3)],
}
"""Readers, tokens read, warps, stages."""


def blocks(known: Callable[..., Any], tried: str, made: Any, program: str, *given: Any) -> Any:
    """Blocks that are tried for one program, and those that are known for the others."""
    return made if program == tried else known(program, *given)


def tune(name: str, tokens: int) -> dict[str, Any]:
    """Milliseconds with other blocks: of the forward, and of all with one gradient's changed."""
    row = ROWS[name]
    module, memory = module_of(row)
    given = drawn(row, tokens)
    learned = [x.detach().requires_grad_() for x in given[: row.learned]]
    slope = torch.randn_like(given[0])
    function = called(row, getattr(module, f"{memory}_fold"))
    known, found = module.fold_blocks, {}

    def forward() -> None:
        with torch.no_grad():
            function(*given)

    def both() -> None:
        torch.autograd.grad(function(*learned, *given[row.learned :]), learned, slope)

    for program, tried in TRIED.items():
        for rows, columns, warps, stages in tried:
            options = {"num_warps": warps, "num_stages": stages}
            module.fold_blocks = partial(blocks, known, program, (rows, columns, options))
            call = forward if program == "forward" else both
            try:
                call()
                found[f"{program} {rows} {columns} {warps} {stages}"] = timed(call)
            except triton.runtime.errors.OutOfResources as reason:
                found[f"{program} {rows} {columns} {warps} {stages}"] = str(reason)
            print(name, program, rows, columns, warps, stages, [*found.values()][-1], flush=True)
    return found


def measured(name: str, tokens: int, peers: bool) -> dict[str, Any]:
    """One row."""
    row = ROWS[name]
    found: dict[str, Any] = {"attention": name, "T": tokens, "errors": errors(row)}
    given = drawn(row, tokens)
    found["ours"] = times(ours(row), given, row.learned)
    if peers:
        found["peer"] = by_peers(row, given, tokens)
    return found


def by_peers(row: Row, given: list[Tensor], tokens: int) -> dict[str, Any]:
    """The times of the fastest peer, or why there are none."""
    made: list[dict[str, Any]] = []
    for peer in row.peers:
        try:
            made.append(times(peer(tokens), given, row.learned))
        except RuntimeError as reason:
            made.append({"reason": str(reason).splitlines()[0]})
    return min(made, key=lambda each: each.get("both_ms", inf))


def main() -> int:
    """Every row that is asked for."""
    parser = with_fla(arguments(__doc__, ROWS))
    parser.add_argument("-T", "--tokens", type=int, nargs="*", default=[4096, 8192])
    parser.add_argument("--alone", action="store_true", help="without peers")
    parser.add_argument("--tune", action="store_true", help="try other blocks")
    given = parser.parse_args()
    prepare_fla(given)
    made = Record(given, by=("attention", "T"))
    for tokens in given.tokens:
        for name in given.names:
            if given.tune:
                found = {"attention": name, "T": tokens, "tried": tune(name, tokens)}
            else:
                found = measured(name, tokens, not given.alone)
            made.add(made.like(found) | found)
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Generated files whose attends launch kernels, run in Triton's interpreter:

TRITON_INTERPRET=1 python -m tests.attention.files capped_attention fox

Prints how far values and gradients are from the same function in PyTorch, in float64.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from archc.backends.load import load as loaded
from archc.backends.writer import snake
from torch import Tensor

import archc
from archc.compile import slots_text_of, text_of
from archc.runtime.layers import top_of
from archc.runtime.listings import largest_places, listed_along
from archc.runtime.packed import one_by_one
from archc.runtime.paged import PAGE, Pages
from archc.runtime.philox import factor_of_seed

Shapes = dict[str, tuple[int, ...]]
SPECS: dict[str, tuple[Shapes, dict[str, float]]] = {
    "capped_attention": (
        {"q": (2, 70, 4, 20), "k": (2, 70, 2, 20), "v": (2, 70, 2, 20)}, {"cap": 3.0},
    ),
    "capped_attention, few": (
        {"q": (2, 3, 8, 20), "k": (2, 200, 2, 20), "v": (2, 200, 2, 20)}, {"cap": 3.0},
    ),
    "window_attention, few": (
        {"q": (1, 1, 4, 20), "k": (1, 195, 2, 20), "v": (1, 195, 2, 20), "sink": (4,)}, {"w": 99},
    ),
    "capped_attention, turns": (
        {"q": (2, 70, 4, 20), "k": (2, 60, 2, 20), "v": (2, 60, 2, 20)}, {"cap": 3.0},
    ),
    "totals, turns": ({"q": (1, 50, 4, 20), "k": (1, 60, 2, 20), "v": (1, 60, 2, 24)}, {}),
    "fox": ({"q": (1, 70, 2, 20), "k": (1, 81, 2, 20), "v": (1, 81, 2, 20), "f": (1, 81, 2)}, {}),
    "biased": ({"q": (2, 50, 2, 20), "k": (2, 70, 2, 20), "v": (2, 70, 2, 20), "b": (40, 2)}, {}),
    "alibi": ({"q": (1, 40, 2, 60), "k": (1, 40, 2, 60), "v": (1, 40, 2, 60), "m": (2,)}, {}),
    "window_attention": (
        {"q": (1, 70, 4, 20), "k": (1, 95, 2, 20), "v": (1, 95, 2, 20), "sink": (4,)}, {"w": 30},
    ),
    "combined": (
        {**dict.fromkeys("qkrm", (1, 40, 2, 20)), "v": (1, 40, 2, 24), "g": (1, 40, 2),
         "b": (1, 40, 2)}, {},
    ),
    "path": ({**dict.fromkeys("qkvw", (2, 150, 2, 20)), "beta": (2, 150, 2)}, {}),
    "path_fox": (
        {**dict.fromkeys("qkvw", (1, 270, 2, 20)), **dict.fromkeys(("beta", "f"), (1, 270, 2))}, {},
    ),
    "channels": ({"q": (2, 70, 2, 20), **dict.fromkeys("kvg", (2, 150, 2, 20))}, {}),
    "totals": ({"q": (2, 70, 4, 20), "k": (2, 81, 2, 20), "v": (2, 81, 2, 24)}, {}),
    "totals, few": ({"q": (2, 3, 4, 20), "k": (2, 200, 2, 20), "v": (2, 200, 2, 24)}, {}),
    "totals, packed": (dict.fromkeys("qkv", (1, 40, 2, 20)), {}),
    "total": ({"q": (1, 70, 4, 20), "k": (1, 81, 2, 20)}, {}),
    "total, few": ({"q": (2, 3, 4, 20), "k": (2, 200, 2, 20)}, {}),
    "near": ({"q": (2, 70, 4, 20), "k": (2, 81, 2, 20), "v": (2, 81, 2, 24)}, {}),
    "near, few": ({"q": (2, 3, 4, 20), "k": (2, 200, 2, 20), "v": (2, 200, 2, 24)}, {}),
    "near, packed": (dict.fromkeys("qkv", (1, 40, 2, 20)), {}),
    "fox, packed": ({**dict.fromkeys("qkv", (1, 40, 2, 20)), "f": (1, 40, 2)}, {}),
    "signed": ({"q": (2, 70, 4, 20), "k": (2, 81, 2, 20), "v": (2, 81, 2, 24)}, {}),
    "signed, few": ({"q": (2, 3, 4, 20), "k": (2, 200, 2, 20), "v": (2, 200, 2, 24)}, {}),
    "signed, packed": (dict.fromkeys("qkv", (1, 40, 2, 20)), {}),
    "dropped": (
        {"q": (2, 70, 4, 20), "k": (2, 81, 2, 20), "v": (2, 81, 2, 24)},
        {"p": 0.3, "training": True},
    ),
    "capped_attention, copied": (
        {"q": (2, 70, 4, 20), "k": (2, 150, 2, 20), "v": (2, 150, 2, 20)}, {"cap": 3.0},
    ),
    "fox, copied": (
        {"q": (1, 80, 2, 20), "k": (1, 181, 2, 20), "v": (1, 181, 2, 20), "f": (1, 181, 2)}, {},
    ),
    "window_attention, copied": (
        {"q": (1, 70, 4, 20), "k": (1, 195, 2, 20), "v": (1, 195, 2, 20), "sink": (4,)}, {"w": 99},
    ),
    "biased, packed": ({**dict.fromkeys("qkv", (1, 40, 2, 20)), "b": (40, 2)}, {}),
}  # fmt: skip
"""What the function of an attend is given: shapes of tensors, and further numbers."""

SEED = torch.tensor(2**41 + 5)
BORDERS = [0, 0, 1, 4, 37, 40]
"""Of packed sequences."""


SEEN = 13
"""Tokens that were forgotten before the first that is read."""

BIASED = """layer Biased(H, K, W = 40):
    input q[H, K], k[H, K], v[H, K]
    param bias[W, H]
    attend s <= t over H:
        o = softmax(q[t].T @ k[s] / sqrt(K) + bias[min(t - s, W - 1)]) @ v[s]
    output o
"""

COMBINED = """layer Combined(H, K, V):
    input q[H, K], k[H, K], r[H, K], m[H, K], v[H, V], g[H], b[H]
    attend s <= t over H:
        o = (softmax(q[t].T @ k[s]) * b[s] - g[t] * softcap(r[t].T @ m[s], 2)) @ v[s]
    output o
"""
TOTALS = """layer Totals(H, G, K, V):
    input q[H, K], k[G, K], v[G, V]
    attend s <= t over H grouped G:
        z = q[t].T @ k[s] / sqrt(K)
        o = softmax(z) @ v[s]
        l = logsumexp(z)
    output o
    output l
"""
TOTAL = """layer Total(H, G, K):
    input q[H, K], k[G, K]
    attend s <= t over H grouped G:
        l = logsumexp(q[t].T @ k[s] / sqrt(K))
    output l
"""
NEAR = """layer Near(H, G, K, V):
    input q[H, K], k[G, K], v[G, V]
    attend s <= t over H grouped G:
        far = sum[K]((q[t] - k[s]) ** 2)
        o = softmax(-far / K) @ v[s] + (1 / (1 + far)) @ v[s]
    output o
"""
DROPPED = """layer Dropped(H, G, K, V, p):
    input q[H, K], k[G, K], v[G, V]
    attend s <= t over H grouped G:
        o = dropout(softmax(softcap(q[t].T @ k[s] / sqrt(K), 3)), p) @ v[s]
    output o
"""
SIGNED = """layer Signed(H, G, K, V):
    input q[H, K], k[G, K], v[G, V]
    attend s <= t over H grouped G:
        z = q[t].T @ k[s] / sqrt(K)
        o = (softmax(abs(z)) * tanh(z)) @ v[s]
    output o
"""
CHANNELS = """layer Channels(H, K, V):
    input q[H, K], k[H, K], v[H, V], g[H, K]
    attend s <= t over H:
        o = softmax(sum[K](q[t] * k[s] * exp(sum i in (s, t]: g[i])) / sqrt(K)) @ v[s]
    output o
"""
TEXTS = {
    "biased": BIASED, "near": NEAR, "combined": COMBINED, "totals": TOTALS, "total": TOTAL,
    "dropped": DROPPED, "signed": SIGNED, "channels": CHANNELS,
}  # fmt: skip


def of_tokens(run: Callable[..., Tensor], shared: list[Tensor], *tokens: Tensor) -> Tensor:
    """`run` with what is the same for all sequences behind the tokens of some."""
    return run(*tokens, *shared)


def compared(spec: str) -> dict[str, float]:
    """How far values and gradients of kernels are from those of PyTorch in float64."""
    shapes, numbers = SPECS[spec]
    title, _, way = spec.partition(", ")
    layer = (archc.parse(TEXTS[title]) if title in TEXTS else archc.load(title)).layer
    module: Any = loaded(text_of(layer, "triton"), title)
    packed = way == "packed"
    if way in ("copied", "packed"):  # by descriptors
        module.are_copied = lambda *given: True
    if way == "few":
        module.processors_of = lambda device: 4  # parts for it
    turns = (32, 64, {"num_warps": 4, "num_stages": 2}) if way == "turns" else None
    module.turn_blocks = lambda *given: turns
    if title == "dropped":
        module.dropout_seed = lambda *given: SEED
        module.F = SimpleNamespace(dropout=by_seed)
    name = f"{snake(layer.name)}_memory"
    pos = 0 if packed else shapes["k"][1] - shapes["q"][1] + SEEN
    borders = torch.tensor(BORDERS)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(shape, generator=generator) for shape in shapes.values()]
    drawn[3:] = [-x.abs() / 4 for x in drawn[3:]]
    if "beta" in shapes:  # of matrices that turn: reflections, and less
        drawn[3:5] = [drawn[3] / drawn[3].norm(dim=-1, keepdim=True), -4 * drawn[4].clamp(min=-0.5)]
    folded = getattr(module, f"{name}_fold")
    runs = [partial(folded, cu_seqlens=borders) if packed else folded, getattr(module, name)]
    runs = [partial(run, pos=pos, **numbers) for run in runs]
    if packed:
        own = len([x for x in drawn if x.shape[0] == 1])
        runs[1] = partial(each_alone, runs[1], own, borders)
    learned = [title != "alibi" or x.dim() > 1 for x in drawn]
    return apart([*shapes], runs, drawn, learned)


def by_seed(x: Tensor, p: float, training: bool) -> Tensor:
    """A dropout of weights [B, heads, ..., T, S] with the factors of a seed."""
    return x * factor_of_seed(SEED, x.shape, p, x) if training else x


def each_alone(run: Callable[..., Tensor], own: int, borders: Tensor, *given: Tensor) -> Tensor:
    """`run` for each of some packed sequences; the first so many tensors are of tokens."""
    of_each = partial(of_tokens, run, [*given[own:]])
    found = one_by_one(of_each, borders, [*given[:own]], [])
    return together(found)


def compared_slots(spec: str, pages: bool = False) -> dict[str, float]:
    """The same of one token of each of two sequences of different lengths, without gradients; with
    `pages` from caches that are in some, in any order."""
    module: Any = loaded(slots_text_of(archc.load(spec).layer, "triton"), f"{spec}_slots")
    module.processors_of = lambda device: 4  # parts for it
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 1, 8, 20), *[(2, 200, 2, 20)] * 2]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    name = f"{snake(archc.load(spec).layer.name)}_memory{'_o_cmp' * (spec == 'nsa')}"
    numbers: dict[str, Any] = {"capped_attention": {"cap": 3.0}, "nsa": {"size": 8, "stride": 4}}
    of_tokens = 4 if spec == "nsa" else 1  # what is read stands for so many
    pos = of_tokens * torch.tensor([90, 150])
    runs = [partial(getattr(module, f), pos=pos, **numbers.get(spec, {}))
            for f in (f"{name}_fold", name)]  # fmt: skip
    if pages:
        runs[0] = partial(from_pages, runs[0])
    return apart([], runs, drawn, [False] * 3)


def compared_latents(way: str) -> dict[str, float]:
    """The same of latents that are in slots or in pages, which the form for few readers reads; of
    many heads by a kernel that is turned around. In parts, or `whole`."""
    module: Any = loaded(slots_text_of(archc.load("mla").layer, "triton"), "mla_slots")
    module.processors_of = lambda device: 0 if "whole" in way else 4
    module.are_turned = lambda *given: "turned" in way
    generator = torch.Generator().manual_seed(0)
    C, R, H, K = 24, 8, 4, 12
    shapes = [(2, 200, C), (2, 200, R), (2, 1, H, K), (2, 1, H, R), (C, H, K), (C, H, K)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    pos = torch.tensor([90, 150])

    def folded(c: Tensor, k: Tensor, *rest: Tensor) -> Tensor:
        run = partial(module.mla_memory_fold, pos=pos)
        if "pages" not in way:
            return run(c, k, *rest)
        return from_pages(lambda _, *caches: run(*caches, *rest), c, c, k)

    return apart([], [folded, partial(module.mla_memory, pos=pos)], drawn, [False] * len(drawn))


def compared_moved(ranks: int) -> dict[str, float]:
    """Keys that matrices of the tokens between have moved, all at once and by one token, and what
    a reader alone finds in them."""
    module: Any = loaded(text_of(archc.load("path_fox").layer, "triton"), "path_fox")
    module.by_folds = lambda *given: given[0].dtype == torch.float32
    module.processors_of = lambda device: 4  # parts for it
    generator = torch.Generator().manual_seed(0)
    S, shape = 201, (2, 201, 3, 20)
    drawn = [torch.randn(2, S, 3, n, 20, generator=generator) / 5 for n in (ranks, ranks)]
    drawn += [torch.randn(shape, generator=generator) for _ in range(2)]
    drawn += [torch.randn(2, 1, 3, 20, generator=generator)]
    drawn += [-torch.rand(shape[:3], generator=generator)]
    runs = [module.pathfox_memory_moved_fold, module.pathfox_memory_moved]

    def found(run: Callable[..., Tensor], *given: Tensor) -> Tensor:
        u, w, k, v, q, f = given
        memory = torch.cat([k, k], 1)
        module.move_by_kernel(memory, memory, S - 1, 0, u[:, :-1], w[:, :-1])
        memory[:, S - 1] = k[:, S - 1]
        module.move_by_kernel(memory, memory, S, S - 1, u[:, -1:], w[:, -1:])
        return torch.cat([memory.flatten(), run(memory[:, :S], q, f, v, S - 1).flatten()])

    return apart([], [partial(found, run) for run in runs], drawn, [False] * 6)


def compared_kept(ranks: int) -> dict[str, float]:
    """Keys of 16 bits that tokens have moved one by one, in float32, and what readers have."""
    module: Any = loaded(text_of(archc.load("path_fox").layer, "triton"), "path_fox")
    module.by_folds = lambda *given: True
    generator = torch.Generator().manual_seed(0)
    k, *vectors = (torch.randn(2, 90, 3, 20, generator=generator).bfloat16() / 5
                   for _ in range(1 + 2 * ranks))  # fmt: skip
    past, read = [x[:, :30] for x in (k, *vectors)], k
    for S in range(31, 91):
        seen = [x[:, :S] for x in (k, *vectors)]
        made = (module.move_by_kernel, "kept", past, seen, lambda *given: given, [-1] * ranks)
        read, past = module.moved_keys(*made), seen
    (memory, _, _) = vars(past[0])["_moved"]["kept"]
    exact, *vectors = (x.double() for x in (k, *vectors))
    for t in range(1, 90):
        pairs = [(u[:, t, None], w[:, t, None])
                 for u, w in zip(vectors[::2], vectors[1::2], strict=True)]  # fmt: skip
        before = exact[:, :t].clone()
        for u, w in pairs:
            exact[:, :t] -= (before * u).sum(-1, keepdim=True) * w
    memory = memory[:, :90]
    other = (read - memory.bfloat16()).float().norm()
    return {"kept": float((memory - exact).norm() / exact.norm()), "read": float(other)}


def together(found: Tensor | Sequence[Tensor]) -> Tensor:
    """One result as it is, several as numbers one after the other."""
    if isinstance(found, Tensor):
        return found
    return found[0] if len(found) == 1 else torch.cat([x.flatten() for x in found])


def from_pages(run: Callable[..., Tensor], q: Tensor, *caches: Tensor) -> Tensor:
    """`run` of caches [2, 200, ...] in pages, of which none is for tokens that are read by nobody;
    other pages hold numbers that are none."""
    table = torch.tensor([[7, 2, 0, 0], [4, 1, 5, 0]], dtype=torch.int32)
    given = []
    for x in caches:
        pages = Pages(x.new_full((8, PAGE, *x.shape[2:]), torch.nan), table)
        for slot, own in enumerate(x):
            pages.write(slot, own[: PAGE * int((table[slot] != 0).sum())])
        given.append(pages)
    return run(q, *given)


def compared_choice(most: int, pick: int = 16, tokens: int = 75) -> dict[str, float]:
    """The same of blocks that readers have chosen."""
    module: Any = loaded(text_of(archc.load("nsa").layer, "triton"), "nsa")
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (2, tokens, 8, 20), "k": (2, tokens, 2, 20), "v": (2, tokens, 2, 24)}
    drawn = [torch.randn(shape, generator=generator) for shape in shapes.values()]
    blocks = -(-tokens // pick)
    best = torch.rand(2, tokens, blocks, 2, generator=generator).argsort(2)[:, :, :most]
    drawn.append(torch.zeros(2, tokens, blocks, 2, dtype=torch.bool).scatter(2, best, True))
    plain = partial(module.nsa_memory_o_slc, pick=pick, pos=0)
    folded = partial(module.nsa_memory_o_slc_fold, pick=pick, pos=0)

    def by_lists(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> Tensor:
        return folded(q, k, v, listed_along(chosen, most, 2))

    return apart([*shapes], [by_lists, plain], drawn, [x.is_floating_point() for x in drawn])


def compared_singly(most: int, past: int = 5, tokens: int = 37) -> dict[str, float]:
    """The same of tokens that readers have chosen one by one, which all heads read."""
    module: Any = loaded(text_of(archc.load("dsa").layer, "triton"), "dsa")
    module.readers_at_once = lambda numbers: 15
    generator = torch.Generator().manual_seed(0)
    seen, heads = tokens + past, 18
    shapes = {
        "c": (2, seen, 40), "q_c": (2, tokens, heads, 20), "q_r": (2, tokens, heads, 16),
        "k_r": (2, seen, 16), "chosen": (2, tokens, seen), "W_UK": (40, heads, 20),
        "W_UV": (40, heads, 12),
    }  # fmt: skip
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    s, t = torch.arange(seen), past + torch.arange(tokens)
    drawn["chosen"] = top_of(drawn["chosen"].where(s <= t[:, None], -torch.inf), most, 2)
    plain = partial(module.dsa_memory_o, pos=past)
    folded = partial(module.dsa_memory_o_fold, pos=past)

    def by_lists(*given: Tensor) -> Tensor:
        known = [x if x.is_floating_point() else listed_along(x, most, 2) for x in given]
        return folded(*known)

    learned = [x.is_floating_point() for x in drawn.values()]
    names = [name for name in shapes if name != "chosen"]
    return apart(names, [by_lists, plain], [*drawn.values()], learned)


GROUPED = """layer Grouped(H, G, K, n):
    input q[H, K], k[G, K], v[G, K], i[G, K], j[G, K]
    index s <= t:
        I = sum[K](i[t] * j[s])
    chosen = top(n, I)
    attend t - 19 < s <= t in chosen over H grouped G:
        o = softmax(softcap(q[t].T @ k[s], 3)) @ v[s]
    output o
"""


def compared_grouped(most: int, past: int = 5, tokens: int = 33) -> dict[str, float]:
    """The same of tokens that the heads of a group have chosen, within a window."""
    module: Any = loaded(text_of(archc.parse(GROUPED).layer, "triton"), "grouped")
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, tokens, 6, 20), *[(2, tokens + past, 2, 20)] * 2, (2, tokens, tokens + past, 2)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    s, t = torch.arange(tokens + past), past + torch.arange(tokens)
    seen = (s <= t[:, None])[..., None]
    drawn[3] = top_of(drawn[3].where(seen, -torch.inf), most, 2)
    folded = partial(module.grouped_memory_o_fold, pos=past)
    plain = partial(module.grouped_memory_o, pos=past)

    def by_lists(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor) -> Tensor:
        return folded(q, k, v, listed_along(chosen, most, 2))

    return apart(["q", "k", "v"], [by_lists, plain], drawn, [True, True, True, False])


def compared_index(most: int, past: int = 5, tokens: int = 37) -> dict[str, float]:
    """How many choices differ whose scores are by a kernel, in float32, and in PyTorch."""
    module: Any = loaded(text_of(archc.load("dsa").layer, "triton"), "dsa")
    generator = torch.Generator().manual_seed(0)
    seen, heads = tokens + past, 5
    shapes = [(2, tokens, heads, 20), (2, seen, 20), (2, tokens, heads)]
    drawn = [torch.randn(shape, generator=generator) for shape in shapes]
    score = module.dsa_memory_chosen_fold(*drawn, pos=past)
    wanted = module.dsa_memory_chosen(*(x.double() for x in drawn), pos=past)
    seen_ones = wanted > -torch.inf
    assert torch.equal(seen_ones, score > -torch.inf)
    far = (score.double() - wanted)[seen_ones].norm() / wanted[seen_ones].norm()
    found = module.dsa_memory_chosen_places(score, most)
    differ = found != largest_places(wanted, most)
    return {"score": float(far), "chosen": float(differ.double().mean())}


def compared_blocks(most: int, tokens: int = 45, past: int = 1) -> dict[str, float]:
    """The same of blocks of tokens, by weights that the heads of a group sum, of which the kernel
    of the values tells the total; the first readers read none."""
    module: Any = loaded(text_of(archc.load("nsa").layer, "triton"), "nsa")
    generator = torch.Generator().manual_seed(0)
    numbers = {"pos": past, "size": 4, "stride": 2}
    blocks = (tokens + past - 4) // 2 + 1
    drawn = [torch.randn(2, tokens, 6, 20, generator=generator)]
    drawn += [torch.randn(2, blocks, 2, n, generator=generator) for n in (20, 24)]
    exact = [x.double() for x in drawn]
    _, total = module.nsa_memory_o_cmp_fold(*drawn, **numbers)
    _, wanted = module.nsa_memory_o_cmp(*exact, **numbers)
    numbers["pick"], picks = 8, torch.arange(-(-(tokens + past) // 8))
    score = module.nsa_memory_chosen_fold(*drawn[:2], total, picks, **numbers)
    wanted = module.nsa_memory_chosen(*exact[:2], wanted, picks, **numbers)
    finite = wanted.isfinite()
    assert torch.equal(score[~finite].double(), wanted[~finite])
    far = (score.double() - wanted)[finite].norm() / wanted[finite].norm()
    found = module.nsa_memory_chosen_places(score.movedim(2, -1), most)
    differ = found != largest_places(wanted.movedim(2, -1), most)
    return {"score": float(far), "chosen": float(differ.double().mean())}


def apart(
    names: list[str], runs: list[Callable[..., Tensor]], drawn: list[Tensor], learned: list[bool]
) -> dict[str, float]:
    """How far values and gradients of one function in float32 are from another's in float64."""
    made: list[list[Tensor]] = []
    for run, dtype in zip(runs, (torch.float32, torch.float64), strict=True):
        given = [x.to(dtype if x.is_floating_point() else x.dtype) for x in drawn]
        given = [x.requires_grad_(own) for x, own in zip(given, learned, strict=True)]
        o = together(run(*given))
        weight = torch.linspace(-1, 1, o.numel(), dtype=dtype).view(o.shape).sin()
        inputs = [x for x in given if x.requires_grad]
        slopes = torch.autograd.grad((o * weight).sum(), inputs) if inputs else []
        made.append([o, *slopes])
    return {
        name: float(((x.double() - y).norm() / y.norm()).detach())
        for name, x, y in zip(["o", *(f"d_{n}" for n in names)], *made, strict=False)
    }


OF_CHOICES: dict[str, Callable[..., dict[str, float]]] = {
    "nsa": compared_choice, "dsa": compared_singly, "index": compared_index,
    "blocks": compared_blocks, "grouped": compared_grouped, "moved": compared_moved,
    "kept": compared_kept,
}  # fmt: skip
"""What is compared of choices, each given how many there are at most, and of moved keys."""


def main() -> int:
    """How far every output is off; 1 if one is too far."""
    wrong = False
    slots = [f"{spec}, {way}" for spec in ("capped_attention", "attention")
             for way in ("slots", "pages")] + ["nsa, slots"]  # fmt: skip
    slots += ["mla, pages", "mla, turned slots", "mla, turned pages"]
    slots += ["mla, whole", "mla, turned whole pages"]
    chosen = ["nsa, 3", "dsa, 20", "dsa, 50", "index, 9", "blocks, 4", "grouped, 8", "moved, 1"]
    chosen += ["moved, 2", "kept, 1", "kept, 2"]
    for spec in sys.argv[1:] or [*SPECS, *slots, *chosen]:
        title, _, way = spec.partition(", ")
        if title == "mla":
            found = compared_latents(way)
        elif way in ("slots", "pages"):
            found = compared_slots(title, way == "pages")
        else:
            run = OF_CHOICES.get(title)
            found = run(*map(int, way.split())) if run is not None else compared(spec)
        wrong |= not max(found.values()) < 1e-5
        print(f"{spec}: {found}{' TOO FAR' if wrong else ''}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())

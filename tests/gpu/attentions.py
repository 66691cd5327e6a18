"""Attentions with the shapes, the values and the tolerances of flash-linear-attention's tests, by
their kernels beside float64 in PyTorch: relative RMS errors of outputs and gradients.

    python -m tests.gpu.attentions -o benchmarks/results/gpu_attentions.json --workers 8
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import archc
from tests.gpu.measure import relative
from tests.gpu.record import where
from tests.gpu.worker import FAILURES

Named = dict[str, Tensor]


def one(range: str, score: str, more: str = "", rest: str = "", sizes: str = "") -> str:
    """The text of a layer that is one attention with grouped heads."""
    return f"""layer Alone(H, G, K, {sizes}scale = 1.0):
    input q[H, K], k[G, K], v[G, K]{more}
{rest}    attend {range} over H grouped G:
        o = {score}
    output o
"""


PLAIN = "scale * q[t].T @ k[s]"
PATH = """layer Alone(H, G, K, scale = 1.0):
    input q[H, K], k[G, K], v[G, K], w[G, K], beta[G]{}
    attend s <= t over H grouped G:
        P     = product i in (s, t]: I - beta[i] * w[i] @ w[i].T
        score = scale * k[s].T @ P @ q[t]{}
        o     = softmax(score) @ v[s]
    output o
"""
CHOSEN = """layer Alone(H, G, K, size, n, N = 8, scale = 1.0):
    input q[H, K], k[G, K], v[G, K], r[H, N], c[G, N]
    blocks b of size every size:
        rank = sum[size](c[b])
    attend b ending <= t over H grouped G:
        p = softmax(r[t].T @ rank[b])
    chosen = top(n, sum[H in G](p) on blocks of size always first and last 2)
    attend s <= t in chosen over H grouped G:
        o = softmax(scale * q[t].T @ k[s]) @ v[s]
    output o
"""
TEXTS = {
    "softmax": one("s <= t", f"softmax({PLAIN}) @ v[s]"),
    "gates": one("s <= t", f"softmax({PLAIN} + sum r in (s, t]: g[r]) @ v[s]", ", g[H]"),
    "window": one("t - near < s <= t", f"softmax({PLAIN}) @ v[s]", sizes="near, "),
    "sink": one("s <= t", f"softmax({PLAIN}, sink) @ v[s]", rest="    param sink[H]\n"),
    "path": PATH.format("", ""),
    "path_gates": PATH.format(", g[H]", " + scale * sum i in (s, t]: g[i]"),
    "chosen": CHOSEN,
}  # fmt: skip
"""What is read, by kind; blocks are chosen by ranks that no rounding turns around."""


@dataclass(frozen=True)
class Case:
    """One run; `limits` by the name of what is found, 0.005 for others. Packed where there are
    `borders`."""

    kind: str
    B: int
    T: int
    G: int
    H: int
    D: int
    scale: float = 0.0
    dtype: str = "float16"
    sizes: Mapping[str, int] = field(default_factory=dict)
    borders: tuple[int, ...] = ()
    gate: str = "normal"
    limits: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        more = [f"{name} {size}" for name, size in self.sizes.items()]
        more += [f"{self.gate} gates"] * (self.gate != "normal")
        more += [f"packed {list(self.borders)}"] * bool(self.borders)
        shape = f"B{self.B} T{self.T} H{self.H}/{self.G} D{self.D}"
        return " ".join([self.kind, self.dtype, shape, *more])


def packed(kind: str, G: int, H: int, D: int, borders: Sequence[int], **more: Any) -> Case:
    """Sequences one after the other."""
    return Case(kind, 1, borders[-1], G, H, D, borders=tuple(borders), **more)


WALKED = {"q": 0.008, "k": 0.008, "v": 0.008, "w": 0.015, "beta": 0.02, "g": 0.02}
SHORT = {"o": 0.004}
LONG = [0, 15, 69, 211, 300, 1200, 1222, 1849, 2000]
PLAIN_SHAPES = ((1, 63, 1, 1, 64, 1.0), (3, 111, 2, 2, 100, 1.0), (3, 1024, 2, 8, 60, 0.1))
CASES = (
    *(Case("softmax", *shape) for shape in PLAIN_SHAPES),
    Case("softmax", 3, 1024, 2, 8, 128, 0.1),
    Case("softmax", 4, 2048, 2, 8, 64, 0.1),
    packed("softmax", 2, 2, 64, [0, 15]),
    packed("softmax", 2, 8, 64, [0, 256, 500, 1000]),
    packed("softmax", 2, 2, 100, [0, 15, 100, 300, 1200, 2000]),
    *(Case("gates", *shape) for shape in PLAIN_SHAPES),
    Case("window", 1, 63, 1, 1, 64, sizes={"near": 16}),
    Case("window", 3, 111, 2, 2, 100, sizes={"near": 32}),
    Case("window", 3, 1024, 2, 8, 128, sizes={"near": 64}),
    packed("window", 2, 2, 64, [0, 111], sizes={"near": 16}),
    packed("window", 2, 8, 100, [0, 256, 500, 1000], sizes={"near": 32}),
    Case("sink", 1, 63, 1, 1, 64),
    Case("sink", 3, 111, 2, 2, 100),
    Case("sink", 3, 1024, 2, 8, 128),
    Case("gates", 3, 1000, 2, 8, 60, gate="slow"),
    Case("gates", 3, 211, 2, 2, 110, gate="slow"),
    packed("gates", 2, 2, 64, [0, 15, 100, 300, 1203, 2000], gate="slow", limits=SHORT),
    Case("path_gates", 10, 62, 2, 8, 128, dtype="bfloat16", gate="log", limits=WALKED),
    Case("path_gates", 5, 512, 2, 8, 128, dtype="bfloat16", gate="log", limits=WALKED),
    Case("path_gates", 3, 1024, 2, 8, 64, dtype="bfloat16", gate="log", limits=WALKED),
    Case("path", 2, 2000, 1, 4, 64, dtype="bfloat16", limits=WALKED),
    Case("path", 1, 4000, 1, 2, 128, dtype="bfloat16", limits=WALKED),
    packed("path", 2, 4, 128, LONG),
    packed("path_gates", 2, 4, 64, [0, 100, 300, 1000, 1989, 2000], gate="log"),
    Case("chosen", 1, 63, 1, 16, 64, 1.0, sizes={"size": 32, "n": 16}),
    Case("chosen", 3, 111, 1, 32, 100, 1.0, sizes={"size": 32, "n": 16}),
    Case("chosen", 3, 1024, 2, 32, 60, 0.1, sizes={"size": 32, "n": 16}),
    Case("chosen", 3, 1024, 2, 32, 128, 0.1, sizes={"size": 32, "n": 16}),
    Case("chosen", 4, 2048, 2, 32, 64, 0.1, sizes={"size": 32, "n": 16}),
    packed("chosen", 1, 16, 64, [0, 15], sizes={"size": 32, "n": 16}, limits=SHORT),
    packed("chosen", 1, 16, 64, [0, 15, 205, 550, 800], sizes={"size": 16, "n": 8}, limits=SHORT),
    packed("chosen", 2, 32, 64, [0, 256, 500, 1000], sizes={"size": 32, "n": 16}, limits=SHORT),
    packed("chosen", 2, 32, 100, [0, 15, 100, 300, 1200, 2000], sizes={"size": 32, "n": 16},
           limits=SHORT),
)  # fmt: skip


def layer_of(case: Case, exact: bool, device: str) -> nn.Module:
    """The layer, by kernels or in PyTorch in float64."""
    scale = case.scale or case.D**-0.5
    dtype = torch.float64 if exact else getattr(torch, case.dtype)
    how: dict[str, Any] = {"backend": "eager" if exact else "auto", "dtype": dtype}
    spec = archc.parse(TEXTS[case.kind])
    return spec.module(H=case.H, G=case.G, K=case.D, scale=scale, **case.sizes, **how).to(device)


def drawn(case: Case, device: str) -> Named:
    """Every input, sinks and the gradient that arrives, as the dtype of the case holds them."""
    random = torch.Generator(device).manual_seed(42)
    shape, heads = [case.B, case.T], {"q": [case.H, case.D], "o": [case.H, case.D]}

    def flat(*own: int) -> Tensor:
        return torch.rand([*shape, *own], generator=random, device=device, dtype=torch.float64)

    def normal(*own: int) -> Tensor:
        return torch.randn([*shape, *own], generator=random, device=device, dtype=torch.float64)

    found = {n: normal(*heads.get(n, [case.G, case.D])) for n in ("q", "k", "v", "o")}
    kind = case.kind
    if kind in ("gates", "path_gates"):
        own = {"slow": -0.1 + 0.09 * flat(case.H), "log": (0.95 + 0.05 * flat(case.H)).log()}
        found["g"] = own[case.gate] if case.gate in own else normal(case.H)
    if kind.startswith("path"):
        found["w"] = F.normalize(normal(case.G, case.D), dim=-1)
        rate = flat(case.G)
        found["beta"] = rate.sigmoid() if case.borders else 1.5 + rate / 2
        found["o"] = found["o"] if case.borders else flat(case.H, case.D)
    if kind == "sink":
        found["sink"] = normal(case.H)[0, 0]
    if kind == "chosen":
        found |= ranks(case, random, device)
    return {name: x.to(getattr(torch, case.dtype)).double() for name, x in found.items()}


def ranks(case: Case, random: torch.Generator, device: str, kinds: int = 8) -> Named:
    """Readers r [B, T, H, N] that go by one of several orders, and c [B, T, G, N], at the first
    token of a block a quarter of its rank in each: scores that are exact, and far apart."""
    own = torch.randint(kinds, [case.B, case.T, case.G], generator=random, device=device)
    r = F.one_hot(own, kinds).repeat_interleave(case.H // case.G, 2)
    c = torch.zeros(case.B, case.T, case.G, kinds, device=device, dtype=torch.float64)
    for begin, end in pairwise(case.borders or (0, case.T)):
        at = torch.arange(begin, end, case.sizes["size"], device=device)
        order = torch.rand([case.B, case.G, kinds, len(at)], generator=random, device=device)
        c[:, at] = (order.argsort(-1).double() / 4).permute(0, 3, 1, 2)
    return {"r": r.double(), "c": c}


LEARNED = ("q", "k", "v", "g", "w", "beta", "sink")


def by_kernels(case: Case, values: Named, device: str) -> Named:
    """The output and gradients by kernels, which are taken."""
    layer, dtype = layer_of(case, False, device), getattr(torch, case.dtype)
    taken = decisions(layer)
    given = {name: x.to(dtype) for name, x in values.items() if name != "o"}
    more = {}
    if case.borders:
        more = {"cu_seqlens": torch.tensor(case.borders, device=device, dtype=torch.int32)}
    found = gradients(partial(call, layer, more), given, values["o"].to(dtype))
    fold = case.kind != "softmax"
    assert bool(taken) >= fold and all(taken), "kernels were not taken"
    return found


def decisions(layer: nn.Module) -> list[bool]:
    """Whether each attention was done by kernels, as the layer is called; what has nothing to read
    needs none, as blocks of a sequence that is shorter than one."""
    module, taken = sys.modules[type(layer).__module__], list[bool]()
    own = getattr(module, "by_folds", None)

    def told(*given: Tensor) -> bool:
        assert own is not None
        by_kernels = own(*given)
        taken.append(by_kernels or not all(x.numel() for x in given))
        return by_kernels

    vars(module).update({"by_folds": told} if own else {})
    return taken


def call(layer: nn.Module, more: Mapping[str, Any], given: Named) -> Tensor:
    """The output of a layer; a sink is its parameter."""
    learned = {name: x for name, x in given.items() if name == "sink"}
    rest = {name: x for name, x in given.items() if name != "sink"}
    made = torch.func.functional_call(layer, learned, (), {**rest, **more})
    return made[0] if isinstance(made, tuple) else made


def gradients(run: Callable[[Named], Tensor], given: Named, slope: Tensor) -> Named:
    """The output and the gradients of what is learned, by name."""
    leaves = {n: x.detach().requires_grad_() for n, x in given.items() if n in LEARNED}
    made = run(given | leaves)
    found = torch.autograd.grad(made, [*leaves.values()], slope.to(made.dtype))
    return {"o": made.detach(), **dict(zip(leaves, found, strict=True))}


def wanted(case: Case, values: Named, device: str) -> Named:
    """The same in float64, one sequence after the other."""
    run = partial(walked, case) if case.kind.startswith("path") else None
    run = run or partial(call, layer_of(case, True, device), {})
    parts: list[Named] = []
    for b in range(case.B):
        for begin, end in pairwise(case.borders or (0, case.T)):
            own = {n: x if n == "sink" else x[b : b + 1, begin:end] for n, x in values.items()}
            slope = own.pop("o")
            parts.append(gradients(run, own, slope))
    found = {n: torch.cat([p[n] for p in parts], 1) for n in parts[0] if n != "sink"}
    found = {n: x.reshape(case.B, case.T, *x.shape[2:]) for n, x in found.items()}
    if "sink" in parts[0]:
        found["sink"] = torch.stack([p["sink"] for p in parts]).sum(0)
    return found


def walked(case: Case, given: Named, block: int = 64) -> Tensor:
    """Attention through products of Householder matrices, read from the last token to the first:
    each reader's query is reflected by every token that it has passed."""
    scale, share = case.scale or case.D**-0.5, case.H // case.G
    q, T = given["q"].transpose(1, 2), given["q"].shape[1]
    k, v, w = (given[n].transpose(1, 2).repeat_interleave(share, 1) for n in ("k", "v", "w"))
    beta = given["beta"].transpose(1, 2).repeat_interleave(share, 1)

    def some(u: Tensor, begin: int, end: int) -> tuple[Tensor, Tensor]:
        scores = []
        for s in reversed(range(begin, end)):
            at = u[:, :, s:]
            scores.append(F.pad(at @ k[:, :, s, :, None], (0, 0, s, 0)))
            own = w[:, :, s, None]
            turned = at - beta[:, :, s, None, None] * (at * own).sum(-1, keepdim=True) * own
            u = torch.cat([u[:, :, :s], turned], 2)
        return u, torch.cat(scores[::-1], -1)

    parts: list[Tensor] = []
    for begin in reversed(range(0, T, block)):
        q, scores = checkpoint(some, q, begin, min(begin + block, T), use_reentrant=False)
        parts.insert(0, scores)
    score = torch.cat(parts, -1)
    if "g" in given:
        sums = given["g"].transpose(1, 2).cumsum(-1)
        score = score + sums[..., :, None] - sums[..., None, :]
    seen = torch.ones(T, T, dtype=torch.bool, device=q.device).tril()
    weights = (scale * score).masked_fill(~seen, -math.inf).softmax(-1)
    return (weights @ v).transpose(1, 2)


def measured(case: Case, device: str = "cuda") -> dict[str, tuple[float, float]]:
    """The error and the limit of the output and of every gradient."""
    values = drawn(case, device)
    found, right = by_kernels(case, values, device), wanted(case, values, device)
    return {n: (relative(x, found[n]), case.limits.get(n, 0.005)) for n, x in right.items()}


def row(number: int, device: str = "cuda") -> dict[str, Any]:
    """What the record says of a case."""
    case = CASES[number]
    try:
        errors = measured(case, device)
    except FAILURES as error:
        said = "".join(traceback.format_exception(error))[-1500:]
        return {"case": str(case), "wrong": [f"{type(error).__name__}: {error}"[:300], said]}
    wrong = [f"{n} {e:.1e} > {most:g}" for n, (e, most) in errors.items() if not e < most]
    return {"case": str(case), "errors": errors, "wrong": wrong}


def rows(workers: int, done: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every other case, as it is done, each worker a process."""
    left = [number for number, case in enumerate(CASES) if str(case) not in done]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(row, left[::-1])


def earlier(output: Path) -> list[dict[str, Any]]:
    """What was right in the record that is there."""
    found = json.loads(output.read_text(encoding="utf-8"))["rows"] if output.exists() else []
    return [each for each in found if not each["wrong"]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Every case that was not right yet; a record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--commit")
    given, head = parser.parse_args(arguments), where("cuda")
    head["commit"] = given.commit or head["commit"]
    done = earlier(given.output)
    for made in rows(given.workers, [each["case"] for each in done]):
        done.append({**made, "commit": head["commit"]})
        print(made["case"], "; ".join(made["wrong"]) or "right", flush=True)
        counts = {"cases": len(done), "not run": len(CASES) - len(done)}
        counts["wrong"] = sum(bool(each["wrong"]) for each in done)
        text = json.dumps({**head, **counts, "rows": done}, indent=1)
        given.output.write_text(text + "\n", encoding="utf-8")
    return int(any(each["wrong"] for each in done))


if __name__ == "__main__":
    sys.exit(main())

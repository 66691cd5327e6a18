"""Programs for the hard parts of a chunk beside the kernels that a spec has today, on one GPU.

    python -m benchmarks.chunk_programs -o benchmarks/results/chunk_programs.json

Scores of a delta rule with a decay a channel, their gradient, and the inverse of a unit lower
triangular matrix (tests/lowering/chunk_programs.py), each launched alone at a size that people use,
with gates of several kinds: those of `soft` are moderate, `strong` ones in short blocks, `hard` and
`deep` ones nowhere. Each is held against sums over pairs in float64 at a small size first. `--tune`
tries lengths of parts, warps and registers. The kernels of `--spec` come from a profile of its
memory, forward and backward, at the same size.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import archc
from archc.ir.sizes import evaluate
from benchmarks.rows import Record, arguments, timed
from benchmarks.tile_programs import launches
from tests.lowering import chunk_cases
from tests.lowering.chunk_cases import sums_of
from tests.tile.cases import Case, Drawn, errors
from tests.tile.launched import launcher

SIZES = {"B": 2, "T": 8192, "H": 32, "K": 128}
KINDS = ("soft", "strong", "hard", "deep")
LIMIT = 2e-2
"""How far bfloat16 may be off, of the norm of a result."""

OPTIONS: Mapping[str, dict[str, int]] = {
    "scores": {"BLOCK": 32, "num_warps": 4, "num_stages": 3},
    "scores_gradient": {"BLOCK": 32, "num_warps": 4, "num_stages": 3},
    "solve_tril": {"num_warps": 4, "num_stages": 1},
}
TRIED: Mapping[str, Mapping[str, tuple[int | None, ...]]] = {
    "scores": {"BLOCK": (32, 64), "num_warps": (4, 8), "num_stages": (1, 2, 3, 4)},
    "scores_gradient": {"BLOCK": (32, 64), "num_warps": (4, 8), "num_stages": (1, 2, 3)},
    "solve_tril": {"num_warps": (1, 2, 4, 8)},
}  # fmt: skip
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64}


@dataclass(frozen=True)
class Large:
    """A program at the size that is timed: nothing says what it must make."""

    case: Case
    bytes: int


def small(name: str, **options: Any) -> Case:
    """The program at a size that float64 can be asked about."""
    own = {} if name.startswith("solve") else {"kind": options["kind"], "BLOCK": options["BLOCK"]}
    if name == "solve_tril":
        own["SOLVE"] = "f16"
    else:
        own["K"] = 128
    return getattr(chunk_cases, name)(Drawn(torch.bfloat16, "cuda"), T=256, C=64, **own)


def large(name: str, **options: Any) -> Large:
    """The same program at the size that is timed, on random numbers."""
    case = small(name, **options)
    known = {**SIZES, **{n: v for n, v in case.constants.items() if isinstance(v, int)}}
    tensors = {}
    for buffer in case.program.buffers:
        shape = [int(evaluate(size, known)) for _, size in buffer.axes]
        dtype = DTYPES[str(case.constants.get(buffer.dtype, buffer.dtype))]
        tensors[buffer.name] = _drawn(buffer.name, shape, dtype, options.get("kind", "soft"))
    total = sum(x.numel() * x.element_size() for x in tensors.values())
    return Large(Case(case.program, tensors, SIZES, case.constants, {}), total)


def _drawn(name: str, shape: list[int], dtype: torch.dtype, kind: str) -> Tensor:
    """Random numbers for a buffer."""
    if name == "sums":
        soft = torch.nn.functional.logsigmoid(torch.randn(shape, device="cuda"))
        odd = torch.arange(shape[-2], device="cuda")[:, None] % 2 == 1
        found = {
            "soft": lambda: soft,
            "strong": lambda: 2 * soft,
            "hard": lambda: torch.where(torch.rand_like(soft) < 0.15, -1e4, 8 * soft),
            "deep": lambda: torch.where(odd, soft, -1e4),
        }[kind]()
        return sums_of(found, dtype)
    made = torch.randn(shape, device="cuda", dtype=torch.float32)
    return (made.tril(-1) / shape[-1] if name == "A" else made / shape[-1] ** 0.5).to(dtype)


def launched(case: Case, options: Mapping[str, int | None]) -> Callable[[], Any]:
    """Launches a program with other lengths and other options of the compiler."""
    given = {n: v for n, v in options.items() if v is not None and n != "kind"}
    constants = {**case.constants, **{n: v for n, v in given.items() if n in case.constants}}
    rest = {n: v for n, v in given.items() if n not in case.constants}
    return launcher(case.program, case.tensors, case.sizes, constants, **rest)


def row(name: str, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """One program with gates of one kind."""
    case = small(name, kind=kind, **options)
    launched(case, options)()
    off = errors(case)
    big = large(name, kind=kind, **options)
    time = timed(launched(big.case, options))
    return {
        "program": name, "kind": kind, "options": dict(options), "us": time * 1e3,
        "errors": off, "bytes": big.bytes, "bandwidth": big.bytes / time * 1e3,
        "right": max(off.values()) < LIMIT,
    }  # fmt: skip


def tuned(name: str) -> Iterator[dict[str, Any]]:
    """Other parts, warps and registers of one program, with soft gates."""
    big, known = large(name, kind="soft", **OPTIONS[name]), OPTIONS[name]
    tried = {**{option: (value,) for option, value in known.items()}, **TRIED[name]}
    for each, launch in launches(name, tried, lambda options: launched(big.case, options)):
        if launch is not None:
            each["us"] = timed(launch) * 1e3
        yield each


def profiled(spec: str) -> dict[str, float]:
    """Microseconds of each kernel of a spec's memory, forward and backward."""
    B, T, H, K = SIZES.values()
    memory = archc.load(spec).op
    made = [torch.randn(B, T, H, K, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
    q, k, v, g = made
    k, g = torch.nn.functional.normalize(k, dim=-1), torch.nn.functional.logsigmoid(g)
    beta = torch.rand(B, T, H, device="cuda", dtype=torch.bfloat16)
    given = [x.detach().requires_grad_() for x in (q / K**0.5, k, v, g, beta)]

    def both() -> None:
        o, _ = memory(*given)
        torch.autograd.grad(o, given, torch.ones_like(o))

    for _ in range(3):
        both()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            both()
        torch.cuda.synchronize()
    found = profile.key_averages()
    return {each.key: each.device_time_total / 5 for each in found if each.device_time_total}


def main() -> int:
    """Every program; 3 if one is wrong."""
    parser = arguments(__doc__, OPTIONS)
    parser.add_argument("--tune", action="store_true", help="also try other settings")
    parser.add_argument("--spec", help="profile the kernels of this spec's memory")
    given = parser.parse_args()
    made = Record(given, sizes=SIZES, tried=[])
    if given.spec:
        made.data["today"] = profiled(given.spec)
        for name, time in sorted(made.data["today"].items(), key=lambda each: -each[1]):
            print(f"{name:60} {time:9.1f} us", flush=True)
    for name in given.names:
        for kind in KINDS if name.startswith("scores") else KINDS[:1]:
            found = row(name, kind, OPTIONS[name])
            made.add(found)
            speed = found["bandwidth"] / 1e12
            print(f"{name:20} {kind:8} {found['us']:9.1f} us, {speed:.2f} TB/s, {found['errors']}")
        if given.tune:
            for each in tuned(name):
                made.data["tried"].append(each)
                print("   ", each.get("us"), each["options"], each.get("refused", ""), flush=True)
            made.write()
        torch.cuda.empty_cache()
    return 0 if all(each["right"] for each in made.data["rows"]) else 3


if __name__ == "__main__":
    sys.exit(main())

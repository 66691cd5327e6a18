"""Which shapes, dtypes and values memories are run with: those of flash-linear-attention's tests,
some that are hard, and random ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True, order=True)
class Case:
    """One run. `gate` divides log decays: 0.1 forgets fast, 10 slowly; `holes` is the share of
    decays that are -1000 and -inf; `kept` the share of tokens that forget nothing. `layout` says
    how tensors lie in memory. `packed` sequences are one batch, one of them of no token. `H`, `K`
    and `V` stand for whatever dims the memory has."""

    spec: str
    dtype: str = "bfloat16"
    chunk: int = 64
    H: int = 2
    K: int = 64
    V: int = 64
    wide_gates: bool = True
    layout: str = "plain"
    B: int = 2
    T: int = 130
    gate: float = 1.0
    holes: float = 0.0
    kept: float = 0.0
    values: str = "normal"
    state: bool = True
    packed: int = 0
    seed: int = 0

    @property
    def variant(self) -> tuple[Any, ...]:
        """What kernels are compiled for: cases of one variant share them."""
        return (
            self.spec, self.dtype, self.chunk, self.H, self.K, self.V, self.wide_gates, self.layout
        )  # fmt: skip

    def __str__(self) -> str:
        changed = {k: v for k, v in asdict(self).items() if v != getattr(Case("x"), k)}
        return " ".join(f"{k}={v}" for k, v in changed.items())


LAYOUTS = ("plain", "plain", "turned", "sliced", "shared heads")
"""Contiguous twice as often as anything else."""

SHAPES = (
    # B, T, H, D, gate, kept, of the tests of KDA and GLA
    (1, 63, 1, 64, 1.0, 0.0),
    (2, 500, 3, 60, 1.0, 0.0),
    (2, 1000, 3, 64, 1.0, 0.5),
    (3, 1024, 4, 100, 0.1, 0.0),
    (4, 1024, 4, 128, 1.0, 0.0),
    (2, 1500, 4, 128, 10.0, 0.0),
    (4, 2048, 8, 64, 1.0, 0.0),
    (1, 15, 4, 60, 1.0, 0.0),
    (1, 2000, 4, 100, 1.0, 0.0),
    (1, 128, 4, 256, 1.0, 0.0),
)

NORMAL = ("delta", "linear_attention_simple")
"""Whose tests draw normal numbers; others draw positive ones, which have more in common."""

CHANNELS = ("channels", "mamba", "ssm_selective")
"""Whose K are channels, with a program each: many of them show nothing new, and take long."""

QUOTED = (
    (1, 8192, 96, 128), (2, 16384, 16, 128), (4, 2048, 16, 128), (4, 4096, 64, 128),
    (8, 2048, 32, 256), (8, 1024, 8, 64),
)  # fmt: skip
"""B, T, H, D that speed is quoted for."""


def drawn_by_peers(spec: str) -> str:
    """What the tests of a memory in 16 bits draw, which their limits are for."""
    return "normal" if spec in NORMAL else "positive"


def first(spec: str) -> Iterator[Case]:
    """A few cases that show most of what can go wrong."""
    narrow, values = Case(spec, T=1024), drawn_by_peers(spec)
    yield replace(narrow, values=values)
    yield replace(narrow, gate=10.0, seed=1)
    yield replace(narrow, T=127, gate=0.1, holes=0.1)
    wide = Case(spec, "float32", H=3, K=60, V=60, T=500)
    yield replace(wide, values="positive")
    yield replace(wide, T=132, holes=0.1)
    yield Case(spec, K=128, V=128, H=4, T=1024, values=values)
    yield Case(spec, K=128, V=128, H=4, T=127, gate=0.1, holes=0.1)
    yield Case(spec, "float16", H=1, B=1, T=63, values="positive")
    yield Case(spec, "float16", H=1, B=1, T=1000, kept=0.5)
    yield Case(spec, "float32", 16, H=2, K=16, V=48, T=70, layout="turned")


def peers(spec: str) -> Iterator[Case]:
    """The shapes of flash-linear-attention's tests, in the dtypes of its tests and bfloat16."""
    values = drawn_by_peers(spec)
    for B, T, H, D, gate, kept in SHAPES:
        for dtype in ("float16", "bfloat16"):
            yield Case(spec, dtype, H=H, K=D, V=D, B=B, T=T, gate=gate, kept=kept, values=values)
    yield Case(spec, "float32", H=3, K=60, V=60, T=500, values="positive")
    yield Case(spec, "float32", H=4, K=100, V=100, T=1000, values="positive")


def hard(spec: str) -> Iterator[Case]:
    """K != V, gates that forget everything, tensors with gaps, heads that share memory, dims that
    are shorter than the shortest tile."""
    sizes = (("float32", 2, 64, 128), ("bfloat16", 2, 128, 64), ("float16", 3, 60, 100))
    for dtype, H, K, V in sizes:
        case = Case(spec, dtype, H=H, K=K, V=V)
        for T in (16, 17, 63, 64, 65, 200):
            yield replace(case, T=T, holes=0.1, seed=T)
        yield replace(case, holes=1.0, seed=1)
        yield replace(case, state=False, gate=0.1, seed=2)
        yield replace(case, packed=5, B=1, T=331, seed=3)
        for layout in ("turned", "sliced", "shared heads"):
            yield replace(case, layout=layout, T=150)
    yield Case(spec, "float32", 16, H=2, K=64, V=128, T=150)
    yield Case(spec, "bfloat16", 32, H=2, K=128, V=64, T=150)
    yield Case(spec, "float32", H=2, K=80, V=8, T=122, holes=0.1)
    yield Case(spec, "float16", H=4, K=8, V=8, wide_gates=False, T=226)


def small(spec: str) -> Iterator[Case]:
    """What is small enough for Triton's interpreter: few and many tokens for a chunk, dims that do
    not fill a tile, gates that forget all."""
    few, most = (3, 5) if spec in CHANNELS else (12, 60)
    one = Case(spec, "float32", 16, H=2, K=few, V=20, B=1)
    for T in (1, 15, 16, 17, 33):
        yield replace(one, T=T, holes=0.1, seed=T)
    yield replace(one, T=33, holes=1.0, layout="shared heads")
    yield replace(one, T=40, packed=4)
    for H, K, V in ((1, 8, 1), (2, 2, 8), (1, 4, 4)):
        yield replace(one, H=H, K=K, V=V, T=19, seed=V)
    yield replace(one, T=63, chunk=64, K=most, V=60, H=1, values="positive", state=False)
    yield replace(one, T=70, dtype="bfloat16", chunk=64, H=1, layout="sliced")
    yield replace(one, T=200, dtype="bfloat16", chunk=64, H=1, values=drawn_by_peers(spec))


def quoted(spec: str) -> Iterator[Case]:
    """The shapes that everyone quotes."""
    for B, T, H, D in QUOTED:
        yield Case(spec, H=H, K=D, V=D, B=B, T=T)


def some(spec: str, count: int, seed: int, share: int = 12) -> Iterator[Case]:
    """Random cases; `share` of them in a row have the same kernels."""
    draw = random.Random(f"{spec} {seed}")
    case = Case(spec)
    for number in range(count):
        if number % share == 0:
            case = Case(
                spec,
                dtype=draw.choice(("float32", "bfloat16", "bfloat16", "float16")),
                chunk=draw.choice((64, 64, 64, 32, 16)),
                H=draw.randint(1, 5),
                K=draw.choice((8, 16, 24, 32, 48, 60, 64, 64, 80, 100, 128)),
                V=draw.choice((8, 16, 33, 48, 64, 64, 72, 96, 128)),
                wide_gates=draw.random() < 0.5,
                layout=draw.choice(LAYOUTS),
            )
        packed = draw.choice((0, 0, 0, 3))
        yield replace(
            case,
            packed=packed,
            B=1 if packed else draw.randint(1, 4),
            T=draw.choice((draw.randint(16, 80), draw.randint(16, 700))),
            gate=draw.choice((0.1, 1.0, 1.0, 10.0)),
            holes=draw.choice((0.0, 0.0, 0.1)),
            kept=draw.choice((0.0, 0.0, 0.5)),
            values=draw.choice(("normal", "positive")),
            state=draw.random() < 0.7,
            seed=number,
        )


SUITES = {"small": small, "first": first, "peers": peers, "hard": hard, "quoted": quoted}


def by_variant(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that share kernels, together, in the order of the first of them."""
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        groups.setdefault(case.variant, []).append(case)
    return list(groups.values())

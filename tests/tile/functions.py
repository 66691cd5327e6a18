"""Every elementwise function of every mixture of dtypes that the verifier lets through."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import torch
from torch import Tensor

from archc.functions.definitions import FUNCTIONS as DEFINED
from archc.ir.meaning_ops import FUNCTIONS
from archc.tile.compose import Composer
from archc.tile.verifier import verify
from tests.tile.cases import Case

N = 16
DTYPES = {
    "f32": torch.float32, "f64": torch.float64, "i32": torch.int32, "i64": torch.int64,
    "bool": torch.bool,
}  # fmt: skip
MIXTURES = {1: [(d,) for d in DTYPES], 2: [*product(DTYPES, repeat=2)]}
MIXTURES[3] = [("bool", *pair) for pair in MIXTURES[2]]


def is_right(function: str, dtypes: tuple[str, ...]) -> bool:
    """Whether the verifier has nothing against a function of such operands."""
    k = Composer("one", "One function.")
    k.apply(function, *(k.full(1, dtype=dtype) for dtype in dtypes))
    return not verify(k.done())


def mixtures() -> Iterator[tuple[str, tuple[str, ...]]]:
    """What there is to try."""
    for function, fn in DEFINED.items():
        if function != "real":
            yield from (
                (function, found) for found in MIXTURES[fn.arity] if is_right(function, found)
            )


def given() -> dict[str, list[Tensor]]:
    """Three operands of each dtype, positive, so that every function has a value."""
    drawn = torch.rand(3, N, generator=torch.Generator().manual_seed(6)) * 3 + 1.0
    return {name: [row.to(dtype) for row in drawn] for name, dtype in DTYPES.items()}


def mixed(dtype: str) -> Case:
    """All functions whose first operand that is no condition has this dtype."""
    k = Composer(f"mixed_{dtype}", f"Functions of {dtype} and others.")
    tensors, n = given(), k.iota("n", N)
    stored = {name: d for name, d in DTYPES.items() if name != "bool"}
    buffers = {name: k.buffer(f"x_{name}", m=3, n=N, dtype=name) for name in stored}
    tiles = {name: [k.load(b, i, n) for i in range(3)] for name, b in buffers.items()}
    tiles["bool"] = [tile > 2.5 for tile in tiles["f32"]]
    values = {name: list(rows) for name, rows in tensors.items()}
    values["bool"] = [row > 2.5 for row in tensors["f32"]]
    rows = []
    chosen = [(f, d) for f, d in mixtures() if d[-1 if len(d) == 1 else -2] == dtype]
    y = k.buffer("y", f=len(chosen), n=N, dtype="f64")
    for place, (function, dtypes) in enumerate(chosen):
        operands = [tiles[name][i] for i, name in enumerate(dtypes)]
        made = k.apply(function, *operands)
        wide = k.where(made, 1.0, 0.0) if made.dtype == "bool" else made
        k.store(y, place, n, value=wide.to("f64"))
        found = FUNCTIONS[function](*(values[name][i] for i, name in enumerate(dtypes)))
        rows.append(found.double())
    launched = {f"x_{name}": torch.stack(tensors[name]) for name in stored}
    launched["y"] = torch.zeros(len(chosen), N, dtype=torch.float64)
    return Case(k.done(), launched, {}, {}, {"y": torch.stack(rows)})

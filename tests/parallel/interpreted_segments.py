"""Segments of two processes, joined by the kernels of one recurrence under Triton's interpreter, in
float32, against the whole in float64 without kernels: prints how far values and gradients of each
process are off.

    TRITON_INTERPRET=1 python -m tests.parallel.interpreted_segments kda,gla,gated_delta_product:3
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import sympy
import torch
import torch.distributed as dist
from torch import Tensor

from archc.ir import layer as ir
from archc.ir.plan import default_sizes
from archc.ir.sizes import evaluate
from archc.parallel import segmented
from archc.parallel.execute import PieceFunction
from archc.parallel.mesh import ranks_of
from archc.parallel.pieces import RECURRENCE, Piece
from archc.parallel.segmented import by_segments, joining, usable
from tests.backends.triton.quick import quick_scans
from tests.parallel.ranks import RANKS, mesh_of, run
from tests.parallel.test_columns import memory_of

LENGTH = 150
"""Tokens of a part: two chunks and some more."""

SIZE, BATCH = 4, 2


def sizes_of(memory: ir.Layer) -> dict[str, int]:
    """All sizes of a memory are the same, but for what it was compiled for."""
    axes = [axis for _, op in memory.inputs for axis in op.type.axes]
    sizes = {str(symbol): SIZE for axis in axes for symbol in axis.size.free_symbols}
    return sizes | {"n": int(default_sizes(memory).get("n", 2))}


def inputs_of(memory: ir.Layer) -> list[Tensor]:
    """Values of a memory for all parts; logarithms of gates are at most 0, what is no value of a
    token is above it."""
    torch.manual_seed(0)
    found = []
    for _, op in memory.inputs:
        sizes = sizes_of(memory) | {"batch": BATCH, "T#": RANKS * LENGTH}
        drawn = torch.randn([int(evaluate(a.size, sizes)) for a in op.type.axes])
        if "t" not in op.type.names:
            found.append(drawn.abs() + 0.5)
        elif op.name.startswith("log_"):
            found.append(-drawn.abs())
        else:
            found.append(torch.nn.functional.normalize(drawn, dim=-1))
    return [x.double() for x in found]


def mine(x: Tensor, rank: int) -> Tensor:
    """The tokens of a part."""
    return x[:, rank * LENGTH : (rank + 1) * LENGTH]


def check(name: str) -> None:
    """Values, and gradients of all that is given and of the first states, which are not 0; `:3`
    says how many steps a token takes."""
    spec, _, steps = name.partition(":")
    memory = memory_of(spec, **({"n": int(steps)} if steps else {}))
    piece, sizes = Piece(RECURRENCE, memory, (), (), False, sympy.Integer(0), {}), sizes_of(memory)
    exact, call = (PieceFunction(piece, sizes, backend) for backend in ("eager", "triton"))
    assert call.in_segments
    inputs, ranks = inputs_of(memory), ranks_of(mesh_of("cp"), "cp")
    assert ranks is not None
    State, nothing = type(exact.first_state(inputs)), exact.first_state(inputs)
    first = [torch.randn(x.shape, dtype=torch.float64) for x in nothing]
    given = [x.requires_grad_() for x in (*inputs, *first)]
    wanted, _ = exact(inputs, State(*first), False)
    weights = [torch.randn(x.shape, dtype=torch.float64) for x in wanted]
    expected = torch.autograd.grad(wanted, given, weights)
    along = ["t" in op.type.names for _, op in memory.inputs] + [False] * len(first)
    own = [mine(x, ranks.rank) if t else x for x, t in zip(given, along, strict=True)]
    leaves = [x.detach().float().requires_grad_() for x in own]
    State, module = type(call.first_state(leaves[: len(inputs)])), sys.modules[call.call.__module__]
    start = State(*leaves[len(inputs) :])
    by_kernels = {"by_kernels": lambda chunk, *given: chunk in (16, 32, 64)}
    with patch.dict(vars(module), by_kernels), patch.dict(vars(segmented), by_kernels):
        assert usable(module, leaves, LENGTH, call.masked)
    with patch.dict(vars(module), by_kernels), quick_scans():
        made = by_segments(ranks, joining(module), name, call, leaves[: len(inputs)], start)
        slopes = torch.autograd.grad(
            made, leaves, [mine(w, ranks.rank).float() for w in weights], materialize_grads=True,
            allow_unused=True,
        )  # fmt: skip
    pairs = [(x, mine(y, ranks.rank)) for x, y in zip(made, wanted, strict=True)]
    for x, y, t in zip(slopes, expected, along, strict=True):
        if not t:  # what has no tokens is learned from those of all processes
            dist.all_reduce(x)
        pairs.append((x, mine(y, ranks.rank) if t else y))
    off = max(float((x.detach().double() - y.detach()).norm() / y.norm()) for x, y in pairs)
    assert off < 2e-5, f"{name} is off by {off:.1e}"


def main() -> None:
    """A line for each check and process."""
    checks: dict[str, Any] = {name: partial(check, name) for name in sys.argv[1].split(",")}
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), checks)
        for path in sorted(Path(folder).glob("*.jsonl")):
            print(path.read_text("utf-8"), end="")


if __name__ == "__main__":
    main()

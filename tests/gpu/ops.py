"""Ops of torch on a GPU: what torch checks of them, one compiled graph for any number of tokens,
one token under a CUDA graph, and how long a call takes where the GPU has nothing to do.

    python -m tests.gpu.ops gla kda mlstm
"""

from __future__ import annotations

import copy
import cProfile
import io
import pstats
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import torch
from archc.backends.load import load
from torch import Tensor, nn

import archc
from archc.compile import in_kernels, lowered
from archc.ir.plan import Plan, examples
from archc.ir.sizes import evaluate

FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)
LIMITS = {torch.float32: 2e-3, torch.bfloat16: 1e-1}


class Checked:
    """One layer with kernels, and its inputs for a number of tokens."""

    def __init__(self, spec: str, device: str, dtype: torch.dtype, unit: int = 32):
        self.layer_ir = lowered(archc.load(spec).layer)
        plan = Plan(self.layer_ir)
        self.module: ModuleType = load(in_kernels(plan).text(plan), f"{spec}_ops")
        self.device, self.dtype = device, dtype
        self.sizes = next(examples(self.layer_ir, unit))
        torch.manual_seed(0)
        make = getattr(self.module, self.layer_ir.name)
        self.layer: nn.Module = make(**self.sizes, device=device, dtype=dtype)

    def inputs(self, tokens: int, batch: int = 2) -> list[Tensor]:
        known = {**self.sizes, "batch": batch, "T#": tokens, "T_seen#": tokens}
        shapes = [[evaluate(a.size, known) for a in op.type.axes] for _, op in self.layer_ir.inputs]
        kind: dict[str, Any] = {"device": self.device, "dtype": self.dtype}
        return [torch.randn(shape, **kind).requires_grad_() for shape in shapes]

    def ops(self) -> list[str]:
        return [name for name in vars(self.module) if name.endswith("_op")]


def run(call: Callable[..., Any], layer: nn.Module, inputs: list[Tensor]) -> list[Tensor]:
    """The output, and the gradients of inputs and parameters."""
    y = call(*inputs)
    values = [*inputs, *layer.parameters()]
    found = torch.autograd.grad(y.float().square().sum(), values, allow_unused=True)
    return [y.detach(), *(d for d in found if d is not None)]


def far(found: list[Tensor], wanted: list[Tensor]) -> float:
    """The largest difference, against the largest value of each."""
    pairs = zip(found, wanted, strict=True)
    return max(
        float((x.double() - y.double()).abs().max() / y.double().abs().max().clamp(min=1e-6))
        for x, y in pairs
    )


def check_ops(made: Checked) -> Iterator[str]:
    """`torch.library.opcheck` of every call of a forward and its backward, and of a step."""
    calls: list[tuple[Any, list]] = []

    def recorded(op: Any) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            calls.append((op.op, [x.detach() if isinstance(x, Tensor) else x for x in given]))
            return op(*given)

        return call

    kept = {name: getattr(made.module, name) for name in made.ops()}
    vars(made.module).update({name: recorded(op) for name, op in kept.items()})
    try:
        run(made.layer, made.layer, made.inputs(77))
    finally:
        vars(made.module).update(kept)
    for op, given in calls:
        for x in given:
            if isinstance(x, Tensor) and x.is_floating_point():
                x.requires_grad_(not op._opname.endswith("_gradient"))
        done = torch.library.opcheck(op, tuple(given), raise_exception=False)
        bad = {name: str(what)[:300] for name, what in done.items() if what != "SUCCESS"}
        yield f"{op._opname}: {bad or 'clean'}"


def check_compiled(made: Checked) -> Iterator[str]:
    """Inductor, forward and backward; not compiled again for other numbers of tokens."""
    torch._dynamo.reset()
    compiled = torch.compile(made.layer, fullgraph=True, dynamic=True)
    begun = time.perf_counter()
    run(compiled, made.layer, made.inputs(256))
    yield f"first call {time.perf_counter() - begun:.1f} s"
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (1000, 77, 40, 9):
            inputs = made.inputs(tokens)
            error = far(run(compiled, made.layer, inputs), run(made.layer, made.layer, inputs))
            yield f"T {tokens}: {error:.1e}{'' if error < LIMITS[made.dtype] else ' !'}"


def steps(call: Callable[..., Any], xs: Tensor, state: Any) -> Iterator[Tensor]:
    for x in xs.unbind(1):
        y, state = call(x[:, None], state=state, return_state=True)
        yield y.clone()


def flat(state: Any) -> list[Tensor]:
    """The tensors of a state."""
    if isinstance(state, Tensor):
        return [state]
    parts = state if isinstance(state, tuple) else ()
    return [x for part in parts for x in flat(part)]


@torch.no_grad()
def check_decode(made: Checked) -> Iterator[str]:
    """One token after the other: by a CUDA graph, and compiled, against plain calls."""
    (xs,) = made.inputs(12)
    begin = made.layer.initial_state(xs.shape[0], xs.device, made.dtype)
    wanted = list(steps(made.layer, xs, begin))
    if made.device == "cuda":
        error = far(list(by_graph(made, xs, begin)), wanted)
        yield f"by a CUDA graph: {error:.1e}{'' if error < 1e-6 else ' !'}"
    torch._dynamo.reset()
    compiled = torch.compile(made.layer, fullgraph=True)
    error = far(list(steps(compiled, xs, begin)), wanted)
    yield f"compiled: {error:.1e}{'' if error < LIMITS[made.dtype] else ' !'}"


def by_graph(made: Checked, xs: Tensor, state: Any) -> Iterator[Tensor]:
    """Outputs of a step that is recorded once: the state goes back into memory of its own."""
    x, state = xs[:, :1].clone(), copy.deepcopy(state)
    kept = [part.clone() for part in flat(state)]
    for _ in range(2):
        made.layer(x, state=state, return_state=True)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y, after = made.layer(x, state=state, return_state=True)
        for part, new in zip(flat(state), flat(after), strict=True):
            part.copy_(new)
    for part, old in zip(flat(state), kept, strict=True):
        part.copy_(old)
    for now in xs.split(1, 1):
        x.copy_(now)
        graph.replay()
        yield y.clone()


def check_autocast(made: Checked) -> Iterator[str]:
    """A layer in float32 under autocast to bfloat16, with its gradients: states stay wide."""
    if made.dtype != torch.float32:
        return
    (x,) = made.inputs(77)
    exact = run(made.layer, made.layer, [x])
    with torch.autocast(made.device, torch.bfloat16):
        _, state = made.layer(x, return_state=True)
        found = run(made.layer, made.layer, [x])
    error, kinds = far(found, exact), {str(part.dtype)[6:] for part in flat(state)}
    right = error < 2 * LIMITS[torch.bfloat16] and kinds == {"float32"}
    yield f"{error:.1e}, states in {', '.join(sorted(kinds))}{'' if right else ' !'}"


def check_floor(made: Checked) -> Iterator[str]:
    """Microseconds of a call from Python, of the whole layer and of each recurrence in it: 64
    tokens, with and without gradients, and one token; and where Python spends them."""
    inputs = made.inputs(64, 1)
    titles = [n.removesuffix("_gradient_op") for n in made.ops() if n.endswith("_gradient_op")]
    runs = {"layer": lambda: made.layer(*inputs)}
    for title in titles:
        runs |= recurrences(made, title)
    for name, call in runs.items():
        with torch.no_grad():
            yield f"{name}: {median_us(call):.0f} us a call"

        def both(call: Callable[[], Any] = call) -> None:
            made_by = call()
            (made_by[0] if isinstance(made_by, tuple) else made_by).sum().backward()

        if "token" not in name:
            forward, back = median_us(call), median_us(both)
            yield f"{name}: {forward:.0f} us with a graph, {back:.0f} us with its backward"
    for name, call in runs.items():
        with torch.no_grad(), cProfile.Profile() as profile:
            for _ in range(100):
                call()
        told = io.StringIO()
        pstats.Stats(profile, stream=told).sort_stats("tottime").print_stats(14)
        yield f"{name}, 100 calls, profiled\n" + "\n".join(told.getvalue().splitlines()[7:])


def recurrences(made: Checked, title: str) -> dict[str, Callable[[], Any]]:
    """Calls of one recurrence as the layer calls it, of 64 tokens and of one."""
    known, found = getattr(made.module, title), dict[str, Callable[[], Any]]()
    for tokens in (64, 1):
        given: list[Any] = []

        def keep(*values: Any, given: list[Any] = given, **rest: Any) -> Any:
            given[:] = [x.detach() if isinstance(x, Tensor) else x for x in values]
            return known(*values, **rest)

        setattr(made.module, title, keep)
        try:
            made.layer(*made.inputs(tokens, 1))
        finally:
            setattr(made.module, title, known)
        if tokens > 1:
            given = [
                x.requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x
                for x in given
            ]
        words = f"{title}, {tokens} token{'s' * (tokens > 1)}"
        found[words.replace("64 tokens", "64")] = partial(known, *given)
    return found


def median_us(call: Callable[[], Any]) -> float:
    """Microseconds until a call returns, the GPU done with the one before it: of 40, the median."""
    times = []
    for _ in range(40):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return sorted(times)[20] * 1e6


CHECKS = (check_ops, check_compiled, check_decode, check_autocast, check_floor)


def main(specs: list[str], device: str) -> None:
    """Every check of every spec; one that fails does not end the others."""
    for spec in specs:
        for dtype in (torch.bfloat16, torch.float32):
            made = Checked(spec, device, dtype)
            for check in CHECKS:
                begun = time.perf_counter()
                try:
                    for line in check(made):
                        print(f"{spec} {str(dtype)[6:]} {check.__name__}: {line}", flush=True)
                except FAILURES:
                    print(f"{spec} {dtype} {check.__name__} ! {traceback.format_exc()[-1500:]}")
                print(f"    {time.perf_counter() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ["gla", "kda"], "cuda" if torch.cuda.is_available() else "cpu")

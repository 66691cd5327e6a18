"""Kernels that walk tokens, on pools of states, against the eager loop in float64: under Triton's
interpreter (TRITON_INTERPRET=1), in a process of its own, or on a GPU.

    TRITON_INTERPRET=1 python stepped.py kda 3 4, lstm 1 20
    python stepped.py kda 3 64

Each check (a spec, tokens, about how long dims are) prints every value's name and its largest
error, against the largest value; `untouched` is 1 where another row of a pool was written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from archc.ir import layer as ir
from archc.ir.plan import examples
from archc.ir.sizes import evaluate
from tests.backends.triton.interpreted import file_of, with_gaps
from tests.backends.triton.memory import guarded

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def calls_of(module: ModuleType, layer: ir.Layer, tokens: int, unit: int) -> list[tuple]:
    """What a layer with dims of about `unit` gives its recurrences, in float64: the functions that
    walk tokens, their captures, and their states."""
    sizes = next(examples(layer, unit))
    known, inputs = {**sizes, "batch": 2, "T": tokens, "T_seen": tokens}, []
    for _, op in layer.inputs:
        shape = [evaluate(axis.size, known) for axis in op.type.axes]
        real = torch.randn(shape, dtype=torch.float64)
        inputs.append(real if op.type.dtype == "real" else torch.randint(0, 4, shape))
    found: list[tuple] = []
    for name in [name for name in vars(module) if name.endswith("_decode")]:
        setattr(module, name, recorder(getattr(module, name), found))
    made = getattr(module, layer.name)(**sizes).double()
    module.by_steps = lambda *given: True
    made(*inputs)
    assert found, "no kernel was asked for"
    return found


def recorder(function: Callable[..., Any], found: list[tuple]) -> Callable[..., Any]:
    """In place of a function: writes down how it is called, and takes the eager loop."""

    def called(*given: Any, into: tuple) -> Any:
        last = max(i for i, x in enumerate(given) if isinstance(x, Tensor)) + 1
        captures, states = given[: last - len(into)], given[last - len(into) : last]
        found.append((function, captures, states, given[last:]))
        return by_the_loop(function, *given, into=into)

    return called


def by_the_loop(function: Callable[..., Any], *given: Any, **options: Any) -> Any:
    """The same by the eager loop."""
    home = function.__globals__
    decide, home["by_steps"] = home["by_steps"], lambda *given: False
    made = function(*given, **options)
    home["by_steps"] = decide
    return made


def on_pools(
    function: Callable[..., Any], captures: tuple, states: tuple, extra: tuple, in_place: bool
) -> None:
    """Print how far a kernel on pools is from the eager loop: random states, in some rows."""
    rows, batch = states[0].shape[0] + 3, states[0].shape[0]
    index, after = torch.randperm(rows)[:batch], torch.randperm(rows)[:batch]
    index[0] = -1 if in_place else index[0]
    pools = [some_states(rows, *s.shape[1:]) for s in states]
    into = None if in_place else [torch.randn_like(p) for p in pools]

    def run(how: Callable[..., Any], change: Callable[[Any], Any]) -> tuple[list, list]:
        own = [change(x).clone() for x in pools]
        other = None if into is None else tuple(change(x).clone() for x in into)
        options = {"index": change(index), "into": other}
        options |= {} if in_place else {"index_after": change(after)}
        made = how(*map(change, captures), *own, *extra, **options)
        return [*made[: len(made) - len(own)]], [*(other or own)]

    results, kept = run(lambda *x, **o: by_the_loop(function, *x, **o), lambda x: x)
    found, written = run(function, small)
    for place, (x, exact) in enumerate(zip([*found, *written], [*results, *kept], strict=True)):
        error = (x.cpu().double() - exact).abs().max() / exact.abs().max().clamp(min=1e-9)
        print(f"{function.__name__} {place}: {float(error):.1e}")
    used = (index if in_place else after).tolist()
    others = [i for i in range(rows) if i not in used]
    before = [small(x) for x in into or pools]
    same = all(torch.equal(a[others], b[others]) for a, b in zip(written, before, strict=True))
    print(f"{function.__name__} untouched: {0.0 if same else 1.0}")


def some_states(*shape: int) -> Tensor:
    """Random states; square ones can be solved."""
    x = torch.randn(shape, dtype=torch.float64)
    return x @ x.mT / shape[-1] if shape[-1] == shape[-2] else x


def small(x: Any) -> Any:
    """A value as the kernel gets it."""
    if not isinstance(x, Tensor):
        return x
    return (x.float() if x.is_floating_point() else x).to(DEVICE)


@torch.no_grad()
def check(spec: str, tokens: int, unit: int) -> None:
    """The recurrences of a layer."""
    layer, module = file_of(spec)
    decide, new = module.by_steps, torch.empty
    calls = calls_of(module, layer, tokens, unit)
    module.by_steps = decide if DEVICE == "cuda" else lambda *given: True
    torch.empty = with_gaps
    with guarded():
        for call in calls:
            for in_place in (True, False):
                on_pools(*call, in_place)
    torch.empty = new


def main(arguments: list[str]) -> None:
    """Every check in turn."""
    for each in " ".join(arguments).split(","):
        spec, *numbers = each.split()
        torch.manual_seed(0)
        print(f"== {each.strip()}")
        check(spec, *map(int, numbers))


if __name__ == "__main__":
    main(sys.argv[1:])

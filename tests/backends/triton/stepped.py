"""Kernels that walk tokens, on pools of states, against the eager loop in float64: under Triton's
interpreter (TRITON_INTERPRET=1), in a process of its own, or on a GPU.

    TRITON_INTERPRET=1 python stepped.py kda 3 4, columns mesa 1 20, train lstm 5 4
    python stepped.py kda 3 64, kda 1 128 bfloat16

Each check (a spec, tokens, about how long dims are, the dtype of what enters) prints every value's
name and its largest error, against the largest value; `untouched` is 1 where another row of a pool
was written.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from archc.backends.load import load
from archc.backends.renamed import arguments
from archc.backends.triton.gluon_columns import SUFFIX
from torch import Tensor

from archc.ir import layer as ir
from archc.ir.plan import examples
from archc.ir.sizes import evaluate
from tests.backends.triton.interpreted import file_of, narrow, run, with_gaps
from tests.backends.triton.memory import guarded
from tests.backends.triton.narrow import rounding
from tests.backends.triton.quick import quick_scans

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def calls_of(module: ModuleType, layer: ir.Layer, tokens: int, unit: int) -> list[tuple]:
    """What a layer with dims of about `unit` gives its recurrences, in float64: the functions that
    walk tokens, their captures, and their states."""
    sizes = next(examples(layer, unit))
    known, inputs = {**sizes, "batch": 2, "T#": tokens, "T_seen#": tokens}, []
    for _, op in layer.inputs:
        shape = [evaluate(axis.size, known) for axis in op.type.axes]
        real = torch.randn(shape, dtype=torch.float64)
        inputs.append(real if op.type.dtype == "real" else torch.randint(0, 4, shape))
    found: list[tuple] = []
    functions = {name: x for name, x in vars(module).items() if name.endswith("_decode")}
    recorders = {name: recorder(function, found) for name, function in functions.items()}
    vars(module).update({**recorders, "by_steps": lambda *given: True})
    getattr(module, layer.name)(**arguments(sizes)).double()(*inputs)
    vars(module).update(functions)
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


SPREAD: list[Callable[[ModuleType], None]] = []
"""What is changed in a file before it is checked."""

NORMALISERS = {"n", "z"}
"""Names of states that others are divided by, in the specs."""

IN_PLACE, ELSEWHERE, BY_ROW = "in place", "elsewhere", "by row"
"""Where states go: into the rows that they came from, into rows of other pools; or no rows said."""


def on_pools(
    function: Callable[..., Any], captures: tuple, states: tuple, extra: tuple, way: str, dtype: str
) -> None:
    """Print how far a kernel on pools is from the eager loop: random states, in some rows."""
    given = [small(x, dtype) for x in captures]
    exact = [x.cpu().double() if is_real(x) else x for x in given]
    rows, batch = states[0].shape[0] + 3, states[0].shape[0]
    index, after = torch.randperm(rows)[:batch], torch.randperm(rows)[:batch]
    index[0] = -1 if way == IN_PLACE else index[0]
    names = [*inspect.signature(function).parameters][len(captures) :]
    pools = [some_states(name, rows, *s.shape[1:]) for name, s in zip(names, states, strict=False)]
    into = [torch.randn_like(p) for p in pools] if way == ELSEWHERE else None

    def run(how: Callable[..., Any], given: list, change: Callable[[Any], Any]) -> tuple:
        own = [change(x).clone() for x in pools]
        other = None if into is None else tuple(change(x).clone() for x in into)
        options = {} if way == BY_ROW else {"index": change(index), "into": other}
        options |= {"index_after": change(after)} if way == ELSEWHERE else {}
        made = how(*given, *own, *extra, **options)
        return [*made[: len(made) - len(own)]], [*(other or own)]

    results, kept = run(lambda *x, **o: by_the_loop(function, *x, **o), exact, lambda x: x)
    if DEVICE == "cuda":  # a call like one before is launched at once, of its own tensors
        first = run(function, [x.clone() if is_real(x) else x for x in given], small)
    found, written = run(function, given, small)
    for place, (x, y) in enumerate(zip([*found, *written], [*results, *kept], strict=True)):
        assert x.shape == y.shape
        if not y.numel():
            continue  # there was no token
        error = (x.cpu().double() - y).abs().max() / y.abs().max().clamp(min=1e-9)
        print(f"{function.__name__} {place}: {float(error):.1e}")
    used = {IN_PLACE: index, ELSEWHERE: after, BY_ROW: torch.arange(batch)}[way].tolist()
    others = [i for i in range(rows) if i not in used]
    before = [small(x) for x in into or pools]
    same = all(torch.equal(a[others], b[others]) for a, b in zip(written, before, strict=True))
    print(f"{function.__name__} untouched: {0.0 if same else 1.0}")
    if DEVICE == "cuda":
        pairs = zip([*first[0], *first[1]], [*found, *written], strict=True)
        again = all(torch.equal(a, b) and a is not b for a, b in pairs)
        print(f"{function.__name__} again: {0.0 if again else 1.0}")


def some_states(name: str, *shape: int) -> Tensor:
    """Random states; square ones can be solved, and normalisers are sums of positive weights."""
    x = torch.randn(shape, dtype=torch.float64)
    x = x.abs() + 0.1 if name in NORMALISERS else x
    return x @ x.mT / shape[-1] if shape[-1] == shape[-2] else x


def small(x: Any, dtype: str = "float32") -> Any:
    """A value as the kernel gets it."""
    if not isinstance(x, Tensor):
        return x
    return x.to(DEVICE, getattr(torch, dtype) if is_real(x) else x.dtype)


def is_real(x: Any) -> bool:
    """Whether a value is a tensor of reals."""
    return isinstance(x, Tensor) and x.is_floating_point()


@torch.no_grad()
def check(spec: str, tokens: int, unit: int, dtype: str = "float32") -> None:
    """The recurrences of a layer."""
    layer, module = file_of(spec)
    for change in SPREAD:
        change(module)
    decide, new = module.by_steps, torch.empty
    calls = calls_of(module, layer, tokens, unit)
    module.by_steps = decide if DEVICE == "cuda" else lambda *given: True
    torch.empty = with_gaps
    with guarded(), rounding(), quick_scans():
        for call in calls:
            for way in (IN_PLACE, ELSEWHERE, BY_ROW):
                on_pools(*call, way, dtype)
    module.by_steps, torch.empty = decide, new


def check_training(spec: str, tokens: int, unit: int) -> None:
    """Outputs and gradients of a layer whose recurrence has no chunked form."""
    layer, module = file_of(spec)
    for change in SPREAD:
        change(module)
    sizes = next(examples(layer, unit))
    known = {**sizes, "batch": 2, "T#": tokens, "T_seen#": tokens}
    inputs = {
        op.name: torch.randn([evaluate(a.size, known) for a in op.type.axes], dtype=torch.float64)
        for _, op in layer.inputs
    }
    exact, decide, new = (
        getattr(module, layer.name)(**arguments(sizes)).double(),
        module.on_gpu,
        torch.empty,
    )
    module.on_gpu = lambda *given: False
    wanted = run(exact, inputs, [*exact.named_parameters()])
    module.on_gpu, torch.empty = (decide if DEVICE == "cuda" else lambda *given: True), with_gaps
    made = getattr(module, layer.name)(**arguments(sizes))
    made.load_state_dict(narrow(exact.state_dict()))
    made = made.to(DEVICE)
    with guarded(), quick_scans():
        found = run(made, {n: small(x) for n, x in inputs.items()}, [*made.named_parameters()])
    assert any("Learning" in type(node).__name__ for node in nodes_of(made, inputs))
    module.on_gpu, torch.empty = decide, new
    for name, x in wanted.items():
        # some gradients are 0, as nothing changes when both a state and its normaliser are scaled
        error = (found[name].cpu().double() - x).abs().max() / x.abs().max().clamp(min=1e-2)
        print(f"{name}: {float(error):.1e}")


def nodes_of(made: Callable[..., Tensor], inputs: dict[str, Tensor]) -> list[Any]:
    """What autograd goes through behind a layer's outputs."""
    y = made(*map(small, inputs.values()))  # a node lives as long as what it made
    found, waiting = list[Any](), [x.grad_fn for x in (y if isinstance(y, tuple) else (y,))]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in found:
            found.append(node)
            waiting += [next_ for next_, _ in node.next_functions]
    return found


def spread(module: ModuleType) -> None:
    """Let the file spread its cells over a GPU, of which one program is all: Triton's interpreter
    runs programs one by one."""
    vars(module)["step_fits"] = lambda *given: False
    vars(module)["grid_split"] = lambda batch, heads, dim, *given: (16, 16, 2, 16)


WITHOUT_LAYOUTS = """
from archc.runtime.jit import kernel
from archc.runtime.optional import tl
from archc.runtime.tiles import grid_place, load_tile, log_1_plus_exp, logistic, store_tile

@kernel
def as_rows(x):
    return x

"""


def by_columns(module: ModuleType) -> None:
    """Let a system be solved by the kernel of Gluon, written as one of Triton: layouts change no
    number."""
    (name,) = (name for name in vars(module) if name.endswith(SUFFIX))
    lines = inspect.getsource(vars(module)[name].fn).splitlines()
    kept = [line for line in lines if not line.lstrip().startswith(("@", "of_"))]
    text = "\n".join(kept).replace("gl.convert_layout(", "as_rows(")
    text = re.sub(r", of_(tiles|vectors|columns|rows)", "", re.sub(r"\bgl\.", "tl.", text))
    made = load(f"{WITHOUT_LAYOUTS}@kernel\n{text}\n", f"{name}_of_triton")
    vars(module).update({name: getattr(made, name), "are_in_columns": lambda *states: True})


CHANGES = {"spread": spread, "columns": by_columns}


def main(arguments: list[str]) -> None:
    """Every check in turn."""
    for each in " ".join(arguments).split(","):
        words = each.split()
        SPREAD[:] = [CHANGES[words[0]]] if words[0] in CHANGES else []
        words = words[len(SPREAD) :]
        training = words[0] == "train"
        torch.manual_seed(0)
        print(f"== {each.strip()}")
        spec, *numbers = words[training:]
        given = [int(each) if each.isdigit() else each for each in numbers]
        (check_training if training else check)(spec, *given)


if __name__ == "__main__":
    main(sys.argv[1:])

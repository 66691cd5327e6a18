"""Kernels against the eager form in float64, under Triton's interpreter: a process of its own, as
the interpreter is chosen when Triton is imported.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted layer kda 70 4
    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted gates gla 64 60 60
    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted wide mesa 200 200

Every address is checked, see `memory.py`. Each check prints every value's name and its largest
error, against the largest value. Several can be named one after the other, with a `,` between.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from itertools import accumulate
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from archc.backends.eager.emit import Code
from archc.backends.load import load
from archc.backends.renamed import arguments
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import archc
from archc.compile import in_kernels, lowered, whole_in_kernels
from archc.ir import layer as ir
from archc.ir.plan import Plan, examples
from archc.ir.sizes import evaluate
from tests.backends.triton.memory import guarded
from tests.backends.triton.narrow import rounding
from tests.backends.triton.quick import quick_scans
from tests.backends.triton.texts import layer_text
from tests.gpu.cases import Case
from tests.gpu.measure import measure

Named = dict[str, Tensor]

UNUSED: Any = {"allow_unused": True, "materialize_grads": True}
"""Gradients of what nothing depends on are zeros."""

DEPTH = 4
"""Of how many layers a model is: all kinds of its layers are among the first ones."""


def with_gaps(*shape: int, **kind: Any) -> Tensor:
    """New memory: what stands there is no number."""
    made = torch.zeros(*shape, **kind)
    return made.fill_(torch.nan) if made.is_floating_point() else made


def file_of(
    spec: str, written: Callable[[Plan], Code] = whole_in_kernels
) -> tuple[ir.Layer, ModuleType]:
    """A layer, and its file; models have fewer layers here."""
    given = {arg.name for arg in archc.load(spec).layer.args}
    layer = lowered(archc.load(spec, **{"L": DEPTH} if "L" in given else {}).layer)
    return layer, load(layer_text(layer, written), spec)


def run(make: Callable[..., Any], inputs: Named, parameters: Sequence[tuple[str, Tensor]]) -> Named:
    """The outputs, and the gradients of everything real for one sum of the outputs."""
    inputs = {n: x.requires_grad_() if x.is_floating_point() else x for n, x in inputs.items()}
    made = make(*inputs.values())
    outputs = made if isinstance(made, tuple) else (made,)
    found = {f"output {i}": y.detach() for i, y in enumerate(outputs)}
    torch.manual_seed(1)
    loss = sum((y * torch.randn(y.shape, dtype=torch.float64).to(y)).sum() for y in outputs)
    values = [*((n, x) for n, x in inputs.items() if x.requires_grad), *parameters]
    gradients = torch.autograd.grad(loss, [x for _, x in values], allow_unused=True)
    pairs = zip(values, gradients, strict=True)
    return found | {f"d {name}": d for (name, _), d in pairs if d is not None}


def narrow(values: Named, dtype: torch.dtype = torch.float32) -> Named:
    """Real numbers in float32, or in another dtype."""
    return {n: x.detach().to(dtype) if x.is_floating_point() else x for n, x in values.items()}


NEW = torch.empty


def as_told(module: ModuleType, close: float) -> dict[str, Any]:
    """The ops of a module; called, each is held against what it tells of its results, and
    against that which keeps nothing for a gradient, to within `close`."""

    def held(op: Any) -> Callable[..., Any]:
        @wraps(op)
        def call(*given: Any) -> Any:
            made = op(*given)
            with patch.object(torch, "empty", NEW), FakeTensorMode() as mode, torch.no_grad():
                like = op(*(mode.from_tensor(x) if isinstance(x, Tensor) else x for x in given))
            for x, told in zip(made, like, strict=True):
                have, want = ((y.shape, y.dtype, y.stride()) for y in (x, told))
                assert have == want, f"{op}: {have}, and not {want}"
            other = getattr(module, f"{op.op._opname}_inference_op", None)
            for x, same in zip(made, () if other is None else other(*given), strict=False):
                torch.testing.assert_close(x, same, rtol=close, atol=close)
            return made

        return call

    return {name: held(op) for name, op in vars(module).items() if name.endswith("_op")}


def in_both(module: ModuleType, what: Callable[[bool], Named], close: float = 1e-4) -> None:
    """Print how far values are off when kernels do the work."""
    wanted = what(False)
    decide, new = module.by_kernels, torch.empty
    module.by_kernels, torch.empty = lambda chunk, *given: True, with_gaps
    told = as_told(module, close)
    ops = {name: vars(module)[name] for name in told}
    vars(module).update(told)
    with guarded(), rounding(), quick_scans():
        found = what(True)
    vars(module).update(ops)
    module.by_kernels, torch.empty = decide, new
    print_errors(found, wanted)


def check_layer(spec: str, tokens: int, unit: int, bits: int = 32) -> None:
    """A whole layer, with dims of about `unit`: in float32 against float64, or (16 bits) in
    bfloat16 against the same without kernels, as what a layer rounds before its memory may decide
    by how much that divides."""
    dtype, close = (torch.float32, 1e-4) if bits == 32 else (torch.bfloat16, 5e-2)
    layer, module = file_of(spec)
    sizes = next(examples(layer, unit))
    inputs, known = {}, {**sizes, "batch": 2, "T#": tokens, "T_seen#": tokens}
    for _, op in layer.inputs:
        shape = [evaluate(axis.size, known) for axis in op.type.axes]
        real = torch.randn(shape, dtype=torch.float64)
        inputs[op.name] = real if op.type.dtype == "real" else torch.randint(0, 4, shape)
    exact = getattr(module, layer.name)(**arguments(sizes)).double()
    exact.load_state_dict(narrow(narrow(exact.state_dict(), dtype), torch.float64))
    inputs = narrow(narrow(inputs, dtype), torch.float64)

    def layer_in(kernels: bool) -> Named:
        if not kernels and bits == 32:
            return run(exact, inputs, [*exact.named_parameters()])
        small = getattr(module, layer.name)(**arguments(sizes)).to(dtype)
        small.load_state_dict(narrow(exact.state_dict(), dtype))
        return run(small, narrow(inputs, dtype), [*small.named_parameters()])

    in_both(module, layer_in, close)


@sdpa_kernel(SDPBackend.MATH)
def twice(made: Any, x: Tensor) -> Named:
    """What a layer makes of its input, its gradients, and gradients of one of them; PyTorch has
    these of attention in one of its forms alone."""
    x = x.clone().requires_grad_()
    torch.manual_seed(2)
    returned, state = made(x, return_state=True)
    outputs = returned if isinstance(returned, tuple) else (returned,)
    y = torch.cat([each.flatten() for each in outputs])
    learns = {"x": x, **dict(made.named_parameters())}
    by_kernels = torch.autograd.grad(
        y.square().sum(), [*learns.values()], retain_graph=True, **UNUSED
    )
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    second = torch.autograd.grad(first.square().sum(), [*learns.values()], **UNUSED)
    found = {"y": y, "d x again": first}
    found |= {f"d {n}": d for n, d in zip(learns, by_kernels, strict=True)}
    found |= {f"dd {n}": d for n, d in zip(learns, second, strict=True)}
    kept = {n: s for n, s in zip(state._fields, state, strict=True) if isinstance(s, Tensor)}
    return {n: v.detach() for n, v in {**found, **kept}.items()}


def check_tokens(spec: str, tokens: int, unit: int) -> None:
    """A whole layer whose token regions are done by kernels, and nothing else: values, gradients of
    the input and of every parameter, states, and gradients of gradients."""
    layer, module = file_of(spec)
    sizes = next(examples(layer, unit))
    known = {**sizes, "batch": 2, "T#": tokens, "T_seen#": tokens}
    _, op = layer.inputs[0]
    x = torch.randn([evaluate(axis.size, known) for axis in op.type.axes], dtype=torch.float64)
    exact, small = exact_and_small(layer, module, sizes)
    wanted = twice(exact, x)
    with regions_by_kernels(module):
        found = twice(small, x.float())
    print_errors(found, wanted)


def exact_and_small(
    layer: ir.Layer, module: ModuleType, sizes: Mapping[str, Any]
) -> tuple[nn.Module, nn.Module]:
    """A layer in float64, and in float32 with the same weights, in a module that drops out by
    seeds."""
    drawn_alike(module)
    exact = getattr(module, layer.name)(**arguments(sizes)).double()
    small = getattr(module, layer.name)(**arguments(sizes))
    small.load_state_dict(narrow(exact.state_dict()))
    exact.load_state_dict(narrow(small.state_dict(), torch.float64))
    return exact, small


@contextmanager
def regions_by_kernels(module: ModuleType) -> Iterator[None]:
    """Have the token regions of a file done by kernels, and nothing else."""
    told, calls, new = as_told(module, 1e-4), [], torch.empty
    known = {name: vars(module)[name] for name in (*told, "by_token_kernels")}
    vars(module).update(told)
    module.by_token_kernels = lambda largest, *given: calls.append(largest) is None
    with guarded():
        yield
    vars(module).update(known)
    torch.empty = new
    assert calls, "no region was done by kernels"


def print_errors(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> None:
    """The relative error of each value, on a line of its own."""
    for name, value in wanted.items():
        exact = value.double()
        error = (found[name].double() - exact).abs().max() / exact.abs().max().clamp(min=1e-9)
        print(f"{name}: {float(error):.1e}")


def drawn_alike(module: ModuleType) -> None:
    """Let PyTorch drop what kernels drop that are given the seed."""

    def factor(training: bool, shape: Sequence[int], p: float, like: Tensor) -> Tensor:
        return module.factor_of_seed(module.dropout_seed(training, p, like), shape, p, like)

    module.drawn_factor = factor


def check_drawn(spec: str, tokens: int, unit: int) -> None:
    """A layer with dropout by kernels: how many results differ from call to call, with one seed of
    torch, checkpointed, in one graph and outside of training; and what torch says of its ops."""
    layer, module = file_of(spec)
    sizes = next(examples(layer, unit))
    made = getattr(module, layer.name)(**arguments(sizes))
    x = torch.randn(2, tokens, sizes["d"], requires_grad=True)
    module.by_token_kernels = lambda *given: True
    seen = recorded(module)
    compiled = torch.compile(made, fullgraph=True, backend="aot_eager")

    def results(call: Callable[[Tensor], Tensor], seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        y = call(x)
        return [y.detach(), *torch.autograd.grad(y.sin().sum(), [x, *made.parameters()])]

    def far(found: list[Tensor], wanted: list[Tensor]) -> float:
        return max(float((a - b).abs().max()) for a, b in zip(found, wanted, strict=True))

    with guarded():
        first = results(made, 1)
        print(f"again: {far(results(made, 1), first):.1e}")
        print(f"other: {far(results(made, 2), first):.1e}")
        again = partial(checkpoint, made, use_reentrant=False)
        print(f"checkpointed: {far(results(again, 1), first):.1e}")
        print(f"compiled: {far(results(compiled, 1), first):.1e}")
        for op, given in dict(seen).items():
            told = torch.library.opcheck(op, given, raise_exception=False)
            print(f"{op._opname}: {sum(what != 'SUCCESS' for what in told.values())}")
        made.eval()
        found = results(made, 1)
        module.by_token_kernels = lambda *given: False
        print(f"eval: {far(found, results(made, 2)):.1e}")


def recorded(module: ModuleType) -> list[tuple[Any, tuple]]:
    """The calls of the ops of a module, as they come."""
    seen: list[tuple[Any, tuple]] = []

    def held(call: Any) -> Callable[..., Any]:
        @wraps(call)
        def run(*given: Any) -> Any:
            if not torch.compiler.is_compiling():
                own = [x.detach() if isinstance(x, Tensor) else x for x in given]
                real = [isinstance(x, Tensor) and x.is_floating_point() for x in own]
                pairs = zip(own, real, strict=True)
                seen.append((call.op, tuple(x.requires_grad_() if r else x for x, r in pairs)))
            return call(*given)

        return run

    vars(module).update({n: held(op) for n, op in vars(module).items() if n.endswith("_op")})
    return seen


LENGTHS = (0, 5, 1, 2, 0, 4)
"""Of packed sequences: empty ones, and ones shorter than a convolution."""


def packed_by(made: Any, x: Tensor, starts: Sequence[Tensor], borders: Tensor) -> Named:
    """What a layer makes of packed sequences that are continued, what it keeps of each, and the
    gradients of all that enters."""
    x = x.clone().requires_grad_()
    first = [s.clone().requires_grad_() for s in starts]
    state = made.initial_state(len(borders) - 1, dtype=x.dtype)
    state = type(state)(*first)
    torch.manual_seed(2)
    y, after = made(x, state=state, return_state=True, cu_seqlens=borders)
    results = {"y": y, **{f"{n} after": s for n, s in zip(after._fields, after, strict=True)}}
    torch.manual_seed(1)
    loss = sum(
        (r * torch.randn(r.shape, dtype=torch.float64).to(r)).sum() for r in results.values()
    )
    learns = {"x": x, **dict(zip(after._fields, first, strict=True))}
    learns |= dict(made.named_parameters())
    ds = torch.autograd.grad(loss, [*learns.values()], **UNUSED)
    found = results | {f"d {n}": d for n, d in zip(learns, ds, strict=True)}
    return {n: v.detach() for n, v in found.items()}


def check_packed(spec: str, unit: int) -> None:
    """A whole layer of packed sequences whose token regions are done by kernels, and nothing else:
    values, states, and gradients of the input, of the states and of every parameter."""
    layer, module = file_of(spec)
    sizes = next(examples(layer, unit))
    tokens = sum(LENGTHS)
    known = {**sizes, "batch": 1, "T#": tokens, "T_seen#": tokens}
    _, op = layer.inputs[0]
    x = torch.randn([evaluate(axis.size, known) for axis in op.type.axes]).double()
    exact, small = exact_and_small(layer, module, sizes)
    borders = torch.tensor([0, *accumulate(LENGTHS)])
    starts = [torch.randn(s.shape).double() for s in exact.initial_state(len(LENGTHS))]
    wanted = packed_by(exact, x, starts, borders)
    with regions_by_kernels(module):
        found = packed_by(small, x.float(), [s.float() for s in starts], borders)
    print_errors(found, wanted)


def check_gates(spec: str, chunk: int, K: int = 6, V: int = 20) -> None:
    """A recurrence `spec_memory(q, k, v, log gate, S)` that forgets almost all, and all, in whole
    chunks and one that is cut."""
    _, module = file_of(spec, in_kernels)
    B, T, H = 2, chunk + 22, 2
    q, k, g = (torch.randn(B, T, H, K, dtype=torch.float64) for _ in range(3))
    g = torch.where(g > 1, -1000.0, -g.abs())
    g = torch.where(torch.rand(g.shape) < 0.1, -torch.inf, g)
    v = torch.randn(B, T, H, V, dtype=torch.float64)
    state = torch.randn(B, H, K, V, dtype=torch.float64)
    given = {"q": q, "k": k, "v": v, "g": g, "S": state}

    def memory(*x: Tensor) -> Any:
        return getattr(module, f"{spec}_memory")(*x, chunk)

    in_both(module, lambda kernels: run(memory, narrow(given) if kernels else given, []))


def check_wide(spec: str, K: int, V: int) -> None:
    """The memories of a spec, forward and gradient, with heads of so many dims."""
    case = Case(spec, "float32", 16, H=1, B=1, K=K, V=V, T=20)
    for name, (error, _) in measure(case, "cpu").items():
        print(f"{name}: {error:.1e}")


def main(arguments: list[str]) -> None:
    """Every check in turn."""
    for check in " ".join(arguments).split(","):
        what, spec, *numbers = check.split()
        torch.manual_seed(0)
        print(f"== {check.strip()}")
        checks = {
            "layer": check_layer,
            "tokens": check_tokens,
            "drawn": check_drawn,
            "packed": check_packed,
            "gates": check_gates,
            "wide": check_wide,
        }
        checks[what](spec, *map(int, numbers))


if __name__ == "__main__":
    main(sys.argv[1:])

"""One case by kernels, and the same in float64 without them: relative errors and limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from tests.gpu import memories
from tests.gpu.cases import Case
from tests.gpu.memories import PACKED, Decide, Memory, deciding, never
from tests.gpu.rounded import raised, rounding, solves
from tests.gpu.values import is_gate, values_for

Named = dict[str, Tensor]

FLOAT32 = 1e-4
OUTPUT, GRADIENT, GATE = 0.005, 0.008, 0.02
"""The limits of flash-linear-attention's tests in bfloat16 and float16."""

PEER_LIMITS = {
    ("delta", "o"): 0.006, ("delta", "S"): 0.006, ("mesa", "o"): 0.006,
    ("mesa", "A"): 0.008, ("mesa", "G"): 0.008, ("mesa", "d lam"): 0.015,
}  # fmt: skip
"""Where its tests of a memory have others."""

DIVIDED = {"c", "C", "n"}
"""Names of states that are kept divided by exp(m), where there is an m."""

LARGE = 1 << 16
"""More tokens of heads than these are compared in part."""

BY_STEPS = 128
"""Up to so many tokens the wanted numbers come from the recurrence, token by token."""


NOTHING, CANCELLED = 1e-12, 2.0**-20
"""RMS of what is zero but for roundings of float64, and what float32 may leave of numbers of about
one that cancel: as the gradient of a gate that forgets all, where a step has two vectors."""


def relative(wanted: Tensor, found: Tensor) -> float:
    """RMS of the difference, over that of what is wanted; inf where one is no number. Where nothing
    is wanted, what float32 leaves of it is right."""
    off = torch.where(wanted == found.double(), 0.0, wanted - found.double())
    size = torch.where(wanted.abs() == torch.inf, 0.0, wanted)
    wrong, scale = off.square().mean().sqrt(), size.square().mean().sqrt()
    if scale < NOTHING and wrong < CANCELLED:
        return 0.0
    error = wrong / (scale + 1e-8)
    return float(error) if torch.isfinite(error) else torch.inf


def limit(case: Case, name: str) -> float:
    """The largest error that is right."""
    if case.dtype == "float32":
        return FLOAT32
    if (case.spec, name) in PEER_LIMITS:
        return PEER_LIMITS[case.spec, name]
    if not name.startswith("d "):
        return OUTPUT
    return GATE if is_gate(case.spec, name.removeprefix("d ")) else GRADIENT


def kind_of(case: Case, name: str) -> str:
    """The column of the table that an error stands in."""
    if not name.startswith("d "):
        return "out"
    return "gate" if is_gate(case.spec, name.removeprefix("d ")) else "grad"


@contextmanager
def with_gaps() -> Iterator[None]:
    """New memory holds no numbers before it is written."""
    new = torch.empty

    def made(*shape: int, **kind: Any) -> Tensor:
        memory = new(*shape, **kind)
        with torch.no_grad():  # torch.utils.checkpoint makes an empty leaf
            return memory.fill_(torch.nan if _real(kind) else 1)

    torch.empty = made
    try:
        yield
    finally:
        torch.empty = new


def _real(kind: Mapping[str, Any]) -> bool:
    return kind.get("dtype", torch.float32).is_floating_point


def run(
    memory: Memory, values: Mapping[str, Any], chunk: int | None, narrow: bool = False
) -> Named:
    """Outputs, last states and the gradients of everything real. `d_o` and `d_S` among the values
    are what arrives at them, drawn where they are missing, for `narrow` numbers or others."""
    real = {n: values[n] for n in memory.axes if values[n].is_floating_point()}
    leaves = {n: x.detach().requires_grad_() for n, x in real.items()}
    given = (*memory.axes, *memory.numbers, *({PACKED} & values.keys()))
    made = memory({n: leaves.get(n, values[n]) for n in given}, chunk)
    outputs = dict(zip(["o", *memory.states], made, strict=True))
    drawn = arriving({n: y.detach() for n, y in outputs.items()}, narrow)
    slopes = [values.get(f"d_{n}", drawn[n]).to(y.dtype) for n, y in outputs.items()]
    gradients = torch.autograd.grad(made, list(leaves.values()), slopes, allow_unused=True)
    found = {name: y.detach() for name, y in outputs.items()}
    pairs = zip(leaves, gradients, strict=True)
    return found | {f"d {n}": g for n, g in pairs if g is not None and _finite_start(n, real[n])}


def arriving(outputs: Named, narrow: bool) -> Named:
    """A gradient for each output.

    States that are kept divided by exp(m) get, if numbers are narrow, those of a loss that only
    asks what they stand for: it does not change with m, whatever they are divided by. Any other
    gradient of m goes to the one token that m is the maximum of, and that is another token as soon
    as rounding turns two of them around: no limit could tell that from a wrong kernel."""
    found = {name: _arriving(name, y) for name, y in outputs.items()}
    if narrow and "m" in outputs:
        found["m"] = _without_maximum(outputs, found)
    return found


def _without_maximum(outputs: Named, slopes: Named) -> Tensor:
    """The gradient of m for which that of a common factor exp(-m) of the other sums is none."""
    shape = outputs["m"].shape
    parts = [outputs[n] * slopes[n] for n in sorted(DIVIDED & outputs.keys())]
    return torch.stack([x.reshape(*shape, -1).sum(-1) for x in parts]).sum(0)


def _arriving(name: str, like: Tensor) -> Tensor:
    """The gradient of an output; one that bfloat16 and float16 hold."""
    random = torch.Generator(like.device).manual_seed(7)
    made = torch.randn(like.shape, generator=random, device=like.device)
    return (made.to(torch.bfloat16) if name == "o" else made).to(like.dtype)


def _finite_start(name: str, x: Tensor) -> bool:
    """A maximum of nothing is -inf, and has no gradient."""
    return name != "m" or bool(torch.isfinite(x).all())


def _wide(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values in float64."""
    real = {n for n, x in values.items() if isinstance(x, Tensor) and x.is_floating_point()}
    return {n: x.double() if n in real else x for n, x in values.items()}


def exact(memory: Memory, case: Case, values: Mapping[str, Any]) -> Named:
    """The same in float64 without kernels."""
    wide = _wide(values)
    with deciding(memory, never):
        by_steps = case.T <= BY_STEPS or not memory.chunked
        return run(memory, wide, None if by_steps else 64, is_narrow(case))


@contextmanager
def _watched(device: str) -> Iterator[None]:
    """Under Triton's interpreter kernels touch what is theirs, and round as a GPU does."""
    if device != "cpu":
        yield
        return
    from tests.backends.triton.memory import guarded
    from tests.backends.triton.narrow import rounding
    from tests.backends.triton.quick import quick_scans

    with guarded(), rounding(), quick_scans():
        yield


def launched(
    memory: Memory, case: Case, values: Mapping[str, Any], device: str, training: bool = True
) -> Named:
    """The same by kernels, or an AssertionError where they are not taken; where nothing learns,
    only what comes out."""
    taken: list[bool] = []

    def told(own: Decide) -> Decide:
        def decide(*given: Any) -> bool:
            by_kernels = device == "cpu" or own(*given)
            if all(x.numel() for x in given if isinstance(x, Tensor)):  # else there is no work
                taken.append(by_kernels)
            return by_kernels

        return decide

    with deciding(memory, told), with_gaps(), _watched(device):
        if training:
            found = run(memory, values, case.chunk, is_narrow(case))
        else:
            with torch.no_grad():
                made = memory(values, case.chunk)
            found = dict(zip(["o", *memory.states], made, strict=True))
    few = case.T < 16 if memory.chunked else case.packed > 0
    assert few or (taken and all(taken)), "kernels were not taken"
    return found


def is_narrow(case: Case) -> bool:
    """Whether values have 16 bits."""
    return case.dtype != "float32"


def is_large(case: Case) -> bool:
    """Whether float64 is asked for a part of the work only: one sequence, one head of it."""
    return case.B * case.T * case.H > LARGE


OUTPUTS = {3: ("B", "T", "D"), 4: ("B", "T", "H", "V"), 5: ("B", "T", "N", "H", "V")}
"""The axes of what comes out at every token, by their number."""


def part_of(memory: Memory, given: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to the last head of the last sequence; no gradient of what all of them share."""
    found = dict(given)
    for name, value in given.items():
        if not isinstance(value, Tensor):
            continue
        axes = memory.axes.get(name[2:] if name[:2] in ("d ", "d_") else name)
        axes = OUTPUTS[value.dim()] if axes is None else axes
        for axis in {"B", "H"} & {*axes}:
            at = axes.index(axis)
            found[name] = found[name].narrow(at, value.shape[at] - 1, 1)
        if name.startswith("d ") and "B" not in axes:
            del found[name]
    return found


def costs(memory: Memory, case: Case, values: Mapping[str, Any], wanted: Named) -> dict[str, float]:
    """The errors of the eager chunked form that does products as narrow as the data are."""
    wide = _wide(values)
    with deciding(memory, never), rounding(memory.module, getattr(torch, case.dtype)):
        found = run(memory, wide, case.chunk, narrow=True)
    return {name: relative(value, found[name]) for name, value in wanted.items()}


def limited(
    memory: Memory, case: Case, values: Mapping[str, Any], wanted: Named, found: Named
) -> dict[str, tuple[float, float]]:
    """The errors of what was found, and their limits. Where a memory that solves equations does not
    keep one in 16 bits, it is looked at what rounding the operands of products costs any chunked
    form."""
    errors = {n: (relative(wanted[n], value), limit(case, n)) for n, value in found.items()}
    over = any(not error < most for error, most in errors.values())
    if not over or not is_narrow(case) or not solves(memory):
        return errors
    cost = costs(memory, case, values, wanted)
    return {name: (error, raised(most, cost[name])) for name, (error, most) in errors.items()}


def measure(case: Case, device: str, inference: bool = False) -> dict[str, tuple[float, float]]:
    """The errors of a case and their limits, by `kind memory: name`; with `inference`, those of
    what comes out where nothing learns too."""
    errors: dict[str, tuple[float, float]] = {}
    for memory in memories.memories(case.spec):
        values = values_for(memory, case, device)
        found = launched(memory, case, values, device)
        if is_large(case):
            outputs = ("o", *memory.states)
            made = arriving({name: found[name] for name in outputs}, is_narrow(case))
            values |= {f"d_{name}": slope for name, slope in made.items()}
            values, found = part_of(memory, values), part_of(memory, found)
        wanted = exact(memory, case, values)
        wanted = {n: x for n, x in wanted.items() if n in found} if is_large(case) else wanted
        assert found.keys() == wanted.keys(), f"{sorted(found)} but {sorted(wanted)}"
        for name, pair in limited(memory, case, values, wanted, found).items():
            errors[f"{kind_of(case, name)} {memory.name}: {name}"] = pair
        if inference and not is_large(case):
            made = launched(memory, case, values, device, training=False)
            for name, pair in limited(memory, case, values, wanted, made).items():
                errors[f"out {memory.name}: {name} in inference"] = pair
    return errors


def repeats(case: Case, device: str) -> bool:
    """Whether two runs give the same bits."""
    for memory in memories.memories(case.spec):
        values = values_for(memory, case, device)
        one, other = (launched(memory, case, values, device) for _ in range(2))
        if not all(torch.equal(one[name], other[name]) for name in one):
            return False
    return True

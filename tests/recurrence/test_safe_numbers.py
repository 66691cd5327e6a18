"""Float32 chunks stay near the float64 loop, whatever the gates: 0, tiny, huge, closed, mixed."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import archc

GATES = (0.0, -1e-3, -1.0, -20.0, -1000.0, -torch.inf)
"""Log gates; every one of them, and mixtures, is an element of one batch."""

SIZES = {"H": 1, "K": 4, "V": 3, "D": 3, "N": 2, "n": 2}
NEAR = 1e-4


def mixed(shape: list[int], generator: torch.Generator, rare: float) -> Tensor:
    """Log gates of all kinds side by side; `rare`: how seldom one closes wholly."""
    choice = torch.randint(0, len(GATES), shape, generator=generator)
    found = torch.tensor(GATES)[choice]
    closed = torch.rand(shape, generator=generator) < rare
    mild = -torch.rand(shape, generator=generator) * 0.05
    return torch.where(closed, found, mild) if rare < 1 else found


def gates(shape: list[int], generator: torch.Generator) -> Tensor:
    """[batch, t, ...]: the elements of the batch are each gate alone, and three mixtures."""
    rest = shape[1:]
    parts = [torch.full(rest, gate) for gate in GATES]
    parts += [mixed(rest, generator, rare) for rare in (1.0, 0.1, 0.002)]
    return torch.stack(parts)


BATCH = len(GATES) + 3


@dataclass(frozen=True)
class Case:
    """A bundled memory: shapes of its arguments, those that are log gates, and how others lie."""

    spec: str
    shapes: dict[str, str]
    logs: tuple[str, ...]
    made: dict[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    fixed: dict[str, Any] = field(default_factory=dict)
    given: dict[str, Any] = field(default_factory=dict)


def unit(x: Tensor) -> Tensor:
    return torch.nn.functional.normalize(x, dim=-1)


def half(x: Tensor) -> Tensor:
    """Within (0, 1)."""
    return x.sigmoid()


KEYS = {"q": "HK", "k": "HK", "v": "HV"}

CASES = [
    Case("gla", {**KEYS, "log_alpha": "HK"}, ("log_alpha",)),
    Case("kda", {**KEYS, "log_alpha": "HK", "beta": "H"}, ("log_alpha",),
         {"k": unit, "beta": half}),
    Case("gated_delta", {**KEYS, "log_alpha": "H", "beta": "H"}, ("log_alpha",),
         {"k": unit, "beta": half}),
    Case("gated_delta_product", {"q": "HK", "k": "nHK", "v": "nHV", "log_alpha": "H",
                                 "beta": "nH"}, ("log_alpha",), {"k": unit, "beta": half}),
    Case("rwkv7", {"r": "HK", "v": "HK", "log_w": "HK", "a": "HK", "kappa": "HK", "k": "HK"},
         ("log_w",), {"a": half, "kappa": unit}),
    Case("mlstm", {**KEYS, "li": "H", "lf": "H"}, ("lf",),
         {"q": torch.abs, "k": torch.abs, "li": lambda x: 5 * x}),  # no division by nearly 0
    Case("mamba", {"u": "D", "dt": "D", "log_a": "DN", "b": "N", "c": "N"}, ("log_a",)),
    Case("mesa", {"q": "HK", "k": "HK", "v": "HK", "beta": "H", "log_gamma": "H"}, ("log_gamma",),
         {"q": unit, "k": unit, "beta": half}, {"lam": "HK"}, {"steps": 30}),
]  # fmt: skip


def shape_of(dims: str) -> list[int]:
    return [SIZES[name] for name in dims]


def arguments(case: Case, tokens: int) -> dict[str, Tensor]:
    """Values in float32."""
    generator, found = torch.Generator().manual_seed(0), dict[str, Tensor]()
    for name, dims in case.shapes.items():
        shape = [BATCH, tokens, *shape_of(dims)]
        made = case.made.get(name, lambda x: x)
        if name in case.logs:
            found[name] = gates(shape, generator)
        else:
            found[name] = made(torch.randn(shape, generator=generator))
    for name, dims in case.fixed.items():
        found[name] = torch.rand(shape_of(dims), generator=generator)
    return found


def run(op: Callable[..., Any], case: Case, given: Mapping[str, Tensor], chunk: int | None) -> Any:
    """Output, final states, and gradients of a weighted sum of both."""
    leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
    o, state = op(**leaves, **case.given, chunk=chunk)
    made = {"o": o, **{f"state {i}": x for i, x in enumerate(state) if x.is_floating_point()}}
    generator, total = torch.Generator().manual_seed(1), 0.0
    for x in made.values():
        weights = torch.randn(x.shape, generator=generator).to(x.dtype)
        total = total + (weights * torch.where(x.isfinite(), x, 0.0)).sum()
    found = torch.autograd.grad(total, list(leaves.values()))
    return made, dict(zip(leaves, found, strict=True))


def error(found: Tensor, wanted: Tensor, floor: Tensor) -> float:
    """The largest difference, relative to the largest value of the same element of the batch or,
    where that is larger, to `floor`."""
    if found.shape[0] != BATCH:
        found, wanted, floor = found[None], wanted[None], floor.max()[None]
    same = found.double() == wanted
    assert (found.isfinite() | same).all(), "a number is not finite"
    difference = torch.where(same, 0.0, (found.double() - wanted).abs()).flatten(1).amax(1)
    size = torch.where(wanted.isfinite(), wanted, 0.0).abs().flatten(1).amax(1)
    return float((difference / torch.maximum(size, floor)).max().detach())


def check(case: Case, tokens: int, report: dict[str, float] | None = None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", archc.ArchWarning)  # it must have a chunked form
        op = archc.load(case.spec).op
    given = arguments(case, tokens)
    exact, slopes = run(op, case, {name: x.double() for name, x in given.items()}, None)
    made, found = run(op, case, given, 64)
    report = {} if report is None else report
    for name, x in made.items():
        report[name] = error(x, exact[name], torch.full((BATCH,), 1e-6, dtype=torch.float64))
    along = [g.flatten(1).abs().amax(1) for g in slopes.values() if g.shape[0] == BATCH]
    floor = 1e-2 * torch.stack(along).amax(0)
    for name, g in found.items():
        report[f"d {name}"] = error(g, slopes[name], floor)
    assert max(report.values()) < NEAR, report


ALIKE = ("gated_delta", "gated_delta_product")
"""Memories whose gates others have with all that these have."""


@pytest.mark.default("gla", "kda", "mamba")
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.spec, marks=[pytest.mark.slow] * (case.spec in ALIKE))
        for case in CASES
    ],
)
def test_float32_in_chunks_is_near_the_loop_in_float64(case: Case) -> None:
    check(case, 700)


def test_a_gate_that_is_closed_has_no_gradient() -> None:
    """Of RWKV-7, whose keys for removal differ from those for writing, beside a plain loop over
    exp(log_w): 0 where nothing passes, and what all others get is that of the loop."""
    (case,) = (case for case in CASES if case.spec == "rwkv7")
    given = {name: x[-3:].double() for name, x in arguments(case, 20).items()}
    given["log_w"][:, 5] = -torch.inf  # every channel at once
    op, made, slopes = archc.load("rwkv7").op, [], []
    for chunk in (16, None, 0):
        leaves = {name: x.clone().requires_grad_() for name, x in given.items()}
        o = op(**leaves, chunk=chunk)[0] if chunk != 0 else plain(**leaves)
        made.append(o)
        slopes.append(torch.autograd.grad((o * o.detach().cos()).sum(), list(leaves.values())))
    closed = given["log_w"] == -torch.inf
    for o, found in zip(made[:2], slopes, strict=False):
        torch.testing.assert_close(o, made[2])
        torch.testing.assert_close(found, slopes[2])
        assert (found[2][closed] == 0).all()


def plain(r: Tensor, v: Tensor, log_w: Tensor, a: Tensor, kappa: Tensor, k: Tensor) -> Tensor:
    """The memory of RWKV-7, token by token, in whatever dtype its arguments have."""
    state, rows = torch.zeros(*v.shape[:1], *v.shape[2:], k.shape[-1]).to(v), []
    for t in range(v.shape[1]):
        removed = torch.einsum("bhvk,bhk->bhv", state, kappa[:, t])
        state = state * log_w[:, t, :, None].exp() + (
            v[:, t, ..., None] * k[:, t, :, None] - removed[..., None] * (a * kappa)[:, t, :, None]
        )
        rows.append(torch.einsum("bhvk,bhk->bhv", state, r[:, t]))
    return torch.stack(rows, 1)


LONG = 16_384
"""Tokens for which the loops in float64 take from some seconds to a minute."""


def test_a_sequence_of_many_chunks() -> None:
    check(next(case for case in CASES if case.spec == "gla"), LONG // 8)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.spec)
def test_a_long_sequence(case: Case) -> None:
    check(case, LONG)

"""Recurrences token by token as tile programs: right in float64, beside what their graphs mean."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from archc.backends.triton.printer import to_triton
from torch import Tensor

import archc
from archc.compile import lowered
from archc.ir.refusal import Refusal
from archc.lowering.one_token import OneToken
from archc.lowering.step_rules import by_rows, conjugate_gradients
from archc.lowering.steps import stepping
from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.language import Load, Store, While, statements
from archc.tile.resources import Launch as Resources
from tests.few import but
from tests.lowering.stepped import Launch, Walk, kernels_in, walks, walks_of
from tests.tile.cases import Case

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "lstm", "mamba", "mesa", "mlstm", "mom", "rwkv7", "slstm", "ssm",
    "ssm_selective",
)  # fmt: skip
"""Every bundled spec with a recurrence, but for those that call another's."""

CELLS = Path(__file__).parents[1] / "backends" / "triton" / "cells"

LIMIT = {"mesa": 1e-6}
"""What conjugate gradients leave; 1e-10 where nothing is said."""


def wrong(spec: str, unit: int, tokens: int, in_place: bool) -> list[float]:
    torch.manual_seed(0)
    limit = LIMIT.get(spec, 1e-10)
    errors = [Launch(walk, tokens, in_place).error() for walk in walks(spec, unit)]
    assert errors
    return [error for error in errors if not error < limit]


@pytest.mark.default("gla", "mesa", "lstm", "gated_delta_product", "mom")
@pytest.mark.parametrize("spec", SPECS)
def test_every_bundled_recurrence(spec: str) -> None:
    """One token, in place, and three that go elsewhere; dims that no block divides."""
    assert not wrong(spec, 5, 1, in_place=True)
    assert not wrong(spec, 5 if spec == "mesa" else 60, 3, in_place=False)


ALIKE = ("feeding", "momentum", "perceptron", "rearranged", "saturating", "signed", "tired")
"""Cells whose steps are of the kinds that the others have."""


@pytest.mark.default("behind_a_norm", "few_rows", "looked_up")
@pytest.mark.parametrize(
    "cell",
    but(sorted(CELLS.glob("*.arch")), [CELLS / f"{name}.arch" for name in ALIKE]),
    ids=lambda path: path.stem,
)
def test_every_other_cell(cell: Path) -> None:
    assert not wrong(str(cell), 5, 3, in_place=False)


def test_whole_powers_are_products_of_numbers() -> None:
    """`h ** 3` has no function of its own, and 1 is no integer that is cast at every token."""
    powers = CELLS.with_name("unusual") / "powers.arch"
    (walk,) = (each for each in walks(str(powers), 4) if not each.learns)
    text = to_triton(Launch(walk, 1, False).made.program)
    assert "h * h * h" in text and "tl.cast(1, tl.float32)" not in text


ODD = """
layer Odd(d, H, program, p):
    input x[d]
    param W_tl[d, H, program]; W_at[d, H, p]; W_slot[d, H]
    tl = x @ W_tl
    at_H = x @ W_at
    slot = sigmoid(x @ W_slot)
    chunk: sequential
    recurrence step[program, p] over H:
        step[t] = tanh(slot * step[t-1] + tl @ at_H.T)
        part = step[t].T @ tl
    output part
"""


def test_no_name_of_a_spec_is_another_one_of_a_program() -> None:
    """Sizes, values and dims that are called as words of programs are."""
    torch.manual_seed(0)
    layer = lowered(archc.parse(ODD).layer)
    made = [Launch(walk, 2, False) for walk in walks_of(layer, kernels_in(layer), 5)]
    assert len(made) == 3 and all(launch.error() < 1e-10 for launch in made)
    for launch in made:
        (function,) = ast.parse(to_triton(launch.made.program)).body
        assert isinstance(function, ast.FunctionDef)
        names = [argument.arg for argument in function.args.args]
        assert len({*names}) == len(names) and not {"tl", "program", "triton"} & {*names}


@pytest.mark.parametrize("in_place", [True, False])
def test_one_token_alone_reads_a_state_after_the_system_that_another_makes(in_place: bool) -> None:
    """Beside the meaning, in float64; states are stored as soon as they are made."""
    torch.manual_seed(0)
    for unit in (5, 16):
        (walk,) = walks("mesa", unit)
        launch = Launch(walk, 1, in_place, OneToken)
        assert launch.error() < LIMIT["mesa"]
        (turns,) = (s for s in statements(launch.made.program.body) if isinstance(s.op, While))
        kinds = [type(s.op) for s in statements(turns.blocks[0])]
        assert Load not in kinds and Store not in kinds
        body = [*statements(launch.made.program.body)]
        at = body.index(turns)
        states = [s for s in body if isinstance(s.op, Load) and s.op.buffer.rows]
        assert [body.index(s) < at for s in states] == [True, False]


def test_no_token_leaves_states_as_they_are() -> None:
    assert not wrong("lstm", 5, 0, in_place=False)


def solved(A: Tensor, b: Tensor, turns: int) -> Tensor:
    """What conjugate gradients make of a system after some turns."""
    k = Composer("solved", "A z = b.")
    i, j = k.iota("i", 16), k.iota("j", 16)
    a = k.load(k.buffer("A", r=16, c=16, dtype="f64"), i, j)
    right = k.load(k.buffer("b", r=16, dtype="f64"), i)
    z = conjugate_gradients(k, by_rows(a), right, k.lift(turns, "i32"), turns)
    k.store(k.buffer("z", r=16, dtype="f64"), i, value=z)
    tensors = {"A": A, "b": b, "z": torch.full_like(b, torch.nan)}
    run(k.done(), tensors, {}, {}, exact=True)
    return tensors["z"]


def test_conjugate_gradients_end_where_a_system_is_solved() -> None:
    """After as many turns as there are dims; one that is solved stays, also that of nothing."""
    torch.manual_seed(0)
    x, b = torch.randn(16, 16, dtype=torch.float64), torch.randn(16, dtype=torch.float64)
    A = x @ x.mT / 16 + torch.eye(16, dtype=torch.float64)
    exact = torch.linalg.solve(A, b)
    for turns in (16, 40):
        assert (solved(A, b, turns) - exact).abs().max() < 1e-6
    assert torch.equal(solved(A, 0 * b, 3), 0 * b)
    first = b * (b @ b) / (b @ A @ b)
    assert torch.allclose(solved(A, b, 1), first, rtol=1e-12)
    assert torch.equal(solved(A, b, 40), solved(A, b, 80))
    assert solved(A, b / 0, 3).isnan().any()


SKEW = """
layer Skew(H, K):
    input q[H, K], k[H, K], u[H, K]
    recurrence A[K, K'] over H:
        A[t] = 0.5 * A[t-1] + k @ u.T
        o    = solve(A[t] + I, q, iterations = 4)
    output o
"""


@pytest.mark.parametrize("write", ["k @ u.T", "k @ k.T"])
def test_systems_that_conjugate_gradients_may_not_solve_are_no_program(write: str) -> None:
    """Where the matrix is not known to be symmetric and positive definite."""
    layer = lowered(archc.parse(SKEW.replace("k @ u.T", write)).layer)
    (made,) = (stepping(kernel) for kernel, learns in kernels_in(layer) if not learns)
    assert isinstance(made, Refusal) == (write == "k @ u.T")


@pytest.mark.slow
@pytest.mark.parametrize(("spec", "heads", "dim"), [("lstm", 1, 128), ("slstm", 4, 64)])
def test_weights_take_the_shared_memory_that_machine_code_says(
    spec: str, heads: int, dim: int
) -> None:
    pytest.importorskip("triton")
    from tests.tile.compiled import compiled  # Triton is not everywhere

    walk = next(each for each in walks(spec, 4) if not each.learns)
    sizes = {**walk.sizes, "D": dim, "d": heads * dim, "H": heads}
    launch = Launch(Walk(walk.kernel, sizes, False), 1, False)
    program = replace(launch.made.program, warps=8)
    constants = {**launch.numbers(), "IO": "bf16", "DOT": "bf16", "PRECISION": "tf32x3"}
    launch.place()
    tensors = {name: narrow(x) for name, x in launch.tensors.items()}
    made = compiled(Case(program, tensors, launch.sizes(), constants, {}))
    told = Resources(program, {**launch.sizes(), **constants}).on_chip()
    assert told.shared == made.metadata.shared


def narrow(x: Tensor) -> Tensor:
    """Real numbers in bfloat16; integers that index rows in 32 bits."""
    return x.bfloat16() if x.is_floating_point() else x.int()

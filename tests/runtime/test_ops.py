"""What ops of torch do around recurrences in generated files, each function by itself."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from archc.runtime import ops as op

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


def test_chunks_are_no_longer_than_the_tokens() -> None:
    """But for a GPU, where one length has one kernel."""
    x = torch.zeros(1)
    counts = (0, 1, 16, 17, 32, 33, 64, 999)
    found = {tokens: op.rows_of_chunk(64, tokens, x, 16) for tokens in counts}
    assert found == {0: 16, 1: 16, 16: 16, 17: 32, 32: 32, 33: 64, 64: 64, 999: 64}
    assert op.rows_of_chunk(8, 100, x, 16) == 8 and op.rows_of_chunk(1, 100, x, 16) == 1
    gpu: Any = SimpleNamespace(is_cuda=True)
    assert op.rows_of_chunk(64, 3, gpu, 16) == 64
    assert [op.few(n, 16) for n in (1, 15, 16)] == [True, True, False] and not op.in_a_graph(5)


def test_rows_that_fit() -> None:
    """A table by the bytes of a number and the blocks of the sizes, each from its shortest on."""
    table = {(2, 128, 64): 32, (4, 128, 64): 16, (2, 512, 64): 1_000_000}

    def rows(chunk: int, dtype: torch.dtype, K: int, V: int) -> int:
        return op.rows_that_fit("o", table, chunk, dtype, K=(K, 16), V=(V, 64))

    assert rows(64, BF16, 128, 64) == rows(64, BF16, 65, 3) == 32
    assert rows(16, BF16, 128, 64) == 16 and rows(64, F32, 128, 64) == 16
    assert rows(64, BF16, 64, 64) == rows(64, BF16, 128, 65) == 64
    for K in (257, 512, 100_000):
        with pytest.raises(ValueError, match=rf"o: no tile plan fits K = {K}, V = 64 .*1,000,000"):
            rows(64, BF16, K, 64)
    assert rows(64, BF16, 256, 64) == 64


def test_each_of_packed_sequences_alone() -> None:
    """Values along tokens and along chunks, one a sequence, and one of all: given and made."""
    lengths, chunk = [3, 0, 5, 4], 4
    bounds = torch.tensor([0, 3, 3, 8, 12])
    x, state, weight = torch.randn(1, 12, 2), torch.randn(4, 2), torch.randn(2)
    counts = [-(-n // chunk) for n in lengths]
    marks = torch.arange(1.0, 7.0).reshape(1, 6, 1)
    seen: list[list[float]] = []

    def run(x: Tensor, marks: Tensor, state: Tensor, weight: Tensor, number: int) -> tuple:
        assert number == 7 and x.shape[0] == marks.shape[0] == state.shape[0] == 1
        seen.append(marks.flatten().tolist())
        chunks = torch.full((1, marks.shape[1], 2), float(x.shape[1]))
        return x * weight, state + x.sum(1), x.sum((0, 1)), chunks

    given = [x, marks, state, weight, 7]
    y, after, total, chunks = op.each_alone(run, bounds, chunk, given, "tns--", "ts-n")
    assert seen == [[1.0], [], [2.0, 3.0], [4.0]] and sum(counts) == 4
    torch.testing.assert_close(y, x * weight)
    parts = [x[0, a:b].sum(0) for a, b in pairwise(bounds.tolist())]
    torch.testing.assert_close(after, state + torch.stack(parts))
    torch.testing.assert_close(total, x.sum((0, 1)))
    room = (12 + 4 * (chunk - 1)) // chunk
    assert chunks[0, :, 0].tolist() == [3.0, 5.0, 5.0, 4.0] + [0.0] * (room - 4)


def test_results_own_their_memory() -> None:
    """One row after the other, in the dtypes that are asked for; none is another, or was given."""
    x = torch.randn(3, 4)
    made = op.settled((x, x.mT, x[:1]), (x, 5), F32, F32, F64)
    assert [y.dtype for y in made] == [F32, F32, F64] and all(y.is_contiguous() for y in made)
    for y, wanted in zip(made, (x, x.mT, x[:1]), strict=True):
        assert torch.equal(y, wanted.to(y.dtype))
    places = [y.untyped_storage().data_ptr() for y in (x, *made)]
    assert len({*places}) == 4
    y = torch.randn(3)
    one, other = op.settled((y, y), (x,), F32, F32)
    assert one is y and other is not y and other.data_ptr() != y.data_ptr()


def test_values_on_their_way_through_an_op() -> None:
    x, index = torch.randn(2, 3), torch.tensor([1])
    wide, same, number = op.in_dtype(F64, (x, index, 3))
    assert torch.equal(wide, x.double()) and same is index and number == 3
    made = op.flat(2, (x, x, x))
    assert [y.shape for y in made] == [(2, 3), (6,), (6,)]
    assert op.flat(0, (x,))[0] is x
    assert op.or_zero(x, op.result_kind(x)) is x
    zero = op.or_zero(None, op.result_kind(x.double()))
    assert zero.shape == x.shape and zero.dtype == F64 and not zero.any()
    assert op.present(lambda *given: (None, *given, None))(1, 2) == (1, 2)
    assert op.joined([x]) is x and torch.equal(op.joined([x, x]), torch.cat([x, x], 1))


def test_autocast_does_not_reach_into_an_op() -> None:
    run = op.as_op(lambda number, x, y: x @ y)
    x = torch.randn(3, 3)
    with torch.autocast("cpu", BF16):
        assert (x @ x).dtype == BF16 and run(1, x, x).dtype == F32
    assert torch.equal(run(1, x, x), x @ x)


def test_a_gradient_is_called_by_names() -> None:
    """In any order; what has none gets none, what nothing depends on counts as 0, and a kept result
    does not learn. The gradient of `a` goes through `root`, which the op kept."""
    space, arrived = torch.library.Library("archc_by_names", "FRAGMENT"), []

    def forward(a: Tensor, b: Tensor, c: Tensor | None, n: int) -> tuple:
        return n * a.sqrt() * b, a.sum(0), a.sqrt()

    def backward(n: int, d_y: Tensor, d_z: Tensor, root: Tensor, b: Tensor, c: Tensor) -> tuple:
        arrived.append((n, d_z.tolist(), c))
        return n * d_y * root, n * d_y * b / (2 * root) + d_z

    def like(a: Tensor, b: Tensor, *_: Any) -> tuple:
        return torch.empty_like(a), torch.empty_like(a[0]), torch.empty_like(a)

    schema = "backward(int n, d_y, d_z, root, b, Tensor? c) -> (d_b, d_a)"
    gradient = op.new_op(space, schema, backward, "b root", op.no_second_gradient)
    schema = "forward(a, b, Tensor? c, int n) -> (y, z, root)"
    run = op.new_op_with_gradient(space, schema, forward, like, gradient)
    a, b = (torch.rand(3, 2, dtype=F64).add(0.5).requires_grad_() for _ in range(2))
    y, z, root = run(a, b, None, 3)
    assert y.requires_grad and z.requires_grad and not root.requires_grad
    expected = torch.autograd.grad((3 * a.sqrt() * b).sin().sum(), (a, b))
    for one, other in zip(torch.autograd.grad(y.sin().sum(), (a, b)), expected, strict=True):
        torch.testing.assert_close(one, other)
    assert arrived == [(3, [0.0, 0.0], None)]
    assert torch.autograd.gradcheck(lambda a, b: run(a, b, None, 3)[:2], (a, b))
    torch.library.opcheck(torch.ops.archc_by_names.forward.default, (a, b, None, 3))


@pytest.mark.slow
def test_an_op_of_many_tensors_has_them_in_a_list() -> None:
    """torch defines no op of more than 64 arguments."""
    space, count = torch.library.Library("archc_many", "FRAGMENT"), 66
    names = [f"x_{i}" for i in range(count)]

    def forward(n: int, *xs: Tensor) -> Tensor:
        return sum((n + i) * x for i, x in enumerate(xs))  # type: ignore[return-value]

    def keep(ctx: Any, inputs: tuple, output: Any) -> None:
        ctx.n = inputs[0]

    def derive(ctx: Any, d: Tensor) -> tuple:
        return None, *((ctx.n + i) * d for i in range(count))

    schema = f"many(int n, {', '.join(names)}) -> (y)"
    with pytest.raises(RuntimeError, match="arguments"):
        op.new_op(space, schema, forward, "x_0", derive, keep)
    run = op.new_op(space, schema, forward, "x_0", derive, keep, op.in_a_list)
    xs = [torch.randn(3, dtype=F64, requires_grad=True) for _ in names]
    expected = sum((2 + i) * x for i, x in enumerate(xs))
    assert isinstance(expected, Tensor)
    for call in (run, torch.compile(run, backend="aot_eager", fullgraph=True)):
        torch.testing.assert_close(call(2, *xs), expected)
        torch.testing.assert_close(
            torch.autograd.grad(call(2, *xs).sum(), xs[9])[0], 11 + 0 * xs[9]
        )
    torch.library.opcheck(torch.ops.archc_many.many.default, (xs, 2))


SHAPES = "x, y [B, T, 2]; z [T, size]; S [B sequences, _] with size == 2 * T"
FIT = (4, 3, 2), (4, 3, 2), (3, 6), (4, 9)


@pytest.mark.parametrize(
    ("shapes", "sequences", "fits"),
    [
        (FIT, None, True), (((4, 3, 2), (4, 4, 2), *FIT[2:]), None, False),
        (((4, 3, 1), (4, 3, 1), *FIT[2:]), None, False), ((*FIT[:2], (3, 5), FIT[3]), None, False),
        ((*FIT[:3], (4, 9, 1)), None, False), ((*FIT[:3], (5, 9)), None, False),
        ((*FIT[:3], (5, 9)), 5, True), (FIT, 5, False),
    ],
)  # fmt: skip
def test_shapes_that_fit_together(shapes: tuple, sequences: int | None, fits: bool) -> None:
    """Each twice: those that fit are known then."""
    tensors = tuple(torch.empty(shape) for shape in shapes)
    borders = None if sequences is None else torch.arange(sequences + 1)
    known = SHAPES, "T size", lambda T, size: size == 2 * T
    for _ in range(2):
        with nullcontext() if fits else pytest.raises(ValueError, match=r"op: shapes must be x, y"):
            op.check_shapes("op", known, tensors, borders)

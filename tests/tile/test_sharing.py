"""Values that differ in the names of their dims alone are made once, and nothing else changes."""

from __future__ import annotations

import torch
from archc.backends.triton.printer import to_triton

from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.language import Dot, Load, Program, statements
from archc.tile.sharing import alike
from archc.tile.unread import swept
from archc.tile.verifier import verify

ROWS, DIM = 4, 3


def program(written: bool = False) -> Program:
    """y = (w + w) x of weights w = exp(x x.T), which are made twice by other names of their rows.
    `written`: x is doubled in between."""
    k = Composer("scores", "y = 2 exp(x x.T) x.")
    R, C = k.lengths("R", "C")
    x, y = (k.buffer(name, r=R, c=C) for name in "xy")
    i, j, c = k.iota("i", R), k.iota("j", R), k.iota("c", C)
    first = k.apply("exp", k.dot(k.load(x, i, c), k.load(x, j, c)))
    if written:
        k.store(x, i, c, value=2.0 * k.load(x, i, c))
        k.sync()
    o = k.iota("o", R)
    again = k.apply("exp", k.dot(k.load(x, o, c), k.load(x, j, c)))
    k.store(y, i, c, value=k.dot(first + again.along(o="i"), k.load(x, j, c)))
    return k.done()


def counts(made: Program) -> tuple[int, int]:
    """How many loads and products a program has."""
    ops = [s.op for s in statements(swept(made).body)]
    return sum(isinstance(op, Load) for op in ops), sum(isinstance(op, Dot) for op in ops)


def result(made: Program, x: torch.Tensor) -> torch.Tensor:
    assert not verify(made)
    tensors = {"x": x.clone(), "y": torch.full_like(x, torch.nan)}
    run(made, tensors, {}, {"R": ROWS, "C": DIM}, exact=True)
    return tensors["y"]


def test_rows_and_scores_are_made_once() -> None:
    before, made = program(), swept(alike(program()))
    assert (counts(before), counts(made)) == ((5, 3), (1, 2))
    x = torch.randn(ROWS, DIM, dtype=torch.float64)
    torch.testing.assert_close(result(made, x), 2 * (x @ x.T).exp() @ x)


def test_a_place_by_another_name_needs_no_line_of_its_own() -> None:
    """Nor does a mask; its rows are still told from its columns."""
    k = Composer("below", "y = 1 below the diagonal.")
    (R,) = k.lengths("R")
    y = k.buffer("y", r=R, c=R)
    i, j = k.iota("i", R), k.iota("j", R)
    rows, columns = (i // 2).named("piece"), (j // 2).named("piece")
    k.store(y, i, j, value=k.where(rows.equals(columns) & (i > j), 1.0, 0.0))
    text = to_triton(k.done())
    assert "(piece[:, None] == piece[None, :]) & (i_i[:, None] > i_i[None, :])" in text, text
    assert text.count("tl.arange(") == text.count("// 2") == 1


def test_the_transpose_of_a_product_is_another_value() -> None:
    """x y.T of rows and columns is not that of columns and rows, were x and y not the same."""
    k = Composer("two", "y = a b.T + b a.T.")
    (R,) = k.lengths("R")
    a, b, y = (k.buffer(name, r=R, c=R) for name in "aby")
    i, j, c = k.iota("i", R), k.iota("j", R), k.iota("c", R)
    left = k.dot(k.load(a, i, c), k.load(b, j, c))
    right = k.dot(k.load(b, i, c), k.load(a, j, c))
    k.store(y, i, j, value=left + right)
    made = swept(alike(k.done()))
    assert counts(made) == (2, 2)
    one, other = torch.randn(2, ROWS, ROWS, dtype=torch.float64)
    tensors = {"a": one, "b": other, "y": torch.full_like(one, torch.nan)}
    run(made, tensors, {}, {"R": ROWS}, exact=True)
    torch.testing.assert_close(tensors["y"], one @ other.T + other @ one.T)


def test_what_is_written_is_loaded_anew() -> None:
    before, made = program(written=True), swept(alike(program(written=True)))
    assert counts(made)[0] == counts(before)[0]
    x = torch.randn(ROWS, DIM, dtype=torch.float64)
    wanted = ((x @ x.T).exp() + (4 * x @ x.T).exp()) @ (2 * x)
    torch.testing.assert_close(result(made, x), wanted)


def test_branches_do_not_read_each_other() -> None:
    """Of two equal loads in two branches neither stands for the other."""
    k = Composer("branches", "y = x, whichever branch is taken.")
    (R,) = k.lengths("R")
    (n,) = k.sizes("n")
    x, y = k.buffer("x", r=R), k.buffer("y", r=R)
    i, j = k.iota("i", R), k.iota("j", R)
    with k.branch(k.lift(n) > 0) as there:
        there.give(k.load(x, i) * 2.0)
    with k.otherwise(there) as missing:
        missing.give((k.load(x, j) * 2.0).along(j="i"))
    k.store(y, i, value=there.results[0])
    made = swept(alike(k.done()))
    assert counts(made)[0] == 2
    for size in (0, 1):
        tensors = {"x": torch.arange(ROWS) * 1.0, "y": torch.full((ROWS,), torch.nan)}
        run(made, tensors, {"n": size}, {"R": ROWS})
        torch.testing.assert_close(tensors["y"], 2 * tensors["x"])

"""Names of what loops carry, in the text of a program: a turn gives the next one its name at once
where no line after it reads what has the name so far."""

from __future__ import annotations

from archc.backends.triton.printer import to_triton

from archc.tile.compose import Composer


def _turn(late: bool, nested: bool = False) -> list[str]:
    """The lines of a turn that carries two vectors. `late`: the second is made of the first as it
    was, after the next first is made; `nested`: by a value without a line of its own."""
    k = Composer("turns", "y = the sum of both.")
    (N,) = k.lengths("N")
    x, y, c = k.buffer("x", c=N), k.buffer("y", c=N), k.iota("c", N)
    rows = k.load(x, c)
    begin = rows.named("first"), (rows * 2.0).named("second")
    with k.loop(0, 3, *begin, index="n") as turn:
        first, second = turn.carried
        before = first * 3.0 if nested else (first * 3.0).named("before")
        after = (first + second).named("after")
        turn.next(after, (second + (before if nested else first) if late else second + 1.0))
    k.store(y, c, value=turn.results[0] + turn.results[1])
    _, _, lines = to_triton(k.done()).partition("):\n        ")
    return [line.strip() for line in lines.split("\n")]


def test_what_is_read_no_more_is_made_by_its_next_name() -> None:
    assert _turn(late=False)[1:3] == ["first_2 = first_2 + second", "second = second + 1.0"]


def test_what_is_read_later_keeps_its_name_until_all_are_made() -> None:
    end = "first_2, second = after, second + first_2"
    assert _turn(late=True)[1:3] == ["after = first_2 + second", end]


def test_what_a_part_of_a_formula_reads_keeps_its_name() -> None:
    """It is read where the formula stands, and not where the part is made."""
    end = "first_2, second = after, second + first_2 * 3.0"
    assert _turn(late=True, nested=True)[:2] == ["after = first_2 + second", end]

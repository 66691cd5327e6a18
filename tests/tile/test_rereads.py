"""Whether a program reads a buffer again after it has written another one."""

from __future__ import annotations

import pytest

from archc.tile.compose import Composer
from archc.tile.language import AtMost, Program
from archc.tile.rereads import rereads


def program(when: str) -> Program:
    """y = x, and what is read of x `when`: before, after, in a loop with what is written, or after
    it where N is at most 8, or is not."""
    k = Composer("copied", "y = x.")
    (N,) = k.lengths("N")
    x, y, z = (k.buffer(name, c=N) for name in "xyz")
    c = k.iota("c", N)

    def again() -> None:
        k.store(z, c, value=k.load(x, c, apart=True) * 2.0)

    if when == "before":
        again()
    if when == "in a loop":
        with k.loop(0, 2, index="n"):
            again()
            k.store(y, c, value=k.load(z, c))
        return k.done()
    k.store(y, c, value=k.load(x, c))
    if when == "after":
        again()
    if when in ("small", "large"):
        with k.branch(k.at_most(N, 8)) as small:
            if when == "small":
                again()
        with k.otherwise(small):
            if when == "large":
                again()
    return k.done()


@pytest.mark.parametrize(
    ("when", "found"),
    [("before", 0), ("after", None), ("in a loop", None), ("small", None), ("large", 1)],
)
def test_what_is_read_again_is_found(when: str, found: int | None) -> None:
    made = program(when)
    buffers = {buffer.name: buffer for buffer in made.buffers}
    needed = rereads(made, buffers["x"], buffers["y"])
    assert (None if needed is None else len(needed)) == found
    assert all(isinstance(each, AtMost) and str(each.most) == "8" for each in needed or [])

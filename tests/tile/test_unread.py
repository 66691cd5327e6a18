"""What nobody reads goes, and nothing else."""

from __future__ import annotations

import torch

from archc.tile.compose import Composer
from archc.tile.interpreter import run
from archc.tile.language import Dim, For, If, statements
from archc.tile.unread import swept
from archc.tile.verifier import verify


def test_values_loops_and_branches_that_nobody_reads_go() -> None:
    k = Composer("some", "Half of it is read.")
    (n,), (N,) = k.sizes("n"), k.lengths("N")
    k.lengths("UNREAD")
    x, y, z = (k.buffer(name, r=n) for name in "xyz")
    i = k.iota("r", N)
    inside = (i < n,)
    read = k.load(x, i, where=inside).named("read")
    k.load(z, i, where=inside).named("unread")
    zero = k.full(0.0, Dim("r", N))
    with k.loop(0, 3, zero, zero, zero) as turn:
        total, beside, behind = turn.carried
        turn.next(total + read + behind, beside + 2.0, behind + 1.0)
    with k.loop(0, 2, zero) as idle:
        idle.next(idle.carried[0] + read)
    with k.branch(k.lift(n) > 2) as large:
        large.give(read, read + 1.0)
    with k.otherwise(large) as small:
        small.give(zero, zero)
    k.store(y, i, value=turn.results[0] + large.results[1], where=inside)
    program = k.done()
    less = swept(program)
    assert not verify(less)
    assert [buffer.name for buffer in less.buffers] == ["x", "y"] and less.constants == ("N",)
    names = {value.name for s in statements(less.body) for value in s.results}
    assert "read" in names and "unread" not in names
    loops = [s for s in statements(less.body) if isinstance(s.op, For)]
    branches = [s for s in statements(less.body) if isinstance(s.op, If)]
    assert len(loops) == 1 and len(loops[0].results) == 2 and len(branches[0].results) == 1
    given = torch.arange(5.0, dtype=torch.float64)
    found = []
    for each in (program, less):
        tensors = {"x": given, "y": torch.zeros_like(given), "z": given}
        run(each, tensors, {"n": 5}, {"N": 8, "UNREAD": 1}, exact=True)
        found.append(tensors["y"])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], 4 * given + 4)


def test_a_constant_that_a_branch_is_chosen_by_stays() -> None:
    k = Composer("either", "y = 2 x in tf32, and x otherwise.")
    k.precisions("KIND", "UNREAD")
    x, y, i = k.buffer("x", r=4), k.buffer("y", r=4), k.iota("r", 4)
    read = k.load(x, i)
    with k.branch(k.chosen("KIND", "tf32")) as twice:
        twice.give(read * 2.0)
    with k.otherwise(twice) as once:
        once.give(read)
    k.store(y, i, value=twice.results[0])
    assert swept(k.done()).constants == ("KIND",)

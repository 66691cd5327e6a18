"""A group of warps whose weighted sums are a turn late: the scores of a block are multiplied first,
then the block before is weighed, while these become weights.

Its last product waits until the loops are through. All loops carry the sum from one to the next. In
the very first turn the weights of the block before are 0, and stand before the first block: a
number of it that is not finite makes NaN of sums, which would not be finite either.
"""

from __future__ import annotations

from dataclasses import dataclass

from archc.backends.triton.gluon_lines import Shared
from archc.backends.triton.gluon_roles import Roles, Turns
from archc.backends.triton.gluon_warps import Product, Weigher
from archc.backends.triton.spelling import INDENT

from archc.tile import language as lang
from archc.tile.language import Statement, Value


@dataclass
class Late:
    """The product of a loop that is added to what is carried, the value that is, its place, and
    what becomes of that before it is added to."""

    dot: Statement
    carried: Value
    place: int
    chain: list[Statement]


def late_products(found: Roles) -> list[Late] | None:
    """The late product of each loop; None where one has none, or has to be made earlier."""
    known = carried_sums(found)
    if known is None or any(
        _is_needed_early(*each) for each in zip(found.turns, known, strict=True)
    ):
        return None
    return known


def _is_needed_early(turns: Turns, late: Late) -> bool:
    """Whether what is weighed is a factor of scores too, or the first that comes."""
    tile, (first, *_) = late.dot.operands[1], turns.tiles.values()
    dots = [s for s in turns.loop.blocks[0].statements if isinstance(s.op, lang.Dot)]
    return tile is first.results[0] or any(
        tile in dot.operands for dot in dots if dot is not late.dot
    )


def carried_sums(found: Roles) -> list[Late] | None:
    """Of each loop the product that is added to what is carried on alone; None where one has none,
    or does more with the sum."""
    sums = [_carried(found, turns) for turns in found.turns]
    known = [each for each in sums if each is not None]
    if len(known) < len(sums):
        return None
    for first, second, one in zip(found.turns, found.turns[1:], known, strict=False):
        ends = first.loop.results[one.place]
        after = known[found.turns.index(second)]
        if second.loop.operands[2 + after.place] is not ends:
            return None
        read = [s for s in found.body if ends in s.operands]
        if read != [second.loop] or second.loop.operands.count(ends) != 1:
            return None
    return known


def _carried(found: Roles, turns: Turns) -> Late | None:
    block = turns.loop.blocks[0]
    dots = [s for s in block.statements if isinstance(s.op, lang.Dot)]
    adding = [s for s in dots if len(s.operands) == 3]
    if len(adding) != 1 or len(dots) < 2 or block.yields.count(adding[0].results[0]) != 1:
        return None
    (dot,) = adding
    place = block.yields.index(dot.results[0])
    carried = block.arguments[1 + place]
    made, chain = {carried}, list[Statement]()
    for statement in block.statements:
        if made & {*statement.operands} and statement is not dot:
            chain.append(statement)
            made |= {*statement.results}
    plain = all(isinstance(s.op, lang.Apply) for s in chain)
    read = [v for s in block.statements for v in s.operands if dot.results[0] is v]
    if not plain or read or dot.operands[2] not in made or made & {*dot.operands[:2]}:
        return None
    return None if made & {*block.yields} else Late(dot, carried, place, chain)


class LateWeigher(Weigher):
    """The function of a group of warps, of sums that are a turn late."""

    def __init__(self, shared: Shared, late: list[Late]):
        super().__init__(shared)
        self.late = dict(zip((turns.loop for turns in self.roles.turns), late, strict=True))
        self.shared.names |= {each.carried: "late_going" for each in late}
        self.also = [("late_stage", "ring_stage"), ("late_phase", "ring_phase"), ("late_turn", "1")]

    def _loop(self, loop: Statement, needed: set[Value]) -> None:
        late = self.late[loop]
        if loop is self.roles.turns[0].loop:
            self._begin(late, loop)
        super()._loop(loop, needed)
        if loop is self.roles.turns[-1].loop:
            self._finish_late(late, loop)
            self.turns = None

    def _is_handed_on(self, loop: Statement, carried: Value) -> bool:
        return carried is not self.late[loop].carried

    def _begin(self, late: Late, loop: Statement) -> None:
        """The lines before all turns: nothing is to be weighed yet."""
        pair = (self.roles.own, self.roles.walk)
        kind = self._kind(late)
        zeros = f"gl.full({self.shape(pair)}, 0.0, IO, {self.layout(pair)})"
        self.line(f"late_factor = gl.convert_layout({zeros}, {kind})")
        self.line(f"late_sum = {self.name(loop.operands[2 + late.place])}")
        for name in ("late_stage", "late_phase", "late_turn"):
            self.line(f"{name} = 0")

    def _kind(self, late: Late) -> str:
        """How weights lie that are a factor."""
        return f"gl.DotOperandLayout(0, {self.layout(self.roles.dims[late.dot.results[0]])}, 2)"

    def _tile(self, late: Late) -> tuple[str, str]:
        """The ring of what is weighed, and the tile of the turn before."""
        _, ring = self._factors(late.dot)
        return ring, f"{ring}_ring.index(late_stage)"

    def _turn(self, turns: Turns, needed: set[Value]) -> None:
        late = self.late[turns.loop]
        self.turns = turns
        ring, tile = self._tile(late)
        dots = self._begin_turn(turns, [name for name in turns.tiles if name != ring], late.dot)
        for dot in dots:
            self._dot(dot)
        self.line(f"mbarrier.wait({ring}_ready.index(late_stage), late_phase)")
        given = f"late_factor, {tile}, late_sum, is_async=True"
        self.line(f"late_going = warpgroup_mma({given})")
        self.going.append(Product(late.carried, "late_factor", ""))
        self._rest(turns, needed, [s.results[0] for s in (*dots, *late.chain, late.dot)])
        self.line(
            f"late_next = gl.convert_layout({self.name(late.dot.operands[0])}, {self._kind(late)})"
        )
        for statement in late.chain:
            self.let(statement)
        self.line(f"late_sum = {self.name(late.dot.operands[2])}")
        self.line("late_factor = late_next")
        self.line(f"mbarrier.arrive({ring}_free.index(late_stage), count=1, pred=late_turn > 0)")

    def _finish_late(self, late: Late, loop: Statement) -> None:
        """The lines after all turns: the last block is weighed, if there was one."""
        self.turns = self.roles.turn(loop)
        ring, tile = self._tile(late)
        self.line("if late_turn > 0:")
        self.line(f"{INDENT}mbarrier.wait({ring}_ready.index(late_stage), late_phase)")
        self.line(f"{INDENT}late_sum = warpgroup_mma(late_factor, {tile}, late_sum)")
        self.shared.names[loop.results[late.place]] = "late_sum"

"""What of the side owned the copy engine brings, and takes away: factors that are in memory as
tiles are, and results that stand so, through the room of a factor that no product reads any more.

Each group of warps has half of the rows. A tensor ends where a descriptor of it does, so that masks
of its ends are not needed; a tile with any other mask is loaded, or stored, by addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

from archc.backends.triton.gluon_lines import Lines
from archc.backends.triton.gluon_roles import Roles, alike
from archc.backends.triton.spelling import gluon_size

from archc.tile import language as lang
from archc.tile.language import Statement, Value


def note_owned(found: Roles) -> None:
    """Note the factors that are brought, and the room of each result that is taken away."""
    for value in found.held:
        made = found.made[value]
        if isinstance(made.op, lang.Load) and made.op.fill == 0 and _is_whole(found, made, 0):
            found.brought[value] = made
    last = max(n for n, s in enumerate(found.body) if isinstance(s.op, lang.For))
    rooms = [*found.held]
    for statement in found.body[last + 1 :]:
        if isinstance(statement.op, lang.Store) and _is_whole(found, statement, 1) and rooms:
            value = statement.operands[len(statement.op.buffer.axes)]
            alike_rooms = [room for room in rooms if found.dims[room] == found.dims[value]]
            found.taken[statement] = (alike_rooms or rooms)[0]
            rooms.remove(found.taken[statement])


def _is_whole(found: Roles, statement: Statement, values: int) -> bool:
    """Whether a tile is in memory as a block of the rows owned and of whole vectors, that ends
    where the tensor does, or where its rows do, which is noted."""
    buffer = statement.op.buffer
    many = len(buffer.axes)
    index, masks = statement.operands[:many], statement.operands[many + values :]
    along = [found.dims[value] for value in index]
    tiles = [dims for dims in along if dims]
    if buffer.dtype != "IO" or len(along[-1]) != 1 or along[-1] == (found.own,):
        return False
    if tiles != [(found.own,), along[-1]]:
        return False
    ends = list[Value]()
    for mask in masks:
        test = found.made.get(mask)
        if test is None or test.op != lang.Apply("lt"):
            return False
        place, end = test.operands
        axes = zip(buffer.axes, index, strict=True)
        size = next((n for (_, n), value in axes if alike(found, value, place)), None)
        made = found.made.get(end)
        if size is None:
            return False
        if made is None or not isinstance(made.op, lang.Scalar) or made.op.size != size:
            ends.append(end)
            if found.dims[mask] != (found.own,) or found.dims[end] or len(ends) > 1:
                return False
    if ends:
        found.ends[statement] = ends[0]
    return True


def index_of(statement: Statement) -> tuple[Value, ...]:
    """Where a tile stands."""
    return statement.operands[: len(statement.op.buffer.axes)]


def begin_of(found: Roles, statement: Statement) -> Value | None:
    """The place where the rows of a tile begin; None where that is 0."""
    value = next(v for v in index_of(statement) if found.dims[v] == (found.own,))
    scalar, _ = lang.parts(value, found.made.get(value))
    return scalar


def roots(found: Roles, statements: Sequence[Statement]) -> list[Value]:
    """The numbers that copies of such tiles are made of."""
    places = [v for s in statements for v in index_of(s) if not found.dims[v]]
    begins = [begin_of(found, statement) for statement in statements]
    ends = [found.ends[s] for s in statements if s in found.ends]
    return [*places, *ends, *(begin for begin in begins if begin is not None)]


def shape_of(found: Roles, statement: Statement) -> tuple[str, str]:
    """The rows of a tile that a group of warps has, and the length of its vectors."""
    width = found.dims[index_of(statement)[-1]][0]
    return f"{gluon_size(found.lengths[found.own])} // 2", gluon_size(found.lengths[width])


def lying(block: str) -> str:
    """How a tile lies in shared memory."""
    return f"gl.NVMMASharedLayout.get_default_for([{block}], IO)"


def descriptor(lines: Lines, name: str, tile: Statement, rows: str, end: str, block: str) -> None:
    """The line that makes the descriptor of the tensor of a tile, whose rows end there."""
    buffer, index = tile.op.buffer, index_of(tile)
    along = [lines.roles.dims[value] for value in index]
    place = along.index((rows,))
    axis, size = buffer.axes[place]
    base = lines.address(buffer, index, (rows, *along[-1]), whole=False)
    shape = f"[{end or gluon_size(size)}, {gluon_size(buffer.axes[-1][1])}]"
    step = f"[{lines.shared.arguments.stride(buffer, axis)}, 1]"
    given = ", ".join([base, shape, step, f"[{block}]", lying(block)])
    lines.line(f"{name} = tma.make_tensor_descriptor({given})")


def describe(lines: Lines, name: str, tile: Statement) -> None:
    """The line that makes the descriptor of a tile that is brought, or taken away."""
    found = lines.roles
    end = lines.name(found.ends[tile]) if tile in found.ends else ""
    descriptor(lines, name, tile, found.own, end, ", ".join(shape_of(found, tile)))


def place_text(lines: Lines, statement: Statement, half: int | None = None) -> str:
    """Where a half of what is owned begins: that of a group of warps, if no other one is named."""
    begin, rows = begin_of(lines.roles, statement), shape_of(lines.roles, statement)[0]
    places = {0: [], 1: [rows], None: [f"W * ({rows})"]}[half]
    first = [] if begin is None else [lines.name(begin)]
    return " + ".join([*first, *places]) or "0"

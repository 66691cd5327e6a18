"""Tile programs run on torch tensors, all programs of a launch in lockstep: the oracle of printers.

Every value is a tensor `[programs, *dims]` (or `[1, *dims]`, where all programs have the same one).
A statement is done for all programs before the next one, so that a barrier means something. In
float64 (`exact`) every real value has its digits; else each has those of its dtype, and products of
matrices are summed in float32.

What a GPU would not tell is an error here: a place outside a buffer that no mask hides, an element
that two programs or two places of a tile store at once, and an element that one program reads and
another one writes, in either order, without a barrier between them. A program that reads what it
wrote itself waits for its own threads in between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import sympy
import torch
from torch import Tensor

from archc.ir.meaning_ops import FUNCTIONS
from archc.ir.sizes import Number, evaluate
from archc.runtime.philox import random_numbers
from archc.tile import language as lang
from archc.tile.joined import same_memory

TORCH = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "i32": torch.int32, "i64": torch.int64, "bool": torch.bool,
}  # fmt: skip


class WrongProgram(Exception):
    """A program did what none may do; the message names the buffer and the value."""


@dataclass
class Written:
    """Who wrote and who read each element of a buffer last (-1: nobody, -2: several programs), and
    how many barriers there were before; of writes also how many times programs had waited for
    their own threads, and at which `place` of a tile the element stood."""

    program: Tensor
    barriers: Tensor
    syncs: Tensor
    reader: Tensor
    read: Tensor
    place: Tensor


def run(
    program: lang.Program,
    tensors: Mapping[str, Tensor],
    sizes: Mapping[str, int],
    constants: Mapping[str, int | str],
    exact: bool = False,
) -> None:
    """Run a launch: buffers by name are read and written in place.

    `sizes` are the numbers of the launch, `constants` lengths of blocks and names of dtypes. With
    `exact`, real values have float64 whatever their dtype is. Raises WrongProgram.
    """
    Interpreter(program, tensors, {**sizes, **constants}, exact).run()


class Interpreter:
    """One launch: what stands in each buffer, and the values of all programs."""

    def __init__(
        self,
        program: lang.Program,
        tensors: Mapping[str, Tensor],
        known: Mapping[str, int | str],
        exact: bool,
    ):
        self.program, self.tensors, self.known, self.exact = program, {**tensors}, known, exact
        self.values: dict[lang.Value, Tensor] = {}
        counts = [self.size(count) for _, count in program.grid]
        self.programs = math.prod(counts)
        places = torch.arange(self.programs)
        self.places: dict[str, Tensor] = {}
        for (axis, _), count in reversed(list(zip(program.grid, counts, strict=True))):
            self.places[axis] = places % count
            places = places // count
        self.active = torch.ones(self.programs, dtype=torch.bool)
        self.barriers = self.syncs = 0
        self.written: dict[str, Written] = {}
        stores = (
            s.op.buffer
            for s in lang.statements(program.body)
            if isinstance(s.op, lang.Store | lang.Atomic)
        )
        self.stored = {buffer.name for buffer in stores}
        for buffer in program.buffers:
            self._check_tensor(buffer)

    def _check_tensor(self, buffer: lang.Buffer) -> None:
        if buffer.optional and self.tensors.get(buffer.name) is None:
            return
        tensor, shape = self.tensors[buffer.name], [self.size(size) for _, size in buffer.axes]
        if not same_memory(tensor.shape, shape):
            raise WrongProgram(f"`{buffer.name}` is {list(tensor.shape)}, its axes say {shape}")
        self.tensors[buffer.name] = tensor.view(shape)
        self.written[buffer.name] = Written(*torch.full((6, tensor.numel()), -1))

    def size(self, size: sympy.Expr) -> int:
        """An expression in whole sizes as a number."""
        return int(self.number(size))

    def number(self, size: sympy.Expr) -> Number:
        """An expression in sizes as a number."""
        return evaluate(size, {n: v for n, v in self.known.items() if not isinstance(v, str)})

    def dtype(self, name: str) -> torch.dtype:
        """The dtype that values have here."""
        if self.exact and lang.kind(name) == "real":
            return torch.float64
        if name.startswith(lang.OF_BUFFER):
            return self.tensors[name.removeprefix(lang.OF_BUFFER)].dtype
        return TORCH[name if name in TORCH else str(self.known[name])]

    def shape(self, type: lang.Type) -> list[int]:
        """Lengths of the dims of a type."""
        return [self.size(dim.length) for dim in type.dims]

    def run(self) -> None:
        """All statements, in order."""
        self.block(self.program.body)

    def block(self, block: lang.Block) -> None:
        """The statements of a block."""
        for statement in block.statements:
            OPS[type(statement.op)](self, statement)

    # --- values ---

    def __getitem__(self, value: lang.Value) -> Tensor:
        return self.values[value]

    def seen(self, value: lang.Value, names: Sequence[str]) -> Tensor:
        """A value among dims of these names: one that it lacks has length 1."""
        found, own = self.values[value], value.type.names
        shape, place = [found.shape[0]], iter(found.shape[1:])
        shape += [next(place) if name in own else 1 for name in names]
        return found.reshape(shape)

    def make(self, statement: lang.Statement, data: Tensor) -> None:
        """Set the value of a statement, in its dtype."""
        (result,) = statement.results
        self.values[result] = data.to(self.dtype(result.type.dtype))

    # --- memory ---

    def elements(
        self,
        statement: lang.Statement,
        buffer: lang.Buffer,
        index: Sequence[lang.Value],
        masks: Sequence[lang.Value],
        names: Sequence[str],
    ) -> tuple[Tensor, Tensor]:
        """The element of a buffer at each place, counted as if it were contiguous, and whether it
        is touched; raises WrongProgram for one that is outside."""
        lengths = self.tensors[buffer.name].shape
        mask = self.active.reshape(-1, *(1 for _ in names))
        for each in masks:
            mask = mask & self.seen(each, names)
        flat: Tensor = torch.zeros((), dtype=torch.int64)
        for (axis, _), value, length in zip(buffer.axes, index, lengths, strict=True):
            at = self.seen(value, names).long()
            if at.numel() and not 0 <= int(at.min()) <= int(at.max()) < length:
                wrong = ((at < 0) | (at >= length)) & mask
                if wrong.any():
                    found = f"{axis} = {int(at.expand(wrong.shape)[wrong][0])} of {length}"
                    raise WrongProgram(
                        f"{_where(statement)} is outside of `{buffer.name}`: {found}"
                    )
                at = at.clamp(0, max(0, length - 1))
            flat = flat * length + at
        return torch.broadcast_tensors(flat, mask)

    def read(
        self, statement: lang.Statement, buffer: lang.Buffer, flat: Tensor, mask: Tensor
    ) -> Tensor:
        """Elements of a buffer; raises WrongProgram where another program may be writing one."""
        data = self.tensors[buffer.name]
        if not data.numel():
            return torch.zeros(flat.shape, dtype=data.dtype)
        if buffer.name not in self.stored:
            return data.reshape(-1)[flat]
        written, mine = self.written[buffer.name], self._mine(flat)
        by, now = written.program[flat], written.barriers[flat] == self.barriers
        if ((by >= 0) & (by != mine) & now & mask).any():
            raise WrongProgram(
                f"{_where(statement)} reads what another program wrote to `{buffer.name}`, and no"
                " barrier stands between them"
            )
        if ((by == mine) & now & (written.syncs[flat] == self.syncs) & mask).any():
            raise WrongProgram(
                f"{_where(statement)} reads what its program wrote to `{buffer.name}`: other"
                " threads may have written it, and nothing waits for them"
            )
        self._note_readers(written, flat[mask], mine[mask])
        return data.reshape(-1)[flat]

    def _note_readers(self, written: Written, at: Tensor, mine: Tensor) -> None:
        """Who reads elements between these barriers."""
        before = torch.where(written.read[at] == self.barriers, written.reader[at], mine)
        written.reader[at], written.read[at] = mine, self.barriers
        several = (written.reader[at] != mine) | (before != mine)
        written.reader[at[several]] = -2

    def write(
        self,
        statement: lang.Statement,
        buffer: lang.Buffer,
        flat: Tensor,
        mask: Tensor,
        data: Tensor,
    ) -> None:
        """Set elements of a buffer; raises WrongProgram for one that is set twice at once."""
        at, written = flat[mask], self.written[buffer.name]
        written.place[at] = places = torch.arange(at.numel())
        if (written.place[at] != places).any():
            raise WrongProgram(f"{_where(statement)} stores an element of `{buffer.name}` twice")
        tensor = self.tensors[buffer.name]
        values = data.expand(mask.shape)[mask].to(tensor.dtype)
        tensor.put_(at, values)
        mine = self._mine(flat)[mask]
        before, when = written.program[at], written.barriers[at]
        if ((before >= 0) & (before != mine) & (when == self.barriers)).any():
            raise WrongProgram(
                f"{_where(statement)} stores what another program stored in `{buffer.name}`, and no"
                " barrier stands between them"
            )
        if ((written.read[at] == self.barriers) & (written.reader[at] != mine)).any():
            raise WrongProgram(
                f"{_where(statement)} stores what another program read from `{buffer.name}`, and no"
                " barrier stands between them"
            )
        written.program[at], written.barriers[at] = mine, self.barriers
        written.syncs[at] = self.syncs

    def _mine(self, flat: Tensor) -> Tensor:
        """The program that each place belongs to."""
        programs = torch.arange(flat.shape[0]).reshape(-1, *(1 for _ in flat.shape[1:]))
        return programs.expand(flat.shape)


def _where(statement: lang.Statement) -> str:
    """How messages name a statement."""
    what = type(statement.op).__name__.lower()
    return f"the {what} of `{statement.results[0].name}`" if statement.results else f"a {what}"


# --- ops ----------------------------------------------------------------------------------------


def _scalar(m: Interpreter, s: lang.Statement) -> None:
    size = s.op.size
    dtype = torch.int64 if size.is_integer else torch.float64
    m.make(s, torch.tensor([float(m.number(size))], dtype=torch.float64).to(dtype))


def _program_id(m: Interpreter, s: lang.Statement) -> None:
    m.make(s, m.places[s.op.axis])


def _iota(m: Interpreter, s: lang.Statement) -> None:
    m.make(s, torch.arange(m.size(s.op.dim.length))[None])


def _full(m: Interpreter, s: lang.Statement) -> None:
    shape, dtype = (1, *m.shape(s.op.type)), m.dtype(s.op.type.dtype)
    m.make(s, torch.full(shape, s.op.number, dtype=dtype))


def _apply(m: Interpreter, s: lang.Statement) -> None:
    names = s.results[0].type.names
    given = [m.seen(value, names) for value in s.operands]
    whole = lang.kind(s.results[0].type.dtype) == "int"
    if whole and s.op.function in ("mod", "floordiv"):
        given = [_not_negative(m, s, x) for x in given]
    m.make(s, FUNCTIONS[s.op.function](*given))


def _not_negative(m: Interpreter, s: lang.Statement, x: Tensor) -> Tensor:
    """An operand of a quotient, 1 in programs that do not come here."""
    active = m.active.reshape(-1, *(1 for _ in x.shape[1:]))
    if ((x < 0) & active).any():
        raise WrongProgram(f"{_where(s)} divides a negative number, which GPUs round otherwise")
    return torch.where(active, x, torch.ones((), dtype=x.dtype))


def _cast(m: Interpreter, s: lang.Statement) -> None:
    if not s.op.bits:
        return m.make(s, m[s.operands[0]])
    given = m[s.operands[0]]
    bits = given.to(torch.float32).view(torch.int32) if given.is_floating_point() else given
    found = bits if lang.kind(s.op.dtype) == "int" else bits.to(torch.int32).view(torch.float32)
    return m.make(s, found)


def _random(m: Interpreter, s: lang.Statement) -> None:
    seed, counter = (m[value].long() for value in s.operands)
    seed = seed.reshape(-1, *(1 for _ in counter.shape[1:]))
    made = random_numbers(seed, counter)
    m.make(s, made[..., 0] if s.op.dim is None else made.flatten(-2))


def _given(m: Interpreter, s: lang.Statement) -> None:
    m.make(s, torch.tensor([m.tensors.get(s.op.buffer.name) is not None]))


def _chosen_constant(m: Interpreter, s: lang.Statement) -> None:
    constant, choice = s.op.constant, s.op.choice
    if constant.startswith(lang.OF_BUFFER):
        tensor = m.tensors[constant.removeprefix(lang.OF_BUFFER)]
        m.make(s, torch.tensor([tensor.dtype == TORCH[choice]]))
    else:
        m.make(s, torch.tensor([m.known[constant] == choice]))


def _at_most(m: Interpreter, s: lang.Statement) -> None:
    m.make(s, torch.tensor([m.number(s.op.size) <= m.number(s.op.most)]))


def _reduce(m: Interpreter, s: lang.Statement) -> None:
    (x,) = s.operands
    m.make(s, REDUCE[s.op.function](m[x], 1 + x.type.place(s.op.dim)))


def _scan(m: Interpreter, s: lang.Statement) -> None:
    axis = 1 + s.operands[0].type.place(s.op.dim)
    given = [m[x].flip(axis) if s.op.reverse else m[x] for x in s.operands]
    if s.op.function:
        made = [SCAN[s.op.function](given[0], axis)]
    else:
        made = _joined(m, s.blocks[0], torch.broadcast_tensors(*given), axis)
    for result, data in zip(s.results, made, strict=True):
        ordered = data.flip(axis) if s.op.reverse else data
        m.values[result] = ordered.to(m.dtype(result.type.dtype))


def _joined(m: Interpreter, block: lang.Block, given: Sequence[Tensor], axis: int) -> list[Tensor]:
    """Running joins along an axis; all other places of the tiles are as many programs."""
    rows = [x.movedim(axis, 0) for x in given]
    shape, active = rows[0].shape[1:], m.active
    so_far = [x[0].reshape(-1) for x in rows]
    found = [so_far]
    m.active = torch.ones(so_far[0].numel(), dtype=torch.bool)
    for place in range(1, rows[0].shape[0]):
        following = [x[place].reshape(-1) for x in rows]
        m.values.update(zip(block.arguments, (*so_far, *following), strict=True))
        m.block(block)
        so_far = [m[value].expand(so_far[0].shape) for value in block.yields]
        found.append(so_far)
    m.active = active
    columns = zip(*found, strict=True)
    return [torch.stack([x.reshape(shape) for x in each]).movedim(0, axis) for each in columns]


def _sort(m: Interpreter, s: lang.Statement) -> None:
    down = s.op.descending or s.op.most is not None
    made = torch.sort(m[s.operands[0]], -1, descending=down)[0]
    m.make(s, made if s.op.most is None else made[..., : m.size(s.op.most.length)])


def _flip(m: Interpreter, s: lang.Statement) -> None:
    (x,) = s.operands
    m.make(s, m[x].flip(1 + x.type.place(s.op.dim)))


def _dot(m: Interpreter, s: lang.Statement) -> None:
    a, b = (m[value] for value in s.operands[:2])
    wide = torch.float64 if m.exact else torch.float32
    made = a.to(wide) @ b.to(wide)
    m.make(s, made + m[s.operands[2]] if len(s.operands) > 2 else made)


def _transpose(m: Interpreter, s: lang.Statement) -> None:
    (x,) = s.operands
    m.make(s, m[x].permute(0, *(1 + x.type.place(name) for name in s.op.order)))


def _relabel(m: Interpreter, s: lang.Statement) -> None:
    m.make(s, m[s.operands[0]])


def _broadcast(m: Interpreter, s: lang.Statement) -> None:
    found = m.seen(s.operands[0], [dim.name for dim in s.op.dims])
    m.make(s, found.expand(found.shape[0], *m.shape(s.results[0].type)))


def _reshape(m: Interpreter, s: lang.Statement) -> None:
    given = m[s.operands[0]]
    m.make(s, given.reshape(given.shape[0], *m.shape(s.results[0].type)))


def _push(m: Interpreter, s: lang.Statement) -> None:
    (run, newest), count = (m[x] for x in s.operands), m.size(s.op.count)
    run, newest = torch.broadcast_tensors(run, newest[..., None])
    m.make(s, torch.cat([run[..., 1:count], newest[..., :1], run[..., count:]], -1))


def _pick(m: Interpreter, s: lang.Statement) -> None:
    x, index = s.operands
    programs = max(m[x].shape[0], m[index].shape[0])
    given = m[x].expand(programs, *m[x].shape[1:])
    at = m[index].long().expand(programs, *m[index].shape[1:])
    length = given.shape[1 + x.type.place(s.op.dim)]
    wrong = ((at < 0) | (at >= length)) & m.active.reshape(-1, *(1 for _ in at.shape[1:]))
    if wrong.any():
        raise WrongProgram(f"{_where(s)} is at {int(at[wrong][0])} of {length} places")
    at = at.clamp(0, length - 1)
    m.make(s, torch.gather(given, 1 + x.type.place(s.op.dim), at))


def _load(m: Interpreter, s: lang.Statement) -> None:
    count, names = len(s.op.buffer.axes), s.results[0].type.names
    flat, mask = m.elements(s, s.op.buffer, s.operands[:count], s.operands[count:], names)
    found = m.read(s, s.op.buffer, flat, mask)
    m.make(s, torch.where(mask, found, torch.tensor(s.op.fill, dtype=found.dtype)))


def _sequence_rows(m: Interpreter, s: lang.Statement) -> None:
    first, step, tokens, batch = (m[x].long() for x in s.operands)
    first = first.reshape(-1, *[1] * (step.dim() - 1))
    table, before, ahead = m.tensors.get(s.op.buffer.name), m.size(s.op.before), m.size(s.op.ahead)
    base, place, start, end, sequence = first - ahead, step, 0, tokens[:, None], batch[:, None]
    if table is not None:
        row = first + step
        at = row.clamp(0, table.shape[1] - 1)
        start, end, sequence = (torch.where(row == at, x[at], 0) for x in table)
        base, place = torch.zeros_like(first), row - (sequence + 1) * before
    token = base + place
    inside = (token >= start) & (token < end) & (token >= 0) & (token < tokens[:, None])
    made = (base, place, end, token - start, inside, sequence)
    for result, data in zip(s.results, made, strict=True):
        flat = data if result.type.dims else data.reshape(-1)
        m.values[result] = flat.to(m.dtype(result.type.dtype))


def _load_block(m: Interpreter, s: lang.Statement) -> None:
    blocked, buffer = dict(s.op.dims), s.op.buffer
    names, lengths = s.results[0].type.names, m.tensors[buffer.name].shape
    mask = m.active.reshape(-1, *(1 for _ in names))
    flat: Tensor = torch.zeros((), dtype=torch.int64)
    for (axis, _), start, length in zip(buffer.axes, s.operands, lengths, strict=True):
        at = m[start].long().reshape(-1, *(1 for _ in names))
        if axis in blocked:
            along = torch.arange(m.size(blocked[axis].length))
            after = len(names) - 1 - names.index(blocked[axis].name)
            at = at + along.reshape(-1, *(1 for _ in range(after)))
        mask = mask & (at >= 0) & (at < length)
        flat = flat * length + at.clamp(0, max(0, length - 1))
    flat, mask = torch.broadcast_tensors(flat, mask)
    found = m.read(s, buffer, flat, mask)
    m.make(s, torch.where(mask, found, torch.zeros((), dtype=found.dtype)))


def _store(m: Interpreter, s: lang.Statement) -> None:
    count = len(s.op.buffer.axes)
    index, value, masks = s.operands[:count], s.operands[count], s.operands[count + 1 :]
    names = tuple(dict.fromkeys(name for each in index for name in each.type.names))
    flat, mask = m.elements(s, s.op.buffer, index, masks, names)
    data = m.seen(value, names)
    shape = torch.broadcast_shapes(flat.shape, data.shape, (m.programs, *flat.shape[1:]))
    m.write(s, s.op.buffer, flat.expand(shape), mask.expand(shape), data)


def _atomic(m: Interpreter, s: lang.Statement) -> None:
    """Program after program, place after place: one of the orders that a GPU may take."""
    buffer, count = s.op.buffer, len(s.op.buffer.axes)
    names = s.results[0].type.names
    masks = s.operands[count + 1 :]
    flat, mask = m.elements(s, buffer, s.operands[:count], masks, names)
    given = m.seen(s.operands[count], names)
    shape = torch.broadcast_shapes(flat.shape, given.shape)
    flat, mask, given = flat.expand(shape), mask.expand(shape), given.expand(shape)
    tensor, made = m.tensors[buffer.name], torch.zeros(flat.shape, dtype=torch.int64)
    rows = tensor.reshape(-1)
    for place in itertools.product(*map(range, flat.shape)):
        if mask[place]:
            at = flat[place]
            made[place] = rows[at]
            rows[at] = ATOMIC[s.op.function](rows[at], given[place])
    tensor.copy_(rows.reshape(tensor.shape))
    m.make(s, made)


def _barrier(m: Interpreter, s: lang.Statement) -> None:
    if s.op.counter is None:
        m.syncs += 1
        return
    if not m.active.all():
        raise WrongProgram("a barrier that not every program comes to")
    if (m[s.operands[0]] != m.barriers).any():
        raise WrongProgram(f"barrier {m.barriers} is counted as {m[s.operands[0]].tolist()}")
    m.barriers += 1


def _for(m: Interpreter, s: lang.Statement) -> None:
    start, stop = (m[value].long() for value in s.operands[:2])
    (body,) = s.blocks
    index, *carried = body.arguments
    for value, given in zip(carried, s.operands[2:], strict=True):
        m.values[value] = m[given]
    outer = m.active
    first, last = int(start.min()), int(stop.max())
    for turn in range(first, last):
        m.active = outer & (start <= turn) & (turn < stop)
        if not m.active.any():
            continue
        m.values[index] = torch.tensor([turn], dtype=torch.int32)
        m.block(body)
        made = [m[value] for value in body.yields]
        for value, new in zip(carried, made, strict=True):
            m.values[value] = _chosen(m.active, new, m[value])
    m.active = outer
    for result, value in zip(s.results, carried, strict=True):
        m.values[result] = m[value]


def _while(m: Interpreter, s: lang.Statement) -> None:
    going, *given = s.operands
    (body,) = s.blocks
    holds, *carried = body.arguments
    m.values[holds] = m[going]
    for value, start in zip(carried, given, strict=True):
        m.values[value] = m[start]
    outer, most, turn = m.active, m.size(s.op.most), 0
    m.active = outer & m[holds]
    while m.active.any():
        if turn == most:
            raise WrongProgram(f"a loop on `{holds.name}` goes on after {most} turns")
        m.block(body)
        made = [m[value] for value in body.yields]
        for value, new in zip(body.arguments, made, strict=True):
            m.values[value] = _chosen(m.active, new, m[value])
        m.active, turn = m.active & m[holds], turn + 1
    m.active = outer
    for result, value in zip(s.results, carried, strict=True):
        m.values[result] = m[value]


def _chosen(active: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new` in active programs, else `old`."""
    if active.all():
        return new
    return torch.where(active.reshape(-1, *(1 for _ in new.shape[1:])), new, old)


def _if(m: Interpreter, s: lang.Statement) -> None:
    outer, condition = m.active, m[s.operands[0]].bool()
    for block, holds in zip(s.blocks, (condition, ~condition), strict=True):
        m.active = outer & holds
        if not m.active.any():
            continue
        m.block(block)
        for result, value in zip(s.results, block.yields, strict=True):
            m.values[result] = _chosen(m.active, m[value], m.values.get(result, m[value]))
    m.active = outer


OPS: dict[type[lang.Op], Callable[[Interpreter, lang.Statement], None]] = {
    lang.Scalar: _scalar, lang.ProgramId: _program_id, lang.Iota: _iota, lang.Full: _full,
    lang.Apply: _apply, lang.Cast: _cast, lang.Given: _given, lang.Chosen: _chosen_constant,
    lang.AtMost: _at_most, lang.Broadcast: _broadcast, lang.While: _while, lang.Random: _random,
    lang.Reduce: _reduce, lang.Scan: _scan, lang.Sort: _sort, lang.Flip: _flip, lang.Dot: _dot,
    lang.Transpose: _transpose, lang.Relabel: _relabel, lang.Reshape: _reshape,
    lang.Pick: _pick, lang.Push: _push, lang.Load: _load, lang.Store: _store,
    lang.SequenceRows: _sequence_rows,
    lang.LoadBlock: _load_block, lang.Atomic: _atomic, lang.Barrier: _barrier, lang.For: _for,
    lang.If: _if,
}  # fmt: skip

REDUCE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, dim: x.sum(dim),
    "product": lambda x, dim: x.prod(dim),
    "max": lambda x, dim: x.amax(dim),
    "min": lambda x, dim: x.amin(dim),
    "argmax": lambda x, dim: (x == x.amax(dim, keepdim=True)).int().argmax(dim),
    "argmin": lambda x, dim: (x == x.amin(dim, keepdim=True)).int().argmax(dim),
}
SCAN: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sum": lambda x, dim: x.cumsum(dim),
    "product": lambda x, dim: x.cumprod(dim),
    "max": lambda x, dim: x.cummax(dim)[0],
    "min": lambda x, dim: x.cummin(dim)[0],
}
ATOMIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "max": torch.maximum, "min": torch.minimum,
}  # fmt: skip

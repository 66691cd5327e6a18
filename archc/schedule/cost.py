"""The cost of the kernels of a graph at some sizes: bytes, operations, and the least time that a
device needs for them.

A kernel's floor is the time in which its device could move each tensor once, or do its operations,
whichever is longer. What it is expected to take adds up its bytes, what programs read again, its
products and other operations, as far as nothing is loaded or stored meanwhile, the chunks that
a walk waits for, and sums across threads, for which a processor waits unless it has other programs;
then idle processors where programs are few, and the launch. The numbers below are fitted to times
of kernels of five recurrences on an H200 (`benchmarks/results`); nothing else is measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import sympy

from archc.dims import TIME
from archc.functions.definitions import FUNCTIONS
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.count import operations_of
from archc.ir.graph import Node
from archc.ir.kernel import Kernel, Kernels
from archc.ir.sizes import evaluate
from archc.lowering.solve import BLOCK
from archc.schedule.axes import reduction_dims
from archc.schedule.devices import LAUNCH, Device
from archc.schedule.memory import OnChip, of_steps, on_chip, walks_tokens
from archc.schedule.operands import PAIRED, is_product, matrices, tile_of_rows
from archc.schedule.program import Key, Program, Setting, Step

AGAIN = 10.0
"""How much faster than memory the second cache gives what programs read again."""

SUSTAINED = 0.45
"""The share of their peak that operations outside products reach: operands wait for one another."""

TURN = 0.3e-6
"""Seconds that a walk waits at each chunk where what it does with a state follows on the last; half
of them where there are more programs than processors, as one works while another waits."""

AHEAD, BESIDE = 0.35, 0.7
"""The share of its operations that a program does while nothing is loaded or stored: of a walk of
chunks, which loads ahead, and of any other, beside which others of its processor load."""

CROSSING = 0.5e-6
"""Seconds that a program waits for a sum across its threads, or a running one: for those before it,
shared memory and a barrier."""

PROGRAM = 0.06e-6
"""Seconds of a processor that a program takes however little it does."""

AT_ONCE = 16
"""The most programs of a processor at a time, by their warps."""

HELD = 400_000
"""Bytes of registers by the plan that the programs of a processor have together: more than there
are, as compilers make room where they can."""

TOKEN = 1.0e-6
"""Seconds that a walk of tokens waits at each after the first: for what it reads, and for sums.
On an H200 states of 128 x 128 took 1.3 to 2.0 in all, on 128 programs of 64 values."""


@dataclass(frozen=True)
class Traffic:
    """A tensor that a kernel reads or writes: its bytes, and the bytes that all programs move."""

    name: str
    bytes: int
    moved: int


@dataclass(frozen=True)
class Work:
    """Operations of all programs: in products of matrices, in others, and special functions."""

    products: float
    others: float
    special: float


@dataclass(frozen=True)
class Cost:
    """The cost of one kernel on a device; times in seconds. `limit` names what the floor is made
    of, and `share` is the part of the expected time that the floor is."""

    name: str
    programs: int
    reads: tuple[Traffic, ...]
    writes: tuple[Traffic, ...]
    work: Work
    chip: OnChip
    floor: float
    limit: str
    expected: float

    @property
    def bytes(self) -> int:
        """Bytes of its tensors, each once."""
        return sum(each.bytes for each in (*self.reads, *self.writes))

    @property
    def again(self) -> int:
        """Bytes that are read more than once."""
        return sum(each.moved - each.bytes for each in self.reads)

    @property
    def share(self) -> float:
        """The expected share of the roofline."""
        return self.floor / self.expected


@dataclass(frozen=True)
class Total:
    """All kernels of a graph beside what no cut could go below: `ideal` is the time for the bytes
    that enter and leave the graph, or for its products."""

    kernels: tuple[Cost, ...]
    ideal: float
    bytes: int

    @property
    def expected(self) -> float:
        """Seconds of all kernels, one after the other."""
        return sum(each.expected for each in self.kernels)

    @property
    def share(self) -> float:
        """The expected share of the roofline of the whole."""
        return self.ideal / self.expected if self.kernels else 0.0


def total(kernels: Kernels, setting: Setting, device: Device) -> Total:
    """The cost of every kernel of a graph, and of the graph as if it were one."""
    costs = tuple(cost(each, setting, device) for each in kernels.kernels)
    moved = [each for one in costs for each in (*one.reads, *one.writes)]
    inner = {buffer.name for buffer in kernels.buffers} - set(kernels.graph.outputs)
    outer = {each.name: each.bytes for each in moved if each.name not in inner}
    bytes = sum(outer.values())
    products = sum(one.work.products for one in costs) / device.product_rate(setting.dtype)
    return Total(costs, max(bytes / device.bandwidth, products), bytes)


def cost(kernel: Kernel, setting: Setting, device: Device) -> Cost:
    """The cost of a kernel."""
    program = Program(kernel, setting)
    count = program.programs
    reads = tuple(
        _traffic(program, str(step.load), step.node, step.each) for step in program.loads()
    )
    writes = tuple(_traffic(program, *each) for each in program.stored())
    work = _work(program)
    bytes = sum(each.bytes for each in (*reads, *writes))
    moved = sum(each.moved for each in (*reads, *writes))
    times = {"memory": bytes / device.bandwidth} | _times(work, device, setting.dtype)
    limit = max(times, key=lambda name: times[name])
    waves = math.ceil(count / device.processors) * device.processors / max(count, 1)
    turns = program.often(True) if _waits(kernel) else 0
    turn = turns * TURN / (1 if count <= device.processors else 2)
    waiting = 0.0
    each = bytes + max(0, moved - bytes) / AGAIN
    chip = of_steps(kernel, setting) if walks_tokens(kernel) else on_chip(program)
    done = times["products"] + times["arithmetic"] / SUSTAINED
    if goes_by_tokens(kernel):
        turn += (program.often(True) - 1) * TOKEN
    if kernel.walk is not None:
        done *= 1 if walks_tokens(kernel) else AHEAD
    else:
        done *= BESIDE
        at_once = min(AT_ONCE, max(1, HELD // max(chip.registers, 1)))
        waiting = _crossings(program) * CROSSING * count / device.processors / at_once
    least = max(times[limit], PROGRAM * count / device.processors)
    busy = max(least, each / device.bandwidth + done + waiting) * waves
    return Cost(
        kernel.name, count, reads, writes, work, chip, times[limit], limit,
        LAUNCH + busy + turn,
    )  # fmt: skip


def goes_by_tokens(kernel: Kernel) -> bool:
    """Whether a kernel waits at every token: a walk of tokens, or of a state that stays a loop in a
    chunked form."""
    return kernel.walk is not None and kernel.graph[kernel.walk].op.stream.name == TIME.name


def _waits(kernel: Kernel) -> bool:
    """Whether a walk along chunks multiplies a state by matrices on its way to the next, which
    waits for what was done at the chunk before."""
    if kernel.walk is None or walks_tokens(kernel):
        return False
    op = kernel.graph[kernel.walk].op
    inputs = {node.op.name: node.id for node in op.body if isinstance(node.op, ir.Input)}
    for state in op.states:
        last = op.body.outputs[state.name]
        if state.before in inputs:
            after = op.body.descendants(inputs[state.before])
            between = [n for n in after if n == last or last in op.body.descendants(n)]
            if not all(isinstance(op.body[n].op, ir.Elementwise) for n in between):
                return True
    return False


def _crossings(program: Program) -> int:
    """How often a program waits for a sum across its threads: of a tile, once for each level of an
    inverse whose products are of whole tiles and once for its largest entry, twice for each turn of
    a solve."""
    found = 0
    for step in program.steps.values():
        op = step.node.op
        if step.load is not None or is_product(program, step):
            continue
        if isinstance(op, ck.Conjugate):
            found += 2 * int(evaluate(op.inner_runs(step.node), program.setting.sizes))
        elif isinstance(op, ck.Inverse):
            found += 1 + _levels(program.length(step.node.type.axis(op.row)))
        elif not ir.renames(op):
            found += bool(reduction_dims(step.graph, step.node))
    return found


def _times(work: Work, device: Device, dtype: str) -> dict[str, float]:
    """Seconds of each kind of operation alone."""
    return {
        "products": work.products / device.product_rate(dtype),
        "arithmetic": work.others / device.arithmetic,
        "special functions": work.special / device.special,
    }


def _traffic(program: Program, name: str, node: Node, each_chunk: bool) -> Traffic:
    """How much of a tensor is moved."""
    width, axes = program.setting.width(name), node.type.axes
    parts = program.sharing if name in program.kernel.summed else 1
    once = program.whole(axes) * width * parts
    each = program.elements(axes) * width * program.often(each_chunk) * program.programs
    return Traffic(name, once, max(once, each))


# --- operations -----------------------------------------------------------------------------------


def _work(program: Program) -> Work:
    """The operations of all programs."""
    products = others = special = 0.0
    for step in program.steps.values():
        if step.load is not None:
            continue
        made, rest, functions = _step_work(program, step)
        times = program.often(step.each) * program.programs
        products, others, special = (
            products + made * times, others + rest * times, special + functions * times,
        )  # fmt: skip
    return Work(products, others, special)


def _step_work(program: Program, step: Step) -> tuple[float, float, float]:
    """Operations of one step of one program."""
    node = step.node
    piece = PIECES.get(type(node.op))
    if piece is not None:
        return piece(program, step)
    count = _count(program, step)
    if is_product(program, step):
        return count, 0.0, 0.0
    own = program.elements(node.type.axes)
    functions = FUNCTIONS[node.op.fn].special * own if isinstance(node.op, ir.Elementwise) else 0.0
    return 0.0, count, functions


def _count(program: Program, step: Step) -> float:
    """Operations of a step by the rules of the IR, on what a program has of each axis."""
    types = [step.graph[operand].type for operand in step.node.operands]
    found = operations_of(step.node, types, _lengths(program))
    return float(evaluate(found, program.setting.sizes))


def _lengths(program: Program) -> dict[str, sympy.Expr]:
    """The number of indices that a program has of each axis."""
    return {name: sympy.Integer(length) for name, length in program.lengths.items()}


def _paired(program: Program, step: Step) -> tuple[float, float, float]:
    """One product, as of gates that do not forget everything within a chunk, and two factors of
    decay, which are looked at for that. What mixes with one matrix has one product, and what decays
    alike the same factors."""
    node, gates = step.node, program.steps[step.operands[-1]].node
    rows = program.length(gates.type.axis(node.op.row))
    dims = program.elements(gates.type.axes) // rows
    each = float(rows * dims)
    alike = [s for s in program.steps.values() if _is_paired(s, step.operands[-1])]
    before = [s for s in alike[: alike.index(step)] if not isinstance(s.node.op, ck.Gram)]
    made = {matrix for s in before for matrix in matrices(s.node)}
    own = 1 if isinstance(node.op, ck.Gram) else len({*matrices(node)} - made)
    lots = len(node.op.terms) if isinstance(node.op, ck.JointPairs) else 1
    return 2.0 * own * rows * each, 8 * lots * each, 2 * each * (step is alike[0])


def _near(program: Program, step: Step) -> tuple[float, float, float]:
    """One product of rows as they stand."""
    rows, dims = tile_of_rows(program, step)
    return 2.0 * rows * rows * dims, float(rows * rows), 0.0


def _is_paired(step: Step, gates: Key) -> bool:
    return step.load is None and isinstance(step.node.op, PAIRED) and step.operands[-1] == gates


def _levels(rows: int) -> int:
    """How often an inverse puts blocks together by products of whole tiles."""
    return rows // (2 * BLOCK)


def _inverse(program: Program, step: Step) -> tuple[float, float, float]:
    """Two products for each level: of blocks of up to 16 rows alone, then of whole tiles."""
    rows = program.length(step.node.type.axis(step.node.op.row))
    levels, small = _levels(rows), BLOCK.bit_length() - 2
    products = 4.0 * rows * (levels * rows**2 + small * BLOCK**2)
    return products, float((levels + 1) * rows * rows), 0.0


def _conjugate(program: Program, step: Step) -> tuple[float, float, float]:
    """The products of every turn, and what is done with their rows."""
    op, lengths = step.node.op, _lengths(program)
    turn = sum(
        operations_of(node, [op.body[operand].type for operand in node.operands], lengths)
        for node in op.body if ir.is_product(node.op)
    )  # fmt: skip
    products = float(evaluate(turn * op.inner_runs(step.node), program.setting.sizes))
    return products, _count(program, step) - products, 0.0


PIECES = {
    ck.Gram: _paired, ck.Mix: _paired, ck.MixSum: _paired, ck.GateShares: _paired,
    ck.GateGradient: _paired, ck.NearGram: _near, ck.Inverse: _inverse, ck.Conjugate: _conjugate,
}  # fmt: skip
"""Ops that are made of products: of pairs of rows, level by level of a tree of them, or turn by
turn."""


# --- what is said of a whole graph ----------------------------------------------------------------


def again(kernels: Sequence[Kernel]) -> dict[int, tuple[str, ...]]:
    """Nodes that more than one kernel computes, with the names of those kernels: they are cheaper
    than their way through memory."""
    homes: dict[int, list[str]] = {}
    for kernel in kernels:
        for key, step in Program(kernel).steps.items():
            plain = isinstance(step.node.op, ir.Constant | ir.Position | ir.Delta | ir.Input)
            if step.load is None and key[0] == "graph" and not plain:
                homes.setdefault(int(key[1]), []).append(kernel.name)
    return {id: tuple(names) for id, names in sorted(homes.items()) if len(names) > 1}

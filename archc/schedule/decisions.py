"""The decisions that cut a graph into kernels, with reasons: as data, from the kernels alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.kernel import BLOCK, FEW, NARROW, NEAR, SUMMED, Buffer, Kernel, Kernels
from archc.ir.value_names import is_saved
from archc.schedule.cost import again
from archc.schedule.program import Program, Step
from archc.schedule.quotients import exact_states

REASONS: Mapping[str, str] = {
    # kernels
    "carries": "carries {} from chunk to chunk, one after the other",
    "steps": "carries {} from token to token, in registers",
    "free": "every chunk at once, as no state is needed",
    "waits": "every chunk at once, with what {} found at each",
    "pairs": "every chunk at once, with pairs of rows that decay by sums that {} stored",
    "near": "every chunk at once, with pairs of rows that {} stored as seen from the middle",
    "split": "each has {} of {}, which no op looks across",
    "few": "each has {} of {} where {} is {} at most, else {}: no op looks across it",
    "parts": "each has {} of {}, and stores its part of {}: PyTorch adds them up",
    "rows": "each has {} of {}, so that weights are loaded once for all of them",
    "undivided": "each has all dims: ops look across every one",
    "blocked": "each has all dims, and makes {} of {} at a time: what is summed over it is carried",
    # buffers
    "result": "a result",
    "saved": "for the gradient",
    "passed": "for {}",
    "end": "a state after the last chunk",
    "fallback": "for PyTorch",
    # widths
    "narrow": "for products or results alone",
    "wide": "not for products or results alone",
    "divided": "a quotient shows how it is rounded",
    "summed": "differences of it are wanted",
    "outside": "as the caller has it",
    # what is not in memory, and what is in no kernel
    "again": "in {}: costs less than memory",
    "left": "{}",
}
"""Reasons by name, with places for what they are about. What another kernel needs is in memory
where it costs more to compute again; what only enters products of matrices, or is added up to
results, is as narrow as the data."""


@dataclass(frozen=True)
class Decision:
    """A reason of `REASONS`, and what it is about."""

    rule: str
    about: tuple[str, ...] = ()

    def __str__(self) -> str:
        return REASONS[self.rule].format(*self.about)


def of_kernel(kernels: Kernels, kernel: Kernel) -> tuple[Decision, ...]:
    """The reasons why a kernel is one, and why its programs have their parts of dims."""
    return (_cut(kernels, kernel), _split(kernel))


def _cut(kernels: Kernels, kernel: Kernel) -> Decision:
    if kernel.walk is not None:
        recurrence: ir.Recurrence = kernel.graph[kernel.walk].op
        rule = "carries" if recurrence.stream.size.has(ck.CHUNK) else "steps"
        return Decision(rule, (_listed(state.name for state in recurrence.states),))
    program = Program(kernel)
    used = {str(step.load) for step in program.loads()}
    pairs = [step for step in program.steps.values() if _is_pair(step)]
    if pairs:
        read = {program.steps[step.operands[-1]].load for step in pairs}
        near = all(isinstance(step.node.op, ck.NearGram) for step in pairs)
        stored = [each.name for each in kernels.kernels if read & set(each.stores)]
        return Decision("near" if near else "pairs", (_listed(stored),))
    used |= _behind(kernels, [id for id, name in kernel.loads.items() if name in used])
    walks = [
        each.name for each in kernels.kernels
        if each.walk is not None and used & {*each.stores, *each.ends.values()}
    ]  # fmt: skip
    return Decision("waits", (_listed(walks),)) if walks else Decision("free")


def _behind(kernels: Kernels, ids: Sequence[int]) -> set[str]:
    """The buffers that what PyTorch makes of them is read from."""
    stored = {id: name for each in kernels.kernels for name, id in each.stores.items()}
    waiting, found = [id for id in ids if id in kernels.fallback], set[str]()
    while waiting:
        for id in kernels.graph[waiting.pop()].operands:
            if id in stored:
                found.add(stored[id])
            elif id in kernels.fallback:
                waiting.append(id)
    return found


def _is_pair(step: Step) -> bool:
    """Whether rows meet by sums of gates in memory."""
    return step.load is None and getattr(step.node.op, "anchor", "") == ck.SUMS


def _split(kernel: Kernel) -> Decision:
    if kernel.rows is not None:
        return Decision("rows", (str(kernel.most), f"`{kernel.rows.name}`"))
    if kernel.blocked is not None:
        return Decision("blocked", (str(BLOCK), f"`{kernel.blocked.name}`"))
    if kernel.split is None:
        return Decision("undivided")
    if kernel.second_split is not None:
        dims = f"`{kernel.split.name}`", f"`{kernel.second_split.name}`"
        return Decision("few", (str(FEW), *dims, str(NEAR), str(kernel.most)))
    block = str(kernel.most), f"`{kernel.split.name}`"
    if kernel.summed:
        return Decision("parts", (*block, _listed(sorted(kernel.summed))))
    return Decision("split", block)


def of_buffer(kernels: Kernels, buffer: Buffer) -> tuple[Decision, Decision]:
    """The reasons why a value is materialised, and why as wide as it is."""
    return _stands(kernels, buffer), _width(kernels, buffer)


def _stands(kernels: Kernels, buffer: Buffer) -> Decision:
    if buffer.name in kernels.graph.outputs:
        return Decision("saved" if is_saved(buffer.name) else "result")
    if any(buffer.name in each.ends.values() for each in kernels.kernels):
        return Decision("end")
    readers = [each.name for each in kernels.kernels if buffer.name in _read(each)]
    return Decision("passed", (_listed(readers),)) if readers else Decision("fallback")


def _read(kernel: Kernel) -> set[str]:
    return {str(step.load) for step in Program(kernel).loads()}


def _width(kernels: Kernels, buffer: Buffer) -> Decision:
    outside = buffer.name in kernels.graph.outputs and not is_saved(buffer.name)
    if outside or buffer.type.dtype != "real":
        return Decision("outside")
    if kernels.graph.outputs.get(buffer.name) in exact_states(kernels.graph):
        return Decision("divided")
    return Decision({NARROW: "narrow", SUMMED: "summed"}.get(buffer.width, "wide"))


def computed_again(kernels: Kernels) -> Iterator[tuple[int, Decision]]:
    """Nodes that several kernels compute, rather than read."""
    for id, names in again(kernels.kernels).items():
        yield id, Decision("again", (_listed(names),))


def left_to_pytorch(kernels: Kernels) -> Iterator[tuple[int, Decision]]:
    """Nodes that are in no kernel."""
    for id, why in sorted(kernels.fallback.items()):
        if not isinstance(kernels.graph[id].op, ir.Constant):
            yield id, Decision("left", (why,))


def _listed(names: object) -> str:
    """`a`, `b` and `c`."""
    found = [f"`{name}`" for name in names]  # type: ignore[attr-defined]
    return " and ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else found[0]

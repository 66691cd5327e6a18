"""Whether a walk goes in segments at some sizes, what that costs, and why it does or does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from archc.compile import SCHEDULE
from archc.dims import TIME
from archc.ir.chunk import CHUNK
from archc.ir.kernel import Kernel
from archc.schedule.cost import cost
from archc.schedule.joining import SEGMENT
from archc.schedule.program import Program, Setting
from archc.schedule.segments import MATRIX, WIDEST, chunks_of_segment
from archc.show.planned import Part, Planned


@dataclass(frozen=True)
class Division:
    """How a walk of `programs` and `chunks` goes on so many `processors`: in `segments` of `length`
    chunks, or whole where `length` is 0; `why` it cannot go in segments, or "". The `launches` and
    `bytes` that segments take more, and the seconds of both ways, are computed, nothing is
    measured; they are 0 where it goes whole."""

    programs: int
    processors: int
    chunks: int
    length: int = 0
    segments: int = 1
    why: str = ""
    launches: int = 0
    bytes: int = 0
    whole: float = 0.0
    split: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        known = {"programs": self.programs, "processors": self.processors, "chunks": self.chunks}
        if self.why:
            return {**known, "segments": 1, "why": self.why}
        if not self.length:
            return {**known, "segments": 1}
        seconds = {"whole": self.whole, "in segments": self.split}
        more = {"launches more": self.launches, "bytes more": self.bytes, "seconds": seconds}
        more["chunks of a segment"] = self.length
        return {**known, "segments": self.segments, **more}


def walks_chunks(kernel: Kernel) -> bool:
    """Whether a kernel is a walk of a chunked form."""
    axes = (axis for node in kernel.graph for axis in node.type.axes)
    return kernel.walk is not None and any(axis.size.has(CHUNK) for axis in axes)


def division(plan: Planned, part: Part, kernel: Kernel) -> Division:
    """How a walk of a plan goes."""
    device = plan.conditions.device
    setting = Setting(plan.setting.sizes, plan.setting.dtype, part.widths)
    program = Program(kernel, setting)
    programs, chunks = program.programs, program.chunks
    found = SCHEDULE.segments(kernel, plan.node.op.stream)
    if isinstance(found, str):
        return Division(programs, device.processors, chunks, why=found)
    passes, each = len(found.ends) + 1, 1 if found.applied is None else MATRIX
    if found.applied is not None and program.size(found.applied) > WIDEST:
        why = f"a matrix is applied along `{found.applied.name}`, which is longer than {WIDEST}"
        return Division(programs, device.processors, chunks, why=why)
    length = chunks_of_segment(programs, chunks, device.processors, passes, each)
    if not length:
        return Division(programs, device.processors, chunks)
    count, sizes = -(-chunks // length), setting.sizes
    parts = Setting(
        {**sizes, "batch": sizes["batch"] * count, **_tokens(plan, length)}, setting.dtype,
        setting.widths,
    )  # fmt: skip
    joined = Setting({**sizes, str(SEGMENT.size): count}, setting.dtype, setting.widths)
    whole = cost(kernel, setting, device)
    split = [
        *(cost(each, parts, device) for each in found.ends), cost(found.join, joined, device),
        cost(found.again or kernel, parts, device),
    ]  # fmt: skip
    return Division(
        programs, device.processors, chunks, length, count, launches=len(split) - 1,
        bytes=sum(each.bytes for each in split) - whole.bytes, whole=whole.expected,
        split=sum(each.expected for each in split),
    )  # fmt: skip


def _tokens(plan: Planned, chunks: int) -> Mapping[str, Any]:
    """The tokens of so many chunks, by the names they go by."""
    tokens = chunks * plan.setting.sizes[str(CHUNK)]
    return {str(TIME.size): tokens, str(plan.node.op.stream.size): tokens}

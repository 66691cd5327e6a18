"""The ops of a chunked recurrence that launch kernels, those that keep nothing for a gradient and
those that take one token after the other; and the function that chooses between them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from archc.backends.eager.library import Both, Ops, op_text
from archc.backends.triton.op import KernelOp
from archc.backends.triton.step_op import StepOp
from archc.backends.writer import COLUMNS, INDENT, Writer, identifier, quoted, rooms_for

if TYPE_CHECKING:
    from archc.backends.eager.chunked import ChunkedFunction
    from archc.backends.triton.step_gradient import StepGradient

    Recurrence: TypeAlias = ChunkedFunction | StepGradient


class KernelOps(Ops):
    """The ops of one recurrence under construction: `eager` and `fast` are its chunked form and the
    gradient of that, in PyTorch and by kernels."""

    kind: type[KernelOp] = KernelOp
    forward: KernelOp
    backward: KernelOp

    def __init__(self, owner: Recurrence, eager: Both, fast: Both):
        super().__init__(owner, eager, fast)
        self.inference = None
        if owner.inference is not None:
            name = self.file.names.fresh(f"{self.title}_infer")
            self.inference = KernelOp(owner, name, eager[0], owner.inference)

    def _brief(self) -> KernelOp | None:
        brief = self.inference
        if brief is not None:
            same = [name for name in self.forward.results if name in brief.results]
            alike = brief.every == self.forward.every and same == [*brief.results]
            assert alike and same == [*self.forward.results][: len(same)], "other results"
        return brief

    def _more_ops(self) -> None:
        """The op that keeps nothing for a gradient, and that for few tokens."""
        if self.inference is not None:
            count, forward = len(self.inference.results), self.forward.name
            fake = f"first_results({count}, {forward}_fake)"
            functions = [f"without_saved({forward})", fake, "no_gradient"]
            title = f"{self.title}_inference"
            schema = f"{title}{self.inference.schema()}"
            self.file.sections.append(op_text(f"{title}_op", schema, functions))
        made = self.owner.stepping
        self.once = StepOp(self.owner, made) if made is not None else None
        if self.once is not None:
            self.once.write()

    # --- who calls ---

    def _together(self) -> str:
        """Whether the op is given packed sequences as they are."""
        return self.forward.fitting(self.owner.inputs).replace("by_kernels", "knows_borders")

    def _fit(self, writer: Writer) -> None:
        """The lines that make chunks as long as kernels have room for."""
        forward, owner = self.forward, self.owner
        plans = [op.fast.plan for op in (forward, self.backward, self.inference) if op is not None]
        least, rows = forward.fast.schedule.fitting(plans)
        if not rows:
            return
        known = {a: owner.inputs[n] for n, a in forward.arguments.items()}
        sizes = []
        for symbol, shortest in least.items():
            argument, place = forward.body.sources[forward.body.sizes[symbol]][0]
            back = place - len(forward.layouts[argument])
            sizes.append(f"{identifier(symbol)}=({known[argument]}.shape[{back}], {shortest})")
        table = self.file.names.fresh(f"{self.title}_rows".upper())
        self.file.sections.append(table_of(table, forward.lengths(rows), [*least]))
        data = f"narrowest({', '.join(known[a] for a in forward.data)})"
        with writer.block(f"if {forward.fitting(owner.inputs)}:"):
            given = [quoted(self.title), table, "chunk", data, *sizes]
            writer.call("chunk = rows_that_fit(", given, ")")

    def _which(self, writer: Writer) -> str:
        """The name of the op to call: one keeps nothing, for where no gradient is asked for."""
        if self.inference is None:
            return self.name
        names = [n for n in self.forward.inputs if not self.forward.is_number(n)]
        decides = f"needs_gradient({', '.join(self.owner.inputs[n] for n in names)})"
        writer.line(f"op = {self.name} if {decides} else {self.title}_inference_op")
        return "op"

    def _few(self, writer: Writer) -> None:
        """Lines for few tokens: by a kernel where nothing learns, or by the loop."""
        owner, once = self.owner, self.once
        if once is not None:
            fits = ", ".join([*owner.real_arguments(), *owner.states.values()])
            with writer.block(f"if by_steps({fits}):"):
                once.call(writer)
                given = [*(owner.inputs[name] for name in once.inputs), *once.made.extra]
                one = "[0]" if len(owner.states) + len(owner.results) == 1 else ""
                given += rooms_for(owner.states.values(), self.file.slots)
                writer.call(f"return {once.made.name}(", given, f"){one}")
        super()._few(writer)


def table_of(name: str, rows: Mapping[tuple[int, ...], int], sizes: Sequence[str]) -> str:
    """The lines of a table of the chunks that fit."""
    blocks = ", ".join(f"block of {size}" for size in sizes)
    entries = " ".join(f"({', '.join(map(str, key))}): {count}," for key, count in rows.items())
    whole = entries.replace(", ", ",~").replace(": ", ":~").replace(",~(", ", (")
    lines = textwrap.wrap(whole, COLUMNS - len(INDENT))
    return "\n".join([
        "# The most rows of a chunk that kernels have room for, where these are not 64, and where",
        "# there is none even for 16 the bytes that these need, by",
        f"# (bytes of a number, {blocks}).",
        f"{name} = {{", *(INDENT + each.replace("~", " ") for each in lines), "}", "",
    ])  # fmt: skip

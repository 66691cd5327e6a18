"""A chunked recurrence as ops of torch: one for its values, one for their gradients.

Each has its schema, the function that does it, one that tells what its results are like, and its
gradient; that of the gradient is refused. The names of ops begin with a namespace that no other
text has, so that files stand beside one another in one process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from archc.backends.eager.file import File
from archc.backends.eager.graph_function import GraphFunction, plain
from archc.backends.eager.op import Op
from archc.backends.lines import laid_out
from archc.backends.writer import COLUMNS, INDENT, Writer, literals, quoted

from archc.ir.value_names import cotangent

if TYPE_CHECKING:
    from archc.backends.eager.chunked import ChunkedFunction

Both = tuple[GraphFunction, GraphFunction]

DIGEST = "@" * 12
"""Where the digest of a file's text goes, in the namespace of its ops."""

REFUSED = "no_second_gradient"


def named(text: str) -> str:
    """A text with the digest of what it was in the names of its ops."""
    return text.replace(DIGEST, hashlib.sha256(text.encode()).hexdigest()[: len(DIGEST)])


def use_space(file: File, title: str) -> None:
    """Ask for the namespace of a file's ops, which is called after the first of them."""
    if not file.spaced:
        file.spaced = True
        space = quoted(f"{title}_{DIGEST}")
        file.sections.insert(0, f"SPACE = free_space({space}, {quoted(title)})")


def op_text(name: str, schema: str, functions: Sequence[str]) -> str:
    """The lines that make an op."""
    room = COLUMNS - len(INDENT) - 1
    texts = literals(schema, room)
    called = "\n".join(laid_out([*functions], "", room)).splitlines()
    called[-1] = f"{called[-1].rstrip(',')},"
    lines = ["SPACE,", *texts[:-1], f"{texts[-1]},", *called]
    return "\n".join([f"{name} = new_op(", *(INDENT + each for each in lines), ")"])


class Ops:
    """The ops of one recurrence under construction: `eager` is its chunked form and the gradient of
    that in PyTorch, `fast` is what may do both instead."""

    kind: type[Op] = Op

    def __init__(self, owner: ChunkedFunction, eager: Both, fast: Both):
        self.owner, self.file = owner, owner.scope.file
        self.title, fresh = owner.title, self.file.names.fresh
        self.forward = self.kind(owner, fresh(f"{self.title}_forward"), eager[0], fast[0])
        self.backward = self.kind(owner, fresh(f"{self.title}_backward"), eager[1], fast[1])
        self.name = fresh(f"{self.title}_op")
        self.gradient = fresh(f"{self.title}_gradient_op")

    def write(self) -> None:
        """The functions of both, the ops, and the function that calls them."""
        fits = self.fits = self.forward.fits()
        forward = self.forward.function(fits, self._brief()), self.forward.fake()
        backward = self.backward.function(), self.backward.fake()
        more = [self._gradient(), self._keep()]
        name = f"{self.title}_gradient"
        self._new(self.gradient, name, self.backward, [*backward, REFUSED])
        self._new(self.name, self.title, self.forward, [*forward, *more])
        self._more_ops()
        self._choice()
        self._ask_for_space()

    def _brief(self) -> Op | None:
        """The op that keeps nothing for a gradient, if there is one."""
        return None

    def _more_ops(self) -> None:
        """Write the ops besides the two."""

    def _ask_for_space(self) -> None:
        """Ask for a namespace."""
        use_space(self.file, self.title)

    def _new(self, name: str, title: str, op: Op, functions: list[str]) -> None:
        """The line that makes an op."""
        self.file.sections.append(op_text(name, f"{title}{op.schema()}", functions))

    # --- what autograd is told ---

    def _keep(self) -> str:
        """The function that keeps what the gradient needs; its name."""
        owner, op, writer = self.owner, self.forward, Writer()
        name = self.file.names.fresh(f"{self.title}_keep")
        saved = [plain(each) for each in owner.form.saved]
        made = list(map(plain, op.results))
        tensors, rest = self._kept()
        none = [plain(n) for n in op.results if self._has_no_gradient(n)]
        saving = bool(saved) and made[-len(saved) :] == none[-len(saved) :] == saved
        if saving:
            made[-len(saved) :], none[-len(saved) :] = ["*saved"], ["*saved"]
            tensors = [*tensors[: -len(saved)], "*saved"]
        writer.line(f"def {name}(ctx, inputs, output):")
        writer.depth += 1
        writer.docstring(["What the gradient needs of a call, and what of it has no gradient."])
        writer.line(f"{', '.join(op.every)} = inputs")
        writer.line(f"{', '.join(made)}{',' * (made == [made[0]])} = output")
        borders = ["cu_seqlens"] * op.packed
        writer.call("ctx.save_for_backward(", [*tensors, *borders], ")")
        writer.line(f"ctx.rest = ({', '.join(rest)}{',' * bool(rest)})")
        like = [f"result_kind({plain(n)})" for n in self._arriving()]
        writer.call("ctx.like = (", like, ",)" if len(like) == 1 else ")")
        if none:
            writer.call("ctx.mark_non_differentiable(", none, ")")
        writer.line("ctx.set_materialize_grads(False)")
        self.file.sections.append(writer.text())
        return name

    def _has_no_gradient(self, name: str) -> bool:
        return name not in self.owner.outputs or not self.forward.is_real(name)

    def _arriving(self) -> list[str]:
        """The results whose gradients the gradient asks for."""
        return [n for n in self.owner.outputs if cotangent(n) in self.backward.inputs]

    def _kept(self) -> tuple[list[str], list[str]]:
        """The values that the gradient needs besides its cotangents: tensors, and the rest."""
        forward, backward = self.forward, self.backward
        known = {**forward.arguments, **{n: plain(n) for n in self.owner.form.saved}}
        names = [n for n in backward.inputs if n in known]
        tensors = [known[n] for n in names if not backward.is_number(n)]
        numbers = [known[n] for n in names if backward.is_number(n)]
        return tensors, [*numbers, *self.owner.extra, *forward.last]

    def _gradient(self) -> str:
        """The function that is the gradient of the op; its name."""
        writer, name = Writer(), self.file.names.fresh(f"{self.title}_derive")
        arriving = {n: plain(cotangent(n)) for n in self.owner.outputs}
        every = [*arriving.values(), "*_"] if self.owner.form.saved else [*arriving.values()]
        writer.call(f"def {name}(", ["ctx", *every], "):")
        writer.depth += 1
        doc = "The gradients of what entered; where nothing depends on a result, its own is a 0."
        writer.docstring([doc])
        tensors, rest = self._kept()
        last = self.forward.last
        numbers = rest[: len(rest) - len(self.owner.extra) - len(last)]
        packed = self.forward.packed
        writer.line(f"{'*kept, cu_seqlens' if packed else 'kept'} = ctx.saved_tensors")
        for place, result in enumerate(self._arriving()):
            d = arriving[result]
            writer.line(f"{d} = or_zero({d}, ctx.like[{place}])")
        ends = [arriving[n] for n in self._arriving()]
        if numbers:
            writer.line(f"{', '.join(tensors)}{',' * (len(tensors) == 1)} = kept")
            writer.line(f"{', '.join(rest if packed else [*numbers, '*rest'])} = ctx.rest")
            known = {**self.forward.arguments, **{n: plain(n) for n in self.owner.form.saved}}
            known |= {cotangent(n): d for n, d in arriving.items()}
            given = [*(known[n] for n in self.backward.inputs), "*rest"]
        else:
            given = ["*kept", *ends, "*ctx.rest"]
        if packed:
            own = [] if numbers else ["*ctx.rest[:-1]" if last else "*ctx.rest"]
            own = self.owner.extra if numbers else own
            given[-1:] = [*own, "cu_seqlens", *["ctx.rest[-1]" for _ in last]]
        made = list(map(plain, self.backward.results))
        slots = [plain(cotangent(n)) for n in self.forward.inputs]
        left = "made" if slots == made and len(made) > 1 else ", ".join(made)
        writer.call(f"{left} = {self.gradient}(", given, ")")
        slots = ["*made"] if left == "made" else [d if d in made else "None" for d in slots]
        missing = ["None"] * (len(self.owner.extra) + len(self.forward.options))
        items = ", ".join([*slots, *missing])
        writer.line(f"return ({items},)" if len(slots) + len(missing) == 1 else f"return {items}")
        self.file.sections.append(writer.text())
        return name

    # --- who calls ---

    def _choice(self) -> None:
        """The function that takes steps for few tokens and the op for many."""
        owner, writer = self.owner, Writer()
        size = owner.constants()
        every = [*owner.inputs.values(), *owner.extra]
        borders = ["cu_seqlens=None"] * owner.packed
        writer.call(f"def {self.title}(", [*every, f"chunk={size}", *borders], "):")
        writer.depth += 1
        owner.document(writer)
        self.forward.check_tensors(writer, owner.inputs)
        length, packed = owner.length_text(), self.forward.packed
        if owner.packed:
            owner.check_packed(writer, self.title)
            fits = f"not {self._together()}" if packed else ""
            owner.one_by_one(writer, self.title, [*every, "chunk"], fits)
        steps = f"chunk is None or few({length}, STEPS)"
        with writer.block(f"if cu_seqlens is None and ({steps}):" if packed else f"if {steps}:"):
            self._few(writer)
        like = next(iter(owner.states.values()))
        writer.line(f"chunk = rows_of_chunk(chunk, {length}, {like}, STEPS)")
        self._fit(writer)
        given = [*(owner.inputs[n] for n in self.forward.inputs), *owner.extra]
        given += ["cu_seqlens"] * packed
        name = self._which(writer)
        wanted = list(self.forward.inputs)
        if owner.in_runs(wanted):
            kept = owner.write_runs(writer, name, given, "in_runs", "joined({})", True)
            ends = [*owner.states.values()]
        else:
            kept, ends = owner.results_and_ends, []
            owner.write_run(writer, name, kept, given, True)
        made = [*kept, *ends]
        writer.line(f"return {', '.join(made)}")
        self.file.sections.append(writer.text())

    def _together(self) -> str:
        """Whether the op is given packed sequences as they are: where torch compiles."""
        return f"(chunk is not None and in_a_graph({self.owner.length_text()}))"

    def _fit(self, writer: Writer) -> None:
        """Lines that say how long chunks may be."""

    def _which(self, writer: Writer) -> str:
        """The name of the op to call."""
        return self.name

    def refuse(self, writer: Writer) -> None:
        """Lines that refuse what a loop in PyTorch might take for something else."""
        names, forward = self.owner.inputs, self.forward
        forward.refuse(writer, self.fits, names)
        known = {argument: names[n] for n, argument in forward.arguments.items()}
        decisive = [known[a] for a in forward.decisive]
        writer.call("check_together(", [quoted(self.owner.title), *decisive], ")")

    def _few(self, writer: Writer) -> None:
        """Lines for few tokens: the loop."""
        owner = self.owner
        self.refuse(writer)
        steps = [*owner.inputs.values(), *owner.needed[owner.name]]
        writer.call(f"return {owner.name}(", steps, ")")

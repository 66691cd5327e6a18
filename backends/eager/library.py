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
LEARNING = "new_op_with_gradient"


def named(text: str) -> str:
    """A text with the digest of what it was in the names of its ops."""
    return text.replace(DIGEST, hashlib.sha256(text.encode()).hexdigest()[: len(DIGEST)])


def use_space(file: File, title: str) -> None:
    """Ask for the namespace of a file's ops, which is called after the first of them."""
    if not file.spaced:
        file.spaced = True
        space = quoted(f"{title}_{DIGEST}")
        file.sections.insert(0, f"SPACE = free_space({space}, {quoted(title)})")


MOST_ARGUMENTS = 64
"""The largest number of arguments that an op of torch takes."""


def wide(arguments: Sequence[str]) -> list[str]:
    """The argument that says of an op that it has more of them."""
    return ["wide=in_a_list"] * (len(arguments) > MOST_ARGUMENTS)


def op_text(name: str, schema: str, functions: Sequence[str], make: str = "new_op") -> str:
    """The lines that make an op."""
    room = COLUMNS - len(INDENT) - 1
    texts = literals(schema, room)
    more = wide(schema.partition("(")[2].rpartition(") -> ")[0].split(", "))
    called = "\n".join(laid_out([*functions, *more], "", room)).splitlines()
    called[-1] = f"{called[-1].rstrip(',')},"
    lines = ["SPACE,", *texts[:-1], f"{texts[-1]},", *called]
    return "\n".join([f"{name} = {make}(", *(INDENT + each for each in lines), ")"])


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
        self.shapes = self.forward.shapes()
        forward = self.forward.function(self.shapes, self._brief()), self.forward.fake()
        backward = self.backward.function(), self._fake_gradient()
        self._both(forward, backward)
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

    def _both(self, forward: Sequence[str], backward: Sequence[str]) -> None:
        """The lines that make the two ops: `forward` and `backward` are their functions."""
        named = self._in_schema()
        slots = [named[n] for n in self.backward.results]
        schema = f"{self.title}_gradient{self.backward.schema(slots, named)}"
        self.file.sections.append(op_text(self.gradient, schema, [*backward, REFUSED]))
        schema = f"{self.title}{self.forward.schema([named[n] for n in self.forward.results])}"
        given = schema, [*forward, self.gradient], LEARNING
        self.file.sections.append(op_text(self.name, *given))

    def _in_schema(self) -> dict[str, str]:
        """How the schemas of both ops call values, by their names in graphs: gradients `d_x`, and
        nothing else as an argument or a gradient."""
        known, taken = dict(self.forward.arguments), {*self.forward.every}
        for result in self.forward.results:
            known[result] = plain(result)
            while {known[result], f"d_{known[result]}"} & taken:
                known[result] += "_"
            taken |= {known[result], f"d_{known[result]}"}
        return known | {cotangent(name): f"d_{each}" for name, each in known.items()}

    def _fake_gradient(self) -> str:
        """What gradients are like: the names of arguments, or of a function."""
        named = self._in_schema()
        like = self.backward.alike()
        return quoted(" ".join(named[n] for n in like)) if like else self.backward.fake()

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
        forward.refuse(writer, self.shapes, names)
        known = {argument: names[n] for n, argument in forward.arguments.items()}
        decisive = [known[a] for a in forward.decisive]
        writer.call("check_together(", [quoted(self.owner.title), *decisive], ")")

    def _few(self, writer: Writer) -> None:
        """Lines for few tokens: the loop."""
        owner = self.owner
        self.refuse(writer)
        steps = [*owner.inputs.values(), *owner.needed[owner.name]]
        writer.call(f"return {owner.name}(", steps, ")")

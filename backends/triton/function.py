"""A graph becomes a function that launches kernels; what is in none is in PyTorch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

import sympy
from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import BOOL, DATA, INT, NUMBER, SHORT, Value
from archc.backends.expression import UNARY, Text
from archc.backends.lines import words
from archc.backends.triton.dense import dense, laid_out
from archc.backends.triton.kernel_program import (
    KernelProgram,
    constants_of,
    launch_kernel_program,
    warps_of,
)
from archc.backends.triton.launch import filled
from archc.backends.triton.naming import pointer
from archc.backends.triton.packed import read_by_chunks, why_alone
from archc.backends.triton.program_launch import add_program
from archc.backends.triton.schedule import Schedule, written
from archc.backends.triton.segments import Launch, from_zero, launch_walk
from archc.backends.writer import INDENT, Writer

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK, is_end
from archc.ir.graph import Graph, Node
from archc.ir.kernel import FEW, NARROW, NEAR, SUMMED, Buffer, loaded_by_walk, shrinking
from archc.ir.value_names import is_saved, primal, unsaved
from archc.lowering.about import places
from archc.lowering.paired import DIMS, DIMS_OF_A_PART, NEAR_DIMS, NEAR_OF_A_PART
from archc.source import lines_of
from archc.tile.language import AtMost
from archc.tile.rereads import rereads

TORCH = {"int": "torch.int32", "bool": "torch.bool"}


OWN = ("BLOCK", "AGAIN", "RUN", "ALONE", "BACKWARD")
"""Constants that each launch has its own of."""

VIEWS = (ir.Constant, ck.Expand, ck.Select)
"""Ops that PyTorch does without work worth a word."""


def _fits(each: AtMost, known: Mapping[str, str]) -> str:
    """A condition on sizes of a program, as text."""
    sides = [
        [one.as_base_exp() for one in sympy.Mul.make_args(side)] for side in (each.size, each.most)
    ]
    left, right = (
        " * ".join(
            known.get(str(base), str(base)) for base, times in side for _ in range(int(times))
        )
        for side in sides
    )
    return f"{left} <= {right}"


class KernelFunction(GraphFunction):
    """One function under construction: buffers, launches, and lines of PyTorch between them.

    The op that calls it has switched autocast off.
    """

    wrapper = "compiled_together"

    def __init__(
        self, scope: Scope, graph: Graph, name: str, given: Mapping[str, Value],
        order: Sequence[str], stream: Axis, heads: Sequence[str], schedule: Schedule,
        fused: bool = False,
    ):  # fmt: skip
        self.schedule, graph = schedule, schedule.prepare(graph, heads)
        super().__init__(scope, graph, name, given, order, stream)
        self.plan, self.kernels = written(graph, name, stream, heads, schedule, fused)
        self.buffers = {buffer.name: buffer for buffer in self.plan.buffers}
        self.body.dtype = "torch.float32"
        self.made: set[str] = set()
        self.dense = {text for name, text in self.arguments.items() if is_saved(name)}
        self.entering: list[str] = []
        self.settings: dict[tuple[str, ...], str] = {}
        self.flags: list[str] = []
        self.constants: dict[str, str] = {}
        self.marks: list[int] = []
        self.keeping: list[str] = []
        brief = fused and not any(map(is_saved, graph.outputs))
        self.body.writer.margin += len(INDENT) * brief  # it may stand in a branch
        self.alone = why_alone(self.graph, self.plan, stream)
        self.gaps = read_by_chunks(self.graph, self.plan)
        self.sequences = self.body.names.fresh("sequences")
        self.even = self.body.names.fresh("even")
        self.shared = self.body.names.fresh("fixed")
        self.nodes = {name: id for each in self.plan.kernels for id, name in each.loads.items()}
        self.nodes |= {name: id for each in self.plan.kernels for name, id in each.stores.items()}
        self._widen()

    def _widen(self) -> None:
        """PyTorch reads real inputs in float32, as it reads what kernels make for it."""
        for node in (self.inputs[name] for name in self.reals):
            if self._reaches_host(node.id):
                value = self.body.values[node.id]
                self.body.values[node.id] = replace(value, text=Text(f"{value.text}.float()"))

    def _reaches_host(self, id: int) -> bool:
        """Whether PyTorch needs a value, as it is or for what no kernel makes."""
        kernels = self.plan.kernels
        stored = {id for each in kernels for id in each.stores.values()}
        stored |= {each.walk for each in kernels if each.walk is not None}
        waiting = [id]
        while waiting:
            users = set(self.graph.users(waiting.pop()))
            if users & set(self.plan.fallback):
                return True
            waiting += users - stored
        return False

    def fill(self) -> None:
        """The launches; PyTorch's lines come where a kernel or an output asks for them."""
        self.body.packed = "sequence_rows" if self.packed else ""
        for place, each in enumerate(self.kernels):
            if each.kernel.walk is None:
                title = self.add_kernel(each)
                self.launch(each, title, Launch(self.arguments_of(each), self._rows(each)))
            else:
                found = self.schedule.segments(each.kernel, self.stream)
                walk = from_zero(self, each, found)
                launch_walk(self, walk, self.add_kernel(walk), found, self._rows(walk))
            self._leave(place)
            self.mark()

    def mark(self) -> None:
        """Note that a step ends here."""
        self.marks.append(len(self.body.writer.lines))

    def begins_as(self, brief: KernelFunction, own: list[str]) -> bool:
        """Whether one that keeps nothing, and returns `own`, begins with the same steps: then it
        becomes a branch of this one."""
        mine, its = self.body.writer.lines, brief.body.writer.lines
        steps = zip(self.marks, brief.marks, strict=False)
        same = [*takewhile(lambda at: _words(mine[: at[0]]) == _words(its[: at[1]]), steps)]
        both = self.constants.keys() & brief.constants.keys()
        if any(self.constants[name] != brief.constants[name] for name in both):
            return False
        if not same or _frame(self) != _frame(brief):
            return False
        self.constants |= brief.constants
        here, there = same[-1]
        lines = Writer()
        lines.include(mine[:here])
        with lines.block("if not keep:"):
            lines.include(its[there:])
            lines.returns(own)
        lines.include(mine[here:])
        self.body.writer.lines, self.body.asked = lines.lines, self.body.asked | brief.body.asked
        self.entering += [each for each in brief.entering if each not in self.entering]
        self.last, self.keeps = (*self.last, "keep"), True
        self.keeping, brief.keeping, brief.name = ["True"], ["False"], self.name
        self._note(f", {len(brief.kernels)} where nothing is kept for a gradient")
        return True

    def define(self, title: str, made: list[str]) -> dict[str, str]:
        if not self.keeps:
            self._note()
        return super().define(title, made)

    def _leave(self, place: int) -> None:
        """The line that gives the memory back of what no kernel after this one reads: what PyTorch
        is asked for next on the same stream may be there."""
        later = self.kernels[place + 1 :]
        if not any(self._makes(each) for each in later):
            return
        kept = {node.id for each in later for node in each.arguments.values()}
        kept |= {*self.graph.outputs.values()}
        read = [node.id for node in self.kernels[place].arguments.values()]
        texts = {id: str(self.body.values[id].text) for id in read if id in self.body.values}
        left = self.flags + [
            text for id, text in texts.items()
            if text in self.made and id not in kept and not self._reaches_host(id)
        ]  # fmt: skip
        writer, self.flags = self.body.writer, []
        for names in filled([*dict.fromkeys(left)], writer.room - len("del ")) if left else []:
            writer.line(f"del {names}")

    def _makes(self, made: KernelProgram) -> bool:
        """Whether a kernel that is still to come makes something."""
        written = [*made.kernel.stores.values(), *map(self.nodes.get, made.kernel.ends.values())]
        return any(id not in self.body.values for id in written)

    def add_kernel(self, made: KernelProgram) -> str:
        """Write a kernel to the file, unless an equal one is there, as those of a forward and of an
        inference often are; its name there. One of which no value has a line of its own in the spec
        says where the recurrence stands."""
        program = made.lowered.program
        if self.span is not None and not places(made.kernel):
            program = replace(program, doc="\n".join([program.doc, *lines_of([self.span])]))
        return add_program(self.scope.file, program)

    def _note(self, more: str = "") -> None:
        """Note this function at the head of the file."""
        count = len(self.kernels)
        lines = [f"    {self.name}: {count} kernel{'s' * (count != 1)}{more}"]
        for op, why in dict.fromkeys(
            (type(self.graph[id].op).__name__, why)
            for id, why in sorted(self.plan.fallback.items())
            if not isinstance(self.graph[id].op, VIEWS)
        ):
            lines.append(f"        in PyTorch: {op}, as {why}")
        if not self.packed:
            why = f", as {self.alone}" if self.alone else ""
            lines.append(f"        packed sequences: each alone{why}")
        self.scope.file.notes += lines

    def _head(self, used: Collection[str]) -> list[str]:
        """The dtype of the data, and what enters contiguous, before the counts of chunks."""
        self.body.asked.discard("data")
        used = {*used, *words(self.constants.values())}
        data = [x for name, x in self.reals.items() if not is_end(name)] or self.reals.values()
        head = [f"data = narrowest({', '.join(data)})"]
        lines = Writer()
        dense(lines, self.entering)
        head += lines.lines
        counts = super()._head(used)
        head += self._even_head() if self.even in used else []
        fixed, given = Writer(), [f"{name}={text}" for name, text in self.constants.items()]
        fixed.call(f"{self.shared} = compiled_for(", given, ")")
        return [*head, *(self._packed_head(used) if self.packed else counts), *fixed.lines]

    def fixed(self, constants: Mapping[str, str]) -> str:
        """The constants of a launch: those that a name says enough of are made once, and every
        kernel takes its own of them."""
        alike = {n: t for n, t in constants.items() if n not in OWN}
        for name, text in alike.items():
            self.constants.setdefault(name, text)
        own = [f"{n}={t}" for n, t in constants.items() if self.constants.get(n) != t]
        return f"{self.shared} | dict({', '.join(own)})" if own else self.shared

    def _even_head(self) -> list[str]:
        """The line that says whether tokens fill every chunk: of packed sequences that is not
        known without waiting for the device."""
        packed = "cu_seqlens is None and " if self.packed else ""
        return [f"{self.even} = int({packed}{self.stream_length()} % chunk == 0)"]

    def _output(self, name: str, layout: Sequence[str]) -> str:
        """An output in that layout, in memory of its own: that of a buffer, the first time."""
        text = super()._output(name, layout)
        if text in self.made and self.graph[self.graph.outputs[name]].type.dtype == "real":
            self.made.discard(text)
            return text
        if name in self.absent:
            return text
        return f"own({text}, {self.dtype_of(name)})"

    def _packed_head(self, used: Collection[str]) -> list[str]:
        """The lines that lay chunks out for packed sequences, so that none has tokens of two."""
        tokens, batch = self.stream_length(), self.body.ask(self.body.lengths["batch"])
        count, *others = [name for name in self.counts if name in used] or ["_"]
        names = f"{self.sequences}, {count}, chunk_rows, sequence_rows"
        made = f"tables_of_chunks(cu_seqlens, {batch}, {tokens}, chunk)"
        return [f"{names} = {made}", *(f"{name} = {count}" for name in others)]

    def arguments_of(self, made: KernelProgram, later: Collection[str] = ()) -> dict[str, str]:
        """Tensors by name, after the lines that make room for results, but for those of `later`."""
        kernel = made.kernel
        written = {**kernel.stores, **{name: self.nodes[name] for name in kernel.ends.values()}}
        arguments = {}
        for name, node in made.arguments.items():
            if name in later:
                continue
            if name in written:
                self._buffer(self.buffers[name], written[name], made)
            arguments[name] = self._dense(node.id)
        return arguments

    def layout_of(self, id: int) -> tuple[str, ...]:
        """The order of a tensor's dims."""
        return self._tensor(id).layout

    def _rows(self, made: KernelProgram) -> str:
        """The table of packed sequences that a kernel reads."""
        rows = "chunk_rows" if made.kernel.walk is None else "sequence_rows"
        return rows if self.packed else "None"

    def launch(self, made: KernelProgram, title: str, launch: Launch) -> None:
        """The lines that launch a kernel."""
        loaded = self.loaded(made, launch) if launch.loaded is None else launch.loaded
        given = ("data", warps_of(self, made), *loaded)
        known = self.settings.get(given)
        settings = (known, [], "") if known else ("settings_of(", [*given], ")")
        launch_kernel_program(self, made, title, launch, settings)

    def name_settings(self, made: KernelProgram, loaded: Sequence[str]) -> None:
        """The line that names how several kernels are launched, where that is long."""
        given = ("data", warps_of(self, made), *loaded)
        if loaded and given not in self.settings:
            name = self.settings[given] = self.body.names.fresh("settings")
            self.body.writer.call(f"{name} = settings_of(", [*given], ")")

    def loaded(self, made: KernelProgram, launch: Launch) -> list[str]:
        """The bytes of each matrix that an inter-chunk scan loads at every chunk, and another
        kernel in every turn of its loop over the parts of a dim."""
        if {DIMS.name, NEAR_DIMS.name} & {*made.lowered.parts}:
            return self._loaded_of_parts(made, launch)
        found = []
        for name, node in made.arguments.items():
            matrices = loaded_by_walk(made.kernel, node.id)
            if matrices is not None:
                count, axes = matrices
                sizes = [self._loaded_length(made, axis) for axis in axes]
                each = f"{launch.arguments[name]}.element_size()"
                found += count * [" * ".join([*sizes, each])]
        return sorted(found)

    def _loaded_length(self, made: KernelProgram, axis: Axis) -> str:
        """How long a matrix is along an axis that a walk loads it along."""
        if axis.kind == "stream":
            return "chunk"
        steps = {n.op.steps for n in made.kernel.graph if isinstance(n.op, ck.Chunks)}
        return self.size(axis.size) if axis.name in steps else self._block(made, axis)

    def _loaded_of_parts(self, made: KernelProgram, launch: Launch) -> list[str]:
        """The bytes of each value of rows that is loaded part by part."""
        parts = made.lowered.parts
        pairs = [n for n in made.kernel.graph if isinstance(n.op, ck.NearGram)]
        near = {operand for node in pairs for operand in node.operands[:2]}
        dims, most = (NEAR_DIMS, NEAR_OF_A_PART) if near else (DIMS, DIMS_OF_A_PART)
        part = f"block_of({self.size(parts[dims.name])}, {most})"
        loaded = (launch.arguments[n] for n in made.arguments if n not in made.kernel.stores)
        matrices = {
            launch.arguments[n] for n, node in made.arguments.items()
            if self._is_rows(made, node) and (not near or node.id in near)
        }  # fmt: skip
        return [f"chunk * {part} * {x}.element_size()" for x in loaded if x in matrices]

    def _is_rows(self, made: KernelProgram, node: Node) -> bool:
        """Whether a value is a matrix of rows by a dim."""
        axes = [axis for axis in node.type.axes if axis.name not in made.grid]
        return sum(axis.kind == "dim" and axis.size != CHUNK for axis in axes) == 1

    def block(self, made: KernelProgram, size: sympy.Expr) -> str:
        """The length of a block of a dim of that size, of which a program has one."""
        second, dim = made.kernel.second_split, shrinking(made.kernel)
        if dim is not None:
            return f"block_of_walk(data, {self.size(size)}, {self.size(dim)})"
        few = "" if second is None else f"{FEW} if {self.size(second.size)} <= {NEAR} else "
        return f"block_of({self.size(size)}, {few}{made.most})"

    def _block(self, made: KernelProgram, axis: Axis) -> str:
        """How long a tile along an axis is."""
        if axis.size == CHUNK:
            return "chunk"
        split = made.kernel.split
        if split is not None and axis.name == split.name:
            return self.block(made, axis.size)
        return f"block_of({self.size(axis.size)})"

    def _dense(self, id: int) -> str:
        """A tensor that is contiguous in the order of its type: what enters is so since the head,
        and what kernels make from the first."""
        body, value, type = self.body, self._tensor(id), self.graph[id].type
        own, text = value.layout == type.names, str(value.text)
        if own and text in self.made | self.dense:
            return text
        if own and text in self.arguments.values():
            self.entering.append(text)
            self.dense.add(text)
        else:
            text = body.names.fresh(text)
            body.writer.line(f"{text} = {laid_out(body, value.text, value.layout, type)}")
            self.dense.add(text)
            body.values[id] = Value(Text(text), type.names, value.kind)
        return text

    def _tensor(self, id: int) -> Value:
        """A value as a tensor with a name."""
        body, value = self.body, self.body.value(id)
        if value.kind == NUMBER:
            made = f"torch.full((), {value.text}, device={body.device}, dtype={body.dtype})"
            value = Value(Text(made), (), DATA)
        if not value.bound:
            name = body.names.fresh(body.hint(self.graph[id]))
            body.writer.line(f"{name} = {value.text}")
            value = Value(Text(name), value.layout, value.kind)
        body.values[id] = value
        return value

    def _buffer(self, buffer: Buffer, id: int, made: KernelProgram) -> None:
        """A line that makes room for a value that a kernel writes."""
        body = self.body
        if id in body.values:
            return
        name = body.names.fresh(pointer(unsaved(buffer.name)))
        kind = TORCH.get(buffer.type.dtype) or self._dtype(buffer)
        streams = [axis for axis in buffer.type.axes if axis.kind == "stream"]
        shape = ", ".join(self.length(axis, bool(streams)) for axis in buffer.type.axes)
        new = "torch.empty"
        if self.packed and id in self.gaps:
            new = "(torch.empty if cu_seqlens is None else torch.zeros)"
        room = f"{new}({shape}, device={body.device}, dtype={kind})"
        place = self._place(buffer, kind, made)
        body.writer.line(f"{name} = {place} else {room}" if place else f"{name} = {room}")
        self.made.add(name)
        summed = buffer.width == NARROW and {*self.graph.users(id)} & {*self.plan.fallback}
        kinds = {"int": INT, "bool": BOOL, "real": SHORT if summed else DATA}
        layout = (self.graph[id].type if buffer.by_tokens else buffer.type).names
        body.values[id] = Value(Text(name), layout, kinds[buffer.type.dtype])

    def _place(self, buffer: Buffer, kind: str, made: KernelProgram) -> str:
        """What stands where a kernel writes a value, and if it may: "" where it does not."""
        if not buffer.over:
            return ""
        buffers = {made.lowered.names.get(each.name): each for each in made.lowered.program.buffers}
        needed = rereads(made.lowered.program, buffers[buffer.over], buffers[buffer.name])
        if needed is None:
            return ""
        known = constants_of(self, made)
        same = [] if kind == "data" else [f"{kind} == data"]
        where = " and ".join([*same, *(_fits(each, known) for each in needed)])
        (id,) = (id for id, name in made.kernel.loads.items() if name == buffer.over)
        return f"{self.body.values[id].text} if {where or True}"

    def _dtype(self, buffer: Buffer) -> str:
        """A gradient is as wide as its value; what runs along tokens is as wide as they are."""
        if buffer.name not in self.graph.outputs or is_saved(buffer.name):
            if buffer.width == SUMMED:
                return "sums_of(data)"
            return "data" if buffer.width == NARROW else "torch.float32"
        value = primal(buffer.name)
        if value in self.arguments:
            return f"{self.arguments[value]}.dtype"
        return "data" if self.stream.name in buffer.type.names else "torch.float32"

    def dtype_of(self, name: str) -> str:
        """The dtype of an output."""
        type = self.graph[self.graph.outputs[name]].type
        if type.dtype != "real":
            return {"int": "torch.int64", "bool": "torch.bool"}[type.dtype]
        return self._dtype(self.buffers.get(name, Buffer(name, type)))

    # --- sizes ---

    def size(self, size: sympy.Expr) -> str:
        """The length of an axis, as text."""
        return self.body.size(size).text

    def length(self, axis: Axis, streams: bool = True) -> str:
        """How long an axis is; of what does not run along a stream the batch has a row for each
        of packed sequences."""
        if axis.size == CHUNK:
            return "chunk"
        if axis.kind == "batch" and self.packed and not streams:
            return self.sequences
        return self.body.length(axis).text

    def chunks(self) -> str:
        """The number of chunks, as text."""
        for node in self.graph:
            for axis in node.type.axes:
                if axis.kind == "stream" and axis.size.has(CHUNK):
                    return self.length(axis)
        return "0"

    def stream_length(self) -> str:
        return self.body.ask(self.body.lengths[self.stream.name])

    def programs(self, made: KernelProgram, batch: str = "", run: str = "") -> str:
        """How many programs there are; `batch` is the number of sequences, or of segments, `run`
        how many chunks a program has, if it is not one."""
        along = made.kernel.walk is None
        found = [
            batch if batch and axis.kind == "batch" else self.length(axis, along)
            for axis in made.kernel.grid
        ]
        if run:
            place = [axis.kind for axis in made.kernel.grid].index("stream")
            found[place] = f"-(-{found[place]} // {run})"
        split = made.kernel.split
        if split is not None:
            block = self.block(made, split.size)
            found.insert(0, f"-(-{self.body.size(split.size).at(UNARY)} // {block})")
        return " * ".join(found) or "1"


def _words(lines: Sequence[str]) -> str:
    """Lines, however they are broken."""
    return "".join("".join(lines).split())


def _frame(function: KernelFunction) -> tuple[object, ...]:
    """The names that steps of a function take from around them."""
    body = function.body
    return (function.arguments, function.counts, function.sequences, body.head, body.lengths,
            body.sizes, function.packed, function.shared)  # fmt: skip

"""A token region in a generated file: its kernels, the op that launches them, its passes in
PyTorch, and the function that chooses. Of a region q of a layer:

    layer_q_values      launches the kernel of the values
    layer_q_gradient    launches the kernel of the gradients
    layer_q_passes      the same in PyTorch
    layer_q             one or the other
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import sympy
from archc.backends.eager.elementwise import IN_FLOAT32
from archc.backends.eager.library import use_space
from archc.backends.eager.literals import literals
from archc.backends.eager.region import extra_arguments, graph_scope
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.value import KIND_OF, Value
from archc.backends.expression import ATOM, UNARY, Text
from archc.backends.index import permuted
from archc.backends.triton.program_launch import ProgramLaunch, count_text, write_program
from archc.backends.writer import COLUMNS, INDENT, Names, Writer, identifier, quoted, snake

from archc.dims import TIME, Axis
from archc.ir import layer as ir
from archc.ir.chunk import cotangent
from archc.ir.graph import Graph
from archc.lowering.token import BLOCK_T, EACH, IO, Lowered, RegionKernels

PART = 256
"""The longest block of a dim that need not be whole."""

NUMBERS = {"values": 4096, "gradient": 1024}
"""How many numbers a tile has of a value, about."""

HELD, SUMMED = 16_384, 2048
"""How many it has along the places of a short convolution too, which threads hold; and where these
also hold the sums of all tokens there."""

FEW, PAIR = 4, 2
"""Places of a short convolution that a tile may have beside as many numbers as any tile has; and
how many a warp has of them where it holds their sums."""

EXTRA = "@extra"
"""Where a call is given what no shape tells, which is known in the end."""


@dataclass(frozen=True)
class Part:
    """One function of a file: its scope and lines; it is given `more` after the tensors, then what
    no shape tells, then the `last` ones; `rooms` are results to make room for at first."""

    name: str
    scope: Scope
    lines: Writer
    doc: list[str]
    more: list[str] = field(default_factory=list)
    last: list[str] = field(default_factory=list)
    rooms: list[str] = field(default_factory=list)


class RegionFunction:
    """The functions of one region under construction."""

    def __init__(self, scope: Scope, made: RegionKernels):
        self.scope, self.file, self.made, self.region = scope, scope.file, made, made.region
        self.graph, self.stream = made.region.graph, made.region.stream
        name = f"{snake(scope.layer)}_{identifier(self.region.name)}"
        self.title = self.file.names.fresh(name)
        names = Names(("cu_seqlens", "each", "block_t", "made"))
        inputs = [*self.region.reads, *self.region.pasts]
        self.arguments = {each: names.fresh(identifier(each)) for each in inputs}
        self.outputs = {each: names.fresh(identifier(each)) for each in self.region.makes}
        self.slopes = {each: names.fresh(f"d_{identifier(each)}") for each in self.outputs}
        self.ds = {each: names.fresh(f"d_{identifier(each)}") for each in self.arguments}
        self.kinds = {each: names.fresh(f"{identifier(each)}_kind") for each in self.outputs}
        self.taken = set(names.taken)
        self.nodes = {n.op.name: n for n in self.graph if isinstance(n.op, ir.Input)}
        real = [n for n in self.arguments if self.nodes[n].type.dtype == "real"]
        self.like = self.arguments[real[0]]
        self.wanted = [each for each in self.arguments if each in made.backward.wanted]

    @property
    def reads(self) -> tuple[int, ...]:
        """The nodes of the layer that it reads."""
        return tuple(self.region.reads.values())

    # --- the call ---

    def call(self) -> None:
        """Write the functions and the line that calls the last of them."""
        scope, region = self.scope, self.region
        given = [self._given(id) for id in region.reads.values()]
        before, after = [], []
        for past in region.pasts.values():
            text, name = self._past(past.looks)
            before.append(text)
            after.append(name)
        self._write()
        made = []
        for id in region.makes.values():
            called = scope.names.fresh(scope.hint(scope.graph[id]))
            node = scope.graph[id]
            scope.values[id] = Value(Text(called), node.type.names, KIND_OF[node.type.dtype])
            made.append(called)
        borders = [scope.cu_seqlens] * self.packed
        more = [scope.ask(self.extra[name]) for name in self.extra]
        left = ", ".join([*made, *after])
        scope.writer.call(f"{left} = {self.title}(", [*given, *before, *borders, *more], ")")

    def _given(self, id: int) -> str:
        """What enters, with its dims in the order of its type."""
        scope = self.scope
        value = scope.value(id)
        if value.kind not in ("int", "bool"):
            value = scope.as_data(value)
        if not value.bound and len(value.text.text) > 30:
            scope.bind(id)
            value = scope.values[id]
            value = value if value.kind in ("int", "bool") else scope.as_data(value)
        return str(permuted(value.text, value.layout, scope.graph[id].type.names))

    def _past(self, looks: int) -> tuple[str, str]:
        """The tokens before the first one, and the name of those that are kept."""
        scope = self.scope
        field = scope.memory.field("past", looks) if scope.memory else None
        assert field is not None, "a layer keeps what its windows look back on"
        after = scope.kept[field.name] = scope.names.fresh(field.name)
        return f"state.{field.name}", after

    @property
    def packed(self) -> bool:
        """Whether borders of packed sequences matter."""
        return bool(self.scope.cu_seqlens) and bool(self.region.pasts)

    # --- the functions ---

    def _write(self) -> None:
        """All of them; what no shape tells comes last."""
        use_space(self.file, self.title)
        parts = [self._passes(), self._room(), self._values(), self._gradient(), self._again(),
                 self._choice()]  # fmt: skip
        found: dict[str, str] = {}
        for part in parts:
            found |= dict(zip(*extra_arguments(self.scope, part.scope), strict=True))
        self.extra = {name: found[name] for name in sorted(found)}
        for part in parts[:-1]:
            self._append(part)
        self._write_op()
        self._append(parts[-1])
        self.file.token_notes.append(f"    {self.title}")

    def _append(self, part: Part) -> None:
        """A function of the file."""
        writer = Writer()
        own = [*self.arguments.values(), *part.more]
        writer.call(f"def {part.name}(", [*own, *self.extra, *part.last], "):")
        writer.depth += 1
        writer.docstring(part.doc)
        write_sizes(writer, part.scope)
        if part.rooms:
            given = [*self.arguments.values(), *self.extra, *part.last]
            writer.call(f"{', '.join(part.rooms)} = {self.title}_room(", given, ")")
        lines = [with_extra(line, list(self.extra)) for line in part.lines.lines]
        writer.include([*part.scope.head, *(line for line in lines if line.strip())])
        self.file.sections.append(writer.text())

    def _body(self, graph: Graph, reads: Mapping[str, int]) -> Scope:
        """A scope whose sizes are read off the shapes of the arguments."""
        axes = {}
        for name, argument in self.arguments.items():
            past = self.region.pasts.get(name)
            count = None if past is None else Axis("past", past.count)
            axes[argument] = [
                count if count is not None and axis.name == self.stream else axis
                for axis in self.nodes[name].type.axes
            ]
        body = graph_scope(self.scope, graph, self.like, axes)
        body.names.taken |= self.taken | {*self.kinds.values()}
        for name, id in reads.items():
            type = self.nodes[name].type
            argument = Text(self.arguments[name])
            body.values[id] = Value(argument, type.names, KIND_OF[type.dtype])
        return body

    def _passes(self) -> Part:
        """The same in PyTorch, as a layer without kernels has it."""
        body = self._body(self.scope.graph, self.region.reads)
        body.sizes |= {str(TIME.size): body.lengths["t"]}
        body.cu_seqlens = "cu_seqlens" if self.packed else ""
        for name, past in self.region.pasts.items():
            body.pasts[past.looks] = self.arguments[name]
        made = []
        for id in self.region.makes.values():
            value = body.value(id)
            made.append(str(permuted(value.text, value.layout, body.graph[id].type.names)))
        after = [body.kept[self.arguments[name]] for name in self.region.pasts]
        lines = Writer()
        lines.include(body.writer.lines)
        lines.returns([*made, *after]) if len([*made, *after]) > 1 else lines.line(
            f"return {made[0]}"
        )
        doc = [f"{self._listed()} in PyTorch."]
        return Part(f"{self.title}_passes", body, lines, doc, self._borders())

    def _borders(self) -> list[str]:
        return ["cu_seqlens"] * self.packed

    def _listed(self) -> str:
        return ", ".join(f"`{name}`" for name in self.outputs.values())

    # --- launches ---

    def _room(self) -> Part:
        """Memory for the results, which also tells what these are like."""
        body, lines = self._body(self.graph, {}), Writer()
        rooms = []
        for name, id in self.graph.outputs.items():
            type = self.graph[id].type
            shape = ", ".join(body.length(axis).text for axis in type.axes)
            kind = {"int": "torch.int64", "bool": "torch.bool"}.get(type.dtype, self.kinds[name])
            rooms.append(f"{self.like}.new_empty(({shape}), dtype={kind})")
        lines.returns(rooms) if len(rooms) > 1 else lines.line(f"return {rooms[0]}")
        doc = [f"Room for {self._listed()}."]
        return Part(f"{self.title}_room", body, lines, doc, last=self._kinds())

    def _values(self) -> Part:
        """The launch of the kernel of the values."""
        body, lines = self._body(self.graph, {}), Writer()
        made = [*self.outputs.values()]
        self._launch(body, lines, self.made.values, {**self.arguments, **self.outputs})
        lines.returns(made) if len(made) > 1 else lines.line(f"return {made[0]}")
        doc = [f"{self._listed()} by a kernel."]
        return Part(f"{self.title}_values", body, lines, doc, last=self._kinds(), rooms=made)

    def _gradient(self) -> Part:
        """The launches of the gradients, and the sums of what programs summed."""
        body, lines = self._body(self.graph, {}), Writer()
        wanted = {name: self.ds[name] for name in self.wanted}
        given = {**self.arguments, **{cotangent(n): d for n, d in self.slopes.items()}}
        given |= {cotangent(name): d for name, d in wanted.items()}
        for name, type in self.made.between.items():
            given[name] = body.names.fresh("moved")
            shape = ", ".join(body.length(axis).text for axis in type.axes)
            lines.line(f"{given[name]} = {self.like}.new_empty(({shape}))")
        for stage in self.made.gradient:
            own = {n: d for n, d in wanted.items() if cotangent(n) in stage.buffers}
            self._launch(body, lines, stage, given, own)
        shares = {n: axes for stage in self.made.gradient for n, axes in stage.shares.items()}
        results = []
        for name, d in wanted.items():
            axes = len(shares.get(cotangent(name), ()))
            summed = f"sum_of_programs({d}, {axes}, {self.arguments[name]})"
            results.append(summed if axes else d)
        lines.returns(results) if len(results) > 1 else lines.line(f"return {results[0]}")
        doc = [f"The gradients of {', '.join(self.arguments[n] for n in wanted)} by kernels."]
        slopes = [*self.slopes.values()]
        return Part(f"{self.title}_gradient", body, lines, doc, slopes, self._kinds())

    def _kinds(self) -> list[str]:
        return [*self.kinds.values()]

    def _launch(
        self, body: Scope, lines: Writer, made: Lowered, tensors: Mapping[str, str],
        wanted: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """The lines that launch a program; `wanted` are gradients to make room for."""
        tile = self.tile(body, made, held=True)
        sizes, constants = self._sizes(body, made), self._constants(body, made)
        tokens = body.ask(body.lengths["t"])
        kind = "values" if wanted is None else "gradient"
        most, warps = NUMBERS[kind], "token_warps(block_t * numbers)"
        if self.holds(made):
            most, few = (SUMMED, PAIR) if made.shares else (HELD, FEW)
            warps = f"token_warps(block_t * numbers // {few})"
        elif made.shares:
            warps = f"max(4, {warps})"
        lines.line(f"numbers = {tile}")
        lines.line(f"block_t = tokens_of_block({tokens}, numbers, {most})")
        known = {**sizes, **constants}
        if EACH in sizes:
            one = [count.subs(each, 1) for _, count in made.program.grid
                   for each in [sympy.Symbol(EACH, integer=True, positive=True)]]  # fmt: skip
            counts = [count_text(count, known).at(UNARY) for count in one]
            programs = " * ".join(counts)
            lines.line(f"each = blocks_of_program({programs}, {self.like}.device)")
        for name, d in (wanted or {}).items():
            lines.line(f"{d} = {self._room_of(body, made, name, known)}")
        buffers = {
            made.buffers[name]: text for name, text in tensors.items() if name in made.buffers
        }
        launch = ProgramLaunch(buffers, sizes, constants, warps=warps)
        program = replace(made.program, name=f"{self.title}_{kind}_kernel")
        write_program(self.file, lines, program, launch)

    def _room_of(self, body: Scope, made: Lowered, name: str, known: Mapping[str, str]) -> str:
        """Room for a gradient, or for the sums of all programs."""
        like = self.arguments[name]
        shares = made.shares.get(cotangent(name))
        if not shares:
            return f"{like}.new_empty({like}.shape)"
        counts = dict(made.program.grid)
        front = ", ".join(str(count_text(counts[axis], known)) for axis in shares)
        return f"{like}.new_empty(({front}, *{like}.shape), dtype=torch.float32)"

    def holds(self, made: Lowered) -> bool:
        """Whether a program has tiles along the places of a short convolution."""
        return any(axis in made.space.unrolled for axis in made.lengths.values())

    def tile(self, body: Scope, made: Lowered, held: bool = False) -> str:
        """The numbers of a token in a tile; `held`: along the places of a short convolution too."""
        blocks = [
            self._block(body, made, name)
            for name, axis in made.lengths.items()
            if axis.kind == "dim" and (held or axis not in made.space.unrolled)
        ]
        return " * ".join(blocks) or "1"

    def _block(self, body: Scope, made: Lowered, name: str) -> str:
        """The length of a block."""
        axis = made.lengths[name]
        most = f", {PART}" if axis == made.space.split else ""
        return f"token_block({body.size(axis.size)}{most})"

    def _sizes(self, body: Scope, made: Lowered) -> dict[str, str]:
        """The numbers of a launch."""
        found = {}
        for symbol in made.program.sizes:
            name = symbol.name
            if name == EACH:
                found[name] = "each"
            elif name in made.options:
                value = made.options[name]
                text = body.size(value) if symbol.is_integer else body.number(value)
                found[name] = str(text)
            else:
                (axis,) = {a.name for n in self.graph for a in n.type.axes
                           if a.kind != "dim" and a.size == made.sizes.get(name)}  # fmt: skip
                found[name] = body.ask(body.lengths[axis])
        return found

    def _constants(self, body: Scope, made: Lowered) -> dict[str, str]:
        """What machine code is made for."""
        found = {}
        for name in made.program.constants:
            if name == IO:
                found[name] = f"{self.like}.dtype"
            elif name == BLOCK_T:
                found[name] = "block_t"
            elif name in made.lengths:
                found[name] = self._block(body, made, name)
            else:
                found[name] = str(body.size(made.sizes[name]))
        return found

    # --- the op, and who calls it ---

    def _numbers(self) -> list[str]:
        """What the op is given besides tensors, as a schema has it."""
        whole = {str(s) for node in self.graph for a in node.type.axes for s in a.size.free_symbols}
        kinds = [f"ScalarType {name}" for name in self.kinds.values()]
        more = [f"{'int' if name in whole else 'float'} {name}" for name in self.extra]
        return [*more, *kinds]

    def _write_op(self) -> None:
        """The op, and what its gradient is taken of where that has one itself."""
        writer = Writer()
        writer.line(f"{self.title}_op = new_token_op(")
        names = [self.arguments[n] for n in self.wanted]
        arguments, numbers = " ".join(self.arguments.values()), "; ".join(self._numbers())
        for texts in (
            ["SPACE"], [quoted(self.title)], _lines(arguments), _lines(numbers),
            [str(len(self.outputs))], _lines(" ".join(names)), [f"{self.title}_values"],
            [f"{self.title}_room"], [f"{self.title}_gradient"], [f"{self.title}_again"],
        ):  # fmt: skip
            writer.include([f"    {text}" for text in texts])
            writer.lines[-1] += ","
        writer.line(")")
        self.file.sections.append(writer.text())

    def _again(self) -> Part:
        """The passes as the op is called."""
        body, lines = self._body(self.graph, {}), Writer()
        every = [*self.arguments.values(), *["None"] * self.packed]
        lines.call(f"made = {self.title}_passes(", [*every, EXTRA], ")")
        lines.line(f"return made[:{len(self.outputs)}]" if self._several() else "return (made,)")
        doc = ["What a gradient of the gradient is taken of."]
        return Part(f"{self.title}_again", body, lines, doc, last=self._kinds())

    def _several(self) -> bool:
        return len(self.outputs) + len(self.region.pasts) > 1

    def _choice(self) -> Part:
        """The function that is called: by kernels where they can do it."""
        body, lines = self._body(self.graph, {}), Writer()
        self.scope_of_choice = body
        programs = (self.made.values, *self.made.gradient)
        tiles = dict.fromkeys(self.tile(body, each) for each in programs)
        many = [self.tile(body, each, held=True) for each in programs if self.holds(each)]
        tiles |= dict.fromkeys(f"{each} // {FEW}" for each in many)
        largest = next(iter(tiles)) if len(tiles) == 1 else f"max({', '.join(tiles)})"
        asked = f"by_token_kernels({', '.join([largest, *self.arguments.values()])})"
        asked = f"cu_seqlens is None and {asked}" if self.packed else asked
        if self.region.pasts:
            kept = sympy.Add(*{past.count for past in self.region.pasts.values()})
            tokens = body.ask(body.lengths["t"])
            lines.line(f"enough = {tokens} >= {body.size(kept)}")
            asked = f"enough and {asked}"
        with lines.block(f"if {asked}:"):
            for name, kind in self.kinds.items():
                lines.line(f"{kind} = {self._kind_of(name)}")
            made = ", ".join(self.outputs.values())
            every = [*self.arguments.values(), EXTRA, *self.kinds.values()]
            lines.call(f"{made} = {self.title}_op(", every, ")")
            lines.line(f"return {', '.join([made, *self._kept(lines)])}")
        every = [*self.arguments.values(), *self._borders(), EXTRA]
        lines.call(f"return {self.title}_passes(", every, ")")
        doc = [f"{self._listed()}, by a kernel where there is a GPU."]
        if self.region.pasts:
            doc[0] = doc[0][:-1] + ", and the last tokens of what is looked back on."
        return Part(self.title, body, lines, doc, self._borders())

    def _kept(self, lines: Writer) -> list[str]:
        """The last tokens of each value that is looked back on."""
        found, computed = [], False
        for name, past in self.region.pasts.items():
            looked = self.scope.graph[past.looks].operands[0]
            read = [n for n, id in self.region.reads.items() if id == looked]
            if read:
                found.append(f"kept_tokens({self.arguments[name]}, {self.arguments[read[0]]})")
            else:
                computed = True
                found.append(f"kept[{len(self.outputs) + len(found)}]")
        if computed:
            self._kept_again(lines)
        return found

    def _kept_again(self, lines: Writer) -> None:
        """The passes for the last tokens alone: what is looked back on is made in the region."""
        counts = {past.count for past in self.region.pasts.values()}
        count = self.scope_of_choice.size(sympy.Add(*counts))
        given = []
        for name, argument in self.arguments.items():
            along = self.stream in self.nodes[name].type.names and name not in self.region.pasts
            at = self.nodes[name].type.names.index(self.stream) if along else 0
            start = f"{argument}.shape[{at}] - {Text(str(count)).at(ATOM)}"
            given.append(f"{argument}.narrow({at}, {start}, {count})" if along else argument)
        every = [*given, *["None"] * self.packed, EXTRA]
        lines.call(f"kept = {self.title}_passes(", every, ")")

    def _kind_of(self, name: str) -> str:
        """The dtype that an output has in PyTorch."""
        id = self.graph.outputs[name]
        before = self.graph.ancestors(id) | {id}
        wide = any(_is_wide(self.graph[each].op) for each in before)
        real = [n for n in self.arguments if self.nodes[n].id in before]
        real = [self.arguments[n] for n in real if self.nodes[n].type.dtype == "real"]
        return f"token_kind({', '.join([str(wide), *real])})"


def with_extra(line: str, names: list[str]) -> str:
    """A line with what no shape tells in its place."""
    if names:
        return line.replace(EXTRA, ", ".join(names))
    return line.replace(f", {EXTRA}", "").replace(f"{EXTRA}, ", "").replace(f"{EXTRA},", "")


def _is_wide(op: object) -> bool:
    """Whether autocast does an op in float32."""
    if isinstance(op, ir.Reduce):
        return op.fn in ("sum", "prod")
    return isinstance(op, ir.Elementwise) and op.fn in IN_FLOAT32


def _lines(text: str) -> list[str]:
    """A text as literals that are not too long."""
    return literals(text, COLUMNS - len(INDENT)) or [quoted(text)]

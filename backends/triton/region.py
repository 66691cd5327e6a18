"""A token region in a generated file: its kernels, the ops that launch them, its passes in PyTorch,
and the function that chooses. Of a region q of a layer:

    layer_q_values      launches the kernel of the values
    layer_q_gradient    launches the kernel of the gradients
    layer_q_passes      the same in PyTorch
    layer_q             one or the other

A region that looks back on tokens has kernels for packed sequences too, `layer_q_packed_values` and
so on: these know where each sequence begins and ends. One whose functions would be those of another
but for names calls the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import sympy
from archc.backends.eager.library import use_space
from archc.backends.eager.region import extra_arguments, graph_scope
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.value import KIND_OF, Value
from archc.backends.expression import ADD, UNARY, Text, binary
from archc.backends.index import permuted
from archc.backends.triton.alike import alike
from archc.backends.triton.program_launch import ProgramLaunch, count_text, write_program
from archc.backends.triton.region_parts import (
    EXTRA,
    Part,
    Variant,
    is_wide,
    listed,
    literal,
    with_extra,
)  # fmt: skip
from archc.backends.writer import Names, Writer, identifier, quoted, snake

from archc.dims import TIME, Axis, free_symbols
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.token_region import TokenRegion
from archc.ir.value_names import cotangent
from archc.lowering.token import BLOCK_T, BORDERS, EACH, IO, Lowered, RegionKernels
from archc.lowering.token_borders import SEQUENCES
from archc.tile.language import Buffer

PART = 256
"""The longest block of a dim that need not be whole."""

NUMBERS = {"values": 4096, "gradient": 1024}
"""How many numbers a tile has of a value, about."""

WALKED = 512
"""How many it has along the places of a short convolution too, which threads carry from token to
token."""

TURNS = {"values": 32, "gradient": 128}
"""Tokens that a walk does one after the other: a gradient makes twice as many before the first
again."""


class RegionFunction:
    """The functions of one region under construction."""

    def __init__(
        self, scope: Scope, made: RegionKernels,
        packed: Callable[[TokenRegion], RegionKernels | str],
    ):  # fmt: skip
        self.scope, self.file, self.region = scope, scope.file, made.region
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
        self.nodes = {n.op.name: n for n in self.graph if isinstance(n.op, ir.Input)}
        self.plain = Variant(self.title, made, self.outputs, self.slopes, {})
        self.variants = [self.plain]
        borders = packed(self.region) if self.packed else ""
        if isinstance(borders, RegionKernels):
            self.variants.append(self._packed_variant(borders, names))
        self.taken = set(names.taken)
        real = [n for n in self.arguments if self.nodes[n].type.dtype == "real"]
        self.like = self.arguments[real[0]]
        self.wanted = [each for each in self.arguments if each in made.backward.wanted]

    def _packed_variant(self, made: RegionKernels, names: Names) -> Variant:
        """The kernels for packed sequences."""
        title = self.file.names.fresh(f"{self.title}_packed")
        tails = made.region.tails
        more = {each: names.fresh(identifier(each)) for each in tails}
        ds = {each: names.fresh(f"d_{identifier(each)}") for each in tails}
        self.kinds |= {each: names.fresh(f"{identifier(each)}_kind") for each in tails}
        kept = {past: more[each] for each, past in tails.items()}
        return Variant(title, made, {**self.outputs, **more}, {**self.slopes, **ds}, kept)

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
        passes, choice = self._passes(), self._choice()
        made = {each.title: self._of_variant(each) for each in self.variants}
        found: dict[str, str] = {}
        for part in (passes, choice, *(part for parts in made.values() for part in parts)):
            found |= dict(zip(*extra_arguments(self.scope, part.scope), strict=True))
        self.extra = {name: found[name] for name in sorted(found)}
        begun = len(self.file.sections)
        self._append(passes)
        for variant in self.variants:
            for part in made[variant.title]:
                self._append(part)
            self._write_op(variant)
        self._append(choice)
        self._share(begun)
        self.file.token_notes.append(f"    {self.title}")

    def _share(self, begun: int) -> None:
        """In place of functions that the file has already under other names, a call of these."""
        sections, titles = self.file.sections, [self.title, *(each.title for each in self.variants)]
        title = self.file.titles.setdefault(alike(sections[begun:], titles), self.title)
        if title == self.title:
            return
        del sections[begun:]
        writer = Writer()
        given = [*self.arguments.values(), *self._borders(), *self.extra]
        writer.call(f"def {self.title}(", given, "):")
        writer.depth += 1
        writer.docstring([f"{listed(self.plain)}, as `{title}` makes its own."])
        writer.call(f"return {title}(", given, ")")
        sections.append(writer.text())

    def _of_variant(self, variant: Variant) -> list[Part]:
        """The functions around the op of a variant."""
        return [self._room(variant), self._values(variant), self._gradient(variant),
                self._again(variant)]  # fmt: skip

    def _append(self, part: Part) -> None:
        """A function of the file."""
        writer = Writer()
        own = [*self.arguments.values(), *part.borders, *part.more]
        writer.call(f"def {part.name}(", [*own, *self.extra, *part.last], "):")
        writer.depth += 1
        writer.docstring(part.doc)
        write_sizes(writer, part.scope)
        if part.rooms:
            given = [*self.arguments.values(), *part.borders, *self.extra, *part.last]
            title = part.name.removesuffix("_values")
            writer.call(f"{', '.join(part.rooms)} = {title}_room(", given, ")")
        lines = [with_extra(line, list(self.extra)) for line in part.lines.lines]
        writer.include([*part.scope.head, *(line for line in lines if line.strip())])
        self.file.sections.append(writer.text())

    def _body(self, graph: Graph, reads: Mapping[str, int]) -> Scope:
        """A scope whose sizes are read off the shapes of the arguments."""
        axes = {}
        for name, argument in self.arguments.items():
            past = self.region.pasts.get(name)
            axes[argument] = [
                axis if past is None or axis.kind == "dim" else Axis("past", past.count)
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
        drawn = {id for id in self.reads if isinstance(body.graph[id].op, ir.Noise)}
        body.fused = {
            id: each for id, each in body.fused.items()
            if not drawn & {*body.graph[id].operands}
        }  # what is drawn enters, and is not drawn again
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
        doc = [f"{listed(self.plain)} in PyTorch."]
        return Part(f"{self.title}_passes", body, lines, doc, self._borders())

    def _borders(self) -> list[str]:
        return ["cu_seqlens"] * self.packed

    # --- launches ---

    def _room(self, variant: Variant) -> Part:
        """Memory for the results, which also tells what these are like."""
        body, lines = self._body(self.graph, {}), Writer()
        rooms = []
        for name, id in variant.graph.outputs.items():
            type, edge = variant.graph[id].type, variant.made.region.edge(name)
            lengths = [body.length(axis).text for axis in type.axes]
            if edge is not None:
                lengths[:2] = [self._sequences(), str(body.size(edge.count))]
            kind = {"int": "torch.int64", "bool": "torch.bool"}.get(type.dtype, self.kinds[name])
            rooms.append(f"{self.like}.new_empty(({', '.join(lengths)}), dtype={kind})")
        lines.returns(rooms) if len(rooms) > 1 else lines.line(f"return {rooms[0]}")
        doc = [f"Room for {listed(variant)}."]
        name, last = f"{variant.title}_room", self._kinds(variant)
        return Part(name, body, lines, doc, last=last, borders=variant.borders)

    def _sequences(self) -> str:
        """How many packed sequences there are."""
        past = next(iter(self.region.pasts))
        return f"{self.arguments[past]}.shape[0]"

    def _values(self, variant: Variant) -> Part:
        """The launch of the kernel of the values."""
        body, lines = self._body(self.graph, {}), Writer()
        made = [*variant.outputs.values()]
        tensors = {**self.arguments, **variant.outputs}
        self._in_rows(lines, variant.made.values, self.arguments)
        self._launch(body, lines, variant, variant.made.values, tensors)
        lines.returns(made) if len(made) > 1 else lines.line(f"return {made[0]}")
        doc = [f"{listed(variant)} by a kernel{self._of_packed(variant)}."]
        name, last = f"{variant.title}_values", self._kinds(variant)
        return Part(name, body, lines, doc, last=last, rooms=made, borders=variant.borders)

    def _of_packed(self, variant: Variant) -> str:
        return " for packed sequences" * variant.packed

    def _gradient(self, variant: Variant) -> Part:
        """The launches of the gradients, and the sums of what programs summed."""
        body, lines, made = self._body(self.graph, {}), Writer(), variant.made
        wanted = {name: self.ds[name] for name in self.wanted}
        given = {**self.arguments, **{cotangent(n): d for n, d in variant.slopes.items()}}
        self._in_rows(lines, made.gradient, given)
        given |= {cotangent(name): d for name, d in wanted.items()}
        self._launch(body, lines, variant, made.gradient, given, wanted)
        results = []
        for name, d in wanted.items():
            axes = len(made.gradient.shares.get(cotangent(name), ()))
            summed = f"sum_of_programs({d}, {axes}, {self.arguments[name]})"
            results.append(summed if axes else d)
        lines.returns(results) if len(results) > 1 else lines.line(f"return {results[0]}")
        names = ", ".join(self.arguments[n] for n in wanted)
        doc = [f"The gradients of {names} by a kernel{self._of_packed(variant)}."]
        name, last, slopes = f"{variant.title}_gradient", self._kinds(variant), variant.slopes
        return Part(name, body, lines, doc, [*slopes.values()], last, borders=variant.borders)

    def _kinds(self, variant: Variant) -> list[str]:
        return [self.kinds[name] for name in variant.outputs]

    def _launch(
        self, body: Scope, lines: Writer, variant: Variant, made: Lowered,
        tensors: Mapping[str, str], wanted: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """The lines that launch a program; `wanted` are gradients to make room for."""
        tile, walks = self.tile(body, made), self.walks(made)
        tensors = {**tensors, **self._table(body, lines, made)}
        sizes, constants = self._sizes(body, made), self._constants(body, made)
        tokens = body.ask(body.lengths["t"])
        kind = "values" if wanted is None else "gradient"
        most, warps = NUMBERS[kind], "token_warps(block_t * numbers)"
        if walks:
            most, warps = WALKED, "walk_warps(block_t * numbers)"
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
            given = f"{programs}, {self.like}.device"
            walk = f"turns_of_walk({given}, {TURNS[kind]})"
            lines.line(f"each = {walk if walks else f'blocks_of_program({given})'}")
        for name, d in (wanted or {}).items():
            lines.line(f"{d} = {self._room_of(body, made, name, known)}")
        buffers = {
            made.buffers[name]: text for name, text in tensors.items() if name in made.buffers
        }
        launch = ProgramLaunch(buffers, sizes, constants, warps=warps)
        program = replace(made.program, name=f"{variant.title}_{kind}_kernel")
        write_program(self.file, lines, program, launch)

    def _in_rows(
        self, lines: Writer, program: Lowered, given: Mapping[str, str]
    ) -> None:  # fmt: skip
        """The lines that copy what is not as kernels read it: contiguous, or tokens apart."""
        buffers = self._buffers(program)
        apart = [text for name, text in given.items() if name in buffers and buffers[name].rows]
        rest = [t for n, t in given.items() if n in buffers and not buffers[n].rows]
        for names, made in ((apart, "in_rows"), (rest, "contiguous")):
            if names:
                left = ", ".join(names) + "," * (len(names) == 1)
                lines.call(f"{left} = {made}(", names, ")")

    def _buffers(self, made: Lowered) -> dict[str, Buffer]:
        """The buffers of a program by what they hold."""
        known = {buffer.name: buffer for buffer in made.program.buffers}
        return {name: known[own] for name, own in made.buffers.items()}

    def _table(self, body: Scope, lines: Writer, made: Lowered) -> dict[str, str]:
        """Where packed sequences begin and end, of each row of a program."""
        if BORDERS not in made.buffers:
            return {}
        (buffer,) = (b for b in made.program.buffers if b.name == made.buffers[BORDERS])
        (_, rows), tokens = buffer.axes[1], body.ask(body.lengths["t"])
        symbols = {s.name: s for s in free_symbols(rows)}
        before = sympy.diff(rows, symbols[SEQUENCES]) if SEQUENCES in symbols else sympy.Integer(0)
        before = before.xreplace({symbols[n]: s for n, s in made.sizes.items() if n in symbols})
        text = f"rows_of_sequences(cu_seqlens, {tokens}, {body.size(before)})"
        lines.line(f"rows = {text}")
        return {BORDERS: "rows"}

    def _room_of(self, body: Scope, made: Lowered, name: str, known: Mapping[str, str]) -> str:
        """Room for a gradient, or for the sums of all programs."""
        like = self.arguments[name]
        shares = made.shares.get(cotangent(name))
        if not shares:
            return f"{like}.new_empty({like}.shape)"
        counts = dict(made.program.grid)
        front = ", ".join(str(count_text(counts[axis], known)) for axis in shares)
        return f"{like}.new_empty(({front}, *{like}.shape), dtype=torch.float32)"

    def walks(self, made: Lowered) -> bool:
        """Whether a program goes token by token, as one with a short convolution does."""
        return any(axis in made.space.unrolled for axis in made.lengths.values())

    def tile(self, body: Scope, made: Lowered) -> str:
        """The numbers of a token in a tile, along the places of a short convolution too."""
        lengths = made.lengths.items()
        blocks = [self._block(body, made, name) for name, axis in lengths if axis.kind == "dim"]
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
            elif name == SEQUENCES:
                found[name] = self._sequences()
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

    def _numbers(self, variant: Variant) -> list[str]:
        """What the op is given besides tensors, as a schema has it."""
        whole = {str(s) for node in self.graph for a in node.type.axes for s in a.size.free_symbols}
        kinds = [f"ScalarType {name}" for name in self._kinds(variant)]
        more = [f"{'int' if name in whole else 'float'} {name}" for name in self.extra]
        return [*more, *kinds]

    def _write_op(self, variant: Variant) -> None:
        """The op, and what its gradient is taken of where that has one itself."""
        writer, title = Writer(), variant.title
        names = [self.arguments[n] for n in self.wanted]
        arguments = " ".join([*self.arguments.values(), *variant.borders])
        numbers = "; ".join(self._numbers(variant))
        given = [
            "SPACE", quoted(title), literal(arguments), literal(numbers),
            str(len(variant.outputs)), literal(" ".join(names)), f"{title}_values",
            f"{title}_room", f"{title}_gradient", f"{title}_again",
        ]  # fmt: skip
        writer.call(f"{title}_op = new_token_op(", given, ")")
        self.file.sections.append(writer.text())

    def _again(self, variant: Variant) -> Part:
        """The passes as the op is called."""
        body, lines = self._body(self.graph, {}), Writer()
        borders = variant.borders or ["None"] * self.packed
        every = [*self.arguments.values(), *borders]
        lines.call(f"made = {self.title}_passes(", [*every, EXTRA], ")")
        count, pasts = len(self.outputs), [*self.region.pasts]
        if variant.tails:
            tails = [f"made[{count + pasts.index(past)}]" for past in variant.tails]
            lines.line(f"return (*made[:{count}], {', '.join(tails)})")
        else:
            lines.line(f"return made[:{count}]" if self._several() else "return (made,)")
        doc = ["What a gradient of the gradient is taken of."]
        name, last = f"{variant.title}_again", self._kinds(variant)
        return Part(name, body, lines, doc, last=last, borders=variant.borders)

    def _several(self) -> bool:
        return len(self.outputs) + len(self.region.pasts) > 1

    def _choice(self) -> Part:
        """The function that is called: by kernels where they can do it."""
        body, lines = self._body(self.graph, {}), Writer()
        self.scope_of_choice = body
        for variant in self.variants:
            self._if_by_kernels(body, lines, variant)
        every = [*self.arguments.values(), *self._borders(), EXTRA]
        lines.call(f"return {self.title}_passes(", every, ")")
        doc = [f"{listed(self.plain)}, by a kernel where there is a GPU."]
        if self.region.pasts:
            doc[0] = doc[0][:-1] + ", and the last tokens of what is looked back on."
        return Part(self.title, body, lines, doc, self._borders())

    def _if_by_kernels(self, body: Scope, lines: Writer, variant: Variant) -> None:
        """`if ...: return ...` by the kernels of a variant."""
        tiles = dict.fromkeys(self.tile(body, each) for each in variant.made.programs)
        largest = next(iter(tiles)) if len(tiles) == 1 else f"max({', '.join(tiles)})"
        asked = f"by_token_kernels({', '.join([largest, *self.arguments.values()])})"
        if variant.packed:
            asked = f"cu_seqlens is not None and {asked}"
        else:
            asked = f"cu_seqlens is None and {asked}" if self.packed else asked
            if not self._keeps_what_it_reads():
                tokens = body.ask(body.lengths["t"])
                lines.line(f"enough = {tokens} >= {body.size(self._seen())}")
                asked = f"enough and {asked}"
        with lines.block(f"if {asked}:"):
            for name in variant.outputs:
                lines.line(f"{self.kinds[name]} = {self._kind_of(variant, name)}")
            made = ", ".join(variant.outputs.values())
            every = [*self.arguments.values(), *variant.borders, EXTRA, *self._kinds(variant)]
            lines.call(f"{made} = {variant.title}_op(", every, ")")
            kept_ = self._kept_packed(variant) if variant.packed else self._kept(lines)
            lines.returns([*self.outputs.values(), *kept_]) if self._several() else lines.line(
                f"return {made}"
            )

    def _kept_packed(self, variant: Variant) -> list[str]:
        """The last tokens of each packed sequence, of each value that is looked back on."""
        found = []
        for name, past in self.region.pasts.items():
            if name in variant.tails:
                own = f"tail={variant.tails[name]}"
            else:
                looked = self.scope.graph[past.looks].operands[0]
                (read,) = (n for n, id in self.region.reads.items() if id == looked)
                own = self.arguments[read]
            found.append(f"kept_of_sequences({self.arguments[name]}, cu_seqlens, {own})")
        return found

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

    def _keeps_what_it_reads(self) -> bool:
        """Whether all that is looked back on enters: what is kept of it needs no more tokens."""
        looked = {self.scope.graph[p.looks].operands[0] for p in self.region.pasts.values()}
        return looked <= {*self.region.reads.values()}

    def _seen(self) -> sympy.Expr:
        """Of how many tokens those are made that are kept: looks may be at what others made."""
        return sympy.Add(*(past.count for past in self.region.pasts.values()))

    def _kept_again(self, lines: Writer) -> None:
        """The passes for the last tokens alone: what is looked back on is made in the region."""
        count = self.scope_of_choice.size(self._seen())
        given = []
        for name, argument in self.arguments.items():
            along = self.stream in self.nodes[name].type.names and name not in self.region.pasts
            at = self.nodes[name].type.names.index(self.stream) if along else 0
            start = binary("-", ADD, Text(f"{argument}.shape[{at}]"), count)
            given.append(f"{argument}.narrow({at}, {start}, {count})" if along else argument)
        every = [*given, *["None"] * self.packed, EXTRA]
        lines.call(f"kept = {self.title}_passes(", every, ")")

    def _kind_of(self, variant: Variant, name: str) -> str:
        """The dtype that an output has in PyTorch."""
        id = variant.graph.outputs[name]
        before = self.graph.ancestors(id) | {id}
        wide = any(is_wide(self.graph[each].op) for each in before)
        real = [n for n in self.arguments if self.nodes[n].id in before]
        real = [self.arguments[n] for n in real if self.nodes[n].type.dtype == "real"]
        return f"token_kind({', '.join([str(wide), *real])})"

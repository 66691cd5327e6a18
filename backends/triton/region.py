"""A token region in a generated file: its kernels, the ops that launch them, its passes in PyTorch,
and the function that chooses. Of a region q of a layer:

    layer_q_values      launches the kernel of the values
    layer_q_gradient    launches the kernel of the gradients
    layer_q_passes      the same in PyTorch
    layer_q             one or the other

Kernels of a region that looks back on tokens may be given where packed sequences begin and end. A
region whose functions would be those of another but for names calls the other's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from archc.backends.eager.library import use_space, wide
from archc.backends.eager.region import extra_arguments, graph_scope
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.eager.value import KIND_OF, Value
from archc.backends.expression import Text
from archc.backends.index import permuted
from archc.backends.triton.alike import alike
from archc.backends.triton.program_launch import add_program, numbers_of
from archc.backends.triton.region_nexts import write_nexts
from archc.backends.triton.region_parts import (
    EXTRA,
    PART,
    WARPS,
    Part,
    Variant,
    alike_inputs,
    as_read,
    grid_texts,
    is_wide,
    largest_of,
    listed,
    literal,
    that_fit,
    with_extra,
)  # fmt: skip
from archc.backends.writer import Names, Writer, identifier, in_tuple, quoted, snake

from archc.dims import TIME, Axis
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.token_region import TokenRegion
from archc.ir.value_names import cotangent, primal
from archc.lowering.token import BLOCK_T, BORDERS, EACH, IO, Lowered, RegionKernels
from archc.lowering.token_borders import ROWS, SEQUENCES
from archc.tile.given import given_names
from archc.tile.language import Buffer
from archc.tile.resources import largest_tiles

OWN = ("cu_seqlens", "made", "borders", "rows")
"""Names that functions have of their own."""

NUMBERS = {"values": 4096, "gradient": 1024}
"""How many numbers a tile has of a value, about."""

WALKED = {"values": 1024, "gradient": 512}
"""How many a warp has along the places of a short convolution too, which threads carry from token
to token."""

FEW = 32
"""The most rows of a small matrix of a token: products with more are for tensor cores."""

TURNS = {"values": 32, "gradient": 128}
"""Tokens that a walk does one after the other: a gradient makes twice as many before the first
again."""


class RegionFunction:
    """The functions of one region under construction."""

    def __init__(
        self, scope: Scope, made: RegionKernels,
        packed: Callable[[TokenRegion, bool], RegionKernels | str], later: bool,
    ):  # fmt: skip
        self.scope, self.file, self.region = scope, scope.file, made.region
        self.graph, self.stream = made.region.graph, made.region.stream
        name = f"{snake(scope.layer)}_{identifier(self.region.name)}"
        self.title = self.file.names.fresh(name)
        names = Names(OWN)
        inputs = [*self.region.reads, *self.region.pasts]
        self.arguments = {each: names.fresh(identifier(each)) for each in inputs}
        self.seeds = {each: names.fresh(identifier(each)) for each in self.region.seeds}
        self.later, self.training = later, ["training"] * bool(self.seeds)
        self.factors = {each: names.fresh("factor") for each in self.region.seeds}
        self.outputs = {each: names.fresh(identifier(each)) for each in self.region.makes}
        self.slopes = {each: names.fresh(f"d_{identifier(each)}") for each in self.outputs}
        self.ds = {each: names.fresh(f"d_{identifier(each)}") for each in self.arguments}
        self.kinds = {each: names.fresh(f"{identifier(each)}_kind") for each in self.outputs}
        self.nodes = {n.op.name: n for n in self.graph if isinstance(n.op, ir.Input)}
        found = packed(self.region, self.packed) if self.region.pasts else made
        assert isinstance(found, RegionKernels), found
        self.kernels = self._kernels(found, names)
        self.taken, self.alike = set(names.taken), alike_inputs(self.kernels, self.arguments)
        real = [n for n in self.arguments if self.nodes[n].type.dtype == "real"]
        self.like = self.arguments[real[0]]
        self.backward = self.kernels.made.backward
        self.wanted = [each for each in self.arguments if each in self.backward.wanted]

    def _kernels(self, made: RegionKernels, names: Names) -> Variant:
        """The kernels, which make the tails of a region too."""
        tails = made.region.tails
        more = {each: names.fresh(identifier(each)) for each in tails}
        ds = {each: names.fresh(f"d_{identifier(each)}") for each in tails}
        self.kinds |= {each: names.fresh(f"{identifier(each)}_kind") for each in tails}
        kept = {past: more[each] for each, past in tails.items()}
        there = [each for each in made.region.nexts if each in made.values.buffers]
        nexts = {each: names.fresh(identifier(each)) for each in there}
        return Variant(made, {**self.outputs, **more}, {**self.slopes, **ds}, kept, nexts)

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
        last = [scope.ask(scope.training)] * bool(self.seeds)
        left = ", ".join([*made, *after])
        scope.writer.call(f"{left} = {self.title}(", [*given, *before, *borders, *more, *last], ")")

    def _given(self, id: int) -> str:
        """An input, with its dims in the order of its type."""
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
        made = [*([] if self.alike else [self._room()]), self._values(), self._gradient()]
        made += [self._again()] if self.seeds else []
        found: dict[str, str] = {}
        for part in (passes, choice, *made):
            found |= dict(zip(*extra_arguments(self.scope, part.scope), strict=True))
        self.extra = {name: found[name] for name in sorted(found)}
        begun = len(self.file.sections)
        self._append(passes)
        for part in made:
            self._append(part)
        self._write_op()
        self._append(choice)
        self._share(begun)
        self.file.token_notes.append(f"    {self.title}")

    def _share(self, begun: int) -> None:
        """In place of functions that the file has already under other names, a call of these."""
        sections = self.file.sections
        title = self.file.titles.setdefault(alike(sections[begun:], [self.title]), self.title)
        if title == self.title:
            return
        del sections[begun:]
        given = [*self.arguments.values(), *self._borders(), *self.extra, *self.training]
        doc = f"{listed(self.kernels)}, as `{title}` makes its own."
        writer = Writer().define(self.title, given, [doc])
        writer.call(f"return {title}(", given, ")")
        sections.append(writer.text())

    def _append(self, part: Part) -> None:
        """A function of the file."""
        writer = Writer()
        own = [*self.arguments.values(), *part.drawn, *part.borders, *part.more]
        if part.name == self.title and not self.seeds:
            beside = self.region.pasts or self.later
            writer.line(f"@token_region({'' if beside else f'{self.title}_op'})")
        writer.define(part.name, [*own, *self.extra, *part.last], part.doc)
        write_sizes(writer, part.scope)
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
        self._take_factors(body)
        for name, past in self.region.pasts.items():
            body.pasts[past.looks] = self.arguments[name]
        made = []
        for id in self.region.makes.values():
            value = body.value(id)
            made.append(str(permuted(value.text, value.layout, body.graph[id].type.names)))
        after = [body.kept[self.arguments[name]] for name in self.region.pasts]
        lines = Writer()
        lines.include(body.writer.lines)
        lines.gives([*made, *after])
        doc = [f"{listed(self.kernels)} in PyTorch."]
        return self._part("_passes", body, lines, doc, drawn=[*self.factors.values()])

    def _take_factors(self, body: Scope) -> None:
        """Factors of dropout enter the passes, and are not drawn again."""
        for name, id in self.region.seeds.items():
            names = body.graph[id].type.names
            body.values[id] = Value(Text(self.factors[name]), names, KIND_OF["real"])
        body.fused = {
            id: each for id, each in body.fused.items()
            if not {*self.region.seeds.values()} & {*body.graph[id].operands}
        }  # fmt: skip

    def _write_factors(self, body: Scope, lines: Writer, how: Callable[[str], str]) -> None:
        """The lines that make the factors of dropout; `how` is a call but for its last
        arguments."""
        for name, id in self.region.seeds.items():
            node = self.scope.graph[id]
            shape = ", ".join(body.length(axis).text for axis in node.type.axes)
            rest = f"({shape}), {body.number(node.op.p)}"
            lines.line(f"{self.factors[name]} = {how(name)}, {rest}, {self.like})")

    def _part(self, ending: str, body: Scope, lines: Writer, doc: list[str], **more: Any) -> Part:
        """A function of the tensors and of where packed sequences are."""
        return Part(f"{self.title}{ending}", body, lines, doc, borders=self._borders(), **more)

    def _drawn(self) -> list[str]:
        """The seeds of dropout, which kernels are given."""
        return [*self.seeds.values()]

    def _borders(self) -> list[str]:
        return ["cu_seqlens"] * self.packed

    # --- launches ---

    def _room(self) -> Part:
        """Memory for the results, which also tells what these are like."""
        body, lines = self._body(self.graph, {}), Writer()
        rooms = []
        for name, id in self.kernels.graph.outputs.items():
            type, edge = self.kernels.graph[id].type, self.kernels.made.region.edge(name)
            lengths = [body.length(axis).text for axis in type.axes]
            if edge is not None:
                lengths[:2] = [self._sequences(), str(body.size(edge.count))]
            kind = {"int": "torch.int64", "bool": "torch.bool"}.get(type.dtype, self.kinds[name])
            rooms.append(f"{self.like}.new_empty(({', '.join(lengths)}), dtype={kind})")
        lines.gives(rooms)
        doc = [f"Room for {listed(self.kernels)}."]
        return self._part("_room", body, lines, doc, last=self.dtypes(), drawn=self._drawn())

    def _sequences(self) -> str:
        """How many packed sequences there are."""
        past = next(iter(self.region.pasts))
        return f"{self.arguments[past]}.shape[0]"

    def _values(self) -> Part:
        """The launch of the kernel of the values."""
        body, lines = self._body(self.graph, {}), Writer()
        tensors = {**self.seeds, **self.kernels.outputs, **self.kernels.nexts}
        self._launch(body, lines, self.kernels.made.values, self.arguments, tensors)
        doc = [f"{listed(self.kernels)} by a kernel."]
        nexts = [f"{name}=None" for name in self.kernels.nexts.values()]
        last, drawn = [*self.kernels.outputs.values(), *nexts], self._drawn()
        return self._part("_values", body, lines, doc, last=last, drawn=drawn)

    def _gradient(self) -> Part:
        """The launch of the kernel of the gradients."""
        body, lines, made = self._body(self.graph, {}), Writer(), self.kernels.made
        given = {**self.arguments, **{cotangent(n): d for n, d in self.kernels.slopes.items()}}
        again = self.outputs if self.region.again else {}
        wanted = {cotangent(name): self.ds[name] for name in self.wanted}
        self._launch(body, lines, made.gradient, given, {**self.seeds, **again}, wanted)
        doc = [f"The gradients of {', '.join(self.arguments[n] for n in self.wanted)} by a kernel."]
        more, last = [*self.kernels.slopes.values()], [f"{y}=None" for y in again.values()]
        return self._part("_gradient", body, lines, doc, more=more, last=last, drawn=self._drawn())

    def dtypes(self) -> list[str]:
        return [self.kinds[name] for name in self.kernels.outputs]

    def _launch(
        self, body: Scope, lines: Writer, made: Lowered,
        reads: Mapping[str, str], rest: Mapping[str, str], wanted: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """The lines that launch a program of what it `reads` and of other tensors, and give back
        the gradients that are `wanted`."""
        kind = "values" if wanted is None else "gradient"
        table, wanted = self._table(body, lines, made), wanted or {}
        program = replace(made.program, name=f"{self.title}_{kind}_kernel")
        title, known = add_program(self.file, program), given_names(program)
        buffers = self._buffers(made)
        texts = {name: as_read(buffers[name], text) for name, text in reads.items()
                 if name in buffers}  # fmt: skip
        texts |= {**rest, **table}
        texts |= {cotangent(n): self._learned(made, n) for n in self.wanted if wanted}
        order = [next(n for n, b in buffers.items() if b is each) for each in program.buffers]
        sizes, constants = self._sizes(body, made), self._constants(body, made)
        grid = grid_texts(made, {**sizes, **constants})
        first, *fixed = (name for name in constants if name in known)
        blocks = [name for name in fixed if name in made.lengths]
        constants |= {n: in_tuple(self._block_of(body, made, made.lengths[n])) for n in blocks}
        counts = numbers_of(program, sizes)
        assert (first, counts[0]) == (BLOCK_T, body.ask(body.lengths["t"])), counts
        assert program.ahead == 2 and not program.cooperative, "as `launch_tokens` has it"
        parts = [
            title, in_tuple(grid), f"[{', '.join(texts[name] for name in order)}]",
            f"[{', '.join(counts)}]",
            f"dict({', '.join(f'{name}={constants[name]}' for name in fixed)})",
            *self._tile_options(body, made, kind, [made.lengths[name] for name in blocks]),
        ]  # fmt: skip
        found = [wanted[name] for name in order if name in wanted]
        if found == [*wanted.values()]:
            lines.call("return launch_tokens(" if found else "launch_tokens(", parts, ")")
            return
        lines.call(f"{', '.join(found)} = launch_tokens(", parts, ")")
        lines.gives([*wanted.values()])

    def _tile_options(
        self, body: Scope, made: Lowered, kind: str, told: Sequence[Axis]
    ) -> list[str]:
        """How large the tiles of a launch are, which is not said where they are of all blocks that
        it is `told` of, and how many warps work on one."""
        blocks, most = sorted(self._block(body, made, axis) for axis in told), NUMBERS[kind]
        plain = [sorted(tile) for tile in self._tiles(body, made)] == [blocks]
        own = [] if plain else [f"tile={self.tile(body, made)}"]
        if self.walks(made):
            return [str(WALKED[kind]), f"turns={TURNS[kind]}", *own]
        if kind == "gradient":
            most = that_fit(most, made.program)
        few = kind == "gradient" and (made.shares or most < NUMBERS[kind])
        return [str(most), *[f"warps={WARPS}"] * bool(few), *own]

    def _buffers(self, made: Lowered) -> dict[str, Buffer]:
        """The buffers of a program by what they hold."""
        known = {buffer.name: buffer for buffer in made.program.buffers}
        return {name: known[own] for name, own in made.buffers.items()}

    def _table(self, body: Scope, lines: Writer, made: Lowered) -> dict[str, str]:
        """Where packed sequences begin and end, of each row of a program."""
        if BORDERS not in made.buffers:
            return {}
        tokens = body.ask(body.lengths["t"])
        given = f"{tokens}, {body.size(made.before)}, {body.size(made.ahead)}"
        lines.line(f"borders, rows = rows_of_tokens(cu_seqlens, {given})")
        return {BORDERS: "borders"}

    def _learned(self, made: Lowered, name: str) -> str:
        """A gradient that a launch makes: along axes of its grid sums of all programs."""
        like, d = self.arguments[name], cotangent(name)
        shares = made.shares.get(d)
        same = [name for name, own in self.backward.alike.items() if own == d]
        if same:
            others = ", ".join([like, *(self.arguments[each] for each in same)])
            return f"Learned({like}, dtype=token_kind(False, {others}))"
        if not shares:
            return f"Learned({like})"
        places = [axis for axis, _ in made.program.grid]
        return f"Learned({like}, {in_tuple([str(places.index(axis)) for axis in shares])})"

    def walks(self, made: Lowered) -> bool:
        """Whether a program goes token by token, as one with a short convolution does."""
        return any(axis in made.space.unrolled for axis in made.lengths.values())

    def tile(self, body: Scope, made: Lowered) -> str:
        """The numbers of a token in a tile, along the places of a short convolution too; where
        products go along a dim index by index, in the largest tile that there is."""
        return largest_of([" * ".join(blocks) or "1" for blocks in self._tiles(body, made)])

    def _tiles(self, body: Scope, made: Lowered) -> list[tuple[str, ...]]:
        """The blocks of such tiles, each said once."""
        known = {a.name: a for a in made.lengths.values() if a.kind == "dim"}
        known |= {axis.name: axis for axis in made.space.tiled}  # dims of one size share a length
        shapes = [[*known.values()]]
        if made.few:
            shapes = [[made.lengths[length] for length in tile if length in made.lengths]
                      for tile in largest_tiles(made.program, BLOCK_T)]  # fmt: skip
        texts = (tuple(self._block(body, made, axis) for axis in shape) for shape in shapes)
        return [*dict.fromkeys(texts)]

    def _block(self, body: Scope, made: Lowered, axis: Axis) -> str:
        """The length of a block."""
        return f"token_block({', '.join(self._block_of(body, made, axis))})"

    def _block_of(self, body: Scope, made: Lowered, axis: Axis) -> list[str]:
        """What that is found from: a size, and the most that there may be."""
        return [str(body.size(axis.size)), *[str(PART)] * (axis == made.space.split)]

    def _sizes(self, body: Scope, made: Lowered) -> dict[str, str]:
        """The numbers of a launch."""
        found = {}
        for symbol in made.program.sizes:
            name = symbol.name
            if name == EACH:
                found[name] = "EACH"
            elif name == SEQUENCES:
                found[name] = self._sequences()
            elif name == ROWS:
                found[name] = "rows"
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
        """The constants that machine code is made for."""
        found = {}
        for name in made.program.constants:
            if name == IO:
                found[name] = f"{self.like}.dtype"
            elif name == BLOCK_T:
                found[name] = "block_t"
            elif name in made.lengths:
                found[name] = self._block(body, made, made.lengths[name])
            else:
                found[name] = str(body.size(made.sizes[name]))
        return found

    # --- the op, and who calls it ---

    def _numbers(self) -> list[str]:
        """The arguments of the op besides tensors, as a schema has them."""
        counts = [a.size for node in self.graph for a in node.type.axes]
        counts += [node.op.count for node in self.graph if isinstance(node.op, ir.Top)]
        counts += [node.op.value for node in self.graph if isinstance(node.op, ir.Constant)]
        whole = {str(s) for count in counts for s in count.free_symbols if s.is_integer}
        kinds = [f"ScalarType {name}" for name in self.dtypes()]
        more = [f"{'int' if name in whole else 'float'} {name}" for name in self.extra]
        return [*more, *kinds]

    def _write_op(self) -> None:
        """The op."""
        writer, title, places = Writer(), self.title, self._places()
        names = self._learning()
        maybe = [f"{each}?" for each in [*self.seeds.values(), *self._borders()]]
        arguments = " ".join([*self.arguments.values(), *maybe])
        numbers = "; ".join(self._numbers())
        given = [
            "SPACE", quoted(title), literal(arguments), literal(numbers),
            in_tuple([*map(str, places)]),
            literal(" ".join(names)), f"{title}_values",
            quoted(" ".join(self.alike)) if self.alike else f"{title}_room", f"{title}_gradient",
            f"{title}_{'again' if self.seeds else 'passes'}",
            *["in_place=True"] * self.backward.in_place,
            *wide([*arguments.split(), *numbers.split("; "), *self.slopes]),
        ]  # fmt: skip
        writer.call(f"{title}_op = new_token_op(", given, ")")
        self.file.sections.append(writer.text())

    def _learning(self) -> list[str]:
        """The arguments with a gradient: `x=z` has that of z, `x=0` that of the first result."""
        results, found = [*self.kernels.outputs], []
        for name, argument in self.arguments.items():
            same = primal(self.backward.alike.get(name, ""))
            if name in self.wanted:
                found.append(argument)
            elif same in results:
                found.append(f"{argument}={results.index(same)}")
            elif same is not None:
                found.append(f"{argument}={self.arguments[same]}")
        return found

    def _places(self) -> list[int]:
        """The places of the op's results among those of the passes."""
        count, pasts = len(self.outputs), [*self.region.pasts]
        return [*range(count), *(count + pasts.index(past) for past in self.kernels.tails)]

    def _again(self) -> Part:
        """The passes with the factors that kernels make of seeds."""
        body, lines = self._body(self.graph, {}), Writer()
        self._write_factors(body, lines, lambda name: f"factor_of_seed({self.seeds[name]}")
        self._return_passes(lines)
        doc = ["The passes, of what kernels drop: a gradient of the gradient is taken of them."]
        return self._part("_again", body, lines, doc, drawn=self._drawn())

    def _return_passes(self, lines: Writer) -> None:
        """The line that calls the passes."""
        every = [*self.arguments.values(), *self.factors.values(), *self._borders(), EXTRA]
        lines.call(f"return {self.title}_passes(", every, ")")

    def _several(self) -> bool:
        return len(self.outputs) + len(self.region.pasts) > 1

    def _choice(self) -> Part:
        """The function that is called: by kernels where they can do it."""
        body, lines = self._body(self.graph, {}), Writer()
        self._if_by_kernels(body, lines)
        self._write_factors(body, lines, lambda _: "drawn_factor(training")
        self._return_passes(lines)
        doc = [f"{listed(self.kernels)}, by a kernel where there is a GPU."]
        if self.region.pasts:
            doc[0] = doc[0][:-1] + ", and the last tokens of what is looked back on."
        return self._part("", body, lines, doc, last=self.training)

    def _if_by_kernels(self, body: Scope, lines: Writer) -> None:
        """`if ...: return ...` by kernels."""
        programs = self.kernels.made.programs
        largest = largest_of([self.tile(body, each) for each in programs])
        asked = f"by_token_kernels({', '.join([largest, *self.arguments.values()])})"
        few = [str(body.size(size)) for size in dict.fromkeys(n for p in programs for n in p.few)]
        if few:
            asked = f"{largest_of(few)} <= {FEW} and {asked}"
        with lines.block(f"if {asked}:"):
            for name in self.kernels.outputs:
                lines.line(f"{self.kinds[name]} = {self._kind_of(name)}")
            for name, id in self.region.seeds.items():
                given = f"training, {body.number(self.scope.graph[id].op.p)}, {self.like}"
                lines.line(f"{self.seeds[name]} = dropout_seed({given})")
            made = ", ".join(self.kernels.outputs.values())
            every = [*self.arguments.values(), *self._drawn(), *self._borders(), EXTRA]
            room = [*every, *self.dtypes()]
            if self.kernels.nexts:
                write_nexts(self, body, lines, every)
            if self.later:
                lines.call("return made_later(", [f"{self.title}_op", *room], ")")
                return
            lines.call(f"{made} = {self.title}_op(", room, ")")
            left = [*self.outputs.values(), *self.kept(body)]
            lines.returns(left) if self._several() else lines.line(f"return {made}")

    def kept(self, body: Scope) -> list[str]:
        """The last tokens of each sequence, of each value that is looked back on."""
        found, borders = [], "cu_seqlens" if self.packed else "None"
        for name, past in self.region.pasts.items():
            argument = self.arguments[name]
            if name in self.kernels.tails:
                tokens = body.ask(body.lengths["t"])
                given = f"{argument}, {self.kernels.tails[name]}, {tokens}, {borders}"
                found.append(f"kept_of_tail({given})")
            else:
                looked = self.scope.graph[past.looks].operands[0]
                (read,) = (n for n, id in self.region.reads.items() if id == looked)
                found.append(f"kept_tokens({argument}, {self.arguments[read]}, {borders})")
        return found

    def _kind_of(self, name: str) -> str:
        """The dtype that an output has in PyTorch."""
        id = self.kernels.graph.outputs[name]
        before = self.graph.ancestors(id) | {id}
        wide = any(is_wide(self.graph[each].op) for each in before)
        real = [n for n in self.arguments if self.nodes[n].id in before]
        real = [self.arguments[n] for n in real if self.nodes[n].type.dtype == "real"]
        return f"token_kind({', '.join([str(wide), *real])})"

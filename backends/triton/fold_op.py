"""One sum over the tokens read as ops of torch: its kernels, and those of its gradient."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from archc.backends.eager.file import File
from archc.backends.eager.library import DIGEST, LEARNING, op_text
from archc.backends.triton.gluon_printer import to_gluon
from archc.backends.triton.gluon_wide import to_gluon_wide
from archc.backends.triton.program_launch import ProgramLaunch, write_program, write_wide
from archc.backends.writer import Names, Writer, in_tuple, quoted

from archc.attention.row_heads import heads_beside, rows_of
from archc.attention.weighted_sum import Source, WeightedSum
from archc.ir.graph import Type
from archc.ir.refusal import Refusal
from archc.ir.value_names import cotangent
from archc.lowering.attention import BLOCKS, BORDERS, clean, numbers_of
from archc.lowering.attention_forward import forward
from archc.lowering.attention_gradient import by_distances, by_readers, by_tokens
from archc.lowering.attention_heads import PARTS_OF, by_parts, joined, turned
from archc.lowering.attention_turns import in_turns, takes_turns
from archc.tile.language import Apply, Buffer, For, LoadBlock, Program, statements

LOCALS = (
    "B", "S", "data", "shared", "o", "lse", "d_o", "d_lse", "delta", "output", "inputs", "given",
    "made", "rows", "columns", "parts", "whole", "options", "tokens", "pos", "start", "cu_seqlens",
    "borders", "blocks", "most", "listed", "count", "order", "begins", "entry", "step", "first",
    "readers", "own_pos", "table", "part", "seed",
    "turns", "special",
)  # fmt: skip
SLOW = (
    "exp", "exp2", "log", "sin", "cos", "erf", "sigmoid", "logsigmoid", "softplus", "tanh", "pow",
)  # fmt: skip
"""Functions of a number that are not one instruction of the usual units."""

FEW = 16
"""Fewer readers than these share a program with heads."""
WIDE = "torch.float32"
Make = Callable[[WeightedSum, str], Program]
"""A function that makes a program of a fold, with a name."""


class FoldOp:
    """The ops of one fold under construction. `numbers` are what only a call knows, by the names of
    the arguments. `few`: whether there are kernels for few readers; `many`: for more of them.
    `running`: the names of the running sums that the line which calls it has had made; `made`:
    those of its results, where they are two."""

    def __init__(
        self, file: File, fold: WeightedSum, title: str, few: bool = True, many: bool = True
    ):
        self.few, self.many = few, many
        self.running, self.made = dict[int, str](), dict[int, str]()
        self.file, self.fold, self.title = file, fold, file.names.fresh(title)
        names = Names((*LOCALS, *(f"N_{clean(axis)}" for axis in self._axes(fold))))
        self.arguments = {source.name: names.fresh(source.name) for source in fold.sources}
        self.numbers = {
            symbol.name: names.fresh(symbol.name.lower()) for symbol in numbers_of(fold).values()
        }
        self.wholes = {symbol.name for symbol in numbers_of(fold).values() if symbol.is_integer}
        self.values = fold.source(fold.values) if fold.values else None
        self.vectors = [s for s in fold.sources if s.dim is not None]
        self.borders = ["cu_seqlens"] * fold.packed + ["table"] * fold.paged
        self.seed = ["seed"] * (fold.dropout is not None)

    def _axes(self, fold: WeightedSum) -> list[str]:
        found = [head.name for head in fold.heads]
        return [*found, *(axis.name for s in fold.sources for axis in s.type.axes)]

    @property
    def parameters(self) -> list[str]:
        """The arguments of the op, in order."""
        numbers = ["tokens", "pos", "start", *self.numbers.values()]
        return [*self.arguments.values(), *self.borders, *self.seed, *numbers]

    @property
    def results(self) -> list[str]:
        """The results of the op."""
        found = [] if self.fold.alone else ["o"]
        return [*found, "lse"] if self.fold.softmax else found

    def write(self) -> None:
        """The functions, and the ops."""
        before = len(self.file.sections)
        self._forward()
        self._fake()
        own = [f"{self.title}_launch", f"{self.title}_fake"]
        if self.fold.slopes is not None:
            self._backward()
            like = quoted(" ".join(self.arguments[name] for name in self._slots()))
            functions = [f"{self.title}_backward", like, "no_second_gradient_of_fold"]
            self._new("_gradient", self._arriving(), [*self._slots().values()], functions)
            self._new("", [], self.results, [*own, f"{self.title}_gradient"], LEARNING)
        else:
            self._new("", [], self.results, [*own, "no_gradient"])
        if not self.file.spaced:
            self.file.spaced = True
            space = quoted(f"{self.title}_{DIGEST}")
            self.file.sections.insert(before, f"SPACE = free_space({space}, {quoted(self.title)})")

    # --- what a launch is given ---

    def _sizes(self) -> dict[str, str]:
        """The sizes of every program, as Python."""
        found = {"T": "tokens", "POS": "pos", "START": "start", BLOCKS: "blocks"}
        for source in self.fold.sources:
            name = self.arguments[source.name]
            for place, axis in enumerate(source.type.axes):
                text = f"{name}.shape[{place}]"
                if axis.kind == "batch":
                    found.setdefault("B", text)
                elif axis.kind == "stream" and source.role == "read":
                    found.setdefault("S", text)
                elif axis.kind == "dim":
                    found.setdefault(f"N_{clean(axis.name)}", text)
        return found | self.numbers

    def _write_sizes(self, writer: Writer, names: Sequence[str]) -> dict[str, str]:
        """Lines that name lengths; how sizes are written after them."""
        sizes = self._sizes()
        for name in names:
            writer.line(f"{name} = {sizes[name]}")
            sizes[name] = name
        return sizes

    def _lengths(self) -> list[str]:
        """The names of lengths that shapes of results are made of."""
        dims = [s.dim.name for s in self.vectors if s.dim is not None]
        heads = [head.name for head in self.fold.heads]
        own = [own for s in self.fold.sources for own, _, share in s.shares if share != 1]
        own += [s.table.name for s in self.fold.sources if s.table is not None]
        return list(dict.fromkeys(["B", "S", *(f"N_{clean(n)}" for n in (*heads, *dims, *own))]))

    def _new_tensor(self, buffer: Buffer) -> str:
        """Memory of a result."""
        diagonals = "-(-tokens // rows) - (-S // columns) - 1"
        names = {"b": "B", "t": "tokens", "s": "S", "half": "2", "u": "columns", "part": "parts"}
        names["diagonal"] = "blocks" if self.borders else diagonals
        shape = [names.get(axis) or f"N_{axis[2:]}" for axis, _ in buffer.axes]
        like = self.arguments[self.vectors[0].name]
        dtypes = {"IO": "data", "SHARED": "shared", "i32": "torch.int32"}
        dtype = dtypes.get(buffer.dtype, WIDE)
        return f"{like}.new_empty(({', '.join(shape)}), dtype={dtype})"

    def _prepare(self, writer: Writer) -> None:
        """Lines that bring what is given into the dtypes of kernels."""
        vectors = [self.arguments[source.name] for source in self.vectors]
        writer.line(f"data = narrowest({', '.join(vectors)})")
        for source in self.fold.sources:
            name = self.arguments[source.name]
            dtype = WIDE if source.real else "torch.int32"
            text = f"{name}.to({dtype})"
            if source.dim is not None:
                text = f"{self._laid(source)}({name}, {self._dtype(source)})"
            if source.table is not None:
                text = f"side_by_side({text}, {source.type.names.index(source.table.name)})"
            writer.line(f"{name} = {text}")

    def _dtype(self, source: Source) -> str:
        """The dtype of a vector in kernels."""
        return "data"

    def _laid(self, source: Source) -> str:
        """The function that lays vectors as kernels read them."""
        return "vectors_of"

    def _blocks(self, writer: Writer, kind: str, special: str = "") -> None:
        """The line that says how long blocks are, and how a program is launched: the other of its
        two kernels where `special` is so, if it has two."""
        keys = [self.fold.source(dot.reader).dim for dot in self.fold.dots if not dot.square]
        held = " + ".join(f"N_{clean(dim.name)}" for dim in keys if dim is not None)
        dims = {f"N_{clean(s.dim.name)}" for s in self.vectors if s.dim is not None}
        given = ", ".join([quoted(kind), "data", *sorted(dims | ({held} if held else set()))])
        blocks = f"fold_blocks({given})"
        if special:
            blocks = f"specialized_blocks({quoted(kind)}) if {special} else {blocks}"
        writer.line(f"rows, columns, options = {blocks}")
        if self.borders:
            given = f"{quoted(kind)}, cu_seqlens, tokens, S, rows, columns"
            writer.line(f"{BORDERS}, blocks = fold_programs({given})")

    def _launch(
        self, writer: Writer, program: Program, sizes: dict[str, str], options: str = "options",
        precision: str = '"tf32x3"', special: str = "", wide: bool = False,
    ) -> None:  # fmt: skip
        """Lines that launch a program, by the other of its two kernels where `special` is so, or
        by that of `wide` sums."""
        buffers: dict[str, str] = {b.name: self._named(b) for b in program.buffers}
        wanted = {symbol.name: sizes[symbol.name] for symbol in program.sizes}
        constants = {"IO": "data", "PRECISION": precision}
        constants |= {"BLOCK_T": "rows", "BLOCK_S": "columns", "SHARED": "shared"}
        constants |= {"ENTRY": "entry", "COPIED": self._copied(program)}
        constants |= {"BLOCK_PARTS": "block_of(parts)", "BLOCK_PAGE": "PAGE"}
        for name in program.constants:
            if name not in constants:
                block = f"block_of(N_{name.removeprefix('BLOCK_')})"
                constants[name] = sizes.get(name, block)
        constants = {name: constants[name] for name in program.constants}
        launch = ProgramLaunch(buffers, wanted, constants, options=options)
        if wide:
            write_wide(self.file, writer, program, launch)
        else:
            write_program(self.file, writer, program, launch, special)

    held_for: tuple[str, ...] = ()
    """What kernels by warps are told of where fewer vectors have been held against float64."""

    def _special(self, writer: Writer, program: Program, kind: str) -> str:
        """The line that says whether the kernel whose warps have work of their own is launched, and
        the name of that; empty where there is no such kernel."""
        if not has_special(self.fold, program, kind):
            return ""
        named = {*map(self._named, program.buffers)}
        vectors = [self.arguments[source.name] for source in self.vectors]
        read = [name for name in (*vectors, "d_o") if name in named]
        walked = self._sizes()["T"] if kind == "tokens" else "S"
        borders = self.borders or ["None"]
        given = [walked, *borders, *read, *self.held_for]
        writer.line(f"special = are_specialized({', '.join(given)})")
        return "special"

    def _copied(self, program: Program) -> str:
        """Whether the copy engine reads the blocks of vectors that a program walks."""
        ops = (s.op for s in statements(program.body))
        blocks = [op.buffer for op in ops if isinstance(op, LoadBlock)]
        read = dict.fromkeys(self._named(buffer) for buffer in blocks)
        walked = "tokens" if any("t" in dict(buffer.axes) for buffer in blocks) else "S"
        return f"int(are_copied({', '.join([walked, *read])}))"

    def _named(self, buffer: Buffer) -> str:
        """How a buffer is called in the functions of the op."""
        return self.arguments.get(buffer.name, self._d_names().get(buffer.name, buffer.name))

    # --- the forward ---

    place = "SymInt pos"
    """How the first position of the readers enters."""

    @property
    def how(self) -> str:
        """How the values are made, for a reader."""
        if self.many:
            return "by one kernel: a block of readers walks what it reads"
        return "of few readers: parts of what they read, then all together"

    @property
    def kernel(self) -> Make:
        """The function that makes the program of the values."""
        return forward

    def _program(self, make: Make, suffix: str) -> Program:
        few = make in (by_parts, turned, joined)  # nothing is dropped by kernels of few readers
        fold = replace(self.fold, dropout=None, copied=False) if few else self.fold
        return make(fold, f"{self.title}{suffix}_kernel")

    def _forward(self) -> None:
        doc = f"`{self.title}` {self.how}."
        writer = Writer().define(f"{self.title}_launch", self.parameters, [doc], wrapper="as_op")
        self._prepare(writer)
        self._launches(writer, self._write_sizes(writer, self._lengths()))
        writer.gives(self.results)
        self.file.sections.append(writer.text())

    def _launches(self, writer: Writer, sizes: dict[str, str]) -> None:
        """Lines that make the values."""
        program = self._program(forward, "")
        self._allocate(writer, program)
        if not self.many:
            self._by_parts(writer, sizes)
            return
        if self.few:
            alone = "".join(f" and {name} is None" for name in (*self.borders, *self.seed))
            with writer.block(f"if tokens < {FEW}{alone}:"):
                self._by_parts(writer, sizes)
                writer.gives(self.results)
        if takes_turns(self.fold):
            self._by_turns(writer, sizes)
        special = self._special(writer, program, "forward")
        self._blocks(writer, "forward", special)
        self._launch(writer, program, sizes, special=special)

    def _by_turns(self, writer: Writer, sizes: dict[str, str]) -> None:
        """Lines for so few tokens read that they stand on chip while heads take turns."""
        like = self.arguments[self.vectors[0].name]
        dims = {f"N_{clean(s.dim.name)}" for s in self.vectors if s.dim is not None}
        groups = " * ".join(["B", *(f"N_{clean(name)}" for name in heads_beside(self.fold))])
        given = ["data", "tokens", "S", groups, f"{like}.device", *sorted(dims)]
        writer.line(f"turns = turn_blocks({', '.join(given)})")
        alone = "".join(f" and {name} is None" for name in self.borders)
        with writer.block(f"if turns is not None{alone}:"):
            writer.line("rows, columns, options = turns")
            self._launch(writer, self._program(in_turns, "_turns"), sizes)
            writer.gives(self.results)

    def _by_parts(self, writer: Writer, sizes: dict[str, str]) -> None:
        """Lines that split what few readers read, and join what comes of it."""
        rows, symbols = rows_of(self.fold), numbers_of(self.fold)
        share = sizes[symbols[rows.share].name] if rows.share in symbols else str(rows.share)
        if rows.head is not None and rows.groups is None:
            share = f"N_{clean(rows.head.name)}"
        others = [head.name for head in self.fold.heads if head != rows.head]
        others += [rows.groups] if rows.groups is not None else []
        programs = " * ".join(["B", *(f"N_{clean(name)}" for name in others)])
        dims = {f"N_{clean(s.dim.name)}" for s in self.vectors if s.dim is not None}
        like = self.arguments[self.vectors[0].name]
        given = ["data", f"tokens * {share}", programs, "S", f"{like}.device", *sorted(dims)]
        writer.line(f"rows, columns, parts, options = part_blocks({', '.join(given)})")
        program = self._program(by_parts, "_part")
        writer.line("whole = parts == 1 and tokens == 1  # which is as it is wanted already")
        whole_of = {part: result for result, part in PARTS_OF.items()}
        for buffer in self._made(program):
            result = whole_of[buffer.name]
            writer.line(f"{buffer.name} = {result} if whole else {self._new_tensor(buffer)}")
        self._launch_parts(writer, program, sizes | {"PARTS": "parts"})
        program = self._program(joined, "_join")
        with writer.block("if not whole:"):
            self._launch(writer, program, sizes | {"PARTS": "parts"}, options="")

    def _launch_parts(self, writer: Writer, program: Program, sizes: dict[str, str]) -> None:
        """Lines that launch the program of parts."""
        self._launch_rows(writer, program, self._program(turned, "_turned"), sizes, "options")

    def _launch_rows(
        self, writer: Writer, program: Program, other: Program, sizes: dict[str, str], options: str
    ) -> None:
        """Lines that launch a program of parts, or where keys are values, and there are many rows
        of wide ones, its kernel by warps, or the other that is turned around."""
        if not any(dot.read == self.fold.values for dot in self.fold.dots if not dot.square):
            self._launch(writer, program, sizes, options)
            return
        read = ", ".join(self.arguments[s.name] for s in self.vectors if s.role == "read")
        word = "if"
        if self.fold.choice is None and not isinstance(to_gluon_wide(program), Refusal):
            with writer.block(f"if are_halved(rows, {read}):"):
                self._launch(writer, program, sizes, "HALVED", wide=True)
            word = "elif"
        with writer.block(f"{word} are_turned(rows, {read}):"):
            turning = options.replace("options", "turned_around(options)")
            self._launch(writer, other, sizes, turning)
        with writer.block("else:"):
            self._launch(writer, program, sizes, options)

    def _made(self, program: Program) -> list[Buffer]:
        """The results of a program."""
        read = {*self.arguments, *self.seed, BORDERS}
        return [buffer for buffer in program.buffers if buffer.name not in read]

    def _allocate(self, writer: Writer, program: Program, there: Collection[str] = ()) -> None:
        """Lines that make memory for the results of a program, but for those that are `there`."""
        for buffer in self._made(program):
            if buffer.name not in there:
                writer.line(f"{self._named(buffer)} = {self._new_tensor(buffer)}")

    def _fake(self) -> None:
        program = self._program(self.kernel, "")
        doc = f"What the results of `{self.title}` are like, without their values."
        writer = Writer().define(f"{self.title}_fake", self.parameters, [doc])
        vectors = [self.arguments[source.name] for source in self.vectors]
        writer.line(f"data = narrowest({', '.join(vectors)})")
        self._write_sizes(writer, self._lengths())
        made = [buffer for buffer in self._made(program) if buffer.name in self.results]
        writer.gives([self._new_tensor(buffer) for buffer in made])
        self.file.sections.append(writer.text())

    # --- the gradient ---

    def _arriving(self) -> list[str]:
        """The arguments of the gradient besides those of the op."""
        kept = self.results if self.fold.softmax else []
        return [*self._slopes(), *kept]

    def _slopes(self) -> list[str]:
        """The cotangents of the results that a layer reads."""
        found = [] if self.fold.alone else ["d_o"]
        return found if self.fold.total is None else [*found, "d_lse"]

    def _d_names(self) -> dict[str, str]:
        """How gradients are called, by the names of the programs' buffers."""
        return {_d(name): f"d_{self.arguments[name]}" for name in self.fold.learned}

    def _slots(self) -> dict[str, str]:
        """The gradient of each source that has one."""
        return {name: f"d_{self.arguments[name]}" for name in self.fold.learned}

    def _backward(self) -> None:
        learned = [self.fold.source(name) for name in self.fold.learned]
        writer = self._of_gradient("by readers, then by tokens read", learned)
        sizes = self._write_sizes(writer, self._lengths())
        for name in self._slopes():
            dtype = "data" if self.values is not None and name == "d_o" else WIDE
            writer.line(f"{name} = {name}.to({dtype}).contiguous()")
        if alone := self._alone(learned):
            writer.line(f"shared = data if {alone} else {WIDE}")
        made = {*self._arriving()}
        for make, kind in self._kinds(writer):
            program = self._program(make, f"_{kind}")
            special = self._special(writer, program, kind)
            self._blocks(writer, kind, special)
            self._allocate(writer, program, made)
            made |= {buffer.name for buffer in self._made(program)}
            self._launch(writer, program, sizes, special=special)
        self._more_gradients(writer, sizes)
        writer.gives([self._own(source) for source in learned])
        self.file.sections.append(writer.text())

    def _of_gradient(self, how: str, learned: list[Source]) -> Writer:
        """The head of the function of the gradient, which keeps in mind what dtypes these have."""
        doc = f"The gradient of `{self.title}`: {how}."
        given = [*self._arriving(), *self.parameters]
        writer = Writer().define(f"{self.title}_backward", given, [doc], wrapper="as_op")
        for source in learned:
            name = self.arguments[source.name]
            writer.line(f"{name}_dtype = {name}.dtype")
        self._prepare(writer)
        return writer

    def _kinds(self, writer: Writer) -> Iterator[tuple[Make, str]]:
        """The functions that make the programs of the gradient, in order, each with its kind."""
        yield by_readers, "readers"
        yield by_tokens, "tokens"
        if self.fold.learned_lookups:
            yield by_distances, "tables"

    def _more_gradients(self, writer: Writer, sizes: dict[str, str]) -> None:
        """Lines for gradients that take more than one launch of each program."""

    def _alone(self, learned: list[Source]) -> str:
        """Whether no vector is shared by heads after all; empty where none can be."""
        found: dict[str, None] = {}
        for source in learned:
            if source.dim is not None:
                seen = {head for _, head, _ in source.shares}
                for own, head, share in source.shares:
                    if share != 1:
                        found[f"N_{clean(own)} == N_{clean(head)}"] = None
                for head in self.fold.heads:
                    if head.name not in seen:
                        found[f"N_{clean(head.name)} == 1"] = None
        return " and ".join(found)

    def _own(self, source: Source) -> str:
        """A gradient a head of the pairs as that of a value which heads may share."""
        name = self.arguments[source.name]
        text = self._shared_by_heads(source, f"d_{name}")
        for dot in self.fold.squares:
            if dot.reader == source.name and source.dim is not None:
                place = source.type.names.index(source.dim.name)
                axes = tuple(axis for axis in source.type.axes if axis != source.dim)
                own = replace(source, dim=None, type=Type(axes, source.type.dtype))
                arrived = self._shared_by_heads(own, f"d_{dot.name}")
                text = f"({text} + 2 * {name} * {arrived}.unsqueeze({place}))"
        text += f".to({name}_dtype)"
        return f"of_running_sums({text})" if source.summed else text

    def _shared_by_heads(self, source: Source, text: str) -> str:
        """The gradient of a value made for each head of the pairs, with the dims that these may
        share."""
        names = self._laid_out(source)
        if source.table is not None:
            length = f"N_{clean(source.table.name)}"
            found = [each for each in self.fold.learned_lookups if each.table == source.name]
            sums = [f"of_table(d_{each.name}, at_{each.name}, {length})" for each in found]
            text = sums[0] if len(sums) == 1 else f"({' + '.join(sums)})"
        for own, head, share in source.shares:
            place = names.index(head)
            if share != 1:
                text = f"of_groups({text}, {place}, N_{clean(own)})"
            names[place] = own
        return summed_to(text, names, source.type.names, ".contiguous()")

    def _laid_out(self, source: Source) -> list[str]:
        """The axes of a gradient as kernels make it."""
        heads = [head.name for head in self.fold.heads]
        tokens = next((axis.name for axis in source.type.axes if axis.kind == "stream"), "tokens")
        if source.table is not None:
            return [*heads, source.table.name]
        if source.dim is None:
            return ["batch", *heads, tokens]
        return ["batch", tokens, *heads, source.dim.name]

    # --- the ops ---

    def _new(
        self, suffix: str, before: list[str], made: list[str], functions: list[str],
        make: str = "new_op",
    ) -> None:  # fmt: skip
        """The lines that make an op; `before`: its arguments in front of those of all."""
        name = f"{self.title}{suffix}"
        tensors = [*self.arguments.values()]
        tensors += [f"Tensor? {name}" for name in (*self.borders, *self.seed)]
        numbers = [
            f"{'SymInt' if symbol in self.wholes else 'float'} {argument}"
            for symbol, argument in self.numbers.items()
        ]
        given = [*before, *tensors, "SymInt tokens", self.place, "SymInt start", *numbers]
        schema = f"{name}({', '.join(given)}) -> ({', '.join(made)})"
        self.file.sections.append(op_text(name, schema, functions, make))


def has_special(fold: WeightedSum, program: Program, kind: str) -> bool:
    """Whether a program of a fold has a kernel whose warps have work of their own. Of several
    products a turn there is no room for all that stands in shared memory; what is listed is not
    walked; and where few tokens are walked, as of a window, what a program begins with takes as
    long as its turns."""
    products = [dot for dot in fold.dots if not dot.square]
    few = fold.choice is not None or fold.ranges or not all(bound.most for bound in fold.bounds)
    if few or len(products) != 1 or (kind == "tokens" and _is_slow(program)):
        return False
    return not isinstance(to_gluon(program), Refusal)


def _is_slow(program: Program) -> bool:
    """Whether the pairs of a turn take functions besides the exponential of their weights (a cap's
    tanh): for gradients of tokens read more programs at once then take less time than warps with
    work of their own (5.3 for 6.3 ms on an H200)."""
    loops = [s for s in statements(program.body) if isinstance(s.op, For)]
    pairs = [s for s in statements(program.body) if len(s.results) == 1]
    slow = [
        s for s in pairs
        if isinstance(s.op, Apply) and s.op.function in SLOW and len(s.results[0].type.dims) == 2
    ]  # fmt: skip
    return len(slow) > len(loops)


def summed_to(text: str, have: Sequence[str], wanted: Sequence[str], moved: str = "") -> str:
    """A tensor without the axes that are not wanted, which are summed, in the wanted order; what
    is done to it then where that is another one."""
    gone = [str(place) for place, name in enumerate(have) if name not in wanted]
    text += f".sum({in_tuple(gone)})" if gone else ""
    order = in_order([name for name in have if name in wanted], wanted)
    return f"{text}{order}{moved}" if order else text


def in_order(have: Sequence[str], wanted: Sequence[str]) -> str:
    """`.permute(0, 2, 1)`; nothing where the axes are in the wanted order."""
    order = [have.index(name) for name in wanted]
    return f".permute({', '.join(map(str, order))})" if order != sorted(order) else ""


def _d(name: str) -> str:
    """How programs call a gradient."""
    return cotangent(name).replace(".", "_")

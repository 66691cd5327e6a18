"""One sum over the blocks that each reader has chosen, as ops of torch."""

from __future__ import annotations

from collections.abc import Iterator

from archc.backends.eager.file import File
from archc.backends.triton.fold_op import WIDE, FoldOp, Make, in_order, summed_to
from archc.backends.triton.program_launch import ProgramLaunch, write_program
from archc.backends.writer import Writer, quoted

from archc.attention import listing
from archc.attention.row_heads import heads_beside, rows_of
from archc.attention.weighted_sum import Choice, Source, WeightedSum
from archc.lowering.attention import clean, numbers_of
from archc.lowering.attention_chosen import by_choice, of_choosers, of_chosen, unions
from archc.lowering.attention_singly import entries_name, of_singly, totals
from archc.tile.language import Buffer, Program

LISTS = ("listed", "count", "order", "begins", "union", "who", "many")
"""The arguments that tell kernels of choices."""


class ChoiceOp(FoldOp):
    """The ops of one fold with a choice. The choice enters after the sources, as lists of places,
    and after all numbers how long these are."""

    def __init__(self, file: File, fold: WeightedSum, title: str):
        super().__init__(file, fold, title, few=False)
        assert fold.choice is not None
        self.choice: Choice = fold.choice
        self.arguments[fold.choice.source.name] = fold.choice.source.name
        self.numbers["MOST"] = "most"
        self.wholes.add("MOST")
        self.heads = [clean(own) for own, _, _ in self.choice.heads]
        self.rows = rows_of(fold)

    @property
    def how(self) -> str:
        """How the values are made, for a reader."""
        return "by one kernel: readers, with their heads, walk what they chose"

    @property
    def kernel(self) -> Make:
        """The function that makes the program of the values."""
        return by_choice

    def _chosen(self) -> str:
        return self.arguments[self.choice.source.name]

    def _blocks_of_choices(self) -> str:
        """How many blocks have tokens that are read."""
        return f"-(-(start + S) // {self._size()})"

    def _sizes(self) -> dict[str, str]:
        found = super()._sizes()
        for place, axis in enumerate(self.choice.source.type.axes):
            if axis.kind == "dim" and axis != self.choice.blocks:
                found.setdefault(f"N_{clean(axis.name)}", f"{self._chosen()}.shape[{place}]")
        found |= {"PARTS": "parts", "ENTRIES": "order.shape[-1]", "BESIDE": "beside"}
        return found | {"LISTS": self._blocks_of_choices()}

    def _new_tensor(self, buffer: Buffer) -> str:
        """Memory of a result: the heads of all groups are one axis of the tensor."""
        assert self.rows.head is not None
        if not any(axis == "part" for axis, _ in buffer.axes):
            names = {"n_row": f"n_{clean(self.rows.head.name)}"}
            axes = [(names.get(n, n), size) for n, size in buffer.axes if n != "n_group"]
            return super()._new_tensor(Buffer(buffer.name, tuple(axes), buffer.dtype))
        known = {"part": "parts", "b": "B", "inner": self._size()}
        known["block"] = self._blocks_of_choices()
        shape = [known.get(axis) or f"N_{axis[2:]}" for axis, _ in buffer.axes]
        like = self.arguments[self.vectors[0].name]
        return f"{like}.new_empty(({', '.join(shape)}), dtype={WIDE})"

    def _text(self, number: object) -> str:
        """A number as Python."""
        symbol = numbers_of(self.fold).get(number)  # pyright: ignore
        return str(number) if symbol is None else self.numbers[symbol.name]

    def _size(self) -> str:
        """How many tokens a block has."""
        return self._text(self.choice.size)

    def _share(self) -> str:
        """How many heads are rows of a program."""
        assert self.rows.head is not None
        if self.rows.groups is None:
            return f"N_{clean(self.rows.head.name)}"
        return self._text(self.rows.share)

    def _made(self, program: Program) -> list[Buffer]:
        return [buffer for buffer in super()._made(program) if buffer.name not in LISTS]

    def _laid(self, source: Source) -> str:
        """Blocks of vectors are read by the copy engine."""
        blocks = source.role == "read" and not self.choice.single
        return "copied_vectors" if blocks else super()._laid(source)

    def _special(self, writer: Writer, program: Program, kind: str) -> str:
        """None: what is read is listed, which kernels by warps do not walk."""
        return ""

    def _blocks(self, writer: Writer, kind: str, special: str = "") -> None:
        """The line that says how long blocks are, and how a program is launched."""
        dims = {f"N_{clean(s.dim.name)}" for s in self.vectors if s.dim is not None}
        share = self._share()
        if not self.choice.single:
            share = f"beside * {share}"
        given = [quoted(kind), "data", share, self._size(), *sorted(dims)]
        writer.line(f"rows, columns, options = choice_blocks({', '.join(given)})")

    def _list(self, writer: Writer, counted: bool) -> None:
        """The line that lists what each reader has chosen, and how many there are where that is
        asked for."""
        names = [*self.choice.source.type.names]
        last, own = self.choice.blocks.name, [name for name, _, _ in self.choice.heads]
        batch, reader = names[0], self.fold.reader.name
        text = f"{self._chosen()}{in_order(names, (batch, reader, *own, last))}"
        made = f"listed, count = filled({text})" if counted else f"listed = {text}.contiguous()"
        writer.line(made)

    def _unite(self, writer: Writer) -> None:
        """Lines that list what any of some readers beside each other has chosen."""
        heads, lines = [f"n_{name}" for name in self.heads], listing.places(self.fold)
        program = unions(heads, f"{self.title}_unions_kernel", lines)
        writer.line(f"beside = readers_beside(tokens, {self._share()})")
        lengths = {f"N_{n}": f"listed.shape[{at}]" for at, n in enumerate(self.heads, 2)}
        shape = ["B", "-(-tokens // beside)", *lengths.values()]
        entries = ", ".join([*shape, "beside * most"])
        for name in ("union", "who"):
            writer.line(f"{name} = listed.new_empty(({entries}))")
        writer.line(f"many = listed.new_empty(({', '.join(shape)}))")
        buffers: dict[str, str] = {b.name: b.name for b in program.buffers}
        known = {"B": "B", "T": "tokens", "MOST": "most", "BESIDE": "beside"}
        known = {s.name: (known | lengths)[s.name] for s in program.sizes}
        constants = {"BLOCK_E": "block_of(beside * most)"}
        options = "union_options(beside * most)"
        launch = ProgramLaunch(buffers, known, constants, options=options)
        write_program(self.file, writer, program, launch)

    def _launches(self, writer: Writer, sizes: dict[str, str]) -> None:
        program = self._program(by_choice, "")
        self._list(writer, self.choice.single)
        self._allocate(writer, program)
        if not self.choice.single:
            self._unite(writer)
        self._blocks(writer, "forward")
        self._launch(writer, program, sizes)

    def _kinds(self, writer: Writer) -> Iterator[tuple[Make, str]]:
        self._list(writer, True)
        if self.choice.single:
            return
        self._unite(writer)
        yield of_choosers, "readers"
        blocks = self._blocks_of_choices()
        writer.line(f"order, begins = readers_of(listed, count, {blocks})")
        groups = [f"N_{clean(name)}" for name in self._groups()]
        writer.line(f"parts = choice_parts({' * '.join(['B', blocks, *groups])}, listed.device)")
        yield of_chosen, "tokens"

    def _more_gradients(self, writer: Writer, sizes: dict[str, str]) -> None:
        """Where tokens are chosen one by one: of so many readers at a time as there is room for the
        entries of, which are added up for each token."""
        if not self.choice.single:
            return
        program = self._program(of_singly, "_singly")
        wanted = [s for n in self.fold.learned if (s := self.fold.source(n)).role == "read"]
        beside = [f"N_{clean(name)}" for name in self._groups()]
        wide = [f"N_{clean(s.dim.name)}" if s.dim is not None else "1" for s in wanted]
        heads = " * ".join(beside) or "1"
        self._allocate(writer, program, {*map(entries_name, wanted), *self._arriving()})
        for source, dim in zip(wanted, wide, strict=True):
            like, shape = self.arguments[source.name], ", ".join(["B", "S", *beside, dim])
            writer.line(f"d_{like} = {like}.new_zeros(({shape}), dtype={WIDE})")
        self._blocks(writer, "readers")
        writer.line(f"parts = -(-{self._share()} // rows)")
        writer.line(f"precision = entry_precision(data, {', '.join(wide) or '1'})")
        writer.line(f"entry = torch.bfloat16 if data == torch.bfloat16 else {WIDE}")
        numbers = " * ".join(["B", "most", "parts", *beside, f"({' + '.join(wide) or '1'})"])
        writer.line(f"step = readers_at_once({numbers})")
        with writer.block("for first in range(0, tokens, step):"):
            writer.line("readers = min(step, tokens - first)")
            for source, dim in zip(wanted, wide, strict=True):
                shape = ", ".join(["B", "readers", "most", heads, "parts", dim])
                like = self.arguments[source.name]
                writer.line(f"{entries_name(source)} = d_{like}.new_empty(({shape}), dtype=entry)")
            own = sizes | {"READERS": "readers", "FIRST": "first"}
            self._launch(writer, program, own, precision="precision")
            if wanted:
                own = "[:, first : first + readers]"
                lists = [f"listed{own}", f"count{own}", "S", heads]
                writer.call("order, begins = entries_of(", lists, ")")
            for source, dim in zip(wanted, wide, strict=True):
                self._total(writer, source, dim, heads)

    def _total(self, writer: Writer, source: Source, dim: str, heads: str) -> None:
        """Lines that add up the entries of some readers."""
        program = totals(f"{self.title}_totals_kernel")
        buffers: dict[str, str] = {
            "order": "order", "begins": "begins", "entries": entries_name(source),
            "total": f"d_{self.arguments[source.name]}",
        }  # fmt: skip
        known = {"B": "B", "S": "S", "X": heads, "D": dim}
        known |= {"ENTRIES": "order.shape[-1]", "PARTS": "parts"}
        known = {symbol.name: known[symbol.name] for symbol in program.sizes}
        constants = {"ENTRY": "entry", "BLOCK_T": "4", "BLOCK_D": f"block_of({dim})"}
        write_program(self.file, writer, program, ProgramLaunch(buffers, known, constants))

    def _groups(self) -> list[str]:
        """The axes of heads along which programs of tokens read differ."""
        return heads_beside(self.fold)

    def _own(self, source: Source) -> str:
        """A gradient as that of a value; of a token read it is the sum of several parts."""
        if source.role != "read":
            return super()._own(source)
        name = self.arguments[source.name]
        names = ["batch", *(axis.name for axis in source.type.axes if axis.kind == "stream")]
        names += [*self._groups(), *([source.dim.name] if source.dim is not None else [])]
        text = f"d_{name}.sum(0).flatten(1, 2)[:, start : start + S]"
        if self.choice.single:
            text = f"d_{name}" if source.dim is not None else f"d_{name}[..., 0]"
        text = summed_to(text, names, source.type.names)
        return f"{text}.to({name}_dtype).contiguous()"

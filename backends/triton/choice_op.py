"""One sum over the blocks that each reader has chosen, as ops of torch."""

from __future__ import annotations

from collections.abc import Iterator

from archc.backends.eager.file import File
from archc.backends.triton.fold_op import WIDE, FoldOp, Make
from archc.backends.writer import Writer, quoted

from archc.attention.row_heads import rows_of
from archc.attention.weighted_sum import Choice, Source, WeightedSum
from archc.lowering.attention import clean, numbers_of
from archc.lowering.attention_chosen import by_choice, of_choosers, of_chosen
from archc.tile.language import Buffer, Program

LISTS = ("listed", "count", "order", "begins")
"""What kernels are told of choices."""


class ChoiceOp(FoldOp):
    """The ops of one fold with a choice. The choice enters after the sources, as truth values, and
    after all numbers how many blocks a reader has chosen at most."""

    def __init__(self, file: File, fold: WeightedSum, title: str):
        super().__init__(file, fold, title, few=False)
        assert fold.choice is not None
        self.choice: Choice = fold.choice
        self.arguments[fold.choice.source.name] = fold.choice.source.name
        self.numbers["MOST"] = "most"
        self.wholes.add("MOST")
        self.rows = rows_of(fold)

    @property
    def kernel(self) -> Make:
        """What makes the program of the values."""
        return by_choice

    def _chosen(self) -> str:
        return self.arguments[self.choice.source.name]

    def _blocks_of_choices(self) -> str:
        """How many blocks there are."""
        names = [*self.choice.source.type.names]
        return f"{self._chosen()}.shape[{names.index(self.choice.blocks.name)}]"

    def _sizes(self) -> dict[str, str]:
        found = super()._sizes()
        for place, axis in enumerate(self.choice.source.type.axes):
            if axis.kind == "dim":
                found.setdefault(f"N_{clean(axis.name)}", f"{self._chosen()}.shape[{place}]")
        found |= {"PARTS": "parts", "ENTRIES": "order.shape[-1]"}
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

    def _blocks(self, writer: Writer, kind: str) -> None:
        """The line that says how long blocks are, and how a program is launched."""
        dims = {f"N_{clean(s.dim.name)}" for s in self.vectors if s.dim is not None}
        given = [quoted(kind), "data", self._share(), self._size(), *sorted(dims)]
        writer.line(f"rows, columns, options = choice_blocks({', '.join(given)})")

    def _list(self, writer: Writer) -> None:
        """The line that lists what each reader has chosen."""
        names = [*self.choice.source.type.names]
        last, own = self.choice.blocks.name, [name for name, _, _ in self.choice.heads]
        batch, reader = names[0], self.fold.reader.name
        order = [names.index(name) for name in (batch, reader, *own, last)]
        text = self._chosen()
        if order != sorted(order):
            text += f".permute({', '.join(map(str, order))})"
        writer.line(f"listed, count = chosen_places({text}, most)")

    def _forward(self) -> None:
        program, writer = self._program(by_choice, ""), Writer()
        doc = f"`{self.title}` by one kernel: a reader, with its heads, walks what it has chosen."
        self._define(writer, f"{self.title}_launch", self.parameters, doc, op=True)
        self._prepare(writer)
        sizes = self._write_sizes(writer, self._lengths())
        self._list(writer)
        for buffer in self._made(program):
            writer.line(f"{buffer.name} = {self._new_tensor(buffer)}")
        self._blocks(writer, "forward")
        self._launch(writer, program, sizes)
        writer.line(f"return {', '.join(self.results)}")
        self.file.sections.append(writer.text())

    def _kinds(self, writer: Writer) -> Iterator[tuple[Make, str]]:
        self._list(writer)
        yield of_choosers, "readers"
        blocks = self._blocks_of_choices()
        writer.line(f"order, begins = readers_of(listed, count, {blocks})")
        groups = [f"N_{clean(name)}" for name in self._groups()]
        writer.line(f"parts = choice_parts({' * '.join(['B', blocks, *groups])}, listed.device)")
        yield of_chosen, "tokens"

    def _groups(self) -> list[str]:
        """The axes of heads along which programs of tokens read differ."""
        others = [head.name for head in self.fold.heads if head != self.rows.head]
        return [*([self.rows.groups] if self.rows.groups is not None else []), *others]

    def _own(self, source: Source) -> str:
        """A gradient as that of a value; of a token read it is the sum of several parts."""
        if source.role != "read":
            return super()._own(source)
        name = self.arguments[source.name]
        names = ["batch", *(axis.name for axis in source.type.axes if axis.kind == "stream")]
        names += [*self._groups(), *([source.dim.name] if source.dim is not None else [])]
        text = f"d_{name}.sum(0).flatten(1, 2)[:, start : start + S]"
        gone = [i for i, n in enumerate(names) if n not in source.type.names]
        if gone:
            text += f".sum(({', '.join(map(str, gone))}{',' * (len(gone) == 1)}))"
            names = [n for n in names if n in source.type.names]
        order = [names.index(n) for n in source.type.names]
        if order != sorted(order):
            text += f".permute({', '.join(map(str, order))})"
        return f"{text}.to({name}_dtype).contiguous()"

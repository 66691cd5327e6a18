"""One sum over the tokens read as an op of torch, for one reader of each sequence, which are of
different lengths."""

from __future__ import annotations

from dataclasses import replace

from archc.backends.eager.file import File
from archc.backends.triton.fold_op import FoldOp, Make
from archc.backends.writer import Writer

from archc.attention.bounds import ends_of, up_to_the_reader
from archc.attention.weighted_sum import WeightedSum
from archc.lowering.attention_forward import forward
from archc.lowering.attention_heads import ROOM, by_parts, turned
from archc.tile.language import Buffer, Program

PAGED = ((by_parts, "_pages"), (turned, "_turned_pages"))


class SlotOp(FoldOp):
    """The op of a fold whose `pos` is a tensor [B]: how many tokens of each sequence come before
    its reader. Behind the reader's own, a cache may hold anything. With a `table` what is read lies
    in pages, one after the other in a batch of 1. It has no gradient."""

    place = "Tensor pos"

    def __init__(self, file: File, fold: WeightedSum, title: str):
        alone = replace(fold, packed=False, ragged=True, slopes=None, unlearned="few readers")
        super().__init__(file, alone, title)

    def _sizes(self) -> dict[str, str]:
        found = {**super()._sizes(), "POS": "0", "B": "pos.shape[0]"}
        if self.fold.paged:
            room = found["S"]
            found |= {ROOM: room, "PAGES": "table.shape[1]"}
            found["S"] = f"{room} if table is None else table.shape[1] * PAGE"
        return found

    def _made(self, program: Program) -> list[Buffer]:
        return [b for b in super()._made(program) if b.name not in ("own_pos", "pages")]

    def _named(self, buffer: Buffer) -> str:
        return "table" if buffer.name == "pages" else super()._named(buffer)

    def _program(self, make: Make, suffix: str) -> Program:
        """Programs of what is in no pages, but for that of `_launch_parts`."""
        return make(replace(self.fold, paged=False), f"{self.title}{suffix}_kernel")

    def _launch_parts(self, writer: Writer, program: Program, sizes: dict[str, str]) -> None:
        if not self.fold.paged:
            super()._launch_parts(writer, program, sizes)
            return
        with writer.block("if table is None:"):
            super()._launch_parts(writer, program, sizes)
        with writer.block("else:"):
            both = (make(self.fold, f"{self.title}{name}_kernel") for make, name in PAGED)
            self._launch_rows(writer, *both, sizes, "by_addresses(options)")

    @property
    def how(self) -> str:
        """How the values are made, for a reader."""
        return "of sequences with as many tokens before their readers as `pos` has"

    def _prepare(self, writer: Writer) -> None:
        super()._prepare(writer)
        writer.line("own_pos = pos.to(torch.int32)")

    def _launches(self, writer: Writer, sizes: dict[str, str]) -> None:
        self._allocate(writer, self._program(forward, ""))
        self._by_parts(writer, sizes)


def by_slots(fold: WeightedSum) -> bool:
    """Whether a fold has kernels for sequences of different lengths: no later token is read, nor a
    block that ends later, which is all that says where a sequence ends."""
    summed = any(source.summed for source in fold.sources)
    ended = up_to_the_reader(fold.bounds) or any(ends_of(fold))
    return fold.choice is None and not summed and ended

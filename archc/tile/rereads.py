"""When a program reads a buffer again after it has written another one: where the other may not
stand in its place."""

from __future__ import annotations

from collections.abc import Sequence

from archc.tile import language as lang


def rereads(
    program: lang.Program, read: lang.Buffer, written: lang.Buffer
) -> Sequence[lang.AtMost] | None:
    """The conditions on sizes under which it does not, all of which must hold; None where no such
    are known."""
    made = {v: each.op for each in lang.statements(program.body) for v in each.results}
    walk = _Walk(made, read, written)
    return walk.needed if walk.block(program.body) else None


class _Walk:
    """A look at all statements in order; `needed` are the conditions found so far."""

    def __init__(
        self, made: dict[lang.Value, lang.Op], read: lang.Buffer, written: lang.Buffer
    ) -> None:
        self.made, self.read, self.written = made, read, written
        self.needed: list[lang.AtMost] = []
        self.begun = False

    def block(self, block: lang.Block) -> bool:
        """Whether the loads of a block are before what is written, or left out under conditions."""
        return all(self._statement(each) for each in block.statements)

    def _statement(self, statement: lang.Statement) -> bool:
        op = statement.op
        if isinstance(op, lang.Load | lang.LoadBlock | lang.Atomic) and op.buffer == self.read:
            return not self.begun
        if isinstance(op, lang.Store | lang.Atomic) and op.buffer == self.written:
            self.begun = True
        condition = self.made[statement.operands[0]] if isinstance(op, lang.If) else None
        if isinstance(condition, lang.AtMost):
            first, second = statement.blocks
            return self.block(first) and self._left_out(second, condition)
        before = self.begun
        inside = all(self.block(each) for each in statement.blocks)
        again = isinstance(op, lang.For | lang.While) and self.begun != before
        return inside and (not again or all(self.block(each) for each in statement.blocks))

    def _left_out(self, block: lang.Block, condition: lang.AtMost) -> bool:
        """Whether a block is as it must be, or is not run under a condition."""
        if not self.block(block) and condition not in self.needed:
            self.needed.append(condition)
        return True

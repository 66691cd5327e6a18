"""Names that blocks hand on: what a turn, or a way of a branch, ends with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from archc.backends.triton.addresses import Names
from archc.backends.triton.nesting import read_by
from archc.backends.triton.spelling import WIDTH

from archc.tile import language as lang


class HandedOn(Names):
    """The names of what loops carry and branches give: `next` has the values that are alone what a
    name stands for next, with what has it now and the block that gives it; `right` the texts of
    values with a line of their own."""

    def __init__(self, program: lang.Program):
        super().__init__(program)
        self.next: dict[lang.Value, tuple[lang.Value, lang.Block]] = {}
        self.right: dict[lang.Value, str] = {}

    def note_next(self, targets: Sequence[lang.Value], block: lang.Block) -> None:
        """Note what a block makes to give alone, before it has lines."""
        for target, value in zip(targets, block.yields, strict=True):
            made = self.source(value)
            if self.uses[value] == self.uses[made] == 1:
                self.next[made] = (target, block)

    def handed_on(self, statement: lang.Statement, lines: list[str], indent: str) -> list[str]:
        """The lines of a statement, by the name that the next turn has for what it makes."""
        result = next(iter(statement.results), None)
        if result not in self.next or result not in self.right or result in self.within:
            return lines
        target, block = self.next[result]
        name = self.name(target)
        if statement not in block.statements or self._is_read(name, block, statement):
            return lines
        self.texts[result] = name
        return [*lines[:-1], f"{indent}{name} = {self.right[result]}"]

    def _is_read(self, name: str, block: lang.Block, last: lang.Statement) -> bool:
        """Whether lines of a block after that of a statement read what has a name so far."""
        after = block.statements[block.statements.index(last) + 1 :]
        read = [value for value in block.yields if self.source(value) not in last.results]
        read += (value for statement in after for value in read_by(statement))
        return any(self._has_name(value, name) for value in read)

    def _has_name(self, value: lang.Value, name: str) -> bool:
        """Whether the text of a value has a name in it."""
        text, made = self.name(value), self.made.get(value)
        if text == name or made is None:
            return text == name
        shown = value in self.within or not text.isidentifier() or None not in self._split(value)
        return shown and any(self._has_name(each, name) for each in made.operands)

    def changes(self, targets: Sequence[lang.Value], block: lang.Block, indent: str) -> list[str]:
        """The lines that give names what a block yields by others: several where one is too long
        and no name is read after it has changed."""
        pairs = zip(targets, block.yields, strict=True)
        changed = [(self.name(a), b) for a, b in pairs if self.name(a) != self.name(b)]
        if not changed:
            return []
        names, values = zip(*changed, strict=True)
        texts = [self.name(value) for value in values]
        whole = f"{indent}{', '.join(names)} = {', '.join(texts)}"
        apart = not any(
            self._has_name(b, a) for at, a in enumerate(names) for b in values[at + 1 :]
        )
        each = (f"{indent}{a} = {b}" for a, b in zip(names, texts, strict=True))
        return [*each] if len(whole) > WIDTH and apart else [whole]

    def call_carried(
        self, made: Mapping[lang.Value, lang.Statement], value: lang.Value, name: str
    ) -> None:
        """Give a name to what a loop carries that ends with a value, and to what it begins with if
        the loop alone reads that and it has a line beside it."""
        loop = made[value]
        place = loop.results.index(value)
        start = loop.operands[place - len(loop.results)]
        self.texts[loop.blocks[0].arguments[place - len(loop.results)]] = name
        if start in made and self.uses[start] == 1 and start.type.dims:
            self.texts.setdefault(start, name)

    def carry(
        self, loop: lang.Statement, given: Sequence[lang.Value], inside: Sequence[lang.Value]
    ) -> Iterator[str]:
        """The lines that a loop begins with, by the names that its turns change: a value that is
        read here alone goes on under its own name, if it is made anew whenever the loop is."""
        for value, inner in zip(given, inside, strict=True):
            steps = value in self.made and isinstance(self.made[value].op, lang.Iota)
            by_loop = value in self.made and isinstance(self.made[value].op, lang.For | lang.While)
            shown = steps or value in self.within or (value in self.texts and not by_loop)
            if self.name(inner) == self.name(value):
                continue
            if self.uses[value] == 1 and not shown and self._is_beside(value, loop):
                self.texts[inner] = self.name(value)
            else:
                yield f"{self.name(inner)} = {self.name(value)}"

    def _is_beside(self, value: lang.Value, loop: lang.Statement) -> bool:
        """Whether a value and a loop stand in the same block."""
        return loop in self.own[value].statements

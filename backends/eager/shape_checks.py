"""The shapes that fit together, which the functions of a file look at before a kernel reads what is
not there: a text for `check_shapes` (`archc/runtime/ops.py`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from archc.backends.writer import Names, Writer, in_tuple, literals, quoted

from archc.dims import Axis

Known = Callable[[str, Axis, bool], str]
"""The length of an argument's axis, which runs along a stream or not; "" if any is right."""


@dataclass(frozen=True)
class Shapes:
    """What arguments are along, those with the same shape together: their order, the text of that,
    and conditions on lengths."""

    order: tuple[str, ...]
    text: str
    needs: tuple[str, ...]

    def write(self, writer: Writer, before: str, after: str) -> None:
        """Lines that have the text, and a function of lengths where there are conditions."""
        listed = self.text + (f" with {', '.join(self.needs)}" if self.needs else "")
        lines = literals(listed, writer.room - 4)
        if self.needs:
            test = " and ".join(self.needs)
            read = {*re.findall(r"[^\W\d]\w*", test)} & {*re.findall(r"\w+", self.text)}
            lines[-1] += ","
            names = sorted(read)
            lines.append(f"{quoted(' '.join(names))}, lambda {', '.join(names)}: {test}")
        writer.line(f"{before}(")
        writer.include([f"    {line}" for line in lines])
        writer.line(f"){after}")


def shapes_of(
    axes: Mapping[str, Sequence[Axis]], known: Known, conditions: Sequence[str] = ()
) -> Shapes:
    """The shapes of arguments with these axes."""
    found = {
        argument: [known(argument, a, any(b.kind == "stream" for b in own)) for a in own]
        for argument, own in axes.items()
    }  # fmt: skip
    names = Names(each for lengths in found.values() for each in lengths)
    needs, grouped = list[str](), dict[str, list[str]]()
    for argument, lengths in found.items():
        for at, length in enumerate(lengths):
            if not re.fullmatch(r"[\w ]*", length):  # by other lengths
                lengths[at] = names.fresh("size")
                needs.append(f"{lengths[at]} == {length}")
        shape = f"[{', '.join(each or '_' for each in lengths)}]"
        grouped.setdefault(shape, []).append(argument)
    text = "; ".join(f"{', '.join(each)} {shape}" for shape, each in grouped.items())
    order = tuple(name for each in grouped.values() for name in each)
    return Shapes(order, text, (*needs, *conditions))


def write_check(
    writer: Writer, title: str, shapes: str, tensors: Sequence[str], *more: str
) -> None:  # fmt: skip
    """The line that refuses tensors, in the order of the shapes that have that name."""
    writer.call("check_shapes(", [quoted(title), shapes, in_tuple(tensors), *more], ")")

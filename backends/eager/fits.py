"""The function that looks at shapes, before a kernel reads what is not there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from archc.backends.eager.region import argument_list
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.writer import Writer, literals, quoted

from archc.dims import Axis

Known = Callable[[str, Axis, bool], str]
"""The length of an argument's axis, which runs along a stream or not; "" if any is right."""


def write_fits(
    name: str, given: Sequence[str], body: Scope, axes: Mapping[str, Sequence[Axis]],
    known: Known, before: Sequence[str] = (), more: Sequence[str] = (),
) -> str:  # fmt: skip
    """The text of the function `name(given)`. `axes`: those of each argument; `before`: lines that
    come before; `more`: conditions on sizes."""
    shapes: dict[str, list[str]] = {}
    for argument, own in axes.items():
        streams = any(axis.kind == "stream" for axis in own)
        lengths = [known(argument, axis, streams) for axis in own]
        lengths = [each or f"{argument}.shape[{at}]" for at, each in enumerate(lengths)]
        shape = f"({', '.join(lengths)}{',' * (len(lengths) == 1)})"
        shapes.setdefault(shape, []).append(f"{argument}.shape")
    head, writer = Writer(), Writer()
    write_sizes(head, body)
    writer.call(f"def {name}(", list(given), "):")
    writer.depth += 1
    writer.docstring(["Whether shapes fit together; strides may be any."])
    for argument in dict.fromkeys(re.findall(r"(\w+)\.shape", "\n".join(head.lines))):
        with writer.block(f"if {argument}.dim() != {len(axes[argument])}:"):
            writer.line("return False")
    writer.include([*head.lines, *before])
    equal = [f"{' == '.join(each)} == {shape}" for shape, each in shapes.items()]
    equal += more
    writer.line("return (")
    writer.include([f"    {'and ' * (at > 0)}{each}" for at, each in enumerate(equal)])
    writer.line(")")
    return writer.text()


def write_refusal(
    writer: Writer, test: str, title: str, layouts: Mapping[str, Sequence[str]],
    more: Sequence[str] = (),
) -> None:  # fmt: skip
    """Lines that say which shapes would fit, where a test of them fails."""
    with writer.block(f"if not {test}:"):
        writer.line(f"raise wrong_shapes({quoted(title)}, (")
        with_sizes = f" with {', '.join(more)}" if more else ""
        listed = literals(f"{argument_list(layouts)}{with_sizes}", writer.room - 4)
        writer.include([f"    {line}" for line in listed])
        writer.call("), ", [*layouts], ")")

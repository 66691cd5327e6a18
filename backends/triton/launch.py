"""The lines that launch a kernel."""

from __future__ import annotations

from archc.backends.writer import INDENT, Writer

Call = tuple[str, list[str], str]
"""What opens a bracket, the items in it, and what closes it."""


def write_launch(
    writer: Writer, kernel: str, programs: str, given: list[str], counts: list[str],
    fixed: list[str], options: Call, told: str = "", made: str = "dict",
) -> None:  # fmt: skip
    """`launch_kernel(...)`, in the order of the kernel's arguments: `given`, tensors each with its
    strides; `counts`, numbers that may be any; what is `fixed` when it is compiled, of which `made`
    makes a dict; and the `options` of compiling. `told`: the name of what it returns."""
    with writer.block(f"{told} = launch_kernel(" if told else "launch_kernel("):
        writer.line(f"{kernel}, {programs},")
        _listed(writer, ("[", given, "],"), ("[", counts, "],"))
        _listed(writer, (f"{made}(", fixed, "),"), (options[0], options[1], f"{options[2]},"))
    writer.line(")")


def _listed(writer: Writer, *calls: Call) -> None:
    """Items in brackets: all on one line, or each of them on as few as there is room for."""
    whole = [f"{start}{', '.join(items)}{end}" for start, items, end in calls]
    if len(" ".join(whole)) <= writer.room:
        writer.line(" ".join(whole))
        return
    for text, (start, items, end) in zip(whole, calls, strict=True):
        if len(text) <= writer.room:
            writer.line(text)
            continue
        with writer.block(start):
            for line in filled(items, writer.room - 2 * len(INDENT)):  # blocks it may get into
                writer.line(f"{line},")
        writer.line(end)


def filled(items: list[str], room: int = 90) -> list[str]:
    """Items joined to lines that are not too long."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > room:
            lines.append("")
        lines[-1] += f", {item}" if lines[-1] else item
    return lines

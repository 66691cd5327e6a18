"""The lines that launch a kernel."""

from __future__ import annotations

from archc.backends.writer import INDENT, Writer


def write_launch(
    writer: Writer, kernel: str, programs: str, given: list[str], counts: list[str],
    fixed: list[str], options: str, told: str = "", made: str = "dict",
) -> None:  # fmt: skip
    """`launch_kernel(...)`, in the order of the kernel's arguments: `given`, tensors each with its
    strides; `counts`, numbers that may be any; and what is `fixed` when it is compiled, of which
    `made` makes a dict. `told`: the name of what it returns."""
    with writer.block(f"{told} = launch_kernel(" if told else "launch_kernel("):
        writer.line(f"{kernel}, {programs},")
        _listed(writer, "[", given, "],")
        writer.line(f"[{', '.join(counts)}],")
        _listed(writer, f"{made}(", fixed, "),")
        writer.line(f"{options},")
    writer.line(")")


def _listed(writer: Writer, before: str, items: list[str], after: str) -> None:
    """Items between brackets: on one line, or on as few as there is room for."""
    room = writer.room - 3 * len(INDENT)  # of which two are for blocks that it may get into
    fits = len(before) + len(", ".join(items)) + len(after) <= writer.room
    writer.call(before, items if fits else filled(items, room), after)


def filled(items: list[str], room: int = 90) -> list[str]:
    """Items joined to lines that are not too long."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > room:
            lines.append("")
        lines[-1] += f", {item}" if lines[-1] else item
    return lines

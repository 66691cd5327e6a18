"""The lines that launch a kernel."""

from __future__ import annotations

from archc.backends.writer import Writer

Call = tuple[str, list[str], str]
"""The text that opens a bracket, the items in it, and the text that closes it."""


def write_launch(
    writer: Writer, kernel: str, programs: str, given: list[str], counts: list[str],
    fixed: str, options: Call, told: str = "",
) -> None:  # fmt: skip
    """`launch_kernel(...)`, in the order of the kernel's arguments: `given`, tensors each with its
    strides; `counts`, numbers that may be any; a dict of what is `fixed` when it is compiled; and
    the `options` of compiling. `told`: the name of what it returns."""
    listed = (f"[{', '.join(items)}]" for items in (given, counts))
    start, items, end = options
    parts = [kernel, programs, *listed, fixed, f"{start}{', '.join(items)}{end}"]
    before = f"{told} = " if told else ""
    writer.line(f"{before}launch_kernel({', '.join(parts)})")


def filled(items: list[str], room: int = 90) -> list[str]:
    """Items joined to lines that are not too long."""
    lines = [""]
    for item in items:
        if lines[-1] and len(lines[-1]) + len(item) > room:
            lines.append("")
        lines[-1] += f", {item}" if lines[-1] else item
    return lines

"""The lines that launch a kernel."""

from __future__ import annotations

from archc.backends.writer import Writer


def write_launch(
    writer: Writer, kernel: str, programs: str, given: list[str], counts: list[str],
    fixed: list[str], options: str, told: str = "", made: str = "dict",
) -> None:  # fmt: skip
    """`launch_kernel(...)`, in the order of the kernel's arguments: `given`, tensors each with its
    strides; `counts`, numbers that may be any; and what is `fixed` when it is compiled, of which
    `made` makes a dict. `told`: the name of what it returns."""
    with writer.block(f"{told} = launch_kernel(" if told else "launch_kernel("):
        writer.line(f"{kernel}, {programs},")
        writer.call("[", given, "],")
        writer.line(f"[{', '.join(counts)}],")
        writer.call(f"{made}(", fixed, "),")
        writer.line(f"{options},")
    writer.line(")")

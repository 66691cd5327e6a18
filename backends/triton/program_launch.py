"""Tile programs in a generated file: their kernels, and the lines that launch them.

    launch = ProgramLaunch(
        buffers={"x": "x", "y": "y", "z": "z"},
        sizes={"B": "x.shape[0]", "T": "tokens"},
        constants={"BLOCK_T": "64", "BLOCK_K": "block_of(x.shape[2])", "IO": "x.dtype"},
    )
    write_program(scope.file, body.writer, program, launch)

appends the kernel to the file, once whatever number of launches it has, and writes

    launch_kernel(
        scaled_rows, x.shape[0] * -(-tokens // 64),
        [x, *x.stride(), y, y.stride(1), z], [x.shape[0], tokens],
        compiled_for(BLOCK_T=64, BLOCK_K=block_of(x.shape[2]), IO=x.dtype),
        {"num_warps": 4, "num_stages": 3},
    )

Where the same kernel is launched in several places, `add_program` gives its name and
`launch_program` writes the lines.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import sympy
from archc.backends.eager.file import File
from archc.backends.expression import MUL, UNARY, Text, binary, negative, whole
from archc.backends.triton.alike import likeness
from archc.backends.triton.gluon_printer import SUFFIX, to_gluon
from archc.backends.triton.gluon_wide import to_gluon_wide
from archc.backends.triton.launch import write_launch
from archc.backends.triton.printer import to_triton
from archc.backends.writer import Writer

from archc.diagnostics import InternalError
from archc.ir.refusal import Refusal
from archc.tile.given import given_names
from archc.tile.language import Buffer, LoadBlock, Program, statements

WHOLE = re.compile(r"\w+(\.\w+|\[\w+\]|\([^()]*\))*")
"""A number, a name, an attribute, an element or a call: what needs no brackets."""


@dataclass(frozen=True)
class ProgramLaunch:
    """The arguments of a launch of a program, as Python expressions by the program's own names.

    `buffers`: tensors, contiguous in the order of the axes where a buffer has no `steps`; where it
    has, these are the tensor's strides. An optional one may be `None`, or be so at times.
    `sizes`: numbers. `constants`: numbers, precisions (`'"tf32"'`), and dtypes of torch.
    Sizes and constants that the work of the program does not name are not given to the kernel.
    `told`: the name of what `launch_kernel` returns. `warps`: how many, where it is found out when
    it runs; `options`: the same of all that a launch says.
    """

    buffers: Mapping[str, str]
    sizes: Mapping[str, str]
    constants: Mapping[str, str]
    told: str = ""
    warps: str = ""
    options: str = ""


def write_program(
    file: File, writer: Writer, program: Program, launch: ProgramLaunch, special: str = ""
) -> str:
    """Append the kernel of a program to the file, and write the lines that launch it; its name.
    Where there is a name of a condition in `special`, the kernel by Gluon is there too, and is the
    one that is launched where that is so."""
    title = add_program(file, program)
    if special:
        other = add_gluon(file, title)
        launch_program(writer, f"({other} if {special} else {title})", program, launch, room=True)
    else:
        launch_program(writer, title, program, launch)
    return title


def write_wide(file: File, writer: Writer, program: Program, launch: ProgramLaunch) -> None:
    """Append the kernel by Gluon of a program whose sums are wide, and its other kernel, unless
    they are there; write the lines that launch it."""
    other = add_gluon(file, add_program(file, program), to_gluon_wide)
    launch_program(writer, other, program, launch, room=True)


def add_gluon(
    file: File, title: str, to: Callable[[Program], Any] = to_gluon, suffix: str = SUFFIX
) -> str:
    """Append the kernel by Gluon of a program whose other kernel is in the file, unless it is
    there; its name."""
    name, known = f"{title}{suffix}", ("gluon", title)
    if known not in file.titles:
        text = to(file.programs[title])
        if isinstance(text, Refusal):
            raise InternalError(f"{title} has no kernel by Gluon: {text.reason}")
        file.titles[known] = name
        file.sections.append(text)
    return name


def add_program(file: File, program: Program) -> str:
    """Append the kernel of a program to the file, unless one is there that differs in names alone;
    its name."""
    known = likeness(program)
    if known not in file.titles:
        title = file.titles[known] = file.names.fresh(program.name)
        made = program if title == program.name else replace(program, name=title)
        file.sections.append(to_triton(made))
        file.programs[title] = made
    return file.titles[known]


def launch_program(
    writer: Writer, title: str, program: Program, launch: ProgramLaunch, room: bool = False
) -> None:
    """The lines that launch a kernel of that name; `room`: one that may make descriptors.
    ValueError: where the expressions are not those that the program wants."""
    for kind, wanted, given in (
        ("buffers", [buffer.name for buffer in program.buffers], launch.buffers),
        ("sizes", [symbol.name for symbol in program.sizes], launch.sizes),
        ("constants", program.constants, launch.constants),
    ):
        if {*wanted} != {*given}:
            raise ValueError(f"{title} has {kind} {sorted(wanted)}, and not {sorted(given)}")
    if room or any(isinstance(each.op, LoadBlock) for each in statements(program.body)):
        writer.line("descriptor_room()")
    known = given_names(program)
    tensors = [_tensor(buffer, launch.buffers[buffer.name]) for buffer in program.buffers]
    sizes = numbers_of(program, launch.sizes)
    constants = ", ".join(f"{n}={launch.constants[n]}" for n in program.constants if n in known)
    settings = [f'"num_warps": {launch.warps or program.warps}', f'"num_stages": {program.ahead}']
    settings += ['"launch_cooperative_grid": True'] if program.cooperative else []
    write_launch(
        writer, title, programs_text(program, launch), tensors, sizes, f"compiled_for({constants})",
        (launch.options, [], "") if launch.options else ("{", settings, "}"),
        launch.told,
    )  # fmt: skip


def numbers_of(program: Program, sizes: Mapping[str, str]) -> list[str]:
    """The numbers that a kernel is given, in their order."""
    known = given_names(program)
    return [
        sizes[symbol.name] if symbol.is_integer else f"float({sizes[symbol.name]})"
        for symbol in program.sizes
        if symbol.name in known
    ]


def _tensor(buffer: Buffer, given: str) -> str:
    """A tensor, with its strides if the kernel is given any."""
    if not buffer.steps:
        return given
    none = ", ".join("0" for _ in buffer.steps)
    if given == "None":
        return f"None, {none}"
    if buffer.rows:
        place = [axis for axis, _ in buffer.axes].index(buffer.rows)
        return f"{given}, {given}.stride({place})"
    if buffer.optional:
        return f"{given}, *(({none},) if {given} is None else {given}.stride())"
    return f"{given}, *{given}.stride()"


def programs_text(program: Program, launch: ProgramLaunch) -> str:
    """The number of programs, as Python."""
    known = {**launch.sizes, **launch.constants}
    names = {name: text if WHOLE.fullmatch(text) else f"({text})" for name, text in known.items()}
    return " * ".join(count_text(count, names).at(UNARY) for _, count in program.grid) or "1"


def count_text(size: sympy.Expr, names: Mapping[str, str]) -> Text:
    """A size as Python: how many blocks cover another is `-(-size // block)`."""
    ceilings = sorted(size.atoms(sympy.ceiling), key=sympy.default_sort_key)
    blocks = {each: sympy.Symbol(f"blocks {at}", integer=True) for at, each in enumerate(ceilings)}
    texts, left = dict(names), size.xreplace(blocks)
    for each, symbol in blocks.items():
        above, below = sympy.fraction(sympy.together(each.args[0]))
        top, bottom = negative(count_text(above, names)), count_text(below, names)
        count = f"-({binary('//', MUL, top, bottom)})"
        if left == symbol:
            return Text(count, UNARY)
        texts[symbol.name] = f"({count})" if left.atoms(sympy.Pow) else count
    return whole(left, texts)

"""Printed programs, compiled ahead of time without a GPU: Triton's own view of values' types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from archc.backends.load import load
from archc.backends.triton import printer
from archc.backends.triton.arguments import arguments
from archc.backends.triton.spelling import dtype_text, size_text
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compiled_for

from archc.tile.given import given_names
from archc.tile.language import Statement
from tests.tile.cases import Case
from tests.tile.launched import DTYPES, HEAD, compiled_in

POINTER = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float64: "*fp64", torch.int32: "*i32",
    torch.int64: "*i64",
}  # fmt: skip


class Asserting(printer.Printer):
    """Says after each tile what its type is, so that Triton refuses a text that makes another."""

    def let(self, statement: Statement, text: str) -> Iterator[str]:
        """`value = text`, and its dtype and its shape, if it is written anywhere. Of a part of a
        formula not where a line after it makes its places, those of a block with their mask."""
        lines = [*super().let(statement, text)]
        yield from lines
        (result,), name = statement.results, self.bound(statement.results[0])
        late = {place for each in self.beside for place in each.results}
        part = result in self.within and late.isdisjoint(statement.operands)
        if result.type.dims and (lines or part):
            yield f"tl.static_assert({name}.dtype == {dtype_text(result.type.dtype)})"
            for place, dim in enumerate(result.type.dims):
                yield f"tl.static_assert({name}.shape[{place}] == {size_text(dim.length)})"


def compiled(case: Case, capability: int = 90, **options: Any) -> Any:
    """A program as machine code, with its types asserted."""
    program = case.program
    text = HEAD + _not_given(case) + printer.to_triton(program, Asserting)
    kernel = getattr(load(text, program.name), program.name)
    signature: dict[str, str] = {}
    strides = arguments(program).strides
    fixed = compiled_in(program, case.constants)
    for buffer in program.buffers:
        tensor: Tensor | None = case.tensors.get(buffer.name)
        if tensor is None:
            fixed[f"{buffer.name}_p"] = None
        signature[f"{buffer.name}_p"] = "constexpr" if tensor is None else POINTER[tensor.dtype]
        signature |= {strides[buffer.name, axis]: "i32" for axis in buffer.steps}
    signature |= {s.name: "i32" if s.is_integer else "fp32" for s in program.sizes}
    signature |= dict.fromkeys(program.constants, "constexpr")
    fixed = {name: value for name, value in fixed.items() if name in kernel.arg_names}
    places = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
    names = {name: signature[name] for name in kernel.arg_names}
    source = ASTSource(kernel, names, places, _told(case, kernel.arg_names))
    options = {"num_warps": program.warps, "num_stages": program.ahead, **options}
    return compiled_for(source, target=GPUTarget("cuda", capability, 32), options=options)


def _not_given(case: Case) -> str:
    """The constants that a program itself does not read, which assertions may."""
    beside = [name for name in case.program.constants if name not in given_names(case.program)]
    values = ((name, case.constants[name]) for name in beside)
    lines = (f"{n} = tl.constexpr({dtype_text(x) if x in DTYPES else repr(x)})" for n, x in values)
    return "".join(f"{line}\n" for line in lines) + "\n\n"


def _told(case: Case, names: Sequence[str]) -> dict[tuple[int], list[list[Any]]]:
    """What a launch tells of its arguments: tensors begin at multiples of 16 bytes, and sizes are
    told that are multiples of 16."""
    sizes = {s.name for s in case.program.sizes if s.name not in case.program.varying}
    told = {f"{name}_p" for name, tensor in case.tensors.items() if tensor is not None}
    told |= {name for name in sizes if case.sizes[name] % 16 == 0 and name in names}
    return {(names.index(name),): [["tt.divisibility", 16]] for name in sorted(told)}

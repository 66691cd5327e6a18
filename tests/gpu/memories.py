"""The memories of a bundled spec, as its generated file has them: functions of tensors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

import torch
from archc.backends.load import load

import archc
from archc.compile import in_kernels, lowered
from archc.ir.plan import Plan

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "mamba", "mesa", "mlstm", "mom", "rwkv7", "ssm", "ssm_selective",
    "xlstm",
)  # fmt: skip
"""Bundled specs with a memory of their own that has a chunked form. The blocks and models that
call these layers have the same kernels."""


@dataclass(frozen=True)
class Memory:
    """One `o, *states = memory(*values, *states, *numbers, chunk)` of a module.

    `axes` are those of every tensor, by name, as the docstring of the function lists them.
    """

    module: ModuleType
    name: str
    axes: Mapping[str, tuple[str, ...]]
    numbers: tuple[str, ...]

    @property
    def states(self) -> list[str]:
        """What the memory carries from token to token."""
        return [name for name, axes in self.axes.items() if "T" not in axes and axes[0] == "B"]

    def __call__(self, values: Mapping[str, Any], chunk: int | None) -> tuple[torch.Tensor, ...]:
        """What comes out; token by token where `chunk` is None."""
        made = getattr(self.module, self.name)(*values.values(), chunk)
        return made if isinstance(made, tuple) else (made,)


@lru_cache(maxsize=32)
def memories(spec: str) -> tuple[Memory, ...]:
    """Every memory of a spec's file that has kernels."""
    module = load(in_kernels(Plan(lowered(archc.load(spec).layer))), spec)
    return tuple(_memories(module))


def _memories(module: ModuleType) -> Iterator[Memory]:
    tree = ast.parse(inspect.getsource(module))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, node in functions.items():
        if {f"{name}_steps", f"{name}_kernels"} <= functions.keys():
            arguments = [each.arg for each in node.args.args if each.arg != "chunk"]
            listed = _axes(ast.get_docstring(node) or "")
            axes = {each: listed[each] for each in arguments if each in listed}
            numbers = tuple(each for each in arguments if each not in listed)
            yield Memory(module, name, axes, numbers)


def _axes(text: str) -> dict[str, tuple[str, ...]]:
    """`q, k [B, T, H, K]; S [B, H, K, V]`, the last paragraph of a docstring."""
    found = {}
    last = text.rpartition("\n\n")[2]
    for part in " ".join(last.split()).split(";"):
        names, _, axes = part.strip().rstrip("]").partition("[")
        for name in names.split(","):
            found[name.strip()] = tuple(axis.strip() for axis in axes.split(","))
    return found


def by_kernels(memory: Memory, decide: Callable[..., bool]) -> Callable[..., bool]:
    """Let `decide` say whether kernels do the work; what said so before."""
    before = memory.module.by_kernels
    vars(memory.module)["by_kernels"] = decide
    return before

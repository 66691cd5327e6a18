"""The memories of a bundled spec, as its generated file has them: functions of tensors."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from archc.backends.load import load

import archc
from archc.compile import in_kernels, lowered
from archc.ir.plan import Plan
from archc.runtime.repeated import Recording

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "lstm", "mamba", "mamba2", "mesa", "mlstm", "mom", "retention",
    "rwkv7", "slstm", "ssm", "ssm_selective", "xlstm",
)  # fmt: skip
"""Bundled specs with a memory of their own that has kernels. The blocks and models that call these
layers have the same ones."""


_HERE = Path(__file__).parents[1] / "backends" / "triton"
OWN = {
    path.stem: path
    for path in sorted(_HERE.glob("*/*.arch"))
    if path.stem in ("cascade", "channels", "momentum", "outer_decay", "turning", "two_deltas")
}
"""Recurrences that nothing in the compiler was written for, which pass the same tests."""

EVERY = (*SPECS, *OWN)

PACKED = "cu_seqlens"


@dataclass(frozen=True)
class Memory:
    """One `o, *states = memory(*values, *states, *numbers, chunk)` of a module.

    `axes` are those of every tensor, by name, as the docstring of the function lists them; one
    that is not `chunked` walks the tokens, and is given no `chunk`.
    """

    module: ModuleType
    name: str
    axes: Mapping[str, tuple[str, ...]]
    numbers: tuple[str, ...]
    chunked: bool = True

    @property
    def states(self) -> list[str]:
        """What the memory carries from token to token."""
        return [name for name, axes in self.axes.items() if "T" not in axes and axes[0] == "B"]

    def __call__(self, values: Mapping[str, Any], chunk: int | None) -> tuple[torch.Tensor, ...]:
        """What comes out; token by token where `chunk` is None. `cu_seqlens` among the values are
        where packed sequences begin and end."""
        given = [x for name, x in values.items() if name != PACKED]
        last = [chunk] if self.chunked else []
        last += [values[PACKED]] if PACKED in values else []
        made = getattr(self.module, self.name)(*given, *last)
        return made if isinstance(made, tuple) else (made,)


@lru_cache(maxsize=32)
def memories(spec: str) -> tuple[Memory, ...]:
    """Every memory of a spec's file that has kernels."""
    plan = Plan(lowered(archc.load(OWN.get(spec, spec)).layer))
    module = load(in_kernels(plan).text(plan), spec)
    return tuple(_memories(module))


def _memories(module: ModuleType) -> Iterator[Memory]:
    tree = ast.parse(inspect.getsource(module))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, node in functions.items():
        chunked, walked = f"{name}_kernels" in functions, f"{name}_walk" in functions
        if f"{name}_steps" in functions and (chunked or walked):
            arguments = [a.arg for a in node.args.args if a.arg not in ("chunk", PACKED)]
            listed = _axes(ast.get_docstring(node) or "")
            axes = {each: listed[each] for each in arguments if each in listed}
            numbers = tuple(each for each in arguments if each not in listed)
            yield Memory(module, name, axes, numbers, chunked)


def _axes(text: str) -> dict[str, tuple[str, ...]]:
    """`q, k [B, T, H, K]; S [B, H, K, V]`, the last paragraph of a docstring."""
    found = {}
    last = text.rpartition("\n\n")[2]
    for part in " ".join(last.split()).split(";"):
        names, _, axes = part.strip().rstrip("]").partition("[")
        for name in names.split(","):
            found[name.strip()] = tuple(axis.strip() for axis in axes.split(","))
    return found


Decide = Callable[..., bool]


@contextmanager
def deciding(memory: Memory, make: Callable[[Decide], Decide]) -> Iterator[None]:
    """What `make` makes of the module's own decision says whether kernels do the work; no call is
    done as one before it was, which decides nothing."""
    getattr(memory.module, "Recording", Recording).settings += 1
    kept = {name: value for name, value in vars(memory.module).items() if name in DECIDING}
    vars(memory.module).update({name: make(value) for name, value in kept.items()})
    try:
        yield
    finally:
        vars(memory.module).update(kept)


DECIDING = ("by_kernels", "on_gpu")
"""The functions of a generated file that see whether kernels can do the work of a memory."""


def always(own: Decide) -> Decide:
    """By kernels, wherever tensors are."""
    return lambda *given: True


def never(own: Decide) -> Decide:
    """Without kernels."""
    return lambda *given: False

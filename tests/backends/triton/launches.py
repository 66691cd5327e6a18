"""What a generated file launches, without a GPU: the kernels, their grids, arguments and options,
of tensors on a CPU; and each of them compiled for a GPU ahead of time.

    with recorded() as found:
        loss.backward()  # of a module that takes its kernels, as `tests.gpu.memories.deciding` says
    made = [machine_code(launch) for launch in distinct(found)]

Nothing is computed: what kernels would write stays as it was.
"""

from __future__ import annotations

import ast
import hashlib
import re
import resource
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from archc.runtime.together import FEWEST, SPILLED, staged

TYPES = {
    torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64",
    torch.bool: "*i1", torch.int32: "*i32", torch.int64: "*i64",
}  # fmt: skip
SHARED = 232_448
"""Bytes of shared memory that a program can have on sm_90."""

ROOM = {80: 166_912, 90: SHARED, 100: SHARED}
"""The same by compute capability (CUDA C++ Programming Guide)."""

OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch: a kernel, the number of its programs, and what it is given by name."""

    kernel: JITFunction
    grid: tuple[int, ...]
    given: Mapping[str, Any]
    options: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As it stands in the file."""
        return self.kernel.__name__

    @cached_property
    def signature(self) -> dict[str, str]:
        """The type of every argument; `constexpr` where its value is compiled in."""
        return {p.name: self._type(p, self.given[p.name]) for p in self.kernel.params}

    def _type(self, parameter: Any, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return TYPES[value.dtype]
        one = value == 1 and not parameter.do_not_specialize
        if parameter.is_constexpr or value is None or one:
            return "constexpr"
        if isinstance(value, float):
            return "fp32"
        return "i32" if -(2**31) <= value < 2**31 else "i64"

    @property
    def constants(self) -> dict[str, Any]:
        """The values that are compiled in."""
        return {n: self.given[n] for n, kind in self.signature.items() if kind == "constexpr"}

    @property
    def aligned(self) -> list[str]:
        """Arguments that are multiples of 16, which kernels are compiled for, as addresses are."""
        found = []
        for each in self.kernel.params:
            if self.signature[each.name] == "constexpr" or each.do_not_specialize:
                continue
            value = self.given[each.name]
            number = value.data_ptr() if isinstance(value, torch.Tensor) else value
            if isinstance(number, int) and number % 16 == 0:
                found.append(each.name)
        return found

    @property
    def key(self) -> str:
        """The same for launches that need the same machine code, whatever they are called."""
        source = re.sub(rf"\b{self.name}\b", "kernel", self.kernel.src)
        constants = sorted((n, str(v)) for n, v in self.constants.items())
        parts = (
            source,
            _called(self.kernel),
            self.signature,
            constants,
            self.aligned,
            self.options,
        )
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _called(kernel: JITFunction) -> list[str]:
    """The texts of the functions that a kernel calls, and those that they call."""
    found: dict[str, str] = {}
    waiting = [kernel]
    while waiting:
        each = waiting.pop()
        for node in ast.walk(ast.parse(each.src)):
            called = each.__globals__.get(node.id) if isinstance(node, ast.Name) else None
            if isinstance(called, JITFunction) and called.__name__ not in found:
                found[called.__name__] = called.src
                waiting.append(called)
    return [found[name] for name in sorted(found)]


@contextmanager
def recorded() -> Iterator[list[Launch]]:
    """Every launch is written down, and none is done."""
    found: list[Launch] = []

    def write_down(self: JITFunction, *given: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        names = [each.name for each in self.params]
        values = {**dict(zip(names, given, strict=False)), **named}
        options = {name: values.pop(name) for name in OPTIONS if name in values}
        assert values.keys() <= set(names), values.keys() - set(names)
        values = {p.name: values.get(p.name, p.default) for p in self.params}
        size = grid(values) if callable(grid) else grid
        found.append(Launch(self, tuple(size), values, options))
        return Code()

    real, JITFunction.run = JITFunction.run, write_down
    driver, before = triton.runtime.driver, triton.runtime.driver._active
    driver.set_active(SimpleNamespace(utils=Properties, get_current_device=lambda: 0))
    try:
        yield found
    finally:
        JITFunction.run, driver._active = real, before
        for launch in found:  # no later one finds what was no machine code
            vars(launch.kernel).pop("known_launches", None)


class Properties:
    """Those of a GPU, as Triton asks for them."""

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        """What a program can have of it."""
        return {"max_shared_mem": SHARED}


class Code:
    """In place of machine code: it fits, and does nothing."""

    metadata, n_spills, n_regs = SimpleNamespace(shared=0), 0, 255

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given: None


def distinct(launches: Iterable[Launch]) -> list[Launch]:
    """One launch for each piece of machine code."""
    return list({launch.key: launch for launch in reversed([*launches])}.values())[::-1]


# --- machine code ---


@dataclass(frozen=True)
class MachineCode:
    """What became of a kernel: bytes of shared memory, registers and bytes of stack of a thread
    (what does not fit into registers is kept there), whether it has products of matrices that are
    large enough for a warp group (wgmma), whether it uses that, and how long a processor worked to
    compile it, in the compiler and in the assembler."""

    name: str
    warps: int
    shared: int
    registers: int
    stack: int
    large: bool
    wgmma: bool
    seconds: float


def machine_code(launch: Launch, capability: int = 90) -> MachineCode:
    """A kernel as it is launched, compiled for a GPU of that capability."""
    names = launch.kernel.arg_names
    aligned = {(names.index(n),): [["tt.divisibility", 16]] for n in launch.aligned}
    constants = {(names.index(n),): value for n, value in launch.constants.items()}
    source = ASTSource(launch.kernel, launch.signature, constants, aligned)
    target = GPUTarget("cuda", capability, 32)
    begun = _worked()
    stages = launch.options.get("num_stages", 1)

    def with_stages(count: int) -> MachineCode:  # as `code_that_fits` does at a launch
        options = {**launch.options, "num_stages": count}
        given = staged(dict(launch.given), options)
        return machine_code(replace(launch, given=given, options=options), capability)

    try:
        made = triton.compile(source, target=target, options=dict(launch.options))
    except RuntimeError:
        if stages == 1:
            raise
        return with_stages(1)
    if made.metadata.shared > ROOM[capability] and stages > 1:
        return with_stages(stages - 1)
    seconds = _worked() - begun
    usage = resources(made.asm["cubin"])
    most = min(255, 65_536 // (32 * made.metadata.num_warps))
    options = {name: n for name, n in launch.options.items() if name != "maxnreg"}
    few = launch.options.get("maxnreg", 0 if usage["REG"] <= FEWEST else most)
    if few < most and usage["STACK"] > 4 * SPILLED:  # as `code_that_fits` does, too
        told = options if few else {**options, "maxnreg": most}
        again = machine_code(replace(launch, options=told), capability)
        return replace(again, seconds=round(seconds + again.seconds, 1))
    return MachineCode(
        launch.name, made.metadata.num_warps, made.metadata.shared, usage["REG"], usage["STACK"],
        _has_large(made.asm["ttir"]), "wgmma.mma_async" in made.asm["ptx"], round(seconds, 1),
    )  # fmt: skip


def _worked() -> float:
    """Seconds of a processor that this process and those that it waited for have taken."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime for each in used)


DOT = re.compile(r"tt\.dot .*: tensor<(\d+)x(\d+)x(\w+)> \* tensor<\d+x(\d+)x\w+>")


def _has_large(text: str) -> bool:
    """Whether it multiplies matrices of 16 bits with at least 64 rows and 16 columns."""
    found = DOT.findall(text)
    narrow = ("bf16", "f16")
    return any(kind in narrow and int(m) >= 64 and int(n) >= 16 for m, _, kind, n in found)


@lru_cache(maxsize=1)
def cuobjdump() -> Path:
    """The tool that says what a compiled kernel needs; it comes with Triton."""
    return Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"


def resources(cubin: bytes) -> dict[str, int]:
    """REG, STACK, SHARED, LOCAL, ... of the kernel in a cubin: registers and bytes."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(cuobjdump()), "-res-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {
        name: int(value) for name, value in re.findall(r"([A-Z]+)(?:\[\d\])?:(\d+)", done.stdout)
    }

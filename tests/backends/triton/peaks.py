"""Bytes of tensors that are alive at once in a call of a layer by kernels, without a GPU: tensors
have shapes alone, and launches are left out.

    python -m tests.backends.triton.peaks swiglu kda mhc:MHC

prints MiB at x [2, 8192, 4096] and heads of 128 beside what is there before, as `archc bench` has
them: of a forward without gradients, of one with them, and of both.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from archc.backends.eager.emit import class_name
from archc.backends.load import load
from archc.backends.renamed import arguments, entering
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import archc
from archc.bench.subject import inputs_of, sizes_at
from archc.compile import text_of
from archc.runtime.repeated import PLAIN

GPU = torch.device("cuda", 0)
SHAPE = (2, 8192, 32, 128)
PLACED = FakeTensor.device
"""Where torch has a tensor without numbers: on the CPU, as autograd has no threads for a GPU."""


class Alive(TorchDispatchMode):
    """The bytes of what was made and is alive, `now` and at most."""

    def __init__(self, before: list[Tensor]) -> None:
        super().__init__()
        self.now = self.most = 0
        self.kept: dict[int, Any] = {}
        self.before = {self.key(x) for x in before}

    @staticmethod
    def key(x: Tensor) -> int:
        """The memory of a tensor."""
        return x.untyped_storage()._cdata

    def __torch_dispatch__(
        self, op: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {**(kwargs or {})}
        if given.get("device") is not None:
            given["device"] = torch.device("cpu")
        made = op(*args, **given)
        for x in tree_leaves(made):
            if isinstance(x, Tensor):
                self.add(x)
        return made

    def add(self, x: Tensor) -> None:
        """Count a tensor, until the last that has its memory is gone."""
        key, storage = self.key(x), x.untyped_storage()
        if key in self.kept or key in self.before:
            return
        size = -(-storage.nbytes() // 512) * 512

        def gone(_: object) -> None:
            del self.kept[key]
            self.now -= size

        self.kept[key] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)


def _seen_at(x: Any) -> torch.device:
    """Where archc is told that a tensor without numbers is."""
    module = sys._getframe(1).f_globals.get("__name__", "")
    return GPU if module.startswith("archc") else PLACED.__get__(x)


@contextmanager
def by_kernels(file: ModuleType) -> Iterator[None]:
    """A file takes its kernels, of which none is launched, for tensors without numbers."""
    known: dict[str, Any] = {
        "PLAIN": PLAIN | {FakeTensor}, "launch_kernel": lambda *given: None,
        "unwatched": lambda given: not torch.compiler.is_compiling(),
    }  # fmt: skip
    gpu = SimpleNamespace(multi_processor_count=132)
    with ExitStack() as stack:
        for module in [file, *(m for n, m in [*sys.modules.items()] if n.startswith("archc."))]:
            for name in known.keys() & vars(module).keys():
                stack.enter_context(patch.object(module, name, known[name]))
        for place, name, value in (
            (FakeTensor, "device", property(_seen_at)),
            (FakeTensor, "is_cuda", property(lambda x: True)),
            (torch.cuda, "get_device_properties", lambda device: gpu),
            (torch.cuda, "get_device_capability", lambda device: (9, 0)),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "is_current_stream_capturing", lambda: False),
        ):
            stack.enter_context(patch.object(place, name, value))
        yield


def peaks(spec: str, shape: tuple[int, int, int, int] = SHAPE) -> tuple[int, int, int]:
    """Bytes of a layer in bfloat16 at most: of a forward alone, of one that gradients follow, and
    of both."""
    layer = archc.load(spec).layer
    sizes = sizes_at(layer, shape, {})
    file = load(text_of(layer, "triton"), f"archc_peaks_{layer.name}")
    lengths = {"B": shape[0], "T": shape[1]}
    with by_kernels(file), FakeTensorMode():
        module: nn.Module = getattr(file, class_name(layer))(
            **arguments(sizes), device="cpu", dtype=torch.bfloat16
        )
        given = {
            each.name: torch.empty(
                [lengths[n] if isinstance(n, str) else n for n in each.axes], dtype=torch.bfloat16
            ).requires_grad_()
            for each in inputs_of(layer, sizes)
        }
        before = [*module.parameters(), *given.values()]
        with torch.no_grad(), Alive(before) as alone:
            module(**entering(given))
        with Alive(before) as alive:
            y = module(**entering(given))
            forward, slope = alive.most, torch.empty_like(y)
            for x in (y, slope):  # they are there before in what `archc bench` counts
                alive.now -= x.untyped_storage().nbytes()
            y.backward(slope)
    return alone.most, forward, alive.most


def main() -> None:
    """The specs that are named."""
    for spec in sys.argv[1:]:
        found = (each / 2**20 for each in peaks(spec))
        print(f"{spec}: " + ", ".join(f"{mib:,.0f}" for mib in found), flush=True)


if __name__ == "__main__":
    main()

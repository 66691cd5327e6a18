"""Values of a forward that nothing reads any more are let go of."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from archc.backends.eager.lifetimes import with_deletions
from archc.backends.load import load
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc.compile import lowered
from tests.backends.triton.texts import layer_text

LINES = """\
a, b = f(x)
if x:
    c = g(a)
else:
    c = g(b)
# how d is made
d = h(c, a,
      b)
e = [k(lambda: d) for _ in a]
y = e + c"""


def test_what_may_be_missing_or_is_read_later_stays() -> None:
    """c is made in a branch, a function reads d, b is returned, and y is the last."""
    made = with_deletions(LINES.split("\n"), ["return y, b"], ["a", "b", "c", "d", "e", "y"], 80)
    lines = LINES.split("\n")
    assert made == [*lines[:-1], "del a", lines[-1]]
    made = with_deletions(LINES.split("\n"), ["return y"], ["a", "b"], 80)
    assert made == [*lines[:8], "del b", lines[8], "del a", lines[9]]


class Alive(TorchDispatchMode):
    """How many of its results are alive as each op begins; views count as what they are of."""

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.counts = weakref.WeakSet[Any](), list[int]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        self.counts.append(len({each.data_ptr() for each in self.seen}))
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.numel() > 64:
            self.seen.add(made)
        return made


def test_a_forward_holds_what_is_still_read() -> None:
    """Both projections of a gated layer are gone as the last product is made."""
    module = load(layer_text(lowered(archc.load("swiglu").layer)), "swiglu")
    layer, x = module.SwiGLU(d=4, f=16), torch.randn(2, 8, 4)
    with torch.no_grad(), Alive() as alive:
        layer(x)
    assert alive.counts[-1] == 1

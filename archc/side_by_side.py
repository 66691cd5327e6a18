"""Copies of parameters side by side: a token's products with all of them are one while a text is
continued, as a launch takes longer there than a product.

    products_of(x, W_q, W_k, W_v)      three launches of [B, d] times [d, N]
    x @ [W_q | W_k | W_v]              one; of several sequences one for each width

A copy is no part of a module. It is made anew where a parameter is another one, was written to, or
is elsewhere; what is written through `.data` is seen when a sequence is added to a pool, and at the
start of `generate`. Nothing that learns, and no prompt, is computed with copies.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn

from archc.runtime.projections import products_of

HERE = threading.local()
"""`copies`: those that products are made with in this thread."""

STANDING: dict[Callable[..., tuple[Tensor, ...]], Callable[..., tuple[Tensor, ...]]] = {}
"""The stand-ins of functions of generated modules."""

COLUMNS = 16
"""Columns of a copy that each parameter's begin at a multiple of, so that addresses are even."""


class SideBySide:
    """The copies for a model's products of one token, by the parameters that they are made of."""

    def __init__(self, model: nn.Module) -> None:
        self.known: dict[tuple[int, ...], Copy] = {}
        self.wanted = pays(model)
        self.follow(model)

    def follow(self, model: nn.Module) -> None:
        """Let the generated code of a model ask for copies."""
        for each in model.modules() if self.wanted else ():
            code: dict[str, Any] = getattr(type(each).forward, "__globals__", {})
            known: Any = code.get("products_of")
            if known is products_of or "ProductsOf" in code:  # imported, or embedded
                code["products_of"] = standing(known)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Make products of one token with copies inside, in this thread, where they pay."""
        before = getattr(HERE, "copies", None)
        HERE.copies = self if self.wanted else before
        try:
            yield
        finally:
            HERE.copies = before

    def products(self, x: Tensor, weights: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        """x [B, 1, d] times each weight [d, ...]; None where they are made one by one."""
        if not fits(x, weights):
            return None
        key = tuple(map(id, weights))  # of parameters that a copy holds on to
        copy = self.known.get(key)
        if copy is None or (copy.is_old() and not copy.renewed()):
            copy = self.known[key] = Copy(weights)
        return copy.products(x)

    def renew(self, every: bool = False) -> bool:
        """Write parameters that have changed, or `every` one, into their copies; whether one is
        elsewhere now. What a CUDA graph reads stays where it was as long as it can."""
        moved = False
        for key, copy in self.known.items():
            if (every or copy.is_old()) and not copy.renewed():
                self.known[key], moved = Copy(copy.weights), True
        return moved


class Copy:
    """Some parameters side by side, [d, N], and what they were when it was made."""

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self.weights = (*weights,)
        self.sizes = [weight[0].numel() for weight in weights]
        order = sorted(range(len(weights)), key=lambda n: -self.sizes[n])
        self.alike = [[*each] for _, each in groupby(order, key=lambda n: self.sizes[n])]
        self.starts, width = [0] * len(weights), 0
        for n in order:
            self.starts[n], width = width, width + self.room(n)
        with torch.inference_mode(False), torch.no_grad():
            self.matrix = weights[0].new_zeros(len(weights[0]), width)
        self.kept: list[Tensor] = []
        self._write()

    def room(self, n: int) -> int:
        """The columns that a parameter takes."""
        return -(-self.sizes[n] // COLUMNS) * COLUMNS

    def _write(self) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for weight, start, size in zip(self.weights, self.starts, self.sizes, strict=True):
                self.matrix[:, start : start + size] = weight.reshape(len(weight), -1)
        self.kept = [weight.detach() for weight in self.weights]  # no other may have its address
        self.marks = [(weight.data_ptr(), weight._version) for weight in self.weights]

    def is_old(self) -> bool:
        """Whether a parameter was written to, or has other memory, since."""
        return any(
            weight._version != version or weight.data_ptr() != place
            for weight, (place, version) in zip(self.weights, self.marks, strict=True)
        )

    def renewed(self) -> bool:
        """Write the parameters anew; False, and nothing done, where they are of another shape,
        dtype or device."""
        for weight, before in zip(self.weights, self.kept, strict=True):
            like = (weight.shape, weight.dtype, weight.device)
            if like != (before.shape, before.dtype, before.device):
                return False
        self._write()
        return True

    def products(self, x: Tensor) -> tuple[Tensor, ...]:
        """x [B, 1, d] times each. Of one sequence the results are parts of one row; of several
        they are dense: those of equal widths are one product of a batch."""
        found = dict[int, Tensor]()
        if len(x) == 1:
            row = x @ self.matrix
            for n, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True)):
                found[n] = row[..., start : start + size]
        else:
            for same in self.alike:
                size, step = self.sizes[same[0]], self.room(same[0])
                wide = self.matrix.as_strided(
                    (len(same), len(self.matrix), size), (step, self.matrix.stride(0), 1),
                    self.starts[same[0]],
                )  # fmt: skip
                made = torch.bmm(x[:, 0].expand(len(same), -1, -1), wide)
                found |= dict(zip(same, made[:, :, None], strict=True))
        pairs = [(found[n], weight.shape[1:]) for n, weight in enumerate(self.weights)]
        return tuple(x.unflatten(-1, sizes) if len(sizes) > 1 else x for x, sizes in pairs)


def fits(x: Tensor, weights: tuple[Tensor, ...]) -> bool:
    """Whether x is one token of each sequence, nothing learns, and weights are plain parameters."""
    if x.dim() != 3 or x.shape[1] != 1 or torch.is_grad_enabled() or len(weights) < 2:
        return False
    if torch.is_autocast_enabled(x.device.type):
        return False
    return all(
        type(w) is nn.Parameter
        and w.dim() > 1
        and not w.is_inference()
        and (w.dtype, w.device) == (x.dtype, x.device)
        for w in weights
    )


def standing(made_by: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """A stand-in for a generated module's function, which makes products with copies where some are
    used; once for each function."""
    if made_by in STANDING.values():
        return made_by
    if made_by not in STANDING:

        def products(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            copies = None if torch.compiler.is_compiling() else getattr(HERE, "copies", None)
            made = None if copies is None else copies.products(x, weights)
            return made_by(x, *weights) if made is None else made

        STANDING[made_by] = products
    return STANDING[made_by]


def pays(model: nn.Module) -> bool:
    """Whether a model is on a GPU: elsewhere a launch costs nothing."""
    first = next(model.parameters(), None)
    return first is not None and first.is_cuda

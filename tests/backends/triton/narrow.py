"""bfloat16 under Triton's interpreter as a GPU has it.

The interpreter keeps bfloat16 as its bits, multiplies those bits as if they were integers in
products of matrices, lets a mantissa that is rounded up run into nothing, and has no constants of
it. `rounding()` makes it convert by rounding to the nearest, and multiply in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def to_bits(x: np.ndarray) -> np.ndarray:
    """float32 -> the bits of the nearest bfloat16, a tie to the even one."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    near = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), np.uint16(0x7FC0), near).astype(np.uint16)


def to_floats(bits: np.ndarray) -> np.ndarray:
    """The bits of bfloat16 -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@contextmanager
def rounding() -> Iterator[None]:
    """bfloat16 is rounded and multiplied as on a GPU."""
    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    cast, round_to, dot = builder.cast_impl, builder.create_fp_to_fp, builder.create_dot

    def converted(x: Any, kind: Any) -> Any:
        old, new = x.dtype.scalar, kind.scalar
        if old == new:  # or what compares two of them, which has their dtype here
            return x if x.data.dtype != np.bool_ else handle(x.data.astype(np.float32), new)
        if old == tl.bfloat16 and new == tl.float32:
            return handle(to_floats(x.data), tl.float32)
        if new == tl.bfloat16 and old == tl.float32:
            return handle(to_bits(x.data), tl.bfloat16)
        return None

    def cast_impl(self: Any, x: Any, kind: Any) -> Any:
        made = converted(x, kind)
        return cast(self, x, kind) if made is None else made

    def fp_to_fp(self: Any, x: Any, kind: Any, mode: Any) -> Any:
        made = converted(x, kind)
        return round_to(self, x, kind, mode) if made is None else made

    def product(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        a, b = (converted(x, tl.float32) if x.dtype == tl.bfloat16 else x for x in (a, b))
        return dot(self, a, b, *rest)

    def constant(self: Any, value: float) -> Any:
        return handle(to_bits(np.array([value], np.float32)), tl.bfloat16)

    changed = {"cast_impl": cast_impl, "create_fp_to_fp": fp_to_fp, "create_dot": product}
    more = mock.patch.object(builder, "get_bf16", constant, create=True)
    with mock.patch.multiple(builder, **changed), more:
        yield

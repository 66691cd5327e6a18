"""How functions become kernels of Triton, where there is Triton."""

from __future__ import annotations

import os
from typing import Any

from archc.runtime.optional import triton


def kernel(function: Any = None, *, varying: tuple[str, ...] = (), of: Any = triton) -> Any:
    """A kernel of Triton, or of Gluon if it is `of` that, where there is such. Arguments that are
    `varying`, as the number of tokens is, make no new machine code, whether 16 divides them or
    not."""
    if function is None:
        return lambda function: kernel(function, varying=varying, of=of)
    if of is None:
        return function
    newer_assembler()
    return of.jit(function, do_not_specialize=varying)


def newer_assembler() -> None:
    """Take the newer of the two assemblers that Triton 3.5 and 3.6 come with, in all of this
    process: the other one, ptxas 12.8, makes wrong addresses of matrices on Hopper, and so wrong
    numbers or accesses that are not allowed. TRITON_PTXAS_PATH in the environment goes before."""
    if triton.__version__.startswith(("3.5.", "3.6.")):
        at = ("backends", "nvidia", "bin", "ptxas-blackwell")
        path = os.path.join(os.path.dirname(triton.__file__), *at)
        if os.path.exists(path):
            os.environ.setdefault("TRITON_PTXAS_PATH", path)

"""The function that launches every kernel."""

from __future__ import annotations

from typing import Any

import torch

from archc.runtime.optional import triton
from archc.runtime.repeated import noted
from archc.runtime.together import NotCompiled, code_that_fits, constants_of, staged
from archc.runtime.tuned import measured_options


def launch_kernel(
    kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict
) -> tuple | None:
    """Launch a kernel: of tensors and their strides `given`, and of numbers `counts`; of what is
    `fixed` when it is compiled it takes what it has arguments for.

    Which machine code is for arguments like these is looked up at once: Triton looks at each of
    them, and takes several times as long. It is returned, ready to launch, with its arguments; None
    where Triton does all of it.

    Raises NotCompiled, where that is asked for, if there is none yet.
    """
    fixed = constants_of(kernel, len(given) + len(counts), fixed)
    options = measured_options(kernel, programs, fixed, options)
    flat = isinstance(kernel, triton.JITFunction) and torch.version.hip is None
    if not flat or torch.compiler.is_compiling():
        kernel[(programs,)](*given, *counts, **staged(fixed, options), **options)
        return noted(None)
    device = next(x.device for x in given if isinstance(x, torch.Tensor))
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch_kernel(kernel, programs, given, counts, fixed, options)
        return None
    like, addresses = addressed(given)
    small = [(n == 1, n % 16 == 0, n < 1 << 31) for n in counts]
    key = (device, *like, *small, *fixed.values(), *options.values())
    known, others = vars(kernel).setdefault("known_launches", {}), (*counts, *fixed.values())
    code = known.get(key)
    if code is not None:  # what Triton is given as an address it does not look up
        launch = code[programs, 1, 1]
        launch(*addresses, *others)
        return noted((launch, (*given, *others)))
    code = new_code(kernel, programs, given, counts, fixed, options)
    if len(known) > 1024:  # strides may be of any number of tokens
        known.clear()
    launch = code[programs, 1, 1]
    launch(*given, *others)
    known[key] = code
    return noted((launch, (*given, *others)))


def addressed(given: list) -> tuple[list, list]:
    """What machine code depends on of tensors and their strides, and where they are."""
    like, addresses = [], []
    for x in given:
        if x.__class__ is int or x is None:
            like.append(x)
            addresses.append(x)
        else:
            addresses.append(x.data_ptr())
            like += x.dtype, addresses[-1] % 16, x.get_device()
    return like, addresses


def new_code(
    kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict
) -> Any:
    """Machine code for arguments like these. Raises NotCompiled, where that is asked for."""
    if not getattr(NotCompiled.here, "raised", False):
        return code_that_fits(kernel, programs, given, counts, fixed, options)
    with triton.AsyncCompileMode(NotCompiled):
        return code_that_fits(kernel, programs, given, counts, fixed, options)

"""The function that launches every kernel."""

from __future__ import annotations

from typing import Any

import torch

from archc.runtime.optional import triton
from archc.runtime.together import NotCompiled, code_that_fits, staged
from archc.runtime.tuned import measured_options


def launch_kernel(
    kernel: Any, programs: int, given: list, counts: list, fixed: dict, options: dict
) -> tuple | None:
    """Launch a kernel: of tensors and their strides `given`, and of numbers `counts`.

    Which machine code is for arguments like these is looked up at once: Triton looks at each of
    them, and takes several times as long. It is returned, ready to launch, with its arguments; None
    where Triton does all of it.

    Raises NotCompiled, where that is asked for, if there is none yet.
    """
    options = measured_options(kernel, programs, fixed, options)
    flat = isinstance(kernel, triton.JITFunction) and torch.version.hip is None
    if not flat or torch.compiler.is_compiling():
        kernel[(programs,)](*given, *counts, **staged(fixed, options), **options)
        return None
    device = next(x.device for x in given if isinstance(x, torch.Tensor))
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch_kernel(kernel, programs, given, counts, fixed, options)
        return None
    like = [x if x.__class__ is int or x is None else (x.dtype, x.data_ptr() % 16) for x in given]
    small = [(n == 1, n % 16 == 0, n < 1 << 31) for n in counts]
    key = (device, *like, *small, *fixed.values(), *options.values())
    arguments = (*given, *counts, *fixed.values())
    known = vars(kernel).setdefault("known_launches", {})
    code = known.get(key)
    if code is None and getattr(NotCompiled.here, "raised", False):
        with triton.AsyncCompileMode(NotCompiled):
            code = code_that_fits(kernel, programs, given, counts, fixed, options)
    elif code is None:
        code = code_that_fits(kernel, programs, given, counts, fixed, options)
    if len(known) > 1024:  # strides may be of any number of tokens
        known.clear()
    launch = code[programs, 1, 1]
    launch(*arguments)
    known[key] = code
    return launch, arguments

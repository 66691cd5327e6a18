"""Launches that are done again as they were before, for tensors like those of that time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launched_again(kernel: Any, given: tuple, *rest: Any) -> list | None:
    """The outputs of a kernel for tensors (or None) `given` to it, if it was launched of others
    like them: nothing else is looked at then, as all of it was right. None if it was not."""
    if torch.compiler.is_compiling():
        return None
    known = getattr(kernel, "known_calls", None)
    if not known:
        return None
    try:
        key, addresses = likeness(given, rest)
    except AttributeError:  # something is no tensor, which is refused where all is looked at
        return None
    if key not in known:
        return None
    launch, arguments, places, rooms = known[key]
    arguments, made = [*arguments], []
    for place, address in zip(places, addresses, strict=True):
        arguments[place] = address
    for place, shape, dtype, device in rooms:
        room = torch.empty(shape, dtype=dtype, device=device)
        arguments[place] = room.data_ptr()
        made.append(room)
    launch(*arguments)
    return made


def likeness(given: tuple, rest: tuple) -> tuple[tuple | None, list]:
    """The key that decides how a kernel is launched of tensors, and their addresses. The key is
    None where it is not enough: for a tensor that learns, is not on the current GPU, or is at an
    odd address."""
    if not given[0].is_cuda:
        return None, []
    here, learning = torch.cuda.current_device(), torch.is_grad_enabled()
    key, addresses = [here, *rest, *map(type, rest)], []
    for x in given:
        if x is None:
            key.append(None)
            addresses.append(None)
            continue
        if x.get_device() != here or (learning and x.requires_grad):
            return None, []
        addresses.append(x.data_ptr())
        if addresses[-1] % 16:
            return None, []
        key += x.shape, x.stride(), x.dtype
    return tuple(key), addresses


def remember_launch(kernel: Any, launched: tuple | None, given: tuple, *rest: Any) -> None:
    """Keep a launch, as `launch_kernel` tells it, for those of tensors like the `given`, which are
    in the order of its arguments: other tensors are what the kernel makes."""
    if launched is None:
        return
    key = likeness(given, rest)[0]
    if key is None:
        return
    launch, arguments = launched
    arguments, waiting, places, rooms = [*arguments], [*given], [], []
    for place, x in enumerate(arguments):
        if waiting and x is waiting[0]:
            places.append(place)
            del waiting[0]
        elif isinstance(x, Tensor):
            rooms.append((place, x.shape, x.dtype, x.device))
        if isinstance(x, Tensor):
            arguments[place] = None
    if waiting:  # one was copied for the kernel, and would be each time
        return
    known = vars(kernel).setdefault("known_calls", {})
    if len(known) == 1024:  # strides may be of any number of tokens
        known.clear()
    known[key] = launch, arguments, places, rooms

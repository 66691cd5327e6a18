"""Compiling the candidates of a peer's autotuner ahead of time, several processes side by side.

A search compiles its candidates one after the other, which takes minutes for some peers. Here each
of several processes goes through the same calls, compiles every so-manieth kernel and what launches
it into the shared cache on disk, and launches none: it waits for no other, as results have their
shapes and may have any values. The search itself is made later, by the peer, on a quiet machine: it
finds all candidates compiled. Where a search of an earlier run is kept on disk, its choice alone is
compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any


def compile_a_share(share: int, shares: int) -> None:
    """Make Triton's kernels in this process be compiled and not launched, kernel share, share +
    shares, ... of all that are called, each candidate of an autotuner being one."""
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    compiled = JITFunction.run
    candidates: dict[Any, Sequence[Any]] = {}
    seen: dict[Any, int] = {}
    kinds: dict[Any, Any] = {}

    def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return compiled(kernel, *args, grid=grid, warmup=True, **kwargs)
        key = _like(kernel, args, kwargs)
        first = kinds.setdefault(_signature(kernel, args, kwargs), key) == key
        if key not in seen and seen.setdefault(key, len(seen)) % shares == share:
            made = partial(compiled, kernel, *args, grid=grid, warmup=True, **kwargs)
            _compile(made, first)

    def run_all(tuner: Any, *args: Any, **kwargs: Any) -> None:
        key = _like(tuner, args, kwargs)
        if key not in candidates:
            tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
            every = tuner.prune_configs(kwargs) if len(tuner.configs) > 1 else tuner.configs
            best = _found_before(tuner, {**tuner.nargs, **kwargs}, every)
            candidates[key] = every if best is None else [best]
        for config in candidates[key]:
            tuner.fn.run(*args, **kwargs, **config.all_kwargs())

    jitted: Any = JITFunction
    tuned: Any = Autotuner
    jitted.run, tuned.run = run, run_all


def _compile(make: Callable[[], Any], first: bool) -> None:
    """Compile a kernel, and what launches it if it is the `first` of its signature."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime import driver
    from triton.runtime.errors import OutOfResources, PTXASError

    with suppress(OutOfResources, CompileTimeAssertionFailure, PTXASError):
        made = make()
        if first and made is not None:
            active: Any = driver.active
            active.launcher_cls(made.src, made.metadata)


def _like(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What machine code for a call is made for, and a little more: values that are no tensors."""
    given = [*enumerate(args), *kwargs.items()]
    return (id(kernel), *((name, str(getattr(x, "dtype", x))) for name, x in given))


def _signature(kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """What the C code that launches a kernel is made for: the types of what is given."""
    given = [*enumerate(args), *kwargs.items()]
    return (id(kernel), *((name, str(getattr(x, "dtype", type(x)))) for name, x in given))


def search_briefly() -> None:
    """Make autotuners in this process time each candidate for 10 ms, a tenth of what is usual, and
    one that takes as long by itself once."""
    import triton

    driver: Any = triton.runtime.driver.active
    driver.get_benchmarker = lambda: _timed_briefly


BRIEF = 10
"""Milliseconds."""


def _timed_briefly(call: Callable[[], object], **more: Any) -> Any:
    """The milliseconds of a candidate, as Triton's own function gives them, which calls it eight
    times at least."""
    import torch
    from triton.testing import do_bench

    call()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    torch.cuda.synchronize()
    taken = 1e3 * (time.perf_counter() - begun)
    if taken < BRIEF:
        return do_bench(call, **{"warmup": 3, "rep": BRIEF, **more})
    quantiles = more.get("quantiles")
    return taken if quantiles is None else [taken for _ in quantiles]


class _Unknown(Exception):
    """No search of an autotuner is on disk."""


def _found_before(tuner: Any, given: Mapping[str, Any], candidates: Sequence[Any]) -> Any:
    """The candidate that a search chose which was kept on disk; None where there is none."""
    if len(candidates) < 2 or not getattr(tuner, "cache_results", False):
        return None
    own = {name: each for name, each in given.items() if name in tuner.arg_names}
    key = [own[name] for name in tuner.keys if name in own]
    key += [str(each.dtype) for each in own.values() if hasattr(each, "dtype")]

    def search() -> None:
        raise _Unknown

    try:
        tuner.check_disk_cache(tuple(key), candidates, search)
    except _Unknown:
        return None
    return tuner.cache[tuple(key)]

"""Compiling the candidates of a peer's autotuner ahead of time, several processes side by side.

A search compiles its candidates one after the other, which takes minutes for some peers. Here each
of several processes goes through the same calls, compiles every so-manieth candidate into the
shared cache on disk, and runs on with the first of its own that works. The search itself is made
later, by the peer, on a quiet machine: it finds all candidates compiled. Where a search of an
earlier run is kept on disk, its choice alone is compiled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any


def compile_a_share(share: int, shares: int) -> None:
    """Make autotuners in this process compile candidates share, share + shares, ... and time
    none."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.errors import OutOfResources, PTXASError

    failures = (OutOfResources, CompileTimeAssertionFailure, PTXASError)
    done: dict[Any, Any] = {}

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        every = {**self.nargs, **kwargs}
        key = (id(self), *(str(getattr(every.get(k), "dtype", every.get(k))) for k in every))
        candidates = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
        if key not in done and (best := _found_before(self, every, candidates)) is not None:
            done[key] = [best]
        if key not in done:
            own = candidates[share % len(candidates) :: shares]
            for config in own[1:]:
                current = {**kwargs, **config.all_kwargs(), "warmup": True}
                try:
                    self.fn.run(*args, **current)
                except failures:
                    continue
            done[key] = [own[0], *(each for each in candidates if each is not own[0])]
        for config in list(done[key]):
            current = {**kwargs, **config.all_kwargs()}
            self.pre_hook({**self.nargs, **current}, reset_only=True)
            if config.pre_hook is not None:
                config.pre_hook({**self.nargs, **current})
            try:
                return self.fn.run(*args, **current)
            except failures:
                done[key].remove(config)
        raise RuntimeError(f"no candidate of {self.base_fn.__name__} can be launched")

    Autotuner.run = run


def search_briefly() -> None:
    """Make autotuners in this process time each candidate for 10 ms, a tenth of what is usual."""
    import triton

    brief = partial(triton.testing.do_bench, warmup=3, rep=10)
    driver: Any = triton.runtime.driver.active
    driver.get_benchmarker = lambda: brief


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

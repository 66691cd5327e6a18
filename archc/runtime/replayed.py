"""Loops over tokens as CUDA graphs: a segment of tokens is recorded once for tensors like those
given, and replayed over all of them, which takes a launch where the loop takes some for each op."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from inspect import signature
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from archc.runtime.kernels import needs_gradient
from archc.runtime.repeated import NUMBERS, unwatched
from archc.runtime.steps import on_gpu

SEGMENT_TOKENS = int(os.environ.get("ARCHC_LOOP_TOKENS", "64"))
"""Tokens of the longest graph; 0: loops are never recorded."""

REPLAYED_FROM = 16
"""Tokens of a call from which on recording pays: fewer go one by one."""

MOST_REPLAYED = 8
"""Loops whose graphs are kept, each with room for what it reads, weights among it."""

REPLAYED = OrderedDict[tuple, Any]()
"""The loops that were recorded, the last one used last; None of one that cannot be."""

REPLAYED_LOCK = Lock()
"""Held by who looks at, or changes, what is kept."""


def by_graphs(tokens: int, *tensors: Tensor) -> bool:
    """Whether a loop over the tokens of these, and that of their gradients, may be CUDA graphs."""
    return on_gpu(*tensors) and may_replay(tokens, tensors)


def may_replay(tokens: int, tensors: Sequence[Tensor]) -> bool:
    """Whether a loop over so many tokens may be CUDA graphs."""
    if not SEGMENT_TOKENS or tokens < REPLAYED_FROM or not unwatched(tensors):
        return False
    device = tensors[0].device
    if device.type != "cuda" or any(x.device != device or not x.numel() for x in tensors):
        return False
    return not torch.cuda.is_current_stream_capturing()


def replayed(carried: str, places: tuple = (), reverse: bool = False, /, **along: int) -> Callable:
    """A loop over the tokens that CUDA graphs do where they may: of tensors on one GPU that nothing
    learns from by autograd, in no other graph.

    `carried` names the states that it goes on from and gives back last, `along` the dim of the
    tokens in each argument that has one, `places` that in each result, where it is not 1;
    `reverse`: it goes from the last token on.
    """

    def decorate(function: Callable) -> Callable:
        names = [*signature(function).parameters]
        streams = {names.index(name): dim for name, dim in along.items()}
        states = [names.index(name) for name in carried.split()]

        @wraps(function)
        def run(*given, **options):
            tensors = [x for x in given if isinstance(x, Tensor)]
            lengths = {given[n].shape[dim] for n, dim in streams.items()}
            tokens = lengths.pop() if len(lengths) == 1 else 0
            plain = all(isinstance(x, Tensor) or x.__class__ in NUMBERS for x in given)
            if options or not plain or not may_replay(tokens, tensors) or needs_gradient(*tensors):
                return function(*given, **options)
            with torch.cuda.device(tensors[0].device), torch.no_grad():
                how = function, streams, states, places, reverse
                segments = segments_for(how, given, tokens)
                return function(*given) if segments is None else segments(given, tokens)

        return run

    return decorate


def segments_for(how: tuple, given: tuple, tokens: int) -> Segments | None:
    """The graphs of a loop over tensors like those given; None where torch cannot record it, which
    is said once."""
    function, streams, *_ = how
    stream = torch.cuda.current_stream()
    key: list[Any] = [function, stream.device, stream.cuda_stream]
    key += [torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()]
    for n, x in enumerate(given):
        if isinstance(x, Tensor):
            key += x.dtype, *(s for i, s in enumerate(x.shape) if streams.get(n) != i)
            key += () if n in streams else x.stride()
        else:
            key += x.__class__, x.hex() if isinstance(x, float) else x  # -0.0 is no 0.0
    with REPLAYED_LOCK:
        if tuple(key) not in REPLAYED:
            if len(REPLAYED) >= MOST_REPLAYED:
                torch.cuda.synchronize()  # the oldest may be at work
                REPLAYED.popitem(last=False)
            REPLAYED[tuple(key)] = first_segments(how, given, tokens)
        REPLAYED.move_to_end(tuple(key))
        return REPLAYED[tuple(key)]


def first_segments(how: tuple, given: tuple, tokens: int) -> Segments | None:
    """The graphs of a loop, the first of them recorded; None where torch cannot record it."""
    try:
        made = Segments(how, given)
        made.graph(next(made.spans(tokens))[1])
        return made
    except RuntimeError as error:
        title = f"{how[0].__name__}: a loop over the tokens that is no CUDA graph"
        warnings.warn(f"{title}: {error}", RuntimeWarning, stacklevel=2)
        return None


class Segments:
    """The graphs of one loop, by their number of tokens. `room` is what they read: the tokens of a
    segment, the states before it, in whose place they leave those after it, and what all tokens
    share."""

    def __init__(self, how: tuple, given: tuple):
        self.function, self.streams, self.states, places, self.reverse = how
        self.places: dict[int, int] = dict(enumerate(places))
        self.lock = Lock()
        self.pool, self.graphs = torch.cuda.graph_pool_handle(), {}
        with torch.inference_mode(False):
            self.room = [self._like(n, x) for n, x in enumerate(given)]

    def _like(self, n: int, x: Any) -> Any:
        """Room for an argument."""
        if not isinstance(x, Tensor):
            return x
        shape = [SEGMENT_TOKENS if self.streams.get(n) == i else s for i, s in enumerate(x.shape)]
        return torch.zeros(shape, dtype=x.dtype, device=x.device) if n in self.streams else (
            torch.empty_like(x, requires_grad=False).copy_(x)
        )  # fmt: skip

    def __call__(self, given: tuple, tokens: int) -> Any:
        """The results of the loop."""
        with self.lock, torch.inference_mode(False):
            for n, x in enumerate(given):
                if isinstance(x, Tensor) and n not in self.streams:
                    self.room[n].copy_(x)
            results: list[Tensor] = []
            for first, count in self.spans(tokens):
                graph, made = self.graph(count)
                for n, dim in self.streams.items():
                    own = given[n].narrow(dim, first, count)
                    self.room[n].narrow(dim, 0, count).copy_(own)
                graph.replay()
                results = results or [self._whole(i, x, tokens) for i, x in enumerate(made)]
                for i, (whole, x) in enumerate(zip(results, made, strict=True)):
                    whole.narrow(self._place(i), first, count).copy_(x)
            found = [*results, *(self.room[n].clone() for n in self.states)]
        return tuple(found) if len(found) > 1 else found[0]

    def _place(self, i: int) -> int:
        """The dim of the tokens in a result."""
        return self.places.get(i, 1)

    def _whole(self, i: int, x: Tensor, tokens: int) -> Tensor:
        """Room for a result of all tokens."""
        shape = [*x.shape]
        shape[self._place(i)] = tokens
        return x.new_empty(shape)

    def spans(self, tokens: int) -> Iterator[tuple[int, int]]:
        """The first tokens and the lengths of the segments, in the order of the loop: as few as
        there can be."""
        done, count = 0, SEGMENT_TOKENS
        while done < tokens:
            while count > tokens - done:
                count //= 2
            yield tokens - done - count if self.reverse else done, count
            done += count

    def graph(self, count: int) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
        """The graph of so many tokens, and the results that it leaves."""
        if count not in self.graphs:
            given = [self._own(n, x, count) for n, x in enumerate(self.room)]
            self.function(*given)  # so that nothing is set up while it is recorded
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, capture_error_mode="thread_local"):
                made = self._recorded(given)
            self.graphs[count] = graph, made
        return self.graphs[count]

    def _own(self, n: int, x: Any, count: int) -> Any:
        """What a graph of so many tokens reads of the room for an argument."""
        return x.narrow(self.streams[n], 0, count) if n in self.streams else x

    def _recorded(self, given: list) -> list[Tensor]:
        """The results of the loop over the room; the states after it go where those before are."""
        found = self.function(*given)
        found = [*found] if isinstance(found, tuple) else [found]
        after = [x.clone() for x in found[len(found) - len(self.states) :]]  # none is another's
        for n, x in zip(self.states, after, strict=True):
            if (x.dtype, x.shape) != (self.room[n].dtype, self.room[n].shape):
                raise RuntimeError("a state after it is not like the one before")
            self.room[n].copy_(x)
        return found[: len(found) - len(self.states)]

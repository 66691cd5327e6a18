"""Calls that are done again: here a launch is a function of addresses, which adds on a CPU."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from triton import language as tl

from archc.runtime import launch, repeated
from archc.runtime.launch import launch_kernel
from archc.runtime.ops import (
    as_op_again,
    free_space,
    new_op,
    new_op_with_gradient,
    no_second_gradient,
    transformed,
)
from archc.runtime.packed import segment_tables
from archc.runtime.repeated import Recording, made_of_numbers
from archc.runtime.together import compiled_together
from archc.runtime.tokens import new_token_op, token_kind, token_region

OTHER = torch.ones(3, 4)


def body(x, y, out, n, SIZE: tl.constexpr):
    """A kernel that is never run here: out = x + 2 y."""


class Code:
    """Machine code that adds."""

    def __getitem__(self, grid: tuple[int, int, int]) -> Callable[..., None]:
        def numbers(x: Any, count: int) -> Any:
            at = x.data_ptr() if isinstance(x, Tensor) else x
            return (ctypes.c_float * count).from_address(at)

        def run(x: Any, y: Any, out: Any, n: int, size: int) -> None:
            first, second, made = (numbers(each, n) for each in (x, y, out))
            for i in range(n):
                made[i] = first[i] + 2 * second[i]

        return run


@pytest.fixture(autouse=True)
def adds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tensors on a CPU count as those of the current GPU."""
    monkeypatch.setattr(launch, "code_that_fits", lambda *given: Code())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    yield
    vars(KERNEL).pop("known_launches", None)


KERNEL: Any = triton.JITFunction(body)


def plus(x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
    """x + 2 y, by a launch."""
    out = torch.empty(x.shape)
    launch_kernel(KERNEL, 1, [x, y, out], [x.numel()], {"SIZE": 4}, {"num_warps": 1})
    return out


class Counted:
    """A function that launches kernels, and how often it was run itself."""

    def __init__(self, function: Callable[..., Any]):
        self.runs = 0

        def counted(*given: Any) -> Any:
            self.runs += 1
            return function(*given)

        self.call = as_op_again(compiled_together(counted))


def several(x: Tensor, y: Tensor, scale: float, more: Tensor | None) -> tuple[Tensor, Tensor]:
    """Launches of what launches made, what is turned around and copied, sums, and a view."""
    first = plus(x, y)
    second = plus(first, x)
    turned = second.T.contiguous() * scale
    last = plus(turned, turned if more is None else more)
    return plus(last, last).view(-1), second.sum(0)


def meant(x: Tensor, y: Tensor, scale: float, more: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same by PyTorch."""
    second = x + 2 * y + 2 * x
    turned = second.T * scale
    last = turned + 2 * (turned if more is None else more)
    return (3 * last).reshape(-1), second.sum(0)


@pytest.mark.parametrize("most", [0, 1 << 20])
def test_of_other_values_as_of_the_first(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated, "MOST_AT_ONCE", most)
    counted, kept = Counted(several), []
    for number in range(5):
        for shape, scale in (((3, 4), 0.5), ((3, 4), 2.0), ((5, 2), 0.5)):
            x, y, more = torch.randn(shape), torch.randn(shape), torch.randn(shape[::-1])
            for other in (None, more):
                made, wanted = counted.call(x, y, scale, other), meant(x, y, scale, other)
                kept += zip(made, wanted, strict=True)
        assert counted.runs == 6 * min(number + 1, 2)
    for made, wanted in kept:  # none is in the memory of another
        torch.testing.assert_close(made, wanted)


def test_strides_and_addresses_are_part_of_what_is_alike() -> None:
    counted = Counted(lambda x, y: plus(x.contiguous(), y.contiguous()))
    room = torch.randn(40)
    for _ in range(4):
        y = torch.randn(4, 4)
        for x in (torch.randn(4, 4), torch.randn(4, 4).T, room[1:17].view(4, 4)):
            torch.testing.assert_close(counted.call(x, y), x + 2 * y)
    assert counted.runs == 6


UNSURE: dict[str, Callable[..., Any]] = {
    "a number that is read": lambda x, y: plus(x, y) * x.sum().item(),
    "rows that are counted": lambda x, y: plus(x, y)[x[:, 0] > 0],
    "numbers that are drawn": lambda x, y: plus(x, y) + torch.rand_like(x),
    "a tensor from elsewhere": lambda x, y: plus(OTHER, y),
    "a number beside tensors": lambda x, y: (plus(x, y), float(x.sum())),
}


@pytest.mark.parametrize("name", UNSURE)
def test_what_depends_on_more_is_run_each_time(name: str) -> None:
    counted = Counted(UNSURE[name])
    for _ in range(4):
        counted.call(torch.randn(3, 4), torch.randn(3, 4))
    assert counted.runs == 4


def test_one_tensor_given_twice_is_run_each_time() -> None:
    counted = Counted(plus)
    for _ in range(3):
        x = torch.randn(3, 4)
        torch.testing.assert_close(counted.call(x, x), 3 * x)
    assert counted.runs == 3
    for _ in range(3):  # done once, and not as for one
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        torch.testing.assert_close(counted.call(x, y), x + 2 * y)


def test_whole_numbers_and_other_devices_are_run_each_time() -> None:
    counted = Counted(lambda x, n: plus(x, x + n[0]))
    for _ in range(4):
        counted.call(torch.randn(3, 4), torch.tensor([2]))
    elsewhere = Counted(lambda x: x.to("meta"))
    for _ in range(4):
        elsewhere.call(torch.randn(3, 4))
    assert (counted.runs, elsewhere.runs) == (4, 4)


def test_other_settings_are_asked_for_again() -> None:
    counted = Counted(plus)
    given = torch.randn(3, 4), torch.randn(3, 4)
    for _ in range(3):
        counted.call(*given)
    Recording.settings += 1
    for _ in range(3):
        counted.call(*given)
    assert counted.runs == 4


def test_tensors_that_numbers_make_are_asked_for_again() -> None:
    """Where they are kept it is the keeper that knows for how long, and on which stream."""
    asked = list[int]()

    def ones(count: int) -> tuple[Tensor, Tensor]:
        asked.append(count)
        return torch.ones(count), len(asked) * torch.ones(count)

    def added(x: Tensor) -> Tensor:
        one, more = made_of_numbers(ones, x.numel())
        return plus(plus(x, one), more)

    counted = Counted(added)
    for number in range(4):
        x = torch.randn(4)
        torch.testing.assert_close(counted.call(x), x + 2 + 2 * (number + 1))
    assert counted.runs == 2 and asked == [4] * 4


def test_walks_in_segments_are_done_again() -> None:
    """Their tables are kept for other calls, which is no reason to run all of it each time."""

    def added(x: Tensor) -> Tensor:
        rows, _ = segment_tables(None, 1, 64, 4, 2, x.device)
        return plus(x, x) + len(rows)

    counted = Counted(added)
    for _ in range(4):
        x = torch.randn(4)
        torch.testing.assert_close(counted.call(x), 3 * x + 2)
    assert counted.runs == 2


def test_nothing_is_kept_of_a_call() -> None:
    counted = Counted(several)
    alive = []

    def once() -> None:
        given = torch.randn(3, 4), torch.randn(3, 4)
        alive.extend(weakref.ref(x) for x in (*given, *counted.call(*given, 1.0, None)))

    for _ in range(4):
        once()
    gc.collect()
    assert not any(ref() is not None for ref in alive)


def after(function: Callable[[Tensor], Any]) -> Callable[..., Any]:
    """A function of what a launch makes."""
    return lambda x, y: function(plus(x, y))


FLAT: dict[str, tuple[Callable[..., Any], int]] = {
    "room": (after(lambda z: z.view(-1)), 2),
    "room, and a sum of it": (after(lambda z: (z.view(-1), z.sum(0))), 4),
    "room, and itself": (after(lambda z: (z.view(-1), z)), 3),
    "room in two shapes": (after(lambda z: (z.view(-1), z.view(2, 6))), 4),
    "what is given to launches": (lambda x, y: plus(x.view(12), y.view(12)), 2),
    "what is read, too": (lambda x, y: plus(x.view(12), y.view(12) * y.view(12)), 5),
    "what launches made": (lambda x, y: plus(plus(x, y).view(12), y.view(12)), 4),
}
"""Functions with views, and how many steps are left of them: room, launches, and what else."""


@pytest.mark.parametrize("name", FLAT)
def test_views_for_launches_are_left_out(name: str) -> None:
    function, steps = FLAT[name]
    call = as_op_again(function)
    for _ in range(4):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        torch.testing.assert_close(call(x, y), function(x, y))
    (again,) = call.__self__.calls.values()  # type: ignore[attr-defined]
    assert len(again.steps) == steps


def test_what_launches_nothing_is_run_each_time() -> None:
    counted = Counted(lambda x, y: x + 2 * y)
    for _ in range(4):
        counted.call(torch.randn(3, 4), torch.randn(3, 4))
    assert counted.runs == 4


def test_ops_and_their_gradients_are_done_again() -> None:
    """All that they do: what is looked at, and the shapes of what is kept."""
    runs = {"values": 0, "gradient": 0}

    def values(x: Tensor, y: Tensor, n: int) -> tuple[Tensor, Tensor, Tensor]:
        runs["values"] += 1
        return plus(x, y), plus(y, y), plus(x, x.clone()).view(-1)

    def gradient(kept: Tensor, d_z: Tensor, d_s: Tensor, n: int) -> tuple[Tensor, Tensor]:
        runs["gradient"] += 1
        kept = kept.view(d_z.shape)
        return plus(d_z.contiguous(), kept), plus(d_s.contiguous(), d_z.contiguous())

    space = free_space("again", "both")
    schema = "slopes(kept, d_z, d_s, int n) -> (d_x, d_y)"
    slopes = new_op(space, schema, as_op_again(gradient), "d_z d_z", no_second_gradient)
    schema = "both(x, y, int n) -> (z, s, kept)"
    both = new_op_with_gradient(space, schema, as_op_again(values), "x x x", slopes)
    for number in range(5):
        x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
        z, s, kept = both(x, y, 1)
        assert not kept.requires_grad
        d_z, d_s = torch.randn(3, 4), torch.randn(3, 4)
        for d in (d_s, None):
            outputs, arrive = (z, d_z) if d is None else ((z, s), (d_z, d))
            d_x, d_y = torch.autograd.grad(outputs, (x, y), arrive, retain_graph=True)
            torch.testing.assert_close((z, s), (x + 2 * y, 3 * y))
            torch.testing.assert_close(d_x, d_z + 6 * x)
            torch.testing.assert_close(d_y, (0 if d is None else d) + 2 * d_z)
        assert runs == {"values": min(number + 1, 2), "gradient": 2}


def test_one_inside_another_is_a_part_of_it() -> None:
    inner = Counted(plus)
    outer = Counted(lambda x, y: inner.call(inner.call(x, y), y))
    for _ in range(5):
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        torch.testing.assert_close(outer.call(x, y), x + 4 * y)
    assert outer.runs == 2


class Region:
    """A token region that is z = x + 2 y by a launch, and how often it and its gradient were run
    themselves."""

    def __init__(self) -> None:
        self.runs = {"values": 0, "gradient": 0}
        self.space = free_space("region", "plus")  # which ends with it
        self.op = new_token_op(
            self.space, "plus", "x y", "float scale; ScalarType z_kind", (0,),
            "x y", self.values, "x", self.gradient, lambda x, y, scale: x + 2 * y,
        )  # fmt: skip
        self.call = token_region(self.op)(self.choice)

    def choice(self, x: Tensor, y: Tensor, scale: float = 1) -> Tensor:
        """z, by PyTorch where a transform looks on, and where there is nothing to do."""
        if transformed(x, y) or 0 in x.shape:
            return x + 2 * y
        return self.op(x, y, scale, token_kind(False, x))

    def values(self, x: Tensor, y: Tensor, scale: float, z: Tensor) -> None:
        """z by a launch."""
        assert type(scale) is float
        self.runs["values"] += 1
        x, y = x.contiguous(), y.contiguous()
        launch_kernel(KERNEL, 1, [x, y, z], [x.numel()], {"SIZE": 4}, {"num_warps": 1})

    def gradient(self, x: Tensor, y: Tensor, d_z: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """d_z and twice that, by launches."""
        self.runs["gradient"] += 1
        zero = torch.zeros_like(d_z)
        return plus(d_z.contiguous(), zero), plus(zero, d_z.contiguous())


def slopes_of(z: Tensor, x: Tensor, y: Tensor, d_z: Tensor, **how: Any) -> list[Tensor]:
    """A value and the gradients of both it is made of."""
    return [z, *torch.autograd.grad(z, [x, y], d_z, **how)]


def test_regions_and_their_gradients_are_done_again() -> None:
    region = Region()
    for number in range(5):
        for shape in ((3, 4), (2, 5)):
            x, y = (torch.randn(shape, requires_grad=True) for _ in range(2))
            d_z, once = torch.randn(shape), torch.randn(1).expand(shape)
            for slope in (d_z, once):
                made = slopes_of(region.call(x, y), x, y, slope)
                for have, want in zip(made, (x + 2 * y, slope, 2 * slope), strict=True):
                    torch.testing.assert_close(have, want)
            with torch.no_grad():
                torch.testing.assert_close(region.call(x, y), x + 2 * y)
        runs = min(number + 1, 2)
        assert region.runs == {"values": 2 * min(2 * number + 2, 2), "gradient": 4 * runs}


def test_regions_that_call_no_op_have_gradients_too() -> None:
    """Those of no tokens, which were done again as the op that they were not."""
    region = Region()
    for _ in range(4):
        x, y = (torch.randn(0, 4, requires_grad=True) for _ in range(2))
        with torch.no_grad():
            assert region.call(x, y).shape == (0, 4)
        made = slopes_of(region.call(x, y), x, y, torch.randn(0, 4))
        assert [each.shape for each in made] == 3 * [(0, 4)]
    assert region.runs == {"values": 0, "gradient": 0}


def test_what_looks_on_sees_regions_as_their_ops() -> None:
    region = Region()
    x, y = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    for _ in range(3):
        slopes_of(region.call(x, y), x, y, x.detach())
    runs = {**region.runs}
    *_, d_y = slopes_of(region.call(x, y), x, y, y, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(d_y.sum(), y)[0], torch.full_like(y, 2))
    again = checkpoint(region.call, x, y, use_reentrant=False)
    slopes_of(again, x, y, y.detach())
    assert region.runs == runs
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None):
            seen.append(op)
            return op(*args, **(kwargs or {}))

    with Watch():
        region.call(x, y)
    assert vars(region.op)["op"] in seen
    turned = torch._neg_view(torch.randn(3, 4))
    with torch.no_grad():
        torch.testing.assert_close(region.call(turned, y), turned + 2 * y)
    for slope in (turned, torch._efficientzerotensor((3, 4))):
        torch.testing.assert_close(slopes_of(region.call(x, y), x, y, slope)[1], slope + 0)
    with torch.no_grad():
        traced = torch.jit.trace(region.call, (x, y))
        torch.testing.assert_close(traced(y, x), y + 2 * x)
    gradients = torch.func.grad(lambda x: region.call(x, y.detach()).sum())
    torch.testing.assert_close(gradients(x.detach()), torch.ones_like(x))
    with forward_ad.dual_level():
        made = region.call(forward_ad.make_dual(x.detach(), y.detach()), y.detach())
        assert torch.equal(forward_ad.unpack_dual(made).tangent, y)

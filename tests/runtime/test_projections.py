"""Products of one value with several parameters, beside torch's own of each."""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from archc.runtime import projections
from archc.runtime.projections import arrive, arriving, in_turn, made_later, products_of, weighed
from archc.runtime.tokens import new_token_op, token_kind

SHAPES = ((4, 3), (4, 2, 5), (4, 2, 1, 3))


def drawn(*lead: int) -> tuple[Tensor, list[nn.Parameter]]:
    """x [*lead, 4] and a parameter of each shape, in float64."""
    torch.manual_seed(0)
    x = torch.randn(*lead, 4, dtype=torch.float64, requires_grad=True)
    return x, [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]


def by_einsum(x: Tensor, weights: list[nn.Parameter]) -> list[Tensor]:
    """The same by torch, each alone."""
    letters = "hkv"
    return [
        torch.einsum(f"...d,d{letters[: w.dim() - 1]}->...{letters[: w.dim() - 1]}", x, w)
        for w in weights
    ]


def gradients(made: list[Tensor], x: Tensor, weights: list[nn.Parameter]) -> list[Tensor]:
    """Of x and of each weight; every product counts in a way of its own."""
    loss = sum((y.cos() * (place + 1)).sum() for place, y in enumerate(made))
    assert isinstance(loss, Tensor)
    return [*torch.autograd.grad(loss, [x, *weights])]


@pytest.mark.parametrize("lead", [(2, 3), (7,), (0, 3), (2, 0)])
def test_they_are_what_torch_makes_of_each(lead: tuple[int, ...]) -> None:
    x, weights = drawn(*lead)
    made, wanted = products_of(x, *weights), by_einsum(x, weights)
    for own, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(own, other)
    pairs = zip(gradients([*made], x, weights), gradients(wanted, x, weights), strict=True)
    for own, other in pairs:
        torch.testing.assert_close(own, other)


def test_the_gradient_of_x_is_one_sum_that_products_make() -> None:
    x, weights = drawn(2, 3)
    made = products_of(x, *weights)
    with Calls() as seen:
        torch.autograd.backward([*made], [torch.ones_like(y) for y in made])
    assert seen.count["aten.addmm_"] == 2 and not seen.count["aten.add"]
    assert seen.count["aten.mm"] == 1 + len(weights)


def test_what_else_reads_x_keeps_its_gradient() -> None:
    """A gradient that arrives may be another's too: nothing is added to it in place."""
    x, weights = drawn(2, 3)
    slope = torch.ones(2, 3, 3, dtype=torch.float64)
    y, *_ = made = products_of(x, *weights)
    rest = sum(each.sum() for each in made[1:])
    ((y * slope).sum() + rest + x.sum()).backward()
    wanted = sum(w.flatten(1).sum(1) for w in weights) + 1
    torch.testing.assert_close(x.grad, wanted.expand_as(x))
    torch.testing.assert_close(slope, torch.ones_like(slope))


def test_what_nothing_reads_and_what_is_frozen_is_left_out() -> None:
    x, weights = drawn(2, 3)
    weights[0].requires_grad_(False)
    first, second, _ = products_of(x, *weights)
    (first.sum() + second.sum()).backward()
    assert weights[0].grad is None and weights[2].grad is None
    torch.testing.assert_close(x.grad, sum(w.flatten(1).sum(1) for w in weights[:2]).expand_as(x))
    assert weights[1].grad is not None
    torch.testing.assert_close(
        weights[1].grad, x.detach().sum((0, 1))[:, None, None].expand(4, 2, 5)
    )


def test_gradients_have_gradients() -> None:
    x, weights = drawn(2, 2)
    given = [x, *weights]
    assert torch.autograd.gradcheck(products_of, given)
    assert torch.autograd.gradgradcheck(products_of, given)


def test_hooks_and_checkpoints_see_what_they_see_of_torch() -> None:
    x, weights = drawn(2, 3)
    seen: list[tuple[int, ...]] = []
    for weight in weights:
        weight.register_post_accumulate_grad_hook(lambda p: seen.append(tuple(p.shape)))
    checkpoint(lambda x: sum(y.sum() for y in products_of(x, *weights)), x,
               use_reentrant=False).backward()  # fmt: skip
    assert sorted(seen) == sorted(SHAPES)
    torch.testing.assert_close(x.grad, sum(w.flatten(1).sum(1) for w in weights).expand_as(x))


def test_a_transform_and_the_compiler_see_products_of_torch() -> None:
    x, weights = drawn(2, 3)

    def loss(x: Tensor, *weights: Tensor) -> Tensor:
        return sum(y.sum() for y in products_of(x, *weights))  # type: ignore[return-value]

    wanted = sum(w.flatten(1).sum(1) for w in weights).expand_as(x)
    torch.testing.assert_close(torch.func.grad(loss)(x, *weights), wanted)
    jvp = torch.func.jvp(lambda x: loss(x, *weights), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(jvp, wanted.sum())
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    (made,) = torch.autograd.grad(compiled(x, *weights), x)
    torch.testing.assert_close(made, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_makes_one_copy_of_x(dtype: torch.dtype) -> None:
    """The numbers are those of autocast alone; gradients have the dtypes of what they are of."""
    x, weights = drawn(2, 3)
    x = x.detach().to(dtype).requires_grad_()
    weights = [nn.Parameter(w.detach().float()) for w in weights]
    with torch.autocast("cpu", torch.bfloat16):
        wanted = by_einsum(x, weights)
        with Calls() as seen:
            made = products_of(x, *weights)
    assert seen.count["aten._to_copy"] == len(weights) + (dtype == torch.float32)
    assert {y.dtype for y in made} == {torch.bfloat16}
    for own, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0)
    pairs = zip(gradients([*made], x, weights), gradients(wanted, x, weights), strict=True)
    for own, other in pairs:
        assert own.dtype == other.dtype
        torch.testing.assert_close(own, other, rtol=0.02, atol=0.1)


def test_autocast_leaves_float64_alone() -> None:
    x, weights = drawn(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert {y.dtype for y in products_of(x, *weights)} == {torch.float64}


def test_without_gradients_nothing_is_kept() -> None:
    x, weights = drawn(2, 3)
    with torch.no_grad():
        assert all(y.grad_fn is None for y in products_of(x, *weights))
    alone = products_of(x.detach(), *weights)
    assert all(y.grad_fn is not None for y in alone)


def test_products_in_turn_are_let_go_of_as_they_are_taken() -> None:
    x, weights = drawn(2, 3)
    with torch.no_grad():
        products, wanted = in_turn(products_of, x, *weights), products_of(x, *weights)
        for want in wanted:
            made = next(products)
            torch.testing.assert_close(made, want)
            gone = weakref.ref(made)
            del made
            assert gone() is None
        assert next(products, None) is None


class Noted:
    """A stream or an event that notes what is asked of it, as no GPU is here."""

    device = torch.device("cpu")

    def __init__(self, name: str, notes: list[str]):
        self.name, self.notes = name, notes

    def record_event(self) -> Noted:
        """What another stream waits for."""
        self.notes.append(f"{self.name} marks")
        return Noted(f"mark of {self.name}", self.notes)

    def wait_event(self, event: Noted) -> None:
        """What comes later on this stream comes behind."""
        self.notes.append(f"{self.name} waits for {event.name}")

    wait_stream = wait_event


def test_products_that_arrive_are_waited_for_whatever_happens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What reads a product comes behind it; where nobody takes the rest, the stream of now waits
    before anything is let go of."""
    notes, x = list[str](), torch.randn(2, 300, 16)
    weights = tuple(torch.randn(16, *sizes) for sizes in ((2, 200), (8,), (300,), (4, 2)))
    here, there = Noted("here", notes), Noted("there", notes)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: here)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(projections, "stream_beside", lambda _: there)

    def noting(out: Tensor, a: Tensor, b: Tensor) -> Tensor:
        notes.append(f"product of {b.shape[1]}")
        return out.copy_(a @ b)

    monkeypatch.setattr(projections.torch, "mm", lambda a, b, out: noting(out, a, b))
    for made, weight in zip(arriving(x, weights), weights, strict=True):
        torch.testing.assert_close(made, torch.tensordot(x, weight, 1))
        notes.append("read")
    begun = ["there waits for here"]
    for size in (400, 16, 300):  # thin ones are one, where the first of them stands
        begun += [f"product of {size}", "there marks"]
    assert notes == [*begun, *["here waits for mark of there", "read"] * 4, "here waits for there"]
    notes.clear()
    products = arriving(x, weights)
    next(products)
    del products
    assert notes == [*begun, "here waits for mark of there", "here waits for there"]


def test_on_a_cpu_none_arrive() -> None:
    x, weight = torch.empty(1, device="meta").expand(1 << 14, 4096), torch.empty(4096, 4096)
    assert not arrive(x, (weight, weight))


class Calls(TorchDispatchMode):
    """How often each op of torch is called."""

    def __init__(self) -> None:
        super().__init__()
        self.count: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count[str(func.overloadpacket)] += 1
        return func(*args, **(kwargs or {}))


def test_a_gradient_that_is_asked_for_under_autocast() -> None:
    x, weights = drawn(2, 3)
    x, weights = x.detach().float().requires_grad_(), [nn.Parameter(w.float()) for w in weights]
    wanted = gradients(by_einsum(x, weights), x, weights)
    made = products_of(x, *weights)
    loss = sum((y.cos() * (place + 1)).sum() for place, y in enumerate(made))
    assert isinstance(loss, Tensor)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(loss, [x, *weights])
    for own, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(own, other)


def test_autocast_rounds_no_parameter_of_float64() -> None:
    x, weights = drawn(2, 3)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError):
        products_of(x.float(), *weights)


THIN = ((6, 2), (6, 40), (6, 2, 2), (6, 3), (6, 1), (6, 1))
"""Of these the first and the third are thin, and begin where a vector of 16 bytes does; the last
two together are as long as one."""


def thin(rows: int) -> tuple[Tensor, list[nn.Parameter]]:
    """x [2, rows, 6] and a parameter of each shape, in float64."""
    torch.manual_seed(0)
    x = torch.randn(2, rows, 6, dtype=torch.float64, requires_grad=True)
    return x, [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in THIN]


def test_thin_weights_are_one_product_of_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "THIN", 16)
    for rows, made_of in ((40, 3), (2, 6)):
        x, weights = thin(rows)
        with Calls() as seen:
            made = products_of(x, *weights)
        assert seen.count["aten.mm"] == made_of and seen.count["aten.cat"] == (made_of < 6)
        wanted = by_einsum(x, weights)
        for own, other in zip(made, wanted, strict=True):
            torch.testing.assert_close(own, other)
        with Calls() as seen:
            slopes = gradients([*made], x, weights)
        assert seen.count["aten.mm"] + seen.count["aten.addmm_"] == 2 * made_of
        for own, other in zip(slopes, gradients(wanted, x, weights), strict=True):
            torch.testing.assert_close(own, other)
        with torch.no_grad(), Calls() as seen:
            again = products_of(x, *weights)
        assert seen.count["aten.mm"] == made_of
        assert all(torch.equal(a, b) for a, b in zip(again, made, strict=True))


def test_thin_weights_may_be_frozen_or_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "THIN", 16)
    x, weights = thin(30)
    weights[0].requires_grad_(False)
    first, wide, third, *_ = products_of(x, *weights)
    (first.sum() + wide.sum() + third.sum()).backward()
    assert weights[0].grad is None and weights[3].grad is None
    sums = [w.flatten(1).sum(1) for w in weights[:3]]
    torch.testing.assert_close(x.grad, torch.stack(sums).sum(0).expand_as(x))
    torch.testing.assert_close(
        weights[2].grad, x.detach().sum((0, 1))[:, None, None].expand(6, 2, 2)
    )
    x, weights = thin(30)
    products_of(x, *weights)[2].sum().backward()
    torch.testing.assert_close(x.grad, weights[2].flatten(1).sum(1).expand_as(x))
    x, weights = thin(9)
    assert torch.autograd.gradgradcheck(products_of, [x, weights[0], weights[2]])


@cache
def gated_op(in_place: bool) -> Any:
    """The op of a region x tanh(g), whose kernels are torch's; its value may stand where its
    gradient stood."""

    def values(x: Tensor, g: Tensor, y: Tensor) -> None:
        y.copy_(x * g.tanh())

    def gradient(x: Tensor, g: Tensor, d: Tensor, y: Tensor | None = None) -> tuple[Tensor, Tensor]:
        assert y is None or (y.data_ptr() == d.data_ptr()) == in_place
        made = d * g.tanh(), d * x * (1 - g.tanh() ** 2)
        if y is not None:
            values(x, g, y)
        return made

    return new_token_op(
        SPACE, f"y{in_place}", "x g", "ScalarType kind", (0,), "x g", values, "x", gradient,
        lambda x, g: x * g.tanh(), in_place,
    )  # fmt: skip


SPACE = torch.library.Library("gated_in_tests", "FRAGMENT")


@pytest.mark.default("shape1")
@pytest.mark.parametrize(("shape", "in_place"), [((4, 3), True), ((4,), False), ((2, 2, 3), True)])
def test_what_is_multiplied_is_made_again_and_not_kept(
    shape: tuple[int, ...], in_place: bool
) -> None:
    """Gradients, and those of gradients, are torch's own; with a weight that does not learn too."""
    torch.manual_seed(0)
    summed, op = max(len(shape) - 1, 1), gated_op(in_place)
    x, g = (torch.randn(2, 5, *shape[:summed], dtype=torch.float64).requires_grad_() for _ in "xg")
    weight = nn.Parameter(torch.randn(shape, dtype=torch.float64))

    def run(x: Tensor, g: Tensor, weight: Tensor) -> Tensor:
        return weighed(summed, weight, made_later(op, x, g, token_kind(False, x, g)))

    assert torch.autograd.gradcheck(run, (x, g, weight))
    assert torch.autograd.gradgradcheck(run, (x, g, weight))
    kept = list[Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        y = run(x, g, weight)
    assert {t.data_ptr() for t in kept} == {t.data_ptr() for t in (x, g, weight)}
    torch.testing.assert_close(y, torch.tensordot(x * g.tanh(), weight, summed))
    fixed = torch.autograd.grad(run(x, g, weight.detach()).sum(), [x, g])
    torch.testing.assert_close(fixed, torch.autograd.grad(y.sum(), [x, g]))


def test_a_checkpoint_and_autocast_make_it_as_they_make_others() -> None:
    torch.manual_seed(0)
    op, (x, g), weight = gated_op(True), torch.randn(2, 3, 4), nn.Parameter(torch.randn(4, 5))
    x.requires_grad_()

    def run(x: Tensor) -> Tensor:
        return weighed(1, weight, made_later(op, x, g, token_kind(False, x, g)))

    wanted = torch.autograd.grad(run(x).sum(), [x, weight])
    found = torch.autograd.grad(checkpoint(run, x, use_reentrant=False).sum(), [x, weight])
    torch.testing.assert_close(found, wanted)
    with torch.autocast("cpu", torch.bfloat16):
        made = made_later(op, x.bfloat16(), g.bfloat16(), torch.bfloat16)
        y = weighed(1, weight, made)
    assert y.dtype == torch.bfloat16
    found = torch.autograd.grad(y.sum(), [x, weight])
    torch.testing.assert_close(found, wanted, rtol=0.1, atol=0.1)

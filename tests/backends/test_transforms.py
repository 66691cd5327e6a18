"""Recurrences by chunks in files without kernels and with them: ops of torch, one graph for any
number of tokens, and gradients of every order and kind that are right or refused."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacrev, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode

import archc

BACKENDS = ("eager", "triton")
LENGTHS = (5, 20)
"""Tokens that go one by one, and tokens in chunks."""

TEXT = """layer Ridge(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H]
    recurrence S[K, V], z[K] over H:
        S[t] = exp(-softplus(a)) * S[t-1] + k @ v.T
        z[t] = max(z[t-1] - softplus(a), k)
        o    = S[t].T @ q + sum[K](z[t] * q)
    output o
"""


@cache
def layer(backend: str) -> nn.Module:
    torch.manual_seed(0)
    made = archc.load("gla").module(d=8, H=2, backend=backend, dtype=torch.float64)
    return made.requires_grad_(False)


def home(module: nn.Module) -> ModuleType:
    return sys.modules[type(module).__module__]


def tokens(length: int, *batch: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(*batch, 2, length, 8, generator=generator, dtype=torch.float64)


def one_by_one(module: nn.Module, what: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What comes out where no token is in a chunk: PyTorch alone then knows every derivative."""
    with monkeypatch.context() as patched:
        patched.setattr(home(module), "STEPS", 10**9)
        return what()


TRANSFORMS: dict[str, Callable[[Callable[..., Tensor], nn.Module, Tensor, Tensor], Any]] = {
    "grad": lambda loss, run, x, xs: grad(loss)(x),
    "vmap": lambda loss, run, x, xs: vmap(run)(xs),
    "vmap of grad": lambda loss, run, x, xs: vmap(grad(loss))(xs),
    "grad of vmap": lambda loss, run, x, xs: grad(lambda xs: vmap(loss)(xs).square().sum())(xs),
    "vmap of vmap": lambda loss, run, x, xs: vmap(vmap(run))(xs[None]),
    "jacrev": lambda loss, run, x, xs: jacrev(lambda x: run(x)[:, -1, :2])(x),
    "parameters": lambda loss, run, x, xs: grad(
        lambda given: functional_call(run, given, (x,)).sin().sum()
    )(dict(run.named_parameters())),
}


@pytest.mark.default("20")
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_are_right(backend: str, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    run, x, xs = layer(backend), tokens(length), tokens(length, 3)

    def loss(x: Tensor) -> Tensor:
        return run(x).sin().sum()

    for name, transform in TRANSFORMS.items():

        def made(of: Any = transform) -> Any:
            return of(loss, run, x, xs)

        wanted = one_by_one(run, made, monkeypatch)
        torch.testing.assert_close(made(), wanted, msg=lambda text, name=name: f"{name}: {text}")


def by_backward(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
    first.square().sum().backward()
    assert x.grad is not None
    return x.grad


def by_grad(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(loss(x), x, create_graph=True)
    return torch.autograd.grad(first.square().sum(), x)[0]


def by_func(loss: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return grad(lambda x: grad(loss)(x).square().sum())(x)


@pytest.mark.parametrize("route", [by_backward, by_grad, by_func])
@pytest.mark.parametrize("backend", BACKENDS)
def test_second_gradients_are_right_or_refused(
    backend: str, route: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The silence of a route that goes around the gradient of the chunks is what to fear."""
    run = layer(backend)

    def loss(x: Tensor) -> Tensor:
        return run(x).sin().sum()

    few = route(loss, tokens(5))
    step, x = 1e-6, tokens(5)
    along = torch.sin(torch.arange(x.numel(), dtype=x.dtype)).reshape(x.shape)
    ends = [grad(loss)(x + sign * step * along).square().sum() for sign in (1, -1)]
    torch.testing.assert_close(
        (few * along).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=0
    )
    with pytest.raises(RuntimeError, match=r"no gradient of that gradient; token by token"):
        route(loss, tokens(20))
    one_by_one(run, lambda: route(loss, tokens(20)), monkeypatch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_mode_is_refused_by_name(backend: str) -> None:
    """Zeros are what an op without it gives."""
    run, x = layer(backend), tokens(20)
    with pytest.raises(RuntimeError, match=r"forward mode .torch\.func\.jvp.*chunk=None"):
        jvp(run, (x,), (x,))
    with pytest.raises(RuntimeError, match="forward mode"):
        hessian(lambda x: run(x).sum())(x)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward mode"):
        run(forward_ad.make_dual(x, x))
    made, tangent = jvp(run, (tokens(5),), (tokens(5),))
    assert tangent.abs().max() > 0.1 and torch.equal(made, run(tokens(5)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_op_itself_is_not_transformed(backend: str) -> None:
    op = home(layer(backend)).gla_memory_op.op
    q = torch.ones(1, 20, 2, 4)
    with pytest.raises(RuntimeError, match=r"cannot be transformed by torch\.func as an op"):
        grad(lambda q: op(q, q, q, -q, torch.ones(1, 2, 4, 4), None, 16)[0].sum())(q)


def ridge(length: int) -> dict[str, Tensor]:
    shapes = {"q": (2, 4), "k": (2, 4), "v": (2, 3), "a": (2,)}
    generator = torch.Generator().manual_seed(length)
    return {
        name: torch.randn(1, length, *shape, generator=generator).requires_grad_()
        for name, shape in shapes.items()
    }


def values(run: Callable[..., Tensor], given: dict[str, Tensor], **more: Any) -> list[Tensor]:
    o = run(**given, **more)
    return [o, *torch.autograd.grad(o.square().sum(), list(given.values()))]


@pytest.mark.slow
def test_one_graph_for_any_number_of_tokens() -> None:
    """The second length makes the last graph, fewer tokens than go one by one included; packed
    sequences make one more."""
    torch._dynamo.reset()
    run = archc.parse(TEXT).module(H=2, K=4, V=3)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    for turn, length in enumerate((70, 129, 20, 5)):
        with torch._dynamo.config.patch(error_on_recompile=turn > 1):
            found = values(compiled, ridge(length))
        torch.testing.assert_close(found, values(run, ridge(length)), rtol=1e-4, atol=1e-5)
    borders = torch.tensor([0, 3, 3, 70])
    found = values(compiled, ridge(70), cu_seqlens=borders)
    wanted = values(run, ridge(70), cu_seqlens=borders)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


class Calls(TorchDispatchMode):
    """Keeps the calls of ops of some names, each with its arguments."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names, self.found = names, []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        if func._opname in self.names:
            self.found.append((func, args))
        return func(*args, **(kwargs or {}))


@pytest.mark.default("dtype0")
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_torch_has_no_complaint(dtype: torch.dtype) -> None:
    run = archc.parse(TEXT).module(H=2, K=4, V=3, dtype=dtype)
    q, k, v, a = (x.detach().to(dtype).requires_grad_() for x in ridge(37).values())
    with Calls(["ridge_memory", "ridge_memory_gradient"]) as calls:
        o = run(q=q, k=k, v=v, a=a)
        o.float().square().sum().backward()
    assert [op._opname for op, _ in calls.found] == ["ridge_memory", "ridge_memory_gradient"]
    for op, given in calls.found:
        own = [x.detach().clone() if isinstance(x, Tensor) else x for x in given]
        for x in own:
            if isinstance(x, Tensor) and x.is_floating_point():
                x.requires_grad_(not op._opname.endswith("_gradient"))
        assert set(torch.library.opcheck(op, tuple(own)).values()) == {"SUCCESS"}

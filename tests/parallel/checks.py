"""What is checked on two processes: layers, split, against the same layers in one process."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import ScheduleGPipe
from torch.distributed.tensor import DTensor

import archc
from archc import parallel
from archc.origin import origin_of
from archc.parallel.apply import layers_of
from archc.parallel.exchange import gathered
from archc.parallel.execute import PieceFunction, program_for
from archc.parallel.mesh import ranks_of
from archc.parallel.overlapped import moving
from tests.parallel.ranks import ENDING, RANKS, mesh_of
from tests.specs.cases import SMALL, inputs

WIDE = torch.float64


EVEN: dict[str, dict[str, Any]] = {
    "cross_attention": {"H": 2}, "lstm": {"D": 8}, "ssm": {"D": 8}, "ssm_selective": {"D": 8},
    "qwen3_next": {"shared": 8}, "lm": {"G": 2}, "capped_attention": {"G": 2}, "lfm2": {"G": 2},
}  # fmt: skip
"""Sizes that two processes divide, where the small ones of other tests are odd."""


def sizes_of(name: str) -> dict[str, Any]:
    """Small sizes of a bundled spec."""
    return {**SMALL[name], **EVEN.get(name, {})}


@cache
def drawn(name: str) -> nn.Module:
    """A module of a bundled spec, with the same numbers on every process."""
    torch.manual_seed(1)
    found = archc.load(name).module(dtype=WIDE, **sizes_of(name)).eval()
    with torch.no_grad():
        for p in found.parameters():
            p.add_(0.1 * torch.randn_like(p))
    return found


def made(name: str) -> tuple[nn.Module, nn.Module]:
    """The same module twice."""
    return copy.deepcopy(drawn(name)), copy.deepcopy(drawn(name))


def compile_all(checks: Iterable[str]) -> None:
    """Compile what some checks need, once for all processes; what is refused is told by them."""
    for check in checks:
        dim, _, name = check.partition(" ")
        if name not in SMALL:
            continue
        tp, cp = (RANKS if dim == each else 1 for each in ("tp", "cp"))
        for layer in layers_of(drawn(name)).values():
            optional = frozenset(op.name for _, op in origin_of(layer).layer.inputs if op.optional)
            with suppress(ValueError):
                assert program_for(layer, tp, cp, optional).functions is not None


def near(found: Tensor, wanted: Tensor, what: str, least: float = 1e-9) -> None:
    """Refuse a tensor that is another one; one that is smaller than `least` counts as that."""
    assert found.shape == wanted.shape, f"{what}: {found.shape} for {wanted.shape}"
    error = (found - wanted).abs().max() / wanted.abs().max().clamp(min=least)
    assert error < 1e-9, f"{what} is off by {error:.2e}"


def gradients(module: nn.Module) -> dict[str, Tensor]:
    """Whole gradients by name."""
    return {
        name: p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad
        for name, p in module.named_parameters()
        if p.grad is not None
    }


def same_gradients(found: nn.Module, wanted: nn.Module) -> None:
    """Refuse gradients that are others."""
    have, want = gradients(found), gradients(wanted)
    assert have.keys() >= want.keys(), f"{have.keys()} for {want.keys()}"
    least = 1e-2 * max(float(x.abs().max()) for x in want.values())
    for name in have:
        near(have[name], want.get(name, 0 * have[name]), f"the gradient of {name}", least)


def weight(y: Tensor) -> Tensor:
    """What a loss weighs outputs by."""
    return torch.cos(torch.arange(y.numel(), dtype=WIDE)).view(y.shape)


def whole(x: Tensor) -> Tensor:
    """What every process has all of."""
    return x


def in_parts(name: str, dim: str, length: int = 16) -> None:
    """Outputs and all gradients of a layer whose heads (`tp`) or tokens (`cp`) are split, against
    one process."""
    one, other = made(name)
    mesh, layer = mesh_of(dim), origin_of(one).layer
    parallel.apply(other, mesh)
    given = inputs(layer, sizes_of(name), 2, length, 3)
    along = {op.name for _, op in layer.inputs if "t" in op.type.names and dim == "cp"}
    mine = {n: parallel.split(mesh, x).clone() if n in along else x for n, x in given.items()}
    for values in (given, mine):
        for key, x in values.items():
            values[key] = x.detach().clone().requires_grad_(x.is_floating_point())
    wanted, found = (
        made if isinstance(made, tuple) else (made,) for made in (one(**given), other(**mine))
    )
    outputs = [layer.graph[id].type.names for id in layer.graph.outputs.values()]
    pairs, losses = [], [torch.zeros((), dtype=WIDE), torch.zeros((), dtype=WIDE)]
    for have, want, axes in zip(found, wanted, outputs, strict=True):
        w = weight(want)
        losses[1] = losses[1] + (want * w).sum()
        mine_of = partial(parallel.split, mesh, tokens=axes.index("t")) if "t" in axes else whole
        if dim == "tp":
            mine_of = whole
        pairs.append((have, mine_of(want)))
        losses[0] = losses[0] + (have * mine_of(w)).sum()
    for loss in losses:
        loss.backward()
    for n, (have, want) in enumerate(pairs):
        near(have, want, f"output {n}")
    for key, x in given.items():
        if x.grad is not None:
            own = parallel.split(mesh, x.grad) if key in along else x.grad
            near(mine[key].grad, own, f"the gradient of {key}")
    same_gradients(other, one)


def looks_back() -> None:
    """The tokens of the process before stand in front of none: they are gone through, and what they
    leave is where a part goes on, so that nothing of a part is copied."""
    called, lengths = PieceFunction.__call__, []

    def noted(self: Any, values: Any, state: Any, training: bool) -> Any:
        along = zip(values, self.streamed, strict=True)
        lengths.append(next(x.shape[1] for x, stream in along if stream))
        return called(self, values, state, training)

    with patch.object(PieceFunction, "__call__", noted):
        in_parts("kda", "cp")
    halo = [2] if dist.get_rank() else []  # its filters are 3 wide
    assert lengths[: len(halo) + 1] == [*halo, 8], lengths


def sharded(name: str = "lm") -> None:
    """FSDP2: gradients, a step of an optimizer, and the state dict after it."""
    one, other = made(name)
    mesh = mesh_of("dp")
    parallel.apply(other, mesh)
    x = torch.arange(32).view(2, 16) % 11
    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (one, other)]
    (one(x) ** 2).mean().backward()
    (other(parallel.split(mesh, x)) ** 2).mean().backward()
    same_gradients(other, one)
    for each in optimizers:
        each.step()
    wanted, found = one.state_dict(), other.state_dict()
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        part = found[key]
        assert isinstance(part, DTensor) and part.to_local().numel() < value.numel(), key
        near(part.full_tensor(), value, key)


def in_stages(name: str = "lm") -> None:
    """A model cut into two, by a schedule of torch with two micro-batches: the loss and all
    gradients of one process."""
    one, other = made(name)
    mesh = mesh_of("pp")
    parallel.apply(other, mesh)
    x = torch.arange(64).view(4, 16) * 7 % 11

    def loss(y: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(y.flatten(0, 1), target.flatten())

    wanted = loss(one(x), x.roll(1, 1))
    wanted.backward()
    schedule = ScheduleGPipe(parallel.stage(other, mesh), 2, loss_fn=loss)
    losses: list[Tensor] = []
    if mesh.get_local_rank() == 0:
        schedule.step(x)
    else:
        schedule.step(target=x.roll(1, 1), losses=losses)
        near(torch.stack(losses).mean(), wanted.detach(), "the loss")
    have, want = gradients(other), gradients(one)
    assert have and have.keys() < want.keys()
    for key in have:
        near(have[key], want[key], f"the gradient of {key}")


def uneven() -> None:
    """A sequence that two processes do not divide, and one that is shorter than what is looked
    back on."""
    mesh = mesh_of("cp")
    with pytest.raises(ValueError, match=r"T = 15 cannot be split over 2 ranks along `cp`"):
        parallel.split(mesh, torch.zeros(2, 15, 12))
    _, layer = made("kda")
    parallel.apply(layer, mesh)
    with pytest.raises(ValueError, match=r"KDA looks 2 tokens back, and each .* has 1 tokens"):
        layer(torch.zeros(2, 1, 12, dtype=WIDE))
    with pytest.raises(TypeError, match="takes x alone, not `return_state`"):
        layer(torch.zeros(2, 4, 12, dtype=WIDE), return_state=True)


def unequal() -> None:
    """Parts of a sequence that differ in length, and parameters that each process has drawn."""
    mesh = mesh_of("cp")
    _, model = made("lm")
    parallel.apply(model, mesh)
    with pytest.raises(ValueError, match=r"parts of the sequence that differ in length: 3, 2 tok"):
        model(torch.ones(1, 3 - mesh.get_local_rank(), dtype=torch.int64))
    torch.manual_seed(mesh.get_local_rank())
    other = archc.load("swiglu").module(d=4, f=4)
    with pytest.raises(ValueError, match=r"SwiGLU has other parameters on rank \d along `cp`"):
        parallel.apply(other, mesh)


def dropout() -> None:
    """Processes whose generators are at other places drop the same of what all of them have, and
    something else of each part of a sequence; their generators go on as they were."""
    _, model = made("gpt_block")
    vars(model)["p"] = 0.5
    parallel.apply(model, mesh := mesh_of("tp")).train()
    torch.manual_seed(mesh.get_local_rank())
    x = torch.ones(1, 8, sizes_of("gpt_block")["d"], dtype=WIDE)
    first, second = (every_of(model(x)) for _ in range(2))
    assert torch.equal(*first) and not torch.equal(first[0], second[0])
    drop = archc.parse("layer Drop(d, p = 0.5):\n    input x[d]\n    output y[d] = dropout(x, p)")
    torch.manual_seed(1)
    apart = every_of(parallel.apply(drop.module(d=8), mesh_of("cp")).train()(x[..., :8]))
    assert not torch.equal(*apart)


LEARNED = """
layer Learned(d, H, K = 3, V = 4):
    input x[d]
    param W_q[d, H, K]; W_v[d, H, V]; W_o[H, V, d]
    param S_0[H, K, V] = normal(0, 1); n_0[H, K] = normal(0, 1)
    q = x @ W_q
    v = x @ W_v
    recurrence S[K, V] = S_0 over H:
        S[t] = 0.5 * S[t-1] + q @ v.T
        u    = S[t].T @ q
    recurrence n[K] = n_0 over H:
        n[t] = tanh(q) * n[t-1] + q
    output y[d] = (u * sum[K](n * q)) @ W_o
"""


def learned() -> None:
    """First states that are parameters, by columns and by a law."""
    modules = []
    for _ in range(2):
        torch.manual_seed(0)
        modules.append(archc.parse(LEARNED).module(d=6, H=2, dtype=WIDE))
    one, other = modules
    mesh = mesh_of("cp")
    parallel.apply(other, mesh)
    wanted, x = [], torch.randn(2, 12, 6, dtype=WIDE)
    for module, given in ((one, x), (other, parallel.split(mesh, x))):
        wanted.append(module(given))
        wanted[-1].square().sum().backward()
    near(wanted[1], parallel.split(mesh, wanted[0]), "y")
    same_gradients(other, one)


def whole_numbers() -> None:
    """Whole numbers that are told beside real ones are what they were."""
    mesh = mesh_of("cp")
    ranks = ranks_of(mesh, "cp")
    assert ranks is not None
    ids = torch.tensor([[100_001, 100_003]]) + ranks.rank
    real = torch.full((1, 2), 0.5, dtype=torch.bfloat16, requires_grad=True)
    anchor, every = gathered(ranks, "tokens", real, [real, ids])
    assert [row[1].tolist() for row in every] == [[[100_001 + n, 100_003 + n]] for n in range(2)]
    (anchor + every[0][0]).sum().backward()
    (there,) = moving(ranks, "tokens", False, [(ids[:, :1], ids[:, 1:])])()
    wanted = ([100_001, 100_004], [100_003, 100_002])
    assert [int(x) for x in there] == wanted[ranks.rank]
    (back,) = moving(ranks, "tokens", True, [there])()
    assert torch.equal(torch.cat(back, 1), ids)


def every_of(x: Tensor) -> list[Tensor]:
    """A value of each process."""
    found = [torch.empty_like(x) for _ in range(RANKS)]
    dist.all_gather(found, x.detach().contiguous())
    return found


def one_ends() -> None:
    """A process that ends: the other one is told, and by what it waited for."""
    _, layer = made("kda")
    mesh = mesh_of("cp")
    parallel.apply(layer, mesh)
    if mesh.get_local_rank() == 1:
        os._exit(0)
    told = "rank 0 of the 2 along `cp` waits for how many tokens each has, for KDA: another rank"
    with pytest.raises(parallel.RankLost, match=told):
        layer(torch.zeros(2, 4, 12, dtype=WIDE))


def heard(told: list[tuple[int, ...]], collective: Callable[..., Any]) -> Callable[..., Any]:
    """A collective, of whose calls a list is kept: the shape of what each is given first."""

    def ask(x: Tensor, *rest: Any, **more: Any) -> Any:
        told.append(tuple(x.shape))
        return collective(x, *rest, **more)

    return ask


def early_sums() -> None:
    """The sum of a gradient begins when it is there: that of the last product, before anything is
    told of the recurrence before it."""
    _, layer = made("kda")
    mesh, told = mesh_of("cp"), list[tuple[int, ...]]()
    parallel.apply(layer, mesh)
    loss = layer(torch.randn(2, 4, 12, dtype=WIDE)).sum()
    with pytest.MonkeyPatch.context() as changed:
        for name in ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"):
            changed.setattr(dist, name, heard(told, getattr(dist, name)))
        loss.backward()
    assert told[0] == tuple(layer.W_o.shape), told


def heads_apart() -> None:
    """What an attend reads for all parts of its heads is asked for before the first is computed,
    and each part's gradient before that of the one before it."""
    torch.manual_seed(0)
    layer = archc.load("attention").module(d=12, H=6, dtype=WIDE)
    x = torch.randn(1, 4, 12, dtype=WIDE, requires_grad=True)  # the same on both processes
    wanted = layer(torch.cat([x, x], 1)).chunk(2, 1)[dist.get_rank()]
    parallel.apply(layer, mesh_of("cp"))
    told, computed = list[tuple[int, ...]](), nn.functional.scaled_dot_product_attention
    with pytest.MonkeyPatch.context() as changed:
        for name in ("all_to_all_single", "all_gather_into_tensor", "reduce_scatter_tensor"):
            changed.setattr(dist, name, heard(told, getattr(dist, name)))
        changed.setattr(nn.functional, "scaled_dot_product_attention", heard(told, computed))
        y = layer(x)
        asked = [len(shape) for shape in told]
        told.clear()
        y.sum().backward()
    read, computed_and_left = [1, 1, 2] * 3, [4, 4, 2] * 3  # keys, values, queries
    assert asked == [1, *read, *computed_and_left], asked  # first how many tokens there are
    assert [len(shape) for shape in told] == [2, 2, 2, *[2, 1, 1] * 3], told
    torch.testing.assert_close(y, wanted)


QUICK = ["tp kda", "tp lm", "cp kda", "cp attention"]

CHECKS: dict[str, tuple[Callable[[], None], bool]] = {
    "fully_shard lm": (sharded, False),
    "stages of lm": (in_stages, True),
    "uneven tokens": (uneven, True),
    "unequal parts": (unequal, True),
    "dropout": (dropout, True),
    "early sums": (early_sums, True),
    "heads apart": (heads_apart, True),
    "learned first states": (learned, True),
    "whole numbers": (whole_numbers, True),
    "odd parts": (partial(in_parts, "attention", "cp", 10), False),
    "looks back": (looks_back, False),
    **{
        f"{dim} {name}": (partial(in_parts, name, dim), f"{dim} {name}" not in QUICK)
        for name in SMALL
        for dim in ("tp", "cp")
    },
    ENDING: (one_ends, False),
}
"""Each check, and whether it is slow."""

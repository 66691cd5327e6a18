"""Recurrences as ops of torch, without a GPU: what torch asks of an op, one graph for any number of
tokens, gradients that are absent or refused, and what cannot be an input."""

from __future__ import annotations

import sys
from functools import cache
from itertools import accumulate
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from archc.backends.load import load
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc.compile import in_kernels, lowered
from archc.ir.plan import examples
from archc.ir.sizes import evaluate
from archc.runtime.kernels import in_tiles
from tests.backends.triton.texts import layer_text

EVERY = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention", "mamba",
    "mesa", "mlstm", "mom", "rwkv7", "ssm", "ssm_selective",
)  # fmt: skip


class Recorder(TorchDispatchMode):
    """Keeps which ops of a namespace were called, and with what."""

    def __init__(self, space: str):
        super().__init__()
        self.space, self.calls = space, []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == self.space:
            kept = [x.detach().clone() if isinstance(x, Tensor) else x for x in args]
            self.calls.append((func, kept))
        return func(*args, **(kwargs or {}))


@cache
def home(spec: str) -> tuple[ModuleType, Any]:
    layer = lowered(archc.load(spec).layer)
    return load(layer_text(layer, in_kernels), f"{spec}_ops"), layer


def small(spec: str, tokens: int, dtype: torch.dtype = torch.float32) -> tuple[nn.Module, list]:
    """A small layer and its inputs."""
    module, layer = home(spec)
    sizes = next(examples(layer, 4))
    torch.manual_seed(0)
    made = getattr(module, layer.name)(**sizes, dtype=dtype)
    known = {**sizes, "batch": 2, "T#": tokens, "T_seen#": tokens}
    inputs = []
    for _, op in layer.inputs:
        shape = [evaluate(axis.size, known) for axis in op.type.axes]
        real = torch.randn(shape, dtype=dtype).requires_grad_()
        inputs.append(real if op.type.dtype == "real" else torch.randint(0, 4, shape))
    return made, inputs


def calls(spec: str, tokens: int, dtype: torch.dtype) -> list:
    """The calls of ops in a forward and a backward."""
    layer, inputs = small(spec, tokens, dtype)
    with Recorder(home(spec)[0].SPACE.ns) as found:
        layer(*inputs).float().square().sum().backward()
    return found.calls


def opcheck(spec: str, dtype: torch.dtype) -> None:
    found = calls(spec, 37, dtype)
    assert len(found) >= 2
    for op, given in found:
        for x in given:
            if isinstance(x, Tensor) and x.is_floating_point():
                x.requires_grad_(not op._opname.endswith("_gradient"))
        assert set(torch.library.opcheck(op, tuple(given)).values()) == {"SUCCESS"}


def test_torch_has_no_complaint() -> None:
    opcheck("gla", torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("spec", EVERY)
def test_torch_has_no_complaint_about_any(spec: str, dtype: torch.dtype) -> None:
    opcheck(spec, dtype)


def gradients(run: Any, layer: nn.Module, inputs: list) -> list[Tensor]:
    y = run(*inputs)
    found = torch.autograd.grad(y.square().sum(), [*inputs, *layer.parameters()], allow_unused=True)
    return [y, *(g for g in found if g is not None)]


def test_one_graph_for_any_number_of_tokens() -> None:
    """More and fewer tokens than a chunk, and fewer than go one by one elsewhere."""
    layer, _ = small("gla", 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    gradients(compiled, layer, small("gla", 70)[1])
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (129, 20, 5):
            inputs = small("gla", tokens)[1]
            pairs = zip(
                gradients(compiled, layer, inputs), gradients(layer, layer, inputs), strict=True
            )
            for found, wanted in pairs:
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", EVERY)
def test_every_layer_is_one_graph(spec: str) -> None:
    torch._dynamo.reset()
    layer, inputs = small(spec, 70)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    gradients(compiled, layer, inputs)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for tokens in (129, 64, 5):
            gradients(compiled, layer, small(spec, tokens)[1])


def memory(tokens: int = 20, **other: Any) -> tuple[Any, dict[str, Tensor]]:
    """A recurrence, and what enters it."""
    shape = (2, tokens, 2, 4)
    given = {name: torch.randn(shape) for name in ("q", "k", "v")}
    given |= {"g": -torch.rand(shape), "S": torch.randn(2, 2, 4, 4), **other}
    return home("gla")[0].gla_memory, given


def test_gradients_that_nothing_asks_for() -> None:
    """Of the values alone, of the state alone, and of both: they add up."""
    run, given = memory()
    leaves = [x.requires_grad_() for x in given.values()]

    def of(*places: int) -> list[Tensor]:
        made = run(*leaves)
        loss = sum(made[place].sin().sum() for place in places)
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        return [torch.zeros_like(x) if d is None else d for x, d in zip(leaves, found, strict=True)]

    for one, other, both in zip(of(0), of(1), of(0, 1), strict=True):
        torch.testing.assert_close(one + other, both, rtol=1e-4, atol=1e-5)


def test_a_gradient_of_a_gradient_is_refused() -> None:
    run, given = memory()
    q = given["q"].requires_grad_()
    (first,) = torch.autograd.grad(run(*given.values())[0].sin().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no gradient of that gradient"):
        first.sum().backward()


def test_states_stay_wide_under_autocast() -> None:
    run, given = memory()
    narrow = {n: x.bfloat16() if n in "qkv" else x for n, x in given.items()}
    with torch.autocast("cpu", torch.bfloat16):
        o, state = run(*narrow.values())
    assert (o.dtype, state.dtype) == (torch.bfloat16, torch.float32)
    exact = run(*(x.float() for x in narrow.values()))
    assert torch.equal(state, exact[1])
    assert torch.equal(o, exact[0].bfloat16())


@pytest.mark.default("lstm")
@pytest.mark.parametrize("spec", ["gla", "lstm"])
def test_layers_under_autocast(spec: str) -> None:
    """Gates and states enter in float32 and states leave in it; compiled, in one graph."""
    layer, (x,) = small(spec, 20)
    exact, kept = layer(x, return_state=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for call in (layer, compiled):
        with torch.autocast("cpu", torch.bfloat16):
            y, state = call(x, return_state=True)
        for found, wanted in zip((y, *state), (exact, *kept), strict=True):
            torch.testing.assert_close(found.float(), wanted, rtol=0.1, atol=0.02)
        assert {part.dtype for part in state} == {torch.float32}
        (d,) = torch.autograd.grad(y.float().sum(), x)
        assert d.dtype == torch.float32


def test_a_file_that_is_loaded_twice() -> None:
    text = layer_text(home("gla")[1], in_kernels)
    first, second = load(text, "gla_once"), load(f"{text}\n", "gla_twice")
    assert first.SPACE.ns != second.SPACE.ns and first.SPACE.ns in second.SPACE.ns
    _, given = memory()
    for one, other in zip(
        first.gla_memory(*given.values()), second.gla_memory(*given.values()), strict=True
    ):
        assert torch.equal(one, other)
    assert sys.modules[first.__name__] is first


@pytest.mark.parametrize(
    ("name", "x", "error", "words"),
    [
        ("k", torch.ones(2, 20, 2, 5), ValueError, "shapes must be q, k, log_alpha"),
        ("v", torch.ones(2, 21, 2, 4), ValueError, "got .*2, 21, 2, 4"),
        ("q", torch.ones(2, 20, 4), ValueError, "shapes must be"),
        ("S", torch.ones(1, 2, 4, 4), ValueError, "shapes must be"),
        ("g", torch.ones(2, 20, 2, 4, dtype=torch.int64), TypeError, "real numbers, got"),
    ],
)
def test_what_cannot_be(name: str, x: Tensor, error: type[Exception], words: str) -> None:
    run, given = memory(**{name: x})
    with pytest.raises(error, match=words):
        run(*given.values())


@pytest.mark.parametrize("name", ["k", "v", "S", "g"])
def test_what_cannot_be_of_few_tokens(name: str) -> None:
    """A loop in PyTorch, or a kernel, could take them for something else."""
    shapes = {"k": (2, 3, 1, 4), "v": (2, 4, 2, 4), "S": (1, 2, 4, 4), "g": (2, 3, 2)}
    run, given = memory(3, **{name: torch.ones(shapes[name])})
    with pytest.raises(ValueError, match="shapes must be q, k, log_alpha"):
        run(*given.values())
    with torch.no_grad(), pytest.raises(ValueError, match=r"shapes must be|a pool of 1 states"):
        home("gla")[0].gla_memory_decode(*given.values())


@pytest.mark.parametrize("tokens", [1, 20])
@pytest.mark.parametrize("spec", ["gla", "lstm"])
def test_what_is_no_tensor(spec: str, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each argument in turn of each function that a recurrence may be called by."""
    module, found = home(spec)[0], list[tuple]()
    title = f"{spec}_memory"
    with monkeypatch.context() as patched:
        patched.setattr(module, title, lambda *given, **_: found.append(given))
        layer, inputs = small(spec, tokens)
        with pytest.raises(TypeError, match="cannot unpack"):
            layer(*inputs)
    wanted = rf"{title}\w*: `\w+` must be a tensor, got NoneType"
    for name in (title, f"{title}_decode", f"{title}_once"):
        run = getattr(module, name, None)
        for place, x in enumerate(found[0]) if run else ():
            given = [None if at == place else each for at, each in enumerate(found[0])]
            if isinstance(x, Tensor):
                with torch.no_grad(), pytest.raises(TypeError, match=wanted):
                    run(*given)


def test_a_state_holds_what_it_must() -> None:
    layer, inputs = small("gla", 4)
    state = layer(*inputs, return_state=True)[1]
    with pytest.raises(TypeError, match=r"GLA: `state\.S` must be a tensor, got NoneType"):
        layer(*inputs, state=state._replace(S=None))


@pytest.mark.parametrize("chunk", [0, -16, 2.0, "64"])
def test_a_chunk_has_tokens(chunk: Any) -> None:
    run, given = memory()
    with pytest.raises(ValueError, match="`chunk` must be a number of tokens"):
        run(*given.values(), chunk=chunk)


@pytest.mark.parametrize(
    ("borders", "words"),
    [([0, 9, 5, 20], "must ascend"), ([0, 19], "must ascend"), ([1, 20], "must ascend"),
     ([0.0, 20.0], "integers"), ([[0, 20]], "must be .N . 1.")],
)  # fmt: skip
def test_borders_that_cannot_be(borders: list, words: str) -> None:
    """Also where a recurrence is called by itself, before a kernel reads them."""
    given, _ = packed(*[20 // (len(borders) - 1 or 1)] * (len(borders) - 1 or 1))
    with pytest.raises((TypeError, ValueError), match=words):
        home("gla")[0].gla_memory(*given.values(), cu_seqlens=torch.tensor(borders))


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="on one device, got cpu and meta"):
        home("gla")[0].check_together("o", torch.ones(1), torch.ones(1, device="meta"))


def test_an_old_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is launched; without Triton the file runs in PyTorch, and says so."""
    module = home("gla")[0]
    for version in ("3.5.0", "3.10.1+git"):
        monkeypatch.setattr(module, "triton", SimpleNamespace(__version__=version))
        assert module.has_triton()
    monkeypatch.setattr(module, "triton", None)
    with pytest.warns(UserWarning, match="the eager form runs on the GPU"):
        assert not module.has_triton()
    monkeypatch.setattr(module, "triton", SimpleNamespace(__version__="3.4.0"))
    with pytest.raises(RuntimeError, match=r"need Triton 3.5 or newer, got 3.4.0"):
        module.has_triton()


def test_a_step_is_an_op_too() -> None:
    module, (_, given) = home("gla")[0], memory(tokens=3)
    with torch.no_grad():
        done = torch.library.opcheck(module.gla_memory_once_op.op, tuple(given.values()))
        assert set(done.values()) == {"SUCCESS"}
        made = module.gla_memory_once_op(*given.values())
        for one, other in zip(made, module.gla_memory(*given.values()), strict=True):
            assert torch.equal(one, other)


@pytest.mark.default("gla")
@pytest.mark.parametrize("spec", ["gla", "lstm"])
@torch.no_grad()
def test_steps_are_one_graph(spec: str) -> None:
    """Token after token, each from the state that the one before it left."""
    layer, (x,) = small(spec, 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    state = same = layer.initial_state(2)
    for turn, token in enumerate(x.split(1, 1)):
        with torch._dynamo.config.patch(error_on_recompile=turn > 0):
            y, state = compiled(token, state=state, return_state=True)
        wanted, same = layer(token, state=same, return_state=True)
        torch.testing.assert_close(y, wanted)


def test_strides_may_be_any() -> None:
    run, given = memory()
    other = {n: x.transpose(0, 1).contiguous().transpose(0, 1) for n, x in given.items()}
    other["k"] = torch.stack([given["k"]] * 2, -1)[..., 0]
    for one, same in zip(run(*given.values()), run(*other.values()), strict=True):
        assert torch.equal(one, same)


def packed(*lengths: int) -> tuple[dict[str, Tensor], Tensor]:
    """What enters a recurrence of packed sequences, and their borders."""
    _, given = memory(sum(lengths), S=torch.randn(len(lengths), 2, 4, 4))
    given = {n: x if n == "S" else x[:1] for n, x in given.items()}
    return given, torch.tensor([0, *accumulate(lengths)])


@pytest.mark.slow
def test_packed_sequences_in_one_graph() -> None:
    """Whatever their lengths are, and as if each were alone; also one of no token."""
    run = home("gla")[0].gla_memory
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager", dynamic=True)
    for turn, lengths in enumerate([(3, 70), (64, 1, 0, 66), (5, 17)]):
        given, borders = packed(*lengths)
        leaves = [x.requires_grad_() for x in given.values()]
        found = []
        for call in (run, compiled):
            with torch._dynamo.config.patch(error_on_recompile=turn > 1):
                o, state = call(*leaves, cu_seqlens=borders)
            loss = o.sin().sum() + state.sin().sum()
            found.append([o, state, *torch.autograd.grad(loss, leaves)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_torch_has_no_complaint_about_packed_sequences() -> None:
    given, borders = packed(3, 0, 70)
    module = home("gla")[0]
    leaves = [x.requires_grad_() for x in given.values()]
    done = torch.library.opcheck(module.gla_memory_op.op, (*leaves, borders, 16))
    assert set(done.values()) == {"SUCCESS"}
    o, _, *saved = module.gla_memory_op(*leaves, borders, 16)
    told = module.gla_memory_forward_fake(*leaves, borders, 16)
    assert [x.numel() for x in (o, *saved)] == [x.numel() for x in (told[0], *told[2:])]


@pytest.mark.parametrize("spec", ["lstm", pytest.param("slstm", marks=pytest.mark.slow)])
def test_cells_are_ops(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop in an op has the gradients of a loop outside, also of packed sequences; and torch has
    no complaint."""
    module = home(spec)[0]
    layer, (x,) = small(spec, 9)
    borders = torch.tensor([0, 5, 5, 9])
    graph = module.in_a_graph
    for given, rest in (((x,), {}), ((x[:1],), {"cu_seqlens": borders})):
        found = []
        for inside in (lambda tokens: True, graph):
            monkeypatch.setattr(module, "in_a_graph", inside)
            y, state = layer(*given, return_state=True, **rest)
            loss = y.sin().sum() + sum(s.sin().sum() for s in state)
            found.append([y, *state, *torch.autograd.grad(loss, [x, *layer.parameters()])])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    monkeypatch.setattr(module, "in_a_graph", lambda tokens: True)
    opcheck(spec, torch.bfloat16)


@pytest.mark.slow
def test_cells_in_one_graph() -> None:
    """For any number of tokens, and of packed sequences."""
    layer, _ = small("lstm", 4)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for turn, tokens in enumerate((7, 12, 5)):
        (x,) = small("lstm", tokens)[1]
        with torch._dynamo.config.patch(error_on_recompile=turn > 0):
            pairs = zip(gradients(compiled, layer, [x]), gradients(layer, layer, [x]), strict=True)
            for found, wanted in pairs:
                torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    borders = torch.tensor([0, 3, 5])
    found = compiled(x[:1].detach(), cu_seqlens=borders)
    torch.testing.assert_close(found, layer(x[:1].detach(), cu_seqlens=borders))


THREE_AND_ONE = """
layer Both(H, K = 4):
    input q[H, K], k[3, H, K], v[3, H, K], beta[3, H]
    recurrence S[K, K'] over H:
        R = S[t-1]
        repeat 3 as j:
            R = (I - beta[j] * k[j] @ k[j].T) @ R + beta[j] * k[j] @ v[j].T
        S[t] = R
        o    = S[t].T @ q
    recurrence Z[K, K'] over H:
        Z[t] = Z[t-1] + q @ o.T
        y    = Z[t].T @ q
    output y
"""


def test_chunks_have_any_length_where_kernels_mask_all_rows() -> None:
    """Of three rows a token 20 tokens fill a tile of 64; of one row tiles are no longer than a
    chunk, and recurrences of one layer have chunks of one length."""
    two, three = (archc.load("gated_delta_product", n=n).layer for n in (2, 3))
    both = archc.parse(THREE_AND_ONE).layer
    text, usual, mixed = (layer_text(lowered(each), in_kernels) for each in (three, two, both))
    assert "CHUNK = 20 " in text
    assert "if by_kernels(in_tiles(chunk), " in text
    assert "if by_kernels(chunk, " not in text
    for other, tokens in ((usual, 32), (mixed, 16)):
        assert f"CHUNK = {tokens} " in other
        assert "in_tiles(chunk)" not in other
    assert [in_tiles(tokens) for tokens in (None, 5, 20, 33)] == [None, 16, 32, 64]

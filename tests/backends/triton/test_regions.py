"""Token regions of layers, by kernels under Triton's interpreter and by PyTorch elsewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from archc.backends.load import load
from torch import Tensor

import archc
from archc.compile import in_kernels, lowered
from archc.ir.meaning import evaluate
from tests.backends.triton.launches import machine_code, recorded
from tests.backends.triton.processes import printed
from tests.backends.triton.test_interpreted import errors, wrong
from tests.backends.triton.texts import layer_text
from tests.specs.references.weights import randomise

pytest.importorskip("triton")


OWN = Path(__file__).parent / "regions"
LEARNED = OWN / "learned_angles.arch"
DROPPED = OWN / "dropped.arch"


def test_layers_of_a_kind_each_by_kernels() -> None:
    """In one process. Of batches: values, gradients and gradients of gradients, those of a learned
    base of rotations, which come through tables that a region reads, and of what is only compared,
    which are zero. Routers. Packed: looks at what is made, of which the last tokens leave the
    kernel."""
    batches = [f"tokens {name} 5 4" for name in (LEARNED, OWN / "compared.arch", "moe")]
    found = errors(*batches, f"packed {OWN / 'chained.arch'} 4")
    known = {name.rpartition(": ")[2] for name in found}
    assert {"d b", "d w", "d g", "u_past after", "d u_past", "d y_past"} <= known
    assert not wrong(found)


@pytest.mark.slow
def test_parts_of_heads_and_streams_by_kernels() -> None:
    assert not wrong(errors(*(f"tokens {OWN / name}.arch 5 4" for name in ("halves", "streams"))))


@pytest.mark.slow
def test_dropout_by_kernels() -> None:
    """What PyTorch makes of the factors of the same seeds; the same again with one seed of torch,
    checkpointed, in one graph; nothing dropped outside of training."""
    found = errors(f"tokens {DROPPED} 5 4", f"packed {DROPPED} 4", f"drawn {DROPPED} 5 4")
    other = next(name for name in found if name.endswith(": other"))
    assert found.pop(other) > 0.1, "another seed of torch drops others"
    assert not wrong(found)


@pytest.mark.slow
def test_bad_input_and_training() -> None:
    """Zeros through a norm, gates of -inf and inf, a width longer than the sequence, dims of 1 and
    of 10,000, no tokens and no sequences: what is no number in float64 is none by kernels, and all
    else is right. The same to the bit with checkpoints, and as near as 16 bits allow under
    autocast."""
    pairs = (line.rpartition(": ") for line in printed("interpreted_bad", "all"))
    found = {name: float(error) for name, _, error in pairs}
    assert len(found) == 8 and found.pop("checkpointed") == 0
    assert 1e-4 < found.pop("autocast") < 8e-2
    assert not wrong(found)


def test_a_past_that_several_programs_read_is_not_written_over() -> None:
    """In slots: one that comes later read what the next token looks back on."""
    (line,) = printed("interpreted_wide_pasts", "")
    assert float(line) < 1e-5


@pytest.mark.slow
def test_layers_by_kernels() -> None:
    """Short convolutions with their past, gates, gated norms, rotations, shifts of tokens. What is
    chunked has no second gradient, so these are of few tokens."""
    others = ("rwkv7", "mla", "swiglu", OWN / "longer.arch", OWN / "residual.arch")
    few = [f"tokens {spec} 5 4" for spec in others]
    assert not wrong(errors("tokens kda 9 4", *few, "tokens delta 1 4"))


def test_angles_that_are_learned_elsewhere() -> None:
    """Values and gradients of every parameter in PyTorch, by the file with regions, against the
    meaning of the layer."""
    layer = lowered(archc.load(LEARNED).layer)
    module = load(layer_text(layer), "learned")
    sizes = {"d": 5, "H": 2, "K": 4}
    made = module.Turned(**sizes).double()
    assert "turned_y_op" in vars(module)
    x = torch.randn(2, 7, 5, dtype=torch.float64, requires_grad=True)
    learns = dict(made.named_parameters())
    exact = evaluate(layer, {"x": x}, learns, sizes).outputs["y"]
    y, values = made(x), [x, *learns.values()]
    torch.testing.assert_close(y, exact)
    wanted = torch.autograd.grad(exact.square().sum(), values)
    assert all(d.abs().max() > 1e-3 for d in wanted)
    found = torch.autograd.grad(y.square().sum(), values)
    torch.testing.assert_close(found, wanted)


@pytest.mark.slow
def test_packed_layers_by_kernels() -> None:
    assert not wrong(errors("packed kda 4", "packed rwkv7 4", "packed mamba2 4"))


GATED = """layer Gated(K, width):
    input x[K]
    param a[K, width]
    output y[K] = shortconv(x * sigmoid(x), a)
"""


@pytest.mark.parametrize(
    ("text", "sizes", "places"),
    [
        ((OWN / "chained.arch").read_text(), {"K": 3}, (0, 2)),
        (GATED, {"K": 3, "width": 4}, (0, 1)),
    ],
)
def test_what_is_kept_of_looks_at_what_is_made(
    text: str, sizes: dict[str, int], places: tuple[int, int]
) -> None:
    """The last tokens of a value that is made in a region, or looks back itself, by kernels and in
    PyTorch; packed too."""
    made = archc.parse(text).layer
    title, module = made.name.lower(), load(layer_text(lowered(made)), made.name.lower())
    layer = randomise(vars(module)[made.name](**sizes).double(), seed=0)
    x = torch.randn(1, 9, 3, dtype=torch.float64)
    borders = torch.tensor([0, 1, 1, 9])
    wanted = layer(x, return_state=True)
    packed = layer(x, return_state=True, cu_seqlens=borders)
    asked = []
    module.by_token_kernels = lambda *given: asked.append(given) is None
    passes = vars(module)[f"{title}_y_passes"]
    setattr(module, f"{title}_y_op", lambda *given: [passes(*given[:-2])[i] for i in places])
    torch.testing.assert_close(layer(x, return_state=True), wanted)
    torch.testing.assert_close(layer(x, return_state=True, cu_seqlens=borders), packed)
    assert len(asked) == 2


def test_one_token_is_done_by_kernels_that_look_back() -> None:
    """What is looked back on enters, so that the last tokens of it and of its past are kept."""
    spec = archc.parse(SHORT.replace("* (x @ G)", "").replace("W, G", "W"))
    module = load(layer_text(lowered(spec.layer)), "short")
    layer, x = module.Short(d=3, H=2, K=2).double(), torch.randn(2, 4, 3).double()
    wanted = layer(x)
    asked = []
    module.by_token_kernels = lambda *given: asked.append(given) is None
    module.short_u_op = lambda *given: module.short_u_passes(*given[:-1])[0]
    made, state = [], None
    for t in range(4):
        y, state = layer(x[:, t : t + 1], state=state, return_state=True)
        made.append(y)
    torch.testing.assert_close(torch.cat(made, 1), wanted)
    assert len(asked) == 4


def test_dropout_without_a_gpu_is_as_without_kernels() -> None:
    """Its factors enter the passes, without a gradient and as they are drawn without kernels; a
    gradient of the gradient takes the same. Outside of training they take no memory."""
    spec = archc.load(DROPPED)
    module = load(layer_text(lowered(spec.layer)), "dropped")
    made = module.Dropped(d=3, e=4).double()
    eager = spec.module(d=3, e=4, backend="eager", dtype=torch.float64)
    eager.load_state_dict(made.state_dict())
    x, seen = torch.randn(2, 5, 3).double().requires_grad_(), []
    passes = module.dropped_y_passes
    module.dropped_y_passes = lambda *given: seen.append(given) or passes(*given)

    def run(layer: torch.nn.Module) -> list[Tensor]:
        torch.manual_seed(5)
        y, learns = layer(x), [x, *layer.parameters()]
        ds = torch.autograd.grad(y.exp().sum(), learns, create_graph=True)
        return [y, *ds, *torch.autograd.grad(ds[0].square().sum(), learns)]

    for training in (True, False):
        made.train(training)
        eager.train(training)
        torch.testing.assert_close(run(made), run(eager))
    (drawn, half), (ones, _) = (given[5:7] for given in seen)
    assert {*drawn.flatten().tolist()} == {0.0, 1 / 0.7} and not drawn.requires_grad
    assert {*half.flatten().tolist()} == {0.0, 2.0}
    assert ones.stride() == (0, 0, 0) and (ones == 1).all()


SHORT = """
layer Short(d, H, K):
    input x[d]
    param W, G[d, H, K]; c[H, K, 3]; gain[K]
    u = rmsnorm[K](silu(shortconv((x @ W) * (x @ G), c))) * gain
    output y[H, K] = u
"""


def test_elsewhere_it_is_the_same_as_without_kernels() -> None:
    """On a CPU, with a past that has a gradient, packed, and in pieces."""
    spec = archc.parse(SHORT)
    text = layer_text(lowered(spec.layer))
    sizes: dict[str, Any] = {"d": 5, "H": 2, "K": 4}
    layer = load(text, "short").Short(**sizes).double()
    eager = spec.module(**sizes, backend="eager", dtype=torch.float64)
    eager.load_state_dict(layer.state_dict())
    x = torch.randn(1, 12, 5, dtype=torch.float64)
    borders = torch.tensor([0, 1, 5, 12])
    torch.testing.assert_close(layer(x), eager(x))
    torch.testing.assert_close(layer(x, cu_seqlens=borders), eager(x, cu_seqlens=borders))
    y, state = layer(x[:, :7], return_state=True)
    z, _ = layer(x[:, 7:], state=state, return_state=True)
    torch.testing.assert_close(torch.cat([y, z], 1), eager(x))
    for count in (0, 1):
        torch.testing.assert_close(layer(x[:, :count]), eager(x[:, :count]))
    torch.testing.assert_close(layer(x[:0]), eager(x[:0]))
    none = x[:, :0].requires_grad_()
    for given, borders in ((x[:0], None), (none, None), (none, torch.tensor([0, 0, 0]))):
        y, state = layer(given, return_state=True, cu_seqlens=borders)
        learns = [*layer.parameters(), *([given] if given.requires_grad else [])]
        loss = y.sum() + sum(s.sum() for s in state)
        ds = torch.autograd.grad(loss, learns, allow_unused=True, materialize_grads=True)
        assert y.shape == (*given.shape[:2], 2, 4) and not any(d.any() for d in ds)


def test_dtypes_are_those_of_pytorch() -> None:
    """What a region would make by kernels has the dtype that its passes give."""
    module = load(layer_text(lowered(archc.parse(SHORT).layer)), "short")
    passes = module.short_u_passes
    names = passes.__code__.co_varnames[: passes.__code__.co_argcount]
    shapes = {"c": (2, 4, 3), "gain": (4,), "u_raw_past": (1, 2, 2, 4), "x_raw_past": (1, 2, 2, 4)}
    for other in (torch.bfloat16, torch.float32, torch.float16):
        dtypes = {"c": other}
        tensors = {
            name: torch.zeros(
                shapes.get(name, (1, 4, 2, 4)), dtype=dtypes.get(name, torch.bfloat16)
            )
            for name in names
            if name != "cu_seqlens"
        }
        made, *_ = passes(**tensors, cu_seqlens=None)
        assert module.token_kind(False, *tensors.values()) == made.dtype


MIXED = """
layer Mixed(d, n):
    input x[d]
    param W[d, n, n']
    output M[n, n'] = sinkhorn(x @ W, 20)
"""


def test_tiles_of_a_long_gradient_have_room_in_registers() -> None:
    """57 tiles of a matrix a token are alive at once, in 2 KB of stack where a thread has 8 numbers
    of each; both dims of a matrix count."""
    module = load(layer_text(lowered(archc.parse(MIXED).layer), in_kernels), "mixed")
    name = next(name for name in vars(module) if re.fullmatch(r"mixed_\w+_gradient", name))
    raw = torch.zeros(2, 256, 4, 4, dtype=torch.bfloat16)
    with recorded() as launches:
        vars(module)[name](raw, torch.zeros_like(raw))
    (launch,) = launches
    assert launch.given["BLOCK_T"] == 16
    assert machine_code(launch).stack == 0

"""Recurrences whose tokens write and read at several keys at once, against loops written here."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from archc.compile import before_chunks, in_chunks, programs_of
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.recurrence.affine.form import MATRIX
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.chunk.loops import loops
from archc.tile.language import statements
from tests.few import but
from tests.recurrence.recurrences import used
from tests.recurrence.test_random import check_graphs, check_module, check_op, parsed
from tests.test_law import near, random_inputs

INPUTS = {
    "q": "[H, K]", "k": "[H, K, R]", "w": "[H, K, R]", "v": "[H, R, V]", "u": "[H, K]",
    "x": "[H, K]", "z": "[H, V]", "a": "[H]", "b": "[H, R]",
}  # fmt: skip

NAMED = {"be": "sigmoid(b) / 2", "uk": "l2norm[K](k)", "uw": "l2norm[K](w)"}

BODIES = {
    "a decay": """
        S[t] = sigmoid(a) * (S[t-1] - uk @ diag(be) @ (uk.T @ S[t-1])) + uk @ diag(be) @ v
        o = S[t].T @ q
""",
    "no decay": """
        S[t] = S[t-1] - uk @ diag(be) @ (uk.T @ S[t-1] - v)
        o = S[t].T @ q + S[t-1].T @ u
""",
    "channels": """
        D = diag(sigmoid(x)) @ S[t-1]
        S[t] = D + uk @ diag(be) @ (v - uk.T @ D)
        o = S[t].T @ q
""",
    "values fade": """
        D = sigmoid(a) * S[t-1] @ diag(sigmoid(z))
        S[t] = D + uk @ diag(be) @ (v - uk.T @ D)
        o = S[t].T @ q + D.T @ u
""",
    "before the decay": """
        S[t] = sigmoid(a) * S[t-1] - uk @ diag(be) @ (uw.T @ S[t-1] - v)
        o = S[t].T @ q + S[t-1].T @ u
""",
    "forgotten at times": """
        g = where(a > 0, sigmoid(a), 0)
        S[t] = g * S[t-1] - uk @ diag(be) @ (uw.T @ S[t-1] - v)
        o = S[t].T @ q
""",
    "other keys": """
        D = diag(sigmoid(x)) @ S[t-1]
        S[t] = D - 0.5 * uk @ diag(be) @ (uw.T @ D) + u @ z.T - 0.3 * u @ (u.T @ D) + uw @ v
        o = S[t].T @ q
""",
    "only writes": """
        S[t] = diag(sigmoid(x)) @ S[t-1] + k @ v
        o = S[t].T @ q
""",
    "read at every key": """
        S[t] = sigmoid(a) * S[t-1] + k @ diag(b) @ v
        r = w.T @ S[t]
        o = sum[R](r) + sum[R](diag(b) @ w.T @ S[t-1])
""",
}


def spec(name: str, rank: int = 3) -> str:
    """A layer around a recurrence, with the inputs that it uses."""
    body = BODIES[name]
    values = "".join(f"    {n} = {value}\n" for n, value in NAMED.items() if used(n, body))
    text = f"{values}    recurrence S[K, V] over H:{body}    output o\n"
    inputs = ", ".join(f"{n}{axes}" for n, axes in INPUTS.items() if used(n, text))
    return f"layer Example(H, K, V, R = {rank}):\n    input {inputs}\n{text}"


def gate(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def token(name: str, S: Tensor, i: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The state after a token, and its output: by the formulas, with whole matrices."""
    k, w = (x / (x.square().sum(-2, keepdim=True) + 1e-6).sqrt() for x in (i["k"], i["w"]))
    strength = torch.diag_embed(gate(i["b"]) / 2)
    erase = k @ strength @ k.mT
    q, u, z = (i[n][..., None] for n in "quz")
    a, x = gate(i["a"])[..., None, None], torch.diag_embed(gate(i["x"]))
    if name == "a decay":
        new = a * (S - erase @ S) + k @ strength @ i["v"]
        return new, new.mT @ q
    if name == "no decay":
        new = S - erase @ S + k @ strength @ i["v"]
        return new, new.mT @ q + S.mT @ u
    if name in ("before the decay", "forgotten at times"):
        a = torch.where(i["a"] > 0, gate(i["a"]), 0)[..., None, None] if "times" in name else a
        new = a * S - k @ strength @ (w.mT @ S - i["v"])
        return new, new.mT @ q + (0 if "times" in name else S.mT @ u)
    if name == "channels":
        D = x @ S
        new = D - erase @ D + k @ strength @ i["v"]
        return new, new.mT @ q
    if name == "values fade":
        D = a * S @ torch.diag_embed(gate(i["z"]))
        new = D - erase @ D + k @ strength @ i["v"]
        return new, new.mT @ q + D.mT @ u
    if name == "other keys":
        D = x @ S
        new = D - 0.5 * k @ strength @ w.mT @ D + u @ z.mT - 0.3 * u @ u.mT @ D + w @ i["v"]
        return new, new.mT @ q
    if name == "only writes":
        new = x @ S + i["k"] @ i["v"]
        return new, new.mT @ q
    new = a * S + i["k"] @ torch.diag_embed(i["b"]) @ i["v"]
    before = torch.diag_embed(i["b"]) @ i["w"].mT @ S
    return new, (i["w"].mT @ new + before).sum(-2, keepdim=True).mT


def by_hand(name: str, inputs: dict[str, Tensor]) -> Tensor:
    """The outputs of a sequence, a token at a time."""
    batch, tokens, heads, keys = inputs["q"].shape
    S = inputs["q"].new_zeros(batch, heads, keys, inputs["v"].shape[-1])
    found = []
    for t in range(tokens):
        S, o = token(name, S, {n: each[:, t] for n, each in inputs.items()})
        found.append(o[..., 0])
    return torch.stack(found, 1)


def drawn(name: str, rank: int, tokens: int) -> dict[str, Tensor]:
    """Random inputs of a layer in float64."""
    generator = torch.Generator().manual_seed(rank)
    sizes = {"H": 2, "K": 4, "V": 3, "R": rank}
    found = {}
    for n, axes in INPUTS.items():
        shape = (2, tokens, *(sizes[size] for size in axes[1:-1].split(", ")))
        found[n] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return found


@pytest.mark.default(
    "1-a decay",
    "3-other keys",
    "1-channels",
    "3-only writes",
    "3-read at every key",
    "3-forgotten at times",
)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("rank", but([1, 2, 3, 4], [2, 4]))
def test_numbers_and_gradients(name: str, rank: int) -> None:
    """Of the module, by its chunks and token by token."""
    layer = parsed(spec(name))
    module = layer.module(H=2, K=4, V=3, R=rank, dtype=torch.float64)
    every = drawn(name, rank, 70)
    given = {op.name: every[op.name].requires_grad_() for _, op in layer.layer.inputs}
    wanted, found = by_hand(name, every), module(**given)
    assert torch.allclose(found, wanted, 1e-9, 1e-9)
    seen = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).double()
    for one, other in zip(
        torch.autograd.grad(found, [*given.values()], seen),
        torch.autograd.grad(wanted, [*given.values()], seen),
        strict=True,
    ):
        assert torch.allclose(one, other, 1e-8, 1e-8)


@pytest.mark.default("a decay", "values fade")
@pytest.mark.parametrize("name", BODIES)
def test_rows_of_a_chunk(name: str) -> None:
    """A token has a row for each key, and nothing stays a loop or a matrix along K; in float64."""
    made = before_chunks(parsed(spec(name)).layer)
    (node,) = (each for each in made.graph if isinstance(each.op, ir.Recurrence))
    (form,) = normal_forms(node.op)
    assert form.kind == MATRIX and form.forms[0].steps[0].rank is not None
    assert not loops(made)
    for tokens, chunk in ((9, 4), (5, 16), (1, 1), (0, 4)):
        check_graphs(spec(name), tokens, chunk)


@pytest.mark.default("a decay", "other keys")
@pytest.mark.parametrize("name", BODIES)
def test_modules_and_functions(name: str) -> None:
    """Chunks, steps, both by turns, and packed sequences, by the emitted code."""
    check_module(spec(name))
    check_op(spec(name))


@pytest.mark.default("a decay")
@pytest.mark.parametrize("name", ["a decay", "channels", "only writes"])
def test_a_sequence_in_parts(name: str) -> None:
    """By the composition law."""
    layer = parsed(spec(name))
    inputs = random_inputs(layer)
    *whole, state = layer.op(*inputs)
    *found, end = archc.law.split(layer.op, layer.law, inputs, 3, chunk=8)
    assert near([*whole, *state], [*found, *end])


def test_of_many_keys_a_token_is_a_matrix() -> None:
    """A chunk of them would have more rows than kernels have room for."""
    for rank, rows in ((4, True), (5, False)):
        ready = in_chunks(before_chunks(parsed(spec("a decay", rank)).layer))
        (form,) = (n.op.chunked for n in ready.graph if isinstance(n.op, ir.Recurrence))
        assert any(isinstance(node.op, ck.Inverse) for node in form.forward) == rows
    module = parsed(spec("a decay", 5)).module(H=2, K=4, V=3, R=5, dtype=torch.float64)
    every = drawn("a decay", 5, 40)
    found = module(**{name: every[name] for name in "qkvab"})
    assert torch.allclose(found, by_hand("a decay", every), 1e-9, 1e-9)


def test_what_was_read_at_every_key_is_written_at_every_key() -> None:
    """Not as a number for each element of the other state at each token."""
    text = """layer Example(H, K, V, R = 2):
    input q[H, K], k[H, R, K], v[H, R, V], a[H]
    recurrence S[K, V], M[K, V] over H:
        r = k @ S[t-1]
        S[t] = sigmoid(a) * S[t-1] + k.T @ v
        M[t] = sigmoid(a) * M[t-1] + k.T @ r
        o = M[t].T @ q
    output o
"""
    layer = parsed(text)
    made = before_chunks(layer.layer)
    (node,) = (each.op for each in made.graph if isinstance(each.op, ir.Recurrence))
    for form in normal_forms(node):
        assert form.kind == MATRIX and form.forms[0].steps[0].rank is not None
    every = drawn("only writes", 2, 20)
    every["k"] = every["k"].mT
    q, k, v, a = (every[name] for name in "qkva")
    S = M = torch.zeros(2, 2, 4, 3, dtype=torch.float64)
    for t in range(20):
        g, r = gate(a[:, t])[..., None, None], k[:, t] @ S
        S, M = g * S + k[:, t].mT @ v[:, t], g * M + k[:, t].mT @ r
    found = layer.module(H=2, K=4, V=3, dtype=torch.float64)(q, k, v, a)
    assert torch.allclose(found[:, -1, ..., None], M.mT @ q[:, -1, ..., None], 1e-9, 1e-9)


@pytest.mark.slow
def test_no_program_holds_the_products_of_a_read_at_every_key() -> None:
    """Rows, keys, and a dim of each side: of 64 each they are more than Triton lets a tile have."""
    made = programs_of(parsed(spec("read at every key")).layer)
    every = [s for program in made.values() for s in statements(program.body)]
    assert max(len(value.type.dims) for s in every for value in s.results) == 3

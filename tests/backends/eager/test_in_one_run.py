"""Which layers take packed sequences in one run; either way each sequence is as if alone."""

from __future__ import annotations

from itertools import pairwise
from textwrap import dedent

import pytest
import torch
from archc.backends.eager.packed import in_one_run

import archc
from archc.compile import whole_for_kernels
from archc.runtime import listings

HEAD = "layer Made(d, K = 4):\n    input x[d]\n"
SUM = """    recurrence S[d]:
        S[t] = 0.5 * S[t-1] + x
        o = S[t]
"""

ATTENTION = """    q = x
    attend s <= t:
        a = softmax(q[t].T @ x[s])
        o = a @ x[s]
    output y[d] = o
"""

AT_ONCE = {
    "each token": "    param W[d, K]\n    output y[K] = silu(x @ W)\n",
    "norms and weights over dims": "    output y[d] = softmax[d](l2norm[d](x)) * mean[d](x)\n",
    "the tokens before": "    param c[d, K]\n    output y[d] = shortconv(x, c)\n",
    "windows of tokens": "    output y[d] = sum[K](window[K](x))\n",
    "a recurrence": SUM + "    output y[d] = o\n",
    "a number of each token": "    param w[d]\n    output y = sum[d](x * w)\n",
    "positions": "    output y[d] = x * position(x)\n",
    "an attention": ATTENTION,
    "both ways": ATTENTION.replace("s <= t", "all s"),
    "a window, and the place of a token": """    param c[d, K]
    q = rope_half[d](shortconv(x, c), 100)
    attend t - 3 < s <= t:
        a = softmax(q[t].T @ x[s] / (1 + t) - log(1 + t - s))
        o = a @ x[s]
    output y[d] = o
""",
}

ONE_BY_ONE = {
    "scores that leave": ATTENTION.replace("y[d] = o", "a"),
    "chosen tokens": ATTENTION.replace("o = a @ x[s]", "u = a @ x[s]").replace(
        "    output",
        """    chosen = top(2, a)
    attend s <= t in chosen:
        o = softmax(q[t].T @ x[s]) @ x[s]
    output""",
    ),
    "the mean of all tokens": "    output y[d] = x - mean[t](x)\n",
    "of all sequences": "    output y[d] = x - mean[batch, t](x)\n",
    "a value of each sequence": "    output y[d] = mean[t](x)\n",
}


def looks_the_same(text: str) -> None:
    """Packed, a sequence is what it is by itself: empty ones, short ones and long ones."""
    made = archc.parse(text).module(d=4, dtype=torch.float64)
    bounds = [0, 0, 1, 6, 6, 25]
    x = torch.randn(1, 25, 4, dtype=torch.float64, requires_grad=True)
    y = made(x, cu_seqlens=torch.tensor(bounds))
    alone = torch.cat([made(x[:, a:b]) for a, b in pairwise(bounds)], 1)
    torch.testing.assert_close(y, alone)
    slopes = [torch.autograd.grad(made.sin().sum(), x)[0] for made in (y, alone)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("what", AT_ONCE)
def test_what_goes_through_in_one_run(what: str) -> None:
    assert in_one_run(archc.parse(HEAD + AT_ONCE[what]).layer)
    looks_the_same(HEAD + AT_ONCE[what])


@pytest.mark.parametrize("what", ONE_BY_ONE)
def test_what_looks_along_all_tokens_goes_one_by_one(what: str) -> None:
    spec = archc.parse(HEAD + ONE_BY_ONE[what])
    assert not in_one_run(spec.layer)


def test_packed_sequences_of_an_attention_go_on_from_their_states() -> None:
    """Each keeps as much as it has seen; padding goes the way of borders."""
    made = archc.parse(HEAD + AT_ONCE["a window, and the place of a token"]).module(d=4)
    x, borders = torch.randn(1, 12, 4), torch.tensor([0, 5, 12])
    y, state = made(x, cu_seqlens=borders, return_state=True)
    torch.testing.assert_close(y, made(x, cu_seqlens=borders))
    more = made(x[:, :4], cu_seqlens=torch.tensor([0, 1, 4]), state=state)
    wanted = [made(torch.cat([x[:, :5], x[:, :1]], 1))[:, 5:]]
    wanted += [made(torch.cat([x[:, 5:], x[:, 1:4]], 1))[:, 7:]]
    torch.testing.assert_close(more, torch.cat(wanted, 1))
    mask = torch.arange(6) < torch.tensor([[6], [4]])
    padded = made(x.view(2, 6, 4), attention_mask=mask)
    torch.testing.assert_close(padded[1, :4], made(x[:, 6:10])[0])


@pytest.mark.parametrize("what", ["an attention", "a window, and the place of a token"])
def test_a_nan_stays_in_its_packed_sequence(what: str) -> None:
    """Also where sequences of one length are done together, and in the gradient."""
    made = archc.parse(HEAD + AT_ONCE[what]).module(d=4)
    x = torch.randn(1, 12, 4)
    x[0, 5] = torch.nan
    x.requires_grad_()
    y = made(x, cu_seqlens=torch.tensor([0, 4, 8, 12]))
    (slope,) = torch.autograd.grad(y[:, :4].sum() + y[:, 8:].sum(), x)
    for found in (y, slope):
        assert found[:, :4].isfinite().all() and found[:, 8:].isfinite().all()


def test_a_stack_of_attentions_is_called_once_each() -> None:
    text = f"""{HEAD}{ATTENTION}
block Outer(d, L = 2):
    input x[d]
    repeat L as l:
        x = x + Made(d)(x)
    output y[d] = x
"""
    made = archc.parse(text).module(d=4)
    x, borders, calls = torch.randn(1, 9, 4), torch.tensor([0, 4, 9]), list[int]()
    for layer in made.get_submodule("layers").children():
        layer.register_forward_hook(lambda *_: calls.append(1))
    y = made(x, cu_seqlens=borders)
    assert len(calls) == 2
    torch.testing.assert_close(y, torch.cat([made(x[:, :4]), made(x[:, 4:])], 1))


INDEXED = """    param W[d, d']
    v = x @ W
    index s <= t:
        I = sum[d]({score})
    chosen = top(3, I)
    attend s <= t{chosen}:
        o = softmax(x[t].T @ x[s]) @ v[s]
    output y[d] = o
"""


def indexed(score: str = "relu(x[t] * x[s]) - (t - s)", chosen: str = " in chosen") -> str:
    """A layer whose tokens choose others, one by one."""
    return HEAD + INDEXED.format(score=score, chosen=chosen)


@pytest.mark.parametrize("room", [1 << 26, 60])
def test_tokens_that_are_chosen_one_by_one(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one run where lists are made; each as if alone, values and gradients, NaN too."""
    spec = archc.parse(indexed())
    assert in_one_run(whole_for_kernels(spec.layer)) and not in_one_run(spec.layer)
    monkeypatch.setattr(listings, "PAIRS", room)
    made = spec.module(d=4, backend="triton", dtype=torch.float64)
    x, bounds = torch.randn(1, 21, 4, dtype=torch.float64, requires_grad=True), [0, 4, 4, 6, 17, 21]
    y = made(x, cu_seqlens=torch.tensor(bounds))
    alone = torch.cat([made(x[:, a:b]) for a, b in pairwise(bounds)], 1)
    torch.testing.assert_close(y, alone)
    d = torch.randn_like(y)
    found, wanted = (torch.autograd.grad(o, [x, *made.parameters()], d) for o in (y, alone))
    torch.testing.assert_close(found, wanted)
    lost = x.detach().clone()
    lost[0, 5] = torch.nan
    y = made(lost, cu_seqlens=torch.tensor(bounds))
    assert y[:, :4].isfinite().all() and y[:, 6:].isfinite().all()


@pytest.mark.parametrize(
    "text",
    [indexed(score="x[t] * x[s] * s"), indexed(score="x[t] * x[s] / (1 + t)"),
     indexed().replace("x[t].T @ x[s]", "x[t].T @ x[s] / (1 + s)"),
     indexed().replace("index s <= t", "index all s")],
)  # fmt: skip
def test_choices_that_tell_places_or_are_not_all_that_is_read(text: str) -> None:
    assert not in_one_run(whole_for_kernels(archc.parse(text).layer))


def test_another_sequence_goes_one_by_one() -> None:
    assert not in_one_run(archc.load("cross_attention").layer)


@pytest.mark.parametrize(
    ("inputs", "output", "wanted"),
    [
        ("x in K", "E[x]", True),
        ("x[d]; input c[d]", "x * c", True),
        ("x[d]; input c[d] optional", "x * c", True),
    ],
)  # fmt: skip
def test_inputs_that_stand_at_every_token(inputs: str, output: str, wanted: bool) -> None:
    lines = "\n    ".join(["layer Made(d, K = 4):", *f"input {inputs}".split("; ")])
    table = "    param E[K, d]\n" if "E[" in output else ""
    text = f"{lines}\n{table}    output y[d] = {output}\n"
    assert in_one_run(archc.parse(text).layer) is wanted


def test_layers_that_are_called() -> None:
    """As what they do themselves."""
    inside = ((AT_ONCE["an attention"], True), (ONE_BY_ONE["the mean of all tokens"], False))
    for inner, wanted in inside:
        text = f"{HEAD}{inner}\nblock Outer(d):\n    input x[d]\n    output y[d] = Made(d)(x)\n"
        assert in_one_run(archc.parse(text).layer) is wanted


def test_tokens_go_through_in_one_run_like_vectors() -> None:
    """An input that is a number for each token, and nothing more."""
    text = """
    layer Embedded(d, n):
        input tokens in n
        param E[n, d]
        x = E[tokens]
        recurrence h[d]:
            h[t] = sigmoid(x) * h[t-1] + x
        output y = h
    """
    assert in_one_run(archc.parse(dedent(text)).layer)


def test_more_tokens_than_a_table_has_positions_for() -> None:
    """Of packed sequences each has positions of its own; those that were seen count."""
    text = HEAD + "    param P[K, d]\n    output y[d] = x + P[t]\n"
    made, x = archc.parse(text).module(d=3, K=6), torch.randn(1, 10, 3)
    borders = torch.tensor([0, 4, 10])
    assert made(x, cu_seqlens=borders).shape == (1, 10, 3)
    _, state = made(x[:, :4], return_state=True)
    told = r"Made: `P` has positions for 6 tokens, and a sequence has {} with those seen before"
    for given, seen in (
        ({"x": x}, 10), ({"x": x[:, :3], "state": state}, 7),
        ({"x": x, "cu_seqlens": torch.tensor([0, 3, 10])}, 7),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=told.format(seen)):
            made(**given)


def test_a_state_of_a_model_of_the_same_name() -> None:
    one, other = (archc.load("lm", L=n).module(vocab=5, d=4, H=1, f=4) for n in (1, 2))
    tokens = torch.zeros(1, 2, dtype=torch.int64)
    _, state = other(tokens, return_state=True)
    with pytest.raises(TypeError, match="an instance of LMState, got LMState, that of another mod"):
        one(tokens, state=state)

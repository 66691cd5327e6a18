"""A value that has the name of an index is refused wherever either is bound, and both are named."""

from __future__ import annotations

import pytest

from tests.elaborate.specs import codes, refusal

IN_A_LAYER = {
    "a value": "    {n} = 2 * x\n    y = x * {n}\n",
    "a number": "    {n} = 1\n    y = x * {n}\n",
    "a parameter": "    param {n}[d]\n    y = x * {n}\n",
    "an input": "    input {n}[d]\n    y = x * {n}\n",
    "a state": "    recurrence {n}[d]:\n        {n}[t] = {n}[t-1] + x\n    y = 1 * {n}\n",
    "a part": "    param P[d, 2]\n    {n}, m2 = x @ P by 2\n    y = x * {n} * m2\n",
    "in a recurrence": (
        "    recurrence S[d]:\n        {n} = 2 * x\n        S[t] = S[t-1] + {n}\n    y = 1 * S\n"
    ),
}
INDICES = {
    "s": "    attend s <= t:\n        o = softmax(x[t].T @ x[s]) @ x[s]\n",
    "m": "    input c[d] along m\n    attend all m:\n        o = softmax(x[t].T @ c[m]) @ c[m]\n",
    "b": "    blocks b of 2 every 2:\n        k = mean[2](x[b])\n"
    "    attend b ending <= t:\n        o = softmax(x[t].T @ k[b]) @ k[b]\n",
    "r": "    f = sum[d](x)\n    attend s <= t:\n"
    "        o = softmax(sum r in (s, t]: f[r]) @ x[s]\n",
    "e": "    param W_r[d, E]; W[E, d, d']\n    route e in top(1, x @ W_r):\n"
    "        o = x @ W[e]\n",
    "l": "    o = x\n    repeat 2 as l:\n        o = o + l * x\n",
}


@pytest.mark.parametrize("kind", IN_A_LAYER)
@pytest.mark.parametrize("index", ["t", *INDICES])
def test_a_value_with_the_name_of_an_index(index: str, kind: str) -> None:
    """In any order of the two, and never a wrong reading of either."""
    head = "layer L(d, E = 4):\n    input x[d]\n"
    value, block = IN_A_LAYER[kind].format(n=index), INDICES.get(index, "    o = x\n")
    end = "    output z[d] = y + o\n"
    for body in (value + block, block + value):
        assert codes(head + body + end) == ["E0210"], body
        assert f"`{index}`" in refusal(head + body + end)
    fine = head + block + IN_A_LAYER[kind].format(n="free") + end
    assert codes(fine) == []


@pytest.mark.parametrize("index", ["t", *INDICES])
def test_a_size_with_the_name_of_an_index(index: str) -> None:
    block = INDICES.get(index, "    o = x\n")
    text = f"layer L(d, {index}, E = 4):\n    input x[d]\n{block}    output y = o * {index}\n"
    assert codes(text) == ["E0210"]


@pytest.mark.parametrize(
    "block",
    [
        "    input c[d] along t\n    o = x\n",
        "    blocks t of 2 every 2:\n        k = mean[2](x[t])\n    o = x\n",
        "    param W_r[d, E]\n    route t in top(1, x @ W_r):\n        o = x\n",
        "    o = x\n    repeat 2 as t:\n        o = o + x\n",
        "    o = x\n    repeat 2 as l:\n        param E[d]\n        o = o * E\n",
        "    attend s <= t:\n        o = softmax(sum s in (s, t]: 1 + 0 * x[s].T @ x[s]) @ x[s]\n",
        "    attend s <= t:\n        o = softmax(sum d in (s, t]: 1 + 0 * x[d].T @ x[d]) @ x[s]\n",
        "    attend s <= t:\n        s = 1\n        o = softmax(x[t].T @ x[s]) @ x[s]\n",
        "    attend s <= t:\n        s = x[t].T @ x[s]\n        o = softmax(s) @ x[s]\n",
        "    blocks b of 2 every 2:\n        k = mean[2](x[b])\n"
        "    blocks b of 3 every 3:\n        k2 = mean[3](x[b])\n    o = x\n",
        "    blocks d of 2 every 2:\n        k = mean[2](x[d])\n    o = x\n",
    ],
)
def test_an_index_with_the_name_of_another_or_of_a_dim(block: str) -> None:
    text = f"layer L(d, E = 4):\n    input x[d]\n{block}    output y = o + 0 * x\n"
    assert codes(text)[:1] == ["E0210"]


@pytest.mark.parametrize(
    "block",
    [
        "    repeat 2 as l:\n        y = x\n        repeat 3 as l:\n            y = y / 2 + l\n"
        "        x = y + l\n",
        "    param W_r[d, E]; W[E, d, d']\n    repeat 2 as e:\n"
        "        route e in top(1, x @ W_r):\n            o = x @ W[e]\n        x = o\n",
    ],
)
def test_an_index_within_a_block_of_the_same_index(block: str) -> None:
    """The outer one could not be read; as layers, a file of it had two arguments of one name."""
    text = f"layer L(d, E = 4):\n    input u[d]\n    x = u\n{block}    output o_ = x\n"
    assert codes(text)[:1] == ["E0210"]
    side = block.replace("repeat 3 as l", "repeat 3 as j").replace("repeat 2 as e", "repeat 2 as l")
    assert codes(text.replace(block, side)) == []


def test_a_function_may_name_its_arguments_as_it_likes() -> None:
    """Inside, there are no tokens: `t` is a number like another; not beside an `attend`."""
    text = (
        "function lerp(a, b, t):\n    s = 1 - t\n    return s * a + t * b\n"
        "layer L(d):\n    input x[d]\n    output y = lerp(x, x[t-1], 1 / 2)\n"
    )
    assert codes(text) == []


def test_the_refusal_of_an_attend_over_a_value_names_it() -> None:
    text = (
        "layer L(d):\n    input x[d]\n    s = 1 / sqrt(d)\n    attend s <= t:\n"
        "        o = softmax(x[t].T @ x[s]) @ x[s]\n    output o\n"
    )
    assert "`s` is a value or size already" in refusal(text)


@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ("x[d], c[d] along m", ["E0228"]),
        ("x[d], tokens in d", ["E0228"]),
        ("x[d], i in d", ["E0228"]),
        ("x[d]; input c[d], e[d] along m", []),
        ("x[d]; input tokens, targets in d", []),
        ("x[d], c[d]", []),
    ],
)
def test_what_stands_behind_several_inputs(inputs: str, code: list[str]) -> None:
    """`x[d], c[d] along m` had both along m: attention over c was of one c to another."""
    text = f"layer L(d):\n    input {inputs}\n    output y = x\n".replace("; ", "\n    ")
    assert codes(text) == code
    assert not code or f"then `input {inputs.partition(', ')[2]}`" in refusal(text)


def test_inputs_share_no_dims() -> None:
    """`q, k[d]` had one number a token for q, where parameters share what follows."""
    text = "layer L(d):\n    input x, z, q[d], p[]\n    output y = x + z * q + p\n"
    assert codes(text) == ["E0228"]
    assert "write `x[d], z[d]`; one number a token is `x[]`" in refusal(text)
    for given in ("x[d], z[d],", "x[], z[],"):
        assert codes(text.replace("x, z,", given)) == []


def test_a_sequence_is_no_dim() -> None:
    text = "layer L(d):\n    input x[d]\n    input c[d] along m\n    output y = x + sum[m](c)\n"
    assert codes(text) == ["E0202"]
    assert "it is a sequence: read it token by token in `attend all m:`" in refusal(text)


def test_a_reader_that_is_of_another_sequence() -> None:
    text = (
        "layer L(d):\n    input x[d]\n    input c[d] along m\n    w = 2 * c\n    attend all m:\n"
        "        o = softmax(w[t].T @ c[m]) @ c[m]\n    output y = o + x\n"
    )
    assert codes(text) == ["E0306"]

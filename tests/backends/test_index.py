"""Named axes as torch indexing: the text, run, gives the shape that names promise."""

from __future__ import annotations

import itertools

import pytest
import torch
from archc.backends.expression import Text, negative
from archc.backends.index import aligned, dims, einsum, permuted

LENGTHS = {"a": 2, "b": 3, "c": 4, "d": 5}


def run(text: str, **names: torch.Tensor) -> torch.Tensor:
    return eval(text, {"torch": torch, **names})


def tensor(layout: str) -> torch.Tensor:
    """Values that tell where they came from: digit i is the place along axis i of the alphabet."""
    x = torch.zeros([LENGTHS[n] for n in layout])
    for place, name in enumerate(layout):
        shape = [1] * len(layout)
        shape[place] = -1
        x = x + 10.0 ** "abcd".index(name) * torch.arange(LENGTHS[name]).reshape(shape)
    return x


@pytest.mark.parametrize("want", ["abcd", "dbca", "cadb"])
@pytest.mark.parametrize("length", [0, 1, 2, 3, 4])
def test_aligned_broadcasts_by_name(want: str, length: int):
    for have in itertools.permutations("abcd", length):
        x = tensor("".join(have))
        got = run(aligned(Text("x"), have, want).text, x=x)
        shape = [LENGTHS[n] for n in want]
        expected = torch.zeros(shape)
        for place, name in enumerate(want):
            if name in have:
                view = [1] * 4
                view[place] = -1
                expected += 10.0 ** "abcd".index(name) * torch.arange(LENGTHS[name]).reshape(view)
        assert torch.equal(got.expand(shape), expected)


@pytest.mark.parametrize("want", list(itertools.permutations("abcd")), ids="".join)
def test_permuted(want: tuple[str, ...]):
    got = run(permuted(Text("x"), "abcd", want).text, x=tensor("abcd"))
    assert torch.equal(got, tensor("".join(want)))


def test_what_is_in_place_is_left_alone():
    assert aligned(Text("x"), "ab", "ab").text == "x"
    assert aligned(Text("gain"), "d", "abd").text == "gain"
    assert aligned(Text("beta"), "ab", "abd").text == "beta[..., None]"
    assert aligned(Text("a"), "b", "abd").text == "a[:, None]"
    assert aligned(negative(Text("a")), "b", "abd").text == "-a[:, None]"
    assert permuted(Text("x"), "abcd", "abdc").text == "x.mT"


def test_dims_of_a_reduction():
    assert dims("abc", "c") == "-1"
    assert dims("abc", "b") == "1"
    assert dims("abcd", "bc") == "(1, 2)"


def test_einsum_names_axes_apart():
    text = einsum(
        [Text("x"), Text("y")], [["batch", "b", "Kx"], ["Kx", "K'"]], ["batch", "b", "K'"]
    )
    x, y = torch.randn(2, 3, 4), torch.randn(4, 5)
    assert torch.allclose(run(text.text, x=x, y=y), x @ y)

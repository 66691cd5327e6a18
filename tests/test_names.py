"""Every legal name works in every role that names have: the file is the same program but for its
names. The names that are tried are those that a generated file itself uses, read off its text."""

from __future__ import annotations

import ast
import builtins
import keyword
import random
from functools import cache

import pytest
import torch

import archc
from archc.compile import file_of, text_of
from archc.diagnostics import ArchError
from tests.names import NEUTRAL, SLOTS, Different, compare, spec

LETTERS = "zjqwyxkvbpgfuhm"


@cache
def words() -> tuple[str, ...]:
    """Every word of the files that a neutral spec gives, and those of Python and torch."""
    found = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *dir(torch.nn.Module())}
    layer = archc.parse(spec({})).layer
    for node in (n for b in ("eager", "triton") for n in ast.walk(ast.parse(text_of(layer, b)))):
        for name in ("id", "attr", "arg", "name"):
            word = getattr(node, name, None)
            found |= {word} if isinstance(word, str) else set()
    return tuple(sorted(word for word in found if not any(n in word for n in NEUTRAL.values())))


def legal(names: dict[str, str]) -> bool:
    """Whether a spec with these names is accepted."""
    try:
        archc.parse(spec(names))
    except ArchError as refused:
        assert {finding.code for finding in refused.diagnostics} <= CODES, refused
        return False
    return True


CODES = {"E0011", "E0012", "E0013", "E0014", "E0015", "E0019", "E0201", "E0203", "E0205", "E0210",
         "E0314"}  # fmt: skip
"""How a name is refused: it is no name there, it is reserved, or something has it already."""


def twin(word: str) -> str:
    """A name of the same length that sorts nearly as the word does, and that nothing has."""
    for place in range(len(word) - 1, -1, -1):
        for letter in LETTERS:
            new = word[:place] + (letter.upper() if word[place].isupper() else letter)
            new += word[place + 1 :]
            if not {new, f"{new}_"} & {*words(), *NEUTRAL.values()}:
                return new
    return f"{word}zz"


def attempt(names: dict[str, str], *backends: str) -> None:
    """Compile a spec with these names and one with others, and compare the files."""
    others = {slot: twin(word) for slot, word in names.items()}
    if len({*others.values()}) < len(others):
        others = {slot: word + LETTERS[i % 15] * 2 for i, (slot, word) in enumerate(others.items())}
    for backend in backends:
        first, second = (text_of(archc.parse(spec(n)).layer, backend) for n in (others, names))
        compile(second, "<names>", "exec")
        alike = compare(first, second)
        assert alike > len(ast.parse(second).body) // 3


def drawn(seed: int) -> dict[str, str]:
    """A name for each slot; what is refused goes to no slot."""
    known = [word for word in words() if len(word) > 2]  # no twin of a letter sorts as it does
    found = dict(zip(SLOTS, random.Random(seed).sample(known, len(SLOTS)), strict=True))
    if not legal(found):
        found = {slot: word for slot, word in found.items() if legal({slot: word})}
    return found


# What was refused by a crash, or gave a file that does not run.
HARD = {
    "input_b": "id", "input_c": "type", "value_a": "saved", "value_b": "F", "value_c": "pos",
    "value_d": "past", "value_e": "max", "value_g": "T", "size_c": "B", "size_b": "number_of_heads",
    "state_a": "layer", "state_b": "LayerState", "param_b": "half", "param_c": "_parameters",
    "option_b": "min", "output_c": "len", "index_b": "torch_", "Layer": "Layer",
}  # fmt: skip


def test_names_that_files_use() -> None:
    attempt(HARD, "eager")
    file_of(archc.parse(spec(HARD)).layer)  # raises where numbers are not those of the spec


@pytest.mark.slow
def test_some_names_in_files_with_kernels() -> None:
    attempt(drawn(0), "eager", "triton")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 121))
def test_thousands_of_names(seed: int) -> None:
    names = drawn(seed)
    attempt(names, "eager", "triton")
    file_of(archc.parse(spec(names)).layer)


MEMORY = """
layer Memory({keys}, {values}, {number}, d, H):
    input x[d]
    param W_q, W_k[d, H, {keys}]; W_v[d, H, {values}]; W_f[d, H]; E[{number}, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    f = sigmoid(x @ W_f)
    recurrence S[{keys}, {values}] over H:
        S[t] = f * S[t-1] + k @ v.T / {number}
        o = S[t].T @ q
    output y = o * {values}
    output more = x + sum[{number}](E)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [("i", "T_m", "T"), pytest.param(("segment", "T", "T_seen"), marks=pytest.mark.slow)]
)
def test_sizes_with_the_names_of_the_compiler_s_own(names: tuple[str, ...]) -> None:
    """Dims that are called as tokens are, and a number that no shape tells as how many."""
    alike = [names, tuple(map(twin, names))]
    second, first = (
        text_of(archc.parse(MEMORY.format(keys=k, values=v, number=n)).layer, "triton")
        for k, v, n in alike
    )
    assert compare(first, second) > len(ast.parse(second).body) // 3


SIZES = {"size_b": "T", "size_c": "segments", "size_d": "T_iz", "size_e": "T_seen"}


def test_sizes_that_are_called_as_lengths_are() -> None:
    """`T` has nothing to do with how many tokens there are, also where few of them are decoded."""
    layer = archc.parse(spec(SIZES)).layer
    file_of(layer)  # raises where numbers are not those of the spec
    assert not legal({"size_b": "batch"})


def test_two_names_that_are_one_in_python() -> None:
    assert not legal({"param_b": "half", "option_b": "half_"})
    assert not legal({"input_b": "id", "value_c": "id_"})
    assert legal({"input_b": "id", "param_a": "id_"})  # layers of their own


CELL = """layer Cell(d, K, w = 4):
    input x[d]
    param W[d, K], {0}[K, K']
    p = x @ W
    first = where(index[w] == 0, 1, 0)
    recurrence h[K], {1}[w, K]:
        h[t] = tanh(p + {0} @ h[t-1] + take[w]({1}[t-1], w - 1))
        {1}[t] = first @ h[t].T
    output y = h
"""


@pytest.mark.default("rows")
@pytest.mark.parametrize("name", ["rows", "weights", "moving"])
def test_names_of_a_function_of_steps(name: str) -> None:
    """What a cell's parameter or state is called is something else to the launch of its kernel."""
    for names in ((name, "kept"), ("U", name)):
        archc.parse(CELL.format(*names)).source("triton")  # raises where a name is not defined


SCAN = """layer Scan(d, K):
    input x[d]
    param W_a, W_b[d, K]
    a = sigmoid(x @ W_a)
    b = x @ W_b
    recurrence {0}[K]:
        {0}[t] = a * {0}[t-1] + b
        o = {0}[t]
    output y = o
"""


@pytest.mark.default("local")
@pytest.mark.parametrize("name", ["kept", "local"])
def test_names_of_a_scan_of_chunks(name: str) -> None:
    """What a state is called is something else to the scan along chunks: what a chunk keeps."""
    torch.manual_seed(0)
    found = archc.parse(SCAN.format(name)).module(d=4, K=3, dtype=torch.float64)
    torch.manual_seed(0)
    plain = archc.parse(SCAN.format("S")).module(d=4, K=3, dtype=torch.float64)
    x = torch.randn(2, 150, 4, dtype=torch.float64)
    torch.testing.assert_close(found(x), plain(x), rtol=0, atol=0)
    archc.parse(SCAN.format(name)).source("triton")


def test_a_capture_is_noticed() -> None:
    """What the comparison is for: a local that hides what the function calls."""
    first = "def f(a, g): return a + g\ndef h(x): return f(x, x)"
    assert compare(first, first.replace("x", "y")) == 2
    with pytest.raises(Different):
        compare(first, first.replace("x", "f"))
    with pytest.raises(Different):
        compare(first, first.replace("g", "a"))


def test_names_in_python() -> None:
    """What a caller writes: the spec's word, with an underscore where Python has it already."""
    layer = archc.parse(spec(HARD)).module(
        number_of_heads=4, B=2, **{NEUTRAL[size]: 3 for size in ("size_d", "size_e")}
    )
    x, c = torch.randn(1, 5, 4), torch.randn(1, 5, 2)
    assert torch.equal(layer(x, c)[0], layer(id_=x, type_=c)[0])
    assert {"half_", "_parameters_"} <= set(dict(layer.named_parameters()))
    with pytest.raises(ValueError, match=r"must be \[batch, T, number_of_heads\]"):
        layer(torch.randn(1, 5, 5), c)

"""Generated kernels, forward and gradient, against the eager form in float64: under Triton's
interpreter, with buffers that hold no numbers before they are written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.backends.triton.processes import printed
from tests.gpu.cases import CHANNELS

pytest.importorskip("triton")

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "mamba", "mesa", "mlstm", "mom", "rwkv7", "ssm", "ssm_selective",
)  # fmt: skip
"""Every bundled spec with a recurrence of its own that has a chunked form."""

CALLERS = "gla_block", "kimi_linear", "xlstm"
"""Those that call the layers of others, and have their kernels."""

OWN = Path(__file__).parent / "recurrences"
"""Recurrences unlike the bundled ones: nothing in the compiler was written for them."""

LIMIT = 1e-4


def errors(*checks: str) -> dict[str, float]:
    """The errors of some checks, done in one process."""
    found, check = {}, ""
    for line in printed("interpreted", ",".join(checks)):
        if line.startswith("== "):
            check = line
        else:
            name, _, error = line.rpartition(": ")
            found[f"{check}: {name}"] = float(error)
    assert len({name.split(":")[0] for name in found}) == len(checks)
    return found


def wrong(found: dict[str, float], limit: float = LIMIT) -> dict[str, float]:
    """What is off, or no number."""
    return {name: error for name, error in found.items() if not error < limit}


@pytest.mark.slow
def test_layers_with_dims_that_are_no_powers_of_2() -> None:
    """Gates for each dim with a delta rule, a running maximum, a solve; tokens fill no chunk.
    The programs of every kernel are held against their graphs elsewhere (`tests/lowering`); here
    the text is, and what launches it."""
    tokens = {"kda": 66, "mlstm": 63, "mesa": 17}
    assert not wrong(errors(*(f"layer {spec} {count} 4" for spec, count in tokens.items())))


@pytest.mark.default("by_element")
@pytest.mark.parametrize("name", ["by_element", "value_side", "turning", "several_keys"])
def test_recurrences_unlike_the_bundled_ones(name: str) -> None:
    """A gate for every element, corrections along the values, complex numbers, and tokens of
    several rows."""
    assert not wrong(errors(f"layer {OWN / name}.arch 17 4"))


@pytest.mark.slow
def test_large_states() -> None:
    """So large that they are multiplied and stored in blocks, or that a matrix goes along the rows
    one by one."""
    assert not wrong(errors("wide gated_delta_product 160 130", "wide ssm 130 16"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", ["delta", "gla", "kda", "linear_attention", "mesa", "mlstm", "rwkv7", "ssm"]
)
def test_heads_of_256(spec: str) -> None:
    """Products and stores of states in blocks, and a solve with one."""
    assert not wrong(errors(f"wide {spec} 200 256", f"wide {spec} 256 130"))


@pytest.mark.slow
def test_channels_with_long_states() -> None:
    """Too long to stand beside each other for every row: an index goes after the other."""
    assert not wrong(errors(f"layer {OWN / 'channels.arch'} 17 66"))


@pytest.mark.slow
def test_gates_that_forget_everything() -> None:
    """Logarithms of -1000 and -inf, in chunks of 16, with heads of 6 and 20."""
    assert not wrong(errors("gates gla 16 6 20"))


@pytest.mark.slow
def test_gates_that_forget_everything_in_long_chunks() -> None:
    """The same in chunks of 64, with heads of 60."""
    assert not wrong(errors("gates gla 64 60 60"))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_every_bundled_recurrence(spec: str) -> None:
    """One token more than steps are taken for, one less than a chunk has, and more than a chunk;
    dims of about 4 and 20. The small cases of `tests.gpu` are about other lengths."""
    checks = [f"layer {spec} {tokens} 4" for tokens in (17, 70)]
    checks += [f"layer {spec} 63 20"] if spec not in CHANNELS else []
    assert not wrong(errors(*checks))


@pytest.mark.slow
@pytest.mark.parametrize("spec", CALLERS)
def test_layers_that_call_others(spec: str) -> None:
    """Models are of a few layers, as all of a kind have the same kernels."""
    assert not wrong(errors(f"layer {spec} 20 4"))


@pytest.mark.slow
@pytest.mark.parametrize("spec", sorted(OWN.glob("*.arch")), ids=lambda path: path.stem)
def test_every_other_recurrence(spec: Path) -> None:
    assert not wrong(errors(*(f"layer {spec} {tokens} 4" for tokens in (16, 63, 70))))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["gla", "kda", "mesa", "mlstm", "mom", "ssm"])
def test_bfloat16(spec: str) -> None:
    """As near as eight bits let two orders of rounding be; lines of PyTorch between kernels meet no
    mixture."""
    assert not wrong(errors(f"layer {spec} 40 8 16"), 0.05)

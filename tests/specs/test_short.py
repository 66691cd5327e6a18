"""Specs are short, a variant of one is a small diff, and equal equations give equal layers."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest
import torch

import archc
from tests.specs.agreement import difference
from tests.specs.references.weights import randomise

SPECS = Path(__file__).parents[2] / "specs"
UPDATE = "        S[t] = (I - beta * k @ k.T) @ diag(alpha) @ S[t-1] + beta * k @ v.T\n"
READ = "        o    = S[t].T @ q / sqrt(K)\n"

SPELLINGS = {
    "error read after decay": {
        UPDATE: """\
        R    = diag(alpha) @ S[t-1]
        S[t] = R + beta * k @ (v - R.T @ k).T
""",
    },
    "expanded": {
        UPDATE: """\
        R    = diag(alpha) @ S[t-1]
        S[t] = R - beta * k @ (k.T @ R) + beta * k @ v.T
""",
    },
    "elementwise decay": {
        UPDATE: """\
        R    = alpha * S[t-1]
        S[t] = (I - beta * k @ k.T) @ R + beta * k @ v.T
""",
    },
    "transposed state": {
        "recurrence S[K, V]": "recurrence S[V, K]",
        UPDATE: "        S[t] = S[t-1] @ diag(alpha) @ (I - beta * k @ k.T) + beta * v @ k.T\n",
        READ: "        o    = S[t] @ q / sqrt(K)\n",
    },
}


def lines(name: str) -> list[str]:
    return (SPECS / f"{name}.arch").read_text(encoding="utf-8").splitlines()


def test_kda_fits_in_40_lines() -> None:
    assert len(lines("kda")) <= 40


def test_kda_is_a_small_change_of_gated_delta() -> None:
    """A changed line counts once."""
    matcher = difflib.SequenceMatcher(None, lines("gated_delta"), lines("kda"), autojunk=False)
    changed = [
        max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in matcher.get_opcodes() if tag != "equal"
    ]
    assert 0 < sum(changed) <= 10


@pytest.mark.parametrize("name", sorted(path.stem for path in SPECS.glob("*.arch")))
def test_every_spec_says_where_it_is_from(name: str) -> None:
    """The last declaration, for which the file stands, has a docstring that names its source."""
    text = "\n".join(lines(name))
    last = re.split(r"^(?:layer|block|model) ", text, flags=re.MULTILINE)[-1]
    assert re.search(r'"""[^"]*\bsource: \S[^"]*"""', last)


@pytest.mark.default("error read after decay", "transposed state")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_equal_equations_give_equal_layers(spelling: str) -> None:
    text = (SPECS / "kda.arch").read_text(encoding="utf-8")
    other = text
    for old, new in SPELLINGS[spelling].items():
        assert old in other
        other = other.replace(old, new)
    sizes = {"d": 12, "H": 2, "K": 5, "V": 4, "r": 3, "dtype": torch.float64}
    first = randomise(archc.parse(text).module(**sizes), seed=0)
    second = archc.parse(other).module(**sizes)
    second.load_state_dict(first.state_dict())
    x = torch.randn(2, 13, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert difference(second(x), first(x)) < 1e-12

"""Values made from positions alone, read at other tokens, against the formula in torch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.elaborate.forms import T, agree, randn
from tests.elaborate.specs import codes

HEAD = "layer L(d):\n    input x[d]\n    p = position(x)\n    f = sin(p) + cos(2 * p)\n"
P = torch.arange(T).double()
F = P.sin() + (2 * P).cos()
SEEN = torch.ones(T, T).tril().bool()


def attended(x: Tensor, score: Tensor) -> Tensor:
    """What past tokens weigh by these scores, beside those of x with itself."""
    return (x @ x.mT + score).masked_fill(~SEEN, -torch.inf).softmax(2) @ x


def past(f: Tensor, steps: int) -> Tensor:
    """f so many tokens earlier, 0 before the first."""
    return torch.cat([f.new_zeros(steps), f[: len(f) - steps]])


CASES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "in a score": (
        "    attend s <= t:\n        y = softmax(x[t].T @ x[s] + f[s] * p[t] - p[s]) @ x[s]\n",
        lambda x: attended(x, F * P[:, None] - P),
    ),
    "shifted, and then in a score": (
        "    g = f[t-2] + 1\n"
        "    attend s <= t:\n        y = softmax(x[t].T @ x[s] + g[s]) @ x[s]\n",
        lambda x: attended(x, past(F, 2) + 1),
    ),
    "along the path": (
        "    attend s <= t:\n        y = softmax(x[t].T @ x[s] + sum r in (s, t]: f[r]) @ x[s]\n",
        lambda x: attended(x, F.cumsum(0)[:, None] - F.cumsum(0)),
    ),
    "shifted": ("    y = f[t-2] * x\n", lambda x: past(F, 2)[:, None] * x),
    "of a window": (
        "    y = sum[3]((1 + index[3]) * window[3](f)) * x\n",
        lambda x: (past(F, 2) + 2 * past(F, 1) + 3 * F)[:, None] * x,
    ),
    "of blocks": (
        "    blocks b of 2 every 2:\n        k = mean[2](x[b])\n        g = sum[2](f[b])\n"
        "    attend b ending <= t:\n        y = sum[b](g[b] * k[b])\n",
        lambda x: torch.stack(
            [
                sum(
                    (F[2 * b : 2 * b + 2].sum() * x[:, 2 * b : 2 * b + 2].mean(1))
                    for b in range((t + 1) // 2)
                )
                + torch.zeros_like(x[:, 0])
                for t in range(T)
            ],
            1,
        ),
    ),
}


@pytest.mark.default("along the path", "shifted", "of a window", "of blocks")
@pytest.mark.parametrize("case", CASES)
def test_at_another_token(case: str) -> None:
    body, formula = CASES[case]
    x = randn(3)
    agree(f"{HEAD}{body}    output y\n", {"x": x}, formula(x), d=3)


def test_rows_of_a_table_by_a_function_of_the_position() -> None:
    """A product with a parameter keeps its axes; the oracle shares the weights."""
    text = (
        "layer L(d):\n    input x[d]\n    param E[3, d]; R[d, d'] = 2\n"
        "    e = E[position(x) % 3] @ R\n    g = e[t-1]\n"
        "    attend s <= t:\n        y = softmax(x[t].T @ e[s] + 0 * g[s].T @ x[t]) @ x[s]\n"
        "    output y\n"
    )
    import archc
    from tests.elaborate.forms import routes

    torch.manual_seed(1)
    made, x = archc.parse(text).module(d=3, dtype=torch.float64), randn(3)
    rows = (made.get_parameter("E").detach()[torch.arange(T) % 3]).sum(1, keepdim=True) * 2
    score = (x @ rows.expand(T, 3).mT).masked_fill(~SEEN, -torch.inf)
    for route, found in routes(text, {"x": x}, d=3):
        torch.testing.assert_close(found, score.softmax(2) @ x, msg=lambda m, r=route: f"{r}: {m}")


def test_an_attend_that_reads_nothing_is_refused() -> None:
    text = (
        f"{HEAD}    attend s <= t:\n        o = sum[s](1 / (1 + t - s))\n    output y = o * x + f\n"
    )
    assert codes(text) == ["E0314"]

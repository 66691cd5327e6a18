"""Systems with a state in their matrix: which are symmetric and positive definite, provably."""

from __future__ import annotations

from archc.algebra.simplify import simplify
from archc.functions.interval import UNIT, ZERO, Interval
from archc.ir import layer as ir
from archc.ir.refusal import Refusal
from archc.numerics.propagation import intervals
from archc.recurrence.affine.normalize import normal_forms
from archc.recurrence.chunk.implicit import System, systems
from tests.elaborate.specs import layer

HEAD = (
    "layer L(d, H, K):\n    input k[H, K], u[H, K], q[H, K], b[H], g[H], w[H, K], e[H, K]\n"
    "    param lam[H, K]\n    s = sigmoid(b)\n    c = sigmoid(g)\n    pos = exp(e)\n"
)
UPDATE = "c * A[t-1] + s * k @ k.T"
MATRIX = "A[t] + diag(softplus(lam))"


def found(
    matrix: str = MATRIX,
    update: str = UPDATE,
    right: str = "q",
    more: str = "",
    initial: Interval = ZERO,
) -> tuple[System, ...] | Refusal:
    """The systems of a recurrence with one state."""
    text = f"    recurrence A[K, K'] over H:\n        A[t] = {update}\n{more}"
    text += f"        z = solve({matrix}, {right})\n    output y = lam * z\n"
    model = simplify(layer(HEAD + text))
    node = next(node for node in model.graph if isinstance(node.op, ir.Recurrence))
    outside = intervals(model.graph)
    given = {n: outside[o] for n, o in zip(node.op.captures, node.operands, strict=False)}
    (form,) = normal_forms(node.op)
    return systems(node.op, form, "A", intervals(node.op.body, given), initial)


def system(**given: str) -> System:
    """The one system that is found."""
    answer = found(**given)  # pyright: ignore[reportArgumentType]
    assert not isinstance(answer, Refusal), answer
    (one,) = answer
    return one


def reason(**given: object) -> str:
    """Why there is none."""
    answer = found(**given)  # pyright: ignore[reportArgumentType]
    assert isinstance(answer, Refusal)
    return answer.reason


def test_a_state_and_a_diagonal() -> None:
    one = system()
    assert (one.row, one.col) == ("K", "K'")
    ((share,), (diagonal,)) = one.shares, one.diagonals
    assert (share.state, share.when, share.scale.factors) == ("A", "written", ())
    assert diagonal.value is not None and diagonal.scale.sign == 1


def test_addends_are_scaled_and_subtracted() -> None:
    one = system(matrix="A[t-1] * s + diag(softplus(lam)) / 2 - diag(-pos)")
    assert [share.when for share in one.shares] == ["before"]
    assert len(one.shares[0].scale.factors) == 1
    assert len(one.diagonals) == 2


def test_updates_that_stay_symmetric() -> None:
    for update in (
        "A[t-1] + k @ k.T",
        "A[t-1] + b * b * k @ k.T",
        "exp(-softplus(g)) * A[t-1] + (s * k) @ (k * c).T",
        "c * A[t-1] + s * k @ k.T + c * u @ u.T",
        "c * A[t-1] + s * (k + u) @ (k + u).T",
    ):
        assert system(update=update).shares, update


def test_matrices_that_are_not_symmetric() -> None:
    text = "not symmetric"
    assert text in reason(update="c * A[t-1] + s * k @ u.T")
    assert text in reason(update="c * A[t-1] + k @ (k * w).T")
    assert text in reason(update="A[t-1] - s * k @ (A[t-1].T @ k).T + s * k @ k.T")
    text = "differs between its rows or its columns"
    assert text in reason(update="sigmoid(w) * A[t-1] + s * k @ k.T")


def test_matrices_that_may_be_indefinite() -> None:
    assert "a write may be negative" in reason(update="c * A[t-1] + b * k @ k.T")
    assert "a write may be negative" in reason(update="c * A[t-1] - s * k @ k.T")
    assert "decay of `A` may be negative" in reason(update="b * A[t-1] + s * k @ k.T")
    assert "a multiple of `A` may be negative" in reason(matrix="diag(pos) - A[t]")
    for diagonal in ("diag(lam)", "diag(relu(lam))", "0 * diag(pos)"):
        assert "nothing positive" in reason(matrix=f"A[t] + {diagonal}")
    assert "nothing positive" in reason(matrix="A[t]")


def test_matrices_of_another_kind() -> None:
    text = "the matrix is not a sum of `A` and diagonal ones"
    assert text in reason(matrix="A[t] + diag(pos) + u @ u.T")
    assert text in reason(matrix="(A[t] + diag(pos)) * (1 + k @ k.T)")
    assert "every element" in reason(matrix="exp(A[t]) + diag(pos)")


def test_other_uses_of_the_whole_state() -> None:
    assert "every element" in reason(more="        x = tanh(A[t])\n", right="q + sum[K'](x)")


def test_an_initial_value_that_is_not_0() -> None:
    assert "does not begin as 0" in reason(initial=UNIT)


def test_a_state_that_nothing_takes_whole() -> None:
    text = "    recurrence A[K, K'] over H:\n        A[t] = c * A[t-1] + s * k @ k.T\n"
    model = layer(HEAD + text + "        z = A[t] @ (lam * q)\n    output z\n")
    recurrence = next(node.op for node in model.graph if isinstance(node.op, ir.Recurrence))
    (form,) = normal_forms(recurrence)
    assert systems(recurrence, form, "A", intervals(recurrence.body), ZERO) == ()

"""Recurrences, attends, blocks and routes, against loops that say the formula in torch."""

from __future__ import annotations

import pytest
import torch

import archc
from tests.elaborate.specs import codes, outputs, refusal

HEAD = "layer L(H, K, V):\n    input q[H, K], k[H, K], v[H, V], a[H, K], beta[H]\n"

DELTA = [
    "S[t] = (I - beta * k @ k.T) @ diag(alpha) @ S[t-1] + beta * k @ v.T",
    "R = diag(alpha) @ S[t-1]\n        S[t] = R + beta * k @ (v - R.T @ k).T",
    "S[t] = R + k @ (beta * (v - u)).T\n        u = R.T @ k\n        R = alpha * S[t-1]",
    "S[t] = diag(alpha) @ S[t-1] - beta * k @ (k.T @ diag(alpha) @ S[t-1]) + k @ (beta * v).T",
    "S[t] = I @ diag(alpha) @ S[t-1] + beta * (k @ (v.T - k.T @ (diag(alpha) @ S[t-1])))",
]


@pytest.mark.parametrize("update", DELTA)
def test_spellings_of_one_update_agree(update: str) -> None:
    """Factored, expanded, through intermediates, and in any order of lines: the same numbers."""
    text = (
        f"{HEAD}    alpha = sigmoid(a)\n    recurrence S[K, V] over H:\n        {update}\n"
        "        o = S[t].T @ q\n    output o\n"
    )
    made, x = outputs(text, H=2, K=3, V=4)
    state = torch.zeros(2, 2, 3, 4, dtype=torch.float64)
    for t in range(6):
        q, k, v, a, b = (x[name][:, t] for name in ("q", "k", "v", "a", "beta"))
        state = a.sigmoid()[..., None] * state
        error = v - torch.einsum("bhkv,bhk->bhv", state, k)
        state = state + torch.einsum("bh,bhk,bhv->bhkv", b, k, error)
        torch.testing.assert_close(made[:, t], torch.einsum("bhkv,bhk->bhv", state, q))


@pytest.mark.parametrize(("start", "scale"), [("I", 1), ("2 * I", 2)])
def test_a_matrix_that_begins_as_the_identity(start: str, scale: int) -> None:
    """Recursive least squares: the inverse of scale^-1 I + sum of k k^T."""
    text = (
        f"{HEAD}    recurrence P[K, K'] = {start} over H:\n        u = P[t-1] @ k\n"
        "        P[t] = P[t-1] - u @ u.T / (1 + k.T @ u)\n        o = P[t] @ q\n    output o\n"
    )
    made, x = outputs(text, H=2, K=3, V=4)
    grams = torch.einsum("bthk,bthl->bthkl", x["k"], x["k"]).cumsum(1)
    inverse = (torch.eye(3, dtype=torch.float64) / scale + grams).inverse()
    torch.testing.assert_close(made, torch.einsum("bthkl,bthl->bthk", inverse, x["q"]))
    wide = "    recurrence P[K, V] = I over H:\n        P[t] = P[t-1] + k @ v.T\n    output P\n"
    assert codes(HEAD + wide)[0] == "E0305"


def test_transposed_convention() -> None:
    """A state of shape [V, K], updated from the right, reads the same."""
    text = (
        f"{HEAD}    alpha = sigmoid(a)\n    recurrence S[V, K] over H:\n"
        "        S[t] = S[t-1] @ diag(alpha) @ (I - beta * k @ k.T) + beta * v @ k.T\n"
        "        o = S[t] @ q\n    output o\n"
    )
    other = text.replace("S[V, K]", "S[K, V]").replace("S[t] @ q", "S[t].T @ q")
    start, end = other.index("S[t] ="), other.index("\n        o =")
    other = other[:start] + DELTA[0] + other[end:]
    made, x = outputs(text, H=2, K=3, V=4)
    again, _ = outputs(other, x, H=2, K=3, V=4)
    torch.testing.assert_close(made, again)


def test_attend_with_window_sink_and_groups() -> None:
    text = (
        "layer L(H, G, K, w = 3):\n    input q[H, K], k[G, K], v[G, K], sink[H]\n"
        "    attend t - w < s <= t over H grouped G:\n"
        "        o = softmax(q[t].T @ k[s] / sqrt(K) - (t - s) / 2, sink) @ v[s]\n    output o\n"
    )
    made, x = outputs(text, H=4, G=2, K=3)
    for t in range(6):
        for h in range(4):
            seen = range(max(0, t - 2), t + 1)
            scores = [
                x["q"][:, t, h] @ x["k"][:, s, h // 2].mT / 3**0.5 - (t - s) / 2 for s in seen
            ]
            scores = [score.diagonal()[:, None] for score in scores]
            weights = torch.cat([*scores, x["sink"][:, t, h, None]], 1).softmax(1)[:, :-1]
            values = torch.stack([x["v"][:, s, h // 2] for s in seen], 1)
            torch.testing.assert_close(made[:, t, h], torch.einsum("bs,bsk->bk", weights, values))


def test_a_sum_and_a_product_along_the_path() -> None:
    text = (
        "layer L(H, K):\n    input q[H, K], k[H, K], v[H, K], w[H, K], b[H], f[H]\n"
        "    attend s <= t over H:\n"
        "        P = product r in (s, t]: I - b[r] * w[r] @ w[r].T\n"
        "        score = k[s].T @ P @ q[t] + sum r in (s, t]: f[r]\n"
        "        o = softmax(score) @ v[s]\n    output o\n"
    )
    made, x = outputs(text, H=1, K=3)
    eye = torch.eye(3, dtype=torch.float64)
    for t in range(6):
        carried, scores = x["q"][:, t, 0], []
        for s in range(t, -1, -1):
            scores.append((x["k"][:, s, 0] * carried).sum(-1) + x["f"][:, s + 1 : t + 1, 0].sum(1))
            turn = eye - x["b"][:, s, 0, None, None] * torch.einsum(
                "bi,bj->bij", *[x["w"][:, s, 0]] * 2
            )
            carried = (turn @ carried[..., None])[..., 0]
        weights = torch.stack(scores[::-1], 1).softmax(1)
        torch.testing.assert_close(
            made[:, t, 0], torch.einsum("bs,bsk->bk", weights, x["v"][:, : t + 1, 0])
        )


def test_a_path_may_depend_on_the_reader() -> None:
    """Stick-breaking: what is left depends on the reader's score of every token between."""
    text = (
        "layer L(K):\n    input q[K], k[K], v[K]\n    attend s < t:\n"
        "        left = sum r in (s, t]: logsigmoid(-q[t].T @ k[r])\n"
        "        o = exp(logsigmoid(q[t].T @ k[s]) + left) @ v[s]\n    output o\n"
    )
    made, x = outputs(text, K=3)
    for t in range(6):
        total = torch.zeros(2, 3, dtype=torch.float64)
        for s in range(t):
            gates = [(x["q"][:, t] * x["k"][:, r]).sum(-1) for r in range(s, t + 1)]
            weight = gates[0].sigmoid()
            for gate in gates[1:]:
                weight = weight * (1 - gate.sigmoid())
            total = total + weight[:, None] * x["v"][:, s]
        torch.testing.assert_close(made[:, t], total)


def test_nothing_to_attend_gives_zero() -> None:
    text = (
        "layer L(K):\n    input q[K], v[K]\n    attend s < t:\n"
        "        o = softmax(q.T @ v[s]) @ v[s]\n    output o\n"
    )
    made, _ = outputs(text, K=2)
    assert torch.equal(made[:, 0], torch.zeros(2, 2, dtype=torch.float64))
    assert torch.isfinite(made).all()


def test_blocks_hold_complete_runs_of_tokens() -> None:
    text = (
        "layer L(K, size = 3, step = 2):\n    input q[K], k[K]\n"
        "    blocks b of size every step:\n        c = sum[size](k[b])\n"
        "    attend b ending <= t:\n        o = softmax(q[t].T @ c[b]) @ c[b]\n    output o\n"
    )
    made, x = outputs(text, K=2)
    sums = torch.stack([x["k"][:, i : i + 3].sum(1) for i in (0, 2)], 1)
    for t in range(6):
        seen = sums[:, : sum(end <= t for end in (2, 4))]
        weights = torch.einsum("bk,bck->bc", x["q"][:, t], seen).softmax(1)
        torch.testing.assert_close(made[:, t], torch.einsum("bc,bck->bk", weights, seen))


def test_a_memory_that_is_not_chosen_stays_as_it_is() -> None:
    text = (
        "layer L(N, K, n = 1):\n    input p[N], k[N, K], v[K]\n"
        "    route e in top(n, p) weight 1:\n        s = Memory(k[e], v)\n    output s\n\n"
        "layer Memory(K):\n    input k[K], v[K]\n    recurrence S[K, K']:\n"
        "        S[t] = S[t-1] / 2 + k @ v.T\n        o = S[t].T @ v\n    output o\n"
    )
    lines = text.split("\n\n")
    made, x = outputs("\n\n".join(reversed(lines)), N=3, K=2)
    states = torch.zeros(2, 3, 2, 2, dtype=torch.float64)
    for t in range(6):
        chosen = x["p"][:, t].argmax(-1)
        for batch in range(2):
            e = chosen[batch]
            outer = torch.outer(x["k"][batch, t, e], x["v"][batch, t])
            states[batch, e] = states[batch, e] / 2 + outer
            torch.testing.assert_close(made[batch, t], states[batch, e].T @ x["v"][batch, t])


def test_earlier_tokens() -> None:
    made, x = outputs("layer L(d):\n    input x[d]\n    output y = x[t-2] - x\n", d=2)
    shifted = torch.cat([torch.zeros(2, 2, 2, dtype=torch.float64), x["x"][:, :-2]], 1)
    torch.testing.assert_close(made, shifted - x["x"])


@pytest.mark.parametrize("at", ["t-w-1", "t - (w + 1)", "t-w+1-2", "(t-1)-w"])
def test_earlier_tokens_by_sums_of_sizes(at: str) -> None:
    """`x[t-w-1]` was entry t - w - 1 of x's own dim, a number for all of it, in silence."""
    text = f"layer L(d, w = 2):\n    input x[d]\n    output y = x[{at}] - x\n"
    made, x = outputs(text, d=2)
    shifted = torch.cat([torch.zeros(2, 3, 2, dtype=torch.float64), x["x"][:, :-3]], 1)
    torch.testing.assert_close(made, shifted - x["x"])


@pytest.mark.parametrize("at", ["t // 2", "w - t", "-1 + t", "t - 3 + w"])
def test_tokens_that_are_no_earlier_one_are_refused(at: str) -> None:
    text = f"layer L(d, w = 4):\n    input x[d]\n    output y = x * x[{at}]\n"
    assert codes(text) == ["E0308"]


def test_entries_by_integers_of_earlier_tokens_are_none() -> None:
    """`p[i[t-1]]` names an entry of p: the token is that of `i` alone."""
    assert codes("layer L(d):\n    input p[d]\n    input i in d\n    output y = p[i[t-1]]\n") == []


def test_what_a_state_begins_with_is_read_in_its_block() -> None:
    """Behind it, the state is a value like others: 0 before the first token."""
    text = (
        "layer L(d):\n    input x[d]\n    param h_0[d] = 1\n    recurrence h[d] = h_0:\n"
        "        h[t] = h[t-1] / 2 + x\n        before = h[t-1]\n"
        "    output y[d] = h[t-1]; output z[d] = before; output h\n"
    )
    y, z, h = archc.parse(text).module(d=3)(torch.randn(2, 5, 3))
    assert torch.equal(y[:, 1:], h[:, :-1]) and torch.equal(z[:, 1:], h[:, :-1])
    assert (y[:, 0] == 0).all() and (z[:, 0] == 1).all()


def test_states_of_up_to_four_tokens_back() -> None:
    """Before the first token each is what the state begins with; the last ones are handed on."""
    text = (
        "layer L(d):\n    input x[d]\n    recurrence h[d] = 2:\n"
        "        h[t] = h[t-1] / 2 - h[t-4] / 3 + x\n        old = h[t-3]\n"
        "    output h; output old\n"
    )
    layer, x = archc.parse(text).module(d=3), torch.randn(2, 11, 3, dtype=torch.float64)
    every = [torch.full((2, 3), 2.0, dtype=torch.float64)] * 4
    for t in range(11):
        every.append(every[-1] / 2 - every[-4] / 3 + x[:, t])
    h, old = layer(x)
    torch.testing.assert_close(h, torch.stack(every[4:], 1))
    torch.testing.assert_close(old, torch.stack(every[1:12], 1))
    (h, _), state = layer(x[:, :5], return_state=True)
    assert len(state) == 4
    (more, _), _ = layer(x[:, 5:], state=state, return_state=True)
    torch.testing.assert_close(torch.cat([h, more], 1), torch.stack(every[4:], 1))


def test_a_state_two_tokens_back_is_one_carried_by_hand() -> None:
    """Also of memories that tokens are sent to, which stay as they are on others."""
    made = []
    for states, old, more in (("S", "S[t-2]", ""), ("S[K, V], P", "P[t-1]", "P[t] = S[t-1]")):
        text = (
            "layer Rule(H, K, V):\n    input q[H, K], k[H, K], v[H, V], b[H]\n"
            f"    recurrence {states}[K, V] over H:\n        {more or 'c = b'}\n"
            f"        S[t] = S[t-1] + b * (S[t-1] - {old}) + k @ v.T\n        o = S[t].T @ q\n"
            "    output o\n\n"
            "layer Sent(d, H, N = 3, K = 2, V = 2):\n    input x[d]\n    param W_r[d, N]\n"
            "    param W_q[d, H, K]; W_k[N, d, H, K]; W_v[N, d, H, V]; W_b[N, d, H]\n"
            "    q = x @ W_q\n    p = softmax[N](x @ W_r)\n    route e in top(2, p) weight p:\n"
            "        y = Rule(q, x @ W_k[e], x @ W_v[e], sigmoid(x @ W_b[e]))\n    output y\n"
        )
        torch.manual_seed(0)
        made.append(archc.parse(text, layer="Sent").module(d=3, H=2).double())
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    made[1].load_state_dict(made[0].state_dict())
    torch.testing.assert_close(made[0](x), made[1](x))


def test_a_state_of_three_dims_is_given_in_any_order_by_name() -> None:
    """Heads that mix their memories; a matrix in the place of the sum is told how it is written."""
    text = """layer Mix(H, K, V, J = H):
    input k[H, K], v[H, V]
    param M[H, J]
    w = k * v
    recurrence S[H, K, V]:
        S[t] = sum[J](M * split[H as J](S[t-1])) + w
    output S
"""
    torch.manual_seed(0)
    module = archc.parse(text).module(dtype=torch.float64, H=2, J=2, K=3, V=4)
    k, v = (torch.randn(1, 5, 2, size, dtype=torch.float64) for size in (3, 4))
    state, found = torch.zeros(1, 2, 3, 4, dtype=torch.float64), module(k, v)
    for token in range(5):
        write = k[:, token, :, :, None] * v[:, token, :, None]
        state = torch.einsum("hj,bjkv->bhkv", module.M, state) + write
        torch.testing.assert_close(found[:, token], state)
    told = refusal(text.replace("sum[J](M * split[H as J](S[t-1]))", "M @ S[t-1]"))
    assert "`merge[K, V as F](x)`" in told


REFUSED = [
    ("h[t] = h[t-5] + x", "E0312", "read 5 steps back"),
    ("h_1_ago = 2 * x\n        h[t] = h[t-2] + h_1_ago", "E0312", "the name of an older state"),
    ("h[t] = h[t] + x", "E0203", "depends on itself at the same token"),
    ("u = h[t-1] + x", "E0313", "never says what `h[t]` is"),
    ("repeat 2 as i:\n            h[t] = h[t-1] + x", "E0313", "and `h[t] = Z` behind it"),
    ("h[t] = h[t-1] + x[t+1]", "E0308", "not been seen yet"),
    ("u = x * 2\n        h[t] = h[t-1] + u[t-1]", "E0309", "declare it as a state"),
    ("h[t] = h[t-1] @ x.T", "E0301", "its update is"),
]


@pytest.mark.parametrize(("body", "code", "says"), REFUSED)
def test_recurrences_that_cannot_be(body: str, code: str, says: str) -> None:
    text = f"layer L(d):\n    input x[d]\n    recurrence h[d]:\n        {body}\n    output h\n"
    assert codes(text)[0] == code
    assert says in refusal(text)

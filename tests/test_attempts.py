"""Wrong attempts, such as a newcomer makes: one finding each, at the line to change, and what it
says to write is what the spec that passes has.

What is shown stands in tests/golden/attempts.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from archc.diagnostics import ArchError
from archc.elaborate.elaborate import elaborate
from archc.ir.verify import verify
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse

GOLDEN = Path(__file__).parent / "golden" / "attempts"

ATTENTION = '''layer Attention(d, H, K):
    """Softmax attention."""
    input x[d]
    param W_q, W_k, W_v[d, H, K]; W_o[H, K, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    attend s <= t over H:
        o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]
    output y[d] = o @ W_o
'''

MEMORY = '''layer Memory(d, H, K, V):
    """A memory that forgets."""
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]; W_f[d, H]; W_o[H, V, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    f = sigmoid(x @ W_f)
    recurrence S[K, V] over H:
        S[t] = f * S[t-1] + k @ v.T
        o = S[t].T @ q
    output y[d] = o @ W_o
'''

MLP = """layer MLP(d, e = 4 * d, eps = 1e-6):
    input x[d]
    param W_1[d, e]; W_2[e, d]; gain[d] = 1
    h = rmsnorm[d](x, eps) * gain
    output y[d] = silu(h @ W_1) @ W_2
"""

STACK = """layer Block(d):
    input x[d]
    param W[d, d']
    output y[d] = x + tanh(x @ W)

layer Stack(d, L = 4):
    input x[d]
    repeat L as l:
        x = Block(d)(x)
    output x
"""

OPTION = """layer MLP(d, e = 4 * d, act = "silu"):
    input x[d]
    param W_1[d, e]; W_2[e, d]
    h = x @ W_1
    output y[d] = (silu(h) if act == "silu" else relu(h)) @ W_2
"""

ATTEMPTS: dict[str, tuple[str, str, str, str | None]] = {
    "a loop over time": (
        MEMORY, "    recurrence S[K, V] over H:\n", "    for t in range(T):\n", "recurrence",
    ),
    "an update in place": (MEMORY, "S[t] = f * S[t-1] + k @ v.T", "S[t] += k @ v.T", "S[t-1]"),
    "letters with a token": (MEMORY, "f * S[t-1] + k @ v.T", "f * S[t-1] + k_t @ v.T", None),
    "LaTeX": (MEMORY, "f * S[t-1] + k @ v.T", "f * S_{t-1} + k @ v.T", "S[t-1]"),
    "a transpose": (MEMORY, "k @ v.T", "k @ v.transpose(-1, -2)", "v.T"),
    "no heads": (MEMORY, "recurrence S[K, V] over H:", "recurrence S[K, V]:", "over H"),
    "an inner product": (MEMORY, "k @ v.T", "k @ v", "k @ v.T"),
    "a token ahead": (MEMORY, "S[t] = f * S[t-1]", "S[t+1] = f * S[t-1]", "S[t] ="),
    "a function of torch": (MEMORY, "f = sigmoid(x @ W_f)", "f = torch.sigmoid(x @ W_f)", None),
    "a method": (MEMORY, "f = sigmoid(x @ W_f)", "f = (x @ W_f).sigmoid()", None),
    "an attend without a range": (
        ATTENTION, "attend s <= t over H:", "attend s over H:", "attend s <= t over H:",
    ),
    "a mask": (ATTENTION, "sqrt(K)) @ v[s]", "sqrt(K) + causal_mask) @ v[s]", None),
    "a dim of softmax": (ATTENTION, "/ sqrt(K))", "/ sqrt(K), dim=-1)", None),
    "no index": (ATTENTION, "@ v[s]", "@ v[t]", "[s]"),
    "a tab": (ATTENTION, "    input x[d]", "\tinput x[d]", None),
    "an open docstring": (ATTENTION, '"""Softmax attention."""', '"""Softmax attention.', '"""'),
    "return": (ATTENTION, "    output y[d] = o @ W_o", "    return o @ W_o", "output y"),
    "the return of a name": (STACK, "    output x\n", "    return x\n", "output x"),
    "the letter of the sigmoid": (MEMORY, "sigmoid(x @ W_f)", r"\sigma(x @ W_f)", "sigmoid("),
    "batch and time": (MLP, "input x[d]", "input x[T, d]", None),
    "a size worked out in a shape": (
        MLP, "d, e = 4 * d, eps = 1e-6):\n    input x[d]\n    param W_1[d, e]; W_2[e, d]",
        "d, eps = 1e-6):\n    input x[d]\n    param W_1[d, 4 * d]; W_2[d, d']", "= 4 * d",
    ),
    "swish": (MLP, "silu(h", "swish(h", "silu("),
    "a norm of no dim": (MLP, "rmsnorm[d](x, eps)", "rmsnorm(x, eps)", "rmsnorm[d](x, eps)"),
    "a linear layer": (MLP, "silu(h @ W_1) @ W_2", "silu(nn.Linear(d, e)(h)) @ W_2", "@ W"),
    "the weight in front": (
        "layer L(d, e):\n    input x[d]\n    param W[d, e]\n    output y[e] = x @ W\n",
        "x @ W", "W @ x", "x @ W",
    ),
    "a stack by a call of itself": (
        STACK, "    repeat L as l:\n        x = Block(d)(x)\n    output x\n",
        "    output y[d] = Block(d)(Stack(d, L - 1)(x))\n", "repeat",
    ),
    "no word behind repeat": (STACK, "repeat L as l:", "repeat L:", "as l:"),
    "two signs": (MLP, "    h = rms", "    h := rms", None),
    "softmax outside of an attend": (
        ATTENTION,
        "    attend s <= t over H:\n        o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]\n",
        "    o = softmax(q @ k.T / sqrt(K)) @ v\n", "attend s <= t over H:",
    ),
    "round brackets around dims": (MLP, "W_2[e, d]", "W_2(e, d)", None),
    "a type in front of dims": (MLP, "input x[d]", "input x: Tensor[d]", None),
    "dims by number": (MLP, "rmsnorm[d]", "rmsnorm[-1]", None),
    "a subscript": (MEMORY, "f * S[t-1]", "f * Sₜ₋₁", "S[t-1]"),
    "several values at once": (
        MEMORY, "    q = x @ W_q\n    k = x @ W_k\n", "    q, k = x @ W_q, x @ W_k\n", None,
    ),
    "no colon": (MEMORY, "over H:", "over H", ":"),
    "a root sign": (ATTENTION, "sqrt(K)", "√K", "sqrt(K)"),
    "the size of a head": (ATTENTION, "sqrt(K)", "sqrt(d_k)", "sqrt(K)"),
    "an option that is a function": (
        OPTION, '(silu(h) if act == "silu" else relu(h))', "act(h)", 'if act == "silu" else',
    ),
}  # fmt: skip
"""What passes, a part of it, and what stands there in the attempt; then what the advice says that
the fix has more of, or None where what is marked goes."""


def attempt(name: str) -> tuple[str, str, str | None]:
    """The spec that passes, the attempt, and what the advice says."""
    text, right, wrong, key = ATTEMPTS[name]
    assert text.count(right) == 1
    return text, text.replace(right, wrong), key


def meant(text: str) -> None:
    """Elaborate a spec; ArchError if it is refused."""
    verify(elaborate(parse(Source("mine.arch", text)), None, {}, import_source))


def close(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("name", ATTEMPTS)
def test_an_attempt_leads_to_the_fix(name: str, golden: Callable[[Path, str], None]) -> None:
    right, wrong, key = attempt(name)
    meant(right)
    with pytest.raises(ArchError) as refused:
        meant(wrong)
    (finding,) = refused.value.diagnostics
    golden(GOLDEN / f"{name.replace(' ', '_')}.txt", finding.render() + "\n")
    assert finding.label is not None and finding.helps
    changed = set(wrong.split("\n")) - set(right.split("\n"))
    span, said = finding.label.span, close(" ".join(finding.helps))
    if key is None:
        word = re.escape(span.text)
        word = rf"\b{word}\b" if span.text.isidentifier() else word
        assert re.search(word, wrong) and not re.search(word, right), "what is marked goes"
    else:
        key = close(key)
        assert key in said and close(right).count(key) > close(wrong).count(key)
    if name not in ELSEWHERE:
        assert span.source.line(span.line) in changed


ELSEWHERE = ("no heads",)
"""What is marked is where two values meet; what has to change is the header of their block."""

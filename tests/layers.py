"""Random layers that mean something: projections, norms, a memory, gates, residuals.

Unlike `fuzz.py`, whose sentences are hardly ever well-formed, every text here is a layer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hypothesis import strategies as st

SIZES = {"d": 6, "H": 4, "G": 2, "K": 4, "V": 3, "D": 5}
"""Sizes of every layer; K is even, for rotations, and heads come in two groups."""


@dataclass(frozen=True)
class Example:
    """The text of a spec; `causal`: whether no token reads a later one."""

    text: str
    causal: bool

    def __repr__(self) -> str:
        return f"\n{self.text}"


@dataclass
class Draft:
    """The statements of a layer so far."""

    draw: st.DrawFn
    params: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)

    def one(self, *choices: str) -> str:
        """One of the choices."""
        return self.draw(st.sampled_from(choices))

    def maybe(self) -> bool:
        return self.draw(st.booleans())

    def param(self, axes: str, init: str = "") -> str:
        """A new parameter."""
        name = f"p{len(self.params)}"
        self.params.append(f"    param {name}[{axes}]{init}")
        return name

    def let(self, name: str, value: str) -> None:
        self.body.append(f"    {name} = {value}")

    def project(self, axes: str, of: str = "u") -> str:
        """A projection, with a bias or without, or of low rank."""
        if self.one("full", "full", "low") == "low":
            return f"{of} @ {self.param('d, D')} @ {self.param(f'D, {axes}')}"
        bias = f" + {self.param(axes, ' = 0')}" if self.maybe() else ""
        return f"{of} @ {self.param(f'd, {axes}')}{bias}"


def start(s: Draft) -> None:
    """`u`: what is projected."""
    conv = f"silu(shortconv(x, {s.param('d, D')}))" if s.maybe() else "x"
    forms = ("x", "rmsnorm[d](x)", "layernorm[d](x)", "x + x[t-1]", "x - 0.5 * x[t-2]", conv)
    s.let("u", s.one(*forms))


def feature(s: Draft, axes: str, last: str) -> str:
    """A query or key."""
    p = s.project(axes)
    conv = f"shortconv({p}, {s.param(f'{axes}, D')})" if s.maybe() else p
    rotated = f"rope_half[{last}]({p}, 100)" if last == "K" else f"tanh({p})"
    return s.one(
        p, conv, f"silu({conv})", f"elu({p}) + 1", f"l2norm[{last}](silu({conv}))", rotated,
        f"softmax[{last}]({p})", f"rmsnorm[{last}]({p})",
    )  # fmt: skip


def gate(s: Draft, axes: str) -> str:
    """A number between 0 and 1 for each of the axes."""
    p = s.project(axes)
    constant = f"sigmoid({s.param(axes)})"
    rate = s.param(axes, " = log(uniform(1, 4))")
    return s.one(
        f"sigmoid({p})", f"sigmoid({p}) ** (1 / 4)", f"exp(-softplus({p}))",
        f"exp(-exp({rate}) * softplus({p}))", constant,
    )  # fmt: skip


def matrix_memory(s: Draft) -> bool:
    """A state [K, V] with a random decay, correction, write and read; some with a normaliser."""
    s.let("q", feature(s, "H, K", "K"))
    s.let("k", f"l2norm[K]({s.project('H, K')})")
    s.let("v", feature(s, "H, V", "V"))
    s.let("beta", gate(s, "H"))
    per_channel = s.maybe()
    s.let("alpha", gate(s, "H, K" if per_channel else "H"))
    decays = ("diag(alpha) @ {}",) if per_channel else ("alpha * {}", "{} * alpha")
    decay = s.one("{}", *decays)
    kept = decay.format("S[t-1]")
    correct = f"(I - beta * k @ k.T) @ {f'({kept})' if '*' in kept else kept}"
    updates = (
        f"{kept} + k @ v.T",
        f"{kept} + beta * k @ v.T",
        f"{correct} + beta * k @ v.T",
        f"{kept} + beta * k @ (v - ({kept}).T @ k).T",
    )
    normalised = s.maybe()
    s.body.append(f"    recurrence S[K, V]{', n[K]' if normalised else ''} over H:")
    s.body.append(f"        S[t] = {s.one(*updates)}")
    reads = ("S[t].T @ q", "S[t-1].T @ q", "S[t].T @ q / sqrt(K)", "S[t].T @ (q + k)")
    read = s.one(*reads)
    if normalised:
        s.body.append(f"        n[t] = {s.one('alpha', '0.5')} * n[t-1] + k")
        read = f"{read} / max(abs(n[t].T @ q), 1)"
    s.body.append(f"        o = {read}")
    return True


def cell(s: Draft) -> bool:
    """A vector state whose gates may read it, with a stabiliser or without."""
    s.let("a", s.project("H, V"))
    s.let("z", s.project("H, V"))
    inner = f" + {s.param(SQUARE)} @ h[t-1]" if s.maybe() else ""
    if s.maybe():
        s.body += [
            "    recurrence h[V], c[V], m[V] = -inf over H:",
            f"        e = a{inner}",
            "        m[t] = max(logsigmoid(z) + m[t-1], e)",
            "        f = exp(logsigmoid(z) + m[t-1] - m[t])",
            "        c[t] = f * c[t-1] + exp(e - m[t]) * tanh(z)",
            f"        h[t] = {s.one('c[t]', 'tanh(c[t])', 'c[t] / (1 + abs(c[t]))')}",
        ]
    else:
        s.body += [
            "    recurrence h[V] over H:",
            f"        f = sigmoid(a{inner})",
            f"        h[t] = f * h[t-1] + (1 - f) * {s.one('z', 'tanh(z)', 'relu(z)')}",
        ]
    s.let("o", "h")
    return True


def attention(s: Draft) -> bool:
    """Softmax or plain weights over a random range, with a random score."""
    s.let("q", feature(s, "H, K", "K"))
    heads = s.one("H", "G")
    s.let("k", feature(s, f"{heads}, K", "K"))
    s.let("v", feature(s, f"{heads}, V", "V"))
    s.let("log_f", f"logsigmoid({s.project('H')})")
    reads = s.one("s <= t", "s < t", "t - 3 < s <= t", "all s")
    score = s.one("q[t].T @ k[s]", "q[t].T @ k[s] / sqrt(K)", "softcap(q[t].T @ k[s], 5)")
    if reads != "all s" and s.maybe():
        score += s.one(" + sum r in (s, t]: log_f[r]", " - 0.5 * (t - s)")
    elif s.maybe():
        score += " + log_f[s]"
    sink = f", {s.param('H')}" if s.maybe() else ""
    weights = s.one(f"softmax({score}{sink})", f"softmax({score})", score, f"exp({score})")
    s.body.append(f"    attend {reads} over H{' grouped G' if heads == 'G' else ''}:")
    normaliser = " / (1 + sum[s](w))" if weights.startswith("exp") else ""
    s.body.append(f"        w = {weights}")
    s.body.append(f"        o = w @ v[s]{normaliser}")
    return reads != "all s"


def finish(s: Draft) -> None:
    """`y`: the memory's result, normed and gated, projected back, beside the input or not."""
    o = s.one("o", "rmsnorm[V](o)", "layernorm[V](o)", f"rmsnorm[V](o) * {s.param('V', ' = 1')}")
    gated = f"{s.one('silu', 'sigmoid', 'gelu')}({s.project('H, V')}) * {o}"
    y = f"({s.one(o, gated)}) @ {s.param('H, V, d')}"
    s.body.append(f"    output y[d] = {s.one(y, f'x + {y}')}")


SQUARE = "H, V, V'"

BLOCK = """
block Stack(d, H, G, K, V, D):
    input x[d]
    repeat 2 as l:
        param gain[d] = 1
        x = x + Mixer(d, H, G, K, V, D)(rmsnorm[d](x) * gain)
    output x
"""


@st.composite
def layers(draw: st.DrawFn) -> Example:
    """A layer alone, or a stack of two."""
    s = Draft(draw)
    start(s)
    causal = draw(st.sampled_from([matrix_memory, matrix_memory, cell, attention, attention]))(s)
    finish(s)
    written = "\n".join(s.body)
    used = [line for line in s.params if _mentions(written, line.split()[1].split("[")[0])]
    head = ["layer Mixer(d, H, G, K, V, D):", "    input x[d]"]
    text = "\n".join([*head, *used, written, ""])
    if draw(st.integers(0, 4)) == 0:
        text += BLOCK
    return Example(text, causal)


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None

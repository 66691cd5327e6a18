"""Random recurrences as the text of a spec: everything that a paper's update may be made of."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hypothesis import strategies as st

Draw = st.DrawFn

INPUTS = {
    "K": "q k u y x", "V": "v z", "": "a b", "D": "dt w", "N": "s c",
}  # fmt: skip
"""Inputs by the axis that they have besides the heads."""

PARAMS = {
    "rate": "[H]", "lam": "[H, K]", "A": "[D, D'] = normal(0, 0.3)",
}  # fmt: skip

NAMED = {
    "f": "-softplus(a)", "g": "-softplus(x)", "e": "-softplus(z)", "be": "sigmoid(b)",
    "uk": "l2norm[K](k)", "uu": "l2norm[K](u)", "uy": "l2norm[K](y)", "um": "l2norm[K](many)",
}  # fmt: skip
"""Values that a recurrence may use."""


def spec(body: str, heads: str = "heads") -> str:
    """A layer around a recurrence and its output, with the values that it uses."""
    lines = [f"    {name} = {NAMED[name]}\n" for name in NAMED if used(name, body)]
    text = "".join(lines) + body
    inputs = [
        f"{name}[{', '.join(filter(None, ['H' if axis in 'KV' else '', axis]))}]"
        for axis, names in INPUTS.items() for name in names.split() if used(name, text)
    ]  # fmt: skip
    inputs += ["many[3, H, K]"] if used("many", text) else []
    params = [f"    param {name}{PARAMS[name]}\n" for name in PARAMS if used(name, text)]
    text = f"    input {', '.join(inputs)}\n" + "".join(params) + text
    if heads == "one head":
        text = text.replace(" over H", "").replace("[H, ", "[").replace("[H]", "[]")
        text = text.replace("[3, H, K]", "[3, K]")
    elif heads == "shared keys":
        text = text.replace("q[H, K]", "q[K]").replace("k[H, K]", "k[K]")
    sizes = [size for size in "HKVDN" if used(size, text)]
    return f"layer Example({', '.join(sizes)}):\n{text}"


def used(name: str, text: str) -> bool:
    """Whether a text speaks of a name."""
    return re.search(rf"(?<![\w]){name}(?!\w)", text) is not None


SCALARS = (
    "exp(f)", "sigmoid(a)", "where(a > 0, exp(f), 0)", "exp(-exp(rate))", "1 / (1 + a * a)",
    "sigmoid(a) * exp(f)", "sigmoid(a) ** 0.5", "min(relu(a), 1)", "tanh(a)", "(1 - be)", "0.9",
)  # fmt: skip
"""Gates of a head: some may be 0, some are constant, one may be negative."""

KEYS = ("exp(g)", "sigmoid(x)", "sigmoid(lam)", "where(x > 0, exp(g), 0)", "exp(g) * sigmoid(a)",
        "(1 - sigmoid(x))")  # fmt: skip
"""Gates of a key channel."""

VALUES = ("exp(e)", "sigmoid(z)", "where(z > 0, exp(e), 0)")
"""Gates of a value channel."""

CORRECTIONS = (
    ("I - be * uk @ uk.T", "I - be * uk @ uk.T"),
    ("I - 2 * be * uu @ uu.T", "I - 2 * be * uu @ uu.T"),
    ("I + 0.5 * uu @ uy.T", "I + 0.5 * uy @ uu.T"),
    ("diag(sigmoid(x)) - be * uk @ (sigmoid(x) * uk).T",
     "diag(sigmoid(x)) - be * (sigmoid(x) * uk) @ uk.T"),
)  # fmt: skip
"""Matrices that a state is multiplied with from the left, and their transposes."""

WRITES = (("k", "v"), ("be * uk", "v"), ("u", "z"), ("uk", "(be * v)"))


@dataclass(frozen=True)
class Factor:
    """A factor of the state on its key side, or (`value`) on its value side."""

    text: str
    transposed: str
    value: bool = False


@st.composite
def factors(draw: Draw) -> list[Factor]:
    """A few gates and corrections, in any order."""
    found = []
    for _ in range(draw(st.integers(0, 3))):
        kind = draw(st.sampled_from(["scalar", "key", "key", "correction", "correction", "value"]))
        if kind == "scalar":
            gate = draw(st.sampled_from(SCALARS))
            found.append(Factor(f"({gate}) *", f"({gate}) *"))
        elif kind == "correction":
            one, other = draw(st.sampled_from(CORRECTIONS))
            found.append(Factor(f"({one}) @", f"@ ({other})"))
        elif kind == "key":
            gate = f"diag({draw(st.sampled_from(KEYS))})"
            found.append(Factor(f"{gate} @", f"@ {gate}"))
        else:
            gate = f"diag({draw(st.sampled_from(VALUES))})"
            found.append(Factor(f"@ {gate}", f"{gate} @", value=True))
    return found


def applied(found: list[Factor], state: str, turned: bool) -> str:
    """The factors times a state; `turned` if its first axis is that of the values."""
    for factor in reversed(found):
        text = factor.transposed if turned else factor.text
        state = f"({state} {text})" if text.startswith("@") else f"({text} {state})"
    return state


def product(one: str, other: str, turned: bool) -> str:
    """What is written."""
    return f"({other}) @ ({one}).T" if turned else f"({one}) @ ({other}).T"


@st.composite
def micro_steps(draw: Draw, name: str, turned: bool) -> list[str]:
    """The lines that make the state after a token; in between it is called R."""
    lines, state, count = [], f"{name}[t-1]", draw(st.integers(1, 3))
    for place in range(count):
        update = applied(draw(factors()), state, turned)
        for _ in range(draw(st.integers(0 if place else 1, 2))):
            one, other = draw(st.sampled_from(WRITES))
            update += f" + {product(one, other, turned)}"
        state = f"R{place}"
        lines.append(f"{state} = {update}")
    lines[-1] = lines[-1].replace(f"R{count - 1} =", f"{name}[t] =", 1)
    return lines


def read(state: str, query: str, turned: bool) -> str:
    """A read of a state."""
    return f"{state} @ {query}" if turned else f"{state}.T @ {query}"


READS = ("{0}", "{0} * sigmoid(z)", "tanh({0}) + {1}", "{1}", "{1} * be - z", "{0} + {2}")
"""Of {0} the state after the token, {1} before it, {2} what is in between."""

MORE = {
    "nothing": ("", "", ""),
    "a normaliser": ("n[K]", "n[t] = exp(f) * n[t-1] + k", " / max(abs(n[t].T @ q), 1)"),
    "a corrected normaliser": (
        "n[K]", "n[t] = (I - be * uk @ uk.T) @ diag(exp(g)) @ n[t-1] + k", " * (n[t].T @ q)"
    ),
    "a cascade": ("P[K, V]", "P[t] = exp(f) * P[t-1] + u @ (READ).T", " + P[t].T @ q"),
    "a gate from a read": (
        "P[K, V]", "P[t] = sigmoid(sum[V](READ)) * P[t-1] + u @ v.T", " + P[t].T @ q"
    ),
    "a key from a read": ("p[]", "p[t] = sigmoid(a) * p[t-1] + sum[V](READ)", " + p[t]"),
    "a cell": ("h[V]", "h[t] = tanh(h[t-1] + READ)", " + h[t]"),
}  # fmt: skip
"""A further state: its declaration, its update from a read of the first, and what the result has
of it."""


@st.composite
def matrices(draw: Draw) -> str:
    """A matrix state with rank-one writes."""
    turned, other = draw(st.booleans()), draw(st.sampled_from(sorted(MORE)))
    lines = draw(micro_steps("S", turned))
    after, before = read("S[t]", "q", turned), read("S[t-1]", "u", turned)
    middle = read(lines[0].split()[0], "y", turned)
    made = draw(st.sampled_from(READS)).format(f"({after})", f"({before})", f"({middle})")
    declared, update, more = MORE[other]
    if declared:
        lines.append(update.replace("READ", draw(st.sampled_from([after, before, middle]))))
    states = f"S[{'V, K' if turned else 'K, V'}]" + (f", {declared}" if declared else "")
    body = "".join(f"        {line}\n" for line in [*lines, f"o = ({made}){more}"])
    heads = draw(st.sampled_from(["heads", "heads", "shared keys", "one head"]))
    return spec(f"    recurrence {states} over H:\n{body}    output o\n", heads)


REPEATED = """
        R = {decay} S[t-1]
        repeat 3 as j:
            R = (I - be * um[j] @ um[j].T) @ R + um[j] @ v.T
        S[t] = R
        o = {read}"""

TWO = {
    "coupled": "S[t] = exp(f) * S[t-1] + 0.1 * P[t-1] + k @ v.T\n        P[t] = 0.5 * P[t-1] - 0.1"
    " * S[t-1] + u @ v.T\n        o = S[t].T @ q + P[t].T @ u",
    "a momentum": "P[t] = {decay} P[t-1] + k @ v.T\n        S[t] = sigmoid(b) * S[t-1] + P[t]\n"
    "        o = S[t].T @ q",
    "the same, seen late": "S[t] = {decay} S[t-1] + k @ v.T\n        P[t] = S[t-1]\n"
    "        o = P[t].T @ q + S[t].T @ u",
    "two decays": "S[t] = {decay} S[t-1] + k @ v.T\n        P[t] = exp(f) * P[t-1] + k @ v.T\n"
    "        o = S[t].T @ q - sigmoid(z) * (P[t-1].T @ q)",
    "columns of one": "S[t] = {decay} S[t-1] + k @ v.T\n        P[t] = {decay} P[t-1] + k @ z.T\n"
    "        o = S[t].T @ q + P[t].T @ u",
    "a query from a read": "S[t] = {decay} S[t-1] + k @ v.T\n        P[t] = exp(f) * P[t-1] + k @ v"
    ".T\n        o = P[t].T @ tanh(S[t] @ v)",
    "the difference to a read": "S[t] = {decay} S[t-1] + k @ v.T\n        P[t] = exp(f) * P[t-1] +"
    " uk @ (v - S[t-1].T @ uk - P[t-1].T @ uk).T\n        o = P[t].T @ q",
}
"""Two matrices."""


@st.composite
def pairs(draw: Draw) -> str:
    """Two matrix states, or one with micro-steps in a loop."""
    gates = [f"({gate}) *" for gate in SCALARS] + [f"diag({gate}) @" for gate in KEYS]
    decay = draw(st.sampled_from(["", *gates, "(I - be * uk @ uk.T) @"]))
    kind = draw(st.sampled_from([*sorted(TWO), "repeated"]))
    states = "S[K, V]" if kind == "repeated" else "S[K, V], P[K, V]"
    body = REPEATED.strip() if kind == "repeated" else TWO[kind]
    made = draw(st.sampled_from(["S[t].T @ q", "S[t-1].T @ q", "R.T @ q"]))
    body = body.format(decay=decay, read=made)
    heads = draw(st.sampled_from(["heads", "shared keys", "one head"]))
    return spec(f"    recurrence {states} over H:\n        {body}\n    output o\n", heads)


VECTORS = {
    "a diagonal": ("h[D, N]", "h[t] = {gate} * h[t-1] + dt @ s.T", "h[t] @ c"),
    "a diagonal, whole": ("h[D, N]", "h[t] = {gate} * h[t-1] + dt @ s.T", "tanh(h[t]) @ c"),
    "a diagonal, before": ("h[D, N]", "h[t] = {gate} * h[t-1] + dt @ s.T", "h[t-1] @ c + w"),
    "a vector": ("h[D]", "h[t] = sigmoid(dt) * h[t-1] + w", "tanh(h[t])"),
    "an average": ("h[D]", "h[t] = sigmoid(dt) * h[t-1] + (1 - sigmoid(dt)) * w", "h[t]"),
    "a rotation": ("h[D], p[D]", "h[t] = cos(dt) * h[t-1] - sin(dt) * p[t-1] + w\n        "
                   "p[t] = sin(dt) * h[t-1] + cos(dt) * p[t-1]", "h[t] + p[t-1]"),
    "a momentum": ("p[D], h[D]", "p[t] = 0.9 * p[t-1] - w\n        h[t] = h[t-1] * sigmoid(dt) "
                   "+ p[t]", "h[t]"),
    "a matrix": ("h[D]", "h[t] = A @ h[t-1] + w", "h[t] + h[t-1]"),
    "a decayed matrix": ("h[D]", "h[t] = sigmoid(dt) * (A @ h[t-1]) + 0.5 * h[t-1] + w", "h[t]"),
    "a matrix of inputs": ("h[D]", "h[t] = (diag(sigmoid(dt)) + 0.2 * A) @ h[t-1] + w", "h[t]"),
    "nothing but the past": ("h[D]", "h[t] = w", "h[t-1]"),
    "a sum": ("h[D]", "h[t] = h[t-1] + w", "h[t] / (1 + abs(h[t-1]))"),
    "a maximum": ("h[D]", "h[t] = max(h[t-1] - 1, w)", "h[t]"),
    "a cell": ("h[D]", "h[t] = tanh(A @ h[t-1] + w)", "h[t]"),
}  # fmt: skip
"""Vectors and [D, N] states: their declaration, update and result."""

GATES = ("sigmoid(dt)", "exp(-softplus(dt) @ softplus(s).T)", "tanh(dt)", "(2 * dt)",
         "exp(-softplus(s))")  # fmt: skip


@st.composite
def vectors(draw: Draw) -> str:
    """Elementwise and dense recurrences."""
    states, update, result = VECTORS[draw(st.sampled_from(sorted(VECTORS)))]
    update = update.format(gate=draw(st.sampled_from(GATES)))
    return spec(f"    recurrence {states}:\n        {update}\n        o = {result}\n    output o\n")


STABILISED = """    recurrence C[K, V], n[K], m[] = -inf over H:
        m[t] = max({forget} + m[t-1], b)
        i = exp(b - m[t])
        d = exp({forget} + m[t-1] - m[t])
        C[t] = d * C[t-1] + i * k @ v.T
        n[t] = d * n[t-1] + i * k
        o = C[t].T @ q / max(abs(n[t].T @ q), exp(-m[t]))
    output o
"""


@st.composite
def stabilised(draw: Draw) -> str:
    """A matrix with exponential gates, its normaliser and its stabiliser."""
    forget = draw(st.sampled_from(["f", "logsigmoid(a)", "0", "-1"]))
    return spec(STABILISED.format(forget=forget))


recurrences = st.one_of(matrices(), matrices(), matrices(), pairs(), vectors(), stabilised())
"""All of them."""

"""Specs that nobody meant to write: mutations of real ones, and sentences of the grammar."""

from __future__ import annotations

import random
import re
from pathlib import Path

SPECS = Path(__file__).parents[1] / "specs"
TOKEN = re.compile(r"\w+'*|\n *|[^\w\s]+| +")
WORDS = (
    *("layer", "block", "model", "function", "input", "param", "output", "recurrence", "attend"),
    *("index", "blocks", "route", "repeat", "require", "chunk", "return", "import", "over"),
    *("grouped", "all", "ending", "every", "of", "as", "weight", "by", "if", "else", "in", "on"),
    *("sum", "product", "top", "softmax", "exp", "log", "diag", "solve", "take", "window", "I"),
    *("none", "inf", "t", "s", "r", "e", "b", "x", "q", "k", "v", "S", "K", "V", "H", "d"),
    *("(", ")", "[", "]", ",", ";", ":", "=", "+", "-", "*", "/", "@", "**", ".T", "<", "<=", "=="),
    *('"', '""', '"""', "#", "'", "0", "1", "2", "-1", "0.5", "1e9", "1e-9", "9999999999"),
    *("\\", "{", "}", "$", "`", "~", "\t", "\0", "é", "λ", "β", "ᵀ", "⊙", "∞", "\n    ", ""),
)


def originals() -> list[str]:
    """The bundled specs, in order."""
    return [path.read_text("utf-8") for path in sorted(SPECS.glob("*.arch"))]


def mutated(text: str, rng: random.Random) -> str:
    """The text after one to four edits: tokens dropped, added, replaced, lines moved, ..."""
    for _ in range(rng.randint(1, 4)):
        text = rng.choice(EDITS)(text, rng)
    return text


def _drop(text: str, rng: random.Random) -> str:
    parts = TOKEN.findall(text)
    place = rng.randrange(max(1, len(parts)))
    return "".join(parts[:place] + parts[place + rng.randint(1, 3) :])


def _replace(text: str, rng: random.Random) -> str:
    parts = TOKEN.findall(text) or [""]
    parts[rng.randrange(len(parts))] = rng.choice([rng.choice(WORDS), rng.choice(parts)])
    return "".join(parts)


def _insert(text: str, rng: random.Random) -> str:
    parts = TOKEN.findall(text)
    parts.insert(rng.randint(0, len(parts)), rng.choice(WORDS))
    return "".join(parts)


def _swap_lines(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return "\n".join(lines)


def _cut(text: str, rng: random.Random) -> str:
    return text[: rng.randint(0, len(text))]


def _bytes(text: str, rng: random.Random) -> str:
    place = rng.randint(0, len(text))
    return (
        text[:place]
        + chr(rng.choice([0, 7, 9, 13, 0x200B, 0xFFFD, rng.randint(32, 0x2FFF)]))
        + text[place:]
    )


EDITS = [_drop, _replace, _replace, _insert, _swap_lines, _cut, _bytes]


def generated(rng: random.Random) -> str:
    """A spec made from the grammar's own rules: it parses, and hardly ever means anything."""
    lines = ["layer L(d, H, K, V, n = 2, p = none):", "    input x[d], a[H, K], b[H]"]
    columns = rng.choice(["H", "K", "d'", "H, K"])
    lines.append(f"    param A[d, {columns}]; w[K]; u[H, K, V]")
    for name in ("q", "k", "v"):
        lines.append(f"    {name} = {expression(rng, 2)}")
    if rng.random() < 0.7:
        axes, over = rng.choice(["K, V", "K", "", "K, K'"]), rng.choice(["", " over H"])
        lines.append(f"    recurrence S[{axes}]{over}:")
        lines.append(f"        S[t] = {expression(rng, 2)} * S[t-1] + {expression(rng, 2)}")
        lines.append(f"        o = {expression(rng, 2)}")
    else:
        reads = rng.choice(["s <= t", "s < t", "t - n < s <= t", "all s"])
        lines.append(f"    attend {reads}{rng.choice(['', ' over H'])}:")
        lines.append(f"        o = softmax({expression(rng, 3)}) @ {expression(rng, 1)}")
    lines.append(f"    output y{rng.choice(['', '', '', '[d]', '[H, K]'])} = {expression(rng, 2)}")
    return "\n".join(lines) + "\n"


LEAVES = (
    *("x", "q", "k", "v", "o", "u", "w", "A", "a", "b", "S", "S[t]", "S[t-1]", "x[t-1]"),
    *("v[s]", "k[s]", "a[s]", "1", "2", "0.5", "I", "n", "d", "K", "t", "index[K]"),
)
FORMS = (
    *("({a} + {b})", "({a} - {b})", "{a} * {b}", "{a} @ {b}", "{a} / {b}", "{a} ** 2", "-{a}"),
    *("({a}).T", "exp({a})", "sum[K]({a} * {b})", "max({a}, {b})", "softmax({a})", "diag({a})"),
    *("top(n, {a})", "silu({a})", "rmsnorm[d]({a})", "take[K]({a}, {b})", "solve({a}, {b})"),
    *("where({a} < {b}, {a}, {b})", "({a} if n > 1 else {b})", "shortconv({a}, {b})"),
    *("rope[K]({a}, 10)", "sum r in (s, t]: {a}"),
)


def expression(rng: random.Random, depth: int) -> str:
    """A random expression of the language."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(LEAVES)
    form = rng.choice(FORMS)
    return form.format(a=expression(rng, depth - 1), b=expression(rng, depth - 1))

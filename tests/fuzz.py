"""Specs that nobody meant to write: mutations of real ones, and sentences of the grammar."""

from __future__ import annotations

import random
import re
from functools import cache
from pathlib import Path

SPECS = Path(__file__).parents[1] / "specs"
TOKEN = re.compile(r"\w+'*|\n *|[^\w\s]+| +")
NAME = re.compile(r"[A-Za-z_]\w*'*")
OPERATOR = re.compile(r"\*\*|//|==|!=|<=|>=|\.T|[-+*/@%<>]")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")
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


@cache
def originals() -> tuple[str, ...]:
    """The bundled specs, in order."""
    return tuple(path.read_text("utf-8") for path in sorted(SPECS.glob("*.arch")))


def spec(seed: int) -> str:
    """One spec that nobody meant to write; the same for the same seed."""
    rng = random.Random(seed)
    return generated(rng) if seed % 3 == 0 else mutated(rng.choice(originals()), rng)


# --- mutations ----------------------------------------------------------------------------------


def mutated(text: str, rng: random.Random) -> str:
    """The text after one to three edits of one sort: of letters, or of what the letters say."""
    edits = rng.choice((LETTERS, MEANING, MEANING))
    for _ in range(rng.randint(1, 3)):
        text = rng.choice(edits)(text, rng)
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


def _strange(text: str, rng: random.Random) -> str:
    place = rng.randint(0, len(text))
    char = chr(rng.choice([0, 7, 9, 13, 0x200B, 0xFFFD, rng.randint(32, 0x2FFF)]))
    return text[:place] + char + text[place:]


def _exchange(pattern: re.Pattern[str], text: str, rng: random.Random, *others: str) -> str:
    """One match of a pattern replaced by another that the text has, or by one of the others."""
    found = list(pattern.finditer(text))
    if not found:
        return text
    match = rng.choice(found)
    new = rng.choice([*(m[0] for m in found), *others])
    return text[: match.start()] + new + text[match.end() :]


def _name(text: str, rng: random.Random) -> str:
    return _exchange(NAME, text, rng)


def _operator(text: str, rng: random.Random) -> str:
    return _exchange(OPERATOR, text, rng, "@", "**", "%", "//", "<", "==")


def _number(text: str, rng: random.Random) -> str:
    return _exchange(NUMBER, text, rng, "0", "1", "3", "0.5", "1e-9", "1e99", "d", "H")


def _without_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _wrapped(text: str, rng: random.Random) -> str:
    """A name of a line as the argument of a function, or with an index."""
    found = list(NAME.finditer(text))
    match = rng.choice(found)
    form = rng.choice((*(form for form in FORMS if "{b}" not in form), "{a}[t]", "{a}[t-1]"))
    return text[: match.start()] + form.format(a=match[0]) + text[match.end() :]


LETTERS = (_drop, _replace, _replace, _insert, _swap_lines, _cut, _strange)
MEANING = (_name, _name, _operator, _number, _without_line, _wrapped)


# --- sentences of the grammar -------------------------------------------------------------------

LEAVES = (
    *("x", "q", "k", "v", "o", "u", "w", "A", "a", "b", "S", "S[t]", "S[t-1]", "x[t-1]"),
    *("v[s]", "k[s]", "a[s]", "1", "2", "0.5", "I", "n", "d", "K", "t", "index[K]"),
)
FORMS = (
    *("({a} + {b})", "({a} - {b})", "{a} * {b}", "{a} @ {b}", "{a} / {b}", "{a} ** 2", "-{a}"),
    *("({a}).T", "exp({a})", "sum[K]({a} * {b})", "max({a}, {b})", "softmax({a})", "diag({a})"),
    *("top(n, {a})", "silu({a})", "rmsnorm[d]({a})", "take[K]({a}, {b})", "solve({a}, {b})"),
    *("where({a} < {b}, {a}, {b})", "({a} if n > 1 else {b})", "shortconv({a}, {b})"),
    *("rope[K]({a}, 10)", "sum r in (s, t]: {a}", "F({a})", "Inner(d)({a})"),
)
SIZES = ("d", "H", "K", "V", "n", "2", "7", "0", "0.5", "1e3")
SIZE_FORMS = (
    *("({a} + {b})", "({a} - {b})", "{a} * {b}", "{a} / {b}", "{a} // {b}", "{a} % {b}"),
    *("{a} ** {b}", "sqrt({a})", "exp({a})", "log({a})", "floor({a})", "max({a}, {b})"),
    *("round_up({a}, {b})", "({a} if {a} < {b} else {b})", "-{a}"),
)


def generated(rng: random.Random) -> str:
    """A spec made from the grammar's own rules: it parses, and now and then means something."""
    lines = ["function F(x):", f"    return {expression(rng, 2, ('x', '2', 'x'))}"]
    lines += ["layer Inner(d):", "    input x[d]", "    param w[d]"]
    lines += [f"    output y[d] = {expression(rng, 1, ('x', 'w'))}"]
    size = rng.choice(["none", size_expression(rng, 2)])
    lines += [f"layer L(d, H, K, V, n = 2, p = {size}):", "    input x[d], a[H, K], b[H]"]
    lines.append(f"    param A[d, {rng.choice(['H', 'K', 'd', 'H, K'])}]; w[K]; u[H, K, V]")
    if rng.random() < 0.3:
        lines.append(
            f"    require {size_expression(rng, 2)} {rng.choice('<>')} {rng.choice(SIZES)}"
        )
    for name in ("q", "k", "v"):
        lines.append(f"    {name} = {expression(rng, 2)}")
    lines += rng.choice((_recurrence, _attend, _stack, _route))(rng)
    lines.append(f"    output y{rng.choice(['', '', '', '[d]', '[H, K]'])} = {expression(rng, 2)}")
    return "\n".join(lines) + "\n"


def _recurrence(rng: random.Random) -> list[str]:
    axes, over = rng.choice(["K, V", "K", "", "K, K'"]), rng.choice(["", " over H"])
    return [
        f"    recurrence S[{axes}]{over}:",
        f"        S[t] = {expression(rng, 2)} * S[t-1] + {expression(rng, 2)}",
        f"        o = {expression(rng, 2)}",
    ]


def _attend(rng: random.Random) -> list[str]:
    reads = rng.choice(["s <= t", "s < t", "t - n < s <= t", "all s"])
    return [
        f"    attend {reads}{rng.choice(['', ' over H'])}:",
        f"        o = softmax({expression(rng, 3)}) @ {expression(rng, 1)}",
    ]


def _stack(rng: random.Random) -> list[str]:
    return [
        "    o = x",
        f"    repeat {rng.choice(['n', '3', 'd', size_expression(rng, 1)])} as l:",
        f"        param W[d, {rng.choice(['d', 'K'])}]",
        f"        o = o + {expression(rng, 2)} @ W",
    ]


def _route(rng: random.Random) -> list[str]:
    return [
        f"    route e in top({rng.choice(['n', '1', 'K'])}, softmax[H](b)) weight normalised:",
        f"        o = {expression(rng, 2)}",
    ]


def expression(rng: random.Random, depth: int, leaves: tuple[str, ...] = LEAVES) -> str:
    """A random expression of the language."""
    return _grown(rng, depth, leaves, FORMS)


def size_expression(rng: random.Random, depth: int) -> str:
    """A random expression in sizes."""
    return _grown(rng, depth, SIZES, SIZE_FORMS)


def _grown(rng: random.Random, depth: int, leaves: tuple[str, ...], forms: tuple[str, ...]) -> str:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice(leaves)
    a, b = (_grown(rng, depth - 1, leaves, forms) for _ in range(2))
    return rng.choice(forms).format(a=a, b=b)

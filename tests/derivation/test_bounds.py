"""Formulas that a page prints of a state kept within bounds, computed as they stand."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable

import pytest

from archc.derivation.page import Formula
from archc.derivation.story import page_of
from archc.derivation.typed import as_plain
from archc.elaborate.elaborate import elaborate
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse

ROWS = 5
UPDATES: dict[str, Callable[[float, dict[str, float]], float]] = {
    "relu(sigmoid(f) * h[t-1] + x)": lambda h, v: max(sigmoid(v["f"]) * h + v["x"], 0),
    "max(0.5 * h[t-1], x)": lambda h, v: max(0.5 * h, v["x"]),
    "min(sigmoid(f) * h[t-1] - x, w)": lambda h, v: min(sigmoid(v["f"]) * h - v["x"], v["w"]),
    "max(min(sigmoid(f) * h[t-1] + x, w), -0.5)": lambda h, v: max(
        min(sigmoid(v["f"]) * h + v["x"], v["w"]), -0.5
    ),
    "min(max(h[t-1] + x, -1), w)": lambda h, v: min(max(h + v["x"], -1), v["w"]),
}


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def formulas(update: str) -> list[str]:
    """The formulas of the step, in plain text."""
    text = (
        "layer L():\n    input f[], x[], w[]\n    recurrence h[]:\n"
        f"        h[t] = {update}\n    output h\n"
    )
    layer = elaborate(parse(Source("my.arch", text)), None, {}, import_source)
    steps = [step for chapter in page_of(layer, {}).chapters for step in chapter.steps]
    (blocks,) = (step.blocks for step in steps if step.title == "Within bounds")
    return [as_plain(block.math) for block in blocks if isinstance(block, Formula)]


class Numbers:
    """Values by name and row; `≤i` is a key of its own."""

    def __init__(self, rows: list[dict[str, float]], start: float) -> None:
        self.known = {(name, str(i)): x for i, row in enumerate(rows, 1) for name, x in row.items()}
        self.known["h", "0"] = start

    def value(self, text: str, **at: int) -> float:
        text = re.sub(r"([^\W\d_]+)_(?:\[([^]]*)\]|(\w))", r"of('\1', '\2\3')", text)
        text = re.sub(r"∏\[s ≤ i\] (.*)", r"prod(each(s, lambda of: \1))", text)
        text = text.replace("⊙", "*").replace("−", "-").replace("∞", "inf").replace("σ", "sigmoid")
        text = text.replace("[", "float(").replace("]", ")")

        def reader(**more: int) -> Callable[[str, str], float]:
            return lambda name, sub: self.known[name, key(sub, {**at, **more})]

        def each(_: None, inner: Callable[[Callable], float]) -> list[float]:
            return [inner(reader(s=s)) for s in range(1, at["i"] + 1)]

        names = {"of": reader(), "each": each, "s": None, "prod": math.prod, "inf": math.inf}
        return eval(text, {**names, "max": max, "min": min, "sigmoid": sigmoid})

    def define(self, formula: str, **at: int) -> None:
        left, right = formula.split(" = ", 1)
        value, *begun = right.split(", ") if right.count(" = ") else [right]
        if begun and " = " in begun[-1]:  # `max(a, b), c_0 = −∞`
            value, _, first = right.rpartition(", ")
            name, number = first.split(" = ")
            self.known[name[0], "0"] = self.value(number)
        name, _, sub = left.partition("_")
        self.known[name, key(sub.strip("[]"), at)] = self.value(value, **at)


def key(sub: str, at: dict[str, int]) -> str:
    """A subscript with numbers in it."""
    known = {**at, "C": ROWS}
    row = re.fullmatch(r"(≤?)([a-zC])(-1)?", sub)
    return sub if row is None else f"{row[1]}{known[row[2]] - bool(row[3])}"


@pytest.mark.parametrize("update", UPDATES)
def test_a_chunk_is_what_its_page_says(update: str) -> None:
    draw = random.Random(0)
    rows = [{name: draw.gauss(0, 1) for name in "fxw"} for _ in range(ROWS)]
    states = [draw.gauss(0, 1)]
    for row in rows:
        states.append(UPDATES[update](states[-1], row))
    numbers, found = Numbers(rows, states[0]), formulas(update)
    parts = [each for each in found if re.match(r"[^h]_t = ", each)]
    assert parts
    for i in range(1, ROWS + 1):
        for each in parts:
            numbers.define(each, t=i)
    chunk = [each for each in found if re.match(r"[^h]_(\[≤i\]|i) = ", each)]
    for i in range(1, ROWS + 1):
        for each in chunk:
            if i == 1 and each[2:4] == "[≤":
                numbers.known[each[0], "≤1"] = numbers.known[each[0], "1"]
            else:
                numbers.define(each, i=i)
    (last,) = (each.split(" = ", 1)[1] for each in found if each.startswith("h_C = "))
    (every,) = (each.split(" = ", 1)[1] for each in found if each.startswith("h_i = "))
    assert numbers.value(last) == pytest.approx(states[-1], abs=1e-12)
    for i in range(1, ROWS + 1):
        assert numbers.value(every, i=i) == pytest.approx(states[i], abs=1e-12)

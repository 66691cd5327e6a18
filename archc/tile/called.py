"""Names of values that nobody named: by what they are made of, or by what they go into.

    times_2 = alpha * S            alpha_S = alpha * S
    minus = times_2 - times_5      S_diff = alpha_S - beta_k * v

A product of two is called by both, a function of one by it, a place among numbers by its formula,
a mask by the memory that it lets read. What would be long is called by the nearest value with a
name that it goes into, and what its op does.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import sympy

from archc.tile import language as lang
from archc.tile.hints import hint

LONGEST, WIDEST, NEAR = 12, 11, 4
"""The most letters of a name that is made of others, and of one that is extended by a word; and how
many steps away that may be."""

SAME = (lang.Relabel, lang.Transpose, lang.Broadcast, lang.Reshape, lang.Flip)
"""Ops whose results are their operands, arranged otherwise."""

CHANGED = {
    "mul": "scaled", "add": "sum", "sub": "diff", "div": "ratio", "where": "chosen", "max": "most",
    "min": "least", "sum": "sum",
}  # fmt: skip
"""The word that a function adds to the name of what its value goes into."""

SIGNS = {
    "add": "plus", "sub": "less", "mul": "times", "floordiv": "by", "mod": "mod", "lt": "below",
    "le": "to", "gt": "above", "ge": "from", "eq": "is", "ne": "not",
}  # fmt: skip
"""The word between the operands of a place or of a comparison."""


def call_values(body: lang.Block, taken: set[str]) -> None:
    """Give every value a name of its own, none that is `taken`: what somebody called it, or else
    one by a rule; first those that have a line of their own for sure."""
    names, every = _Names(body, taken), [*_values(body)]
    for value in every:
        names.wanted[value] = value.title or names.word(value)
    names.titles = {value.title for value in every}
    for value in sorted(every, key=lambda value: (not value.title, names.rank(value))):
        names.call(value)


def _values(body: lang.Block) -> Iterator[lang.Value]:
    """Every value of a block and of those in it."""
    yield from body.arguments
    for each in lang.statements(body):
        yield from each.results
        for block in each.blocks:
            yield from block.arguments


class _Names:
    """Who makes and who reads the values of a program."""

    def __init__(self, body: lang.Block, taken: set[str]):
        self.made: dict[lang.Value, lang.Statement] = {}
        self.users: dict[lang.Value, list[lang.Statement]] = defaultdict(list)
        self.becomes: dict[lang.Value, list[lang.Value]] = defaultdict(list)
        self.sources: dict[lang.Value, list[lang.Value]] = defaultdict(list)
        self.hidden, self.starts = set[lang.Value](), set[lang.Value]()
        self.ends: dict[lang.Value, list[lang.Value]] = defaultdict(list)
        self.given = set[lang.Value]()
        for each in lang.statements(body):
            self._note(each)
        self.wanted: dict[lang.Value, str] = {}
        self.called: set[lang.Value] = set()
        self.titles, self.taken = set[str](), {*taken}

    def _note(self, s: lang.Statement) -> None:
        """Who reads what a statement is given, and what loops and branches hand on."""
        for value in s.operands:
            self.users[value].append(s)
        if not isinstance(s.op, lang.For | lang.While | lang.If):
            self.made |= dict.fromkeys(s.results, s)
            return
        for block in s.blocks:
            count = len(s.results)
            inner = block.arguments[len(block.arguments) - count :] or s.results
            given = s.operands[len(s.operands) - count :] if block.arguments else inner
            ends = block.yields[len(block.yields) - count :]
            if not block.arguments:
                here = {value for each in block.statements for value in each.results}
                self.given |= here.intersection(ends)
            for chain in zip(given, ends, inner, s.results, strict=True):
                for value in chain[:3]:
                    self.becomes[value] += [each for each in chain[2:] if each is not value]
                self.sources[chain[2]] += chain[:2]
                self.ends[chain[3]].append(chain[1])
                if block.arguments:
                    self.ends[chain[2]].append(chain[1])
                    self.hidden |= {chain[3], chain[2]}
                    self.starts.add(chain[0])

    def rank(self, value: lang.Value) -> int:
        """How likely it is that no line makes a value: that of a loop goes by what enters it, or by
        what a branch gives that gives it alone."""
        if self._is_given(value):
            return 2
        if value in self.hidden:
            return 0 if any(len(self.users[each]) > 1 for each in self.sources[value][:1]) else 2
        return 0 if len(self.users[value]) > 1 or value in self.starts else 1

    def _is_given(self, value: lang.Value) -> bool:
        """Whether a loop carries a value, or begins with it alone, and a branch gives the last."""
        if value not in self.hidden and (value not in self.starts or len(self.users[value]) > 1):
            return False
        goes_on = value in self.starts or self.sources[value]  # or else it is what a loop ends with
        last = self.becomes[value][-1] if goes_on else value
        return last in self.given and not self.users[last]

    def call(self, value: lang.Value) -> None:
        """Give a value a name that no other has."""
        if value in self.called:
            return
        self.called.add(value)
        name = self.wanted[value]
        made = self.made.get(value)
        if made is not None and isinstance(made.op, lang.Cast) and not value.title:
            (given,) = made.operands
            self.call(given)
            words = {"f32": "wide"}
            name = f"{given.name}_{words.get(made.op.dtype, made.op.dtype.lower())}"
        name = re.sub(r"\W", "_", name).strip("_")
        name = f"place_{name}" if name[:1].isdigit() else name  # along a dim that no spec named
        found, count = name, 1
        while found in self.taken or (count > 1 and found in self.titles):
            count += 1
            found = f"{name}_{count}"
        self.taken.add(found)
        object.__setattr__(value, "name", found)

    # --- words ---

    def word(self, value: lang.Value) -> str:
        """The name that a value wishes for."""
        made = self.made.get(value)
        if value.hint:
            return value.hint
        if made is None:  # what a loop carries, or a branch gives
            made_of = [v for each in self.sources[value] for v in (each, *self.ends[each])]
            hints = (each.hint or each.title for each in made_of if each is not value)
            known = next(filter(None, hints), "") or self._into(value)
            return known or ("acc" if self._is_sum(value) else "carried")
        op = made.op
        if isinstance(op, SAME):
            return self._joined([*made.operands]) or hint(op)
        if isinstance(op, lang.Cast):  # by `call`, after what it is a cast of
            return self._joined([*made.operands]) or hint(op)
        if isinstance(op, lang.Full):
            return self._of_start(value) or ("zeros" if op.number == 0 else hint(op))
        if isinstance(op, lang.Reduce):
            return self._of_sum(made)
        if isinstance(op, lang.Scan) and op.function:
            return self._joined([*made.operands], f"{op.function}s") or hint(op)
        if isinstance(op, lang.Dot):
            return self._joined([*made.operands[:2]]) or self._into(value, "product") or hint(op)
        return self._of_function(value, made) if isinstance(op, lang.Apply) else hint(op)

    def _of_start(self, value: lang.Value) -> str:
        """The name of what a loop carries that begins with a value, which nothing else reads."""
        if value not in self.starts or len(self.users[value]) > 1:
            return ""
        carried, *_ = self.becomes[value]
        return carried.title or self.word(carried)

    def _is_sum(self, value: lang.Value) -> bool:
        """Whether turns of a loop add to what it carries, or a way of a branch gives such a sum."""
        for end in self.ends[value]:
            op = self.made[end].op if end in self.made else None
            if value in self.hidden and (isinstance(op, lang.Dot) or op == lang.Apply("add")):
                return True
            if value not in self.hidden and end in self.hidden and self._is_sum(end):
                return True
        return False

    def _of_function(self, value: lang.Value, made: lang.Statement) -> str:
        """The name of the value of an elementwise function."""
        fn, given = made.op.function, made.operands
        if lang.kind(value.type.dtype) == "bool":
            ops = [s.op for s in self.users[value]]
            lets = [op.buffer for op in ops if isinstance(op, lang.Load | lang.Store)]
            formula = self._formula(fn, given)
            return f"in_{lets[0].name}" if lets else formula or hint(made.op)
        if lang.kind(value.type.dtype) == "int":
            return self._place(fn, given) or self._formula(fn, given) or "place"
        if fn == "mul" and self._joined([*given]):
            return self._joined([*given])
        if len(given) == 1 and self._joined([*given]):
            return f"{fn}_{self._joined([*given])}"
        return self._into(value, CHANGED.get(fn, fn)) or hint(made.op)

    def _place(self, fn: str, given: tuple[lang.Value, ...]) -> str:
        """Where the part of an axis begins that a program has, or the indices of a tile."""
        ops = [self.made[value].op for value in given if value in self.made]
        axis = next((op.axis for op in ops if isinstance(op, lang.ProgramId)), "")
        if fn == "mul" and axis:
            return f"first_{axis.removesuffix('_part')}"
        dim = next((op.dim.name for op in ops if isinstance(op, lang.Iota)), "")
        scalar = len(given) == 2 and any(not value.type.dims for value in given)
        return f"place_{dim}" if fn == "add" and dim and scalar else ""

    def _formula(self, fn: str, given: tuple[lang.Value, ...]) -> str:
        """A place or a comparison in words."""
        parts = [self._of(value) for value in given]
        if fn in ("add", "mul"):  # 2 * half
            parts.sort(key=lambda part: part[:1].isdigit())
        long = len("".join(parts)) > LONGEST
        if fn not in SIGNS or not all(parts) or long or parts[0][0].isdigit():
            return ""
        return f"{parts[0]}_{SIGNS[fn]}_{parts[1]}"

    def _of_sum(self, made: lang.Statement) -> str:
        """The name of a value without one of its dims: a sum of products is named as these."""
        (x,), (value,), fn = made.operands, made.results, made.op.function
        inner = self.made.get(x)
        product = inner is not None and inner.op == lang.Apply("mul") and not x.title
        if fn == "sum" and product and inner is not None:
            return self._joined([*inner.operands]) or self._into(value, "product") or hint(made.op)
        name = self._joined([x])
        return f"{fn}_{name}" if name else self._into(value, CHANGED.get(fn, fn)) or hint(made.op)

    def _joined(self, values: list[lang.Value], word: str = "") -> str:
        """The names of several values, if they have some, that are short together."""
        parts = [self._of(value) for value in values]
        if not all(parts) or len("".join(parts)) > LONGEST or any(p[0].isdigit() for p in parts):
            return ""
        return "_".join([*parts, *[word] * bool(word)])

    def _of(self, value: lang.Value) -> str:
        """The part that a value adds to the name of another: its own name, without its number."""
        made = self.made.get(value)
        if made is not None and isinstance(made.op, (*SAME, lang.Cast)) and not value.title:
            return self._of(made.operands[0])
        if made is not None and isinstance(made.op, lang.Full):
            number = made.op.number if not value.type.dims else -1
            return str(int(number)) if number >= 0 and float(number).is_integer() else ""
        if made is not None and isinstance(made.op, lang.Scalar):
            size = made.op.size
            return size.name if isinstance(size, sympy.Symbol) and size.name.isidentifier() else ""
        return self.wanted.get(value, "").removeprefix("saved_")

    def _into(self, value: lang.Value, word: str = "") -> str:
        """The name of the nearest value or memory that this one goes into, and a word."""
        row, seen = [value], {value}
        for _ in range(NEAR):
            found = next(filter(None, map(self._reached, row)), "")
            found = found.removeprefix("saved_")
            if found:
                name = found if not word or found.endswith(word) else f"{found}_{word}"
                return name if len(found) <= WIDEST else ""
            row = [after for each in row for after in self._after(each) if after not in seen]
            seen |= {*row}
        return ""

    def _after(self, value: lang.Value) -> list[lang.Value]:
        """The values of its kind that are made of this one."""
        made = [each for s in self.users[value] for each in s.results]
        like = lang.kind(value.type.dtype)
        return [v for v in (*made, *self.becomes[value]) if lang.kind(v.type.dtype) == like]

    def _reached(self, value: lang.Value) -> str:
        """The name of what one more step leads to."""
        for s in self.users[value]:
            stores = isinstance(s.op, lang.Store | lang.Atomic)
            if stores and s.operands[len(s.op.buffer.axes)] is value:
                return s.op.buffer.name
        return next((v.title for v in self._after(value) if v.title), "")

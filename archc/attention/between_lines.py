"""Sums whose score goes through matrices of the tokens between in words: lines of a plan, and the
formulas of what is at the borders of spans and what goes from level to level of their tree."""

from __future__ import annotations

from collections.abc import Iterator

from archc.attention.between import SPAN, Between, Rank, rows_of_token
from archc.attention.listing import lines, places
from archc.attention.weighted_sum import Source


def _u_of(rank: Rank) -> str:
    """The vector u of an outer product."""
    return rank.u.name if rank.u.dim else f"{rank.u.name} {rank.w.name}"


def lines_between(between: Between) -> Iterator[tuple[str, str]]:
    """The lines about a weighted sum through matrices of the tokens between."""
    whole, dot = between.whole, between.dot
    path = whole.source(dot.read).type.axes[1].name
    if between.gate is not None:
        yield from _lines_of_gates(between, between.gate.name, path)
        return
    outer = " ".join(
        f"{'-' if rank.sign < 0 else '+'} {_u_of(rank)} {rank.w.name}'" for rank in between.ranks
    )
    through = f"{dot.read}' M[{path} + 1] ... M[{whole.reader.name}] {dot.reader}, M = I {outer}"
    for title, text in lines(whole):
        if title == dot.name:
            yield title, through
            tokens = SPAN // rows_of_token(len(between.ranks))
            yield "spans", f"of {tokens} tokens, then twice as long: later ones read earlier ones"
            beside = f"{between.left.name} . {between.right.name}"
            yield "inside", f"{dot.name} = {dot.reader} . {dot.read} - {beside}, of a chunk"
            yield "borders", f"{dot.reader} and {dot.read} are brought to the border of two spans"
        elif title != "few readers":
            yield title, text


def _lines_of_gates(between: Between, gate: str, path: str) -> Iterator[tuple[str, str]]:
    """The lines where matrices between are diagonals."""
    whole, dot = between.whole, between.dot
    q, k, t = dot.reader, dot.read, whole.reader.name
    for title, text in lines(whole):
        if title == dot.name:
            yield title, f"sum of {q} {k} exp({gate}[{path} + 1] + ... + {gate}[{t}]), by channel"
            yield "spans", f"of {SPAN} tokens, then twice as long: later ones read earlier ones"
            yield "inside", f"{dot.name} = {between.left.name} . {between.right.name}, pair by pair"
            yield "borders", f"{q} and {k} times the gates up to the border of two spans"
        elif title != "few readers":
            yield title, text


class Equations:
    """The lines of docstrings of kernels between the folds of a tree: formulas with their dims, of
    vectors as rows, and the place in the spec. `q`, `k`, `u`, `w`, `gate` are the arguments."""

    def __init__(self, between: Between):
        self.between, whole = between, between.whole
        reader = whole.source(between.dot.reader)
        heads, dim = " ".join(axis.name for axis in whole.heads), _dim(reader)
        batch, self.t, self.s = reader.type.axes[0].name, whole.reader.name, whole.read.name
        self.rows, self.K = f"[{batch} {heads} {self.t} {dim}]", dim
        self.small = f"[{batch} {heads} {self.t} row]"
        own = dim if between.gate is not None else f"{dim} {dim}'"
        self.span = f"[{batch} {heads} span {own}]"
        self.inner = f"[{batch} {heads} span row row']"
        self.places = places(whole)

    def borders(self) -> list[str]:
        """q at the begin of each span, k at its end, and the product of what is between."""
        if self.between.gate is not None:
            up_to, behind = (f"exp(sum of gate {where} in the span)" for where in self._ends())
            return [
                f"left = sum[{self.K}](q * k * {self._decay()})  {self.small}",
                f"q_moved = q * {up_to}  {self.rows}",
                f"k_moved = k * {behind}  {self.rows}",
                f"matrix = exp(sum of gate)  {self.span}", *self.places,
            ]  # fmt: skip
        return [
            *self._system(),
            f"left = tril(q w') A  {self.small}",
            f"right = stril(u k')'  {self.small}",
            f"q_moved = q - left u  {self.rows}",
            f"k_moved = k - right A' w  {self.rows}",
            f"matrix = I - (A u)' w  {self.span}", *self.places,
        ]  # fmt: skip

    def of_borders(self) -> list[str]:
        """The gradient of that."""
        if self.between.gate is not None:
            up_to, behind = (f"exp(sum of gate {where} in the span)" for where in self._ends())
            decay = self._decay()
            return [
                f"d_q = sum[{self.s}](d_left * k * {decay}) + d_q_moved * {up_to}  {self.rows}",
                f"d_k = sum[{self.t}](d_left * q * {decay}) + d_k_moved * {behind}  {self.rows}",
                f"d_gate = q * d_q - k * d_k  {self.rows}",
                f"at_end = sum[{self.s} of a part](k * d_k_moved * {behind})",
                *self.places,
            ]  # fmt: skip
        rate = (f"d_rate = sum[{self.K}](d_u * w), d_w += rate * d_u",) * self._rated()
        return [
            *self._system(),
            "d_G = tril((d_left - d_q_moved u') A'), d_mid = -d_k_moved w', d_X = -d_matrix w'",
            "d_R = stril((d_right + d_mid A)')', d_L = stril(-A' d_A A')",
            "d_A = G' (d_left - d_q_moved u') + d_mid' right + d_X' u', G = tril(q w')",
            f"d_q = d_q_within + d_q_moved + d_G w  {self.rows}",
            f"d_k = d_k_within + d_k_moved + d_R u  {self.rows}",
            "d_u = d_R' k - (G A)' d_q_moved + A' d_X' + d_L w",
            "d_w = d_G' q - (right A')' d_k_moved - (A u) d_matrix + d_L' u", *rate, *self.places,
        ]  # fmt: skip

    def sums(self) -> list[str]:
        """The gradients of logarithms of gates, from those of tokens."""
        own = "d_gate[i] = sum of d_gate from i to the end of its span + sum[part](at_end)"
        return [f"{own} + d_matrix  {self.rows}", *self.places]

    def climb(self) -> list[str]:
        """Rows from a level to the next."""
        before, behind = self._moved("q", "k")
        return [f"{before}  {self.rows}", f"{behind}  {self.rows}", *self.places]

    def join(self) -> list[str]:
        """Matrices of the next level."""
        return [f"joined[n] = matrices[2 n] matrices[2 n + 1]  {self.span}", *self.places]

    def descend(self) -> list[str]:
        """The gradient of both."""
        before, behind = self._moved("d_q", "d_k", "'")
        above = "d_joined[span // 2]"
        if self.between.gate is not None:
            total = f"{above} + sum of d * kept over the rows of span"
            more = [f"d log matrices[the other span] = {total}  {self.span}"]
        else:
            more = [
                f"d_matrices[span - 1] = {above} matrices[span]' + d_q' kept, of odd spans",
                f"d_matrices[span + 1] = matrices[span]' {above} + kept' d_k, of even spans"
                f"  {self.span}",
            ]  # fmt: skip
        return [f"{before}  {self.rows}", f"{behind}  {self.rows}", *more, *self.places]

    def _moved(self, q: str, k: str, back: str = "") -> tuple[str, str]:
        """Rows of odd spans and of even ones, by what is of the other span."""
        if self.between.gate is not None:
            own = (f"{q} * matrices[span - 1]", f"{k} * matrices[span + 1]")
        else:
            own = (f"{q} matrices[span - 1]" + ("" if back else "'"),
                   f"{k} matrices[span + 1]" + back)  # fmt: skip
        return f"{q} = {own[0]}, of odd spans", f"{k} = {own[1]}, of even spans"

    def _decay(self) -> str:
        return f"exp(sum of gate in ({self.s}, {self.t}])"

    def _ends(self) -> tuple[str, str]:
        """Where the gates are that take readers to the begin of a span, tokens to its end."""
        return f"up to {self.t}", f"behind {self.s}"

    def _rated(self) -> bool:
        return all(rank.u.dim is None for rank in self.between.ranks)

    def _system(self) -> list[str]:
        """The small matrices of a span, with a row of u and w for each outer product."""
        rate = ["u = rate * w"] if self._rated() else []
        system = f"A = inverse(I + stril(u w'))  {self.inner}"
        return ["M = I - u' w of the rows of a token", *rate, system]


def _dim(source: Source) -> str:
    return source.dim.name if source.dim is not None else ""

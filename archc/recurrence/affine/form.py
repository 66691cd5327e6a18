"""The normal form of a recurrence: what every linear update of a state comes down to.

One token is one or more micro-steps. A micro-step, for all values of batch-like axes at once, is

    S' = decay * S_prev
    S  = S' + sum over terms of  x * (c + sum over the key axes of w * S*)

with S* = S' where the term is `after`, else S_prev decayed along its value side alone. Axes have
names, so that every product here is elementwise and commutes: x and w have key axes, c has value
axes, and nothing is transposed. The expressions are polynomials (sympy) over symbols that stand for
values of the body: `Atom`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import sympy

from archc.dims import Axis
from archc.ir.refusal import Refusal
from archc.recurrence.affine.atoms import Atoms, Table

MATRIX, DIAGONAL, DENSE = "matrix", "diagonal", "dense"
LINKED = "linked"
TROPICAL, SEQUENTIAL = "tropical", "sequential"

BEFORE, AFTER, WRITTEN = "before", "after", "written"


@dataclass(frozen=True)
class Term:
    """`x * (c + w . S*)`: x on the key axes, c on the value axes, w on the key axes (0: a write
    that reads nothing). Scalars stand in c and w, never in x."""

    x: sympy.Expr
    c: sympy.Expr
    w: sympy.Expr
    after: bool


@dataclass(frozen=True)
class Step:
    """One micro-step. `decay` is the product of `key` (key-side and scalar factors) and `value`
    (value-side factors); 1 where nothing decays. In a "diagonal" form it is not taken apart (`key`
    is all of it); in a "tropical" form the step is max(decay + S_prev, c of its only term), or
    what the form's `sums` has in place of max.

    `matrix`, of a "dense" form: S' = decay * S_prev + the sum over `column` of matrix * S_prev with
    its axis `row` called `column`.

    `rank`: an axis of x, and of c or w, of some of the terms: what those write is summed over it.
    """

    decay: sympy.Expr
    key: sympy.Expr
    value: sympy.Expr
    terms: tuple[Term, ...]
    matrix: sympy.Expr = field(default_factory=lambda: sympy.Integer(0))
    row: str = ""
    column: Axis | None = None
    rank: Axis | None = None


@dataclass(frozen=True)
class Part:
    """`scale` times the sum over `axes` of covector * state. `when` says which state: S_prev of
    micro-step `step` ("before"), S' of it ("after"), or S when the step is done ("written")."""

    step: int
    when: str
    covector: sympy.Expr
    axes: tuple[str, ...]
    scale: sympy.Expr


@dataclass(frozen=True)
class Read:
    """A value of the body that reads the state: node = sum of `parts` + `free`.

    Everything is written with the axes of the state; `renamed` has the pairs (axis of the state,
    axis of the node) that differ.
    """

    node: int
    parts: tuple[Part, ...]
    free: sympy.Expr
    renamed: tuple[tuple[str, Axis], ...] = ()


@dataclass(frozen=True)
class StateForm:
    """One state: its axes by role, its micro-steps, and what reads it.

    `key` axes are summed by corrections and reads, `value` axes are those of the rows, `shared`
    ones are batch-like. `whole` are body nodes with all axes of the state that something takes as
    they are, other than by a sum against a vector (`tanh` of a state, a matrix to solve with, an
    update of another state). The state's own result is not counted: whether anything reads it
    along the stream, only the graph around the Recurrence knows.
    """

    state: str
    key: tuple[Axis, ...]
    value: tuple[Axis, ...]
    shared: tuple[Axis, ...]
    steps: tuple[Step, ...]
    reads: tuple[Read, ...]
    whole: tuple[int, ...]

    @property
    def is_vector(self) -> bool:
        """Whether it is no larger than what a token writes, and decays before anything else."""
        return not self.value and all(step.decay == 1 for step in self.steps[1:])


@dataclass(frozen=True)
class LinkedTerm:
    """`x * (c + the sum over j of reads[j] . S_j[t-1])`, of which state i gets `writes[i]` times: x
    and reads on the key axes, c on the value axes, writes numbers. With a turn x is 1, and writes
    are on the key axes."""

    x: sympy.Expr
    c: sympy.Expr
    reads: tuple[sympy.Expr, ...]
    writes: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class LinkedPart:
    """`scale` times the sum over the key axes of covector * state number `state`, after the token
    if `written`, else before it."""

    state: int
    written: bool
    covector: sympy.Expr
    scale: sympy.Expr


@dataclass(frozen=True)
class LinkedRead:
    """A value of the body that reads linked states: node = sum of `parts` + `free`, with the axes
    of the states, of which `renamed` has those that the node calls otherwise."""

    node: int
    parts: tuple[LinkedPart, ...]
    free: sympy.Expr
    renamed: tuple[tuple[str, Axis], ...] = ()


@dataclass(frozen=True)
class Turn:
    """States that are only scaled, each by one of `sizes` (numbers, or on the key axes), and then
    turned by `angle`, the first one into the second; 0 is no turn."""

    sizes: tuple[sympy.Expr, ...]
    angle: sympy.Expr


@dataclass(frozen=True)
class Links:
    """Matrix states with the same axes that scale one another (`NormalForm.blocks`) by numbers, or
    as a turn, what is written to them, and what reads them. `whole` are nodes that take one as it
    is; `rank` is as in `Step`, and no number has it."""

    key: tuple[Axis, ...]
    value: tuple[Axis, ...]
    terms: tuple[LinkedTerm, ...]
    reads: tuple[LinkedRead, ...]
    whole: tuple[int, ...]
    turn: Turn | None = None
    rank: Axis | None = None


@dataclass(frozen=True)
class NormalForm:
    """A group of states that one derivation serves: one component, or several states whose decays,
    x and w are equal, so that they are columns of one matrix (their forms differ in c and reads).

    kind: matrix (rank-one writes), diagonal (elementwise, whatever the writes are), dense (a matrix
    along an axis: `Step.matrix`; or coupled states: `blocks[i][j]` scales state j into state i, and
    the steps hold the writes; `turn`: those blocks are one), linked (matrices that scale one
    another and are corrected together: `blocks` and `links`, no forms), tropical (over `sums`, one
    of `SEMIRINGS`), sequential (then `refusal` says why). `without_ranks`, where steps have ranks:
    the forms of the states without them, for states that are taken whole, or linked ones apart.
    """

    kind: str
    states: tuple[str, ...]
    forms: tuple[StateForm, ...]
    atoms: Atoms
    refusal: Refusal | None = None
    blocks: tuple[tuple[sympy.Expr, ...], ...] = ()
    links: Links | None = None
    turn: Turn | None = None
    without_ranks: tuple[NormalForm, ...] = ()
    sums: str = ""

    def key(self) -> str:
        """Canonical text of the update: equal for two spellings of one update. Axes are named by
        their roles, values by the captures they come from; reads are not part of it."""
        lines = [line for form in self.forms for line in _lines(self, form)]
        return "\n".join([self.sums or self.kind, *lines, *_linked_lines(self)])


def _linked_lines(whole: NormalForm) -> list[str]:
    """The updates of linked states, canonically."""
    if whole.links is None:
        return []
    table, links = Table(whole.atoms), whole.links
    roles = {axis.name: axis.renamed(f"key{i}") for i, axis in enumerate(links.key)}
    roles |= {axis.name: axis.renamed(f"value{i}") for i, axis in enumerate(links.value)}

    def text(*exprs: sympy.Expr) -> str:
        return " | ".join(table.text(table.rename(expr, roles)) for expr in exprs)

    terms = sorted(f"term {text(t.x, t.c, *t.reads, *t.writes)}" for t in links.terms)
    rank = [f"rank {links.rank.name}"] if links.rank is not None else []
    return [*(f"from {text(*row)}" for row in whole.blocks), *rank, *terms]


def _lines(whole: NormalForm, form: StateForm) -> list[str]:
    """The update of one state, canonically."""
    table = Table(whole.atoms)
    roles = {axis.name: axis.renamed(f"key{i}") for i, axis in enumerate(form.key)}
    roles |= {axis.name: axis.renamed(f"value{i}") for i, axis in enumerate(form.value)}

    def text(expr: sympy.Expr) -> str:
        return table.text(table.rename(expr, roles))

    lines = []
    for step in form.steps:
        lines.append(f"decay {text(step.decay)}")
        lines += [f"matrix {text(step.matrix)}"] if step.matrix != 0 else []
        lines += [f"rank {step.rank.name}"] if step.rank is not None else []
        lines += sorted(
            f"term {text(t.x)} | {text(t.c)} | {text(t.w)} | {AFTER if t.after else BEFORE}"
            for t in step.terms
        )
    place = whole.states.index(form.state)
    lines += [f"from {text(entry)}" for entry in (whole.blocks[place] if whole.blocks else ())]
    return lines

"""Layer IR -> the normal form of every recurrence: decay, terms and reads of each state.

The body of a Recurrence at one token is read as polynomials (`polynomials`), taken apart into
micro-steps (`chain`), and each axis gets its role (`axis_roles`). What has no such form is no
error: a form says why.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from archc.dims import free_symbols
from archc.ir import layer as ir
from archc.ir.graph import components
from archc.ir.refusal import Refusal
from archc.recurrence.affine.atoms import Table, TooLong
from archc.recurrence.affine.axis_roles import own_axes, sides
from archc.recurrence.affine.blocks import coupled
from archc.recurrence.affine.chain import Chain, Refused, chain
from archc.recurrence.affine.form import MATRIX, SEQUENTIAL, NormalForm, StateForm, Step
from archc.recurrence.affine.linked import linked
from archc.recurrence.affine.maximum import tropical
from archc.recurrence.affine.reads import finished, reads_of
from archc.recurrence.analysis.degree import OTHER, Degree, degrees, reads, updates

MOST_JOINED = 4
"""Forms of states that are tried as one: each more multiplies what is tried."""


def normal_forms(recurrence: ir.Recurrence) -> tuple[NormalForm, ...]:
    """The normal forms of a Recurrence's states, each after those whose values it needs."""
    graph = {state.name: reads(recurrence, state.name) for state in recurrence.states}
    found = [component(recurrence, tuple(group)) for group in components(graph)]
    return tuple(_merged(recurrence, _taken_together(recurrence, found)))


def component(recurrence: ir.Recurrence, states: tuple[str, ...]) -> NormalForm:
    """The normal form of states that must be computed together."""
    linear, after = degrees(recurrence, states), updates(recurrence)
    broken = [linear[after[s]] for s in states if linear[after[s]].kind == OTHER]
    if broken:
        found = tropical(recurrence, states)
        if found is not None:
            return found
        culprit = broken[0].culprit
        help = "a cell that is not linear in its state runs token by token"
        if culprit is not None and isinstance(recurrence.body[culprit].op, ir.Reshape | ir.Join):
            help = "a state that is itself cut, joined or renamed runs token by token"
        return sequential(states, Refusal(culprit, broken[0].why, help, "E0601"))
    try:
        if len(states) > 1:
            return _several(recurrence, linear, states)
        return _linear(recurrence, linear, next(iter(states)))
    except Refused as refused:
        return sequential(states, refused.refusal)
    except TooLong:
        reason = "the update is a sum of too many products"
        return sequential(
            states, Refusal(None, reason, "keep its factors apart, or name parts", "E0607")
        )


def _several(
    recurrence: ir.Recurrence, linear: Mapping[int, Degree], states: tuple[str, ...]
) -> NormalForm:
    """The form of states that feed one another: as matrices that are only read, or else element by
    element."""
    try:
        found = linked(recurrence, linear, states)
    except (Refused, TooLong) as refused:
        try:
            return coupled(recurrence, linear, states)
        except Refused as other:
            raise (refused if isinstance(refused, Refused) else other) from None
    assert found.links is not None, "linked states have links"
    if not found.links.whole and found.links.rank is None:
        return found
    try:
        other = coupled(recurrence, linear, states)
    except Refused:
        return found
    return other if found.links.whole else replace(found, without_ranks=(other,))


def sequential(states: tuple[str, ...], refusal: Refusal) -> NormalForm:
    """No form but the recurrence itself."""
    return NormalForm(SEQUENTIAL, states, (), {}, refusal)


def _linear(recurrence: ir.Recurrence, linear: Mapping[int, Degree], name: str) -> NormalForm:
    """The form of one state that is linear in itself."""
    state = next(state for state in recurrence.states if state.name == name)
    table = Table()
    found = chain(recurrence, linear, table, state)
    raw, whole = reads_of(recurrence, state, found, table)
    if whole and _is_decayed_vector(recurrence, state, found):
        raw = []  # every element is a value at every token: reads sum those

    def made(ranks: bool) -> NormalForm:
        queries = [query for read in raw for query in read.queries]
        split = sides(recurrence, state, found, table, queries, ranks)
        own = [axis for axis in state.axes if axis.name not in split.roles.key | split.roles.value]
        form = StateForm(
            name,
            tuple(axis for axis in state.axes if axis.name in split.roles.key),
            tuple(axis for axis in state.axes if axis.name in split.roles.value),
            tuple(own),
            split.steps,
            tuple(finished(table, read, found.versions, split.steps) for read in raw),
            tuple(whole),
        )
        return NormalForm(split.kind, (name,), (form,), table.atoms)

    try:
        form = made(ranks=True)
    except Refused:
        return made(ranks=False)
    if all(step.rank is None for each in form.forms for step in each.steps):
        return form
    try:
        return replace(form, without_ranks=(made(ranks=False),))
    except Refused:
        return form


def _is_decayed_vector(recurrence: ir.Recurrence, state: ir.State, found: Chain) -> bool:
    """Whether a state is a vector of a head that no correction reads: a scan of elements."""
    corrected = any(raw.corrections for raw in found.steps)
    return len(own_axes(recurrence, state)) == 1 and not corrected


# --- groups --------------------------------------------------------------------------------------


def _taken_together(recurrence: ir.Recurrence, forms: Sequence[NormalForm]) -> Sequence[NormalForm]:
    """Matrices that the updates of others take whole, and those, as linked states: what is written
    to the others is then no value for each of their elements at every token."""
    for form in forms:
        group = _joined(recurrence, forms, (form,)) if _taken_whole(form) else None
        if group is not None:
            rest = [each for each in forms if not {*each.states} & {*group.states}]
            return _taken_together(recurrence, [*rest, group])
    return forms


def _joined(
    recurrence: ir.Recurrence, forms: Sequence[NormalForm], group: tuple[NormalForm, ...]
) -> NormalForm | None:
    """The form of a group with states that it feeds, one after the other, until nothing but these
    takes one of them whole."""
    own = [name for form in group for name in form.states]
    for later in forms:
        if later in group or len(later.states) != 1 or not _next(recurrence, own, later.states[0]):
            continue
        states, more = (*own, *later.states), (*group, later)
        try:
            found = linked(recurrence, degrees(recurrence, states), states)
        except (Refused, TooLong):
            found = None
        if found is None or found.links is None or found.links.whole:
            found = _joined(recurrence, forms, more) if len(more) < MOST_JOINED else None
        elif found.links.rank is not None:
            found = replace(found, without_ranks=more)
        if found is not None:
            return found
    return None


def _taken_whole(form: NormalForm) -> bool:
    """Whether something takes matrices whole that else have a chunked form."""
    if form.kind == MATRIX:
        return len(form.states) == 1 and bool(form.forms[0].whole)
    return form.links is not None and bool(form.links.whole)


def _next(recurrence: ir.Recurrence, first: Sequence[str], second: str) -> bool:
    """Whether states feed another one, and none between them and that one."""
    needed = reads(recurrence, second) - {*first, second}
    return any(name in reads(recurrence, second) for name in first) and not any(
        {*first} & _feeding(recurrence, name) for name in needed
    )


def _merged(recurrence: ir.Recurrence, forms: Sequence[NormalForm]) -> list[NormalForm]:
    """Forms whose decays, x and w are equal become one, if neither needs the other's states."""
    feeds = {name: _feeding(recurrence, name) for form in forms for name in form.states}
    merged: list[NormalForm] = []
    for form in forms:
        for place, other in enumerate(merged):
            free = not any(feeds[n] & set(other.states) for n in form.states)
            if form.kind == other.kind == MATRIX and free and _side_by_side(form, other):
                merged[place] = replace(
                    other,
                    states=(*other.states, *form.states),
                    forms=(*other.forms, *form.forms),
                    atoms={**form.atoms, **other.atoms},
                    without_ranks=(*other.without_ranks, *form.without_ranks),
                )
                break
        else:
            merged.append(form)
    return _ordered(merged, feeds)


def _feeding(recurrence: ir.Recurrence, name: str) -> frozenset[str]:
    """States that a state depends on, through others as well."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for other in sorted(reads(recurrence, waiting.pop())):
            if other not in found:
                found.add(other)
                waiting.append(other)
    return frozenset(found)


def _ordered(forms: Sequence[NormalForm], feeds: Mapping[str, Collection[str]]) -> list[NormalForm]:
    """The forms, each after those whose states it needs: merging may have moved one forward."""
    left, done = list(forms), list[NormalForm]()
    while left:
        names = {name for form in left for name in form.states}
        ready = next(
            form
            for form in left
            if not any((set(feeds[n]) & names) - set(form.states) for n in form.states)
        )
        left.remove(ready)
        done.append(ready)
    return done


def _side_by_side(a: NormalForm, b: NormalForm) -> bool:
    """Whether the states of two forms are columns of one matrix."""
    one, other = a.forms[0], b.forms[0]
    if one.key != other.key or one.shared != other.shared:
        return False
    return [_left(step) for step in one.steps] == [_left(step) for step in other.steps]


def _left(step: Step) -> tuple[object, ...]:
    """A micro-step but for what is written."""
    terms = tuple((term.x, term.w, term.after) for term in step.terms)
    return step.decay, step.value, step.rank, terms


def decays(recurrence: ir.Recurrence) -> list[str]:
    """The captures that decay a matrix state: they had better enter as logarithms."""
    found: dict[str, None] = {}
    for form in normal_forms(recurrence):
        gates = [step.decay for each in form.forms for step in each.steps]
        for symbol in {s for gate in gates if form.kind == MATRIX for s in free_symbols(gate)}:
            atom = form.atoms.get(symbol)
            node = (
                recurrence.body[atom.node] if atom is not None and atom.node is not None else None
            )
            if node is not None and isinstance(node.op, ir.Input):
                found[node.op.name] = None
    return [name for name in recurrence.captures if name in found]

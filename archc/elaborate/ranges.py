"""The range of an `attend` as its options leave it: a bound with `none` in it is no bound."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.elaborate.mentions import free_names, names_defined
from archc.elaborate.scope import Scope
from archc.elaborate.values import Option
from archc.syntax import tree


def bounded(scope: Scope, node: tree.Attend) -> tree.Attend:
    """The `attend` without those ends of its range that mention a name that is `none`: with `w`
    none, `t - w < s <= t` is `s <= t`, `all t - w < s < t + w` is `all s`, and `all b ending <= w`
    is `all b`."""
    range = node.range
    if node.everything or not isinstance(range, tree.Compare):
        return node
    terms, ops = list(range.terms), list(range.ops)
    own = names_defined(node.body)
    if node.ending and not _open(scope, terms[-1], own):
        return node
    while len(terms) > 1 and _open(scope, terms[0], own):
        terms, ops = terms[1:], ops[1:]
    while len(terms) > 1 and _open(scope, terms[-1], own):
        terms, ops = terms[:-1], ops[:-1]
    if len(terms) == len(range.terms):
        return node
    if len(terms) == 1:
        name = replace(terms[0], span=range.span)
        return replace(node, range=name, everything=True, ending=False)
    return replace(node, range=tree.Compare(range.span, tuple(terms), tuple(ops)))


def _open(scope: Scope, term: tree.Expr, own: Collection[str]) -> bool:
    """Whether an end of a range mentions a name that is `none`, and so is no end. The block's `own`
    names are none of these."""
    names = [name for name in free_names(term) if scope.index(name) is None and name not in own]
    return any(_is_none(scope, name, term) for name in names)


def _is_none(scope: Scope, name: str, term: tree.Expr) -> bool:
    if scope.find(name) is None:
        return name == "none"
    value = scope.lookup(name, term.span)
    return isinstance(value, Option) and value.value is None

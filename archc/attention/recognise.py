"""Layer IR -> folds: the sums over the tokens read that an attend's body computes.

The body is cut where values become pairs. What has no pair of positions stays outside and is done
once a token; a sum over the token read is a `WeightedSum`, whose formula of pairs is a graph of its
own. What a kernel has no place for is refused with a reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import sympy

from archc.attention.between import Between, Rank, Through, by_spans, through
from archc.attention.bounds import always, bound, conjuncts, ranges, up_to_the_reader
from archc.attention.dropped import IN_PART, NOT_THERE, before_noise, noise_in, undropped
from archc.attention.factors import NOT_THERE as NO_FACTOR
from archc.attention.factors import Factors, as_real, factored
from archc.attention.grouped import grouped
from archc.attention.learned import Slopes, learned
from archc.attention.reach import reach_of
from archc.attention.row_heads import not_by_choice, together
from archc.attention.weighted_sum import RESERVED, Bound, Choice, Dot, Lookup, Source, WeightedSum
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.choices import chooses
from archc.ir.free_names import numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.refusal import Refusal
from archc.ir.typing import layer_graph

TWIDDLE = ("mul", "div")


class NotWeightedSum(Exception):
    """Raised with a Refusal while a sum is looked at."""

    def __init__(self, reason: str, node: Node):
        super().__init__(reason)
        self.refusal = Refusal(node.id, reason)


Found = WeightedSum | Between | Refusal
"""A sum over the tokens read: a fold, one through matrices of the tokens between, or the reason why
it is neither."""


def folds(attend: ir.Attend, slopes: Slopes) -> tuple[Found, ...]:
    """Each sum over the tokens read, recognised, in the order of the body. Where one is the log of
    the sum of another's weights, both are that one fold."""
    found = [fold_of(attend, node, slopes) for node in sums(attend)]
    for place, fold in enumerate(found):
        if isinstance(fold, WeightedSum) and fold.alone:
            seen = attend.body[attend.body[fold.node].operands[0]].operands
            beside = (i for i, other in enumerate(found) if _has_total(attend.body, other, seen))
            if (weighted := next(beside, None)) is not None:
                found[place] = found[weighted] = replace(found[weighted], total=fold.node)
    return together(found)


def _has_total(body: Graph, fold: Found, seen: tuple[int, ...]) -> bool:
    """Whether the weights of a fold are the softmax of a score under a mask, `seen` having both
    and -inf, whose total nobody else has yet."""
    if not isinstance(fold, WeightedSum) or not fold.softmax or fold.total is not None:
        return False
    weights = [body[o] for o in body[fold.node].operands if isinstance(body[o].op, ir.Softmax)]
    plain = fold.sink is None and fold.choice is None and fold.dropout is None
    return plain and bool(weights) and weights[0].operands == (seen[1], seen[0])


def sums(attend: ir.Attend) -> Iterator[Node]:
    """The nodes of a body that take both positions and give one: sums over the token read. Of one
    that makes choices alone there is none: they are made of all its pairs."""
    if chooses(attend):
        return
    read, reader = attend.read.name, attend.reader.name
    for node in attend.body:
        names = [name for id in node.operands for name in attend.body[id].type.names]
        if read in names and reader in names and read not in node.type.names:
            yield node


def fold_of(attend: ir.Attend, node: Node, slopes: Slopes) -> Found:
    """The fold that one sum is, or why it is none."""
    try:
        return Reading(attend, node).fold(slopes)
    except NotWeightedSum as found:
        return found.refusal


class Reading:
    """One sum that is looked at: the formula of pairs so far, its sources and its products.
    `squares`: whether kernels can make the square of a vector that they read."""

    def __init__(self, attend: ir.Attend, node: Node, squares: bool = True):
        self.squares, self.with_squares = squares, dict[int, bool]()
        self.attend, self.body, self.node = attend, attend.body, node
        self.reader, self.read = attend.reader, attend.read
        self.graph = layer_graph()
        self.made: dict[int, int] = {}
        self.sources: dict[tuple[int, str, str | None, bool], Source] = {}
        self.dots: list[Dot] = []
        self.lookups: list[Lookup] = []
        self.names: set[str] = {*RESERVED}
        self.bounds: list[Bound] = []
        self.choice: Choice | None = None
        self.between: tuple[Dot, tuple[Rank, ...], Source | None] | None = None
        self.heads: tuple[Axis, ...] = ()
        self.pairs_axes: tuple[Axis, ...] = ()

    def refuse(self, reason: str, node: Node) -> NotWeightedSum:
        return NotWeightedSum(reason, node)

    # --- the whole ---

    def fold(self, slopes: Slopes) -> Found:
        weights, values = self._operands()
        weights, dropout = undropped(self.body, self.node, weights)
        weights, factors = factored(self.body, weights)
        total = self.node.id if self._is_total() else None
        softmax = isinstance(weights.op, ir.Softmax) or total is not None
        self.heads = tuple(axis for axis in weights.type.axes if axis.kind == "dim")
        if "batch" not in weights.type.names:
            raise self.refuse("its weights are the same for all sequences", weights)
        others = {a.name for a in weights.type.axes if a.kind == "stream"}
        if others != {self.reader.name, self.read.name}:
            raise self.refuse("its weights have further positions", weights)
        score, mask = self._score(weights)
        score = score if dropout is None else before_noise(self.body, score)[0]
        if (noise := noise_in(self.body, score, *(each for _, each in factors))) is not None:
            raise self.refuse(IN_PART, noise)
        visible = [] if mask is None else self._mask(mask)
        self.pairs_axes = weights.type.axes
        self.graph.outputs["score"] = as_real(self.graph, self.formula(score))
        self._multiply(factors)
        self._visible(visible)
        summed = None if values is None else self._values(values).name
        sink = None
        if isinstance(weights.op, ir.Softmax) and len(weights.operands) > 2:
            sink = self.source(self.body[weights.operands[2]]).name
        self.graph.prune()
        self.forget_unread()
        if all(source.dim is None for source in self.sources.values()):
            raise self.refuse("no vector of a token is in it", self.node)
        found = WeightedSum(
            self.node.id, self.reader, self.read, self.heads, tuple(self.sources.values()),
            tuple(self.dots), self.graph, tuple(self.bounds), softmax, summed, sink,
            tuple(self.lookups), self.choice, span=self.node.span or weights.span, total=total,
            ranges=ranges(self.body, visible, self.reader.name, self.read.name), dropout=dropout,
        )  # fmt: skip
        if (dropout is not None or factors) and (self.choice or self.between):
            raise self.refuse(NOT_THERE if dropout is not None else NO_FACTOR, self.node)
        if self.choice is not None and (reason := not_by_choice(found)):
            raise self.refuse(reason, self.node)
        return learned(found, slopes) if self.between is None else self._tree(found, slopes)

    def _tree(self, found: WeightedSum, slopes: Slopes) -> Between | Refusal:
        """The fold as those of a tree of spans, as matrices of the tokens between are in it."""
        assert self.between is not None
        made = by_spans(found, *self.between)
        if isinstance(made, Refusal):
            raise self.refuse(made.reason, self.node)
        inside, across = (learned(fold, slopes) for fold in (made.inside, made.across))
        return replace(made, whole=learned(found, slopes), inside=inside, across=across)

    def of_weights(self, weights: Node) -> int:
        """The node of the formula for weights by themselves, those of a softmax before it; what
        else of a mask there is than bounds is an output."""
        self.heads = tuple(axis for axis in weights.type.axes if axis.kind == "dim")
        self.pairs_axes = weights.type.axes
        if not isinstance(weights.op, ir.Softmax):
            return self.formula(weights)
        score, mask = self._score(weights)
        self._visible([] if mask is None else self._mask(mask))
        return self.formula(score)

    def _visible(self, conditions: list[Node]) -> None:
        """The output that says which pairs are read, where a mask is more than bounds."""
        if conditions:
            self.graph.outputs["visible"] = self._all([self.formula(each) for each in conditions])

    def _multiply(self, factors: Factors) -> None:
        """The output that the weights of a softmax are multiplied by, if they are."""
        for fn, node in factors:
            total = self.graph.outputs.get("factor")
            one = Builder(self.graph).number(1) if total is None else total
            made = as_real(self.graph, self.formula(node))
            alone = total is None and fn == "mul"
            self.graph.outputs["factor"] = made if alone else Builder(self.graph).fn(fn, one, made)

    def forget_unread(self) -> None:
        """Drop products that the formula does not read."""
        read = {node.op.name for node in self.graph if isinstance(node.op, ir.Input)}
        self.dots = [dot for dot in self.dots if dot.name in read]

    def _operands(self) -> tuple[Node, Node | None]:
        """The weights of a sum, and what is weighted."""
        node, read = self.node, self.read.name
        operands = [self.body[operand] for operand in node.operands]
        if self._is_total():
            return operands[0], None
        if node.op == ir.Reduce("sum", (read,)):
            if isinstance(operands[0].op, ir.Softmax):
                raise self.refuse("the weights of a softmax sum to 1", node)
            return operands[0], None
        if not isinstance(node.op, ir.Contract):
            raise self.refuse(f"it is no weighted sum over `{read}`", node)
        if len(operands) == 1:
            raise self.refuse("weights are summed over more than the tokens", node)
        pairs = [o for o in operands if {read, self.reader.name} <= {*o.type.names}]
        if len(pairs) != 1:
            raise self.refuse("two values of pairs are multiplied and summed", node)
        return pairs[0], operands[1 - operands.index(pairs[0])]

    def _is_total(self) -> bool:
        """Whether the sum is that of a softmax's weights, as its logarithm."""
        return self.node.op == ir.Reduce("logsumexp", (self.read.name,))

    def _score(self, weights: Node) -> tuple[Node, Node | None]:
        """The score of weights, and the mask over it."""
        if isinstance(weights.op, ir.Softmax):
            if weights.op.over != self.read.name:
                raise self.refuse(f"its softmax is not over `{self.read.name}`", weights)
            return self.body[weights.operands[0]], self.body[weights.operands[1]]
        if weights.op == ir.Elementwise("where"):
            mask, score, rest = (self.body[operand] for operand in weights.operands)
            left_out = -sympy.oo if self._is_total() else sympy.S.Zero
            if rest.op == ir.Constant(left_out):
                return score, mask
        return weights, None

    def _mask(self, mask: Node) -> list[Node]:
        """Note the bounds that a mask sets; what else there is of it."""
        rest = []
        for each in conjuncts(self.body, mask):
            if always(self.body, each):
                continue
            found = bound(self.body, each, self.reader.name, self.read.name)
            if found is None and self.choice is None and self._chooses(each):
                continue
            if found is None:
                rest.append(each)
            else:
                self.bounds.append(found)
        return rest

    def _chooses(self, node: Node) -> bool:
        """Note that a condition is a choice, if it is: of tokens, `chosen[s]`, or of blocks,
        `chosen[s // size]`."""
        if self._chooses_tokens(node):
            return True
        if not isinstance(node.op, ir.Gather):
            return False
        chosen, index = (self.body[operand] for operand in node.operands)
        if index.op != ir.Elementwise("floordiv") or chosen.type.dtype != "bool":
            return False
        place, size = (self.body[operand].op for operand in index.operands)
        if not isinstance(place, ir.Position) or place.axis.name != self.read.name:
            return False
        blocks = chosen.type.axis(node.op.axis)
        of_readers = {"batch", self.reader.name} <= {*chosen.type.names}
        if not isinstance(size, ir.Constant) or not of_readers:
            return False
        self._choose(chosen, blocks, size.value)
        return True

    def _chooses_tokens(self, node: Node) -> bool:
        """Note that a condition is a truth value for each pair that enters as it is."""
        inner = grouped(self.body, node)
        value = node if inner is None else self.body[inner.value]
        pairs = {"batch", self.reader.name, self.read.name} <= {*node.type.names}
        if not pairs or not isinstance(value.op, ir.Input):
            return False
        self._choose(node, self.read, sympy.S.One, single=True)
        return True

    def _choose(self, node: Node, blocks: Axis, size: sympy.Expr, single: bool = False) -> None:
        """Note what readers choose; it is no source of the formula."""
        source = self.source(node, role="reader", table=blocks)
        self.sources = {key: each for key, each in self.sources.items() if each != source}
        self.choice = Choice(source, blocks, size, single)

    def _all(self, ids: list[int]) -> int:
        """The conjunction of conditions."""
        first, *rest = ids
        for id in rest:
            first = Builder(self.graph).fn("and", first, id)
        return first

    # --- formulas of pairs ---

    def formula(self, node: Node) -> int:
        """The node of the formula for a node of the body."""
        if node.id not in self.made:
            self.made[node.id] = self._formula(node)
        return self.made[node.id]

    def _formula(self, node: Node) -> int:
        op, names = node.op, {*node.type.names}
        if isinstance(op, ir.Constant):
            return self.graph.add(op)
        if isinstance(op, ir.Position):
            known = {self.reader.name, self.read.name, *(head.name for head in self.heads)}
            if op.axis.name in known:
                return self.graph.add(op)
        of_pairs = {self.reader.name, self.read.name} <= names
        inner = of_pairs or self._is_position(node) or self._has_square(node)
        if isinstance(op, ir.Elementwise) and inner:
            operands = [self.formula(self.body[operand]) for operand in node.operands]
            return self.graph.add(op, *operands, span=node.span)
        if not of_pairs:
            if (square := self._squared(node)) is not None:
                return self._square(*square)
            return self._input(self.source(node).name, node.type.dtype)
        if isinstance(op, ir.Contract):
            return self._dot(node)
        if isinstance(op, ir.Segment):
            return self._between(node)
        if isinstance(op, ir.Gather):
            return self._looked_up(node)
        raise self.refuse(_why_not(op), node)

    def _is_position(self, node: Node) -> bool:
        """Whether a value is made of positions and numbers alone."""
        if isinstance(node.op, ir.Position | ir.Constant):
            return True
        inner = (self.body[operand] for operand in node.operands)
        return isinstance(node.op, ir.Elementwise) and all(map(self._is_position, inner))

    def _input(self, name: str, dtype: str) -> int:
        """An input of the formula; each is a value of pairs there."""
        type = Type(self.pairs_axes, dtype)
        return self.graph.add(ir.Input(name, type), name=name)

    def _fresh(self, name: str) -> str:
        found = numbered(name, self.names)
        self.names.add(found)
        return found

    # --- what enters ---

    def source(
        self, node: Node, dim: str | None = None, role: str = "", summed: bool = False,
        table: Axis | None = None, moved: bool = False,
    ) -> Source:  # fmt: skip
        """A value of the body that kernels read; a vector along `dim`, else a number. One that is
        `moved` on its way is another than the value as it is."""
        inner = grouped(self.body, node)
        shares: list[tuple[str, str, sympy.Expr]] = []
        if inner is not None and inner.heads in self.heads:
            node = self.body[inner.value]
            shares.append((inner.groups.name, inner.heads.name, inner.share))
        names = {*node.type.names}
        if not role:
            role = "reader" if self.reader.name in names else "same"
            role = "read" if self.read.name in names else role
        key = (node.id, role, table.name if table else dim, moved)
        if key in self.sources:
            return self.sources[key]
        for axis in node.type.axes:
            known = {
                "batch",
                dim,
                table and table.name,
                self._stream(node, role),
                *(group for group, _, _ in shares),
            }
            if axis.name not in known and axis not in self.heads:
                raise self.refuse(f"`{axis.name}` of it is no dim of the heads", node)
        shares += [
            (axis.name, axis.name, sympy.Integer(1)) for axis in node.type.axes
            if axis in self.heads and axis.name != dim and axis != table
        ]  # fmt: skip
        name = self._fresh(self._name(node, role, summed))
        axis = None if dim is None else node.type.axis(dim)
        made = Source(name, node.id, node.type, role, tuple(shares), axis, summed, table)
        self.sources[key] = made
        return made

    def _stream(self, node: Node, role: str) -> str:
        """The name of the tokens' axis of a value."""
        streams = [axis.name for axis in node.type.axes if axis.kind == "stream"]
        return streams[0] if streams and role != "same" else ""

    def _name(self, node: Node, role: str, summed: bool) -> str:
        """The name of a source in kernels."""
        called = node.name or next(
            (self.body[o].name for o in node.operands if self.body[o].name), None
        )
        if role == "path":
            called = node.name or "u"
        base = called or {"reader": "u", "read": "w"}.get(role, "c")
        if summed:
            base = f"sum_{base}_{'to' if role == 'reader' else 'before'}"
        return "".join(c if c.isalnum() or c == "_" else "_" for c in base)

    def _dot(self, node: Node) -> int:
        """A product of vectors; numbers that a vector is scaled by are taken out of it."""
        operands = [self.body[operand] for operand in node.operands]
        sides = [self._side(operand) for operand in operands]
        of_pairs = [{self.reader.name, self.read.name} <= {*o.type.names} for o in operands]
        if any(of_pairs) or sorted(sides) != ["read", "reader"]:
            return self._through(node)
        labels = [
            dict(zip(o.type.names, names, strict=True))
            for o, names in zip(operands, node.op.ins, strict=True)
        ]
        out = dict(node.op.out)
        summed = [{n for n, label in each.items() if label not in out} for each in labels]
        for each in labels:
            if any(label in out and out[label].name != n for n, label in each.items()):
                raise self.refuse("a dim of a product changes its name", node)
        if len(summed[0]) != 1 or len(summed[1]) != 1:
            raise self.refuse("a product of pairs is summed over more than one dim", node)
        found, factors = {}, []
        for operand, side, (dim,) in zip(operands, sides, summed, strict=True):
            vector, scale = self._peeled(operand, dim)
            factors += scale
            found[side] = self.source(vector, dim).name
        dot = Dot(self._fresh("product"), found["reader"], found["read"])
        self.dots.append(dot)
        return self._scaled(dot, factors)

    def _has_square(self, node: Node) -> bool:
        """Whether a number of a token is made of the square of a vector, element by element."""
        if node.id not in self.with_squares:
            found = self._squared(node) is not None
            if isinstance(node.op, ir.Elementwise):
                found = any(self._has_square(self.body[operand]) for operand in node.operands)
            self.with_squares[node.id] = found
        return self.with_squares[node.id]

    def _squared(self, node: Node) -> tuple[Node, str] | None:
        """The vector that other products read, and its dim, whose square a value is; else None."""
        known = self.squares and self.choice is None
        if not known or not isinstance(node.op, ir.Contract) or len({*node.operands}) != 1:
            return None
        both, out = node.op.ins, dict(node.op.out)
        vector = self.body[node.operands[0]]
        summed = [
            n for n, label in zip(vector.type.names, both[0], strict=True) if label not in out
        ]
        kept = [name for name in vector.type.names if name not in summed]
        if len(both) != 2 or both[0] != both[1] or len(summed) != 1 or [*node.type.names] != kept:
            return None
        peeled = self._peeled(vector, summed[0])[0]
        return (vector, summed[0]) if self._multiplied(peeled, summed[0]) else None

    def _square(self, vector: Node, dim: str) -> int:
        """The square of a vector, with the numbers that this is scaled by."""
        vector, factors = self._peeled(vector, dim)
        name = self.source(vector, dim).name
        known = next((d for d in self.dots if d.square and d.reader == name), None)
        dot = known or Dot(self._fresh(f"square_{name}"), name, name)
        self.dots += [dot] if known is None else []
        return self._scaled(dot, [*factors, *factors])

    def _multiplied(self, vector: Node, dim: str) -> bool:
        """Whether a product of pairs reads a vector."""
        pairs = {self.reader.name, self.read.name}
        products = [n for n in self.body if isinstance(n.op, ir.Contract)]
        operands = [o for n in products if pairs <= {*n.type.names} for o in n.operands]
        wide = [self.body[o] for o in operands if dim in self.body[o].type.names]
        return any(self._peeled(each, dim)[0] == vector for each in wide)

    def _scaled(self, dot: Dot, factors: list[tuple[str, ir.Constant]]) -> int:
        """A product with the numbers that its vectors were scaled by."""
        id = self._input(dot.name, "real")
        for fn, number in factors:
            id = Builder(self.graph).fn(fn, id, self.graph.add(number))
        return id

    def _through(self, node: Node) -> int:
        """A product of vectors through matrices of the tokens between."""
        found = through(self.body, node, self.reader.name, self.read.name)
        if not isinstance(found, Through):
            raise self.refuse(found or self._too_wide(node), node)
        if self.between is not None:
            raise self.refuse("a second product of matrices of the tokens between", node)
        peeled = [self._peeled(self.body[id], dim) for id, dim in (found.reader, found.read)]
        sides = zip(peeled, (found.reader[1], found.read[1]), strict=True)
        ends = [self.source(vector, dim, moved=True) for (vector, _), dim in sides]
        dot = Dot(self._fresh("product"), ends[0].name, ends[1].name)
        self.dots.append(dot)
        known = dict(self.sources)
        ranks = [
            Rank(
                self.source(self.body[u], rows, "path"),
                self.source(self.body[outer.w], outer.columns, "path"), outer.sign,
            )
            for (u, rows), outer in zip(found.firsts, found.outers, strict=True)
        ]  # fmt: skip
        gate = found.gate and self.source(self.body[found.gate[0]], found.gate[1], "path")
        self.sources, self.between = known, (dot, tuple(ranks), gate)
        return self._scaled(dot, [each for _, scale in peeled for each in scale])

    def _too_wide(self, node: Node) -> str:
        """Why a sum over what pairs have is in no kernel, with the dims that it goes over."""
        out, gone = dict(node.op.out), dict[str, None]()
        for operand, labels in zip(node.operands, node.op.ins, strict=True):
            names = self.body[operand].type.names
            pairs = zip(names, labels, strict=True)
            gone |= dict.fromkeys(name for name, label in pairs if label not in out)
        own = [n for n in node.type.names if n not in (self.reader.name, self.read.name, "batch")]
        dims = " and ".join(f"`{name}`" for name in gone or own)
        summed = ", over which these are summed" if gone else ""
        return f"each pair has a number for each entry of {dims}{summed}"

    def _side(self, node: Node) -> str:
        """Whether a value is of the reader or of the token read."""
        names = {*node.type.names}
        of = [n for n in (self.reader.name, self.read.name) if n in names]
        return {self.reader.name: "reader", self.read.name: "read"}.get("".join(of[:1]), "")

    def _peeled(self, node: Node, dim: str) -> tuple[Node, list[tuple[str, ir.Constant]]]:
        """A vector without the number of the layer that it is multiplied or divided by."""
        if isinstance(node.op, ir.Elementwise) and node.op.fn in TWIDDLE:
            left, right = (self.body[operand] for operand in node.operands)
            if isinstance(right.op, ir.Constant) and dim in left.type.names:
                vector, more = self._peeled(left, dim)
                return vector, [*more, (node.op.fn, right.op)]
            if node.op.fn == "mul" and isinstance(left.op, ir.Constant):
                vector, more = self._peeled(right, dim)
                return vector, [*more, ("mul", left.op)]
        return node, []

    def _looked_up(self, node: Node) -> int:
        """A table of the layer, read at an index of each pair."""
        table, index = (self.body[operand] for operand in node.operands)
        if {a.kind for a in table.type.axes} - {"dim"} or table.type.dtype != "real":
            raise self.refuse("values of tokens are read at an index of each pair", node)
        if reach_of(self.attend, node) is None:
            raise self.refuse("an index of a pair may be off its table", node)
        axis = table.type.axis(node.op.axis)
        known = self.source(table, table=axis)
        found = Lookup(self._fresh(f"{known.name}_at"), known.name, f"index {len(self.lookups)}")
        self.graph.outputs[found.index] = self.formula(index)
        self.lookups.append(found)
        return self._input(found.name, "real")

    def _between(self, node: Node) -> int:
        """A sum from the token read to the reader, as the difference of running sums."""
        make = Builder(self.graph)
        tokens = self.body[node.operands[0]]
        if node.op.kind != "sum":
            raise self.refuse("a product of matrices along the tokens between", node)
        if self.reader.name in tokens.type.names:
            raise self.refuse("what is summed between depends on the reader", node)
        if "batch" not in tokens.type.names:
            raise self.refuse("what is summed between is the same for all sequences", node)
        sides = (self.source(tokens, role=role, summed=True).name for role in ("reader", "read"))
        ends = [self._input(name, "real") for name in sides]
        total = Builder(self.graph, node.span).fn("sub", *ends)
        if up_to_the_reader(tuple(self.bounds)):
            return total
        t, s = (self.graph.add(ir.Position(axis)) for axis in (self.reader, self.read))
        before = make.fn("lt", s, t)
        nothing = make.number(0)
        return make.fn("where", before, total, nothing)

    def _values(self, node: Node) -> Source:
        """The values that are weighted and summed: a vector for each token read."""
        labels = dict(zip(node.type.names, self._labels(node), strict=True))
        out = dict(self.node.op.out)
        if self._side(node) != "read" or self.reader.name in labels:
            raise self.refuse("what is weighted is no value of the token read", self.node)
        if labels[self.read.name] in out:
            raise self.refuse("its weights are not summed over the tokens", self.node)
        kept = [n for n, label in labels.items() if label in out and out[label] not in self.heads]
        kept = [n for n in kept if n != "batch"]
        gone = [n for n, label in labels.items() if label not in out and n != self.read.name]
        if len(kept) != 1 or gone or out[labels[kept[0]]].name != kept[0]:
            raise self.refuse("what is weighted is no vector for each head", self.node)
        mine = {axis.name for axis in out.values()}
        if not {"batch", self.reader.name, *(head.name for head in self.heads)} <= mine:
            raise self.refuse("heads are summed together with the tokens", self.node)
        return self.source(node, kept[0])

    def _labels(self, node: Node) -> tuple[str, ...]:
        """The labels of an operand of the sum."""
        return self.node.op.ins[self.node.operands.index(node.id)]


def _why_not(op: object) -> str:
    """Why an op has no place in a formula of pairs."""
    if isinstance(op, ir.Softmax):
        return "a softmax is part of another weight"
    if isinstance(op, ir.Reduce):
        return "a pair has a number for each channel, which are reduced to one"
    return f"{type(op).__name__.lower()} of pairs"

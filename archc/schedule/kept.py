"""The values of a chunked form that are materialised."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import sympy

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.kernel import NARROW, WIDE
from archc.schedule.axes import is_one_a_row, own_dims, scans_numbers
from archc.schedule.levels import PAIRED, Levels
from archc.schedule.part_scales import scale_of
from archc.schedule.row_scales import enters
from archc.schedule.widths import Widths

DIM = 128
"""The size of the dims for which bytes are compared."""

BYTES = {NARROW: 2, WIDE: 4}


class Kept:
    """`ids`: what is materialised, beside inputs and what PyTorch makes.

    Found from what is asked for: outputs, walks and PyTorch ask, each kernel asks for what it
    does not make itself.
    """

    def __init__(self, graph: Graph, levels: Levels, heads: Collection[str]) -> None:
        self.graph, self.levels, self.heads = graph, levels, heads
        self.tokens = ck.tokens_of_rows(graph)
        self.widths = Widths(graph, levels, heads)
        self._ids: set[int] = set()
        self._asked: set[tuple[int, int]] = set()
        for id in graph.outputs.values():
            self._ask_for_output(id)
        self.ids = sorted(self._ids)

    # --- who asks for what ---

    def _ask_for_output(self, id: int) -> None:
        if id in self.levels.fallback:
            self._make(id)
        elif not isinstance(self.graph[id].op, ir.Input):
            self._keep([id])

    def _keep(self, ids: Iterable[int]) -> None:
        """Put values in memory, and ask for what makes them."""
        for id in ids:
            if id not in self.levels.fallback:
                self._ids.add(id)
            self._make(id)

    def _make(self, id: int) -> None:
        """Ask for what a value is made from, where it is made."""
        level = self.levels.of[id]
        if (id, level) in self._asked:
            return
        self._asked.add((id, level))
        node = self.graph[id]
        for operand in (self.levels.ends[id][0],) if id in self.levels.ends else node.operands:
            if isinstance(self.graph[operand].op, ir.Recurrence):
                self._make(operand)
            elif isinstance(node.op, ir.Recurrence) and id not in self.levels.fallback:
                self._keep(self._for_walk(operand, node))
            elif id in self.levels.fallback:
                self._ask_for_fallback(operand)
            elif self._together(operand, id):
                self._make(operand)
            elif isinstance(node.op, ck.NearGram) and operand == node.operands[-1]:
                self._keep(self._from_memory(self.graph[operand].operands[0]))  # they are made anew
            elif isinstance(node.op, ck.Conjugate) and operand == node.operands[0]:
                self._keep([] if operand in self.levels.recomputed else [operand])
            else:
                self._keep(self._from_memory(operand))

    def _together(self, operand: int, user: int) -> bool:
        """Whether one kernel makes both."""
        levels = self.levels
        made = operand not in levels.fallback and operand not in levels.ends
        same_walk = levels.walk.get(operand) == levels.walk.get(user)
        return made and levels.of[operand] == levels.of[user] and same_walk

    def _ask_for_fallback(self, operand: int) -> None:
        """PyTorch reads values as they are, and does itself what costs little."""
        if isinstance(self.graph[operand].op, ir.Input):
            return
        if operand in self.levels.fallback or operand in self.levels.recomputed:
            self._make(operand)
        else:
            self._keep([operand])

    # --- from memory, or made again ---

    def _from_memory(self, id: int) -> list[int]:
        """The values that a kernel of another level loads for one: it, or those it is made from."""
        if id in self.levels.recomputed:
            return []
        return [o for o in self._read(id, {}) if not isinstance(self.graph[o].op, ir.Input)]

    def _read(self, id: int, known: dict[int, list[int]]) -> list[int]:
        """Those values, and inputs. A value of few operations is computed again, and so is a
        product of matrices that is larger than its factors, unless it is fewer bytes to write it
        and read it than to read those. `known`: the results so far, as many values share some."""
        if id not in known:
            known[id] = self._read_anew(id, known)
        return known[id]

    def _read_anew(self, id: int, known: dict[int, list[int]]) -> list[int]:
        node = self.graph[id]
        stands = id in self._ids or id in self.graph.outputs.values() or id in self.levels.fallback
        again = self.levels.is_recomputed(node) or self._larger(node) or self._scans(node)
        late = self._is_late(node)
        again = again or late or self._spans(node)
        if stands or not again or isinstance(node.op, ir.Input):
            return [id]
        every = (o for operand in node.operands for o in self._read(operand, known))
        found = list(dict.fromkeys(every))
        late = late or id in self.levels.recomputed  # its inputs are in memory anyway
        stored = not late and 2 * self.bytes(id) <= sum(map(self.bytes, found))
        return [id] if stored else found

    def _for_walk(self, id: int, walk: Node) -> list[int]:
        """The values that a walk reads for one value: itself, or its factors where those are
        smaller. A walk along the tokens has no chunk at hand to make a value of again."""
        node = self.graph[id]
        if id in self.levels.recomputed:
            by_token = not walk.op.stream.size.has(ck.CHUNK)
            kept = self._of_chunks(id) if by_token else self._lies_apart(node, walk)
            return [id] if kept else []
        renamed = isinstance(node.op, ir.Contract) and self.levels.is_recomputed(node)
        fallback = id in self.levels.fallback or id in self.graph.outputs.values()
        scale = scale_of(self.graph, node, walk, self.heads)
        if not fallback and scale is not None:
            return [] if scale in self.levels.recomputed else [scale]
        if not fallback and (renamed or self._larger(node)):
            return [found for o in node.operands for found in self._for_walk(o, walk)]
        return [id]

    def _lies_apart(self, node: Node, walk: Node) -> bool:
        """Whether a value is one number a row that the caller has, which lie apart in memory: a GPU
        copies none of 16 bits ahead that do, and a walk would wait for them at each chunk. Those
        that infer do so alone where a kernel before makes other numbers a row: a kernel for these
        alone took as long as was gained."""
        made = (o for o in walk.operands if o not in self.levels.recomputed)
        beside = not self.levels.fused or any(is_one_a_row(self.graph[o], self.heads) for o in made)
        one = bool(self.heads) and is_one_a_row(node, self.heads)
        return beside and one and enters(self.graph, node.id)

    def _of_chunks(self, id: int) -> bool:
        """Whether a value is made of one that stands by chunks and rows."""
        made_of = (id, *self.graph.ancestors(id))
        return any(isinstance(self.graph[each].op, ck.Tokens) for each in made_of)

    def _scans(self, node: Node) -> bool:
        """Whether a scan of several dims is as well done twice: to load what it is made of is less
        than to write it and to read it. In gradients, which have sums over its dims, only where one
        of these goes index by index."""
        deep = len(own_dims(node.type.axes, self.heads)) > 2
        again = self.levels.fused or self.levels.turned is not None
        return again and scans_numbers(node) and deep

    def _spans(self, node: Node) -> bool:
        """Whether a matrix is made of one gate for each row: a vector in place of its square."""
        if not isinstance(node.op, ck.Spans | ck.Differences):
            return False
        return len(own_dims(self.graph[node.operands[0]].type.axes, self.heads)) == 1

    def _is_late(self, node: Node) -> bool:
        """Whether kernels of one later level alone use scores of inputs: no other kernel then reads
        what they are made of, and that one reads some of it anyway."""
        used = self._used_at(node.id) if self._scores(node) else set[int]()
        used -= {self.levels.of[node.id]} if self.levels.beside else set()
        return len(used) == 1 and self.levels.of[node.id] not in used

    def _scores(self, node: Node) -> bool:
        """Whether a value is a product of two inputs for each pair of rows of a head, masked or
        decayed. Walks that make what follows on them have no registers left for decays, what solves
        a system has; of what leads to a quotient, programs with parts of a dim would each make
        them."""
        if ir.is_product(node.op):
            rows = all(a.size.has(ck.CHUNK) for a in own_dims(node.type.axes, self.heads))
            given = self.levels.recomputed.issuperset(node.operands)
            divided = bool(self.widths.exact_states)
            return rows and given and {*self.heads} <= {*node.type.names} and not divided
        operands = [self.graph[operand] for operand in node.operands]
        decayed = any(isinstance(n.op, ir.Elementwise) and n.op.fn == "exp" for n in operands)
        solved = (isinstance(self.graph[user].op, ck.Inverse) for user in self.graph.users(node.id))
        walked = decayed and self.levels.fused and not any(solved)
        pointwise = isinstance(node.op, ir.Elementwise) and not walked
        return pointwise and any(map(self._scores, operands))

    def _used_at(self, id: int) -> set[int]:
        """The levels of the kernels that use a value, or what is made of it there once more. Those
        with pairs have parts of a dim, each of which would make it."""
        graph, of = self.graph, self.levels.of
        found = {of[id]} if id in graph.outputs.values() else set[int]()
        for node in map(graph.__getitem__, graph.users(id)):
            again = of[node.id] == of[id] and (self._scores(node) or self._larger(node))
            own = of[id] if isinstance(node.op, PAIRED) else of[node.id]
            found |= self._used_at(node.id) if again else {own}
        return found

    def _larger(self, node: Node) -> bool:
        """Whether a product of matrices is larger than its factors."""
        if not ir.is_product(node.op):
            return False
        return sum(map(self.bytes, node.operands)) < self.bytes(node.id)

    # --- bytes ---

    def bytes(self, id: int) -> int:
        """About how many bytes of a value a chunk of one head has."""
        node = self.graph[id]
        count = 1
        for axis in node.type.axes:
            count *= 1 if axis.name in self.heads else self._length(axis)
        given = isinstance(node.op, ir.Input) or enters(self.graph, id)
        narrow = given or self.widths.only_multiplied(id)
        return count * BYTES[NARROW if narrow else WIDE]

    def _length(self, axis: Axis) -> int:
        if axis.kind == "batch":
            return 1
        if axis.kind == "stream":
            return 1 if axis.size.has(ck.CHUNK) else self.tokens
        if isinstance(axis.size, sympy.Symbol):
            return self.tokens if axis.size == ck.CHUNK else DIM
        size = axis.size.subs(ck.CHUNK, self.tokens)
        size = size.subs(dict.fromkeys(size.free_symbols, DIM))
        return int(size) if isinstance(size, sympy.Integer) else DIM

"""A recurrence without a chunked form becomes two functions, forward and gradient, each with one
kernel that walks the tokens, the same in PyTorch, and two ops that tell autograd of them.

The forward keeps the states before each token. The gradient walks back: the sums of products of
matrices that need no state are made outside of its kernel, for all tokens at once, and so are the
gradients of what all tokens share, which are sums over them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from archc.backends.eager import carry
from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.recurrence import RecurrenceFunction
from archc.backends.eager.region import wanted_results
from archc.backends.eager.scope import Scope
from archc.backends.eager.value import DATA, KIND_OF, NUMBER, Value
from archc.backends.expression import Text
from archc.backends.triton.dense import dense, laid_out
from archc.backends.triton.function import TORCH
from archc.backends.triton.grid_launch import GridLaunch, grid_launch
from archc.backends.triton.schedule import Schedule
from archc.backends.triton.step_launch import LOCALS, Given, StepLaunch, Walk, walk_of

from archc.ir import layer as ir
from archc.ir.chunk import ChunkForm, start
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal
from archc.ir.value_names import cotangent, is_saved, primal


class WalkFunction(GraphFunction):
    """A graph whose Recurrences are kernels that walk tokens; the rest of it is PyTorch, in
    float32."""

    last: tuple[str, ...] = ()
    launch: StepLaunch
    spread: GridLaunch | None = None
    locals = ("data", *LOCALS)

    def __init__(
        self, schedule: Schedule, recurrence: RecurrenceFunction, graph: Graph, kind: str,
        given: Mapping[str, Value], order: Sequence[str],
    ):  # fmt: skip
        self.schedule = schedule
        file, self.title = recurrence.scope.file, f"{recurrence.title}_{kind}"
        name = file.names.fresh(self.title)
        super().__init__(recurrence.scope, graph, name, given, order, recurrence.op.stream)
        self.body.emitters = {**recurrence.scope.emitters, ir.Recurrence: self._recurrence}
        self.body.dtype = "torch.float32"
        self.wide = self._widened()

    def _recurrence(self, scope: Scope, node: Node) -> Value:
        """The launch for a Recurrence, and its results."""
        body, op = self.body, node.op
        captures = self._captures(node)
        numbers = [name for name, value in captures.items() if value.kind == NUMBER]
        results = wanted_results(body, node)
        walk = walk_of(
            self.schedule, self.graph, node, f"{self.title}_step", results, numbers, False
        )
        assert isinstance(walk, Walk), walk  # `step_gradient` has asked
        launch = self.launch = StepLaunch(body, op, walk)
        spread = self.spread = grid_launch(body, op, walk, numbers, False)
        launch.write_kernel()
        if spread is not None:
            spread.write_kernel()
        before, after = self._states(node)
        made = {name: body.names.fresh(name) for name in results}
        launch.write_sizes(body.writer)
        for name, text in made.items():
            room = launch.room(name, body.device, self._dtype(name))
            body.writer.line(f"{text} = {room}")
        texts = {name: str(value.text) for name, value in captures.items()}
        given = Given(texts, before, after, made, "data")
        self._launched(launch, spread, given, body.device)
        for name, text in made.items():
            launch.add_up(body.writer, name, text, self._dtype(name))
        for state in op.states:
            layout = tuple(axis.name for axis in state.axes)
            body.finals[node.id, state.name] = Value(Text(after[state.name]), layout, DATA)
        types = {name: launch.type_of(name) for name in made}
        body.results[node.id] = {
            name: Value(Text(text), types[name].names, KIND_OF[types[name].dtype])
            for name, text in made.items()
        }
        return Value(Text("None"), (), DATA)

    def _launched(
        self, launch: StepLaunch, spread: GridLaunch | None, given: Given, device: str
    ) -> None:
        """The launch of one program a sequence, or where its weights have no room of one that is
        spread over the GPU."""
        writer = self.body.writer
        if spread is None:
            launch.write(writer, given)
            return
        with writer.block("if step_fits(numbers, weights, moving, data):"):
            launch.write(writer, given)
        with writer.block("else:"):
            writer.line(f"spread = {spread.split('data', device)}")
            spread.write(writer, given)

    def _captures(self, node: Node) -> dict[str, Value]:
        """The captures of a Recurrence: numbers, and tensors that have names."""
        body, found = self.body, dict[str, Value]()
        for name, operand in ir.captured(node).items():
            value, op = body.value(operand), self.graph[operand].op
            if value.kind != NUMBER and not value.bound:
                body.bind(operand)
            found[name] = body.values[operand]
            if isinstance(op, ir.Input):
                own = Text(self.arguments[op.name])
                found[name] = Value(own, found[name].layout, found[name].kind)
        for name, operand in ir.captured(node).items():
            value, type = found[name], self.graph[operand].type
            if value.kind != NUMBER and value.layout != type.names:
                text = body.names.fresh(name)
                body.writer.line(f"{text} = {laid_out(body, value.text, value.layout, type)}")
                found[name] = Value(Text(text), type.names, value.kind)
        dense(body.writer, [str(x.text) for x in found.values() if x.kind != NUMBER])
        return found

    def _states(self, node: Node) -> tuple[dict[str, str], dict[str, str]]:
        """The states before the first token, and room for those after the last."""
        body, before, after = self.body, dict[str, str](), dict[str, str]()
        starts = node.operands[len(node.op.captures) :]
        for state, operand in zip(node.op.states, starts, strict=True):
            first = before[state.name] = body.names.fresh(f"{state.name}_first")
            last = after[state.name] = body.names.fresh(f"{state.name}_last")
            body.writer.line(f"{first} = {carry.initial(body, operand, state.axes)}.contiguous()")
            body.writer.line(f"{last} = torch.empty_like({first})")
        return before, after

    def _dtype(self, result: str) -> str:
        """The dtype of a result: an output of the recurrence is as narrow as the data; values that
        a gradient needs or is made from are not."""
        own = result in self.graph.outputs and not is_saved(result)
        own = own and primal(result) is None
        return "data" if own else "torch.float32"

    def dtype_of(self, name: str) -> str:
        """The dtype of an output, as the op returns it."""
        type = self.graph[self.graph.outputs[name]].type
        value = primal(name)
        if type.dtype != "real":
            return TORCH[type.dtype]
        if value in self.arguments:
            return f"{self.arguments[value]}.dtype"
        return self._dtype(name) if self.stream.name in type.names else "torch.float32"

    def _widened(self) -> dict[str, str]:
        """The names in float32 of arguments that PyTorch computes with; kernels get them as they
        are."""
        found = {}
        for name, node in self.inputs.items():
            users = [self.graph[user].op for user in self.graph.users(node.id)]
            if node.type.dtype == "real" and not all(isinstance(op, ir.Recurrence) for op in users):
                text = self.arguments[name]
                found[text] = self.body.names.fresh(f"{text}_wide")
                value = self.body.values[node.id]
                self.body.values[node.id] = Value(Text(found[text]), value.layout, value.kind)
        return found

    def _head(self, used: Collection[str]) -> list[str]:
        """The dtype of the data, and what PyTorch computes with in float32."""
        casts = [f"{wide} = {text}.float()" for text, wide in self.wide.items() if wide in used]
        return [f"data = narrowest({', '.join(self.reals.values())})", *casts, *super()._head(used)]


class LoopFunction(GraphFunction):
    """A graph whose Recurrences are loops in PyTorch."""

    last: tuple[str, ...] = ()

    def __init__(
        self, recurrence: RecurrenceFunction, graph: Graph, kind: str, given: Mapping[str, Value],
        order: Sequence[str],
    ):  # fmt: skip
        name = recurrence.scope.file.names.fresh(f"{recurrence.title}_{kind}")
        super().__init__(recurrence.scope, graph, name, given, order, recurrence.op.stream)


def step_gradient(
    recurrence: RecurrenceFunction, schedule: Schedule, ops: Callable[..., Any]
) -> StepGradient | str:
    """The functions and the ops of one recurrence, or why there are none."""
    if any(value.kind == NUMBER for value in recurrence.values.values()):
        return "a number enters it, which has no gradient in a kernel"
    graph: Graph = schedule.tokenwise(recurrence.scope.graph, recurrence.node, recurrence.results)
    form = schedule.with_gradient(graph)
    if form is None or form.backward is None:
        return "an op has no derivative"
    read = {n.op.name: n.type.names for n in form.backward if isinstance(n.op, ir.Input)}
    if not any(recurrence.op.stream.name in read[name] for name in read.keys() - {*form.saved}):
        return "it reads nothing along the tokens that tells how many there are"
    for each in (form.forward, form.backward):
        for node in (node for node in each if isinstance(node.op, ir.Recurrence)):
            made = walk_of(schedule, each, node, "walk", results_of(each, node), (), False)
            if isinstance(made, Refusal):
                return made.reason
    return StepGradient(recurrence, schedule, ops, graph, form)


def results_of(graph: Graph, node: Node) -> list[str]:
    """The results of a recurrence that something reads."""
    users = (graph[user].op for user in graph.users(node.id))
    return [op.name for op in users if isinstance(op, ir.Result)]


class StepGradient:
    """The functions and the ops of one recurrence: by kernels, and by loops in PyTorch."""

    inference = None

    def __init__(
        self, recurrence: RecurrenceFunction, schedule: Schedule, ops: Callable[..., Any],
        graph: Graph, form: ChunkForm,
    ):  # fmt: skip
        self.recurrence, self.form, self.schedule, self.make = recurrence, form, schedule, ops
        self.scope, self.title = recurrence.scope, recurrence.title
        self.states, self.results = recurrence.states, recurrence.results
        self.inputs = {name: recurrence.arguments[name] for name in recurrence.arguments}
        self.inputs |= {start(name): text for name, text in recurrence.states.items()}
        self.given = dict(recurrence.values)
        self.outputs = {name: graph[graph.outputs[name]].type.names for name in graph.outputs}
        for state in recurrence.op.states:
            names = tuple(axis.name for axis in state.axes)
            self.given[start(state.name)] = Value(Text(""), names, DATA)
        self.back = dict(self.given)
        for name, layout in self.outputs.items():
            self.back[cotangent(name)] = Value(Text(""), layout, DATA)

    def write(self) -> None:
        """Append them to the file."""
        fast = self._both("walk", "walk_gradient", WalkFunction, self.schedule, self.recurrence)
        eager = self._both("loop", "loop_gradient", LoopFunction, self.recurrence)
        every = [each.extra for each in (*fast, *eager)]
        self.extra = {name: text for extra in every for name, text in extra.items()}
        self.ops = self.make(self, eager, fast)
        self.ops.write()
        file = self.scope.file
        file.notes.append(f"    {fast[0].name}, {fast[1].name}: 1 kernel each")

    def _both(self, forward: str, backward: str, make: Any, *given: Any) -> Any:
        """The functions of the values and of their gradients, written."""
        form, last = self.form, "first" if self.recurrence.op.reverse else "last"
        saved = {name: form.forward[form.forward.outputs[name]].type.names for name in form.saved}
        one = make(*given, form.forward, forward, self.given, [*self.inputs])
        title = f"The results at every token, the states after the {last}, and what the gradient"
        one.write({**self.outputs, **saved}, f"{title} needs.")
        assert form.backward is not None
        order = [*self.inputs, *form.saved, *map(cotangent, self.outputs)]
        other = make(*given, form.backward, backward, self.back, order)
        wanted = {
            cotangent(name): self.given[name].layout
            for name in self.inputs if cotangent(name) in form.backward.outputs
        }  # fmt: skip
        other.write(wanted, "The gradients of what enters, from those of what comes out.")
        for each in (one, other):
            each.packed = self.recurrence.packed
        return one, other

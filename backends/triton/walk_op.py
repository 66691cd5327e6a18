"""A recurrence whose kernels walk its tokens as ops of torch: its values, and their gradients."""

from __future__ import annotations

from typing import Any

from archc.backends.eager.graph_function import GraphFunction
from archc.backends.eager.op import Op, kind_of
from archc.backends.eager.scope import Scope, write_sizes
from archc.backends.triton.grid_launch import GridLaunch
from archc.backends.triton.library import KernelOps
from archc.backends.triton.op import KernelOp
from archc.backends.writer import Writer, quoted


class WalkOp(KernelOp):
    """One op under construction: `fast` has one kernel, `eager` is a loop in PyTorch."""

    last: tuple[str, ...] = ()

    def _fits(self) -> str:
        """Whether a kernel can do it."""
        return f"{self.name}_fits({', '.join(self.tensors)})"

    def room(self) -> None:
        """Append the function that says whether a kernel can do it."""
        walk: Any = self.fast
        lines, launch = Writer(), walk.launch
        body, own = self._body_again(), launch.body
        launch.body = body
        launch.write_sizes(lines)
        launch.body = own
        data = f"narrowest({', '.join(self.decisive)})"
        spread = self._spread(walk.spread, body, data)
        doc = f"Whether `{self.fast.name}` can do it: on a GPU, with room for what it holds."
        writer = Writer().define(f"{self.name}_fits", self.tensors, [doc])
        with writer.block(f"if not on_gpu({', '.join(self.decisive)}):"):
            writer.line("return False")
        write_sizes(writer, body)
        writer.include(lines.lines)
        fits = f"step_fits(numbers, weights, moving, {data})"
        if spread:
            with writer.block(f"if {fits}:"):
                writer.line("return True")
        writer.line(f"return {spread or fits}")
        self._append(writer)

    def _spread(self, launch: GridLaunch | None, body: Scope, data: str) -> str:
        """Whether it can be spread over the GPU, in the words of a function that looks at that."""
        if launch is None:
            return ""
        own, launch.body = launch.body, body
        text = f"{launch.split(data, f'{self.decisive[0]}.device')} is not None"
        launch.body = own
        return text

    def function(self, shapes: str = "", brief: Op | None = None) -> str:
        """The function that does it; its name. `shapes`: those that are looked at first."""
        done = f"`{self.fast.name}` where a kernel can do it, else `{self.eager.name}`."
        writer = Writer().define(self.name, self.every, [done], wrapper="as_op")
        if shapes:
            self.refuse(writer, shapes)
        if self.kept:
            self._in_shape(writer)
        dtypes = [self._dtype(name) for name in self.results]
        writer.include(self._widths({"wide", *dtypes}))
        arguments = [*self.arguments.values()]
        writer.call("given = (", arguments, ",)" if len(arguments) == 1 else ")")
        with writer.block(f"if {self._fits()}:"):
            writer.line(f"run, own = {self._taking(self.fast)}, given")
        with writer.block("else:"):
            writer.call("check_together(", [quoted(self.owner.title), *self.decisive], ")")
            writer.line(f"run, own = {self._taking(self.eager)}, in_dtype(wide, given)")
        self._runs(writer)
        before, after = self._around()
        writer.call(f"return {before}settled(", ["made", "given", *dtypes], f"){after}")
        self._append(writer)
        return self.name

    def _taking(self, function: GraphFunction) -> str:
        """A function of the arguments alone."""
        name = self._present(function)
        if not function.extra:
            return name
        return f"lambda *own: {name}(*own, {', '.join(function.extra)})"

    def _runs(self, writer: Writer) -> None:
        """The line that runs it, on packed sequences each by itself."""
        if not self.packed:
            writer.line("made = run(*own)")
            return
        with writer.block("if cu_seqlens is None:"):
            writer.line("made = run(*own)")
        with writer.block("else:"):
            kinds = "".join(kind_of(node.type, self.layout(n)) for n, node in self.inputs.items())
            made = "".join(self._made_kind(name) for name in self.results)
            given = ["run", "cu_seqlens", "1", "own", quoted(kinds), quoted(made)]
            writer.call("made = each_alone(", given, ")")


class WalkOps(KernelOps):
    """The ops of one recurrence without chunks."""

    kind = WalkOp
    forward: WalkOp
    backward: WalkOp

    def write(self) -> None:
        """The functions of both, and the ops."""
        for op in (self.forward, self.backward):
            op.room()
        self.shapes = self.forward.shapes()
        forward = [self.forward.function(self.shapes), self.forward.fake()]
        backward = [self.backward.function(), self._fake_gradient()]
        self._both(forward, backward)
        self._ask_for_space()

    @property
    def given(self) -> list[str]:
        """The arguments of the op, as its caller names them."""
        names = {**self.owner.inputs}
        options = ["cu_seqlens"] * self.forward.packed
        return [*(names[n] for n in self.forward.inputs), *self.owner.extra, *options]

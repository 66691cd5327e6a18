"""One launch of a program that walks tokens on a whole GPU: how it is spread, and the memory that
programs hand values to each other in."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from archc.backends.eager.scope import Scope
from archc.backends.triton.program_launch import ProgramLaunch, launch_program
from archc.backends.triton.step_launch import Given, StepLaunch, Walk
from archc.backends.writer import Writer

from archc.ir import layer as ir
from archc.ir.refusal import Refusal
from archc.lowering.grid_steps import over_grid
from archc.lowering.steps import Spread


def grid_launch(
    body: Scope, op: ir.Recurrence, walk: Walk, numbers: Collection[str], pools: bool
) -> GridLaunch | None:
    """The launch of a recurrence that is spread over a GPU, where it can be: for dims that one
    program has no room for."""
    named = replace(walk.kernel, name=f"{walk.kernel.name}_on_grid")
    made = over_grid(named, numbers, pools)
    if isinstance(made, Refusal):
        return None
    return GridLaunch(body, op, Walk(walk.graph, named, made))


class GridLaunch(StepLaunch):
    """The program of a recurrence, and the lines that launch it on a whole GPU."""

    def write_sizes(self, writer: Writer) -> None:
        """Nothing: `split` says all."""

    def split(self, data: str, device: str) -> str:
        """How it is spread, as an expression: None where it cannot be."""
        body, kernel = self.body, self.kernel
        batch, *heads = (body.ask(body.length(axis).text) for axis in kernel.grid)
        (dim,) = (axis for axis in self.op.states[0].axes if axis.name not in self._outside())
        count = " * ".join(heads) or "1"
        given = [batch, count, self._size(dim), str(self._spread.products), data, device]
        return f"grid_split({', '.join(given)})"

    def _outside(self) -> set[str]:
        return {axis.name for axis in self.kernel.grid}

    @property
    def _spread(self) -> Spread:
        assert self.made.spread is not None
        return self.made.spread

    def write(self, writer: Writer, given: Given) -> None:
        """The launch, of what `spread` says."""
        body, made, spread = self.body, self.made, self._spread
        like = next(iter(given.before.values()))
        writer.line("rows, part, splits, share = spread")
        count, *axes = (size for _, size in spread.exchange.axes)
        lengths = [body.ask(body.length(axis).text) for axis in self.kernel.grid]
        (dim,) = (axis for axis in self.op.states[0].axes if axis.name not in self._outside())
        assert len(axes) == len(lengths) + 1
        shape = ", ".join([str(count), *lengths, self._size(dim)])
        dtype = f"step_dtype({given.data})"
        writer.line(f"exchange = torch.empty({shape}, device={like}.device, dtype={dtype})")
        writer.line(f"counter = torch.zeros(1, device={like}.device, dtype=torch.int32)")
        buffers: dict[str, str] = {
            **self._buffers(given), "exchange": "exchange", "counter": "counter",
        }  # fmt: skip
        launch = ProgramLaunch(buffers, self._sizes(given), self._constants(given))
        launch_program(writer, self.title, made.program, launch)

    def _constants(self, given: Given) -> dict[str, str]:
        """Sizes, and how it is spread."""
        own = {"ROWS": "rows", "BLOCK": "part", "SPLITS": "splits", "SHARE": "share"}
        known = {"IO": given.data, "DOT": f"step_dtype({given.data})", "PRECISION": '"tf32x3"'}
        known |= {n: self.body.size(symbol).text for n, symbol in self.made.sizes.items()} | own
        return {name: known[name] for name in self.made.program.constants}

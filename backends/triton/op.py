"""The functions of one op of torch whose kernels do what PyTorch does elsewhere.

What is real has one of these dtypes, whichever way it is done:

    data     that of the narrowest input: results at every token
    wide     float32, or float64 where the states are: states
    narrow   data where kernels do it, else wide: what the gradient needs, where that is enough
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from archc.backends.eager.op import Op
from archc.backends.triton.function import KernelFunction
from archc.backends.writer import Writer

from archc.ir import chunk as ck


class KernelOp(Op):
    """One op under construction: `fast` launches kernels, `eager` does the same in PyTorch."""

    wrapper = "as_op_again"
    fast: KernelFunction

    def done(self) -> str:
        """A sentence on what computes the op."""
        return f"`{self.fast.name}` where kernels can do it, else `{self.eager.name}`."

    def _takes_packed(self) -> bool:
        """Whether it is given packed sequences as they are."""
        return self.fast.packed

    def _fits(self) -> str:
        """Whether kernels can do it."""
        return f"by_kernels({', '.join([self._chunk(), *self.decisive])})"

    def _chunk(self) -> str:
        """A chunk as kernels know its length: where all rows are masked and it is no power of 2
        that of its tiles, which is one."""
        return "in_tiles(chunk)" if self._any_length() else "chunk"

    def _any_length(self) -> bool:
        """Whether chunks that are no power of 2 are asked for, and kernels can have them."""
        size, graphs = self.owner.scope.chunk_size, (self.fast.graph, self.eager.graph)
        return size != ck.power_of_2(size) and all(map(ck.rows_are_masked, graphs))

    def lengths(self, rows: Mapping[tuple[int, ...], int]) -> dict[tuple[int, ...], int]:
        """A table of powers of 2 (`Table` of `archc/schedule/fitting.py`), each as long as tiles
        have room for, if kernels can have chunks of any length."""
        most = ck.MOST_ROWS if self._any_length() else 0
        graph = self.fast.graph
        return {k: ck.tokens_of_tile(graph, n) if n <= most else n for k, n in rows.items()}

    def fitting(self, names: Mapping[str, str]) -> str:
        """The same of what `names` calls its tensors."""
        known = {argument: names[n] for n, argument in self.arguments.items() if n in names}
        return f"by_kernels({', '.join([self._chunk(), *(known[a] for a in self.decisive)])})"

    def _widths(self, used: Collection[str]) -> list[str]:
        """The lines that name dtypes."""
        lines = {
            "data": f"data = narrowest({', '.join(self.data)})",
            "wide": f"wide = torch.promote_types({self.state}.dtype, torch.float32)",
            "narrow": f"narrow = data if {self._fits()} else wide",
        }
        used = {*used, "data", "wide"} if "narrow" in used else used
        return [line for name, line in lines.items() if name in used]

    def _dtype(self, name: str, eager: bool = False) -> str:
        """The dtype of a result; `eager`: where PyTorch does it."""
        kind = self.fast.dtype_of(name)
        if kind == "torch.float32":
            return "wide"
        if name not in self.owner.form.saved:
            called = {f"{a}.dtype": n for n, a in self.fast.arguments.items()}
            return f"{self.arguments[called[kind]]}.dtype" if kind in called else kind
        if eager and self.is_real(name):
            return "wide"
        return "narrow" if kind == "data" else kind

    def _by_kernels(self, writer: Writer, brief: Op | None) -> None:
        """Lines that leave it to kernels, where these can do it."""
        with writer.block(f"if {self._fits()}:"):
            keep = ""
            if isinstance(brief, KernelOp):
                if self.fast.keeping and len(brief.results) > 1:
                    keep = "keep"
                else:
                    with writer.block("if not keep:"):
                        brief.launched(writer)
            self.launched(writer, keep)

    def launched(self, writer: Writer, keep: str = "") -> None:
        """The line that returns what kernels make, the last of it in one row, if it is kept."""
        fast = [*self.fast.arguments.values(), *self.fast.extra, *self.options]
        fast += [keep] if keep else self.fast.keeping
        before, after = self._around()
        before = before.replace(", ", f" * {keep}, ") if keep else before
        writer.call(f"return {before}{self._present(self.fast)}(", fast, f"){after}")

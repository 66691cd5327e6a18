"""Plan -> source text: one file that holds a layer, everything it calls, and its own check."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from archc.backends.assembly import assembled
from archc.backends.eager.file import File, KernelWriters
from archc.backends.eager.function import write_function
from archc.backends.eager.library import named
from archc.backends.eager.module import write_class
from archc.backends.eager.parts import Parts
from archc.backends.eager.selfcheck import self_check
from archc.backends.eager.table import EMITTERS
from archc.backends.embedding import names_read
from archc.backends.writer import Writer, printable, snake

from archc.ir import layer as ir
from archc.ir.plan import Check, Plan

Ready = Callable[[ir.Layer], ir.Layer]
"""Gives a layer its chunked forms."""


def as_it_is(layer: ir.Layer) -> ir.Layer:
    """The layer, whose recurrences are loops."""
    return layer


@dataclass(frozen=True, eq=False)
class Code:
    """A layer in code: its class and those of all layers that it calls, each before those that call
    it. Files of it differ in their head and in their self-check alone."""

    layer: ir.Layer
    layers: Sequence[ir.Layer]
    classes: Mapping[int, str]
    file: File

    def text(self, plan: Plan) -> str:
        """The whole file, the same to the byte for the same plan, which is one of this layer."""
        check = self._self_check(plan.check) if plan.check is not None else ""
        body = assembled(self.file, plan.runtime == "embed", check)
        notes = kernel_notes(self.file, bool(check))
        text = "\n".join([*header(plan, notes), body])
        return named(text) if self.file.spaced else text

    def _self_check(self, check: Check) -> str:
        """The end of the file, which holds kernels against PyTorch too where there are any."""
        read = names_read(*self.file.sections)
        more = [check for check, called in KERNEL_CHECKS.items() if called in read]
        if "check_kernels" in more and "check_token_kernels" in more:
            more.remove("check_token_kernels")  # the whole layer is looked at
        return self_check(self.file, self.layer, self.layers, self.classes, check, more)


def code_of(plan: Plan, writers: KernelWriters | None = None, ready: Ready = as_it_is) -> Code:
    """The code of a plan's layer; `writers` of its kernels, if it has some; `ready` gives a layer
    that is made of a part of another its chunked forms."""
    file = file_of(writers, ready)
    file.linear, file.slots = plan.linear, plan.slots
    layers = called_first(plan.layer)
    classes = file.classes_of(layers[::-1])
    for layer in layers:
        write_class(Parts(file, layer, EMITTERS, classes, layer is plan.layer))
    return Code(plan.layer, layers, classes, file)


def emit(plan: Plan, ready: Ready = as_it_is) -> str:
    """The whole file, without kernels."""
    return code_of(plan, ready=ready).text(plan)


@dataclass(frozen=True)
class Part:
    """A function of the file that computes a part of a layer: the layer that it is, the name of its
    class, its own name, and the options that no shape tells it."""

    layer: ir.Layer
    name: str
    title: str
    options: Sequence[str]


def parts_by(ready: Ready) -> Callable[[File, ir.Layer], Part]:
    """Who writes functions for parts of layers."""

    def write(file: File, layer: ir.Layer) -> Part:
        made = ready(layer)
        classes = file.classes_of([made])
        parts = Parts(file, made, EMITTERS, classes, root=False)
        title = file.names.fresh(snake(parts.name))
        return Part(made, parts.name, title, write_function(parts, title))

    return write


KERNEL_CHECKS = {
    "check_kernels": "by_kernels",
    "check_token_kernels": "by_token_kernels",
    "check_steps": "by_steps",
}
"""Checks of a file with kernels, and the name that such a file calls for each."""


def class_name(layer: ir.Layer) -> str:
    """The name of a layer's class in the file that is written for it."""
    return File().classes_of(called_first(layer)[::-1])[id(layer)]


def file_of(writers: KernelWriters | None, ready: Ready) -> File:
    """A file without anything in it."""
    return File(**vars(writers or KernelWriters()), by_parts=parts_by(ready))


def emit_function(
    layer: ir.Layer, name: str, writers: KernelWriters | None = None, ready: Ready = as_it_is
) -> str:
    """A file with the function of a layer without parameters: `o, state = name(q, k, v, ...)`."""
    file = file_of(writers, ready)
    file.names.fresh(name)
    classes = file.classes_of([layer])
    write_function(Parts(file, layer, EMITTERS, classes, root=True), name)
    body = assembled(file, embedded=False)
    return named(body) if file.spaced else body


def called_first(layer: ir.Layer) -> list[ir.Layer]:
    """The layer and every layer that is called, each once, before those that call it."""
    found: dict[int, ir.Layer] = {}

    def visit(layer: ir.Layer) -> None:
        for _, call in layer.calls:
            if call.callee.kind != "argument" and id(call.callee) not in found:
                visit(call.callee)
        found[id(layer)] = layer

    visit(layer)
    return list(found.values())


def header(plan: Plan, notes: list[str]) -> list[str]:
    """The docstring of the file: what it is, where it comes from, what was checked."""
    layer, writer = plan.layer, Writer()
    first = printable((layer.doc.strip() or f"The {layer.kind} {layer.name}.").splitlines()[0])
    source = f"{layer.source.name} (sha256 {layer.source.sha256[:16]})"
    made = f"Written by archc {plan.version} from {source}." if plan.version else f"From {source}."
    paragraphs = [f"{layer.name}: {first}", made]
    if plan.command:
        paragraphs[1] += " To make it again:"
        paragraphs.append(f"    {printable(plan.command)}")
    if plan.verified:
        paragraphs.append(
            "Checked when it was written, in float64; the largest relative error was below"
        )
        width = max(len(form) for form, _ in plan.verified)
        paragraphs[-1] += "".join(
            f"\n    {form:<{width}}  {bound:.0e}" for form, bound in plan.verified
        )
    if plan.unseen:
        lines = [f"    {printable(line)}" for line in plan.unseen]
        first = "In no small instance that was tried had these anything to choose:"
        paragraphs.append("\n".join([first, *lines]))
    if plan.check is not None:
        paragraphs.append("Run this file to check it again here, and to see how fast it is.")
    writer.docstring([*paragraphs, *notes])
    return [*writer.lines, ""]


def kernel_notes(file: File, checks: bool) -> list[str]:
    """The lines at the head of a file about its ops and kernels."""
    if file.by_kernels is None:
        return [OPS] * file.spaced
    refused = ["\n".join(["By PyTorch alone:", *file.refused])] if file.refused else []
    attends = ["\n".join([*ATTENDS, *file.attends])] if file.attends else []
    tokens = ["\n".join([*TOKENS, *file.token_notes])] if file.token_notes else []
    if not file.notes:
        if not attends and not refused and not tokens:
            return ["Nothing here is worth a kernel: this file has none."]
        return [*attends, *refused, *tokens, *[ASSEMBLER] * bool(tokens or file.spaced)]
    first = "On a GPU, in float32, bfloat16 or float16, these launch kernels of Triton, by chunks"
    second = (
        "of 16, 32 or 64 tokens or token by token; everything else is in PyTorch, and without a"
    )
    third = "GPU or without Triton all of it is:"
    last = "Nothing above tells of the kernels: on a GPU, running this file checks them too."
    ending = [ASSEMBLER, *[last] * checks]
    ops = [OPS] * file.spaced
    notes = "\n".join([first, second, third, *file.notes])
    return [notes, *attends, *refused, *tokens, *ops, *ending]


TOKENS = (
    "On a GPU, in float32, bfloat16 or float16, each of these is one kernel, and another one for",
    "its gradient, of packed sequences too:",
)
"""The comment of a file above its token regions."""


ATTENDS = ("On a GPU; elsewhere, and for gradients of few readers, all pairs at once in PyTorch:",)
"""The comment of a file above its attentions."""

OPS = """Recurrences by chunks are ops of torch (`torch.ops`, in a namespace of this file), which
torch.compile takes as they are: one graph for any number of tokens. Autocast does not reach into
them: results have a dtype of what enters, states at least float32. Strides may be any. Gradients
of gradients and derivatives in forward mode are refused, token by token they are there."""
"""The comment of a file about its ops."""

ASSEMBLER = """A process that imports this file with Triton 3.5 or 3.6 takes the newer of the two
assemblers that Triton comes with, for every kernel: see `newer_assembler`."""
"""The comment of a file about the machine code of its kernels."""

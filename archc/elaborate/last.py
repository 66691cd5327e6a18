"""A file that stands for its last layer, though one above is made of it: most often the whole was
written first, as in a file of Python."""

from __future__ import annotations

import re

from archc.diagnostics import Diagnostic, Label
from archc.elaborate.mentions import free_names
from archc.ir import layer as ir
from archc.syntax.parse import parse


def parts_at_the_end(layer: ir.Layer) -> tuple[Diagnostic, ...]:
    """A warning for a layer that is the last of its file and a part of one above it."""
    name, text = layer.name, layer.source.text
    if len(re.findall(rf"(?<!\w){name}(?!\w)", text)) < 2:
        return ()
    layers = [decl for decl in parse(layer.source).decls if decl.kind != "function"]
    *above, last = layers
    mentions = {decl.name: {*free_names(decl.body)} for decl in layers}
    whole = last
    while found := [each for each in above if whole.name in mentions[each.name]]:
        whole = found[-1]
        above.remove(whole)
    if whole is last or last.name != name:
        return ()
    return (
        Diagnostic(
            "E0229",
            f"the file stands for `{name}`, a part of `{whole.name}`",
            Label(last.header, "its last layer"),
            others=(Label(whole.header, f"made of `{name}`"),),
            helps=(
                f"if `{whole.name}` is meant, write it below `{name}`, or ask for "
                f"`{layer.source.name.rsplit('/', 1)[-1]}:{whole.name}`",
            ),
            severity="warning",
        ),
    )

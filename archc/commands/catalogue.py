"""The description of a spec, read from its text alone."""

from __future__ import annotations

import re

from archc.specfile import read, split
from archc.syntax.parse import parse


def entry(spec: str) -> dict[str, str]:
    """The last layer of `spec`: name of the spec, of the layer, kind, one line, source."""
    decl = next(d for d in reversed(parse(read(split(spec)[0])).decls) if d.kind != "function")
    about, source = doc_parts(decl.doc)
    return {"name": spec, "layer": decl.name, "kind": decl.kind, "about": about, "source": source}


def doc_parts(doc: str) -> tuple[str, str]:
    """The first sentence of a docstring, and the source that it names after `source:`."""
    text, _, source = " ".join(doc.split()).partition("source:")
    return re.split(r"(?<=\.)\s", text.strip(), maxsplit=1)[0], source.strip()

"""The numbers behind names that several values share: 2, 3, ... in the order of the text.

    run_8 = tl.where(...)               run_2 = tl.where(...)
    run_6 = pushed(run, run_8)    ->    run_3 = pushed(run, run_2)

Values are numbered when they are made, and many have no line. What is called so in the docstring,
or after a buffer, keeps its name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from archc.ir import free_names

NUMBERED = re.compile(r"(\w+)_(?!64$)([2-9]|[1-9]\d+)")
MADE = re.compile(r"\s*(?:for )?([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)(?: = | in )")
WORD = re.compile(r"(?<![\w.\"])[A-Za-z_]\w*")


def numbered(lines: Sequence[str], shared: Collection[str], kept: Collection[str]) -> list[str]:
    """The lines of a program, in which names of values are numbered anew, of which `shared` is what
    stands before the number, but for those `kept`."""
    code = [line for line in lines if not line.lstrip().startswith("#")]
    found = (MADE.match(line) for line in code)
    made = dict.fromkeys(name for match in found if match for name in match[1].split(", "))
    words = {word for line in code for word in WORD.findall(line)}
    again = {name: match[1] for name in made if name not in kept
             for match in [NUMBERED.fullmatch(name)] if match and match[1] in shared}  # fmt: skip
    used = {*kept, *(word for word in words if word not in again)}
    new: dict[str, str] = {}
    for name, base in again.items():
        new[name] = free_names.numbered(base, used)
        used.add(new[name])
    return [
        line if line.lstrip().startswith("#") else WORD.sub(lambda m: new.get(m[0], m[0]), line)
        for line in lines
    ]

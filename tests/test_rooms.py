"""The rules of rooms: no circle of modules, and no two of one name in rooms that see each other."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOMES = {"archc": ROOT / "archc", "archc.backends": ROOT / "backends"}


@lru_cache
def modules() -> dict[str, Path]:
    """The files of the compiler by name; links from one room to another are not followed."""
    found = {}
    for package, home in HOMES.items():
        for path in home.rglob("*.py"):
            inner = path.relative_to(home).with_suffix("").parts
            if not {"backends", "specs"} & {*inner}:
                name = ".".join((package, *inner))
                found[name.removesuffix(".__init__")] = path
    return found


IMPORT = re.compile(
    r"^ *(?:from (archc[\w.]*) import (\([^)]*\)|[^\n]*)|import (archc[\w.]*))", re.M
)
TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:    .*\n|\n)+", re.M)


@lru_cache
def imports() -> dict[tuple[str, str], bool]:
    """Who imports whom, at the top and inside functions; True: for annotations alone."""
    found: dict[tuple[str, str], bool] = {}
    for name, path in modules().items():
        text = path.read_text(encoding="utf-8")
        typed = "\n".join(TYPES.findall(text))
        for part, alone in ((typed, True), (TYPES.sub("", text), False)):
            for other in imported(part):
                found[name, other] = found.get((name, other), True) and alone
    return found


def imported(text: str) -> list[str]:
    """The modules of the compiler that a text imports."""
    found = []
    for home, names, whole in IMPORT.findall(text):
        inner = [f"{home}.{name}" for name in re.findall(r"\w+", re.sub(r" as \w+", "", names))]
        found += [each if each in modules() else home for each in inner] or [whole]
    return [name for name in found if name in modules()]


def test_imports_are_found() -> None:
    text = "from archc.ir import layer as ir, graph\n    from archc.dims import (\n    Axis,\n)\n"
    assert imported(text) == ["archc.ir.layer", "archc.ir.graph", "archc.dims"]


def circle(pairs: set[tuple[str, str]]) -> list[str]:
    """Modules that import one another in a circle; none if there is no circle."""
    needs = defaultdict(set)
    for one, other in pairs:
        needs[one].add(other)
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def named_by_parts(found: dict[tuple[str, str], bool]) -> set[tuple[str, str]]:
    """Annotations that name the class that a function is a part of: it calls the function with
    itself, from another file of the same room. They close no circle: nothing is loaded for them,
    and the part needs of the whole what the whole hands to it."""
    calls = defaultdict(set)
    for (one, other), typed in found.items():
        if not typed:
            calls[one].add(other)

    def within(one: str) -> set[str]:
        reached, left = set[str](), [one]
        while left:
            new = calls[left.pop()] - reached
            reached |= new
            left += new
        return reached

    return {
        (part, whole) for (part, whole), typed in found.items()
        if typed and part.rpartition(".")[0] == whole.rpartition(".")[0] and part in within(whole)
    }  # fmt: skip


def test_no_modules_import_one_another_in_a_circle() -> None:
    """Imports inside functions count; so do those for annotations, but for parts of a class."""
    found = circle({*imports()} - named_by_parts(imports()))
    assert not found, " -> ".join(found)


def test_annotations_close_circles_between_rooms_and_of_strangers() -> None:
    whole, part = "a.whole", "a.part"
    assert named_by_parts({(whole, part): False, (part, whole): True}) == {(part, whole)}
    assert not named_by_parts({(whole, "b.part"): False, ("b.part", whole): True})
    assert not named_by_parts({(whole, part): True, (part, whole): True})
    assert not named_by_parts({(whole, part): False, (part, whole): False})


def test_a_circle_is_found() -> None:
    assert circle({("a", "b"), ("b", "c"), ("c", "a"), ("c", "d")})
    assert not circle({("a", "b"), ("b", "c"), ("a", "c")})


def same_names() -> set[str]:
    """Names that modules have in two rooms of which one imports of the other. Commands are called
    what a user types, and a backend calls what it writes as lowering and the other one do."""
    named = defaultdict(list)
    for name, path in modules().items():
        room, _, own = name.rpartition(".")
        named[own] += [room] * (path.name != "__init__.py")
    linked = {frozenset(each.rpartition(".")[0] for each in pair) for pair in imports()}
    written = {"archc.lowering", "archc.backends", *map("archc.backends.{}".format, (
        "eager", "triton"))}  # fmt: skip
    return {
        own for own, rooms in named.items() for pair in combinations(rooms, 2)
        if frozenset(pair) in linked and not written.issuperset(pair)
        and not ("archc.commands" in pair and is_command(own))
    }  # fmt: skip


def is_command(name: str) -> bool:
    """Whether a module of commands is one that a user types."""
    text = modules()[f"archc.commands.{name}"].read_text(encoding="utf-8")
    return "\ndef command(" in text


def test_rooms_that_see_each_other_name_their_files_apart() -> None:
    assert not same_names()

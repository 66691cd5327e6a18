"""The state of a memory from tensors that are there already: of another library, of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args, get_type_hints

from archc.backends.eager.memory import Field, memory_of
from archc.ir import layer as ir


def state_from(memory: ir.Layer, op: Callable[..., Any], given: Mapping[str, Any]) -> Any:
    """The state that a memory's function continues from, of a value for each field by its name.
    Raises ValueError and TypeError in the words of the spec."""
    from archc.runtime.layers import check_index, check_input, check_real  # torch: late

    fields, name, sizes = memory_of(memory).fields, memory.name, dict[str, int]()
    seen = _seen_alike(fields)
    known = [field.name for field in fields]
    for wrong in [each for each in given if each not in known]:
        have = ", ".join(f"`{each}`" for each in known) or "nothing"
        raise ValueError(f"the memory of {name} keeps no `{wrong}`: it keeps {have}")
    missing = [f"`{each}`" for each in known if each not in given]
    if missing:
        raise ValueError(f"the memory of {name} also keeps {', '.join(missing)}")
    for field in fields:
        value = given[field.name]
        if field.kind == "pos":
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise TypeError(f"{name}: `pos` must be the number of tokens seen, got {value!r}")
            continue
        like = value if not sizes else next(x for x in given.values() if not isinstance(x, int))
        check_input(name, field.name, value, _dims(field, seen), sizes, like)
        (check_real if field.dtype == "real" else check_index)(name, field.name, value)
    for field in fields if "pos" in given else ():
        long = given[field.name].shape[1] if field.name in seen and _own(field) else 0
        if long > given["pos"]:
            pos = f"`pos` = {given['pos']} tokens were seen"
            raise ValueError(f"{name}: `{field.name}` has {long} tokens, and {pos}")
    kind = next(each for each in get_args(get_type_hints(op)["state"]) if each is not type(None))
    return kind(**given)


def _seen_alike(fields: Sequence[Field]) -> dict[str, str]:
    """A name for the number of tokens that an attend has kept, by field: fields that keep the same
    tokens of one sequence are equally long."""
    kinds: dict[tuple[str, str], str] = {}
    found = {}
    for field in fields:
        along = next((axis.name for axis in field.axes if axis.kind == "stream"), None)
        if field.kind == "seen" and along is not None:
            name = kinds.setdefault((along, str(field.count)), f"tokens_of_{field.name}")
            found[field.name] = name
    return found


def _own(field: Field) -> bool:
    """Whether what is kept is a value for each token of the layer's own sequence."""
    return [axis.name for axis in field.axes[:2]] == ["batch", "t"]


def _dims(field: Field, seen: Mapping[str, str]) -> str:
    """The names of a field's dims; what grows with the tokens may be as long as it likes, where
    nothing else that is kept of the same tokens is longer."""
    tokens = seen.get(field.name, f"tokens_of_{field.name}")
    names = {"batch": "B", "stream": tokens}
    return " ".join(names.get(axis.kind) or axis.name for axis in field.axes)

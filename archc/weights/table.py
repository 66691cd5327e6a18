"""The table of a spec: which tensor of a public checkpoint is which parameter.

    model_type = "theirs"                     # of config.json
    architecture = "TheirsForCausalLM"

    [sizes]                                   # sizes and options of the spec, from config.json
    d = "hidden_size"
    base = "rope_parameters.rope_theta"       # a path; what is missing takes the spec's default
    g = "mlp_multipliers.0"                   # and places of a list
    eps = ["rms_norm_eps", "layer_norm_eps"]  # the first that is there
    slow = { first = ["rope_parameters.beta_slow"], else = 1 }     # the same, or 1
    Q = { at = "q_lora_rank", null = 0 }      # null there is 0 here
    attention = { indices = "layer_types", of = "full_attention", other = "conv", count = "L" }
    f = { length = "layers.0.w1.weight", dim = 0, at = "ff_dim" }  # of a tensor; `at` if written

    [kinds."rope_parameters.rope_type"]       # a word that says which sizes are there; the first is
    at = ["rope_scaling.rope_type"]           # what is meant where it is neither there nor `at`
    default = []
    linear = ["factor", "amount?"]            # `amount` may be there

    [same]                                    # what repeats a size
    num_key_value_heads = "H"

    [fixed]                                   # options that are always so
    tanh = true

    [expected]                                # what config.json must say: the spec can nothing else
    hidden_act = "silu"

    [written]                                 # what a config.json that is written says beside
    adjust_ff_dim = false

    [tensors]                                 # parameter = tensor, and how its dims lie there
    "E" = "model.embed_tokens.weight"
    "layers.{l}.attention.W_q" = { from = "layers.{l}.q_proj.weight", as = "(H K) d -> d H K" }
    "layers.{l}.W_g" = { from = "layers.{l}.experts.{e}.w1.weight", as = "e f d -> e d f" }
    "l.{l}.W_UK" = { from = "l.{l}.kv.weight", as = "(H kv) c -> kv c H", part = "kv[:K]" }

    [tied]                                    # tensors that repeat another one, or are left out
    "lm_head.weight" = "model.embed_tokens.weight"

    ignored = ["rotary_emb.inv_freq"]         # endings of tensors that no parameter needs
    absent = ["rope_scaling"]                 # what config.json must not say, or null
    reals = ["scale"]                         # sizes that config.json has as 2.0, never as 2

`as` is an einops pattern from the tensor to the parameter, with the spec's own sizes. A `{e}` that
the parameter lacks runs over several tensors, which are stacked along the dim `e`. `part` cuts one
dim, by index (`kv[0]`, the dim goes) or between sizes (`kv[:K]`, `kv[K:K+2*V]`). `then` is
a pattern for what was cut. `map` is a function from the tensor to the parameter, one of `MAPS`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from archc.diagnostics import fail

PLACE = re.compile(r"\{(\w+)\}")
PART = re.compile(r"(\w+)\[(?:(\d+)|([\w+*]*):([\w+*]*))\]")
SUFFIX = ".weights.toml"
KEYS = {
    "model_type", "architecture", "sizes", "fixed", "expected", "tensors", "tied", "ignored",
    "absent", "reals", "same", "written", "kinds",
}  # fmt: skip
MAPS = ("neg_exp", "exp", "one_plus")
"""Functions from a tensor to a parameter: -exp(x), exp(x), 1 + x."""


@dataclass(frozen=True)
class Part:
    """One index of a dim (`index` of `count`), or those from `start` to `stop`: sums and products
    of sizes and numbers."""

    dim: str
    index: int | None = None
    start: str = ""
    stop: str = ""
    count: int = 0


@dataclass(frozen=True)
class Entry:
    """One parameter, or one in every layer: the tensor, or tensors, it comes from."""

    parameter: str
    tensor: str
    pattern: str = ""
    part: Part | None = None
    map: str = ""
    then: str = ""

    @property
    def stacked(self) -> str:
        """The place of the tensor's name that the parameter's lacks; "" if there is none."""
        own = PLACE.findall(self.parameter)
        return next((name for name in PLACE.findall(self.tensor) if name not in own), "")


@dataclass(frozen=True)
class Kinds:
    """The words that config.json may have at one of some paths, the sizes that each needs, and
    those that it may have."""

    paths: tuple[str, ...]
    sizes: Mapping[str, tuple[str, ...]]
    more: Mapping[str, tuple[str, ...]]

    @property
    def known(self) -> set[str]:
        """The sizes that any word has."""
        return {name for word in self.sizes for name in self.of(word)}

    def of(self, word: str) -> tuple[str, ...]:
        """The sizes that a word needs or may have."""
        return self.sizes[word] + self.more[word]


@dataclass(frozen=True)
class Table:
    """The table of `NAME.weights.toml`; the module's docstring has its parts."""

    name: str
    model_type: str
    architecture: str
    entries: tuple[Entry, ...]
    sizes: Mapping[str, str | list[str] | Mapping[str, Any]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    expected: Mapping[str, Any] = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    reals: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict)
    kinds: tuple[Kinds, ...] = ()


def table_of(text: str, name: str) -> Table:
    """The table of a file's text; ArchError E0040 for one that is wrong."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _wrong(name, str(error)) from None
    unknown = sorted(set(data) - KEYS)
    missing = sorted({"model_type", "architecture", "tensors"} - set(data))
    if unknown or missing:
        raise _wrong(name, f"it has {', '.join(unknown)}" if unknown else f"no {missing[0]}")
    entries = _counted([_entry(name, key, value) for key, value in data["tensors"].items()])
    _check_places(name, data)
    return Table(
        name, data["model_type"], data["architecture"], entries, data.get("sizes", {}),
        data.get("fixed", {}), data.get("expected", {}), data.get("tied", {}),
        tuple(data.get("ignored", ())), tuple(data.get("absent", ())), tuple(data.get("reals", ())),
        data.get("same", {}), data.get("written", {}), tuple(_kinds(name, data)),
    )  # fmt: skip


def _check_places(name: str, data: dict[str, Any]) -> None:
    """Refuse a place in a list of config.json, `multipliers.1` say, without those before it: what
    would be written there is not known."""
    paths = {*data.get("expected", {}), *data.get("written", {}), *data.get("same", {})}
    paths |= {where for where in data.get("sizes", {}).values() if isinstance(where, str)}
    for path in sorted(paths):
        outer, _, last = path.rpartition(".")
        if last.isdigit() and int(last) and f"{outer}.{int(last) - 1}" not in paths:
            raise _wrong(name, f"it has `{path}`, and not the place before it")


def _kinds(name: str, data: dict[str, Any]) -> Iterator[Kinds]:
    """The words that say which sizes are there."""
    for path, words in data.get("kinds", {}).items():
        more = words.get("at", [])
        lists = {word: names for word, names in words.items() if word != "at"}
        needs = {w: tuple(n for n in names if n[-1] != "?") for w, names in lists.items()}
        may = {w: tuple(n[:-1] for n in names if n[-1] == "?") for w, names in lists.items()}
        found = Kinds((path, *more), needs, may)
        if unknown := sorted(found.known - {*data.get("sizes", {})}):
            raise _wrong(name, f"`{path}` needs {', '.join(unknown)}, which no size is called")
        yield found


def _entry(name: str, parameter: str, value: Any) -> Entry:
    if isinstance(value, str):
        return Entry(parameter, value)
    if (
        not isinstance(value, dict)
        or "from" not in value
        or set(value) - {"from", "as", "part", "map", "then"}
    ):
        raise _wrong(name, f"`{parameter}` is a tensor, or has `from`, `as`, `part`, `then`, `map`")
    if value.get("map", "neg_exp") not in MAPS:
        raise _wrong(name, f"`{parameter}` has a `map` that is none of {', '.join(MAPS)}")
    part = None
    if "part" in value:
        match = PART.fullmatch(value["part"])
        if match is None:
            raise _wrong(name, f"the part of `{parameter}` is none such as `kv[0]` or `kv[:K]`")
        index = None if match[2] is None else int(match[2])
        part = Part(match[1], index, match[3] or "", match[4] or "")
    pattern, then = value.get("as", ""), value.get("then", "")
    entry = Entry(parameter, value["from"], pattern, part, value.get("map", ""), then)
    if (part or entry.stacked) and not entry.pattern:
        raise _wrong(name, f"`{parameter}` needs `as`, which names the dims")
    return entry


def _counted(entries: list[Entry]) -> tuple[Entry, ...]:
    """The same; parts by index know how many there are of their tensor."""
    most: dict[str, int] = {}
    for entry in entries:
        if entry.part is not None and entry.part.index is not None:
            most[entry.tensor] = max(most.get(entry.tensor, 0), entry.part.index + 1)
    return tuple(
        replace(entry, part=replace(entry.part, count=most[entry.tensor]))
        if entry.part is not None and entry.part.index is not None
        else entry
        for entry in entries
    )


def _wrong(name: str, why: str) -> Exception:
    return fail("E0040", f"the table `{name}` is wrong", notes=(why,))

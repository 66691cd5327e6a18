"""A folder with a public checkpoint -> a module, and a module -> such a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from archc.diagnostics import ArchError, Diagnostic, fail
from archc.ir.paths import present_name
from archc.origin import origin_of
from archc.specfile import bundled, read
from archc.weights import convert, files
from archc.weights.convert import Misfit
from archc.weights.table import SUFFIX, Kinds, Table, table_of


def table_for(spec: str, text: str) -> Table:
    """The table of a spec with this name and text: of the bundle, or beside its file; ArchError
    E0040 if there is none."""
    stem = Path(spec).stem
    place: Any = Path(spec).with_name(stem + SUFFIX)
    if stem in bundled() and read(stem).text == text:
        place = resources.files("archc.specs").joinpath(stem + SUFFIX)
    if place.is_file():
        return table_of(place.read_text("utf-8"), stem + SUFFIX)
    raise fail(
        "E0040",
        f"`{stem}` has no table for checkpoints",
        notes=(f"it would stand beside the spec, in `{stem}{SUFFIX}`",),
    )


def load(
    make: Callable[..., nn.Module],
    spec: tuple[str, str],
    folder: Path,
    *,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    **given: Any,
) -> nn.Module:
    """The module of a checkpoint, in evaluation mode: `make` of the sizes that config.json says, or
    `given` in their place; `spec` has a name and a text. Raises ArchError: E0040 (no table, or a
    wrong one), E0041 (a file is missing or torn), E0042 (what is in it does not fit: every tensor
    is named)."""
    table, there = table_for(*spec), files.checkpoint(folder)
    _expect(table, there.config)
    sizes = {**_sizes(table, there), **table.fixed}
    _expect_same(table, there.config, sizes)
    sizes |= given
    module = make(dtype=dtype or there.dtype(), device=device, **sizes)
    known = {k: v for k, v in origin_of(module).sizes.items() if isinstance(v, int)}
    wanted = module.state_dict()
    try:
        found = convert.sources(table, wanted, there.homes)
        _check_tied(table, there, found)
        values = _all(found, there, known, wanted)
    except Misfit as misfit:
        raise _unfit(folder, misfit) from None
    module.load_state_dict(values)
    return module.eval()


def load_own(
    make: Callable[..., nn.Module],
    path: Path,
    *,
    dtype: torch.dtype | None,
    device: torch.device | str | None,
    **given: Any,
) -> nn.Module:
    """The module of a file that `save_own` wrote. Raises ArchError as `load` does."""
    values, sizes = files.own(path)
    dtype = dtype or next((v.dtype for v in values.values() if v.is_floating_point()), None)
    module = make(dtype=dtype, device=device, **{**sizes, **given})
    wanted, layer = module.state_dict(), origin_of(module).layer
    values = {present_name(layer, name): value for name, value in values.items()}
    findings = [f"missing: `{name}`" for name in wanted if name not in values]
    findings += [f"extra: `{name}`" for name in values if name not in wanted]
    findings += [
        f"`{name}` is {list(value.shape)}, not {list(wanted[name].shape)}"
        for name, value in values.items()
        if name in wanted and value.shape != wanted[name].shape
    ]
    if findings:
        raise _unfit(path, Misfit(findings))
    module.load_state_dict(values)
    return module.eval()


def save_own(module: nn.Module, path: Path) -> None:
    """One safetensors file with the module's parameters by their own names, and its sizes."""
    origin = origin_of(module)
    values = {name: value.detach().cpu() for name, value in module.state_dict().items()}
    files.save_own(path, values, {**dict(origin.recipe.given), **origin.sizes})


def _all(
    found: list[convert.Source], there: files.Checkpoint, known: Mapping[str, int],
    wanted: Mapping[str, Tensor],
) -> dict[str, Tensor]:  # fmt: skip
    """Every parameter; Misfit with all those that have another shape."""
    values, findings = {}, []
    for source in found:
        try:
            shape = tuple(wanted[source.parameter].shape)
            values[source.parameter] = convert.parameter(source, there.read, known, shape)
        except Misfit as misfit:
            findings += misfit.findings
    if findings:
        raise Misfit(findings)
    return values


def save(module: nn.Module, folder: Path, shard_bytes: int) -> None:
    """Write a folder as Hugging Face keeps it. Raises ArchError as `load` does."""
    origin = origin_of(module)
    table = table_for(*origin.recipe.spec)
    values = {name: value.detach().cpu() for name, value in module.state_dict().items()}
    known = {k: v for k, v in origin.sizes.items() if isinstance(v, int)}
    try:
        tensors = convert.tensors(convert.targets(table, values), values, known)
    except Misfit as misfit:
        raise _unfit(folder, misfit) from None
    settled = {arg.name: arg.default for arg in origin.layer.args if arg.symbol is None}
    given = dict(origin.recipe.given)
    sizes = {**settled, **given, **origin.sizes}
    dtype = str(next(iter(values.values())).dtype).removeprefix("torch.")
    config = {"model_type": table.model_type, "architectures": [table.architecture],
              "dtype": dtype, **_nested(_config(table, sizes, given))}  # fmt: skip
    files.save(folder, tensors, config, shard_bytes)


def _expect(table: Table, config: Mapping[str, Any]) -> None:
    """The model is one that the spec can say."""
    wrong = []
    if config.get("model_type") != table.model_type:
        wrong.append(f"it is a `{config.get('model_type')}`, not a `{table.model_type}`")
    for key, value in table.expected.items():
        found = at(config, key)
        if found is not None and found != value:
            wrong.append(f"its `{key}` is {found!r}; the spec can only {value!r}")
    for kinds in table.kinds:
        words, first = _words(kinds, config), kinds.paths[0]
        can = ", ".join(map(repr, kinds.sizes))
        if len(words) > 1:
            wrong.append(f"its `{first}` is {words[0]!r}, and at another place {words[1]!r}")
        elif words[0] in BY_LENGTH:
            wrong.append(f"its `{first}` is {words[0]!r}: {WHY}; the spec can {can}")
        elif words[0] not in kinds.sizes:
            wrong.append(f"its `{first}` is {words[0]!r}; the spec can only {can}")
    for key in table.absent:
        if found := at(config, key):
            wrong.append(f"its `{key}` is {found!r}; the spec has nothing such")
    if wrong:
        raise fail("E0042", "the checkpoint is of another model", notes=tuple(wrong))


def _expect_same(table: Table, config: Mapping[str, Any], sizes: Mapping[str, Any]) -> None:
    """Refuse a checkpoint in which a repeated size is not the spec's."""
    wrong = [
        f"its `{key}` is {found!r}; the spec has `{name}` = {sizes[name]!r} there"
        for key, name in table.same.items()
        if (found := at(config, key)) is not None and name in sizes and found != sizes[name]
    ]
    if wrong:
        raise fail("E0042", "the checkpoint is of another model", notes=tuple(wrong))


def at(config: Mapping[str, Any], path: str) -> Any:
    """The value at a path with dots, and numbers for places in lists; None if there is none."""
    found: Any = config
    for key in path.split("."):
        if isinstance(found, list):
            found = {str(place): each for place, each in enumerate(found)}
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


BY_LENGTH = ("dynamic", "longrope", "su")
WHY = (
    "angles change with the length of the whole text, so that what a token has given, and is kept "
    "of it, would not stay what it was when others come"
)


def _words(kinds: Kinds, config: Mapping[str, Any]) -> list[str]:
    """The words that config.json has at its paths, each once; the table's first where none is."""
    found = (x for path in kinds.paths if (x := at(config, path)) is not None)
    return list(dict.fromkeys(found)) or [next(iter(kinds.sizes))]


def _of_kinds(table: Table, config: Mapping[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """Those of the sizes that are there by the words of config.json. Raises ArchError E0042 where
    one that a word needs is missing."""
    for kinds in table.kinds:
        word = _words(kinds, config)[0]
        if missing := [name for name in kinds.sizes[word] if name not in sizes]:
            lacks = ", ".join(f"`{_paths(table.sizes[name])[0]}`" for name in missing)
            why = f"its `{kinds.paths[0]}` is {word!r}, and it lacks {lacks}"
            raise fail("E0042", "the checkpoint says too little", notes=(why,))
        away = kinds.known - {*kinds.of(word)}
        sizes = {k: v for k, v in sizes.items() if k not in away}
    return sizes


def _paths(where: str | list[str] | Mapping[str, Any]) -> list[str]:
    """The paths of a size that has the first of them which is there; none for another."""
    listed = where.get("first", []) if isinstance(where, Mapping) else where
    return [listed] if isinstance(listed, str) else listed


def _sizes(table: Table, there: files.Checkpoint) -> dict[str, Any]:
    """Sizes and options of the spec that config.json says, or a tensor has."""
    sizes, config = {}, there.config
    for name, where in table.sizes.items():
        paths = _paths(where)
        if paths or not isinstance(where, Mapping):
            value = next((x for path in paths if (x := at(config, path)) is not None), None)
            if value is None and isinstance(where, Mapping):
                value = where["else"]
        elif "length" in where:
            value = there.length(where["length"], where["dim"])
        elif "indices" in where:
            continue
        else:
            value = at(config, where["at"])
            if value is None and where["at"] in config:
                value = where["null"]
        if value is not None:
            sizes[name] = value
    return _of_kinds(table, config, _of_lists(table, config, sizes))


def _of_lists(table: Table, config: Mapping[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """The sizes with those that are places of a word in a list, `layer_types` say. Raises ArchError
    E0042 for a list of another length than the count of it, or with a word that is none of them."""
    wrong, lists = [], dict[str, dict[str, Mapping[str, Any]]]()
    for name, where in table.sizes.items():
        if isinstance(where, Mapping) and "indices" in where:
            lists.setdefault(where["indices"], {})[name] = where
    for path, of in lists.items():
        if (words := at(config, path)) is None:
            continue
        known = [*dict.fromkeys([x["of"] for x in of.values()] + [x["other"] for x in of.values()])]
        count = sizes.setdefault(next(iter(of.values())).get("count", "L"), len(words))
        if len(words) != count:
            wrong.append(f"its `{path}` has {len(words)} words for {count}")
        others, can = sorted({*words} - {*known}), " or ".join(map(repr, known))
        wrong += [f"its `{path}` has {word!r}; the spec can only {can}" for word in others]
        for name, where in of.items():
            sizes[name] = [place for place, word in enumerate(words) if word == where["of"]]
    if wrong:
        raise fail("E0042", "the checkpoint is of another model", notes=tuple(wrong))
    return sizes


def _real(x: Any) -> Any:
    """A size that config.json has as 2.0; none is null."""
    return None if x is None else float(x)


def _config(table: Table, sizes: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a module with these sizes, of which some were `given`, by paths."""
    config = {"pad_token_id": None, **table.expected, **table.written}
    sizes = {name: _real(x) if name in table.reals else x for name, x in sizes.items()}
    for kinds in table.kinds:
        there = {name for name in kinds.known if sizes.get(name) is not None}
        words = [word for word, needs in kinds.sizes.items() if there >= {*needs}]
        config[kinds.paths[0]] = words[-1]
        kept = {name for name in kinds.more[words[-1]] if given.get(name) is not None}
        away = kinds.known - {*kinds.sizes[words[-1]], *kept}
        sizes = {name: x for name, x in sizes.items() if name not in away}
    for name, where in table.sizes.items():
        if name not in sizes:
            continue
        paths = _paths(where)
        if paths or not isinstance(where, Mapping):
            config[paths[0]] = sizes[name]
            continue
        if "at" in where:
            nothing = "null" in where and sizes[name] == where["null"]
            config[where["at"]] = None if nothing else sizes[name]
            continue
        count = int(sizes[where.get("count", "L")])
        words = config.setdefault(where["indices"], [where["other"]] * count)
        for place in sizes[name]:
            words[place] = where["of"]
    config |= {key: sizes[name] for key, name in table.same.items() if name in sizes}
    if table.tied:
        config.setdefault("tie_word_embeddings", True)
    return config


def _nested(flat: Mapping[str, Any]) -> Any:
    """`{"a.b": 1, "c.0": 2, "c.1": 3}` -> `{"a": {"b": 1}, "c": [2, 3]}`."""
    nested: dict[str, Any] = {path: value for path, value in flat.items() if "." not in path}
    for key in dict.fromkeys(path.partition(".")[0] for path in flat if "." in path):
        inside = {p.partition(".")[2]: x for p, x in flat.items() if p.startswith(f"{key}.")}
        nested[key] = _nested(inside)
    if nested and all(map(str.isdigit, nested)):
        return [nested[key] for key in sorted(nested, key=int)]
    return nested


def _check_tied(table: Table, there: files.Checkpoint, found: list[convert.Source]) -> None:
    """A tensor that repeats another one, and is no parameter's own, is that one."""
    own = {name for source in found for name in source.tensors}
    for name, other in table.tied.items():
        both = name in there.homes and other in there.homes and name not in own
        if both and not torch.equal(there.read(name), there.read(other)):
            raise Misfit([f"`{name}` is not `{other}`, which the spec has in its place"])


def _unfit(folder: Path, misfit: Misfit) -> ArchError:
    """Every finding, a diagnostic each."""
    most = 20
    notes = misfit.findings[:most]
    if len(misfit.findings) > most:
        notes = (*notes, f"and {len(misfit.findings) - most} more")
    title = f"the checkpoint `{folder}` does not fit the spec"
    return ArchError([Diagnostic("E0042", title, notes=notes)])

"""The file of settings: for one spec's kernels, on one device, with one version of each tool."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from archc.tune.candidates import Candidate, Launch


def place(title: str, device: str) -> Path:
    """Where the settings of a spec on a device are kept if no other place is named: in the user's
    cache, `$XDG_CACHE_HOME/archc/tuned` or `~/.cache/archc/tuned`."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    names = (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-") for name in (title, device))
    return cache / "archc" / "tuned" / ("_".join(names) + ".json")


def document(
    found: Mapping[Launch, Candidate],
    sources: Mapping[str, str],
    here: Mapping[str, str],
    record: Mapping[str, Any],
) -> dict[str, Any]:
    """The file that is written: settings by kernel and class of launches, with the digest of each
    kernel's text, the device and the versions that they hold for, and how they were found."""
    kernels: dict[str, dict[str, Any]] = {}
    for (kernel, kind), candidate in sorted(found.items(), key=lambda item: item[0]):
        entry = kernels.setdefault(kernel, {"source": sources[kernel], "settings": {}})
        entry["settings"][kind] = candidate.settings
    return {"valid_for": dict(here), "kernels": kernels, "record": dict(record)}


def joined(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an earlier file with new ones over them; those that are not valid any more,
    of another device, version or text of a kernel, are dropped."""
    if old.get("valid_for") != new["valid_for"]:
        return dict(new)
    kernels = {name: dict(entry) for name, entry in old.get("kernels", {}).items()}
    for name, entry in new["kernels"].items():
        same = kernels.get(name, {}).get("source") == entry["source"]
        before = kernels[name]["settings"] if same else {}
        kernels[name] = {**entry, "settings": {**before, **entry["settings"]}}
    return {**new, "kernels": kernels}


def read(path: Path) -> dict[str, Any]:
    """An earlier file; empty if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

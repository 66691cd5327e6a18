"""The orders of a measuring process: plain data, passed as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

FORWARD, BACKWARD, DECODE = "forward", "backward", "decode"
LAYER, LAYER_BACKWARD = "layer", "layer and gradients"
TOKEN = "token"
WHAT = (FORWARD, BACKWARD, DECODE, LAYER, TOKEN)
"""The measurements: a whole sequence, that and its gradients, one token with a state; the whole
layer, alone and with gradients, and one token of it."""

LOADING = "loading"
"""The measurement of a fresh process before its first call: loading the generated file."""

OURS, EAGER, COMPILED = "ours", "eager", "compile"
"""The contenders that need no file of peers: the generated file; its PyTorch alone; the same under
torch.compile."""


@dataclass(frozen=True)
class Work:
    """The least that a call can do: bytes to and from memory, and arithmetic operations."""

    bytes: float
    flops: float


@dataclass(frozen=True)
class Input:
    """An input of the layer before the memory: its axes, of which B and T are not known yet."""

    name: str
    axes: tuple[str | int, ...]


@dataclass(frozen=True)
class Entering:
    """A value that enters the memory: whether it is float32 beside narrower ones, and whether its
    gradient may be as far off as that of a gate."""

    name: str
    wide: bool
    gate: bool


@dataclass(frozen=True)
class Job:
    """One spec at one shape: batch, tokens, heads, dim of a head.

    `folder` holds `ours.py`, `eager.py` and `before.py` (the memory, and what comes before it) and
    `oracle.pkl` (the layer IR of the memory). `outputs` are the names of what `function` returns
    before the state, `states` those in it. A whole layer has only `ours.py` and `eager.py`, each
    with the class `layer`; for one token `ours_token.py` and `eager_token.py`, too. `work` is by
    what is timed, `decode@64` for a batch. `label` is how reports call it, with what sets it apart
    from other jobs of the spec; `packed`: so many sequences that stand one after the other.
    """

    spec: str
    title: str
    layer: str
    function: str
    folder: str
    shape: tuple[int, int, int, int]
    sizes: Mapping[str, float]
    inputs: tuple[Input, ...]
    enters: tuple[Entering, ...]
    outputs: tuple[str, ...]
    states: tuple[str, ...]
    what: tuple[str, ...]
    batches: tuple[int, ...]
    against: tuple[str, ...]
    peers: str | None
    device: str
    dtype: str
    seconds: float
    work: Mapping[str, Work] = field(default_factory=dict)
    label: str = ""
    packed: int = 0

    def write(self, name: str = "job.json", run: Path | None = None) -> Path:
        """Its file in its folder, or in one of its own in that of a `run`."""
        folder = Path(self.folder)
        path = (folder if run is None else run / folder.name) / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        return path

    @property
    def whole(self) -> bool:
        """Whether it is a whole layer, not the memory of one."""
        return LAYER in self.what or TOKEN in self.what

    @property
    def called(self) -> str:
        """Its name in reports."""
        return self.label or self.title

    @staticmethod
    def read(path: str | Path) -> Job:
        """The job of a folder that `write` wrote."""
        data = json.loads(Path(path).read_text(encoding="utf-8"))
        for name in ("shape", "outputs", "states", "what", "batches", "against"):
            data[name] = tuple(data[name])
        data["inputs"] = tuple(Input(x["name"], tuple(x["axes"])) for x in data["inputs"])
        data["enters"] = tuple(Entering(**x) for x in data["enters"])
        data["work"] = {name: Work(**each) for name, each in data["work"].items()}
        return Job(**data)

"""Pictures of layers, with matplotlib: the extra `plot`, imported when a picture is asked for."""

from __future__ import annotations

from itertools import product
from math import ceil
from os import PathLike
from typing import TYPE_CHECKING

from torch import Tensor, nn

from archc.extras import needs
from archc.mixer import MixerMatrix, mixer_matrix

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

PANELS, COLUMNS = 8, 4
"""Heads shown at most, and in one row."""


def mixer(
    layer: nn.Module, *inputs: Tensor, path: str | PathLike[str] | None = None, **named: Tensor
) -> Figure:
    """A heat map of `mixer_matrix(layer, *inputs)` for the first sequence of the batch.

    One panel a head, at most 8: the token t that takes runs down, the token s that it takes from
    runs across. All share one scale, white at 0, of two colours where there are negative numbers.
    `path` saves the picture too (.png, .svg, .pdf). Raises what `mixer_matrix` raises, ValueError
    where there are no tokens, and ImportError where matplotlib is missing.
    """
    needs("plot", "archc.plot", "matplotlib")
    from matplotlib.figure import Figure

    found = mixer_matrix(layer, *inputs, with_grad=False, **named)
    data = found.data[0].cpu()
    if not data.numel():
        raise ValueError("there is nothing to show of no tokens")
    panels = data.reshape(-1, *data.shape[-2:])[:PANELS]
    rows = ceil(len(panels) / COLUMNS)
    columns = ceil(len(panels) / rows)
    figure = Figure(figsize=(1.4 + 2.4 * columns, 1.1 + 2.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    names = _names(found)
    images = [
        _panel(axes, panel, name, panels)
        for axes, panel, name in zip(grid.flat, panels, names, strict=False)
    ]
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.colorbar(images[0], ax=grid, shrink=0.9, aspect=12 * rows, pad=0.02)
    figure.supxlabel(f"read: token {found.axes[-1]}", fontsize="medium")
    figure.supylabel(f"reader: token {found.axes[-2]}", fontsize="medium")
    more = f" ({len(panels)} of {len(names)} shown)" if len(names) > len(panels) else ""
    figure.suptitle(f"{type(layer).__name__}{more}\n{found}", fontsize="medium")
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def _names(found: MixerMatrix) -> list[str]:
    """The title of each panel: `H = 0`."""
    dims = found.axes[1:-2]
    places = product(*(range(size) for size in found.data.shape[1:-2]))
    return [", ".join(f"{d} = {i}" for d, i in zip(dims, p, strict=True)) for p in places]


def _panel(axes: Axes, panel: Tensor, name: str, all_panels: Tensor) -> AxesImage:
    """One matrix, on the scale of all."""
    top = float(all_panels.abs().max())
    signed = bool((all_panels < 0).any())
    image = axes.imshow(
        panel.numpy(),
        cmap="RdBu_r" if signed else "Blues",
        vmin=-top if signed else 0.0,
        vmax=top or 1.0,
        aspect="auto" if panel.shape[0] != panel.shape[1] else "equal",
        interpolation="nearest",
    )
    axes.set_title(name, fontsize="small")
    axes.locator_params(integer=True, nbins=5, min_n_ticks=1)
    axes.tick_params(labelsize="small")
    return image

"""Pictures of data."""

from pathlib import Path

import numpy as np

from fedbnn_core.data.dataset import Labels
from fedbnn_core.errors import DataError

__all__ = ["draw_partition"]

_MAX_CLASS_TICKS = 26


def draw_partition(
    counts: Labels, class_names: tuple[str, ...], title: str, path: Path
) -> None:
    """Draw a heat map of clients and classes, with the clients' sizes above it.

    Parameters
    ----------
    counts : int64 (clients, classes)
        Samples of each class that each client holds.
    class_names : tuple of str
        One per class.
    title : str
        Written above the picture.
    path : Path
        Its suffix chooses the format: .png, .svg or .pdf.
    """
    try:
        from matplotlib.colors import PowerNorm
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator
    except ImportError as error:
        raise DataError(
            "Pictures need matplotlib: pip install 'fedbnn[device]'."
        ) from error

    clients, classes = counts.shape
    # Without pyplot there is no global state and no display.
    figure = Figure(
        figsize=(min(5 + clients * 0.07, 16), min(3 + classes * 0.2, 12)),
        layout="constrained",
    )
    sizes_axes, map_axes = figure.subplots(
        2, 1, sharex=True, height_ratios=(1, max(1.5, min(classes * 0.2, 5)))
    )
    figure.suptitle(title, fontsize=11)

    sizes_axes.bar(range(clients), counts.sum(axis=1), width=0.85, color="#35618f")
    sizes_axes.set_ylabel("samples")
    sizes_axes.spines[["top", "right"]].set_visible(False)
    sizes_axes.margins(x=0.01)

    # Classes that a client lacks stay white; the root lets small counts show.
    shown = map_axes.imshow(
        np.ma.masked_equal(counts.T, 0),
        aspect="auto",
        cmap="YlGnBu",
        norm=PowerNorm(0.5, vmin=0, vmax=max(int(counts.max()), 1)),
        interpolation="nearest",
    )
    map_axes.set_xlabel("client")
    map_axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if classes <= _MAX_CLASS_TICKS:
        map_axes.set_yticks(range(classes), class_names, fontsize=8)
    else:
        map_axes.set_ylabel("class")
    map_axes.spines[:].set_visible(False)
    figure.colorbar(shown, ax=map_axes, label="samples", pad=0.01)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        raise DataError(f"Cannot draw to {path}: {error}") from error

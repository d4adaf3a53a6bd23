"""The confusion matrix as a picture."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["confusion_figure", "confusion_pixels"]

_MAX_NUMBERS = 20
_MAX_NAMES = 40
_MAX_NAME_LENGTH = 20


def confusion_figure(counts: ArrayLike, class_names: Sequence[str]) -> "Figure":
    """Draw counts (true class, predicted class), each row in per cent of its class.

    Numbers are left out above 20 classes, names above 40. Raises ImportError without
    matplotlib.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matrix = np.asarray(counts, dtype=np.int64)
    classes = len(matrix)
    shares = 100 * matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    size = min(4 + 0.35 * classes, 24)
    # Without pyplot there is no global state and no display.
    figure = Figure(figsize=(size + 1, size), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    drawn = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
    figure.colorbar(drawn, ax=axes, label="% of the true class")
    axes.set_xlabel("Predicted class")
    axes.set_ylabel("True class")
    if classes <= _MAX_NAMES:
        names = [_shorten(name) for name in class_names]
        axes.set_xticks(range(classes), names, rotation=90)
        axes.set_yticks(range(classes), names)
    if classes <= _MAX_NUMBERS:
        for (row, column), share in np.ndenumerate(shares):
            if share >= 1:
                axes.text(
                    column,
                    row,
                    f"{share:.0f}",
                    ha="center",
                    va="center",
                    color="white" if share > 60 else "black",
                    fontsize=8,
                )
    return figure


def confusion_pixels(
    counts: ArrayLike, class_names: Sequence[str], *, dpi: int = 100
) -> NDArray[np.uint8]:
    """Return the picture as RGB pixels (h, w, 3)."""
    figure = confusion_figure(counts, class_names)
    figure.set_dpi(dpi)
    figure.canvas.draw()
    pixels = np.asarray(figure.canvas.buffer_rgba())  # type: ignore[attr-defined]
    return pixels[..., :3].copy()


def _shorten(name: str) -> str:
    return name if len(name) <= _MAX_NAME_LENGTH else f"{name[: _MAX_NAME_LENGTH - 1]}…"

"""The confusion matrix as a picture."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["draw_confusion"]

_MAX_NUMBERS = 20
_MAX_NAMES = 40


def draw_confusion(
    counts: ArrayLike, class_names: Sequence[str], *, dpi: int = 100
) -> NDArray[np.uint8]:
    """Return an RGB picture (h, w, 3) of counts (true class, predicted class).

    Rows are shaded by their share, so rare classes show as well as frequent ones;
    numbers are counts and left out above 20 classes, names above 40.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    matrix = np.asarray(counts, dtype=np.int64)
    classes = len(matrix)
    share = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    side = float(np.clip(2.5 + 0.45 * classes, 4, 14))
    # Without pyplot there is no global state and no display.
    figure = Figure(figsize=(side, side), dpi=dpi, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")
    if classes <= _MAX_NAMES:
        axes.set_xticks(range(classes), class_names, rotation=90)
        axes.set_yticks(range(classes), class_names)
    if classes <= _MAX_NUMBERS:
        for (row, column), count in np.ndenumerate(matrix):
            if count:
                dark = share[row, column] > 0.5
                axes.text(
                    column,
                    row,
                    str(count),
                    ha="center",
                    va="center",
                    fontsize=8,
                    color="white" if dark else "black",
                )
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    return pixels[..., :3].copy()

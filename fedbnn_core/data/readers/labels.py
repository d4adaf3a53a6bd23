"""Number classes that come as text, or as numbers with gaps."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.data.dataset import Labels
from fedbnn_core.errors import DataError

__all__ = ["number_labels"]


def number_labels(
    y_train: NDArray[Any],
    y_test: NDArray[Any],
    class_names: Sequence[str] | None,
    path: Path,
) -> tuple[Labels, Labels, tuple[str, ...]]:
    """Turn labels of any kind into 0 .. classes - 1.

    Text is matched with `class_names`, or numbered in sorted order without them.
    Whole numbers are kept if they index `class_names` or are 0 .. k - 1 without gap;
    otherwise the values that occur become the classes, in rising order.

    Returns
    -------
    tuple
        Labels of train and test, and the class names.
    """
    if y_train.ndim != 1 or y_test.ndim != 1:
        raise DataError(
            f"Labels of {path} have shapes {y_train.shape} and {y_test.shape}; "
            "expected one label per image."
        )
    if y_train.dtype.kind == "S":
        y_train, y_test = (np.char.decode(y, "utf-8") for y in (y_train, y_test))
    is_text = y_train.dtype.kind == "U"
    if not is_text and y_train.dtype.kind not in "iub":
        raise DataError(
            f"Labels of {path} are {y_train.dtype}; expected whole numbers or text."
        )
    if len(y_test) == 0:
        y_test = y_train[:0]
    values = np.unique(np.concatenate([y_train, y_test]))
    if is_text:
        names = [str(value) for value in values] if class_names is None else class_names
        number = {name: index for index, name in enumerate(names)}
        unknown = [str(value) for value in values if str(value) not in number]
        if unknown:
            raise DataError(
                f"{path} has the label {unknown[0]!r}, which is none of the classes "
                f"{', '.join(names)}."
            )
        train, test = (
            np.array([number[str(label)] for label in y], dtype=np.int64)
            for y in (y_train, y_test)
        )
        return train, test, tuple(names)
    if class_names is not None:
        if len(values) and not 0 <= values[0] <= values[-1] < len(class_names):
            raise DataError(
                f"{path} has labels {values[0]}..{values[-1]}, but {len(class_names)} "
                "classes are named."
            )
        return y_train.astype(np.int64), y_test.astype(np.int64), tuple(class_names)
    names = [str(int(value)) for value in values]
    train, test = (
        np.searchsorted(values, y).astype(np.int64) for y in (y_train, y_test)
    )
    return train, test, tuple(names)

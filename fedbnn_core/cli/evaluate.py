"""`fedbnn evaluate`: accuracy, latency and confusion matrix of a packed model."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedbnn_core.cli.options import AsJson, Kernel, PackedFile, Threads
from fedbnn_core.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from fedbnn_core.packed import PackedModel

__all__ = ["evaluate"]

_LATENCY_IMAGES = 200


def evaluate(
    model: PackedFile,
    dataset: Annotated[
        str, typer.Option(help="A dataset's name, or folder:PATH or npz:PATH.")
    ],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Folder that holds datasets.")
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(help="Confusion matrix to draw [beside the model, .png]."),
    ] = None,
    kernel: Kernel = "auto",
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Run a packed model on a dataset's whole test set."""
    from fedbnn_core.data import load_dataset
    from fedbnn_core.packed import PackedModel
    from fedbnn_core.packed.scores import confusion_counts

    packed = PackedModel.load(model, kernel=kernel, threads=threads)
    channels, height, width = packed.input_shape
    data = (
        # Photos are brought to the model's size; they may be of some classes only.
        load_dataset(
            dataset,
            data_dir,
            image_size=(height, width),
            channels=channels,
            class_names=packed.class_names,
        )
        if dataset.startswith("folder:")
        else load_dataset(dataset, data_dir)
    )
    _check_fits(packed, data.input_shape, data.class_names)
    images, labels = data.x_test, data.y_test
    started = time.perf_counter()
    predicted = packed.predict(images, layout="NCHW")
    seconds = time.perf_counter() - started
    classes = len(packed.class_names)
    confusion = confusion_counts(labels, predicted, classes)
    path = picture or model.with_name(f"{model.stem}-confusion.png")
    problem = _draw(confusion, packed.class_names, path)
    result: dict[str, Any] = {
        "model": str(model),
        "dataset": dataset,
        "images": len(labels),
        "accuracy": float((predicted == labels).mean()),
        "images_per_second": len(labels) / seconds,
        "latency_ms": _latency_ms(packed, images),
        "kernel": packed.kernel,
        "threads": threads,
        "file_bytes": packed.size_bytes,
        "confusion": confusion.tolist(),
        "picture": None if problem else str(path),
    }
    console = Console(highlight=False, soft_wrap=True)
    if as_json:
        console.print_json(data=result)
        return
    table = Table(show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    table.add_row("Accuracy", f"{100 * result['accuracy']:.2f} %")
    table.add_row("Test images", f"{result['images']:,}")
    table.add_row("Latency, one image", f"{result['latency_ms']:.3f} ms (median)")
    table.add_row("Throughput", f"{result['images_per_second']:,.0f} images/s")
    table.add_row("Kernel", f"{packed.kernel}, {threads} thread(s)")
    table.add_row("File", f"{packed.size_bytes:,} bytes")
    shown = f"not drawn: {problem}" if problem else result["picture"]
    table.add_row("Confusion matrix", escape(shown))
    console.print(table)


def _check_fits(
    model: "PackedModel", shape: tuple[int, int, int], class_names: tuple[str, ...]
) -> None:
    from fedbnn_core.packed.format import stored_name

    if model.input_shape != shape or len(model.class_names) != len(class_names):
        raise DataError(
            f"the model takes {model.input_shape} images of {len(model.class_names)} "
            f"classes, the dataset has {shape} images of {len(class_names)} classes; "
            "choose the dataset that the model was trained on"
        )
    for number, pair in enumerate(zip(model.class_names, class_names, strict=True)):
        if pair[0] != stored_name(pair[1]):
            raise DataError(
                f"class {number} is {pair[0]!r} in the model and {pair[1]!r} in the "
                "dataset; choose the dataset that the model was trained on, or name "
                "its classes alike"
            )


def _latency_ms(model: "PackedModel", images: "npt.NDArray[np.uint8]") -> float:
    """Return the median time of one image at a time."""
    import numpy as np

    times = []
    for image in images[:_LATENCY_IMAGES]:
        single = np.ascontiguousarray(image.transpose(1, 2, 0))[None]
        started = time.perf_counter()
        model.logits(single, layout="NHWC")
        times.append(time.perf_counter() - started)
    return 1e3 * float(np.median(times)) if times else float("nan")


def _draw(
    confusion: "npt.NDArray[np.int64]", class_names: list[str], path: Path
) -> str:
    """Draw the matrix, each row in per cent of its class; return what hindered it."""
    from fedbnn_core.reporting.confusion import confusion_figure

    try:
        confusion_figure(confusion, class_names).savefig(path, dpi=130)
    except ImportError:
        return "install matplotlib"
    except (OSError, ValueError) as error:  # a ValueError names the known suffixes
        return str(error)
    return ""

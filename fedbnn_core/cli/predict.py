"""`fedbnn predict`: classify image files with a packed model."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedbnn_core.cli.options import AsJson, Kernel, PackedFile, Threads
from fedbnn_core.errors import DataError

__all__ = ["predict"]


def predict(
    model: PackedFile,
    images: Annotated[list[Path], typer.Argument(help="PNG, JPEG or other images.")],
    top: Annotated[int, typer.Option(min=1, help="Classes to show per image.")] = 3,
    invert: Annotated[bool, typer.Option(help="Swap black and white first.")] = False,
    kernel: Kernel = "auto",
    threads: Threads = 1,
    as_json: AsJson = False,
) -> None:
    """Classify images; they are converted and resized to the model's input."""
    import numpy as np

    from fedbnn_core.data.readers.images import decode_image
    from fedbnn_core.packed import PackedModel
    from fedbnn_core.packed.scores import softmax

    packed = PackedModel.load(model, kernel=kernel, threads=threads)
    if (channels := packed.input_shape[0]) not in (1, 3):
        raise DataError(
            f"the model wants {channels} channels; image files can give 1 or 3. "
            "Use PackedModel.predict with an array"
        )
    pixels = np.stack([decode_image(path, packed.input_shape) for path in images])
    logits = packed.logits(255 - pixels if invert else pixels, layout="NCHW")
    results: list[dict[str, Any]] = []
    for path, share in zip(images, softmax(logits), strict=True):
        best = np.argsort(-share, kind="stable")[:top]
        classes = [
            {"class": packed.class_names[label], "probability": float(share[label])}
            for label in best
        ]
        results.append({"image": str(path), "classes": classes})
    console = Console(highlight=False)
    if as_json:
        console.print_json(data=results)
        return
    table = Table()
    for title in ("Image", "Class", "Probability"):
        table.add_column(title, overflow="fold")
    for result in results:
        for number, entry in enumerate(result["classes"]):
            table.add_row(
                escape(result["image"]) if number == 0 else "",
                escape(entry["class"]),
                f"{100 * entry['probability']:.1f} %",
            )
    console.print(table)

"""`fedbnn raw`: an image as the raw pixels that the exported C program reads."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

__all__ = ["raw"]


def raw(
    model: Annotated[Path, typer.Argument(help="The .fbnn file; it tells the size.")],
    image: Annotated[Path, typer.Argument(help="An image file.")],
    output: Annotated[
        Path | None, typer.Option(help="File to write [the image's name, .raw].")
    ] = None,
) -> None:
    """Write an image as raw pixels: height x width x channels bytes, channels last."""
    from fedbnn_core.data.readers.images import decode_image
    from fedbnn_core.packed import PackedModel

    shape = PackedModel.load(model).input_shape
    pixels = decode_image(image, shape).transpose(1, 2, 0)
    path = output or Path(image.with_suffix(".raw").name)
    path.write_bytes(pixels.tobytes())
    height, width, channels = pixels.shape
    Console(highlight=False, soft_wrap=True).print(
        f"Wrote {path}: {height} x {width} x {channels} bytes.", markup=False
    )

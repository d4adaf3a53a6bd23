"""Decode many image files with Pillow on all cores."""

import io
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fedbnn_core.data.cache import Allocate
from fedbnn_core.data.dataset import Images
from fedbnn_core.errors import DataError

__all__ = [
    "IMAGE_SUFFIXES",
    "Encoded",
    "ImageHeader",
    "choose_shape",
    "decode_image",
    "decode_images",
    "read_headers",
]

IMAGE_SUFFIXES = frozenset(
    f".{suffix}"
    for suffix in (
        *("bmp", "gif", "jpeg", "jpg", "pbm", "pgm"),
        *("png", "ppm", "tif", "tiff", "webp"),
    )
)
_GREY_MODES = frozenset({"1", "L", "LA", "I", "F", "I;16", "I;16B", "I;16L"})
_ORIENTATION_TAG = 0x0112
_CHUNK = 256
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
"""All that is opened: for others, such as EPS, Pillow starts a helper program."""
_MAX_FILE_BYTES = 256 * 2**20
_MAX_PIXELS = 120_000_000
"""The largest photos of phones have 108 million."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

# A file, or its bytes.
Encoded = Path | bytes


@dataclass(frozen=True)
class ImageHeader:
    """What an image says about itself before it is decoded."""

    height: int
    width: int
    is_grey: bool


def read_headers(encoded: Sequence[Encoded]) -> list[ImageHeader | None]:
    """Read sizes and modes; None for what is not a readable image."""
    return _map_in_chunks(_read_header, encoded)


def choose_shape(
    headers: Sequence[ImageHeader | None],
    image_size: tuple[int, int] | None = None,
    channels: int | None = None,
) -> tuple[int, int, int]:
    """Choose the shape that all images are brought to.

    Height and width are `image_size`, else the most common size (of equally common
    ones the smallest). Channels are `channels`, else 1 if all images are grey, else 3.
    """
    readable = [header for header in headers if header is not None]
    if not readable:
        raise DataError("None of the image files can be read.")
    if image_size is None:
        sizes = Counter((header.height, header.width) for header in readable)
        most = max(sizes.values())
        image_size = min(size for size, count in sizes.items() if count == most)
    if channels is None:
        channels = 1 if all(header.is_grey for header in readable) else 3
    return channels, *image_size


def decode_image(encoded: Encoded, shape: tuple[int, int, int]) -> Images:
    """Decode one image to the pixels that a network of that input is trained on.

    Parameters
    ----------
    encoded : Path or bytes
        A PNG, JPEG, WebP, BMP, GIF or TIFF file. A photo is turned as its EXIF
        orientation says; 16-bit grey is reduced to its upper 8 bits; transparency is
        dropped.
    shape : tuple of int
        Channels (1 grey, 3 RGB), height and width. An image of another size is resized
        (bilinear, antialiased), which may change its aspect ratio.

    Returns
    -------
    uint8 (channels, height, width)

    Raises
    ------
    DataError
        The image cannot be read, or it is too large.
    """
    channels, height, width = shape
    try:
        with _open(encoded) as source:
            image: Image.Image = ImageOps.exif_transpose(source)
            if image.mode.startswith("I"):
                levels = np.asarray(image, dtype=np.int64) >> 8
                image = Image.fromarray(levels.clip(0, 255).astype(np.uint8))
            image = image.convert("L" if channels == 1 else "RGB")
            if image.size != (width, height):
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            pixels: Images = np.asarray(image)
    except Exception as error:  # Whatever a damaged file makes of the decoder.
        name = encoded if isinstance(encoded, Path) else f"of {len(encoded)} bytes"
        raise DataError(
            f"cannot read the image {name}: {error}; give a PNG, JPEG, WebP, BMP, GIF "
            "or TIFF file"
        ) from error
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def decode_images(
    name: str,
    encoded: Sequence[Encoded],
    shape: tuple[int, int, int],
    allocate: Allocate,
) -> tuple[Images, NDArray[np.bool_]]:
    """Decode images to one array of a given shape.

    Parameters
    ----------
    name : str
        ``"x_train"`` or ``"x_test"``.
    encoded : sequence of Path or bytes
    shape : tuple of int
        Channels, height and width, see `decode_image`.
    allocate : Allocate
        Where to put the result.

    Returns
    -------
    images : uint8 (n, *shape)
        Without the images that could not be decoded.
    readable : bool (len(encoded),)
        False for each image that was left out.
    """
    result = allocate(name, (len(encoded), *shape))

    def decode_into(row: int) -> bool:
        try:
            result[row] = decode_image(encoded[row], shape)
        except DataError:
            return False
        return True

    outcomes = _map_in_chunks(decode_into, range(len(encoded)))
    readable = np.array(outcomes, dtype=np.bool_)
    return (result if readable.all() else result[readable]), readable


def _map_in_chunks(
    function: Callable[[_Item], _Result], items: Sequence[_Item]
) -> list[_Result]:
    """Apply a function to all items, on threads that take many items at a time.

    Pillow releases the interpreter lock while it decodes.
    """

    def work(start: int) -> list[_Result]:
        return [function(item) for item in items[start : start + _CHUNK]]

    with ThreadPoolExecutor(min(os.cpu_count() or 1, 16)) as pool:
        chunks = pool.map(work, range(0, len(items), _CHUNK))
        return [result for chunk in chunks for result in chunk]


def _open(encoded: Encoded) -> Image.Image:
    """Read an image's header; raise `DataError` if the file or image is too large."""
    if isinstance(encoded, bytes):
        size = len(encoded)
        source: io.BytesIO | Path = io.BytesIO(encoded)
    else:
        size, source = encoded.stat().st_size, encoded
    if size > _MAX_FILE_BYTES:
        raise DataError(f"it has {size:,} bytes, at most {_MAX_FILE_BYTES:,} are read")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        image = Image.open(source, formats=_FORMATS)
    width, height = image.size
    if width * height > _MAX_PIXELS:
        image.close()
        raise DataError(
            f"it has {width} x {height} pixels, at most {_MAX_PIXELS:,} are decoded"
        )
    return image


def _read_header(encoded: Encoded) -> ImageHeader | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with _open(encoded) as image:
                width, height = image.size
                if image.getexif().get(_ORIENTATION_TAG, 1) >= 5:
                    width, height = height, width
                return ImageHeader(height, width, image.mode in _GREY_MODES)
    except Exception:  # Whatever a damaged file makes of the decoder.
        return None

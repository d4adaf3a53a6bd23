"""Pictures from outside: which are opened, and how large they may be."""

import contextlib
import io
import shutil
import stat
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from fedbnn_core.data.readers import images
from fedbnn_core.data.readers.images import decode_image, read_headers
from fedbnn_core.errors import DataError

SHAPE = (3, 4, 6)
EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 6 4
%%EndComments
(touched) (w) file closefile showpage
%%EOF
"""


def saved(kind, mode="RGB", size=(6, 4)):
    pixels = np.full((size[1], size[0], 3), (200, 100, 50), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(file, kind)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF"])
def test_named_raster_formats_are_opened(kind):
    pixels = decode_image(saved(kind), SHAPE)
    assert pixels.shape == SHAPE
    # JPEG and WebP change values a little, GIF has a palette.
    for channel, value in enumerate((200, 100, 50)):
        assert abs(int(pixels[channel].mean()) - value) <= 8


@pytest.mark.parametrize("kind", ["PPM", "TGA", "ICO", "PCX", "SGI", "DDS", "EPS"])
def test_no_other_format_is_opened(kind, tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(saved(kind))
    with pytest.raises(DataError, match="give a PNG, JPEG"):
        decode_image(path, SHAPE)
    assert read_headers([path, path.read_bytes()]) == [None, None]


@pytest.mark.parametrize("name", ["photo.eps", "photo.jpg", "photo.png"])
def test_no_picture_starts_a_program(tmp_path, monkeypatch, name):
    """Pillow hands EPS files to ghostscript, whatever their name is."""
    tools, trace = tmp_path / "bin", tmp_path / "ran"
    tools.mkdir()
    ghostscript = tools / "gs"
    ghostscript.write_text(f"#!/bin/sh\n{shutil.which('touch')} {trace}\n")
    ghostscript.chmod(ghostscript.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setattr("PIL.EpsImagePlugin.gs_binary", str(ghostscript))
    path = tmp_path / name
    path.write_bytes(EPS)
    # Without the list of formats it would run.
    with Image.open(path) as picture, pytest.raises(OSError, match=r"\w"):
        picture.load()
    assert trace.exists()
    trace.unlink()
    with pytest.raises(DataError):
        decode_image(path, SHAPE)
    assert read_headers([path]) == [None]
    assert not trace.exists()


def png_bomb(width, height):
    """Return a small PNG of zeros that says it has this many pixels."""

    def chunk(name, data):
        check = struct.pack(">I", zlib.crc32(name + data))
        return struct.pack(">I", len(data)) + name + data + check

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = zlib.compress(bytes(10_000_000), 9)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", data)
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(("width", "height"), [(12_001, 10_000), (60_000, 60_000)])
def test_decompression_bombs_are_refused_before_they_are_decoded(
    width, height, monkeypatch
):
    bomb = png_bomb(width, height)
    assert len(bomb) < 20_000
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("decoded"))
    with pytest.raises(DataError, match="pixels"):
        decode_image(bomb, SHAPE)
    assert read_headers([bomb]) == [None]


def test_files_that_are_too_large_are_not_read(tmp_path, monkeypatch):
    path = tmp_path / "large.png"
    path.write_bytes(saved("PNG"))
    monkeypatch.setattr(images, "_MAX_FILE_BYTES", path.stat().st_size)
    assert decode_image(path, SHAPE).shape == SHAPE
    monkeypatch.setattr(images, "_MAX_FILE_BYTES", path.stat().st_size - 1)
    with pytest.raises(DataError, match="bytes, at most"):
        decode_image(path, SHAPE)
    assert read_headers([path]) == [None]


def test_damaged_pictures_are_errors_of_data():
    """Cut short or with any byte changed: readable, or a clear error."""
    generator = np.random.default_rng(0)
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP"):
        whole = saved(kind)
        for _ in range(40):
            spoilt = bytearray(whole[: generator.integers(1, len(whole) + 1)])
            spoilt[generator.integers(len(spoilt))] ^= 1 << generator.integers(8)
            with contextlib.suppress(DataError):
                assert decode_image(bytes(spoilt), SHAPE).shape == SHAPE

"""Where a device keeps the packed models that its fleet has trained.

FOLDER/model.fbnn     the newest one
       previous.fbnn  the one before
       model.json     where the newest one comes from
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from fedbnn_core.errors import FormatError
from fedbnn_core.files import replace_file

__all__ = ["MODEL_NAME", "PREVIOUS_NAME", "store_model"]

MODEL_NAME = "model.fbnn"
PREVIOUS_NAME = "previous.fbnn"


def store_model(
    folder: Path, content: bytes, sha256: str, about: Mapping[str, str]
) -> Path:
    """Check a packed model and make it the newest one.

    At any moment, also if the power fails, ``model.fbnn`` is a complete model: the
    old one or the new one.

    Parameters
    ----------
    folder : Path
        The device's models.
    content : bytes
        The file.
    sha256 : str
        Its checksum, as the server computed it.
    about : mapping
        What is written to ``model.json`` beside it.

    Raises
    ------
    FormatError
        The checksum does not match, or this is no packed model.
    """
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise FormatError(
            f"the model arrived damaged: SHA-256 {found}, expected {sha256}; the "
            "stored model stays"
        )
    from fedbnn_core.packed import PackedModel

    PackedModel(content)  # Raises FormatError unless it can be run here.
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / MODEL_NAME
    if path.is_file():
        if path.read_bytes() == content:
            return path
        replace_file(folder / PREVIOUS_NAME, path.read_bytes())
    replace_file(path, content)
    text = json.dumps({**about, "sha256": sha256}, indent=2) + "\n"
    replace_file(folder / "model.json", text.encode())
    return path

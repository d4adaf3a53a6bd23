"""The C program of a model: it builds without warnings and gives the same bits."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedbnn_core.errors import FedBNNError
from fedbnn_core.packed import PackedModel
from fedbnn_core.packed.c_program import write_c_program
from fedbnn_core.packed.encode import encode
from tests.packed.graphs import everything

ARM = ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"]
NO_THREADS = ["CFLAGS=-DFBNN_NO_THREADS", "LDLIBS=-lm"]


@pytest.mark.parametrize(
    ("compiler", "emulator", "options"),
    [
        ("gcc", [], []),
        ("clang", [], NO_THREADS),
        ("aarch64-linux-gnu-gcc", ARM, []),
    ],
    ids=["gcc", "clang without threads", "aarch64"],
)
def test_program_gives_the_bits_of_the_reference(
    compiler: str, emulator: list[str], options: list[str], tmp_path: Path
) -> None:
    for tool in ("make", compiler, *emulator[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (make system-deps installs it)")
    rng = np.random.default_rng(5)
    data = encode(everything(37, rng))
    folder = tmp_path / "program"
    write_c_program(data, folder)
    # Warnings are errors in its Makefile.
    subprocess.run(["make", "-s", f"CC={compiler}", *options], cwd=folder, check=True)

    images = rng.integers(0, 256, (3, 8, 9, 3), dtype=np.uint8)
    files = [tmp_path / f"{number}.raw" for number in range(3)]
    for path, image in zip(files, images, strict=True):
        path.write_bytes(image.tobytes())
    done = subprocess.run(
        [*emulator, folder / "classify", "-v", *files],
        capture_output=True,
        text=True,
        check=True,
    )
    model = PackedModel(data, kernel="numpy")
    logits, labels = model.logits(images), model.predict(images)
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert [line[0] for line in lines] == [str(path) for path in files]
    assert [int(line[1]) for line in lines] == labels.tolist()
    assert [line[2] for line in lines] == [model.class_names[i] for i in labels]
    actual = [[float.fromhex(text) for text in line[3:]] for line in lines]
    assert np.array(actual, np.float32).tobytes() == logits.tobytes()

    files[0].write_bytes(bytes(10))
    failed = subprocess.run(
        [*emulator, folder / "classify", files[0]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1
    assert "expected 216 bytes, got 10" in failed.stderr


COUNT_LOGITS = """
#include "fbnn.h"
#include <stdio.h>
fbnn_status __real_fbnn_logits(fbnn_model *, const uint8_t *, size_t, float *);
fbnn_status __wrap_fbnn_logits(fbnn_model *m, const uint8_t *p, size_t n, float *l);
fbnn_status __wrap_fbnn_logits(fbnn_model *m, const uint8_t *p, size_t n, float *l) {
    fprintf(stderr, "logits\\n");
    return __real_fbnn_logits(m, p, n, l);
}
"""


def test_program_computes_logits_only_if_they_are_shown(tmp_path: Path) -> None:
    if not (shutil.which("gcc") and shutil.which("make")):
        pytest.skip("gcc or make is not installed (make system-deps installs them)")
    folder = tmp_path / "program"
    write_c_program(encode(everything(5, np.random.default_rng(0))), folder)
    (folder / "count.c").write_text(COUNT_LOGITS)
    wrapped = "LDLIBS=-lm -pthread -Wl,--wrap=fbnn_logits"
    subprocess.run(["make", "-s", "CC=gcc", wrapped], cwd=folder, check=True)
    image = tmp_path / "image.raw"
    image.write_bytes(bytes(8 * 9 * 3))
    for options, calls in ([], 0), (["-v"], 1):
        command = [folder / "classify", *options, image]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr.count("logits") == calls


def test_what_a_user_wrote_is_not_replaced(tmp_path: Path) -> None:
    data = encode(everything(5, np.random.default_rng(0)))
    for name in ("Makefile", "main.c"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(FedBNNError, match=f"has a {name} of another program"):
            write_c_program(data, folder)
        assert [path.name for path in folder.iterdir()] == [name]
    folder = tmp_path / "program"
    first = write_c_program(data, folder)
    (folder / "main.c").write_text("mine")
    (folder / "network.c").write_text("old")
    second = write_c_program(data, folder)
    assert set(first) - set(second) == {folder / "main.c"}
    assert (folder / "main.c").read_text() == "mine"
    assert (folder / "network.c").read_text() != "old"


def test_a_folder_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    data = encode(everything(5, np.random.default_rng(0)))
    with pytest.raises(FedBNNError, match="give a folder that you can write to"):
        write_c_program(data, tmp_path / "file")

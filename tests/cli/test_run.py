"""What `fedbnn run` ends with."""

import json

from rich.console import Console

from fedbnn_core.cli.run import print_result, result_table

SUMMARY = {
    "one_bit_bytes": 1000,
    "float32_bytes": 32_000,
    "val_accuracy": 0.5,
    "test_accuracy": 0.25,
    "best_round": 3,
    "rounds": 4,
    "seconds": 12.0,
}


def table_text(folder, **extra):
    (folder / "summary.json").write_text(json.dumps(SUMMARY | extra))
    console = Console(width=120)
    with console.capture() as capture:
        console.print(result_table(folder))
    return capture.get()


def test_table_tells_accuracy_and_size(tmp_path):
    text = table_text(tmp_path)
    assert "50.00 %  (round 3 of 4)" in text
    assert "25.00 %" in text
    assert "0.0010 MB  (32.0x smaller)" in text
    assert "Privacy" not in text


def test_table_of_a_private_run_tells_what_it_cost(tmp_path):
    text = table_text(tmp_path, epsilon=2.4515, delta=1e-5)
    assert "epsilon 2.45 at delta 1e-05" in text


def test_paths_are_whole_below_a_narrow_table(tmp_path):
    folder = tmp_path / "a-run-with-quite-a-long-name" / "20260101-120000-fedbnn-fmnist"
    folder.mkdir(parents=True)
    table_text(folder)
    (folder / "model.fbnn").write_bytes(bytes(500))
    (folder / "report.html").touch()
    console = Console(width=60, record=True)
    print_result(folder, console)
    lines = console.export_text().splitlines()
    assert f"1-bit model: {folder / 'model.fbnn'}" in lines
    assert f"Report: {folder / 'report.html'}" in lines
    assert f"Files: {folder}" in lines


def test_both_sizes_are_named(tmp_path):
    (tmp_path / "model.fbnn").write_bytes(bytes(500))
    text = table_text(tmp_path, paper_bytes=900)
    assert "Size as 1-bit model, measured" in text
    assert "0.0005 MB  (64.0x smaller)" in text
    assert "0.0009 MB" in next(x for x in text.splitlines() if "paper's rule" in x)

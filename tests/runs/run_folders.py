"""Write run directories with figures chosen by hand, as a run would leave them."""

import json

from fedbnn_core.config import RunConfig


def write_run(folder, name, config, *, accuracy, ptb=None, rounds=2, clients=100):
    """Write a finished run of 10 clients per round; return its path.

    Round r sends 1000 r bytes up and 4000 r down; nominal are 900 r and 3000 r. It
    takes r + 0.5 seconds and reaches 0.1 r on the validation half. Messages have 1.25
    bits per weight up and 8.2 down.
    """
    path = folder / name
    path.mkdir(parents=True)
    resolved = RunConfig.from_mapping(config, complete=False)
    stored = {
        "config": resolved.to_mapping(),
        "num_partitions": clients,
        "input_shape": [1, 28, 28],
        "class_names": [str(i) for i in range(10)],
    }
    (path / "config.json").write_text(json.dumps(stored))
    lines = [
        {
            "round": r,
            "val_accuracy": 0.1 * r,
            "bytes_up": 1000 * r,
            "bytes_up_nominal": 900 * r,
            "bytes_down": 4000 * r,
            "bytes_down_nominal": 3000 * r,
            "bits_up": 1.25,
            "bits_down": 8.2,
            "seconds": {"train": float(r), "aggregate": 0.25, "evaluate": 0.25},
        }
        for r in range(1, rounds + 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    correct = round(400 * accuracy)
    summary = {
        "rounds": rounds,
        "best_round": rounds,
        "test_accuracy": accuracy,
        "test_confusion": [[correct, 400 - correct], [0, 0]],
        "one_bit_bytes": 60_000 if resolved.method == "fedbnn" else None,
        "seconds": 9.0,
    }
    if ptb is not None:
        summary["ptb_test_accuracy"] = ptb
    (path / "summary.json").write_text(json.dumps(summary))
    return path

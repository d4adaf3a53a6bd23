"""Run directories made of invented figures, for any number of rounds and layers."""

import json
import math
from pathlib import Path

import numpy as np

from fedbnn_core.config import default_mapping
from fedbnn_core.data import load_dataset, partition_indices, save_partition


def write_run(
    path: Path,
    *,
    rounds: int,
    layers: int = 4,
    clients: int = 20,
    planned: int | None = None,
    finished: bool = True,
    method: str = "fedbnn",
    seed: int = 0,
    **config,
) -> Path:
    """Write a run on the embedded data; its curves are smooth noise."""
    path.mkdir(parents=True)
    dataset = load_dataset("fmnist-mini")
    config = default_mapping() | {
        "num-server-rounds": planned or rounds,
        "method": method,
        **{key.replace("_", "-"): value for key, value in config.items()},
    }
    description = {
        "config": config,
        "num_partitions": clients,
        "fedbnn_version": "0.1.0",
        "torch_version": "2.13.0",
        "device": "cpu",
        "input_shape": [1, 28, 28],
        "class_names": list(dataset.class_names),
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }
    (path / "config.json").write_text(json.dumps(description))
    save_partition(
        path / "partition.npz",
        partition_indices(dataset.y_train, clients, "dirichlet", seed=1, min_size=1),
    )
    lines = invented_lines(rounds, layers, clients, planned or rounds, method, seed)
    with (path / "metrics.jsonl").open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    if finished:
        (path / "summary.json").write_text(json.dumps(invented_summary(lines)))
    return path


def invented_lines(rounds, layers, clients, planned, method="fedbnn", seed=0):
    generator = np.random.default_rng(seed)
    lines, best, best_round = [], -1.0, 0
    for r in range(1, rounds + 1):
        share = r / planned
        accuracy = 0.85 * (1 - math.exp(-6 * share)) + 0.02 * generator.random()
        if accuracy > best:
            best, best_round = accuracy, r
        chosen = np.sort(generator.choice(clients, min(10, clients), replace=False))
        line = {
            "round": r,
            "num_rounds": planned,
            "val_accuracy": accuracy,
            "val_loss": 2.3 * math.exp(-3 * share) + 0.1 * generator.random(),
        }
        if method == "fedbnn":
            line |= {
                "val_accuracy_weights": accuracy - 0.03 * generator.random(),
                "val_loss_weights": line["val_loss"] * 1.1,
                "val_accuracy_rotated": accuracy - 0.02 * generator.random(),
                "val_loss_rotated": line["val_loss"] * 1.05,
            }
        rejected = [{"client": int(chosen[0]), "reason": "array 'w' has NaN"}]
        line |= {
            "best_round": best_round,
            "best_val_accuracy": best,
            "train_loss": 2.3 * math.exp(-4 * share) + 0.05 * generator.random(),
            "lr": 0.1 * 0.5 ** (r // 200),
            "t": 10 ** (-2 + 3 * (r - 1) / planned),
            "layers": {
                f"stages.{number // 6}.blocks.{number % 6}.conv": {
                    "alpha": 0.7
                    - 0.2 * share * number / layers
                    + 0.01 * generator.random(),
                    "beta": 0.7
                    + 0.2 * share * (1 - number / layers)
                    + 0.01 * generator.random(),
                    "lambda": 0.5
                    + 0.1 * share * number / layers
                    + 0.005 * generator.random(),
                    "cos_phi": 0.8 + 0.1 * share + 0.005 * generator.random(),
                }
                for number in range(layers if method == "fedbnn" else 0)
            },
            "clients": [int(client) for client in chosen],
            "examples": 1000,
            "rejected": rejected if r % 50 == 3 else [],
            "bytes_up": 15_894_800,
            "bytes_down": 15_721_760,
            "bits_up": 32.53,
            "bits_down": 32.18,
            "seconds": {
                "train": 5 + generator.random(),
                "aggregate": 0.3,
                "evaluate": 0.9,
            },
            "elapsed_seconds": 6.7 * r,
        }
        lines.append(line)
    return lines


def invented_summary(lines):
    last = lines[-1]
    confusion = np.random.default_rng(3).integers(0, 9, (10, 10)) + 70 * np.eye(10)
    return {
        "method": "fedbnn",
        "rounds": last["round"],
        "best_round": last["best_round"],
        "val_accuracy": last["best_val_accuracy"],
        "val_loss": 0.5,
        "test_accuracy": 0.8125,
        "test_loss": 0.55,
        "test_confusion": confusion.astype(int).tolist(),
        "float32_bytes": 1_567_392,
        "one_bit_bytes": 66_340,
        "best_sha256": "ab" * 32,
        "final_sha256": "cd" * 32,
        "seconds": last["elapsed_seconds"],
        "directory": "/home/somebody/runs/x",
    }

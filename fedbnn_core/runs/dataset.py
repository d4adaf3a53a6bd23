"""The data of a run: its dataset, and which samples each client holds."""

from typing import Any

import numpy as np

from fedbnn_core.config import RunConfig
from fedbnn_core.data import Dataset, limited, load_dataset, partition_indices

__all__ = ["load_run_dataset", "run_partition"]


def load_run_dataset(config: RunConfig) -> Dataset:
    """Return the run's dataset from where the config says it lies."""
    dataset = load_dataset(
        config.dataset,
        config.data_dir or None,
        faithful_test_statistics=config.faithful_test_statistics,
    )
    return limited(
        dataset,
        max_train=config.train_limit,
        max_test=config.test_limit,
        seed=config.data_seed,
    )


def run_partition(
    config: RunConfig, dataset: Dataset, num_partitions: int
) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Return which training samples each of the run's clients holds."""
    return partition_indices(
        dataset.y_train,
        num_partitions,
        config.partition,
        alpha=config.dirichlet_alpha,
        label_fraction=config.label_fraction,
        min_size=config.min_partition_size,
        seed=config.data_seed,
        writer_ids=dataset.writer_ids,
    )

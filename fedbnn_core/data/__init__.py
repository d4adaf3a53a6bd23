"""Datasets, their partitions among clients, and their batches.

This package works without torch; `fedbnn_core.data.batches` needs it.
"""

from fedbnn_core.data.dataset import Augmentation, Dataset, limited, split_test
from fedbnn_core.data.loading import (
    data_folder,
    dataset_names,
    load_dataset,
    load_local,
)
from fedbnn_core.data.partition import (
    class_counts,
    label_entropy,
    partition_indices,
)
from fedbnn_core.data.partition_file import (
    load_client_partition,
    load_partition,
    save_partition,
)

__all__ = [
    "Augmentation",
    "Dataset",
    "class_counts",
    "data_folder",
    "dataset_names",
    "label_entropy",
    "limited",
    "load_client_partition",
    "load_dataset",
    "load_local",
    "load_partition",
    "partition_indices",
    "save_partition",
    "split_test",
]

"""Divide a training set among clients: IID, Dirichlet, label-fraction, natural.

Every scheme is a pure function of the labels and the seed.
"""

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedbnn_core.choices import PARTITION_SCHEMES
from fedbnn_core.data.dataset import Labels
from fedbnn_core.errors import ConfigError, DataError
from fedbnn_core.seeding import derive_seed

__all__ = [
    "class_counts",
    "label_entropy",
    "partition_indices",
]

_MAX_DIRICHLET_TRIES = 1000

_log = logging.getLogger(__name__)


def partition_indices(
    labels: NDArray[Any],
    num_partitions: int,
    scheme: str,
    *,
    seed: int,
    alpha: float = 0.3,
    label_fraction: float = 0.3,
    min_size: int = 10,
    writer_ids: NDArray[Any] | None = None,
) -> list[Labels]:
    """Say which training samples each client holds.

    Parameters
    ----------
    labels : int (n,)
        Labels of the training set.
    num_partitions : int
        Number of clients. With more clients than samples, the IID and label-fraction
        schemes leave some clients empty.
    scheme : str
        One of `PARTITION_SCHEMES`.
    seed : int
        The run's seed.
    alpha : float, default 0.3
        Concentration of the Dirichlet scheme; smaller is more uneven.
    label_fraction : float, default 0.3
        Share of all labels that a client of the label-fraction scheme holds.
    min_size : int, default 10
        The Dirichlet scheme starts over until every client holds this many samples.
    writer_ids : int (n,), optional
        Who wrote each sample; needed by the natural scheme.

    Returns
    -------
    list of int64 arrays
        Indices of each client's samples, in random order, without overlap. They cover
        the training set, except that the label-fraction scheme leaves out labels
        that no client was given (only when clients x labels per client < labels).

    Raises
    ------
    ConfigError
        The scheme is unknown or a parameter is out of range.
    DataError
        This data cannot be divided as asked.
    """
    labels = np.asarray(labels)
    if num_partitions < 1:
        raise ConfigError(
            f"Expected at least 1 partition, but got {num_partitions}; "
            "set the number of clients to 1 or more."
        )
    generator = np.random.default_rng(derive_seed(seed, "partition", scheme))
    if scheme == "iid":
        owners = _iid_owners(len(labels), num_partitions, generator)
    elif scheme == "dirichlet":
        owners = _dirichlet_owners(labels, num_partitions, alpha, min_size, generator)
    elif scheme == "label-fraction":
        owners = _label_fraction_owners(
            labels, num_partitions, label_fraction, generator
        )
    elif scheme == "natural":
        owners = _natural_owners(writer_ids, len(labels), num_partitions, generator)
    else:
        raise ConfigError(
            f"Unknown partition scheme {scheme!r}; "
            f"choose one of {', '.join(PARTITION_SCHEMES)}."
        )
    held = np.bincount(owners[owners >= 0], minlength=num_partitions)
    if not held.all():
        raise ConfigError(
            f"{num_partitions} clients share {len(labels)} training samples, and "
            f"{np.count_nonzero(held == 0)} of them would hold none; use fewer clients."
        )
    return _group_by_owner(owners, num_partitions, generator)


def _even_sizes(total: int, parts: int) -> Labels:
    """Sizes of near-equal parts: the first ``total % parts`` hold one more."""
    sizes = np.full(parts, total // parts, dtype=np.int64)
    sizes[: total % parts] += 1
    return sizes


def _iid_owners(size: int, clients: int, generator: np.random.Generator) -> Labels:
    owners = np.empty(size, dtype=np.int64)
    owners[generator.permutation(size)] = np.repeat(
        np.arange(clients), _even_sizes(size, clients)
    )
    return owners


def _dirichlet_owners(
    labels: NDArray[Any],
    clients: int,
    alpha: float,
    min_size: int,
    generator: np.random.Generator,
) -> Labels:
    if not alpha > 0:
        raise ConfigError(f"Dirichlet alpha must be positive, but got {alpha}.")
    if clients * min_size > len(labels):
        raise DataError(
            f"Cannot give each of {clients} clients at least {min_size} of "
            f"{len(labels)} samples; use fewer clients or a smaller minimum."
        )
    classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for _ in range(_MAX_DIRICHLET_TRIES):
        owners = np.empty(len(labels), dtype=np.int64)
        sizes = np.zeros(clients, dtype=np.int64)
        for members in classes:
            share = generator.dirichlet(np.full(clients, alpha))
            has_room = sizes < len(labels) / clients
            share = np.where(has_room, share, 0.0)
            if share.sum() == 0.0:
                # A tiny alpha underflows: every client with room gets the same.
                share = has_room.astype(np.float64)
            cuts = np.floor(np.cumsum(share / share.sum()) * len(members))
            # Rounding may leave the last cut one short of the class size.
            cuts[np.flatnonzero(has_room)[-1] :] = len(members)
            taken = np.diff(cuts.astype(np.int64), prepend=0)
            owners[generator.permutation(members)] = np.repeat(
                np.arange(clients), taken
            )
            sizes += taken
        if sizes.min() >= min_size:
            return owners
    raise DataError(
        f"No Dirichlet({alpha}) partition with at least {min_size} samples for each "
        f"of {clients} clients was found in {_MAX_DIRICHLET_TRIES} tries; use a larger "
        "alpha, fewer clients or a smaller minimum."
    )


def _label_fraction_owners(
    labels: NDArray[Any],
    clients: int,
    label_fraction: float,
    generator: np.random.Generator,
) -> Labels:
    classes = np.unique(labels)
    if not 0 < label_fraction <= 1:
        raise ConfigError(
            f"The label fraction must be in (0, 1], but got {label_fraction}."
        )
    # The small term undoes binary rounding: 0.29 * 100 is 28.999999999999996.
    labels_per_client = int(label_fraction * len(classes) + 1e-9)
    if labels_per_client < 1:
        raise ConfigError(
            f"A label fraction of {label_fraction} gives a client none of "
            f"{len(classes)} labels; use at least {1 / len(classes):.4g}."
        )
    usage = np.zeros(len(classes), dtype=np.int64)
    holds = np.zeros((clients, len(classes)), dtype=bool)
    for client in range(clients):
        # Least used first; ties in random order, so that the label sets are random.
        chosen = np.lexsort((generator.random(len(classes)), usage))[:labels_per_client]
        usage[chosen] += 1
        holds[client, chosen] = True

    if not usage.all():
        _log.warning(
            "%d clients with %d labels each leave %d of %d labels to nobody: %s",
            clients,
            labels_per_client,
            np.count_nonzero(usage == 0),
            len(classes),
            classes[usage == 0].tolist(),
        )
    owners = np.full(len(labels), -1, dtype=np.int64)
    for column, label in enumerate(classes):
        holders = np.flatnonzero(holds[:, column])
        if holders.size == 0:
            continue
        members = generator.permutation(np.flatnonzero(labels == label))
        owners[members] = np.repeat(holders, _even_sizes(len(members), len(holders)))
    return owners


def _natural_owners(
    writer_ids: NDArray[Any] | None,
    size: int,
    clients: int,
    generator: np.random.Generator,
) -> Labels:
    if writer_ids is None:
        raise DataError(
            "The natural partition needs writer ids, and this dataset has none; use "
            "femnist, or choose iid, dirichlet or label-fraction."
        )
    if len(writer_ids) != size:
        raise DataError(
            f"Expected one writer id for each of {size} samples, got {len(writer_ids)}."
        )
    writers, writer_of_sample = np.unique(writer_ids, return_inverse=True)
    if len(writers) < clients:
        raise DataError(
            f"{len(writers)} writers cannot be divided among {clients} clients "
            f"without splitting one; use at most {len(writers)} clients."
        )
    return _iid_owners(len(writers), clients, generator)[writer_of_sample]


def _group_by_owner(
    owners: Labels, clients: int, generator: np.random.Generator
) -> list[Labels]:
    """List each client's samples in random order; owner -1 means nobody."""
    order = generator.permutation(len(owners))
    order = order[np.argsort(owners[order], kind="stable")]
    bounds = np.searchsorted(owners[order], np.arange(clients + 1))
    return [order[start:end] for start, end in pairwise(bounds)]


def class_counts(
    labels: NDArray[Any], partition: Sequence[Labels], num_classes: int
) -> Labels:
    """Count the samples of each class that each client holds.

    Returns
    -------
    int64 (clients, classes)
    """
    return np.stack(
        [np.bincount(labels[part], minlength=num_classes) for part in partition]
    )


def label_entropy(counts: Labels) -> NDArray[np.float64]:
    """Measure each client's label mix in bits; 0 for an empty client.

    Parameters
    ----------
    counts : int64 (clients, classes)
        From `class_counts`.

    Returns
    -------
    float64 (clients,)
        ``-sum_c p_c log2 p_c``: 0 for one label, log2(classes) for an even mix.
    """
    totals = np.maximum(counts.sum(axis=1, keepdims=True), 1)
    share = counts / totals
    # log2(1) = 0 stands in for absent labels.
    entropy = share * np.log2(np.where(share > 0, share, 1))
    bits: NDArray[np.float64] = np.abs(entropy.sum(axis=1))
    return bits

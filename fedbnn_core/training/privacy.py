"""Differential privacy of each client: what its noisy updates reveal, as epsilon.

In a private run every client clips its update to an L2 norm C and adds Gaussian noise
of standard deviation z*C before anything leaves the device, so the server need not be
trusted. Neighbours are any two datasets of one client: its update can then change by
2C, and one release is a Gaussian mechanism with noise multiplier z/2. Releases of the
same client add up. Being sampled at random does not help, because the server sees who
replied.
"""

import json
import math
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import numpy as np

from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig
from fedbnn_core.errors import ConfigError, RunError
from fedbnn_core.files import append_durably, write_durably

__all__ = ["ClientAccountant", "create_accountant", "mechanism_epsilon", "publishable"]

_SMALLEST_VARIANCE = 1e-3


class ClientAccountant:
    """Track the epsilon of the client that was asked most often.

    The figures come from the RDP accountant of dp-accounting. A client that is asked
    may reply even if the server dies at once, so the question is noted on disk before
    it is sent: a resumed run knows of every release, those to lost rounds included.

    Parameters
    ----------
    noise_multiplier : z.
    delta : the delta at which epsilon is told.
    """

    def __init__(self, *, noise_multiplier: float, delta: float) -> None:
        try:
            import dp_accounting.rdp
        except ImportError as error:
            raise ConfigError(
                'privacy = "local" needs the package dp-accounting; install it with: '
                "pip install 'fedbnn[privacy]'"
            ) from error
        self._accounting = dp_accounting
        self._noise_multiplier = noise_multiplier
        self._delta = delta
        self._releases: Counter[int] = Counter()
        self._ledger: Path | None = None

    def use_ledger(self, path: Path) -> None:
        """Count what a file says was released, and note all further releases there.

        Raises
        ------
        RunError
            The file is damaged, or cannot be written.
        """
        content = path.read_bytes() if path.is_file() else b""
        # A line that was cut off belongs to a question that was never sent.
        complete = content[: content.rfind(b"\n") + 1]
        for number, line in enumerate(complete.splitlines(), start=1):
            try:
                self._releases.update(int(client) for client in json.loads(line))
            except (ValueError, TypeError) as error:
                raise RunError(
                    f"line {number} of {path} is damaged, and so the privacy spent "
                    "is not known; restore the file or start a new run"
                ) from error
        write_durably(path, complete)
        self._ledger = path

    def record(self, clients: Collection[int]) -> None:
        """Count one release of each client that is about to be asked."""
        if self._ledger is not None:
            append_durably(self._ledger, (json.dumps(list(clients)) + "\n").encode())
        self._releases.update(clients)

    def releases(self) -> int:
        """Return how many updates all clients together were asked for."""
        return self._releases.total()

    def epsilon(self) -> float:
        """Return the largest epsilon of any client so far."""
        releases = max(self._releases.values(), default=0)
        if releases == 0:
            return 0.0
        accountant = self._accounting.rdp.RdpAccountant()
        event = self._accounting.GaussianDpEvent(self._noise_multiplier / 2)
        accountant.compose(event, releases)
        return float(accountant.get_epsilon(self._delta))


def create_accountant(config: RunConfig) -> ClientAccountant | None:
    """Return the accountant of a private run, or None."""
    if config.privacy == "none":
        return None
    return ClientAccountant(
        noise_multiplier=config.privacy_noise_multiplier, delta=config.privacy_delta
    )


def mechanism_epsilon(config: RunConfig) -> float:
    """Return the parameter that makes Flower's LocalDpMod add noise of z*C.

    The mod's deviation is C sqrt(2 ln(1.25 / delta)) / epsilon. This epsilon is a
    setting, not the privacy of the run: that is the accountant's.
    """
    factor = math.sqrt(2.0 * math.log(1.25 / config.privacy_delta))
    return factor / config.privacy_noise_multiplier


def publishable(noisy: Arrays, broadcast: Arrays) -> Arrays:
    """Return a reply's arrays from its noisy floats and what is public anyway.

    Integer arrays (numbers of batches) would tell how much data the client has, so
    the server's own are sent back. Noise can make a variance negative; it is raised.
    Neither looks at the client's data: nothing is revealed beyond ``noisy``.
    """
    arrays = {name: noisy.get(name, array) for name, array in broadcast.items()}
    for name, array in arrays.items():
        if name.endswith("running_var"):
            arrays[name] = np.maximum(array, array.dtype.type(_SMALLEST_VARIANCE))
    return arrays

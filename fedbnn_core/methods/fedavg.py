"""FedAvg: clients train the float twin, the server averages its state."""

from collections.abc import Sequence

from torch import nn

from fedbnn_core.aggregation.mean import ReplyArrays, normalized_weights
from fedbnn_core.arrays import Arrays
from fedbnn_core.data.batches import ClientData
from fedbnn_core.methods.base import ClientUpdate, FloatMethod, RoundResult
from fedbnn_core.networks.state import load_arrays, state_arrays
from fedbnn_core.training.local import LocalTask, train_locally

__all__ = ["METHOD", "FedAvg"]


class FedAvg(FloatMethod):
    """w_{t+1} = sum_k p_k w_k over every array, BN statistics included."""

    title = "FedAvg"
    replies_with_state = True

    def train(
        self, model: nn.Module, broadcast: Arrays, data: ClientData, task: LocalTask
    ) -> ClientUpdate:
        """Train from the broadcast state and send the whole state back."""
        load_arrays(model, broadcast)
        loss = train_locally(model, data, task)
        return ClientUpdate(arrays=state_arrays(model), loss=loss)

    def aggregate(
        self, replies: Sequence[ReplyArrays], broadcast: Arrays
    ) -> RoundResult:
        """Return the weighted mean, which is also what is evaluated."""
        state = self.aggregate_arrays(broadcast, replies, normalized_weights(replies))
        return RoundResult(broadcast=state, candidates={"float": state})


METHOD = FedAvg

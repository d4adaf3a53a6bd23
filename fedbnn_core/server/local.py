"""A federation in this process: the server and all clients, one after the other.

Algorithm 1 of the paper in plain loops, without Flower, with the same server, the same
local training and the same aggregation as the Flower apps; so the same config gives the
same bits.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from fedbnn_core.arrays import Arrays
from fedbnn_core.config import RunConfig, Value
from fedbnn_core.data import Dataset
from fedbnn_core.data.batches import ClientData
from fedbnn_core.errors import ConfigError, ReplyError
from fedbnn_core.runs.dataset import run_partition
from fedbnn_core.runs.directory import PACKED_MODEL
from fedbnn_core.runs.metrics import RoundMetrics, Summary
from fedbnn_core.server.opening import open_run, stored_config
from fedbnn_core.server.reply import Reply
from fedbnn_core.server.run import ServerRun
from fedbnn_core.server.validation import validate_arrays
from fedbnn_core.training.compilation import compile_steps
from fedbnn_core.training.local import LocalTask

__all__ = ["FederationResult", "LocalClients", "LocalFederation", "run_round"]


@dataclass(frozen=True)
class FederationResult:
    """What a federation has learned."""

    summary: Summary
    """Accuracies, sizes and hashes, as in ``summary.json``."""
    history: list[RoundMetrics]
    """The metrics of every round, as in ``metrics.jsonl``."""
    best: Arrays
    """The state of the best round's model, as it was evaluated."""
    packed: bytes | None
    """The best model as an `.fbnn` file; None if it has no packed form."""
    directory: Path | None
    """The run directory; None if the run was to leave no files."""

    def save(self, path: str | Path) -> None:
        """Write the 1-bit model as an `.fbnn` file.

        Raises
        ------
        ConfigError
            The model has no packed form.
        """
        from fedbnn_core.export.pack import write_packed

        if self.packed is None:
            raise ConfigError(
                f"a model of {self.summary.method} as this run trained it has no "
                "packed form; train a 1-bit network with method 'fedbnn'"
            )
        write_packed(self.packed, path)


class LocalFederation:
    """Train in federation on this machine, without Flower.

    Parameters
    ----------
    method : fedbnn, fedavg, fedbat or fedmud.
    clients : into how many the training data is divided.
    rounds : of training.
    dataset : a name as in the config, or a dataset that is loaded already.
    model : the network's name.
    seed : of weights, sampling and batches.
    output_dir : where a run directory is made. None leaves no files behind: the result
        holds the metrics and the models.
    settings : other config keys, with underscores: ``clients_per_round=5``.

    Nothing travels: ``bytes_up`` and ``bytes_down`` of the metrics are what the same
    messages would have between hosts. Private updates (``privacy="local"``) are made by
    Flower's client app only.

    Examples
    --------
    >>> result = LocalFederation(clients=20, rounds=5).run()  # doctest: +SKIP
    >>> result.summary.test_accuracy, result.save("model.fbnn")  # doctest: +SKIP

    Raises
    ------
    ConfigError
        A key or value is wrong, or asks for private updates.
    """

    def __init__(
        self,
        *,
        method: str = "fedbnn",
        clients: int = 20,
        rounds: int = 5,
        dataset: str | Dataset = "fmnist-mini",
        model: str = "cnn4",
        seed: int = 1,
        output_dir: str | Path | None = None,
        **settings: Value,
    ) -> None:
        named = {key.replace("_", "-"): value for key, value in settings.items()}
        self._dataset = None if isinstance(dataset, str) else dataset
        self._temporary = output_dir is None and not named.get("resume")
        self.clients = clients
        self.config = stored_config(
            RunConfig.from_mapping(
                {
                    "method": method,
                    "num-server-rounds": rounds,
                    "dataset": dataset if isinstance(dataset, str) else dataset.name,
                    "model": model,
                    "seed": seed,
                    "output-dir": str(output_dir or "runs"),
                    **named,
                },
                complete=False,
            )
        )
        if self.config.privacy != "none":
            raise ConfigError(
                f"privacy = {self.config.privacy!r} needs Flower's client app, which "
                "adds the noise; use `fedbnn run`, or set privacy to 'none'"
            )

    def run(
        self, on_round: Callable[[RoundMetrics], None] = lambda metrics: None
    ) -> FederationResult:
        """Do all rounds that are left.

        Parameters
        ----------
        on_round : is given the metrics of every round when it is over.

        Raises
        ------
        RunError
            A round stayed below the quorum too often, or a file cannot be written.
        """
        with ExitStack() as stack:
            config = self.config
            if self._temporary:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                config = replace(config, output_dir=folder)
            run = open_run(
                config,
                self.clients,
                dataset=self._dataset,
                track=not self._temporary,
            )
            stack.callback(run.directory.release)
            clients = LocalClients(run)
            while not run.is_done:
                metrics = run_round(run, clients)
                if metrics is not None:
                    on_round(metrics)
            summary = run.finish()
            path = run.directory.path
            packed = path / PACKED_MODEL
            return FederationResult(
                summary=replace(summary, directory="") if self._temporary else summary,
                history=run.directory.read_metrics(),
                best=run.best.state,
                packed=packed.read_bytes() if packed.is_file() else None,
                directory=None if self._temporary else path,
            )


class LocalClients:
    """All clients of a run in one process; they share one network.

    Parameters
    ----------
    run : the server's side of the run.
    """

    def __init__(self, run: ServerRun) -> None:
        self.run = run
        context = run.context
        self._model = context.method.new_model().to(context.device)
        if context.config.compile:
            compile_steps(self._model)
        self._partition = run_partition(
            context.config, context.dataset, context.num_partitions
        )
        self.ids = range(context.num_partitions)

    def train(self, client: int) -> Reply:
        """Let one client train on what it holds; return its reply as it would come.

        Raises
        ------
        ReplyError
            Its training has diverged.
        """
        context, round_index = self.run.context, self.run.rounds_done
        config = context.config
        data = ClientData.of(
            context.dataset, self._partition[client], device=context.device
        )
        task = LocalTask(
            round_index=round_index,
            num_rounds=config.num_server_rounds,
            partition_id=client,
            seed=config.seed,
            local_epochs=config.local_epochs,
            batch_size=config.batch_size,
            lr=config.learning_rate(round_index),
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )
        try:
            with _threads(config.client_threads):
                update = context.method.train(
                    self._model, self.run.messages.received(), data, task
                )
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise ReplyError(f"its weights have diverged: {error}") from error
        return Reply(
            client,
            len(data),
            update.arrays | update.rotations,
            loss=update.loss,
            layer_metrics=update.layer_metrics,
        )

    def validated(self, reply: Reply) -> Reply:
        """Send a reply and read it again; raise `ReplyError` if it is bad.

        What comes back is what the server would read, with the update's norm.
        """
        rules = self.run.rules_for(reply.partition_id)
        turned = {n: a for n, a in reply.arrays.items() if n in rules.rotations}
        trained = {n: a for n, a in reply.arrays.items() if n not in turned}
        run, client = self.run, reply.partition_id
        sent = run.context.method.wire.reply(
            trained,
            run.messages.received(),
            round_index=run.rounds_done,
            client=client,
        )
        read = run.messages.read(sent, client)
        norm = validate_arrays(rules, read, turned, reply.num_examples, run.broadcast)
        return replace(reply, arrays=read | turned, update_norm=norm)


def run_round(
    run: ServerRun,
    clients: LocalClients,
    change: Callable[[Reply], Reply] = lambda reply: reply,
) -> RoundMetrics | None:
    """Ask clients to train, take their replies, aggregate.

    Parameters
    ----------
    run : the server's side.
    clients : its clients.
    change : may alter a reply before it is validated, to study bad clients.

    Returns
    -------
    RoundMetrics or None
        None if too few replies could be used.
    """
    with run.begin_attempt(clients.ids) as attempt:
        came = 0
        for client in attempt.asked:
            attempt.take(client, partial(_reply, clients, client, change))
            came += 1
            if attempt.is_full:
                break
        one = run.context.method.message_bytes
        return run.end_attempt(
            attempt,
            bytes_up=one.up * came,
            bytes_down=one.down * len(attempt.asked),
        )


def _reply(
    clients: LocalClients, client: int, change: Callable[[Reply], Reply]
) -> Reply:
    return clients.validated(change(clients.train(client)))


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Let torch use so many threads; 0: as it is."""
    before = torch.get_num_threads()
    try:
        if number:
            torch.set_num_threads(number)
        yield
    finally:
        torch.set_num_threads(before)

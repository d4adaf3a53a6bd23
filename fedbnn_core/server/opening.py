"""Open a run: check what it demands, make or find its directory, restore its state."""

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedbnn_core.arrays import to_safetensors
from fedbnn_core.config import RunConfig
from fedbnn_core.config.defaults import UNNAMED
from fedbnn_core.data import Dataset, load_partition, save_partition
from fedbnn_core.errors import ConfigError, DataError, RunError
from fedbnn_core.files import disk_errors, require_space
from fedbnn_core.methods import create_method, method_class, method_names
from fedbnn_core.methods.base import Method
from fedbnn_core.methods.template import Template
from fedbnn_core.reporting.tracking import RunTrackers
from fedbnn_core.runs.dataset import load_run_dataset, run_partition
from fedbnn_core.runs.directory import RunDirectory
from fedbnn_core.server.checkpoint import CheckpointFolder
from fedbnn_core.server.context import RunContext, describe
from fedbnn_core.server.evaluation import RunEvaluation
from fedbnn_core.server.finishing import BEST, SUFFIX, write_best
from fedbnn_core.server.privacy import create_accountant
from fedbnn_core.server.quarantine import Quarantine
from fedbnn_core.server.reply_store import DEFAULT_BUDGET_BYTES, SPILL_PREFIX
from fedbnn_core.server.round_messages import refuse_uncodable
from fedbnn_core.server.run import ServerRun
from fedbnn_core.server.state import ServerState
from fedbnn_core.server.validation import ReplyRules
from fedbnn_core.training.device import explain_device, set_deterministic

__all__ = [
    "changes_since",
    "open_run",
    "refuse_unclippable",
    "space_needed",
    "stored_config",
]

_log = logging.getLogger(__name__)


def open_run(
    config: RunConfig,
    num_partitions: int,
    *,
    dataset: Dataset | None = None,
    track: bool = True,
) -> ServerRun:
    """Start a run, or go on with one.

    Parameters
    ----------
    config : the run's config; with ``resume`` the run goes on in that directory, and
        the config must be the one stored there (`stored_config`).
    num_partitions : into how many parts the training data is divided.
    dataset : the config's dataset, where the caller has loaded it.
    track : pass the metrics on to TensorBoard and the configured tracker.

    Raises
    ------
    RunError
        The directory cannot be written, has no room, or is in use.
    """
    if dataset is None:
        dataset = load_run_dataset(config)
    method = create_method(config, dataset.input_shape, dataset.num_classes)
    refuse_unclippable(config, method)
    refuse_uncodable(method)
    # Before the evaluation, which takes over the network that it is read from.
    template = method.template
    partition = run_partition(config, dataset, num_partitions)
    if config.deterministic:
        set_deterministic()
    choice = explain_device(config.device)
    _log.info("The server evaluates on %s: %s", choice.device, choice.reason)
    device = choice.device
    directory = _claim_directory(config)
    context = RunContext(
        config=config,
        dataset=dataset,
        method=method,
        device=device,
        examples={k: len(indices) for k, indices in enumerate(partition)},
        rules=ReplyRules(
            arrays=template.reply,
            rotations=template.rotations,
            sent=method.wire.reply_arrays,
            max_update_norm=config.max_update_norm,
            measure_update=method.update_norm,
        ),
        directory=directory,
    )
    state = ServerState(
        broadcast=template.broadcast,
        quarantine=Quarantine(
            after=config.quarantine_after, rounds=config.quarantine_rounds
        ),
        accountant=create_accountant(config),
    )
    if state.accountant:
        state.accountant.use_ledger(directory.path / "privacy.jsonl")
    checkpoints = CheckpointFolder(
        directory.path / "checkpoints",
        keep=config.keep_checkpoints,
        best_copy=directory.path / BEST,
    )
    notes: list[str] = []
    if config.resume:
        notes = _restore(context, state, checkpoints)
        notes += _repair_partition(context, partition)
    else:
        _prepare_directory(context, state, partition)
    if not config.resume or not state.rounds_done:
        checkpoints.save(state.to_checkpoint(context, previous={}))
    return ServerRun(
        context,
        state,
        checkpoints=checkpoints,
        evaluation=RunEvaluation(method, dataset, seed=config.data_seed, device=device),
        trackers=RunTrackers(directory.path, describe(context)) if track else None,
        notes=notes,
    )


def stored_config(config: RunConfig) -> RunConfig:
    """Return the config of the run to be resumed, or the given one for a new run."""
    if not config.resume:
        return config
    path = Path(config.resume).expanduser().resolve()
    stored = RunDirectory.open(path).read_json("config.json")["config"]
    named = {**UNNAMED, **stored, "resume": str(path)}
    return RunConfig.from_mapping(named, complete=False)


def refuse_unclippable(config: RunConfig, method: Method) -> None:
    """Refuse what clips updates if the method's replies are not weights."""
    if method.replies_with_state:
        return
    others = ", ".join(n for n in method_names() if method_class(n).replies_with_state)
    if config.privacy != "none":
        raise ConfigError(
            f"method {config.method!r} has no private mode; set privacy to 'none' or "
            f"method to one of {others}"
        )
    if config.robust == "clip":
        raise ConfigError(
            f"method {config.method!r} sends no weights that robust = 'clip' could "
            "clip; set robust to 'median' or 'trimmed-mean', or method to one of "
            f"{others}"
        )


def changes_since(
    stored: Mapping[str, Any], own: Mapping[str, Any], directory: Path
) -> list[str]:
    """Return notes on other versions; refuse another number of clients.

    Parameters
    ----------
    stored : the run's description when it was started.
    own : the same of the run that would go on.
    directory : where the run is, for the message.
    """
    clients = own["num_partitions"]
    if stored.get("num_partitions", clients) != clients:
        before = stored["num_partitions"]
        raise RunError(
            f"{directory} was started with {before} clients, now there are {clients}; "
            "use `fedbnn resume`, or `flwr run` with "
            f"--federation-config 'num-supernodes={before}'"
        )
    return [
        f"The run was started with {name} {stored[name]} and goes on with {own[name]}: "
        "its result may differ from that of a whole run"
        for name in ("fedbnn_version", "torch_version")
        if stored.get(name, own[name]) != own[name]
    ]


def _claim_directory(config: RunConfig) -> RunDirectory:
    if config.resume:
        directory = RunDirectory.open(Path(config.resume))
    else:
        directory = RunDirectory.create(
            Path(config.output_dir).expanduser().resolve(),
            config.run_name or f"{config.method}-{_slug(config.dataset)}",
        )
    directory.lock()
    return directory


def _prepare_directory(
    context: RunContext, state: ServerState, partition: list[np.ndarray[Any, Any]]
) -> None:
    """Write all that is known before training, and so find a bad disk now."""
    _require_space(context, state)
    with disk_errors(context.partition_file):
        save_partition(context.partition_file, partition)
    context.directory.write_json("config.json", describe(context))


def _repair_partition(
    context: RunContext, partition: list[np.ndarray[Any, Any]]
) -> list[str]:
    """Write the partition again if its file is damaged; return a note on it.

    Every client reads that file: one that is cut short would fail them all.
    """
    path = context.partition_file
    try:
        if len(load_partition(path)) == context.num_partitions:
            return []
    except DataError:
        pass
    with disk_errors(path):
        save_partition(path, partition)
    return [f"{path.name} was damaged or missing; it has been made again"]


def _require_space(context: RunContext, state: ServerState) -> None:
    """Raise `RunError` unless all that the run will write has room."""
    folder = context.directory.path
    needed = space_needed(
        context.config,
        Template(state.broadcast, context.rules.arrays, context.rules.rotations),
        context.num_partitions,
    )
    there = sum(path.stat().st_size for path in folder.rglob(f"*{SUFFIX}"))
    require_space(folder, needed - there)


def space_needed(config: RunConfig, template: Template, clients: int) -> int:
    """Return how many bytes a run writes at most.

    Parameters
    ----------
    config : the run's config.
    template : what its messages look like.
    clients : all clients of the run.
    """
    # Each checkpoint that is kept may have a best model of its own; then there are
    # the first one's previous weights, a checkpoint under way, best, final and a
    # temporary file.
    states = 2 * config.keep_checkpoints + 6
    state_bytes = len(to_safetensors(template.broadcast))
    replies = min(config.clients_per_round, clients)
    expected = (*template.reply.values(), *template.rotations.values())
    reply_bytes = sum(array.nbytes for array in expected)
    spilled = max(0, replies * reply_bytes - DEFAULT_BUDGET_BYTES)
    return states * state_bytes + spilled


def _restore(
    context: RunContext, state: ServerState, checkpoints: CheckpointFolder
) -> list[str]:
    """Go back to the last complete checkpoint, or to the start if there is none.

    Returns
    -------
    list of str
        What a person should know about it.
    """
    directory = context.directory
    stored = directory.read_json("config.json")
    notes = changes_since(stored, describe(context), directory.path)
    for folder in directory.path.glob(f"{SPILL_PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)
    checkpoint, damages = checkpoints.load_latest()
    notes += [f"Damaged checkpoint: {damage}" for damage in damages]
    _require_space(context, state)
    if checkpoint is None:
        metrics = directory.metrics.path
        # The first checkpoint is written before the first round.
        if metrics.is_file() and (content := metrics.read_bytes()):
            rounds = content.count(b"\n")
            raise RunError(
                f"{directory.path} has {rounds} rounds in metrics.jsonl but "
                "no checkpoints; restore the folder checkpoints or start a new run"
            )
        return [*notes, "There is no checkpoint yet: starting from round 1"]
    if not state.restore(checkpoint, context):
        notes.append("metrics.jsonl was changed since the checkpoint")
    if state.best.state:
        write_best(directory, state.best)
    return [*notes, f"Resuming after round {state.rounds_done}"]


def _slug(name: str) -> str:
    kept = "".join(c if c.isalnum() or c in "-." else "-" for c in name)
    return kept.strip("-.")[-40:].lstrip("-.") or "run"

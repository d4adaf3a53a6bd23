"""Offer the packed 1-bit model to every connected device at the end of a run."""

import hashlib
import time
from logging import INFO, WARNING

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid

from fedbnn_core.messages import MODEL, MODEL_QUERY, STORED, ModelOffer
from fedbnn_core.runs.directory import PACKED_MODEL
from fedbnn_core.runs.log import one_line
from fedbnn_core.server.run import ServerRun
from server_app.inbox import Inbox
from server_app.roster import Roster

__all__ = ["deliver_model"]

_LONGEST_SECONDS = 600.0
_POLL_SECONDS = 0.5


def deliver_model(grid: Grid, roster: Roster, run: ServerRun) -> int:
    """Send the run's packed model to all devices that store models.

    A device that cannot take it is named in the log and keeps the model it has; the
    run is complete all the same.

    Returns
    -------
    int
        How many devices have stored it.
    """
    roster.refresh(grid)
    if not roster.model_nodes or not run.config.deliver_model:
        return 0
    try:
        content = (run.directory.path / PACKED_MODEL).read_bytes()
    except OSError:
        log(WARNING, "No packed model is sent to the devices: the run has none")
        return 0
    offer = ModelOffer(
        sha256=hashlib.sha256(content).hexdigest(),
        run=run.directory.path.name,
        val_accuracy=run.best.accuracy,
    )
    model = ArrayRecord({MODEL: Array(np.frombuffer(content, np.uint8))})
    records = RecordDict(
        {ModelOffer.RECORD: ConfigRecord(offer.to_record()), MODEL: model}
    )
    messages = [
        Message(content=records, dst_node_id=node, message_type=_MODEL)
        for node in sorted(roster.model_nodes)
    ]
    stored = _collect(grid, messages, run.config.round_timeout_s)
    log(
        INFO,
        "%d of %d devices stored the model (%d bytes)",
        stored,
        len(messages),
        len(content),
    )
    return stored


def _collect(grid: Grid, messages: list[Message], timeout_s: float) -> int:
    waiting = {str(message_id) for message_id in grid.push_messages(messages)}
    deadline = time.monotonic() + min(timeout_s, _LONGEST_SECONDS)
    stored = 0
    inbox = Inbox(_MODEL)
    while waiting and time.monotonic() < deadline:
        fetched = list(inbox.pull(grid, list(waiting)))
        for answer in (answer for batch in fetched for answer in batch):
            waiting.discard(answer.question)
            if answer.content is None or STORED not in answer.content.config_records:
                reason = one_line(answer.problem or "it does not say where")
                log(WARNING, "A device has no new model: %s", reason)
            else:
                stored += 1
        if waiting:
            time.sleep(_POLL_SECONDS)
    if waiting:
        log(WARNING, "%d devices did not answer the offer of the model", len(waiting))
    return stored


_MODEL = f"{MessageType.QUERY}.{MODEL_QUERY}"

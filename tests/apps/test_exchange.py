"""What the exchange fetches, and that every byte of it is counted."""

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from server_app.exchange import Exchange
from server_app.objects import Limits


class OneFetch:
    """A grid that hands over all replies at the first call, as Flower may."""

    def __init__(self, replies):
        self.replies = replies
        self.fetched_ids = []

    def push_messages(self, messages):
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids):
        self.fetched_ids.append(list(message_ids))
        replies, self.replies = self.replies, []
        return replies


def message(name):
    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    made = Message(RecordDict(), dst_node_id=7, message_type="train")
    made.metadata.__dict__["_message_id"] = name
    return made


def answer(asked, *, size):
    record = ArrayRecord({"w": Array(np.zeros(size, np.uint8))})
    return Message(RecordDict({"arrays": record}), reply_to=asked)


def test_surplus_of_one_fetch_is_counted_and_not_fetched_again():
    asked = {5: message("m5"), 6: message("m6")}
    replies = [answer(asked[5], size=300), answer(asked[6], size=40)]
    sizes = [len(r.content["arrays"]["w"].data) for r in replies]
    assert sizes[0] == sizes[1] + 260
    grid, exchange = OneFetch(replies), Exchange(Limits())
    exchange.send(grid, asked)
    # The round needs one reply only; the other one came with it.
    partition, reply = next(exchange.replies(grid, 1.0))
    assert (partition, reply.records()) == (5, replies[0].content)
    exchange.send(grid, {})
    assert exchange.take_bytes() == sum(sizes)
    assert exchange.take_bytes() == 0
    # Flower answers a second request for the same message with an error.
    assert grid.fetched_ids == [["m5", "m6"]]

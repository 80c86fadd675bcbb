# SPDX-License-Identifier: Apache-2.0
"""When a batch has failed: abort its transactions, if it is certain that it is not decided and never will be. No I/O.

Spark calls abort() also after a commit() that raised, with all handles: whether the batch is decided is not known then.
So the coordinator is asked. Only while it has the very identity that could have decided, unused, or agrees to abort
what was begun with it, the batch is undecided for good. Otherwise everything is left to the next start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock.control.transactions import TransactionDescription
from penstock.errors import KafkaError
from penstock.sink.committing import is_ours
from penstock.sink.effects import Describe, Effects, EndAll, EndTransaction, Note, Reached
from penstock.sink.messages import Message, sort_out
from penstock.sink.seam import Step
from penstock.sink.settings import SinkSettings

_EMPTY, _ONGOING = "Empty", "Ongoing"


def abort_steps(settings: SinkSettings, messages: Iterable[Message | None], batch_id: int) -> Effects[bool]:
    """Give a batch up; whether its transactions were aborted, and not left to the next start."""
    batch = sort_out(messages, settings.sink_key, batch_id)
    handles = tuple(each.transaction for each in batch.handles if not each.transaction.empty)
    if batch.stamp is None or not handles:
        return True
    identity = batch.stamp.coordinator
    described: Mapping[str, TransactionDescription | None] = yield Describe((identity.transactional_id,))
    found = described[identity.transactional_id]
    if found is None or not is_ours(found, identity) or found.state not in (_EMPTY, _ONGOING):
        yield Note(f"batch {batch_id} may be decided, so its transactions are left to the next start")
        return False
    if found.state == _ONGOING:
        try:
            yield EndTransaction(identity, commit=False)
        except KafkaError as error:
            yield Note(
                f"batch {batch_id} may be decided, so its transactions are left to the next start: {error}"
            )
            return False
    yield EndAll(handles, commit=False)
    yield Reached(Step.ABORTED, {"batch_id": batch_id})
    return True

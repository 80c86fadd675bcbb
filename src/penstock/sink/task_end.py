# SPDX-License-Identifier: Apache-2.0
"""A task's last look before it hands over its transaction: does anybody wait for it?

Spark does not wait for a task that it has cancelled, or thinks lost, and its process may go on: it would leave a
transaction open that nobody knows of, and readers would wait for its time-out. While tasks run, the coordinator's id is
as the plan names it, and unused. When the batch was decided, given up or planned again, it is not.
"""

from __future__ import annotations

import logging
from typing import Final

from penstock.control.client import ControlClient
from penstock.control.transactions import describe_transactions
from penstock.errors import KafkaError, SinkSupersededError
from penstock.sink.plan import BatchPlan
from penstock.sink.writing import is_ours

log = logging.getLogger("penstock.sink")

_TIMEOUT: Final = 10.0
_EMPTY: Final = "Empty"


def check_wanted(plan: BatchPlan, client: ControlClient) -> None:
    """Make sure that the execution of a task can still be decided.

    Raises:
        SinkSupersededError: it cannot: what the task has written is to be aborted.
    """
    identity = plan.stamp.coordinator
    name = identity.transactional_id
    try:
        found = describe_transactions([name], client, timeout=_TIMEOUT)[name]
    except KafkaError as error:
        # Whoever commits finds out; this is for the readers' sake.
        log.warning("whether this task's batch is still wanted could not be found out: %s", error)
        return
    if found is None or not is_ours(found, identity) or found.state != _EMPTY:
        raise SinkSupersededError(
            f"execution {plan.execution} of this task's batch is over: it was stopped, or decided without this "
            "attempt, or has begun anew. What was written here is aborted, and nothing needs to be done"
        )

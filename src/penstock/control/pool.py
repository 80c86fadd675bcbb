# SPDX-License-Identifier: Apache-2.0
"""Ends many detached transactions at once, over one connection for each coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock._ticket import Ticket
from penstock.control.client import DEFAULT_TIMEOUT, ControlSource, control_client
from penstock.control.end_transaction import end_txn_request, ending_steps
from penstock.control.ending import TransactionOutcome, outcome_without_asking
from penstock.control.settings import DEFAULT_MAX_IN_FLIGHT
from penstock.errors import KafkaError
from penstock.transaction_handle import TransactionHandle

# Transactions that are being ended at the same time; the others wait for their turn.
DEFAULT_AT_ONCE = 500


class Completion(NamedTuple):
    """What became of one transaction.

    Attributes:
        outcome: how it ended, which is as asked; None when it did not, or when that is not known.
        error: why there is no outcome, as `complete_transaction` would raise it; None when there is one.
    """

    handle: TransactionHandle
    outcome: TransactionOutcome | None
    error: KafkaError | None


def complete_all(
    handles: Iterable[TransactionHandle],
    commit: bool = True,
    *,
    config: ControlSource,
    timeout: float | None = DEFAULT_TIMEOUT,
    max_in_flight: int = DEFAULT_MAX_IN_FLIGHT,
) -> list[Completion]:
    """End many detached transactions the same way; one that fails does not hold up the others.

    Args:
        handles: the transactions.
        commit: what is wanted of all of them.
        config: options of a client, of which bootstrap.servers is all that is needed; or an open ControlClient, which
            has its own max_in_flight.
        timeout: seconds for all of them; None tries for ever.
        max_in_flight: requests that may be on their way to one broker.

    Returns:
        One Completion for each handle, in the same order.

    Raises:
        ConfigError: an option is wrong.
        ValueError: a handle needs a version of EndTxn that this release does not know.
        TypeError: a handle is none, for example its JSON text; or the wish is neither True nor False.
    """
    wanted = list(handles)
    for handle in wanted:
        end_txn_request(handle, commit)  # refuses what cannot be said before anything is ended
    # Nothing is asked for empty ones, so that they need no cluster either.
    asked = [handle for handle in wanted if not handle.empty]
    tickets: list[Ticket[TransactionOutcome]] = []
    if asked:
        with control_client(config, max_in_flight) as client:
            work = [ending_steps(handle, commit) for handle in asked]
            tickets = client.run_all(work, timeout, DEFAULT_AT_ONCE)
    ended = iter(tickets)
    return [
        Completion(handle, outcome_without_asking(commit), None)
        if handle.empty
        else _completion(handle, next(ended))
        for handle in wanted
    ]


def _completion(handle: TransactionHandle, ticket: Ticket[TransactionOutcome]) -> Completion:
    try:
        return Completion(handle, ticket.result, None)
    except KafkaError as error:
        return Completion(handle, None, error)

# SPDX-License-Identifier: Apache-2.0
"""Ends detached transactions from any process, as often as it takes: one, or many over one connection per coordinator.

What to make of the answers is decided by `ending`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock._ticket import Ticket
from penstock.control.client import DEFAULT_MAX_IN_FLIGHT, DEFAULT_TIMEOUT, ControlSource, control_client
from penstock.control.ending import Action, Ending, TransactionOutcome, outcome_without_asking
from penstock.control.markers import MarkerSearch
from penstock.control.steps import Ask, Backoff, CoordinatorOf, Steps, is_soon_over
from penstock.errors import KafkaError, KafkaTimeoutError
from penstock.protocol.messages import END_TXN
from penstock.protocol.requests import SchemaRequest
from penstock.transaction_handle import TransactionHandle

# Transactions that are being ended at the same time; the others wait for their turn.
DEFAULT_AT_ONCE = 500


def complete_transaction(
    handle: TransactionHandle,
    commit: bool = True,
    *,
    config: ControlSource,
    timeout: float | None = DEFAULT_TIMEOUT,
) -> TransactionOutcome:
    """End a detached transaction, or find out how it has ended.

    May be called from any process, with the same handle as often as it takes, also after an earlier call was
    interrupted or failed. An empty transaction needs no end: nothing is sent.

    Args:
        handle: the transaction, as `detach_transaction` gave it.
        commit: what is wanted; False aborts.
        config: options of a client, of which bootstrap.servers is all that is needed; or an open ControlClient.
        timeout: seconds to try; None tries for ever.

    Returns:
        The outcome, which is the one that was wanted.

    Raises:
        TransactionAbortedError: it was to be committed, but has been aborted; the text says by what.
        TransactionCommittedError: it was to be aborted, but has been committed.
        TransactionUnknownError: neither the coordinator nor the log can tell how it ended.
        KafkaTimeoutError: the time is up; the call may be repeated.
        KafkaError: the brokers refuse this client.
        ValueError: the handle needs a version of EndTxn that this release does not know.
        TypeError: the handle is none, for example its JSON text; or the wish is neither True nor False.
    """
    end_txn_request(handle, commit)  # refuses what cannot be said before anything is opened
    if handle.empty:
        return outcome_without_asking(commit)
    with control_client(config) as client:
        return client.run(ending_steps(handle, commit), timeout)


def ending_steps(handle: TransactionHandle, commit: bool) -> Steps[TransactionOutcome]:
    """The same as a job, for those who run many."""
    if handle.empty:
        return outcome_without_asking(commit)
    ending = Ending(handle, commit)
    try:
        yield from _drive(ending, end_txn_request(handle, commit))
    except KafkaTimeoutError as up:
        raise ending.timed_out(up) from ending.trouble
    return ending.report()


def _drive(ending: Ending, request: SchemaRequest) -> Steps[None]:
    """Do what `ending` says until it has something to report."""
    handle = ending.handle
    coordinator = CoordinatorOf(handle.transactional_id)
    # Kept from one look to the next, so that no page of the log is read twice.
    search = MarkerSearch(
        handle.topic or "", handle.partition, handle.offset, handle.producer_id, handle.producer_epoch
    )
    now = 0.0
    while (action := ending.action) is not Action.REPORT:
        if action is Action.END_TXN:
            reply = yield Ask(coordinator, request, fresh=ending.coordinator_doubtful)
            now = reply.at
            if reply.error is None:
                ending.on_answer(reply.body["error_code"], now)
            else:
                ending.on_no_answer(reply.error, now)
        elif action is Action.LOOK:
            found = yield from search.look()
            ending.on_found(found, now)
        else:
            yield Backoff(ending.attempts, briefly=is_soon_over(ending.trouble))
            ending.on_rested()


def end_txn_request(handle: TransactionHandle, commit: bool) -> SchemaRequest:
    """The one request that ends it.

    Raises:
        ValueError: this release does not know the version that the handle needs.
        TypeError: the handle is none, or `commit` neither True nor False.
    """
    _check_kinds(handle, commit)
    body = {
        "transactional_id": handle.transactional_id,
        "producer_id": handle.producer_id,
        "producer_epoch": handle.producer_epoch,
        "committed": commit,
    }
    # In no other version: the two protocols answer the same question differently.
    return SchemaRequest.of(END_TXN, body, handle.end_txn_version, handle.end_txn_version)


def _check_kinds(handle: object, commit: object) -> None:
    if not isinstance(handle, TransactionHandle):
        hint = ": TransactionHandle.from_json(text) makes one" if isinstance(handle, str | bytes) else ""
        raise TypeError(
            f"a TransactionHandle is needed to end a transaction, not {type(handle).__name__}{hint}"
        )
    if not isinstance(commit, bool):
        raise TypeError(f"commit must be True or False, not {commit!r}")


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

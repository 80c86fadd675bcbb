# SPDX-License-Identifier: Apache-2.0
"""Looks at transactions: which there are, and what their coordinators know of them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock._arguments import check_text, check_texts, check_timeout
from penstock.control.client import DEFAULT_TIMEOUT, ControlClient, ControlSource, control_client
from penstock.control.rights import answered
from penstock.control.steps import Backoff, OnNode, Steps, ask_once, ask_until_answered
from penstock.error_codes import ErrorCode
from penstock.errors import KafkaError, UnsupportedVersionError, error_row
from penstock.protocol.messages import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS
from penstock.protocol.requests import SchemaRequest
from penstock.types import Node, TopicPartition

FIRST_VERSION_WITH_PATTERN = 2
IDS_PER_REQUEST = 500


class TransactionListing(NamedTuple):
    """A transactional id that a coordinator knows.

    Attributes:
        state: Empty, Ongoing, PrepareCommit, PrepareAbort, CompleteCommit, CompleteAbort, PrepareEpochFence or Dead.
        coordinator_id: the broker that said so.
    """

    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


class TransactionDescription(NamedTuple):
    """What the coordinator knows of a transactional id.

    Attributes:
        state: as in TransactionListing.
        start_time_ms: when the first partition was added, by the coordinator's clock; -1 when nothing is open.
        partitions: those that the open transaction has.
    """

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time_ms: int
    partitions: tuple[TopicPartition, ...]


def list_transactions(
    config: ControlSource,
    *,
    pattern: str | None = None,
    states: Sequence[str] = (),
    timeout: float | None = DEFAULT_TIMEOUT,
) -> list[TransactionListing]:
    """The transactional ids of the cluster, sorted; every broker is asked, as each knows only those it coordinates.

    Args:
        config: options of a client, or an open ControlClient.
        pattern: a regular expression that must match the whole id. Brokers that cannot filter (before 4.1) are asked
            for all, which are then filtered here.
        states: only ids in one of these states, for example "Ongoing"; all when empty.
        timeout: seconds.

    Raises:
        ValueError: a state that brokers do not know, or a malformed pattern.
        KafkaError: a broker could not be asked: the list would not be complete.
    """
    check_timeout(timeout)
    for state in check_texts(states, "states"):
        check_text(state, "a state")
    compiled = None if pattern is None else _compile(pattern)
    with control_client(config) as client:
        left = client.deadline(timeout)
        brokers = client.brokers(left())
        tickets = client.run_all([_list_at(node, compiled, list(states)) for node in brokers], left())
    return sorted(
        (listing for ticket in tickets for listing in ticket.result),
        key=lambda listing: listing.transactional_id,
    )


def list_where_answered(
    client: ControlClient, pattern: str, states: Sequence[str], timeout: float
) -> tuple[list[TransactionListing], list[KafkaError]]:
    """The same of those brokers that answer, and what went wrong with the others.

    Raises:
        KafkaError: none answered.
    """
    compiled = _compile(pattern)
    left = client.deadline(timeout)
    brokers = client.brokers(left())
    listings: list[TransactionListing] = []
    failures: list[KafkaError] = []
    for ticket in client.run_all([_list_at(node, compiled, list(states)) for node in brokers], left()):
        try:
            listings += ticket.result
        except KafkaError as error:
            failures.append(error)
    if failures and len(failures) == len(brokers):
        raise failures[0]
    return sorted(listings, key=lambda listing: listing.transactional_id), failures


def _compile(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is not a regular expression: {error}") from error


def _list_at(
    node: Node, pattern: re.Pattern[str] | None, states: Sequence[str]
) -> Steps[list[TransactionListing]]:
    body: dict[str, Any] = {"state_filters": states, "producer_id_filters": []}
    plain = SchemaRequest.of(LIST_TRANSACTIONS, body)
    if pattern is None:
        answer = yield from ask_until_answered(OnNode(node), plain)
    else:
        filtering = SchemaRequest.of(
            LIST_TRANSACTIONS,
            body | {"transactional_id_pattern": pattern.pattern},
            FIRST_VERSION_WITH_PATTERN,
        )
        try:
            answer = yield from ask_until_answered(OnNode(node), filtering)
        except UnsupportedVersionError:
            answer = yield from ask_until_answered(OnNode(node), plain)
    if answer["unknown_state_filters"]:
        raise ValueError(f"brokers do not know the states {', '.join(answer['unknown_state_filters'])}")
    return [
        TransactionListing(row["transactional_id"], row["producer_id"], row["transaction_state"], node.id)
        for row in answer["transaction_states"]
        if pattern is None or pattern.fullmatch(row["transactional_id"])
    ]


def describe_transactions(
    transactional_ids: Iterable[str], config: ControlSource, *, timeout: float | None = DEFAULT_TIMEOUT
) -> dict[str, TransactionDescription | None]:
    """What the coordinators know of the ids; None for those that they do not know.

    Args:
        transactional_ids: any number; each coordinator is asked for many at once.
        config: options of a client, or an open ControlClient.
        timeout: seconds.

    Raises:
        KafkaError: one of the ids could not be asked for.
    """
    check_timeout(timeout)
    wanted = list(dict.fromkeys(check_texts(transactional_ids, "transactional_ids")))
    for name in wanted:
        check_text(name, "a transactional id")
    found: dict[str, TransactionDescription | None] = {}
    if wanted:
        with control_client(config) as client:
            left = client.deadline(timeout)
            attempts = 0
            while pending := [name for name in wanted if name not in found]:
                if attempts:
                    client.run(_rest(attempts - 1), left())
                attempts += 1
                nodes = client.find_coordinators(pending, timeout=left())
                work = [_describe_at(node, ids) for node, ids in _shares(nodes)]
                for ticket in client.run_all(work, left()):
                    found.update(ticket.result)
    return {name: found[name] for name in wanted}


def _shares(nodes: Mapping[str, Node]) -> list[tuple[Node, list[str]]]:
    """Who is asked for which ids."""
    by_node: defaultdict[Node, list[str]] = defaultdict(list)
    for name, node in nodes.items():
        by_node[node].append(name)
    return [
        (node, names[start : start + IDS_PER_REQUEST])
        for node, names in by_node.items()
        for start in range(0, len(names), IDS_PER_REQUEST)
    ]


def _rest(attempts: int) -> Steps[None]:
    # The first transaction of a cluster creates the topic of the coordinators, which know it a moment later.
    yield Backoff(attempts, briefly=True)


def _describe_at(node: Node, names: Sequence[str]) -> Steps[dict[str, TransactionDescription | None]]:
    """What one coordinator says; ids for which it is not the one, or is not ready, are left out."""
    request = SchemaRequest.of(DESCRIBE_TRANSACTIONS, {"transactional_ids": names})
    try:
        answer = yield from ask_once(OnNode(node), request)
    except KafkaError as error:
        if not error.retriable:
            raise
        return {}
    described: dict[str, TransactionDescription | None] = {}
    for row in answer["transaction_states"]:
        name, code = row["transactional_id"], row["error_code"]
        if code == 0:
            described[name] = _description(row)
        elif code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            described[name] = None
        else:
            text = f"transactional id {name!r}: {error_row(code).description}"
            refused = answered(code, "DESCRIBE", "it", text)
            if not refused.retriable:
                raise refused
    return described


def _description(row: Mapping[str, Any]) -> TransactionDescription:
    return TransactionDescription(
        transactional_id=row["transactional_id"],
        state=row["transaction_state"],
        producer_id=row["producer_id"],
        producer_epoch=row["producer_epoch"],
        timeout_ms=row["transaction_timeout_ms"],
        start_time_ms=row["transaction_start_time_ms"],
        partitions=tuple(
            TopicPartition(topic["topic"], partition)
            for topic in row["topics"]
            for partition in sorted(topic["partitions"])
        ),
    )

# SPDX-License-Identifier: Apache-2.0
"""DescribeTransactions and ListTransactions: looking at the transactions of others."""

from __future__ import annotations

from typing import Any

from testing.conformance.cases import Cases
from testing.conformance.raw import V1, V2, Body, Raw

from penstock.protocol.messages import DESCRIBE_TRANSACTIONS, LIST_TRANSACTIONS

DESCRIBED = Cases(DESCRIBE_TRANSACTIONS, needs_topic=False)
DESCRIBED_IN_USE = Cases(DESCRIBE_TRANSACTIONS)
LISTED = Cases(LIST_TRANSACTIONS, needs_topic=False)
LISTED_IN_USE = Cases(LIST_TRANSACTIONS)


# ------------------------------------------------------------------------------------------------ DescribeTransactions


@DESCRIBED.case("never initialised")
def never(raw: Raw, version: int) -> None:
    raw.describe()


@DESCRIBED.case("empty")
def empty(raw: Raw, version: int) -> None:
    raw.init(transaction_timeout_ms=12_345)
    raw.describe()


@DESCRIBED.case("empty name")
def empty_name(raw: Raw, version: int) -> None:
    raw.describe("")


@DESCRIBED_IN_USE.case("open")
def opened(raw: Raw, version: int) -> None:
    producer = raw.begin(V2)
    raw.add(producer, 1)
    raw.describe()


@DESCRIBED.case("several")
def several(raw: Raw, version: int) -> None:
    raw.init()
    raw.describe(raw.id, f"{raw.id}-missing", raw.id)


@DESCRIBED.case("none")
def none(raw: Raw, version: int) -> None:
    raw.call(DESCRIBE_TRANSACTIONS, {"transactional_ids": []})


def add_ended(protocol: int, commit: bool) -> None:
    @DESCRIBED_IN_USE.case(f"{'committed' if commit else 'aborted'} by protocol {1 if protocol == V1 else 2}")
    def ended(raw: Raw, version: int) -> None:
        raw.end(raw.begin(protocol), commit, protocol)
        raw.describe()


for _protocol in (V1, V2):
    for _commit in (True, False):
        add_ended(_protocol, _commit)


# ------------------------------------------------------------------------------------------------ ListTransactions


def listing(raw: Raw, version: int, **filters: Any) -> None:
    def only_own(answer: Body) -> Body:
        own = [row for row in answer["transaction_states"] if row["transactional_id"].startswith(raw.id)]
        return answer | {"transaction_states": own}

    raw.call(LIST_TRANSACTIONS, filters, version, only=only_own)


@LISTED.case("all", 0, 1, 2)
def everything(raw: Raw, version: int) -> None:
    raw.init()
    listing(raw, version)


@LISTED_IN_USE.case("by state", 0, 1, 2)
def by_state(raw: Raw, version: int) -> None:
    raw.begin(V2)
    listing(raw, version, state_filters=["Ongoing"])
    listing(raw, version, state_filters=["Empty", "Ongoing"])
    listing(raw, version, state_filters=["Empty"])


@LISTED.case("unknown states", 0, 2)
def unknown_states(raw: Raw, version: int) -> None:
    raw.init()
    listing(raw, version, state_filters=["Empty", "Nonsense"])
    listing(raw, version, state_filters=["Nonsense"])
    listing(raw, version, state_filters=["empty", "", "Dead", "PrepareEpochFence"])


@LISTED.case("by producer", 0, 2)
def by_producer(raw: Raw, version: int) -> None:
    producer = raw.init()
    listing(raw, version, producer_id_filters=[producer.id])
    listing(raw, version, producer_id_filters=[producer.id + 1_000_000])


@LISTED_IN_USE.case("by age", 1, 2)
def by_age(raw: Raw, version: int) -> None:
    raw.begin(V2)
    listing(raw, version, duration_filter=3_600_000)
    listing(raw, version, duration_filter=-1)


@LISTED_IN_USE.case("by pattern")
def by_pattern(raw: Raw, version: int) -> None:
    raw.begin(V2)
    for pattern in (raw.id, raw.id[:-1], f"{raw.id[:-1]}.", "(", "", f"{raw.id}|nothing"):
        listing(raw, version, transactional_id_pattern=pattern)


@LISTED_IN_USE.case("by state and pattern")
def by_state_and_pattern(raw: Raw, version: int) -> None:
    raw.begin(V2)
    listing(raw, version, transactional_id_pattern=raw.id, state_filters=["Empty", "Nonsense"])
    listing(raw, version, transactional_id_pattern=raw.id, state_filters=["Ongoing"])


@LISTED_IN_USE.case("ended", 0, 2)
def listed_after_end(raw: Raw, version: int) -> None:
    raw.end(raw.begin(V2), True, V2)
    raw.describe()
    listing(raw, version)

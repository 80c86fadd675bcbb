# SPDX-License-Identifier: Apache-2.0
"""What a seed decides before anything runs: the cluster, the producer's options, how much is sent, and by whom."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

PLAIN, IDEMPOTENT, TRANSACTIONAL = "plain", "idempotent", "transactional"
RECORDS_WANTED = 200
GROUP = "g"

_RELEASES = ("2.4", "2.8", "3.0", "3.7", "3.9", "4.0", "4.1", "4.3", "4.3")
_WITH_BATCHES = ("1.0", "1.1", "2.0", "2.1", "2.3", "2.8")
_SECOND_PROTOCOL = ("4.0", "4.1", "4.3")


@dataclass
class Plan:
    """The frame of one seed.

    Attributes:
        topics: name and number of partitions.
        max_message_bytes: the topics' limit for one batch; above batch.size nothing is ever split.
        faults_at: after how many calls of send() each fault comes.
        close_early: the producer is closed once enough records were accepted, with senders still at work.
        close_timeout: seconds; infinity: as long as it takes.
        changes: releases that single brokers may change to.
    """

    mode: str
    release: str
    features: dict[str, int]
    brokers: int
    topics: dict[str, int]
    max_message_bytes: int
    marker_delay: float
    options: dict[str, Any]
    max_block: float
    senders: int
    records: int
    faults_at: list[int]
    close_early: bool
    close_timeout: float
    think: float
    sizes: tuple[int, ...]
    slowest: float
    partial_writes: float
    interrupts: float
    delivery_checks: float
    group: str = field(default=GROUP)
    changes: tuple[str, ...] = ()

    @property
    def second_protocol(self) -> bool:
        return self.features.get("transaction.version", 2 if self.release in _SECOND_PROTOCOL else 0) >= 2

    @property
    def ordered(self) -> bool:
        """Whether the order of records is promised."""
        return self.mode != PLAIN or self.options["max_in_flight_requests_per_connection"] == 1

    @property
    def spare_ms(self) -> int:
        """How much longer than one request the delivery of a batch may take."""
        options = self.options
        return int(options["delivery_timeout_ms"] - options["request_timeout_ms"] - options["linger_ms"])

    @property
    def acks(self) -> str:
        return str(self.options["acks"])

    def describe(self) -> str:
        options = " ".join(f"{name}={value}" for name, value in self.options.items())
        topics = ", ".join(f"{name}: {count}" for name, count in self.topics.items())
        return (
            f"{self.mode} producer, Kafka {self.release} {self.features or ''}, {self.brokers} brokers, "
            f"partitions {topics}, {self.records} records by {self.senders} sender(s)\n  {options}"
        )


def make_plan(rng: random.Random, *, awaited: bool = False) -> Plan:
    """Draw a plan; `awaited`: for tasks in event loops, which have no transactions here."""
    mode = rng.choices((PLAIN, IDEMPOTENT, TRANSACTIONAL), (22, 43, 35))[0]
    if awaited and mode == TRANSACTIONAL:
        mode = IDEMPOTENT
    release = rng.choice(_RELEASES)
    features = {}
    if release in _SECOND_PROTOCOL and rng.random() < 0.35:
        features["transaction.version"] = rng.choice((0, 1))
    batch_size = rng.choice((180, 300, 500, 900))
    records = rng.randint(210, 250)
    faults = rng.randint(3, 9)
    topics = {"a": rng.randint(1, 3)}
    if rng.random() < 0.3:
        topics["b"] = rng.randint(1, 2)
    return Plan(
        mode=mode,
        release=release,
        features=features,
        brokers=rng.choice((1, 2, 3, 3)),
        topics=topics,
        max_message_bytes=rng.choice((250, 400)) if rng.random() < 0.12 else 1_048_588,
        marker_delay=rng.choice((0.0, 0.0, 0.005, 0.05)),
        options=_options(rng, mode, batch_size),
        max_block=rng.choice((0.02, 0.3, 2.0, 20.0)),
        senders=rng.choice((1, 2, 2, 3)),
        records=records,
        faults_at=sorted(rng.randrange(1, RECORDS_WANTED) for _ in range(faults)),
        close_early=rng.random() < 0.25,
        close_timeout=rng.choice((0.0, 0.05, 1.0)) if rng.random() < 0.3 else float("inf"),
        think=rng.choice((0.001, 0.004, 0.02)),
        sizes=rng.choice(((8, 20, 40), (8, 30, 120), (20, 60, 300), (10, 30, 1200))),
        slowest=rng.choice((0.002, 0.02, 0.1)),
        partial_writes=rng.choice((0.0, 0.0, 0.3)),
        interrupts=rng.choice((0.0, 0.0, 0.004)),
        delivery_checks=0.02,
    )


def grow_old(plan: Plan, rng: random.Random) -> None:
    """Change a plan so that brokers are of old releases, and go from one to another while they are used."""
    plan.features = {}
    if plan.mode != PLAIN and plan.options.get("compression_type") == "zstd":
        plan.changes = ("2.0", "2.1")  # the former does not know the codec
        plan.release = rng.choice(plan.changes)
        return
    if plan.mode != PLAIN:
        # Brokers of 0.11 remember one batch of a producer: what was sent to a newer leader may be unknown to them.
        plan.release = rng.choice(("0.11.0",) * 5 + _WITH_BATCHES)
        plan.changes = () if plan.release == "0.11.0" else _WITH_BATCHES
        return
    if plan.options.get("compression_type") == "zstd":
        plan.options["compression_type"] = rng.choice(("gzip", "snappy", "lz4"))
    plan.release = rng.choice(("0.9.0", "0.10.0", "0.10.2"))
    plan.changes = rng.choice(((), ("0.10.0", "0.10.2", "0.11.0", "1.1", "2.8", "4.3")))
    if rng.random() < 0.5:
        del plan.options["enable_idempotence"]  # it is switched off where brokers are too old
    if plan.release != "0.9.0":
        return
    if plan.changes or rng.random() < 0.5:
        plan.options["broker_version_fallback"] = "0.9.0"
        plan.changes = (*plan.changes, "0.9.0") if plan.changes else ()
    plan.max_block = 90.0  # until the first one is found out
    plan.options["delivery_timeout_ms"] = 60_000


def be_patient(plan: Plan, rng: random.Random) -> None:
    """Change a plan so that brokers may not answer for half a minute, and every record is delivered all the same."""
    plan.max_block = 90.0
    setup, longest = rng.choice(((200, 400), (1500, 3000), (10_000, 30_000)))
    request_timeout = rng.choice((1000, 30_000))
    plan.options |= {
        "socket_connection_setup_timeout_ms": setup,
        "socket_connection_setup_timeout_max_ms": longest,
        "request_timeout_ms": request_timeout,
        "delivery_timeout_ms": 120_000,
    }
    if plan.mode == IDEMPOTENT:
        del plan.options[
            "enable_idempotence"
        ]  # it is the default, which may be given up where brokers are old


def _options(rng: random.Random, mode: str, batch_size: int) -> dict[str, Any]:
    request_timeout = rng.choice((150, 400, 1000))
    linger = rng.choice((0, 3, 10))
    backoff = rng.choice((5, 20, 100))
    memory = rng.choice((4, 6, 12, 1000)) * max(batch_size, 400)
    options: dict[str, Any] = {
        "bootstrap_servers": "broker-0:9092",
        "client_id": "sim",
        "batch_size": batch_size,
        "linger_ms": linger,
        "buffer_memory": memory,
        "max_request_size": rng.choice((1500, 4000)),
        "request_timeout_ms": request_timeout,
        "delivery_timeout_ms": request_timeout + linger + rng.choice((0, 300, 2000, 20_000)),
        "retry_backoff_ms": backoff,
        "retry_backoff_max_ms": 4 * backoff,
        "reconnect_backoff_ms": 5,
        "reconnect_backoff_max_ms": 40,
        "socket_connection_setup_timeout_ms": 200,
        "socket_connection_setup_timeout_max_ms": 400,
        "metadata_max_age_ms": rng.choice((500, 5000, 60_000)),
        "connections_max_idle_ms": rng.choice((200, 60_000)),
        "max_in_flight_requests_per_connection": rng.choice((1, 2, 5)),
        "acks": "all",
    }
    if rng.random() < 0.15:
        options["compression_type"] = rng.choice(("gzip", "snappy", "lz4", "zstd"))
    if rng.random() < 0.08:
        options["retries"] = rng.choice((0, 1, 3)) if mode == PLAIN else rng.choice((1, 3))
    if mode == IDEMPOTENT:
        options["enable_idempotence"] = True
    if mode == PLAIN:
        options["enable_idempotence"] = False
        options["acks"] = rng.choice(("all", "all", "1", "0"))
        options["max_in_flight_requests_per_connection"] = rng.choice((1, 1, 1, 5))
        # Where nothing but muting keeps the order, leaders must be seen to move while a request is on its way.
        options["metadata_max_age_ms"] = rng.choice((40, 100, 500))
    if mode == TRANSACTIONAL:
        options["transactional_id"] = "t-0"
        options["transaction_timeout_ms"] = rng.choice((1500, 20_000, 20_000))
        options.pop("retries", None)
    return options


def stream(seed: int, name: str) -> random.Random:
    """A random source of its own for each part, so that one part's choices do not shift another's."""
    return random.Random(f"{seed} {name}")

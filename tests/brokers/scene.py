# SPDX-License-Identifier: Apache-2.0
"""What a case is given: a server, producers for it, and what was logged meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from brokers.records import Sent
from brokers.segments import Entry
from brokers.servers import Server
from brokers.traits import Traits
from penstock import Delivery, Producer, errors

TOPIC = "matrix"
_LIMIT = 60.0


class CaseFailed(Exception):
    """A case did not go as the release lets it."""


class Warnings(logging.Handler):
    """Keeps the warnings of a case."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


class Scene:
    """One case on one server. All cases of a server write to the same partition, one after the other."""

    def __init__(self, server: Server, traits: Traits) -> None:
        self.server = server
        self.traits = traits
        self.warnings = Warnings()
        self.repeats_allowed = False
        self.aborted: list[Sent] = []

    def default_producer(self) -> Producer:
        """A producer with default settings: it finds out by itself what the broker is."""
        return Producer(bootstrap_servers=self.server.bootstrap_servers)

    def producer(self, **options: object) -> Producer:
        """A producer that gives up after a minute, and is told the release where a broker cannot tell it."""
        chosen: dict[str, object] = {
            "bootstrap_servers": self.server.bootstrap_servers,
            "delivery_timeout_ms": int(_LIMIT * 1000),
        }
        if not self.traits.has_api_versions:
            chosen["broker_version_fallback"] = self.traits.version
        return Producer(None, **{**chosen, **options})

    def end(self) -> int:
        """The offset of the next record."""
        return self.server.end(TOPIC)

    def entries_from(self, offset: int) -> list[Entry] | None:
        """What was stored since then; None where the server has no files."""
        entries = self.server.entries(TOPIC)
        return None if entries is None else [entry for entry in entries if entry.first_offset >= offset]

    def send(self, producer: Producer, records: Iterable[Sent]) -> list[Sent]:
        """Send records, wait for all, and return them with the timestamps that they were given."""
        sent = list(records)
        return self.settle(sent, [send_one(producer, record) for record in sent])

    def settle(self, sent: list[Sent], deliveries: list[Delivery]) -> list[Sent]:
        """Wait until all are acknowledged."""
        done = []
        for record, delivery in zip(sent, deliveries, strict=True):
            metadata = delivery.result(timeout=_LIMIT)
            timestamp = metadata.timestamp if record.timestamp is None else record.timestamp
            done.append(Sent(record.key, record.value, record.headers, timestamp))
        return done

    def refused(self, what: Callable[[], object]) -> errors.KafkaError:
        """Do what the release cannot do: that must fail, with an error that names the release."""
        try:
            what()
        except errors.KafkaError as error:
            if self.traits.family not in str(error):
                raise CaseFailed(
                    f"the refusal does not name {self.traits.family}: {type(error).__name__}: {error}"
                ) from error
            return error
        raise CaseFailed(f"Kafka {self.traits.version} cannot do that, and nothing was said")

    def check(self, is_so: bool, text: str) -> None:
        """Fail the case unless it is so."""
        if not is_so:
            raise CaseFailed(text)

    def wait_for_offset(self, offset: int) -> None:
        """Wait until the broker has stored as many records."""
        deadline = time.monotonic() + _LIMIT
        while (end := self.end()) < offset:
            self.check(time.monotonic() < deadline, f"the log grew to offset {end} instead of {offset}")
            time.sleep(0.05)


def send_one(producer: Producer, record: Sent) -> Delivery:
    """Send it with what it has."""
    return producer.send(
        TOPIC,
        record.value,
        record.key,
        headers=record.headers or None,
        timestamp_ms=record.timestamp,
        partition=0,
    )

# SPDX-License-Identifier: Apache-2.0
"""The cases of the matrix. Each writes to the topic and returns what must be there, or shows a refusal.

A case checks what its producer tells. What was stored, and what others read, is compared by the matrix, for all cases
alike.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from brokers.records import Sent
from brokers.scene import CaseFailed, Scene, send_one
from brokers.traits import CODECS
from penstock import errors

_BROKER_LIMIT = 1_000_012  # message.max.bytes of every release, but for a few bytes
# TLS; SASL with bare tokens before 1.0, with SaslAuthenticate version 0 up to 2.1.
ACCESSES = (
    "ssl",
    "sasl_plaintext-plain",
    "sasl_ssl-plain",
    "sasl_ssl-scram-sha-256",
    "sasl_plaintext-scram-sha-512",
)
_TO_BE_FOUND_OUT = 10.0  # seconds, for a broker that cannot be asked
_AT_ONCE = 2.0  # with the option, on a machine that has other work to do
_MOMENTS = (1_500_000_000_123, 1_500_000_000_001, 1_600_000_000_999, 1_500_000_000_500)


@dataclass(frozen=True)
class Case:
    """A row of the matrix.

    Attributes:
        run: writes, and returns what must be stored, in order.
        codec: that the stored records must have.
    """

    name: str
    run: Callable[[Scene], list[Sent]]
    codec: str = "none"


def numbered(name: str, count: int, size: int = 60) -> list[Sent]:
    """Records that can be told apart, and that codecs can make smaller."""
    return [
        Sent(b"%s-%d" % (name.encode(), number % 17), (b"%s %d " % (name.encode(), number)).ljust(size, b"."))
        for number in range(count)
    ]


def defaults(scene: Scene) -> list[Sent]:
    begin = scene.end()
    with scene.default_producer() as producer:
        sent = scene.send(producer, numbered("defaults", 300))
        metrics = producer.metrics()
    told = [text for text in scene.warnings.texts if "idempotence" in text]
    if scene.traits.has_idempotence:
        scene.check(not told, f"a warning that is not true: {told}")
        new = scene.entries_from(begin)
        scene.check(new is None or all(entry.producer_id >= 0 for entry in new), "a batch has no producer id")
    else:
        scene.check(len(told) == 1, f"that idempotence is off must be said once: {scene.warnings.texts}")
        scene.check(scene.traits.family in told[0], f"the warning does not name the release: {told[0]}")
        names = [name for group in metrics.values() for name in group]
        scene.check(
            any("idempoten" in name for name in names), "metrics() do not tell that idempotence is off"
        )
    return sent


def first_contact(scene: Scene) -> list[Sent]:
    """How long it takes to find out what the broker is."""
    records = numbered("contact", 2)
    took = []
    sent = []
    for make, record in zip((scene.default_producer, scene.producer), records, strict=True):
        started = time.monotonic()
        with make() as producer:
            sent += scene.send(producer, [record])
            took.append(time.monotonic() - started)
    scene.check(took[0] < _TO_BE_FOUND_OUT, f"the first record took {took[0]:.1f} s")
    scene.check(took[1] < _AT_ONCE, f"with broker.version.fallback the first record took {took[1]:.1f} s")
    return sent


def codec(scene: Scene, name: str) -> list[Sent]:
    records = numbered(name, 3000)
    with scene.producer(compression_type=name, linger_ms=20) as producer:
        if name in scene.traits.codecs:
            return scene.send(producer, records)
        scene.refused(lambda: send_one(producer, records[0]).result(timeout=60))
        return []


def nulls(scene: Scene) -> list[Sent]:
    kinds = (None, b"", b"\x00", bytes(range(256)), "\u00e9\U0001f600".encode())
    with scene.producer() as producer:
        return scene.send(producer, [Sent(key, value) for key, value in itertools.product(kinds, kinds)])


def headers(scene: Scene) -> list[Sent]:
    pairs = (("trace", b"\x00\xff"), ("trace", b"again"), ("none", None), ("empty", b""), ("\u00e9", b"x"))
    with_headers = [Sent(b"h", b"headers %d" % count, pairs[:count]) for count in range(1, len(pairs) + 1)]
    plain = numbered("no-headers", 5)
    with scene.producer(linger_ms=20) as producer:
        if scene.traits.has_headers:
            return scene.send(producer, with_headers + plain)
        # The records beside them are written, also those of the same batch.
        deliveries = [send_one(producer, record) for record in plain]
        for record in with_headers:
            scene.refused(lambda record=record: send_one(producer, record).result(timeout=60))
        return scene.settle(plain, deliveries)


def timestamps(scene: Scene) -> list[Sent]:
    records = [Sent(b"t", b"at %d" % moment, timestamp=moment) for moment in _MOMENTS]
    with scene.producer() as producer:
        sent = scene.send(producer, records)
    told = [text for text in scene.warnings.texts if "timestamp" in text]
    if not scene.traits.has_timestamps:
        scene.check(len(told) == 1, f"that timestamps are lost must be said once: {scene.warnings.texts}")
        scene.check(scene.traits.family in told[0], f"the warning does not name the release: {told[0]}")
    else:
        scene.check(not told, f"a warning that is not true: {told}")
    return sent


def large(scene: Scene) -> list[Sent]:
    source = random.Random(1)
    fits, too_large = source.randbytes(900_000), source.randbytes(_BROKER_LIMIT + 100_000)
    with scene.producer(max_request_size=8 << 20, batch_size=16384) as producer:
        sent = scene.send(producer, [Sent(b"large", fits), Sent(b"small", b"beside it")])
        try:
            send_one(producer, Sent(b"too large", too_large)).result(timeout=60)
        except errors.MessageTooLargeError:
            return sent
        raise CaseFailed("the broker took more than message.max.bytes")


def in_order(scene: Scene) -> dict[str, int]:
    """Options for a case with retries: without idempotence only one request at a time keeps the order."""
    return {} if scene.traits.has_idempotence else {"max_in_flight_requests_per_connection": 1}


def splits(scene: Scene) -> list[Sent]:
    source = random.Random(2)
    records = [Sent(b"%d" % number, source.randbytes(9_000)) for number in range(300)]
    big = {"batch_size": 4 << 20, "max_request_size": 8 << 20, "linger_ms": 2000}
    with scene.producer(compression_type="gzip", **big, **in_order(scene)) as producer:
        deliveries = [send_one(producer, record) for record in records]
        producer.flush(timeout=60)
        sent = scene.settle(records, deliveries)
        totals = producer.metrics()["producer-metrics"]
    scene.check(totals["batch-split-total"] > 0, "no batch was split")
    return sent


def restart(scene: Scene) -> list[Sent]:
    """The broker is stopped and started while records are sent."""
    scene.server.check_restart()
    scene.repeats_allowed = not scene.traits.has_idempotence
    records = numbered("restart", 4000)
    if scene.traits.has_timestamps:
        # Their own, as a broker that has a batch already answers with the batch's largest timestamp. Of today: when an
        # old broker starts, it forgets producers whose last record has a timestamp of more than a week ago.
        now = int(time.time() * 1000)
        records = [replace(record, timestamp=now + number) for number, record in enumerate(records)]
    ended = threading.Event()
    with scene.producer(linger_ms=2, delivery_timeout_ms=120_000, **in_order(scene)) as producer:
        deliveries = []

        def send_slowly() -> None:
            try:
                for number, record in enumerate(records):
                    deliveries.append(send_one(producer, record))
                    if number % 4 == 0:
                        ended.wait(0.005)
            finally:
                ended.set()

        sender = threading.Thread(target=send_slowly)
        sender.start()
        try:
            scene.wait_for_offset(scene.end() + 100)
            scene.server.restart()
        finally:
            sender.join(120)
        scene.check(len(deliveries) == len(records), f"only {len(deliveries)} records were accepted")
        return scene.settle(records, deliveries)


def acks(scene: Scene, value: str) -> list[Sent]:
    begin, records = scene.end(), numbered(f"acks-{value}", 500)
    with scene.producer(acks=value, enable_idempotence=False) as producer:
        sent = scene.send(producer, records)
        # With acks=0 before the connection is closed: brokers before 0.11 drop requests that they have not begun then.
        scene.wait_for_offset(begin + len(records))
    return sent


def idempotence(scene: Scene) -> list[Sent]:
    records = numbered("idempotence", 1000)
    begin = scene.end()
    with scene.producer(enable_idempotence=True) as producer:
        if not scene.traits.has_idempotence:
            scene.refused(lambda: send_one(producer, records[0]).result(timeout=60))
            return []
        sent = scene.send(producer, records)
    next_number = 0
    for entry in scene.entries_from(begin) or ():
        scene.check(entry.producer_id >= 0, "a batch has no producer id")
        scene.check(entry.base_sequence == next_number, f"a batch has number {entry.base_sequence}")
        next_number += entry.last_offset - entry.first_offset + 1
    return sent


def transactions(scene: Scene) -> list[Sent]:
    with scene.producer(transactional_id=f"matrix-{scene.traits.version}") as producer:
        if not scene.traits.has_idempotence:
            scene.refused(producer.init_transactions)
            return []
        producer.init_transactions()
        with producer.transaction():
            first = scene.send(producer, numbered("committed-1", 50))
        producer.begin_transaction()
        scene.aborted = scene.send(producer, numbered("aborted", 50))
        producer.abort_transaction()
        with producer.transaction():
            last = scene.send(producer, numbered("committed-2", 50))
    return [*first, *scene.aborted, *last]


def secured(scene: Scene, access: str) -> list[Sent]:
    options = {name.replace(".", "_"): value for name, value in scene.server.options(access).items()}
    with scene.producer(**options) as producer:
        return scene.send(producer, numbered(access, 100))


CASES = (
    Case("default settings", defaults),
    Case("first contact", first_contact),
    *(Case(f"codec {name}", partial(codec, name=name), name) for name in CODECS),
    Case("keys and nulls", nulls),
    Case("headers", headers),
    Case("timestamps", timestamps),
    Case("large records", large),
    Case("splits", splits, "gzip"),
    Case("retries over a restart", restart),
    *(Case(f"acks {value}", partial(acks, value=value)) for value in ("0", "1", "all")),
    Case("idempotence", idempotence),
    Case("transactions", transactions),
    *(Case(f"access {name}", partial(secured, access=name)) for name in ACCESSES),
)

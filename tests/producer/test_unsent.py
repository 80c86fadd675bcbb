# SPDX-License-Identifier: Apache-2.0
"""A batch that is refused before it was sent fails alone: the producer, its numbers and all others go on.

Records go to three partitions: `good` 0 at broker 0, `good` 1 and `bad` 0 at broker 1. Either `bad` cannot be sent, or
nothing can be sent to broker 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from producer.fakes_core import BrokenCodec
from producer.fakes_txn import ClusterRig

from penstock.errors import KafkaError, MessageTooLargeError, UnsupportedVersionError
from penstock.producer.guarantee.transactions.states import TxnState
from penstock.producer.io import converting
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.protocol.messages import INIT_PRODUCER_ID, PRODUCE
from penstock.protocol.requests import NodeApiVersions
from penstock.records.legacy.errors import LegacyFormatError, LegacyFormatReason
from penstock.testing.faults import Fault

MODES: dict[str, dict[str, Any]] = {
    "plain": {"enable_idempotence": False},
    "idempotent": {"enable_idempotence": True},
    "transactional": {"transactional_id": "x"},
}
Undo = Callable[[], object]


def zstd(rig: ClusterRig, _: pytest.MonkeyPatch) -> Undo:
    """The leader does not know the codec."""
    rig.kafka.set_release(1, "2.0")
    return lambda: rig.kafka.set_release(1, "2.8")


def numbers(rig: ClusterRig, _: pytest.MonkeyPatch) -> Undo:
    """The leader does not know the numbers that the user asked for."""
    rig.kafka.set_release(1, "0.10.2")
    return lambda: rig.kafka.set_release(1, "2.8")


def version(rig: ClusterRig, patch: pytest.MonkeyPatch) -> Undo:
    """The leader has no version of the request that this client knows."""
    pick, refusing = NodeApiVersions.pick, [True]

    def pick_or_raise(versions: Any, api: Any, *rest: Any) -> int:
        if refusing and api is PRODUCE and versions is rig.parts.client.api_versions(1):
            raise UnsupportedVersionError("no common version")
        return pick(versions, api, *rest)

    patch.setattr(NodeApiVersions, "pick", pick_or_raise)
    rig.kafka.drop_connections()  # what was picked is kept with the connection
    return refusing.clear


def sealing(rig: ClusterRig, _: pytest.MonkeyPatch) -> Undo:
    """The batch cannot be compressed."""
    sealer = rig.parts.accumulator.sealer
    sound, sealer.codec = sealer.codec, BrokenCodec(sealer.codec, b"refused")
    return lambda: setattr(sealer, "codec", sound)


def request(rig: ClusterRig, patch: pytest.MonkeyPatch) -> Undo:
    """The batch cannot be a part of any request."""
    topic_id = ClusterSnapshot.topic_id
    wrong = [b"short"]
    patch.setattr(
        ClusterSnapshot,
        "topic_id",
        lambda known, topic: wrong[0] if wrong and topic == "bad" else topic_id(known, topic),
    )

    def undo() -> None:
        wrong.clear()
        rig.parts.metadata.snapshot = replace(rig.parts.metadata.snapshot)  # what was looked up in it is kept

    return undo


WAYS = {
    zstd: (UnsupportedVersionError, False),
    numbers: (UnsupportedVersionError, False),
    version: (UnsupportedVersionError, False),
    sealing: (KafkaError, True),
    request: (KafkaError, True),
}


def learn(rig: ClusterRig) -> None:
    """Let the producer learn what has changed."""
    rig.run_for(0.1)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_for(1)


def rig_of(mode: str, way: Any = None, release: str = "2.8") -> ClusterRig:
    rig = ClusterRig(
        2,
        release=release,
        compression_type="none" if way is numbers else "zstd",
        linger_ms=5,
        retry_backoff_ms=10,
        retry_backoff_max_ms=10,
        **MODES[mode],
    )
    rig.kafka.assign_topic("good", [[0], [1]])
    rig.kafka.assign_topic("bad", [[1]])
    if mode == "transactional":
        rig.kafka.move_transaction_coordinator("x", 0)
        rig.init()
        rig.begin()
    before = [
        rig.send(*place, partition=at)
        for *place, at in (("good", b"-", 0), ("good", b"-", 1), ("bad", b"-", 0))
    ]
    rig.deliver(*before)
    return rig


@pytest.mark.parametrize(
    ("way", "mode", "release"),
    [
        *((way, mode, "2.8") for way in WAYS for mode in MODES if way is not numbers or mode != "plain"),
        (sealing, "transactional", "4.3"),
        (request, "transactional", "4.3"),
    ],
)
def test_a_batch_that_cannot_be_sent_fails_alone(
    way: Any, mode: str, release: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_of(mode, way, release)
    free = rig.available_memory
    undo = way(rig, monkeypatch)
    learn(rig)
    told: list[int] = []
    refused = [
        rig.send("bad", b"refused", partition=0, on_delivery=lambda *_, at=at: told.append(at))
        for at in range(3)
    ]
    others = [rig.send("good", b"a", partition=partition) for partition in (0, 1)]
    rig.deliver(*refused, *others)
    kind, only_bad = WAYS[way]
    for delivery in refused:
        assert type(delivery.exception(0)) is kind
        assert not delivery.exception(0).fatal
    assert told == [0, 1, 2]
    if mode != "transactional":  # which must be aborted now
        assert others[0].exception(0) is None
        assert (others[1].exception(0) is None) == only_bad
    assert rig.available_memory == free
    assert not rig.parts.accumulator.has_incomplete()
    undo()
    learn(rig)
    if mode == "transactional":
        with pytest.raises(KafkaError):
            rig.commit()
        assert rig.state is TxnState.ABORTABLE_ERROR
        rig.abort()
        rig.begin()
    after = [rig.send(topic, b"after", partition=at) for topic, at in (("bad", 0), ("good", 0), ("good", 1))]
    rig.deliver(*after)
    if mode == "transactional":
        rig.commit()
    assert rig.values("bad") == ([b"after"] if mode == "transactional" else [b"-", b"after"])
    if mode != "plain":
        log = [batch for batch in rig.kafka.partition("bad", 0).log.batches if not batch.is_control]
        # Those of the refused batch were free. In the newer protocol each transaction has an epoch, and begins with 0.
        starts_anew = release == "4.3"
        assert [batch.base_sequence for batch in log] == [0, not starts_anew]
        assert len({batch.producer_epoch for batch in log}) == 1 + starts_anew
        assert len(rig.asked(INIT_PRODUCER_ID)) == 1


def test_what_was_sent_before_it_was_refused_is_in_doubt() -> None:
    """Its numbers are not given to others: the first leader may have written it."""
    rig = rig_of("idempotent")
    rig.kafka.assign_topic("moves", [[0, 1]])
    rig.deliver(rig.send("moves", b"-", partition=0))
    rig.kafka.set_release(1, "2.0")
    rig.kafka.faults.add(Fault(api=PRODUCE, cut="after"))
    delivery = rig.send("moves", b"a", partition=0)
    rig.run_until(lambda: len(rig.values("moves")) == 2)
    rig.kafka.move_leader("moves", 0, 1)
    rig.deliver(delivery)
    assert "An earlier attempt to send it may have written it" in str(delivery.exception(0))
    rig.kafka.move_leader("moves", 0, 0)
    rig.run_for(1)  # it has asked who leads the partition now
    rig.deliver(rig.send("moves", b"b", partition=0))
    assert rig.values("moves") == [b"-", b"a", b"b"]


def test_a_message_set_that_would_be_too_large_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = ClusterRig(1, release="0.10.2", linger_ms=5, enable_idempotence=False)
    convert = converting.convert

    def convert_small(batch: Any, *rest: Any) -> Any:
        if len(batch) > 300:
            raise LegacyFormatError("too large", LegacyFormatReason.SIZE)
        return convert(batch, *rest)

    monkeypatch.setattr(converting, "convert", convert_small)
    sent = [rig.send("t", bytes([65 + at]) * (50 if at else 500), partition=0) for at in range(4)]
    rig.deliver(*sent)
    assert isinstance(sent[0].exception(0), MessageTooLargeError)
    assert rig.values() == [bytes([65 + at]) * 50 for at in (1, 2, 3)]

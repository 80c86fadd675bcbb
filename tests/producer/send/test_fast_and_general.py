# SPDX-License-Identifier: Apache-2.0
"""The fast path, the send path and its steps take the same calls and must come to the same end, whatever the calls."""

from __future__ import annotations

import random
from typing import Any

import pytest
from producer.fakes_sender import Rig, produced

from penstock.errors import KafkaError

CALLS = 250


def random_call(rng: random.Random) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of send(), most of them good."""
    topic = rng.choice(["a", "a", "a", "b"])
    value = rng.choice(
        [
            None,
            b"",
            bytes(rng.randrange(300)),
            bytearray(rng.randrange(300)),
            bytes(1400),
            bytes(3000),
            "text",
            7,
        ]
    )
    key = rng.choice([None, None, b"", b"k%d" % rng.randrange(9), "text"])
    more: dict[str, Any] = {}
    if rng.random() < 0.3:
        more["partition"] = rng.choice([0, 1, 2, 2, -1, True, "0"])
    if rng.random() < 0.3:
        more["timestamp_ms"] = rng.choice([0, 17, 2**40, -1, True, 2**63])
    if rng.random() < 0.3:
        more["headers"] = rng.choice(
            [
                [],
                (),
                {},
                [("h", b"1")],
                {"h": None, "i": b"2"},
                [["h", b"1"]],
                {"h": bytearray(b"1")},
                {1: b""},
                [("h", bytes(900))],
                [("h", "text")],
                [("h", b"1", b"2")],
                5,
                "h",
            ]
        )
    return (topic, value, key), more


class Side:
    """A producer, and what became of the calls made to it."""

    def __init__(self, way: str, **options: Any) -> None:
        self.rig = Rig(max_block_ms=50, max_request_size=2000, linger_ms=5, **options)
        self.rig.know("a", partitions=3)
        self.rig.know("b", partitions=3)
        self.rig.parts.fast_path.enabled = way == "fast path"
        self.rig.parts.send_path.accepts = way == "send path"
        self.outcomes: list[Any] = []
        self.deliveries: list[Any] = []
        self.told: list[Any] = []
        self.written: dict[tuple[str, int], list[Any]] = {}

    def call(self, args: tuple[Any, ...], more: dict[str, Any], *, follow: bool) -> None:
        number = len(self.outcomes)
        if follow:
            more = more | {"on_delivery": lambda _metadata, error: self.told.append((number, error))}
        try:
            self.deliveries.append(self.rig.send(*args, **more))
        except (KafkaError, TypeError, ValueError) as error:
            self.outcomes.append((type(error), str(error)))
        else:
            self.outcomes.append("accepted")

    def answer(self) -> None:
        """Let time pass, and acknowledge whatever has been sent."""
        self.rig.run_for(0.006)
        while self.rig.waiting():
            for batch in produced(self.rig.cluster, self.rig.waiting()[0]):
                self.written.setdefault((batch.topic, batch.partition), []).append(
                    [(record.timestamp, record.key, record.value, record.headers) for record in batch.records]
                )
            self.rig.answer()
            self.rig.settle(3)


@pytest.mark.parametrize(
    "options", [{}, {"compression_type": "gzip"}, {"buffer_memory": 4096}, {"partitioner": "crc32"}], ids=str
)
@pytest.mark.parametrize("seed", range(12))
def test_random_calls_end_alike(seed, options):
    fast, *others = sides = [
        Side(way, batch_size=1024, **options) for way in ("fast path", "send path", "steps")
    ]
    rng = random.Random(seed)
    for _ in range(CALLS):
        args, more = random_call(rng)
        follow, pause = rng.random() < 0.2, rng.random() < 0.1
        for side in sides:
            side.call(args, more, follow=follow)
            if pause:
                side.answer()
    for side in sides:
        side.answer()
        side.answer()
    assert fast.outcomes.count("accepted") > CALLS / 8
    for side in others:
        assert side.outcomes == fast.outcomes
        assert side.written == fast.written
        assert side.told == fast.told
        assert [each.result(0) for each in side.deliveries] == [each.result(0) for each in fast.deliveries]
        assert side.rig.available_memory == fast.rig.available_memory == fast.rig.config.buffer_memory

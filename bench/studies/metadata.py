# SPDX-License-Identifier: Apache-2.0
"""What a Metadata response of 100,000 partitions costs the I/O thread: the first, one that says the same, a new one.

The topics have been sent to, so the producer has a queue for each partition. All on one thread without a broker
(`bench.in_memory`), whose responses were encoded before; each round is a process of its own. What is told is CPU time
of the turns of the I/O thread, from the question until the response counts.

This module is also the program that does so; see `main`.
"""

from __future__ import annotations

import gc
import json
import struct
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench.budget import Plan
from bench.in_memory import InlineProducer
from bench.model import Sample
from bench.process import run_measured
from bench.studies import Context

PARTITIONS = 100_000
TOPICS = (10, 1_000)
ROUNDS = 5
FIRST, SAME, NEW = "first", "same", "new"
_BROKERS = 10
_ROUND_SECONDS = 6.0
_ROUND_TIMEOUT_SECONDS = 120.0
_REQUEST = struct.Struct(">ihhi")  # size, API key, version, correlation id
_RESPONSE = struct.Struct(">iib")  # size, correlation id, no tagged fields


class Metadata:
    """CPU time of a response, and of its longest turn."""

    name = "metadata"
    title = (
        f"CPU of the I/O thread for a Metadata response of {PARTITIONS:,} partitions, and its longest turn"
    )
    only_by_name = False
    needs_broker = False

    def missing(self) -> str | None:
        return None

    def seconds(self, plan: Plan) -> float:
        del plan
        return ROUNDS * len(TOPICS) * _ROUND_SECONDS

    def run(self, context: Context) -> None:
        for number in range(1, ROUNDS + 1):
            for topics in TOPICS:
                worker = [sys.executable, "-m", "bench.studies.metadata", str(topics)]
                found = json.loads(run_measured(worker, _ROUND_TIMEOUT_SECONDS).output)
                for case, turns in found.items():
                    name = f"metadata-{topics}-{case}"
                    for measure, value in (("cpu_ms", sum(turns)), ("turn_ms", max(turns))):
                        context.results.samples.append(Sample(name, "penstock", number, measure, value))
                told = ", ".join(
                    f"{case} {sum(turns):.1f} ms in {len(turns)} turns (longest {max(turns):.1f})"
                    for case, turns in found.items()
                )
                context.tell(f"  round {number}  {topics:>5,} topics: {told}")


class _Responses:
    """Answers each question for metadata with bytes that were made before."""

    def __init__(self, inline: InlineProducer) -> None:
        self._answer = inline.broker.answer
        self.body = b""
        inline.broker.answer = self.answer  # type: ignore[method-assign]

    def answer(self, request: bytes, session: Any) -> bytes:
        from penstock.protocol.messages import METADATA

        _, key, version, correlation_id = _REQUEST.unpack_from(request)
        if key != METADATA.key:
            return self._answer(request, session)
        if version != METADATA.max_version:
            raise RuntimeError(f"Metadata version {version}: the answers are in {METADATA.max_version}")
        return _RESPONSE.pack(len(self.body) + _RESPONSE.size - 4, correlation_id, 0) + self.body


def main(arguments: Sequence[str]) -> None:
    """Take a first response, the same once more, and a new one; print the CPU milliseconds of their turns."""
    count = int(arguments[0])
    names = [f"bench-metadata-{number}" for number in range(count)]
    inline = InlineProducer({}, "bench-metadata", 6)
    responses, parts = _Responses(inline), inline._parts  # noqa: SLF001 - topics are used without records
    now = parts.clock.now
    for name in names:
        parts.metadata.want_topic(name, now())
    responses.body = _response(names, 1)
    found = {FIRST: _turns(inline)}
    for name in names:
        parts.accumulator.topic(name, PARTITIONS // count)
    found[SAME] = _turns(inline)
    responses.body = _response(names, 2)
    found[NEW] = _turns(inline)
    inline.close()
    print(json.dumps(found))


def _response(names: Sequence[str], epoch: int) -> bytes:
    """A response in which every leader has this epoch."""
    from penstock.protocol.codec import encode_response_body
    from penstock.protocol.messages import METADATA

    copies = [[(first + more) % _BROKERS for more in range(3)] for first in range(_BROKERS)]
    partitions = [
        {
            "partition_index": number,
            "leader_id": number % _BROKERS,
            "leader_epoch": epoch,
            "replica_nodes": copies[number % _BROKERS],
            "isr_nodes": copies[number % _BROKERS],
        }
        for number in range(PARTITIONS // len(names))
    ]
    topics = [
        {"name": name, "topic_id": number.to_bytes(16), "partitions": partitions}
        for number, name in enumerate(names, 1)
    ]
    brokers = [{"node_id": number, "host": "broker", "port": 9092} for number in range(_BROKERS)]
    return b"".join(
        map(
            bytes,
            encode_response_body(METADATA, METADATA.max_version, {"brokers": brokers, "topics": topics}),
        )
    )


def _turns(inline: InlineProducer) -> list[float]:
    """Have the broker asked; milliseconds of CPU of each turn until the response counts."""
    parts, heard, took = inline._parts, [], []  # noqa: SLF001 - turns are taken from inside
    parts.metadata.on_snapshot(heard.append)
    parts.metadata.refresh()
    gc.collect()
    while not heard:
        started = time.thread_time_ns()
        parts.sender.run_once(parts.clock.now(), may_rest=True)
        took.append((time.thread_time_ns() - started) / 1e6)
    return took


if __name__ == "__main__":
    main(sys.argv[1:])

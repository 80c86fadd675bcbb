# SPDX-License-Identifier: Apache-2.0
"""Topics of a measurement, and how many records they have.

A contender that loses records must not look fast, so every run is counted where it ends: at the broker.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from bench.asking import TIMEOUT_SECONDS, ask
from bench.model import BenchError
from penstock import Producer
from penstock.protocol.messages import CREATE_TOPICS, LIST_OFFSETS
from penstock.protocol.schema import INT16, INT32, STRING, ApiSchema, Array, array_of_structs, field, struct

# Any versions that the broker has would do.
_CREATE_VERSION = 5
_DELETE_VERSION = 1
_OFFSETS_VERSION = 1  # which brokers have since 0.10.1
_LATEST = -1  # a timestamp that stands for the end
_LOG_SECONDS = 0.03  # to make one, on a slow machine that has other work

# The producer never removes a topic, so its protocol does not have this one.
_DELETE_TOPICS = ApiSchema(
    20,
    "DeleteTopics",
    1,
    1,
    flexible_from=4,
    request=struct(field("topic_names", Array(STRING)), field("timeout_ms", INT32)),
    response=struct(
        field("throttle_time_ms", INT32),
        field("responses", array_of_structs(field("name", STRING), field("error_code", INT16))),
    ),
)


def create_topic(server: str, name: str, partitions: int, config: Mapping[str, object]) -> None:
    """Make a topic with one replica, and wait until it has its leaders.

    Raises:
        BenchError: the broker refuses, or that took too long.
    """
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": option, "value": str(value)} for option, value in config.items()],
    }
    body = {"topics": [topic], "timeout_ms": int(1000 * TIMEOUT_SECONDS), "validate_only": False}
    for one in ask(server, CREATE_TOPICS, _CREATE_VERSION, body)["topics"]:
        if one["error_code"] != 0:
            raise BenchError(f"no topic {name}: error {one['error_code']}, {one['error_message']}")
    await_leaders(server, name, partitions)


def write_everywhere(server: str, name: str, partitions: int) -> None:
    """Write a record to each partition: with the first one a broker makes files, which takes longer than a run."""
    with Producer(bootstrap_servers=server) as producer:
        for number in range(partitions):
            producer.send(name, b"", partition=number)


def await_leaders(server: str, name: str, partitions: int) -> None:
    """Wait until the broker leads every partition of a topic.

    Raises:
        BenchError: that took too long.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS + partitions * _LOG_SECONDS
    while True:
        try:
            count_records(server, name, partitions)
            return
        except BenchError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def delete_topics(server: str, names: Iterable[str]) -> None:
    """Remove topics.

    Raises:
        BenchError: the broker refuses.
    """
    body = {"topic_names": list(names), "timeout_ms": int(1000 * TIMEOUT_SECONDS)}
    for one in ask(server, _DELETE_TOPICS, _DELETE_VERSION, body)["responses"]:
        if one["error_code"] != 0:
            raise BenchError(f"topic {one['name']} was not removed: error {one['error_code']}")


def count_records(server: str, topic: str, partitions: int) -> int:
    """The sum of the end offsets; the broker must lead every partition of the topic.

    Raises:
        BenchError: the broker did not tell.
    """
    return sum(end_offsets(server, topic, partitions).values())


def end_offsets(server: str, topic: str, partitions: int) -> dict[int, int]:
    """The offset after the last record, by partition; control records of transactions have offsets too.

    Raises:
        BenchError: the broker did not tell.
    """
    wanted = [{"partition_index": number, "timestamp": _LATEST} for number in range(partitions)]
    body = {"replica_id": -1, "topics": [{"name": topic, "partitions": wanted}]}
    found: dict[int, int] = {}
    for one in ask(server, LIST_OFFSETS, _OFFSETS_VERSION, body)["topics"]:
        for partition in one["partitions"]:
            number = partition["partition_index"]
            if partition["error_code"] != 0:
                raise BenchError(f"no end offset of {topic}-{number}: error {partition['error_code']}")
            found[number] = partition["offset"]
    return found

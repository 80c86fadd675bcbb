# SPDX-License-Identifier: Apache-2.0
"""Readers that are not ours: confluent-kafka, and the console consumer of the broker's own release."""

from __future__ import annotations

import secrets
import subprocess
import time

from confluent_kafka import Consumer, KafkaError, TopicPartition

from brokers.records import Found
from brokers.servers import QUIET
from brokers.traits import Traits
from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM

_LIMIT = 60.0
_CREATE_TIME = 1
_OLD_CONSOLE = "kafka.tools.ConsoleConsumer"
_CONSOLE = "org.apache.kafka.tools.consumer.ConsoleConsumer"


class ReadingFailed(Exception):
    """A reader could not read."""


def read_by_another_client(
    servers: str, traits: Traits, topic: str, end: int, *, committed: bool = False, partition: int = 0
) -> list[Found]:
    """Everything in a partition of a topic up to an offset, by confluent-kafka."""
    # It cannot find out by itself what does not answer.
    old = {"api.version.request": False, "broker.version.fallback": traits.version}
    reader = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "matrix",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "check.crcs": True,
            **QUIET,
            **({} if traits.has_api_versions else old),
        }
    )
    found: list[Found] = []
    deadline = time.monotonic() + _LIMIT
    try:
        reader.assign([TopicPartition(topic, partition, 0)])
        while time.monotonic() < deadline:
            message = reader.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                kind, timestamp = message.timestamp()
                found.append(
                    Found(
                        message.key(),
                        message.value(),
                        tuple(message.headers() or ()),
                        timestamp if kind == _CREATE_TIME else None,
                        message.offset(),
                    )
                )
            elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                return found
            elif error.code() != KafkaError._PARTITION_EOF:
                raise ReadingFailed(f"confluent-kafka: {error}")
    finally:
        reader.close()
    raise ReadingFailed(f"confluent-kafka read {len(found)} records, and not up to offset {end}")


def read_by_the_console(
    cluster: DevCluster, traits: Traits, topic: str, count: int, *, committed: bool = False
) -> list[Found]:
    """The first records of a topic, by the console consumer of the release; it does not tell all about them."""
    stem = secrets.token_hex(8)
    field, line = f"<{stem}-field>", f"<{stem}-line>"
    shown = {"print.key": "true", "key.separator": field, "line.separator": line}
    if traits.has_timestamps:
        shown["print.timestamp"] = "true"
    null = "null"
    if traits.number >= (2, 7):
        null = f"<{stem}-null>"
        shown |= {"print.headers": "true", "headers.separator": f"<{stem}-header>", "null.literal": null}
    option = "--formatter-property" if traits.number >= (4,) else "--property"
    args = [
        *(("--new-consumer",) if traits.number < (0, 11) else ()),
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(count), "--timeout-ms", str(int(_LIMIT * 1000))),
        *(("--isolation-level", "read_committed") if committed else ()),
        *(word for name, value in shown.items() for word in (option, f"{name}={value}")),
    ]
    tool = _CONSOLE if traits.number >= (3, 8) else _OLD_CONSOLE
    command = cluster.tool_command(tool, *args, jvm=QUICK_JVM)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=3 * _LIMIT, check=False
    )
    lines = done.stdout.split(line.encode())[:-1]
    if done.returncode != 0 or len(lines) != count:
        end = done.stderr.decode(errors="replace").strip()[-1500:]
        raise ReadingFailed(f"the console consumer read {len(lines)} records instead of {count}: {end}")
    return [_parse_line(text, traits, field.encode(), null.encode(), f"<{stem}-header>") for text in lines]


def _parse_line(text: bytes, traits: Traits, field: bytes, null: bytes, between: str) -> Found:
    fields = text.split(field)
    timestamp = headers = None
    if traits.has_timestamps:
        kind, _, number = fields.pop(0).decode().partition(":")
        timestamp = int(number) if kind == "CreateTime" else None
    if traits.number >= (2, 7):
        printed = fields.pop(0)
        pairs = [] if printed == b"NO_HEADERS" else printed.split(between.encode())
        headers = tuple(_header(pair, null) for pair in pairs)
    key, value = (None if each == null else each for each in fields)
    return Found(key, value, headers, timestamp)


def _header(pair: bytes, null: bytes) -> tuple[str, bytes | None]:
    name, _, value = pair.partition(b":")
    return name.decode(), None if value == null else value

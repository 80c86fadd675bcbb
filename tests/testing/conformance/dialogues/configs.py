# SPDX-License-Identifier: Apache-2.0
"""DescribeConfigs: the options of topics and brokers."""

from __future__ import annotations

from testing.conformance.cases import Cases
from testing.conformance.raw import Body, Raw

from penstock.protocol.messages import CREATE_TOPICS, DESCRIBE_CONFIGS
from penstock.testing import Code

TOPIC, BROKER = 2, 4

CONFIGS = Cases(DESCRIBE_CONFIGS)


def describe(raw: Raw, version: int, *names: str, kind: int = TOPIC, keys: list[str] | None = None) -> None:
    rows = [{"resource_type": kind, "resource_name": name, "configuration_keys": keys} for name in names]
    raw.call(DESCRIBE_CONFIGS, {"resources": rows}, version, only=_sorted)


def _sorted(answer: Body) -> Body:
    """Kafka lists options and resources in the order of a hash."""
    answer["results"].sort(key=lambda row: row["resource_name"])
    for result in answer["results"]:
        result["configs"].sort(key=lambda row: row["name"])
    return answer


@CONFIGS.case("all options", 1, 2, 3, 4)
def every_option(raw: Raw, version: int) -> None:
    describe(raw, version, raw.topic)


@CONFIGS.case("some options", 1, 4)
def some_options(raw: Raw, version: int) -> None:
    describe(
        raw,
        version,
        raw.topic,
        keys=["cleanup.policy", "min.insync.replicas", "retention.ms", "max.message.bytes", "no.such.option"],
    )


@CONFIGS.case("an empty list of options")
def no_option(raw: Raw, version: int) -> None:
    describe(raw, version, raw.topic, keys=[])


@CONFIGS.case("options set for the topic")
def own_options(raw: Raw, version: int) -> None:
    name = f"{raw.topic}-own"
    options = {"cleanup.policy": "compact", "min.insync.replicas": "2", "retention.ms": "5"}
    rows = [{"name": key, "value": value} for key, value in options.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": rows}
    with raw.unrecorded():
        raw.call(CREATE_TOPICS, {"topics": [topic]})
    describe(raw, version, name)


@CONFIGS.case("several topics, one of them missing", 1, 4)
def several(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        describe(raw, version, raw.topic, f"{raw.topic}-missing", keys=["cleanup.policy"])


@CONFIGS.case("illegal names")
def illegal(raw: Raw, version: int) -> None:
    for name in ("a b", "", "..", "n" * 250):
        describe(raw, version, name)


@CONFIGS.case("another broker")
def another_broker(raw: Raw, version: int) -> None:
    describe(raw, version, "4711", kind=BROKER)
    describe(raw, version, "one", kind=BROKER)


@CONFIGS.case("what is set for all brokers")
def all_brokers(raw: Raw, version: int) -> None:
    describe(raw, version, "", kind=BROKER, keys=["num.partitions"])


@CONFIGS.case("another kind of resource")
def another_kind(raw: Raw, version: int) -> None:
    describe(raw, version, "x", kind=99)


@CONFIGS.case("nothing")
def nothing(raw: Raw, version: int) -> None:
    describe(raw, version)

# SPDX-License-Identifier: Apache-2.0
"""Which option an error is about, for programs that show it beside its field."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from penstock import Producer, errors
from penstock.spark.options import parse_options
from penstock.spark.pipeline.check import load_pipeline

SERVERS = {"kafka.bootstrap.servers": "a:1"}


@pytest.mark.parametrize(
    ("config", "option"),
    [
        ({"bootstrap.servers": "a:1", "lingre.ms": 5}, "lingre.ms"),
        ({"bootstrap.servers": "a:1", "linger_ms": "soon"}, "linger.ms"),
        ({"bootstrap.servers": "a:1", "acks": "some"}, "acks"),
        ({"bootstrap.servers": "a:1", "linger.ms": 5, "linger_ms": 6}, "linger.ms"),
        ({"bootstrap.servers": "a:1", "delivery.timeout.ms": 1}, "delivery.timeout.ms"),
        (
            {"bootstrap.servers": "a:1", "ssl.enabled.protocols": "SSLv3", "security.protocol": "SSL"},
            "ssl.enabled.protocols",
        ),
        ({"bootstrap.servers": "a:1", "key.serializer": "nowhere:x"}, "key.serializer"),
        (
            {"bootstrap.servers": "a:1", "compression.type": "gzip", "compression.gzip.level": 99},
            "compression.gzip.level",
        ),
        ({"bootstrap.servers": "a:1", "metadata.fetch.timeout.ms": "x"}, "metadata.fetch.timeout.ms"),
        ({"bootstrap.servers": "a"}, "bootstrap.servers"),
        ({"bootstrap.servers": "nosuch.invalid:1"}, "bootstrap.servers"),
        ({}, "bootstrap.servers"),
        ({"bootstrap.servers": "a:1", "enable.idempotence": True, "acks": "1"}, None),
        ({"bootstrap.servers": "a:1", "max.in.flight.requests.per.connection": 9}, None),
        ({"bootstrap.servers": "a:1", "partitioner.rack.aware": True}, None),
    ],
)
def test_a_wrong_option_is_named_for_programs(config: dict[str, object], option: str | None) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Producer(config)
    assert caught.value.option == option
    assert caught.value.twin().option == option
    assert pickle.loads(pickle.dumps(caught.value)).option == option
    assert caught.value.options[: 1 if option else 0] == (() if option is None else (option,))


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({"linger.ms": "soon"}, ["linger.ms"]),
        ({"enable.idempotence": True, "acks": "1"}, ["enable.idempotence", "acks"]),
        ({"enable.idempotence": True, "acks": 0, "retries": 0}, ["enable.idempotence", "retries", "acks"]),
        (
            {"max.in.flight.requests.per.connection": 9},
            ["max.in.flight.requests.per.connection", "enable.idempotence"],
        ),
        ({"partitioner.rack.aware": True}, ["partitioner.rack.aware", "client.rack"]),
        ({"transactional.id": "t", "enable.idempotence": False}, ["transactional.id", "enable.idempotence"]),
        ({"linger.ms": 5, "linger_ms": 6}, ["linger.ms", "linger.ms", "linger_ms"]),
    ],
)
def test_options_that_contradict_each_other_are_all_named(
    config: dict[str, object], options: list[str]
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        Producer({"bootstrap.servers": "a:1", **config})
    assert caught.value.options == tuple(options)
    assert pickle.loads(pickle.dumps(caught.value)).options == tuple(options)


def test_a_wrong_option_of_a_properties_file_is_named_too(tmp_path: Path) -> None:
    file = tmp_path / "producer.properties"
    file.write_text("bootstrap.servers=a:1\nlinger.ms=soon\n", encoding="utf-8")
    with pytest.raises(errors.ConfigError, match="line 2") as caught:
        Producer(str(file))
    assert caught.value.option == "linger.ms"


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"topic": "a b"}, "topic"),
        ({"recoveryTime": "soon"}, "recoveryTime"),
        ({"tpoic": "a"}, "tpoic"),
        ({"kafka.lingre.ms": "5"}, "kafka.lingre.ms"),
        ({"kafka.linger.ms": "soon"}, "kafka.linger.ms"),
        ({"kafka.acks": "1"}, None),
    ],
)
def test_a_wrong_option_of_a_spark_sink_is_named_as_the_sink_calls_it(
    given: dict[str, str], option: str | None
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        parse_options({**SERVERS, **given}, streaming=False)
    assert caught.value.option == option


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"kafka.acks": "1"}, ["kafka.acks"]),
        ({"kafka.acks": "1", "kafka.retries": "0"}, ["kafka.retries", "kafka.acks"]),
        ({"kafka.enable.idempotence": "false"}, ["kafka.enable.idempotence"]),
        (
            {"kafka.max.in.flight.requests.per.connection": "9"},
            ["kafka.max.in.flight.requests.per.connection", "kafka.enable.idempotence"],
        ),
        ({"kafka.partitioner.rack.aware": "true"}, ["kafka.partitioner.rack.aware", "kafka.client.rack"]),
        ({"onBadRow": "dead-letter"}, ["deadLetterTopic", "onBadRow"]),
        ({"delivery": "at-least-once", "runId": "a"}, ["runId", "delivery"]),
        ({"delivery": "at-least-once", "recoveryTime": "1 min"}, ["recoveryTime", "delivery"]),
        ({"onLost": "repair"}, ["onLost", "runId"]),
    ],
)
def test_options_of_a_spark_sink_that_contradict_each_other_are_all_named(
    given: dict[str, str], options: list[str]
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        parse_options({**SERVERS, **given}, streaming=False)
    assert caught.value.options == tuple(options)


def test_a_wrong_key_of_a_pipeline_is_named() -> None:
    with pytest.raises(errors.PipelineDefinitionError) as caught:
        load_pipeline({"source": {"sql": "SELECT 1"}, "sink": {"topic": 5, "options": SERVERS}})
    assert caught.value.option == "[sink] topic"

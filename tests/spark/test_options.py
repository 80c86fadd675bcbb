# SPDX-License-Identifier: Apache-2.0
"""Options of a write: what is understood, and what is refused with a sentence that helps."""

from __future__ import annotations

import logging
import pickle

import pytest

from penstock.config.config import ProducerConfig
from penstock.errors import ConfigError
from penstock.spark import options as options_module
from penstock.spark.options import NAMES, SinkOptions, parse_options, producer_config, warn_of_secrets

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def parse(*, streaming: bool = False, **options: str) -> SinkOptions:
    return parse_options(
        SERVERS | {name.replace("__", "."): value for name, value in options.items()}, streaming=streaming
    )


def test_the_default_is_exactly_once_and_to_fail() -> None:
    options = parse(topic="orders")
    assert options.exactly_once
    assert (options.topic, options.on_bad_row, options.ignore_extra_columns) == ("orders", "fail", False)
    settings = options.sink_settings()
    assert (settings.recovery_time_ms, settings.transaction_timeout_ms) == (300_000, 900_000)
    assert settings.log_topic == "penstock-sink-log"


def test_names_come_lower_cased_from_spark_and_in_any_case_from_others() -> None:
    lower = parse(sinkid="a", onbadrow="dead-letter", deadlettertopic="bad", ignoreextracolumns="true")
    mixed = parse(sinkId="a", onBadRow="dead-letter", deadLetterTopic="bad", ignoreExtraColumns="TRUE")
    assert lower == mixed
    assert (lower.sink["sink_id"], lower.on_bad_row, lower.dead_letter_topic) == ("a", "dead-letter", "bad")
    assert lower.ignore_extra_columns


@pytest.mark.parametrize(
    ("written", "milliseconds"),
    [
        ("90 s", 90_000),
        ("15 min", 900_000),
        ("15min", 900_000),
        ("1.5 hours", 5_400_000),
        ("250ms", 250),
        ("2 Minutes", 120_000),
    ],
)
def test_times_have_a_unit(written: str, milliseconds: int) -> None:
    assert parse(recoveryTime=written).sink == {"recovery_time_ms": milliseconds}
    assert parse(transactionTimeout=written).sink == {"transaction_timeout_ms": milliseconds}


@pytest.mark.parametrize("written", ["90", "soon", "-1 s", "5 parsecs", "0 ms", "99999 hours"])
def test_a_time_that_is_none_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="recoveryTime must be"):
        parse(recoveryTime=written)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("topik", "unknown option 'topik'; did you mean 'topic'?"),
        ("sinks", "unknown option 'sinks'; did you mean 'sinkId'?"),
        ("deadletters", "did you mean 'deadLetterTopic'?"),
        ("kafka.linger.mss", "unknown option 'kafka.linger.mss'; did you mean 'kafka.linger.ms'?"),
        ("linger.ms", "options of the producer start with kafka.: 'kafka.linger.ms'"),
        ("bootstrap.servers", "'kafka.bootstrap.servers'"),
        ("zzzz", "there are topic, delivery, sinkId"),
        ("path", "call save() without it"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(name: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(SERVERS | {name: "x"}, streaming=False)
    assert said in str(caught.value)


def test_all_unknown_producer_options_are_named_at_once() -> None:
    unknown = {"kafka.linger.mss": "5", "kafka.queue.buffering.max.ms": "5"}
    with pytest.raises(ConfigError) as raised:
        parse_options(SERVERS | unknown, streaming=False)
    assert raised.value.options == ("kafka.linger.mss", "kafka.queue.buffering.max.ms")
    assert "2 unknown options:" in str(raised.value)
    assert "did you mean 'kafka.linger.ms'?" in str(raised.value)


def test_all_unknown_options_of_a_write_are_named_at_once() -> None:
    unknown = {
        "topik": "t",
        "zzzz": "1",
        "qqqq": "2",
        "linger.ms": "5",
        "path": "/d",
        "kafka.linger.mss": "5",
    }
    with pytest.raises(ConfigError) as raised:
        parse_options(SERVERS | unknown, streaming=False)
    assert raised.value.options == tuple(unknown)
    first, *rest = str(raised.value).split("\n  ")
    assert first == "6 unknown options:"
    assert rest[0] == "1. 'topik'; did you mean 'topic'?"
    assert rest[1].startswith("2. 'zzzz'; there are topic, delivery, sinkId, ")
    assert rest[2:] == [
        "3. 'qqqq'",
        "4. 'linger.ms'; options of the producer start with kafka.: 'kafka.linger.ms'",
        "5. 'path'; penstock writes to a topic: call save() without it, and set .option(\"topic\", ...)",
        "6. 'kafka.linger.mss'; did you mean 'kafka.linger.ms'?",
    ]


def test_a_path_is_refused_in_the_words_of_a_streaming_query() -> None:
    with pytest.raises(ConfigError, match=r"call start\(\) without it"):
        parse(path="/data", streaming=True)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ("queryName", "asyncProgressTrackingEnabled")]
)
def test_an_option_without_a_value_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"the option {name} is empty"):
        parse_options(SERVERS | {name: " "}, streaming=False)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"delivery": "twice"}, "delivery must be exactly-once or at-least-once, not 'twice'"),
        ({"onLost": "ignore"}, "onLost must be fail or repair, not 'ignore'"),
        ({"onChangedRows": "write"}, "onChangedRows must be fail or skip, not 'write'"),
        ({"onBadRow": "ignore"}, "onBadRow must be fail or dead-letter, not 'ignore'"),
        ({"ignoreExtraColumns": "yes"}, "ignoreExtraColumns must be true or false"),
        ({"includeHeaders": "maybe"}, "includeHeaders must be true or false"),
        ({"topic": "no/topic"}, "topic='no/topic' is no name for a topic"),
        ({"onBadRow": "dead-letter"}, "needs the option deadLetterTopic"),
        ({"deadLetterTopic": "bad"}, "of no use without onBadRow=dead-letter"),
        ({"runId": "7", "delivery": "at-least-once"}, "needs delivery=exactly-once"),
        ({"kafka.key.serializer": "x"}, "'kafka.key.serializer' is not allowed: cast the column key"),
        ({"kafka.value.serializer": "x"}, "'kafka.value.serializer' is not allowed: cast the column value"),
        ({"kafka.transactional.id": "x"}, "the sink names its transactions itself"),
        ({"kafka.transaction.timeout.ms": "1000"}, "use the option transactionTimeout"),
        ({"kafka.acks": "1"}, "delivery=exactly-once needs idempotence, but acks is 1, not all: leave that"),
        ({"kafka.linger.ms": "soon"}, "linger.ms"),
        (
            {"kafka.enable.idempotence": "false"},
            "needs idempotence, but enable.idempotence is false: leave that",
        ),
    ],
)
def test_what_cannot_be_is_refused_on_the_driver(option: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(SERVERS | option, streaming=False)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("onRestoredCheckpoint", "rewrite"),
        ("onLost", "repair"),
        ("onChangedRows", "skip"),
        ("recoveryTime", "1 min"),
        ("transactionTimeout", "10 min"),
        ("decisionTopic", "decisions"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_what_means_nothing_at_least_once_is_refused(name: str, value: str, streaming: bool) -> None:
    given = SERVERS | {"delivery": "at-least-once", "sinkId": "orders"}
    parse_options(given, streaming=streaming)
    with pytest.raises(ConfigError, match=f"{name} means nothing with delivery=at-least-once"):
        parse_options(given | {name: value}, streaming=streaming)


def test_a_batch_job_has_no_checkpoint_to_restore() -> None:
    with pytest.raises(ConfigError, match="onRestoredCheckpoint is for streaming queries"):
        parse(onRestoredCheckpoint="rewrite", runId="7")
    assert (
        parse(onRestoredCheckpoint="rewrite", sinkId="a", streaming=True)
        .sink_settings()
        .on_restored_checkpoint
        == "rewrite"
    )


def test_only_a_run_with_a_name_can_repair_what_it_lost() -> None:
    with pytest.raises(ConfigError, match="set the option runId"):
        parse(onLost="repair")
    with pytest.raises(ConfigError, match="onChangedRows says what a repeated run does"):
        parse(onChangedRows="skip")
    assert parse(onChangedRows="skip", runId="7").sink_settings().on_changed_rows == "skip"
    assert parse(onLost="repair", runId="7").sink_settings().on_lost == "repair"
    assert parse(onLost="repair", sinkId="a", streaming=True).sink_settings().on_lost == "repair"


def test_the_servers_are_required() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_options({"topic": "orders"}, streaming=False)


def test_without_transactions_fewer_acks_are_allowed() -> None:
    options = parse(delivery="at-least-once", kafka__acks="1", kafka__enable__idempotence="false")
    config = ProducerConfig.from_user(producer_config(options))
    assert (config.acks, config.transactional_id) == (1, None)


def test_the_producer_gets_what_the_user_gave() -> None:
    options = parse(kafka__linger__ms="7", transactionTimeout="20 min", kafka__client__id="mine")
    config = ProducerConfig.from_user(producer_config(options))
    assert (config.linger_ms, config.transaction_timeout_ms, config.client_id) == (7, 1_200_000, "mine")
    assert config.transactional_id


def test_a_streaming_query_needs_a_name_that_outlives_it() -> None:
    with pytest.raises(ConfigError, match="checkpointLocation") as caught:
        parse(topic="orders", streaming=True)
    assert "sinkId" in str(caught.value)
    assert parse(checkpointLocation="/tmp/c", streaming=True).checkpoint_location == "/tmp/c"
    assert parse(sinkId="orders", streaming=True).sink_settings().sink_id == "orders"
    assert not parse(delivery="at-least-once", streaming=True).exactly_once


def test_a_run_id_is_for_batch_jobs() -> None:
    assert parse(runId="2026-11-15").sink_settings().run_id == "2026-11-15"
    with pytest.raises(ConfigError, match="runId is for batch jobs"):
        parse(runId="1", sinkId="a", streaming=True)


def test_asynchronous_progress_cannot_be_exactly_once() -> None:
    with pytest.raises(
        ConfigError, match=r"asyncProgressTrackingEnabled cannot be exactly once.*Leave it out$"
    ):
        parse(sinkId="a", asyncProgressTrackingEnabled="true", streaming=True)
    parse(sinkId="a", asyncProgressTrackingEnabled="false", streaming=True)
    parse(delivery="at-least-once", asyncProgressTrackingEnabled="true", streaming=True)


def test_what_sparks_own_sink_takes_is_accepted() -> None:
    options = parse(includeHeaders="true", topic="orders", kafka__compression__type="zstd")
    assert options.topic == "orders"
    assert options.producer["compression.type"] == "zstd"


def test_options_are_sent_to_tasks_and_show_no_secret() -> None:
    options = parse(topic="orders", kafka__client__id="hush")
    assert pickle.loads(pickle.dumps(options)) == options
    assert "hush" not in repr(options)


SECURE = {
    "topic": "t",
    "kafka.bootstrap.servers": "a:1",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.username": "me",
}


def test_a_reference_is_sent_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SECRET", "hunter2")
    options = parse_options(SECURE | {"kafka.sasl.password": "${env:KAFKA_SECRET}"}, streaming=False)
    pickled = pickle.dumps((options, options.sink_settings()))
    assert b"hunter2" not in pickled
    assert producer_config(options)["sasl.password"] == "${env:KAFKA_SECRET}"
    security = ProducerConfig.from_user(producer_config(pickle.loads(pickled)[0])).security
    assert security is not None
    assert security.sasl is not None
    assert security.sasl.password is not None
    assert security.sasl.password.value == "hunter2"


def test_a_reference_that_leads_nowhere_is_refused_on_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_SECRET", raising=False)
    for name in ("kafka.sasl.password", "kafka.sasl_plain_password"):
        with pytest.raises(ConfigError, match="environment variable KAFKA_SECRET is not set") as caught:
            parse_options(SECURE | {name: "${env:KAFKA_SECRET}"}, streaming=False)
        assert caught.value.option == name.replace("_", ".")
        assert "wrong on the driver: " in str(caught.value)


def test_what_has_nothing_to_do_with_a_place_names_none() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options(SECURE | {"kafka.sasl.password": "x", "kafka.linger.ms": "soon"}, streaming=False)
    assert "driver" not in str(caught.value)


def test_references_are_left_to_a_driver_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KAFKA_SECRET", raising=False)
    secure = SECURE | {"kafka.sasl.password": "${env:KAFKA_SECRET}"}
    options = parse_options(secure, streaming=False, on_driver=False)
    assert options.producer["sasl.password"] == "${env:KAFKA_SECRET}"
    with pytest.raises(ConfigError, match=r"did you mean 'kafka\.linger\.ms'"):
        parse_options(secure | {"kafka.lingre.ms": "1"}, streaming=False, on_driver=False)
    with pytest.raises(ConfigError, match=r"linger\.ms"):
        parse_options(
            SECURE | {"kafka.sasl.password": "x", "kafka.linger.ms": "soon"}, streaming=False, on_driver=False
        )


def test_a_secret_in_the_clear_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(options_module, "_warned", [])
    monkeypatch.setenv("KAFKA_SECRET", "hunter2")
    warn_of_secrets(parse_options(SECURE | {"kafka.sasl.password": "${env:KAFKA_SECRET}"}, streaming=False))
    assert caplog.records == []
    clear = parse_options(SECURE | {"kafka.sasl_plain_password": "hunter2"}, streaming=False)
    warn_of_secrets(clear)
    warn_of_secrets(clear)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "given in the clear: kafka.sasl_plain_password" in told[0]
    assert "hunter2" not in told[0]

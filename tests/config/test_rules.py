# SPDX-License-Identifier: Apache-2.0
"""Rules between options, as tables."""

from __future__ import annotations

import logging

import pytest

from penstock.config.config import ProducerConfig
from penstock.config.rules import resolve_delivery_timeout, resolve_idempotence
from penstock.errors import ConfigError

INT_MAX = 2**31 - 1


def read(**options):
    return ProducerConfig.from_user({"bootstrap.servers": "localhost:9092"}, options)


@pytest.mark.parametrize("acks", [-1, 0, 1])
@pytest.mark.parametrize("retries", [0, 1, INT_MAX])
@pytest.mark.parametrize("max_in_flight", [1, 5, 6])
@pytest.mark.parametrize(
    ("enabled", "explicit"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_idempotence(acks, retries, max_in_flight, enabled, explicit):
    """Requirement 1."""
    options = {"acks": acks, "retries": retries, "max_in_flight": max_in_flight}
    fits = acks == -1 and retries > 0
    if enabled and (max_in_flight > 5 or (explicit and not fits)):
        with pytest.raises(ConfigError, match="idempotence"):
            resolve_idempotence(enabled=enabled, explicit=explicit, **options)
        return
    decision = resolve_idempotence(enabled=enabled, explicit=explicit, **options)
    assert decision.enabled == (enabled and fits)
    assert (decision.why_disabled is not None) == (enabled and not fits)


@pytest.mark.parametrize(
    ("acks", "retries", "why"),
    [(1, 5, "acks is 1, not all"), (-1, 0, "retries is 0"), (0, 0, "retries is 0 and acks is 0, not all")],
)
def test_idempotence_gives_way_with_a_reason(acks, retries, why):
    """Requirement 1."""
    decision = resolve_idempotence(enabled=True, explicit=False, acks=acks, retries=retries, max_in_flight=5)
    assert decision == (False, why)
    with pytest.raises(ConfigError, match=why):
        resolve_idempotence(enabled=True, explicit=True, acks=acks, retries=retries, max_in_flight=5)


@pytest.mark.parametrize(
    ("enabled", "explicit", "acks", "accepted"),
    [(True, True, -1, True), (True, False, -1, True), (True, False, 1, False), (False, True, -1, False)],
)
def test_transactions_need_idempotence(enabled, explicit, acks, accepted):
    options = {"enabled": enabled, "explicit": explicit, "acks": acks, "retries": 9, "max_in_flight": 5}
    if accepted:
        assert resolve_idempotence(**options, transactional=True).enabled
    else:
        with pytest.raises(ConfigError, match=r"transactional\.id needs idempotence") as caught:
            resolve_idempotence(**options, transactional=True)
        other, reason = ("acks", "acks is 1, not all") if enabled else ("enable.idempotence",) * 2
        assert caught.value.options == ("transactional.id", other)
        assert str(caught.value).endswith(f"but {caught.value.reason}")
        assert caught.value.reason in (reason, f"{reason} is false")


@pytest.mark.parametrize("acks", ["all", "-1", "0", "1", 0, 1, -1])
@pytest.mark.parametrize("in_flight", [1, 5, 6])
def test_without_idempotence_any_combination_is_taken(acks, in_flight):
    """Requirement 1."""
    config = read(
        acks=acks, retries=0, max_in_flight_requests_per_connection=in_flight, enable_idempotence=False
    )
    assert config.enable_idempotence is False
    assert config.acks == (-1 if acks == "all" else int(acks))


def test_idempotence_is_on_unless_an_option_contradicts_it():
    """Requirement 1."""
    assert read().enable_idempotence is True
    assert read(acks=1).enable_idempotence is False
    with pytest.raises(ConfigError, match="idempotence"):
        read(acks=1, enable_idempotence=True)
    with pytest.raises(ConfigError, match=r"max\.in\.flight"):
        read(max_in_flight_requests_per_connection=6)


@pytest.mark.parametrize(
    ("delivery", "explicit", "linger", "request_ms", "expected"),
    [
        (120_000, False, 5, 30_000, 120_000),
        (120_000, True, 5, 30_000, 120_000),
        (1000, True, 400, 600, 1000),
        (1000, False, 401, 600, 1001),
        (1000, True, 401, 600, None),
        (120_000, False, INT_MAX, INT_MAX, INT_MAX),
        (INT_MAX, True, INT_MAX, INT_MAX, INT_MAX),
    ],
)
def test_delivery_timeout(delivery, explicit, linger, request_ms, expected):
    """Requirement 2."""
    options = {"delivery_ms": delivery, "explicit": explicit, "linger_ms": linger, "request_ms": request_ms}
    if expected is None:
        with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms=1000.* = 1001"):
            resolve_delivery_timeout(**options)
    else:
        assert resolve_delivery_timeout(**options) == expected


def test_a_defaulted_delivery_timeout_is_raised_with_a_warning(caplog):
    """Requirement 2."""
    assert read(request_timeout_ms=200_000).delivery_timeout_ms == 200_005
    assert "delivery.timeout.ms is raised" in caplog.text


def test_an_explicit_delivery_timeout_is_refused_even_at_its_default():
    """Requirement 2."""
    with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms"):
        read(request_timeout_ms=200_000, delivery_timeout_ms=120_000)


def test_a_very_long_linger_is_cut_to_what_an_int_holds():
    config = read(linger_ms=2**40)
    assert (config.linger_ms, config.delivery_timeout_ms) == (INT_MAX, INT_MAX)


def test_batch_size_zero_means_one():
    assert read(batch_size=0).batch_size == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, (50, 1000)),
        ({"reconnect_backoff_ms": 200}, (200, 200)),
        ({"reconnect_backoff_ms": 2000}, (2000, 2000)),
        ({"reconnect_backoff_ms": 200, "reconnect_backoff_max_ms": 700}, (200, 700)),
        ({"reconnect_backoff_max_ms": 700}, (50, 700)),
    ],
)
def test_reconnect_backoff_alone_is_constant(options, expected, caplog):
    config = read(**options)
    assert (config.reconnect_backoff_ms, config.reconnect_backoff_max_ms) == expected
    assert caplog.records == []


@pytest.mark.parametrize(
    "name", ["retry.backoff", "reconnect.backoff", "socket.connection.setup.timeout"],
)  # fmt: skip
def test_a_base_above_its_maximum_is_warned_about(name, caplog):
    base, top = f"{name}.ms", f"{name}.max.ms"
    config = read(**{base: 50_000, top: 40_000}).as_dict()
    assert (config[base], config[top]) == (50_000, 40_000)
    assert f"{base}=50000 is above {top}=40000" in caplog.text


@pytest.mark.parametrize("rack", [None, "", "  "])
def test_rack_awareness_needs_a_rack(rack):
    options = {} if rack is None else {"client_rack": rack}
    with pytest.raises(ConfigError, match=r"client\.rack"):
        read(partitioner_rack_aware=True, **options)
    assert read(partitioner_rack_aware="true", client_rack="a").partitioner_rack_aware is True


class OwnPartitioner:
    def partition(self, *arguments):
        return 0


def test_a_custom_partitioner_turns_the_built_in_ways_off(caplog):
    with caplog.at_level(logging.WARNING):
        config = read(partitioner=OwnPartitioner(), partitioner_ignore_keys=True, partitioner_rack_aware=True)
    assert not config.partitioner_adaptive_partitioning_enable
    assert not config.partitioner_ignore_keys
    assert not config.partitioner_rack_aware
    assert "partitioner.ignore.keys has no effect" in caplog.text
    assert "adaptive" not in caplog.text


def test_the_former_default_partitioner_of_java_is_the_built_in_one():
    config = read(partitioner_class="org.apache.kafka.clients.producer.internals.DefaultPartitioner")
    assert config.partitioner is None
    assert config.partitioner_adaptive_partitioning_enable


def test_the_former_partitioner_of_java_that_ignores_keys_is_the_option_that_java_names_in_its_place(caplog):
    config = read(partitioner_class="org.apache.kafka.clients.producer.UniformStickyPartitioner")
    assert config.partitioner is None
    assert config.partitioner_ignore_keys
    assert config.partitioner_adaptive_partitioning_enable
    assert caplog.text == ""


def test_what_java_has_for_jmx_is_left_out_with_a_warning(caplog):
    class Reporter:
        def start(self, source): ...

        def stop(self, source): ...

    own, jmx = Reporter(), "org.apache.kafka.common.metrics.JmxReporter"
    for given, kept in ((jmx, ()), ([jmx], ()), ([jmx, own], (own,))):
        caplog.clear()
        config = read(metric_reporters=given, auto_include_jmx_reporter="true")
        assert config.metric_reporters == kept
        (of_option, of_reporter) = caplog.messages
        assert of_option.startswith("without effect here: auto_include_jmx_reporter (there is no JMX here")
        assert of_reporter.startswith(f"{jmx} in metric.reporters has no effect: there is no JMX here")


@pytest.mark.parametrize("strategy", [None, "Incremental", "FULL"])
def test_memory_follows_the_data_whatever_the_strategy(caplog, strategy):
    caplog.set_level("INFO")
    config = read(**({} if strategy is None else {"buffer_memory_allocation_strategy": strategy}))
    assert config.buffer_memory_allocation_strategy == (strategy or "incremental").lower()
    told = [each.levelname for each in caplog.records if "strategy=full has no effect" in each.message]
    assert told == (["INFO"] if strategy == "FULL" else [])


def test_too_little_memory_for_one_batch_is_warned_about(caplog):
    read(buffer_memory=1000)
    assert "batch.size=16384 is larger than buffer.memory=1000" in caplog.text


def test_a_delivery_timeout_that_is_too_short_names_the_way_out():
    with pytest.raises(ConfigError) as caught:
        read(delivery_timeout_ms=30_000, linger_ms=20)
    assert str(caught.value).endswith(
        "= 30020. Raise it, or lower request.timeout.ms (now 30000) or linger.ms (now 20)"
    )
    assert caught.value.option == "delivery.timeout.ms"


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("connections.max.idle.ms", "0 keeps connections in librdkafka; here -1 does"),
        ("delivery.timeout.ms", "0 is no limit in librdkafka"),
        ("request.timeout.ms", "no request would ever have its answer in time"),
        ("buffer.memory", "no record would fit"),
        ("max.request.size", "no record would fit"),
        ("socket.connection.setup.timeout.ms", "no connection would ever be there in time"),
        ("socket.connection.setup.timeout.max.ms", "no connection would ever be there in time"),
        ("metadata.recovery.rebootstrap.trigger.ms", "metadata.recovery.strategy=none switches it off"),
    ],
)
def test_0_is_refused_where_nothing_could_be_sent_with_it(option, why):
    with pytest.raises(ConfigError) as caught:
        read(**{option.replace(".", "_"): 0})
    assert why in str(caught.value)
    assert str(caught.value).startswith(f"{option}=0 is not allowed; allowed: 1 or more")
    assert caught.value.option == option


def test_a_negative_idle_time_keeps_connections():
    assert read(connections_max_idle_ms=-1).connections_max_idle_ms == -1
    assert read(connections_max_idle_ms=-5).connections_max_idle_ms == -5
    with pytest.raises(ConfigError, match=r"allowed: 1 or more$"):
        read(request_timeout_ms=-1)

# SPDX-License-Identifier: Apache-2.0
"""Objects named in the configuration: found, made, configured, and closed when something fails."""

from __future__ import annotations

import pytest

from penstock import serializers
from penstock.config.config import ProducerConfig
from penstock.errors import ConfigError
from penstock.producer._interceptors_cy import Interceptor
from penstock.serializers import MutableHeaders, Serializer

events: list[tuple[str, object]] = []


@pytest.fixture(autouse=True)
def _fresh_events():
    events.clear()


class Recording(Serializer):
    def configure(self, config):
        events.append(("configured serializer", config))

    def serialize(self, topic, headers, data):
        return b"recorded"

    def close(self):
        events.append(("closed serializer", None))


class RecordingInterceptor(Interceptor):
    def configure(self, config):
        events.append(("configured interceptor", config))

    def close(self):
        events.append(("closed interceptor", None))
        raise OSError("closing fails as well")


class BrokenInterceptor(Interceptor):
    def __init__(self):
        raise ValueError("no such file")


class Unconfigurable(RecordingInterceptor):
    def configure(self, config):
        raise ValueError("cannot be configured")


class RandomPartitioner:
    def partition(self, *arguments):
        return 4


class Namespace:
    nested = Recording


def shout(data):
    return data.upper()


def read(**options):
    return ProducerConfig.from_user({"bootstrap.servers": "localhost:9092"}, options)


def names():
    return [name for name, _ in events]


def test_without_serializers_bytes_pass():
    config = read()
    assert isinstance(config.key_serializer, serializers.BytesSerializer)
    assert isinstance(config.value_serializer, serializers.BytesSerializer)
    assert (config.partitioner, config.interceptors) == (None, ())


def test_objects_are_taken_as_they_are():
    serializer, partitioner, interceptor = Recording(), RandomPartitioner(), RecordingInterceptor()
    config = read(
        key_serializer=serializer, value_serializer=shout, partitioner=partitioner, interceptors=[interceptor]
    )
    assert config.key_serializer is serializer
    assert config.value_serializer.serialize("t", MutableHeaders(), b"a") == b"A"
    assert config.partitioner is partitioner
    assert config.interceptors == (interceptor,)
    assert events == []


@pytest.mark.parametrize("how", ["class", "name", "nested"])
def test_classes_and_names_are_made_and_configured_with_the_generated_client_id(how):
    given = {"class": Recording, "name": f"{__name__}:Recording", "nested": f"{__name__}:Namespace.nested"}[
        how
    ]
    config = read(**{"key.serializer": given, "linger.ms": "7"})
    assert type(config.key_serializer).__name__ == "Recording"
    assert names() == ["configured serializer"]
    seen = events[0][1]
    assert seen["client.id"] == config.client_id
    assert config.client_id.startswith("producer-")
    assert seen["linger.ms"] == 7
    assert "key.serializer" not in seen


def test_each_gets_its_own_copy_of_the_configuration():
    read(key_serializer=Recording, value_serializer=Recording)
    assert events[0][1] == events[1][1]
    assert events[0][1] is not events[1][1]


def test_a_name_may_stand_for_a_function_or_an_object():
    config = read(value_serializer=f"{__name__}:shout")
    assert config.value_serializer.serialize("t", MutableHeaders(), b"a") == b"A"


def test_interceptors_by_name_keep_their_order():
    config = read(**{"interceptor.classes": f"{__name__}:RecordingInterceptor , penstock:Interceptor"})
    assert [type(interceptor).__name__ for interceptor in config.interceptors] == [
        "RecordingInterceptor",
        "Interceptor",
    ]


@pytest.mark.parametrize(
    ("java", "ours"),
    [
        ("ByteArraySerializer", "BytesSerializer"),
        ("ByteBufferSerializer", "BytesSerializer"),
        ("BytesSerializer", "BytesSerializer"),
        ("DoubleSerializer", "Float64Serializer"),
        ("FloatSerializer", "Float32Serializer"),
        ("IntegerSerializer", "Int32Serializer"),
        ("LongSerializer", "Int64Serializer"),
        ("ShortSerializer", "Int16Serializer"),
        ("StringSerializer", "StringSerializer"),
        ("UUIDSerializer", "UUIDSerializer"),
        ("VoidSerializer", "VoidSerializer"),
    ],
)
def test_names_of_java_serializers(java, ours):
    config = read(key_serializer=f"org.apache.kafka.common.serialization.{java}")
    assert type(config.key_serializer) is getattr(serializers, ours)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"key_serializer": "no_such_module_here:X"}, "no_such_module_here"),
        ({"key_serializer": f"{__name__}:NoSuchThing"}, "NoSuchThing"),
        ({"key_serializer": "json.dumps"}, "module:attribute': 'json:dumps'$"),
        ({"key_serializer": ":x"}, "module:attribute', or give an object, such as penstock.serializers.Json"),
        (
            {"value_serializer": "json"},
            r"write penstock.serializers.JsonSerializer\(\), or 'penstock.serializers:J",
        ),
        ({"value_serializer": "JsonSerializer"}, r"write penstock.serializers.JsonSerializer\(\)"),
        (
            {"value_serializer": "penstock.serializers.UUIDSerializer"},
            "or 'penstock.serializers:UUIDSerializer'",
        ),
        ({"key_serializer": "String"}, r"write penstock.serializers.StringSerializer\(\)"),
        ({"key_serializer": "int"}, r"write penstock.serializers.Int64Serializer\(\)"),
        ({"value_serializer": "shop.JsonSerializer"}, "module:attribute': 'shop:JsonSerializer'$"),
        ({"value_serializer": "utf_8"}, r"write penstock.serializers.StringSerializer\(\)"),
        (
            {"value_serializer": "io.confluent.kafka.serializers.KafkaAvroSerializer"},
            "Java classes cannot be loaded, and this one has no counterpart here; give a function of one argument",
        ),
        (
            {"interceptors": ["io.confluent.monitoring.clients.interceptor.MonitoringProducerInterceptor"]},
            r"no counterpart here; write a Python class with the methods on_send\(\) and on_acknowledgement\(\), or",
        ),
        (
            {"interceptors": ["com.acme.MyInterceptor"]},
            r"'com.acme:MyInterceptor'. If it is a Java class: these cannot be loaded; write a .* on_send\(\) and on_a",
        ),
        ({"partitioner": "com.acme.Places"}, r"with the method partition\(\), or leave it out$"),
        (
            {"metric_reporters": "org.acme.Reporter"},
            r"with the methods start\(\) and stop\(\), or leave it out$",
        ),
        ({"value_serializer": "avro"}, "or give an object, such as"),
        ({"interceptors": ["watch"]}, "module:attribute'$"),
        ({"metric_reporters": "prometheus"}, "such as 'penstock.watching.prometheus:collector'$"),
        ({"tracing": "otel"}, "such as 'penstock.watching.opentelemetry:calls'$"),
        ({"interceptors": ["shop.watch.Watch"]}, "module:attribute': 'shop.watch:Watch'$"),
        ({"value_serializer": "org.apache.kafka.common.serialization.NoSerializer"}, "no counterpart"),
        (
            {"value_serializer": "org.apache.kafka.common.serialization.ListSerializer"},
            r"give an object: penstock.serializers.ListSerializer\(",
        ),
        ({"value_serializer": "penstock.serializers:ListSerializer"}, "'inner'.*give an object of it"),
        ({"value_serializer": serializers.ListSerializer}, "cannot be made without arguments"),
        ({"value_serializer": "str.encode"}, "module:attribute': 'builtins:str.encode'$"),
        # Java's float has 4 bytes, and its integer too; a float of Python has 8.
        ({"value_serializer": "FloatSerializer"}, r"write penstock.serializers.Float32Serializer\(\)"),
        ({"value_serializer": "float"}, r"write penstock.serializers.Float64Serializer\(\)"),
        ({"value_serializer": "IntegerSerializer"}, r"write penstock.serializers.Int32Serializer\(\)"),
        ({"value_serializer": "short"}, r"write penstock.serializers.Int16Serializer\(\)"),
        (
            {"value_serializer": 5},
            r"5: it must have serialize\(topic, headers, data\), or be .*; int is neither",
        ),
        ({"value_serializer": RandomPartitioner}, "RandomPartitioner is neither"),
        ({"partitioner": shout}, r"partition\(\)"),
        ({"partitioner": RecordingInterceptor}, r"partition\(\)"),
        ({"interceptors": [RandomPartitioner()]}, r"on_send\(\)"),
        ({"interceptors": [BrokenInterceptor]}, "no such file"),
    ],
)
def test_what_cannot_be_had_fails_construction_with_option_and_reason(options, complaint):
    (option,) = options
    dotted = {"partitioner": "partitioner.class", "interceptors": "interceptor.classes"}.get(
        option, option.replace("_", ".")
    )
    with pytest.raises(ConfigError, match=f"Failed to construct.*{dotted}.*{complaint}") as caught:
        read(**options)
    assert caught.value.__cause__ is not None
    assert str(caught.value).count(dotted) == 1


def test_the_name_that_an_error_suggests_for_a_method_of_a_built_in_class_works():
    config = read(value_serializer="builtins:str.encode")
    assert config.value_serializer.serialize("t", MutableHeaders(), "pump") == b"pump"


def test_a_failure_closes_what_was_made_and_leaves_objects_alone(caplog):
    given = RecordingInterceptor()
    with pytest.raises(ConfigError, match="no such file"):
        read(key_serializer=Recording, interceptors=[given, RecordingInterceptor, BrokenInterceptor])
    assert names() == [
        "configured serializer",
        "configured interceptor",
        "closed interceptor",
        "closed serializer",
    ]
    assert "closing RecordingInterceptor failed" in caplog.text


def test_one_that_cannot_be_configured_is_closed_too():
    with pytest.raises(ConfigError, match="cannot be configured"):
        read(interceptors=[Unconfigurable])
    assert names() == ["closed interceptor"]


def test_an_interrupt_while_making_closes_and_passes():
    class Interrupted(Interceptor):
        def __init__(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(key_serializer=Recording, interceptors=[Interrupted])
    assert names() == ["configured serializer", "closed serializer"]


def test_nothing_is_made_when_an_option_is_wrong():
    with pytest.raises(ConfigError):
        read(key_serializer=Recording, linger_ms=-1)
    assert events == []


def test_close_plugins_closes_all_even_when_one_fails(caplog):
    config = read(key_serializer=Recording(), value_serializer=shout, interceptors=[RecordingInterceptor()])
    config.close_plugins()
    assert names() == ["closed interceptor", "closed serializer"]
    assert "closing RecordingInterceptor failed" in caplog.text


def test_the_same_interceptor_twice_is_refused():
    interceptor = RecordingInterceptor()
    with pytest.raises(ConfigError, match="without duplicates"):
        read(interceptors=[interceptor, interceptor])

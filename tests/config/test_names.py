# SPDX-License-Identifier: Apache-2.0
"""Who brings the options of another client along is told what to write here."""

from __future__ import annotations

import inspect

import aiokafka
import confluent_kafka
import pytest
from fix_other_clients import kafka_python

from penstock.config.config import ProducerConfig
from penstock.config.keys import KEYS
from penstock.config.names import (
    ALIASES,
    CONSUMER,
    LIBRDKAFKA,
    OTHER_NAMES,
    canonical_name,
    try_nearest_name,
)
from penstock.config.security_keys import REFUSED, SPELLINGS
from penstock.errors import ConfigError
from penstock.partitioners import Crc32Partitioner
from penstock.spark.options import parse_options

SERVERS = {"bootstrap.servers": "localhost:9092"}


def refusal(config=None, /, **options):
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(SERVERS | (config or {}), options)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("queue.buffering.max.ms", "librdkafka's name; use 'linger.ms' here"),
        ("message.timeout.ms", "librdkafka's name; use 'delivery.timeout.ms' here"),
        ("socket.timeout.ms", "librdkafka's name; use 'request.timeout.ms' here"),
        ("queue.buffering.max.kbytes", "librdkafka's name; use 'buffer.memory' here, in bytes"),
        ("compression.level", "use 'compression.gzip.level', 'compression.lz4.level' or 'compression.zstd.level'"),
        ("statistics.interval.ms", "leave it out: producer.metrics() gives the numbers"),
        ("stats_cb", "leave it out: producer.metrics() gives the numbers"),
        ("on_delivery", "leave it out: give on_delivery to send(), or ask the Delivery that it returns"),
        ("group.id", "which is an option of consumers; leave it out: a producer reads nothing"),
        ("api_version", "kafka-python's name; leave it out: each broker is asked for its versions"),
        ("max_batch_size", "aiokafka's name; use 'batch.size' here"),
    ],
)  # fmt: skip
def test_a_name_of_another_client_is_answered(name, answer):
    assert answer in refusal({name: "5"})


def test_a_keyword_is_answered_with_a_keyword():
    assert refusal(max_batch_size=5) == (
        "unknown option 'max_batch_size', which is aiokafka's name; use 'batch_size' here"
    )
    assert "use 'partitioner' here" in refusal(partitioner_cb=print)


def test_all_unknown_options_are_told_at_once(tmp_path):
    path = tmp_path / "old.properties"
    path.write_text("bootstrap.servers=a:1\nmessage.timeout.ms=5\nlinger.ms=1\nzookeeper.connect=z", "utf-8")
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(path, {"lingerms": "a secret", "max_batch_size": 5})
    where = f"of {str(path)!r})"
    assert str(caught.value).splitlines() == [
        "4 unknown options:",
        f"  1. 'message.timeout.ms', which is librdkafka's name; use 'delivery.timeout.ms' here (line 2 {where}",
        f"  2. 'zookeeper.connect' (line 4 {where}",
        "  3. 'lingerms'; did you mean 'linger_ms'?",
        "  4. 'max_batch_size', which is aiokafka's name; use 'batch_size' here",
    ]
    assert caught.value.option is None
    assert caught.value.options == ("message.timeout.ms", "zookeeper.connect", "lingerms", "max_batch_size")


def test_of_very_many_unknown_options_the_last_are_named_only():
    names = [f"x.{number}" for number in range(23)]
    lines = refusal(dict.fromkeys(names, "1")).splitlines()
    assert lines == [
        "23 unknown options:",
        *(f"  {number}. {name!r}" for number, name in enumerate(names[:20], 1)),
        "  and 'x.20', 'x.21', 'x.22'",
    ]


def test_an_option_of_a_spark_sink_is_answered_with_its_prefix():
    with pytest.raises(ConfigError, match=r"unknown option 'kafka\.queue\.buffering\.max\.ms'") as caught:
        parse_options(
            {"topic": "t", "kafka.bootstrap.servers": "a:1", "kafka.queue.buffering.max.ms": "5"},
            streaming=False,
        )
    assert "use 'kafka.linger.ms' here" in str(caught.value)


@pytest.mark.parametrize("name", sorted(OTHER_NAMES))
def test_every_entry_names_options_that_are_there_and_not_deprecated(name):
    assert name not in KEYS
    assert name not in ALIASES
    assert name not in SPELLINGS
    assert name not in REFUSED
    here = OTHER_NAMES[name].here
    assert set(here) <= set(KEYS)
    assert all(KEYS[each].not_yet is None for each in here)
    assert here or OTHER_NAMES[name].note


@pytest.mark.parametrize(
    "name", ["timeout", "timeout.millis", "metadata.fetch.timeout", "block.on.bufferfull", "Block_On_Buffer_Full"]
)  # fmt: skip
def test_a_deprecated_name_is_never_the_answer(name):
    assert not any(repr(alias) in refusal({name: "5"}) for alias in ALIASES)
    assert try_nearest_name(name) in {None, *ALIASES.values(), *KEYS}


def unanswered(names):
    """The names that are not ours, and of which we know nothing."""
    left = []
    for name in names:
        try:
            canonical_name(name, keyword=True)
        except ConfigError as error:
            if ", which is " not in str(error):
                left.append(str(error))
    return left


def test_every_option_of_kafka_python_is_ours_or_answered():
    names = kafka_python.KafkaProducer.DEFAULT_CONFIG
    assert unanswered(names) == []


def test_every_option_of_aiokafka_is_ours_or_answered():
    names = [name for name in inspect.signature(aiokafka.AIOKafkaProducer).parameters if name != "self"]
    assert unanswered(names) == []


# Words that confluent-kafka itself takes out of the configuration.
NOT_IN_LIBRDKAFKA = {"default.topic.config", "logger", "on.delivery"}


@pytest.mark.parametrize(
    "name", sorted(n for n, known in OTHER_NAMES.items() if known.whose == LIBRDKAFKA and n not in NOT_IN_LIBRDKAFKA)
)  # fmt: skip
def test_librdkafka_has_the_options_that_we_say_it_has(name):
    spellings = [name, name.replace(".", "_")]
    refused = []
    for spelling in spellings:
        try:
            # Only the name is asked about: what is wrong with the value does not matter.
            confluent_kafka.Producer({"bootstrap.servers": "127.0.0.1:1", spelling: "nothing"})
        except (confluent_kafka.KafkaException, TypeError, ValueError) as error:
            refused.append(str(error))
        else:
            return
    assert not all("No such configuration property" in text for text in refused), refused


def test_consumers_have_the_options_that_we_say_they_have():
    names = {name.replace(".", "_") for name, known in OTHER_NAMES.items() if known.whose == CONSUMER}
    of_librdkafka = {
        "group_protocol", "enable_auto_offset_store", "fetch_wait_max_ms", "fetch_message_max_bytes",
        "enable_auto_commit", "check_crcs", "group_id",
    }  # fmt: skip
    assert names - of_librdkafka <= set(kafka_python.KafkaConsumer.DEFAULT_CONFIG)


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("partitioner", "way_out"),
    [
        (
            "consistent_random",
            "use 'crc32' here, which places records in the same way, or leave it out for murmur2",
        ),
        (
            "consistent",
            "use 'crc32' here, which places keys in the same way, but not records with a null or empty key",
        ),
        ("random", "use partitioner.ignore.keys=true here, or leave it out for murmur2"),
        ("murmur2_random", "leave it out: the default places records in the same way"),
        ("murmur2", "leave it out: the default places keys in the same way, but not records with a null key"),
        *(
            (
                word,
                "write a partitioner that does the same (the page 'Coming from confluent-kafka' has it), or ",
            )
            for word in ("fnv1a", "fnv1a_random")
        ),
    ],
)
def test_a_partitioner_of_librdkafka_is_answered(partitioner, way_out):
    text = refusal(partitioner=partitioner)
    assert text.startswith(f"partitioner.class={partitioner!r} is a partitioner of librdkafka; {way_out}")


@pytest.mark.parametrize("partitioner", ["crc32", Crc32Partitioner, Crc32Partitioner()])
def test_librdkafkas_placement_of_keys_leaves_the_rest_as_it_is(partitioner, caplog):
    config = ProducerConfig.from_user(
        {"bootstrap.servers": "a:1", "partitioner.class": partitioner, "client.rack": "r"},
        {"partitioner_rack_aware": True},
    )
    assert type(config.partitioner) is Crc32Partitioner
    assert config.partitioner_adaptive_partitioning_enable
    assert config.partitioner_rack_aware
    assert caplog.text == ""


def test_keys_cannot_be_both_hashed_and_ignored():
    text = refusal(partitioner="crc32", partitioner_ignore_keys=True)
    assert text == (
        "partitioner.class=crc32 places records by their keys, which partitioner.ignore.keys=true ignores: "
        "leave one of them out"
    )


def test_no_compression_is_a_word():
    assert refusal(compression_type=None) == (
        "compression.type must not be None; write 'none', or leave it out for the default (none)"
    )
    assert "leave it out for the default" in refusal(linger_ms=None)


# ------------------------------------------------------------------------------------------------ the call


@pytest.mark.parametrize("addresses", ["localhost:9092", "a:1, b:2"])
def test_addresses_in_place_of_a_file(addresses):
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(addresses)
    assert str(caught.value).endswith(f"for the addresses of brokers write bootstrap_servers={addresses!r}")


def test_a_list_of_addresses_in_place_of_a_mapping():
    with pytest.raises(TypeError, match=r"write bootstrap_servers=\['a:1', 'b:2'\]"):
        ProducerConfig.from_user(["a:1", "b:2"])


@pytest.mark.parametrize("wrong", ["no-such-file.properties", ["a"], [1], []])
def test_what_is_no_address_gets_no_such_hint(wrong):
    with pytest.raises((ConfigError, TypeError)) as caught:
        ProducerConfig.from_user(wrong)
    assert "bootstrap_servers" not in str(caught.value)


@pytest.mark.parametrize("partitioner", ["CRC32", "crc-32", "Crc_32", "crc"])
def test_another_spelling_of_crc32_is_answered(partitioner):
    assert refusal(partitioner=partitioner) == (
        f"partitioner.class={partitioner!r} is not known; did you mean 'crc32'?"
    )


@pytest.mark.parametrize("partitioner", ["murmur", "RoundRobinPartitioner", "default"])
def test_a_word_that_is_no_partitioner_is_answered(partitioner):
    assert refusal(partitioner=partitioner) == (
        f"partitioner.class={partitioner!r} is not known; there is 'crc32', or write 'module:attribute', such as "
        "'penstock.partitioners:RoundRobinPartitioner'. Without a partitioner keys are placed as by Java's client"
    )


def test_another_spelling_of_a_partitioner_of_librdkafka_is_answered():
    assert "is a partitioner of librdkafka; use 'crc32' here" in refusal(partitioner="Consistent-Random")

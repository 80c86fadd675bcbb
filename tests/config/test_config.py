# SPDX-License-Identifier: Apache-2.0
"""From what a user gives to a frozen configuration."""

from __future__ import annotations

import dataclasses
import logging
import re
import sys
from importlib.machinery import ModuleSpec

import pytest

from penstock.config.config import ProducerConfig
from penstock.config.keys import KEYS
from penstock.config.kinds import REQUIRED
from penstock.config.names import ALIASES
from penstock.config.security_keys import REFUSED, SECURITY_NAMES, SPELLINGS
from penstock.errors import ConfigError

SERVERS = {"bootstrap.servers": "localhost:9092"}


def read(config=None, /, **options):
    return ProducerConfig.from_user(SERVERS | (config or {}), options)


# ------------------------------------------------------------------------------------------------ the table


def test_the_fields_are_those_of_the_table():
    fields = [field.name for field in dataclasses.fields(ProducerConfig)]
    plain = [key.field_name for key in KEYS.values() if key.name not in SECURITY_NAMES]
    assert fields == ["explicit", "security", "security_options", *plain]


def test_every_default_is_allowed_by_its_own_rules():
    for key in KEYS.values():
        if key.default is not REQUIRED:
            assert key.parse(key.default) == key.default, key.name


def test_defaults_are_those_of_the_java_client():
    config = read()
    assert config.bootstrap_servers == ("localhost:9092",)
    assert config.acks == -1
    assert config.retries == 2**31 - 1
    assert (config.batch_size, config.linger_ms, config.buffer_memory) == (16_384, 5, 33_554_432)
    assert (config.delivery_timeout_ms, config.request_timeout_ms, config.max_block_ms) == (
        120_000,
        30_000,
        60_000,
    )
    assert (config.max_request_size, config.max_in_flight_requests_per_connection) == (1_048_576, 5)
    assert (config.compression_type, config.compression_lz4_level, config.compression_zstd_level) == (
        "none",
        9,
        3,
    )
    assert (config.metadata_max_age_ms, config.metadata_max_idle_ms) == (300_000, 300_000)
    assert (config.retry_backoff_ms, config.retry_backoff_max_ms) == (100, 1000)
    assert config.metadata_recovery_strategy == "rebootstrap"
    assert config.explicit == {"bootstrap.servers"}


def test_no_two_names_mean_different_options():
    spellings = [{name, name.replace(".", "_")} for name in (*KEYS, *ALIASES, *SPELLINGS, *REFUSED)]
    assert len(set().union(*spellings)) == sum(len(spelling) for spelling in spellings)


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize("name", ["linger.ms", "linger_ms"])
def test_both_spellings_work_in_both_places(name):
    assert read({name: "20"}).linger_ms == 20
    assert read(**{name: 20}).linger_ms == 20
    assert read({name: 20}).explicit == {"bootstrap.servers", "linger.ms"}


def test_a_configuration_may_be_keywords_alone():
    assert ProducerConfig.from_user(None, {"bootstrap_servers": ["a:1", "b:2"]}).bootstrap_servers == (
        "a:1",
        "b:2",
    )


def test_the_same_value_twice_is_no_contradiction():
    assert read({"linger.ms": "20", "linger_ms": 20}, linger_ms=" 20").linger_ms == 20


def test_different_values_are_a_contradiction():
    with pytest.raises(
        ConfigError,
        match=re.escape(
            "linger.ms is given twice with different values: linger.ms='20' and linger_ms=21; remove one"
        ),
    ):
        read({"linger.ms": "20"}, linger_ms=21)


def test_an_object_and_a_class_option_are_the_same_option():
    with pytest.raises(ConfigError, match=r"partitioner\.class is given twice"):
        read({"partitioner.class": "a:b"}, partitioner=object())


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("linger.msec", "linger.ms"),
        ("Linger.Ms", "linger.ms"),
        ("linger-ms", "linger.ms"),
        ("lingerMs", "linger.ms"),
        ("socket.connection_setup.timeout.ms", "socket.connection.setup.timeout.ms"),
        ("bootstrap.server", "bootstrap.servers"),
        ("compression", "compression.type"),
        ("ssl.truststore.passwd", "ssl.truststore.password"),
        ("sasl.mechansim", "sasl.mechanism"),
        ("value.serialiser", "value.serializer"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(ConfigError) as caught:
        read({name: "secret value"})
    assert str(caught.value) == f"unknown option {name!r}; did you mean {nearest!r}?"


def test_a_keyword_is_suggested_for_a_keyword():
    with pytest.raises(ConfigError, match="did you mean 'interceptors'"):
        read(interceptor=[])
    with pytest.raises(ConfigError, match="did you mean 'linger_ms'"):
        read(lingerms=5)


def test_a_name_like_no_other_gets_no_suggestion():
    with pytest.raises(ConfigError) as caught:
        read({"zookeeper.connect": "x"})
    assert str(caught.value) == "unknown option 'zookeeper.connect'"


def test_a_name_must_be_text():
    with pytest.raises(ConfigError, match="name of an option must be a string, not 5"):
        read({5: "x"})


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("linger.ms", -1, "0 or more"),
        ("compression.type", "brotli", "none, gzip, snappy, lz4, zstd"),
        ("compression.gzip.level", 0, "1 to 9, or -1"),
        ("compression.lz4.level", 18, "1 to 17"),
        ("acks", "2", "all, -1, 0, 1"),
        ("metadata.max.idle.ms", 4999, "5000 or more"),
        ("max.in.flight.requests.per.connection", 0, "1 or more"),
        ("send.buffer.bytes", -2, "-1 or more"),
        ("security.protocol", "TLS", "PLAINTEXT, SSL"),
        ("bootstrap.servers", "localhost", "host:port"),
        ("acks", 2, "all, -1, 0, 1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_what_is_allowed(name, value, allowed):
    with pytest.raises(
        ConfigError, match=f"{re.escape(name)}={value!r} is not allowed; allowed: .*{allowed}"
    ):
        ProducerConfig.from_user({**SERVERS, name: value})


def test_bootstrap_servers_are_required():
    with pytest.raises(ConfigError, match=r"bootstrap\.servers is required"):
        ProducerConfig.from_user({}, {})
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user({}, {"bootstrap_servers": None})
    told = "bootstrap.servers must not be None: it is required and has no default; allowed: one or more"
    assert str(caught.value).startswith(told)


def test_none_is_not_a_value_except_where_it_is_the_default():
    with pytest.raises(ConfigError, match=r"linger\.ms must not be None"):
        read(linger_ms=None)
    config = read(
        client_id=None, partitioner=None, key_serializer=None, transactional_id=None, ssl_context=None
    )
    assert config.explicit == {"bootstrap.servers"}


def test_words_in_any_case_get_their_normal_form():
    config = read({"security.protocol": "plaintext", "metadata.recovery.strategy": "NONE"})
    assert (config.security_protocol, config.metadata_recovery_strategy) == ("PLAINTEXT", "none")


def test_config_must_be_a_mapping_or_a_path():
    with pytest.raises(TypeError, match="config must be a mapping"):
        ProducerConfig.from_user(5, {})


# ------------------------------------------------------------------------------------------------ client.id


def test_client_ids_are_numbered():
    numbers = [int(read().client_id.removeprefix("producer-")) for _ in range(3)]
    assert numbers == list(range(numbers[0], numbers[0] + 3))
    assert numbers[0] >= 1


@pytest.mark.parametrize("given", ["", "orders"])
def test_a_given_client_id_stays_and_takes_no_number(given):
    before = int(read().client_id.removeprefix("producer-"))
    assert read(client_id=given).client_id == given
    assert read().client_id == f"producer-{before + 1}"


# ------------------------------------------------------------------------------------------------ files


@pytest.fixture
def properties(tmp_path):
    def write(text, encoding="utf-8"):
        path = tmp_path / "app.properties"
        path.write_bytes(text.encode(encoding))
        return path

    return write


@pytest.mark.parametrize("as_text", [True, False])
def test_a_properties_file(properties, as_text):
    path = properties("# ours\nbootstrap.servers = a:1,\\\n    b:2\nlinger_ms: 20 \nclient.id h\u00e9\n")
    config = ProducerConfig.from_user(str(path) if as_text else path, {"acks": 1})
    assert config.bootstrap_servers == ("a:1", "b:2")
    assert (config.linger_ms, config.client_id, config.acks) == (20, "h\u00e9", 1)


def test_a_byte_order_mark_is_no_part_of_the_first_name(properties):
    assert ProducerConfig.from_user(properties("bootstrap.servers=a:1", "utf-8-sig")).bootstrap_servers == (
        "a:1",
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "bootstrap.servers=a:1\nlinger.ms=x",
            r"linger\.ms must be a whole number.*line 2 of .*app\.properties",
        ),
        ("\nlinger.mz=5", r"did you mean 'linger\.ms'\?.*line 2 of .*app\.properties"),
        ("linger.ms=5\nlinger.ms=6", r"given twice.*line 1 of .*line 2 of"),
        ("linger.ms=\\u00", r"line 1 of .*app\.properties"),
    ],
)
def test_errors_name_the_line_of_the_file(properties, text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ProducerConfig.from_user(properties(text))


@pytest.mark.parametrize("main", ["shop", "pyspark.daemon", "pyspark.worker"])
def test_the_environment_wins_over_a_file_and_loses_to_an_argument(properties, monkeypatch, main):
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec(main, None))
    path = properties("bootstrap.servers=a:1\nglass_box=127.0.0.1:1\nglass.box.token=of-the-file\n")

    def read_file(**options):
        config = ProducerConfig.from_user(path, options)
        return config.glass_box, config.glass_box_token and config.glass_box_token.value

    assert read_file() == ("127.0.0.1:1", "of-the-file")
    for name in ("PENSTOCK_GLASS_BOX", "PENSTOCK_GLASS_BOX_TOKEN"):
        monkeypatch.setenv(name, "")
    assert read_file() == ("127.0.0.1:1", "of-the-file"), "an empty variable is none"
    monkeypatch.setenv("PENSTOCK_GLASS_BOX_TOKEN", "of-the-environment")
    assert read_file() == ("127.0.0.1:1", None), "None: the environment is asked"
    monkeypatch.setenv("PENSTOCK_GLASS_BOX", "127.0.0.1:2")
    # A worker of Spark does not ask the environment for a page, so that the file counts.
    assert read_file() == (None if main == "shop" else "127.0.0.1:1", None)
    assert read_file(glass_box="127.0.0.1:1", glass_box_token="of-the-file") == ("127.0.0.1:1", "of-the-file")
    with pytest.raises(ConfigError, match="given twice with different values"):
        read_file(glass_box="127.0.0.1:3")
    argument = ProducerConfig.from_user({"bootstrap.servers": "a:1", "glass.box": "127.0.0.1:3"})
    assert argument.glass_box == "127.0.0.1:3"


def test_a_file_that_cannot_be_read(tmp_path, properties):
    missing = tmp_path / "missing.properties"
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_user(missing)
    assert str(caught.value) == f"cannot read the properties file {str(missing)!r}: No such file or directory"
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    with pytest.raises(ConfigError, match="cannot read the properties file"):
        ProducerConfig.from_user(properties("client.id=h\u00e9", "latin-1"))


# ------------------------------------------------------------------------------------------------ old names


@pytest.mark.parametrize(
    ("given", "field", "expected"),
    [
        ({"block.on.buffer.full": "true"}, "max_block_ms", 2**63 - 1),
        ({"block.on.buffer.full": False}, "max_block_ms", 0),
        ({"block.on.buffer.full": "false", "metadata.fetch.timeout.ms": "700"}, "max_block_ms", 700),
        ({"max.block.ms": 800, "block_on_buffer_full": "false"}, "max_block_ms", 800),
        ({"metadata.fetch.timeout.ms": "700"}, "max_block_ms", 700),
        ({"timeout.ms": 900}, "request_timeout_ms", 900),
        ({"timeout_ms": 900, "request.timeout.ms": 900}, "request_timeout_ms", 900),
    ],
)
def test_old_names_are_understood_with_a_warning(given, field, expected, caplog):
    with caplog.at_level(logging.WARNING):
        config = read(given)
    assert getattr(config, field) == expected
    assert field.replace("_", ".") in config.explicit
    old = [name for name in given if name.replace("_", ".") in ALIASES]
    assert [record.args[0] for record in caplog.records] == old


@pytest.mark.parametrize(
    "given",
    [
        {"block.on.buffer.full": "true", "max.block.ms": 5},
        {"metadata.fetch.timeout.ms": 6, "max.block.ms": 5},
        {"timeout.ms": 6, "request.timeout.ms": 5},
    ],
)
def test_old_names_do_not_override(given):
    with pytest.raises(ConfigError, match="given twice with different values"):
        read(given)


@pytest.mark.parametrize(("name", "value"), [("block.on.buffer.full", "maybe"), ("timeout.ms", "x")])
def test_a_wrong_value_of_an_old_name_names_it(name, value):
    with pytest.raises(ConfigError, match=f"^{re.escape(name)}"):
        read({name: value})


# ------------------------------------------------------------------------------------------------ not yet


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transaction.two.phase.commit.enable", True),
        ("config.providers", ["file"]),
    ],
)
def test_features_to_come_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{re.escape(name)}.*not supported yet"):
        read({name: value})


def test_features_to_come_may_be_set_to_off():
    config = read(
        {
            "enable.idempotence": "false",
            "transaction.two.phase.commit.enable": False,
            "security.protocol": "PLAINTEXT",
            "enable.metrics.push": "false",
            "metric.reporters": "",
            "config.providers": [],
        }
    )
    assert not config.enable_idempotence


# ------------------------------------------------------------------------------------------------ the object


def test_it_is_frozen():
    config = read()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.linger_ms = 7


def test_repr_shows_what_was_set():
    config = read({"linger.ms": "20"}, client_id="orders", acks=1)
    assert (
        repr(config)
        == "ProducerConfig(client.id='orders', bootstrap.servers=('localhost:9092',), acks=1, linger.ms=20)"
    )


def test_as_dict_has_every_option_by_its_dotted_name():
    values = read(linger_ms=20).as_dict()
    assert set(values) == set(KEYS)
    assert (values["linger.ms"], values["acks"], values["interceptor.classes"]) == (20, -1, ())

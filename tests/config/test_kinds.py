# SPDX-License-Identifier: Apache-2.0
"""How values of each kind are read, and how they are refused."""

from __future__ import annotations

import pytest

from penstock.config.kinds import (
    Addresses,
    Anything,
    Between,
    ConfigKey,
    Distinct,
    Kind,
    OneOf,
    Password,
    parse_address,
)
from penstock.errors import ConfigError


def key(kind, check=None, default=0):
    return ConfigKey("some.option", kind, default, "low", "Doc.", check or Anything())


class Index:
    """An integer of another library."""

    def __index__(self):
        return 7


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (Kind.BOOL, True, True),
        (Kind.BOOL, " TRUE ", True),
        (Kind.BOOL, "false", False),
        (Kind.INT, 5, 5),
        (Kind.INT, " 5 ", 5),
        (Kind.INT, "+5", 5),
        (Kind.INT, "-2147483648", -(2**31)),
        (Kind.INT, Index(), 7),
        (Kind.LONG, str(2**63 - 1), 2**63 - 1),
        (Kind.STRING, " a b ", "a b"),
        (Kind.STRING, "", ""),
        (Kind.LIST, " a , b ", ("a", "b")),
        (Kind.LIST, "", ()),
        (Kind.LIST, " ", ()),
        (Kind.LIST, ["a", " b"], ("a", "b")),
        (Kind.LIST, (), ()),
        (Kind.PASSWORD, " secret ", Password(" secret ")),
        (Kind.PASSWORD, Password("secret"), Password("secret")),
        (Kind.CLASS, " m:a ", "m:a"),
        (Kind.CLASS, len, len),
        (Kind.CLASSES, "m:a, m:b", ("m:a", "m:b")),
        (Kind.CLASSES, [len, "m:a "], (len, "m:a")),
    ],
)
def test_values_are_read(kind, value, expected):
    parsed = key(kind).parse(value)
    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Kind.BOOL, "yes"),
        (Kind.BOOL, 1),
        (Kind.BOOL, ""),
        (Kind.INT, True),
        (Kind.INT, 5.0),
        (Kind.INT, "5.0"),
        (Kind.INT, "1_000"),
        (Kind.INT, "\u0665"),
        (Kind.INT, ""),
        (Kind.INT, "9" * 5000),
        (Kind.INT, 2**31),
        (Kind.INT, "-2147483649"),
        (Kind.LONG, 2**63),
        (Kind.LONG, "ten"),
        (Kind.STRING, 5),
        (Kind.STRING, b"x"),
        (Kind.LIST, "a,,b"),
        (Kind.LIST, "a,"),
        (Kind.LIST, ["a", ""]),
        (Kind.LIST, ["a", None]),
        (Kind.LIST, ["a", 1]),
        (Kind.LIST, {"a"}),
        (Kind.PASSWORD, 5),
        (Kind.CLASS, " "),
        (Kind.CLASSES, [None]),
        (Kind.CLASSES, len),
        (Kind.INT, None),
    ],
)
def test_values_of_another_kind_are_refused_by_name(kind, value):
    with pytest.raises(ConfigError, match=r"some\.option"):
        key(kind).parse(value)


def test_the_error_says_what_was_given_and_what_is_expected():
    with pytest.raises(ConfigError) as caught:
        key(Kind.INT).parse("ten")
    assert str(caught.value) == "some.option must be a whole number, not 'ten' (str)"


def test_none_is_allowed_where_it_is_the_default():
    assert key(Kind.STRING, default=None).parse(None) is None


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (Between(0), [0, 10**12], [-1]),
        (Between(1, 9, also=-1), [1, 9, -1], [0, 10, -2]),
        (Between(-131072, 22), [-131072, 22], [-131073, 23]),
    ],
)
def test_ranges_are_closed(check, good, bad):
    for value in good:
        assert key(Kind.LONG, check).parse(value) == value
    for value in bad:
        with pytest.raises(
            ConfigError, match=f"some.option={value} is not allowed; allowed: {check.allowed}"
        ):
            key(Kind.LONG, check).parse(value)


def test_words_are_taken_as_the_list_writes_them():
    any_case = key(Kind.STRING, OneOf(("SSL", "none"), any_case=True))
    assert (any_case.parse("ssl"), any_case.parse(" NONE ")) == ("SSL", "none")
    exact = key(Kind.STRING, OneOf(("all", "1")))
    assert (exact.parse("all"), exact.parse(1)) == ("all", "1")
    for value in ("All", 2, True):
        with pytest.raises(ConfigError):
            exact.parse(value)


def test_lists_may_have_to_be_distinct():
    distinct = key(Kind.CLASSES, Distinct())
    assert distinct.parse([len, max]) == (len, max)
    with pytest.raises(ConfigError, match="without duplicates"):
        distinct.parse([len, max, len])


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("localhost:9092", ("localhost", 9092)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[::1]:9092", ("::1", 9092)),
        ("[fe80::1%eth0]:9092", ("fe80::1%eth0", 9092)),
        ("my_host-1.example.org:65535", ("my_host-1.example.org", 65535)),
        ("PLAINTEXT://broker:9092", ("broker", 9092)),
        ("SASL_SSL://[::1]:9", ("::1", 9)),
    ],
)
def test_addresses(address, expected):
    assert parse_address(address) == expected
    assert key(Kind.LIST, Addresses()).parse(address) == (address,)


def test_addresses_may_be_a_list_or_a_text_with_commas():
    servers = key(Kind.LIST, Addresses())
    assert servers.parse(["a:1", "a:2"]) == ("a:1", "a:2")
    assert servers.parse(" a:1 , b.example-c_d.org:65535") == ("a:1", "b.example-c_d.org:65535")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("", None),
        ([], None),
        ("localhost", "'localhost' is not host:port; the port is missing"),
        ("localhost:", "'localhost:' is not host:port"),
        ("a:1,b", "'b' is not host:port"),
        ("SASL-X://a:1", "'SASL-X://a:1' is not host:port"),
        ("9x://a:1", "'9x://a:1' is not host:port"),
        ("://a:1", "'://a:1' is not host:port"),
        ("::1:9092", "stands in brackets"),
        (":9092", "no host"),
        ("[]:9092", "no host"),
        ("[not-v6]:9092", "malformed host"),
        ("a b:1", "not host:port"),
        ("h\u00e4st:9092", "malformed host"),
        ("a:0", "from 1 to 65535"),
        ("a:65536", "from 1 to 65535"),
        (f"a:{'1' * 5000}", "from 1 to 65535"),
        ("a:x", "not host:port"),
        ("a:-1", "not host:port"),
        ("http://a/b:1", "not host:port"),
        ("a:9092;b:9092", "separate addresses with a comma: a:9092,b:9092"),
        ("a;b:9092", "separate addresses with a comma"),
        ("a:9092 b:9092", "separate addresses with a comma"),
        ("a:1,b:2,a:1", "'a:1' is there twice"),
        ("[::1]:5,PLAINTEXT://[::1]:5", "'PLAINTEXT://[::1]:5' is there twice"),
    ],
)
def test_what_is_no_list_of_addresses(value, reason):
    with pytest.raises(ConfigError, match=r"some\.option.*host:port") as caught:
        key(Kind.LIST, Addresses()).parse(value)
    assert str(caught.value).endswith("[address]:port" if reason is None else ")")
    assert reason is None or reason in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        "me:hunter2@h:1",
        "PLAINTEXT://me:hunter2@h:1",
        ["a:1", "hunter2@h:1"],
        "me:hunter2,x@h:1",
        "me:hunter2@h:1,",
    ],
)
def test_what_may_be_a_password_in_an_address_is_hidden(value):
    with pytest.raises(ConfigError, match=r"some\.option=\[hidden\]") as caught:
        key(Kind.LIST, Addresses()).parse(value)
    assert "hunter2" not in str(caught.value)


def test_an_empty_entry_is_no_address():
    with pytest.raises(ConfigError, match="has an empty entry"):
        key(Kind.LIST, Addresses()).parse(" , ")


def test_a_secret_is_never_shown():
    secret = key(Kind.PASSWORD).parse("hunter2")
    assert secret.value == "hunter2"
    assert "hunter2" not in f"{secret} {secret!r} {[secret]} {key(Kind.PASSWORD).show('hunter2')}"
    with pytest.raises(ConfigError) as caught:
        key(Kind.PASSWORD).parse(b"hunter2")
    assert "hunter2" not in str(caught.value)


def test_secrets_compare_by_value():
    assert Password("a") == Password("a")
    assert Password("a") != Password("b")
    assert Password("a") != "a"
    assert len({Password("a"), Password("a")}) == 1


def test_names_of_fields():
    names = {
        name: ConfigKey(name, Kind.CLASS, None, "low", "").field_name
        for name in ("linger.ms", "partitioner.class")
    }
    assert names == {"linger.ms": "linger_ms", "partitioner.class": "partitioner"}

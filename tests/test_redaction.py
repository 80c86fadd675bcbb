# SPDX-License-Identifier: Apache-2.0
"""Secrets are recognised by name, by value, and inside texts."""

from __future__ import annotations

import json
import time
from urllib.parse import quote

import pytest

from penstock._redaction import HIDDEN, Redactor, is_secret_name, redacted, shown_option
from penstock.config.kinds import ConfigKey, Kind
from penstock.config.security_keys import SECURITY_KEYS, SPELLINGS

# What everybody may see: certificates.
PUBLIC = {
    "ssl.truststore.certificates",
    "ssl.keystore.certificate.chain",
    "https.ca.pem",
}

SECRET = [
    "password",
    "kafka.ssl.key.password",
    "ssl.keystore.key",
    "sasl.jaas.config",
    "credentials",
    "fs.azure.account.key.acc",
    "accountKey",
    "apiKey",
    "api-key",
    "API_KEY",
    "fs.s3a.secret.key",
    "fs.s3a.access.key",
    "fs.s3a.session.token",
    "sasToken",
    "fs.azure.sas.box.acc",
    "PAT",
    "basic.auth.user.info",
    "client_secret",
    "dbPwd",
    "passphrase",
    "AWS_SECRET_ACCESS_KEY",
    "enc_key",
    "webhookSignature",
    "bearer",
]
HARMLESS = [
    "key",
    "kafka.key.serializer",
    "value.serializer",
    "primaryKey",
    "partition_key",
    "partitioner.ignore.keys",
    "ssl.keystore.location",
    "linger.ms",
    "url",
    "dbtable",
    "user",
    "topic",
    "monkey",
    "keystore",
    "acks",
    "path",
]


@pytest.mark.parametrize("name", SECRET)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)
    assert shown_option(name, "hunter2") == HIDDEN


@pytest.mark.parametrize("name", HARMLESS)
def test_other_names(name: str) -> None:
    assert not is_secret_name(name)
    assert shown_option(name, "value") == "value"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "jdbc:postgresql://db/x?user=u&password=s3cr&ssl=true",
            "jdbc:postgresql://db/x?user=u&password=(hidden)&ssl=true",
        ),
        ("mongodb://u:s3cr@h/db", "mongodb://u:(hidden)@h/db"),
        ("mongodb://u:${env:P}@h/db", "mongodb://u:${env:P}@h/db"),
        ("https://acc.blob.core/?sv=1&sig=s3cr%2F", "https://acc.blob.core/?sv=1&sig=(hidden)"),
        ("AccountName=a;AccountKey=s3cr==;Suffix=x", "AccountName=a;AccountKey=(hidden);Suffix=x"),
        (
            "CREATE TABLE t USING jdbc OPTIONS (url 'jdbc:x?password=s3cr', password 's3cr', dbtable 't')",
            "CREATE TABLE t USING jdbc OPTIONS (url 'jdbc:x?password=(hidden)', password '(hidden)', dbtable 't')",
        ),
        ('required username="u" password="s3cr;x";', 'required username="u" password="(hidden)";'),
        ('{"password": "s3cr", "a": 1}', '{"password": "(hidden)", "a": 1}'),
        ("SET my.password = s3cr", "SET my.password = (hidden)"),
        ("password=${env:P}", "password=${env:P}"),
        ("token 'it\\'s s3cr' x", "token '(hidden)' x"),
        ("an open quote: password='s3cr", "an open quote: password='(hidden)'"),
        ("password='it''s s3cr'", "password='(hidden)'"),
        ("map('url', 'x', 'password', 's3cr')", "map('url', 'x', 'password', '(hidden)')"),
        ("mongodb://u:s3@cr@h/db", "mongodb://u:(hidden)@h/db"),
        ("socks5://u:s3/cr@h:1", "socks5://u:(hidden)@h:1"),
        ("socks5://u:s3/c@r@h:1", "socks5://u:(hidden)@h:1"),
        (f"{'x.' * 40}http://u:s3cr@h", f"{'x.' * 40}http://u:(hidden)@h"),
        ("http://h:8080/x@2", None),
        ("mongodb://h:1,g:2/db?mail=a@b", None),
        ("jdbc:oracle:thin:scott/s3cr@//h:1521/x", "jdbc:oracle:thin:scott/(hidden)@//h:1521/x"),
        ("jdbc:oracle:thin:scott/${env:P}@//h:1521/x", "jdbc:oracle:thin:scott/${env:P}@//h:1521/x"),
        ("jdbc:oracle:thin:@//h:1521/x", None),
        ("CREATE USER u IDENTIFIED BY 's3cr' x", "CREATE USER u IDENTIFIED BY (hidden) x"),
        ("IDENTIFIED BY 'it''s s3cr' x", "IDENTIFIED BY (hidden) x"),
        ("IDENTIFIED BY 'it\\'s s3cr' x", "IDENTIFIED BY (hidden) x"),
        ("IDENTIFIED BY PASSWORD 's3cr' x", "IDENTIFIED BY PASSWORD (hidden) x"),
        ("IDENTIFIED BY VALUES 'S:s3cr'", "IDENTIFIED BY VALUES (hidden)"),
        ("IDENTIFIED WITH native BY 's3cr'", "IDENTIFIED WITH native BY (hidden)"),
        ("jdbc:oracle:thin:scott/s3@cr@//h:1521/x", "jdbc:oracle:thin:scott/(hidden)@//h:1521/x"),
        ("jdbc:x?password=s3,c)r&ssl=true", "jdbc:x?password=(hidden)&ssl=true"),
        ("password=(hidden)", None),
        ("curl -H 'Authorization: Bearer s3crs3cr.x' h", "curl -H 'Authorization: Bearer (hidden)' h"),
        ("Authorization: Basic dXNlcjpz", "Authorization: Basic (hidden)"),
        ("http://h:8080/x of a@b", None),
        ("SELECT * FROM a JOIN b ON a.service_key = b.service_key", None),
        ("orders.toml:12: [sink] key: the column `x` cannot be resolved", None),
        ("[source] password: must be a string, but is a table", None),
    ],
)
def test_pairs_inside_of_texts(text: str, shown: str | None) -> None:
    assert redacted(text) == (text if shown is None else shown)


@pytest.mark.parametrize(
    "value", ["hunter2", "p@ss w'ord/ü", 'quo"ted\\', "two words", "-----BEGIN-----\nMIIEabcdef\n"]
)
def test_a_known_value_is_hidden_however_it_is_written(value: str) -> None:
    hide = Redactor({value: "${env:P}"})
    forms = [
        value,
        quote(value),
        quote(value, safe=""),
        json.dumps(value),
        repr(value),
        " ".join(value.split()),
    ]
    for form in forms:
        shown = hide(f"cannot connect with {form}: refused")
        assert shown.startswith("cannot connect with ")
        assert "${env:P}" in shown
        assert max(value.split(), key=len) not in shown


@pytest.mark.parametrize(
    "text",
    [
        "password" + " " * 60_000 + "x",
        "jdbc:oracle:thin:" * 3000,
        "a" * 60_000,
        "password='" + "'" * 60_000,
        "a." * 50_000,
        "a-" * 50_000,
        "a://" * 25_000,
        "a://b:${" * 12_500,
        "a=${" * 25_000,
        "a='" * 30_000,
        "identified by '" * 7_000,
        "bearer " * 15_000,
        "x://u:" + "@" * 100_000,
        "x://u:" + "a/" * 50_000,
    ],
)
def test_a_long_text_takes_no_longer_than_it_is(text: str) -> None:
    """The square of its length would be minutes."""
    began = time.thread_time()
    redacted(text)
    assert time.thread_time() - began < 5


@pytest.mark.parametrize("text", ["prehunter2post", "a+b%26hunter2", "'it''s hunter2'", "'it\\'s hunter2'"])
def test_a_long_value_is_hidden_within_words_and_as_forms_write_it(text: str) -> None:
    hide = Redactor({"hunter2": "1", "a b&hunter2": "2", "it's hunter2": "3"})
    shown = hide(text)
    assert "hunter2" not in shown
    assert shown in ("pre1post", "2", "'3'")


@pytest.mark.parametrize("name", ["pw", "otp", "hmac", "psk", "cookie"])
def test_names_that_are_words_of_their_own(name: str) -> None:
    assert is_secret_name(f"my.{name}")


def test_an_option_is_hidden_by_its_name_and_a_whole_text_is_looked_at_too() -> None:
    hide = Redactor({}, {"x1": "password=s3cr x${env:A}"})
    assert hide.option("my.password", "plain") == HIDDEN
    assert hide.option("my.note", "plain") == "plain"
    assert hide("x1") == "password=(hidden) x${env:A}"


def test_a_short_value_is_hidden_as_a_word_only() -> None:
    hide = Redactor({"s3": "${env:S}", "orders": "${env:T}", "true": "${env:B}", "": "${env:E}"})
    assert hide("s3 is not ls3x; orders-2 is true") == "${env:S} is not ls3x; ${env:T}-2 is true"


def test_of_two_values_the_longer_one_counts() -> None:
    assert Redactor({"abcdef": "1", "abcdefghij": "2"})("abcdefghij abcdef") == "2 1"


def test_a_text_that_is_known_as_a_whole_is_shown_as_it_was_written() -> None:
    hide = Redactor({}, {"x1y": "x${env:A}y"})
    assert hide("x1y") == "x${env:A}y"
    assert hide("1") == "1"


@pytest.mark.parametrize(
    "key", [key for key in SECURITY_KEYS if key.kind is Kind.PASSWORD], ids=lambda key: key.name
)
def test_secret_options_of_clients_are_hidden_with_or_without_a_prefix(key: ConfigKey) -> None:
    if key.name in PUBLIC:
        return
    spellings = [name for name, spelling in SPELLINGS.items() if spelling.here == key.name]
    for name in (key.name, key.snake_name, f"kafka.{key.name}", *spellings):
        assert shown_option(name, "hunter2") == HIDDEN

# SPDX-License-Identifier: Apache-2.0
"""No secret is shown, by anything: objects, errors, logs. Also that the search for secrets in all tests finds them."""

from __future__ import annotations

import gc
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
from fix_secrets import Watch, findings, is_watched, texts_of
from security.tls.certificates import client, other_ca, server_context, the_ca

from penstock import Producer
from penstock.config.kinds import Password
from penstock.errors import ConfigError, KafkaError
from penstock.security.proxy import ProxyIdentityError, ProxyRefusedError, ProxySettings
from penstock.security.tls.errors import TlsLostError, TlsRefusedError
from penstock.testing import FakeKafka, FakeSecurity

pytest_plugins = ["pytester"]

SECRET = "xyzzy-plugh-1976"


# ---- the search


def shown(watch: Watch) -> list[str]:
    found = watch.end()
    assert not any(SECRET in text for text in found), "the report does not show it again"
    return found


@pytest.fixture
def watch() -> Watch:
    watch = Watch()
    watch.begin()
    watch.learn(SECRET)
    return watch


@pytest.mark.parametrize(
    "text",
    [
        f"wrong: {SECRET}",
        repr(f"\0alice\0{SECRET}".encode()),
        "Authorization: eHl6enktcGx1Z2gtMTk3Ng==",
    ],
)
def test_a_secret_that_is_said_is_found(watch: Watch, text: str):
    watch.say("nothing")
    watch.say(text)
    assert len(shown(watch)) == 1


def test_a_secret_behind_an_error_is_found(watch: Watch):
    try:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise KafkaError("it failed") from error
    except KafkaError as error:
        watch.note_error(error)
    assert len(shown(watch)) == 1


def test_a_cause_that_is_left_out_is_not_shown(watch: Watch):
    try:
        try:
            raise ValueError(SECRET)
        except ValueError:
            raise KafkaError("it failed") from None
    except KafkaError as error:
        watch.note_error(error)
    assert shown(watch) == []


def test_a_line_of_a_private_key_is_found(watch: Watch):
    key = client().key_pem()
    watch.learn(key)
    watch.say(f"read {key.splitlines()[1][:200]} from it")
    watch.say("-----BEGIN PRIVATE KEY-----")
    assert len(shown(watch)) == 1


@pytest.mark.parametrize(
    ("place", "watched"),
    [
        ("security/tls/test_safes.py", True),
        ("cli/test_options.py", True),
        ("spark/pipeline/test_secrets.py", True),
        ("sink/test_settings.py", True),
        ("producer/test_refused_identity.py", True),
        ("records/test_crc_cy.py", False),
    ],
)
def test_tests_of_security_are_searched_wherever_they_are(place: str, watched: bool):
    path = Path(__file__).parents[1] / place
    assert path.is_file()
    assert is_watched(path) == watched


def test_a_test_that_shows_a_secret_fails(pytester: pytest.Pytester):
    here = Path(__file__).parents[1]
    folder = pytester.mkdir("security")
    (folder / "test_leak.py").write_text(
        """
import logging, subprocess
from penstock.config.kinds import Password
from penstock.errors import KafkaError
made = Password("made-before-the-test")

def test_logged_where_nobody_looks():
    logging.getLogger("penstock.x").debug("it is %s", Password("logged-by-mistake").value)

def test_printed():
    print(made.value)

def test_in_an_error():
    try:
        raise KafkaError(made.value)
    except KafkaError:
        pass

def test_printed_and_taken(capsys):
    print(made.value)
    capsys.readouterr()

def test_printed_by_a_process():
    subprocess.run(["echo", made.value], capture_output=True)

def test_nothing_shown():
    logging.getLogger("penstock.x").debug("it is %s", made)
"""
    )
    pytester.makeconftest(
        """
import pathlib
import fix_secrets
fix_secrets._HERE = pathlib.Path(__file__).parent
pytest_plugins = ["fix_secrets"]
"""
    )
    result = pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", "-o", f"pythonpath={here}")
    result.assert_outcomes(passed=6, errors=5)
    text = result.stdout.str()
    assert text.count("a secret is shown") >= 5
    assert "logged-by-mistake" not in text


# ---- a client with secrets


def ways(folder: Path) -> dict[str, tuple[FakeSecurity, dict[str, Any]]]:
    """Clients that keep a secret, each of another kind, and what their cluster wants."""
    own = folder / "own.pem"
    own.write_text(client().key_pem(SECRET) + client().pem)
    texts = {"ssl.keystore.key": client().key_pem(SECRET), "ssl.keystore.certificate.chain": client().pem}
    sasl = {"protocol": "SASL_PLAINTEXT", "users": {"alice": SECRET}}
    mutual = FakeSecurity(
        protocol="SSL", wants_certificate=True, tls=server_context(wants_client_of=the_ca())
    )
    trusted = {
        "security.protocol": "SSL",
        "ssl.truststore.certificates": the_ca().pem,
        "ssl.key.password": SECRET,
    }
    plain_jaas = f'org.apache.kafka.common.security.plain.PlainLoginModule required username=alice password="{SECRET}";'
    of_plain = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return {
        "PLAIN": (FakeSecurity(**sasl), FakeSecurity(**sasl).client_options("PLAIN")),
        "JAAS": (FakeSecurity(**sasl), of_plain | {"sasl.jaas.config": plain_jaas}),
        "SCRAM": (FakeSecurity(**sasl), FakeSecurity(**sasl).client_options("SCRAM-SHA-256")),
        "token": (
            FakeSecurity(**sasl),
            {
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "OAUTHBEARER",
                "sasl.oauth.token.provider": lambda: (SECRET, 2e9),
            },
        ),
        "key file": (mutual, trusted | {"ssl.keystore.location": str(own)}),
        "key text": (mutual, trusted | texts),
        "proxy": (FakeSecurity(), {"proxy.url": f"socks5://alice:{SECRET}@127.0.0.1:1"}),
    }


def reachable(start: object) -> Iterator[object]:
    """All objects of this package that an object leads to; not by modules, which lead to those of all other tests."""
    seen: set[int] = set()
    left = [start]
    while left:
        found = left.pop()
        if id(found) in seen or isinstance(found, type | ModuleType) or len(seen) > 200_000:
            continue
        seen.add(id(found))
        module = type(found).__module__ or ""
        if module.startswith("penstock"):
            yield found
        if isinstance(found, FunctionType):  # its globals are those of a module
            left += [found.__closure__, found.__defaults__, found.__kwdefaults__, found.__dict__]
        elif module.startswith(("penstock", "builtins", "functools", "collections")):
            left.extend(gc.get_referents(found))


def leaks(texts: list[str]) -> list[str]:
    return list(findings(texts, [SECRET, *client().key_pem().splitlines()[1:-1]]))


@pytest.mark.parametrize("way", ["PLAIN", "JAAS", "SCRAM", "token", "key file", "key text", "proxy"])
@pytest.mark.parametrize("refused", [False, True])
def test_no_object_of_a_producer_shows_a_secret(way: str, refused: bool, tmp_path: Path):
    security, options = ways(tmp_path)[way]
    if refused:
        security.users["alice"] = "another one"
        if security.uses_tls:
            security.tls = server_context(wants_client_of=other_ca())
    with FakeKafka(topics={"t": 1}, security=security) as kafka:
        fails = refused or way in ("token", "proxy")
        options |= {
            "bootstrap.servers": kafka.bootstrap_servers,
            "max.block.ms": 2000 if fails else 60_000,
            "linger.ms": 0,
        }
        with Producer(options) as producer:
            errors: list[BaseException] = []
            try:
                producer.send("t", b"x").result(60)
            except KafkaError as error:
                errors.append(error)
            assert bool(errors) is fails
            objects = list(reachable(producer))
            assert 20 < len(objects) < 2000
            assert leaks([repr(each) + str(each) for each in objects]) == []
            told = [text for error in errors for text in texts_of(error)]
            trace = [line for error in errors for line in traceback.format_exception(error)]
            assert leaks([*told, *trace]) == []
            producer.close(0)


# ---- a configuration that is wrong

JAAS = f'sasl.jaas.config=org.PlainLoginModule required username=alice password="{SECRET}"'
PLAIN = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
SCRAM = "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
WRONG = {
    "no semicolon": PLAIN + JAAS,
    "another module": f"{SCRAM}{JAAS};",
    "without SASL": f"{JAAS};",
    "unknown in JAAS": f"{PLAIN}{JAAS} x=1;",
    "unknown": f"{PLAIN}sasl.usrname=alice\nsasl.password={SECRET}",
    "no user": f"{PLAIN}sasl.password={SECRET}",
    "user outside of ASCII": f"{SCRAM}sasl.username=\\u00fc\nsasl.password={SECRET}",
    "given twice": f"{PLAIN}sasl.password={SECRET}\nsasl_password=x{SECRET}",
    "password of a key": f"security.protocol=SSL\nssl.keystore.location=OWN\nssl.key.password=x{SECRET}",
    "proxy": f"proxy.url=socks5://alice:{SECRET}@host:x",
    "a number": f"{PLAIN}sasl.password={SECRET}\nlinger.ms=x",
    "not UTF-8": f"{PLAIN}sasl.password={SECRET}\nclient.id=\udcfc",
}


def locals_of(error: BaseException) -> Iterator[str]:
    """All that a report with the local variables of every frame would show; also of errors that it leaves out."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        left += [each.__cause__, each.__context__]
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if str(frame.f_globals["__name__"]).startswith("penstock"):
                yield from (
                    f"{frame.f_code.co_qualname}: {name}={frame.f_locals[name]!r}" for name in frame.f_locals
                )


@pytest.mark.parametrize("wrong", WRONG)
def test_no_frame_of_a_wrong_configuration_shows_a_secret(wrong: str, tmp_path: Path):
    own = tmp_path / "own.pem"
    own.write_text(client().key_pem(SECRET) + client().pem)
    place = tmp_path / "client.properties"
    text = "bootstrap.servers=127.0.0.1:1\n" + WRONG[wrong].replace("OWN", str(own)) + "\n"
    place.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        Producer(str(place))
    found = list(locals_of(caught.value))
    assert found, "there are frames"
    assert leaks([*found, *texts_of(caught.value)]) == []


def test_a_producer_that_could_not_be_made_can_be_shown():
    made = Producer.__new__(Producer)
    with pytest.raises(ConfigError):
        made.__init__(linger_ms=-1)  # type: ignore[misc]
    assert repr(made) == "<Producer that could not be made>"


def test_errors_of_connections_can_be_sent_to_another_process():
    proxy = ProxySettings(kind="http", host="h", port=1, user="alice", password=Password(SECRET))
    for error in (
        TlsRefusedError("what happened", "what to do"),
        TlsLostError("what happened", "what to do"),
        ProxyRefusedError("what happened", "what to do"),
        ProxyIdentityError.of(proxy, "does not accept the password"),
    ):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), copy.advice) == (str(error), error.advice)
        assert copy.advice


def test_the_error_that_a_program_is_busy_with_keeps_its_frames():
    busy = ValueError("of the program")
    try:
        raise busy
    except ValueError:
        with pytest.raises(ConfigError) as caught:
            Producer(linger_ms=-1)
    assert caught.value.__context__ is busy
    assert busy.__traceback__ is not None

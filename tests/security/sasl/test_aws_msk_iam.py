# SPDX-License-Identifier: Apache-2.0
"""AWS_MSK_IAM: the signature against that of kafka-python, and where keys come from."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from security.oauth.provider import running_provider
from security.sasl.dialogue import authenticated, begin, run

from penstock.errors import AuthenticationError, ConfigError
from penstock.security.sasl.aws_identity import AwsIdentities, AwsIdentity
from penstock.security.sasl.aws_msk_iam import AwsMskIamCredentials, AwsMskIamMechanism, signed_payload
from penstock.security.sasl.settings import AwsSettings, SaslSettings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of the other client, when it is imported
    import kafka.net.sasl.msk as msk_of_kafka_python

HOST = "b-1.demo.abc123.c2.kafka.eu-west-1.amazonaws.com"
NOW = datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


class FrozenTime:
    """Stands for the module datetime of the other client."""

    timezone = __import__("datetime").timezone

    class datetime:  # noqa: N801  # its name there
        @staticmethod
        def now(zone):
            return NOW


@pytest.fixture(autouse=True)
def _without_botocore(monkeypatch):
    monkeypatch.setitem(sys.modules, "botocore", None)
    monkeypatch.setitem(sys.modules, "botocore.session", None)


def empty(*_args):
    raise OSError("no route")


def identities(tmp_path, environment=None, fetch=empty, provider=None, **aws) -> AwsIdentities:
    where = {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")} | (environment or {})
    return AwsIdentities(AwsSettings(**aws), provider, environment=where, fetch=fetch)


@pytest.mark.parametrize("token", [None, "session/token+=="])
def test_the_payload_is_that_of_kafka_python(monkeypatch, token):
    monkeypatch.setattr(msk_of_kafka_python, "datetime", FrozenTime)
    theirs = json.loads(
        msk_of_kafka_python.AwsMskIamClient(
            HOST, "AKIAEXAMPLE", "s3cret/key", "eu-west-1", token
        ).first_message()
    )
    ours = json.loads(signed_payload(HOST, "eu-west-1", AwsIdentity("AKIAEXAMPLE", "s3cret/key", token), NOW))
    assert len(ours["x-amz-signature"]) == 64
    theirs.pop("user-agent")
    assert ours.pop("user-agent").startswith("penstock/")
    assert ours == theirs


def mechanism(host=HOST, region=None, environment=None) -> AwsMskIamMechanism:
    return AwsMskIamMechanism(
        host, lambda: AwsIdentity("AKIA", "s3cret"), region, now=lambda: NOW, environment=environment or {}
    )


def test_the_dialogue():
    made = mechanism()
    _, sent = run(made, lambda _: b'{"version":"2020_10_22","request-id":"x"}')
    assert json.loads(sent[0])["host"] == HOST
    assert made.user == "AKIA"
    assert b"s3cret" not in sent[0]


def test_a_broker_that_quotes_the_request_does_not_make_its_secrets_shown():
    found = AwsMskIamMechanism(HOST, lambda: AwsIdentity("AKIA", "sk", "of-temporary-keys"), "eu-west-1")
    handshake, first = begin(found)
    signature = json.loads(bytes(first.request.body["auth_bytes"]))["x-amz-signature"]
    with pytest.raises(AuthenticationError) as caught:
        handshake.on_answer(2, authenticated(code=58, text=f"AKIA: {signature} of-temporary-keys"))
    assert "AKIA: (hidden) (hidden)" in str(caught.value)


def test_an_empty_answer_is_a_refusal():
    with pytest.raises(AuthenticationError, match="kafka-cluster:Connect") as caught:
        run(mechanism(), lambda _: b"")
    assert (caught.value.mechanism, caught.value.user) == ("AWS_MSK_IAM", "AKIA")


@pytest.mark.parametrize(
    ("host", "region", "environment", "expected"),
    [
        (HOST, None, {}, "eu-west-1"),
        (HOST + ".", None, {}, "eu-west-1"),
        ("boot-x.c3.kafka-serverless.us-east-2.amazonaws.com", None, {}, "us-east-2"),
        ("b-1.x.kafka.cn-north-1.amazonaws.com.cn", None, {}, "cn-north-1"),
        (HOST, "us-gov-1", {}, "us-gov-1"),
        ("10.0.0.1", None, {"AWS_REGION": "r1", "AWS_DEFAULT_REGION": "r2"}, "r1"),
        ("10.0.0.1", None, {"AWS_DEFAULT_REGION": "r2"}, "r2"),
    ],
)
def test_the_region(host, region, environment, expected):
    payload = json.loads(mechanism(host, region, environment).first())
    assert payload["x-amz-credential"] == f"AKIA/20260304/{expected}/kafka-cluster/aws4_request"


def test_a_region_that_nobody_knows():
    with pytest.raises(AuthenticationError, match="set AWS_REGION"):
        mechanism("10.0.0.1").first()


# ---- where keys come from


def test_the_environment(tmp_path):
    environment = {"AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "S", "AWS_SESSION_TOKEN": "T"}
    assert identities(tmp_path, environment).find() == AwsIdentity("A", "S", "T")


@pytest.mark.parametrize(
    ("environment", "aws", "expected"),
    [
        ({}, {}, AwsIdentity("A", "S%x")),
        ({}, {"profile": "other"}, AwsIdentity("B", "S2", "T2")),
        ({"AWS_PROFILE": "other"}, {}, AwsIdentity("B", "S2", "T2")),
        (
            {"AWS_ACCESS_KEY_ID": "E", "AWS_SECRET_ACCESS_KEY": "E"},
            {"profile": "other"},
            AwsIdentity("B", "S2", "T2"),
        ),
    ],
)
def test_the_file_of_shared_credentials(tmp_path, environment, aws, expected):
    (tmp_path / "credentials").write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = S%x\n"
        "[other]\naws_access_key_id=B\naws_secret_access_key=S2\naws_session_token=T2\n"
    )
    assert identities(tmp_path, environment, **aws).find() == expected


@pytest.mark.parametrize(
    "content",
    [
        "hunter2 without a section\n",
        "[default]\nhunter2\n",
        "x" * 200_000,
        "[default]\nx" + " " * 90_000 + "x",
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_not_shown(tmp_path, content):
    (tmp_path / "credentials").write_text(content)
    with pytest.raises(AuthenticationError, match="credentials") as caught:
        identities(tmp_path).find()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_profile_that_is_not_there(tmp_path):
    (tmp_path / "credentials").write_text("[default]\n")
    with pytest.raises(AuthenticationError, match="has no profile gone"):
        identities(tmp_path, profile="gone").find()


def answer(seconds: float) -> bytes:
    until = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(
        {"AccessKeyId": "A", "SecretAccessKey": "S", "Token": "T", "Expiration": until}
    ).encode()


def test_the_endpoint_of_a_container_and_keys_that_are_kept(tmp_path):
    asked = []

    def fetch(method, url, headers):
        asked.append((method, url, dict(headers)))
        return answer(3600)

    environment = {
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "t",
    }
    found = identities(tmp_path, environment, fetch)
    assert found.find().session_token == "T"
    assert found.find().access_key == "A"
    assert asked == [("GET", "http://169.254.170.2/v2/x", {"Authorization": "t"})]


def test_keys_that_end_soon_are_fetched_anew_and_serve_while_that_fails(tmp_path):
    answers = [answer(100), answer(3600)]
    calls = []

    def fetch(*args):
        calls.append(args)
        if len(calls) == 2:
            raise OSError("down")
        return answers.pop(0)

    found = identities(tmp_path, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/v2/x"}, fetch)
    first = found.find()
    assert found.find() is first
    assert found.find().expires_at > time.time() + 3000
    assert len(calls) == 3


def test_an_endpoint_elsewhere_without_https_is_not_asked(tmp_path):
    environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://elsewhere/x"}
    with pytest.raises(AuthenticationError, match="without https"):
        identities(tmp_path, environment, lambda *_: answer(60)).find()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.evil.example/x", "without https"),
        ("http://localhost.evil.example/x", "without https"),
        ("http://169.254.170.2@evil.example/x", "without https"),
        ("file://localhost/etc/passwd", "must begin with http"),
        ("ftp://127.0.0.1/x", "must begin with http"),
    ],
)
def test_endpoints_that_only_look_local(tmp_path, url, why):
    environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": url}
    with pytest.raises(AuthenticationError, match=why):
        identities(tmp_path, environment, lambda *_: pytest.fail("asked")).find()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "localhost", "[::1]", "169.254.170.23"])
def test_endpoints_that_are_local(tmp_path, host):
    environment = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://{host}:81/x"}
    assert identities(tmp_path, environment, lambda *_: answer(60)).find().access_key == "A"


@pytest.mark.parametrize("in_file", [False, True], ids=["variable", "file"])
@pytest.mark.parametrize("token", ["hunter2-token\n", " hunter2-token \r\n"])
def test_a_container_token_with_a_line_end(tmp_path, token, in_file):
    (tmp_path / "token").write_text(token, newline="")
    name = "AWS_CONTAINER_AUTHORIZATION_TOKEN"
    given = {f"{name}_FILE": str(tmp_path / "token")} if in_file else {name: token}
    heard = []

    def fetch(_method, _url, headers):
        heard.append(headers["Authorization"])
        return answer(60)

    identities(tmp_path, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"} | given, fetch).find()
    assert heard == ["hunter2-token"]


@pytest.mark.parametrize("token", ["hunter2\nX-Other: 1", "hunter2\x00", "hunter2\u00e9"])
def test_a_container_token_that_is_no_header_is_not_shown(tmp_path, token):
    given = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://127.0.0.1:9/x",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": token,
    }
    with pytest.raises(
        AuthenticationError, match="AWS_CONTAINER_AUTHORIZATION_TOKEN has characters"
    ) as caught:
        AwsIdentities(AwsSettings(), environment=given | {"HOME": str(tmp_path)}).find()
    assert "hunter2" not in str(caught.value)


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    given = {
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(tmp_path / "pipe"),
    }
    with pytest.raises(
        AuthenticationError, match="pipe of AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE is not a file"
    ):
        identities(tmp_path, given).find()
    with pytest.raises(AuthenticationError, match="pipe is not a file"):
        identities(tmp_path, {"AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "pipe")}).find()


def test_a_redirect_is_not_followed(tmp_path):
    heard = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):  # its name there
            heard.append((self.path, self.headers["Authorization"]))
            self.send_response(302)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            given = {
                "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
                "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"http://127.0.0.1:{server.server_port}/x",
                "AWS_CONTAINER_AUTHORIZATION_TOKEN": "t",
            }
            with pytest.raises(AuthenticationError, match="it answered 302"):
                AwsIdentities(AwsSettings(), environment=given).find()
        finally:
            server.shutdown()
            thread.join()
    assert heard == [("/x", "t")]


def test_an_endpoint_that_cannot_be_reached_is_told_in_words_of_the_system(tmp_path):
    def fetch(*_):
        raise ConnectionRefusedError(111, "Connection refused", "hunter2")

    with pytest.raises(AuthenticationError, match=r"cannot be asked: Connection refused$"):
        identities(tmp_path, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}, fetch).find()


def test_the_endpoint_of_the_machine(tmp_path):
    def fetch(method, url, headers):
        if method == "PUT":
            return b"metadata-token"
        assert headers == {"X-aws-ec2-metadata-token": "metadata-token"}
        return b"the-role\n" if url.endswith("security-credentials/") else answer(3600)

    assert identities(tmp_path, fetch=fetch).find().access_key == "A"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"AccessKeyId": 7, "SecretAccessKey": "s"}', b"[" * 90_000]
)
def test_an_endpoint_that_gives_rubbish(tmp_path, body):
    with pytest.raises(AuthenticationError):
        identities(tmp_path, {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI": "/x"}, lambda *_: body).find()


def test_no_keys_anywhere(tmp_path):
    with pytest.raises(AuthenticationError, match="no AWS credentials were found"):
        identities(tmp_path).find()
    with pytest.raises(AuthenticationError, match="no AWS credentials were found"):
        identities(tmp_path, {"AWS_EC2_METADATA_DISABLED": "true"}, lambda *_: pytest.fail("asked")).find()


class Frozen:
    access_key, secret_key, token = "A", "S", "T"


class OfBotocore:
    def get_frozen_credentials(self):
        return Frozen()


class Session:
    def get_credentials(self):
        return OfBotocore()


@pytest.mark.parametrize(
    "provider",
    [lambda: ("A", "S", "T"), Session(), OfBotocore(), Frozen(), OfBotocore, ("A", "S", "T")],
)
def test_a_provider_of_keys(tmp_path, provider):
    assert identities(tmp_path, provider=provider).find() == AwsIdentity("A", "S", "T")


@pytest.mark.parametrize("given", [None, (), ("A",), ("A", 7), ("", "S"), ("A", "S", 7), "hunter2", object()])
def test_a_provider_that_gives_rubbish(tmp_path, given):
    with pytest.raises(AuthenticationError, match="provider of AWS credentials gave") as caught:
        identities(tmp_path, provider=lambda: given).find()
    assert "hunter2" not in str(caught.value)


def test_a_provider_that_raises(tmp_path):
    def provider():
        raise RuntimeError("cannot use hunter2")

    with pytest.raises(AuthenticationError, match="RuntimeError") as caught:
        identities(tmp_path, provider=provider).find()
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_role_needs_botocore(tmp_path):
    with pytest.raises(ConfigError, match="botocore"):
        identities(tmp_path, role_arn="arn:aws:iam::1:role/x")


def test_no_secret_shows():
    kept = AwsMskIamCredentials(
        SaslSettings(mechanism="AWS_MSK_IAM", token_provider=("A", "s3cret", "t0ken"))
    )
    made = kept.mechanism(HOST)
    made.first()
    text = f"{kept!r} {made!r} {kept._identities.find()!r}"
    assert "s3cret" not in text
    assert "t0ken" not in text


def test_a_redirect_of_an_endpoint_is_not_followed():
    """What is sent there is a token."""
    with running_provider("GET") as provider:
        provider.answers = [(302, b""), (200, {"AccessKeyId": "stolen", "SecretAccessKey": "stolen"})]
        environment = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": provider.url,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "token-of-the-container",
        }
        identities = AwsIdentities(AwsSettings(), environment=environment)
        with pytest.raises(AuthenticationError, match="it answered 302"):
            identities.find()
        assert len(provider.asked) == 1

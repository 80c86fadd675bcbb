# SPDX-License-Identifier: Apache-2.0
"""Brokers that answer with anything: every dialogue ends, in success or in an error of ours, and no secret shows."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from security.sasl.dialogue import MODERN, NODE, OLD, authenticated, settle

from penstock.config.kinds import Password
from penstock.errors import AuthenticationError, KafkaError
from penstock.security.sasl import scram
from penstock.security.sasl.authenticator import Authenticator
from penstock.security.sasl.scram import ScramKeys
from penstock.security.sasl.settings import SaslSettings

SECRET = "hunter2-hunter2"

SETTINGS = {
    "PLAIN": SaslSettings(mechanism="PLAIN", username="u", password=Password(SECRET)),
    "SCRAM-SHA-256": SaslSettings(mechanism="SCRAM-SHA-256", username="u", password=Password(SECRET)),
    "OAUTHBEARER": SaslSettings(mechanism="OAUTHBEARER", token_provider=lambda: (SECRET, time.time() + 3600)),
    "AWS_MSK_IAM": SaslSettings(mechanism="AWS_MSK_IAM", token_provider=("AKIA", SECRET, SECRET)),
}

pieces = st.sampled_from(
    [b"r=", b"s=", b"i=", b"4096", b",", b"v=", b"e=", b"c2FsdA==", b"{", b"}", b'"status"', b"\x01"]
)
challenges = st.one_of(st.binary(max_size=64), st.lists(pieces, max_size=8).map(b"".join))
answers = st.builds(
    authenticated,
    challenges,
    code=st.sampled_from([0, 0, 0, 0, 33, 34, 58, -1, 999]),
    text=st.one_of(st.none(), st.text(max_size=40)),
    lifetime=st.integers(-(2**63), 2**63 - 1),
)


@pytest.fixture(scope="module", params=SETTINGS)
def authenticator(request):
    made = Authenticator(SETTINGS[request.param])
    yield made
    made.close()


@pytest.mark.parametrize("versions", [MODERN, OLD], ids=["requests", "bare tokens"])
def test_every_dialogue_ends(authenticator, versions, monkeypatch):
    monkeypatch.setattr(scram, "derive_keys", lambda *_: ScramKeys(b"c" * 32, b"s" * 32, b"k" * 32))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    @settings(max_examples=150, deadline=None)
    @given(st.lists(answers, max_size=6), st.integers(-2, 99))
    def run(given_answers, code):
        handshake = authenticator.handshake(NODE, versions)
        handshake.start()
        refusal: KafkaError = AuthenticationError()
        try:
            step = settle(
                handshake.on_answer(1, {"error_code": max(code, 0) % 40, "mechanisms": ["\x1b[2J"]})
            )
            for answer in given_answers:
                if step is None:
                    break
                body = answer["auth_bytes"] if step.raw is not None else answer
                step = settle(handshake.on_answer(step.version, body))
        except KafkaError as error:
            refusal = error
        assert isinstance(refusal, AuthenticationError)
        assert SECRET not in f"{refusal} {handshake!r}"
        assert "\x1b" not in str(refusal)
        assert len(str(refusal)) < 3000

    run()

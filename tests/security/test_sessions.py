# SPDX-License-Identifier: Apache-2.0
"""Sessions that end under a running producer, on the fake cluster: they are renewed with requests in flight."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from security.numbered import Numbered, wait_until
from security.rotation import KINDS, lines, values

from penstock.protocol.messages import PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.testing import Code, FakeKafka, FakeSecurity, Fault

# A broker wants a second between two renewals on one connection: the shorter one cannot be renewed twice.
SESSION_SECONDS = 2.0
SHORT_SECONDS = 0.5


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "penstock")
    return caplog


def sessions(protocol: str, seconds: float) -> FakeKafka:
    """Brokers that take their time for each request, so that five of them are in flight."""
    security = FakeSecurity(protocol=protocol, session_seconds=seconds)
    kafka = FakeKafka(topics={"t": 1}, security=security)
    kafka.add_fault(Fault(api=PRODUCE, delay=0.005, times=None))
    return kafka


@pytest.mark.slow
@pytest.mark.parametrize(
    ("protocol", "mechanism", "kind"),
    [("SASL_SSL", "SCRAM-SHA-256", "idempotent"), ("SASL_PLAINTEXT", "PLAIN", "transactional")],
)
def test_they_are_renewed_with_requests_in_flight(protocol: str, mechanism: str, kind: str, told):
    with sessions(protocol, SESSION_SECONDS) as kafka:
        with Numbered("t", eager=True, **kafka.client_options(mechanism), **KINDS[kind]) as stream:
            in_flight = stream.watch(SESSION_SECONDS, until=5)
            wait_until(lambda: stream.metric("successful-reauthentication-total") >= 2, "two renewals")
            expected = stream.finish()
        assert values(kafka) == expected
    assert in_flight >= 5
    assert not lines(told, logging.WARNING, "")


REFUSALS: dict[str, dict[str, Any]] = {
    "the handshake is refused": {"api": SASL_HANDSHAKE, "error": Code.ILLEGAL_SASL_STATE},
    "the token is refused": {"api": SASL_AUTHENTICATE, "error": Code.SASL_AUTHENTICATION_FAILED},
    "the connection is cut at the handshake": {"api": SASL_HANDSHAKE, "cut": "before"},
    "the connection is cut after the token": {"api": SASL_AUTHENTICATE, "cut": "after"},
    "the answer is torn": {"api": SASL_AUTHENTICATE, "truncate": 3},
    "the answer is noise": {"api": SASL_AUTHENTICATE, "garbage": True},
    "the answer is late": {"api": SASL_AUTHENTICATE, "delay": 0.6},
}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", REFUSALS)
def test_one_that_cannot_be_renewed_costs_a_connection_and_no_record(trouble: str, told):
    with sessions("SASL_PLAINTEXT", SHORT_SECONDS) as kafka:
        options = kafka.client_options("PLAIN")
        with Numbered("t", eager=True, **options, **{"request.timeout.ms": 5000}) as stream:
            stream.wait_for_more()
            kafka.add_fault(Fault(**REFUSALS[trouble]))
            stream.watch(2 * SHORT_SECONDS)
            stream.wait_for_more(50)
            expected = stream.finish()
        assert not [fault for fault in kafka.cluster.faults.waiting if fault.api is not PRODUCE]
        assert values(kafka) == expected
    assert "secret" not in told.text

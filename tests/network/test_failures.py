# SPDX-License-Identifier: Apache-2.0
"""How loudly failures are told."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

import pytest

from penstock.errors import AuthenticationError, KafkaError, NetworkError
from penstock.network.failures import FailureReporter, PastError, connect_error, refused_error
from penstock.network.transport import Address
from penstock.types import Node

NODE = Node(1, "h", 9092)
ADDRESS = Address(socket.AF_INET, ("192.0.2.1", 9092))


def no_token(text: str) -> None:
    raise AuthenticationError(f"there is no token: {text}", mechanism="OAUTHBEARER")


def not_offered(text: str) -> None:
    raise AuthenticationError(f"the listener offers {text}", mechanism="OAUTHBEARER")


@pytest.fixture
def told(caplog):
    """Have a reporter told of refusals; the levels at which it told them."""
    caplog.set_level(logging.DEBUG, "penstock.network")
    reporter = FailureReporter(lambda node, error, now: None)

    def tell(*causes: tuple[Callable[[str], None], str], node: Node = NODE) -> list[int]:
        caplog.clear()
        for find, text in causes:
            with pytest.raises(AuthenticationError) as found:
                find(text)
            reporter.attempt_failed(node, refused_error(node, found.value), 0.0, ever_ready=True)
        return [record.levelno for record in caplog.records]

    tell.reporter = reporter  # type: ignore[attr-defined]
    return tell


def test_a_new_cause_of_a_refusal_is_an_error_and_an_old_one_is_not(told):
    levels = told(
        (no_token, "a"), (no_token, "b"), (not_offered, "PLAIN"), (not_offered, "PLAIN"), (no_token, "a")
    )
    assert levels == [logging.ERROR, logging.DEBUG, logging.ERROR, logging.DEBUG, logging.DEBUG]
    assert told((no_token, "a"), node=NODE._replace(id=2)) == [logging.ERROR], "each node has its own causes"
    told.reporter.connected(NODE.id)
    assert told((no_token, "a")) == [logging.ERROR]


def test_a_broker_that_says_something_else_each_time_does_not_fill_the_log(told):
    levels = told(*((not_offered, f"{number}") for number in range(100)))
    assert levels == [logging.ERROR] + [logging.DEBUG] * 99


def test_what_was_told_last_is_kept(told):
    told(*((no_token, f"reason {number}") for number in range(8)))
    error: KafkaError | None = told.reporter.last_error(NODE.id)
    assert "reason 7" in str(error)


def test_the_last_error_is_kept_for_those_who_watch_also_when_there_is_a_connection_again():
    reporter = FailureReporter(lambda node, error, now: None)
    reporter.attempt_failed(NODE, NetworkError("first"), 1.0, ever_ready=True)
    reporter.connection_lost(NODE, NetworkError("x" * 9000), 2.0)
    reporter.connected(NODE.id)
    assert reporter.last_error(NODE.id) is None
    assert reporter.past_error(NODE.id) == PastError(2.0, "x" * 500 + "...")
    assert reporter.past_error(7) is None
    reporter.keep_nodes(set())
    assert reporter.past_error(NODE.id) is None


def test_failures_of_nodes_that_are_forgotten_are_forgotten(caplog):
    reporter = FailureReporter(lambda node, error, now: None)
    other = Node(2, "h", 9093)
    for node in (NODE, other):
        reporter.attempt_failed(node, NetworkError("no"), 0.0, ever_ready=False)
    reporter.keep_nodes({2})
    assert reporter.last_error(1) is None
    assert reporter.last_error(2) is not None
    caplog.clear()
    for node in (NODE, other):
        reporter.attempt_failed(node, NetworkError("no"), 0.0, ever_ready=False)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "broker 1" in caplog.text


def test_the_way_out_of_a_refused_connection_is_in_the_error_and_once_in_the_log(caplog):
    bootstrap = Node(-1, "h", 9092)
    refused = ConnectionRefusedError(111, "Connection refused")
    error = connect_error(bootstrap, ADDRESS, refused)
    asked = "Is the broker running, and is it listening at that port?"
    assert f"bootstrap server h:9092 (address 192.0.2.1:9092): connection refused. {asked}" in str(error)
    assert asked not in str(connect_error(NODE, ADDRESS, refused))
    FailureReporter(lambda *_: None).attempt_failed(bootstrap, error, 0.0, ever_ready=False)
    assert caplog.messages[-1] == f"No connection to a bootstrap server: {error}"
    late = connect_error(bootstrap, ADDRESS, TimeoutError("timed out"))
    FailureReporter(lambda *_: None).attempt_failed(bootstrap, late, 0.0, ever_ready=False)
    assert caplog.messages[-1] == f"No connection to a bootstrap server: {late}. Check bootstrap.servers."

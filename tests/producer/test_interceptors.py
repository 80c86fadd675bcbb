# SPDX-License-Identifier: Apache-2.0
"""Interceptors see every record and every outcome, and cannot break delivery."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from penstock.errors import ConfigError, RecordTooLargeError
from penstock.producer._interceptors_cy import Interceptor, Interceptors
from penstock.types import Header, ProducerRecord, RecordMetadata

RECORD = ProducerRecord("orders", b"v", headers=(Header("trace", b"7"),))
METADATA = RecordMetadata("orders", 3, 42, 1000, -1, 1)


class Appending(Interceptor):
    """Adds its letter to the value, so that the order of calls shows."""

    def __init__(self, letter: bytes) -> None:
        self.letter = letter
        self.seen: list[object] = []
        self.closed = 0

    def on_send(self, record):
        return replace(record, value=record.value + self.letter)

    def on_acknowledgement(self, metadata, error):
        self.seen.append((metadata, error))

    def close(self):
        self.closed += 1


class Failing(Interceptor):
    def on_send(self, record):
        raise ValueError("broken on_send")

    def on_acknowledgement(self, metadata, error):
        raise ValueError("broken on_acknowledgement")

    def close(self):
        raise ValueError("broken close")


class WithHeaders(Interceptor):
    def __init__(self) -> None:
        self.seen: list[object] = []

    def on_acknowledgement(self, metadata, error, headers=()):
        self.seen.append((metadata, error, headers))


def test_records_pass_through_all_in_order():
    assert Interceptors([Appending(b"a"), Appending(b"b")]).on_send(RECORD).value == b"vab"


def test_the_one_after_a_failure_gets_the_last_good_record(caplog):
    interceptors = Interceptors([Appending(b"a"), Failing(), Appending(b"b")])
    assert interceptors.on_send(RECORD).value == b"vab"
    assert "Failing.on_send failed for topic orders" in caplog.text
    assert "broken on_send" in caplog.text


def test_an_answer_that_is_no_record_is_ignored(caplog):
    class ReturnsNone(Interceptor):
        def on_send(self, record):
            return None

    assert Interceptors([Appending(b"a"), ReturnsNone(), Appending(b"b")]).on_send(RECORD).value == b"vab"
    assert "ReturnsNone.on_send gave NoneType" in caplog.text


def test_outcomes_reach_all_even_when_one_fails(caplog):
    last = Appending(b"b")
    Interceptors([Failing(), last]).on_acknowledgement(METADATA, None)
    assert last.seen == [(METADATA, None)]
    assert "Failing.on_acknowledgement failed for orders-3" in caplog.text


def test_headers_go_to_those_that_take_them():
    class AnyArguments(Interceptor):
        def on_acknowledgement(self, *arguments):
            self.seen = arguments

    old, new, any_arguments = Appending(b"a"), WithHeaders(), AnyArguments()
    Interceptors([old, new, any_arguments]).on_acknowledgement(METADATA, None, RECORD.headers)
    assert old.seen == [(METADATA, None)]
    assert new.seen == [(METADATA, None, RECORD.headers)]
    assert any_arguments.seen == (METADATA, None, RECORD.headers)


@pytest.mark.parametrize(
    ("own", "chosen", "told"),
    [(None, None, -1), (5, None, 5), (None, 2, 2), (5, 2, 2), (5, 0, 0)],
)
def test_a_refused_record_is_acknowledged_with_its_partition_or_minus_one(own, chosen, told):
    interceptor = WithHeaders()
    error = RecordTooLargeError("too large")
    Interceptors([interceptor]).on_send_error(replace(RECORD, partition=own), chosen, error)
    assert interceptor.seen == [(RecordMetadata("orders", told, -1, -1, -1, -1), error, RECORD.headers)]


def test_all_are_closed_even_when_one_fails(caplog):
    first, last = Appending(b"a"), Appending(b"b")
    Interceptors([first, Failing(), last]).close()
    assert (first.closed, last.closed) == (1, 1)
    assert "Failing.close failed" in caplog.text


def test_only_interceptors_with_an_on_send_of_their_own_are_shown_records():
    assert not Interceptors([WithHeaders()]).sees_records
    assert Interceptors([WithHeaders(), Appending(b"a")]).sees_records


def test_without_interceptors_nothing_happens(caplog):
    none = Interceptors()
    assert not none
    assert none.on_send(RECORD) is RECORD
    none.on_acknowledgement(METADATA, None)
    none.on_send_error(RECORD, None, ValueError())
    none.close()
    assert caplog.records == []


def test_an_object_with_the_methods_needs_no_base_class_and_no_close():
    class Own:
        def on_send(self, record):
            return replace(record, value=b"own")

        def on_acknowledgement(self, metadata, error):
            self.told = metadata

    own = Own()
    interceptors = Interceptors([own])
    interceptors.on_acknowledgement(METADATA, None)
    interceptors.close()
    assert interceptors.on_send(RECORD).value == b"own"
    assert own.told is METADATA


def test_the_base_class_changes_nothing(caplog):
    interceptors = Interceptors([Interceptor()])
    with caplog.at_level(logging.DEBUG):
        assert interceptors.on_send(RECORD) is RECORD
        interceptors.on_acknowledgement(METADATA, None)
        interceptors.close()
    assert caplog.records == []


def test_an_on_acknowledgement_that_cannot_be_called_is_found_at_construction():
    class OneArgument(Interceptor):
        def on_acknowledgement(self, metadata):
            pass

    with pytest.raises(ConfigError, match=r"OneArgument\.on_acknowledgement must take"):
        Interceptors([OneArgument()])


def test_an_interrupt_passes():
    class Interrupted(Interceptor):
        def on_send(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interceptors([Interrupted()]).on_send(RECORD)


def test_repr_names_the_classes():
    assert repr(Interceptors([Interceptor(), Failing()])) == "Interceptors(Interceptor, Failing)"

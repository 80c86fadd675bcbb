# SPDX-License-Identifier: Apache-2.0
"""What the short way of a request through the client must not leave out."""

from __future__ import annotations

import errno
from typing import Any, NamedTuple

import pytest
from network.harness import Harness

from penstock.errors import NetworkError, RequestTimedOutError, UnsupportedVersionError
from penstock.network.transport import READ, WRITE
from penstock.protocol.messages import FIND_COORDINATOR, METADATA, PRODUCE
from penstock.protocol.schema import ApiSchema


def test_a_write_that_fails_at_once_ends_its_request_though_nothing_is_readable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    h = Harness()
    h.connect()

    def broken(_: Any) -> int:
        raise BrokenPipeError(errno.EPIPE, "pipe")

    monkeypatch.setattr(h.network.transports[-1], "send_some", broken)
    h.send()
    h.poll()
    assert [type(each.error) for each in h.ended] == [NetworkError]


def test_a_short_time_out_is_met_although_nothing_else_happens() -> None:
    h = Harness()
    h.connect()
    h.send(timeout=0.5)
    started = h.now
    while not h.ended and h.now < started + 20:
        h.poll(20)
    assert type(h.ended[0].error) is RequestTimedOutError
    assert h.now - started == pytest.approx(0.5)


def test_events_of_a_connection_that_was_closed_in_the_same_round_are_passed_over() -> None:
    h = Harness(2)
    for node in h.nodes:
        h.connect(node)
        h.send(node)
    pool = h.client._pool
    first, second = pool.get(h.nodes[0].id), pool.get(h.nodes[1].id)
    pool.close_connection(h.nodes[1].id, h.now, "in this test")
    pool.on_events([(first, READ), (second, READ | WRITE)], h.now)
    h.poll()
    assert [each.node for each in h.ended] == [h.nodes[1]]


class _Bounds(NamedTuple):
    api: ApiSchema
    min_version: int
    max_version: int


def test_the_version_is_picked_anew_for_other_bounds_and_for_another_api() -> None:
    h = Harness()
    h.connect()
    connection = h.client._pool.get(h.nodes[0].id)
    assert connection is not None
    versions = connection.api_versions
    assert versions is not None
    asked = [
        _Bounds(PRODUCE, 3, 13),
        _Bounds(PRODUCE, 3, 9),
        _Bounds(PRODUCE, 12, 12),
        _Bounds(PRODUCE, 3, 13),
        _Bounds(FIND_COORDINATOR, 0, 3),
        _Bounds(METADATA, 0, 3),
    ]

    def outcome(pick: Any, *bounds: Any) -> Any:
        try:
            return pick(*bounds)
        except UnsupportedVersionError:
            return "unsupported"

    for bounds in asked * 2:
        assert outcome(connection.pick_version, bounds) == outcome(versions.pick, *bounds)
    assert len({outcome(versions.pick, *bounds) for bounds in asked}) > 2

# SPDX-License-Identifier: Apache-2.0
"""The blocking calls of a driver, as a data source makes them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sink.support import Driver, World

from penstock.control import ControlClient
from penstock.errors import SinkSupersededError
from penstock.protocol.messages import API_VERSIONS
from penstock.sink import DriverIdentity, SinkSettings, abort, commit, prepare
from penstock.sink import driver as module
from penstock.sink.identity import Jvm


@pytest.fixture
def settings(world: World) -> SinkSettings:
    return world.settings()


def test_a_batch_from_beginning_to_end(world: World, settings: SinkSettings) -> None:
    worker = Driver(world, settings)
    for number in range(3):
        plan = prepare(settings)
        assert plan.execution.generation == 1
        messages = [worker.task(plan, number, 0, [str(number)])]
        assert commit(settings, messages, number).decided
    assert world.visible() == ["0", "1", "2"]


def test_a_batch_that_is_given_up(world: World, settings: SinkSettings) -> None:
    plan = prepare(settings)
    messages = [Driver(world, settings).task(plan, 0, 0, ["a"]), None]
    assert abort(settings, messages, 0)
    assert world.ongoing() == []


def test_another_driver_takes_over(world: World, settings: SinkSettings) -> None:
    prepare(settings)
    assert prepare(settings, DriverIdentity(Jvm("elsewhere", 1, "now"), 2, "token")).execution.generation == 2
    with pytest.raises(SinkSupersededError):
        prepare(settings)


def test_connections_are_kept_between_calls(world: World, settings: SinkSettings) -> None:
    prepare(settings)
    with world.kafka.locked() as cluster:
        cluster.received.clear()
    prepare(settings)
    with world.kafka.locked() as cluster:
        assert not any(request.api is API_VERSIONS for request in cluster.received)


def test_a_client_may_be_brought_along(world: World, settings: SinkSettings) -> None:
    with ControlClient(world.config) as client:
        plan = prepare(settings, client=client)
        messages = [Driver(world, settings).task(plan, 0, 0, ["a"])]
        commit(settings, messages, 0, client=client)
        assert len(client.brokers()) == 3  # it stays open
    assert world.visible() == ["a"]


def test_brokers_that_have_closed_the_connections_meanwhile(world: World, settings: SinkSettings) -> None:
    plan = prepare(settings)
    messages = [Driver(world, settings).task(plan, 0, 0, ["a"])]
    with world.kafka.locked() as cluster:
        cluster.drop_connections()
    assert commit(settings, messages, 0).decided
    assert world.visible() == ["a"]


def test_a_cluster_that_is_named_in_another_way_has_no_execution_twice(
    world: World, settings: SinkSettings
) -> None:
    """Otherwise a new batch would pass for one that was decided, and its rows be lost without a word."""
    servers = settings.config["bootstrap.servers"].split(",")
    other = replace(settings, config={"bootstrap.servers": ",".join(reversed(servers))})
    assert other.cluster != settings.cluster
    worker = Driver(world, settings)
    for number, used in enumerate((settings, other, settings)):
        message = worker.task(prepare(used), number, 0, [str(number)])
        assert commit(used, [message], number).decided
    assert world.visible() == ["0", "1", "2"]


def test_what_is_remembered_of_sinks_is_bounded(
    world: World, settings: SinkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_MEMORIES", 2)
    monkeypatch.setattr(module, "_memories", {})
    seen = [prepare(replace(settings, sink_id=f"sink-{name}")).execution for name in "abcab"]
    assert len(module._memories) == 2
    assert seen[3] > seen[0]  # what was forgotten of a sink is no reason to give a number twice
    assert seen[4] > seen[1]

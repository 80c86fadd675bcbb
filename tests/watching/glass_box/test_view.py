# SPDX-License-Identifier: Apache-2.0
"""What is read of a producer, in virtual time: lanes, brokers, memory, rates, events; and a record on its way."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest
from fix_patience import is_waiting, wait_until
from producer.fakes_sender import Rig

from penstock._locks import inside
from penstock.error_codes import ErrorCode
from penstock.errors import SerializationError
from penstock.producer.metadata.cluster import ClusterSnapshot
from penstock.types import Node
from penstock.watching.glass_box import following, reading
from penstock.watching.glass_box.events import Events
from penstock.watching.glass_box.following import Follower
from penstock.watching.glass_box.view import ProducerView


class Watched:
    """A producer without a thread, and one who looks at it."""

    def __init__(self, brokers: int = 1, **options: Any) -> None:
        self.rig = Rig(brokers, **options)
        self.events = Events()
        self.view = ProducerView(7, self.rig.parts, threading.current_thread(), self.events)

    def look(self, after: float = 0.0) -> dict[str, Any]:
        """What is seen, that many seconds later; the I/O thread has taken no turn meanwhile."""
        self.rig.clock.advance(after)
        return self.view.state()

    def lane(self, partition: int = 0, after: float = 1.0) -> dict[str, Any]:
        (found,) = [lane for lane in self.look(after)["lanes"] if lane["partition"] == partition]
        return found

    def told(self) -> list[str]:
        return [event["text"] for event in reversed(self.events.latest())]


def test_a_lane_shows_where_its_batches_are() -> None:
    watched = Watched(linger_ms=1000, batch_size=200)
    rig = watched.rig
    rig.know("t", 2)
    assert watched.look()["lanes"] == []  # no record was sent yet
    rig.send("t", b"x" * 20, partition=0)
    lane = watched.lane(0, after=0.25)
    assert (lane["open_records"], lane["queued"], lane["in_flight"]) == (1, 0, 0)
    assert 0.3 < lane["open_fill"] < 0.6
    assert lane["linger_left_ms"] == pytest.approx(750)
    assert lane["leader"] == 0
    assert "lingers 750 ms more" in lane["text"]
    for _ in range(12):
        rig.send("t", b"x" * 20, partition=0)
    lane = watched.lane(0)
    assert lane["queued"] > 0
    assert lane["open_records"] + lane["queued_records"] == 13
    rig.await_request()
    lane = watched.lane(0, after=0.4)
    assert lane["in_flight"] == 1
    assert lane["in_flight_ms"] >= 400
    assert watched.lane(1)["text"] == "idle"


def test_a_batch_that_is_sent_again_is_shown_with_its_cause() -> None:
    watched = Watched(retry_backoff_ms=5000, retry_backoff_max_ms=5000)
    rig = watched.rig
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    watched.look()
    rig.answer(error_code=ErrorCode.NOT_ENOUGH_REPLICAS)
    lane = watched.lane()
    assert (lane["retries"], lane["attempt"], lane["in_flight"]) == (1, 1, 0)
    assert 0 < lane["retry_in_ms"] <= 6000
    assert "NOT_ENOUGH_REPLICAS" in lane["cause"]
    assert any("t-0 is sent again, attempt 1" in text for text in watched.told())
    assert "sent again" in watched.look()["advice"][0]["text"]


def test_a_lost_broker_is_shown_with_its_cause_and_so_is_its_return() -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    (broker,) = watched.look()["brokers"]
    assert (broker["state"], broker["tone"], broker["in_flight"]) == ("ready", "good", 1)
    rig.network.listeners.clear()
    rig.break_connection()
    state = watched.look(after=1.0)
    (broker,) = state["brokers"]
    assert broker["tone"] == "bad"
    assert "broke" in broker["error"]
    assert state["advice"][0]["text"].startswith("Broker 0: disconnected. A batch waits for it.")
    assert any(text.startswith("rig: broker 0 at b0:9092: disconnected") for text in watched.told())


def test_a_broker_that_does_not_answer_is_shown_with_the_time() -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    rig.send("t", b"x")
    rig.await_request()
    assert watched.look()["brokers"][0]["state"] == "ready"
    state = watched.look(after=4.2)
    assert state["brokers"][0]["state"] == "no answer for 4 s"
    assert state["advice"][0]["tone"] == "bad"
    watched.look(after=1.0)
    assert sum("no answer" in text for text in watched.told()) == 1  # and not once a second


def test_memory_and_who_waits_for_it() -> None:
    watched = Watched(buffer_memory=400, batch_size=200, max_block_ms=60_000)
    rig = watched.rig
    rig.know("t")
    for _ in range(2):
        rig.parts.accumulator.pool.take(200)
    rig.parts.accumulator.pool.take(200)
    state = watched.look(after=2.5)
    memory = state["memory"]
    assert (memory["total"], memory["free"], memory["waiting"]) == (400, 0, 1)
    assert memory["waits"] == [
        {"thread": threading.current_thread().name, "bytes": 200, "gathered": 0, "seconds": 2.5}
    ]
    assert state["advice"][0]["text"].startswith("1 sender waits for memory, the first for 2.5 s")


def test_rates_are_of_the_last_seconds() -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    rig.acknowledge_all()
    watched.look()
    for _ in range(4):
        for _ in range(10):
            rig.send("t", b"x")
            rig.settle(4)
        state = watched.look(after=1.0)
    assert state["rates"]["records"] == pytest.approx(10, rel=0.1)
    assert state["recent"]["records"] == 40
    assert state["leaving"] == [
        {"reason": "linger", "batches": 40, "share": 1.0, "fill": state["leaving"][0]["fill"]}
    ]
    for _ in range(12):
        state = watched.look(after=1.0)
    assert state["rates"]["records"] == 0
    assert state["recent"]["seconds"] <= 11
    assert state["totals"]["records"] == 40
    assert watched.look(after=100.0)["recent"]["seconds"] == 0  # nobody looked: what was before tells nothing


def test_several_viewers_share_a_look() -> None:
    watched = Watched()
    assert watched.look() is watched.look(after=0.1)
    assert watched.look() is not watched.look(after=0.3)


def test_a_callback_that_blocks_is_seen_where_it_is() -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    seen: list[dict[str, Any]] = []

    def on_delivery(metadata: object, error: object) -> None:
        seen.append(watched.look(after=3.0))

    rig.send("t", b"x", on_delivery=on_delivery)
    rig.await_request()
    rig.answer()
    (state,) = seen
    assert (state["io"]["now"], state["io"]["for_s"]) == ("callbacks", 3.0)
    assert ".py:" in state["io"]["where"]  # this thread, which looks, is also the one that is looked at
    assert "A callback has run on the I/O thread for 3.0 s" in state["advice"][0]["text"]


def test_of_many_partitions_those_in_trouble_are_shown_and_the_others_counted() -> None:
    watched = Watched(linger_ms=10_000, batch_size=64, buffer_memory=10_000_000)
    rig = watched.rig
    rig.know("many", 1000)
    for partition in range(300):
        rig.send("many", b"", partition=partition)
    rig.clock.advance(1.0)
    state = watched.look()
    assert len(state["lanes"]) == reading.MOST_LANES
    assert state["counts"]["partitions"] == 1000
    assert state["counts"]["left_out"] == 1000 - reading.MOST_LANES
    assert state["counts"]["busy"] == 300
    assert [lane["partition"] for lane in state["lanes"]] == sorted(
        lane["partition"] for lane in state["lanes"]
    )


# ------------------------------------------------------------------------------------------------ following


def steps(watched: Watched) -> list[tuple[str, str]]:
    following = watched.look(after=1.0)["following"]
    return [(step["what"], step["text"]) for step in following["steps"]]


def test_a_record_is_followed_to_its_offset() -> None:
    watched = Watched(linger_ms=50)
    rig = watched.rig
    rig.know("t")
    rig.send("t", b"first")
    watched.view.follower.start("t", None)
    assert watched.look(after=1.0)["following"]["waiting"]
    rig.send("t", b"second")
    assert [what for what, _ in steps(watched)] == ["sent", "accepted"]
    assert "record 2 of a batch for t-0" in steps(watched)[1][1]
    rig.await_request()
    assert [what for what, _ in steps(watched)] == ["sent", "accepted", "request", "waits"]
    rig.answer(base_offset=41)
    told = steps(watched)
    assert [what for what, _ in told] == ["sent", "accepted", "request", "acknowledged"]
    assert "with 2 records" in told[2][1]
    assert "because linger.ms=50 was over" in told[2][1]
    assert told[3][1] == "t-0 has it at offset 42."
    following = watched.look(after=1.0)["following"]
    assert following["done"]
    times = [step["at_ms"] for step in following["steps"]]
    assert times == sorted(times)


def test_only_the_topic_that_is_followed_leaves_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    rig.know("u")
    general: list[str] = []
    original = Follower._follow

    def noted(follower: Follower, record: Any, steps: Any) -> Any:
        general.append(record.topic)
        return original(follower, record, steps)

    for topic in ("t", "u"):
        rig.send(topic, b"x")  # now the fast path knows it
    monkeypatch.setattr(Follower, "_follow", noted)
    rig.send("t", b"x")
    watched.view.follower.start("t", "k2")
    for key in (b"k1", b"k2", b"k3"):
        rig.send("u", b"x", key)
        rig.send("t", b"x", key)
    assert general == ["t", "t"]  # k1 and k2; then it was found
    assert steps(watched)[0][0] == "sent"


def test_a_retry_and_a_failure_are_on_the_way() -> None:
    watched = Watched(retries=1, retry_backoff_ms=100)
    rig = watched.rig
    rig.know("t")
    watched.view.follower.start("t", None)
    rig.send("t", b"x")
    rig.await_request()
    rig.answer(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    rig.await_request()
    assert "again" in [what for what, _ in steps(watched)]
    rig.answer(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    told = steps(watched)
    assert told[-1][0] == "failed"
    assert "NOT_LEADER_OR_FOLLOWER" in told[-1][1]


def test_a_wait_for_metadata_and_a_refusal_are_on_the_way() -> None:
    watched = Watched(max_block_ms=2000)
    rig = watched.rig
    watched.view.follower.start("nowhere", None)
    with pytest.raises(Exception, match="nowhere"):
        rig.send("nowhere", b"x")
    told = steps(watched)
    assert [what for what, _ in told] == ["sent", "waits", "refused"]
    assert "for the topic's metadata" in told[1][1]
    assert rig.parts.send_path.follower is None


class OfNoText:
    """A key of the user's, of which no text can be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_no_record_fails_because_another_one_is_looked_for() -> None:
    watched = Watched(key_serializer=lambda key: b"k")
    rig = watched.rig
    rig.know("t")
    watched.view.follower.start("t", "k1")
    rig.send("t", b"x", OfNoText())
    assert watched.look(after=1.0)["following"]["waiting"]


def test_what_a_serializer_says_of_a_record_is_not_shown() -> None:
    def serialize(value: bytes) -> bytes:
        raise ValueError(f"{value!r} is too strange")

    watched = Watched(value_serializer=serialize)
    rig = watched.rig
    rig.know("t")
    watched.view.follower.start("t", None)
    with pytest.raises(SerializationError, match="secret"):
        rig.send("t", b"secret")
    what, text = steps(watched)[-1]
    assert what == "refused"
    assert "SerializationError" in text
    assert "secret" not in text


def test_who_sends_in_the_middle_of_following_is_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector may run a finalizer there that sends: it must not wait for itself."""
    noticed: list[bool] = []
    original = following.FollowedRecord

    def made(*args: Any) -> following.FollowedRecord:
        noticed.append(inside())
        return original(*args)

    monkeypatch.setattr(following, "FollowedRecord", made)
    watched = Watched()
    watched.rig.know("t")
    watched.view.follower.start("t", None)
    watched.rig.send("t", b"x")
    assert noticed == [True]


def test_a_record_that_does_not_come_is_not_waited_for_without_end() -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    watched.view.follower.start("t", "never")
    rig.send("t", b"x", b"other")
    assert watched.look(after=1.0)["following"]["waiting"]
    assert not watched.look(after=1000.0)["following"]["waiting"]
    assert rig.parts.send_path.follower is None
    assert "t" in rig.parts.accumulator.fast_topics


def test_following_stops_by_itself_when_nobody_looks() -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    watched.view.follower.start("t", "never")
    rig.clock.advance(1000.0)
    rig.send("t", b"x")
    assert rig.parts.send_path.follower is None
    assert "t" in rig.parts.accumulator.fast_topics


def test_a_broker_that_has_left_the_cluster_is_shown_for_a_while() -> None:
    watched = Watched(2)
    rig = watched.rig
    rig.know("t", 2)
    rig.acknowledge_all()
    sent = [rig.send("t", b"x", partition=partition) for partition in (0, 1)]
    rig.run_until(lambda: all(delivery.done() for delivery in sent))
    assert [broker["state"] for broker in watched.look()["brokers"]] == ["ready", "ready"]
    rig.cluster.nodes.remove(rig.nodes[1])
    rig.break_connection(1)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_for(1.0)
    assert set(rig.snapshot.nodes) == {0}
    rig.cluster.move("t", 1, 0)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_for(1.0)
    state = watched.look(after=20.0)
    gone = state["brokers"][1]
    assert (gone["id"], gone["state"], gone["tone"]) == (1, "gone", "warn")
    assert re.fullmatch(
        r"The connection to broker 1 at b1:9092 broke: .*\. The metadata are 2\d s old and do not list this broker; "
        r"no batch waits for it\.",
        gone["text"],
    )
    (said, *_) = state["advice"]
    assert (said["tone"], said["text"].partition(" The")[0]) == ("warn", "Broker 1: gone.")
    assert any("rig: broker 1 at b1:9092: gone. The connection" in text for text in watched.told())
    assert [broker["id"] for broker in watched.look(after=1000.0)["brokers"]] == [0]


def test_before_the_first_metadata_the_bootstrap_server_is_named_and_what_waits_for_it() -> None:
    watched = Watched()
    rig = watched.rig
    rig.network.listeners.clear()
    watched.look()
    ticket = rig.parts.metadata.await_topic("t", None, rig.clock.now())
    rig.run_for(1.0)
    state = watched.look()
    (server,) = state["brokers"]
    assert (server["id"] < 0, server["address"], server["tone"]) == (True, "b0:9092", "bad")
    assert state["advice"][0]["text"].startswith(
        "Bootstrap server b0:9092: disconnected. 1 call waits for metadata. Cannot connect to bootstrap server b0:9092"
    )
    (told,) = [text for text in watched.told() if "disconnected" in text]
    assert told.startswith("rig: bootstrap server b0:9092: disconnected. Cannot connect to")
    other = rig.parts.metadata.await_topic("t", None, rig.clock.now())
    assert watched.look(after=1.0)["counts"]["waiting_for_metadata"] == 2
    for each in (ticket, other):
        each.fail(SerializationError("it has waited long enough"))
    assert watched.look(after=1.0)["counts"]["waiting_for_metadata"] == 0


@pytest.mark.parametrize("waits", ["a batch", "a call", "nothing"])
def test_what_waits_for_metadata_is_told_of_a_broker_that_has_left_the_cluster(waits: str) -> None:
    watched = Watched(2)
    rig = watched.rig
    rig.know("t", 2)
    rig.acknowledge_all()
    sent = rig.send("t", b"x", partition=1)
    rig.run_until(sent.done)
    if waits == "a batch":
        rig.send("t", b"x", partition=1)
    rig.parts.metadata._swap_locked(ClusterSnapshot.bootstrap([Node(-1, "b0", 9092)]))
    if waits == "a call":
        rig.parts.metadata.await_topic("other", None, rig.clock.now())
    (gone,) = [broker for broker in watched.look()["brokers"] if broker["id"] == 1]
    told = {"a batch": "batches wait", "a call": "1 call waits"}
    assert gone["text"].endswith(
        "; no batch waits for it." if waits == "nothing" else f"; {told[waits]} for metadata."
    )


@pytest.mark.parametrize("leader", [0, -1])
def test_a_broker_that_has_left_the_cluster_is_in_the_way_of_its_batches(leader: int) -> None:
    """Also where nobody leads the partition, and it is the only one that could."""
    watched = Watched(2)
    rig = watched.rig
    rig.know("t", 2)
    rig.send("t", b"x", partition=0)
    rig.await_request(0)
    rig.cluster.nodes.remove(rig.nodes[0])
    rig.cluster.move("t", 0, leader)
    rig.break_connection(0)
    rig.parts.metadata.request_update(rig.clock.now())
    rig.run_for(1.0)
    assert set(rig.snapshot.nodes) == {1}
    state = watched.look()
    gone = state["brokers"][0]
    assert (gone["id"], gone["state"], gone["tone"]) == (0, "gone", "bad")
    assert gone["text"].endswith(" old and do not list this broker; batches wait for it.")
    assert state["advice"][0]["text"].count("wait") == 1


def test_a_broker_that_is_back_has_its_last_error() -> None:
    watched = Watched(2)
    rig = watched.rig
    rig.know("t", 2)
    rig.acknowledge_all()

    def send() -> None:
        sent = [rig.send("t", b"x", partition=partition) for partition in (0, 1)]
        rig.run_until(lambda: all(delivery.done() for delivery in sent))

    send()
    assert [broker["past"] for broker in watched.look()["brokers"]] == ["", ""]
    rig.break_connection(1)
    broken = watched.look(after=0.2)["brokers"][1]
    assert (broken["past"], broken["text"].count(broken["error"][1:])) == ("", 1)
    send()
    first, second = watched.look(after=12.0)["brokers"]
    assert (first["past"], second["state"], second["error"]) == ("", "ready", "")
    ago, _, why = second["past"].partition(" s ago: ")
    assert int(ago.removeprefix("last error ")) in (12, 13)
    assert why == broken["error"]
    assert re.match("last error 3 h ago: ", watched.look(after=3 * 3600)["brokers"][1]["past"])


def test_a_broker_that_nobody_needs_is_no_trouble() -> None:
    watched = Watched()
    rig = watched.rig
    rig.know("t")
    rig.acknowledge_all()
    delivery = rig.send("t", b"x")
    rig.run_until(delivery.done)
    rig.break_connection()
    assert watched.look(after=0.5)["brokers"][0]["tone"] == "bad"
    (broker,) = watched.look(after=20.0)["brokers"]
    assert (broker["state"], broker["tone"]) == ("not used", "quiet")
    assert "No request has needed one since then: the connection to broker 0" in broker["text"]


def test_one_viewer_looks_at_a_time_and_holds_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched()
    looks: list[bool] = []
    go_on = threading.Event()
    lanes_of = reading.lanes_of

    def look(*args: Any) -> Any:
        looks.append(inside())
        assert go_on.wait(60)
        if len(looks) == 1:
            raise LookupError("the first who looks gets nowhere")
        return lanes_of(*args)

    monkeypatch.setattr(reading, "lanes_of", look)
    seen: list[Any] = []

    def view() -> None:
        try:
            seen.append(watched.view.state())
        except LookupError as error:
            seen.append(error)

    viewers = [threading.Thread(target=view, daemon=True) for _ in range(5)]
    for viewer in viewers:
        viewer.start()
    wait_until(lambda: looks and sum(map(is_waiting, viewers)) == 4)
    assert len(looks) == 1
    go_on.set()
    for viewer in viewers:
        viewer.join(60)
    assert looks == [False, False]
    assert sum(isinstance(each, LookupError) for each in seen) == 1
    states = [each for each in seen if isinstance(each, dict)]
    assert len(states) == 4
    assert all(state is states[0] for state in states)

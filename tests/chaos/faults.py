# SPDX-License-Identifier: Apache-2.0
"""The faults. Each strikes at the moment at which records are in flight to what it hits, if that moment comes.

A fault is counted when it did: a Produce request without an answer was with that broker, or came from that process; for
a coordinator, a request that adds to a transaction or ends one. Others happen as well, but prove little.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from chaos.cluster import ProxiedCluster
from chaos.proxy import ADD_PARTITIONS_TO_TXN, END_TXN, PRODUCE, Passing, Proxy
from chaos.workers import WorkerProcess
from penstock.control import ControlClient

# The session time-out of the cluster is 4 s: a broker frozen for longer is taken for dead.
PAUSE_SECONDS = (5.0, 8.0)
ARM_SECONDS = 4.0
_RECOVERY_SECONDS = 90.0


@dataclass(frozen=True)
class InjectedFault:
    """A fault that has happened.

    Attributes:
        at: seconds since the beginning of the run.
        counted: records were in flight to what it hit.
    """

    kind: str
    target: str
    at: float
    counted: bool

    def __str__(self) -> str:
        mark = "" if self.counted else " (nothing in flight: not counted)"
        return f"{self.at:6.1f} s  {self.kind} of {self.target}{mark}"


class Faults:
    """What can be broken in one run.

    Args:
        cluster: the brokers and their proxies.
        topic: the topic whose partitions must have all their copies again after a broker fault.
        victims: processes that may be killed.
        log: told of each fault.
    """

    def __init__(
        self, cluster: ProxiedCluster, topic: str, victims: list[WorkerProcess], log: Callable[[str], None]
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self.injected: list[InjectedFault] = []
        self.victims = victims
        self._cluster = cluster
        self._topic = topic
        self._log = log
        self._started = time.monotonic()
        self._lock = threading.Lock()  # guards `injected`; the lanes are threads
        self._down: set[int] = set()  # written by the broker lane only
        self._admin = AdminClient(
            {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0, "socket.timeout.ms": 20_000}
        )

    # ---- brokers: one at a time, so that two copies are always there

    def kill_broker(self, rng: random.Random, stop: threading.Event) -> None:
        """kill -9, a moment of absence, and back."""
        node_id = rng.choice(sorted(self._cluster.proxies))
        self._kill(node_id, "kill -9", _is_produce, rng, stop)

    def kill_coordinator(self, rng: random.Random, stop: threading.Event) -> None:
        """kill -9 of the broker that coordinates a transaction which is being added to, or ended."""
        name = rng.choice(self.victims).plan.name
        with ControlClient({"bootstrap.servers": self._cluster.bootstrap_servers}) as client:
            node_id = client.find_coordinators([name], timeout=30)[name].id

        def is_of_transaction(passing: Passing) -> bool:
            return passing.api_key in (ADD_PARTITIONS_TO_TXN, END_TXN) and passing.client_id == name

        self._kill(node_id, f"kill -9 of the coordinator of {name}:", is_of_transaction, rng, stop)

    def _kill(
        self,
        node_id: int,
        kind: str,
        wanted: Callable[[Passing], bool],
        rng: random.Random,
        stop: threading.Event,
    ) -> None:
        pid = self._cluster.node(node_id).pid
        assert pid is not None
        self._down.add(node_id)
        self._strike(kind, f"broker {node_id}", [node_id], wanted, lambda: os.kill(pid, signal.SIGKILL))
        self._cluster.kill(node_id)  # sees it off
        stop.wait(rng.uniform(0.5, 4.0))
        self._cluster.start_node(node_id)
        self._await_recovery(node_id)

    def pause_broker(self, rng: random.Random, stop: threading.Event) -> None:
        """SIGSTOP for longer than its session lasts; then it goes on, and learns that it leads nothing any more."""
        node_id = rng.choice(sorted(self._cluster.proxies))
        self._down.add(node_id)
        self._strike(
            "SIGSTOP", f"broker {node_id}", [node_id], _is_produce, lambda: self._cluster.pause(node_id)
        )
        time.sleep(rng.uniform(*PAUSE_SECONDS))
        self._cluster.resume(node_id)
        self._await_recovery(node_id)

    def restart_broker(self, rng: random.Random, stop: threading.Event) -> None:
        """A stop in order, which hands the leaders over, and a start."""
        node_id = rng.choice(sorted(self._cluster.proxies))
        self._down.add(node_id)
        node = self._cluster.node(node_id)
        self._strike("restart", f"broker {node_id}", [node_id], _is_produce, node.terminate)
        self._cluster.stop_node(node_id)
        self._cluster.start_node(node_id)
        self._await_recovery(node_id)

    def elect_leaders(self, rng: random.Random, stop: threading.Event) -> None:
        """Give the partitions back to the brokers that should lead them."""
        from confluent_kafka import ElectionType, TopicPartition

        strayed = [
            (number, leader) for number, leader, replicas, _ in self._partitions() if leader != replicas[0]
        ]
        if not strayed:
            return
        loser = strayed[0][1]
        done = threading.Event()
        proxy = self._cluster.proxies[loser]
        applied = proxy.arm(_is_produce, done.set)
        in_flight = done.wait(ARM_SECONDS)
        proxy.disarm(applied)
        partitions = [TopicPartition(self._topic, number) for number, _ in strayed]
        self._admin.elect_leaders(ElectionType.PREFERRED, partitions).result(60)
        moved = self._await_leaders({number for number, _ in strayed})
        counted = in_flight and moved
        self._note("election", f"{len(strayed)} partitions, away from broker {loser}", counted)

    # ---- connections

    def cut(self, rng: random.Random, stop: threading.Event) -> None:
        """Reset all connections of a broker."""
        node_id, proxy = self._some_proxy(rng)
        self._strike("cut", f"connections to broker {node_id}", [node_id], _is_produce, proxy.cut_on_loop)

    def half_close(self, rng: random.Random, stop: threading.Event) -> None:
        """End one direction of all connections of a broker."""
        node_id, proxy = self._some_proxy(rng)
        if rng.random() < 0.5:
            action, kind = proxy.half_close_to_client_on_loop, "half-close, answers swallowed,"
        else:
            action, kind = proxy.half_close_to_broker_on_loop, "half-close, requests ended,"
        self._strike(kind, f"connections to broker {node_id}", [node_id], _is_produce, action)

    def delay(self, rng: random.Random, stop: threading.Event) -> None:
        """Slow answers, for a while."""
        node_id, proxy = self._some_proxy(rng)
        seconds = rng.uniform(0.05, 0.6)
        self._strike(
            f"delay by {seconds * 1000:.0f} ms",
            f"broker {node_id}",
            [node_id],
            _is_produce,
            lambda: proxy.set_delay_on_loop(seconds),
        )
        stop.wait(rng.uniform(1.0, 3.0))
        proxy.heal()

    def stall(self, rng: random.Random, stop: threading.Event) -> None:
        """Answers are held back until the clients give up waiting; the requests have taken effect."""
        node_id, proxy = self._some_proxy(rng)
        self._strike("stall", f"answers of broker {node_id}", [node_id], _is_produce, proxy.stall_on_loop)
        stop.wait(rng.uniform(1.0, 7.0))  # clients wait for 5 s
        proxy.heal()

    # ---- producers

    def kill_producer(self, rng: random.Random, stop: threading.Event) -> None:
        """kill -9 in the middle of a transaction; another process takes its id over."""
        victim = rng.choice(self.victims)
        name = victim.plan.name

        def is_its_record(passing: Passing) -> bool:
            return passing.api_key == PRODUCE and passing.client_id == name

        self._strike(
            "kill -9", f"producer {name}", list(self._cluster.proxies), is_its_record, victim.signal_kill
        )
        victim.replace()

    # ---- inside

    def _strike(
        self,
        kind: str,
        target: str,
        node_ids: Sequence[int],
        wanted: Callable[[Passing], bool],
        action: Callable[[], object],
    ) -> None:
        """Do it as soon as such a request was passed on to one of the brokers; when none comes, do it nevertheless."""
        done = threading.Event()  # set on the loop alone, so that looking and doing are one step

        def once() -> None:
            if not done.is_set():
                action()
                done.set()

        proxies = [self._cluster.proxies[node_id] for node_id in node_ids]
        armed = [(proxy, proxy.arm(wanted, once)) for proxy in proxies]
        counted = done.wait(ARM_SECONDS)
        for proxy, applied in armed:
            proxy.disarm(applied)
            if applied.done():
                applied.result(0)  # raises what the action raised
        if not counted:
            # It may have happened after the wait; then this does nothing.
            proxies[0].call_on_loop(once)
        self._note(kind, target, counted)

    def _note(self, kind: str, target: str, counted: bool) -> None:
        fault = InjectedFault(kind, target, time.monotonic() - self._started, counted)
        with self._lock:
            self.injected.append(fault)
        self._log(str(fault))

    def _some_proxy(self, rng: random.Random) -> tuple[int, Proxy]:
        up = [node for node in sorted(self._cluster.proxies) if node not in self._down]
        node_id = rng.choice(up or sorted(self._cluster.proxies))
        return node_id, self._cluster.proxies[node_id]

    def _partitions(self) -> list[tuple[int, int, list[int], list[int]]]:
        """Number, leader, copies and copies in sync of each partition."""
        found = self._admin.list_topics(self._topic, timeout=20).topics[self._topic].partitions
        return [(number, row.leader, row.replicas, row.isrs) for number, row in sorted(found.items())]

    def _await_leaders(self, wanted: set[int]) -> bool:
        """Whether these partitions are led by the first of their copies within a few seconds."""
        deadline = time.monotonic() + ARM_SECONDS
        while time.monotonic() < deadline:
            if wanted <= {n for n, leader, replicas, _ in self._partitions() if leader == replicas[0]}:
                return True
            time.sleep(0.1)
        return False

    def _await_recovery(self, node_id: int) -> None:
        """Wait until every partition has all its copies again: the next fault must not take away the second one."""
        deadline = time.monotonic() + _RECOVERY_SECONDS
        while time.monotonic() < deadline:
            topics = self._admin.list_topics(timeout=20).topics
            if all(
                len(row.isrs) == len(row.replicas)
                for topic in topics.values()
                for row in topic.partitions.values()
            ):
                self._down.discard(node_id)
                return
            time.sleep(0.25)
        raise TimeoutError(f"broker {node_id} was back, but not in sync within {_RECOVERY_SECONDS:.0f} s")


def _is_produce(passing: Passing) -> bool:
    return passing.api_key == PRODUCE

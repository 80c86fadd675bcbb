# SPDX-License-Identifier: Apache-2.0
"""A transaction that was opened in a process which is dead by now is ended from another, in both protocols."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from chaos.check import read_committed
from fix_patience import wait_until

from penstock import Producer, TransactionHandle, complete_transaction
from penstock.control import AbortCause, ControlClient, create_topic, describe_transactions
from penstock.devbroker import DevCluster
from penstock.devbroker.settings import QUICK_JVM
from penstock.errors import IllegalStateError, TransactionAbortedError, TransactionCommittedError

pytestmark = [pytest.mark.broker, pytest.mark.slow]
pytest.importorskip("confluent_kafka", reason="what was written is read back with confluent-kafka")

TESTS = Path(__file__).resolve().parent.parent
PARTITIONS = 3
RECORDS = 30
LEVELS = {"v1": 1, "v2": 2}  # of the feature transaction.version
END_TXN_VERSIONS = {"v1": 3, "v2": 5}
_FEATURES = "org.apache.kafka.tools.FeatureCommand"


class Brokers:
    """Three brokers whose transaction protocol can be switched."""

    def __init__(self, cluster: DevCluster) -> None:
        self.cluster = cluster
        self._protocol = "v2"  # what a new cluster has

    @property
    def config(self) -> dict[str, str]:
        return {"bootstrap.servers": self.cluster.bootstrap_servers}

    def speak(self, protocol: str) -> None:
        if protocol != self._protocol:
            verb = "downgrade" if protocol == "v1" else "upgrade"
            feature = f"transaction.version={LEVELS[protocol]}"
            servers = ("--bootstrap-server", self.cluster.bootstrap_servers)
            done = self.cluster.run_tool(_FEATURES, *servers, verb, "--feature", feature, jvm=QUICK_JVM)
            assert done.returncode == 0, done.stdout + done.stderr
            self._protocol = protocol

    def read(self, topic: str) -> list[bytes]:
        """What a read-committed consumer sees, partition by partition."""
        found = read_committed(self.cluster.bootstrap_servers, topic, PARTITIONS)
        return [value for _, _, value in sorted(found)]


@pytest.fixture(scope="module")
def started() -> Iterator[Brokers]:
    interval = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
    with DevCluster(nodes=3, heap_mb=256, properties=interval) as cluster:
        yield Brokers(cluster)


@pytest.fixture(params=["v1", "v2"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def brokers(started: Brokers, protocol: str) -> Brokers:
    """The brokers, all up, speaking the protocol of the test."""
    for node in started.cluster.nodes:
        if not node.running:
            started.cluster.start_node(node.node_id)
    started.speak(protocol)
    return started


@pytest.fixture
def topic(brokers: Brokers) -> str:
    name = f"t-{uuid.uuid4().hex[:12]}"
    create_topic(name, PARTITIONS, 3, settings={"min.insync.replicas": 2}, config=brokers.config)
    return name


class Detacher:
    """The process that opens transactions."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def handle(self) -> TransactionHandle:
        assert self._process.stdout is not None
        return TransactionHandle.from_json(self._process.stdout.readline())

    def another(self, transactional_id: str) -> TransactionHandle:
        """Let it go on with another id, and detach again."""
        assert self._process.stdin is not None
        self._process.stdin.write(transactional_id + "\n")
        self._process.stdin.flush()
        return self.handle()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def detacher(brokers: Brokers, topic: str, timeout_ms: int) -> Iterator[Detacher]:
    name = f"x-{uuid.uuid4().hex[:12]}"
    arguments = (brokers.cluster.bootstrap_servers, topic, name, str(timeout_ms), str(RECORDS))
    with subprocess.Popen(
        [sys.executable, "-m", "chaos.detacher", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
    ) as process:
        try:
            yield Detacher(process)
        finally:
            process.kill()


Detach = Callable[..., TransactionHandle]


@pytest.fixture
def detach(brokers: Brokers, topic: str, protocol: str) -> Detach:
    """Give a function that opens a transaction in another process, kills that, and returns the handle."""

    def detach(timeout_ms: int = 60_000) -> TransactionHandle:
        with detacher(brokers, topic, timeout_ms) as process:
            handle = process.handle()
            process.kill()
        assert handle.end_txn_version == END_TXN_VERSIONS[protocol]
        assert handle.record_count == RECORDS
        return handle

    return detach


def values_of(*handles: TransactionHandle) -> list[bytes]:
    """The records of these transactions, partition by partition, in the order in which they were sent."""
    return [
        b"%s %d" % (handle.transactional_id.encode(), number)
        for partition in range(PARTITIONS)
        for handle in handles
        for number in range(partition, RECORDS, PARTITIONS)
    ]


def take_over(brokers: Brokers, handle: TransactionHandle) -> None:
    """Another producer takes the transactional id, as a restarted program would."""
    with Producer(brokers.config, transactional_id=handle.transactional_id) as producer:
        producer.init_transactions()


def test_committed_by_another_process_and_again(brokers: Brokers, topic: str, detach: Detach) -> None:
    handle = detach()
    for _ in range(3):
        assert complete_transaction(handle, config=brokers.config).committed
    assert brokers.read(topic) == values_of(handle)
    with pytest.raises(TransactionCommittedError):
        complete_transaction(handle, commit=False, config=brokers.config)


def test_aborted_by_another_process_and_again(brokers: Brokers, topic: str, detach: Detach) -> None:
    handle = detach()
    for _ in range(3):
        assert not complete_transaction(handle, commit=False, config=brokers.config).committed
    assert brokers.read(topic) == []
    with pytest.raises(TransactionAbortedError):
        complete_transaction(handle, config=brokers.config)


def test_committed_before_the_id_was_taken_over(brokers: Brokers, topic: str, detach: Detach) -> None:
    handle = detach()
    assert complete_transaction(handle, config=brokers.config).committed
    take_over(brokers, handle)
    # The coordinator says PRODUCER_FENCED now; the log knows that it was committed.
    assert complete_transaction(handle, config=brokers.config).committed
    assert brokers.read(topic) == values_of(handle)


def test_fenced_before_it_was_committed(brokers: Brokers, topic: str, detach: Detach) -> None:
    handle = detach()
    take_over(brokers, handle)
    with pytest.raises(TransactionAbortedError, match="fence"):
        complete_transaction(handle, config=brokers.config)
    outcome = complete_transaction(handle, commit=False, config=brokers.config)
    assert AbortCause.FENCE in outcome.causes
    assert brokers.read(topic) == []


def test_too_late(brokers: Brokers, topic: str, detach: Detach) -> None:
    handle = detach(timeout_ms=1500)

    def is_aborted() -> bool:
        found = describe_transactions([handle.transactional_id], brokers.config)[handle.transactional_id]
        return found is not None and found.state == "CompleteAbort"

    wait_until(is_aborted)
    with pytest.raises(TransactionAbortedError, match="time-out"):
        complete_transaction(handle, config=brokers.config)
    assert brokers.read(topic) == []


def test_the_coordinator_dies_between_detach_and_commit(brokers: Brokers, topic: str, detach: Detach) -> None:
    handle = detach()
    with ControlClient(brokers.config) as client:
        coordinator = client.find_coordinators([handle.transactional_id], timeout=30)
        brokers.cluster.kill(coordinator[handle.transactional_id].id)
        # The same client, which knows the coordinator that is no more.
        assert complete_transaction(handle, config=client, timeout=60).committed
    assert complete_transaction(handle, config=brokers.config, timeout=60).committed
    for node in brokers.cluster.nodes:
        if not node.running:
            brokers.cluster.start_node(node.node_id)
    assert brokers.read(topic) == values_of(handle)


def test_many_processes_commit_the_same_transaction(brokers: Brokers, topic: str, detach: Detach) -> None:
    handle = detach()
    with ThreadPoolExecutor(4) as threads:
        ended = [threads.submit(complete_transaction, handle, config=brokers.config) for _ in range(4)]
    assert all(each.result().committed for each in ended)
    assert brokers.read(topic) == values_of(handle)


def test_one_producer_detaches_one_transaction_after_the_other(brokers: Brokers, topic: str) -> None:
    with ExitStack() as stack:
        process = stack.enter_context(detacher(brokers, topic, 60_000))
        first = process.handle()
        second, third = (process.another(f"{first.transactional_id}-{number}") for number in (2, 3))
        process.kill()
    assert complete_transaction(third, config=brokers.config).committed
    assert not complete_transaction(second, commit=False, config=brokers.config).committed
    assert complete_transaction(first, config=brokers.config).committed
    assert brokers.read(topic) == values_of(first, third)


def test_after_a_detach_the_producer_takes_no_work_until_it_is_initialized(
    brokers: Brokers, topic: str
) -> None:
    name = f"x-{uuid.uuid4().hex[:12]}"
    with Producer(brokers.config, transactional_id=name) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"one", partition=0)
        handle = producer.detach_transaction()
        with pytest.raises(IllegalStateError):
            producer.send(topic, b"two", partition=0)
        with pytest.raises(IllegalStateError):
            producer.begin_transaction()
        assert complete_transaction(handle, config=brokers.config).committed
        producer.init_transactions()
        with producer.transaction():
            producer.send(topic, b"three", partition=0)
    assert brokers.read(topic) == [b"one", b"three"]

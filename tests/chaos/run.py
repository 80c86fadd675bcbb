# SPDX-License-Identifier: Apache-2.0
"""One run: brokers, producers, faults, and the reckoning."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from chaos.check import Checker, Findings, read_committed
from chaos.cluster import ProxiedCluster
from chaos.faults import Faults
from chaos.journal import KnownState, SentNote, TransactionHistory
from chaos.report import ChaosReport
from chaos.schedule import Schedule
from chaos.worker import WorkerPlan
from chaos.workers import WorkerProcess
from penstock.control import list_transactions

TOPIC = "chaos"
PARTITIONS = 6
COMPRESSION = ("none", "lz4", "zstd", "snappy")
_OPEN_SECONDS = 90.0


@dataclass(frozen=True)
class ChaosPlan:
    """How a run is to be.

    Attributes:
        seconds: how long faults are made.
        protocol: of the transactions: "v1", "v2", or "both": an upgrade from the one to the other at half-time.
        rate: records per second, of all processes together.
        haste: see `Schedule`.
        plain: processes without transactions; transactional: those with.
        secured: producers connect by TLS and SCRAM, and tell anew every two seconds who they are.
    """

    seconds: float
    seed: int
    protocol: str = "both"
    rate: float = 10_500.0
    plain: int = 3
    transactional: int = 2
    haste: float = 1.0
    secured: bool = False

    def workers(
        self, servers: str, folder: Path, security: Mapping[str, str] | None = None
    ) -> list[WorkerPlan]:
        """One plan for each process; a transactional one gets a third of the others' rate."""
        share = self.rate / (3 * self.plain + self.transactional)
        return [
            WorkerPlan(
                name=name,
                transactional=transactional,
                servers=servers,
                topic=TOPIC,
                partitions=PARTITIONS,
                rate=share if transactional else 3 * share,
                journal=str(folder / f"{name}.journal"),
                compression=COMPRESSION[number % len(COMPRESSION)],
                security=dict(security or {}),
            )
            for transactional, count in ((False, self.plain), (True, self.transactional))
            for number, name in enumerate(f"{'txn' if transactional else 'idem'}-{i}" for i in range(count))
        ]


def run_chaos(plan: ChaosPlan, log: Callable[[str], None]) -> ChaosReport:
    """Run it, and read everything back.

    Raises:
        WorkerFailed: a producer process broke; its standard error is in the text.
        TimeoutError, RuntimeError: the cluster did not recover from a fault, or could not be read back.
    """
    with ProxiedCluster(secured=plan.secured) as cluster:
        # Beside the brokers' data, which goes away with the cluster, also when this process is killed.
        folder = cluster.data_dir / "journals"
        folder.mkdir()
        return _run(plan, cluster, folder, log)


def _run(plan: ChaosPlan, cluster: ProxiedCluster, folder: Path, log: Callable[[str], None]) -> ChaosReport:
    if plan.protocol != "v2":
        cluster.set_transaction_version(1, upgrade=False)
    cluster.create_topic(TOPIC, PARTITIONS, replication=3, config={"min.insync.replicas": 2})
    workers: list[WorkerProcess] = []
    try:
        for each in plan.workers(cluster.proxied_servers, folder, cluster.security_options()):
            workers.append(WorkerProcess(each, folder))  # noqa: PERF401 - those started must be ended
        victims = [worker for worker in workers if worker.plan.transactional]
        faults = Faults(cluster, TOPIC, victims, log)
        seconds = _make_faults(plan, cluster, faults, workers, log)
        log(f"{seconds:6.1f} s  no more faults; the producers settle")
        for worker in workers:
            worker.begin_stop()
        for worker in workers:
            worker.end_stop()
    finally:
        for worker in workers:
            worker.end()
    _await_no_open_transaction(cluster.bootstrap_servers)
    plain, transactional = _journals(workers)
    findings = _read_back(cluster.bootstrap_servers, plain, transactional)
    stalls = {name: note.longest_stall for name, note in plain.items()}
    for name, history in transactional.items():
        stalls[name] = max((note.seconds for note in history.transactions.values()), default=0.0)
    return ChaosReport(
        seed=plan.seed,
        protocol=plan.protocol,
        seconds=seconds,
        faults=faults.injected,
        findings=findings,
        failed=sum(len(numbers) for note in plain.values() for numbers in note.failed.values()),
        stalls=stalls,
        median_transaction=_median_transaction(transactional),
        troubles=[text for history in transactional.values() for text in history.troubles]
        + [f"{count} x {text}" for note in plain.values() for text, count in note.errors.items()],
    )


def _median_transaction(histories: dict[str, TransactionHistory]) -> float:
    notes = (note for history in histories.values() for note in history.transactions.values())
    return median(
        [note.seconds for note in notes if note.state in (KnownState.COMMITTED, KnownState.ABORTED)] or [0.0]
    )


def _make_faults(
    plan: ChaosPlan,
    cluster: ProxiedCluster,
    faults: Faults,
    workers: list[WorkerProcess],
    log: Callable[[str], None],
) -> float:
    """Let the lanes run their time; how long it was until the last fault had been repaired."""
    schedule = Schedule(faults, plan.seed, plan.haste)
    started = time.monotonic()
    upgrade_at = started + plan.seconds / 2 if plan.protocol == "both" else float("inf")
    schedule.start()
    try:
        while (now := time.monotonic()) < started + plan.seconds:
            if now >= upgrade_at:
                upgrade_at = float("inf")
                _upgrade(cluster)
                log(f"{time.monotonic() - started:6.1f} s  transaction.version is 2 from now on")
            schedule.check()
            for worker in workers:
                if worker not in faults.victims:
                    worker.check()
            time.sleep(0.2)
    except BaseException:
        schedule.abandon()
        raise
    schedule.finish()
    return time.monotonic() - started


def _upgrade(cluster: ProxiedCluster, attempts: int = 10) -> None:
    # The controller that is asked may be the one that was just killed.
    for attempt in range(attempts):
        try:
            cluster.set_transaction_version(2, upgrade=True)
            return
        except RuntimeError:
            if attempt == attempts - 1:
                raise


def _await_no_open_transaction(servers: str) -> None:
    """Wait for the last markers; the processes have taken their ids anew, which ends what the killed ones had left."""
    deadline = time.monotonic() + _OPEN_SECONDS
    while states := {
        listing.transactional_id: listing.state
        for listing in list_transactions({"bootstrap.servers": servers}, timeout=60)
        if listing.state in ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
    }:
        if time.monotonic() > deadline:
            raise TimeoutError(f"transactions are still open: {states}")
        time.sleep(0.25)


def _journals(
    workers: list[WorkerProcess],
) -> tuple[dict[str, SentNote], dict[str, TransactionHistory]]:
    plain = {w.plan.name: SentNote.read(Path(w.plan.journal)) for w in workers if not w.plan.transactional}
    transactional = {
        w.plan.name: TransactionHistory.read(Path(w.plan.journal)) for w in workers if w.plan.transactional
    }
    return plain, transactional


def _read_back(
    servers: str, plain: dict[str, SentNote], transactional: dict[str, TransactionHistory]
) -> Findings:
    checker = Checker(plain, transactional)
    for partition, offset, value in read_committed(servers, TOPIC, PARTITIONS):
        checker.see(partition, offset, value)
    return checker.conclude()

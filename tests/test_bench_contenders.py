# SPDX-License-Identifier: Apache-2.0
"""What contenders are told and how they answer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fix_bench import CASES, CONTENDERS

from bench.contenders import aiokafka_send, confluent, kafka_python
from bench.model import BenchError, Job
from bench.pacing import Latencies
from bench.worker import Task

CLUSTER: Any = SimpleNamespace(
    bootstrap_servers="127.0.0.1:9", tool_command=lambda name, *arguments: [name, *arguments]
)
JAVA_OUTPUT = (
    "2000 records sent, 100.0 records/sec (0.05 MB/sec), 1.00 ms avg latency, 30.00 ms max latency, 1 ms 50th, "
    "2 ms 95th, 3 ms 99th, 4 ms 99.9th.\n"
    "1000 steady state records sent, 500.0 records/sec (0.05 MB/sec), 1.00 ms avg latency, 30.00 ms max latency, "
    "0 ms 50th, 5 ms 95th, 6 ms 99th, 7 ms 99.9th.\n"
)


def a_job(case: str, warm_up: int = 0) -> Job:
    return Job(CASES[case], CLUSTER, "a-topic", Path("values.txt"), 1000, warm_up)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender may write files beside the values."""
    monkeypatch.chdir(tmp_path)


def a_task(**fields: Any) -> Task:
    return Task(**{"settings": {}, "topic": "a-topic", "values": [b"a", b"b"], "records": 10, **fields})


# ------------------------------------------------------------------------------------------------ told and answered


def test_the_warm_up_of_java_is_counted_but_not_timed() -> None:
    timing = CONTENDERS["java"].read_timing(a_job("default"), JAVA_OUTPUT)
    assert (timing.seconds, timing.warm_up_records) == (pytest.approx(2.0), 1000)
    assert timing.latency_ms == {}
    with pytest.raises(BenchError):
        CONTENDERS["java"].read_timing(a_job("default"), JAVA_OUTPUT.splitlines()[0])


def test_java_at_a_rate_tells_its_latencies() -> None:
    job = a_job("latency-1000", warm_up=200)
    timing = CONTENDERS["java"].read_timing(job, JAVA_OUTPUT)
    assert timing.warm_up_records == 200
    assert timing.latency_ms == {"p50": 0.0, "p95": 5.0, "p99": 6.0, "p99.9": 7.0}
    command = CONTENDERS["java"].command(job)
    assert command[command.index("--throughput") + 1] == "1000"
    assert command[command.index("--num-records") + 1] == "1200"


def test_everybody_is_idempotent_and_waits_for_all() -> None:
    for case in CASES.values():
        # The releases that are measured apart are before 0.11, and know no idempotence.
        idempotent = "false" if case.kafka else "true"
        assert (case.settings["acks"], case.settings["enable.idempotence"]) == ("all", idempotent)
    keywords = kafka_python.options(CASES["batch-128k"].settings)
    assert keywords == {"acks": "all", "enable_idempotence": True, "batch_size": 131_072, "linger_ms": 5}
    assert aiokafka_send.options(CASES["batch-128k"].settings)["max_batch_size"] == 131_072
    assert confluent.options(CASES["zstd"].settings)["compression.level"] == "3"
    assert confluent.options(CASES["lz4"].settings)["compression.type"] == "lz4"


# ------------------------------------------------------------------------------------------------ working


def test_latencies_of_the_warm_up_do_not_count_but_its_records_must_arrive() -> None:
    task = a_task(rate=100_000, warm_up=5, records=10)
    latencies = Latencies(task)
    sent: list[tuple[int, float]] = []
    latencies.send_all(lambda value, number, started: sent.append((number, started)))
    assert [number for number, _ in sent] == list(range(-5, 10))
    for number, started in sent[1:]:
        latencies.ended(number, started)
    assert len(latencies.seconds) == 10
    with pytest.raises(BenchError, match="14 of 15"):
        latencies.check()
    latencies.ended(*sent[0])
    latencies.check()
    latencies.ended(*sent[0], error="refused")
    with pytest.raises(BenchError, match="1 failed"):
        latencies.check()

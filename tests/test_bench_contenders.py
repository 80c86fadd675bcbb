# SPDX-License-Identifier: Apache-2.0
"""What contenders are told and how they answer; the values they send; studies that are no races."""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fix_bench import CASES, CONTENDERS

from bench import aio
from bench.contenders import aiokafka_send, confluent, kafka_python
from bench.model import BenchError, Job
from bench.pacing import Latencies
from bench.studies import endurance, memory
from bench.values import make_values
from bench.worker import Answer, PythonContender, Task, clock_stopped, in_threads, percentiles_ms, work

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


def test_a_worker_is_told_its_task_and_answers_with_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    payloads = tmp_path / "values.txt"
    payloads.write_bytes(b'{"a": 1}\nb')
    job = Job(CASES["threads-4"], CLUSTER, "a-topic", payloads, 1000)
    command = CONTENDERS["penstock"].command(job)
    seen: list[Task] = []

    def keep(task: Task) -> Answer:
        seen.append(task)
        return Answer(2.0, 0.5, 1 << 20, 1)

    monkeypatch.setattr(sys, "argv", ["program", command[-1]])
    work({"keep": keep})
    (task,) = seen
    assert task.values == [b'{"a": 1}', b"b"]
    assert (task.topic, task.records, task.threads, task.partitions) == ("a-topic", 1000, 4, 6)
    assert task.settings["bootstrap.servers"] == "127.0.0.1:9"
    timing = CONTENDERS["penstock"].read_timing(job, capsys.readouterr().out)
    assert (timing.seconds, timing.cpu_seconds, timing.peak_rss) == (2.0, 0.5, 1 << 20)
    assert timing.warm_up_records == 1


def test_an_answer_without_figures_is_an_error() -> None:
    with pytest.raises(BenchError, match="no figures"):
        CONTENDERS["penstock"].read_timing(a_job("default"), "Traceback\n")


def test_pure_runs_without_compiled_modules() -> None:
    assert CONTENDERS["penstock-pure"].environment == {"PENSTOCK_PURE": "1"}
    assert CONTENDERS["penstock"].environment == {}


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


def test_threads_share_all_records() -> None:
    shares: list[int] = []
    in_threads(a_task(records=10, threads=4), shares.append)
    assert sorted(shares) == [2, 2, 3, 3]


def test_a_thread_that_cannot_send_is_an_error() -> None:
    def send(records: int) -> None:
        raise OSError(f"no way to send {records}")

    with pytest.raises(BenchError):
        in_threads(a_task(threads=2), send)


def test_tasks_wait_for_each_record_and_share_all_of_them() -> None:
    waiting: list[bytes] = []
    most = 0

    async def send_and_wait(topic: str, value: bytes) -> None:
        nonlocal most
        waiting.append(value)
        most = max(most, len(waiting))
        await asyncio.sleep(0)
        waiting.remove(value)

    async def send(topic: str, value: bytes) -> None:
        raise AssertionError("nobody waits for single records then")

    answer = asyncio.run(aio.run(a_task(records=10, tasks=4), send, send_and_wait))
    assert (most, len(answer.latencies), answer.warm_up) == (4, 10, 1)


def test_every_outcome_is_awaited_after_all_were_sent() -> None:
    events: list[str] = []

    async def outcome() -> None:
        events.append("outcome")

    async def send(topic: str, value: bytes) -> Any:
        events.append("sent")
        return outcome()

    async def send_and_wait(topic: str, value: bytes) -> None:
        events.append("first")

    answer = asyncio.run(aio.run(a_task(records=2), send, send_and_wait))
    assert events == ["first", "sent", "sent", "outcome", "outcome"]
    assert (answer.latencies, answer.warm_up) == ((), 1)


def test_a_contender_needs_all_of_its_packages() -> None:
    def contender(*packages: str) -> PythonContender:
        return PythonContender("x", "X", 1, module="x", packages=packages)

    assert contender().missing() is None
    assert contender("json", "asyncio").missing() is None
    assert contender("json", "no_such_package").missing() == "the package no_such_package is not installed"


def test_percentiles_are_latencies_that_so_many_do_not_exceed() -> None:
    assert percentiles_ms([number / 1000 for number in range(1000, 0, -1)]) == {
        "p50": 500.0,
        "p95": 950.0,
        "p99": 990.0,
        "p99.9": 999.0,
    }
    assert percentiles_ms([0.002]) == {"p50": 2.0, "p95": 2.0, "p99": 2.0, "p99.9": 2.0}


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


def test_records_are_paced() -> None:
    latencies = Latencies(a_task(rate=1000, records=21))
    starts = [started for _, started in latencies.starts()]
    assert starts[-1] - starts[0] >= 0.019


def test_figures_are_taken_when_the_clock_stops() -> None:
    answer = clock_stopped(0.0, warm_up=3, latencies=[1.0])
    assert answer.seconds > 0
    assert answer.cpu_seconds > 0
    assert (answer.warm_up, answer.latencies) == (3, [1.0])


# ------------------------------------------------------------------------------------------------ values


@pytest.mark.parametrize("size", [10, 100, 1000, 10_000])
def test_letters_have_their_size_and_no_line_break(size: int) -> None:
    values = make_values("letters", size)
    assert {len(value) for value in values} == {size}
    assert not any(b"\n" in value for value in values)
    assert len(set(values)) == len(values)
    assert values == make_values("letters", size)


def test_events_are_json_and_compress_as_events_do() -> None:
    values = make_values("events", 300)
    assert json.loads(values[0])["currency"] == "EUR"
    assert 250 <= sum(map(len, values)) / len(values) <= 350
    batch = b"".join(values[:400])
    assert 2.5 < len(batch) / len(zlib.compress(batch)) < 6.0


# ------------------------------------------------------------------------------------------------ studies


def test_an_idle_interpreter_has_some_memory() -> None:
    if memory.Memory().missing():
        pytest.skip("this system does not tell")
    assert 1 << 20 < memory.idle_rss() < 100 << 20


def test_endurance_compares_the_last_tenth_with_the_second_at_one_speed_of_the_machine() -> None:
    def parts(last_rate: float, last_host_ms: float) -> list[dict[str, float]]:
        tenths = [{"rate": 1e6, "rss_mib": 80.0, "host_ms": 5.0} for _ in range(10)]
        return [*tenths[:9], {"rate": last_rate, "rss_mib": 81.5, "host_ms": last_host_ms}]

    slower_machine, slower_producer, steady = parts(0.5e6, 10.0), parts(0.8e6, 5.0), parts(1e6, 5.0)
    assert endurance.compare([slower_machine, slower_producer, steady]) == (
        "endurance: rate of the last tenth / that of the second 0.80 (0.50, 0.80, 1.00); with the machine's speed "
        "taken out 1.00 (1.00, 0.80, 1.00); memory +1.5 MiB at most"
    )
    assert "medians of 3" in endurance.draw(100, [slower_machine, slower_producer, steady])


def test_endurance_keeps_its_log_in_memory_only_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert endurance.memory_folder(tmp_path) is None, "an ordinary folder"
    monkeypatch.setattr("os.path.ismount", lambda _: True)
    for gigabytes, expected in ((2, None), (8, tmp_path)):
        usage = SimpleNamespace(free=gigabytes << 30)
        monkeypatch.setattr("shutil.disk_usage", lambda _, usage=usage: usage)
        assert endurance.memory_folder(tmp_path) == expected
    assert endurance.memory_folder(tmp_path / "missing") is None


def test_endurance_describes_every_tenth() -> None:
    lines = endurance.describe([{"rate": 1.5e6, "cpu_us": 0.51, "rss_mib": 80.4}] * 10)
    assert len(lines) == 10
    assert lines[9] == "endurance, tenth 10: 1.500 M records/s, 0.510 us of CPU each, 80 MiB"

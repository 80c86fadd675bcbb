# SPDX-License-Identifier: Apache-2.0
"""The Java producer, measured by Kafka's own ProducerPerformance (artifact kafka-tools, the broker's version).

Its values come from a file, as everybody's: values that it makes itself are drawn letter by letter for every record, at
a cost that is not the producer's.

It sends as many records again first, outside its clock: a run of seconds would mostly measure how Java's compiler warms
up. At a fixed rate its warm-up is as long as everybody's. Its CPU time is that of the whole process, over all records,
the warm-up's included. Its latencies are whole milliseconds, rounded down.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from bench.model import BenchError, Job, Timing
from penstock.devbroker.settings import properties_text

_TOOL = "org.apache.kafka.tools.ProducerPerformance"
_STEADY = re.compile(
    r"^(?P<records>\d+) steady state records sent, (?P<rate>[\d.]+) records/sec .* "
    r"(?P<p50>\d+) ms 50th, (?P<p95>\d+) ms 95th, (?P<p99>\d+) ms 99th, (?P<p999>\d+) ms 99\.9th\.",
    re.MULTILINE,
)
_STARTS_SECONDS = 2.5


class _ProducerPerformance:
    name = "java"
    title = "Java ProducerPerformance"
    guess = 600_000
    environment: Mapping[str, str] = {}

    def missing(self) -> str | None:
        return None  # it comes with the broker

    def run_seconds(self, clock_seconds: float) -> float:
        return 2 * clock_seconds + _STARTS_SECONDS

    def command(self, job: Job) -> list[str]:
        # A file, and not --command-property: that cuts a value at every "=".
        properties = job.payload_file.with_suffix(".properties")
        properties.write_text(properties_text(job.settings()), encoding="ascii")
        warm_up = _warm_up(job)
        return job.cluster.tool_command(
            _TOOL,
            *("--topic", job.topic, "--throughput", str(job.case.rate or -1)),
            *("--num-records", str(job.records + warm_up), "--warmup-records", str(warm_up)),
            *("--payload-file", str(job.payload_file), "--command-config", str(properties)),
        )

    def read_timing(self, job: Job, output: str) -> Timing:
        found = _STEADY.search(output)
        if found is None or int(found["records"]) != job.records:
            raise BenchError(f"no totals of {job.records} records after the warm-up in {output[-500:]!r}")
        latency = {
            name: float(found[name.replace(".", "")])
            for name in ("p50", "p95", "p99", "p99.9")
            if job.case.rate
        }
        seconds = job.records / float(found["rate"])
        return Timing(seconds, warm_up_records=_warm_up(job), latency_ms=latency)


def _warm_up(job: Job) -> int:
    return job.warm_up_records if job.case.rate else job.records


CONTENDERS = [_ProducerPerformance()]

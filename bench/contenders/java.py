# SPDX-License-Identifier: Apache-2.0
"""The Java producer, measured by Kafka's own ProducerPerformance (artifact kafka-tools, the broker's version).

Its values come from a file, as everybody's: values that it makes itself are drawn letter by letter for every record, at
a cost that is not the producer's.

It sends as many records again first, outside its clock: a run of seconds would mostly measure how Java's compiler warms
up. Its CPU time is that of the whole process, over all records, the warm-up's included.
"""

from __future__ import annotations

import re

from bench.model import BenchError, Job, Timing

_TOOL = "org.apache.kafka.tools.ProducerPerformance"
_STEADY = re.compile(r"^(\d+) steady state records sent, ([\d.]+) records/sec .* 99\.9th\.", re.MULTILINE)


class _ProducerPerformance:
    name = "java"
    title = "Java ProducerPerformance"

    def missing(self) -> str | None:
        return None  # it comes with the broker

    def command(self, job: Job) -> list[str]:
        properties = [f"{name}={value}" for name, value in job.settings().items()]
        return job.cluster.tool_command(
            _TOOL,
            *("--topic", job.topic, "--throughput", "-1"),
            *("--num-records", str(2 * job.records), "--warmup-records", str(job.records)),
            *("--payload-file", str(job.payload_file), "--command-property", *properties),
        )

    def read_timing(self, job: Job, output: str) -> Timing:
        found = _STEADY.search(output)
        if found is None or int(found[1]) != job.records:
            raise BenchError(f"no totals of {job.records} records after the warm-up in {output[-500:]!r}")
        return Timing(job.records / float(found[2]), warm_up_records=job.records)


CONTENDERS = [_ProducerPerformance()]

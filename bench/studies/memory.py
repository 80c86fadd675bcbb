# SPDX-License-Identifier: Apache-2.0
"""How much memory a producer takes when its broker is gone and the application goes on sending.

A process sends one record, the broker is stopped, and the process sends on: what does not fit into buffer.memory is
refused after max.block.ms, what has waited for delivery.timeout.ms is given up, and the memory is filled again. The
most memory it ever had is compared with that of an interpreter that has done nothing, and with buffer.memory.

This module is also the program that does so; see `main`.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

from bench.budget import Plan
from bench.counting import await_leaders, create_topic
from bench.model import BenchError, Sample
from bench.process import ROOT
from bench.runner import address
from bench.studies import Context
from bench.worker import peak_rss
from penstock.devbroker import DevCluster

BUFFER_MEMORY = 32 << 20
SENDING_SECONDS = 12.0
BROKER_SECONDS = 10.0  # to start and stop one
FEW, MANY = 6, 2_000
CASES = {"memory-1k": (1000, FEW), "memory-10b": (10, FEW), "memory-2000": (10, MANY)}  # bytes, partitions
_READY = "ready"
_SETTINGS = {
    "buffer.memory": str(BUFFER_MEMORY),
    # Short, so that the memory is filled and given back several times.
    "max.block.ms": "200",
    "delivery.timeout.ms": "3000",
    "request.timeout.ms": "1500",
    "linger.ms": "5",
}
_MB = 1_000_000


class Memory:
    """Peak memory with the broker stopped, for records of two sizes and for many partitions, in every round."""

    name = "memory"
    title = "peak RSS above an idle interpreter, broker stopped, 6 and 2,000 partitions, buffer.memory 32 MiB"
    only_by_name = False
    needs_broker = True

    def missing(self) -> str | None:
        return None if peak_rss() is not None else "this system does not tell the peak memory of a process"

    def seconds(self, plan: Plan) -> float:
        return plan.rounds * len(CASES) * (_sending_seconds(plan) + BROKER_SECONDS)

    def run(self, context: Context) -> None:
        # A cluster of its own: the others' broker shall not be stopped.
        with DevCluster() as cluster:
            for case, (_, partitions) in CASES.items():
                create_topic(address(cluster), f"bench-{case}", partitions, {})
                for number in range(1, context.plan.rounds + 1):
                    self._round(context, cluster, number, case)

    def _round(self, context: Context, cluster: DevCluster, number: int, case: str) -> None:
        idle = idle_rss()
        settings = {**_SETTINGS, "bootstrap.servers": cluster.bootstrap_servers}
        told = _send_on(cluster, settings, case, _sending_seconds(context.plan))
        cluster.start_node(cluster.nodes[0].node_id)
        await_leaders(address(cluster), f"bench-{case}", CASES[case][1])
        if not told["refused"]:
            raise BenchError(f"{case}: the memory was never full ({told['accepted']:,} records)")
        above = (told["peak_rss"] - idle - BUFFER_MEMORY) / _MB
        context.results.samples.append(Sample(case, "penstock", number, "above_mb", above))
        context.tell(
            f"  round {number}  {case:<14} {told['peak_rss'] / _MB:6.1f} MB, {idle / _MB:.1f} MB of it an idle "
            f"interpreter: {above:+.1f} MB above both  ({told['accepted']:,} accepted, {told['refused']:,} refused)"
        )


def idle_rss() -> int:
    """The most memory of an interpreter that does nothing, in bytes."""
    code = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout) * 1024


def _sending_seconds(plan: Plan) -> float:
    # --records makes everything short, for a try.
    return 1.5 if plan.records else SENDING_SECONDS


def _send_on(cluster: DevCluster, settings: dict[str, str], case: str, seconds: float) -> dict[str, int]:
    told = json.dumps({"settings": settings, "case": case, "seconds": seconds})
    with subprocess.Popen(
        [sys.executable, "-m", "bench.studies.memory", told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as process:
        try:
            if process.stdout is None or process.stdout.readline().strip() != _READY:
                raise BenchError("the process that sends did not get ready")
            cluster.stop_node(cluster.nodes[0].node_id)
            output, _ = process.communicate("go\n", timeout=seconds + 60)
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        raise BenchError(f"the process that sends ended with {process.returncode}")
    answer: dict[str, int] = json.loads(output)
    return answer


def main(arguments: Sequence[str]) -> None:
    """Send for ever, as far as a benchmark goes: one record, a word, a line from the other side, and on."""
    from penstock import Producer
    from penstock.errors import BufferExhaustedError

    logging.getLogger("penstock").addHandler(logging.NullHandler())  # that the broker is gone is known
    told = json.loads(arguments[0])
    size, partitions = CASES[told["case"]]
    value, topic = bytes(size), f"bench-{told['case']}"
    # With keys, the open batches of all partitions take memory at the same time.
    keys: Iterator[bytes | None] = cycle([None])
    if partitions == MANY:
        keys = cycle([b"%d" % number for number in range(10 * partitions)])
    producer = Producer(told["settings"])
    producer.send(topic, value).result(30)
    print(_READY, flush=True)
    sys.stdin.readline()
    accepted = refused = 0
    deadline = time.monotonic() + told["seconds"]
    while time.monotonic() < deadline:
        try:
            for key in islice(keys, 100):
                producer.send(topic, value, key)
                accepted += 1
        except BufferExhaustedError:
            refused += 1
    print(json.dumps({"accepted": accepted, "refused": refused, "peak_rss": peak_rss()}), flush=True)
    producer.close(0)


if __name__ == "__main__":
    main(sys.argv[1:])

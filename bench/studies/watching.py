# SPDX-License-Identifier: Apache-2.0
"""What it costs a producer to be watched: its live page open in a browser, or its metrics scraped by Prometheus.

The same program sends for some seconds, in turns: bare, bare once more, with the page open, and scraped once a second.
Each run is a process, and who looks is another one (`bench.viewer`). CPU is user and system time of the process that
sends, from the start of sending to the last acknowledgement: a service that runs for long starts its server once.

The second bare program shows what a ratio of two equal programs is worth: a smaller difference is none.

This module is also the program that sends; see `main`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import cycle, islice
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.budget import OFTEN, TOPIC_SECONDS, Plan
from bench.cases.common import BATCH_128K
from bench.counting import count_records, create_topic, delete_topics
from bench.figures import compare
from bench.model import BenchError, Case, Sample
from bench.process import Program
from bench.runner import TOPIC_CONFIG, address
from bench.studies import Context
from bench.values import make_values
from bench.viewer import KINDS
from bench.worker import FIRST_SECONDS, RUN_OVERHEAD_SECONDS

if TYPE_CHECKING:
    from penstock import Producer

BARE, AGAIN, PAGE, PROMETHEUS = "bare", "bare-again", "page", "prometheus"
SHORTEST_SECONDS = 1.5  # of sending, so that every viewer looks
RUN_TIMEOUT_SECONDS = 90.0
MUST_HAVE = 0.75  # of the looks that fit into the time
_CHUNK = 1000  # records between two looks at the clock
CASE = Case(
    "watching",
    "CPU per record while somebody looks: the live page open, or a scrape every second; 128 KiB batches",
    "watching",
    (BARE, AGAIN, PAGE, PROMETHEUS),
    BATCH_128K,
)
_TOPIC = "bench-watching"


class Cost(NamedTuple):
    """What one run took.

    Attributes:
        records: sent within the clock.
        started: when the clock started, in monotonic seconds.
        ended: when it stopped.
        cpu_seconds: of the process, meanwhile.
        looking_seconds: CPU of all threads but the one that sends and the I/O thread, meanwhile.
    """

    records: int
    started: float
    ended: float
    cpu_seconds: float
    looking_seconds: float


class Watching:
    """CPU per record of a producer that somebody watches, against the same without."""

    name = CASE.name
    title = CASE.title
    only_by_name = True  # so many runs do not fit into the time of all
    needs_broker = True

    def missing(self) -> str | None:
        found = importlib.util.find_spec("prometheus_client")
        return None if found else "prometheus-client is not installed"

    def seconds(self, plan: Plan) -> float:
        runs = plan.rounds * OFTEN * len(CASE.contenders) + 1
        return TOPIC_SECONDS + runs * (_sending_seconds(plan) + RUN_OVERHEAD_SECONDS)

    def run(self, context: Context) -> None:
        seconds = _sending_seconds(context.plan)
        server = address(context.cluster)
        create_topic(server, _TOPIC, CASE.partitions, TOPIC_CONFIG)
        found: list[Sample] = []
        try:
            self._run(context, BARE, SHORTEST_SECONDS)  # warms up the broker
            for number in range(1, context.plan.rounds * OFTEN + 1):
                for who in order(number):
                    cost, looks = self._run(context, who, seconds)
                    found.extend(samples(who, number, cost, looks))
                    context.tell(f"  turn {number}  {who:<12} {describe(cost, looks)}")
        finally:
            delete_topics(server, [_TOPIC])
        context.results.samples.extend(found)  # all, or none: turns that are missing would not be seen
        for line in summary(context):
            context.tell(f"  {line}")
            context.results.notes.append(line)

    def _run(self, context: Context, who: str, seconds: float) -> tuple[Cost, int]:
        server = address(context.cluster)
        before = count_records(server, _TOPIC, CASE.partitions)
        settings = {"bootstrap.servers": context.cluster.bootstrap_servers, **CASE.settings}
        cost, answered = _watched_run(who, settings, seconds)
        arrived = count_records(server, _TOPIC, CASE.partitions) - before
        if arrived != cost.records + 1:  # the first is sent before the clock starts
            raise BenchError(f"{who}: {arrived:,} of {cost.records + 1:,} records arrived")
        return cost, check_looks(who, cost, answered)


def order(number: int) -> Sequence[str]:
    """Who comes after whom in a turn: each begins with another one."""
    first = (number - 1) % len(CASE.contenders)
    return (*CASE.contenders[first:], *CASE.contenders[:first])


def check_looks(who: str, cost: Cost, answered: Sequence[float]) -> int:
    """How many looks were answered while the clock ran.

    Raises:
        BenchError: so few that this was no run of a producer that is watched.
    """
    looks = sum(cost.started <= at <= cost.ended for at in answered)
    if who in KINDS:
        wanted = max(1, int(MUST_HAVE * (cost.ended - cost.started) / KINDS[who].period))
        if looks < wanted:
            raise BenchError(f"{who}: {looks} good answers, at least {wanted} were expected")
    return looks


def samples(who: str, number: int, cost: Cost, looks: int) -> list[Sample]:
    """The figures of a run."""
    figures = {"cpu_us": 1e6 * cost.cpu_seconds / cost.records}
    if looks:
        figures["look_ms"] = 1e3 * cost.looking_seconds / looks
    return [Sample(CASE.name, who, number, measure, value) for measure, value in figures.items()]


def describe(cost: Cost, looks: int) -> str:
    """A run in words."""
    seconds = cost.ended - cost.started
    each = f"; {looks} looks, {1e3 * cost.looking_seconds / looks:.1f} ms each" if looks else ""
    return f"{cost.records / seconds / 1e6:.3f} M records/s  {1e6 * cost.cpu_seconds / cost.records:.4f} us CPU{each}"


def summary(context: Context) -> list[str]:
    """The medians of all turns: what each costs against the bare program, and what a look costs by itself."""
    results = context.results
    lines = []
    for who in (AGAIN, PAGE, PROMETHEUS):
        ratio = compare(results, (CASE.name, who), (CASE.name, BARE), "cpu_us")
        if ratio is None:
            raise BenchError(f"there are no figures of {who}")
        own = results.values(CASE.name, who, "look_ms")
        each = (
            f"; the threads that answer take {median(own.values()):.1f} ms of CPU for a look" if own else ""
        )
        what = "bare against bare, which is noise" if who == AGAIN else f"{who} against bare"
        lines.append(
            f"watching: {what}: {ratio.median:.3f}x the CPU per record ({ratio.low:.3f}-{ratio.high:.3f}){each}"
        )
    return lines


def _sending_seconds(plan: Plan) -> float:
    # --records makes everything short, for a try.
    return SHORTEST_SECONDS if plan.records else max(SHORTEST_SECONDS, plan.seconds)


def _watched_run(who: str, settings: Mapping[str, str], seconds: float) -> tuple[Cost, list[float]]:
    """Let one program send, and one look if somebody does; the cost, and when looks were answered."""
    told = json.dumps({"who": who, "settings": settings, "seconds": seconds})
    with ExitStack() as stack:
        sender = stack.enter_context(Program("bench.studies.watching", told, timeout=RUN_TIMEOUT_SECONDS))
        url = sender.hear()["url"]
        viewer = None
        if url:
            viewer = stack.enter_context(Program("bench.viewer", who, url, timeout=RUN_TIMEOUT_SECONDS))
            viewer.hear()  # it has looked once
            time.sleep(KINDS[who].period / 2)  # so that no look falls on the start or on the end
        sender.say_go()
        cost = Cost(**sender.hear())
        answered: list[float] = viewer.end()["answered"] if viewer is not None else []
        sender.end()
    return cost, answered


def main(arguments: Sequence[str]) -> None:
    """Send for some seconds, as told: a line with the address for viewers, go, a line with the cost, the end."""
    from penstock import Producer

    told = json.loads(arguments[0])
    values = make_values(CASE.values, CASE.record_size)
    more: dict[str, Any] = {}
    if told["who"] == PAGE:
        more["glass_box"] = "127.0.0.1:0"
    elif told["who"] == PROMETHEUS:
        from penstock.watching.prometheus import collector

        more["metric_reporters"] = [collector]
    with Producer(told["settings"], **more) as producer:
        producer.send(_TOPIC, values[0]).result(FIRST_SECONDS)
        print(json.dumps({"url": _address(told["who"])}), flush=True)
        sys.stdin.readline()
        cost = _send(producer, values, told["seconds"])
        print(json.dumps(cost._asdict()), flush=True)
        sys.stdin.read()  # who looks has gone
    print("{}", flush=True)


def _address(who: str) -> str:
    """Where viewers find this process; "" if there are none."""
    if who == PAGE:
        from penstock.watching import glass_box

        return glass_box.urls()[0]
    if who == PROMETHEUS:
        from prometheus_client import start_http_server

        server, _ = start_http_server(0, "127.0.0.1")
        return f"http://127.0.0.1:{server.server_port}/"
    return ""


def _send(producer: Producer, values: Sequence[bytes], seconds: float) -> Cost:
    """Send as fast as possible. No Delivery is kept: the broker is asked whether all arrived."""
    working = [one for one in threading.enumerate() if one.name.startswith("penstock-producer")]
    send, endless, records = producer.send, cycle(values), 0
    started, cpu = time.monotonic(), _cpu_seconds(working)
    deadline = started + seconds
    while time.monotonic() < deadline:
        for value in islice(endless, _CHUNK):
            send(_TOPIC, value)
        records += _CHUNK
    producer.flush()
    ended, cpu_ended = time.monotonic(), _cpu_seconds(working)
    total, working_total = (after - before for after, before in zip(cpu_ended, cpu, strict=True))
    # The clocks are read one after the other.
    return Cost(records, started, ended, total, max(0.0, total - working_total))


def _cpu_seconds(io_threads: Sequence[threading.Thread]) -> tuple[float, float]:
    """User and system time until now: of the process, and of this thread and the I/O threads."""
    idents = [threading.get_ident(), *(one.ident for one in io_threads if one.ident is not None)]
    working = sum(time.clock_gettime(time.pthread_getcpuclockid(ident)) for ident in idents)
    return time.process_time(), working


if __name__ == "__main__":
    main(sys.argv[1:])

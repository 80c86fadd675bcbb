# SPDX-License-Identifier: Apache-2.0
"""What Penstock must reach, as data: which figure is compared with which, the bar, and the aim beyond it.

A figure is named by case, contender and measure. `rate` is records per second, more is better. Of all others less is
better: `us` and `cpu_us` are microseconds and microseconds of CPU per record, `p50` and `p99` milliseconds, `above_mb`
megabytes, `cpu_ms` and `turn_ms` milliseconds of CPU: of all turns of the I/O thread together, and of the longest,
`extra` what a way to send costs beyond `send` of bytes and the user's function, in units of that `send`.
"""

from __future__ import annotations

from dataclasses import dataclass

Entry = tuple[str, str]  # case, contender
PEERS = ("confluent", "java", "aiokafka", "kafka-python")
CODECS = ("zstd", "lz4", "snappy", "gzip")
SPARK_SINK = "penstock-spark"  # exactly once
SPARK_CONNECTOR = "spark-connector"  # tuned, at least once


@dataclass(frozen=True)
class Bar:
    """One thing to reach.

    Attributes:
        what: for people.
        ours: whose figure it is.
        against: with whom it is compared, as a ratio; of several, with the best. Empty: the figure stands for itself.
        measure: which figure.
        bar: at least this (rate), at most this (all others).
        aim: the same, beyond the bar.
        unit: of bar and aim.
    """

    what: str
    ours: Entry
    against: tuple[Entry, ...]
    measure: str
    bar: float
    aim: float
    unit: str = "x"

    @property
    def more_is_better(self) -> bool:
        """Whether the bar is a floor, and not a ceiling."""
        return self.measure == "rate"


def _latency(rate: int, measure: str, bar: float, aim: float) -> Bar:
    case = f"latency-{rate}"
    peers = tuple((case, peer) for peer in PEERS)
    what = f"{measure} at {rate:,}/s, linger 0 / best peer"
    return Bar(what, (case, "penstock"), peers, measure, bar, aim)


def _growth(kind: str, first: int, last: int) -> list[Bar]:
    entries = (f"{kind}-{last}", "penstock"), ((f"{kind}-{first}", "penstock"),)
    name = f"{kind} {first} -> {last}"
    return [
        Bar(f"CPU per record, {name}", *entries, "cpu_us", 1.5, 1.0),
        Bar(f"time per record, {name}", *entries, "us", 1.5, 1.0),
    ]


def _asyncio(loop: str) -> list[Bar]:
    """What a program for asyncio gets, against aiokafka on the same loop. There is no aim beyond these bars."""
    ours, theirs = f"penstock-{loop}", f"aiokafka-{loop}"
    return [
        Bar(f"{loop}: {what} / aiokafka", (case, ours), ((case, theirs),), measure, bar, bar)
        for what, case, measure, bar in (
            ("await send, then every Delivery", "asyncio-send", "rate", 6.0),
            ("the same, CPU per record", "asyncio-send", "cpu_us", 0.2),
            ("100 tasks that wait, records/s", "asyncio-100", "rate", 2.0),
            ("the same, p99", "asyncio-100", "p99", 0.7),
            ("one task that waits, p50", "asyncio-1", "p50", 1.0),
        )
    ]


def _usage() -> list[Bar]:
    """What the ways cost that programs use (`bench.usage`). There is no aim beyond these bars."""
    extras = [
        *(
            (f"serializers: {name}", way, 1.0)
            for name, way in (
                ("str.encode, value", "str"),
                ("str.encode, key and value", "str-both"),
                ("StringSerializer, key and value", "string"),
            )
        ),
        ("a dict of two headers", "headers", 1.3),
        ("a bytearray", "buffer", 1.1),
        ("a partitioner of the user's", "partitioner", 2.2),
        ("an interceptor with both methods", "interceptor", 3.0),
        ("send_many with str.encode", "many", 0.8),
    ]
    return [
        *(
            Bar(f"CPU beyond send of bytes, {what}", (f"usage-{way}", "penstock"), (), "extra", bar, bar, "b")
            for what, way, bar in extras
        ),
        *(
            Bar(
                f"CPU per record, {what}",
                (f"usage-{way}", "penstock"),
                ((f"usage-{case}", whose),),
                "cpu_us",
                bar,
                bar,
            )
            for what, way, case, whose, bar in (
                # In a loop of its own json.dumps leaves `send` in the caches, which is worth about 1 b.
                (
                    "JsonSerializer / json.dumps(...).encode() by hand",
                    "json",
                    "json-by-hand",
                    "penstock",
                    1.1,
                ),
                ("AsyncProducer.try_send / send, both with str.encode", "try-send", "try-send", "base", 1.1),
                ("a migrated program / confluent, before", "migrated", "migrated", "confluent", 0.5),
            )
        ),
    ]


def _scale() -> list[Bar]:
    """Keyed records, default settings: what partitions and brokers cost. There is no aim beyond these bars."""
    ours = "penstock-keyed"
    return [
        Bar(what, (case, ours), (against,), measure, bar, bar)
        for what, case, against, measure, bar in (
            ("records/s, keys, partitions 60 -> 2,000", "scale-2000", ("scale-60", ours), "rate", 0.5),
            ("CPU per record, keys, partitions 60 -> 2,000", "scale-2000", ("scale-60", ours), "cpu_us", 2.0),
            (
                "records/s, keys, 2,000 partitions / confluent",
                "scale-2000",
                ("scale-2000", "confluent-keyed"),
                "rate",
                3.0,
            ),
            (
                "records/s, fake brokers, partitions 60 -> 10,000",
                "fake-10000-3",
                ("fake-60-3", ours),
                "rate",
                0.4,
            ),
            (
                "CPU per record, 10,000 partitions, fake brokers 3 -> 100",
                "fake-10000-100",
                ("fake-10000-3", ours),
                "cpu_us",
                1.2,
            ),
        )
    ]


def _metadata(topics: int) -> list[Bar]:
    """A Metadata response of 100,000 partitions. There is no aim beyond these bars."""
    first, same, new = ((f"metadata-{topics}-{case}", "penstock") for case in ("first", "same", "new"))
    where = f"100,000 partitions of {topics:,} topics"
    return [
        Bar(f"Metadata of {where}, the same again / the first", same, (first,), "cpu_ms", 0.05, 0.05),
        Bar(f"longest turn, first Metadata of {where}", first, (), "turn_ms", 50.0, 50.0, "ms"),
        Bar(f"longest turn, new Metadata of {where}", new, (), "turn_ms", 50.0, 50.0, "ms"),
    ]


_TLS_PEERS = tuple(("tls-latency-1000", peer) for peer in ("confluent", "java"))

BARS = [
    Bar(
        "send, 128 KiB batches / confluent produce + callback",
        ("batch-128k", "penstock"),
        (("batch-128k", "confluent"),),
        "rate",
        3.0,
        6.0,
    ),
    Bar(
        "send, 128 KiB batches / Java, same settings",
        ("batch-128k", "penstock"),
        (("batch-128k", "java"),),
        "rate",
        2.0,
        4.0,
    ),
    Bar(
        "send, default settings / Java, default settings",
        ("default", "penstock"),
        (("default", "java"),),
        "rate",
        1.5,
        3.0,
    ),
    Bar(
        "CPU per record of send, 128 KiB batches / confluent",
        ("batch-128k", "penstock"),
        (("batch-128k", "confluent"),),
        "cpu_us",
        0.25,
        0.12,
    ),
    *(
        Bar(f"{what}, SASL_SSL / {whose}", (case, "penstock"), against, measure, bar, aim)
        for what, case, whose, against, measure, bar, aim in (
            ("send, 128 KiB batches", "tls-128k", "the limit", (("tls-128k", "limit"),), "rate", 0.5, 0.8),
            (
                "send, 128 KiB batches",
                "tls-128k",
                "confluent",
                (("tls-128k", "confluent"),),
                "rate",
                2.0,
                4.0,
            ),
            ("send, 128 KiB batches", "tls-128k", "Java", (("tls-128k", "java"),), "rate", 1.5, 3.0),
            ("send, default settings", "tls-default", "Java", (("tls-default", "java"),), "rate", 1.3, 2.5),
            (
                "CPU per record, 128 KiB",
                "tls-128k",
                "confluent",
                (("tls-128k", "confluent"),),
                "cpu_us",
                0.4,
                0.2,
            ),
            ("p50 at 1,000/s, linger 0", "tls-latency-1000", "best peer", _TLS_PEERS, "p50", 1.2, 0.5),
        )
    ),
    Bar(
        "send, 128 KiB batches, Kafka 0.10.2 (magic 1) / kafka-python",
        ("old-128k", "penstock"),
        (("old-128k", "kafka-python"),),
        "rate",
        5.0,
        10.0,
    ),
    Bar(
        "send_arrow without keys / the limit",
        ("arrow", "penstock-arrow"),
        (("arrow", "limit"),),
        "rate",
        0.7,
        0.95,
    ),
    Bar(
        "send_arrow, keys hashed / the limit",
        ("arrow-keys", "penstock-arrow"),
        (("arrow", "limit"),),
        "rate",
        0.6,
        0.9,
    ),
    Bar(
        "pure Python / kafka-python", ("pure", "penstock-pure"), (("pure", "kafka-python"),), "rate", 2.0, 5.0
    ),
    _latency(1_000, "p99", 1.0, 0.5),
    _latency(1_000, "p50", 1.1, 0.95),
    _latency(10_000, "p99", 1.0, 0.5),
    _latency(10_000, "p50", 0.5, 0.3),
    *_asyncio("asyncio"),
    *_asyncio("uvloop"),
    *(
        Bar(
            f"peak RSS above an idle interpreter and buffer.memory, broker stopped, {size} records",
            (f"memory-{name}", "penstock"),
            (),
            "above_mb",
            40.0,
            20.0,
            "MB",
        )
        for name, size in (("1k", "1 kB"), ("10b", "10 B"), ("2000", "2,000 partitions, 10 B"))
    ),
    *(
        Bar(
            f"{codec} / confluent, same level", (codec, "penstock"), ((codec, "confluent"),), "rate", 1.0, 2.0
        )
        for codec in CODECS
    ),
    *_growth("partitions", 6, 600),
    *_growth("threads", 1, 8),
    *_usage(),
    *_scale(),
    *(
        Bar(
            f"{what}, Spark sink exactly once / tuned connector",
            (case, SPARK_SINK),
            ((case, SPARK_CONNECTOR),),
            *rest,
        )
        for what, case, *rest in (
            ("rows/s, warm", "spark", "rate", 1.3, 1.8),
            ("CPU per row, warm", "spark", "cpu_us", 0.7, 0.5),
            ("seconds of the first job", "spark-first", "us", 1.5, 1.0),
        )
    ),
    Bar(
        "peak RSS of a Spark worker above buffer.memory",
        ("spark", SPARK_SINK),
        (),
        "above_mb",
        150.0,
        100.0,
        "MB",
    ),
    *(bar for topics in (10, 1_000) for bar in _metadata(topics)),
    # There is no aim beyond these; the study says how much of a difference is noise.
    *(
        Bar(
            f"CPU per record, {what} / nobody looks",
            ("watching", who),
            (("watching", "bare"),),
            "cpu_us",
            bar,
            bar,
        )
        for what, who, bar in (
            ("the live page is open", "page", 1.05),
            ("scraped by Prometheus every second", "prometheus", 1.01),
        )
    ),
    # Without what it takes to send them: `inject` sends nothing. Likewise without an aim beyond.
    *(
        Bar(
            f"headers of a trace made, {what} / OpenTelemetry's inject",
            (f"tracing-{case}", "penstock"),
            ((f"tracing-{case}", "inject"),),
            "cpu_us",
            0.25,
            0.25,
        )
        for what, case in (("one span for all", "shared-span"), ("a span for each record", "own-span"))
    ),
]

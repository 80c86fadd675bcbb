# SPDX-License-Identifier: Apache-2.0
"""The sentences of advice follow from the numbers, and from nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.watching.glass_box.advice import advice_for


def state(**changed: Any) -> dict[str, Any]:
    """A producer at work, with nothing in its way."""
    return {
        "options": {"linger.ms": 5, "batch.size": 16384, "compression.type": "none"},
        "counts": {"partitions": 12, "waiting_for_metadata": 0},
        "recent": {"seconds": 10.0, "records": 5000, "retries": 0, "errors": 0},
        "rates": {"records": 500.0},
        "times": {"record-delivery-time": {"p50": 7.0, "p95": 9.0, "p99": 11.0}},
        "leaving": [],
        "memory": {"total": 33554432, "waiting": 0, "waits": []},
        "io": {"now": "waiting", "for_s": 0.1, "where": "", "shares": shares()},
        "brokers": [],
        "lanes": [],
    } | changed


def shares(**changed: float) -> dict[str, float]:
    return {
        "waiting": 0.9,
        "sealing": 0.02,
        "writing": 0.03,
        "reading": 0.03,
        "callbacks": 0.01,
        "other": 0.01,
    } | changed


def leaving(reason: str, share: float, fill: float, batches: int = 100) -> list[dict[str, Any]]:
    return [
        {"reason": reason, "batches": int(batches * share), "share": share, "fill": fill},
        {"reason": "along", "batches": int(batches * (1 - share)), "share": 1 - share, "fill": 0.05},
    ]


def lane(**changed: Any) -> dict[str, Any]:
    return {
        "topic": "t", "partition": 3, "leader": 1, "queued": 0, "in_flight": 0, "retries": 0,
        "cause": "", "oldest_ms": 0.0,
    } | changed  # fmt: skip


def test_nothing_in_the_way() -> None:
    (said,) = advice_for(state())
    assert said.tone == "good"
    assert said.text == "Nothing holds the producer up: 500 records/s, half of them acknowledged within 7 ms."


def test_linger() -> None:
    (said,) = advice_for(state(leaving=leaving("linger", 0.76, 0.09)))
    assert said.text == (
        "76 % of batches leave by linger.ms=5 and are 9 % full: linger.ms=20 would make fewer and larger requests, and "
        "so would fewer than 12 partitions. It delays records by up to 15 ms more."
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"leaving": leaving("linger", 0.76, 0.6)},
        {"leaving": leaving("linger", 0.3, 0.09)},
        {"leaving": leaving("linger", 0.76, 0.09, batches=10)},
        {"leaving": leaving("full", 0.7, 0.99)},
        {"leaving": leaving("flush", 0.9, 0.8)},
        {"recent": {"seconds": 10.0, "records": 5000, "retries": 3, "errors": 0}},
        {"io": {"now": "callbacks", "for_s": 0.01, "where": "", "shares": shares()}},
        {"io": {"now": "waiting", "for_s": 0.01, "where": "", "shares": {}}},
    ],
)
def test_numbers_that_prove_nothing(changed: dict[str, Any]) -> None:
    (said,) = advice_for(state(**changed))
    assert said.tone == "good"


def io(**changed: float) -> dict[str, Any]:
    return {"io": {"now": "other", "for_s": 0, "where": "", "shares": shares(**changed)}}


def recent(seconds: float = 10.0, records: int = 100, retries: int = 0, errors: int = 0) -> dict[str, Any]:
    return {"recent": {"seconds": seconds, "records": records, "retries": retries, "errors": errors}}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"leaving": leaving("full", 0.92, 0.97)}, "92 % of batches leave because they are full"),
        ({"leaving": leaving("full", 0.92, 0.97)}, "a larger batch.size than 16 KiB"),
        ({"leaving": leaving("flush", 0.92, 0.02)}, "leave because flush() is called, 2 % full"),
        (recent(retries=30), "30 records were sent again in the last 10 s, 30 %"),
        (recent(records=50, retries=1), "1 record was sent again in the last 10 s, 2 %"),
        (recent(errors=4), "4 records failed in the last 10 s: each has its error in its Delivery"),
        (recent(errors=1), "1 record failed in the last 10 s: it has its error in its Delivery"),
        (io(callbacks=0.8, waiting=0.1), "80 % of its time in callbacks"),
        (io(sealing=0.7, waiting=0.2), "70 % of its time sealing batches"),
        (io(waiting=0.02), "it is the limit of this producer"),
        ({"lanes": [lane(leader=None, oldest_ms=9000.0)]}, "Records for t-3 wait for 9 s: no leader"),
        (recent(seconds=9.0, records=0), "Nothing was sent in the last 9 s."),
        (recent(seconds=0.0, records=0), "The first numbers come in a moment."),
    ],
)
def test_other_sentences(changed: dict[str, Any], words: str) -> None:
    assert words in advice_for(state(**changed))[0].text


@pytest.mark.parametrize("share", [0.5, 0.66, 0.76])
@pytest.mark.parametrize("now", ["callbacks", "waiting"])
def test_callbacks_that_take_half_of_the_time_are_told_whatever_the_thread_does_at_the_look(
    share: float, now: str
) -> None:
    changed = io(callbacks=share, waiting=1 - share)
    changed["io"] |= {"now": now, "for_s": 0.01}
    (said,) = advice_for(state(**changed))
    assert said.tone == "warn"
    assert f"The I/O thread spends {100 * share:.0f} % of its time in callbacks" in said.text
    changed["io"] |= {"now": "callbacks", "for_s": 3.0}
    (said,) = advice_for(state(**changed))
    assert said.text.startswith("A callback has run"), "which says it already"


@pytest.mark.parametrize(
    ("busy", "cause"),
    [
        ({"sealing": 0.98, "waiting": 0.01}, "The I/O thread spends 98 % of its time compressing with zstd"),
        ({"callbacks": 0.7, "waiting": 0.2}, "The I/O thread spends 70 % of its time in callbacks"),
        ({"writing": 0.4, "reading": 0.4, "waiting": 0.02}, "The I/O thread waits only 2 % of its time"),
    ],
)
def test_where_the_io_thread_is_the_limit_the_brokers_are_not_blamed_for_the_memory(
    busy: dict[str, float], cause: str
) -> None:
    memory = {
        "total": 1024,
        "waiting": 1,
        "waits": [{"thread": "a", "bytes": 1, "gathered": 0, "seconds": 2.0}],
    }
    options = {"linger.ms": 5, "batch.size": 16384, "compression.type": "zstd"}
    first, second, *others = advice_for(state(memory=memory, options=options, **io(**busy)))
    assert first.text.startswith(cause)
    assert second.text.startswith("1 sender waits for memory")
    assert second.text.endswith("The cause is the one above: buffer.memory becomes free when it is fixed.")
    assert others == []
    (said,) = advice_for(state(memory=memory))
    assert "The brokers are slower than the senders" in said.text


@pytest.mark.parametrize(
    ("waits", "told"), [(0, ""), (1, " 1 call waits for metadata."), (2, " 2 calls wait for metadata.")]
)
def test_a_bootstrap_server_is_named_by_its_address(waits: int, told: str) -> None:
    server = {"id": -1, "address": "a:1", "tone": "bad", "state": "disconnected", "text": "It is refused."}
    (said,) = advice_for(state(brokers=[server], counts={"partitions": 0, "waiting_for_metadata": waits}))
    assert said.text == f"Bootstrap server a:1: disconnected.{told} It is refused."


def test_what_is_worst_comes_first() -> None:
    broker = {"id": 1, "tone": "bad", "state": "no answer for 4 s", "text": "It may be stopped."}
    waits = [
        {"thread": "main", "bytes": 1, "gathered": 0, "seconds": 2.0},
        {"thread": "b", "bytes": 1, "gathered": 0, "seconds": 3.0},
    ]
    said = advice_for(
        state(
            io={"now": "callbacks", "for_s": 3.0, "where": "f (a.py:1)", "shares": shares()},
            brokers=[broker],
            lanes=[lane(queued=2, in_flight=1)],
            memory={"total": 1024, "waiting": 2, "waits": waits},
            leaving=leaving("linger", 0.9, 0.1),
        )
    )
    assert [one.text.split(":")[0] for one in said[:3]] == [
        "A callback has run on the I/O thread for 3.0 s, in f (a.py",
        "Broker 1",
        "2 senders wait for memory, the first for 3.0 s",
    ]
    assert "3 batches wait for it." in said[1].text
    assert said[-1].tone == "quiet"

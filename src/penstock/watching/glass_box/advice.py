# SPDX-License-Identifier: Apache-2.0
"""Sentences that follow from the numbers: what holds the producer up, or what would make it better.

Pure functions of a state as the page gets it. The first sentence matters most.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from penstock._counted import counted
from penstock.watching.glass_box.reading import BAD, GOOD, LONG_CALLBACK, QUIET, WARN, percent

State = Mapping[str, Any]

# From these on a number is worth a sentence.
MANY = 0.5  # part of the batches that leave for one reason
_MOSTLY_FULL = 0.8
LOW_FILL = 0.3
SOME_BATCHES = 20  # in the time that is looked at; fewer prove nothing
RETRIED = 0.01  # part of the records
_BUSY = 0.5  # part of the I/O thread's time
_NO_REST = 0.1
_IDLE_SECONDS = 2.0


class Advice(NamedTuple):
    """A sentence, and how much it matters: good, quiet, warn or bad."""

    tone: str
    text: str


def advice_for(state: State) -> list[Advice]:
    """What to tell about a producer; never empty."""
    said = [*_troubles(state), *about_leaving(state)]
    return said or [_all_is_well(state)]


def _troubles(state: State) -> Iterator[Advice]:
    yield from _callback(state)
    yield from _brokers(state, BAD)
    memory, busy = state["memory"], list(_io_time(state))
    if memory["waiting"]:
        yield from busy  # the cause comes before what follows from it
        longest = max(wait["seconds"] for wait in memory["waits"])
        who = "1 sender waits" if memory["waiting"] == 1 else f"{memory['waiting']} senders wait"
        held_up = busy or any(_callback(state)) or any(_brokers(state, BAD))
        why = (
            "The cause is the one above: buffer.memory becomes free when it is fixed."
            if held_up
            else "The brokers are slower than the senders: send less, check the brokers, or raise buffer.memory."
        )
        yield Advice(
            BAD,
            f"{who} for memory, the first for {longest:.1f} s: buffer.memory={_bytes(memory['total'])} is full with "
            f"records that have no answer yet. {why}",
        )
    recent = state["recent"]
    if recent["errors"]:
        which = "it has its error in its" if recent["errors"] == 1 else "each has its error in its"
        yield Advice(
            BAD,
            f"{counted(recent['errors'], 'record')} failed in the last {_seconds(recent['seconds'])}: {which} "
            "Delivery, in on_delivery, and in the log.",
        )
    if recent["retries"] > RETRIED * max(1, recent["records"]):
        causes = sorted({lane["cause"] for lane in state["lanes"] if lane["cause"]})
        why = f" The last cause: {causes[0]}" if causes else ""
        share = recent["retries"] / max(1, recent["records"])
        were = f"{counted(recent['retries'], 'record')} {'was' if recent['retries'] == 1 else 'were'}"
        yield Advice(
            WARN,
            f"{were} sent again in the last {_seconds(recent['seconds'])}, "
            f"{percent(min(1.0, share))} of those sent.{why}",
        )
    stuck = [lane for lane in state["lanes"] if lane["leader"] is None and lane["oldest_ms"] > 1000]
    if stuck:
        lane = stuck[0]
        yield Advice(
            WARN,
            f"Records for {lane['topic']}-{lane['partition']} wait for {lane['oldest_ms'] / 1000:.0f} s: no leader of "
            "the partition is known.",
        )
    yield from _brokers(state, WARN)
    if not memory["waiting"]:
        yield from busy


def _callback(state: State) -> Iterator[Advice]:
    io = state["io"]
    if io["now"] == "callbacks" and io["for_s"] >= LONG_CALLBACK:
        where = f", in {io['where']}" if io["where"] else ""
        yield Advice(
            BAD,
            f"A callback has run on the I/O thread for {io['for_s']:.1f} s{where}: nothing is sent meanwhile. Do the "
            "work of the callback on another thread.",
        )


def _brokers(state: State, tone: str) -> Iterator[Advice]:
    for broker in state["brokers"]:
        is_gone = broker["state"] == "gone"  # its text says whether batches wait
        if broker["tone"] != tone or not (tone == BAD or is_gone):
            continue
        if broker["id"] < 0:  # it leads no partition: what it is asked for is metadata
            waits = state["counts"]["waiting_for_metadata"]
            wait = (
                f" {counted(waits, 'call')} {'waits' if waits == 1 else 'wait'} for metadata."
                if waits
                else ""
            )
            yield Advice(
                tone, f"Bootstrap server {broker['address']}: {broker['state']}.{wait} {broker['text']}"
            )
            continue
        waiting = sum(
            lane["queued"] + lane["in_flight"] + lane["retries"]
            for lane in state["lanes"]
            if lane["leader"] == broker["id"] and not is_gone
        )
        wait = (
            f" {waiting:,} batches wait for it."
            if waiting > 1
            else " A batch waits for it."
            if waiting
            else ""
        )
        yield Advice(tone, f"Broker {broker['id']}: {broker['state']}.{wait} {broker['text']}")


def _io_time(state: State) -> Iterator[Advice]:
    shares = state["io"]["shares"]
    if not shares:
        return
    if shares["callbacks"] >= _BUSY and not any(_callback(state)):
        yield Advice(
            WARN,
            f"The I/O thread spends {percent(shares['callbacks'])} of its time in callbacks, where it sends nothing. "
            "Do that work on another thread.",
        )
    if shares["sealing"] >= _BUSY:
        codec = state["options"]["compression.type"]
        what = f"compressing with {codec}" if codec != "none" else "sealing batches"
        yield Advice(
            WARN,
            f"The I/O thread spends {percent(shares['sealing'])} of its time {what}: a cheaper codec, or a lower "
            "level, would let it send more.",
        )
    elif shares["waiting"] <= _NO_REST and shares["callbacks"] < _BUSY:
        yield Advice(
            WARN,
            f"The I/O thread waits only {percent(shares['waiting'])} of its time: it is the limit of this producer. "
            "Larger batches (batch.size, linger.ms) mean less work for each record; a second producer is a second "
            "thread.",
        )


def about_leaving(state: State) -> Iterator[Advice]:
    """What follows from why batches left; asks `leaving`, `options` and `counts` of the state alone."""
    by_reason = {entry["reason"]: entry for entry in state["leaving"]}
    batches = sum(entry["batches"] for entry in state["leaving"])
    if batches < SOME_BATCHES:
        return
    options = state["options"]
    linger, flush, full = (by_reason.get(reason) for reason in ("linger", "flush", "full"))
    if linger and linger["share"] >= MANY and linger["fill"] < LOW_FILL:
        linger_ms = options["linger.ms"]
        larger = max(20, linger_ms * 4)
        partitions = state["counts"]["partitions"]
        fewer = f", and so would fewer than {partitions} partitions" if partitions > 1 else ""
        yield Advice(
            QUIET,
            f"{percent(linger['share'])} of batches leave by linger.ms={linger_ms} and are "
            f"{percent(linger['fill'])} full: "
            f"linger.ms={larger} would make fewer and larger requests{fewer}. It delays records by up to "
            f"{larger - linger_ms} ms more.",
        )
    if flush and flush["share"] >= MANY and flush["fill"] < LOW_FILL:
        yield Advice(
            WARN,
            f"{percent(flush['share'])} of batches leave because flush() is called, "
            f"{percent(flush['fill'])} full: without it they would gather more records. Wait for the "
            "Delivery of a record, or flush once at the end.",
        )
    if full and full["share"] >= _MOSTLY_FULL:
        size = options["batch.size"]
        yield Advice(
            QUIET,
            f"{percent(full['share'])} of batches leave because they are full: a larger batch.size than {_bytes(size)} "
            "may mean fewer requests and better compression.",
        )


def _all_is_well(state: State) -> Advice:
    recent = state["recent"]
    if not recent["records"]:
        if recent["seconds"] < _IDLE_SECONDS:
            return Advice(QUIET, "The first numbers come in a moment.")
        return Advice(QUIET, f"Nothing was sent in the last {_seconds(recent['seconds'])}.")
    delivery = state["times"].get("record-delivery-time")
    took = f", half of them acknowledged within {delivery['p50']:.0f} ms" if delivery else ""
    return Advice(GOOD, f"Nothing holds the producer up: {state['rates']['records']:,.0f} records/s{took}.")


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f} s"


def _bytes(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}" if unit == "bytes" or size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"

# SPDX-License-Identifier: Apache-2.0
"""Eight threads that send for ever, in a process of their own so that its memory can be measured.

Run as a script, `flood.py OPTIONS TOPIC MAX_BLOCK_MS SIZE`; the options are JSON. Says "sending" once records are being
acknowledged; then the test kills the broker. Goes on until every thread has been refused twice because the memory was
used up, says what it saw as one line of JSON, waits for a line (the broker is back), flushes, and says what became of
the records. Small records are sent without a callback: a million of them would take more memory than the producer.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections import Counter
from pathlib import Path

from penstock import Producer
from penstock.errors import BufferExhaustedError

THREADS = 8
REFUSALS = 2
SMALL = 100
WARM_AFTER = 4000


def memory(field: str) -> int:
    """Bytes of memory of this process: VmRSS is what it has now, VmHWM the most it ever had."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert found is not None
    return int(found[1]) * 1024


def say(line: str) -> None:
    """Tell the one who started this process."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Flood:
    """The threads, and what they count."""

    def __init__(self, producer: Producer, topic: str, payload: bytes) -> None:
        self.payload = payload
        self.told = None if len(payload) < SMALL else self.on_delivery
        self.producer = producer
        self.topic = topic
        self.warm = threading.Event()
        # Each thread writes its own place.
        self.accepted = [0] * THREADS
        self.waits: list[list[float]] = [[] for _ in range(THREADS)]
        # Written by the I/O thread.
        self.acknowledged = 0
        self.errors: Counter[str] = Counter()

    def totals(self) -> dict[str, float]:
        """What the producer has counted."""
        return self.producer.metrics()["producer-metrics"]

    def wait_until_warm(self, seconds: float) -> None:
        """Wait until records are being acknowledged."""
        until = time.monotonic() + seconds
        while not self.warm.wait(0.05):
            if self.told is None and self.totals()["record-send-total"] > WARM_AFTER:
                return
            if time.monotonic() > until:
                raise TimeoutError("no acknowledgements")

    def outcomes(self) -> dict[str, object]:
        """What became of the records, after a flush."""
        totals = self.totals()
        if self.told is None:
            refused = sum(len(waits) for waits in self.waits)  # which are counted, too
            failed = int(totals["record-error-total"]) - refused
            self.acknowledged = sum(self.accepted) - failed
            self.errors["records"] = failed
        return {
            "accepted": self.accepted,
            "acknowledged": self.acknowledged,
            "errors": {name: count for name, count in self.errors.items() if count},
            "converted": int(totals["record-conversion-total"]),
        }

    def on_delivery(self, metadata: object, error: BaseException | None) -> None:
        if error is not None:
            self.errors[type(error).__name__] += 1
            return
        self.acknowledged += 1
        if self.acknowledged == WARM_AFTER:
            self.warm.set()

    def send_for_ever(self, thread: int) -> None:
        while len(self.waits[thread]) < REFUSALS:
            value = b"%d:%d:" % (thread, self.accepted[thread]) + self.payload
            started = time.monotonic()
            try:
                self.producer.send(self.topic, value, on_delivery=self.told)
            except BufferExhaustedError:
                self.waits[thread].append(time.monotonic() - started)
            else:
                self.accepted[thread] += 1


def main(given: str, topic: str, max_block_ms: str, size: str) -> None:
    """Do what the text above says."""
    idle = memory("VmRSS")
    options = {"request.timeout.ms": 5000, "max.block.ms": max_block_ms, **json.loads(given)}
    with Producer(**options) as producer:
        flood = Flood(producer, topic, b"." * int(size))
        threads = [threading.Thread(target=flood.send_for_ever, args=[number]) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        flood.wait_until_warm(20)
        say("sending")
        for thread in threads:
            thread.join()
        refused = {
            "waits": [wait for waits in flood.waits for wait in waits],
            "idle": idle,
            "peak": memory("VmHWM"),
        }
        say(json.dumps(refused))
        sys.stdin.readline()
        producer.flush(60)
        say(json.dumps({**flood.outcomes(), "idle": idle, "peak": memory("VmHWM")}))


if __name__ == "__main__":
    main(*sys.argv[1:])

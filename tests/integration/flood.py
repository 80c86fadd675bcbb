# SPDX-License-Identifier: Apache-2.0
"""Eight threads that send for ever, in a process of their own so that its memory can be measured.

Run as a script, `flood.py SERVERS TOPIC MAX_BLOCK_MS`. Says "sending" once records are being acknowledged; the one who
started it then kills the broker. Goes on until every thread has been refused twice for want of memory, says what it saw
as one line of JSON, waits for a line (the broker is back), flushes, and says what became of the records.
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
WARM_AFTER = 4000
PAYLOAD = b"." * 1000


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

    def __init__(self, producer: Producer, topic: str) -> None:
        self.producer = producer
        self.topic = topic
        self.warm = threading.Event()
        # Each thread writes its own place.
        self.accepted = [0] * THREADS
        self.waits: list[list[float]] = [[] for _ in range(THREADS)]
        # Written by the I/O thread.
        self.acknowledged = 0
        self.errors: Counter[str] = Counter()

    def on_delivery(self, metadata: object, error: BaseException | None) -> None:
        if error is not None:
            self.errors[type(error).__name__] += 1
            return
        self.acknowledged += 1
        if self.acknowledged == WARM_AFTER:
            self.warm.set()

    def send_for_ever(self, thread: int) -> None:
        while len(self.waits[thread]) < REFUSALS:
            value = b"%d:%d:" % (thread, self.accepted[thread]) + PAYLOAD
            started = time.monotonic()
            try:
                self.producer.send(self.topic, value, on_delivery=self.on_delivery)
            except BufferExhaustedError:
                self.waits[thread].append(time.monotonic() - started)
            else:
                self.accepted[thread] += 1


def main(servers: str, topic: str, max_block_ms: str) -> None:
    """Do what the text above says."""
    idle = memory("VmRSS")
    options = {"request_timeout_ms": 5000, "max_block_ms": max_block_ms}
    with Producer(bootstrap_servers=servers, **options) as producer:
        flood = Flood(producer, topic)
        threads = [threading.Thread(target=flood.send_for_ever, args=[number]) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        if not flood.warm.wait(20):
            raise TimeoutError("no acknowledgements")
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
        settled = {"accepted": flood.accepted, "acknowledged": flood.acknowledged, "errors": flood.errors}
        say(json.dumps({**settled, "idle": idle, "peak": memory("VmHWM")}))


if __name__ == "__main__":
    main(*sys.argv[1:])

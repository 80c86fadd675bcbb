# SPDX-License-Identifier: Apache-2.0
"""An outage under load: a process floods a broker, which is killed and comes back."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fix_broker import consume_from

from penstock.devbroker import DevCluster

FLOOD = Path(__file__).parent / "integration" / "flood.py"
BUFFER_MEMORY = 33_554_432  # the default
MAX_BLOCK_MS = 2000


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@dataclass(frozen=True)
class Outage:
    """What the process saw.

    Attributes:
        refused: when all its threads had been refused.
        settled: at its end.
    """

    refused: Mapping[str, Any]
    settled: Mapping[str, Any]

    @property
    def megabytes(self) -> float:
        """The most memory that it had, above that of the interpreter before the producer was made."""
        return float(self.settled["peak"] - self.settled["idle"]) / 1e6


def outage_under_load(
    cluster: DevCluster, options: Mapping[str, Any], topic: str, *, size: int = 1000, frozen: bool = False
) -> Outage:
    """Flood a topic of a cluster with one broker, kill the broker, and start it again.

    Args:
        size: of each value, but for its number.
        frozen: it is frozen instead, and goes on.
    """
    command = [sys.executable, str(FLOOD), json.dumps(dict(options)), topic, str(MAX_BLOCK_MS), str(size)]
    node_id = cluster.nodes[0].node_id
    with _started(command) as flood:
        assert flood.stdin is not None
        assert flood.stdout is not None
        assert flood.stdout.readline() == "sending\n"
        (cluster.pause if frozen else cluster.kill)(node_id)
        refused = json.loads(flood.stdout.readline())
        (cluster.resume if frozen else cluster.start_node)(node_id)
        flood.stdin.write("back\n")
        flood.stdin.flush()
        settled = json.loads(flood.stdout.readline())
        assert flood.wait(60) == 0
    return Outage(refused, settled)


def check_outage(outage: Outage, cluster: DevCluster, topic: str) -> tuple[int, int]:
    """Memory was bounded, waits ended in time, and what was accepted arrived: how many, and how many more than once."""
    refused, settled = outage.refused, outage.settled
    # A thread may have waited a little while the broker was still there, and then not again from the start.
    assert len(refused["waits"]) == 16
    assert all(MAX_BLOCK_MS / 1000 - 0.01 <= wait < MAX_BLOCK_MS / 1000 + 30 for wait in refused["waits"])
    limit = BUFFER_MEMORY + 40_000_000
    assert refused["peak"] - refused["idle"] < limit
    assert settled["peak"] - settled["idle"] < limit

    assert settled["errors"] == {}
    assert settled["acknowledged"] == sum(settled["accepted"])
    accepted = {
        (thread, number) for thread, count in enumerate(settled["accepted"]) for number in range(count)
    }
    found: Counter[tuple[int, int]] = Counter()
    for record in consume_from(cluster, topic):
        thread, number, _ = (record.value or b"").split(b":")
        found[int(thread), int(number)] += 1
    assert found.keys() == accepted
    return len(accepted), found.total() - len(found)

# SPDX-License-Identifier: Apache-2.0
"""One scenario: a topic, rows to be written to it, a sink, and the rules of what goes wrong."""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from control.support import init_producer_id
from spark.faults.driver import Ending, SparkDriver
from spark.faults.reading import PARTITIONS, Found, Input, look
from spark.faults.rules import Marks, Rule, wait_until

from penstock.control import (
    ControlClient,
    TransactionListing,
    create_topic,
    describe_transactions,
    list_transactions,
)
from penstock.sink import sink_key

# The whole suite takes minutes; without this variable only its short list runs.
SUITE_VARIABLE = "PENSTOCK_SPARK_FAULTS"
long_list = pytest.mark.skipif(
    os.environ.get(SUITE_VARIABLE) != "all", reason=f"one of the long list: {SUITE_VARIABLE}=all"
)


@dataclass
class Scene:
    """Made anew for each test; the program with the Spark session is not."""

    driver: SparkDriver
    servers: str
    folder: Path
    replication: int = 1
    input: Input = field(init=False)
    name: str = field(default_factory=lambda: f"faults-{uuid.uuid4().hex[:10]}")
    options: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.input = Input(self.folder / "input")
        with ControlClient({"bootstrap.servers": self.servers}) as client:
            create_topic(self.name, PARTITIONS, self.replication, config=client)

    @property
    def marks(self) -> Marks:
        return self.driver.marks

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def plan(self, *rules: Rule, batches: int = 3, **options: str) -> None:
        """Write the rows, and say what goes wrong."""
        self.input = Input(self.folder / "input", batches)
        self.input.write()
        self.options |= options
        self.marks.begin(*rules)

    def job(self, **changed: Any) -> dict[str, Any]:
        """The streaming query that writes the rows, two tasks at a time."""
        options = {"kafka.bootstrap.servers": self.servers, "topic": self.name, "sinkId": self.name}
        job = {
            "kind": "stream",
            "input": str(self.input.folder),
            "checkpoint": str(self.checkpoint),
            "files_per_batch": self.input.tasks,
            "options": options | self.options,
        }
        return job | changed

    def run(self, **changed: Any) -> Ending:
        """Run the query until it has written all that there is, or fails."""
        return self.driver.run(self.job(**changed))

    def assert_well(self, **changed: Any) -> None:
        """Run the query, which succeeds."""
        ending = self.run(**changed)
        assert ending.well, ending

    def assert_killed(self) -> None:
        """Run the query, in which a rule kills the driver."""
        ending = self.run()
        assert ending.killed, ending

    def left_open(self) -> list[TransactionListing]:
        """Transactions of this sink that nobody has ended."""
        pattern = rf"ps\.{sink_key(self.name)}\..*"
        return list_transactions(
            {"bootstrap.servers": self.servers}, pattern=pattern, states=["Ongoing", "PrepareAbort"]
        )

    def left_open_in_topic(self) -> list[str]:
        """Open transactions that have written to the topic, whatever sink they are of."""
        config = {"bootstrap.servers": self.servers}
        ids = [each.transactional_id for each in list_transactions(config, states=["Ongoing"])]
        described = describe_transactions(ids, config).values()
        return [
            found.transactional_id
            for found in described
            if found is not None and self.name in {partition.topic for partition in found.partitions}
        ]

    def assert_nothing_left_open(self) -> None:
        """The sink has cleaned up by itself; a coordinator may take a moment to write that down."""
        wait_until(lambda: not self.left_open(), f"nothing to be open: {self.left_open()}", 20, pause=0.1)

    def found(self) -> Found:
        """What is in the topic, once the transactions that were left open have timed out."""
        with ControlClient({"bootstrap.servers": self.servers}) as client:
            for listing in self.left_open():
                init_producer_id(client, listing.transactional_id)  # aborts it, as the time-out would
        return look(self.servers, self.name, self.input.all_lines())

    def assert_exactly_once(self) -> None:
        found = self.found()
        assert found.exactly_once, str(found)

    def assert_repeated(self, *rows: str) -> None:
        """Every row is there, and these rows more than once: the scenario is able to show a mistake."""
        found = self.found()
        assert set(rows) <= set(found.repeated), str(found)
        assert not found.missing, str(found)

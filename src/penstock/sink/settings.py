# SPDX-License-Identifier: Apache-2.0
"""What a sink is told: its name, its cluster, and how long it may take."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

from penstock.errors import ConfigError

DEFAULT_LOG_TOPIC: Final = "penstock-sink-log"
BATCH_QUERY_ID: Final = "batch"  # a batch job is one query with one batch, number 0

OnRestoredCheckpoint = Literal["fail", "rewrite"]
OnLost = Literal["fail", "repair"]
OnChangedRows = Literal["fail", "skip"]

_KEY_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkSettings:
    """A sink as its driver knows it.

    Attributes:
        sink_id: its name; of a streaming query by default the checkpoint location.
        config: options of a client by their dotted names; bootstrap.servers is all that is needed.
        run_id: the name of a batch job's run, which is written once however often it is run; None in streaming queries.
        one_off: nobody will ever ask for this run again, so that its records leave the log when it is done.
        topic: the only topic that is written to; None where each row names its own.
        recovery_time_ms: how long after a decision a new driver may take to finish it.
        transaction_timeout_ms: of the tasks' transactions; less where the brokers do not allow as much.
        on_restored_checkpoint: what becomes of a batch when a later one of the same query was decided already, or this
            very one with other rows.
        on_changed_rows: what becomes of a batch that was decided before, when it comes again with as many rows but
            others. A stop can be repaired and a loss cannot, so that only a user who knows why skips them.
        on_lost: what becomes of a decided batch of which transactions were aborted: everything stops; or the tasks
            concerned write again when the batch is replayed, provided that their rows are the same.
        log_topic: where decisions are written.

    Raises:
        ConfigError: a value cannot be.
    """

    sink_id: str
    config: Mapping[str, Any] = field(repr=False)  # may hold credentials
    run_id: str | None = None
    one_off: bool = False
    topic: str | None = None
    recovery_time_ms: int = 300_000
    transaction_timeout_ms: int = 900_000
    on_restored_checkpoint: OnRestoredCheckpoint = "fail"
    on_lost: OnLost = "fail"
    on_changed_rows: OnChangedRows = "fail"
    log_topic: str = DEFAULT_LOG_TOPIC

    def __post_init__(self) -> None:
        if not self.sink_id:
            raise ConfigError(
                "a sink needs a name: give sinkId, or a checkpoint location in a streaming query",
                "sinkId",
            )
        if self.run_id == "":
            raise ConfigError(
                "runId must not be empty: leave it out, and the run gets a name of its own", "runId"
            )
        if self.one_off and self.run_id is None:
            raise ConfigError("only a run of a batch job can be one-off: it needs a run id")
        _check_choice("onRestoredCheckpoint", self.on_restored_checkpoint, OnRestoredCheckpoint)
        _check_choice("onLost", self.on_lost, OnLost)
        _check_choice("onChangedRows", self.on_changed_rows, OnChangedRows)
        if self.recovery_time_ms < 0:
            raise ConfigError(
                f"recoveryTime must not be negative: {self.recovery_time_ms} ms", "recoveryTime"
            )
        if self.transaction_timeout_ms < self.shortest_timeout_ms:
            raise ConfigError(
                f"transactionTimeout ({self.transaction_timeout_ms} ms) must be at least twice recoveryTime "
                f"({self.recovery_time_ms} ms), and a minute more than it: a decided batch must outlive its driver's "
                f"restart. The least is {self.shortest_timeout_ms} ms",
                "transactionTimeout",
                options=("transactionTimeout", "recoveryTime"),
            )

    @property
    def sink_key(self) -> str:
        """The sink's name in transactional ids and in the log: 16 hex digits."""
        return sink_key(self.sink_id, self.run_id)

    @property
    def cluster(self) -> str:
        """What tells the cluster from others: the servers to start from."""
        return str(self.config.get("bootstrap.servers", self.config.get("bootstrap_servers", "")))

    @property
    def is_batch_job(self) -> bool:
        """Whether this is one run of a batch job, and not a streaming query."""
        return self.run_id is not None

    @property
    def shortest_timeout_ms(self) -> int:
        """What the tasks' transaction time-out may not fall below: 40 s are for the decision, the rest for tasks."""
        return max(2 * self.recovery_time_ms, self.recovery_time_ms + 60_000)

    @property
    def name(self) -> str:
        """The sink in words, for messages."""
        run = "" if self.run_id is None or self.one_off else f", run {self.run_id!r}"
        return f"sink {self.sink_id!r}{run}"


def topic_in_words(topic: str | None) -> str:
    """Where a sink with that setting writes, for messages."""
    return "the topics that its rows name" if topic is None else f"topic {topic!r}"


def _check_choice(option: str, value: str, words: object) -> None:
    allowed = get_args(words)
    if value not in allowed:
        raise ConfigError(f"{option} must be {' or '.join(allowed)}, not {value!r}", option)


def sink_key(sink_id: str, run_id: str | None = None) -> str:
    """16 hex digits for a sink, or for one run of a batch job.

    A hash, so that it has a fixed length and no dot whatever the name is: no sink's ids begin with those of another.
    """
    parts = [sink_id] if run_id is None else [sink_id, run_id]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:_KEY_DIGITS]

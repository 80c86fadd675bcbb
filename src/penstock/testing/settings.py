# SPDX-License-Identifier: Apache-2.0
"""What an operator would configure on a cluster and on a topic. Defaults are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from penstock.error_codes import ErrorCode
from penstock.testing.refused import Refused

NO_LIMIT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster's side.

    Attributes:
        coordinator_slots: over how many slots transactional ids, and groups, are spread.
        marker_delay: seconds between the end of a transaction and its markers; while they are being written, the
            coordinator answers CONCURRENT_TRANSACTIONS.
        timeout_check_interval: seconds between two searches for transactions that took too long.
        tells_old_duplicates: a batch older than the five remembered ones is a DUPLICATE_SEQUENCE_NUMBER, as brokers
            before 1.1 and some that only speak Kafka's protocol say, and not an OUT_OF_ORDER_SEQUENCE_NUMBER.
    """

    auto_create_topics: bool = True
    default_partitions: int = 1
    default_replication: int = 3
    coordinator_slots: int = 50
    max_request_bytes: int = 100 * 1024 * 1024
    transaction_max_timeout_ms: int = 900_000
    timeout_check_interval: float = 10.0
    marker_delay: float = 0.0
    offset_metadata_max: int = 4096
    tells_old_duplicates: bool = False


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """A topic's side."""

    max_message_bytes: int = 1024 * 1024 + 12
    min_insync_replicas: int = 1
    compacted: bool = False
    log_append_time: bool = False
    timestamp_before_max_ms: int = NO_LIMIT
    timestamp_after_max_ms: int = NO_LIMIT

    def with_configs(self, configs: Mapping[str, str | None]) -> TopicSettings:
        """Apply topic options by their Kafka names; those which mean nothing here are forgotten.

        Raises:
            Refused: INVALID_CONFIG, a value is not what the option takes.
        """
        settings = self
        for name, value in configs.items():
            if value is None:
                raise Refused(ErrorCode.INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
            if name == "cleanup.policy":
                settings = replace(settings, compacted="compact" in _policies(value))
            elif name == "message.timestamp.type":
                settings = replace(settings, log_append_time=_is_log_append_time(value))
            elif name in _NUMBERS:
                settings = replace(settings, **{_NUMBERS[name]: _number(name, value)})  # type: ignore[arg-type]
        return settings


_NUMBERS: Final = {
    "max.message.bytes": "max_message_bytes",
    "min.insync.replicas": "min_insync_replicas",
    "message.timestamp.before.max.ms": "timestamp_before_max_ms",
    "message.timestamp.after.max.ms": "timestamp_after_max_ms",
}


def _number(name: str, value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}") from None
    if number < 0:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration {name}")
    return number


def _policies(value: str) -> list[str]:
    policies = value.split(",")
    if not set(policies) <= {"compact", "delete"}:
        raise Refused(ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration cleanup.policy")
    return policies


def _is_log_append_time(value: str) -> bool:
    if value not in ("CreateTime", "LogAppendTime"):
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration message.timestamp.type"
        )
    return value == "LogAppendTime"

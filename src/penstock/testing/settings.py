# SPDX-License-Identifier: Apache-2.0
"""What an operator would configure on a cluster and on a topic. Defaults are Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from penstock.error_codes import ErrorCode
from penstock.testing.arguments import checks_names
from penstock.testing.refused import Refused

NO_LIMIT: Final = 2**63 - 1


@checks_names
@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The cluster's side.

    Attributes:
        coordinator_slots: over how many slots transactional ids, and groups, are spread.
        marker_delay: seconds between the end of a transaction and its markers; while they are being written, the
            coordinator answers CONCURRENT_TRANSACTIONS.
        timeout_check_interval: seconds between two searches for transactions that took too long.
        tells_old_duplicates: a batch older than the five remembered ones is a DUPLICATE_SEQUENCE_NUMBER, as brokers
            before 1.1 and some that only implement Kafka's protocol say, and not an OUT_OF_ORDER_SEQUENCE_NUMBER.
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
    """A topic's side.

    Attributes:
        message_format: the highest magic in which records may be stored; a release may have a lower one.
    """

    max_message_bytes: int = 1024 * 1024 + 12
    min_insync_replicas: int = 1
    compacted: bool = False
    log_append_time: bool = False
    timestamp_before_max_ms: int = NO_LIMIT
    timestamp_after_max_ms: int = NO_LIMIT
    message_format: int = 2

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
            elif name == "message.format.version":
                settings = replace(settings, message_format=_message_format(value))
            elif name in _NUMBERS:
                settings = replace(settings, **{_NUMBERS[name]: _number(name, value)})  # type: ignore[arg-type]
        return settings


_NUMBERS: Final = {
    "max.message.bytes": "max_message_bytes",
    "min.insync.replicas": "min_insync_replicas",
    "message.timestamp.before.max.ms": "timestamp_before_max_ms",
    "message.timestamp.after.max.ms": "timestamp_after_max_ms",
}


def _message_format(value: str) -> int:
    """The magic of a release's message format."""
    try:
        number = tuple(int(part) for part in value.partition("-")[0].split("."))
    except ValueError:
        raise Refused(
            ErrorCode.INVALID_CONFIG, f"Invalid value {value} for configuration message.format.version"
        ) from None
    return 0 if number < (0, 10) else 1 if number < (0, 11) else 2


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


# ---- the options of a topic, as CreateTopics and DescribeConfigs tell them. The fake acts on a few of them (see
# TopicSettings); the others are known so that a misspelt one is refused, as Kafka refuses it.

_LONGEST: Final = str(NO_LIMIT)

# Name and default of each, as a broker of 4.3 lists them.
_DEFAULTS: Final = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": _LONGEST,
    "flush.ms": _LONGEST,
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": _LONGEST,
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": _LONGEST,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
# Releases before 4.0 take these as well.
_DROPPED: Final = {
    "message.downconversion.enable",
    "message.format.version",
    "message.timestamp.difference.max.ms",
}

_FROM_TOPIC, _FROM_CLUSTER, _FROM_DEFAULT = 1, 3, 5
# Kept by the controllers for the whole cluster, even where nobody has set it.
_CLUSTER_WIDE: Final = "min.insync.replicas"

_BOOLEAN, _STRING, _INT, _LONG, _DOUBLE, _LIST = 1, 2, 3, 5, 6, 7
_LISTS: Final = {
    "cleanup.policy",
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
}
_LONG_SIZES: Final = ("flush.messages", "retention.bytes")


def check_topic_options(configs: Mapping[str, str | None], *, with_dropped: bool) -> None:
    """Refuse options that there are not.

    Raises:
        Refused: INVALID_CONFIG.
    """
    for name in configs:
        if name not in _DEFAULTS and not (with_dropped and name in _DROPPED):
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")


def listed_topic_options(configs: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Every option of a topic, by name, with its value and where that is from."""
    return [_row(name, configs.get(name), default) for name, default in _DEFAULTS.items()]


def _row(name: str, value: str | None, default: str) -> dict[str, Any]:
    source = _FROM_CLUSTER if name == _CLUSTER_WIDE else _FROM_DEFAULT
    return {
        "name": name,
        "value": default if value is None else value,
        "config_source": source if value is None else _FROM_TOPIC,
    }


def described_topic_options(configs: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """The same with the type of each, as DescribeConfigs has it."""
    return [row | {"config_type": _type_of(row["name"])} for row in listed_topic_options(configs)]


def _type_of(name: str) -> int:
    if name in _LISTS:
        return _LIST
    default = _DEFAULTS[name]
    if default in ("true", "false"):
        return _BOOLEAN
    if "." in default:
        return _DOUBLE
    if not default.lstrip("-").isdecimal():
        return _STRING
    return _LONG if name.endswith((".ms", *_LONG_SIZES)) else _INT

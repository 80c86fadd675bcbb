# SPDX-License-Identifier: Apache-2.0
"""The options of a topic: which names there are, and how CreateTopics and DescribeConfigs tell their values.

The fake acts on a few of them (see TopicSettings); the others are known so that a misspelt one is refused, as Kafka
refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from penstock.error_codes import ErrorCode
from penstock.testing.refused import Refused

_LONGEST: Final = str(2**63 - 1)

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


def check_names(configs: Mapping[str, str | None], *, with_dropped: bool) -> None:
    """Refuse options that there are not.

    Raises:
        Refused: INVALID_CONFIG.
    """
    for name in configs:
        if name not in _DEFAULTS and not (with_dropped and name in _DROPPED):
            raise Refused(ErrorCode.INVALID_CONFIG, f"Unknown topic config name: {name}")


def listed(configs: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """Every option of a topic, by name, with its value and where that is from."""
    return [_row(name, configs.get(name), default) for name, default in _DEFAULTS.items()]


def _row(name: str, value: str | None, default: str) -> dict[str, Any]:
    source = _FROM_CLUSTER if name == _CLUSTER_WIDE else _FROM_DEFAULT
    return {
        "name": name,
        "value": default if value is None else value,
        "config_source": source if value is None else _FROM_TOPIC,
    }


def described(configs: Mapping[str, str | None]) -> list[dict[str, Any]]:
    """The same with the type of each, as DescribeConfigs has it."""
    return [row | {"config_type": _type_of(row["name"])} for row in listed(configs)]


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

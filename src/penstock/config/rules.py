# SPDX-License-Identifier: Apache-2.0
"""Rules between options: what must fit together, and what one option means for another.

Each rule is a function of plain values, so that it can be tested as a table. `apply_rules` runs them in order on the
values of one producer.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock._events import Event, tell
from penstock.config.frames import without_inner_frames
from penstock.config.kinds import INT_MAX
from penstock.config.security_keys import SECURITY_NAMES
from penstock.errors import ConfigError
from penstock.partitioners import Crc32Partitioner

if TYPE_CHECKING:
    from penstock.security.settings import SecuritySettings

_logger = logging.getLogger(__name__)

_SECURITY = frozenset(SECURITY_NAMES)
ACKS_ALL = -1
# Classes of Java's client that mean something here without being one.
_JMX_REPORTER = "org.apache.kafka.common.metrics.JmxReporter"
_UNIFORM_STICKY = "org.apache.kafka.clients.producer.UniformStickyPartitioner"
# Brokers remember the last five batches of an idempotent producer; with more in flight a retry could not be told
# from a new batch.
MAX_IN_FLIGHT_WITH_IDEMPOTENCE = 5


class Idempotence(NamedTuple):
    """Whether a producer is idempotent, and why not if that is a surprise."""

    enabled: bool
    why_disabled: str | None = None


def resolve_idempotence(
    *, enabled: bool, explicit: bool, acks: int, retries: int, max_in_flight: int, transactional: bool = False
) -> Idempotence:
    """Decide whether the producer is idempotent.

    Args:
        enabled: the value of enable.idempotence, set or defaulted.
        explicit: whether the user set it. A default gives way to acks and retries; what the user set does not.
        acks: -1, 0 or 1.
        retries: the value of that option.
        max_in_flight: the value of max.in.flight.requests.per.connection. It is checked against the default, too, and
            before the default gives way: a user who raises it must say that idempotence is not wanted.
        transactional: whether a transactional.id is set, which needs idempotence.

    Raises:
        ConfigError: the options contradict each other.
    """
    why_disabled = None
    in_the_way = ["enable.idempotence"]
    if enabled:
        obstacles = {"retries": "retries is 0"} if retries == 0 else {}
        if acks != ACKS_ALL:
            obstacles["acks"] = f"acks is {acks}, not all"
        if obstacles:
            in_the_way = list(obstacles)
            why_disabled = " and ".join(obstacles.values())
            if explicit:
                raise ConfigError(
                    f"enable.idempotence=true is not possible: {why_disabled}",
                    options=("enable.idempotence", *in_the_way),
                    reason=why_disabled,
                )
        if max_in_flight > MAX_IN_FLIGHT_WITH_IDEMPOTENCE:
            raise ConfigError(
                f"max.in.flight.requests.per.connection={max_in_flight} is not possible with idempotence, which allows "
                f"{MAX_IN_FLIGHT_WITH_IDEMPOTENCE}; lower it, or set enable.idempotence=false",
                options=("max.in.flight.requests.per.connection", "enable.idempotence"),
            )
    decision = Idempotence(enabled and why_disabled is None, why_disabled)
    if transactional and not decision.enabled:
        reason = why_disabled or "enable.idempotence is false"
        raise ConfigError(
            f"transactional.id needs idempotence, but {reason}",
            options=("transactional.id", *in_the_way),
            reason=reason,
        )
    return decision


def resolve_delivery_timeout(*, delivery_ms: int, explicit: bool, linger_ms: int, request_ms: int) -> int:
    """Make sure that a batch may linger and one request may time out before the batch itself does.

    Raises:
        ConfigError: the user set a delivery.timeout.ms that is too short.
    """
    needed = min(linger_ms + request_ms, INT_MAX)
    if delivery_ms >= needed:
        return delivery_ms
    if explicit:
        raise ConfigError(
            f"delivery.timeout.ms={delivery_ms} is too short: it must be at least linger.ms + request.timeout.ms "
            f"= {needed}. Raise it, or lower request.timeout.ms (now {request_ms}) or linger.ms (now {linger_ms})",
            "delivery.timeout.ms",
        )
    return needed


def apply_rules(values: dict[str, Any], explicit: AbstractSet[str]) -> None:
    """Bring checked values, by dotted name, into their final form.

    Raises:
        ConfigError: options that contradict each other.
    """
    values["acks"] = ACKS_ALL if values["acks"] == "all" else int(values["acks"])
    values["batch.size"] = max(1, values["batch.size"])
    values["linger.ms"] = min(values["linger.ms"], INT_MAX)
    _apply_delivery_timeout(values, explicit)
    _apply_idempotence(values, explicit)
    apply_backoffs(values, explicit)
    _apply_reporters(values)
    _apply_allocation(values)
    _apply_partitioner(values, explicit)
    if values["batch.size"] > values["buffer.memory"]:
        tell(
            _logger, logging.WARNING, Event.OPTION_CHANGED,
            "batch.size=%d is larger than buffer.memory=%d, which is used for both", values["batch.size"],
            values["buffer.memory"],
            option="batch.size",
        )  # fmt: skip
        values["batch.size"] = max(1, values["buffer.memory"])


def _apply_delivery_timeout(values: dict[str, Any], explicit: AbstractSet[str]) -> None:
    given = values["delivery.timeout.ms"]
    resolved = resolve_delivery_timeout(
        delivery_ms=given,
        explicit="delivery.timeout.ms" in explicit,
        linger_ms=values["linger.ms"],
        request_ms=values["request.timeout.ms"],
    )
    if resolved != given:
        text = "delivery.timeout.ms is raised to linger.ms + request.timeout.ms = %d"
        tell(_logger, logging.WARNING, Event.OPTION_CHANGED, text, resolved, option="delivery.timeout.ms")
    values["delivery.timeout.ms"] = resolved


def _apply_idempotence(values: dict[str, Any], explicit: AbstractSet[str]) -> None:
    decision = resolve_idempotence(
        enabled=values["enable.idempotence"],
        explicit="enable.idempotence" in explicit,
        acks=values["acks"],
        retries=values["retries"],
        max_in_flight=values["max.in.flight.requests.per.connection"],
        transactional=values["transactional.id"] is not None,
    )
    if decision.why_disabled is not None:
        text = "idempotence is turned off: %s"
        tell(_logger, logging.INFO, Event.IDEMPOTENCE_OFF, text, decision.why_disabled)
    values["enable.idempotence"] = decision.enabled


_BACKOFFS = (
    ("retry.backoff.ms", "retry.backoff.max.ms"),
    ("reconnect.backoff.ms", "reconnect.backoff.max.ms"),
    ("socket.connection.setup.timeout.ms", "socket.connection.setup.timeout.max.ms"),
)


def apply_backoffs(values: dict[str, Any], explicit: AbstractSet[str]) -> None:
    """Bring the waits that every client has into their final form; a part of `apply_rules`."""
    if "reconnect.backoff.ms" in explicit and "reconnect.backoff.max.ms" not in explicit:
        # Older clients had a constant wait; a user who sets only this option still expects one.
        values["reconnect.backoff.max.ms"] = values["reconnect.backoff.ms"]
    for base, top in _BACKOFFS:
        if values[base] > values[top]:
            tell(
                _logger, logging.WARNING, Event.OPTION_CHANGED,
                "%s=%d is above %s=%d, which is used throughout", base, values[base], top, values[top],
                option=base,
            )  # fmt: skip


_BUILT_IN_PARTITIONING = (
    "partitioner.adaptive.partitioning.enable",
    "partitioner.ignore.keys",
    "partitioner.rack.aware",
)


def _apply_reporters(values: dict[str, Any]) -> None:
    kept = tuple(reporter for reporter in values["metric.reporters"] if reporter != _JMX_REPORTER)
    if len(kept) < len(values["metric.reporters"]):
        text = "%s in metric.reporters has no effect: there is no JMX here, and producer.metrics() gives the numbers"
        tell(
            _logger, logging.WARNING, Event.OPTION_WITHOUT_EFFECT, text, _JMX_REPORTER, option="metric.reporters"
        )  # fmt: skip
    values["metric.reporters"] = kept


def _apply_allocation(values: dict[str, Any]) -> None:
    if values["buffer.memory.allocation.strategy"] == "full":
        text = "buffer.memory.allocation.strategy=full has no effect: a batch takes its memory as it grows"
        tell(
            _logger, logging.INFO, Event.OPTION_WITHOUT_EFFECT, text,
            option="buffer.memory.allocation.strategy",
        )  # fmt: skip


def _apply_partitioner(values: dict[str, Any], explicit: AbstractSet[str]) -> None:
    if values["partitioner.class"] == _UNIFORM_STICKY:
        values["partitioner.class"] = None
        values["partitioner.ignore.keys"] = True  # which Java's own page says to use in its place
    partitioner = values["partitioner.class"]
    if partitioner is Crc32Partitioner or type(partitioner) is Crc32Partitioner:
        # It concerns keys alone: the rest is still placed in the built-in way.
        if values["partitioner.ignore.keys"]:
            raise ConfigError(
                "partitioner.class=crc32 places records by their keys, which partitioner.ignore.keys=true ignores: "
                "leave one of them out",
                options=("partitioner.class", "partitioner.ignore.keys"),
            )
    elif partitioner is not None:
        for name in _BUILT_IN_PARTITIONING:
            if values[name] and name in explicit:
                text = "%s has no effect with a partitioner of your own"
                tell(_logger, logging.WARNING, Event.OPTION_WITHOUT_EFFECT, text, name, option=name)
            values[name] = False
    if values["partitioner.rack.aware"] and not values["client.rack"]:
        raise ConfigError(
            "partitioner.rack.aware=true needs client.rack, the rack of this producer",
            options=("partitioner.rack.aware", "client.rack"),
        )


@without_inner_frames
def security_of(
    values: Mapping[str, Any], explicit: AbstractSet[str], written: Mapping[str, str]
) -> SecuritySettings | None:
    """How a client with these options connects to brokers; None means plain TCP without a proxy.

    Args:
        values: checked values by their dotted names, of security only those that the user set.
        explicit: the dotted names of the options that the user set.
        written: the names that the user wrote for those that were given in another client's words.

    Raises:
        ConfigError: options that contradict each other, or are not enough.
    """
    if values["security.protocol"] == "PLAINTEXT" and _SECURITY.isdisjoint(explicit):
        return None
    # A plain client does without it. It knows more than the configuration, so that it stands above it.
    from penstock.security.settings import SecuritySettings

    settings = SecuritySettings.from_options(values, explicit, written)
    return None if settings.is_plain else settings

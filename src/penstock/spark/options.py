# SPDX-License-Identifier: Apache-2.0
"""The options of a write with the data source `penstock`: read and checked once, on the driver.

Spark hands options over with lower-cased names; texts name them as the documentation does. An option that nobody knows
is refused, because one that is misspelt and ignored in silence is found only in production.

The producer's options are imported where they are looked at: the process that commits a batch does without them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, TypeVar, get_args

from penstock.errors import ConfigError
from penstock.topic_names import is_topic_name

Delivery = Literal["exactly-once", "at-least-once"]
OnBadRow = Literal["fail", "dead-letter"]
OnRestoredCheckpoint = Literal["fail", "rewrite"]
OnLost = Literal["fail", "repair"]
OnChangedRows = Literal["fail", "skip"]
T = TypeVar("T", bound=str)

KAFKA_PREFIX: Final = "kafka."

# As the documentation spells them.
NAMES: Final = (
    "topic",
    "delivery",
    "sinkId",
    "runId",
    "onBadRow",
    "deadLetterTopic",
    "ignoreExtraColumns",
    "includeHeaders",
    "onRestoredCheckpoint",
    "onChangedRows",
    "onLost",
    "recoveryTime",
    "transactionTimeout",
    "decisionTopic",
    "progressFile",
    # Spark's own, which it hands on.
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
)
_SPELLING: Final = MappingProxyType({name.lower(): name for name in NAMES})

# Those that say how decisions are made and kept. Not sinkId: a name does no harm where nobody asks for it.
_EXACTLY_ONCE_ONLY: Final = (
    "onRestoredCheckpoint",
    "onChangedRows",
    "onLost",
    "recoveryTime",
    "transactionTimeout",
    "decisionTopic",
)

_TRANSACTIONAL_ID: Final = "transactional.id"
# Options of the producer that the sink sets by itself, with what to use instead.
_OWN_BUSINESS: Final = MappingProxyType(
    {
        "key.serializer": "cast the column key to string or binary in the query; its bytes are sent as they are",
        "value.serializer": "cast the column value to string or binary in the query; its bytes are sent as they are",
        _TRANSACTIONAL_ID: "the sink names its transactions itself; the option sinkId tells sinks apart",
        "transaction.timeout.ms": "use the option transactionTimeout, for example '15 min'",
    }
)

_UNITS_MS: Final = MappingProxyType(
    {
        **dict.fromkeys(("ms", "millis", "millisecond", "milliseconds"), 1),
        **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1000),
        **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60_000),
        **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    }
)
_LONGEST_MS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write was asked to do.

    Attributes:
        topic: where all rows go; None: the column `topic` says it.
        run_id: the name of this batch job's run; None in streaming queries, and where no name was given.
        checkpoint_location: of the streaming query, if Spark tells.
        progress_file: where `commit` writes down what it did, or None.
        producer: options of the producer, by their dotted names, as the user gave them.
    """

    streaming: bool
    topic: str | None = None
    delivery: Delivery = "exactly-once"
    sink_id: str | None = None
    run_id: str | None = None
    on_bad_row: OnBadRow = "fail"
    dead_letter_topic: str | None = None
    ignore_extra_columns: bool = False
    on_restored_checkpoint: OnRestoredCheckpoint = "fail"
    on_changed_rows: OnChangedRows = "fail"
    on_lost: OnLost = "fail"
    recovery_time_ms: int = 300_000
    transaction_timeout_ms: int = 900_000
    decision_topic: str = "penstock-sink-log"
    checkpoint_location: str | None = None
    progress_file: str | None = None
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets

    @property
    def exactly_once(self) -> bool:
        """Whether rows become visible once, together."""
        return self.delivery == "exactly-once"

    @property
    def servers(self) -> str:
        """The servers to start from, as the user gave them."""
        return self.producer["bootstrap.servers"]


def parse_options(given: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Read the options of a write.

    Args:
        given: the options as Spark hands them over; case does not matter in names.
        streaming: whether a streaming query writes.

    Raises:
        ConfigError: one is unknown, malformed, missing, or contradicts another.
    """
    by_name = {name.lower(): value for name, value in given.items()}
    producer = {
        name.removeprefix(KAFKA_PREFIX): value
        for name, value in by_name.items()
        if name.startswith(KAFKA_PREFIX)
    }
    own = {name: value for name, value in by_name.items() if not name.startswith(KAFKA_PREFIX)}
    for name in own:
        if name not in _SPELLING:
            raise _unknown(name, streaming)
    text = {_SPELLING[name]: value for name, value in own.items()}
    options = SinkOptions(
        streaming=streaming,
        topic=_topic(text, "topic"),
        delivery=_choice(text, "delivery", get_args(Delivery), "exactly-once"),
        sink_id=_try_text(text, "sinkId"),
        run_id=_try_text(text, "runId"),
        on_bad_row=_choice(text, "onBadRow", get_args(OnBadRow), "fail"),
        dead_letter_topic=_topic(text, "deadLetterTopic"),
        ignore_extra_columns=_switch(text, "ignoreExtraColumns"),
        on_restored_checkpoint=_choice(text, "onRestoredCheckpoint", get_args(OnRestoredCheckpoint), "fail"),
        on_changed_rows=_choice(text, "onChangedRows", get_args(OnChangedRows), "fail"),
        on_lost=_choice(text, "onLost", get_args(OnLost), "fail"),
        recovery_time_ms=_duration_ms(text, "recoveryTime", 300_000),
        transaction_timeout_ms=_duration_ms(text, "transactionTimeout", 900_000),
        decision_topic=_topic(text, "decisionTopic") or "penstock-sink-log",
        checkpoint_location=_try_text(text, "checkpointLocation"),
        progress_file=_try_text(text, "progressFile"),
        producer=producer,
    )
    _switch(text, "includeHeaders")  # headers are written wherever there is a column of them
    _check_together(options, text)
    _check_producer(options)
    return options


def _unknown(name: str, streaming: bool) -> ConfigError:
    from penstock.config.names import try_nearest_name

    call = "start" if streaming else "save"
    if name == "path":
        return ConfigError(
            f'penstock writes to a topic, not to a path: call {call}() without it, and set .option("topic", ...)',
            name,
        )
    if try_nearest_name(name) == name:
        return ConfigError(
            f"unknown option {name!r}; options of the producer start with kafka.: {KAFKA_PREFIX + name!r}",
            name,
        )
    nearest = difflib.get_close_matches(name, _SPELLING, n=1, cutoff=0.6)
    if nearest:
        return ConfigError(f"unknown option {name!r}; did you mean {_SPELLING[nearest[0]]!r}?", name)
    return ConfigError(
        f"unknown option {name!r}; there are {', '.join(NAMES[:15])}, and kafka.<option of the producer>",
        name,
    )


def _check_together(options: SinkOptions, text: Mapping[str, str]) -> None:
    """Refuse what is fine alone, but not with the others."""
    if options.on_bad_row == "dead-letter" and options.dead_letter_topic is None:
        raise ConfigError(
            "onBadRow=dead-letter needs the option deadLetterTopic (in a pipeline dead_letter_topic): where bad rows "
            "go",
            "deadLetterTopic",
            options=("deadLetterTopic", "onBadRow"),
        )
    if options.on_bad_row == "fail" and options.dead_letter_topic is not None:
        raise ConfigError(
            "deadLetterTopic is of no use without onBadRow=dead-letter; set that, too, or leave it out",
            "deadLetterTopic",
        )
    if options.run_id is not None and options.streaming:
        raise ConfigError(
            "runId is for batch jobs that may be run twice; a streaming query is known by its checkpointLocation, or "
            "by the option sinkId",
            "runId",
        )
    if options.run_id is not None and not options.exactly_once:
        raise ConfigError(
            "runId keeps a run from being written twice, which needs delivery=exactly-once; leave one of them out",
            options=("runId", "delivery"),
        )
    _refuse_without_effect(options, text)
    if not (options.streaming and options.exactly_once):
        return
    if _switch(text, "asyncProgressTrackingEnabled"):
        raise ConfigError(
            "asyncProgressTrackingEnabled cannot be exactly once: after a failure Spark may put other rows into a "
            "batch that was written already. Leave it out, or set delivery to at-least-once",
            "asyncProgressTrackingEnabled",
        )
    if options.sink_id is None and options.checkpoint_location is None:
        raise ConfigError(
            "an exactly-once streaming query needs a name that outlives it: set .option('checkpointLocation', ...) on "
            "the query itself (one from spark.sql.streaming.checkpointLocation is not shown to sinks), or "
            ".option('sinkId', 'a name of your own')",
            options=("checkpointLocation", "sinkId"),
        )


def _refuse_without_effect(options: SinkOptions, text: Mapping[str, str]) -> None:
    """Refuse what would do nothing: whoever sets it relies on it."""
    if not options.exactly_once:
        for name in _EXACTLY_ONCE_ONLY:
            if name in text:
                raise ConfigError(
                    f"{name} means nothing with delivery=at-least-once; leave one of them out",
                    options=(name, "delivery"),
                )
    if options.streaming:
        return
    if "onRestoredCheckpoint" in text:
        raise ConfigError(
            "onRestoredCheckpoint is for streaming queries; a batch job has no checkpoint: leave it out",
            "onRestoredCheckpoint",
        )
    for name in ("onLost", "onChangedRows"):
        if name in text and options.run_id is None:
            raise ConfigError(
                f"{name} says what a repeated run does, and a run without a name cannot be repeated: set the option "
                f"runId, too, or leave {name} out",
                options=(name, "runId"),
            )


def _check_producer(options: SinkOptions) -> None:
    """Let the producer's own parser look at its options, so that a wrong one fails here and not in a task."""
    from penstock.config.config import ProducerConfig
    from penstock.config.names import canonical_name, unknown_option

    for name in options.producer:
        try:
            canonical = canonical_name(name, keyword=False)
        except ConfigError:
            raise unknown_option(name, lambda ours: KAFKA_PREFIX + ours, KAFKA_PREFIX + name) from None
        if canonical in _OWN_BUSINESS:
            raise ConfigError(
                f"the option {KAFKA_PREFIX + name!r} is not allowed: {_OWN_BUSINESS[canonical]}",
                KAFKA_PREFIX + name,
            )
    if "bootstrap.servers" not in options.producer:
        raise ConfigError(
            'the option kafka.bootstrap.servers is missing: .option("kafka.bootstrap.servers", "host:9092")',
            "kafka.bootstrap.servers",
        )
    try:
        ProducerConfig.from_user(producer_config(options)).close_plugins()
    except ConfigError as error:
        named = None if error.option is None else KAFKA_PREFIX + error.option
        about = [KAFKA_PREFIX + name for name in error.options if name not in _OWN_BUSINESS]
        if (
            _TRANSACTIONAL_ID in error.options and error.reason is not None
        ):  # which the sink has set, not the user
            raise ConfigError(
                f"delivery=exactly-once needs idempotence, but {error.reason}: leave that option out, or set delivery "
                "to at-least-once",
                options=about,
            ) from None
        raise ConfigError(
            f"an option kafka.* of this write is wrong: {error}", named, options=about
        ) from None


def producer_config(options: SinkOptions) -> dict[str, str]:
    """The configuration of the producer that a task uses."""
    from penstock.config.names import canonical_name

    config = dict(options.producer)
    if not any(canonical_name(name, keyword=False) == "client.id" for name in config):
        config["client.id"] = "penstock-spark"
    if options.exactly_once:
        config[_TRANSACTIONAL_ID] = "penstock-spark"  # tasks choose another one for each transaction
        config["transaction.timeout.ms"] = str(options.transaction_timeout_ms)
    return config


# ---- single values


def _try_text(text: Mapping[str, str], name: str) -> str | None:
    value = text.get(name)
    if value is None:
        return None
    if not value.strip():
        raise ConfigError(f"the option {name} is empty; leave it out, or give it a value", name)
    return value.strip()


def _topic(text: Mapping[str, str], name: str) -> str | None:
    topic = _try_text(text, name)
    if topic is not None and not is_topic_name(topic):
        raise ConfigError(
            f"{name}={topic!r} is no name for a topic: letters, digits, '.', '_' and '-', at most 249 of them",
            name,
        )
    return topic


def _choice(text: Mapping[str, str], name: str, allowed: tuple[T, ...], default: T) -> T:
    value = _try_text(text, name)
    if value is None:
        return default
    for choice in allowed:
        if value.lower().replace("_", "-") == choice:
            return choice
    raise ConfigError(f"{name} must be {' or '.join(allowed)}, not {value!r}", name)


def _switch(text: Mapping[str, str], name: str) -> bool:
    value = (_try_text(text, name) or "false").lower()
    if value not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not {value!r}", name)
    return value == "true"


def _duration_ms(text: Mapping[str, str], name: str, default: int) -> int:
    value = _try_text(text, name)
    if value is None:
        return default
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", value.lower())
    unit = _UNITS_MS.get(found.group(2)) if found else None
    if found is None or unit is None:
        raise ConfigError(
            f"{name} must be a time with its unit, like '90 s' or '15 min', not {value!r}", name
        )
    duration = round(float(found.group(1)) * unit)
    if not 1 <= duration <= _LONGEST_MS:
        raise ConfigError(f"{name} must be between 1 ms and 24 days, not {value!r}", name)
    return duration

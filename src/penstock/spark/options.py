# SPDX-License-Identifier: Apache-2.0
"""The options of a write with the data source `penstock`: read and checked once, on the driver.

Spark hands options over with lower-cased names; texts name them as the documentation does. An option that nobody knows
is refused, because one that is misspelt and ignored in silence is found only in production.

The producer's options are imported where they are looked at: the process that commits a batch does without them.
"""

from __future__ import annotations

import logging
import posixpath
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, get_args

from penstock._arguments import is_topic_name
from penstock._events import Event, tell
from penstock.errors import ConfigError
from penstock.sink.settings import OnChangedRows, OnLost, OnRestoredCheckpoint, SinkSettings

if TYPE_CHECKING:
    from penstock.config.names import UnknownName

_logger = logging.getLogger("penstock.spark")
_OF_SECURITY: Final = ("sasl", "ssl", "https", "proxy", "socks5")
_warned: list[bool] = []  # whether this process has told of secrets in the clear

Delivery = Literal["exactly-once", "at-least-once"]
OnBadRow = Literal["fail", "dead-letter"]

DEFAULT_DELIVERY: Final = "exactly-once"
KAFKA_PREFIX: Final = "kafka."

SAME_EVERYWHERE: Final = (
    "Environment variables and files that options name must be there on the driver and on every executor"
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

BATCH_BATCH_ID: Final = 0  # a batch job has one batch
# The name of all batch jobs that were given none, but for pipelines; each run of them has an id of its own.
_UNNAMED_SINK: Final = "batch"

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
        checkpoint_location: of the streaming query, if Spark tells.
        pipeline: the name of the pipeline whose batch job this is, if it is one.
        progress_file: where `commit` writes down what it did, or None.
        sink: what was given of the exactly-once sink's settings, by the fields of SinkSettings, which has the defaults.
        producer: options of the producer, by their dotted names, as the user gave them.
    """

    streaming: bool
    topic: str | None = None
    delivery: Delivery = DEFAULT_DELIVERY
    on_bad_row: OnBadRow = "fail"
    dead_letter_topic: str | None = None
    ignore_extra_columns: bool = False
    checkpoint_location: str | None = None
    pipeline: str | None = None
    progress_file: str | None = None
    sink: Mapping[str, Any] = field(default_factory=dict)
    producer: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets

    @property
    def exactly_once(self) -> bool:
        """Whether rows become visible once, together."""
        return self.delivery == "exactly-once"

    @property
    def servers(self) -> str:
        """The servers to start from, as the user gave them."""
        return self.producer["bootstrap.servers"]

    def sink_settings(self) -> SinkSettings:
        """The settings of the exactly-once sink. A run of a batch job that was given no name gets a new one each time.

        Raises:
            ConfigError: a time is too short.
        """
        given = dict(self.sink)
        if "sink_id" not in given:
            named = self.streaming and self.checkpoint_location
            given["sink_id"] = checkpoint_name(named) if named else self.pipeline or _UNNAMED_SINK
        if not self.streaming and "run_id" not in given:
            given |= {"run_id": secrets.token_hex(16), "one_off": True}
        return SinkSettings(config=self.producer, topic=self.topic, **given)

    def former_settings(self) -> SinkSettings | None:
        """Those of a pipeline's named run in releases where all unnamed sinks had one name; None for others."""
        if self.pipeline is None or "sink_id" in self.sink or "run_id" not in self.sink:
            return None
        return replace(self, pipeline=None).sink_settings()


def checkpoint_name(location: str) -> str:
    """The name of a sink that has none but its checkpoint's: one for all spellings of a local path.

    A relative path stays as it is, because the folder it starts from is the driver's, and this may be another process.
    """
    local = re.fullmatch(r"file:(?://(?=/)|(?!//))(/.*)", location, re.IGNORECASE)
    path = local.group(1) if local else location
    if not path.startswith("/"):
        return path.rstrip("/")
    return "/" + posixpath.normpath(path).lstrip("/")


# ---- single values


def _as_topic(name: str, value: str) -> str:
    if not is_topic_name(value):
        raise ConfigError(
            f"{name}={value!r} is no name for a topic: letters, digits, '.', '_' and '-', at most 249 of them",
            name,
        )
    return value


def _as_choice(allowed: tuple[str, ...], name: str, value: str) -> str:
    for choice in allowed:
        if value.lower().replace("_", "-") == choice:
            return choice
    raise ConfigError(f"{name} must be {' or '.join(allowed)}, not {value!r}", name)


def _as_switch(name: str, value: str) -> bool:
    word = value.lower()
    if word not in ("true", "false"):
        raise ConfigError(f"{name} must be true or false, not {word!r}", name)
    return word == "true"


def _as_milliseconds(name: str, value: str) -> int:
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


def _as_it_is(_: str, value: str) -> str:
    return value


def _one_of(words: object) -> Callable[[str, str], str]:
    return partial(_as_choice, get_args(words))


# ---- the table


class _Option(NamedTuple):
    """An option.

    Attributes:
        name: as the documentation spells it.
        parse: turns name and text into the value.
        option: the field of SinkOptions that it becomes, if any.
        setting: the field of SinkSettings that it becomes, if any.
    """

    name: str
    parse: Callable[[str, str], Any]
    option: str | None = None
    setting: str | None = None


_OPTIONS: Final = (
    _Option("topic", _as_topic, option="topic"),
    _Option("delivery", _one_of(Delivery), option="delivery"),
    _Option("sinkId", _as_it_is, setting="sink_id"),
    _Option("runId", _as_it_is, setting="run_id"),
    _Option("onBadRow", _one_of(OnBadRow), option="on_bad_row"),
    _Option("deadLetterTopic", _as_topic, option="dead_letter_topic"),
    _Option("ignoreExtraColumns", _as_switch, option="ignore_extra_columns"),
    _Option("includeHeaders", _as_switch),  # headers are written wherever there is a column of them
    _Option("onRestoredCheckpoint", _one_of(OnRestoredCheckpoint), setting="on_restored_checkpoint"),
    _Option("onChangedRows", _one_of(OnChangedRows), setting="on_changed_rows"),
    _Option("onLost", _one_of(OnLost), setting="on_lost"),
    _Option("recoveryTime", _as_milliseconds, setting="recovery_time_ms"),
    _Option("transactionTimeout", _as_milliseconds, setting="transaction_timeout_ms"),
    _Option("decisionTopic", _as_topic, setting="log_topic"),
    _Option("progressFile", _as_it_is, option="progress_file"),
)
# Spark's own, which it hands on. The name of a query is not looked at, and the last one only where it matters.
_CHECKPOINT: Final = _Option("checkpointLocation", _as_it_is, option="checkpoint_location")
_ASYNC_PROGRESS: Final = "asyncProgressTrackingEnabled"
# Set by `penstock run`, not by people.
_PIPELINE: Final = _Option("pipelineName", _as_it_is, option="pipeline")

NAMES: Final = (
    *(option.name for option in _OPTIONS),
    *(_CHECKPOINT.name, _PIPELINE.name, "queryName", _ASYNC_PROGRESS),
)
_SPELLING: Final = MappingProxyType({name.lower(): name for name in NAMES})

# Those that say how decisions are made and kept. Not the names: they do no harm where nobody asks for them.
_EXACTLY_ONCE_ONLY: Final = tuple(
    option.name for option in _OPTIONS if option.setting not in (None, "sink_id", "run_id")
)


def parse_options(given: Mapping[str, str], *, streaming: bool, on_driver: bool = True) -> SinkOptions:
    """Read the options of a write.

    Args:
        given: the options as Spark hands them over; case does not matter in names.
        streaming: whether a streaming query writes.
        on_driver: whether Spark's driver is on this machine. What references name need not be here if it is not.

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
    unknown = [name for name in own if name not in _SPELLING]
    if unknown:
        raise _unknown(unknown, producer, streaming=streaming)
    text = {_SPELLING[name]: value for name, value in own.items()}
    options: dict[str, Any] = {}
    sink: dict[str, Any] = {}
    for option in (*_OPTIONS, _CHECKPOINT, _PIPELINE):
        if option.name in text:
            value = option.parse(option.name, _not_empty(text, option.name))
            if option.option is not None:
                options[option.option] = value
            if option.setting is not None:
                sink[option.setting] = value
    parsed = SinkOptions(streaming=streaming, sink=sink, producer=producer, **options)
    _check_together(parsed, text)
    _check_producer(parsed, on_driver=on_driver)
    return parsed


def _not_empty(text: Mapping[str, str], name: str) -> str:
    value = text[name].strip()
    if not value:
        raise ConfigError(f"the option {name} is empty; leave it out, or give it a value", name)
    return value


def _unknown(names: Sequence[str], producer: Mapping[str, str], *, streaming: bool) -> ConfigError:
    """The error for all names that are none, those of the producer's options with them."""
    from penstock.config.names import UnknownName, unknown_options

    ours = f"; there are {', '.join(option.name for option in _OPTIONS)}, and kafka.<option of the producer>"
    advice = {name: _advice(name, streaming=streaming) for name in names}
    unlike = next((name for name, text in advice.items() if not text), None)
    return unknown_options(
        [
            *(UnknownName(name, advice=ours if name == unlike else text) for name, text in advice.items()),
            *_unknown_of_producer(producer),
        ]
    )


def _advice(name: str, *, streaming: bool) -> str:
    """What to write in place of an unknown name, as the end of a sentence; "" when nothing looks like it."""
    import difflib

    from penstock.config.names import try_nearest_name

    if name == "path":
        call = "start" if streaming else "save"
        return f'; penstock writes to a topic: call {call}() without it, and set .option("topic", ...)'
    if try_nearest_name(name) == name:
        return f"; options of the producer start with kafka.: {KAFKA_PREFIX + name!r}"
    nearest = difflib.get_close_matches(name, _SPELLING, n=1, cutoff=0.6)
    return f"; did you mean {_SPELLING[nearest[0]]!r}?" if nearest else ""


def _unknown_of_producer(names: Iterable[str]) -> list[UnknownName]:
    from penstock.config.names import UnknownName, try_canonical_name

    return [UnknownName(name, prefix=KAFKA_PREFIX) for name in names if try_canonical_name(name) is None]


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
    if "run_id" in options.sink and options.streaming:
        raise ConfigError(
            "runId is for batch jobs that may be run twice; a streaming query is known by its checkpointLocation, or "
            "by the option sinkId",
            "runId",
        )
    if "run_id" in options.sink and not options.exactly_once:
        raise ConfigError(
            "runId keeps a run from being written twice, which needs delivery=exactly-once; leave one of them out",
            options=("runId", "delivery"),
        )
    _refuse_without_effect(options, text)
    if not (options.streaming and options.exactly_once):
        return
    if _ASYNC_PROGRESS in text and _as_switch(_ASYNC_PROGRESS, _not_empty(text, _ASYNC_PROGRESS)):
        raise ConfigError(
            "asyncProgressTrackingEnabled cannot be exactly once: after a failure Spark may put other rows into a "
            "batch that was written already. Leave it out",
            "asyncProgressTrackingEnabled",
        )
    if "sink_id" not in options.sink and options.checkpoint_location is None:
        raise ConfigError(
            "an exactly-once streaming query needs a name that outlives it: set .option('checkpointLocation', ...) on "
            "the query itself (one from spark.sql.streaming.checkpointLocation is not shown to sinks), or "
            ".option('sinkId', 'a name of your own')",
            options=("checkpointLocation", "sinkId"),
        )


def _refuse_without_effect(options: SinkOptions, text: Mapping[str, str]) -> None:
    """Refuse options that would do nothing: a user who sets one relies on it."""
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
        if name in text and "run_id" not in options.sink:
            raise ConfigError(
                f"{name} says what a repeated run does, and a run without a name cannot be repeated: set the option "
                f"runId, too, or leave {name} out",
                options=(name, "runId"),
            )


def _check_producer(options: SinkOptions, *, on_driver: bool) -> None:
    """Let the producer's own parser look at its options, so that a wrong one fails here and not in a task."""
    from penstock.config.config import ProducerConfig
    from penstock.config.names import try_canonical_name, unknown_options
    from penstock.config.references import has_reference

    unknown = _unknown_of_producer(options.producer)
    if unknown:
        raise unknown_options(unknown)
    for name in options.producer:
        canonical = try_canonical_name(name)
        if canonical is not None and canonical in _OWN_BUSINESS:
            raise ConfigError(
                f"the option {KAFKA_PREFIX + name!r} is not allowed: {_OWN_BUSINESS[canonical]}",
                KAFKA_PREFIX + name,
            )
    if "bootstrap.servers" not in options.producer:
        raise ConfigError(
            'the option kafka.bootstrap.servers is missing: .option("kafka.bootstrap.servers", "host:9092")',
            "kafka.bootstrap.servers",
        )
    if not on_driver and any(map(has_reference, options.producer.values())):
        return  # the driver will look
    try:
        ProducerConfig.from_user(producer_config(options)).close_plugins()
    except ConfigError as error:
        named = None if error.option is None else KAFKA_PREFIX + error.option
        about = [KAFKA_PREFIX + name for name in error.options if name not in _OWN_BUSINESS]
        # The transactional id was set by the sink, not by the user.
        if _TRANSACTIONAL_ID in error.options and error.reason is not None:
            raise ConfigError(
                f"delivery=exactly-once needs idempotence, but {error.reason}: leave that option out, or set delivery "
                "to at-least-once",
                options=about,
            ) from None
        if _is_reference(error.option, options.producer):
            raise ConfigError(
                f"an option kafka.* of this write is wrong on the driver: {error}. {SAME_EVERYWHERE}",
                named,
                options=about,
            ) from None
        raise ConfigError(
            f"an option kafka.* of this write is wrong: {error}", named, options=about
        ) from None


def _is_reference(option: str | None, given: Mapping[str, str]) -> bool:
    """Whether the value of an option, in whatever spelling, stands elsewhere."""
    from penstock.config.names import try_meaning
    from penstock.config.references import has_reference

    if option is None:
        return False
    meant = try_meaning(option)
    return any(try_meaning(name) == meant for name, value in given.items() if has_reference(value))


def warn_of_secrets(options: SinkOptions) -> None:
    """Say once in this process which secrets are given in the clear: Spark may show them in plans and its event log."""
    if _warned or not any(name.startswith(_OF_SECURITY) for name in options.producer):
        return  # most have none, and planning waits for what is imported
    from penstock.config.secrets import given_in_the_clear

    shown = [KAFKA_PREFIX + name for name in given_in_the_clear(options.producer)]
    if not shown:
        return
    _warned.append(True)
    tell(
        _logger, logging.WARNING, Event.SPARK_SECRET_SHOWN,
        "given in the clear: %s; Spark may show it in plans and in its event log. Write a reference instead, like "
        "${env:NAME} or ${file:PATH}: it is looked up on the driver and in each task",
        ", ".join(shown),
        option=", ".join(shown),
    )  # fmt: skip


def producer_config(options: SinkOptions) -> dict[str, str]:
    """The configuration of the producer that a task uses."""
    from penstock.config.names import canonical_name

    config = dict(options.producer)
    if not any(canonical_name(name, keyword=False) == "client.id" for name in config):
        config["client.id"] = "penstock-spark"
    if options.exactly_once:
        config[_TRANSACTIONAL_ID] = "penstock-spark"  # tasks choose another one for each transaction
        if "transaction_timeout_ms" in options.sink:
            config["transaction.timeout.ms"] = str(options.sink["transaction_timeout_ms"])
    return config

# SPDX-License-Identifier: Apache-2.0
"""What a MockProducer takes from the options of the producer it stands in for, and the errors a test injects."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from penstock.errors import ConfigError
from penstock.serializers import BytesSerializer, Serializer, as_serializer

log = logging.getLogger("penstock.testing")

# The calls that can be made to fail.
CAN_FAIL = (
    "send",
    "send_many",
    "send_arrow",
    "flush",
    "close",
    "partitions_for",
    "metrics",
    "init_transactions",
    "begin_transaction",
    "send_offsets_to_transaction",
    "commit_transaction",
    "abort_transaction",
)


def merge_options(config: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options by their names in snake case.

    Raises:
        ConfigError: `config` is no mapping, or an option is in both.
    """
    if config is None:
        return dict(options)
    if not isinstance(config, Mapping):
        raise ConfigError(f"MockProducer takes its config as a mapping, not as {config!r}: it reads no file")
    merged = {str(name).replace(".", "_"): value for name, value in config.items()}
    twice = sorted(merged.keys() & options.keys())
    if twice:
        raise ConfigError(f"given twice, in config and as an option: {', '.join(twice)}")
    return merged | dict(options)


class MockPlugins:
    """The user's objects among the options: serializers and partitioner.

    Args:
        options: by their names in snake case.

    Raises:
        ConfigError: one is given as a name.
        TypeError: a serializer is none.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self.key_serializer = _serializer(options, "key_serializer")
        self.value_serializer = _serializer(options, "value_serializer")
        name = "partitioner" if "partitioner" in options else "partitioner_class"
        self.partitioner: Any | None = _plugin(options, name)

    def close(self) -> None:
        """Close all that can be closed; errors are logged, as the real producer does."""
        for plugin in (self.partitioner, self.value_serializer, self.key_serializer):
            close = getattr(plugin, "close", None)
            if close is None:
                continue
            try:
                close()
            except Exception:
                log.exception("%r could not be closed", plugin)


class InjectedErrors:
    """Errors that calls shall raise. Not safe for threads by itself: the MockProducer's lock guards it."""

    def __init__(self) -> None:
        self._errors: dict[str, tuple[BaseException, int | None]] = {}

    def set(self, call: str, error: BaseException | None, times: int | None) -> None:
        """Let a call raise `error` that many times (None: always); without an error, let it work again."""
        if call not in CAN_FAIL:
            raise ValueError(f"call must be one of {', '.join(CAN_FAIL)}; not {call!r}")
        if times is not None and times < 1:
            raise ValueError(f"times must be positive or None: {times}")
        self._errors.pop(call, None)
        if error is not None:
            self._errors[call] = (error, times)

    def maybe_raise(self, call: str) -> None:
        """Raise what was set for the call, if anything."""
        if call not in self._errors:
            return
        error, times = self._errors.pop(call)
        if times != 1:
            self._errors[call] = (error, None if times is None else times - 1)
        raise error

    def clear(self) -> None:
        """Let all calls work again."""
        self._errors.clear()


def _serializer(options: Mapping[str, Any], option: str) -> Serializer:
    given = _plugin(options, option)
    return BytesSerializer() if given is None else as_serializer(given, option)


def _plugin(options: Mapping[str, Any], option: str) -> Any | None:
    plugin = options.get(option)
    if isinstance(plugin, str):
        raise ConfigError(
            f"{option}: MockProducer takes an object or a class, not the name {plugin!r}", option
        )
    return plugin() if isinstance(plugin, type) else plugin

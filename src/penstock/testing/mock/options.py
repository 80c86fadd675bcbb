# SPDX-License-Identifier: Apache-2.0
"""What a MockProducer takes from the options of the producer it stands in for, and the errors a test injects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.config.input import read_values
from penstock.config.plugins import load_plugins
from penstock.config.rules import apply_rules, security_of
from penstock.errors import ConfigError

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


class MockOptions:
    """The options of a MockProducer: read and checked as a Producer's, of which only the servers may be missing.

    Args:
        config: a mapping of options, or None.
        options: more options.

    Attributes:
        given: all options as they were given, by their names in snake case.
        transactional_id: the option of that name.
        plugins: serializers and partitioner; interceptors are not made, because they would not run.

    Raises:
        ConfigError: `config` is no mapping, or a Producer would refuse an option.
    """

    def __init__(self, config: object, options: Mapping[str, Any]) -> None:
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(
                f"MockProducer takes its config as a mapping, not as {config!r}: it reads no file"
            )
        values, explicit = read_values(config, options, may_lack={"bootstrap.servers"})
        apply_rules(values, explicit)
        security_of(values, explicit)
        if values["client.id"] is None:
            values["client.id"] = "mock-producer"
        self.given = {name.replace(".", "_"): value for name, value in {**(config or {}), **options}.items()}
        self.transactional_id: str | None = values["transactional.id"]
        self.plugins = load_plugins({**values, "interceptor.classes": ()})


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

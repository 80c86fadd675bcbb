# SPDX-License-Identifier: Apache-2.0
"""Faults: what a test wants to go wrong with one request.

A fault waits for the requests that it is meant for, and is used up. The first one that fits a request is taken, in the
order in which they were added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Literal

from penstock.protocol.messages import API_BY_KEY, API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.schema import ApiSchema
from penstock.testing.apis.context import ApiRequest
from penstock.types import TopicPartition

_API_BY_NAME: Final = {api.name: api for api in API_BY_KEY.values()}
# With these a client opens a connection: they are not what a test means that asks for an error of "a request".
_OPENING: Final = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong; parts may be combined (an error that comes late, say).

    Attributes:
        api: which requests, by the name of the API ("Produce", "Metadata") or by its schema. None is the next request
            of any kind. An error without `api` and `match` passes over the requests that open a connection:
            ApiVersions, SaslHandshake and SaslAuthenticate.
        broker: which broker; None is all of them.
        match: a further condition on the request.
        error: answer with this code. The request has no effect, unless `took_effect` says so.
        partitions: give the error to these partitions alone, and treat the others as ever (Produce only).
        took_effect: do what the request asks, and answer with the error nevertheless.
        delay: seconds to hold the answer back. Requests behind it on the connection wait with it, as in Kafka.
        cut: close the connection before the request is looked at, or after it took effect; no answer in either case.
        truncate: send only so many bytes of the answer, then close.
        garbage: send random bytes in place of the answer's body.
        throttle_ms: tell the client to wait, and leave its further requests alone for as long.
        skip: let so many requests pass that would fit.
        times: how often it happens; None is for ever.

    Raises:
        ValueError: there is no API of this name.
    """

    api: ApiSchema | str | None = None
    broker: int | None = None
    match: Callable[[ApiRequest], bool] | None = None
    error: int | None = None
    partitions: Collection[TopicPartition] | None = None
    took_effect: bool = False
    delay: float = 0.0
    cut: Literal["before", "after"] | None = None
    truncate: int | None = None
    garbage: bool = False
    throttle_ms: int = 0
    skip: int = 0
    times: int | None = 1

    def __post_init__(self) -> None:
        if not isinstance(self.api, str):
            return
        if self.api not in _API_BY_NAME:
            raise ValueError(f"there is no API {self.api!r}; known are {', '.join(sorted(_API_BY_NAME))}")
        object.__setattr__(self, "api", _API_BY_NAME[self.api])

    def fits(self, request: ApiRequest) -> bool:
        """Whether it is meant for the request."""
        if self.api is not None and request.api is not self.api:
            return False
        if self._is_any_error and request.api in _OPENING:
            return False
        if self.broker is not None and request.broker_id != self.broker:
            return False
        return self.match is None or self.match(request)

    @property
    def _is_any_error(self) -> bool:
        return self.error is not None and self.api is None and self.match is None


NO_FAULT = Fault()


class _Armed:
    """A fault, and how often it still skips and happens."""

    __slots__ = ("fault", "left", "to_skip")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.to_skip = fault.skip
        self.left = fault.times


class Faults:
    """The faults that wait."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []

    def add(self, fault: Fault) -> None:
        """Let a fault wait for its request.

        Raises:
            ValueError: it can never happen, or makes no sense.
        """
        if fault.times is not None and fault.times < 1:
            raise ValueError(f"a fault that happens {fault.times} times")
        if fault.error is None and (fault.partitions is not None or fault.took_effect):
            raise ValueError("partitions and took_effect belong to an error")
        self._armed.append(_Armed(fault))

    def clear(self) -> None:
        """Forget all that wait."""
        self._armed.clear()

    @property
    def waiting(self) -> list[Fault]:
        """Those that have not happened, or not as often as they should."""
        return [armed.fault for armed in self._armed]

    def take(self, request: ApiRequest) -> Fault:
        """The fault for a request; one that does nothing when there is none."""
        for armed in self._armed:
            if not armed.fault.fits(request):
                continue
            if armed.to_skip:
                armed.to_skip -= 1
                continue
            if armed.left is not None:
                armed.left -= 1
                if not armed.left:
                    self._armed.remove(armed)
            return armed.fault
        return NO_FAULT

# SPDX-License-Identifier: Apache-2.0
"""Faults: what a test wants to go wrong with one request.

A fault waits for the requests that it is meant for, and is used up. The first one that fits a request is taken, in the
order in which they were added.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, Literal

from penstock._arguments import check_bool, check_callable, check_int, check_timeout
from penstock.error_codes import ErrorCode
from penstock.protocol.messages import API_BY_KEY, API_VERSIONS, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from penstock.protocol.schema import ApiSchema
from penstock.testing.apis.context import ApiRequest
from penstock.testing.arguments import checks_names
from penstock.types import TopicPartition

_API_BY_NAME: Final = {api.name: api for api in API_BY_KEY.values()}
# With these a client opens a connection: they are not what a test means that asks for an error of "a request".
_OPENING: Final = (API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE)
_CUTS: Final = ("before", "after")
_CODES: Final = range(-(2**15), 2**15)  # what an answer has room for
_LONGEST_THROTTLE_MS: Final = 2**31 - 1  # likewise


@checks_names
@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong; parts may be combined (an error that comes late, say).

    Attributes:
        api: which requests, by the name of the API ("Produce", "Metadata") or by its schema. None is the next request
            of any kind. An error without `api` and `match` passes over the requests that open a connection:
            ApiVersions, SaslHandshake and SaslAuthenticate.
        broker: which broker; None is all of them.
        match: a further condition on the request: a function of the ApiRequest. It is called for each request that
            fits otherwise, so a fault with `match` alone only looks at requests.
        error: answer with this code, a member of `Code` or its number. The request has no effect, unless `took_effect`
            says so.
        partitions: give the error to these partitions alone, and treat the others as ever. Only Produce has it: such a
            fault is for Produce requests also without `api`, and only for those with records for one of them.
        took_effect: do what the request asks, and answer with the error nevertheless.
        delay: seconds to hold the answer back. Requests behind it on the connection wait with it, as in Kafka.
        cut: close the connection before the request is looked at, or after it took effect; no answer in either case.
        truncate: send only so many bytes of the answer, then close.
        garbage: send random bytes in place of the answer's body.
        throttle_ms: tell the client to wait, and leave its further requests alone for as long.
        skip: let so many requests pass that would fit.
        times: how often it happens; None is for ever.

    Raises:
        TypeError: a field is not of its type.
        ValueError: there is no API of this name, a field has a value that it cannot have, or the fault does nothing.
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
        object.__setattr__(self, "api", _api_of(self.api))
        _check_error(self.error)
        _check_fields(self)
        if self.partitions is not None:
            object.__setattr__(self, "api", PRODUCE)
        if self.error is None and (self.partitions is not None or self.took_effect):
            raise ValueError("partitions and took_effect belong to an error: give error= as well")
        if not self._does_something:
            raise ValueError(
                "this fault does nothing: give it error=, cut=, delay=, truncate=, garbage=True or throttle_ms="
            )

    @property
    def _does_something(self) -> bool:
        looks = self.match is not None
        breaks = self.cut is not None or self.truncate is not None or self.garbage
        return looks or breaks or self.error is not None or self.delay > 0 or self.throttle_ms > 0

    def fits(self, request: ApiRequest) -> bool:
        """Whether it is meant for the request."""
        if self.api is not None and request.api is not self.api:
            return False
        if self._is_any_error and request.api in _OPENING:
            return False
        if self.broker is not None and request.broker_id != self.broker:
            return False
        if self.partitions is not None and not _writes_to_one_of(self.partitions, request):
            return False
        return self.match is None or self.match(request)

    @property
    def _is_any_error(self) -> bool:
        return self.error is not None and self.api is None and self.match is None


def _writes_to_one_of(partitions: Collection[TopicPartition], request: ApiRequest) -> bool:
    """Whether a Produce request has records for one of these partitions."""
    for row in request.body["topic_data"]:
        topic = (
            None if row["name"] else request.cluster.topics.by_id(row["topic_id"])
        )  # newer versions have the id
        name = row["name"] if topic is None else topic.name
        if any((name, each["index"]) in partitions for each in row["partition_data"]):
            return True
    return False


def _api_of(api: Any) -> ApiSchema | None:
    """The schema of an API that a test names."""
    if api is None or isinstance(api, ApiSchema):
        return api
    if not isinstance(api, str):
        raise TypeError(f"api must be the name of an API, such as 'Produce', not {api!r}")
    if api not in _API_BY_NAME:
        raise ValueError(f"there is no API {api!r}; known are {', '.join(sorted(_API_BY_NAME))}")
    return _API_BY_NAME[api]


def _check_error(error: Any) -> None:
    """Refuse what is no error code. One that this client does not know is allowed: a newer broker may send it."""
    if error is None:
        return
    if isinstance(error, bool) or not isinstance(error, int):
        raise TypeError(f"error must be a Code, {_nearest_code(error)}, not {error!r}")
    if error == ErrorCode.NONE:
        raise ValueError("error must be a Code that is an error: 0 says that all went well")
    if error not in _CODES:
        raise ValueError(f"error must be a number of 16 bits, not {error}")


def _nearest_code(error: Any) -> str:
    """How to write the code that was meant."""
    if isinstance(error, str):
        wanted = error.rpartition(".")[2].upper()
        meant = [code for code in ErrorCode if code.name == wanted]
    else:  # perhaps a class of penstock.errors, or an object of it
        meant = [code for code in ErrorCode if code and code == getattr(error, "code", None)]
    return f"here Code.{meant[0].name}" if meant else "such as Code.INVALID_RECORD"


def _check_fields(fault: Fault) -> None:
    """Refuse what a field cannot be; `api` and `error` were looked at before."""
    for name in ("broker", "truncate", "times"):
        if getattr(fault, name) is not None:
            check_int(getattr(fault, name), name)
    for name in ("throttle_ms", "skip"):
        check_int(getattr(fault, name), name)
    for name in ("took_effect", "garbage"):
        check_bool(getattr(fault, name), name)
    if fault.match is not None:
        check_callable(fault.match, "match")
    check_timeout(fault.delay, "delay", required=True)
    for name in ("delay", "truncate", "throttle_ms", "skip"):
        if (getattr(fault, name) or 0) < 0:
            raise ValueError(f"{name} must not be negative: {getattr(fault, name)}")
    if fault.throttle_ms > _LONGEST_THROTTLE_MS:
        raise ValueError(f"throttle_ms must be at most {_LONGEST_THROTTLE_MS}: {fault.throttle_ms}")
    if fault.times is not None and fault.times < 1:
        raise ValueError(f"times must be positive, or None for ever: {fault.times}")
    cut: Any = fault.cut
    if cut is not None and cut not in _CUTS:
        raise ValueError(f"cut must be 'before', 'after' or None, not {cut!r}")
    _check_partitions(fault)


def _check_partitions(fault: Fault) -> None:
    partitions: Any = fault.partitions
    if partitions is None:
        return
    if not isinstance(partitions, Collection) or not all(map(_is_topic_partition, partitions)):
        raise TypeError(f"partitions must be a list of TopicPartition, not {partitions!r}")
    if not partitions:
        raise ValueError("partitions must not be empty; None is all partitions")
    if fault.api is not None and fault.api is not PRODUCE:
        raise ValueError("partitions belong to a fault of api='Produce'")


def _is_topic_partition(value: Any) -> bool:
    """Whether it is one, or a pair that is equal to one."""
    if not isinstance(value, tuple) or len(value) != 2:
        return False
    topic, partition = value
    return isinstance(topic, str) and isinstance(partition, int) and not isinstance(partition, bool)


NO_FAULT: Final = Fault(match=lambda _: False)  # what most requests meet; none is meant for it


class _Armed:
    """A fault, and how often it still skips and happens."""

    __slots__ = ("fault", "left", "to_skip")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.to_skip = fault.skip
        self.left = fault.times


class Faults:
    """The faults that were asked for and have not happened."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []

    def add(self, fault: Fault) -> None:
        """Let a fault wait for its request.

        Raises:
            TypeError: it is none.
        """
        if not isinstance(fault, Fault):
            raise TypeError(f"add_fault() takes a penstock.testing.Fault, not {fault!r}")
        self._armed.append(_Armed(fault))

    def clear(self) -> None:
        """Forget all faults that have not happened."""
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

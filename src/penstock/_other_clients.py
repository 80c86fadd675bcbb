# SPDX-License-Identifier: Apache-2.0
"""Names of other clients: a program that asks for one here is told what to write instead.

`config.names` does the same for their options. A name of the table is no attribute: asking for it raises
AttributeError, and `hasattr` and `dir` of an object do not know it. Each name has a descriptor of its own, because a
`__getattr__` would make every other look-up, and so every `send`, slower.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

C = TypeVar("C", bound=type)

_OUTCOMES = "nothing need be called for callbacks to run: records and outcomes go on by themselves"
_NOTHING = "leave it out: the producer is ready when it is made, and connects by itself"

# What every producer says; {close} is the call that closes it.
_OF_ALL: Final = {
    "produce": "use send(topic, value, key, on_delivery=...)",
    "produce_batch": "use send_many(topic, values)",
    "create_batch": "use send_many(topic, values), or send(): records are gathered into batches by themselves",
    "send_batch": "use send_many(topic, values)",
    "poll": f"leave it out: {_OUTCOMES}",
    "list_topics": (
        "use partitions_for(topic) for one topic; penstock.control.ControlClient(config).brokers(timeout=5) says "
        "whether the cluster answers"
    ),
    "purge": "use {close}(timeout=0), which fails what has no outcome",
    "start": _NOTHING,
    "stop": "use {close}()",
    "bootstrap_connected": (
        "use penstock.control.ControlClient(config).brokers(timeout=5), a blocking call; it raises if none answers"
    ),
    "begin": "use begin_transaction(), or the block `transaction()`",
    "commit": "use commit_transaction(), or the block `transaction()`",
    "abort": "use abort_transaction(), or the block `transaction()`",
    "set_sasl_credentials": "write the password as ${{file:...}}: a changed file is read again by itself",
}
_OF_BLOCKING: Final = {
    "aclose": "use close()",
    "send_and_wait": "use send(...).result(), or penstock.AsyncProducer, which has it",
    "try_send": "use penstock.AsyncProducer, which has it; or set max.block.ms=0",
}
_OF_ASYNC: Final = {"close": "use `await producer.aclose()`"}

BLOCKING: Final[Mapping[str, str]] = MappingProxyType(
    {name: text.format(close="close") for name, text in _OF_ALL.items()} | _OF_BLOCKING
)
ASYNC: Final[Mapping[str, str]] = MappingProxyType(
    {name: text.format(close="aclose") for name, text in _OF_ALL.items()} | _OF_ASYNC
)

# What `async with` and `with` ask for: an object has one of them. No other client is concerned.
ONLY_ASYNC_WITH: Final[Mapping[str, str]] = MappingProxyType(
    {"__enter__": "use `async with` in place of `with`"}
)
ONLY_WITH: Final[Mapping[str, str]] = MappingProxyType(
    {"__aenter__": "use `with` in place of `async with`; or penstock.AsyncProducer, which has it"}
)

_BIND = "bind what the callback needs: on_delivery=functools.partial(report, key)"

# Of errors.
OF_ERRORS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "code": "only a BrokerError has a code; of all others the class says what happened",
        "name": "only a BrokerError has a name; of all others the class says what happened",
        "str": "use str(error)",
        "txn_requires_abort": (
            "abort after every KafkaError that is not `fatal`; but after KafkaTimeoutError or AuthenticationError of "
            "commit_transaction() call it again"
        ),
    }
)

# Of what a callback gets: here where the record is, there the record.
OF_METADATA: Final[Mapping[str, str]] = MappingProxyType(
    {
        "error": "the error is the second argument of the callback",
        "key": _BIND,
        "value": _BIND,
        "headers": _BIND,
        "set_headers": _BIND,
        "latency": "producer.metrics() has record-delivery-time-avg, for all records",
        "timestamp_type": "`timestamp` is a number of milliseconds, the broker's if the topic uses LogAppendTime",
        "leader_epoch": "leave it out",
    }
)

# What a callback asks that was left in the other client's order, (error, message).
_SWAPPED = "a callback is called with (metadata, error), in this order"
OF_ERRORS_IN_METADATA: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(("code", "fatal", "name", "retriable", "str", "txn_requires_abort"), _SWAPPED)
)
OF_MESSAGES_IN_ERRORS: Final[Mapping[str, str]] = MappingProxyType(
    dict.fromkeys(
        ("error", "headers", "key", "latency", "offset", "partition", "timestamp", "value"), _SWAPPED
    )
)

_ERROR = "use penstock.errors.KafkaError"
_READER = "Penstock is a producer; keep the consumer of the other client"
_FEW_CALLS = "penstock.control has a few of its calls; for the others keep the other client's"
_BY_OPTIONS = "use penstock.Producer with key_serializer and value_serializer"

# Of the package itself.
OF_PACKAGES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "KafkaError": _ERROR,
        "KafkaException": _ERROR,
        "KafkaTimeoutError": "use penstock.errors.KafkaTimeoutError",
        "Consumer": _READER,
        "KafkaConsumer": _READER,
        "AIOKafkaConsumer": _READER,
        "SerializingProducer": _BY_OPTIONS,
        "AvroProducer": _BY_OPTIONS,
        "KafkaProducer": "use penstock.Producer",
        "AIOKafkaProducer": "use penstock.AsyncProducer",
        "AIOProducer": "use penstock.AsyncProducer",
        "AdminClient": _FEW_CALLS,
        "KafkaAdminClient": _FEW_CALLS,
        "Message": "a callback gets a penstock.RecordMetadata",
    }
)

# Of the module `errors`: classes of other clients, and the one that has their meaning.
_CLASSES: Final = """
    KafkaException KafkaError
    ProduceError KafkaError
    KafkaConfigurationError ConfigError
    KeySerializationError SerializationError
    ValueSerializationError SerializationError
    MessageSizeTooLargeError RecordTooLargeError
    NoBrokersAvailable KafkaTimeoutError
    KafkaConnectionError NetworkError
    AuthenticationFailedError AuthenticationError
    SaslAuthenticationFailed AuthenticationError
    SaslAuthenticationFailedError AuthenticationError
    BrokerResponseError BrokerError
    NotLeaderForPartitionError NotLeaderOrFollowerError
    TopicAuthorizationFailedError TopicAuthorizationError
    ClusterAuthorizationFailedError ClusterAuthorizationError
    TransactionalIdAuthorizationFailed TransactionalIdAuthorizationError
    TransactionalIdAuthorizationFailedError TransactionalIdAuthorizationError
    OutOfOrderSequenceNumber OutOfOrderSequenceError
    OutOfOrderSequenceNumberError OutOfOrderSequenceError
    InvalidProducerEpoch InvalidProducerEpochError
    UnknownProducerId UnknownProducerIdError
    ProducerFenced ProducerFencedError
    ProducerClosed ProducerClosedError
"""
OF_ERROR_CLASSES: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"use penstock.errors.{here}" for name, here in map(str.split, _CLASSES.strip().splitlines())}
    | {"RetriableError": "use penstock.errors.KafkaError, and ask its attribute `retriable`"}
)


class OtherClientsName:
    """A name that the class of another client has, and ours does not. Reading it raises an error with the advice.

    Args:
        name: the name.
        advice: what to write instead.
        whose: what has it at another client; "" where none is concerned.
    """

    def __init__(self, name: str, advice: str, whose: str = "producer") -> None:
        self._name = name
        self._advice = advice
        self._whose = whose
        # `help` of a class lists all that is in it.
        self.__doc__ = (
            f"Not here, but at another client's {whose}: {advice}." if whose else f"Not here: {advice}."
        )

    def __get__(self, asked: object, owner: type) -> Any:
        for cls in owner.__mro__:  # ImportError has a `name`, and an error may have it as a second base
            found = vars(cls).get(self._name, self)
            if not isinstance(found, OtherClientsName):
                return found.__get__(asked, owner)
        elsewhere = f", which another client's {self._whose} has" if self._whose else ""
        raise AttributeError(
            f"{owner.__name__!r} has no {self._name!r}{elsewhere}; {self._advice}",
            name=self._name,
            obj=owner if asked is None else asked,
        )


# Of what `send` returns: kafka-python's name. An attribute of the class, because a compiled class cannot be given one.
# As an object it cannot be called, says a type checker.
GET: Final[object] = OtherClientsName("get", "use result(timeout=...), in seconds", "future")


def names_of_other_clients(table: Mapping[str, str], whose: str = "producer") -> Any:
    """Decorates a class, which then tells what to write in place of the names of a table.

    Args:
        table: names, and what to do instead.
        whose: what has them at other clients; "" where none is concerned.
    """

    def decorate(cls: C) -> C:
        for name, advice in table.items():
            if hasattr(cls, name):
                raise TypeError(f"{cls.__name__} has {name!r} itself")
            setattr(cls, name, OtherClientsName(name, advice, whose))
        cls.__dir__ = dir_without_them  # type: ignore[assignment]
        return cls

    return decorate


def dir_without_them(self: object) -> Iterable[str]:
    """What `dir` gives of an object whose class has such names."""
    names = {
        name
        for cls in type(self).__mro__
        for name, of in vars(cls).items()
        if isinstance(of, OtherClientsName)
    }
    # A subclass may have one of them as its own.
    return [name for name in object.__dir__(self) if name not in names or hasattr(self, name)]

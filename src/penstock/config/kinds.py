# SPDX-License-Identifier: Apache-2.0
"""What an option is: its kind of value, what is allowed, and how a user's value becomes ours.

Values come from Python code, from properties files and from Spark, so each kind accepts its own Python type and the
text that Java's client would accept. Whatever is wrong is a ConfigError that names the option, the value and what is
allowed; a secret is never shown.
"""

from __future__ import annotations

import enum
import logging
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, NamedTuple, NoReturn, Protocol

from penstock._arguments import why_not_sendable
from penstock._events import Event, tell
from penstock.errors import ConfigError
from penstock.partitioners import Crc32Partitioner

_logger = logging.getLogger(__name__)

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1

Importance = Literal["high", "medium", "low"]


class Kind(enum.Enum):
    """The kinds of values, in Kafka's words."""

    BOOL = "bool"
    INT = "int"
    LONG = "long"
    DOUBLE = "double"
    STRING = "string"
    LIST = "list"
    CLASS = "class"
    CLASSES = "list of classes"
    PASSWORD = "password"  # noqa: S105  # the word, not one of them
    OBJECT = "object"


class Required(enum.Enum):
    """The default of an option that has none."""

    REQUIRED = "required"


REQUIRED: Final = Required.REQUIRED


class Password:
    """A secret, which does not show itself in a repr, a log or an error.

    Args:
        value: the secret.
        read: gives the secret as it is now, where it stands in a file or the like. It is asked each time somebody wants
            the value, so that a secret can be replaced under a running client. When it raises ConfigError, the last
            value is kept, and that is logged once.
    """

    __slots__ = ("_read", "_told", "_value")

    def __init__(self, value: str, read: Callable[[], str] | None = None) -> None:
        self._value = value
        self._read = read
        self._told = False

    @property
    def value(self) -> str:
        if self._read is not None:
            try:
                self._value = self._read()
                self._told = False
            except ConfigError as error:
                if not self._told:
                    text = "a secret cannot be read again, the last one is kept: %s"
                    tell(_logger, logging.WARNING, Event.SECRET_KEPT, text, error, error=error)
                self._told = True
        return self._value

    @property
    def is_read_anew(self) -> bool:
        """Whether it is read each time somebody wants the value, which may block."""
        return self._read is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and other._value == self._value

    def __hash__(self) -> int:
        return hash((Password, self._value))

    def __repr__(self) -> str:
        return "[hidden]"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not to be pickled: hand on the reference to it")


class Check(Protocol):
    """What values an option allows, beyond their kind."""

    @property
    def allowed(self) -> str:
        """What is allowed, in words for errors and documentation; "" when there is nothing to say."""

    def accept(self, value: Any) -> Any:
        """Give the value in its normal form.

        Raises:
            ValueError: it is not allowed; a text, if there is one, says more than `allowed` does, and no secret.
        """


class Anything:
    """No check: all values of the kind are allowed."""

    @property
    def allowed(self) -> str:
        return ""

    def accept(self, value: Any) -> Any:
        """Return the value unchanged."""
        return value


class Sendable:
    """Any text that a request can carry; an empty one, if that is allowed."""

    def __init__(self, *, may_be_empty: bool) -> None:
        self._may_be_empty = may_be_empty

    @property
    def allowed(self) -> str:
        size = "at most 32767 bytes of UTF-8"
        return size if self._may_be_empty else f"not empty, {size}"

    def accept(self, value: str) -> str:
        """Refuse a text that cannot be encoded."""
        if why_not_sendable(value) is not None or not (value.strip() or self._may_be_empty):
            raise ValueError
        return value


class NotEmpty:
    """Any text but the empty one."""

    @property
    def allowed(self) -> str:
        return "a text that is not empty"

    def accept(self, value: str) -> str:
        """Refuse the empty text."""
        if not value:
            raise ValueError("leave it out where there is nothing to say")
        return value


class HostNameCheck:
    """Whether a certificate must be for the host: https, or nothing, which librdkafka calls none."""

    @property
    def allowed(self) -> str:
        return "https, or none or the empty string for no check"

    def accept(self, value: str) -> str:
        """Give https or the empty string."""
        word = value.lower()
        if word not in ("https", "none", ""):
            raise ValueError
        return "https" if word == "https" else ""


class Between(NamedTuple):
    """Numbers in a closed range, and perhaps one more that stands for something."""

    low: float
    high: float | None = None
    also: int | None = None

    @property
    def allowed(self) -> str:
        text = f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"
        return text if self.also is None else f"{text}, or {self.also}"

    def accept(self, value: float) -> float:
        """Refuse a number outside the range."""
        if value == self.also or (value >= self.low and (self.high is None or value <= self.high)):
            return value
        raise ValueError


class NotZero(NamedTuple):
    """Numbers from 1 on, and perhaps negative ones; with 0 a client could do nothing.

    Attributes:
        why: what 0 would mean, and what to write instead.
        negative: whether negative numbers stand for something.
    """

    why: str
    negative: bool = False

    @property
    def allowed(self) -> str:
        return "1 or more" + (", or a negative number" if self.negative else "")

    def accept(self, value: int) -> int:
        """Refuse 0, and a negative number where none is allowed."""
        if value > 0 or (value < 0 and self.negative):
            return value
        raise ValueError(self.why if value == 0 else "")


class OneOf(NamedTuple):
    """Words of a list; with `any_case`, in whatever case they are written."""

    choices: tuple[str, ...]
    any_case: bool = False

    @property
    def allowed(self) -> str:
        return ", ".join(self.choices) + (" (in any case)" if self.any_case else "")

    def accept(self, value: str) -> str:
        """Take a word of the list, as the list writes it."""
        for choice in self.choices:
            if value == choice or (self.any_case and value.lower() == choice.lower()):
                return choice
        raise ValueError


class KafkaRelease:
    """Releases of Kafka whose versions are known."""

    @property
    def allowed(self) -> str:
        from penstock.protocol.releases import (
            releases,
        )  # few set this option, and every process imports this module

        known = releases()
        return f"a release of Kafka from {known[0]} to {known[-1]}"

    def accept(self, value: str) -> str:
        """Give the release without its patch: 0.9.0.1 is 0.9.0."""
        from penstock.protocol.releases import release_name

        return release_name(value)


class Distinct:
    """Lists in which no entry is twice."""

    @property
    def allowed(self) -> str:
        return "a list without duplicates"

    def accept(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """Take a list of which no two entries are the same."""
        if any(one is other or one == other for at, one in enumerate(value) for other in value[:at]):
            raise ValueError
        return value


def _may_have_password(address: str) -> bool:
    """Whether an address has something before its host, as user:password@host has it in URLs."""
    return "@" in address or "%40" in address


class Addresses:
    """Non-empty lists of host:port without duplicates."""

    @property
    def allowed(self) -> str:
        return "one or more different host:port, with IPv6 addresses as [address]:port"

    def accept(self, value: tuple[str, ...]) -> tuple[str, ...]:
        """Take a list of which every entry is an address."""
        if not value:
            raise ValueError
        if any(map(_may_have_password, value)):
            raise ValueError("an address has no user and no password: set sasl.username and sasl.password")
        seen: set[tuple[str, int]] = set()
        for address in value:
            parsed = parse_address(address)
            if parsed in seen:
                raise ValueError(f"{address!r} is there twice")
            seen.add(parsed)
        return value


class Partitioners:
    """Partitioners: the name of Java's former default is the built-in way, "crc32" is librdkafka's."""

    @property
    def allowed(self) -> str:
        return ""

    def accept(self, value: Any) -> Any:
        """Take all; None for what is built in."""
        if value == "crc32":
            return Crc32Partitioner
        return None if value == "org.apache.kafka.clients.producer.internals.DefaultPartitioner" else value


# No regular expressions: each would be compiled anew in every process of a Spark job, which takes about a millisecond.
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-")
_HOST: Final = _LETTERS | {"%"}
_V6: Final = frozenset("0123456789abcdefABCDEF:.")


def _is_listener(name: str) -> bool:
    """Whether a broker's listener may have that name: letters, digits, '_', '+' and '.', a letter first."""
    return name[:1].isalpha() and (_LETTERS - {"-"} | {"+"}).issuperset(name)


def parse_address(address: str) -> tuple[str, int]:
    """Split host:port; an IPv6 address stands in brackets, and is given without them.

    A listener's name before the address ("PLAINTEXT://") is harmless, and is found in files copied from a broker.

    Raises:
        ValueError: it is no such thing; says why.
    """
    listener, slashes, place = address.rpartition("://")
    host, _, port = place.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if (
        not _is_digits(port)
        or (not bracketed and not {":", "/", "[", "]", " "}.isdisjoint(host))
        or (slashes and not _is_listener(listener))
    ):
        raise ValueError(f"{address!r} is not host:port{_hint(address)}")
    if bracketed:
        host = host[1:-1]
        number, percent, zone = host.partition("%")
        good = number and _V6.issuperset(number) and bool(percent) == bool(zone) and _LETTERS.issuperset(zone)
    else:
        good = host and _HOST.issuperset(host)
    if not good:
        hint = _hint(address) if ";" in address else ""
        raise ValueError(f"{address!r} has {'a malformed' if host else 'no'} host{hint}")
    if len(port) > 5 or not 1 <= int(port) <= 65535:
        raise ValueError(f"the port of {address!r} must be from 1 to 65535")
    return host, int(port)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _hint(address: str) -> str:
    if not {";", " ", "\t", "\n"}.isdisjoint(address):
        return "; separate addresses with a comma: a:9092,b:9092"
    if address.count(":") > 1 and "://" not in address and "[" not in address:
        return "; an IPv6 address stands in brackets: [::1]:9092"
    if ":" not in address:
        return "; the port is missing, Kafka's usual one is 9092"
    return ""


class ConfigKey(NamedTuple):
    """One option.

    Attributes:
        name: Kafka's dotted name.
        kind: what its values are.
        default: the value when it is not set; REQUIRED when it must be. None as the default means that None is allowed.
        importance: how likely one is to touch it.
        doc: what it does.
        check: what is allowed.
        not_yet: when the feature is still to come, what it is; then only the default is accepted.
        ignored: why the option has no effect here, when it is accepted so that configurations that have it work.
    """

    name: str
    kind: Kind
    default: Any
    importance: Importance
    doc: str
    check: Check = Anything()
    not_yet: str | None = None
    ignored: str | None = None

    @property
    def snake_name(self) -> str:
        """The same name as a keyword."""
        return self.name.replace(".", "_")

    @property
    def field_name(self) -> str:
        """The attribute of ProducerConfig, and the keyword the documentation shows."""
        return _FIELD_NAMES.get(self.name, self.snake_name)

    def parse(self, value: Any) -> Any:
        """Turn a user's value into ours.

        Raises:
            ConfigError: wrong type, or not allowed.
        """
        if value is None:
            if self.default is None:
                return None
            if isinstance(self.check, OneOf) and "none" in self.check.choices:
                raise ConfigError(
                    f"{self.name} must not be None; write 'none', or leave it out for the default "
                    f"({self.default})",
                    self.name,
                )
            if self.default is REQUIRED:
                raise ConfigError(
                    f"{self.name} must not be None: it is required and has no default; allowed: {self.check.allowed}",
                    self.name,
                )
            raise ConfigError(f"{self.name} must not be None; leave it out for the default", self.name)
        if isinstance(self.check, OneOf) and isinstance(value, int) and not isinstance(value, bool):
            parsed: Any = str(value)  # acks=1 is what anyone would write
        else:
            parsed = _PARSERS[self.kind](self, value)
        try:
            return self.check.accept(parsed)
        except ValueError as error:
            reason = f" ({error})" if str(error) else ""
            raise ConfigError(
                f"{self.name}={self.show(value)} is not allowed; allowed: {self.check.allowed}{reason}",
                self.name,
            ) from None

    def show(self, value: Any) -> str:
        """The value as an error or a log may show it."""
        if self.kind in (Kind.PASSWORD, Kind.OBJECT):
            return "[hidden]"
        shown = repr(value)
        return "[hidden]" if isinstance(self.check, Addresses) and _may_have_password(shown) else shown

    def wrong_type(self, value: Any, expected: str) -> ConfigError:
        """The error for a value of another kind."""
        return ConfigError(
            f"{self.name} must be {expected}, not {self.show(value)} ({type(value).__name__})", self.name
        )


# Where Python's object is not well named by the Java option that holds a class name.
_FIELD_NAMES = {"partitioner.class": "partitioner", "interceptor.classes": "interceptors"}

_BOOL_WORDS = {"true": True, "false": False}


def _parse_bool(key: ConfigKey, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = _BOOL_WORDS.get(value.strip().lower()) if isinstance(value, str) else None
    if word is None:
        raise key.wrong_type(value, "true or false")
    return word


def _parse_number(key: ConfigKey, value: Any) -> int:
    top = INT_MAX if key.kind is Kind.INT else LONG_MAX
    if isinstance(value, str):
        text = value.strip()
        # The length is bounded because int() itself refuses very long digits, with another error.
        if not _is_digits(text[1:] if text[:1] in ("+", "-") else text) or len(text) > 100:
            raise key.wrong_type(value, "a whole number")
        number = int(text)
    else:
        try:
            number = operator.index(value)  # also numpy's integers, but no float
        except TypeError:
            raise key.wrong_type(value, "a whole number") from None
        if isinstance(value, bool):
            raise key.wrong_type(value, "a whole number")
    if not -top - 1 <= number <= top:
        raise ConfigError(f"{key.name}={value!r} is not allowed; allowed: {-top - 1} to {top}", key.name)
    return number


def _parse_double(key: ConfigKey, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise key.wrong_type(value, "a number")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise key.wrong_type(value, "a number") from None
    if not math.isfinite(number):
        raise key.wrong_type(value, "a number")
    return number


def _parse_object(_: ConfigKey, value: Any) -> Any:
    return value.strip() if isinstance(value, str) else value


def _parse_string(key: ConfigKey, value: Any) -> str:
    if not isinstance(value, str):
        raise key.wrong_type(value, "a string")
    return value.strip()


def _parse_password(key: ConfigKey, value: Any) -> Password:
    if isinstance(value, Password):
        return value
    if not isinstance(value, str):
        raise key.wrong_type(value, "a string")
    return Password(value)


def _parse_list(key: ConfigKey, value: Any) -> tuple[str, ...]:
    items = _parse_classes(key, value)
    if not all(isinstance(item, str) for item in items):
        raise key.wrong_type(value, "a list of strings")
    return items


def _parse_class(key: ConfigKey, value: Any) -> Any:
    """Return an object as it is, for the loading of plug-ins; of a text remove the blanks around it."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if not text:
        raise ConfigError(f"{key.name} must not be empty; leave it out for the default", key.name)
    return text


def _parse_classes(key: ConfigKey, value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        items: Sequence[Any] = value.split(",") if value.strip() else ()
    elif isinstance(value, list | tuple):
        items = value
    else:
        raise key.wrong_type(value, "a list, or a string with commas")
    tidy = tuple(item.strip() if isinstance(item, str) else item for item in items)
    if "" in tidy or None in tidy:
        raise ConfigError(f"{key.name}={key.show(value)} has an empty entry", key.name)
    return tidy


_PARSERS = {
    Kind.BOOL: _parse_bool,
    Kind.INT: _parse_number,
    Kind.LONG: _parse_number,
    Kind.DOUBLE: _parse_double,
    Kind.OBJECT: _parse_object,
    Kind.STRING: _parse_string,
    Kind.LIST: _parse_list,
    Kind.CLASS: _parse_class,
    Kind.CLASSES: _parse_classes,
    Kind.PASSWORD: _parse_password,
}

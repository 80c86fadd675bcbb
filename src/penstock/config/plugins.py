# SPDX-License-Identifier: Apache-2.0
"""Objects named in the configuration: serializers, the partitioner, interceptors, metric reporters and tracing.

Rules:
1. An object is taken as it is. A class, or a name, is made into an object here.
2. What is made here is told the configuration through `configure(config)`, if it has that method.
3. When one cannot be made, those made before it are closed, and the whole construction fails.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import inspect
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from penstock._events import Event, tell_error
from penstock._last_calls import LastCall, LastCalls
from penstock.config.keys import KEYS
from penstock.config.kinds import Kind
from penstock.errors import ConfigError
from penstock.serializers import BytesSerializer, Serializer, as_serializer
from penstock.serializers import __all__ as _serializers

_logger = logging.getLogger(__name__)

_KINDS = (Kind.CLASS, Kind.CLASSES)
_JAVA_PREFIXES = ("org.apache.kafka.", "io.confluent.")
_JAVA_SERIALIZERS = "org.apache.kafka.common.serialization."
# What configurations carried over from the Java client name, and what does the same here.
_JAVA_NAMES: Mapping[str, str] = {
    f"{_JAVA_SERIALIZERS}ByteArraySerializer": "penstock.serializers:BytesSerializer",
    f"{_JAVA_SERIALIZERS}ByteBufferSerializer": "penstock.serializers:BytesSerializer",
    f"{_JAVA_SERIALIZERS}BytesSerializer": "penstock.serializers:BytesSerializer",
    f"{_JAVA_SERIALIZERS}DoubleSerializer": "penstock.serializers:Float64Serializer",
    f"{_JAVA_SERIALIZERS}FloatSerializer": "penstock.serializers:Float32Serializer",
    f"{_JAVA_SERIALIZERS}IntegerSerializer": "penstock.serializers:Int32Serializer",
    f"{_JAVA_SERIALIZERS}LongSerializer": "penstock.serializers:Int64Serializer",
    f"{_JAVA_SERIALIZERS}ShortSerializer": "penstock.serializers:Int16Serializer",
    f"{_JAVA_SERIALIZERS}StringSerializer": "penstock.serializers:StringSerializer",
    f"{_JAVA_SERIALIZERS}UUIDSerializer": "penstock.serializers:UUIDSerializer",
    f"{_JAVA_SERIALIZERS}VoidSerializer": "penstock.serializers:VoidSerializer",
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "penstock.partitioners:RoundRobinPartitioner",
}
# What to write for classes that a name alone cannot stand for.
_JAVA_ADVICE: Mapping[str, str] = {
    f"{_JAVA_SERIALIZERS}ListSerializer": (
        "give an object: penstock.serializers.ListSerializer(...) with the serializer of its entries"
    ),
}
# Most packages of Java begin with a domain; those of Python do not.
_JAVA_DOMAINS = ("com.", "de.", "dev.", "io.", "net.", "org.")
_SERIALIZERS = ("key.serializer", "value.serializer")
_OURS = {  # of Penstock's own, one
    "metric.reporters": "penstock.watching.prometheus:collector",
    "tracing": "penstock.watching.opentelemetry:calls",
}
_METHODS: Mapping[str, tuple[str, ...]] = {
    "interceptor.classes": ("on_send", "on_acknowledgement"),
    "metric.reporters": ("start", "stop"),
}
_IN_PYTHON: Mapping[str, str] = {
    **dict.fromkeys(
        _SERIALIZERS,
        "give a function of one argument, or an object with the method serialize(topic, headers, data)",
    ),
    **{
        option: f"write a Python class with the methods {'() and '.join(methods)}(), or leave it out"
        for option, methods in _METHODS.items()
    },
    "partitioner.class": "write a Python class with the method partition(), or leave it out",
}
_OUR_MODULES = ("", "penstock", "penstock.serializers", "serializers")
# Words that somebody might write for a serializer, in lower case.
_SERIALIZERS_BY_WORD: Mapping[str, str] = {
    name.removesuffix("Serializer").lower(): name
    for name in _serializers
    if name.endswith("Serializer")
    and name not in ("Serializer", "ListSerializer")  # a list needs an argument
} | {
    "dict": "JsonSerializer",
    "double": "Float64Serializer",
    "float": "Float64Serializer",
    "int": "Int64Serializer",
    "long": "Int64Serializer",
    "short": "Int16Serializer",
    "str": "StringSerializer",
    "text": "StringSerializer",
    "utf-8": "StringSerializer",
    "utf8": "StringSerializer",
    "utf_8": "StringSerializer",
}
# Java's names of serializers, in lower case. A float of Java has 4 bytes, one of Python 8.
_SERIALIZERS_OF_JAVA: Mapping[str, str] = {
    java.removeprefix(_JAVA_SERIALIZERS).lower(): ours.rpartition(":")[2]
    for java, ours in _JAVA_NAMES.items()
    if java.startswith(_JAVA_SERIALIZERS)
}


class Plugins(NamedTuple):
    """The objects of one producer."""

    key_serializer: Serializer
    value_serializer: Serializer
    partitioner: Any | None
    interceptors: tuple[Any, ...]
    metric_reporters: tuple[Any, ...]
    tracing: Any | None

    def close(self) -> None:
        """Close all, the last made first, also when closing one fails, or is interrupted by Ctrl-C.

        Reporters and tracing are not closed: one of them serves all producers of a process.
        """
        LastCalls(self.closes()).make()

    def closes(self) -> list[LastCall]:
        """What is called for that, in order."""
        plugins = (self.key_serializer, self.value_serializer, self.partitioner, *self.interceptors)
        return [
            LastCall(close, partial(_tell_not_closed, plugin))
            for plugin in reversed(plugins)
            if (close := getattr(plugin, "close", None)) is not None
        ]


def without_plugins(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that neither name nor hold such an object."""
    return {name: value for name, value in values.items() if KEYS[name].kind not in _KINDS}


def load_plugins(values: Mapping[str, Any]) -> Plugins:
    """Make the objects that the configuration names; `configure` gets all other options.

    Args:
        values: the options by their dotted names, in their final form.

    Raises:
        ConfigError: one cannot be found or made, or is not of the right sort; all made before are closed.
    """
    with contextlib.ExitStack() as made:
        loader = _Loader(without_plugins(values), made)
        plugins = Plugins(
            key_serializer=loader.load_serializer("key.serializer", values["key.serializer"]),
            value_serializer=loader.load_serializer("value.serializer", values["value.serializer"]),
            partitioner=loader.load("partitioner.class", values["partitioner.class"], _as_partitioner),
            interceptors=tuple(
                loader.load("interceptor.classes", interceptor, _as_interceptor)
                for interceptor in values["interceptor.classes"]
            ),
            metric_reporters=tuple(
                loader.load("metric.reporters", reporter, _as_reporter)
                for reporter in values["metric.reporters"]
            ),
            tracing=loader.load("tracing", values["tracing"], _as_tracing),
        )
        made.pop_all()  # nothing failed: they stay open
    return plugins


def close_quietly(plugin: Any) -> None:
    """Close an object, if it has a method for that; an error is logged, since no caller could handle it."""
    close = getattr(plugin, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception as error:  # noqa: BLE001 - it is logged
        _tell_not_closed(plugin, error)


def _tell_not_closed(plugin: Any, error: Exception) -> None:
    name = type(plugin).__qualname__
    tell_error(
        _logger, Event.PLUGIN_CLOSE_FAILED, "closing %s failed", name,
        plugin=name, error=error,
    )  # fmt: skip


class _Loader:
    """Makes objects one by one, and remembers how to close those it made."""

    def __init__(self, settings: dict[str, Any], made: contextlib.ExitStack) -> None:
        self._settings = settings
        self._made = made

    def load_serializer(self, option: str, value: Any) -> Serializer:
        """Give the serializer for the value of an option; for None the default one."""
        serializer: Serializer | None = self.load(option, value, lambda found, _: as_serializer(found, "it"))
        return BytesSerializer() if serializer is None else serializer

    def load(self, option: str, value: Any, adapt: Callable[[Any, str], Any]) -> Any:
        """Give the object for one value of an option; None for None."""
        try:
            found = _find(value, option) if isinstance(value, str) else value
            if found is None:
                return None
            return adapt(self._make(found) if isinstance(found, type) else found, option)
        except Exception as error:
            shown = getattr(value, "__qualname__", None) or repr(value)
            detail = str(error) or type(error).__name__
            raise ConfigError(
                f"Failed to construct the producer: {option}: {shown}: {detail}", option
            ) from error

    def _make(self, cls: type) -> Any:
        _check_needs_no_argument(cls)
        plugin = cls()
        self._made.callback(close_quietly, plugin)
        configure = getattr(plugin, "configure", None)
        if configure is not None:
            configure(dict(self._settings))
        return plugin


def _check_needs_no_argument(cls: type) -> None:
    """Say what to give in place of a class that only its user can make."""
    try:
        signature = inspect.signature(cls)
    except (TypeError, ValueError):
        return  # some built-in classes do not tell
    try:
        signature.bind()
    except TypeError as error:
        raise TypeError(
            f"the class {cls.__name__} cannot be made without arguments ({error}); give an object of it, or the name "
            "of an object as 'module:attribute'"
        ) from None


def _find(name: str, option: str) -> Any:
    """Import what a name stands for."""
    if name.startswith(_JAVA_PREFIXES):
        if name in _JAVA_ADVICE:
            raise ConfigError(f"no name stands for this Java class; {_JAVA_ADVICE[name]}")
        if name not in _JAVA_NAMES:
            raise ConfigError(
                "Java classes cannot be loaded, and this one has no counterpart here; "
                f"{_IN_PYTHON.get(option, 'give a Python object')}. A Python class is named as 'module:attribute'"
            )
        return _find(_JAVA_NAMES[name], option)
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ConfigError(f"the name must have the form 'module:attribute'{_meant_by(name, option)}")
    found: Any = importlib.import_module(module_name)
    for attribute in path.split("."):
        found = getattr(found, attribute)
    return found


def _meant_by(name: str, option: str) -> str:
    """What the user may have meant by a name of no such form, as the end of a sentence."""
    module_name, _, attribute = name.rpartition(".")
    if option in _SERIALIZERS and module_name in _OUR_MODULES:  # elsewhere a class of the same name is meant
        word = attribute.lower()
        cls = _SERIALIZERS_OF_JAVA.get(word) or _SERIALIZERS_BY_WORD.get(word.removesuffix("serializer"))
        if cls is not None:
            return (
                f"; for Penstock's own, write penstock.serializers.{cls}(), or 'penstock.serializers:{cls}'"
            )
    if name.startswith(_JAVA_DOMAINS) and attribute[:1].isupper() and ":" not in name:
        return (
            f", such as {module_name + ':' + attribute!r}. If it is a Java class: these cannot be loaded; "
            f"{_IN_PYTHON.get(option, 'give a Python object')}"
        )
    if module_name and attribute and ":" not in name:
        if hasattr(builtins, module_name):  # str.encode
            return f": {'builtins:' + name!r}"
        return f": {module_name + ':' + attribute!r}"
    if option in _SERIALIZERS:
        return ", or give an object, such as penstock.serializers.JsonSerializer()"
    return f", such as {_OURS[option]!r}" if option in _OURS else ""


def _as_partitioner(plugin: Any, option: str) -> Any:
    if not callable(getattr(plugin, "partition", None)):
        raise TypeError(f"it must have a method partition(); {type(plugin).__name__} has none")
    return plugin


def _as_interceptor(plugin: Any, option: str) -> Any:
    return _with_methods(plugin, option)


def _as_reporter(plugin: Any, option: str) -> Any:
    return _with_methods(plugin, option)


def _as_tracing(plugin: Any, option: str) -> Any:
    if not callable(getattr(plugin, "trace_producer", None)):
        raise TypeError(f"it must have a method trace_producer(); {type(plugin).__name__} has none")
    return plugin


def _with_methods(plugin: Any, option: str) -> Any:
    for method in _METHODS[option]:
        if not callable(getattr(plugin, method, None)):
            raise TypeError(f"it must have a method {method}(); {type(plugin).__name__} has none")
    return plugin

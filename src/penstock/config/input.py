# SPDX-License-Identifier: Apache-2.0
"""From what the user gave (a mapping, a properties file, keywords) to checked values under dotted names.

`read_values` is for a producer, which knows every option and refuses all others. `read_some` is for a client that needs
a few of them, and is usually given a producer's configuration. Both read one table by the same rules. This module does
not import the objects of a producer, so that such a client does without them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

from penstock._events import Event, tell
from penstock.config.environment import VARIABLES, from_environment
from penstock.config.frames import without_inner_frames
from penstock.config.keys import KEYS
from penstock.config.kinds import REQUIRED, ConfigKey, Kind, Password, parse_address
from penstock.config.names import (
    ALIASES,
    BLOCK_FOR_EVER_MS,
    BLOCK_ON_BUFFER_FULL,
    UnknownName,
    refuse_partitioner,
    try_canonical_name,
    try_name_among,
    unknown_options,
)
from penstock.config.security_keys import REFUSED, SECURITY_NAMES, SPELLINGS
from penstock.errors import ConfigError

_logger = logging.getLogger(__name__)

_SECURITY = frozenset(SECURITY_NAMES)

ConfigSource = Mapping[str, Any] | str | os.PathLike[str] | None


class PlacedOptions(dict[str, str]):
    """Options from several places, of which errors name those that are a line of a file.

    Attributes:
        places: by the names of options that are in a file: the line, as `place_in_file` writes it.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.places: dict[str, str] = {}


class _Given(NamedTuple):
    """One option as the user gave it."""

    name: str  # as it was written
    canonical: str
    value: Any
    where: str  # the line of a file, also for errors; else nothing

    def __repr__(self) -> str:
        return f"<_Given {self.name}{self.where}>"  # the value may be a secret


class ReadOptions(NamedTuple):
    """Options that were read and checked.

    Attributes:
        values: by dotted names. Options of security (`security_keys`) are there only where the user set them.
        explicit: the dotted names of those that the user set.
        written: of these the ones that were given in another client's words, with the names that the user wrote.
    """

    values: dict[str, Any]
    explicit: frozenset[str]
    written: Mapping[str, str]


@without_inner_frames
def read_values(
    config: ConfigSource, options: Mapping[str, Any], may_lack: AbstractSet[str] = frozenset()
) -> ReadOptions:
    """Collect, check and complete the options.

    Args:
        config: a mapping, or the path of a properties file.
        options: more options, usually keywords.
        may_lack: options without a default that need not be given; they have no value then.

    Returns:
        The value of every option.

    Raises:
        ConfigError: options are unknown; or one is malformed, missing, given twice, or of a feature still to come.
        TypeError: `config` is not something to read options from.
    """
    unknown: list[UnknownName] = []
    given = [*_from_source(config, unknown), *_from_mapping(options, unknown, keyword=True)]
    if unknown:
        raise unknown_options(unknown)
    return _complete(*_resolve(given), (name for name in KEYS if name not in may_lack))


@without_inner_frames
def read_some(config: Mapping[str, Any], names: AbstractSet[str]) -> ReadOptions:
    """Read a few options; None is the same as not given, and all others are passed over, known or not.

    Args:
        config: options by their dotted names or in snake case.
        names: the dotted names of those that matter.

    Returns:
        The value of each of `names`.

    Raises:
        ConfigError: some have another client's names; or one is malformed, missing, given twice, or of a feature still
            to come.
    """
    given = []
    unknown: list[UnknownName] = []
    for name, value in config.items():
        where = _place_of(config, name)
        canonical = try_name_among(name, names, unknown, where)
        if canonical is not None and value is not None:
            given.append(_Given(name, canonical, value, where))
    if unknown:
        raise unknown_options(unknown)
    return _complete(*_resolve(given), names)


def _complete(values: dict[str, Any], written: Mapping[str, str], names: Iterable[str]) -> ReadOptions:
    """Add the defaults of the options that were not set, but for those of security, of which most clients have none."""
    explicit = frozenset(values)
    for name in names:
        if name in values or name in _SECURITY:
            continue
        key = KEYS[name]
        if key.default is REQUIRED:
            raise ConfigError(f"{key.name} is required; allowed: {key.check.allowed}", key.name)
        values[name] = key.default
    return ReadOptions(values, explicit, written)


def _from_source(config: ConfigSource, unknown: list[UnknownName]) -> Iterator[_Given]:
    """The options of a configuration; names that are none are added to `unknown`."""
    if config is None:
        return iter(())
    if isinstance(config, Mapping):
        return _from_mapping(config, unknown, keyword=False)
    if isinstance(config, str | os.PathLike):
        return _from_file(os.fspath(config), unknown)
    raise TypeError(
        f"config must be a mapping or the path of a properties file, not {type(config).__name__}"
        f"{addresses_hint(config)}"
    )


def addresses_hint(config: object) -> str:
    """What to do where addresses of brokers were given in place of a configuration; "" for all else."""
    addresses = config.split(",") if isinstance(config, str) else config
    if not isinstance(addresses, list | tuple) or not addresses:
        return ""
    try:
        for address in addresses:
            parse_address(address.strip())
    except (AttributeError, ValueError):
        return ""
    return f"; for the addresses of brokers write bootstrap_servers={config!r}"


def _from_mapping(
    options: Mapping[str, Any], unknown: list[UnknownName], *, keyword: bool
) -> Iterator[_Given]:
    for name, value in options.items():
        canonical = try_canonical_name(name)
        if canonical is None:
            unknown.append(UnknownName(name, keyword, _place_of(options, name)))
        else:
            yield _Given(name, canonical, value, _place_of(options, name))


def _place_of(options: Mapping[str, Any], name: str) -> str:
    return options.places.get(name, "") if isinstance(options, PlacedOptions) else ""


def place_in_file(path: str, line: int) -> str:
    """Where an option is, as the end of an error."""
    return f" (line {line} of {path!r})"


def unreadable(path: str, error: OSError | ValueError, hint: str = "") -> ConfigError:
    """The error for a properties file that cannot be read."""
    # The text of an OSError has the path again.
    why = (error.strerror or error) if isinstance(error, OSError) else error
    return ConfigError(f"cannot read the properties file {path!r}: {why}{hint}")


def _from_file(path: str, unknown: list[UnknownName]) -> Iterator[_Given]:
    # Clients without a file need none of it.
    from penstock.config.properties import parse_properties, read_properties

    try:
        text = read_properties(path)
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a path that cannot be one
        # An error about UTF-8 holds all that was read.
        raise unreadable(path, error, addresses_hint(path)) from (
            error if isinstance(error, OSError) else None
        )
    for prop in parse_properties(text, repr(path)):
        where = place_in_file(path, prop.line)
        canonical = try_canonical_name(prop.name)
        if canonical is None:
            unknown.append(UnknownName(prop.name, where=where))
        else:
            yield _Given(prop.name, canonical, prop.value, where)


def _resolve(given: list[_Given]) -> tuple[dict[str, Any], dict[str, str]]:
    """Parse each option, and put aliases in the place of what they mean today; with the other clients' words for it."""
    values: dict[str, Any] = {}
    first: dict[str, _Given] = {}
    fallback: dict[str, Any] = {}
    arguments: set[str] = set()
    for option in given:
        try:
            name, value = _parse(option)
        except ConfigError as error:
            raise ConfigError(f"{error}{option.where}", error.option) from None
        if value is None:
            continue  # None is how code says "not set" where None is allowed
        if option.canonical == BLOCK_ON_BUFFER_FULL.name and value == 0:
            # Old clients let the other two options say how long to wait when this one was false.
            fallback[name] = value
            continue
        if name in values and not _same(values[name], value):
            raise _contradiction(name, first[name], option)
        if name not in values:
            values[name], first[name] = value, option
        if not option.where:
            arguments.add(name)
    for name in VARIABLES:
        if name in values and name not in arguments and from_environment(name) is not None:
            del values[name]
    _tell_ignored(first)
    written = {name: option.name for name, option in first.items() if option.canonical in SPELLINGS}
    return fallback | values, written


def _tell_ignored(given: Mapping[str, _Given]) -> None:
    """Say once which options have no effect, and why."""
    why = {
        option.name: KEYS[name].ignored for name, option in given.items() if KEYS[name].ignored is not None
    }
    if why:
        listed = "; ".join(f"{name} ({reason})" for name, reason in why.items())
        tell(
            _logger, logging.WARNING, Event.OPTION_WITHOUT_EFFECT, "without effect here: %s", listed,
            option=", ".join(why),
        )  # fmt: skip


def _parse(option: _Given) -> tuple[str, Any]:
    if option.canonical in REFUSED:
        _refuse(option)
        return option.canonical, None
    if option.canonical in ALIASES:
        return _parse_alias(option)
    if option.canonical in SPELLINGS:
        return _parse_spelling(option)
    key = KEYS[option.canonical]
    value = _parse_value(key, option.value)
    if key.name == "partitioner.class" and isinstance(value, str):
        refuse_partitioner(value)
    if key.not_yet is not None and value != key.default:
        raise ConfigError(
            f"{option.name}={key.show(option.value)} is not supported yet: {key.not_yet} will come with a later "
            "release; leave it out",
            key.name,
        )
    return key.name, value


def _parse_spelling(option: _Given) -> tuple[str, Any]:
    """An option of security in another client's words."""
    spelling = SPELLINGS[option.canonical]
    key = KEYS[spelling.here]
    if option.value is None:
        return key.name, None
    try:
        value = option.value if spelling.convert is None else spelling.convert(option.value)
        return key.name, None if value is None else _parse_value(key, value)
    except ConfigError as error:
        raise ConfigError(f"{option.name}: {error}", option.canonical) from None


def _refuse(option: _Given) -> None:
    refused = REFUSED[option.canonical]
    if option.value is None or str(option.value).strip().lower() == refused.harmless:
        return
    raise ConfigError(f"{option.name} cannot be honoured here: {refused.why}", option.canonical)


def _parse_value(key: ConfigKey, value: Any) -> Any:
    """Look up what a value refers to, and check it."""
    if isinstance(value, str) and "${" in value:
        return _parse_reference(key, value)
    if isinstance(value, list | tuple) and any(isinstance(item, str) and "${" in item for item in value):
        return _parse_references(key, value)
    return key.parse(value)


def _parse_reference(key: ConfigKey, text: str) -> Any:
    from penstock.config.references import look_up  # most configurations have none

    value = look_up(text, key.name)
    if key.kind is Kind.PASSWORD:
        return Password(value, lambda: look_up(text, key.name))
    return _parse_hidden(key, value, {value: text})


def _parse_references(key: ConfigKey, items: list[Any] | tuple[Any, ...]) -> Any:
    """A list in which some items, or parts of them, stand elsewhere."""
    from penstock.config.references import look_up

    found = [look_up(item, key.name) if isinstance(item, str) else item for item in items]
    shown = {
        value: text
        for value, text in zip(found, items, strict=True)
        if isinstance(text, str) and value != text
    }
    return _parse_hidden(key, found, shown)


def _parse_hidden(key: ConfigKey, value: Any, shown: Mapping[str, str]) -> Any:
    """Check a value, and show in its place what was written."""
    try:
        return key.parse(value)
    except ConfigError as error:
        from penstock._redaction import Redactor

        raise ConfigError(Redactor(shown)(str(error)), error.option) from None


def _parse_alias(option: _Given) -> tuple[str, Any]:
    target = KEYS[ALIASES[option.canonical]]
    try:
        if option.canonical == BLOCK_ON_BUFFER_FULL.name:
            value = BLOCK_FOR_EVER_MS if _parse_value(BLOCK_ON_BUFFER_FULL, option.value) else 0
        else:
            value = _parse_value(target, option.value)
    except ConfigError as error:
        raise ConfigError(f"{option.name}: {error}", option.canonical) from None
    tell(
        _logger, logging.WARNING, Event.OPTION_DEPRECATED, "the option %s is deprecated%s; use %s=%s",
        option.name, option.where, target.name, value,
        option=option.name,
    )  # fmt: skip
    return target.name, value


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)


def _contradiction(name: str, first: _Given, second: _Given) -> ConfigError:
    key = KEYS[name]
    return ConfigError(
        f"{name} is given twice with different values: "
        f"{first.name}={key.show(first.value)}{first.where} and {second.name}={key.show(second.value)}{second.where}; "
        "remove one",
        name,
        options=(name, first.name, second.name),
    )

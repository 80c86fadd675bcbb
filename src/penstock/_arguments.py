# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments that many calls have, with one text for each mistake.

They are made before a call changes anything, and are the same whether the modules are compiled or not: Cython's own
conversions cut a float off, and take True for 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

_MAX_TEXT_BYTES = 32_767  # the length of a text is a 16-bit number in most requests
# What a topic's name may be, for errors.
TOPIC_RULE: Final = (
    "a topic's name has 1 to 249 letters (a-z, A-Z), digits, dots, underscores and hyphens, and is neither '.' nor "
    "'..'"
)
_MAX_TOPIC_BYTES: Final = 249  # on every cluster
_TOPIC_NAME: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


def check_timeout(timeout: Any, name: str = "timeout", *, required: bool = False) -> None:
    """Refuse what is no time to wait.

    Args:
        timeout: seconds, or None.
        name: of the argument.
        required: whether None is refused as well, because the wait must have an end.

    Raises:
        TypeError: it is neither None nor an int or float.
        ValueError: it is not a number (nan).
    """
    if type(timeout) is float or type(timeout) is int or (timeout is None and not required):
        if timeout == timeout:  # noqa: PLR0124 - not so for nan
            return
        raise ValueError(f"{name} must be a number of seconds, not nan")
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        wanted = "a number of seconds" if required else "a number of seconds or None"
        raise TypeError(f"{name} must be {wanted}, not {type(timeout).__name__}")
    check_timeout(float(timeout), name)


def check_limit(timeout: Any, *, required: bool = False) -> None:
    """Refuse what is no limit for a call that waits. Other clients write a negative one where there is none.

    Args:
        timeout: seconds, or None.
        required: whether None is refused as well.

    Raises:
        TypeError: as `check_timeout`.
        ValueError: it is negative, or no number (nan).
    """
    check_timeout(timeout, required=required)
    if timeout is not None and timeout < 0:
        hint = "" if required else "; leave it out to wait until every record has its outcome"
        raise ValueError(f"timeout must not be negative, and is {timeout}{hint}")


def check_callable(function: Any, name: str) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: it cannot.
    """
    if not callable(function):
        raise TypeError(f"{name} must be callable, not {type(function).__name__}")


def check_bool(value: Any, name: str) -> None:
    """Refuse what is neither True nor False.

    Raises:
        TypeError: it is something else.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")


def check_int(value: Any, name: str) -> None:
    """Refuse what is no whole number.

    Raises:
        TypeError: it is something else; True and False are, too.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")


def check_texts(texts: Any, name: str) -> list[Any]:
    """What is to be a list of texts; a single text is a mistake, and not one for each of its characters.

    Raises:
        TypeError: it is a text, or nothing that has items.
    """
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"{name} must be a list of texts, not {type(texts).__name__}")
    return list(texts)


def why_not_sendable(text: str) -> str | None:
    """Why a text cannot be part of a request; None when it can."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        return f"it cannot be encoded as UTF-8 ({error.reason})"
    if size > _MAX_TEXT_BYTES:
        return f"it is {size} bytes long, and a request can carry {_MAX_TEXT_BYTES}"
    return None


def check_text(text: Any, name: str) -> None:
    """Refuse what cannot be a name in a request.

    Raises:
        TypeError: it is not a str.
        ValueError: it is empty, too long, or cannot be encoded.
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, not {type(text).__name__}")
    if not text:
        raise ValueError(f"{name} must not be empty")
    reason = why_not_sendable(text)
    if reason is not None:
        raise ValueError(f"{name} cannot be sent: {reason}")


def check_no_timeout(timeout: Any, call: str) -> None:
    """Refuse the time-out that another client's call takes.

    Raises:
        TypeError: there is one.
    """
    if timeout is not None:
        raise TypeError(f"{call}() takes no time-out; max.block.ms is how long it waits")


def check_transactional_id(transactional_id: Any, timeout: Any) -> None:
    """Refuse arguments of init_transactions() that are no transactional id.

    Raises:
        TypeError: it is not a str, or there is a time-out.
        ValueError: it is empty, too long, or cannot be encoded.
    """
    if isinstance(transactional_id, int | float):
        timeout = transactional_id  # where another client has it
    check_no_timeout(timeout, "init_transactions")
    if transactional_id is not None:
        check_text(transactional_id, "transactional_id")


def is_topic_name(name: str) -> bool:
    """Whether Kafka would let a topic have this name: one rule for all who refuse a wrong one before a broker is asked.

    A broker's answer to such a name is a code, without the rule. The fake cluster has its own: it stands for Kafka.
    """
    return _TOPIC_NAME.fullmatch(name) is not None


def check_topic_size(topic: str) -> None:
    """Refuse a name that no request can contain: otherwise the I/O thread could not write the request.

    Raises:
        ValueError: it cannot be written as UTF-8, or is longer than Kafka allows.
    """
    try:
        size = len(topic.encode())
    except UnicodeEncodeError as error:
        raise ValueError(f"the topic name {topic!r} cannot be encoded: {error}") from None
    if size > _MAX_TOPIC_BYTES:
        raise ValueError(
            f"the topic name {topic[:20]!r}... is {size} bytes long; Kafka allows {_MAX_TOPIC_BYTES}: {TOPIC_RULE}"
        )


def check_on_delivery(on_delivery: Any) -> None:
    """Refuse what cannot be called, and what would have to be awaited.

    Raises:
        TypeError: it is one of these.
    """
    import inspect  # rarely needed

    if not callable(on_delivery):
        raise TypeError(f"on_delivery must be callable, not {type(on_delivery).__name__}")
    if inspect.iscoroutinefunction(on_delivery) or inspect.iscoroutinefunction(
        getattr(on_delivery, "__call__", None)  # noqa: B004 - of an object with `async def __call__`
    ):
        raise TypeError(
            "on_delivery must be a function, not a coroutine function: nobody would await it. Await the Delivery "
            "instead, or let the function start a task."
        )

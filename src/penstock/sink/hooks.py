# SPDX-License-Identifier: Apache-2.0
"""Named steps of the protocol, at which a test can step in.

`PENSTOCK_SINK_HOOK=module:function` names a function that is called as `function(step, facts)` when a process reaches a
step; it may kill the process. Without the variable nothing happens. It is read once per process.
"""

from __future__ import annotations

import enum
import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from penstock.errors import ConfigError

HOOK_VARIABLE: Final = "PENSTOCK_SINK_HOOK"

Hook = Callable[["Step", Mapping[str, Any]], None]


class Step(enum.Enum):
    """Where a task or a driver has come to."""

    TASK_FIRST_ROW = "a task has its transaction, and no row is written yet"
    TASK_FLUSHED = "all rows of a task are acknowledged"
    TASK_DETACHED = "a task has let go of its transaction"
    PREPARED = "a driver has prepared a batch"
    COMMITTING = "a driver's commit was called; nothing was done yet"
    BEFORE_DECISION = "the decision is written and the handles are described; it is not yet ended"
    AFTER_DECISION = "the decision is committed; no handle is ended"
    AFTER_FIRST_END = "one handle is ended, others are not"
    AFTER_ALL_ENDS = "all handles are ended, but the log does not say so"
    AFTER_DONE = "the log says that the decision is done"
    ABORTED = "a driver has aborted what may be aborted"


# By process id, so that a forked child reads its own; the value is None when no hook is wanted.
_hooks: dict[int, Hook | None] = {}


def reached(step: Step, **facts: Any) -> None:
    """Tell the hook, if there is one, that a step was reached."""
    hook = current_hook()
    if hook is not None:
        hook(step, facts)


def current_hook() -> Hook | None:
    """The hook of this process.

    Raises:
        ConfigError: the variable names none.
    """
    pid = os.getpid()
    if pid not in _hooks:
        _hooks[pid] = _load(os.environ.get(HOOK_VARIABLE, ""))
    return _hooks[pid]


def _load(name: str) -> Hook | None:
    if not name:
        return None
    module, _, function = name.partition(":")
    try:
        hook: Hook = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{HOOK_VARIABLE}={name!r} must be module:function: {error}") from error
    return hook

# SPDX-License-Identifier: Apache-2.0
"""From the options of a write to the settings of the exactly-once protocol: above all, the name of the sink."""

from __future__ import annotations

import posixpath
import re
import secrets

from penstock.sink import SinkSettings
from penstock.spark.options import SinkOptions


def sink_settings(options: SinkOptions) -> SinkSettings:
    """The settings of the exactly-once protocol for a write.

    Raises:
        ConfigError: a time is too short.
    """
    run_id = options.run_id
    if not options.streaming and run_id is None:
        run_id = secrets.token_hex(16)
    sink_id = options.sink_id
    if sink_id is None and options.streaming and options.checkpoint_location is not None:
        sink_id = checkpoint_name(options.checkpoint_location)
    return SinkSettings(
        sink_id=sink_id or "batch",
        config=options.producer,
        run_id=run_id,
        one_off=not options.streaming and options.run_id is None,
        topic=options.topic,
        recovery_time_ms=options.recovery_time_ms,
        transaction_timeout_ms=options.transaction_timeout_ms,
        on_restored_checkpoint=options.on_restored_checkpoint,
        on_changed_rows=options.on_changed_rows,
        on_lost=options.on_lost,
        log_topic=options.decision_topic,
    )


def checkpoint_name(location: str) -> str:
    """The name of a sink that has none but its checkpoint's: one for all spellings of a local path.

    A relative path stays as it is, because the folder it starts from is the driver's, and this may be another process.
    """
    local = re.fullmatch(r"file:(?://(?=/)|(?!//))(/.*)", location, re.IGNORECASE)
    path = local.group(1) if local else location
    if not path.startswith("/"):
        return path.rstrip("/")
    return "/" + posixpath.normpath(path).lstrip("/")

# SPDX-License-Identifier: Apache-2.0
"""Whether a topic was deleted while a batch was written to it: then records may be gone that were acknowledged.

Kafka gives each topic an id of its own, and a topic that is created again under the same name another one. So if the id
that a task has known before its first record is the one that the driver finds after the last acknowledgement, the topic
was there all the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# By topic the ids under which tasks have known it; without topics whose id no broker has told.
TopicIds = dict[str, frozenset[bytes]]

_UNKNOWN: Final = bytes(16)


def why_incomplete(known: TopicIds, found: Mapping[str, bytes]) -> str | None:
    """What may have become of a batch's records; None if all of its topics are those that were written to.

    Args:
        known: of the tasks.
        found: the ids that topics have now; zeros where the broker does not tell.
    """
    for topic, ids in sorted(known.items()):
        now = found.get(topic)
        if now is None:
            return f"topic {topic!r} was deleted while it was written, so that records are missing"
        if len({*ids, now} - {_UNKNOWN}) > 1:
            return f"topic {topic!r} was deleted and created again while it was written, so that records may be missing"
    return None

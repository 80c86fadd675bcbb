# SPDX-License-Identifier: Apache-2.0
"""Which names a topic can have: one rule for all who refuse a wrong one before a broker is asked.

A broker's answer to such a name is a code, without the rule. The fake cluster has it by itself: it stands for Kafka.
"""

from __future__ import annotations

import re
from typing import Final

_LEGAL: Final = re.compile(r"(?!\.{1,2}\Z)[A-Za-z0-9._-]{1,249}")


def is_topic_name(name: str) -> bool:
    """Whether Kafka would let a topic have this name."""
    return _LEGAL.fullmatch(name) is not None

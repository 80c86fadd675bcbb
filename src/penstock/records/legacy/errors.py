# SPDX-License-Identifier: Apache-2.0
"""Why a batch has no form in the old formats."""

from __future__ import annotations

import enum
from collections.abc import Sequence


class LegacyFormatReason(enum.Enum):
    """What magic 0 and 1 cannot express."""

    HEADERS = "headers"  # of the records named in the error
    CODEC = "codec"  # zstd
    IDENTITY = "identity"  # producer id, epoch and sequence numbers, or a transaction
    SIZE = "size"  # the set would be larger than the protocol can say


class LegacyFormatError(ValueError):
    """A batch cannot be converted to a message set without loss. Never leaves the package: the caller knows the broker.

    Attributes:
        reason: what is in the way.
        indexes: the records that cannot be converted, by their number in the batch; empty if it is the whole batch.
    """

    def __init__(self, message: str, reason: LegacyFormatReason, indexes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.reason = reason
        self.indexes = tuple(indexes)

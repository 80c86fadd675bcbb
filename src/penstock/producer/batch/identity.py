# SPDX-License-Identifier: Apache-2.0
"""What the header of a batch says of its producer; -1 where there is nothing to say."""

from __future__ import annotations

from typing import NamedTuple

_NONE = -1


class BatchIdentity(NamedTuple):
    """The fields of a batch header that make it recognisable to the broker."""

    producer_id: int = _NONE
    producer_epoch: int = _NONE
    base_sequence: int = _NONE
    transactional: bool = False


ANONYMOUS = BatchIdentity()

# SPDX-License-Identifier: Apache-2.0
"""Who a producer is to the brokers, and what a batch's header says of that; -1 where there is nothing to say."""

from __future__ import annotations

from typing import NamedTuple

_NONE = -1


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch."""

    producer_id: int = _NONE
    epoch: int = _NONE

    @property
    def valid(self) -> bool:
        """Whether a coordinator gave it."""
        return self.producer_id >= 0


NO_IDENTITY = ProducerIdentity()


class BatchIdentity(NamedTuple):
    """The fields of a batch header that make it recognisable to the broker."""

    producer_id: int = _NONE
    producer_epoch: int = _NONE
    base_sequence: int = _NONE
    transactional: bool = False


ANONYMOUS = BatchIdentity()

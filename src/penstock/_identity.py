# SPDX-License-Identifier: Apache-2.0
"""Who a producer is to the brokers: what a coordinator gives out, and clients and the fake cluster pass on."""

from __future__ import annotations

from typing import NamedTuple

_NONE = -1


class ProducerIdentity(NamedTuple):
    """A producer id and its epoch; -1 where there is none."""

    producer_id: int = _NONE
    epoch: int = _NONE

    @property
    def valid(self) -> bool:
        """Whether a coordinator gave it."""
        return self.producer_id >= 0


NO_IDENTITY = ProducerIdentity()


class TransactionalIdentity(NamedTuple):
    """A transactional id as its coordinator gave it to us: good for one transaction.

    Attributes:
        end_txn_version: the version of EndTxn in which that transaction must be ended; from 5 on it is the newer
            transaction protocol, in which writing makes a partition part of the transaction.
    """

    transactional_id: str
    producer_id: int
    epoch: int
    end_txn_version: int

    @property
    def joins_by_writing(self) -> bool:
        """Whether a partition needs not be added before it is written to."""
        return self.end_txn_version >= 5

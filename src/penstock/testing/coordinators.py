# SPDX-License-Identifier: Apache-2.0
"""Which broker coordinates a transactional id or a group.

Keys are hashed to slots, as Kafka hashes them to the partitions of an internal topic; a slot belongs to a broker and
can move. The hash is Kafka's (that of a Java string), so that the same ids share a slot as on a real cluster.
"""

from __future__ import annotations

from collections.abc import Collection


def java_hash(text: str) -> int:
    """The hash of a Java string: over its UTF-16 units, in 32 bits, signed."""
    units = text.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


class CoordinatorSlots:
    """The slots of one kind of coordinator.

    Attributes:
        owners: the broker of each slot; None while no broker is up.
        epochs: how often each slot has moved.
    """

    def __init__(self, count: int, broker_ids: Collection[int]) -> None:
        ids = sorted(broker_ids)
        self.owners: list[int | None] = [ids[slot % len(ids)] for slot in range(count)]
        self.epochs = [0] * count

    def slot_of(self, key: str) -> int:
        """The slot that a key belongs to."""
        # As in Java, where the smallest integer has no positive counterpart.
        positive = java_hash(key) & 0x7FFFFFFF if java_hash(key) == -(2**31) else abs(java_hash(key))
        return positive % len(self.owners)

    def owner_of(self, key: str) -> int | None:
        """The broker that coordinates a key."""
        return self.owners[self.slot_of(key)]

    def epoch_of(self, key: str) -> int:
        """The epoch of the key's coordinator, as markers carry it."""
        return self.epochs[self.slot_of(key)]

    def move(self, key: str, to: int) -> None:
        """Give the key's slot to another broker."""
        self._assign(self.slot_of(key), to)

    def on_brokers_changed(self, live: Collection[int]) -> None:
        """Give the slots of brokers that are gone to those that are left."""
        ids = sorted(live)
        for slot, owner in enumerate(self.owners):
            if owner not in live:
                self._assign(slot, ids[slot % len(ids)] if ids else None)

    def _assign(self, slot: int, owner: int | None) -> None:
        if self.owners[slot] != owner:
            self.owners[slot] = owner
            self.epochs[slot] += 1

# SPDX-License-Identifier: Apache-2.0
"""Who may do what, as Kafka's authorizer decides it by its ACLs.

Rules:
1. What is not allowed is denied: a user without an Acl may do nothing. Where there are no ACLs at all, everybody may do
   everything.
2. WRITE and READ bring DESCRIBE with them.
3. CREATE is looked for on the cluster, then on the topic.
4. A producer id without a transactional id takes IDEMPOTENT_WRITE on the cluster or, from Kafka 2.8 on, WRITE on any
   topic.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.testing.cluster import FakeCluster

# As Kafka calls a client that has not said who it is.
ANONYMOUS: Final = "ANONYMOUS"


class Operation(IntEnum):
    """What can be done, with Kafka's numbers."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


_WITH_A_TOPIC: Final = (
    *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
    *(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
)
_WITH_THE_CLUSTER: Final = (
    *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION),
    *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
)


@dataclass(frozen=True, kw_only=True)
class Acl:
    """What a user may do. Each field is a name or several; ``orders-*`` is all that begin so, ``*`` is all.

        FakeSecurity(protocol="SASL_SSL", acls={"alice": Acl(write="orders", transactional_ids="shop-*")})

    Attributes:
        write: topics to write to.
        read: topics to read.
        describe: topics to know of; those of the two above are known anyway.
        create: topics to make.
        describe_configs: topics whose options may be looked at.
        transactional_ids: ids to write with, and to know of.
        describe_transactional_ids: ids to know of.
        groups: consumer groups whose offsets may be committed, and be looked at.
        cluster: operations on the cluster: CREATE, DESCRIBE_CONFIGS, IDEMPOTENT_WRITE and the like.
        super_user: everything is allowed.

    Raises:
        ValueError: a star that is not the end of a name, or an operation that there is not.
    """

    write: str | tuple[str, ...] = ()
    read: str | tuple[str, ...] = ()
    describe: str | tuple[str, ...] = ()
    create: str | tuple[str, ...] = ()
    describe_configs: str | tuple[str, ...] = ()
    transactional_ids: str | tuple[str, ...] = ()
    describe_transactional_ids: str | tuple[str, ...] = ()
    groups: str | tuple[str, ...] = ()
    cluster: str | tuple[str, ...] = ()
    super_user: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            for name in _several(getattr(self, field.name)) if field.name != "super_user" else ():
                if "*" in name[:-1]:
                    raise ValueError(f"{field.name}: a star stands at the end of a name, unlike in {name!r}")
        known = [operation.name for operation in _WITH_THE_CLUSTER]
        unknown = [name for name in _several(self.cluster) if name not in known]
        if unknown:
            raise ValueError(f"cluster: there are {', '.join(known)}, and no {', '.join(unknown)}")

    def on_topic(self, operation: Operation, name: str) -> bool:
        """Whether that may be done with a topic."""
        by_operation = {
            Operation.WRITE: (self.write,),
            Operation.READ: (self.read,),
            Operation.CREATE: (self.create,),
            Operation.DESCRIBE: (self.describe, self.write, self.read),
            Operation.DESCRIBE_CONFIGS: (self.describe_configs,),
        }
        return self._is_in(name, *by_operation.get(operation, ()))

    def on_transactional_id(self, operation: Operation, name: str) -> bool:
        """Whether that may be done with a transactional id."""
        known = (self.describe_transactional_ids,) if operation is Operation.DESCRIBE else ()
        return self._is_in(name, self.transactional_ids, *known)

    def on_group(self, name: str) -> bool:
        """Whether a group may be used."""
        return self._is_in(name, self.groups)

    def on_cluster(self, operation: Operation) -> bool:
        """Whether that may be done with the cluster."""
        return self.super_user or operation.name in _several(self.cluster)

    @property
    def writes_somewhere(self) -> bool:
        """Whether there may be a topic that can be written to."""
        return self.super_user or bool(self.write)

    def _is_in(self, name: str, *lists: str | tuple[str, ...]) -> bool:
        return self.super_user or any(
            name.startswith(each[:-1]) if each.endswith("*") else name == each
            for names in lists
            for each in _several(names)
        )


def _several(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


EVERYTHING: Final = Acl(super_user=True)
NOTHING: Final = Acl()


class Rights:
    """What the sender of a request may do: by its ACLs, and by what is denied to all.

    Args:
        cluster: has what is denied to all.
        acl: of who asks.
    """

    def __init__(self, cluster: FakeCluster, acl: Acl) -> None:
        self._cluster = cluster
        self._acl = acl

    def topic(self, operation: Operation, name: str) -> bool:
        """Whether that may be done with a topic."""
        is_read_only = operation is Operation.WRITE and name in self._cluster.read_only_topics
        if name in self._cluster.denied_topics or is_read_only:
            return False
        return self._acl.on_topic(operation, name)

    def create(self, topic: str) -> bool:
        """Whether a topic may be made."""
        if topic in self._cluster.denied_topics:
            return False
        return self._acl.on_cluster(Operation.CREATE) or self._acl.on_topic(Operation.CREATE, topic)

    def transactional_id(self, operation: Operation, name: str) -> bool:
        """Whether that may be done with a transactional id."""
        denied = name in self._cluster.denied_transactional_ids
        return not denied and self._acl.on_transactional_id(operation, name)

    def group(self, name: str) -> bool:
        """Whether a group may be used."""
        return name not in self._cluster.denied_groups and self._acl.on_group(name)

    def cluster(self, operation: Operation) -> bool:
        """Whether that may be done with the cluster."""
        return self._acl.on_cluster(operation)

    def number_batches(self) -> bool:
        """Whether a producer id without a transactional id is given."""
        if self._acl.on_cluster(Operation.IDEMPOTENT_WRITE):
            return True
        return not self._cluster.release.wants_idempotent_write and self._acl.writes_somewhere

    def topic_operations(self, name: str) -> int:
        """All that may be done with a topic, each operation the bit of its number."""
        return sum(1 << operation for operation in _WITH_A_TOPIC if self.topic(operation, name))

    def cluster_operations(self) -> int:
        """All that may be done with the cluster, likewise."""
        return sum(1 << operation for operation in _WITH_THE_CLUSTER if self.cluster(operation))

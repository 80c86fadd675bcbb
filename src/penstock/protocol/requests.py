# SPDX-License-Identifier: Apache-2.0
"""What the network layer needs to know of a request: its API, the versions it can be said in, its bytes, its answer.

`NodeApiVersions` is what one broker said that it can do; it chooses the version of a request. `FindCoordinator` has two
forms: version 4 and later ask for many keys, older ones for a single one; its answer has the newer form, whatever the
version. The response to a `MetadataRequest` is decoded in pieces.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

from penstock.errors import UnsupportedVersionError
from penstock.protocol._wire_reader import (
    Cursor,
    Malformed,
    Reader,
    count_reader,
    elements_reader,
    struct_reader,
)
from penstock.protocol.codec import check_end, decode_response_body, encode_request_body, undecodable
from penstock.protocol.messages import FIND_COORDINATOR, METADATA
from penstock.protocol.messages.produce import FIRST_VERSION_WITH_BATCHES, PRODUCE
from penstock.protocol.releases import (
    UNKNOWN,
    first_release_with,
    likely_release,
    ranges_of,
    release_name,
)
from penstock.protocol.schema import ApiSchema, Array, Buffer, Struct

# Of FindCoordinator.
_FIRST_VERSION_WITH_MANY_KEYS = 4
_FIRST_VERSION_WITH_KINDS = 1
# Of Produce: what the record formats of the time need.
_FIRST_PRODUCE_OF_MAGIC_2 = 3
_FIRST_PRODUCE_OF_MAGIC_1 = 2
_FIRST_PRODUCE_OF_1_0 = 5
# Of each producer a broker remembers so many batches of a partition.
BATCHES_REMEMBERED = 5


class Request(Protocol):
    """A request that is not yet bound to a broker, and so not to a version."""

    @property
    def api(self) -> ApiSchema: ...

    @property
    def min_version(self) -> int:
        """The lowest version that can say what it says."""
        ...

    @property
    def max_version(self) -> int:
        """The highest version that it may be sent in."""
        ...

    @property
    def expects_response(self) -> bool:
        """Whether the broker answers it at all."""
        ...

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version, without the header."""
        ...

    def decode_response(self, version: int, body: memoryview) -> Any:
        """Read the answer to what `encode(version)` gave."""
        ...


@dataclass(frozen=True, slots=True)
class SchemaRequest:
    """A request whose body is a dict and whose answer is one too."""

    api: ApiSchema
    body: Mapping[str, Any] = field(repr=False)  # may hold credentials
    min_version: int
    max_version: int

    @classmethod
    def of(
        cls,
        api: ApiSchema,
        body: Mapping[str, Any],
        min_version: int | None = None,
        max_version: int | None = None,
    ) -> SchemaRequest:
        """A request in any version that the schema knows, or in fewer.

        Raises:
            ValueError: there is no version between the two bounds.
        """
        lowest = api.min_version if min_version is None else max(min_version, api.min_version)
        highest = api.max_version if max_version is None else min(max_version, api.max_version)
        if lowest > highest:
            raise ValueError(f"{api.name}: no version between {lowest} and {highest}")
        return cls(api, body, lowest, highest)

    @property
    def expects_response(self) -> bool:
        """Always: only Produce has a form without an answer."""
        return True

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version.

        Raises:
            ValueError: the body cannot be said in it.
        """
        return encode_request_body(self.api, version, self.body)

    def decode_response(self, version: int, body: memoryview) -> dict[str, Any]:
        """The answer as a dict.

        Raises:
            ProtocolError: the bytes are not an answer in that version.
        """
        return decode_response_body(self.api, version, body)


class NodeApiVersions:
    """The version ranges and finalized features of one broker. Immutable.

    Args:
        ranges: lowest and highest version by API key.
        finalized_features: see below.
        finalized_features_epoch: see below.
        assumed: the release whose versions these are, where the broker was not able to tell; "" where it told.

    Attributes:
        finalized_features: the level that the whole cluster has agreed on, by feature, for example
            "transaction.version". Empty when the broker is older than features.
        finalized_features_epoch: which agreement that is; -1 when there is none. The highest seen is the newest.
        guessed: the broker did not tell: these are the versions of a release that it is taken for.
        produce_magic: the newest record format that the broker takes: 2, 1 (before 0.11) or 0 (before 0.10). It is 2
            where the broker lists no Produce at all.
        batches_remembered: how many batches of a producer it knows again in a partition: BATCHES_REMEMBERED, or 1
            (0.11).
    """

    __slots__ = (
        "_ranges",
        "_release",
        "batches_remembered",
        "finalized_features",
        "finalized_features_epoch",
        "guessed",
        "produce_magic",
    )

    def __init__(
        self,
        ranges: Mapping[int, tuple[int, int]],
        finalized_features: Mapping[str, int] | None = None,
        finalized_features_epoch: int = -1,
        *,
        assumed: str = "",
    ) -> None:
        self._ranges = dict(ranges)
        self._release = assumed
        self.finalized_features: dict[str, int] = dict(finalized_features or {})
        self.finalized_features_epoch = finalized_features_epoch
        self.guessed = bool(assumed)
        offered = self._ranges.get(PRODUCE.key)
        self.produce_magic = _produce_magic(offered)
        remembers_one = offered is not None and (
            _FIRST_PRODUCE_OF_MAGIC_2 <= offered[1] < _FIRST_PRODUCE_OF_1_0
        )
        self.batches_remembered = 1 if remembers_one else BATCHES_REMEMBERED

    @classmethod
    def from_response(cls, body: Mapping[str, Any]) -> NodeApiVersions:
        """From a decoded ApiVersions response of any version."""
        ranges = {row["api_key"]: (row["min_version"], row["max_version"]) for row in body["api_keys"]}
        features = {row["name"]: row["max_version_level"] for row in body.get("finalized_features", ())}
        return cls(ranges, features, body.get("finalized_features_epoch", -1))

    @classmethod
    def of_release(cls, release: str) -> NodeApiVersions:
        """Those of a broker that cannot be asked, and is taken for that release.

        Raises:
            ValueError: no such release is known.
        """
        return cls(ranges_of(release), assumed=release_name(release))

    @property
    def release(self) -> str:
        """The broker's release, as far as its versions tell: "0.10.2", "3.1 to 3.4", "unknown"."""
        if not self._release:
            self._release = likely_release(self)
        return self._release

    @property
    def server(self) -> str:
        """The broker in the text of an error: "the broker (Kafka 0.10.2)"."""
        if self.release == UNKNOWN:
            return "the broker (of no known release of Kafka)"
        # What the broker did not say must not look as if it had.
        how = "taken for " if self.guessed else ""
        return f"the broker ({how}Kafka {self.release})"

    def range(self, api_key: int) -> tuple[int, int] | None:
        """The lowest and highest version that the broker says it accepts, or None when it lacks the API."""
        return self._ranges.get(api_key)

    def pick(self, api: ApiSchema, min_version: int | None = None, max_version: int | None = None) -> int:
        """The highest version that the request, this client and the broker all know.

        Brokers from 4.0 on list Produce 0 to 2 because of old clients, and refuse them. They carry message sets
        instead of record batches, so they are picked only for a request that cannot be sent in 3 or later, and never
        at a broker that lists 3.

        Raises:
            UnsupportedVersionError: there is none.
        """
        lowest = api.min_version if min_version is None else max(min_version, api.min_version)
        highest = api.max_version if max_version is None else min(max_version, api.max_version)
        if api is PRODUCE and highest >= FIRST_VERSION_WITH_BATCHES:
            lowest = max(lowest, FIRST_VERSION_WITH_BATCHES)
        offered = self._ranges.get(api.key)
        if offered is None:
            raise UnsupportedVersionError(
                f"{self.server} does not offer {api.name}; this request needs version {_span(lowest, highest)} of it"
                f"{_since(api, lowest)}: {_way_out_without(api)}"
            )
        first, last = offered
        if api is PRODUCE and last >= _FIRST_PRODUCE_OF_MAGIC_2:
            first = max(first, _FIRST_PRODUCE_OF_MAGIC_2)
        version = min(highest, last)
        if version >= max(lowest, first):
            return version
        way_out = (
            "use a newer client"
            if first > highest
            else "use a newer broker, or do without the option or feature that needs it"
        )
        since = "" if first > highest else _since(api, lowest)
        raise UnsupportedVersionError(
            f"no common version of {api.name}: this request can be sent in {_span(lowest, highest)}{since}, "
            f"{self.server} accepts {_span(first, last)}: {way_out}"
        )

    def __repr__(self) -> str:
        guessed = ", guessed" if self.guessed else ""
        return (
            f"<NodeApiVersions of {len(self._ranges)} APIs, Kafka {self.release}{guessed}, "
            f"features {self.finalized_features}>"
        )


def _produce_magic(offered: tuple[int, int] | None) -> int:
    if offered is None or offered[1] >= _FIRST_PRODUCE_OF_MAGIC_2:
        return 2
    return 1 if offered[1] >= _FIRST_PRODUCE_OF_MAGIC_1 else 0


def _since(api: ApiSchema, version: int) -> str:
    """Which releases could be asked, for the text of an error."""
    release = first_release_with(api, version)
    return "" if release is None else f" (Kafka {release} or later)"


def _way_out_without(api: ApiSchema) -> str:
    if api is METADATA or api is PRODUCE:
        # All brokers of Kafka have both; its controllers have neither.
        return "is this the address of a controller? Use that of a broker"
    return "use a newer broker, or do without the feature that needs it"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


class CoordinatorKind(enum.IntEnum):
    """What is coordinated; the numbers are those of the wire."""

    GROUP = 0
    TRANSACTION = 1


class FindCoordinator:
    """Asks any broker who coordinates these groups, or these transactional ids.

    Args:
        kind: what the keys are.
        keys: one or more; several cannot be asked of a broker that is older than version 4.
    """

    api = FIND_COORDINATOR
    max_version = FIND_COORDINATOR.max_version
    expects_response = True

    def __init__(self, kind: CoordinatorKind, keys: Sequence[str]) -> None:
        self._kind = kind
        self._keys = keys
        self.min_version = _FIRST_VERSION_WITH_KINDS if len(keys) == 1 else _FIRST_VERSION_WITH_MANY_KEYS

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version."""
        keys: dict[str, Any] = {"coordinator_keys": list(self._keys)}
        if version < _FIRST_VERSION_WITH_MANY_KEYS:
            (key,) = self._keys
            keys = {"key": key}
        return encode_request_body(FIND_COORDINATOR, version, {"key_type": int(self._kind), **keys})

    def decode_response(self, version: int, body: memoryview) -> dict[str, Any]:
        """The answer, with one form for all versions.

        Its `coordinators` are the rows by key: `node_id`, `host`, `port`, `error_code`, `error_message`.

        Raises:
            ProtocolError: the bytes are not an answer in that version.
        """
        answer = decode_response_body(FIND_COORDINATOR, version, body)
        if version < _FIRST_VERSION_WITH_MANY_KEYS:
            rows = {self._keys[0]: answer}
        else:
            rows = {row["key"]: row for row in answer["coordinators"]}
        return {"throttle_time_ms": answer["throttle_time_ms"], "coordinators": rows}


class MetadataRequest:
    """Asks any broker for brokers, and for the leaders of these topics; one that does not exist may be created.

    Its response can be as large as the cluster, and is decoded in pieces.
    """

    api = METADATA
    min_version = METADATA.min_version
    max_version = METADATA.max_version
    expects_response = True

    def __init__(self, topics: Iterable[str]) -> None:
        names = [{"name": topic} for topic in topics]
        self.body: Mapping[str, Any] = {"topics": names, "allow_auto_topic_creation": True}

    def encode(self, version: int) -> list[Buffer]:
        """The body in that version."""
        return encode_request_body(METADATA, version, self.body)

    def decode_response(self, version: int, body: memoryview) -> MetadataResponse:
        """The response, decoded up to its topics.

        Raises:
            ProtocolError: the bytes are not a response in that version.
        """
        return MetadataResponse(version, body)


class TopicPiece(NamedTuple):
    """A topic of a response, and some of its partitions.

    Attributes:
        topic: the same object in all pieces of the topic. It is not to be changed.
        partitions: those of this piece, likewise.
        is_last: the topic has no further piece.
    """

    topic: dict[str, Any]
    partitions: list[dict[str, Any]]
    is_last: bool


class MetadataResponse:
    """A Metadata response.

    Raises:
        ProtocolError: what comes before the topics is not that of a response in this version.

    Attributes:
        version: the version of the response.
        throttle_ms: how long the client is to send nothing.
        brokers: the fields of each.
        cluster_id: None where the broker does not tell it.
        error_code: 0 before `pieces` has ended.
    """

    def __init__(self, version: int, data: Buffer) -> None:
        self.version = version
        cursor = Cursor(memoryview(data))
        try:
            body = _readers(version).before_topics(cursor)
        except Malformed as error:
            raise undecodable(METADATA, version, error) from None
        self.throttle_ms: int = body["throttle_time_ms"]
        self.brokers: list[dict[str, Any]] = body["brokers"]
        self.cluster_id: str | None = body["cluster_id"]
        self.error_code = 0
        self._topics = bytes(cursor.data[cursor.pos :])  # a copy is compared sooner than a view
        self._room = cursor.room  # bytes of memory that the topics may take

    def has_topics_of(self, other: MetadataResponse) -> bool:
        """Whether it says the same of the same topics, in the same order."""
        # What comes before differs also between equal answers: since KRaft, each names any broker as the controller.
        return self.version == other.version and self._topics == other._topics

    def pieces(self, most: int) -> Iterator[TopicPiece]:
        """Decode the topics.

        Args:
            most: partitions of a piece.

        Raises:
            ProtocolError: the bytes are not a response in this version.
        """
        read = _readers(self.version)
        cursor = Cursor(memoryview(self._topics))
        cursor.room = self._room
        path = ""
        try:
            for number in range(read.topic_count(cursor)):
                path = f"topics[{number}]"
                topic = read.before_partitions(cursor)
                count = read.partition_count(cursor)
                for start in range(0, count or 1, most):
                    path = f"topics[{number}].partitions[{start}:]"
                    partitions = read.partitions(cursor, min(most, count - start))
                    yield TopicPiece(topic, partitions, start + most >= count)
                read.after_partitions(cursor)
            path = ""
            self.error_code = read.after_topics(cursor)["error_code"]
            check_end(METADATA, self.version, cursor)
        except Malformed as error:
            raise undecodable(METADATA, self.version, error.inside(path)) from None


class _Readers(NamedTuple):
    """What reads the parts of a response in one version, in the order of the bytes."""

    before_topics: Reader
    topic_count: Callable[[Cursor], int]
    before_partitions: Reader
    partition_count: Callable[[Cursor], int]
    partitions: Callable[[Cursor, int], list[dict[str, Any]]]
    after_partitions: Reader
    after_topics: Reader


@cache
def _readers(version: int) -> _Readers:
    flexible = METADATA.is_flexible(version)
    before_topics, topic, after_topics = _around(METADATA.response, "topics")
    before_partitions, partition, after_partitions = _around(topic, "partitions")
    return _Readers(
        struct_reader(before_topics, version, flexible, is_whole=False),
        count_reader(topic, False, version, flexible),
        struct_reader(before_partitions, version, flexible, is_whole=False),
        count_reader(partition, False, version, flexible),
        elements_reader(partition, version, flexible),
        struct_reader(after_partitions, version, flexible),
        struct_reader(after_topics, version, flexible),
    )


def _around(struct: Struct, name: str) -> tuple[Struct, Struct, Struct]:
    """The fields before a list of structs, the struct of its elements, and the fields behind it."""
    (at,) = (number for number, field in enumerate(struct.fields) if field.name == name)
    kind = struct.fields[at].type
    assert isinstance(kind, Array)
    assert isinstance(kind.element, Struct)
    return Struct(struct.fields[:at]), kind.element, Struct(struct.fields[at + 1 :])

# SPDX-License-Identifier: Apache-2.0
"""ApiVersions, Metadata and FindCoordinator: what a client asks before it has anything to do."""

from __future__ import annotations

from typing import Any

from testing.conformance.cases import Cases
from testing.conformance.raw import Body, Raw

from penstock.protocol.messages import API_VERSIONS, FIND_COORDINATOR, METADATA
from penstock.testing import Code

VERSIONS = Cases(API_VERSIONS, needs_topic=False)
CLUSTER = Cases(METADATA)
COORDINATORS = Cases(FIND_COORDINATOR, needs_topic=False)


# ------------------------------------------------------------------------------------------------ ApiVersions


def ask_versions(raw: Raw, version: int, name: str = "raw", release: str = "1.0") -> None:
    software = {"client_software_name": name, "client_software_version": release}
    raw.call(API_VERSIONS, software if version >= 3 else {}, version)


VERSIONS.add("ranges and features", ask_versions, 0, 1, 2, 3, 4)
VERSIONS.add("no software name", lambda raw, version: ask_versions(raw, version, name=""), 3, 4)
VERSIONS.add("no software version", lambda raw, version: ask_versions(raw, version, release=""), 4)
VERSIONS.add("odd software name", lambda raw, version: ask_versions(raw, version, name="a b"), 3)
VERSIONS.add("dotted software name", lambda raw, version: ask_versions(raw, version, name="a.b-c"), 4)
VERSIONS.add("dot at the end", lambda raw, version: ask_versions(raw, version, release="1."), 4)


@VERSIONS.case("unknown version", 5, 99)
def unknown_version(raw: Raw, version: int) -> None:
    raw.ask_version(API_VERSIONS, version, b"\x04raw\x041.0\0\xff\xff\xff\xff\0")


@VERSIONS.case("asked twice", 4)
def asked_twice(raw: Raw, version: int) -> None:
    ask_versions(raw, 0)
    ask_versions(raw, version)


# ------------------------------------------------------------------------------------------------ Metadata


def ask_metadata(raw: Raw, version: int, rows: list[Body] | None, **fields: Any) -> Body:
    if version >= 4:
        fields = {"allow_auto_topic_creation": False} | fields

    def only_own(answer: Body) -> Body:
        # A shared broker has topics of others, and lists in the order of a hash what nobody gave an order.
        asks_for_all = rows is None or (version == 0 and not rows)
        own = [row for row in answer["topics"] if not asks_for_all or row["name"] == raw.topic]
        return answer | {
            "topics": sorted(own, key=lambda row: (row["name"] or "", row["topic_id"])),
        }

    return raw.call(METADATA, {"topics": rows} | fields, version, only=only_own)


@CLUSTER.case("by name", *range(14))
def by_name(raw: Raw, version: int) -> None:
    ask_metadata(raw, version, [{"name": raw.topic}])


@CLUSTER.case("by id", 12, 13)
def by_id(raw: Raw, version: int) -> None:
    ask_metadata(raw, version, [{"name": None, "topic_id": raw.topic_id}])


@CLUSTER.case("all topics", 1, 9, 13)
def all_topics(raw: Raw, version: int) -> None:
    ask_metadata(raw, version, None)


@CLUSTER.case("an empty list of topics", 0)
@CLUSTER.case("no topics", 1, 8, 13)
def no_topics(raw: Raw, version: int) -> None:
    ask_metadata(raw, version, [])


@CLUSTER.case("unknown topic", 4, 9, 10, 13)
def unknown_topic(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        ask_metadata(raw, version, [{"name": f"{raw.topic}-missing"}])


@CLUSTER.case("unknown id", 12, 13)
def unknown_id(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_ID):
        ask_metadata(raw, version, [{"name": None, "topic_id": b"\x07" * 16}])


@CLUSTER.case("illegal names", 4, 13)
def illegal_names(raw: Raw, version: int) -> None:
    ask_metadata(raw, version, [{"name": name} for name in ("a b", "..", ".", "", "n" * 250)])


@CLUSTER.case("illegal names, to be made", 4, 13)
def illegal_names_to_be_made(raw: Raw, version: int) -> None:
    names = [{"name": name} for name in ("a b", "..", "n" * 250)]
    ask_metadata(raw, version, names, allow_auto_topic_creation=True)


@CLUSTER.case("made when asked for", 1, 4, 13)
def made_when_asked_for(raw: Raw, version: int) -> None:
    rows = [{"name": f"{raw.topic}-new"}]
    fields = {"allow_auto_topic_creation": True} if version >= 4 else {}
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION, Code.LEADER_NOT_AVAILABLE):
        ask_metadata(raw, version, rows, **fields)
    ask_metadata(raw, version, rows)


@CLUSTER.case("known and unknown", 4, 13)
def known_and_unknown(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        ask_metadata(raw, version, [{"name": f"{raw.topic}-missing"}, {"name": raw.topic}, {"name": "a b"}])


@CLUSTER.case("authorized operations", 8, 10, 13)
def authorized_operations(raw: Raw, version: int) -> None:
    fields = {"include_topic_authorized_operations": False}
    if version <= 10:
        fields |= {"include_cluster_authorized_operations": False}
    ask_metadata(raw, version, [{"name": raw.topic}], **fields)


@CLUSTER.case("authorized operations, asked for", 8, 10, 13)
def authorized_operations_asked_for(raw: Raw, version: int) -> None:
    fields = {"include_topic_authorized_operations": True}
    if version <= 10:
        fields |= {"include_cluster_authorized_operations": True}
    rows = [{"name": raw.topic}, {"name": f"{raw.topic}-missing"}, {"name": "a b"}]
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        ask_metadata(raw, version, rows, **fields)


# ------------------------------------------------------------------------------------------------ FindCoordinator


def find(raw: Raw, version: int, key_type: int, *keys: str) -> None:
    body: Body = {"coordinator_keys": list(keys)} if version >= 4 else {"key": keys[0]}
    if version >= 1:
        body["key_type"] = key_type
    raw.call(FIND_COORDINATOR, body, version)


COORDINATORS.add("of a group", lambda raw, version: find(raw, version, 0, raw.group), 0, 1, 3, 4, 5, 6)
COORDINATORS.add("of a transactional id", lambda raw, version: find(raw, version, 1, raw.id), 1, 2, 3, 4, 6)
COORDINATORS.add("several keys", lambda raw, version: find(raw, version, 1, "a", "b", "a"), 4, 6)
COORDINATORS.add("no keys", lambda raw, version: find(raw, version, 1), 4, 6)
COORDINATORS.add("empty key", lambda raw, version: find(raw, version, 1, ""), 3, 6)
COORDINATORS.add("empty group", lambda raw, version: find(raw, version, 0, ""), 3, 6)
COORDINATORS.add("unknown key type", lambda raw, version: find(raw, version, 7, "a"), 1, 3, 4, 6)

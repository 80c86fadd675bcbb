# SPDX-License-Identifier: Apache-2.0
"""The table of releases, against what brokers of these releases have answered, and what is read from it."""

from __future__ import annotations

import pytest
from fix_other_clients import kafka_python

from penstock.errors import UnsupportedVersionError
from penstock.protocol.messages import (
    API_BY_KEY,
    INIT_PRODUCER_ID,
    LIST_TRANSACTIONS,
    METADATA,
    PRODUCE,
)
from penstock.protocol.releases import (
    first_release_with,
    likely_release,
    ranges_of,
    release_name,
    releases,
)
from penstock.protocol.requests import NodeApiVersions

BROKER_API_VERSIONS = kafka_python.protocol.broker_version_data.BROKER_API_VERSIONS
NOT_IN_THE_TABLE = {71, 72}  # telemetry, which nobody uses yet


def of(release: str) -> NodeApiVersions:
    """What a broker of that release would tell."""
    return NodeApiVersions(ranges_of(release))


def test_the_table_begins_with_0_8_2_and_has_no_hole():
    names = releases()
    assert (names[0], names[-1], len(names)) == ("0.8.2", "4.3", 31)


@pytest.mark.parametrize("numbers", [numbers for numbers in BROKER_API_VERSIONS if numbers >= (0, 8, 2)])
def test_the_table_agrees_with_what_brokers_have_answered(numbers):
    """kafka-python has the answers of real brokers; before 0.10, what its authors have found."""
    theirs = BROKER_API_VERSIONS[numbers]
    ours = ranges_of(".".join(map(str, numbers)))
    expected = {key: theirs[key] for key in API_BY_KEY if key in theirs and key not in NOT_IN_THE_TABLE}
    assert ours == expected


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("0.9.0.1", "0.9.0"),
        ("0.9.0", "0.9.0"),
        ("0.9", "0.9.0"),
        ("0.8.2.2", "0.8.2"),
        ("0.11", "0.11.0"),
        ("0.10.2.2", "0.10.2"),
        ("1.1.1", "1.1"),
        ("2.8", "2.8"),
        (" 4.3.1 ", "4.3"),
    ],
)
def test_a_release_may_be_written_in_several_ways(text, name):
    assert release_name(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9",
        "0",
        "0.8",
        "0.8.1",
        "0.7.0",
        "0.9.0.1.2",
        "2.8.2.1",
        "4.4",
        "5.0",
        "2.x",
        "latest",
        "-1.0",
        "٢.٨",
    ],
)
def test_what_is_no_release_is_refused(text):
    with pytest.raises(ValueError, match=r"no release of Kafka from 0\.8\.2 to 4\.3"):
        release_name(text)


def test_ranges_are_a_copy():
    ranges_of("2.8").clear()
    assert ranges_of("2.8")


# ---- which release a broker has


@pytest.mark.parametrize("release", releases())
def test_a_broker_is_recognised_by_its_versions(release):
    first, _, last = likely_release(of(release)).partition(" to ")
    names = list(releases())
    assert names.index(first) <= names.index(release) <= names.index(last or first)


@pytest.mark.parametrize(
    ("release", "told"), [("0.10.0", "0.10.0"), ("3.2", "3.1 to 3.4"), ("3.9", "3.9"), ("4.3", "4.2 to 4.3")]
)
def test_releases_that_cannot_be_told_apart_are_a_range(release, told):
    assert of(release).release == told


def test_a_broker_that_hides_transactions_is_recognised_all_the_same():
    """As brokers do while inter.broker.protocol.version is that of a release before 0.11."""
    ranges = ranges_of("1.1")
    for key in (22, 24, 25, 26, 28):
        del ranges[key]
    assert NodeApiVersions(ranges).release == "1.1"


def test_a_broker_that_is_newer_than_the_table_is_told_as_such():
    ranges = {key: (low, high + 1) for key, (low, high) in ranges_of("4.3").items()}
    assert NodeApiVersions(ranges).release == "newer than 4.3"


@pytest.mark.parametrize(
    "ranges",
    [
        {},
        {METADATA.key: (0, 12)},
        ranges_of("2.8") | {PRODUCE.key: (0, 3)},
        ranges_of("0.10.2") | {INIT_PRODUCER_ID.key: (0, 0)},
    ],
    ids=["nothing", "no Produce", "odd Produce", "too much"],
)
def test_a_server_that_is_not_kafka_has_no_release(ranges):
    versions = NodeApiVersions(ranges)
    assert versions.release == "unknown"
    assert versions.server == "the broker (of no known release of Kafka)"


@pytest.mark.parametrize(
    ("api", "version", "release"),
    [
        (PRODUCE, 7, "2.1"),
        (PRODUCE, 0, "0.8.2"),
        (INIT_PRODUCER_ID, 0, "0.11.0"),
        (LIST_TRANSACTIONS, 99, None),
    ],
)
def test_the_first_release_that_knows_a_version(api, version, release):
    assert first_release_with(api, version) == release


# ---- what follows from it


@pytest.mark.parametrize("release", releases())
def test_the_record_format_of_each_release(release):
    names = list(releases())
    magic = of(release).produce_magic
    assert magic == 2 if names.index(release) >= names.index("0.11.0") else magic < 2
    assert magic == 0 if names.index(release) < names.index("0.10.0") else magic > 0


@pytest.mark.parametrize(
    ("offered", "magic"),
    [((0, 2), 1), ((2, 2), 1), ((0, 1), 0), ((0, 0), 0), ((0, 3), 2), ((3, 9), 2), ((0, 13), 2), (None, 2)],
)
def test_the_record_format_follows_from_produce(offered, magic):
    ranges = {} if offered is None else {PRODUCE.key: offered}
    assert NodeApiVersions(ranges).produce_magic == magic


@pytest.mark.parametrize("release", ["0.11.0", "2.8", "3.9", "4.3"])
def test_old_versions_of_produce_are_never_picked_of_a_broker_that_knows_newer_ones(release):
    """Kafka 4 lists them and closes the connection."""
    with pytest.raises(UnsupportedVersionError):
        of(release).pick(PRODUCE, 0, 2)


def test_what_was_guessed_says_so():
    versions = NodeApiVersions.of_release("0.9.0.1")
    assert (versions.guessed, versions.release) == (True, "0.9.0")
    assert versions.server == "the broker (taken for Kafka 0.9.0)"
    assert not of("0.10.0").guessed


def test_an_error_names_the_release_and_the_way_out():
    with pytest.raises(UnsupportedVersionError) as missing:
        of("2.8").pick(LIST_TRANSACTIONS)
    assert "the broker (Kafka 2.8) does not offer ListTransactions" in str(missing.value)
    assert "needs version 0 to 2 of it (Kafka 3.0 or later)" in str(missing.value)
    assert "use a newer broker" in str(missing.value)
    with pytest.raises(UnsupportedVersionError, match=r"the broker \(Kafka 2\.0\) accepts 0 to 6") as too_old:
        of("2.0").pick(METADATA, 8)
    assert "this request can be sent in 8 to 13 (Kafka 2.3 or later)" in str(too_old.value)

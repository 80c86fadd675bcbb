# SPDX-License-Identifier: Apache-2.0
"""InitProducerId, AddPartitionsToTxn and EndTxn in both protocols; what they leave behind is fetched as well."""

from __future__ import annotations

from testing.conformance.cases import Cases
from testing.conformance.raw import V1, V2, Body, Raw
from testing.wire import Producer

from penstock.protocol.messages import ADD_PARTITIONS_TO_TXN, END_TXN, INIT_PRODUCER_ID
from penstock.testing import Code

INIT = Cases(INIT_PRODUCER_ID, needs_topic=False)
INIT_IN_USE = Cases(INIT_PRODUCER_ID)
ADD = Cases(ADD_PARTITIONS_TO_TXN)
END = Cases(END_TXN)


def stranger_to(producer: Producer) -> Producer:
    return Producer(producer.id + 1_000_000, 0)


# ------------------------------------------------------------------------------------------------ InitProducerId


@INIT.case("first and again", *range(6))
def first_and_again(raw: Raw, version: int) -> None:
    raw.init(version)
    raw.init(version)
    raw.describe()


@INIT.case("without a transactional id", *range(6))
def without_id(raw: Raw, version: int) -> None:
    raw.init(version, transactional_id=None)
    raw.init(version, transactional_id=None)


@INIT.case("empty transactional id", 0, 2, 5)
def empty_id(raw: Raw, version: int) -> None:
    raw.init(version, transactional_id="")


@INIT.case("time-outs", 0, 3, 5)
def timeouts(raw: Raw, version: int) -> None:
    for limit in (0, -1, 900_001, 900_000):
        raw.init(version, transaction_timeout_ms=limit)
    raw.init(version, transactional_id=None, transaction_timeout_ms=0)


@INIT.case("goes on", 3, 4, 5)
def goes_on(raw: Raw, version: int) -> None:
    first = raw.init(version)
    named = {"producer_id": first.id, "producer_epoch": first.epoch}
    raw.init(version, **named)
    raw.init(version, **named)
    raw.init(version)
    raw.init(version, **named)


@INIT.case("half an identity", 3, 5)
def half_identity(raw: Raw, version: int) -> None:
    raw.init(version, producer_id=5)
    raw.init(version, producer_epoch=5)
    raw.init(version, transactional_id=None, producer_id=5)


@INIT.case("identity of another", 3, 4, 5)
def foreign_identity(raw: Raw, version: int) -> None:
    first = raw.init(version)
    raw.init(version, producer_id=first.id + 1_000_000, producer_epoch=1)


@INIT.case("identity that nobody has", 3, 5)
def unknown_identity(raw: Raw, version: int) -> None:
    raw.init(version, producer_id=5_000_000, producer_epoch=3)


@INIT_IN_USE.case("open transaction", 0, 3, 5)
def open_transaction(raw: Raw, version: int) -> None:
    raw.begin(V2)
    with raw.expecting(Code.CONCURRENT_TRANSACTIONS):
        raw.init(version)
    raw.init(version)
    raw.describe()
    raw.read()


@INIT_IN_USE.case("after an end", 1, 5)
def after_end(raw: Raw, version: int) -> None:
    raw.end(raw.begin(V2), True, V2)
    raw.init(version)


# ------------------------------------------------------------------------------------------------ AddPartitionsToTxn

both = (V1, V2)


@ADD.case("one and more", 0, 1, 2, 3)
def one_and_more(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.add(producer, version=version)
    raw.add(producer, 0, 1, version=version)
    raw.describe()


@ADD.case("stranger", 0, 1, 2, 3)
def add_stranger(raw: Raw, version: int) -> None:
    raw.add(stranger_to(raw.init()), version=version)


@ADD.case("nobody has the id", 0, 3)
def add_unknown(raw: Raw, version: int) -> None:
    raw.add(Producer(5_000_000, 0), version=version)


@ADD.case("epoch ahead", 0, 3)
def add_ahead(raw: Raw, version: int) -> None:
    raw.add(raw.init().bumped(3), version=version)


@ADD.case("fenced", 0, 1, 2, 3)
def add_fenced(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.init()
    raw.add(producer, version=version)


@ADD.case("unknown partition", 0, 3)
def add_unknown_partition(raw: Raw, version: int) -> None:
    with raw.expecting(Code.UNKNOWN_TOPIC_OR_PARTITION):
        raw.add(raw.init(), 0, 9, version=version)
    raw.describe()


@ADD.case("empty id", 0, 3)
def add_empty_id(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.id = ""
    raw.add(producer, version=version)


@ADD.case("nothing", 0, 3)
def add_nothing(raw: Raw, version: int) -> None:
    producer = raw.init()
    body: Body = {
        "v3_and_below_transactional_id": raw.id,
        "v3_and_below_producer_id": producer.id,
        "v3_and_below_producer_epoch": producer.epoch,
        "v3_and_below_topics": [],
    }
    raw.call(ADD_PARTITIONS_TO_TXN, body, version)
    raw.describe()


# ------------------------------------------------------------------------------------------------ EndTxn


def add_ends(ends: str) -> None:
    @END.case(f"ends {ends}", *both)
    def several_ends(raw: Raw, version: int) -> None:
        producer = raw.begin(version)
        for end in ends:
            raw.end(producer, end == "C", version)
        raw.describe()
        raw.read()


for _ends in ("CC", "CA", "AA", "AC", "CCC"):
    add_ends(_ends)


@END.case("first protocol", 0, 1, 2, 3, 4)
def first_protocol(raw: Raw, version: int) -> None:
    raw.end(raw.begin(V1), True, version)
    raw.describe()


@END.case("nothing to end", 0, 3, 4, 5)
def nothing_to_end(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.end(producer, True, version)
    raw.end(producer, False, version)
    raw.describe()
    raw.read()


@END.case("fenced", 0, 1, 2, 3, 5)
def end_fenced(raw: Raw, version: int) -> None:
    producer = raw.begin(V2 if version == V2 else V1)
    with raw.expecting(Code.CONCURRENT_TRANSACTIONS):
        raw.init()
    raw.init()
    raw.end(producer, True, version)
    raw.write(V2 if version == V2 else V1, producer, 1)
    raw.add(producer)
    raw.read()


@END.case("old end in the next transaction", *both)
def old_end(raw: Raw, version: int) -> None:
    producer = raw.begin(version)
    raw.end(producer, True, version)
    raw.describe()
    following = producer.bumped() if version == V2 else producer
    raw.begin(version, following, 0 if version == V2 else 1)
    raw.end(producer, True, version)
    raw.describe()
    raw.read()


@END.case("mixed versions")
def mixed_versions(raw: Raw, version: int) -> None:
    producer = raw.begin(version)
    raw.end(producer, True, V1)
    raw.describe()
    raw.end(producer, False, version)
    raw.describe()
    raw.end(producer, True, V1)


@END.case("stranger", 0, 3, 5)
def end_stranger(raw: Raw, version: int) -> None:
    raw.end(stranger_to(raw.begin(V2)), True, version)


@END.case("nobody has the id", 0, 5)
def end_unknown(raw: Raw, version: int) -> None:
    raw.end(Producer(5_000_000, 0), True, version)


@END.case("epoch ahead", 0, 3, 5)
def end_ahead(raw: Raw, version: int) -> None:
    raw.end(raw.begin(V2).bumped(3), True, version)


@END.case("empty id", 0, 5)
def end_empty_id(raw: Raw, version: int) -> None:
    producer = raw.init()
    raw.id = ""
    raw.end(producer, True, version)

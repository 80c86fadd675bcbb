# SPDX-License-Identifier: Apache-2.0
"""The names users build on: what is promised is there, documented, and nothing else is public by mistake."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock
from penstock.config.keys import KEYS
from penstock.config.kinds import Kind
from penstock.testing import FakeKafka, MockProducer

PROMISED = {
    "AsyncProducer",
    "BulkDelivery",
    "ConsumerGroupMetadata",
    "Delivery",
    "Header",
    "Interceptor",
    "OffsetAndMetadata",
    "Partitioner",
    "Producer",
    "ProducerOptions",
    "ProducerRecord",
    "RecordMetadata",
    "Serializer",
    "TopicPartition",
    "TransactionHandle",
    "__version__",
    "complete_transaction",
    "errors",
    "partitioners",
    "serializers",
}

# Parameters by name; a trailing = has a default, behind * they are given by name only.
SIGNATURES = {
    "AsyncProducer": "config=, /, *, on_delivery_in=, **options",
    "AsyncProducer.send": (
        "topic, value=, key=, callback=, *, headers=, partition=, timestamp_ms=, on_delivery=, timestamp="
    ),
    "AsyncProducer.send_and_wait": (
        "topic, value=, key=, callback=, *, headers=, partition=, timestamp_ms=, on_delivery=, timestamp="
    ),
    "AsyncProducer.try_send": (
        "topic, value=, key=, callback=, *, headers=, partition=, timestamp_ms=, on_delivery=, timestamp="
    ),
    "AsyncProducer.send_record": "record, on_delivery=",
    "AsyncProducer.send_many": "topic, values, *, keys=, headers=, partition=, timestamps_ms=",
    "AsyncProducer.send_arrow": "topic, data, *, key=, value=, headers=, partition=, timestamp=, on_error=",
    "AsyncProducer.flush": "timeout=",
    "AsyncProducer.aclose": "timeout=",
    "Producer": "config=, /, **options",
    "Producer.send": (
        "topic, value=, key=, callback=, *, headers=, partition=, timestamp_ms=, on_delivery=, timestamp="
    ),
    "Producer.send_record": "record, on_delivery=",
    "Producer.send_many": "topic, values, *, keys=, headers=, partition=, timestamps_ms=",
    "Producer.send_arrow": ("topic, data, *, key=, value=, headers=, partition=, timestamp=, on_error="),
    "Producer.flush": "timeout=",
    "Producer.close": "timeout=",
    "Producer.partitions_for": "topic",
    "Producer.metrics": "",
    "Producer.client_instance_id": "timeout",
    "Producer.init_transactions": "transactional_id=, *, timeout=",
    "Producer.begin_transaction": "",
    "Producer.send_offsets_to_transaction": "offsets, group, timeout=",
    "Producer.commit_transaction": "timeout=, *, incomplete=",
    "Producer.abort_transaction": "timeout=",
    "Producer.transaction": "*, incomplete=",
    "Producer.detach_transaction": "*, incomplete=",
    "complete_transaction": "handle, commit=, *, config, timeout=",
    "ProducerRecord": "topic, value=, key=, headers=, partition=, timestamp_ms=",
}


# All that can be asked of what users are given. A method that is for the package itself begins with an underscore.
SURFACES = {
    "AsyncProducer": """
        abort_transaction aclose begin_transaction client_instance_id commit_transaction detach_transaction flush
        init_transactions initialization_in_doubt metrics partitions_for send send_and_wait send_arrow send_many
        send_offsets_to_transaction send_record transaction try_send
    """,
    "Producer": """
        abort_transaction begin_transaction client_instance_id close commit_transaction detach_transaction flush
        init_transactions initialization_in_doubt metrics partitions_for send send_arrow send_many
        send_offsets_to_transaction send_record transaction
    """,
    "Delivery": "add_done_callback cancelled done exception remove_done_callback result",
    "BulkDelivery": "accepted add_done_callback cancelled done errors exception remove_done_callback result",
    "ConsumerGroupMetadata": "count generation_id group_id group_instance_id has_member index member_id",
    "Header": "count index key value",
    "Interceptor": "close on_acknowledgement on_send",
    "OffsetAndMetadata": "count index leader_epoch metadata offset",
    "Partitioner": "close on_new_batch on_topic_forgotten partition",
    "ProducerRecord": "headers key partition timestamp_ms topic topic_partition value",
    "RecordMetadata": """
        count index offset partition serialized_key_size serialized_value_size timestamp topic topic_partition
    """,
    "Serializer": "close serialize",
    "TopicPartition": "count index partition topic",
    "TransactionHandle": """
        empty end_txn_version from_json has_place offset partition producer_epoch producer_id record_count timeout_ms
        to_json topic transactional_id
    """,
}


def shape(function: Any) -> str:
    """A signature without annotations and default values, so that only a change that breaks callers shows."""
    parts: list[str] = []
    parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    for parameter, following in zip(parameters, [*parameters[1:], None], strict=False):
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        prefix = {parameter.VAR_KEYWORD: "**", parameter.VAR_POSITIONAL: "*"}.get(parameter.kind, "")
        has_default = "" if parameter.default is parameter.empty else "="
        parts.append(prefix + parameter.name + has_default)
        positional_only = parameter.kind is parameter.POSITIONAL_ONLY
        if positional_only and (following is None or following.kind is not parameter.kind):
            parts.append("/")
    return ", ".join(parts)


def resolve(path: str) -> Any:
    found: Any = penstock
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_exactly_the_promised_names_are_exported() -> None:
    assert set(penstock.__all__) == PROMISED


def test_nothing_else_looks_public() -> None:
    # Subpackages appear as attributes once imported; they are not part of the promise.
    visible = {
        name
        for name, value in vars(penstock).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "install_finder"
    }
    assert visible <= PROMISED


@pytest.mark.parametrize("name", sorted(PROMISED - {"__version__"}))
def test_public_names_are_documented(name: str) -> None:
    documentation = inspect.getdoc(resolve(name))
    assert documentation
    # What a class without a text of its own would inherit, or a dataclass would be given.
    assert not documentation.startswith(f"{name}(")


@pytest.mark.parametrize("path", sorted(SIGNATURES))
def test_signatures_are_as_promised(path: str) -> None:
    assert shape(resolve(path)) == SIGNATURES[path]


@pytest.mark.parametrize("name", sorted(SURFACES))
def test_nothing_but_what_is_promised_can_be_asked(name: str) -> None:
    cls = resolve(name)
    # Of a class `dir` also knows the names that only say what to call instead: see `_other_clients`.
    visible = [each for each in dir(cls) if not each.startswith("_") and hasattr(cls, each)]
    assert sorted(visible) == sorted(SURFACES[name].split())


def test_every_class_has_its_surface_listed() -> None:
    classes = {name for name in PROMISED if inspect.isclass(resolve(name))}
    assert classes - {"ProducerOptions"} == set(SURFACES)


@pytest.mark.parametrize("name", ["Producer", "Delivery", "BulkDelivery"])
def test_no_attribute_of_an_object_looks_public(name: str, kafka: FakeKafka) -> None:
    with penstock.Producer(bootstrap_servers=kafka.bootstrap_servers) as producer:
        made = {
            "Producer": producer,
            "Delivery": producer.send("t", b"v"),
            "BulkDelivery": producer.send_many("t", [b"v"]),
        }
    visible = {each for each in dir(made[name]) if not each.startswith("_")}
    assert visible == set(SURFACES[name].split())


def test_a_stand_in_promises_no_more_than_the_real_one() -> None:
    def visible(of: object) -> set[str]:
        return {each for each in dir(of) if not each.startswith("_") and hasattr(of, each)}

    producer = MockProducer()
    assert visible(producer.send("t")) == visible(penstock.Delivery)
    assert visible(producer.send_many("t", [b"v"])) == visible(penstock.BulkDelivery)


@pytest.mark.parametrize("method", ["result", "exception", "done", "add_done_callback", "__await__"])
def test_delivery_can_be_asked(method: str) -> None:
    assert callable(getattr(penstock.Delivery, method))


def test_errors_share_one_root() -> None:
    classes = [value for value in vars(penstock.errors).values() if inspect.isclass(value)]
    exceptions = [cls for cls in classes if issubclass(cls, BaseException)]
    assert len(exceptions) > 20
    assert [cls for cls in exceptions if not issubclass(cls, penstock.errors.KafkaError)] == []


def test_import_needs_no_optional_package() -> None:
    optional = {"pyspark", "pyarrow", "polars", "duckdb", "rich", "numpy"}
    code = f"import sys, penstock; print(*sorted({optional} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.strip() == ""


# ------------------------------------------------------------------------------------------------ types


# What a value of a kind may be, as `config/keys.py` writes it.
KIND_TYPES = {
    Kind.BOOL: ("Flag",),
    Kind.INT: ("Number", "Number | None"),
    Kind.LONG: ("Number",),
    Kind.DOUBLE: ("Real",),
    Kind.STRING: ("str", "str | int", "str | None"),
    Kind.PASSWORD: ("Secret",),
    Kind.OBJECT: ("object",),
    Kind.LIST: ("Names",),
    Kind.CLASS: ("SerializerOption", "PartitionerOption", "TracingOption"),
    Kind.CLASSES: ("InterceptorsOption", "ReportersOption"),
}


def test_the_typed_options_are_those_of_the_table() -> None:
    annotations = penstock.ProducerOptions.__annotations__
    expected = [name for key in KEYS.values() for name in dict.fromkeys((key.field_name, key.snake_name))]
    assert list(annotations) == expected
    for key in KEYS.values():
        for name in (key.field_name, key.snake_name):
            written = annotations[name].__forward_arg__
            assert written in KIND_TYPES[key.kind], name
            if key.kind is Kind.STRING:
                assert ("None" in written) == (key.default is None), name


@pytest.mark.parametrize("name", ["penstock", "penstock.testing", "penstock.spark", "penstock.sink"])
def test_a_module_that_loads_names_later_lists_them(name: str) -> None:
    # In a process of its own: in this one others have loaded them before.
    code = f"import {name} as module; print(*sorted(set(module.__all__) - set(dir(module))))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert done.stdout.split() == []


def test_every_module_that_loads_names_later_is_tested_for_it() -> None:
    package = Path(penstock.__file__).parent
    texts = {path: path.read_text("utf-8") for path in package.rglob("*.py")}
    lazy = [
        path
        for path, text in texts.items()
        if re.search(r"^ *__getattr__, __dir__ = _lazy_names\(", text, re.M)
    ]
    assert {path.parent.name for path in lazy} == {"penstock", "testing", "spark", "sink"}
    others = [path for path, text in texts.items() if re.search(r"^ *def __getattr__\(name", text, re.M)]
    # It loads nothing: it says what a name of another client is called here.
    assert [path.relative_to(package).as_posix() for path in others] == ["errors.py"]

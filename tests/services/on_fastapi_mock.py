# SPDX-License-Identifier: Apache-2.0
"""The FastAPI example with a mock in the place of its producer, as a user tests it: what a client is told."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from services.process import FOLDER

from penstock import errors
from penstock.testing import MockAsyncProducer

ORDER = {"id": "1", "what": "two pumps"}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(FOLDER))
    import fastapi_events

    yield fastapi_events
    del sys.modules["fastapi_events"]


@pytest.fixture
def mock(example: ModuleType) -> MockAsyncProducer:
    return put_in(example, MockAsyncProducer())


def put_in(example: ModuleType, mock: MockAsyncProducer) -> MockAsyncProducer:
    """As the text of the example says."""
    example.app.dependency_overrides[example.the_producer] = lambda: mock
    return mock


async def post(example: ModuleType, path: str, body: object) -> tuple[int, dict[str, str], str]:
    """Ask the app itself, without a server."""
    sent: list[dict] = []

    async def receive() -> dict:
        return {"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}

    async def send(message: dict) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    await example.app(scope, receive, send)
    head, *rest = sent
    given = {name.decode(): value.decode() for name, value in head["headers"]}
    return head["status"], given, b"".join(part.get("body", b"") for part in rest).decode()


@pytest.mark.asyncio
async def test_events_and_orders_are_sent(example: ModuleType, mock: MockAsyncProducer) -> None:
    assert (await post(example, "/events", {"id": "7f", "what": "click"}))[0] == 202
    status, _, text = await post(example, "/orders", ORDER)
    assert (status, json.loads(text)) == (201, {"partition": 0, "offset": 0})
    assert [(record.topic, record.key) for record in mock.history()] == [("events", b"7f"), ("orders", b"1")]


@pytest.mark.asyncio
@pytest.mark.parametrize("path", ["/events", "/orders"])
@pytest.mark.parametrize(
    ("error", "status", "again"),
    [
        (errors.BufferExhaustedError("no memory at broker-7"), 503, True),
        (errors.KafkaTimeoutError("no answer of broker-7"), 503, True),
        (errors.RecordTooLargeError("more than broker-7 takes"), 413, False),
        (errors.TopicAuthorizationError("broker-7 refuses"), 500, False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_refusal_is_told_without_names_of_brokers(
    example: ModuleType,
    mock: MockAsyncProducer,
    path: str,
    error: errors.KafkaError,
    status: int,
    again: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mock.raise_on("send", error)
    told, headers, text = await post(example, path, ORDER)
    assert (told, "retry-after" in headers) == (status, again)
    assert "broker-7" not in text
    # Those that come by the thousand are not in the log.
    quiet = isinstance(error, errors.BufferExhaustedError | errors.RecordTooLargeError)
    assert ("broker-7" in caplog.text) is not quiet


@pytest.mark.asyncio
async def test_an_order_without_an_answer_is_not_known(
    example: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in(example, MockAsyncProducer(auto_complete=False))
    monkeypatch.setattr(example, "ORDER_SECONDS", 0)
    status, headers, _ = await post(example, "/orders", ORDER)
    assert (status, "retry-after" in headers) == (504, False)

# SPDX-License-Identifier: Apache-2.0
"""FastAPI: a service that takes events and orders and sends them to Kafka.

    export KAFKA_SERVERS=localhost:9092
    uvicorn fastapi_events:app --timeout-graceful-shutdown 5

    curl -X POST --json '{"id": "7f", "what": "click"}' http://127.0.0.1:8000/events
    curl -X POST --json '{"id": "80", "what": "two pumps"}' http://127.0.0.1:8000/orders

There are two kinds of back-pressure. An event is accepted (202) when it is in the producer's memory; when the memory is
full, the client is told to come again (503), and no request waits. An order is stored (201) when Kafka has it; the
request waits for that, for memory too if need be, and at most ORDER_SECONDS.

Shut-down: uvicorn stops to accept requests, gives those that run the time of --timeout-graceful-shutdown, and then ends
the lifespan. That delivers what was accepted, for at most CLOSE_SECONDS.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from penstock import AsyncProducer, RecordMetadata, errors

EVENTS, ORDERS = os.environ.get("EVENTS_TOPIC", "events"), os.environ.get("ORDERS_TOPIC", "orders")
ORDER_SECONDS = 5
CLOSE_SECONDS = 10
log = logging.getLogger("uvicorn.error")


class Event(BaseModel):
    id: str
    what: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    producer = AsyncProducer(bootstrap_servers=os.environ.get("KAFKA_SERVERS", "localhost:9092"))
    try:
        # A service that cannot reach its cluster does not start. And from now on the topics are known.
        await producer.partitions_for(EVENTS)
        await producer.partitions_for(ORDERS)
        app.state.producer = producer
        yield
    finally:
        await producer.aclose(timeout=CLOSE_SECONDS)


app = FastAPI(lifespan=lifespan)


def report(metadata: RecordMetadata, error: errors.KafkaError | None) -> None:
    if error is not None:  # nobody waits for the outcome of an event
        log.error("an accepted event was not delivered: %s", error)


@app.post("/events", status_code=202)
async def take_event(event: Event, request: Request) -> None:
    producer: AsyncProducer = request.app.state.producer
    try:
        producer.try_send(EVENTS, event.model_dump_json().encode(), key=event.id.encode(), on_delivery=report)
    except errors.KafkaTimeoutError as error:  # no memory now
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error


@app.post("/orders", status_code=201)
async def store_order(order: Event, request: Request) -> dict[str, int]:
    producer: AsyncProducer = request.app.state.producer
    try:
        async with asyncio.timeout(ORDER_SECONDS):
            stored = await producer.send_and_wait(
                ORDERS, order.model_dump_json().encode(), key=order.id.encode()
            )
    except TimeoutError as error:
        # If it was accepted, it is still on its way: "not known", and not "not stored".
        raise HTTPException(504, f"no answer from Kafka within {ORDER_SECONDS} s") from error
    except errors.KafkaError as error:
        raise HTTPException(503, str(error), {"Retry-After": "1"}) from error
    return {"partition": stored.partition, "offset": stored.offset}

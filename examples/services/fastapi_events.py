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
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from penstock import AsyncProducer, RecordMetadata, errors

EVENTS, ORDERS = os.environ.get("EVENTS_TOPIC", "events"), os.environ.get("ORDERS_TOPIC", "orders")
ORDER_SECONDS = 5
CLOSE_SECONDS = 10
log = logging.getLogger("uvicorn.error")  # which uvicorn shows without further settings


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


async def the_producer(request: Request) -> AsyncProducer:
    """A test puts another in its place: `app.dependency_overrides[the_producer] = lambda: mock`."""
    return request.app.state.producer  # `async`, because FastAPI calls what is not from a thread


UsesProducer = Annotated[AsyncProducer, Depends(the_producer)]


@app.exception_handler(errors.KafkaError)
async def refuse(request: Request, error: errors.KafkaError) -> JSONResponse:
    """What a client is told. The text of the error names brokers and options, so it is for the log alone."""
    if isinstance(error, errors.RecordTooLargeError):
        return JSONResponse({"detail": "too large"}, 413)
    if isinstance(error, errors.BufferExhaustedError):  # by many at once: the metrics count them
        return JSONResponse({"detail": "too much at once"}, 503, {"Retry-After": "1"})
    log.error("not sent: %s", error)
    if error.retriable:
        return JSONResponse({"detail": "no answer from Kafka"}, 503, {"Retry-After": "1"})
    return JSONResponse({"detail": "not possible"}, 500)


def report(metadata: RecordMetadata, error: errors.KafkaError | None) -> None:
    if error is not None:  # nobody waits for the outcome of an event
        log.error("an accepted event was not delivered: %s", error)


@app.post("/events", status_code=202)
async def take_event(event: Event, producer: UsesProducer) -> None:
    producer.try_send(EVENTS, event.model_dump_json().encode(), key=event.id.encode(), on_delivery=report)


@app.post("/orders", status_code=201)
async def store_order(order: Event, producer: UsesProducer) -> dict[str, int]:
    try:
        async with asyncio.timeout(ORDER_SECONDS):
            stored = await producer.send_and_wait(
                ORDERS, order.model_dump_json().encode(), key=order.id.encode()
            )
    except errors.KafkaError:  # some of them are a TimeoutError, too
        raise
    except TimeoutError as error:
        # If it was accepted, it is still on its way: "not known", and not "not stored". A client that sends it again
        # may store it twice. Who reads the orders can tell by the id.
        raise HTTPException(504, f"no answer from Kafka within {ORDER_SECONDS} s") from error
    return {"partition": stored.partition, "offset": stored.offset}

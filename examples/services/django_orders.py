# SPDX-License-Identifier: Apache-2.0
"""Django: an async view that stores an order in Kafka, behind a server that forks after a producer was made.

    export KAFKA_SERVERS=localhost:9092
    gunicorn --preload --workers 2 django_orders:application

    curl -X POST -d '{"item": "pump"}' http://127.0.0.1:8000/orders

With --preload the server imports this module, which makes a producer, and then forks its workers. A producer does not
survive a fork: its I/O thread runs in the parent only, so in the child it raises ForkedProducerError. Here every
process makes its own producer when it first needs one. Behind WSGI, Django runs each request of an async view in a loop
of its own: an AsyncProducer can be used from any number of loops. A view that is not async uses a Producer in the same
way.

Gunicorn kills a worker whose request takes longer than its --timeout, 30 seconds. So the producer has less: OPTIONS.
"""

import json
import logging
import os
import threading

from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path

from penstock import AsyncProducer, errors

TOPIC = os.environ.get("ORDERS_TOPIC", "orders")
OPTIONS = {
    "bootstrap.servers": os.environ.get("KAFKA_SERVERS", "localhost:9092"),
    "max.block.ms": 5_000,  # until the record is accepted
    "delivery.timeout.ms": 20_000,  # from then on
    "request.timeout.ms": 5_000,  # for one try
}
log = logging.getLogger("orders")

if not settings.configured:
    settings.configure(
        ROOT_URLCONF=__name__,
        ALLOWED_HOSTS=["127.0.0.1", "localhost"],
        SECRET_KEY=os.environ.get("DJANGO_SECRET_KEY", "for this example only"),
    )


class ProcessProducer:
    """The producer of this process: made when it is first asked for, and again in the child of a fork."""

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        # A new lock: at the time of the fork another thread may have held the old one.
        self._lock = threading.Lock()
        self._producer: AsyncProducer | None = None

    def get(self) -> AsyncProducer:
        with self._lock:
            if self._producer is None:
                self._producer = AsyncProducer(OPTIONS)
            return self._producer


producers = ProcessProducer()
producers.get()  # a wrong option is an error when the server starts, and not at the first request


async def order(request: HttpRequest) -> JsonResponse:
    if request.method != "POST":
        return JsonResponse({"error": "use POST"}, status=405)
    try:
        item = json.loads(request.body)["item"]
    except (ValueError, TypeError, KeyError):
        return JsonResponse({"error": 'send JSON such as {"item": "pump"}'}, status=400)
    value = json.dumps({"item": item, "process": os.getpid()}).encode()
    try:
        stored = await producers.get().send_and_wait(TOPIC, value)
    except errors.RecordTooLargeError:
        return JsonResponse({"error": "too large"}, status=413)
    except errors.DeliveryTimeoutError as error:  # it may have been stored
        log.warning("not known whether an order was stored: %s", error)
        return JsonResponse({"error": "no answer from Kafka"}, status=504)
    except errors.KafkaError as error:  # its text names brokers and options, so it is for the log alone
        log.warning("an order was not stored: %s", error)
        return JsonResponse({"error": "not stored"}, status=503, headers={"Retry-After": "1"})
    return JsonResponse({"partition": stored.partition, "offset": stored.offset}, status=201)


urlpatterns = [path("orders", order)]
application = get_wsgi_application()

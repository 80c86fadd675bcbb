# SPDX-License-Identifier: Apache-2.0
"""Celery: tasks that send records, in worker processes that are forked after a producer was made.

    export KAFKA_SERVERS=localhost:9092 CELERY_FOLDER=/tmp/celery
    celery -A celery_tasks worker --concurrency 2
    python celery_tasks.py 100    # in another terminal: ask for 100 tasks

The worker sends a record of its own before it forks. A producer does not survive a fork: its I/O thread runs in the
parent only, so in the child it raises ForkedProducerError. Here every process makes its own producer when it starts,
and closes it when it ends. A child of Celery ends without Python's exit handlers: what is not closed in
`worker_process_shutdown` would be lost.
"""

import json
import os
import sys
from pathlib import Path

from celery import Celery, signals

from penstock import Producer

TOPIC = os.environ.get("BILLS_TOPIC", "bills")
CLOSE_SECONDS = 10  # for what is left when a process ends
FOLDER = Path(os.environ.get("CELERY_FOLDER", "/tmp/celery"))
MESSAGES, DONE, CONTROL = (FOLDER / name for name in ("messages", "done", "control"))
for folder in (MESSAGES, DONE, CONTROL):
    folder.mkdir(parents=True, exist_ok=True)

app = Celery("celery_tasks", broker="filesystem://")
app.conf.update(
    broker_transport_options={
        "data_folder_in": str(MESSAGES),
        "data_folder_out": str(MESSAGES),
        "processed_folder": str(DONE),
        "control_folder": str(CONTROL),
        "polling_interval": 0.1,  # seconds; a broker of messages that is no folder needs none
    },
    task_ignore_result=True,
    # A task is taken from the queue when it has succeeded. So it may run twice, if a process is killed in between.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=1,
)

producers: dict[int, Producer] = {}  # by process: a child finds that of its parent here, and must not use it


def make_producer(**_: object) -> None:
    # With `--pool solo` both signals come in one process.
    if os.getpid() not in producers:
        servers = os.environ.get("KAFKA_SERVERS", "localhost:9092")
        producers[os.getpid()] = Producer(bootstrap_servers=servers)


def close_producer(**_: object) -> None:
    producers[os.getpid()].close(timeout=CLOSE_SECONDS)


# Celery keeps weak references to receivers, and these are functions of a module.
signals.worker_init.connect(make_producer)  # in the parent
signals.worker_shutdown.connect(close_producer)
signals.worker_process_init.connect(make_producer)  # in each child, after the fork
signals.worker_process_shutdown.connect(close_producer)


@signals.worker_init.connect
def tell_start(**_: object) -> None:
    send("worker started").result()


def send(what: str):
    value = json.dumps({"what": what, "process": os.getpid()})
    return producers[os.getpid()].send(TOPIC, value.encode(), key=what.encode())


@app.task
def bill(order: int) -> None:
    # The task has succeeded when Kafka has the record. The outcome comes within delivery.timeout.ms, so there is no
    # other time limit: after one, the record might still be written, and a retry of the task would write another.
    send(f"order {order}").result()


if __name__ == "__main__":
    for number in range(int(sys.argv[1])):
        bill.delay(number)
    print(f"{sys.argv[1]} tasks")

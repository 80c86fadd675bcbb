# SPDX-License-Identifier: Apache-2.0
"""The limit: batches that were encoded before the clock started, written to a raw socket, or to Python's own TLS.

Six partitions (or as many as the topic has) in a request, five requests on their way, acks=all. What a producer does
besides is what it costs; nobody can be faster on the same broker. At a fixed rate it is one thread that writes a record
and waits for the answer, before the next: no producer, whose thread for I/O is another one, can be quicker.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

from bench.model import BenchError
from bench.pacing import Latencies
from bench.worker import Answer, PythonContender, Task, clock_stopped, work

if TYPE_CHECKING:
    from penstock.protocol._produce_cy import ProduceRequest
    from penstock.protocol.schema import ApiSchema

PARTITIONS_PER_REQUEST = 6
IN_FLIGHT = 5
BATCH_BYTES = 128 * 1024
_VERSION = 12  # the last that names topics, and does not need their ids
_TIMEOUT_SECONDS = 30.0
_TIMESTAMP_MS = 1_767_225_600_000

CONTENDERS = [
    PythonContender("limit", "the limit: encoded batches on a socket", 5_000_000, module="limit"),
]


def write_requests(task: Task) -> Answer:
    """Write as many requests as the records need; look at the answers when the clock has stopped."""
    whole, repeats, rest = _encode(task)
    frames = [whole[1]] * repeats + ([rest[1]] if rest else [])
    host, _, port = task.settings["bootstrap.servers"].rpartition(":")
    answers: list[bytes] = []
    with _connect(host, int(port), task.settings) as connection:
        started = time.perf_counter()
        for number, frame in enumerate(frames):
            if number >= IN_FLIGHT:
                answers.append(_read_answer(connection))
            connection.sendall(frame)
        while len(answers) < len(frames):
            answers.append(_read_answer(connection))
        answer = clock_stopped(started, warm_up=0)
    for number, data in enumerate(answers):
        _check(whole[0] if number < repeats or not rest else rest[0], data)
    return answer


def latency(task: Task) -> Answer:
    """Write a record at a fixed rate, and wait for each answer."""
    latencies = Latencies(task)
    request, frame = _encode(task._replace(records=1, partitions=1))[0]
    host, _, port = task.settings["bootstrap.servers"].rpartition(":")
    answers: list[bytes] = []
    with _connect(host, int(port), task.settings) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def send(value: bytes, number: int, started: float) -> None:
            del value  # it is in the frame, which is the same for all
            connection.sendall(frame)
            answers.append(_read_answer(connection))
            latencies.ended(number, started)

        first = latencies.send_all(send)
        answer = clock_stopped(first, task.warm_up, latencies.seconds)
    for data in answers:
        _check(request, data)
    latencies.check()
    return answer


def _connect(host: str, port: int, settings: Mapping[str, str]) -> socket.socket:
    """A connection on which requests can be written: plain, or with TLS and SCRAM where the settings say so."""
    connection = socket.create_connection((host, port), _TIMEOUT_SECONDS)
    if settings.get("security.protocol", "PLAINTEXT") == "PLAINTEXT":
        return connection
    import ssl

    context = ssl.create_default_context(cafile=settings["ssl.truststore.location"])
    secured = context.wrap_socket(connection, server_hostname=host)
    _authenticate(secured, settings)
    return secured


def _authenticate(connection: socket.socket, settings: Mapping[str, str]) -> None:
    from penstock.config.config import ProducerConfig
    from penstock.protocol.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE
    from penstock.security.sasl.scram import ScramCredentials

    security = ProducerConfig.from_user(dict(settings)).security
    if security is None or security.sasl is None:
        raise BenchError("the limit authenticates by SCRAM, and the settings have none")
    mechanism = ScramCredentials(security.sasl).mechanism("")
    _ask(connection, SASL_HANDSHAKE, 1, {"mechanism": mechanism.name})
    token: bytes | None = mechanism.first()
    while token is not None:
        answer = _ask(connection, SASL_AUTHENTICATE, 2, {"auth_bytes": token})
        token = mechanism.next(bytes(answer["auth_bytes"]))


def _ask(connection: socket.socket, api: ApiSchema, version: int, body: dict[str, object]) -> dict[str, Any]:
    from penstock.protocol._framing_cy import frame_request, parse_response_header
    from penstock.protocol.codec import decode_response_body, encode_request_body

    frame = frame_request(api, version, 1, "limit", encode_request_body(api, version, body))
    connection.sendall(b"".join(frame))
    _, answer = parse_response_header(api, version, _read_answer(connection))
    decoded = decode_response_body(api, version, answer)
    if decoded["error_code"]:
        raise BenchError(f"{api.name}: error {decoded['error_code']}")
    return decoded


def _encode(
    task: Task,
) -> tuple[tuple[ProduceRequest, bytes], int, tuple[ProduceRequest, bytes] | None]:
    """The request that is repeated, how often, and one more with the records that are left."""
    from penstock.records._batch_cy import BatchWriter

    def batch(most: int) -> tuple[memoryview, int]:
        writer = BatchWriter(bytearray(2 * BATCH_BYTES), BATCH_BYTES)
        for value in cycle(task.values):
            if writer.count == most or writer.append(_TIMESTAMP_MS, None, value, None) < 0:
                break
        return writer.seal(0), writer.count

    partitions = min(PARTITIONS_PER_REQUEST, task.partitions)
    full, in_batch = batch(task.records)
    repeats, left = divmod(task.records, partitions * in_batch)
    tail: list[memoryview] = []
    while left:
        encoded, count = batch(left)
        tail.append(encoded)
        left -= count
    return (
        _request(task.topic, [full] * partitions),
        repeats,
        _request(task.topic, tail) if tail else None,
    )


def _request(topic: str, batches: list[memoryview]) -> tuple[ProduceRequest, bytes]:
    from penstock.protocol._framing_cy import frame_request
    from penstock.protocol._produce_cy import PartitionBatch, ProduceRequest
    from penstock.protocol.messages import PRODUCE

    unknown_id = bytes(16)
    rows = [PartitionBatch(topic, unknown_id, number, batch) for number, batch in enumerate(batches)]
    request = ProduceRequest(-1, 30_000, rows)
    return request, b"".join(frame_request(PRODUCE, _VERSION, 1, "limit", request.encode(_VERSION)))


def _read_answer(connection: socket.socket) -> bytes:
    size = int.from_bytes(b"".join(_read(connection, 4)), "big")
    return b"".join(_read(connection, size))


def _read(connection: socket.socket, count: int) -> Iterator[bytes]:
    while count:
        data = connection.recv(count)
        if not data:
            raise BenchError("the broker closed the connection")
        count -= len(data)
        yield data


def _check(request: ProduceRequest, data: bytes) -> None:
    from penstock.protocol._framing_cy import parse_response_header
    from penstock.protocol.messages import PRODUCE

    _, body = parse_response_header(PRODUCE, _VERSION, data)
    for one in request.decode_response(_VERSION, body).partitions:
        if one.error_code != 0:
            raise BenchError(f"partition {one.partition}: error {one.error_code} {one.error_message}")


if __name__ == "__main__":
    work({"": write_requests, "latency": latency})

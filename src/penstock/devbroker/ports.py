# SPDX-License-Identifier: Apache-2.0
"""Free ports on 127.0.0.1, and the question whether a Kafka broker answers on one."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Collection

from penstock.devbroker._errors import DevBrokerError
from penstock.devbroker.settings import HOST

# Below the range from which Linux (32768 up) and the BSDs (49152 up) take the local ports of outgoing
# connections: a broker that is down for a moment must find its port free when it comes back.
_LOWEST, _HIGHEST = 20000, 32000
_API_VERSIONS = 18


def is_free(port: int) -> bool:
    """Say whether a server could bind ``port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Java does: a port whose last connections linger in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_ports(count: int, *, avoid: Collection[int] = (), rng: random.Random | None = None) -> list[int]:
    """Return ``count`` different ports that are free now.

    Another process may take one before it is used, so whoever binds it must be ready to choose again.

    Raises:
        DevBrokerError: Too few ports are free.
    """
    source = random.Random() if rng is None else rng
    found: list[int] = []
    for port in source.sample(range(_LOWEST, _HIGHEST), _HIGHEST - _LOWEST):
        if len(found) == count:
            break
        if port not in avoid and is_free(port):
            found.append(port)
    if len(found) < count:
        raise DevBrokerError(f"fewer than {count} ports are free between {_LOWEST} and {_HIGHEST} on {HOST}")
    return found


def broker_answers(port: int, *, timeout: float = 1.0) -> bool:
    """Say whether a Kafka broker on ``port`` answers an ApiVersions request.

    The request is a dozen bytes of its oldest version, which every broker understands; that keeps this
    package free of the client that is tested with it.
    """
    correlation = 0x50454E53
    body = struct.pack(">hhih", _API_VERSIONS, 0, correlation, -1)
    try:
        with contextlib.closing(socket.create_connection((HOST, port), timeout=timeout)) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = b""
            while len(answer) < 10:
                chunk = connection.recv(64)
                if not chunk:
                    return False
                answer += chunk
    except OSError:
        return False
    _size, echoed, error_code = struct.unpack_from(">iih", answer)
    return bool(echoed == correlation and error_code == 0)

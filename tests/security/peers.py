# SPDX-License-Identifier: Apache-2.0
"""Peers that refuse a client, each with the options of the client that it refuses."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from fix_patience import closed_port
from security.oauth.provider import running_provider
from security.proxies import http, listening, socks5
from security.tls.certificates import Made, server_context, the_ca

from penstock.testing import FakeKafka, FakeSecurity, Fault

Options = dict[str, Any]
Peer = Callable[[Path], AbstractContextManager[Options]]

SECRET = "S3cret-of-the-test"
V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


def without(*names: str) -> Options:
    return dict.fromkeys(names)


def fake(
    security: FakeSecurity,
    client_side: FakeSecurity | None = None,
    fault: Fault | None = None,
    release: str | None = None,
    **changes: Any,
) -> Peer:
    """A fake cluster, and a client that has other options than its broker wants, or writes other options."""

    @contextmanager
    def serve(folder: Path) -> Iterator[Options]:
        del folder
        of_release = {} if release is None else {"release": release}
        with FakeKafka(topics={"orders": 1}, security=security, **of_release) as kafka:
            if fault is not None:
                kafka.add_fault(fault)
            options: Options = {"bootstrap.servers": kafka.bootstrap_servers}
            options |= (client_side or security).client_options()
            options |= {name.replace("_", "."): value for name, value in changes.items()}
            yield {name: value for name, value in options.items() if value is not None}

    return serve


def tls(
    broker: Made | None = None,
    *,
    trusted: str | None = None,
    identity: Made | None = None,
    versions: str = "TLSv1.2,TLSv1.3",
    revocations: str | None = None,
    more: Mapping[str, Any] | None = None,
    **server: Any,
) -> Peer:
    """A fake cluster with a certificate of the tests' authority, trusted unless it is told otherwise."""

    @contextmanager
    def serve(folder: Path) -> Iterator[Options]:
        security = FakeSecurity(protocol="SSL", tls=server_context(broker, **server))
        with FakeKafka(topics={"orders": 1}, security=security) as kafka:
            options: Options = {
                "bootstrap.servers": kafka.bootstrap_servers,
                "security.protocol": "SSL",
                "ssl.truststore.certificates": the_ca().pem if trusted is None else trusted,
                "ssl.enabled.protocols": versions,
                **(more or {}),
            }
            if revocations is not None:
                (folder / "crl.pem").write_text(revocations)
                options["ssl.crl.location"] = str(folder / "crl.pem")
            if identity is not None:
                (folder / "client.pem").write_text(identity.key_pem() + identity.pem)
                options["ssl.keystore.location"] = str(folder / "client.pem")
            yield {name: value for name, value in options.items() if value}

    return serve


def scripted(serve: Callable[[socket.socket], None], **options: Any) -> Peer:
    """A peer that does what a function does with each connection."""

    @contextmanager
    def run(folder: Path) -> Iterator[Options]:
        del folder
        with listening(serve) as port:
            dotted = {name.replace("_", "."): value for name, value in options.items()}
            yield {"bootstrap.servers": f"localhost:{port}", **dotted}

    return run


def silent(connection: socket.socket) -> None:
    """Takes what comes, and never answers."""
    while connection.recv(65536):
        pass


def hangs_up(connection: socket.socket) -> None:
    """Closes at the first byte."""
    connection.recv(1)


def speaks_http(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def tokens(**answer: Any) -> Peer:
    """A provider of tokens that answers so, and a fake cluster that wants one."""

    @contextmanager
    def serve(folder: Path) -> Iterator[Options]:
        with contextlib.ExitStack() as stack:
            provider = stack.enter_context(running_provider())
            provider.answers.append((answer["status"], answer["content"]))
            security = FakeSecurity(protocol="SASL_PLAINTEXT", mechanisms=("OAUTHBEARER",))
            options = stack.enter_context(fake(security)(folder))
            del options["sasl.jaas.config"]
            yield options | {
                "sasl.oauthbearer.token.endpoint.url": provider.url,
                "sasl.oauthbearer.client.id": "me",
                "sasl.oauthbearer.client.secret": SECRET,
                "sasl.login.retry.backoff.max.ms": "500",
            }

    return serve


def through(
    proxy: Callable[..., Callable[[socket.socket], None]] | Callable[[socket.socket], None],
    scheme: str,
    login: str = "",
    **arguments: Any,
) -> Peer:
    """A plain broker behind a proxy. It knows no name; arguments are who may use it."""

    @contextmanager
    def serve(folder: Path) -> Iterator[Options]:
        del folder
        made = proxy({}, **arguments) if proxy in (http, socks5) else proxy  # type: ignore[arg-type]
        with listening(made) as port:
            yield {
                "bootstrap.servers": "broker.example:9092",
                "proxy.url": f"{scheme}://{login}127.0.0.1:{port}",
            }

    return serve


def nobody(**options: Any) -> Peer:
    """A port at which nobody listens."""

    @contextmanager
    def serve(folder: Path) -> Iterator[Options]:
        del folder
        dotted = {name.replace("_", "."): value for name, value in options.items()}
        with closed_port() as port:
            yield {
                name: value.format(port=port) if isinstance(value, str) else value
                for name, value in {"bootstrap.servers": "localhost:{port}", **dotted}.items()
            }

    return serve

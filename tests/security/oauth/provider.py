# SPDX-License-Identifier: Apache-2.0
"""A small OIDC provider on this machine."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs


class Provider:
    """Answers with what is put into `answers`; the last one is repeated."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[dict[str, str], dict[str, str]]] = []

    def answer(self, headers: dict[str, str], form: dict[str, str]) -> tuple[int, Any]:
        self.asked.append((headers, form))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


@contextmanager
def running_provider(method: str = "POST", tls: ssl.SSLContext | None = None) -> Iterator[Provider]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            form = {name: values[0] for name, values in parse_qs(text).items()}
            status, content = provider.answer(dict(self.headers), form)
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", f"{provider.url}/elsewhere")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    setattr(Handler, f"do_{method}", Handler.answer)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    port = server.server_address[1]
    provider = Provider(
        f"http://127.0.0.1:{port}/token" if tls is None else f"https://localhost:{port}/token"
    )
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)

# SPDX-License-Identifier: Apache-2.0
"""Authenticates the connections of one client: keeps its credentials, makes a handshake for each connection."""

from __future__ import annotations

from penstock.protocol.requests import NodeApiVersions
from penstock.security.sasl.handshake import SaslHandshake
from penstock.security.sasl.mechanism import mechanism_factory
from penstock.security.sasl.settings import SaslSettings
from penstock.types import Node


class Authenticator:
    """One for each client. `handshake` is its `NetworkBackend.authenticate`.

    Raises:
        ConfigError: the mechanism is not known, or the settings lack what it needs.
    """

    def __init__(self, settings: SaslSettings) -> None:
        self._mechanism = settings.mechanism
        self._credentials = mechanism_factory(settings.mechanism)(settings)

    def handshake(self, node: Node, versions: NodeApiVersions) -> SaslHandshake:
        """The dialogue for a new connection, or for an old one whose session ends. Does not block."""
        return SaslHandshake(node, versions, self._credentials.mechanism(node.host))

    def close(self) -> None:
        """Stop what runs in the background, without waiting for it. Twice is harmless."""
        self._credentials.close()

    def __repr__(self) -> str:
        return f"<Authenticator {self._mechanism}>"

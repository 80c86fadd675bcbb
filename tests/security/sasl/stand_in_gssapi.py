# SPDX-License-Identifier: Apache-2.0
"""Stands for the package gssapi: the calls that ours makes, with a broker's side in memory."""

from __future__ import annotations

import types
from typing import Any, NamedTuple


class GSSError(Exception):
    pass


class Wrapped(NamedTuple):
    message: bytes
    encrypted: bool


class World:
    """What happened, and what shall go wrong."""

    def __init__(self) -> None:
        self.targets: list[str] = []
        self.credentials: list[dict[str, Any]] = []
        self.fail_step: str | None = None
        self.rounds = 2


def make_module(world: World) -> types.ModuleType:
    """The module, acting on that world."""
    module = types.ModuleType("gssapi")

    class Name:
        def __init__(self, text: str, name_type: str) -> None:
            self.text = text
            self.kind = name_type

        def __str__(self) -> str:
            return self.text

    class Credentials:
        def __init__(self, usage: str, name: Name | None, store: dict[str, str] | None) -> None:
            world.credentials.append({"usage": usage, "name": name and str(name), "store": store})

    class SecurityContext:
        def __init__(self, name: Name, usage: str, creds: Credentials | None, mech: str) -> None:
            assert (name.kind, usage, mech) == ("hostbased", "initiate", "krb5")
            world.targets.append(str(name))
            self.complete = False
            self.initiator_name = "cached@REALM"
            self._round = 0

        def step(self, token: bytes | None = None) -> bytes | None:
            if world.fail_step:
                raise GSSError(world.fail_step)
            assert token is None or token.startswith(b"server-")
            self._round += 1
            self.complete = self._round >= world.rounds
            return None if self.complete and world.rounds > 1 else b"client-%d" % self._round

        def unwrap(self, message: bytes) -> Wrapped:
            if not message.startswith(b"W:"):
                raise GSSError("A token had an invalid Message Integrity Check (MIC)")
            return Wrapped(message[2:], False)

        def wrap(self, message: bytes, encrypt: bool) -> Wrapped:
            assert encrypt is False
            return Wrapped(b"W:" + message, False)

    module.Name = Name  # type: ignore[attr-defined]
    module.Credentials = Credentials  # type: ignore[attr-defined]
    module.SecurityContext = SecurityContext  # type: ignore[attr-defined]
    module.NameType = types.SimpleNamespace(hostbased_service="hostbased", kerberos_principal="principal")  # type: ignore[attr-defined]
    module.MechType = types.SimpleNamespace(kerberos="krb5")  # type: ignore[attr-defined]
    module.exceptions = types.SimpleNamespace(GSSError=GSSError)  # type: ignore[attr-defined]
    return module

# SPDX-License-Identifier: Apache-2.0
"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), also with delegation tokens.

Rules:
1. The password is used as it is, in UTF-8: brokers do not prepare it (SASLprep), so neither is it done here.
2. What the broker says is checked before anything is computed from it. Too few iterations would let a false broker
   guess the password from the proof; too many would keep this machine busy for as long as it likes.
3. The broker must prove that it knows the password as well, or the authentication fails although it was satisfied.
4. Keys are derived once for each salt and number of iterations, and kept by the client: a new connection, or a new
   authentication on an old one, then costs nothing. Deriving blocks, so a mechanism is never run on the I/O thread.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from penstock._locks import new_lock
from penstock.errors import AuthenticationError, ConfigError
from penstock.security.quoting import quoted
from penstock.security.sasl.plain import user_and_password
from penstock.security.sasl.settings import SaslSettings

FEWEST_ITERATIONS: Final = 4096
MOST_ITERATIONS: Final = 1_000_000
# One salt for each user is usual; a broker that has another one for each connection must not fill the memory.
MOST_KEYS: Final = 16
# Of what the broker says at a time. Real ones say less than 200 bytes.
MOST_BYTES: Final = 4096

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NO_BINDING: Final = "n,,"
_NO_BINDING_BASE64: Final = "biws"
_SERVER_FIRST: Final = re.compile(
    r"r=([\x21-\x2b\x2d-\x7e]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,9})(?:,.*)?", re.DOTALL
)


class ScramKeys(NamedTuple):
    """What is derived from the password; as secret as it is."""

    client_key: bytes
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return "<ScramKeys>"


# Gives the keys for a salt and a number of iterations.
KeysOf = Callable[[bytes, int], ScramKeys]


def derive_keys(hash_name: str, password: bytes, salt: bytes, iterations: int) -> ScramKeys:
    """The keys of RFC 5802. Takes milliseconds to a second, and gives up the interpreter lock meanwhile."""
    salted = hashlib.pbkdf2_hmac(hash_name, password, salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    return ScramKeys(client_key, stored_key, hmac.digest(salted, b"Server Key", hash_name))


class ScramCredentials:
    """User, password and the keys derived from it.

    User and password are read again for each authentication: they may have been replaced where they are kept.
    """

    def __init__(self, settings: SaslSettings) -> None:
        self._name = settings.mechanism.upper()
        self._hash_name = _HASHES[self._name]
        self._settings = settings
        self._user, _ = self._user_and_password()
        self._token_auth = settings.token_auth
        self._lock: Any = new_lock()
        self._keys: dict[tuple[bytes, bytes, int], ScramKeys] = {}  # the oldest first; under the lock

    def mechanism(self, host: str) -> ScramMechanism:  # the same for every broker
        return ScramMechanism(
            self._name, self._user, self._hash_name, self.login, token_auth=self._token_auth
        )

    def login(self) -> tuple[str, KeysOf]:
        """The user, and what gives the keys of the password, as both are now.

        Raises:
            AuthenticationError: they were replaced by what cannot be sent.
        """
        try:
            user, password = self._user_and_password()
        except ConfigError as error:
            raise AuthenticationError(str(error), mechanism=self._name, user=self._user) from None
        return user, partial(self.keys, password.encode())

    def _user_and_password(self) -> tuple[str, str]:
        user, password = user_and_password(self._settings)
        if not user.isascii():
            raise ConfigError(
                f"the user name {user!r} has characters outside ASCII: Kafka refuses them with SCRAM "
                "(with PLAIN it does not)",
                "sasl.username",
            )
        return user, password

    def keys(self, password: bytes, salt: bytes, iterations: int) -> ScramKeys:
        """The keys, derived at the first time."""
        with self._lock:
            known = self._keys.get((password, salt, iterations))
        if known is None:
            known = derive_keys(self._hash_name, password, salt, iterations)
            with self._lock:
                self._keys[password, salt, iterations] = known
                while len(self._keys) > MOST_KEYS:
                    del self._keys[next(iter(self._keys))]
        return known

    def close(self) -> None:
        """Do nothing: no thread and no file is open."""

    def __repr__(self) -> str:
        return f"<ScramCredentials of {self._user!r}>"


class ScramMechanism:
    """One dialogue: two tokens of the client, two of the broker.

    Args:
        name: of the mechanism.
        user: for errors before the first token.
        hash_name: in the words of hashlib.
        login: gives the user, and what gives the keys.
        token_auth: user and password are those of a delegation token.
        nonce: of the client; a new one where none is given. For tests.
    """

    def __init__(
        self,
        name: str,
        user: str,
        hash_name: str,
        login: Callable[[], tuple[str, KeysOf]],
        *,
        token_auth: bool = False,
        nonce: str | None = None,
    ) -> None:
        self.name = name
        self.user = user
        self.advice = (
            "check the id and the HMAC of the delegation token, and that it has not expired"
            if token_auth
            else f"check the user name and the password, and that the user has a credential for {name} on the broker "
            "(kafka-configs --describe --entity-type users): one for the other SCRAM mechanism does not serve"
        )
        self._hash_name = hash_name
        self._login = login
        self._keys: KeysOf | None = None  # known with the first token, as the next
        self._bare = ""
        self._token_auth = token_auth
        self._nonce = secrets.token_urlsafe(24) if nonce is None else nonce
        self._step = self._answer_first
        self._signature = b""

    def first(self) -> bytes:
        """The user, and a nonce.

        Raises:
            AuthenticationError: user or password were replaced by what cannot be sent.
        """
        self.user, self._keys = self._login()
        escaped = self.user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={self._nonce}" + (",tokenauth=true" if self._token_auth else "")
        return f"{_NO_BINDING}{self._bare}".encode("ascii")

    def next(self, challenge: bytes) -> bytes | None:
        """Prove that we know the password; then let the broker prove the same.

        Raises:
            AuthenticationError: the broker breaks the rules of SCRAM, or does not know the password.
        """
        if len(challenge) > MOST_BYTES:
            raise self._error(f"the broker sent {len(challenge)} bytes, where SCRAM needs some hundred")
        return self._step(challenge)

    def _answer_first(self, challenge: bytes) -> bytes | None:
        server_first = self._text(challenge)
        if server_first.startswith("m="):
            raise self._error("the broker asks for an extension of SCRAM that this client does not know")
        found = _SERVER_FIRST.fullmatch(server_first)
        if found is None:
            raise self._error(f"the broker's first message is not one of SCRAM: {quoted(server_first)}")
        nonce, salt_text, iterations_text = found.groups()
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise self._error(
                "the broker did not add to the nonce that it was sent: the answer is not meant for this connection"
            )
        salt = self._decoded(salt_text, "salt")
        iterations = int(iterations_text)
        self._check_iterations(iterations)
        assert self._keys is not None
        keys = self._keys(salt, iterations)
        without_proof = f"c={_NO_BINDING_BASE64},r={nonce}"
        auth_message = f"{self._bare},{server_first},{without_proof}".encode("ascii")
        client_signature = hmac.digest(keys.stored_key, auth_message, self._hash_name)
        proof = bytes(a ^ b for a, b in zip(keys.client_key, client_signature, strict=True))
        self._signature = hmac.digest(keys.server_key, auth_message, self._hash_name)
        self._step = self._check_final
        return f"{without_proof},p={base64.b64encode(proof).decode('ascii')}".encode("ascii")

    def _check_final(self, challenge: bytes) -> bytes | None:
        server_final = self._text(challenge)
        if server_final.startswith("e="):
            raise self._error(f"the broker refused: {quoted(server_final[2:])}. {self.advice.capitalize()}")
        if not server_final.startswith("v="):
            raise self._error(f"the broker's last message is not one of SCRAM: {quoted(server_final)}")
        signature = self._decoded(server_final[2:].partition(",")[0], "signature")
        if not hmac.compare_digest(signature, self._signature):
            raise self._error(
                "the broker did not prove that it knows the password: something else answers in its place, or "
                "changes what is sent. Check bootstrap.servers, and use TLS (security.protocol=SASL_SSL)"
            )
        self._step = self._nothing_more
        return None

    def _nothing_more(self, challenge: bytes) -> bytes | None:
        raise self._error(f"the broker sent {len(challenge)} bytes after the exchange had ended")

    def _check_iterations(self, iterations: int) -> None:
        if iterations < FEWEST_ITERATIONS:
            raise self._error(
                f"the broker asks for {iterations} iterations; fewer than {FEWEST_ITERATIONS} are not safe. Give the "
                "user a new credential with more (kafka-configs --alter --add-config "
                f"'{self.name}=[iterations=8192,password=...]')"
            )
        if iterations > MOST_ITERATIONS:
            raise self._error(
                f"the broker asks for {iterations} iterations; more than {MOST_ITERATIONS} are not computed: Kafka "
                "itself makes no credential with more than 16384"
            )

    def _text(self, challenge: bytes) -> str:
        try:
            return challenge.decode("ascii")
        except UnicodeDecodeError:
            raise self._error("the broker's message is not ASCII, and so not one of SCRAM") from None

    def _decoded(self, text: str, what: str) -> bytes:
        try:
            value = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            value = b""
        if not value:
            raise self._error(f"the broker's {what} is not base64: {quoted(text)}")
        return value

    def _error(self, text: str) -> AuthenticationError:
        return AuthenticationError(text, mechanism=self.name, user=self.user)

    def __repr__(self) -> str:
        return f"<ScramMechanism {self.name} of {self.user!r}>"

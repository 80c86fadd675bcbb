# SPDX-License-Identifier: Apache-2.0
"""Trust and identity as an SSLContext, built from the settings and built anew when a file has changed.

Files are distinguished by what they hold: Java reads PKCS#12 under the type JKS and the other way round, so most files
called .jks are none. A type or a password that is given must fit what the file holds. What cannot be read is a
ConfigError with the option, the file and the place.
"""

from __future__ import annotations

import binascii
import logging
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NoReturn

from penstock._events import Event, tell
from penstock._locks import Latch
from penstock.config.files import UnreadableError, read_file
from penstock.config.kinds import Password
from penstock.config.names import in_written_words
from penstock.errors import ConfigError
from penstock.security.tls import jks, pem, pkcs12
from penstock.security.tls.ciphers import use_ciphers
from penstock.security.tls.material import (
    MOST_BYTES,
    Certificate,
    ClientContext,
    Identity,
    StoreError,
    as_file,
    pem_of,
)
from penstock.security.tls.settings import TlsSettings

_logger = logging.getLogger("penstock.security")

# A file when it was read: when it and what is known of it (who may read it) were changed, how large it is, which one it
# is; None where it is not there. Or a text that stands elsewhere, as it was then.
_Stamp = tuple[int, int, int, int] | Password | None

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# What OpenSSL calls a certificate in a directory.
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")
# A large CA revokes a hundred thousand certificates.
_MOST_REVOCATIONS: Final = 16 * 1024 * 1024
# OpenSSL takes no longer one.
_MOST_PASSWORD: Final = 1024
# Seconds after which a look at the files is taken for lost.
_GIVEN_UP: Final = 60.0

_TRUST: Final = "ssl.truststore.location"
_TRUST_TEXT: Final = "ssl.truststore.certificates"
_TRUST_PASSWORD: Final = "ssl.truststore.password"  # noqa: S105 - the name of an option
_TRUST_TYPE: Final = "ssl.truststore.type"
_STORE: Final = "ssl.keystore.location"
_STORE_PASSWORD: Final = "ssl.keystore.password"  # noqa: S105
_STORE_TYPE: Final = "ssl.keystore.type"
_KEY_TEXT: Final = "ssl.keystore.key"
_CHAIN_TEXT: Final = "ssl.keystore.certificate.chain"
_KEY_FILE: Final = "ssl.key.location"
_CHAIN_FILE: Final = "ssl.certificate.location"
_KEY_PASSWORD: Final = "ssl.key.password"  # noqa: S105
_CRL: Final = "ssl.crl.location"


class TlsContext:
    """The SSLContext of a client. Built when the client is made, so that a wrong file is an error then.

    Afterwards files are looked at aside: they may be on a machine that is down, and the key of a store may take seconds
    to be derived. `current` belongs to the I/O thread.

    Args:
        settings: what to trust, and who the client is.
        run_aside: runs a function where it may block; None runs it here.
        patience: seconds that `current` waits for files to be looked at. What takes longer serves the next connection.

    Raises:
        ConfigError: a file cannot be read, or does not hold what it should.
    """

    def __init__(
        self,
        settings: TlsSettings,
        run_aside: Callable[[Callable[[], None]], None] | None = None,
        patience: float = 0.1,
    ) -> None:
        self._settings = settings
        self._run_aside = run_aside
        self._patience = patience
        self._stamps = self._look()
        self._context = _build(settings)  # replaced aside
        # Of the latest look; its owner alone replaces the context. A Latch: the I/O thread waits at it.
        self._looked = Latch()
        self._looked.set()
        self._looking_since = 0.0
        self._wrong = (
            ""  # why what is there now cannot be used; "" where it is in use. Written with the context
        )

    def current(self) -> ssl.SSLContext:
        """The context for a new connection. Changed files are read.

        Where that fails, what was read before stays, and each new connection tries again: the rest of what belongs to
        a new file, such as its password, may come later.
        """
        now = time.monotonic()
        under_way = not self._looked.is_set() and now - self._looking_since < _GIVEN_UP
        if self._stamps and not under_way:
            looked = self._looked = Latch()
            self._looking_since = now
            if self._run_aside is None:
                self._refresh(looked)
            else:
                self._run_aside(partial(self._refresh, looked))
                looked.wait(self._patience)
        return self._context

    def _refresh(self, looked: Latch) -> None:
        """Look whether a file has changed, and read all anew where one has, or could not be used the last time."""
        try:
            stamps = self._look()
            if stamps == self._stamps and not self._wrong:
                return
            context, wrong = self._context, ""
            try:
                context = _build(self._settings)
            except ConfigError as error:
                wrong = str(error)
            if looked is not self._looked:
                return  # it took so long that another look has been begun
            before = self._wrong
            self._context, self._stamps, self._wrong = context, stamps, wrong
            if not wrong:
                tell(_logger, logging.INFO, Event.TLS_FILES_READ, "Read changed TLS files anew")
            elif wrong != before:
                text = "A changed file cannot be used, what was read before stays in use: %s"
                tell(_logger, logging.WARNING, Event.TLS_FILES_REFUSED, text, wrong)
            else:
                text = "A changed file still cannot be used: %s"
                tell(_logger, logging.DEBUG, Event.TLS_FILES_REFUSED, text, wrong)
        finally:
            looked.set()

    def _look(self) -> tuple[_Stamp, ...]:
        settings = self._settings
        if settings.ready_context is not None:
            return ()
        places = (
            settings.trust_location,
            settings.store_location,
            settings.key_location,
            settings.certificate_location,
            settings.crl_location,
        )
        # Passwords are not among them: what they open was read, or is tried again.
        texts = (settings.trust_pem, settings.key_pem, settings.certificate_pem)
        return (
            *(_stamp(place) for place in places if place is not None),
            *(Password(text.value) for text in texts if text is not None and text.is_read_anew),
        )

    def __repr__(self) -> str:
        return f"<TlsContext for {self._settings!r}>"


def _stamp(place: str) -> _Stamp:
    try:
        found = os.stat(place)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


def _build(settings: TlsSettings) -> ssl.SSLContext:
    if settings.ready_context is not None:
        return settings.ready_context
    context = ClientContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.check_hostname
    # Renegotiation is a way to keep a client busy, and no broker needs it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # As in Java, a trusted certificate need not have signed itself. And the same for all versions of Python: from 3.13
    # on its default is stricter, and refuses certificates that brokers have.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    _use_versions(context, settings)
    with in_written_words(settings.written):
        use_ciphers(context, settings.cipher_suites)
        _use_trust(context, settings)
        _use_revocations(context, settings)
        _use_identity(context, settings)
    return context


def _use_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    allowed = [_VERSIONS[name] for name in settings.enabled_protocols]
    context.minimum_version = min(allowed)
    context.maximum_version = min(max(allowed), _VERSIONS[settings.protocol])


# ------------------------------------------------------------------------------------------ trust


def _use_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    place = settings.trust_location
    if settings.trust_pem is not None:
        try:
            _trust(context, pem.certificates(pem.blocks_of(settings.trust_pem.value)))
        except StoreError as error:
            _fail(_TRUST_TEXT, None, error)
    elif place is None:
        context.load_default_certs()
    else:
        try:
            if os.path.isdir(place):
                _check_kind("a directory of PEM files", settings.trust_type, settings.trust_password)
                _use_directory(context, place)
            else:
                data = _read(_TRUST, place)
                _check_kind(_kind(data), settings.trust_type, settings.trust_password)
                _trust(context, _trusted(data, _value(settings.trust_password)))
        except StoreError as error:
            blamed = {"password": _TRUST_PASSWORD, "type": _TRUST_TYPE}
            _fail(blamed.get(error.blame, _TRUST), place, error)


def _trusted(data: bytes, password: str | None) -> Sequence[Certificate]:
    found: Sequence[Certificate]
    kind = _kind(data)
    if kind == _JKS:
        store = jks.read_jks(data, password)
        # Java trusts the certificate of a key in a trust store as well.
        found = [*store.trusted, *(key.chain[0] for key in store.keys if key.chain)]
    elif kind == _PEM:
        found = pem.certificates(pem.blocks_of(_text(data)))
    elif kind == _PKCS12:
        found = pkcs12.read_trusted(data, password)
    else:
        found = [Certificate("the certificate", data)]
    if not found:
        raise StoreError("there is no certificate in it")
    return found


def _trust(context: ssl.SSLContext, certificates: Sequence[Certificate]) -> None:
    for certificate in certificates:
        try:
            context.load_verify_locations(cadata=certificate.der)
        except (ssl.SSLError, ValueError):
            raise StoreError(f"{certificate.place} is damaged, or not an X.509 certificate") from None


def _use_directory(context: ssl.SSLContext, place: str) -> None:
    try:
        hashed = any(_HASHED.fullmatch(name) for name in os.listdir(place))
        if hashed:
            context.load_verify_locations(capath=place)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{_TRUST}: the directory {place!r} cannot be read: {error}", _TRUST) from error
    if not hashed:
        raise ConfigError(
            f"{_TRUST}: the directory {place!r} has no certificates as OpenSSL names them; `openssl rehash` makes "
            "them. Or give a file.",
            _TRUST,
        )


def _use_revocations(context: ssl.SSLContext, settings: TlsSettings) -> None:
    place = settings.crl_location
    if place is None:
        return
    data = _read(_CRL, place, _MOST_REVOCATIONS)
    try:
        text = pem.revocation_lists(pem.blocks_of(_text(data)))
        with as_file(text) as name:
            context.load_verify_locations(cafile=name)
    except StoreError as error:
        _fail(_CRL, place, error)
    except ssl.SSLError:
        _fail(_CRL, place, StoreError("a revocation list in it is damaged"))
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


# ------------------------------------------------------------------------------------------ identity


def _use_identity(context: ClientContext, settings: TlsSettings) -> None:
    if settings.store_location is not None:
        option, place = _STORE, settings.store_location
    elif settings.key_pem is not None:
        option, place = _KEY_TEXT, None
    elif settings.certificate_location is not None or settings.key_location is not None:
        option = _CHAIN_FILE if settings.key_location is None else _KEY_FILE
        place = settings.key_location or settings.certificate_location
    else:
        return
    try:
        _load_identity(context, _identity(settings))
    except StoreError as error:
        blamed = {"key password": _KEY_PASSWORD, "password": _STORE_PASSWORD, "type": _STORE_TYPE}
        _fail(blamed.get(error.blame, option), place, error)


def _identity(settings: TlsSettings) -> Identity:
    password = _value(settings.key_password)
    if settings.store_location is not None:
        data = _read(_STORE, settings.store_location)
        _check_kind(_kind(data), settings.store_type, settings.store_password)
        return _stored_identity(data, _value(settings.store_password), password)
    if settings.key_pem is not None:
        key = pem.blocks_of(settings.key_pem.value)
        chain = settings.certificate_pem
        return pem.identity(key, key if chain is None else _chain_of(chain), password)
    blocks = [
        pem.blocks_of(_text(_read(option, place)))
        for option, place in (
            (_KEY_FILE, settings.key_location),
            (_CHAIN_FILE, settings.certificate_location),
        )
        if place is not None
    ]
    return pem.identity(blocks[0], blocks[-1], password)


def _chain_of(text: Password) -> list[pem.Block]:
    try:
        blocks = pem.blocks_of(text.value)
        pem.certificates(blocks)
    except StoreError as error:
        _fail(_CHAIN_TEXT, None, error)
    return blocks


def _stored_identity(data: bytes, password: str | None, key_password: str | None) -> Identity:
    kind = _kind(data)
    if kind == _PEM:
        blocks = pem.blocks_of(_text(data))
        return pem.identity(blocks, blocks, key_password)
    if kind == _PKCS12:
        if password is not None and key_password is not None and password != key_password:
            raise StoreError(
                "in a PKCS#12 store the key has the password of the store, but another one is given: leave it out",
                "key password",
            )
        return pkcs12.read_identity(data, password if password is not None else key_password)
    if kind != _JKS:
        raise StoreError("it is a certificate; a key store has the private key as well")
    keys = jks.read_jks(data, password).keys
    if not keys:
        raise StoreError("there is no private key in it; is it a trust store?")
    if len(keys) > 1:
        names = ", ".join(repr(key.alias) for key in keys[:10])
        raise StoreError(
            f"there are {len(keys)} private keys in it ({names}), and it is not known which one is meant"
        )
    secret = key_password if key_password is not None else password
    if secret is None:
        raise StoreError("its password is needed", "password")
    key = keys[0].unlock(secret)
    return Identity(pem_of("PRIVATE KEY", _base64(key)), None, keys[0].chain)


def _load_identity(context: ClientContext, identity: Identity) -> None:
    password = b"" if identity.password is None else identity.password.encode(errors="surrogatepass")
    if len(password) > _MOST_PASSWORD:
        raise StoreError(f"the password of the key is longer than {_MOST_PASSWORD} bytes", "key password")
    if not identity.chain:
        raise StoreError("there is no certificate for the private key in it")
    chain = "".join(pem_of("CERTIFICATE", _base64(each.der)) for each in identity.chain)
    try:
        with as_file(identity.key + chain) as name:
            # Without a password OpenSSL would ask for one on the terminal.
            context.load_cert_chain(name, password=password)
    except ssl.SSLError as error:
        # No cause: nobody can tell what its text holds.
        raise _why_no_identity(error.reason or "", identity) from None
    except (ValueError, OSError) as error:
        raise StoreError(f"the key cannot be loaded: {type(error).__name__}") from None
    context.own = identity.chain


def _why_no_identity(reason: str, identity: Identity) -> StoreError:
    if reason == "KEY_VALUES_MISMATCH":
        return StoreError(
            f"the private key does not belong to the first certificate ({identity.chain[0].place}); the own one must "
            "stand first"
        )
    if identity.password is not None:
        return StoreError("the password of the private key is wrong, or the key is damaged", "key password")
    words = reason.replace("_", " ").lower()
    return StoreError(
        "the private key or a certificate of its chain is damaged" + (f": {words}" if words else "")
    )


# ------------------------------------------------------------------------------------------ files


def _read(option: str, place: str, most: int = MOST_BYTES) -> bytes:
    """The bytes of a file.

    Raises:
        ConfigError: it cannot be read, is too large, or no file at all.
    """
    try:
        data = read_file(place, most)
    except UnreadableError as error:
        raise ConfigError(f"{option}: {place!r} {error}", option) from None
    if not data.strip():
        raise ConfigError(f"{option}: {place!r} is empty", option)
    return data


# What a file can be. One certificate in DER is not a store, but is trusted.
_PEM: Final = "PEM"
_JKS: Final = "JKS"
_PKCS12: Final = "PKCS#12"
_DER: Final = "a certificate in DER"


def _kind(data: bytes) -> str:
    """What a file holds.

    Raises:
        StoreError: nothing that is known.
    """
    if data.startswith(jks.MAGIC):
        return _JKS
    if pem.looks_like_pem(data):
        return _PEM
    if pkcs12.looks_like_pkcs12(data):
        return _PKCS12
    if data[:1] == b"\x30":
        return _DER
    if data.startswith(jks.JCEKS_MAGIC):
        raise StoreError(
            "it is a JCEKS store, which only Java reads. Convert it: keytool -importkeystore -srckeystore FILE "
            "-srcstoretype JCEKS -destkeystore store.p12 -deststoretype PKCS12"
        )
    raise StoreError(f"it is neither PEM nor JKS nor PKCS#12; it begins with the bytes {data[:4].hex(' ')}")


def _check_kind(kind: str, declared: str | None, password: Password | None) -> None:
    """Refuse a declared type that does not fit, and a password that would have no effect."""
    has_password = kind in (_JKS, _PKCS12)
    if declared is not None and (declared != _PEM) != has_password:
        # Java reads JKS and PKCS#12 under both names.
        fitting = "JKS or PKCS12" if has_password else "PEM"
        raise StoreError(
            f"it is {kind}, but the type is {declared}: set it to {fitting}, or leave it out", "type"
        )
    if password is not None and not has_password:
        raise StoreError(f"it is {kind}, which has no password of its own: leave it out", "password")


def _text(data: bytes) -> str:
    # Around the blocks there may be anything; in them is ASCII, or they do not decode.
    return data.decode("latin-1")


def _value(password: Password | None) -> str | None:
    return None if password is None else password.value


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode()


def _fail(option: str, place: str | None, error: StoreError) -> NoReturn:
    where = "" if place is None else f"{place!r}: "
    raise ConfigError(f"{option}: {where}{error}", option) from None

# SPDX-License-Identifier: Apache-2.0
"""Trust and identity as an SSLContext, built from the settings and built anew when a file has changed.

Files are told apart by what they hold, not by the type that was declared: Java reads PKCS#12 under the type JKS, so
most files called .jks are none. What cannot be read is a ConfigError with the option, the file and the place.
"""

from __future__ import annotations

import binascii
import errno
import logging
import os
import re
import ssl
import stat
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NoReturn

from penstock.config.kinds import Password
from penstock.errors import ConfigError
from penstock.security.tls import jks, pem, pkcs12
from penstock.security.tls.ciphers import use_ciphers
from penstock.security.tls.material import MOST_BYTES, Certificate, Identity, StoreError, as_file, pem_of
from penstock.security.tls.settings import TlsSettings

_logger = logging.getLogger("penstock.security")

# A file when it was read: when it was changed, how large it is, which one it is; None where it is not there.
_Stamp = tuple[int, int, int] | None

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_TOO_OLD: Final = frozenset({"SSLv2", "SSLv2Hello", "SSLv3", "TLSv1", "TLSv1.1"})
# What OpenSSL calls a certificate in a directory.
_HASHED: Final = re.compile(r"[0-9a-f]{8}\.\d+")
# OpenSSL takes no longer one.
_MOST_PASSWORD: Final = 1024
# Seconds after which a look at the files is taken for lost.
_GIVEN_UP: Final = 60.0

_TRUST: Final = "ssl.truststore.location"
_TRUST_TEXT: Final = "ssl.truststore.certificates"
_TRUST_PASSWORD: Final = "ssl.truststore.password"  # noqa: S105 - the name of an option
_STORE: Final = "ssl.keystore.location"
_STORE_PASSWORD: Final = "ssl.keystore.password"  # noqa: S105
_KEY_TEXT: Final = "ssl.keystore.key"
_CHAIN_TEXT: Final = "ssl.keystore.certificate.chain"
_KEY_FILE: Final = "ssl.key.location"
_CHAIN_FILE: Final = "ssl.certificate.location"
_KEY_PASSWORD: Final = "ssl.key.password"  # noqa: S105
_CRL: Final = "ssl.crl.location"


class TlsContext:
    """The SSLContext of a client. Built when the client is made, so that a wrong file is told then.

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
        self._looked = threading.Event()  # of the latest look; its owner alone replaces the context
        self._looked.set()
        self._looking_since = 0.0

    def current(self) -> ssl.SSLContext:
        """The context for a new connection. Changed files are read; where that fails, what was read before stays."""
        now = time.monotonic()
        under_way = not self._looked.is_set() and now - self._looking_since < _GIVEN_UP
        if self._stamps and not under_way:
            looked = self._looked = threading.Event()
            self._looking_since = now
            if self._run_aside is None:
                self._refresh(looked)
            else:
                self._run_aside(partial(self._refresh, looked))
                looked.wait(self._patience)
        return self._context

    def _refresh(self, looked: threading.Event) -> None:
        """Look whether a file has changed, and read all anew where one has."""
        try:
            stamps = self._look()
            if stamps == self._stamps:
                return
            context, wrong = self._context, None
            try:
                context = _build(self._settings)
            except ConfigError as error:
                wrong = error
            if looked is not self._looked:
                return  # it took so long that another look has been begun
            self._context, self._stamps = context, stamps  # good or bad, it is not read again
            if wrong is None:
                _logger.info("Read changed TLS files anew")
            else:
                _logger.warning("A changed file cannot be used, what was read before stays in use: %s", wrong)
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
        return tuple(_stamp(place) for place in places if place is not None)

    def __repr__(self) -> str:
        return f"<TlsContext for {self._settings!r}>"


def _stamp(place: str) -> _Stamp:
    try:
        found = os.stat(place)
    except (OSError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _build(settings: TlsSettings) -> ssl.SSLContext:
    if settings.ready_context is not None:
        return _ready(settings.ready_context)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.check_hostname
    # Renegotiation is a way to keep a client busy, and no broker needs it.
    context.options |= ssl.OP_NO_RENEGOTIATION
    # As in Java, a trusted certificate need not have signed itself. And the same for all versions of Python: from 3.13
    # on its default is stricter, and refuses certificates that brokers have.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    _use_versions(context, settings)
    use_ciphers(context, settings.cipher_suites)
    _use_trust(context, settings)
    _use_revocations(context, settings)
    _use_identity(context, settings)
    return context


def _ready(given: Any) -> ssl.SSLContext:
    if not isinstance(given, ssl.SSLContext) or given.protocol == ssl.PROTOCOL_TLS_SERVER:
        raise ConfigError("ssl_context must be an ssl.SSLContext for clients", "ssl_context")
    return given


def _use_versions(context: ssl.SSLContext, settings: TlsSettings) -> None:
    # "TLS" and "SSL" are Java's words for whatever is newest.
    newest = "TLSv1.3" if settings.protocol in ("TLS", "SSL") else settings.protocol
    for option, names in (
        ("ssl.protocol", (newest,)),
        ("ssl.enabled.protocols", settings.enabled_protocols),
    ):
        for name in names:
            if name in _TOO_OLD:
                raise ConfigError(
                    f"{option}: {name} is not safe and not supported; brokers have had TLSv1.2 since Kafka 0.9. Who "
                    "needs it nevertheless can give an ssl_context.",
                    option,
                )
            if name not in _VERSIONS:
                raise ConfigError(
                    f"{option}: {name!r} is not known; there are {', '.join(_VERSIONS)}", option
                )
    allowed = [_VERSIONS[name] for name in settings.enabled_protocols if _VERSIONS[name] <= _VERSIONS[newest]]
    if not allowed:
        raise ConfigError(
            f"no version of TLS is left: ssl.protocol is {settings.protocol}, the newest that may be used, and "
            f"ssl.enabled.protocols is {','.join(settings.enabled_protocols) or 'empty'}",
            "ssl.enabled.protocols",
            ("ssl.enabled.protocols", "ssl.protocol"),
        )
    context.minimum_version, context.maximum_version = min(allowed), max(allowed)


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
    elif os.path.isdir(place):
        _use_directory(context, place)
    else:
        data = _read(_TRUST, place)
        try:
            _trust(context, _trusted(data, _value(settings.trust_password)))
        except StoreError as error:
            _fail(_TRUST_PASSWORD if error.blame == "password" else _TRUST, place, error)


def _trusted(data: bytes, password: str | None) -> Sequence[Certificate]:
    found: Sequence[Certificate]
    if data.startswith(jks.MAGIC):
        store = jks.read_jks(data, password)
        # Java trusts the certificate of a key in a trust store as well.
        found = [*store.trusted, *(key.chain[0] for key in store.keys if key.chain)]
    elif pem.looks_like_pem(data):
        found = pem.certificates(pem.blocks_of(_text(data)))
    elif pkcs12.looks_like_pkcs12(data):
        found = pkcs12.read_trusted(data, password)
    elif data[:1] == b"\x30":
        found = [Certificate("the certificate", data)]
    else:
        _unknown(data)
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
    data = _read(_CRL, place)
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


def _use_identity(context: ssl.SSLContext, settings: TlsSettings) -> None:
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
        if error.blame == "key password":
            option = _KEY_PASSWORD
        elif error.blame == "password":
            option = _STORE_PASSWORD
        _fail(option, place, error)


def _identity(settings: TlsSettings) -> Identity:
    password = _value(settings.key_password)
    if settings.store_location is not None:
        data = _read(_STORE, settings.store_location)
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
    if pem.looks_like_pem(data) and not data.startswith(jks.MAGIC):
        blocks = pem.blocks_of(_text(data))
        return pem.identity(blocks, blocks, key_password)
    if pkcs12.looks_like_pkcs12(data):
        return pkcs12.read_identity(data, password if password is not None else key_password)
    if not data.startswith(jks.MAGIC):
        _unknown(data)
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


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
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


def _read(option: str, place: str) -> bytes:
    """The bytes of a file.

    Raises:
        ConfigError: it cannot be read, is too large, or no file at all.
    """
    try:
        # A pipe without a writer must not be waited for.
        descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        advice = "" if getattr(error, "errno", 0) != errno.EACCES else f" by user {os.geteuid()}"
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{option}: {place!r} cannot be read{advice}: {why}", option) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError(f"{option}: {place!r} is not a file", option)
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{option}: {place!r} cannot be read: {error.strerror}", option) from error
    finally:
        os.close(descriptor)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{option}: {place!r} is larger than {MOST_BYTES} bytes", option)
    if not data.strip():
        raise ConfigError(f"{option}: {place!r} is empty", option)
    return data


def _unknown(data: bytes) -> NoReturn:
    if data.startswith(jks.JCEKS_MAGIC):
        raise StoreError(
            "it is a JCEKS store, which only Java reads. Convert it: keytool -importkeystore -srckeystore FILE "
            "-srcstoretype JCEKS -destkeystore store.p12 -deststoretype PKCS12"
        )
    raise StoreError(f"it is neither PEM nor JKS nor PKCS#12; it begins with the bytes {data[:4].hex(' ')}")


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

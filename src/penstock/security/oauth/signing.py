# SPDX-License-Identifier: Apache-2.0
"""Signs assertions with RS256 and ES256. The only module that imports `cryptography` for OAuth."""

from __future__ import annotations

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from penstock.security.tls import der, pem
from penstock.security.tls.material import StoreError

_NO_KEY = "it is not a private key in PEM, or the passphrase is wrong"


class RsaSigner:
    """RS256: RSASSA-PKCS1-v1_5 with SHA-256."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message, padding.PKCS1v15(), SHA256())


class EcSigner:
    """ES256: ECDSA with P-256 and SHA-256."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key

    def sign(self, message: bytes) -> bytes:
        """The two numbers of the signature, 32 bytes each: not in DER, which the library gives."""
        r, s = decode_dss_signature(self._key.sign(message, ec.ECDSA(SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


def load_signer(text: bytes, passphrase: bytes | None, algorithm: str) -> RsaSigner | EcSigner:
    """The signer for a private key in PEM.

    Raises:
        ValueError: the key cannot be read, or does not fit the algorithm.
    """
    key = _load(_key_in(text).encode(), passphrase)
    if algorithm == "RS256":
        if isinstance(key, rsa.RSAPrivateKey):
            return RsaSigner(key)
        raise ValueError("RS256 needs an RSA key")
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return EcSigner(key)
    raise ValueError("ES256 needs a key of the curve P-256")


def _key_in(text: bytes) -> str:
    """The first key, in lines, whatever stands between them; unless it would take for ever to decrypt."""
    try:
        for block in pem.blocks_of(text.decode("latin-1")):
            if block.label == "ENCRYPTED PRIVATE KEY":
                der.check_rounds(block.data)
            if block.label.endswith("PRIVATE KEY"):
                return block.text
    except StoreError as error:
        raise ValueError(str(error)) from None
    raise ValueError(_NO_KEY)


def _load(text: bytes, passphrase: bytes | None) -> object:
    try:
        return load_pem_private_key(text, passphrase)
    except TypeError:
        if passphrase is None:
            raise ValueError("the key is encrypted, and no passphrase is given") from None
        return _load(
            text, None
        )  # a passphrase for a key that is not encrypted: Java refuses it, OpenSSL does not mind
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(_NO_KEY) from None
